"""The command `holdmq` against a real server; as a process of its own where that matters, which costs half a second."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis
from click.testing import CliRunner

from holdmq import HoldMQ
from holdmq.cli import main
from holdmq.server import find_module
from tests.client.support import message_of
from tests.support import SentinelProcess, Server, reserve_port
from tests.support.sentinel import SERVICE


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
def nobody() -> Iterator[str]:
    """The URL of a port on which nobody listens."""
    with reserve_port() as port:
        yield f"redis://127.0.0.1:{port.number}"


def test_health_waits_as_long_as_asked_and_then_says_why(nobody: str, run: Run) -> None:
    begun = time.monotonic()
    done = run("--url", nobody, "health", "--wait", "1", status=1)
    assert time.monotonic() - begun >= 1
    assert b"the server does not serve: " in done.stderr
    assert run("health", "--wait", "30").stdout == b"ok\n"  # at once


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


def test_a_reader_that_has_read_enough_is_not_an_error(server: Server, hold: HoldMQ) -> None:
    for _ in range(3):
        hold.channel("weather").publish(b"x" * 200_000)  # more than a pipe holds
    command = [sys.executable, "-m", "holdmq", "--url", server.url, "channel", "backlog", "weather"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"message\n"
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 1


def test_control_characters_do_not_reach_the_terminal(run: Run, hold: HoldMQ) -> None:
    hold.channel("weather").publish(b"\x1b[31mred\n\xff")
    assert run("channel", "last", "weather").stdout == rb"\x1b[31mred\n\xff" + b"\n"


def test_control_characters_do_not_reach_the_terminal_in_json_either(run: Run, hold: HoldMQ) -> None:
    hostile = "a\x1b[31m\x7f\x85\x9b31m\u2028\u202e\U000e0001b \u2603"
    hold.channel("weather").publish(hostile)
    [line] = run("--json", "channel", "last", "weather").stdout.decode().splitlines()
    assert line.isprintable()
    assert hostile in json.loads(line).values()
    assert "\u2603" in line


def test_a_channel_that_keeps_nothing_is_exit_status_1(run: Run) -> None:
    assert b"keeps no message" in run("channel", "last", "weather", status=1).stderr
    assert json_lines(run("--json", "channel", "backlog", "weather")) == []


def test_the_policy_of_a_channel_is_shown(run: Run, client: redis.Redis) -> None:
    (policy,) = json_lines(run("--json", "channel", "policy", "weather"))
    assert (policy["glob"], policy["hold"], policy["deliver"]) == ("*", "unheard", "last")
    client.config_set("holdmq.policies", "")
    assert b"no rule matches" in run("channel", "policy", "weather", status=1).stderr


def test_a_subscription_shows_what_was_kept_and_ends_on_request(run: Run, hold: HoldMQ) -> None:
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
    assert message_of(session.fetch().entries[0]).payload == b"snow"


def test_a_dry_run_shows_what_would_be_held(run: Run, client: redis.Redis) -> None:
    client.config_set("holdmq.policies", "")
    run("dry-run", "--background", "--seconds", "1h", "--policies", "jobs; control hold=none")
    for channel in ("jobs", "jobs", "control"):
        client.publish(channel, "m")
    shown = run("--json", "dry-run", "--report")
    rows = [(row["channel"], row["messages"], row["rule"], row["key"]) for row in json_lines(shown)]
    assert rows == [("jobs", 2, "jobs", False), ("control", 0, "control", False)]
    assert b"goes on" in shown.stderr
    few = run("dry-run", "--report", "--count", "1")
    assert few.stdout.decode().splitlines()[1].split("\t")[:4] == ["jobs", "2", "2", "2"]
    assert b"1 more channels" in few.stderr
    ended = run("--json", "dry-run", "--stop", "--held")
    assert [row["channel"] for row in json_lines(ended)] == ["jobs"]
    assert b"has ended" in ended.stderr
    assert client.keys() == []


def test_a_dry_run_lasts_as_long_as_requested(run: Run, client: redis.Redis) -> None:
    client.config_set("holdmq.policies", "")
    assert run("dry-run", "--seconds", "1").stdout.startswith(b"channel\t")
    assert client.info("holdmq")["holdmq_dry_run"] == "no"


@pytest.mark.parametrize("words", [["--seconds", "0"], ["--seconds", "soon"], ["--report", "--stop"], ["--count", "0"]])
def test_wrong_options_of_a_dry_run_are_exit_status_2(run: Run, words: list[str]) -> None:
    assert words[-2].encode() in run("dry-run", *words, status=2).stderr or words[-1] == "--stop"


def test_the_state_of_the_module_is_shown(run: Run) -> None:
    (info,) = json_lines(run("--json", "info"))
    assert all(name.startswith("holdmq_") for name in info)
    assert run("check").stdout == b"difference\n"


def test_json_may_be_asked_for_anywhere(run: Run) -> None:
    assert json_lines(run("channel", "publish", "weather", "sunny", "--json")) == [{"receivers": 0}]
    run("channel", "publish", "weather", "--", "--json")
    assert json_lines(run("channel", "--json", "last", "weather")) == [{"message": "--json"}]


def test_the_path_of_the_module_is_printed_without_a_server() -> None:
    words = ["--url", "redis://127.0.0.1:1", "module-path"]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    assert Path(done.stdout.strip()) == find_module()


def test_a_module_that_is_not_there_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOLDMQ_MODULE", str(tmp_path / "none.so"))
    done = CliRunner().invoke(main, ["module-path"])
    assert done.exit_code == 1
    assert "none.so" in done.output


def test_what_is_refused_is_reported_in_one_line(run: Run, client: redis.Redis) -> None:
    refused = run("topic", "publish", "a/+", "x", status=2).stderr
    assert b"a/+" in refused
    assert b"Traceback" not in refused
    run("topic", "publish", "a", "x", "--qos", "3", status=2)
    client.set("{c}_messages", "a string")
    assert run("session", "fetch", "c", status=1).stderr.startswith(b"Error: WRONGTYPE")


def test_a_server_that_is_not_there_is_reported_in_one_line() -> None:
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


@pytest.mark.parametrize("age", ["86400", "86400.0", "24h", "1d", "1440m", "0.5d", "86399.5"])
def test_an_age_has_the_forms_that_methods_take(run: Run, age: str) -> None:
    run("history", "create", "s", "s/#", "--age", age, "--epoch", "1h", "--learn", "2.5m")
    (store,) = json_lines(run("--json", "history", "stores"))
    assert (store["age"], store["epoch"], store["learn"]) == (43200 if age == "0.5d" else 86400, 3600, 150)


def test_times_and_lives_at_the_command_line_have_the_same_forms(run: Run, hold: HoldMQ) -> None:
    hold.history.create("s", "s/#")
    hold.topics.publish("s/1", "m")
    now = time.time()
    for start in ("24h", "1.5", f"{now - 60:.3f}", str(int(now * 1000) - 60_000), "2020-01-01"):
        status = 2 if start == "1.5" else 0
        done = run("--json", "history", "replay", "s/#", "--from", start, status=status)
        assert len(json_lines(done)) == (0 if status else 1), start
    for start in (str(int(now)), "1795452585"):
        assert b"as seconds it would be" in run("history", "replay", "s/#", "--from", start, status=2).stderr
    run("topic", "publish", "t", "m", "--retain", "--ttl", "24h")
    message = hold.topics.retained_message("t")
    assert message is not None
    assert message.expires_ms is not None
    assert 86_000_000 < message.expires_ms - now * 1000 < 87_000_000
    assert json_lines(run("--json", "channel", "subscribe", "nothing", "--seconds", "0.002m")) == []


@pytest.mark.parametrize(
    "words",
    [
        ["history", "create", "s", "a", "--age", "-1"],
        ["topic", "publish", "a", "m", "--ttl", "soon"],
        ["topic", "publish", "a", "m", "--ttl", "nan"],
        ["channel", "subscribe", "x", "--seconds", "inf"],
        ["channel", "subscribe", "x", "--seconds", "1e3"],
    ],
)
def test_how_long_something_lasts_is_a_number_with_a_unit_or_without(run: Run, words: list[str]) -> None:
    assert b"or a number with a unit: 90s, 15m, 24h, 7d" in run(*words, status=2).stderr


def test_wrong_words_about_history_are_exit_status_2(run: Run) -> None:
    assert b"expected seconds from 0 on" in run("history", "create", "s", "a", "--age", "soon", status=2).stderr
    assert (
        b"expected a whole number, which k, M or G may follow"
        in run("history", "create", "s", "a", "--max-bytes", "1T", status=2).stderr
    )
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


def test_a_service_of_sentinels_is_a_server(
    fresh_server: Callable[..., Server], fresh_sentinel: Callable[[Server], SentinelProcess]
) -> None:
    primary = fresh_server()
    fresh_server(replica_of=primary)
    sentinel = fresh_sentinel(primary)
    url = f"sentinel://127.0.0.1:{sentinel.port}/{SERVICE}"
    done = CliRunner().invoke(
        main, ["--url", url, "--json", "topic", "publish", "--retain", "t", "x"], prog_name="holdmq"
    )
    assert done.exit_code == 0, done.output
    message = HoldMQ(primary.client()).topics.retained_message("t")
    assert message is not None
    assert message.payload == b"x"


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("http://127.0.0.1:6379", "sentinel://host:port,.../service"),
        ("sentinel://127.0.0.1/holdmq", "'127.0.0.1' is in the place of host:port of a Sentinel"),
        ("sentinel://127.0.0.1:26379", "'' is in the place of service[/database]"),
    ],
)
def test_a_url_of_another_form_is_refused_with_what_is_accepted(url: str, named: str) -> None:
    done = CliRunner().invoke(main, ["--url", url, "info"], prog_name="holdmq")
    assert (done.exit_code, named in done.output) == (2, True), done.output


def test_what_each_sentinel_said_is_named_if_none_names_a_primary(
    fresh_server: Callable[..., Server], fresh_sentinel: Callable[[Server], SentinelProcess]
) -> None:
    primary = fresh_server()
    fresh_server(replica_of=primary)
    sentinel = fresh_sentinel(primary)
    port = reserve_port()
    dead, alive = f"127.0.0.1:{port.number}", f"127.0.0.1:{sentinel.port}"
    done = CliRunner().invoke(main, ["--url", f"sentinel://:secret@{dead},{alive}/another", "sessions"])
    assert done.exit_code == 1
    assert f"no Sentinel names a primary of 'another' ({dead}: " in done.output
    assert f"Connection refused.; {alive}: it watches '{SERVICE}')" in done.output
    assert len(done.output) < 300
    assert "secret" not in done.output
    done = CliRunner().invoke(
        main, ["--url", f"sentinel://{dead},{alive}/{SERVICE}", "sessions"]
    )  # the other is enough
    assert done.exit_code == 0, done.output
    port.release()


def test_sentinels_and_a_cluster_exclude_each_other() -> None:
    done = CliRunner().invoke(main, ["--url", "sentinel://127.0.0.1:26379/holdmq", "--cluster", "info"])
    assert (done.exit_code, "a cluster has no Sentinels" in done.output) == (2, True), done.output
