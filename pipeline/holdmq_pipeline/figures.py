"""The results of a job as numbers, and its progress.

Every job returns a `JobFigures`, which the command line prints. `Progress` shows a line for each step on a terminal and
nothing elsewhere, so that a job in a scheduler writes no control characters into its log.
"""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars


@dataclass
class JobFigures:
    """The results of a job.

    Attributes:
        job: its name, as in `holdmq pipeline <job>`.
        rows: messages (or other rows) that it processed.
        bytes: of payloads, or of files where it wrote files.
        seconds: how long it took.
        counts: its other counts by name: skipped, missed, files, commits ...
    """

    job: str
    rows: int = 0
    bytes: int = 0
    seconds: float = 0.0
    counts: dict[str, int | float | str] = field(default_factory=dict)

    @property
    def rows_per_second(self) -> float:
        """0 if no time passed."""
        return self.rows / self.seconds if self.seconds > 0 else 0.0

    def as_dict(self) -> dict[str, Any]:
        """All figures under one name each, for JSON."""
        return {
            "job": self.job,
            "rows": self.rows,
            "bytes": self.bytes,
            "seconds": round(self.seconds, 3),
            "rows_per_second": round(self.rows_per_second),
            **self.counts,
        }

    def __str__(self) -> str:
        further = "".join(f", {name.replace('_', ' ')} {value}" for name, value in self.counts.items())
        return (
            f"{self.job}: {self.rows:,} rows, {self.bytes:,} bytes in {self.seconds:.1f} s, "
            f"{self.rows_per_second:,.0f} rows/s{further}"
        )


@contextmanager
def measured(job: str) -> Iterator[JobFigures]:
    """Figures whose `seconds` are how long the block took, also if it failed.

    Example:
        >>> with measured("learn") as figures:
        ...     figures.rows += 3
        >>> figures.rows, figures.seconds > 0
        (3, True)
    """
    figures = JobFigures(job)
    begin = time.perf_counter()
    try:
        yield figures
    finally:
        figures.seconds = time.perf_counter() - begin


class Progress:
    """Shows the progress of a job: a bar if the total is known, else a count.

    Args:
        shown: None shows it if standard error is a terminal.

    Example:
        >>> with Progress(shown=False) as progress:
        ...     step = progress.step("reading", total=100)
        ...     progress.advance(step, 40)
    """

    def __init__(self, shown: bool | None = None) -> None:
        visible = sys.stderr.isatty() if shown is None else shown
        self._bars = Bars(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            disable=not visible,
        )

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._bars.stop()

    def step(self, description: str, total: int | None = None) -> TaskID:
        """Begins a step; `total` in the unit that `advance` counts in."""
        return self._bars.add_task(description, total=total)

    def advance(self, step: TaskID, by: int = 1) -> None:
        """Adds to the number done."""
        self._bars.advance(step, by)

    def at(self, step: TaskID, done: int, total: int | None = None) -> None:
        """Sets the number done, and the total."""
        self._bars.update(step, completed=done, total=total)
