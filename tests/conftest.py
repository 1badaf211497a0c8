"""The fixtures: servers under test, bridges, raw connections; none outlives the test that asked for it.

server          a running server with the module, shared by the tests of a file and emptied between them;
                the test runs once for each server under test, and afterwards the indexes equal a rebuild
server_kind     which one it is
fresh_server    makes servers of the test's own: fresh_server(aof=True), fresh_server(replica_of=primary) ...
fresh_cluster   makes a cluster: fresh_cluster(3)
shared_cluster  three nodes that the tests of a file share; the file's own fixture empties and checks them
client          redis.Redis to `server`
fresh_sentinel  makes a running sentinel: fresh_sentinel(primary)
raw             makes raw connections: raw(protocol=3), raw(other_server)
bridge          makes running bridges: bridge(server)
"""

import faulthandler
import os
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, TypeVar

import hypothesis
import pytest
import redis

from holdmq.server import ServerNotFoundError
from tests.support import BridgeProcess, Cluster, RawClient, SentinelProcess, Server, ServerKind, selected_kinds
from tests.support.server import CRASH_MARKS

LOG_LINES_SHOWN = 60
CRASH_LINES_SHOWN = 120

# Where the timeout of a test (pyproject.toml) does not end it, because what was started cannot be cancelled.  Twice its
# timeout for a test with a longer one of its own.
HANG_S = 240
HANG_STATUS = 70

# No deadline for one example: the machine may be busy.  What failed is printed so that anybody can replay it.
hypothesis.settings.register_profile("holdmq", deadline=None, print_blob=True)
hypothesis.settings.load_profile("holdmq")

T = TypeVar("T")

# Whatever runs for the present test: its logs are shown when the test fails.
_running: list[Server | BridgeProcess | SentinelProcess] = []


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test that needs a server once for each server under test, or for those of its file's `server_kinds`."""
    if "server_kind" not in metafunc.fixturenames:
        return
    try:
        kinds = getattr(metafunc.module, "server_kinds", selected_kinds)()
        for kind in kinds:
            kind.command()  # a server that is not there ends the run here
    except ServerNotFoundError as error:
        raise pytest.UsageError(str(error)) from error
    metafunc.parametrize("server_kind", kinds, ids=[kind.name for kind in kinds], scope="session")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """End the process of a test that hangs though its timeout fired; its servers end with it."""
    own = item.get_closest_marker("timeout")
    watchdog = threading.Timer(max(HANG_S, 2 * own.args[0] if own else 0), _end_process, [item.nodeid])
    watchdog.daemon = True
    watchdog.start()
    try:
        return (yield)
    finally:
        watchdog.cancel()


def _end_process(name: str) -> None:
    stderr = sys.__stderr__ or sys.stderr
    stderr.write(f"\n{name} hangs, its timeout notwithstanding; the process is ended\n")
    faulthandler.dump_traceback(stderr, all_threads=True)
    os._exit(HANG_STATUS)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Runs only what failed before, if that is all that is run again (.ci/run).

    pytest's own option runs everything if nothing that failed is among these tests.
    """
    if not os.environ.get("HOLDMQ_TEST_AGAIN") or config.cache is None:
        return
    failed = config.cache.get("cache/lastfailed", {})
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in failed])
    items[:] = [item for item in items if item.nodeid in failed]


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Nothing to run is no failure where only what failed before is run again (.ci/run)."""
    if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and os.environ.get("HOLDMQ_TEST_AGAIN"):
        session.exitstatus = pytest.ExitCode.OK


def _most_telling(lines: list[str]) -> list[str]:
    """The last lines; of a crash the first of its report, because what follows is memory and settings."""
    crashed = next((at for at, line in enumerate(lines) if any(mark in line for mark in CRASH_MARKS)), None)
    if crashed is None:
        return lines[-LOG_LINES_SHOWN:]
    return lines[max(0, crashed - LOG_LINES_SHOWN // 2) : crashed + CRASH_LINES_SHOWN]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the logs of the servers and bridges of a test that failed."""
    report = yield
    if report.failed:
        for process in _running:
            text = process.log_text()
            if text:  # it was started, so it has a port
                tail = "\n".join(_most_telling(text.splitlines()))
                name = f"{type(process).__name__} on port {process.port}"
                report.sections.append((f"log of {name} ({item.name})", tail))
    return report


@pytest.fixture(scope="module")
def shared_server(server_kind: ServerKind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The server that the tests of a file share; tests ask for `server`."""
    server = Server(server_kind, tmp_path_factory.mktemp("server"))
    try:
        server.start()
        yield server
    finally:
        server.close()


@pytest.fixture
def server(shared_server: Server) -> Iterator[Server]:
    """A running server with the module and without any data; afterwards its indexes equal a rebuild."""
    if not shared_server.process.running:
        shared_server.restart()  # the test before killed it, and has failed for that
    _running.append(shared_server)
    try:
        yield shared_server
        shared_server.check()
        if not shared_server.process.running:
            raise AssertionError("the test ended the shared server; fresh_server is for that")
        shared_server.check_indexes()
        shared_server.reset()
    finally:
        _running.remove(shared_server)


@pytest.fixture
def client(server: Server) -> redis.Redis:
    """A client of `server`; its replies are bytes."""
    return server.client()


@pytest.fixture
def fresh_server(server_kind: ServerKind, tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Makes running servers of the test's own; arguments as of Server, kind and directory may be left out."""
    servers: list[Server] = []

    def make(**options: Any) -> Server:
        kind = options.pop("kind", server_kind)
        directory = options.pop("directory", tmp_path / f"server-{len(servers)}")
        server = Server(kind, directory, **options)
        servers.append(server)
        _running.append(server)
        server.start()
        return server

    yield from _closing(make, servers)


@pytest.fixture
def fresh_cluster(server_kind: ServerKind, tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    """Makes running clusters of so many nodes; options as of Server."""
    servers: list[Server] = []

    def make(nodes: int, **options: Any) -> Cluster:
        made = [
            Server(server_kind, tmp_path / f"node-{len(servers) + i}", cluster=True, **options) for i in range(nodes)
        ]
        servers.extend(made)
        _running.extend(made)
        cluster = Cluster(made)
        cluster.start()
        return cluster

    yield from _closing(make, servers)


@pytest.fixture
def fresh_sentinel(tmp_path: Path) -> Iterator[Callable[[Server], SentinelProcess]]:
    """Makes a running sentinel for a primary that has a replica."""
    sentinels: list[SentinelProcess] = []

    def make(primary: Server) -> SentinelProcess:
        folder = tmp_path / f"sentinel-{len(sentinels)}"
        folder.mkdir()
        sentinel = SentinelProcess(primary, folder)
        sentinels.append(sentinel)
        _running.append(sentinel)
        sentinel.start()
        return sentinel

    yield make
    for sentinel in sentinels:
        sentinel.close()
        _running.remove(sentinel)


@pytest.fixture(scope="module")
def shared_cluster(server_kind: ServerKind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The three nodes that the tests of a file share."""
    servers = [Server(server_kind, tmp_path_factory.mktemp("node"), cluster=True) for _ in range(3)]
    try:
        cluster = Cluster(servers)
        cluster.start()
        _running.extend(servers)
        yield cluster
    finally:
        for server in servers:
            server.close()
            if server in _running:
                _running.remove(server)


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Iterator[Cluster]:
    """The same, empty; afterwards the indexes of each node equal a rebuild."""
    yield shared_cluster
    for node in shared_cluster.nodes:
        node.check_indexes()
        node.client().flushall()
        node.check()


def _closing(make: T, servers: list[Server]) -> Iterator[T]:
    """Yield `make`; afterwards check and close the servers."""
    try:
        yield make
        for server in servers:
            server.check()
    finally:
        for server in reversed(servers):
            server.close()
            if server in _running:
                _running.remove(server)


@pytest.fixture
def raw(request: pytest.FixtureRequest) -> Iterator[Callable[..., RawClient]]:
    """Makes raw connections, to `server` unless another is given."""
    connections: list[RawClient] = []

    def make(to: Server | None = None, protocol: int = 2) -> RawClient:
        target = to if to is not None else request.getfixturevalue("server")
        connection = RawClient(target.port, protocol)
        connections.append(connection)
        return connection

    yield make
    for connection in connections:
        connection.close()


@pytest.fixture
def bridge(tmp_path: Path) -> Iterator[Callable[..., BridgeProcess]]:
    """Makes running bridges to a server or URL; options as of BridgeProcess."""
    bridges: list[BridgeProcess] = []

    def make(to: Server | str, **options: Any) -> BridgeProcess:
        made = BridgeProcess(to if isinstance(to, str) else to.url, tmp_path, **options)
        bridges.append(made)
        _running.append(made)
        made.start()
        return made

    try:
        yield make
    finally:
        for made in reversed(bridges):
            made.close()
            _running.remove(made)
