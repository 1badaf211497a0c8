"""Members: further sessions on the connection of a client, each with its own queue, link and packet identifiers."""

from typing import Any

import pytest

from holdmq.core.engine import MEMBER_BLOCKS, MEMBER_IDS, EngineSettings, EventKind, Member
from tests.bridge.packets import puback, pubcomp, publish, pubrec, pubrel
from tests.core.engine.engine_talk import Desk, identifiers, page, push, queued, record
from tests.core.support import Books

KEY = b"c:{$share/g/t}"
INBOX = KEY + b"_inbox"
OWN = 65535 - MEMBER_BLOCKS * MEMBER_IDS  # packet identifiers of the client's own session


def first_of(block: int) -> int:
    """The first packet identifier of a block."""
    return OWN + 1 + block * MEMBER_IDS


@pytest.fixture
def desk() -> Desk:
    return Desk(EngineSettings(links=2, cluster=1))


def join(desk: Desk, conn: int, *, block: int = 0, key: bytes = KEY, epoch: int = 9, **more: Any) -> int:
    """A member whose queue is on link 1, and is empty."""
    member, former = desk.engine.join(conn, Member(key, epoch, 1, block, **more), desk.now_ms)
    assert former == 0
    (fetch,) = desk.commands(1)
    assert fetch[:4] == [b"SESSION.FETCH", key, b"EPOCH", b"%d" % epoch]
    desk.answer(page([]), link=1)
    return member


def deliver(desk: Desk, serial: int, *, qos: int = 1, inbox: bytes = INBOX, link: int = 1) -> None:
    desk.answer(push(inbox, queued(serial, serial - 1, record(b"%d" % serial, qos=qos), qos=qos)), link=link)


def sent(serial: int, packet_id: int, *, qos: int = 1) -> bytes:
    return publish(b"t", b"%d" % serial, qos=qos, pid=packet_id)


def test_messages_of_a_member_go_to_its_client_with_identifiers_of_its_block(desk: Desk) -> None:
    conn = desk.open()
    join(desk, conn, block=3)
    deliver(desk, 1)
    deliver(desk, 2)
    assert desk.received(conn) == sent(1, first_of(3)) + sent(2, first_of(3) + 1)
    desk.send(conn, puback(first_of(3)) + puback(first_of(3) + 1))
    assert desk.commands(0) == []
    (ack,) = desk.commands(1)
    assert ack[:4] == [b"SESSION.ACK", KEY, b"EPOCH", b"9"]
    assert identifiers(ack[4:]) == [1, 2]


def test_both_sessions_may_have_the_same_identifier(desk: Desk) -> None:
    conn = desk.open()
    join(desk, conn)
    deliver(desk, 1)
    deliver(desk, 1, inbox=b"{c}_inbox", link=0)
    assert desk.received(conn) == sent(1, first_of(0)) + sent(1, 1)
    desk.send(conn, puback(1))
    assert [command[:2] for command in desk.commands(0)] == [[b"SESSION.ACK", b"{c}"]]
    assert desk.commands(1) == []
    desk.send(conn, puback(first_of(0)))
    assert [command[:2] for command in desk.commands(1)] == [[b"SESSION.ACK", KEY]]


def test_a_message_of_a_member_with_qos_2_is_released_and_completed_in_its_session(desk: Desk) -> None:
    conn, wire = desk.open(), first_of(1) + 4
    join(desk, conn, block=1)
    desk.answer(push(INBOX, queued(5, 0, record(b"5", qos=2), qos=2)), link=1)
    assert desk.received(conn) == sent(5, wire, qos=2)
    desk.send(conn, pubrec(wire))
    assert desk.commands(1) == [[b"SESSION.RELEASE", KEY, b"EPOCH", b"9", b"5"]]
    desk.answer(b":1\r\n", link=1)
    assert desk.received(conn) == pubrel(wire)
    desk.send(conn, pubrec(wire))
    assert desk.received(conn) == pubrel(wire)
    desk.send(conn, pubcomp(wire))
    assert [command[0] for command in desk.commands(1)] == [b"SESSION.ACK"]
    assert desk.commands(0) == []


def test_a_message_waits_for_another_one_that_has_its_place(desk: Desk) -> None:
    conn = desk.open(window=1000)
    join(desk, conn, window=1000)
    deliver(desk, 1)
    assert desk.received(conn) == sent(1, first_of(0))
    later = MEMBER_IDS + 1
    desk.answer(push(INBOX, queued(later, 1, record(b"%d" % later))), link=1)
    assert desk.received(conn) == b""
    desk.send(conn, puback(first_of(0)))
    desk.commands(1)
    assert desk.received(conn) == sent(later, first_of(0))
    desk.send(conn, puback(first_of(0)))
    desk.answer(b":1\r\n", link=1)
    assert identifiers(desk.commands(1)[0][4:]) == [later]


def test_identifiers_of_the_clients_session_stay_below_the_blocks(desk: Desk) -> None:
    conn, high = desk.open(resumed=True), OWN + 7
    desk.commands(0)
    desk.answer(page([(high, high, 0, record(b"high"))]))
    assert desk.received(conn) == publish(b"t", b"high", qos=1, pid=7)
    desk.answer(push(b"{c}_inbox", queued(65535 + 7, high, record(b"same"))))
    assert desk.received(conn) == b""  # its twin has the identifier
    desk.send(conn, puback(7))
    assert identifiers(desk.commands(0)[0][4:]) == [high]
    assert desk.received(conn) == publish(b"t", b"same", qos=1, pid=7)


def test_all_sessions_share_the_window_and_take_turns(desk: Desk) -> None:
    conn = desk.open(window=2)
    join(desk, conn, window=2)
    for serial in (1, 2, 3):
        deliver(desk, serial)
    deliver(desk, 1, inbox=b"{c}_inbox", link=0)
    assert desk.received(conn) == sent(1, first_of(0)) + sent(2, first_of(0) + 1)
    desk.send(conn, puback(first_of(0)))
    desk.commands(1)
    assert desk.received(conn) == sent(1, 1)  # not the third of the member
    desk.send(conn, puback(1))
    desk.commands(0)
    assert desk.received(conn) == sent(3, first_of(0) + 2)


def test_a_member_that_ends_leaves_its_room_to_others(desk: Desk) -> None:
    conn = desk.open(window=1)
    member = join(desk, conn, window=1)
    deliver(desk, 1)
    deliver(desk, 1, inbox=b"{c}_inbox", link=0)
    assert desk.received(conn) == sent(1, first_of(0))
    assert desk.engine.sent_serial(member) == 1
    desk.engine.close(member)
    desk.commands(0)
    assert desk.received(conn) == sent(1, 1)
    desk.send(conn, puback(first_of(0)))  # of nobody now
    assert desk.commands(1) == []
    assert desk.kinds() == []


def test_a_member_whose_client_has_gone_sends_nothing(desk: Desk) -> None:
    conn = desk.open()
    member = join(desk, conn)
    deliver(desk, 1)
    desk.look()
    desk.engine.close(conn)
    deliver(desk, 2)
    assert desk.commands(1) == []
    assert desk.received(member) == b""
    assert desk.engine.sent_serial(member) == 1
    desk.engine.close(member)


def test_the_loss_of_a_members_session_is_told_of_the_member(desk: Desk) -> None:
    conn = desk.open()
    member = join(desk, conn)
    deliver(desk, 1)
    desk.received(conn)
    desk.send(conn, puback(first_of(0)))
    desk.commands(1)
    desk.answer(b"-FENCED EPOCH is 9; the session has a newer owner\r\n", link=1)
    desk.look()
    assert [(event.kind, event.conn) for event in desk.events] == [(EventKind.TAKEN_OVER, member)]


def test_a_lost_link_of_a_member_concerns_its_session_only(desk: Desk) -> None:
    conn = desk.open()
    join(desk, conn)
    deliver(desk, 1)
    desk.received(conn)
    desk.engine.server_lost(1)
    deliver(desk, 1, inbox=b"{c}_inbox", link=0)
    assert desk.received(conn) == sent(1, 1)
    desk.send(conn, puback(first_of(0)))
    desk.engine.server_restored(desk.now_ms, 1)
    (fetch,) = desk.commands(1)
    assert fetch[:2] == [b"SESSION.FETCH", KEY]
    desk.answer(page([(1, 1, 1, record(b"1"))]), link=1)
    assert desk.received(conn) == b""
    assert [identifiers(command[4:]) for command in desk.commands(1) if command[0] == b"SESSION.ACK"] == [[1]]


def test_messages_in_flight_have_the_same_identifiers_on_the_next_connection(desk: Desk) -> None:
    conn = desk.open()
    desk.engine.join(conn, Member(KEY, 9, 1, 5), desk.now_ms)
    desk.commands(1)
    desk.answer(page([(700, 700, 1, record(b"700", qos=2)), (701, 701, 2, record(b"701", qos=2))]), link=1)
    again = publish(b"t", b"700", qos=2, pid=first_of(5) + 699 % MEMBER_IDS, dup=True)
    assert desk.received(conn).startswith(again)


@pytest.mark.parametrize(
    ("member", "cluster"),
    [
        (Member(KEY, 1, 0, MEMBER_BLOCKS), 1),
        (Member(KEY, 1, 2, 0), 1),
        (Member(KEY, 1, 0, 1), 1),
        (Member(KEY, 1, 0, 0), 0),
    ],
    ids=["a block too high", "no such link", "a block in use", "no cluster"],
)
def test_a_member_that_cannot_be_changes_nothing(member: Member, cluster: int) -> None:
    desk = Desk(EngineSettings(links=2, cluster=cluster))
    conn = desk.open()
    if cluster:
        join(desk, conn, block=1, key=b"c:{$share/g/other}")
    with pytest.raises(MemoryError):
        desk.engine.join(conn, member, desk.now_ms)
    deliver(desk, 1, inbox=b"{c}_inbox", link=0)
    assert desk.received(conn) == sent(1, 1)


def test_memory_may_run_out_at_any_allocation_of_a_join() -> None:
    books = Books()
    desk = Desk(EngineSettings(links=2, cluster=1), books=books)
    conn = desk.open()
    for later in range(1, 30):
        books.fail_at(books.calls + later)
        try:
            member, _ = desk.engine.join(conn, Member(KEY, 9, 1, 0), desk.now_ms)
        except MemoryError:
            continue
        assert later > 1
        deliver(desk, 1, inbox=b"{c}_inbox", link=0)
        assert desk.received(conn) == sent(1, 1)
        desk.engine.close(member)
        return
    raise AssertionError("a join takes fewer than 30 allocations")
