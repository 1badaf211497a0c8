"""Keeps the map of a cluster up to date: asks its nodes, and logs what is wrong with it.

    ┌─ wait: a period, or soon after `moved` and `lost` ◄─────────────────┐
    └► ask some known nodes and the address in the URL ──► ClusterMap ──► listener, log

Invariants
 1. Rounds begin at least _LEAST_S apart, and ask at most _ASKED nodes where the slots are, however many clients and
    connections have signs of a change.  After a round without an answer the next one comes by a growing pause.
 2. A node is asked for its module when it appears, and again after a connection to it was lost: it may have been
    replaced.
 3. A problem is logged when it begins and when it changes, and its end once.
 4. The address in the URL is asked in each round: it may name other nodes by now.  If another cluster answers there,
    nothing is taken from it.
"""

import asyncio
import contextlib
import itertools
import random
from collections.abc import Callable
from typing import Protocol

from redis.exceptions import RedisError

from holdmq_bridge.base.backoff import Backoff
from holdmq_bridge.base.logs import Log
from holdmq_bridge.base.target import Target
from holdmq_bridge.server.cluster_map import (
    Address,
    ClusterError,
    ClusterMap,
    Node,
    RefreshTimer,
    View,
    module_version,
    newest,
    redirection,
    shown_slots,
)

_PERIOD_S = 10.0
_LEAST_S = 0.5
_ASKED = 3
_EXAMINED_AT_ONCE = 16
_ANSWER_S = 2.0
_STOP_STEP_S = 0.02
_RETRY_FIRST_S = 0.5
_RETRY_MAX_S = 5.0

log = Log("cluster")


class ClusterListener(Protocol):
    """Who uses the map.  Called in the event loop, may not block."""

    def cluster_changed(self) -> None:
        """Nodes, addresses or slots are others now, or a node can be used again."""


class ClusterWatch:
    """Follows one cluster.

    Args:
        target: a node of it.
        listener: hears of changes.
        period_s: between two rounds without a sign of change.

    Attributes:
        map: empty until the first answer.
        rounds: how often nodes were asked.
    """

    def __init__(self, target: Target, listener: ClusterListener, period_s: float = _PERIOD_S) -> None:
        self._target = target
        self._seed = (target.host, target.port)
        self._listener = listener
        self._timer = RefreshTimer(period_s, _LEAST_S)
        self._backoff = Backoff(_RETRY_FIRST_S, _RETRY_MAX_S, random.uniform)
        self._look_now = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._is_stopping = self._may_be_cancelled = False
        self._versions: dict[Node, int | None] = {}  # of the module; None: it is not loaded
        self._problems: dict[str, str] = {}  # and their facts
        self._turn = itertools.count()
        self.map = ClusterMap()
        self.rounds = 0

    # ---- life ------------------------------------------------------------------------------------------------------

    def start(self, on_end: Callable[[asyncio.Task[None]], None] | None = None) -> None:
        """Begins to ask.  Call it inside the event loop.  `on_end` is called if the task ends."""
        self._task = asyncio.create_task(self._run())
        if on_end is not None:
            self._task.add_done_callback(on_end)

    async def stop(self) -> None:
        """Asks no more.  A round ends first, in bounded time: redis-py leaks connections that are made meanwhile."""
        self._is_stopping = True
        while self._task is not None and not self._task.done():
            if self._may_be_cancelled:
                self._task.cancel()
            await asyncio.wait([self._task], timeout=_STOP_STEP_S)

    async def _run(self) -> None:
        while not self._is_stopping:
            self._may_be_cancelled = True
            await self._pause(self._timer.wait_s(asyncio.get_running_loop().time()))
            self._may_be_cancelled = False
            self._timer.begin(asyncio.get_running_loop().time())
            self.rounds += 1
            if await self._look():
                self._backoff.reset()
            elif not self._is_stopping:
                self._may_be_cancelled = True
                await asyncio.sleep(self._backoff.next())
                self._timer.request()

    async def _pause(self, pause_s: float) -> None:
        """A sign of change may shorten the pause, but not below what the timer allows."""
        while pause_s > 0:
            self._look_now.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._look_now.wait()
            pause_s = self._timer.wait_s(asyncio.get_running_loop().time())

    # ---- signs of a change -----------------------------------------------------------------------------------------

    def moved(self, error: str, asked: Address) -> Node | None:
        """A node replied MOVED or ASK.  Returns the node that has the slot now, if MOVED names one that is known."""
        found = redirection(error, asked)
        if found is None:
            return None
        self.look()
        return self.map.moved(*found) if error.startswith("MOVED ") else None

    def lost(self, address: Address) -> None:
        """The connection to a node was lost, or could not be made."""
        for node in [node for node in self._versions if node.address == address]:
            del self._versions[node]
        self.look()

    def look(self) -> None:
        """There is some other sign of a change."""
        self._timer.request()
        self._look_now.set()

    # ---- a round ---------------------------------------------------------------------------------------------------

    def is_usable(self, node: Node) -> bool:
        """Whether the node has the module, as far as is known."""
        return self._versions.get(node) is not None

    async def _look(self) -> bool:
        """Asks where the slots are.  False: there was no answer that could be used."""
        known = [node.address for node in self.map.nodes.values()]
        start = next(self._turn) % len(known) if known else 0
        asked = dict.fromkeys([*(known[start:] + known[:start])[: _ASKED - 1], self._seed])
        answers = await asyncio.gather(*(self._ask(address) for address in asked))
        views = [answer for answer in answers if isinstance(answer, View)]
        foreign = [view for view in views if self.map.is_foreign(view)]
        own = [view for view in views if view not in foreign]
        error = next((str(answer) for answer in answers if not isinstance(answer, View)), "")
        if self._is_news("no answer", not own and not foreign, error):
            log.warning("no node of the cluster answers", error=error)
        shown = ", ".join(_shown(view.asked) for view in foreign)
        if self._is_news("another cluster", bool(foreign), shown):
            log.warning("another cluster answers: its reply is ignored", node=shown)
        if not own:
            return False
        try:
            has_changed = self.map.take(newest(own))
        except ClusterError as refused:
            if self._is_news("unusable answer", True, str(refused)):
                log.warning("the answer of the cluster cannot be used", error=refused)
            return False
        self._is_news("unusable answer", False)
        has_changed |= await self._examine()
        self._report()
        if has_changed:
            log.info("the cluster has changed", nodes=len(self.map.nodes), is_ok=self.map.is_ok)
            self._listener.cluster_changed()
        return True

    async def _ask(self, address: Address) -> View | Exception:
        try:
            async with asyncio.timeout(_ANSWER_S), self._target.at(address).client() as client:
                info = await client.execute_command("CLUSTER", "INFO")
                rows = await client.execute_command("CLUSTER", "SLOTS")
            return View.read(address, info, rows)
        except (RedisError, OSError, TimeoutError, ClusterError) as error:
            log.debug("a node of the cluster did not answer", node=_shown(address), error=error)
            return error

    async def _examine(self) -> bool:
        """Asks nodes for their module, if that is not known.  Returns whether another node can be used now."""
        nodes = list(self.map.nodes.values())
        self._versions = {node: self._versions[node] for node in nodes if node in self._versions}
        # Loading a module is no sign that arrives here, so nodes without it are asked in each round.
        asked = [node for node in nodes if not self.is_usable(node)]
        for start in range(0, len(asked), _EXAMINED_AT_ONCE):
            await asyncio.gather(*(self._examine_node(node) for node in asked[start : start + _EXAMINED_AT_ONCE]))
        return any(self.is_usable(node) for node in asked)

    async def _examine_node(self, node: Node) -> None:
        try:
            async with asyncio.timeout(_ANSWER_S), self._target.at(node.address).client() as client:
                self._versions[node] = module_version(await client.execute_command("HELLO"))
        except (RedisError, OSError, TimeoutError, ClusterError) as error:
            log.debug("a node of the cluster did not answer", node=_shown(node.address), error=error)

    # ---- the log ---------------------------------------------------------------------------------------------------

    def _report(self) -> None:
        if self._is_news("down", not self.map.is_ok):
            log.warning("the cluster is down")
        slots = shown_slots(self.map.uncovered())
        if self._is_news("slots without a node", bool(slots), slots):
            log.warning("slots of the cluster have no node", slots=slots)
        without = ", ".join(_shown(node.address) for node, version in self._versions.items() if version is None)
        if self._is_news("no module", bool(without), without):
            log.warning("nodes of the cluster lack the module holdmq", nodes=without)
        versions = sorted({version for version in self._versions.values() if version is not None})
        if self._is_news("different versions", len(versions) > 1, str(versions)):
            log.warning("nodes of the cluster have different versions of the module", versions=versions)

    def _is_news(self, problem: str, is_there: bool, facts: str = "") -> bool:
        """Whether a problem has begun or changed, and must be logged.  Logs its end."""
        if not is_there:
            if self._problems.pop(problem, None) is not None:
                log.info("a problem of the cluster is over", problem=problem)
            return False
        is_news = self._problems.get(problem) != facts
        self._problems[problem] = facts
        return is_news


def _shown(address: Address) -> str:
    return f"{address[0]}:{address[1]}"
