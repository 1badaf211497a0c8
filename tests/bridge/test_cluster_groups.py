"""Shared subscriptions over a cluster: each message goes to one member, whatever nodes and bridges its members have."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from holdmq import core
from tests.bridge import packets
from tests.bridge.cluster_bridge import ClusterBridge
from tests.bridge.talk import Talk
from tests.bridge.test_cluster_bridge import LOSES, WAIT_S, Device, Dial, Talker, dial, over
from tests.bridge.test_node_links import ids_on
from tests.module.cluster_support import SlotMove, add_replica, owner
from tests.support import BridgeProcess, Cluster, Server, eventually

Over = Callable[..., ClusterBridge]
BridgeTo = Callable[..., BridgeProcess]
__all__ = ["dial", "over"]

GROUP = "$share/g/job/+"
GROUP_KEY = core.session_key(GROUP.encode())


def member_key(client_id: bytes) -> bytes:
    """The session of a client in the slot of the group."""
    return core.session_key(client_id)[1:-1] + b":" + GROUP_KEY


def session_of(cluster: Cluster, client_id: bytes) -> dict[bytes, bytes]:
    """The hash of its member session, as the node of the group has it."""
    node = owner(cluster, core.slot_of(GROUP_KEY))
    name = core.session_name(member_key(client_id), core.Suffix.SESSION)
    found: Any = node.client().hgetall(name)
    return dict(found)


def crew_of(cluster: Cluster, dial: Dial, *ports: int, clean: bool = True) -> list[Device]:
    """A member on each node, at the bridges in turn."""
    ids = [client_id for (client_id,) in ids_on(cluster)]
    devices = [dial(ports[at % len(ports)], client_id, clean=clean) for at, client_id in enumerate(ids)]
    for device in devices:
        assert device.subscribe(GROUP, 2) == [2]
    return devices


def all_of(devices: list[Device]) -> list[bytes]:
    return [payload for device in devices for payload in device.received]


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("bridges", [1, 2])
def test_each_message_goes_to_one_member_of_the_whole_cluster_in_turn(
    cluster: Cluster, over: Over, dial: Dial, qos: int, bridges: int
) -> None:
    ports = [over(cluster).port for _ in range(bridges)]
    devices = crew_of(cluster, dial, *ports)
    sending = dial(ports[0], b"sender")
    sent = [b"%d" % number for number in range(60)]
    for payload in sent:
        sending.publish("job/7", payload, qos)
    eventually(lambda: len(all_of(devices)) >= len(sent), WAIT_S, "all messages")
    sending.publish("job/8", b"last", 1)
    eventually(lambda: b"last" in all_of(devices), WAIT_S, "the last message")
    assert sorted(all_of(devices)) == sorted([*sent, b"last"])
    assert all(len(device.received) >= len(sent) / len(devices) for device in devices)
    numbers = [[int(payload) for payload in device.received if payload != b"last"] for device in devices]
    assert numbers == [sorted(row) for row in numbers]  # in their order


def test_a_client_gets_what_its_own_filters_match_beside_its_groups(cluster: Cluster, over: Over, dial: Dial) -> None:
    bridge = over(cluster)
    devices = crew_of(cluster, dial, bridge.port)
    for device in devices:
        assert device.subscribe("#", 1) == [1]
    sending = dial(bridge.port, b"sender")
    for number in range(12):
        sending.publish("job/7", b"%d" % number, 2)
    eventually(lambda: len(all_of(devices)) >= 48, WAIT_S, "all messages")
    assert Counter(all_of(devices)) == dict.fromkeys([b"%d" % number for number in range(12)], 4)


def test_a_group_of_many_filters_in_one_subscribe(cluster: Cluster, over: Over) -> None:
    bridge = over(cluster)
    with Talk.connected(bridge.port, "many") as client:
        client.send(packets.subscribe(1, *((f"$share/g/{number}", 1) for number in range(32)), ("plain", 0)))
        client.expect(packets.suback(1, *[1] * 32, 0))
        client.send(packets.subscribe(2, ("$share/g/more", 1)))
        client.expect(packets.suback(2, 0x80))
        client.send(packets.unsubscribe(3, "$share/g/7"))
        client.expect(packets.unsuback(3))


def test_an_unsubscribed_member_gets_no_more_and_may_return(cluster: Cluster, over: Over, dial: Dial) -> None:
    bridge = over(cluster)
    devices = crew_of(cluster, dial, bridge.port)
    sending = dial(bridge.port, b"sender")
    devices[0].unsubscribe(GROUP)
    for number in range(20):
        sending.publish("job/7", b"%d" % number)
    eventually(lambda: len(all_of(devices)) >= 20, WAIT_S, "all messages")
    assert devices[0].received == []
    assert devices[0].subscribe(GROUP) == [1]
    for number in range(20, 40):
        sending.publish("job/7", b"%d" % number)
    eventually(lambda: len(all_of(devices)) >= 40, WAIT_S, "all messages")
    assert sorted(all_of(devices)) == sorted(b"%d" % number for number in range(40))
    assert devices[0].received


def test_messages_wait_while_all_members_are_away(cluster: Cluster, over: Over, dial: Dial) -> None:
    first, second = over(cluster), over(cluster)
    for device in crew_of(cluster, dial, first.port, clean=False):
        device.close()
    ids = [client_id for (client_id,) in ids_on(cluster)]
    for client_id in ids:
        eventually(lambda name=client_id: session_of(cluster, name)[b"connected"] == b"0", WAIT_S, "members that left")  # type: ignore[misc]
    sending = dial(first.port, b"sender")
    for number in range(30):
        sending.publish("job/7", b"%d" % number, number % 2 + 1)
    again = [dial(second.port, client_id, clean=False) for client_id in ids]
    eventually(lambda: len(all_of(again)) >= 30, WAIT_S, "all messages")
    sending.publish("job/7", b"last", 2)
    eventually(lambda: b"last" in all_of(again), WAIT_S, "the last message")
    assert sorted(all_of(again)) == sorted([*(b"%d" % number for number in range(30)), b"last"])


def test_a_member_that_goes_leaves_what_it_did_not_get(cluster: Cluster, over: Over, dial: Dial) -> None:
    bridge = over(cluster, max_inflight=5)
    (first,), (second,), _ = ids_on(cluster)
    with Talk.connected(bridge.port, first.decode()) as silent:
        silent.send(packets.subscribe(1, (GROUP, 1)))
        silent.expect(packets.suback(1, 1))
        sending = dial(bridge.port, b"sender")
        for number in range(20):
            sending.publish("job/7", b"%d" % number)
        got = [silent.read_packet() for _ in range(5)]
        other = dial(bridge.port, second)  # else the group ends with its last member
        assert other.subscribe(GROUP) == [1]
    assert [packet[-1:] for packet in got] == [b"0", b"1", b"2", b"3", b"4"]
    # The session of the first was clean: it has ended, and gives back what is in flight with QoS 1, too.
    eventually(lambda: len(other.received) >= 20, WAIT_S, "messages of the other")
    assert sorted(other.received) == sorted(b"%d" % number for number in range(20))


def test_a_message_in_flight_comes_again_with_its_identifier(cluster: Cluster, over: Over, dial: Dial) -> None:
    first, second = over(cluster), over(cluster)
    ((client_id,), _, _) = ids_on(cluster)
    with Talk.connected(first.port, client_id.decode(), clean=False) as client:
        client.send(packets.subscribe(1, (GROUP, 2)))
        client.expect(packets.suback(1, 2))
        sending = dial(first.port, b"sender")
        sending.publish("job/7", b"one", 2)
        packet = client.read_packet()
        assert packet[0] == 0x34
        at = 4 + len("job/7")
        packet_id = int.from_bytes(packet[at : at + 2], "big")
        assert packet_id > 49407
        client.send(packets.pubrec(packet_id))
        client.expect(packets.pubrel(packet_id))
    with Talk.connected(second.port, client_id.decode(), clean=False, present=True) as client:
        client.expect(packets.pubrel(packet_id))
        client.send(packets.pubcomp(packet_id))
        sending.publish("job/7", b"two", 2)
        assert client.read_packet().endswith(b"two")


def test_a_member_that_is_taken_over_goes_on_at_the_other_bridge(cluster: Cluster, over: Over, dial: Dial) -> None:
    first, second = over(cluster), over(cluster)
    devices = crew_of(cluster, dial, first.port, clean=False)
    sending = dial(first.port, b"sender")
    talker = Talker(sending, "job/7")
    talker.until(10)
    devices[0].client.loop_stop()  # it does not connect again
    ((client_id,), _, _) = ids_on(cluster)
    again = dial(second.port, client_id, clean=False)
    talker.until(30)
    sent = talker.end()
    everybody = [*devices, again]
    eventually(lambda: set(all_of(everybody)) >= set(sent), WAIT_S, "all messages")
    assert again.received


def test_the_members_of_a_bridge_that_dies_leave_their_messages_to_others(
    fresh_cluster: Callable[..., Cluster], bridge_to: BridgeTo, over: Over, dial: Dial
) -> None:
    cluster = fresh_cluster(3)
    dying = bridge_to(cluster.nodes[0].url, "--lease-s", "2")
    living = over(cluster)
    (first,), (second,), (third,) = ids_on(cluster)
    lost, left = dial(dying.port, first), dial(living.port, second)
    for device in (lost, left):
        assert device.subscribe(GROUP) == [1]
    sending = dial(living.port, third)
    for number in range(10):
        sending.publish("job/7", b"%d" % number)
    eventually(lambda: len(all_of([lost, left])) >= 10, WAIT_S, "the first messages")
    dying.kill()
    lost.client.loop_stop()
    for number in range(10, 40):
        sending.publish("job/7", b"%d" % number)
    eventually(lambda: set(left.received) >= {b"%d" % number for number in range(10, 40)}, WAIT_S, "what is left")
    assert session_of(cluster, first) == {}


def test_a_group_follows_its_slot_under_traffic(fresh_cluster: Callable[..., Cluster], over: Over, dial: Dial) -> None:
    cluster = fresh_cluster(3)
    bridge = over(cluster)
    devices = crew_of(cluster, dial, bridge.port)
    sending = dial(bridge.port, b"sender")
    talker = Talker(sending, "job/7")
    slot = core.slot_of(GROUP_KEY)
    for _ in range(2):
        source = owner(cluster, slot)
        move = SlotMove(cluster, source, next(node for node in cluster.nodes if node is not source), slot)
        talker.until(10)
        move.begin()
        for _ in move.move_all(2):
            pass
        move.end()
        talker.until(10)
    sent = talker.end()
    eventually(lambda: set(all_of(devices)) >= set(sent), WAIT_S, "all messages")
    counts = Counter(all_of(devices))
    assert set(counts) == set(sent)
    assert all(device.received for device in devices)


def test_a_group_goes_on_at_the_replica_of_its_node(
    fresh_cluster: Callable[..., Cluster], fresh_server: Callable[..., Server], over: Over, dial: Dial
) -> None:
    cluster = fresh_cluster(3, config=LOSES)
    slot = core.slot_of(GROUP_KEY)
    lost = owner(cluster, slot)
    replica = add_replica(cluster, lost, fresh_server(cluster=True, config=LOSES))
    bridge = over(cluster)
    ids = [client_id for (client_id,), node in zip(ids_on(cluster), cluster.nodes, strict=False) if node is not lost]
    devices = [dial(bridge.port, client_id) for client_id in ids]
    for device in devices:
        assert device.subscribe(GROUP) == [1]
        assert device.subscribe(f"own/{devices.index(device)}") == [1]
    talker = Talker(devices[0], "job/7")
    beside = Talker(devices[1], "own/0")
    talker.until(10)
    lost.client().execute_command("WAIT", 1, 5000)
    lost.kill()
    beside.until(20)  # other topics do not wait
    living = next(node for node in cluster.nodes if node.process.running)
    eventually(lambda: owner(cluster, slot, living) is replica, WAIT_S, "a new primary")
    talker.until(20)
    sent = talker.end()
    own = beside.end()
    eventually(lambda: set(all_of(devices)) >= {*sent, *own}, WAIT_S, "all messages")


def no_members(cluster: Cluster) -> bool:
    return all(node.client().keys("*$share*") == [] for node in cluster.nodes)


@pytest.mark.parametrize("how", ["clean", "drop"])
def test_members_end_with_the_session_of_their_client(
    fresh_cluster: Callable[..., Cluster], over: Over, dial: Dial, how: str
) -> None:
    cluster = fresh_cluster(3)
    bridge = over(cluster)
    ids = [client_id for (client_id,) in ids_on(cluster)]
    for device in crew_of(cluster, dial, bridge.port, clean=False):
        device.close()
    for client_id in ids:
        eventually(lambda name=client_id: session_of(cluster, name).get(b"connected") == b"0", WAIT_S, "members away")  # type: ignore[misc]
    assert not no_members(cluster)
    for client_id in ids:
        key = core.session_key(client_id)
        if how == "clean":
            dial(bridge.port, client_id)
        else:
            cluster.node_of(key).client().execute_command("SESSION.DROP", key)
    eventually(lambda: no_members(cluster), WAIT_S, "the end of the members")
    eventually(lambda: all(node.client().keys("*_outbox") == [] for node in cluster.nodes), WAIT_S, "empty outboxes")


def test_a_client_that_begins_clean_and_joins_again_gets_nothing_of_the_former_member(
    cluster: Cluster, over: Over, dial: Dial
) -> None:
    bridge = over(cluster)
    ((client_id,), (other,), _) = ids_on(cluster)
    sending = dial(bridge.port, other)
    with Talk.connected(bridge.port, client_id.decode(), clean=False) as client:
        client.send(packets.subscribe(1, (GROUP, 1)))
        client.expect(packets.suback(1, 1))
        sending.publish("job/7", b"one")
        assert client.read_packet().endswith(b"one")
    with Talk.connected(bridge.port, client_id.decode()) as client:
        client.send(packets.subscribe(1, (GROUP, 1)))
        client.expect(packets.suback(1, 1))
        sending.publish("job/7", b"two")
        packet = client.read_packet()
        assert packet.endswith(b"two")
        assert packet[0] == 0x32


def test_a_member_is_opened_again_for_a_session_with_many_filters(cluster: Cluster, over: Over, dial: Dial) -> None:
    bridge = over(cluster)
    ((client_id,), (other,), _) = ids_on(cluster)
    first = dial(bridge.port, client_id, clean=False)
    assert first.subscribe(GROUP) == [1]
    first.close()
    key = core.session_key(client_id)
    pairs = [word for number in range(2500) for word in (f"other/{number}", 1)]
    cluster.node_of(key).client().execute_command("SESSION.SUBSCRIBE", key, *pairs)
    again = dial(bridge.port, client_id, clean=False)
    sending = dial(bridge.port, other)
    sending.publish("job/7", b"one")
    eventually(lambda: again.received == [b"one"], WAIT_S, "the message of the group")
