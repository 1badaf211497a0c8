"""The wheel of deadlines, turned by hand."""

import asyncio
import itertools
import time
from collections.abc import Sequence

from holdmq_bridge.process.wheel import CHECKS_AT_ONCE, CHECKS_S, TICK_S, Wheel


class Watched:
    """Notes when it was looked at; wants to be looked at again after `every` seconds, if not 0."""

    def __init__(self, every: float = 0.0) -> None:
        self.due = 0
        self.looks: list[float] = []
        self._every = every

    def check(self, now: float) -> float:
        self.looks.append(now)
        return now + self._every if self._every else 0.0


def turn(wheel: Wheel, until: float) -> None:
    """Tick by tick."""
    for tick in range(int(until / TICK_S) + 1):
        wheel.turn(tick * TICK_S)


def test_anyone_who_is_due_is_looked_at_once_and_not_too_early() -> None:
    wheel, watched = Wheel(), Watched()
    wheel.at(watched, 3.1)
    turn(wheel, 10.0)
    (looked_at,) = watched.looks
    assert 3.1 <= looked_at <= 3.1 + 2 * TICK_S
    assert watched.due == 0


def test_anyone_who_asks_for_another_look_gets_it() -> None:
    wheel, watched = Wheel(), Watched(every=1.0)
    wheel.at(watched, 1.0)
    turn(wheel, 10.0)
    assert 7 <= len(watched.looks) <= 10
    pauses = [after - before for before, after in zip(watched.looks, watched.looks[1:], strict=False)]
    assert min(pauses) >= 1.0


def test_the_nearer_deadline_counts_and_a_later_one_moves_nothing() -> None:
    wheel, watched = Wheel(), Watched()
    wheel.at(watched, 100.0)
    wheel.at(watched, 2.0)
    wheel.at(watched, 50.0)
    turn(wheel, 10.0)
    assert len(watched.looks) == 1


def test_anyone_who_is_forgotten_is_not_looked_at_and_not_kept() -> None:
    wheel, watched = Wheel(), Watched()
    wheel.at(watched, 2.0)
    wheel.forget(watched)
    turn(wheel, 10.0)
    assert watched.looks == []


def test_after_a_long_halt_everything_due_is_looked_at_at_once() -> None:
    wheel, some = Wheel(), [Watched() for _ in range(5)]
    for number, watched in enumerate(some):
        wheel.at(watched, number * 7.0)
    wheel.turn(1000.0)
    assert [watched.looks for watched in some] == [[1000.0]] * 5


async def most_in_a_turn(many: Sequence[Watched]) -> int:
    """Lets all of these be due at once; returns how many were checked between two turns of the loop, at most."""
    wheel, loop = Wheel(), asyncio.get_running_loop()
    wheel.start(loop)
    for watched in many:
        wheel.at(watched, loop.time())
    looked_at = [0]
    async with asyncio.timeout(10):
        while looked_at[-1] < len(many):
            await asyncio.sleep(0)
            looked_at.append(sum(map(bool, (watched.looks for watched in many))))
    wheel.stop()
    return max(after - before for before, after in itertools.pairwise(looked_at))


async def test_many_that_are_due_at_once_leave_the_loop_its_turn() -> None:
    many = [Watched() for _ in range(10 * CHECKS_AT_ONCE)]
    assert await most_in_a_turn(many) <= CHECKS_AT_ONCE


async def test_checks_that_take_long_leave_the_loop_its_turn_sooner() -> None:
    class Slow(Watched):
        def check(self, now: float) -> float:
            ends_at = time.monotonic() + CHECKS_S / 4
            while time.monotonic() < ends_at:
                pass
            return super().check(now)

    many = [Slow() for _ in range(CHECKS_AT_ONCE)]
    assert await most_in_a_turn(many) <= 4
