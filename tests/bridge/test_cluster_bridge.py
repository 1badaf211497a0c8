"""One bridge over a cluster: clients on all nodes are clients of one broker."""

import itertools
import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from holdmq import core
from holdmq_bridge.broker.bridge import Bridge
from holdmq_bridge.process.settings import Settings
from tests.bridge.cluster_bridge import ClusterBridge
from tests.bridge.cluster_program import ClusterProgram
from tests.bridge.test_node_links import ids_on
from tests.module.cluster_support import FAILS_OVER, SlotMove, add_replica, node_id, owner, promote
from tests.support import Cluster, Server, eventually

WAIT_S = 60.0
Dial = Callable[..., "Device"]


class Device:
    """An MQTT client that collects what it gets."""

    def __init__(self, port: int, client_id: str, *, clean: bool = True) -> None:
        self.received: list[bytes] = []
        self.retained: list[bool] = []
        self._connected, self._granted = threading.Event(), threading.Event()
        self.codes: list[int] = []
        self.client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id, protocol=mqtt.MQTTv311, clean_session=clean)
        self.client.on_connect = lambda *_: self._connected.set()
        self.client.on_subscribe = self._on_subscribe
        self.client.on_message = self._on_message
        self.client.reconnect_delay_set(1, 1)
        self.client.connect("127.0.0.1", port, keepalive=60)
        self.client.loop_start()
        assert self._connected.wait(WAIT_S), f"{client_id} got no CONNACK"

    def _on_message(self, _client: Any, _data: Any, message: mqtt.MQTTMessage) -> None:
        self.retained.append(message.retain)
        self.received.append(bytes(message.payload))

    def _on_subscribe(self, _client: Any, _data: Any, _mid: int, codes: Any, _properties: Any) -> None:
        self.codes = [code.value for code in codes]
        self._granted.set()

    def subscribe(self, topic_filter: str, qos: int = 1) -> list[int]:
        self._granted.clear()
        self.client.subscribe(topic_filter, qos)
        assert self._granted.wait(WAIT_S), f"no SUBACK for {topic_filter}"
        return self.codes

    def unsubscribe(self, topic_filter: str) -> None:
        ended = threading.Event()
        self.client.on_unsubscribe = lambda *_: ended.set()
        self.client.unsubscribe(topic_filter)
        assert ended.wait(WAIT_S), f"no UNSUBACK for {topic_filter}"

    def publish(self, topic: str, payload: bytes, qos: int = 1, *, retain: bool = False) -> None:
        """Waits for the PUBACK."""
        sent = self.client.publish(topic, payload, qos, retain)
        sent.wait_for_publish(WAIT_S)
        assert sent.is_published(), f"no PUBACK for {payload!r}"

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


@pytest.fixture
def over() -> Iterator[Callable[..., ClusterBridge]]:
    """Makes bridges over a cluster."""
    made: list[ClusterBridge] = []

    def make(cluster: Cluster, **settings: Any) -> ClusterBridge:
        made.append(ClusterBridge(cluster.nodes[0].url, allow_anonymous="yes", **settings))
        return made[-1]

    yield make
    for bridge in made:
        bridge.close()


@pytest.fixture
def dial() -> Iterator[Dial]:
    """Makes devices."""
    made: list[Device] = []

    def make(port: int, client_id: bytes, *, clean: bool = True) -> Device:
        made.append(Device(port, client_id.decode(), clean=clean))
        return made[-1]

    yield make
    for device in made:
        device.close()


def test_clients_on_all_nodes_hear_each_other(cluster: Cluster, over: Callable[..., ClusterBridge], dial: Dial) -> None:
    bridge = over(cluster)
    devices = [dial(bridge.port, client_id) for (client_id,) in ids_on(cluster)]
    for device in devices:
        assert device.subscribe("plant/+") == [1]
    expected = []
    for number, device in itertools.product(range(10), devices):
        payload = b"%d of %d" % (number, devices.index(device))
        expected.append(payload)
        device.publish("plant/7", payload)
    eventually(lambda: all(len(device.received) >= len(expected) for device in devices), WAIT_S, "all messages")
    assert [device.received for device in devices] == [expected] * 3
    for device in devices:
        device.publish("plant/8", b"at most once", qos=0)
    late = [b"at most once"] * 3
    eventually(lambda: all(device.received[len(expected) :] == late for device in devices), WAIT_S, "those of QoS 0")
    assert bridge.call(lambda made: made.readiness.reason()) == ""


def test_a_session_that_was_away_gets_what_came_meanwhile(
    cluster: Cluster, over: Callable[..., ClusterBridge], dial: Dial
) -> None:
    bridge = over(cluster)
    (listener,), (publisher,), _ = ids_on(cluster)
    first = dial(bridge.port, listener, clean=False)
    assert first.subscribe("a/#") == [1]
    first.close()
    key = core.session_key(listener)
    node = cluster.node_of(key).client()
    eventually(lambda: node.execute_command("SESSION.INFO", key), WAIT_S, "the session")
    sender = dial(bridge.port, publisher)
    for number in range(20):
        sender.publish("a/b", b"%d" % number)
    again = dial(bridge.port, listener, clean=False)
    eventually(lambda: len(again.received) >= 20, WAIT_S, "the messages")
    assert again.received == [b"%d" % number for number in range(20)]


class Talker:
    """Publishes numbers one after the other in a thread, and notes how long each PUBACK took."""

    def __init__(self, device: Device, topic: str, prefix: bytes = b"", qos: int = 1) -> None:
        self._prefix = prefix
        self._qos = qos
        self.sent: list[bytes] = []
        self.slowest_s = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(device, topic))
        self._error: BaseException | None = None
        self._thread.start()

    def _run(self, device: Device, topic: str) -> None:
        try:
            while not self._ended.is_set():
                payload = self._prefix + b"%d" % len(self.sent)
                began = time.monotonic()
                device.publish(topic, payload, self._qos)
                self.slowest_s = max(self.slowest_s, time.monotonic() - began)
                self.sent.append(payload)
        except BaseException as error:  # noqa: BLE001 (told by `end`)
            self._error = error

    def until(self, count: int) -> None:
        """Waits for so many PUBACKs from now on."""
        before = len(self.sent)
        eventually(lambda: len(self.sent) >= before + count or self._error is not None, WAIT_S, "PUBACKs")

    def end(self) -> list[bytes]:
        self._ended.set()
        self._thread.join(2 * WAIT_S)
        if self._error is not None:
            raise self._error
        return self.sent


@pytest.mark.parametrize("moves", ["listener", "publisher"])
def test_a_client_follows_its_slot_under_traffic(
    fresh_cluster: Callable[..., Cluster], over: Callable[..., ClusterBridge], dial: Dial, moves: str
) -> None:
    cluster = fresh_cluster(2)
    (listener,), (publisher,) = ids_on(cluster)
    bridge = over(cluster)
    hearing, sending = dial(bridge.port, listener), dial(bridge.port, publisher)
    assert hearing.subscribe("t") == [1]
    talker = Talker(sending, "t")
    key = core.session_key(listener if moves == "listener" else publisher)
    for at in range(2):
        source = owner(cluster, core.slot_of(key))
        move = SlotMove(cluster, source, next(node for node in cluster.nodes if node is not source), core.slot_of(key))
        talker.until(10)
        move.begin()
        for _ in move.move_all(2):
            pass
        move.end()
        talker.until(10)
        assert owner(cluster, core.slot_of(key)) is not source, at
    sent = talker.end()
    eventually(lambda: len(hearing.received) >= len(sent), WAIT_S, "all messages")
    assert hearing.received == sent
    assert hearing.subscribe("another") == [1]  # a command of the session goes to the other node


def owner_of(node: Server, key: bytes) -> bytes:
    found: Any = node.client().hget(core.session_name(key, core.Suffix.SESSION).decode(), "owner")
    assert isinstance(found, bytes)
    return found


def test_the_heartbeat_of_a_session_is_in_its_slot_and_moves_with_it(
    fresh_cluster: Callable[..., Cluster], over: Callable[..., ClusterBridge], dial: Dial
) -> None:
    cluster = fresh_cluster(2)
    (first,), (second,) = ids_on(cluster)
    bridge = over(cluster, lease_s=2)
    device = dial(bridge.port, first)
    dial(bridge.port, second)
    key = core.session_key(first)
    beat = b"holdmq_owner:" + owner_of(cluster.nodes[0], key)
    assert core.slot_of(beat) == core.slot_of(key)
    assert cluster.nodes[0].client().get(beat) == b"2"
    move = SlotMove(cluster, cluster.nodes[0], cluster.nodes[1], core.slot_of(key))
    move.begin()
    for _ in move.move_all(2):
        pass
    move.end()
    target = cluster.nodes[1].client()

    def expires() -> int:
        return int(target.execute_command("PEXPIRETIME", beat))

    before = expires()
    eventually(lambda: expires() > before + 2000, WAIT_S, "renewals by the new node")
    assert owner_of(cluster.nodes[1], key) == beat.removeprefix(b"holdmq_owner:")
    device.close()
    eventually(lambda: not target.exists(beat), WAIT_S, "the end of a heartbeat that nobody needs")


LOSES = [*FAILS_OVER, "cluster-require-full-coverage no"]


def test_a_lost_node_makes_only_its_own_clients_wait(
    fresh_cluster: Callable[..., Cluster], over: Callable[..., ClusterBridge], dial: Dial
) -> None:
    cluster = fresh_cluster(3, config=LOSES)
    bridge = over(cluster)
    devices = [dial(bridge.port, client_id) for (client_id,) in ids_on(cluster)]
    for number, device in enumerate(devices):
        assert device.subscribe(f"t/{number}") == [1]
    talkers = [Talker(device, f"t/{3 - number}") for number, device in enumerate(devices) if number]
    lost = cluster.nodes[0]
    for talker in talkers:
        talker.until(5)
    lost.kill()
    began = time.monotonic()
    while time.monotonic() < began + 8:  # until after the others have noticed it
        for talker in talkers:
            talker.until(5)
        assert bridge.call(lambda made: made.readiness.reason()) == ""
    assert bridge.call(lambda made: made.levels()["server_up"]) == 0
    waiting = devices[0].client.publish("t/0", b"waits", 1)
    for number, talker in enumerate(talkers, 1):
        talker.until(5)
        sent = talker.end()
        assert talker.slowest_s < 2.0, "a client of another node waited"
        heard = devices[3 - number]
        eventually(lambda heard=heard, sent=sent: len(heard.received) >= len(sent), WAIT_S, "messages")  # type: ignore[misc]
        assert heard.received == sent
    assert not waiting.is_published()
    lost.start()
    waiting.wait_for_publish(WAIT_S)
    assert waiting.is_published()


def test_clients_of_a_lost_node_continue_at_its_replica(
    fresh_cluster: Callable[..., Cluster],
    fresh_server: Callable[..., Server],
    over: Callable[..., ClusterBridge],
    dial: Dial,
) -> None:
    cluster = fresh_cluster(3, config=LOSES)
    lost = cluster.nodes[0]
    (first,), (second,), _ = ids_on(cluster)
    replica = add_replica(cluster, lost, fresh_server(cluster=True, config=LOSES))
    bridge = over(cluster)
    hearing, sending = dial(bridge.port, first, clean=False), dial(bridge.port, second)
    assert hearing.subscribe("t") == [1]
    talker = Talker(sending, "t")
    talker.until(5)
    lost.client().execute_command("WAIT", 1, 5000)
    lost.kill()
    promote(cluster, replica, core.slot_of(core.session_key(first)))
    talker.until(5)
    sent = talker.end()
    eventually(lambda: hearing.received[-1:] == sent[-1:], WAIT_S, "the last message")
    assert list(dict.fromkeys(hearing.received)) == sent  # QoS 1: some may come twice
    hearing.publish("t", b"from the replica")
    eventually(lambda: hearing.received[-1] == b"from the replica", WAIT_S, "its own message")
    assert hearing.subscribe("another") == [1]


def test_a_subscription_gets_the_retained_messages_of_all_nodes(
    cluster: Cluster, over: Callable[..., ClusterBridge], dial: Dial
) -> None:
    bridge = over(cluster)
    (first,), (second,), _ = ids_on(cluster)
    sending = dial(bridge.port, first)
    topics = [f"plant/{number}" for number in range(600)]
    for topic in topics[:-1]:
        sending.client.publish(topic, topic.encode(), 1, retain=True)
    sending.publish(topics[-1], topics[-1].encode(), retain=True)
    assert len({cluster.node_of(core.retained_key(topic)).port for topic in topics}) == 3
    hearing = dial(bridge.port, second)
    assert hearing.subscribe("plant/+") == [1]
    eventually(lambda: len(hearing.received) >= len(topics), WAIT_S, "all retained messages")
    assert sorted(hearing.received) == sorted(topic.encode() for topic in topics)
    assert all(hearing.retained)
    sending.publish("plant/7", b"live")
    eventually(lambda: hearing.received[-1] == b"live", WAIT_S, "a live message")
    assert not hearing.retained[-1]
    assert len(hearing.received) == len(topics) + 1


def test_retained_messages_of_a_lost_node_come_when_it_is_back(
    fresh_cluster: Callable[..., Cluster], over: Callable[..., ClusterBridge], dial: Dial
) -> None:
    cluster = fresh_cluster(3, config=LOSES, aof=True)
    bridge = over(cluster)
    _, (second,), _ = ids_on(cluster)
    device = dial(bridge.port, second)
    topics = [f"plant/{number}" for number in range(30)]
    for topic in topics:
        device.publish(topic, topic.encode(), retain=True)
    assert device.subscribe("plant/#") == [1]
    eventually(lambda: len(device.received) == len(topics), WAIT_S, "all retained messages")
    there = [topic.encode() for topic in topics if cluster.node_of(core.retained_key(topic)) is not cluster.nodes[0]]
    assert 0 < len(there) < len(topics)
    cluster.nodes[0].kill()
    assert device.subscribe("plant/#") == [1]  # known to all nodes
    eventually(lambda: len(device.received) == len(topics) + len(there), WAIT_S, "those of the other nodes")
    assert sorted(device.received[len(topics) :]) == sorted(there)
    cluster.nodes[0].start()
    eventually(lambda: len(device.received) == 2 * len(topics), WAIT_S, "those of the node that is back")


def test_metrics_tell_of_each_node(
    fresh_cluster: Callable[..., Cluster], over: Callable[..., ClusterBridge], dial: Dial
) -> None:
    cluster = fresh_cluster(3, config=LOSES)
    bridge = over(cluster)
    for (client_id,) in ids_on(cluster):
        assert dial(bridge.port, client_id).subscribe("t") == [1]

    def text() -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{bridge.metrics_port}/metrics", timeout=WAIT_S) as answer:
            return str(answer.read().decode())

    found = text()
    for node in cluster.nodes:
        assert f'holdmq_bridge_server_up{{node="127.0.0.1:{node.port}"}} 1.0' in found
        assert f'holdmq_server_sessions_subscribed{{node="127.0.0.1:{node.port}"}} 1.0' in found
    assert "holdmq_bridge_clients 3.0" in found
    cluster.nodes[2].kill()
    gone = f'holdmq_bridge_server_up{{node="127.0.0.1:{cluster.nodes[2].port}"}} 0.0'
    eventually(lambda: gone in text(), WAIT_S, "a node that is not up")


@pytest.mark.parametrize("moves", [False, True])
def test_reports_and_figures_are_kept_by_the_node_that_has_their_slot(
    fresh_cluster: Callable[..., Cluster], over: Callable[..., ClusterBridge], dial: Dial, moves: bool
) -> None:
    cluster = fresh_cluster(3)
    bridge = over(cluster, sys_interval_s=1, report_interval_s=1)
    devices = [dial(bridge.port, client_id) for (client_id,) in ids_on(cluster)]
    for device in devices:
        assert device.subscribe("$SYS/broker/clients/connected") == [1]
    names = ("{holdmq:bridges}:names", "{holdmq:sys}:names")

    def is_told(name: str, node: Server) -> bool:
        return bool(node.client().zcard(name))

    for name in names:
        eventually(lambda name=name: is_told(name, cluster.node_of(name)), WAIT_S, name)  # type: ignore[misc]
    eventually(lambda: all(device.received[-1:] == [b"3"] for device in devices), WAIT_S, "figures at all nodes")
    if not moves:
        return
    for name in names:
        source = cluster.node_of(name)
        target = cluster.nodes[cluster.nodes.index(source) - 1]
        move = SlotMove(cluster, source, target, core.slot_of(name))
        move.begin()
        for _ in move.move_all(1):
            pass
        move.end()
        target.client().delete(name)
        eventually(lambda name=name, target=target: is_told(name, target), WAIT_S, name)  # type: ignore[misc]


def test_users_are_read_from_the_node_that_has_them(
    fresh_cluster: Callable[..., Cluster], over: Callable[..., ClusterBridge], dial: Dial
) -> None:
    cluster = fresh_cluster(3)
    key = "{holdmq:auth}:version"
    bridge = over(cluster)
    (first,), (second,), _ = ids_on(cluster)
    device = dial(bridge.port, first)
    source = cluster.node_of(key)
    target = cluster.nodes[cluster.nodes.index(source) - 1]
    move = SlotMove(cluster, source, target, core.slot_of(key))
    move.begin()
    for _ in move.move_all(1):
        pass
    move.end()
    other = dial(bridge.port, second)
    assert other.subscribe("t") == [1]
    device.publish("t", b"goes on")
    eventually(lambda: other.received == [b"goes on"], WAIT_S, "the message")


def test_a_subscription_at_one_bridge_counts_for_the_next_publish_at_another(
    cluster: Cluster, over: Callable[..., ClusterBridge], dial: Dial
) -> None:
    first, second = over(cluster), over(cluster)
    ids = ids_on(cluster)
    senders = [dial(second.port, client_id) for (client_id,) in ids]
    expected: dict[Device, list[bytes]] = {}
    for number in range(12):
        for sender in senders:
            sender.publish("a/b", b"before %d" % number)  # so that answers are cached
        device = dial(first.port, b"hears-%d" % number)
        assert device.subscribe("a/+") == [1]
        expected[device] = []
        for at, sender in enumerate(senders):
            payload = b"%d by %d" % (number, at)
            sender.publish("a/b", payload)
            for heard in expected.values():
                heard.append(payload)
    for device, payloads in expected.items():
        eventually(lambda: device.received[-1:] == payloads[-1:], WAIT_S, "the last message")  # noqa: B023
        assert [payload for payload in device.received if not payload.startswith(b"before")] == payloads


def test_a_session_is_taken_over_by_another_bridge(
    cluster: Cluster, over: Callable[..., ClusterBridge], dial: Dial
) -> None:
    first, second = over(cluster), over(cluster)
    for (client_id,) in ids_on(cluster):
        former = dial(first.port, client_id, clean=False)
        former.client.on_disconnect = lambda client, *_: client.disconnect()  # it would take the session back
        assert former.subscribe("t") == [1]
        latter = dial(second.port, client_id, clean=False)
        eventually(lambda former=former: not former.client.is_connected(), WAIT_S, "the end of the former")  # type: ignore[misc]
        latter.publish("t", b"to itself")
        eventually(lambda latter=latter: latter.received[-1:] == [b"to itself"], WAIT_S, "a message")  # type: ignore[misc]
        assert former.received[-1:] != [b"to itself"]
        latter.close()


def test_a_publisher_that_waits_for_a_lost_node_is_disconnected_in_time_and_others_are_not(
    fresh_cluster: Callable[..., Cluster], over: Callable[..., ClusterBridge], dial: Dial
) -> None:
    cluster = fresh_cluster(3, config=LOSES)
    bridge = over(cluster, retry_total_s=3)
    (first,), (second,), (third,) = ids_on(cluster)
    assert dial(bridge.port, first).subscribe("of/the/lost") == [1]
    waiting, other = dial(bridge.port, second), dial(bridge.port, third)
    ended: list[str] = []
    waiting.client.on_disconnect = lambda *_: ended.append("waiting")
    other.client.on_disconnect = lambda *_: ended.append("other")
    waiting.publish("of/the/lost", b"in time")
    talker = Talker(other, "t")
    talker.until(5)
    cluster.nodes[0].kill()
    late = waiting.client.publish("of/the/lost", b"too late", 1)
    eventually(lambda: ended, WAIT_S, "the end of the publisher")
    assert not late.is_published()
    talker.until(5)
    talker.end()
    assert set(ended) == {"waiting"}


def move_to(cluster: Cluster, target: Server, slot: int, *, at_once: bool) -> None:
    """Moves a slot key by key, or as a whole where the server has that (Valkey 9)."""
    source = owner(cluster, slot)
    kind = source.kind
    if at_once and kind.family == "valkey" and kind.version >= (9, 0):
        source.client().execute_command("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", node_id(target))
        eventually(lambda: all(owner(cluster, slot, node) is target for node in cluster.nodes), WAIT_S, "a moved slot")
        return
    move = SlotMove(cluster, source, target, slot)
    move.begin()
    for _ in move.move_all(1):
        pass
    move.end()


@pytest.mark.parametrize("at_once", [False, True])
def test_messages_keep_their_order_while_slots_move_under_clients_of_two_bridges(
    fresh_cluster: Callable[..., Cluster], over: Callable[..., ClusterBridge], dial: Dial, at_once: bool
) -> None:
    cluster = fresh_cluster(3)
    bridges = [over(cluster), over(cluster)]
    ids = ids_on(cluster, 2)
    hearing = [dial(bridges[at % 2].port, node[0], clean=False) for at, node in enumerate(ids)]
    for device in hearing:
        assert device.subscribe("t/+") == [1]
    talkers = [Talker(dial(bridges[(at + 1) % 2].port, node[1]), f"t/{at}", b"%d:" % at) for at, node in enumerate(ids)]
    moving = [core.session_key(client_id) for node in ids for client_id in node] * 2
    for key in moving:
        source = owner(cluster, core.slot_of(key))
        target = cluster.nodes[cluster.nodes.index(source) - 1]
        move_to(cluster, target, core.slot_of(key), at_once=at_once)
        for talker in talkers:
            talker.until(2)
    sent = [talker.end() for talker in talkers]
    last = {payloads[-1] for payloads in sent}
    eventually(lambda: all(last <= set(device.received) for device in hearing), WAIT_S, "the last messages")
    for device in hearing:
        for at, payloads in enumerate(sent):
            heard = [payload for payload in device.received if payload.startswith(b"%d:" % at)]
            assert list(dict.fromkeys(heard)) == payloads


def test_a_heartbeat_is_renewed_while_its_slot_is_on_its_way(
    fresh_cluster: Callable[..., Cluster], over: Callable[..., ClusterBridge], dial: Dial
) -> None:
    cluster = fresh_cluster(2)
    (first,), (second,) = ids_on(cluster)
    bridge = over(cluster, lease_s=2)
    device, other = dial(bridge.port, first), dial(bridge.port, second)
    key = core.session_key(first)
    beat = b"holdmq_owner:" + owner_of(cluster.nodes[0], key)
    move = SlotMove(cluster, cluster.nodes[0], cluster.nodes[1], core.slot_of(key))
    move.begin()
    source: Any = cluster.nodes[0].client()
    at_first = source.execute_command("PEXPIRETIME", beat)
    eventually(lambda: source.execute_command("PEXPIRETIME", beat) > at_first + 2500, WAIT_S, "renewals where it is")
    for _ in move.move_all(2):  # the target has no heartbeat of its own, which would stop the move
        pass
    asking = cluster.nodes[1].client().pipeline(transaction=False)

    def expires() -> int:
        asking.execute_command("ASKING")
        asking.execute_command("PEXPIRETIME", beat)
        return int(asking.execute()[1])

    before = expires()
    eventually(lambda: expires() > before + 4000, WAIT_S, "renewals for longer than a lease")
    move.end()
    assert device.subscribe("t") == [1]
    other.publish("t", b"to a session that has stayed")
    eventually(lambda: device.received == [b"to a session that has stayed"], WAIT_S, "the message")


@pytest.mark.parametrize(
    ("settings", "refusal"),
    [
        ({"redis": "redis://127.0.0.1:1/3"}, "database 3: .* has only database 0"),
        ({"redis": "unix:///run/server.sock"}, "expected an address that leads to its other nodes"),
        ({"redis": "sentinel://127.0.0.1:1/name"}, "expected an address that leads to its other nodes"),
    ],
)
async def test_settings_that_a_cluster_does_not_have_are_refused(settings: dict[str, Any], refusal: str) -> None:
    with pytest.raises(ValueError, match=refusal):
        Bridge(Settings(**settings), is_cluster=True)


@pytest.mark.parametrize("qos", [1, 2])
def test_bursts_reach_clients_on_all_nodes_in_order_and_once(
    cluster: Cluster, over: Callable[..., ClusterBridge], dial: Dial, qos: int
) -> None:
    bridge = over(cluster)
    devices = [dial(bridge.port, client_id) for (client_id,) in ids_on(cluster)]
    for device in devices:
        assert device.subscribe("burst/+", qos) == [qos]
    count = 1000
    for number in range(count):
        for at, device in enumerate(devices):
            device.client.publish(f"burst/{at}", b"%d:%d" % (at, number), qos)
    eventually(lambda: all(len(device.received) >= 3 * count for device in devices), WAIT_S, "all messages")
    for device in devices:
        for at in range(3):
            heard = [payload for payload in device.received if payload.startswith(b"%d:" % at)]
            assert heard == [b"%d:%d" % (at, number) for number in range(count)]


def test_a_filter_that_is_given_up_gets_nothing_more(
    cluster: Cluster, over: Callable[..., ClusterBridge], dial: Dial
) -> None:
    bridge = over(cluster)
    (first,), (second,), _ = ids_on(cluster)
    hearing, sending = dial(bridge.port, first), dial(bridge.port, second)
    assert hearing.subscribe("t/#") == [1]
    sending.publish("t/1", b"heard")
    hearing.unsubscribe("t/#")
    sending.publish("t/1", b"not heard")
    assert hearing.subscribe("end") == [1]
    sending.publish("end", b"end")
    eventually(lambda: hearing.received[-1:] == [b"end"], WAIT_S, "the last message")
    assert hearing.received == [b"heard", b"end"]


def test_the_sessions_of_a_killed_bridge_are_closed_by_their_nodes_and_continue_at_another(
    cluster: Cluster, over: Callable[..., ClusterBridge], dial: Dial, tmp_path: Path
) -> None:
    ids = ids_on(cluster, 2)
    surviving = over(cluster)
    senders = [dial(surviving.port, node[1]) for node in ids]
    killed = ClusterProgram(cluster.nodes[1].url, tmp_path, allow_anonymous=True, lease_s=2)
    try:
        killed.spawn()
        eventually(lambda: accepts(killed.port), WAIT_S, "a bridge that accepts connections")
        devices = [dial(killed.port, node[0], clean=False) for node in ids]
        for device in devices:
            device.client.on_disconnect = lambda client, *_: client.disconnect()  # it does not come back by itself
            assert device.subscribe("t") == [1]
        killed.kill()
    finally:
        killed.close()
    for sender in senders:
        sender.publish("t", b"meanwhile")
    for node in ids:
        key = core.session_key(node[0])
        server = cluster.node_of(key).client(decode_responses=True)

        def is_connected(server: Any = server, key: bytes = key) -> bool:
            facts = server.execute_command("SESSION.INFO", key)
            pairs = facts if isinstance(facts, dict) else dict(zip(facts[::2], facts[1::2], strict=True))
            return bool(int(pairs["connected"]))

        eventually(lambda is_connected=is_connected: not is_connected(), WAIT_S, "a session that is closed")  # type: ignore[misc]
        again = dial(surviving.port, node[0], clean=False)
        eventually(lambda again=again: again.received == [b"meanwhile"] * 3, WAIT_S, "what was published")  # type: ignore[misc]


def accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True
