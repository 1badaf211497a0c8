"""Runs the cases of the pipeline's benchmark and keeps their figures."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import click


@dataclass
class Figure:
    """A line of the table.

    Attributes:
        case: which part.
        what: was measured.
        rows: of each run.
        rate: rows a second, the median.
        against: what it is compared with; empty: nothing.
        ratio: how many times faster; for the layout: rows decoded for each that matches.
        wanted: what is to be reached; None: nothing is claimed.
    """

    case: str
    what: str
    rows: int
    rate: float
    against: str = ""
    ratio: float | None = None
    wanted: float | None = None


class Cases:
    """Runs the cases and keeps the figures."""

    def __init__(self, rows: int, write_rows: int, baseline_rows: int, rounds: int) -> None:
        self.rows = rows
        self.write_rows = write_rows
        self.baseline_rows = baseline_rows
        self.rounds = rounds
        self.figures: list[Figure] = []

    def rate(
        self, case: str, what: str, rows: int, do: Callable[[], object], before: Callable[[], object] | None = None
    ) -> float:
        """Does it so many times; the median rate. What comes before is not measured."""
        seconds = []
        for _round in range(self.rounds):
            if before is not None:
                before()
            begin = time.perf_counter()
            do()
            seconds.append(time.perf_counter() - begin)
        rate = rows / statistics.median(seconds)
        self.figures.append(Figure(case, what, rows, rate))
        click.echo(f"{case:8} {what:58} {rate:12,.0f} rows/s", err=True)
        return rate

    def once(self, case: str, what: str, rows: int, do: Callable[[], object]) -> float:
        """The same, measured once: a whole job."""
        rounds, self.rounds = self.rounds, 1
        try:
            return self.rate(case, what, rows, do)
        finally:
            self.rounds = rounds

    def compare(self, against: str, ratio: float, wanted: float | None) -> None:
        """Says of the last figure how it stands beside another."""
        last = self.figures[-1]
        last.against, last.ratio, last.wanted = against, ratio, wanted
