"""Slots that move key by key, as cluster tools move them, and replicas that take them over."""

import re
from collections.abc import Iterator

from tests.support import Cluster, Server, eventually
from tests.support.ports import CLUSTER_BUS_OFFSET

MOVE_TIMEOUT_MS = 5000
WAIT_S = 30.0
FAILS_OVER = ["cluster-node-timeout 3000"]  # of nodes some of which are lost: the others notice it soon


def node_id(node: Server) -> str:
    """What the node calls itself in the cluster."""
    return str(node.client(decode_responses=True).execute_command("CLUSTER", "MYID"))


def owner(cluster: Cluster, slot: int, by: Server | None = None) -> Server:
    """The node that has a slot now, as the first node knows it, or another one."""
    view = (by or cluster.nodes[0]).client().execute_command("CLUSTER", "SLOTS")
    for first, last, (_host, port, *_), *_ in view:
        if first <= slot <= last:
            return next(node for node in cluster.nodes if node.port == port)
    raise AssertionError(f"nobody has slot {slot}")


def _wait_until_known(node: Server, other: Server) -> None:
    client, line = node.client(), re.compile(f"^{node_id(other)} .* connected", re.MULTILINE)
    eventually(
        lambda: line.search(client.execute_command("CLUSTER", "NODES").decode()), WAIT_S, "nodes that know each other"
    )


def add_replica(cluster: Cluster, primary: Server, server: Server) -> Server:
    """Make the server a replica of a node, and wait until it follows and all nodes know each other."""
    client = server.client()
    client.execute_command("CLUSTER", "MEET", "127.0.0.1", primary.port, primary.port + CLUSTER_BUS_OFFSET)
    known = node_id(primary).encode()
    eventually(
        lambda: known in client.execute_command("CLUSTER", "NODES", target_nodes=None), WAIT_S, "a node that is met"
    )
    client.execute_command("CLUSTER", "REPLICATE", known)
    # Its primary counts it before it has any data.
    eventually(lambda: client.info("replication").get("master_link_status") == "up", WAIT_S, "a replica with the data")
    for node in cluster.nodes:
        if node.process.running:
            _wait_until_known(node, server)
            _wait_until_known(server, node)
    cluster.nodes.append(server)
    return server


def promote(cluster: Cluster, replica: Server, slot: int) -> None:
    """Make the replica of a primary that is lost the primary, without a vote, and wait until all nodes know."""
    replica.client().execute_command("CLUSTER", "FAILOVER", "TAKEOVER")
    running = [node for node in cluster.nodes if node.process.running]
    eventually(lambda: all(owner(cluster, slot, node) is replica for node in running), WAIT_S, "a new primary")


class SlotMove:
    """One slot on its way from its node to another.

    Args:
        cluster: the nodes.
        source: which has the slot.
        target: which shall have it.
        slot: the slot.
    """

    def __init__(self, cluster: Cluster, source: Server, target: Server, slot: int) -> None:
        self.cluster = cluster
        self.source = source
        self.target = target
        self.slot = slot
        self._source = source.client(socket_timeout=30)
        self._target = target.client()

    def begin(self) -> None:
        """From now on the slot is on its way."""
        self._target.execute_command("CLUSTER", "SETSLOT", self.slot, "IMPORTING", node_id(self.source))
        self._source.execute_command("CLUSTER", "SETSLOT", self.slot, "MIGRATING", node_id(self.target))

    def keys(self, count: int) -> list[bytes]:
        """Some keys that are still on the source."""
        keys: list[bytes] = self._source.execute_command("CLUSTER", "GETKEYSINSLOT", self.slot, count)
        return keys

    def move(self, *keys: bytes | str) -> None:
        """Move these keys; a key that the target has already is an error."""
        words = ["MIGRATE", "127.0.0.1", self.target.port, "", 0, MOVE_TIMEOUT_MS, "KEYS", *keys]
        assert self._source.execute_command(*words) in (b"OK", b"NOKEY")  # NOKEY: it has expired

    def move_all(self, batch: int) -> Iterator[int]:
        """Move so many keys at a time; yields how many after each batch."""
        while keys := self.keys(batch):
            self.move(*keys)
            yield len(keys)

    def end(self) -> None:
        """The slot is the target's, and every node is told."""
        for node in sorted(self.cluster.nodes, key=lambda node: (node is not self.target, node is not self.source)):
            node.client().execute_command("CLUSTER", "SETSLOT", self.slot, "NODE", node_id(self.target))
