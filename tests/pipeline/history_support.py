"""What the tests of the pipeline share: stores with many messages, and what plain Python says is in them."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import redis

from holdmq import core


class Message(NamedTuple):
    """What a row has to say of a message."""

    shard: int
    offset: int
    topic: str
    payload: bytes


def store(client: redis.Redis, name: str = "fleet", topic_filter: str = "#", **options: int) -> None:
    """HISTORY.STORE."""
    words = [word for option, value in options.items() for word in (option.upper(), value)]
    assert client.execute_command("HISTORY.STORE", name, "FILTER", topic_filter, *words) == b"OK"


def append(
    client: redis.Redis, messages: Iterable[tuple[str, bytes]], name: str = "fleet", *options: Any
) -> list[Message]:
    """HISTORY.APPEND of each; what was kept, in the order of each shard."""
    several = list(messages)
    pipeline = client.pipeline(transaction=False)
    for topic, payload in several:
        pipeline.execute_command("HISTORY.APPEND", name, topic, payload, *options)
    replies = pipeline.execute()
    return [
        Message(reply[0], reply[1], topic, payload) for (topic, payload), reply in zip(several, replies, strict=True)
    ]


def fleet(count: int, devices: int = 40) -> list[tuple[str, bytes]]:
    """Messages of a small fleet: devices in rooms, two topics each, and a few that are none of these."""
    made = []
    for number in range(count):
        device = number * 7 % devices
        kind = "temperature" if number % 3 else "state"
        topic = f"rooms/{device % 5}/devices/{device}/{kind}" if number % 11 else f"gateways/{device % 3}"
        made.append((topic, f'{{"n":{number}}}'.encode()))
    return made


def matching(messages: Iterable[Message], *filters: str) -> list[Message]:
    """What any of the filters matches, by the core."""
    return [message for message in messages if any(core.matches(one, message.topic) for one in filters)]


def rows(frame: Any) -> list[Message]:
    """The rows of a DataFrame with these columns, sorted by shard and offset."""
    found = frame.select("shard", "offset", "topic", "payload").collect()
    return sorted(Message(row.shard, row.offset, row.topic, bytes(row.payload)) for row in found)
