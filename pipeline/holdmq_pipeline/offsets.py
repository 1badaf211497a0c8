"""The position of a reader in each shard, and the division of a range into tasks: arithmetic, no I/O.

An offset is the number of the next message to read; a range of a shard is [begin, end). Numbers are dense (1, 2, 3 ...
in each shard), so a range can be counted, divided and checked for loss without asking the server.

The form in Spark's checkpoint: {"v": 1, "store": "fleet", "next": {"0": 17, "1": 4}}.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdmq_pipeline.errors import DataLossError, OptionError, PipelineError

__all__ = ["EARLIEST", "LATEST", "Range", "ShardInfo", "admitted", "from_json", "lost", "plan", "resolve", "to_json"]

VERSION = 1
EARLIEST, LATEST = -2, -1
Offsets = dict[int, int]


@dataclass(frozen=True)
class ShardInfo:
    """A shard's first visible number and the one after the last, from HISTORY.INFO."""

    shard: int
    first: int
    end: int


@dataclass(frozen=True)
class Range:
    """Numbers begin .. end - 1 of a shard."""

    shard: int
    begin: int
    end: int

    def __len__(self) -> int:
        return max(self.end - self.begin, 0)


def to_json(store: str, offsets: Offsets) -> dict[str, Any]:
    """The text in a checkpoint."""
    return {"v": VERSION, "store": store, "next": {str(shard): offsets[shard] for shard in sorted(offsets)}}


def from_json(store: str, value: Mapping[str, Any]) -> Offsets:
    """Reads the text of `to_json`.

    Raises:
        PipelineError: another version, or the offsets of another store.
    """
    if value.get("v") != VERSION:
        raise PipelineError(f"the checkpoint's offset is {value!r}; expected version {VERSION}")
    if value.get("store") != store:
        raise PipelineError(f"the checkpoint is of store {value.get('store')!r}, the query reads {store!r}")
    return {int(shard): int(number) for shard, number in value["next"].items()}


def resolve(name: str, wanted: str | Mapping[int, int], shards: list[ShardInfo]) -> Offsets:
    """Offsets as an option names them, as numbers for every shard.

    Raises:
        OptionError: shards are missing, or there are no such.
    """
    if isinstance(wanted, str):
        return {info.shard: info.first if wanted == "earliest" else info.end for info in shards}
    known = {info.shard: info for info in shards}
    if set(wanted) != set(known):
        raise OptionError(f"option {name} has the shards {sorted(wanted)}; expected each of {sorted(known)}")
    named = {EARLIEST: lambda info: info.first, LATEST: lambda info: info.end}
    return {shard: named[number](known[shard]) if number in named else number for shard, number in wanted.items()}


def lost(begin: Offsets, shards: list[ShardInfo]) -> list[Range]:
    """Numbers that a reader from `begin` on cannot get any more, because retention removed them.

    Raises:
        DataLossError: the reader is ahead of a shard, so its numbers were given again.
    """
    gaps = []
    for info in shards:
        number = begin.get(info.shard, 1)
        if number > info.end:
            raise DataLossError(
                f"shard {info.shard}: to be read from number {number} on, but its last is {info.end - 1}: the store "
                "was made anew, or its server lost messages that were read before; begin with a new checkpoint"
            )
        if number < info.first:
            gaps.append(Range(info.shard, number, info.first))
    return gaps


def admitted(begin: Offsets, latest: Offsets, most: int | None) -> Offsets:
    """The end of the next batch: `latest`, or `most` numbers from `begin` on, shared by what each shard has left.

    A shard that has anything left gets at least one number, so none starves.
    """
    left = {shard: max(end - begin.get(shard, 1), 0) for shard, end in latest.items()}
    total = sum(left.values())
    if most is None or total <= most:
        return {shard: max(end, begin.get(shard, 1)) for shard, end in latest.items()}
    ends: Offsets = {}
    remaining = most
    # The smallest first: what it does not use up is shared by the others.
    for shard in sorted(left, key=lambda one: (left[one], one)):
        fair = max(remaining * left[shard] // total, 1) if left[shard] else 0
        share = min(left[shard], fair, max(remaining, 0))
        ends[shard] = begin.get(shard, 1) + share
        remaining -= share
        total -= left[shard]
    return ends


def plan(ranges: list[Range], most: int, least_tasks: int | None) -> list[Range]:
    """Cuts ranges into tasks of at most `most` numbers, and at least `least_tasks` if there are enough numbers."""
    total = sum(len(part) for part in ranges)
    if least_tasks and total:
        most = min(most, max(total // least_tasks, 1))
    tasks = []
    for part in ranges:
        pieces = -(-len(part) // most)
        for piece in range(pieces):  # of equal size, so that no task is a small remainder
            begin = part.begin + len(part) * piece // pieces
            tasks.append(Range(part.shard, begin, part.begin + len(part) * (piece + 1) // pieces))
    return tasks
