"""Publishes over a cluster that a moving slot refused continue soon after the move, not after the pause of a retry."""

from collections.abc import Callable

from holdmq import core
from tests.bridge.cluster_bridge import ClusterBridge
from tests.bridge.test_cluster_bridge import WAIT_S, Dial, dial, over
from tests.bridge.test_node_links import ids_on
from tests.module.cluster_support import SlotMove
from tests.support import Cluster, eventually

Over = Callable[..., ClusterBridge]
__all__ = ["dial", "over"]

PAUSE_S = 45.0


def test_a_publish_that_a_moving_slot_refused_continues_soon_after_the_move(
    fresh_cluster: Callable[..., Cluster], over: Over, dial: Dial
) -> None:
    cluster = fresh_cluster(2)
    bridge = over(cluster, retry_first_s=PAUSE_S, retry_max_s=PAUSE_S, retry_total_s=2 * PAUSE_S)
    (listener, beside), (publisher, another) = ids_on(cluster, 2)
    hearing, sending = dial(bridge.port, listener), dial(bridge.port, publisher)
    assert hearing.subscribe("t") == [1]
    assert dial(bridge.port, beside).subscribe("other") == [1]
    other = dial(bridge.port, another)
    sending.publish("t", b"before")
    key = core.session_key(listener)
    move = SlotMove(cluster, cluster.nodes[0], cluster.nodes[1], core.slot_of(key))
    move.begin()
    batches = move.move_all(1)
    next(batches)  # its keys are on two nodes now
    sent = sending.client.publish("t", b"refused at first", 1)
    other.publish("other", b"after it at the same node")  # its PUBACK comes after the refusal
    assert not sent.is_published()
    for _ in batches:
        pass
    move.end()
    sent.wait_for_publish(PAUSE_S / 3)
    assert sent.is_published()
    eventually(lambda: hearing.received == [b"before", b"refused at first"], WAIT_S, "the message")
