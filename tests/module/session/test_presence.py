"""Who comes and goes: holdmq.presence and SESSION.LIST."""

import json
from typing import Any

import pytest
import redis

from holdmq import core
from tests.module.sessions_support import (
    Session,
    epoch_after,
    error_of,
    now_ms,
    publish,
    unchanged,
)
from tests.support import RawClient, Server, eventually


@pytest.fixture
def watcher(client: redis.Redis) -> Session:
    """A session that hears of all."""
    session = Session(client, "{watcher}")
    session.subscribe(("$SYS/clients/#", 1))
    return session


def events(watcher: Session) -> list[tuple[str, Any]]:
    """Topics and objects that the watcher got."""
    records = [core.Record.decode(value) for value in watcher.fetch(count=1000).values]
    return [(record.topic.decode(), json.loads(record.payload)) for record in records]


def told(watcher: Session) -> list[tuple[str, str, str, int]]:
    """Event, reason, owner, epoch of all that the watcher got."""
    return [(told["event"], told["reason"], told["owner"], told["epoch"]) for _, told in events(watcher)]


# --- Presence ---------------------------------------------------------------------------------------------------------


def test_opening_and_closing_are_reported_on_the_topic_and_the_channel(
    server: Server, client: redis.Redis, watcher: Session
) -> None:
    with RawClient(server.port) as listener:
        listener.call("SUBSCRIBE", "holdmq:presence")
        before = now_ms(client)
        session = Session(client, "{dev}")
        epoch = session.open("bridge-1", expiry=60).epoch
        session.close(epoch)
        heard = [json.loads(message[2]) for message in listener.pending()]  # type: ignore[index]
    (connected_topic, connected), (disconnected_topic, disconnected) = events(watcher)
    assert (connected_topic, disconnected_topic) == ("$SYS/clients/dev/connected", "$SYS/clients/dev/disconnected")
    assert heard == [connected, disconnected]
    assert before <= connected.pop("time") <= disconnected.pop("time") <= now_ms(client)
    assert connected == {"client": "dev", "event": "connected", "owner": "bridge-1", "epoch": epoch, "reason": "new"}
    assert disconnected == connected | {"event": "disconnected", "reason": "closed"}


def test_each_end_of_a_connection_has_its_reason(client: redis.Redis, watcher: Session) -> None:
    session = Session(client, "{dev}")
    first = session.open("b1", expiry=60).epoch
    second = session.open("b2", expiry=60).epoch
    session.close(second, will=True)
    third = session.open("b3", expiry=60).epoch
    session.drop()
    assert told(watcher) == [
        ("connected", "new", "b1", first),
        ("disconnected", "taken over", "b1", first),
        ("connected", "resumed", "b2", second),
        ("disconnected", "lost", "b2", second),
        ("connected", "resumed", "b3", third),
        ("disconnected", "dropped", "b3", third),
    ]


def test_a_lost_owner_is_reported_for_each_session(client: redis.Redis, watcher: Session) -> None:
    client.execute_command("SESSION.OWNER", "b1", "LEASE", 100)
    epochs = [Session(client, key).open("b1", expiry=expiry).epoch for key, expiry in (("{a}", 0), ("{b}", 60))]
    client.execute_command("SESSION.OWNER", "b1", "LEASE", 0)
    eventually(lambda: len(events(watcher)) == 4, what="all events")
    assert told(watcher)[2:] == [("disconnected", "lost", "b1", epoch) for epoch in epochs]


def test_what_was_away_already_is_not_told_once_more(client: redis.Redis, watcher: Session) -> None:
    session = Session(client, "{dev}")
    session.close(session.open(expiry=60).epoch)
    session.drop()
    session.open()
    assert [event for event, *_ in told(watcher)] == ["connected", "disconnected", "connected"]


def test_a_refused_command_reveals_nothing(client: redis.Redis, watcher: Session) -> None:
    session = Session(client, "{dev}")
    epoch = session.open(expiry=60).epoch
    assert error_of(client, "SESSION.CLOSE", "{dev}", "EPOCH", epoch_after(epoch))
    assert len(events(watcher)) == 1


@pytest.mark.parametrize(
    ("client_id", "level"),
    [
        ("a/b+c#d%e", "a%2Fb%2Bc%23d%25e"),
        ('quote" back\\slash', 'quote" back\\slash'),
        ("tab\tbell\x07", "tab\tbell\x07"),
        ("gerät", "gerät"),
        ("{x}", "{x}"),
    ],
)
def test_any_client_id_is_reported(client: redis.Redis, watcher: Session, client_id: str, level: str) -> None:
    Session(client, core.session_key(client_id.encode())).open(client_id)
    ((topic, event),) = events(watcher)
    assert topic == f"$SYS/clients/{level}/connected"
    assert (event["client"], event["owner"]) == (client_id, client_id)


def test_a_client_id_that_is_not_text_is_announced_on_the_channel_only(
    server: Server, client: redis.Redis, watcher: Session
) -> None:
    with RawClient(server.port) as listener:
        listener.call("SUBSCRIBE", "holdmq:presence")
        Session(client, b"{\xff\x00}").open()
        (message,) = listener.pending()
    assert json.loads(message[2])["client"] == "\xff\x00"  # type: ignore[index]
    assert events(watcher) == []


def test_it_can_be_switched_off(client: redis.Redis, watcher: Session) -> None:
    client.config_set("holdmq.presence", "no")
    Session(client, "{dev}").open()
    assert events(watcher) == []
    client.config_set("holdmq.presence", "yes")
    Session(client, "{dev}").open()
    assert len(events(watcher)) == 2


def test_the_channel_is_never_held(client: redis.Redis) -> None:
    Session(client, "{dev}").open()
    assert client.publish("holdmq:presence", "by hand") == 0
    assert not client.exists("holdmq:presence")
    assert client.execute_command("CHANNEL.POLICY", "holdmq:presence")[1] == b"none"


# --- SESSION.LIST -----------------------------------------------------------------------------------------------------


def page(client: redis.Redis, *words: str | int) -> tuple[bytes, list[list[Any]]]:
    """SESSION.LIST."""
    cursor, rows = client.execute_command("SESSION.LIST", *words)
    return cursor, rows


def test_a_page_has_a_bound_of_its_own(client: redis.Redis) -> None:
    keys = [f"{{c{number:04}}}".encode() for number in range(501)]
    pipe = client.pipeline(transaction=False)
    for key in keys:
        pipe.execute_command("SESSION.OPEN", key, "OWNER", "o")
    pipe.execute()
    cursor, rows = page(client, "COUNT", 10_000)
    assert 1 <= len(rows) <= 250  # fewer if its time is over
    found = [row[4] for row in rows]
    while cursor != b"0":
        cursor, rows = page(client, "COUNT", 10_000, "CURSOR", cursor.decode())
        found += [row[4] for row in rows]
    assert found == keys


def test_a_page_of_long_names_ends_early(client: redis.Redis) -> None:
    keys = [f"{{{'c' * 60_000}{number:03}}}".encode() for number in range(100)]
    for key in keys:
        client.execute_command("SESSION.OPEN", key, "OWNER", "o")
    cursor, found, longest = b"0", list[bytes](), 0
    while True:
        cursor, rows = page(client, "COUNT", 10_000, "CURSOR", cursor.decode())
        found += [row[4] for row in rows]
        longest = max(longest, sum(len(row[0]) + len(row[4]) for row in rows))
        if cursor == b"0":
            break
    assert found == keys
    assert longest <= 262_144 + 120_010


def test_a_list_shows_client_connection_owner_and_messages(client: redis.Redis) -> None:
    assert page(client) == (b"0", [])
    away, here = Session(client, "{a%25}"), Session(client, "p:{b}")
    away.close(away.open("b1", expiry=60).epoch)
    here.open("b2")
    here.add("x", "y")
    Session(client, "{never opened}").add("m")
    rows = [[b"b", 1, b"b2", 2, b"p:{b}", None], [b"a%", 0, b"b1", 0, b"{a%25}", None]]
    assert page(client) == (b"0", rows)
    assert page(client, "CONNECTED") == (b"0", rows[:1])


def test_pages_follow_each_other_and_list_each_session_once(client: redis.Redis) -> None:
    keys = {f"{{c{number}}}" for number in range(250)}
    for key in keys:
        session = Session(client, key)
        epoch = session.open(expiry=60).epoch
        if int(key[2:-1]) % 2:
            session.close(epoch)
    for words, expected in (((), keys), (("CONNECTED",), {key for key in keys if not int(key[2:-1]) % 2})):
        cursor, seen, pages = "0", [], 0
        while True:
            next_cursor, rows = page(client, "CURSOR", cursor, "COUNT", 7, *words)
            seen += [row[4].decode() for row in rows]
            pages += 1
            cursor = next_cursor.decode()
            if cursor == "0":
                break
        assert sorted(seen) == sorted(expected)
        assert 36 <= pages < 72  # a page ends early when its time is over


def test_a_session_that_comes_or_goes_between_two_pages_moves_no_other(client: redis.Redis) -> None:
    for name in "bdfh":
        Session(client, f"{{{name}}}").open(expiry=60)
    cursor, rows = page(client, "COUNT", 2)
    Session(client, "{d}").drop()  # the cursor stands there
    for name in "ag":
        Session(client, f"{{{name}}}").open(expiry=60)
    _, rest = page(client, "CURSOR", cursor.decode(), "COUNT", 10)
    assert [row[0] for row in rows + rest] == [b"b", b"d", b"f", b"g", b"h"]


def test_a_list_is_of_one_database(server: Server, client: redis.Redis) -> None:
    Session(client, "{a}").open()
    assert page(server.client(db=3)) == (b"0", [])
    publish(client, "t", "m")
    client.swapdb(0, 3)
    assert page(client) == (b"0", [])
    assert len(page(server.client(db=3))[1]) == 1
    client.swapdb(0, 3)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("CURSOR", "x"), "CURSOR is 'x'; expected 0, or the cursor of the previous reply"),
        (("CURSOR",), "CURSOR is missing"),
        (("COUNT", 0), "COUNT is '0'; expected a whole number from 1 to 10000"),
        (("ALL",), "unexpected argument 'ALL'"),
    ],
)
def test_a_list_that_cannot_be_is_refused(client: redis.Redis, words: tuple[str | int, ...], message: str) -> None:
    with unchanged(client):
        assert message in (error_of(client, "SESSION.LIST", *words) or "")
