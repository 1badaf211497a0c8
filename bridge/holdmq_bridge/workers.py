"""Several bridge processes on the same ports: starts them, restarts those that end, and stops all.

                  ┌── worker 0 ── event loop, engine, link ──┐
    parent ───────┼── worker 1 ── event loop, engine, link ──┼── server
                  └── worker 2 ── ...                      ──┘

The kernel distributes new connections over the workers (SO_REUSEPORT).  The parent binds a socket to each port, and
never listens on it.  So an address that is not available is noticed at once, and all workers share a port that the
kernel chose.

Invariants
 1. A worker that ends by itself is restarted, after a pause that grows while it keeps ending soon.
 2. A worker whose parent has ended stops by itself, in order.
 3. A worker that was drained is not started again.  When all are drained, the parent ends.
"""

import multiprocessing
import os
import random
import signal
import time
from contextlib import ExitStack
from multiprocessing.connection import wait
from typing import TYPE_CHECKING

from holdmq_bridge.base.backoff import Backoff
from holdmq_bridge.base.binding import bound_socket
from holdmq_bridge.base.logs import Log, configure
from holdmq_bridge.process.settings import Settings
from holdmq_bridge.serve import DRAINED, PASSED_ON, main
from holdmq_bridge.sockets.listeners import configured_listeners
from holdmq_bridge.sockets.tls import tls_context

if TYPE_CHECKING:
    from multiprocessing.context import SpawnProcess

log = Log("workers")

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 10.0
_STABLE_S = 30.0  # a worker that ran longer resets the pauses
_SIGNALS_AT_ONCE = 64
_GRACE_S = 5.0  # for a worker, in addition to shutdown_timeout_s
_PORTS = {"mqtt": "port", "mqtts": "tls_port", "ws": "ws_port", "wss": "wss_port"}


class _Worker:
    """A numbered place for a process, also between two processes."""

    def __init__(self, number: int, settings: Settings) -> None:
        self.number = number
        self.process: SpawnProcess | None = None
        self._settings = settings
        self._backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S, random.uniform)
        self._started_at = 0.0
        self.start_at = 0.0
        self.is_draining = False  # on request
        self.is_drained = False

    def start(self) -> None:
        """Starts a process."""
        context = multiprocessing.get_context("spawn")
        self.process = context.Process(
            target=main, args=(self._settings, self.number), name=f"holdmq-bridge-{self.number}"
        )
        self._started_at = time.monotonic()
        signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)  # the worker inherits the block, and removes it
        self.process.start()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
        log.info("worker started", worker=self.number, pid=self.process.pid)

    def ended(self) -> None:
        """The process has ended: decides when the next one starts."""
        assert self.process is not None
        self.process.join()
        if self.is_draining or self.process.exitcode == DRAINED:
            log.info("worker drained", worker=self.number)
            self.is_drained, self.process = True, None
            return
        if time.monotonic() - self._started_at > _STABLE_S:
            self._backoff.reset()
        pause = self._backoff.next()
        self.start_at = time.monotonic() + pause
        log.error("worker ended", worker=self.number, status=self.process.exitcode, again_in_s=round(pause, 3))
        self.process = None


def run_workers(settings: Settings) -> None:
    """Runs `workers` processes until SIGTERM or SIGINT, or until all are drained.

    Raises:
        OSError: an address is not available, or a TLS file cannot be used.
    """
    configure(settings.log_level)
    with ExitStack() as stack:
        wake, woken = os.pipe()
        stack.callback(os.close, wake)
        stack.callback(os.close, woken)
        os.set_blocking(woken, False)
        signal.set_wakeup_fd(woken)
        for number in (signal.SIGTERM, signal.SIGINT, *PASSED_ON):
            signal.signal(number, lambda *_: None)  # the pipe reports it
        shared = _reserve(settings, stack)
        workers = [_Worker(number, shared) for number in range(settings.workers)]
        _watch(workers, wake)
        _stop(workers, settings.shutdown_timeout_s + _GRACE_S)


def _reserve(settings: Settings, stack: ExitStack) -> Settings:
    """Binds the ports.  Returns the settings with the ports that the kernel chose."""
    ports = {}
    for listener in configured_listeners(settings):
        bound = stack.enter_context(bound_socket(settings.host, listener.port, reuse_port=True))
        ports[_PORTS[listener.name]] = bound.getsockname()[1]
        if listener.tls:
            tls_context(settings)
    return settings.model_copy(update=ports)


def _watch(workers: list[_Worker], wake: int) -> None:
    """Restarts workers until a signal ends the process, or all are drained.  Passes SIGHUP and SIGUSR1 on."""
    while not all(worker.is_drained for worker in workers):
        now = time.monotonic()
        for worker in workers:
            if worker.process is None and not worker.is_drained and worker.start_at <= now:
                worker.start()
        running = {worker.process.sentinel: worker for worker in workers if worker.process is not None}
        due = [worker.start_at - now for worker in workers if worker.process is None and not worker.is_drained]
        for ready in wait([*running, wake], min(due) if due else None):
            if ready == wake:
                numbers = set(os.read(wake, _SIGNALS_AT_ONCE))
                if not numbers <= set(PASSED_ON):
                    return
                _pass_on(workers, numbers)
            else:
                running[ready].ended()  # type: ignore[index] # sentinels are numbers on this platform


def _pass_on(workers: list[_Worker], numbers: set[int]) -> None:
    for worker in workers:
        if signal.SIGUSR1 in numbers:
            worker.is_draining = True
            worker.is_drained = worker.process is None
        for number in numbers:
            if worker.process is not None:
                os.kill(worker.process.pid, number)  # type: ignore[arg-type] # it runs, or was not waited for


def _stop(workers: list[_Worker], timeout_s: float) -> None:
    processes = [worker.process for worker in workers if worker.process is not None]
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + timeout_s
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
        if process.is_alive():
            log.error("worker did not stop in time and was killed", pid=process.pid)
            process.kill()
            process.join()
