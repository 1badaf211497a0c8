"""What connections published and were sent is counted, and the loudest are found in steps of a bounded size."""

import pytest

from holdmq.core.engine import Loudest
from tests.core.engine.engine_talk import Desk, publish, push, record, transient


@pytest.fixture
def desk() -> Desk:
    return Desk()


def measured(desk: Desk, places: int) -> tuple[int, list[tuple[int, int]]]:
    """How many steps a pass takes, and the connections that it finds, with their messages."""
    loudest, steps, place = Loudest(), 0, 0
    while True:
        steps += 1
        place = desk.engine.measure(place, places, loudest)
        if not place:
            return steps, [(row.conn, row.received_lately + row.sent_lately) for row in loudest.all()]


def test_messages_and_bytes_are_counted_in_both_directions(desk: Desk) -> None:
    conn = desk.open(b"c")
    for _ in range(3):
        desk.send(conn, publish(b"t", b"12345", qos=0))
    desk.answer(push(b"{c}_inbox", transient(record(b"123", qos=0))))
    row = desk.engine.traffic_of(b"{c}_inbox")
    assert row is not None
    assert row.conn == conn
    assert (row.received, row.bytes_received, row.sent, row.bytes_sent) == (3, 15, 1, 3)
    assert desk.engine.traffic_of(b"{nobody}_inbox") is None


def test_a_measurement_counts_from_the_one_before(desk: Desk) -> None:
    conn = desk.open(b"c")
    desk.send(conn, publish(b"t", b"x", qos=0))
    assert measured(desk, 100) == (1, [(conn, 1)])
    assert measured(desk, 100) == (1, [])
    desk.send(conn, publish(b"t", b"x", qos=0) * 2)
    assert measured(desk, 100) == (1, [(conn, 2)])


@pytest.mark.parametrize("places", [1, 7, 1000])
def test_the_loudest_are_found_in_steps_of_any_size(desk: Desk, places: int) -> None:
    conns = [desk.open(b"c%d" % number) for number in range(50)]
    counts = [number * 7 % 50 for number in range(50)]
    for conn, count in zip(conns, counts, strict=True):
        for _ in range(count):
            desk.send(conn, publish(b"t", b"x", qos=0))
    steps, found = measured(desk, places)
    assert steps >= 50 // places
    expected = sorted(zip(counts, conns, strict=True), reverse=True)[: Loudest.MOST]
    assert found == [(conn, count) for count, conn in expected]


def test_who_publishes_is_louder_than_who_is_sent_more(desk: Desk) -> None:
    publisher, receiver = desk.open(b"p"), desk.open(b"r")
    desk.send(publisher, publish(b"t", b"x", qos=0) * 2)
    for _ in range(5):
        desk.answer(push(b"{r}_inbox", transient(record(b"1", qos=0))))
    assert measured(desk, 100) == (1, [(publisher, 2), (receiver, 5)])


def test_open_connections_are_listed_page_by_page(desk: Desk) -> None:
    conns = {desk.open(b"c%d" % number) for number in range(10)}
    gone = conns.pop()
    desk.engine.close(gone)
    found: list[int] = []
    place = 0
    while True:
        place, rows = desk.engine.traffic(place, 3)
        assert len(rows) <= 3
        found += [row.conn for row in rows]
        if not place:
            break
    assert sorted(found) == sorted(conns)
