"""The units below ops/systemd: systemd takes them, the page installs them, and their commands serve, tell and check.

Paths of the units and of the page are those of a folder of the test, and so are the ports.  The test takes the place of
systemd: it runs each command of a unit as it is written there, with the unit's environment, and hears what the bridge
tells.
"""

import contextlib
import os
import re
import secrets
import shlex
import shutil
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdmq.server import ChildProcess
from tests.support import Port, eventually, reserve_port
from tests.support.pages import REPOSITORY, blocks

UNITS = REPOSITORY / "ops" / "systemd"
PAGE_S = 30.0
COMMAND_S = 60.0
READY_S = 30.0
MOST_EXPOSED = 3.0  # of 10, as systemd-analyze judges what a service may do
WATCHDOG_S = 1  # that of the unit is longer than a test
SILENT_S = 2.0 * WATCHDOG_S  # four times as long as between two signs of life


class Unit:
    """A file of systemd.

    Args:
        path: of the file.
        folder: in the place of /.
    """

    def __init__(self, path: Path, folder: Path) -> None:
        self.path = path
        self._folder = folder
        self._lines = [
            (name, value)
            for line in path.read_text().splitlines()
            if not line.startswith(("#", "["))
            for name, is_set, value in [line.partition("=")]
            if is_set
        ]

    def values(self, name: str) -> list[str]:
        """All of a name, in their order."""
        return [value for key, value in self._lines if key == name]

    def value(self, name: str) -> str:
        """The only one."""
        [found] = self.values(name)
        return found

    def environment(self, more: dict[str, str]) -> dict[str, str]:
        """What the unit sets, then `more`, as a file of EnvironmentFile= would."""
        assert self.values("EnvironmentFile")
        words = [word for value in self.values("Environment") for word in shlex.split(value)]
        own = dict(word.split("=", 1) for word in words)
        return {name: here(value, self._folder) for name, value in own.items()} | more

    def commands(self, name: str, environment: dict[str, str]) -> list[list[str]]:
        """The words of each command, with the variables in them."""
        return [
            [
                re.sub(r"\$\{?(\w+)\}?", lambda found: environment[found[1]], here(word, self._folder))
                for word in shlex.split(value)
            ]
            for value in self.values(name)
        ]


def as_user() -> list[str]:
    """What is put before a command so that it runs as another user than root, as systemd runs it (User=).

    A namespace of users: files of root stay within reach, rights of root do not.
    """
    return ["unshare", "--user", "--map-user=1000", "--map-group=1000"] if os.geteuid() == 0 else []


def here(text: str, folder: Path) -> str:
    """The text with its paths in the folder of the test."""
    return re.sub(r"(?<![\w/])/(opt|etc|var/lib)/", lambda found: f"{folder}/{found[1]}/", text)


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A folder in the place of /, with HoldMQ in /opt/holdmq."""
    (tmp_path / "opt" / "holdmq").mkdir(parents=True)
    (tmp_path / "opt" / "holdmq" / "bin").symlink_to(Path(sys.executable).parent)
    (tmp_path / "etc" / "systemd" / "system").mkdir(parents=True)
    (tmp_path / "var" / "lib").mkdir(parents=True)
    return tmp_path


@pytest.fixture
def installed(machine: Path) -> Path:
    """The same, after the commands of the page; what would change this machine itself is only noted."""
    shims = machine / "shims"
    shims.mkdir()
    for name in ("useradd", "chown", "systemctl"):
        path = shims / name
        path.write_text(f'#!/bin/bash\necho {name} "$@" >>"{machine}/changes"\n')
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    [block] = blocks("docs/install.md", "sh systemd")
    done = subprocess.run(
        ["/bin/bash", "-exuo", "pipefail", "-c", here(block.text, machine)],
        cwd=REPOSITORY,
        env={**os.environ, "PATH": os.pathsep.join([str(shims), os.environ["PATH"]])},
        capture_output=True,
        text=True,
        timeout=PAGE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return machine


def units(folder: Path) -> dict[str, Path]:
    """By their names."""
    return {path.name: path for path in sorted((folder / "etc" / "systemd" / "system").iterdir())}


def analyze(*words: str | Path) -> "subprocess.CompletedProcess[str]":
    program = shutil.which("systemd-analyze")
    assert program is not None, "no systemd-analyze: bash tools/needed.sh systemd"
    return subprocess.run([program, *words], capture_output=True, text=True, timeout=COMMAND_S, check=False)


def test_the_page_installs_all_units_and_enables_those_that_can_be(installed: Path) -> None:
    found = units(installed)
    assert set(found) == {path.name for path in UNITS.iterdir()}
    changes = [shlex.split(line) for line in (installed / "changes").read_text().splitlines()]
    [enabled] = [words[3:] for words in changes if words[:3] == ["systemctl", "enable", "--now"]]
    assert set(enabled) == {name for name, path in found.items() if "[Install]" in path.read_text()}
    assert {tuple(words[-1:]) for words in changes if words[0] == "useradd"} == {("holdmq",)}
    services = [Unit(path, installed) for name, path in found.items() if name.endswith(".service")]
    assert {unit.value("User") for unit in services} == {"holdmq"}
    assert (installed / "etc" / "holdmq" / "password").stat().st_mode & 0o077 == 0


def test_systemd_takes_the_units(installed: Path) -> None:
    for path in units(installed).values():
        path.write_text(here(path.read_text(), installed))
    done = analyze("verify", "--man=no", *units(installed).values())
    told = [line for line in done.stderr.splitlines() if "holdmq" in line]
    assert (done.returncode, told) == (0, []), done.stderr


def test_systemd_finds_what_is_wrong_with_a_unit(installed: Path) -> None:
    path = units(installed)["holdmq-bridge.service"]
    path.write_text(here(path.read_text(), installed).replace("WatchdogSec=", "WatchDogSeconds="))
    assert "WatchDogSeconds" in analyze("verify", "--man=no", path).stderr


@pytest.mark.parametrize("name", ["holdmq-server.service", "holdmq-bridge.service"])
def test_a_service_may_do_little(name: str) -> None:
    done = analyze("security", "--offline=yes", UNITS / name)
    [judged] = re.findall(r"Overall exposure level for \S+: ([\d.]+)", done.stdout)
    assert float(judged) < MOST_EXPOSED, done.stdout


class Systemd:
    """Runs what the units say.

    Args:
        folder: where they were installed.
        ports: of the server, of the bridge, of its metrics.
        more: variables for all units.
    """

    def __init__(self, folder: Path, ports: list[Port], more: dict[str, str]) -> None:
        self._folder = folder
        server, mqtt, metrics = (port.number for port in ports)
        (folder / "etc" / "holdmq" / "server.conf").write_text(f"port {server}\n")
        self._more = {
            "HOLDMQ_CONFIG_FILE": str(folder / "etc" / "holdmq" / "server.conf"),
            "HOLDMQ_URL": f"redis://127.0.0.1:{server}",
            "HOLDMQ_BRIDGE_REDIS": f"redis://127.0.0.1:{server}",
            "HOLDMQ_BRIDGE_PORT": str(mqtt),
            "HOLDMQ_BRIDGE_METRICS_PORT": str(metrics),
            **more,
        }
        self.address = f"holdmq-test-{secrets.token_hex(8)}"
        self._hears = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._hears.bind("\0" + self.address)
        self._hears.setblocking(False)
        self._told: list[str] = []
        self.services: dict[str, ChildProcess] = {}

    def unit(self, name: str) -> tuple[Unit, dict[str, str]]:
        """A unit and its environment."""
        unit = Unit(units(self._folder)[f"{name}.service"], self._folder)
        return unit, unit.environment(self._more)

    def start(self, name: str) -> None:
        """Its ExecStart; what comes after that has to succeed."""
        unit, environment = self.unit(name)
        if unit.value("Type") == "notify":
            environment |= {"NOTIFY_SOCKET": f"@{self.address}", "WATCHDOG_USEC": str(WATCHDOG_S * 1_000_000)}
        [command] = unit.commands("ExecStart", environment)
        service = ChildProcess([*as_user(), *command], log=self._folder / f"{name}.log", environment=environment)
        self.services[name] = service
        service.spawn()
        for after in unit.commands("ExecStartPost", environment):
            done = run(after, environment)
            assert done.returncode == 0, f"{after}: {done.stderr}{service.log_text()}"

    def reload(self, name: str) -> None:
        """Its ExecReload."""
        unit, environment = self.unit(name)
        service = self.services[name]
        for command in unit.commands("ExecReload", environment | {"MAINPID": str(service.pid)}):
            assert run(command, environment).returncode == 0
        eventually(lambda: "at a SIGHUP" in service.log_text(), READY_S, "a line that tells of the signal")

    def check(self) -> list[int]:
        """The statuses of the commands of the check."""
        unit, environment = self.unit("holdmq-health")
        return [run(command, environment).returncode for command in unit.commands("ExecStart", environment)]

    def told(self) -> list[str]:
        """All lines so far."""
        with contextlib.suppress(BlockingIOError):
            while True:
                self._told += self._hears.recv(4096).decode().split("\n")
        return self._told

    def is_silent(self, seconds: float) -> bool:
        """Whether nothing is told for so long."""
        self._hears.settimeout(seconds)
        try:
            self._hears.recv(4096)
        except TimeoutError:
            return True
        finally:
            self._hears.setblocking(False)
        return False

    def status(self) -> str:
        """The last one."""
        found = [line for line in self.told() if line.startswith("STATUS=")]
        return found[-1].removeprefix("STATUS=") if found else ""

    def close(self) -> None:
        """Ends everything."""
        for service in self.services.values():
            if service.running:
                service.kill()
        self._hears.close()


def run(command: list[str], environment: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*as_user(), *command],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=COMMAND_S,
        check=False,
    )


@pytest.fixture
def systemd(installed: Path, request: pytest.FixtureRequest) -> Iterator[Systemd]:
    """With as many workers as the test's parameter says."""
    ports = [reserve_port() for _ in range(3)]
    made = Systemd(installed, ports, {"HOLDMQ_BRIDGE_WORKERS": str(request.param)})
    try:
        yield made
    finally:
        made.close()
        for port in ports:
            port.release()


@pytest.mark.parametrize("systemd", [1, 2], indirect=True)
def test_the_commands_of_the_units_serve_tell_and_check(systemd: Systemd) -> None:
    assert systemd.unit("holdmq-bridge")[0].value("WatchdogSec")
    systemd.start("holdmq-bridge")
    eventually(lambda: systemd.status() == "not ready: there is no connection to the server", READY_S, "a status")
    assert systemd.check() == [1, 1]
    assert "READY=1" not in systemd.told()
    systemd.start("holdmq-server")
    eventually(lambda: systemd.status() == "ready", READY_S, "a bridge that is ready")
    assert "READY=1" in systemd.told()
    assert systemd.check() == [0, 0]
    systemd.reload("holdmq-bridge")
    alive = systemd.told().count("WATCHDOG=1")
    eventually(lambda: systemd.told().count("WATCHDOG=1") > alive + 1, READY_S, "signs of life")
    assert systemd.services["holdmq-server"].stop() == 0
    eventually(lambda: systemd.status().startswith("not ready: "), READY_S, "a bridge that says why it is not ready")
    assert systemd.check() == [1, 1]
    systemd.start("holdmq-server")  # what was stored is loaded
    eventually(lambda: systemd.status() == "ready", READY_S, "a bridge that is ready again")
    assert systemd.services["holdmq-bridge"].stop() == 0
    assert "STOPPING=1" in systemd.told()


@pytest.mark.parametrize("systemd", [1], indirect=True)
def test_a_bridge_whose_event_loop_hangs_says_nothing(systemd: Systemd) -> None:
    systemd.start("holdmq-bridge")
    eventually(lambda: "WATCHDOG=1" in systemd.told(), READY_S, "a sign of life")
    bridge = systemd.services["holdmq-bridge"]
    bridge.pause()
    eventually(lambda: Path(f"/proc/{bridge.pid}/stat").read_text().rpartition(") ")[2][0] == "T", READY_S, "a stop")
    systemd.told()  # what was said before
    assert systemd.is_silent(SILENT_S)
    bridge.resume()
    assert not systemd.is_silent(READY_S)
