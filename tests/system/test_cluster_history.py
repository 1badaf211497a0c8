"""Under load, while shards of history move and nodes fail, every acknowledged message is there once and in order.

The numbers of each shard have no holes, its ids rise, and a reader that went on meanwhile saw the same.
"""

import contextlib
import itertools
import subprocess
from collections.abc import Callable

import redis

from tests.module.cluster_support import FAILS_OVER, SlotMove, add_replica, node_id
from tests.module.history_cluster_support import Store, settle, slot_of
from tests.support import Cluster, Server, eventually
from tests.support.servers import embedded_kinds
from tests.system.cluster_history_load import WAIT_S, load_on

SHARDS = 4
FAILOVER_S = 6.0
LOW = 32  # slots of the first node that the tool moves, one shard among them
MakeCluster = Callable[..., Cluster]
server_kinds = embedded_kinds  # what servers can differ in stands in tests/module/history/test_history_cluster.py


def made(cluster: Cluster, shards: int = SHARDS, name: str = "s") -> Store:
    """A store of the load's topics; short epochs, so that there are several."""
    store = Store(cluster, name, shards)
    store.create("load/#", epoch=1)
    return store


def test_shards_whose_slots_move_key_by_key_keep_every_acknowledged_message(fresh_cluster: MakeCluster) -> None:
    store = made(fresh_cluster(3))
    batches = itertools.cycle([1, 7, 50])
    with load_on(store) as load:
        load.wait_for_progress()
        for shard in [0, 1, 2, 3, 0]:
            move = SlotMove(store.cluster, store.node(shard), store.elsewhere(shard), slot_of("s", shard))
            move.begin()
            assert sum(move.move_all(next(batches))) > 0
            move.end()
            load.wait_for_progress()
        load.check()


def test_a_reshard_by_the_cluster_tool_keeps_every_acknowledged_message(fresh_cluster: MakeCluster) -> None:
    cluster = fresh_cluster(3)
    source, target = cluster.nodes[:2]
    names = (f"s{number}" for number in itertools.count())
    name = next(name for name in names if low_shards(name))
    store = made(cluster, SHARDS, name)
    words = ["redis-cli", "--cluster", "reshard", f"127.0.0.1:{source.port}", "--cluster-from", node_id(source)]
    words += ["--cluster-to", node_id(target), "--cluster-slots", str(LOW), "--cluster-yes"]
    with load_on(store) as load:
        load.wait_for_progress()
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr
        settle(cluster)
        load.wait_for_progress()
        load.check()
    assert all(store.node(shard) is target for shard in low_shards(name))


def low_shards(name: str) -> list[int]:
    """The shards in the slots that the tool moves."""
    return [shard for shard in range(SHARDS) if slot_of(name, shard) < LOW]


def test_slots_that_are_moved_as_a_whole_keep_every_acknowledged_message(fresh_cluster: MakeCluster) -> None:
    cluster = fresh_cluster(3)
    store = made(cluster)
    with load_on(store) as load:
        load.wait_for_progress()
        for shard in range(store.shards):
            source, target, slot = store.node(shard), store.elsewhere(shard), slot_of("s", shard)
            words = ("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", node_id(target))
            source.client().execute_command(*words)
            has_arrived(slot, target)
            settle(cluster)
            load.wait_for_progress()
        eventually(lambda: all(is_in_place(node) for node in cluster.nodes), WAIT_S, "sources without what went")
        load.check()


def has_arrived(slot: int, target: Server) -> None:
    """Wait until the slot is on its new node."""
    eventually(lambda: slot in target.slots(), WAIT_S, "the slot on its new node")


def is_in_place(node: Server) -> bool:
    """Whether the server has removed what it gave away: it does so in the background."""
    own = node.slots()
    counts = [
        node.client().execute_command("CLUSTER", "COUNTKEYSINSLOT", slot_of("s", shard)) for shard in range(SHARDS)
    ]
    return all(count == 0 or slot_of("s", shard) in own for shard, count in enumerate(counts))


def test_a_replica_that_takes_over_continues_with_every_acknowledged_message(
    fresh_cluster: MakeCluster, fresh_server: Callable[..., Server]
) -> None:
    cluster = fresh_cluster(3, config=FAILS_OVER)
    store = made(cluster, 1)
    first = store.node(0)
    second = add_replica(cluster, first, fresh_server(cluster=True, config=FAILS_OVER))
    with load_on(store, publishes=False, wait=1) as load:
        load.wait_for_progress()
        hand_over(store, second)
        load.wait_for_progress()
        second.kill()
        takes_over(store, first)
        second.restart()
        load.wait_for_progress()
        settle(cluster)
        load.check()


def test_a_node_that_is_cut_off_acknowledges_nothing(fresh_cluster: MakeCluster) -> None:
    cluster = fresh_cluster(3, config=FAILS_OVER)
    store = made(cluster, 1)
    node = store.node(0)
    client = node.client()
    append = ("HISTORY.APPEND", "s", "load/a", "m")
    client.execute_command(*append)
    client.config_set("cluster-node-timeout", 1000)
    for other in cluster.nodes:
        if other is not node:
            other.pause()
    try:
        eventually(lambda: is_refused(client, *append), WAIT_S, "a node that knows that it is cut off")
        slot = slot_of("s", 0)
        publish = ("TOPIC.PUBLISH", "load/a", "p", "SLOTS", 1, slot, slot)
        assert client.execute_command(*publish) == [0, [[slot, slot, b""]]]
    finally:
        for other in cluster.nodes:
            other.resume()
    eventually(lambda: not is_refused(client, *append), WAIT_S, "a node that is back")


def is_refused(client: redis.Redis, *words: str) -> bool:
    """Whether the node says that the cluster is down."""
    try:
        client.execute_command(*words)
    except redis.exceptions.ClusterDownError:
        return True
    return False


def hand_over(store: Store, node: Server) -> None:
    """Make a replica the primary, which is asked to wait for it; the server gives up after five seconds."""
    for _ in range(4):
        node.client().execute_command("CLUSTER", "FAILOVER")
        with contextlib.suppress(AssertionError):
            eventually(lambda: slot_of(store.name, 0) in node.slots(), FAILOVER_S)
            return
    raise AssertionError("no failover in four tries")


def takes_over(store: Store, node: Server) -> None:
    """Wait until the node has the store's only shard."""
    eventually(lambda: slot_of(store.name, 0) in node.slots(), WAIT_S, "a replica that has taken over")
