"""What is delivered to many clients, or is large, goes at the pace of who receives it; the link to the server holds."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from holdmq_bridge.process.settings import MOST_PACKET_BYTES, Settings
from tests.bridge import packets
from tests.bridge.conftest import Connect
from tests.bridge.talk import Talk
from tests.support import BridgeProcess, Server

MakeBridge = Callable[..., BridgeProcess]
MakeServer = Callable[..., Server]

MEGABYTE = 1_000_000
PATIENCE_S = 60.0


def link_losses(made: BridgeProcess) -> int:
    """How often the server's connection was lost, by the bridge's log."""
    return made.log_text().count("the connection to the server was lost")


@contextmanager
def one_link(made: BridgeProcess) -> Iterator[None]:
    """The link to the server holds meanwhile."""
    before = link_losses(made)
    yield
    assert link_losses(made) == before, "the link was lost"


def receivers(dial: Connect, port: int, count: int, topic: str, qos: int) -> list[Talk]:
    made = [dial(port, f"r{number}") for number in range(count)]
    for one in made:
        one.timeout_s = PATIENCE_S
        one.send(packets.subscribe(1, (topic, qos)))
        one.expect(packets.suback(1, qos))
    return made


def answer(one: Talk, qos: int, packet_id: int) -> None:
    """The receiver's half of the exchange."""
    if qos == 1:
        one.send(packets.puback(packet_id))
    elif qos == 2:
        one.send(packets.pubrec(packet_id))
        one.expect(packets.pubrel(packet_id))
        one.send(packets.pubcomp(packet_id))


@pytest.mark.parametrize(("subscribers", "qos"), [(40, 0), (40, 1), (40, 2), (400, 0), (400, 1)])
def test_a_large_publish_reaches_many_subscribers(
    broker: BridgeProcess, dial: Connect, subscribers: int, qos: int
) -> None:
    all_of_them = receivers(dial, broker.port, subscribers, "firmware", qos)
    publisher = dial(broker.port, "publisher")
    publisher.timeout_s = PATIENCE_S
    payloads = [bytes([number]) * MEGABYTE for number in range(2)]
    with one_link(broker):
        for number, payload in enumerate(payloads, 1):
            publisher.send(packets.publish("firmware", payload, qos=qos, pid=number if qos else 0))
            publisher.expect([b"", packets.puback(number), packets.pubrec(number)][qos])
        for one in all_of_them:
            got = [one.read_publish(acknowledge=False) for _ in payloads]
            assert [message.payload for message in got] == payloads
            assert {(message.qos, message.dup) for message in got} == {(qos, False)}
            for message in got:
                answer(one, qos, message.pid)


def test_the_largest_packet_that_may_be_set_reaches_everybody(
    server: Server, bridge: MakeBridge, dial: Connect
) -> None:
    made = bridge(server, arguments=["--max-packet-bytes", str(MOST_PACKET_BYTES)])
    all_of_them = receivers(dial, made.port, 10, "image", 1)
    away = dial(made.port, "away", clean=False)
    away.subscribe(("image", 1))
    away.disconnect()
    publisher = dial(made.port, "publisher")
    publisher.timeout_s = PATIENCE_S
    payload = bytes(range(256)) * (MOST_PACKET_BYTES // 256 - 1)
    with one_link(made):
        publisher.publish("image", payload, qos=1, pid=1)
        for one in all_of_them:
            assert one.read_publish().payload == payload
        away = dial(made.port, "away", clean=False, present=True)
        away.timeout_s = PATIENCE_S
        assert away.read_publish().payload == payload


def test_a_larger_packet_than_works_cannot_be_set() -> None:
    with pytest.raises(ValueError, match="max_packet_bytes 16777217; expected at most 16777216, because the server"):
        Settings(max_packet_bytes=MOST_PACKET_BYTES + 1)


def test_a_message_of_the_server_that_no_packet_holds_is_left_out(
    server: Server, bridge: MakeBridge, dial: Connect
) -> None:
    made = bridge(server)
    (receiver,) = receivers(dial, made.port, 1, "t", 1)
    with one_link(made), server.client() as client:
        for payload in (b"before", b"x" * 50_000_000, b"after"):
            client.execute_command("TOPIC.PUBLISH", "t", payload, "QOS", 1)
        assert receiver.read_publish().payload == b"before"
        assert receiver.read_publish().payload == b"after"


def test_many_clients_behind_with_large_messages_get_them_over_one_link(
    server: Server, bridge: MakeBridge, dial: Connect
) -> None:
    made = bridge(server)
    names = [f"c{number}" for number in range(100)]
    for name in names:
        one = dial(made.port, name, clean=False)
        one.subscribe(("t", 1))
        one.disconnect()
    with one_link(made), server.client() as client:
        for letter in b"abc":
            client.execute_command("TOPIC.PUBLISH", "t", bytes([letter]) * MEGABYTE, "QOS", 1)
        back = [dial(made.port, name, clean=False, present=True) for name in names]
        for one in back:
            one.timeout_s = PATIENCE_S
            assert [one.read_publish().payload[:1] for _ in range(3)] == [b"a", b"b", b"c"]


def test_a_link_that_the_server_closes_at_once_is_made_again_more_and_more_slowly(
    server: Server, bridge: MakeBridge, dial: Connect
) -> None:
    made = bridge(server, arguments=["--retry-first-s", "0.1", "--retry-max-s", "0.8"])
    receivers(dial, made.port, 1, "t", 1)
    with server.client() as client:
        before, began = link_losses(made), time.monotonic()
        while link_losses(made) < before + 4:
            assert time.monotonic() < began + PATIENCE_S
            client.client_kill_filter(_type="pubsub")
            time.sleep(0.005)
    assert time.monotonic() - began >= 0.05 + 0.1 + 0.2  # half of the pauses of 0.1, 0.2 and 0.4 s
