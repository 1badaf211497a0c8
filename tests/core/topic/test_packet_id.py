"""Packet identifiers [MQTT-2.3.1-1, -4] and serials."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdmq import core
from holdmq.core._binding import ffi, lib

packet_ids = st.integers(1, 65535)
lasts = st.integers(0, 65535)


def test_identifiers_go_round_without_zero() -> None:
    last, seen = 0, []
    for _ in range(65536):
        last = lib.hmq_packet_id_next(last)
        seen.append(last)
    assert seen == [*range(1, 65536), 1]


@given(lasts, st.sets(packet_ids, max_size=5), st.integers(0, 20))
def test_the_next_free_identifier_is_found(last: int, scattered: set[int], crowd: int) -> None:
    in_use = scattered | {(last + i) % 65535 + 1 for i in range(crowd)}  # the next ones, round the corner, too
    expected = next(p for p in ((last + i) % 65535 + 1 for i in range(65535)) if p not in in_use)
    asked: list[int] = []

    def ask(_context: object, packet_id: int) -> bool:
        asked.append(packet_id)
        return packet_id in in_use

    is_in_use = ffi.callback("bool(void *, uint16_t)", ask)
    skipped = ffi.new("uint32_t *")
    assert lib.hmq_packet_id_allocate(last, is_in_use, ffi.NULL, skipped) == expected
    assert skipped[0] == len(asked) - 1
    assert core.allocate_packet_id(last, in_use) == expected


def test_there_is_none_when_all_are_in_use() -> None:
    assert core.allocate_packet_id(7, range(1, 65536)) == 0
    skipped = ffi.new("uint32_t *")
    always = ffi.callback("bool(void *, uint16_t)", lambda _context, _packet_id: True)
    assert lib.hmq_packet_id_allocate(7, always, ffi.NULL, skipped) == 0
    assert skipped[0] == 65535


def test_an_error_of_the_container_reaches_the_caller() -> None:
    class Broken:
        def __contains__(self, packet_id: object) -> bool:
            raise LookupError(packet_id)

    with pytest.raises(LookupError, match="8"):
        core.allocate_packet_id(7, Broken())


@given(st.integers(0, 2**40), packet_ids)
def test_a_serial_grows_by_one_with_each_identifier(round_number: int, packet_id: int) -> None:
    following = lib.hmq_packet_id_next(packet_id)
    next_round = round_number + (following == 1)
    assert lib.hmq_serial_of(next_round, following) == lib.hmq_serial_of(round_number, packet_id) + 1
    assert core.serial_of(round_number, packet_id) == round_number * 65535 + packet_id


@given(st.integers(0, 2**63), packet_ids)
def test_the_round_is_the_smallest_that_reaches_the_serial(serial: int, packet_id: int) -> None:
    found = core.serial_round(serial, packet_id)
    assert found == lib.hmq_serial_round(serial, packet_id)
    assert core.serial_of(found, packet_id) >= serial
    assert found == 0 or core.serial_of(found - 1, packet_id) < serial


def test_the_layout_is_tbmqs() -> None:
    assert [core.serial_of(0, 1), core.serial_of(0, 65535), core.serial_of(1, 1)] == [1, 65535, 65536]
    assert core.serial_round(2**64 - 1, 1) == (2**64 - 2) // 65535 + 1  # rounding up does not overflow
    assert core.next_packet_id(65535) == 1
    assert core.MAX_PACKET_ID == 65535
