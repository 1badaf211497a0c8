"""`holdmq-bridge link`: files, options, errors, exit status."""

import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from holdmq_bridge.__main__ import command
from holdmq_bridge.uplink.settings import ConnectionSettings, ProcessSettings
from tests.bridge.uplink.support import HOST, TIMEOUT_S, LinkProcess, Local, Mosquitto, Remote, payloads
from tests.support import embedded_kinds, eventually
from tests.support.ports import reserve_port

server_kinds = embedded_kinds
MakeLink = Callable[..., LinkProcess]

GOOD = """
redis = "redis://127.0.0.1:1/0"
[[connection]]
name = "up"
address = "localhost"
topics = ["a out 1"]
"""


def run(*arguments: str) -> Result:
    """The command within this process: to start one for each wrong line takes long."""
    return CliRunner().invoke(command, ["link", *arguments], prog_name="holdmq-bridge")


def test_help_names_every_setting_but_those_that_everybody_would_see() -> None:
    told = " ".join(run("--help").stdout.split())
    for name in (*ProcessSettings.model_fields, *ConnectionSettings.model_fields):
        shown = {"topics": "topic"}.get(name, name).replace("_", "-")
        assert (f"--{shown} " in told) == (name not in ("connection", "password"))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('name = "with space"', "name"),
        ("max_inflight = 0", "max_inflight"),
        ("nonsense = 1", "nonsense"),
        ('address = "host:port"', "host:port"),
        ('tls_ca = "/x"', "need tls"),
        ('password = "x"', "username is missing"),
        ('protocol = "3.1"', "5.0"),
        ('topics = "a"', "list of topic lines"),
        ('topics = [{pattern = "a", quality = 1}]', "quality"),
        ('topics = ["a in 1", "+ in 1"]', "may match the same topic"),
        ("retry_max_s = 0.01", "retry_max_s is less"),
        ("broken", "TOML|Expected|expected"),
    ],
)
def test_a_file_that_is_wrong_is_refused_with_the_reason(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "link.toml"
    name = line.partition(" =")[0]
    kept = "\n".join(each for each in GOOD.splitlines() if not each.startswith(f"{name} ="))
    path.write_text(f"{kept}\n{line}\n")
    outcome = run("--config", str(path))
    assert outcome.exit_code == 2, outcome.stderr
    assert any(each in outcome.stderr for each in said.split("|")), outcome.stderr
    assert outcome.stderr.count("\n") == 1, outcome.stderr


def test_two_links_of_one_name_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "link.toml"
    path.write_text(GOOD + GOOD.partition("\n")[2].partition("\n")[2])
    outcome = run("--config", str(path))
    assert outcome.exit_code == 2
    assert "'up' is given to several links" in outcome.stderr


@pytest.mark.parametrize("count", [0, 101])
def test_a_file_has_at_least_one_link_and_at_most_a_hundred(tmp_path: Path, count: int) -> None:
    path = tmp_path / "link.toml"
    link = '{{name = "l{}", address = "localhost", topics = ["a out 1"]}}'
    path.write_text(f"connection = [{', '.join(link.format(number) for number in range(count))}]\n")
    outcome = run("--config", str(path))
    assert outcome.exit_code == 2
    assert outcome.stderr == f"holdmq_bridge link: connection: Value error, {count} links; expected 1 to 100\n"


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    outcome = run("--config", str(tmp_path / "none.toml"))
    assert outcome.exit_code == 1
    assert "none.toml" in outcome.stderr


def test_a_link_configured_by_options_carries_messages_and_ends_in_order(
    local: Local, mosquitto: Callable[..., Mosquitto], remote: Callable[..., Remote], tmp_path: Path
) -> None:
    broker = mosquitto()
    there = remote(broker.port)
    there.listen("#")
    log = tmp_path / "link.log"
    options = [
        "--redis",
        local.server.url,
        "--name",
        "cli",
        "--address",
        f"{HOST}:{broker.port}",
        "--protocol",
        "3.1.1",
    ]
    with log.open("wb") as out, reserve_port() as port:
        options += ["--topic", "a out 1", "--topic", 'b/# in 2 "" c/', "--metrics-port", str(port.number)]
        process = subprocess.Popen([sys.executable, "-m", "holdmq_bridge", "link", *options], stderr=out)
        try:
            eventually(lambda: '"connected"' in log.read_text(), TIMEOUT_S)
            process.send_signal(signal.SIGHUP)
            eventually(lambda: "nothing to read again" in log.read_text(), TIMEOUT_S)
            local.publish("a", b"1")
            eventually(lambda: payloads(there.messages) == [b"1"], TIMEOUT_S)
            shown = eventually(lambda: metrics(port.number, "acknowledged_total") == 1, TIMEOUT_S)
            assert shown
            assert metrics(port.number, "connected") == 1
            process.terminate()
            assert process.wait(TIMEOUT_S) == 0
        finally:
            process.kill()
            process.wait()
    assert not local.hold.session("link:cli").info().connected


def metrics(port: int, name: str) -> float:
    with urllib.request.urlopen(f"http://{HOST}:{port}/metrics", timeout=TIMEOUT_S) as answer:
        lines = answer.read().decode().splitlines()
    return float(next(line.split()[-1] for line in lines if line.startswith(f'holdmq_link_{name}{{link="cli"}}')))


def test_several_links_run_in_one_process(
    local: Local, mosquitto: Callable[..., Mosquitto], remote: Callable[..., Remote], uplink: MakeLink
) -> None:
    first, second = mosquitto(), mosquitto()
    link = uplink(local, first, ["a out 1"], start=False)
    more = '[[connection]]\nname = "two"\naddress = "127.0.0.1:{}"\ntopics = [{{pattern = "b", qos = 2}}]\n'
    link.config.write_text(link.config.read_text() + more.format(second.port))
    link.spawn()
    eventually(lambda: link.events("connected") == 2, TIMEOUT_S)
    there = [remote(broker.port, f"tester-{broker.port}") for broker in (first, second)]
    for each in there:
        each.listen("#")
    local.publish("a", b"1")
    local.publish("b", b"2", qos=2)
    eventually(lambda: [payloads(each.messages) for each in there] == [[b"1"], [b"2"]], TIMEOUT_S)
