"""A fork while other threads use a client: the child neither waits for a thread that stayed behind nor misleads.

The locks are those of the libraries, held by real threads, and the children are real ones.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import redis
import redis.asyncio
import valkey
import valkey.cluster

from holdmq import AsyncHoldMQ, ForkedError, HoldMQ
from tests.client.support import in_child
from tests.support import Cluster, Server, embedded_kinds
from tests.support.server import HOST

server_kinds = embedded_kinds
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")

WAIT_S = 30.0
FORKS = 20
CLUSTER_LOCKS: dict[str, Callable[[Any], Any]] = {
    "client": lambda client: client._lock,
    "nodes": lambda client: client.nodes_manager._lock,
    "initialization": lambda client: client.nodes_manager._initialization_lock,
    "pool": lambda client: client.get_default_node().redis_connection.connection_pool._lock,
    "fork of pool": lambda client: client.get_default_node().redis_connection.connection_pool._fork_lock,
}


@contextmanager
def held(lock: Any) -> Iterator[None]:
    """Another thread has the lock."""
    begun, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            begun.set()
            assert go_on.wait(WAIT_S)

    with ThreadPoolExecutor(1) as threads:
        holding = threads.submit(hold)
        try:
            assert begun.wait(WAIT_S)
            yield
        finally:
            go_on.set()
            holding.result(WAIT_S)


def work(hold: HoldMQ[Any], name: str) -> bytes | None:
    """Commands to one node, to the node of a shard, to all; then what ends a client."""
    hold.channel(name, sharded=True).publish("child")
    last = hold.channel(name).last()
    hold.topics.publish("s/x", "child", qos=1)
    assert hold.check() == ()
    hold.close()
    hold.client.__del__()
    return last


@pytest.mark.parametrize("lock", CLUSTER_LOCKS)
def test_a_child_uses_the_client_of_a_cluster_whose_lock_a_thread_of_the_parent_held(
    cluster: Cluster, lock: str
) -> None:
    with cluster.client() as client:
        hold: HoldMQ[bytes] = HoldMQ(client)
        with held(CLUSTER_LOCKS[lock](client)):
            assert in_child(lambda: work(hold, "c"), WAIT_S) == b"child"
        assert hold.channel("c").last() == b"child"


def test_a_child_of_a_busy_client_of_a_cluster_never_waits_for_a_thread_of_the_parent(cluster: Cluster) -> None:
    over = threading.Event()

    def use(hold: HoldMQ[Any], number: int) -> None:
        while not over.is_set():
            hold.channel(f"c{number}", sharded=True).publish("parent")
            hold._executor.reload()

    with HoldMQ.from_url(cluster.nodes[0].url, cluster=True) as hold, ThreadPoolExecutor(3) as threads:
        busy = [threads.submit(use, hold, number) for number in range(3)]
        torn = 0
        try:
            for _ in range(FORKS):
                torn += in_child(lambda: (hold._executor.owner.is_torn, work(hold, "c"))[0], WAIT_S)
        finally:
            over.set()
        for one in busy:
            one.result(WAIT_S)
    assert torn > 0, "no fork came while a thread had a lock"


def test_a_child_uses_the_client_of_a_server_whose_pool_a_thread_of_the_parent_held(server: Server) -> None:
    with ExitStack() as stack:
        for client in (
            redis.Redis(port=server.port),
            valkey.Valkey(port=server.port),
            redis.Redis(connection_pool=redis.BlockingConnectionPool(port=server.port)),
        ):
            stack.callback(client.close)
            hold: HoldMQ[bytes] = HoldMQ(client)
            hold.channel("c").publish("parent")
            with held(client.connection_pool._lock):
                assert in_child(lambda hold=hold: work(hold, "c"), WAIT_S) == b"child"  # type: ignore[misc]


def test_a_child_uses_a_valkey_client_of_a_cluster_whose_lock_a_thread_of_the_parent_held(cluster: Cluster) -> None:
    client = valkey.cluster.ValkeyCluster(HOST, cluster.nodes[0].port)
    hold: HoldMQ[bytes] = HoldMQ(client)
    for lock in (client._lock, client.nodes_manager._lock):
        with held(lock):
            assert in_child(lambda: work(hold, "c"), WAIT_S) == b"child"
    client.close()  # type: ignore[no-untyped-call]


def test_a_child_cannot_wrap_an_inherited_client_that_is_stuck(cluster: Cluster) -> None:
    with cluster.client() as client:
        client.get("x")
        with held(client._lock), pytest.raises(ForkedError, match="expected one that was made after the fork"):
            in_child(lambda: HoldMQ(client), WAIT_S)
        assert in_child(lambda: HoldMQ(client).channel("c").last(), WAIT_S) is None


def test_the_one_connection_of_a_client_stays_in_its_process(server: Server) -> None:
    with HoldMQ.from_url(server.url, single_connection_client=True) as hold:
        hold.channel("c").publish("parent")
        with pytest.raises(ForkedError, match="one connection"):
            in_child(lambda: hold.channel("c").publish("child"), WAIT_S)
        in_child(hold.close, WAIT_S)
        assert hold.channel("c").last() == b"parent"


async def test_an_asyncio_client_of_a_cluster_that_was_used_is_refused_in_a_child(cluster: Cluster) -> None:
    client = redis.asyncio.RedisCluster(host=HOST, port=cluster.nodes[0].port)
    hold: AsyncHoldMQ[bytes] = AsyncHoldMQ(client)
    await hold.history.create("s", "s/#")
    calls: list[Callable[[], Awaitable[Any]]] = [
        lambda: hold.channel("c", sharded=True).publish("child"),
        lambda: hold.topics.publish("s/x", "child", qos=1),
        lambda: hold.history.store("s").append("s/x", "child"),
        lambda: anext(aiter(hold.sessions())),
        lambda: hold.ssubscribe("c").get(timeout=1),
        lambda: hold.history.start_replay("s/#", "1h").get(),
        lambda: hold.history.follow("s/#", "1h").get(timeout=1),
        hold.check,
        hold.info,
        hold.supports,
        hold.bridges,
    ]
    client._initialize = True  # another task is about to ask for the nodes
    client._lock = asyncio.Lock()
    async with client._lock:
        for call in calls:

            async def run(call: Callable[[], Awaitable[Any]] = call) -> None:
                await call()

            with pytest.raises(ForkedError, match="this client belongs to process"):
                in_child(lambda run=run: asyncio.run(run()), WAIT_S)  # type: ignore[misc]
        in_child(lambda: asyncio.run(hold.aclose()), WAIT_S)
    client._initialize = False
    await hold.channel("c", sharded=True).publish("parent")
    assert await hold.channel("c").last() == b"parent"
    await client.aclose()
