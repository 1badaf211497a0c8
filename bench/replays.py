"""`make bench-replays`: the cost of sessions that read history for a publish, and the speed of a replay to a client.

Three figures, each beside its baseline, in one run on one server with the module:

    publish     CPU time of the server's main thread for one TOPIC.PUBLISH of QoS 1 that is kept, with no session, one
                absent application, so many of them, and (fewer publishes) as many devices, which get a copy each
    read        the same for one message that SESSION.REPLAY puts into a session's queue
    client      messages per second of wall time, from SUBSCRIBE on, through a bridge to one client of MQTT 3.1.1 that
                acknowledges each
"""

import contextlib
import socket
import struct
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import click

from bench.machine import this_machine
from bench.pair import HOST, Bench, running
from bench.wire import Command, packed
from tests.support import BridgeProcess

PUBLISHES = 20_000
COPIES = 20  # publishes to devices
READ = 20_000
PAYLOAD = b"x" * 62
FLUSH: list[Command] = [("FLUSHALL", "SYNC"), ("HISTORY.STORE", "h", "FILTER", "a/#")]


def _topic(number: int) -> str:
    return f"a/{number % 1000:06}/temperature"


def _publishes(count: int) -> list[bytes]:
    return packed(("TOPIC.PUBLISH", _topic(number), PAYLOAD, "QOS", 1) for number in range(count))


def _cpu(bench: Bench, work: list[bytes], count: int) -> float:
    before = bench.cpu_us()
    bench.load.run(work)
    return (bench.cpu_us() - before) / count


def _subscribed(bench: Bench, sessions: int, options: str) -> None:
    bench.load.run(packed([*FLUSH, *(("SESSION.SUBSCRIBE", f"{{c{n}}}", "a/#", options) for n in range(sessions))]))


def publish_rows(bench: Bench, sessions: int, rounds: int) -> list[tuple[str, float]]:
    """Microseconds of a publish, by who has subscribed; the least of the rounds."""
    cases = [
        ("nobody", 0, "1", PUBLISHES),
        ("1 application, away", 1, "1@!", PUBLISHES),
        (f"{sessions:,} applications, away", sessions, "1@!", PUBLISHES),
        (f"{sessions:,} devices, away", sessions, "1", COPIES),
    ]
    best = {name: float("inf") for name, *_ in cases}
    for _ in range(rounds):
        for name, count, options, publishes in cases:
            _subscribed(bench, count, options)
            best[name] = min(best[name], _cpu(bench, _publishes(publishes), publishes))
    return list(best.items())


def read_row(bench: Bench) -> float:
    """Microseconds of a message that is read into a queue."""
    bench.load.run(packed(FLUSH))
    bench.load.run(_publishes(READ))
    sessions = READ // 1000
    bench.load.run(packed(("SESSION.SUBSCRIBE", f"{{c{n}}}", "a/#", "1@earliest!") for n in range(sessions)))
    reads = packed(
        [("SESSION.REPLAY", f"{{c{n}}}", "COUNT", 1000, "QUEUE", 10_000) for n in range(sessions) for _ in range(5)], 1
    )
    cost = _cpu(bench, reads, sessions * 5000)
    held = sum(int(bench.admin.zcard(f"{{c{n}}}_messages")) for n in range(sessions))
    if held != sessions * 5000:
        raise AssertionError(f"{held} messages were read, {sessions * 5000} expected")
    return cost


class _Reader:
    """A client of MQTT 3.1.1 that acknowledges what it gets."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection((HOST, port), timeout=60)
        self._socket.sendall(b"\x10\x0e\x00\x04MQTT\x04\x02\x00\x00\x00\x02bm")

    def read(self, qos: int, count: int) -> float:
        """Subscribes to everything from the earliest on; messages a second."""
        name = b"$replay/earliest/a/#"
        body = b"\x00\x01" + struct.pack(">H", len(name)) + name + bytes([qos])
        begun = time.monotonic()
        self._socket.sendall(b"\x82" + bytes([len(body)]) + body)
        unread, got = b"", 0
        while got < count:
            data = self._socket.recv(1 << 18)
            if not data:
                raise AssertionError("the bridge closed the connection")
            unread += data
            acks = bytearray()
            at = 0
            while len(unread) - at >= 2 and len(unread) - at >= 2 + unread[at + 1]:
                if unread[at] >> 4 == 3:
                    got += 1
                    if unread[at] & 6:
                        size = int.from_bytes(unread[at + 2 : at + 4], "big")
                        acks += b"\x40\x02" + unread[at + 4 + size : at + 6 + size]
                at += 2 + unread[at + 1]
            unread = unread[at:]
            if acks:
                self._socket.sendall(acks)
        return count / (time.monotonic() - begun)

    def close(self) -> None:
        """Closes the socket."""
        self._socket.close()


@contextlib.contextmanager
def _bridge(bench: Bench) -> Iterator[BridgeProcess]:
    port = bench.admin.connection_pool.connection_kwargs["port"]
    with tempfile.TemporaryDirectory(prefix="holdmq-bench-") as folder:
        made = BridgeProcess(f"redis://{HOST}:{port}", Path(folder), arguments=["--log-level", "WARNING"])
        try:
            made.start()
            yield made
        finally:
            made.close()


def client_rows(bench: Bench, count: int, rounds: int) -> list[tuple[str, float]]:
    """Messages a second, by QoS; the most of the rounds."""
    bench.load.run(packed(FLUSH))
    bench.load.run(_publishes(count))
    best = [0.0, 0.0]
    with _bridge(bench) as made:
        for _ in range(rounds):
            for qos in (0, 1):
                reader = _Reader(made.port)
                best[qos] = max(best[qos], reader.read(qos, count))
                reader.close()
    return [(f"QoS {qos}", rate) for qos, rate in enumerate(best)]


@click.command()
@click.option("--sessions", type=click.IntRange(1, 100_000), default=10_000, show_default=True)
@click.option("--messages", type=click.IntRange(1, 1_000_000), default=100_000, show_default=True)
@click.option("--rounds", type=click.IntRange(1, 100), default=3, show_default=True)
def main(sessions: int, messages: int, rounds: int) -> None:
    """Measure, and print."""
    with running(module=True, aof=False) as bench:
        for name, cost in publish_rows(bench, sessions, rounds):
            click.echo(f"publish, {name}: {cost:.2f} us")
        click.echo(f"read into a queue: {read_row(bench):.2f} us a message")
        for name, rate in client_rows(bench, messages, rounds):
            click.echo(f"through a bridge to one client, {name}: {rate:,.0f} messages/s")
        click.echo(f"{bench.facts()} {this_machine()}")


if __name__ == "__main__":
    main()
