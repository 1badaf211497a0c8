"""The forms of durations and times that the client accepts."""

import math
import re
from datetime import datetime, timedelta
from typing import TypeAlias

from holdmq import _arguments as arguments
from holdmq.errors import ArgumentError

__all__ = ["Duration", "Start", "whole_seconds"]

Duration: TypeAlias = int | float | timedelta | str
"""A duration: seconds (`60`, `1.5`), a `timedelta`, or a text like `90s`, `15m`, `24h`, `7d`."""

Start: TypeAlias = str | int | float | datetime | timedelta
"""A place in time: `earliest`, `now`, a time (`datetime`, seconds since 1970 as `float`, milliseconds since 1970 as
`int`, ISO 8601 text), or how long ago (`timedelta`, or a text like `90s`, `15m`, `24h`, `7d`)."""

_TEXT = re.compile(r"(\d{1,18})([smhd])", re.ASCII)
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def whole_seconds(name: str, value: Duration, low: int, high: int) -> int:
    """Converts a duration to whole seconds, rounded up, so that nothing ends too early.

    Args:
        name: of the argument, for the error.
        value: the duration.
        low: the smallest number of seconds that is accepted.
        high: the largest.

    Raises:
        ArgumentError: the value is not a duration, or out of range.
    """
    whole = _whole(value)
    if whole is None or not low <= whole <= high:
        raise ArgumentError(
            f"{name} is {arguments.shown(value)}; expected {low} to {high} seconds, as a number, a timedelta, or text "
            "like 90s, 15m, 24h, 7d"
        )
    return whole


def _whole(value: object) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return math.ceil(value) if math.isfinite(value) else None
    if isinstance(value, timedelta):
        return value // timedelta(seconds=1) + bool(value % timedelta(seconds=1))
    found = _TEXT.fullmatch(value) if isinstance(value, str) else None
    return int(found[1]) * _SECONDS[found[2]] if found else None
