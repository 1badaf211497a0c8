"""The programs and commands of docs/pipeline.md run, in their order, with addresses and paths of the test.

The commands run in this process, so that they share its Spark; one that never ends is interrupted when it has
archived what there is.  The parts on a cluster and on PostgreSQL are run by test_spark_cluster.py and test_migrate.py.
"""

import json
import os
import re
import shlex
import signal
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis
from click.testing import CliRunner

from holdmq.cli import main
from holdmq_pipeline.archive_table import open_table
from tests.pipeline.history_support import append, store
from tests.support import Server, embedded_kinds, eventually
from tests.support.pages import blocks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

server_kinds = embedded_kinds

PATTERNS = "holdmq-patterns 1 levels=8\n#\nsite/+/dev/+/temperature\n"
MESSAGES = [
    (
        f"site/{number % 7}/dev/{number % 20}/temperature",
        json.dumps({"id": str(number), "celsius": number / 10}).encode(),
    )
    for number in range(200)
]
ARCHIVED_S = 120.0
FOR_EVER = "--follow"
FILES = re.compile(r"(?<![\w/])\w+\.(?:parquet|csv|tsv)\b")  # relative paths of Spark are those of its own process
OLD = {"packetType": "PUBLISH", "payload": "eA==", "time": 1, "topicName": "t", "qos": 1, "packetId": 1}


class Page:
    """What runs its blocks."""

    def __init__(self, server: Server, old: Server, folder: Path) -> None:
        self.server = server
        self.folder = folder
        self.namespace: dict[str, Any] = {}
        now = datetime.now(UTC)
        self.replaced = {
            "redis://new:6379": server.url,
            "redis://old:6379": old.url,
            "redis://127.0.0.1:6379": server.url,
            "/data/": f"{folder}/",
            "2026-11-20": f"{now - timedelta(days=4):%Y-%m-%d}",
            "2026-11-22T12:00": f"{now + timedelta(days=1):%Y-%m-%dT%H:%M}",
            '.format("holdmq")': f'.format("holdmq").option("url", {server.url!r})',
        }

    def here(self, text: str) -> str:
        """A block with addresses, paths and times of the test."""
        for of_page, of_test in self.replaced.items():
            text = text.replace(of_page, of_test)
        return FILES.sub(rf"{self.folder}/\g<0>", text).replace("--output audit", f"--output {self.folder}/audit")

    def run_program(self, text: str) -> None:
        """One after the other, as in one notebook."""
        exec(compile(self.here(text), "docs/pipeline.md", "exec"), self.namespace)  # noqa: S102 - our own documentation

    def run_commands(self, text: str) -> None:
        """Each of them ends with status 0; one that never ends is interrupted."""
        for line in self.here(text).replace("\\\n", " ").splitlines():
            program, *words = shlex.split(line, comments=True)
            assert program == "holdmq"
            if FOR_EVER in words:
                threading.Thread(target=self._interrupt, daemon=True).start()
            done = CliRunner(env={"HOLDMQ_URL": self.server.url}).invoke(main, words, catch_exceptions=False)
            assert done.exit_code == (1 if FOR_EVER in words else 0), f"{line}\n{done.output}"

    def _interrupt(self) -> None:
        eventually(lambda: self.archived() >= len(MESSAGES), ARCHIVED_S, "an archive")
        os.kill(os.getpid(), signal.SIGINT)

    def archived(self) -> int:
        """Messages in the archive."""
        try:
            return sum(one.rows for one in open_table(str(self.folder / "archive")).snapshot("fleet").files)
        except Exception:  # noqa: BLE001 - it is not there yet
            return 0


@pytest.fixture
def page(
    spark: "SparkSession",
    server: Server,
    client: redis.Redis,
    fresh_server: Callable[..., Server],
    tmp_path: Path,
) -> Page:
    """The store, the old broker's keyspace, and the files that the page takes for granted."""
    store(client, topic_filter="site/#")
    client.execute_command("HISTORY.PATTERNS", "PREPARE", "fleet", 2, PATTERNS)
    client.execute_command("HISTORY.PATTERNS", "COMMIT", "fleet", 2)
    append(client, MESSAGES)
    old = fresh_server(module=False)
    old.client().set("mqtt:{a}_messages_1", json.dumps(OLD))
    old.client().zadd("mqtt:{a}_messages", {"mqtt:{a}_messages_1": 1})
    (tmp_path / "asked.tsv").write_text("site/+/dev/7/temperature\t40\nsite/5/#\n")
    (tmp_path / "subscriptions.csv").write_text("client,filter\nreader,site/#\n")
    said = [(str(number), "meter", topic, number) for number, (topic, _payload) in enumerate(MESSAGES)]
    sent = spark.createDataFrame(said, "message string, publisher string, topic string, number long")
    sent.selectExpr("*", "timestamp_millis(number) as time").write.parquet(str(tmp_path / "sent.parquet"))
    got = sent.selectExpr("message", "'reader' as client", "number as position", "timestamp_millis(number) as time")
    got.write.parquet(str(tmp_path / "received.parquet"))
    got.select("message", "client").write.parquet(str(tmp_path / "acked.parquet"))
    return Page(server, old, tmp_path)


def test_the_programs_and_commands_of_the_page_run(page: Page, client: redis.Redis) -> None:
    for block in blocks("docs/pipeline.md", "python", "sh"):
        run = page.run_program if block.kind == "python" else page.run_commands
        run(block.text)
    assert page.archived() == len(MESSAGES)
    assert client.zcard("{analyst}_messages") > 0
    assert client.zcard("{a}_messages") == 1
    assert (page.folder / "past.parquet").exists()
    assert (page.folder / "audit" / "index.html").exists()
