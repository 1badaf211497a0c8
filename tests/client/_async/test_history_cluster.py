"""History over a cluster, as over one server: each shard is found where its slot is, also while that moves."""

import json
import time
from collections.abc import Callable

import pytest
import redis
from click.testing import CliRunner

from holdmq import (
    AsyncHistoryStore,
    AsyncHoldMQ,
    CommandError,
    HeldError,
    HistoryMessage,
    Message,
    NoStoreError,
    ProducerChunk,
    ReplayStepKind,
    StaleError,
    WrongStoreError,
    core,
    history_commands,
)
from holdmq.cli import main
from tests.module.cluster_support import SlotMove, owner
from tests.support import Cluster, embedded_kinds, eventually

server_kinds = embedded_kinds

SHARDS = 5
TOPICS = [f"s/{number}" for number in range(12)]
WAIT_S = 20.0


@pytest.fixture
def hold(cluster: Cluster, connect_cluster: Callable[..., AsyncHoldMQ]) -> AsyncHoldMQ:
    """A client of the cluster."""
    return connect_cluster(cluster, moving_timeout=WAIT_S)


def moving(cluster: Cluster, shard: int) -> SlotMove:
    """The way of a shard's slot from its node to the next one."""
    slot = history_commands.shard_slot("s", shard)
    source = owner(cluster, slot)
    target = cluster.nodes[(cluster.nodes.index(source) + 1) % len(cluster.nodes)]
    return SlotMove(cluster, source, target, slot)


def move(cluster: Cluster, shard: int) -> None:
    """Moves it, and waits until the nodes agree."""
    way = moving(cluster, shard)
    way.begin()
    assert sum(way.move_all(100)) > 0
    way.end()
    eventually(lambda: owner(cluster, way.slot) is way.target, WAIT_S, "a node that knows of the move")


async def store(hold: AsyncHoldMQ, count: int = 0) -> AsyncHistoryStore:
    """The store `s` with so many messages."""
    await hold.history.create("s", "s/#", shards=SHARDS)
    made = hold.history.store("s")
    await append(made, range(count))
    return made


async def append(to: AsyncHistoryStore, numbers: range) -> None:
    for number in numbers:
        await to.append(TOPICS[number % len(TOPICS)], str(number))


def numbers_of(messages: list[HistoryMessage]) -> list[int]:
    """Their payloads, if each topic has them in order and none comes twice."""
    numbers = [int(message.payload) for message in messages]
    for topic in TOPICS:
        own = [int(message.payload) for message in messages if message.topic == topic]
        assert own == sorted(set(own)), topic
    return sorted(numbers)


async def test_a_store_is_made_changed_listed_and_dropped_on_every_node(cluster: Cluster, hold: AsyncHoldMQ) -> None:
    made = await store(hold)
    await hold.history.create("s", "s/#", "other/#", age=3600, replace_filters=True)
    [policy] = await hold.history.stores()
    assert (set(policy.filters), policy.shards, policy.age) == ({"s/#", "other/#"}, SHARDS, 3600)
    copies = [key for node in cluster.nodes for key in node.client().keys("*_history_store")]
    assert sorted(copies) == [b"{s/%d}_history_store" % shard for shard in range(SHARDS)]
    with pytest.raises(CommandError, match="other/a"):
        await hold.history.create("t", "other/a")
    await made.drop()
    assert await hold.history.stores() == ()
    with pytest.raises(NoStoreError):
        await made.drop()
    with pytest.raises(NoStoreError):
        await made.info()
    with pytest.raises(NoStoreError):
        await made.append("s/1", b"x")


async def test_what_concerns_a_shard_goes_to_its_node(hold: AsyncHoldMQ) -> None:
    made = await store(hold)
    places = [await made.append(topic, topic, producer=ProducerChunk(topic, 1, 0)) for topic in TOPICS]
    assert len({place.shard for place in places}) > 1
    assert [await made.append(t, t, producer=ProducerChunk(t, 1, 0)) for t in TOPICS[:1]] != places[:1]  # not new
    info = await made.info()
    assert (info.messages, [one.shard for one in info.shards]) == (len(TOPICS), list(range(SHARDS)))
    ticks = [Message(topic=topic, payload=b"tick", time_ms=5) for topic in TOPICS]
    imported = await made.import_messages(ticks, producer=ProducerChunk("clock", 1, 1))
    assert sum(one.last - one.first + 1 for one in imported.values()) == len(TOPICS)
    again = await made.import_messages(ticks, producer=ProducerChunk("clock", 1, 1))
    assert {one.new for one in again.values()} == {False}
    for one in (await made.info()).shards:
        rows = [columns["payload"] async for columns in made.ranges(one.shard, 1, one.last, columns=["payload"])]
        assert sum(len(row) for row in rows) == one.last
        assert await made.sequence_at(one.shard, "earliest") == 1
        assert await made.sequence_at(one.shard, "now") == one.last + 1
    assert await made.check() == ()


async def test_a_reader_holds_all_shards_and_is_released_on_all(hold: AsyncHoldMQ) -> None:
    made = await store(hold, 24)
    assert await made.hold("archive") == dict.fromkeys(range(SHARDS), 0)
    last = {one.shard: one.last for one in (await made.info()).shards}
    full = max(last, key=lambda shard: last[shard])
    with pytest.raises(HeldError, match="archive"):
        await made.trim(full, last[full])
    assert await made.hold("archive", {full: last[full]}) == {**dict.fromkeys(range(SHARDS), 0), full: last[full]}
    assert await made.trim(full, last[full]) == last[full] + 1
    await made.release("archive")
    assert [dict(one.holds) for one in (await made.info()).shards] == [{}] * SHARDS


async def test_a_pattern_set_is_switched_to_shard_by_shard(hold: AsyncHoldMQ) -> None:
    made = await store(hold, 24)
    one = (await made.append("s/1", "25")).shard
    text = "holdmq-patterns 1 levels=8\n#\ns/+\n"
    with pytest.raises(StaleError):
        await made.patterns.prepare(3, text)
    with pytest.raises(CommandError, match="line"):
        await made.patterns.prepare(2, "holdmq-patterns 1 levels=8\nnonsense/#/x\n")
    await made.patterns.prepare(2, text, shard=one)
    await made.patterns.commit(2, shard=one)
    with pytest.raises(StaleError):  # of that shard, and no other is prepared then
        await made.patterns.prepare(2, text)
    with pytest.raises(StaleError):
        await made.patterns.commit(2)
    for shard in {*range(SHARDS)} - {one}:
        await made.patterns.prepare(2, text, shard=shard)
    await made.patterns.commit(2)  # those that are left
    with pytest.raises(StaleError):
        await made.patterns.commit(2)
    assert await made.patterns.get() == (2, text)
    await append(made, range(36, 48))
    assert {used.filter: used.messages for used in await made.patterns.stats()} == {"#": 0, "s/+": 12}
    assert (await made.patterns.propose()).messages > 0
    assert await made.check() == ()


async def test_a_replay_of_all_shards_has_one_order_and_one_cursor(hold: AsyncHoldMQ) -> None:
    made = await store(hold, 100)
    everything = [message async for message in made.start_replay()]
    assert numbers_of(everything) == list(range(100))
    assert everything == sorted(everything, key=lambda one: (one.time_us, one.shard))
    got: list[HistoryMessage] = []
    cursor: str | None = None
    while len(got) < len(everything):  # each time another reader
        replay = hold.history.start_replay("s/#", cursor=cursor, page=3)
        for _ in range(13):
            step = await replay.next()
            assert step.cursor == replay.cursor
            got += [step.message] if step.message is not None else []
        cursor = replay.cursor
    assert got == everything
    assert (await hold.history.start_replay("s/#", cursor=cursor).next()).kind is ReplayStepKind.END
    only = [message async for message in hold.history.start_replay("s/3")]
    assert only == [message for message in everything if message.topic == "s/3"]
    part = [message async for message in made.start_replay(shard=only[0].shard)]
    assert part == [message for message in everything if message.shard == only[0].shard]


async def test_a_filter_has_to_be_of_one_store(hold: AsyncHoldMQ) -> None:
    await hold.history.create("a", "a/#", shards=2)
    await hold.history.create("b", "b/#")
    with pytest.raises(NoStoreError, match="no store keeps topics of the filter 'c'"):
        await hold.history.start_replay("c").get()
    with pytest.raises(CommandError, match="2 stores keep topics of the filter '#': one of them has to be named"):
        await hold.history.start_replay("#").get()
    assert await hold.history.store("a").start_replay("#").get() is None


async def test_a_cursor_of_another_store_is_refused(hold: AsyncHoldMQ) -> None:
    for name in ("a", "b"):
        await hold.history.create(name, f"{name}/#", shards=2)
        for number in range(9):
            await hold.history.store(name).append(f"{name}/{number}", str(number))
    replay = hold.history.start_replay("a/#")
    for _ in range(5):
        await replay.get()
    with pytest.raises(WrongStoreError, match="of the store 'a', not of the store 'b'"):
        await hold.history.start_replay("b/#", cursor=replay.cursor).get()
    assert len([message async for message in hold.history.start_replay("a/#", cursor=replay.cursor)]) == 4


async def test_a_cursor_of_an_earlier_release_continues_in_its_store_and_in_no_other(hold: AsyncHoldMQ) -> None:
    for name in ("a", "b"):
        await hold.history.create(name, f"{name}/#", shards=3)
        for number in range(12):
            await hold.history.store(name).append(f"{name}/{number}", str(number))
    replay = hold.history.start_replay("a/#")
    read = [await replay.get() for _ in range(7)]
    assert replay.cursor is not None
    cursor = ",".join(core.Cursor.decode(one)._replace(store=b"").encode().decode() for one in replay.cursor.split(","))
    left = [message async for message in hold.history.start_replay("a/#", cursor=cursor)]
    assert numbers_of([one for one in [*read, *left] if one]) == list(range(12))
    with pytest.raises(WrongStoreError, match=r"written by an earlier release .* store 'b'"):
        await hold.history.start_replay("b/#", cursor=cursor).get()


async def test_moving_shards_costs_a_replay_and_writers_nothing(cluster: Cluster, hold: AsyncHoldMQ) -> None:
    made = await store(hold, 60)
    replay = made.start_replay(page=2)
    got: list[HistoryMessage] = []
    for shard in range(SHARDS):
        while len(got) < 10 * (shard + 1):
            message = await replay.get()
            assert message is not None
            got.append(message)
        move(cluster, shard)
        await append(made, range(60 + 6 * shard, 66 + 6 * shard))
    got += [message async for message in replay]
    assert numbers_of(got) == list(range(60 + 6 * SHARDS))
    assert (await made.info()).messages == 60 + 6 * SHARDS
    assert len(await made.hold("late")) == SHARDS
    assert await made.check() == ()


async def test_a_shard_on_its_way_is_waited_for_but_not_forever(cluster: Cluster, hold: AsyncHoldMQ) -> None:
    made = await store(hold)
    shard = (await made.append("s/1", "1")).shard
    way = moving(cluster, shard)
    way.begin()
    hasty = AsyncHoldMQ(hold.client, moving_timeout=0.1)
    with pytest.raises(redis.exceptions.TryAgainError):
        await hasty.history.store("s").info(shard)
    with pytest.raises(redis.exceptions.TryAgainError):
        await hasty.history.create("s", "s/#", age=60)
    with pytest.raises(redis.exceptions.TryAgainError):
        await hasty.history.store("s").hold("reader")
    assert sum(way.move_all(100)) > 0
    way.end()
    await hasty.history.create("s", "s/#", age=60)
    assert (await made.info()).policy.age == 60
    assert (await made.info(shard)).messages == 1


async def test_following_hears_of_every_node_and_follows_a_shard(cluster: Cluster, hold: AsyncHoldMQ) -> None:
    made = await store(hold, 12)
    got: list[HistoryMessage] = []
    async with hold.history.follow("s/#", page=5) as messages:
        for number in range(12, 48):
            if number in (20, 30):
                move(cluster, number % SHARDS)
            await append(made, range(number, number + 1))
            message = await messages.get(timeout=WAIT_S)
            assert message is not None
            got.append(message)
        while len(got) < 48:
            message = await messages.get(timeout=WAIT_S)
            assert message is not None
            got.append(message)
        assert numbers_of(got) == list(range(48))
        began = time.monotonic()
        for number in range(48, 60):  # one after the other, on all nodes
            await append(made, range(number, number + 1))
            message = await messages.get(timeout=WAIT_S)
            assert message is not None
            assert int(message.payload) == number
        assert time.monotonic() - began < 20  # woken: to look again takes five seconds each time


async def test_what_is_published_is_kept_once_wherever_its_shard_is(cluster: Cluster, hold: AsyncHoldMQ) -> None:
    made = await store(hold)
    await hold.session("c").subscribe("s/#", qos=1)
    for number in range(36):
        if number % 12 == 5:
            move(cluster, number % SHARDS)
        assert await hold.topics.publish(TOPICS[number % 12], str(number).encode(), qos=1) == 1
    assert numbers_of([message async for message in made.start_replay()]) == list(range(36))
    assert len((await hold.session("c").fetch()).entries) == 36


async def test_the_command_line_works_on_all_nodes_on_request(cluster: Cluster) -> None:
    def run(*words: str) -> list[dict[str, object]]:
        done = CliRunner().invoke(main, ["--cluster", "--url", cluster.nodes[1].url, "--json", "history", *words])
        assert done.exit_code == 0, done.output
        return [json.loads(line) for line in done.stdout.splitlines()]

    run("create", "s", "s/#", "--shards", "5", "--age", "7d")
    places = [run("append", "s", topic, topic)[0] for topic in TOPICS]
    assert len({str(place["shard"]) for place in places}) > 1
    (store,) = run("stores")
    assert (store["shards"], store["age"]) == (5, 7 * 86400)
    assert sum(int(str(shard["messages"])) for shard in run("info", "s")) == len(TOPICS)
    first = run("replay", "s/#", "--count", "5", "--cursors")
    others = run("replay", "s/#", "--cursor", str(first[-1]["cursor"]))
    assert sorted(str(row["topic"]) for row in first + others) == sorted(TOPICS)
    assert run("check", "s") == []
    run("drop", "s", "--yes")
    assert run("stores") == []
