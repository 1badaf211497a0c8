"""What the tests of history in a cluster share: a store over the nodes, and commands that go where a shard is."""

import itertools
from dataclasses import dataclass
from typing import Any

import redis
from redis.crc import key_slot

from holdmq import core
from tests.module.history_support import Entry, Place, named_map, replay_all
from tests.support import Cluster, Server, eventually
from tests.support.server import SLOTS

SEED = "00112233445566778899aabbccddeeff"
WAIT_S = 20.0


def slot_of(store: str, shard: int) -> int:
    """The slot of a shard's keys."""
    return key_slot(f"{store}/{shard}".encode())


def shard_of(topic: str, shards: int) -> int:
    """The shard of a topic, by SEED."""
    return core.topic_shard(topic, shards, seed=int(SEED[:16], 16) | int(SEED[16:], 16) << 64)


@dataclass
class Store:
    """A store of a cluster.

    Attributes:
        cluster: the nodes.
        name: of the store.
        shards: how many.
    """

    cluster: Cluster
    name: str
    shards: int

    def create(self, *filters: str, **options: int) -> None:
        """HISTORY.STORE on each node; every shard is written by one of them."""
        assert self.write(*filters, **options) == list(range(self.shards))

    def write(self, *filters: str, **options: int) -> list[int]:
        """HISTORY.STORE on each node: the shards that they wrote."""
        words = [word for one in filters for word in ("FILTER", one)]
        words += [word for name, value in options.items() for word in (name.upper(), str(value))]
        command = ("HISTORY.STORE", self.name, *words, "SHARDS", self.shards, "SEED", SEED)
        written = [shard for node in self.cluster.nodes for shard in node.client().execute_command(*command)]
        return sorted(written)

    def node(self, shard: int) -> Server:
        """Who has the shard."""
        slot = slot_of(self.name, shard)
        return next(node for node in self.cluster.nodes if slot in node.slots())

    def elsewhere(self, shard: int) -> Server:
        """Somebody who has not."""
        return next(node for node in self.cluster.nodes if node is not self.node(shard))

    def append(self, topic: str, payload: Any, *options: Any) -> Place:
        """HISTORY.APPEND where the topic's shard is."""
        client = self.node(shard_of(topic, self.shards)).client()
        return Place(*client.execute_command("HISTORY.APPEND", self.name, topic, payload, *options))

    def read(self, shard: int, topic_filter: str = "#", **options: Any) -> list[Entry]:
        """HISTORY.REPLAY of a shard, page by page."""
        client = self.node(shard).client()
        return replay_all(client, topic_filter, STORE=self.name, SHARD=shard, **options)

    def facts(self, shard: int) -> dict[str, Any]:
        """What HISTORY.INFO says of the shard."""
        reply = named_map(self.node(shard).client().execute_command("HISTORY.INFO", self.name, "SHARD", shard))
        (only,) = reply["shard"]
        assert isinstance(only, dict)
        return only

    def topics(self, shard: int, count: int = 1) -> list[str]:
        """Topics of a shard."""
        topics = (f"t/{number}" for number in itertools.count())
        return list(itertools.islice((topic for topic in topics if shard_of(topic, self.shards) == shard), count))


def stores(node: Server) -> dict[bytes, dict[str, Any]]:
    """HISTORY.STORES by name."""
    rows = map(named_map, node.client().execute_command("HISTORY.STORES"))
    return {row["store"]: row for row in rows}


def check(cluster: Cluster) -> None:
    """Indexes and what is remembered hold on each node, posting lists and marks are right, no key is out of place."""
    for node in cluster.nodes:
        client = node.client()
        assert client.execute_command("HOLDMQ.CHECK") == []
        own = node.slots()
        if client.info("replication")["role"] == "master":
            assert [key for key in client.scan_iter(count=1000) if key_slot(key) not in own] == []
        for name, row in stores(node).items():
            for shard in row["here"]:
                check_epochs(client, name, shard)


def check_epochs(client: redis.Redis, name: bytes, shard: int) -> None:
    """HISTORY.CHECK of each epoch."""
    (facts,) = named_map(client.execute_command("HISTORY.INFO", name, "SHARD", shard))["shard"]
    for epoch in range(facts["oldest_epoch"], facts["epoch"] + 1) if facts["epoch"] else ():
        assert client.execute_command("HISTORY.CHECK", name, shard, "EPOCH", epoch) == []


def commands_of(store: str, shard: int, topic: str) -> list[tuple[Any, ...]]:
    """A command of each kind about one shard, with a topic of it."""
    return [
        ("HISTORY.APPEND", store, topic, "m", "SHARD", shard),
        ("HISTORY.IMPORT", store, shard, "RECORD", core.Record(topic=topic.encode(), payload=b"m").encode()),
        ("HISTORY.RANGE", store, shard, 1, 10),
        ("HISTORY.SEQ", store, shard, 0),
        ("HISTORY.TRIM", store, shard, 0),
        ("HISTORY.CHECK", store, shard),
        ("HISTORY.INFO", store, "SHARD", shard),
        ("HISTORY.HOLD", store, "reader", shard, 0),
        ("HISTORY.REPLAY", "#", "STORE", store, "SHARD", shard),
        ("HISTORY.PATTERNS", "GET", store, "SHARD", shard),
        ("HISTORY.PATTERNS", "STATS", store, "SHARD", shard),
        ("HISTORY.PATTERNS", "PREPARE", store, 2, "holdmq-patterns 1 levels=8\n#\n", "SHARD", shard),
        ("HISTORY.PATTERNS", "COMMIT", store, 2, "SHARD", shard),
        ("HISTORY.PATTERNS", "ABORT", store, "SHARD", shard),
    ]


def settle(cluster: Cluster) -> None:
    """Wait until all nodes agree on who has which slot."""

    def agreed() -> bool:
        views = [
            sorted(
                (first, last, port)
                for first, last, (_h, port, *_), *_ in node.client().execute_command("CLUSTER", "SLOTS")
            )
            for node in cluster.nodes
        ]
        return all(view == views[0] for view in views) and sum(b - a + 1 for a, b, _ in views[0]) == SLOTS

    eventually(agreed, WAIT_S, "nodes that agree on the slots")
