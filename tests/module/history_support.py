"""What the tests of history share: typed replies, and a model that keeps everything and looks at everything.

store(client, "s", "a/#", shards=2)
page = replay(client, "a/+", count=10)
assert replay_all(client, "a/+") == model.replay("a/+")
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import redis

from holdmq import core

Text = str | bytes


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


def store(client: redis.Redis, name: Text, *filters: Text, **options: int) -> None:
    """HISTORY.STORE."""
    flat = [word for one in filters for word in ("FILTER", one)]
    assert client.execute_command("HISTORY.STORE", name, *flat, *words(**options)) == b"OK"


def append(client: redis.Redis, name: Text, topic: Text, payload: Text, *options: Any) -> Place:
    """HISTORY.APPEND."""
    return Place(*client.execute_command("HISTORY.APPEND", name, topic, payload, *options))


def replay(client: redis.Redis, topic_filter: Text, **options: Any) -> Page:
    """HISTORY.REPLAY."""
    entries, cursor, end, visited, missed = client.execute_command("HISTORY.REPLAY", topic_filter, *words(**options))
    return Page([Entry(*entry) for entry in entries], cursor, bool(end), visited, missed)


def replay_all(client: redis.Redis, topic_filter: Text, *, most_pages: int = 10_000, **options: Any) -> list[Entry]:
    """Page by page to the end."""
    start = {name: options.pop(name) for name in ("FROM", "SEQ") if name in options}
    page = replay(client, topic_filter, **start, **options)
    entries = page.entries
    for _ in range(most_pages):
        if page.end:
            return entries
        page = replay(client, topic_filter, cursor=page.cursor, **options)
        entries = entries + page.entries
    raise AssertionError(f"no end after {most_pages} pages")


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
