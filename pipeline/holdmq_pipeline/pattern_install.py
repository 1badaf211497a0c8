"""Reads the pattern sets of stores from the servers, and installs another set as the next generation.

The server checks a set before it accepts it, and refuses a set that was made for another generation than the current
one. On one server all shards switch in one step. In a cluster each shard switches by itself, after all were prepared.
"""

from typing import Any

import redis

from holdmq.core import PatternSet
from holdmq_pipeline.wire import Link, range_key


def present_patterns(link: Link, store: str) -> tuple[int, PatternSet]:
    """The generation of a store, and its pattern set: those of its first shard.

    Raises:
        redis.ResponseError: there is no such store.
    """
    return _generation(link, store, _places(link, store)[0])


def install(link: Link, store: str, patterns: PatternSet, *, after: int) -> int:
    """Makes a pattern set the store's next generation: prepared and checked everywhere, then switched to.

    On one server that is one step. In a cluster each shard switches by itself; if that fails between two of them, the
    same call again continues where it was.

    Args:
        link: to the servers.
        store: its name.
        patterns: the set.
        after: the generation that it was compared with; if there is a newer one by now, nothing is installed.

    Returns:
        The new generation, or `after` if the set is the current one already.

    Raises:
        redis.ResponseError: the store's generation is not `after` any more, or the server refused the set.
    """
    there = [_generation(link, store, place) for place in _places(link, store)]
    if all(one == (after, patterns) for one in there):
        return after
    todo = [place for place, one in zip(_places(link, store), there, strict=True) if one != (after + 1, patterns)]
    prepared = []
    try:
        for key, which in todo:
            link.ask(key, "HISTORY.PATTERNS", "PREPARE", store, after + 1, patterns.text, *which)
            prepared.append((key, which))
    except redis.RedisError:
        for key, which in prepared:  # and nothing that others have prepared
            link.ask(key, "HISTORY.PATTERNS", "ABORT", store, *which)
        raise
    for key, which in todo:
        try:
            link.ask(key, "HISTORY.PATTERNS", "COMMIT", store, after + 1, *which)
        except redis.ResponseError:  # sent again after a lost reply: then it is done
            if _generation(link, store, (key, which)) != (after + 1, patterns):
                raise
    return after + 1


def _places(link: Link, store: str) -> list[tuple[bytes, list[Any]]]:
    """Where the pattern set of a store is: the key to route by, and the words that name the shard."""
    if not link.is_cluster:
        return [(range_key(store, 0), [])]
    return [(range_key(store, shard), ["SHARD", shard]) for shard in range(int(link.store(store)[b"shards"]))]


def _generation(link: Link, store: str, place: tuple[bytes, list[Any]]) -> tuple[int, PatternSet]:
    generation, text = link.ask(place[0], "HISTORY.PATTERNS", "GET", store, *place[1])
    return int(generation), PatternSet(text)
