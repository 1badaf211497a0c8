"""Topic names and topic filters: validity and matches; and the glob patterns of channels.

Rules: MQTT 3.1.1 section 4.7, MQTT 5.0 sections 4.7 and 4.8.2. Texts may be str or bytes; bytes must be UTF-8.
"""

from holdmq.core._binding import Text, ffi, lib, to_bytes

__all__ = [
    "MAX_TOPIC_BYTES",
    "MAX_TOPIC_LEVELS",
    "InvalidTopicError",
    "check_topic_filter",
    "check_topic_name",
    "glob_matches",
    "is_topic_filter",
    "matches",
    "split_share",
]

MAX_TOPIC_BYTES: int = lib.HMQ_TOPIC_MAX_BYTES
MAX_TOPIC_LEVELS: int = lib.HMQ_TOPIC_MAX_LEVELS


class InvalidTopicError(ValueError):
    """A topic name or filter that MQTT forbids. The text says why.

    Attributes:
        code: the core's number for the fault (`hmq_topic_error` in src/topic/topic.h).
    """

    def __init__(self, code: int) -> None:
        self.code = code
        super().__init__(ffi.string(lib.hmq_topic_error_text(code)).decode())

    def __reduce__(self) -> tuple[type["InvalidTopicError"], tuple[int]]:
        return type(self), (self.code,)


def check_topic_name(name: Text) -> None:
    """Checks that a message may be published to this name.

    Raises:
        InvalidTopicError: if not.
    """
    data = to_bytes(name)
    error = lib.hmq_topic_check_name(data, len(data))
    if error:
        raise InvalidTopicError(error)


def check_topic_filter(topic_filter: Text) -> None:
    """Checks that a client may subscribe to this filter, also to `$share/<group>/<filter>`.

    Raises:
        InvalidTopicError: if not.
    """
    data = to_bytes(topic_filter)
    error = lib.hmq_topic_check_filter(data, len(data))
    if error:
        raise InvalidTopicError(error)


def is_topic_filter(text: Text) -> bool:
    """Whether `check_topic_filter` accepts the text."""
    data = to_bytes(text)
    return not lib.hmq_topic_check_filter(data, len(data))


def matches(topic_filter: Text, name: Text) -> bool:
    """Whether the filter matches the topic name.

    `a/#` matches `a`; a wildcard in the first level matches no name that begins with `$` [MQTT-4.7.2-1]. Of a shared
    subscription, pass the inner filter (see `split_share`): a `$share` filter matches nothing.

    Raises:
        InvalidTopicError: if one of them is not valid.
    """
    check_topic_filter(topic_filter)
    check_topic_name(name)
    if split_share(topic_filter) is not None:
        return False
    pattern, data = to_bytes(topic_filter), to_bytes(name)
    return bool(lib.hmq_topic_matches(pattern, len(pattern), data, len(data)))


def split_share(topic_filter: Text) -> tuple[bytes, bytes] | None:
    """Group and inner filter of a shared subscription `$share/<group>/<filter>`; None for another filter.

    Raises:
        InvalidTopicError: if the filter is not valid.
    """
    check_topic_filter(topic_filter)
    data = to_bytes(topic_filter)
    group, inner = ffi.new("hmq_slice *"), ffi.new("hmq_slice *")
    source = ffi.from_buffer("char[]", data)
    if not lib.hmq_topic_split_share(source, len(data), group, inner):
        return None
    return bytes(ffi.buffer(group.data, group.len)), bytes(ffi.buffer(inner.data, inner.len))


def glob_matches(pattern: Text, text: Text) -> bool:
    """Whether the glob pattern matches, by the rules of the server's KEYS (`*`, `?`, `[a-z]`, `[^a]`, backslash)."""
    glob, data = to_bytes(pattern), to_bytes(text)
    return bool(lib.hmq_glob_matches(glob, len(glob), data, len(data)))
