"""Commands for one node of a cluster: finds the node, also when it has changed.

The commands of history name no key, so the client library cannot route them. For a shard on another node the module
replies as the server does for keys (`MOVED`, `TRYAGAIN`). Invariants:

1. A command that was refused in this way has changed nothing. It is sent again, to the node in the refusal, or else to
   the present node of the slot. A command whose connection was lost is not sent again.
2. Retries end: after `moving_timeout` seconds the refusal is raised.
"""

from dataclasses import replace
from typing import Any, TypeVar, cast

from holdmq import history_commands
from holdmq._async.link import AsyncLink
from holdmq._async.patience import AsyncPatience
from holdmq._io import async_ask
from holdmq.commands import Command
from holdmq.errors import HoldMQError, NoStoreError, library_of, lost_of, translation
from holdmq.history_commands import StoreLayout
from holdmq.history_replies import HistoryPlace
from holdmq.replies import Text
from holdmq.slots import node_at

T = TypeVar("T")

MAX_LAYOUTS = 1000
"""Most stores whose layouts are remembered."""


class AsyncNodes:
    """The nodes of a cluster that its client knows.

    Attributes:
        passing: errors that are temporary and have changed nothing.
    """

    def __init__(self, link: AsyncLink) -> None:
        library = library_of(link.client)
        self._link = link
        self._translation = translation(link.client)
        self._moved: type[Exception] = library.MovedError
        self._lost = lost_of(link.client)
        self._doubtful = False  # the table of slots: a node was lost
        self._layouts: dict[bytes, StoreLayout] = {}
        # AskError is the base of MovedError.
        self.passing: tuple[type[Exception], ...] = (
            library.AskError,
            library.TryAgainError,
            library.ClusterDownError,
            library.ReadOnlyError,  # a replica by now
            *((library.SlotNotCoveredError,) if hasattr(library, "SlotNotCoveredError") else ()),
        )

    async def primaries(self) -> list[Any]:
        """The nodes that have slots. Reloaded if one was lost."""
        await self.refresh(only_if_doubtful=True)
        primaries = (await self._link.cluster()).get_primaries()
        if not primaries:
            raise HoldMQError("the cluster has no primary: one expected that has slots")
        return list(primaries)

    async def refresh(self, *, only_if_doubtful: bool = False) -> None:
        """Reloads the table of slots."""
        if self._doubtful or not only_if_doubtful:
            await self._link.reload()
            self._doubtful = False

    async def owner(self, key: bytes, address: str = "") -> Any:
        """The node at `host:port` if it is known, else the node of the key's slot."""
        await self.refresh(only_if_doubtful=True)
        cluster = await self._link.cluster()
        return node_at(cluster, address) or cluster.get_node_from_key(key)

    async def ask(self, node: Any, command: Command[T]) -> T:
        """Returns the reply of a node, without a retry."""
        self._link.check_process()
        try:
            with self._translation:
                reply = await async_ask(self._link.client, node, command.words, command.options)
        except self._lost:
            self._doubtful = True
            raise
        return command.parse(reply)

    async def at_slot(self, command: Command[T]) -> T:
        """Executes a command at the node of its key's slot, and follows the slot if it moves.

        Raises:
            CommandError: the command was refused.
            redis.ResponseError: the slot was moving for too long (`MOVED`, `TRYAGAIN`, `CLUSTERDOWN`).
        """
        patience = AsyncPatience(self._link.moving_timeout)
        address, redirected = "", False
        while True:
            try:
                return await self.ask(await self.owner(command.key, address), command)
            except self.passing as error:
                is_first = isinstance(error, self._moved) and not redirected
                if isinstance(error, self._moved):
                    moved = cast("Any", error)
                    address, redirected = f"{moved.host}:{moved.port}", True
                else:
                    address = ""
                if not is_first and not await patience.wait():
                    raise
            await self.refresh()

    async def at_topic(self, command: Command[T]) -> T:
        """Executes a command at the node of the shard of a store (second word) that a topic (third word) belongs to."""
        store, topic = cast("tuple[bytes, bytes]", command.words[1:3])
        patience = AsyncPatience(self._link.moving_timeout)
        while True:
            shard = (await self.layout(store)).shard_of(topic)
            try:
                reply = await self.at_slot(replace(command, key=history_commands.shard_key(store, shard)))
            except NoStoreError:
                # The shard has moved, or the store was replaced or removed: `layout` finds out.
                self.forget(store)
                if not await patience.wait():
                    raise
                await self.refresh()
            else:
                if isinstance(reply, HistoryPlace) and reply.shard != shard:
                    self.forget(store)
                return reply

    async def layout(self, store: Text) -> StoreLayout:
        """The layout of a store, which is cached.

        Raises:
            NoStoreError: there is no such store.
        """
        name = history_commands.store_name(store)
        layout = self._layouts.get(name)
        if layout is None:
            layout = await self._link.execute_key(history_commands.store_layout(name, cluster=self._link.is_cluster))
            if len(self._layouts) >= MAX_LAYOUTS:
                self._layouts.clear()
            self._layouts[name] = layout
        return layout

    def forget(self, store: Text) -> None:
        """Removes the layout of a store from the cache."""
        self._layouts.pop(history_commands.store_name(store), None)
