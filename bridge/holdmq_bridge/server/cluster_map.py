"""Which node of a cluster has which slot: built from the answers of its nodes, without I/O.

    CLUSTER MYID, INFO, SLOTS of some nodes ──► View.read ──► newest ──► ClusterMap.take ──► has it changed?
    MOVED 3999 10.0.0.2:6379                ──► ClusterMap.moved ──► that slot's node, until the next view

Invariants
 1. The map is the view of one node, corrected by redirections that came after it.
 2. Of several views the one of the highest epoch counts, and of these one of a node that is not cut off.  A node that
    missed a failover has a lower epoch.
 3. A view that shares no node with the map is of another cluster.  It is refused and changes nothing.
 4. The addresses are those that the cluster announces (cluster-announce-*).  Where it announces none, a node has the
    address at which it was asked.
 5. A map is never half read: a reply that is not understood, or has too many nodes, changes nothing.
 6. Every operation is O(slots + nodes), a look-up is O(1).
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from holdmq.core.engine import MOST_LINKS

SLOTS = 16384
_NOBODY = 0xFFFF
_SHOWN_RANGES = 5

Address = tuple[str, int]


class ClusterError(Exception):
    """An answer that no map can be built from."""


class Node(NamedTuple):
    """A primary with slots."""

    id: str
    address: Address


class View(NamedTuple):
    """A cluster as one node sees it.

    Attributes:
        asked: the address at which the node was asked.
        epoch: the highest that the node has heard of.
        is_ok: whether the node says that the cluster works.
        nodes: the primaries with slots.
        slots: for each slot the index of its node in `nodes`.
    """

    asked: Address
    epoch: int
    is_ok: bool
    nodes: tuple[Node, ...]
    slots: "array[int]"

    @classmethod
    def read(cls, asked: Address, info: bytes, rows: Sequence[Any]) -> "View":
        """Reads the replies to CLUSTER INFO and CLUSTER SLOTS.

        Raises:
            ClusterError: they are not such replies, or there are too many nodes.
        """
        facts = dict(line.partition(":")[::2] for line in info.decode(errors="replace").splitlines())
        slots = array("H", [_NOBODY]) * SLOTS
        nodes: dict[Node, int] = {}
        try:
            epoch = int(facts["cluster_current_epoch"])
            for begin, end, primary, *_replicas in rows:
                node = nodes.setdefault(_node(primary, asked), len(nodes))
                if not 0 <= begin <= end < SLOTS:
                    raise ClusterError(f"slots {begin} to {end}; expected 0 to {SLOTS - 1}")
                slots[begin : end + 1] = array("H", [node]) * (end + 1 - begin)
        except (KeyError, TypeError, ValueError, IndexError, UnicodeError) as error:
            raise ClusterError(f"no answer of a node of a cluster ({type(error).__name__}: {error})") from error
        if len(nodes) > MOST_LINKS:
            raise ClusterError(f"{len(nodes)} nodes have slots; expected at most {MOST_LINKS}")
        return cls(asked, epoch, facts.get("cluster_state") == "ok", tuple(nodes), slots)


def newest(views: Iterable[View]) -> View:
    """The view that counts (invariant 2): the first of equal views."""
    return max(views, key=lambda view: (view.epoch, view.is_ok))


def redirection(error: str, asked: Address) -> tuple[int, Address] | None:
    """The slot and the node that MOVED or ASK names; None for any other error."""
    words = error.split()
    if len(words) != 3 or words[0] not in ("MOVED", "ASK"):
        return None
    host, _, port = words[2].rpartition(":")
    if not (words[1].isdecimal() and int(words[1]) < SLOTS and port.isdecimal()):
        return None
    return int(words[1]), (host if host not in ("", "?") else asked[0], int(port))


class ClusterMap:
    """The nodes and their slots; empty until the first view.

    Attributes:
        nodes: the primaries with slots, by their ids.
        is_ok: whether the cluster says that it works.
    """

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.is_ok = False
        self._listed: list[Node] = []
        self._slots = array("H", [_NOBODY]) * SLOTS

    def take(self, view: View) -> bool:
        """Replaces the map by a view.  Returns whether anything has changed.

        Raises:
            ClusterError: the view is of another cluster.
        """
        nodes = {node.id: node for node in view.nodes}
        if self.is_foreign(view):
            raise ClusterError("none of its nodes is known: it belongs to another cluster")
        if not nodes and self.nodes:
            raise ClusterError("it knows no node that has slots")
        has_changed = nodes != self.nodes or view.is_ok != self.is_ok or self._differs(view)
        self.nodes, self.is_ok = nodes, view.is_ok
        self._listed, self._slots = list(view.nodes), view.slots[:]
        return has_changed

    def is_foreign(self, view: View) -> bool:
        """Whether the view is of another cluster: it has nodes, and the map knows none of them."""
        return bool(self.nodes and view.nodes) and not any(node.id in self.nodes for node in view.nodes)

    def _differs(self, view: View) -> bool:
        if self._slots == view.slots and self._listed == list(view.nodes):
            return False
        return any(self.node_of(slot) != _at(view.nodes, view.slots[slot]) for slot in range(SLOTS))

    def node_of(self, slot: int) -> Node | None:
        """The node that has a slot; None: no node has it."""
        return _at(self._listed, self._slots[slot])

    def moved(self, slot: int, address: Address) -> Node | None:
        """A node said that another one has the slot.  Returns that node; None: it is not known yet."""
        for at, node in enumerate(self._listed):
            if node.address == address:
                self._slots[slot] = at
                return node
        return None

    def uncovered(self) -> list[tuple[int, int]]:
        """The ranges of slots that no node has."""
        return [(begin, end) for begin, end, node in self._runs() if node == _NOBODY]

    def ranges(self) -> Iterator[tuple[int, int, Node | None]]:
        """All ranges of slots with the same node, or without one."""
        return ((begin, end, _at(self._listed, node)) for begin, end, node in self._runs())

    def _runs(self) -> Iterator[tuple[int, int, int]]:
        """First and last slot of each run of slots with the same node, and its index."""
        ends = [slot for slot in range(SLOTS - 1) if self._slots[slot] != self._slots[slot + 1]] + [SLOTS - 1]
        begin = 0
        for end in ends:
            yield begin, end, self._slots[end]
            begin = end + 1


def shown_slots(ranges: Sequence[tuple[int, int]]) -> str:
    """Ranges for the log: the first few, and how many follow."""
    shown = [str(begin) if begin == end else f"{begin}-{end}" for begin, end in ranges[:_SHOWN_RANGES]]
    more = len(ranges) - len(shown)
    return ", ".join(shown) + (f" and {more} more ranges" if more > 0 else "")


def module_version(hello: Any) -> int | None:
    """The version of the module in a reply to HELLO; None: it is not loaded.

    Raises:
        ClusterError: it is no such reply.
    """
    try:
        for module in _pairs(hello)["modules"]:
            facts = _pairs(module)
            if _text(facts["name"]) == "holdmq":
                return int(facts["ver"])
    except (KeyError, TypeError, ValueError) as error:
        raise ClusterError(f"no reply to HELLO ({type(error).__name__}: {error})") from error
    return None


class RefreshTimer:
    """When the nodes are asked next: from time to time, soon after a sign of change, never too often.

    Args:
        period_s: between two rounds without a sign.
        least_s: between the beginnings of two rounds, whatever happens.
    """

    def __init__(self, period_s: float, least_s: float) -> None:
        self._period_s = period_s
        self._least_s = least_s
        self._began_at: float | None = None
        self._is_requested = True

    def request(self) -> None:
        """There is a sign of change: a redirection, or a lost connection."""
        self._is_requested = True

    def begin(self, now: float) -> None:
        """A round begins.  Signs that come from now on lead to another one."""
        self._began_at = now
        self._is_requested = False

    def wait_s(self, now: float) -> float:
        """Seconds until the next round; 0: it is due."""
        if self._began_at is None:
            return 0.0
        return max(0.0, self._began_at + (self._least_s if self._is_requested else self._period_s) - now)


def _at(nodes: Sequence[Node], index: int) -> Node | None:
    return None if index == _NOBODY else nodes[index]


def _node(entry: Sequence[Any], asked: Address) -> Node:
    """A node in a row of CLUSTER SLOTS: endpoint, port, id, and what else is known of it."""
    endpoint, port, node_id = entry[0], int(entry[1]), _text(entry[2])
    host = _text(endpoint) if endpoint is not None else asked[0]
    if host == "?":  # a name is preferred and not set
        host = _text(_pairs(entry[3] if len(entry) > 3 else ()).get("ip", ""))
    if not node_id or not 0 < port <= 0xFFFF:
        raise ClusterError(f"a node {node_id!r} with port {port}; expected an id, and a port from 1 to 65535")
    return Node(node_id, (host or asked[0], port))


def _pairs(listed: Any) -> dict[str, Any]:
    """Names and values, which come as a map or one after the other."""
    if isinstance(listed, dict):
        return {_text(name): value for name, value in listed.items()}
    return {_text(name): value for name, value in zip(listed[::2], listed[1::2], strict=True)}


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
