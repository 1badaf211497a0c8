"""Learns topic patterns from any number of topics, level by level, for several candidates at once.

It does the same as the learner in C (src/history/learner.h), for any number of topics. A level with more different
children than a threshold becomes `+`, and the subtrees below are merged. A child that has a certain share of its
level's messages stays concrete. A candidate is one choice of threshold and share.

The state is a table `group, path, rest, messages`: the number of messages to topics whose first levels are now `path`
(concrete levels and `+`) and whose further levels are `rest`, null if there are none. Rows with equal path and rest are
one row, so merging siblings makes the state smaller with each level:

    "", devices/1/temperature  1         devices, 1/temperature  1        devices/+10, temperature  3
    "", devices/2/temperature  2   -->   devices, 2/temperature  2   -->  devices/+10, pressure     1
    "", devices/2/pressure     1         devices, 2/pressure     1

A step counts the children of each path (their messages in buckets by hash, so that little is collected), decides,
searches the heavy buckets for hot children, and makes the next state. The decisions are made here. The table is one of
two:

    pattern_frames.py   a DataFrame: any number of topics, spread over Spark's tasks
    pattern_arrow.py    Arrow in the driver: some millions of topics, in a tenth of the time that shuffling them takes

Invariants:
    1. Candidates with the same decisions so far share their rows: `group` is a set of candidates. Each candidate has a
       path in exactly one group.
    2. This file holds decisions, never topics: at most `LIVE_FACTOR * max_patterns` paths of a candidate. A candidate
       that needs more has no set.
    3. Counts of messages are exact. So is the number of different children of a path, unless an estimate is requested,
       which is within about two percent.
    4. First levels that begin with `$` are never merged, and at most `MAX_DOLLARS` of them are followed. Levels with
       control characters, which no pattern can have, are never concrete. Both rules are those of the learner in C.
    5. Both tables give exactly the same sets.

Not O(1): one pass over the state for each level, and only over its different (path, rest).
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame

from holdmq.core import MAX_PATTERN_LEVELS, MAX_PATTERNS, PatternSet
from holdmq_pipeline.pattern_arrow import ArrowState
from holdmq_pipeline.pattern_frames import FrameState
from holdmq_pipeline.pattern_state import CONTROL, DOLLAR, ENDED, Asked, Bucket, Known, State, Way

LIVE_FACTOR = 4
MAX_BITS = 24
MIN_BITS = 4
MAX_DOLLARS = 16
MAX_LINE_BYTES = 65535
TAIL_PERMILLE = 1  # of all messages: less than that is not worth a '#' of its own
NEVER_HOT = 101


@dataclass(frozen=True, slots=True)
class Candidate:
    """How a pattern set is to be made.

    Attributes:
        max_children: a level with more different children becomes `+`, 0..100000.
        hot_percent: share of its level's messages that keeps a child concrete, 1..100; 101: never.
    """

    max_children: int
    hot_percent: int = 20

    def __post_init__(self) -> None:
        if not 0 <= self.max_children <= 100_000:
            raise ValueError(f"max_children is {self.max_children}; expected 0..100000")
        if not 1 <= self.hot_percent <= NEVER_HOT:
            raise ValueError(f"hot_percent is {self.hot_percent}; expected 1..{NEVER_HOT}")


DEFAULT_CANDIDATES = (
    Candidate(100),
    Candidate(25),
    Candidate(6),
    Candidate(1),
    Candidate(0),
    Candidate(100, 5),
    Candidate(25, 5),
)
"""The thresholds of the learner in C, and two that keep more children concrete."""


class _Outcome(NamedTuple):
    """Decides about the children of a path: all stay concrete, or those below this percentage become `+`."""

    concrete: bool
    hot_percent: int


class _Family(NamedTuple):
    """The children of a path of a group."""

    group: int
    path: str
    different: int
    controls: int
    messages: int
    ended: int
    controls_messages: int
    buckets: tuple[tuple[int, int], ...]


def learn_levels(
    topics: DataFrame | pa.Table,
    candidates: Sequence[Candidate] = DEFAULT_CANDIDATES,
    *,
    levels: int = 8,
    max_patterns: int = 256,
    exact: bool = True,
) -> list[PatternSet | None]:
    """The pattern set of each candidate, None for one that would have too many patterns.

    Args:
        topics: columns `topic` (string, valid topic names) and `messages` (long); equal topics are added up. As an
            Arrow table they are learned from here, as a DataFrame in Spark.
        candidates: how the sets are to be made.
        levels: how many levels are indexed, 1..16.
        max_patterns: of a set, 1..4096.
        exact: count different children exactly; else (in Spark) estimate them, which shuffles less where they are very
            many.

    Raises:
        ValueError: an argument is out of its range.
    """
    if not 1 <= levels <= MAX_PATTERN_LEVELS:
        raise ValueError(f"levels is {levels}; expected 1..{MAX_PATTERN_LEVELS}")
    if not 1 <= max_patterns <= MAX_PATTERNS:
        raise ValueError(f"max_patterns is {max_patterns}; expected 1..{MAX_PATTERNS}")
    if not candidates:
        raise ValueError("candidates is empty; expected at least one")
    state: State = ArrowState(topics) if isinstance(topics, pa.Table) else FrameState(topics, exact=exact)
    try:
        return _Learning(state, candidates, levels, max_patterns).run()
    finally:
        state.close()


class _Learning:
    """One run; what it knows are decisions and the lines of each candidate."""

    def __init__(self, state: State, candidates: Sequence[Candidate], levels: int, max_patterns: int) -> None:
        self._state = state
        self._candidates = candidates
        self._levels = levels
        self._max_patterns = max_patterns
        self._groups: list[frozenset[int]] = [frozenset(range(len(candidates)))]
        self._dropped: set[int] = set()
        self._lines: list[list[str]] = [[] for _ in candidates]
        self._total = 0

    def run(self) -> list[PatternSet | None]:
        for depth in range(self._levels + 1):
            families = [_family(*found) for found in self._state.families()]
            if not self._step(families, depth):
                break
        return [self._set(number) for number in range(len(self._candidates))]

    def _set(self, number: int) -> PatternSet | None:
        if number in self._dropped:
            return None
        head = f"holdmq-patterns 1 levels={self._levels}\n"
        return PatternSet(head + "".join(f"{line}\n" for line in self._lines[number]))

    # --- one level ---

    def _step(self, families: Sequence[_Family], depth: int) -> bool:
        """Writes the lines that end here and goes to the next level; False if there is none."""
        if depth == 0:
            self._total = sum(family.messages + family.ended for family in families)
        last = depth == self._levels
        decisions = {} if last else {family: self._decide(family) for family in families}
        for family in families:
            self._write(family, depth, everything_beyond=last)
        self._drop_those_with_too_many(decisions)
        if not any(family.messages for family in families) or last:
            return False
        hot = self._hot(decisions)
        if depth == 0:
            self._state.keep_dollars(MAX_DOLLARS)
        return self._advance(decisions, hot)

    def _decide(self, family: _Family) -> dict[_Outcome, frozenset[int]]:
        found: dict[_Outcome, set[int]] = defaultdict(set)
        for number in self._groups[family.group] - self._dropped:
            candidate = self._candidates[number]
            if family.different <= candidate.max_children:
                found[_Outcome(True, NEVER_HOT)].add(number)
            else:
                found[_Outcome(False, candidate.hot_percent if candidate.max_children else NEVER_HOT)].add(number)
        return {outcome: frozenset(numbers) for outcome, numbers in found.items()}

    def _write(self, family: _Family, depth: int, *, everything_beyond: bool) -> None:
        for number in self._groups[family.group] - self._dropped:
            concrete = family.different <= self._candidates[number].max_children
            beyond = family.messages if everything_beyond else family.controls_messages if concrete else 0
            lines = [family.path] if family.ended else []
            if depth == 0:
                lines.append("#")
            elif beyond and beyond * 1000 >= self._total * TAIL_PERMILLE:
                lines.append(f"{family.path}/#")
            self._lines[number] += [line for line in lines if len(line.encode()) <= MAX_LINE_BYTES]
            if len(self._lines[number]) > self._max_patterns:
                self._dropped.add(number)

    def _drop_those_with_too_many(self, decisions: dict[_Family, dict[_Outcome, frozenset[int]]]) -> None:
        paths: Counter[int] = Counter()
        for family, outcomes in decisions.items():
            for outcome, numbers in outcomes.items():
                paths.update(dict.fromkeys(numbers, family.different if outcome.concrete else 1))
        limit = LIVE_FACTOR * self._max_patterns
        self._dropped.update(number for number, count in paths.items() if count > limit)

    def _hot(self, decisions: dict[_Family, dict[_Outcome, frozenset[int]]]) -> dict[_Family, list[tuple[str, int]]]:
        """The children of paths that vary which have the least share that one of the candidates asks for."""
        asked = []
        for family, outcomes in decisions.items():
            shares = [o.hot_percent for o, n in outcomes.items() if not o.concrete and n - self._dropped]
            least = min(shares, default=NEVER_HOT) * family.messages
            asked += [
                Asked(family.group, family.path, bucket, least)
                for bucket, messages in family.buckets
                if least and messages * 100 >= least
            ]
        by_path = {(family.group, family.path): family for family in decisions}
        hot: dict[_Family, list[tuple[str, int]]] = defaultdict(list)
        for found in self._state.hot(asked) if asked else []:
            hot[by_path[found.group, found.path]].append((found.level, found.messages))
        return hot

    # --- the next level ---

    def _advance(
        self,
        decisions: dict[_Family, dict[_Outcome, frozenset[int]]],
        hot: dict[_Family, list[tuple[str, int]]],
    ) -> bool:
        ways = [
            Way(
                family.group,
                family.path,
                self._group(numbers - self._dropped),
                outcome.concrete,
                *self._plus(family, outcome, hot),
            )
            for family, outcomes in decisions.items()
            for outcome, numbers in outcomes.items()
            if family.messages and numbers - self._dropped
        ]
        known = [
            Known(family.group, family.path, level, 100 * messages)
            for family, children in hot.items()
            for level, messages in children
        ]
        if ways:
            self._state.advance(ways, known)
        return bool(ways)

    def _plus(self, family: _Family, outcome: _Outcome, hot: dict[_Family, list[tuple[str, int]]]) -> tuple[str, int]:
        """The `+` for what varies, with its bits, and the weight (100 * messages) from which a child stays concrete."""
        least = outcome.hot_percent * family.messages
        staying = sum(100 * messages >= least for _, messages in hot.get(family, ()))
        return f"+{bits_for(family.different + family.controls - staying)}", least

    def _group(self, numbers: frozenset[int]) -> int:
        if numbers not in self._groups:
            self._groups.append(numbers)
        return self._groups.index(numbers)


def bits_for(different: int) -> int:
    """Two bits more than numbering this many values needs: four hashes per value (4..24)."""
    return min(max(max(different, 0).bit_length() + 2, MIN_BITS), MAX_BITS)


def _family(group: int, path: str, buckets: Sequence[Bucket]) -> _Family:
    special = {bucket: (different, messages) for bucket, different, messages in buckets if bucket < 0}
    usual = [(bucket, different, messages) for bucket, different, messages in buckets if bucket >= 0]
    controls, controls_messages = special.get(CONTROL, (0, 0))
    return _Family(
        group=group,
        path=path,
        different=sum(different for _, different, _ in usual),
        controls=controls,
        messages=sum(messages for *_, messages in usual) + special.get(DOLLAR, (0, 0))[1] + controls_messages,
        ended=special.get(ENDED, (0, 0))[1],
        controls_messages=controls_messages,
        buckets=tuple((bucket, messages) for bucket, _, messages in usual),
    )
