"""The commands `holdmq pipeline ...`, as a person types them.

Figures at the end, exit codes, errors that name what was wrong; what the jobs do is in the files of each.
"""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis
from click.testing import CliRunner, Result

from holdmq.cli import main
from holdmq.core import Record, session_key
from holdmq_pipeline.archive_table import open_table
from holdmq_pipeline.cli_setting import Setting
from tests.pipeline.history_support import Message, append, fleet, matching, store
from tests.support import Server, embedded_kinds

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

server_kinds = embedded_kinds
pytestmark = pytest.mark.usefixtures("spark")

ASKED = ("rooms/+/devices/+/temperature", "rooms/2/#")


def holdmq(server: Server, *words: str) -> Result:
    return CliRunner().invoke(main, ["--url", server.url, "--json", "pipeline", *words], catch_exceptions=False)


def figures(done: Result) -> dict[str, Any]:
    """The last line of a job, which are its figures."""
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert {"job", "rows", "bytes", "seconds", "rows_per_second"} <= set(found)
    return found


def refused(done: Result, said: str, exit_code: int = 1) -> None:
    """It ended with this code and says why, without a trace."""
    assert done.exit_code == exit_code, done.output
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def filled(client: redis.Redis) -> list[Message]:
    """A store with messages, which can go into a session."""
    store(client, topic_filter="rooms/#")
    sent = [message for message in fleet(220) if message[0].startswith("rooms/")]
    return append(client, sent, "fleet", "QOS", 1)


def of_filters() -> list[str]:
    return [word for one in ASKED for word in ("--filter", one)]


def test_archive_ends_with_its_figures_and_trims_as_requested(
    server: Server, client: redis.Redis, tmp_path: Path
) -> None:
    kept = filled(client)
    table = str(tmp_path / "archive")
    done = figures(holdmq(server, "archive", table, "--trim-after", "0", "--batch-rows", "120"))
    assert (done["job"], done["rows"], done["missed"]) == ("archive", len(kept), 0)
    assert done["commits"] == -(-len(kept) // 120)
    assert client.execute_command("HISTORY.REPLAY", "rooms/#")[0] == []
    client.execute_command("HISTORY.HOLD", "fleet", "archive", "RELEASE")
    append(client, fleet(20)[1:11])
    client.execute_command("HISTORY.TRIM", "fleet", 0, len(kept) + 4)
    refused(holdmq(server, "archive", table), f"numbers {len(kept) + 1} to {len(kept) + 4}")
    assert figures(holdmq(server, "archive", table, "--skip-lost"))["missed"] == 4
    refused(holdmq(server, "archive", table, "--store", "nowhere"), "nowhere")
    refused(holdmq(server, "archive", table, "--batch-rows", "0"), "--batch-rows", 2)
    for option, wrong in (("--trim-after", "-1"), ("--trim-after", "soon"), ("--follow", "0"), ("--follow", "0h")):
        refused(holdmq(server, "archive", table, option, wrong), f"'{option}': '{wrong}'; expected seconds", 2)


def test_compact_says_how_many_files_there_were_and_are(server: Server, client: redis.Redis, tmp_path: Path) -> None:
    kept = filled(client)
    table = f"parquet:{tmp_path / 'archive'}"
    holdmq(server, "archive", table, "--batch-rows", "80")
    refused(holdmq(server, "compact", table), "--store", 2)
    words = ["compact", table, "--store", "fleet"]

    def compacted(*further: str) -> tuple[int, int, int]:
        done = figures(holdmq(server, *words, *further))
        return done["rows"], done["files_before"], done["files_after"]

    assert len(kept) == 200  # 80, 80, 40
    assert compacted("--least-files", "4") == (0, 0, 0)
    assert compacted("--before", "2026-01-01") == (0, 0, 0)
    refused(holdmq(server, *words, "--before", "yesterday"), "'yesterday'")
    assert compacted("--file-rows", "160") == (160, 2, 1)  # the third would be too many
    assert compacted("--before", "2999-01-01") == (200, 2, 1)
    assert sum(one.rows for one in open_table(table).snapshot("fleet").files) == len(kept)
    nowhere = str(tmp_path / "nowhere")
    refused(holdmq(server, "compact", nowhere, "--store", "fleet"), f"{nowhere} is not an archive yet")


def test_history_writes_what_any_of_the_filters_matches_and_overwrites_nothing(
    server: Server, client: redis.Redis, tmp_path: Path
) -> None:
    kept = filled(client)
    table = str(tmp_path / "archive")
    holdmq(server, "archive", table, "--trim-after", "0")
    kept += append(client, [("rooms/2/devices/7/state", b"later")])
    chosen = ["--archive", table, "--store", "fleet", *of_filters()]
    output = tmp_path / "past.csv"
    assert figures(holdmq(server, "history", *chosen, "--output", str(output)))["rows"] == len(matching(kept, *ASKED))
    lines = [line for part in output.glob("*.csv") for line in part.read_text().splitlines()]
    assert sum("rooms/2/devices/7/state" in line and "later" in line for line in lines) == 1
    refused(holdmq(server, "history", *chosen, "--output", str(output)), "already exists")
    refused(holdmq(server, "history", "--from", "yesterday", "--output", str(tmp_path / "x")), "'yesterday'")
    refused(holdmq(server, "history", "--filter", "a/#/b", "--output", str(tmp_path / "x")), "'a/#/b'")


def test_replay_puts_the_past_where_requested_once(server: Server, client: redis.Redis) -> None:
    kept = matching(filled(client), *ASKED)
    words = ["replay", "r1", "--store", "fleet", *of_filters(), "--into", "sessions", "--to", "analyst"]
    for _twice in range(2):
        assert figures(holdmq(server, *words, "--rate", "100000"))["rows"] == len(kept)
    entries = client.execute_command("SESSION.FETCH", session_key("analyst"), "COUNT", 10000)[0]
    found = [Record.decode(entry[3]) for entry in entries]
    assert [(one.topic.decode(), one.payload) for one in found] == [(one.topic, one.payload) for one in kept]
    refused(holdmq(server, "replay", "r2", "--into", "channels"), "expected the channel or the client id")
    refused(holdmq(server, "replay", "r2", "--into", "queues"), "'queues'", 2)


def test_learn_compares_and_says_what_is_missing(server: Server, client: redis.Redis, tmp_path: Path) -> None:
    kept = filled(client)
    done = holdmq(server, "learn", "--store", "fleet")
    assert figures(done)["topics"] == len({message.topic for message in kept})
    assert "present" in done.stderr
    asked = tmp_path / "asked.tsv"
    asked.write_text("rooms/#\tmany\n")
    refused(holdmq(server, "learn", "--store", "fleet", "--filters", str(asked)), "line 1: 'many'")
    refused(holdmq(server, "learn", "--install"), "--input or --store is missing", 2)
    refused(holdmq(server, "learn", "--input", str(tmp_path), "--install"), "--install needs --store", 2)
    refused(holdmq(server, "learn", "--store", "nowhere"), "nowhere")


def test_migrate_reports_first_and_writes_on_request(
    server: Server, client: redis.Redis, fresh_server: Callable[..., Server]
) -> None:
    old = fresh_server(module=False)
    message = {"packetType": "PUBLISH", "payload": "eA==", "time": 1, "topicName": "t", "qos": 1}
    for name in ("a", "b"):
        old.client().set(f"{{{name}}}_messages_1", json.dumps({**message, "packetId": 1}))
        old.client().zadd(f"{{{name}}}_messages", {f"{{{name}}}_messages_1": 1})
    words = ["migrate", "keyspace", old.url, "--partitions", "1"]
    reported = holdmq(server, *words)
    assert figures(reported)["rows"] == 2
    assert re.search(r"^messages +2$", reported.stderr, re.MULTILINE)
    assert client.dbsize() == 0
    client.execute_command("SESSION.ADD", "{b}", "MESSAGES", "there")
    refused(holdmq(server, *words, "--execute"), "the session of b is in use")
    done = figures(holdmq(server, *words, "--execute", "--skip-conflicts"))
    assert (done["rows"], client.zcard("{a}_messages"), client.zcard("{b}_messages")) == (1, 1, 1)
    refused(holdmq(server, *words, "--limit", "0"), "--limit", 2)
    refused(holdmq(server, "migrate", "postgres", "jdbc:postgresql://127.0.0.1:1/x"), "--user", 2)


def test_audit_ends_with_status_1_if_it_found_faults(
    server: Server, client: redis.Redis, spark: "SparkSession", tmp_path: Path
) -> None:
    kept = filled(client)
    said = [(str(json.loads(one.payload)["n"]), "meter", one.topic, at) for at, one in enumerate(kept)]
    said[7] = ("never sent", *said[7][1:])  # so one is lost, and one that nobody sent is there
    frame = spark.createDataFrame(said, "message string, publisher string, topic string, number long")
    frame.selectExpr("*", "timestamp_millis(number) as time").write.parquet(str(tmp_path / "sent.parquet"))
    number = "get_json_object(cast(payload as string), '$.n')"
    words = ["--store", "fleet", "--message", number, "--output", str(tmp_path / "audit")]
    done = holdmq(server, "audit", "--published", str(tmp_path / "sent.parquet"), *words)
    refused(done, "the audit found faults")
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["rows"], found["lost"], found["unexpected"], found["duplicates"]) == (len(kept), 1, 1, 0)
    assert (tmp_path / "audit" / "index.html").exists()
    refused(holdmq(server, "audit", "--published", str(tmp_path / "nowhere"), *words), "nowhere")
    refused(holdmq(server, "audit", "--published", "x"), "--output", 2)


def test_progress_is_shown_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    setting = Setting(None, {"spark.sql.shuffle.partitions": "3"}, None)
    shown = {}
    for terminal in (True, False):
        monkeypatch.setattr(sys.stderr, "isatty", lambda terminal=terminal: terminal)
        for bar in (True, False):
            shown[terminal, bar] = setting.all_settings(bar=bar, spark_jars="x")["spark.ui.showConsoleProgress"]
    assert [one for one, text in shown.items() if text == "true"] == [(True, True)]
    assert setting.all_settings(bar=True)["spark.sql.shuffle.partitions"] == "3"


def test_a_setting_of_spark_comes_to_its_session(server: Server, spark: "SparkSession") -> None:
    name = "spark.sql.maxPlanStringLength"
    before = str(spark.conf.get(name))
    try:
        refused(holdmq(server, "--conf", f"{name}=1234", "learn", "--store", "nowhere"), "nowhere")
        assert spark.conf.get(name) == "1234"
    finally:
        spark.conf.set(name, before)


def test_a_setting_of_spark_without_a_value_is_refused(server: Server) -> None:
    refused(holdmq(server, "--conf", "spark.ui.enabled", "learn", "--store", "x"), "expected NAME=VALUE", 2)
