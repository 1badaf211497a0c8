"""Rows as commands: what a target needs of the columns, and the words that are sent for each message.

    topics      TOPIC.PUBLISH, one for each row
    channels    CHANNEL.PUBLISH, one for each row (in a cluster CHANNEL.SPUBLISH)
    sessions    SESSION.ADD, one for each session and chunk; a row with a topic is stored as the record that the MQTT
                bridge reads, another as its bare payload

Everything is done column by column and row by row in plain Python, without a client object in between: this is the
inner loop of every write.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from hiredis import pack_command

from holdmq import core
from holdmq_pipeline.errors import OptionError, PipelineError
from holdmq_pipeline.options import Options

__all__ = ["Chunk", "Maker", "check_columns"]

REQUIRED = {"topics": ("topic", "payload"), "channels": ("channel", "payload"), "sessions": ("client_id", "payload")}
OPTIONAL = {
    "topics": ("qos", "retain", "publisher", "properties", "ttl", "expires"),
    "channels": (),
    "sessions": ("topic", "qos", "retain", "publisher", "properties", "ttl", "expires"),
}
PASSED_OVER = ("shard", "offset", "timestamp", "published", "pattern", "generation")
"""Columns of history that no target needs (shard and offset number the messages for idempotentBy=offset)."""
CHUNK_BITS = 31
Rows = dict[str, list[Any]]
Number = tuple[bytes, bytes, bytes]
"""Producer, epoch, chunk number."""


def check_columns(target: str, names: Sequence[str], *, by_offset: bool) -> None:
    """Has the DataFrame what the target needs, and nothing that it would ignore?

    Raises:
        OptionError: a column is missing, or is none that the target knows.
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
        commands: each packed.
        keys: by which a cluster routes them; empty texts for commands without a key.
        producers: as of which they are sent; empty texts: as of none.
        numbers: the producer's numbers for them.
        rows: how many messages each command carries.
        expired: rows that were left out.
    """

    commands: list[bytes] = field(default_factory=list)
    keys: list[bytes] = field(default_factory=list)
    producers: list[bytes] = field(default_factory=list)
    numbers: list[bytes] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    expired: int = 0

    def add(self, words: Sequence[Any], key: bytes, number: Number | None, rows: int = 1) -> None:
        """One more command."""
        self.commands.append(pack_command(tuple(words)))
        self.keys.append(key)
        self.producers.append(number[0] if number else b"")
        self.numbers.append(number[2] if number else b"")
        self.rows.append(rows)

    def member(self, at: int) -> bytes:
        """What tells this command among those of its producer."""
        return self.numbers[at] + b" " + self.keys[at]


class Maker:
    """Makes the commands of a task.

    Args:
        options: of the write.
        name: the producer's, as far as it is the same for all tasks.
        partition: the task's.
        epoch: the producer's.
        sharded: whether channels are those of a cluster's shards.
        refused: what the server refused of a producer in an attempt before (`Chunk.member`).
    """

    def __init__(
        self,
        options: Options,
        name: str,
        partition: int,
        epoch: int,
        *,
        sharded: bool,
        refused: Callable[[bytes], frozenset[bytes]],
    ) -> None:
        self._target = options.text("table")
        self._idempotent = options.flag("idempotent")
        self._by_offset = options.text("idempotentBy") == "offset"
        self._size = options.required("chunkRows", 1, 10_000)
        self._ttl = options.number("ttl", 1, 2**31 - 1)
        self._limit = options.number("limit", 1, 65_535)
        self._prefix = options.text("keyPrefix")
        self._name = name
        self._producer = f"{name}:{partition}"
        self._epoch = epoch
        self._row = 0  # those before the ones that wait
        self._rows: Rows = {}
        self._waiting = 0
        self._last: dict[int, int] = {}
        self._make = {"topics": self._topics, "channels": self._channels, "sessions": self._sessions}
        self._refused: dict[bytes, frozenset[bytes]] = {}
        self._ask_refused = refused
        self._sharded = sharded

    def add(self, batch: pa.RecordBatch) -> Iterator[Chunk]:
        """Takes a batch; the chunks that are full.

        Chunks end where the number of the row says so, not where the batch does: a retry, which may get the rows in
        other batches, makes the same commands.
        """
        columns = {name: batch.column(at).to_pylist() for at, name in enumerate(batch.schema.names)}
        begin = 0
        while begin < batch.num_rows:
            end = min(begin + self._size - self._waiting, batch.num_rows)
            for name, values in columns.items():
                self._rows.setdefault(name, []).extend(values[begin:end])
            self._waiting += end - begin
            begin = end
            if self._waiting == self._size:
                yield self.rest()

    def rest(self) -> Chunk:
        """What has not become a chunk yet."""
        rows, count = self._rows, self._waiting
        self._rows, self._waiting = {}, 0
        chunk = self._make[self._target](rows, count) if count else Chunk()
        self._row += count
        return chunk

    def _number(self, number: Number | None, key: bytes) -> tuple[Any, ...]:
        """The words that make a command repeatable; refused in an attempt before, it is another producer's."""
        if not number:
            return ()
        producer, epoch, chunk = number
        if producer not in self._refused:
            self._refused[producer] = self._ask_refused(producer)
        if self._refused[producer] and chunk + b" " + key in self._refused[producer]:
            producer += b"!"
        return (b"PRODUCER", producer, epoch, chunk)

    def _numbers(self, rows: Rows, count: int) -> list[Number]:
        """Producer, epoch and chunk number of each row.

        Raises:
            PipelineError: the offsets of a shard do not grow.
        """
        if not self._by_offset:
            producer, epoch = self._producer.encode(), b"%d" % self._epoch
            return [(producer, epoch, b"%d" % (self._row + at + 1)) for at in range(count)]
        numbers = []
        for shard, offset in zip(rows["shard"], rows["offset"], strict=True):
            if offset <= self._last.get(shard, 0):
                raise PipelineError(
                    f"shard {shard}: offset {offset} comes after {self._last[shard]}; expected each shard in one "
                    'partition and in order: .repartition(n, "shard").sortWithinPartitions("shard", "offset")'
                )
            self._last[shard] = offset
            numbers.append((f"{self._name}:s{shard}".encode(), b"1", b"%d" % offset))
        return numbers

    def _lives(self, rows: Rows, count: int) -> list[int | None]:
        """Seconds that each message has left; None: no limit of its own; 0: it is past its expiry."""
        lives: list[int | None] = [self._ttl] * count
        for at, expires in enumerate(rows.get("expires", ())):
            if expires is not None:
                lives[at] = max(int(expires.timestamp() - time.time() + 0.999), 0)
        for at, ttl in enumerate(rows.get("ttl", ())):
            if ttl is not None:
                lives[at] = max(ttl, 0)
        return lives

    def _topics(self, rows: Rows, count: int) -> Chunk:
        chunk = Chunk()
        nothing = [None] * count
        numbers = self._numbers(rows, count) if self._idempotent else nothing
        columns = [rows.get(name, nothing) for name in ("qos", "retain", "publisher", "properties")]
        for topic, payload, life, number, qos, retain, publisher, properties in zip(
            rows["topic"], rows["payload"], self._lives(rows, count), numbers, *columns, strict=True
        ):
            if life == 0:
                chunk.expired += 1
                continue
            words: list[Any] = [b"TOPIC.PUBLISH", _required(topic, "topic"), _bytes(payload)]
            if qos:
                words += (b"QOS", qos)
            if retain:
                words.append(b"RETAIN")
            if life is not None:
                words += (b"TTL", life)
            if publisher:
                words += (b"FROM", publisher)
            if properties:
                words += (b"PROPERTIES", properties)
            words += self._number(number, b"")
            chunk.add(words, b"", number)
        return chunk

    def _channels(self, rows: Rows, count: int) -> Chunk:
        chunk = Chunk()
        nothing = [None] * count
        numbers = self._numbers(rows, count) if self._idempotent else nothing
        name = b"CHANNEL.SPUBLISH" if self._sharded else b"CHANNEL.PUBLISH"
        for channel, payload, number in zip(rows["channel"], rows["payload"], numbers, strict=True):
            key = _bytes(_required(channel, "channel"))
            words: list[Any] = [name, key, _bytes(payload)]
            words += self._number(number, key)
            chunk.add(words, key, number)
        return chunk

    def _sessions(self, rows: Rows, count: int) -> Chunk:
        """By offset one command for each row, else one for each session: its rows of this chunk, in order."""
        chunk = Chunk()
        numbers = self._numbers(rows, count)
        values = self._values(rows, count)
        lives = self._lives(rows, count)
        groups: dict[Any, list[int]] = {}
        for at, client in enumerate(rows["client_id"]):
            if lives[at] == 0:
                chunk.expired += 1
            else:
                groups.setdefault(at if self._by_offset else _required(client, "client_id"), []).append(at)
        common = (b"LIMIT", self._limit) if self._limit else ()
        for own in groups.values():
            number = numbers[own[0]]
            if not self._by_offset:
                number = (number[0], b"", b"%d" % (self._epoch << CHUNK_BITS | self._row // self._size + 1))
            key = self._prefix.encode() + core.session_key(_required(rows["client_id"][own[0]], "client_id"))
            words: list[Any] = [b"SESSION.ADD", key, *common]
            if self._idempotent:
                word, producer, _epoch, sequence = self._number(number, key)
                words += (word, producer, sequence)
            if any(lives[at] is not None for at in own):
                words.append(b"EXPIRING")
                for at in own:
                    words += (b"" if lives[at] is None else lives[at], values[at])
            else:
                words.append(b"MESSAGES")
                words += [values[at] for at in own]
            chunk.add(words, key, number if self._idempotent else None, len(own))
        return chunk

    def _values(self, rows: Rows, count: int) -> list[bytes]:
        """What is stored for each row: the record of a published message if it has a topic, else the payload."""
        nothing = [None] * count
        columns = [rows.get(name, nothing) for name in ("topic", "qos", "retain", "publisher", "properties")]
        times = (rows.get(name, nothing) for name in ("published", "expires"))
        now_ms = time.time_ns() // 1_000_000
        values = []
        for payload, topic, qos, retain, publisher, properties, published, expires in zip(
            rows["payload"], *columns, *times, strict=True
        ):
            if topic is None:
                values.append(_bytes(payload))
                continue
            record = core.Record(
                qos=1 if qos is None else qos,
                retain=bool(retain),
                time_ms=int(published.timestamp() * 1000) if published else now_ms,
                expires_ms=int(expires.timestamp() * 1000) if expires else 0,
                topic=_bytes(topic),
                publisher=_bytes(publisher),
                properties=properties or b"",
                payload=_bytes(payload),
            )
            values.append(record.encode())
        return values


def _required(value: Any, name: str) -> Any:
    if value is None or value in {"", b""}:
        raise PipelineError(f"a row has no {name}; expected one in every row")
    return value


def _bytes(value: str | bytes | None) -> bytes:
    if isinstance(value, str):
        return value.encode()
    return value or b""
