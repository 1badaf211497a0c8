"""A node keeps the keys of each slot apart: what a command does in other slots than its own is done, and done once."""

import itertools
from collections.abc import Callable, Iterator

import pytest
import redis
from redis.crc import key_slot

from tests.module.sessions_support import (
    Session,
    Will,
    names,
    payloads,
    publish,
    retained_topics,
    unchanged,
)
from tests.support import Cluster, Server, ServerKind, eventually

MakeCluster = Callable[..., Cluster]

TOPIC = "t/x"
CHANNEL = "{c}channel"
# They open keys of many slots, and tell what they did there.
WIDE: list[tuple[str | int, ...]] = [
    ("TOPIC.PUBLISH", TOPIC, "m", "QOS", 1),
    ("TOPIC.PUBLISH", TOPIC, "m", "RETAIN"),
    ("TOPIC.MPUBLISH", "QOS", 1, "MESSAGES", TOPIC, "m"),
    ("TOPIC.PIPELINE", "*3\r\n$13\r\nTOPIC.PUBLISH\r\n$3\r\nt/x\r\n$1\r\nm\r\n"),
    ("TOPIC.RETAINED", "#"),
    ("SESSION.LIST",),
    ("TOPIC.MATCH", "a"),
    ("TOPIC.GROUPS",),
    ("CHANNEL.LIST",),
    ("HISTORY.STORES",),
    ("HISTORY.UNSTORE", "s"),
    ("HISTORY.REPLAY", "#"),
    ("ROUTE.EXPORT", "0" * 40, 1),
    ("ROUTE.UNUSED", "a", 1),
    ("ROUTE.CONFIRM", "a", 1, 1, "0" * 40, 1),
    ("ROUTE.MCHECK", "0" * 40, 1, "{c}", "a", 0, -1),
    ("ROUTE.INFO",),
    ("HOLDMQ.CHECK",),
]


@pytest.fixture
def node(cluster: Cluster) -> Server:
    """The node that has the slot of {c}."""
    return cluster.node_of("c")


@pytest.fixture
def client(node: Server) -> redis.Redis:
    """A client of that node alone."""
    return node.client()


@pytest.fixture
def keys(cluster: Cluster, node: Server) -> Iterator[str]:
    """Session keys of that node, each of another slot, none of that of {c}."""
    slots = {key_slot(b"c"): "c"}

    def names_of_the_node() -> Iterator[str]:
        for number in itertools.count():
            name = f"k{number}"
            if cluster.node_of(name) is node and slots.setdefault(key_slot(name.encode()), name) == name:
                yield f"{{{name}}}"

    return names_of_the_node()


def name_of_the_node(cluster: Cluster, node: Server, form: str) -> str:
    """A name of this form whose slot the node has."""
    return next(name for name in (form.format(number) for number in itertools.count()) if cluster.node_of(name) is node)


def reader(client: redis.Redis, key: str, *filters: str) -> Session:
    """A connected session with subscriptions of QoS 1."""
    session = Session(client, key)
    session.open(expiry=1000)
    session.subscribe(*[(topic_filter, 1) for topic_filter in filters])
    return session


def got(session: Session) -> list[bytes]:
    """The payloads in a session's queue."""
    return payloads(session.fetch_all())


# --- What is known of other slots -------------------------------------------------------------------------------------


def test_a_command_of_one_session_loses_no_subscription_of_another(client: redis.Redis, keys: Iterator[str]) -> None:
    other = next(keys)
    with client.pipeline(transaction=False) as together:  # one write: no turn of the event loop between them
        together.hset(f"{other}_subscriptions", "t/#", "1")
        together.execute_command("SESSION.FETCH", "{c}")
        together.execute_command("SESSION.INFO", "{c}")
        together.execute_command("TOPIC.PUBLISH", TOPIC, "m", "QOS", 1)
        reached = together.execute()[-1]
    assert reached == 1
    assert client.execute_command("HOLDMQ.CHECK") == []
    assert client.zcard(f"{other}_messages") == 1


def test_a_command_knows_what_was_just_written_of_its_own_session(client: redis.Redis) -> None:
    client.execute_command("SESSION.OPEN", "{c}", "OWNER", "o", "EXPIRY", 1000)
    with client.pipeline(transaction=False) as together:
        together.hset("{c}_subscriptions", "u/#", "1")
        together.execute_command("SESSION.UNSUBSCRIBE", "{c}", "u/#")
        together.execute_command("TOPIC.PUBLISH", "u/x", "m", "QOS", 1)
        assert together.execute()[1:] == [[1], 0]
    assert client.execute_command("HOLDMQ.CHECK") == []


def test_a_key_that_is_the_beginning_of_others_stands_for_its_own_slot_alone(cluster: Cluster) -> None:
    node = cluster.node_of("{")
    client = node.client()
    other = "{" + name_of_the_node(cluster, node, "k{}") + "}"
    with client.pipeline(transaction=False) as together:
        together.hset(f"{other}_subscriptions", "t/#", "1")
        together.execute_command("CHANNEL.LEN", "{")
        together.execute_command("TOPIC.PUBLISH", TOPIC, "m", "QOS", 1)
        assert together.execute()[1:] == [0, 1]
    assert client.execute_command("HOLDMQ.CHECK") == []


# --- Wills ------------------------------------------------------------------------------------------------------------


def closed(session: Session) -> None:
    session.close(session.info()["epoch"], will=True)


def dropped(session: Session) -> None:
    session.drop()


def taken_over(session: Session) -> None:
    session.open("another", clean=True)


def ended_by_another_open(session: Session) -> None:
    session.open("another", expiry=1000)


ENDS = [closed, dropped, taken_over, ended_by_another_open]


@pytest.mark.parametrize("end", ENDS, ids=[end.__name__ for end in ENDS])
def test_a_will_reaches_sessions_of_other_slots_and_is_retained(
    cluster: Cluster, node: Server, client: redis.Redis, keys: Iterator[str], end: Callable[[Session], None]
) -> None:
    topic = name_of_the_node(cluster, node, "will/{}")
    readers = [reader(client, next(keys), "will/#") for _ in range(3)]
    session = Session(client, "{c}")
    session.open(will=Will(topic, "gone", retain=True))
    end(session)
    assert [got(each) for each in readers] == [[b"gone"]] * 3
    assert retained_topics(client, "will/#") == [topic.encode()]


def test_a_will_is_there_before_what_is_published_after_it(client: redis.Redis, keys: Iterator[str]) -> None:
    other = reader(client, next(keys), "t/#")
    session = Session(client, "{c}")
    epoch = session.open(expiry=1000, will=Will("t/will", "will")).epoch
    with client.pipeline(transaction=False) as together:
        together.execute_command("SESSION.CLOSE", "{c}", "EPOCH", epoch, "WILL")
        together.execute_command("TOPIC.PUBLISH", TOPIC, "later", "QOS", 1)
        together.execute()
    assert got(other) == [b"will", b"later"]


@pytest.mark.parametrize("how", ["MULTI", "EVAL", "EVAL over slots"])
def test_a_will_of_a_transaction_or_script_is_published(client: redis.Redis, keys: Iterator[str], how: str) -> None:
    key = next(keys)
    other = reader(client, key, "t/#")
    epoch = Session(client, "{c}").open(expiry=1000, will=Will("t/will", "will")).epoch
    close = ("SESSION.CLOSE", "{c}", "EPOCH", epoch, "WILL")
    if how == "MULTI":
        with client.pipeline(transaction=True) as together:
            together.set("{c}x", "v")
            together.execute_command(*close)
            together.get("{c}x")
            assert together.execute() == [True, b"OK", b"v"]
    elif how == "EVAL":
        client.eval("return redis.call(unpack(ARGV))", 1, "{c}x", *map(str, close))
    else:
        text = f"redis.call('GET', '{key}x') redis.call(unpack(ARGV)) return redis.call('SET', '{key}x', 'v')"
        client.eval(f"#!lua flags=allow-cross-slot-keys\n{text}", 0, *map(str, close))
        assert client.get(f"{key}x") == b"v"
    assert got(other) == [b"will"]
    assert Session(client, "{c}").info()["connected"] == 0


def test_a_closed_session_and_its_will_survive_a_crash_together(fresh_cluster: MakeCluster) -> None:
    [node] = fresh_cluster(1, aof=True).nodes
    client = node.client()
    reader(client, "{g}", "t/#")
    epoch = Session(client, "{c}").open(expiry=1000, will=Will("t/will", "will")).epoch
    Session(client, "{c}").close(epoch, will=True)
    node.kill()
    [log] = node.directory.glob("appendonlydir/*.incr.aof")
    [step] = [step for step in log.read_bytes().split(b"\r\nMULTI\r\n") if b"{g}_messages" in step]
    assert b"{c}_session" in step  # in one transaction
    node.restart()
    client = node.client()
    eventually(lambda: client.cluster("INFO")["cluster_state"] == "ok", what="a node that serves")
    assert Session(client, "{c}").info()["connected"] == 0
    assert got(Session(client, "{g}")) == [b"will"]
    assert client.execute_command("HOLDMQ.CHECK") == []


# --- Who comes and goes -----------------------------------------------------------------------------------------------


def test_anyone_who_comes_and_goes_is_told_to_sessions_of_other_slots(client: redis.Redis, keys: Iterator[str]) -> None:
    watcher = reader(client, next(keys), "$SYS/clients/c/+")
    session = Session(client, "{c}")
    session.open("o", expiry=1000)
    session.close(session.open("o", expiry=1000).epoch)
    told = [payload.split(b'"reason": ')[1] for payload in got(watcher)]
    assert told == [b'"new"}', b'"taken over"}', b'"resumed"}', b'"closed"}']


# --- Owners -----------------------------------------------------------------------------------------------------------


def owner_of_the_node(cluster: Cluster, node: Server) -> str:
    return "bridge{" + name_of_the_node(cluster, node, "o{}") + "}"


def test_a_session_lives_by_its_owners_heartbeat_in_another_slot(
    cluster: Cluster, node: Server, client: redis.Redis
) -> None:
    owner, session = owner_of_the_node(cluster, node), Session(client, "{c}")
    client.execute_command("SESSION.OWNER", owner, "LEASE", 1000)
    session.open(owner, expiry=10, lease=10, will=Will())
    session.subscribe(("t/#", 1))
    assert client.hget("{c}_session", "owner_lease") == b"1000"
    assert [client.ttl(f"{{c}}_{suffix}") for suffix in ("session", "subscriptions")] == [-1, -1]


def test_a_session_whose_owner_does_not_beat_lives_by_its_own_lease(
    cluster: Cluster, node: Server, client: redis.Redis
) -> None:
    Session(client, "{c}").open(owner_of_the_node(cluster, node), expiry=10, lease=10)
    assert not client.hexists("{c}_session", "owner_lease")
    assert 0 < client.ttl("{c}_session") <= 20


def test_an_owner_that_is_lost_loses_its_sessions_of_all_slots(
    cluster: Cluster, node: Server, client: redis.Redis, keys: Iterator[str]
) -> None:
    owner = owner_of_the_node(cluster, node)
    watcher = reader(client, next(keys), "will")
    sessions = [Session(client, next(keys)) for _ in range(3)]
    client.config_set("holdmq.outbox-bytes", 0)  # else the wills wait for a reader of outboxes
    client.execute_command("SESSION.OWNER", owner, "LEASE", 1000)
    for session in sessions:
        session.open(owner, expiry=1000, will=Will(payload=session.key))
    client.execute_command("SESSION.OWNER", owner, "LEASE", 0)
    eventually(lambda: [session.info()["connected"] for session in sessions] == [0] * 3, what="lost sessions")
    assert sorted(got(watcher)) == sorted(session.key for session in sessions)


# --- Shared subscriptions ---------------------------------------------------------------------------------------------


@pytest.fixture
def group(cluster: Cluster, node: Server) -> str:
    """A shared subscription whose queue lies on the node."""
    return name_of_the_node(cluster, node, "$share/g{}/t/#")


def published(client: redis.Redis, *numbers: int) -> list[bytes]:
    for number in numbers:
        publish(client, TOPIC, str(number))
    return [str(number).encode() for number in numbers]


def closes(session: Session, _group: str) -> None:
    session.close(session.info()["epoch"])


def ends(session: Session, _group: str) -> None:
    session.close(session.info()["epoch"], expiry=0)


def is_dropped(session: Session, _group: str) -> None:
    session.drop()


def unsubscribes(session: Session, group: str) -> None:
    session.unsubscribe(group)


LEAVES = [closes, ends, is_dropped, unsubscribes]


@pytest.mark.parametrize("leave", LEAVES, ids=[leave.__name__ for leave in LEAVES])
def test_what_a_member_leaves_goes_to_one_in_another_slot(
    client: redis.Redis, keys: Iterator[str], group: str, leave: Callable[[Session, str], None]
) -> None:
    leaver, other = reader(client, "{c}", group), reader(client, next(keys), group)
    sent = published(client, *range(6))
    assert len(got(leaver)) == len(got(other)) == 3
    leave(leaver, group)
    assert sorted(got(other)) == sent
    assert not client.exists("{c}_messages")


def test_what_the_last_member_leaves_waits_and_is_handed_to_who_comes(
    client: redis.Redis, keys: Iterator[str], group: str
) -> None:
    leaver = reader(client, "{c}", group)
    sent = published(client, *range(5))
    leaver.close(leaver.info()["epoch"])
    waiting = Session(client, f"{{{group}}}")
    assert got(leaver) == []
    assert got(waiting) == sent
    newcomer = reader(client, next(keys), group)
    assert got(newcomer) == sent
    newcomer.close(newcomer.info()["epoch"])
    assert got(waiting) == sent
    leaver.open(expiry=1000)
    assert got(leaver) == sent


@pytest.mark.parametrize("leave", LEAVES[1:], ids=[leave.__name__ for leave in LEAVES[1:]])
def test_a_group_without_members_leaves_no_key(
    client: redis.Redis, group: str, leave: Callable[[Session, str], None]
) -> None:
    member = reader(client, "{c}", group)
    member.close(member.info()["epoch"])
    published(client, *range(3))
    assert len(got(Session(client, f"{{{group}}}"))) == 3
    member.open(expiry=1000)
    member.close(member.info()["epoch"])
    member.open(expiry=1000)
    leave(member, group)
    assert [name for name in names(client) if b"$share" in name] == []


# --- Transactions and scripts -----------------------------------------------------------------------------------------


def in_transaction(client: redis.Redis, words: tuple[str | int, ...]) -> object:
    with client.pipeline(transaction=True) as together:
        together.get("{c}x")
        together.execute_command(*words)
        return together.execute(raise_on_error=False)[1]


def in_script(client: redis.Redis, words: tuple[str | int, ...]) -> object:
    text = "redis.call('GET', KEYS[1]) return redis.pcall(unpack(ARGV))"
    try:
        return client.eval(text, 1, "{c}x", *map(str, words))
    except redis.ResponseError as error:
        return error


def in_function(client: redis.Redis, words: tuple[str | int, ...]) -> object:
    try:
        return client.fcall("run", 1, "{c}x", *map(str, words))
    except redis.ResponseError as error:
        return error


@pytest.fixture
def library(client: redis.Redis) -> Iterator[None]:
    """The function that in_function calls."""
    text = "redis.call('GET', keys[1]) return redis.pcall(unpack(arguments))"
    client.function_load(f"#!lua name=lib\nredis.register_function('run', function(keys, arguments) {text} end)")
    yield
    client.function_flush("SYNC")


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("run", [in_transaction, in_script, in_function], ids=["MULTI", "EVAL", "FCALL"])
@pytest.mark.parametrize("words", WIDE, ids=[" ".join(map(str, words[:3])).split("*")[0] for words in WIDE])
def test_what_concerns_many_slots_is_refused_in_a_transaction_or_script(
    server_kind: ServerKind,
    client: redis.Redis,
    keys: Iterator[str],
    words: tuple[str | int, ...],
    run: Callable[[redis.Redis, tuple[str | int, ...]], object],
) -> None:
    other = reader(client, next(keys), "t/#")
    client.set("{c}x", "v")
    if not server_kind.keeps_slots_apart:  # there a key is a key
        assert "cannot be part of" not in str(run(client, words))
        return
    with unchanged(client):
        reply = run(client, words)
    assert isinstance(reply, redis.ResponseError)
    assert f"'{words[0]}' cannot be part of a transaction or script in a cluster, " in str(reply)
    assert got(other) == []
