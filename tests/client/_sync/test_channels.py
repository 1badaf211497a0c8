# Generated from tests/client/_async/test_channels.py by tools/generate_sync.py; change that file.
"""One channel: what is published waits, and can be looked at."""

import pytest
import redis

from holdmq import ArgumentError, Deliver, Hold, HoldMQ


def test_a_message_that_nobody_heard_is_the_last_one(hold: HoldMQ) -> None:
    weather = hold.channel("weather")
    assert weather.last() is None
    assert weather.publish("sunny") == 0
    assert weather.publish(b"rain") == 0
    assert weather.last() == b"rain"


def test_the_backlog_is_read_in_order_and_in_pages(hold: HoldMQ) -> None:
    weather = hold.channel("weather")
    published = [f"report {number}".encode() for number in range(7)]
    for message in published:
        weather.publish(message)
    for page in (1, 3, 7, 100):
        assert [message for message in weather.backlog(page)] == published
    assert weather.last() == published[-1]


def test_the_backlog_of_a_silent_channel_is_empty(hold: HoldMQ) -> None:
    assert [message for message in hold.channel("nowhere").backlog()] == []


def test_a_binary_channel_and_message_come_back_as_they_went(hold: HoldMQ) -> None:
    name, message = bytes(range(1, 256)), bytes(range(256)) * 3
    hold.channel(name).publish(memoryview(message))
    assert hold.channel(name).last() == message


def test_a_message_with_a_receiver_is_counted_and_not_kept(hold: HoldMQ) -> None:
    with hold.subscribe("weather"):
        assert hold.channel("weather").publish("now") == 1
    assert hold.channel("weather").last() is None


def test_the_default_policy_of_a_channel_is_reported(hold: HoldMQ) -> None:
    policy = hold.channel("weather").policy()
    assert policy is not None
    assert (policy.glob, policy.hold, policy.last) == ("*", Hold.UNHEARD, False)
    assert (policy.maxlen, policy.ttl, policy.deliver) == (10_000, 604_800, Deliver.LAST)


def test_a_channel_without_a_rule_has_no_policy(hold: HoldMQ, client: redis.Redis) -> None:
    client.config_set("holdmq.policies", "weather.* hold=all")
    assert hold.channel("news").policy() is None
    policy = hold.channel("weather.oslo").policy()
    assert policy is not None
    assert policy.hold is Hold.ALL


def test_a_key_of_an_application_is_left_alone_beside_what_the_channel_keeps(hold: HoldMQ, client: redis.Redis) -> None:
    client.set("weather", "a string")
    assert hold.channel("weather").publish("sunny") == 0
    assert client.get("weather") == b"a string"
    assert [message for message in hold.channel("weather").backlog()] == [b"sunny"]


def test_a_page_outside_of_its_range_is_refused_before_anything_is_sent(hold: HoldMQ) -> None:
    for page in (0, -1, 10_001):
        with pytest.raises(ArgumentError, match=f"page is {page}; expected a whole number from 1 to 10000"):
            [message for message in hold.channel("weather").backlog(page)]
