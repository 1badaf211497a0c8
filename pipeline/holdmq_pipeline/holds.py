"""A reader's hold on a store: what it has not read is not dropped, on one server as on all nodes of a cluster.

Each of these may be repeated, and is, while a server or a slot cannot be reached.
"""

from collections.abc import Mapping

from holdmq_pipeline.wire import Link, patiently

__all__ = ["hold", "release"]


def hold(link: Link, store: str, reader: str, marks: Mapping[int, int] | None = None) -> None:
    """Moves the watermarks of shards; without any, holds all that is kept on shards that the reader does not hold yet.

    Raises:
        HoldLostError: retention went on without the reader.
    """
    patiently(lambda: link.hold.history.store(store).hold(reader, marks), link.forget)


def release(link: Link, store: str, reader: str) -> None:
    """Holds nothing any more."""
    patiently(lambda: link.hold.history.store(store).release(reader), link.forget)
