"""Runs the cases on pairs of servers and takes the medians.

A round is the work of one side, done once on either server, one right after the other, so that both meet the same
noise.  The first server changes with each round.  The figure is CPU time of the server, not wall time: other processes
of the machine slow both servers down, and pipelines leave the server waiting.

Two servers of the same kind differ by a few per cent, depending on the addresses of their memory.  So several pairs are
started one after the other, and the ratio is the median over all rounds of all of them.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median, quantiles
from typing import Any

from bench.cases import Case, Side
from bench.pair import Bench, running
from bench.wire import packed


@dataclass(frozen=True)
class Plan:
    """How much is measured.

    Attributes:
        sessions: sessions, channels or keys.
        pairs: pairs of servers.
        rounds: rounds of each case on each pair.
        aof: whether the servers keep an append-only file.
    """

    sessions: int
    pairs: int
    rounds: int
    aof: bool = False


@dataclass(frozen=True)
class Row:
    """A row of the table; times in microseconds of CPU for one message."""

    what: str
    baseline: str
    baseline_us: float
    ours_us: float
    ratio: float
    quartiles: tuple[float, float]
    to_reach: str
    reached: bool | None

    def as_json(self) -> dict[str, Any]:
        """For the file."""
        return asdict(self)


def measure(cases: Sequence[Case], plan: Plan, tell: Callable[[str], None]) -> tuple[list[Row], dict[str, Any]]:
    """Measure the cases.

    Args:
        cases: the rows.
        plan: how much.
        tell: called with a line of progress now and then.

    Returns:
        The rows, and what ran (see Bench.facts).
    """
    times: dict[str, list[tuple[float, float]]] = {case.name: [] for case in cases}
    facts: dict[str, Any] = {}
    for number in range(plan.pairs):
        with running(module=False, aof=plan.aof) as stock, running(module=True, aof=plan.aof) as ours:
            facts = ours.facts()
            for case in cases:
                tell(f"servers {number + 1} of {plan.pairs}: {case.name}")
                times[case.name] += _rounds(case, stock, ours, max(1, round(plan.rounds * case.often)))
    return [_row(case, times[case.name]) for case in cases], facts


def _rounds(case: Case, stock: Bench, ours: Bench, rounds: int) -> list[tuple[float, float]]:
    """CPU times of baseline and candidate, in microseconds for one message."""
    sides = list(zip((stock, ours), case.sides(), strict=True))
    for server, side in sides:
        _prepare(server, side)
    times: list[tuple[float, float]] = []
    for number in range(rounds):
        order = (0, 1) if number % 2 == 0 else (1, 0)
        used = {index: _round(*sides[index]) / case.messages for index in order}
        times.append((used[0], used[1]))
    for server, side in sides:
        _finish(server, side)
    return times


def _prepare(server: Bench, side: Side) -> None:
    server.load.run(side.once)
    if side.channels:
        server.listener.run(packed([("SUBSCRIBE", *side.channels)]))


def _finish(server: Bench, side: Side) -> None:
    if side.channels:
        server.listener.run(packed([("UNSUBSCRIBE", *side.channels)]))


def _round(server: Bench, side: Side) -> float:
    server.load.run(side.before)
    server.listener.collect()
    heard = 0
    begin = server.cpu_us()
    for pipeline in side.work:
        server.load.run([pipeline])
        if side.channels:
            heard += server.listener.collect()
    used = server.cpu_us() - begin
    if heard < side.heard_bytes:
        raise RuntimeError(f"the subscriber got {heard} bytes: {side.heard_bytes} expected")
    keys = server.admin.dbsize()
    if keys != side.keys:
        raise RuntimeError(f"the database holds {keys} keys after a round: {side.keys} expected")
    return used


def _row(case: Case, times: Sequence[tuple[float, float]]) -> Row:
    cheaper = case.goal == "cheaper"
    ratios = [base / ours if cheaper else ours / base for base, ours in times]
    ratio = median(ratios)
    low, _, high = quantiles(ratios, n=4) if len(ratios) > 1 else (ratio, ratio, ratio)
    if case.goal is None:
        to_reach, reached = "-", None
    elif cheaper:
        to_reach, reached = f"at least {case.limit:g}", ratio >= case.limit
    else:
        to_reach, reached = f"at most {case.limit:g}", ratio <= case.limit
    return Row(
        what=case.name,
        baseline=case.against,
        baseline_us=median(base for base, _ in times),
        ours_us=median(ours for _, ours in times),
        ratio=ratio,
        quartiles=(low, high),
        to_reach=to_reach,
        reached=reached,
    )
