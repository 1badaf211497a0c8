"""A bridge's map of a real cluster: it follows moved slots and failovers, and logs what is wrong with the cluster."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from holdmq_bridge.base.target import Target
from holdmq_bridge.server.cluster_map import SLOTS
from holdmq_bridge.server.cluster_watch import ClusterWatch
from tests.bridge.scenes import WAIT_S, run
from tests.module.cluster_support import FAILS_OVER, SlotMove, add_replica, promote
from tests.support import Cluster, Server, ServerKind
from tests.support.ports import reserve_port

SOON_S = 0.3
"""A period that tests wait for."""

SELDOM_S = 600.0
"""A period that no test waits for: only a sign of change leads to a round."""

Make = Callable[..., Cluster]


class Listener:
    """Counts what the watch tells."""

    def __init__(self) -> None:
        self.changes = 0

    def cluster_changed(self) -> None:
        self.changes += 1


@contextlib.asynccontextmanager
async def watching(url: str, period_s: float = SOON_S) -> AsyncIterator[ClusterWatch]:
    watch = ClusterWatch(Target.parse(url), Listener(), period_s)
    watch.start()
    try:
        yield watch
    finally:
        await watch.stop()


async def until(condition: Callable[[], bool], what: str) -> None:
    try:
        async with asyncio.timeout(WAIT_S):
            while not condition():  # noqa: ASYNC110 (the watch has no event for it)
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"{what}: not within {WAIT_S:g} s") from None


def port_of(watch: ClusterWatch, slot: int) -> int | None:
    node = watch.map.node_of(slot)
    return None if node is None else node.address[1]


def ports_of(watch: ClusterWatch) -> list[int]:
    return sorted(node.address[1] for node in watch.map.nodes.values())


def events(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged so far."""
    return [record.getMessage() for record in caplog.records]


def facts(caplog: pytest.LogCaptureFixture, event: str) -> dict[str, object]:
    """The facts of the first such line."""
    found: dict[str, object] = next(record for record in caplog.records if record.getMessage() == event).facts  # type: ignore[attr-defined]
    return found


@pytest.fixture(autouse=True)
def _logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="holdmq.bridge.cluster")


@contextlib.asynccontextmanager
async def forwarding(port: int, target: Callable[[], int]) -> AsyncIterator[None]:
    """Forwards connections from a port to the one that `target` returns then."""
    writers: set[asyncio.StreamWriter] = set()

    async def pipe(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(65536):
                sink.write(data)
                await sink.drain()
        sink.close()

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", target())
        writers.update((writer, inner_writer))
        await asyncio.gather(pipe(reader, inner_writer), pipe(inner_reader, writer))

    async with await asyncio.start_server(forward, "127.0.0.1", port):
        yield
        for writer in writers:
            writer.close()
        for writer in writers:
            with contextlib.suppress(OSError):
                await writer.wait_closed()


def test_any_node_leads_to_all_of_them(fresh_cluster: Make) -> None:
    cluster = fresh_cluster(3)

    async def scene() -> None:
        for node in cluster.nodes:
            async with watching(node.url, SELDOM_S) as watch:
                await until(lambda: len(watch.map.nodes) == 3, "three nodes")
                assert ports_of(watch) == sorted(one.port for one in cluster.nodes)
                assert watch.map.uncovered() == []
                assert {port_of(watch, 0), port_of(watch, SLOTS - 1)} == {
                    cluster.nodes[0].port,
                    cluster.nodes[2].port,
                }
                await until(lambda: all(map(watch.is_usable, watch.map.nodes.values())), "nodes with the module")

    run(scene())


def give(move: SlotMove) -> None:
    """Move a slot without keys, to its end."""
    move.begin()
    target = move.target.client().execute_command("CLUSTER", "MYID")
    for node in (move.target, move.source):
        node.client().execute_command("CLUSTER", "SETSLOT", move.slot, "NODE", target)


@pytest.mark.parametrize("has_sign", [True, False])
def test_a_moved_slot_is_noticed(fresh_cluster: Make, has_sign: bool) -> None:
    cluster = fresh_cluster(2)
    source, target = cluster.nodes

    async def scene() -> None:
        async with watching(source.url, SELDOM_S if has_sign else SOON_S) as watch:
            await until(lambda: port_of(watch, 5) == source.port, "the first map")
            give(SlotMove(cluster, source, target, 5))
            if has_sign:
                address = ("127.0.0.1", source.port)
                node = watch.moved(f"MOVED 5 127.0.0.1:{target.port}", address)
                assert node is not None
                assert port_of(watch, 5) == target.port, "the redirection counts at once"
                rounds = watch.rounds
                await until(lambda: watch.rounds > rounds, "a round after the sign")
            await until(lambda: port_of(watch, 5) == target.port, "the new node of the slot")
            assert port_of(watch, 6) == source.port

    run(scene())


def test_a_storm_of_redirections_leads_to_few_questions(fresh_cluster: Make) -> None:
    cluster = fresh_cluster(2)
    node, other = cluster.nodes

    async def scene() -> None:
        async with watching(node.url, SELDOM_S) as watch:
            await until(lambda: len(watch.map.nodes) == 2, "the first map")
            loop = asyncio.get_running_loop()
            began, rounds = loop.time(), watch.rounds
            while loop.time() < began + 1.2:
                for slot in range(100):
                    watch.moved(f"MOVED {slot} 127.0.0.1:{other.port}", ("127.0.0.1", node.port))
                await asyncio.sleep(0)
            assert 1 <= watch.rounds - rounds <= 1 + (loop.time() - began) / 0.5

    run(scene())


def test_a_failover_is_noticed(fresh_cluster: Make, fresh_server: Callable[..., Server]) -> None:
    cluster = fresh_cluster(3, config=FAILS_OVER)
    lost, seed = cluster.nodes[0], cluster.nodes[1]
    replica = add_replica(cluster, lost, fresh_server(cluster=True, config=FAILS_OVER))

    async def scene() -> None:
        async with watching(seed.url, SELDOM_S) as watch:
            await until(lambda: port_of(watch, 0) == lost.port, "the first map")
            lost.kill()
            promote(cluster, replica, 0)
            watch.lost(("127.0.0.1", lost.port))
            await until(lambda: port_of(watch, 0) == replica.port, "the new primary")
            assert lost.port not in ports_of(watch)

    run(scene())


def test_the_map_outlives_the_node_in_the_url(fresh_cluster: Make, caplog: pytest.LogCaptureFixture) -> None:
    cluster = fresh_cluster(3)
    seed, source, target = cluster.nodes

    async def scene() -> None:
        async with watching(seed.url) as watch:
            await until(lambda: len(watch.map.nodes) == 3, "the first map")
            seed.kill()
            slot = SLOTS // 2
            give(SlotMove(cluster, source, target, slot))
            await until(lambda: port_of(watch, slot) == target.port, "the new node of the slot")
            await until(lambda: "the cluster is down" in events(caplog), "a line about the state")
            assert "no node of the cluster answers" not in events(caplog)

    run(scene())


def test_announced_names_and_ports_are_used(fresh_cluster: Make) -> None:
    cluster = fresh_cluster(2)
    hidden, seed = cluster.nodes
    outside = reserve_port()

    async def scene() -> None:
        async with forwarding(outside.number, lambda: hidden.port), watching(seed.url) as watch:
            await until(lambda: len(watch.map.nodes) == 2, "the first map")
            hidden.client().config_set("cluster-announce-port", outside.number)
            hidden.client().config_set("cluster-announce-hostname", "localhost")
            for node in cluster.nodes:
                node.client().config_set("cluster-preferred-endpoint-type", "hostname")
            expected = ("localhost", outside.number)
            await until(
                lambda: (node := watch.map.node_of(0)) is not None and node.address == expected, "a new address"
            )
            renamed = watch.map.node_of(0)
            assert renamed is not None
            await until(lambda: watch.is_usable(renamed), "an answer through the new address")
            other = watch.map.node_of(SLOTS - 1)
            assert other is not None
            assert other.address == ("127.0.0.1", seed.port), "no name is announced"

    run(scene())
    outside.release()


def test_slots_without_a_node_are_logged_and_their_return(
    fresh_cluster: Make, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = fresh_cluster(2)
    node, other = cluster.nodes

    async def scene() -> None:
        async with watching(node.url) as watch:
            await until(lambda: len(watch.map.nodes) == 2, "the first map")
            for one in cluster.nodes:
                one.client().execute_command("CLUSTER", "DELSLOTS", 7, 8, 9, 11)
            await until(lambda: watch.map.uncovered() == [(7, 9), (11, 11)], "a gap")
            await until(lambda: "slots of the cluster have no node" in events(caplog), "a line in the log")
            assert facts(caplog, "slots of the cluster have no node")["slots"] == "7-9, 11"
            await until(lambda: "the cluster is down" in events(caplog), "another line")
            other.client().execute_command("CLUSTER", "ADDSLOTS", 7, 8, 9, 11)
            await until(lambda: watch.map.uncovered() == [] and watch.map.is_ok, "a whole cluster")
            assert port_of(watch, 8) == other.port
            await until(
                lambda: events(caplog).count("a problem of the cluster is over") == 2, "the end of both problems"
            )
            assert events(caplog).count("slots of the cluster have no node") == 1

    run(scene())


def test_a_node_without_the_module_is_logged_and_not_usable(
    server_kind: ServerKind, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = [Server(server_kind, tmp_path / f"n{at}", cluster=True, module=at == 0) for at in range(2)]
    cluster = Cluster(nodes)

    async def scene() -> None:
        async with watching(nodes[0].url) as watch:
            await until(lambda: "nodes of the cluster lack the module holdmq" in events(caplog), "a line")
            assert facts(caplog, "nodes of the cluster lack the module holdmq")["nodes"] == f"127.0.0.1:{nodes[1].port}"
            usable = {one.address[1]: watch.is_usable(one) for one in watch.map.nodes.values()}
            assert usable == {nodes[0].port: True, nodes[1].port: False}

    try:
        cluster.start()
        run(scene())
    finally:
        for node in nodes:
            node.close()


def test_another_cluster_behind_the_name_is_not_followed(fresh_cluster: Make, caplog: pytest.LogCaptureFixture) -> None:
    first, second = fresh_cluster(1), fresh_cluster(1)
    backends = [first.nodes[0].port]
    name = reserve_port()

    async def scene() -> None:
        url = f"redis://127.0.0.1:{name.number}"
        async with forwarding(name.number, lambda: backends[0]), watching(url) as watch:
            await until(lambda: port_of(watch, 0) == first.nodes[0].port, "the first map")
            backends[0] = second.nodes[0].port
            await until(lambda: "another cluster answers: its reply is ignored" in events(caplog), "a line in the log")
            assert ports_of(watch) == [first.nodes[0].port]

    run(scene())
    name.release()


def test_a_server_outside_a_cluster_gives_no_map(server: Server, caplog: pytest.LogCaptureFixture) -> None:

    async def scene() -> None:
        async with watching(server.url) as watch:
            await until(lambda: "no node of the cluster answers" in events(caplog), "a line in the log")
            assert watch.map.nodes == {}

    run(scene())
    assert "cluster support disabled" in str(facts(caplog, "no node of the cluster answers")["error"])
