"""The index of history: hashed levels, posting lists, plans for filters, cursors, ids (src/history/*.h)."""

import enum
from collections.abc import Iterable
from typing import NamedTuple

from holdmq.core._binding import BytesLike, CData, Text, ffi, lib, to_bytes
from holdmq.core.patterns import PatternSet
from holdmq.core.topics import InvalidTopicError, check_topic_filter, split_share

__all__ = [
    "MARKS_EVERY",
    "MAX_CURSOR_BYTES",
    "MAX_ID",
    "MAX_INDEX_PAGES",
    "MAX_POSTING_NUMBER",
    "CorruptPostingsError",
    "Cursor",
    "IndexPlace",
    "InvalidCursorError",
    "MessageId",
    "PlanPattern",
    "PlanSlot",
    "PostingList",
    "Scan",
    "ScanResult",
    "ScanStep",
    "encode_mark",
    "filter_plan",
    "find_mark",
    "index_page",
    "index_place",
    "is_mark_due",
    "level_hash",
    "next_message_id",
    "topic_shard",
]

MARKS_EVERY: int = lib.HMQ_MARKS_EVERY
MAX_CURSOR_BYTES: int = lib.HMQ_CURSOR_STORE_MAX_BYTES
MAX_ID: int = lib.HMQ_ID_MAX
MAX_INDEX_PAGES: int = lib.HMQ_INDEX_MAX_PAGES
MAX_POSTING_NUMBER: int = lib.HMQ_POSTINGS_MAX_NUMBER


def _seed(seed: int) -> CData:
    """Converts 128 bits for C.

    Raises:
        OverflowError: if the seed is not within 0 .. 2**128-1.
    """
    return ffi.new("hmq_hash_seed *", {"low": seed & (2**64 - 1), "high": seed >> 64})


def level_hash(level: Text, bits: int, *, seed: int = 0) -> int:
    """The first `bits` (1..24) bits of a level's hash.

    Raises:
        ValueError: if bits is out of range.
        OverflowError: if the seed is not within 0 .. 2**128-1.
    """
    if not 1 <= bits <= lib.HMQ_INDEX_MAX_BITS:
        raise ValueError(f"bits is {bits}; expected 1..{lib.HMQ_INDEX_MAX_BITS}")
    data = to_bytes(level)
    return int(lib.hmq_index_hash(_seed(seed), (ffi.from_buffer("uint8_t[]", data), len(data)), bits))


def topic_shard(topic: Text, shards: int, *, seed: int = 0) -> int:
    """The shard of a topic, 0 .. shards-1.

    Raises:
        ValueError: if shards is not positive.
        OverflowError: if the seed is not within 0 .. 2**128-1.
    """
    if shards < 1:
        raise ValueError(f"shards is {shards}; expected 1 or more")
    data = to_bytes(topic)
    return int(lib.hmq_index_shard(_seed(seed), data, len(data), shards))


def index_page(messages: int) -> int:
    """The page of the next message of a pattern that has `messages` in this epoch."""
    return int(lib.hmq_index_page(messages))


class IndexPlace(NamedTuple):
    """The list of a page that a hash belongs to, and the rest of the hash for the entry."""

    group: int
    fragment: int
    group_bits: int
    fragment_bits: int


def index_place(level_hash: int, bits: int, page: int) -> IndexPlace:
    """The place of a hash of `bits` bits in a page.

    Raises:
        ValueError: if an argument is out of range.
    """
    if not 1 <= bits <= lib.HMQ_INDEX_MAX_BITS or not 0 <= level_hash < 1 << bits or not 0 <= page < MAX_INDEX_PAGES:
        raise ValueError(f"hash {level_hash} of {bits} bits in page {page}; expected 1..24 bits and page 0..11")
    place = lib.hmq_index_place_of(level_hash, bits, page)
    return IndexPlace(place.group, place.fragment, place.group_bits, place.fragment_bits)


class CorruptPostingsError(ValueError):
    """Bytes are not a valid posting list."""


class PostingList:
    """A posting list: numbers that only grow, each with the rest of a hash (src/history/postings.h).

    Attributes:
        data: the stored string.

    Examples:
        >>> postings = PostingList(fragment_bits=4)
        >>> for number, fragment in [(1, 7), (5, 2), (900, 7)]:
        ...     _ = postings.append(number, fragment)
        >>> postings.numbers(7)
        [1, 900]
    """

    def __init__(self, data: BytesLike = b"", *, fragment_bits: int) -> None:
        """Takes a stored list.

        Raises:
            CorruptPostingsError: if it is not a list of this number of fragment bits.
            ValueError: if fragment_bits is not within 0..24.
        """
        if not 0 <= fragment_bits <= lib.HMQ_POSTINGS_MAX_FRAGMENT_BITS:
            raise ValueError(f"fragment_bits is {fragment_bits}; expected 0..{lib.HMQ_POSTINGS_MAX_FRAGMENT_BITS}")
        self.data = bytearray(data)
        self._bits = fragment_bits
        last = ffi.new("uint64_t *")
        held = bytes(data)
        if lib.hmq_postings_last(held, len(held), fragment_bits, last) == lib.HMQ_POSTINGS_CORRUPT:
            raise CorruptPostingsError(f"{len(held)} bytes end in no posting list of {fragment_bits} fragment bits")
        self.last: int = last[0]

    def append(self, number: int, fragment: int) -> bytes:
        """Adds a posting. Returns the bytes to append to the stored string.

        Raises:
            ValueError: if the number is not above the last one, or one of them is out of range.
        """
        out = ffi.new("uint8_t[]", lib.HMQ_POSTINGS_APPEND_BYTES)
        size = lib.hmq_postings_append(len(self.data), self.last, self._bits, number, fragment, out)
        if size == 0:
            raise ValueError(
                f"number {number}, fragment {fragment}; expected {self.last + 1}..{MAX_POSTING_NUMBER} "
                f"and a fragment of {self._bits} bits"
            )
        appended = bytes(ffi.buffer(out, size))
        self.data += appended
        self.last = number
        return appended

    def __len__(self) -> int:
        """Postings of any fragment.

        Raises:
            CorruptPostingsError: if the bytes are invalid.
        """
        entries = ffi.new("uint64_t *")
        held = bytes(self.data)
        if lib.hmq_postings_check(held, len(held), self._bits, entries) == lib.HMQ_POSTINGS_CORRUPT:
            raise CorruptPostingsError(f"{len(held)} bytes are not a posting list of {self._bits} fragment bits")
        return int(entries[0])

    def numbers(self, fragment: int, at_least: int = 0) -> list[int]:
        """All numbers from `at_least` on with this fragment.

        Raises:
            CorruptPostingsError: if the bytes are invalid.
            ValueError: if the fragment is out of range.
        """
        held = ffi.from_buffer("uint8_t[]", bytes(self.data))
        postings = ffi.new("hmq_postings *")
        if not lib.hmq_postings_open(postings, held, len(held), self._bits, fragment):
            raise ValueError(f"fragment is {fragment}; expected {self._bits} bits")
        found: list[int] = []
        number, budget = ffi.new("uint64_t *"), ffi.new("uint64_t *", 2**64 - 1)
        while (result := lib.hmq_postings_seek(postings, at_least, number, budget)) == lib.HMQ_POSTINGS_FOUND:
            found.append(number[0])
            at_least = number[0] + 1
        if result == lib.HMQ_POSTINGS_CORRUPT:
            raise CorruptPostingsError(f"{len(held)} bytes are not a posting list of {self._bits} fragment bits")
        return found


# ---- plans and scans ----


class PlanSlot(NamedTuple):
    """A slot whose level a filter fixes: its number, the level's hash, and the bits of the hash."""

    slot: int
    hash: int
    bits: int


class PlanPattern(NamedTuple):
    """A pattern that may have matching topics, and the slots that the filter fixes in it."""

    pattern: int
    slots: tuple[PlanSlot, ...]


def filter_plan(patterns: PatternSet, topic_filter: Text, *, seed: int = 0) -> list[PlanPattern]:
    r"""The patterns that may have topics which the filter matches.

    Args:
        patterns: the set.
        topic_filter: a filter without `$share`.
        seed: of the hashes, 128 bits.

    Raises:
        InvalidTopicError: if the filter is not valid, or a `$share` one.
        OverflowError: if the seed is not within 0 .. 2**128-1.

    Examples:
        >>> patterns = PatternSet("holdmq-patterns 1 levels=8\n#8\ndevices/+8/temperature")
        >>> filter_plan(patterns, "devices/+/temperature")[1]
        PlanPattern(pattern=1, slots=())
        >>> filter_plan(patterns, "devices/42/temperature")
        [PlanPattern(pattern=1, slots=(PlanSlot(slot=0, hash=177, bits=8),))]
    """
    check_topic_filter(topic_filter)
    if split_share(topic_filter) is not None:
        raise InvalidTopicError(lib.HMQ_TOPIC_BAD_SHARE)
    data = to_bytes(topic_filter)
    out = ffi.new("hmq_plan_pattern[]", len(patterns))
    count = lib.hmq_plan_collect(patterns._set, _seed(seed), data, len(data), out, len(patterns))
    return [
        PlanPattern(plan.pattern, tuple(PlanSlot(s.slot, s.hash, s.bits) for s in plan.slots[0 : plan.fixed]))
        for plan in out[0:count]
    ]


class ScanResult(enum.Enum):
    """The result of a step of a scan."""

    FOUND = lib.HMQ_POSTINGS_FOUND
    END = lib.HMQ_POSTINGS_END
    LIMIT = lib.HMQ_POSTINGS_LIMIT


class ScanStep(NamedTuple):
    """One step of a scan.

    Attributes:
        result: FOUND, END, or LIMIT (the budget is used up).
        number: FOUND: the candidate. LIMIT: where to continue. END: 0.
        visited: entries that were examined.
    """

    result: ScanResult
    number: int
    visited: int


class Scan:
    """Finds the numbers that are in the lists of all fixed slots."""

    def __init__(self, lists: Iterable[tuple[PlanSlot, int, bytes]]) -> None:
        """Begins a scan.

        Args:
            lists: (fixed slot, page, stored string), at least one for each slot, those of a slot in succession.

        Raises:
            ValueError: if there is none, or of more slots than a pattern has.
        """
        given = list(lists)
        self._lists = ffi.new("hmq_scan_list[]", len(given))
        self._kept = [ffi.from_buffer("uint8_t[]", data) for _, _, data in given]
        for i, (slot, page, data) in enumerate(given):
            fixed = ffi.new("hmq_plan_slot *", {"hash": slot.hash, "slot": slot.slot, "bits": slot.bits})
            lib.hmq_scan_list_open(self._lists + i, fixed, page, self._kept[i], len(data))
        self._scan = ffi.new("hmq_scan *")
        if not lib.hmq_scan_begin(self._scan, self._lists, len(given)):
            raise ValueError(f"{len(given)} lists; expected those of 1 to {lib.HMQ_PATTERNS_MAX_SLOTS} slots")

    def next(self, at_least: int, budget: int = 2**62) -> ScanStep:
        """The first candidate from `at_least` on, which may not decrease between calls.

        Raises:
            CorruptPostingsError: if a list has bytes that no writer can have made.
        """
        number, left = ffi.new("uint64_t *"), ffi.new("uint64_t *", budget)
        result = lib.hmq_scan_next(self._scan, at_least, number, left)
        if result == lib.HMQ_POSTINGS_CORRUPT:
            raise CorruptPostingsError("a list of the scan has bytes that no writer of posting lists can have made")
        step = ScanResult(result)
        return ScanStep(step, 0 if step is ScanResult.END else number[0], budget - left[0])


# ---- cursors ----


class InvalidCursorError(ValueError):
    """A text is not a cursor."""


class Cursor(NamedTuple):
    """The place of a reader in one shard of a store (src/history/cursor.h).

    Attributes:
        generation: the reader's pattern set, 0 .. 2**32-1.
        epoch: 0 .. 2**32-1.
        shard: 0 .. 65535.
        sequence: of the next message, 1 is the first.
        time_us: id of the last message that was returned; 0 if none was.
        writer: the writer of the number before `sequence`, 0 .. 2**32-1 (0: unknown).
        before: the writer before that one.
        begun: the first number of `writer`.
        store_id: distinguishes stores of the same name, 0 .. 2**32-1.
        store: the store's name, at most 64 bytes; empty in a cursor of an earlier release.

    Examples:
        >>> text = Cursor(1, 7, 3, sequence=1000, time_us=1, store_id=42, store=b"weather").encode()
        >>> text, Cursor.decode(text).sequence
        (b'h2-1-7-3-3e8-1-0-0-0-2a-weather-9474', 1000)
    """

    generation: int
    epoch: int
    shard: int
    sequence: int = 1
    time_us: int = 0
    writer: int = 0
    before: int = 0
    begun: int = 0
    store_id: int = 0
    store: bytes = b""

    def encode(self) -> bytes:
        """The text, at most 301 bytes.

        Raises:
            OverflowError: if a number is out of its range, or the name is too long.
        """
        if len(self.store) > lib.HMQ_CURSOR_NAME_MAX:
            raise OverflowError(f"the store's name has {len(self.store)} bytes; expected at most 64")
        out = ffi.new("char[]", MAX_CURSOR_BYTES)
        store = ffi.new("hmq_cursor_store *", (self.store_id, len(self.store), self.store))
        cursor = ffi.new("hmq_cursor *", self[:_PLACE_FIELDS])
        return bytes(ffi.buffer(out, lib.hmq_cursor_encode(cursor, store, out)))

    @classmethod
    def decode(cls, text: Text) -> "Cursor":
        """Parses the text of `encode`.

        Raises:
            InvalidCursorError: if it is not a cursor.
        """
        data = to_bytes(text)
        cursor, store = ffi.new("hmq_cursor *"), ffi.new("hmq_cursor_store *")
        if lib.hmq_cursor_decode(data, len(data), cursor, store) != 0:
            raise InvalidCursorError(f"{data[:80]!r} is no cursor; expected one that a replay returned")
        named = {"store_id": store.id, "store": bytes(ffi.buffer(store.name, store.name_len))}
        return cls(**{name: getattr(cursor, name) for name in cls._fields[:_PLACE_FIELDS]}, **named)


_PLACE_FIELDS = 8
"""Fields of a cursor before the store's."""


# ---- ids ----


class MessageId(NamedTuple):
    """A message's id, microseconds since 1970-01-01 UTC, and its sequence number in its shard."""

    time_us: int
    sequence: int


def next_message_id(last: MessageId, now_us: int) -> MessageId:
    """The id after `last` (`MessageId(0, 0)` before the first) at the time `now_us`.

    Raises:
        OverflowError: if there is none left, or an argument is out of range.
    """
    following = ffi.new("hmq_message_id *")
    if not lib.hmq_message_id_next(last, now_us, following):
        raise OverflowError(f"no id is left after {last}; expected both numbers below {MAX_ID}")
    return MessageId(following.time_us, following.sequence)


def is_mark_due(first: int, sequence: int) -> bool:
    """Whether this message gets a mark, in an epoch whose first sequence number is `first`."""
    return bool(lib.hmq_mark_due(first, sequence))


def encode_mark(message_id: MessageId) -> bytes:
    """The bytes to append to the string of marks."""
    out = ffi.new("uint8_t[]", lib.HMQ_MARK_BYTES)
    lib.hmq_mark_encode(message_id, out)
    return bytes(ffi.buffer(out))


def find_mark(marks: BytesLike, time_us: int) -> tuple[int, int | None]:
    """The lowest and highest sequence number that the first message with an id >= `time_us` can have.

    The highest is None if no mark is that late.
    """
    data = bytes(marks)
    low, high = ffi.new("uint64_t *"), ffi.new("uint64_t *")
    lib.hmq_marks_find(ffi.from_buffer("uint8_t[]", data), len(data), time_us, low, high)
    return low[0], None if high[0] == 2**64 - 1 else high[0]
