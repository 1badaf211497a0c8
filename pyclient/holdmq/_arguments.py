"""Checks of arguments: each raises `ArgumentError`, which names the argument, its value and what is accepted.

All checks of types are here; those of times are in `durations` and `_history_times`. A valid value is sent unchanged. A
number is never a flag, and a flag never a number, but 0 and 1 are accepted for False and True.
"""

import contextlib
import math
import operator
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

from holdmq.errors import ArgumentError

T = TypeVar("T")

MAX_WORDS = 100_000
"""Most payloads, filters or identifiers of one command: a server takes about a million words."""

MAX_PAYLOAD_BYTES = 512 * 1024 * 1024
"""The server ends the connection of a client that sends a longer word (`proto-max-bulk-len`)."""


def wrong(what: str, value: object, expected: str) -> ArgumentError:
    """Returns the error for an invalid argument."""
    return ArgumentError(f"{what} is {shown(value)}; expected {expected}")


def shown(value: object) -> str:
    """The value as an error shows it: any object, and not too long."""
    try:
        return f"{value!r:.200}"
    except Exception:  # noqa: BLE001 - the code of others; and whole numbers of too many digits
        return f"of type {type(value).__name__}, which cannot be shown"


def in_range(what: str, value: Any, low: int, high: int) -> int:
    """Returns the number if it is whole and in range."""
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise wrong(what, value, f"a whole number from {low} to {high}")
    return value


def any_whole(what: str, value: Any, low: int, high: int) -> int:
    """Like `in_range`, but also accepts other objects that represent a whole number, such as those of numpy."""
    try:
        number = value if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = value
    return in_range(what, number, low, high)


def name(what: str, value: Any, most: int | None = None, *, least: int = 1) -> bytes:
    """Returns a name as bytes, if its length is in range."""
    if isinstance(value, str):
        raw = encoded(what, value)
    elif isinstance(value, bytes):
        raw = value
    else:
        raise wrong(what, value, "str or bytes")
    if most is not None and not least <= len(raw) <= most:
        size = f"has {len(raw)} bytes ({value!r:.80})" if raw else "is empty"
        raise ArgumentError(f"{what} {size}; expected {least} to {most} bytes")
    return raw


def encoded(what: str, text: str) -> bytes:
    """Encodes text as UTF-8. Surrogates become the bytes that they represent.

    Raises:
        ArgumentError: a surrogate does not represent a byte.
    """
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise wrong(what, text, "text that can be written as UTF-8") from error


def payload(what: str, value: Any) -> bytes | memoryview:
    """Returns the content of a message in the form that is sent."""
    if isinstance(value, str):
        _check_length(what, len(value))
        value = encoded(what, value)
    content = binary(what, value, "bytes or str")
    _check_length(what, content.nbytes if isinstance(content, memoryview) else len(content))
    return content


def _check_length(what: str, length: int) -> None:
    if length > MAX_PAYLOAD_BYTES:
        raise ArgumentError(
            f"{what} has {length} bytes; expected at most {MAX_PAYLOAD_BYTES}, the proto-max-bulk-len of a server"
        )


def binary(what: str, value: Any, expected: str = "bytes") -> bytes | memoryview:
    """Returns a bytes-like value in the form that is sent."""
    if isinstance(value, (bytes, memoryview)):
        return value
    if not isinstance(value, bytearray):
        raise wrong(what, value, expected)
    return memoryview(value)


def flag(what: str, value: Any) -> bool:
    """Returns True or False. Accepts 1 and 0 for them, and nothing else."""
    if isinstance(value, int) and value in (0, 1):
        return bool(value)
    raise wrong(what, value, "True or False")


def optional_flag(what: str, value: Any) -> bool | None:
    """Like `flag`, but also accepts None."""
    return None if value is None else flag(what, value)


def text(what: str, value: Any) -> str:
    """Returns a str. Refuses bytes."""
    if not isinstance(value, str):
        raise wrong(what, value, "str")
    return value


def wait(what: str, value: Any, *, above: bool = False) -> float:
    """Returns a number of seconds to wait: 0 or more (with `above`, more than 0). Infinity is allowed."""
    seconds = math.nan
    is_number = isinstance(value, (int, float)) or hasattr(value, "__float__")  # numbers of numpy, for one
    if is_number and not isinstance(value, bool):
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            seconds = float(value)
    if math.isnan(seconds) or seconds < 0 or (above and seconds == 0):
        raise wrong(what, value, f"seconds {'above 0' if above else 'from 0 on'}, as int or float")
    return seconds


def optional_wait(what: str, value: Any) -> float | None:
    """Like `wait`, but also accepts None, which waits forever."""
    if value is None:
        return None
    try:
        return wait(what, value)
    except ArgumentError as error:
        raise ArgumentError(f"{error}, or None") from None


def instance(what: str, value: Any, kind: type[T]) -> T:
    """Returns the value if it is an instance of the class."""
    if not isinstance(value, kind):
        raise wrong(what, value, f"a {kind.__name__}")
    return value


def some(what: str, values: Any, most: int = MAX_WORDS, *, least: int = 1) -> Collection[Any]:
    """Returns the values if their number is in range."""
    if not isinstance(values, (list, tuple)):
        if isinstance(values, (str, bytes, bytearray, memoryview)):
            raise ArgumentError(f"{what} is a single {type(values).__name__}; expected a sequence of them")
        if not isinstance(values, Collection) or isinstance(values, Mapping):
            raise wrong(what, values, "a sequence")
    if not least <= len(values) <= most:
        raise ArgumentError(f"{len(values)} {what} were given; expected {least} to {most}")
    return cast("Collection[Any]", values)


def mapping(what: str, value: Any) -> Mapping[Any, Any]:
    """Returns the value if it is a mapping."""
    if not isinstance(value, Mapping):
        raise wrong(what, value, "a mapping")
    return value


def pair(what: str, value: Any, expected: str) -> tuple[Any, Any]:
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence) or len(value) != 2:
        raise wrong(what, value, f"a pair of {expected}")
    return cast("tuple[Any, Any]", tuple(value))


def words(what: str, values: Any, known: Collection[str]) -> tuple[str, ...]:
    """Returns one or more of the known words, each once."""
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise wrong(f"{what}s", values, f"some of {', '.join(known)}")
    found = tuple(values)
    for one in found:
        if not isinstance(one, str) or one not in known:
            raise wrong(f"a {what}", one, f"one of {', '.join(known)}")
    if not found or len(set(found)) != len(found):
        raise ArgumentError(f"{what}s are {found!r}; expected one or more, each once")
    return found
