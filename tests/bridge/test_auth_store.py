"""How users and rules lie in the server, and edits that meet."""

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import redis

from holdmq.core import is_session_key
from holdmq.errors import ArgumentError
from holdmq_bridge.auth import transfer
from holdmq_bridge.auth.records import (
    BLOCKED,
    CHANNEL,
    MAX_CHANGED,
    MAX_RULES,
    MAX_RULES_BYTES,
    ROLES,
    USERS,
    VERSION,
    Announcement,
    Policy,
    RecordError,
    User,
    format_change,
    parse_change,
    user_key,
)
from holdmq_bridge.auth.rules import Rule
from holdmq_bridge.auth.store import Store, StoreError, Target
from holdmq_bridge.base.quota import Quota
from tests.support import Cluster, Server

HASH = "$argon2id$v=19$m=8,t=1,p=1$c29tZXNhbHQ$m0pPCcM7V5CbsRePBiJTRDoHMGi4KfOr86ADSVYcPos"
EVERYBODY = Target.parse("everybody")


def rules(*lines: str) -> tuple[Rule, ...]:
    return tuple(map(Rule.parse, lines))


@pytest.fixture
def store(client: redis.Redis) -> Store:
    return Store(client)


# ---- how it lies there -----------------------------------------------------------------------------------------------


def test_everything_is_plain_and_reads_as_it_was_written(store: Store, client: redis.Redis) -> None:
    store.add_role("sensors", rules("deny all a/secret", "allow publish a/%c/#"))
    user = User(
        "alice", HASH, superuser=True, roles=("sensors",), clients=("a-*", "b c"), rules=rules("allow subscribe own/#"),
        session_kind="application",
        overflow="wait",
        quota=Quota(sessions=3, queue_bytes=0),
    )  # fmt: skip
    store.add_user(user)
    store.block("thief-*", "stolen")
    assert client.hgetall(ROLES) == {b"sensors": b"deny all a/secret\nallow publish a/%c/#"}
    assert client.zrange(USERS, 0, -1) == [b"alice"]
    assert client.hgetall(user_key("alice")) == {
        b"password": HASH.encode(), b"enabled": b"1", b"superuser": b"1", b"roles": b"sensors",
        b"clients": b"a-*\nb c", b"rules": b"allow subscribe own/#", b"session_kind": b"application",
        b"overflow": b"wait", b"quota": b"sessions=3 queue-bytes=0",
    }  # fmt: skip
    assert client.hgetall(BLOCKED) == {b"thief-*": b"stolen"}
    assert store.user("alice") == user
    assert list(store.users()) == [user]
    policy = store.policy()
    assert (policy.users, policy.blocked, policy.blocked_globs) == (1, frozenset(), (b"thief-*",))
    assert policy.roles == {"sensors": rules("deny all a/secret", "allow publish a/%c/#")}


@pytest.mark.parametrize("name", ["x", "{c}_subscriptions", "a_messages", "{t}_retained", "grüße/+#", "sp ace"])
def test_no_name_makes_a_key_that_means_something_else(store: Store, client: redis.Redis, name: str) -> None:
    """Not a list, which would be a channel's, nor part of a session."""
    store.add_user(User(name, HASH, rules=rules("allow all a")))
    store.block(name)
    keys = client.keys("*")
    assert {client.type(key) for key in keys} == {b"string", b"zset", b"hash"}
    assert not any(is_session_key(key) for key in keys)
    assert client.execute_command("HOLDMQ.CHECK") == []
    assert store.user(name).name == name


def test_a_change_that_nobody_hears_is_not_kept(store: Store, client: redis.Redis) -> None:
    store.add_role("r")
    assert not client.exists(CHANNEL)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("enabled", "yes"),
        ("rules", "allow everything"),
        ("roles", "everybody"),
        ("superuser", ""),
        ("clients", "a\n\nb"),
    ],
)
def test_a_record_that_cannot_be_read_is_named_and_not_guessed(
    store: Store, client: redis.Redis, field: str, value: str
) -> None:
    store.add_user(User("u", HASH))
    client.hset(user_key("u"), field, value)
    with pytest.raises(RecordError):
        store.user("u")


def test_a_user_without_the_flag_is_disabled() -> None:
    found = User.read("u", {b"password": HASH.encode()})
    assert found is not None
    assert (found.enabled, found.superuser) == (False, False)


# ---- edits -----------------------------------------------------------------------------------------------------------


def test_each_edit_takes_a_version_and_reports_what_changed(store: Store, client: redis.Redis) -> None:
    with client.pubsub() as heard:
        heard.subscribe(CHANNEL)
        assert heard.get_message(timeout=5)
        versions = [store.version()]

        def told() -> Announcement:
            message = heard.get_message(timeout=5)
            assert message is not None
            notice = parse_change(message["data"])
            assert notice is not None
            assert notice.after == versions[-1]
            versions.append(notice.version)
            assert store.version() == notice.version
            return notice

        store.add_user(User("alice", HASH))
        assert told().users == frozenset({"alice"})
        store.change_user("alice", lambda user: replace(user, enabled=False))
        assert told().users == frozenset({"alice"})
        store.change_rules(Target.parse("user:alice"), lambda _: rules("allow all a"))
        assert told().users == frozenset({"alice"})
        store.change_rules(EVERYBODY, lambda _: rules("allow all a"))
        assert told().users is None
        store.block("c1")
        assert told().users is None
        store.delete_user("alice")
        assert told().users == frozenset({"alice"})
        store.announce()
        assert told().users is None
        assert versions == sorted(set(versions))


def test_an_edit_that_changes_nothing_sends_no_notice(store: Store) -> None:
    store.add_user(User("alice", HASH))
    store.change_rules(EVERYBODY, lambda _: rules("allow all a"))
    store.block("c1", "why")
    version = store.version()
    store.change_user("alice", lambda user: user)
    store.change_rules(EVERYBODY, lambda found: found)
    store.block("c1", "why")
    assert store.version() == version


def test_what_does_not_fit_is_named_and_changes_nothing(store: Store, client: redis.Redis) -> None:
    store.add_role("r")
    store.add_user(User("alice", HASH, roles=("r",)))
    before = {key: client.dump(key) for key in client.keys("*")}
    refused: list[tuple[Callable[[], None], type[Exception], str]] = [
        (lambda: store.add_user(User("alice", HASH)), StoreError, "already"),
        (lambda: store.add_user(User("bob", HASH, roles=("q",))), StoreError, "no role 'q'"),
        (lambda: store.add_user(User("bob", "plain")), ArgumentError, "argon2id"),
        (lambda: store.add_user(User("", HASH)), ArgumentError, "username of 0 bytes"),
        (lambda: store.add_user(User("a\nb", HASH)), ArgumentError, "control"),
        (lambda: store.add_user(User("x" * 1025, HASH)), ArgumentError, "1025"),
        (lambda: store.add_user(User("bob", roles=("everybody",))), ArgumentError, "everybody"),
        (lambda: store.add_user(User("bob", clients=("a", "a"))), ArgumentError, "twice"),
        (lambda: store.change_user("bob", lambda user: user), StoreError, "no user 'bob'"),
        (lambda: store.change_user("alice", lambda user: replace(user, roles=("r", "q"))), StoreError, "'q'"),
        (lambda: store.delete_user("bob"), StoreError, "no user 'bob'"),
        (lambda: store.add_role("r"), StoreError, "already"),
        (lambda: store.add_role("everybody"), StoreError, "already"),
        (lambda: store.add_role("a\tb"), ArgumentError, "control"),
        (lambda: store.delete_role("q"), StoreError, "no role 'q'"),
        (lambda: store.delete_role("r"), StoreError, "1 users have the role 'r': 'alice'"),
        (lambda: store.change_rules(Target("role", "q"), lambda _: ()), StoreError, "no role 'q'"),
        (lambda: store.change_rules(Target("user", "bob"), lambda _: ()), StoreError, "no user 'bob'"),
        (lambda: store.unblock("c"), StoreError, "not blocked"),
    ]
    for edit, error, named in refused:
        with pytest.raises(error, match=named):
            edit()
    assert {key: client.dump(key) for key in client.keys("*")} == before


def test_lists_are_bounded(store: Store) -> None:
    many = tuple(Rule.parse(f"allow all a/{number}") for number in range(MAX_RULES + 1))
    with pytest.raises(ArgumentError, match=f"{MAX_RULES + 1}; expected at most {MAX_RULES}"):
        store.change_rules(EVERYBODY, lambda _: many)
    long = tuple(Rule.parse(f"allow all {number}{'x' * 60_000}") for number in range(5))
    with pytest.raises(ArgumentError, match=str(MAX_RULES_BYTES)):
        store.change_rules(EVERYBODY, lambda _: long)
    for number in range(4):
        store.add_role(f"r{number}", tuple(Rule.parse(f"allow all {number}{'x' * 60_000}{i}") for i in range(4)))
    with pytest.raises(ArgumentError, match="roles: 5 with"):
        store.add_role("r4", tuple(Rule.parse(f"allow all 4{'x' * 60_000}{i}") for i in range(4)))
    assert len(store.policy().roles) == 4


def test_versions_never_repeat_even_after_everything_was_removed(store: Store, client: redis.Redis) -> None:
    store.add_role("r")
    before = store.version()
    client.flushall()
    store.add_role("r")
    assert store.version() > before
    client.set(VERSION, before + 10**12)  # written by a machine whose clock is ahead
    store.add_role("s")
    assert store.version() == before + 10**12 + 1


def test_edits_that_meet_are_all_done(server: Server) -> None:
    """Each rewrites the same list: if two overlapped, rules of one were lost."""
    editors, each = 4, 15
    failures: list[BaseException] = []

    def append(rule: Rule, found: tuple[Rule, ...]) -> list[Rule]:
        return [*found, rule]

    def edit(number: int) -> None:
        try:
            store = Store(server.client())
            for i in range(each):
                rule = Rule.parse(f"allow all {number}/{i}")
                store.change_rules(EVERYBODY, partial(append, rule))
        except BaseException as error:  # noqa: BLE001 (shown by the test)
            failures.append(error)

    threads = [threading.Thread(target=edit, args=(number,)) for number in range(editors)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    found = [rule.topic_filter for rule in Store(server.client()).rules(EVERYBODY)]
    assert sorted(found) == sorted(f"{number}/{i}" for number in range(editors) for i in range(each))
    for number in range(editors):  # and those of one editor in their order
        assert [one for one in found if one.startswith(f"{number}/")] == [f"{number}/{i}" for i in range(each)]


def test_a_role_that_is_given_and_removed_at_once_is_one_or_the_other(server: Server) -> None:
    store, other = Store(server.client()), Store(server.client())
    store.add_role("r")
    store.add_user(User("alice", HASH))
    met: list[str] = []

    def grant(user: User) -> User:
        if not met:  # between reading and writing, somebody removes the role
            other.delete_role("r")
            met.append("removed")
        return replace(user, roles=("r",))

    with pytest.raises(StoreError, match="no role 'r'"):
        store.change_user("alice", grant)
    assert store.user("alice").roles == ()


def test_an_editor_who_is_always_too_late_is_notified(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdmq_bridge.auth.store.MAX_TRIES", 3)
    store, other = Store(server.client()), Store(server.client())
    tries: list[int] = []

    def change(found: tuple[Rule, ...]) -> list[Rule]:
        other.announce()
        tries.append(len(found))
        return [*rules("allow all a")]

    with pytest.raises(StoreError, match="3 attempts"):
        store.change_rules(EVERYBODY, change)
    assert tries == [0, 0, 0]
    assert store.rules(EVERYBODY) == ()


def test_users_are_read_in_pages(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdmq_bridge.auth.store.PAGE", 3)
    names = [f"u{number:02}" for number in range(10)]
    for name in reversed(names):
        store.add_user(User(name))
    assert [user.name for user in store.users()] == names


def test_users_roles_and_blocked_clients_lie_in_one_slot_of_a_cluster(fresh_cluster: Callable[..., Cluster]) -> None:
    cluster = fresh_cluster(3)
    node = cluster.node_of(VERSION)
    store = Store(node.client())
    store.add_role("r", rules("allow all a"))
    store.add_user(User("{x}y", HASH, roles=("r",)))
    store.block("c")
    assert store.user("{x}y").roles == ("r",)
    assert store.policy().users == 1


# ---- notices ---------------------------------------------------------------------------------------------------------


def test_a_notice_with_too_many_users_means_everybody() -> None:
    names = [f"u{number}" for number in range(MAX_CHANGED)]
    found = parse_change(format_change(2, 1, names).encode())
    assert found == Announcement(2, 1, frozenset(names))
    found = parse_change(format_change(2, 1, [*names, "one more"]).encode())
    assert found == Announcement(2, 1, None)


@pytest.mark.parametrize(
    "data", [b"", b"7", b"{}", b"[]", b"null", b'{"version": "x", "after": 1, "users": []}', b"\xff"]
)
def test_other_messages_are_not_notices(data: bytes) -> None:
    assert parse_change(data) is None


def test_a_role_that_cannot_be_read_refuses_whoever_has_it() -> None:
    policy = Policy.read(b"5", 1, {b"bad": b"allow nonsense", b"good": b"allow all a"}, [])
    assert not policy.is_empty
    assert policy.rule_lists(User("u", roles=("good",)))
    with pytest.raises(RecordError, match="bad"):
        policy.rule_lists(User("u", roles=("good", "bad")))
    with pytest.raises(RecordError, match="no role 'gone'"):
        policy.rule_lists(User("u", roles=("gone",)))


# ---- export and import -----------------------------------------------------------------------------------------------


def fill(store: Store, users: int = 3) -> None:
    store.add_role("r", rules("allow all a/%c", "deny all #"))
    store.change_rules(EVERYBODY, lambda _: rules("allow subscribe news/#"))
    store.block("thief-*", "stolen")
    for number in range(users):
        store.add_user(User(f"u{number}", HASH, number != 1, number == 2, ("r",), ("x-*",), rules("allow all own/%u")))


def contents(client: Any) -> dict[bytes, Any]:
    """All that is stored but the version."""
    read: dict[bytes, Callable[[bytes], Any]] = {
        b"hash": client.hgetall,
        b"zset": lambda key: client.zrange(key, 0, -1),
    }
    keys = [key for key in client.keys("*") if key != VERSION.encode()]
    return {key: read[client.type(key)](key) for key in keys}


def test_what_is_exported_and_imported_is_the_same(store: Store, client: redis.Redis) -> None:
    fill(store)
    text = json.dumps(transfer.export(store))
    before = contents(client)
    client.flushall()
    transfer.load(store, transfer.parse(text))
    assert contents(client) == before
    version = store.version()
    transfer.load(store, transfer.parse(text), replace_all=True)
    assert store.version() == version  # nothing was new


def test_an_import_adds_and_one_that_replaces_also_removes(
    store: Store, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdmq_bridge.auth.transfer.PAGE", 2)
    fill(store, users=7)
    document = transfer.parse(
        json.dumps({
            "format": "holdmq-auth", "version": 1, "roles": {"s": ["allow all s"]}, "blocked": {"other": ""},
            "users": [{"name": name, "roles": ["s"]} for name in ("u1", "new1", "new2")],
        })
    )  # fmt: skip
    transfer.load(store, document)
    assert {user.name for user in store.users()} == {*(f"u{n}" for n in range(7)), "new1", "new2"}
    assert store.user("u1") == User("u1", roles=("s",))
    assert set(store.policy().roles) == {"r", "s", "everybody"}
    transfer.load(store, document, replace_all=True)
    assert {user.name for user in store.users()} == {"u1", "new1", "new2"}
    assert set(store.policy().roles) == {"s"}
    assert store.blocked() == {"other": ""}
    assert set(client.keys("*")) == {
        key.encode() for key in (VERSION, USERS, ROLES, BLOCKED, *map(user_key, ("u1", "new1", "new2")))
    }


def document(**changes: Any) -> str:
    return json.dumps({"format": "holdmq-auth", "version": 1, **changes})


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("nonsense", "no JSON"),
        ("[]", "holdmq-auth"),
        ('{"format": "holdmq-auth", "version": 2}', "1"),
        (document(rolls={}), "'rolls'"),
        (document(roles=[]), "an object"),
        (document(roles={"r": "allow all a"}), "an array"),
        (document(roles={"r": ["allow nothing"]}), "allow nothing"),
        (document(roles={"": []}), "role of 0 bytes"),
        (document(users=[{}]), "name"),
        (document(users=[{"name": "a"}, {"name": "a"}]), "twice"),
        (document(users=[{"name": "a", "enabled": 1}]), "true or false"),
        (document(users=[{"name": "a", "pasword": "x"}]), "'pasword'"),
        (document(users=[{"name": "a", "password": "plain"}]), "user 'a': password hash"),
        (document(users=[{"name": "a", "rules": ["allow all a", "allow all a"]}]), "twice"),
        (document(blocked={"x": 1}), "a text"),
    ],
)
def test_a_document_with_a_fault_is_named(text: str, named: str) -> None:
    with pytest.raises(ArgumentError) as raised:
        transfer.parse(text)
    assert named in str(raised.value)


@pytest.mark.parametrize("replace_all", [False, True])
def test_a_document_whose_users_have_a_role_that_is_not_there_changes_nothing(
    store: Store, client: redis.Redis, replace_all: bool
) -> None:
    store.add_role("here")
    before = {key: client.dump(key) for key in client.keys("*")}
    missing = "here" if replace_all else "gone"  # it would be removed
    text = document(roles={"new": []}, users=[{"name": "a", "roles": [missing]}])
    with pytest.raises(StoreError, match=missing):
        transfer.load(store, transfer.parse(text), replace_all=replace_all)
    assert {key: client.dump(key) for key in client.keys("*")} == before
