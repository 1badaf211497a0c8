"""HISTORY.TRIM and HISTORY.HOLD: a reader gives away what it has read, and nobody takes what another has not."""

from collections.abc import Callable

import pytest
import redis

from tests.module.history_support import append, hold, replay, replay_all, shard_facts, store, trim
from tests.module.sessions_support import (
    assert_indexes_hold,
    assert_same_keys,
    digest,
    error_of,
    names,
    snapshot,
    unchanged,
    wait_for_replica,
)
from tests.support import Server, eventually


def fill(client: redis.Redis, count: int, *, epoch_bytes: int = 2000) -> None:
    """A store of one shard with messages 1 to count, a few in each epoch; retention takes none of them."""
    store(client, "s", "a/#", bytes=8 * epoch_bytes, holdbytes=2**40)
    hold(client, "s", "fill")
    append_all(client, count)
    store(client, "s", "a/#", bytes=0)
    client.execute_command("HISTORY.HOLD", "s", "fill", "RELEASE")


def append_all(client: redis.Redis, count: int) -> None:
    with client.pipeline(transaction=False) as pipe:
        for number in range(count):
            pipe.execute_command("HISTORY.APPEND", "s", f"a/{number % 50}/x", f"{number}".rjust(100))
        pipe.execute()


def sequences(client: redis.Redis) -> list[int]:
    return [entry.sequence for entry in replay_all(client, "a/#")]


def epochs_with_keys(client: redis.Redis) -> set[int]:
    """The epochs of which there is a key."""
    parts = [name.split(b"_") for name in names(client, "{s/0}_history_*")]
    return {int(part[2]) for part in parts if part[2].isdigit() and part[-1] != b"patterns"}


# --- Trimming ---------------------------------------------------------------------------------------------------------


def test_what_is_trimmed_is_gone_at_once_and_whole_epochs_leave_no_key(client: redis.Redis) -> None:
    fill(client, 200)
    first_epochs = shard_facts(client)["epoch"]
    assert first_epochs > 4
    page = replay(client, "a/#", count=10)
    assert trim(client, "s", 0, 150) == 151
    assert sequences(client) == list(range(151, 201))
    behind = replay(client, "a/#", cursor=page.cursor)
    assert (behind.missed, behind.entries[0].sequence) == (140, 151)
    facts = shard_facts(client)
    assert (facts["first"], facts["last"], facts["trimmed"]) == (151, 200, 150)
    assert 1 < facts["oldest_epoch"] <= facts["epoch"]
    assert epochs_with_keys(client) == set(range(facts["oldest_epoch"], facts["epoch"] + 1))
    assert set(map(int, client.hgetall("{s/0}_history_epochs"))) == epochs_with_keys(client)


@pytest.mark.parametrize("beyond", [0, 1, 2**62])
def test_trimming_everything_leaves_an_empty_epoch_and_numbers_continue(client: redis.Redis, beyond: int) -> None:
    fill(client, 50)
    before = replay_all(client, "a/#")
    assert trim(client, "s", 0, 50 + beyond) == 51
    facts = shard_facts(client)
    assert (facts["first"], facts["last"], facts["bytes"]) == (51, 50, 0)
    assert epochs_with_keys(client) == set()
    assert replay(client, "a/#").entries == []
    with unchanged(client):
        assert trim(client, "s", 0, 50) == 51
        assert trim(client, "s", 0, 7) == 51
    place = append(client, "s", "a/1", "next")
    assert (place.sequence, place.new) == (51, 1)
    assert place.time_us > before[-1].time_us
    assert sequences(client) == [51]
    assert trim(client, "s", 0, 51) == 52


def test_trimming_an_empty_shard_is_nothing(client: redis.Redis) -> None:
    store(client, "s", "a/#", shards=2)
    with unchanged(client):
        assert trim(client, "s", 0, 10) == 1
        assert trim(client, "s", 1, 0) == 1


def test_an_epoch_that_is_cut_hides_what_is_trimmed(client: redis.Redis) -> None:
    store(client, "s", "a/#")
    append_all(client, 20)
    assert trim(client, "s", 0, 5) == 6
    assert sequences(client) == list(range(6, 21))
    assert replay(client, "a/#", seq=2).missed == 4
    assert replay(client, "a/#", **{"from": 0}).entries[0].sequence == 6
    assert client.execute_command("HISTORY.SEQ", "s", 0, 0) == 6
    assert client.execute_command("HISTORY.RANGE", "s", 0, 1, 7, "COLUMNS", 1, "sequence") == [8, 2, 5, 2, [[6, 7]]]


def test_a_large_epoch_goes_in_the_background_and_leaves_nothing(client: redis.Redis) -> None:
    store(client, "s", "a/#", levels=8)
    with client.pipeline(transaction=False) as pipe:
        for number in range(12_000):
            words = "/".join(str(number * 7919 * odd % 9973) for odd in range(1, 8))
            pipe.execute_command("HISTORY.APPEND", "s", f"a/{words}", "m")
        pipe.execute()
    with client.pipeline() as pipe:  # one step: the background cannot come between
        pipe.execute_command("HISTORY.TRIM", "s", 0, 12_000)
        pipe.execute_command("KEYS", "{s/0}_history_1_0*")
        first, left = pipe.execute()
    assert first == 12_001
    assert b"{s/0}_history_1_0" in left
    assert replay(client, "a/#").entries == []
    append(client, "s", "a/1", "after")
    eventually(lambda: epochs_with_keys(client) == {2}, what="the keys of the first epoch are gone")
    assert sequences(client) == [12_001]


def test_a_log_of_which_entries_were_deleted_by_hand_leaves_nothing(client: redis.Redis) -> None:
    store(client, "s", "a/#")
    append_all(client, 3000)
    client.xtrim("{s/0}_history_1_0", 10)
    trim(client, "s", 0, 3000)
    eventually(lambda: epochs_with_keys(client) == set(), what="the keys of the first epoch are gone")


# --- Holding ----------------------------------------------------------------------------------------------------------


def test_a_hold_begins_at_what_is_trimmed_and_moves_forward(client: redis.Redis) -> None:
    store(client, "s", "a/#", shards=3)
    append_all(client, 50)
    facts = [shard_facts(client, shard=shard) for shard in range(3)]
    trim(client, "s", 1, 3)
    assert hold(client, "s", "archive") == {0: 0, 1: 3, 2: 0}
    with unchanged(client):
        assert hold(client, "s", "archive") == {0: 0, 1: 3, 2: 0}
    last = facts[0]["last"]
    assert hold(client, "s", "archive", 0, last, 2, 1) == {0: last, 1: 3, 2: 1}
    assert client.hgetall("{s/2}_history_holds") == {b"archive": b"1"}
    assert shard_facts(client, shard=2)["holds"] == {b"archive": 1}
    assert hold(client, "s", "other", 1, 5) == {1: 5}
    assert hold(client, "s", "other") == {0: 0, 1: 5, 2: 0}


def test_nobody_trims_what_another_holds(client: redis.Redis) -> None:
    fill(client, 50)
    hold(client, "s", "archive", 0, 20)
    hold(client, "s", "second", 0, 30)
    with unchanged(client):
        assert "HELD the reader 'archive' has not yet read the messages after 20" in str(
            error_of(client, "HISTORY.TRIM", "s", 0, 21)
        )
    assert trim(client, "s", 0, 20) == 21
    hold(client, "s", "archive", 0, 50)
    assert "HELD the reader 'second'" in str(error_of(client, "HISTORY.TRIM", "s", 0, 50))
    assert client.execute_command("HISTORY.HOLD", "s", "second", "RELEASE") == b"OK"
    assert client.execute_command("HISTORY.HOLD", "s", "second", "RELEASE") == b"OK"
    assert trim(client, "s", 0, 50) == 51
    assert client.hgetall("{s/0}_history_holds") == {b"archive": b"50"}


def test_a_watermark_goes_back_only_where_numbers_were_lost(client: redis.Redis) -> None:
    store(client, "s", "a/#")
    append_all(client, 10)
    hold(client, "s", "r", 0, 10)
    assert "never moves back" in str(error_of(client, "HISTORY.HOLD", "s", "r", 0, 9))
    client.hset("{s/0}_history_holds", "r", 15)  # as if the primary had been lost with the numbers behind 10
    append(client, "s", "a/1", "again")
    assert hold(client, "s", "r", 0, 11) == {0: 11}


@pytest.mark.parametrize(
    ("command", "error"),
    [
        (("HISTORY.TRIM", "x", 0, 1), "there is no store 'x'"),
        (("HISTORY.TRIM", "s", 2, 1), "the shard is '2'"),
        (("HISTORY.TRIM", "s", 0, -1), "the sequence number is '-1'"),
        (("HISTORY.HOLD", "x", "r"), "there is no store 'x'"),
        (("HISTORY.HOLD", "s", ""), "the reader has a name of 0 bytes"),
        (("HISTORY.HOLD", "s", "r" * 257), "expected 1 to 256"),
        (("HISTORY.HOLD", "s", "r", 2, 1), "the shard is '2'"),
        (("HISTORY.HOLD", "s", "r", 0), "the sequence number is missing"),
        (("HISTORY.HOLD", "s", "r", 0, 11), "expected at most 10, the last one"),
        (("HISTORY.HOLD", "s", "r", 0, 1, 0, 2), "shard 0 is given twice"),
        (("HISTORY.HOLD", "s", "r", 1, 0, 0, 11), "at most 10"),
        (("HISTORY.HOLD", "s", "r", "RELEASE", 1), "unexpected argument '1'"),
        (("HISTORY.HOLD", "s", "full", 0, 1), "FULL too many readers that hold messages of shard 0 (maximum 64)"),
        (("HISTORY.STORE", "s", "FILTER", "a/#", "HOLDBYTES", -1), "HOLDBYTES is '-1'"),
    ],
)
def test_bad_input_is_named_and_changes_nothing(
    client: redis.Redis, command: tuple[str | int, ...], error: str
) -> None:
    store(client, "s", "a/#", shards=2)
    topic = next(f"a/{number}" for number in range(100) if append(client, "s", f"a/{number}", "m").shard == 0)
    while append(client, "s", topic, "m").sequence < 10:
        pass
    client.hset("{s/0}_history_holds", mapping={f"r{number}": 0 for number in range(63)})
    hold(client, "s", "r", 0, 0)
    with unchanged(client):
        assert error in str(error_of(client, *command))


@pytest.mark.parametrize("suffix", ["", "_epochs", "_holds"])
def test_a_key_of_another_type_refuses_and_changes_nothing(client: redis.Redis, suffix: str) -> None:
    fill(client, 30)
    client.delete("{s/0}_history" + suffix)
    client.set("{s/0}_history" + suffix, "x")
    with unchanged(client):
        assert "WRONGTYPE" in str(error_of(client, "HISTORY.TRIM", "s", 0, 30))


def test_a_user_without_the_keys_neither_holds_nor_trims(server: Server, client: redis.Redis) -> None:
    store(client, "s", "a/#")
    append_all(client, 3)
    client.acl_setuser("u", enabled=True, nopass=True, commands=["+@all"], keys=["other*"], channels=["a/#"])
    with server.client(username="u", password="x") as user, unchanged(client):  # noqa: S106 (any)
        assert "may not" in str(error_of(user, "HISTORY.TRIM", "s", 0, 1))
        assert "may not" in str(error_of(user, "HISTORY.HOLD", "s", "r"))


# --- Replicas, files, removing a store --------------------------------------------------------------------------------


def test_replicas_and_files_follow_with_stock_commands(fresh_server: Callable[..., Server]) -> None:
    primary = fresh_server(aof=True)
    replica = fresh_server(replica_of=primary, module=False)
    client = primary.client()
    fill(client, 300)
    hold(client, "s", "r", 0, 170)
    trim(client, "s", 0, 160)
    append_all(client, 50)
    wait_for_replica(client, replica.client())
    assert_same_keys(snapshot(replica.client()), snapshot(client))
    want, given = digest(client), sequences(client)
    primary.restart()
    assert digest(primary.client()) == want
    assert sequences(primary.client()) == given == list(range(161, 351))
    assert "HELD" in str(error_of(primary.client(), "HISTORY.TRIM", "s", 0, 171))


@pytest.mark.parametrize("what", ["TRIM", "UNSTORE"])
def test_a_restart_in_the_middle_leaves_nothing_behind(fresh_server: Callable[..., Server], what: str) -> None:
    server = fresh_server(aof=True, config=["appendfsync always"])
    client = server.client()
    fill(client, 2000, epoch_bytes=1)
    assert len(epochs_with_keys(client)) == 2000
    if what == "TRIM":
        assert trim(client, "s", 0, 1999) == 2000
    else:
        client.execute_command("HISTORY.UNSTORE", "s")
    left = len(epochs_with_keys(client))
    server.kill()
    assert left > 100
    server.restart()
    client = server.client()
    if what == "TRIM":
        assert sequences(client) == [2000]
        eventually(lambda: epochs_with_keys(client) == {2000}, what="only the last epoch is left")
    else:
        eventually(lambda: names(client) == [], what="nothing of the store is left")


def test_a_store_that_is_being_removed_is_not_there(client: redis.Redis) -> None:
    fill(client, 2000, epoch_bytes=1)
    with client.pipeline() as pipe:  # one step: the background cannot come between
        pipe.execute_command("HISTORY.UNSTORE", "s")
        pipe.execute_command("HISTORY.STORES")
        pipe.execute_command("HISTORY.STORE", "s", "FILTER", "a/#")
        pipe.execute_command("HISTORY.APPEND", "s", "a/1", "m")
        pipe.execute_command("HISTORY.STORE", "other", "FILTER", "a/#")
        done, stores, again, appended, other = pipe.execute(raise_on_error=False)
    assert (done, stores, other) == (b"OK", [], b"OK")
    assert "still being removed" in str(again)
    assert "there is no store" in str(appended)
    assert_indexes_hold(client)
    eventually(lambda: names(client) == [b"{other}_history_store"], what="nothing of the store is left")


def test_another_primary_continues_with_what_is_being_removed(fresh_server: Callable[..., Server]) -> None:
    primary = fresh_server()
    replica = fresh_server(replica_of=primary)
    client = primary.client()
    fill(client, 2000, epoch_bytes=1)
    trim(client, "s", 0, 1000)
    wait_for_replica(client, replica.client())
    client.execute_command("HISTORY.UNSTORE", "s")
    primary.kill()  # at once: what replied has written to its replica in the same turn, and removes more in the next
    other = replica.client()
    eventually(lambda: other.info("replication")["master_link_status"] == "down", what="all that came is taken")
    assert len(names(other)) > 100
    other.replicaof("NO", "ONE")
    eventually(lambda: names(other) == [], what="nothing of the store is left")
    assert_indexes_hold(other)
