"""The state of learned patterns in the driver's memory: some millions of topics, without a shuffle (pattern_levels.py).

The rest of each topic is an Arrow array; everything else is numbers in numpy. A group and path is a family, a level its
number in the dictionary of this step. There is one bucket, and counts are exact. Memory: the rests of the topics twice,
and about 60 bytes per topic, times the number of groups of candidates. The caller bounds it.

Sums are doubles: exact up to 2**53 messages.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdmq_pipeline.pattern_state import (
    CONTROL,
    CONTROL_CHARACTERS,
    DOLLAR,
    ENDED,
    Asked,
    Bucket,
    Hot,
    Known,
    Way,
)

__all__ = ["ArrowState"]

Numbers = Any  # an array of numpy


class ArrowState:
    """Topics at a level, in memory.

    Args:
        topics: columns topic and messages; equal topics are added up.
    """

    def __init__(self, topics: pa.Table) -> None:
        self._depth = 0
        self._paths: list[tuple[int, str]] = [(0, "")]
        self._take(np.zeros(topics.num_rows, np.int64), topics.column("topic"), topics.column("messages"))

    def _take(self, family: Numbers, rest: Any, messages: Any) -> None:
        """The rows from now on, equal ones added up."""
        table = pa.table({"family": family, "rest": rest, "messages": messages})
        summed = table.group_by(["family", "rest"]).aggregate([("messages", "sum")])
        self._family = summed.column("family").to_numpy()
        self._rest = summed.column("rest").combine_chunks()
        self._messages = summed.column("messages_sum").to_numpy()

    def families(self) -> list[tuple[int, str, list[Bucket]]]:
        """The children of each group and path."""
        self._split()
        keys = self._family * (len(self._levels) + 1) + self._code + 1
        children, self._child = np.unique(keys, return_inverse=True)
        self._child_family, self._child_code = np.divmod(children, len(self._levels) + 1)
        self._child_code -= 1
        self._child_messages = _sums(self._child, self._messages, len(children))
        self._hot: dict[tuple[int, str, str], int] = {}
        found: dict[int, list[Bucket]] = defaultdict(list)
        kinds = self._buckets[self._child_code]
        for bucket in (ENDED, DOLLAR, CONTROL, 0):
            own = self._child_family[kinds == bucket]
            different = np.bincount(own, minlength=len(self._paths))
            messages = _sums(own, self._child_messages[kinds == bucket], len(self._paths))
            for family in np.flatnonzero(different).tolist():
                found[family].append(Bucket(bucket, int(different[family]), int(messages[family])))
        return [(*self._paths[family], buckets) for family, buckets in found.items()]

    def _split(self) -> None:
        """The next level of each row as a number (-1: none) and the levels after it."""
        split = pc.split_pattern(self._rest, "/", max_splits=1)
        pieces, counts = split.flatten(), pc.fill_null(pc.list_value_length(split), 0).to_numpy()
        firsts = np.cumsum(counts) - counts
        levels = pieces.take(pa.array(firsts, mask=counts < 1)).dictionary_encode()
        self._tail = pieces.take(pa.array(firsts + 1, mask=counts < 2))
        self._levels: list[str] = levels.dictionary.to_pylist()
        self._code = pc.fill_null(levels.indices, -1).to_numpy().astype(np.int64)
        buckets = np.where(pc.match_substring_regex(levels.dictionary, CONTROL_CHARACTERS), CONTROL, 0)
        if self._depth == 0:
            buckets[np.asarray(pc.starts_with(levels.dictionary, "$")) & (buckets != CONTROL)] = DOLLAR
        self._buckets = np.append(buckets, ENDED)  # of the code -1, too

    def hot(self, asked: Sequence[Asked]) -> list[Hot]:
        """The hot children of buckets."""
        least = np.full(len(self._paths), np.iinfo(np.int64).max)
        numbers = {path: number for number, path in enumerate(self._paths)}
        for one in asked:
            least[numbers[one.group, one.path]] = one.least
        usual = self._buckets[self._child_code] == 0
        found = np.flatnonzero(usual & (self._child_messages * 100 >= least[self._child_family])).tolist()
        hot = []
        for at in found:
            group, path = self._paths[self._child_family[at]]
            hot.append(Hot(group, path, self._levels[self._child_code[at]], int(self._child_messages[at])))
            self._hot[hot[-1][:3]] = at
        return hot

    def keep_dollars(self, most: int) -> None:
        """Of the levels that begin with `$` only the most frequent are followed."""
        dollars = np.flatnonzero(self._buckets[self._child_code] == DOLLAR).tolist()
        dollars.sort(key=lambda at: (-self._child_messages[at], self._levels[self._child_code[at]]))
        self._buckets[self._child_code[dollars[most:]]] = ENDED

    def advance(self, ways: Sequence[Way], known: Sequence[Known]) -> None:
        """To the next level."""
        by_family: dict[tuple[int, str], list[Way]] = defaultdict(list)
        for way in ways:
            by_family[way.group, way.path].append(way)
        ordered = [way for path in self._paths for way in by_family[path]]
        many = np.array([len(by_family[path]) for path in self._paths])
        row, way_of = _spread(self._family, many)
        bucket, code = self._buckets[self._code[row]], self._code[row]
        concrete = np.array([way.concrete for way in ordered], bool)[way_of]
        weight = np.full(len(self._child_messages), -1)
        for one in known:
            weight[self._hot[one.group, one.path, one.level]] = one.weight
        hot = np.array([way.hot for way in ordered], np.int64)[way_of]
        stays = concrete | (bucket == DOLLAR) | (weight[self._child[row]] >= hot)
        goes = (bucket != ENDED) & ~(concrete & (bucket == CONTROL))
        row, way_of, code = row[goes], way_of[goes], np.where(stays, code, -1)[goes]
        self._go(row, way_of, code, ordered)
        self._depth += 1

    def _go(self, row: Numbers, way_of: Numbers, code: Numbers, ways: Sequence[Way]) -> None:
        """These rows go these ways, by their level (code) or by `+` (-1)."""
        places, at = np.unique(way_of * (len(self._levels) + 1) + code + 1, return_inverse=True)
        numbers: dict[tuple[int, str], int] = {}
        family = np.empty(len(places), np.int64)
        for number, place in enumerate(places.tolist()):
            way, level = ways[place // (len(self._levels) + 1)], place % (len(self._levels) + 1) - 1
            token = way.plus if level < 0 else self._levels[level]
            path = token if self._depth == 0 else f"{way.path}/{token}"
            family[number] = numbers.setdefault((way.to, path), len(numbers))
        tail, messages = self._tail.take(pa.array(row)), self._messages[row]
        self._paths = list(numbers)
        self._take(family[at], tail, messages)

    def close(self) -> None:
        """There is nothing to release."""


def _sums(place: Numbers, messages: Numbers, count: int) -> Numbers:
    """The messages of each place."""
    return np.bincount(place, weights=messages, minlength=count).astype(np.int64)


def _spread(family: Numbers, many: Numbers) -> tuple[Numbers, Numbers]:
    """Each row once for each way of its family: the row's number, and the way's (numbered family by family)."""
    times = many[family]
    row = np.repeat(np.arange(len(family)), times)
    first = np.cumsum(times) - times
    within = np.arange(len(row)) - np.repeat(first, times)
    return row, (np.cumsum(many) - many)[family[row]] + within
