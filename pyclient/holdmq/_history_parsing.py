"""Parses the replies of the history commands that `holdmq.history_commands` builds.

A reply with an undocumented form raises `UnexpectedReplyError`. RESP2 and RESP3 differ only in maps; both are
understood.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from holdmq import _wire as wire
from holdmq.errors import ArgumentError
from holdmq.history_replies import (
    HistoryImport,
    HistoryInfo,
    HistoryMessage,
    HistoryPage,
    HistoryPlace,
    HistoryPolicy,
    PatternProposal,
    PatternStats,
    ShardInfo,
)


def policy(fields: Mapping[str, Any]) -> HistoryPolicy:
    try:
        return HistoryPolicy(
            store=wire.decoded(fields["store"]),
            filters=tuple(wire.decoded(one) for one in wire.array(fields["filters"])),
            shards=wire.integer(fields["shards"]),
            levels=wire.integer(fields["levels"]),
            age=wire.integer(fields["age"]),
            epoch=wire.integer(fields["epoch"]),
            max_bytes=wire.integer(fields["bytes"]),
            hold_bytes=wire.integer(fields["holdbytes"]),
            learn=wire.integer(fields["learn"]),
        )
    except KeyError as error:
        raise wire.wrong(fields, f"a field {error}") from error


def info(reply: object) -> HistoryInfo:
    fields = wire.mapping(reply)
    of_store = policy(fields)
    try:
        shards = tuple(_shard(wire.mapping(item)) for item in wire.array(fields["shard"]))
        return HistoryInfo(of_store, wire.integer(fields["generation"]), shards)
    except KeyError as error:
        raise wire.wrong(reply, f"a field {error}") from error


def _shard(fields: Mapping[str, Any]) -> ShardInfo:
    holds: dict[str, int] = {}
    lost: dict[str, int] = {}
    for reader, value in wire.mapping(fields["holds"]).items():
        text = wire.decoded(value) if isinstance(value, bytes) else str(wire.integer(value))
        is_lost = text.startswith("lost ")
        number = text.removeprefix("lost ")
        if not number.isdecimal():
            raise wire.wrong(value, "the watermark of a reader")
        (lost if is_lost else holds)[reader] = int(number)
    return ShardInfo(
        shard=wire.integer(fields["shard"]),
        first=wire.integer(fields["first"]),
        last=wire.integer(fields["last"]),
        first_time_us=wire.integer(fields["first_time"]),
        last_time_us=wire.integer(fields["last_time"]),
        bytes=wire.integer(fields["bytes"]),
        epoch=wire.integer(fields["epoch"]),
        oldest_epoch=wire.integer(fields["oldest_epoch"]),
        generation=wire.integer(fields["generation"]),
        trimmed=wire.integer(fields["trimmed"]),
        holds=holds,
        lost=lost,
    )


def place(reply: object) -> HistoryPlace:
    shard, sequence, time_us, new = wire.array(reply, 4)
    return HistoryPlace(wire.integer(shard), wire.integer(sequence), wire.integer(time_us), wire.flag(new))


def imported(reply: object) -> HistoryImport:
    first, last, new = wire.array(reply, 3)
    return HistoryImport(wire.integer(first), wire.integer(last), wire.flag(new))


def page(reply: object) -> HistoryPage:
    entries, cursor, end, visited, missed = wire.array(reply, 5)
    messages = tuple(_message(entry) for entry in wire.array(entries))
    return HistoryPage(messages, wire.decoded(cursor), wire.flag(end), wire.integer(visited), wire.integer(missed))


def _message(entry: object) -> HistoryMessage:
    shard, sequence, time_us, record = wire.array(entry, 4)
    try:
        return HistoryMessage.from_record_at(
            wire.string(record), wire.integer(shard), wire.integer(sequence), wire.integer(time_us)
        )
    except ArgumentError as error:
        raise wire.wrong(record, "a record of a message") from error


def watermarks(reply: object) -> dict[int, int]:
    return {int(shard): wire.number(sequence) for shard, sequence in _pairs(reply)}


def _pairs(reply: object) -> Iterable[tuple[Any, Any]]:
    if isinstance(reply, dict):
        return reply.items()
    flat = wire.array(reply)
    if len(flat) % 2:
        raise wire.wrong(reply, "pairs")
    return zip(flat[::2], flat[1::2], strict=True)


def stats(fields: Mapping[str, Any]) -> PatternStats:
    try:
        return PatternStats(
            pattern=wire.integer(fields["pattern"]),
            filter=wire.decoded(fields["filter"]),
            messages=wire.integer(fields["messages"]),
            slots=wire.integer(fields["slots"]),
            bits=tuple(wire.integer(one) for one in wire.array(fields["bits"])),
        )
    except KeyError as error:
        raise wire.wrong(fields, f"a field {error}") from error


def proposal(reply: object) -> PatternProposal:
    fields = wire.mapping(reply)
    try:
        return PatternProposal(
            better=wire.flag(fields["better"]),
            text=wire.decoded(fields["text"]),
            cost=_float(fields["cost"]),
            present_cost=_float(fields["present_cost"]),
            patterns=wire.integer(fields["patterns"]),
            messages=wire.integer(fields["messages"]),
        )
    except KeyError as error:
        raise wire.wrong(reply, f"a field {error}") from error


def _float(reply: object) -> float:
    """A double (RESP3), or a number as text (RESP2)."""
    try:
        return float(reply if isinstance(reply, (int, float)) else wire.decoded(reply))
    except ValueError as error:
        raise wire.wrong(reply, "a number") from error
