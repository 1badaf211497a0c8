"""The subscription trie: finds the subscribers whose filters match a topic name, or the names that match a filter.

The module routes messages with the same code (src/topic/trie.h). Subscribers and options are plain numbers. A trie
belongs to one thread at a time.
"""

import enum
from collections.abc import Iterator
from typing import Any, NamedTuple

from holdmq.core._binding import LIBC_ALLOCATOR, CData, Text, ffi, freer, lib, to_bytes
from holdmq.core.topics import InvalidTopicError, check_topic_filter, check_topic_name

__all__ = ["Match", "SetResult", "TopicTrie"]

_FIRST_CAPACITY = 64  # matches; more need a second call


class Match(NamedTuple):
    """A subscriber whose filter matches, and the options it subscribed with."""

    subscriber: int
    options: int


class SetResult(enum.Enum):
    """The result of `TopicTrie.set`."""

    UNCHANGED = lib.HMQ_TRIE_UNCHANGED
    ADDED = lib.HMQ_TRIE_ADDED
    REPLACED = lib.HMQ_TRIE_REPLACED


class TopicTrie:
    """Subscribers by topic filter.

    Examples:
        >>> trie = TopicTrie()
        >>> trie.set("devices/+/temperature", 7, options=1)
        <SetResult.ADDED: 1>
        >>> trie.match("devices/42/temperature")
        [Match(subscriber=7, options=1)]
    """

    def __init__(self, *, seed: int = 0, allocator: CData = None) -> None:
        """Creates an empty trie.

        Args:
            seed: 128 bits for the hash of the levels; random ones if the filters come from strangers.
            allocator: an `hmq_allocator` that outlives the trie, libc's if None.

        Raises:
            MemoryError: when out of memory.
            OverflowError: if the seed is not within 0 .. 2**128-1.
        """
        memory = LIBC_ALLOCATOR if allocator is None else allocator
        new = lib.hmq_trie_new(memory)
        if new == ffi.NULL:
            raise MemoryError("no memory for a topic trie")
        self._trie = ffi.gc(new, freer(lib.hmq_trie_free, memory))
        lib.hmq_trie_seed(self._trie, seed & (2**64 - 1), seed >> 64)

    def set(self, topic_filter: Text, subscriber: int, options: int = 0) -> SetResult:
        """Adds the pair, or changes its options.

        Args:
            topic_filter: a filter without `$share`.
            subscriber: 0 .. 2**64-1.
            options: 0 .. 2**32-1.

        Raises:
            InvalidTopicError: if the filter is not valid, or a `$share` one.
            MemoryError: when out of memory; nothing has changed then.
        """
        data = to_bytes(topic_filter)
        result = lib.hmq_trie_set(self._trie, data, len(data), subscriber, options)
        if result == lib.HMQ_TRIE_NO_MEMORY:
            raise MemoryError("no memory for a subscription")
        if result == lib.HMQ_TRIE_BAD_FILTER:
            raise _bad_filter(data)
        return SetResult(result)

    def remove(self, topic_filter: Text, subscriber: int) -> bool:
        """Removes the pair. Returns False if there is none.

        Raises:
            InvalidTopicError: if the filter is not valid, or a `$share` one.
        """
        data = to_bytes(topic_filter)
        result = lib.hmq_trie_remove(self._trie, data, len(data), subscriber)
        if result == lib.HMQ_TRIE_BAD_FILTER:
            raise _bad_filter(data)
        return bool(result == lib.HMQ_TRIE_REMOVED)

    def match(self, name: Text) -> list[Match]:
        """All pairs whose filter matches the topic name, one for each matching filter, in no particular order.

        Raises:
            InvalidTopicError: if the name is not valid.
        """
        check_topic_name(name)
        return self._collect(lib.hmq_trie_collect, to_bytes(name))

    def match_filter(self, topic_filter: Text) -> list[Match]:
        """For a trie of topic names: all pairs whose name the filter matches.

        Raises:
            InvalidTopicError: if the filter is not valid.
        """
        check_topic_filter(topic_filter)
        return self._collect(lib.hmq_trie_collect_filter, to_bytes(topic_filter))

    def __iter__(self) -> Iterator[tuple[bytes, int, int]]:
        """Every (filter, subscriber, options), in no particular order, as the trie is now."""
        found: list[tuple[bytes, int, int]] = []
        handle = ffi.new_handle(found)
        lib.hmq_trie_walk(self._trie, lib.hmq_python_trie_walk, handle)
        return iter(found)

    def __len__(self) -> int:
        """Pairs of filter and subscriber."""
        return int(lib.hmq_trie_pairs(self._trie))

    @property
    def nodes(self) -> int:
        """Nodes, the root included."""
        return int(lib.hmq_trie_nodes(self._trie))

    @property
    def memory_bytes(self) -> int:
        """Memory taken from the allocator, in bytes."""
        return int(lib.hmq_trie_bytes(self._trie))

    def _collect(self, collect: Any, text: bytes) -> list[Match]:
        capacity = _FIRST_CAPACITY
        while True:
            entries = ffi.new("hmq_trie_entry[]", capacity)
            count = collect(self._trie, text, len(text), entries, capacity)
            if count <= capacity:
                return [Match(entry.subscriber, entry.options) for entry in entries[0:count]]
            capacity = count


def _bad_filter(data: bytes) -> InvalidTopicError:
    error = lib.hmq_topic_check_filter(data, len(data))
    return InvalidTopicError(error or lib.HMQ_TOPIC_BAD_SHARE)


@ffi.def_extern(error=False)
def hmq_python_trie_walk(context: CData, text: CData, size: int, subscriber: int, options: int) -> bool:
    """Called by hmq_trie_walk for each pair."""
    ffi.from_handle(context).append((bytes(ffi.buffer(text, size)), subscriber, options))
    return True
