"""A desk between an engine and the test: clients that speak raw MQTT, and a server that the test answers for.

Packets are built and read by the tests' own code (tests/bridge/packets.py), so that the engine's codec is not tested
against itself.
"""

import struct
from dataclasses import dataclass, field, replace
from typing import Any

import hiredis

from holdmq.core import Delivery, DeliveryKind, Record, RecordType
from holdmq.core._binding import lib
from holdmq.core.engine import Engine, EngineSettings, Event, EventKind, OpenSession
from tests.bridge import packets, packets5
from tests.core.support import Books, text_of

T0 = 1_760_000_000_000


def connect(client_id: bytes = b"c", *, level: int = 4) -> bytes:
    """CONNECT with a clean session, without keep alive."""
    if level == 5:
        return packets5.connect(client_id, keep_alive=0)
    return packets.connect(client_id, keep_alive=0, level=level)


def publish(
    topic: bytes,
    payload: bytes = b"",
    *,
    qos: int = 0,
    packet_id: int = 0,
    retain: bool = False,
    dup: bool = False,
    properties: bytes | None = None,
) -> bytes:
    """PUBLISH; `properties` makes it a packet of MQTT 5.0."""
    if properties is None:
        return packets.publish(topic, payload, qos=qos, pid=packet_id, retain=retain, dup=dup)
    return packets5.publish(topic, payload, qos=qos, pid=packet_id, retain=retain, dup=dup, properties=properties)


def bulk(value: bytes) -> bytes:
    return b"$%d\r\n%s\r\n" % (len(value), value)


def push(channel: bytes, payload: bytes) -> bytes:
    return b">3\r\n" + bulk(b"message") + bulk(channel) + bulk(payload)


def record(payload: bytes = b"x", *, topic: bytes = b"t", qos: int = 1, **fields: Any) -> bytes:
    return Record(RecordType.PUBLISH, qos, time_ms=T0, topic=topic, payload=payload, **fields).encode()


PUBREL_RECORD = Record(RecordType.PUBREL, 2, time_ms=T0).encode()


def queued(serial: int, previous: int, value: bytes, *, qos: int = 1) -> bytes:
    packet_id = (serial - 1) % 65535 + 1
    return Delivery(DeliveryKind.QUEUED, qos, False, packet_id, serial, previous, value).encode()


def transient(value: bytes) -> bytes:
    return Delivery(DeliveryKind.TRANSIENT, record=value).encode()


def identifiers(arguments: list[bytes]) -> list[int]:
    """Packet identifiers as commands name them: one by one, or first-last."""
    ranges = [argument.partition(b"-") for argument in arguments]
    return [one for first, _, last in ranges for one in range(int(first), int(last or first) + 1)]


def packed(entries: list[tuple[int, int, int, bytes]]) -> bytes:
    """The entries of a packed page (src/topic/packed_page.h)."""
    return b"".join(struct.pack("<QHBI", *entry[:3], len(entry[3])) + entry[3] for entry in entries)


def page(
    entries: list[tuple[int, int, int, bytes]],
    *,
    more: bool = False,
    pack: bool = True,
    too_large: tuple[int, ...] | None = None,
) -> bytes:
    """The reply to SESSION.FETCH: (serial, packet id, state, value).

    `too_large` is the fourth part of a bounded page: (bytes, serial, packet id), or nothing.
    """
    listed = b"".join(b"*4\r\n:%d\r\n:%d\r\n:%d\r\n" % entry[:3] + bulk(entry[3]) for entry in entries)
    body = bulk(packed(entries)) if pack else b"*%d\r\n" % len(entries) + listed
    end = b"" if too_large is None else b"*%d\r\n" % len(too_large) + b"".join(b":%d\r\n" % n for n in too_large)
    return b"*%d\r\n" % (3 if too_large is None else 4) + body + b":%d\r\n:0\r\n" % more + end


def publishes(command: list[bytes]) -> list[list[bytes]]:
    """Those that a command holds: one, or (TOPIC.PIPELINE) several."""
    if command[0] != b"TOPIC.PIPELINE":
        return [command] if command[0] == b"TOPIC.PUBLISH" else []
    reader = hiredis.Reader()
    reader.feed(command[1])
    result: list[list[bytes]] = []
    while (one := reader.gets()) is not False:
        result.append(one)
    return result


def array(replies: list[bytes]) -> bytes:
    """The reply to TOPIC.PIPELINE."""
    return b"*%d\r\n" % len(replies) + b"".join(replies)


def write_some(engine: Engine, most: int) -> bytes:
    """What the engine has for the server, up to so many bytes; the rest is handed out again."""
    data = text_of(lib.hmq_engine_server_output(engine.handle, 0))[:most]
    lib.hmq_engine_server_written(engine.handle, 0, len(data))
    return data


@dataclass
class Desk:
    """One engine, its time, and what came out of it and was not looked at yet."""

    settings: EngineSettings = field(default_factory=EngineSettings)
    now_ms: int = T0
    books: Books | None = None  # what the engine takes its memory from
    max_pipeline: int = 0  # most tests look at one publish after the other

    def __post_init__(self) -> None:
        self.settings = replace(self.settings, max_pipeline=self.max_pipeline)
        self.engine = (
            Engine(self.settings) if self.books is None else Engine(self.settings, allocator=self.books.allocator)
        )
        for link in range(self.settings.links):
            self.engine.server_restored(self.now_ms, link)
        self.written: dict[int, bytes] = {}
        self.events: list[Event] = []

    # ---- clients

    def open(self, client_id: bytes = b"c", *, version: int = 4, **session: Any) -> int:
        """A client whose session is open."""
        conn = self.engine.attach()
        event = self.engine.receive(conn, connect(client_id, level=version), self.now_ms)
        assert event is not None
        assert event.kind == EventKind.PACKET
        opened = OpenSession(version, client_id, b"{" + client_id + b"}", 7, **session)
        self.engine.open(conn, opened, self.now_ms)
        assert self.engine.proceed(conn, self.now_ms) is None
        return conn

    def send(self, conn: int, data: bytes) -> None:
        """Bytes of the client; what it raised is in `events`."""
        event = self.engine.receive(conn, data, self.now_ms)
        while event is not None:
            self.events.append(event)
            if event.kind == EventKind.ERROR:
                return
            event = self.engine.proceed(conn, self.now_ms)
        if self.engine.has_more(conn):
            self.send(conn, b"")

    def received(self, conn: int) -> bytes:
        """What the client was sent since the last call."""
        self.look()
        return self.written.pop(conn, b"")

    def look(self) -> None:
        """Takes everything that the engine has for clients and its owner."""
        for conn, data in self.engine.outputs():
            self.written[conn] = self.written.get(conn, b"") + data
        self.events += self.engine.events()

    # ---- the server

    def commands(self, link: int = 0) -> list[list[bytes]]:
        """What was sent to the server of a link since the last call, after a flush."""
        self.look()
        self.engine.flush(self.now_ms)
        reader = hiredis.Reader()
        reader.feed(self.engine.server_output(link))
        result: list[list[bytes]] = []
        while (command := reader.gets()) is not False:
            result.append(command)
        return result

    def answer(self, *replies: bytes, link: int = 0) -> None:
        """Bytes of the server of a link."""
        self.events += self.engine.replies(b"".join(replies), self.now_ms, link)

    def kinds(self) -> list[int]:
        """The kinds of the events since the last call."""
        self.look()
        kinds = [event.kind for event in self.events]
        self.events.clear()
        return kinds


def deliver(desk: Desk, *serials: int, qos: int = 1, **fields: Any) -> None:
    """Pushes messages of the queue on the inbox of client `c`, each after the one before it."""
    for serial in serials:
        value = record(b"%d" % serial, qos=qos, **fields)
        desk.answer(push(b"{c}_inbox", queued(serial, serial - 1, value, qos=qos)))
