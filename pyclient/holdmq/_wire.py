"""The parts that commands are made of, without I/O: words to send, and parsers of replies.

`holdmq.commands` and `holdmq.history_commands` share them. A wrong argument raises `ArgumentError` (`_arguments`); a
reply with an undocumented form raises `UnexpectedReplyError`.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

from holdmq import _arguments as arguments
from holdmq import core
from holdmq.errors import InvalidTopicError, UnexpectedReplyError
from holdmq.replies import ProducerChunk

Word: TypeAlias = bytes | memoryview | str | int

MAX_NUMBER = 2**63 - 1
MAX_CHUNK = 2**53 - 1
"""Largest epoch and chunk of a producer."""
MAX_PRODUCER_BYTES = 255


# --- Arguments --------------------------------------------------------------------------------------------------------


def topic(topic: str) -> bytes:
    """Returns a topic name that MQTT allows."""
    raw = arguments.name("topic", topic)
    try:
        core.check_topic_name(raw)
    except ValueError as error:
        raise InvalidTopicError(f"topic {topic!r:.200}: {error}") from error
    return raw


def topic_filter(topic_filter: str) -> bytes:
    """Returns a topic filter that MQTT allows."""
    raw = arguments.name("filter", topic_filter)
    try:
        core.check_topic_filter(raw)
    except ValueError as error:
        raise InvalidTopicError(f"filter {topic_filter!r:.200}: {error}") from error
    return raw


def packed(words: Sequence[Word]) -> bytes:
    """Encodes a command as RESP."""
    parts = [str(word).encode() if isinstance(word, (str, int)) else bytes(word) for word in words]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)


def chunk_words(producer: ProducerChunk | None) -> list[Word]:
    """The words `PRODUCER id epoch chunk`, or none."""
    if producer is None:
        return []
    arguments.instance("producer", producer, ProducerChunk)
    return [
        "PRODUCER",
        arguments.name("id of the producer", producer.id, MAX_PRODUCER_BYTES),
        arguments.in_range("epoch of the producer", producer.epoch, 0, MAX_CHUNK),
        arguments.in_range("chunk of the producer", producer.chunk, 0, MAX_CHUNK),
    ]


# --- Replies ----------------------------------------------------------------------------------------------------------


def wrong(reply: object, expected: str) -> UnexpectedReplyError:
    """Returns the error for a reply with an undocumented form."""
    return UnexpectedReplyError(f"the server replied {reply!r:.200}; expected {expected}")


def integer(reply: object) -> int:
    if not isinstance(reply, int) or isinstance(reply, bool):
        raise wrong(reply, "an integer")
    return reply


def number(reply: object) -> int:
    """Reads an integer, or a string that contains one."""
    if isinstance(reply, bytes) and reply.isdigit():
        return int(reply)
    return integer(reply)


def array(reply: object, length: int | None = None) -> list[Any]:
    """An array; with a length, of exactly that many elements."""
    if not isinstance(reply, list) or length not in (None, len(reply)):
        raise wrong(reply, "an array" if length is None else f"an array of {length}")
    return reply


def string(reply: object) -> bytes:
    if not isinstance(reply, bytes):
        raise wrong(reply, "a string")
    return reply


def decoded(reply: object) -> str:
    """Reads a string as text. Bytes that are not UTF-8 become surrogates."""
    return string(reply).decode("utf-8", "surrogateescape")


def mapping(reply: object) -> dict[str, Any]:
    """Reads a map (RESP3), or an array of keys and values in turn (RESP2)."""
    if isinstance(reply, list) and len(reply) % 2 == 0:
        return {decoded(key): value for key, value in zip(reply[::2], reply[1::2], strict=True)}
    if not isinstance(reply, dict):
        raise wrong(reply, "a map")
    return {decoded(key): value for key, value in reply.items()}


def ok(reply: object) -> None:
    """Accepts only OK."""
    if reply not in (b"OK", "OK", True):
        raise wrong(reply, "OK")


def flag(reply: object) -> bool:
    return bool(integer(reply))


def names(reply: object) -> tuple[str, ...]:
    return tuple(decoded(item) for item in array(reply))
