"""Routes over a real cluster: a subscription is granted when every node that answers knows it, or refused in time."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import hiredis
import pytest

from holdmq import core
from holdmq.core.engine import EventKind, OutOfStepError
from holdmq_bridge.process.process import Process
from holdmq_bridge.process.settings import Settings
from holdmq_bridge.server.calls import Calls
from holdmq_bridge.server.feeder import Feeder
from holdmq_bridge.server.node_calls import NodeCalls
from holdmq_bridge.server.node_links import NodeLinks
from holdmq_bridge.server.routes import Routes
from tests.bridge.scenes import WAIT_S, run
from tests.bridge.test_node_links import ids_on
from tests.module.cluster_support import FAILS_OVER, SlotMove, add_replica, node_id, promote
from tests.support import Cluster, Server

Make = Callable[..., Cluster]


class Owner:
    """A process with links to nodes, and nothing else."""

    def __init__(self, url: str, limit_s: float) -> None:
        self.process = Process(Settings(redis=url), self.flush, is_cluster=True)
        self.server_buffer = self.process.engine.server_buffer
        self.links = NodeLinks(self.process.settings, self.process.engine, self, "owner", 1.0)
        self.calls = Calls(self.process, self.links)
        self.nodes = NodeCalls(self.links, self.calls)
        self.feeder = Feeder(self.nodes)
        self.routes = Routes(self.nodes, self.feeder, limit_s)

    def on_bytes(self, link: int, count: int) -> bool:
        try:
            for event in self.process.engine.buffered_replies(count, self.process.now_ms(), link):
                if event.kind == EventKind.REPLY:
                    self.calls.receive(event.link, event.token, event.data)
        except OutOfStepError:
            return False
        return True

    def on_up(self, link: int) -> None:
        self.process.engine.server_restored(self.process.now_ms(), link)
        self.process.wake()

    def on_down(self, link: int) -> None:
        self.calls.server_lost(link)
        self.process.engine.server_lost(link)

    def on_writable(self) -> None:
        self.process.wake()

    def on_slots(self) -> None:
        pass

    def on_primary_moved(self) -> None:
        pass

    def ping(self, link: int) -> bool:
        self.calls.call(("PING",), lambda _reply: None, link)
        return True

    def flush(self) -> None:
        self.process.flush_is_due = False
        self.process.engine.flush(self.process.now_ms())
        self.links.flush()

    async def open(self, client_id: bytes) -> bytes:
        """A session that stays, and its key."""
        key = core.session_key(client_id)
        reply: Any = hiredis.ReplyError("TRYAGAIN")
        async with asyncio.timeout(WAIT_S):
            while isinstance(reply, hiredis.ReplyError):
                reply = await self.nodes.ask_for(key, ("SESSION.OPEN", key, "OWNER", "owner", "EXPIRY", 3600))
                await asyncio.sleep(0.02)
        return key


@contextlib.asynccontextmanager
async def owning(url: str, limit_s: float = WAIT_S) -> AsyncIterator[Owner]:
    owner = Owner(url, limit_s)
    owner.links.start()
    try:
        yield owner
    finally:
        await owner.routes.stop()
        await owner.feeder.stop()
        await owner.links.stop()


def slots_of(node: Server, session: bytes, topic: str) -> set[int]:
    """Where the node would send a publish."""
    _node, _generation, _version, listed = node.client().execute_command("ROUTE.CHECK", session, topic)
    return {slot for at in range(0, len(listed), 2) for slot in range(listed[at], listed[at + 1] + 1)}


def session_on(cluster: Cluster, node: Server) -> bytes:
    return core.session_key(ids_on(cluster)[cluster.nodes.index(node)][0])


def test_each_node_answers_with_a_subscription_of_another_one(fresh_cluster: Make) -> None:
    cluster = fresh_cluster(3)

    async def scene() -> None:
        async with owning(cluster.nodes[1].url) as owner:
            keys = [await owner.open(client_id) for (client_id,) in ids_on(cluster)]
            for key in keys:
                assert await owner.routes.subscribe(key, 0, (b"plant/+", 1, b"$share/g/x/#", 1)) == [1, 1]
            for node in cluster.nodes:
                for topic in ("plant/7", "x/y"):
                    found = slots_of(node, session_on(cluster, node), topic)
                    assert found == {core.slot_of(key) for key in keys}
            assert await owner.routes.subscribe(keys[0], 0, (b"plant/+", 2)) == [0]

    run(scene())


def test_a_confirmed_route_is_not_sent_again(fresh_cluster: Make) -> None:
    cluster = fresh_cluster(2)

    def told() -> int:
        stats = [node.client().info("commandstats") for node in cluster.nodes]
        found: list[Any] = [one[name] for one in stats for name in one if name.lower() == "cmdstat_route.add"]
        return sum(one["calls"] for one in found)

    async def scene() -> None:
        async with owning(cluster.nodes[0].url) as owner:
            key = await owner.open(ids_on(cluster)[0][0])
            assert await owner.routes.subscribe(key, 0, (b"a/#", 1)) == [1]
            async with asyncio.timeout(WAIT_S):
                while owner.routes.confirming:  # noqa: ASYNC110 (nothing tells of it)
                    await asyncio.sleep(0.01)
            before = await asyncio.to_thread(told)
            assert before > 0
            assert await owner.routes.subscribe(key, 0, (b"a/#", 2)) == [0]
            assert await asyncio.to_thread(told) == before

    run(scene())


def test_a_node_that_restarts_is_fed_before_the_next_subscription(fresh_cluster: Make) -> None:
    cluster = fresh_cluster(3)

    async def scene() -> None:
        async with owning(cluster.nodes[1].url) as owner:
            keys = [await owner.open(client_id) for (client_id,) in ids_on(cluster)]
            assert await owner.routes.subscribe(keys[0], 0, (b"a/#", 1)) == [1]
            await asyncio.to_thread(cluster.nodes[2].kill)
            await asyncio.to_thread(cluster.nodes[2].start)
            assert await owner.routes.subscribe(keys[1], 0, (b"b/#", 1)) == [1]
            for topic, key in (("a/1", keys[0]), ("b/1", keys[1])):
                found = await asyncio.to_thread(slots_of, cluster.nodes[2], keys[2], topic)
                assert found == {core.slot_of(key)}

    run(scene())


def test_a_promoted_replica_is_fed_before_the_next_subscription(
    fresh_cluster: Make, fresh_server: Callable[..., Server]
) -> None:
    cluster = fresh_cluster(3, config=FAILS_OVER)
    lost, ids = cluster.nodes[0], ids_on(cluster)
    replica = add_replica(cluster, lost, fresh_server(cluster=True, config=FAILS_OVER))

    async def scene() -> None:
        async with owning(cluster.nodes[1].url) as owner:
            keys = [await owner.open(client_id) for (client_id,) in ids]
            assert await owner.routes.subscribe(keys[0], 0, (b"a/#", 1)) == [1]
            await asyncio.to_thread(lost.client().execute_command, "WAIT", 1, 5000)
            await asyncio.to_thread(lost.kill)
            await asyncio.to_thread(promote, cluster, replica, core.slot_of(keys[0]))
            assert await owner.routes.subscribe(keys[1], 0, (b"b/#", 1)) == [1]
            for topic, key in (("a/1", keys[0]), ("b/1", keys[1])):
                found = await asyncio.to_thread(slots_of, replica, keys[0], topic)
                assert found == {core.slot_of(key)}

    run(scene())


def test_a_subscription_is_refused_in_time_while_a_node_is_away(fresh_cluster: Make) -> None:
    cluster = fresh_cluster(2, config=["cluster-require-full-coverage no"])

    async def scene() -> None:
        async with owning(cluster.nodes[0].url, limit_s=1.0) as owner:
            key = await owner.open(ids_on(cluster)[0][0])
            assert await owner.routes.subscribe(key, 0, (b"old/#", 1)) == [1]
            await asyncio.to_thread(cluster.nodes[1].kill)
            reply = await owner.routes.subscribe(key, 0, (b"new/#", 1, b"old/#", 2))
            assert isinstance(reply, hiredis.ReplyError)
            assert node_id(cluster.nodes[0]) not in str(reply)
            assert "NOROUTES not every node could be told" in str(reply)
            assert await owner.nodes.ask_for(key, ("SESSION.SUBSCRIPTIONS", key)) == {b"old/#": b"2"}

    run(scene())


@pytest.mark.parametrize("rounds", [2])
def test_subscriptions_succeed_while_their_slot_moves(fresh_cluster: Make, rounds: int) -> None:
    cluster = fresh_cluster(2)
    (client_id,), (other,) = ids_on(cluster)

    async def scene() -> None:
        async with owning(cluster.nodes[0].url) as owner:
            key, publisher = await owner.open(client_id), await owner.open(other)
            count = 0
            for at in range(rounds):
                source, target = cluster.nodes[at % 2], cluster.nodes[(at + 1) % 2]
                move = SlotMove(cluster, source, target, core.slot_of(key))
                await asyncio.to_thread(move.begin)
                adding = asyncio.create_task(owner.routes.subscribe(key, 0, (b"t/%d" % count, 1)))
                for _ in move.move_all(1):
                    await asyncio.sleep(0.01)
                await asyncio.to_thread(move.end)
                assert await adding == [1]
                count += 1
            for number in range(count):
                found = await asyncio.to_thread(slots_of, cluster.nodes[1], publisher, f"t/{number}")
                assert found == {core.slot_of(key)}

    run(scene())
