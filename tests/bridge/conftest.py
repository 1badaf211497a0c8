"""A bridge that the tests of a file share; who needs one alone asks for `bridge`, `fresh_server`."""

from collections.abc import Callable, Generator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.bridge.talk import Talk, Talk5
from tests.support import BridgeProcess, Server, reserve_port
from tests.support.ports import Port

LOG_LINES_SHOWN = 60
# The server closes the connections between two tests: without the second option each test would wait longer.
OPTIONS = ["--log-level", "DEBUG", "--retry-max-s", "0.05"]

Connect = Callable[..., Talk]


@pytest.fixture(scope="module")
def shared_bridge(shared_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BridgeProcess]:
    """The bridge to `shared_server`; tests ask for `broker`."""
    made = BridgeProcess(shared_server.url, tmp_path_factory.mktemp("bridge"), arguments=OPTIONS)
    try:
        made.start()
        yield made
    finally:
        made.close()


@pytest.fixture
def broker(server: Server, shared_bridge: BridgeProcess) -> BridgeProcess:  # noqa: ARG001 (the server is emptied)
    """A running bridge to an empty server."""
    if not shared_bridge.running:
        shared_bridge.restart()
    return shared_bridge


@pytest.fixture
def bridge_to(tmp_path: Path) -> Iterator[Callable[..., BridgeProcess]]:
    """Starts bridges of this test's own at a server or cluster, for anybody, and ends them."""
    made: list[BridgeProcess] = []

    def make(url: str, *arguments: str) -> BridgeProcess:
        bridge = BridgeProcess(url, tmp_path, arguments=["--allow-anonymous", "yes", *arguments])
        made.append(bridge)
        bridge.start()
        return bridge

    yield make
    for bridge in made:
        bridge.close()


@pytest.fixture
def port() -> Iterator[Port]:
    """One more port."""
    reserved = reserve_port()
    yield reserved
    reserved.release()


@pytest.fixture
def dial() -> Iterator[Connect]:
    """Makes clients of a bridge that are through their CONNECT, `dial(made.port, "c1", clean=False)` for one."""
    made: list[Talk] = []

    def connect(port: int, client_id: str = "", *, clean: bool = True, present: bool = False) -> Talk:
        client = Talk.connected(port, client_id, clean=clean, present=present)
        made.append(client)
        return client

    yield connect
    for client in made:
        client.close()


@pytest.fixture
def talk(broker: BridgeProcess, dial: Connect) -> Connect:
    """The same for the shared bridge, `talk("c1", clean=False)` for one."""
    return partial(dial, broker.port)


@pytest.fixture
def talk5(broker: BridgeProcess) -> Iterator[Callable[..., Talk5]]:
    """Makes clients of MQTT 5.0 of the shared bridge, `talk5("c1", properties=...)`; options as of Talk5.open."""
    made: list[Talk5] = []

    def connect(client_id: str = "", *, port: int = 0, **more: Any) -> Talk5:
        made.append(Talk5.open(port or broker.port, client_id, **more))
        return made[-1]

    yield connect
    for client in made:
        client.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the log of the shared bridge of a test that failed."""
    report = yield
    broker = getattr(item, "funcargs", {}).get("broker")
    if report.failed and isinstance(broker, BridgeProcess):
        tail = "\n".join(broker.log_text().splitlines()[-LOG_LINES_SHOWN:])
        report.sections.append((f"log of the shared bridge ({item.name})", tail))
    return report
