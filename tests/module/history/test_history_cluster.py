"""History in a cluster: each shard lies in one slot; a node knows the stores of which it has a shard, and redirects."""

from collections.abc import Iterator

import pytest
import redis
from redis.exceptions import MovedError, ResponseError, TryAgainError

from tests.module.cluster_support import SlotMove
from tests.module.history_cluster_support import (
    SEED,
    WAIT_S,
    Store,
    check,
    commands_of,
    settle,
    shard_of,
    slot_of,
    stores,
)
from tests.module.history_support import TAIL, fill_tail, hold, in_order, named_map
from tests.support import Cluster, ServerKind, eventually
from tests.support.server import SLOTS

SHARDS = 6
EVERY = ("SLOTS", 1, 0, SLOTS - 1)


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Iterator[Cluster]:
    """Three nodes without any data; indexes and keys hold at the end."""
    settle(shared_cluster)
    yield shared_cluster
    check(shared_cluster)
    for node in shared_cluster.nodes:
        node.client().flushall()
        assert stores(node) == {}
        node.check()


@pytest.fixture
def store(cluster: Cluster) -> Store:
    """A store over the three nodes."""
    made = Store(cluster, "s", SHARDS)
    made.create("t/#")
    assert len({made.node(shard).port for shard in range(SHARDS)}) > 1
    return made


def moved(error: MovedError) -> int:
    """The port to which an error sends a client."""
    return int(error.port)


# --- Policies ---------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("store")
def test_each_shard_has_a_copy_of_the_policy_in_its_slot(cluster: Cluster) -> None:
    for node in cluster.nodes:
        here = [shard for shard in range(SHARDS) if slot_of("s", shard) in node.slots()]
        keys = sorted(b"{s/%d}_history_store" % shard for shard in here)
        assert sorted(node.client().keys("*")) == keys
        known = stores(node)[b"s"]
        assert (known["here"], known["seed"], known["shards"]) == (here, SEED.encode(), SHARDS)
        info = named_map(node.client().execute_command("HISTORY.INFO", "s"))
        assert [one["shard"] for one in info["shard"]] == here
        assert info["seed"] == SEED.encode()


def test_the_newest_settings_win_in_whatever_order_they_come(cluster: Cluster) -> None:
    one = ("HISTORY.STORE", "s", "FILTER", "a/#", "SHARDS", 4, "SEED", SEED)
    calls = [(*one, "AGE", 100, "CHANGED", 1000), (*one, "AGE", 200, "CHANGED", 2000)]
    for number, node in enumerate(cluster.nodes):
        replies = [node.client().execute_command(*call) for call in (calls if number % 2 == 0 else calls[::-1])]
        assert replies[0] == replies[1]
    assert {stores(node)[b"s"]["age"] for node in cluster.nodes if b"s" in stores(node)} == {200}


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("FILTER", "x", "SHARDS", 2), "SEED is missing"),
        (("FILTER", "x", "SEED", SEED), "SHARDS is missing"),
        (("FILTER", "x", "SHARDS", 2, "SEED", "1234"), "SEED is '1234'; expected 32 hexadecimal digits"),
        (("FILTER", "x", "SHARDS", 2, "SEED", SEED, "CHANGED", 0), "CHANGED is '0'"),
    ],
)
def test_a_wrong_policy_changes_nothing(cluster: Cluster, words: tuple[str | int, ...], error: str) -> None:
    for node in cluster.nodes:
        with pytest.raises(ResponseError, match=error):
            node.client().execute_command("HISTORY.STORE", "s", *words)
        assert node.client().dbsize() == 0


def test_a_store_has_one_seed(store: Store) -> None:
    other = SEED[::-1]
    with pytest.raises(ResponseError, match="SEED differs from that of the existing store 's'"):
        store.node(0).client().execute_command("HISTORY.STORE", "s", "FILTER", "t/#", "SEED", other)
    store.create("t/#", "u/#", age=50)
    assert stores(store.node(0))[b"s"]["filters"] == [b"t/#", b"u/#"]


def test_a_store_that_is_removed_leaves_nothing_anywhere(cluster: Cluster, store: Store) -> None:
    for shard in range(SHARDS):
        store.append(store.topics(shard)[0], "m")
    for node in cluster.nodes:
        assert node.client().execute_command("HISTORY.UNSTORE", "s") == b"OK"
        assert node.client().dbsize() == 0
        with pytest.raises(ResponseError, match="NOSTORE"):
            node.client().execute_command("HISTORY.UNSTORE", "s")


# --- Commands ---------------------------------------------------------------------------------------------------------


def test_a_command_about_a_shard_is_sent_to_the_node_that_has_it(cluster: Cluster, store: Store) -> None:
    single = Store(cluster, "single", 1)  # most nodes know nothing of it
    single.create("one/#")
    for name, topic, of in (("s", store.topics(0)[0], store), ("single", "one/1", single)):
        for command in commands_of(name, 0, topic):
            asked = of.elsewhere(0)
            with pytest.raises(MovedError) as error:
                asked.client().execute_command(*command)
            assert (error.value.slot_id, moved(error.value)) == (slot_of(name, 0), of.node(0).port)
    with pytest.raises(ResponseError, match="NOSTORE"):  # which shard it is follows from the store alone
        single.elsewhere(0).client().execute_command("HISTORY.APPEND", "single", "one/1", "m")
    with pytest.raises(ResponseError, match=r"SHARD is 1; the topic '.*' belongs to shard 0"):
        store.node(0).client().execute_command("HISTORY.APPEND", "s", store.topics(0)[0], "m", "SHARD", 1)
    for command in commands_of("s", 0, store.topics(0)[0])[:-3]:
        store.node(0).client().execute_command(*command)
    with pytest.raises(ResponseError, match="NOSTORE"):
        Store(cluster, "none", 1).node(0).client().execute_command("HISTORY.RANGE", "none", 0, 1, 1)


def test_a_replay_reads_one_shard(store: Store) -> None:
    kept = {store.append(f"t/{number}", number): number for number in range(50)}
    with pytest.raises(ResponseError, match="SHARD is missing; expected, in a cluster, one shard of store 's'"):
        store.node(0).client().execute_command("HISTORY.REPLAY", "t/#")
    for shard in range(SHARDS):
        entries = store.read(shard, COUNT=7)
        assert [entry.sequence for entry in entries] == list(range(1, len(entries) + 1))
        in_order(entries)
        mine = {place.sequence: number for place, number in kept.items() if place.shard == shard}
        assert {entry.sequence: int(entry.message.payload) for entry in entries} == mine


def test_a_publish_is_kept_once_by_the_node_of_its_shard(cluster: Cluster, store: Store) -> None:
    topic = store.topics(0)[0]
    for node in cluster.nodes:
        node.client().execute_command("TOPIC.PUBLISH", topic, "all", "QOS", 1, *EVERY)
    assert [entry.message.payload for entry in store.read(0)] == [b"all"]
    only = slot_of("s", 0)
    beside = (only + 1) % SLOTS
    store.node(0).client().execute_command("TOPIC.PUBLISH", topic, "beside", "SLOTS", 1, beside, beside)
    store.node(0).client().execute_command("TOPIC.PUBLISH", topic, "own", "SLOTS", 1, only, only)
    store.node(0).client().execute_command("TOPIC.PUBLISH", topic, "plain")
    with pytest.raises(ResponseError, match=f"the history of '{topic}' belongs to slot {only}"):
        store.elsewhere(0).client().execute_command("TOPIC.PUBLISH", topic, "lost")
    assert [entry.message.payload for entry in store.read(0)] == [b"all", b"own", b"plain"]
    assert sum(store.facts(shard)["last"] for shard in range(SHARDS)) == 3


def test_a_reader_holds_and_trims_what_is_on_each_node(cluster: Cluster, store: Store) -> None:
    for shard in range(SHARDS):
        for topic in store.topics(shard, 3):
            store.append(topic, "m")
    held: dict[int, int] = {}
    for node in cluster.nodes:
        held |= hold(node.client(), "s", "r")
    assert held == dict.fromkeys(range(SHARDS), 0)
    with pytest.raises(ResponseError, match="HELD"):
        store.node(1).client().execute_command("HISTORY.TRIM", "s", 1, 3)
    store.node(1).client().execute_command("HISTORY.HOLD", "s", "r", 1, 3)
    assert store.node(1).client().execute_command("HISTORY.TRIM", "s", 1, 3) == 4
    for node in cluster.nodes:
        assert node.client().execute_command("HISTORY.HOLD", "s", "r", "RELEASE") == b"OK"
    assert all(store.facts(shard)["holds"] == {} for shard in range(SHARDS))


def test_a_shard_has_its_part_of_the_bytes_of_its_store(cluster: Cluster) -> None:
    store = Store(cluster, "s", 4)
    store.create("t/#", bytes=40_000)
    topic = store.topics(0)[0]
    client = store.node(0).client()
    for _ in range(400):
        client.execute_command("HISTORY.APPEND", "s", topic, "x" * 100)
    eventually(lambda: store.facts(0)["bytes"] <= 10_000, WAIT_S, "retention of a shard's part")
    assert store.facts(0)["last"] - store.facts(0)["first"] > 40


def test_generations_switch_shard_by_shard(store: Store) -> None:
    text = "holdmq-patterns 1 levels=8\n#\nt/+\n"
    with pytest.raises(ResponseError, match="SHARDS is not accepted in a cluster"):
        store.node(0).client().execute_command("HISTORY.PATTERNS", "PREPARE", "s", 2, text, "SHARDS", 9)
    for shard in (0, 1):
        client = store.node(shard).client()
        assert client.execute_command("HISTORY.PATTERNS", "PREPARE", "s", 2, text, "SHARD", shard) == b"OK"
        assert client.execute_command("HISTORY.PATTERNS", "COMMIT", "s", 2, "SHARD", shard) == b"OK"
    topic = store.topics(0)[0]
    assert store.append(topic, "m").sequence == 1
    assert [store.facts(shard)["generation"] for shard in range(3)] == [2, 2, 1]
    assert [entry.message.topic for entry in store.read(0, "t/+")] == [topic.encode()]


def test_a_node_learns_from_the_shards_that_it_has(cluster: Cluster) -> None:
    store = Store(cluster, "s", 2)
    store.create("t/#", learn=1)
    client = store.node(0).client()
    with client.pipeline(transaction=False) as pipe:
        for topic in store.topics(0, 1500):
            pipe.execute_command("HISTORY.APPEND", "s", topic, "m")
        pipe.execute()
    eventually(lambda: store.facts(0)["generation"] == 2, WAIT_S, "a learned pattern set")
    _generation, text = client.execute_command("HISTORY.PATTERNS", "GET", "s", "SHARD", 0)
    assert b"\nt/+" in text


def test_sessions_do_not_read_history_in_a_cluster(cluster: Cluster, store: Store) -> None:
    client = cluster.node_of("{c}").client()
    with pytest.raises(ResponseError, match="the filter 't/#' replays history, which a cluster does not support"):
        client.execute_command("SESSION.SUBSCRIBE", "{c}", "t/#", "1@earliest")
    assert client.execute_command("SESSION.REPLAY", "{c}")[:4] == [0, 0, 0, 0]
    cursor = store.node(0).client().execute_command("HISTORY.REPLAY", "#", "STORE", "s", "SHARD", 0)[1]
    client.hset("{c}_replays", "t/#", b"replay s " + cursor)  # as it comes with a session from elsewhere
    with pytest.raises(
        ResponseError,
        match=r"1 subscriptions of the session '{c}' replay history, which a cluster does not support",
    ):
        client.execute_command("SESSION.REPLAY", "{c}")


# --- Slots that move --------------------------------------------------------------------------------------------------


def move_of(store: Store, shard: int) -> SlotMove:
    """A shard on its way to another node."""
    return SlotMove(store.cluster, store.node(shard), store.elsewhere(shard), slot_of(store.name, shard))


def test_nothing_touches_a_shard_on_its_way_and_it_continues_where_it_was(cluster: Cluster, store: Store) -> None:
    topic = store.topics(0)[0]
    fill_tail(store.node(0).client(), "s", topic, TAIL + 100)
    move = move_of(store, 0)
    move.begin()
    moving = move.move_all(3)
    for _ in range(2):
        before = [sorted(node.client().keys("{s/0}*")) for node in cluster.nodes]
        for node in (move.source, move.target):
            for command in [*commands_of("s", 0, topic), ("HISTORY.UNSTORE", "s"), ("HISTORY.HOLD", "s", "r")]:
                with pytest.raises(TryAgainError, match=f"slot {move.slot} of store 's', shard 0, is moving"):
                    node.client().execute_command(*command)
            assert 0 not in stores(node)[b"s"]["here"]
        publish = ("TOPIC.PUBLISH", topic, "p", "SLOTS", 1, move.slot, move.slot)
        assert [node.client().execute_command(*publish) for node in (move.source, move.target)] == [
            [0, [[move.slot, move.slot, b""]]]
        ] * 2
        with pytest.raises(TryAgainError):
            move.source.client().execute_command("TOPIC.PUBLISH", topic, "p")
        assert [sorted(node.client().keys("{s/0}*")) for node in cluster.nodes] == before
        next(moving)
    for _count in moving:
        pass
    move.end()
    settle(cluster)
    assert store.node(0) is move.target
    assert store.append(topic, "next")[:2] == (0, TAIL + 101)
    with pytest.raises(MovedError):
        move.source.client().execute_command("HISTORY.APPEND", "s", topic, "m")
    entries = store.read(0)
    assert [entry.message.payload for entry in entries][-1] == b"next"
    assert [entry.sequence for entry in entries] == list(range(1, TAIL + 102))
    in_order(entries)


def test_a_shard_that_was_on_its_way_when_its_store_was_made_gets_the_policy_with_its_first_message(
    cluster: Cluster,
) -> None:
    store = Store(cluster, "s", SHARDS)
    move = move_of(store, 0)
    move.begin()
    assert store.write("t/#") == list(range(1, SHARDS))
    move.end()
    settle(cluster)
    client = move.target.client()
    first, second = stores(move.target)[b"s"]["here"][:2]
    assert first == 0
    assert not client.exists("{s/0}_history_store")
    assert store.append(store.topics(0)[0], "m").sequence == 1
    assert client.hgetall("{s/0}_history_store") == client.hgetall(f"{{s/{second}}}_history_store")


def test_a_node_that_got_its_first_shard_knows_the_store(cluster: Cluster) -> None:
    single = Store(cluster, "single", 1)
    single.create("one/#")
    single.append("one/1", "first")
    move = move_of(single, 0)
    assert stores(move.target) == {}
    move.begin()
    for _count in move.move_all(1):
        pass
    move.end()
    settle(cluster)
    assert stores(move.source) == {}
    assert stores(move.target)[b"single"]["here"] == [0]
    assert single.append("one/1", "second").sequence == 2
    assert [entry.message.payload for entry in single.read(0)] == [b"first", b"second"]


def test_a_slot_that_is_moved_as_a_whole_takes_its_shard_along(
    server_kind: ServerKind, cluster: Cluster, store: Store
) -> None:
    if server_kind.family != "valkey" or server_kind.version < (9, 0):
        with pytest.raises(redis.ResponseError, match=r"(?i)unknown subcommand"):
            store.node(0).client().execute_command("CLUSTER", "MIGRATESLOTS")
        return
    topic = store.topics(0)[0]
    fill_tail(store.node(0).client(), "s", topic, 50)
    source, target = store.node(0), store.elsewhere(0)
    slot = slot_of("s", 0)
    target_id = target.client().execute_command("CLUSTER", "MYID")
    source.client().execute_command("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", target_id)
    kept = 50
    while slot not in target.slots():
        try:
            source.client().execute_command("HISTORY.APPEND", "s", topic, kept)
            kept += 1
        except (MovedError, TryAgainError, redis.exceptions.ClusterDownError):
            break
    eventually(lambda: slot in target.slots(), WAIT_S, "the slot on its new node")
    settle(cluster)
    assert store.append(topic, kept).sequence == kept + 1
    assert [int(entry.message.payload) for entry in store.read(0)] == list(range(kept + 1))
    eventually(lambda: source.client().keys("{s/0}*") == [], WAIT_S, "a source without the shard")
    assert shard_of(topic, SHARDS) == 0
