"""Groups and channels over the pub/sub layer of channels_redis: channels_pubsub.py PORT [PREFIX]."""

import asyncio
import json
import sys
from typing import Any

from channels_redis.pubsub import RedisPubSubChannelLayer

PREFIX = sys.argv[2] if len(sys.argv) > 2 else "asgi"
WAIT_S = 10.0


async def main() -> list[Any]:
    """What the two layers received."""
    hosts = [f"redis://127.0.0.1:{sys.argv[1]}/0"]
    one = RedisPubSubChannelLayer(hosts=hosts, prefix=PREFIX)
    other = RedisPubSubChannelLayer(hosts=hosts, prefix=PREFIX)
    await one.group_send("room", {"type": "before"})
    channels = [await one.new_channel(), await other.new_channel()]
    gone = await other.new_channel("gone.")
    for layer, channel in zip((one, other), channels, strict=True):
        await layer.group_add("room", channel)
    await one.group_send("room", {"type": "to the room"})
    await one.send(channels[1], {"type": "to one"})
    await one.send(gone, {"type": "to who does not listen"})
    async with asyncio.timeout(WAIT_S):
        heard = [await one.receive(channels[0]), await other.receive(channels[1]), await other.receive(channels[1])]
    await one.flush()
    await other.flush()
    return [message["type"] for message in heard]


print(json.dumps(asyncio.run(main())))
