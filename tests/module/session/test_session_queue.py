"""SESSION.ADD, FETCH, ACK, LAST and INFO: the queue of one session."""

import pytest
import redis

from tests.module.sessions_support import (
    DEFAULT_TTL_S,
    MAX_PACKET_ID,
    Session,
    expire_now,
    now_ms,
    unchanged,
)
from tests.support import RawClient, Server, eventually


@pytest.fixture
def session(client: redis.Redis) -> Session:
    return Session(client)


# --- Adding -----------------------------------------------------------------------------------------------------------


def test_messages_get_the_next_packet_ids_in_the_order_of_the_payloads(session: Session) -> None:
    assert session.add("a", "b", "c") == ([1, 2, 3], 3, 0, 0)
    assert session.add("d") == ([4], 4, 0, 0)
    assert session.last() == 4
    page = session.fetch()
    assert page.values == [b"a", b"b", b"c", b"d"]
    assert [(entry.serial, entry.packet_id, entry.state) for entry in page.entries] == [
        (number, number, 0) for number in (1, 2, 3, 4)
    ]


def test_the_queue_is_plain_keys(session: Session, client: redis.Redis) -> None:
    session.add("a", b"\x00\xff\r\n")
    assert client.zrange("{c}_messages", 0, -1, withscores=True) == [(b"{c}_messages_1", 1.0), (b"{c}_messages_2", 2.0)]
    assert client.get("{c}_messages_2") == b"\x00\xff\r\n"
    assert client.get("{c}_last_packet_id") == b"2"
    assert session.keys() == {b"{c}_messages", b"{c}_messages_1", b"{c}_messages_2", b"{c}_last_packet_id"}


@pytest.mark.parametrize("batch", [1, 7, 40])
def test_a_queue_that_grows_is_kept_as_a_tree_of_nothing_but_its_references(
    session: Session, client: redis.Redis, batch: int
) -> None:
    for first in range(0, 70, batch):
        session.add(*(f"m{first + i}" for i in range(batch)))
    added = session.last()
    assert client.object("encoding", "{c}_messages") == b"skiplist"
    assert client.zrange("{c}_messages", 0, -1, withscores=True) == [
        (f"{{c}}_messages_{number}".encode(), float(number)) for number in range(1, added + 1)
    ]


@pytest.mark.parametrize(
    "payload", [b"", b"\x00", b"\xff" * 70000, b"MESSAGES", b"LIMIT"], ids=["empty", "nul", "long", "word", "option"]
)
def test_a_payload_comes_back_as_it_went_in(session: Session, payload: bytes) -> None:
    session.add(payload)
    assert session.fetch().values == [payload]


def test_payloads_need_no_messages_before_them_unless_they_read_as_an_option(
    session: Session, client: redis.Redis
) -> None:
    client.execute_command("SESSION.ADD", "{c}", "a", "LIMIT", "TTL", "EXPIRING")
    client.execute_command("SESSION.ADD", "{c}", "limit", "5", "ttl", "9", "messages", "MESSAGES", "LIMIT", "x")
    assert session.fetch().values == [b"TTL", b"EXPIRING", b"MESSAGES", b"LIMIT", b"x"]


def test_two_sessions_have_queues_of_their_own(client: redis.Redis) -> None:
    one, other, prefixed = Session(client, "{a}"), Session(client, "{b}"), Session(client, "prefix:{a}")
    assert one.add("1", "2").packet_ids == [1, 2]
    assert other.add("3").packet_ids == [1]
    assert prefixed.add("4").packet_ids == [1]
    assert one.fetch().values == [b"1", b"2"]
    assert other.fetch().values == [b"3"]
    assert prefixed.fetch().values == [b"4"]


def test_databases_have_sessions_of_their_own(server: Server) -> None:
    first, second = Session(server.client()), Session(server.client(db=1))
    first.add("in 0")
    assert second.fetch().values == []
    second.add("in 1", "more")
    assert first.fetch().values == [b"in 0"]
    assert second.last() == 2


# --- Packet ids and serials -------------------------------------------------------------------------------------------


def test_packet_ids_wrap_at_65535_and_serials_continue(session: Session, client: redis.Redis) -> None:
    client.set("{c}_last_packet_id", 65534)
    assert session.add("a", "b", "c") == ([65535, 1, 2], 65537, 0, 0)
    assert client.zrange("{c}_messages", 0, -1, withscores=True) == [
        (b"{c}_messages_65535", 65535.0),
        (b"{c}_messages_1", 65536.0),
        (b"{c}_messages_2", 65537.0),
    ]
    assert session.last() == 2
    assert session.fetch().values == [b"a", b"b", b"c"]


def test_serials_continue_when_the_queue_ran_empty(session: Session) -> None:
    session.add("a", "b")
    session.ack(1, 2)
    assert session.info()["messages"] == 0
    assert session.add("c") == ([3], 3, 0, 0)


def test_serials_continue_when_the_queue_ran_empty_after_a_wrap(session: Session, client: redis.Redis) -> None:
    client.set("{c}_last_packet_id", 65534)
    assert session.add("a", "b", "c").serial == 65537
    session.ack(65535, 1, 2)
    assert not client.exists("{c}_messages")
    assert session.add("d") == ([3], 65538, 0, 0)


def test_serials_continue_when_the_newest_message_was_acknowledged(session: Session) -> None:
    session.add("a", "b")
    session.ack(2)
    assert session.add("c") == ([3], 3, 0, 0)
    assert session.fetch(after=2).values == [b"c"]
    session.ack(3)
    assert session.add("d", "e").serial == 5


def test_serials_continue_when_the_newest_message_expired(session: Session) -> None:
    session.add("a", "b")
    session.expire_message(2)
    assert session.fetch().expired == 1
    assert session.add("c") == ([3], 3, 0, 0)


def test_serials_continue_when_the_newest_message_after_a_wrap_was_acknowledged(
    session: Session, client: redis.Redis
) -> None:
    client.set("{c}_last_packet_id", 65533)
    session.add("a", "b", "c")
    session.ack(1)
    assert session.add("d") == ([2], 65537, 0, 0)


def test_serials_continue_over_many_wraps_with_an_empty_queue(session: Session, client: redis.Redis) -> None:
    last = 0
    for _ in range(4):
        client.set("{c}_last_packet_id", 65534, keepttl=True)
        added = session.add("a", "b")
        assert added.packet_ids == [65535, 1]
        assert added.serial > last
        last = added.serial
        session.ack(65535, 1)
    assert last == 4 * MAX_PACKET_ID + 1


def test_serials_continue_when_the_first_message_after_a_wrap_expires_long_before_the_others(
    session: Session, client: redis.Redis
) -> None:
    client.set("{c}_last_packet_id", 65534)
    session.add("a", "b", "c", ttl=1)
    last = session.add("d", ttl=100).serial
    eventually(lambda: not client.exists("{c}_messages_2"))
    assert session.fetch().values == [b"d"]
    # Whatever holds the number of rounds has to live as long as the queue and its counter.
    lives_until = {name: client.execute_command("PEXPIRETIME", name) for name in sorted(session.keys())}
    assert all(time == -1 or time >= now_ms(client) + 50000 for time in lives_until.values()), lives_until
    session.ack(3)
    assert session.add("e").serial > last


def test_a_packet_id_that_is_in_use_is_passed_over(session: Session, client: redis.Redis) -> None:
    session.add("a", "b", "c", "d")
    client.set("{c}_last_packet_id", 1, keepttl=True)
    session.ack(3)
    added = session.add("e", "f")
    assert added.packet_ids == [3, 5]
    page = session.fetch()
    assert page.values == [b"a", b"b", b"d", b"e", b"f"]
    assert page.serials == sorted(set(page.serials))
    assert page.serials[-1] == added.serial


def test_a_packet_id_whose_message_expired_is_free(session: Session, client: redis.Redis) -> None:
    session.add("a", "b", "c")
    session.expire_message(2)
    client.set("{c}_last_packet_id", 1, keepttl=True)
    assert session.add("d").packet_ids == [2]
    assert session.fetch().values == [b"a", b"c", b"d"]


def test_a_queue_whose_only_reference_is_replaced_keeps_its_expiry(session: Session, client: redis.Redis) -> None:
    session.open(expiry=100)
    session.add("a")
    session.expire_message(1)
    client.set("{c}_last_packet_id", 65535, keepttl=True)
    assert session.add("b").packet_ids == [1]
    assert 0 < client.pttl("{c}_messages") <= (100 + 3600) * 1000


def test_a_full_circle_of_65535_messages_is_kept_and_the_next_takes_the_place_of_the_oldest(session: Session) -> None:
    batch = [str(number).encode() for number in range(1, MAX_PACKET_ID + 1)]
    added = session.add(*batch, limit=MAX_PACKET_ID)
    assert added.packet_ids == list(range(1, MAX_PACKET_ID + 1))
    assert (added.serial, added.trimmed) == (MAX_PACKET_ID, 0)
    assert session.add("new", limit=MAX_PACKET_ID) == ([1], MAX_PACKET_ID + 1, 1, 0)
    assert session.fetch(count=1).values == [b"2"]
    assert session.fetch(after=MAX_PACKET_ID).values == [b"new"]
    assert session.drop() == MAX_PACKET_ID
    eventually(lambda: session.keys() == set(), what="the end of all messages")


# --- Times to live ----------------------------------------------------------------------------------------------------


def test_a_message_lives_as_long_as_its_ttl_says(session: Session, client: redis.Redis) -> None:
    before = now_ms(client)
    session.add("a", ttl=100)
    session.add("b")
    session.add_expiring((7, "c"), ("", "d"))
    after = now_ms(client)
    for packet_id, seconds in ((1, 100), (2, DEFAULT_TTL_S), (3, 7), (4, DEFAULT_TTL_S)):
        ends = client.execute_command("PEXPIRETIME", session.message(packet_id))
        assert before + seconds * 1000 <= ends <= after + seconds * 1000


def test_the_ttl_of_a_message_beats_that_of_the_batch(client: redis.Redis) -> None:
    client.execute_command("SESSION.ADD", "{c}", "TTL", 50, "EXPIRING", 7, "a", "", "b")
    assert 0 <= 7 - client.ttl("{c}_messages_1") <= 5
    assert 0 <= 50 - client.ttl("{c}_messages_2") <= 5


def test_the_default_ttl_is_a_setting(session: Session, client: redis.Redis) -> None:
    client.config_set("holdmq.session-ttl", 33)
    session.add("a")
    assert 0 <= 33 - client.ttl("{c}_messages_1") <= 5


def test_the_longest_ttl_is_accepted(session: Session, client: redis.Redis) -> None:
    session.add("a", ttl=2**31 - 1)
    assert client.ttl("{c}_messages_1") > 2**31 - 10
    assert client.ttl("{c}_messages") >= client.ttl("{c}_messages_1")


def test_an_expired_message_is_not_fetched_and_its_reference_goes(session: Session, client: redis.Redis) -> None:
    session.add_expiring((1, "short"), (100, "long"))
    eventually(lambda: not client.exists("{c}_messages_1"))
    page = session.fetch()
    assert (page.values, page.more, page.expired) == ([b"long"], 0, 1)
    assert client.zcard("{c}_messages") == 1
    assert session.fetch().expired == 0


def test_the_keys_of_a_queue_end_with_its_last_message_and_no_earlier(session: Session, client: redis.Redis) -> None:
    session.add("a", ttl=100)
    session.add("b", ttl=1000)
    session.add("c", ttl=10)
    last_message = client.execute_command("PEXPIRETIME", "{c}_messages_2")
    for name in ("{c}_messages", "{c}_last_packet_id"):
        ends = client.execute_command("PEXPIRETIME", name)
        assert last_message <= ends <= last_message + 100_000, name


def test_nothing_without_expiry_is_left_when_all_is_acknowledged(session: Session, client: redis.Redis) -> None:
    session.add("a", "b", ttl=100)
    session.ack(1, 2)
    assert session.keys() == {b"{c}_last_packet_id"}
    assert 0 < client.ttl("{c}_last_packet_id") <= 200


def test_a_queue_that_nobody_fetches_ends_by_itself(session: Session, client: redis.Redis) -> None:
    session.add("a", "b", ttl=1)
    eventually(lambda: client.dbsize() == 0, what="the end of all keys of the queue")


# --- The limit --------------------------------------------------------------------------------------------------------


def test_the_oldest_messages_beyond_the_limit_are_trimmed(session: Session, client: redis.Redis) -> None:
    session.add("a", "b", "c")
    assert session.add("d", "e", limit=3) == ([4, 5], 5, 2, 0)
    assert session.fetch().values == [b"c", b"d", b"e"]
    assert session.keys() == {session.name(name) for name in ("messages", "last_packet_id")} | {
        session.message(packet_id) for packet_id in (3, 4, 5)
    }
    assert client.zcard("{c}_messages") == 3


def test_a_limit_below_the_present_length_trims_to_the_limit(session: Session) -> None:
    session.add(*"abcdefgh")
    assert session.add("i", limit=2) == ([9], 9, 7, 0)
    assert session.fetch().values == [b"h", b"i"]


def test_the_default_limit_is_a_setting(session: Session, client: redis.Redis) -> None:
    client.config_set("holdmq.session-limit", 2)
    assert session.add("a", "b").trimmed == 0
    assert session.add("c").trimmed == 1
    assert session.fetch().values == [b"b", b"c"]


def test_of_a_batch_longer_than_the_limit_the_newest_stay(session: Session) -> None:
    session.add("old")
    added = session.add(*"abcde", limit=2)
    assert added.trimmed == 4
    assert session.fetch().values == [b"d", b"e"]
    # The identifier 0 says: not stored.
    assert added.packet_ids[:3] == [0, 0, 0]
    assert added.packet_ids[3:] == session.fetch().packet_ids
    assert added.serial == session.fetch().serials[-1]


def test_expired_references_are_trimmed_before_live_messages(session: Session) -> None:
    session.add(*"abcdefghij", limit=10)
    for packet_id in (2, 4, 6, 8, 10):
        session.expire_message(packet_id)
    assert session.add("k", limit=10) == ([11], 11, 0, 5)
    assert session.fetch().values == [b"a", b"c", b"e", b"g", b"i", b"k"]


def test_expired_references_do_not_save_live_messages_that_are_too_many(session: Session) -> None:
    session.add(*"abcde")
    session.expire_message(3)
    added = session.add("f", "g", limit=4)
    assert (added.trimmed, added.expired) == (2, 1)
    assert session.fetch().values == [b"d", b"e", b"f", b"g"]


def test_the_limit_of_a_queue_does_not_know_of_one_with_the_same_name_in_another_database(server: Server) -> None:
    client, other = server.client(), server.client(db=1)
    client.execute_command("DEBUG", "SET-ACTIVE-EXPIRE", 0)
    try:
        queue = Session(other)
        queue.add_expiring((100, "live"), (1, "short"))
        Session(client).add("a", "b", limit=2)
        Session(client).add("c", limit=2)
        end = other.execute_command("PEXPIRETIME", "{c}_messages_2")
        eventually(lambda: now_ms(other) > end + 1)
        assert queue.add("new", limit=2) == ([3], 3, 0, 1)
        assert queue.fetch().values == [b"live", b"new"]
    finally:
        client.execute_command("DEBUG", "SET-ACTIVE-EXPIRE", 1)


# --- Fetching ---------------------------------------------------------------------------------------------------------


def test_fetch_of_nothing_is_an_empty_page(session: Session, client: redis.Redis) -> None:
    with unchanged(client):
        page = session.fetch()
    assert (page.entries, page.more, page.expired) == ([], 0, 0)


def test_fetch_pages_by_serial_and_count(session: Session) -> None:
    session.add(*(str(number) for number in range(10)))
    after, seen, pages = 0, [], []
    while True:
        page = session.fetch(after=after, count=4)
        seen += page.values
        pages.append((len(page.entries), page.more))
        if not page.more:
            break
        after = page.serials[-1]
    assert seen == [str(number).encode() for number in range(10)]
    assert pages == [(4, 1), (4, 1), (2, 0)]


def test_a_page_that_ends_with_the_queue_says_that_nothing_follows(session: Session) -> None:
    session.add("a", "b")
    assert session.fetch(count=2).more == 0
    assert session.fetch(count=1).more == 1
    assert session.fetch(after=1).values == [b"b"]
    assert session.fetch(after=2).entries == []
    assert session.fetch(after=2**53).entries == []


def test_a_page_says_that_nothing_follows_when_all_that_follows_has_expired(session: Session) -> None:
    session.add("a", "b", "c")
    session.expire_message(2)
    session.expire_message(3)
    page = session.fetch(count=1)
    assert (page.values, page.more) == ([b"a"], 0)


def test_expired_references_do_not_take_the_place_of_messages_on_a_page(session: Session) -> None:
    session.add(*"abcdef")
    for packet_id in (1, 2, 4):
        session.expire_message(packet_id)
    page = session.fetch(count=2)
    assert (page.values, page.more) == ([b"c", b"e"], 1)
    rest = session.fetch(after=page.serials[-1], count=2)
    assert (rest.values, rest.more) == ([b"f"], 0)
    assert page.expired + rest.expired == 3


def test_fetch_holds_about_as_many_bytes_as_asked_for_and_at_least_one_message(session: Session) -> None:
    session.add(*(b"x" * 100 for _ in range(10)))
    assert len(session.fetch(size=1).entries) == 1
    assert len(session.fetch(size=100).entries) == 1
    assert len(session.fetch(size=101).entries) == 2
    assert len(session.fetch(size=400).entries) == 4
    assert session.fetch(size=400).more == 1
    assert len(session.fetch(size=10000).entries) == 10
    assert len(session.fetch(size=10000, count=3).entries) == 3


def test_fetch_has_bounds_when_none_are_asked_for(session: Session) -> None:
    session.add(*(str(number) for number in range(300)))
    page = session.fetch()
    assert (len(page.entries), page.more) == (100, 1)
    big = Session(session.client, "{big}")
    big.add(*(b"x" * 400_000 for _ in range(5)))
    page = big.fetch()
    assert (len(page.entries), page.more) == (3, 1)


def test_a_long_backlog_comes_whole_and_in_order_over_pages(session: Session) -> None:
    batch = [str(number).encode() for number in range(10000)]
    session.add(*batch)
    assert [entry.value for entry in session.fetch_all()] == batch


def test_a_backlog_of_which_all_has_expired_is_cleared_by_one_fetch(session: Session, client: redis.Redis) -> None:
    session.add(*(str(number) for number in range(5000)))
    client.unlink(*(session.message(packet_id) for packet_id in range(1, 5001)))
    page = session.fetch()
    assert (page.entries, page.more, page.expired) == ([], 0, 5000)
    assert not client.exists("{c}_messages")
    assert session.add("next").packet_ids == [5001]


def test_what_is_acknowledged_between_pages_is_not_missed(session: Session) -> None:
    session.add(*"abcd")
    page = session.fetch(count=2)
    session.ack(*page.packet_ids)
    assert session.fetch(after=page.serials[-1], count=2).values == [b"c", b"d"]


def test_fetching_takes_nothing_away(session: Session, client: redis.Redis) -> None:
    session.add("a", "b")
    with unchanged(client):
        assert session.fetch() == session.fetch()


# --- Acknowledging ----------------------------------------------------------------------------------------------------


def test_acknowledged_messages_are_gone(session: Session, client: redis.Redis) -> None:
    session.add(*"abcd")
    assert session.ack(2, 4) == 2
    assert session.fetch().values == [b"a", b"c"]
    assert client.exists("{c}_messages_2", "{c}_messages_4") == 0
    assert session.ack(1) == 1
    assert session.ack(3) == 1
    assert not client.exists("{c}_messages")
    assert session.last() == 4


def test_an_acknowledgement_counts_what_was_there(session: Session, client: redis.Redis) -> None:
    session.add(*"abc")
    assert session.ack(2, 2, 2) == 1
    with unchanged(client):
        assert session.ack(2) == 0
        assert session.ack(77, 65535) == 0
    assert session.ack(77, 3, 65535, 1) == 2
    with unchanged(client):
        assert Session(client, "{nobody}").ack(1, 2) == 0


def test_a_thousand_messages_can_be_acknowledged_at_once(session: Session, client: redis.Redis) -> None:
    session.add(*(str(number) for number in range(3000)))
    assert session.ack(*range(1, 2801)) == 2800
    assert session.fetch(count=1).values == [b"2800"]
    assert session.ack(*range(1, 3001)) == 200
    assert session.keys() == {b"{c}_last_packet_id"}
    assert client.dbsize() == 1


# --- Asking -----------------------------------------------------------------------------------------------------------


def test_a_session_that_is_not_there_has_nothing(session: Session, client: redis.Redis) -> None:
    with unchanged(client):
        assert session.last() == 0
        assert session.drop() == 0
        info = session.info()
    assert info == {
        **info,
        "exists": 0,
        "owner": None,
        "identity": None,
        "epoch": 0,
        "connected": 0,
        "expiry": 0,
        "messages": 0,
        "first_serial": 0,
        "last_serial": 0,
        "last_packet_id": 0,
        "subscriptions": 0,
        "ttl_ms": -1,
    }


def test_info_shows_what_the_session_has(session: Session, client: redis.Redis) -> None:
    epoch = session.open("bridge-7", expiry=60).epoch
    session.add(*"abcde")
    session.ack(1, 2)
    expire_now(client, "{c}_messages_4")
    session.subscribe(("a", 0), ("b/#", 1))
    info = session.info()
    assert info == {
        **info,
        "exists": 1,
        "owner": b"bridge-7",
        "identity": None,
        "epoch": epoch,
        "connected": 1,
        "expiry": 60,
        "messages": 3,
        "first_serial": 3,
        "last_serial": 5,
        "last_packet_id": 5,
        "subscriptions": 2,
    }
    assert 3600_000 < info["ttl_ms"] <= 3660_000


def test_info_is_a_map_in_resp3_and_a_flat_list_in_resp2(server: Server) -> None:
    with RawClient(server.port, protocol=3) as resp3, RawClient(server.port, protocol=2) as resp2:
        resp3.call("SESSION.SUBSCRIBE", "{c}", "a", "1")
        info, flat = resp3.call("SESSION.INFO", "{c}"), resp2.call("SESSION.INFO", "{c}")
        assert isinstance(info, dict)
        assert isinstance(flat, list)
        assert dict(zip(flat[::2], flat[1::2], strict=True)) == info
        assert resp3.call("SESSION.SUBSCRIPTIONS", "{c}") == {b"a": b"1"}
        assert resp2.call("SESSION.SUBSCRIPTIONS", "{c}") == [b"a", b"1"]


# --- Dropping ---------------------------------------------------------------------------------------------------------


def test_drop_removes_all_that_the_session_has_and_nothing_of_another(session: Session, client: redis.Redis) -> None:
    other = Session(client, "{cc}")
    for some in (session, other):
        some.open(expiry=60)
        some.add("a", "b", "c")
        some.subscribe(("x/#", 1))
    client.zadd("{c}_received", {"7": now_ms(client)})
    assert session.drop() == 3
    assert session.keys() == set()
    assert session.info()["exists"] == 0
    assert other.fetch().values == [b"a", b"b", b"c"]
    assert other.subscriptions() == {b"x/#": 1}


def test_after_a_drop_the_session_starts_again(session: Session) -> None:
    session.add("a", "b", "c")
    session.drop()
    assert session.add("d") == ([1], 1, 0, 0)
    assert session.fetch().values == [b"d"]


def test_what_a_long_queue_holds_is_told_in_a_short_step_after_a_restart(client: redis.Redis) -> None:
    def us_of_info(count: int) -> float:
        session = Session(client, f"{{long{count}}}")
        for at in range(0, count, 1000):
            session.add(*(f"{number:0200}" for number in range(at, at + 1000)), limit=count)
        client.execute_command("DEBUG", "RELOAD")
        took = []
        for _ in range(10):
            client.config_resetstat()
            reply = client.execute_command("SESSION.INFO", session.key)
            told = dict(zip(reply[::2], reply[1::2], strict=True)) if isinstance(reply, list) else reply
            assert (told[b"messages"], told[b"bytes"]) == (count, count * 200)
            stats = {name.lower(): value for name, value in client.info("commandstats").items()}
            took.append(float(stats["cmdstat_session.info"]["usec_per_call"]))
        return min(took)

    assert us_of_info(40_000) < 4 * us_of_info(2000)
