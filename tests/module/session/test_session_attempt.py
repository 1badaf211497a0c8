"""SESSION.OPEN ... ATTEMPT: an open whose reply was lost is sent again, and answered as it was."""

import pytest
import redis

KEY = "{c}"


def opened(client: redis.Redis, *options: str) -> list[int]:
    return list(client.execute_command("SESSION.OPEN", KEY, "OWNER", "b", *options))


def test_the_same_attempt_is_answered_as_it_was(client: redis.Redis) -> None:
    first = opened(client, "EXPIRY", "60", "ATTEMPT", "t1")
    assert first[1] == 0
    assert opened(client, "EXPIRY", "60", "ATTEMPT", "t1") == first
    client.execute_command("SESSION.CLOSE", KEY, "EPOCH", first[0])
    second = opened(client, "EXPIRY", "60", "ATTEMPT", "t2")
    assert second[1] == 1
    assert opened(client, "EXPIRY", "60", "ATTEMPT", "t2") == second


def test_another_attempt_takes_the_session_over(client: redis.Redis) -> None:
    first = opened(client, "EXPIRY", "60", "ATTEMPT", "t1")
    second = opened(client, "EXPIRY", "60", "ATTEMPT", "t2")
    assert second[0] > first[0]
    assert second[1] == 1
    third = opened(client, "EXPIRY", "60", "ATTEMPT", "t1")
    assert third[0] > second[0]
    assert third[1] == 1


def test_an_attempt_counts_only_until_the_session_is_taken_over(client: redis.Redis) -> None:
    first = opened(client, "EXPIRY", "60", "ATTEMPT", "t1")
    taken = opened(client, "EXPIRY", "60")
    assert taken[0] > first[0]
    assert opened(client, "EXPIRY", "60", "ATTEMPT", "t1") > taken


def test_a_clean_attempt_that_is_repeated_cleans_once(client: redis.Redis) -> None:
    first = opened(client, "CLEAN", "ATTEMPT", "t1")
    client.execute_command("SESSION.ADD", KEY, "payload")
    assert opened(client, "CLEAN", "ATTEMPT", "t1") == first
    assert client.execute_command("ZCARD", "{c}_messages") == 1


def test_an_attempt_outlives_a_reload(client: redis.Redis) -> None:
    first = opened(client, "EXPIRY", "60", "ATTEMPT", "t1")
    client.execute_command("DEBUG", "RELOAD")
    assert opened(client, "EXPIRY", "60", "ATTEMPT", "t1") == first


@pytest.mark.parametrize("token", ["", "x" * 256])
def test_a_token_has_1_to_255_bytes(client: redis.Redis, token: str) -> None:
    with pytest.raises(redis.ResponseError, match="ATTEMPT has"):
        opened(client, "ATTEMPT", token)
    assert client.keys() == []
