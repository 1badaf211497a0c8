"""Compares the planned messages with those of the sessions, message by message, by stock commands.

The sessions are read again and compared with the plan, piece by piece: a piece's range of serials is what a session may
have there. A message whose time to live has ended counts neither as lost nor as present. If messages were appended to
existing ones (merged), serials and identifiers may be new. Then the values are compared, and how often each occurs.
"""

import hashlib
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from holdmq import core
from holdmq_pipeline.history_reader import without_collector
from holdmq_pipeline.session_plan import (
    BYTES_TOGETHER,
    CLIENTS_TOGETHER,
    LAST_SERIAL,
    Renamer,
    Target,
    Waiting,
    unpacked,
)
from holdmq_pipeline.tbmq import scored
from holdmq_pipeline.tbmq_messages import QUEUED, RELEASED
from holdmq_pipeline.wire import Link, checked, command

FOUND = "lost long, extra long, differ long"
ARROW_FOUND = pa.schema([("lost", pa.int64()), ("extra", pa.int64()), ("differ", pa.int64())])
TO_COMPARE = ("client_id", "low", "high", "head", "conflict", "repeated_ids", "packed")
SLACK_MS = 1000  # the clocks of executors and servers
PAGE = 1000


@dataclass
class Differences:
    """What a comparison found, in messages.

    Attributes:
        lost: that are not there.
        extra: that are there and should not be.
        differ: with another packet identifier, state or content.
    """

    lost: int = 0
    extra: int = 0
    differ: int = 0


def compare(plan: DataFrame, target: Target, conflict: Column | None = None) -> Differences:
    """Compares the sessions of a plan (session_plan.py) with it, but for clients with a conflict."""
    left_out = f.lit(False) if conflict is None else conflict
    pieces = plan.withColumn("conflict", left_out).select(*TO_COMPARE)
    row = (
        pieces.mapInArrow(lambda batches: _compared(batches, target), FOUND)
        .agg(*(f.coalesce(f.sum(one.name), f.lit(0)).alias(one.name) for one in ARROW_FOUND))
        .first()
    )
    assert row is not None
    return Differences(row.lost, row.extra, row.differ)


@dataclass
class _Piece:
    """A piece of a session: what was planned, what is there."""

    key: bytes
    low: int
    high: int
    wanted: Sequence[Waiting]
    head: bool
    members: list[bytes] = field(default_factory=list)
    serials: list[int] = field(default_factory=list)


def _compared(batches: Iterator[pa.RecordBatch], target: Target) -> Iterator[pa.RecordBatch]:
    found = Differences()
    with Link(target.options) as link, without_collector():
        if target.merge:
            for key, pieces in _clients(batches, target):
                _by_value(link, key, pieces, found)
        else:
            turn: list[_Piece] = []
            size = 0
            for piece in _pieces(batches, target):
                turn.append(piece)
                size += sum(len(one.value) for one in piece.wanted)
                if len(turn) == CLIENTS_TOGETHER or size >= BYTES_TOGETHER:
                    _by_serial(link, turn, found)
                    turn, size = [], 0
            if turn:
                _by_serial(link, turn, found)
    arrays = [pa.array([getattr(found, one.name)], one.type) for one in ARROW_FOUND]
    yield pa.RecordBatch.from_arrays(arrays, schema=ARROW_FOUND)


def _pieces(batches: Iterator[pa.RecordBatch], target: Target) -> Iterator[_Piece]:
    """The pieces of clients that were imported, as they were."""
    skip = False
    renamer: Renamer | None = None
    for batch in batches:
        for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            client_id, low, high, head, conflict, repeated_ids, packed = row
            if head:
                skip, renamer = bool(conflict), Renamer() if repeated_ids else None
            if not skip:
                wanted = unpacked(packed)
                yield _Piece(target.key(client_id), low, high, renamer.of(wanted) if renamer else wanted, head)


# ---- by serial ----


def _by_serial(link: Link, turn: Sequence[_Piece], found: Differences) -> None:
    asked = [(piece.key, _range(piece)) for piece in turn]
    for piece, reply in zip(turn, checked(link.ask_all(asked)), strict=True):
        for member, score in scored(reply) if reply else ():
            piece.members.append(member)
            piece.serials.append(int(float(score)))
    there = [piece for piece in turn if piece.members]
    values = checked(link.ask_all([(piece.key, command("MGET", *piece.members)) for piece in there]))
    held = {id(piece): reply for piece, reply in zip(there, values, strict=True)}
    for piece in turn:
        _compare_piece(piece, held.get(id(piece), []), found)


def _range(piece: _Piece) -> bytes:
    high = "+inf" if piece.high == LAST_SERIAL else piece.high
    return command("ZRANGEBYSCORE", piece.key + b"_messages", piece.low, high, "WITHSCORES")


def _compare_piece(piece: _Piece, values: Sequence[bytes | None], found: Differences) -> None:
    before = len(piece.key) + len(b"_messages_")
    held = {
        serial: (int(member[before:]), value)
        for serial, member, value in zip(piece.serials, piece.members, values, strict=True)
        if value is not None
    }
    now_ms = time.time() * 1000 + SLACK_MS
    for message in piece.wanted:
        there = held.pop(message.serial, None)
        if there is None:
            found.lost += not 0 < message.lives_until <= now_ms
        elif not _same(message, *there):
            found.differ += 1
    found.extra += len(held)


def _same(message: Waiting, packet_id: int, value: bytes) -> bool:
    if message.packet_id not in (0, packet_id):
        return False
    if message.state == QUEUED and message.value == value:
        return True  # equal records are of equal state
    return (message.state, b"" if message.state == RELEASED else message.value) == _state_and_value(value)


def _state_and_value(value: bytes) -> tuple[int, bytes]:
    """The state of a message that is held, and its value, which counts unless it is released."""
    if core.is_record(value) and core.Record.decode(value).type == core.RecordType.PUBREL:
        return RELEASED, b""
    return QUEUED, value


# ---- by value ----


def _clients(batches: Iterator[pa.RecordBatch], target: Target) -> Iterator[tuple[bytes, Counter[Any]]]:
    """Each client: its key, and how often each value is wanted there."""
    key, wanted = b"", Counter[Any]()
    for piece in _pieces(batches, target):
        if piece.head:
            if key:
                yield key, wanted
            key, wanted = piece.key, Counter()
        now_ms = time.time() * 1000 + SLACK_MS
        alive = (one for one in piece.wanted if not 0 < one.lives_until <= now_ms)
        wanted.update((one.state, b"" if one.state == RELEASED else _digest(one.value)) for one in alive)
    if key:
        yield key, wanted


def _by_value(link: Link, key: bytes, wanted: Counter[Any], found: Differences) -> None:
    begin = 0
    while True:
        page = checked(link.ask_all([(key, command("ZRANGE", key + b"_messages", begin, begin + PAGE - 1))]))[0]
        if not page:
            break
        for value in checked(link.ask_all([(key, command("MGET", *page))]))[0]:
            if value is not None:
                state, content = _state_and_value(value)
                wanted[state, content and _digest(content)] -= 1
        begin += PAGE
    found.lost += sum(count for count in wanted.values() if count > 0)


def _digest(value: bytes) -> bytes:
    return hashlib.sha256(value).digest()
