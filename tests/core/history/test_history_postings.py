"""Posting lists and hashed levels: small, found fast, safe on any bytes."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdmq.core import (
    MAX_INDEX_PAGES,
    MAX_POSTING_NUMBER,
    CorruptPostingsError,
    PostingList,
    index_page,
    index_place,
    level_hash,
    topic_shard,
)
from holdmq.core._binding import ffi, lib
from tests.core.history import history_models as models
from tests.core.support import heap_bytes

gaps = st.lists(st.one_of(st.integers(1, 3), st.integers(1, 1 << 20), st.integers(1, 1 << 30)), max_size=300)


@st.composite
def lists(draw: st.DrawFn) -> tuple[list[tuple[int, int]], int]:
    bits = draw(st.sampled_from([0, 1, 8, 20, 24]))
    numbers = models.growing(draw(gaps))
    chosen = random.Random(draw(st.integers(0, 99)))
    return [(number, chosen.randrange(min(1 << bits, 5))) for number in numbers], bits


def filled(entries: list[tuple[int, int]], bits: int) -> PostingList:
    made = PostingList(fragment_bits=bits)
    for number, fragment in entries:
        made.append(number, fragment)
    return made


# ---- what a list holds ----


@given(lists())
def test_a_list_is_the_bytes_that_the_header_describes(drawn: tuple[list[tuple[int, int]], int]) -> None:
    entries, bits = drawn
    assert bytes(filled(entries, bits).data) == models.postings(entries, bits)


@given(lists(), st.integers(0, 1 << 31))
def test_every_number_is_found_again_from_anywhere(drawn: tuple[list[tuple[int, int]], int], start: int) -> None:
    entries, bits = drawn
    made = PostingList(models.postings(entries, bits), fragment_bits=bits)
    assert len(made) == len(entries)
    assert made.last == (entries[-1][0] if entries else 0)
    for fragment in {f for _, f in entries}:
        for at_least in (0, start, entries[len(entries) // 2][0], entries[-1][0], entries[-1][0] + 1):
            expected = [number for number, f in entries if f == fragment and number >= at_least]
            assert made.numbers(fragment, at_least) == expected


@given(lists(), st.lists(st.integers(0, 1 << 16), min_size=1, max_size=30), st.integers(0, 20))
def test_a_bounded_reader_that_jumps_ahead_misses_nothing(
    drawn: tuple[list[tuple[int, int]], int], jumps: list[int], limit: int
) -> None:
    entries, bits = drawn
    data = models.postings(entries, bits)
    postings = ffi.new("hmq_postings *")
    held = heap_bytes(data)
    assert lib.hmq_postings_open(postings, held, len(data), bits, 0)
    number, budget = ffi.new("uint64_t *"), ffi.new("uint64_t *")
    for at_least in models.growing(jumps):
        expected = next((n for n, f in entries if f == 0 and n >= at_least), None)
        position, calls = at_least, 0
        while True:
            budget[0] = limit
            result = lib.hmq_postings_seek(postings, position, number, budget)
            assert budget[0] <= limit
            if result != lib.HMQ_POSTINGS_LIMIT:
                break
            assert position < number[0] <= (expected or 1 << 62)
            position, calls = number[0], calls + 1
        assert (result == lib.HMQ_POSTINGS_FOUND) == (expected is not None)
        assert expected is None or number[0] == expected
        skipped = sum(1 for n, _ in entries if at_least <= n < (expected or 1 << 62))
        assert calls <= skipped / max(limit, 1) + 1


def test_a_seek_in_a_long_list_reads_a_few_blocks_only() -> None:
    count = 200_000
    entries = [(number, 0) for number in range(1, count + 1)]
    data = models.postings(entries, 0)
    postings, number = ffi.new("hmq_postings *"), ffi.new("uint64_t *")
    held = ffi.from_buffer("uint8_t[]", data)
    lib.hmq_postings_open(postings, held, len(data), 0, 0)
    budget = ffi.new("uint64_t *", 1)
    assert lib.hmq_postings_seek(postings, count - 1, number, budget) == lib.HMQ_POSTINGS_FOUND
    assert (number[0], budget[0]) == (count - 1, 0)
    assert postings.at > len(data) - 2 * models.BLOCK


def test_the_largest_number_and_fragment_fit() -> None:
    made = filled([(1, 0), (MAX_POSTING_NUMBER, (1 << 24) - 1)], 24)
    assert made.numbers((1 << 24) - 1) == [MAX_POSTING_NUMBER]
    only = filled([(MAX_POSTING_NUMBER, (1 << 24) - 1)], 24)
    assert (len(only), only.last) == (1, MAX_POSTING_NUMBER)
    with pytest.raises(ValueError, match=f"expected {MAX_POSTING_NUMBER + 1}"):
        only.append(MAX_POSTING_NUMBER + 1, 0)


@pytest.mark.parametrize(("number", "fragment"), [(5, 0), (4, 0), (0, 0), (6, 16)])
def test_what_cannot_be_appended_changes_nothing(number: int, fragment: int) -> None:
    made = filled([(5, 1)], 4)
    with pytest.raises(ValueError, match=r"expected 6\.\."):
        made.append(number, fragment)
    assert len(made) == 1


def test_more_bits_than_there_are_are_refused() -> None:
    with pytest.raises(ValueError, match="fragment_bits is 25"):
        PostingList(fragment_bits=25)
    out = ffi.new("uint8_t[]", lib.HMQ_POSTINGS_APPEND_BYTES)
    number, entries = ffi.new("uint64_t *"), ffi.new("uint64_t *")
    assert lib.hmq_postings_append(0, 0, 25, 1, 0, out) == 0
    assert lib.hmq_postings_last(b"\x01", 1, 25, number) == lib.HMQ_POSTINGS_CORRUPT
    assert lib.hmq_postings_check(b"\x01", 1, 25, entries) == lib.HMQ_POSTINGS_CORRUPT
    with pytest.raises(ValueError, match="fragment is 16"):
        PostingList(fragment_bits=4).numbers(16)


@given(lists(), st.integers(0, 1 << 31))
def test_the_place_of_a_number_is_where_its_writer_would_continue(
    drawn: tuple[list[tuple[int, int]], int], start: int
) -> None:
    entries, bits = drawn
    whole = models.postings(entries, bits)
    offset, last = ffi.new("size_t *"), ffi.new("uint64_t *")
    for at_least in {0, start, *(number for number, _ in entries[::7]), *(number + 1 for number, _ in entries[-3:])}:
        before = [entry for entry in entries if entry[0] < at_least]
        found = lib.hmq_postings_place(whole, len(whole), bits, at_least, offset, last)
        assert found == (lib.HMQ_POSTINGS_FOUND if len(before) < len(entries) else lib.HMQ_POSTINGS_END)
        assert offset[0] == len(models.postings(before, bits))
        assert last[0] == (before[-1][0] if before else 0)


@given(lists(), st.integers(0, 1 << 31))
def test_every_entry_is_stepped_to_from_anywhere(drawn: tuple[list[tuple[int, int]], int], start: int) -> None:
    entries, bits = drawn
    whole = ffi.new("uint8_t[]", models.postings(entries, bits))
    reader = ffi.new("hmq_postings *")
    assert lib.hmq_postings_open(reader, whole, len(whole), bits, 0)
    steps = []
    while lib.hmq_postings_step(reader, start) == lib.HMQ_POSTINGS_FOUND:
        steps.append((reader.number, reader.fragment))
    assert steps == [entry for entry in entries if entry[0] >= start]


# ---- bytes that no writer made ----


def check(data: bytes, bits: int) -> tuple[int, int]:
    entries = ffi.new("uint64_t *")
    return lib.hmq_postings_check(heap_bytes(data), len(data), bits, entries), entries[0]


FULL = bytes([1]) * 256  # a block of 256 entries
WITHIN_A_BLOCK = [
    (b"\x80", "an integer without its end"),
    (b"\x81\x00", "not the shortest form"),
    (b"\xff" * 9 + b"\x02", "more than 64 bits"),
    (b"\xff" * 10, "more than 64 bits"),
    (b"\x00", "no entry begins with zero"),
    (b"\x01\x00", "zeros at the end of the list"),
    (b"\x01" * 255 + b"\x00", "zeros at the end of a whole block"),
    (b"\x01" * 246 + bytes(10) + b"\xac\x02", "more zeros than a writer leaves"),
    (b"\x01" * 250 + b"\0\0\x01\0\0\0" + b"\xac\x02", "something between zeros"),
    (b"\x80\x80\x80\x80\x80\x20", "a number that is too large"),
    (b"\xff\xff\xff\xff\xff\x1f\x01", "numbers that become too large"),
]
BETWEEN_BLOCKS = [
    (FULL + b"\x05", "a block that begins below the one before it"),
    (FULL + b"\x80\x02", "a block that begins where the one before it ended"),
]


@pytest.mark.parametrize(("data", "why"), [*WITHIN_A_BLOCK, *BETWEEN_BLOCKS])
def test_bytes_that_no_writer_made_are_refused(data: bytes, why: str) -> None:
    assert check(data, 0)[0] == lib.HMQ_POSTINGS_CORRUPT, why


@pytest.mark.parametrize(("data", "why"), WITHIN_A_BLOCK)
def test_a_reader_that_comes_to_such_bytes_ends_there(data: bytes, why: str) -> None:
    number, budget = ffi.new("uint64_t *"), ffi.new("uint64_t *", 1 << 40)
    postings, held = ffi.new("hmq_postings *"), heap_bytes(data)
    lib.hmq_postings_open(postings, held, len(data), 0, 0)
    position, result = 1, lib.HMQ_POSTINGS_FOUND
    while result == lib.HMQ_POSTINGS_FOUND:
        result = lib.hmq_postings_seek(postings, position, number, budget)
        position = number[0] + 1
    assert result == lib.HMQ_POSTINGS_CORRUPT, why
    assert lib.hmq_postings_seek(postings, position, number, budget) == lib.HMQ_POSTINGS_CORRUPT


def test_a_delta_of_zero_is_refused() -> None:
    assert check(b"\x05", 4)[0] == lib.HMQ_POSTINGS_CORRUPT
    with pytest.raises(CorruptPostingsError):
        PostingList(b"\x05", fragment_bits=4)
    broken = PostingList(fragment_bits=4)
    broken.data += b"\x05"
    for use in (lambda: len(broken), lambda: broken.numbers(5)):
        with pytest.raises(CorruptPostingsError):
            use()


def test_a_faulty_block_ahead_is_found_by_the_search_for_it() -> None:
    data = FULL + b"\x81\x02" + b"\x01" * 254 + b"\x80\x80" + b"\x01" * 254 + b"\x81\x08"
    for at_least in (1, 300, 600, 2000):
        number, budget, postings = ffi.new("uint64_t *"), ffi.new("uint64_t *", 1 << 40), ffi.new("hmq_postings *")
        held = heap_bytes(data)
        lib.hmq_postings_open(postings, held, len(data), 0, 0)
        result, position = lib.HMQ_POSTINGS_FOUND, at_least
        while result == lib.HMQ_POSTINGS_FOUND:
            result = lib.hmq_postings_seek(postings, position, number, budget)
            position = number[0] + 1
        assert result in (lib.HMQ_POSTINGS_CORRUPT, lib.HMQ_POSTINGS_END)


@given(lists(), st.data())
def test_damaged_lists_end_in_an_error_or_in_growing_numbers(
    drawn: tuple[list[tuple[int, int]], int], data: st.DataObject
) -> None:
    entries, bits = drawn
    damaged = bytearray(models.postings(entries, bits))
    for _ in range(data.draw(st.integers(0, 3)) if damaged else 0):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]))
    cut = bytes(damaged[: data.draw(st.integers(0, len(damaged)))])
    result, count = check(cut, bits)
    assert (result == lib.HMQ_POSTINGS_END) == (cut == b"")
    number, budget, postings = ffi.new("uint64_t *"), ffi.new("uint64_t *", 1 << 40), ffi.new("hmq_postings *")
    held = heap_bytes(cut)
    lib.hmq_postings_open(postings, held, len(cut), bits, 0)
    position = data.draw(st.integers(0, 1 << 20))
    found = 0
    while lib.hmq_postings_seek(postings, position, number, budget) == lib.HMQ_POSTINGS_FOUND:
        assert number[0] >= position
        position, found = number[0] + 1, found + 1
    assert found <= len(cut)
    assert count <= len(cut)


# ---- hashed levels ----


@given(st.binary(max_size=40), st.integers(0, 2**128 - 1), st.integers(1, 24))
def test_a_level_is_hashed_by_siphash_1_3(level: bytes, seed: int, bits: int) -> None:
    assert level_hash(level, bits, seed=seed) == models.siphash13(level, seed) >> (64 - bits)


def test_the_hash_is_the_same_on_every_machine() -> None:
    data, seed = b"devices/sensor-000042", ffi.new("hmq_hash_seed *", {"low": 1, "high": 2})
    assert lib.hmq_hash_text(seed, data, len(data)) == models.siphash13(data, 1 | 2 << 64)


@given(st.integers(1, 24), st.data())
def test_nothing_of_a_hash_is_lost_in_any_page(bits: int, data: st.DataObject) -> None:
    hashed = data.draw(st.integers(0, (1 << bits) - 1))
    for page in range(MAX_INDEX_PAGES):
        place = index_place(hashed, bits, page)
        assert place.group << place.fragment_bits | place.fragment == hashed
        assert place.group_bits == min(2 * page, bits)
        assert place.group_bits + place.fragment_bits == bits


def test_pages_grow_fourfold() -> None:
    assert [index_page(n) for n in (0, 511, 512, 2047, 2048, 8191, 8192, 1_000_000)] == [0, 0, 1, 1, 2, 2, 3, 6]
    assert index_page(2**64 - 1) == MAX_INDEX_PAGES - 1


@given(st.binary(max_size=20), st.integers(1, 2**32 - 1))
def test_a_topic_has_one_shard(topic: bytes, shards: int) -> None:
    assert topic_shard(topic, shards) == (models.siphash13(topic, 0) >> 32) * shards >> 32 < shards


def test_topics_spread_over_the_shards() -> None:
    counts = [0] * 5
    for i in range(5000):
        counts[topic_shard(f"devices/{i}", 5)] += 1
    assert min(counts) > 850


def test_arguments_of_hashes_are_checked() -> None:
    for bits in (0, 25):
        with pytest.raises(ValueError, match="bits is"):
            level_hash("a", bits)
    with pytest.raises(ValueError, match="shards is 0"):
        topic_shard("a", 0)
    for hashed, bits, page in ((2, 1, 0), (0, 25, 0), (0, 1, 12), (-1, 1, 0)):
        with pytest.raises(ValueError, match="expected"):
            index_place(hashed, bits, page)


# ---- how small ----


def test_an_entry_of_one_of_100_000_devices_costs_less_than_four_bytes() -> None:
    chosen = random.Random(1)
    messages, bits = 60_000, 20
    lists_of: dict[tuple[int, int], PostingList] = {}
    for number in range(1, messages + 1):
        hashed = level_hash(b"device-%d" % chosen.randrange(100_000), bits)
        page = index_page(number - 1)
        place = index_place(hashed, bits, page)
        lists_of.setdefault((page, place.group), PostingList(fragment_bits=place.fragment_bits)).append(
            number, place.fragment
        )
    total = sum(len(made.data) for made in lists_of.values())
    assert total / messages < 4
    assert messages / len(lists_of) > 128
