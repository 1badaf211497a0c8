"""`make bench-sizing`: the memory of each stored thing.

Prints a table for docs/sizing.md, and writes it to build/bench-sizing.json with a description of the machine.  Each row
has a server of its own, without an append-only file.  It makes a number of things of one kind, and divides the growth
of the server's memory by that number.  The load generator (bench/mqtt_load.c) holds connections through a bridge.
"""

import contextlib
import json
import os
import resource
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import redis

from bench.machine import this_machine
from bench.mqtt_brokers import BrokerError, holdmq, pss_bytes
from bench.mqtt_cases import COMMON
from bench.mqtt_load import LoadError, holding
from bench.output import json_option
from bench.pair import HOST, running
from bench.wire import Command, packed
from tests.bridge.certificates import Certificates, dial_tls, secured
from tests.support import BridgeProcess, Port, reserve_port

SIZES = (62, 256, 1024)  # bytes of a payload
FEW = 100  # messages in a queue, and sessions that get the same message
CHANNEL = 1000  # messages in a channel
FILTERS = 10  # subscriptions of a session that has several
LEAST = 1000
MOST_TLS = 1000  # connections over TLS, each of which costs a handshake
GRANTED = b"\x20\2\0\0\x90\3\0\1\1"  # a CONNACK, and a SUBACK with QoS 1
QUIET = ("--log-level", "WARNING", "--connection-rate", "0")


@dataclass(frozen=True)
class Thing:
    """A kind of thing that takes memory.

    Attributes:
        what: its name in the table.
        payload: bytes of a message; 0: it is none.
        count: how many are made.
        before: what has to be there first; it is not counted.
        work: makes them.
        counted: how many the server has.
    """

    what: str
    payload: int
    count: int
    before: list[Command]
    work: Iterator[Command]
    counted: Callable[[redis.Redis], int]


@dataclass(frozen=True)
class Row:
    """A row of the table.

    Attributes:
        what: what it is.
        payload: bytes of a message.
        count: how many were made.
        bytes_each: what the server allocated for one, its payload included; None: it was not asked.
        resident_each: the same as memory of the process, which also has what the allocator keeps.
    """

    what: str
    payload: int
    count: int
    bytes_each: float | None
    resident_each: float


def _sessions(count: int) -> list[Command]:
    return [("SESSION.OPEN", f"{{c{n}}}", "OWNER", "bench", "EXPIRY", 604_800) for n in range(count)]


def _topic(number: int) -> str:
    return f"plant/{number:06}/temperature"


def _subscribed(count: int, options: str = "1") -> list[Command]:
    return [("SESSION.SUBSCRIBE", f"{{c{n}}}", _topic(n), options) for n in range(count)]


def _keys(client: redis.Redis) -> int:
    return int(client.dbsize())


def _waiting(sessions: int) -> Callable[[redis.Redis], int]:
    """Counts what waits in the queues of so many sessions."""

    def counted(client: redis.Redis) -> int:
        asked = client.pipeline(transaction=False)
        for number in range(sessions):
            asked.zcard(f"{{c{number}}}_messages")
        return int(sum(asked.execute()))

    return counted


def _subscriptions(sessions: int, without: int = 0) -> Callable[[redis.Redis], int]:
    """Counts the subscriptions of so many sessions, less those that each had before."""

    def counted(client: redis.Redis) -> int:
        asked = client.pipeline(transaction=False)
        for number in range(sessions):
            asked.hlen(f"{{c{number}}}_subscriptions")
        return int(sum(asked.execute())) - without * sessions

    return counted


def _in_channels(channels: int) -> Callable[[redis.Redis], int]:
    return lambda client: sum(int(client.llen(f"news{number}")) for number in range(channels))


def _kept(client: redis.Redis) -> int:
    shards = client.execute_command("HISTORY.INFO", "s")["shard"]
    return sum(int(shard["last"]) for shard in shards)


def messages(count: int, payload: int) -> list[Thing]:
    """A message in each of the places where one is kept."""
    text = b"x" * payload
    channels, sessions, turns = count // CHANNEL, count // FEW, range(FEW)
    return [
        Thing(
            "message that a channel holds",
            payload,
            count,
            [],
            (("PUBLISH", f"news{number}", text) for number in range(channels) for _ in range(CHANNEL)),
            _in_channels(channels),
        ),
        Thing(
            "channel that holds one message",
            payload,
            count,
            [],
            (("PUBLISH", f"news{number}", text) for number in range(count)),
            _keys,
        ),
        Thing(
            "message in the queue of a session",
            payload,
            count,
            [*_sessions(sessions), *_subscribed(sessions)],
            (("TOPIC.PUBLISH", _topic(number), text, "QOS", 1) for _ in turns for number in range(sessions)),
            _waiting(sessions),
        ),
        Thing(
            f"the same message in {FEW} queues, each",
            payload,
            count,
            [*_sessions(FEW), *(("SESSION.SUBSCRIBE", f"{{c{n}}}", "plant/#", "1") for n in range(FEW))],
            (("TOPIC.PUBLISH", _topic(number), text, "QOS", 1) for number in range(sessions)),
            _waiting(FEW),
        ),
        Thing(
            "retained message",
            payload,
            count,
            [],
            (("TOPIC.PUBLISH", _topic(number), text, "QOS", 1, "RETAIN") for number in range(count)),
            _keys,
        ),
        Thing(
            "message of a history store",
            payload,
            count,
            [("HISTORY.STORE", "s", "FILTER", "plant/#")],
            (("HISTORY.APPEND", "s", _topic(number % (count // 10)), text) for number in range(count)),
            _kept,
        ),
    ]


def sessions(count: int) -> list[Thing]:
    """Sessions and what they subscribe to."""
    several = count // FILTERS
    store: Command = ("HISTORY.STORE", "s", "FILTER", "plant/#")
    return [
        Thing("session", 0, count, [], iter(_sessions(count)), _keys),
        Thing(
            "first subscription of a session",
            0,
            count,
            _sessions(count),
            iter(_subscribed(count)),
            _subscriptions(count),
        ),
        Thing(
            "each further subscription",
            0,
            count,
            [*_sessions(several), *_subscribed(several)],
            (
                ("SESSION.SUBSCRIBE", f"{{c{n}}}", f"plant/{n:06}/sensor-{number}", "1")
                for n in range(several)
                for number in range(FILTERS)
            ),
            _subscriptions(several, 1),
        ),
        Thing(
            "position of an application in history",
            0,
            count,
            [store, *_sessions(count)],
            iter(_subscribed(count, "1@!")),
            _subscriptions(count),
        ),
    ]


def weigh(thing: Thing) -> Row:
    """What one of them takes.

    Raises:
        RuntimeError: the server has another number of them than were made.
    """
    with running(module=True, aof=False) as bench:
        bench.load.run(packed(thing.before))
        first = thing.counted(bench.admin) if thing.counted is _keys else 0
        pid = int(bench.admin.info("server")["process_id"])
        begin = int(bench.admin.info("memory")["used_memory"]), pss_bytes(pid)
        bench.load.run(packed(thing.work))
        end = int(bench.admin.info("memory")["used_memory"]), pss_bytes(pid)
        there = thing.counted(bench.admin) - first
    if there < thing.count:
        raise RuntimeError(f"{thing.what}: {thing.count:,} were made, and the server has {there:,}")
    each = [(after - before) / thing.count for before, after in zip(begin, end, strict=True)]
    return Row(thing.what, thing.payload, thing.count, *each)


def connections(count: int) -> list[Row]:
    """What a connection with a session and a subscription takes, in the bridge and in the server.

    Raises:
        BrokerError: server or bridge did not start.
        LoadError: a connection was refused or lost.
    """
    broker = holdmq(["--max-connections", str(count + 10)])
    with broker.start() as run:
        plain = _held(run.pss_bytes, lambda: holding(run.port, count, COMMON), count)
    with broker.start(websocket=True) as run:
        options = {**COMMON, "websocket": "/mqtt"}
        over_websocket = _held(run.pss_bytes, lambda: holding(run.websocket_port, count, options), count)
    return [
        Row("connection over TCP, in the bridge", 0, count, None, plain["bridge"]),
        Row("connection over WebSocket, in the bridge", 0, count, None, over_websocket["bridge"]),
        tls_connections(min(count, MOST_TLS)),
        Row("connection with its session, in the server", 0, count, None, plain["server"]),
    ]


def _held(
    weighed: Callable[[], dict[str, int]], held: Callable[[], contextlib.AbstractContextManager[object]], count: int
) -> dict[str, float]:
    before = weighed()
    with held():
        after = weighed()
    return {part: (after[part] - before[part]) / count for part in after}


def tls_connections(count: int) -> Row:
    """The same over TLS, in the bridge."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with (
        running(module=True, aof=False) as bench,
        tempfile.TemporaryDirectory(prefix="holdmq-bench-") as folder,
        contextlib.ExitStack() as stack,
    ):
        port = reserve_port()
        stack.callback(port.release)
        certificates = Certificates(Path(folder) / "tls")
        server = bench.admin.connection_pool.connection_kwargs["port"]
        arguments = secured(certificates, "--tls-port", port, *QUIET)
        bridge = BridgeProcess(f"redis://{HOST}:{server}", Path(folder), arguments=arguments)
        stack.callback(bridge.close)
        bridge.start()
        _talk_over_tls(stack, port, certificates, "first")
        before = pss_bytes(bridge.pid)
        for number in range(count):
            _talk_over_tls(stack, port, certificates, f"{number:05}")
        each = (pss_bytes(bridge.pid) - before) / count
    return Row("connection over TLS, in the bridge", 0, count, None, each)


def _talk_over_tls(stack: contextlib.ExitStack, port: Port, certificates: Certificates, client: str) -> None:
    """Connect with a persistent session of MQTT 3.1.1 and subscribe; the connection lasts as long as the stack."""
    peer = stack.enter_context(dial_tls(port, certificates.context()))
    name = client.encode()
    topic = b"plant/" + name
    peer.sendall(
        b"\x10" + bytes([12 + len(name)]) + b"\0\4MQTT\4\0\0\0\0" + bytes([len(name)]) + name
        + b"\x82" + bytes([5 + len(topic)]) + b"\0\1\0" + bytes([len(topic)]) + topic + b"\1"
    )  # fmt: skip
    answer = b""
    while len(answer) < len(GRANTED):
        data = peer.recv(64)
        if not data:
            raise LoadError("the bridge closed a connection over TLS")
        answer += data
    if answer != GRANTED:
        raise LoadError(f"the bridge answered {answer!r}; {GRANTED!r} was expected")


def table(rows: list[Row]) -> str:
    """The rows as Markdown."""
    lines = ["| what | payload, bytes | memory, bytes | resident, bytes |", "| --- | --- | --- | --- |"]
    for row in rows:
        payload = f"{row.payload:,}" if row.payload else ""
        allocated = "" if row.bytes_each is None else f"{row.bytes_each:,.0f}"
        lines.append(f"| {row.what} | {payload} | {allocated} | {row.resident_each:,.0f} |")
    return "\n".join(lines)


@click.command()
@click.option("--count", type=click.IntRange(LEAST), default=100_000, show_default=True, help="Things of each kind.")
@click.option("--connections", "held", type=click.IntRange(1, 50_000), default=10_000, show_default=True)
@json_option("bench-sizing.json")
def main(count: int, held: int, output: Path) -> None:
    """Measure what messages, sessions, subscriptions and connections take in memory."""
    count -= count % LEAST
    machine = this_machine()
    with running(module=True, aof=False) as bench:
        facts = bench.facts()
    things = [*(thing for size in SIZES for thing in messages(count, size)), *sessions(count)]
    rows = [weigh(thing) for thing in things]
    try:
        rows += connections(held)
    except (BrokerError, LoadError) as error:
        raise click.ClickException(str(error)) from error
    machine["load_average_after"] = os.getloadavg()
    click.echo(table(rows))
    click.echo(
        f"\n{count:,} things of each kind, {held:,} connections; {facts['server']} {facts['server_version']}, "
        f"{facts['allocator']}, no append-only file, on {machine['cpus']} x {machine['cpu']}, {machine['kernel']}, "
        f"{machine['date']}."
    )
    output.parent.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = {**machine, **facts, "rows": [asdict(row) for row in rows]}
    output.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
