"""The command `holdmq`, run as a process of its own against a real server."""

import json
import subprocess
import sys
from collections.abc import Callable

import pytest
import redis

from holdmq import HoldMQ
from tests.support import Server

Run = Callable[..., subprocess.CompletedProcess[bytes]]


@pytest.fixture
def run(server: Server) -> Run:
    """Runs the command; `status` is the exit status expected."""

    def holdmq(*words: str, status: int = 0, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        command = [sys.executable, "-m", "holdmq", "--url", server.url, *words]
        done = subprocess.run(command, input=stdin, capture_output=True, timeout=60, check=False)
        assert done.returncode == status, (done.stdout, done.stderr)
        return done

    return holdmq


@pytest.fixture
def hold(server: Server, client: redis.Redis) -> HoldMQ:
    """The synchronous client over the test's client."""
    del server
    return HoldMQ(client)


def json_lines(done: subprocess.CompletedProcess[bytes]) -> list[dict[str, object]]:
    """What was printed with --json."""
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_published_message_is_shown_by_last_and_backlog(run: Run) -> None:
    assert run("channel", "publish", "weather", "sunny").stdout == b"0\n"
    assert json_lines(run("--json", "channel", "publish", "weather", "-", stdin="grün".encode())) == [{"receivers": 0}]
    assert run("channel", "last", "weather").stdout.decode() == "grün\n"
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
