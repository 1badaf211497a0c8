# Generated from tests/client/_async/test_history_failover.py by tools/generate_sync.py; change that file.
"""A primary of a cluster is lost amid a replay of all its nodes: what its replica has comes, each message once."""

import time
from collections.abc import Callable

import pytest
import redis

from holdmq import HistoryMessage, HistoryStore, HoldMQ, ProducerChunk, Replay, history_commands
from tests.module.cluster_support import FAILS_OVER, add_replica, owner, promote
from tests.support import Cluster, Server, embedded_kinds, eventually

server_kinds = embedded_kinds

SHARDS = 5
TOPICS = [f"s/{number}" for number in range(12)]
WAIT_S = 30.0


class Pair:
    """The primary of some shards and its replica; the other nodes have none.

    Attributes:
        shard: one of the shards, which has messages.
    """

    def __init__(self, cluster: Cluster, shard: int, replica: Server) -> None:
        self.cluster = cluster
        self.shard = shard
        self.slot = history_commands.shard_slot("s", shard)
        self.primary = owner(cluster, self.slot)
        self.replica = add_replica(cluster, self.primary, replica)

    def in_step(self) -> None:
        """Waits until the replica has all that was written."""
        sent = self.primary.client().info("replication")["master_repl_offset"]
        eventually(
            lambda: self.replica.client().info("replication").get("slave_repl_offset", 0) >= sent, WAIT_S, "a replica"
        )

    def lose_the_primary(self) -> None:
        """Kills it; the replica has its slots then."""
        self.primary.kill()
        promote(self.cluster, self.replica, self.slot)


@pytest.fixture
def cluster(fresh_cluster: Callable[..., Cluster]) -> Cluster:
    """Three primaries."""
    return fresh_cluster(3, config=FAILS_OVER)


@pytest.fixture
def hold(cluster: Cluster, connect_cluster: Callable[..., HoldMQ]) -> HoldMQ:
    """A client of the cluster."""
    return connect_cluster(cluster, moving_timeout=WAIT_S)


@pytest.fixture
def store(hold: HoldMQ) -> HistoryStore:
    """A store with sixty messages, over all nodes."""
    hold.history.create("s", "s/#", shards=SHARDS)
    made = hold.history.store("s")
    append(made, range(60))
    return made


def append(to: HistoryStore, numbers: range) -> None:
    """Appends them; what nobody is sure of is repeated, and kept once."""
    for number in numbers:
        topic, chunk = TOPICS[number % len(TOPICS)], ProducerChunk("writer", 1, number)
        deadline = time.monotonic() + WAIT_S
        while True:
            try:
                to.append(topic, str(number), producer=chunk)
                break
            except redis.ConnectionError:
                assert time.monotonic() < deadline, "no node took the message"


def take(replay: Replay, count: int) -> list[HistoryMessage]:
    """So many messages, in as many goes as it takes."""
    got: list[HistoryMessage] = []
    deadline = time.monotonic() + WAIT_S
    while len(got) < count:
        assert time.monotonic() < deadline, f"{len(got)} of {count} messages came"
        message = replay.get()
        got += [message] if message is not None else []
    return got


def numbers_of(messages: list[HistoryMessage]) -> list[int]:
    """Their payloads, if each topic has them in order and none comes twice."""
    for topic in TOPICS:
        own = [int(message.payload) for message in messages if message.topic == topic]
        assert own == sorted(set(own)), topic
    return sorted(int(message.payload) for message in messages)


def fullest(store: HistoryStore) -> int:
    """The shard with the most messages."""
    return max((store.info()).shards, key=lambda one: one.last).shard


def test_a_replay_continues_where_it_was_when_a_primary_is_lost(
    cluster: Cluster, store: HistoryStore, fresh_server: Callable[..., Server]
) -> None:
    pair = Pair(cluster, fullest(store), fresh_server(cluster=True, config=FAILS_OVER))
    pair.in_step()
    replay = store.start_replay(page=2)
    got = take(replay, 20)
    cursor = replay.cursor
    pair.lose_the_primary()
    append(store, range(60, 84))
    assert numbers_of(got + [message for message in replay]) == list(range(84))
    assert replay.missed == 0
    other = store.start_replay(cursor=cursor, page=3)
    assert numbers_of(got + [message for message in other]) == list(range(84))
    assert other.missed == 0
    assert store.check() == ()


def test_what_was_lost_with_a_primary_hides_nothing_and_what_was_trimmed_is_counted(
    cluster: Cluster, store: HistoryStore, fresh_server: Callable[..., Server]
) -> None:
    replica = fresh_server(cluster=True, aof=True, config=["appendfsync always", *FAILS_OVER])
    pair = Pair(cluster, fullest(store), replica)
    pair.in_step()
    early = store.start_replay(page=2)
    seen = take(early, 10)
    cursor = early.cursor
    late = store.start_replay(page=2)
    got = take(late, 60)
    replica.kill()  # it never hears of what follows, which the reader does
    append(store, range(60, 84))
    got += take(late, 24)
    pair.primary.kill()
    replica.restart()
    promote(cluster, replica, pair.slot)
    everything = [message for message in store.start_replay()]
    lost = {*range(84)} - {*numbers_of(everything)}
    assert len([message for message in got if message.shard == pair.shard and int(message.payload) in lost]) > 0
    # The numbers of what was lost are given again: whoever has seen them still gets all that is new, and only that.
    append(store, range(84, 144))
    assert numbers_of(take(late, 60)) == list(range(84, 144))
    assert late.get() is None
    assert late.missed == 0
    everything = [message for message in store.start_replay()]
    assert numbers_of(everything) == sorted({*range(144)} - lost)
    known = {int(message.payload) for message in seen}
    unseen = [message for message in everything if int(message.payload) not in known]
    of_shard = [message for message in unseen if message.shard == pair.shard]
    store.trim(pair.shard, of_shard[2].sequence)
    early = store.start_replay(cursor=cursor)
    assert [message for message in early] == [message for message in unseen if message not in of_shard[:3]]
    assert early.missed == 3
    assert store.check() == ()
