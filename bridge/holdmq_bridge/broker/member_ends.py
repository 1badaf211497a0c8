"""Ends of member sessions that wait in the outboxes of a cluster: drops each member, unless a later connection has it.

    the client's session ends ──► its slot's outbox: 0xFC <claim> <key> ──► SESSION.DROP <key> CLAIM <claim>

A drop that is repeated, here or in another process, does nothing.
"""

from typing import NamedTuple

import hiredis

from holdmq_bridge.base.command import error_code, is_temporary
from holdmq_bridge.base.logs import Log
from holdmq_bridge.server.node_calls import NodeCalls

log = Log("groups")

_MARK = b"\xfc"


class MemberEnd(NamedTuple):
    """A member that ends: the last epoch of the client's session, and the key of the member session."""

    claim: int
    key: bytes


def is_end(body: bytes) -> bool:
    """Whether this element of an outbox is the end of a member, and no message."""
    return body.startswith(_MARK)


def end_of(body: bytes) -> MemberEnd | None:
    """The end that such an element names.  None: another program wrote it."""
    claim, _, key = body[len(_MARK) :].partition(b" ")
    return MemberEnd(int(claim), key) if claim.isdigit() and key else None


class MemberEnds:
    """One for each process."""

    def __init__(self, nodes: NodeCalls) -> None:
        self._nodes = nodes

    async def drop(self, body: bytes) -> bool:
        """Drops the member that an element names.  Returns whether that is done; otherwise it is to be repeated."""
        end = end_of(body)
        if end is None:
            return True
        reply = await self._nodes.ask_for(end.key, ("SESSION.DROP", end.key, "CLAIM", end.claim))
        if isinstance(reply, hiredis.ReplyError) and error_code(reply) != "FENCED":
            if is_temporary(reply):
                return False
            log.warning("a member session of a client that ended cannot be removed", key=end.key, error=reply)
        return True
