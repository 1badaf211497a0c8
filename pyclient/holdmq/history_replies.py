"""What the commands of history reply, as small frozen classes; the same for the synchronous and the asyncio client.

Invariants:

1. Names and units are those of docs/commands/: ages in seconds, `..._ms` in milliseconds, `..._us` in microseconds
   since 1970-01-01 UTC, sequence numbers from 1 on.
2. Topics and client ids are `str` (bytes that are no UTF-8 survive as surrogates), payloads and properties are `bytes`.
3. The columns of a range stay as they came, in the layout of Apache Arrow, until they are asked for; numbers and
   buffers are not copied before. `arrow` alone needs pyarrow.
"""

import sys
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import pairwise
from typing import Any, Literal, TypeAlias, overload

from holdmq.errors import ArgumentError, UnexpectedReplyError
from holdmq.replies import Message

__all__ = [
    "COLUMNS",
    "HistoryColumns",
    "HistoryImport",
    "HistoryInfo",
    "HistoryMessage",
    "HistoryPage",
    "HistoryPlace",
    "HistoryPolicy",
    "PatternProposal",
    "PatternStats",
    "ReplayStep",
    "ReplayStepKind",
    "ShardInfo",
]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

COLUMNS: dict[str, str] = {
    "sequence": "q",
    "time": "q",
    "topic": "text",
    "payload": "bytes",
    "qos": "b",
    "retain": "b",
    "publisher": "text",
    "properties": "bytes",
    "published": "q",
    "expires": "q",
    "pattern": "i",
    "generation": "i",
}
"""The columns of a range: `text`, `bytes`, or a number as `array` and `struct` call it."""
NumberColumn: TypeAlias = Literal["sequence", "time", "qos", "retain", "published", "expires", "pattern", "generation"]
SIZES = {"q": 8, "i": 4, "b": 1}
"""Bytes of a number."""


@dataclass(frozen=True, slots=True)
class HistoryPolicy:
    """The policy of a store.

    Attributes:
        store: its name.
        filters: the topic filters that it selects.
        shards: how many shards it has.
        levels: how many levels of a topic are indexed.
        age: how long messages are shown, in seconds; 0: for ever.
        epoch: after how many seconds a shard begins a new epoch.
        max_bytes: how much all shards are to take together; 0: no limit.
        hold_bytes: how much more readers may hold back from being dropped.
        learn: after how many seconds, again and again, the store looks for a better pattern set; 0: never.
    """

    store: str
    filters: tuple[str, ...]
    shards: int
    levels: int
    age: int
    epoch: int
    max_bytes: int
    hold_bytes: int
    learn: int


@dataclass(frozen=True, slots=True)
class ShardInfo:
    """What one shard of a store has.

    Attributes:
        shard: its number.
        first: sequence number of the first message that is still to be seen; `last` + 1 if none is.
        last: the last sequence number given, 0 if none was.
        first_time_us: id of the first message, 0 if there is none.
        last_time_us: id of the last one, 0 if there is none.
        bytes: what was put into the values of its keys and is not dropped.
        epoch: the present epoch.
        oldest_epoch: the oldest one that is there.
        generation: of the pattern set in use.
        trimmed: all sequence numbers up to this one are gone.
        holds: up to which sequence number each reader that holds the shard has read.
        lost: readers without which retention went on, and up to where they had read.
    """

    shard: int
    first: int
    last: int
    first_time_us: int
    last_time_us: int
    bytes: int
    epoch: int
    oldest_epoch: int
    generation: int
    trimmed: int
    holds: Mapping[str, int] = field(default_factory=dict)
    lost: Mapping[str, int] = field(default_factory=dict)

    @property
    def messages(self) -> int:
        """How many sequence numbers are still to be seen; a message past its own expiry counts, too."""
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True)
class HistoryInfo:
    """What a store has: its policy, the highest generation of pattern sets of its shards, and the shards."""

    policy: HistoryPolicy
    generation: int
    shards: tuple[ShardInfo, ...]

    @property
    def messages(self) -> int:
        """Of all shards; see `ShardInfo.messages`."""
        return sum(shard.messages for shard in self.shards)


@dataclass(frozen=True, slots=True)
class HistoryPlace:
    """Where a message is kept.

    Attributes:
        shard: its shard.
        sequence: its number there, 1, 2, 3 … without holes; 0 for a chunk older than the producer's last one.
        time_us: its id: when it was kept, in microseconds since 1970, larger than that of the one before.
        new: False if the producer's chunk was there already: then nothing was stored.
    """

    shard: int
    sequence: int
    time_us: int
    new: bool


@dataclass(frozen=True, slots=True)
class HistoryImport:
    """What an import did: the sequence numbers of the messages, and whether they were stored now (else before)."""

    first: int
    last: int
    new: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryMessage(Message):
    """A message of the past.

    Attributes:
        shard: the shard that keeps it.
        sequence: its number there.
        time_us: its id, in microseconds since 1970: within a shard each is larger than the one before.
    """

    shard: int
    sequence: int
    time_us: int

    @property
    def time(self) -> datetime:
        """When it was kept, UTC."""
        return _EPOCH + timedelta(microseconds=self.time_us)

    @classmethod
    def from_record_at(cls, record: bytes, shard: int, sequence: int, time_us: int) -> "HistoryMessage":
        """Decodes a stored record.

        Raises:
            ArgumentError: it is no publish record.
        """
        message = Message.from_record(record)
        return cls(
            topic=message.topic,
            payload=message.payload,
            qos=message.qos,
            retain=message.retain,
            time_ms=message.time_ms,
            expires_ms=message.expires_ms,
            publisher=message.publisher,
            properties=message.properties,
            share=message.share,
            shard=shard,
            sequence=sequence,
            time_us=time_us,
        )


@dataclass(frozen=True, slots=True)
class HistoryPage:
    """A page of a replay.

    Attributes:
        messages: in the order of each shard.
        cursor: where to go on.
        end: whether nothing is left now.
        visited: how many messages were looked at.
        missed: how many that were not read yet retention has taken.
    """

    messages: tuple[HistoryMessage, ...]
    cursor: str
    end: bool
    visited: int
    missed: int


class ReplayStepKind(StrEnum):
    """What the next step of a replay came to."""

    MESSAGE = "message"
    """A message of the same topic as the one before."""
    NEXT_TOPIC = "next topic"
    """A message of another topic than the one before, or the first one."""
    END = "end"
    """Nothing is left now; there may be more later."""


@dataclass(frozen=True, slots=True)
class ReplayStep:
    """One step of a replay: what it came to, the message (None at the end), and the cursor behind it."""

    kind: ReplayStepKind
    message: HistoryMessage | None
    cursor: str


@dataclass(frozen=True, slots=True)
class PatternStats:
    """One pattern of the present set: its number, its filter, its messages, and how its varying levels are indexed."""

    pattern: int
    filter: str
    messages: int
    slots: int
    bits: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PatternProposal:
    """What the learner proposes for a store.

    Attributes:
        better: whether it is better than the present set by the margin.
        text: the pattern set, to be prepared; the present one if none is better.
        cost: messages read for each one returned, with it, for the filters that readers asked for lately.
        present_cost: the same with the present set.
        patterns: how many patterns it has.
        messages: how many messages were looked at.
    """

    better: bool
    text: str
    cost: float
    present_cost: float
    patterns: int
    messages: int


class HistoryColumns:
    r"""Messages of one shard, column by column, as they came: made by `AsyncHistoryStore.range`.

    Nothing changes it: threads, tasks and forked processes may share it.

    Attributes:
        shard: their shard.
        next: the sequence number to go on from.
        visited: how many messages were looked at.
        missed: how many of the numbers retention has taken.
        rows: how many messages there are.

    Example:
        >>> sequence = (b"\x05\0\0\0\0\0\0\0",)
        >>> payload = (b"\0\0\0\0\x02\0\0\0", b"hi")
        >>> columns = HistoryColumns(0, 6, 1, 0, 1, {"sequence": sequence, "payload": payload})
        >>> columns["sequence"], columns["payload"]
        ([5], [b'hi'])
    """

    __slots__ = ("_packed", "missed", "next", "rows", "shard", "visited")

    def __init__(
        self, shard: int, next_sequence: int, visited: int, missed: int, rows: int, packed: dict[str, tuple[bytes, ...]]
    ) -> None:
        self.shard = shard
        self.next = next_sequence
        self.visited = visited
        self.missed = missed
        self.rows = rows
        self._packed = packed
        for name, buffers in packed.items():
            _check_buffers(name, buffers, rows)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(shard={self.shard}, next={self.next}, rows={self.rows}, {', '.join(self.names)})"

    def __len__(self) -> int:
        return self.rows

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that there are."""
        return tuple(self._packed)

    def buffers(self, name: str) -> tuple[memoryview, ...]:
        """A column as Apache Arrow lays it out, without a copy, little endian.

        Args:
            name: the column.

        Returns:
            The values of a column of numbers; `rows` + 1 offsets (int32, the first is 0) and the data of another.

        Raises:
            ArgumentError: a column that was not asked for.
        """
        if name not in self._packed:
            raise ArgumentError(f"there is no column {name!r}; expected one of {', '.join(self._packed)}")
        return tuple(memoryview(buffer) for buffer in self._packed[name])

    @overload
    def __getitem__(self, name: Literal["topic", "publisher"]) -> list[str]: ...

    @overload
    def __getitem__(self, name: Literal["payload", "properties"]) -> list[bytes]: ...

    @overload
    def __getitem__(self, name: NumberColumn) -> list[int]: ...

    @overload
    def __getitem__(self, name: str) -> list[Any]: ...

    def __getitem__(self, name: str) -> list[Any]:
        """A column as a list: of int, of str (`topic`, `publisher`), of bytes (`payload`, `properties`).

        Raises:
            ArgumentError: a column that was not asked for.
        """
        buffers = self.buffers(name)
        kind = COLUMNS[name]
        if kind in SIZES:
            return _integers(buffers[0], kind)
        offsets, data = _integers(buffers[0], "i"), bytes(buffers[1])
        cut = [data[start:end] for start, end in pairwise(offsets)]
        return [value.decode("utf-8", "surrogateescape") for value in cut] if kind == "text" else cut

    def arrow(self) -> Any:
        """All columns as a `pyarrow.RecordBatch` that shares their memory.

        Raises:
            ImportError: pyarrow is not installed.
        """
        import pyarrow  # noqa: PLC0415 - only who wants this needs it

        types = {"q": pyarrow.int64(), "i": pyarrow.int32(), "b": pyarrow.int8()}
        types |= {"text": pyarrow.string(), "bytes": pyarrow.binary()}
        arrays = [
            pyarrow.Array.from_buffers(
                types[COLUMNS[name]], self.rows, [None, *(pyarrow.py_buffer(buffer) for buffer in buffers)]
            )
            for name, buffers in self._packed.items()
        ]
        return pyarrow.RecordBatch.from_arrays(arrays, names=list(self._packed))


def _check_buffers(name: str, buffers: tuple[bytes, ...], rows: int) -> None:
    """Raises UnexpectedReplyError unless a column has the layout of its kind."""
    size = SIZES.get(COLUMNS[name])
    if size is not None:
        right = len(buffers) == 1 and len(buffers[0]) == rows * size
    else:
        right = len(buffers) == 2 and len(buffers[0]) == (rows + 1) * 4
        right = right and int.from_bytes(buffers[0][-4:], "little") == len(buffers[1])
    if not right:
        sizes = [len(buffer) for buffer in buffers]
        raise UnexpectedReplyError(f"the column {name!r} came in buffers of {sizes} bytes; expected {rows} rows")


def _integers(buffer: memoryview, kind: str) -> list[int]:
    numbers = array(kind)
    numbers.frombytes(buffer)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tolist()
