"""The ratio of two durations is found among measurements that were interrupted."""

from itertools import chain, repeat

from tests.support.ratio import MOST_ROUNDS, least_ratio


def test_interruptions_do_not_count() -> None:
    large = chain([90, 90, 90, 90, 3], repeat(90))
    assert least_ratio(lambda: next(large), lambda: 1, below=4) == 3


def test_a_ratio_that_is_too_large_stays_so_whatever_interrupts_the_small_one() -> None:
    small = chain([90, 1], repeat(90))
    large = iter([45] * MOST_ROUNDS)
    assert least_ratio(lambda: next(large), lambda: next(small), below=4) == 45
    assert list(large) == []
