"""Commands for nodes of a cluster by their ids or by a key, over the links of the process: what routes.py needs."""

import hiredis

from holdmq.core import slot_of
from holdmq_bridge.base.command import Argument, Reply
from holdmq_bridge.server.calls import Calls
from holdmq_bridge.server.node_links import NodeLinks


class NodeCalls:
    """One for each process."""

    def __init__(self, links: NodeLinks, calls: Calls) -> None:
        self._links = links
        self._calls = calls

    def ids(self) -> list[str]:
        """Of the primaries with slots, as far as the bridge knows."""
        return list(self._links.watch.map.nodes)

    def is_up(self, link: int) -> bool:
        """Whether a link is up."""
        return self._links.is_up(link)

    async def ask(self, node: str, arguments: tuple[Argument, ...]) -> Reply:
        """The reply of a node.  Errors are values; TRYAGAIN if the node cannot be reached, or its link is lost."""
        number = self._links.number_of_node(node)
        if number is None:
            return hiredis.ReplyError(f"TRYAGAIN there is no connection to the node {node}")
        return await self._calls.ask(arguments, number)

    async def ask_for(self, key: bytes, arguments: tuple[Argument, ...]) -> Reply:
        """The same for the node that has the key's slot."""
        number = self._links.number_of(key)
        if number is None or not self._links.is_up(number):
            return hiredis.ReplyError(f"TRYAGAIN there is no connection to a node with slot {slot_of(key)}")
        return await self._calls.ask(arguments, number)
