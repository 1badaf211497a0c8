"""Tasks over the pub/sub broker of taskiq: taskiq_pubsub.py PORT."""

import asyncio
import json
import sys

from taskiq.message import BrokerMessage
from taskiq_redis import PubSubBroker

WAIT_S = 10.0


def task(number: int) -> BrokerMessage:
    """A task as it is sent."""
    return BrokerMessage(task_id=str(number), task_name="add", message=str(number).encode(), labels={})


async def main() -> list[str]:
    """The tasks that a worker received."""
    url = f"redis://127.0.0.1:{sys.argv[1]}/0"
    caller, worker = PubSubBroker(url), PubSubBroker(url)
    await caller.startup()
    await caller.kick(task(0))  # nobody works: lost
    await worker.startup()
    received: list[str] = []

    async def work() -> None:
        async for message in worker.listen():
            received.append(message.decode() if isinstance(message, bytes) else message.data.decode())  # noqa: PERF401

    working = asyncio.create_task(work())
    async with asyncio.timeout(WAIT_S):
        while not {"1", "2"} <= set(received):
            await caller.kick(task(1))
            await caller.kick(task(2))
            await asyncio.sleep(0.05)
    working.cancel()
    await caller.shutdown()
    await worker.shutdown()
    return sorted(set(received))


print(json.dumps(asyncio.run(main())))
