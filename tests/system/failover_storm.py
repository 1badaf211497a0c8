"""Planned failovers under load, one after the other, of every kind that the server has.

    1 primary + 2 replicas, min-replicas-to-write 1        publisher ── window of 20, QoS 1 ──► bridge ──► primary
    3 Sentinels                                            subscriber ◄── QoS 1, persistent ─────┘

    wait ──► SENTINEL FAILOVER, or ... COORDINATED ──► every subscriber is ahead again ──► wait ...

What is claimed: no message that was acknowledged is lost or out of order, no connection of a client is closed, and no
publisher is without an acknowledgement for as long as OUTAGE_S.

Everything runs in one event loop, but for the failovers, which the calling thread orders.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import redis

from holdmq.core import mqtt
from tests.support import BridgeProcess, SentinelProcess, Server, ServerKind, eventually
from tests.support.sentinel import SERVICE
from tests.system.mqtt_connection import Connection

HOST = "127.0.0.1"
REPLICAS = 2
SENTINELS = 3
PAIRS = 10
WINDOW = 20
RATE = 100.0  # messages a second of each publisher
OUTAGE_S = 3.0
SETTLED_S = 60.0
CONNECT_S = 30.0
SERVER_SETTINGS = ["appendfsync always", "min-replicas-to-write 1", "min-replicas-max-lag 10"]
BRIDGE_OPTIONS = ["--sys-interval-s", "0", "--retry-first-s", "0.02", "--retry-max-s", "0.2"]
VERSION = 4


@dataclass
class Pair:
    """A publisher and the subscriber of its topic.

    Attributes:
        published: the number published last; they begin with 1.
        acknowledged: the number acknowledged last.
        longest_s: the longest time without an acknowledgement while one was due.
        got: every number that came, in the order in which it came.
        lost: connections that ended before they were told to.
    """

    number: int
    published: int = 0
    acknowledged: int = 0
    heard_at: float = 0.0
    longest_s: float = 0.0
    got: list[int] = field(default_factory=list)
    lost: int = 0

    @property
    def topic(self) -> bytes:
        """Its own."""
        return b"failover/%d" % self.number

    def findings(self) -> list[str]:
        """What is wrong with what came."""
        first = list(dict.fromkeys(self.got))
        missing = sorted(set(range(1, self.acknowledged + 1)) - set(first))
        wrong = [f"{self.topic!r}: {len(missing)} acknowledged messages are lost: {missing[:10]}"] if missing else []
        if first != sorted(first):
            wrong.append(f"{self.topic!r}: out of order")
        if self.lost:
            wrong.append(f"{self.topic!r}: {self.lost} connections were closed")
        return wrong


class Load:
    """All pairs, in an event loop of their own in a thread of its own.

    Args:
        port: of the bridge.
    """

    def __init__(self, port: int) -> None:
        self.pairs = [Pair(number) for number in range(PAIRS)]
        self._port = port
        self._stop = threading.Event()
        self._drain = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="load")
        self.errors: list[BaseException] = []
        self._connections: list[Connection] = []

    def start(self) -> None:
        """Begins."""
        self._thread.start()

    def finish(self) -> None:
        """Publishes no more, waits until all that was acknowledged has come, and ends."""
        self._drain.set()
        try:
            eventually(self._is_complete, SETTLED_S, "all acknowledged messages")
        except AssertionError:
            pass  # the findings say which are missing
        finally:
            self._stop.set()
            self._thread.join()

    def _is_complete(self) -> bool:
        return all(pair.acknowledged == pair.published and set(pair.got) >= {pair.acknowledged} for pair in self.pairs)

    async def _run(self) -> None:
        tasks = [asyncio.create_task(self._pair(pair)) for pair in self.pairs]
        stopped = asyncio.create_task(asyncio.to_thread(self._stop.wait))
        await asyncio.wait([stopped, *tasks], return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(outcome, BaseException) and not isinstance(outcome, asyncio.CancelledError):
                self.errors.append(outcome)
        for connection in self._connections:
            connection.abort()
        for connection in self._connections:
            await connection.closed.wait()

    async def _pair(self, pair: Pair) -> None:
        receiver = await self._connected(b"to-%d" % pair.number, partial(self._delivered, pair), clean=False)
        receiver.send(mqtt.Subscribe(1, [mqtt.Subscription(pair.topic, 1)]))
        publisher = await self._connected(b"from-%d" % pair.number, partial(self._answered, pair), clean=True)
        loop = asyncio.get_running_loop()
        pair.heard_at = loop.time()
        begun = loop.time()
        while True:
            due = int((loop.time() - begun) * RATE) - pair.published
            room = WINDOW - (pair.published - pair.acknowledged)
            for _ in range(0 if self._drain.is_set() else max(0, min(due, room))):
                pair.published += 1
                publisher.send(mqtt.Publish(pair.topic, b"%d" % pair.published, 1, packet_id=_id(pair.published)))
            begun += max(0, due - max(room, 0)) / RATE  # what could not be sent is not made up for
            if pair.acknowledged == pair.published:
                pair.heard_at = loop.time()
            pair.longest_s = max(pair.longest_s, loop.time() - pair.heard_at)
            if publisher.closed.is_set() or receiver.closed.is_set():
                pair.lost += 1
                return
            await asyncio.sleep(0.005)

    async def _connected(
        self, client_id: bytes, on_packet: Callable[[Connection, mqtt.Packet], None], *, clean: bool
    ) -> Connection:
        loop = asyncio.get_running_loop()
        make = partial(Connection, VERSION, on_packet, self._port, clean=clean)
        _, connection = await loop.create_connection(make, HOST, self._port)
        self._connections.append(connection)
        connection.send(mqtt.Connect(client_id, clean=clean, level=VERSION))
        async with asyncio.timeout(CONNECT_S):
            await connection.connack
        return connection

    @staticmethod
    def _delivered(pair: Pair, connection: Connection, packet: mqtt.Packet) -> None:
        if isinstance(packet, mqtt.Connack):
            connection.connack.set_result(packet)
        elif isinstance(packet, mqtt.Publish):
            pair.got.append(int(packet.payload))
            connection.send(mqtt.Puback(packet.packet_id))

    @staticmethod
    def _answered(pair: Pair, connection: Connection, packet: mqtt.Packet) -> None:
        if isinstance(packet, mqtt.Connack):
            connection.connack.set_result(packet)
        elif isinstance(packet, mqtt.Puback):
            assert packet.packet_id == _id(pair.acknowledged + 1), "acknowledgements out of order"
            pair.acknowledged += 1
            pair.heard_at = asyncio.get_running_loop().time()


def _id(number: int) -> int:
    return (number - 1) % 65_535 + 1


class World:
    """Servers, Sentinels and a bridge.

    Args:
        kind: of the servers.
        directory: for their data and logs.
    """

    def __init__(self, kind: ServerKind, directory: Path) -> None:
        self.kind = kind
        self._directory = directory
        self.servers: list[Server] = []
        self.sentinels: list[SentinelProcess] = []
        self.bridge: BridgeProcess | None = None

    def start(self) -> int:
        """All of it; returns the port of the bridge."""
        for number in range(1 + REPLICAS):
            primary = self.servers[0] if self.servers else None
            folder = self._directory / f"server-{number}"
            self.servers.append(Server(self.kind, folder, aof=True, config=SERVER_SETTINGS, replica_of=primary))
            self.servers[-1].start()
        for number in range(SENTINELS):
            folder = self._directory / f"sentinel-{number}"
            folder.mkdir()
            self.sentinels.append(SentinelProcess(self.servers[0], folder, quorum=2))
            self.sentinels[-1].start()
        hosts = ",".join(f"{HOST}:{sentinel.port}" for sentinel in self.sentinels)
        self.bridge = BridgeProcess(f"sentinel://{hosts}/{SERVICE}", self._directory, arguments=BRIDGE_OPTIONS)
        self.bridge.start()
        return self.bridge.port

    def close(self) -> None:
        """Ends everything."""
        if self.bridge is not None:
            self.bridge.close()
        for sentinel in self.sentinels:
            sentinel.close()
        for server in self.servers:
            server.close()

    def may_fail_over(self) -> bool:
        """Nothing of an earlier failover is left, at the Sentinels neither."""
        return self.is_settled() and all(sentinel.knows(REPLICAS, SENTINELS - 1) for sentinel in self.sentinels)

    def is_settled(self) -> bool:
        """One primary, which all Sentinels name, and which all others follow with all that it has."""
        primaries = [server for server in self.servers if _role(server)[0] == b"master"]
        if len(primaries) != 1 or not all(sentinel.names(primaries[0]) for sentinel in self.sentinels):
            return False
        others = [server for server in self.servers if server is not primaries[0]]
        return all(_role(server)[3:4] == [b"connected"] for server in others) and _is_replicated(primaries[0])

    def primary(self) -> Server:
        """The one primary of servers that are settled."""
        [found] = [server for server in self.servers if _role(server)[0] == b"master"]
        return found

    @property
    def kinds(self) -> list[bool]:
        """Whether failovers are coordinated: both, where the server can."""
        return [False, True] if (self.kind.family, self.kind.version >= (9, 0)) == ("valkey", True) else [False]


def _role(server: Server) -> list[object]:
    with redis.Redis(port=server.port) as client:
        return list(client.execute_command("ROLE"))


def _is_replicated(primary: Server) -> bool:
    """Whether all replicas have what the primary has now: the check of docs/failover.md."""
    with redis.Redis(port=primary.port, single_connection_client=True) as client:
        client.set("holdmq:failover-check", 1, px=60_000)
        return int(client.wait(REPLICAS, 5000)) >= REPLICAS


def run(kind: ServerKind, directory: Path, *, failovers: int, pause_s: float, say: Callable[[str], None]) -> list[str]:
    """So many failovers, one each `pause_s` or later; returns what is wrong."""
    world = World(kind, directory)
    try:
        load = Load(world.start())
        eventually(world.may_fail_over, SETTLED_S, "servers that follow one primary")
        load.start()
        try:
            for number in range(failovers):
                time.sleep(pause_s)
                eventually(world.may_fail_over, SETTLED_S, "servers that follow one primary, as the Sentinels know")
                coordinated = world.kinds[number % len(world.kinds)]
                say(f"failover {number + 1}{', coordinated' if coordinated else ''}")
                sentinel, former = world.sentinels[number % SENTINELS], world.primary()
                sentinel.fail_over_until(
                    lambda sentinel=sentinel, former=former: not sentinel.names(former),  # type: ignore[misc]
                    coordinated=coordinated,
                    what="a Sentinel that names another primary",
                )
            eventually(world.is_settled, SETTLED_S, "servers that follow one primary")
        finally:
            load.finish()
        return _findings(load, say)
    finally:
        world.close()


def _findings(load: Load, say: Callable[[str], None]) -> list[str]:
    wrong = [repr(error) for error in load.errors]
    for pair in load.pairs:
        wrong += pair.findings()
    acknowledged = sum(pair.acknowledged for pair in load.pairs)
    longest_s = max(pair.longest_s for pair in load.pairs)
    say(f"{acknowledged} messages acknowledged; longest time without an acknowledgement {longest_s:.2f} s")
    if longest_s >= OUTAGE_S:
        wrong.append(f"a publisher was without an acknowledgement for {longest_s:.2f} s (at most {OUTAGE_S:g})")
    return wrong
