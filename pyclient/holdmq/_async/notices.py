"""Notices of the servers that a store got messages, for a replay that waits for them.

Notices only save time: a lost notice costs a wait, but no message. In a cluster each node notifies its own subscribers,
so there is a subscription at every primary.

Invariants: a reader that subscribes before it reads, and waits before it reads again, misses nothing for longer than
`LOOK_AGAIN_S`. A resubscription counts as a notice.
"""

import time
from typing import Any

from holdmq import history_commands as commands
from holdmq._async.executor import AsyncExecutor
from holdmq._async.subscription import AsyncSubscription
from holdmq._io import async_sleep
from holdmq.errors import lost_of
from holdmq.replies import Text

MAX_NOTICES = 1000
"""Most notices that are taken before it looks."""
LOOK_AGAIN_S = 5.0
"""A replay that follows looks for messages at least so often, notices or not."""
SLICE_S = 0.25
SLICE_OF_MANY_S = 0.1
"""How long all subscriptions together are waited for, one after the other."""


class AsyncNotices:
    """The subscriptions of one replay, by node name (without a cluster: one without a name)."""

    def __init__(self, executor: AsyncExecutor, reconnect: float) -> None:
        self._executor = executor
        self._reconnect = reconnect
        self._store: Text | None = None
        self._open: dict[str, AsyncSubscription[Any]] = {}
        self._reconnections: dict[str, int] = {}
        self._lost = lost_of(executor.client)
        self._closed = False

    async def listen(self, store: Text | None) -> None:
        """Subscribes at nodes that have no subscription yet. None subscribes to all stores (not in a cluster).

        Raises:
            redis.ConnectionError: the server could not be reached for `reconnect` seconds.
        """
        self._store = store
        if self._executor.is_cluster:
            await self._listen_to_nodes()
        elif not self._open:
            await self._add(
                "",
                AsyncSubscription(
                    self._executor,
                    "psubscribe" if store is None else "subscribe",
                    (commands.WAKEUP_CHANNEL + b"*" if store is None else commands.wakeup_channel(store),),
                    reconnect=self._reconnect,
                ),
            )

    async def wait(self, deadline: float | None) -> None:
        """Waits until a notice came, or may have been lost. Takes all notices that have arrived."""
        longest = LOOK_AGAIN_S if deadline is None else min(LOOK_AGAIN_S, max(0.0, deadline - time.monotonic()))
        until = time.monotonic() + longest
        while not self._closed:
            left = until - time.monotonic()
            if left <= 0:
                return
            if not self._open:
                await async_sleep(min(left, SLICE_S))
            each = SLICE_S if len(self._open) < 2 else SLICE_OF_MANY_S / len(self._open)
            for name in list(self._open):
                if await self._heard(name, min(left, each)):
                    return

    async def aclose(self) -> None:
        """Ends the subscriptions. A second call does nothing."""
        self._closed = True
        for name in list(self._open):
            await self._remove(name)

    async def _heard(self, name: str, wait: float) -> bool:
        """Returns whether a notice came, or may have been lost, within this many seconds."""
        notices = self._open.get(name)
        if notices is None:
            return True
        try:
            heard = await notices.get(timeout=wait) is not None
            for _ in range(MAX_NOTICES if heard else 0):  # one read covers all of them
                if self._closed or await notices.get(timeout=0) is None:
                    break
        except self._lost:
            if name == "":
                raise
            await self._remove(name)  # a node of a cluster is gone: others have its shards now, or will have
            return True
        heard = heard or notices.reconnections != self._reconnections.get(name)
        self._reconnections[name] = notices.reconnections
        return heard

    async def _listen_to_nodes(self) -> None:
        """Subscribes at each present primary. Retries one that is unreachable before the next read."""
        primaries = {node.name: node for node in await self._executor.nodes.primaries()}
        for name in self._open.keys() - primaries.keys():
            await self._remove(name)
        channel = commands.wakeup_channel(self._store or "")
        for name in primaries.keys() - self._open.keys():
            try:
                await self._add(name, self._at(primaries[name], channel))
            except self._lost:
                continue  # looking again every LOOK_AGAIN_S seconds finds what it has

    def _at(self, node: Any, channel: Text) -> AsyncSubscription[Any]:
        return AsyncSubscription(self._executor, "subscribe", (channel,), reconnect=0, node=node)

    async def _add(self, name: str, notices: AsyncSubscription[Any]) -> None:
        try:
            await notices.__aenter__()
        except BaseException:
            await notices.aclose()
            raise
        if self._closed:  # from elsewhere, meanwhile
            await notices.aclose()
        else:
            self._open[name] = notices
            self._reconnections[name] = notices.reconnections

    async def _remove(self, name: str) -> None:
        notices = self._open.pop(name, None)
        if notices is not None:
            await notices.aclose()
