"""SESSION.* and TOPIC.* among the server's own commands: transactions, scripts, events, access rights, memory."""

from collections import Counter
from collections.abc import Callable

import pytest
import redis

from holdmq import core
from tests.module.sessions_support import (
    Inbox,
    Session,
    assert_indexes_hold,
    error_of,
    payloads,
    publish,
    unchanged,
    wait_for_replica,
)
from tests.support import Push, RawClient, ReplyError, Server

MakeServer = Callable[..., Server]
Command = tuple[str | bytes | int, ...]


@pytest.fixture
def session(client: redis.Redis) -> Session:
    return Session(client)


def writing_commands() -> list[Command]:
    """Each command that writes, so that each has something to do after the ones before it."""
    return [
        ("SESSION.ADD", "{c}", "TTL", 100, "a", "b"),
        ("SESSION.SUBSCRIBE", "{c}", "t/#", 1),
        ("TOPIC.PUBLISH", "t/1", "m", "QOS", 1),
        ("TOPIC.PUBLISH", "t/2", "m", "QOS", 1, "RETAIN", "TTL", 100),
        ("TOPIC.PUBLISH", "t/2", "n", "QOS", 1, "RETAIN"),
        ("SESSION.ADD", "{c}", "LIMIT", 3, "c"),
        ("SESSION.ACK", "{c}", 4, 5),
        ("SESSION.ACK", "{c}", 3),
        ("TOPIC.PUBLISH", "t/2", "", "RETAIN"),
        ("SESSION.UNSUBSCRIBE", "{c}", "t/#"),
        ("SESSION.ADD", "{c}", "EXPIRING", 5, "d", "", "e"),
        ("SESSION.OPEN", "{c}", "OWNER", "o", "CLEAN", "EXPIRY", 50),
        ("SESSION.ADD", "{c}", "f"),
        ("SESSION.SUBSCRIBE", "{c}", "t/#", 1, "u", 0),
        ("SESSION.OPEN", "{c}", "OWNER", "p", "EXPIRY", 60),
        ("SESSION.DROP", "{c}"),
        ("SESSION.ADD", "{d}", "PRODUCER", "p", 1, "a", "b", "c"),
        ("SESSION.FETCH", "{d}", "WINDOW", 1),
        ("SESSION.ACK", "{d}", "NEXT", 1, 1),
        ("SESSION.SENT", "{d}", 3),
        ("SESSION.RELEASE", "{d}", 2),
        ("SESSION.RECEIVE", "{d}", 1),
        ("SESSION.RECEIVE", "{d}", 2),
        ("SESSION.COMPLETE", "{d}", 1),
        ("SESSION.COMPLETE", "{d}", 2),
        ("SESSION.ACK", "{d}", 2, 3),
        ("SESSION.ADD", "{d}", "PRODUCER", "p", 2, "a"),
        ("SESSION.DROP", "{d}"),
    ]


# --- Transactions and scripts -----------------------------------------------------------------------------------------


def test_the_commands_work_in_a_transaction(session: Session, client: redis.Redis) -> None:
    with client.pipeline(transaction=True) as pipe:
        pipe.execute_command("SESSION.SUBSCRIBE", "{c}", "t", 1)
        pipe.execute_command("SESSION.ADD", "{c}", "a")
        pipe.execute_command("TOPIC.PUBLISH", "t", "m", "QOS", 1)
        pipe.execute_command("SESSION.FETCH", "{c}", "COUNT", 1)
        pipe.execute_command("SESSION.ACK", "{c}", 1)
        pipe.execute_command("SESSION.LAST", "{c}")
        pipe.execute_command("SESSION.UNSUBSCRIBE", "{c}", "t")
        pipe.execute_command("TOPIC.PUBLISH", "t", "m", "QOS", 1)
        replies = pipe.execute()
    assert replies == [[1], [[1], 1, 0, 0], 1, [[[1, 1, 0, b"a"]], 1, 0], 1, 2, [1], 0]
    assert payloads(session.fetch().entries) == [b"m"]


def test_nobody_sees_half_of_a_transaction(server: Server, session: Session) -> None:
    session.subscribe(("t", 1))
    with RawClient(server.port) as raw, Inbox(server) as inbox:
        raw.call("MULTI")
        raw.call("TOPIC.PUBLISH", "t", "a", "QOS", 1)
        raw.call("TOPIC.PUBLISH", "t", "b", "QOS", 1)
        assert inbox.take() == []
        assert session.fetch().entries == []
        assert raw.call("EXEC") == [1, 1]
        assert [delivery.message().payload for delivery in inbox.take()] == [b"a", b"b"]


def test_a_discarded_transaction_does_nothing(server: Server, session: Session, client: redis.Redis) -> None:
    session.subscribe(("t", 1))
    with RawClient(server.port) as raw, unchanged(client):
        raw.call("MULTI")
        raw.call("SESSION.ADD", "{c}", "a")
        raw.call("TOPIC.PUBLISH", "t", "a", "QOS", 1)
        raw.call("DISCARD")


def test_an_error_in_a_transaction_is_that_of_its_command_only(server: Server, session: Session) -> None:
    with RawClient(server.port) as raw:
        raw.call("MULTI")
        for command in (("SESSION.ADD", "{c}", "a"), ("SESSION.ADD", "{c}", "TTL", 0, "x"), ("SESSION.LAST", "{c}")):
            raw.call(*command)
        replies = raw.call("EXEC")
    assert isinstance(replies, list)
    assert replies[0] == [[1], 1, 0, 0]
    assert isinstance(replies[1], ReplyError)
    assert "TTL" in str(replies[1])
    assert replies[2] == 1
    assert session.fetch().values == [b"a"]


def test_the_commands_work_in_a_script(session: Session, client: redis.Redis) -> None:
    script = """
        redis.call('SESSION.SUBSCRIBE', KEYS[1], 'EPOCH', 0, 't', 1)
        local added = redis.call('SESSION.ADD', KEYS[1], ARGV[1], ARGV[2])
        local reached = redis.call('TOPIC.PUBLISH', 't', ARGV[3], 'QOS', '1')
        local page = redis.call('SESSION.FETCH', KEYS[1], 'COUNT', '2')
        local failed = redis.pcall('SESSION.ADD', KEYS[1], 'TTL', '0', 'x')
        return {added[1], reached, #page[1], page[1][1][4], redis.call('SESSION.ACK', KEYS[1], 1), failed.err}
    """
    ids, reached, length, first, removed, error = client.eval(script, 1, "{c}", "a", "b", "m")
    assert (ids, reached, length, first, removed) == ([1, 2], 1, 2, b"a", 1)
    assert b"TTL" in error
    values = session.fetch().values
    assert values[0] == b"b"
    assert core.Record.decode(values[1]).payload == b"m"


def test_a_read_only_script_may_ask_and_not_write(session: Session, client: redis.Redis) -> None:
    session.add("a")
    assert client.eval_ro("return redis.call('SESSION.LAST', KEYS[1])", 1, "{c}") == 1
    with unchanged(client), pytest.raises(redis.ResponseError, match="read-only"):
        client.eval_ro("return redis.call('SESSION.FETCH', KEYS[1])", 1, "{c}")


def test_transactions_and_scripts_replicate_as_the_commands_do(fresh_server: MakeServer) -> None:
    primary = fresh_server()
    replica = fresh_server(replica_of=primary, module=False)
    client = primary.client()
    with client.pipeline(transaction=True) as pipe:
        for command in writing_commands()[:6]:
            pipe.execute_command(*command)
        pipe.execute()
    client.eval("for i = 1, 5 do redis.call('SESSION.ADD', KEYS[1], 'm' .. i) end", 1, "{c}")
    wait_for_replica(client, replica.client())
    assert client.execute_command("DEBUG", "DIGEST") == replica.client().execute_command("DEBUG", "DIGEST")


@pytest.mark.parametrize("standing", ["9", "007", "65534", "65535"])
def test_replicas_count_as_the_primary_whatever_the_counter_was(fresh_server: MakeServer, standing: str) -> None:
    primary = fresh_server()
    replica = fresh_server(replica_of=primary, module=False)
    client, follower = primary.client(), replica.client()
    client.set("{c}_last_packet_id", standing)
    for _ in range(2):
        client.execute_command("SESSION.ADD", "{c}", "m")
        wait_for_replica(client, follower)
        assert follower.get("{c}_last_packet_id") == client.get("{c}_last_packet_id")


# --- WATCH and client-side caching ------------------------------------------------------------------------------------


def breaks_watch(server: Server, name: bytes, command: Command) -> bool:
    """Whether a command fails the transaction of somebody who watches the key."""
    with RawClient(server.port) as watcher, RawClient(server.port) as writer:
        watcher.call("WATCH", name)
        writer.call(*command)
        watcher.call("MULTI")
        watcher.call("PING")
        return watcher.call("EXEC") is None


@pytest.mark.parametrize(
    ("suffix", "command"),
    [
        ("messages", ("SESSION.ADD", "{c}", "m")),
        ("messages_4", ("SESSION.ADD", "{c}", "m")),
        ("last_packet_id", ("SESSION.ADD", "{c}", "m")),
        ("messages", ("SESSION.ADD", "{c}", "LIMIT", 3, "m")),
        ("messages_1", ("SESSION.ADD", "{c}", "LIMIT", 3, "m")),
        ("messages", ("SESSION.ACK", "{c}", 1)),
        ("messages_1", ("SESSION.ACK", "{c}", 1)),
        ("session", ("SESSION.FETCH", "{c}", "WINDOW", 1)),
        ("session", ("SESSION.SENT", "{c}", 1)),
        ("messages_1", ("SESSION.RELEASE", "{c}", 1)),
        ("received", ("SESSION.RECEIVE", "{c}", 1)),
        ("producers", ("SESSION.ADD", "{c}", "PRODUCER", "p", 1, "m")),
        ("messages", ("TOPIC.PUBLISH", "t", "m", "QOS", 1)),
        ("messages_4", ("TOPIC.PUBLISH", "t", "m", "QOS", 1)),
        ("subscriptions", ("SESSION.SUBSCRIBE", "{c}", "u", 1)),
        ("subscriptions", ("SESSION.SUBSCRIBE", "{c}", "t", 2)),
        ("subscriptions", ("SESSION.UNSUBSCRIBE", "{c}", "t")),
        ("session", ("SESSION.OPEN", "{c}", "OWNER", "o")),
        ("messages", ("SESSION.DROP", "{c}")),
        ("messages_2", ("SESSION.DROP", "{c}")),
        ("subscriptions", ("SESSION.DROP", "{c}")),
        ("last_packet_id", ("SESSION.DROP", "{c}")),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(map(str, value)),
)
def test_a_watched_key_notices_a_write(server: Server, session: Session, suffix: str, command: Command) -> None:
    session.open()
    session.add("a", "b", "c")
    session.subscribe(("t", 1))
    assert breaks_watch(server, session.name(suffix), command)


@pytest.mark.parametrize(
    "command",
    [
        ("SESSION.FETCH", "{c}"),
        ("SESSION.FETCH", "{c}", "AFTER", 1, "COUNT", 1),
        ("SESSION.FETCH", "{c}", "INFLIGHT"),
        ("SESSION.ACK", "{c}", 99),
        ("SESSION.SENT", "{c}", 0),
        ("SESSION.RELEASE", "{c}", 99),
        ("SESSION.COMPLETE", "{c}", 99),
        ("SESSION.LAST", "{c}"),
        ("SESSION.INFO", "{c}"),
        ("SESSION.SUBSCRIPTIONS", "{c}"),
        ("SESSION.UNSUBSCRIBE", "{c}", "nowhere"),
        ("TOPIC.PUBLISH", "nobody", "m", "QOS", 1),
        ("TOPIC.RETAINED", "#"),
        ("HOLDMQ.CHECK",),
    ],
    ids=lambda command: " ".join(map(str, command)),
)
def test_a_watched_key_does_not_notice_what_changed_nothing(server: Server, session: Session, command: Command) -> None:
    session.open()
    session.add("a", "b", "c")
    session.subscribe(("t", 1))
    for suffix in ("messages", "messages_1", "last_packet_id", "subscriptions", "session"):
        assert not breaks_watch(server, session.name(suffix), command), suffix


def test_a_client_that_caches_keys_is_told_of_writes(server: Server, session: Session) -> None:
    session.add("a")
    with RawClient(server.port, protocol=3) as caching:
        caching.call("CLIENT", "TRACKING", "ON")
        caching.call("GET", session.message(1))
        caching.call("ZCARD", session.name("messages"))
        caching.pending()
        session.ack(1)
        names = {name for push in caching.pending() if isinstance(push, Push) for name in push[1]}  # type: ignore[attr-defined]
    assert names == {session.message(1), session.name("messages")}


# --- Keyspace events --------------------------------------------------------------------------------------------------


class Events:
    """Listens to all keyspace events of a server."""

    def __init__(self, server: Server) -> None:
        server.client().config_set("notify-keyspace-events", "KEA")
        self._raw = RawClient(server.port)
        self._raw.call("PSUBSCRIBE", "__keyevent@0__:*")

    def take(self) -> Counter[tuple[bytes, bytes]]:
        """The events since the last call, each with its key, and how often they came."""
        found: Counter[tuple[bytes, bytes]] = Counter()
        for message in self._raw.pending():
            assert isinstance(message, list)
            _, _, channel, name = message
            found[channel.removeprefix(b"__keyevent@0__:"), name] += 1
        return found

    def close(self) -> None:
        """Stop listening."""
        self._raw.close()


def test_the_events_are_those_of_the_plain_commands_that_are_replicated(fresh_server: MakeServer) -> None:
    primary = fresh_server()
    replica = fresh_server(replica_of=primary, module=False)
    client, follower = primary.client(), replica.client()
    here, there = Events(primary), Events(replica)
    try:
        for command in writing_commands():
            client.execute_command(*command)
            wait_for_replica(client, follower)
            assert set(here.take()) == set(there.take()), f"events of {command}"
    finally:
        here.close()
        there.close()


def test_what_changes_nothing_fires_no_event(server: Server, session: Session, client: redis.Redis) -> None:
    session.open()
    session.add("a")
    session.subscribe(("t", 1))
    events = Events(server)
    try:
        session.fetch()
        session.ack(9)
        session.info()
        session.unsubscribe("u")
        publish(client, "nobody", "m")
        error_of(client, "SESSION.ADD", "{c}", "TTL", 0, "m")
        assert events.take() == Counter()
    finally:
        events.close()


# --- Access rights ----------------------------------------------------------------------------------------------------


READING: list[Command] = [("SESSION.LAST", "{a}"), ("SESSION.INFO", "{a}"), ("SESSION.SUBSCRIPTIONS", "{a}")]
WRITING: list[Command] = [
    ("SESSION.ADD", "{a}", "m"),
    ("SESSION.FETCH", "{a}"),
    ("SESSION.ACK", "{a}", 1),
    ("SESSION.SENT", "{a}", 1),
    ("SESSION.RELEASE", "{a}", 1),
    ("SESSION.RECEIVE", "{a}", 1),
    ("SESSION.COMPLETE", "{a}", 1),
    ("SESSION.DROP", "{a}"),
    ("SESSION.OPEN", "{a}", "OWNER", "o"),
    ("SESSION.TOUCH", "{a}", "EPOCH", 1),
    ("SESSION.CLOSE", "{a}", "EPOCH", 1),
    ("SESSION.SUBSCRIBE", "{a}", "t", 1),
    ("SESSION.UNSUBSCRIBE", "{a}", "t"),
]
ROUTING: list[Command] = [("TOPIC.PUBLISH", "t", "m"), ("TOPIC.RETAINED", "#")]


def denied(client: redis.Redis, user: str, command: Command) -> bool:
    """Whether the server denies a command to a user."""
    verdict = client.execute_command("ACL", "DRYRUN", user, *command)
    return bool(verdict != b"OK")


def test_a_user_may_touch_the_sessions_that_its_key_patterns_allow(client: redis.Redis) -> None:
    client.execute_command("ACL", "SETUSER", "a", "on", "nopass", "~{a}*", "&t", "+@all")
    client.execute_command("ACL", "SETUSER", "b", "on", "nopass", "~{b}*", "&t", "+@all")
    client.execute_command("ACL", "SETUSER", "reader", "on", "nopass", "%R~{a}*", "&t", "+@all")
    client.execute_command("ACL", "SETUSER", "writer", "on", "nopass", "%W~{a}*", "&t", "+@all")
    for command in READING + WRITING:
        assert not denied(client, "a", command), command
        assert denied(client, "b", command), command
        assert denied(client, "reader", command) == (command in WRITING), command
    for command in READING:
        assert denied(client, "writer", command), command


def test_a_user_is_refused_a_session_for_real_and_nothing_changes(server: Server, client: redis.Redis) -> None:
    Session(client, "{a}").add("m")
    client.execute_command("ACL", "SETUSER", "b", "on", "nopass", "~{b}*", "+@all")
    with RawClient(server.port) as raw:
        raw.call("AUTH", "b", "any")
        for command in READING + WRITING:
            with unchanged(client), pytest.raises(ReplyError, match=r"^NOPERM"):
                raw.call(*command)


def test_a_user_needs_the_right_to_each_command(client: redis.Redis) -> None:
    commands = READING + WRITING + ROUTING
    client.execute_command("ACL", "SETUSER", "none", "on", "nopass", "~*", "&*", "-@all")
    for command in commands:
        assert denied(client, "none", command), command
    for command in commands:
        client.execute_command("ACL", "SETUSER", "one", "on", "nopass", "~*", "&*", "-@all", f"+{command[0]!s}")
        assert not denied(client, "one", command), command
        client.execute_command("ACL", "SETUSER", "other", "on", "nopass", "~*", "&*", "+@all", f"-{command[0]!s}")
        assert denied(client, "other", command), command


def test_publishing_to_a_topic_needs_the_command_and_the_topic_and_no_key_of_a_session(
    server: Server, client: redis.Redis
) -> None:
    session = Session(client)
    session.subscribe(("t", 1))
    client.execute_command("ACL", "SETUSER", "backend", "on", "nopass", "resetkeys", "&t", "+topic.publish")
    with RawClient(server.port) as raw:
        raw.call("AUTH", "backend", "any")
        assert raw.call("TOPIC.PUBLISH", "t", "m", "QOS", 1) == 1
        with pytest.raises(ReplyError, match=r"^NOPERM"):
            raw.call("TOPIC.PUBLISH", "u", "m", "QOS", 1)
        with pytest.raises(ReplyError, match=r"^NOPERM"):
            raw.call("SESSION.FETCH", "{c}")
    assert payloads(session.fetch().entries) == [b"m"]


# --- Memory -----------------------------------------------------------------------------------------------------------


def test_without_memory_what_would_grow_is_refused_and_the_rest_is_served(
    server: Server, session: Session, client: redis.Redis
) -> None:
    epoch = session.open(expiry=60).epoch
    session.add("a", "b", "c")
    session.subscribe(("t", 1))
    publish(client, "t", "m", retain=True)
    growing: list[Command] = [
        ("SESSION.ADD", "{c}", "m"),
        ("SESSION.OPEN", "{c}", "OWNER", "o"),
        ("SESSION.OPEN", "{c}", "OWNER", "o", "CLEAN"),
        ("SESSION.SUBSCRIBE", "{c}", "u", 1),
        ("SESSION.RECEIVE", "{c}", 1),
        ("TOPIC.PUBLISH", "t", "m", "QOS", 1),
        ("TOPIC.PUBLISH", "t", "m", "QOS", 1, "RETAIN"),
    ]
    client.config_set("maxmemory-policy", "noeviction")
    client.config_set("maxmemory", 1)
    with RawClient(server.port) as raw, Inbox(server) as inbox:
        for command in growing:
            with unchanged(client), pytest.raises(ReplyError, match=r"^OOM"):
                raw.call(*command)
        with unchanged(client), pytest.raises(ReplyError, match=r"OOM"):
            raw.call("EVAL", "return redis.call('SESSION.ADD', KEYS[1], 'm')", 1, "{c}")
        assert inbox.take() == []
    assert session.last() == 4
    assert session.info()["messages"] == 4
    assert session.fetch().values[:3] == [b"a", b"b", b"c"]
    assert session.sent(3) == b"OK"
    assert session.release(1) == 1
    assert session.ack(1, 2, epoch=epoch) == 2
    assert session.complete(1) == 0
    assert session.subscriptions() == {b"t": 1}
    assert session.unsubscribe("t") == [1]
    assert session.touch(epoch) == b"OK"
    assert session.close(epoch, 30) == b"OK"
    assert session.drop() == 2
    client.config_set("maxmemory", 0)
    assert session.add("again").packet_ids == [1]


def test_eviction_takes_keys_and_the_indexes_follow(server: Server, client: redis.Redis) -> None:
    for number in range(300):
        session = Session(client, f"{{s{number}}}")
        session.subscribe((f"t/{number}", 1))
        session.add("x" * 500)
    client.config_set("maxmemory-policy", "allkeys-random")
    used = client.info("memory")["used_memory"]
    client.config_set("maxmemory", used - 60_000)
    for number in range(50):
        client.set(f"filler-{number}", "x" * 1000)
    assert client.info("stats")["evicted_keys"] > 0
    client.config_set("maxmemory", 0)
    assert_indexes_hold(client)
    for number in range(300):
        there = client.exists(f"{{s{number}}}_subscriptions")
        assert publish(client, f"t/{number}", "m", qos=1) == there
    assert server.process.running


# --- What the server tells --------------------------------------------------------------------------------------------


def figures(client: redis.Redis) -> dict[str, int]:
    """The numbers of INFO holdmq."""
    return {name.removeprefix("holdmq_"): value for name, value in client.info("holdmq").items() if type(value) is int}


def test_info_counts_what_sessions_and_topics_did(server: Server, session: Session, client: redis.Redis) -> None:
    before = figures(client)
    epoch = session.open(expiry=60).epoch
    session.subscribe(("t/#", 1), ("u", 0))
    Session(client, "{bad}").subscribe(("t/1", 1))
    client.set("{bad}_messages", "no sorted set")
    with Inbox(server):
        publish(client, "t/1", "stored and pushed, and refused by one")
        publish(client, "u", "pushed", qos=0)
    publish(client, "nobody", "m")
    session.add("a", "b", "c", limit=3)
    session.expire_message(2)
    session.fetch()
    session.ack(3, 4, 99)
    for _ in range(2):
        assert error_of(client, "SESSION.TOUCH", "{c}", "EPOCH", epoch - 1) is not None
    after = figures(client)
    assert {name: after[name] - before[name] for name in COUNTED} == COUNTED


COUNTED = {
    "topic_published": 3,
    "topic_stored": 1,
    "topic_pushed": 2,
    "topic_refused": 1,
    "session_trimmed": 1,
    "session_expired": 1,
    "session_acked": 2,
    "fenced": 2,
    "sessions_subscribed": 2,
    "filters": 3,
}


def test_the_module_cannot_be_unloaded_and_continues(server: Server, session: Session, client: redis.Redis) -> None:
    session.add("a")
    error = error_of(client, "MODULE", "UNLOAD", "holdmq")
    assert error is not None
    assert session.fetch().values == [b"a"]
    assert server.process.running
