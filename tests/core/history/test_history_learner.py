"""What is learned from topics: levels that vary become +, with everything below merged, in bounded memory."""

import contextlib
import random
import re
from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdmq.core import InvalidTopicError, PatternCost, PatternLearner, PatternSet
from holdmq.core._binding import ffi, lib
from tests.core.history import history_models as models
from tests.core.support import Books

HEAD = b"holdmq-patterns 1 levels=%d\n"
UNLEARNED = PatternSet(HEAD % 8 + b"#")


def lines(learner: PatternLearner, max_children: int | None = None) -> list[str]:
    made = learner.patterns(max_children)
    assert made is not None
    return made.text.decode().splitlines()[1:]


def taught(topics: list[str], **options: int) -> PatternLearner:
    learner = PatternLearner(**options)
    for topic in topics:
        learner.observe(topic)
    return learner


# ---- what is learned ----


def test_a_million_device_topics_with_two_suffixes_end_in_two_patterns() -> None:
    learner = PatternLearner()
    for device in range(500_000):
        learner.observe(b"devices/%d/temperature" % device)
        learner.observe(b"devices/%d/pressure" % device)
    assert [re.sub(r"\+\d+", "+", line) for line in lines(learner)] == [
        "#",
        "devices/+/pressure",
        "devices/+/temperature",
    ]
    assert learner.messages == 1_000_000
    assert learner.nodes < 10
    assert learner.memory_bytes < 100_000


def test_the_example_of_the_devices_and_the_heartbeat() -> None:
    topics = [f"devices/client-{i}/{s}" for i in range(100) for s in ("temperature", "pressure")]
    learner = taught([*topics, "other_topic/heartbeat"], max_children=99)
    assert lines(learner) == ["#", "devices/+9/pressure", "devices/+9/temperature", "other_topic/heartbeat"]


def test_subtrees_are_merged_whoever_had_them() -> None:
    topics = [f"d/{i}/{'abc'[i % 3]}/{'xy'[i % 2]}" for i in range(1000)]
    assert [line.replace("+12", "+") for line in lines(taught(topics))] == [
        "#", *(f"d/+/{a}/{b}" for a in "abc" for b in "xy")]  # fmt: skip


def test_levels_that_varied_already_are_merged_with_what_is_above_them() -> None:
    topics = [f"site/{i}/dev/{i * 10 + j}/t" for i in range(8) for j in range(10)]
    learner = taught(topics, max_children=5)
    assert [re.sub(r"\+\d+", "+", line) for line in lines(learner)] == ["#", "site/+/dev/+/t"]
    bits = [int(bits) for bits in re.findall(r"\+(\d+)", lines(learner)[1])]
    assert bits[0] in (5, 6, 7)
    assert bits[1] in (8, 9, 10)  # of 80 devices


def test_levels_that_vary_below_one_another_are_all_found() -> None:
    chosen = random.Random(1)
    topics = [
        f"site/{chosen.randrange(300)}/dev/{chosen.randrange(5000)}/m/{chosen.randrange(3)}" for _ in range(20_000)
    ]
    learned = [line.split("/") for line in lines(taught(topics))]
    assert [[part[:1] for part in line] for line in learned[1:]] == [["s", "+", "d", "+", "m", d] for d in "012"]
    assert all(10 <= int(line[1][1:]) <= 11 and 14 <= int(line[3][1:] or "20") <= 16 for line in learned[1:])


def test_few_levels_stay_concrete() -> None:
    topics = [f"rooms/{room}/{what}" for room in range(50) for what in ("light", "heat")]
    assert len(lines(taught(topics))) == 101
    assert lines(taught(topics), 49) == ["#", "rooms/+8/heat", "rooms/+8/light"]
    assert lines(taught(topics, hot_percent=101), 1) == ["#", "rooms/+8/+4"]


def test_a_level_with_much_of_the_traffic_stays_concrete() -> None:
    topics = [f"d/{i if i % 4 else 'gateway'}/t" for i in range(2000)]
    assert "d/gateway/t" not in lines(taught(topics))  # it was merged with the rest when they became too many
    learner = taught(topics, max_children=5000)
    assert lines(learner, 100) == ["#", "d/+13/t", "d/gateway/t"]
    assert lines(taught(topics, max_children=5000, hot_percent=101), 100) == ["#", "d/+13/t"]
    assert lines(learner, 0) == ["#", "+4/+13/+4"]


def test_dollar_topics_are_not_merged_with_others_and_are_bounded() -> None:
    topics = [f"{i}/x" for i in range(500)] + [f"$app{i}/x" for i in range(40)] + ["$app1/y"]
    learned = lines(taught(topics))
    assert [line for line in learned if not line.startswith("$")] == ["#", "+11/x"]
    assert len([line for line in learned if line.startswith("$")]) == 17
    assert "$app1/y" in learned


def test_what_lies_beyond_the_indexed_levels_gets_a_tail() -> None:
    topics = [f"a/b/{i}/d" for i in range(50)] + ["a/x/y"] * 2
    assert lines(taught(topics, levels=2)) == ["#", "a/b/#", "a/x/#"]
    assert lines(taught([*topics, "q/r"], levels=2)) == ["#", "a/b/#", "a/x/#", "q/r"]
    rare = [*(["q/r"] * 2000), "a/b/c"]
    assert lines(taught(rare, levels=2)) == ["#", "q/r"]


def test_levels_that_a_text_cannot_have_go_to_a_tail() -> None:
    assert lines(taught(["a/\t/b", "a/\x7f", "a/c"])) == ["#", "a/#", "a/c"]
    many = [f"a/{i}" for i in range(200)]
    assert lines(taught([*many, "a/\t"])) == ["#", "a/+10"]


def test_a_pattern_that_would_be_too_long_is_left_out() -> None:
    long = "x" * 32766
    topics = [f"{long}/{i}/{long}" for i in range(9)] + [f"{long}/{i}/y" for i in range(9)]
    assert len(lines(taught(topics), 9)) == 19
    assert [line[-8:] for line in lines(taught(topics), 5)] == ["#", "xxx/+6/y"]


def test_bits_follow_the_number_of_different_levels() -> None:
    for different, low, high in ((10, 6, 6), (101, 9, 9), (1000, 12, 12), (100_000, 18, 19)):
        learner = taught([f"a/{i}" for i in range(different)], max_children=9)
        bits = int(lines(learner)[1].removeprefix("a/+") or "20")
        assert low <= bits <= high, different


# ---- the model: all topics merged at once ----


def model_lines(topics: dict[bytes, int], levels: int, most: int) -> list[bytes]:
    """The set for a threshold, without hot levels, from all topics at once."""
    found: list[bytes] = [b"#"]
    total = sum(topics.values())

    def emit(group: list[tuple[list[bytes], int]], path: list[bytes]) -> None:
        depth = len(path)
        if any(len(split) == depth for split, _ in group):
            found.append(b"/".join(path))
        beyond = sum(n for split, n in group if len(split) > depth == levels)
        if depth == levels and beyond and beyond * 1000 >= total:
            found.append(b"/".join([*path, b"#"]))
        if depth == levels:
            return
        below: dict[bytes, list[tuple[list[bytes], int]]] = defaultdict(list)
        for split, n in group:
            if len(split) > depth:
                below[split[depth]].append((split, n))
        fixed = {level for level in below if depth == 0 and level.startswith(b"$")}
        varying = set(below) - fixed
        if len(varying) <= most:
            fixed, varying = set(below), set()
        for level in fixed:
            emit(below[level], [*path, level])
        if varying:
            bits = max(4, 2 + len(varying).bit_length())
            emit([topic for level in varying for topic in below[level]], [*path, b"+%d" % bits])

    emit([(topic.split(b"/"), n) for topic, n in topics.items()], [])
    return sorted(found, key=models.sort_key)


@given(st.dictionaries(models.topics, st.integers(1, 5), min_size=1, max_size=60), st.integers(1, 4), st.integers(0, 4))
def test_a_set_is_what_merging_all_topics_at_once_gives(topics: dict[bytes, int], levels: int, most: int) -> None:
    learner = PatternLearner(levels=levels, hot_percent=101, max_patterns=4096)
    for topic, messages in topics.items():
        learner.observe(topic, messages)
    made = learner.patterns(most)
    assert made is not None
    expected = HEAD % levels + b"".join(line + b"\n" for line in model_lines(topics, levels, most))
    assert made.text == expected


@given(
    st.lists(st.tuples(models.topics, st.integers(1, 20)), max_size=80),
    st.integers(1, 4),
    st.integers(1, 4),
    st.integers(0, 4),
    st.sampled_from([1, 30, 60, 101]),
)
def test_what_is_merged_on_the_way_is_a_set_of_its_own(
    topics: list[tuple[bytes, int]], levels: int, most: int, threshold: int, hot: int
) -> None:
    learner = PatternLearner(levels=levels, max_children=most, hot_percent=hot, max_patterns=4096)
    for topic, messages in topics:
        learner.observe(topic, messages)
    assert learner.messages == sum(messages for _, messages in topics)
    made = learner.patterns(threshold)
    assert made is not None
    assert PatternSet(made.text) == made
    for topic, _ in topics:
        line = made[made.find(topic).pattern].text
        plain = b"/".join(map(models.token, line.split(b"/")))
        assert plain == b"#" or lib.hmq_topic_matches(plain, len(plain), topic, len(topic))


# ---- bounds ----


def test_nodes_are_bounded_by_merging_more() -> None:
    chosen = random.Random(2)
    learner = PatternLearner(max_nodes=1000, max_children=50)
    for _ in range(20_000):
        learner.observe("/".join(str(chosen.randrange(40)) for _ in range(chosen.randrange(1, 12))))
        assert learner.nodes <= 1000
    assert learner.messages == 20_000
    assert learner.patterns() is not None


def test_nodes_are_bounded_when_nothing_can_be_merged_but_all() -> None:
    chosen = random.Random(3)
    learner = PatternLearner(max_nodes=1000, max_children=1, levels=16)
    for i in range(3000):
        learner.observe(f"$s{i % 30}/" + "/".join(str(chosen.randrange(2)) for _ in range(15)))
        assert learner.nodes <= 1000


def test_a_set_of_too_many_patterns_is_invalid() -> None:
    learner = taught([f"a{i}/b" for i in range(20)], max_patterns=20)
    assert learner.patterns() is None
    assert lines(learner, 5) == ["#", "+7/b"]


@pytest.mark.parametrize(
    "options",
    [{"levels": 0}, {"levels": 17}, {"max_children": 0}, {"max_children": 10_001}, {"max_nodes": 999}, {"sample": 0},
     {"max_nodes": 10_000_001}, {"max_patterns": 0}, {"max_patterns": 4097}, {"sample": 100_001}, {"hot_percent": 0},
     {"hot_percent": 102}],
)  # fmt: skip
def test_options_out_of_range_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="out of its range"):
        PatternLearner(**options)
    given_to_c = ffi.new("hmq_learner_options *", lib.hmq_learner_defaults())
    for name, value in options.items():
        setattr(given_to_c, name, value)
    allocator = ffi.new("hmq_allocator *", lib.hmq_libc_allocator)
    assert lib.hmq_learner_new(allocator, given_to_c) == ffi.NULL


def test_an_invalid_topic_is_refused() -> None:
    with pytest.raises(InvalidTopicError):
        PatternLearner().observe("a/+")
    with pytest.raises(InvalidTopicError):
        taught(["a"]).cost(UNLEARNED, {"$share/g/a": 1})


# ---- what a set costs ----


def test_a_cost_counts_logs_visits_and_bytes() -> None:
    learner = taught([f"d/{i}/{s}" for i in range(50) for s in "tp"])
    two = PatternSet(HEAD % 8 + b"#\nd/+/p\nd/+/t\nnobody/+")
    cost = learner.cost(two, {"d/+/t": 1, "d/7/#": 3, "nobody/x": 4})
    assert cost.opened == pytest.approx((1 * 1 + 3 * 2 + 4 * 0) / 8)
    assert cost.read == pytest.approx(1)
    assert cost.bytes == pytest.approx((20 + 1) / 7 + 0.75)
    assert cost.cost == pytest.approx(cost.opened + cost.read + cost.bytes / 2)


def test_a_cost_sees_hashes_that_collide() -> None:
    learner = taught([f"d/{i}" for i in range(64)])
    few, many = (learner.cost(PatternSet(HEAD % 8 + b"#\nd/+%d" % bits)) for bits in (1, 20))
    assert few.read == pytest.approx(32, rel=0.2)
    assert many.read == 1
    assert few.bytes < many.bytes


def test_a_filter_that_gets_nothing_costs_a_visit_of_what_it_saw() -> None:
    learner = taught(["d/1", "d/2"])
    assert learner.cost(UNLEARNED, {"x/+": 1}).read == 1
    assert learner.cost(PatternSet(HEAD % 1 + b"d/#1\n#1"), {"d/+/x/y": 1}).read <= 2
    assert learner.cost(UNLEARNED, {"x": 0}) == PatternCost(0, 0, *learner.cost(UNLEARNED, {"x": 0})[2:])


def test_a_topic_without_messages_costs_nothing() -> None:
    learner = PatternLearner()
    learner.observe("a", 0)
    with pytest.raises(ValueError, match="nothing was observed"):
        learner.cost(UNLEARNED)
    cost = ffi.new("hmq_patterns_cost *")
    assert lib.hmq_learner_cost(learner._learner, UNLEARNED._set, ffi.NULL, 0, cost)
    assert (cost.opened, cost.cost) == (0, 0)


def test_the_sample_is_bounded_and_counts_each_of_its_topics_fully() -> None:
    learner = PatternLearner(sample=10)
    for _ in range(3):
        for i in range(500):
            learner.observe(f"t/{i}")
    whole = learner.cost(UNLEARNED)
    assert whole.opened == whole.read == 1
    assert learner.memory_bytes < taught([f"t/{i}" for i in range(500)]).memory_bytes


# ---- proposals ----


def test_a_better_set_is_proposed_and_then_kept() -> None:
    learner = taught([f"d/{i}/{s}" for i in range(2000) for s in "tp"])
    filters = {"d/+/t": 10, "d/42/#": 5}
    first = learner.propose(UNLEARNED, filters)
    assert first.patterns is not None
    assert first.patterns.text == HEAD % 8 + b"#\nd/+13/p\nd/+13/t\n"
    assert first.best == learner.cost(first.patterns, filters)
    assert first.present == learner.cost(UNLEARNED, filters)
    assert first.best.cost < first.present.cost * 0.9
    again = learner.propose(first.patterns, filters)
    assert again.patterns is None
    assert again.best == again.present == first.best


def test_a_set_that_is_hardly_better_is_not_proposed() -> None:
    learner = taught([f"d/{i}/{s}" for i in range(2000) for s in "tp"])
    found = learner.propose(UNLEARNED)
    gain = 100 - 100 * found.best.cost / found.present.cost
    assert learner.propose(UNLEARNED, margin_percent=int(gain)).patterns is not None
    assert learner.propose(UNLEARNED, margin_percent=int(gain) + 1).patterns is None


def test_filters_decide_between_concrete_levels_and_a_plus() -> None:
    topics = [f"rooms/{room}/{what}" for room in range(60) for what in ("light", "heat")]
    learner = taught(topics)
    across = learner.propose(UNLEARNED, {"rooms/+/light": 1}).patterns
    assert across is not None
    assert across.text == HEAD % 8 + b"#\nrooms/+8/heat\nrooms/+8/light\n"
    single = learner.propose(UNLEARNED, {"rooms/7/light": 1}).patterns
    assert single is not None
    assert b"rooms/7/light\n" in single.text


def test_nothing_is_proposed_where_every_set_has_too_many_patterns() -> None:
    learner = taught(["$a/b", "$b/c"], max_patterns=1)
    found = learner.propose(UNLEARNED)
    assert found.patterns is None
    assert found.best == found.present


def test_without_topics_nothing_is_proposed() -> None:
    with pytest.raises(ValueError, match="nothing was observed"):
        PatternLearner().propose(UNLEARNED)
    with pytest.raises(ValueError, match="margin_percent is 101"):
        taught(["a"]).propose(UNLEARNED, margin_percent=101)
    cost = ffi.new("hmq_patterns_cost *")
    assert not lib.hmq_learner_cost(PatternLearner()._learner, UNLEARNED._set, ffi.NULL, 0, cost)


# ---- memory ----


def test_a_learner_gives_everything_back() -> None:
    books = Books()
    learner = PatternLearner(max_children=5, sample=5, allocator=books.allocator)
    for i in range(200):
        learner.observe(f"a/{i % 7}/b/{i % 20}/{i % 3}")
        assert learner.memory_bytes == books.bytes_out
    found = learner.propose(UNLEARNED)
    assert found.patterns is not None
    del learner, found
    assert books.sizes == {}
    lib.hmq_learner_free(ffi.NULL)


@settings(max_examples=40)
@given(st.lists(models.topics, min_size=1, max_size=30), st.integers(1, 3))
def test_without_memory_topics_are_counted_as_far_as_they_can(topics: list[bytes], most: int) -> None:
    books = Books()
    learner = PatternLearner(max_children=most, sample=3, allocator=books.allocator)
    chosen = random.Random(len(topics))
    books.fails = lambda _call: chosen.random() < 0.4
    for topic in topics:
        with contextlib.suppress(MemoryError):
            learner.observe(topic)
        assert learner.memory_bytes == books.bytes_out
    books.fails = lambda _call: False
    assert learner.messages == len(topics)
    assert learner.patterns() is not None
    del learner
    assert books.sizes == {}


def test_each_lack_of_memory_is_reported_and_leaves_nothing_behind() -> None:
    def use(books: Books) -> None:
        learner = PatternLearner(max_children=3, allocator=books.allocator)
        for i in range(8):
            learner.observe(f"a{i % 2}/{i}/{'long' * 100}{i % 2}")
        made = learner.patterns(0)
        assert made is not None
        learner.cost(made)
        learner.propose(UNLEARNED)

    books = Books()
    use(books)
    for call in range(1, books.calls + 1):
        failing = Books()
        failing.fail_at(call)
        try:
            use(failing)
        except MemoryError:
            pass
        else:
            assert failing.calls != books.calls, call  # it went another way: a list was left as it is
        assert failing.sizes == {}, call
