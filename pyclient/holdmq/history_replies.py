"""The results of history commands, as small frozen classes.

The synchronous and the asyncio client use the same classes.

1. Names and units are those of the commands: ages are in seconds. Names that end in `_ms` and `_us` are milliseconds
   and microseconds since 1970-01-01 UTC. Sequence numbers start at 1.
2. Topics and client ids are `str` (bytes that are not UTF-8 become surrogates). Payloads and properties are `bytes`.
3. The columns of a range stay in the layout of Apache Arrow, as the server sent them, until you access them. Only
   `arrow` needs pyarrow.
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
"""The columns of a range and their types: `text`, `bytes`, or a number with the type code of `array` and `struct`."""
NumberColumn: TypeAlias = Literal["sequence", "time", "qos", "retain", "published", "expires", "pattern", "generation"]
SIZES = {"q": 8, "i": 4, "b": 1}
"""Bytes of a number."""


@dataclass(frozen=True, slots=True)
class HistoryPolicy:
    """The settings of a store.

    Attributes:
        store: the store's name.
        filters: the topic filters that it selects.
        shards: how many shards it has.
        levels: how many levels of a topic are indexed.
        age: how long messages can be read, in seconds. 0 means forever.
        epoch: the length of an epoch, in seconds.
        max_bytes: how much memory all shards together may use. 0 means no limit.
        hold_bytes: how many further bytes readers may hold back from being dropped.
        learn: how often the store looks for a better pattern set, in seconds. 0 means never.
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
    """The state of one shard of a store.

    Attributes:
        shard: the number of the shard.
        first: the sequence number of the first readable message. `last` + 1 if there is none.
        last: the last sequence number assigned, or 0.
        first_time_us: the id of the first message, or 0.
        last_time_us: the id of the last message, or 0.
        bytes: the size of the values of its keys, without dropped epochs.
        epoch: the number of the current epoch.
        oldest_epoch: the number of the oldest epoch that still exists.
        generation: the generation of the current pattern set.
        trimmed: all messages up to this sequence number are gone.
        holds: for each reader that holds the shard, the last sequence number it has read.
        lost: for each reader that lost messages to retention, the last sequence number it had read.
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
        """How many sequence numbers can still be read, including those of expired messages."""
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True)
class HistoryInfo:
    """The state of a store.

    Attributes:
        policy: its settings.
        generation: the highest pattern-set generation of its shards.
        shards: the state of each shard.
    """

    policy: HistoryPolicy
    generation: int
    shards: tuple[ShardInfo, ...]

    @property
    def messages(self) -> int:
        """The sum over all shards of `ShardInfo.messages`."""
        return sum(shard.messages for shard in self.shards)


@dataclass(frozen=True, slots=True)
class HistoryPlace:
    """The place where a message is stored.

    Attributes:
        shard: the number of the shard.
        sequence: the message's number in the shard: 1, 2, 3 … without gaps. 0 for a chunk older than the producer's
            last one.
        time_us: the message's id: when it was stored, in microseconds since 1970. Ids increase within a shard.
        new: False if the producer's chunk was stored before. Nothing was stored then.
    """

    shard: int
    sequence: int
    time_us: int
    new: bool


@dataclass(frozen=True, slots=True)
class HistoryImport:
    """The result of an import.

    Attributes:
        first: the sequence number of the first message.
        last: the sequence number of the last message.
        new: False if the messages were stored before.
    """

    first: int
    last: int
    new: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryMessage(Message):
    """A message of history: a `Message` with its place.

    Attributes:
        shard: the number of the shard.
        sequence: the message's number in the shard.
        time_us: the message's id: when it was stored, in microseconds since 1970. Ids increase within a shard.
    """

    shard: int
    sequence: int
    time_us: int

    @property
    def time(self) -> datetime:
        """When the message was stored, UTC."""
        return _EPOCH + timedelta(microseconds=self.time_us)

    @classmethod
    def from_record_at(cls, record: bytes, shard: int, sequence: int, time_us: int) -> "HistoryMessage":
        """Decodes a stored record.

        Raises:
            ArgumentError: the value is not a publish record.
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
        messages: the messages, ordered within each shard.
        cursor: where to continue.
        end: whether there is nothing more to read at the moment.
        visited: how many messages were examined.
        missed: how many unread messages retention removed.
    """

    messages: tuple[HistoryMessage, ...]
    cursor: str
    end: bool
    visited: int
    missed: int


class ReplayStepKind(StrEnum):
    """The kind of a step of a replay."""

    MESSAGE = "message"
    """A message of the same topic as the previous one."""
    NEXT_TOPIC = "next topic"
    """A message of another topic than the previous one, or the first message."""
    END = "end"
    """There is nothing more to read at the moment."""


@dataclass(frozen=True, slots=True)
class ReplayStep:
    """One step of a replay.

    Attributes:
        kind: the kind of the step.
        message: the message. None at the end.
        cursor: the place after the message.
    """

    kind: ReplayStepKind
    message: HistoryMessage | None
    cursor: str


@dataclass(frozen=True, slots=True)
class PatternStats:
    """Statistics of one pattern of the current set.

    Attributes:
        pattern: the number of the pattern.
        filter: the topic filter of the pattern.
        messages: how many messages it has.
        slots: how many of its levels vary and are indexed.
        bits: for each of these levels, the number of bits of its hash.
    """

    pattern: int
    filter: str
    messages: int
    slots: int
    bits: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PatternProposal:
    """A learner's proposal for a store.

    Attributes:
        better: whether the proposal is better than the current set by the margin.
        text: the proposed pattern set, for `prepare`. The current set if none is better.
        cost: messages read per message returned with the proposed set, for the recent filters of readers.
        present_cost: the same with the current set.
        patterns: how many patterns the proposal has.
        messages: how many messages were examined.
    """

    better: bool
    text: str
    cost: float
    present_cost: float
    patterns: int
    messages: int


class HistoryColumns:
    r"""Messages of one shard as columns; made by `HistoryStore.range`.

    `columns["topic"]` is a column as a list: of `int`, of `str` (`topic`, `publisher`), or of `bytes` (`payload`,
    `properties`). The object never changes. Threads, tasks and forked processes may share it.

    Attributes:
        shard: the number of the shard.
        next: the sequence number to continue from.
        visited: how many messages were examined.
        missed: how many of the sequence numbers retention has removed.
        rows: how many messages there are.

    Examples:
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
        """The names of the columns."""
        return tuple(self._packed)

    def buffers(self, name: str) -> tuple[memoryview, ...]:
        """Returns a column in the layout of Apache Arrow (little endian), without a copy.

        Args:
            name: the name of the column.

        Returns:
            For a column of numbers: the values. For other columns: `rows` + 1 offsets (int32, the first is 0), and the
            data.

        Raises:
            ArgumentError: the range was read without this column.
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
        """Returns a column as a list.

        Raises:
            ArgumentError: the range was read without this column.
        """
        buffers = self.buffers(name)
        kind = COLUMNS[name]
        if kind in SIZES:
            return _integers(buffers[0], kind)
        offsets, data = _integers(buffers[0], "i"), bytes(buffers[1])
        cut = [data[start:end] for start, end in pairwise(offsets)]
        return [value.decode("utf-8", "surrogateescape") for value in cut] if kind == "text" else cut

    def arrow(self) -> Any:
        """Returns all columns as a `pyarrow.RecordBatch` that shares their memory.

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
