"""Through Sentinel: the client finds the primary, and a subscription follows it."""

import contextlib
from collections.abc import Callable

import redis
from redis.asyncio.sentinel import Sentinel

from holdmq import AsyncHoldMQ
from tests.support import SentinelProcess, Server, eventually
from tests.support.sentinel import SERVICE

FAILOVER_S = 30.0
WAIT_S = 10.0


def took_over(server: Server) -> bool:
    """Whether the replica has become the primary; in the same step it cuts its connections."""
    try:
        return bool(server.client().info("replication")["role"] == "master")
    except redis.ConnectionError:
        return False


async def test_a_subscription_and_a_session_follow_the_primary(
    fresh_server: Callable[..., Server], fresh_sentinel: Callable[[Server], SentinelProcess]
) -> None:
    primary = fresh_server()
    replica = fresh_server(replica_of=primary)
    watcher = fresh_sentinel(primary)
    sentinel = Sentinel([("127.0.0.1", watcher.port)], socket_timeout=5.0)
    client = sentinel.master_for(SERVICE)
    hold = AsyncHoldMQ(client)
    try:
        await hold.session("device").add(b"before")
        assert primary.client().wait(1, 5000) == 1
        async with hold.subscribe("weather") as messages:
            assert await messages.get(0.1) is None
            assert primary.client().publish("weather", "old primary") == 1
            message = await messages.get(WAIT_S)
            assert message is not None
            assert message.data == b"old primary"
            primary.kill()
            eventually(lambda: took_over(replica), FAILOVER_S, "a failover")
            # Kept: nobody asks the subscription for a message meanwhile, so it is not back.
            assert replica.client().publish("weather", "new primary") == 0
            eventually(lambda: watcher.names(replica), FAILOVER_S, "a sentinel that names the new primary")
            message = await messages.get(WAIT_S)
            assert message is not None
            assert message.data == b"new primary"
            assert messages.reconnections >= 1
        assert [entry.value async for entry in hold.session("device").entries()] == [b"before"]
    finally:
        await client.aclose()
        for one in sentinel.sentinels:
            await one.aclose()


async def test_writes_go_to_the_new_primary_once_the_old_one_is_a_replica(
    fresh_server: Callable[..., Server], fresh_sentinel: Callable[[Server], SentinelProcess]
) -> None:
    primary = fresh_server()
    replica = fresh_server(replica_of=primary)
    watcher = fresh_sentinel(primary)
    sentinel = Sentinel([("127.0.0.1", watcher.port)], socket_timeout=5.0)
    client = sentinel.master_for(SERVICE)
    hold = AsyncHoldMQ(client)
    try:
        await hold.session("device").add(b"before")
        assert primary.client().wait(1, 5000) == 1
        watcher.fail_over()
        eventually(lambda: watcher.names(replica), FAILOVER_S, "a Sentinel that names the new primary")
        eventually(lambda: not took_over(primary), FAILOVER_S, "an old primary that is a replica")
        with contextlib.suppress(redis.ConnectionError):  # the old primary has cut the connection of the pool
            await client.ping()
        await hold.session("device").add(b"after")
        assert [entry.value async for entry in hold.session("device").entries()] == [b"before", b"after"]
        assert replica.client().zcard("{device}_messages") == 2
    finally:
        await client.aclose()
        for one in sentinel.sentinels:
            await one.aclose()
