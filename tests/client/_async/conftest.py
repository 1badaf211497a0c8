"""Clients of the server under test, closed with the test."""

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from redis.asyncio.cluster import ClusterNode, RedisCluster

from holdmq import AsyncHoldMQ
from tests.client.proxy import Proxy
from tests.support import Cluster, Server


@pytest.fixture
async def connect(server: Server) -> AsyncIterator[Callable[..., AsyncHoldMQ]]:
    """Makes clients of `server`; options as of redis-py's `from_url`."""
    made: list[AsyncHoldMQ] = []

    def make(to: Server | Proxy = server, **options: Any) -> AsyncHoldMQ:
        made.append(AsyncHoldMQ.from_url(to.url, **options))
        return made[-1]

    yield make
    for hold in made:
        await hold.aclose()


@pytest.fixture
def hold(connect: Callable[..., AsyncHoldMQ]) -> AsyncHoldMQ:
    """A client of `server` with the default options."""
    return connect()


@pytest.fixture
async def connect_cluster() -> AsyncIterator[Callable[..., AsyncHoldMQ]]:
    """Makes clients of a cluster; options as of `AsyncHoldMQ`."""
    made: list[RedisCluster] = []

    def make(cluster: Cluster, **options: Any) -> AsyncHoldMQ:
        made.append(RedisCluster(startup_nodes=[ClusterNode("127.0.0.1", node.port) for node in cluster.nodes]))
        return AsyncHoldMQ(made[-1], **options)

    yield make
    for client in made:
        await client.aclose()


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    """A proxy before `server` that can lose replies."""
    made = Proxy(server)
    yield made
    made.close()
