"""SESSION.ADD … PRODUCER: a batch that is sent again after a lost reply is not stored again."""

from collections.abc import Callable

import pytest
import redis

from tests.module.sessions_support import Session, unchanged
from tests.support import RawClient, ReplyError, Server

MOST_PRODUCERS = 1024
LARGEST_BATCH = 1000


@pytest.fixture
def session(client: redis.Redis) -> Session:
    return Session(client)


def test_a_repeated_batch_is_answered_as_it_was_and_changes_nothing(session: Session, client: redis.Redis) -> None:
    session.add("other")
    first = session.add_once("p", 1, "a", "b", "c")
    assert first == ([2, 3, 4], 4, 0, 0)
    session.add("later")
    session.ack(3)
    with unchanged(client):
        assert session.add_once("p", 1, "a", "b", "c") == first
    assert session.fetch().values == [b"other", b"a", b"c", b"later"]


def test_an_older_batch_is_answered_without_identifiers(session: Session, client: redis.Redis) -> None:
    session.add_once("p", 1, "a")
    session.add_once("p", 2, "b")
    with unchanged(client):
        assert session.add_once("p", 1, "a").packet_ids == []
    assert session.fetch().values == [b"a", b"b"]


def test_a_newer_batch_is_stored_also_if_numbers_are_left_out(session: Session) -> None:
    for sequence in (1, 2, 5, 2**63 - 1):
        assert len(session.add_once("p", sequence, str(sequence)).packet_ids) == 1
    assert len(session.fetch().entries) == 4


def test_a_batch_is_refused_if_the_batch_before_it_is_not_stored(session: Session, client: redis.Redis) -> None:
    def add(sequence: int, after: int) -> int:
        words = ("PRODUCER", "p", sequence, "AFTER", after, "MESSAGES", str(sequence))
        return len(client.execute_command("SESSION.ADD", session.key, *words)[0])

    with unchanged(client), pytest.raises(redis.ResponseError, match=r"^GAP the batch follows number 3 .* here is 0;"):
        add(4, 3)
    session.add_once("p", 3, "3")
    assert (add(4, 3), add(7, 2), add(4, 3)) == (1, 1, 0)
    with unchanged(client), pytest.raises(redis.ResponseError, match=r"^GAP .* here is 7;"):
        add(9, 8)
    assert session.fetch().values == [b"3", b"4", b"7"]
    with pytest.raises(redis.ResponseError, match="AFTER is '9'; expected a whole number from 1 to 8"):
        add(9, 9)


def test_producers_count_for_themselves_and_so_do_sessions(session: Session, client: redis.Redis) -> None:
    session.add_once("p", 5, "a")
    assert session.add_once("q", 1, "b").packet_ids == [2]
    assert session.add_once(b"\x00 any bytes", 1, "c").packet_ids == [3]
    assert Session(client, "{other}").add_once("p", 5, "d").packet_ids == [1]


def test_what_was_trimmed_at_once_is_reported_again(session: Session, client: redis.Redis) -> None:
    first = session.add_once("p", 1, *"abcde", limit=2)
    assert first.trimmed == 3
    with unchanged(client):
        assert session.add_once("p", 1, *"abcde", limit=2) == first


def test_a_batch_that_was_refused_may_be_sent_again(server: Server, session: Session) -> None:
    with RawClient(server.port) as raw, pytest.raises(ReplyError, match="TTL"):
        raw.call("SESSION.ADD", "{c}", "PRODUCER", "p", 1, "TTL", 0, "a")
    assert session.add_once("p", 1, "a").packet_ids == [1]


def test_batches_with_a_time_to_live_for_each_message_may_have_a_producer(
    session: Session, client: redis.Redis
) -> None:
    command = ("SESSION.ADD", "{c}", "PRODUCER", "p", 1, "EXPIRING", 5, "a", "", "b")
    first = client.execute_command(*command)
    with unchanged(client):
        assert client.execute_command(*command) == first
    assert session.fetch().values == [b"a", b"b"]


def test_what_producers_sent_is_remembered_as_long_as_the_queue_lives(session: Session, client: redis.Redis) -> None:
    session.add_once("p", 1, "a")
    assert client.pttl("{c}_producers") >= client.pttl("{c}_messages_1")
    session.open(expiry=10, lease=10)
    assert client.execute_command("PEXPIRETIME", "{c}_producers") == client.execute_command(
        "PEXPIRETIME", "{c}_session"
    )
    session.add_once("p", 2, "b")
    assert 0 < client.pttl("{c}_producers") <= 20_000
    session.drop()
    assert session.add_once("p", 1, "a").packet_ids == [1]


def test_wrong_producers_are_refused_by_name(server: Server, session: Session, client: redis.Redis) -> None:
    session.add_once("p", 1, "a")
    wrong: list[tuple[str | int, ...]] = [
        ("PRODUCER", "p", 0, "a"),
        ("PRODUCER", "p", -1, "a"),
        ("PRODUCER", "p", "x", "a"),
        ("PRODUCER", "p", 2**63, "a"),
        ("PRODUCER", "p"),
        ("PRODUCER", "p", 2, *("x" for _ in range(LARGEST_BATCH + 1))),
    ]
    with RawClient(server.port) as raw:
        for rest in wrong:
            with unchanged(client), pytest.raises(ReplyError, match=r"^ERR .*PRODUCER"):
                raw.call("SESSION.ADD", "{c}", *rest)
        with unchanged(client), pytest.raises(ReplyError, match=r"^ERR payload"):
            raw.call("SESSION.ADD", "{c}", "PRODUCER", "p", 2)
    assert len(session.add_once("p", 2, *("x" for _ in range(LARGEST_BATCH))).packet_ids) == LARGEST_BATCH


def test_a_session_has_room_for_so_many_producers(session: Session, client: redis.Redis) -> None:
    for number in range(MOST_PRODUCERS):
        session.add_once(f"p{number}", 1, "a")
    with unchanged(client), pytest.raises(redis.ResponseError, match=r"^FULL .*\{c\}"):
        session.add_once("one more", 1, "a")
    assert session.add_once("p0", 2, "b").packet_ids == [MOST_PRODUCERS + 1]


@pytest.mark.parametrize(
    "line", ["", "x", "5", "5 5 5", "99999999999999999999 1 0 0 1", "-1 -1 -1 -1 -1", "1 1 0 0 " + "9," * 5000]
)
def test_what_others_wrote_into_the_producers_does_no_harm(session: Session, client: redis.Redis, line: str) -> None:
    client.hset("{c}_producers", "p", line)
    session.add_once("p", 2**62, "a")
    assert session.add_once("p", 2**62, "a").packet_ids == [1]
    assert session.fetch().values == [b"a"]


def test_a_key_of_another_type_is_named(session: Session, client: redis.Redis) -> None:
    client.set("{c}_producers", "x")
    with unchanged(client), pytest.raises(redis.ResponseError, match=r"^WRONGTYPE .*\{c\}_producers"):
        session.add_once("p", 1, "a")


def test_a_repeated_batch_is_known_after_a_crash(fresh_server: Callable[..., Server]) -> None:
    server = fresh_server(aof=True, config=["appendfsync always"])
    first = Session(server.client()).add_once("p", 1, "a", "b")
    server.kill()
    server.restart()
    session = Session(server.client())
    assert session.add_once("p", 1, "a", "b") == first
    assert session.fetch().values == [b"a", b"b"]
