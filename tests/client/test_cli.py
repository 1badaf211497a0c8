"""The command `holdmq` against a real server; as a process of its own where that matters, which costs half a second."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis
from click.testing import CliRunner

from holdmq import HoldMQ
from holdmq.cli import main
from tests.support import Server


@dataclass(frozen=True)
class Done:
    """What a run of the command printed."""

    stdout: bytes
    stderr: bytes


Run = Callable[..., Done]


@pytest.fixture
def run(server: Server) -> Run:
    """Runs the command; `status` is the exit status expected."""

    def holdmq(*words: str, status: int = 0, stdin: bytes = b"") -> Done:
        done = CliRunner().invoke(main, ["--url", server.url, *words], input=stdin, prog_name="holdmq")
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        assert done.exit_code == status, (done.stdout, done.stderr)
        return Done(done.stdout_bytes, done.stderr_bytes)

    return holdmq


@pytest.fixture
def start(server: Server) -> Run:
    """The same as a process."""

    def holdmq(*words: str, stdin: bytes = b"") -> Done:
        command = [sys.executable, "-m", "holdmq", "--url", server.url, *words]
        done = subprocess.run(command, input=stdin, capture_output=True, timeout=60, check=True)
        return Done(done.stdout, done.stderr)

    return holdmq


@pytest.fixture
def hold(server: Server, client: redis.Redis) -> HoldMQ:
    """The synchronous client over the test's client."""
    del server
    return HoldMQ(client)


def json_lines(done: Done) -> list[dict[str, object]]:
    """What was printed with --json."""
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_published_message_is_shown_by_last_and_backlog(start: Run, run: Run) -> None:
    assert run("channel", "publish", "weather", "sunny").stdout == b"0\n"
    assert json_lines(start("--json", "channel", "publish", "weather", "-", stdin="grün".encode())) == [
        {"receivers": 0}
    ]
    assert start("channel", "last", "weather").stdout.decode() == "grün\n"
    assert run("channel", "backlog", "weather").stdout.decode() == "message\nsunny\ngrün\n"
    assert json_lines(run("--json", "channel", "backlog", "weather")) == [{"message": "sunny"}, {"message": "grün"}]


def test_control_characters_do_not_reach_the_terminal(run: Run, hold: HoldMQ) -> None:
    hold.channel("weather").publish(b"\x1b[31mred\n\xff")
    assert run("channel", "last", "weather").stdout == rb"\x1b[31mred\n\xff" + b"\n"


def test_a_channel_that_keeps_nothing_is_exit_status_1(run: Run) -> None:
    assert b"keeps no message" in run("channel", "last", "weather", status=1).stderr
    assert json_lines(run("--json", "channel", "backlog", "weather")) == []


def test_the_policy_of_a_channel_is_shown(run: Run, client: redis.Redis) -> None:
    (policy,) = json_lines(run("--json", "channel", "policy", "weather"))
    assert (policy["glob"], policy["hold"], policy["deliver"]) == ("*", "unheard", "last")
    client.config_set("holdmq.policies", "")
    assert b"no rule matches" in run("channel", "policy", "weather", status=1).stderr


def test_a_subscription_shows_what_was_kept_and_ends_when_told(run: Run, hold: HoldMQ) -> None:
    hold.channel("weather.oslo").publish("snow")
    shown = run("channel", "subscribe", "--pattern", "weather.*", "--count", "1").stdout
    assert shown.decode() == "channel\tmessage\nweather.oslo\tsnow\n"
    assert json_lines(run("--json", "channel", "subscribe", "nothing", "--seconds", "0.1")) == []


def test_a_session_is_shown_and_dropped(run: Run, hold: HoldMQ) -> None:
    session = hold.session("device")
    session.open("owner", expiry=60)
    session.subscribe("weather/+", qos=2)
    hold.topics.publish("weather/oslo", "snow", qos=1)
    session.add(b"no record")
    (info,) = json_lines(run("--json", "session", "info", "device"))
    assert (info["owner"], info["messages"], info["filter weather/+"]) == ("owner", 2, "qos 2")
    assert b"owner" in run("session", "info", "device").stdout
    first, second = json_lines(run("--json", "session", "fetch", "device"))
    assert (first["packet_id"], first["state"], first["topic"], first["value"]) == (1, "queued", "weather/oslo", "snow")
    assert (second["packet_id"], second["topic"], second["value"]) == (2, None, "no record")
    assert len(json_lines(run("--json", "session", "fetch", "device", "--count", "1"))) == 1
    assert session.info().messages == 2
    run("session", "drop", "device", status=1, stdin=b"n\n")
    assert json_lines(run("--json", "session", "drop", "device", "--yes")) == [{"messages": 2}]
    assert not session.info().exists


def test_a_topic_is_published_to_and_its_retained_message_shown(run: Run, hold: HoldMQ) -> None:
    session = hold.session("device")
    session.open("owner", expiry=60)
    session.subscribe("weather/#")
    words = ["topic", "publish", "weather/oslo", "snow", "--qos", "1", "--retain", "--ttl", "60"]
    assert json_lines(run("--json", *words)) == [{"sessions": 1}]
    assert run("topic", "retained", "weather/+").stdout == b"topic\tpayload\nweather/oslo\tsnow\n"
    assert session.fetch().entries[0].message.payload == b"snow"


def test_the_state_of_the_module_is_shown(run: Run) -> None:
    (info,) = json_lines(run("--json", "info"))
    assert all(name.startswith("holdmq_") for name in info)
    assert run("check").stdout == b"difference\n"


def test_what_is_refused_is_told_in_one_line(run: Run, client: redis.Redis) -> None:
    refused = run("topic", "publish", "a/+", "x", status=2).stderr
    assert b"a/+" in refused
    assert b"Traceback" not in refused
    run("topic", "publish", "a", "x", "--qos", "3", status=2)
    client.set("weather", "a string")
    assert run("channel", "last", "weather", status=1).stderr.startswith(b"Error: WRONGTYPE")


def test_a_server_that_is_not_there_is_told_in_one_line() -> None:
    command = [sys.executable, "-m", "holdmq", "--url", "redis://127.0.0.1:1", "info"]
    done = subprocess.run(command, capture_output=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(b"Error: ")
    assert b"Traceback" not in done.stderr


# --- History ----------------------------------------------------------------------------------------------------------


def test_a_store_is_made_filled_shown_and_dropped(run: Run) -> None:
    run("history", "create", "weather", "weather/#", "--age", "7d", "--max-bytes", "64M", "--shards", "2")
    (store,) = json_lines(run("--json", "history", "stores"))
    assert (store["store"], store["filters"]) == ("weather", "weather/#")
    assert (store["age"], store["max_bytes"], store["shards"]) == (7 * 86400, 64 * 2**20, 2)
    run("topic", "publish", "weather/oslo", "snow")
    (place,) = json_lines(run("--json", "history", "append", "weather", "weather/rome", "-", stdin=b"sun"))
    assert place["new"] is True
    shards = json_lines(run("--json", "history", "info", "weather"))
    assert sum(int(str(shard["messages"])) for shard in shards) == 2
    assert b"#" in run("history", "patterns", "weather").stdout
    assert b"better" in run("history", "patterns", "weather", "--propose").stdout
    assert json_lines(run("--json", "history", "check", "weather")) == []
    run("history", "trim", "weather", str(place["shard"]), "5")
    run("history", "drop", "weather", "--yes")
    assert json_lines(run("--json", "history", "stores")) == []


def test_a_replay_prints_one_message_a_line_and_can_be_gone_on_with(run: Run, hold: HoldMQ) -> None:
    hold.history.create("s", "s/#", shards=3)
    for number in range(6):
        hold.topics.publish(f"s/{number % 2}", str(number), publisher="me")
    assert len(run("history", "replay", "s/#").stdout.splitlines()) == 7
    first = json_lines(run("--json", "history", "replay", "s/#", "--count", "2", "--cursors"))
    others = json_lines(run("--json", "history", "replay", "s/#", "--cursor", str(first[-1]["cursor"])))
    assert sorted(str(line["payload"]) for line in first + others) == list("012345")
    assert {(line["topic"], line["publisher"]) for line in others} <= {("s/0", "me"), ("s/1", "me")}
    assert json_lines(run("--json", "history", "replay", "s/0", "--to", "2001-01-01")) == []
    assert len(json_lines(run("--json", "history", "replay", "s/1", "--from", "1h", "--follow", "--count", "3"))) == 3


def test_wrong_words_about_history_are_exit_status_2(run: Run) -> None:
    assert b"expected a whole number" in run("history", "create", "s", "a", "--age", "soon", status=2).stderr
    assert b"start is 'soon'" in run("history", "replay", "a", "--from", "soon", status=2).stderr
    assert b"expected no --to" in run("history", "replay", "a", "--to", "now", "--follow", status=2).stderr
    assert b"no store" in run("history", "replay", "a", status=1).stderr


# --- Commands of other packages ---------------------------------------------------------------------------------------

PLUGIN = """
import click
from holdmq import HoldMQ
from holdmq.cli_output import output

@click.group()
def pond():
    "Ponds."

@pond.command()
@click.pass_obj
def depth(hold: HoldMQ) -> None:
    output().value("sessions", len(list(hold.sessions())))
"""
POINTS = "[holdmq.commands]\npond = a_plugin:pond\nmoat = nowhere.at_all:moat\nnumber = a_plugin:click.__doc__\n"


def test_other_packages_add_commands_by_an_entry_point(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a_plugin.py").write_text(PLUGIN)
    described = tmp_path / "a_plugin-1.0.dist-info"
    described.mkdir()
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: a-plugin\nVersion: 1.0\n")
    (described / "entry_points.txt").write_text(POINTS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "a_plugin", raising=False)
    assert json_lines(run("--json", "pond", "depth")) == [{"sessions": 0}]
    shown = run("--help").stdout
    assert b"Ponds." in shown
    assert b"channel" in shown
    assert b"'moat' cannot be loaded: No module named 'nowhere'" in run("moat", "--deep", status=1).stderr
    assert b"no click command" in run("number", status=1).stderr
