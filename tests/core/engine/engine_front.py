"""A front end on a real cluster: one engine, a link to each node, publishers, and an owner that feeds nodes.

Everything runs in the test's thread.  A turn sends what the engine has for the nodes and reads what they reply.
"""

import select
import socket
import time
from collections.abc import Callable, Iterable

import hiredis
import redis

from holdmq import core
from holdmq.core import Record
from holdmq.core.engine import Engine, EngineSettings, Event, EventKind, OpenSession
from tests.core.engine.engine_talk import connect, publish
from tests.module.cluster.routes_support import Node, Nodes
from tests.support import Cluster

WAIT_S = 30.0
HELLO = b"*2\r\n$5\r\nHELLO\r\n$1\r\n3\r\n"


def now_ms() -> int:
    return int(time.time() * 1000)


class Front:
    """One process of a front end.

    Args:
        cluster: its nodes have the links 0, 1 ...
    """

    def __init__(self, cluster: Cluster) -> None:
        self.nodes = Nodes(cluster)
        self.engine = Engine(EngineSettings(links=len(cluster.nodes), cluster=1))
        self.sockets: list[socket.socket | None] = [None] * len(cluster.nodes)
        self.owed: list[bytes] = [b""] * len(cluster.nodes)
        self.cut: set[int] = set()
        self.events: list[Event] = []
        self.answers: dict[int, bytes] = {}
        self.keys: dict[int, bytes] = {}
        self.feeds = True
        for link, node in enumerate(self.nodes.all):
            self.engine.node(link, node.id.encode())
            self.connect(link)
        self.look_at_slots()

    def connect(self, link: int) -> None:
        """Connect a link."""
        made = socket.create_connection(("127.0.0.1", self.nodes.all[link].server.port), WAIT_S)
        made.sendall(HELLO)
        reader = hiredis.Reader()
        while reader.gets() is False:
            reader.feed(made.recv(65536))
        made.setblocking(False)
        self.sockets[link], self.owed[link] = made, b""
        self.engine.server_restored(now_ms(), link)

    def lose(self, link: int) -> None:
        """Break a link."""
        made = self.sockets[link]
        assert made is not None
        made.close()
        self.sockets[link] = None
        self.engine.server_lost(link)

    def look_at_slots(self, by: int = 0) -> None:
        """Ask a node who has which slots, and move sessions to their nodes."""
        ids = [node.id for node in self.nodes.all]
        view = self.nodes.all[by].client.execute_command("CLUSTER", "SLOTS")
        owners: list[tuple[int, int, int]] = []
        for first, last, (_host, _port, node_id, *_), *_ in view:
            owners.append((first, last, ids.index(node_id.decode())))
        for first, last, link in owners:
            self.engine.slots(first, last, link)
        for conn, key in self.keys.items():
            slot = core.slot_of(key)
            self.engine.move(conn, next(link for first, last, link in owners if first <= slot <= last))

    # --- clients

    def open(self, client_id: str) -> int:
        """A publisher."""
        key = core.session_key(client_id.encode())
        node = self.nodes.of(client_id)
        epoch, _resumed = node.client.execute_command("SESSION.OPEN", key, "OWNER", "front", "EXPIRY", 3600)[:2]
        conn = self.engine.attach()
        assert self.engine.receive(conn, connect(client_id.encode()), now_ms()) is not None
        link = self.nodes.all.index(node)
        opened = OpenSession(4, client_id.encode(), bytes(key), epoch, link=link)
        self.engine.open(conn, opened, now_ms())
        assert self.engine.proceed(conn, now_ms()) is None
        self.keys[conn] = bytes(key)
        self.answers[conn] = b""
        return conn

    def publish(self, conn: int, topic: bytes, number: int, *, qos: int = 1, retain: bool = False) -> None:
        """A publish with its number as payload, and as packet identifier."""
        data = publish(topic, b"%d" % number, qos=qos, packet_id=number if qos else 0, retain=retain)
        event = self.engine.receive(conn, data, now_ms())
        assert event is None

    def acknowledged(self, conn: int) -> list[int]:
        """The packet identifiers of the PUBACKs so far."""
        data = self.answers[conn]
        assert all(data[at : at + 2] == b"\x40\x02" for at in range(0, len(data), 4))
        return [int.from_bytes(data[at + 2 : at + 4], "big") for at in range(0, len(data), 4)]

    # --- turns

    def turn(self, timeout_s: float = 0.005) -> None:
        """Writes, reads, and does what the owner of an engine does."""
        self.engine.flush(now_ms())
        for link, made in enumerate(self.sockets):
            if made is None or link in self.cut:
                continue
            self.owed[link] += self.engine.server_output(link)
            if self.owed[link]:
                try:
                    self.owed[link] = self.owed[link][made.send(self.owed[link]) :]
                except BlockingIOError:
                    continue
        open_ones = {made.fileno(): link for link, made in enumerate(self.sockets) if made is not None}
        readable, _, _ = select.select(list(open_ones), [], [], timeout_s)
        for number in readable:
            link = open_ones[number]
            made = self.sockets[link]
            if made is None or link in self.cut:
                continue
            data = made.recv(262144)
            if not data:
                self.lose(link)
                continue
            self.take(self.engine.replies(data, now_ms(), link))
        self.take(self.engine.events())
        for conn, data in self.engine.outputs():
            self.answers[conn] = self.answers.get(conn, b"") + data

    def take(self, events: Iterable[Event]) -> None:
        """Does what the owner of an engine does about events."""
        for event in events:
            self.events.append(event)
            if event.kind == EventKind.ROUTES_MISSING and self.feeds:
                self.feed(event)
            is_moved = event.kind == EventKind.REFUSED and event.data.startswith(b"MOVED ")
            if event.kind == EventKind.SLOT_MOVED or is_moved:
                self.look_at_slots(event.link)

    def feed(self, event: Event) -> None:
        """Feeds a node, or lets one export to another."""
        target = self.nodes.all[event.link]
        try:
            if event.code == 0:
                target.learn(self.nodes.all)
            else:
                home = next(node for node in self.nodes.all if node.id.encode() == event.data)
                for page in target.pages(home.id, event.token):
                    home.feed(page, event.token)
        except redis.RedisError:
            return  # the engine tries again, and this is told again
        self.engine.routes_fed(event.link)

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Turns until something is so."""
        end = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < end, f"never: {what}; {self.events[-5:]}"
            self.turn()

    def close(self) -> None:
        """Close the links."""
        for made in self.sockets:
            if made is not None:
                made.close()


def subscribe(nodes: Nodes, client_id: str, topic_filter: str) -> None:
    """As a bridge does: the subscription, then its route at every node."""
    node = nodes.of(client_id)
    node.subscribe(client_id, topic_filter)
    for other in nodes.all:
        other.add(topic_filter, core.slot_of(core.session_key(client_id.encode())))


def got(node: Node, client_id: str, topic: bytes | None = None) -> list[int]:
    """The numbers of the messages in a session's queue."""
    key = core.session_key(client_id.encode())
    numbers: list[int] = []
    after = 0
    while True:
        entries, more, *_ = node.client.execute_command("SESSION.FETCH", key, "AFTER", after, "COUNT", 10000)
        for serial, _packet_id, _state, value in entries:
            after = serial
            record = Record.decode(value)
            if topic in (None, record.topic):
                numbers.append(int(record.payload))
        if not more:
            return numbers


def first_of_each(numbers: list[int]) -> list[int]:
    """Without repetitions."""
    return list(dict.fromkeys(numbers))
