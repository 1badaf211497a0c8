"""A real Mosquitto that is configured as a bridge to HoldMQ: it says so in its protocol level, and gets what it needs.

Its bridge of MQTT 3.1.1 sets the bit 0x80 of the level (`try_private`, on by default).  Then its subscriptions are
without what it has published itself, and messages keep the retain flag: else `both` would be a loop.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.bridge.conformance.peer import Peer
from tests.bridge.uplink.support import HOST, Mosquitto
from tests.support import BridgeProcess, Server, eventually
from tests.support.servers import embedded_kinds

server_kinds = embedded_kinds

Join = Callable[..., Peer]


@pytest.fixture
def bridged(broker: BridgeProcess, tmp_path: Path) -> Iterator[Mosquitto]:
    """A Mosquitto with a bridge for everything below x/, in both directions, with QoS 1 and 2."""
    lines = [
        f"listener {{port}} {HOST}",
        "connection holdmq",
        f"address {HOST}:{broker.port}",
        "topic x/1/# both 1",
        "topic x/2/# both 2",
        "topic away/# out 1",
        "bridge_protocol_version mqttv311",
        "try_private true",
        "cleansession false",
        "local_cleansession false",
        "restart_timeout 1",
    ]
    made = Mosquitto(tmp_path / "mosquitto", "\n".join(lines) + "\n")
    try:
        made.start()
        yield made
    finally:
        made.close()


@pytest.fixture
def join() -> Iterator[Join]:
    """Clients of 5.0 of a broker, `join(port, "c1")`; they see the retain flag as it was published."""
    made: list[Peer] = []

    def connect(port: int, client_id: str) -> Peer:
        made.append(Peer.open(port, client_id, version=5))
        return made[-1]

    yield connect
    for peer in made:
        peer.close()


AS_PUBLISHED = 0x08


def connected(broker: BridgeProcess) -> list[dict[str, object]]:
    """What the log of the bridge says of connections of Mosquitto's."""
    lines = [json.loads(line) for line in broker.log_text().splitlines() if line.startswith("{")]
    return [line for line in lines if line["event"] == "client connected" and line["bridge"]]


@pytest.mark.parametrize("qos", [1, 2])
def test_a_mosquitto_bridges_both_ways_without_a_loop(
    server: Server, broker: BridgeProcess, bridged: Mosquitto, join: Join, qos: int
) -> None:
    client = server.client()

    def subscribed() -> bool:
        """Is the bridge's subscription there?  One that came after the message would get it as a retained one."""
        _, sessions = client.execute_command("SESSION.LIST")
        keys = [session[4] for session in sessions if session[0].endswith(b".holdmq")]
        return any(b"x/%d/#" % qos in client.execute_command("SESSION.SUBSCRIPTIONS", key) for key in keys)

    eventually(subscribed, what="the subscription of the bridge of Mosquitto")
    here, there = join(broker.port, "here"), join(bridged.port, "there")
    for peer in (here, there):
        assert peer.wants((f"x/{qos}/#", qos | AS_PUBLISHED)) == [qos]
    topic = f"x/{qos}/a"
    eventually(lambda: len(connected(broker)) > 0, what="the bridge of Mosquitto")

    def published(sender: Peer, receiver: Peer, payload: bytes) -> None:
        sender.tell(topic, payload, qos=qos, retain=True)
        for peer in (sender, receiver):
            got = peer.message()
            assert (got.topic, got.payload, got.qos, got.retain) == (topic, payload, qos, True)

    published(there, here, b"to HoldMQ")
    published(here, there, b"from HoldMQ")
    there.tell("last", pid=9)  # both brokers are through with what went around
    assert here.arrived() == []
    assert there.arrived() == []


def test_what_is_published_while_holdmq_is_away_reaches_it(
    broker: BridgeProcess, bridged: Mosquitto, join: Join
) -> None:
    eventually(lambda: len(connected(broker)) > 0, what="the bridge of Mosquitto")
    here = Peer.open(broker.port, "here", version=5, lasting=600)
    here.wants(("away/#", 1))
    here.close()
    broker.stop()
    there = join(bridged.port, "there")
    for number in range(20):
        there.tell("away/a", b"%d" % number, pid=number + 1)
    broker.start()
    here = Peer.open(broker.port, "here", version=5, lasting=600)
    got: set[bytes] = set()
    while len(got) < 20:
        got.add(here.message().payload)
    here.close()
    assert got == {b"%d" % number for number in range(20)}
