"""Publishes that break the connection to the server: they go alone, and are refused in the end; others are not."""

import pytest

from holdmq.core.engine import EventKind
from tests.bridge.packets import puback, pubrec
from tests.core.engine.engine_talk import Desk, array, page, publish, publishes

ATTEMPTS = 5


@pytest.fixture
def desk() -> Desk:
    return Desk(max_pipeline=16)


def payloads(command: list[bytes]) -> list[bytes]:
    """Of its publishes."""
    return [one[2] for one in publishes(command)]


class Talks:
    """The server's half: what it was sent and has not answered."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.owed: list[list[bytes]] = []

    def publishes(self) -> list[list[bytes]]:
        """What was sent since the last call: of each command the payloads."""
        fresh = self.desk.commands()
        self.owed += fresh
        return [payloads(command) for command in fresh if payloads(command)]

    def answer(self, refusal: bytes = b"") -> list[list[bytes]]:
        """Answers everything; what is sent then."""
        for command in self.owed:
            count = len(payloads(command))
            replies = (refusal or b":1\r\n") * count
            if command[0] == b"SESSION.FETCH":
                replies = page([], too_large=())
            self.desk.answer(array([replies[: len(replies) // count]] * count) if count > 1 else replies)
        self.owed.clear()
        return self.publishes()

    def lose(self) -> list[list[bytes]]:
        """The server is lost, and is there again: what is sent then."""
        self.owed.clear()
        self.desk.engine.server_lost()
        self.desk.engine.server_restored(self.desk.now_ms)
        return self.publishes()


def send(desk: Desk, conn: int, *numbers: int, version: int = 4) -> None:
    properties = b"" if version == 5 else None
    for number in numbers:
        desk.send(conn, publish(b"t", b"p%d" % number, qos=1, packet_id=number, properties=properties))


@pytest.fixture
def talks(desk: Desk) -> Talks:
    return Talks(desk)


def test_after_two_losses_each_publish_goes_by_itself_in_its_order(desk: Desk, talks: Talks) -> None:
    conn = desk.open()
    send(desk, conn, 1, 2, 3)
    assert talks.publishes() == [[b"p1", b"p2", b"p3"]]
    assert talks.lose() == [[b"p1", b"p2", b"p3"]]
    assert talks.lose() == [[b"p1"]]
    send(desk, conn, 4)
    assert talks.publishes() == []
    for expected in ([[b"p2"]], [[b"p3"]], [[b"p4"]], []):
        assert talks.answer() == expected
    assert desk.received(conn) == b"".join(puback(number) for number in range(1, 5))


def test_of_several_clients_one_suspect_is_under_way_at_a_time(desk: Desk, talks: Talks) -> None:
    first, second, third = (desk.open(name) for name in (b"a", b"b", b"c"))
    send(desk, first, 1)
    send(desk, second, 2)
    talks.publishes()
    assert talks.lose() == [[b"p1", b"p2"]]
    assert talks.lose() == [[b"p1"]]
    send(desk, third, 3)
    assert talks.publishes() == [[b"p3"]]  # it is none
    assert talks.answer() == [[b"p2"]]
    assert talks.answer() == []
    for conn, number in ((first, 1), (second, 2), (third, 3)):
        assert desk.received(conn) == puback(number)


def test_a_suspect_of_a_client_that_has_gone_makes_room_for_the_next(desk: Desk, talks: Talks) -> None:
    first, second = desk.open(b"a"), desk.open(b"b")
    send(desk, first, 1)
    send(desk, second, 2)
    talks.publishes()
    talks.lose()
    assert talks.lose() == [[b"p1"]]
    desk.engine.close(first)
    assert talks.publishes() == []
    assert talks.answer() == [[b"p2"]]


def test_a_suspect_that_is_refused_for_now_stays_the_first_of_its_client(desk: Desk, talks: Talks) -> None:
    conn = desk.open()
    send(desk, conn, 1, 2)
    talks.publishes()
    talks.lose()
    assert talks.lose() == [[b"p1"]]
    assert talks.answer(b"-READONLY x\r\n") == []
    desk.now_ms += 5000
    assert talks.publishes() == [[b"p1"]]
    assert talks.answer() == [[b"p2"]]
    talks.answer()
    assert desk.received(conn) == puback(1) + puback(2)


def break_by(talks: Talks, payload: bytes) -> int:
    """The server is lost whenever this publish is under way; everything else is answered.  How often it was lost."""
    losses = 0
    going = talks.publishes()
    for _ in range(50):
        guilty = any(payload in command for command in going)
        losses += guilty
        going = talks.lose() if guilty else talks.answer()
    return losses


def abandoned(desk: Desk) -> list[tuple[bytes, int]]:
    """Topic and size of the publishes that were given up."""
    desk.look()
    return [(event.data, event.token) for event in desk.events if event.kind == EventKind.ABANDONED]


def test_the_one_that_breaks_the_connection_is_refused_and_no_other(desk: Desk, talks: Talks) -> None:
    guilty, other = desk.open(b"a", version=5), desk.open(b"b", version=5)
    send(desk, guilty, 1, 2, 3, version=5)
    send(desk, other, 4, 5, version=5)
    assert break_by(talks, b"p2") == ATTEMPTS
    assert desk.received(guilty) == puback(1) + puback(2, 0x97) + puback(3)
    assert desk.received(other) == puback(4) + puback(5)
    assert abandoned(desk) == [(b"t", 2)]
    counters = desk.engine.counters()
    assert (counters["publishes_abandoned"], counters["publishes_refused"]) == (1, 1)
    assert desk.engine.outstanding == 0


def test_of_qos_2_it_is_refused_by_a_pubrec(desk: Desk, talks: Talks) -> None:
    conn = desk.open(version=5)
    desk.send(conn, publish(b"t", b"p1", qos=2, packet_id=1, properties=b""))
    assert break_by(talks, b"p1") == ATTEMPTS
    assert desk.received(conn) == pubrec(1, 0x97)


def test_in_3_1_1_its_client_is_disconnected(desk: Desk, talks: Talks) -> None:
    guilty, other = desk.open(b"a"), desk.open(b"b")
    send(desk, guilty, 1)
    send(desk, other, 2)
    assert break_by(talks, b"p1") == ATTEMPTS
    assert desk.received(guilty) == b""
    assert desk.received(other) == puback(2)
    assert [event.conn for event in desk.events if event.kind == EventKind.FAILED] == [guilty]
    assert abandoned(desk) == [(b"t", 2)]
