"""The pattern set of a generation of history: the log of each topic, and which of its levels vary.

src/history/patterns.h describes the text of a set, the slots of a pattern and the walk of a topic.
"""

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from holdmq.core._binding import LIBC_ALLOCATOR, CData, Text, ffi, freer, lib, to_bytes
from holdmq.core.topics import InvalidTopicError, check_topic_filter, check_topic_name, split_share

__all__ = [
    "MAX_PATTERNS",
    "MAX_PATTERN_LEVELS",
    "MISSING_LEVEL",
    "FilterUses",
    "InvalidPatternsError",
    "Pattern",
    "PatternCost",
    "PatternLearner",
    "PatternProposal",
    "PatternSet",
    "TopicPlace",
]

MAX_PATTERNS: int = lib.HMQ_PATTERNS_MAX
MAX_PATTERN_LEVELS: int = lib.HMQ_PATTERNS_MAX_LEVELS
_missing = lib.hmq_patterns_missing()
MISSING_LEVEL: bytes = bytes(ffi.buffer(_missing.data, _missing.len))

FilterUses: TypeAlias = Mapping[str, int] | Mapping[bytes, int]
"""Topic filters that readers ask for, and how often."""

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

    Examples:
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
            message = ffi.string(error).decode()
            raise MemoryError(message) if message.startswith("out of memory") else InvalidPatternsError(message)
        self._adopt(new, memory)

    def _adopt(self, new: CData, memory: CData) -> None:
        self._set = ffi.gc(new, freer(lib.hmq_patterns_free, memory))
        self._place = ffi.new("hmq_topic_place *")

    @classmethod
    def _of(cls, new: CData, memory: CData) -> "PatternSet":
        """The set that C made."""
        made = cls.__new__(cls)
        made._adopt(new, memory)
        return made

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
            raise IndexError(f"pattern is {pattern}; expected 0..{len(self) - 1}")
        return Pattern(bytes(ffi.buffer(found.text.data, found.text.len)), tuple(found.bits[0 : found.slots]))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PatternSet) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def find(self, topic: Text) -> TopicPlace:
        """The topic's pattern, and what varies in it.

        Raises:
            InvalidTopicError: if it is not a valid topic name.
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
            InvalidTopicError: if it is not a valid topic name.
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


class PatternCost(NamedTuple):
    """What a pattern set costs, in the unit "messages read" (src/history/learner.h).

    Attributes:
        opened: logs that a filter opens, mean.
        read: messages visited for each one returned, mean.
        bytes: of the index, for each message.
        cost: the three together.
    """

    opened: float
    read: float
    bytes: float
    cost: float


class PatternProposal(NamedTuple):
    """What a learner proposes.

    Attributes:
        patterns: the new set, None if the current one should be kept.
        present: what the current set costs.
        best: what the best set found costs.
    """

    patterns: PatternSet | None
    present: PatternCost
    best: PatternCost


class PatternLearner:
    """Learns from topics which of their levels vary. Belongs to one thread at a time.

    Examples:
        >>> learner = PatternLearner()
        >>> for i in range(1000):
        ...     learner.observe(f"devices/{i}/temperature")
        >>> print(learner.patterns().text.decode(), end="")
        holdmq-patterns 1 levels=8
        #
        devices/+12/temperature
    """

    def __init__(
        self,
        *,
        levels: int | None = None,
        max_children: int | None = None,
        max_nodes: int | None = None,
        max_patterns: int | None = None,
        sample: int | None = None,
        hot_percent: int | None = None,
        allocator: CData = None,
    ) -> None:
        """Creates a learner that knows nothing; what is None has its default.

        Args:
            levels: to be indexed, 1..16, 8 by default.
            max_children: more different levels become `+`, 1..10000, 100 by default.
            max_nodes: of its trie, 1000..10000000, 100000 by default.
            max_patterns: of a set that it makes, 1..4096, 256 by default.
            sample: topics kept to measure costs, 1..100000, 1024 by default.
            hot_percent: share of its level's messages that keeps a level concrete, 1..100, 20 by default; 101: never.
            allocator: an `hmq_allocator` that outlives the learner, libc's if None.

        Raises:
            ValueError: if an option is out of its range.
            MemoryError: when out of memory.
            OverflowError: if an option is not within 0 .. 2**32-1.
        """
        given = {
            "levels": levels,
            "max_children": max_children,
            "max_nodes": max_nodes,
            "max_patterns": max_patterns,
            "sample": sample,
            "hot_percent": hot_percent,
        }
        options = ffi.new("hmq_learner_options *", lib.hmq_learner_defaults())
        for name, value in given.items():
            if value is not None:
                setattr(options, name, value)
        self._memory = LIBC_ALLOCATOR if allocator is None else allocator
        if not lib.hmq_learner_options_are_valid(options):
            raise ValueError(f"an option of {given} is out of its range")
        new = lib.hmq_learner_new(self._memory, options)
        if new == ffi.NULL:
            raise MemoryError("no memory for a pattern learner")
        self._learner = ffi.gc(new, freer(lib.hmq_learner_free, self._memory))
        self._max_children: int = options.max_children

    def observe(self, topic: Text, messages: int = 1) -> None:
        """So many messages were published to this topic.

        Raises:
            InvalidTopicError: if it is not a valid topic name.
            MemoryError: when out of memory; they are then counted as far as there was memory.
            OverflowError: if messages is not within 0 .. 2**64-1.
        """
        check_topic_name(topic)
        data = to_bytes(topic)
        if not lib.hmq_learner_observe(self._learner, data, len(data), messages):
            raise MemoryError("no memory to count a topic")

    @property
    def messages(self) -> int:
        """Messages that it has observed."""
        return int(lib.hmq_learner_messages(self._learner))

    @property
    def nodes(self) -> int:
        """Nodes of its trie."""
        return int(lib.hmq_learner_nodes(self._learner))

    @property
    def memory_bytes(self) -> int:
        """Memory taken from the allocator, in bytes."""
        return int(lib.hmq_learner_bytes(self._learner))

    def patterns(self, max_children: int | None = None) -> PatternSet | None:
        """The set where levels with more different children are `+`; None if it has more than `max_patterns`.

        Raises:
            MemoryError: when out of memory.
        """
        out = ffi.new("hmq_patterns **")
        threshold = self._max_children if max_children is None else max_children
        if not lib.hmq_learner_patterns(self._learner, threshold, out):
            raise MemoryError("no memory for a pattern set")
        return None if out[0] == ffi.NULL else PatternSet._of(out[0], self._memory)

    def cost(self, patterns: PatternSet, filters: FilterUses | None = None) -> PatternCost:
        """What a set costs, by the topics that were observed.

        Args:
            patterns: the set.
            filters: what readers ask for, with how often; each observed topic by itself if there is none.

        Raises:
            InvalidTopicError: if a filter is not valid, or a `$share` one.
            ValueError: if nothing was observed.
            MemoryError: when out of memory.
        """
        uses, _kept = _filter_uses(filters)
        cost = ffi.new("hmq_patterns_cost *")
        if self.messages == 0:
            raise ValueError("nothing was observed; expected topics to measure a cost with")
        if not lib.hmq_learner_cost(self._learner, patterns._set, uses, len(uses), cost):
            raise MemoryError("no memory to measure a pattern set")
        return PatternCost(cost.opened, cost.read, cost.bytes, cost.cost)

    def propose(
        self, present: PatternSet, filters: FilterUses | None = None, *, margin_percent: int = 10
    ) -> PatternProposal:
        """The cheapest set that it finds, if it is cheaper than the current one by the margin.

        Args:
            present: the set of the current generation.
            filters: as for `cost`.
            margin_percent: 0..100.

        Raises:
            InvalidTopicError: if a filter is not valid, or a `$share` one.
            ValueError: if nothing was observed, or the margin is out of range.
            MemoryError: when out of memory.
        """
        if not 0 <= margin_percent <= 100:
            raise ValueError(f"margin_percent is {margin_percent}; expected 0..100")
        uses, _kept = _filter_uses(filters)
        out, costs = ffi.new("hmq_patterns **"), ffi.new("hmq_patterns_cost[2]")
        learner = self._learner
        result = lib.hmq_learner_propose(learner, present._set, uses, len(uses), margin_percent, out, costs)
        if result == lib.HMQ_PROPOSAL_NOTHING_OBSERVED:
            raise ValueError("nothing was observed; expected topics to learn from")
        if result == lib.HMQ_PROPOSAL_NO_MEMORY:
            raise MemoryError("no memory to propose a pattern set")
        found = PatternSet._of(out[0], self._memory) if result == lib.HMQ_PROPOSAL_NEW else None
        before, after = (PatternCost(c.opened, c.read, c.bytes, c.cost) for c in costs)
        return PatternProposal(found, before, after)


def _filter_uses(filters: FilterUses | None) -> tuple[CData, list[CData]]:
    """The filters for C, and what has to live as long."""
    given: list[tuple[Text, int]] = []
    if filters is not None:
        given.extend(filters.items())
    uses = ffi.new("hmq_filter_use[]", len(given))
    kept: list[CData] = []
    for use, (text, weight) in zip(uses, given, strict=True):
        check_topic_filter(text)
        if split_share(text) is not None:
            raise InvalidTopicError(lib.HMQ_TOPIC_BAD_SHARE)
        data = ffi.from_buffer("uint8_t[]", to_bytes(text))
        kept.append(data)
        use.filter.data, use.filter.len, use.weight = data, len(data), weight
    return uses, kept
