"""Publishers meet a full queue through the bridge: what they are told, who waits, and who does not."""

from collections.abc import Callable

import pytest
import redis

from holdmq_bridge.auth.passwords import hash_password
from holdmq_bridge.auth.records import User
from holdmq_bridge.auth.store import Store
from tests.bridge import packets, packets5
from tests.bridge.talk import Talk, Talk5
from tests.module.sessions_support import Session
from tests.support import BridgeProcess, Server, eventually

MakeBridge = Callable[..., BridgeProcess]


def full_session(client: redis.Redis, policy: str) -> Session:
    """A session whose queue has one message, which fills it."""
    session = Session(client, "{full}")
    client.execute_command(
        "SESSION.OPEN", session.key, "OWNER", "test", "EXPIRY", 600, "MAXBYTES", 100, "OVERFLOW", policy
    )
    session.subscribe(("t/#", 1))
    assert client.execute_command("TOPIC.PUBLISH", "t/x", "x" * 60, "QOS", 1) == 1
    return session


def test_a_publisher_of_mqtt_5_learns_that_a_queue_refuses(
    server: Server, bridge: MakeBridge, client: redis.Redis
) -> None:
    made = bridge(server)
    session = full_session(client, "refuse")
    with Talk5.open(made.port, "p") as publisher:
        for pid, topic in enumerate(["t/1", "other", "t/2"], 1):
            publisher.send(packets5.publish(topic, b"y" * 60, qos=1, pid=pid))
        assert [(got.pid, got.code) for got in (publisher.read(4) for _ in range(3))] == [
            (1, 0x97),
            (2, 0x10),
            (3, 0x97),
        ]
        session.ack(1)
        publisher.send(packets5.publish("t/3", b"y" * 60, qos=1, pid=4))
        assert publisher.read(4).code == 0
    assert len(session.fetch_all()) == 1


@pytest.mark.parametrize("version", [4, 5])
def test_a_queue_that_waits_delays_its_publishers_alone(
    server: Server, bridge: MakeBridge, client: redis.Redis, version: int
) -> None:
    made = bridge(server)
    session = full_session(client, "wait")
    codec, talk = (packets5, Talk5.open(made.port, "p")) if version == 5 else (packets, Talk.connected(made.port, "p"))
    with talk, Talk.connected(made.port, "q") as other:
        talk.send(codec.publish("t/1", b"y" * 60, qos=1, pid=1))
        eventually(lambda: client.info("holdmq")["holdmq_queue_full_delayed"] >= 2, what="several tries")
        for pid in range(1, 20):
            other.send(packets.publish("u", b"y" * 60, qos=1, pid=pid))
            other.expect(packets.puback(pid))
        talk.expect_silence(0.1)
        session.ack(1)
        assert talk.read_packet()[:4] == packets.puback(1)
    assert len(session.fetch_all()) == 1


def test_a_client_that_waits_for_too_long_learns_that_there_is_no_room(
    server: Server, bridge: MakeBridge, client: redis.Redis
) -> None:
    made = bridge(server, arguments=["--retry-total-s", "0.3"])
    full_session(client, "wait")
    with Talk5.open(made.port, "p") as publisher:
        publisher.send(packets5.publish("t/1", b"y" * 60, qos=1, pid=1))
        assert publisher.read(4).code == 0x97


def test_the_record_of_a_user_says_what_happens_to_full_queues_of_its_sessions(
    server: Server, bridge: MakeBridge, client: redis.Redis
) -> None:
    Store(client).add_user(User("alice", hash_password(b"secret"), superuser=True, overflow="drop-newest"))
    made = bridge(server)
    with Talk5.open(made.port, "c", username="alice", password=b"secret"):
        assert Session(client, "{c}").info()["overflow"] == b"drop-newest"


def test_a_client_of_a_session_too_many_is_notified(server: Server, bridge: MakeBridge, client: redis.Redis) -> None:
    made = bridge(server)
    client.config_set("holdmq.max-sessions", 1)
    with Talk5.open(made.port, "first"), Talk5(made.port) as second:
        second.send(packets5.connect("second"))
        assert second.read(2).code == 0x97
