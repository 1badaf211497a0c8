"""Filters beside each other: compared with every topic of a universe that is large enough to tell any two apart."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdmq.core import InvalidTopicError, check_topic_filter, check_topic_name, filter_covers, filters_overlap, matches

MAX_LEVELS = 3
# "z" stands in no filter: it is all the levels that a filter does not name.
TOPIC_LEVELS = ("", "a", "$a", "z")
FILTER_LEVELS = ("", "a", "$a", "+")


def _is_topic(text: str) -> bool:
    try:
        check_topic_name(text)
    except InvalidTopicError:
        return False
    return True


def _is_filter(text: str) -> bool:
    try:
        check_topic_filter(text)
    except InvalidTopicError:
        return False
    return True


# One level deeper than any filter, so that what a `#` reaches is there, too.
TOPICS = [
    text for depth in range(1, MAX_LEVELS + 2) for levels in product(TOPIC_LEVELS, repeat=depth)
    if _is_topic(text := "/".join(levels))
]  # fmt: skip
FILTERS = [
    text for depth in range(MAX_LEVELS + 1) for levels in product(FILTER_LEVELS, repeat=depth) for end in ([], ["#"])
    if _is_filter(text := "/".join([*levels, *end]))
]  # fmt: skip


@pytest.fixture(scope="module")
def matched() -> dict[str, int]:
    """For each filter the topics that it matches, as bits."""
    return {one: sum(1 << number for number, topic in enumerate(TOPICS) if matches(one, topic)) for one in FILTERS}


def test_covers_agrees_with_every_topic(matched: dict[str, int]) -> None:
    encoded = [(one.encode(), matched[one]) for one in FILTERS]
    wrong = [(a, b) for a, of_a in encoded for b, of_b in encoded if filter_covers(a, b) != (of_b & ~of_a == 0)]
    assert wrong == []


def test_overlaps_agrees_with_every_topic(matched: dict[str, int]) -> None:
    encoded = [(one.encode(), matched[one]) for one in FILTERS]
    wrong = [(a, b) for a, of_a in encoded for b, of_b in encoded if filters_overlap(a, b) != (of_a & of_b != 0)]
    assert wrong == []


def test_the_universe_is_large() -> None:
    assert len(FILTERS) > 100
    assert len(TOPICS) > 300


levels = st.lists(st.sampled_from(["a", "b", "", "+", "$x", "long level"]), min_size=1, max_size=6)
filters = (
    st.tuples(levels, st.booleans())
    .map(lambda made: "/".join([*made[0], *(["#"] if made[1] else [])]))
    .filter(_is_filter)
)
topics = (
    st.lists(st.sampled_from(["a", "b", "", "$x", "long level", "other"]), min_size=1, max_size=7)
    .map("/".join)
    .filter(_is_topic)
)


@given(filters, filters, topics)
@settings(max_examples=200)
def test_a_covered_filter_matches_nothing_more(wide: str, narrow: str, topic: str) -> None:
    if filter_covers(wide.encode(), narrow.encode()) and matches(narrow, topic):
        assert matches(wide, topic)


@given(filters, filters, topics)
@settings(max_examples=200)
def test_a_topic_that_both_match_is_an_overlap(one: str, other: str, topic: str) -> None:
    if matches(one, topic) and matches(other, topic):
        assert filters_overlap(one.encode(), other.encode())
        assert filters_overlap(other.encode(), one.encode())


@given(filters, topics)
def test_a_topic_is_a_filter_that_is_covered_if_it_matches(one: str, topic: str) -> None:
    assert (
        filter_covers(one.encode(), topic.encode())
        == matches(one, topic)
        == filters_overlap(one.encode(), topic.encode())
    )
