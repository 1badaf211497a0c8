"""While a slot moves key by key, nothing touches the sessions in it; afterwards they continue where they were."""

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import pytest
import redis
from redis.crc import key_slot

from tests.module.cluster_support import SlotMove, add_replica
from tests.support import Cluster, Server, eventually
from tests.support.server import SLOTS

Reply = object
SESSION = "{c}"
SLOT = key_slot(b"c")
EVERY = ("SLOTS", 1, 0, SLOTS - 1)
WAIT_S = 20.0
SESSION_COMMANDS: list[tuple[str | int, ...]] = [
    ("SESSION.ADD", SESSION, "m"),
    ("SESSION.IMPORT", SESSION, "MERGE", "MESSAGES", 0),
    ("SESSION.FETCH", SESSION),
    ("SESSION.ACK", SESSION, 1),
    ("SESSION.SENT", SESSION, 1),
    ("SESSION.RELEASE", SESSION, 1),
    ("SESSION.RECEIVE", SESSION, 1),
    ("SESSION.COMPLETE", SESSION, 1),
    ("SESSION.LAST", SESSION),
    ("SESSION.INFO", SESSION),
    ("SESSION.DROP", SESSION),
    ("SESSION.OPEN", SESSION, "OWNER", "o"),
    ("SESSION.TOUCH", SESSION, "EPOCH", 1),
    ("SESSION.CLOSE", SESSION, "EPOCH", 1),
    ("SESSION.SUBSCRIBE", SESSION, "a", 1),
    ("SESSION.UNSUBSCRIBE", SESSION, "a"),
    ("SESSION.SUBSCRIPTIONS", SESSION),
]


@dataclass
class Moving:
    """A slot with a session on its way."""

    move: SlotMove
    source: redis.Redis
    target: redis.Redis
    other: redis.Redis

    def asking(self, *words: str | int) -> Reply:
        """Send a command to the target as a client does that was redirected there."""
        with self.target.client() as connection:
            assert connection.execute_command("ASKING") in (True, b"OK")
            return connection.execute_command(*words)


@pytest.fixture
def moving(shared_cluster: Cluster) -> Iterator[Moving]:
    """Whoever has the slot, and the next node; afterwards the slot is at rest, and nothing is left."""
    nodes = shared_cluster.nodes
    source = owner(shared_cluster, SLOT)
    target = nodes[(nodes.index(source) + 1) % len(nodes)]
    other = next(node for node in nodes if node not in (source, target))
    yield Moving(SlotMove(shared_cluster, source, target, SLOT), source.client(), target.client(), other.client())
    for node in nodes:
        node.check_indexes()
        node.client().execute_command("CLUSTER", "SETSLOT", SLOT, "STABLE")
        node.client().flushall()
        node.check()
    eventually(lambda: len({at(node, SLOT) for node in nodes}) == 1, WAIT_S, "nodes that agree on the slot")


def at(node: Server, slot: int) -> int:
    """The port of the node that has a slot, as a node sees it."""
    for first, last, (_host, port, *_), *_ in node.client().execute_command("CLUSTER", "SLOTS"):
        if first <= slot <= last:
            return int(port)
    raise AssertionError(f"nobody has slot {slot}")


def owner(cluster: Cluster, slot: int) -> Server:
    """The node that has a slot."""
    port = at(cluster.nodes[0], slot)
    return next(node for node in cluster.nodes if node.port == port)


def fill(client: redis.Redis) -> int:
    """A session with subscriptions, messages, some of them in flight; returns its epoch."""
    epoch, _present = client.execute_command("SESSION.OPEN", SESSION, "OWNER", "o", "EXPIRY", 1000)
    client.execute_command("SESSION.SUBSCRIBE", SESSION, "a/#", 1)
    client.execute_command("SESSION.ADD", SESSION, *range(10))
    client.execute_command("SESSION.FETCH", SESSION, "WINDOW", 4)
    return int(epoch)


def finish(moving: Moving) -> None:
    """Move what is left, and end the move."""
    for _count in moving.move.move_all(100):
        pass
    moving.move.end()


@pytest.mark.parametrize("words", SESSION_COMMANDS, ids=[str(words[0]) for words in SESSION_COMMANDS])
def test_no_session_is_touched_while_its_slot_is_on_its_way(moving: Moving, words: tuple[str | int, ...]) -> None:
    fill(moving.source)
    moving.move.begin()
    moving.move.move("{c}_session", "{c}_messages")
    before = [sorted(client.keys("*")) for client in (moving.source, moving.target)]
    # Redis 8.0 does not look for the key of a command that names topics, too: the module then asks to try again.
    with pytest.raises((redis.exceptions.AskError, redis.exceptions.TryAgainError)):
        moving.source.execute_command(*words)
    with pytest.raises(redis.exceptions.MovedError):
        moving.target.execute_command(*words)
    with pytest.raises(redis.exceptions.TryAgainError, match=f"slot {SLOT} of the session '{SESSION}' is moving"):
        moving.asking(*words)
    assert [sorted(client.keys("*")) for client in (moving.source, moving.target)] == before


def test_a_session_whose_key_exists_waits_as_well(moving: Moving) -> None:
    fill(moving.source)
    moving.source.set(SESSION, "somebody's")  # the source then has the key that the command names
    moving.move.begin()
    with pytest.raises(redis.exceptions.TryAgainError):
        moving.source.execute_command("SESSION.ADD", SESSION, "m")


@pytest.mark.parametrize("batch", [1, 3, 100])
def test_a_session_continues_where_it_was(moving: Moving, batch: int) -> None:
    epoch = fill(moving.source)
    moving.move.begin()
    for _count in moving.move.move_all(batch):
        with pytest.raises(redis.exceptions.TryAgainError):
            moving.asking("SESSION.ADD", SESSION, "m")
    moving.move.end()
    target = moving.target
    entries, _, _ = target.execute_command("SESSION.FETCH", SESSION, "EPOCH", epoch, "INFLIGHT")
    assert [entry[3] for entry in entries] == [b"0", b"1", b"2", b"3"]
    assert target.execute_command("SESSION.ADD", SESSION, "next")[:2] == [[11], 11]
    assert target.execute_command("TOPIC.PUBLISH", "a/b", "m", "QOS", 1) == 1
    assert moving.source.execute_command("TOPIC.PUBLISH", "a/b", "m", "QOS", 1) == 0
    assert moving.source.dbsize() == 0


def test_a_move_that_is_called_off_leaves_the_session_where_it_was(moving: Moving) -> None:
    fill(moving.source)
    moving.move.begin()
    moving.source.execute_command("CLUSTER", "SETSLOT", SLOT, "STABLE")
    moving.target.execute_command("CLUSTER", "SETSLOT", SLOT, "STABLE")
    assert moving.source.execute_command("SESSION.ADD", SESSION, "m")[0] == [11]


def test_a_move_that_is_begun_in_a_transaction_or_script_is_noticed(moving: Moving) -> None:
    fill(moving.source)
    [source_id, target_id] = [
        client.execute_command("CLUSTER", "MYID").decode() for client in (moving.source, moving.target)
    ]
    with moving.target.client() as connection:
        connection.execute_command("MULTI")
        connection.execute_command("CLUSTER", "SETSLOT", SLOT, "IMPORTING", source_id)
        moving.target.execute_command("TOPIC.PUBLISH", "a/b", "m")  # looks at the slots before the transaction runs
        connection.execute_command("EXEC")
    moving.source.eval("return redis.call('CLUSTER', 'SETSLOT', ARGV[1], 'MIGRATING', ARGV[2])", 0, SLOT, target_id)
    with pytest.raises(redis.exceptions.TryAgainError):
        moving.asking("SESSION.ADD", SESSION, "m")
    with pytest.raises(redis.exceptions.TryAgainError):
        moving.source.execute_command("TOPIC.PUBLISH", "a/b", "m", "QOS", 1)


def test_a_move_that_waits_for_replicas_is_noticed_when_it_begins(
    fresh_cluster: Callable[..., Cluster], fresh_server: Callable[..., Server]
) -> None:
    """Valkey 8 and later send the command to the replicas first, and carry it out when they have replied."""
    cluster = fresh_cluster(2)
    source = owner(cluster, SLOT)
    target = next(node for node in cluster.nodes if node is not source)
    replica = add_replica(cluster, source, fresh_server(cluster=True))
    client = source.client()
    fill(client)
    client.execute_command("WAIT", 1, 1000)
    move = SlotMove(cluster, source, target, SLOT)
    replica.pause()
    begins = threading.Thread(target=move.begin)
    begins.start()
    try:
        eventually(lambda: client.info("clients")["blocked_clients"] == 1 or not begins.is_alive(), WAIT_S)
        with suppress(redis.exceptions.TryAgainError):  # of a server that does not wait for replicas
            client.execute_command("TOPIC.PUBLISH", "a/b", "before", "QOS", 1)
    finally:
        replica.resume()
        begins.join(WAIT_S)
    assert not begins.is_alive()
    for _count in move.move_all(100):
        reached, unserved = client.execute_command("TOPIC.PUBLISH", "a/b", "m", "QOS", 1, "SLOTS", 1, SLOT, SLOT)
        assert (reached, [tuple(one[:2]) for one in unserved]) == (0, [(SLOT, SLOT)])


def test_slots_on_their_way_are_known_after_a_restart(fresh_cluster: Callable[..., Cluster]) -> None:
    cluster = fresh_cluster(2, aof=True)
    source = owner(cluster, SLOT)
    target = next(node for node in cluster.nodes if node is not source)
    fill(source.client())
    move = SlotMove(cluster, source, target, SLOT)
    move.begin()
    move.move("{c}_messages")
    for node in cluster.nodes:
        node.restart()
    eventually(lambda: all(node.client().cluster("INFO")["cluster_state"] == "ok" for node in cluster.nodes), WAIT_S)
    with target.client().client() as connection:
        connection.execute_command("ASKING")
        with pytest.raises(redis.exceptions.TryAgainError):
            connection.execute_command("SESSION.ADD", SESSION, "m")
    with pytest.raises(redis.exceptions.TryAgainError):
        source.client().execute_command("TOPIC.PUBLISH", "a/b", "m", "QOS", 1)


# --- Publishing -------------------------------------------------------------------------------------------------------


def test_a_publish_to_a_session_on_its_way_is_refused_before_anything_is_stored(moving: Moving) -> None:
    fill(moving.source)
    resting = resting_session(moving.move)
    moving.source.execute_command("SESSION.SUBSCRIBE", resting, "a/#", 1)
    moving.move.begin()
    for client in (moving.source, moving.target):  # first with the subscriptions at the source, then at the target
        with pytest.raises(redis.exceptions.TryAgainError, match=f"slot {SLOT}, which the publish needs"):
            client.execute_command("TOPIC.PUBLISH", "a/b", "m", "QOS", 1)
        assert moving.source.zcard(f"{resting}_messages") == 0
        if client is moving.source:
            moving.move.move("{c}_subscriptions")
    assert moving.source.execute_command("TOPIC.PUBLISH", "a/b", "m", "QOS", 1) == 1  # the resting session's
    assert moving.source.execute_command("TOPIC.PUBLISH", "b", "m", "QOS", 1) == 0


def resting_session(move: SlotMove) -> str:
    """A session of another slot on the source."""
    own = move.source.slots() - {SLOT}
    return next(name for name in (f"{{r{number}}}" for number in range(1000)) if key_slot(name.encode()) in own)


def test_a_publish_for_slots_serves_the_others_and_reports_what_it_did_not_serve(moving: Moving) -> None:
    fill(moving.source)
    resting = resting_session(moving.move)
    rest = key_slot(resting.encode())
    moving.source.execute_command("SESSION.SUBSCRIBE", resting, "a/#", 1)
    moving.move.begin()
    ranges = ("SLOTS", 2, *sorted([SLOT, SLOT, rest, rest]))
    publish = ("TOPIC.PUBLISH", "a/b", "m", "QOS", 1, *ranges)
    assert moving.source.execute_command(*publish) == [1, [[SLOT, SLOT, b""]]]  # its session is here, and waits
    assert moving.source.execute_command("TOPIC.PUBLISH", "b", "m", *ranges) == [0, [[SLOT, SLOT, there(moving)]]]
    assert moving.target.execute_command("TOPIC.PUBLISH", "b", "m", "SLOTS", 1, SLOT, SLOT) == [0, []]
    moving.move.move("{c}_subscriptions")
    assert moving.source.execute_command(*publish) == [1, [[SLOT, SLOT, there(moving)]]]
    assert moving.target.execute_command(*publish) == [0, [[slot, slot, b""] for slot in sorted([SLOT, rest])]]
    finish(moving)
    assert moving.target.execute_command("TOPIC.PUBLISH", "a/b", "m", "QOS", 1, "SLOTS", 1, SLOT, SLOT) == [1, []]
    assert moving.source.execute_command(*publish) == [1, [[SLOT, SLOT, b""]]]
    assert moving.source.zcard(f"{resting}_messages") == 3


def there(moving: Moving) -> bytes:
    """The address of the target."""
    return f"127.0.0.1:{moving.move.target.port}".encode()


def test_a_publish_for_slots_reaches_only_their_sessions(moving: Moving) -> None:
    fill(moving.source)
    assert moving.source.execute_command("TOPIC.PUBLISH", "a/b", "m", "QOS", 1, "SLOTS", 1, SLOT, SLOT) == [1, []]
    free = min(moving.move.source.slots() - {SLOT})
    assert moving.source.execute_command("TOPIC.PUBLISH", "a/b", "m", "QOS", 1, "SLOTS", 1, free, free) == [0, []]
    reached, left = moving.source.execute_command("TOPIC.PUBLISH", "a/b", "m", "QOS", 1, *EVERY)
    assert reached == 1
    others = {slot for first, last, address in left for slot in range(first, last + 1) if address == b""}
    mine = {slot for slot in range(SLOTS) if slot not in others}
    assert mine == moving.move.source.slots()


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("SLOTS",), "the number of ranges after SLOTS is missing"),
        (("SLOTS", 0), "the number of ranges after SLOTS is '0'"),
        (("SLOTS", 2, 0, 1), "the first slot of a range is missing"),
        (("SLOTS", 1, 5, 4), "the last slot of a range is '4'; expected a whole number from 5 to 16383"),
        (("SLOTS", 1, 0, 16384), "the last slot of a range is '16384'"),
        (("SLOTS", 1, 0, 1, "x"), "unexpected argument 'x'"),
    ],
)
def test_wrong_slots_are_refused(moving: Moving, words: tuple[str | int, ...], error: str) -> None:
    for command in (("TOPIC.PUBLISH", "a", "m"), ("TOPIC.RETAINED", "a")):
        with pytest.raises(redis.ResponseError, match=error):
            moving.source.execute_command(*command, *words)


# --- Retained messages ------------------------------------------------------------------------------------------------


def test_a_retained_message_is_kept_by_the_node_of_its_slot(moving: Moving) -> None:
    assert moving.source.execute_command("TOPIC.PUBLISH", "c", "kept", "RETAIN") == 0
    for client in (moving.target, moving.other):
        with pytest.raises(redis.ResponseError, match=f"RETAIN: the retained message of 'c' belongs to slot {SLOT}"):
            client.execute_command("TOPIC.PUBLISH", "c", "new", "RETAIN")
        reached, _left = client.execute_command("TOPIC.PUBLISH", "c", "new", "RETAIN", *EVERY)
        assert reached == 0
        assert client.dbsize() == 0
    assert moving.source.hget("{c}_retained", "payload") == b"kept"
    moving.source.execute_command("TOPIC.PUBLISH", "c", "new", "RETAIN", *EVERY)
    assert moving.source.hget("{c}_retained", "payload") == b"new"


def test_a_retained_message_is_neither_written_nor_missed_while_its_slot_is_on_its_way(moving: Moving) -> None:
    moving.source.execute_command("TOPIC.PUBLISH", "c", "kept", "RETAIN")
    moving.move.begin()
    own = ("SLOTS", 1, SLOT, SLOT)
    assert moving.source.execute_command("TOPIC.RETAINED", "#", *own) == [[b"c"], [[SLOT, SLOT, there(moving)]]]
    assert moving.target.execute_command("TOPIC.RETAINED", "#", *own) == [[], []]
    for client in (moving.source, moving.target):
        with pytest.raises(redis.ResponseError):
            client.execute_command("TOPIC.PUBLISH", "c", "new", "RETAIN")
        assert client.execute_command("TOPIC.PUBLISH", "c", "new", "RETAIN", *own) == [0, [[SLOT, SLOT, b""]]]
        moving.move.move("{c}_retained")
    assert moving.source.execute_command("TOPIC.RETAINED", "#", *own) == [[], [[SLOT, SLOT, there(moving)]]]
    assert moving.target.execute_command("TOPIC.RETAINED", "#", *own) == [[b"c"], []]
    finish(moving)
    assert moving.target.hget("{c}_retained", "payload") == b"kept"
    assert moving.source.execute_command("TOPIC.RETAINED", "#", *own) == [[], [[SLOT, SLOT, b""]]]


def test_a_subscription_in_a_cluster_leaves_retained_messages_to_the_client(moving: Moving) -> None:
    moving.source.execute_command("TOPIC.PUBLISH", "c", "kept", "RETAIN")
    moving.source.execute_command("SESSION.SUBSCRIBE", SESSION, "#", 1)
    assert moving.source.execute_command("SESSION.FETCH", SESSION)[0] == []


# --- The end of a session ---------------------------------------------------------------------------------------------


def test_a_session_that_expires_on_its_way_is_gone_and_nothing_of_it_comes_back(moving: Moving) -> None:
    source = moving.source
    epoch, _ = source.execute_command("SESSION.OPEN", SESSION, "OWNER", "o")
    source.execute_command("SESSION.SUBSCRIBE", SESSION, "a/#", 1)
    source.execute_command("SESSION.ADD", SESSION, "TTL", 1, "MESSAGES", *range(10))
    moving.move.begin()
    moving.move.move("{c}_messages", "{c}_messages_1")
    for key in source.keys("{c}_*"):
        source.pexpire(key, 1)
    with moving.target.client() as connection:
        connection.execute_command("ASKING")
        connection.execute_command("PEXPIRE", "{c}_messages", 1)
    eventually(lambda: source.dbsize() == 0, WAIT_S, "expired keys")
    eventually(lambda: moving.target.dbsize() == 0, WAIT_S, "expired keys")
    finish(moving)
    assert moving.target.execute_command("SESSION.ADD", SESSION, "first") == [[1], 1, 0, 0]
    with pytest.raises(redis.ResponseError, match="NOSESSION"):
        moving.target.execute_command("SESSION.TOUCH", SESSION, "EPOCH", epoch)
