"""`make pipeline-faults`: the archive job is killed (SIGKILL) behind every step and at random moments, again and again.

    python -m tests.pipeline.kill_archive [--minutes 5] [--seed 1]

A publisher appends all the time; the job archives and trims in a process of its own, which is killed and begins anew.
At the end every message is in the archive once, and the server has none. The short form of this, with exceptions in the
place of kills, is in test_archive.py.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from holdmq_pipeline.archive import archived
from holdmq_pipeline.figures import JobFigures
from holdmq_pipeline.jobs.archive import Archiver, archive
from holdmq_pipeline.options import Options
from holdmq_pipeline.spark import spark_session
from tests.pipeline.history_support import append, fleet, store
from tests.support import Server, embedded_kinds

STEPS = ("after write", "after commit", "after hold", "after trim", "")
START_S = 60.0
SETTINGS = {"spark.ui.enabled": "false"}


def work(url: str, table: str, step: str) -> None:
    """The job, in a process of its own: ends by SIGKILL behind a step; without one it goes on until it is killed."""
    spark = spark_session("archive", master="local[2]", settings=SETTINGS)

    def fault(name: str) -> None:
        if name == step:
            os.kill(os.getpid(), signal.SIGKILL)

    job = Archiver(spark, Options({"url": url}), table, batch_rows=500, task_rows=300, fault=fault)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while True:
        job.batch(JobFigures("archive"), 0)


def main() -> None:
    """Kills until the time is over, then compares."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--work", nargs=3, metavar=("URL", "TABLE", "STEP"))
    arguments = parser.parse_args()
    if arguments.work:
        work(*arguments.work)
        return
    chance = random.Random(arguments.seed)
    kills: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        table = f"{folder}/archive"
        server = Server(embedded_kinds()[0], Path(folder) / "server")
        server.start()
        try:
            client = server.client()
            store(client, shards=2)
            kept = append(client, fleet(2000))
            deadline = time.monotonic() + arguments.minutes * 60
            while time.monotonic() < deadline:
                step = STEPS[kills.total() % len(STEPS)]
                words = [sys.executable, "-m", "tests.pipeline.kill_archive", "--work", server.url, table, step]
                job = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
                assert job.stdout is not None
                assert job.stdout.readline() == "ready\n"
                until = time.monotonic() + (START_S if step else chance.uniform(0.5, 8))
                while job.poll() is None and time.monotonic() < until:
                    kept += append(client, fleet(chance.randrange(1, 200)))
                    time.sleep(0.1)
                job.kill()
                assert job.wait() == -signal.SIGKILL
                kills[step or "at random"] += 1
                sys.stderr.write(f"{kills.total()} kills, {len(kept)} messages\n")
            spark = spark_session("check", master="local[2]", settings=SETTINGS)
            archive(spark, {"url": server.url}, table, trim_after_s=0)
            found = archived(spark, table, "fleet").select("shard", "offset", "topic", "payload").collect()
            rows = Counter((row.shard, row.offset, row.topic, bytes(row.payload)) for row in found)
            lost = [message for message in kept if tuple(message) not in rows]
            twice = [row for row, count in rows.items() if count > 1]
            left = spark.read.format("holdmq").option("url", server.url).load().count()
            spark.stop()
        finally:
            server.close()
    sys.stderr.write(f"{dict(kills)}: {len(kept)} messages, {len(lost)} lost, {len(twice)} twice, {left} left behind\n")
    sys.exit(1 if lost or twice or left or len(rows) != len(kept) else 0)


if __name__ == "__main__":
    main()
