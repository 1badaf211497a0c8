"""Packet identifiers as a range, first-last: of SESSION.ACK, RELEASE and COMPLETE."""

import pytest
import redis

from tests.module.sessions_support import Session, unchanged


def test_a_range_stands_for_all_from_the_first_to_the_last(client: redis.Redis) -> None:
    session = Session(client)
    session.add(*[str(number) for number in range(200)])
    assert client.execute_command("SESSION.ACK", "{c}", "1-100", 150, "160-161", "199-199") == 104
    assert [entry.packet_id for entry in session.fetch(count=1000).entries] == [
        *range(101, 150),
        *range(151, 160),
        *range(162, 199),
        200,
    ]


def test_what_a_range_names_and_is_not_there_does_no_harm(client: redis.Redis) -> None:
    session = Session(client)
    session.add("a", "b", "c")
    assert client.execute_command("SESSION.ACK", "{c}", "NEXT", 5, "2-65535") == [2, [[[1, 1, 0, b"a"]], 0, 0]]
    assert client.execute_command("SESSION.ACK", "{c}", "1-65535", "1-65535") == 1
    assert session.fetch().entries == []


def test_releases_and_completions_take_ranges(client: redis.Redis) -> None:
    session = Session(client)
    session.add("a", "b", "c")
    assert client.execute_command("SESSION.RELEASE", "{c}", "1-2") == 2
    assert [entry.state for entry in session.fetch().entries] == [2, 2, 0]
    for packet_id in (7, 8, 10):
        client.execute_command("SESSION.RECEIVE", "{c}", packet_id)
    assert client.execute_command("SESSION.COMPLETE", "{c}", "7-10") == 3


@pytest.mark.parametrize("command", ["SESSION.ACK", "SESSION.RELEASE", "SESSION.COMPLETE"])
@pytest.mark.parametrize(
    "wrong", ["0-3", "3-1", "1-65536", "1-", "1-2-3", "a-b", "1--2", "1- 2", "1-99999999999", "-1-2"]
)
def test_a_wrong_range_is_named_and_changes_nothing(client: redis.Redis, command: str, wrong: str) -> None:
    Session(client).add("a", "b")
    with unchanged(client), pytest.raises(redis.ResponseError, match=r"packet-id is .*; expected") as refusal:
        client.execute_command(command, "{c}", 1, wrong)
    assert f"'{wrong}'" in str(refusal.value)


def test_more_than_a_million_identifiers_are_refused(client: redis.Redis) -> None:
    Session(client).add("a")
    with unchanged(client), pytest.raises(redis.ResponseError, match="too many packet identifiers"):
        client.execute_command("SESSION.ACK", "{c}", *["1-65535"] * 16)
