"""A process that has loaded a bridge's modules, and becomes a bridge as often as it is asked to.

Most tests of a bridge start one, and loading its modules takes a second of processor time.  This process loads them
once.  For each request it forks a child that goes on as `python -m holdmq_bridge` does, with arguments, environment,
folder and output of its own.

A request is JSON.  With the descriptor of an output it starts a bridge, and the answer is the process id.  With a
process id it asks how that child ended: the answer is a status as of subprocess.Popen, null while it runs.
"""

import contextlib
import ctypes
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

PROGRAM = "holdmq_bridge"
MODULES = ("holdmq_bridge.__main__", "holdmq_bridge.serve")
ANSWER_TIMEOUT_S = 60.0  # loading takes a second of an idle processor
LONGEST = 1 << 20  # bytes of a request: an environment has a few thousand
PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


class Preloaded:
    """The process; the first request starts it, and it ends with this one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._channel: socket.socket | None = None

    def spawn(self, arguments: Sequence[str], environment: Mapping[str, str], output: int) -> "Child":
        """Start a bridge; `environment` is all of its variables, `output` takes what it prints."""
        request = {"arguments": [*arguments], "environment": {**environment}, "folder": str(Path.cwd())}
        return Child(self, int(self._answer(request, output)), arguments)

    def status(self, pid: int) -> int | None:
        """How the child of this process id ended; None while it runs."""
        answer = self._answer({"pid": pid})
        return None if answer is None else int(answer)

    def _answer(self, request: Mapping[str, Any], *descriptors: int) -> Any:
        with self._lock:
            if self._channel is None:
                self._channel = _start()
            socket.send_fds(self._channel, [json.dumps(request).encode()], descriptors)
            answer = self._channel.recv(LONGEST)
        if not answer:
            raise RuntimeError("the process that has the bridge's modules loaded ended")
        return json.loads(answer)


class Child:
    """A bridge that it started, used as a subprocess.Popen."""

    def __init__(self, parent: Preloaded, pid: int, arguments: Sequence[str]) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._parent = parent
        self._arguments = arguments

    def poll(self) -> int | None:
        """How it ended; None while it runs."""
        if self.returncode is None:
            self.returncode = self._parent.status(self.pid)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; return how it ended.

        Raises:
            subprocess.TimeoutExpired: it runs on.
        """
        if self.poll() is None:
            descriptor = os.pidfd_open(self.pid)
            try:
                ended = select.poll()
                ended.register(descriptor, select.POLLIN)
                if not ended.poll(None if timeout is None else timeout * 1000):
                    raise subprocess.TimeoutExpired([PROGRAM, *self._arguments], timeout or 0.0)
            finally:
                os.close(descriptor)
        status = self.poll()
        assert status is not None
        return status

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it."""
        self.send_signal(signal.SIGKILL)


def _start() -> socket.socket:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        theirs.set_inheritable(True)
        os.posix_spawn(
            sys.executable,
            [sys.executable, __file__, str(theirs.fileno())],
            os.environ,
            file_actions=[(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)],
            setsid=True,
        )
    ours.settimeout(ANSWER_TIMEOUT_S)
    return ours


def _main(channel: socket.socket) -> None:
    """Serve requests until the other end closes; in a child: run the bridge."""
    for name in MODULES:
        import_module(name)
    del sys.modules[MODULES[0]]  # it is run again, as the program
    gc.freeze()
    while True:
        text, descriptors, _, _ = socket.recv_fds(channel, LONGEST, 1)
        if not text:
            return
        request = json.loads(text)
        if "pid" in request:
            channel.send(json.dumps(_status(request["pid"])).encode())
            continue
        parent, pid = os.getpid(), os.fork()
        if pid == 0:
            channel.close()
            _become(request, descriptors[0], parent)
            runpy.run_module(PROGRAM, run_name="__main__", alter_sys=True)
            return
        os.close(descriptors[0])
        channel.send(json.dumps(pid).encode())


def _status(pid: int) -> int | None:
    ended, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


def _become(request: Mapping[str, Any], output: int, parent: int) -> None:
    """What a new process has and a fork has not."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
    os.setsid()
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError):  # a stream that was replaced
            stream.reconfigure(write_through=True)  # type: ignore[union-attr]
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    sys.path[0] = request["folder"]
    sys.argv = [PROGRAM, *request["arguments"]]


if __name__ == "__main__":
    _main(socket.socket(fileno=int(sys.argv[1])))
