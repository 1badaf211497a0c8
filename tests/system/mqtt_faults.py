"""Which process is killed, stopped or restarted when: a schedule that follows from a seed, and what carries it out.

Each target has its own line of faults, which never overlap with themselves but with those of the others:

    server    ──kill──────pause─────────────rewrite────►
    bridge 0  ────pause────────kill───stop─────────────►
    bridge 1  ─kill────────────────pause───────────────►

The schedule is a pure function of seed and length.  What a fault meets is not: that is up to the machine's scheduler.
"""

import heapq
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

SERVER_KINDS = {"kill": 5, "pause": 5, "stop": 1, "rewrite": 2}  # with their weights
BRIDGE_KINDS = {"kill": 5, "pause": 5, "stop": 2}
LASTING = ("kill", "pause", "stop")  # and are taken back; other kinds are deeds
MEAN_GAP_S = 4.0
LONGEST_PAUSE_S = 5.0  # longer than the lease of a session and the patience of a client
LONGEST_DOWN_S = 1.5
RETRY_S = 0.05
LONGEST_ALONE_S = 0.6  # of a primary without its replica, before it is lost


class Target(Protocol):
    """A process that can be harmed."""

    def kill(self) -> object:
        """End it by SIGKILL."""

    def stop(self) -> object:
        """End it in order."""

    def start(self) -> object:
        """Start it again."""

    def pause(self) -> object:
        """SIGSTOP."""

    def resume(self) -> object:
        """SIGCONT."""


@dataclass(frozen=True, order=True)
class Fault:
    """Something is done to a target, and taken back `lasts_s` later."""

    at_s: float
    target: str
    kind: str
    lasts_s: float

    def __str__(self) -> str:
        return f"{self.at_s:7.2f} s  {self.kind:<7} {self.target:<8} for {self.lasts_s:.2f} s"


def schedule(seed: str, seconds: float, bridges: int) -> list[Fault]:
    """The faults of a server and its bridges in so many seconds, in the order of their times."""
    return schedule_of(seed, seconds, {"server": SERVER_KINDS, **kinds_of_bridges(bridges)})


def kinds_of_bridges(count: int) -> dict[str, dict[str, int]]:
    """What happens to so many bridges."""
    return {f"bridge {number}": BRIDGE_KINDS for number in range(count)}


def schedule_of(seed: str, seconds: float, targets: Mapping[str, Mapping[str, int]]) -> list[Fault]:
    """The faults of targets, each with its kinds and their weights, in the order of their times."""
    lines: list[list[Fault]] = []
    for target, kinds in targets.items():
        rng = random.Random(f"{seed}/{target}")
        line: list[Fault] = []
        at_s = rng.uniform(0.3, MEAN_GAP_S)
        while at_s < seconds:
            (kind,) = rng.choices(list(kinds), list(kinds.values()))
            # Most are short, some are long.
            lasts_s = rng.random() ** 2 * (LONGEST_PAUSE_S if kind == "pause" else LONGEST_DOWN_S)
            lasts_s = min(lasts_s, seconds - at_s) if kind in LASTING else 0.0
            line.append(Fault(round(at_s, 3), target, kind, round(lasts_s, 3)))
            at_s += lasts_s + 0.2 + rng.expovariate(1 / MEAN_GAP_S)
        lines.append(line)
    return list(heapq.merge(*lines))


def with_failover(faults: Sequence[Fault], seed: str, seconds: float) -> list[Fault]:
    """The same, and about the middle of them the primary is lost for good; it may come later, never in a fault."""
    rng = random.Random(f"{seed}/failover")
    at_s, alone_s = rng.uniform(0.3, 0.7) * seconds, rng.random() * LONGEST_ALONE_S
    return list(heapq.merge(faults, [Fault(round(at_s, 3), "server", "failover", round(alone_s, 3))]))


def carry_out(
    faults: Sequence[Fault],
    targets: dict[str, Target],
    deeds: Mapping[str, Callable[[Fault], None]],
    note: Callable[[str], None],
    stop: threading.Event,
) -> None:
    """Does what the schedule says, in the calling thread, until all is over and taken back or `stop` is set.

    Args:
        faults: the schedule.
        targets: what its targets are.
        deeds: what the kinds do that are not LASTING; all but "rewrite" only while all processes run.
        note: is told each step.
        stop: ends it early; every process runs then, too.
    """
    begun = time.monotonic()
    harmed: set[str] = set()
    steps: list[tuple[float, int, Fault, bool]] = []
    for number, fault in enumerate(faults):
        heapq.heappush(steps, (fault.at_s, number, fault, False))
    while steps:
        at_s, number, fault, ends = heapq.heappop(steps)
        if stop.is_set() and not ends:
            continue
        stop.wait(max(0.0, begun + at_s - time.monotonic()))
        target = targets[fault.target]
        needs_all = fault.kind not in (*LASTING, "rewrite")
        in_the_way = harmed if needs_all else harmed & {fault.target}
        if in_the_way and not ends:  # starting another process took long: one thing after the other
            heapq.heappush(steps, (time.monotonic() - begun + RETRY_S, number, fault, False))
            continue
        if ends:
            _take_back(fault, target)
            harmed.discard(fault.target)
            note(f"{fault.target} runs again")
            continue
        note(f"{fault.kind} {fault.target} for {fault.lasts_s} s")
        if fault.kind not in LASTING:
            deeds[fault.kind](fault)
            continue
        harmed.add(fault.target)
        {"kill": target.kill, "stop": target.stop, "pause": target.pause}[fault.kind]()
        heapq.heappush(steps, (time.monotonic() - begun + fault.lasts_s, number, fault, True))


def _take_back(fault: Fault, target: Target) -> None:
    if fault.kind == "pause":
        target.resume()
    else:
        target.start()
