"""Plans and scans: whatever the filter, set and hashes, a reader gets all that matches, and looks at little else."""

import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdmq.core import (
    CorruptPostingsError,
    InvalidTopicError,
    PatternSet,
    PlanSlot,
    Scan,
    ScanResult,
    filter_plan,
    index_place,
    matches,
)
from holdmq.core._binding import ffi, lib
from tests.core.history import history_models as models
from tests.core.support import heap

HEAD = "holdmq-patterns 1 levels=%d\n"


def set_of(*lines: str, levels: int = 8) -> PatternSet:
    return PatternSet(HEAD % levels + "\n".join(lines))


def filled(patterns: PatternSet, topics: list[bytes]) -> models.Store:
    store = models.Store(patterns)
    for topic in topics:
        store.store(topic)
    return store


# ---- the oracle: every message asked ----


def by_hand(topics: list[bytes], topic_filter: bytes, start: int = 1) -> list[int]:
    return [n for n, topic in enumerate(topics, 1) if n >= start and matches(topic_filter, topic)]


@given(
    models.pattern_sets(),
    st.lists(models.topics, max_size=40),
    st.lists(models.filters, min_size=1, max_size=10),
    st.integers(1, 40),
    st.sampled_from([0, 1, 3, 2**62]),
)
def test_a_reader_gets_what_matches_and_nothing_else(
    model: models.Patterns, topics: list[bytes], filters: list[bytes], start: int, budget: int
) -> None:
    store = filled(PatternSet(model.text), topics)
    for topic_filter in [*filters, *topics[:3]]:
        assert store.read(topic_filter, start, budget) == by_hand(topics, topic_filter, start)


@given(models.pattern_sets(widths=(1,)), st.lists(models.topics, min_size=20, max_size=60), models.filters)
@example(models.Patterns([b"#1"], 3), [b"foo/1/bar", b"foo/2/baz", b"foo/3/bar"], b"foo/+/bar")
@example(models.Patterns([b"#1"], 3), [b"a", b"a/", b"a//", b"a/b", b"b"], b"a/#")
@example(models.Patterns([b"#1", b"a/+1"], 2), [b"a/b", b"a/b/", b"a//b", b"$a/b", b"a/b/b/b"], b"+/b/#")
def test_one_bit_hashes_collide_and_change_nothing(
    model: models.Patterns, topics: list[bytes], topic_filter: bytes
) -> None:
    assert filled(PatternSet(model.text), topics).read(topic_filter) == by_hand(topics, topic_filter)


@settings(max_examples=30)
@given(st.lists(models.topics, max_size=60), models.filters)
def test_the_lists_of_many_pages_are_one(topics: list[bytes], topic_filter: bytes) -> None:
    many = [topic for topic in topics for _ in range(50)]  # beyond the first pages
    store = filled(set_of("#3", "a/+2", "+4/b/#2"), many)
    assert store.read(topic_filter) == by_hand(many, topic_filter)


# ---- which patterns, which slots ----


def texts(patterns: PatternSet, topic_filter: str) -> dict[str, list[int]]:
    plans = filter_plan(patterns, topic_filter)
    return {patterns[p.pattern].text.decode(): [slot.slot for slot in p.slots] for p in plans}


DEVICES = set_of("#", "devices/+/pressure", "devices/+/temperature", "devices/hot/temperature", "$SYS/+")


@pytest.mark.parametrize(
    ("topic_filter", "expected"),
    [
        ("devices/42/temperature", {"devices/+/temperature": [0]}),
        ("devices/hot/temperature", {"devices/hot/temperature": []}),
        ("devices/hot/pressure", {"#": [0, 1, 2, 3]}),
        ("devices/+/temperature", {"#": [0, 2, 3], "devices/+/temperature": [], "devices/hot/temperature": []}),
        ("devices/42/#", {"#": [0, 1], "devices/+/pressure": [0], "devices/+/temperature": [0]}),
        ("devices/hot/+", {"#": [0, 1, 3], "devices/hot/temperature": []}),
        ("+/42/temperature", {"#": [1, 2, 3], "devices/+/temperature": [0]}),
        ("$SYS/#", {"#": [0], "$SYS/+": []}),
        ("$SYS/+", {"#": [0, 2], "$SYS/+": []}),
        ("other/#", {"#": [0]}),
    ],
)
def test_a_plan_has_what_can_match(topic_filter: str, expected: dict[str, list[int]]) -> None:
    found = texts(DEVICES, topic_filter)
    if topic_filter == "+/42/temperature":
        assert found.pop("devices/hot/temperature", None) is None
    assert found == expected


def test_a_wildcard_at_the_first_level_leaves_out_dollar_patterns() -> None:
    assert "$SYS/+" not in texts(DEVICES, "#")
    assert "$SYS/+" not in texts(DEVICES, "+/x")
    assert set(texts(DEVICES, "#")) == {"#", "devices/+/pressure", "devices/+/temperature", "devices/hot/temperature"}


def test_levels_beyond_the_indexed_ones_are_fixed_as_one_token() -> None:
    patterns = set_of("#", levels=2)
    assert texts(patterns, "a/b/c/d") == {"#": [0, 1, 2]}
    assert texts(patterns, "a/+/c/d") == {"#": [0, 2]}
    assert texts(patterns, "a/+/c/+") == {"#": [0]}
    assert texts(patterns, "a/+/c/#") == {"#": [0]}
    assert texts(patterns, "a/+") == {"#": [0, 2]}
    assert texts(patterns, "a/+/#") == {"#": [0]}
    assert texts(patterns, "a") == {"#": [0, 1]}
    assert texts(patterns, "#") == {"#": []}


def test_tails_on_the_way_are_asked_and_no_others() -> None:
    patterns = set_of("#", "a/#", "a/+/c", "a/b/c", "a/b/#", "x/#", "+/y")
    assert set(texts(patterns, "a/b/+")) == {"#", "a/#", "a/b/#", "a/b/c"}
    assert set(texts(patterns, "a/z/+")) == {"#", "a/#", "a/+/c"}
    assert set(texts(patterns, "+/y")) == {"#", "+/y", "a/#", "a/b/#", "x/#"} - {"a/b/#"}
    assert set(texts(patterns, "a/#")) == {"#", "a/#", "a/+/c", "a/b/c", "a/b/#"}
    assert set(texts(patterns, "q/#")) == {"#", "+/y"}


def test_an_invalid_filter_is_refused() -> None:
    for wrong in ("", "a/#/b", "$share/g/a"):
        with pytest.raises(InvalidTopicError):
            filter_plan(DEVICES, wrong)


@given(models.pattern_sets(), models.filters)
def test_a_visit_may_end_the_plan(model: models.Patterns, topic_filter: bytes) -> None:
    patterns, seed = PatternSet(model.text), ffi.new("hmq_hash_seed *")
    all_of = [plan.pattern for plan in filter_plan(patterns, topic_filter)]
    text = heap(topic_filter)
    for most in range(1, len(all_of) + 1):
        seen: list[int] = []

        def visit(_context: object, plan: object, seen: list[int] = seen, most: int = most) -> bool:
            seen.append(plan.pattern)  # type: ignore[attr-defined]
            return len(seen) < most

        callback = ffi.callback("bool(void *, const hmq_plan_pattern *)", visit)
        ended = lib.hmq_plan_each(patterns._set, seed, text, len(topic_filter), callback, ffi.NULL)
        assert not ended
        assert seen == all_of[:most]
    assert len(set(all_of)) == len(all_of)


def test_a_plan_of_any_bytes_is_safe() -> None:
    patterns, seed = set_of("#", "a/+", "+/+/b", levels=3), ffi.new("hmq_hash_seed *")
    out = ffi.new("hmq_plan_pattern[]", 3)
    for text in (b"", b"/", b"#/a", b"a/#b", b"+\0/", b"/" * 300, b"+/" * 200 + b"#"):
        assert lib.hmq_plan_collect(patterns._set, seed, heap(text), len(text), out, 3) <= 3
        assert lib.hmq_plan_collect(patterns._set, seed, heap(text), len(text), ffi.NULL, 0) <= 3


# ---- scans ----


def test_a_scan_needs_lists() -> None:
    with pytest.raises(ValueError, match="0 lists; expected those of 1 to 17 slots"):
        Scan([])
    with pytest.raises(ValueError, match="18 lists"):
        Scan([(PlanSlot(i, 0, 8), 0, b"") for i in range(18)])
    assert Scan([(PlanSlot(i, 0, 8), 0, b"") for i in range(17)]).next(1).result is ScanResult.END


def test_a_corrupt_list_is_an_error_wherever_it_is() -> None:
    good, bad = models.postings([(1, 0), (9, 0)], 8), models.postings([(1, 0)], 8) + b"\x80"
    slot = PlanSlot(0, 0, 8)
    for lists in ([(slot, 0, bad)], [(slot, 0, good), (PlanSlot(1, 0, 8), 0, bad)], [(slot, 0, good), (slot, 1, bad)]):
        scan = Scan(lists)
        with pytest.raises(CorruptPostingsError):
            [scan.next(start) for start in (2, 3, 10)]


def test_pages_that_were_filled_out_of_order_lose_nothing() -> None:
    slot = PlanSlot(0, 5, 8)
    parts = [index_place(5, 8, page) for page in (0, 1)]
    numbers = [[1, 2, 50, 60], [10, 55]]
    lists = [
        (slot, page, models.postings([(n, parts[page].fragment) for n in numbers[page]], parts[page].fragment_bits))
        for page in (0, 1)
    ]
    scan, found, position = Scan(lists), [], 1
    while (step := scan.next(position)).result is ScanResult.FOUND:
        found.append(step.number)
        position = step.number + 1
    assert found == [1, 2, 10, 50, 55, 60]


def test_the_rare_level_leads() -> None:
    """With the dense level first, a scan would look at every entry of it."""
    dense = models.postings([(n, 0) for n in range(1, 20_001)], 8)
    rare = models.postings([(n, 0) for n in range(1000, 20_001, 1000)], 8)
    for lists in ([(PlanSlot(0, 0, 8), 0, dense), (PlanSlot(1, 0, 8), 0, rare)],
                  [(PlanSlot(0, 0, 8), 0, rare), (PlanSlot(1, 0, 8), 0, dense)]):  # fmt: skip
        scan, position, visited, found = Scan(lists), 1, 0, 0
        while (step := scan.next(position)).result is ScanResult.FOUND:
            visited, found, position = visited + step.visited, found + 1, step.number + 1
        assert found == 20
        assert visited + step.visited <= 2 * found + 1


@given(st.lists(st.lists(st.integers(1, 60), unique=True).map(sorted), min_size=1, max_size=4), st.integers(0, 5))
def test_a_scan_yields_what_is_in_all_lists_within_its_budget(numbers: list[list[int]], budget: int) -> None:
    scan = Scan([(PlanSlot(i, 3, 8), 0, models.postings([(n, 3) for n in own], 8)) for i, own in enumerate(numbers)])
    expected = sorted(set.intersection(*map(set, numbers)))
    found, position = [], 0
    while (step := scan.next(position, budget)).result is not ScanResult.END:
        assert step.visited <= budget
        assert step.number >= position + (step.result is ScanResult.LIMIT)
        position = step.number
        if step.result is ScanResult.FOUND:
            found.append(position)
            position += 1
    assert found == expected


# ---- how much is looked at ----


def test_a_device_of_100_000_is_read_with_less_than_twice_the_visits() -> None:
    chosen = random.Random(5)
    devices = [chosen.randrange(100_000) for _ in range(40_000)]
    store = filled(set_of("#", "devices/+/temperature"), [b"devices/%d/temperature" % d for d in devices])
    asked = devices[:300]
    returned = sum(len(store.read(b"devices/%d/#" % device)) for device in asked)
    assert returned == sum(devices.count(device) for device in asked)
    assert store.visited < 2 * returned
    assert store.index_bytes / len(devices) < 4


def test_a_concrete_topic_without_a_pattern_of_its_own_is_read_with_less_than_twice_the_visits() -> None:
    chosen = random.Random(6)
    levels = [b"site-%d", b"line-%d", b"machine-%d", b"value-%d"]
    sizes = [3, 10, 200, 5]
    topics = [b"/".join(t % chosen.randrange(n) for t, n in zip(levels, sizes, strict=True)) for _ in range(10_000)]
    topics += [topic + b"/raw" for topic in topics[:5000]]
    store = filled(set_of("#"), topics)
    asked = chosen.sample(topics, 200)
    returned = sum(len(store.read(topic)) for topic in asked)
    assert returned == sum(topics.count(topic) for topic in asked)
    assert store.visited < 2 * returned
    assert store.index_bytes / len(topics) < 5 * 5.4  # slots: four or five levels, and where they end
