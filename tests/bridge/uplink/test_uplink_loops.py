"""No message circulates forever: two HoldMQ brokers that link to each other, rings, and what 3.1.1 cannot do."""

import time
from collections.abc import Callable, Iterator

import pytest

from tests.bridge.uplink.strangers import Gate
from tests.bridge.uplink.support import TIMEOUT_S, LinkProcess, Local, Mosquitto, Remote, payloads
from tests.support import BridgeProcess, Server, embedded_kinds, eventually

server_kinds = embedded_kinds
MakeServer = Callable[..., Server]
MakeBridge = Callable[..., BridgeProcess]
MakeMosquitto = Callable[..., Mosquitto]
MakeRemote = Callable[..., Remote]
MakeLink = Callable[..., LinkProcess]


class Broker:
    """A HoldMQ broker: a server and a bridge in front of it."""

    def __init__(self, server: Server, bridge: BridgeProcess) -> None:
        self.local = Local(server)
        self.port = bridge.port
        self.local.listen("t/#")

    def published(self) -> int:
        """How many messages the server has published since it started, of any topic."""
        return int(self.local.redis.info("everything")["holdmq_topic_published"])


@pytest.fixture
def make_broker(fresh_server: MakeServer, bridge: MakeBridge) -> Callable[[], Broker]:
    def make() -> Broker:
        server = fresh_server()
        return Broker(server, bridge(server, arguments=["--sys-interval-s", "0"]))

    return make


@pytest.fixture
def gated() -> Iterator[Callable[[Broker], Gate]]:
    """Makes of a HoldMQ broker one that knows no bridges."""
    gates: list[Gate] = []

    def make(broker: Broker) -> Gate:
        gates.append(Gate(broker.port))
        return gates[-1]

    yield make
    for gate in gates:
        gate.close()


def settle(brokers: list[Broker], links: int) -> None:
    """Until nothing is published any more, and every link's queue is empty."""
    before: list[list[int]] = []

    def quiet() -> bool:
        waiting = [broker.local.waiting(f"l{number}") for broker in brokers for number in range(links)]
        before.append([broker.published() for broker in brokers])
        time.sleep(0.2)
        return not any(waiting) and len(before) > 3 and before[-1] == before[-4]

    eventually(quiet, TIMEOUT_S, "that nothing goes round")


def test_a_holdmq_bridge_is_a_good_other_broker(make_broker: Callable[[], Broker], uplink: MakeLink) -> None:
    a, b = make_broker(), make_broker()
    uplink(a.local, b, ["t/# both 2"], name="l0")
    for number in range(50):
        a.local.publish("t/a", b"%d" % number, qos=2)
        b.local.publish("t/b", b"%d" % number, qos=2)
    expected = [b"%d" % number for number in range(50)]
    for side in (a, b):
        for topic in ("t/a", "t/b"):
            eventually(
                lambda side=side, topic=topic: (  # type: ignore[misc] # bound now
                    payloads(m for m in side.local.received() if m.topic == topic) == expected
                ),
                TIMEOUT_S,
            )
    settle([a, b], 1)
    assert len(a.local.received()) == len(b.local.received()) == 100


def test_two_brokers_that_link_to_each_other_do_not_play_ping_pong(
    make_broker: Callable[[], Broker], uplink: MakeLink
) -> None:
    a, b = make_broker(), make_broker()
    uplink(a.local, b, ["t/# both 1"], name="l0")
    uplink(b.local, a, ["t/# both 1"], name="l1")
    for number in range(10):
        a.local.publish("t/a", b"%d" % number)
    eventually(lambda: len(set(payloads(b.local.received()))) == 10, TIMEOUT_S)
    settle([a, b], 2)
    # Two links between the same brokers are two ways: each message takes each way once, and never a second time.
    assert 10 <= len(b.local.received()) <= 20
    assert 10 <= len(a.local.received()) <= 30


def test_a_ring_of_three_delivers_everywhere_and_comes_to_rest(
    make_broker: Callable[[], Broker], uplink: MakeLink
) -> None:
    ring = [make_broker() for _ in range(3)]
    for number, broker in enumerate(ring):
        uplink(broker.local, ring[(number + 1) % 3], ["t/# both 1"], name=f"l{number}")
    for number, broker in enumerate(ring):
        broker.local.publish("t/x", b"%d" % number)
    for broker in ring:
        eventually(lambda broker=broker: set(payloads(broker.local.received())) == {b"0", b"1", b"2"}, TIMEOUT_S)  # type: ignore[misc] # bound now
    settle(ring, 3)
    assert max(len(broker.local.received()) for broker in ring) <= 9


def test_a_message_that_has_come_far_enough_goes_no_further(
    make_broker: Callable[[], Broker], mosquitto: MakeMosquitto, remote: MakeRemote, uplink: MakeLink
) -> None:
    broker = mosquitto()
    there = remote(broker.port)
    there.listen("t/#")
    a, b = make_broker(), make_broker()
    uplink(a.local, b, ["t/# out 1"], name="l0")
    uplink(b.local, broker, ["t/# out 1"], name="l1", max_hops=1)
    a.local.publish("t/far", b"x")
    eventually(lambda: payloads(b.local.received()) == [b"x"], TIMEOUT_S)
    b.local.publish("t/near", b"y")
    eventually(lambda: payloads(there.messages) == [b"y"], TIMEOUT_S)


def test_a_3_1_1_link_to_a_broker_without_bridges_refuses_lines_that_would_echo(
    make_broker: Callable[[], Broker], uplink: MakeLink, gated: Callable[[Broker], Gate]
) -> None:
    a, b = make_broker(), make_broker()
    link = uplink(a.local, gated(b), ["t/# both 1"], name="l0", protocol="3.1.1", start=False)
    link.spawn()
    eventually(lambda: "they would come in again" in link.log_text(), TIMEOUT_S)
    assert not link.events("connected")


def test_a_3_1_1_link_without_an_echo_works_with_a_broker_that_knows_no_bridges(
    make_broker: Callable[[], Broker], uplink: MakeLink, gated: Callable[[Broker], Gate]
) -> None:
    a, b = make_broker(), make_broker()
    link = uplink(a.local, gated(b), ["t/a out 2", "t/b in 2"], name="l0", protocol="3.1.1")
    assert link.events("the other broker does not know the bridge flag: retain flags of live messages are lost") == 1
    a.local.publish("t/a", b"1", qos=2)
    b.local.publish("t/b", b"2", qos=2)
    eventually(lambda: b"1" in payloads(b.local.received()), TIMEOUT_S)
    eventually(lambda: b"2" in payloads(a.local.received()), TIMEOUT_S)


def test_a_3_1_1_link_in_both_directions_to_a_holdmq_broker_makes_no_loop(
    make_broker: Callable[[], Broker], uplink: MakeLink
) -> None:
    brokers = [make_broker(), make_broker()]
    a, b = brokers

    def came_to_both() -> bool:
        return all(sorted(payloads(broker.local.received())) == [b"1", b"2"] for broker in brokers)

    uplink(a.local, b, ["t/# both 1"], name="l0", protocol="3.1.1")
    a.local.publish("t/a", b"1", qos=1)
    b.local.publish("t/b", b"2", qos=1)
    eventually(came_to_both, TIMEOUT_S)
    settle(brokers, 1)
    assert came_to_both()
