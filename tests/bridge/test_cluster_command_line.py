"""The command line serves a cluster that it is given a node of, and refuses settings that do not fit one."""

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.bridge import packets
from tests.bridge.talk import Talk
from tests.bridge.test_node_links import ids_on
from tests.support import BridgeProcess, Cluster, eventually

WAIT_S = 60.0
PROBE = "{holdmq-bridge-probe}"
UNFIT = 2


def lines(bridge: BridgeProcess, event: str) -> list[dict[str, Any]]:
    """The lines of the log about an event."""
    text = [line for line in bridge.log_text().splitlines() if line.startswith("{")]
    return [line for line in map(json.loads, text) if line["event"] == event]


def crosses_nodes(cluster: Cluster, port: int) -> None:
    """A client of one node gets what a client of another publishes."""
    (hearing,), (sending,), *_ = ids_on(cluster)
    with Talk(port, timeout_s=WAIT_S) as listener, Talk(port, timeout_s=WAIT_S) as publisher:
        for talk, client_id in ((listener, hearing), (publisher, sending)):
            talk.send(packets.connect(client_id.decode()))
            talk.expect(packets.connack())
        listener.send(packets.subscribe(1, ("plant/+", 1)))
        listener.expect(packets.suback(1, 1))
        publisher.send(packets.publish("plant/7", b"21", qos=1, pid=5))
        publisher.expect(packets.puback(5))
        assert listener.read_packet().endswith(b"21")


@pytest.mark.parametrize("has_slot_of_probe", [True, False])
def test_a_bridge_serves_the_cluster_that_its_server_is_a_node_of(
    fresh_cluster: Callable[..., Cluster], bridge_to: Callable[..., BridgeProcess], has_slot_of_probe: bool
) -> None:
    cluster = fresh_cluster(2)
    owner = cluster.node_of(PROBE)
    node = owner if has_slot_of_probe else next(one for one in cluster.nodes if one is not owner)
    bridge = bridge_to(node.url)
    crosses_nodes(cluster, bridge.port)
    assert len(lines(bridge, "connected to the server")) == 2
    assert not lines(bridge, "cannot connect to the server")
    bridge.stop()
    assert bridge.returncode == 0


def test_several_workers_serve_a_cluster(
    fresh_cluster: Callable[..., Cluster], bridge_to: Callable[..., BridgeProcess]
) -> None:
    cluster = fresh_cluster(2)
    bridge = bridge_to(cluster.nodes[0].url, "--workers", "2")
    crosses_nodes(cluster, bridge.port)
    eventually(lambda: len(lines(bridge, "connected to the server")) >= 4, WAIT_S, "links of both workers")


def test_a_cluster_that_comes_after_the_bridge_is_served(
    fresh_cluster: Callable[..., Cluster], bridge_to: Callable[..., BridgeProcess]
) -> None:
    cluster = fresh_cluster(2)
    for node in cluster.nodes:
        node.stop()
    bridge = bridge_to(cluster.nodes[1].url)
    eventually(lambda: lines(bridge, "cannot connect to the server"), WAIT_S, "a bridge that finds no server")
    for node in cluster.nodes:
        node.restart()
    # It listens from the start, and anew for the cluster.
    eventually(lambda: len(lines(bridge, "listening")) == 2, WAIT_S, "a bridge over the cluster")
    crosses_nodes(cluster, bridge.port)
    assert len(lines(bridge, "connected to the server")) == 2
    assert len(lines(bridge, "the server has come, and is a node of a cluster")) == 1


@pytest.mark.parametrize(
    ("path", "arguments", "reason"),
    [
        ("/3", [], "database 3: "),
    ],
)
def test_settings_that_do_not_fit_a_cluster_are_refused(
    fresh_cluster: Callable[..., Cluster],
    tmp_path: Path,
    path: str,
    arguments: list[str],
    reason: str,
) -> None:
    cluster = fresh_cluster(1)
    with contextlib.closing(BridgeProcess(cluster.nodes[0].url + path, tmp_path, arguments=arguments)) as bridge:
        bridge.spawn()
        eventually(lambda: not bridge.running, WAIT_S, "a bridge that ends")
    assert bridge.returncode == UNFIT
    (line,) = lines(bridge, "the settings do not fit a cluster")
    assert line["error"].startswith(reason)
    assert "is a node of a cluster" in line["error"]
    assert not lines(bridge, "listening")
