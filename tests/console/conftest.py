"""The console under test: one process for all tests of this folder, over the server that they share."""

from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
import redis

from holdmq import HoldMQ
from tests.console.support import Api, ConsoleProcess
from tests.support import Server, ServerKind, eventually


@pytest.fixture(scope="package")
def shared_server(server_kind: ServerKind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The server of the shared console: both live as long as the tests of this folder run."""
    server = Server(server_kind, tmp_path_factory.mktemp("server"))
    try:
        server.start()
        yield server
    finally:
        server.close()


@pytest.fixture(scope="package")
def shared_console(shared_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleProcess]:
    console = ConsoleProcess(
        shared_server.url,
        tmp_path_factory.mktemp("console"),
        environment={"HOLDMQ_CONSOLE_SAMPLE_INTERVAL_S": "0.2", "HOLDMQ_CONSOLE_LOGIN_ADDRESS_FAILURES": "0"},
    )
    try:
        console.start()
        yield console
    finally:
        console.close()


@pytest.fixture
def console(shared_console: ConsoleProcess, server: Server) -> Iterator[ConsoleProcess]:
    """A running console over a server without data."""
    eventually(lambda: httpx.get(f"{shared_console.url}/login").status_code == 200, what=f"a console for {server.url}")
    earlier = len(shared_console.log_text())
    yield shared_console
    text = shared_console.log_text()[earlier:]
    assert shared_console.running, text
    assert "Traceback" not in text, text


@pytest.fixture
def connect(console: ConsoleProcess) -> Iterator[Callable[..., Api]]:
    """Makes clients of the API; keywords become headers."""
    made: list[Api] = []

    def make(**headers: str) -> Api:
        made.append(Api(console, **headers))
        return made[-1]

    yield make
    for api in made:
        api.http.close()


@pytest.fixture
def api(connect: Callable[..., Api]) -> Api:
    """A client that has not logged in."""
    return connect()


@pytest.fixture
def hold(client: redis.Redis) -> HoldMQ:
    return HoldMQ(client)


@pytest.fixture
def new_console(server: Server, tmp_path: Path) -> Iterator[Callable[..., ConsoleProcess]]:
    """Makes consoles of the test's own; keywords are settings."""
    made: list[ConsoleProcess] = []

    def make(**settings: object) -> ConsoleProcess:
        environment = {f"HOLDMQ_CONSOLE_{name.upper()}": str(value) for name, value in settings.items()}
        made.append(ConsoleProcess(server.url, tmp_path, environment=environment))
        made[-1].start()
        return made[-1]

    yield make
    for one in made:
        one.close()
