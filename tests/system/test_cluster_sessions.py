"""Sessions in a cluster lose nothing that was acknowledged: while slots move, and when a replica takes over."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import pytest
import redis
from redis.cluster import RedisCluster
from redis.crc import key_slot

from tests.module.cluster_support import FAILS_OVER, node_id, owner
from tests.support import Cluster, Server, embedded_kinds, eventually
from tests.support.ports import CLUSTER_BUS_OFFSET
from tests.system.cluster_load import TOPIC, load_on

server_kinds = embedded_kinds

MakeServer = Callable[..., Server]
MakeCluster = Callable[..., Cluster]
SESSIONS = [f"{{c{number}}}" for number in range(12)]
PAGE = 1000
MOVE_TIMEOUT_S = 30.0


@dataclass
class Writer:
    """Adds numbered messages to one session after the other and reads them, in a thread, until it is stopped.

    Attributes:
        acknowledged: for each session the messages whose addition was answered.
        failures: what was answered or happened otherwise; such a message may be there or not.
        expired: how many messages were taken for expired when the queue was read; none is.
    """

    cluster: Cluster
    acknowledged: dict[str, list[bytes]] = field(default_factory=lambda: {name: [] for name in SESSIONS})
    failures: list[redis.RedisError] = field(default_factory=list)
    expired: int = 0
    _stopping: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with contextlib.closing(self.cluster.client()) as client:
            number = 0
            while not self._stopping.is_set():
                for name in SESSIONS:
                    self._add(client, name, b"%d" % number)
                number += 1
                time.sleep(0.001)  # leaves the processor to the servers; not a wait for anything

    def _add(self, client: RedisCluster, name: str, payload: bytes) -> None:
        try:
            client.execute_command("SESSION.ADD", name, "LIMIT", 65535, payload)
        except redis.RedisError as error:
            self.failures.append(error)
        else:
            self.acknowledged[name].append(payload)
        with contextlib.suppress(redis.RedisError):  # reading may be refused while the slot moves, but changes nothing
            self.expired += client.execute_command("SESSION.FETCH", name, "COUNT", 50)[2]

    def count(self) -> int:
        """How many messages were acknowledged."""
        return sum(len(payloads) for payloads in self.acknowledged.values())

    def wait_for_progress(self) -> None:
        """Wait until it has had a round of acknowledgements from now on."""
        wanted = self.count() + 2 * len(SESSIONS)
        eventually(
            lambda: self.count() >= wanted, MOVE_TIMEOUT_S, f"further acknowledgements; failures {self.failures}"
        )

    def stop(self) -> None:
        """Let the present round end."""
        self._stopping.set()
        self._thread.join()


@contextlib.contextmanager
def writing(cluster: Cluster) -> Iterator[Writer]:
    writer = Writer(cluster)
    try:
        yield writer
    finally:
        writer.stop()


def everything(client: RedisCluster, name: str) -> list[bytes]:
    """The payloads of a session's queue, in order."""
    payloads: list[bytes] = []
    after = 0
    while True:
        entries, more, expired = client.execute_command("SESSION.FETCH", name, "AFTER", after, "COUNT", PAGE)
        assert expired == 0
        payloads += [entry[3] for entry in entries]
        if not more:
            return payloads
        after = entries[-1][0]


def assert_all_is_there(cluster: Cluster, writer: Writer) -> None:
    """Each acknowledged message is there once, in order, and the indexes of all nodes are sound."""
    unanswered = len(writer.failures)
    assert writer.expired == 0
    with contextlib.closing(cluster.client()) as client:
        for name in SESSIONS:
            stored = everything(client, name)
            known = set(writer.acknowledged[name])
            assert [payload for payload in stored if payload in known] == writer.acknowledged[name], name
            assert len(stored) <= len(known) + unanswered
    for node in cluster.nodes:
        assert node.client().execute_command("HOLDMQ.CHECK") == []


def wait_for_owner(cluster: Cluster, slot: int, node: Server) -> None:
    eventually(lambda: owner(cluster, slot) is node, MOVE_TIMEOUT_S, f"slot {slot} on the node on port {node.port}")


def move_slot_at_once(source: Server, target: Server, slot: int) -> None:
    """Valkey 9 moves a slot as a whole."""
    source.client().execute_command("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", node_id(target))


def move_all(cluster: Cluster, writer: Writer, move: Callable[[Server, Server, int], None]) -> None:
    """Each session's slot goes to the next node, while the writer continues."""
    for name in SESSIONS:
        slot = key_slot(name.encode())
        source = owner(cluster, slot)
        target = cluster.nodes[(cluster.nodes.index(source) + 1) % len(cluster.nodes)]
        move(source, target, slot)
        wait_for_owner(cluster, slot, target)
    writer.wait_for_progress()


def test_sessions_whose_slots_move_as_a_whole_keep_every_acknowledged_message(fresh_cluster: MakeCluster) -> None:
    cluster = fresh_cluster(3)
    with writing(cluster) as writer:
        writer.wait_for_progress()
        for _round in range(3):  # once around, so that each slot comes back to where it was
            move_all(cluster, writer, move_slot_at_once)
    assert_all_is_there(cluster, writer)


def test_what_is_published_while_slots_move_as_a_whole_reaches_each_session_once(fresh_cluster: MakeCluster) -> None:
    cluster = fresh_cluster(3)
    names = [f"c{number}" for number in range(4)]
    with load_on(cluster, names) as load:
        load.wait_for_progress()
        for name in [*names, TOPIC] * 2:
            slot = key_slot(name.encode())
            source = owner(cluster, slot)
            target = cluster.nodes[(cluster.nodes.index(source) + 1) % len(cluster.nodes)]
            move_slot_at_once(source, target, slot)
            wait_for_owner(cluster, slot, target)
            load.wait_for_progress()
    load.check()


def test_a_session_continues_where_it_was_after_its_slot_moved(fresh_cluster: MakeCluster) -> None:
    cluster = fresh_cluster(3)
    name = SESSIONS[0]
    slot = key_slot(name.encode())
    source = owner(cluster, slot)
    target = next(node for node in cluster.nodes if node is not source)
    with contextlib.closing(cluster.client()) as client:
        epoch, _present = client.execute_command("SESSION.OPEN", name, "OWNER", "o", "EXPIRY", 100)
        client.execute_command("SESSION.SUBSCRIBE", name, "EPOCH", epoch, "a/#", 1)
        client.execute_command("SESSION.ADD", name, *range(10))
        client.execute_command("SESSION.FETCH", name, "EPOCH", epoch, "WINDOW", 4)
        before = client.execute_command("SESSION.INFO", name)
        move_slot_at_once(source, target, slot)
        wait_for_owner(cluster, slot, target)
        after = client.execute_command("SESSION.INFO", name)
        assert without_ttl(after) == without_ttl(before)
        in_flight, _more, _expired = client.execute_command("SESSION.FETCH", name, "EPOCH", epoch, "INFLIGHT")
        assert [entry[1] for entry in in_flight] == [1, 2, 3, 4]
        removed, (entries, _, _) = client.execute_command("SESSION.ACK", name, "EPOCH", epoch, "NEXT", 2, 1, 2)
        assert (removed, [entry[1] for entry in entries]) == (2, [5, 6])
        with pytest.raises(redis.ResponseError, match="FENCED"):
            client.execute_command("SESSION.ACK", name, "EPOCH", epoch - 1, 3)
    # Its subscriptions are known where it is now, and no longer where it was.
    assert target.client().execute_command("TOPIC.PUBLISH", "a/b", "payload", "QOS", 1) == 1
    assert source.client().execute_command("TOPIC.PUBLISH", "a/b", "payload", "QOS", 1) == 0
    for node in cluster.nodes:
        assert node.client().execute_command("HOLDMQ.CHECK") == []


def without_ttl(info: Sequence[object] | dict[object, object]) -> list[object]:
    """SESSION.INFO without the time that is left."""
    pairs = list(info.items()) if isinstance(info, dict) else list(zip(info[::2], info[1::2], strict=True))
    return [pair for pair in pairs if pair[0] not in (b"ttl_ms", "ttl_ms")]


# --- Failover ---------------------------------------------------------------------------------------------------------


def add_and_wait(primary: Server, count: int) -> list[bytes]:
    """Add messages one by one; return those that WAIT says a replica has."""
    client = primary.client()
    sure = []
    for number in range(count):
        client.execute_command("SESSION.ADD", "{c}", b"%d" % number)
        if client.wait(1, 5000) == 1:
            sure.append(b"%d" % number)
    return sure


def queue_of(client: redis.Redis) -> list[bytes]:
    entries, more, _expired = client.execute_command("SESSION.FETCH", "{c}", "COUNT", 10000)
    assert not more
    return [entry[3] for entry in entries]


def test_a_promoted_replica_has_all_that_was_acknowledged_with_wait(fresh_server: MakeServer) -> None:
    primary = fresh_server()
    replica = fresh_server(replica_of=primary)
    sure = add_and_wait(primary, 200)
    assert len(sure) == 200
    primary.kill()
    client = replica.client()
    client.replicaof("NO", "ONE")
    assert queue_of(client) == sure
    assert client.execute_command("HOLDMQ.CHECK") == []
    # It goes on: serials and identifiers follow those of before.
    assert client.execute_command("SESSION.ADD", "{c}", "next")[:2] == [[201], 201]
    assert client.execute_command("SESSION.ACK", "{c}", *range(1, 202)) == 201


def test_a_cluster_that_fails_over_keeps_every_acknowledged_message(
    fresh_cluster: MakeCluster, fresh_server: MakeServer
) -> None:
    cluster = fresh_cluster(3, config=FAILS_OVER)
    primary = owner(cluster, key_slot(b"{c}"))
    replica = fresh_server(cluster=True, config=FAILS_OVER)
    client = replica.client()
    client.execute_command("CLUSTER", "MEET", "127.0.0.1", primary.port, primary.port + CLUSTER_BUS_OFFSET)
    eventually(lambda: replicates(client, node_id(primary)), MOVE_TIMEOUT_S, "a replica in the cluster")
    eventually(lambda: client.info("replication")["master_link_status"] == "up", MOVE_TIMEOUT_S, "a replica in step")
    replica_id, primary_id = node_id(replica), node_id(primary)
    for node in cluster.nodes:  # they vote, but only for a replica that they know as one
        wait_for_replica(node, replica_id, primary_id)
    sure = add_and_wait(primary, 200)
    assert len(sure) == 200
    client.execute_command("CLUSTER", "FAILOVER")
    eventually(lambda: client.info("replication")["role"] == "master", MOVE_TIMEOUT_S, "the failover")
    assert queue_of(client) == sure
    eventually(lambda: primary.client().info("replication")["role"] == "slave", MOVE_TIMEOUT_S, "the former primary")
    assert client.execute_command("SESSION.ADD", "{c}", "next")[:2] == [[201], 201]
    eventually(lambda: client.wait(1, 1000) == 1, MOVE_TIMEOUT_S, "the former primary in step")
    for node in (primary, replica):
        assert node.client().execute_command("HOLDMQ.CHECK") == []


def replicates(client: redis.Redis, primary_id: str) -> bool:
    """Ask a node to replicate another, which it can once it knows that one."""
    try:
        client.execute_command("CLUSTER", "REPLICATE", primary_id)
    except redis.ResponseError as error:
        if "Unknown node" not in str(error):
            raise
        return False
    return True


def wait_for_replica(node: Server, replica_id: str, primary_id: str) -> None:
    """Wait until a node takes another one for a replica of a third."""

    def is_known() -> bool:
        nodes = node.client().cluster("NODES").values()
        return any((fields["node_id"], fields["master_id"]) == (replica_id, primary_id) for fields in nodes)

    eventually(is_known, MOVE_TIMEOUT_S, f"a replica known to the node on port {node.port}")
