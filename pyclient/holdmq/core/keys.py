"""Names of the keys of sessions, retained messages and channels (src/topic/session_key.h, src/topic/channel_key.h).

A client id becomes the session key `{<encoded id>}`; `{`, `}` and `%` are written `%7B`, `%7D`, `%25`.
"""

import enum

from holdmq.core._binding import Text, ffi, lib, to_bytes

__all__ = [
    "ChannelKey",
    "Suffix",
    "channel_key",
    "channel_of_key",
    "client_id",
    "is_session_key",
    "message_key",
    "message_packet_id",
    "retained_key",
    "retained_topic",
    "session_key",
    "session_key_of",
    "session_name",
    "slot_of",
    "slot_tag",
]


class Suffix(enum.Enum):
    """What follows a session key in the name of a part of the session."""

    MESSAGES = lib.HMQ_SUFFIX_MESSAGES
    LAST_PACKET_ID = lib.HMQ_SUFFIX_LAST_PACKET_ID
    SUBSCRIPTIONS = lib.HMQ_SUFFIX_SUBSCRIPTIONS
    SESSION = lib.HMQ_SUFFIX_SESSION
    RECEIVED = lib.HMQ_SUFFIX_RECEIVED
    INBOX = lib.HMQ_SUFFIX_INBOX
    PRODUCERS = lib.HMQ_SUFFIX_PRODUCERS
    REPLAYS = lib.HMQ_SUFFIX_REPLAYS
    CURSORS = lib.HMQ_SUFFIX_CURSORS
    PLACES = lib.HMQ_SUFFIX_PLACES

    @property
    def text(self) -> bytes:
        """The suffix itself, with its underscore."""
        return bytes(ffi.string(lib.hmq_suffix_text(self.value, ffi.NULL)))


def session_key(client_id: Text) -> bytes:
    """The session key of a client id.

    Raises:
        ValueError: if the id is empty.

    Examples:
        >>> session_key("sensor-42")
        b'{sensor-42}'
    """
    data = to_bytes(client_id)
    if not data:
        raise ValueError("the client id is empty; expected at least one byte")
    capacity = 3 * len(data) + 2
    out = ffi.new("char[]", capacity)
    return bytes(ffi.buffer(out, lib.hmq_session_key_encode(data, len(data), out, capacity)))


def client_id(key: Text) -> bytes:
    """The client id of a session key, without a prefix before the brace.

    Raises:
        ValueError: if it is not a session key.
    """
    data = to_bytes(key)
    out = ffi.new("char[]", max(len(data), 1))
    size = lib.hmq_session_key_decode(data, len(data), out, len(data))
    if size < 0:
        raise ValueError(f"{data!r} is not a session key; expected [prefix]{{<encoded client id>}}")
    return bytes(ffi.buffer(out, size))


def is_session_key(key: Text) -> bool:
    """Whether it has the form of a session key: [prefix without `{`] `{` one or more bytes without braces `}`."""
    data = to_bytes(key)
    return bool(lib.hmq_session_key_check(data, len(data)))


def session_name(key: Text, suffix: Suffix) -> bytes:
    """The name of a part of the session, such as `{sensor-42}_inbox`.

    Raises:
        ValueError: if it is not a session key.
    """
    data = to_bytes(key)
    if not is_session_key(data):
        raise ValueError(f"{data!r} is not a session key; expected [prefix]{{<encoded client id>}}")
    return data + suffix.text


def session_key_of(name: Text, suffix: Suffix) -> bytes | None:
    """The session key at the beginning of such a name; None for another name."""
    data = to_bytes(name)
    size = lib.hmq_session_key_of(data, len(data), suffix.value)
    return data[:size] if size else None


def message_key(key: Text, packet_id: int) -> bytes:
    """The key of a stored message, such as `{sensor-42}_messages_7`.

    Raises:
        ValueError: if it is not a session key, or the packet identifier is not within 1..65535.
    """
    if not 1 <= packet_id <= lib.HMQ_PACKET_ID_MAX:
        raise ValueError(f"packet_id is {packet_id}; expected 1..{lib.HMQ_PACKET_ID_MAX}")
    data = to_bytes(key)
    if not is_session_key(data):
        raise ValueError(f"{data!r} is not a session key; expected [prefix]{{<encoded client id>}}")
    capacity = len(data) + 16
    out = ffi.new("char[]", capacity)
    return bytes(ffi.buffer(out, lib.hmq_message_key(data, len(data), packet_id, out, capacity)))


def message_packet_id(key: Text, name: Text) -> int | None:
    """The packet identifier at the end of a message key of this session; None for another name."""
    data, text = to_bytes(key), to_bytes(name)
    return int(lib.hmq_message_key_packet_id(data, len(data), text, len(text))) or None


def retained_key(topic: Text) -> bytes:
    """The key of a topic's retained message, `{<encoded topic>}_retained`.

    Raises:
        ValueError: if the topic is empty.
    """
    data = to_bytes(topic)
    if not data:
        raise ValueError("the topic is empty; expected at least one byte")
    capacity = 3 * len(data) + 16
    out = ffi.new("char[]", capacity)
    return bytes(ffi.buffer(out, lib.hmq_retained_key(data, len(data), out, capacity)))


def retained_topic(key: Text) -> bytes:
    """The topic of such a key, without a prefix before the brace.

    Raises:
        ValueError: if it is not the key of a retained message.
    """
    data = to_bytes(key)
    out = ffi.new("char[]", max(len(data), 1))
    size = lib.hmq_retained_topic(data, len(data), out, len(data))
    if size < 0:
        raise ValueError(f"{data!r} is not the key of a retained message; expected [prefix]{{<topic>}}_retained")
    return bytes(ffi.buffer(out, size))


class ChannelKey(enum.Enum):
    """The kinds of keys that a channel has."""

    HELD = lib.HMQ_CHANNEL_HELD
    """The messages held, oldest first."""
    LAST = lib.HMQ_CHANNEL_LAST
    """The most recent message, heard or not (policy `last=on`)."""
    HEARD = lib.HMQ_CHANNEL_HEARD
    """A mark: a later message was heard, or not kept."""
    ASIDE = lib.HMQ_CHANNEL_ASIDE
    """A mark: the application uses the channel's name for a key."""


def channel_key(channel: Text, kind: ChannelKey = ChannelKey.HELD) -> bytes:
    """A key of a channel. All are lists.

    Examples:
        >>> channel_key("news")
        b'holdmq:held:{news}'
    """
    data = to_bytes(channel)
    capacity = 3 * len(data) + 40
    out = ffi.new("char[]", capacity)
    return bytes(ffi.buffer(out, lib.hmq_channel_key_encode(data, len(data), kind.value, out, capacity)))


def channel_of_key(key: Text) -> tuple[bytes, ChannelKey] | None:
    """The channel and the kind of such a key; None for another key."""
    data = to_bytes(key)
    out = ffi.new("char[]", max(len(data), 1))
    kind = ffi.new("hmq_channel_key_kind *")
    size = lib.hmq_channel_key_decode(data, len(data), kind, out, len(data))
    return None if size < 0 else (bytes(ffi.buffer(out, size)), ChannelKey(kind[0]))


def slot_of(key: Text) -> int:
    """The slot of a key in a cluster, 0 to 16383.

    Examples:
        >>> slot_of("{sensor-42}_messages") == slot_of("sensor-42")
        True
    """
    data = to_bytes(key)
    return int(lib.hmq_slot_of(data, len(data)))


def slot_tag(slot: int) -> int:
    """The smallest number whose decimal digits are in a slot, for a hash tag: slots 0 to 16383.

    Examples:
        >>> slot_of("{%d}" % slot_tag(5))
        5
    """
    return int(lib.hmq_slot_tag(slot))
