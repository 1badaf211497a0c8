"""Steps 1 and 2: channels that hold, through a stock client and through the Python client."""

import asyncio
from typing import Any

import redis

from holdmq import AsyncHoldMQ, HoldMQ
from holdmq_bridge.demo.transcript import StepFailedError, Transcript
from holdmq_bridge.demo.weather import Observation

STOCK_PREFIX = "weather."
SYNC_PREFIX = "sync."
ASYNC_PREFIX = "asyncio."
HELD_EACH = 24  # a day of each station
RECEIVE_TIMEOUT_S = 5.0


def stock_client(t: Transcript, url: str, data: dict[str, list[Observation]]) -> tuple[int, int]:
    """Step 1: any Redis client. Returns how many messages were held and how many delivered."""
    with redis.Redis.from_url(url, decode_responses=True) as client:
        stations = sorted(data)
        forget(client, data)
        held = _publish_to_nobody(t, client, data)
        delivered = _subscribe(t, client, STOCK_PREFIX + stations[0])
        delivered += _psubscribe(t, client, stations)
        delivered += _publish_to_somebody(t, client, STOCK_PREFIX + stations[0])
    return held, delivered


def forget(client: redis.Redis, data: dict[str, list[Observation]]) -> None:
    """Removes the channels of the demo."""
    client.delete(*(prefix + station for prefix in (STOCK_PREFIX, SYNC_PREFIX, ASYNC_PREFIX) for station in data))


def _publish_to_nobody(t: Transcript, client: redis.Redis, data: dict[str, list[Observation]]) -> int:
    heard = 0
    for station, observations in data.items():
        for observation in observations[:HELD_EACH]:
            heard += client.publish(STOCK_PREFIX + station, observation.payload())
    first = min(data)
    channel = STOCK_PREFIX + first
    t.call(f"PUBLISH {channel} '{data[first][0].payload().decode()}'", 0)
    t.say(f"... and so on: {HELD_EACH} observations of each of {len(data)} stations")
    t.check("none of them had a receiver", heard, 0)
    waiting = client.lrange(channel, 0, -1)
    t.call(f"LRANGE {channel} -1 -1", waiting[-1:])
    expected = [observation.payload().decode() for observation in data[first][:HELD_EACH]]
    t.check(f"all {HELD_EACH} wait, in order, in the list named like the channel", waiting, expected)
    return sum(client.llen(STOCK_PREFIX + station) for station in data)


def _receive(pubsub: Any, kind: str) -> dict[str, Any]:
    message = pubsub.get_message(timeout=RECEIVE_TIMEOUT_S)
    if message is None or message["type"] != kind:
        raise StepFailedError(f"a {kind} was expected within {RECEIVE_TIMEOUT_S:g} s, seen {message}")
    return dict(message)


def _subscribe(t: Transcript, client: redis.Redis, channel: str) -> int:
    with client.pubsub() as pubsub:
        pubsub.subscribe(channel)
        _receive(pubsub, "subscribe")
        message = _receive(pubsub, "message")
        t.call(f"SUBSCRIBE {channel}", f"subscribe, then message: {message['data']}")
        t.check(
            "a stock client that subscribes gets the last message at once", message["data"], client.lindex(channel, -1)
        )
        return 1


def _psubscribe(t: Transcript, client: redis.Redis, stations: list[str]) -> int:
    with client.pubsub() as pubsub:
        pubsub.psubscribe(STOCK_PREFIX + "*")
        _receive(pubsub, "psubscribe")
        got = {message["channel"]: message["data"] for message in (_receive(pubsub, "pmessage") for _ in stations)}
        t.call(f"PSUBSCRIBE {STOCK_PREFIX}*", f"psubscribe, then pmessage for {', '.join(sorted(got))}")
        expected = {STOCK_PREFIX + station: client.lindex(STOCK_PREFIX + station, -1) for station in stations}
        t.check("a pattern gets the last message of each channel that matches", got, expected)
        return len(got)


def _publish_to_somebody(t: Transcript, client: redis.Redis, channel: str) -> int:
    with client.pubsub() as pubsub:
        pubsub.subscribe(channel)
        _receive(pubsub, "subscribe")
        _receive(pubsub, "message")
        before = client.llen(channel)
        receivers = client.publish(channel, "heard")
        t.call(f"PUBLISH {channel} heard", receivers)
        t.check("a message with a subscriber is delivered", _receive(pubsub, "message")["data"], "heard")
        t.check("... and not kept", client.llen(channel), before)
        return receivers + 1  # and the last message, when it subscribed


def python_client(t: Transcript, url: str, observation: Observation) -> int:
    """Step 2: the Python client, sync and asyncio. Returns how many messages were held and then delivered."""
    payload = observation.payload()
    t.say('with HoldMQ.from_url(url) as hold:\n      hold.channel("sync.EWR").publish(payload)')
    t.say('    message = next(hold.channel("sync.EWR").subscribe(timeout=5))')
    with HoldMQ.from_url(url) as hold:
        channel = hold.channel(SYNC_PREFIX + observation.station)
        channel.publish(payload)
        with channel.subscribe(timeout=RECEIVE_TIMEOUT_S) as messages:
            received = next(messages)
    t.check("sync: a subscriber first gets the message that had no receiver", received.data, payload)
    t.say("async with AsyncHoldMQ.from_url(url) as hold:  # the same, awaited")
    received = asyncio.run(_asyncio_client(url, observation))
    t.check("asyncio: the same", received.data, payload)
    return 2


async def _asyncio_client(url: str, observation: Observation) -> Any:
    async with AsyncHoldMQ.from_url(url) as hold:
        channel = hold.channel(ASYNC_PREFIX + observation.station)
        await channel.publish(observation.payload())
        async with channel.subscribe(timeout=RECEIVE_TIMEOUT_S) as messages:
            return await anext(messages)
