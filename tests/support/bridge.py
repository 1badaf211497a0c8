"""A bridge as a child process: `python -m holdmq_bridge`, as an operator starts it."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from holdmq.server import ChildProcess
from tests.support.eventually import eventually
from tests.support.ports import Port, reserve_port
from tests.support.preloaded import Preloaded

HOST = "127.0.0.1"
READY_TIMEOUT_S = 20.0
WORKERS_READY_S = 60.0  # each of them loads all modules anew, which takes long on a busy machine
OWN_VARIABLES = ("HOLDMQ_BRIDGE_", "PYTHONUNBUFFERED")  # which a bridge reads itself; others tell Python or the linker

_preloaded = Preloaded()


class BridgeProcess(ChildProcess):
    """A bridge on a free loopback port.

    Args:
        redis_url: the server that it uses.
        directory: where its log goes; must exist.
        arguments: further options of the command line.
        environment: variables added to those of this process.
        port: a port to share or to reuse; a new one is reserved otherwise.
        open_files: the limit of its open files, soft and hard; None: that of this process.
    """

    def __init__(
        self,
        redis_url: str,
        directory: Path,
        *,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        port: Port | None = None,
        open_files: int | None = None,
    ) -> None:
        self._port = port or reserve_port()
        self._owns_port = port is None
        limited = [] if open_files is None else ["prlimit", f"--nofile={open_files}:{open_files}"]
        self._options = ["--host", HOST, "--port", str(self.port), "--redis", redis_url, *arguments]
        self._plain = open_files is None and "--workers" not in arguments
        super().__init__(
            [*limited, sys.executable, "-m", "holdmq_bridge", *self._options],
            log=directory / f"bridge-{self.port}-{id(self):x}.log",
            environment={"PYTHONUNBUFFERED": "1", **(environment or {})},
        )

    @property
    def port(self) -> int:
        """Where MQTT clients connect."""
        return self._port.number

    def start(self) -> None:
        """Start it, for the first time or after `kill` or `stop`, and wait until it accepts connections."""
        self.spawn()
        timeout_s = READY_TIMEOUT_S if self._plain else WORKERS_READY_S
        eventually(self._accepts, timeout_s, f"a bridge that accepts connections on port {self.port}")

    def restart(self) -> None:
        """Start it again, after stopping it if it still runs, on the same port."""
        if self.running:
            self.stop()
        self.start()

    def close(self) -> None:
        """Kill it if it still runs, with its workers, and give the port back."""
        if self.running:
            self.kill()
        if self.returncode is not None:
            self._end_workers()
        if self._owns_port:
            self._port.release()

    def workers(self) -> list[int]:
        """The other processes that it started and that still run, if it was killed, too."""
        found = []
        for path in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):  # it ends at this moment
                state, _, _, session = path.read_text().rpartition(") ")[2].split()[:4]
                if int(session) == self.pid != int(path.parent.name) and state != "Z":
                    found.append(int(path.parent.name))
        return found

    def _popen(self, output: int | None) -> subprocess.Popen[bytes]:
        """A plain bridge is forked from a process that has its modules loaded, which saves a second of a processor."""
        plain = self._plain and all(name.startswith(OWN_VARIABLES) for name in self.environment)
        if output is None or not plain or "LD_PRELOAD" in os.environ:
            return super()._popen(output)
        child = _preloaded.spawn(self._options, {**os.environ, **self.environment}, output)
        return cast("subprocess.Popen[bytes]", child)  # it has what ChildProcess uses

    def _end_workers(self) -> None:
        """One that had not begun to listen when its parent ended would take the ports of the next test's bridge."""
        for pid in self.workers():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        eventually(lambda: not self.workers(), READY_TIMEOUT_S, "the end of the workers")

    def _accepts(self) -> bool:
        if not self.running:
            raise RuntimeError(f"the bridge ended with status {self.returncode}:\n{self.log_text(since_start=True)}")
        try:
            socket.create_connection((HOST, self.port), 1).close()
        except OSError:
            return False
        return True
