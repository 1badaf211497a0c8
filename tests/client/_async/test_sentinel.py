"""Through Sentinel: the client finds the primary, and a subscription follows it."""

from collections.abc import Callable
from pathlib import Path

import redis
from redis.asyncio.sentinel import Sentinel

from holdmq import AsyncHoldMQ
from tests.client.sentinel import SERVICE, SentinelProcess
from tests.support import Server, eventually

FAILOVER_S = 30.0


def took_over(server: Server) -> bool:
    """Whether the replica has become the primary; it cuts its connections when it does."""
    try:
        return bool(server.client().info("replication")["role"] == "master")
    except redis.ConnectionError:
        return False


async def test_a_subscription_and_a_session_follow_the_primary(
    fresh_server: Callable[..., Server], tmp_path: Path
) -> None:
    primary = fresh_server()
    replica = fresh_server(replica_of=primary)
    watcher = SentinelProcess(primary, tmp_path)
    sentinel = Sentinel([("127.0.0.1", watcher.port)], socket_timeout=1.0)
    client = sentinel.master_for(SERVICE)
    hold = AsyncHoldMQ(client)
    try:
        await hold.session("device").add(b"before")
        assert primary.client().wait(1, 5000) == 1
        async with hold.subscribe("weather") as messages:
            assert await messages.get(0.1) is None
            assert primary.client().publish("weather", "old primary") == 1
            message = await messages.get(10)
            assert message is not None
            assert message.data == b"old primary"
            primary.kill()
            eventually(lambda: took_over(replica), FAILOVER_S, "a failover")
            # Kept if the subscription is not back yet, live if it is.
            redis.Redis(host="127.0.0.1", port=replica.port).publish("weather", "new primary")
            message = await messages.get(FAILOVER_S)
            assert message is not None
            assert message.data == b"new primary"
            assert messages.reconnections >= 1
        assert [entry.value async for entry in hold.session("device").entries()] == [b"before"]
    finally:
        await client.aclose()
        for one in sentinel.sentinels:
            await one.aclose()
        watcher.close()
