"""What posting lists lack yet is found, and written once, whatever happens to the server or to keys in between."""

import random
from collections.abc import Callable

import pytest
import redis

from tests.module.history_support import TAIL, append, fill_tail, replay, replay_all, store
from tests.module.sessions_support import assert_indexes_hold, matches, names, publish, wait_for_replica
from tests.support import Server

FILTERS = ("#", "devices/7/#", "devices/+/temperature", "+/7/pressure", "devices/3/temperature", "devices/none/#")

Pair = tuple[bytes, bytes]


class Kept:
    """Everything that was kept in a store of one shard, in order."""

    def __init__(self) -> None:
        self.pairs: list[Pair] = []
        self._chance = random.Random(7)

    def publish(self, client: redis.Redis, count: int) -> None:
        """Publishes so many, to topics of devices."""
        with client.pipeline(transaction=False) as pipe:
            for _ in range(count):
                topic = f"devices/{self._chance.randrange(20)}/{self._chance.choice(('temperature', 'pressure'))}"
                pipe.execute_command("TOPIC.PUBLISH", topic, len(self.pairs))
                self.pairs.append((topic.encode(), b"%d" % len(self.pairs)))
            pipe.execute()

    def assert_found(self, client: redis.Redis) -> None:
        """Each filter finds what a search through everything finds, and numbers have no holes."""
        for asked in FILTERS:
            want = [pair for pair in self.pairs if matches(asked, pair[0].decode())]
            assert [entry.pair for entry in replay_all(client, asked, count=500)] == want, asked
        assert [entry.sequence for entry in replay_all(client, "#")] == list(range(1, len(self.pairs) + 1))


def indexed(client: redis.Redis) -> int:
    """The last message that posting lists have."""
    return int(client.hget("{s/0}_history", "sequence") or 0)


def test_lists_get_many_messages_at_a_time(client: redis.Redis) -> None:
    store(client, "s", "#")
    kept = Kept()
    seen = set()
    for _ in range(7):
        kept.publish(client, TAIL // 2)
        seen.add(indexed(client))
        kept.assert_found(client)
    assert seen == {0, TAIL, 2 * TAIL, 3 * TAIL}


def test_an_epoch_ends_with_all_its_lists(client: redis.Redis) -> None:
    store(client, "s", "#", bytes=8 * 20_000)
    kept = Kept()
    kept.publish(client, 1500)
    assert client.hget("{s/0}_history", "epoch") != b"1"
    assert indexed(client) == int(client.hget("{s/0}_history", "first") or 0) - 1
    kept.assert_found(client)


def test_an_index_costs_at_most_about_five_bytes_for_each_varying_level_and_message(client: redis.Redis) -> None:
    store(client, "s", "d/#", levels=4)
    text = "holdmq-patterns 1 levels=4\n#\nd/+/t\n"
    client.execute_command("HISTORY.PATTERNS", "PREPARE", "s", 2, text)
    client.execute_command("HISTORY.PATTERNS", "COMMIT", "s", 2)
    chance, count = random.Random(1), 40 * TAIL
    with client.pipeline(transaction=False) as pipe:
        for _ in range(count):
            pipe.execute_command("HISTORY.APPEND", "s", f"d/{chance.randrange(5000)}/t", "m")
        pipe.execute()
    lists = names(client, "{s/0}_history_2_1_0_*")
    assert len(lists) > 40
    used = sum(int(client.memory_usage(name) or 0) for name in lists)
    assert used <= 5.5 * indexed(client), "5.1 here, where the lists of the last page have just begun: the worst place"


def test_a_rare_topic_costs_a_reader_of_the_tail_no_visits(client: redis.Redis) -> None:
    store(client, "s", "#")
    append(client, "s", "rare", "m")
    fill_tail(client, "s", "common", TAIL - 1)
    page = replay(client, "rare")
    assert (len(page.entries), page.visited, page.end, indexed(client)) == (1, 1, True, 0)


# --- What happens in between ------------------------------------------------------------------------------------------

MIDDLES = (0, TAIL - 1, TAIL + 300)


@pytest.mark.parametrize("count", MIDDLES)
def test_a_killed_server_continues_with_every_message_and_entry(
    fresh_server: Callable[..., Server], count: int
) -> None:
    server = fresh_server(aof=True)
    client = server.client()
    store(client, "s", "#")
    kept = Kept()
    kept.publish(client, count)
    server.kill()
    server.start()
    client = server.client()
    kept.assert_found(client)
    kept.publish(client, TAIL + 100)
    kept.assert_found(client)
    assert_indexes_hold(client)


def test_a_promoted_replica_continues_with_every_message_and_entry(fresh_server: Callable[..., Server]) -> None:
    primary = fresh_server()
    replica = fresh_server(replica_of=primary)
    client, other = primary.client(), replica.client()
    wait_for_replica(client, other)
    store(client, "s", "#")
    kept = Kept()
    for count in (10, TAIL, 50):
        kept.publish(client, count)
        wait_for_replica(client, other)
        kept.assert_found(other)
    primary.kill()
    other.execute_command("REPLICAOF", "NO", "ONE")
    kept.publish(other, TAIL)
    kept.assert_found(other)
    assert_indexes_hold(other)


def test_a_primary_that_was_a_replica_for_a_while_knows_what_came_then(fresh_server: Callable[..., Server]) -> None:
    first = fresh_server()
    second = fresh_server(replica_of=first)
    client, other = first.client(), second.client()
    store(client, "s", "#")
    kept = Kept()
    kept.publish(client, 100)
    wait_for_replica(client, other)
    other.execute_command("REPLICAOF", "NO", "ONE")
    client.execute_command("REPLICAOF", "127.0.0.1", second.port)
    kept.publish(other, 100)
    wait_for_replica(other, client)
    client.execute_command("REPLICAOF", "NO", "ONE")
    kept.publish(client, 100)
    kept.assert_found(client)
    assert_indexes_hold(client)


def _restore_all(client: redis.Redis) -> None:
    values = {name: client.dump(name) or b"" for name in client.keys("*")}
    client.flushall()
    for name, value in values.items():
        client.restore(name, 0, value)


def _swap_twice(client: redis.Redis) -> None:
    client.swapdb(0, 1)
    client.swapdb(0, 1)


def _rename(client: redis.Redis) -> None:
    client.rename("{s/0}_history_1_0", "elsewhere")
    client.rename("elsewhere", "{s/0}_history_1_0")


CHANGES: dict[str, Callable[[redis.Redis], object]] = {
    "DEBUG RELOAD": lambda c: c.execute_command("DEBUG", "RELOAD"),
    "DUMP and RESTORE": _restore_all,
    "SWAPDB": _swap_twice,
    "RENAME": _rename,
    "HSET of the state": lambda c: c.hset("{s/0}_history", "oldest", 1),
    "SET of the same pattern set": lambda c: c.set(
        "{s/0}_history_1_patterns", c.get("{s/0}_history_1_patterns") or b""
    ),
    "HISTORY.STORE": lambda c: store(c, "s", "#", age=3600),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_others_do_to_the_keys_in_between_loses_nothing(client: redis.Redis, change: str) -> None:
    store(client, "s", "#")
    kept = Kept()
    for count in (700, TAIL, 100):
        kept.publish(client, count)
        CHANGES[change](client)
        kept.assert_found(client)
    kept.publish(client, TAIL)
    kept.assert_found(client)


def test_a_database_that_is_emptied_starts_again(client: redis.Redis) -> None:
    for command in ("FLUSHALL", "FLUSHDB"):
        store(client, "s", "#")
        kept = Kept()
        kept.publish(client, 300)
        kept.assert_found(client)
        client.execute_command(command)


def test_swapped_databases_keep_their_own(client: redis.Redis) -> None:
    store(client, "s", "#")
    kept, others = Kept(), Kept()
    kept.publish(client, 300)
    client.swapdb(0, 1)
    store(client, "s", "#")
    others.publish(client, 20)
    client.swapdb(0, 1)
    kept.publish(client, 10)
    kept.assert_found(client)
    client.swapdb(0, 1)
    others.assert_found(client)
    client.swapdb(0, 1)


def test_messages_that_others_took_from_the_end_of_a_log_leave_the_rest_complete(client: redis.Redis) -> None:
    store(client, "s", "a/#")
    places = [append(client, "s", f"a/{number % 3}", str(number)) for number in range(30)]
    client.xdel("{s/0}_history_1_0", f"12-{places[11].time_us}")
    append(client, "s", "a/0", "30")
    want = [number for number in range(0, 31, 3) if number != 11]
    assert [int(entry.message.payload) for entry in replay_all(client, "a/0")] == want
    fill_tail(client, "s", "a/1")
    append(client, "s", "a/1", "last")
    assert [int(entry.message.payload) for entry in replay_all(client, "a/0")] == want


@pytest.mark.parametrize("write", ["SET", "DEL", "HSET"])
def test_a_policy_that_others_changed_is_seen(client: redis.Redis, write: str) -> None:
    store(client, "s", "a")
    publish(client, "a", "m")
    match write:
        case "SET":
            client.set("{s}_history_store", "no policy")
        case "DEL":
            client.delete("{s}_history_store")
        case _:
            client.hset("{s}_history_store", "levels", "many")
    before = sorted(names(client))
    publish(client, "a", "m")
    assert (sorted(names(client)), client.xlen("{s/0}_history_1_0")) == (before, 1)


def test_a_transaction_that_fills_the_tail_is_one_step(client: redis.Redis) -> None:
    store(client, "s", "#")
    kept = Kept()
    kept.publish(client, TAIL - 2)
    with client.pipeline(transaction=True) as pipe:
        for number in range(5):
            pipe.execute_command("TOPIC.PUBLISH", "devices/7/pressure", number)
            kept.pairs.append((b"devices/7/pressure", b"%d" % number))
        pipe.execute()
    assert indexed(client) == TAIL
    kept.assert_found(client)


def test_a_server_without_memory_refuses_a_flush_as_a_whole(client: redis.Redis) -> None:
    store(client, "s", "a")
    fill_tail(client, "s", "a")
    client.config_set("maxmemory", 1)
    try:
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            append(client, "s", "a", "m")
        assert indexed(client) == 0
    finally:
        client.config_set("maxmemory", 0)
    append(client, "s", "a", "m")
    assert (indexed(client), len(replay_all(client, "a"))) == (TAIL, TAIL + 1)
