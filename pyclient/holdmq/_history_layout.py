"""The layout of a history store: its shards and their slots in a cluster; without I/O."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdmq import _arguments as arguments
from holdmq import _wire as wire
from holdmq import core
from holdmq._command import Command, Scope
from holdmq.errors import NoStoreError
from holdmq.replies import Text

MAX_STORE_BYTES = 64
"""The maximum length of the name of a store."""
MAX_SHARDS = 64
"""The maximum number of shards of a store."""
MAX_IMPORT = 10_000
"""The maximum number of messages in an import."""


_STORE = re.compile(rb"[0-9A-Za-z._-]+")


@dataclass(frozen=True, slots=True)
class StoreLayout:
    """How a store spreads topics.

    Attributes:
        seed: the seed of the hash, 32 hexadecimal digits.
        shards: the number of shards.
        spread: topics are spread over the first `spread` shards.
    """

    seed: str
    shards: int
    spread: int

    def shard_of(self, topic: bytes) -> int:
        """Returns the shard of a topic.

        Examples:
            >>> StoreLayout("0" * 32, shards=4, spread=4).shard_of(b"a/b")
            0
        """
        number = int(self.seed[:16], 16) | int(self.seed[16:], 16) << 64
        return core.topic_shard(topic, self.spread, seed=number)

    def split(self, messages: Iterable[tuple[str, bytes]]) -> dict[int, list[bytes]]:
        """Groups records by the shards of their topics."""
        groups: dict[int, list[bytes]] = {}
        for topic, record in messages:
            groups.setdefault(self.shard_of(wire.topic(topic)), []).append(record)
        return groups


@dataclass(frozen=True, slots=True)
class StoreCopy:
    """A cluster node's copy of a store's settings.

    Attributes:
        store: the store's name.
        seed: the seed of the hash.
        shards: the number of shards.
        changed_ms: the time of the last change, in milliseconds since 1970.
    """

    store: str
    seed: str
    shards: int
    changed_ms: int


def store_name(store: Text) -> bytes:
    """Returns the name of a store as bytes."""
    raw = arguments.name("store", store, MAX_STORE_BYTES)
    if _STORE.fullmatch(raw) is None:
        raise arguments.wrong("store", store, "letters of ASCII, digits, '-', '_' and '.'")
    return raw


def shard_key(store: Text, shard: int) -> bytes:
    """Returns the key of a shard's state. Its slot is the slot of the shard."""
    return b"{%b/%d}_history" % (store_name(store), arguments.in_range("shard", shard, 0, MAX_SHARDS - 1))


def shard_slot(store: Text, shard: int) -> int:
    """Returns the slot of all keys of a shard."""
    return core.slot_of(shard_key(store, shard))


def store_layout(store: Text, *, cluster: bool = False) -> Command[StoreLayout]:
    """`HMGET` of the store's policy. In a cluster: of the copy of its first shard."""

    def parse(reply: object) -> StoreLayout:
        seed, spread, shards, removed = wire.array(reply, 4)
        if seed is None or shards is None or removed is not None:
            raise NoStoreError(f"there is no store {store!r}: one that HISTORY.STORE has made expected")
        many = wire.number(shards)
        return StoreLayout(wire.decoded(seed), many, many if spread is None else wire.number(spread))

    key = b"{%b%b}_history_store" % (store_name(store), b"/0" if arguments.flag("cluster", cluster) else b"")
    return Command(("HMGET", key, "seed", "spread", "shards", "removed"), parse)


def history_copies(store: Text) -> Command[tuple[StoreCopy, ...]]:
    """`HISTORY.STORES` in a cluster: each node's copy of one store."""
    name = wire.decoded(store_name(store))

    def merge(parts: Sequence[tuple[StoreCopy, ...]]) -> tuple[StoreCopy, ...]:
        return tuple(copy for part in parts for copy in part)

    def parse(reply: object) -> tuple[StoreCopy, ...]:
        copies = (_copy(wire.mapping(item)) for item in wire.array(reply))
        return tuple(copy for copy in copies if copy.store == name)

    return Command(("HISTORY.STORES",), parse, scope=Scope.ALL, merge=merge)


def _copy(fields: Mapping[str, Any]) -> StoreCopy:
    try:
        return StoreCopy(
            wire.decoded(fields["store"]),
            wire.decoded(fields["seed"]),
            wire.integer(fields["shards"]),
            wire.integer(fields["changed"]),
        )
    except KeyError as error:
        raise wire.wrong(fields, f"a field {error}") from error
