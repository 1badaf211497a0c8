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
            return says_cluster(await client.execute_command("HELLO"))
    except (RedisError, OSError, TimeoutError):
        return False


def says_cluster(hello: object) -> bool:
    """Whether a reply to HELLO is that of a node of a cluster: a map in RESP3, a flat list in RESP2."""
    if isinstance(hello, list):
        hello = dict(zip(hello[::2], hello[1::2], strict=False))
    return isinstance(hello, dict) and hello.get(b"mode") == b"cluster"
