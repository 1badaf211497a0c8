"""Every reader of history gets everything, whatever happens to servers and clocks: the short form, and its books.

`make history-storm` is the long one.  The seeds are fixed, so that a test that fails is one that began to; another one:
HOLDMQ_STORM_SEED=7.  What a kill meets is up to the machine's scheduler in any case.
"""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.module.history_support import Entry
from tests.support import ServerKind
from tests.system.history_books import Reader, There, check_reader, check_topics
from tests.system.history_consumers import Follower, Group
from tests.system.history_storm import storm

STEPS = 100
SEED = "HOLDMQ_STORM_SEED"


@pytest.mark.timeout(180)  # it waits for replicas, of which each full synchronization takes a second
def test_history_is_whole_after_kills_failovers_clock_steps_and_new_generations(
    server_kind: ServerKind, tmp_path: Path
) -> None:
    seed = os.environ.get(SEED, "42")
    lines: list[str] = []
    try:
        storm(seed, tmp_path, server_kind, lines.append, lambda done: done < STEPS)
    finally:
        print("\n".join([f"seed {seed}, {STEPS} steps", *lines]))
    for fault in ("kill", "fail over", "clock", "generation", "trim"):
        assert any(line.startswith(fault) for line in lines), f"no {fault} in this storm: another seed is needed"


# ---- the books find what is wrong ------------------------------------------------------------------------------------


def entries(*numbers: int, losses: int = 0) -> list[Entry]:
    """Messages of one topic in shard 0: message n has the sequence number n + 1."""
    return [Entry(0, number + 1, 1000 + number, b"d/1/t %d %d" % (number, losses)) for number in numbers]


def there(*found: Entry) -> There:
    """What is there."""
    return {(entry.shard, entry.sequence): entry for entry in found}


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (entries(0, 1, 3), "numbers have a hole"),
        (entries(0, 1), "messages of d/1/t"),
        ([*entries(0, 1), Entry(0, 3, 1001, b"d/1/t 2 0")], "ids do not rise"),
        ([*entries(0, 1), Entry(0, 3, 1002, b"d/1/t 1 0")], "messages of d/1/t"),
    ],
)
def test_the_books_find_what_is_not_as_it_was_written(found: list[Entry], says: str) -> None:
    check_topics(there(*entries(0, 1, 2)), {"d/1/t": 3})
    with pytest.raises(AssertionError, match=says):
        check_topics(there(*found), {"d/1/t": 3})


@pytest.mark.parametrize(
    ("seen", "missed", "says"),
    [
        (entries(2, 3), 1, "2 did not come, 1 are said to be missed"),
        (entries(1, 2, 3), 2, "1 did not come, 2 are said to be missed"),
        (entries(2), 2, "never came"),
        (entries(2, 3, 3), 2, "twice, or out of order"),
        (entries(3, 2), 2, "twice, or out of order"),
        ([*entries(2), *entries(3, losses=1)], 2, "never came"),
    ],
)
def test_the_books_find_what_a_reader_was_not_given(seen: list[Entry], missed: int, says: str) -> None:
    found = there(*entries(0, 1, 2, 3))
    check_reader(Reader("#", None, 2, [*entries(3, losses=1), *entries(2, 3)]), found, [2])
    with pytest.raises(AssertionError, match=says):
        check_reader(Reader("#", None, missed, seen), found, [2])


def never(_topic: str, _number: int) -> bool:
    """Nothing was trimmed."""
    return False


@pytest.mark.parametrize(("numbers", "says"), [((0, 2), "did not come"), ((0, 1, 1), "came again"), ((1,), "not come")])
def test_the_books_find_what_a_follower_should_not_have_been_given(numbers: tuple[int, ...], says: str) -> None:
    def follow(is_gone: Callable[[str, int], bool], *given: int) -> Follower:
        follower = Follower("{f}", "d/+/t", True, is_gone)
        for number in given:
            follower.note("d/1/t", number)
        return follower

    with pytest.raises(AssertionError, match=says):
        follow(never, *numbers)
    follow(lambda _, number: number < 5, 5, 6)
    again = follow(never, 0, 1, 2)
    again.primary_was_lost()
    again.note("d/1/t", 1)
    with pytest.raises(AssertionError, match="came again"):
        again.note("d/1/t", 1)


def test_the_books_find_what_a_group_acknowledges_twice() -> None:
    group = Group("d/+/t", never)
    group.note("d/1/t", 0)
    group.primary_was_lost()
    group.note("d/1/t", 0)
    with pytest.raises(AssertionError, match="was acknowledged before"):
        group.note("d/1/t", 0)
