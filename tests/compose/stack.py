"""docker-compose, or the plugin `docker compose`, on a copy of what an image is built from.

    Compose ── environment: names and ports of this run ──► program, or `docker` with its plugin ──► daemon

A block of a page runs with a `docker-compose` of its own in front of all others: it adds the name of the project, and
runs commands in containers without a terminal.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from tests.support import Port
from tests.support.pages import REPOSITORY

PLUGIN_FOLDER = REPOSITORY / "build" / "compose-plugin"
PARTS = ("Makefile", "MANIFEST.in", "README.md", "LICENSE", "setup.py", "pyproject.toml", ".dockerignore")
FOLDERS = ("src", "redis_module", "pyclient", "bridge", "console", "pipeline", "docker", "tools")
BUILT = shutil.ignore_patterns("*.so", "*.o", "*.egg-info", "__pycache__", "password", "_core.c", "_pump.c", "vendor")
COMMANDS = {"docker-compose": ("docker-compose",), "docker compose": ("docker", "compose")}
COMMAND_S = 120.0
# A whole build, which fetches packages, on a busy machine.
BUILD_S = 1500.0
# In the network of this machine, where tools/docker.sh says that containers reach nothing else.
# Takes the file that a page names from its own words.
SHIM = """#!/bin/bash
[ "$1" != --file ] || shift 2
[ "$1" != exec ] || set -- exec -T "${{@:2}}"
exec {} "$@"
"""
BUILD_IN_NETWORK = "  {}:\n    build:\n      network: {}\n"


def copy_of_sources(folder: Path) -> Path:
    """What the image is built from, without what was built here."""
    folder.mkdir()
    found = [
        path.name for pattern in ("docker-compose*.yml", "requirements*.lock") for path in REPOSITORY.glob(pattern)
    ]
    for name in (*PARTS, *found):
        shutil.copy(REPOSITORY / name, folder / name)
    for name in FOLDERS:
        shutil.copytree(REPOSITORY / name, folder / name, ignore=BUILT)
    return folder


def docker(*arguments: str, timeout_s: float = COMMAND_S, check: bool = True) -> "subprocess.CompletedProcess[str]":
    """One command of docker."""
    return _run(("docker", *arguments), Path.cwd(), dict(os.environ), timeout_s, check=check)


def inspect(name: str) -> dict[str, Any]:
    """What docker knows of a container or an image."""
    found: list[dict[str, Any]] = json.loads(docker("inspect", name).stdout)
    return found[0]


class Compose:
    """A project of its own.

    Args:
        flavour: one of COMMANDS.
        folder: a copy of the sources.
        ports: for the server, the bridge and the console, of those that the file publishes.
        file: which file.
        built: the services that images are built for.
    """

    def __init__(
        self,
        flavour: str,
        folder: Path,
        ports: tuple[Port, Port, Port],
        file: str = "docker-compose.yml",
        built: tuple[str, ...] = ("server",),
    ) -> None:
        self.folder = folder
        self.ports = ports
        self.project = f"holdmq-test-{os.getpid()}"
        self.image = self.project
        self._command = [*COMMANDS[flavour], "--project-name", self.project, "--file", file]
        server, mqtt, console = ports
        self._environment = {
            **os.environ,
            "HOLDMQ_IMAGE": self.image,
            "HOLDMQ_BALANCER_IMAGE": f"{self.image}-balancer",
            "HOLDMQ_SERVER_PUBLISH": f"127.0.0.1:{server.number}",
            "HOLDMQ_MQTT_PUBLISH": f"127.0.0.1:{mqtt.number}",
            "HOLDMQ_CONSOLE_PUBLISH": f"127.0.0.1:{console.number}",
        }
        if flavour == "docker compose":
            self._environment["DOCKER_CONFIG"] = str(PLUGIN_FOLDER)
        network = os.environ.get("HOLDMQ_BUILD_NETWORK")
        if network:
            services = [BUILD_IN_NETWORK.format(name, network) for name in built]
            (folder / "network.yml").write_text("services:\n" + "".join(services))
            self._command += ["--file", "network.yml"]

    def __call__(
        self, *arguments: str, timeout_s: float = COMMAND_S, check: bool = True
    ) -> "subprocess.CompletedProcess[str]":
        """One command."""
        return _run((*self._command, *arguments), self.folder, self._environment, timeout_s, check=check)

    def execute(self, service: str, *words: str, check: bool = True) -> "subprocess.CompletedProcess[str]":
        """A command in the container of a service."""
        return self("exec", "-T", service, *words, check=check)

    def container(self, service: str) -> dict[str, Any]:
        """What docker knows of the container of a service."""
        return inspect(self("ps", "--all", "--quiet", service).stdout.strip())

    def is_healthy(self, service: str) -> bool:
        """As docker says."""
        return bool(self.container(service)["State"]["Health"]["Status"] == "healthy")

    def volumes(self) -> list[str]:
        """All volumes of the daemon that are of this project, or of nobody."""
        listed = docker("volume", "ls", "--format", "{{.Name}}").stdout.split()
        return [name for name in listed if name.startswith(self.project) or _is_anonymous(name)]

    def run_page(self, text: str, typed: str) -> "subprocess.CompletedProcess[str]":
        """The commands of a page; `typed` is what they ask for."""
        shims = self.folder.parent / "bin"
        shims.mkdir(exist_ok=True)
        words = " ".join(f"'{word}'" for word in self._command)
        shim = shims / "docker-compose"
        program = shutil.which("docker-compose") if self._command[0] == "docker-compose" else None
        words = words.replace("'docker-compose'", f"'{program}'", 1) if program else words
        shim.write_text(SHIM.format(words))
        shim.chmod(0o755)
        environment = {**self._environment, "PATH": f"{shims}{os.pathsep}{os.environ['PATH']}"}
        command = ("/bin/bash", "-exuo", "pipefail", "-c", text)
        return _run(command, self.folder, environment, BUILD_S, check=True, typed=typed)

    def close(self) -> None:
        """Removes containers, volume and image."""
        self("down", "--volumes", "--timeout", "5", check=False)
        docker("image", "rm", "--force", self.image, f"{self.image}-balancer", check=False)


def _is_anonymous(name: str) -> bool:
    return len(name) == 64 and set(name) <= set("0123456789abcdef")


def _run(
    command: tuple[str, ...],
    folder: Path,
    environment: dict[str, str],
    timeout_s: float,
    *,
    check: bool,
    typed: str = "",
) -> "subprocess.CompletedProcess[str]":
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        input=typed,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    told = f"{' '.join(command)}: exit status {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    assert done.returncode == 0 or not check, told
    return done
