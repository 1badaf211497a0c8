"""Acknowledgements over a cluster wait for replicas of the nodes that a publish visits, and of no others."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from holdmq import core
from tests.bridge.cluster_bridge import ClusterBridge
from tests.bridge.test_cluster_bridge import LOSES, Dial, Talker, dial, over
from tests.bridge.test_node_links import ids_on
from tests.module.cluster_support import add_replica, promote
from tests.support import Cluster, Server, eventually

__all__ = ["dial", "over"]

WAIT_S = 60.0
SETTINGS = {"wait_replicas": 1, "wait_timeout_s": 0.2, "retry_total_s": 60}


@dataclass(frozen=True)
class Site:
    """Three primaries, each with a replica.

    Attributes:
        ids: of two clients with sessions on each primary.
    """

    cluster: Cluster
    replicas: list[Server]
    ids: list[list[bytes]]


@pytest.fixture
def site(fresh_cluster: Callable[..., Cluster], fresh_server: Callable[..., Server]) -> Site:
    """All of it."""
    cluster = fresh_cluster(3, config=LOSES)
    primaries, ids = list(cluster.nodes), ids_on(cluster, 2)
    made = [add_replica(cluster, one, fresh_server(cluster=True, config=LOSES)) for one in primaries]
    return Site(cluster, made, ids)


def test_a_replica_that_stands_still_withholds_only_what_visits_its_primary(
    site: Site, over: Callable[..., ClusterBridge], dial: Dial
) -> None:
    bridge = over(site.cluster, **SETTINGS)
    devices = [dial(bridge.port, pair[0], clean=False) for pair in site.ids]
    for number, device in enumerate(devices):
        assert device.subscribe(f"t/{number}") == [1]
    devices[1].publish("t/0", b"confirmed")
    site.replicas[0].pause()
    waiting = devices[1].client.publish("t/0", b"visits the first node", 1)
    other = Talker(devices[2], "t/1")
    other.until(10)
    assert not waiting.is_published()
    eventually(lambda: bridge.call(lambda made: made.readiness.unconfirmed), WAIT_S, "a node without confirmations")
    assert bridge.call(lambda made: made.readiness.reason()) == ""
    assert bridge.call(lambda made: made.levels()["acknowledgements_withheld"]) > 0
    site.replicas[0].resume()
    waiting.wait_for_publish(WAIT_S)
    assert waiting.is_published()
    sent = other.end()
    eventually(lambda: len(devices[1].received) >= len(sent), WAIT_S, "messages")
    assert devices[1].received == sent
    assert devices[0].received == [b"confirmed", b"visits the first node"]
    eventually(lambda: not bridge.call(lambda made: made.readiness.unconfirmed), WAIT_S, "confirmations of all nodes")


@pytest.mark.parametrize("qos", [1, 2])
def test_nothing_acknowledged_is_lost_when_a_primary_is_killed_without_warning(
    site: Site,
    over: Callable[..., ClusterBridge],
    dial: Dial,
    fresh_server: Callable[..., Server],
    qos: int,
) -> None:
    cluster, replica = site.cluster, site.replicas[0]
    bridge = over(cluster, **SETTINGS)
    (first, _), (second, _), _ = site.ids
    hearing, sending = dial(bridge.port, first, clean=False), dial(bridge.port, second)
    assert hearing.subscribe("t", qos) == [qos]
    hearing.publish("t", b"subscribed")
    talker = Talker(sending, "t", qos=qos)
    talker.until(50)
    lost = cluster.nodes[0]
    lost.kill()
    promote(cluster, replica, core.slot_of(core.session_key(first)))
    add_replica(cluster, replica, fresh_server(cluster=True, config=LOSES))
    talker.until(20)
    sent = talker.end()
    eventually(lambda: hearing.received[-1:] == sent[-1:], WAIT_S, "the last message")
    assert list(dict.fromkeys(hearing.received)) == [b"subscribed", *sent]  # some may come twice
