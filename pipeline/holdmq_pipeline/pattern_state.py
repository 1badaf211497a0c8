"""The interface between pattern_levels.py and its table of topics.

A row of the state has a group, a path and the rest of the topic. The next level of the rest is the row's child, in a
bucket. Buckets from 0 on are hashes of the level; a negative bucket means that the child is not an ordinary one.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

ENDED, DOLLAR, CONTROL = -1, -2, -3
CONTROL_CHARACTERS = r"[\x00-\x1f\x7f]"


class Bucket(NamedTuple):
    """Children of a path whose hashes fall together: how many different ones, with how many messages."""

    number: int
    different: int
    messages: int


class Asked(NamedTuple):
    """The children in a bucket with at least this weight (100 * messages)."""

    group: int
    path: str
    bucket: int
    least: int


class Hot(NamedTuple):
    """A child that has it."""

    group: int
    path: str
    level: str
    messages: int


class Way(NamedTuple):
    """The next group of the rows of a path: children stay, or become `plus` unless they are hot.

    Attributes:
        group: that they are in.
        path: so far.
        to: the group that they come to.
        concrete: all children stay.
        plus: represents those that do not.
        hot: the weight from which a child stays.
    """

    group: int
    path: str
    to: int
    concrete: bool
    plus: str
    hot: int


class Known(NamedTuple):
    """A child's weight; one that no row says has too little to stay."""

    group: int
    path: str
    level: str
    weight: int


class State(Protocol):
    """Topics at a level; begins with all of them in group 0, at the path ""."""

    def families(self) -> list[tuple[int, str, list[Bucket]]]:
        """The children of each group and path; called once a level, first."""

    def hot(self, asked: Sequence[Asked]) -> list[Hot]:
        """The hot children of buckets."""

    def keep_dollars(self, most: int) -> None:
        """Of the levels that begin with `$` only the most frequent are followed."""

    def advance(self, ways: Sequence[Way], known: Sequence[Known]) -> None:
        """To the next level; rows without a way end, and so do control characters where all children stay."""

    def close(self) -> None:
        """Releases its memory."""
