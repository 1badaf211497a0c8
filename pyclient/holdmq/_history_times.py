"""The start and the end of a replay, in all forms that callers may use.

A number without a unit is easily misread. So an int is always milliseconds and a float always seconds since 1970
(`time.time()`). A number that would give an implausible year is refused.
"""

import math
import re
from datetime import UTC, datetime, timedelta
from typing import Any

from holdmq import _arguments as arguments
from holdmq._command import Command
from holdmq.durations import Start
from holdmq.errors import ArgumentError

MAX_MS = 2**48 - 1
"""The latest time, in milliseconds since 1970."""
LEAST_MS = 10**11
"""The year 1973 in milliseconds, or 5138 in seconds. Of smaller numbers only 0 is accepted."""

_EXPECTED = (
    "expected earliest, now, a time (a datetime, ISO 8601 text, seconds since 1970 as float, milliseconds since 1970 "
    "as int), or how long ago (a timedelta, or text like 90s, 15m, 24h, 7d)"
)
_AGE = re.compile(r"(\d{1,18})([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def needs_clock(start: Start) -> bool:
    """Returns whether a start counts from now."""
    return start == "now" or isinstance(start, timedelta) or (isinstance(start, str) and bool(_AGE.fullmatch(start)))


def time_ms(name: str, value: Start, now_ms: int = 0) -> int | None:
    """Converts a time to milliseconds since 1970. None for `earliest`.

    Args:
        name: the name of the argument, for errors.
        value: the time.
        now_ms: the current time, for values that count from now.

    Raises:
        ArgumentError: the value is not a time, or an implausible one.
    """
    if isinstance(value, str):
        return _text_ms(name, value, now_ms)
    if isinstance(value, timedelta):
        if value < timedelta(0):
            raise ArgumentError(f"{name} is {arguments.shown(value)}, which is not in the past; {_EXPECTED}")
        return max(0, now_ms - value // timedelta(milliseconds=1))
    if isinstance(value, datetime):
        aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        return arguments.in_range(name, (aware - _EPOCH) // timedelta(milliseconds=1), 0, MAX_MS)
    if isinstance(value, float):
        return _float_ms(name, value)
    return _whole_ms(name, value)


def end_ms(name: str, value: Start, now_ms: int = 0) -> int:
    """Converts an end like `time_ms`. Refuses `earliest`."""
    at_ms = time_ms(name, value, now_ms)
    if at_ms is None:
        raise ArgumentError(
            f"{name} is {arguments.shown(value)}, before which nothing is; expected a later time, or None for no end"
        )
    return at_ms


def replay_needs_clock(start: Start) -> bool:
    """Like `needs_clock`, for the replay of a subscription."""
    begin = start.removesuffix("!") if isinstance(start, str) else start
    return begin != "now" and needs_clock(begin)  # the server knows what "now" is


def replay_text(start: Start, now_ms: int) -> str:
    """The start of a subscription's replay as commands take it. A text may end with `!`, for an application.

    Raises:
        ArgumentError: the value is not a time.
    """
    mark = "!" if isinstance(start, str) and start.endswith("!") else ""
    begin = start.removesuffix("!") if isinstance(start, str) else start
    if begin in ("", "earliest", "now"):
        return f"{begin}{mark}"
    at_ms = time_ms("replay", begin, now_ms)
    return f"{'earliest' if at_ms is None else at_ms}{mark}"


def _float_ms(name: str, seconds: float) -> int:
    if not math.isfinite(seconds):
        raise ArgumentError(f"{name} is {seconds!r}; {_EXPECTED}")
    if seconds >= LEAST_MS:
        raise ArgumentError(
            f"{name} is {seconds!r}: a float counts seconds since 1970, so this year cannot be meant; expected "
            f"{seconds / 1000!r}, or the milliseconds as int"
        )
    if seconds and seconds * 1000 < LEAST_MS:
        raise ArgumentError(f"{name} is {seconds!r}, which is {_shown(seconds)} in seconds since 1970; {_EXPECTED}")
    return int(seconds * 1000)


def _whole_ms(name: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ArgumentError(f"{name} is {arguments.shown(value)}; {_EXPECTED}")
    if 0 < value < LEAST_MS:
        hint = f"; as seconds it would be {_shown(value)}: write {value}.0" if value * 1000 >= LEAST_MS else ""
        raise ArgumentError(
            f"{name} is {value!r}, which is {_shown(value / 1000)} in milliseconds since 1970{hint}; {_EXPECTED}"
        )
    return arguments.in_range(name, value, 0, MAX_MS)


def _shown(seconds: float) -> str:
    try:
        return str((_EPOCH + timedelta(seconds=seconds)).date())
    except OverflowError:
        return "before the year 1"


def _text_ms(name: str, text: str, now_ms: int) -> int | None:
    age = _AGE.fullmatch(text)
    if age is not None:
        return max(0, now_ms - int(age[1]) * _SECONDS[age[2]] * 1000)
    if text in ("earliest", "now"):
        return None if text == "earliest" else now_ms
    if re.fullmatch(r"\d{1,18}", text, re.ASCII):
        return _whole_ms(name, int(text))
    if re.fullmatch(r"\d+\.\d+", text, re.ASCII):
        return _float_ms(name, float(text))
    try:
        return time_ms(name, datetime.fromisoformat(text))
    except ValueError as error:
        raise ArgumentError(f"{name} is {arguments.shown(text)}; {_EXPECTED}") from error


def server_time_ms() -> Command[int]:
    """`TIME`: the server's clock in milliseconds since 1970."""

    def parse(reply: Any) -> int:
        seconds, microseconds = reply  # the libraries make a pair of it
        return int(seconds) * 1000 + int(microseconds) // 1000

    return Command(("TIME",), parse)
