"""More tasks or threads than connections: they wait for one, instead of failing."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from holdmq import AsyncHoldMQ, HoldMQ
from holdmq._io import MAX_CONNECTIONS
from tests.support import Server

MANY = 3 * MAX_CONNECTIONS


async def test_more_tasks_than_connections_wait(server: Server, client: redis.Redis) -> None:
    async with AsyncHoldMQ.from_url(server.url) as hold:
        receivers = await asyncio.gather(*(hold.channel("x").publish(str(number)) for number in range(MANY)))
        assert receivers == [0] * MANY
        assert len(client.client_list()) <= MAX_CONNECTIONS + 1
        assert len([message async for message in hold.channel("x").backlog()]) == MANY


def test_more_threads_than_connections_wait(server: Server, client: redis.Redis) -> None:
    with HoldMQ.from_url(server.url, max_connections=3) as hold, ThreadPoolExecutor(16) as threads:
        for done in [threads.submit(hold.channel("x").publish, str(number)) for number in range(MANY)]:
            assert done.result(30) == 0
        assert len(client.client_list()) <= 4
        assert len(list(hold.channel("x").backlog())) == MANY


def test_a_pool_waits_no_longer_than_requested(server: Server) -> None:
    with (
        HoldMQ.from_url(server.url, max_connections=1, timeout=0.1) as hold,
        hold.subscribe("x"),
        pytest.raises(redis.ConnectionError, match="No connection available"),
    ):
        hold.channel("x").publish("m")


def test_one_connection_for_all_is_still_possible(server: Server) -> None:
    with HoldMQ.from_url(server.url, single_connection_client=True) as hold:
        assert hold.channel("x").publish("m") == 0
        assert hold.client.connection is not None


async def test_a_client_that_the_caller_made_keeps_its_own_pool_and_its_limit(server: Server) -> None:
    async with redis.asyncio.Redis(port=server.port, max_connections=5) as client:
        hold = AsyncHoldMQ(client)
        publishes = (hold.channel("x").publish(str(number)) for number in range(200))
        replies = await asyncio.gather(*publishes, return_exceptions=True)  # all end before the client is closed
        refused = [reply for reply in replies if isinstance(reply, redis.ConnectionError)]
        assert refused
        assert all("Too many connections" in str(error) for error in refused)
    pool = redis.asyncio.BlockingConnectionPool(port=server.port, max_connections=5)
    async with redis.asyncio.Redis.from_pool(pool) as client:
        hold = AsyncHoldMQ(client)
        receivers = await asyncio.gather(*(hold.channel("y").publish(str(number)) for number in range(200)))
        assert receivers == [0] * 200
