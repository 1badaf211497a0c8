"""The links of a process to the nodes of a cluster: one for each node that has slots, numbered as in the engine.

    ClusterWatch ── nodes and slots ──► NodeLinks ── opens, closes ──► Link 0, Link 1, ...
    engine's output of link n ──► `flush` ──► Link n ──► node
    a session's key ──► `number_of` ──► the link of the node that has its slot

Invariants
 1. A node keeps its number as long as it has slots.  Afterwards its link stays for _LINGER_S: sessions leave it only
    after its replies.  Then the engine is told that the link is lost, and the number may be used for another node.
    A session that is still on it then gets MOVED from that node.
 2. A node with a new address gets a new connection with the same number.
 3. When a link is up, its number and its node are those of the present map, or it lingers.
"""

import asyncio
import contextlib

from redis.asyncio import Redis

from holdmq.address import shown_address
from holdmq.core import slot_of
from holdmq.core.engine import MOST_LINKS, Engine
from holdmq_bridge.base.target import Target
from holdmq_bridge.process.settings import Settings
from holdmq_bridge.server.cluster_map import Node, redirection
from holdmq_bridge.server.cluster_watch import ClusterWatch
from holdmq_bridge.server.link import Link
from holdmq_bridge.server.servers import ServersListener

_LINGER_S = 10.0
_FIRST_S = 2.0  # for the first look at the cluster
_PERIOD_S = 10.0


class _Ends:
    """What one link tells, with its number."""

    def __init__(self, number: int, owner: ServersListener, watch: ClusterWatch, node: Node) -> None:
        self.server_buffer = owner.server_buffer
        self._number = number
        self._owner = owner
        self._watch = watch
        self._node = node

    def on_bytes(self, count: int) -> bool:
        return self._owner.on_bytes(self._number, count)

    def on_up(self) -> None:
        self._owner.on_up(self._number)

    def on_down(self) -> None:
        self._watch.lost(self._node.address)
        self._owner.on_down(self._number)

    def on_failed(self) -> None:
        self._watch.lost(self._node.address)  # another node may have the slots by now

    def on_primary_moved(self) -> None:
        """Only Sentinels announce that, and a cluster has none."""

    def on_writable(self) -> None:
        self._owner.on_writable()

    def ping(self) -> bool:
        return self._owner.ping(self._number)


class _NodeLink:
    """A link, its task, and its node."""

    def __init__(self, number: int, node: Node, link: Link) -> None:
        self.number = number
        self.node = node
        self.link = link
        self.task = asyncio.create_task(link.run())
        self.leaves: asyncio.TimerHandle | None = None  # while it lingers

    def close(self) -> None:
        if self.leaves is not None:
            self.leaves.cancel()
        self.link.close()
        self.task.cancel()


class NodeLinks:
    """One for each process.  Create it inside the event loop.

    Args:
        settings: of the bridge.
        engine: made with MOST_LINKS links, or fewer if there are fewer nodes.
        listener: the owner.
        name: of the connections.
        period_s: between two looks at the cluster without a sign of change.

    Attributes:
        watch: has the map.
    """

    is_cluster = True
    in_doubt = False

    def __init__(
        self, settings: Settings, engine: Engine, listener: ServersListener, name: str, period_s: float = _PERIOD_S
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._listener = listener
        self._name = name
        self._target = Target.parse(settings.redis)
        self._by_id: dict[str, _NodeLink] = {}
        self._by_number: dict[int, _NodeLink] = {}
        self._closed: set[asyncio.Task[None]] = set()
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._is_known = asyncio.Event()  # the map
        self._former_connections = self._former_losses = 0  # of links that are closed
        self.watch = ClusterWatch(self._target, self, period_s)

    def start(self) -> None:
        """Begins to look for nodes.  Call it inside the event loop."""
        self.watch.start(self._ended)

    async def run(self) -> None:
        """Returns only by an error: that of a task, which otherwise never ends."""
        await asyncio.shield(self._failed)

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._failed.done():
            self._failed.set_exception(error)

    async def stop(self) -> None:
        """Closes all links."""
        await self.watch.stop()
        for one in tuple(self._by_id.values()):
            self._close(one)
        if self._closed:
            await asyncio.wait(self._closed)

    # ---- nodes -----------------------------------------------------------------------------------------------------

    def cluster_changed(self) -> None:
        """Opens and closes links by the map."""
        self._is_known.set()
        nodes = self.watch.map.nodes
        for one in tuple(self._by_id.values()):
            node = nodes.get(one.node.id)
            if node is None:
                self._close_later(one)
            elif node.address != one.node.address:
                self._close(one)
            elif one.leaves is not None:
                one.leaves.cancel()
                one.leaves = None
        for node in nodes.values():
            if node.id not in self._by_id:
                self._open(node)
        self._listener.on_slots()

    def _open(self, node: Node) -> None:
        number = next((number for number in range(MOST_LINKS) if number not in self._by_number), None)
        if number is None:  # links that linger have the others
            return
        target = self._target.at(node.address)
        ends = _Ends(number, self._listener, self.watch, node)
        one = self._by_number[number] = self._by_id[node.id] = _NodeLink(
            number, node, Link(self._settings, ends, self._name, target)
        )
        one.task.add_done_callback(self._ended)

    def _close_later(self, one: _NodeLink) -> None:
        if one.leaves is None:
            one.leaves = asyncio.get_running_loop().call_later(_LINGER_S, self._close, one)

    def _close(self, one: _NodeLink) -> None:
        was_up = one.link.up
        one.close()
        self._former_connections += one.link.connections
        self._former_losses += one.link.losses
        self._closed.add(one.task)
        one.task.add_done_callback(self._closed.discard)
        del self._by_id[one.node.id], self._by_number[one.number]
        if was_up:
            self._listener.on_down(one.number)

    # ---- sessions --------------------------------------------------------------------------------------------------

    def number_of(self, key: bytes) -> int | None:
        """The link for a session; None: its slot has no node, or the node no link yet."""
        return self.link_at(slot_of(key))

    @staticmethod
    def slot_of(key: bytes) -> int:
        """The slot of a key."""
        return slot_of(key)

    def link_at(self, slot: int) -> int | None:
        """The link for a slot; None: it has no node, or the node no link yet."""
        node = self.watch.map.node_of(slot)
        one = None if node is None else self._by_id.get(node.id)
        return None if one is None else one.number

    def number_of_node(self, node_id: str) -> int | None:
        """The link of a node, if it is up."""
        one = self._by_id.get(node_id)
        return one.number if one is not None and one.link.up else None

    def numbers(self) -> list[tuple[int, str]]:
        """Each link that there is, with the id of its node."""
        return [(one.number, one.node.id) for one in self._by_id.values()]

    def slots(self) -> list[tuple[int, int, int | None]]:
        """First and last slot of each range with one link, and that link; None: no node has it."""
        found: list[tuple[int, int, int | None]] = []
        for first, last, node in self.watch.map.ranges():
            one = None if node is None else self._by_id.get(node.id)
            found.append((first, last, None if one is None else one.number))
        return found

    def by_link(self, wanted: list[tuple[int, int]]) -> dict[int | None, list[tuple[int, int]]]:
        """Ranges of slots by their links; None: no node has them, or it has no link yet."""
        found: dict[int | None, list[tuple[int, int]]] = {}
        for first, last, link in self.slots():
            for begin, end in wanted:
                if begin <= last and first <= end:
                    found.setdefault(link, []).append((max(begin, first), min(end, last)))
        return found

    def is_up(self, link: int) -> bool:
        """Whether a link is up."""
        one = self._by_number.get(link)
        return one is not None and one.link.up

    def addresses(self) -> dict[int, str]:
        """The links that there are, each with the address of its node."""
        return {one.number: shown_address(one.node.address) for one in self._by_id.values()}

    def up(self) -> list[int]:
        """The links that are up."""
        return [one.number for one in self._by_id.values() if one.link.up]

    @property
    def any_up(self) -> bool:
        """Whether some link is up."""
        return any(one.link.up for one in self._by_id.values())

    @property
    def all_up(self) -> bool:
        """Whether each node with slots has a link that is up, and each slot a node."""
        links = [one for one in self._by_id.values() if one.leaves is None]
        return bool(links) and all(one.link.up for one in links) and not self.watch.map.uncovered()

    @property
    def connections(self) -> int:
        """How many connections were made."""
        return self._former_connections + sum(one.link.connections for one in self._by_id.values())

    @property
    def losses(self) -> int:
        """How many connections were lost."""
        return self._former_losses + sum(one.link.losses for one in self._by_id.values())

    def refused(self, link: int, error: str) -> None:
        """A node refused a command.  If it says that another one has the slot, the listener hears of it."""
        one = self._by_number.get(link)
        if one is not None:
            if self.watch.moved(error, one.node.address):
                self._listener.on_slots()
            one.link.leave_replica(error)

    def asked(self, link: int, error: str) -> int | None:
        """The link of the node to which a slot is on its way, if a node replied ASK and that link is up."""
        one = self._by_number.get(link)
        found = None if one is None or not error.startswith("ASK ") else redirection(error, one.node.address)
        if found is None:
            return None
        return next((one.number for one in self._by_id.values() if one.node.address == found[1] and one.link.up), None)

    def leave(self, link: int, reason: str) -> None:
        """Drops the connection to a node and connects again.  Pending commands are lost."""
        one = self._by_number.get(link)
        if one is not None:
            one.link.leave(reason)

    def look(self) -> None:
        """Something says that slots may have other nodes."""
        self.watch.look()

    def client(self, key: bytes) -> Redis:
        """An ordinary client of the node that has a key, found anew for each of its connections."""

        async def find() -> tuple[str, int]:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_FIRST_S):
                    await self._is_known.wait()
            node = self.watch.map.node_of(slot_of(key))
            if node is None:
                raise OSError(f"no node is known that has slot {slot_of(key)}")
            return node.address

        return self._target.client(find)

    # ---- bytes -----------------------------------------------------------------------------------------------------

    @property
    def is_paused(self) -> bool:
        """Whether some link takes no bytes now."""
        return any(one.link.paused for one in self._by_id.values())

    def flush(self) -> None:
        """Writes the engine's output for each link."""
        for one in self._by_id.values():
            if one.link.up and not one.link.paused:
                commands = self._engine.server_output(one.number)
                if commands:
                    one.link.write(commands)
