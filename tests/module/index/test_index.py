"""The indexes of subscriptions and retained messages follow the keys, whoever changes them and however."""

import os
import random
from collections.abc import Callable

import pytest
import redis

from holdmq import core
from holdmq.server import find_module
from tests.module.sessions_support import (
    Session,
    assert_indexes_hold,
    assert_routes_exactly,
    error_of,
    expire_now,
    matches,
    names,
    now_ms,
    publish,
    retained_topics,
)
from tests.support import Server, eventually

MakeServer = Callable[..., Server]
Change = Callable[[redis.Redis], object]

TOPICS = ["a", "a/b", "b/x/c", "$s/t", "new/1", "x"]


def populate(client: redis.Redis) -> None:
    """Sessions with filters of all kinds, and retained messages."""
    Session(client, "{one}").subscribe(("a/#", 1), ("b/+/c", 2))
    Session(client, "{two}").subscribe(("+", 1), ("a/b", 1), ("$s/#", 1))
    Session(client, "{three}").subscribe(("#", 0))
    Session(client, "prefix:{one}").subscribe(("x", 1))
    for topic in ("a", "b/x/c", "$s/t"):
        publish(client, topic, "kept", qos=1, retain=True)


def assert_all_holds(server: Server) -> None:
    """In databases 0 and 1: indexes equal a rebuild, publishes reach the right sessions, retained topics are found."""
    for db in (0, 1):
        client = server.client(db=db)
        assert_routes_exactly(client, TOPICS)
        kept = retained_keys(client)
        for topic_filter in ("#", "$s/#", "a", "+/x/c"):
            want = sorted(topic for topic in kept if matches(topic_filter, topic.decode()))
            if retained_topics(client, topic_filter) != want:
                raise AssertionError(f"{topic_filter}: {retained_topics(client, topic_filter)}, expected {want}")


def retained_keys(client: redis.Redis) -> list[bytes]:
    """The topics that have a retained message, from the keys."""
    found: list[bytes] = []
    for name in names(client, "*}_retained"):
        if client.type(name) != b"hash":
            continue
        topic, payload, qos = client.hmget(name, "topic", "payload", "qos")
        if isinstance(topic, bytes) and None not in (payload, qos) and core.retained_key(topic) == name:
            found.append(topic)
    return found


def dump_and_restore(client: redis.Redis, source: str, target: str, *, replace: bool = False) -> None:
    dumped = client.dump(source)
    assert dumped is not None
    client.restore(target, 0, dumped, replace=replace)


def expire_two(client: redis.Redis) -> None:
    for name in ("{one}_subscriptions", "{a}_retained"):
        expire_now(client, name)


def change_in_a_transaction(client: redis.Redis) -> None:
    with client.pipeline(transaction=True) as pipe:
        pipe.hset("{one}_subscriptions", "new/1", "1")
        pipe.rename("{two}_subscriptions", "{five}_subscriptions")
        pipe.execute()


def set_other_types(client: redis.Redis) -> None:
    client.set("{one}_subscriptions", "a string")
    client.sadd("some set", "member")
    client.sunionstore("{two}_subscriptions", ["some set"])
    client.zadd("some sorted set", {"member": 1})
    client.zunionstore("{three}_subscriptions", ["some sorted set"])
    client.set("{a}_retained", "a string")


# What somebody may do to the keys without asking the module.
CHANGES: dict[str, Change] = {
    "nothing": lambda _: None,
    "DEL": lambda c: c.delete("{one}_subscriptions", "{a}_retained"),
    "UNLINK": lambda c: c.unlink("{two}_subscriptions", "{b/x/c}_retained"),
    "GETDEL of nothing": lambda c: c.getdel("{nobody}_subscriptions"),
    "HSET of a new filter": lambda c: c.hset("{one}_subscriptions", "new/#", "1"),
    "HSET of a new session": lambda c: c.hset("{new}_subscriptions", mapping={"new/+": "2", "x": "1"}),
    "HSET of other options": lambda c: c.hset("{two}_subscriptions", "a/b", "0"),
    "HSET of options that mean nothing": lambda c: c.hset("{two}_subscriptions", "a/b", "QoS 1"),
    "HSETNX": lambda c: c.hsetnx("{three}_subscriptions", "new/1", "1"),
    "HINCRBY": lambda c: c.hincrby("{three}_subscriptions", "#", 1),
    "HDEL": lambda c: c.hdel("{one}_subscriptions", "a/#"),
    "HDEL of all": lambda c: c.hdel("{one}_subscriptions", "a/#", "b/+/c"),
    "HSET of a retained message": lambda c: c.hset(
        "{new/1}_retained", mapping={"topic": "new/1", "payload": "m", "qos": "1"}
    ),
    "HDEL of a retained payload": lambda c: c.hdel("{a}_retained", "payload"),
    "EXPIRE": expire_two,
    "EXPIRE in the past": lambda c: (c.pexpireat("{one}_subscriptions", 1), c.expire("{two}_subscriptions", -1)),
    "PERSIST": lambda c: c.persist("{one}_subscriptions"),
    "RENAME to another session": lambda c: c.rename("{one}_subscriptions", "{four}_subscriptions"),
    "RENAME over another session": lambda c: c.rename("{one}_subscriptions", "{two}_subscriptions"),
    "RENAME to the prefixed name": lambda c: c.rename("{two}_subscriptions", "prefix:{one}_subscriptions"),
    "RENAME away": lambda c: c.rename("{one}_subscriptions", "elsewhere"),
    "RENAME there and back": lambda c: (
        c.rename("{one}_subscriptions", "elsewhere"),
        c.rename("elsewhere", "{one}_subscriptions"),
    ),
    "RENAMENX": lambda c: c.renamenx("{one}_subscriptions", "{four}_subscriptions"),
    "RENAME of a retained message": lambda c: c.rename("{a}_retained", "{elsewhere}_retained"),
    "COPY": lambda c: c.copy("{one}_subscriptions", "{four}_subscriptions"),
    "COPY over another session": lambda c: c.copy("{one}_subscriptions", "{two}_subscriptions", replace=True),
    "COPY to another database": lambda c: c.copy("{one}_subscriptions", "{one}_subscriptions", destination_db="1"),
    "MOVE": lambda c: (c.move("{one}_subscriptions", 1), c.move("{a}_retained", 1)),
    "RESTORE": lambda c: dump_and_restore(c, "{one}_subscriptions", "{four}_subscriptions"),
    "RESTORE over another session": lambda c: dump_and_restore(
        c, "{one}_subscriptions", "{two}_subscriptions", replace=True
    ),
    "other types under the same names": set_other_types,
    "SET and DEL and HSET": lambda c: (
        c.set("{one}_subscriptions", "x"),
        c.delete("{one}_subscriptions"),
        c.hset("{one}_subscriptions", "new/#", "1"),
    ),
    "SWAPDB": lambda c: c.swapdb(0, 1),
    "SWAPDB twice": lambda c: (c.swapdb(0, 1), c.swapdb(1, 0)),
    "SWAPDB with an empty database": lambda c: c.swapdb(0, 7),
    "FLUSHALL": lambda c: c.flushall(),
    "FLUSHALL ASYNC": lambda c: c.flushall(asynchronous=True),
    "FLUSHDB": lambda c: c.flushdb(),
    "FLUSHDB and HSET": lambda c: (c.flushdb(), c.hset("{new}_subscriptions", "new/#", "1")),
    "DEBUG RELOAD": lambda c: c.execute_command("DEBUG", "RELOAD"),
    "EVAL": lambda c: c.eval(
        "redis.call('HSET', KEYS[1], 'new/1', '1') redis.call('DEL', KEYS[2])",
        2,
        "{one}_subscriptions",
        "{two}_subscriptions",
    ),
    "MULTI": change_in_a_transaction,
}


@pytest.mark.parametrize("name", CHANGES)
def test_the_indexes_follow(server: Server, client: redis.Redis, name: str) -> None:
    second = server.client(db=1)
    populate(client)
    Session(second, "{in 1}").subscribe(("a/#", 1))
    publish(second, "x", "kept in 1", qos=1, retain=True)
    CHANGES[name](client)
    assert_all_holds(server)


@pytest.mark.parametrize("name", [name for name in CHANGES if "SWAPDB" in name or "FLUSH" in name or "RELOAD" in name])
def test_the_indexes_keep_following(server: Server, client: redis.Redis, name: str) -> None:
    populate(client)
    CHANGES[name](client)
    for some in (client, server.client(db=1)):
        Session(some, "{later}").subscribe(("a/#", 1))
        some.hset("{by hand}_subscriptions", "+/b", "1")
        publish(some, "new/1", "kept", qos=1, retain=True)
    assert_all_holds(server)


def test_a_field_that_expires_is_a_filter_no_longer(server: Server, client: redis.Redis) -> None:
    populate(client)
    error = error_of(client, "HPEXPIRE", "{one}_subscriptions", 1, "FIELDS", 1, "a/#")
    if error is not None:  # a server without times to live for fields: the field stays
        assert "unknown command" in error
        client.hdel("{one}_subscriptions", "a/#")
    eventually(lambda: not client.hexists("{one}_subscriptions", "a/#"))
    assert_routes_exactly(client, TOPICS)
    eventually(lambda: client.hlen("{one}_subscriptions") == 1)
    assert_all_holds(server)


def test_unsubscribing_what_somebody_removed_by_hand_is_not_an_error(server: Server, client: redis.Redis) -> None:
    populate(client)
    client.hdel("{one}_subscriptions", "a/#")
    assert Session(client, "{one}").unsubscribe("a/#", "b/+/c") == [0, 1]
    client.delete("{two}_subscriptions")
    Session(client, "{two}").drop()
    assert_all_holds(server)


def test_the_module_finds_what_a_running_server_holds_when_it_is_loaded(fresh_server: MakeServer) -> None:
    server = fresh_server(module=False)
    for db in (0, 1, 5):
        client = server.client(db=db)
        client.hset("{one}_subscriptions", mapping={"a/#": "1", "b/+/c": "2"})
        client.hset("{two}_subscriptions", mapping={f"f/{number}": "1" for number in range(1000)})
        client.set("{string}_subscriptions", "no hash")
        client.hset("{a}_retained", mapping={"topic": "a", "payload": "m", "qos": "1"})
        client.rpush("a channel", "held")
    expiring = server.client()
    expiring.hset("{gone}_subscriptions", "a/#", "1")
    expiring.pexpire("{gone}_subscriptions", 1)
    expiring.execute_command("MODULE", "LOAD", str(find_module()))
    assert_all_holds(server)
    fifth = server.client(db=5)
    assert retained_topics(fifth) == [b"a"]
    assert_routes_exactly(fifth, ["f/0", "f/999", "f/1000", "a/b"])
    Session(fifth, "{one}").unsubscribe("a/#")
    assert_routes_exactly(fifth, ["a/b", "b/x/c"])


def test_a_server_that_was_flushed_right_after_the_module_was_loaded_has_empty_indexes(
    fresh_server: MakeServer,
) -> None:
    server = fresh_server(module=False)
    client = server.client()
    client.hset("{one}_subscriptions", "a/#", "1")
    client.execute_command("MODULE", "LOAD", str(find_module()))
    client.flushall()
    client.hset("{two}_subscriptions", "a/b", "1")
    assert_all_holds(server)


def test_keys_that_only_look_like_those_of_sessions_and_topics_are_ignored(client: redis.Redis) -> None:
    strange = ["_subscriptions", "{}_subscriptions", "{a_subscriptions", "a}_subscriptions", "{a}{b}_subscriptions"]
    strange += ["{a}_subscriptions_subscriptions", "{a}x_subscriptions", "_retained", "{}_retained", "{%ZZ}_retained"]
    strange += ["{a/+}_retained", "{#}_retained", "x{a}_retained", "{a}_retained_retained", "{%7b}_retained"]
    for name in strange:
        client.hset(name, mapping={"a": "1", "topic": "a", "payload": "m", "qos": "1"})
    client.hset(b"{\xff}_retained", mapping={"topic": b"\xff", "payload": "m", "qos": "1"})
    client.hset(b"{" + b"x" * 70000 + b"}_retained", mapping={"topic": b"x" * 70000, "payload": "m", "qos": "1"})
    assert_indexes_hold(client)
    assert publish(client, "a", "m", qos=1) == 0
    assert retained_topics(client) == []


# --- Chance -----------------------------------------------------------------------------------------------------------

SESSIONS = ["{s1}", "{s2}", "{s3}"]
FILTERS = ["a/#", "+", "a/b", "b/+/c", "$s/#", "#", "x"]


def random_change(rng: random.Random, client: redis.Redis) -> tuple[str | int, ...]:
    """A command that may change what the indexes are built of."""
    one, other = (rng.choice(SESSIONS) + "_subscriptions" for _ in range(2))
    topic_filter, options = rng.choice(FILTERS), rng.choice((0, 1, 2, 5, 9))
    topic = rng.choice(TOPICS)
    commands: list[tuple[str | int, ...]] = [
        ("SESSION.SUBSCRIBE", rng.choice(SESSIONS), topic_filter, options),
        ("SESSION.UNSUBSCRIBE", rng.choice(SESSIONS), topic_filter),
        ("SESSION.OPEN", rng.choice(SESSIONS), "OWNER", "o", "EXPIRY", 100),
        ("SESSION.OPEN", rng.choice(SESSIONS), "OWNER", "o", "CLEAN"),
        ("SESSION.DROP", rng.choice(SESSIONS)),
        ("TOPIC.PUBLISH", topic, rng.choice(("m", "")), "QOS", 1, "RETAIN"),
        ("HSET", one, topic_filter, options),
        ("HDEL", one, topic_filter),
        ("DEL", one),
        ("RENAME", one, other),
        ("COPY", one, other, "REPLACE"),
        ("COPY", one, other, "DB", 1, "REPLACE"),
        ("MOVE", one, 1),
        ("SET", one, "x"),
        ("SADD", one, "x"),
        ("PEXPIRE", one, 1),
        ("SWAPDB", 0, 1),
        ("RENAME", f"{{{topic}}}_retained", f"{{{rng.choice(TOPICS)}}}_retained"),
        ("DEL", f"{{{topic}}}_retained"),
        ("SET", f"{{{topic}}}_retained", "x"),
        ("PEXPIRE", f"{{{topic}}}_retained", 1),
        ("DEBUG", "RELOAD") if rng.random() < 0.3 else ("PING",),
        ("FLUSHDB",) if rng.random() < 0.2 else ("PING",),
    ]
    command = rng.choice(commands)
    try:
        client.execute_command(*command)
    except redis.ResponseError:  # a wrong type or no such key: that, too, must leave the indexes right
        return ("refused:", *command)
    return command


def let_expire(client: redis.Redis) -> None:
    """What was given a millisecond is over for the server: else it could end between two looks."""
    begun_ms = now_ms(client)
    eventually(lambda: now_ms(client) >= begun_ms + 2, 10)


def test_the_indexes_follow_random_commands(server: Server, client: redis.Redis) -> None:
    seed = int(os.environ.get("HOLDMQ_TEST_SEED") or random.randrange(2**32))
    print(f"HOLDMQ_TEST_SEED={seed}")
    rng = random.Random(seed)
    done = []
    for _ in range(40):
        done.append([random_change(rng, client) for _ in range(rng.randint(1, 8))])
        if any("PEXPIRE" in command for command in done[-1]):
            let_expire(client)
        try:
            assert_indexes_hold(client)
            assert_all_holds(server)
        except (AssertionError, redis.RedisError) as error:
            raise AssertionError(f"after {done[-1]} (seed {seed}): {error}") from error


@pytest.mark.parametrize("key", ["{c}", "prefix:{c}"])
def test_a_hash_that_somebody_else_changes_is_followed(client: redis.Redis, key: str) -> None:
    Session(client, key).subscribe(("x", 1), ("y", 1))
    assert publish(client, "x", "m", qos=1) == 1
    client.hdel(f"{key}_subscriptions", "x")
    assert publish(client, "x", "m", qos=1) == 0
    assert publish(client, "y", "m", qos=1) == 1
    assert_indexes_hold(client)
