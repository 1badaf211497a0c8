# Generated from tests/client/_async/test_subscriptions.py by tools/generate_sync.py; change that file.
"""Subscriptions: what was kept comes first, what is live after it, and a lost connection is made good."""

import threading
import time
from collections.abc import Callable

import pytest
import redis

from holdmq import ArgumentError, ChannelMessage, HoldMQ, ModuleMissingError, Subscription
from holdmq._io import sleep
from tests.support import Server

WAIT_S = 10.0
SHORT_S = 0.1
LAST_ON = "* hold=unheard last=on deliver=last"


def received(subscription: Subscription) -> ChannelMessage:
    """The next message, which has to come."""
    message = subscription.get(WAIT_S)
    assert message is not None
    return message


def subscribers(client: redis.Redis, channel: str, number: int) -> None:
    """Waits until the channel has so many subscribers."""
    deadline = time.monotonic() + WAIT_S
    while client.pubsub_numsub(channel) != [(channel.encode(), number)]:
        assert time.monotonic() < deadline, f"expected {number} subscribers, but {client.pubsub_numsub(channel)}"
        sleep(0.01)


def is_back(subscription: Subscription, before: int = 0) -> None:
    """Waits, without a message, until the subscription has been made again more often than before."""
    deadline = time.monotonic() + WAIT_S
    while subscription.reconnections == before:
        assert time.monotonic() < deadline, "the subscription was not made again"
        assert subscription.get(SHORT_S) is None


def known_live(subscription: Subscription, publisher: redis.Redis, channel: str) -> ChannelMessage:
    """Publishes until the subscription knows of a message that it is live: its fence may be on the way still."""
    deadline = time.monotonic() + WAIT_S
    while True:
        publisher.publish(channel, "live")
        message = received(subscription)
        assert message.data in (b"live", "live")
        if message.held is False:
            return message
        assert time.monotonic() < deadline, "no message was known to be live"


def is_live(subscription: Subscription, publisher: redis.Redis, channel: str) -> None:
    """Returns when the subscription is past everything that was handed over."""
    assert subscription.get(SHORT_S) is None
    assert publisher.publish(channel, "live") == 1
    assert (received(subscription)).data in (b"live", "live")


def test_a_message_that_nobody_heard_is_handed_over_at_subscribing(hold: HoldMQ) -> None:
    hold.channel("weather").publish("sunny")
    with hold.subscribe("weather") as messages:
        assert received(messages) == ChannelMessage(b"weather", b"sunny")


def test_a_message_after_the_fence_is_known_to_be_live(hold: HoldMQ, client: redis.Redis) -> None:
    hold.channel("weather").publish("kept")
    with hold.subscribe("weather") as messages:
        kept = received(messages)
        assert (kept.data, kept.held) == (b"kept", None)
        assert messages.get(SHORT_S) is None
        assert known_live(messages, client, "weather") == ChannelMessage(b"weather", b"live", held=False)


def test_every_message_is_live_where_nothing_is_handed_over(hold: HoldMQ, client: redis.Redis) -> None:
    client.config_set("holdmq.policies", "* hold=unheard deliver=none")
    hold.channel("weather").publish("kept")
    with hold.subscribe("weather") as messages:
        client.publish("weather", "live")
        assert received(messages) == ChannelMessage(b"weather", b"live", held=False)


def test_of_a_backlog_nothing_is_claimed(hold: HoldMQ, client: redis.Redis) -> None:
    client.config_set("holdmq.policies", "* hold=unheard deliver=held")
    for number in range(3):
        hold.channel("weather").publish(str(number))
    with hold.subscribe("weather") as messages:
        assert [(received(messages)).data for _ in range(3)] == [b"0", b"1", b"2"]
        assert messages.get(SHORT_S) is None
        client.publish("weather", "live")
        assert (received(messages)).held is None
    assert hold.channel("weather").last() is None


def test_a_pattern_gets_the_last_message_of_each_channel(hold: HoldMQ) -> None:
    for channel in ("weather.oslo", "weather.rome", "news"):
        hold.channel(channel).publish(f"of {channel}")
    with hold.psubscribe("weather.*") as messages:
        first, second = received(messages), received(messages)
        assert {first.channel, second.channel} == {b"weather.oslo", b"weather.rome"}
        assert {first.pattern, second.pattern} == {b"weather.*"}
        assert {first.held, second.held} == {None}
        assert messages.get(SHORT_S) is None


def test_several_channels_share_a_subscription(hold: HoldMQ, client: redis.Redis) -> None:
    hold.channel("a").publish("kept")
    with hold.subscribe("a", "b", "a") as messages:
        assert (received(messages)).data == b"kept"
        assert client.publish("b", "live") == 1
        assert (received(messages)).channel == b"b"


def test_a_channel_subscribes_to_itself(hold: HoldMQ) -> None:
    hold.channel("weather").publish("sunny")
    with hold.channel("weather").subscribe(timeout=SHORT_S) as messages:
        assert [message.data for message in messages] == [b"sunny"]


def test_iteration_ends_when_nothing_came_for_the_timeout(hold: HoldMQ) -> None:
    begin = time.monotonic()
    with hold.subscribe("weather", timeout=SHORT_S) as messages:
        assert [message for message in messages] == []
    assert SHORT_S <= time.monotonic() - begin < WAIT_S


def test_a_subscription_connects_with_the_first_message_asked_for(hold: HoldMQ, client: redis.Redis) -> None:
    messages = hold.subscribe("weather")
    assert client.pubsub_numsub("weather") == [(b"weather", 0)]
    assert messages.get(0) is None
    assert client.pubsub_numsub("weather") == [(b"weather", 1)]
    messages.close()
    subscribers(client, "weather", 0)


def test_a_closed_subscription_delivers_nothing_more(hold: HoldMQ) -> None:
    messages = hold.subscribe("weather")
    messages.close()
    messages.close()
    assert messages.get() is None
    assert [message for message in messages] == []


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("decoded", [False, True])
def test_both_protocols_deliver_bytes_or_text(
    connect: Callable[..., HoldMQ], client: redis.Redis, protocol: int, decoded: bool
) -> None:
    hold = connect(protocol=protocol, decode_responses=decoded)
    hold.channel("weather").publish("sunny")
    with hold.subscribe("weather") as messages:
        message = received(messages)
        assert (message.channel, message.data) == (("weather", "sunny") if decoded else (b"weather", b"sunny"))
        known_live(messages, client, "weather")


def test_a_lost_connection_is_made_again_and_what_was_kept_meanwhile_comes(hold: HoldMQ, client: redis.Redis) -> None:
    with hold.subscribe("weather") as messages:
        is_live(messages, client, "weather")
        client.client_kill_filter(_type="pubsub")
        assert client.publish("weather", "meanwhile") == 0
        message = received(messages)
        assert (message.data, message.held, message.repeat) == (b"meanwhile", None, False)
        assert messages.reconnections == 1
        known_live(messages, client, "weather")


def test_a_backlog_that_was_kept_while_the_connection_was_lost_comes_whole(hold: HoldMQ, client: redis.Redis) -> None:
    client.config_set("holdmq.policies", "* hold=unheard deliver=held")
    with hold.subscribe("weather") as messages:
        assert messages.get(SHORT_S) is None
        loss = client.pipeline(transaction=True)  # so that nobody is back before all is published
        loss.client_kill_filter(_type="pubsub")
        for number in range(3):
            loss.publish("weather", str(number))
        assert loss.execute() == [1, 0, 0, 0]
        assert [(received(messages)).data for _ in range(3)] == [b"0", b"1", b"2"]
        assert messages.reconnections == 1
    assert hold.channel("weather").last() is None


def test_what_is_handed_over_again_after_a_loss_is_marked(hold: HoldMQ, client: redis.Redis) -> None:
    client.config_set("holdmq.policies", LAST_ON)
    with hold.subscribe("weather") as messages:
        is_live(messages, client, "weather")
        client.client_kill_filter(_type="pubsub")
        again = received(messages)
        assert (again.data, again.repeat) == (b"live", True)
        client.publish("weather", "live")
        assert (received(messages)).repeat is False


def test_an_older_message_that_is_handed_over_again_is_marked_too(hold: HoldMQ, client: redis.Redis) -> None:
    hold.channel("weather").publish("kept")
    with hold.subscribe("weather") as messages:
        assert (received(messages)).repeat is False
        client.client_kill_filter(_type="pubsub")
        again = received(messages)
        assert (again.data, again.repeat) == (b"kept", True)


def test_repeats_can_be_left_out(hold: HoldMQ, client: redis.Redis) -> None:
    client.config_set("holdmq.policies", LAST_ON)
    with hold.subscribe("weather", skip_repeats=True) as messages:
        is_live(messages, client, "weather")
        client.client_kill_filter(_type="pubsub")
        is_back(messages)
        assert messages.get(SHORT_S) is None
        client.publish("weather", "rain")
        assert (received(messages)).data == b"rain"


def test_a_subscription_outlives_a_killed_server(
    fresh_server: Callable[..., Server], connect: Callable[..., HoldMQ]
) -> None:
    server = fresh_server(aof=True)
    with connect(server).subscribe("weather") as messages:
        is_live(messages, server.client(), "weather")
        server.kill()
        assert messages.get(SHORT_S) is None
        server.start()
        # Kept if it comes before the subscription is back, live if after.
        server.client().publish("weather", "after")
        assert (received(messages)).data == b"after"
        assert messages.reconnections == 1


def test_a_server_that_stays_away_is_an_error_after_the_time_given(
    fresh_server: Callable[..., Server], connect: Callable[..., HoldMQ]
) -> None:
    server = fresh_server()
    hold = connect(server)
    with hold.subscribe("weather", reconnect=0.2) as messages:
        server.kill()
        with pytest.raises(redis.ConnectionError):
            messages.get(60)


def test_a_connection_that_has_gone_dead_is_noticed(
    fresh_server: Callable[..., Server], connect: Callable[..., HoldMQ]
) -> None:
    server = fresh_server()
    hold = connect(server, socket_timeout=1)
    with hold.subscribe("weather", ping_interval=1) as messages:
        before, tries = -1, 0
        while messages.reconnections != before:  # one that its machine keeps from running is taken for dead, but seldom
            tries += 1
            assert tries < 5, "a connection that is silent is taken for dead"
            before = messages.reconnections
            assert messages.get(2.5) is None
        server.pause()
        threading.Timer(4.0, server.resume).start()
        is_back(messages, before)
        subscribers(server.client(), "weather", 1)


def test_a_refused_subscription_is_an_error(server: Server, client: redis.Redis) -> None:
    client.acl_setuser("narrow", enabled=True, passwords=["+secret"], categories=["+@all"], keys=["*"], channels=["a"])
    url = server.url.replace("redis://", "redis://narrow:secret@")
    with HoldMQ.from_url(url) as hold:
        with pytest.raises(redis.exceptions.NoPermissionError):
            hold.subscribe("b").get(WAIT_S)


def test_a_user_who_may_not_see_the_policy_is_told_nothing_of_it(server: Server, client: redis.Redis) -> None:
    client.acl_setuser(
        "reader", enabled=True, passwords=["+secret"], commands=["+@all", "-channel.policy"], keys=["*"], channels=["*"]
    )
    url = server.url.replace("redis://", "redis://reader:secret@")
    with HoldMQ.from_url(url) as hold, hold.subscribe("weather") as messages:
        is_live(messages, client, "weather")
        client.publish("weather", "more")
        assert (received(messages)).held is None


def test_a_server_without_the_module_is_refused(
    fresh_server: Callable[..., Server], connect: Callable[..., HoldMQ]
) -> None:
    hold = connect(fresh_server(module=False))
    for subscription in (hold.subscribe("weather"), hold.psubscribe("*")):
        with pytest.raises(ModuleMissingError, match="--loadmodule"):
            subscription.get(WAIT_S)


def test_arguments_that_cannot_be_are_refused(hold: HoldMQ) -> None:
    with pytest.raises(ArgumentError, match="0 channels were given; expected 1 to 10000"):
        hold.subscribe()
    with pytest.raises(ArgumentError, match="patterns"):
        hold.psubscribe("")
    with pytest.raises(ArgumentError, match="timeout is -1"):
        hold.subscribe("weather", timeout=-1)
    with pytest.raises(ArgumentError, match="reconnect is -1"):
        hold.subscribe("weather", reconnect=-1)
    with pytest.raises(ArgumentError, match="ping_interval is 0"):
        hold.subscribe("weather", ping_interval=0)


def test_a_shard_channel_hands_over_what_it_kept(hold: HoldMQ, server: Server, client: redis.Redis) -> None:
    weather = hold.channel("weather", sharded=True)
    assert weather.publish("kept") == 0
    assert weather.last() == b"kept"
    with weather.subscribe() as messages:
        if server.kind.hands_off_exactly:  # before 7.2 it stays in the list
            assert received(messages) == ChannelMessage(b"weather", b"kept")
        assert messages.get(SHORT_S) is None
        assert client.execute_command("SPUBLISH", "weather", "live") == 1
        assert (received(messages)).data == b"live"
        client.client_kill_filter(_type="pubsub")
        assert weather.publish("meanwhile") == 0
        assert weather.last() == b"meanwhile"
        if server.kind.hands_off_exactly:
            assert (received(messages)).data == b"meanwhile"
        else:
            is_back(messages)
        assert messages.get(SHORT_S) is None
