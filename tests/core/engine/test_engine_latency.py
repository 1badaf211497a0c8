"""How long a publisher waits for its acknowledgement is measured: one publish of a connection at a time."""

import pytest

from holdmq.core.engine import EngineSettings
from tests.core.engine.engine_talk import Desk, page, publish

BOUNDS_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000)


@pytest.fixture
def desk() -> Desk:
    return Desk()


def measured(desk: Desk) -> tuple[int, dict[int, int]]:
    """The sum in ms, and how many were measured below each bound; 0: above all."""
    counters = desk.engine.counters()
    total, below = counters["acknowledge_ms_sum"], counters["acknowledge_below_ms"]
    assert isinstance(total, int)
    assert isinstance(below, tuple)
    return total, {bound: count for bound, count in zip((*BOUNDS_MS, 0), below, strict=True) if count}


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize(("took_ms", "bound"), [(0, 1), (1, 2), (19, 20), (20, 50), (4999, 5000), (5000, 0)])
def test_the_time_from_a_publish_to_its_acknowledgement_is_measured(qos: int, took_ms: int, bound: int) -> None:
    desk = Desk()
    conn = desk.open()
    desk.send(conn, publish(b"t", b"x", qos=qos, packet_id=7))
    desk.commands()
    desk.now_ms += took_ms
    desk.answer(b":1\r\n")
    assert measured(desk) == (took_ms, {bound: 1})


def test_of_publishes_at_the_same_time_the_first_is_measured(desk: Desk) -> None:
    conn, other = desk.open(b"c"), desk.open(b"d")
    for client in (conn, other):
        desk.send(client, b"".join(publish(b"t", b"x", qos=1, packet_id=number) for number in (7, 8, 9)))
    desk.commands()
    desk.now_ms += 3
    desk.answer(b":1\r\n" * 6)
    assert measured(desk) == (6, {5: 2})
    desk.send(conn, publish(b"t", b"x", qos=1, packet_id=8))
    desk.commands()
    desk.answer(b":1\r\n")
    assert measured(desk) == (6, {1: 1, 5: 2})


def test_a_publish_without_an_acknowledgement_is_not_measured(desk: Desk) -> None:
    conn = desk.open()
    desk.send(conn, publish(b"t", b"x", qos=0))
    desk.commands()
    desk.answer(b":1\r\n")
    assert measured(desk) == (0, {})


def test_a_loss_of_the_server_and_a_wait_for_replicas_count_in_full() -> None:
    desk = Desk(EngineSettings(wait_replicas=1, wait_timeout_ms=100))
    conn = desk.open()
    desk.send(conn, publish(b"t", b"x", qos=1, packet_id=7))
    desk.commands()
    desk.engine.server_lost()
    desk.now_ms += 100
    desk.engine.server_restored(desk.now_ms)
    assert [command[0] for command in desk.commands()] == [b"TOPIC.PUBLISH", b"SESSION.FETCH", b"WAIT"]
    desk.now_ms += 50
    desk.answer(b":1\r\n", page([]))
    assert measured(desk) == (0, {})
    desk.now_ms += 25
    desk.answer(b":1\r\n")
    assert measured(desk) == (175, {200: 1})


def test_a_clock_that_is_set_back_measures_nothing_enormous(desk: Desk) -> None:
    conn = desk.open()
    desk.send(conn, publish(b"t", b"x", qos=1, packet_id=7))
    desk.commands()
    desk.now_ms -= 5_000
    desk.answer(b":1\r\n")
    assert measured(desk) == (0, {1: 1})
