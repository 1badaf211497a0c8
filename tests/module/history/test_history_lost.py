"""Numbers that are lost with a primary and given again: every reader sees what is there now, wherever it stood."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from tests.module.history_support import Page, append, hold, replay, replay_all, shard_facts, store, trim
from tests.module.sessions_support import assert_indexes_hold, error_of, wait_for_replica
from tests.support import Clock, Server, reserve_port

EACH = 10


def append_all(client: redis.Redis, word: str, count: int, first: int = 0) -> list[bytes]:
    """To several topics; the payloads."""
    texts = [f"{word}-{number}" for number in range(first, first + count)]
    for number, text in enumerate(texts):
        append(client, "s", f"a/{number % 3}", text)
    return [text.encode() for text in texts]


def payloads(page: Page) -> list[bytes]:
    return [entry.message.payload for entry in page.entries]


def rest(client: redis.Redis, topic_filter: str, page: Page) -> list[bytes]:
    """All that comes after a page."""
    found: list[bytes] = []
    for _ in range(1000):
        if page.end:
            last = replay(client, topic_filter, cursor=page.cursor, count=3)
            if last.end and not last.entries:
                return found
            page = last
        else:
            page = replay(client, topic_filter, cursor=page.cursor, count=3)
        found += payloads(page)
        assert page.missed == 0
    raise AssertionError("no end")


@pytest.mark.parametrize("again", [1, EACH - 1, EACH, 3 * EACH])
@pytest.mark.parametrize("epochs", [1, 4])
def test_readers_see_the_numbers_that_are_given_again_and_nothing_twice(
    fresh_server: Callable[..., Server], again: int, epochs: int
) -> None:
    primary = fresh_server()
    replica = fresh_server(replica_of=primary)
    client, other = primary.client(), replica.client()
    store(client, "s", "a/#", bytes=8 * 1000 if epochs > 1 else 0, holdbytes=2**40)
    hold(client, "s", "all")
    both = append_all(client, "both", EACH * epochs)
    early = replay(client, "a/#", count=EACH // 2)
    at_the_fork = replay(client, "a/#")
    one_topic = replay(client, "a/1")
    wait_for_replica(client, other)
    other.replicaof("NO", "ONE")
    lost = append_all(client, "lost", EACH)
    half = replay(client, "a/#", cursor=at_the_fork.cursor, count=EACH // 2)
    whole = replay(client, "a/#", cursor=at_the_fork.cursor)
    since = replay(client, "a/#", **{"from": lost_time(client)})
    assert payloads(whole) == lost
    primary.kill()
    new = append_all(other, "new", again)
    assert [entry.message.payload for entry in replay_all(other, "a/#")] == both + new
    assert rest(other, "a/#", early) == both[EACH // 2 :] + new
    assert rest(other, "a/1", one_topic) == new[1::3]
    for page in (at_the_fork, half, whole, since):
        assert rest(other, "a/#", page) == new
    assert_indexes_hold(other)


@pytest.mark.parametrize("again", [1, 3 * EACH])
def test_a_lost_epoch_is_never_taken_for_its_replacement(
    fresh_server: Callable[..., Server], tmp_path: Path, again: int
) -> None:
    """Where the clock stepped back ids are dense: numbers and times of what is lost are given again, too."""
    clock = Clock(tmp_path)
    primary = fresh_server(environment=clock.environment)
    client = primary.client()
    clock.step(10**9)
    store(client, "s", "a/#", bytes=8 * 100, holdbytes=2**40)
    hold(client, "s", "all")
    both = append_all(client, "both", EACH)
    replica = fresh_server(replica_of=primary, environment=clock.environment)
    other = replica.client()
    wait_for_replica(client, other)
    clock.step(0)
    other.replicaof("NO", "ONE")
    before = shard_facts(client)["epoch"]
    lost = append_all(client, "lost", EACH)
    assert shard_facts(client)["epoch"] > before + 1
    page = replay(client, "a/#")
    assert payloads(page) == both + lost
    primary.kill()
    new = append_all(other, "new", again)
    assert rest(other, "a/#", page) == new


def test_a_reader_of_lost_numbers_learns_how_many_that_replaced_them_it_missed(
    fresh_server: Callable[..., Server],
) -> None:
    primary = fresh_server()
    replica = fresh_server(replica_of=primary)
    client, other = primary.client(), replica.client()
    store(client, "s", "a/#")
    append_all(client, "both", EACH)
    wait_for_replica(client, other)
    other.replicaof("NO", "ONE")
    append_all(client, "lost", EACH)
    page = replay(client, "a/#")
    primary.kill()
    new = append_all(other, "new", 2 * EACH)
    gone = EACH // 2
    assert trim(other, "s", 0, EACH + gone) == EACH + gone + 1
    again = replay(other, "a/#", cursor=page.cursor)
    assert (payloads(again), again.missed) == (new[gone:], gone)
    trim(other, "s", 0, 3 * EACH)
    again = replay(other, "a/#", cursor=page.cursor)
    assert (payloads(again), again.missed) == ([], 2 * EACH)


def test_what_two_primaries_took_with_them_one_after_the_other_is_known(fresh_server: Callable[..., Server]) -> None:
    first = fresh_server()
    second, third = fresh_server(replica_of=first), fresh_server(replica_of=first)
    clients = [server.client() for server in (first, second, third)]
    store(clients[0], "s", "a/#")
    both = append_all(clients[0], "both", EACH)
    for other in clients[1:]:
        wait_for_replica(clients[0], other)
        other.replicaof("NO", "ONE")
    append_all(clients[0], "lost", 3)
    lost = [replay(clients[0], "a/#")]
    clients[1].execute_command("HISTORY.APPEND", "s", "a/0", "second")  # all that the second one ever writes
    lost.append(replay(clients[1], "a/#"))
    new = append_all(clients[2], "new", EACH)
    for page in lost:
        assert payloads(page)[:EACH] == both
        assert rest(clients[2], "a/#", page) == new


def test_a_reader_of_a_replica_that_is_behind_waits_and_gets_nothing_twice(
    fresh_server: Callable[..., Server],
) -> None:
    primary = fresh_server()
    replica = fresh_server(replica_of=primary)
    client, other = primary.client(), replica.client()
    store(client, "s", "a/#")
    append_all(client, "m", EACH)
    wait_for_replica(client, other)
    nobody = reserve_port()
    other.replicaof("127.0.0.1", nobody.number)
    append_all(client, "m", EACH, EACH)
    page = replay(client, "a/#")
    behind = replay(other, "a/#", cursor=page.cursor)
    assert (behind.entries, behind.missed) == ([], 0)
    new = append_all(client, "new", EACH)
    assert payloads(replay(client, "a/#", cursor=behind.cursor)) == new
    nobody.release()


def lost_time(client: redis.Redis) -> int:
    """A time in ms, after all that is there."""
    return int(shard_facts(client)["last_time"]) // 1000 + 1


def test_a_restart_from_an_older_file_is_a_loss_like_any_other(fresh_server: Callable[..., Server]) -> None:
    server = fresh_server(aof=True, config=["appendfsync always"])
    client = server.client()
    store(client, "s", "a/#")
    both = append_all(client, "both", EACH)
    page = replay(client, "a/#")
    files = server.directory / "appendonlydir"
    older = server.directory / "older"
    shutil.copytree(files, older)
    append_all(client, "lost", EACH)
    page = replay(client, "a/#", cursor=page.cursor)
    server.kill()
    shutil.rmtree(files)
    shutil.copytree(older, files)
    server.start()
    client = server.client()
    new = append_all(client, "new", 2 * EACH)
    assert [entry.message.payload for entry in replay_all(client, "a/#")] == both + new
    assert rest(client, "a/#", page) == new


def test_a_watermark_above_what_is_left_comes_down_with_the_loss(fresh_server: Callable[..., Server]) -> None:
    primary = fresh_server()
    replica = fresh_server(replica_of=primary)
    client, other = primary.client(), replica.client()
    store(client, "s", "a/#")
    append_all(client, "both", EACH)
    hold(client, "s", "archive", 0, EACH)
    wait_for_replica(client, other)
    other.replicaof("NO", "ONE")
    other.hset("{s/0}_history_holds", "archive", EACH + 5)  # what it had read of the primary that is lost
    append_all(other, "new", EACH)
    assert shard_facts(other)["holds"] == {b"archive": EACH}
    assert "HELD" in str(error_of(other, "HISTORY.TRIM", "s", 0, EACH + 5))


def test_anyone_who_keeps_writing_begins_no_epoch_for_it(client: redis.Redis) -> None:
    store(client, "s", "a/#")
    append_all(client, "m", EACH)
    store(client, "s", "a/#", bytes=10**9)
    append_all(client, "m", EACH)
    assert shard_facts(client)["epoch"] == 1
