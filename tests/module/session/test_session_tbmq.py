"""Sessions beside those of TBMQ 2.x: what goes wrong there goes right here, and each continues what the other left."""

import base64
import json
from typing import Any

import pytest
import redis
from redis.crc import key_slot

from holdmq import core
from tests.module.sessions_support import Entry, Session, publish, snapshot, unchanged
from tests.module.tbmq_scripts import TbmqSession, payload_of

WEEK_S = 604800


@pytest.fixture
def session(client: redis.Redis) -> Session:
    return Session(client)


@pytest.fixture
def tbmq(client: redis.Redis) -> TbmqSession:
    return TbmqSession(client)


def decoded(entries: list[Entry]) -> list[dict[str, Any]]:
    return [json.loads(entry.value) for entry in entries]


def as_json(message: dict[str, Any]) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode()


# --- The baseline is what it says ------------------------------------------------------------------------------------


def test_the_baseline_wraps_packet_ids_and_lets_scores_continue(tbmq: TbmqSession, client: redis.Redis) -> None:
    client.set(tbmq.counter, 65534)
    assert tbmq.add(tbmq.message("a"), tbmq.message("b"), tbmq.message("c")) == [65535, 1, 2]
    assert client.zrange(tbmq.queue, 0, -1, withscores=True) == [
        (b"{c}_messages_65535", 65535.0),
        (b"{c}_messages_1", 65536.0),
        (b"{c}_messages_2", 65537.0),
    ]
    assert client.get(tbmq.counter) == b"2"
    assert [(message["packetId"], payload_of(message)) for message in tbmq.fetch()] == [
        (65535, b"a"),
        (1, b"b"),
        (2, b"c"),
    ]


def test_the_baseline_has_the_defects_that_sessions_must_not_have(tbmq: TbmqSession, client: redis.Redis) -> None:
    with pytest.raises(redis.ResponseError, match="invalid expire"):
        tbmq.add(tbmq.message("a"), tbmq.message("b", msgExpiryInterval=0))
    assert client.zcard(tbmq.queue) == 1  # half of the batch is there
    assert client.get(tbmq.counter) is None
    tbmq.clear()
    tbmq.add(*(tbmq.message(str(number)) for number in range(4)), limit=4)
    client.delete("{c}_messages_3", "{c}_messages_4")
    tbmq.add(tbmq.message("new"), limit=4)
    assert [payload_of(message) for message in tbmq.fetch()] == [b"1", b"new"]  # 0 was alive
    tbmq.release(2)
    assert client.ttl("{c}_messages_2") == -1


# --- The defects, one by one -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [0, -1, 2**31, 2**32 - 1])
def test_an_expiry_out_of_range_in_one_message_refuses_the_whole_batch_and_harms_nothing(
    session: Session, client: redis.Redis, seconds: int
) -> None:
    session.add("before")
    for pairs in (
        [(5, "a"), (seconds, "b"), (5, "c")],
        [(seconds, "a"), (5, "b")],
        [(5, "a"), (5, "b"), (seconds, "c")],
    ):
        with unchanged(client), pytest.raises(redis.ResponseError, match=rf"seconds is '{seconds}'"):
            session.add_expiring(*pairs)
    assert session.add("next").packet_ids == [2]
    assert session.fetch().values == [b"before", b"next"]


@pytest.mark.parametrize("qos", [1, 2])
def test_a_release_keeps_the_time_to_live_and_lets_the_payload_go(
    session: Session, client: redis.Redis, qos: int
) -> None:
    session.subscribe(("t", qos))
    publish(client, "t", b"x" * 1000, qos=qos, ttl=100)
    session.sent(1)
    end = client.execute_command("PEXPIRETIME", "{c}_messages_1")
    assert client.execute_command("SESSION.RELEASE", "{c}", 1, 1, 99) in (1, 2)
    assert client.execute_command("PEXPIRETIME", "{c}_messages_1") == end
    (entry,) = session.fetch().entries
    assert (entry.packet_id, entry.state) == (1, 2)
    assert core.Record.decode(entry.value).type is core.RecordType.PUBREL
    assert client.strlen("{c}_messages_1") < 100
    assert session.ack(1) == 1


def test_expired_messages_do_not_cost_live_ones_their_place(session: Session) -> None:
    session.add(*(f"live {number}" for number in range(5)), limit=10)
    session.add(*(f"expired {number}" for number in range(5)), limit=10)
    for packet_id in range(6, 11):
        session.expire_message(packet_id)
    assert session.add("new", limit=10).trimmed == 0
    assert session.fetch().values == [*(f"live {number}".encode() for number in range(5)), b"new"]


def test_a_trim_is_reported_and_never_takes_what_is_in_flight(session: Session, client: redis.Redis) -> None:
    session.add("in flight", "also", "queued")
    client.execute_command("SESSION.FETCH", "{c}", "WINDOW", 2)
    assert session.add("new", limit=3) == ([4], 4, 1, 0)
    assert session.fetch().values == [b"in flight", b"also", b"new"]
    assert session.add("x", "y", limit=3) == ([0, 5], 5, 2, 0)
    assert session.fetch().values == [b"in flight", b"also", b"y"]


def test_a_fetch_keeps_to_its_limit_and_looks_at_no_more_keys_whatever_the_backlog(
    session: Session, client: redis.Redis
) -> None:
    def looked_up() -> int:
        stats = client.info("stats")
        return int(stats["keyspace_hits"]) + int(stats["keyspace_misses"])

    session.add(*(b"x" * 100 for _ in range(10000)))
    for after in (0, 5000):
        before = looked_up()
        assert len(session.fetch(after=after, count=10).entries) == 10
        assert looked_up() - before < 20


def test_no_key_of_a_queue_is_left_forever(session: Session, client: redis.Redis) -> None:
    session.add("a", "b")
    session.ack(1)
    session.open(expiry=10)
    session.add("c")
    for name, key in snapshot(client).items():
        assert key.expires_ms > 0, name


def test_a_packet_id_in_use_is_never_given_to_another_message(session: Session, client: redis.Redis) -> None:
    session.add("first", "second", limit=65535)
    for start in (0, 1, 65534, 65535):
        client.set("{c}_last_packet_id", start, keepttl=True)
        session.add("more", "and more", limit=65535)
    page = session.fetch()
    assert page.values[:2] == [b"first", b"second"]
    assert len(set(page.packet_ids)) == len(page.packet_ids) == 10
    assert page.serials == sorted(set(page.serials))


def test_a_value_is_kept_to_the_byte(session: Session) -> None:
    values = [b'{"subscriptionIds":[],"n":12345678901234567890,"t":"a/b","x":1.00}', b"[]", b'"\\u0000"', b"{}", b" {"]
    session.add(*values)
    assert session.fetch().values == values


def test_client_ids_cannot_defeat_the_hash_tag(client: redis.Redis) -> None:
    naive = TbmqSession(client, "}x")
    assert key_slot(naive.queue.encode()) != key_slot(naive.counter.encode())
    for client_id in ("}", "}x", "{}", "}{", "%7D", "x}y{z"):
        session = Session(client, core.session_key(client_id))
        session.open()
        session.add("a")
        session.subscribe(("t", 1))
        assert len(set(map(key_slot, session.keys()))) == 1
    with pytest.raises(ValueError, match="empty"):
        core.session_key("")


def test_a_batch_that_is_sent_again_is_not_stored_again(session: Session, client: redis.Redis) -> None:
    first = client.execute_command("SESSION.ADD", "{c}", "PRODUCER", "kafka-0", 7, "a", "b")
    with unchanged(client):
        assert client.execute_command("SESSION.ADD", "{c}", "PRODUCER", "kafka-0", 7, "a", "b") == first
    assert session.fetch().values == [b"a", b"b"]


def test_retained_and_queued_messages_never_share_a_packet_id(session: Session, client: redis.Redis) -> None:
    publish(client, "r", "retained", qos=1, retain=True)
    session.add("queued")
    session.subscribe(("r", 1))
    session.ack(2)
    assert session.fetch().values == [b"queued"]


# --- Each continues what the other left ------------------------------------------------------------------------------


def test_a_queue_of_tbmq_is_fetched_acknowledged_and_drained(
    tbmq: TbmqSession, session: Session, client: redis.Redis
) -> None:
    tbmq.add(*(tbmq.message(f"m{number}") for number in range(5)), ttl=100)
    tbmq.add(tbmq.message("short", msgExpiryInterval=30))
    page = session.fetch()
    assert page.packet_ids == page.serials == [1, 2, 3, 4, 5, 6]
    assert [payload_of(message) for message in decoded(page.entries)] == [b"m0", b"m1", b"m2", b"m3", b"m4", b"short"]
    assert {entry.state for entry in page.entries} == {0}
    assert session.last() == 6
    assert session.ack(1, 3) == 2
    assert [payload_of(message) for message in tbmq.fetch()] == [b"m1", b"m3", b"m4", b"short"]
    assert session.ack(2, 4, 5, 6) == 4
    assert tbmq.fetch() == []
    assert session.add("next").packet_ids == [7]
    assert client.ttl("{c}_messages_7") > 0


def test_a_wrapped_queue_of_tbmq_is_continued(tbmq: TbmqSession, session: Session, client: redis.Redis) -> None:
    client.set(tbmq.counter, 65533)
    tbmq.add(*(tbmq.message(text) for text in "abcd"))
    assert session.add("e") == ([3], 65538, 0, 0)
    assert session.fetch().packet_ids == [65534, 65535, 1, 2, 3]
    session.ack(*session.fetch().packet_ids)
    assert session.add("f") == ([4], 65539, 0, 0)


def test_references_of_tbmq_whose_message_expired_are_dropped(
    tbmq: TbmqSession, session: Session, client: redis.Redis
) -> None:
    tbmq.add(*(tbmq.message(text) for text in "abcd"))
    session.expire_message(2)
    page = session.fetch()
    assert (page.packet_ids, page.expired) == ([1, 3, 4], 1)
    assert client.zcard(tbmq.queue) == 3


def test_a_released_message_of_tbmq_is_released_here_too(tbmq: TbmqSession, session: Session) -> None:
    tbmq.add(tbmq.message("a", qos=2), tbmq.message("b", qos=2))
    tbmq.release(1)
    assert [entry.state for entry in session.fetch().entries] == [2, 0]
    assert decoded(session.fetch().entries)[0]["packetType"] == "PUBREL"


def test_a_message_of_tbmq_that_is_released_here_is_one_for_tbmq_too_and_keeps_its_time_to_live(
    tbmq: TbmqSession, session: Session, client: redis.Redis
) -> None:
    tbmq.add(tbmq.message("a", qos=2, topicName='with "packetType":"PUBLISH" inside'), ttl=100)
    assert client.execute_command("SESSION.RELEASE", "{c}", 1) == 1
    (message,) = tbmq.fetch()
    assert message["packetType"] == "PUBREL"
    assert message["packetId"] == 1
    assert message["topicName"] == 'with "packetType":"PUBLISH" inside'
    assert 90 < client.ttl("{c}_messages_1") <= 100
    assert session.fetch().entries[0].state == 2


def test_a_payload_that_only_speaks_of_a_release_is_not_released(tbmq: TbmqSession, session: Session) -> None:
    tbmq.add(tbmq.message("a", topicName='"packetType":"PUBREL"', userProperties={"props": [{"packetType": "PUBREL"}]}))
    assert session.fetch().entries[0].state == 0


def test_a_session_of_tbmq_is_opened_subscribed_and_served(
    tbmq: TbmqSession, session: Session, client: redis.Redis
) -> None:
    tbmq.add(tbmq.message("old"))
    opened = session.open("bridge-1", expiry=100, lease=100)
    assert opened.present == 1
    session.subscribe(("t", 1), epoch=opened.epoch)
    assert publish(client, "t", "new", qos=1) == 1
    page = session.fetch(epoch=opened.epoch)
    assert page.packet_ids == [1, 2]
    assert payload_of(json.loads(page.values[0])) == b"old"
    assert core.Record.decode(page.values[1]).payload == b"new"
    for suffix in ("messages", "last_packet_id"):
        assert 0 < client.ttl(session.name(suffix)) <= 260


def test_a_session_of_tbmq_is_dropped_whole(tbmq: TbmqSession, session: Session, client: redis.Redis) -> None:
    tbmq.add(*(tbmq.message(text) for text in "abc"))
    assert session.drop() == 3
    assert client.dbsize() == 0


def test_a_cache_prefix_is_part_of_the_session_key(client: redis.Redis) -> None:
    tbmq = TbmqSession(client, "c", prefix="tbmq:")
    tbmq.add(tbmq.message("a"))
    session = Session(client, "tbmq:{c}")
    assert session.fetch().packet_ids == [1]
    session.add("b")
    assert session.last() == 2
    session.drop()
    assert client.dbsize() == 0


def test_the_queue_of_a_shared_subscription_is_a_session_too(client: redis.Redis) -> None:
    tbmq = TbmqSession(client, "ss_group_a/+/b")
    tbmq.add(tbmq.message("a"))
    session = Session(client, core.session_key("ss_group_a/+/b"))
    assert session.fetch().packet_ids == [1]
    assert session.ack(1) == 1


def test_a_message_of_tbmq_is_stored_with_the_packet_id_that_it_gets(
    tbmq: TbmqSession, session: Session, client: redis.Redis
) -> None:
    client.set("{c}_last_packet_id", 41)
    without = tbmq.message("no id yet")
    del without["packetId"]
    session.add(as_json(tbmq.message("a", packetId=7)), as_json(without), as_json(tbmq.message("c")))
    messages = decoded(session.fetch().entries)
    assert [message["packetId"] for message in messages] == [42, 43, 44]
    assert [payload_of(message) for message in messages] == [b"a", b"no id yet", b"c"]
    assert {**messages[1], "packetId": 0} == {**without, "packetId": 0}


def test_tbmq_reads_continues_releases_and_drains_what_is_stored_here(
    tbmq: TbmqSession, session: Session, client: redis.Redis
) -> None:
    session.add(*(as_json(tbmq.message(f"m{number}", qos=2)) for number in range(3)), ttl=WEEK_S)
    assert [(message["packetId"], payload_of(message)) for message in tbmq.fetch()] == [
        (1, b"m0"),
        (2, b"m1"),
        (3, b"m2"),
    ]
    assert tbmq.add(tbmq.message("m3")) == [4]
    tbmq.release(2)
    tbmq.remove(1)
    assert [(entry.packet_id, entry.state) for entry in session.fetch().entries] == [(2, 2), (3, 0), (4, 0)]
    assert session.add(as_json(tbmq.message("m4"))).packet_ids == [5]
    for packet_id in (2, 3, 4, 5):
        tbmq.remove(packet_id)
    assert session.fetch().entries == []
    assert client.zcard(tbmq.queue) == 0
    assert tbmq.add(tbmq.message("m5")) == [6]
    tbmq.clear()
    assert session.keys() <= {b"{c}_session"}


def test_both_may_take_turns_over_the_end_of_the_packet_ids(
    tbmq: TbmqSession, session: Session, client: redis.Redis
) -> None:
    client.set("{c}_last_packet_id", 65530)
    got: list[int] = []
    for turn in range(6):
        if turn % 2:
            got += session.add(
                as_json(tbmq.message(f"here {turn}")), as_json(tbmq.message(f"here {turn}, 2"))
            ).packet_ids
        else:
            got += tbmq.add(tbmq.message(f"there {turn}"), tbmq.message(f"there {turn}, 2"))
    assert got == [65531, 65532, 65533, 65534, 65535, 1, 2, 3, 4, 5, 6, 7]
    page = session.fetch()
    assert page.packet_ids == got
    assert page.serials == list(range(65531, 65543))
    assert [message["packetId"] for message in tbmq.fetch()] == got
    assert base64.b64decode(decoded(page.entries)[-1]["payload"]) == b"here 5, 2"
