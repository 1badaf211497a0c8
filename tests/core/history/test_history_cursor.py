"""Cursors and ids: small texts, strictly growing numbers, and from a time to a number."""

import bisect

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdmq.core import (
    MARKS_EVERY,
    MAX_CURSOR_BYTES,
    MAX_ID,
    Cursor,
    InvalidCursorError,
    MessageId,
    encode_mark,
    find_mark,
    is_mark_due,
    next_message_id,
)
from holdmq.core._binding import ffi, lib
from tests.core.support import heap, heap_bytes

cursors = st.builds(
    Cursor,
    generation=st.integers(0, 2**32 - 1),
    epoch=st.integers(0, 2**32 - 1),
    shard=st.integers(0, 2**16 - 1),
    sequence=st.integers(0, 2**64 - 1),
    time_us=st.integers(0, 2**64 - 1),
    writer=st.integers(0, 2**32 - 1),
    before=st.integers(0, 2**32 - 1),
    begun=st.integers(0, 2**64 - 1),
    store_id=st.just(0),
    store=st.just(b""),
)
named_cursors = st.builds(
    lambda cursor, store_id, store: cursor._replace(store_id=store_id, store=store),
    cursors,
    st.integers(0, 2**32 - 1),
    st.binary(min_size=1, max_size=64),
)
all_cursors = st.one_of(cursors, named_cursors)

# ---- cursors ----


@given(all_cursors)
def test_a_cursor_comes_back_as_it_was_written(cursor: Cursor) -> None:
    text = cursor.encode()
    assert len(text) <= MAX_CURSOR_BYTES
    assert text.isascii()
    assert Cursor.decode(text) == cursor


def test_the_longest_cursors_have_99_bytes_and_301_with_a_store() -> None:
    longest = Cursor(2**32 - 1, 2**32 - 1, 2**16 - 1, 2**64 - 1, 2**64 - 1, 2**32 - 1, 2**32 - 1, 2**64 - 1)
    assert len(longest.encode()) == 99
    named = longest._replace(store_id=2**32 - 1, store=b"\xff" * 64)
    assert len(named.encode()) == MAX_CURSOR_BYTES == 301
    with pytest.raises(OverflowError, match="65 bytes; expected at most 64"):
        named._replace(store=b"x" * 65).encode()


def test_a_cursor_shows_the_name_of_its_store() -> None:
    text = Cursor(1, 7, 3, sequence=1000, time_us=1, store_id=0x2A, store=b"my-store_1.x").encode()
    assert text.startswith(b"h2-1-7-3-3e8-1-0-0-0-2a-my-store_1.x-")
    assert Cursor(1, 7, 3, store_id=1, store=b"a,b%").encode().startswith(b"h2-1-7-3-1-0-0-0-0-1-a%2cb%25-")


def test_a_cursor_of_an_earlier_release_is_read() -> None:
    assert Cursor.decode("h1-1-7-3-3e8-1-0-0-0-62c7") == Cursor(1, 7, 3, sequence=1000, time_us=1)


@given(all_cursors, st.data())
def test_a_changed_cursor_is_refused(cursor: Cursor, data: st.DataObject) -> None:
    text = bytearray(cursor.encode())
    at = data.draw(st.integers(0, len(text) - 1))
    changed = data.draw(st.sampled_from(b"0123456789abcdef-hx%,\0"))
    if text[at] != changed:
        text[at] = changed
        with pytest.raises(InvalidCursorError, match="is no cursor"):
            Cursor.decode(bytes(text))


@given(all_cursors)
def test_a_cut_cursor_is_refused(cursor: Cursor) -> None:
    text = cursor.encode()
    out, store = ffi.new("hmq_cursor *"), ffi.new("hmq_cursor_store *")
    for size in range(len(text)):
        assert lib.hmq_cursor_decode(heap(text[:size]), size, out, store) == -1
    with pytest.raises(InvalidCursorError):
        Cursor.decode(text + b"0")


@pytest.mark.parametrize(
    "text",
    ["", "h", "h1", "h2-1-1-1-1-1-1-1-1-0000", "h1-", "h1-1-1-1-1-1-1-1", "h1-01-1-1-1-1-1-1-1-0000",
     "h1-1-1-1-1-1-1-1-1-", "h1-A-1-1-1-1-1-1-1-0000", "h1-111111111-1-1-1-1-1-1-1-0000",
     "h1-1-1-11111-1-1-1-1-1-0000", "h1-1-1-1-1-1-111111111-1-1-0000", "h1-1-1-1-1-1-0000",
     "h1--1-1-1-1-1-1-1-0000", "h2-1-1-1-1-1-1-1-1-1--0000", "h2-1-1-1-1-1-1-1-1-1-%-0000", "h2-1-1-1-1-1-1-1-1-1",
     "h2-1-1-1-1-1-1-1-1-1-%2-0000", "h2-1-1-1-1-1-1-1-1-1-%61-0000",
     "h1-1-1-1-1-1-1-1-1-0000", "0-0", "1700000000000-0"],
)  # fmt: skip
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(InvalidCursorError, match="expected one that a replay returned"):
        Cursor.decode(text)


@given(st.binary(max_size=120))
def test_no_text_reads_outside_itself(text: bytes) -> None:
    out, store = ffi.new("hmq_cursor *"), ffi.new("hmq_cursor_store *")
    assert lib.hmq_cursor_decode(heap(text), len(text), out, store) == -1


def test_numbers_outside_their_range_are_refused() -> None:
    for wrong in (Cursor(2**32, 0, 0), Cursor(0, 0, 2**16), Cursor(0, -1, 0)):
        with pytest.raises(OverflowError):
            wrong.encode()


# ---- ids ----


@given(st.lists(st.integers(-(10**6), 10**6), max_size=200), st.integers(0, 2**53))
def test_ids_and_numbers_grow_strictly_however_the_clock_steps(steps: list[int], clock: int) -> None:
    last = MessageId(0, 0)
    for step in steps:
        clock = max(clock + step, 0)
        following = next_message_id(last, clock)
        assert following.time_us == max(last.time_us + 1, clock)
        assert following.sequence == last.sequence + 1
        last = following


def test_after_the_last_id_there_is_none() -> None:
    assert next_message_id(MessageId(MAX_ID - 1, 1), 0) == (MAX_ID, 2)
    for last, now in ((MessageId(MAX_ID, 1), 0), (MessageId(0, MAX_ID), 5), (MessageId(0, 0), MAX_ID + 1),
                      (MessageId(2**64 - 1, 0), 0)):  # fmt: skip
        with pytest.raises(OverflowError, match="no id is left"):
            next_message_id(last, now)


# ---- marks ----


@given(
    st.lists(st.integers(1, 100), min_size=1, max_size=900),
    st.integers(1, 10**6),
    st.lists(st.integers(-5, 95_000), min_size=1, max_size=20),
)
def test_the_first_message_at_a_time_is_between_the_marks(gaps: list[int], first: int, asked: list[int]) -> None:
    times, marks, time = [], b"", 10**15
    for sequence, gap in enumerate(gaps, first):
        time += gap
        times.append(time)
        if is_mark_due(first, sequence):
            marks += encode_mark(MessageId(time, sequence))
    assert len(marks) == 16 * (1 + (len(gaps) - 1) // MARKS_EVERY)
    for offset in asked:
        wanted = times[0] + offset
        at = bisect.bisect_left(times, wanted) + first
        low, high = find_mark(marks, wanted)
        assert low <= at
        assert high is None or at <= high <= low + MARKS_EVERY
        assert high is not None or at > first + len(gaps) - 1 - MARKS_EVERY


def test_without_marks_nothing_is_known() -> None:
    assert find_mark(b"", 5) == (1, None)
    assert find_mark(bytes(15), 5) == (1, None)


def test_a_search_looks_at_few_marks() -> None:
    marks = b"".join(encode_mark(MessageId(10 * n, n)) for n in range(1, 1025))
    low, high = ffi.new("uint64_t *"), ffi.new("uint64_t *")
    for time in (0, 5, 5000, 20_000):
        assert lib.hmq_marks_find(heap_bytes(marks), len(marks), time, low, high) <= 11


@given(st.binary(max_size=100), st.integers(0, 2**64 - 1))
def test_marks_of_any_bytes_are_safe(marks: bytes, time: int) -> None:
    low, high = ffi.new("uint64_t *"), ffi.new("uint64_t *")
    assert lib.hmq_marks_find(heap_bytes(marks), len(marks), time, low, high) <= 3
