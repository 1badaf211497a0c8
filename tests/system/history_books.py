"""What is there in the end, what each reader of history was given, and what must be true of both.

A record is "<topic> <number> <lost primaries before it>": the last makes what is sent again another message than what
was lost, even if it gets the same sequence number and, where the clock had stepped back, the same time.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from tests.module.history_support import Entry
from tests.module.sessions_support import matches

There = Mapping[tuple[int, int], Entry]  # by shard and sequence number: all that is there, and what was trimmed


@dataclass
class Reader:
    """Who goes through everything that a filter matches.

    Attributes:
        filter: the topic filter.
        cursor: where it is, None if it has not begun.
        missed: how many numbers are said to be missed; those that were gone when it began count, too.
        seen: all that it was given, in the order in which it came, by records as above.
    """

    filter: str
    cursor: bytes | None = None
    missed: int = 0
    seen: list[Entry] = field(default_factory=list)


def topic_of(entry: Entry) -> str:
    """The topic."""
    return entry.record.split(b" ")[0].decode()


def number_of(entry: Entry) -> int:
    """The number in its topic."""
    return int(entry.record.split(b" ")[1])


def check_topics(there: There, written: Mapping[str, int]) -> None:
    """Of each topic all that was written is there, once, in order; numbers have no holes, and ids rise with them.

    Raises:
        AssertionError: it is not so.
    """
    found: dict[str, list[int]] = {}
    before: dict[int, Entry] = {}
    for (shard, sequence), entry in sorted(there.items()):
        found.setdefault(topic_of(entry), []).append(number_of(entry))
        if shard in before:
            assert sequence == before[shard].sequence + 1, "numbers have a hole"
            assert entry.time_us > before[shard].time_us, "ids do not rise"
        before[shard] = entry
    for topic, count in written.items():
        assert found.get(topic, []) == list(range(count)), f"messages of {topic}"


def check_reader(reader: Reader, there: There, trimmed: list[int]) -> None:
    """It was given what its filter matches, once, in order, but for what was trimmed, and told how many these were.

    What it was given of a primary that was lost afterwards does not count.

    Args:
        reader: who.
        there: everything.
        trimmed: of each shard, up to which number.

    Raises:
        AssertionError: it is not so.
    """
    seen: dict[int, list[int]] = {}
    for entry in reader.seen:
        if there.get((entry.shard, entry.sequence)) == entry:
            seen.setdefault(entry.shard, []).append(entry.sequence)
    absent = 0
    for shard, last_trimmed in enumerate(trimmed):
        wanted = {n for (of, n), entry in there.items() if of == shard and matches(reader.filter, topic_of(entry))}
        given = seen.get(shard, [])
        wrong = [pair for pair in pairwise(given) if pair[0] >= pair[1]]
        assert not wrong, f"{reader.filter}: twice, or out of order in shard {shard}: {wrong[:5]}"
        assert wanted.issuperset(given), f"{reader.filter}: was given what it does not match"
        lacking = wanted.difference(given)
        never = [n for n in sorted(lacking) if n > last_trimmed]
        assert not never, f"{reader.filter}: of shard {shard} {never[:5]} (of {len(never)}) never came"
        absent += len(lacking)
    said = f"{reader.filter}: {absent} did not come, {reader.missed} are said to be missed"
    assert absent == reader.missed if reader.filter == "#" else absent <= reader.missed, said
