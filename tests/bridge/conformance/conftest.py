"""Clients of both versions: a test that asks for `version` or `peer` runs once for each."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.bridge.conformance.peer import Peer
from tests.support import BridgeProcess

Connect = Callable[..., Peer]


@pytest.fixture(params=[4, 5], ids=["3.1.1", "5.0"])
def version(request: pytest.FixtureRequest) -> int:
    """Protocol level."""
    level: int = request.param
    return level


@pytest.fixture
def join(broker: BridgeProcess) -> Iterator[Callable[..., Peer]]:
    """Makes clients of the shared bridge, or of that at `port`: `join(5, "c1", lasting=60)`; more as of Peer.open."""
    made: list[Peer] = []

    def connect(level: int, client_id: str = "", *, port: int = 0, **more: Any) -> Peer:
        made.append(Peer.open(port or broker.port, client_id, version=level, **more))
        return made[-1]

    yield connect
    for peer in made:
        peer.close()


@pytest.fixture
def peer(join: Connect, version: int) -> Callable[..., Peer]:
    """The same, in the version of the test: `peer("c1", lasting=60)`."""
    return lambda client_id="", **more: join(version, client_id, **more)
