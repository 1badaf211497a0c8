"""A session belongs to an identity: who knows a client id does not get its messages, nor end its connection."""

import json
from collections.abc import Callable

import pytest
import redis

from holdmq_bridge.auth.passwords import hash_password
from holdmq_bridge.auth.records import User
from holdmq_bridge.auth.rules import Rule
from holdmq_bridge.auth.store import Store, Target
from holdmq_bridge.session.access import Verdict
from tests.bridge import packets
from tests.bridge import packets5 as p
from tests.bridge.talk import Talk, Talk5
from tests.bridge.test_session import new_session, told
from tests.support import BridgeProcess, Server, embedded_kinds, eventually

server_kinds = embedded_kinds  # what is tested is in the bridge

MakeBridge = Callable[..., BridgeProcess]

PASSWORD = b"right"
HASH = hash_password(PASSWORD)
LASTING = p.number(p.SESSION_EXPIRY, 600)


@pytest.fixture
def store(client: redis.Redis, broker: BridgeProcess) -> Store:  # noqa: ARG001 (which is running then)
    """With alice, who may do everything, and bob, who may not."""
    made = Store(client)
    add(made, "alice", "allow all #")
    add(made, "bob", "allow all open/#")
    return made


def add(store: Store, name: str, *rules: str) -> None:
    """A user with the right password."""
    store.add_user(User(name, HASH, rules=tuple(Rule.parse(rule) for rule in rules), enabled=True))


def login(port: int, name: str, client_id: str = "c1", *, clean: bool = False) -> Talk5:
    """A client that is through its CONNECT."""
    return Talk5.open(port, client_id, clean=clean, properties=LASTING, username=name, password=PASSWORD)


def leave_a_message(port: int) -> None:
    """Alice's session waits with a message on secret/plan."""
    with login(port, "alice") as alice, login(port, "alice", "sender", clean=True) as sender:
        assert alice.granted(("secret/#", 1)) == [1]
        alice.disconnect()
        assert sender.told("secret/plan", b"attack at dawn") == 0


def refused(port: int, name: str, *, clean: bool = False) -> tuple[int, int]:
    """The codes of the CONNACKs that someone gets as c1, in MQTT 5.0 and 3.1.1."""
    with Talk5(port) as newer, Talk(port) as older:
        newer.send(p.connect("c1", clean=clean, properties=LASTING, username=name, password=PASSWORD))
        code = newer.read(2).code
        newer.expect_closed()
        older.send(packets.connect("c1", clean=clean, username=name, password=PASSWORD))
        return_code = older.read_packet()[3]
        older.expect_closed()
    return code, return_code


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.usefixtures("store")
def test_another_user_with_the_client_id_gets_no_message_and_takes_no_subscription(
    broker: BridgeProcess, client: redis.Redis, clean: bool
) -> None:
    leave_a_message(broker.port)
    assert refused(broker.port, "bob", clean=clean) == (0x87, 5)
    assert client.hkeys("{c1}_subscriptions") == [b"secret/#"]
    with login(broker.port, "alice") as alice:
        assert alice.connack.present
        assert alice.message().payload == b"attack at dawn"


@pytest.mark.usefixtures("store")
def test_the_connection_of_the_owner_is_not_disturbed(broker: BridgeProcess) -> None:
    with login(broker.port, "alice") as alice, login(broker.port, "alice", "sender", clean=True) as sender:
        assert alice.granted(("secret/#", 1)) == [1]
        assert refused(broker.port, "bob") == (0x87, 5)
        assert refused(broker.port, "bob", clean=True) == (0x87, 5)
        assert sender.told("secret/plan", b"still here") == 0
        assert alice.message().payload == b"still here"
    log = broker.log_text()
    assert "belongs to 'user:alice', not to 'user:bob'" in log


@pytest.mark.usefixtures("store")
def test_the_same_user_takes_its_session_over(broker: BridgeProcess) -> None:
    with login(broker.port, "alice") as first, login(broker.port, "alice") as second:
        assert second.connack.present
        first.expect_end(0x8E)


def test_by_a_setting_the_newcomer_gets_a_new_session(server: Server, client: redis.Redis, bridge: MakeBridge) -> None:
    made = bridge(server, arguments=["--session-of-another-identity", "replace"])
    store = Store(client)
    add(store, "alice", "allow all #")
    add(store, "bob", "allow all open/#")
    leave_a_message(made.port)
    with login(made.port, "alice") as alice:
        assert alice.message().payload == b"attack at dawn"
        with login(made.port, "bob") as bob:
            assert not bob.connack.present
            alice.expect_end(0x8E)
            bob.expect_nothing()
    assert not client.exists("{c1}_subscriptions")
    assert client.hget("{c1}_session", "identity") == b"user:bob"


@pytest.mark.parametrize("client_id", ["link:berlin", "link:"])
@pytest.mark.usefixtures("server")
def test_client_ids_of_links_are_reserved(broker: BridgeProcess, client: redis.Redis, client_id: str) -> None:
    with Talk5(broker.port) as newer, Talk(broker.port) as older:
        newer.send(p.connect(client_id))
        assert newer.read(2).code == 0x85
        newer.expect_closed()
        older.send(packets.connect(client_id))
        older.expect(packets.connack(2))
        older.expect_closed()
    assert client.keys("*link*") == []


def test_a_session_of_an_anonymous_client_stays_its_own_while_such_clients_are_admitted(
    server: Server, client: redis.Redis, bridge: MakeBridge
) -> None:
    made = bridge(server, arguments=["--allow-anonymous", "true"])
    Store(client).change_rules(Target("role", "anonymous"), lambda _: (Rule.parse("allow all #"),))
    add(Store(client), "alice", "allow all #")
    with Talk5.open(made.port, "c1", clean=False, properties=LASTING):
        assert refused(made.port, "alice") == (0x87, 5)


def test_a_session_of_an_anonymous_client_continues_as_a_users_once_nobody_else_can_have_it(
    server: Server, client: redis.Redis, bridge: MakeBridge
) -> None:
    made = bridge(server)  # on loopback, and nobody has written a rule
    with Talk5.open(made.port, "c1", clean=False, properties=LASTING) as device:
        assert device.granted(("a/#", 1)) == [1]
        add(Store(client), "alice", "allow all #")
        device.expect_end(0x87)
    with login(made.port, "alice") as alice:
        assert alice.connack.present
    assert client.hget("{c1}_session", "identity") == b"user:alice"


def test_what_was_queued_under_other_rights_is_not_delivered(
    server: Server, client: redis.Redis, bridge: MakeBridge
) -> None:
    made, store = bridge(server), Store(client)
    add(store, "alice", "allow all #")
    with login(made.port, "alice") as alice, login(made.port, "alice", "sender", clean=True) as sender:
        assert alice.granted(("secret/#", 1), ("open/#", 2)) == [1, 2]
        alice.disconnect()
        for number in range(3):
            assert sender.told(f"secret/{number}", b"x") == 0
        sender.send(p.publish("open/2", b"exactly once", qos=2, pid=9))
        assert sender.read(5).pid == 9
        assert sender.told("open/1", b"read me") == 0
        store.change_rules(Target("user", "alice"), lambda _: (Rule.parse("allow all open/#"),))
        eventually(lambda: "users or rules have changed" in made.log_text())
    with login(made.port, "alice") as alice:
        first = alice.read(3)
        assert (first.topic, first.payload) == ("open/2", b"exactly once")
        assert alice.message().payload == b"read me"
        eventually(lambda: client.hkeys("{c1}_subscriptions") == [b"open/#"])
        eventually(lambda: client.zcard("{c1}_messages") == 1)  # what is not sent does not hold up the queue
    told = [json.loads(line) for line in made.log_text().splitlines() if "a queued message is withheld" in line]
    assert [(line["client"], line["user"], line["topic"]) for line in told] == [("c1", "alice", "secret/0")]


def test_rights_that_are_taken_away_count_for_the_next_delivery(store: Store, broker: BridgeProcess) -> None:
    with login(broker.port, "alice") as alice, login(broker.port, "alice", "sender", clean=True) as sender:
        assert alice.granted(("a/#", 0)) == [0]
        assert sender.told("a/1", b"before") == 0
        assert alice.message().payload == b"before"
        before = broker.log_text().count("users or rules have changed")
        store.change_rules(Target("user", "alice"), lambda rules: (Rule.parse("deny subscribe a/2"), *rules))
        eventually(lambda: broker.log_text().count("users or rules have changed") > before)
        sender.told("a/2", b"denied")
        alice.expect_nothing()


@pytest.mark.parametrize(
    ("verdict", "claim"),
    [
        (Verdict(True), ("IDENTITY", "anonymous")),
        (Verdict(True, identity="user:a"), ("IDENTITY", "user:a")),
        (Verdict(True, identity="user:a", adopts="anonymous"), ("IDENTITY", "user:a", "ADOPT", "anonymous")),
    ],
)
def test_every_session_is_opened_for_somebody(verdict: Verdict, claim: tuple[str, ...]) -> None:
    for setting, more in (("refuse", ()), ("replace", ("REPLACE",))):
        session = new_session(session_of_another_identity=setting)
        session.packet(packets.connect("c1"))
        assert told(session.authenticated(verdict)).arguments[-len(claim) - len(more) :] == (*claim, *more)
