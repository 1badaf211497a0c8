"""Putting sources together by their next numbers: the heap's first one is always the smallest."""

from hypothesis import given
from hypothesis import strategies as st

from holdmq.core._binding import ffi, lib

NEVER = (1 << 64) - 1
numbers = st.integers(0, 30) | st.integers(0, NEVER - 1)


@given(st.lists(st.lists(numbers, max_size=12).map(sorted), min_size=1, max_size=40))
def test_sources_come_in_the_order_of_their_numbers_equal_ones_in_their_own(sources: list[list[int]]) -> None:
    left = [iter(source) for source in sources]
    heap = ffi.new("hmq_merge[]", [(next(source, NEVER), place) for place, source in enumerate(left)])
    lib.hmq_merge_begin(heap, len(sources))
    taken = []
    while heap[0].next != NEVER:
        taken.append((heap[0].next, heap[0].source))
        heap[0].next = next(left[heap[0].source], NEVER)
        lib.hmq_merge_restore_order(heap, len(sources))
    assert taken == sorted((number, place) for place, source in enumerate(sources) for number in source)
