"""Payloads in answers: as text if they are text, and only for users who may read them."""

import base64
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from pydantic import BaseModel

from holdmq import Message
from holdmq_console.names import Name, time_of
from holdmq_console.principal import Principal, Right

MAX_SHOWN = 4096
"""Bytes of a payload in lists; a single message is shown as a whole."""

STEP_BYTES = 262_144
"""Bytes of payloads read in one step of the server, about. Whole payloads are read, though lists show a part."""
MAX_STEP = 64
"""Messages of a step."""


def next_step(step: int, size: int) -> int:
    """How many messages to read next if the last step of `step` messages had `size` bytes. The first one is of one."""
    return min(2 * step, MAX_STEP, max(1, STEP_BYTES * step // max(1, size)))


class Payload(BaseModel):
    """A payload: text if it is UTF-8, else base64. Hidden from those who may not read payloads."""

    size: int
    text: str | None = None
    base64: str | None = None
    truncated: bool = False
    hidden: bool = False


class MessageOut(BaseModel):
    """A message as it is stored."""

    topic: Name
    payload: Payload
    qos: int
    retain: bool
    published: datetime | None
    expires: datetime | None
    publisher: Name
    properties_bytes: int


def payload_of(raw: bytes, by: Principal, most: int | None = MAX_SHOWN) -> Payload:
    """The part of a payload that a user sees: at most `most` bytes of it."""
    if not by.may(Right.PAYLOADS):
        return Payload(size=len(raw), hidden=True)
    part = raw if most is None else raw[:most]
    is_cut = len(part) < len(raw)
    text = _text(part, is_cut=is_cut)
    if text is not None:
        return Payload(size=len(raw), text=text, truncated=is_cut)
    return Payload(size=len(raw), base64=base64.b64encode(part).decode(), truncated=is_cut)


def _text(raw: bytes, *, is_cut: bool) -> str | None:
    for end in range(len(raw), max(len(raw) - 4, -1), -1) if is_cut else (len(raw),):  # within a character, perhaps
        try:
            return raw[:end].decode()
        except UnicodeDecodeError:
            continue
    return None


def message_of(message: Message, by: Principal, most: int | None = MAX_SHOWN) -> MessageOut:
    """A message as a user sees it."""
    return MessageOut(
        topic=message.topic,
        payload=payload_of(message.payload, by, most),
        qos=message.qos,
        retain=message.retain,
        published=time_of(message.time_ms),
        expires=time_of(message.expires_ms),
        publisher=message.publisher,
        properties_bytes=len(message.properties),
    )


def decoded(text: str | None, encoded: str | None) -> bytes:
    """The payload of a request: text, or base64.

    Raises:
        ValueError: both, or no base64.
    """
    if encoded is None:
        return (text or "").encode()
    if text is not None:
        raise ValueError("both text and base64 were given; expected one of them")
    return base64.b64decode(encoded, validate=True)


def flat(info: Mapping[Any, Any]) -> dict[str, str]:
    """A section of INFO as texts."""
    return {_plain(key): _plain(value) for key, value in info.items()}


def _plain(value: Any) -> str:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
