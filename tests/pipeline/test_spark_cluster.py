"""The pipeline on a cluster of Spark, by the very commands that docs/pipeline.md shows.

Programs and commands are taken from there; only addresses and paths are replaced. Paths count from the driver's folder,
so what a task takes for a path of its own would be missing. Results are compared with plain Python.
"""

import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from holdmq.core import Record, session_key
from holdmq.server import ChildProcess
from holdmq_pipeline.archive_table import open_table
from tests.pipeline.history_support import Message, append, fleet, matching, store
from tests.pipeline.spark_cluster import END_S, SparkCluster
from tests.support import Server, embedded_kinds, eventually
from tests.support.pages import blocks

server_kinds = embedded_kinds

BIN = Path(sys.executable).parent
FILTER = "rooms/+/devices/+/temperature"
# Several commands as one process would run them one by one: Spark starts once.
COMMANDS = """
import json, sys
from holdmq.cli import main
for words in json.loads(sys.argv[1]):
    main(words, standalone_mode=False)
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """A cluster that the tests share; nothing of it is left behind."""
    made = SparkCluster(tmp_path_factory.mktemp("cluster"))
    try:
        yield made
    finally:
        made.close()

    def ended() -> bool:
        left = made.left_over()
        assert not left, left
        return True

    eventually(ended, END_S, "the end of all processes of the cluster")


@pytest.fixture(scope="module")
def kept(shared_server: Server) -> list[Message]:
    """What the store `fleet` has; `copies` keeps what is published under again/."""
    client = shared_server.client()
    store(client, shards=2, topic_filter="rooms/#")
    store(client, "copies", topic_filter="again/#")
    return append(client, [message for message in fleet(500) if message[0].startswith("rooms/")])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What stands for the folder that all machines have."""
    return tmp_path_factory.mktemp("shared")


def shown(kind: str) -> str:
    """The block of this kind of the document."""
    [block] = blocks("docs/pipeline.md", kind)
    return block.text + "\n"


def commands(program: str, cluster: SparkCluster, server: Server) -> list[list[str]]:
    """The commands of the document that call this program, with the addresses of this test and relative paths."""
    text = shown("sh cluster").replace("\\\n", " ")
    replaced = {
        "spark://master:7077": cluster.url,
        "redis://db:6379": server.url,
        "/shared/": "",
        "/opt/holdmq/bin/python ": "",
    }
    for of_document, of_test in replaced.items():
        assert of_document in text
        text = text.replace(of_document, of_test)
    lines = [shlex.split(line.removeprefix("PYSPARK_PYTHON=")) for line in text.splitlines()]
    found = [words[1:] for words in lines if words and words[0] == program]
    assert found, program
    return found


def entries(server: Server, client_id: str) -> list[tuple[str, bytes]]:
    """What waits in a session, sorted."""
    return decoded(server.client().execute_command("SESSION.FETCH", session_key(client_id), "COUNT", 10000)[0])


def decoded(found: list[list[Any]]) -> list[tuple[str, bytes]]:
    """Topics and payloads of messages as sessions and history give them, sorted."""
    records = [Record.decode(entry[3]) for entry in found]
    return sorted((record.topic.decode(), record.payload) for record in records)


def plain(messages: list[Message]) -> list[tuple[str, bytes]]:
    return sorted((message.topic, message.payload) for message in messages)


@pytest.fixture(scope="module")
def drivers(cluster: SparkCluster, shared_server: Server, kept: list[Message], folder: Path) -> dict[str, ChildProcess]:
    """The application and the commands, both at once: while one has the cluster, the other starts."""
    assert kept
    (folder / "application.py").write_text(shown("python application"))
    [words] = commands("spark-submit", cluster, shared_server)
    submitted = cluster.start([BIN / "spark-submit", *words], folder, PYSPARK_PYTHON=sys.executable)
    typed = json.dumps(commands("holdmq", cluster, shared_server))
    return {"application": submitted, "commands": cluster.start([sys.executable, "-c", COMMANDS, typed], folder)}


def test_an_application_that_is_submitted_reads_writes_and_streams(
    cluster: SparkCluster, shared_server: Server, kept: list[Message], drivers: dict[str, ChildProcess]
) -> None:
    cluster.finish(drivers["application"])
    warm = matching(kept, FILTER)
    again = shared_server.client().execute_command("HISTORY.REPLAY", "again/#", "STORE", "copies", "COUNT", 10000)[0]
    assert decoded(again) == [(f"again/{topic}", payload) for topic, payload in plain(warm)]
    assert entries(shared_server, "analyst") == plain(kept)


def test_the_commands_run_on_a_cluster(
    cluster: SparkCluster, kept: list[Message], folder: Path, drivers: dict[str, ChildProcess]
) -> None:
    cluster.finish(drivers["commands"])
    snapshot = open_table(str(folder / "archive")).snapshot("fleet")
    assert sum(one.rows for one in snapshot.files) == len(kept)
    assert len({(one.date, one.structure) for one in snapshot.files}) == len(snapshot.files)  # compacted
    past = pq.read_table(folder / "past.parquet", columns=["shard", "offset", "topic", "payload"]).to_pylist()
    assert sorted(Message(**row) for row in past) == sorted(matching(kept, "rooms/2/#"))


def test_executors_of_both_workers_had_tasks_of_each(cluster: SparkCluster, drivers: dict[str, ChildProcess]) -> None:
    for driver in drivers.values():
        cluster.finish(driver)
    executed = cluster.executed()
    assert len(executed) == len(drivers)
    assert all(finished for counts in executed.values() for finished in counts), executed
