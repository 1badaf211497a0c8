"""The server of engine_world.py: a model of the module's sessions, which asks the world whether it may."""

import copy
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import hiredis

from holdmq.core import Delivery, DeliveryKind
from tests.core.engine.engine_talk import (
    PUBREL_RECORD,
    array,
    bulk,
    identifiers,
    page,
    publishes,
    push,
    record,
    transient,
)

if TYPE_CHECKING:
    from tests.core.engine.engine_world import World

IDENTIFIERS = 24  # then they come round
MOST_QUEUED = 12
MOST_PIPELINED = 4
WAIT_MS = 100
UNPIPELINED = b"ERR unknown command 'TOPIC.PIPELINE', with args beginning with: ", b"NOPERM TOPIC.PIPELINE"
UNWAITED = b"NOPERM WAIT"

Mark = tuple[int, int]  # serial and number of a message: the same publish may stand in a queue twice


def key_of(client_id: bytes) -> bytes:
    """The session's key."""
    return b"{" + client_id + b"}"


def inbox_of(client_id: bytes) -> bytes:
    """The session's inbox channel."""
    return key_of(client_id) + b"_inbox"


def payload_of(uid: int, size: int = 0) -> bytes:
    """The message's number, filled up."""
    return (b"%d." % uid).ljust(size, b".")


def uid_of(payload: bytes) -> int:
    """The message's number."""
    return int(payload.partition(b".")[0])


def topic_of(client_id: bytes, uid: int) -> bytes:
    """Where a message for this client is published."""
    return b"to/%s/%d" % (client_id, uid % 3)


@dataclass
class Message:
    """One message of a queue."""

    uid: int
    serial: int
    packet_id: int
    qos: int
    value: bytes
    expires_ms: int
    state: int = 0

    @property
    def mark(self) -> Mark:
        """By which it is known, also after the server went back to an older state."""
        return self.serial, self.uid


@dataclass
class Session:
    """One session at the server."""

    epoch: int = 0
    connected: bool = False
    window: int = 0  # most messages that may have been sent, of the oldest
    queue: list[Message] = field(default_factory=list)
    last_serial: int = 0
    last_id: int = 0
    received: dict[int, int] = field(default_factory=dict)  # identifier -> number, QoS 2 incoming

    def add(self, uid: int, qos: int, value: bytes, expires_ms: int) -> tuple[Message, int]:
        """Appends a message; returns it and the serial before it."""
        taken = {message.packet_id for message in self.queue}
        self.last_id = self.last_id % IDENTIFIERS + 1
        while self.last_id in taken:
            self.last_id = self.last_id % IDENTIFIERS + 1
        previous = self.queue[-1].serial if self.queue else 0
        self.last_serial += 1
        message = Message(uid, self.last_serial, self.last_id, qos, value, expires_ms)
        self.queue.append(message)
        return message, previous

    def find(self, packet_id: int) -> Message | None:
        """The message with this identifier."""
        return next((message for message in self.queue if message.packet_id == packet_id), None)


@dataclass
class Data:
    """All that a snapshot holds."""

    sessions: dict[bytes, Session] = field(default_factory=dict)
    published: list[tuple[bytes, int]] = field(default_factory=list)  # by whom, what


class RefusedError(Exception):
    """The reply is this error."""


class Server:
    """Executes the engine's commands."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.data = Data()
        self.snapshot = Data()
        self.replicated = Data()  # as of the last WAIT that enough replicas confirmed
        self.replicas = world.wait_replicas  # that confirm a WAIT
        self.blocked = 0  # calls of `execute` for which a WAIT holds up the connection
        self.heard: set[bytes] = set()  # channels of the one connection
        self.inbound: deque[list[bytes]] = deque()
        self.reader = hiredis.Reader()
        self.outbound = bytearray()
        self.refusal = b""
        self.pushes_headers = False
        self.queues_qos0 = False

    def written(self, data: bytes) -> None:
        """Bytes of the connection."""
        self.reader.feed(data)
        while (command := self.reader.gets()) is not False:
            self.inbound.append(command)

    def drop(self) -> None:
        """The connection is lost."""
        self.heard.clear()
        self.inbound.clear()
        self.outbound.clear()
        self.reader = hiredis.Reader()

    def execute(self) -> None:
        """The next command; nothing, while a WAIT is waiting."""
        if self.blocked and self.inbound[0][0] == b"WAIT":
            self.blocked -= 1
            return
        command = self.inbound.popleft()
        try:
            self.refuse(command[0])
            reply = _COMMANDS[command[0]](self, command)
        except RefusedError as error:
            reply = b"-%s\r\n" % str(error).encode()
        self.outbound += reply

    def refuse(self, name: bytes) -> None:
        """Raises RefusedError, if this command is temporarily refused."""
        if name == b"TOPIC.PIPELINE" and self.refusal in UNPIPELINED:
            raise RefusedError(self.refusal.decode())
        if (
            (self.refusal == b"OOM" and name in (b"TOPIC.PUBLISH", b"TOPIC.PIPELINE"))
            or (self.refusal == b"READONLY" and name not in (b"SESSION.FETCH", b"PING", b"SUBSCRIBE", b"UNSUBSCRIBE"))
            or self.refusal == b"BUSY"
            or (self.refusal == UNWAITED and name == b"WAIT")
        ):
            self.world.refused = True
            raise RefusedError(self.refusal.decode())

    def push(self, client_id: bytes, payload: bytes) -> None:
        """To the inbox, if it is heard."""
        if inbox_of(client_id) in self.heard:
            self.outbound += push(inbox_of(client_id), payload)

    def fenced(self, command: list[bytes]) -> Session:
        """The session of `key EPOCH e`."""
        session = self.data.sessions.get(command[1][1:-1])
        if session is None:
            raise RefusedError("NOSESSION")
        if session.epoch != int(command[3]):
            raise RefusedError("FENCED")
        return session

    def deliver(self, client_id: bytes, uid: int, qos: int, size: int, expires_ms: int) -> int:
        """A message for one session; how many got it."""
        session = self.data.sessions.get(client_id)
        if session is None or len(session.queue) >= MOST_QUEUED:
            return 0
        topic = topic_of(client_id, uid)
        value = record(payload_of(uid, size), topic=topic, qos=qos, expires_ms=expires_ms)
        if qos == 0 and not (session.connected and self.queues_qos0):
            self.push(client_id, transient(value))
            return 1
        message, previous = session.add(uid, qos, value, expires_ms)
        if self.pushes_headers:
            previous, value = message.serial, b""
        delivery = Delivery(DeliveryKind.QUEUED, qos, False, message.packet_id, message.serial, previous, value)
        self.push(client_id, delivery.encode())
        return 1

    # ---- commands

    def pipeline(self, command: list[bytes]) -> bytes:
        replies = []
        for one in publishes(command):
            assert one[0] == b"TOPIC.PUBLISH"
            try:
                replies.append(self.publish(one))
            except RefusedError as error:
                replies.append(b"-%s\r\n" % str(error).encode())
        assert len(command) == 2
        assert 2 <= len(replies) <= MOST_PIPELINED
        return array(replies)

    def publish(self, command: list[bytes]) -> bytes:
        topic, payload, options = command[1], command[2], command[3:]
        given = {
            name: options[options.index(name) + 1] for name in (b"QOS", b"FROM", b"EPOCH", b"PACKET") if name in options
        }
        publisher, uid, qos = given[b"FROM"], uid_of(payload), int(given.get(b"QOS", b"0"))
        if self.refusal == b"TRYAGAIN" and uid % 3 == 0:
            raise RefusedError("TRYAGAIN")
        session = self.data.sessions[publisher]
        if b"EPOCH" in given and session.epoch != int(given[b"EPOCH"]):
            raise RefusedError("FENCED")
        if b"PACKET" in given:
            known = session.received.get(int(given[b"PACKET"]))
            if known is not None:
                if known != uid:
                    self.world.excused.add(uid)  # the server was restored: it does not know that the former is done
                return b":-1\r\n"
            session.received[int(given[b"PACKET"])] = uid
        self.data.published.append((publisher, uid))
        client_id = topic.split(b"/")[1]
        return b":%d\r\n" % self.deliver(client_id, uid, qos, len(payload), 0)

    def complete(self, command: list[bytes]) -> bytes:
        session = self.fenced(command)
        return b":%d\r\n" % (session.received.pop(int(command[4]), None) is not None)

    def ack(self, command: list[bytes]) -> bytes:
        session, count = self.fenced(command), 0
        for packet_id in identifiers(command[4:]):
            message = session.find(packet_id)
            if message is None:
                continue
            self.world.check_ack(command[1][1:-1], message)
            session.queue.remove(message)
            count += 1
        return b":%d\r\n" % count

    def release(self, command: list[bytes]) -> bytes:
        message = self.fenced(command).find(int(command[4]))
        if message is None:
            return b":0\r\n"
        self.world.check_release(command[1][1:-1], message)
        message.state, message.value = 2, PUBREL_RECORD
        return b":1\r\n"

    def sent(self, command: list[bytes]) -> bytes:
        session = self.fenced(command)
        self.hand_out(command[1][1:-1], session, int(command[-1]))
        if b"WINDOW" in command[4:]:
            session.window = int(command[5])
        return b"+OK\r\n"

    def hand_out(self, client_id: bytes, session: Session, serial: int) -> None:
        """Messages up to this serial are in flight."""
        for message in session.queue:
            if message.serial <= serial and message.state == 0:
                self.world.check_sent(client_id, message)
                message.state = 1

    def fetch(self, command: list[bytes]) -> bytes:
        session = self.fenced(command)
        after, count, most = int(command[5]), int(command[7]), int(command[9])
        now_ms = self.world.now_ms
        for message in [m for m in session.queue if m.state == 0 and 0 < m.expires_ms <= now_ms]:
            session.queue.remove(message)
        bounded = b"BOUNDED" in command[10:]
        entries: list[tuple[int, int, int, bytes]] = []
        following = [message for message in session.queue if message.serial > after]
        too_large: tuple[int, ...] = ()
        for message in following[:count]:
            if (entries or bounded) and most < len(message.value):
                too_large = () if entries else (len(message.value), message.serial, message.packet_id)
                break
            most -= len(message.value)
            entries.append((message.serial, message.packet_id, message.state, message.value))
        more = len(entries) < len(following)
        return page(entries, more=more, pack=b"PACKED" in command[10:], too_large=too_large if bounded else None)

    def open(self, command: list[bytes]) -> bytes:
        client_id = command[1][1:-1]
        present = client_id in self.data.sessions
        session = self.data.sessions.setdefault(client_id, Session())
        if session.connected:
            for message in session.queue[: session.window]:
                message.state = max(message.state, 1)
            self.world.check_unsent(client_id, session.queue[session.window :])
        session.window = self.world.client(client_id).window
        session.epoch = max(session.epoch + 1, self.world.now_ms)
        session.connected = True
        self.push(client_id, Delivery(DeliveryKind.TAKEN_OVER, serial=session.epoch).encode())
        return b"*2\r\n:%d\r\n:%d\r\n" % (session.epoch, present)

    def close(self, command: list[bytes]) -> bytes:
        session = self.fenced(command)
        session.connected = False
        if not self.world.older:  # else it may be of a state that is lost
            self.hand_out(command[1][1:-1], session, int(command[4]))
        return b"+OK\r\n"

    def wait(self, command: list[bytes]) -> bytes:
        wanted = self.world.wait_replicas
        assert wanted
        assert [int(word) for word in command[1:]] == [wanted, WAIT_MS]
        if self.replicas >= wanted:
            self.replicated = copy.deepcopy(self.data)
        return b":%d\r\n" % self.replicas

    def ping(self, _command: list[bytes]) -> bytes:
        return b"+PONG\r\n"

    def subscribe(self, command: list[bytes]) -> bytes:
        kind = command[0].lower()
        if kind == b"subscribe":
            self.heard.update(command[1:])
        else:
            self.heard.difference_update(command[1:])
        return b"".join(b">3\r\n" + bulk(kind) + bulk(channel) + b":1\r\n" for channel in command[1:])


_COMMANDS = {
    b"TOPIC.PUBLISH": Server.publish,
    b"TOPIC.PIPELINE": Server.pipeline,
    b"SESSION.COMPLETE": Server.complete,
    b"SESSION.ACK": Server.ack,
    b"SESSION.RELEASE": Server.release,
    b"SESSION.SENT": Server.sent,
    b"SESSION.FETCH": Server.fetch,
    b"SESSION.OPEN": Server.open,
    b"SESSION.CLOSE": Server.close,
    b"PING": Server.ping,
    b"WAIT": Server.wait,
    b"SUBSCRIBE": Server.subscribe,
    b"UNSUBSCRIBE": Server.subscribe,
}
