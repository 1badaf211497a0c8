"""Users and rules as clients of a real bridge meet them: at the connect, at each right, and when they are changed."""

import contextlib
import itertools
import json
from collections.abc import Callable

import pytest
import redis

from holdmq_bridge.auth.passwords import hash_password
from holdmq_bridge.auth.records import User
from holdmq_bridge.auth.rules import Rule
from holdmq_bridge.auth.store import Store, Target
from holdmq_bridge.broker.gate import Rate, Rates
from tests.bridge import packets
from tests.bridge import packets5 as p
from tests.bridge.conftest import Connect
from tests.bridge.packets import Will
from tests.bridge.talk import Talk, Talk5
from tests.support import BridgeProcess, Server, embedded_kinds, eventually

server_kinds = embedded_kinds  # what is tested is in the bridge

MakeBridge = Callable[..., BridgeProcess]
Connect5 = Callable[..., Talk5]

PASSWORD = b"right"
HASH = hash_password(PASSWORD)


@pytest.fixture
def store(client: redis.Redis, broker: BridgeProcess) -> Store:  # noqa: ARG001 (which is running then)
    """What `holdmq-bridge auth` edits."""
    return Store(client)


def user(*rules: str, name: str = "alice", enabled: bool = True) -> User:
    """With the right password."""
    return User(name, HASH, rules=tuple(Rule.parse(rule) for rule in rules), enabled=enabled)


def login(talk5: Connect5, client_id: str = "c1", **more: object) -> Talk5:
    """As alice."""
    return talk5(client_id, username="alice", password=PASSWORD, **more)


def test_of_a_connections_denied_publishes_the_first_is_logged_also_if_it_leaves_at_once(
    server: Server, client: redis.Redis, bridge: MakeBridge
) -> None:
    store, made = Store(client), bridge(server)
    store.add_user(user("allow all a/#"))
    with Talk5.open(made.port, "c1", username="alice", password=PASSWORD) as device:
        flood = b"".join(p.publish(f"b/{number}", b"x") for number in range(500))
        device.send(flood + p.disconnect())  # in one go, as tools that publish once do
        device.expect_closed()
    eventually(lambda: "client disconnected" in made.log_text())
    told = [json.loads(line) for line in made.log_text().splitlines()]
    denied = [line for line in told if line["event"] == "a publish is denied"]
    assert [(line["client"], line["user"], line["topic"]) for line in denied] == [("c1", "alice", "b/0")]
    assert denied[0]["peer"].startswith("127.0.0.1:")
    assert told.index(denied[0]) < next(n for n, line in enumerate(told) if line["event"] == "client disconnected")


def test_an_edit_of_many_records_logs_one_line(server: Server, client: redis.Redis, bridge: MakeBridge) -> None:
    store, made = Store(client), bridge(server)
    store.add_user(user("allow all a/#"))
    with contextlib.ExitStack() as clients:
        for number in range(4):
            will = packets.Will("a/b", b"x", 1) if number == 3 else None
            made_client = Talk5.open(made.port, f"c{number}", username="alice", password=PASSWORD, will=will)
            clients.enter_context(made_client)
        before = len(made.log_text().splitlines())
        assert made.log_text().count('"user": "alice"') == 4  # who came
        store.change_rules(Target("user", "alice"), lambda rules: (Rule.parse("deny all a/b"), *rules))
        eventually(lambda: "users or rules have changed" in made.log_text())
        told = [json.loads(line) for line in made.log_text().splitlines()[before:]]
    assert [line["event"] for line in told] == ["client disconnected", "users or rules have changed"]
    assert [told[1][name] for name in ("reviewed", "changed", "expelled")] == [4, 3, 1]


@pytest.mark.parametrize(
    ("username", "password", "code", "return_code"),
    [("alice", b"wrong", 0x86, 4), ("bob", b"right", 0x86, 4), (None, None, 0x87, 5)],
)
def test_a_client_that_is_not_let_in_is_notified_in_the_words_of_its_version(
    broker: BridgeProcess, store: Store, username: str | None, password: bytes | None, code: int, return_code: int
) -> None:
    store.add_user(user())
    with Talk5(broker.port) as client:
        client.send(p.connect("c1", username=username, password=password))
        assert client.read(2).code == code
        client.expect_closed()
    with Talk(broker.port) as older:
        older.send(packets.connect("c1", username=username, password=password))
        older.expect(packets.connack(return_code))
        older.expect_closed()


def test_anyone_who_knows_the_password_gets_in_and_may_do_what_the_rules_say(store: Store, talk5: Connect5) -> None:
    store.add_user(user("allow publish %c/#", "allow subscribe news/#"))
    client = login(talk5)
    assert client.granted(("news/+", 1), ("#", 1), ("$share/g/#", 1)) == [1, 0x87, 0x87]
    assert client.told("c1/t") == 0x10  # allowed, and nobody listens
    assert client.told("c2/t") == 0x87


def test_a_client_that_is_refused_under_the_id_of_another_takes_nothing_from_it(
    store: Store, broker: BridgeProcess, talk5: Connect5
) -> None:
    store.add_user(user("allow all #"))
    client, sender = login(talk5), login(talk5, "c2")
    client.granted(("a", 0))
    with Talk5(broker.port) as stranger:
        stranger.send(p.connect("c1", username="alice", password=b"wrong"))
        assert stranger.read(2).code == 0x86
        stranger.expect_closed()
    assert sender.told("a", b"still here") == 0
    assert client.message().payload == b"still here"


def test_a_denied_publish_of_the_older_version_is_acknowledged_and_goes_nowhere(
    store: Store, broker: BridgeProcess
) -> None:
    store.add_user(user("allow publish mine", "allow subscribe #"))
    with Talk(broker.port) as client:
        client.send(packets.connect("c1", username="alice", password=PASSWORD))
        client.expect(packets.connack())
        client.subscribe(("#", 1))
        client.publish("yours", b"no")
        client.send(packets.publish("mine", b"yes", qos=1, pid=1))
        got = [client.read_packet(), client.read_packet()]
        assert packets.puback(1) in got
        assert [packets.read_publish(data).payload for data in got if data[0] >> 4 == 3] == [b"yes"]


def test_a_denied_qos_2_publish_leaves_its_identifier_to_the_next_one(store: Store, talk5: Connect5) -> None:
    store.add_user(user("allow publish mine", "allow subscribe #"))
    client = login(talk5)
    client.granted(("mine", 0))
    client.send(p.publish("yours", b"no", qos=2, pid=9))
    assert client.read(5).code == 0x87
    client.send(p.publish("mine", b"yes", qos=2, pid=9))
    got = [client.read(), client.read()]
    assert sorted((packet.kind, packet.code, packet.payload) for packet in got) == [(3, 0, b"yes"), (5, 0, b"")]
    # [MQTT-4.3.3-9]


def test_a_qos_2_publish_that_was_allowed_once_does_not_keep_its_identifier(store: Store, talk5: Connect5) -> None:
    store.add_user(user("allow all #"))
    lasting = p.number(p.SESSION_EXPIRY, 60)
    client = login(talk5, properties=lasting)
    client.granted(("mine", 0))
    client.send(p.publish("yours", b"taken", qos=2, pid=9))
    assert client.read(5).code == 0x10
    store.change_user("alice", lambda found: user("allow all mine", name=found.name))
    eventually(lambda: client.told("other") == 0x87)
    client.send(p.publish("yours", b"taken", qos=2, pid=9, dup=True))  # it never saw that PUBREC
    assert client.read(5).code == 0x87
    client.send(p.publish("mine", b"new", qos=2, pid=9))
    got = [client.read(), client.read()]
    assert sorted((packet.kind, packet.code, packet.payload) for packet in got) == [(3, 0, b"new"), (5, 0, b"")]


def test_a_will_needs_the_right_to_publish_it(store: Store, broker: BridgeProcess) -> None:
    store.add_user(user("allow publish mine"))
    for topic, code in [("mine", 0), ("yours", 5)]:
        with Talk(broker.port) as client:
            client.send(packets.connect("c1", username="alice", password=PASSWORD, will=Will(topic)))
            client.expect(packets.connack(code))


def test_a_will_that_is_no_longer_allowed_ends_the_connection_and_goes_nowhere(store: Store, talk5: Connect5) -> None:
    store.add_user(user("allow all #"))
    watcher = login(talk5, "c2")
    watcher.granted(("will", 1))
    client = login(talk5, will=packets.Will("will", b"gone", 1))
    keeper = login(talk5, "c3", will=packets.Will("other", b"gone", 1))
    store.change_user("alice", lambda found: user("deny publish will", "allow all #", name=found.name))
    client.expect_end(0x87)
    assert keeper.told("a") == 0x10  # whose will is allowed stays
    assert watcher.told("a") == 0x10
    watcher.expect_silence(0.2)


@pytest.mark.parametrize("topic", ["$SYS/broker/version", "$SYS/clients/c1/connected"])
def test_anyone_who_has_no_rules_does_not_speak_for_the_server(
    broker: BridgeProcess, talk5: Connect5, topic: str
) -> None:
    watcher, client = talk5("c2"), talk5("c1")
    watcher.granted(("$SYS/broker/version", 1), ("$SYS/clients/c1/connected", 1), ("end", 1))
    assert client.told(topic, b"forged") == 0x87
    with Talk5(broker.port) as forger:
        forger.send(p.connect("c3", will=packets.Will(topic)))
        assert forger.read(2).code == 0x87
    assert client.told("$SYS/broker/connection/other/state", b"1") == 0x10  # as Mosquitto's bridges tell
    assert client.told("$other", b"x") == 0x10
    assert client.told("end", b"end") == 0
    heard = iter(watcher.message, None)
    said = list(itertools.takewhile(lambda got: got.topic != "end", heard))  # the server's own may come at any time
    assert all(got.payload.startswith(b"HoldMQ ") for got in said)


def test_a_change_of_rules_is_in_force_without_a_new_connect(store: Store, talk5: Connect5) -> None:
    store.add_user(user("allow all a/#"))
    client = login(talk5)
    assert client.told("b") == 0x87
    store.change_user("alice", lambda found: user("allow all b", name=found.name))
    eventually(lambda: client.told("b") == 0x10)
    assert client.told("a/x") == 0x87


def test_a_subscription_that_is_no_longer_allowed_is_taken_away(
    client: redis.Redis, store: Store, talk5: Connect5
) -> None:
    store.add_user(user("allow all #"))
    receiver = login(talk5)
    receiver.granted(("a", 1), ("b", 1))
    store.change_user("alice", lambda found: user("allow all b", name=found.name))
    eventually(lambda: client.hkeys("{c1}_subscriptions") == [b"b"])
    assert login(talk5, "c2").told("b") == 0
    assert receiver.message().topic == "b"


def test_a_subscription_is_taken_away_from_a_client_that_was_away_when_the_rules_changed(
    client: redis.Redis, store: Store, talk5: Connect5
) -> None:
    store.add_user(user("allow all #"))
    persistent = p.number(p.SESSION_EXPIRY, 60)
    receiver = login(talk5, properties=persistent)
    receiver.granted(("a", 1), ("b", 1))
    receiver.send(p.disconnect())
    receiver.expect_closed()
    store.change_user("alice", lambda found: user("allow all b", name=found.name))
    login(talk5, clean=False, properties=persistent)
    eventually(lambda: client.hkeys("{c1}_subscriptions") == [b"b"])


def test_a_user_who_is_disabled_is_disconnected_and_leaves_no_will(store: Store, talk5: Connect5) -> None:
    store.add_user(user("allow all #"))
    store.add_user(user("allow all #", name="bob"))
    watcher = talk5("w", username="bob", password=PASSWORD)
    watcher.granted(("will", 1))
    client = login(talk5, will=packets.Will("will", b"gone", 1))
    store.change_user("alice", lambda found: user(name=found.name, enabled=False))
    client.expect_end(0x87)
    assert watcher.told("a") == 0x10
    watcher.expect_silence(0.2)


def test_an_anonymous_client_is_disconnected_when_the_first_user_appears(store: Store, talk: Connect) -> None:
    client = talk("c1")
    store.add_user(user())
    client.expect_closed()


def test_a_rate_allows_a_burst_of_one_second_and_then_its_pace() -> None:
    rate = Rate(10)
    assert [rate.take(100.0) for _ in range(12)] == [True] * 10 + [False] * 2
    assert rate.take(100.15)
    assert not rate.take(100.15)
    assert [Rate(0).take(0.0) for _ in range(3)] == [True] * 3


def test_an_address_that_connects_much_leaves_room_to_others() -> None:
    rates = Rates(100, 0)
    assert [rates.take("a", 0.0) for _ in range(200)].count(True) == 75
    assert [rates.take(f"b{number}", 0.0) for number in range(40)].count(True) == 25
    assert [rates.take("a", 0.5) for _ in range(200)].count(True) == 25  # half of the rate, less what is reserved


def test_anyone_who_asks_in_vain_spends_nothing() -> None:
    rates = Rates(100, 10)
    assert [rates.take("a", 0.0) for _ in range(50)].count(True) == 10
    assert [rates.take(f"b{number}", 0.0) for number in range(100)].count(True) == 90


def test_connects_of_one_address_are_bounded() -> None:
    rates = Rates(0, 3, max_addresses=2)
    assert [rates.take("a", 0.0) for _ in range(5)] == [True] * 3 + [False] * 2
    assert rates.take("b", 0.0)
    assert rates.take("c", 0.0)
    assert rates.take("a", 0.0)  # forgotten


def test_a_flood_of_random_names_from_one_address_does_not_delay_the_login_of_another(
    server: Server, client: redis.Redis, bridge: MakeBridge
) -> None:
    made, store = bridge(server), Store(client)
    users = [f"user{number}" for number in range(5)]
    for name in users:
        store.add_user(user("allow all #", name=name))
    with contextlib.ExitStack() as flood:
        for number in range(600):  # more than auth_max_waiting
            one = flood.enter_context(Talk5(made.port, address="127.0.0.2"))
            one.send(p.connect(f"f{number}", username=f"random{number}", password=b"guess"))
        for name in users:
            with Talk5(made.port, address="127.0.0.3") as good:
                good.send(p.connect(f"c-{name}", username=name, password=PASSWORD))
                assert good.read(2).code == 0
