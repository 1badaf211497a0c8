"""`make bench-mqtt-retained`: one subscription to `#` gets a million retained messages, on HoldMQ and on Mosquitto.

The client reads and acknowledges as fast as it can.  Every topic must arrive exactly once.  For HoldMQ's server the
result also has its longest step (SLOWLOG for commands, LATENCY for the module's work between them; without the time of
the disk), and the memory that it used beyond that before the subscription.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from socket import create_connection, socket

import click
import redis
from rich.console import Console
from rich.table import Table

from bench.machine import this_machine
from bench.mqtt_brokers import HOST, Broker, BrokerError, Running, holdmq, mosquitto
from bench.output import json_option
from tests.bridge import packets, packets5

TIMEOUT_S = 60.0
RECEIVE_BYTES = 1 << 20
TOPIC = b"r/%08d"
TOPIC_BYTES = len(TOPIC % 0)
CHUNK = 2000  # messages that are retained before their PUBACKs are awaited
SAMPLE_S = 0.05
MIB = 1 << 20


@dataclass(frozen=True)
class Result:
    """One subscription.

    Attributes:
        seconds: from the SUBSCRIBE to the last message.
        longest_ms: the server's longest step meanwhile; None: it is not known of this broker.
        extra_mib: the most memory of the server meanwhile, beyond that before; None: as above.
        cpu_us: processor time of all of the broker's processes, for one message.
    """

    broker: str
    version: int
    qos: int
    messages: int
    seconds: float
    cpu_us: float
    longest_ms: float | None = None
    longest_of: str = ""
    extra_mib: float | None = None


class LostError(RuntimeError):
    """A message did not come, or not once."""


@contextmanager
def _connected(port: int, client_id: bytes, version: int) -> Iterator[socket]:
    builders = packets5 if version == 5 else packets
    with create_connection((HOST, port), timeout=TIMEOUT_S) as client:
        client.sendall(builders.connect(client_id, keep_alive=0))
        _take_until(client, lambda data: len(data) >= 2 and len(data) >= 2 + data[1])
        yield client


def _take(client: socket) -> bytes:
    received = client.recv(RECEIVE_BYTES)
    if not received:
        raise LostError("the broker closed the connection")
    return received


def _take_until(client: socket, is_all: Callable[[bytearray], bool]) -> bytearray:
    data = bytearray()
    while not is_all(data):
        data += _take(client)
    return data


def _has(count: int, data: bytearray) -> bool:
    return len(data) >= count


def _retain(port: int, count: int, payload: bytes) -> None:
    with _connected(port, b"retains", 4) as client:
        for first in range(0, count, CHUNK):
            part = range(first, min(first + CHUNK, count))
            publishes = (packets.publish(TOPIC % n, payload, qos=1, pid=n % 65535 + 1, retain=True) for n in part)
            client.sendall(b"".join(publishes))
            _take_until(client, partial(_has, 4 * len(part)))


class _Stream:
    """PUBLISH packets of one size, as they come; those of QoS 1 are acknowledged."""

    def __init__(self, client: socket, qos: int) -> None:
        self._client = client
        self._qos = qos
        self._unread = bytearray()
        self._size = 0
        self._head = 0  # bytes before the topic's length
        self.topics: set[bytes] = set()
        self.messages = 0

    def take(self) -> None:
        """What has come by now."""
        self._unread += _take(self._client)
        if not self._size and not self._measure():
            return
        whole = len(self._unread) // self._size * self._size
        data = bytes(self._unread[:whole])
        del self._unread[:whole]
        at = self._head + 2
        self.topics.update(data[i + at : i + at + TOPIC_BYTES] for i in range(0, whole, self._size))
        self.messages += whole // self._size
        if self._qos > 0 and whole:
            self._acknowledge(data)

    def _measure(self) -> bool:
        length = 0
        for at, byte in enumerate(self._unread[1:5]):
            length |= (byte & 0x7F) << 7 * at
            if byte < 0x80:
                self._head = at + 2
                self._size = self._head + length
                return True
        return False

    def _acknowledge(self, data: bytes) -> None:
        at, count = self._head + 2 + TOPIC_BYTES, len(data) // self._size
        acks = bytearray(b"\x40\x02\0\0" * count)
        acks[2::4], acks[3::4] = data[at :: self._size], data[at + 1 :: self._size]
        self._client.sendall(acks)


def _receive(port: int, version: int, qos: int, count: int) -> tuple[float, int]:
    """Subscribes to everything; the seconds until all have come, and how many did."""
    with _connected(port, b"subscribes", version) as client:
        began = time.monotonic()
        client.sendall((packets5 if version == 5 else packets).subscribe(1, ("#", qos)))
        suback = 6 if version == 5 else 5
        data = b""
        while len(data) < suback:
            data += client.recv(suback - len(data))
        stream = _Stream(client, qos)
        while stream.messages < count:
            stream.take()
        seconds = time.monotonic() - began
    if len(stream.topics) != count:
        raise LostError(f"{count} topics expected, {len(stream.topics)} came in {stream.messages} messages")
    return seconds, stream.messages


class _Watch:
    """The server's memory, sampled, and its slow steps."""

    def __init__(self, port: int) -> None:
        self._client = redis.Redis(host=HOST, port=port)
        self._client.config_set("slowlog-log-slower-than", 1000)
        self._client.config_set("slowlog-max-len", 1024)
        self._client.config_set("latency-monitor-threshold", 1)
        self._client.execute_command("SLOWLOG", "RESET")
        self._client.execute_command("LATENCY", "RESET")
        self._before = self._most = self._used()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample)
        self._thread.start()

    def _used(self) -> int:
        return int(self._client.info("memory")["used_memory"])

    def _sample(self) -> None:
        while not self._over.wait(SAMPLE_S):
            self._most = max(self._most, self._used())

    def end(self) -> tuple[float, str, float]:
        """The longest step in ms and what it was, and MiB beyond those at first."""
        self._over.set()
        self._thread.join()
        with closing(self._client):
            commands = self._client.slowlog_get(-1)
            steps = [(entry["duration"] / 1e3, entry["command"].split()[0].decode()) for entry in commands]
            latest = self._client.execute_command("LATENCY", "LATEST")
            steps += [(float(event[3]), event[0].decode()) for event in latest if event[0].startswith(b"holdmq")]
        longest, what = max(steps, default=(1.0, "none of 1 ms"))
        return longest, what, (self._most - self._before) / MIB


def _measure(broker: Broker, version: int, qos: int, count: int, payload: bytes) -> Result:
    with broker.start() as running:
        _retain(running.port, count, payload)
        watch = _Watch(running.server_port) if running.server_port else None
        used = _cpu_s(running)
        try:
            seconds, messages = _receive(running.port, version, qos, count)
        finally:
            seen = watch.end() if watch else (None, "", None)
        cpu_us = (_cpu_s(running) - used) / messages * 1e6
    return Result(broker.name, version, qos, messages, seconds, cpu_us, *seen)


def _cpu_s(running: Running) -> float:
    ticks = 0
    for pid in running.pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / 100


@click.command()
@click.option("--messages", type=click.IntRange(1, 10_000_000), default=1_000_000, show_default=True)
@click.option("--payload", type=click.IntRange(1, 1_000_000), default=100, show_default=True, help="Bytes.")
@click.option("--ours", is_flag=True, help="HoldMQ alone.")
@json_option("bench-mqtt-retained.json")
def main(messages: int, payload: int, ours: bool, output: Path) -> None:
    """Hand a million retained messages to one subscription to everything."""
    try:
        brokers = [holdmq(), *([] if ours else [mosquitto(saving=False)])]
        results = [
            _measure(broker, version, qos, messages, b"x" * payload)
            for version, qos in ((4, 0), (4, 1), (5, 0), (5, 1))
            for broker in brokers
        ]
    except (BrokerError, LostError) as error:
        raise click.ClickException(str(error)) from error
    _show(results)
    output.parent.mkdir(parents=True, exist_ok=True)
    figures = {**this_machine(), "results": [asdict(result) for result in results]}
    output.write_text(json.dumps(figures, indent=2) + "\n")


def _show(results: Sequence[Result]) -> None:
    table = Table("broker", "MQTT", "QoS", "s", "messages/s", "CPU us", "longest step ms", "of", "extra MiB")
    for r in results:
        known = ["" if value is None else f"{value:.1f}" for value in (r.longest_ms, r.extra_mib)]
        version = "5.0" if r.version == 5 else "3.1.1"
        row = [
            f"{r.seconds:.1f}",
            f"{r.messages / r.seconds:,.0f}",
            f"{r.cpu_us:.1f}",
            known[0],
            r.longest_of,
            known[1],
        ]
        table.add_row(r.broker, version, str(r.qos), *row)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
