"""The pump (bridge/native/pump.h): sockets and the engine, without a bridge or a server."""

import asyncio
import errno
import os
import select
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, NamedTuple, cast

import pytest

from holdmq.core._binding import lib as core_lib
from holdmq.core.engine import Engine, OpenSession
from holdmq_bridge._pump import ffi, lib
from holdmq_bridge.broker.bridge import Bridge
from holdmq_bridge.process.process import Process
from holdmq_bridge.process.settings import Settings
from holdmq_bridge.sockets import pump as pump_module
from holdmq_bridge.sockets.pump import Pump
from holdmq_bridge.sockets.stream import Pumped, Receiver
from tests.bridge import packets
from tests.bridge.talk import reset
from tests.core.engine.engine_talk import push, queued, record
from tests.support.raw import encoded

HIGH_WATER = 10_000
HARD_LIMIT = 40_000
SOCKETS_A_TURN = 64
ALL = 0b1111
LARGE = bytes(range(256)) * 20_000  # more than a socket takes
CONNECT = packets.connect("c")
PINGREQ = b"\xc0\0"
LIGHT, HEAVY = 20, 50  # as in bridge/native/pump.c
TURN_PACKETS = 512  # as in src/engine/client.c
LONG_QUEUE = core_lib.HMQ_LONG_QUEUE
QUIET, RECEIVERS = 1 << lib.HMQ_PUMP_QUIET, 1 << lib.HMQ_PUMP_RECEIVERS
OTHERS, BULK = 1 << lib.HMQ_PUMP_OTHERS, 1 << lib.HMQ_PUMP_BULK


class Told(NamedTuple):
    """An event of the pump."""

    kind: int
    number: int
    conn: int
    error: int
    partial: bool


class Answered(NamedTuple):
    """Bytes for a connection."""

    conn: int
    data: bytes


class Member(NamedTuple):
    """A socket in the pump, and the other side."""

    number: int
    conn: int
    peer: socket.socket

    def read(self, size: int) -> bytes:
        """So many bytes, or all before the end."""
        data = bytearray()
        while len(data) < size and (part := self.peer.recv(size - len(data))):
            data += part
        return bytes(data)


class Harness:
    """A pump with an engine."""

    def __init__(self) -> None:
        self.engine = Engine()
        calls = ffi.new("hmq_pump_engine *")
        calls.engine = self.engine.handle
        for name in pump_module._ENGINE_CALLS:
            setattr(calls, name, Engine.function(name))
        self.pump = ffi.gc(lib.hmq_pump_new(calls, HIGH_WATER, HARD_LIMIT), lib.hmq_pump_free)
        self._told = ffi.new("hmq_pump_event *")
        self._peers: list[socket.socket] = []

    def add(self, max_message_bytes: int = 0) -> Member:
        """One more, over TCP; with a size of messages it is a WebSocket."""
        with socket.create_server(("127.0.0.1", 0)) as listening:
            peer = socket.create_connection(listening.getsockname(), 10)
            accepted, _ = listening.accept()
        self._peers.append(peer)
        conn = self.engine.attach()
        number = lib.hmq_pump_add(self.pump, accepted.detach(), conn, max_message_bytes)
        assert number >= 0
        return Member(number, conn, peer)

    def open(self, client_id: bytes, *, window: int = 1) -> Member:
        """One more, whose session is open."""
        member = self.add()
        self.engine.receive(member.conn, packets.connect(client_id.decode()), 0)
        session = OpenSession(4, client_id, b"{%s}" % client_id, 1, window=window)
        self.engine.open(member.conn, session, 0)
        assert self.engine.proceed(member.conn, 0) is None
        return member

    def deliver(self, client_id: bytes, serials: range) -> None:
        """Messages for a session."""
        for serial in serials:
            self.push(client_id, queued(serial, serial - 1, record()))
        assert self.write() == []

    def push(self, client_id: bytes, delivery: bytes) -> None:
        """What the server says to an inbox."""
        assert list(self.engine.replies(push(b"{%s}_inbox" % client_id, delivery), 0)) == []

    def _event(self) -> Told:
        told = self._told
        return Told(told.kind, told.number, told.conn, told.error, told.partial)

    def bytes_told(self) -> bytes:
        """The bytes of the event told last."""
        told = self._told.bytes
        return bytes(ffi.buffer(told.data, told.len))

    def fault_told(self) -> int:
        """Its fault of a WebSocket."""
        return int(self._told.fault)

    def turn(
        self, *, congested: bool = False, now_s: float = 1.0, classes: int = ALL, most: int = 1000
    ) -> Iterator[Told]:
        """What a turn tells, which is begun when there is something to look at or a second has passed."""
        if not lib.hmq_pump_has_more(self.pump):
            watched = [lib.hmq_pump_fd(self.pump, which) for which in range(4) if classes >> which & 1]
            select.select(watched, [], [], 1)
        assert lib.hmq_pump_poll(self.pump, classes, most, 0, now_s, congested) >= 0
        while lib.hmq_pump_next(self.pump, self._told, self.engine.event):
            yield self._event()

    def until_the_socket_is_full(self, member: Member) -> None:
        """A turn sends a part of what waits."""
        waiting = 0
        while waiting != (waiting := lib.hmq_pump_waiting(self.pump, member.number)):
            list(self.turn())

    def turns(self, *, until: int) -> list[Told]:
        """What turns tell, up to the first that tells of such an event."""
        told: list[Told] = []
        for _ in range(1000):
            told += self.turn()
            if told and told[-1].kind == until:
                return told
        raise AssertionError(f"no event {until}; told: {told}")

    def counted(self) -> list[Answered]:
        """What the engine has for clients, in place of sending it."""
        return [Answered(conn, data) for conn, data in self.engine.outputs()]

    def write(self) -> list[Told]:
        """Sends what the engine has."""
        told = []
        while lib.hmq_pump_write(self.pump, self._told):
            told.append(self._event())
        return told

    def close(self) -> None:
        """Ends all."""
        ffi.release(self.pump)
        for peer in self._peers:
            peer.close()


@pytest.fixture
def harness() -> Iterator[Harness]:
    """One of its own."""
    made = Harness()
    yield made
    made.close()


def kinds(told: list[Told]) -> list[Any]:
    """Their kinds alone."""
    return [one.kind for one in told]


def test_a_packet_for_the_owner_comes_with_its_connection(harness: Harness) -> None:
    one, two = harness.add(), harness.add()
    two.peer.sendall(CONNECT)
    for told in harness.turn(now_s=5.0):
        assert told == Told(lib.HMQ_PUMP_PACKET, two.number, two.conn, 0, False)
        assert harness.engine.last_event().data == CONNECT
    assert lib.hmq_pump_heard(harness.pump, two.number) == 5.0
    assert lib.hmq_pump_heard(harness.pump, one.number) == 0.0


def test_bytes_that_complete_no_packet_are_reported_and_are_not_a_sign_of_life(harness: Harness) -> None:
    one = harness.add()
    one.peer.sendall(CONNECT[:3])
    assert list(harness.turn()) == [Told(lib.HMQ_PUMP_PARTIAL, one.number, one.conn, 0, False)]
    assert lib.hmq_pump_heard(harness.pump, one.number) == 0.0
    one.peer.sendall(CONNECT[3:])
    assert kinds(list(harness.turn())) == [lib.HMQ_PUMP_PACKET]


def test_a_turn_looks_at_so_many_sockets_and_the_next_at_the_others(harness: Harness) -> None:
    members = [harness.add() for _ in range(SOCKETS_A_TURN + 10)]
    for member in members:
        member.peer.sendall(CONNECT + b"\xc0")  # one byte more, so that each is ready again
    heard: set[int] = set()
    while len(heard) < len(members):  # two turns, or more if one takes too long
        told = list(harness.turn())
        assert 0 < len(told) <= SOCKETS_A_TURN
        heard |= {one.number for one in told}
    assert heard == {member.number for member in members}


def test_a_client_that_sends_much_is_read_apart_from_the_others(harness: Harness) -> None:
    much, little = harness.open(b"much"), harness.open(b"little")
    much.peer.sendall(PINGREQ * (HEAVY + 1))
    little.peer.sendall(PINGREQ * HEAVY)
    assert list(harness.turn()) == []
    harness.write()
    for member in (much, little):
        member.peer.sendall(PINGREQ)
    for classes, read in ((OTHERS, little), (BULK, much)):
        assert list(harness.turn(classes=classes)) == []
        assert [told.conn for told in harness.counted()] == [read.conn]


def test_anyone_who_has_grown_quiet_is_read_with_the_others_again(harness: Harness) -> None:
    one = harness.open(b"c")
    for now_s, pings in ((1.0, HEAVY + 1), (1.15, 1), (1.3, 1)):
        one.peer.sendall(PINGREQ * pings)
        assert list(harness.turn(now_s=now_s)) == []
    harness.write()
    one.peer.sendall(PINGREQ)
    assert list(harness.turn(now_s=1.35, classes=OTHERS)) == []
    assert [told.conn for told in harness.counted()] == [one.conn]


def quieten(harness: Harness, member: Member, packet: bytes = PINGREQ) -> None:
    """Lets it send little for more than half a second, until 2.0."""
    for now_s in (1.0, 1.3, 1.6, 2.0):
        member.peer.sendall(packet)
        assert list(harness.turn(now_s=now_s)) == []
    harness.write()
    harness.counted()


def test_a_client_that_has_sent_little_for_half_a_second_is_quiet(harness: Harness) -> None:
    one = harness.open(b"c")
    assert not lib.hmq_pump_has_quiet(harness.pump)
    quieten(harness, one)
    assert lib.hmq_pump_has_quiet(harness.pump)
    one.peer.sendall(PINGREQ * LIGHT)
    assert list(harness.turn(now_s=2.2, classes=QUIET)) == []
    assert [told.conn for told in harness.counted()] == [one.conn]
    one.peer.sendall(PINGREQ)
    assert list(harness.turn(now_s=2.2, classes=QUIET)) == []
    assert not lib.hmq_pump_has_quiet(harness.pump)
    one.peer.sendall(PINGREQ)
    assert list(harness.turn(now_s=2.2, classes=OTHERS)) == []
    assert [told.conn for told in harness.counted()] == [one.conn]


@pytest.mark.parametrize(("sessions", "is_quiet"), [(8, True), (400, False)])
def test_a_client_whose_publishes_reach_many_sessions_is_not_quiet(
    harness: Harness, sessions: int, is_quiet: bool
) -> None:
    harness.engine.server_restored(0)
    one = harness.open(b"c")
    for now_s in (1.0, 1.3, 1.6, 2.0):
        one.peer.sendall(packets.publish("t", b"x", qos=1, pid=1))
        assert list(harness.turn(now_s=now_s)) == []
        harness.write()
        assert harness.engine.server_output()
        assert list(harness.engine.replies(b":%d\r\n" % sessions, 0)) == []
    assert lib.hmq_pump_has_quiet(harness.pump) == is_quiet


def test_a_quiet_client_that_leaves_is_counted_no_more(harness: Harness) -> None:
    one = harness.open(b"c")
    quieten(harness, one)
    one.peer.close()
    assert kinds(list(harness.turn(now_s=2.1))) == [lib.HMQ_PUMP_CLOSED]
    assert not lib.hmq_pump_has_quiet(harness.pump)


def test_a_quiet_client_is_read_first_and_however_much_the_server_owes(harness: Harness) -> None:
    harness.engine.server_restored(0)
    quiet, *others = [harness.open(b"%d" % number) for number in range(3)]
    quieten(harness, quiet)
    publish = packets.publish("t", b"x", qos=1, pid=1)
    for member in others:
        member.peer.sendall(publish * 10)
    quiet.peer.sendall(publish)
    assert list(harness.turn(now_s=2.1, most=5)) == []
    assert harness.engine.outstanding == 11
    quiet.peer.sendall(packets.publish("t", b"x", qos=1, pid=2))
    assert list(harness.turn(now_s=2.1, classes=QUIET, most=5)) == []
    assert harness.engine.outstanding == 12


def test_a_turn_ends_when_the_server_owes_enough_and_the_next_one_begins_there(harness: Harness) -> None:
    harness.engine.server_restored(0)
    members = [harness.open(b"%d" % number) for number in range(4)]
    for member in members:
        member.peer.sendall(packets.publish("t", b"x", qos=1, pid=1) * 10)
    assert list(harness.turn(most=15)) == []
    assert harness.engine.outstanding == 20
    assert list(harness.turn(most=20)) == []
    assert harness.engine.outstanding == 20
    assert list(harness.turn(most=harness.engine.owed + 1)) == []
    assert harness.engine.outstanding == 30


def test_those_who_bring_little_leave_some_of_a_turn_to_the_others(harness: Harness) -> None:
    harness.engine.server_restored(0)
    bulk, *little = [harness.open(b"%d" % number) for number in range(11)]
    bulk.peer.sendall(PINGREQ * (HEAVY + 1))
    assert list(harness.turn()) == []
    harness.counted()
    publish = packets.publish("t", b"x", qos=1, pid=1)
    bulk.peer.sendall(publish + PINGREQ)
    for member in little:
        member.peer.sendall(publish * 10)
    assert list(harness.turn(most=40)) == []
    assert harness.engine.outstanding == 31
    assert [told.conn for told in harness.counted()] == [bulk.conn]


def test_a_receiver_with_a_backlog_is_read_in_a_turn_over_receivers_alone(harness: Harness) -> None:
    receiver, other = harness.open(b"c"), harness.open(b"o")
    harness.deliver(b"c", range(1, 4))
    receiver.peer.sendall(packets.puback(1))
    other.peer.sendall(PINGREQ)
    assert list(harness.turn(classes=RECEIVERS)) == []
    assert harness.engine.counters()["messages_acknowledged"] == 1
    assert [told.conn for told in harness.counted()] == [receiver.conn]
    assert list(harness.turn(classes=OTHERS)) == []
    assert [told.conn for told in harness.counted()] == [other.conn]


def test_a_receiver_whose_window_is_full_is_read_in_a_turn_over_receivers_alone(harness: Harness) -> None:
    receiver = harness.open(b"c", window=3)
    harness.deliver(b"c", range(1, 3))
    receiver.peer.sendall(packets.puback(1))
    assert list(harness.turn(classes=RECEIVERS)) == []
    assert harness.engine.counters()["messages_acknowledged"] == 0
    assert list(harness.turn(classes=OTHERS)) == []
    harness.deliver(b"c", range(3, 5))  # what comes from now on is not written, so nobody would look at its class again
    receiver.peer.sendall(packets.puback(2))
    assert list(harness.turn(classes=RECEIVERS)) == []
    assert harness.engine.counters()["messages_acknowledged"] == 2


def test_a_receiver_without_a_backlog_is_one_of_the_others_after_a_moment(harness: Harness) -> None:
    receiver = harness.open(b"c")
    harness.deliver(b"c", range(1, 5))
    for packet_id, now_s in ((1, 1.0), (2, 1.05), (3, 1.08), (4, 1.1)):
        receiver.peer.sendall(packets.puback(packet_id))
        assert list(harness.turn(now_s=now_s, classes=RECEIVERS)) == []
        harness.write()
    receiver.peer.sendall(PINGREQ)
    assert list(harness.turn(now_s=1.2, classes=RECEIVERS)) == []
    harness.write()
    receiver.peer.sendall(PINGREQ)
    assert list(harness.turn(now_s=1.2, classes=OTHERS)) == []
    assert [told.conn for told in harness.counted()] == [receiver.conn]


def test_a_receiver_that_publishes_waits_with_the_publishers_when_the_server_owes_enough(harness: Harness) -> None:
    harness.engine.server_restored(0)
    both = harness.open(b"c")
    harness.deliver(b"c", range(1, 4))
    both.peer.sendall(packets.publish("t", b"x", qos=1, pid=1) * 5)
    assert list(harness.turn(classes=RECEIVERS, most=5)) == []
    assert harness.engine.outstanding == 5
    both.peer.sendall(packets.puback(1))
    assert list(harness.turn(classes=RECEIVERS, most=5)) == []
    assert harness.engine.counters()["messages_acknowledged"] == 0
    assert list(harness.turn(classes=BULK, most=1000)) == []
    assert harness.engine.counters()["messages_acknowledged"] == 1


def test_a_receiver_slows_publishers_while_its_backlog_grows_and_it_acknowledges(harness: Harness) -> None:
    receiver = harness.open(b"c")
    harness.deliver(b"c", range(1, 600))
    assert not lib.hmq_pump_slows_publishers(harness.pump, 1.0)
    receiver.peer.sendall(packets.puback(1))
    assert list(harness.turn(now_s=1.0)) == []
    assert lib.hmq_pump_slows_publishers(harness.pump, 1.0)
    assert lib.hmq_pump_relieved(harness.pump) == 1
    assert not lib.hmq_pump_slows_publishers(harness.pump, 1.001)  # one message is worth a third of a millisecond
    harness.write()
    for packet_id in range(2, 120):
        receiver.peer.sendall(packets.puback(packet_id))
        assert list(harness.turn(now_s=2.0)) == []
        harness.write()
    assert not lib.hmq_pump_slows_publishers(harness.pump, 2.0)  # less than half of what may be ready is


def test_a_queue_that_becomes_long_slows_publishers_for_a_moment_before_its_receiver_has_acknowledged(
    harness: Harness,
) -> None:
    for client_id in (b"c", b"d"):
        harness.open(client_id)
    harness.deliver(b"c", range(1, LONG_QUEUE))
    assert not lib.hmq_pump_slows_publishers(harness.pump, 1.0)
    harness.deliver(b"c", range(LONG_QUEUE, 2 * LONG_QUEUE))
    assert lib.hmq_pump_slows_publishers(harness.pump, 1.0)
    assert lib.hmq_pump_slows_publishers(harness.pump, 1.29)
    assert not lib.hmq_pump_slows_publishers(harness.pump, 1.31)
    harness.deliver(b"d", range(1, 2 * LONG_QUEUE))
    assert not lib.hmq_pump_slows_publishers(
        harness.pump, 3.9
    )  # receivers that do not acknowledge cannot do it all the time
    assert not lib.hmq_pump_slows_publishers(harness.pump, 4.1)


def test_a_receiver_that_has_gone_slows_nobody(harness: Harness) -> None:
    receiver = harness.open(b"c")
    harness.deliver(b"c", range(1, 700))
    receiver.peer.sendall(packets.puback(1))
    assert list(harness.turn(now_s=1.0)) == []
    assert lib.hmq_pump_slows_publishers(harness.pump, 1.0)
    assert lib.hmq_pump_close(harness.pump, receiver.number, True)
    assert not lib.hmq_pump_slows_publishers(harness.pump, 1.0)


def test_a_client_that_sends_more_packets_than_a_turn_takes_waits_in_a_line(harness: Harness) -> None:
    one, two = harness.open(b"1"), harness.open(b"2")
    for member in (one, two):
        member.peer.sendall(PINGREQ * (TURN_PACKETS * 2 + 1))
    for packets_read in (TURN_PACKETS, TURN_PACKETS, 1):
        assert list(harness.turn()) == []
        assert {told.conn: len(told.data) for told in harness.counted()} == {
            member.conn: len(PINGREQ) * packets_read for member in (one, two)
        }
    assert not lib.hmq_pump_has_more(harness.pump)
    one.peer.sendall(PINGREQ)
    assert list(harness.turn()) == []
    assert [told.conn for told in harness.counted()] == [one.conn]


def test_a_paused_client_leaves_the_line_and_comes_back_to_it(harness: Harness) -> None:
    one = harness.open(b"1")
    one.peer.sendall(PINGREQ * (TURN_PACKETS + 1))
    assert list(harness.turn()) == []
    lib.hmq_pump_read(harness.pump, one.number, False)
    harness.counted()
    assert list(harness.turn()) == []
    assert harness.counted() == []
    assert not lib.hmq_pump_has_more(harness.pump)
    lib.hmq_pump_read(harness.pump, one.number, True)
    assert list(harness.turn()) == []
    assert [told.conn for told in harness.counted()] == [one.conn]


def test_a_client_that_ends_while_it_waits_for_its_turn_leaves_the_line(harness: Harness) -> None:
    members = [harness.open(b"%d" % number) for number in range(3)]
    for member in members:
        member.peer.sendall(PINGREQ * (TURN_PACKETS + 1))
    assert list(harness.turn()) == []
    harness.counted()
    assert lib.hmq_pump_close(harness.pump, members[1].number, True)
    assert list(harness.turn()) == []
    assert {told.conn for told in harness.counted()} == {members[0].conn, members[2].conn}


def test_a_paused_socket_is_not_read_until_it_is_resumed(harness: Harness) -> None:
    one = harness.add()
    lib.hmq_pump_read(harness.pump, one.number, False)
    one.peer.sendall(CONNECT)
    assert list(harness.turn()) == []
    lib.hmq_pump_read(harness.pump, one.number, True)
    assert kinds(list(harness.turn())) == [lib.HMQ_PUMP_PACKET]


def test_a_congested_owner_pauses_the_client_that_was_read(harness: Harness) -> None:
    one = harness.add()
    one.peer.sendall(CONNECT[:3])
    assert list(harness.turn(congested=True)) == [Told(lib.HMQ_PUMP_PAUSED, one.number, one.conn, 0, True)]
    one.peer.sendall(CONNECT[3:])
    assert list(harness.turn()) == []


def test_what_a_socket_does_not_take_waits_and_arrives_in_order(harness: Harness) -> None:
    one = harness.add()
    harness.engine.send(one.conn, LARGE)
    assert harness.write() == [Told(lib.HMQ_PUMP_FULL, one.number, one.conn, 0, False)]
    waiting = lib.hmq_pump_waiting(harness.pump, one.number)
    assert HARD_LIMIT < waiting < len(LARGE)
    harness.engine.send(one.conn, b"and more")
    assert harness.write() == []  # it is full already
    assert lib.hmq_pump_waiting(harness.pump, one.number) == waiting + 8
    got = b""
    for _ in range(1000):
        got += one.peer.recv(1 << 20)
        if lib.HMQ_PUMP_ROOM in kinds(list(harness.turn())):
            break
    assert lib.hmq_pump_waiting(harness.pump, one.number) <= HIGH_WATER // 4
    while lib.hmq_pump_waiting(harness.pump, one.number):
        assert list(harness.turn()) == []
    assert got + one.read(len(LARGE) + 8 - len(got)) == LARGE + b"and more"
    assert lib.hmq_pump_sent(harness.pump) == len(LARGE) + 8


def test_a_turn_sends_a_bounded_part_of_what_waits_to_each_socket_and_to_all(harness: Harness) -> None:
    members = [harness.add() for _ in range(8)]
    for one in members:
        harness.engine.send(one.conn, LARGE)
    harness.write()
    for one in members:
        harness.until_the_socket_is_full(one)
    for _ in range(4):
        for one in members:
            one.peer.recv(1 << 20)
        before = [lib.hmq_pump_waiting(harness.pump, one.number) for one in members]
        list(harness.turn())
        sent = [was - lib.hmq_pump_waiting(harness.pump, one.number) for was, one in zip(before, members, strict=True)]
        assert max(sent) <= 256 << 10
        assert 0 < sum(sent) <= 1 << 20


def test_a_peer_who_reads_nothing_is_not_read_either(harness: Harness) -> None:
    one = harness.add()
    harness.engine.send(one.conn, LARGE)
    assert kinds(harness.write()) == [lib.HMQ_PUMP_FULL]
    one.peer.sendall(CONNECT[:3])
    assert list(harness.turn()) == [Told(lib.HMQ_PUMP_PAUSED, one.number, one.conn, 0, True)]


def test_what_waits_is_sent_before_a_socket_is_closed(harness: Harness) -> None:
    one = harness.add()
    harness.engine.send(one.conn, LARGE)
    harness.write()
    lib.hmq_pump_detach(harness.pump, one.number)
    assert not lib.hmq_pump_close(harness.pump, one.number, False)
    one.peer.sendall(CONNECT)  # nobody hears it any more
    got = b""
    while not (told := list(harness.turn())):
        got += one.peer.recv(1 << 20)
    assert told == [Told(lib.HMQ_PUMP_CLOSED, one.number, 0, 0, False)]
    assert (got + one.read(len(LARGE) - len(got)))[: len(LARGE)] == LARGE


def test_a_socket_is_closed_at_once_if_that_is_wanted_or_nothing_waits(harness: Harness) -> None:
    slow, idle = harness.add(), harness.add()
    harness.engine.send(slow.conn, LARGE)
    harness.write()
    assert lib.hmq_pump_close(harness.pump, slow.number, True)
    assert lib.hmq_pump_close(harness.pump, idle.number, False)
    assert idle.peer.recv(1) == b""


def test_a_connection_that_is_over_neither_hears_nor_is_heard(harness: Harness) -> None:
    one = harness.add()
    lib.hmq_pump_detach(harness.pump, one.number)
    one.peer.sendall(CONNECT)
    assert list(harness.turn()) == []
    harness.engine.send(one.conn, b"late")
    assert harness.write() == [Told(lib.HMQ_PUMP_FOREIGN, 0, one.conn, 0, False)]
    assert lib.hmq_pump_close(harness.pump, one.number, False)


@pytest.mark.parametrize(("end", "error"), [(lambda peer: peer.shutdown(socket.SHUT_WR), 0), (reset, errno.ECONNRESET)])
@pytest.mark.parametrize("writes", [False, True])
def test_the_end_of_a_socket_is_reported_once(
    harness: Harness, end: Callable[[socket.socket], None], error: int, writes: bool
) -> None:
    one = harness.add()
    end(one.peer)
    if writes:
        harness.engine.send(one.conn, b"into the void")
        harness.write()
    told = harness.turns(until=lib.HMQ_PUMP_CLOSED)
    assert [(event.kind, event.number) for event in told] == [(lib.HMQ_PUMP_CLOSED, one.number)]
    assert told[0].error in ((error,) if not writes else (error, errno.EPIPE, 0))
    assert list(harness.turn()) == []


def test_a_reset_of_a_paused_socket_is_reported(harness: Harness) -> None:
    one = harness.add()
    lib.hmq_pump_read(harness.pump, one.number, False)
    reset(one.peer)
    assert harness.turns(until=lib.HMQ_PUMP_CLOSED)[-1].error == errno.ECONNRESET


def test_an_event_for_a_socket_that_was_closed_in_the_same_turn_reaches_nobody(harness: Harness) -> None:
    one, two = harness.add(), harness.add()
    for member in (one, two):
        member.peer.sendall(CONNECT)
    told = harness.turn()
    first = next(told)
    other = two if first.number == one.number else one
    assert lib.hmq_pump_close(harness.pump, other.number, True)
    heir = harness.add()
    assert heir.number == other.number
    assert list(told) == []
    heir.peer.sendall(CONNECT)
    assert [event.conn for event in harness.turn()] == [heir.conn]


@pytest.mark.parametrize("size", [0, 1000])
def test_a_descriptor_that_cannot_be_watched_is_not_taken(harness: Harness, size: int) -> None:
    descriptor = os.open(os.devnull, os.O_RDONLY)
    assert lib.hmq_pump_add(harness.pump, descriptor, harness.engine.attach(), size) == -errno.EPERM
    os.close(descriptor)  # it is ours still
    assert harness.add().number == 0


class Guest:
    """What the pump knows of a client."""

    def __init__(self, engine: Engine) -> None:
        self.conn = engine.attach()
        self.heard = asyncio.Event()

    def begin(self, stream: Pumped, peer: str) -> None:
        """It has a socket."""

    def received_part(self) -> None:
        """Bytes came that make no packet whole."""
        self.heard.set()

    def connection_lost(self, error: OSError | None) -> None:
        """Its socket has ended."""


class Owner:
    """What the pump knows of the bridge, with one client; its server owes as many replies as the test says."""

    congested = False

    def __init__(self) -> None:
        process = Process(Settings(read_ahead=2), self.flush)
        self.engine = process.engine
        self.engine.server_restored(0)
        self.engine.server_output()
        self.guest = Guest(self.engine)
        self.pump = Pump(process, self)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.pump.listen(self._listening, 1, lambda: cast("Receiver", self.guest))
        self.peer = socket.create_connection(self._listening.getsockname(), 10)

    def flush(self) -> None:
        """Nothing goes to a server."""

    def ask(self, commands: int, text: str = "") -> None:
        """So many commands more are without a reply."""
        for token in range(commands):
            self.engine.command(encoded("PING", text), token=token + 1)
        self.engine.server_output()

    def answer(self, replies: int) -> None:
        """So many fewer."""
        assert len(list(self.engine.replies(b"+PONG\r\n" * replies, 0))) == replies
        self.pump.server_answered()

    async def becomes_heavy(self) -> None:
        """The client sends most of a large CONNECT."""
        self.peer.sendall(b"\x10\xe0\xd4\x03" + bytes(55_000))
        assert await self.reads_on()
        await asyncio.sleep(0)

    async def reads(self, timeout_s: float = 10) -> bool:
        """Is one byte more read within this time?"""
        self.peer.sendall(b"\x10")
        return await self.reads_on(timeout_s)

    async def reads_on(self, timeout_s: float = 10) -> bool:
        """Is what was sent before?"""
        try:
            await asyncio.wait_for(self.guest.heard.wait(), timeout_s)
        except TimeoutError:
            return False
        self.guest.heard.clear()
        return True

    def close(self) -> None:
        """Ends all."""
        self.pump.unlisten(self._listening)
        self.pump.close()
        self.peer.close()
        self._listening.close()


@pytest.fixture
async def owner() -> AsyncIterator[Owner]:
    """One of its own."""
    made = Owner()
    yield made
    made.close()


async def test_while_the_server_owes_more_replies_than_read_ahead_who_sends_much_is_not_read(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pump_module, "_LONGEST_PAUSE_S", 600.0)
    monkeypatch.setattr(pump_module, "_QUIET_EVERY_S", 0.01)
    await owner.becomes_heavy()
    owner.ask(3)
    assert await owner.reads()  # in the turn that finds so many owed
    assert not await owner.reads(0.1)
    owner.answer(1)
    assert await owner.reads_on()
    assert await owner.reads()  # two are owed, as many as may be


async def test_while_the_server_owes_replies_to_large_commands_who_sends_little_is_read(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pump_module, "_LONGEST_PAUSE_S", 600.0)
    owner.ask(2, "x" * 100_000)
    for _ in range(3):
        assert await owner.reads()
    assert owner.engine.outstanding == 2
    assert owner.engine.owed > 100


async def test_a_server_that_does_not_answer_keeps_sockets_unread_for_a_moment_only(owner: Owner) -> None:
    owner.ask(3)
    for _ in range(3):
        assert await owner.reads()
    assert owner.engine.outstanding == 3


async def test_when_the_server_has_gone_sockets_are_read_at_once(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pump_module, "_LONGEST_PAUSE_S", 600.0)
    owner.ask(3)
    assert await owner.reads()
    owner.engine.server_lost()
    owner.pump.server_answered()
    assert await owner.reads()


async def test_when_a_bridge_has_ended_nothing_touches_its_pump_any_more() -> None:
    bridge = Bridge(Settings())
    bridge.process.wake()
    await bridge.stop()
    bridge.process.wake()
    bridge.on_down(0)  # the link's last word
    assert bridge.counted()["bytes_sent"] == 0  # for who asks for the metrics in the last moment
    await asyncio.sleep(0.01)
