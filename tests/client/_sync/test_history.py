# Generated from tests/client/_async/test_history.py by tools/generate_sync.py; change that file.
"""History from Python: stores, replays that can be resumed and followed, columns, producers."""

import json
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis

from holdmq import (
    ArgumentError,
    CommandError,
    FencedError,
    HeldError,
    HistoryMessage,
    HoldMQ,
    HoldMQError,
    InvalidTopicError,
    Message,
    NoStoreError,
    ProducerChunk,
    Replay,
    ReplayStepKind,
    StaleError,
    WrongStoreError,
    core,
)
from holdmq.history_replies import COLUMNS
from tests.client.proxy import Proxy

TOPICS = ["s/1/a", "s/1/b", "s/2/a", "s/3/deep/er"]


def filled(hold: HoldMQ, count: int = 40, *, shards: int = 3) -> list[tuple[str, bytes]]:
    """A store `s` with so many messages; their topics and payloads."""
    hold.history.create("s", "s/#", shards=shards)
    sent = [(TOPICS[number % len(TOPICS)], str(number).encode()) for number in range(count)]
    for topic, payload in sent:
        hold.topics.publish(topic, payload, qos=number_of(payload) % 3, publisher="me", properties=b"\x26")
    return sent


def unnamed(cursor: str | None) -> str:
    """The cursor as an earlier release wrote it: without its store."""
    assert cursor is not None
    return ",".join(core.Cursor.decode(one)._replace(store=b"").encode().decode() for one in cursor.split(","))


def number_of(payload: bytes) -> int:
    return int(payload)


def rest(replay: Replay) -> list[HistoryMessage]:
    return [message for message in replay]


def by_topic(messages: list[HistoryMessage]) -> dict[str, list[int]]:
    """The payloads of each topic, in order."""
    found: dict[str, list[int]] = {}
    for message in messages:
        found.setdefault(message.topic, []).append(number_of(message.payload))
    return found


def expected(sent: list[tuple[str, bytes]]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for topic, payload in sent:
        found.setdefault(topic, []).append(number_of(payload))
    return found


# --- Stores -----------------------------------------------------------------------------------------------------------


def test_a_store_is_made_changed_listed_and_dropped(hold: HoldMQ) -> None:
    hold.history.create("s", "a/#", "b/+", shards=2, age=3600, max_bytes=10**6, levels=4, epoch=60)
    hold.history.create("s", "a/#", age=7200, replace_filters=True)
    (policy,) = hold.history.stores()
    assert (policy.store, policy.filters, policy.shards, policy.levels) == ("s", ("a/#",), 2, 4)
    assert (policy.age, policy.max_bytes) == (7200, 10**6)
    with pytest.raises(CommandError, match="SHARDS"):
        hold.history.create("s", "a/#", shards=3)
    hold.history.store("s").drop()
    assert hold.history.stores() == ()
    with pytest.raises(CommandError):
        hold.history.store("s").info()


def test_wrong_arguments_are_refused_before_anything_is_sent(hold: HoldMQ) -> None:
    store = hold.history.store("s")
    with pytest.raises(InvalidTopicError):
        hold.history.start_replay("a/#/b")
    for wrong in ("yesterday", "15 m", datetime(1960, 1, 1, tzinfo=UTC), -1, 2**48):
        with pytest.raises(ArgumentError, match="start is"):
            hold.history.start_replay("a", wrong)
    with pytest.raises(ArgumentError, match="page is 0"):
        hold.history.start_replay("a", page=0)
    with pytest.raises(ArgumentError, match="a column is 'colour'"):
        store.range(0, 1, 2, columns=["colour"])
    with pytest.raises(ArgumentError, match="shard is 64"):
        store.range(64, 1, 2)
    with pytest.raises(ArgumentError, match="chunk of the producer is -1"):
        store.append("a", b"x", producer=ProducerChunk("p", 0, -1))
    with pytest.raises(ArgumentError, match="256 bytes"):
        store.producer("x" * 256)


# --- Replays ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", [1, 3, 1000])
def test_a_replay_gives_what_matches_in_the_order_of_each_topic(hold: HoldMQ, page: int) -> None:
    sent = filled(hold)
    messages = rest(hold.history.start_replay("s/+/a", page=page))
    assert by_topic(messages) == {topic: numbers for topic, numbers in expected(sent).items() if topic.endswith("/a")}
    first = messages[0]
    assert (first.publisher, first.properties, first.qos) == ("me", b"\x26", number_of(first.payload) % 3)
    assert first.sequence >= 1
    assert abs(first.time - datetime.now(UTC)) < timedelta(minutes=1)
    assert len({(message.shard, message.sequence) for message in messages}) == len(messages)


@pytest.mark.parametrize("seed", range(3))
def test_a_cursor_continues_after_the_last_message_that_was_handed_out(hold: HoldMQ, seed: int) -> None:
    chance = random.Random(seed)
    sent = filled(hold)
    got: list[HistoryMessage] = []
    cursor: str | None = None
    for _ in range(200):
        replay = hold.history.start_replay("s/#", cursor=cursor, page=chance.choice((1, 5, 13, 100)))
        taken = [replay.get() for _ in range(chance.randrange(1, 12))]
        got += [message for message in taken if message is not None]
        cursor = replay.cursor
        if taken[-1] is None:
            break
    assert by_topic(got) == expected(sent)
    place = hold.history.store("s").append("s/1/a", b"99")
    (late,) = rest(hold.history.start_replay("s/#", cursor=cursor))
    assert (late.payload, late.sequence) == (b"99", place.sequence)


def test_a_replay_begins_and_ends_at_a_time(hold: HoldMQ) -> None:
    filled(hold, 4)
    everything = rest(hold.history.start_replay("s/#"))
    times = sorted(message.time for message in everything)
    assert rest(hold.history.start_replay("s/#", times[-1] + timedelta(milliseconds=1))) == []
    assert len(rest(hold.history.start_replay("s/#", "now"))) < 4  # those of this very millisecond
    for start in ("1h", timedelta(hours=1), times[0] - timedelta(seconds=5), times[0].timestamp() * 1000 // 1 - 5000):
        begin = int(start) if isinstance(start, float) else start
        assert len(rest(hold.history.start_replay("s/#", begin))) == 4
    assert len(rest(hold.history.start_replay("s/#", times[0].isoformat()))) == 4
    assert rest(hold.history.start_replay("s/#", end=times[0] - timedelta(seconds=5))) == []
    store = hold.history.store("s")
    assert store.sequence_at(everything[0].shard, "earliest") == 1
    assert store.sequence_at(everything[0].shard, times[0] - timedelta(seconds=5)) == 1
    last = (store.info(0)).shards[0].last
    assert store.sequence_at(0, times[-1] + timedelta(milliseconds=1)) == last + 1


def test_steps_tell_the_next_topic_and_the_end_and_continue_after_it(hold: HoldMQ) -> None:
    hold.history.create("s", "s/#")
    for topic in ("s/a", "s/a", "s/b"):
        hold.topics.publish(topic, b"x")
    replay = hold.history.start_replay("s/#")
    kinds = [(replay.next()).kind for _ in range(5)]
    assert kinds == [
        ReplayStepKind.NEXT_TOPIC,
        ReplayStepKind.MESSAGE,
        ReplayStepKind.NEXT_TOPIC,
        ReplayStepKind.END,
        ReplayStepKind.END,
    ]
    hold.topics.publish("s/b", b"later")
    step = replay.next()
    assert step.kind is ReplayStepKind.MESSAGE
    assert step.message is not None
    assert step.message.payload == b"later"


def test_a_filter_that_no_store_selects_is_refused(hold: HoldMQ) -> None:
    with pytest.raises(CommandError, match="no store"):
        rest(hold.history.start_replay("nobody/keeps/this"))


# --- Following --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("named", [True, False])
def test_following_goes_from_the_past_to_what_comes_without_a_gap(
    hold: HoldMQ, connect: Callable[..., HoldMQ], named: bool
) -> None:
    sent = filled(hold, 10)
    reader = connect()
    source = reader.history.store("s") if named else reader.history
    got: list[HistoryMessage] = []
    with source.follow("s/#", page=4) as messages:
        for number in range(10, 30):
            message = messages.get(timeout=10)
            assert message is not None
            got.append(message)
            sent.append((TOPICS[number % 4], str(number).encode()))
            hold.topics.publish(*sent[-1])
        while len(got) < len(sent):
            message = messages.get(timeout=10)
            assert message is not None
            got.append(message)
        assert messages.get(timeout=0.1) is None
    assert by_topic(got) == expected(sent)
    assert messages.get() is None  # it was closed


def test_following_survives_lost_connections_without_a_gap_or_a_repetition(
    hold: HoldMQ, proxy: Proxy, connect: Callable[..., HoldMQ]
) -> None:
    sent = filled(hold, 5)
    got: list[HistoryMessage] = []
    with connect(proxy).history.store("s").follow("s/#", page=2) as messages:
        for number in range(5, 25):
            if number % 6 == 0:
                proxy.cut()
            sent.append((TOPICS[number % 4], str(number).encode()))
            hold.topics.publish(*sent[-1])
            message = messages.get(timeout=20)
            assert message is not None
            got.append(message)
        while len(got) < len(sent):
            message = messages.get(timeout=20)
            assert message is not None
            got.append(message)
    assert by_topic(got) == expected(sent)


def test_iteration_over_what_comes_ends_after_a_silence(hold: HoldMQ) -> None:
    filled(hold, 3)
    assert len(rest(hold.history.follow("s/#", timeout=0.1))) == 3


def test_a_server_that_stays_away_is_reported(connect: Callable[..., HoldMQ], proxy: Proxy) -> None:
    hold = connect(proxy)
    hold.history.create("s", "s/#")
    replay = hold.history.start_replay("s/#", reconnect=0.2)
    assert replay.get() is None
    proxy.close()
    with pytest.raises(redis.ConnectionError):
        replay.get()


# --- Columns ----------------------------------------------------------------------------------------------------------


def test_columns_hold_what_a_replay_gives(hold: HoldMQ) -> None:
    filled(hold, 20, shards=2)
    store = hold.history.store("s")
    for shard in range(2):
        messages = rest(store.start_replay(shard=shard))
        columns = store.range(shard, 1, 100)
        assert columns.names == tuple(COLUMNS)
        assert len(columns) == len(messages) == columns.rows
        assert columns["sequence"] == [message.sequence for message in messages]
        assert columns["time"] == [message.time_us for message in messages]
        assert columns["topic"] == [message.topic for message in messages]
        assert columns["payload"] == [message.payload for message in messages]
        assert columns["qos"] == [message.qos for message in messages]
        assert columns["publisher"] == ["me"] * len(messages)
        assert columns["expires"] == columns["retain"] == [0] * len(messages)
        assert columns["published"] == [message.time_ms for message in messages]
        offsets, data = columns.buffers("payload")
        assert len(offsets) == 4 * (len(messages) + 1)
        assert bytes(data) == b"".join(message.payload for message in messages)
        with pytest.raises(ArgumentError, match="'colour'"):
            columns.buffers("colour")


def test_pages_of_columns_cover_a_range(hold: HoldMQ) -> None:
    filled(hold, 30, shards=1)
    store = hold.history.store("s")
    pages = [page for page in store.ranges(0, 5, 28, columns=["sequence"], count=7)]
    assert [number for page in pages for number in page["sequence"]] == list(range(5, 29))
    assert max(map(len, pages)) == 7
    filtered = [page for page in store.ranges(0, 1, 99, topic_filter="s/2/a", columns=["topic"])]
    assert {topic for page in filtered for topic in page["topic"]} == {"s/2/a"}


# --- Writing ----------------------------------------------------------------------------------------------------------


def test_an_appended_message_has_a_place_and_everything_it_came_with(hold: HoldMQ) -> None:
    hold.history.create("s", "s/#")
    store = hold.history.store("s")
    store.append("s/1", "text", qos=1, retain=True, ttl=60, publisher="me", properties=b"\x01")
    (message,) = rest(store.start_replay())
    assert (message.payload, message.qos, message.retain, message.publisher) == (b"text", 1, True, "me")
    assert message.expires_ms is not None
    assert message.expires_ms - message.time_ms == 60_000
    with pytest.raises(CommandError, match="does not select"):
        store.append("other", b"x")


def test_a_producer_stores_once_what_is_sent_twice(connect: Callable[..., HoldMQ], proxy: Proxy, hold: HoldMQ) -> None:
    hold.history.create("s", "s/#", shards=2)
    producer = connect(proxy).history.store("s").producer("p")
    assert (producer.append("s/1", b"a")).new
    proxy.swallow_next_reply()
    with pytest.raises(redis.ConnectionError):
        producer.append("s/1", b"b")
    assert producer.pending
    with pytest.raises(HoldMQError, match="not known"):
        producer.append("s/1", b"c")
    place = producer.retry()
    assert (place.sequence, place.new) == (2, False)
    assert (producer.append("s/2", b"c")).new
    assert by_payload(rest(hold.history.start_replay("s/#"))) == [b"a", b"b", b"c"]
    with pytest.raises(FencedError):
        hold.history.store("s").producer("p", epoch=1).append("s/1", b"old")


def by_payload(messages: list[HistoryMessage]) -> list[bytes]:
    return sorted(message.payload for message in messages)


def test_publishing_with_a_producer_happens_once(hold: HoldMQ) -> None:
    hold.history.create("s", "s/#")
    session = hold.session("device")
    session.open("me", expiry=60)
    session.subscribe("s/#")
    once = ProducerChunk("p", 1, 1)
    assert [hold.topics.publish("s/1", b"x", qos=1, producer=once) for _ in range(2)] == [1, -1]
    assert len((session.fetch()).entries) == 1
    assert len(rest(hold.history.start_replay("s/#"))) == 1


def test_messages_are_imported_once_into_the_shards_of_their_topics(hold: HoldMQ) -> None:
    hold.history.create("s", "s/#", shards=4)
    store = hold.history.store("s")
    sent = [
        Message(topic=f"s/{number % 9}", payload=str(number).encode(), time_ms=1000 + number, publisher="old")
        for number in range(100)
    ]
    chunk = ProducerChunk("job", 3, 1)
    first = store.import_messages(sent, producer=chunk)
    assert len(first) > 1
    assert all(result.new for result in first.values())
    again = store.import_messages(sent, producer=chunk)
    assert {shard: (result.first, result.last, result.new) for shard, result in again.items()} == {
        shard: (result.first, result.last, False) for shard, result in first.items()
    }
    messages = rest(store.start_replay())
    assert by_topic(messages) == expected([(message.topic, message.payload) for message in sent])
    assert sorted(message.time_ms for message in messages) == [message.time_ms for message in sent]
    wrong = next(shard for shard in range(4) if shard != messages[0].shard)
    with pytest.raises(CommandError):
        store.import_records(wrong, [Message(topic=messages[0].topic, payload=b"x")])
    with pytest.raises(CommandError):
        store.import_messages([Message(topic="other", payload=b"x")])
    with pytest.raises(CommandError, match="no store"):
        hold.history.store("nobody").import_messages(sent)


# --- Retention --------------------------------------------------------------------------------------------------------


def test_what_a_reader_holds_is_not_trimmed_until_it_has_read_it(hold: HoldMQ) -> None:
    filled(hold, 10, shards=1)
    store = hold.history.store("s")
    assert store.hold("archive") == {0: 0}
    with pytest.raises(HeldError, match="archive"):
        store.trim(0, 4)
    assert store.hold("archive", {0: 6}) == {0: 6}
    assert (store.info(0)).shards[0].holds == {"archive": 6}
    assert store.trim(0, 4) == 5
    assert (store.info()).shards[0].first == 5
    with pytest.raises(CommandError):
        store.hold("archive", {0: 5})  # a watermark never goes back
    store.release("archive")
    assert store.trim(0, 10) == 11
    assert (store.info()).messages == 0
    assert rest(store.start_replay()) == []


def test_a_reader_learns_what_retention_removed_before_it_began(hold: HoldMQ) -> None:
    filled(hold, 10, shards=1)
    store = hold.history.store("s")
    replay = store.start_replay(page=2)
    first = replay.get()
    assert first is not None
    store.trim(0, 6)
    later = rest(store.start_replay(cursor=replay.cursor))
    assert [message.sequence for message in later] == [7, 8, 9, 10]
    resumed = store.start_replay(cursor=replay.cursor)
    resumed.get()
    assert resumed.missed == 5
    pages = [page for page in store.ranges(0, 1, 10)]
    assert sum(page.missed for page in pages) == 6


# --- Patterns ---------------------------------------------------------------------------------------------------------


def test_a_store_goes_over_to_another_pattern_set(hold: HoldMQ) -> None:
    sent = filled(hold, 8)
    store = hold.history.store("s")
    generation, text = store.patterns.get()
    better = text + "s/+/a\n"
    store.patterns.prepare(generation + 1, better)
    store.patterns.abort()
    with pytest.raises(StaleError):
        store.patterns.commit(generation + 1)
    store.patterns.prepare(generation + 1, better)
    store.patterns.commit(generation + 1)
    assert store.patterns.get() == (generation + 1, better)
    assert (store.info()).generation == generation + 1
    hold.topics.publish("s/1/a", b"100")
    stats = {pattern.filter: pattern.messages for pattern in store.patterns.stats()}
    assert stats == {"#": 0, "s/+/a": 1}
    with pytest.raises(CommandError):
        store.patterns.prepare(generation + 2, "nonsense")
    replay = store.start_replay(page=3)
    read = [replay.get() for _ in range(4)]
    store.patterns.prepare(generation + 2, better, shards=6)
    store.patterns.commit(generation + 2)
    hold.topics.publish("s/3/deep/er", b"101")
    later = [message for message in read if message] + rest(store.start_replay(cursor=replay.cursor))
    assert by_topic(later) == expected([*sent, ("s/1/a", b"100"), ("s/3/deep/er", b"101")])
    store.import_messages([Message(topic=topic, payload=b"102") for topic in TOPICS])  # where topics belong now


# --- The index --------------------------------------------------------------------------------------------------------


def test_an_index_is_checked_part_by_part_and_what_is_wrong_is_reported(hold: HoldMQ, client: redis.Redis) -> None:
    hold.history.create("s", "s/#")
    store = hold.history.store("s")
    store.import_messages([Message(topic=TOPICS[number % 4], payload=b"x") for number in range(3000)])
    assert store.check() == ()
    client.setrange("{s/0}_history_1_marks", 16, b"\x00")
    assert len(store.check(0)) > 0
    assert (store.check())[0].startswith("shard 0: ")
    with pytest.raises(CommandError, match="EPOCH"):
        store.check(0, epoch=77)


def test_a_cursor_of_another_store_is_refused(hold: HoldMQ) -> None:
    for name in ("a", "b"):
        hold.history.create(name, f"{name}/#")
        for number in range(9):
            hold.topics.publish(f"{name}/x", str(number), qos=1)
    replay = hold.history.start_replay("a/#")
    for _ in range(5):  # in the middle of a page: the client makes this cursor
        replay.get()
    cursor = replay.cursor
    for made in (hold.history.start_replay("b/#", cursor=cursor), hold.history.follow("b/#", cursor=cursor)):
        with pytest.raises(WrongStoreError, match=r"of the store 'a' .*, not of the store 'b'"):
            made.get(timeout=0)
        made.close()
    left = rest(hold.history.start_replay("a/#", cursor=cursor))
    assert [number_of(message.payload) for message in left] == [5, 6, 7, 8]


def test_a_cursor_of_an_earlier_release_continues_in_its_store_and_in_no_other(hold: HoldMQ) -> None:
    for name in ("a", "b"):
        hold.history.create(name, f"{name}/#", shards=2)
        for number in range(9):
            hold.history.store(name).append(f"{name}/{number % 3}", str(number))
    replay = hold.history.start_replay("a/#")
    read = [replay.get() for _ in range(5)]
    cursor = unnamed(replay.cursor)
    assert cursor.startswith("h1-")
    bookmark = json.dumps({"filter": "a/#", "cursor": cursor})
    for later in (hold.history.start_replay("a/#", cursor=cursor), hold.history.resume(bookmark)):
        left = rest(later)
        assert sorted(number_of(one.payload) for one in [*read, *left] if one) == list(range(9))
        assert later.cursor is not None
        assert later.cursor.startswith("h2-")  # the next one names the store
    for refused in (
        hold.history.start_replay("b/#", cursor=cursor),
        hold.history.follow("b/#", cursor=cursor),
        hold.history.resume(json.dumps({"filter": "b/#", "cursor": cursor})),
    ):
        with pytest.raises(WrongStoreError, match=r"an earlier release .* store 'b'"):
            refused.get(timeout=0)
        refused.close()


def test_a_filter_of_no_store_is_a_store_that_is_missing(hold: HoldMQ) -> None:
    with pytest.raises(NoStoreError, match="no store keeps topics of the filter 'nowhere/#'"):
        hold.history.start_replay("nowhere/#").get()
    session = hold.session("reader")
    session.open("o", expiry=60)
    with pytest.raises(NoStoreError, match="no store keeps topics of the filter"):
        session.subscribe("nowhere/#", replay="earliest")


@pytest.mark.parametrize("cursor", ["", "x", "h2-1-1-0-6", '{"filter": "a/#"}', 5])
def test_an_invalid_cursor_is_refused_before_anything_is_sent(hold: HoldMQ, cursor: Any) -> None:
    for make in (hold.history.start_replay, hold.history.follow, hold.history.store("s").start_replay):
        with pytest.raises(ArgumentError, match=r"cursor is .*; expected"):
            make("s/#", cursor=cursor)
