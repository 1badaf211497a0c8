"""Finds out whether the server is a node of a cluster, before anything is built for one or the other."""

import asyncio
from dataclasses import replace

from redis.exceptions import RedisError

from holdmq_bridge.base.target import Target

_ANSWER_S = 2.0


class ClusterFoundError(Exception):
    """The server that was taken for a single one is a node of a cluster."""


async def is_node_of_cluster(target: Target) -> bool:
    """Asks once.  False, too, if there is no answer: the link says why, and finds a cluster later (link.py)."""
    if target.sentinels:
        return False
    try:
        async with asyncio.timeout(_ANSWER_S), replace(target, database=0).client() as client:  # a cluster has no other
            return _mode(await client.execute_command("HELLO")) == b"cluster"
    except (RedisError, OSError, TimeoutError):
        return False


def _mode(hello: object) -> object:
    """Of a reply to HELLO: a map in RESP3, a flat list in RESP2."""
    if isinstance(hello, dict):
        return hello.get(b"mode")
    return dict(zip(hello[::2], hello[1::2], strict=False)).get(b"mode") if isinstance(hello, list) else None
