"""Pauses between attempts: doubled each time up to a bound, with jitter so that nobody marches in step."""

from collections.abc import Callable


class Backoff:
    """`uniform` is random.uniform or a test's own; times in seconds."""

    __slots__ = ("_first", "_max", "_next", "_uniform")

    def __init__(self, first: float, maximum: float, uniform: Callable[[float, float], float]) -> None:
        self._first = first
        self._max = maximum
        self._next = first
        self._uniform = uniform

    def next(self) -> float:
        """The pause before the next attempt: between half of the present step and all of it."""
        step = self._next
        self._next = min(step * 2, self._max)
        return self._uniform(step / 2, step)

    def reset(self) -> None:
        """An attempt succeeded: begin with the first step again."""
        self._next = self._first
