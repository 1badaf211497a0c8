"""Which topics, sessions and stores a user may use, by its channel patterns, key patterns and commands.

`ROWS` has a row for every command that the module registers; a command without one fails the test.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis

from holdmq import core
from tests.module.channels_support import answers, knows_clients
from tests.module.history_support import append, replay_all, store
from tests.module.sessions_support import (
    Session,
    assert_same_keys,
    names,
    publish,
    retained_topics,
    snapshot,
    unchanged,
    wait_for_replica,
)
from tests.support import RawClient, Server, ServerKind, Status
from tests.support.pages import blocks
from tests.support.raw import encoded

MakeRaw = Callable[..., RawClient]
Word = str | bytes | int
Command = tuple[Word, ...]

DOCS = Path(__file__).parents[3] / "docs" / "access.md"
GUEST = ("~mine:*", "resetchannels", "+@all")


def define(client: redis.Redis, *rules: str, name: str = "u") -> None:
    """Make or replace a user."""
    client.execute_command("ACL", "SETUSER", name, "reset", "on", "nopass", *rules)


@pytest.fixture
def as_user(client: redis.Redis, raw: MakeRaw) -> Callable[..., RawClient]:
    """Makes connections of a user with these rules."""

    def make(*rules: str, name: str = "u") -> RawClient:
        define(client, *rules, name=name)
        connection = raw()
        assert connection.call("AUTH", name, "any") == Status("OK")
        return connection

    return make


def refused(reply: Any) -> bool:
    """Whether the reply, or one in it, says that the user may not; before 7.2 a script says it in words of its own."""
    if isinstance(reply, list):
        return any(refused(part) for part in reply)
    return isinstance(reply, str) and reply.startswith(
        ("-NOPERM", "-ERR ACL failure in script", "-ERR The user executing")
    )


# --- A guest with keys of its own and no channels ---------------------------------------------------------------------


def test_a_guest_reads_no_retained_messages_and_no_history(
    client: redis.Redis, as_user: Callable[..., RawClient]
) -> None:
    store(client, "s", "t/#")
    publish(client, "t/a", "secret", qos=1, retain=True)
    guest = as_user(*GUEST)
    for command in (
        ["TOPIC.RETAINED", "#"],
        ["TOPIC.RETAINED", "t/a", "VALUES"],
        ["HISTORY.REPLAY", "t/#"],
        ["HISTORY.REPLAY", "t/a", "STORE", "s"],
    ):
        [reply] = answers(guest, command)
        assert refused(reply), command


def test_a_guest_writes_to_no_queue_of_others(client: redis.Redis, as_user: Callable[..., RawClient]) -> None:
    other = Session(client, "{other}")
    other.subscribe(("#", 1))
    guest = as_user(*GUEST)
    message = core.Record(topic=b"t", payload=b"m", qos=1).encode()
    with unchanged(client):
        assert refused(answers(guest, ["TOPIC.PUBLISH", "t", "m", "QOS", 1])[0])
        assert refused(answers(guest, ["TOPIC.MPUBLISH", "RECORD", message])[0])
        assert refused(answers(guest, ["TOPIC.PIPELINE", encoded("TOPIC.PUBLISH", "t", "m", "QOS", 1)])[0])
        assert refused(answers(guest, ["SESSION.ADD", "{other}", "m"])[0])
    assert other.fetch_all() == []


def test_a_guest_subscribes_its_session_to_nothing(client: redis.Redis, as_user: Callable[..., RawClient]) -> None:
    guest = as_user(*GUEST)
    assert not refused(answers(guest, ["SESSION.OPEN", "mine:{g}", "OWNER", "o"])[0])
    with unchanged(client):
        for topic_filter in ("#", "t/a", "$share/group/t/#", "$share/group/t/a"):
            assert refused(answers(guest, ["SESSION.SUBSCRIBE", "mine:{g}", topic_filter, 1])[0]), topic_filter


def test_a_guest_removes_no_store(client: redis.Redis, as_user: Callable[..., RawClient]) -> None:
    store(client, "s", "t/#")
    append(client, "s", "t/a", "m")
    guest = as_user(*GUEST)
    with unchanged(client):
        assert refused(answers(guest, ["HISTORY.UNSTORE", "s"])[0])
        assert refused(answers(guest, ["HISTORY.STORE", "s", "FILTER", "x"])[0])
        assert refused(answers(guest, ["HISTORY.STORE", "new", "FILTER", "x"])[0])
    assert len(replay_all(client, "t/#")) == 1
    assert names(client, "*new*") == []
    assert retained_topics(client) == []


# --- The matrix -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """A command and what it needs beside the right to run it.

    Attributes:
        keys: to read ("r"), to write ("w") keys that are not those of the guest.
        topics: "topic" (`t/*` matches it), "filter" (`t/#`), or "other".
        here: judged by the module.  Before 7.2 it does not know whose script runs: only users without limits may.
        category: the command is dangerous by its category alone, which a server before 7.2 does not know.
    """

    words: Command
    keys: str = ""
    topics: str = ""
    dangerous: bool = False
    here: bool = False
    category: bool = False

    def __str__(self) -> str:
        return " ".join(str(word) if not isinstance(word, bytes) else "." for word in self.words[:9])


RECORD = core.Record(topic=b"t/a", payload=b"m", qos=1).encode()
PACKED = encoded("TOPIC.PUBLISH", "t/a", "m", "QOS", 1)
PACKED_AS_SESSION = encoded("TOPIC.PUBLISH", "t/a", "m", "FROM", "c", "EPOCH", 1)
TEXT = b"#"
NODE = "0" * 40

ROWS = (
    Row(("CHANNEL.PUBLISH", "t/a", "m"), topics="topic"),
    Row(("CHANNEL.SPUBLISH", "t/a", "m"), topics="topic"),
    Row(("HOLDMQ.SPUBLISH", "t/a", "m"), topics="topic"),
    Row(("CHANNEL.LAST", "t/a"), "r"),
    Row(("CHANNEL.RANGE", "t/a", 0, -1), "r"),
    Row(("CHANNEL.LEN", "t/a"), "r"),
    Row(("CHANNEL.KEY", "t/a")),
    Row(("CHANNEL.POLICY", "t/a")),
    Row(("CHANNEL.DRYRUN", "START", "SECONDS", 60), dangerous=True),
    Row(("CHANNEL.DRYRUN", "REPORT"), dangerous=True),
    Row(("CHANNEL.DRYRUN", "STOP"), dangerous=True),
    Row(("SESSION.ADD", "{c}", "m"), "rw"),
    Row(("SESSION.IMPORT", "{c}", "MERGE", "MESSAGES", 1, 0, 0, 0, 0, "m"), "rw"),
    Row(("SESSION.FETCH", "{c}"), "rw"),
    Row(("SESSION.ACK", "{c}", 1), "rw"),
    Row(("SESSION.RELEASE", "{c}", 1), "rw"),
    Row(("SESSION.RECEIVE", "{c}", 1), "rw"),
    Row(("SESSION.COMPLETE", "{c}", 1), "rw"),
    Row(("SESSION.SENT", "{c}", 1), "rw"),
    Row(("SESSION.LAST", "{c}"), "r"),
    Row(("SESSION.INFO", "{c}"), "r"),
    Row(("SESSION.DROP", "{c}"), "rw"),
    Row(("SESSION.OPEN", "{c}", "OWNER", "o"), "rw"),
    Row(("SESSION.OPEN", "{c}", "OWNER", "o", "WILL", "t/a", "m"), "rw", "topic"),
    Row(("SESSION.LIST",), dangerous=True),
    Row(("SESSION.OWNER", "o", "LEASE", 10), "w"),
    Row(("SESSION.TOUCH", "{c}", "EPOCH", 1), "rw"),
    Row(("SESSION.CLOSE", "{c}", "EPOCH", 1), "rw"),
    Row(("SESSION.SUBSCRIBE", "{c}", "t/a", 1), "rw", "topic"),
    Row(("SESSION.SUBSCRIBE", "{c}", "EPOCH", 0, "t/a", 1, "t/#", 1), "rw", "filter"),
    Row(("SESSION.SUBSCRIBE", "{c}", "ROUTES", "t/a", 1, "t/#", 1), "rw", "filter"),
    Row(("SESSION.SUBSCRIBE", "{c}", "ROUTES", "$share/g/t/a", 1), "rw", "topic", here=True),
    Row(("SESSION.SUBSCRIBE", "{c}", "$share/g/t/a", 1), "rw", "topic", here=True),
    Row(("SESSION.SUBSCRIBE", "{c}", "EPOCH", 0, "t/a", 1, "$share/g/t/#", 1), "rw", "filter", here=True),
    Row(("SESSION.UNSUBSCRIBE", "{c}", "t/a"), "rw"),
    Row(("SESSION.SUBSCRIPTIONS", "{c}"), "r"),
    Row(("SESSION.DELIVER", "{c}", RECORD), "rw"),
    Row(("SESSION.REPLAY", "{c}"), "rw", "filter", here=True),
    Row(("TOPIC.PUBLISH", "t/a", "m", "FROM", "c"), topics="topic"),
    Row(("TOPIC.PUBLISH", "t/a", "m", "RETAIN"), topics="topic"),
    Row(("TOPIC.PUBLISH", "t/a", "m", "FROM", "c", "EPOCH", 1), "rw", "topic", here=True),
    Row(
        ("TOPIC.PUBLISH", "t/a", "m", "SLOTS", 1, 1, 1, "HOME", NODE, 1, "FROM", "c", "EPOCH", 1),
        "rw",
        "topic",
        here=True,
    ),
    Row(("TOPIC.PUBLISH", "t/a", "m", "QOS", 2, "FROM", "c", "PACKET", 7), "rw", "topic", here=True),
    Row(("TOPIC.PUBLISH", "t/a", "m", "PRODUCER", "job", 1, 1), "rw", "topic", here=True),
    Row(("TOPIC.PIPELINE", PACKED), topics="topic", here=True),
    Row(("TOPIC.PIPELINE", PACKED_AS_SESSION), "rw", "topic", here=True),
    Row(("TOPIC.MPUBLISH", "RECORD", RECORD), topics="topic", here=True),
    Row(("TOPIC.MPUBLISH", "PRODUCER", "job", 1, 0, "RECORD", 1, RECORD), "rw", "topic", here=True),
    Row(("TOPIC.COMMIT", "job", 1, 1, "SLOTS", 1, 0, 16383), "rw", here=True),
    Row(("TOPIC.RETAINED", "t/a"), topics="topic"),
    Row(("TOPIC.RETAINED", "t/#"), topics="filter"),
    Row(("TOPIC.MATCH", "t/a"), dangerous=True),
    Row(("TOPIC.GROUPS",), dangerous=True),
    Row(("CHANNEL.LIST",), dangerous=True),
    Row(("HISTORY.STORE", "s", "FILTER", "t/#"), "rw", "filter", dangerous=True, here=True),
    Row(("HISTORY.STORE", "s", "FILTER", "t/a"), "rw", "filter", dangerous=True, here=True),
    Row(("HISTORY.STORE", "new", "SHARDS", 2, "FILTER", "t2"), "rw", "other", dangerous=True, here=True),
    Row(("HISTORY.STORES",), dangerous=True),
    Row(("HISTORY.UNSTORE", "s"), "rw", "filter", dangerous=True, here=True),
    Row(("HISTORY.TRIM", "s", 0, 1), "rw", "filter", dangerous=True, here=True),
    Row(("HISTORY.HOLD", "s", "r"), "w", "filter", dangerous=True, here=True),
    Row(("HISTORY.APPEND", "s", "t/a", "m"), topics="topic"),
    Row(("HISTORY.IMPORT", "s", 0, "RECORD", RECORD), "w", "topic", here=True),
    Row(("HISTORY.REPLAY", "t/a"), topics="topic"),
    Row(("HISTORY.REPLAY", "t/#", "STORE", "s"), topics="filter"),
    Row(("HISTORY.INFO", "s"), "r", "filter", here=True),
    Row(("HISTORY.SEQ", "s", 0, 0), "r", "filter", here=True),
    Row(("HISTORY.RANGE", "s", 0, 1, 9), "r", "filter", here=True),
    Row(("HISTORY.RANGE", "s", 0, 1, 9, "FILTER", "t/a"), "r", "topic"),
    Row(("HISTORY.RANGE", "s", 0, 1, 9, "COUNT", 5, "FILTER", "t/+"), "r", "other"),
    Row(("HISTORY.CHECK", "s", 0), "r", "filter", dangerous=True, here=True),
    Row(("HISTORY.PATTERNS", "GET", "s"), "r", "filter", dangerous=True, here=True),
    Row(("HISTORY.PATTERNS", "STATS", "s"), "r", "filter", dangerous=True, here=True),
    Row(("HISTORY.PATTERNS", "PROPOSE", "s"), "r", "filter", dangerous=True, here=True),
    Row(("HISTORY.PATTERNS", "PREPARE", "s", 2, TEXT), "rw", "filter", dangerous=True, here=True),
    Row(("HISTORY.PATTERNS", "COMMIT", "s", 2), "rw", "filter", dangerous=True, here=True),
    Row(("HISTORY.PATTERNS", "ABORT", "s"), "rw", "filter", dangerous=True, here=True),
    Row(("ROUTE.CHECK", "{c}", "t/a"), "rw", "topic"),
    Row(("ROUTE.MCHECK", NODE, 1, "{c}", "t/a", 0, -1), "rw", "topic", here=True),
    Row(("ROUTE.INFO",), dangerous=True),
    Row(("ROUTE.ADD", "t/a", 1), dangerous=True),
    Row(("ROUTE.EXPORT", NODE, 1), dangerous=True),
    Row(("ROUTE.FEED", NODE, 1, "0", "0"), dangerous=True),
    Row(("ROUTE.CONFIRM", "t/a", 1, 1, NODE, 1), dangerous=True),
    Row(("ROUTE.TOKEN", "t/a", 1), dangerous=True),
    Row(("ROUTE.UNUSED", "t/a", 1), dangerous=True),
    Row(("ROUTE.DEL", "t/a", 1, 1, 1), dangerous=True),
    Row(("ROUTE.DROPHOME", NODE, 1), dangerous=True),
    Row(("ROUTE.RENEW", 1), dangerous=True),
    Row(("ROUTE.RESUME", 1)),
    Row(("OUTBOX.READ",), dangerous=True),
    Row(("OUTBOX.ACK", 1, 1), dangerous=True),
    Row(("HOLDMQ.INTERNAL", "x"), "rw", dangerous=True, category=True),
    Row(("HOLDMQ.READ", "t/a", "LLEN"), "r"),
    Row(("HOLDMQ.CHECK",), "r", dangerous=True, here=True),
)

CONTAINERS = {"CHANNEL.DRYRUN", "HISTORY.PATTERNS"}

# Rules of each user; the keys that it may use beside its own, the topics, and whether it may run dangerous commands.
ALL_TOPICS = frozenset({"", "topic", "filter", "other"})
USERS: dict[str, tuple[tuple[str, ...], str, frozenset[str], bool]] = {
    "everything": (("~*", "&*", "+@all"), "rw", ALL_TOPICS, True),
    "guest": (GUEST, "", frozenset({""}), True),
    "no channels": (("~*", "resetchannels", "+@all"), "rw", frozenset({""}), True),
    "topics": (("~*", "&t/*", "+@all"), "rw", frozenset({"", "topic"}), True),
    "topics and their filter": (("~*", "&t/*", "&t/#", "+@all"), "rw", ALL_TOPICS - {"other"}, True),
    "keys to read": (("%R~*", "&*", "+@all"), "r", ALL_TOPICS, True),
    "keys to write": (("%W~*", "&*", "+@all"), "w", ALL_TOPICS, True),
    "not dangerous": (("~*", "&*", "+@all", "-@dangerous"), "rw", ALL_TOPICS, False),
    "a selector": (("~mine:*", "-@all", "(~* &t/* &t/# +@all)"), "rw", ALL_TOPICS - {"other"}, True),
    "no commands": (("~*", "&*", "-@all", "+eval", "+fcall", "+multi", "+exec"), "", frozenset(), False),
}
LIBRARY = "#!lua name=any\nredis.register_function('any', function(keys, args) return redis.pcall(unpack(args)) end)\n"


def in_transaction(connection: RawClient, words: Command) -> Any:
    """In MULTI: what was replied when it was queued, and when it ran."""
    _, queued, ran = answers(connection, ["MULTI"], words, ["EXEC"])
    return [queued, ran]


WAYS: dict[str, Callable[[RawClient, Command], Any]] = {
    "direct": lambda connection, words: answers(connection, words)[0],
    "transaction": in_transaction,
    "script": lambda connection, words: answers(connection, ["EVAL", "return redis.pcall(unpack(ARGV))", 0, *words])[0],
    "function": lambda connection, words: answers(connection, ["FCALL", "any", 0, *words])[0],
}


def fill(client: redis.Redis) -> None:
    """A session with a message and a replay, a store, a retained message."""
    client.flushall()
    session = Session(client, "{c}")
    session.open(expiry=100)
    session.add("m")
    store(client, "s", "t/#")
    publish(client, "t/a", "m", retain=True)
    session.subscribe(("t/#", "1@earliest"))


def may(row: Row, user: str, way: str, *, categories: bool, knows_scripts: bool) -> bool:
    """What the row and the user's rules say together."""
    _, keys, topics, dangerous = USERS[user]
    if user == "no commands" or not set(row.keys) <= set(keys) or row.topics not in topics:
        return False
    if row.dangerous and not dangerous and (categories or not row.category):
        return False
    judged_here = row.here or (row.dangerous and not row.category and not categories)
    unknown = way in ("script", "function") and not knows_scripts
    denied = user not in ("everything", "not dangerous")
    return not (judged_here and unknown and denied)


def test_every_command_has_a_row(server: Server, raw: MakeRaw) -> None:
    connection: Any = raw(server)
    commands: set[str] = set()
    for name in connection.call("COMMAND", "LIST", "FILTERBY", "MODULE", "holdmq"):
        [[*_, subcommands]] = connection.call("COMMAND", "INFO", name)
        commands |= {sub[0].decode() for sub in subcommands} or {name.decode()}
    rows = {str(row.words[0]).lower() for row in ROWS} - {container.lower() for container in CONTAINERS}
    rows |= {f"{row.words[0]!s}|{row.words[1]!s}".lower() for row in ROWS if row.words[0] in CONTAINERS}
    assert rows == {name.lower() for name in commands}


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_a_user_runs_what_its_rules_allow_and_else_changes_nothing(
    server_kind: ServerKind, client: redis.Redis, raw: MakeRaw, as_user: Callable[..., RawClient], row: Row
) -> None:
    fill(client)
    client.function_load(LIBRARY, replace=True)
    facts = {"categories": server_kind.version >= (7, 2), "knows_scripts": knows_clients(client)}
    for user, (rules, *_) in USERS.items():
        connection = as_user(*rules)
        for way, run in WAYS.items():
            if may(row, user, way, **facts):
                reply = run(connection, row.words)
                assert not refused(reply), (user, way, reply)
                fill(client)
            else:
                with unchanged(client):
                    reply = run(connection, row.words)
                assert refused(reply), (user, way, reply)
    client.acl_deluser("u")
    for way, run in WAYS.items():
        fill(client)
        reply = run(raw(), row.words)
        assert not refused(reply), ("default", way, reply)


# --- What channel patterns say about topics and filters ---------------------------------------------------------------


def test_a_guest_has_its_own_sessions_and_lists_no_others(
    client: redis.Redis, as_user: Callable[..., RawClient]
) -> None:
    Session(client, "{other}").open()
    guest = as_user("~mine:*", "&mine/*", "&mine/#", "+@all")
    epoch = answers(guest, ["SESSION.OPEN", "mine:{g}", "OWNER", "o"])[0][0]
    assert answers(guest, ["SESSION.SUBSCRIBE", "mine:{g}", "EPOCH", epoch, "mine/#", 1]) == [[1]]
    assert answers(guest, ["TOPIC.PUBLISH", "mine/a", "m", "QOS", 1]) == [1]
    [[[serial, packet_id, state, _]], *_] = answers(guest, ["SESSION.FETCH", "mine:{g}", "EPOCH", epoch])[0]
    assert (serial, packet_id, state) == (1, 1, 0)
    assert answers(guest, ["SESSION.ACK", "mine:{g}", "EPOCH", epoch, 1]) == [1]
    [[cursor, sessions]] = answers(guest, ["SESSION.LIST"])
    assert (cursor, [session[4] for session in sessions]) == (b"0", [b"mine:{g}"])
    assert len(client.execute_command("SESSION.LIST")[1]) == 2


def test_only_stores_whose_filters_a_user_may_read_are_listed(
    client: redis.Redis, as_user: Callable[..., RawClient]
) -> None:
    store(client, "a", "a/#", "b/c")
    store(client, "x", "x/#")
    for channels, shown in ((["&a/*", "&a/#", "&b/*"], [b"a"]), (["&a/*", "&b/*"], []), (["&*"], [b"a", b"x"])):
        [stores] = answers(as_user("~*", *channels, "+@all"), ["HISTORY.STORES"])
        assert [one[1] for one in stores] == shown, channels


@pytest.mark.parametrize(
    ("channels", "topic_filter", "allowed"),
    [
        (["&t/*"], "t/a", True),
        (["&t/*"], "t/a/b", True),
        (["&t/*"], "t", False),
        (["&t/*"], "t/+", False),
        (["&t/*"], "t/#", False),
        (["&t/*"], "t/*", True),
        (["&t/+"], "t/+", True),
        (["&t/+"], "t/+/a", False),
        (["&t/#"], "t/#", True),
        (["&t/#"], "t/a", False),
        (["&*"], "#", True),
        (["&**"], "#", False),
        (["&#"], "#", True),
        (["&t/#"], "$share/g/t/#", True),
        (["&t/*"], "$share/g/t/#", False),
        (["&t/*"], "$share/g/t/a", True),
        (["&$share/g/t/#"], "$share/g/t/#", False),
        (["&$SYS/*"], "$SYS/x", True),
    ],
)
def test_a_filter_with_wildcards_needs_a_pattern_that_is_equal_to_it(
    client: redis.Redis, as_user: Callable[..., RawClient], channels: list[str], topic_filter: str, *, allowed: bool
) -> None:
    connection = as_user("~*", "resetchannels", *channels, "+@all")
    [reply] = answers(connection, ["SESSION.SUBSCRIBE", "{c}", topic_filter, 1])
    assert refused(reply) != allowed
    assert Session(client, "{c}").subscriptions() == ({topic_filter.encode(): 1} if allowed else {})


def test_a_refusal_names_what_is_missing_and_is_in_the_acl_log(
    client: redis.Redis, as_user: Callable[..., RawClient]
) -> None:
    store(client, "s", "t/#")
    user = as_user("~*", "resetchannels", "&t/*", "+@all")
    client.acl_log_reset()
    assert answers(user, ["HISTORY.INFO", "s"]) == [
        "-NOPERM User 'u' has no permissions to access the topic filter 't/#'; expected a channel pattern equal to it"
    ]
    foreign = core.Record(topic=b"x", payload=b"m").encode()
    assert answers(user, ["TOPIC.MPUBLISH", "RECORD", foreign]) == [
        "-NOPERM User 'u' has no permissions to access the topic 'x'; expected a channel pattern that matches it"
    ]
    client.execute_command("ACL", "SETUSER", "u", "resetkeys", "~other")
    assert answers(user, ["TOPIC.PUBLISH", "t/a", "m", "FROM", "c", "EPOCH", 1]) == [
        "-NOPERM User 'u' has no permissions to access the key '{c}'"
    ]
    assert refused(answers(user, ["TOPIC.PUBLISH", "x", "m"])[0])
    logged = [(entry["reason"], entry["object"], entry["username"]) for entry in client.acl_log()]
    assert logged == [
        ("channel", "x", "u"),
        ("key", "{c}", "u"),
        ("channel", "x", "u"),
        ("channel", "t/#", "u"),
    ]


def test_the_server_refuses_a_topic_before_a_transaction_runs(
    client: redis.Redis, as_user: Callable[..., RawClient]
) -> None:
    user = as_user("~*", "resetchannels", "&t/*", "+@all")
    with unchanged(client):
        _, added, published, ran = answers(
            user, ["MULTI"], ["SESSION.ADD", "{c}", "m"], ["TOPIC.PUBLISH", "x", "m"], ["EXEC"]
        )
    assert (added, refused(published), ran[:10]) == ("QUEUED", True, "-EXECABORT")
    assert client.execute_command("ACL", "DRYRUN", "u", "TOPIC.PUBLISH", "t/a", "m") == b"OK"
    assert client.execute_command("ACL", "DRYRUN", "u", "TOPIC.PUBLISH", "x", "m") != b"OK"
    assert client.execute_command("ACL", "DRYRUN", "u", "SESSION.OPEN", "{c}", "OWNER", "o", "will", "x", "m") != b"OK"


@pytest.mark.parametrize("way", ["EVAL", "EVALSHA", "FCALL", "EVAL_RO", "EVALSHA_RO", "FCALL_RO"])
def test_a_script_of_any_kind_has_the_rights_of_its_caller(
    client: redis.Redis, as_user: Callable[..., RawClient], way: str
) -> None:
    """What the module judges itself, of a connection that has run no other script."""
    client.execute_command("HISTORY.STORE", "own", "FILTER", "t/a")
    client.execute_command("HISTORY.STORE", "other", "FILTER", "x/a")
    body = "return redis.pcall('HISTORY.INFO', ARGV[1])"
    library = "#!lua name=reader\nredis.register_function{function_name='read', flags={'no-writes'}, "
    library += f"callback=function(KEYS, ARGV) {body} end}}"
    script = {"EVAL": body, "EVALSHA": client.script_load(body), "FCALL": "read"}[way.removesuffix("_RO")]
    client.function_load(library)
    try:
        user = as_user("~*", "resetchannels", "&t/*", "+@all")
        own, other = answers(user, [way, script, 0, "own"], [way, script, 0, "other"])
    finally:
        client.function_delete("reader")
    assert not refused(own) or not knows_clients(client)
    assert refused(other)


def test_each_publish_of_a_pipeline_is_checked_alone(client: redis.Redis, as_user: Callable[..., RawClient]) -> None:
    session = Session(client, "{c}")
    session.subscribe(("#", 1))
    user = as_user("~*", "resetchannels", "&t/*", "+@all")
    packed = b"".join(encoded("TOPIC.PUBLISH", topic, "m", "QOS", 1) for topic in ("t/a", "x", "t/b"))
    [first, second, third] = answers(user, ["TOPIC.PIPELINE", packed])[0]
    assert (first, refused(second), third) == (1, True, 1)
    assert len(session.fetch_all()) == 2


def test_of_many_records_one_that_is_refused_refuses_all(
    client: redis.Redis, as_user: Callable[..., RawClient]
) -> None:
    store(client, "s", "#")
    user = as_user("~*", "resetchannels", "&t/*", "+@all")
    records = [core.Record(topic=topic, payload=b"m").encode() for topic in (b"t/a", b"x")]
    with unchanged(client):
        assert refused(answers(user, ["TOPIC.MPUBLISH", "RECORD", *records])[0])
        assert refused(answers(user, ["HISTORY.IMPORT", "s", 0, "RECORD", *records])[0])


def test_a_store_is_redefined_only_by_who_may_read_what_it_keeps(
    client: redis.Redis, as_user: Callable[..., RawClient]
) -> None:
    store(client, "s", "secret/#")
    user = as_user("~*", "resetchannels", "&mine/#", "+@all")
    with unchanged(client):
        assert refused(answers(user, ["HISTORY.STORE", "s", "FILTER", "mine/#"])[0])
    assert answers(user, ["HISTORY.STORE", "new", "FILTER", "mine/#"]) == ["OK"]


def test_a_replay_that_another_user_began_is_not_read_on_without_the_right(
    client: redis.Redis, as_user: Callable[..., RawClient]
) -> None:
    store(client, "s", "secret/#")
    append(client, "s", "secret/a", "m")
    Session(client, "mine:{g}").subscribe(("secret/#", "1@earliest"))
    guest = as_user(*GUEST)
    with unchanged(client):
        assert refused(answers(guest, ["SESSION.REPLAY", "mine:{g}"])[0])
    client.execute_command("ACL", "SETUSER", "u", "&secret/#")
    assert answers(guest, ["SESSION.REPLAY", "mine:{g}"])[0][0] == 1


# --- Rights that change -----------------------------------------------------------------------------------------------


def test_rights_that_change_take_effect_with_the_next_command(
    client: redis.Redis, as_user: Callable[..., RawClient]
) -> None:
    user = as_user("~*", "&*", "+@all")
    publishes: list[Word] = ["TOPIC.MPUBLISH", "RECORD", RECORD]
    assert answers(user, publishes) == [[1, 0, 0]]
    client.execute_command("ACL", "SETUSER", "u", "resetchannels")
    assert refused(answers(user, publishes)[0])
    client.execute_command("ACL", "SETUSER", "u", "&t/*")
    assert answers(user, publishes) == [[1, 0, 0]]
    define(client, "~*", "resetchannels", "+@all", name="weak")
    [_, *_, ran] = answers(user, ["MULTI"], publishes, ["AUTH", "weak", "any"], publishes, ["EXEC"])
    assert [refused(reply) for reply in ran] == [False, False, True]
    assert refused(answers(user, publishes)[0])
    assert answers(user, ["AUTH", "u", "any"], publishes) == ["OK", [1, 0, 0]]


def test_the_rights_that_a_transaction_takes_are_gone_within_it(as_user: Callable[..., RawClient]) -> None:
    user = as_user("~*", "&*", "+@all")
    publishes: list[Word] = ["TOPIC.MPUBLISH", "RECORD", RECORD]
    [*_, ran] = answers(user, ["MULTI"], publishes, ["ACL", "SETUSER", "u", "resetchannels"], publishes, ["EXEC"])
    assert [refused(reply) for reply in ran] == [False, False, True]
    assert refused(answers(user, publishes)[0])


def test_replicas_and_files_are_written_by_what_a_restricted_user_did(
    fresh_server: Callable[..., Server], raw: MakeRaw
) -> None:
    server = fresh_server(aof=True)
    replica = fresh_server(replica_of=server)
    for each in (server, replica):
        define(each.client(), "~mine:*", "resetchannels", "&t/*", "+@all")
    connection = raw(server)
    connection.call("AUTH", "u", "any")
    connection.call("SESSION.OPEN", "mine:{g}", "OWNER", "o", "EXPIRY", 100)
    connection.call("SESSION.SUBSCRIBE", "mine:{g}", "t/a", 1)
    connection.call("TOPIC.PIPELINE", PACKED)
    connection.call("TOPIC.MPUBLISH", "RECORD", RECORD)
    wait_for_replica(server.client(), replica.client())
    want = snapshot(server.client())
    assert_same_keys(snapshot(replica.client()), want)
    server.kill()
    server.restart()
    assert_same_keys(snapshot(server.client()), want)
    assert len(Session(server.client(), "mine:{g}").fetch_all()) == 2


# --- The users of the docs --------------------------------------------------------------------------------------------


def documented_users() -> dict[str, list[str]]:
    """The commands of the page that make users, by the users' names."""
    commands = [line.split() for block in blocks("docs/access.md", "redis") for line in block.text.splitlines()]
    return {words[2]: words for words in commands}


@pytest.fixture
def as_documented(client: redis.Redis, raw: MakeRaw) -> Callable[[str], RawClient]:
    """Makes connections of the users that docs/access.md defines."""

    def make(name: str) -> RawClient:
        words = documented_users()[name]
        client.execute_command(*words)
        connection = raw()
        assert connection.call("AUTH", name, words[4].removeprefix(">")) == Status("OK")
        return connection

    return make


def test_the_documented_publisher_publishes_and_reads_nothing(
    client: redis.Redis, as_documented: Callable[[str], RawClient]
) -> None:
    Session(client, "{app-1}").subscribe(("#", 1))
    publisher = as_documented("publisher")
    record = core.Record(topic=b"plant1/a", payload=b"m", qos=1).encode()
    assert answers(
        publisher,
        ["TOPIC.PUBLISH", "plant1/a", "m", "QOS", 1, "RETAIN"],
        ["TOPIC.MPUBLISH", "RECORD", record],
        ["TOPIC.PIPELINE", encoded("TOPIC.PUBLISH", "plant1/a", "m", "QOS", 1)],
    ) == [1, [1, 0, 1], [1]]
    commands: list[Command] = [
        ("TOPIC.PUBLISH", "plant2/a", "m"),
        ("TOPIC.PUBLISH", "plant1/a", "m", "PRODUCER", "job-7", 1, 1),
        ("TOPIC.RETAINED", "plant1/a"),
        ("SESSION.FETCH", "{app-1}"),
        ("CLIENT", "KILL", "TYPE", "normal"),
    ]
    for command in commands:
        assert refused(answers(publisher, command)[0]), command
    client.execute_command("ACL", "SETUSER", "publisher", "~{job-7}_producer")
    assert answers(publisher, ["TOPIC.PUBLISH", "plant1/a", "m", "QOS", 1, "PRODUCER", "job-7", 1, 1]) == [1]


def test_the_documented_consumer_has_its_sessions_and_publishes_nothing(
    client: redis.Redis, as_documented: Callable[[str], RawClient]
) -> None:
    store(client, "telemetry", "plant1/#")
    consumer = as_documented("consumer")
    [[epoch, _]] = answers(consumer, ["SESSION.OPEN", "{app-1}", "OWNER", "o", "EXPIRY", 100])
    at: list[Word] = ["{app-1}", "EPOCH", epoch]
    assert answers(
        consumer,
        ["SESSION.SUBSCRIBE", *at, "plant1/#", "1@earliest", "plant1/a", 1],
        ["SESSION.SUBSCRIBE", *at, "$share/workers/plant1/#", 1],
    ) == [[1, 1], [1]]
    client.execute_command("HISTORY.APPEND", "telemetry", "plant1/b", "past")
    assert answers(consumer, ["SESSION.REPLAY", *at])[0][0] == 1
    client.execute_command("TOPIC.PUBLISH", "plant1/a", "m", "QOS", 1)
    [[entries, *_]] = answers(consumer, ["SESSION.FETCH", *at, "WINDOW", 10])
    assert len(entries) >= 2
    assert answers(consumer, ["SESSION.ACK", *at, *[entry[1] for entry in entries]]) == [len(entries)]
    assert not refused(answers(consumer, ["SUBSCRIBE", "{app-1}_inbox"])[0])
    assert not refused(answers(consumer, ["UNSUBSCRIBE", "{app-1}_inbox"])[0])
    commands: list[Command] = [
        ("SESSION.SUBSCRIBE", *at, "#", 1),
        ("SESSION.SUBSCRIBE", *at, "plant1/+", 1),
        ("SESSION.OPEN", "{other}", "OWNER", "o"),
        ("SUBSCRIBE", "{other}_inbox"),
        ("TOPIC.PUBLISH", "plant1/a", "m"),
        ("HSET", "{app-1}_subscriptions", "#", 1),
    ]
    for command in commands:
        assert refused(answers(consumer, command)[0]), command


def test_the_documented_auditor_reads_and_writes_nothing(
    client: redis.Redis, as_documented: Callable[[str], RawClient]
) -> None:
    store(client, "telemetry", "plant1/#")
    store(client, "other", "plant2/#")
    publish(client, "plant1/a", "m", retain=True)
    publish(client, "plant2/a", "m", retain=True)
    auditor = as_documented("auditor")
    commands: list[Command] = [
        ("TOPIC.RETAINED", "plant1/#", "VALUES"),
        ("HISTORY.REPLAY", "plant1/#"),
        ("HISTORY.RANGE", "telemetry", 0, 1, 9),
        ("HISTORY.RANGE", "telemetry", 0, 1, 9, "FILTER", "plant1/a"),
        ("HISTORY.INFO", "telemetry"),
        ("HISTORY.SEQ", "telemetry", 0, 0),
    ]
    for command in commands:
        assert not refused(answers(auditor, command)[0]), command
    assert [one[1] for one in answers(auditor, ["HISTORY.STORES"])[0]] == [b"telemetry"]
    with unchanged(client):
        commands = [
            ("TOPIC.RETAINED", "#"),
            ("HISTORY.REPLAY", "plant2/#"),
            ("HISTORY.RANGE", "other", 0, 1, 9),
            ("HISTORY.INFO", "other"),
            ("HISTORY.HOLD", "telemetry", "r"),
            ("HISTORY.TRIM", "telemetry", 0, 1),
            ("HISTORY.UNSTORE", "telemetry"),
            ("TOPIC.PUBLISH", "plant1/a", "m"),
        ]
        for command in commands:
            assert refused(answers(auditor, command)[0]), command
    client.execute_command(
        "ACL", "SETUSER", "auditor", "~{telemetry/*}_history", "+history.hold", "+history.trim", "+history.patterns"
    )
    commands = [
        ("HISTORY.HOLD", "telemetry", "r"),
        ("HISTORY.HOLD", "telemetry", "r", 0, 1),
        ("HISTORY.TRIM", "telemetry", 0, 1),
        ("HISTORY.PATTERNS", "GET", "telemetry"),
    ]
    for command in commands:
        assert not refused(answers(auditor, command)[0]), command


def test_every_documented_user_can_log_in(as_documented: Callable[[str], RawClient]) -> None:
    for name in documented_users():
        as_documented(name)


def test_the_documented_operator_may_do_everything(
    client: redis.Redis, as_documented: Callable[[str], RawClient]
) -> None:
    operator = as_documented("operator")
    for row in ROWS:
        fill(client)
        assert not refused(answers(operator, row.words)[0]), row


def test_the_page_names_every_command_and_its_category(server_kind: ServerKind, server: Server, raw: MakeRaw) -> None:
    connection: Any = raw(server)
    text = DOCS.read_text()
    table = text[text.index("## Commands") : text.index("## Users for each role")]
    marked = "".join(line for line in table.splitlines() if "@dangerous" in line)
    dangerous = {row.words[0] for row in ROWS if row.dangerous}
    for name in {str(row.words[0]) for row in ROWS}:
        assert f"`{name}" in table or name.startswith("SESSION."), name
        assert (f"`{name}" in marked) == (name in dangerous), name
        if server_kind.version >= (7, 2) and name not in CONTAINERS:
            [info] = connection.call("COMMAND", "INFO", name)
            assert ("@dangerous" in info[6]) == (name in dangerous), name
