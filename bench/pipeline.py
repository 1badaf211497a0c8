"""`make bench-pipeline`: the Spark pipeline beside the programs that one would write with redis-py, in one run.

    read     messages of history: the data source beside a redis-py scan with createDataFrame, and the bare XRANGE
             rate of the server
    parquet  the same into Parquet files, and into an archive (sorted, indexed, committed)
    write    messages to topics (kept in history) and sessions: the sink beside foreachPartition with a pipeline of
             redis-py that gives the same result, and beside others that repeat messages when a task is retried
    filter   the cost of a topic filter, by how much it matches
    layout   rows that Spark decodes for each one that matches, in an archived day
    learn, migrate, audit    the other jobs (pipeline_jobs.py), each beside one process without Spark

Rates are rows per second of wall time, the median of the rounds, without Spark's start and a first warm-up. The
baselines do the same for every message, so they get fewer messages (`--baseline-rows`): their rate does not depend on
the number.
"""

import contextlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import click
import redis
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from bench import pipeline_baseline as baseline
from bench import pipeline_data as data
from bench import pipeline_jobs as jobs
from bench.machine import this_machine
from bench.output import json_option
from bench.pair import running
from bench.pipeline_figures import Cases, Figure
from holdmq_pipeline import layout
from holdmq_pipeline.archive import archived
from holdmq_pipeline.archive_table import Change, open_table
from holdmq_pipeline.jobs.archive import archive, write_part
from holdmq_pipeline.spark import spark_session

CASES = ("read", "parquet", "write", "filter", "layout", "learn", "migrate", "audit")
FILTERS = ("site/5/dev/1005/#", "site/5/#", "site/+/dev/+/state", "#")
LAYOUT_FILTERS = (
    ("the first varying level", "site/5/dev/+/temperature", 2),
    ("the first, all below", "site/5/#", 2),
    ("a later level only", "site/+/dev/1005/temperature", 10),
    ("a later level only, all below", "site/+/dev/1005/#", 10),
    ("both", "site/5/dev/1005/temperature", None),
    ("nothing", "#", None),
)


def source(spark: SparkSession, url: str, **options: Any) -> DataFrame:
    """The data source."""
    return spark.read.format("holdmq").options(url=url, store=data.STORE, **options).load()


def noop(frame: DataFrame) -> None:
    """Reads all of it and keeps nothing."""
    frame.write.format("noop").mode("overwrite").save()


def read_case(bench: Cases, spark: SparkSession, url: str, cores: int) -> None:
    """Reading: each form beside a baseline that makes the same columns."""
    whole = bench.rate("read", f"data source, 13 columns, {cores} cores", bench.rows, lambda: noop(source(spark, url)))
    of_whole = bench.figures[-1]
    narrow = "offset long, topic string, payload binary, timestamp timestamp"
    frame = spark.read.format("holdmq").schema(narrow).options(url=url, store=data.STORE).load()
    four = bench.rate("read", f"data source, 4 columns, {cores} cores", bench.rows, lambda: noop(frame))
    of_four = bench.figures[-1]
    if cores == 1:
        return
    few = bench.baseline_rows
    plain = bench.rate("read", "redis-py scan + createDataFrame", few, lambda: noop(baseline.scan(spark, url)))
    bench.compare("data source, 13 columns: so many times as fast", whole / plain, None)
    of_four.against, of_four.ratio, of_four.wanted = "redis-py scan + createDataFrame", four / plain, 15
    what = "redis-py HISTORY.RANGE + createDataFrame, 13 columns"
    equal = bench.rate("read", what, few, lambda: noop(baseline.scan_history(spark, url, data.STORE, few)))
    of_whole.against, of_whole.ratio, of_whole.wanted = what, whole / equal, 15
    limit = bench.rate("read", "bare XRANGE, one connection", few, lambda: baseline.bare_xrange(url))
    bench.compare("data source, 4 columns", limit / four, None)


def parquet_case(bench: Cases, spark: SparkSession, url: str) -> None:
    """Into files."""
    with tempfile.TemporaryDirectory() as folder:
        narrow = "offset long, topic string, payload binary, timestamp timestamp"
        frame = spark.read.format("holdmq").schema(narrow).options(url=url, store=data.STORE).load()
        to = f"{folder}/files"
        ours = bench.rate("parquet", "data source", bench.rows, lambda: frame.write.mode("overwrite").parquet(to))
        plain = bench.rate(
            "parquet",
            "redis-py scan + createDataFrame",
            bench.baseline_rows,
            lambda: baseline.scan(spark, url).write.mode("overwrite").parquet(to),
        )
        bench.figures[-2].against, bench.figures[-2].ratio = "redis-py scan + createDataFrame", ours / plain
        bench.figures[-2].wanted = 7
        numbers = iter(range(1000))

        def job() -> None:
            archive(spark, {"url": url, "store": data.STORE}, f"{folder}/archive-{next(numbers)}")

        bench.rate("parquet", "job archive (sorted, indexed, committed)", bench.rows, job)
        bench.compare("redis-py scan + createDataFrame", bench.figures[-1].rate / plain, None)


def write_case(bench: Cases, spark: SparkSession, url: str) -> None:
    """Writing, each time to a server that is empty but for a store that keeps every topic."""
    admin = redis.Redis.from_url(url)

    def fresh() -> None:
        admin.execute_command("FLUSHALL", "SYNC")  # a thread would free the messages of before while these are stored
        data.make_store(admin)

    payload = F.concat(F.lit('{"celsius": 21.50, "humidity": 40.10, "seq": '), F.col("id"), F.lit(', "ok": 1}'))
    forms: dict[str, Sequence[tuple[str, Any]]] = {
        "topics": (
            ("TOPIC.PUBLISH, once", baseline.publish_partition(url, once=True)),
            ("TOPIC.PUBLISH", baseline.publish_partition(url, once=False)),
        ),
        "sessions": (
            ("SESSION.ADD, once", baseline.add_partition(url, once=True)),
            ("SESSION.ADD", baseline.add_partition(url, once=False)),
            ("a script", baseline.stock_partition(url)),
        ),
    }
    for table, key, prefix in (("topics", "topic", "site/5/dev/"), ("sessions", "client_id", "client-")):
        name = F.concat(F.lit(prefix), (F.col("id") % data.DEVICES).cast("string")).alias(key)
        columns = [name, payload.cast("binary").alias("payload")]
        columns += [F.lit(0).alias("qos")] if table == "topics" else []
        frame = spark.range(0, bench.write_rows, 1, 2).select(*columns)
        few = spark.range(0, bench.baseline_rows, 1, 2).select(*columns)

        def ours(frame: DataFrame, table: str = table) -> None:
            frame.write.format("holdmq").mode("append").options(url=url, table=table).save()

        ours(few)  # Python's workers are there now, and Spark's code is compiled
        rate = bench.rate("write", f"sink, {table}, once", bench.write_rows, partial(ours, frame), fresh)
        figure = bench.figures[-1]
        for what, send in forms[table]:
            by_hand = partial(few.foreachPartition, send)
            plain = bench.rate("write", f"foreachPartition, {what}", bench.baseline_rows, by_hand, fresh)
            bench.compare(f"sink, {table}, once: so many times as fast", rate / plain, None)
            if not figure.against:
                figure.against, figure.ratio, figure.wanted = f"foreachPartition, {what}", rate / plain, 7
    admin.flushall()
    admin.close()


def filter_case(bench: Cases, spark: SparkSession, url: str) -> None:
    """Filters: what each matching message takes, as a multiple of what it takes when all match (time for time)."""
    narrow = "offset long, topic string, payload binary, timestamp timestamp"
    options = {"url": url, "store": data.STORE}
    nothing = spark.read.format("holdmq").schema(narrow).options(**options, topicFilter="no/such").load()
    base = 1 / bench.rate("filter", "no/such matches 0: plan and start", 1, partial(noop, nothing))
    seconds: dict[str, float] = {}
    for topic_filter in reversed(FILTERS):
        frame = spark.read.format("holdmq").schema(narrow).options(**options, topicFilter=topic_filter).load()
        matching = frame.count()
        rate = bench.rate("filter", f"{topic_filter} matches {matching:,}", matching, partial(noop, frame))
        seconds[topic_filter] = max(matching / rate - base, 1e-3) / matching
        if matching * 100 >= bench.rows:  # of fewer, plan and start are nearly all
            bench.compare("a message of #, without plan and start (time)", seconds[topic_filter] / seconds["#"], None)


def layout_case(bench: Cases, spark: SparkSession, rows: int) -> None:
    """Read amplification."""
    first_us = int(datetime(2026, 1, 5, tzinfo=UTC).timestamp()) * 1_000_000
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for kind, share in (("temperature", 3), ("state", 1)):
            structure = f"site/+/dev/+/{kind}"
            day = layout.arranged(data.a_day(kind, rows * share // 4, first_us), structure)
            files.append(write_part(folder, day, "2026-01-05", structure, kind))
        table = open_table(folder)
        table.commit(Change(data.STORE, table.snapshot(data.STORE), files, watermarks={0: rows}))
        size = sum(one.size for one in files) / rows
        bench.figures.append(Figure("layout", f"bytes a message, of {rows:,}", rows, size))
        for what, topic_filter, wanted in LAYOUT_FILTERS:
            frame = archived(spark, folder, data.STORE, topic_filter).agg(F.count("*"), F.sum(F.length("payload")))
            begin = time.perf_counter()
            matching = frame.collect()[0][0]
            seconds = time.perf_counter() - begin
            figure = Figure("layout", f"{topic_filter} ({what})", matching, matching / seconds, "rows decoded for each")
            figure.ratio, figure.wanted = decoded(frame) / max(matching, 1), wanted
            bench.figures.append(figure)
            click.echo(f"layout   {figure.what:58} {figure.ratio:12,.2f} decoded for each", err=True)


def decoded(frame: DataFrame) -> int:
    """Rows that the scans of an executed plan gave out."""
    found = 0
    nodes = [frame._jdf.queryExecution().executedPlan()]
    while nodes:
        node = nodes.pop()
        children = node.children()
        nodes += [children.apply(at) for at in range(children.size())]
        if node.nodeName().startswith("Scan parquet"):
            found += node.metrics().apply("numOutputRows").value()
    return found


@contextlib.contextmanager
def session(cores: int) -> Iterator[SparkSession]:
    """A Spark with so many cores, warmed up."""
    settings = {
        "spark.ui.enabled": "false",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.shuffle.partitions": "4",
        "spark.driver.memory": "3g",
    }
    spark = spark_session("bench", master=f"local[{cores}]", settings=settings)
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()


def measure(bench: Cases, url: str, chosen: tuple[str, ...], sizes: dict[str, int]) -> None:
    """The parts that are asked for; reading with one core, too."""
    of_history = {"read", "parquet", "filter"} & set(chosen)
    for cores in (1, 2):
        if cores == 1 and "read" not in chosen:
            continue
        with session(cores) as spark:
            if of_history:
                noop(source(spark, url, endingOffsets=json.dumps({"0": min(bench.rows, 100_000)})))
            cases: dict[str, Callable[[], None]] = {
                "read": partial(read_case, bench, spark, url, cores),
                "parquet": partial(parquet_case, bench, spark, url),
                "filter": partial(filter_case, bench, spark, url),
                "write": partial(write_case, bench, spark, url),
                "layout": partial(layout_case, bench, spark, sizes["layout_rows"]),
                "learn": partial(jobs.learn_case, bench, spark, sizes["topics"]),
                "migrate": partial(jobs.migrate_case, bench, spark, sizes["clients"]),
                "audit": partial(jobs.audit_case, bench, spark, sizes["audited"]),
            }
            for name, case in cases.items():
                if name in chosen and (cores == 2 or name == "read"):
                    case()


@click.command()
@click.option("--rows", default=2_000_000, show_default=True, help="Messages of history.")
@click.option("--write-rows", default=1_000_000, show_default=True, help="Messages that are written.")
@click.option("--baseline-rows", default=200_000, show_default=True, help="Messages for the baselines.")
@click.option("--rounds", default=3, show_default=True, help="How often each is measured.")
@click.option("--layout-rows", default=data.DAY_ROWS, show_default=True, help="Messages of the archived day.")
@click.option("--topics", default=1_000_000, show_default=True, help="Different topics that are learned from.")
@click.option("--clients", default=4_000, show_default=True, help=f"That migrate, with {jobs.PER_CLIENT} messages.")
@click.option("--audited", default=1_000_000, show_default=True, help="Messages of the audit.")
@click.option("--only", multiple=True, type=click.Choice(CASES), help="Only these parts; may be repeated.")
@json_option("bench-pipeline.json")
def main(
    rows: int,
    write_rows: int,
    baseline_rows: int,
    rounds: int,
    only: tuple[str, ...],
    output: Path,
    **sizes: int,
) -> None:
    """Measure the Spark pipeline, each part beside its baseline."""
    chosen = only or CASES
    machine = this_machine()
    bench = Cases(rows, write_rows, baseline_rows, rounds)
    with running(module=True, aof=False) as server:
        if {"read", "parquet", "filter"} & set(chosen):
            data.fill_history(server.admin, rows)
            baseline.fill_stream(server.admin, baseline_rows)
        measure(bench, jobs.url_of(server), chosen, sizes)
        facts = server.facts()
    machine["load_average_after"] = os.getloadavg()
    click.echo(shown(bench.figures))
    output.parent.mkdir(parents=True, exist_ok=True)
    plan = {"rows": rows, "write_rows": write_rows, "baseline_rows": baseline_rows, "rounds": rounds, **sizes}
    result = {**machine, **facts, "plan": plan, "figures": [asdict(one) for one in bench.figures]}
    output.write_text(json.dumps(result, indent=2) + "\n")
    click.echo(f"{machine['cpu']}, {machine['cpus']} cores, load {machine['load_average_before'][0]:.1f}; {output}")


def shown(figures: list[Figure]) -> str:
    """The table."""
    lines = [f"{'part':8} {'what':58} {'rows':>10} {'rate':>12} {'ratio':>8} {'wanted':>7}  against"]
    for one in figures:
        ratio = f"{one.ratio:8.1f}" if one.ratio is not None else " " * 8
        wanted = f"{one.wanted:7.0f}" if one.wanted is not None else " " * 7
        lines.append(f"{one.case:8} {one.what:58} {one.rows:10,} {one.rate:12,.0f} {ratio} {wanted}  {one.against}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
