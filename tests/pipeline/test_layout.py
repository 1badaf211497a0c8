"""How an archive lies in its files."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdmq import core
from holdmq_pipeline import layout

level = st.sampled_from(["a", "b", "", "$s"])
topics = st.lists(level, min_size=1, max_size=4).map("/".join).filter(lambda topic: topic != "")
filters = st.builds(
    lambda levels, tail: "/".join([*levels, *tail]),
    st.lists(st.sampled_from(["a", "b", "", "+", "$s"]), min_size=1, max_size=4),
    st.sampled_from([[], ["#"]]),
).filter(lambda one: one != "")


@given(topics, filters, filters)
def test_no_structure_is_passed_over_that_may_match(topic: str, topic_filter: str, structure: str) -> None:
    if core.matches(topic_filter, topic) and core.matches(structure, topic):
        assert layout.overlap(structure, topic_filter)
        levels = dict(zip(layout.LEVEL_NAMES, layout.levels_of(structure, topic), strict=True))
        fixed = layout.fixed_levels(structure, topic_filter)
        assert {name: levels[name] for name in fixed} == fixed


def table(rows: list[tuple[str, int]]) -> pa.Table:
    """Rows of history with these topics and times."""
    columns = {
        "shard": pa.array([0] * len(rows), pa.int32()),
        "offset": pa.array(range(1, len(rows) + 1), pa.int64()),
        "timestamp": pa.array([time for _topic, time in rows], pa.int64()).cast(layout.MICROSECONDS),
        "topic": pa.array([topic for topic, _time in rows]),
    }
    for field in list(layout.SCHEMA)[4 : -layout.LEVELS]:
        columns[field.name] = pa.nulls(len(rows), field.type)
    return pa.table(columns)


def test_rows_are_sorted_so_that_a_level_is_found_in_one_place_of_each_stripe() -> None:
    rows = [(f"site/{n % 10}/dev/{n * 7 % 80}/t", n) for n in range(40_000)]
    found = layout.arranged(table(rows), "site/+/dev/+/t")
    assert sorted(found.column("offset").to_pylist()) == list(range(1, 40_001))
    first, second = found.column("l1").to_pylist(), found.column("l2").to_pylist()
    assert first == sorted(first)

    def pages(column: list[str], value: str) -> int:
        return sum(value in column[at : at + layout.PAGE_ROWS] for at in range(0, len(column), layout.PAGE_ROWS))

    matching = second.count("14")
    assert pages(second, "14") * layout.PAGE_ROWS <= 10 * matching
    assert pages(first, "3") * layout.PAGE_ROWS <= 1.1 * first.count("3")


def test_days_and_structures_are_apart() -> None:
    day = layout.DAY_US
    rows = table([("a/1", 5), ("a/2", day + 5), ("b", 6), ("a/3", day + 7)])
    rows = rows.append_column("pattern", pa.array([1, 1, 0, 1])).append_column("generation", pa.array([2, 2, 2, 3]))
    structures = {(2, 1): "a/+", (3, 1): "a/+", (2, 0): "#"}
    found = {(one, name): part.column("topic").to_pylist() for one, name, part in layout.parts(rows, structures)}
    assert found == {
        ("1970-01-01", "a/+"): ["a/1"],
        ("1970-01-01", "#"): ["b"],
        ("1970-01-02", "a/+"): ["a/2", "a/3"],
    }


@pytest.mark.parametrize(
    ("structure", "topic_filter", "fixed"),
    [
        ("site/+/dev/+/t", "site/5/dev/+/t", {"l1": "5"}),
        ("site/+/dev/+/t", "+/+/+/7/#", {"l2": "7"}),
        ("a/#", "a/b/+/d", {"l1": "b", "l3": "d"}),
        ("a/#", "#", {}),
        ("a/b", "a/b", {}),
    ],
)
def test_a_filter_fixes_levels(structure: str, topic_filter: str, fixed: dict[str, str]) -> None:
    assert layout.fixed_levels(structure, topic_filter) == fixed
