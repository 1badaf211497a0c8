"""Comparisons of two topic filters: whether one covers the other, and whether some topic matches both.

The functions take valid filters, and no `$share` ones (`split_share` returns the inner filter). They agree with
`matches` about every topic: `a/#` matches `a`, and a wildcard in the first level matches no topic that begins with `$`
[MQTT-4.7.2-1]. Cost: O(levels), at most 128.
"""

from holdmq.core._binding import Text, to_bytes

__all__ = ["filter_covers", "filters_overlap"]

_PLUS = b"+"
_HASH = b"#"


def filter_covers(wide: Text, narrow: Text) -> bool:
    """Returns whether `wide` matches every topic that `narrow` matches. A topic name is a filter, too.

    Examples:
        >>> filter_covers("a/#", "a/+/c"), filter_covers("a/+", "a/#"), filter_covers("#", "$SYS/#")
        (True, False, False)
    """
    outer, outer_open = _levels(to_bytes(wide))
    inner, inner_open = _levels(to_bytes(narrow))
    if _is_hidden_from(outer, inner):
        return False
    if inner_open and not outer_open:
        return False
    if len(outer) > len(inner) or (len(outer) < len(inner) and not outer_open):
        return False
    return all(a in (_PLUS, b) for a, b in zip(outer, inner, strict=False))


def filters_overlap(one: Text, other: Text) -> bool:
    """Returns whether some topic matches both topic filters.

    Examples:
        >>> filters_overlap("a/+/c", "+/b/#"), filters_overlap("a/#", "a"), filters_overlap("#", "$SYS/x")
        (True, True, False)
    """
    first, first_open = _levels(to_bytes(one))
    second, second_open = _levels(to_bytes(other))
    if _is_hidden_from(first, second) or _is_hidden_from(second, first):
        return False
    if (len(first) < len(second) and not first_open) or (len(second) < len(first) and not second_open):
        return False
    return all(_PLUS in (a, b) or a == b for a, b in zip(first, second, strict=False))


def _levels(topic_filter: bytes) -> tuple[list[bytes], bool]:
    """The levels before a trailing `#`, and whether there is one.

    No topic is empty. So `#` is the same as `+/#`, and `/#`, which would match an empty topic, is the same as `/+/#`.
    """
    levels = topic_filter.split(b"/")
    if levels[-1] != _HASH:
        return levels, False
    match levels[:-1]:
        case []:
            return [_PLUS], True
        case [b""]:
            return [b"", _PLUS], True
        case before:
            return before, True


def _is_hidden_from(one: list[bytes], other: list[bytes]) -> bool:
    """Returns whether the first filter begins with a wildcard and the other one with `$`, which none matches."""
    return one[0] == _PLUS and other[0].startswith(b"$")
