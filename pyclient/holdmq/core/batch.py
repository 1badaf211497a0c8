"""Encodes columns of messages as the commands that store them, a whole batch in one call (src/topic/batch.h).

Columns are buffers in the layout of Arrow. They are copied only into the commands, which are a separate buffer. A batch
keeps its columns alive.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdmq.core._binding import CData, ffi, lib

__all__ = ["Buffer", "Groups", "InvalidRowError", "MessageBatch", "Packed", "Texts"]

Buffer = Any
"""Any object with the buffer protocol."""

_uncleared = ffi.new_allocator(should_clear_after_alloc=False)  # type: ignore[attr-defined]


class InvalidRowError(ValueError):
    """A row cannot be encoded: it has no client id or topic, or a field is out of its range.

    Attributes:
        row: its number in the batch, from 0.
    """

    def __init__(self, row: int) -> None:
        super().__init__(f"row {row} makes no message")
        self.row = row


@dataclass(frozen=True)
class Texts:
    """A column of texts or bytes.

    Attributes:
        data: all bytes.
        offsets: int32, the start of each row, and the end of the last one.
        valid: a bit for each row, 0 if it is null; None: no row is null.
        first: the first row in `offsets` and `valid`.
    """

    data: Buffer
    offsets: Buffer
    valid: Buffer | None = None
    first: int = 0


@dataclass(frozen=True)
class Groups:
    """Groups of rows. Each group becomes one command.

    Attributes:
        order: uint32, rows, group by group.
        groups: hmq_batch_group.
        count: number of groups.
    """

    order: CData
    groups: CData
    count: int

    def first_row(self, group: int) -> int:
        """The first row of a group."""
        return int(self.order[self.groups[group].at])

    @property
    def rows(self) -> memoryview:
        """`order`, as numbers."""
        return memoryview(ffi.buffer(self.order)).cast("I")

    @property
    def places(self) -> memoryview:
        """For each group in turn, its start in `rows` and its size."""
        return memoryview(ffi.buffer(self.groups, self.count * ffi.sizeof("hmq_batch_group"))).cast("I")


@dataclass(frozen=True)
class Packed:
    """Commands.

    Attributes:
        data: all commands in succession.
        ends: the end of each.
        rows: the number of messages in each.
        groups: the group of each.
    """

    data: memoryview
    ends: list[int]
    rows: list[int]
    groups: list[int]


class MessageBatch:
    """Columns of the same number of rows.

    Args:
        rows: number of rows.
        texts: some of client, topic, payload, publisher, properties.
        numbers: some of qos, retain, time_ms, expires_ms (0: never), life_s (-1: not given, 0: the row is left out),
            number (of a producer): int64 for each row.
        first_number: the producer's number of the first row, if there is no such column. Further rows count up.
        now_ms: the time of messages without one, in ms since 1970.
    """

    def __init__(
        self,
        rows: int,
        texts: Mapping[str, Texts],
        numbers: Mapping[str, Buffer],
        *,
        first_number: int,
        now_ms: int,
    ) -> None:
        self._keep: list[Any] = []
        self._rows = rows
        self._batch = ffi.new("hmq_batch *", {"rows": rows, "first_number": first_number, "now_ms": now_ms})
        for name, column in texts.items():
            self._set_texts(getattr(self._batch, name), column)
        for name, values in numbers.items():
            buffer = ffi.from_buffer("int64_t[]", values)
            if len(buffer) < rows:
                raise ValueError(f"column {name} has {len(buffer)} rows; expected {rows}")
            self._keep.append(buffer)
            setattr(self._batch, name, buffer)

    def _set_texts(self, into: CData, column: Texts) -> None:
        offsets = ffi.from_buffer("int32_t[]", column.offsets)
        data = ffi.from_buffer("uint8_t[]", column.data)
        if len(offsets) <= column.first + self._rows or offsets[column.first + self._rows] > len(data):
            raise ValueError("a column of texts is shorter than it should be")
        into.offsets, into.data, into.first_bit = offsets + column.first, data, column.first
        self._keep += [offsets, data]
        if column.valid is not None:
            valid = ffi.from_buffer("uint8_t[]", column.valid)
            if len(valid) * 8 < column.first + self._rows:
                raise ValueError("the bits of a column of texts are fewer than its rows")
            into.valid = valid
            self._keep.append(valid)

    def group(self, codes: Buffer, distinct: int, most: int) -> Groups:
        """Groups rows of the same code (int32, 0 <= code < distinct), in order, at most `most` in a group."""
        order = _uncleared("uint32_t[]", max(self._rows, 1))
        groups = _uncleared("hmq_batch_group[]", max(self._rows, 1))
        places = _uncleared("uint32_t[]", distinct + 1)
        code = ffi.from_buffer("int32_t[]", codes)
        if len(code) < self._rows:
            raise ValueError(f"there are {len(code)} codes; expected {self._rows}")
        return Groups(order, groups, lib.hmq_batch_group_rows(code, self._rows, distinct, most, order, groups, places))

    def each(self) -> Groups:
        """Makes a group of each row."""
        order = ffi.new("uint32_t[]", list(range(self._rows)))
        return Groups(order, ffi.new("hmq_batch_group[]", [(at, 1) for at in range(self._rows)]), self._rows)

    def session_adds(
        self,
        groups: Groups,
        runs: Sequence[tuple[bytes, int, int]],
        *,
        prefix: bytes = b"",
        limit: int = 0,
        after: Buffer | None = None,
    ) -> Packed:
        """`SESSION.ADD` for each group. A row with a topic becomes a record, another row its payload.

        Args:
            groups: of rows of the same client.
            runs: producer (empty: none), first group, and end (not included).
            prefix: before the session keys.
            limit: of the queue; 0: the server's.
            after: int64 for each group: the number of the producer that must come before it (AFTER); 0: none.

        Raises:
            InvalidRowError: a row without a client id, or out of range.
        """
        fixed = len(prefix) + max((len(producer) for producer, _from, _to in runs), default=0)
        capacity = lib.hmq_batch_room(self._batch, fixed)
        out = _uncleared("uint8_t[]", capacity)
        ends = _uncleared("uint64_t[]", max(groups.count, 1))
        sent = _uncleared("uint32_t[]", max(groups.count, 1))
        follows = ffi.NULL if after is None else ffi.from_buffer("int64_t[]", after)
        if after is not None and len(follows) < groups.count:
            raise ValueError(f"there are {len(follows)} numbers to follow; expected {groups.count}")
        used = 0
        all_ends: list[int] = []
        for producer, begin, end in runs:
            keep = (ffi.from_buffer("uint8_t[]", prefix), ffi.from_buffer("uint8_t[]", producer))
            add = ffi.new(
                "hmq_batch_add *",
                {
                    "prefix": (keep[0], len(prefix)),
                    "producer": (keep[1], len(producer)),
                    "limit": limit,
                    "after": follows + begin if after is not None else follows,
                },
            )
            written = lib.hmq_batch_sessions(
                self._batch,
                add,
                groups.order,
                groups.groups + begin,
                end - begin,
                out + used,
                capacity - used,
                ends,
                sent + begin,
            )
            self._check(written)
            all_ends += [used + one for one in ffi.unpack(ends, end - begin)] if end > begin else []
            used += written
        rows = ffi.unpack(sent, groups.count) if groups.count else []
        return _packed(out, used, all_ends, rows)

    def topic_publishes(
        self, parts: Sequence[tuple[int, int]], producers: Sequence[bytes], epoch: int, after: dict[bytes, int]
    ) -> Packed:
        """`TOPIC.MPUBLISH` for each part.

        Args:
            parts: for each command its first row, and the end (not included).
            producers: of each part; empty: none.
            epoch: of the producers.
            after: the last number of each producer so far. It is updated.

        Raises:
            InvalidRowError: a row without a topic, or out of range.
        """
        capacity = lib.hmq_batch_room(self._batch, max(map(len, producers), default=0))
        out = _uncleared("uint8_t[]", capacity)
        sent = ffi.new("uint32_t *")
        used = 0
        ends, rows = [], []
        for (begin, end), producer in zip(parts, producers, strict=True):
            keep = ffi.from_buffer("uint8_t[]", producer)
            publish = ffi.new(
                "hmq_batch_publish *",
                {"producer": (keep, len(producer)), "epoch": epoch, "after": after.get(producer, 0)},
            )
            written = lib.hmq_batch_topics(self._batch, publish, begin, end, out + used, capacity - used, sent)
            self._check(written)
            used += written
            after[producer] = publish.after
            ends.append(used)
            rows.append(sent[0])
        return _packed(out, used, ends, rows)

    def _check(self, written: int) -> None:
        if written >= 0:
            return
        row = -1 - written
        if row >= self._rows:
            raise AssertionError("there is no room for the commands")
        raise InvalidRowError(row)


def _packed(out: CData, used: int, ends: Sequence[int], rows: Sequence[int]) -> Packed:
    """The commands without those that have no rows."""
    filled = [at for at, count in enumerate(rows) if count > 0]
    data = memoryview(ffi.buffer(out, used))
    return Packed(data, [ends[at] for at in filled], [rows[at] for at in filled], filled)
