"""A session that ends with many filters is gone at once, and its filters leave the index in steps."""

import pytest
import redis

from tests.module.sessions_support import Session, assert_indexes_hold, payloads, publish
from tests.support import Server, eventually

MANY = 1000
SESSIONS = 50
STEP_US = 20_000  # taking all filters out at once takes 35 ms or more


def subscribe_many(client: redis.Redis, key: str, *more: str) -> None:
    filters = [f"{key[1:-1]}/{number}/+" for number in range(MANY)]
    for start in range(0, MANY, 200):
        client.execute_command(
            "SESSION.SUBSCRIBE", key, *(word for name in filters[start : start + 200] for word in (name, 1))
        )
    for name in more:
        client.execute_command("SESSION.SUBSCRIBE", key, name, 1)


def end(client: redis.Redis, key: str, how: str) -> None:
    if how == "drop":
        client.execute_command("SESSION.DROP", key)
    elif how == "expiry":
        client.pexpire(f"{key}_subscriptions", 1)
        eventually(lambda: not client.exists(f"{key}_subscriptions"), what="subscriptions that have expired")
    elif how == "deletion":
        client.delete(f"{key}_subscriptions")
    else:
        client.flushdb()


def usec_of_publish(client: redis.Redis) -> float:
    client.config_resetstat()
    assert publish(client, "quiet", "m", qos=1) == 0
    stats = {name.lower(): value for name, value in client.info("commandstats").items()}
    return float(stats["cmdstat_topic.publish"]["usec"])


@pytest.mark.parametrize("how", ["drop", "expiry", "deletion", "flush"])
def test_a_session_that_ended_gets_nothing_and_one_of_the_same_name_only_what_it_asks_for(
    client: redis.Redis, how: str
) -> None:
    subscribe_many(client, "{a}", "x/#", "$share/g/x/#")
    subscribe_many(client, "{b}", "$share/g/x/#")
    assert publish(client, "a/7/t", "m", qos=1) == 1
    end(client, "{a}", how)
    assert publish(client, "a/7/t", "m", qos=1) == 0
    assert client.execute_command("TOPIC.MATCH", "a/7/t") == [b"0", [], 1]
    assert client.execute_command("SESSION.SUBSCRIBE", "{a}", "a/8/+", 1, "new", 1) == [1, 1]
    assert publish(client, "a/7/t", "m", qos=1) == 0
    assert publish(client, "a/8/t", "eight", qos=1) == 1
    assert publish(client, "new", "new", qos=1) == 1
    assert publish(client, "x/1", "x", qos=1) == (0 if how == "flush" else 1)  # the group has its other member
    assert payloads(Session(client, "{a}").fetch_all())[-2:] == [b"eight", b"new"]
    assert_indexes_hold(client)
    subscribe_many(client, "{a}")
    assert publish(client, "a/7/t", "again", qos=1) == 1
    assert_indexes_hold(client)


def test_many_sessions_that_expire_together_make_no_command_long(client: redis.Redis) -> None:
    def took() -> float:
        for number in range(SESSIONS):
            subscribe_many(client, f"{{e{number}}}")
        pipe = client.pipeline(transaction=False)
        for number in range(SESSIONS):
            pipe.pexpire(f"{{e{number}}}_subscriptions", 200)
        pipe.execute()
        eventually(lambda: client.dbsize() == 0, what="sessions that have expired")
        usec = usec_of_publish(client)
        assert publish(client, "e0/1/t", "m", qos=1) == 0
        return usec

    assert any(took() < STEP_US for _ in range(3))
    assert_indexes_hold(client)


def test_the_index_gives_all_memory_back(client: redis.Redis, server: Server) -> None:
    subscribe_many(client, "{kept}")
    before = client.info("holdmq")["holdmq_filters"]
    for _ in range(3):
        for number in range(10):
            subscribe_many(client, f"{{e{number}}}")
        for number in range(10):
            client.execute_command("SESSION.DROP", f"{{e{number}}}")
    eventually(lambda: client.info("holdmq")["holdmq_filters"] == before, what="filters that have left")
    assert_indexes_hold(client)
    assert server.client().ping()
