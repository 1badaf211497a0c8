"""Both sides of a link; none outlives its test.

local       the side of HoldMQ, on a server of the test's own with an append-only file
mosquitto   makes running Mosquittos
remote      makes connected clients of another broker
uplink      makes link processes: uplink(local, mosquitto, ["a/# out 1"], protocol="3.1.1"); start=False: not started
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bridge.uplink.support import LinkProcess, Local, Mosquitto, Remote
from tests.support import Server

LOG_LINES_SHOWN = 60


@pytest.fixture
def local(fresh_server: Callable[..., Server]) -> Local:
    return Local(fresh_server(aof=True, config=["appendfsync always"]))


@pytest.fixture
def mosquitto(tmp_path: Path) -> Iterator[Callable[..., Mosquitto]]:
    made: list[Mosquitto] = []

    def make(settings: str = "") -> Mosquitto:
        made.append(Mosquitto(tmp_path / f"mosquitto-{len(made)}", settings))
        made[-1].start()
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def remote() -> Iterator[Callable[..., Remote]]:
    made: list[Remote] = []

    def make(port: int, client_id: str = "tester", **more: Any) -> Remote:
        made.append(Remote(port, client_id, **more))
        made[-1].start()
        return made[-1]

    yield make
    for each in made:
        each.stop()


@pytest.fixture
def uplink(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[..., LinkProcess]]:
    made: list[LinkProcess] = []

    def make(
        local: Local,
        upstream: Any,
        topics: list[str],
        *,
        start: bool = True,
        process: dict[str, Any] | None = None,
        **settings: Any,
    ) -> LinkProcess:
        folder = tmp_path / f"link-{len(made)}"
        made.append(LinkProcess(local.server, folder, upstream.port, topics, settings, process or {}))
        if start:
            made[-1].start()
        return made[-1]

    request.node.stash_links = made
    yield make
    for each in made:
        if each.running:
            each.kill()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    """Show the logs of the links of a test that failed."""
    report = yield
    if report.failed:
        for link in getattr(item, "stash_links", []):
            tail = "\n".join(link.log_text().splitlines()[-LOG_LINES_SHOWN:])
            report.sections.append((f"log of link {link.name} ({item.name})", tail))
    return report
