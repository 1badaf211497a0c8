"""The image is built and the compose file started, by docker-compose 1.29 and by the plugin: `make test-compose`.

One stack for all tests of a program: docs/install.md starts it, the tests look at it in their order.
"""

import shutil
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import httpx
import pytest
import redis

from holdmq.server import connect
from tests.compose.stack import BUILD_S, COMMANDS, Compose, copy_of_sources, docker, inspect
from tests.support import eventually, reserve_port
from tests.support.pages import blocks

HEALTHY_S = 120.0
STOP_S = 60.0
USER, PASSWORD = "NAME", "a password that is asked for"
PATIENCE = str(int(HEALTHY_S))
BEGUN_S = BUILD_S + 2 * HEALTHY_S

pytestmark = pytest.mark.timeout(BEGUN_S + BUILD_S)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The copy that both programs build from."""
    return copy_of_sources(tmp_path_factory.mktemp("compose") / "sources")


@pytest.fixture(scope="module", params=COMMANDS)
def stack(request: pytest.FixtureRequest, sources: Path) -> Iterator[Compose]:
    """A project that nobody has started yet, and without a password."""
    ports = reserve_port(), reserve_port(), reserve_port()
    made = Compose(request.param, sources, ports)
    (sources / "docker" / "password").unlink(missing_ok=True)
    try:
        yield made
    finally:
        made.close()
        for port in ports:
            port.release()


@pytest.fixture(scope="module")
def running(stack: Compose) -> Compose:
    """Started by the commands of the page, with a user who may do everything."""
    for block in blocks("docs/install.md", "sh compose"):
        stack.run_page(block.text, f"{PASSWORD}\n{PASSWORD}\n")
    for service in ("server", "bridge"):
        eventually(partial(stack.is_healthy, service), HEALTHY_S, f"a healthy {service}")
    return stack


def server_of(stack: Compose) -> redis.Redis:
    """A client of the server, through its published port."""
    password = (stack.folder / "docker" / "password").read_text().strip()
    return connect("127.0.0.1", stack.ports[0].number, password=password, decode_responses=True)


def mosquitto(program: str, stack: Compose, *options: str, user: bool = True) -> "subprocess.CompletedProcess[str]":
    """mosquitto_pub or mosquitto_sub at the published port."""
    found = shutil.which(f"mosquitto_{program}")
    assert found is not None, f"no mosquitto_{program}: run `make test-servers`"
    login = ("-u", USER, "-P", PASSWORD) if user else ()
    return subprocess.run(
        [found, "-p", str(stack.ports[1].number), *login, *options],
        capture_output=True,
        text=True,
        timeout=HEALTHY_S,
        check=False,
    )


def subscribe(stack: Compose, *options: str) -> "subprocess.CompletedProcess[str]":
    """As a device with a session that lasts."""
    return mosquitto("sub", stack, "-i", "device", "-c", "-q", "1", "-t", "a/#", "-W", PATIENCE, *options)


def publish(stack: Compose, payload: str) -> None:
    done = mosquitto("pub", stack, "-q", "1", "-t", "a/b", "-m", payload)
    assert done.returncode == 0, done.stderr


def test_without_the_file_of_the_password_nothing_starts(stack: Compose) -> None:
    done = stack("up", "--build", "--detach", timeout_s=BUILD_S, check=False)
    assert done.returncode != 0
    assert "docker/password" in done.stdout + done.stderr
    assert stack("ps", "--quiet", "bridge", check=False).stdout == ""
    stack("down", "--volumes")


def test_only_who_was_made_a_user_gets_in(running: Compose) -> None:
    assert mosquitto("pub", running, "-t", "a/b", "-m", "x", user=False).returncode == 5  # not authorised
    assert subscribe(running, "-E").returncode == 0
    publish(running, "first")
    done = subscribe(running, "-C", "1")
    assert (done.returncode, done.stdout) == (0, "first\n")


def test_the_server_wants_its_password_syncs_always_and_runs_as_a_user(running: Compose) -> None:
    with (
        connect("127.0.0.1", running.ports[0].number) as stranger,
        pytest.raises(redis.AuthenticationError),
    ):
        stranger.ping()
    with server_of(running) as client:
        assert client.config_get("appendfsync") == {"appendfsync": "always"}
    owner = running.execute("server", "stat", "-c", "%U", "/data/server.conf", "/data/appendonlydir")
    assert owner.stdout.split() == ["holdmq", "holdmq"]


def test_the_console_comes_on_request_with_its_scripts_and_lets_users_in(running: Compose) -> None:
    for words in (("role", "add", "viewer"), ("user", "grant", USER, "viewer")):
        running.execute("bridge", "holdmq-bridge", "auth", *words)
    assert running("ps", "--quiet", "console", check=False).stdout == ""
    running("--profile", "console", "up", "--detach", timeout_s=2 * HEALTHY_S)
    eventually(partial(running.is_healthy, "console"), HEALTHY_S, "a healthy console")
    with httpx.Client(base_url=f"http://127.0.0.1:{running.ports[2].number}", timeout=HEALTHY_S) as http:
        for name in ("htmx.min.js", "uPlot.iife.min.js", "uPlot.min.css"):
            assert http.get(f"/static/vendor/{name}").status_code == 200
        assert http.get("/api/v1/me").status_code == 401
        assert http.post("/login", data={"user": USER, "password": PASSWORD}).status_code == 303
        assert http.get("/api/v1/me").json()["rights"] == ["view"]
    running("--profile", "console", "rm", "--force", "--stop", "console", timeout_s=2 * STOP_S)


@pytest.mark.parametrize("service", ["server", "bridge"])
def test_the_check_of_a_container_fails_while_nothing_can_be_stored(running: Compose, service: str) -> None:
    kind, *check = running.container(service)["Config"]["Healthcheck"]["Test"]
    assert kind == "CMD"

    def status() -> int:
        return running.execute(service, *check, check=False).returncode

    assert status() == 0
    with server_of(running) as client:
        client.config_set("min-replicas-to-write", 1)
        try:
            eventually(lambda: status() == 1, HEALTHY_S, "a check that fails")
        finally:
            client.config_set("min-replicas-to-write", 0)
    eventually(lambda: status() == 0, HEALTHY_S, "a check that succeeds")


def test_settings_and_messages_outlive_the_containers_in_the_only_volume(running: Compose) -> None:
    publish(running, "kept")
    with server_of(running) as client:
        client.config_set("holdmq.session-limit", 5000)
        client.config_rewrite()
    running("stop", timeout_s=2 * STOP_S)
    for service in ("server", "bridge"):
        assert running.container(service)["State"]["ExitCode"] == 0
    assert "Failed to unload" not in running("logs", "server").stdout
    for _ in range(2):
        running("down", timeout_s=2 * STOP_S)
        running("up", "--detach", timeout_s=2 * HEALTHY_S)
        assert running.volumes() == [f"{running.project}_data"]
    eventually(lambda: running.is_healthy("bridge"), HEALTHY_S, "a healthy bridge")
    with server_of(running) as client:
        assert client.config_get("holdmq.session-limit") == {"holdmq.session-limit": "5000"}
    done = subscribe(running, "-C", "1")
    assert (done.returncode, done.stdout) == (0, "kept\n")


def test_a_container_alone_wants_a_password_or_an_explicit_no_and_leaves_no_volume(running: Compose) -> None:
    done = docker("run", "--rm", "--network", "none", running.image, check=False)
    assert done.returncode != 0
    assert "HOLDMQ_ALLOW_NO_PASSWORD=yes" in done.stderr
    name = f"{running.project}-alone"
    settings = ("--env", "HOLDMQ_ALLOW_NO_PASSWORD=yes", "--env", "HOLDMQ_CONFIG=maxmemory 300mb")
    docker("run", "--rm", "--detach", "--init", "--network", "none", "--name", name, *settings, running.image)
    try:
        eventually(lambda: docker("exec", name, "holdmq", "health", check=False).returncode == 0, HEALTHY_S, "health")
        assert "maxmemory 300mb" in docker("exec", name, "cat", "/data/server.conf").stdout
    finally:
        docker("stop", name)
    assert running.volumes() == [f"{running.project}_data"]


def test_a_changed_file_of_python_changes_the_last_layer_alone(running: Compose) -> None:
    before = inspect(running.image)["RootFS"]["Layers"]
    changed = running.folder / "bridge" / "holdmq_bridge" / "run.py"
    text = changed.read_text()
    changed.write_text(text + "# changed\n")
    try:
        running("build", timeout_s=BUILD_S)
    finally:
        changed.write_text(text)
    after = inspect(running.image)["RootFS"]["Layers"]
    assert after != before
    same = sum(old == new for old, new in zip(before, after, strict=True))
    assert same >= len(before) - 2  # that of the package, and the empty one of WORKDIR behind it
