"""One channel: what is published waits, and can be looked at."""

import pytest
import redis

from holdmq import ArgumentError, AsyncHoldMQ, Deliver, Hold


async def test_a_message_that_nobody_heard_is_the_last_one(hold: AsyncHoldMQ) -> None:
    weather = hold.channel("weather")
    assert await weather.last() is None
    assert await weather.publish("sunny") == 0
    assert await weather.publish(b"rain") == 0
    assert await weather.last() == b"rain"


async def test_the_backlog_is_read_in_order_and_in_pages(hold: AsyncHoldMQ) -> None:
    weather = hold.channel("weather")
    published = [f"report {number}".encode() for number in range(7)]
    for message in published:
        await weather.publish(message)
    for page in (1, 3, 7, 100):
        assert [message async for message in weather.backlog(page)] == published
    assert await weather.last() == published[-1]


async def test_the_backlog_of_a_silent_channel_is_empty(hold: AsyncHoldMQ) -> None:
    assert [message async for message in hold.channel("nowhere").backlog()] == []


async def test_a_binary_channel_and_message_come_back_as_they_went(hold: AsyncHoldMQ) -> None:
    name, message = bytes(range(1, 256)), bytes(range(256)) * 3
    await hold.channel(name).publish(memoryview(message))
    assert await hold.channel(name).last() == message


async def test_a_message_with_a_receiver_is_counted_and_not_kept(hold: AsyncHoldMQ) -> None:
    async with hold.subscribe("weather"):
        assert await hold.channel("weather").publish("now") == 1
    assert await hold.channel("weather").last() is None


async def test_the_default_policy_of_a_channel_is_reported(hold: AsyncHoldMQ) -> None:
    policy = await hold.channel("weather").policy()
    assert policy is not None
    assert (policy.glob, policy.hold, policy.last) == ("*", Hold.UNHEARD, False)
    assert (policy.maxlen, policy.ttl, policy.deliver) == (10_000, 604_800, Deliver.LAST)


async def test_a_channel_without_a_rule_has_no_policy(hold: AsyncHoldMQ, client: redis.Redis) -> None:
    client.config_set("holdmq.policies", "weather.* hold=all")
    assert await hold.channel("news").policy() is None
    policy = await hold.channel("weather.oslo").policy()
    assert policy is not None
    assert policy.hold is Hold.ALL


async def test_a_key_of_an_application_is_left_alone_beside_what_the_channel_keeps(
    hold: AsyncHoldMQ, client: redis.Redis
) -> None:
    client.set("weather", "a string")
    assert await hold.channel("weather").publish("sunny") == 0
    assert client.get("weather") == b"a string"
    assert [message async for message in hold.channel("weather").backlog()] == [b"sunny"]


async def test_a_page_outside_of_its_range_is_refused_before_anything_is_sent(hold: AsyncHoldMQ) -> None:
    for page in (0, -1, 10_001):
        with pytest.raises(ArgumentError, match=f"page is {page}; expected a whole number from 1 to 10000"):
            [message async for message in hold.channel("weather").backlog(page)]
