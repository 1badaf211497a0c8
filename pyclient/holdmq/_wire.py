"""The pieces that commands are made of, without I/O: arguments that are checked, replies that are read.

What `holdmq.commands` and `holdmq.history_commands` have in common. A wrong argument raises `ArgumentError` and names
the argument; a reply of another form than documented raises `UnexpectedReplyError`.
"""

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias, TypeVar

from holdmq import core
from holdmq.errors import ArgumentError, InvalidTopicError, UnexpectedReplyError
from holdmq.replies import Payload, ProducerChunk, Text

T = TypeVar("T")
Word: TypeAlias = bytes | memoryview | str | int

MAX_NUMBER = 2**63 - 1
MAX_WORDS = 100_000
"""Most payloads, filters or identifiers of one command: a server takes about a million words."""
MAX_CHUNK = 2**53 - 1
"""Largest epoch and chunk of a producer."""
MAX_PRODUCER_BYTES = 255


# --- Arguments --------------------------------------------------------------------------------------------------------


def in_range(name: str, value: Any, low: int, high: int) -> int:
    """The number, if it is whole and within its limits."""
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ArgumentError(f"{name} is {value!r}; expected a whole number from {low} to {high}")
    return value


def name(what: str, value: Text) -> bytes:
    """A name as bytes."""
    if not isinstance(value, (bytes, str)):
        raise ArgumentError(f"{what} is {value!r}; expected str or bytes")
    return value if isinstance(value, bytes) else encoded(value)


def payload(what: str, value: Payload) -> bytes | memoryview:
    """The content of a message as it is sent."""
    if isinstance(value, str):
        return encoded(value)
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise ArgumentError(f"{what} is of type {type(value).__name__}; expected bytes or str")
    return memoryview(value) if isinstance(value, bytearray) else value


def some(what: str, values: Sequence[T], most: int = MAX_WORDS) -> Iterable[T]:
    """The values, if there are some and not too many."""
    if isinstance(values, (str, bytes)):
        raise ArgumentError(f"{what} is a single {type(values).__name__}; expected a sequence of them")
    if not 1 <= len(values) <= most:
        raise ArgumentError(f"{len(values)} {what} were given; expected 1 to {most}")
    return values


def topic(topic: str) -> bytes:
    """A topic name, if MQTT allows it."""
    raw = name("topic", topic)
    try:
        core.check_topic_name(raw)
    except ValueError as error:
        raise InvalidTopicError(f"topic {topic!r}: {error}") from error
    return raw


def topic_filter(topic_filter: str) -> bytes:
    """A topic filter, if MQTT allows it."""
    raw = name("filter", topic_filter)
    try:
        core.check_topic_filter(raw)
    except ValueError as error:
        raise InvalidTopicError(f"filter {topic_filter!r}: {error}") from error
    return raw


def encoded(text: str) -> bytes:
    """Text as UTF-8; surrogates are the bytes that they stand for."""
    return text.encode("utf-8", "surrogateescape")


def packed(words: Sequence[Word]) -> bytes:
    """A command as RESP, as it goes over the wire."""
    parts = [str(word).encode() if isinstance(word, (str, int)) else bytes(word) for word in words]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)


def chunk_words(producer: ProducerChunk | None) -> list[Word]:
    """`PRODUCER id epoch chunk` of what is written, or nothing."""
    if producer is None:
        return []
    raw = name("id of the producer", producer.id)
    if not 1 <= len(raw) <= MAX_PRODUCER_BYTES:
        raise ArgumentError(f"id of the producer has {len(raw)} bytes; expected 1 to {MAX_PRODUCER_BYTES}")
    epoch = in_range("epoch of the producer", producer.epoch, 0, MAX_CHUNK)
    return ["PRODUCER", raw, epoch, in_range("chunk of the producer", producer.chunk, 0, MAX_CHUNK)]


# --- Replies ----------------------------------------------------------------------------------------------------------


def wrong(reply: object, expected: str) -> UnexpectedReplyError:
    """What to raise for a reply of another form than documented."""
    return UnexpectedReplyError(f"the server replied {reply!r:.200}; expected {expected}")


def integer(reply: object) -> int:
    """An integer."""
    if not isinstance(reply, int) or isinstance(reply, bool):
        raise wrong(reply, "an integer")
    return reply


def number(reply: object) -> int:
    """An integer, or a string that holds one."""
    if isinstance(reply, bytes) and reply.isdigit():
        return int(reply)
    return integer(reply)


def array(reply: object, length: int | None = None) -> list[Any]:
    """An array, of so many elements if that is said."""
    if not isinstance(reply, list) or length not in (None, len(reply)):
        raise wrong(reply, "an array" if length is None else f"an array of {length}")
    return reply


def string(reply: object) -> bytes:
    """A string as bytes."""
    if not isinstance(reply, bytes):
        raise wrong(reply, "a string")
    return reply


def decoded(reply: object) -> str:
    """A string as text; bytes that are no UTF-8 survive as surrogates."""
    return string(reply).decode("utf-8", "surrogateescape")


def mapping(reply: object) -> dict[str, Any]:
    """RESP3 has maps; RESP2 has arrays of keys and values in turn."""
    if isinstance(reply, list) and len(reply) % 2 == 0:
        return {decoded(key): value for key, value in zip(reply[::2], reply[1::2], strict=True)}
    if not isinstance(reply, dict):
        raise wrong(reply, "a map")
    return {decoded(key): value for key, value in reply.items()}


def ok(reply: object) -> None:
    """Nothing but OK."""
    if reply not in (b"OK", "OK", True):
        raise wrong(reply, "OK")


def flag(reply: object) -> bool:
    """0 or 1."""
    return bool(integer(reply))


def names(reply: object) -> tuple[str, ...]:
    """An array of strings as text."""
    return tuple(decoded(item) for item in array(reply))
