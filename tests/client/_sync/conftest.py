# Generated from tests/client/_async/conftest.py by tools/generate_sync.py; change that file.
"""Clients of the server under test, closed with the test."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redis.cluster import ClusterNode, RedisCluster

from holdmq import HoldMQ
from tests.client.proxy import Proxy
from tests.support import Cluster, Server


@pytest.fixture
def connect(server: Server) -> Iterator[Callable[..., HoldMQ]]:
    """Makes clients of `server`; options as of redis-py's `from_url`."""
    made: list[HoldMQ] = []

    def make(to: Server | Proxy = server, **options: Any) -> HoldMQ:
        made.append(HoldMQ.from_url(to.url, **options))
        return made[-1]

    yield make
    for hold in made:
        hold.close()


@pytest.fixture
def hold(connect: Callable[..., HoldMQ]) -> HoldMQ:
    """A client of `server` with the default options."""
    return connect()


@pytest.fixture
def connect_cluster() -> Iterator[Callable[..., HoldMQ]]:
    """Makes clients of a cluster; options as of `HoldMQ`."""
    made: list[RedisCluster] = []

    def make(cluster: Cluster, **options: Any) -> HoldMQ:
        made.append(RedisCluster(startup_nodes=[ClusterNode("127.0.0.1", node.port) for node in cluster.nodes]))
        return HoldMQ(made[-1], **options)

    yield make
    for client in made:
        client.close()


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    """A proxy before `server` that can lose replies."""
    made = Proxy(server)
    yield made
    made.close()
