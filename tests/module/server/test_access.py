"""What each kind of user may do: as on a stock server, and a message is held only for who may write the key.

Each user does the same things on a server with the module and on one without; replies and error texts must be equal,
and so must what the ACL log says.
"""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from tests.module.channels_support import (
    MakeRaw,
    MakeServer,
    Part,
    answers,
    held,
    information,
    kept_last,
    knows_clients,
    messages,
    plain,
    set_policies,
    subscribe,
)
from tests.support import RawClient, Server, ServerKind, Status, eventually

SCRIPTING = ["+eval", "+fcall", "+multi", "+exec", "+auth", "+ping", "+select"]

BOTH, NEWS, NONE = {"news:1", "other"}, {"news:1"}, set[str]()

# Rules of the user, and the channels of which PUBLISH and SPUBLISH must be held where a server knows whose they are.
USERS: dict[str, tuple[list[str], set[str], set[str]]] = {
    "everything": (["~*", "&*", "+@all"], BOTH, BOTH),
    "publish only": (["~*", "&*", "+publish", *SCRIPTING], NONE, NONE),
    "publish and the module's command": (
        ["~*", "&*", "+publish", "+channel.publish", *SCRIPTING],
        BOTH,
        NONE,
    ),
    "all but publish": (["~*", "&*", "+@all", "-publish"], NONE, BOTH),
    "all but the module's commands": (["~*", "&*", "+@all", "-channel.publish", "-channel.spublish"], NONE, NONE),
    "no keys": (["&*", "+@all"], NONE, NONE),
    "some keys": (["~news:*", "&*", "+@all"], NEWS, NEWS),
    "keys to read": (["%R~*", "&*", "+@all"], NONE, NONE),
    "keys to write": (["%W~*", "&*", "+@all"], BOTH, BOTH),
    "no channels": (["~*", "resetchannels", "+@all"], NONE, NONE),
    "some channels": (["~*", "resetchannels", "&news:*", "+@all"], NEWS, NEWS),
    "publish only, some channels": (["~*", "resetchannels", "&news:*", "+publish", *SCRIPTING], NONE, NONE),
    "nothing": (["~*", "&*", *SCRIPTING], NONE, NONE),
    "a selector": (["~x", "resetchannels", *SCRIPTING, "(~news:* &news:* +@all)"], NEWS, NEWS),
    "publish, and all in a selector": (["~*", "&*", "+publish", *SCRIPTING, "(~news:* &news:* +@all)"], NEWS, NEWS),
}
IN_CATEGORY = {  # from 7.2 on a module can put its commands into categories
    "the category": (["~*", "&*", "+@pubsub", *SCRIPTING], BOTH, BOTH),
    "the category without keys": (["&*", "+@pubsub", *SCRIPTING], NONE, NONE),
    "all but the category": (["~*", "&*", "+@all", "-@pubsub"], NONE, NONE),
}
LIBRARY = (
    "#!lua name=held\n"
    "redis.register_function('tell', function(keys, args) return redis.call('PUBLISH', keys[1], args[1]) end)\n"
)


def in_transaction(connection: RawClient, channel: str) -> list[Any]:
    """PUBLISH in MULTI/EXEC."""
    return answers(connection, ["MULTI"], ["PUBLISH", channel, "m"], ["EXEC"])


def in_script(connection: RawClient, channel: str) -> list[Any]:
    """PUBLISH in EVAL; the channel is no declared key, so that only the right to publish counts."""
    return answers(
        connection,
        ["EVAL", "return redis.call('PUBLISH', ARGV[1], 'm')", 0, channel],
        ["EVAL", "return redis.pcall('PUBLISH', ARGV[1], 'm')", 0, channel],
    )


def in_script_in_transaction(connection: RawClient, channel: str) -> list[Any]:
    """The same within MULTI/EXEC."""
    return answers(connection, ["MULTI"], ["EVAL", "return redis.call('PUBLISH', ARGV[1], 'm')", 0, channel], ["EXEC"])


WAYS = {
    "direct": lambda connection, channel: answers(connection, ["PUBLISH", channel, "m"]),
    "sharded": lambda connection, channel: answers(connection, ["SPUBLISH", channel, "m"]),
    "transaction": in_transaction,
    "script": in_script,
    "script in a transaction": in_script_in_transaction,
}


def define(client: redis.Redis, *rules: str, name: str = "u") -> None:
    """Make or replace a user."""
    client.execute_command("ACL", "SETUSER", name, "reset", "on", "nopass", *rules)


def log_in(connection: RawClient, name: str = "u") -> RawClient:
    """Become that user."""
    assert connection.call("AUTH", name, "any") == Status("OK")
    return connection


def log_of(client: redis.Redis) -> list[tuple[Any, ...]]:
    """What the ACL log tells: how often, why, where, about what, whom."""
    fields = ("count", "reason", "context", "object", "username")
    return [tuple(entry[field] for field in fields) for entry in client.acl_log()]


def on_stock(rules: list[str]) -> list[str]:
    """Rules without the module's own commands, which a stock server does not know."""
    return [rule for rule in rules if "channel." not in rule]


def users(kind: ServerKind) -> dict[str, tuple[list[str], set[str], set[str]]]:
    """The users that this server can have."""
    return USERS | IN_CATEGORY if kind.version >= (7, 2) else USERS


def comparable(outcome: Any, kind: ServerKind) -> str:
    """An outcome as text; before 7.2 a refusal may name the module's command, as nobody knows there whose it was."""
    text = repr(outcome)
    return re.sub("CHANNEL.S?PUBLISH", lambda name: name[0].lower()[8:], text) if kind.version < (7, 2) else text


# --- The matrix -------------------------------------------------------------------------------------------------------


def on_both(server: Server, stock_server: Server, rules: list[str]) -> Iterator[tuple[Server, redis.Redis]]:
    """The server with the module, then the one without it; each emptied, with the user of the rules."""
    for to in (server, stock_server):
        to.reset()
        client = to.client()
        client.acl_log_reset()
        define(client, *(rules if to is server else on_stock(rules)))
        yield to, client


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("user", USERS | IN_CATEGORY)
def test_a_publish_is_allowed_or_refused_as_on_a_stock_server(
    server_kind: ServerKind, stock_server: Server, server: Server, raw: MakeRaw, user: str, way: str
) -> None:
    if user not in users(server_kind):
        assert server_kind.version < (7, 2)
        return
    rules, *holds = users(server_kind)[user]
    outcomes = []
    for to, client in on_both(server, stock_server, rules):
        connection = log_in(raw(to))
        replies = [WAYS[way](connection, channel) for channel in ("news:1", "other")]
        outcomes.append((replies, log_of(client)))
    assert comparable(outcomes[0], server_kind) == comparable(outcomes[1], server_kind)
    client = server.client()
    kept = {channel for channel in ("news:1", "other") if held(client, channel)}
    expected = holds[way == "sharded"]
    if knows_clients(client):
        assert kept == expected
    else:  # there all users must be alike for anything to be held
        assert kept <= expected


@pytest.mark.parametrize("way", ["direct", "transaction", "script"])
@pytest.mark.parametrize("user", USERS | IN_CATEGORY)
def test_a_publish_that_is_heard_is_allowed_or_refused_as_on_a_stock_server(
    server_kind: ServerKind, stock_server: Server, server: Server, raw: MakeRaw, user: str, way: str
) -> None:
    if user not in users(server_kind):
        assert server_kind.version < (7, 2)
        return
    rules, *_ = users(server_kind)[user]
    outcomes = []
    for to, client in on_both(server, stock_server, rules):
        listener = raw(to)
        subscribe(listener, "news:1", "other")
        connection = log_in(raw(to))
        replies = [WAYS[way](connection, channel) for channel in ("news:1", "other")]
        outcomes.append((replies, messages(listener.pending())))
        assert client.dbsize() == 0
    assert comparable(outcomes[0], server_kind) == comparable(outcomes[1], server_kind)


@pytest.mark.parametrize("user", USERS | IN_CATEGORY)
def test_a_subscription_is_allowed_or_refused_as_on_a_stock_server(
    server_kind: ServerKind, stock_server: Server, server: Server, raw: MakeRaw, user: str
) -> None:
    if user not in users(server_kind):
        assert server_kind.version < (7, 2)
        return
    rules, *_ = users(server_kind)[user]
    outcomes = []
    for to, client in on_both(server, stock_server, rules):
        connection = log_in(raw(to))
        connection.send_all(
            ("SUBSCRIBE", "news:1"), ("SUBSCRIBE", "other"), ("PSUBSCRIBE", "news:*"), ("SSUBSCRIBE", "other")
        )
        outcomes.append(([plain(value) for value in connection.pending()], log_of(client)))
    assert outcomes[0] == outcomes[1]


# --- The module's own command -----------------------------------------------------------------------------------------


def refusal(replies: list[Any]) -> bool:
    """Whether the reply says that the user may not."""
    [reply] = replies
    return isinstance(reply, str) and reply.startswith("-NOPERM")


@pytest.mark.parametrize(
    ("rules", "allowed"),
    [
        (["~*", "&*", "+@all"], {"news:1", "other"}),
        (["~*", "&*", "+publish"], set()),
        (["~*", "&*", "+channel.publish", "+publish"], {"news:1", "other"}),
        (["~*", "&*", "+@all", "-channel.publish"], set()),
        (["~*", "resetchannels", "&news:*", "+@all"], {"news:1"}),
        (["~*", "resetchannels", "+@all"], set()),
        (["&*", "+@all"], {"news:1", "other"}),
    ],
    ids=range(7),
)
def test_channel_publish_needs_its_own_right_and_that_of_the_channel(
    client: redis.Redis, raw: MakeRaw, rules: list[str], allowed: set[str]
) -> None:
    define(client, *rules)
    connection = log_in(raw())
    for channel in ("news:1", "other"):
        assert refusal(answers(connection, ["CHANNEL.PUBLISH", channel, "m"])) == (channel not in allowed)
        kept = held(client, channel)
        assert kept == ([b"m"] if channel in allowed and "~*" in rules else [])


def test_anyone_who_may_not_publish_may_not_do_so_by_the_modules_command_either(
    client: redis.Redis, raw: MakeRaw
) -> None:
    define(client, "~*", "&*", "+@all", "-publish", "-spublish")
    connection = log_in(raw())
    assert refusal(answers(connection, ["CHANNEL.PUBLISH", "ch", "m"]))
    assert refusal(answers(connection, ["CHANNEL.SPUBLISH", "ch", "m"]))
    assert client.dbsize() == 0


@pytest.mark.parametrize(
    ("rules", "last", "policy"),
    [
        (["~*", "+@all"], True, True),
        (["%R~*", "+@all"], True, True),
        (["%W~*", "+@all"], False, True),
        (["~other", "+@all"], False, True),
        (["~*", "+channel.last"], True, False),
    ],
    ids=range(5),
)
def test_channel_last_needs_the_right_to_read_the_key(
    client: redis.Redis, raw: MakeRaw, rules: list[str], last: bool, policy: bool
) -> None:
    client.publish("ch", "m")
    define(client, *rules)
    connection = log_in(raw())
    assert refusal(answers(connection, ["CHANNEL.LAST", "ch"])) != last
    assert refusal(answers(connection, ["CHANNEL.POLICY", "ch"])) != policy


def test_the_category_of_reading_has_channel_last(server_kind: ServerKind, client: redis.Redis, raw: MakeRaw) -> None:
    client.publish("ch", "m")
    define(client, "~*", "&*", "+@read")
    allowed = answers(log_in(raw()), ["CHANNEL.LAST", "ch"]) == [b"m"]
    assert allowed == (server_kind.version >= (7, 2))


# --- What a subscriber may read ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["* deliver=last", "* deliver=held", "* last=on"])
@pytest.mark.parametrize(("command", "name"), [("SUBSCRIBE", "ch"), ("PSUBSCRIBE", "c*")])
def test_anyone_who_may_not_read_the_list_gets_nothing_of_it(
    client: redis.Redis, raw: MakeRaw, policy: str, command: str, name: str
) -> None:
    set_policies(client, policy)
    client.publish("ch", "secret")
    keys = client.keys("*")
    define(client, "~other", "&*", "+@all")
    came = subscribe(log_in(raw()), name, command=command)
    if knows_clients(client):
        assert came == []
        assert client.keys("*") == keys
        assert messages(subscribe(raw(), name, command=command)) == [b"secret"]
    else:  # whose subscription it is cannot be known there: as long as one user may not read, nobody is given it
        assert came == []
        client.execute_command("ACL", "DELUSER", "u")
        eventually(lambda: client.pubsub_numpat() == 0 and client.pubsub_numsub("ch") == [(b"ch", 0)])
        assert messages(subscribe(raw(), name, command=command)) == [b"secret"]


@pytest.mark.parametrize(("command", "name"), [("SUBSCRIBE", "news:1"), ("PSUBSCRIBE", "*")])
def test_anyone_who_may_read_some_lists_gets_those(client: redis.Redis, raw: MakeRaw, command: str, name: str) -> None:
    client.publish("news:1", "public")
    client.publish("other", "secret")
    define(client, "%R~news:*", "&*", "+@all")
    came = messages(subscribe(log_in(raw()), name, command=command))
    if knows_clients(client):
        assert came == [b"public"]
    else:
        assert came == []


def test_anyone_who_may_only_read_does_not_take_a_backlog_out(client: redis.Redis, raw: MakeRaw) -> None:
    set_policies(client, "* deliver=held")
    client.publish("ch", "held")
    define(client, "%R~*", "&*", "+@all")
    came = messages(subscribe(log_in(raw()), "ch"))
    assert held(client, "ch") == [b"held"]
    assert came in ([], [b"held"])


# --- Rights that change -----------------------------------------------------------------------------------------------


def publishes(connection: RawClient, client: redis.Redis, channel: str = "ch") -> bool:
    """Publish with nobody there; whether the message was held."""
    before = len(held(client, channel))
    assert answers(connection, ["PUBLISH", channel, "m"]) == [0]
    return len(held(client, channel)) > before


def test_rights_that_change_take_effect_with_the_next_publish(client: redis.Redis, raw: MakeRaw) -> None:
    define(client, "~*", "&*", "+@all")
    connection = log_in(raw())
    assert publishes(connection, client)
    client.execute_command("ACL", "SETUSER", "u", "resetkeys", "~other")
    assert not publishes(connection, client)
    assert publishes(connection, client, "other")
    client.execute_command("ACL", "SETUSER", "u", "~ch")
    assert publishes(connection, client)
    client.execute_command("ACL", "SETUSER", "u", "-channel.publish")
    assert not publishes(connection, client)
    client.execute_command("ACL", "SETUSER", "u", "+channel.publish", "-publish")
    assert refusal(answers(connection, ["PUBLISH", "ch", "m"]))
    client.execute_command("ACL", "SETUSER", "u", "+publish")
    assert publishes(connection, client)


@pytest.mark.parametrize("how", ["AUTH", "HELLO", "HELLO in MULTI", "AUTH in MULTI"])
def test_a_client_that_changes_its_user_has_the_rights_of_the_new_user(
    client: redis.Redis, raw: MakeRaw, how: str
) -> None:
    define(client, "~*", "&*", "+@all", name="mighty")
    define(client, "~other", "&*", "+@all", name="weak")
    connection = log_in(raw(protocol=3), "mighty")
    assert publishes(connection, client)
    change: list[Part] = ["AUTH", "weak", "any"] if "AUTH" in how else ["HELLO", "3", "AUTH", "weak", "any"]
    if "MULTI" in how:
        answers(connection, ["MULTI"], change, ["EXEC"])
    else:
        answers(connection, change)
    assert not publishes(connection, client)
    log_in(connection, "mighty")
    assert publishes(connection, client)


def test_a_client_that_sends_reset_has_the_rights_of_the_default_user(
    server: Server, client: redis.Redis, raw: MakeRaw
) -> None:
    define(client, "~*", "&*", "+@all", name="mighty")
    mighty = server.client(username="mighty", password="any")  # noqa: S106 (of a user that lives for this test)
    mighty.execute_command("ACL", "SETUSER", "default", "resetkeys", "~other")
    try:
        connection = log_in(raw(), "mighty")
        assert publishes(connection, mighty)
        assert connection.call("RESET") == Status("RESET")
        assert not publishes(connection, mighty)
        assert publishes(connection, mighty, "other")
    finally:
        mighty.execute_command("ACL", "SETUSER", "default", "~*")


@pytest.mark.parametrize("change", [["AUTH", "poor", "any"], ["HELLO", "3", "AUTH", "poor", "any"]])
def test_a_transaction_in_which_the_user_changes_goes_as_on_a_stock_server(
    stock_server: Server, server: Server, raw: MakeRaw, change: list[Part]
) -> None:
    outcomes = []
    for to in (server, stock_server):
        to.reset()
        client = to.client()
        define(client, "~*", "&*", "+@all", name="mighty")
        define(client, "~*", "&*", "+publish", "+exec", "+multi", name="poor")
        connection = log_in(raw(to), "mighty")
        replies = answers(connection, ["MULTI"], ["PUBLISH", "a", "m"], change, ["PUBLISH", "b", "m"], ["EXEC"])
        outcomes.append([reply if isinstance(reply, int) else str(reply)[:7] for reply in replies[-1]])
    assert outcomes[0][0::2] == outcomes[1][0::2] == [0, 0]


def test_many_clients_of_different_users_do_not_get_each_others_rights(client: redis.Redis, raw: MakeRaw) -> None:
    define(client, "~*", "&*", "+@all", name="mighty")
    define(client, "~none", "&*", "+@all", name="weak")
    connections = [(number % 2 == 0, log_in(raw(), "weak" if number % 2 else "mighty")) for number in range(40)]
    for _ in range(3):
        for may, connection in connections:
            assert publishes(connection, client) == may


def test_a_script_has_the_rights_of_its_caller(client: redis.Redis, raw: MakeRaw) -> None:
    define(client, "~*", "&*", "+@all", name="mighty")
    define(client, "~none", "&*", "+@all", name="weak")
    mighty, weak = log_in(raw(), "mighty"), log_in(raw(), "weak")
    run: list[Part] = ["EVAL", "return redis.call('PUBLISH', 'ch', 'm')", 0]
    for _ in range(3):
        assert answers(mighty, run) == answers(weak, run) == [0]
    # Where it cannot be known whose script it is, it is nobody's who may.
    assert len(held(client, "ch")) == (3 if knows_clients(client) else 0)
    client.function_load(LIBRARY)
    assert answers(mighty, ["FCALL", "tell", 0, "x"])[0].startswith("-")
    define(client, "~fn", "&*", "+@all", name="weak")
    assert answers(weak, ["FCALL", "tell", 1, "fn", "m"]) == [0]
    assert client.execute_command("CHANNEL.LEN", "fn") == (1 if knows_clients(client) else 0)


def test_a_transaction_of_one_client_between_others_keeps_its_own_rights(client: redis.Redis, raw: MakeRaw) -> None:
    define(client, "~*", "&*", "+@all", name="mighty")
    define(client, "~none", "&*", "+@all", name="weak")
    mighty, weak = log_in(raw(), "mighty"), log_in(raw(), "weak")
    script: list[Part] = ["EVAL", "return redis.call('PUBLISH', 'script', 'm')", 0]
    answers(weak, ["MULTI"], ["PUBLISH", "ch", "m"], script)
    assert answers(mighty, script, ["PUBLISH", "ch", "m"]) == [0, 0]
    assert answers(weak, ["EXEC"]) == [[0, 0]]
    assert len(held(client, "ch")) == 1
    assert len(held(client, "script")) == (1 if knows_clients(client) else 0)


def test_what_was_not_held_for_lack_of_rights_is_counted(client: redis.Redis, raw: MakeRaw) -> None:
    define(client, "~none", "&*", "+@all")
    before = information(client)["channel_not_held_denied"]
    assert answers(log_in(raw()), ["PUBLISH", "ch", "m"]) == [0]
    assert information(client)["channel_not_held_denied"] == before + 1


def test_a_publisher_without_keys_cannot_push_into_somebody_elses_list(client: redis.Redis, raw: MakeRaw) -> None:
    client.rpush("celery", "a job")
    define(client, "&*", "+@all")
    assert answers(log_in(raw()), ["PUBLISH", "celery", "an intruder"]) == [0]
    assert client.lrange("celery", 0, -1) == [b"a job"]
    assert client.execute_command("CHANNEL.LEN", "celery") == 0


def test_the_right_to_write_a_key_named_like_the_channel_is_that_to_both_of_its_lists(
    client: redis.Redis, raw: MakeRaw
) -> None:
    set_policies(client, "* last=on")
    define(client, "~ch", "&*", "+@all")
    assert answers(log_in(raw()), ["PUBLISH", "ch", "m"], ["PUBLISH", "other", "m"]) == [0, 0]
    assert held(client, "ch") == kept_last(client, "ch") == [b"m"]
    assert client.keys("*other*") == []


SLOW_SCRIPT = (
    "local begun = redis.call('TIME') repeat local now = redis.call('TIME') "
    "until now[1] - begun[1] >= 2 redis.call('PUBLISH', 'ch', 'm') return 'done'"
)


def test_a_script_keeps_its_callers_rights_though_others_ask_for_scripts_meanwhile(
    client: redis.Redis, raw: MakeRaw
) -> None:
    define(client, "~*", "&*", "+@all", name="mighty")
    define(client, "~none", "&*", "+@all", name="weak")
    client.config_set("lua-time-limit", 1)
    mighty, weak = log_in(raw(), "mighty"), log_in(raw(), "weak")
    weak.send("EVAL", SLOW_SCRIPT, 0)

    def busy() -> bool:
        [reply] = answers(mighty, ["EVAL", "return redis.call('PUBLISH', 'other', 'm')", 0])
        return isinstance(reply, str) and reply.startswith("-BUSY")

    eventually(busy)
    assert weak.read() == b"done"
    assert client.execute_command("CHANNEL.LEN", "ch") == 0  # the weak one may not write it


def test_scripts_that_were_paused_have_the_rights_of_their_own_callers(client: redis.Redis, raw: MakeRaw) -> None:
    define(client, "~*", "&*", "+@all", name="mighty")
    define(client, "~none", "&*", "+@all", name="weak")
    mighty, weak = log_in(raw(), "mighty"), log_in(raw(), "weak")
    client.execute_command("CLIENT", "PAUSE", 500, "WRITE")
    weak.send("EVAL", "return redis.call('PUBLISH', 'weak', 'm')", 0)
    mighty.send("EVAL", "return redis.call('PUBLISH', 'mighty', 'm')", 0)
    assert weak.read() == mighty.read() == 0
    assert client.execute_command("CHANNEL.LEN", "weak") == 0
    assert client.execute_command("CHANNEL.LEN", "mighty") == (1 if knows_clients(client) else 0)


def test_an_unauthenticated_publish_is_not_held(fresh_server: MakeServer) -> None:
    server = fresh_server()
    with RawClient(server.port) as admin:
        admin.call("CONFIG", "SET", "requirepass", "secret")
        with RawClient(server.port) as stranger:
            for _ in range(3):
                assert answers(stranger, ["PUBLISH", "ch", "m"])[0].startswith("-NOAUTH")
        assert answers(admin, ["AUTH", "secret"], ["CHANNEL.LEN", "ch"], ["DBSIZE"])[1:] == [0, 0]
        admin.call("CONFIG", "SET", "requirepass", "")
