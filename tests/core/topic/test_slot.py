"""The slot of a key is the one that the cluster's clients compute."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from redis.crc import key_slot

from holdmq import core


@given(st.binary(max_size=100) | st.text("{}ab", max_size=12).map(str.encode))
@example(b"")
@example(b"{}")
@example(b"{}a")
@example(b"a{")
@example(b"}a{b}c{d}")
@example(b"{{a}}")
@example(b"123456789")
def test_a_key_has_the_slot_that_clients_compute(key: bytes) -> None:
    assert core.slot_of(key) == key_slot(key)


# Cluster specification, "Keys distribution model": CRC16 of "123456789" is 0x31C3.
@pytest.mark.parametrize(("key", "slot"), [("123456789", 0x31C3), ("x{123456789}y", 0x31C3), ("", 0)])
def test_known_slots(key: str, slot: int) -> None:
    assert core.slot_of(key) == slot
