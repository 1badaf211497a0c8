"""Sessions over a real cluster: each has the link of its slot's node, and follows its slot without losing a message."""

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import hiredis
import pytest

from holdmq import core
from holdmq.core import Record, RecordType
from holdmq.core.engine import Engine, EngineSettings, EventKind, OpenSession, OutOfStepError
from holdmq_bridge.process.settings import Settings
from holdmq_bridge.server.link import pack
from holdmq_bridge.server.node_links import NodeLinks
from tests.bridge import packets
from tests.bridge.scenes import WAIT_S, run
from tests.module.cluster_support import FAILS_OVER, SlotMove, add_replica, promote
from tests.support import Cluster, Server

SELDOM_S = 600.0
Make = Callable[..., Cluster]


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Front:
    """The least that a bridge does: opens sessions, and moves them where the links say."""

    def __init__(self, url: str, period_s: float) -> None:
        self.engine = Engine(EngineSettings(links=8, retry_first_ms=20, retry_most_ms=100))
        self.server_buffer = self.engine.server_buffer
        self.links = NodeLinks(Settings(redis=url), self.engine, self, "front", period_s)
        self.keys: dict[int, bytes] = {}  # by connection
        self.subscribed: set[tuple[int, bytes]] = set()
        self.received: dict[int, list[bytes]] = {}  # payloads
        self.ended: list[Any] = []
        self.redirections = 0
        self._unread: dict[int, bytes] = {}
        self._replies: dict[int, tuple[int, asyncio.Future[Any]]] = {}  # with their links
        self._tokens = itertools.count(1)

    # ---- from the links

    def on_bytes(self, link: int, count: int) -> bool:
        try:
            for event in self.engine.buffered_replies(count, now_ms(), link):
                self._on_event(event)
        except OutOfStepError:
            return False
        self.flush()
        return True

    def on_up(self, link: int) -> None:
        self.subscribed = {pair for pair in self.subscribed if pair[0] != link}
        for conn, key in self.keys.items():
            if self.engine.link_of(conn) == link:
                self._subscribe(link, key)
        self.engine.server_restored(now_ms(), link)
        self.flush()

    def on_down(self, link: int) -> None:
        self.engine.server_lost(link)
        for token in [token for token, (used, _) in self._replies.items() if used == link]:
            self._replies.pop(token)[1].set_result(hiredis.ReplyError("TRYAGAIN the link was lost"))

    def on_writable(self) -> None:
        self.flush()

    def on_slots(self) -> None:
        for conn in self.keys:
            self._follow(conn)
        self.flush()

    def on_primary_moved(self) -> None:
        pass

    def ping(self, link: int) -> bool:
        if self.engine.link_outstanding(link):
            return False
        self.engine.command(pack(("PING",)), token=0, link=link)
        self.flush()
        return True

    # ---- sessions

    def _subscribe(self, link: int, key: bytes) -> None:
        if (link, key) not in self.subscribed and self.links.is_up(link):
            self.subscribed.add((link, key))
            self.engine.command(pack(("SUBSCRIBE", key + b"_inbox")), replies=False, link=link)

    def _follow(self, conn: int) -> None:
        link = self.links.number_of(self.keys[conn])
        if link is not None and link != self.engine.link_of(conn):
            self._subscribe(link, self.keys[conn])
            self.engine.move(conn, link)

    async def call(self, key: bytes, *words: bytes | str | int) -> Any:
        """A command at the node of the key, wherever it is."""
        async with asyncio.timeout(WAIT_S):
            while True:
                link = self.links.number_of(key)
                if link is not None and self.links.is_up(link):
                    token = next(self._tokens)
                    self._replies[token] = link, asyncio.get_running_loop().create_future()
                    self.engine.command(pack(words), token=token, link=link)
                    self.flush()
                    reply = await self._replies[token][1]
                    if not isinstance(reply, hiredis.ReplyError):
                        return reply
                    assert str(reply).startswith(("MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN")), reply
                    self.links.refused(link, str(reply))
                await asyncio.sleep(0.02)

    async def open(self, client_id: bytes) -> int:
        key = core.session_key(client_id)
        conn = self.engine.attach()
        assert self.engine.receive(conn, packets.connect(client_id, clean=False, keep_alive=0), now_ms()) is not None
        epoch, _ = await self.call(key, "SESSION.OPEN", key, "OWNER", "front", "EXPIRY", 3600)
        link = self.links.number_of(key)
        assert link is not None
        self._subscribe(link, key)
        self.engine.open(conn, OpenSession(4, client_id, key, epoch, resumed=True, link=link), now_ms())
        self.keys[conn] = key
        self.received[conn] = []
        assert self.engine.proceed(conn, now_ms()) is None
        self.flush()
        return conn

    def _on_event(self, event: Any) -> None:
        if event.kind == EventKind.REPLY:
            reader = hiredis.Reader()
            reader.feed(event.data)
            if event.token:
                self._replies.pop(event.token)[1].set_result(reader.gets())
        elif event.kind == EventKind.REFUSED:
            error = event.data.decode()
            self.redirections += error.startswith("MOVED")
            self.links.refused(self.engine.link_of(event.conn), error)
            self._follow(event.conn)
        elif event.kind not in (EventKind.PUSH, EventKind.RELIEF):
            self.ended.append(event)

    def flush(self) -> None:
        self.engine.flush(now_ms())
        for event in self.engine.events():
            self._on_event(event)
        for conn, data in self.engine.outputs():
            self._take(conn, data)
        if self.engine.needs_flush:
            self.engine.flush(now_ms())
        self.links.flush()

    def _take(self, conn: int, data: bytes) -> None:
        """Reads what the client was sent, and acknowledges its messages."""
        data = self._unread.pop(conn, b"") + data
        while len(data) >= 2 and len(data) >= 2 + data[1]:  # the tests' packets are short
            packet, data = data[: 2 + data[1]], data[2 + data[1] :]
            if packet[0] >> 4 == 3:
                topic = int.from_bytes(packet[2:4], "big")
                self.received[conn].append(packet[6 + topic :])
                self.engine.receive(
                    conn, packets.puback(int.from_bytes(packet[4 + topic : 6 + topic], "big")), now_ms()
                )
        self._unread[conn] = data

    async def run(self) -> None:
        """What waits for time to pass."""
        while True:
            await asyncio.sleep(0.02)
            self.flush()


@contextlib.asynccontextmanager
async def fronting(url: str, period_s: float = SELDOM_S) -> AsyncIterator[Front]:
    front = Front(url, period_s)
    front.links.start()
    task = asyncio.create_task(front.run())
    try:
        yield front
        assert not task.done(), task.exception()
    finally:
        task.cancel()
        await front.links.stop()


async def until(condition: Callable[[], bool], what: Callable[[], object]) -> None:
    try:
        async with asyncio.timeout(WAIT_S):
            while not condition():  # noqa: ASYNC110 (nothing tells of it)
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"not within {WAIT_S:g} s: {what()}") from None


def ids_on(cluster: Cluster, count: int = 1) -> list[list[bytes]]:
    """Client ids whose sessions are on each node."""
    found: list[list[bytes]] = [[] for _ in cluster.nodes]
    for number in itertools.count():
        if all(len(ids) >= count for ids in found):
            return [ids[:count] for ids in found]
        client_id = b"client-%d" % number
        found[cluster.nodes.index(cluster.node_of(core.session_key(client_id)))].append(client_id)
    raise AssertionError


def message(number: int) -> bytes:
    return Record(RecordType.PUBLISH, 1, time_ms=now_ms(), topic=b"t", payload=b"%d" % number).encode()


def is_next(payloads: list[bytes], count: int) -> bool:
    return payloads == [b"%d" % number for number in range(count)]


def test_sessions_are_served_on_all_nodes(fresh_cluster: Make) -> None:
    cluster = fresh_cluster(3)

    async def scene() -> None:
        async with fronting(cluster.nodes[1].url) as front:
            conns = [await front.open(client_id) for (client_id,) in ids_on(cluster)]
            assert sorted(map(front.engine.link_of, conns)) == [0, 1, 2]
            for conn in conns:
                for number in range(5):
                    await front.call(front.keys[conn], "SESSION.DELIVER", front.keys[conn], message(number))
            await until(
                lambda: all(is_next(payloads, 5) for payloads in front.received.values()), lambda: front.received
            )
            for conn in conns:
                key = front.keys[conn]
                node = cluster.node_of(key).client()
                await until(lambda node=node, key=key: not node.exists(key + b"_messages"), lambda: "acknowledged")  # type: ignore[misc]
            assert front.ended == []

    run(scene())


def test_a_lost_node_stops_only_its_sessions(fresh_cluster: Make) -> None:
    cluster = fresh_cluster(3)

    async def scene() -> None:
        async with fronting(cluster.nodes[1].url) as front:
            conns = [await front.open(client_id) for (client_id,) in ids_on(cluster)]
            cluster.nodes[0].kill()
            for conn in conns[1:]:
                node = cluster.nodes[conns.index(conn)].client()
                node.config_set("cluster-require-full-coverage", "no")
                node.execute_command("SESSION.DELIVER", front.keys[conn], message(0))
            await until(lambda: all(is_next(front.received[conn], 1) for conn in conns[1:]), lambda: front.received)
            assert front.received[conns[0]] == []
            assert front.ended == []
            cluster.nodes[0].start()
            await front.call(front.keys[conns[0]], "SESSION.DELIVER", front.keys[conns[0]], message(0))

    run(scene())


@pytest.mark.parametrize("rounds", [3])
def test_a_session_follows_its_slot_under_traffic_in_order(fresh_cluster: Make, rounds: int) -> None:
    cluster = fresh_cluster(2)
    (client_id,), _ = ids_on(cluster)

    async def scene() -> None:
        async with fronting(cluster.nodes[0].url) as front:
            conn = await front.open(client_id)
            key = front.keys[conn]
            sent = 0

            async def add(count: int) -> None:
                nonlocal sent
                for _ in range(count):
                    await front.call(key, "SESSION.DELIVER", key, message(sent))
                    sent += 1

            await add(20)
            for at in range(rounds):
                source, target = cluster.nodes[at % 2], cluster.nodes[(at + 1) % 2]
                move = SlotMove(cluster, source, target, core.slot_of(key))
                move.begin()
                adding = asyncio.create_task(add(20))
                await asyncio.sleep(0)
                for _ in move.move_all(3):
                    await asyncio.sleep(0.01)
                move.end()
                await adding
                await add(10)
            await until(lambda: len(front.received[conn]) >= sent, lambda: front.received[conn][-5:])
            assert is_next(front.received[conn], sent)
            assert front.ended == []
            number = front.links.number_of(key)
            assert number == front.engine.link_of(conn)
            owner = cluster.nodes[rounds % 2].client()
            await until(lambda: not owner.exists(key + b"_messages"), lambda: "acknowledged messages are still there")

    run(scene())


def test_a_session_follows_a_failover(fresh_cluster: Make, fresh_server: Callable[..., Server]) -> None:
    cluster = fresh_cluster(3, config=FAILS_OVER)
    (client_id,), *_ = ids_on(cluster)
    lost = cluster.nodes[0]
    replica = add_replica(cluster, lost, fresh_server(cluster=True, config=FAILS_OVER))

    async def scene() -> None:
        async with fronting(cluster.nodes[1].url) as front:
            conn = await front.open(client_id)
            key = front.keys[conn]
            await front.call(key, "SESSION.DELIVER", key, message(0))
            await until(lambda: is_next(front.received[conn], 1), lambda: front.received)
            await asyncio.to_thread(lost.client().execute_command, "WAIT", 1, 5000)
            lost.kill()
            await asyncio.to_thread(promote, cluster, replica, core.slot_of(key))
            await front.call(key, "SESSION.DELIVER", key, message(1))
            await until(lambda: front.received[conn][-1:] == [b"1"], lambda: front.received)
            assert front.ended == []

    run(scene())
