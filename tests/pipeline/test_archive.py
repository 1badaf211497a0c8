"""The archive: every message once, whatever ends the job and whoever reads meanwhile."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import redis
from pyspark.sql import functions

from holdmq import core
from holdmq_pipeline.archive import archived, history, pattern_table, structures, topic_matches
from holdmq_pipeline.archive_table import open_table
from holdmq_pipeline.errors import ArchiveError, DataLossError, OptionError
from holdmq_pipeline.figures import JobFigures
from holdmq_pipeline.jobs.archive import Archiver, archive, compact
from holdmq_pipeline.options import Options
from tests.pipeline.history_support import append, fleet, matching, rows, store
from tests.support import Server, embedded_kinds

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

server_kinds = embedded_kinds

FILTERS = ("rooms/2/#", "+/+/devices/14/+", "gateways/+", "rooms/+/devices/+/state", "#", "no/such")
STEPS = ("before write", "after write", "after commit", "after hold", "after trim")


@pytest.fixture(params=["delta", "parquet"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A place for an archive, of either kind."""
    return f"{'parquet:' if request.param == 'parquet' else ''}{tmp_path / 'archive'}"


class Stopped(Exception):  # noqa: N818 - it stands for a kill
    """The job ends here."""


def stopping(phase: str) -> Callable[[str], None]:
    """Ends a job when it comes to this phase."""

    def fault(name: str) -> None:
        if name == phase:
            raise Stopped(name)

    return fault


def archiver(spark: "SparkSession", server: Server, table: str, stop: str = "") -> Archiver:
    """An archiver with small batches, which ends in a phase if that is asked for."""
    return Archiver(spark, Options({"url": server.url}), table, batch_rows=200, task_rows=150, fault=stopping(stop))


def test_what_is_archived_is_found_by_filter_and_trimmed(
    spark: "SparkSession", server: Server, client: redis.Redis, table: str
) -> None:
    store(client, shards=2)
    kept = append(client, fleet(700))
    figures = archive(spark, {"url": server.url}, table, batch_rows=300, trim_after_s=0)
    assert (figures.rows, figures.counts["commits"], figures.counts["missed"]) == (700, 3, 0)
    assert rows(spark.read.format("holdmq").option("url", server.url).load()) == []
    for topic_filter in FILTERS:
        found = rows(archived(spark, table, "fleet", topic_filter))
        assert found == sorted(matching(kept, topic_filter)), topic_filter
    several = ("rooms/2/#", "+/+/devices/14/+")
    assert rows(archived(spark, table, "fleet", several)) == sorted(matching(kept, *several))
    later = append(client, fleet(30))
    assert archive(spark, {"url": server.url}, table).rows == 30
    assert rows(archived(spark, table, "fleet")) == sorted(kept + later)


def test_a_job_that_ends_in_any_phase_loses_and_repeats_nothing(
    spark: "SparkSession", server: Server, client: redis.Redis, table: str
) -> None:
    store(client)
    kept = append(client, fleet(300))
    for step in STEPS:
        with pytest.raises(Stopped, match=step):
            archiver(spark, server, table, step).batch(JobFigures("archive"), 0)
        kept += append(client, fleet(40))
    for step in ("after write", "after commit"):  # of the files: before it, nothing has happened
        with pytest.raises(Stopped, match=step):
            compact(spark, table, "fleet", fault=stopping(step))
        assert archiver(spark, server, table).batch(JobFigures("archive"), 0)
        kept += append(client, fleet(40))
    last = archiver(spark, server, table)
    while not last.batch(JobFigures("archive"), 0):
        pass
    assert rows(archived(spark, table, "fleet")) == sorted(kept)
    assert rows(spark.read.format("holdmq").option("url", server.url).load()) == []


def test_of_two_archivers_one_is_refused(
    spark: "SparkSession", server: Server, client: redis.Redis, table: str
) -> None:
    store(client)
    kept = append(client, fleet(100))

    def overtaken(step: str) -> None:
        if step == "after write":
            archiver(spark, server, table).batch(JobFigures("archive"))

    slow = Archiver(spark, Options({"url": server.url}), table, fault=overtaken)
    with pytest.raises(ArchiveError):
        slow.batch(JobFigures("archive"))
    assert rows(archived(spark, table, "fleet")) == kept


def test_archive_and_server_are_one_history_while_archiving_continues(
    spark: "SparkSession", server: Server, client: redis.Redis, tmp_path: Path
) -> None:
    table = str(tmp_path / "archive")
    store(client, shards=2)
    kept = append(client, fleet(500))
    job = archiver(spark, server, table)
    job.batch(JobFigures("archive"), 0)
    kept += append(client, fleet(200))
    whole = history(spark, {"url": server.url}, table)
    some = history(spark, {"url": server.url}, table, "rooms/+/devices/+/state")
    assert rows(whole) == sorted(kept)
    both = ("gateways/+", "rooms/+/devices/+/state")
    either = history(spark, {"url": server.url}, table, both)
    later = append(client, fleet(50))
    while not job.batch(JobFigures("archive"), 0):  # planned before this, read after it
        pass
    assert rows(whole) == sorted(kept)
    assert rows(some) == sorted(matching(kept, "rooms/+/devices/+/state"))
    assert rows(either) == sorted(matching(kept, *both))
    assert rows(history(spark, {"url": server.url}, table)) == sorted(kept + later)


def test_times_bound_what_a_history_has(
    spark: "SparkSession", server: Server, client: redis.Redis, tmp_path: Path
) -> None:
    table = str(tmp_path / "archive")
    store(client)
    first = append(client, fleet(20))
    archive(spark, {"url": server.url}, table, trim_after_s=0)
    client.execute_command("WAIT", 1, 20)
    seconds, microseconds = client.time()
    moment = seconds * 1000 + microseconds // 1000
    second = append(client, fleet(20))
    assert rows(history(spark, {"url": server.url}, table, start=moment)) == second
    assert rows(history(spark, {"url": server.url}, table, end=moment)) == first
    assert rows(history(spark, {"url": server.url}, table, start=moment / 1000)) == second
    assert rows(history(spark, {"url": server.url}, table, start=timedelta(hours=1))) == sorted(first + second)
    assert rows(history(spark, {"url": server.url}, table, end="1h")) == []
    with pytest.raises(OptionError, match=r"start is .*, which is 1970-01-21 in milliseconds since 1970"):
        history(spark, {"url": server.url}, table, start=moment // 1000)


def test_what_was_lost_before_it_was_archived_is_reported(
    spark: "SparkSession", server: Server, client: redis.Redis, tmp_path: Path
) -> None:
    table = str(tmp_path / "archive")
    store(client)
    append(client, fleet(20))
    archive(spark, {"url": server.url}, table)
    client.execute_command("HISTORY.HOLD", "fleet", "archive", "RELEASE")
    append(client, fleet(20))
    client.execute_command("HISTORY.TRIM", "fleet", 0, 30)
    with pytest.raises(DataLossError, match="numbers 21 to 30"):
        archive(spark, {"url": server.url}, table)
    figures = archive(spark, {"url": server.url, "failOnDataLoss": "false"}, table)
    assert (figures.rows, figures.counts["missed"]) == (10, 10)


def test_small_files_become_few(spark: "SparkSession", server: Server, client: redis.Redis, table: str) -> None:
    store(client)
    kept = append(client, fleet(600))
    archive(spark, {"url": server.url}, table, batch_rows=100)
    files = len(open_table(table).snapshot("fleet").files)
    figures = compact(spark, table, "fleet")
    assert (figures.rows, figures.counts["files_before"]) == (600, files)
    assert len(open_table(table).snapshot("fleet").files) < files
    assert rows(archived(spark, table, "fleet")) == kept
    kept += append(client, fleet(50))
    assert archive(spark, {"url": server.url}, table).rows == 50
    assert rows(archived(spark, table, "fleet", "rooms/#")) == matching(kept, "rooms/#")


def test_a_learned_pattern_is_a_table(
    spark: "SparkSession", server: Server, client: redis.Redis, tmp_path: Path
) -> None:
    table = str(tmp_path / "archive")
    store(client)
    text = "holdmq-patterns 1 levels=8\n#\nrooms/+/devices/+/temperature\n"
    client.execute_command("HISTORY.PATTERNS", "PREPARE", "fleet", 2, text)
    client.execute_command("HISTORY.PATTERNS", "COMMIT", "fleet", 2)
    append(client, [("rooms/5/devices/7/temperature", b'{"celsius": 20.5, "unit": "C"}'), ("other", b"x")])
    append(client, [("rooms/5/devices/8/temperature", b"not json")])
    archive(spark, {"url": server.url}, table)
    assert structures(table, "fleet") == {"#": 1, "rooms/+/devices/+/temperature": 2}
    frame = pattern_table(spark, table, "fleet", "rooms/+/devices/+/temperature").orderBy("offset")
    found = [(row.rooms, row.devices, row.celsius, row.unit) for row in frame.collect()]
    assert found == [("5", "7", 20.5, "C"), ("5", "8", None, None)]


def test_spark_matches_topics_as_the_core_does(spark: "SparkSession") -> None:
    topics = ["a", "a/", "a/b", "a/b/c", "$SYS/x", "/a", "a\nb/c", "A", "a.b", "\\E/x", "a/b/"]
    filters = ["#", "+", "a/#", "a/+", "+/+", "$SYS/#", "+/x", "a.b", "\\E/+", "/+", "a/b/#", "a/+/c", "+/#"]
    frame = spark.createDataFrame([(topic,) for topic in topics], "topic string")
    columns = [topic_matches(functions.col("topic"), one).alias(str(at)) for at, one in enumerate(filters)]
    for row in frame.select("topic", *columns).collect():
        for at, one in enumerate(filters):
            assert row[str(at)] == core.matches(one, row.topic), (one, row.topic)
