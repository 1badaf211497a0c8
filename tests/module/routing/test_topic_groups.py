"""TOPIC.GROUPS and CHANNEL.LIST: pages of groups of shared subscriptions, and of channels that keep messages."""

from typing import Any

import pytest
import redis

from holdmq import HoldMQ, commands
from tests.module.sessions_support import error_of
from tests.support import Server

COMMANDS = ("TOPIC.GROUPS", "CHANNEL.LIST")


def rows(client: redis.Redis, command: str, *words: object) -> Any:
    cursor, found = client.execute_command(command, *words)
    assert cursor == b"0"
    return found


def subscribe(client: redis.Redis, session: str, topic_filter: str) -> None:
    client.execute_command("SESSION.SUBSCRIBE", session, topic_filter, 1)


def test_groups_are_listed_with_members_and_waiting_messages(client: redis.Redis) -> None:
    for session in ("{a}", "{b}"):
        subscribe(client, session, "$share/g/plant/#")
    subscribe(client, "{a}", "$share/h/x")
    subscribe(client, "{a}", "plain")
    for _ in range(3):
        client.execute_command("TOPIC.PUBLISH", "plant/1", "m", "QOS", 1)
    assert rows(client, "TOPIC.GROUPS") == [[b"$share/g/plant/#", 2, 3], [b"$share/h/x", 1, 0]]
    client.execute_command("SESSION.UNSUBSCRIBE", "{a}", "$share/h/x")
    client.execute_command("SESSION.UNSUBSCRIBE", "{a}", "$share/g/plant/#")
    assert rows(client, "TOPIC.GROUPS") == [[b"$share/g/plant/#", 1, 3]]


def test_channels_are_listed_with_what_they_keep(client: redis.Redis) -> None:
    client.config_set("holdmq.policies", "last:* hold=none last=on; * hold=unheard")
    for channel, count in (("b", 1), ("a", 2), ("0", 1), ("last:x", 3)):
        for _ in range(count):
            client.publish(channel, "m")
    assert rows(client, "CHANNEL.LIST") == [[b"0", 1, 0], [b"a", 2, 0], [b"b", 1, 0], [b"last:x", 0, 1]]
    client.lpop("holdmq:held:{a}", 2)
    client.delete("holdmq:held:{b}")
    assert rows(client, "CHANNEL.LIST") == [[b"0", 1, 0], [b"last:x", 0, 1]]


def test_lists_of_the_application_are_not_channels(client: redis.Redis) -> None:
    client.rpush("jobs", "mine")
    client.set("other", "x")
    assert rows(client, "CHANNEL.LIST") == []


def test_pages_of_long_names_end_early(client: redis.Redis) -> None:
    names = [f"{'n' * 16_000}{number:02}" for number in range(50)]
    for name in names:
        client.publish(name, "m")
        subscribe(client, "{a}", f"$share/g/{name}")
    for command in COMMANDS:
        cursor, found, longest = b"0", list[bytes](), 0
        while True:
            cursor, page = client.execute_command(command, "CURSOR", cursor, "COUNT", 1000)
            found += [row[0] for row in page]
            longest = max(longest, sum(len(row[0]) for row in page))
            if cursor == b"0":
                break
        assert [name.decode().removeprefix("$share/g/") for name in found] == names
        assert longest <= 262_144 + 16_010


def test_pages_list_each_once_though_others_come_and_go(client: redis.Redis) -> None:
    hold = HoldMQ(client)
    for number in range(25):
        client.publish(f"c{number:02}", "m")
        subscribe(client, "{a}", f"$share/g{number:02}/x")
    channels: list[str] = []
    groups: list[str] = []
    cursor: str | None = "0"
    while cursor is not None:
        page = hold.execute(commands.channel_list(cursor=cursor, count=10))
        channels += [row.channel for row in page.channels]
        cursor = page.cursor
        client.publish("aaa", "m")  # before the place of the next page
    cursor = "0"
    while cursor is not None:
        part = hold.execute(commands.topic_groups(cursor=cursor, count=7))
        groups += [row.filter for row in part.groups]
        cursor = part.cursor
        client.execute_command("SESSION.UNSUBSCRIBE", "{a}", groups[-1])
    assert channels == [f"c{number:02}" for number in range(25)]
    assert groups == [f"$share/g{number:02}/x" for number in range(25)]


def test_a_user_sees_what_it_may_read(client: redis.Redis, server: Server) -> None:
    for name in ("mine:1", "other"):
        client.publish(name, "m")
        subscribe(client, "{a}", f"$share/{name}/x")
    keys = ["mine:*", "{$share/mine:*"]
    client.acl_setuser("guest", enabled=True, nopass=True, commands=["+@all"], keys=keys, channels=["*"])
    with redis.Redis(port=server.port, username="guest", password="x") as guest:  # noqa: S106
        assert [row[0] for row in rows(guest, "CHANNEL.LIST")] == [b"mine:1"]
        assert [row[0] for row in rows(guest, "TOPIC.GROUPS")] == [b"$share/mine:1/x"]


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("CURSOR", "1"), "CURSOR is '1'; expected 0, or the cursor of the previous reply"),
        (("CURSOR", ">"), "CURSOR is '>'"),
        (("CURSOR", ""), "CURSOR is ''"),
        (("CURSOR",), "CURSOR is missing"),
        (("COUNT", 0), "COUNT is '0'; expected a whole number from 1 to 1000"),
        (("COUNT", 1001), "COUNT is '1001'"),
        (("MORE",), "unexpected argument 'MORE'"),
    ],
)
def test_what_is_wrong_is_named(client: redis.Redis, command: str, words: tuple[str | int, ...], message: str) -> None:
    assert message in (error_of(client, command, *words) or "")
