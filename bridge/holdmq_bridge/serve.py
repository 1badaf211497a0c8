"""Runs one bridge process: event loop, signals, logs."""

import asyncio
import importlib
import os
import resource
import signal
import sys
from collections.abc import Coroutine
from multiprocessing import parent_process
from multiprocessing.connection import wait
from types import ModuleType

import uvloop

from holdmq_bridge.base.logs import Log, configure
from holdmq_bridge.base.target import Target
from holdmq_bridge.broker.bridge import Bridge
from holdmq_bridge.broker.cluster import ClusterSettingsError
from holdmq_bridge.monitoring.report import Reporter
from holdmq_bridge.monitoring.service import Service
from holdmq_bridge.monitoring.sys_topics import SysTopics
from holdmq_bridge.monitoring.web import Web
from holdmq_bridge.process.settings import Settings
from holdmq_bridge.server.kind import ClusterFoundError, is_node_of_cluster
from holdmq_bridge.sockets.listeners import Listeners
from holdmq_bridge.sockets.pump import CLOCK_NS

log = Log("serve")

PASSED_ON = (signal.SIGHUP, signal.SIGUSR1)  # from the parent of several workers to each of them
DRAINED = 3  # the exit status of a worker that was drained
UNFIT = 2  # the exit status for settings that do not fit the server
OTHER_FILES = 256  # open files without the clients' sockets: server, listeners, metrics, users and rules, logs


class TracingError(Exception):
    """Tracing is on and cannot be; the text says why."""


def import_tracing(settings: Settings) -> ModuleType | None:
    """Imports what makes spans, and checks its settings; None: tracing is off, and nothing is imported.

    Raises:
        TracingError: a package is missing, or a setting is not usable.
    """
    if settings.trace_sample == 0:
        return None
    try:
        tracing = importlib.import_module("holdmq_bridge.monitoring.tracing")
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("opentelemetry"):
            raise
        raise TracingError(
            f"trace_sample {settings.trace_sample:g} needs packages that are not installed ({error.name}): "
            "pip install 'holdmq[otel]'"
        ) from error
    try:
        tracing.check(settings, os.environ)
    except ValueError as error:
        raise TracingError(str(error)) from error
    return tracing


async def serve(settings: Settings, *, worker: int | None = None) -> bool:
    """Serves until a signal comes, the parent process ends, or a drain is finished.

    Whether there is one server or a cluster is asked first.  A server that answers later, and is a node of a cluster,
    has served nobody: all is built anew.

    Args:
        settings: of the bridge.
        worker: the number of this process if several share the ports; else None.

    Returns:
        Whether the process was drained.

    Raises:
        OSError: an address is not available, or a TLS file cannot be used.
        ClusterSettingsError: the server is a node of a cluster, which cannot be served with these settings.
    """
    stopped = asyncio.Event()
    _stop_by_signal_or_parent(stopped)
    is_cluster = await is_node_of_cluster(Target.parse(settings.redis))
    try:
        return await _serve(settings, worker, stopped, is_cluster=is_cluster)
    except ClusterFoundError:
        log.info("the server has come, and is a node of a cluster")
    return await _serve(settings, worker, stopped, is_cluster=True)


async def _serve(settings: Settings, worker: int | None, stopped: asyncio.Event, *, is_cluster: bool) -> bool:
    bridge = Bridge(settings, is_cluster=is_cluster)
    tracing = import_tracing(settings)
    tracer = None if tracing is None else tracing.Tracer(bridge.process, CLOCK_NS)
    listeners = Listeners(bridge.process, bridge.pump, bridge.new_client, bridge)
    web = Web(bridge)
    sys_topics = SysTopics(bridge, settings.sys_interval_s) if settings.sys_interval_s else None
    reporter = Reporter(bridge, settings.report_interval_s) if settings.report_interval_s else None
    service = Service(bridge, {} if worker else os.environ)  # of several workers the first one reports
    bridge.drain.at_begin(listeners.close)
    await listeners.open(reuse_port=worker is not None)
    if settings.metrics_port is not None:
        web.start(settings.metrics_host, settings.metrics_port and settings.metrics_port + (worker or 0))
    try:
        await bridge.start()
        if sys_topics is not None:
            sys_topics.start()
        if reporter is not None:
            reporter.start()
        if tracer is not None:
            tracer.start()
        reload = listeners.reload if listeners.has_tls else _nothing_to_read_again
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload)
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, bridge.drain.begin)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)  # one that came while a worker started (workers.py)
        if stopped.is_set() or _is_orphan():  # the next owner of the ports must find them free
            return False
        await listeners.serve()
        service.start()
        await _either(bridge.run(), stopped.wait(), bridge.drain.finished.wait())
        return bridge.drain.finished.is_set()
    except ClusterFoundError:
        service.stop()  # the process does not end
        raise
    finally:  # without a stop, tasks might continue: some take a cancellation for a lost server
        service.stopping()
        listeners.close()
        if sys_topics is not None:
            sys_topics.stop()
        if reporter is not None:
            await reporter.stop()
        await bridge.stop()
        if tracer is not None:
            await tracer.stop()
        web.close()
        service.stop()


def _nothing_to_read_again() -> None:
    """Log rotation and service managers send SIGHUP: it must not end the process."""
    log.info("nothing to read again at a SIGHUP: settings are read when a process starts, users and rules at once")


def _stop_by_signal_or_parent(stopped: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    parent = parent_process()
    if parent is None:
        return

    def orphaned() -> None:
        loop.remove_reader(parent.sentinel)  # the sentinel stays readable
        stopped.set()

    loop.add_reader(parent.sentinel, orphaned)


def _is_orphan() -> bool:
    """Whether the parent has ended, even if the loop has not noticed yet."""
    parent = parent_process()
    return parent is not None and bool(wait([parent.sentinel], 0))


async def _either(*waits: Coroutine[object, object, object]) -> None:
    """Waits until one of them ends, and raises its error."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    for task in done:
        task.result()


def fit_open_files(settings: Settings) -> Settings:
    """Raises this process's limit of open files to what max_connections needs, or else lowers max_connections.

    So descriptors for the server, the listeners and the logs are always left: a surplus client is refused, and the link
    to the server stays.

    Raises:
        OSError: the limit is too low for a single client.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = settings.max_connections + OTHER_FILES
    allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed >= needed:
        log.info("open files", limit=allowed, for_clients=settings.max_connections, reserved=OTHER_FILES)
        return settings
    room = allowed - OTHER_FILES
    if room < 1:
        raise OSError(f"the limit of open files is {allowed}: at least {OTHER_FILES + 1} are needed (ulimit -n)")
    log.warning(
        "max_connections was lowered to fit the limit of open files",
        max_connections=room,
        wanted=settings.max_connections,
        open_files=allowed,
        reserved=OTHER_FILES,
    )
    return settings.model_copy(update={"max_connections": room})


def main(settings: Settings, worker: int | None = None) -> None:
    """Configures the logs and runs `serve` on uvloop.

    Raises:
        SystemExit: a worker was drained, or the server is a node of a cluster and the settings do not allow that.
    """
    configure(settings.log_level)
    try:
        if uvloop.run(serve(fit_open_files(settings), worker=worker)) and worker is not None:
            sys.exit(DRAINED)
    except ClusterSettingsError as error:
        log.error("the settings do not fit a cluster", error=error)  # noqa: TRY400 (as a fact, without its stack)
        sys.exit(UNFIT)
