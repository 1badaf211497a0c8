"""The start of a subscription that reads history: what clients write, and what the server takes.

    user property of SUBSCRIBE   replay-from (or stream-offset)      of all its filters
    topic filter                 $replay/<start>/<filter>            also within $share/<group>/...
    <start>                      earliest, now, 2026-11-22T08:00:00Z, 1764547200000 (ms since 1970), 90s, 15m, 24h, 7d

Pure functions: the time comes in as an argument.
"""

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

from holdmq.core import split_share

PROPERTIES: Final = (b"replay-from", b"stream-offset")
_PREFIX: Final = b"$replay/"
_AGE: Final = re.compile(r"([0-9]{1,9})([smhd])")
_UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_MOST_MS_DIGITS: Final = 15


class StartError(ValueError):
    """The text does not name a start; the message says what is expected."""


def parse_start(text: bytes, now_ms: int) -> str:
    """Converts a start to what SESSION.SUBSCRIBE takes: `earliest`, `now`, or milliseconds since 1970.

    Raises:
        StartError: the text is no start.
    """
    word = text.decode(errors="backslashreplace")
    if word in ("earliest", "now"):
        return word
    if word.isascii() and word.isdigit() and len(word) <= _MOST_MS_DIGITS:
        return str(int(word))
    age = _AGE.fullmatch(word)
    if age is not None:
        return str(max(0, now_ms - int(age[1]) * _UNITS_S[age[2]] * 1000))
    try:
        time = datetime.fromisoformat(word)
        at_ms = round((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000)
    except (ValueError, OverflowError):
        at_ms = -1
    if at_ms < 0:
        raise StartError(
            f"replay from {word[:80]!r}; expected earliest, now, milliseconds since 1970, an age like 90s, 15m, 24h or "
            "7d, or a time like 2026-11-22T08:00:00Z"
        )
    return str(at_ms)


def start_of_properties(properties: Iterable[tuple[bytes, bytes]]) -> bytes | None:
    """The start among user properties, or None.  The last one counts."""
    found = None
    for name, value in properties:
        if name in PROPERTIES:
            found = value
    return found


def split_filter(topic_filter: bytes) -> tuple[bytes, bytes | None]:
    """Splits `$replay/<start>/<filter>` into the inner filter and the start; the start of another filter is None.

    Raises:
        StartError: it begins with `$replay/`, but no filter follows the start.
    """
    shared = split_share(topic_filter)
    group, inner = (b"", topic_filter) if shared is None else (shared[0], shared[1])
    if not inner.startswith(_PREFIX):
        return topic_filter, None
    start, slash, inner_filter = inner.removeprefix(_PREFIX).partition(b"/")
    if not slash or not inner_filter:
        raise StartError(f"the filter {topic_filter[:80]!r}; expected $replay/<start>/<filter>")
    return (inner_filter if shared is None else b"$share/" + group + b"/" + inner_filter), start
