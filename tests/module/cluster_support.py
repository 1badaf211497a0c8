"""Slots that move key by key, as cluster tools move them."""

from collections.abc import Iterator

from tests.support import Cluster, Server

MOVE_TIMEOUT_MS = 5000


def node_id(node: Server) -> str:
    """What the node calls itself in the cluster."""
    return str(node.client(decode_responses=True).execute_command("CLUSTER", "MYID"))


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
