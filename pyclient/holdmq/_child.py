"""A child process that is stopped in order, or killed, and never outlives its parent.

It knows nothing of the program that it runs.  On Linux the kernel signals the child when the thread that started it
ends.  So start it from a thread that lives as long as the child is needed.
"""

import ctypes
import os
import platform
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

STOP_TIMEOUT_S = 30.0
PR_SET_PDEATHSIG = 1  # <linux/prctl.h>

_libc = ctypes.CDLL(None, use_errno=True)


class ChildProcess:
    """A command that is run, stopped and run again.

    Args:
        command: the program and its arguments.
        log: the file that takes what it prints, appended to at each start; None: it prints where this process does.
        environment: variables added to those of this process.
    """

    def __init__(
        self,
        command: Sequence[str | os.PathLike[str]],
        *,
        log: Path | None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.command = [os.fspath(part) for part in command]
        self.log = log
        self.environment = dict(environment or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    @property
    def pid(self) -> int:
        """The process id, also of a process that has ended."""
        return self._started().pid

    @property
    def returncode(self) -> int | None:
        """How the process ended: None while it runs or before it was started, -9 after SIGKILL."""
        return None if self._process is None else self._process.poll()

    @property
    def running(self) -> bool:
        """Whether there is a process."""
        return self._process is not None and self._process.poll() is None

    @property
    def processor_ticks(self) -> int:
        """The processor time that it has used, in the kernel's ticks; 0 where there is no /proc, or no process."""
        try:
            text = Path("/proc", str(self.pid), "stat").read_text(errors="replace")
        except OSError:
            return 0
        user, system = text.rpartition(")")[2].split()[11:13]  # the name before may contain anything
        return int(user) + int(system)

    def spawn(self) -> None:
        """Start the process and return at once.

        Raises:
            RuntimeError: it runs already.
            OSError: the program cannot be run.
        """
        if self.running:
            raise RuntimeError(f"process {self.pid} runs already")
        if self.log is None:
            self._process = self._popen(None)
            return
        with self.log.open("ab") as log:
            self._log_start = log.tell()
            self._process = self._popen(log.fileno())

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """End it by SIGTERM, by SIGKILL if that takes longer than `timeout_s`; return its status."""
        process = self._started()
        if self.running:
            process.send_signal(signal.SIGCONT)
            process.terminate()
        try:
            return process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return self.kill()

    def kill(self) -> int:
        """End it by SIGKILL, as a crash would; return its status."""
        process = self._started()
        process.kill()
        return process.wait(STOP_TIMEOUT_S)

    def pause(self) -> None:
        """Stop it in its tracks (SIGSTOP)."""
        self._started().send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it continue (SIGCONT)."""
        self._started().send_signal(signal.SIGCONT)

    def log_text(self, *, since_start: bool = False) -> str:
        """Return what it printed to its log, over all starts or since the last one."""
        if self.log is None or not self.log.exists():
            return ""
        with self.log.open("rb") as log:
            log.seek(self._log_start if since_start else 0)
            return log.read().decode(errors="replace")

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError(f"{self.command[0]} was not started")
        return self._process

    def _popen(self, output: int | None) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self.command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=None if output is None else subprocess.STDOUT,
            env={**os.environ, **self.environment},
            start_new_session=True,  # Ctrl-C in the terminal is for the parent, which stops its children in order
            preexec_fn=_die_with_parent(),  # noqa: PLW1509 (two system calls, no lock)
        )


def _die_with_parent() -> Callable[[], None]:
    """Return what the child runs before its program: ask for a SIGKILL at the end of the thread that started it."""
    parent = os.getpid()

    def arm() -> None:
        if platform.system() != "Linux":
            return
        _libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:  # it was gone already
            os.kill(os.getpid(), signal.SIGKILL)

    return arm
