"""A bridge as a child process: `python -m holdmq_bridge`, as an operator starts it."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from holdmq.server import die_with_parent
from tests.support.eventually import eventually
from tests.support.ports import Port, reserve_port

READY_TIMEOUT_S = 20.0
STOP_TIMEOUT_S = 20.0


class BridgeProcess:
    """A bridge on a free loopback port.

    Args:
        redis_url: the server that it uses.
        directory: where its log goes; must exist.
        arguments: further options of the command line.
        environment: variables added to those of this process.
        port: a port to share or to reuse; a new one is reserved otherwise.
    """

    def __init__(
        self,
        redis_url: str,
        directory: Path,
        *,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        port: Port | None = None,
    ) -> None:
        self.redis_url = redis_url
        self.arguments = list(arguments)
        self.environment = dict(environment or {})
        self.host = "127.0.0.1"
        self._port = port or reserve_port()
        self._owns_port = port is None
        self._log = directory / f"bridge-{self._port.number}-{id(self):x}.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def port(self) -> int:
        """Where MQTT clients connect."""
        return self._port.number

    @property
    def pid(self) -> int:
        """The process id."""
        if self._process is None:
            raise AssertionError("the bridge was not started")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether there is a process."""
        return self._process is not None and self._process.poll() is None

    def start(self, *, wait: bool = True) -> None:
        """Start it and wait until it accepts connections (without `wait`, return at once)."""
        command = [sys.executable, "-m", "holdmq_bridge", "--host", self.host, "--port", str(self.port)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "--redis", self.redis_url, *self.arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **self.environment},
                start_new_session=True,
                preexec_fn=die_with_parent(signal.SIGKILL),  # noqa: PLW1509 (the function only makes one system call)
            )
        if wait:
            self.wait_ready()

    def wait_ready(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Wait until it accepts connections; if it ends before, fail with its log."""
        eventually(self._accepts, timeout_s, f"a bridge that accepts connections on port {self.port}")

    def kill(self) -> None:
        """End it by SIGKILL, as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(STOP_TIMEOUT_S)

    def stop(self) -> int:
        """End it by SIGTERM and return its exit status; fails if it does not end in time."""
        if self._process is None:
            raise AssertionError("the bridge was not started")
        self._process.terminate()
        return self._process.wait(STOP_TIMEOUT_S)

    def restart(self) -> None:
        """Start it again after `kill` or `stop`, on the same port."""
        self.start()

    def pause(self) -> None:
        """Stop it in its tracks (SIGSTOP)."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on (SIGCONT)."""
        os.kill(self.pid, signal.SIGCONT)

    def log_text(self) -> str:
        """What it printed."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def close(self) -> None:
        """Kill it if it still runs, and give the port back."""
        self.kill()
        if self._owns_port:
            self._port.release()

    def _accepts(self) -> bool:
        if self._process is not None and self._process.poll() is not None:
            raise RuntimeError(f"the bridge ended with status {self._process.returncode}:\n{self.log_text()}")
        try:
            socket.create_connection((self.host, self.port), 1).close()
        except OSError:
            return False
        return True
