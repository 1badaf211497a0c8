"""Wills and presence over a cluster: bridges empty the outboxes of all nodes, so that all sessions get them, once."""

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdmq import core
from tests.bridge.cluster_bridge import ClusterBridge
from tests.bridge.cluster_program import ClusterProgram
from tests.bridge.test_cluster_bridge import LOSES, Device, Dial, accepts, dial, over
from tests.bridge.test_node_links import ids_on
from tests.module.cluster_support import SlotMove
from tests.support import Cluster, eventually

__all__ = ["dial", "over"]

WAIT_S = 60.0
Over = Callable[..., ClusterBridge]
DISCONNECT = b"\xe0\x00"


def announce(cluster: Cluster, *, presence: bool) -> None:
    for node in cluster.nodes:
        node.client().config_set("holdmq.presence", "yes" if presence else "no")


@pytest.fixture
def boxes(fresh_cluster: Callable[..., Cluster]) -> Cluster:
    """Three nodes as they are by default, but for presence."""
    cluster = fresh_cluster(3, config=LOSES, aof=True)
    announce(cluster, presence=False)
    return cluster


def text(data: bytes) -> bytes:
    return len(data).to_bytes(2, "big") + data


class Mortal:
    """A client with a will that can die without a DISCONNECT."""

    def __init__(self, port: int, client_id: bytes, topic: bytes, payload: bytes, *, retain: bool = False) -> None:
        flags = 0b00001110 | (0b00100000 if retain else 0)  # clean, will, QoS 1
        body = text(b"MQTT") + bytes((4, flags, 0, 60)) + text(client_id) + text(topic) + text(payload)
        self._socket = socket.create_connection(("127.0.0.1", port), WAIT_S)
        self._socket.settimeout(WAIT_S)
        self._socket.sendall(bytes((0x10, len(body))) + body)
        assert self._socket.recv(4) == b"\x20\x02\x00\x00", "no CONNACK"

    def publish(self, topic: bytes, payload: bytes) -> None:
        body = text(topic) + b"\x00\x01" + payload
        self._socket.sendall(bytes((0x32, len(body))) + body)
        assert self._socket.recv(4) == b"\x40\x02\x00\x01", "no PUBACK"

    def die(self) -> None:
        self._socket.close()

    def close(self) -> None:
        self._socket.sendall(DISCONNECT)
        self._socket.close()


def waiting(cluster: Cluster) -> list[Any]:
    """What the outboxes of all nodes that run have."""
    running = [node for node in cluster.nodes if node.process.running]
    return [row for node in running for row in node.client().execute_command("OUTBOX.READ")]


def hearing_on_all(cluster: Cluster, bridge: ClusterBridge, dial: Dial, topic_filter: str) -> list[Device]:
    devices = [dial(bridge.port, client_id) for (client_id,) in ids_on(cluster)]
    for device in devices:
        assert device.subscribe(topic_filter) == [1]
    return devices


@pytest.mark.parametrize("retain", [False, True])
def test_a_will_reaches_subscribers_on_all_nodes_once(boxes: Cluster, over: Over, dial: Dial, retain: bool) -> None:
    bridge = over(boxes)
    devices = hearing_on_all(boxes, bridge, dial, "state/+")
    wills = []
    for at, (_, client_id) in enumerate(ids_on(boxes, 2)):
        wills.append(b"will %d" % at)
        Mortal(bridge.port, client_id, b"state/%d" % at, wills[-1], retain=retain).die()
    for device in devices:
        eventually(lambda device=device: len(device.received) >= 3, WAIT_S, "the wills")  # type: ignore[misc]
    eventually(lambda: not waiting(boxes), WAIT_S, "empty outboxes")
    for device in devices:
        assert sorted(device.received) == wills
    late = Device(bridge.port, "late")
    late.subscribe("state/+")
    late.publish("state/end", b"end")
    eventually(lambda: len(late.received) >= (4 if retain else 1), WAIT_S, "retained wills, and the end")
    assert sorted(late.received) == [b"end", *(wills if retain else [])]
    late.close()
    kept = [node.client().keys("{state/*_retained") for node in boxes.nodes]
    assert sum(len(keys) for keys in kept) == (3 if retain else 0)


def test_presence_reaches_subscribers_on_all_nodes(boxes: Cluster, over: Over, dial: Dial) -> None:
    bridge = over(boxes)
    devices = hearing_on_all(boxes, bridge, dial, "$SYS/clients/+/disconnected")
    announce(boxes, presence=True)
    ids = [client_id for _, client_id in ids_on(boxes, 2)]
    for client_id in ids:
        Mortal(bridge.port, client_id, b"unheard", b"").close()
    for device in devices:
        eventually(lambda device=device: len(device.received) >= 3, WAIT_S, "presence")  # type: ignore[misc]
    eventually(lambda: not waiting(boxes), WAIT_S, "empty outboxes")
    assert [len(device.received) for device in devices] == [3, 3, 3]


def test_what_another_bridge_published_and_did_not_acknowledge_comes_once(
    boxes: Cluster, over: Over, dial: Dial, tmp_path: Path
) -> None:
    """A bridge is killed after it has published a will, and before it has removed it."""
    bridge = over(boxes)
    devices = hearing_on_all(boxes, bridge, dial, "state/+")
    for node in boxes.nodes:  # nobody may remove anything
        node.client().execute_command("ACL", "SETUSER", "default", "-outbox.ack")
    (client_id,) = ids_on(boxes, 2)[0][1:]
    killed = ClusterProgram(boxes.nodes[1].url, tmp_path, allow_anonymous=True, lease_s=2)
    try:
        killed.spawn()
        eventually(lambda: accepts(killed.port), WAIT_S, "a bridge that accepts connections")
        Mortal(killed.port, client_id, b"state/7", b"will").die()
        for device in devices:
            eventually(lambda device=device: device.received, WAIT_S, "the will")  # type: ignore[misc]
        assert len(waiting(boxes)) == 1
        killed.kill()
    finally:
        killed.close()
    for node in boxes.nodes:
        node.client().execute_command("ACL", "SETUSER", "default", "+outbox.ack")
    eventually(lambda: not waiting(boxes), WAIT_S, "empty outboxes")
    devices[0].publish("state/end", b"end")
    for device in devices:
        eventually(lambda device=device: device.received[-1:] == [b"end"], WAIT_S, "the end")  # type: ignore[misc]
        assert device.received == [b"will", b"end"]


def test_a_will_comes_before_what_its_client_publishes_when_it_is_back(boxes: Cluster, over: Over, dial: Dial) -> None:
    bridges = [over(boxes), over(boxes)]
    devices = hearing_on_all(boxes, bridges[0], dial, "state/+")
    ids = [client_id for _, client_id in ids_on(boxes, 2)]
    expected: dict[bytes, list[bytes]] = {client_id: [] for client_id in ids}
    mortals: dict[bytes, Mortal] = {}
    for number in range(20):
        for client_id in ids:  # it takes the session over, from the other bridge: the will is in the outbox
            will, alive = client_id + b":will %d" % number, client_id + b":alive %d" % number
            mortal = Mortal(bridges[number % 2].port, client_id, b"state/7", will)
            mortal.publish(b"state/7", alive)
            if client_id in mortals:
                mortals[client_id].die()
            mortals[client_id] = mortal
            expected[client_id] += [alive, will]
    for mortal in mortals.values():
        mortal.die()
    for device in devices:
        for client_id, payloads in expected.items():
            eventually(lambda device=device, last=payloads[-1]: last in device.received, WAIT_S, "the last will")  # type: ignore[misc]
            heard = [payload for payload in device.received if payload.startswith(client_id + b":")]
            assert heard == payloads


def test_a_lost_node_gets_the_wills_when_it_is_back_and_others_get_them_at_once(
    boxes: Cluster, over: Over, dial: Dial
) -> None:
    bridge = over(boxes)
    ids = ids_on(boxes, 2)
    away = dial(bridge.port, ids[0][0], clean=False)
    assert away.subscribe("state/+") == [1]
    hearing = dial(bridge.port, ids[1][0])
    assert hearing.subscribe("state/+") == [1]
    mortals = [Mortal(bridge.port, ids[2][1], b"state/7", b"1")]
    boxes.nodes[0].kill()
    eventually(lambda: not bridge.call(lambda made: made.servers.all_up), WAIT_S, "a lost node")
    mortals.pop().die()
    eventually(lambda: hearing.received == [b"1"], WAIT_S, "the will, at a node that is up")
    again = Mortal(bridge.port, ids[2][1], b"state/7", b"2")  # waits for no node that is lost
    again.die()
    eventually(lambda: hearing.received == [b"1", b"2"], WAIT_S, "the next will")
    assert waiting(boxes)
    boxes.nodes[0].start()
    eventually(lambda: away.received == [b"1", b"2"], WAIT_S, "the wills, at the node that is back")
    eventually(lambda: not waiting(boxes), WAIT_S, "empty outboxes")
    assert hearing.received == [b"1", b"2"]


def test_the_outbox_of_a_slot_that_moves_is_emptied(boxes: Cluster, over: Over, dial: Dial) -> None:
    bridge = over(boxes)
    devices = hearing_on_all(boxes, bridge, dial, "state/+")
    client_id = ids_on(boxes, 2)[0][1]
    slot = core.slot_of(core.session_key(client_id))
    wills = []
    for at, target in enumerate([boxes.nodes[1], boxes.nodes[2], boxes.nodes[0]]):
        source = boxes.nodes[(0, 1, 2)[at]]
        mortal = Mortal(bridge.port, client_id, b"state/7", b"%d" % at)
        wills.append(b"%d" % at)
        mortal.die()
        move = SlotMove(boxes, source, target, slot)
        move.begin()
        for _ in move.move_all(1):
            pass
        move.end()
    for device in devices:
        eventually(lambda device=device: len(device.received) >= 3, WAIT_S, "the wills")  # type: ignore[misc]
    eventually(lambda: not waiting(boxes), WAIT_S, "empty outboxes")
    assert [device.received for device in devices] == [wills] * 3
