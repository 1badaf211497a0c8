"""The page of an audit: figures, plots and the first rows of each table, in one file that needs no network.

Plots are SVG, drawn by matplotlib without a display, so that the page can be mailed and printed. Their colours are
those of the page, light or dark: matplotlib draws in `INKS`, which the style sheet replaces. All text comes from data
and is escaped by the template (audit.html). The page is bounded: `shown` rows of each table, `MAX_BARS` bars, some
hundred points.
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import matplotlib as mpl
from cycler import cycler
from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup
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
NUMBERS = {"int", "bigint", "double", "float", "smallint", "tinyint"}
FAULTS = ("lost", "duplicates", "unexpected", "inversions")
TEXT_INK, LINE_INK = "#010101", "#020202"
INKS = {
    TEXT_INK: "var(--soft)",
    LINE_INK: "var(--line)",
    "#030303": "var(--series-1)",
    "#040404": "var(--series-2)",
    "#050505": "var(--series-3)",
}
# The same page for the same data; text that can be searched; a "$" in a topic is not mathematics.
STYLE: Any = {
    "svg.hashsalt": "holdmq",
    "svg.fonttype": "none",
    "font.size": 9,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": LINE_INK,
    "axes.labelcolor": TEXT_INK,
    "axes.prop_cycle": cycler(color=list(INKS)[2:]),
    "date.converter": "concise",
    "grid.color": LINE_INK,
    "legend.frameon": False,
    "legend.labelcolor": TEXT_INK,
    "text.color": TEXT_INK,
    "text.parse_math": False,
    "timezone": "UTC",
    "xtick.color": LINE_INK,
    "xtick.labelcolor": TEXT_INK,
    "ytick.color": LINE_INK,
    "ytick.labelcolor": TEXT_INK,
}
WIDTH, BAR_HEIGHT, AROUND_BARS = 8.0, 0.18, 0.7  # inches
LEAST_HEIGHT, VOLUME_HEIGHT = 1.3, 2.4


@dataclass
class Table:
    """The first rows of a table, as text, and how many there are."""

    name: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    total: int
    numbers: frozenset[int] = frozenset()
    """Columns of numbers, by their place."""

    @property
    def title(self) -> str:
        """For people."""
        return TITLES.get(self.name, self.name)

    @property
    def fault(self) -> bool:
        """Whether a row is a fault."""
        return self.name in FAULTS

    @property
    def finding(self) -> bool:
        """Whether each row deserves a look."""
        return self.fault or self.name in {"at_risk", "silent"}


@dataclass
class Page:
    """The contents of the page, filled table by table.

    Attributes:
        figures: of the job.
        shown: rows of each table.
        tables: so far.
        plots: so far: SVG by the name of the table.
    """

    figures: JobFigures
    shown: int = 50
    tables: list[Table] = field(default_factory=list)
    plots: dict[str, Markup] = field(default_factory=dict)

    @property
    def absent(self) -> list[str]:
        """The titles of the tables that are missing."""
        there = {table.name for table in self.tables}
        return [title for name, title in TITLES.items() if name not in there]

    def add(self, name: str, frame: DataFrame) -> int:
        """Takes the rows of a table that it shows; returns the number of all its rows."""
        most = max(self.shown, MAX_POINTS)
        rows = frame.limit(most).collect()
        total = frame.count() if len(rows) == most else len(rows)
        texts = [[_text(value) for value in row] for row in rows[: self.shown]]
        numbers = [at for at, (_column, kind) in enumerate(frame.dtypes) if kind in NUMBERS]
        self.tables.append(Table(name, frame.columns, texts, total, frozenset(numbers)))
        draw = PLOTS.get(name)
        if draw is not None and rows:
            self.plots[name] = _drawn(draw, [row.asDict() for row in rows])
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
        figure = Figure(figsize=(WIDTH, VOLUME_HEIGHT), layout="constrained")
        draw(figure, rows)
        out = io.StringIO()
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(out, format="svg", transparent=True, metadata=nothing)
    svg = out.getvalue()
    for ink, colour in INKS.items():
        svg = svg.replace(f": {ink}", f": {colour}")
    return Markup(svg[svg.index("<svg") :])  # noqa: S704 - drawn here; matplotlib escapes the texts


def _bars(figure: Figure, rows: Sequence[dict[str, Any]], label: str, values: Sequence[str]) -> None:
    """Horizontal bars, the first row on top; several values beside each other."""
    chosen = rows[:MAX_BARS]
    bars = len(chosen) * (1 + 0.5 * (len(values) - 1))
    figure.set_size_inches(WIDTH, max(AROUND_BARS + BAR_HEIGHT * bars, LEAST_HEIGHT))
    axes = figure.add_subplot()
    height = 0.8 / len(values)
    for number, name in enumerate(values):
        places = [i + number * height for i in range(len(chosen))]
        axes.barh(places, [row[name] or 0 for row in chosen], height=height, label=name)
    middles = [i + 0.4 * (len(values) - 1) / len(values) for i in range(len(chosen))]
    axes.set_yticks(middles, [_text(row[label])[:MAX_LABEL] for row in chosen])
    axes.set_ylim(len(chosen) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    figure.legend(loc="outside upper right", ncols=len(values))


def _volume(figure: Figure, rows: Sequence[dict[str, Any]]) -> None:
    axes = figure.add_subplot()
    begins = [row["begin"] for row in rows]
    rates = [row["messages"] / max(row["seconds"], 1e-6) for row in rows]
    axes.fill_between(begins, rates, step="post", alpha=0.2, linewidth=0)
    axes.step(begins, rates, where="post")
    axes.margins(x=0)
    axes.set_ylabel("messages/s")
    axes.set_ylim(bottom=0)


PLOTS: dict[str, Any] = {
    "volume_published": _volume,
    "volume_delivered": _volume,
    "latency_by_topic": lambda figure, rows: _bars(figure, rows, "topic", ["p50", "p95", "p99"]),
    "latency_by_client": lambda figure, rows: _bars(figure, rows, "client", ["p50", "p95", "p99"]),
    "top_talkers": lambda figure, rows: _bars(figure, rows, "publisher", ["messages"]),
    "at_risk": lambda figure, rows: _bars(figure, rows, "client_id", ["used"]),
    "silent": lambda figure, rows: _bars(figure, rows, "publisher", ["silent_s"]),
}
