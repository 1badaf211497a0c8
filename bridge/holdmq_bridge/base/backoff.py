"""Pauses between attempts: they double up to a bound, with jitter, so that processes do not retry in step."""

from collections.abc import Callable


class Backoff:
    """Times in seconds.  `uniform` is random.uniform, or a replacement in tests."""

    __slots__ = ("_first", "_max", "_next", "_uniform")

    def __init__(self, first: float, maximum: float, uniform: Callable[[float, float], float]) -> None:
        self._first = first
        self._max = maximum
        self._next = first
        self._uniform = uniform

    def next(self) -> float:
        """The pause before the next attempt: between half the present step and the whole."""
        step = self._next
        self._next = min(step * 2, self._max)
        return self._uniform(step / 2, step)

    def reset(self) -> None:
        """An attempt succeeded: the next pause is the first step again."""
        self._next = self._first
