"""Publishes that go to the server as one TOPIC.PIPELINE: which, within which bounds, and whose the replies are."""

from collections.abc import Callable

import pytest

from holdmq.core._binding import lib
from holdmq.core.engine import EngineSettings, EventKind, OutOfStepError
from tests.bridge.packets import puback, pubrec, pubrel
from tests.core.engine.engine_talk import Desk, array, bulk, publish, publishes, push, queued, record, write_some

OOM = b"-OOM command not allowed\r\n"
READONLY = b"-READONLY You can't write against a read only replica.\r\n"
UNKNOWN = b"-ERR unknown command 'TOPIC.PIPELINE', with args beginning with: '*9  $13  TOPIC.PUBLISH' \r\n"
NOPERM = b"-NOPERM User bridge has no permissions to run the 'topic.pipeline' command\r\n"
ONE = b":1\r\n"
MOST_BYTES = 16_384
FRAME_BYTES = len(b"*2\r\n$14\r\nTOPIC.PIPELINE\r\n$16384\r\n\r\n")


@pytest.fixture
def desk() -> Desk:
    return new_desk()


def new_desk() -> Desk:
    return Desk(EngineSettings(retry_first_ms=50, retry_most_ms=150), max_pipeline=64)


def numbered(*numbers: int, qos: int = 1) -> bytes:
    return b"".join(publish(b"t", b"%d" % i, qos=qos, packet_id=i) for i in numbers)


def mixed(*numbers: int) -> bytes:
    """QoS 1, 2, 0, 1 ... of 1, 2, 3, 4 ..."""
    return b"".join(publish(b"t", b"%d" % i, qos=i % 3, packet_id=i) for i in numbers)


def payloads(commands: list[list[bytes]]) -> list[list[bytes]]:
    """What went in each command that publishes."""
    return [[one[2] for one in publishes(command)] for command in commands if publishes(command)]


def sizes(commands: list[list[bytes]]) -> list[int]:
    """How many went in each command."""
    return [len(publishes(command)) for command in commands]


def wire(desk: Desk) -> bytes:
    desk.engine.flush(desk.now_ms)
    return desk.engine.server_output()


# ---- which go together


def test_publishes_become_the_argument_of_one_command(desk: Desk) -> None:
    one_by_one = Desk()
    for each in (desk, one_by_one):
        each.send(each.open(), publish(b"a", b"x", qos=1, packet_id=1, retain=True) + publish(b"b", b"y"))
    commands = wire(one_by_one)
    assert commands.count(b"TOPIC.PUBLISH") == 2
    assert wire(desk) == b"*2\r\n" + bulk(b"TOPIC.PIPELINE") + bulk(commands)


def test_a_publish_alone_goes_by_itself(desk: Desk) -> None:
    desk.send(desk.open(), numbered(1))
    assert desk.commands() == [[b"TOPIC.PUBLISH", b"t", b"1", b"QOS", b"1", b"FROM", b"c", b"EPOCH", b"7"]]


def test_those_of_all_clients_go_together_in_their_order(desk: Desk) -> None:
    one, other = desk.open(b"c"), desk.open(b"d", version=5)
    desk.send(one, numbered(1, 2, qos=2))
    desk.send(other, publish(b"t", b"3", properties=b"\x01\x01"))
    desk.send(one, numbered(4))
    assert payloads(desk.commands()) == [[b"1", b"2", b"3", b"4"]]


def test_what_was_handed_out_is_not_added_to(desk: Desk) -> None:
    conn = desk.open()
    desk.send(conn, numbered(1, 2))
    assert write_some(desk.engine, 0) == b""
    desk.send(conn, numbered(3))
    assert write_some(desk.engine, 0) == b""
    desk.send(conn, numbered(4, 5))
    assert payloads(desk.commands()) == [[b"1", b"2"], [b"3"], [b"4", b"5"]]
    desk.answer(array([ONE] * 2), ONE, array([ONE] * 2))
    assert desk.received(conn) == b"".join(puback(i) for i in range(1, 6))


def test_nothing_counts_as_written_that_was_not_handed_out(desk: Desk) -> None:
    conn = desk.open()
    desk.send(conn, numbered(1, 2))
    assert lib.hmq_engine_server_output(desk.engine.handle, 0).len > 0
    desk.send(conn, numbered(3, 4))
    lib.hmq_engine_server_written(desk.engine.handle, 0, 1 << 20)
    assert payloads(desk.commands()) == [[b"3", b"4"]]


def acknowledge(desk: Desk, conn: int) -> None:
    desk.send(conn, puback(1))
    desk.engine.flush(desk.now_ms)


# What makes a command of its own.
BETWEEN: dict[str, Callable[[Desk, int], None]] = {
    "an acknowledgement": acknowledge,
    "a release": lambda desk, conn: desk.send(conn, pubrel(9)),
    "a denied publish": lambda desk, conn: desk.send(conn, publish(b"no", qos=1, packet_id=9)),
    "a command of the owner": lambda desk, _conn: desk.engine.command(b"*1\r\n$4\r\nPING\r\n"),
}


@pytest.mark.parametrize("name", BETWEEN)
def test_nothing_is_overtaken_by_them(desk: Desk, name: str) -> None:
    conn = desk.open()
    desk.engine.rules(conn, [(False, b"no")], denied_otherwise=False)
    desk.answer(push(b"{c}_inbox", queued(1, 0, record(b"1"))))
    desk.received(conn)
    desk.send(conn, numbered(1, 2))
    BETWEEN[name](desk, conn)
    desk.send(conn, numbered(3, 4))
    assert sizes(desk.commands()) == [2, 0, 2]


def test_a_denied_publish_without_an_answer_delays_no_other(desk: Desk) -> None:
    conn = desk.open()
    desk.engine.rules(conn, [(False, b"no")], denied_otherwise=False)
    desk.send(conn, numbered(1) + publish(b"no") + numbered(2))
    assert payloads(desk.commands()) == [[b"1", b"2"]]


# ---- bounds


@pytest.mark.parametrize(
    ("most", "expected"), [(0, [1] * 7), (1, [1] * 7), (2, [2, 2, 2, 1]), (3, [3, 3, 1]), (2**32 - 1, [7])]
)
def test_no_more_go_together_than_the_settings_allow(most: int, expected: list[int]) -> None:
    desk = Desk(max_pipeline=most)
    conn = desk.open()
    desk.send(conn, numbered(*range(1, 8)))
    assert sizes(desk.commands()) == expected
    desk.answer(*[array([ONE] * size) if size > 1 else ONE for size in expected])
    assert desk.received(conn) == b"".join(puback(i) for i in range(1, 8))


@pytest.mark.parametrize("excess", [0, 1])
def test_no_more_than_16_kib_go_together(desk: Desk, excess: int) -> None:
    conn = desk.open()
    desk.send(conn, publish(b"t", bytes(1000)))
    first = len(wire(desk))
    second = MOST_BYTES + excess - first
    around = first - 1000 + 1  # beside the payload, whose length has a digit more
    desk.send(conn, publish(b"t", bytes(1000)) + publish(b"t", bytes(second - around)))
    assert len(wire(desk)) == MOST_BYTES + (1 if excess else FRAME_BYTES)


def test_a_publish_that_is_larger_goes_by_itself(desk: Desk) -> None:
    conn = desk.open()
    desk.send(conn, numbered(1, 2) + publish(b"t", bytes(MOST_BYTES), qos=1, packet_id=3) + numbered(4, 5))
    assert sizes(desk.commands()) == [2, 1, 2]
    desk.answer(array([ONE] * 2), ONE, array([ONE] * 2))
    assert desk.received(conn) == b"".join(puback(i) for i in range(1, 6))


def test_fewer_go_together_while_they_go_to_many_sessions(desk: Desk) -> None:
    conns = [desk.open(b"%d" % number) for number in range(64)]

    def one_of_each(reply: bytes) -> list[int]:
        for conn in conns:
            desk.send(conn, numbered(1))
        found = sizes(desk.commands())
        desk.answer(*[array([reply] * size) if size > 1 else reply for size in found])
        return found

    def sizes_after(reached: int, times: int) -> list[int]:
        for _ in range(times):
            one_of_each(b":%d\r\n" % reached)
        return one_of_each(b":-1\r\n")  # which says nothing about it

    assert sizes_after(1, 300) == [64]
    assert sizes_after(128, 30) == [8] * 8  # 1024 copies: a quarter more than one client may make
    assert sizes_after(1_000_000, 1) == [1] * 64
    assert sizes_after(1, 1000) == [64]


def test_how_many_sessions_a_client_reaches_is_known_from_its_replies(desk: Desk) -> None:
    conn, other = desk.open(), desk.open(b"other")
    assert desk.engine.reach_of(conn) == 0
    desk.send(conn, numbered(1))
    desk.commands()
    desk.answer(b":128\r\n")
    assert (desk.engine.reach_of(conn), desk.engine.reach_of(other)) == (128, 0)
    assert desk.engine.reach_of(0) == 0


def test_a_client_whose_publishes_go_to_many_sessions_parts_no_others(desk: Desk) -> None:
    many, other = desk.open(), desk.open(b"other")
    for reached, conn, times in ((700, many, 40), (1, other, 300)):
        for _ in range(times):
            desk.send(conn, numbered(1))
            desk.commands()
            desk.answer(b":%d\r\n" % reached)
    desk.send(many, numbered(1))
    desk.send(other, numbered(*range(1, 41)))
    assert sizes(desk.commands()) == [41]
    desk.answer(array([b":700\r\n"] + [ONE] * 40))
    desk.send(other, numbered(*range(1, 41)))
    desk.send(many, numbered(1, 2))
    assert sizes(desk.commands()) == [41, 1]


TOOK_TOO_LONG = b"-TRYAGAIN the command has taken its share of the server's time (4 ms); try again\r\n"


def reaching(reached: int, *sizes: int) -> list[bytes]:
    """Replies to commands of so many publishes."""
    return [array([b":%d\r\n" % reached] * size) if size > 1 else b":%d\r\n" % reached for size in sizes]


def test_a_server_that_has_no_time_for_all_gets_fewer_copies_in_a_command(desk: Desk) -> None:
    conn = desk.open()
    desk.send(conn, numbered(1))
    desk.commands()
    desk.answer(b":100\r\n")
    desk.send(conn, numbered(*range(2, 30)))
    assert sizes(desk.commands()) == [8]  # seven are less than 768
    desk.answer(array([b":100\r\n"] * 4 + [TOOK_TOO_LONG] * 4))
    desk.now_ms += 1000
    found = sizes(desk.commands())
    assert found == [3]  # 300 copies: three quarters of what the server made
    for _ in range(300):
        desk.answer(*reaching(100, *found))
        desk.send(conn, numbered(*range(30, 30 + sum(found))))
        found = sizes(desk.commands())
    assert found == [5]  # 450 copies: it gets more again while nothing is refused


@pytest.mark.parametrize("reason", [b"-TRYAGAIN slot 7 is moving; try again\r\n", b"-OOM no memory\r\n"])
def test_what_is_refused_for_another_reason_does_not_change_that(desk: Desk, reason: bytes) -> None:
    conn = desk.open()
    desk.send(conn, numbered(1))
    desk.commands()
    desk.answer(b":100\r\n")
    desk.send(conn, numbered(*range(2, 30)))
    assert sizes(desk.commands()) == [8]
    desk.answer(array([b":100\r\n"] + [reason] * 7))
    desk.now_ms += 1000
    assert sizes(desk.commands()) == [8]


def test_who_publishes_for_the_first_time_is_taken_for_one_of_those_who_do_now(desk: Desk) -> None:
    wide = desk.open()
    for _ in range(40):
        desk.send(wide, numbered(1))
        desk.commands()
        desk.answer(b":256\r\n")
    other = desk.open(b"other")
    desk.send(other, numbered(*range(1, 31)))
    assert sizes(desk.commands()) == [3, 1]
    desk.answer(*reaching(1, 3, 1))
    assert sizes(desk.commands()) == [26]  # it reaches one session: all go


def test_a_client_whose_publishes_go_to_many_sessions_has_few_under_way(desk: Desk) -> None:
    conn, other = desk.open(), desk.open(b"other")

    def under_way(reached: int) -> list[int]:
        """How many go at once of a hundred that are accepted."""
        counts = []
        desk.send(conn, numbered(*range(1, 101)))
        while commands := desk.commands():
            found = sizes(commands)
            counts.append(sum(found))
            desk.answer(*[array([b":%d\r\n" % reached] * size) if size > 1 else b":%d\r\n" % reached for size in found])
        return counts

    assert under_way(256)[0] == 24  # its reach is not known yet
    assert under_way(256) == [4] * 25  # three of 256 are less than 784
    assert under_way(5000) == [4] + [1] * 96
    desk.send(conn, numbered(1, 2, 3))
    desk.send(other, numbered(7))
    assert sizes(desk.commands()) == [1, 1]
    desk.answer(b":5000\r\n", ONE)
    assert desk.received(other) == puback(7)


def test_limits_and_counters_go_by_the_single_publish() -> None:
    desk = Desk(EngineSettings(max_client_outstanding=2, max_outstanding=2), max_pipeline=64)
    conn = desk.open()
    desk.send(conn, numbered(1, 2))
    congested = [desk.engine.congested]
    desk.send(conn, numbered(3))
    assert [*congested, desk.engine.congested] == [False, True]
    assert desk.engine.should_pause(conn)
    assert sizes(desk.commands()) == [3]
    assert desk.engine.outstanding == desk.engine.counters()["commands_sent"] == 3
    desk.answer(array([ONE] * 3))
    assert desk.engine.outstanding == 0
    assert desk.engine.counters()["replies_received"] == desk.engine.counters()["publishes_acknowledged"] == 3
    assert desk.kinds() == [EventKind.RELIEF]


# ---- replies


def test_each_client_gets_the_answer_to_its_own(desk: Desk) -> None:
    one, other = desk.open(b"c"), desk.open(b"d", version=5)
    desk.send(one, numbered(1))
    desk.send(other, publish(b"t", qos=1, packet_id=1, properties=b"") + publish(b"t", properties=b""))
    desk.send(one, numbered(2, qos=2))
    desk.send(other, publish(b"t", qos=2, packet_id=2, properties=b""))
    assert sizes(desk.commands()) == [5]
    desk.answer(array([ONE, b"!12\r\nINVALIDTOPIC\r\n", ONE, b":0\r\n", b":0\r\n"]))
    assert desk.received(one) == puback(1) + pubrec(2)
    assert desk.received(other) == puback(1, 0x80) + pubrec(2, 0x10)
    assert desk.kinds() == []


def test_a_client_that_is_gone_or_ended_gets_none(desk: Desk) -> None:
    gone, ended, here = (desk.open(client_id) for client_id in (b"c", b"d", b"e"))
    for conn in (gone, ended, here) * 2:
        desk.send(conn, numbered(1))
    assert sizes(desk.commands()) == [6]
    desk.engine.close(gone)
    heir = desk.open(b"f")
    desk.answer(array([ONE, b"-FENCED the session has a newer owner\r\n", ONE, ONE, ONE, ONE]))
    assert [(event.kind, event.conn) for event in desk.engine.events()] == [(EventKind.TAKEN_OVER, ended)]
    assert desk.received(ended) == desk.received(heir) == b""
    assert desk.received(here) == puback(1) * 2
    assert desk.engine.outstanding == 0


def test_what_is_refused_inside_is_sent_again_with_what_came_after_it_as_one(desk: Desk) -> None:
    one, other = desk.open(b"c"), desk.open(b"d")
    for conn, number in ((one, 1), (other, 2), (one, 3), (other, 4), (one, 5), (other, 6)):
        desk.send(conn, numbered(number))
    assert sizes(desk.commands()) == [6]
    desk.answer(array([ONE, ONE, READONLY, READONLY, ONE, ONE]))
    assert desk.kinds() == [EventKind.REFUSED] * 2
    assert desk.received(one) + desk.received(other) == puback(1) + puback(2)
    assert desk.commands() == []
    desk.now_ms += 60
    assert payloads(desk.commands()) == [[b"3", b"5", b"4", b"6"]]
    desk.answer(array([ONE] * 4))
    assert desk.received(one) + desk.received(other) == puback(3) + puback(5) + puback(4) + puback(6)


def test_a_refusal_of_the_whole_is_that_of_each(desk: Desk) -> None:
    three, five = desk.open(b"c"), desk.open(b"d", version=5)
    desk.send(three, numbered(1, 2, qos=2) + publish(b"t", b"3"))
    desk.send(five, publish(b"t", b"4", qos=1, packet_id=4, properties=b""))
    assert sizes(desk.commands()) == [4]
    desk.answer(OOM)
    assert desk.received(five) == puback(4, 0x97)
    assert desk.received(three) == b""
    assert desk.engine.counters()["publishes_dropped_qos0"] == 1
    assert desk.engine.counters()["replies_received"] == 4
    assert desk.kinds() == [EventKind.REFUSED]
    assert desk.commands() == []
    desk.now_ms += 60
    assert payloads(desk.commands()) == [[b"1", b"2"]]


def test_replies_may_be_cut_anywhere() -> None:
    replies = array([ONE, b"-INVALIDTOPIC no\r\n", b"!5\r\nERR x\r\n"]) + ONE + OOM
    for at in range(len(replies) + 1):
        desk = new_desk()
        conn = desk.open(version=5)
        for numbers in ((1, 2, 3), (4,), (5, 6)):
            desk.send(conn, b"".join(publish(b"t", qos=1, packet_id=i, properties=b"") for i in numbers))
            assert sizes(desk.commands()) == [len(numbers)]
        desk.answer(replies[:at])
        desk.answer(replies[at:])
        answers = puback(1) + puback(2, 0x80) + puback(3, 0x80) + puback(4) + puback(5, 0x97) + puback(6, 0x97)
        assert desk.received(conn) == answers


WRONG = [
    ONE,
    b"+OK\r\n",
    b"_\r\n",
    b"*-1\r\n",
    b"*0\r\n",
    array([ONE] * 2),
    array([ONE] * 4),
    b"~3\r\n" + ONE * 3,
    array([ONE, b"+OK\r\n", ONE]),
    array([ONE, ONE, b"_\r\n"]),
    array([array([ONE]), ONE, ONE]),
    array([array([ONE] * 3)] * 3),
]


@pytest.mark.parametrize("reply", WRONG)
def test_a_reply_of_another_kind_or_number_is_to_something_else(desk: Desk, reply: bytes) -> None:
    conn = desk.open()
    desk.send(conn, numbered(1, 2, 3))
    desk.commands()
    with pytest.raises(OutOfStepError):
        desk.answer(reply)
    answered = desk.received(conn)
    desk.engine.server_lost()
    desk.engine.server_restored(desk.now_ms)
    again = [int(payload) for command in payloads(desk.commands()) for payload in command]
    assert answered == b"".join(puback(i) for i in range(1, 4) if i not in again)
    assert again == list(range(4 - len(again), 4))


@pytest.mark.parametrize("reply", [array([ONE] * 3), READONLY, UNKNOWN])
def test_a_reply_before_the_command_is_written_is_to_something_else(desk: Desk, reply: bytes) -> None:
    conn = desk.open()
    desk.send(conn, numbered(1, 2, 3))
    size = len(desk.engine.server_output())
    desk.engine.server_lost()
    desk.engine.server_restored(desk.now_ms)
    assert len(write_some(desk.engine, size - 1)) == size - 1
    with pytest.raises(OutOfStepError):
        desk.answer(reply)
    assert desk.received(conn) == b""


# ---- a server without the command


@pytest.mark.parametrize("refusal", [UNKNOWN, NOPERM])
def test_a_server_without_the_command_gets_them_one_by_one_at_once(desk: Desk, refusal: bytes) -> None:
    conn = desk.open()
    desk.send(conn, mixed(1, 2, 3, 4))
    assert sizes(desk.commands()) == [4]
    desk.answer(refusal)
    assert desk.engine.has_timed_work
    assert payloads(desk.commands()) == [[b"1"], [b"2"], [b"3"], [b"4"]]
    desk.answer(ONE * 4)
    assert desk.received(conn) == puback(1) + pubrec(2) + puback(4)
    assert desk.kinds() == []
    assert desk.engine.counters()["publishes_dropped_qos0"] == 0
    desk.send(conn, mixed(5, 6))
    assert sizes(desk.commands()) == [1, 1]
    desk.answer(ONE * 2)
    desk.engine.server_lost()
    desk.engine.server_restored(desk.now_ms)  # this one may be newer
    desk.send(conn, mixed(7, 8))
    assert payloads(desk.commands()) == [[b"7", b"8"]]


def test_their_order_is_kept_whatever_is_under_way(desk: Desk) -> None:
    conn, other = desk.open(b"c"), desk.open(b"d")
    for numbers in ((1, 2), (3,), (4, 5)):
        desk.send(conn, numbered(*numbers))
        assert sizes(desk.commands()) == [len(numbers)]
    desk.send(other, numbered(6, 7))  # nobody was handed these
    desk.answer(UNKNOWN)
    assert desk.engine.should_pause(conn)
    desk.send(conn, numbered(8))
    assert payloads(desk.commands()) == [[b"6"], [b"7"]]
    desk.answer(ONE)
    assert desk.commands() == []
    desk.answer(UNKNOWN)
    assert payloads(desk.commands()) == [[b"1"], [b"2"], [b"3"], [b"4"], [b"5"], [b"8"]]
    desk.answer(ONE * 8)
    assert desk.received(conn) == b"".join(puback(i) for i in (1, 2, 3, 4, 5, 8))
    assert desk.received(other) == puback(6) + puback(7)
    assert desk.kinds() == [EventKind.RELIEF]


def test_a_pause_that_was_due_before_is_kept(desk: Desk) -> None:
    conn = desk.open()
    for numbers in ((1,), (2, 3)):
        desk.send(conn, numbered(*numbers))
        desk.commands()
    desk.answer(READONLY, UNKNOWN)
    assert desk.commands() == []
    desk.now_ms += 60
    assert payloads(desk.commands()) == [[b"1"], [b"2"], [b"3"]]


def test_what_was_taken_back_was_never_sent_before(desk: Desk) -> None:
    """Of a QoS 2 that the client repeated the second one is known to the server, and counts once."""
    conn = desk.open(version=5, receive_maximum=2)
    desk.send(conn, b"".join(publish(b"t", qos=2, packet_id=1, dup=dup, properties=b"") for dup in (False, True)))
    desk.commands()
    desk.answer(UNKNOWN)
    desk.commands()
    desk.answer(ONE, b":-1\r\n")
    assert desk.engine.counters()["publishes_repeated"] == 1
    desk.send(conn, publish(b"t", qos=2, packet_id=2, properties=b""))
    assert desk.events == []
    desk.send(conn, publish(b"t", qos=2, packet_id=3, properties=b""))
    assert [(event.kind, event.code) for event in desk.events] == [(EventKind.ERROR, 0x93)]


def test_those_of_whoever_is_gone_are_not_sent_again(desk: Desk) -> None:
    gone, here = desk.open(b"c"), desk.open(b"d")
    desk.send(gone, numbered(1))
    desk.send(here, numbered(2))
    desk.commands()
    desk.engine.close(gone)
    desk.answer(UNKNOWN)
    assert payloads(desk.commands()) == [[b"2"]]


def test_qos_0_that_was_taken_back_is_lost_with_its_connection_alone(desk: Desk) -> None:
    conn, busy = desk.open(b"c"), desk.open(b"d")
    desk.send(conn, publish(b"t", b"1") + publish(b"t", b"2"))
    desk.send(busy, publish(b"t", b"3") + publish(b"t", b"4"))
    desk.commands()
    desk.answer(UNKNOWN)
    desk.engine.server_lost()
    desk.engine.close(busy)
    assert desk.engine.counters()["publishes_dropped_qos0"] == 2
    desk.engine.server_restored(desk.now_ms)
    assert payloads(desk.commands()) == [[b"1", b"2"]]


def test_an_unknown_command_inside_says_nothing_about_the_whole(desk: Desk) -> None:
    conn = desk.open(version=5)
    desk.send(conn, b"".join(publish(b"t", qos=1, packet_id=i, properties=b"") for i in (1, 2)))
    desk.commands()
    desk.answer(array([b"-ERR unknown command 'TOPIC.PUBLISH'\r\n", ONE]))
    assert desk.received(conn) == puback(1, 0x80) + puback(2)
    desk.send(conn, publish(b"t", properties=b"") * 2)
    assert sizes(desk.commands()) == [2]


# ---- the server's loss


def test_a_loss_at_any_byte_of_the_command_repeats_no_qos_0() -> None:
    one_by_one, ends = Desk(), [0]
    conn = one_by_one.open()
    packets = [publish(b"t", b"%d" % i, qos=qos, packet_id=i) for i, qos in enumerate((0, 1, 0, 2, 0))]
    for packet in packets:
        one_by_one.send(conn, packet)
        ends.append(ends[-1] + len(wire(one_by_one)))
    frame = FRAME_BYTES - 2 - 2  # its length has three digits
    begins = {b"0": 0, b"2": frame + ends[2], b"4": frame + ends[4]}
    for lost in range(frame + ends[5] + 3):
        desk = new_desk()
        desk.send(desk.open(), b"".join(packets))
        assert len(write_some(desk.engine, lost)) == lost
        desk.engine.server_lost()
        desk.engine.server_restored(desk.now_ms)
        dropped = {payload for payload, begin in begins.items() if lost > begin}
        assert payloads(desk.commands()) == [[b"%d" % i for i in range(5) if b"%d" % i not in dropped]]
        assert desk.engine.counters()["publishes_dropped_qos0"] == len(dropped)


def test_what_nobody_was_handed_out_is_sent_whole_after_a_loss(desk: Desk) -> None:
    conn = desk.open()
    desk.send(conn, mixed(1, 2, 3))
    desk.engine.server_lost()
    desk.send(conn, numbered(4))
    desk.engine.server_restored(desk.now_ms)
    desk.send(conn, numbered(5))
    assert payloads(desk.commands()) == [[b"1", b"2", b"3", b"4", b"5"]]
    desk.answer(array([ONE] * 5))
    assert desk.received(conn) == puback(1) + pubrec(2) + puback(4) + puback(5)


def test_identifiers_of_gathered_publishes_are_in_use(desk: Desk) -> None:
    conn = desk.open()
    desk.send(conn, numbered(1, 2, 3))
    desk.commands()
    desk.answer(array([ONE, READONLY, ONE]))
    desk.now_ms += 60
    desk.commands()
    subscribe = b"\x82\x06\0%c\0\x01t\0"
    for packet_id, code in ((1, 0), (2, 0x91), (3, 0x91)):
        desk.send(conn, subscribe % packet_id)
        assert desk.events.pop().code == code
