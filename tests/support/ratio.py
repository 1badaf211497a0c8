"""Comparing two durations on a machine where other processes run: what interrupts one measurement must not decide."""

from collections.abc import Callable

LEAST_ROUNDS = 3
MOST_ROUNDS = 15


def least_ratio(large: Callable[[], float], small: Callable[[], float], *, below: float) -> float:
    """Return the least result of `large` over the least of `small`.

    Both are measured in turn, three times, and again as long as the ratio is not below `below`: an interruption only
    makes a result larger, so a ratio that stays above is the program's own.
    """
    largest, smallest = [large()], [small()]
    while len(largest) < LEAST_ROUNDS or (len(largest) < MOST_ROUNDS and min(largest) >= below * min(smallest)):
        largest.append(large())
        smallest.append(small())
    return min(largest) / min(smallest)
