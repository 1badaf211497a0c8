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
    AsyncHoldMQ,
    AsyncReplay,
    CommandError,
    FencedError,
    HeldError,
    HistoryMessage,
    HoldMQError,
    InvalidTopicError,
    Message,
    NoStoreError,
    ProducerChunk,
    ReplayStepKind,
    StaleError,
    WrongStoreError,
    core,
)
from holdmq.history_replies import COLUMNS
from tests.client.proxy import Proxy

TOPICS = ["s/1/a", "s/1/b", "s/2/a", "s/3/deep/er"]


async def filled(hold: AsyncHoldMQ, count: int = 40, *, shards: int = 3) -> list[tuple[str, bytes]]:
    """A store `s` with so many messages; their topics and payloads."""
    await hold.history.create("s", "s/#", shards=shards)
    sent = [(TOPICS[number % len(TOPICS)], str(number).encode()) for number in range(count)]
    for topic, payload in sent:
        await hold.topics.publish(topic, payload, qos=number_of(payload) % 3, publisher="me", properties=b"\x26")
    return sent


def unnamed(cursor: str | None) -> str:
    """The cursor as an earlier release wrote it: without its store."""
    assert cursor is not None
    return ",".join(core.Cursor.decode(one)._replace(store=b"").encode().decode() for one in cursor.split(","))


def number_of(payload: bytes) -> int:
    return int(payload)


async def rest(replay: AsyncReplay) -> list[HistoryMessage]:
    return [message async for message in replay]


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


async def test_a_store_is_made_changed_listed_and_dropped(hold: AsyncHoldMQ) -> None:
    await hold.history.create("s", "a/#", "b/+", shards=2, age=3600, max_bytes=10**6, levels=4, epoch=60)
    await hold.history.create("s", "a/#", age=7200, replace_filters=True)
    (policy,) = await hold.history.stores()
    assert (policy.store, policy.filters, policy.shards, policy.levels) == ("s", ("a/#",), 2, 4)
    assert (policy.age, policy.max_bytes) == (7200, 10**6)
    with pytest.raises(CommandError, match="SHARDS"):
        await hold.history.create("s", "a/#", shards=3)
    await hold.history.store("s").drop()
    assert await hold.history.stores() == ()
    with pytest.raises(CommandError):
        await hold.history.store("s").info()


async def test_wrong_arguments_are_refused_before_anything_is_sent(hold: AsyncHoldMQ) -> None:
    store = hold.history.store("s")
    with pytest.raises(InvalidTopicError):
        hold.history.start_replay("a/#/b")
    for wrong in ("yesterday", "15 m", datetime(1960, 1, 1, tzinfo=UTC), -1, 2**48):
        with pytest.raises(ArgumentError, match="start is"):
            hold.history.start_replay("a", wrong)
    with pytest.raises(ArgumentError, match="page is 0"):
        hold.history.start_replay("a", page=0)
    with pytest.raises(ArgumentError, match="a column is 'colour'"):
        await store.range(0, 1, 2, columns=["colour"])
    with pytest.raises(ArgumentError, match="shard is 64"):
        await store.range(64, 1, 2)
    with pytest.raises(ArgumentError, match="chunk of the producer is -1"):
        await store.append("a", b"x", producer=ProducerChunk("p", 0, -1))
    with pytest.raises(ArgumentError, match="256 bytes"):
        store.producer("x" * 256)


# --- Replays ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", [1, 3, 1000])
async def test_a_replay_gives_what_matches_in_the_order_of_each_topic(hold: AsyncHoldMQ, page: int) -> None:
    sent = await filled(hold)
    messages = await rest(hold.history.start_replay("s/+/a", page=page))
    assert by_topic(messages) == {topic: numbers for topic, numbers in expected(sent).items() if topic.endswith("/a")}
    first = messages[0]
    assert (first.publisher, first.properties, first.qos) == ("me", b"\x26", number_of(first.payload) % 3)
    assert first.sequence >= 1
    assert abs(first.time - datetime.now(UTC)) < timedelta(minutes=1)
    assert len({(message.shard, message.sequence) for message in messages}) == len(messages)


@pytest.mark.parametrize("seed", range(3))
async def test_a_cursor_continues_after_the_last_message_that_was_handed_out(hold: AsyncHoldMQ, seed: int) -> None:
    chance = random.Random(seed)
    sent = await filled(hold)
    got: list[HistoryMessage] = []
    cursor: str | None = None
    for _ in range(200):
        replay = hold.history.start_replay("s/#", cursor=cursor, page=chance.choice((1, 5, 13, 100)))
        taken = [await replay.get() for _ in range(chance.randrange(1, 12))]
        got += [message for message in taken if message is not None]
        cursor = replay.cursor
        if taken[-1] is None:
            break
    assert by_topic(got) == expected(sent)
    place = await hold.history.store("s").append("s/1/a", b"99")
    (late,) = await rest(hold.history.start_replay("s/#", cursor=cursor))
    assert (late.payload, late.sequence) == (b"99", place.sequence)


async def test_a_replay_begins_and_ends_at_a_time(hold: AsyncHoldMQ) -> None:
    await filled(hold, 4)
    everything = await rest(hold.history.start_replay("s/#"))
    times = sorted(message.time for message in everything)
    assert await rest(hold.history.start_replay("s/#", times[-1] + timedelta(milliseconds=1))) == []
    assert len(await rest(hold.history.start_replay("s/#", "now"))) < 4  # those of this very millisecond
    for start in ("1h", timedelta(hours=1), times[0] - timedelta(seconds=5), times[0].timestamp() * 1000 // 1 - 5000):
        begin = int(start) if isinstance(start, float) else start
        assert len(await rest(hold.history.start_replay("s/#", begin))) == 4
    assert len(await rest(hold.history.start_replay("s/#", times[0].isoformat()))) == 4
    assert await rest(hold.history.start_replay("s/#", end=times[0] - timedelta(seconds=5))) == []
    store = hold.history.store("s")
    assert await store.sequence_at(everything[0].shard, "earliest") == 1
    assert await store.sequence_at(everything[0].shard, times[0] - timedelta(seconds=5)) == 1
    last = (await store.info(0)).shards[0].last
    assert await store.sequence_at(0, times[-1] + timedelta(milliseconds=1)) == last + 1


async def test_steps_tell_the_next_topic_and_the_end_and_continue_after_it(hold: AsyncHoldMQ) -> None:
    await hold.history.create("s", "s/#")
    for topic in ("s/a", "s/a", "s/b"):
        await hold.topics.publish(topic, b"x")
    replay = hold.history.start_replay("s/#")
    kinds = [(await replay.next()).kind for _ in range(5)]
    assert kinds == [
        ReplayStepKind.NEXT_TOPIC,
        ReplayStepKind.MESSAGE,
        ReplayStepKind.NEXT_TOPIC,
        ReplayStepKind.END,
        ReplayStepKind.END,
    ]
    await hold.topics.publish("s/b", b"later")
    step = await replay.next()
    assert step.kind is ReplayStepKind.MESSAGE
    assert step.message is not None
    assert step.message.payload == b"later"


async def test_a_filter_that_no_store_selects_is_refused(hold: AsyncHoldMQ) -> None:
    with pytest.raises(CommandError, match="no store"):
        await rest(hold.history.start_replay("nobody/keeps/this"))


# --- Following --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("named", [True, False])
async def test_following_goes_from_the_past_to_what_comes_without_a_gap(
    hold: AsyncHoldMQ, connect: Callable[..., AsyncHoldMQ], named: bool
) -> None:
    sent = await filled(hold, 10)
    reader = connect()
    source = reader.history.store("s") if named else reader.history
    got: list[HistoryMessage] = []
    async with source.follow("s/#", page=4) as messages:
        for number in range(10, 30):
            message = await messages.get(timeout=10)
            assert message is not None
            got.append(message)
            sent.append((TOPICS[number % 4], str(number).encode()))
            await hold.topics.publish(*sent[-1])
        while len(got) < len(sent):
            message = await messages.get(timeout=10)
            assert message is not None
            got.append(message)
        assert await messages.get(timeout=0.1) is None
    assert by_topic(got) == expected(sent)
    assert await messages.get() is None  # it was closed


async def test_following_survives_lost_connections_without_a_gap_or_a_repetition(
    hold: AsyncHoldMQ, proxy: Proxy, connect: Callable[..., AsyncHoldMQ]
) -> None:
    sent = await filled(hold, 5)
    got: list[HistoryMessage] = []
    async with connect(proxy).history.store("s").follow("s/#", page=2) as messages:
        for number in range(5, 25):
            if number % 6 == 0:
                proxy.cut()
            sent.append((TOPICS[number % 4], str(number).encode()))
            await hold.topics.publish(*sent[-1])
            message = await messages.get(timeout=20)
            assert message is not None
            got.append(message)
        while len(got) < len(sent):
            message = await messages.get(timeout=20)
            assert message is not None
            got.append(message)
    assert by_topic(got) == expected(sent)


async def test_iteration_over_what_comes_ends_after_a_silence(hold: AsyncHoldMQ) -> None:
    await filled(hold, 3)
    assert len(await rest(hold.history.follow("s/#", timeout=0.1))) == 3


async def test_a_server_that_stays_away_is_reported(connect: Callable[..., AsyncHoldMQ], proxy: Proxy) -> None:
    hold = connect(proxy)
    await hold.history.create("s", "s/#")
    replay = hold.history.start_replay("s/#", reconnect=0.2)
    assert await replay.get() is None
    proxy.close()
    with pytest.raises(redis.ConnectionError):
        await replay.get()


# --- Columns ----------------------------------------------------------------------------------------------------------


async def test_columns_hold_what_a_replay_gives(hold: AsyncHoldMQ) -> None:
    await filled(hold, 20, shards=2)
    store = hold.history.store("s")
    for shard in range(2):
        messages = await rest(store.start_replay(shard=shard))
        columns = await store.range(shard, 1, 100)
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


async def test_pages_of_columns_cover_a_range(hold: AsyncHoldMQ) -> None:
    await filled(hold, 30, shards=1)
    store = hold.history.store("s")
    pages = [page async for page in store.ranges(0, 5, 28, columns=["sequence"], count=7)]
    assert [number for page in pages for number in page["sequence"]] == list(range(5, 29))
    assert max(map(len, pages)) == 7
    filtered = [page async for page in store.ranges(0, 1, 99, topic_filter="s/2/a", columns=["topic"])]
    assert {topic for page in filtered for topic in page["topic"]} == {"s/2/a"}


# --- Writing ----------------------------------------------------------------------------------------------------------


async def test_an_appended_message_has_a_place_and_everything_it_came_with(hold: AsyncHoldMQ) -> None:
    await hold.history.create("s", "s/#")
    store = hold.history.store("s")
    await store.append("s/1", "text", qos=1, retain=True, ttl=60, publisher="me", properties=b"\x01")
    (message,) = await rest(store.start_replay())
    assert (message.payload, message.qos, message.retain, message.publisher) == (b"text", 1, True, "me")
    assert message.expires_ms is not None
    assert message.expires_ms - message.time_ms == 60_000
    with pytest.raises(CommandError, match="does not select"):
        await store.append("other", b"x")


async def test_a_producer_stores_once_what_is_sent_twice(
    connect: Callable[..., AsyncHoldMQ], proxy: Proxy, hold: AsyncHoldMQ
) -> None:
    await hold.history.create("s", "s/#", shards=2)
    producer = connect(proxy).history.store("s").producer("p")
    assert (await producer.append("s/1", b"a")).new
    proxy.swallow_next_reply()
    with pytest.raises(redis.ConnectionError):
        await producer.append("s/1", b"b")
    assert producer.pending
    with pytest.raises(HoldMQError, match="not known"):
        await producer.append("s/1", b"c")
    place = await producer.retry()
    assert (place.sequence, place.new) == (2, False)
    assert (await producer.append("s/2", b"c")).new
    assert by_payload(await rest(hold.history.start_replay("s/#"))) == [b"a", b"b", b"c"]
    with pytest.raises(FencedError):
        await hold.history.store("s").producer("p", epoch=1).append("s/1", b"old")


def by_payload(messages: list[HistoryMessage]) -> list[bytes]:
    return sorted(message.payload for message in messages)


async def test_publishing_with_a_producer_happens_once(hold: AsyncHoldMQ) -> None:
    await hold.history.create("s", "s/#")
    session = hold.session("device")
    await session.open("me", expiry=60)
    await session.subscribe("s/#")
    once = ProducerChunk("p", 1, 1)
    assert [await hold.topics.publish("s/1", b"x", qos=1, producer=once) for _ in range(2)] == [1, -1]
    assert len((await session.fetch()).entries) == 1
    assert len(await rest(hold.history.start_replay("s/#"))) == 1


async def test_messages_are_imported_once_into_the_shards_of_their_topics(hold: AsyncHoldMQ) -> None:
    await hold.history.create("s", "s/#", shards=4)
    store = hold.history.store("s")
    sent = [
        Message(topic=f"s/{number % 9}", payload=str(number).encode(), time_ms=1000 + number, publisher="old")
        for number in range(100)
    ]
    chunk = ProducerChunk("job", 3, 1)
    first = await store.import_messages(sent, producer=chunk)
    assert len(first) > 1
    assert all(result.new for result in first.values())
    again = await store.import_messages(sent, producer=chunk)
    assert {shard: (result.first, result.last, result.new) for shard, result in again.items()} == {
        shard: (result.first, result.last, False) for shard, result in first.items()
    }
    messages = await rest(store.start_replay())
    assert by_topic(messages) == expected([(message.topic, message.payload) for message in sent])
    assert sorted(message.time_ms for message in messages) == [message.time_ms for message in sent]
    wrong = next(shard for shard in range(4) if shard != messages[0].shard)
    with pytest.raises(CommandError):
        await store.import_records(wrong, [Message(topic=messages[0].topic, payload=b"x")])
    with pytest.raises(CommandError):
        await store.import_messages([Message(topic="other", payload=b"x")])
    with pytest.raises(CommandError, match="no store"):
        await hold.history.store("nobody").import_messages(sent)


# --- Retention --------------------------------------------------------------------------------------------------------


async def test_what_a_reader_holds_is_not_trimmed_until_it_has_read_it(hold: AsyncHoldMQ) -> None:
    await filled(hold, 10, shards=1)
    store = hold.history.store("s")
    assert await store.hold("archive") == {0: 0}
    with pytest.raises(HeldError, match="archive"):
        await store.trim(0, 4)
    assert await store.hold("archive", {0: 6}) == {0: 6}
    assert (await store.info(0)).shards[0].holds == {"archive": 6}
    assert await store.trim(0, 4) == 5
    assert (await store.info()).shards[0].first == 5
    with pytest.raises(CommandError):
        await store.hold("archive", {0: 5})  # a watermark never goes back
    await store.release("archive")
    assert await store.trim(0, 10) == 11
    assert (await store.info()).messages == 0
    assert await rest(store.start_replay()) == []


async def test_a_reader_learns_what_retention_removed_before_it_began(hold: AsyncHoldMQ) -> None:
    await filled(hold, 10, shards=1)
    store = hold.history.store("s")
    replay = store.start_replay(page=2)
    first = await replay.get()
    assert first is not None
    await store.trim(0, 6)
    later = await rest(store.start_replay(cursor=replay.cursor))
    assert [message.sequence for message in later] == [7, 8, 9, 10]
    resumed = store.start_replay(cursor=replay.cursor)
    await resumed.get()
    assert resumed.missed == 5
    pages = [page async for page in store.ranges(0, 1, 10)]
    assert sum(page.missed for page in pages) == 6


# --- Patterns ---------------------------------------------------------------------------------------------------------


async def test_a_store_goes_over_to_another_pattern_set(hold: AsyncHoldMQ) -> None:
    sent = await filled(hold, 8)
    store = hold.history.store("s")
    generation, text = await store.patterns.get()
    better = text + "s/+/a\n"
    await store.patterns.prepare(generation + 1, better)
    await store.patterns.abort()
    with pytest.raises(StaleError):
        await store.patterns.commit(generation + 1)
    await store.patterns.prepare(generation + 1, better)
    await store.patterns.commit(generation + 1)
    assert await store.patterns.get() == (generation + 1, better)
    assert (await store.info()).generation == generation + 1
    await hold.topics.publish("s/1/a", b"100")
    stats = {pattern.filter: pattern.messages for pattern in await store.patterns.stats()}
    assert stats == {"#": 0, "s/+/a": 1}
    with pytest.raises(CommandError):
        await store.patterns.prepare(generation + 2, "nonsense")
    replay = store.start_replay(page=3)
    read = [await replay.get() for _ in range(4)]
    await store.patterns.prepare(generation + 2, better, shards=6)
    await store.patterns.commit(generation + 2)
    await hold.topics.publish("s/3/deep/er", b"101")
    later = [message for message in read if message] + await rest(store.start_replay(cursor=replay.cursor))
    assert by_topic(later) == expected([*sent, ("s/1/a", b"100"), ("s/3/deep/er", b"101")])
    await store.import_messages([Message(topic=topic, payload=b"102") for topic in TOPICS])  # where topics belong now


# --- The index --------------------------------------------------------------------------------------------------------


async def test_an_index_is_checked_part_by_part_and_what_is_wrong_is_reported(
    hold: AsyncHoldMQ, client: redis.Redis
) -> None:
    await hold.history.create("s", "s/#")
    store = hold.history.store("s")
    await store.import_messages([Message(topic=TOPICS[number % 4], payload=b"x") for number in range(3000)])
    assert await store.check() == ()
    client.setrange("{s/0}_history_1_marks", 16, b"\x00")
    assert len(await store.check(0)) > 0
    assert (await store.check())[0].startswith("shard 0: ")
    with pytest.raises(CommandError, match="EPOCH"):
        await store.check(0, epoch=77)


async def test_a_cursor_of_another_store_is_refused(hold: AsyncHoldMQ) -> None:
    for name in ("a", "b"):
        await hold.history.create(name, f"{name}/#")
        for number in range(9):
            await hold.topics.publish(f"{name}/x", str(number), qos=1)
    replay = hold.history.start_replay("a/#")
    for _ in range(5):  # in the middle of a page: the client makes this cursor
        await replay.get()
    cursor = replay.cursor
    for made in (hold.history.start_replay("b/#", cursor=cursor), hold.history.follow("b/#", cursor=cursor)):
        with pytest.raises(WrongStoreError, match=r"of the store 'a' .*, not of the store 'b'"):
            await made.get(timeout=0)
        await made.aclose()
    left = await rest(hold.history.start_replay("a/#", cursor=cursor))
    assert [number_of(message.payload) for message in left] == [5, 6, 7, 8]


async def test_a_cursor_of_an_earlier_release_continues_in_its_store_and_in_no_other(hold: AsyncHoldMQ) -> None:
    for name in ("a", "b"):
        await hold.history.create(name, f"{name}/#", shards=2)
        for number in range(9):
            await hold.history.store(name).append(f"{name}/{number % 3}", str(number))
    replay = hold.history.start_replay("a/#")
    read = [await replay.get() for _ in range(5)]
    cursor = unnamed(replay.cursor)
    assert cursor.startswith("h1-")
    bookmark = json.dumps({"filter": "a/#", "cursor": cursor})
    for later in (hold.history.start_replay("a/#", cursor=cursor), hold.history.resume(bookmark)):
        left = await rest(later)
        assert sorted(number_of(one.payload) for one in [*read, *left] if one) == list(range(9))
        assert later.cursor is not None
        assert later.cursor.startswith("h2-")  # the next one names the store
    for refused in (
        hold.history.start_replay("b/#", cursor=cursor),
        hold.history.follow("b/#", cursor=cursor),
        hold.history.resume(json.dumps({"filter": "b/#", "cursor": cursor})),
    ):
        with pytest.raises(WrongStoreError, match=r"an earlier release .* store 'b'"):
            await refused.get(timeout=0)
        await refused.aclose()


async def test_a_filter_of_no_store_is_a_store_that_is_missing(hold: AsyncHoldMQ) -> None:
    with pytest.raises(NoStoreError, match="no store keeps topics of the filter 'nowhere/#'"):
        await hold.history.start_replay("nowhere/#").get()
    session = hold.session("reader")
    await session.open("o", expiry=60)
    with pytest.raises(NoStoreError, match="no store keeps topics of the filter"):
        await session.subscribe("nowhere/#", replay="earliest")


@pytest.mark.parametrize("cursor", ["", "x", "h2-1-1-0-6", '{"filter": "a/#"}', 5])
async def test_an_invalid_cursor_is_refused_before_anything_is_sent(hold: AsyncHoldMQ, cursor: Any) -> None:
    for make in (hold.history.start_replay, hold.history.follow, hold.history.store("s").start_replay):
        with pytest.raises(ArgumentError, match=r"cursor is .*; expected"):
            make("s/#", cursor=cursor)
