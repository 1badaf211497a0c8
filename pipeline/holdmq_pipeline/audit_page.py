"""The page of an audit: figures, plots and the first rows of each table in one file that needs no network.

Plots are SVG, drawn by matplotlib without a display, so that the page can be mailed and printed. All text comes from
data and is escaped by the template (audit.html). What the page has of a table is bounded: `shown` rows, `MAX_BARS`
bars, some hundred points.
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import matplotlib as mpl
from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pyspark.sql import DataFrame

from holdmq_pipeline.figures import JobFigures

TEMPLATE = "audit.html"
MAX_BARS = 20
MAX_POINTS = 500
MAX_CELL = 120
MAX_LABEL = 40
TITLES = {
    "lost": "Lost",
    "duplicates": "Duplicates",
    "unexpected": "Unexpected",
    "inversions": "Out of order",
    "at_risk": "Sessions at risk",
    "silent": "Silent devices",
    "latency_by_topic": "Latency by topic (ms)",
    "latency_by_client": "Latency by client (ms)",
    "top_talkers": "Top talkers",
    "volume_published": "Messages published",
    "volume_delivered": "Messages delivered",
}
FAULTS = ("lost", "duplicates", "unexpected", "inversions")
# The same page for the same data; a "$" in a topic is no mathematics.
STYLE: Any = {
    "svg.hashsalt": "holdmq",
    "font.size": 9,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "text.parse_math": False,
}


@dataclass
class Table:
    """The first rows of a table, as text, and how many there are."""

    name: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    total: int

    @property
    def title(self) -> str:
        """For people."""
        return TITLES.get(self.name, self.name)

    @property
    def fault(self) -> bool:
        """Should there be no rows?"""
        return self.name in FAULTS


@dataclass
class Page:
    """What the page will show; filled table by table.

    Attributes:
        figures: of the job.
        shown: rows of each table.
        tables: so far.
        plots: so far: title and SVG.
    """

    figures: JobFigures
    shown: int = 50
    tables: list[Table] = field(default_factory=list)
    plots: list[tuple[str, Markup]] = field(default_factory=list)

    def add(self, name: str, frame: DataFrame) -> int:
        """Takes what it shows of a table; returns how many rows that has."""
        most = max(self.shown, MAX_POINTS)
        rows = frame.limit(most).collect()
        total = frame.count() if len(rows) == most else len(rows)
        texts = [[_text(value) for value in row] for row in rows[: self.shown]]
        self.tables.append(Table(name, frame.columns, texts, total))
        draw = PLOTS.get(name)
        if draw is not None and rows:
            self.plots.append((TITLES[name], _drawn(draw, [row.asDict() for row in rows])))
        return total


def write_page(page: Page, path: Path) -> None:
    """Writes the page."""
    environment = Environment(loader=FileSystemLoader(Path(__file__).parent), autoescape=True)
    faults = sum(table.total for table in page.tables if table.fault)
    text = environment.get_template(TEMPLATE).render(
        page=page, faults=faults, made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.3f}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    text = str(value)
    return text if len(text) <= MAX_CELL else text[: MAX_CELL - 1] + "…"


# ---- plots ----


def _drawn(draw: Any, rows: Sequence[dict[str, Any]]) -> Markup:
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(8, 3), layout="constrained")
        draw(figure.add_subplot(), rows)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None})
    svg = out.getvalue()
    return Markup(svg[svg.index("<svg") :])  # noqa: S704 - drawn here; matplotlib escapes the texts


def _bars(axes: Axes, rows: Sequence[dict[str, Any]], label: str, values: Sequence[str]) -> None:
    """Horizontal bars, the first row on top; several values beside each other."""
    chosen = rows[:MAX_BARS]
    height = 0.8 / len(values)
    for number, name in enumerate(values):
        places = [i + number * height for i in range(len(chosen))]
        axes.barh(places, [row[name] or 0 for row in chosen], height=height, label=name)
    axes.set_yticks(range(len(chosen)), [_text(row[label])[:MAX_LABEL] for row in chosen])
    axes.invert_yaxis()
    axes.legend()


def _volume(axes: Axes, rows: Sequence[dict[str, Any]]) -> None:
    begins = [row["begin"] for row in rows]
    axes.step(begins, [row["messages"] / max(row["seconds"], 1e-6) for row in rows], where="post")
    axes.set_ylabel("messages/s")
    axes.set_ylim(bottom=0)


PLOTS: dict[str, Any] = {
    "volume_published": _volume,
    "volume_delivered": _volume,
    "latency_by_topic": lambda axes, rows: _bars(axes, rows, "topic", ["p50", "p95", "p99"]),
    "latency_by_client": lambda axes, rows: _bars(axes, rows, "client", ["p50", "p95", "p99"]),
    "top_talkers": lambda axes, rows: _bars(axes, rows, "publisher", ["messages"]),
    "at_risk": lambda axes, rows: _bars(axes, rows, "client_id", ["used"]),
    "silent": lambda axes, rows: _bars(axes, rows, "publisher", ["silent_s"]),
}
