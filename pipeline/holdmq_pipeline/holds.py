"""A reader's hold on a store: unread messages are not dropped. For one server, and for all nodes of a cluster.

Each operation may be repeated, and is repeated while a server or a slot cannot be reached.
"""

from collections.abc import Mapping

from holdmq_pipeline.wire import Link, patiently

__all__ = ["hold", "move", "release"]


def hold(link: Link, store: str, reader: str, marks: Mapping[int, int] | None = None) -> None:
    """Moves the watermarks of shards; without any, holds all that is kept on shards that the reader does not hold yet.

    Raises:
        HoldLostError: retention removed messages that the reader had not read.
    """
    patiently(lambda: link.hold.history.store(store).hold(reader, marks), link.forget)


def move(link: Link, store: str, reader: str, marks: Mapping[int, int]) -> None:
    """Moves the watermarks of a reader that holds, if they lag; they never decrease.

    Raises:
        HoldLostError: retention removed messages that the reader had not read.
    """
    at = _marks(link, store, reader)
    behind = {shard: mark for shard, mark in marks.items() if mark > at.get(shard, 0)}
    if behind:
        hold(link, store, reader, behind)


def _marks(link: Link, store: str, reader: str) -> dict[int, int]:
    info = link.store(store)
    found = {}
    for shard in info[b"shard"]:
        holds = shard[b"holds"]
        pairs = holds if isinstance(holds, dict) else dict(zip(holds[::2], holds[1::2], strict=True))
        value = pairs.get(reader.encode())
        if value is not None and str(value if not isinstance(value, bytes) else value.decode()).isdigit():
            found[shard[b"shard"]] = int(value)
    return found


def release(link: Link, store: str, reader: str) -> None:
    """Holds nothing any more."""
    patiently(lambda: link.hold.history.store(store).release(reader), link.forget)
