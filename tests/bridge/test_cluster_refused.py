"""A bridge refuses to serve one node of a cluster: sessions on other nodes would miss what is published there."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.bridge import packets
from tests.bridge.talk import Talk
from tests.support import BridgeProcess, Cluster, eventually

PROBE = "{holdmq-bridge-probe}"
LOG_S = 20.0
REFUSAL = "it is a node of a cluster; expected a server outside a cluster"


@pytest.fixture
def bridge_to(tmp_path: Path) -> Iterator[Callable[[str], BridgeProcess]]:
    made: list[BridgeProcess] = []

    def make(url: str) -> BridgeProcess:
        bridge = BridgeProcess(url, tmp_path, arguments=["--connect-wait-s", "1"])
        made.append(bridge)
        bridge.start()
        return bridge

    yield make
    for bridge in made:
        bridge.close()


@pytest.mark.parametrize("has_slot_of_probe", [True, False])
def test_a_node_of_a_cluster_is_refused(
    fresh_cluster: Callable[[int], Cluster], bridge_to: Callable[[str], BridgeProcess], has_slot_of_probe: bool
) -> None:
    cluster = fresh_cluster(2)
    owner = cluster.node_of(PROBE)
    node = owner if has_slot_of_probe else next(one for one in cluster.nodes if one is not owner)
    bridge = bridge_to(node.url)
    eventually(lambda: REFUSAL in bridge.log_text(), LOG_S, "the reason in the log")
    with Talk(bridge.port) as client:
        client.send(packets.connect(b"c"))
        client.expect_closed()
    assert '"connected to the server"' not in bridge.log_text()
