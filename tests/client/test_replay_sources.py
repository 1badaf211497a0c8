"""What a cluster's history needs without any I/O: which shard, which store, and how the shards become one replay."""

import itertools
import random

import pytest

from holdmq import ArgumentError, HistoryMessage, Message, WrongStoreError, core
from holdmq._replay_sources import Source, Sources, page_of, sources_of
from holdmq.history_commands import StoreLayout, filters_overlap, shard_key, shard_slot
from holdmq.history_replies import HistoryPage

Written = dict[int, list[HistoryMessage]]


def message(shard: int, sequence: int, time_us: int) -> HistoryMessage:
    return HistoryMessage(topic=f"t/{shard}", payload=b"", shard=shard, sequence=sequence, time_us=time_us)


def written(seed: int, shards: int, count: int) -> Written:
    """Messages at random times, which grow in each shard; some shards may have none."""
    chance = random.Random(seed)
    made: Written = {shard: [] for shard in range(shards)}
    now = 1_000_000
    for _ in range(count):
        now += chance.randrange(3)  # in two shards at once, now and then
        own = made[chance.randrange(shards)]
        own.append(message(0, 0, now) if not own or own[-1].time_us < now else message(0, 0, own[-1].time_us + 1))
    return {
        shard: [message(shard, number, one.time_us) for number, one in enumerate(own, 1)] for shard, own in made.items()
    }


def page(shard: int, everything: list[HistoryMessage], cursor: str | None, size: int) -> HistoryPage:
    """What HISTORY.REPLAY … SHARD replies."""
    begin = 1 if cursor is None else core.Cursor.decode(cursor).sequence
    found = tuple(everything[begin - 1 : begin - 1 + size])
    time_us = found[-1].time_us if found else 0
    behind = core.Cursor(1, 1, shard, begin + len(found), time_us).encode().decode()
    return HistoryPage(found, behind, begin - 1 + len(found) >= len(everything), len(found), 0)


def replayed(made: Written, cursor: str | None, size: int, most: int) -> tuple[list[HistoryMessage], str | None]:
    """Up to so many messages from a cursor on, and the cursor after them."""
    sources = Sources(sources_of(list(made), cursor, "s"), follow=False)
    got: list[HistoryMessage] = []
    while len(got) < most:
        source = sources.unread
        if source is not None:
            assert source.shard is not None
            sources.take_page(page(source.shard, made[source.shard], source.read, size))
            continue
        one = sources.take()
        if one is None:
            break
        got.append(one)
    return got, sources.cursor


@pytest.mark.parametrize("size", [1, 3, 100])
@pytest.mark.parametrize("seed", range(5))
def test_shards_become_one_sequence_by_time_however_they_are_paged(seed: int, size: int) -> None:
    made = written(seed, shards=1 + seed * 2, count=60)
    everything = sorted(itertools.chain(*made.values()), key=lambda one: (one.time_us, one.shard))
    assert replayed(made, None, size, 1000)[0] == everything


@pytest.mark.parametrize("seed", range(5))
def test_a_cursor_of_all_shards_continues_after_the_last_message(seed: int) -> None:
    made = written(seed, shards=4, count=60)
    everything, _ = replayed(made, None, 7, 1000)
    chance = random.Random(seed)
    got: list[HistoryMessage] = []
    cursor: str | None = None
    while len(got) < len(everything):
        part, cursor = replayed(made, cursor, chance.randrange(1, 9), chance.randrange(1, 9))
        got += part
    assert got == everything
    assert cursor is not None
    assert len(cursor) <= 4 * (core.MAX_CURSOR_BYTES + 1)


def shards_of(cursor: str | None) -> list[int]:
    """Whose cursors these are."""
    return [] if cursor is None else [core.Cursor.decode(one).shard for one in cursor.split(",")]


def test_a_cursor_is_unknown_until_every_shard_was_read_once() -> None:
    sources = Sources(sources_of([0, 1], None, "s"), follow=False)
    assert shards_of(sources.cursor) == []
    sources.take_page(page(0, [], None, 5))
    assert shards_of(sources.cursor) == []
    sources.take_page(page(1, [], None, 5))
    assert sources.take() is None
    assert shards_of(sources.cursor) == [0, 1]


def test_a_shard_that_had_ended_is_looked_at_again_while_others_continue(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("holdmq._replay_sources.time.monotonic", lambda: now)
    made: Written = {0: [message(0, number, number) for number in range(1, 9)], 1: []}
    sources = Sources([Source(0, None), Source(1, None)], follow=True)
    got: list[tuple[int, int]] = []
    while len(got) < 8:
        source = sources.unread
        if source is None:
            one = sources.take()
            assert one is not None
            got.append((one.shard, one.sequence))
            continue
        assert source.shard is not None
        if source.shard == 0 and len(got) == 4:
            made[1].append(message(1, 1, 5))
            now += 1
        sources.take_page(page(source.shard, made[source.shard], source.read, 2))
    assert (1, 1) in got


@pytest.mark.parametrize("cursor", ["", "h1-1-7-3-3e8-1-020d", "nonsense,nonsense", None])
def test_a_cursor_of_other_shards_is_refused(cursor: str | None) -> None:
    one = core.Cursor(1, 1, 0).encode().decode()
    with pytest.raises(ArgumentError, match="cursor is"):
        sources_of([0, 1], f"{one},{one}" if cursor is None else cursor, "s")


def test_a_cursor_of_another_store_is_refused() -> None:
    cursors = [core.Cursor(1, 1, shard, store_id=1, store=b"t").encode().decode() for shard in range(3)]
    for shards in ([0, 1, 2], [0]):
        with pytest.raises(WrongStoreError, match="of the store 't', not of the store 's'"):
            sources_of(shards, ",".join(cursors), "s")
    assert [source.shard for source in sources_of([0, 1, 2], ",".join(cursors), b"t")] == [0, 1, 2]


def test_all_pages_together_are_hardly_larger_than_one() -> None:
    assert page_of(1000, 1) == (1000, None)
    assert page_of(1000, 4) == (250, 2 << 20)
    assert page_of(1000, 64) == (100, 256 << 10)
    assert page_of(3, 64) == (3, 256 << 10)


@pytest.mark.parametrize("seed", range(2))
def test_filters_overlap_where_some_topic_matches_both(seed: int) -> None:
    levels = ["a", "b", "", "$x"]
    topics = ["/".join(parts) for size in (1, 2, 3) for parts in itertools.product(levels, repeat=size)]
    chance = random.Random(seed)
    filters = [
        "/".join(chance.choice([*levels, "+"]) for _ in range(chance.randrange(1, 4))) + chance.choice(["", "", "/#"])
        for _ in range(25)
    ]
    filters = [one for one in [*filters, "#", "+/#"] if one]
    for one, other in itertools.product(filters, repeat=2):
        # No filter has more than three levels before its '#', so topics of three levels tell.
        both = any(core.matches(one, topic) and core.matches(other, topic) for topic in topics if topic)
        assert filters_overlap(one, other) == both, (one, other)


def test_a_layout_says_the_shard_as_the_core_does() -> None:
    seed = "00112233445566778899aabbccddeeff"
    layout = StoreLayout(seed, shards=9, spread=7)
    number = int(seed[:16], 16) | int(seed[16:], 16) << 64
    for topic in (f"devices/{one}" for one in range(50)):
        assert layout.shard_of(topic.encode()) == core.topic_shard(topic, 7, seed=number)
    messages = [Message(topic=f"devices/{one % 10}", payload=str(one).encode()) for one in range(30)]
    split = layout.split((message.topic, message.to_record()) for message in messages)
    found = {shard: [Message.from_record(record) for record in part] for shard, part in split.items()}
    assert sorted((m.payload for part in found.values() for m in part), key=int) == [m.payload for m in messages]
    assert all(layout.shard_of(m.topic.encode()) == shard for shard, part in found.items() for m in part)


def test_all_keys_of_a_shard_have_its_slot() -> None:
    assert shard_key("s", 3) == b"{s/3}_history"
    assert shard_slot("s", 3) == core.slot_of("{s/3}_history_store") == core.slot_of("{s/3}_history")
