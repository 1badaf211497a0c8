"""The pattern set of a generation of history: into which log a topic goes, and which of its levels vary.

The text of a set, the slots of a pattern and the walk of a topic are described in src/history_patterns.h.
"""

from typing import NamedTuple

from holdmq.core._binding import LIBC_ALLOCATOR, CData, Text, ffi, freer, lib, to_bytes
from holdmq.core.topics import check_topic_name

__all__ = [
    "MAX_PATTERNS",
    "MAX_PATTERN_LEVELS",
    "MISSING_LEVEL",
    "InvalidPatternsError",
    "Pattern",
    "PatternSet",
    "TopicPlace",
]

MAX_PATTERNS: int = lib.HMQ_PATTERNS_MAX
MAX_PATTERN_LEVELS: int = lib.HMQ_PATTERNS_MAX_LEVELS
_missing = lib.hmq_patterns_missing()
MISSING_LEVEL: bytes = bytes(ffi.buffer(_missing.data, _missing.len))

_ERROR_BYTES = 256


class InvalidPatternsError(ValueError):
    """The text of a pattern set has a mistake; the message names the line, what was wrong and what was expected."""


class Pattern(NamedTuple):
    """One pattern of a set.

    Attributes:
        text: its line in the canonical text.
        bits: of each slot (level that varies), how many bits its levels are hashed to.
    """

    text: bytes
    bits: tuple[int, ...]


class TopicPlace(NamedTuple):
    """Where a topic belongs.

    Attributes:
        pattern: the number of its pattern, from 0.
        levels: what it has in the pattern's slots, in order; `MISSING_LEVEL` for the first that it has not, if there is
            one, and then nothing.
    """

    pattern: int
    levels: tuple[bytes, ...]


class PatternSet:
    r"""The patterns of a generation; never changes.

    Example:
        >>> patterns = PatternSet("holdmq-patterns 1 levels=8\ndevices/+/temperature\n#")
        >>> patterns.find("devices/42/temperature")
        TopicPlace(pattern=1, levels=(b'42',))
        >>> patterns.shorten("devices/42/temperature"), patterns.restore(1, "42")
        (b'42', b'devices/42/temperature')
    """

    def __init__(self, text: Text, *, allocator: CData = None) -> None:
        """Reads a set from its text, canonical or not.

        Args:
            text: the head, then a pattern in each line; one of them is `#`.
            allocator: an `hmq_allocator` that outlives the set, libc's if None.

        Raises:
            InvalidPatternsError: on a mistake.
            MemoryError: when out of memory.
        """
        data = to_bytes(text)
        memory = LIBC_ALLOCATOR if allocator is None else allocator
        error = ffi.new("char[]", _ERROR_BYTES)
        new = lib.hmq_patterns_parse(memory, data, len(data), error, _ERROR_BYTES)
        if new == ffi.NULL:
            said = ffi.string(error).decode()
            raise MemoryError(said) if said.startswith("out of memory") else InvalidPatternsError(said)
        self._adopt(new, memory)

    def _adopt(self, new: CData, memory: CData) -> None:
        self._set = ffi.gc(new, freer(lib.hmq_patterns_free, memory))
        self._place = ffi.new("hmq_topic_place *")

    @property
    def text(self) -> bytes:
        """The canonical text: equal sets have equal ones."""
        text = lib.hmq_patterns_text(self._set)
        return bytes(ffi.buffer(text.data, text.len))

    @property
    def levels(self) -> int:
        """How many levels are indexed; what a topic has beyond them is one token."""
        return int(lib.hmq_patterns_levels(self._set))

    def __len__(self) -> int:
        return int(lib.hmq_patterns_count(self._set))

    def __getitem__(self, pattern: int) -> Pattern:
        """A pattern by its number.

        Raises:
            IndexError: if there is none with this number.
        """
        found = lib.hmq_patterns_at(self._set, pattern) if pattern >= 0 else ffi.NULL
        if found == ffi.NULL:
            raise IndexError(f"pattern is {pattern}, expected 0..{len(self) - 1}")
        return Pattern(bytes(ffi.buffer(found.text.data, found.text.len)), tuple(found.bits[0 : found.slots]))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PatternSet) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def find(self, topic: Text) -> TopicPlace:
        """The topic's pattern, and what varies in it.

        Raises:
            InvalidTopicError: if it is no valid topic name.
        """
        check_topic_name(topic)
        data = to_bytes(topic)
        place = self._place
        kept = ffi.from_buffer("char[]", data)  # the levels point into it
        lib.hmq_patterns_find(self._set, kept, len(data), place)
        levels = tuple(bytes(ffi.buffer(level.data, level.len)) for level in place.levels[0 : place.slots])
        return TopicPlace(place.pattern, levels)

    def shorten(self, topic: Text) -> bytes:
        """What the pattern does not already say of the topic: to be stored instead of it.

        Raises:
            InvalidTopicError: if it is no valid topic name.
        """
        check_topic_name(topic)
        data = to_bytes(topic)
        out = ffi.new("char[]", len(data))
        return bytes(ffi.buffer(out, lib.hmq_patterns_shorten(self._set, data, len(data), out, len(data))))

    def restore(self, pattern: int, shortened: Text) -> bytes:
        """The topic again.

        Raises:
            IndexError: if there is no such pattern.
            ValueError: if no topic of the pattern is shortened to that.
        """
        line = self[pattern].text
        data = to_bytes(shortened)
        capacity = len(line) + len(data)
        out = ffi.new("char[]", capacity)
        size = lib.hmq_patterns_restore(self._set, pattern, data, len(data), out, capacity)
        if size < 0:
            raise ValueError(f"{data!r} does not have the levels that vary in {line!r}")
        return bytes(ffi.buffer(out, size))
