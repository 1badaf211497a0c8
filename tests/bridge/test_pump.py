"""The pump (bridge/native/pump.h): sockets and the engine, without a bridge or a server."""

import asyncio
import errno
import os
import select
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import pytest

from holdmq.core.engine import Engine
from holdmq_bridge import pump as pump_module
from holdmq_bridge._pump import ffi, lib
from holdmq_bridge.bridge import Bridge
from holdmq_bridge.pump import Pump, Pumped
from holdmq_bridge.settings import Settings
from tests.bridge import packets
from tests.bridge.talk import reset

if TYPE_CHECKING:
    from holdmq_bridge.client import Client

HIGH_WATER = 10_000
HARD_LIMIT = 40_000
SOCKETS_A_TURN = 64
LARGE = bytes(range(256)) * 20_000  # more than a socket takes
CONNECT = packets.connect("c")


class Told(NamedTuple):
    """An event of the pump."""

    kind: int
    number: int
    conn: int
    error: int
    partial: bool


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
        for name in ("receive", "took", "rests", "congested", "next_output"):
            setattr(calls, name, Engine.function(name))
        self.pump = ffi.gc(lib.hmq_pump_new(calls, HIGH_WATER, HARD_LIMIT), lib.hmq_pump_free)
        self._told = ffi.new("hmq_pump_event *")
        self._peers: list[socket.socket] = []

    def add(self) -> Member:
        """One more, over TCP."""
        with socket.create_server(("127.0.0.1", 0)) as listening:
            peer = socket.create_connection(listening.getsockname(), 10)
            accepted, _ = listening.accept()
        self._peers.append(peer)
        conn = self.engine.attach()
        number = lib.hmq_pump_add(self.pump, accepted.detach(), conn)
        assert number >= 0
        return Member(number, conn, peer)

    def _event(self) -> Told:
        told = self._told
        return Told(told.kind, told.number, told.conn, told.error, told.partial)

    def turn(self, *, congested: bool = False, now_s: float = 1.0) -> Iterator[Told]:
        """What a turn tells, which is begun when there is something to look at or a second has passed."""
        select.select([lib.hmq_pump_fd(self.pump)], [], [], 1)
        assert lib.hmq_pump_poll(self.pump, 0, now_s, congested) == 0
        while lib.hmq_pump_next(self.pump, self._told, self.engine.event):
            yield self._event()

    def turns(self, *, until: int) -> list[Told]:
        """What turns tell, up to the first that tells of such an event."""
        told: list[Told] = []
        for _ in range(1000):
            told += self.turn()
            if told and told[-1].kind == until:
                return told
        raise AssertionError(f"no event {until}; told: {told}")

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
        assert harness.engine.taken().data == CONNECT
    assert lib.hmq_pump_heard(harness.pump, two.number) == 5.0
    assert lib.hmq_pump_heard(harness.pump, one.number) == 0.0


def test_bytes_that_make_no_packet_whole_are_told_and_are_no_sign_of_life(harness: Harness) -> None:
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
    first, second = list(harness.turn()), list(harness.turn())
    assert len(first) == SOCKETS_A_TURN
    assert {told.number for told in first + second} == {member.number for member in members}


def test_a_socket_that_rests_is_not_read_until_it_is_told_to_go_on(harness: Harness) -> None:
    one = harness.add()
    lib.hmq_pump_read(harness.pump, one.number, False)
    one.peer.sendall(CONNECT)
    assert list(harness.turn()) == []
    lib.hmq_pump_read(harness.pump, one.number, True)
    assert kinds(list(harness.turn())) == [lib.HMQ_PUMP_PACKET]


def test_while_the_owner_is_congested_who_was_read_rests(harness: Harness) -> None:
    one = harness.add()
    one.peer.sendall(CONNECT[:3])
    assert list(harness.turn(congested=True)) == [Told(lib.HMQ_PUMP_RESTS, one.number, one.conn, 0, True)]
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


def test_a_peer_who_reads_nothing_is_not_read_either(harness: Harness) -> None:
    one = harness.add()
    harness.engine.send(one.conn, LARGE)
    assert kinds(harness.write()) == [lib.HMQ_PUMP_FULL]
    one.peer.sendall(CONNECT[:3])
    assert list(harness.turn()) == [Told(lib.HMQ_PUMP_RESTS, one.number, one.conn, 0, True)]


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
def test_the_end_of_a_socket_is_told_once(
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


def test_a_socket_that_rests_is_told_when_it_was_reset(harness: Harness) -> None:
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


def test_a_descriptor_that_cannot_be_watched_is_not_taken(harness: Harness) -> None:
    descriptor = os.open(os.devnull, os.O_RDONLY)
    assert lib.hmq_pump_add(harness.pump, descriptor, harness.engine.attach()) == -errno.EPERM
    os.close(descriptor)  # it is ours still
    assert harness.add().number == 0


class Guest:
    """What the pump knows of a client."""

    def __init__(self, owner: "Owner") -> None:
        self.conn = owner.engine.attach()
        self.heard = asyncio.Event()

    def begin(self, stream: Pumped, peer: str) -> None:
        """It has a socket."""

    def trickled(self) -> None:
        """Bytes came that make no packet whole."""
        self.heard.set()

    def connection_lost(self, error: OSError | None) -> None:
        """Its socket has ended."""


class Owner:
    """What the pump knows of the bridge, with one client; its server owes as many replies as the test says."""

    settings = Settings(read_ahead=2)
    congested = False

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.engine = Engine()
        self.engine.server_restored(0)
        self.engine.server_output()
        self.guest = Guest(self)
        self.pump = Pump(cast("Bridge", self))
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.pump.listen(self._listening, 1, lambda: cast("Client", self.guest))
        self.peer = socket.create_connection(self._listening.getsockname(), 10)

    def now_ms(self) -> int:
        """The engine's clock."""
        return 0

    def flush(self) -> None:
        """Nothing goes to a server."""

    def ask(self, commands: int) -> None:
        """So many commands more are without a reply."""
        for token in range(commands):
            self.engine.command(b"*1\r\n$4\r\nPING\r\n", token=token + 1)
        self.engine.server_output()

    def answer(self, replies: int) -> None:
        """So many fewer."""
        assert len(list(self.engine.replies(b"+PONG\r\n" * replies, 0))) == replies
        self.pump.answered()

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


async def test_while_the_server_owes_more_replies_than_read_ahead_no_socket_is_read(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pump_module, "_LONGEST_REST_S", 600.0)
    owner.ask(3)
    assert await owner.reads()  # in the turn that finds so many owed
    assert not await owner.reads(0.1)
    owner.answer(1)
    assert await owner.reads_on()
    assert await owner.reads()  # two are owed, as many as may be


async def test_a_server_that_does_not_answer_keeps_sockets_unread_for_a_moment_only(owner: Owner) -> None:
    owner.ask(3)
    for _ in range(3):
        assert await owner.reads()
    assert owner.engine.outstanding == 3


async def test_when_the_server_has_gone_sockets_are_read_at_once(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pump_module, "_LONGEST_REST_S", 600.0)
    owner.ask(3)
    assert await owner.reads()
    owner.engine.server_lost()
    owner.pump.answered()
    assert await owner.reads()


async def test_when_a_bridge_has_ended_nothing_touches_its_pump_any_more() -> None:
    bridge = Bridge(Settings())
    bridge.wake()
    await bridge.stop()
    bridge.wake()
    bridge.on_down()  # the link's last word
    assert bridge.counted()["bytes_sent"] == 0  # for who asks for the metrics in the last moment
    await asyncio.sleep(0.01)
