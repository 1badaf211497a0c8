"""The subscription trie against a dictionary and brute force; growing and shrinking; memory that runs out."""

import random
from collections import Counter
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from holdmq.core import InvalidTopicError, Match, SetResult, TopicTrie
from holdmq.core._binding import ffi, lib
from tests.core import models
from tests.core.support import Books, heap

if TYPE_CHECKING:
    from collections.abc import Callable

Pairs: TypeAlias = dict[tuple[str, int], int]
BIG = 2**64 - 1  # the largest subscriber

subscribers = st.one_of(st.integers(0, 40), st.just(BIG))
options = st.one_of(st.integers(0, 2), st.just(2**32 - 1))


def matching(pairs: Pairs, name: str) -> list[Match]:
    """Brute force: every filter is asked."""
    found = (Match(key[1], value) for key, value in pairs.items() if models.topic_matches(key[0], name))
    return sorted(found)


def node_count(pairs: Pairs) -> int:
    """Every beginning of every filter is one node."""
    levels = (key[0].split("/") for key in pairs)
    return len({tuple(parts[:size]) for parts in levels for size in range(len(parts) + 1)} | {()})


def units(count: int = 2**40) -> Any:
    """What a walk may take."""
    return ffi.new("size_t *", count)


def contents(trie: TopicTrie) -> Pairs:
    """What a walk sees; a pair that it sees twice is an error."""
    seen = [((name.decode(), subscriber), value) for name, subscriber, value in trie]
    assert len(dict(seen)) == len(seen)
    return dict(seen)


# ---- the model ----


class TrieMachine(RuleBasedStateMachine):
    """Random sets and removes; after each step trie and dictionary agree.

    A filter may be crowded by many subscribers, a level by many children, so that every form of the containers is
    entered and left.
    """

    def __init__(self) -> None:
        super().__init__()
        self.books = Books()
        self.trie = TopicTrie(seed=12345, allocator=self.books.allocator)
        self.model: Pairs = {}

    @rule(topic_filter=models.filters, subscriber=subscribers, value=options)
    def set(self, topic_filter: str, subscriber: int, value: int) -> None:
        old = self.model.get((topic_filter, subscriber))
        expected = SetResult.ADDED if old is None else SetResult.UNCHANGED if old == value else SetResult.REPLACED
        assert self.trie.set(topic_filter, subscriber, value) is expected
        self.model[topic_filter, subscriber] = value

    @rule(topic_filter=models.filters, subscriber=subscribers)
    def remove(self, topic_filter: str, subscriber: int) -> None:
        there = self.model.pop((topic_filter, subscriber), None) is not None
        assert self.trie.remove(topic_filter, subscriber) is there

    @rule(topic_filter=models.filters, count=st.integers(10, 60))
    def crowd(self, topic_filter: str, count: int) -> None:
        for subscriber in range(count):
            self.set(topic_filter, subscriber, 1)

    @rule(parent=st.sampled_from(["", "a/", "+/"]), count=st.integers(5, 30), tail=st.sampled_from(["", "/#", "/+"]))
    def widen(self, parent: str, count: int, tail: str) -> None:
        for number in range(count):
            self.set(f"{parent}{number}{tail}", number % 3, 0)

    @rule(data=st.data(), share=st.floats(0, 1))
    def thin_out(self, data: st.DataObject, share: float) -> None:
        keys = sorted(self.model)
        shuffled = data.draw(st.randoms(use_true_random=False)).sample(keys, int(len(keys) * share))
        for topic_filter, subscriber in shuffled:
            self.remove(topic_filter, subscriber)

    @rule(name=models.names)
    def match(self, name: str) -> None:
        assert sorted(self.trie.match(name)) == matching(self.model, name)

    @invariant()
    def agrees(self) -> None:
        assert contents(self.trie) == self.model
        assert len(self.trie) == len(self.model)
        assert self.trie.nodes == node_count(self.model)
        assert self.trie.memory_bytes == self.books.bytes_out

    def teardown(self) -> None:
        """Everything is given back."""
        del self.trie
        assert self.books.sizes == {}


TestTrie = TrieMachine.TestCase
TestTrie.settings = settings(max_examples=60, stateful_step_count=20)


@given(st.dictionaries(st.tuples(models.names, subscribers), options, max_size=25), models.filters)
def test_a_filter_finds_the_names_that_it_matches(model: Pairs, topic_filter: str) -> None:
    trie = TopicTrie()
    for (name, subscriber), value in model.items():
        trie.set(name, subscriber, value)
    expected = [Match(key[1], value) for key, value in model.items() if models.topic_matches(topic_filter, key[0])]
    assert sorted(trie.match_filter(topic_filter)) == sorted(expected)


def step(trie: TopicTrie, name: bytes, place: Any, units: int) -> tuple[bool, list[int]]:
    """One step of a match: whether it was the last one, and the options of what it visited."""
    seen: list[int] = []

    def take(_context: object, _subscriber: int, options: int) -> bool:
        seen.append(options)
        return True

    on_pair = ffi.callback("bool(void *, uint64_t, uint32_t)", take)
    left = ffi.new("size_t *", units)
    is_done = lib.hmq_trie_match_some(trie._trie, heap(name), len(name), place, left, on_pair, ffi.NULL)
    assert is_done or left[0] == 0
    return is_done, seen


@given(st.randoms(use_true_random=False), models.names, st.integers(1, 40), st.integers(0, 60))
@settings(max_examples=60)
def test_a_match_in_steps_visits_once_what_stays_and_nothing_twice(
    chosen: random.Random, name: str, units: int, changes: int
) -> None:
    """Filters and their subscribers come and go between the steps; the options tell the pairs apart."""
    trie, there, number = TopicTrie(), dict[tuple[str, int], int](), 0
    filters = [f for f in every_filter(name) if chosen.random() < 0.7] + ["other", "other/#", "+/other/+"]

    def change() -> None:
        nonlocal number
        number += 1
        topic_filter, many = chosen.choice(filters), chosen.random() < 0.2
        if chosen.random() < 0.5:
            for subscriber in range(100 if many else 1):
                key = (topic_filter, chosen.randrange(200) if not many else subscriber)
                trie.set(*key, number)
                there[key] = number
            return
        for key in [key for key in there if key[0] == topic_filter and (many or chosen.random() < 0.1)]:
            assert trie.remove(*key)
            del there[key]

    for _ in range(30):
        change()
    place, staying, seen = ffi.new("hmq_trie_place *"), dict(there), list[int]()
    expected = {key for key in there if models.topic_matches(key[0], name)}
    for key in there:  # from now on each pair has a number of its own
        number += 1
        trie.set(*key, number)
        there[key] = number
    staying = dict(there)
    is_done = False
    while not is_done:
        is_done, found = step(trie, name.encode(), place, units)
        seen += found
        for _ in range(chosen.randrange(3) if changes > 0 else 0):
            changes -= 1
            change()
            staying = {key: value for key, value in staying.items() if there.get(key) == value}
    visits = Counter(seen)
    assert all(visits[value] == 1 for key, value in staying.items() if key in expected)
    assert all(visits[value] == 0 for key, value in staying.items() if key not in expected)


def every_filter(name: str) -> list[str]:
    """All that match it."""
    levels = name.split("/")
    found = []
    for bits in range(2 ** len(levels)):
        parts = ["+" if bits >> at & 1 else level for at, level in enumerate(levels)]
        found += ["/".join(parts), *("/".join([*parts[:size], "#"]) for size in range(len(parts) + 1))]
    return list(dict.fromkeys(found))


# ---- single claims ----


def test_a_hash_matches_its_parent_level() -> None:
    trie = TopicTrie()
    trie.set("a/#", 1)
    assert trie.match("a") == trie.match("a/b") == trie.match("a/b/c") == [Match(1, 0)]
    assert trie.match("b") == []


def test_wildcards_in_the_first_level_do_not_see_dollar_names() -> None:
    trie = TopicTrie()
    for topic_filter in ("#", "+/b", "$SYS/#", "$SYS/b"):
        trie.set(topic_filter, 1)
    assert len(trie.match("$SYS/b")) == 2
    assert len(trie.match("x/b")) == 2
    names = TopicTrie()
    for name in ("$SYS/b", "$SYS", "x/$b", "x"):
        names.set(name, 1)
    assert len(names.match_filter("#")) == 2
    assert len(names.match_filter("+/#")) == 2
    assert len(names.match_filter("$SYS/#")) == 2
    assert len(names.match_filter("$SYS/+")) == 1


def test_a_subscriber_is_visited_once_for_each_matching_filter() -> None:
    trie = TopicTrie()
    for topic_filter in ("a/b", "a/+", "+/b", "#"):
        trie.set(topic_filter, 7, options=len(topic_filter))
    assert sorted(trie.match("a/b")) == [Match(7, 1), Match(7, 3), Match(7, 3), Match(7, 3)]


@pytest.mark.parametrize("topic_filter", ["", "a#", "a+", "#/a", "$share/g/a", "a\0", "/" * 128, "x" * 65536])
def test_what_is_not_a_filter_changes_nothing(topic_filter: str) -> None:
    trie = TopicTrie()
    with pytest.raises(InvalidTopicError):
        trie.set(topic_filter, 1)
    with pytest.raises(InvalidTopicError):
        trie.remove(topic_filter, 1)
    assert (len(trie), trie.nodes) == (0, 1)


def test_a_trie_does_not_match_what_is_not_a_name_or_filter() -> None:
    trie = TopicTrie()
    trie.set("#", 1)
    never = ffi.callback("bool(void *, uint64_t, uint32_t)", lambda *_arguments: pytest.fail("visited"))
    for text in (b"", b"/" * 128, b"a" * 65536):
        assert lib.hmq_trie_match(trie._trie, heap(text), len(text), never, ffi.NULL)
        assert lib.hmq_trie_match_filter(trie._trie, heap(text), len(text), never, ffi.NULL)
    with pytest.raises(InvalidTopicError):
        trie.match("a/#")
    with pytest.raises(InvalidTopicError):
        trie.match_filter("a#")


@given(st.sets(models.filters, min_size=1, max_size=12), st.integers(1, 20), st.sampled_from(["a/b", "a", "b/aa/a"]))
def test_a_callback_that_returns_false_ends_the_walk(stored: set[str], crowd: int, name: str) -> None:
    trie = TopicTrie()
    for topic_filter in stored:
        for subscriber in range(crowd):
            trie.set(topic_filter, subscriber)
    seen: list[int] = []
    last = 0

    def see(*_arguments: object) -> bool:
        seen.append(1)
        return len(seen) != last

    on_pair = ffi.callback("bool(void *, uint64_t, uint32_t)", see)
    on_filter = ffi.callback("bool(void *, const char *, size_t, uint64_t, uint32_t)", see)
    text = heap(name.encode())
    walks: list[Callable[[], Any]] = [
        lambda: lib.hmq_trie_match(trie._trie, text, len(name), on_pair, ffi.NULL),
        lambda: lib.hmq_trie_match_filter(trie._trie, heap(b"#"), 1, on_pair, ffi.NULL),
        lambda: lib.hmq_trie_match_filter(trie._trie, heap(b"+/#"), 3, on_pair, ffi.NULL),
        lambda: lib.hmq_trie_match_filter(trie._trie, heap(b"+"), 1, on_pair, ffi.NULL),
        lambda: lib.hmq_trie_walk(trie._trie, on_filter, ffi.NULL),
        lambda: lib.hmq_trie_match_walk(trie._trie, text, len(name), 0, units(), on_filter, ffi.NULL),
    ]
    for walk in walks:
        last = 0
        seen.clear()
        assert walk()
        total = len(seen)
        for last in {1, total // 3, total // 2, total} - {0}:
            if last <= total:
                seen.clear()
                assert not walk()
                assert len(seen) == last


@given(st.dictionaries(st.tuples(models.filters, subscribers), options, max_size=25), models.names)
def test_a_name_finds_its_filters_with_their_texts(model: Pairs, name: str) -> None:
    trie = TopicTrie()
    for (topic_filter, subscriber), value in model.items():
        trie.set(topic_filter, subscriber, value)
    found: list[tuple[str, int, int]] = []

    def see(_context: object, text: Any, length: int, subscriber: int, value: int) -> bool:
        found.append((ffi.buffer(text, length)[:].decode(), subscriber, value))
        return True

    on_filter = ffi.callback("bool(void *, const char *, size_t, uint64_t, uint32_t)", see)
    encoded = name.encode()
    assert lib.hmq_trie_match_walk(trie._trie, heap(encoded), len(encoded), 0, units(), on_filter, ffi.NULL)
    expected = [(key[0], key[1], value) for key, value in model.items() if models.topic_matches(key[0], name)]
    assert sorted(found) == sorted(expected)
    every = found.copy()
    for skip in range(len(every) + 2):
        found.clear()
        assert lib.hmq_trie_match_walk(trie._trie, heap(encoded), len(encoded), skip, units(), on_filter, ffi.NULL)
        assert found == every[skip:]


def test_a_walk_skips_the_first_matches_of_long_lists() -> None:
    trie = TopicTrie()
    for subscriber in range(1, 501):
        trie.set("a", subscriber, subscriber % 7)
        trie.set("+", subscriber * 1000)
    found: list[tuple[int, int]] = []

    def see(_context: object, _text: Any, _length: int, subscriber: int, value: int) -> bool:
        found.append((subscriber, value))
        return True

    on_filter = ffi.callback("bool(void *, const char *, size_t, uint64_t, uint32_t)", see)
    assert lib.hmq_trie_match_walk(trie._trie, heap(b"a"), 1, 0, units(), on_filter, ffi.NULL)
    every = found.copy()
    assert len(every) == 1000
    for skip in (1, 7, 8, 499, 500, 501, 777, 999, 1000, 5000):
        found.clear()
        assert lib.hmq_trie_match_walk(trie._trie, heap(b"a"), 1, skip, units(), on_filter, ffi.NULL)
        assert found == every[skip:]


def test_a_walk_ends_when_it_has_taken_what_it_may() -> None:
    trie = TopicTrie()
    for number in range(256):
        trie.set("/".join("+" if number >> level & 1 else "a" for level in range(8)), number + 1)
    seen: list[int] = []

    def take(*words: int) -> bool:
        seen.append(words[3])
        return True

    on_filter = ffi.callback("bool(void *, const char *, size_t, uint64_t, uint32_t)", take)
    name = heap(b"a/a/a/a/a/a/a/a")
    nodes = 2**9 - 1  # the root included
    for count in (0, 1, 100, nodes - 1):
        seen.clear()
        left = units(count)
        assert not lib.hmq_trie_match_walk(trie._trie, name, 15, 0, left, on_filter, ffi.NULL)
        assert left[0] == 0
        assert len(seen) <= count
    seen.clear()
    left = units(nodes)
    assert lib.hmq_trie_match_walk(trie._trie, name, 15, 0, left, on_filter, ffi.NULL)
    assert (left[0], len(seen)) == (0, 256)
    long = TopicTrie()
    long.set("x" * 60_000, 1)
    assert not lib.hmq_trie_match_walk(long._trie, heap(b"x" * 60_000), 60_000, 0, units(100), on_filter, ffi.NULL)


def test_more_matches_than_expected_are_all_returned() -> None:
    trie = TopicTrie()
    for subscriber in range(1000):
        trie.set("a", subscriber)
    assert sorted(trie.match("a")) == [Match(subscriber, 0) for subscriber in range(1000)]
    assert sorted(trie.match_filter("+")) == [Match(subscriber, 0) for subscriber in range(1000)]


def test_the_deepest_and_the_longest_filter_work() -> None:
    trie = TopicTrie()
    deepest, longest = "/".join(["a"] * 127 + ["#"]), "x" * 65535
    trie.set(deepest, 1)
    trie.set(longest, 2)
    assert trie.match("/".join(["a"] * 128)) == [Match(1, 0)]
    assert trie.match(longest) == [Match(2, 0)]
    assert contents(trie) == {(deepest, 1): 0, (longest, 2): 0}
    assert trie.remove(deepest, 1)
    assert trie.remove(longest, 2)
    assert trie.nodes == 1


def test_only_an_empty_trie_takes_a_seed() -> None:
    trie = TopicTrie(seed=2**128 - 1)
    trie.set("a/b", 1)
    assert not lib.hmq_trie_seed(trie._trie, 1, 2)
    assert trie.match("a/b") == [Match(1, 0)]
    trie.remove("a/b", 1)
    assert lib.hmq_trie_seed(trie._trie, 1, 2)
    with pytest.raises(OverflowError):
        TopicTrie(seed=2**128)


# ---- many ----


@pytest.mark.parametrize("shape", ["one parent, many children", "one filter, many subscribers"])
def test_many_come_and_go_and_leave_nothing(shape: str) -> None:
    books = Books()
    trie = TopicTrie(allocator=books.allocator)
    empty = trie.memory_bytes
    numbers = list(range(3000))
    random.Random(1).shuffle(numbers)
    keys = [(f"d/{number}/c", number) if shape.startswith("one parent") else ("d/x/c", number) for number in numbers]
    for at, (topic_filter, subscriber) in enumerate(keys):
        assert trie.set(topic_filter, subscriber, 1) is SetResult.ADDED
        if at % 500 == 0:
            assert contents(trie) == dict.fromkeys(keys[: at + 1], 1)
    assert all(Match(subscriber, 1) in trie.match(topic_filter) for topic_filter, subscriber in keys[::100])
    for at, (topic_filter, subscriber) in enumerate(reversed(keys)):
        assert trie.remove(topic_filter, subscriber)
        if at % 500 == 0:
            assert contents(trie) == dict.fromkeys(keys[: len(keys) - at - 1], 1)
    assert (len(trie), trie.nodes, trie.memory_bytes) == (0, 1, empty)
    assert books.bytes_out == empty


def test_levels_with_the_same_hash_are_distinguished() -> None:
    trie = TopicTrie()
    for number in range(200_000):  # of so many, about five pairs share all 32 bits of hash; the seed is always 0
        trie.set(f"{number}", number)
    assert trie.nodes == 200_001
    assert all(trie.match(f"{number}") == [Match(number, 0)] for number in range(0, 200_000, 100))


def test_a_filter_of_its_own_costs_few_bytes() -> None:
    trie = TopicTrie()
    for number in range(20000):
        trie.set(f"devices/sensor-{number:06}/commands", number)
    assert trie.memory_bytes / 20000 < 160  # two nodes, their level texts, one bucket


def test_one_more_subscriber_of_a_filter_costs_few_bytes() -> None:
    trie = TopicTrie()
    for number in range(20000):
        trie.set("broadcast/#", number)
    assert trie.memory_bytes / 20000 < 20  # 12 for the pair, the rest is room to grow


# ---- memory that runs out ----


# What stands in the trie before the one set in which allocations fail: filter and subscriber.
SCENARIOS: dict[str, list[tuple[str, int]]] = {
    "an empty trie": [],
    "a second subscriber": [("a/b", 1)],
    "a full block": [("a/b", number) for number in range(4)],
    "a block becomes buckets": [("a/b", number) for number in range(16)],
    "a bucket is split": [("a/b", number) for number in range(71)],
    "a chain becomes buckets": [(f"a/{number}", number) for number in range(8)],
    "a child bucket is added": [(f"a/{number}", number) for number in range(40)],
    "a hash below a node": [("a/b/c", 1)],
}


@pytest.mark.parametrize("topic_filter", ["a/b", "a/b/c/d/+/#", "a/b/#", "+"])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_failed_allocation_leaves_the_trie_as_it_was(scenario: str, topic_filter: str) -> None:
    failing_call, refused = 0, True
    while refused or failing_call < 3:
        failing_call += 1
        books = Books()
        trie = TopicTrie(allocator=books.allocator)
        for old_filter, old_subscriber in SCENARIOS[scenario]:
            trie.set(old_filter, old_subscriber)
        before = (contents(trie), trie.nodes, len(trie), trie.memory_bytes)
        books.fail_at(books.calls + failing_call)
        try:
            trie.set(topic_filter, 999, 3)
            refused = False
            before[0][topic_filter, 999] = 3
            assert contents(trie) == before[0]
        except MemoryError:
            refused = True
            assert (contents(trie), trie.nodes, len(trie), trie.memory_bytes) == before
        assert trie.memory_bytes == books.bytes_out
        books.fails = lambda _call: False
        trie.set(topic_filter, 999, 3)
        for key, subscriber in contents(trie):
            assert trie.remove(key, subscriber)
        assert trie.nodes == 1
    assert failing_call < 30


class StarvedTrieMachine(RuleBasedStateMachine):
    """Allocations fail at random: a refused set changes nothing, a remove never fails, everything is found."""

    def __init__(self) -> None:
        super().__init__()
        self.random = random.Random(0)
        self.share = 0.0
        self.books = Books()
        self.trie = TopicTrie(allocator=self.books.allocator)
        self.books.fails = lambda _call: self.random.random() < self.share
        self.model: Pairs = {}

    @rule(seed=st.integers(0, 1000), share=st.sampled_from([0.0, 0.2, 0.5, 0.9, 1.0]))
    def starve(self, seed: int, share: float) -> None:
        self.random.seed(seed)
        self.share = share

    @rule(topic_filter=models.filters, count=st.integers(1, 200))
    def set_many(self, topic_filter: str, count: int) -> None:
        for subscriber in range(count):
            self._set(topic_filter, subscriber)

    @rule(parent=st.sampled_from(["", "a/"]), count=st.integers(1, 40))
    def widen(self, parent: str, count: int) -> None:
        for number in range(count):
            self._set(f"{parent}{number}", 0)

    def _set(self, topic_filter: str, subscriber: int) -> None:
        try:
            self.trie.set(topic_filter, subscriber, 1)
        except MemoryError:
            return
        self.model[topic_filter, subscriber] = 1

    @rule(seed=st.integers(0, 1000), share=st.floats(0, 1))
    def remove_many(self, seed: int, share: float) -> None:
        keys = sorted(self.model)
        for topic_filter, subscriber in random.Random(seed).sample(keys, int(len(keys) * share)):
            assert self.trie.remove(topic_filter, subscriber)
            del self.model[topic_filter, subscriber]

    @invariant()
    def agrees(self) -> None:
        assert contents(self.trie) == self.model
        assert self.trie.nodes == node_count(self.model)
        assert self.trie.memory_bytes == self.books.bytes_out

    def teardown(self) -> None:
        """Everything is given back, whatever failed."""
        for topic_filter, subscriber in self.model:
            assert self.trie.remove(topic_filter, subscriber)
        assert self.trie.nodes == 1
        del self.trie
        assert self.books.sizes == {}


TestStarvedTrie = StarvedTrieMachine.TestCase
TestStarvedTrie.settings = settings(max_examples=40, stateful_step_count=15)


def test_without_memory_there_is_no_trie() -> None:
    for failing_call in (1, 2):
        books = Books()
        books.fail_at(failing_call)
        with pytest.raises(MemoryError):
            TopicTrie(allocator=books.allocator)
        assert books.sizes == {}
    lib.hmq_trie_free(ffi.NULL)


def test_a_pair_is_found_in_each_form_of_a_filter() -> None:
    trie = TopicTrie()
    options = ffi.new("uint32_t *")

    def get(topic_filter: bytes, subscriber: int) -> int | None:
        found = lib.hmq_trie_get(trie._trie, heap(topic_filter), len(topic_filter), subscriber, options)
        return int(options[0]) if found else None

    filters = (b"a", b"a/b", b"a/+", b"a/#", b"#", b"+/b")
    for count in (1, 2, 16, 17, 500):  # one pair, a block, buckets
        for topic_filter in filters:
            assert get(topic_filter, count) is None
            for subscriber in range(count):
                trie.set(topic_filter, subscriber, subscriber + count)
            assert [get(topic_filter, subscriber) for subscriber in range(count)] == list(range(count, 2 * count))
            assert get(topic_filter, count) is None
    for topic_filter in (b"a/b/c", b"b", b"+", b"b/#", b"", b"a/#/b", b"$share/g/a"):
        assert get(topic_filter, 0) is None
    assert trie.remove("a/#", 3)
    assert get(b"a/#", 3) is None
    assert get(b"a/#", 4) == 504


def test_the_c_functions_agree_with_the_python_class() -> None:
    owner = TopicTrie()
    trie = owner._trie
    assert lib.hmq_trie_set(trie, heap(b"a/+"), 3, 7, 1) == lib.HMQ_TRIE_ADDED
    assert lib.hmq_trie_remove(trie, heap(b"a/b"), 3, 7) == lib.HMQ_TRIE_UNCHANGED
    assert lib.hmq_trie_remove(trie, heap(b"a/+"), 3, 8) == lib.HMQ_TRIE_UNCHANGED
    entries = ffi.new("hmq_trie_entry[1]")
    assert lib.hmq_trie_collect(trie, heap(b"a/b"), 3, entries, 0) == 1
    assert lib.hmq_trie_collect(trie, heap(b"a/b"), 3, entries, 1) == 1
    assert (entries[0].subscriber, entries[0].options) == (7, 1)
    assert lib.hmq_trie_collect_filter(trie, heap(b"a/b"), 3, entries, 1) == 0


def filled(books: Books) -> TopicTrie:
    """A trie with every form of node: chains, buckets, `+`, `#`, few and many pairs."""
    trie = TopicTrie(allocator=books.allocator)
    for i in range(400):
        trie.set(f"wide/{i}", i)
        trie.set(f"a/{i % 7}/b/{i}", i)
        trie.set("+/x/#", i)
    for topic_filter in ("#", "+", "/", "a/+/+/c"):
        trie.set(topic_filter, 1)
    return trie


@pytest.mark.parametrize("work", [1, 3, 100, 10**6])
def test_a_trie_is_freed_in_steps(work: int) -> None:
    books = Books()
    trie = filled(books)
    raw = trie._trie
    ffi.gc(raw, cast("Any", None))  # it is freed here
    steps, left = 1, trie.memory_bytes
    while not lib.hmq_trie_free_some(raw, work):
        assert lib.hmq_trie_bytes(raw) <= left
        left = lib.hmq_trie_bytes(raw)
        steps += 1
    assert books.sizes == {}
    assert steps >= 800 // work


def test_a_trie_that_was_freed_in_part_can_be_freed_at_once() -> None:
    for steps in (1, 5, 300):
        books = Books()
        trie = filled(books)
        for _ in range(steps):
            assert not lib.hmq_trie_free_some(trie._trie, 1)
        del trie
        assert books.sizes == {}
