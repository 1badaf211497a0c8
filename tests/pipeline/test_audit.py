"""An audit finds exactly what was put in: losses, duplicates, inversions, strangers, each of them and no other."""

import random
import re
import shutil
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest
from playwright.sync_api import Page as PageOfBrowser
from playwright.sync_api import sync_playwright

from holdmq_pipeline import audit_tables as tables
from holdmq_pipeline.audit_page import Page, Table, write_page
from holdmq_pipeline.figures import JobFigures
from holdmq_pipeline.jobs.audit import AuditOptions, AuditResult, Evidence, audit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BROWSERS = ("chromium-headless-shell", "chromium", "google-chrome")
VIEWS: tuple[tuple[Literal["light", "dark"], int], ...] = (("light", 1100), ("dark", 1100), ("dark", 360))
DEVICES, EACH = 20, 50
BEGIN_MS = 1_700_000_000_000
STEP_MS = 100
PUBLISHED = "message string, publisher string, topic string, number long, ms long, bytes long"
DELIVERED = "message string, client string, position long, ms long"


class World:
    """What happened, as plain Python lists; two clients get everything, one gets what device-3 sends."""

    def __init__(self) -> None:
        random.seed(7)
        self.published: list[tuple[Any, ...]] = []
        for number in range(EACH):
            for device in range(DEVICES):
                at = BEGIN_MS + STEP_MS * (number * DEVICES + device)
                name = f"device-{device}"
                self.published.append((f"{name}/{number}", name, f"devices/{device}/t", number, at, 10))
        self.stored = [(message[0], hash_of(message[2]), i) for i, message in enumerate(self.published)]
        self.delivered: list[tuple[Any, ...]] = []
        self.acknowledged: list[tuple[str, str]] = []
        for client, topic in (("all", None), ("also all", None), ("one", "devices/3/t")):
            got = [message for message in self.published if topic in (None, message[2])]
            self.delivered += [(m[0], client, i, m[4] + (20 if i % 100 else 500)) for i, m in enumerate(got)]
            self.acknowledged += [(m[0], client) for m in got]

    def evidence(self, spark: "SparkSession", **further: Any) -> Evidence:
        filters = [
            ("all", "devices/+/t"),
            ("also all", "devices/#"),
            ("one", "devices/3/t"),
            ("none", "$share/g/devices/#"),
        ]
        return Evidence(
            published=timed(spark.createDataFrame(self.published, PUBLISHED)),
            stored=spark.createDataFrame(self.stored, "message string, shard int, offset long"),
            delivered=timed(spark.createDataFrame(self.delivered, DELIVERED)),
            acknowledged=spark.createDataFrame(self.acknowledged, "message string, client string"),
            subscriptions=spark.createDataFrame(filters, "client string, filter string"),
            **further,
        )


def hash_of(topic: str) -> int:
    return sum(topic.encode()) % 3


def timed(frame: "DataFrame") -> "DataFrame":
    return frame.selectExpr("*", "timestamp_millis(ms) as time").drop("ms")


def rows(frame: "DataFrame", *columns: str) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row) for row in frame.select(*columns).collect())


class Reader(HTMLParser):
    """What a reader of the page sees: numbers of the summary, titles, plots; and whether each tag is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.numbers: dict[str, str] = {}
        self.plots = 0
        self.open: list[str] = []
        self.text = ""
        self._name: str | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag != "meta":
            self.open.append(tag)
        self.plots += tag == "svg"
        self._name = dict(attrs).get("data-name")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        self._name = None

    def handle_data(self, data: str) -> None:
        self.text += data
        if self._name:
            self.numbers[self._name] = data


def check_in_browser(page: Path) -> None:
    """Chromium shows the whole page, light and dark, wide and narrow, without an error and without asking anybody."""
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    assert program is not None, f"none of {', '.join(BROWSERS)} was found: make build/chromium.stamp"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        backgrounds = set()
        for scheme, width in VIEWS:
            tab = browser.new_page(color_scheme=scheme, viewport={"width": width, "height": 900})
            said: list[str] = []
            asked: list[str] = []
            listen(tab, said, asked)
            tab.goto(page.as_uri())
            assert (said, asked) == ([], [page.as_uri()])
            assert "faults were found" in tab.locator("#verdict").inner_text()
            assert tab.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
            check_plots_and_tables(tab, scheme)
            backgrounds.add(tab.evaluate("getComputedStyle(document.body).backgroundColor"))
        browser.close()
    assert len(backgrounds) == 2


def listen(tab: PageOfBrowser, said: list[str], asked: list[str]) -> None:
    """Notes errors and messages of the page, and what it asks for."""
    tab.on("console", lambda message: said.append(message.text))
    tab.on("pageerror", lambda error: said.append(str(error)))
    tab.on("request", lambda request: asked.append(request.url))


def check_plots_and_tables(tab: PageOfBrowser, scheme: str) -> None:
    """Each plot has a size and ink that the background is not; tables open when they are asked for."""
    plots = tab.locator("figure svg")
    assert plots.count() >= 4
    for plot in plots.all():
        box = plot.bounding_box()
        assert box is not None
        assert box["width"] > 250
        assert box["height"] > 40
        ink = plot.locator("text").first.evaluate("text => getComputedStyle(text).fill")
        brightness = sum(map(int, re.findall(r"\d+", ink)[:3])) / 3
        assert brightness > 128 if scheme == "dark" else brightness < 128, ink
    assert tab.locator("#lost table").is_visible()
    talkers = tab.locator("#top_talkers table")
    assert not talkers.is_visible()
    tab.locator("#top_talkers summary").click()
    assert talkers.is_visible()
    assert talkers.locator("tbody tr").count() == 5


def test_a_finding_of_any_kind_is_a_fault() -> None:
    assert AuditResult(JobFigures("audit", counts={"lost": 0, "silent": 3}), {}).clean
    for name in ("lost", "duplicates", "unexpected", "inversions"):
        assert not AuditResult(JobFigures("audit", counts={name: 1}), {}).clean


def test_an_audit_finds_what_was_put_in_and_nothing_else(spark: "SparkSession", tmp_path: Path) -> None:
    world = World()
    chosen = random.sample(range(DEVICES * EACH - DEVICES), 30)
    message = [m[0] for m in world.published]
    world.stored = [row for i, row in enumerate(world.stored) if i not in chosen[:4]]
    world.stored += [(message[i], 0, 10_000 + i) for i in chosen[4:7]]
    world.stored.append(("stranger", 0, 20_000))
    delivered = [row for row in world.delivered if (row[1], row[0]) not in {("all", message[i]) for i in chosen[7:12]}]
    delivered += [(message[i], "also all", 50_000 + i, BEGIN_MS + 10**8) for i in chosen[12:18]]
    delivered.append((message[DEVICES + 4], "one", 60_000, BEGIN_MS + 10**8))  # of a device that it has no filter for
    late = {message[i] for i in chosen[18:21]}  # each changes its place with the next one of its device
    world.delivered = [swapped(row, late) for row in delivered]
    silenced = {("all", message[i]) for i in chosen[21:30]}
    world.acknowledged = [row for row in world.acknowledged if (row[1], row[0]) not in silenced]

    sessions = spark.createDataFrame(
        [("full", 9000, -1), ("half", 5000, -1), ("ending", 1, 1000)], "client_id string, messages long, ttl_ms long"
    )
    result = audit(world.evidence(spark, sessions=sessions), tmp_path, options=AuditOptions(shown=5))
    found = result.tables
    acknowledged = {("acknowledged", m, c) for c, m in silenced}
    stray = {("acknowledged", message[DEVICES + 4], "one")}
    missing = {("stored", message[i], None) for i in chosen[:4]} | {
        ("delivered", message[i], "all") for i in chosen[7:12]
    }
    assert rows(found["lost"], "stage", "message", "client") == Counter(missing | acknowledged | stray)
    twice: set[tuple[Any, ...]] = {("stored", message[i], None, 2) for i in chosen[4:7]}
    twice |= {("delivered", message[i], "also all", 2) for i in chosen[12:18]}
    assert rows(found["duplicates"], "stage", "message", "client", "copies") == Counter(twice)
    strange = {("stored", "stranger", None), ("delivered", message[DEVICES + 4], "one")}
    assert rows(found["unexpected"], "stage", "message", "client") == Counter(strange)
    behind = rows(found["inversions"], "stage", "message", "within")
    assert behind == Counter({("delivered", m, "all"): 1 for m in late})
    assert rows(found["at_risk"], "client_id") == Counter([("full",), ("ending",)])
    assert not result.clean
    assert (result.figures.rows, result.figures.bytes) == (DEVICES * EACH, 10 * DEVICES * EACH)
    check_page(result.page, result.figures.counts, tmp_path)


def swapped(row: tuple[Any, ...], late: set[str]) -> tuple[Any, ...]:
    """The delivery with the place of its neighbour, for the client `all`: only positions are swapped."""
    if row[1] != "all":
        return row
    device, number = row[0].split("/")
    if row[0] in late:
        return (*row[:2], row[2] + DEVICES, row[3])
    before = f"{device}/{int(number) - 1}"
    return (*row[:2], row[2] - DEVICES, row[3]) if before in late else row


def check_page(page: Path | None, counts: Any, directory: Path) -> None:
    assert page is not None
    seen = Reader(page.read_text(encoding="utf-8"))
    assert seen.open == []
    assert seen.numbers == {name: str(counts[name]) for name in seen.numbers}
    assert {"lost", "duplicates", "unexpected", "inversions", "at_risk", "silent", "top_talkers"} <= set(seen.numbers)
    assert seen.plots >= 5
    assert "faults were found" in seen.text
    assert (directory / "lost.parquet").is_dir()
    assert next((directory / "lost.csv").glob("*.csv")).read_text().startswith("stage,message,publisher,topic,number")
    assert seen.text.count("Not looked at") == 0
    check_in_browser(page)


def test_quantiles_are_those_of_the_sorted_times(spark: "SparkSession") -> None:
    random.seed(1)
    sent = [(f"m{i}", "p", f"t/{i % 2}", i, BEGIN_MS + i, 1) for i in range(400)]
    taken = [random.randint(1, 10_000) for _ in sent]
    got = [(m[0], "c", i, m[4] + ms) for i, (m, ms) in enumerate(zip(sent, taken, strict=True))]
    published = timed(spark.createDataFrame(sent, PUBLISHED))
    delivered = timed(spark.createDataFrame(got, DELIVERED))
    for row in tables.latency(published, delivered, "topic").collect():
        times = sorted(ms for m, ms in zip(sent, taken, strict=True) if m[2] == row.topic)
        expected = [times[int(q * len(times) + 0.999) - 1] for q in tables.QUANTILES]
        assert [row.messages, row.p50, row.p95, row.p99, row.max] == [200, *expected, times[-1]]


def test_a_device_is_silent_when_it_is_quiet_for_longer_than_usual(spark: "SparkSession") -> None:
    sent = [(f"often{i}", "often", "t", i, BEGIN_MS + 1000 * i, 1) for i in range(100)]
    sent += [(f"seldom{i}", "seldom", "t", i, BEGIN_MS + 3_600_000 * i, 1) for i in range(3)]
    devices = spark.createDataFrame([("often",), ("seldom",), ("never",)], "publisher string")
    published = timed(spark.createDataFrame(sent, PUBLISHED))
    found = tables.silent(published, until_ms=BEGIN_MS + 8_000_000, devices=devices)
    assert [row.publisher for row in found.collect()] == ["never", "often"]
    talkers = tables.top_talkers(published, 1).collect()
    assert [(row.publisher, row.messages, row.bytes, round(row.share, 3)) for row in talkers] == [
        ("often", 100, 100, 0.971)
    ]


def test_evidence_without_a_column_or_with_a_bad_filter_is_refused(spark: "SparkSession") -> None:
    published = timed(spark.createDataFrame([("m", "p", "t", 1, 1, 1)], PUBLISHED))
    with pytest.raises(
        ValueError, match=r"delivered has the columns \['message'\]; expected client, position, time too"
    ):
        Evidence(published, delivered=published.select("message"))
    with pytest.raises(ValueError, match="acknowledged is given without delivered"):
        Evidence(published, acknowledged=spark.createDataFrame([("m", "c")], "message string, client string"))
    filters = spark.createDataFrame([("c", "a/#/b")], "client string, filter string")
    with pytest.raises(ValueError, match="'a/#/b' among the subscriptions is not a topic filter"):
        tables.routes(published, filters)


def test_what_data_says_is_not_part_of_the_page_s_language(tmp_path: Path) -> None:
    page = Page(JobFigures("audit"), tables=[Table("lost", ["topic"], [["<script>alert('$x$')</script>"]], 1)])
    write_page(page, tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<script" not in text
    seen = Reader(text).text
    assert "<script>alert('$x$')</script>" in seen
    assert "Not looked at, for lack of evidence: Duplicates, Unexpected" in seen
