"""TOPIC.MPUBLISH in a cluster: each target of a message gets it once, whatever is asked again, wherever its slot is."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import redis
from redis.crc import key_slot

from holdmq import core
from tests.module.cluster_support import FAILS_OVER, SlotMove, add_replica, promote
from tests.module.history_cluster_support import Store, shard_of, slot_of
from tests.module.sessions_support import Session, payloads
from tests.support import Cluster, Server, embedded_kinds, eventually
from tests.support.server import SLOTS

server_kinds = embedded_kinds

WAIT_S = 20.0
WAIT_MS = 20_000
SHARDS = 2


def record(topic: str, payload: str, **facts: Any) -> bytes:
    """A published message of QoS 1."""
    return core.Record(topic=topic.encode(), payload=payload.encode(), qos=1, **facts).encode()


@dataclass
class Job:
    """A producer that asks nodes for slots."""

    cluster: Cluster
    epoch: int = 1

    def ask(self, node: Server, *numbered: tuple[int, bytes], slots: tuple[int, int] = (0, SLOTS - 1)) -> Any:
        """A node; `[[published, known, reached], unserved]`."""
        words = [word for pair in numbered for word in pair]
        producer = ("PRODUCER", "job", self.epoch, 0)
        return node.client().execute_command("TOPIC.MPUBLISH", *producer, "SLOTS", 1, *slots, "RECORD", *words)

    def everywhere(self, *numbered: tuple[int, bytes]) -> list[list[int]]:
        """All nodes."""
        return [self.ask(node, *numbered)[0] for node in self.cluster.nodes]


@pytest.fixture
def job(cluster: Cluster) -> Job:
    """A producer."""
    return Job(cluster)


def session_at(node: Server, *subscriptions: tuple[bytes | str, int], skip: int = 0) -> Session:
    """A session whose slot the node has."""
    own = node.slots()
    names = (f"{{c{number}}}" for number in itertools.count())
    key = next(itertools.islice((name for name in names if key_slot(name.encode()) in own), skip, None))
    session = Session(node.client(), key)
    session.open("o")  # a group gives to members that are connected
    session.subscribe(*subscriptions)
    return session


def slot_of_session(session: Session) -> int:
    """Its slot."""
    return int(key_slot(session.key))


def move(cluster: Cluster, source: Server, target: Server, slot: int) -> None:
    """Move a slot, key by key."""
    way = SlotMove(cluster, source, target, slot)
    way.begin()
    assert sum(way.move_all(100)) > 0
    way.end()
    eventually(lambda: all(slot not in node.slots() for node in cluster.nodes if node is not target), WAIT_S, "a move")
    eventually(lambda: slot in target.slots(), WAIT_S, "a node that has the slot")


def queued(session: Session) -> list[bytes]:
    """What waits."""
    return payloads(session.fetch().entries)


def test_every_target_on_every_node_gets_each_message_once_however_often_it_is_sent(cluster: Cluster, job: Job) -> None:
    store = Store(cluster, "s", SHARDS)
    store.create("a/#")
    sessions = [session_at(node, ("a/+", 1)) for node in cluster.nodes]
    members = [session_at(node, ("$share/g/a/+", 1), skip=1) for node in cluster.nodes]
    inboxes = []
    for node in cluster.nodes:  # QoS 0 goes to who is connected
        session = session_at(node, ("a/+", 0), skip=2)
        inbox = node.client().pubsub()
        inbox.subscribe(session.name("inbox"))
        assert inbox.get_message(timeout=5)["type"] == "subscribe"
        inboxes.append(inbox)
    messages = [(number, record(f"a/{number % 4}", str(number), retain=number == 5)) for number in range(1, 9)]
    assert job.ask(cluster.nodes[0], *messages[:6])[0] == [6, 0, 18]  # and then the writer dies
    assert job.everywhere(*messages) == [[2, 6, 6], [8, 0, 24], [8, 0, 24]]
    assert job.everywhere(*messages[3:]) == [[0, 5, 0]] * 3
    expected = [str(number).encode() for number in range(1, 9)]
    assert [queued(session) for session in (*sessions, *members)] == [expected] * 6
    for inbox in inboxes:
        heard = [inbox.get_message(timeout=5) for _ in expected]
        assert [one["data"][-1:] for one in heard] == expected
        assert inbox.get_message(timeout=0.05) is None
        inbox.close()
    kept = [core.Record.decode(entry.record).payload for shard in range(SHARDS) for entry in store.read(shard)]
    assert sorted(kept) == expected
    assert [len(node.client().execute_command("TOPIC.RETAINED", "#")) for node in cluster.nodes].count(1) == 1
    newer = Job(cluster, epoch=2)
    newer.everywhere((1, record("a/1", "newer")))
    assert [queued(session) for session in sessions] == [[*expected, b"newer"]] * 3
    for node in cluster.nodes:
        with pytest.raises(
            redis.ResponseError, match=r"^FENCED the epoch is 1; the producer 'job' already has epoch 2"
        ):
            job.ask(node, (9, record("a/1", "late")))
    assert queued(sessions[0]) == [*expected, b"newer"]


def test_a_slot_takes_along_how_far_the_producer_came_there(cluster: Cluster, job: Job) -> None:
    """The nodes took different parts of the messages; then a session and a shard of history move."""
    store = Store(cluster, "s", SHARDS)
    store.create("a/#")
    first, second, _third = cluster.nodes
    moved, stays, there = (
        session_at(first, ("a/#", 1)),
        session_at(first, ("a/#", 1), skip=1),
        session_at(second, ("a/#", 1)),
    )
    messages = [(number, record("a/1", str(number))) for number in range(1, 7)]
    shard = shard_of("a/1", SHARDS)
    owner = store.node(shard)
    job.ask(first, *messages[:4])
    job.ask(second, *messages[:2])
    job.ask(owner, *messages[:3])
    target = cluster.nodes[cluster.nodes.index(owner) - 1]
    slot, shard_slot = slot_of_session(moved), slot_of(store.name, shard)
    move(cluster, first, second, slot)
    move(cluster, owner, target, shard_slot)
    try:
        job.everywhere(*messages)
        assert [queued(Session(second.client(), moved.key)), queued(stays), queued(there)] == [
            [b"%d" % n for n in range(1, 7)]
        ] * 3
        kept = [core.Record.decode(entry.record).payload for entry in store.read(shard)]
        assert kept == [b"%d" % number for number in range(1, 7)]
    finally:
        move(cluster, second, first, slot)
        move(cluster, target, owner, shard_slot)


def test_slots_on_their_way_wait_and_nobody_else_gets_anything_twice(cluster: Cluster, job: Job) -> None:
    first, second, _third = cluster.nodes
    waiting, resting = session_at(first, ("a", 1), ("$share/g/a", 1)), session_at(first, ("a", 1), skip=1)
    member = session_at(first, ("$share/g/a", 1), skip=2)
    slot = slot_of_session(waiting)
    way = SlotMove(cluster, first, second, slot)
    way.begin()
    messages = [(number, record("a", str(number))) for number in (1, 2)]
    [published, known, _reached], left = job.ask(first, *messages)
    assert (published, known) == (2, 0)
    assert [slot, slot, b""] in left
    assert (queued(resting), queued(member)) == ([b"1", b"2"], [b"1", b"2"])
    # The move is given up; what was left is asked for again, and a writer that knows of nothing asks for all.
    for node in cluster.nodes:
        node.client().execute_command("CLUSTER", "SETSLOT", slot, "STABLE")
    assert job.ask(first, *messages, slots=(slot, slot)) == [[2, 0, 2], []]
    job.everywhere(*messages)
    assert [queued(one) for one in (waiting, resting, member)] == [[b"1", b"2"]] * 3


def test_what_a_node_refused_it_takes_later_in_order(cluster: Cluster, job: Job) -> None:
    sessions = [session_at(node, ("#", 1)) for node in cluster.nodes]
    bad = next(node for node in cluster.nodes if key_slot(b"bad") in node.slots())
    bad.client().set("{bad}_retained", "of another type")
    messages = [(1, record("a", "1")), (2, record("bad", "2", retain=True)), (3, record("a", "3"))]
    for node in cluster.nodes:
        if node is bad:
            with pytest.raises(redis.ResponseError, match=r"^WRONGTYPE"):
                job.ask(node, *messages)
        else:
            assert job.ask(node, *messages)[0] == [3, 0, 3]
    assert sorted(len(queued(session)) for session in sessions) == [1, 3, 3]
    bad.client().delete("{bad}_retained")
    job.everywhere(*messages)
    assert [queued(session) for session in sessions] == [[b"1", b"2", b"3"]] * 3


def test_without_slots_no_node_publishes_for_others(cluster: Cluster) -> None:
    with pytest.raises(redis.ResponseError, match="SLOTS is missing; expected, in a cluster, the slots"):
        cluster.nodes[0].client().execute_command("TOPIC.MPUBLISH", "RECORD", record("a", "1"))


def test_a_commit_keeps_one_note_for_all_slots(cluster: Cluster, job: Job) -> None:
    sessions = [session_at(node, ("a", 1)) for node in cluster.nodes]
    messages = [(number, record("a", str(number))) for number in (1, 2)]
    job.everywhere(*messages)

    def commit(epoch: int, number: int) -> list[list[int]]:
        words = ("TOPIC.COMMIT", "job", epoch, number, "SLOTS", 1, 0, SLOTS - 1)
        return [node.client().execute_command(*words)[0] for node in cluster.nodes]

    keeper = next(node for node in cluster.nodes if key_slot(b"job") in node.slots()).client()
    assert [ended for _noted, ended in commit(1, 1)] == [0, 0, 0]  # the notes say more
    assert keeper.get("{job}_producer") == b"1 1"
    done = commit(1, 2)
    assert ([ended for _noted, ended in done], sum(noted for noted, _ended in done)) == ([1, 1, 1], 1)
    assert (keeper.get("{job}_producer"), keeper.ttl("{job}_producer") > 600_000) == (b"1 2", True)
    for node in cluster.nodes:
        [note] = node.client().keys("*_published{job}")
        assert 500 < node.client().ttl(note) <= 600
    job.everywhere(*messages)  # somebody who does not know
    assert [queued(session) for session in sessions] == [[b"1", b"2"]] * 3
    commit(1, 1)
    assert keeper.get("{job}_producer") == b"1 2"
    with pytest.raises(redis.ResponseError, match=r"^FENCED the epoch is 0"):
        commit(0, 5)


def test_a_replica_that_takes_over_knows_what_it_has(
    fresh_cluster: Callable[..., Cluster], fresh_server: Callable[..., Server]
) -> None:
    cluster = fresh_cluster(3, config=FAILS_OVER)
    primary = cluster.nodes[0]
    session = session_at(primary, ("a", 1))
    replica = add_replica(cluster, primary, fresh_server(cluster=True, config=FAILS_OVER))
    job = Job(cluster)
    messages = [(number, record("a", str(number))) for number in (1, 2, 3)]
    job.ask(primary, *messages[:2])
    assert primary.client().wait(1, WAIT_MS) == 1
    primary.kill()
    promote(cluster, replica, slot_of_session(session))
    assert job.ask(replica, *messages)[0] == [1, 2, 1]
    assert queued(Session(replica.client(), session.key)) == [b"1", b"2", b"3"]
