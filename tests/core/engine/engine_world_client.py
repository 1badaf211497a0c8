"""The clients of engine_world.py: what each sends, holds and acknowledges, and what it must never see."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.bridge.packets import acknowledgement
from tests.core.engine.engine_talk import publish
from tests.core.engine.engine_world_server import Mark, payload_of, topic_of, uid_of

if TYPE_CHECKING:
    from tests.core.engine.engine_world import World

PUBACK, PUBREC, PUBREL, PUBCOMP = 0x40, 0x50, 0x62, 0x70


@dataclass
class Link:
    """One connection of a client, from both of its ends."""

    conn: int
    wire: bytearray = field(default_factory=bytearray)  # on the way to the engine
    unread: bytearray = field(default_factory=bytearray)  # from it, not a whole packet yet
    answers: deque[tuple[int, int]] = field(default_factory=deque)  # owed to the client: packet type, identifier
    held: dict[int, tuple[Mark, int]] = field(default_factory=dict)  # not acknowledged: identifier -> message, stage
    seen: set[Mark] = field(default_factory=set)
    releases: deque[int] = field(default_factory=deque)  # identifiers: PUBREC was sent, PUBREL not yet received
    last_serial: int = 0
    aliases: dict[int, bytes] = field(default_factory=dict)
    epoch: int = 0  # 0: the session is not open yet
    open: bool = False
    reading_paused: bool = False


@dataclass
class Client:
    """One client; what it keeps over its connections."""

    client_id: bytes
    version: int
    window: int
    max_packet_out: int = 0
    alias_maximum_out: int = 0
    rate: int = 0
    denied: bool = False  # to publish some messages
    link: Link | None = None
    next_id: int = 0
    unanswered: dict[int, tuple[int, int, bool]] = field(default_factory=dict)  # identifier -> number, QoS, released
    promised: dict[int, int] = field(default_factory=dict)  # number -> QoS: acknowledged to this publisher
    sent: list[tuple[int, int]] = field(default_factory=list)  # number, QoS: in the order of publishing
    incoming: dict[int, int] = field(default_factory=dict)  # QoS 2 until PUBREL: identifier -> number
    got: set[Mark] = field(default_factory=set)
    received: set[Mark] = field(default_factory=set)  # PUBREC was sent
    done: set[Mark] = field(default_factory=set)  # acknowledged for good
    taken: list[int] = field(default_factory=list)  # QoS 2: what the application was given

    # ---- to the engine

    def write(self, data: bytes) -> None:
        """On its way to the engine."""
        assert self.link is not None
        self.link.wire += data

    def properties(self) -> bytes | None:
        """None in 3.1.1."""
        return b"" if self.version == 5 else None

    def publish(self, uid: int, target: bytes, qos: int) -> None:
        """A new message."""
        if qos:
            self.next_id += 1
            self.unanswered[self.next_id] = (uid, qos, False)
        self.sent.append((uid, qos))
        self._publish(uid, target, qos, self.next_id, dup=False)

    def _publish(self, uid: int, target: bytes, qos: int, packet_id: int, *, dup: bool) -> None:
        assert self.link is not None
        if qos:
            self.link.answers.append((PUBACK if qos == 1 else PUBREC, packet_id))
        topic = topic_of(target, uid)
        self.write(publish(topic, payload_of(uid), qos=qos, packet_id=packet_id, dup=dup, properties=self.properties()))

    def come_back(self, targets: dict[int, bytes]) -> None:
        """The session is open again: what has no answer is sent again, in its order [MQTT-4.4.0-1]."""
        for packet_id, (uid, qos, released) in self.unanswered.items():
            if released:
                self.release(packet_id)
            else:
                self._publish(uid, targets[uid], qos, packet_id, dup=True)

    def release(self, packet_id: int) -> None:
        """PUBREL."""
        assert self.link is not None
        self.link.answers.append((PUBCOMP, packet_id))
        self.write(acknowledgement(PUBREL, packet_id))

    def acknowledge(self, packet_id: int) -> None:
        """The next step of the exchange of a message that it holds."""
        assert self.link is not None
        mark, stage = self.link.held[packet_id]
        if stage == PUBREC:
            self.received.add(mark)
            self.link.held[packet_id] = (mark, 0)  # until PUBREL
            self.link.releases.append(packet_id)
        else:
            self.done.add(mark)
            del self.link.held[packet_id]
        self.write(acknowledgement(stage, packet_id))

    def owes(self) -> list[int]:
        """Identifiers for which it could send something now; PUBRECs in the order of the messages [MQTT-4.6.0-3]."""
        if self.link is None:
            return []
        stages = {packet_id: stage for packet_id, (_, stage) in self.link.held.items() if stage}
        to_receive = [packet_id for packet_id, stage in stages.items() if stage == PUBREC]
        return [packet_id for packet_id in stages if packet_id not in to_receive[1:]]

    # ---- from the engine

    def read(self, data: bytes, world: "World") -> None:
        """Bytes of the engine."""
        assert self.link is not None
        self.link.unread += data
        for first, body in packets(self.link.unread):
            kind = first & 0xF0
            if kind == 0x30:
                self._on_publish(first, body, world)
            elif kind == 0x60:
                self._on_pubrel(int.from_bytes(body[:2], "big"), world)
            elif kind in (PUBACK, PUBREC, PUBCOMP):
                self._on_answer(kind, int.from_bytes(body[:2], "big"), body[2] if len(body) > 2 else 0)
            else:
                assert kind == 0x20  # CONNACK

    def miss(self, link: Link, world: "World") -> None:
        """What was sent to a connection that is dead."""
        for first, body in packets(link.unread):
            at = 2 + int.from_bytes(body[:2], "big")
            if first & 0xF0 == 0x30 and first & 6:
                self.got.add(world.mark(self.client_id, int.from_bytes(body[at : at + 2], "big")))
            elif first & 0xF0 == 0x30:
                mark = world.mark0(self.client_id, uid_of(body[at + 1 + body[at] if self.version == 5 else at :]))
                self.got |= {mark} if mark else set()
                self.done |= {mark} if mark else set()

    def _on_answer(self, kind: int, packet_id: int, reason: int) -> None:
        assert self.link is not None
        owed = self.link.answers.popleft()
        assert (kind, packet_id) == owed, "answers out of order"
        uid, qos, _ = self.unanswered[packet_id]
        if kind == PUBREC and reason < 0x80:
            self.promised[uid] = qos
            self.unanswered[packet_id] = (uid, qos, True)
            self.release(packet_id)
            return
        if kind == PUBACK and reason < 0x80:
            self.promised[uid] = qos
        del self.unanswered[packet_id]

    def _on_publish(self, first: int, body: bytes, world: "World") -> None:
        link = self.link
        assert link is not None
        qos, size = first >> 1 & 3, int.from_bytes(body[:2], "big")
        topic, at = body[2 : 2 + size], 2 + size
        packet_id = int.from_bytes(body[at : at + 2], "big") if qos else 0
        at += 2 if qos else 0
        if self.version == 5:
            topic = self._topic(topic, body[at + 1 : at + 1 + body[at]])
            at += 1 + body[at]
        uid = uid_of(body[at:])
        assert topic == topic_of(self.client_id, uid)
        assert len(body) + 2 <= self.max_packet_out or not self.max_packet_out
        if not qos:
            self._on_queued0(link, world.mark0(self.client_id, uid))
            return
        assert packet_id not in link.held, "an identifier that is in use"
        mark = world.mark(self.client_id, packet_id, uid)
        if mark[0]:
            assert mark not in link.seen, "twice in one connection"
            assert mark[0] > link.last_serial, "out of order"
            link.last_serial = mark[0]
        link.seen.add(mark)
        self.got.add(mark)
        link.held[packet_id] = (mark, PUBACK if qos == 1 else PUBREC)
        assert len(link.held) <= self.window, "more than the window"
        if qos == 2:
            if self.incoming.get(packet_id) != uid:
                self.taken.append(uid)
            self.incoming[packet_id] = uid

    def _on_queued0(self, link: Link, mark: Mark | None) -> None:
        """A message of QoS 0, which is of the queue if there is a mark."""
        if mark is None:
            return
        assert mark not in link.seen, "twice in one connection"
        assert mark[0] > link.last_serial, "out of order"
        link.last_serial = mark[0]
        link.seen.add(mark)
        self.got.add(mark)
        self.done.add(mark)

    def _topic(self, topic: bytes, properties: bytes) -> bytes:
        assert self.link is not None
        at = 0
        while at < len(properties):
            if properties[at] == 0x23:
                alias = int.from_bytes(properties[at + 1 : at + 3], "big")
                assert 1 <= alias <= self.alias_maximum_out
                if topic:
                    self.link.aliases[alias] = topic
                topic = self.link.aliases[alias]
                at += 3
            else:
                assert properties[at] == 2  # message expiry
                at += 5
        return topic

    def _on_pubrel(self, packet_id: int, world: "World") -> None:
        link = self.link
        assert link is not None
        self.incoming.pop(packet_id, None)
        if packet_id in link.releases:
            assert world.older or packet_id == link.releases[0], "a PUBREL out of order"
            link.releases.remove(packet_id)
        mark = link.held[packet_id][0] if packet_id in link.held else world.mark(self.client_id, packet_id)
        link.held[packet_id] = (mark, PUBCOMP)
        assert len(link.held) <= self.window, "more than the window"


def packets(unread: bytearray) -> Iterator[tuple[int, bytes]]:
    """Takes whole packets off: first byte, body."""
    while len(unread) >= 2:
        size, shift, at = 0, 0, 1
        while at < len(unread):
            size |= (unread[at] & 0x7F) << shift
            shift, at = shift + 7, at + 1
            if not unread[at - 1] & 0x80:
                break
        else:
            return
        if len(unread) < at + size:
            return
        first, body = unread[0], bytes(unread[at : at + size])
        del unread[: at + size]
        yield first, body
