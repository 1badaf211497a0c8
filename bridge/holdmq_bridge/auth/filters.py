"""Two topic filters beside each other: does one include the other, is there a topic that both match.

Pure functions, level by level. They take filters that are valid and no `$share` ones (`holdmq.core.split_share` gives
the inner filter), and agree with `holdmq.core.matches` about every topic: `a/#` matches `a`, and a wildcard in the
first level matches no topic that begins with `$` [MQTT-4.7.2-1]. Cost: the number of levels, at most 128.
"""

_PLUS = b"+"
_HASH = b"#"


def covers(wide: bytes, narrow: bytes) -> bool:
    """Does `wide` match every topic that `narrow` matches?

    Example:
        >>> covers(b"a/#", b"a/+/c"), covers(b"a/+", b"a/#"), covers(b"#", b"$SYS/#")
        (True, False, False)
    """
    outer, outer_open = _levels(wide)
    inner, inner_open = _levels(narrow)
    if _differ_about_dollar(outer, inner):
        return False
    if inner_open and not outer_open:
        return False
    if len(outer) > len(inner) or (len(outer) < len(inner) and not outer_open):
        return False
    return all(a in (_PLUS, b) for a, b in zip(outer, inner, strict=False))


def overlaps(one: bytes, other: bytes) -> bool:
    """Is there a topic that both filters match?

    Example:
        >>> overlaps(b"a/+", b"+/b"), overlaps(b"a/b", b"a/c"), overlaps(b"+/b", b"$SYS/#")
        (True, False, False)
    """
    first, first_open = _levels(one)
    second, second_open = _levels(other)
    if _differ_about_dollar(first, second) or _differ_about_dollar(second, first):
        return False
    if (len(first) < len(second) and not first_open) or (len(second) < len(first) and not second_open):
        return False
    return all(_PLUS in (a, b) or a == b for a, b in zip(first, second, strict=False))


def _levels(topic_filter: bytes) -> tuple[list[bytes], bool]:
    """The levels before a trailing `#`, at least one, and whether there is one.

    No topic is empty: each has a first level, so `#` is `+/#`; and `/#`, which would match the empty one, is `/+/#`.
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


def _differ_about_dollar(one: list[bytes], other: list[bytes]) -> bool:
    """Does the first filter begin with a wildcard, which matches no `$`, and the other one with a `$`?"""
    return one[0] == _PLUS and other[0].startswith(b"$")
