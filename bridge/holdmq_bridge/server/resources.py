"""What memory and disk the server has: one line in the log for each connection.  The metrics have the present numbers.

A node of a cluster whose outbox is off gets a line of its own: nothing else shows that wills stay on their node.

The server finds out and warns by itself, since the bridge may be on another machine (redis_module/server/resources.h).
"""

import hiredis

from holdmq_bridge.base.command import Reply
from holdmq_bridge.base.logs import Log

log = Log("resources")

_OUTBOX_LIMIT = "holdmq_outbox_limit_bytes"
_FIELDS = ("memory_limit", "memory_used", "disk_total", "disk_free")


def log_resources(reply: Reply, node: str = "") -> None:
    """Logs what INFO holdmq says; nothing if the server does not say.

    Args:
        reply: to INFO holdmq.
        node: the address of a node of a cluster; empty: a single server.
    """
    if isinstance(reply, hiredis.ReplyError):
        return
    text = reply.decode() if isinstance(reply, bytes) else str(reply)
    fields = dict(line.partition(":")[::2] for line in text.splitlines())
    found = {name: int(fields[f"holdmq_{name}"]) for name in _FIELDS if f"holdmq_{name}" in fields}
    if found:
        log.info("the server's memory and disk, in bytes", **({"server": node} if node else {}), **found)
    if node and fields.get(_OUTBOX_LIMIT) == "0":
        log.warning(
            "a node of the cluster has no outbox: its wills and presence messages reach its own sessions only",
            node=node,
        )
