"""A small disk for the append-only file of a server under test, which a test fills and frees.

As root it is a tmpfs.  Who may not mount has a bound on the size of each of the server's files instead (RLIMIT_FSIZE):
a write beyond it fails in the same place, with EFBIG in place of ENOSPC.  CI runs as root and has to mount.
"""

import os
import shutil
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tests.support.server import Server
from tests.support.servers import ServerKind

_SIZE = "16m"
_BLOCK = bytes(4096)


class SmallDisk(ABC):
    """The disk below a server that has been made with `kind` and `directory`."""

    def __init__(self, kind: ServerKind, directory: Path) -> None:
        self.kind = kind
        self.directory = directory

    @abstractmethod
    def fill(self, server: Server) -> None:
        """Leave no room for the append-only file; what was written stays."""

    @abstractmethod
    def run_short(self, server: Server, kept: int) -> None:
        """Leave less than `kept` bytes, of which the server has holdmq.min-free-disk."""

    @abstractmethod
    def free(self, server: Server) -> None:
        """Make room again."""

    @abstractmethod
    def close(self) -> None:
        """Take the disk away; the server has ended."""


class Mounted(SmallDisk):
    """A tmpfs."""

    def __init__(self, kind: ServerKind, directory: Path) -> None:
        super().__init__(kind, directory)
        directory.mkdir(parents=True)
        _run("mount", "-t", "tmpfs", "-o", f"size={_SIZE}", "holdmq-test", str(directory))
        self._ballast = directory / "ballast"
        (directory / "server.log").symlink_to(directory.with_suffix(".log"))  # the log is on another disk

    def fill(self, server: Server) -> None:
        del server
        with self._ballast.open("ab", buffering=0) as ballast:
            try:
                while ballast.write(_BLOCK):
                    pass
            except OSError:  # that is what is wanted
                return

    def run_short(self, server: Server, kept: int) -> None:
        del server
        with self._ballast.open("ab") as ballast:
            while shutil.disk_usage(self.directory).free >= kept:
                ballast.write(_BLOCK)
                ballast.flush()

    def free(self, server: Server) -> None:
        del server
        self._ballast.unlink()

    def close(self) -> None:
        _run("umount", str(self.directory))


class Bounded(SmallDisk):
    """A bound on the size of files."""

    def __init__(self, kind: ServerKind, directory: Path) -> None:
        # Without it the signal that comes with a write beyond the bound would end the server.
        super().__init__(replace(kind, find=_ignoring("XFSZ", kind.command)), directory)

    def fill(self, server: Server) -> None:
        size = max(path.stat().st_size for path in self.directory.glob("appendonlydir/*.incr.aof"))
        self._limit(server, str(size))

    def run_short(self, server: Server, kept: int) -> None:
        """The disk is a large one: more of it is to be kept free than there is."""
        server.client().config_set("holdmq.min-free-disk", kept + shutil.disk_usage(self.directory).total)

    def free(self, server: Server) -> None:
        if server.process.running:
            self._limit(server, "unlimited")
            server.client().config_set("holdmq.min-free-disk", 0)

    def close(self) -> None:
        """Nothing is left."""

    def _limit(self, server: Server, size: str) -> None:
        _run("prlimit", f"--pid={server.process.pid}", f"--fsize={size}:unlimited")


def _run(name: str, *arguments: str) -> None:
    subprocess.run([_path(name), *arguments], capture_output=True, text=True, check=True)


def _path(name: str) -> str:
    found = shutil.which(name)
    assert found is not None, f"no {name}"
    return found


def _ignoring(signal: str, command: Callable[[], tuple[str, ...]]) -> Callable[[], tuple[str, ...]]:
    return lambda: (_path("env"), f"--ignore-signal={signal}", *command())


def small_disk(kind: ServerKind, directory: Path) -> SmallDisk:
    """A tmpfs where this process may mount one.

    Raises:
        CalledProcessError: CI runs as root and cannot mount.
    """
    if os.geteuid() == 0:
        try:
            return Mounted(kind, directory)
        except subprocess.CalledProcessError:  # in a container without the right to mount
            if os.environ.get("CI"):
                raise
    return Bounded(kind, directory)
