"""All retained messages reach a new subscriber, at QoS 0, too, however slow it is, and before later messages."""

import threading
import time
from collections.abc import Callable

import pytest
import redis

from tests.bridge import packets, packets5
from tests.bridge.conftest import Connect
from tests.bridge.talk import Talk, Talk5
from tests.support import BridgeProcess, Server, eventually

MakeBridge = Callable[..., BridgeProcess]

PATIENCE_S = 60.0


def retain(client: redis.Redis, count: int, *, size: int = 100, qos: int = 1, prefix: str = "r") -> list[str]:
    topics = [f"{prefix}/{number:06}" for number in range(count)]
    for first in range(0, count, 5000):
        pipe = client.pipeline(transaction=False)
        for topic in topics[first : first + 5000]:
            pipe.execute_command("TOPIC.PUBLISH", topic, "x" * size, "QOS", qos, "RETAIN")
        pipe.execute()
    return topics


def losses(broker: BridgeProcess) -> int:
    """How often the bridge lost the server, by its log."""
    return broker.log_text().count("the connection to the server was lost")


def subscribe(talk: Talk, topic_filter: str, qos: int) -> None:
    talk.timeout_s = PATIENCE_S
    talk.send(packets.subscribe(1, (topic_filter, qos)))
    talk.expect(packets.suback(1, qos))


@pytest.mark.parametrize(("count", "size"), [(1000, 500), (10_000, 1000)])
@pytest.mark.parametrize("qos", [0, 1])
def test_all_retained_messages_come_whatever_a_socket_takes(
    broker: BridgeProcess, server: Server, dial: Connect, count: int, size: int, qos: int
) -> None:
    topics = retain(server.client(), count, size=size)
    one = dial(broker.port, "c")
    subscribe(one, "r/#", qos)
    got = [one.read_publish() for _ in range(count)]
    assert [message.topic for message in got] == topics
    assert {(message.qos, message.retain, message.dup) for message in got} == {(qos, True, False)}
    one.expect_nothing()


@pytest.mark.parametrize(("count", "size"), [(1000, 500), (10_000, 1000)])
@pytest.mark.parametrize("qos", [0, 1])
def test_all_of_them_come_to_a_client_of_mqtt_5(
    broker: BridgeProcess, server: Server, count: int, size: int, qos: int
) -> None:
    topics = retain(server.client(), count, size=size)
    with Talk5.open(broker.port, "c", properties=packets5.number(packets5.RECEIVE_MAXIMUM, 50)) as one:
        one.timeout_s = PATIENCE_S
        assert one.granted(("r/#", qos)) == [qos]
        assert [one.message().topic for _ in topics] == topics
        one.expect_nothing()


def test_a_client_that_does_not_read_for_a_while_loses_none(broker: BridgeProcess, server: Server) -> None:
    topics = retain(server.client(), 5000, size=1000)
    with Talk(broker.port, receive_buffer=4096) as one:
        one.send(packets.connect("slow"))
        one.expect(packets.connack())
        subscribe(one, "r/#", 0)
        time.sleep(1)
        assert [one.read_publish().topic for _ in topics] == topics


def test_more_than_a_queue_may_hold_come_at_qos_1(broker: BridgeProcess, server: Server, dial: Connect) -> None:
    client = server.client()
    topics = retain(client, 13_000)
    one = dial(broker.port, "c")
    subscribe(one, "#", 1)
    assert [one.read_publish().topic for _ in topics] == topics
    eventually(lambda: not client.exists("{c}_cursors"), what="the end of the cursor")


def test_a_subscribe_that_names_a_filter_a_thousand_times_hurts_nobody(
    broker: BridgeProcess, server: Server, dial: Connect
) -> None:
    topics, before = retain(server.client(), 2000), losses(broker)
    one, other = dial(broker.port, "c"), dial(broker.port, "other")
    one.timeout_s = PATIENCE_S
    one.send(packets.subscribe(1, *[("#", 0)] * 999))
    began = time.monotonic()
    other.expect_nothing()
    assert time.monotonic() - began < 2
    one.expect(packets.suback(1, *[0] * 999))
    assert [one.read_publish().topic for _ in topics] == topics
    one.expect_nothing()
    assert losses(broker) == before


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_forty_megabytes_of_images_come_over_one_link(
    broker: BridgeProcess, server: Server, dial: Connect, qos: int
) -> None:
    topics, before = retain(server.client(), 40, size=1_000_000, prefix="img"), losses(broker)
    one = dial(broker.port, "c")
    subscribe(one, "img/#", qos)
    got = [one.read_publish() for _ in topics]
    assert [message.topic for message in got] == topics
    assert {len(message.payload) for message in got} == {1_000_000}
    assert losses(broker) == before


@pytest.mark.parametrize("qos", [0, 1])
def test_live_messages_on_the_same_topics_come_after_the_retained_ones(
    broker: BridgeProcess, server: Server, dial: Connect, qos: int
) -> None:
    client = server.client()
    client.config_set("holdmq.session-limit", 65_535)  # who publishes here is not slowed by the bridge
    topics = retain(client, 10_000)
    one = dial(broker.port, "c")
    subscribe(one, "r/#", qos)
    live = threading.Thread(target=retain, args=(server.client(), 10_000), kwargs={"size": 3})
    live.start()
    seen: dict[str, list[bytes]] = {topic: [] for topic in topics}
    while any(not sizes or sizes[-1] != b"xxx" for sizes in seen.values()):
        for _ in range(1000):
            message = one.read_publish()
            seen[message.topic].append(message.payload)
            if message.topic == topics[-1] and message.payload == b"xxx":
                break
    live.join()
    for payloads in seen.values():
        assert payloads[-1] == b"xxx"
        assert payloads == sorted(payloads, key=len, reverse=True)


@pytest.mark.parametrize("killed", ["bridge", "server"])
def test_what_is_left_is_handed_over_after_a_kill(
    fresh_server: Callable[..., Server], bridge: MakeBridge, dial: Connect, killed: str
) -> None:
    server = fresh_server(aof=True, config=["appendfsync always"])
    made = bridge(server, arguments=["--retry-first-s", "0.02", "--retry-max-s", "0.1", "--lease-s", "2"])
    topics = retain(server.client(), 5000)
    one = dial(made.port, "c", clean=False)
    subscribe(one, "r/#", 1)
    got = {one.read_publish().topic for _ in range(1000)}
    if killed == "bridge":
        made.kill()
        made.start()
        one = dial(made.port, "c", clean=False, present=True)
        one.timeout_s = PATIENCE_S
    else:
        server.kill()
        server.restart()
    while len(got) < len(topics):
        got.add(one.read_publish().topic)
    assert got == set(topics)
