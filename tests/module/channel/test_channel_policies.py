"""The policies: what the default list spares, how they are set, read, kept and checked, and which rule holds."""

import re
from pathlib import Path
from typing import Any

import pytest
import redis

from holdmq.server import ServerError
from tests.module.channels_support import (
    MakeRaw,
    MakeServer,
    answers,
    held,
    information,
    messages,
    set_policies,
    subscribe,
)
from tests.support import Server, ServerKind

HOLD_BY_DEFAULT = [b"*", b"unheard", b"off", 10000, 604800, b"last"]

# Channels on which libraries tell each other what is of no use later, as those libraries name them.
CONTROL_CHANNELS = [
    "__keyspace@0__:x",
    "__keyspace@15__:any key",
    "__keyevent@0__:expired",
    "__redis__:invalidate",
    "__sentinel__:hello",
    "/0.celery.pidbox",  # kombu's fanout exchanges: /<db>.<exchange>
    "/12.celery.pidbox",
    "/0.reply.celery.pidbox",
    "/0.celeryev",
    "/0.celeryev/worker.heartbeat",
    "celeryev",
    "celery.pidbox",
    "celery-task-meta-5f3c0c33-0a3c-4f4a-8f3a-0d1f5b8e1a77",
    "redisson_lock__channel:{lock}",
    "redisson_sc:{semaphore}",
    "redisson_rwlock:{lock}",
    "redisson_countdownlatch__channel__{latch}",
    "redisson_map_cache_expired:{map}",
    "rq:pubsub:7d9a3f0e5b",
    "socket.io#/#",
    "socket.io#/chat#room#",
    "socket.io-request#/#",
    "socket.io-response#/#",
    "app:internal:ack:server-1",  # SignalR
    "app:internal:groups",
    "own#/#",  # the same with a key of its own
    "own#/chat#room#",
    "own-request#/#",
    "own-response#/#4f1c#",
    "socketio",  # python-socketio
    "flask-socketio",
    "asgi__group__chat",  # Django channels
    "own__group__chat",
    "asgispecific.0d8f1e6b8a5f4cf0a1d6b3a3b1a7c9e2",
    "__Booksleeve_MasterChanged",
    "bull:work:completed",  # Bull
    "own:work:waiting@4d0d6a5e",
    "own:work:active@4d0d6a5e",
    "bq:work:events",  # Bee-Queue
    "MOL.REQ.node-7",  # Moleculer
    "MOL-staging.HEARTBEAT",
    "sum.reply",  # NestJS
    "taskiq",
    "_action_cable_internal",
    "{client}_inbox",
]


def policy(client: redis.Redis, channel: str) -> Any:
    """The rule that holds for a channel."""
    return client.execute_command("CHANNEL.POLICY", channel)


# --- The default list -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("channel", CONTROL_CHANNELS)
def test_control_channels_are_not_held_by_default(client: redis.Redis, channel: str) -> None:
    assert client.publish(channel, "m") == 0
    assert client.execute_command("CHANNEL.PUBLISH", channel, "m") == 0
    assert client.dbsize() == 0
    rule = policy(client, channel)
    assert rule[1:3] == [b"none", b"off"]
    assert rule[5] == b"none"


@pytest.mark.parametrize("channel", ["news", "", "sensor/1/temperature", "inbox", "celery", "myredisson", "__x", "rq:"])
def test_other_channels_are_held_by_default(client: redis.Redis, channel: str) -> None:
    assert policy(client, channel) == HOLD_BY_DEFAULT
    client.publish(channel, "m")
    assert held(client, channel) == [b"m"]


def test_a_keyspace_event_is_delivered_and_never_held(client: redis.Redis, raw: MakeRaw) -> None:
    client.config_set("notify-keyspace-events", "KEA")
    client.set("k", "v")
    client.delete("k")
    assert client.dbsize() == 0
    listener = raw()
    assert subscribe(listener, "__keyspace@0__:k") == []
    client.set("k", "v")
    assert messages(listener.pending()) == [b"set"]


def test_the_default_list_can_be_read_and_set_again(client: redis.Redis) -> None:
    text = str(client.config_get("holdmq.policies")["holdmq.policies"])
    set_policies(client)
    assert policy(client, "ch") is None
    client.config_set("holdmq.policies", text)
    assert client.config_get("holdmq.policies")["holdmq.policies"] == text
    assert policy(client, "ch") == HOLD_BY_DEFAULT
    assert policy(client, "celeryev")[1] == b"none"


# --- Setting and reading ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("*", HOLD_BY_DEFAULT),
        ("* hold=none", [b"*", b"none", b"off", 10000, 604800, b"none"]),
        ("* hold=none last=on", [b"*", b"none", b"on", 10000, 604800, b"last"]),
        ("* hold=all last=on maxlen=1 ttl=0 deliver=held", [b"*", b"all", b"on", 1, 0, b"held"]),
        ("* deliver=none", [b"*", b"unheard", b"off", 10000, 604800, b"none"]),
        ("* maxlen=4294967295 ttl=3155760000", [b"*", b"unheard", b"off", 4294967295, 3155760000, b"last"]),
        ("  *\tttl=1  ; ", [b"*", b"unheard", b"off", 10000, 1, b"last"]),
        ("c[xy] hold=none\nc? ttl=5", [b"c?", b"unheard", b"off", 10000, 5, b"last"]),
        ('"ch" ttl=7', [b"ch", b"unheard", b"off", 10000, 7, b"last"]),
        ("* deliver=held hold=all", [b"*", b"all", b"off", 10000, 604800, b"held"]),
    ],
)
def test_a_rule_reads_back_with_what_it_left_out(client: redis.Redis, rule: str, expected: list[object]) -> None:
    client.config_set("holdmq.policies", rule)
    assert policy(client, "ch") == expected
    assert client.config_get("holdmq.policies") == {"holdmq.policies": rule}


def test_the_first_rule_that_matches_holds(client: redis.Redis) -> None:
    set_policies(client, "news:eu ttl=1", "news:* ttl=2", "[a-f]* ttl=3", "* ttl=4", "news:us ttl=5")
    assert [policy(client, name)[4] for name in ("news:eu", "news:us", "beta", "zeta")] == [1, 2, 3, 4]
    assert information(client)["policy_rules"] == 5


def test_globs_match_as_patterns_of_the_server_do(client: redis.Redis) -> None:
    globs = ["a*c", "a?c", "a[bx]c", "a[^b]c", "a[a-c]c", r"a\*c", "*b*", "A*", "a*c*"]
    names = ["abc", "axc", "a*c", "abbc", "ac", "ABC", "abcd", "b"]
    for glob in globs:
        for name in names:
            client.flushall()
            client.set(name, "v")
            stock_matches = client.keys(glob) == [name.encode()]
            set_policies(client, f'"{glob}"')
            assert (policy(client, name) is not None) == stock_matches, (glob, name)


def test_a_glob_may_hold_blanks_separators_and_quotes(client: redis.Redis) -> None:
    client.config_set("holdmq.policies", r'"a b; \"c\"*" ttl=9')
    assert policy(client, 'a b; "c"!')[:1] == [b'a b; "c"*']
    assert policy(client, "a b") is None


def test_a_change_of_policy_takes_effect_at_once(client: redis.Redis) -> None:
    client.publish("ch", "one")
    set_policies(client, "ch hold=none")
    client.publish("ch", "two")
    set_policies(client, "ch hold=all")
    client.publish("ch", "three")
    assert held(client, "ch") == [b"one", b"three"]


def test_a_change_of_policy_in_a_transaction_takes_effect_in_it(client: redis.Redis, raw: MakeRaw) -> None:
    connection = raw()
    replies = answers(
        connection,
        ["MULTI"],
        ["PUBLISH", "ch", "one"],
        ["CONFIG", "SET", "holdmq.policies", "* hold=none"],
        ["PUBLISH", "ch", "two"],
        ["EXEC"],
    )
    assert replies[-1] == [0, "OK", 0]
    assert held(client, "ch") == [b"one"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("* hold=maybe", ["rule 1", "hold=maybe", "hold=none, hold=unheard or hold=all"]),
        ("* hold=none; x last=1", ["rule 2", "last=1", "last=on or last=off"]),
        ("a; b; c maxlen=0", ["rule 3", "maxlen=0", "1 to 4294967295"]),
        ("* maxlen=4294967296", ["rule 1", "maxlen=4294967296"]),
        ("* maxlen=-1", ["rule 1", "maxlen=-1"]),
        ("* maxlen=", ["rule 1", "maxlen="]),
        ("* ttl=1.5", ["rule 1", "ttl=1.5", "seconds"]),
        ("* ttl=3155760001", ["rule 1", "ttl=3155760001"]),
        ("* ttl=99999999999999999999", ["rule 1", "ttl=99999999999999999999"]),
        ("* deliver=all", ["rule 1", "deliver=all", "deliver=none, deliver=last or deliver=held"]),
        ("* keep=all", ["rule 1", "keep=all", "hold=, last=, maxlen=, ttl= or deliver="]),
        ("two words", ["rule 1", "words"]),
        ("* hold=all hold=none", ["rule 1", "hold=none", "repeats"]),
        ("* hold=none deliver=last", ["rule 1", "expected deliver=none"]),
        ('"open', ["rule 1", "closing quote"]),
        ('"a"b', ["rule 1", "after its closing quote"]),
        ('a"b', ["rule 1", 'a"b', "quotes"]),
        ("; ".join(f"a{n}" for n in range(257)), ["rule 257", "at most 256"]),
        ("x" * 65537, ["65536"]),
    ],
    ids=range(19),
)
def test_a_mistake_in_the_policies_is_named_and_changes_nothing(
    client: redis.Redis, text: str, says: list[str]
) -> None:
    set_policies(client, "* ttl=77")
    with pytest.raises(redis.ResponseError) as error:
        client.config_set("holdmq.policies", text)
    for part in ["holdmq.policies", *says]:
        assert part in str(error.value)
    assert client.config_get("holdmq.policies") == {"holdmq.policies": "* ttl=77"}
    assert policy(client, "ch")[4] == 77


def test_a_config_set_that_fails_elsewhere_leaves_the_policies_alone(client: redis.Redis) -> None:
    set_policies(client, "* ttl=77")
    with pytest.raises(redis.ResponseError):
        client.execute_command("CONFIG", "SET", "holdmq.policies", "* ttl=88", "maxmemory-policy", "nonsense")
    with pytest.raises(redis.ResponseError):
        client.execute_command("CONFIG", "SET", "maxclients", 500, "holdmq.policies", "* ttl=x")
    assert policy(client, "ch")[4] == 77
    assert client.config_get("maxclients") != {"maxclients": "500"}


def test_256_rules_and_65536_bytes_are_accepted(client: redis.Redis) -> None:
    set_policies(client, *[f"a{n}" for n in range(255)], "* ttl=3")
    assert policy(client, "ch")[4] == 3
    client.config_set("holdmq.policies", "x" + "*" * 65535)
    assert policy(client, "x")[0] == b"x" + b"*" * 65535


def test_interception_can_be_switched_and_read(client: redis.Redis) -> None:
    assert client.config_get("holdmq.intercept") == {"holdmq.intercept": "yes"}
    client.config_set("holdmq.intercept", "no")
    assert client.config_get("holdmq.intercept") == {"holdmq.intercept": "no"}
    assert information(client)["intercept"] == "no"
    with pytest.raises(redis.ResponseError, match="yes"):
        client.config_set("holdmq.intercept", "perhaps")


# --- Over a restart, and at the start ---------------------------------------------------------------------------------

POLICIES = ['"a b;\\"c\\"" ttl=9\n* hold=all last=on', "* ttl=5; # maxlen=1", "", "π* ttl=3"]


def test_config_rewrite_keeps_the_policies_over_a_restart(fresh_server: MakeServer) -> None:
    server = fresh_server()
    for text in POLICIES:
        client = server.client()
        client.config_set("holdmq.policies", text)
        client.config_set("holdmq.intercept", "no")
        client.config_rewrite()
        server.restart()
        client = server.client()
        assert client.config_get("holdmq.policies") == {"holdmq.policies": text}
        assert client.config_get("holdmq.intercept") == {"holdmq.intercept": "no"}


def test_the_policies_can_stand_in_the_configuration_file(fresh_server: MakeServer) -> None:
    server = fresh_server(config=['holdmq.policies "news:* hold=all ttl=5"', "holdmq.intercept yes"])
    client = server.client()
    assert policy(client, "news:1") == [b"news:*", b"all", b"off", 10000, 5, b"last"]
    assert policy(client, "other") is None


def test_a_mistake_in_the_configuration_file_stops_the_start_and_is_named(
    server_kind: ServerKind, tmp_path: Path
) -> None:
    server = Server(server_kind, tmp_path, config=['holdmq.policies "* ttl=soon"'])
    try:
        with pytest.raises(ServerError, match="ttl=soon"):
            server.start()
    finally:
        server.close()


def test_a_load_argument_narrows_what_is_held(fresh_server: MakeServer) -> None:
    server = fresh_server(module_args=["CHANNELS", "news:*", "chat *", "a;b"])
    client = server.client()
    for channel in ("news:1", "chat room", "a;b"):
        assert policy(client, channel) == [
            channel.encode().replace(b"1", b"*").replace(b"room", b"*"),
            *HOLD_BY_DEFAULT[1:],
        ]
        client.publish(channel, "m")
        assert held(client, channel) == [b"m"]
    assert policy(client, "other") is None
    client.publish("other", "m")
    assert client.exists("other") == 0
    assert policy(client, "{c}_inbox")[1] == b"none"
    assert "holdmq.policies" in client.config_get("holdmq.*")


def test_a_control_channel_is_spared_whatever_the_load_argument_says(fresh_server: MakeServer) -> None:
    client = fresh_server(module_args=["channels", "*"]).client()
    assert policy(client, "celeryev")[1] == b"none"
    assert policy(client, "ch") == HOLD_BY_DEFAULT


@pytest.mark.parametrize("glob", ['say"hi"*', "back\\\\slash", "ends\\", "a b", "π"])
def test_a_load_argument_may_be_any_glob(fresh_server: MakeServer, glob: str) -> None:
    client = fresh_server(module_args=["CHANNELS", glob]).client()
    name = glob.replace("*", "!").replace("\\\\", "\\")
    assert policy(client, name) == [glob.encode(), *HOLD_BY_DEFAULT[1:]]
    assert policy(client, "other") is None


@pytest.mark.parametrize("arguments", [["CHANNELS"], ["NONSENSE"], ["NONSENSE", "x"]])
def test_a_wrong_load_argument_stops_the_start_and_is_named(
    server_kind: ServerKind, tmp_path: Path, arguments: list[str]
) -> None:
    server = Server(server_kind, tmp_path, module_args=arguments)
    try:
        with pytest.raises(ServerError, match="CHANNELS <glob>"):
            server.start()
    finally:
        server.close()


def test_the_log_says_at_load_what_is_on(fresh_server: MakeServer) -> None:
    server = fresh_server()
    rules = information(server.client())["policy_rules"]
    assert re.search(rf"holdmq \d+\.\d+\.\d+: interception on, {rules} policy rules", server.log_text())
    server = fresh_server(config=["holdmq.intercept no", 'holdmq.policies "a; b"'])
    assert "interception off, 2 policy rules" in server.log_text()


def test_a_channel_with_a_name_beyond_the_limit_is_never_held(client: redis.Redis, raw: MakeRaw) -> None:
    for length in (16_384, 16_385, 1 << 20):
        name = b"n" * length
        subscriber = raw()
        client.execute_command("CHANNEL.DRYRUN", "START", "POLICIES", "*")
        assert client.publish(name, "unheard") == 0
        _, counted, _ = client.execute_command("CHANNEL.DRYRUN", "REPORT")
        client.execute_command("CHANNEL.DRYRUN", "STOP")
        is_held = length <= 16_384
        assert (client.execute_command("CHANNEL.POLICY", name) is not None) is is_held
        assert client.execute_command("CHANNEL.LEN", name) == int(is_held)
        assert sum(kept for _name, _rule, _hold, _unheard, kept, *_ in counted) == int(is_held)
        assert messages(subscribe(subscriber, name)) == ([b"unheard"] if is_held else [])
        assert client.publish(name, "live") == 1
        assert messages(subscriber.pending()) == [b"live"]
