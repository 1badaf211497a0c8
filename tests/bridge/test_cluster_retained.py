"""Retained messages of new subscriptions over a cluster: the next connection continues, and the newest comes last."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from holdmq import core
from tests.bridge import packets
from tests.bridge.cluster_bridge import ClusterBridge
from tests.bridge.talk import Talk
from tests.bridge.test_cluster_bridge import WAIT_S, Dial, dial, over
from tests.bridge.test_node_links import ids_on
from tests.module.cluster_support import SlotMove
from tests.support import Cluster, eventually

Over = Callable[..., ClusterBridge]
__all__ = ["dial", "over"]

COUNT = 600


def keep(cluster: Cluster, count: int = COUNT) -> set[bytes]:
    """Retained messages on all nodes; returns their topics."""
    topics = [f"kept/{number}" for number in range(count)]
    pipes = {node.port: node.client().pipeline(transaction=False) for node in cluster.nodes}
    for topic in topics:
        key = core.retained_key(topic)
        words = ("TOPIC.PUBLISH", topic, topic, "QOS", 1, "RETAIN", "SLOTS", 1, core.slot_of(key), core.slot_of(key))
        pipes[cluster.node_of(key).port].execute_command(*words)
    for pipe in pipes.values():
        pipe.execute()
    return {topic.encode() for topic in topics}


def places(cluster: Cluster, client_id: bytes) -> dict[bytes, bytes]:
    key = core.session_key(client_id)
    with cluster.node_of(key).client() as client:  # asked again and again: paho cannot wait for a descriptor above 1023
        found: Any = client.hgetall(core.session_name(key, core.Suffix.PLACES))
    return dict(found)


@pytest.mark.parametrize("same_bridge", [True, False])
def test_the_next_connection_gets_what_is_left(cluster: Cluster, over: Over, dial: Dial, same_bridge: bool) -> None:
    topics = keep(cluster)
    first = over(cluster, max_inflight=5)
    second = first if same_bridge else over(cluster, max_inflight=5)
    ((client_id,), _, _) = ids_on(cluster)
    with Talk.connected(first.port, client_id.decode(), clean=False) as client:
        client.send(packets.subscribe(1, ("kept/#", 1)))
        client.expect(packets.suback(1, 1))
        client.read_packet()
        assert list(places(cluster, client_id)) == [b"kept/#"]
    again = dial(second.port, client_id, clean=False)
    eventually(lambda: set(again.received) >= topics, WAIT_S, "all retained messages")
    assert all(again.retained)
    eventually(lambda: places(cluster, client_id) == {}, WAIT_S, "the end of the place")
    assert len(again.received) <= len(topics) + 2 * 200  # pages that came again


def test_a_clean_session_keeps_no_place(cluster: Cluster, over: Over, dial: Dial) -> None:
    topics = keep(cluster, 20)
    ((client_id,), _, _) = ids_on(cluster)
    device = dial(over(cluster).port, client_id)
    assert device.subscribe("kept/#") == [1]
    eventually(lambda: set(device.received) == topics, WAIT_S, "all retained messages")
    assert places(cluster, client_id) == {}
    assert len(device.received) == len(topics)


def test_a_scan_continues_while_slots_move(fresh_cluster: Callable[..., Cluster], over: Over, dial: Dial) -> None:
    cluster = fresh_cluster(3)
    topics = keep(cluster)
    bridge = over(cluster, max_inflight=5)
    ((client_id,), _, _) = ids_on(cluster)
    with Talk.connected(bridge.port, client_id.decode(), clean=False) as client:
        client.send(packets.subscribe(1, ("kept/#", 1)))
        client.expect(packets.suback(1, 1))
        client.read_packet()
    slot = core.slot_of(core.retained_key("kept/7"))
    source = cluster.node_of(core.retained_key("kept/7"))
    target = next(node for node in cluster.nodes if node is not source)
    move = SlotMove(cluster, source, target, slot)
    move.begin()
    again = dial(bridge.port, client_id, clean=False)
    eventually(lambda: len(set(again.received)) >= len(topics) // 2, WAIT_S, "messages of other slots")
    for _ in move.move_all(1):
        pass
    move.end()
    eventually(lambda: set(again.received) >= topics, WAIT_S, "all retained messages")


@pytest.mark.parametrize("payloads", [[b"new"], [b"new", b"newer"], [b""], [b"new", b""]])
def test_what_is_replaced_while_its_page_is_delivered_comes_last(
    cluster: Cluster, over: Over, dial: Dial, payloads: list[bytes]
) -> None:
    """The page is read; then the message is replaced; then the page is delivered."""
    (_, (client_id,), (other,)) = ids_on(cluster)
    bridge = over(cluster)
    publisher = dial(over(cluster).port, other)
    publisher.publish("kept/7", b"old", retain=True)
    left = list(payloads)

    def patch(made: Any) -> None:
        nodes = made._cluster._retained._nodes
        ask_for = nodes.ask_for

        async def later(key: bytes, command: tuple[Any, ...]) -> Any:
            if command[0] == "SESSION.DELIVER" and len(command) > 4 and left:
                payload = left.pop(0)
                await asyncio.to_thread(publisher.publish, "kept/7", payload, retain=True)
            return await ask_for(key, command)

        nodes.ask_for = later

    bridge.call(patch)
    device = dial(bridge.port, client_id)
    assert device.subscribe("kept/+") == [1]
    eventually(lambda: not left, WAIT_S, "the replacements")
    publisher.publish("kept/8", b"end")
    eventually(
        lambda: b"end" in device.received and device.received.count(payloads[-1]) == 2, WAIT_S, "the second copy"
    )
    assert [payload for payload in device.received if payload != b"end"][-1] == payloads[-1]
