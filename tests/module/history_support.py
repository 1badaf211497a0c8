"""What the tests of history share: typed replies, and a model that keeps everything and looks at everything.

store(client, "s", "a/#", shards=2)
page = replay(client, "a/+", count=10)
assert replay_all(client, "a/+") == model.replay("a/+")
"""

import struct
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import redis

from holdmq import core

Text = str | bytes

# Messages that wait in logs alone until posting lists get them (HISTORY_TAIL_MIN of redis_module/history/tail.h).
TAIL = 1024


class Place(NamedTuple):
    """Reply of HISTORY.APPEND."""

    shard: int
    sequence: int
    time_us: int
    new: int


class Entry(NamedTuple):
    """One message of a replay."""

    shard: int
    sequence: int
    time_us: int
    record: bytes

    @property
    def message(self) -> core.Record:
        """The message."""
        return core.Record.decode(self.record)

    @property
    def pair(self) -> tuple[bytes, bytes]:
        """Its topic and payload."""
        return self.message.topic, self.message.payload


@dataclass(frozen=True)
class Page:
    """Reply of HISTORY.REPLAY."""

    entries: list[Entry]
    cursor: bytes
    end: bool
    visited: int
    missed: int

    @property
    def pairs(self) -> list[tuple[bytes, bytes]]:
        """Topic and payload of each message."""
        return [entry.pair for entry in self.entries]


def words(**options: object) -> list[Any]:
    """Options by their names, those that are None left out."""
    return [word for name, value in options.items() if value is not None for word in (name.upper(), value)]


def store(client: redis.Redis, name: Text, *filters: Text, **options: int | str) -> None:
    """HISTORY.STORE."""
    flat = [word for one in filters for word in ("FILTER", one)]
    assert client.execute_command("HISTORY.STORE", name, *flat, *words(**options)) == b"OK"


def append(client: redis.Redis, name: Text, topic: Text, payload: Text, *options: Any) -> Place:
    """HISTORY.APPEND."""
    return Place(*client.execute_command("HISTORY.APPEND", name, topic, payload, *options))


def fill_tail(client: redis.Redis, name: Text, topic: Text, count: int = TAIL) -> None:
    """So many messages: those of one more than TAIL since the last time have the lists written."""
    with client.pipeline(transaction=False) as pipe:
        for number in range(count):
            pipe.execute_command("HISTORY.APPEND", name, topic, number)
        pipe.execute()


def replay(client: redis.Redis, topic_filter: Text, **options: Any) -> Page:
    """HISTORY.REPLAY."""
    entries, cursor, end, visited, missed = client.execute_command("HISTORY.REPLAY", topic_filter, *words(**options))
    return Page([Entry(*entry) for entry in entries], cursor, bool(end), visited, missed)


def replay_all(client: redis.Redis, topic_filter: Text, *, most_pages: int = 10_000, **options: Any) -> list[Entry]:
    """Page by page to the end."""
    start = {name: options.pop(name) for name in ("FROM", "SEQ", "CURSOR") if name in options}
    page = replay(client, topic_filter, **start, **options)
    entries = page.entries
    for _ in range(most_pages):
        if page.end:
            return entries
        page = replay(client, topic_filter, cursor=page.cursor, **options)
        entries = entries + page.entries
    raise AssertionError(f"no end after {most_pages} pages")


COLUMNS = (
    "sequence",
    "time",
    "topic",
    "payload",
    "qos",
    "retain",
    "publisher",
    "properties",
    "published",
    "expires",
    "pattern",
    "generation",
)
WIDTHS = {"sequence": "q", "time": "q", "qos": "b", "retain": "b", "published": "q", "expires": "q"}
WIDTHS |= {"pattern": "i", "generation": "i"}


@dataclass(frozen=True)
class Rows:
    """Reply of HISTORY.RANGE; what was packed is unpacked."""

    next: int
    visited: int
    missed: int
    rows: int
    columns: dict[str, list[Any]]

    @property
    def pairs(self) -> list[tuple[bytes, bytes]]:
        """Topic and payload of each message."""
        return list(zip(self.columns["topic"], self.columns["payload"], strict=True))


def unpacked(name: str, column: Any, rows: int) -> list[Any]:
    """The values of a column of Arrow's buffers."""
    if name in WIDTHS:
        return list(struct.unpack(f"<{rows}{WIDTHS[name]}", column))
    offsets = struct.unpack(f"<{rows + 1}i", column[0])
    assert offsets[0] == 0
    assert offsets[-1] == len(column[1])
    return [column[1][a:b] for a, b in pairwise(offsets)]


def read_range(
    client: redis.Redis, name: Text, shard: int, first: int, last: int, *switches: str, **options: Any
) -> Rows:
    """HISTORY.RANGE."""
    names = options.pop("columns", None)
    asked = () if names is None else ("COLUMNS", len(names), *names)
    reply = client.execute_command("HISTORY.RANGE", name, shard, first, last, *asked, *words(**options), *switches)
    after, visited, missed, rows, columns = reply
    named = dict(zip(names or COLUMNS, columns, strict=True))
    if "PACKED" in switches:
        named = {name: unpacked(name, column, rows) for name, column in named.items()}
    assert all(len(column) == rows for column in named.values())
    return Rows(after, visited, missed, rows, named)


def read_ranges(
    client: redis.Redis, name: Text, shard: int, first: int, last: int, *switches: str, **options: Any
) -> Rows:
    """HISTORY.RANGE, page by page to the end."""
    pages = []
    at = first
    while at <= last:
        page = read_range(client, name, shard, at, last, *switches, **options)
        assert page.next > at, "no way on"
        at = page.next
        pages.append(page)
    columns = {key: [value for page in pages for value in page.columns[key]] for key in pages[0].columns}
    return Rows(at, sum(p.visited for p in pages), sum(p.missed for p in pages), sum(p.rows for p in pages), columns)


def facts(client: redis.Redis, name: Text, **options: Any) -> dict[str, Any]:
    """HISTORY.INFO, with names as text."""
    return named_map(client.execute_command("HISTORY.INFO", name, *words(**options)))


def check_all(client: redis.Redis) -> list[str]:
    """HISTORY.CHECK of each epoch of each shard of each store."""
    said = []
    for one in client.execute_command("HISTORY.STORES"):
        name = named_map(one)["store"]
        for shard in facts(client, name)["shard"]:
            for epoch in range(shard["oldest_epoch"], shard["epoch"] + 1) if shard["epoch"] else ():
                said += client.execute_command("HISTORY.CHECK", name, shard["shard"], "EPOCH", epoch)
    return [sentence.decode() for sentence in said]


def named_map(flat: Any) -> dict[str, Any]:
    """A map of either protocol."""
    pairs = flat.items() if isinstance(flat, dict) else zip(flat[::2], flat[1::2], strict=True)
    named = {key.decode(): value for key, value in pairs}
    if "shard" in named and isinstance(named["shard"], list):
        named["shard"] = [named_map(one) for one in named["shard"]]
    if "holds" in named:
        named["holds"] = {key.encode(): value for key, value in named_map(named["holds"]).items()}
    return named


def shard_facts(client: redis.Redis, name: Text = "s", shard: int = 0) -> dict[str, Any]:
    """What HISTORY.INFO says of one shard."""
    (only,) = facts(client, name, shard=shard)["shard"]
    assert isinstance(only, dict)
    return only


def trim(client: redis.Redis, name: Text, shard: int, sequence: int) -> int:
    """HISTORY.TRIM: the first number that is left."""
    first = client.execute_command("HISTORY.TRIM", name, shard, sequence)
    assert isinstance(first, int)
    return first


def hold(client: redis.Redis, name: Text, reader: Text, *watermarks: int) -> dict[int, int]:
    """HISTORY.HOLD: the watermark of each shard."""
    flat = client.execute_command("HISTORY.HOLD", name, reader, *watermarks)
    return flat if isinstance(flat, dict) else dict(zip(flat[::2], flat[1::2], strict=True))


def in_order(entries: list[Entry]) -> dict[int, list[tuple[bytes, bytes]]]:
    """What each shard gave, in its order; fails unless its numbers rise."""
    shards: dict[int, list[tuple[bytes, bytes]]] = {}
    last: dict[int, tuple[int, int]] = {}
    for entry in entries:
        place = (entry.sequence, entry.time_us)
        before = last.get(entry.shard, (0, 0))
        assert before[0] < place[0]
        assert before[1] < place[1]
        last[entry.shard] = place
        shards.setdefault(entry.shard, []).append(entry.pair)
    return shards
