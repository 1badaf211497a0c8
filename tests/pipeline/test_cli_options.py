"""Options of `holdmq pipeline ...` that change what a job does, each in a whole command on real servers."""

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
import redis
from click.testing import CliRunner, Result

from holdmq.cli import main
from holdmq.core import Record, session_key
from holdmq_pipeline.archive_table import open_table
from tests.pipeline.history_support import append, fleet, store
from tests.pipeline.test_cli import figures, filled, holdmq, of_filters, refused
from tests.support import Server, embedded_kinds

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

server_kinds = embedded_kinds
pytestmark = pytest.mark.usefixtures("spark")


def test_archive_follows_what_comes_later_until_it_is_ended(
    server: Server, client: redis.Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = filled(client)
    table = str(tmp_path / "archive")
    waits: list[float] = []

    def wait(seconds: float) -> None:  # for more, once; then the user ends it by Ctrl-C
        waits.append(seconds)
        if len(waits) == 2:
            raise KeyboardInterrupt
        kept.extend(append(client, fleet(20)[1:11]))

    monkeypatch.setattr("holdmq_pipeline.jobs.archive.time", SimpleNamespace(sleep=wait, time=time.time))
    done = holdmq(server, "archive", table, "--follow", "7s", "--reader", "second", "--trim-after", "24h")
    assert done.exit_code != 0
    assert waits == [7, 7]
    assert open_table(table).snapshot("fleet").watermarks == {0: len(kept)}
    info = client.execute_command("HISTORY.INFO", "fleet")
    assert b"second" in repr(info).encode()


def test_a_password_is_read_from_its_file_and_a_range_ends_where_requested(
    fresh_server: Callable[..., Server], tmp_path: Path
) -> None:
    server = fresh_server(password="open sesame")  # noqa: S106 - of a server that lives as long as the test
    client = server.client()
    filled(client)
    bare = f"redis://127.0.0.1:{server.port}"
    file = tmp_path / "password"
    file.write_text("open sesame\n")
    words = ["--password-file", str(file), "history", "--store", "fleet", *of_filters()]

    def run(*further: str) -> Result:  # without the password that is a part of the server's URL
        return CliRunner().invoke(main, ["--url", bare, "--json", "pipeline", *words, *further])

    assert figures(run("--output", str(tmp_path / "all"), "--to-time", str(int(time.time() + 60) * 1000)))["rows"] > 0
    assert figures(run("--output", str(tmp_path / "none"), "--to-time", "2020-01-01"))["rows"] == 0


def test_replay_takes_a_time_of_the_archive_to_another_server_at_a_rate(
    server: Server, client: redis.Redis, fresh_server: Callable[..., Server], tmp_path: Path
) -> None:
    store(client, topic_filter="rooms/#")
    times, kept = [], []
    for part in range(3):
        client.execute_command("WAIT", 1, 20)  # for a replica that is not there: twenty milliseconds
        times.append(client.time())
        kept.append(append(client, [(f"rooms/{part}", str(n).encode()) for n in range(60)]))
    table = str(tmp_path / "archive")
    figures(holdmq(server, "archive", table, "--trim-after", "0"))
    other = fresh_server()
    store(other.client(), "copies", topic_filter="again/#")
    begin, end = (str(seconds * 1000 + micros // 1000) for seconds, micros in times[1:])
    words = ["replay", "r", "--store", "fleet", "--archive", table, "--from", begin, "--to-time", end, "--filter", "#"]
    done = figures(holdmq(server, *words, "--to", "again/", "--target-url", other.url, "--rate", "40"))
    found = other.client().execute_command("HISTORY.REPLAY", "again/#", "COUNT", 1000)[0]
    records = [Record.decode(entry[3]) for entry in found]
    assert [(one.topic.decode(), one.payload) for one in records] == [(f"again/{m.topic}", m.payload) for m in kept[1]]
    assert done["rows"] == len(kept[1])
    assert done["seconds"] >= 0.9


def test_learn_installs_the_cheapest_set_and_writes_it_down(
    server: Server, client: redis.Redis, tmp_path: Path
) -> None:
    store(client, topic_filter="#", shards=2)
    append(client, [(f"site/{n % 3}/dev/{n}/state", b"x") for n in range(300)])
    asked, output = tmp_path / "asked.tsv", tmp_path / "patterns"
    asked.write_text("site/1/#\t7\nsite/+/dev/5/state\n")
    words = ["learn", "--store", "fleet", "--filters", str(asked), "--output", str(output), "--max-patterns", "8"]
    small = holdmq(server, *words, "--install", "--margin", "100", "--sample", "1")
    assert "generation" not in figures(small)  # nothing is cheaper by all that the current one costs
    assert set(re.findall(r"x [0-9.]+", small.stderr)) == {"x 2.00"}  # all of the sample is in one of two shards
    done = figures(holdmq(server, *words, "--estimate", "--install"))
    assert done["generation"] == 2
    assert "/dev/+" in output.read_text()
    assert client.execute_command("HISTORY.PATTERNS", "GET", "fleet") == [2, output.read_bytes()]
    refused(holdmq(server, *words, "--levels", "3"), "--levels is of no use with --store", 2)
    topics = tmp_path / "topics.csv"
    topics.write_text("topic\na/b/c/d\n")
    figures(holdmq(server, "learn", "--input", str(topics), "--levels", "3", "--output", str(output)))
    assert output.read_text().startswith("holdmq-patterns 1 levels=3\n")


def test_audit_joins_all_that_it_is_given(
    server: Server, client: redis.Redis, spark: "SparkSession", tmp_path: Path
) -> None:
    rows = [(f"m{n}", "meter", "a/t", n) for n in range(20)]
    sent = spark.createDataFrame(rows, "message string, publisher string, topic string, number long")
    sent.selectExpr("*", "timestamp_millis(number) as time").write.parquet(str(tmp_path / "sent"))
    stored = [(f"m{n}".encode(), 0, n + 1) for n in range(20)]
    spark.createDataFrame(stored, "payload binary, shard int, offset long").write.parquet(str(tmp_path / "stored"))
    got = "message,client,position,time\n" + "".join(
        f"m{n},reader,{n},2026-01-01 00:00:00\n" for n in range(20) if n != 4
    )
    (tmp_path / "got.csv").write_text(got)
    acked = [json.dumps({"message": f"m{n}", "client": "reader"}) for n in range(20) if n not in {4, 9}]
    (tmp_path / "acked.json").write_text("\n".join(acked))
    (tmp_path / "filters.csv").write_text("client,filter\nreader,a/#\n")
    client.execute_command("SESSION.ADD", session_key("reader"), *(b"x" for _ in range(9)))
    given = {name: str(tmp_path / path) for name, path in (
        ("--published", "sent"), ("--stored", "stored"), ("--delivered", "got.csv"), ("--acknowledged", "acked.json"),
        ("--subscriptions", "filters.csv"), ("--output", "audit"),
    )}  # fmt: skip
    done = holdmq(server, "audit", *(word for pair in given.items() for word in pair), "--sessions", "--limit", "10")
    refused(done, "the audit found faults")
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["lost"], found["duplicates"], found["unexpected"], found["inversions"]) == (2, 0, 0, 0)
    assert found["at_risk"] == 1


def test_migrate_keeps_to_prefixes_names_and_limits(
    server: Server, client: redis.Redis, fresh_server: Callable[..., Server], tmp_path: Path
) -> None:
    old = fresh_server(module=False, password="open sesame").client()  # noqa: S106 - as above
    (tmp_path / "password").write_text("open sesame\n")
    message = {"packetType": "PUBLISH", "payload": "eA==", "time": 1, "topicName": "t", "qos": 1}
    for n in range(1, 6):
        text = {**message, "packetId": n, "payload": "eHh4eHh4eHh4eHh4eHh4eHh4eA==" if n == 5 else "eA=="}
        old.set(f"tbmq:{{a}}_messages_{n}", json.dumps(text))
        old.zadd("tbmq:{a}_messages", {f"tbmq:{{a}}_messages_{n}": n})
    port = old.connection_pool.connection_kwargs["port"]
    (tmp_path / "filters.csv").write_text("client_id,filter,qos\na,t/#,1\n")
    words = ["migrate", "keyspace", f"redis://127.0.0.1:{port}", "--source-prefix", "tbmq:", "--prefix", "new:",
             "--source-password-file", str(tmp_path / "password"),
             "--limit", "2", "--subscriptions", str(tmp_path / "filters.csv"), "--expiry", "900"]  # fmt: skip
    size = len(Record(qos=1, time_ms=1, topic=b"t", payload=b"x").encode())
    refused(holdmq(server, *words, "--max-bytes", str(size), "--execute"), "1 oversized and 0 unreadable")
    done = figures(holdmq(server, *words, "--max-bytes", str(size), "--skip-unfit", "--execute"))
    assert (done["rows"], done["opened"], done["subscriptions"]) == (2, 1, 1)
    assert client.zrange("new:{a}_messages", 0, -1) == [b"new:{a}_messages_3", b"new:{a}_messages_4"]
    assert 0 < client.ttl("new:{a}_session") <= 900
    assert client.hexists("new:{a}_subscriptions", "t/#")
    again = figures(holdmq(server, *words, "--run", "again", "--merge", "--execute"))
    assert (again["rows"], again["lost"], client.zcard("new:{a}_messages")) == (2, 0, 4)
