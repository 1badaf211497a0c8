"""Who may connect and what a change does to those who are connected, on a real server."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pytest
import pytest_asyncio
import redis
import redis.asyncio
from argon2 import PasswordHasher

from holdmq_bridge.auth import Authenticator, AuthSettings, Change, Identity, Kind, Reason, Verdict
from holdmq_bridge.auth.records import BLOCKED, CHANNEL, ROLES, VERSION, User, user_key
from holdmq_bridge.auth.rules import Rule
from holdmq_bridge.auth.store import Plan, Store, Target
from tests.support import Server, embedded_kinds

server_kinds = embedded_kinds  # what is tested is in the bridge

CHEAP = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
NEW = CHEAP.hash("new")
EVERYBODY, ANONYMOUS = Target.parse("everybody"), Target.parse("anonymous")
SOON_S = 10.0
EFFECTIVE_S = 1.0


def rules(*lines: str) -> tuple[Rule, ...]:
    return tuple(map(Rule.parse, lines))


def user(name: str, hashed: str = CHEAP.hash("pw"), **fields: Any) -> User:
    return User(name, hashed, **fields)


def put(store: Store, target: Target, *lines: str) -> None:
    store.change_rules(target, lambda _: rules(*lines))


@dataclass
class Made:
    """An authenticator and what it told."""

    auth: Authenticator
    changes: list[Change] = field(default_factory=list)

    async def login(
        self, name: str | None = "alice", given: str | None = "pw", client_id: bytes = b"c1", **options: Any
    ) -> Verdict:
        return await self.auth.authenticate(client_id, name, None if given is None else given.encode(), **options)


MakeAuth = Callable[..., Awaitable[Made]]


@pytest.fixture
def store(client: redis.Redis) -> Store:
    return Store(client)


@pytest_asyncio.fixture
async def make() -> AsyncIterator[MakeAuth]:
    """Makes running authenticators; they are stopped afterwards."""
    made: list[Made] = []

    async def start(to: Server | str | Callable[[], Any], *, local_only: bool = False, **settings: Any) -> Made:
        changes: list[Change] = []
        target = to.url if isinstance(to, Server) else to
        auth = Authenticator(target, AuthSettings(**settings), local_only=local_only, on_change=changes.append)
        one = Made(auth, changes)
        made.append(one)
        await auth.start()
        return one

    yield start
    for one in made:
        await one.auth.stop()


async def soon(condition: Callable[[], Any], timeout_s: float = SOON_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        await asyncio.sleep(0.005)


async def soon_denied(one: Made, identity: Identity, client_id: bytes = b"c1") -> Verdict:
    """The verdict of the review that follows a change."""
    await soon(lambda: any(change.concerns(identity) for change in one.changes))
    return await one.auth.rules_for(identity, client_id)


# ---- passwords -------------------------------------------------------------------------------------------------------


async def test_random_names_from_one_address_are_refused_and_hurt_nobody_else(
    server: Server, store: Store, make: MakeAuth
) -> None:
    for name in ("alice", "bob", "carol"):
        store.add_user(user(name))
    one = await make(server, auth_address_failures=5, auth_address_failures_per_s=0.001)
    assert (await one.login("alice", peer="10.0.0.1")).allowed
    outcomes = [(await one.login(f"random{number}", peer="10.0.0.1")).reason for number in range(20)]
    assert outcomes == [Reason.BAD_CREDENTIALS] * 5 + [Reason.BANNED] * 15
    assert one.auth.passwords_checked == 6
    assert (await one.login("alice", peer="10.0.0.1")).allowed  # who has logged in from there is not concerned
    assert (await one.login("bob", peer="10.0.0.2")).allowed
    assert (await one.login("carol", peer="10.0.0.1")).reason is Reason.BANNED


async def test_a_remembered_password_is_not_a_way_around_the_budget_of_an_address(
    server: Server, store: Store, make: MakeAuth
) -> None:
    store.add_user(user("alice"))
    one = await make(server, auth_address_failures=1, auth_address_failures_per_s=0.001)
    assert (await one.login("alice", peer="10.0.0.2")).allowed
    assert (await one.login("random", peer="10.0.0.1")).reason is Reason.BAD_CREDENTIALS
    assert (await one.login("alice", peer="10.0.0.1")).reason is Reason.BANNED  # else guesses would be free


async def test_guesses_that_wait_when_the_budget_is_spent_are_not_computed(
    server: Server, store: Store, make: MakeAuth
) -> None:
    store.add_user(user("alice"))
    one = await make(server, auth_address_failures=5, auth_address_failures_per_s=0.001)
    logins = [one.login(f"random{number}", peer="10.0.0.1") for number in range(50)]
    outcomes = [verdict.reason for verdict in await asyncio.gather(*logins)]
    assert one.auth.passwords_checked <= 6
    assert set(outcomes) == {Reason.BAD_CREDENTIALS, Reason.BANNED}


async def test_the_right_password_lets_in_with_the_rules_of_user_roles_and_everybody(
    server: Server, store: Store, make: MakeAuth
) -> None:
    store.add_role("r", rules("allow publish r/%c", "deny all own/x"))
    put(store, EVERYBODY, "allow subscribe news/#")
    store.add_user(user("alice", roles=("r",), rules=rules("allow all own/#")))
    verdict = await (await make(server)).login()
    assert (verdict.allowed, verdict.reason) == (True, Reason.ACCEPTED)
    assert (verdict.identity.kind, verdict.identity.username) == (Kind.PASSWORD, "alice")
    assert verdict.rules.may_publish(b"r/c1")
    assert verdict.rules.may_publish(b"own/x")  # its own rules come first
    assert verdict.rules.may_subscribe(b"news/#")
    assert not verdict.rules.may_publish(b"news/x")
    assert verdict.rules.version == store.version()
    assert verdict.rules.publish_entries() == ([(True, b"own/#"), (True, b"r/c1"), (False, b"own/x")], False)


@pytest.mark.parametrize(
    ("name", "password"),
    [
        ("alice", "wrong"), ("alice", None), ("alice", ""), ("bob", "pw"), ("Alice", "pw"), (None, "pw"), ("", "pw"),
        ("x" * 5000, "pw"), ("certificate only", ""), ("certificate only", "pw"), ("\ud800", "pw"),
    ],
)  # fmt: skip
async def test_every_wrong_password_is_refused_alike(
    server: Server, store: Store, make: MakeAuth, name: str | None, password: str | None
) -> None:
    store.add_user(user("alice"))
    store.add_user(user("certificate only", ""))
    verdict = await (await make(server)).login(name, password)
    assert (verdict.allowed, verdict.reason) == (False, Reason.BAD_CREDENTIALS)
    assert (verdict.reason.return_code, verdict.reason.reason_code) == (4, 0x86)
    assert not verdict.rules.may_publish(b"a")


async def test_a_superuser_may_do_everything(server: Server, store: Store, make: MakeAuth) -> None:
    put(store, EVERYBODY, "deny all #")
    store.add_user(user("alice", superuser=True))
    verdict = await (await make(server)).login()
    assert verdict.rules.may_subscribe(b"#")
    assert verdict.rules.may_publish(b"$SYS/x")


async def test_a_disabled_user_is_refused_and_a_wrong_password_does_not_tell(
    server: Server, store: Store, make: MakeAuth
) -> None:
    store.add_user(user("alice", enabled=False))
    one = await make(server)
    assert (await one.login()).reason is Reason.NOT_AUTHORIZED
    assert (await one.login("alice", "wrong")).reason is Reason.BAD_CREDENTIALS


async def test_a_user_is_bound_to_its_client_ids(server: Server, store: Store, make: MakeAuth) -> None:
    store.add_user(user("alice", clients=("a-*", "special")))
    one = await make(server)
    found = [(await one.login(client_id=client_id)).reason for client_id in (b"a-1", b"special", b"b-1", b"special2")]
    assert found == [Reason.ACCEPTED, Reason.ACCEPTED, Reason.NOT_AUTHORIZED, Reason.NOT_AUTHORIZED]


async def test_a_blocked_client_is_refused_whoever_it_is(server: Server, store: Store, make: MakeAuth) -> None:
    store.add_user(user("alice"))
    store.block("thief")
    store.block("bad-*")
    one = await make(server, allow_anonymous=True)
    assert (await one.login(client_id=b"c1")).allowed
    for client_id in (b"thief", b"bad-1"):
        verdicts = [await one.login(client_id=client_id), await one.login(None, None, client_id=client_id)]
        assert {verdict.reason for verdict in verdicts} == {Reason.BANNED}
    assert Reason.BANNED.reason_code == 0x8A


async def test_logins_that_repeat_compute_nothing(server: Server, store: Store, make: MakeAuth) -> None:
    store.add_user(user("alice"))
    one = await make(server)
    verdicts = await asyncio.gather(*(one.login(client_id=b"c%d" % number) for number in range(500)))
    assert all(verdict.allowed for verdict in verdicts)
    assert one.auth.passwords_checked == 1
    assert one.auth.verdicts == {Reason.ACCEPTED: 500}
    await one.login()
    assert (one.auth.passwords_checked, one.auth.passwords_remembered) == (1, 1)


async def test_too_many_waiting_logins_are_refused_as_busy(server: Server, store: Store, make: MakeAuth) -> None:
    store.add_user(user("alice"))
    store.change_user("alice", lambda found: replace(found, password=PasswordHasher(2, 19_456, 1).hash("pw")))
    one = await make(server, auth_max_waiting=5, auth_free_failures=100)
    verdicts = await asyncio.gather(*(one.login("alice", f"wrong {number}") for number in range(50)))
    reasons = [verdict.reason for verdict in verdicts]
    assert reasons.count(Reason.BAD_CREDENTIALS) >= 5
    assert reasons.count(Reason.SERVER_BUSY) == 50 - reasons.count(Reason.BAD_CREDENTIALS) > 0
    assert (Reason.SERVER_BUSY.return_code, Reason.SERVER_BUSY.reason_code) == (3, 0x89)
    assert (await one.login()).allowed


async def test_too_many_lookups_are_refused_as_busy(server: Server, store: Store, make: MakeAuth) -> None:
    store.add_user(user("alice"))
    one = await make(server, auth_max_lookups=10)
    verdicts = await asyncio.gather(*(one.login(f"u{number}", None) for number in range(100)))
    assert Reason.SERVER_BUSY in {verdict.reason for verdict in verdicts}
    assert (await one.login()).allowed


async def test_guessing_is_slowed_down_also_with_the_right_password_and_only_from_there(
    server: Server, store: Store, make: MakeAuth
) -> None:
    store.add_user(user("alice"))
    one = await make(server, auth_free_failures=3, auth_ban_first_s=3.0)
    found = [(await one.login("alice", "wrong", peer="10.0.0.1")).reason for _ in range(5)]
    assert found == [Reason.BAD_CREDENTIALS] * 4 + [Reason.BANNED]
    checked = one.auth.passwords_checked
    assert (await one.login(peer="10.0.0.1")).reason is Reason.BANNED
    assert one.auth.passwords_checked == checked
    assert (await one.login(peer="10.0.0.2")).allowed
    await asyncio.sleep(3.0)  # the time itself is what is tested
    assert (await one.login(peer="10.0.0.1")).allowed


async def test_guesses_side_by_side_count_one_by_one(server: Server, store: Store, make: MakeAuth) -> None:
    store.add_user(user("alice"))
    one = await make(server, auth_free_failures=3, auth_ban_first_s=60.0)
    guesses = [*(f"wrong {number}" for number in range(20)), "pw"]
    verdicts = await asyncio.gather(*(one.login("alice", guess) for guess in guesses))
    reasons = [verdict.reason for verdict in verdicts]
    assert reasons.count(Reason.BAD_CREDENTIALS) == 4
    assert reasons.count(Reason.BANNED) == 17


# ---- certificates ----------------------------------------------------------------------------------------------------


async def test_a_certificate_decides_alone(server: Server, store: Store, make: MakeAuth) -> None:
    store.add_user(user("device", "", rules=rules("allow publish d/%u")))
    store.add_user(user("alice"))
    one = await make(server)
    verdict = await one.login("alice", "wrong", certificate_identity="device")
    assert (verdict.identity.kind, verdict.identity.username) == (Kind.CERTIFICATE, "device")
    assert verdict.rules.may_publish(b"d/device")
    assert one.auth.passwords_checked == 0


@pytest.mark.parametrize("enough", [True, False])
async def test_a_certificate_without_a_user_counts_only_where_it_is_said(
    server: Server, store: Store, make: MakeAuth, enough: bool
) -> None:
    put(store, EVERYBODY, "allow publish d/%u")
    store.add_user(user("off", "", enabled=False))
    one = await make(server, certificate_without_user=enough)
    verdict = await one.login(None, None, certificate_identity="unknown")
    assert verdict.allowed is enough
    assert verdict.rules.may_publish(b"d/unknown") is enough
    assert (await one.login(None, None, certificate_identity="off")).reason is Reason.NOT_AUTHORIZED


# ---- anonymous -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("allow_anonymous", "local_only", "stored", "allowed", "everything"),
    [
        (None, True, "nothing", True, True), (None, True, "user", False, False), (None, True, "rule", False, False),
        (None, False, "nothing", False, False), (None, False, "user", False, False),
        (True, False, "nothing", True, True), (True, False, "user", True, False), (True, False, "rule", True, False),
        (False, True, "nothing", False, False),
    ],
)  # fmt: skip
async def test_anonymous_clients_are_let_in_where_that_is_safe_or_said(
    server: Server, store: Store, make: MakeAuth, allow_anonymous: bool | None, local_only: bool, stored: str,
    allowed: bool, everything: bool,
) -> None:  # fmt: skip
    if stored == "user":
        store.add_user(user("alice"))
    if stored == "rule":
        put(store, ANONYMOUS, "allow publish open/#")
    one = await make(server, allow_anonymous=allow_anonymous, local_only=local_only)
    verdict = await one.login(None, None)
    assert verdict.allowed is allowed
    assert verdict.reason is (Reason.ACCEPTED if allowed else Reason.NOT_AUTHORIZED)
    assert verdict.rules.may_publish(b"any") is everything
    assert verdict.rules.may_publish(b"open/x") is (everything or (allowed and stored == "rule"))


async def test_names_that_nobody_can_verify_count_for_nothing(server: Server, store: Store, make: MakeAuth) -> None:
    """Without any user, a client with a username is let in like one without."""
    put(store, EVERYBODY, "allow publish u/%u", "allow publish open")
    verdict = await (await make(server, allow_anonymous=True)).login("root", "x")
    assert verdict.identity == Identity(Kind.ANONYMOUS)
    assert not verdict.rules.may_publish(b"u/root")
    assert verdict.rules.may_publish(b"open")


async def test_anonymous_clients_have_rules_of_their_own_before_those_for_everybody(
    server: Server, store: Store, make: MakeAuth
) -> None:
    put(store, ANONYMOUS, "deny all secret/#")
    put(store, EVERYBODY, "allow all #")
    store.add_user(user("alice"))
    one = await make(server, allow_anonymous=True)
    assert not (await one.login(None, None)).rules.may_publish(b"secret/x")
    assert (await one.login()).rules.may_publish(b"secret/x")
    assert (await one.login("alice", "wrong")).reason is Reason.BAD_CREDENTIALS


# ---- changes ---------------------------------------------------------------------------------------------------------


async def test_a_change_is_in_force_on_every_bridge_within_a_second(
    server: Server, store: Store, make: MakeAuth
) -> None:
    store.add_user(user("alice"))
    store.add_user(user("bob"))
    both = [await make(server) for _ in range(2)]
    verdicts = [await one.login() for one in both]
    assert not any(verdict.rules.may_publish(b"a") for verdict in verdicts)
    took_s: list[float] = []
    for number in range(5):
        for one in both:
            one.changes.clear()
        begin = time.monotonic()
        target = EVERYBODY if number % 2 else Target("user", "alice")
        await asyncio.to_thread(put, store, target, f"allow publish a{number}")
        for one, verdict in zip(both, verdicts, strict=True):
            found = await soon_denied(one, verdict.identity)
            assert found.rules.may_publish(b"a%d" % number)
            assert found.rules.version == one.auth.version == store.version()
        took_s.append(time.monotonic() - begin)
    assert min(took_s) < EFFECTIVE_S  # whatever else the machine did at one time or another
    assert both[0].changes[-1].users == frozenset({"alice"})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda store: store.delete_user("alice"), Reason.NOT_AUTHORIZED),
        (lambda store: store.change_user("alice", lambda u: replace(u, enabled=False)), Reason.NOT_AUTHORIZED),
        (lambda store: store.change_user("alice", lambda u: replace(u, clients=("other",))), Reason.NOT_AUTHORIZED),
        (lambda store: store.change_user("alice", lambda u: replace(u, password=NEW)), Reason.NOT_AUTHORIZED),
        (lambda store: store.block("c*"), Reason.BANNED),
    ],
    ids=["deleted", "disabled", "bound elsewhere", "new password", "blocked"],
)  # fmt: skip
async def test_clients_that_may_no_longer_be_connected_are_reported(
    server: Server, store: Store, make: MakeAuth, change: Callable[[Store], None], reason: Reason
) -> None:
    store.add_user(user("alice"))
    store.add_user(user("bob"))
    one = await make(server)
    alice, bob = await one.login(), await one.login("bob", "pw", b"d1")
    await asyncio.to_thread(change, store)
    verdict = await soon_denied(one, alice.identity)
    assert (verdict.allowed, verdict.reason) == (False, reason)
    assert verdict.reason.disconnect_code in (0x87, 0x98)
    assert not verdict.rules.may_publish(b"a")
    [other] = await one.auth.review([(bob.identity, b"d1")])
    assert other.allowed


async def test_the_first_user_ends_the_time_without_rules(server: Server, store: Store, make: MakeAuth) -> None:
    one = await make(server, local_only=True)
    verdict = await one.login(None, None)
    assert verdict.rules.may_publish(b"a")
    await asyncio.to_thread(store.add_user, user("alice"))
    await soon(lambda: one.changes)
    # A notice names the new user alone; anonymous clients are concerned too, since it was the first.
    assert any(change.concerns(verdict.identity) for change in one.changes)
    assert not (await one.auth.rules_for(verdict.identity, b"c1")).allowed


async def test_a_login_sees_every_edit_that_was_finished_before_it(
    server: Server, store: Store, make: MakeAuth
) -> None:
    """Without waiting for any notice."""
    one = await make(server)
    for number in range(30):
        store.add_role(f"r{number}", rules(f"allow publish t{number}"))
        store.add_user(user(f"u{number}", roles=(f"r{number}",)))
        verdict = await one.login(f"u{number}", "pw")
        assert verdict.rules.may_publish(b"t%d" % number)
        store.change_user(f"u{number}", lambda found: replace(found, enabled=False))
        assert not (await one.login(f"u{number}", "pw")).allowed


async def test_an_edit_while_the_password_is_computed_counts(server: Server, store: Store, make: MakeAuth) -> None:
    store.add_user(User("alice", PasswordHasher(8, 65_536, 1).hash("pw")))  # takes a while
    one = await make(server)
    login = asyncio.ensure_future(one.login())
    await soon(lambda: one.auth.passwords_checked)
    await asyncio.to_thread(store.change_user, "alice", lambda found: replace(found, enabled=False))
    await soon(lambda: one.changes)
    assert not login.done()
    assert (await login).reason is Reason.NOT_AUTHORIZED


async def test_many_are_reviewed_in_few_round_trips(server: Server, store: Store, make: MakeAuth) -> None:
    count = 600

    def add_all(_read: Any, edit: Plan) -> None:
        for number in range(count):
            edit.write_user(User(f"u{number}", rules=rules("allow all %u")))

    store.edit(add_all)
    one = await make(server)
    clients = [(Identity(Kind.CERTIFICATE, f"u{n}"), b"c") for n in range(count + 1)]
    before = server.client().info("stats")["total_commands_processed"]
    verdicts = await one.auth.review(clients)
    commands = server.client().info("stats")["total_commands_processed"] - before
    assert [verdict.allowed for verdict in verdicts] == [True] * count + [False]
    assert all(verdict.rules.may_publish(f"u{n}".encode()) for n, verdict in enumerate(verdicts[:-1]))
    assert commands < count + 50


async def test_a_flood_of_edits_is_followed_to_its_end(server: Server, store: Store, make: MakeAuth) -> None:
    store.add_user(user("alice"))
    one = await make(server)
    identity = (await one.login()).identity

    def flood() -> None:
        for number in range(300):
            put(store, Target("user", "alice"), f"allow publish a{number}")

    await asyncio.to_thread(flood)
    await soon(lambda: one.auth.version == store.version())
    assert (await one.auth.rules_for(identity, b"c1")).rules.may_publish(b"a299")


# ---- trouble ---------------------------------------------------------------------------------------------------------


async def test_without_the_server_nobody_gets_in_and_afterwards_what_was_missed_is_found(
    fresh_server: Callable[..., Server], make: MakeAuth
) -> None:
    own = fresh_server(aof=True)
    store = Store(own.client())
    store.add_user(user("alice"))
    one = await make(own)
    verdict = await one.login()
    assert verdict.allowed
    own.stop()
    refused = await one.login()
    assert (refused.reason, refused.reason.return_code, refused.reason.reason_code) == (
        Reason.SERVER_UNAVAILABLE, 3, 0x88,
    )  # fmt: skip
    with pytest.raises((redis.RedisError, OSError)):
        await one.auth.rules_for(verdict.identity, b"c1")
    own.start()
    Store(own.client()).delete_user("alice")  # most likely before the authenticator is back
    assert not (await soon_denied(one, verdict.identity)).allowed
    assert (await one.login()).reason is Reason.BAD_CREDENTIALS


async def test_that_users_and_rules_are_followed_again_is_reported_once(
    fresh_server: Callable[..., Server], make: MakeAuth, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "holdmq.bridge")
    own = fresh_server(aof=True)
    await make(own)
    told = "changes of users and rules cannot be followed", "changes of users and rules are followed again"
    assert not {*told} & {*caplog.messages}
    own.stop()
    await soon(lambda: caplog.messages.count(told[0]) > 1)  # each attempt
    assert told[1] not in caplog.messages
    own.start()
    await soon(lambda: told[1] in caplog.messages)
    assert [message for message in caplog.messages if message in told][-2:] == [*told]


async def test_a_bridge_may_be_there_before_its_server(fresh_server: Callable[..., Server], make: MakeAuth) -> None:
    own = fresh_server(aof=True)
    Store(own.client()).add_user(user("alice"))
    own.stop()
    one = await make(own)
    assert (await one.login()).reason is Reason.SERVER_UNAVAILABLE
    own.start()
    assert (await one.login()).allowed


async def test_a_cut_subscription_loses_no_change(server: Server, store: Store, make: MakeAuth) -> None:
    store.add_user(user("alice"))
    one = await make(server, auth_poll_s=60.0)
    identity = (await one.login()).identity
    for number in range(5):
        one.changes.clear()
        server.client().execute_command("CLIENT", "KILL", "TYPE", "pubsub")
        await asyncio.to_thread(put, store, EVERYBODY, f"allow publish a{number}")
        assert (await soon_denied(one, identity)).rules.may_publish(b"a%d" % number)


async def test_a_change_without_a_notice_is_found_by_looking(
    server: Server, client: redis.Redis, store: Store, make: MakeAuth
) -> None:
    store.add_user(user("alice"))
    one = await make(server, auth_poll_s=0.1)
    identity = (await one.login()).identity
    client.hset(ROLES, "everybody", "allow publish a")
    client.incr(VERSION)
    assert (await soon_denied(one, identity)).rules.may_publish(b"a")


async def test_a_notice_that_lies_changes_nothing(
    server: Server, client: redis.Redis, store: Store, make: MakeAuth
) -> None:
    store.add_user(user("alice"))
    one = await make(server)
    version = one.auth.version
    for lie in (
        "nonsense",
        '{"version": 1, "after": 0, "users": null}',
        '{"version": 99, "after": 98, "users": ["x"]}',
    ):
        client.publish(CHANNEL, lie)
    put(store, EVERYBODY, "allow publish a")
    await soon(lambda: one.auth.version != version)
    assert one.auth.version == store.version()
    assert (await one.login()).rules.may_publish(b"a")


async def test_what_cannot_be_read_refuses_only_whom_it_concerns(
    server: Server, client: redis.Redis, store: Store, make: MakeAuth
) -> None:
    store.add_role("bad", rules("deny all secret"))
    store.add_user(user("alice", roles=("bad",)))
    store.add_user(user("bob"))
    store.add_user(user("carol"))
    store.add_user(user("dave"))
    client.hset(ROLES, "bad", "deny everything please")
    client.hset(user_key("carol"), "rules", "nonsense")
    client.delete(user_key("dave"))
    client.set(user_key("dave"), "no hash")
    store.announce()
    one = await make(server)
    found = {name: (await one.login(name, "pw")).reason for name in ("alice", "bob", "carol", "dave")}
    assert found == {
        "alice": Reason.NOT_AUTHORIZED, "bob": Reason.ACCEPTED,
        "carol": Reason.NOT_AUTHORIZED, "dave": Reason.NOT_AUTHORIZED,
    }  # fmt: skip
    client.delete(BLOCKED)
    client.set(BLOCKED, "no hash")
    store.announce()
    assert (await one.login("bob", "pw")).reason is Reason.SERVER_UNAVAILABLE


async def test_a_listener_that_fails_does_not_end_the_following(server: Server, store: Store) -> None:
    told: list[Change] = []

    def fails(change: Change) -> None:
        told.append(change)
        raise RuntimeError("a defect of the listener")

    def told_more_than(number: int) -> bool:
        return len(told) > number

    auth = Authenticator(server.url, AuthSettings(), local_only=False, on_change=fails)
    await auth.start()
    try:
        for number in range(3):
            await asyncio.to_thread(put, store, EVERYBODY, f"allow publish a{number}")
            await soon(partial(told_more_than, number))
    finally:
        await auth.stop()


async def test_a_client_of_the_callers_own_making_is_used_and_closed(server: Server, store: Store) -> None:
    store.add_user(user("alice"))
    made: list[redis.asyncio.Redis] = []

    def connect() -> redis.asyncio.Redis:
        made.append(redis.asyncio.Redis.from_url(server.url))
        return made[-1]

    auth = Authenticator(connect, AuthSettings(), local_only=False)
    await auth.start()
    verdict = await auth.authenticate(b"c", "alice", b"pw")
    assert verdict.allowed
    await auth.stop()
    await auth.stop()
    assert len(made) == 1
    assert (await auth.authenticate(b"c", "alice", b"pw")).reason is Reason.SERVER_UNAVAILABLE


async def test_logins_that_wait_when_it_stops_are_refused(server: Server, store: Store) -> None:
    store.add_user(User("alice", PasswordHasher(4, 65_536, 1).hash("pw")))
    auth = Authenticator(server.url, AuthSettings(), local_only=False)
    await auth.start()
    logins = [asyncio.ensure_future(auth.authenticate(b"c", "alice", b"%d" % number)) for number in range(20)]
    await soon(lambda: auth.passwords_checked)
    await auth.stop()
    verdicts = await asyncio.gather(*logins)
    assert not any(verdict.allowed for verdict in verdicts)
    assert {verdict.reason for verdict in verdicts} <= {
        Reason.SERVER_BUSY, Reason.SERVER_UNAVAILABLE, Reason.BAD_CREDENTIALS, Reason.BANNED,
    }  # fmt: skip
