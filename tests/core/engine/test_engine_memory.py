"""The engine when memory lacks at any of its allocations: nothing is lost, reordered, leaked, wrongly answered."""

from collections.abc import Callable

import pytest

from holdmq.core.engine import EngineSettings, EventKind, OutOfStepError
from tests.bridge.packets import packet, puback, pubcomp, pubrec, pubrel, text
from tests.core.engine.engine_talk import Desk, array, page, publish, publishes, push, queued, record, transient
from tests.core.support import Books

INBOX = b"{c}_inbox"
SETTINGS = EngineSettings(max_ready=4)
MOST_CALLS = 400
FAILURES = 3  # in a row, where one is not all


def payloads(commands: list[list[bytes]]) -> list[list[bytes]]:
    """The first byte of each publish that went in each command that publishes."""
    return [[one[2][:1] for one in publishes(command)] for command in commands if publishes(command)]


class GaveUpError(Exception):
    """The engine told its owner that memory lacks, in one of the ways of its contract."""


class Watched(Desk):
    """A desk whose client is given up when the engine says so."""

    def send(self, conn: int, data: bytes) -> None:
        super().send(conn, data)
        self.check()

    def answer(self, *replies: bytes, link: int = 0) -> None:
        try:
            super().answer(*replies, link=link)
        except OutOfStepError as error:
            raise GaveUpError from error
        self.check()

    def commands(self, link: int = 0) -> list[list[bytes]]:
        result = super().commands(link)
        self.check()
        return result

    def received(self, conn: int) -> bytes:
        result = super().received(conn)
        self.check()
        return result

    def told(self) -> list[list[bytes]]:
        """What goes to the server, if need be after some looks."""
        return [command for _ in range(FAILURES + 1) for command in self.commands()]

    def check(self) -> None:
        """Raises GaveUpError after an event that says so."""
        for event in self.events:
            if event.kind == EventKind.FAILED and event.data in (b"out of memory", b""):
                raise GaveUpError
            if event.kind == EventKind.ERROR and event.error == -106:
                raise GaveUpError


def publishing(desk: Watched) -> None:
    """Commands, refusals, a loss: what is answered was answered by the server, in the order of the publishes."""
    conn = desk.open(version=5, alias_maximum_in=2)
    desk.engine.rules(conn, [(False, b"no")], denied_otherwise=False)
    topics = [b"topic", b"no", b"topic", b"other"]
    data = b"".join(
        publish(topic, b"%d" % i * 300, qos=1, packet_id=i + 1, properties=b"\x23\0" + bytes([i % 2 + 1]))
        for i, topic in enumerate(topics)
    )
    desk.send(conn, data[:100])
    desk.send(conn, data[100:])
    desk.commands()
    desk.answer(b":1\r\n", b"+PONG\r\n", b"-READONLY x\r\n", b":1\r\n")
    desk.send(conn, publish(b"topic", b"5", qos=2, packet_id=5, properties=b"") + pubrel(9) + b"\xc0\0")
    answers = desk.received(conn)
    desk.now_ms += 60
    again = desk.told()
    assert [command[2][:1] for command in again[:3]] == [b"2", b"3", b"5"]
    desk.engine.server_lost()
    desk.look()
    desk.check()
    desk.engine.server_restored(desk.now_ms)
    again = desk.told()
    assert [command[0] for command in again if command[0] != b"SESSION.FETCH"] == [b"TOPIC.PUBLISH"] * 3 + [
        b"SESSION.COMPLETE"
    ]
    desk.answer(b":1\r\n" * 3, b":1\r\n")
    answers += desk.received(conn)
    assert answers == puback(1) + puback(2, 0x87) + b"\xd0\0" + puback(3) + puback(4) + pubrec(5) + pubcomp(9)
    desk.engine.close(conn)


def pipelining(desk: Watched) -> None:
    """The same for publishes that go as one: a refusal inside, a server that does not know the command, a loss."""
    one, other = desk.open(b"c"), desk.open(b"d")
    for i in range(1, 5):
        desk.send(one, publish(b"t", b"%d" % i * 300, qos=1, packet_id=i))
        desk.send(other, publish(b"t", b"%d" % i * 300, qos=2, packet_id=i))
        desk.send(other, pubrel(9) if i == 2 else b"")
    assert [len(publishes(command)) for command in desk.commands()] == [4, 0, 4]
    desk.answer(array([b":1\r\n", b":1\r\n", b"-READONLY x\r\n", b":1\r\n"]), b":1\r\n", array([b":1\r\n"] * 4))
    assert desk.received(other) == pubrec(1) + pubrec(2) + pubcomp(9) + pubrec(3) + pubrec(4)
    answers = desk.received(one)
    desk.now_ms += 60
    assert payloads(desk.told()) == [[b"2", b"3", b"4"]]
    desk.send(other, publish(b"t", b"5") + publish(b"t", b"6", qos=1, packet_id=6))
    assert payloads(desk.commands()) == [[b"5", b"6"]]
    desk.answer(array([b":1\r\n"] * 3), b"-ERR unknown command 'TOPIC.PIPELINE'\r\n")
    assert answers + desk.received(one) == puback(1) + puback(2) + puback(3) + puback(4)
    assert payloads(desk.told()) == [[b"5"], [b"6"]]
    desk.engine.server_lost()
    desk.look()
    desk.check()
    desk.send(one, publish(b"t", b"7", qos=1, packet_id=7) + publish(b"t", b"8", qos=1, packet_id=8))
    desk.engine.server_restored(desk.now_ms)
    again = b"".join(b"".join(together) for together in payloads(desk.told()))
    assert again in (b"678", b"786")
    for conn in (one, other):
        desk.engine.close(conn)


def receiving(desk: Watched) -> None:
    """Pushes, pages, a line behind the window, releases, a loss: in order, and acknowledged is what was."""
    conn = desk.open(version=5, window=2, alias_maximum_out=3)
    values = [record(b"%d" % i * 200, topic=b"topic%d" % (i % 3), qos=i % 2 + 1) for i in range(10)]
    for i in (1, 2, 3):
        desk.answer(push(INBOX, queued(i, i - 1, values[i], qos=i % 2 + 1)))
    got = desk.received(conn)
    desk.answer(push(INBOX, queued(5, 4, values[5], qos=2)))
    desk.answer(push(INBOX, transient(record(b"0"))))
    fetches = desk.told()
    assert fetches[-1][4:6] == [b"AFTER", b"3"]
    desk.answer(page([(4, 4, 0, values[4]), (5, 5, 0, values[5])]))
    desk.send(conn, pubrec(1) + puback(2))
    commands = desk.told()
    assert sorted(command[0] for command in commands) == [b"SESSION.ACK", b"SESSION.RELEASE"]
    desk.answer(b":1\r\n:1\r\n")
    desk.send(conn, pubcomp(1))
    got += desk.received(conn)
    desk.engine.server_lost()
    desk.look()
    desk.check()
    desk.engine.server_restored(desk.now_ms)
    desk.told()
    desk.answer(page([(1, 1, 2, record(b"x")), (3, 3, 1, values[3]), (4, 4, 0, values[4])]))
    desk.send(conn, pubrec(3))
    commands = desk.told()
    assert all(command[-1] in (b"1", b"3") for command in commands)
    got += desk.received(conn)
    places = [got.find(b"%d" % i * 200) for i in (1, 2, 3, 4)]
    assert places == sorted(places)
    assert places[0] > 0
    desk.engine.close(conn)


def owning(desk: Watched) -> None:
    """What the owner does: packets, commands, sessions, many connections."""
    conns = [desk.open(b"%d" % i) for i in range(70)]
    subscribe = packet(0x82, b"\0\x01" + text(b"t") + b"\0")
    for conn in conns[:20]:
        desk.send(conn, subscribe[:3])
        desk.send(conn, subscribe[3:] + b"\xc0\0")
        desk.engine.send(conn, b"\x90\x03\0\x01\0")
        desk.engine.command(b"*1\r\n$4\r\nPING\r\n", conn=conn, token=conn)
    desk.commands()
    desk.answer(b"+PONG\r\n" * 20)
    replies = [event.token for event in desk.events if event.kind == EventKind.REPLY]
    assert replies == conns[:20]
    for conn in conns[:20]:
        assert desk.received(conn) == b"\xd0\0\x90\x03\0\x01\0"
    for conn in conns:
        desk.engine.close(conn)
    again = desk.open(b"1")
    assert again not in conns


MOST_PIPELINED: dict[Callable[[Watched], None], int] = {pipelining: 64}


@pytest.mark.parametrize("failures", [1, FAILURES])
@pytest.mark.parametrize("conversation", [publishing, pipelining, receiving, owning])
def test_failing_allocations_end_or_delay_one_client_and_that_is_all(
    conversation: Callable[[Watched], None], failures: int
) -> None:
    outcomes = [run(conversation, failing) for failing in calls(conversation, failures)]
    assert set(outcomes) == {GaveUpError, MemoryError, None}


def calls(conversation: Callable[[Watched], None], failures: int) -> list[range]:
    """Each run of calls that may fail."""
    books = Books()
    conversation(Watched(SETTINGS, books=books, max_pipeline=MOST_PIPELINED.get(conversation, 0)))
    assert books.calls < MOST_CALLS
    return [range(first, first + failures) for first in range(1, books.calls + 1)]


def run(conversation: Callable[[Watched], None], failing: range) -> type[Exception] | None:
    """How the owner was told; None: it did not need to know."""
    books = Books(lambda call: call in failing)
    outcome: type[Exception] | None = None
    try:
        conversation(Watched(SETTINGS, books=books, max_pipeline=MOST_PIPELINED.get(conversation, 0)))
    except (GaveUpError, MemoryError) as error:
        outcome = type(error)
    assert books.sizes == {}
    return outcome


# ---- lack of memory that ends


class Hungry(Desk):
    """A desk whose engine gets memory, or none at all."""

    def __init__(self, *, max_pipeline: int = 0) -> None:
        self.starves = False
        super().__init__(books=Books(lambda _call: self.starves), max_pipeline=max_pipeline)

    def starved(self) -> list[list[bytes]]:
        """What goes to the server while there is no memory."""
        self.starves = True
        commands = self.commands()
        self.starves = False
        assert self.engine.has_timed_work
        return commands


@pytest.fixture
def hungry() -> Hungry:
    return Hungry()


@pytest.mark.parametrize(
    ("qos", "packet", "command"),
    [
        (1, puback(1), [b"SESSION.ACK", b"{c}", b"EPOCH", b"7", b"1"]),
        (2, pubrec(1), [b"SESSION.RELEASE", b"{c}", b"EPOCH", b"7", b"1"]),
    ],
)
def test_what_a_client_acknowledged_is_reported_when_there_is_memory_again(
    hungry: Hungry, qos: int, packet: bytes, command: list[bytes]
) -> None:
    conn = hungry.open()
    hungry.answer(push(INBOX, queued(1, 0, record(b"1", qos=qos), qos=qos)))
    hungry.send(conn, packet)
    assert hungry.starved() == []
    assert hungry.commands() == [command]


@pytest.mark.parametrize("what", ["fetch", "sent"])
def test_what_the_engine_has_to_ask_or_tell_goes_out_when_there_is_memory_again(hungry: Hungry, what: str) -> None:
    hungry.open(resumed=what == "fetch")
    if what == "sent":
        hungry.answer(push(INBOX, queued(1, 0, record(b"1", expires_ms=hungry.now_ms + 1000))))
    assert hungry.starved() == []
    assert [command[0] for command in hungry.commands()] == [b"SESSION.%s" % what.upper().encode()]


def test_all_that_is_sent_again_goes_at_once_when_there_is_memory_again(hungry: Hungry) -> None:
    conn = hungry.open()
    hungry.send(conn, b"".join(publish(b"t", b"%d" % i * 400, qos=1, packet_id=i) for i in range(1, 9)))
    hungry.commands()
    hungry.answer(b"-READONLY x\r\n", b":1\r\n" * 7)
    hungry.now_ms += 60
    for _ in range(3):  # the log is too small for all of them only once it has others in it
        hungry.engine.command(b"*2\r\n$4\r\nPING\r\n$4000\r\n" + bytes(4000) + b"\r\n")
    assert [command[0] for command in hungry.starved()] == [b"PING"] * 3
    hungry.send(conn, publish(b"t", b"9", qos=1, packet_id=9))
    assert [command[2][:1] for command in hungry.commands()] == [b"%d" % i for i in range(1, 10)]


def test_what_gathered_needs_no_memory_to_go_as_one() -> None:
    hungry = Hungry(max_pipeline=64)
    conns = [hungry.open(b"%d" % i) for i in range(3)]
    for size in range(200):
        for conn in conns:
            hungry.send(conn, publish(b"t", bytes(size)))
        hungry.starves = True
        assert [len(publishes(command)) for command in hungry.commands()] == [3]
        hungry.starves = False
        hungry.answer(array([b":0\r\n"] * 3))


def test_an_end_that_could_not_be_told_is_reported_when_there_is_memory_again(hungry: Hungry) -> None:
    conn, other = hungry.open(), hungry.open(b"d")
    hungry.send(conn, publish(b"t", b"1", qos=1, packet_id=1))
    hungry.commands()
    hungry.starves = True
    hungry.answer(b":1\r\n", push(INBOX, transient(record(b"0"))))
    hungry.commands()
    hungry.answer(push(b"{d}_inbox", transient(record(b"0"))))
    assert hungry.kinds() == []
    hungry.starves = False
    hungry.commands()
    assert hungry.kinds() == [EventKind.FAILED]
    assert hungry.received(conn) == hungry.received(other) == b""
    assert hungry.engine.counters()["messages_dropped_qos0"] == 1


def test_relief_that_could_not_be_told_is_reported_when_there_is_memory_again(hungry: Hungry) -> None:
    conn = hungry.open(publish_rate=1)
    hungry.send(conn, publish(b"t") * 2)
    assert hungry.engine.should_pause(conn)
    hungry.commands()
    hungry.now_ms += 2000
    assert hungry.starved() == []
    assert hungry.kinds() == []
    hungry.commands()
    assert hungry.kinds() == [EventKind.RELIEF]
