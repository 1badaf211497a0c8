"""A client of the wrong kind is refused when it is handed over, and not after the first message is gone."""

from typing import Any, Self
from unittest.mock import AsyncMock, MagicMock

import pytest
import redis
import redis.asyncio
import valkey
import valkey.asyncio

from holdmq import ArgumentError, AsyncHoldMQ, HoldMQ


class Wrapper:
    """A client of the caller's own, of redis-py's shape."""

    def execute_command(self, *words: Any, **options: Any) -> Any:
        return words, options

    def __enter__(self) -> Self:
        return self


@pytest.mark.parametrize("client", [redis.asyncio.Redis(), valkey.asyncio.Valkey()])
def test_an_asyncio_client_is_refused_by_the_synchronous_class(client: Any) -> None:
    with pytest.raises(ArgumentError, match=r"client is of type \w+\.asyncio\.client\.\w+, which is an asyncio client"):
        HoldMQ(client)
    AsyncHoldMQ(client)


@pytest.mark.parametrize("client", [redis.Redis(), valkey.Valkey()])
def test_a_synchronous_client_is_refused_by_the_asyncio_class(client: Any) -> None:
    with pytest.raises(ArgumentError, match=r"client is of type \w+\.client\.\w+, which is not an asyncio client"):
        AsyncHoldMQ(client)
    HoldMQ(client)


def test_a_client_of_a_cluster_is_checked_as_well() -> None:
    node = redis.asyncio.cluster.ClusterNode("127.0.0.1", 1)
    with pytest.raises(ArgumentError, match="which is an asyncio client"):
        HoldMQ(redis.asyncio.RedisCluster(startup_nodes=[node]))  # type: ignore[arg-type]


@pytest.mark.parametrize("client", [None, redis.Redis, "redis://127.0.0.1", 6379])
def test_an_invalid_client_is_refused(client: Any) -> None:
    for kind in (HoldMQ, AsyncHoldMQ):
        with pytest.raises(ArgumentError, match="expected a client object of redis-py or of the same shape"):
            kind(client)


def test_a_pipeline_is_not_a_client() -> None:
    with pytest.raises(ArgumentError, match="a pipeline; expected the client that made it"):
        HoldMQ(redis.Redis().pipeline())
    with pytest.raises(ArgumentError, match="a pipeline; expected the client that made it"):
        AsyncHoldMQ(redis.asyncio.Redis().pipeline())


@pytest.mark.parametrize("module", [redis, valkey])
def test_a_pubsub_object_is_not_a_client(module: Any) -> None:
    client = module.Redis() if module is redis else module.Valkey()
    with client.pubsub() as pubsub, pytest.raises(ArgumentError, match="a pub/sub object; expected a client object"):
        HoldMQ(pubsub)
    asynchronous = module.asyncio.Redis() if module is redis else module.asyncio.Valkey()
    with pytest.raises(ArgumentError, match="a pub/sub object; expected a client object"):
        AsyncHoldMQ(asynchronous.pubsub())


def test_a_sentinel_is_not_a_client_but_what_it_makes_is() -> None:
    sentinel = redis.Sentinel([("127.0.0.1", 1)])
    with pytest.raises(ArgumentError, match="a Sentinel; expected a client object of a server or a cluster"):
        HoldMQ(sentinel)
    HoldMQ(sentinel.master_for("service"))


def test_clients_of_the_callers_own_are_taken() -> None:
    HoldMQ(Wrapper())
    HoldMQ(MagicMock(spec=redis.Redis))
    AsyncHoldMQ(AsyncMock(spec=redis.asyncio.Redis))
