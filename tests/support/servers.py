"""The servers under test, in one table.

HOLDMQ_TEST_SERVERS selects some of them by name, separated by commas; without it the tests run with those of DEFAULT.
HOLDMQ_SERVER=/path puts one other server in the place of all.  A server that is selected and not there is an error of
the run, never a skip.
"""

import os
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from holdmq.server import ServerNotFoundError, find_server

REPOSITORY = Path(__file__).parents[2]
REDIS_70_FOLDER = REPOSITORY / "build" / "servers" / "redis-7.0"  # tools/test-servers.sh
UNPACKED_FOLDER = REPOSITORY / ".cache" / "servers"  # tools/servers.sh


@dataclass(frozen=True)
class ServerKind:
    """A server under test.

    Attributes:
        name: as in HOLDMQ_TEST_SERVERS and in the names of the tests.
        family: "redis" or "valkey".
        version: major and minor.
        find: returns the command that starts it, without the configuration file.
    """

    name: str
    family: str
    version: tuple[int, int]
    find: Callable[[], tuple[str, ...]]

    @property
    def hands_off_exactly(self) -> bool:
        """Whether a command filter sees the client's id, so that each subscriber gets its hand-off (from 7.2 on)."""
        return self.version >= (7, 2)

    @property
    def opens_deeply_bound(self) -> bool:
        """Whether modules are opened with RTLD_DEEPBIND, which a sanitizer's runtime refuses."""
        return self.family == "valkey" and self.version >= (8, 1)

    @property
    def checks_slots(self) -> bool:
        """Whether a node of a cluster can be told to stop where a command opens a key of another slot."""
        return self.family == "valkey" and self.version >= (8, 0)

    @property
    def keeps_slots_apart(self) -> bool:
        """Whether a command with a key finds only keys of its own slot on a node of a cluster."""
        return self.version >= ((8, 0) if self.family == "valkey" else (7, 4))

    def command(self) -> tuple[str, ...]:
        """The command that starts it.

        Raises:
            ServerNotFoundError: it is not there, or is another version.
        """
        command = self.find()
        family, version = version_of(command)
        if (family, version) != (self.family, self.version):
            raise ServerNotFoundError(f"{self.name} expected, but {' '.join(command)} is {family} {version}")
        return command


@cache
def version_of(command: tuple[str, ...]) -> tuple[str, tuple[int, int]]:
    """Ask a server binary for its family and version."""
    try:
        text = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True, timeout=30).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise ServerNotFoundError(f"{' '.join(command)} --version failed: {error}") from error
    match = re.match(r"(Redis|Valkey) server v=(\d+)\.(\d+)", text)
    if match is None:
        raise ServerNotFoundError(f"{' '.join(command)} is neither Redis nor Valkey: {text!r}")
    return match[1].lower(), (int(match[2]), int(match[3]))


def _embedded() -> tuple[str, ...]:
    return (str(find_server()),)


def _redis_70() -> tuple[str, ...]:
    server = REDIS_70_FOLDER / "redis-server"
    if not server.exists():
        raise ServerNotFoundError(f"no {server}: run `make test-servers`")
    return (str(server),)


def _unpacked(name: str) -> Callable[[], tuple[str, ...]]:
    def find() -> tuple[str, ...]:
        folder = UNPACKED_FOLDER / name
        if not (folder / "complete").exists():
            raise ServerNotFoundError(f"no {folder}: run `make servers`")
        # With the libraries of its own release, C library included: its own loader starts it.
        return (str(folder / "lib/ld.so"), "--library-path", str(folder / "lib"), str(folder / "bin/server"))

    return find


KINDS = (
    ServerKind("valkey-9.1", "valkey", (9, 1), _embedded),
    ServerKind("redis-7.0", "redis", (7, 0), _redis_70),
    ServerKind("valkey-8.0", "valkey", (8, 0), _unpacked("valkey-8.0")),
    ServerKind("redis-8.0", "redis", (8, 0), _unpacked("redis-8.0")),
)
DEFAULT = ("valkey-9.1", "redis-7.0")


def embedded_kinds() -> list[ServerKind]:
    """Return the embedded server alone, or the one that HOLDMQ_SERVER puts in its place.

    Raises:
        ServerNotFoundError: it is not there.
    """
    family, version = version_of(_embedded())
    return [ServerKind(f"{family}-{version[0]}.{version[1]}", family, version, _embedded)]


def selected_kinds() -> list[ServerKind]:
    """Return the servers to test with.

    Raises:
        ServerNotFoundError: HOLDMQ_SERVER or HOLDMQ_TEST_SERVERS names what is not there.
    """
    if os.environ.get("HOLDMQ_SERVER"):
        return embedded_kinds()
    names = os.environ.get("HOLDMQ_TEST_SERVERS") or ",".join(DEFAULT)
    by_name = {kind.name: kind for kind in KINDS}
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    unknown = [name for name in wanted if name not in by_name]
    if unknown or not wanted:
        raise ServerNotFoundError(f"HOLDMQ_TEST_SERVERS={names!r}: expected some of {', '.join(by_name)}")
    return [by_name[name] for name in wanted]
