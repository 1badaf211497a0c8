"""The mark of bytes: equal for equal bytes, and another one after any change."""

from hypothesis import given
from hypothesis import strategies as st

from holdmq.core._binding import lib


def mark(data: bytes) -> int:
    return int(lib.hmq_hash_mark(data, len(data)))


@given(st.binary(max_size=200), st.data())
def test_each_bit_of_the_bytes_changes_their_mark(data: bytes, choice: st.DataObject) -> None:
    changed = bytearray(data or b"x")
    bit = choice.draw(st.integers(0, 8 * len(changed) - 1))
    changed[bit // 8] ^= 1 << bit % 8
    assert mark(bytes(changed)) != mark(data)
    assert mark(bytes(bytearray(data))) == mark(data)


@given(st.binary(min_size=64, max_size=200), st.integers(0, 7), st.integers(0, 7))
def test_the_places_of_words_count(data: bytes, first: int, second: int) -> None:
    words = [data[at : at + 8] for at in range(0, 64, 8)]
    words[first], words[second] = words[second], words[first]
    changed = b"".join(words) + data[64:]
    assert (mark(changed) == mark(data)) == (changed == data)


@given(st.binary(max_size=200))
def test_a_zero_at_the_end_counts(data: bytes) -> None:
    assert mark(data + b"\0") != mark(data)
