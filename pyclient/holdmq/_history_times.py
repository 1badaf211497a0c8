"""When a replay of history begins and ends, as callers say it; `holdmq.history_commands` hands these names on."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

from holdmq import _wire as wire
from holdmq._command import Command
from holdmq.errors import ArgumentError

MAX_MS = 2**48 - 1

Start: TypeAlias = str | int | datetime | timedelta
"""Where to begin: `earliest`, `now`, a time (`datetime`, milliseconds since 1970, ISO 8601 text), or how long ago
(`timedelta`, or a text like `90s`, `15m`, `24h`, `7d`)."""

_AGE = re.compile(r"(\d+)([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def needs_clock(start: Start) -> bool:
    """Whether the start counts from now."""
    return start == "now" or isinstance(start, timedelta) or (isinstance(start, str) and bool(_AGE.fullmatch(start)))


def time_ms(name: str, value: Start, now_ms: int = 0) -> int | None:
    """The time in milliseconds since 1970, None for `earliest`; `now_ms` is for those that count from now.

    Raises:
        ArgumentError: it stands for no time.
    """
    if isinstance(value, str):
        return _text_ms(name, value, now_ms)
    if isinstance(value, timedelta):
        return max(0, now_ms - value // timedelta(milliseconds=1))
    if isinstance(value, datetime):
        aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        return wire.in_range(name, (aware - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1), 0, MAX_MS)
    return wire.in_range(name, value, 0, MAX_MS)


def _text_ms(name: str, text: str, now_ms: int) -> int | None:
    age = _AGE.fullmatch(text)
    if age is not None:
        return max(0, now_ms - int(age[1]) * _SECONDS[age[2]] * 1000)
    if text in ("earliest", "now"):
        return None if text == "earliest" else now_ms
    if text.isdecimal():
        return wire.in_range(name, int(text), 0, MAX_MS)
    try:
        return time_ms(name, datetime.fromisoformat(text))
    except ValueError as error:
        raise ArgumentError(
            f"{name} is {text!r}; expected earliest, now, a time (ISO 8601, or milliseconds since 1970), or how long "
            "ago, like 90s, 15m, 24h, 7d"
        ) from error


def server_time_ms() -> Command[int]:
    """`TIME`: the server's clock, milliseconds since 1970."""

    def parse(reply: Any) -> int:
        seconds, microseconds = reply  # the libraries make a pair of it
        return int(seconds) * 1000 + int(microseconds) // 1000

    return Command(("TIME",), parse)
