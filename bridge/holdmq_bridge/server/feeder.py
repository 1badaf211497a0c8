"""Feeds a node of a cluster with the routes of all nodes, so that it can answer where a publish goes.

    node without routes, or one that others do not know ──► feed(node)
        ROUTE.INFO at every node ──► who has not exported to this generation, and whose slots are not covered
        ROUTE.EXPORT, page by page, from each of them ──► ROUTE.FEED at the node

A refusal begins the next round with a fresh ROUTE.INFO.  What was fed stays fed, so rounds become shorter.

Invariants
 1. A node is fed once at a time, however many callers wait.  All get the outcome.
 2. One page of at most _PAGE routes is in memory for each node that is fed.
 3. A feed ends after _LIMIT_S.
"""

import asyncio
from collections.abc import Iterable
from typing import Protocol

import hiredis

from holdmq_bridge.base.command import Argument, Reply, error_code
from holdmq_bridge.base.logs import Log

log = Log("feeder")

_PAGE = 1000
_LIMIT_S = 30.0
_AGAIN_S = 0.05

Range = tuple[int, int]


class Nodes(Protocol):
    """The nodes of a cluster, each with a link."""

    def ids(self) -> list[str]:
        """Of the primaries with slots."""

    async def ask(self, node: str, arguments: tuple[Argument, ...]) -> Reply:
        """The reply of a node.  Errors are values; TRYAGAIN if the node cannot be reached, or its link is lost."""

    async def ask_for(self, key: bytes, arguments: tuple[Argument, ...]) -> Reply:
        """The same for the node that has the key's slot."""


class _RefusedError(Exception):
    """A node did not do its part; the text is its error."""


class Feeder:
    """One for each process."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._feeds: dict[str, asyncio.Task[str]] = {}

    async def feed(self, node: str) -> str:
        """Feeds a node.  Returns why it could not be fed; empty if it was."""
        task = self._feeds.get(node)
        if task is None:
            task = self._feeds[node] = asyncio.create_task(self._feed(node))
            task.add_done_callback(lambda _task: self._feeds.pop(node, None))
        return await asyncio.shield(task)

    async def stop(self) -> None:
        """Ends all feeds."""
        tasks = list(self._feeds.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _feed(self, node: str) -> str:
        reason = "no node answered"
        try:
            async with asyncio.timeout(_LIMIT_S):
                while True:
                    try:
                        if await self._round(node):
                            return ""
                        reason = "slots are moving"
                    except _RefusedError as refused:
                        reason = str(refused)
                        if error_code(reason) == "UNKNOWN" and node not in self._nodes.ids():
                            return reason
                    await asyncio.sleep(_AGAIN_S)
        except TimeoutError:
            log.warning("a node was not fed with routes in time", node=node, reason=reason, seconds=_LIMIT_S)
            return reason

    async def _round(self, node: str) -> bool:
        """Returns whether nothing was left to do: the node covers all slots, and all nodes know its generation."""
        about = _map(await self._ask(node, ("ROUTE.INFO",)))
        generation, uncovered = about["generation"], _ranges(about["uncovered"])
        is_done = not uncovered
        for source in self._nodes.ids():
            homes = _map(await self._ask(source, ("ROUTE.INFO",)))["homes"]
            known = {_text(homes[at]): homes[at + 1] for at in range(0, len(homes), 2)}
            if not uncovered and known.get(node) == generation:
                continue
            is_done = False
            await self._pass_on(source, node, generation)
        return is_done

    async def _pass_on(self, source: str, node: str, generation: int) -> None:
        """Feeds the routes of one node."""
        cursor: Argument = 0
        while True:
            page = await self._nodes.ask(source, ("ROUTE.EXPORT", node, generation, "CURSOR", cursor, "COUNT", _PAGE))
            if isinstance(page, hiredis.ReplyError):
                if error_code(page) == "STALEHOME":  # the clock of the node was set back: others know a later one
                    await self._ask(node, ("ROUTE.RENEW", str(page).rpartition(" ")[2]))
                raise _RefusedError(str(page))
            routes, ranges, following = page
            feed: tuple[Argument, ...] = ("ROUTE.FEED", node, generation, cursor, following)
            if ranges:
                feed += ("SLOTS", len(ranges) // 2, *ranges)
            if routes:
                feed += ("ROUTES", *routes)
            await self._ask(node, feed)
            if following in (b"0", 0):
                return
            cursor = following

    async def _ask(self, node: str, arguments: tuple[Argument, ...]) -> Reply:
        reply = await self._nodes.ask(node, arguments)
        if isinstance(reply, hiredis.ReplyError):
            raise _RefusedError(str(reply))
        return reply


def _ranges(listed: Iterable[int]) -> list[Range]:
    ends = list(listed)
    return list(zip(ends[::2], ends[1::2], strict=True))


def _map(reply: Reply) -> dict[str, Reply]:
    """The reply to ROUTE.INFO, a map or a flat list of names and values."""
    pairs = reply.items() if isinstance(reply, dict) else zip(reply[::2], reply[1::2], strict=True)
    return {_text(name): value for name, value in pairs}


def _text(value: Reply) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
