"""A replica that loads its primary's data beside its own (repl-diskless-load swapdb) serves, and its indexes are right.

The whole time: while it loads, when the load is broken off, and when the new data take the place of the former.
"""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis

from tests.module.channels_support import (
    MakeRaw,
    MakeServer,
    information,
    messages,
    sees_commands,
    set_policies,
    subscribe,
)
from tests.module.history_support import append, replay_all, store
from tests.module.sessions_support import (
    Session,
    digest,
    listed_sessions,
    publish,
    retained_topics,
    wait_for_replica,
)
from tests.support import Server, eventually

LOADING_S = 4.0
FILLING = 300  # keys of each database beside those that are looked at
DATABASES = (0, 1)
WAIT_S = 60.0

PRIMARY = ["rdbcompression no", "repl-diskless-sync yes", "repl-diskless-sync-delay 0", "repl-backlog-size 16384"]
REPLICA = ["repl-diskless-load swapdb", "loading-process-events-interval-bytes 1024"]


def fill(client: redis.Redis, name: str) -> None:
    """One of everything that an index knows, all of it named so."""
    for number in range(FILLING):
        client.set(f"{name}:{number}", bytes(20_000))  # more than is sent at once
    set_policies(client, "last:* hold=none last=on", "*")
    for channel in (f"held:{name}", f"last:{name}"):
        client.publish(channel, name)
    session, member = Session(client, f"{{{name}}}"), Session(client, f"{{member-{name}}}")
    session.open(expiry=1000)
    session.subscribe((f"{name}/#", 1))
    member.open(expiry=1000)
    member.subscribe((f"$share/g/{name}/+", 1))
    store(client, name, f"{name}/#")
    append(client, name, f"{name}/a", "past")
    publish(client, f"{name}/a", name, qos=1, retain=True)


def answers_of(client: redis.Redis) -> dict[str, Any]:
    """What the indexes of a database say."""
    return {
        "check": client.execute_command("HOLDMQ.CHECK"),
        "retained": retained_topics(client),
        "sessions": listed_sessions(client),
        "stores": client.execute_command("HISTORY.STORES"),
        "history": [entry.pair for entry in replay_all(client, "#")],
        "last": [
            client.execute_command("CHANNEL.LAST", f"{kind}:{name}") for kind in ("held", "last") for name in NAMES
        ],
        "lists": [client.lrange(f"held:{name}", 0, -1) for name in NAMES],
    }


NAMES = ("former", "new")


def all_answers(server: Server) -> list[dict[str, Any]]:
    """Of all databases that are filled."""
    return [answers_of(server.client(db=db)) for db in DATABASES]


@contextmanager
def stopped(client: redis.Redis) -> Iterator[None]:
    """While the server stands still."""
    pid = client.info("server")["process_id"]
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.fixture
def pair(fresh_server: MakeServer) -> tuple[Server, Server]:
    """A primary with the former data, and a replica that has them, too."""
    primary = fresh_server(config=PRIMARY)
    for db in reversed(DATABASES):  # the last one supersedes what the others hold
        fill(primary.client(db=db), "former")
    replica = fresh_server(config=REPLICA, replica_of=primary)
    set_policies(replica.client(), "last:* hold=none last=on", "*")
    wait_for_replica(primary.client(), replica.client())
    return primary, replica


def fall_behind(primary: Server, replica: Server) -> None:
    """Cut the replica off until the primary has other data than it, and no backlog that would bring it up to date."""
    writer = primary.client()
    with stopped(replica.client()):
        writer.execute_command("CLIENT", "KILL", "TYPE", "replica")
        writer.flushall()
        for db in reversed(DATABASES):  # the last one supersedes what the others hold
            fill(primary.client(db=db), "new")
        writer.config_set("rdb-key-save-delay", round(LOADING_S * 1e6 / (2 * FILLING)))


def is_loading(replica: redis.Redis) -> bool:
    """Whether it loads, and serves."""
    return bool(replica.info("persistence")["async_loading"] == 1)


def look_while(condition: Callable[[], bool], replica: Server, wanted: list[dict[str, Any]]) -> int:
    """How often the replica said what it should while the condition held."""
    looks = 0
    while condition():
        found = all_answers(replica)
        if not condition():  # it may have ended in between
            break
        assert found == wanted
        looks += 1
    return looks


def test_all_indexes_are_right_before_while_and_after_it_loads(pair: tuple[Server, Server], raw: MakeRaw) -> None:
    primary, replica = pair
    former, reader = all_answers(primary), replica.client()
    assert all_answers(replica) == former
    fall_behind(primary, replica)
    new = all_answers(primary)
    assert new != former
    assert all(not answer["check"] for answer in former + new)
    eventually(lambda: is_loading(reader), WAIT_S)
    came = messages(subscribe(raw(replica), "held:former"))
    assert is_loading(reader)
    assert came == [b"former"]
    assert look_while(lambda: is_loading(reader), replica, former) > 1
    eventually(lambda: reader.info("replication")["master_link_status"] == "up", WAIT_S)
    assert all_answers(replica) == new
    assert messages(subscribe(raw(replica), "held:former", "held:new")) == [b"new"]


def test_a_load_that_is_broken_off_changes_nothing(pair: tuple[Server, Server]) -> None:
    primary, replica = pair
    former, reader = all_answers(primary), replica.client()
    fall_behind(primary, replica)
    eventually(lambda: is_loading(reader), WAIT_S)
    assert all_answers(replica) == former
    primary.kill()
    eventually(lambda: not is_loading(reader), WAIT_S)
    assert all_answers(replica) == former
    reader.replicaof("NO", "ONE")
    assert publish(reader, "former/b", "m", qos=1) == 2
    assert all_answers(replica)[1] == former[1]
    reader.publish("held:former", "later")
    assert reader.execute_command("CHANNEL.LAST", "held:former") == b"later"
    assert reader.execute_command("HOLDMQ.CHECK") == []


def test_a_connection_that_breaks_while_it_loads_is_made_again(pair: tuple[Server, Server]) -> None:
    primary, replica = pair
    former, reader, writer = all_answers(primary), replica.client(), primary.client()
    fall_behind(primary, replica)
    new = all_answers(primary)
    for _ in range(2):
        eventually(lambda: is_loading(reader), WAIT_S)
        assert all_answers(replica) == former
        writer.execute_command("CLIENT", "KILL", "TYPE", "replica")
        eventually(lambda: not is_loading(reader), WAIT_S)
        assert all_answers(replica) in (former, new)
    writer.config_set("rdb-key-save-delay", 0)
    eventually(lambda: reader.info("replication")["master_link_status"] == "up", WAIT_S)
    eventually(lambda: all_answers(replica) == new, WAIT_S)


def test_a_replica_that_has_loaded_beside_its_data_is_promoted(pair: tuple[Server, Server]) -> None:
    primary, replica = pair
    reader = replica.client()
    fall_behind(primary, replica)
    eventually(lambda: is_loading(reader), WAIT_S)
    primary.client().config_set("rdb-key-save-delay", 0)
    eventually(lambda: reader.info("replication")["master_link_status"] == "up", WAIT_S)
    wait_for_replica(primary.client(), reader)
    assert digest(reader) == digest(primary.client())
    reader.replicaof("NO", "ONE")
    for db in DATABASES:
        client = replica.client(db=db)
        assert publish(client, "former/b", "m", qos=1) == 0
        assert publish(client, "new/b", "m", qos=1) == 2
        assert append(client, "new", "new/b", "m")
        client.publish("held:new", "later")
        assert client.execute_command("CHANNEL.LAST", "held:new") == b"later"
        assert client.execute_command("HOLDMQ.CHECK") == []


def test_a_sleeping_module_that_wakes_while_it_loads_takes_nothing_for_served(fresh_server: MakeServer) -> None:
    asleep = 'holdmq.policies ""'
    primary = fresh_server(config=[*PRIMARY, asleep])
    writer = primary.client()
    writer.set("k", 1)
    replica = fresh_server(config=[*REPLICA, asleep], replica_of=primary)
    reader = replica.client()
    wait_for_replica(writer, reader)
    assert not sees_commands(reader)
    fall_behind(primary, replica)
    eventually(lambda: is_loading(reader) and sees_commands(reader), timeout_s=WAIT_S, what="a key that wakes it")
    looks = 0
    while is_loading(reader):
        found = information(reader)["held_lists"], reader.execute_command("SESSION.LIST")
        if is_loading(reader):
            assert found == (0, [b"0", []])
            looks += 1
    assert looks > 1
    wait_for_replica(writer, reader)
    set_policies(reader, "last:* hold=none last=on", "*")
    assert all_answers(replica) == all_answers(primary)
