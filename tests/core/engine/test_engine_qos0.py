"""Messages of QoS 0 of a queue: sent in order, without a place in the window, acknowledged once handed out."""

import pytest

from holdmq.core import Delivery, DeliveryKind
from tests.bridge.packets import puback
from tests.core.engine.engine_talk import Desk, page, publish, push, queued, record, write_some

INBOX = b"{c}_inbox"


@pytest.fixture
def desk() -> Desk:
    return Desk()


def deliver(desk: Desk, serial: int, *, qos: int) -> None:
    desk.answer(push(INBOX, queued(serial, serial - 1, record(b"%d" % serial, qos=qos), qos=qos)))


def written(desk: Desk) -> bytes:
    """Commands that go to the server now, before anything is handed out to clients."""
    desk.engine.flush(desk.now_ms)
    return write_some(desk.engine, 1 << 20)


def acknowledges_now(desk: Desk) -> bool:
    return desk.engine.needs_flush


def test_it_is_acknowledged_when_its_bytes_were_handed_out(desk: Desk) -> None:
    conn = desk.open()
    deliver(desk, 1, qos=0)
    assert written(desk) == b""
    assert not acknowledges_now(desk)
    assert desk.received(conn) == publish(b"t", b"1")
    assert acknowledges_now(desk)  # at once: the next page follows the acknowledgement
    (command,) = desk.commands()
    assert not acknowledges_now(desk)
    assert (command[0], command[4:]) == (b"SESSION.ACK", [b"1"])
    desk.answer(b":1\r\n")
    assert desk.engine.counters()["messages_sent"] == (1, 0, 0)
    assert desk.engine.levels()["messages_inflight"] == 0


def test_it_needs_no_place_in_the_window_and_does_not_pass_what_waits_for_one(desk: Desk) -> None:
    conn = desk.open(window=1)
    for serial, qos in ((1, 0), (2, 1), (3, 1), (4, 0)):
        deliver(desk, serial, qos=qos)
    assert desk.received(conn) == publish(b"t", b"1") + publish(b"t", b"2", qos=1, packet_id=2)
    desk.send(conn, puback(2))
    assert desk.received(conn) == publish(b"t", b"3", qos=1, packet_id=3) + publish(b"t", b"4")


def test_a_client_that_does_not_read_gets_it_later(desk: Desk) -> None:
    conn = desk.open()
    desk.engine.set_writable(conn, False)
    for serial in (1, 2, 3):
        deliver(desk, serial, qos=0)
    assert desk.received(conn) == b""
    assert desk.commands() == []
    desk.engine.set_writable(conn, True)
    desk.commands()
    assert desk.received(conn) == b"".join(publish(b"t", b"%d" % serial) for serial in (1, 2, 3))
    assert desk.commands()[0][4:] == [b"1-3"]
    assert desk.engine.counters()["messages_dropped_qos0"] == 0


def test_one_that_a_former_connection_was_handed_is_sent_again_without_dup(desk: Desk) -> None:
    conn = desk.open(resumed=True)
    desk.commands()
    desk.answer(page([(1, 1, 1, record(b"1", qos=0)), (2, 2, 1, record(b"2"))], too_large=()))
    assert desk.received(conn) == publish(b"t", b"1") + publish(b"t", b"2", qos=1, packet_id=2, dup=True)
    assert desk.commands()[0][4:] == [b"1"]


@pytest.mark.parametrize("is_handed_out", [False, True])
def test_a_loss_of_the_server_repeats_none_that_the_client_has(desk: Desk, is_handed_out: bool) -> None:
    conn = desk.open()
    deliver(desk, 1, qos=0)
    if is_handed_out:
        assert desk.received(conn) == publish(b"t", b"1")
    desk.engine.server_lost()
    desk.engine.server_restored(desk.now_ms)
    desk.engine.flush(desk.now_ms)
    write_some(desk.engine, 1 << 20)
    desk.answer(page([(1, 1, 0, record(b"1", qos=0)), (2, 2, 0, record(b"2", qos=0))], too_large=()))
    first = b"" if is_handed_out else publish(b"t", b"1")
    assert desk.received(conn) == first + publish(b"t", b"2")
    acknowledged = [command for command in desk.commands() if command[0] == b"SESSION.ACK"]
    assert [command[4:] for command in acknowledged] == [[b"1-2"]]


def test_a_header_of_one_has_it_fetched(desk: Desk) -> None:
    conn = desk.open()
    desk.answer(push(INBOX, Delivery(DeliveryKind.QUEUED, 0, False, 1, 1, 1).encode()))
    assert desk.commands()[0][0] == b"SESSION.FETCH"
    desk.answer(page([(1, 1, 0, record(b"1", qos=0))], too_large=()))
    assert desk.received(conn) == publish(b"t", b"1")
