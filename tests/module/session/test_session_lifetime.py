"""SESSION.OPEN, TOUCH, CLOSE: who owns a session, and when it ends."""

import time

import pytest
import redis
from redis.crc import key_slot

from holdmq import core
from tests.module.sessions_support import (
    Inbox,
    Session,
    assert_indexes_hold,
    epoch_after,
    error_of,
    names,
    now_ms,
    payloads,
    publish,
    snapshot,
    unchanged,
)
from tests.support import RawClient, ReplyError, Server, eventually

DEFAULT_LEASE_S = 3600
LONGEST_EXPIRY_S = 4294967295


@pytest.fixture
def session(client: redis.Redis) -> Session:
    return Session(client)


def filled(session: Session, *, expiry: int | None = None, lease: int | None = None) -> int:
    """Opens the session, gives it every kind of key that commands write, and returns the epoch."""
    epoch = session.open(expiry=expiry, lease=lease).epoch
    session.add("a", "b", ttl=50)
    session.subscribe(("x/#", 1))
    return epoch


def ends(client: redis.Redis, *names: bytes) -> set[int]:
    """The absolute expiry times of keys, ms."""
    return {int(client.execute_command("PEXPIRETIME", name)) for name in names}


def structure(session: Session) -> list[bytes]:
    """The keys of a filled session that end with it: its messages have a TTL, its counter may stay for a minute."""
    return [session.name(name) for name in ("session", "subscriptions", "messages")]


def assert_counter_ends_within_a_minute_after(client: redis.Redis, session: Session, end: int) -> None:
    assert end <= client.execute_command("PEXPIRETIME", session.name("last_packet_id")) <= end + 60_000


# --- Opening ----------------------------------------------------------------------------------------------------------


def test_a_new_session_is_not_present_and_one_that_was_kept_is(session: Session) -> None:
    first = session.open("bridge-1", expiry=60)
    assert first.present == 0
    assert session.info()["owner"] == b"bridge-1"
    second = session.open("bridge-2", expiry=60)
    assert second.present == 1
    assert session.info()["owner"] == b"bridge-2"
    assert session.info()["epoch"] == second.epoch


def test_opening_keeps_messages_and_subscriptions(session: Session) -> None:
    filled(session, expiry=60)
    session.open(expiry=60)
    assert session.fetch().values == [b"a", b"b"]
    assert session.subscriptions() == {b"x/#": 1}


def test_a_clean_start_drops_what_was_there(session: Session, client: redis.Redis) -> None:
    filled(session, expiry=60)
    client.zadd("{c}_received", {"9": now_ms(client)})
    assert session.open(clean=True, expiry=60).present == 0
    assert session.keys() == {b"{c}_session"}
    assert session.info()["connected"] == 1
    assert publish(client, "x/y", "not subscribed any more") == 0
    assert session.open(expiry=60).present == 1


@pytest.mark.parametrize(("expiry", "present"), [(None, False), (0, False), (1, True)])
def test_a_session_that_ends_with_its_connection_does_not_outlive_a_takeover(
    session: Session, expiry: int | None, present: bool
) -> None:
    filled(session, expiry=expiry)
    assert session.open(expiry=60).present == int(present)
    assert bool(session.fetch().entries) is present  # [MQTT-3.1.2-6] of MQTT 3.1.1


def test_the_epoch_grows_with_each_open_whoever_did_it(session: Session) -> None:
    epochs = [session.open(owner, clean=clean).epoch for owner in ("a", "a", "b") for clean in (False, True)]
    assert epochs == sorted(set(epochs))
    assert epochs[0] > 0


def test_the_epoch_grows_over_a_drop(session: Session) -> None:
    before = session.open().epoch
    session.drop()
    assert session.open().epoch > before


def test_the_epoch_grows_even_if_the_clock_went_back(session: Session, client: redis.Redis) -> None:
    session.open()
    ahead = epoch_after(session.info()["epoch"])
    client.hset("{c}_session", "epoch", ahead)
    assert session.open().epoch == ahead + 1


def test_what_was_queued_before_the_first_open_is_present(session: Session) -> None:
    session.add("waited")
    assert session.open(expiry=60).present == 1
    assert session.fetch().values == [b"waited"]


def test_an_owner_may_be_any_bytes(session: Session, client: redis.Redis) -> None:
    client.execute_command("SESSION.OPEN", "{c}", "OWNER", b"\x00{}%\xff")
    assert session.info()["owner"] == b"\x00{}%\xff"


# --- Fencing ----------------------------------------------------------------------------------------------------------


def fenced_commands(epoch: int) -> list[tuple[str | int, ...]]:
    """Every command that takes an epoch."""
    return [
        ("SESSION.FETCH", "{c}", "EPOCH", epoch),
        ("SESSION.FETCH", "{c}", "EPOCH", epoch, "WINDOW", 5),
        ("SESSION.ACK", "{c}", "EPOCH", epoch, 1),
        ("SESSION.ACK", "{c}", "EPOCH", epoch, "NEXT", 5, 1),
        ("SESSION.SENT", "{c}", "EPOCH", epoch, 2),
        ("SESSION.RELEASE", "{c}", "EPOCH", epoch, 1),
        ("SESSION.RECEIVE", "{c}", "EPOCH", epoch, 1),
        ("SESSION.COMPLETE", "{c}", "EPOCH", epoch, 1),
        ("SESSION.TOUCH", "{c}", "EPOCH", epoch),
        ("SESSION.SUBSCRIBE", "{c}", "EPOCH", epoch, "y", 1),
        ("SESSION.UNSUBSCRIBE", "{c}", "EPOCH", epoch, "x/#"),
        ("SESSION.CLOSE", "{c}", "EPOCH", epoch, "EXPIRY", 5),
        ("SESSION.CLOSE", "{c}", "EPOCH", epoch, "EXPIRY", 0),
        ("SESSION.DROP", "{c}", "EPOCH", epoch),
    ]


def assert_refused(raw: RawClient, client: redis.Redis, code: str, command: tuple[str | int, ...]) -> None:
    with unchanged(client), pytest.raises(ReplyError, match=f"^{code} ") as refused:
        raw.call(*command)
    assert "{c}" in str(refused.value)


def test_a_former_owner_is_refused_every_command_and_changes_nothing(
    server: Server, session: Session, client: redis.Redis
) -> None:
    lost = filled(session, expiry=60)
    current = session.open("another").epoch
    with RawClient(server.port) as raw:
        for epoch in (lost, lost - 1, current + 1, 1, 2**63 - 1):
            for command in fenced_commands(epoch):
                assert_refused(raw, client, "FENCED", command)
        for command in fenced_commands(current)[:-3]:
            raw.call(*command)
    assert session.subscriptions() == {b"y": 1}


def test_a_session_that_was_not_opened_has_no_epoch(server: Server, session: Session, client: redis.Redis) -> None:
    session.add("a")
    session.subscribe(("x/#", 1))
    with RawClient(server.port) as raw:
        for command in fenced_commands(5):
            assert_refused(raw, client, "NOSESSION", command)


def test_epoch_0_checks_nothing_where_it_may_be_left_out(session: Session) -> None:
    filled(session, expiry=60)
    assert session.fetch(epoch=0).values == [b"a", b"b"]
    assert session.ack(1, epoch=0) == 1
    assert session.unsubscribe("x/#", epoch=0) == [1]
    assert session.drop(epoch=0) == 1


def test_touch_and_close_need_an_epoch(server: Server, session: Session, client: redis.Redis) -> None:
    session.open(expiry=60)
    with RawClient(server.port) as raw:
        for command in (
            ("SESSION.TOUCH", "{c}", "EPOCH", 0),
            ("SESSION.CLOSE", "{c}", "EPOCH", 0),
            ("SESSION.CLOSE", "{c}", "EXPIRY", 5),
        ):
            with unchanged(client), pytest.raises(ReplyError, match=r"^ERR EPOCH "):
                raw.call(*command)


def test_the_owner_with_the_current_epoch_is_served(session: Session) -> None:
    epoch = session.open(expiry=60).epoch
    assert session.subscribe(("a", 1), epoch=epoch) == [1]
    session.add("m", "n")
    assert session.fetch(epoch=epoch).values == [b"m", b"n"]
    assert session.ack(1, epoch=epoch) == 1
    assert session.touch(epoch) == b"OK"
    assert session.unsubscribe("a", epoch=epoch) == [1]
    assert session.close(epoch) == b"OK"
    assert session.open().present == 1


# --- Takeover ---------------------------------------------------------------------------------------------------------


def test_a_former_owner_that_listens_learns_of_the_takeover_and_its_epoch(server: Server, session: Session) -> None:
    session.open("bridge-1", expiry=60)
    with Inbox(server) as inbox, Inbox(server, "{other}") as other:
        epoch = session.open("bridge-2", expiry=60).epoch
        notice = inbox.take_one()
        assert notice == core.Delivery(core.DeliveryKind.TAKEN_OVER, serial=epoch)
        epoch = session.open("bridge-3", clean=True).epoch
        assert inbox.take_one() == core.Delivery(core.DeliveryKind.TAKEN_OVER, serial=epoch)
        assert other.take() == []


@pytest.mark.parametrize("how", [("SESSION.DROP", "{c}"), ("DEL", "{c}_session"), ("FLUSHDB",)])
def test_an_owner_that_listens_learns_that_the_session_is_gone(
    server: Server, session: Session, how: tuple[str, ...]
) -> None:
    epoch = session.open(expiry=60).epoch
    with Inbox(server, "{c}") as inbox:
        session.client.execute_command(*how)
        notice = eventually(inbox.take, what="a notice")
        assert notice == [core.Delivery(core.DeliveryKind.DROPPED, serial=epoch)]
        session.open(expiry=60)
        session.close(session.info()["epoch"])
        session.drop()  # nobody is connected
        assert inbox.take() == []


def test_a_new_session_sends_no_notice_of_a_takeover(server: Server, session: Session) -> None:
    with Inbox(server) as inbox:
        session.open("bridge-1")
        assert inbox.take() == []


# --- The end ----------------------------------------------------------------------------------------------------------


def test_an_open_session_ends_after_its_expiry_and_lease(session: Session, client: redis.Redis) -> None:
    before = now_ms(client)
    session.add("queued before")
    filled(session, expiry=60, lease=30)
    after = now_ms(client)
    (end,) = ends(client, *structure(session))
    assert before + 90_000 <= end <= after + 90_000
    assert_counter_ends_within_a_minute_after(client, session, end)
    assert 89_000 <= session.info()["ttl_ms"] <= 90_000


def test_the_default_lease_is_an_hour_and_the_default_expiry_none(session: Session, client: redis.Redis) -> None:
    before = now_ms(client)
    session.open()
    (end,) = ends(client, b"{c}_session")
    assert before + DEFAULT_LEASE_S * 1000 <= end <= now_ms(client) + DEFAULT_LEASE_S * 1000
    assert session.info()["expiry"] == 0


def test_the_longest_expiry_is_accepted(session: Session, client: redis.Redis) -> None:
    epoch = session.open(expiry=LONGEST_EXPIRY_S, lease=LONGEST_EXPIRY_S).epoch
    assert session.info()["ttl_ms"] > (2 * LONGEST_EXPIRY_S - 10) * 1000
    session.close(epoch, LONGEST_EXPIRY_S)
    assert session.info()["expiry"] == LONGEST_EXPIRY_S
    assert client.pttl("{c}_session") > (LONGEST_EXPIRY_S - 10) * 1000


def test_what_comes_later_ends_with_the_session_too(session: Session, client: redis.Redis) -> None:
    session.open(expiry=60, lease=30)
    (end,) = ends(client, b"{c}_session")
    session.add("later", ttl=2**31 - 1)
    session.subscribe(("y", 0))
    publish(client, "y", "also", qos=1)
    assert ends(client, *structure(session)) == {end}


def test_a_touch_renews_the_lease_of_all_keys(session: Session, client: redis.Redis) -> None:
    epoch = filled(session, expiry=60, lease=30)
    for name in structure(session):
        client.pexpireat(name, now_ms(client) + 5000)
    before = now_ms(client)
    session.touch(epoch)
    (end,) = ends(client, *structure(session))
    assert before + 90_000 <= end <= now_ms(client) + 90_000


def test_a_closed_session_ends_after_its_expiry(session: Session, client: redis.Redis) -> None:
    epoch = filled(session, expiry=60, lease=30)
    before = now_ms(client)
    session.close(epoch)
    (end,) = ends(client, *structure(session))
    assert before + 60_000 <= end <= now_ms(client) + 60_000
    assert_counter_ends_within_a_minute_after(client, session, end)
    assert session.info()["connected"] == 0
    assert session.info()["epoch"] == epoch


def test_close_may_change_the_expiry(session: Session, client: redis.Redis) -> None:
    epoch = filled(session, expiry=0)
    before = now_ms(client)
    session.close(epoch, 500)
    (end,) = ends(client, *structure(session))
    assert before + 500_000 <= end <= now_ms(client) + 500_000
    assert session.info()["expiry"] == 500


@pytest.mark.parametrize("expiry", [None, 0])
def test_a_session_without_expiry_is_dropped_when_it_is_closed(
    session: Session, client: redis.Redis, expiry: int | None
) -> None:
    epoch = filled(session, expiry=0 if expiry is None else 60)
    client.zadd("{c}_received", {"9": now_ms(client)})
    session.close(epoch, expiry)
    assert snapshot(client) == {}
    assert publish(client, "x/y", "nobody") == 0


def test_a_session_that_comes_back_in_time_is_kept(session: Session, client: redis.Redis) -> None:
    epoch = filled(session, expiry=60)
    session.close(epoch)
    publish(client, "x/y", "while away", qos=1)
    assert session.open(expiry=100, lease=10).present == 1
    assert len(session.fetch().entries) == 3
    (end,) = ends(client, *structure(session))
    assert now_ms(client) + 100_000 < end <= now_ms(client) + 110_000


def test_a_closed_session_ends_to_the_second(session: Session, client: redis.Redis) -> None:
    epoch = filled(session)
    closed = time.monotonic()
    session.close(epoch, 1)
    eventually(lambda: not session.info()["exists"], what="the end of the session")
    assert time.monotonic() - closed >= 0.95
    assert session.subscriptions() == {}
    assert session.fetch().entries == []
    assert publish(client, "x/y", "nobody") == 0
    assert session.open().present == 0
    assert session.fetch().entries == []


def test_a_session_that_has_ended_is_not_served_though_the_server_has_not_cleared_it_yet(
    server: Server, session: Session, client: redis.Redis
) -> None:
    client.execute_command("DEBUG", "SET-ACTIVE-EXPIRE", 0)
    try:
        session.close(filled(session), 3)
        (end,) = ends(client, *structure(session))
        eventually(lambda: now_ms(client) > end + 1)
        with Inbox(server) as inbox:
            assert publish(client, "x/y", "stored", qos=1) == 0
            assert publish(client, "x/y", "pushed", qos=0) == 0
            assert inbox.take() == []
        assert not session.keys() & {b"{c}_messages"}
        assert session.info()["messages"] == 0
    finally:
        client.execute_command("DEBUG", "SET-ACTIVE-EXPIRE", 1)


def test_nothing_of_a_session_outlives_it(session: Session, client: redis.Redis) -> None:
    epoch = session.open().epoch
    session.add("with a TTL of its own, longer than the session", ttl=100)
    session.subscribe(("x/#", 1))
    session.close(epoch, 1)
    eventually(lambda: client.dbsize() == 0, what="the end of all keys")


def test_no_key_of_a_session_is_without_expiry_whatever_happens(session: Session, client: redis.Redis) -> None:
    def assert_all_end() -> None:
        assert [name for name, key in snapshot(client).items() if key.expires_ms == -1] == []

    session.subscribe(("x/#", 1))
    assert_all_end()
    session.add("a", "b")
    assert_all_end()
    session.unsubscribe("x/#")
    session.ack(1, 2)
    assert_all_end()
    epoch = session.open().epoch
    assert_all_end()
    session.add("c")
    session.subscribe(("y", 0))
    assert_all_end()
    session.touch(epoch)
    client.set("{c}_last_packet_id", 65535, keepttl=True)
    session.add("wrapped")
    assert_all_end()
    session.close(epoch, 9)
    assert_all_end()
    publish(client, "y", "while closed", qos=1)
    assert_all_end()
    session.ack(*session.fetch().packet_ids)
    assert_all_end()
    session.open(clean=True)
    assert_all_end()


# --- Client ids -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "client_id",
    [
        "sensor-1",
        "}",
        "{",
        "{}",
        "a}b{c",
        "%",
        "%7B",
        "100%",
        "}_messages",
        " ",
        "a b",
        "ü/€",
        "x" * 1000,
        "_messages",
        "*",
    ],
    ids=lambda client_id: client_id[:20],
)
def test_any_client_id_has_a_session_in_one_slot_of_a_cluster(client: redis.Redis, client_id: str) -> None:
    session = Session(client, core.session_key(client_id))
    epoch = session.open(expiry=60).epoch
    session.subscribe(("t", 1))
    assert publish(client, "t", "m", qos=1, publisher=client_id) == 1
    session.add("n")
    assert len(session.fetch(epoch=epoch).entries) == 2
    assert session.ack(1) == 1
    assert len(names(client)) == 5
    assert len({key_slot(name) for name in names(client)}) == 1
    assert session.keys() == set(names(client))
    assert session.drop() == 1
    assert client.dbsize() == 0


def test_session_keys_of_any_length_are_served_whole(client: redis.Redis) -> None:
    for length in (1, *range(1000, 1030), 65535, 200_000):
        session = Session(client, "{" + "x" * length + "}")
        session.subscribe(("t", 1))
        assert publish(client, "t", "m", qos=1) == 1
        session.open(expiry=60)
        assert session.add_once("p", 1, "a").packet_ids == [2]
        assert session.fetch(window=5).packet_ids == [1, 2]
        assert session.receive(7) == 1
        assert session.ack(1) == 1
        assert len(session.keys()) == 7
        assert session.drop() == 1
        assert client.dbsize() == 0


def test_client_ids_that_look_alike_have_sessions_of_their_own(client: redis.Redis) -> None:
    alike = ["a", "{a", "a}", "{a}", "%7Ba%7D", "a_messages", "%"]
    sessions = [Session(client, core.session_key(client_id)) for client_id in alike]
    for number, session in enumerate(sessions):
        session.subscribe((f"t/{number}", 1))
    for number in range(len(alike)):
        assert publish(client, f"t/{number}", str(number)) == 1
    assert [payloads(session.fetch().entries) for session in sessions] == [
        [str(number).encode()] for number in range(len(alike))
    ]


def test_a_session_key_of_any_bytes_is_served_or_refused_but_never_half(client: redis.Redis) -> None:
    for key in (b"{a\x00b}", b"{\xff\xfe}", b"{a\nb}", b"pre\x00fix{a}"):
        session = Session(client, key)
        error = error_of(client, "SESSION.SUBSCRIBE", key, "t/#", 1)
        if error is not None:
            assert "session key" in error
            assert client.dbsize() == 0
            continue
        assert publish(client, "t/1", "m", qos=1) == 1
        assert len(session.fetch().entries) == 1
        assert_indexes_hold(client)
        session.drop()
        assert client.dbsize() == 0
