"""Retention: whole epochs go by age and size, in the background, and nothing that a reader holds goes unnoticed."""

import time
from collections.abc import Callable
from typing import Any

import redis

from tests.module.history_support import (
    append,
    hold,
    in_order,
    read_range,
    replay,
    replay_all,
    shard_facts,
    store,
    trim,
)
from tests.module.sessions_support import (
    assert_indexes_hold,
    digest,
    error_of,
    names,
    wait_for_replica,
)
from tests.support import Server, eventually

LONG_AGO_US = 1_000_000_000_000_000
HOUR_S = 3600
ATTEMPTS = 5  # to see a removal on its way: it is over in a moment, and the test may not run just then


def append_all(client: redis.Redis, count: int, payload_bytes: int = 100, name: str = "s") -> None:
    """To fifty topics in turn."""
    with client.pipeline(transaction=False) as pipe:
        for number in range(count):
            pipe.execute_command("HISTORY.APPEND", name, f"a/{number % 50}/x", f"{number}".rjust(payload_bytes))
        pipe.execute()


def fill(client: redis.Redis, count: int, *, shards: int = 1, epoch_bytes: int = 2000) -> None:
    """A store with so many messages, a few in each epoch; retention has taken none of them, and has nothing to do."""
    store(client, "s", "a/#", bytes=8 * epoch_bytes * shards, holdbytes=2**40, shards=shards)
    hold(client, "s", "fill")
    append_all(client, count)
    store(client, "s", "a/#", bytes=0)
    client.execute_command("HISTORY.HOLD", "s", "fill", "RELEASE")


def epochs_with_keys(client: redis.Redis, shard: int = 0) -> set[int]:
    """The epochs of which there is a key."""
    parts = [name.split(b"_") for name in names(client, f"{{s/{shard}}}_history_*")]
    return {int(part[2]) for part in parts if part[2].isdigit() and part[-1] != b"patterns"}


def first_of(client: redis.Redis, epoch: int) -> int:
    """The sequence number with which an epoch begins."""
    entries: Any = client.hgetall("{s/0}_history_epochs")
    return int(entries[b"%d" % epoch].split(b" ")[2])


def make_old(client: redis.Redis, epochs: int) -> None:
    """All epochs up to this one begin long ago, for what is known of them."""
    entries: Any = client.hgetall("{s/0}_history_epochs")
    for number in range(1, epochs + 1):
        generation, _, first, before = entries[b"%d" % number].split(b" ")
        old = b" ".join([generation, b"%d" % (LONG_AGO_US + number), first, before])
        client.hset("{s/0}_history_epochs", str(number), old)


def sequences(client: redis.Redis) -> list[int]:
    return [entry.sequence for entry in replay_all(client, "a/#")]


def counter(client: redis.Redis, name: str) -> int:
    return int(client.info("holdmq")[f"holdmq_history_{name}"])


# --- Age and size -----------------------------------------------------------------------------------------------------


def test_epochs_in_which_all_is_past_the_age_leave_no_key(client: redis.Redis) -> None:
    fill(client, 300)
    last = shard_facts(client)["epoch"]
    page = replay(client, "a/#", count=10)
    make_old(client, 5)
    dropped = counter(client, "dropped")
    store(client, "s", "a/#", age=HOUR_S)
    # The fifth epoch may have younger messages at its end, for what is known of it: it stays until the sixth is old.
    eventually(lambda: epochs_with_keys(client) == set(range(5, last + 1)), what="the old epochs are gone")
    assert counter(client, "dropped") - dropped == first_of(client, 5) - 1
    assert set(map(int, client.hgetall("{s/0}_history_epochs"))) == set(range(5, last + 1))
    assert sequences(client)[-1] == 300
    behind = replay(client, "a/#", cursor=page.cursor)
    assert behind.missed == behind.entries[0].sequence - 11


def test_a_store_without_writers_becomes_empty_and_numbers_continue(client: redis.Redis) -> None:
    store(client, "s", "a/#", shards=2, age=1, epoch=1)
    append_all(client, 50)
    last = [shard_facts(client, shard=shard)["last"] for shard in range(2)]
    eventually(lambda: epochs_with_keys(client) | epochs_with_keys(client, 1) == set(), what="all is dropped")
    assert [shard_facts(client, shard=shard)["bytes"] for shard in range(2)] == [0, 0]
    assert replay(client, "a/#").entries == []
    place = append(client, "s", "a/1/x", "after")
    assert place.sequence == last[place.shard] + 1
    assert [entry.message.payload for entry in replay_all(client, "a/#")] == [b"after"]


def test_the_oldest_of_all_shards_go_until_the_size_fits(client: redis.Redis) -> None:
    fill(client, 2000, shards=3)
    entries = replay_all(client, "a/#")
    limit = 60_000
    store(client, "s", "a/#", bytes=limit)
    eventually(lambda: sum(shard_facts(client, shard=shard)["bytes"] for shard in range(3)) <= limit, what="it fits")
    left = replay_all(client, "a/#")
    assert sum(shard_facts(client, shard=shard)["bytes"] for shard in range(3)) > limit - 3 * 3000
    for shard, pairs in in_order(left).items():
        assert pairs == in_order(entries)[shard][-len(pairs) :]
    gone = {entry.time_us for entry in entries} - {entry.time_us for entry in left}
    # Whole epochs: in no shard is anything kept that is older, by more than an epoch, than what another has lost.
    epoch_us = max(gone) - sorted(gone)[-60]
    assert min(entry.time_us for entry in left) > max(gone) - 3 * epoch_us
    eventually(
        lambda: all(
            min(epochs_with_keys(client, shard)) == shard_facts(client, shard=shard)["oldest_epoch"]
            for shard in range(3)
        ),
        what="no key of what was dropped is left",
    )


def test_the_present_epoch_stays_however_large(client: redis.Redis) -> None:
    store(client, "s", "a/#")
    append_all(client, 100)
    store(client, "s", "a/#", bytes=10)
    append_all(client, 1)
    eventually(lambda: sequences(client) == [101], what="all but the current epoch is dropped")


def test_memory_returns(fresh_server: Callable[..., Server]) -> None:
    client = fresh_server().client()
    store(client, "s", "a/#")
    before = client.info("memory")["used_memory"]
    store(client, "s", "a/#", bytes=2**31)
    append_all(client, 20_000, payload_bytes=1000)
    full = client.info("memory")["used_memory"]
    assert full - before > 20_000_000
    store(client, "s", "a/#", bytes=1_000_000)
    append_all(client, 1)
    eventually(lambda: client.info("memory")["used_memory"] - before < (full - before) / 10, what="memory returns")


def test_clients_are_served_while_much_is_removed(client: redis.Redis) -> None:
    most = 0
    for attempt in range(1, ATTEMPTS + 1):
        fill(client, 6000, epoch_bytes=1)
        sizes = [client.dbsize()]
        assert sizes[0] > 20_000
        append(client, "s", "a/1/x", "last")
        store(client, "s", "a/#", bytes=1)
        deadline = time.monotonic() + 30
        while sizes[-1] > 50 and time.monotonic() < deadline:
            sizes.append(client.dbsize())
        assert sizes[-1] <= 50
        assert sequences(client) == [6001 * attempt - 1, 6001 * attempt]
        most = max(most, len(set(sizes)))
        if most > 20:
            break
    assert most > 20  # never much at once


def test_a_replica_drops_nothing_by_itself(fresh_server: Callable[..., Server]) -> None:
    primary = fresh_server(aof=True)
    replica = fresh_server(replica_of=primary)
    client, reader = primary.client(), replica.client()
    fill(client, 300)
    primary.restart(module=False)
    client = primary.client()
    client.hset("{s}_history_store", "bytes", 2000)
    eventually(lambda: reader.hget("{s}_history_store", "bytes") == b"2000", what="the replica has the policy")
    before = digest(reader)
    time.sleep(1.5)  # longer than a round of retention: there is nothing else to wait for
    assert digest(reader) == before
    assert_indexes_hold(reader)


def test_another_primary_continues_with_retention(fresh_server: Callable[..., Server]) -> None:
    primary = fresh_server()
    replica = fresh_server(replica_of=primary)
    client, other = primary.client(), replica.client()
    fill(client, 3000, epoch_bytes=1)
    wait_for_replica(client, other)
    with client.pipeline() as pipe:
        pipe.execute_command("HISTORY.STORE", "s", "FILTER", "a/#", "BYTES", 3000)
        pipe.execute_command("HISTORY.TRIM", "s", 0, 500)
        pipe.execute()
    wait_for_replica(client, other)
    primary.kill()
    other.replicaof("NO", "ONE")
    eventually(lambda: shard_facts(other)["bytes"] <= 3000, what="the store fits")
    oldest = shard_facts(other)["oldest_epoch"]
    assert oldest > 2000
    eventually(lambda: epochs_with_keys(other) == set(range(oldest, 3001)), what="nothing of what was dropped is left")
    assert_indexes_hold(other)


# --- What readers hold ------------------------------------------------------------------------------------------------


def test_what_a_reader_holds_stays_until_it_was_read(client: redis.Redis) -> None:
    fill(client, 300)
    hold(client, "s", "archive", 0, 100)
    store(client, "s", "a/#", bytes=2000, holdbytes=10_000_000)
    eventually(lambda: sequences(client)[0] > 50, what="what is read goes")
    first = sequences(client)[0]
    assert first <= 101
    assert sequences(client) == list(range(first, 301))
    assert hold(client, "s", "archive", 0, 250) == {0: 250}
    eventually(lambda: sequences(client)[0] > 200, what="what is read goes")
    assert sequences(client)[0] <= 251
    assert client.execute_command("HISTORY.HOLD", "s", "archive", "RELEASE") == b"OK"
    eventually(lambda: sequences(client)[0] > 251, what="what nobody holds goes")


def test_a_reader_that_holds_too_much_loses_its_hold_and_learns_it(server: Server, client: redis.Redis) -> None:
    fill(client, 500)
    lost = counter(client, "holds_lost")
    hold(client, "s", "slow", 0, 20)
    hold(client, "s", "archive", 0, 500)
    store(client, "s", "a/#", bytes=4000, holdbytes=20_000)
    eventually(lambda: shard_facts(client)["holds"] == {b"slow": b"lost 20", b"archive": 500}, what="one is lost")
    assert counter(client, "holds_lost") == lost + 1
    assert "the reader slow held back more than HOLDBYTES" in server.log_text()
    eventually(lambda: shard_facts(client)["bytes"] <= 4000, what="what nobody holds goes")
    first = shard_facts(client)["first"]
    for words in ((), (0, 400)):
        error = str(error_of(client, "HISTORY.HOLD", "s", "slow", *words))
        assert error.startswith("HOLDLOST")
        assert f"in shard 0 the messages 21 to {first - 1} are gone" in error
    assert trim(client, "s", 0, first) == first + 1
    client.execute_command("HISTORY.HOLD", "s", "slow", "RELEASE")
    assert hold(client, "s", "slow") == {0: first}


def test_readers_together_hold_back_no_more_than_holdbytes(client: redis.Redis) -> None:
    fill(client, 500, shards=2)
    hold(client, "s", "slow")
    store(client, "s", "a/#", bytes=10_000, holdbytes=30_000)
    eventually(
        lambda: sum(shard_facts(client, shard=shard)["bytes"] for shard in range(2)) <= 40_000,
        what="not more than both is kept",
    )
    assert "HOLDLOST" in str(error_of(client, "HISTORY.HOLD", "s", "slow"))


def test_what_is_past_its_age_but_held_is_shown_only_to_who_asks_for_it(client: redis.Redis) -> None:
    fill(client, 300)
    hold(client, "s", "archive")
    make_old(client, 5)
    store(client, "s", "a/#", age=HOUR_S)
    append_all(client, 5)
    assert replay(client, "a/#").entries[0].sequence > 50
    assert read_range(client, "s", 0, 1, 10).missed == 10
    assert read_range(client, "s", 0, 1, 10, "EXPIRED").columns["sequence"] == list(range(1, 11))
    assert shard_facts(client)["trimmed"] == 0
    hold(client, "s", "archive", 0, 305)
    eventually(lambda: min(epochs_with_keys(client)) == 5, what="what is read goes")
    assert read_range(client, "s", 0, 1, 305, "EXPIRED").missed == shard_facts(client)["trimmed"]
