"""Cancelled calls lose nothing and leave nothing behind; closing from elsewhere ends a wait."""

import asyncio
import random
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from holdmq import AsyncHoldMQ, HistoryMessage, HoldMQ
from tests.support import Server, eventually

MESSAGES = 200


@pytest.fixture
async def hold(server: Server) -> AsyncIterator[AsyncHoldMQ]:
    """An asyncio client of `server`."""
    async with AsyncHoldMQ.from_url(server.url) as hold:
        yield hold


async def until_subscribers(client: redis.Redis, channel: bytes, count: int) -> None:
    """Wait until a channel has so many; closed sockets are given up in the next turn of the loop."""
    deadline = time.monotonic() + 10
    while client.pubsub_numsub(channel) != [(channel, count)]:
        assert time.monotonic() < deadline, f"{channel!r} has not come to {count} subscribers"
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("protocol", [2, 3])
async def test_a_cancelled_wait_loses_no_message(server: Server, client: redis.Redis, protocol: int) -> None:
    async with AsyncHoldMQ.from_url(server.url, protocol=protocol) as hold, hold.subscribe("numbers") as messages:
        assert await messages.get(0.1) is None
        seen: list[bytes | str] = []
        cancelled = 0
        for number in range(MESSAGES):
            # Large enough to come in several reads, so that the cancellation hits the middle of a message.
            client.publish("numbers", b"%d:" % number + b"x" * 100_000)
            for _ in range(3):
                try:
                    message = await asyncio.wait_for(messages.get(), 0.0005)
                except TimeoutError:
                    cancelled += 1
                else:
                    assert message is not None
                    seen.append(message.data)
        while len(seen) < MESSAGES:
            message = await messages.get(10)
            assert message is not None, f"{len(seen)} of {MESSAGES} messages came"
            seen.append(message.data)
        assert [bytes(data).partition(b":")[0] for data in seen if isinstance(data, bytes)] == [
            b"%d" % number for number in range(MESSAGES)
        ]
        assert messages.reconnections == 0
        assert cancelled > 0


async def test_a_cancelled_read_of_history_loses_and_repeats_no_message(
    server: Server, hold: AsyncHoldMQ, client: redis.Redis
) -> None:
    await hold.history.create("s", "s/#", shards=2)
    seen: list[int] = []
    chance = random.Random(1)
    async with AsyncHoldMQ.from_url(server.url) as reader, reader.history.follow("s/#", page=3) as messages:
        for number in range(MESSAGES):
            client.execute_command("TOPIC.PUBLISH", f"s/{number % 5}", number)
            for turns in range(chance.randrange(4)):
                task = asyncio.create_task(messages.get())
                for _ in range(chance.randrange(1, 30) * (turns + 1)):
                    await asyncio.sleep(0)
                task.cancel()
                [message] = await asyncio.gather(task, return_exceptions=True)
                if isinstance(message, HistoryMessage):
                    seen.append(int(message.payload))
        while len(seen) < MESSAGES:
            message = await messages.get(10)
            assert message is not None, f"{len(seen)} of {MESSAGES} messages came"
            seen.append(int(message.payload))
        assert await messages.get(0) is None
    for topic in range(5):
        assert [number for number in seen if number % 5 == topic] == list(range(topic, MESSAGES, 5))


async def test_a_replay_that_follows_leaves_no_subscriber(hold: AsyncHoldMQ, client: redis.Redis) -> None:
    await hold.history.create("s", "s/#")
    replay = hold.history.store("s").follow("s/#")
    task = asyncio.create_task(replay.get())
    await until_subscribers(client, b"holdmq:history:s", 1)
    await replay.aclose()
    assert await asyncio.wait_for(task, 10) is None
    await until_subscribers(client, b"holdmq:history:s", 0)


async def test_a_cancelled_subscribing_leaves_no_subscriber(hold: AsyncHoldMQ, client: redis.Redis) -> None:
    for turns in range(1, 40):
        messages = hold.subscribe("weather")
        task = asyncio.create_task(messages.get())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await messages.aclose()
    await until_subscribers(client, b"weather", 0)


async def test_replies_are_not_mixed_up_after_a_cancelled_command(hold: AsyncHoldMQ) -> None:
    session = hold.session("device")
    for turns in range(1, 40):
        task = asyncio.create_task(session.add(b"x"))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert (await session.info()).owner == ""
        assert await hold.topics.retained("#") == ()


async def test_a_cancelled_batch_of_a_producer_is_resolved_by_retry(hold: AsyncHoldMQ) -> None:
    session = hold.session("device")
    producer = session.producer("station")
    sent = 0
    for turns in range(1, 40):
        task = asyncio.create_task(producer.add(b"%d" % sent))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        if producer.pending:
            await producer.retry()
            sent += 1
        elif not task.cancelled():
            sent += 1
    assert [entry.value async for entry in session.entries()] == [b"%d" % number for number in range(sent)]
    assert sent > 20


async def test_closing_from_another_task_ends_a_wait(hold: AsyncHoldMQ) -> None:
    async with hold.subscribe("weather") as messages:
        task = asyncio.create_task(messages.get())
        await asyncio.sleep(0.05)
        await messages.aclose()
        assert await asyncio.wait_for(task, 10) is None


def test_closing_from_another_thread_ends_a_wait(server: Server, client: redis.Redis) -> None:
    with HoldMQ.from_url(server.url) as hold, hold.subscribe("weather") as messages:
        threading.Timer(0.1, messages.close).start()
        assert messages.get(60) is None
    eventually(lambda: client.pubsub_numsub("weather") == [(b"weather", 0)])


def test_closing_from_another_thread_ends_an_opening(server: Server, client: redis.Redis) -> None:
    with HoldMQ.from_url(server.url) as hold, ThreadPoolExecutor(1) as threads:
        for turn in range(60):
            messages = hold.subscribe(*(f"weather-{number}" for number in range(50)))
            opening = threads.submit(messages.__enter__)
            time.sleep(0.0005 * (turn % 30))  # somewhere in the middle of it
            messages.close()
            opening.result(10)
            assert messages.get(60) is None
    eventually(lambda: client.pubsub_numsub("weather-0") == [(b"weather-0", 0)])
