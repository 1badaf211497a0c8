"""`make pipeline-faults`: SIGKILL in every phase of archiving and compacting, and at random moments, again and again.

    python -m tests.pipeline.kill_archive [--minutes 10] [--seed 1] [--format delta]

A publisher appends all the time; the job archives, trims and compacts in a process of its own, which is killed and
begins anew. At the end every message is in the archive once, and the server has none. The short form of this, with
exceptions in the place of kills, is in test_archive.py.

Phases are those whose names the job gives to its fault hook; in "during write" a thread watches for the first new file
of the table. A kill takes the Python process of the driver; Spark's JVM and its workers end when they notice, so what
they still write falls into the time of the next job, as it would on a cluster.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import redis

from holdmq_pipeline.archive import archived
from holdmq_pipeline.figures import JobFigures
from holdmq_pipeline.jobs.archive import Archiver, archive, compact
from holdmq_pipeline.options import Options
from holdmq_pipeline.places import PARQUET
from holdmq_pipeline.spark import spark_session
from tests.pipeline.history_support import Message, append, fleet, store
from tests.support import Server, embedded_kinds

DURING = "during write"
RANDOM = "at random"
ARCHIVE = ("before write", DURING, "after write", "after commit", "after hold", "after trim", RANDOM)
COMPACT = (DURING, "after write", "after commit", RANDOM)
PHASES = [("archive", phase) for phase in ARCHIVE] + [("compact", phase) for phase in COMPACT]
MOST_S = 300.0  # until a phase has to be reached, on a machine that does much else
MOST_MESSAGES = 3000  # that are published while a job runs
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData -Xshare:auto",
}


def die() -> None:
    """As if the power failed, for this process."""
    os.kill(os.getpid(), signal.SIGKILL)


def files_of(table: str) -> set[Path]:
    """The data files of a table, committed or not."""
    return {
        Path(folder, name)
        for folder, _folders, names in os.walk(table.removeprefix(PARQUET))
        for name in names
        if name.endswith(".parquet")
    }


def die_in_the_middle(table: str) -> None:
    """Ends the process as soon as the table has a file more."""
    before = files_of(table)
    while not files_of(table) - before:
        time.sleep(0.001)
    die()


def work(url: str, table: str, job: str, phase: str) -> None:
    """The job, in a process of its own: ends by SIGKILL in its phase, or continues until it is killed."""
    spark = spark_session("archive", master="local[2]", settings=SETTINGS)

    def fault(name: str) -> None:
        if name == phase:
            die()

    archiver = Archiver(
        spark,
        Options({"url": url}),
        table,
        batch_rows=500,
        task_rows=300,
        fault=fault if job == "archive" else lambda _step: None,
    )
    if job == "compact":  # so that there is something to compact
        for _batch in range(2):
            archiver.batch(JobFigures("archive"))
    if phase == DURING:
        threading.Thread(target=die_in_the_middle, args=(table,), daemon=True).start()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while True:
        archiver.batch(JobFigures("archive"), 0)
        if job == "compact":
            compact(spark, table, "fleet", fault=fault)


def killed(client: redis.Redis, url: str, table: str, job: str, phase: str, chance: random.Random) -> list[Message]:
    """One job from its beginning to its end by SIGKILL; what was published meanwhile."""
    words = [sys.executable, "-m", "tests.pipeline.kill_archive", "--work", url, table, job, phase]
    kept: list[Message] = []
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=errors, text=True)
        hanging = threading.Timer(MOST_S, process.kill)
        hanging.start()
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            begun = time.monotonic()
            until = begun + (chance.uniform(0.2, 4) if phase == RANDOM else MOST_S)
            while process.poll() is None and time.monotonic() < until:
                if len(kept) < MOST_MESSAGES:
                    kept += append(client, fleet(chance.randrange(1, 200)))
                time.sleep(0.05)
            in_time = line == "ready\n" and (phase == RANDOM or time.monotonic() < until)
            process.kill()
            if process.wait() != -signal.SIGKILL or not in_time:
                errors.seek(0)
                sys.exit(f"{job}, {phase}: ended with {process.returncode}\n{errors.read()[-4000:]}")
        finally:
            hanging.cancel()
            process.kill()
            process.wait()
    return kept


def check(url: str, table: str, kept: list[Message]) -> str:
    """What is wrong in the end; nothing, if every message is in the archive once and none in the server."""
    spark = spark_session("check", master="local[2]", settings=SETTINGS)
    archive(spark, {"url": url}, table, trim_after_s=0)
    found = archived(spark, table, "fleet").select("shard", "offset", "topic", "payload").collect()
    left = spark.read.format("holdmq").option("url", url).load().count()
    spark.stop()
    rows = Counter(Message(row.shard, row.offset, row.topic, bytes(row.payload)) for row in found)
    wanted = Counter(kept)
    lost, more = (wanted - rows).total(), (rows - wanted).total()
    return f"{lost} lost, {more} too many, {left} left behind" if lost or more or left else ""


def main() -> None:
    """Kills until the time is over, each phase at least once, then compares."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--format", choices=("delta", "parquet"), default="delta")
    parser.add_argument("--work", nargs=4, metavar=("URL", "TABLE", "JOB", "PHASE"))
    arguments = parser.parse_args()
    if arguments.work:
        work(*arguments.work)
        return
    chance = random.Random(arguments.seed)
    kills: Counter[tuple[str, str]] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        table = f"{PARQUET if arguments.format == 'parquet' else ''}{folder}/archive"
        server = Server(embedded_kinds()[0], Path(folder) / "server")
        server.start()
        try:
            client = server.client(socket_timeout=MOST_S)
            store(client, shards=2)
            kept = append(client, fleet(2000))
            deadline = time.monotonic() + arguments.minutes * 60
            while time.monotonic() < deadline or kills.total() < len(PHASES):
                job, phase = PHASES[kills.total() % len(PHASES)]
                kept += killed(client, server.url, table, job, phase, chance)
                kills[job, phase] += 1
                sys.stderr.write(f"{kills.total()} kills, now {job}, {phase}; {len(kept)} messages\n")
            wrong = check(server.url, table, kept)
        finally:
            server.close()
    shown = ", ".join(f"{job} {phase} {count}" for (job, phase), count in kills.items())
    sys.stderr.write(f"{kills.total()} kills ({shown}), {len(kept)} messages: {wrong or 'each there once'}\n")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
