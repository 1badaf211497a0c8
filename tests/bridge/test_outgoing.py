"""Which queued messages go out, in which order, and what is asked of the server for it."""

from typing import Any

from holdmq.core import Delivery
from holdmq_bridge.counters import Counters
from holdmq_bridge.outgoing import Outgoing
from holdmq_bridge.settings import Settings
from tests.bridge import packets
from tests.bridge.packets import Published, read_publish


class Bench:
    """An Outgoing with its output, and a queue to take messages from."""

    def __init__(self, max_inflight: int = 4, max_ready: int = 4, **settings: Any) -> None:
        self.output: list[bytes] = []
        self.counters = Counters()
        self.outgoing = Outgoing(
            Settings(max_inflight=max_inflight, max_ready=max_ready, **settings), self.counters, self.output
        )

    def push(self, serial: int, previous: int) -> None:
        body = packets.record("t", b"%d" % serial)
        data = packets.delivery(1, body, pid=serial, serial=serial, previous=previous)
        self.outgoing.queued(Delivery.decode(data))

    def page(self, *serials: int, more: bool = False) -> None:
        entries: list[list[Any]] = [[s, s, 0, packets.record("t", b"%d" % s)] for s in serials]
        self.outgoing.fetched(entries, more)

    def wants(self) -> tuple[int, int] | None:
        """Serial and count of the fetch that is due."""
        due = self.outgoing.wants_fetch()
        return None if due is None else due[:2]

    def acknowledge(self, *packet_ids: int) -> None:
        for packet_id in packet_ids:
            assert self.outgoing.acknowledged(packet_id)

    def sent(self) -> list[Published]:
        taken = [read_publish(packet) for packet in self.output]
        self.output.clear()
        return taken

    def serials(self) -> list[int]:
        return [int(published.payload) for published in self.sent()]


def test_pushes_that_follow_each_other_are_sent_at_once() -> None:
    bench = Bench()
    bench.push(1, 0)
    bench.push(2, 1)
    assert bench.serials() == [1, 2]
    assert bench.wants() is None


def test_a_push_whose_predecessor_was_acknowledged_is_sent_at_once() -> None:
    bench = Bench()
    bench.push(5, 0)
    bench.outgoing.acknowledged(5)
    bench.push(6, 0)
    assert bench.serials() == [5, 6]


def test_a_gap_is_fetched_and_not_skipped() -> None:
    bench = Bench()
    bench.push(1, 0)
    bench.push(3, 2)
    assert bench.serials() == [1]
    assert bench.wants() == (1, 4)
    bench.page(2, 3)
    assert bench.serials() == [2, 3]
    assert bench.wants() is None
    bench.push(4, 3)
    assert bench.serials() == [4]


def test_a_push_that_a_fetch_has_brought_already_is_not_sent_twice() -> None:
    bench = Bench()
    bench.push(1, 0)
    bench.push(3, 2)
    bench.wants()
    bench.push(4, 3)  # executed before the fetch
    bench.page(2, 3, 4)
    bench.push(4, 3)
    assert bench.serials() == [1, 2, 3, 4]


def test_behind_a_full_window_messages_wait_in_a_short_line() -> None:
    bench = Bench(max_inflight=2, max_ready=3)
    for serial in range(1, 6):
        bench.push(serial, serial - 1)
    assert bench.serials() == [1, 2]
    assert bench.wants() is None
    bench.acknowledge(1)
    assert bench.serials() == [3]
    bench.acknowledge(3, 2)
    assert bench.serials() == [4, 5]


def test_behind_a_full_line_messages_stay_in_the_queue_until_half_of_it_is_free() -> None:
    bench = Bench(max_inflight=2, max_ready=4)
    for serial in range(1, 10):
        bench.push(serial, serial - 1)
    assert bench.serials() == [1, 2]
    assert bench.wants() is None
    bench.acknowledge(1, 2)
    assert bench.serials() == [3, 4]
    assert bench.wants() == (6, 2)
    bench.page(7, 8, more=True)
    assert bench.serials() == []
    bench.acknowledge(3, 4, 5, 6)
    assert bench.serials() == [5, 6, 7, 8]
    assert bench.wants() == (8, 4)
    bench.page(9)
    bench.acknowledge(7)
    assert bench.serials() == [9]


def test_the_line_is_bounded_in_bytes_too() -> None:
    bench = Bench(max_inflight=1, max_ready=100, max_ready_bytes=1024)
    bench.push(1, 0)
    big = packets.record("t", b"2" * 2000)
    bench.outgoing.queued(Delivery.decode(packets.delivery(1, big, pid=2, serial=2, previous=1)))
    assert not bench.outgoing.behind
    bench.push(3, 2)
    assert bench.outgoing.behind


def test_pages_are_asked_for_until_nothing_follows() -> None:
    bench = Bench(max_inflight=100, max_ready=10)
    bench.outgoing.resume()
    assert bench.wants() == (0, 10)
    assert bench.wants() is None  # one at a time
    bench.page(1, 2, more=True)
    assert bench.wants() == (2, 10)
    bench.page(3)
    assert bench.wants() is None
    assert bench.serials() == [1, 2, 3]


def test_what_was_handed_out_before_carries_dup() -> None:
    bench = Bench()
    bench.outgoing.resume()
    bench.wants()
    body = packets.record("t", b"p")
    bench.outgoing.fetched([[1, 1, 1, body], [2, 2, 0, body]], more=False)
    assert [published.dup for published in bench.sent()] == [True, False]


def test_a_released_message_is_answered_with_pubrel_and_counts_in_the_window() -> None:
    bench = Bench(max_inflight=1)
    bench.outgoing.resume()
    bench.wants()
    released = b"\xfa\x12" + bytes(7)
    bench.outgoing.fetched([[7, 7, 2, released], [8, 8, 0, packets.record("t", b"8")]], more=False)
    assert bench.output == [packets.pubrel(7)]
    bench.output.clear()
    bench.acknowledge(7)
    assert list(bench.outgoing.take_acks() or {}) == [7]
    assert bench.serials() == [8]


def test_a_value_that_is_no_message_does_not_stall_the_queue() -> None:
    bench = Bench()
    bench.outgoing.resume()
    bench.wants()
    bench.outgoing.fetched([[1, 1, 0, b"somebody's own"], [2, 2, 0, packets.record("t", b"2")]], more=False)
    assert bench.serials() == [2]
    assert bench.counters.messages_unreadable == 1
    assert not bench.outgoing.acknowledged(1)


def test_nothing_is_sent_to_a_client_that_does_not_read() -> None:
    bench = Bench()
    bench.outgoing.writable = False
    bench.push(1, 0)
    bench.outgoing.transient(Delivery.decode(packets.delivery(2, packets.record("t", b"0", qos=0), qos=0)))
    assert bench.output == []
    assert bench.counters.messages_dropped_qos0 == 1
    assert bench.wants() is None
    bench.outgoing.writable = True
    assert bench.wants() is None  # it waits in the line
    bench.outgoing.send_ready()
    assert bench.serials() == [1]


def test_after_a_loss_what_is_in_flight_or_acknowledged_is_not_sent_again() -> None:
    bench = Bench(max_inflight=10)
    for serial in range(1, 5):
        bench.push(serial, serial - 1)
    bench.outgoing.acknowledged(2)
    bench.outgoing.take_acks()
    bench.serials()
    bench.outgoing.server_lost()
    bench.outgoing.acknowledged(3)
    assert bench.outgoing.take_acks() is None  # not before the server has shown that it means the same message
    assert bench.wants() == (0, 4 + 4)
    bench.page(1, 2, 3, 4, 5)
    assert bench.serials() == [5]
    assert list(bench.outgoing.take_acks() or {}) == [2, 3]
    bench.push(6, 5)
    assert bench.serials() == [6]


def test_what_the_server_has_no_more_is_not_acknowledged_to_it() -> None:
    bench = Bench(max_inflight=10)
    for serial in range(1, 4):
        bench.push(serial, serial - 1)
    bench.outgoing.acknowledged(1)
    bench.outgoing.server_lost()
    bench.wants()
    bench.page(2)  # the first was removed, its confirmation lost; the third is gone
    assert bench.outgoing.acknowledged(2)
    assert bench.outgoing.acknowledged(3)
    assert list(bench.outgoing.take_acks() or {}) == [2]


def test_a_new_message_under_an_identifier_that_the_client_still_owes_is_a_conflict() -> None:
    bench = Bench(max_inflight=10)
    bench.push(1, 0)
    bench.serials()
    bench.outgoing.server_lost()
    bench.wants()
    bench.page()  # the server has lost it
    bench.push(1, 0)
    assert bench.outgoing.conflict
    assert bench.output == []


def test_another_message_under_an_identifier_of_ours_is_a_conflict() -> None:
    bench = Bench(max_inflight=10)
    bench.push(1, 0)
    bench.push(2, 1)
    bench.serials()
    bench.outgoing.acknowledged(2)
    bench.outgoing.server_lost()
    bench.wants()
    bench.outgoing.fetched([[1, 1, 0, packets.record("t", b"1")], [2, 2, 0, packets.record("t", b"new")]], more=False)
    assert bench.outgoing.conflict
    assert bench.output == []
    assert bench.outgoing.take_acks() is None


def test_a_full_window_does_not_keep_the_check_back() -> None:
    bench = Bench(max_inflight=2)
    bench.push(1, 0)
    bench.push(2, 1)
    bench.serials()
    bench.outgoing.server_lost()
    assert bench.wants() == (0, 4 + 2)
    bench.page(1, 2, more=True)
    bench.acknowledge(1, 2)
    assert list(bench.outgoing.take_acks() or {}) == [1, 2]
    assert bench.wants() == (2, 4 + 2)


def test_a_confirmed_acknowledgement_is_not_told_again() -> None:
    bench = Bench()
    bench.push(1, 0)
    bench.outgoing.acknowledged(1)
    acks = bench.outgoing.take_acks()
    assert acks is not None
    bench.outgoing.acks_confirmed(acks)
    bench.outgoing.server_lost()
    bench.wants()
    bench.page()
    assert bench.outgoing.take_acks() is None


def test_a_failed_acknowledgement_is_told_again() -> None:
    bench = Bench()
    bench.push(1, 0)
    bench.outgoing.acknowledged(1)
    acks = bench.outgoing.take_acks()
    assert acks is not None
    bench.outgoing.acks_failed(acks)
    assert list(bench.outgoing.take_acks() or {}) == [1]


def test_a_repeated_or_strange_acknowledgement_counts_for_nothing() -> None:
    bench = Bench()
    bench.push(1, 0)
    assert bench.outgoing.acknowledged(1)
    assert not bench.outgoing.acknowledged(1)
    assert not bench.outgoing.acknowledged(9)


def test_a_server_that_numbers_new_messages_like_old_ones_is_followed() -> None:
    bench = Bench(max_inflight=10)
    bench.push(100, 99 - 99)
    bench.outgoing.acknowledged(100)
    bench.outgoing.acks_confirmed(bench.outgoing.take_acks() or {})
    bench.serials()
    bench.outgoing.server_lost()  # restored from an older state: it counts from 95 again
    bench.wants()
    bench.page(96, 97)
    assert bench.serials() == [96, 97]
    bench.push(98, 97)
    assert bench.serials() == [98]
