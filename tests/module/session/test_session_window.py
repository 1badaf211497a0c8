"""What is in flight: FETCH … WINDOW and INFLIGHT, ACK … NEXT, SENT, and what a taken over session counts as sent."""

import pytest
import redis

from tests.module.sessions_support import Inbox, Session, payloads, publish, unchanged
from tests.support import Server, eventually

QUEUED, IN_FLIGHT, RELEASED = 0, 1, 2


@pytest.fixture
def session(client: redis.Redis) -> Session:
    return Session(client)


def test_a_window_hands_out_what_follows_until_so_many_are_unacknowledged(session: Session) -> None:
    session.add(*"abcdef")
    assert session.fetch(window=2).values == [b"a", b"b"]
    assert session.fetch(window=2).entries == []
    assert session.fetch(window=3).values == [b"c"]
    assert session.ack(2) == 1
    assert session.fetch(window=3).values == [b"d"]
    assert session.fetch(window=3).entries == []
    assert session.ack(1, 3, 4) == 3
    page = session.fetch(window=65535)
    assert (page.values, page.more) == ([b"e", b"f"], 0)


def test_a_window_says_whether_more_waits_behind_it(session: Session) -> None:
    session.add(*"abc")
    assert session.fetch(window=2).more == 1
    assert session.fetch(window=2).more == 1
    session.ack(1)
    assert session.fetch(window=2).more == 0
    assert session.fetch(window=2).more == 0


def test_a_window_with_a_count_or_a_size_hands_out_no_more_than_that(session: Session) -> None:
    session.add(*(b"x" * 100 for _ in range(10)))
    assert session.fetch(window=8, count=3).packet_ids == [1, 2, 3]
    assert session.fetch(window=8, size=150).packet_ids == [4, 5]
    assert session.fetch(window=8, size=1).packet_ids == [6]
    assert session.fetch(window=8, count=100).packet_ids == [7, 8]


def test_in_flight_is_what_was_handed_out_and_not_acknowledged(session: Session) -> None:
    session.add(*"abcd")
    session.fetch(window=3)
    session.ack(2)
    assert session.fetch(in_flight=True).values == [b"a", b"c"]
    assert session.fetch(in_flight=True).states == [IN_FLIGHT, IN_FLIGHT]
    assert session.fetch().states == [IN_FLIGHT, IN_FLIGHT, QUEUED]
    assert session.fetch(in_flight=True, count=1).values == [b"a"]
    assert session.fetch(in_flight=True, count=1).more == 1
    assert session.fetch(in_flight=True).more == 0


def test_fetching_messages_in_flight_sends_no_queued_message(session: Session, client: redis.Redis) -> None:
    session.add("a", "b")
    with unchanged(client):
        assert session.fetch(in_flight=True).entries == []
        assert session.fetch(after=0).states == [QUEUED, QUEUED]
    session.fetch(window=1)
    with unchanged(client):
        assert session.fetch(in_flight=True).values == [b"a"]
        assert session.fetch(window=1).entries == []


def test_an_acknowledgement_brings_the_next_messages_in_the_same_step(session: Session) -> None:
    session.add(*"abcde")
    session.fetch(window=2)
    removed, page = session.ack_next(1, 1)
    assert (removed, page.values, page.more) == (1, [b"c"], 1)
    removed, page = session.ack_next(5, 2, 3)
    assert (removed, page.values, page.more) == (2, [b"d", b"e"], 0)
    removed, page = session.ack_next(5, 4, 5, 99)
    assert (removed, page.entries, page.more) == (2, [], 0)


def test_a_backlog_drains_in_order_at_the_clients_pace(session: Session) -> None:
    sent = [str(number).encode() for number in range(1000)]
    session.add(*sent)
    page = session.fetch(window=20)
    got = list(page.entries)
    waiting = [entry.packet_id for entry in page.entries]
    while waiting:
        acknowledged, waiting = waiting[:7], waiting[7:]
        removed, page = session.ack_next(len(acknowledged), *acknowledged)
        assert removed == len(acknowledged)
        waiting += page.packet_ids
        got += page.entries
        assert len(waiting) <= 20
    assert [entry.value for entry in got] == sent
    assert session.info()["messages"] == 0


def test_new_messages_go_after_the_backlog(session: Session, client: redis.Redis) -> None:
    session.subscribe(("t", 1))
    for payload in ("a", "b", "c"):
        publish(client, "t", payload)
    assert payloads(session.fetch(window=2).entries) == [b"a", b"b"]
    publish(client, "t", "d")
    removed, page = session.ack_next(9, 1, 2)
    assert (removed, payloads(page.entries)) == (2, [b"c", b"d"])


def test_what_expires_in_flight_is_dropped_like_anything_else(session: Session) -> None:
    session.add(*"abc")
    session.fetch(window=2)
    session.expire_message(1)
    page = session.fetch(in_flight=True)
    assert (page.values, page.expired) == ([b"b"], 1)
    assert session.fetch(window=2).values == [b"c"]


def test_a_window_goes_over_what_expired_before_it_was_handed_out(session: Session) -> None:
    session.add(*"abcde")
    session.fetch(window=1)
    session.expire_message(2)
    session.expire_message(3)
    page = session.fetch(window=2)
    assert (page.values, page.expired) == ([b"d"], 2)


def test_sent_marks_what_was_delivered_by_the_inbox(server: Server, session: Session, client: redis.Redis) -> None:
    session.subscribe(("t", 1))
    with Inbox(server) as inbox:
        for payload in ("a", "b", "c"):
            publish(client, "t", payload)
        second = inbox.take()[1]
    assert session.sent(second.serial) == b"OK"
    assert session.fetch().states == [IN_FLIGHT, IN_FLIGHT, QUEUED]
    with unchanged(client):
        assert session.sent(1) == b"OK"
        assert session.sent(0) == b"OK"
    assert session.fetch().states == [IN_FLIGHT, IN_FLIGHT, QUEUED]
    assert payloads(session.fetch(window=3).entries) == [b"c"]


def test_a_serial_that_nobody_was_given_does_not_hide_later_messages(session: Session) -> None:
    session.add("a", "b")
    session.sent(2**53)
    session.add("c")
    assert session.fetch().states == [IN_FLIGHT, IN_FLIGHT, QUEUED]
    assert session.fetch(window=10).values == [b"c"]


@pytest.mark.parametrize("opened", [False, True])
def test_sent_of_an_empty_queue_changes_no_later_message(session: Session, opened: bool) -> None:
    if opened:
        session.open(expiry=60)
    session.sent(5)
    session.add("a")
    session.ack(1)
    session.sent(1)
    session.add("b")
    assert session.fetch(window=10).values == [b"b"]


def test_close_reports_what_was_handed_out(session: Session) -> None:
    epoch = session.open(expiry=60).epoch
    session.add("a", "b", "c")
    session.close(epoch, sent=2)
    session.open(expiry=60)
    assert session.fetch().states == [IN_FLIGHT, IN_FLIGHT, QUEUED]
    assert session.fetch(in_flight=True).values == [b"a", b"b"]
    assert session.fetch(window=5).values == [b"c"]


def test_close_takes_its_options_in_any_order(session: Session, client: redis.Redis) -> None:
    epoch = session.open(expiry=60).epoch
    session.add("a", "b")
    client.execute_command("SESSION.CLOSE", "{c}", "EPOCH", epoch, "SENT", 1, "EXPIRY", 30)
    assert session.info()["expiry"] == 30
    assert session.fetch().states == [IN_FLIGHT, QUEUED]


def test_a_session_that_was_not_closed_counts_all_of_its_queue_as_handed_out(session: Session) -> None:
    session.open(expiry=60)
    session.add("a", "b")
    epoch = session.open("another", expiry=60).epoch
    assert session.fetch().states == [IN_FLIGHT, IN_FLIGHT]
    session.add("c")
    assert session.fetch(window=10, epoch=epoch).values == [b"c"]


def test_sent_names_another_window(session: Session, client: redis.Redis) -> None:
    epoch = session.open(expiry=60, window=1).epoch
    session.add(*"abcdef")
    assert session.sent(1, epoch=epoch, window=4) == b"OK"
    with unchanged(client), pytest.raises(redis.ResponseError, match="FENCED"):
        session.sent(1, epoch=epoch - 1, window=6)
    session.open("another", expiry=60, window=1)
    assert client.hget("{c}_session", "most_sent") == b"1"
    assert session.fetch().states == [IN_FLIGHT] * 4 + [QUEUED] * 2


def test_sent_names_no_window_of_a_session_that_nobody_has_open(session: Session, client: redis.Redis) -> None:
    session.add("a")
    session.sent(1)
    with unchanged(client):
        assert session.sent(1, window=4) == b"OK"
    session.close(session.open(expiry=60).epoch)
    with unchanged(client):
        assert session.sent(1, window=4) == b"OK"


def test_with_a_window_only_the_oldest_of_its_queue_count_as_handed_out(session: Session, client: redis.Redis) -> None:
    session.open(expiry=60, window=3)
    assert client.hget("{c}_session", "most_sent") == b"3"
    session.add(*"abcdefgh")
    assert session.ack(2, 3) == 2  # out of order
    session.open("another", expiry=60, window=4)
    assert session.fetch().states == [IN_FLIGHT] * 3 + [QUEUED] * 3  # a d e
    session.ack(1, 4)
    session.open("third", expiry=60)
    assert client.hget("{c}_session", "most_sent") is None  # each OPEN sets it anew
    assert session.fetch().states == [IN_FLIGHT] * 4  # e f g h
    session.add("i")
    session.open("fourth", expiry=60, window=65535)
    assert session.fetch().states == [IN_FLIGHT] * 5  # as before there was a window


def test_a_smaller_window_takes_nothing_back_that_was_in_flight(session: Session) -> None:
    session.open(expiry=60, window=5)
    session.add(*"abcdef")
    session.open("another", expiry=60, window=1)
    session.open("third", expiry=60, window=1)
    assert session.fetch().states == [IN_FLIGHT] * 5 + [QUEUED]


def test_a_lost_owner_leaves_no_more_than_the_window_in_flight(session: Session, client: redis.Redis) -> None:
    client.execute_command("SESSION.OWNER", "bridge-1", "LEASE", 1)
    session.open("bridge-1", expiry=60, window=2)
    session.add(*"abcd")
    eventually(lambda: session.info()["connected"] == 0, 10, "a session whose lease is over")
    assert session.fetch().states == [IN_FLIGHT, IN_FLIGHT, QUEUED, QUEUED]


def test_a_session_that_was_closed_counts_nothing_more_as_handed_out(session: Session) -> None:
    epoch = session.open(expiry=60).epoch
    session.add("a", "b")
    session.fetch(window=1)
    session.close(epoch)
    session.add("c")
    session.open(expiry=60)
    assert session.fetch().states == [IN_FLIGHT, QUEUED, QUEUED]


def test_a_clean_start_drops_messages_in_flight(session: Session) -> None:
    session.open(expiry=60)
    session.add("a", "b")
    session.fetch(window=2)
    session.open(clean=True, expiry=60)
    session.add("c", "d")
    assert session.fetch().states == [QUEUED, QUEUED]
    assert session.fetch(window=1).values == [b"c"]


def test_in_flight_continues_over_the_end_of_the_packet_ids(session: Session, client: redis.Redis) -> None:
    client.set("{c}_last_packet_id", 65533)
    session.add(*"abcd")
    assert session.fetch(window=3).packet_ids == [65534, 65535, 1]
    removed, page = session.ack_next(1, 65534)
    assert (removed, page.packet_ids) == (1, [2])
    assert session.fetch(in_flight=True).packet_ids == [65535, 1, 2]


def test_what_is_in_flight_is_not_trimmed_and_new_messages_are_told_so(session: Session) -> None:
    session.add(*"abc", limit=3)
    session.fetch(window=2)
    assert session.add("d", limit=3) == ([4], 4, 1, 0)
    assert session.fetch().values == [b"a", b"b", b"d"]
    session.fetch(window=3)
    assert session.add("e", limit=3) == ([0], 4, 1, 0)
    session.ack(1)
    assert session.add("f", limit=3) == ([5], 5, 0, 0)
