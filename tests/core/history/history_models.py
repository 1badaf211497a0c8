"""Plain Python models of history's index, written from the descriptions in the headers and not from the C code."""

import itertools
from collections.abc import Iterator

from hypothesis import strategies as st

from holdmq.core import (
    PatternSet,
    PlanPattern,
    PostingList,
    Scan,
    ScanResult,
    filter_plan,
    index_page,
    index_place,
    level_hash,
    matches,
)

MISSING = b"\0"
MASK = 2**64 - 1

# ---- SipHash-1-3 ----


def _rotate(x: int, bits: int) -> int:
    return (x << bits | x >> (64 - bits)) & MASK


def _round(v: list[int]) -> None:
    v[0] = (v[0] + v[1]) & MASK
    v[2] = (v[2] + v[3]) & MASK
    v[1] = _rotate(v[1], 13) ^ v[0]
    v[3] = _rotate(v[3], 16) ^ v[2]
    v[0] = _rotate(v[0], 32)
    v[2] = (v[2] + v[1]) & MASK
    v[0] = (v[0] + v[3]) & MASK
    v[1] = _rotate(v[1], 17) ^ v[2]
    v[3] = _rotate(v[3], 21) ^ v[0]
    v[2] = _rotate(v[2], 32)


def siphash13(data: bytes, seed: int) -> int:
    low, high = seed & MASK, seed >> 64
    constants = [b"somepseu", b"dorandom", b"lygenera", b"tedbytes"]
    v = [key ^ int.from_bytes(text, "big") for key, text in zip([low, high, low, high], constants, strict=True)]
    padded = data + bytes(-(len(data) + 1) % 8) + bytes([len(data) % 256])
    for at in range(0, len(padded), 8):
        word = int.from_bytes(padded[at : at + 8], "little")
        v[3] ^= word
        _round(v)
        v[0] ^= word
    v[2] ^= 0xFF
    for _ in range(3):
        _round(v)
    return v[0] ^ v[1] ^ v[2] ^ v[3]


# ---- pattern sets ----


class Tree:
    """The trie of a set: children by level (a wildcard's bits cut off), the number of the pattern that ends here."""

    def __init__(self) -> None:
        self.children: dict[bytes, Tree] = {}
        self.end: int | None = None
        self.tail: int | None = None


def token(level: bytes) -> bytes:
    return level[:1] if level[:1] in (b"+", b"#") else level


def sort_key(line: bytes) -> list[tuple[int, bytes]]:
    ranks = {b"#": 0, b"+": 1}
    return [(ranks.get(t, 2), t if t not in ranks else b"") for t in map(token, line.split(b"/"))]


class Patterns:
    """A set as sorted lines and a tree, by the rules of the header alone."""

    def __init__(self, lines: list[bytes], levels: int) -> None:
        self.lines = sorted(lines, key=sort_key)
        self.levels = levels
        self.root = Tree()
        for number, line in enumerate(self.lines):
            node = self.root
            tokens = [token(level) for level in line.split(b"/")]
            for t in tokens:
                if t != b"#":
                    node = node.children.setdefault(t, Tree())
            if tokens[-1] == b"#":
                node.tail = number
            else:
                node.end = number

    def pattern(self, topic: bytes) -> int:
        node, tail = self.root, self.root.tail
        levels = topic.split(b"/")
        for depth, level in enumerate(levels):
            plus = None if depth == 0 and level.startswith(b"$") else node.children.get(b"+")
            child = node.children.get(level, plus)
            if child is None:
                break
            node = child
            tail = node.tail if node.tail is not None else tail
        else:
            if node.end is not None:
                return node.end
        assert tail is not None
        return tail

    def slots(self, pattern: int) -> list[int]:
        """Indexes of the levels that vary; `levels` stands for the token beyond."""
        tokens = [token(level) for level in self.lines[pattern].split(b"/")]
        slots = [i for i, t in enumerate(tokens) if t == b"+"]
        return slots + list(range(len(tokens) - 1, self.levels + 1)) if tokens[-1] == b"#" else slots

    def bits(self, pattern: int) -> list[int]:
        tokens = self.lines[pattern].split(b"/")
        slots = self.slots(pattern)
        return [int(tokens[min(slot, len(tokens) - 1)][1:] or b"20") for slot in slots]

    def levels_of(self, topic: bytes) -> tuple[bytes, ...]:
        levels = topic.split(b"/")
        whole = [*levels[: self.levels], b"/".join(levels[self.levels :])] if len(levels) > self.levels else levels
        values = [whole[slot] if slot < len(whole) else MISSING for slot in self.slots(self.pattern(topic))]
        return tuple(values[: values.index(MISSING) + 1] if MISSING in values else values)

    @property
    def text(self) -> bytes:
        head = b"holdmq-patterns 1 levels=%d\n" % self.levels
        return head + b"".join(line.replace(b"+20", b"+").replace(b"#20", b"#") + b"\n" for line in self.lines)


# Few levels, so that topics and patterns meet.
LEVELS = [b"", b"a", b"b", b"$a", "é".encode()]

topics = st.lists(st.sampled_from(LEVELS), min_size=1, max_size=6).map(b"/".join).filter(bool)
filters = (
    st.tuples(st.lists(st.sampled_from([*LEVELS, b"+", b"+", b"+"]), max_size=6), st.booleans())
    .map(lambda drawn: b"/".join(drawn[0] + [b"#"] * drawn[1]))
    .filter(bool)
)


@st.composite
def pattern_sets(draw: st.DrawFn, widths: tuple[int, ...] = (1, 2, 20, 24)) -> Patterns:
    """Any valid set over these levels."""
    bits = st.sampled_from(widths)
    levels = draw(st.integers(1, 4))
    wild = bits.map(lambda b: b"+%d" % b)
    step = st.one_of(st.sampled_from(LEVELS), wild)
    tail = bits.map(lambda b: [b"#%d" % b])
    lines = draw(
        st.lists(
            st.tuples(st.lists(step, max_size=levels), st.one_of(st.just([]), tail))
            .map(lambda drawn: b"/".join(drawn[0] + drawn[1]))
            .filter(bool),
            max_size=12,
            unique_by=lambda line: tuple(sort_key(line)),
        )
    )
    root = [] if any(token(line) == b"#" for line in lines) else [b"#%d" % draw(bits)]
    return Patterns(lines + root, levels)


# ---- posting lists ----

BLOCK = 256


def leb128(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def postings(entries: list[tuple[int, int]], fragment_bits: int) -> bytes:
    """The list of these (number, fragment)."""
    out, last = b"", 0
    for number, fragment in entries:
        used = len(out) % BLOCK
        entry = leb128((number - (last if used else 0)) << fragment_bits | fragment)
        if used + len(entry) > BLOCK:
            out += bytes(BLOCK - used)
            entry = leb128(number << fragment_bits | fragment)
        out += entry
        last = number
    return out


def growing(gaps: list[int]) -> list[int]:
    """Numbers from the gaps between them."""
    return list(itertools.accumulate(gaps))


# ---- a store of one shard and epoch: what the module does with the core, in memory ----


class Store:
    """Messages by number, and the lists of their levels.

    Attributes:
        topics: of the messages, the first has number 1.
        visited: candidates that `read` looked at.
        looked_at: entries of lists that it looked at.
    """

    def __init__(self, patterns: PatternSet) -> None:
        self.patterns = patterns
        self.topics: list[bytes] = []
        self.visited = self.looked_at = 0
        self._numbers: list[list[int]] = [[] for _ in range(len(patterns))]
        self._lists: dict[tuple[int, int, int, int], PostingList] = {}

    def store(self, topic: bytes) -> None:
        self.topics.append(topic)
        place = self.patterns.find(topic)
        numbers = self._numbers[place.pattern]
        page = index_page(len(numbers))
        numbers.append(len(self.topics))
        for slot, level in enumerate(place.levels):
            bits = self.patterns[place.pattern].bits[slot]
            where = index_place(level_hash(level, bits), bits, page)
            key = (place.pattern, slot, page, where.group)
            if key not in self._lists:
                self._lists[key] = PostingList(fragment_bits=where.fragment_bits)
            self._lists[key].append(len(self.topics), where.fragment)

    @property
    def index_bytes(self) -> int:
        return sum(len(made.data) for made in self._lists.values())

    def scan(self, plan: PlanPattern) -> Scan:
        pages = index_page(len(self.topics)) + 1
        lists = []
        for slot in plan.slots:
            for page in range(pages):
                group = index_place(slot.hash, slot.bits, page).group
                found = self._lists.get((plan.pattern, slot.slot, page, group))
                lists.append((slot, page, bytes(found.data) if found else b""))
        return Scan(lists)

    def candidates(self, plan: PlanPattern, start: int, budget: int) -> Iterator[int]:
        if not plan.slots:
            yield from (number for number in self._numbers[plan.pattern] if number >= start)
            return
        scan, position = self.scan(plan), start
        while (step := scan.next(position, budget)).result is not ScanResult.END:
            self.looked_at += step.visited
            assert step.number >= position + (step.result is ScanResult.LIMIT)
            assert step.visited <= budget
            position = step.number
            if step.result is ScanResult.FOUND:
                yield position
                position += 1
        self.looked_at += step.visited

    def read(self, topic_filter: bytes, start: int = 1, budget: int = 2**62) -> list[int]:
        """The numbers of all messages from `start` on that match, in order."""
        found = []
        for plan in filter_plan(self.patterns, topic_filter):
            for number in self.candidates(plan, start, budget):
                self.visited += 1
                if matches(topic_filter, self.topics[number - 1]):
                    found.append(number)
        return sorted(found)
