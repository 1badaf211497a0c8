"""SESSION.OPEN ... IDENTITY: a session belongs to whom it was opened for, and nobody else gets it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from holdmq.core import Delivery, DeliveryKind
from tests.module.sessions_support import Opened, Session, Will, assert_indexes_hold, error_of, publish, unchanged
from tests.support import Server, ServerKind, eventually

KEY = "{c}"


def opened(client: redis.Redis, *options: str | int, owner: str = "b", expiry: int = 60) -> Opened:
    """SESSION.OPEN."""
    return Opened(*client.execute_command("SESSION.OPEN", KEY, "OWNER", owner, "EXPIRY", expiry, *options))


def identity(client: redis.Redis) -> bytes | None:
    """As SESSION.INFO tells it."""
    found = Session(client).info()["identity"]
    assert found is None or isinstance(found, bytes)
    return found


@pytest.fixture
def of_alice(client: redis.Redis) -> Opened:
    """Alice's session, connected, with a subscription and a message."""
    made = opened(client, "IDENTITY", "user:alice")
    Session(client).subscribe(("secret/#", 1), epoch=made.epoch)
    publish(client, "secret/plan", "attack at dawn", qos=1)
    return made


@pytest.mark.parametrize("options", [(), ("CLEAN",), ("ATTEMPT", "t"), ("ADOPT", "anonymous")])
@pytest.mark.parametrize("connected", [True, False])
def test_another_identity_is_refused_and_changes_nothing(
    client: redis.Redis, of_alice: Opened, connected: bool, options: tuple[str, ...]
) -> None:
    if not connected:
        Session(client).close(of_alice.epoch)
    with client.pubsub() as inbox:
        inbox.subscribe("{c}_inbox")
        assert inbox.get_message(timeout=5)
        with unchanged(client):
            refused = error_of(client, "SESSION.OPEN", KEY, "OWNER", "b", "IDENTITY", "user:bob", *options)
        assert refused is not None
        assert refused.startswith("IDENTITY the session '{c}' belongs to 'user:alice', not to 'user:bob'")
        assert inbox.get_message(timeout=0.05) is None  # the owner is not told, because nothing has happened
    assert client.info("holdmq")["holdmq_identities_refused"] >= 1
    assert Session(client).fetch().entries
    assert_indexes_hold(client)


def test_the_same_identity_takes_its_session_over(client: redis.Redis, of_alice: Opened) -> None:
    again = opened(client, "IDENTITY", "user:alice")
    assert again.present == 1
    assert again.epoch > of_alice.epoch


def test_replace_drops_the_session_of_another_identity_in_one_step(client: redis.Redis, of_alice: Opened) -> None:
    with client.pubsub() as inbox:
        inbox.subscribe("{c}_inbox")
        assert inbox.get_message(timeout=5)
        replaced = opened(client, "IDENTITY", "user:bob", "REPLACE")
        told = inbox.get_message(timeout=5)
    assert told is not None
    notice = Delivery.decode(told["data"])
    assert (notice.kind, notice.serial) == (DeliveryKind.TAKEN_OVER, replaced.epoch)
    assert replaced.present == 0
    assert replaced.epoch > of_alice.epoch
    assert identity(client) == b"user:bob"
    assert Session(client).fetch().entries == []
    assert client.execute_command("SESSION.SUBSCRIPTIONS", KEY) in ({}, [])
    assert publish(client, "secret/plan", "again", qos=1) == 0
    assert_indexes_hold(client)


def test_replace_publishes_the_will_of_the_session_that_it_drops(client: redis.Redis) -> None:
    listener = Session(client, "{listener}")
    listener.open(expiry=60)
    listener.subscribe(("will", 1))
    opened(client, "IDENTITY", "user:alice", *map(str, Will(delay=100).words))
    opened(client, "IDENTITY", "user:bob", "REPLACE")
    assert len(listener.fetch().entries) == 1


@pytest.mark.usefixtures("of_alice")
def test_replace_keeps_the_session_of_its_own_identity(client: redis.Redis) -> None:
    assert opened(client, "IDENTITY", "user:alice", "REPLACE").present == 1
    assert Session(client).fetch().entries


@pytest.mark.usefixtures("of_alice")
def test_a_replacing_attempt_that_is_repeated_replaces_once(client: redis.Redis) -> None:
    first = opened(client, "IDENTITY", "user:bob", "REPLACE", "ATTEMPT", "t")
    Session(client).add("m")
    assert opened(client, "IDENTITY", "user:bob", "REPLACE", "ATTEMPT", "t") == first
    assert len(Session(client).fetch().entries) == 1


def test_a_session_without_the_field_belongs_to_the_first_that_says_who_it_is(client: redis.Redis) -> None:
    opened(client)
    assert identity(client) is None
    assert opened(client, "IDENTITY", "user:bob").present == 1
    assert identity(client) == b"user:bob"
    assert (error_of(client, "SESSION.OPEN", KEY, "OWNER", "b", "IDENTITY", "user:alice") or "").startswith("IDENTITY ")


def test_a_queue_that_nobody_opened_is_adopted(client: redis.Redis) -> None:
    Session(client).add("imported")
    assert opened(client, "IDENTITY", "user:bob").present == 1
    assert identity(client) == b"user:bob"


@pytest.mark.usefixtures("of_alice")
def test_a_program_without_identity_opens_any_session_and_leaves_it_to_its_owner(client: redis.Redis) -> None:
    assert opened(client).present == 1
    assert identity(client) == b"user:alice"


def test_an_identity_that_is_named_is_adopted_and_no_other(client: redis.Redis) -> None:
    opened(client, "IDENTITY", "anonymous")
    refused = error_of(client, "SESSION.OPEN", KEY, "OWNER", "b", "IDENTITY", "user:bob", "ADOPT", "anonymou")
    assert (refused or "").startswith("IDENTITY ")
    assert opened(client, "IDENTITY", "user:bob", "ADOPT", "anonymous").present == 1
    assert identity(client) == b"user:bob"


def test_a_session_that_ended_leaves_its_name_to_whoever_comes(client: redis.Redis) -> None:
    first = opened(client, "IDENTITY", "user:alice", expiry=0)
    assert (error_of(client, "SESSION.OPEN", KEY, "OWNER", "b", "IDENTITY", "user:bob") or "").startswith("IDENTITY ")
    Session(client).close(first.epoch)
    bobs = opened(client, "IDENTITY", "user:bob", expiry=1)
    assert bobs.present == 0
    Session(client).close(bobs.epoch)
    eventually(lambda: not Session(client).info()["exists"])
    assert opened(client, "IDENTITY", "user:carol").present == 0


@pytest.mark.usefixtures("of_alice")
def test_a_new_session_without_identity_belongs_to_nobody(client: redis.Redis) -> None:
    opened(client, "CLEAN")
    assert identity(client) is None


@pytest.mark.usefixtures("of_alice")
def test_the_identity_is_listed_and_outlives_a_reload(client: redis.Redis) -> None:
    client.execute_command("DEBUG", "RELOAD")
    assert client.execute_command("SESSION.LIST")[1][0][5] == b"user:alice"
    assert client.hget("{c}_session", "identity") == b"user:alice"
    assert (error_of(client, "SESSION.OPEN", KEY, "OWNER", "b", "IDENTITY", "user:bob") or "").startswith("IDENTITY ")
    Session(client).drop()
    assert identity(client) is None


@pytest.fixture
def follower(server_kind: ServerKind, server: Server, tmp_path: Path) -> Iterator[redis.Redis]:
    """A client of a replica."""
    replica = Server(server_kind, tmp_path, replica_of=server)
    try:
        replica.start()
        yield replica.client()
    finally:
        replica.close()


def test_a_replica_has_the_identity(client: redis.Redis, follower: redis.Redis) -> None:
    opened(client, "IDENTITY", "user:alice")
    eventually(lambda: follower.hget("{c}_session", "identity") == b"user:alice")
    opened(client, "IDENTITY", "user:bob", "REPLACE")
    eventually(lambda: follower.hget("{c}_session", "identity") == b"user:bob")
    opened(client, "CLEAN")
    eventually(lambda: follower.hget("{c}_session", "identity") is None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("IDENTITY",), "IDENTITY is missing"),
        (("IDENTITY", ""), "IDENTITY has 0 bytes; expected a name of 1 to 2048"),
        (("IDENTITY", "x" * 2049), "IDENTITY has 2049 bytes; expected a name of 1 to 2048"),
        (("ADOPT", "x"), "IDENTITY is missing; expected, with ADOPT, IDENTITY <name>"),
        (("REPLACE",), "IDENTITY is missing; expected, with REPLACE, IDENTITY <name>"),
        (("IDENTITY", "x", "ADOPT", ""), "ADOPT has 0 bytes"),
    ],
)
def test_a_claim_that_cannot_be_is_refused(client: redis.Redis, options: tuple[str, ...], message: str) -> None:
    with unchanged(client):
        assert message in (error_of(client, "SESSION.OPEN", KEY, "OWNER", "b", *options) or "")
