"""The commands `holdmq pipeline ...`, as a person types them."""

import json
from pathlib import Path
from typing import Any

import pytest
import redis
from click.testing import CliRunner, Result

from holdmq.cli import main
from holdmq.core import session_key
from tests.pipeline.history_support import append, fleet, matching, store
from tests.support import Server, embedded_kinds

server_kinds = embedded_kinds


def holdmq(server: Server, *words: str) -> Result:
    return CliRunner().invoke(main, ["--url", server.url, "--json", "pipeline", *words], catch_exceptions=False)


def figures(done: Result) -> dict[str, Any]:
    """The last line of a job, which are its figures."""
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert {"job", "rows", "bytes", "seconds", "rows_per_second"} <= set(found)
    return found


@pytest.mark.usefixtures("spark")
def test_a_store_is_archived_learned_from_exported_and_replayed_from_the_command_line(
    server: Server, client: redis.Redis, tmp_path: Path
) -> None:
    store(client, topic_filter="rooms/#")
    sent = [message for message in fleet(300) if message[0].startswith("rooms/")]
    kept = append(client, sent[:200], "fleet", "QOS", 1)
    table, asked = str(tmp_path / "archive"), "rooms/+/devices/+/temperature"
    archived = figures(holdmq(server, "archive", table, "--trim-after", "0", "--batch-rows", "120"))
    assert archived["rows"] == len(kept)
    assert archived["commits"] >= 2
    learned = figures(holdmq(server, "learn", "--input", table, "--store", "fleet"))
    assert (learned["rows"], learned["topics"]) == (len(kept), len({message.topic for message in kept}))
    kept += append(client, sent[200:], "fleet", "QOS", 1)
    wanted = matching(kept, asked)

    compacted = figures(holdmq(server, "compact", table, "--store", "fleet"))
    assert compacted["rows"] > 0
    chosen = ["--archive", table, "--store", "fleet", "--filter", asked]
    exported = figures(holdmq(server, "history", *chosen, "--output", str(tmp_path / "past.csv")))
    assert exported["rows"] == len(wanted)
    again = holdmq(server, "history", *chosen, "--output", str(tmp_path / "past.csv"))
    assert again.exit_code == 1
    assert "already exists" in again.stderr
    replayed = figures(holdmq(server, "replay", "r1", *chosen, "--into", "sessions", "--to", "analyst"))
    assert replayed["rows"] == len(wanted)
    waiting: Any = client.execute_command("SESSION.INFO", session_key("analyst"))
    assert len(wanted) in list(waiting.values() if isinstance(waiting, dict) else waiting)


def test_what_cannot_be_is_an_error_of_the_command_line(server: Server) -> None:
    asked = holdmq(server, "learn", "--install")
    assert asked.exit_code == 2
    assert "--input or --store is missing" in asked.stderr
    setting = holdmq(server, "--conf", "spark.ui.enabled", "learn", "--store", "x")
    assert setting.exit_code == 2
    assert "expected NAME=VALUE" in setting.stderr
    missing = holdmq(server, "learn", "--store", "nowhere")
    assert missing.exit_code == 1
    assert missing.stderr.startswith("Error: ")
