"""Packed pages: what is written is read back, and no bytes mislead the reader."""

import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdmq.core._binding import CData, ffi, lib

HEADER = lib.HMQ_PACKED_ENTRY_BYTES
MAX_SERIAL = 2**53

Entry = tuple[int, int, int, bytes]

entries_drawn = st.lists(
    st.tuples(st.integers(1, MAX_SERIAL), st.integers(1, 65535), st.integers(0, 2), st.binary(max_size=40)), max_size=8
)


def write(entries: list[Entry]) -> bytes:
    page = b""
    for serial, packet_id, state, value in entries:
        held = ffi.from_buffer("uint8_t[]", value)
        entry = ffi.new("hmq_packed_entry *", (serial, packet_id, state, (held, len(value))))
        out = ffi.new("uint8_t[]", HEADER)
        lib.hmq_packed_entry_put(entry, out)
        page += bytes(ffi.buffer(out)) + value
    return page


def read(page: bytes) -> tuple[list[Entry], int]:
    """The entries up to the end, or to what is none; 0 or -1.  The page lies in a block of its own size."""
    block = lib_block(page)
    at, entry, found = ffi.new("size_t *"), ffi.new("hmq_packed_entry *"), []
    while (outcome := lib.hmq_packed_entry_next(block, len(page), at, entry)) == 1:
        value = bytes(ffi.buffer(entry.value.data, entry.value.len))
        found.append((entry.serial, entry.packet_id, entry.state, value))
        assert at[0] == sum(HEADER + len(one[3]) for one in found)
    return found, outcome


def lib_block(data: bytes) -> CData:
    block = ffi.new("uint8_t[]", max(1, len(data)))
    ffi.buffer(block, len(data))[:] = data
    return block


@given(entries_drawn)
def test_a_page_is_read_back_as_it_was_written(entries: list[Entry]) -> None:
    page = write(entries)
    assert page == b"".join(struct.pack("<QHBI", *entry[:3], len(entry[3])) + entry[3] for entry in entries)
    assert read(page) == (entries, 0)


@given(entries_drawn.filter(bool), st.data())
def test_a_page_that_was_cut_is_read_up_to_the_last_whole_entry(entries: list[Entry], data: st.DataObject) -> None:
    page = write(entries)
    cut = data.draw(st.integers(0, len(page)))
    ends = [sum(HEADER + len(entry[3]) for entry in entries[:count]) for count in range(len(entries) + 1)]
    whole = max(count for count, end in enumerate(ends) if end <= cut)
    assert read(page[:cut]) == (entries[:whole], 0 if cut in ends else -1)


@given(st.binary(max_size=200))
@example(struct.pack("<QHBI", 1, 1, 0, 2**32 - 1) + b"x")
def test_of_any_bytes_only_whole_entries_are_read(page: bytes) -> None:
    entries, outcome = read(page)
    size = sum(HEADER + len(entry[3]) for entry in entries)
    assert size == len(page) if outcome == 0 else size < len(page)
    assert write(entries) == page[:size]
    assert all(1 <= e[0] <= MAX_SERIAL and e[1] > 0 and e[2] <= 2 for e in entries)


@pytest.mark.parametrize(
    "wrong", [(0, 1, 0), (MAX_SERIAL + 1, 1, 0), (2**64 - 1, 1, 0), (1, 0, 0), (1, 1, 3), (1, 1, 255)]
)
def test_a_field_out_of_its_range_ends_the_page(wrong: tuple[int, int, int]) -> None:
    page = write([(7, 7, 0, b"x")]) + struct.pack("<QHBI", *wrong, 0) + write([(9, 9, 0, b"y")])
    assert read(page) == ([(7, 7, 0, b"x")], -1)
