"""A SUBSCRIBE over a cluster: it is done when every node that answers for publishes knows the route.

    SESSION.SUBSCRIBE ... ROUTES ──► homes, primaries, serial, confirmed
    ROUTE.ADD at every node of these, and of the bridge's map, that has not confirmed the route
    generations as in homes? ──yes──► done; ROUTE.CONFIRM follows
                             └──no──► feed the node, and begin again

Invariants
 1. A subscription is granted only after each of these nodes has its route, in the generation that the session's node
    exported to.  Either that export saw the subscription, or the subscription saw the generation.
 2. After `limit_s` without success the filters that were new are removed again, and the answer is an error.
 3. A node of `homes` that has no slots any more, and is not in the bridge's map, is dropped: it does not answer.
"""

import asyncio
from collections.abc import Iterator
from typing import NamedTuple

import hiredis

from holdmq.core import slot_of, split_share
from holdmq_bridge.base.command import Argument, Reply, is_temporary
from holdmq_bridge.base.logs import Log
from holdmq_bridge.server.feeder import Feeder, Nodes

log = Log("routes")

PAIRS_AT_ONCE = 200  # SESSION.SUBSCRIBE ... ROUTES takes 256
_AGAIN_S = 0.02


class _Route(NamedTuple):
    """A filter of the command: without its group, and with what the session's node says of its route."""

    topic_filter: bytes
    serial: int
    confirmed: frozenset[str]


class Routes:
    """One for each process.

    Args:
        nodes: of the cluster.
        feeder: of these nodes.
        limit_s: for one SUBSCRIBE.
    """

    def __init__(self, nodes: Nodes, feeder: Feeder, limit_s: float) -> None:
        self._nodes = nodes
        self._feeder = feeder
        self._limit_s = limit_s
        self._confirmations: set[asyncio.Task[Reply]] = set()

    async def subscribe(self, key: bytes, epoch: int, pairs: tuple[Argument, ...]) -> Reply:
        """The reply as of SESSION.SUBSCRIBE without ROUTES, at most PAIRS_AT_ONCE pairs; errors are values."""
        new: list[int] | None = None
        reason = "TRYAGAIN no node answered"
        try:
            async with asyncio.timeout(self._limit_s):
                while True:
                    reply = await self._nodes.ask_for(key, ("SESSION.SUBSCRIBE", key, "EPOCH", epoch, "ROUTES", *pairs))
                    if isinstance(reply, hiredis.ReplyError):
                        if not is_temporary(reply):
                            return reply
                        reason = str(reply)
                    else:
                        new = reply[0] if new is None else new
                        reason = await self._tell(key, pairs, reply)
                        if not reason:
                            return new
                    await asyncio.sleep(_AGAIN_S)
        except TimeoutError:
            pass
        log.warning("a subscription is refused: a node could not be told of its route in time", reason=reason)
        added = [pairs[2 * at] for at, is_new in enumerate(new or ()) if is_new]
        if added:
            await self._remove(key, epoch, added)
        return hiredis.ReplyError(f"NOROUTES not every node could be told of the subscription: {reason}")

    @property
    def confirming(self) -> int:
        """Confirmations without a reply."""
        return len(self._confirmations)

    async def stop(self) -> None:
        """Confirms no more: later subscribers tell the nodes again."""
        for task in self._confirmations:
            task.cancel()
        if self._confirmations:
            await asyncio.wait(self._confirmations)

    # ---- one attempt -----------------------------------------------------------------------------------------------

    async def _tell(self, key: bytes, pairs: tuple[Argument, ...], reply: Reply) -> str:
        """Tells every node that answers.  Returns why a node does not know a route yet; empty if all do."""
        _, listed, primaries, states = reply
        homes = {_text(listed[at]): int(listed[at + 1]) for at in range(0, len(listed), 2)}
        routes = list(_routes(pairs, list(homes), states))
        slot = slot_of(key)
        asked = {*homes, *map(_text, primaries), *self._nodes.ids()}
        told = await asyncio.gather(*(self._tell_node(node, slot, routes) for node in asked))
        generations = dict(zip(asked, told, strict=True))
        for node, answer in generations.items():
            reason = await self._settle(key, node, answer, homes)
            if reason:
                return reason
        self._confirm(key, slot, routes, homes)
        return ""

    async def _tell_node(self, node: str, slot: int, routes: list[_Route]) -> Reply:
        """Tells a node its routes; returns its generation.  None: the node had already confirmed all of them."""
        missing = [route for route in routes if node not in route.confirmed]
        if not missing:
            return None
        words: tuple[Argument, ...] = tuple(word for route in missing for word in (route.topic_filter, slot))
        reply = await self._nodes.ask(node, ("ROUTE.ADD", *words))
        return reply if isinstance(reply, hiredis.ReplyError) else int(reply[1])

    async def _settle(self, key: bytes, node: str, answer: Reply, homes: dict[str, int]) -> str:
        """Feeds or drops a node that does not know the routes.  Returns why the attempt has to be repeated."""
        if answer is None or answer == homes.get(node):
            return ""
        if not isinstance(answer, hiredis.ReplyError):
            return await self._feeder.feed(node) or "TRYAGAIN a node was fed"
        if node in homes and node not in self._nodes.ids():
            await self._nodes.ask_for(key, ("ROUTE.DROPHOME", node, homes[node]))
        return str(answer)

    def _confirm(self, key: bytes, slot: int, routes: list[_Route], homes: dict[str, int]) -> None:
        """Tells the session's node who knows the routes.  A confirmation that is lost costs a ROUTE.ADD later."""
        for route in routes:
            if not route.serial or route.confirmed >= homes.keys():
                continue
            known: tuple[Argument, ...] = tuple(word for pair in homes.items() for word in pair)
            command = ("ROUTE.CONFIRM", route.topic_filter, slot, route.serial, *known)
            task = asyncio.ensure_future(self._nodes.ask_for(key, command))
            self._confirmations.add(task)
            task.add_done_callback(self._confirmed)

    def _confirmed(self, task: asyncio.Task[Reply]) -> None:
        self._confirmations.discard(task)
        if task.cancelled():
            return
        reply = task.result()
        if isinstance(reply, hiredis.ReplyError) and not is_temporary(reply):
            log.warning("a node refuses to note who knows a route", error=reply)

    async def _remove(self, key: bytes, epoch: int, filters: list[Argument]) -> None:
        """Removes filters whose SUBSCRIBE is refused."""
        try:
            async with asyncio.timeout(self._limit_s):
                while True:
                    reply = await self._nodes.ask_for(key, ("SESSION.UNSUBSCRIBE", key, "EPOCH", epoch, *filters))
                    if not isinstance(reply, hiredis.ReplyError):
                        return
                    if not is_temporary(reply):
                        break
                    await asyncio.sleep(_AGAIN_S)
        except TimeoutError:
            reply = "its node does not answer"
        log.warning("a refused subscription stays in its session", key=key, error=reply)


def _routes(pairs: tuple[Argument, ...], homes: list[str], states: Reply) -> Iterator[_Route]:
    for topic_filter, (serial, *places) in zip(pairs[::2], states, strict=True):
        assert isinstance(topic_filter, bytes)
        shared = split_share(topic_filter)
        inner = topic_filter if shared is None else shared[1]
        yield _Route(inner, serial, frozenset(homes[place] for place in places))


def _text(value: Reply) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
