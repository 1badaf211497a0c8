"""Turns rows into commands: which columns a target needs, and the bytes that are sent.

    topics      TOPIC.MPUBLISH, one for every `MESSAGES_OF_PUBLISH` rows
    channels    CHANNEL.PUBLISH, one for each row (in a cluster CHANNEL.SPUBLISH)
    sessions    SESSION.ADD, one for each session and chunk; a row with a topic is stored as the record that the MQTT
                bridge reads, other rows as their bare payloads

A chunk is a group of rows that become commands together: `chunkRows` rows, or fewer if they have more than
`CHUNK_BYTES` of payload. More rows of a session in one command cost the server less for each. But the server is idle
until the first chunk is full. So the first chunk has `FIRST_ROWS`, and each next one at most twice as many as the one
before, about as many as Spark produces while the server stores that one. The rows decide where chunks end, not Spark's
batches: a retry may get the rows in other batches, and makes the same commands. C writes topics and sessions, a chunk
in one call (holdmq.core.batch).
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from hiredis import pack_command

from holdmq import core
from holdmq.core.batch import Groups, InvalidRowError, MessageBatch
from holdmq_pipeline.columns import Columns, sizes
from holdmq_pipeline.errors import OptionError, PipelineError
from holdmq_pipeline.following import Following
from holdmq_pipeline.options import Options

__all__ = ["CHUNK_ROWS_MAX", "Chunk", "Maker", "check_columns"]

CHUNK_BYTES = 24 << 20
FIRST_ROWS = 75_000
"""Of a task's first chunk, at most."""
UNGROUPED_ROWS = 10_000
"""Of a chunk of topics or channels: more would only wait longer for the server."""
MESSAGES_OF_PUBLISH = 250
MESSAGES_AT_ALL_NODES = 1000
"""The same in a cluster, where the next command waits for all nodes."""
MESSAGES_OF_ADD = 1000
"""What a server takes of a producer in one SESSION.ADD."""
REQUIRED = {"topics": ("topic", "payload"), "channels": ("channel", "payload"), "sessions": ("client_id", "payload")}
OPTIONAL = {
    "topics": ("qos", "retain", "publisher", "properties", "ttl", "expires"),
    "channels": (),
    "sessions": ("topic", "qos", "retain", "publisher", "properties", "ttl", "expires"),
}
PASSED_OVER = ("shard", "offset", "timestamp", "published", "pattern", "generation")
"""Columns of history that no target needs (shard and offset number the messages for idempotentBy=offset)."""
CHUNK_ROWS_MAX = 300_000
ROW_BITS = 36
"""A SESSION.ADD of a task has the number epoch << ROW_BITS | place of its first row in the task, from 1 on."""


def check_columns(target: str, names: Sequence[str], *, by_offset: bool) -> None:
    """Checks that the DataFrame has the columns of the target, and no column that it would ignore.

    Raises:
        OptionError: a column is missing, or the target does not know it.
    """
    needed = REQUIRED[target] + (("shard", "offset") if by_offset else ())
    missing = [name for name in needed if name not in names]
    if missing:
        raise OptionError(f"the DataFrame lacks the columns {', '.join(missing)}; {target} needs {', '.join(needed)}")
    known = REQUIRED[target] + OPTIONAL[target] + PASSED_OVER
    unknown = [name for name in names if name not in known]
    if unknown:
        raise OptionError(
            f"the columns {', '.join(unknown)} mean nothing to {target}; expected some of {', '.join(known)}"
        )


@dataclass
class Chunk:
    """Commands that are sent together.

    Attributes:
        data: all of them, packed.
        ends: where each ends.
        rows: how many messages each carries.
        key: of a command, by which a cluster routes it.
        number: of a command to topics of a cluster: its producer, and the number that it gives its last message.
        expired: rows that were left out.
    """

    data: Any = b""
    ends: Sequence[int] = ()
    rows: Sequence[int] = ()
    key: Callable[[int], bytes] = lambda _at: b""
    number: Callable[[int], tuple[bytes, bytes] | None] = lambda _at: None
    expired: int = 0

    def __len__(self) -> int:
        return len(self.ends)

    def packed(self, at: int) -> memoryview:
        """One of them, in its place."""
        return memoryview(self.data)[self.ends[at - 1] if at else 0 : self.ends[at]]

    def command(self, at: int) -> bytes:
        """One of them."""
        return bytes(self.packed(at))


@dataclass
class Words:
    """Commands that are made one by one."""

    commands: list[bytes] = field(default_factory=list)
    keys: list[bytes] = field(default_factory=list)

    def add(self, words: Sequence[Any], key: bytes) -> None:
        """One more."""
        self.commands.append(pack_command(tuple(words)))
        self.keys.append(key)

    def chunk(self) -> Chunk:
        """All of them."""
        ends = np.cumsum([len(command) for command in self.commands]).tolist()
        rows = [1] * len(ends)
        return Chunk(b"".join(self.commands), ends, rows, self.keys.__getitem__)


class Maker:
    """Makes the commands of a task.

    Args:
        options: of the write.
        name: the producer's, as far as it is the same for all tasks.
        partition: the task's.
        epoch: the producer's.
        sharded: whether it is for a cluster: channels are those of its shards, topics are published by every node.
    """

    def __init__(self, options: Options, name: str, partition: int, epoch: int, *, sharded: bool) -> None:
        self._target = options.text("table")
        self._idempotent = options.flag("idempotent")
        self._by_offset = options.text("idempotentBy") == "offset"
        rate = options.number("maxRowsPerSecond") or 0
        size = options.required("chunkRows", 1, CHUNK_ROWS_MAX)
        size = size if self._target == "sessions" else min(size, UNGROUPED_ROWS)
        self._most = min(size, rate) if rate else size
        self._size = min(self._most, FIRST_ROWS)
        self._ttl = options.seconds("ttl", 1, 2**31 - 1)
        self._limit = options.number("limit", 1, 65_535)
        self._prefix = options.text("keyPrefix").encode()
        self._name = name
        self._producer = f"{name}:{partition}".encode()
        self._epoch = epoch
        self._row = 0  # those before the ones that wait
        self._parts: list[pa.RecordBatch] = []
        self._waiting = 0
        self._bytes = 0
        self._last: dict[int, int] = {}
        self._after: dict[bytes, int] = {}
        self._make = {"topics": self._topics, "channels": self._channels, "sessions": self._sessions}
        self._following = Following()
        self._published: dict[tuple[bytes, bytes], int] = {}  # by producer and channel: the last number, of one chunk
        self._sharded = sharded

    def add(self, batch: pa.RecordBatch) -> Iterator[Chunk]:
        """Takes a batch; the chunks that are full."""
        ends = np.cumsum(sizes(batch, "payload"))
        begin = 0
        while begin < batch.num_rows:
            before = int(ends[begin - 1]) if begin else 0
            full = int(np.searchsorted(ends, before + CHUNK_BYTES - self._bytes)) + 1
            end = min(begin + self._size - self._waiting, full, batch.num_rows)
            self._parts.append(batch.slice(begin, end - begin))
            self._waiting += end - begin
            self._bytes += int(ends[end - 1]) - before
            begin = end
            if self._waiting == self._size or self._bytes >= CHUNK_BYTES:
                yield self.rest()

    def rest(self) -> Chunk:
        """The rows that are in no chunk yet."""
        parts, count = self._parts, self._waiting
        self._parts, self._waiting, self._bytes = [], 0, 0
        self._size = min(2 * self._size, self._most)
        if not count:
            return Chunk()
        columns = Columns(parts)
        try:
            chunk = self._make[self._target](columns)
        except InvalidRowError as error:
            raise _explained(columns, error.row, self._target) from error
        self._row += count
        return chunk

    # ---- who sends

    def _shards(self, columns: Columns) -> list[tuple[bytes, int, int]]:
        """Producer of the rows from .. to; by offset one for each shard.

        Raises:
            PipelineError: the offsets of a shard do not grow.
        """
        if not self._idempotent:
            return [(b"", 0, columns.rows)]
        if not self._by_offset:
            return [(self._producer, 0, columns.rows)]
        shards, offsets = columns.numbers("shard", -1), columns.numbers("offset", -1)
        bounds = [0, *(np.flatnonzero(np.diff(shards)) + 1).tolist(), columns.rows]
        runs = []
        for begin, end in pairwise(bounds):
            shard = int(shards[begin])
            steps = np.diff(offsets[begin:end], prepend=self._last.get(shard, 0))
            if (steps <= 0).any():
                at = int(np.argmax(steps <= 0))
                before = int(offsets[begin + at] - steps[at])
                offset = int(offsets[begin + at])
                raise PipelineError(
                    f"shard {shard}: offset {offset} comes after {before}; expected each shard in one "
                    'partition and in order: .repartition(n, "shard").sortWithinPartitions("shard", "offset")'
                )
            self._last[shard] = int(offsets[end - 1])
            runs.append((f"{self._name}:s{shard}".encode(), begin, end))
        return runs

    # ---- topics

    def _topics(self, columns: Columns) -> Chunk:
        columns.required("topic")
        numbers = self._numbers(columns, qos=0)
        lives = columns.ttl_s(self._ttl)
        if lives is not None:
            numbers["life_s"] = lives
        runs = self._shards(columns)
        batch = self._batch(columns, ("topic", "payload", "publisher", "properties"), numbers, self._row + 1)
        parts, producers = [], []
        most = MESSAGES_AT_ALL_NODES if self._sharded else MESSAGES_OF_PUBLISH
        for producer, begin, end in runs:
            for at in range(begin, end, most):
                parts.append((at, min(at + most, end)))
                producers.append(producer)
        packed = batch.topic_publishes(parts, producers, 1 if self._by_offset else self._epoch, self._after)
        chunk = Chunk(packed.data, packed.ends, packed.rows, expired=_left_out(lives))
        if self._sharded and self._idempotent:
            row = [parts[group][1] - 1 for group in packed.groups]
            last = numbers["number"][row] if self._by_offset else [self._row + 1 + one for one in row]
            ends = [(producers[group], b"%d" % number) for group, number in zip(packed.groups, last, strict=True)]
            chunk.number = ends.__getitem__
        return chunk

    # ---- channels

    def _channels(self, columns: Columns) -> Chunk:
        rows = columns.lists()
        words = Words()
        name = b"CHANNEL.SPUBLISH" if self._sharded else b"CHANNEL.PUBLISH"
        epoch = b"1" if self._by_offset else b"%d" % self._epoch
        numbers = rows["offset"] if self._by_offset else range(self._row + 1, self._row + columns.rows + 1)
        columns.required("channel")
        before, self._published = self._published, {}
        for producer, begin, end in self._shards(columns):
            for at in range(begin, end):
                key, number = _bytes(rows["channel"][at]), numbers[at]
                numbering: tuple[Any, ...] = ()
                if producer:
                    after = self._published.get((producer, key), before.get((producer, key)))
                    follows = () if after is None else (b"AFTER", after)
                    numbering = (b"PRODUCER", producer, epoch, number, *follows)
                    self._published[producer, key] = number
                words.add((name, key, _bytes(rows["payload"][at]), *numbering), key)
        return words.chunk()

    # ---- sessions

    def _sessions(self, columns: Columns) -> Chunk:
        """By offset one command for each row, else one for each session: its rows of this chunk, in order."""
        columns.required("client_id")
        numbers = self._numbers(columns, qos=1)
        lives = columns.ttl_s(self._ttl)
        if lives is not None:
            numbers["life_s"] = lives
        for name, column in (("time_ms", "published"), ("expires_ms", "expires")):
            if column in columns:
                numbers[name] = np.ascontiguousarray(columns.times_us(column, 0) // 1000)
        runs = self._shards(columns)
        first = self._epoch << ROW_BITS | self._row + 1
        texts = ("client_id", "topic", "payload", "publisher", "properties")
        batch = self._batch(columns, texts, numbers, first)
        clients = columns.array("client_id")
        if self._by_offset:
            groups = batch.each()
            shards = pa.array(columns.numbers("shard", -1)).cast(pa.string()).cast(pa.binary())
            names = pc.binary_join_element_wise(shards, clients, b"/").dictionary_encode()
            of_rows = numbers["number"]
        else:
            names = clients.dictionary_encode()
            groups = batch.group(names.indices.buffers()[1], len(names.dictionary), MESSAGES_OF_ADD)
            runs = [(producer, 0, groups.count) for producer, _begin, _end in runs]
            of_rows = np.arange(first, first + columns.rows)
        after = self._follows(names, groups, of_rows, lives) if self._idempotent else None
        packed = batch.session_adds(groups, runs, prefix=self._prefix, limit=self._limit or 0, after=after)

        def key(at: int) -> bytes:
            return self._prefix + core.session_key(clients[groups.first_row(packed.groups[at])].as_py())

        return Chunk(packed.data, packed.ends, packed.rows, key, expired=_left_out(lives))

    def _follows(self, names: pa.DictionaryArray, groups: Groups, numbers: Any, lives: Any) -> Any:
        """The number that each group follows: of the same client, and producer."""
        places = np.frombuffer(groups.places, np.uint32).reshape(-1, 2)
        order = np.frombuffer(groups.rows, np.uint32)
        found = np.zeros(groups.count, np.int64)
        sent = np.arange(groups.count)
        if lives is not None:  # groups of which nothing is left are not sent
            sent = np.flatnonzero(np.add.reduceat(lives[order[: len(lives)]] != 0, places[:, 0]) > 0)
        rows = order[places[sent, 0]]
        found[sent] = self._following.after(names, rows, numbers[rows])
        return found

    # ---- columns

    def _numbers(self, columns: Columns, qos: int) -> dict[str, Any]:
        numbers: dict[str, Any] = {}
        for name, null in (("qos", qos), ("retain", 0)):
            if name in columns:
                numbers[name] = columns.numbers(name, null)
        if self._by_offset:
            numbers["number"] = columns.numbers("offset", -1)
        return numbers

    def _batch(
        self, columns: Columns, texts: Sequence[str], numbers: dict[str, Any], first_number: int
    ) -> MessageBatch:
        named = {name.removesuffix("_id"): columns.texts(name) for name in texts if name in columns}
        now_ms = time.time_ns() // 1_000_000
        return MessageBatch(columns.rows, named, numbers, first_number=first_number, now_ms=now_ms)


def _left_out(lives: Any) -> int:
    return 0 if lives is None else int(np.count_nonzero(lives == 0))


def _explained(columns: Columns, at: int, target: str) -> PipelineError:
    """The reason why a row makes no command."""
    row = columns.row(at)
    shown = {
        name: row[name] for name in ("client_id", "topic", "qos", "publisher", "published", "expires") if name in row
    }
    return PipelineError(
        f"a row cannot be written to {target}: {shown!r:.300}; expected a QoS of 0 to 2, texts of at most 65535 bytes "
        "and times between 1970 and 10889"
    )


def _bytes(value: str | bytes | None) -> bytes:
    if isinstance(value, str):
        return value.encode()
    return value or b""
