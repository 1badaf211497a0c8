"""What a user may have in the server, through the bridge: what its clients are told, and that no other user notices."""

from collections.abc import Callable
from contextlib import ExitStack

import pytest
import redis

from holdmq_bridge.auth.passwords import hash_password
from holdmq_bridge.auth.records import User
from holdmq_bridge.auth.store import Store
from holdmq_bridge.base.quota import NO_QUOTA, Quota
from tests.bridge import packets, packets5
from tests.bridge.talk import Talk, Talk5
from tests.bridge.test_watching import scrape
from tests.module.sessions_support import Session, retained_topics
from tests.support import BridgeProcess, Port, Server, embedded_kinds, eventually

server_kinds = embedded_kinds  # what is tested is in the bridge

MakeBridge = Callable[..., BridgeProcess]
SECRET = b"secret"


def users(client: redis.Redis, **quotas: Quota) -> None:
    """Users with these names and quotas."""
    for name, quota in quotas.items():
        Store(client).add_user(User(name, hash_password(SECRET), superuser=True, quota=quota))


def test_a_client_whose_user_has_too_many_sessions_is_notified(
    server: Server, bridge: MakeBridge, client: redis.Redis
) -> None:
    users(client, alice=Quota(sessions=2), bob=NO_QUOTA)
    made = bridge(server)
    with ExitStack() as talks:
        for name in ("a1", "a2"):
            talks.enter_context(Talk5.open(made.port, name, username="alice", password=SECRET))
        with Talk5(made.port) as third:
            third.send(packets5.connect("a3", username="alice", password=SECRET))
            assert third.read(2).code == 0x97
        with Talk(made.port) as older:
            older.send(packets.connect("a4", username="alice", password=SECRET))
            older.expect(packets.connack(3))
        talks.enter_context(Talk5.open(made.port, "b1", username="bob", password=SECRET))
        talks.enter_context(Talk5.open(made.port, "a1", username="alice", password=SECRET))
    assert client.info("holdmq")["holdmq_user_sessions_refused"] >= 2


def test_clients_without_a_user_are_one_user(server: Server, bridge: MakeBridge, client: redis.Redis) -> None:
    made = bridge(server)
    client.config_set("holdmq.max-sessions-per-user", 1)
    with Talk5.open(made.port, "first"), Talk5(made.port) as second:
        second.send(packets5.connect("second"))
        assert second.read(2).code == 0x97


def test_a_retained_message_too_many_is_refused_to_its_user_alone(
    server: Server, bridge: MakeBridge, client: redis.Redis
) -> None:
    users(client, alice=Quota(retained=2), bob=NO_QUOTA)
    made = bridge(server, arguments=["--retry-total-s", "0.3"])

    def retain(talk: Talk5, pid: int, topic: str, payload: bytes = b"1") -> int:
        talk.send(packets5.publish(topic, payload, qos=1, pid=pid, retain=True))
        return talk.read(4).code

    with (
        Talk5.open(made.port, "a1", username="alice", password=SECRET) as first,
        Talk5.open(made.port, "a2", username="alice", password=SECRET) as second,
        Talk5.open(made.port, "b", username="bob", password=SECRET) as other,
    ):
        assert [retain(first, 1, "t/1"), retain(second, 1, "t/2"), retain(second, 2, "t/3")] == [0x10, 0x10, 0x97]
        assert [retain(second, 3, "t/1", b"2"), retain(other, 1, "t/3")] == [0x10, 0x10]
        first.send(packets5.publish("t/4", b"1", retain=True))
        assert [retain(second, 4, "t/2", b""), retain(first, 2, "t/4")] == [0x10, 0x10]
        with Talk(made.port) as older:
            older.send(packets.connect("a3", username="alice", password=SECRET))
            older.expect(packets.connack())
            older.send(packets.publish("t/5", b"1", qos=1, pid=1, retain=True))
            older.expect_closed()  # MQTT 3.1.1 has no other word for it
    assert retained_topics(client) == [b"t/1", b"t/3", b"t/4"]


def test_a_user_whose_queues_are_full_loses_messages_and_no_other_user_does(
    server: Server, bridge: MakeBridge, client: redis.Redis
) -> None:
    users(client, alice=Quota(queue_bytes=5000), bob=NO_QUOTA)
    made = bridge(server)
    for name, user in (("a1", "alice"), ("a2", "alice"), ("b1", "bob")):
        options = b"\x11\x00\x00\x02\x58"  # the session lives for 600 s
        with Talk5.open(made.port, name, username=user, password=SECRET, properties=options) as talk:
            talk.granted(("t", 1))
    with Talk5.open(made.port, "p", username="bob", password=SECRET) as publisher:
        for pid in range(1, 21):
            publisher.send(packets5.publish("t", b"x" * 900, qos=1, pid=pid))
            assert publisher.read(4).code == 0

    def waiting(name: str) -> int:
        return int(Session(client, f"{{{name}}}").info()["messages"])

    eventually(lambda: waiting("b1") == 20, what="all messages of the other user")
    assert waiting("a1") + waiting("a2") == 5
    assert client.info("holdmq")["holdmq_user_bytes_full"] > 0


def test_a_publisher_learns_that_the_user_of_a_receiver_has_no_room(
    server: Server, bridge: MakeBridge, client: redis.Redis
) -> None:
    users(client, alice=Quota(queue_bytes=2000), bob=NO_QUOTA)
    client.config_set("holdmq.session-overflow", "refuse")
    made = bridge(server)
    with Talk5.open(made.port, "a1", username="alice", password=SECRET, properties=b"\x11\x00\x00\x02\x58") as talk:
        talk.granted(("t", 1))
    with Talk5.open(made.port, "p", username="bob", password=SECRET) as publisher:
        assert [publisher.told("t", b"x" * 900, pid=pid) for pid in range(1, 4)] == [0, 0, 0x97]
        publisher.send(packets5.publish("t", b"x" * 900, qos=2, pid=4))
        assert publisher.read(5).code == 0x97
        assert publisher.told("other", b"x", pid=5) == 0x10


def test_each_quota_has_a_metric(server: Server, bridge: MakeBridge, client: redis.Redis, port: Port) -> None:
    users(client, alice=Quota(sessions=1, queue_bytes=1000, retained=1))
    made = bridge(server, arguments=["--metrics-port", str(port.number)])
    names = [
        *(f"holdmq_server_user_{name}_total" for name in ("sessions_refused", "retained_refused", "bytes_full")),
        "holdmq_server_queue_bytes_full_total",
        "holdmq_bridge_connects_over_quota_total",
        "holdmq_bridge_refusals_total{code=QUOTA}",
    ]
    eventually(lambda: set(names) <= scrape(port).keys(), what="the server's numbers")
    before = scrape(port)
    with Talk5.open(made.port, "a1", username="alice", password=SECRET) as alice:
        alice.granted(("t", 1))
        with Talk5(made.port) as second:
            second.send(packets5.connect("a2", username="alice", password=SECRET))
            assert second.read(2).code == 0x97
        assert [alice.told(topic, b"1", retain=True, pid=pid) for pid, topic in ((1, "r/1"), (2, "r/2"))] == [
            0x10,
            0x97,
        ]
        assert alice.told("t", b"x" * 2000, pid=3) == 0x10  # for nobody: it was dropped
        client.config_set("holdmq.max-queue-bytes", 100)
        client.execute_command("SESSION.OPEN", "{b}", "OWNER", "b", "EXPIRY", 60)
        client.execute_command("SESSION.ADD", "{b}", "x" * 200)
        eventually(lambda: [name for name in names if scrape(port)[name] <= before[name]] == [], what="a count of each")


def test_a_quota_holds_from_the_next_connect_on(server: Server, bridge: MakeBridge, client: redis.Redis) -> None:
    users(client, alice=Quota(retained=1))
    made = bridge(server)
    Store(client).change_user("alice", lambda user: User("alice", user.password, superuser=True))
    with Talk5.open(made.port, "a", username="alice", password=SECRET):
        assert client.hget("{a}_session", "user_retained") is None
    users(client, carol=Quota(1, 2, 3))
    with Talk5.open(made.port, "c", username="carol", password=SECRET):
        assert client.hmget("{c}_session", "user_bytes", "user_retained") == [b"2", b"3"]


@pytest.mark.parametrize("quota", [NO_QUOTA, Quota(1), Quota(queue_bytes=0), Quota(1, 2**40, 0)])
def test_a_quota_is_read_as_it_was_written(quota: Quota) -> None:
    assert Quota.parse(str(quota)) == quota


@pytest.mark.parametrize(
    "text",
    [
        "sessions",
        "sessions=-1",
        "sessions=1 sessions=1",
        "x=1",
        "retained=1.5",
        f"queue-bytes={2**40 + 1}",
        "sessions=²",
    ],
)
def test_an_invalid_quota_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        Quota.parse(text)
