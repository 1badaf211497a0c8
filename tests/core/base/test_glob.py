"""Glob patterns as KEYS and PSUBSCRIBE have them, against the regular expressions that they stand for."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdmq import core
from holdmq.core._binding import lib
from tests.core import models
from tests.core.support import heap

patterns = st.lists(
    st.sampled_from([b"*", b"?", b"[", b"]", b"^", b"-", b"\\", b"a", b"b", b"c", b"z", b"[a-c]", b"[^a]", b"\xff"]),
    max_size=8,
).map(b"".join)
texts = st.lists(st.sampled_from([b"a", b"b", b"c", b"z", b"*", b"[", b"]", b"-", b"^", b"\\", b"\xff"]), max_size=8)


def matches(pattern: bytes, text: bytes) -> bool:
    return bool(lib.hmq_glob_matches(heap(pattern), len(pattern), heap(text), len(text)))


@given(patterns, texts.map(b"".join))
@example(b"", b"")
@example(b"[a-", b"a")
@example(b"[", b"a")
@example(b"a\\", b"a\\")
def test_a_pattern_matches_what_its_regular_expression_does(pattern: bytes, text: bytes) -> None:
    assert matches(pattern, text) == bool(models.glob_regex(pattern).fullmatch(text))


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("h?llo", "hello", True),
        ("h*llo", "hllo", True),
        ("h[ae]llo", "hillo", False),
        ("h[^e]llo", "hallo", True),
        ("h[a-b]llo", "hbllo", True),
        ("h[b-a]llo", "hallo", True),
        ("__*__:*", "__keyspace@0__:news", True),
        ("\\*", "*", True),
        ("\\*", "a", False),
        ("news.*", "News.1", False),
        ("*", "", True),
        ("?", "", False),
        ("**a**", "bab", True),
        ("[]", "]", False),
        ("[\\]]", "]", True),
        ("[\\]a]", "a", True),
        ("[x\\]", "]", True),
        ("[c-a]", "d", False),
        ("[^]", "x", True),
    ],
)
def test_patterns_mean_what_the_servers_manual_says(pattern: str, text: str, expected: bool) -> None:
    assert core.glob_matches(pattern, text) is expected


def test_no_pattern_explodes() -> None:
    assert not matches(b"a*" * 200 + b"b", b"a" * 5000)  # a backtracking matcher would outlive the universe
    assert not matches(b"*" * 1000 + b"b", b"a" * 5000)
