"""Plain Python models of the core, written from the standards and not from the C code; and what hypothesis draws from.

Slow, simple, and always right: where C and model differ, one of them is a bug.
"""

import re

from hypothesis import strategies as st

# ---- topics ----

# Few different levels, so that filters and names meet; the odd ones are empty, a dollar, a letter of two bytes.
NAME_LEVELS = ["", "a", "b", "aa", "$SYS", "$", "é", " "]
FILTER_LEVELS = [*NAME_LEVELS, "+", "+", "+"]

names = st.lists(st.sampled_from(NAME_LEVELS), min_size=1, max_size=5).map("/".join).filter(bool)
filters = (
    st.tuples(st.lists(st.sampled_from(FILTER_LEVELS), max_size=5), st.booleans())
    .map(lambda drawn: "/".join(drawn[0] + ["#"] * drawn[1]))
    .filter(lambda text: bool(text) and not text.startswith("$share/"))
)

MAX_BYTES = 65535
MAX_LEVELS = 128


def text_error(text: bytes) -> str:
    """What is wrong with it whether it is a name or a filter; "OK" if nothing is."""
    if not text:
        return "EMPTY"
    if len(text) > MAX_BYTES:
        return "TOO_LONG"
    try:
        decoded = text.decode("utf-8", "strict")
    except UnicodeDecodeError:
        return "NOT_UTF8"
    return "NUL" if "\0" in decoded else "OK"


def name_error(text: bytes) -> str:
    """What is wrong with a topic name."""
    error = text_error(text)
    if error != "OK":
        return error
    if b"+" in text or b"#" in text:
        return "WILDCARD"
    return "TOO_DEEP" if len(text.split(b"/")) > MAX_LEVELS else "OK"


def filter_error(text: bytes) -> str:
    """What is wrong with a topic filter."""
    error = text_error(text)
    if error != "OK":
        return error
    if text.startswith(b"$share/"):
        group, slash, inner = text.removeprefix(b"$share/").partition(b"/")
        if not group or not slash or not inner or b"+" in group or b"#" in group or inner.startswith(b"$share/"):
            return "BAD_SHARE"
        text = inner
    levels = text.split(b"/")
    for index, level in enumerate(levels):
        wildcards = [c for c in level if c in b"+#"]
        if len(level) > 1 and wildcards:
            return "BAD_PLUS" if wildcards[0] == ord("+") else "BAD_HASH"
        if level == b"#" and index < len(levels) - 1:
            return "BAD_HASH"
    return "TOO_DEEP" if len(levels) > MAX_LEVELS else "OK"


def topic_matches(topic_filter: str, name: str) -> bool:
    """Section 4.7, level by level."""
    wanted, given = topic_filter.split("/"), name.split("/")
    if name.startswith("$") and wanted[0] in {"+", "#"}:
        return False
    while wanted:
        level = wanted.pop(0)
        if level == "#":
            return True
        if not given:
            return False
        if level not in {"+", given.pop(0)}:
            return False
    return not given


# ---- globs ----


def glob_regex(pattern: bytes) -> re.Pattern[bytes]:
    """The regular expression that a glob stands for, item by item."""
    parts: list[bytes] = []
    at = 0
    while at < len(pattern):
        c = pattern[at : at + 1]
        if c == b"*":
            parts.append(b".*")
        elif c == b"?":
            parts.append(b".")
        elif c == b"[":
            members, at = _class_members(pattern, at + 1)
            parts.append(_alternatives(members))
            continue
        elif c == b"\\" and at + 1 < len(pattern):
            at += 1
            parts.append(re.escape(pattern[at : at + 1]))
        else:
            parts.append(re.escape(c))
        at += 1
    return re.compile(b"".join(parts), re.DOTALL)


def _class_members(pattern: bytes, at: int) -> tuple[set[int], int]:
    """The bytes that the class takes whose `[` is before `at`, and the place after it."""
    negated = pattern[at : at + 1] == b"^"
    at += negated
    members: set[int] = set()
    while at < len(pattern) and pattern[at : at + 1] != b"]":
        rest = pattern[at:]
        if rest[:1] == b"\\" and len(rest) >= 2:
            members.add(rest[1])
            at += 2
        elif rest[1:2] == b"-" and len(rest) >= 3:
            members.update(range(min(rest[0], rest[2]), max(rest[0], rest[2]) + 1))
            at += 3
        else:
            members.add(rest[0])
            at += 1
    return (set(range(256)) - members if negated else members), min(at + 1, len(pattern))


def _alternatives(members: set[int]) -> bytes:
    if not members:
        return b"(?!)"
    return b"(?:" + b"|".join(re.escape(bytes([member])) for member in sorted(members)) + b")"
