"""`python -m holdmq_bridge`: options, environment, errors."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import version

import pytest
from click.testing import CliRunner, Result

from holdmq_bridge.__main__ import command
from holdmq_bridge.process.settings import Settings
from tests.bridge.conftest import Connect
from tests.support import BridgeProcess, Server, eventually

MakeBridge = Callable[..., BridgeProcess]
TIMEOUT_S = 30.0


def run(*arguments: str, environment: Mapping[str, str] | None = None) -> Result:
    """The command within this process, for what never comes to serve."""
    return CliRunner(env=environment).invoke(command, arguments, prog_name="holdmq_bridge")


def test_help_names_every_setting_with_its_default_and_variable() -> None:
    shown = CliRunner().invoke(command, ["--help"], terminal_width=10_000)  # else words are broken at hyphens
    told = " ".join(shown.stdout.split())
    for name, field in Settings.model_fields.items():
        assert f"--{name.replace('_', '-')} " in told
        assert f"HOLDMQ_BRIDGE_{name.upper()}" in told.replace(" ", "")
        assert field.default is None or f"[default: {field.default};" in told
    assert told.index("--host ") < told.index("--allow-anonymous ")  # what everybody looks for comes first


def test_the_version_is_reported() -> None:
    assert run("--version").stdout == f"holdmq-bridge, version {version('holdmq')}\n"


def test_settings_that_do_not_go_together_are_named_without_the_others() -> None:
    outcome = run("--tls-port", "8883", "--redis", "redis://:secret@127.0.0.1")
    assert outcome.exit_code == 2
    expected = "holdmq_bridge: tls_certificate is missing: tls_port and wss_port need one (given: tls_port=8883)\n"
    assert outcome.stderr == expected


def test_revoked_certificates_are_looked_for_only_where_certificates_are_asked_for() -> None:
    outcome = run("--tls-crl", "crl.pem")
    assert outcome.exit_code == 2
    expected = "holdmq_bridge: tls_crl needs tls_client_certificates to be optional or required (given: "
    assert outcome.stderr.startswith(expected)


def test_a_client_ca_without_a_request_for_certificates_is_refused() -> None:
    outcome = run("--tls-client-ca", "ca.pem")
    assert outcome.exit_code == 2
    expected = "holdmq_bridge: tls_client_ca needs tls_client_certificates to be optional or required (given: "
    assert outcome.stderr.startswith(expected)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("max-inflight", "0"),
        ("max-inflight", "65536"),
        ("port", "70000"),
        ("redis", "http://127.0.0.1"),
        ("redis", "redis://127.0.0.1?socket_timeout=3"),
        ("log-level", "loud"),
        ("lease-s", "1"),
        ("retry-total-s", "-1"),
        ("tls-port", "8883"),
        ("tls-client-certificates", "maybe"),
        ("ws-path", "mqtt"),
        ("workers", "0"),
    ],
)
def test_a_value_out_of_range_is_named_and_nothing_starts(option: str, value: str) -> None:
    outcome = run(f"--{option}", value)
    assert outcome.exit_code == 2
    assert option.replace("-", "_") in outcome.stderr.replace("-", "_")
    assert value in outcome.stderr


def test_a_value_that_is_not_a_number_is_named() -> None:
    outcome = run("--max-inflight", "many")
    assert outcome.exit_code == 2
    assert "many" in outcome.stderr


def test_a_bad_variable_is_named() -> None:
    outcome = run(environment={"HOLDMQ_BRIDGE_MAX_INFLIGHT": "-3"})
    assert outcome.exit_code == 2
    assert "max_inflight" in outcome.stderr
    assert "-3" in outcome.stderr


def test_an_address_that_is_taken_ends_with_a_reason() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        words = [sys.executable, "-m", "holdmq_bridge", "--port", str(port)]
        outcome = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert outcome.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}" in outcome.stderr


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_sighup_ends_nothing_where_there_is_nothing_to_read_again(
    server: Server, bridge: MakeBridge, dial: Connect, workers: str
) -> None:
    made = bridge(server, arguments=["--workers", workers])
    client = dial(made.port)
    os.kill(made.pid, signal.SIGHUP)
    eventually(lambda: made.log_text().count("nothing to read again") == int(workers))
    client.expect_nothing()


def test_settings_come_from_the_environment_and_the_command_line_wins(
    server: Server, bridge: MakeBridge, dial: Connect
) -> None:
    made = bridge(server, environment={"HOLDMQ_BRIDGE_LOG_LEVEL": "ERROR", "HOLDMQ_BRIDGE_SESSION_EXPIRY_S": "77"})
    with dial(made.port, "c1", clean=False):
        info = server.client().execute_command("SESSION.INFO", "{c1}")
        fields = info if isinstance(info, dict) else dict(zip(info[::2], info[1::2], strict=True))
        assert fields[b"expiry"] == 77
    assert made.log_text() == ""
    other = bridge(server, environment={"HOLDMQ_BRIDGE_LOG_LEVEL": "ERROR"}, arguments=["--log-level", "INFO"])
    eventually(lambda: "listening" in other.log_text(), what="the line that it listens")


def test_the_log_is_json_lines_and_the_last_one_has_the_counters(
    server: Server, bridge: MakeBridge, dial: Connect
) -> None:
    made = bridge(server)
    receiver, sender = dial(made.port, "r"), dial(made.port, "s")
    receiver.subscribe(("a", 1))
    sender.publish("a", b"x")
    receiver.read_publish()
    eventually(lambda: not server.client().exists("{r}_messages"), what="the acknowledgement at the server")
    assert made.stop() == 0
    lines = [json.loads(line) for line in made.log_text().splitlines()]
    assert {"time", "level", "event"} <= set(lines[0])
    last = lines[-1]
    assert last["event"] == "stopped"
    assert (last["publishes_acknowledged"], last["messages_sent"], last["messages_acknowledged"]) == (1, 1, 1)
    assert (last["sessions_opened"], last["clients_left"]) == (2, 0)
