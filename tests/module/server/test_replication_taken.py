"""Stock commands are built only while somebody takes them: whoever begins to take them at any moment misses nothing.

Each test begins with a server that nobody follows, so that nothing is built; then a replica or an append-only file
comes in the midst of writing.  Both are read without the module, so that only stock commands count.
"""

import itertools
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import redis

from tests.module.sessions_support import Key, assert_same_keys, digest, snapshot
from tests.support import RawClient, ReplyError, Server, ServerKind, eventually
from tests.support.raw import encoded
from tests.support.server import HOST

MakeServer = Callable[..., Server]
Command = tuple[str | bytes | int, ...]

SESSIONS = 12
CHANNELS = 6
PIPELINE = 30
# A link that comes late must still find in the backlog all that was written meanwhile without a pause.
LARGE_BACKLOG = ["repl-backlog-size 64mb"]
# When something begins to take the commands, in seconds after the writing began.
MOMENTS = (0.02, 0.11, 0.23)


def writes(seed: int) -> Iterator[Command]:
    """Every command that writes, without end, on a few sessions, topics and channels."""
    chance = random.Random(seed)
    for number in itertools.count():
        key, payload = f"{{c{chance.randrange(SESSIONS)}}}", f"{number}:".ljust(chance.choice((20, 62, 300)), "x")
        channel, topic = f"channel-{chance.randrange(CHANNELS)}", f"t/{chance.randrange(CHANNELS)}"
        kinds: tuple[list[Command], ...] = (
            [("SESSION.ADD", key, "LIMIT", 50, "MESSAGES", payload)],
            [("SESSION.ADD", key, "LIMIT", 50, "MESSAGES", *[payload] * 10)],
            [("SESSION.ADD", key, "EXPIRING", 1000 + number, payload, "", payload)],
            [("SESSION.ADD", key, "PRODUCER", "p", number + 1, "MESSAGES", payload)],
            [("SESSION.IMPORT", key, "MERGE", "LIMIT", 50, "MESSAGES", 1, number % 70, 0, 1, 10**6, payload)],
            [("SESSION.FETCH", key, "WINDOW", 5), ("SESSION.ACK", key, "NEXT", 3, 1 + number % 50)],
            [("SESSION.ACK", key, *range(number % 100 + 1, number % 100 + 20))],
            [("SESSION.RELEASE", key, number % 100 + 1), ("SESSION.SENT", key, number)],
            [("SESSION.RECEIVE", key, number % 100 + 1), ("SESSION.COMPLETE", key, number % 70 + 1)],
            [("SESSION.OPEN", key, "OWNER", f"bridge-{number}", "EXPIRY", 5000)],
            [("SESSION.SUBSCRIBE", key, topic, 1), ("SESSION.UNSUBSCRIBE", key, f"t/{number % CHANNELS}")],
            [("SESSION.DROP", key)] if number % 5 == 0 else [("SESSION.ADD", key, payload)],
            [("TOPIC.PUBLISH", topic, payload, "QOS", 1)],
            [("TOPIC.PUBLISH", topic, payload if number % 3 else "", "QOS", 2, "RETAIN", "TTL", 5000)],
            [("TOPIC.PIPELINE", encoded("TOPIC.PUBLISH", topic, payload, "QOS", 1) * (1 + number % 70))],
            [("PUBLISH", channel, payload)],
            [("CHANNEL.PUBLISH", channel, payload)],
            [("CHANNEL.PUBLISH", channel, payload, "PRODUCER", "p", 1, number)],
            [("TOPIC.PUBLISH", topic, payload, "PRODUCER", "p", 1, number)],
            [("MULTI",), ("SESSION.ADD", key, payload), ("PUBLISH", channel, payload), ("EXEC",)],
            [("EVAL", "redis.call('SESSION.ADD', KEYS[1], ARGV[1])", 1, key, payload)],
            [("EVAL", "redis.call('PUBLISH', ARGV[1], ARGV[2])", 0, channel, payload)],
        )
        yield from chance.choice(kinds)


@contextmanager
def writing(server: Server, seed: int) -> Iterator[None]:
    """Writes come without a pause as long as the context lasts; at least one pipeline before and one after it."""
    begun, done = threading.Event(), threading.Event()
    failures: list[BaseException] = []

    def run() -> None:
        commands = writes(seed)
        try:
            with RawClient(server.port) as connection:
                last = False
                while not last:
                    last = done.is_set()
                    batch = list(itertools.islice(commands, PIPELINE))
                    connection.send_all(*batch)
                    connection.read_many(len(batch))
                    begun.set()
        except BaseException as error:
            failures.append(error)
            raise
        finally:
            begun.set()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert begun.wait(20)
        yield
    finally:
        done.set()
        thread.join(60)
    assert not thread.is_alive()
    assert failures == []


def contents(client: redis.Redis) -> tuple[bytes, dict[bytes, Key]]:
    """All that the server holds."""
    return digest(client), snapshot(client)


def assert_equal(client: redis.Redis, want: tuple[bytes, dict[bytes, Key]]) -> None:
    """The server holds the same."""
    got = contents(client)
    assert_same_keys(got[1], want[1])
    assert got[0] == want[0]


def caught_up(primary: redis.Redis, replica: redis.Redis) -> bool:
    """Whether the replica has applied all that the primary has sent."""
    sent, state = primary.info("replication")["master_repl_offset"], replica.info("replication")
    return bool(state["master_link_status"] == "up" and state["slave_repl_offset"] >= sent)


def assert_replica_equal(primary: Server, replica: Server) -> None:
    """The replica catches up and holds the same."""
    leader, follower = primary.client(), replica.client()
    eventually(lambda: caught_up(leader, follower), 30, "a replica that has caught up")
    assert_equal(follower, contents(leader))


def changes(client: redis.Redis) -> int:
    """By how much the data changed since the last snapshot, as the server counts it."""
    return int(client.info("persistence")["rdb_changes_since_last_save"])


def wait_until_nobody_takes(client: redis.Redis) -> None:
    """Wait past the start, after which the module asks the server whether somebody may come back for the backlog."""
    state = client.info("replication")
    assert (state["connected_slaves"], state["repl_backlog_active"]) == (0, 0)
    time.sleep(0.3)


# --- Replicas ---------------------------------------------------------------------------------------------------------


def ways_to_synchronize(kind: ServerKind) -> dict[str, list[str]]:
    """How a replica can be filled: configuration of both sides."""
    ways = {"disk": ["repl-diskless-sync no"], "diskless": ["repl-diskless-sync yes"]}
    if kind.version >= (8, 0):
        channel = "dual-channel-replication-enabled" if kind.family == "valkey" else "repl-rdb-channel"
        ways["two connections"] = ["repl-diskless-sync yes", f"{channel} yes"]
    return ways


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("way", ["disk", "diskless", "two connections"])
def test_a_replica_that_comes_while_all_commands_write_ends_equal(
    fresh_server: MakeServer, server_kind: ServerKind, way: str, moment: float
) -> None:
    ways = ways_to_synchronize(server_kind)
    config = ways.get(way, ways["diskless"])
    primary, replica = fresh_server(config=config), fresh_server(config=config, module=False)
    wait_until_nobody_takes(primary.client())
    with writing(primary, seed=round(moment * 100)):
        time.sleep(moment)
        replica.client().replicaof(HOST, str(primary.port))
        eventually(lambda: replica.client().info("replication")["master_link_status"] == "up", 20)
    assert_replica_equal(primary, replica)


def test_what_is_written_right_after_a_synchronization_that_a_pause_held_up_is_sent(fresh_server: MakeServer) -> None:
    primary = fresh_server(config=["repl-diskless-sync no"])
    wait_until_nobody_takes(primary.client())
    with (
        RawClient(primary.port) as pausing,
        socket.create_connection((HOST, primary.port), timeout=20) as replica,
        RawClient(primary.port) as writer,
    ):
        pausing.call("CLIENT", "PAUSE", 800, "ALL")
        replica.sendall(b"SYNC\r\n")
        time.sleep(0.4)  # longer than the time after which the module asks again who follows
        writer.send_all(("SESSION.ADD", "{c}", "the message"), ("PUBLISH", "channel", "the held one"))
        assert writer.read_many(2) == [[[1], 1, 0, 0], 0]
        got = b""
        while b"{c}_messages_1" not in got or b"RPUSH" not in got:
            assert b"SESSION.ADD" not in got
            got += replica.recv(65536)


def test_a_replica_that_was_away_finds_in_the_backlog_what_it_missed(fresh_server: MakeServer) -> None:
    primary = fresh_server(config=LARGE_BACKLOG)
    replica = fresh_server(replica_of=primary, module=False)
    client = primary.client()
    with writing(primary, seed=1):
        for _ in range(3):
            client.execute_command("CLIENT", "KILL", "TYPE", "replica")
            time.sleep(0.15)
    assert_replica_equal(primary, replica)
    assert client.info("stats")["sync_full"] == 1


def test_what_a_promoted_replica_writes_at_once_is_in_its_backlog(fresh_server: MakeServer) -> None:
    first = fresh_server(config=LARGE_BACKLOG)
    promoted = fresh_server(replica_of=first, config=LARGE_BACKLOG)
    other = fresh_server(replica_of=first, module=False)
    with writing(first, seed=2):
        time.sleep(0.1)
    for replica in (promoted, other):
        assert_replica_equal(first, replica)
    first.kill()
    with RawClient(promoted.port) as connection:
        commands = [("REPLICAOF", "NO", "ONE"), *itertools.islice(writes(3), 300)]
        connection.send_all(*commands)
        connection.read_many(len(commands))
    other.client().replicaof(HOST, str(promoted.port))
    with writing(promoted, seed=4):
        eventually(lambda: other.client().info("replication")["master_link_status"] == "up", 20)
    assert_replica_equal(promoted, other)
    assert promoted.client().info("stats")["sync_partial_ok"] == 1


def test_what_a_restarted_primary_writes_at_once_is_in_its_backlog(fresh_server: MakeServer) -> None:
    primary = fresh_server(config=["save 3600 1"])
    replica = fresh_server(replica_of=primary, module=False)
    with writing(primary, seed=5):
        time.sleep(0.1)
    assert_replica_equal(primary, replica)
    primary.restart()
    with writing(primary, seed=6):
        eventually(lambda: replica.client().info("replication")["master_link_status"] == "up", 20)
    assert_replica_equal(primary, replica)


# --- The append-only file ---------------------------------------------------------------------------------------------


def wait_for_file(client: redis.Redis) -> None:
    """Wait until the file holds what was there when it was switched on."""

    def there() -> bool:
        state = client.info("persistence")
        return not (state["aof_rewrite_in_progress"] or state["aof_rewrite_scheduled"])

    eventually(there, 20, "an append-only file")


def come_back_from_file(server: Server) -> None:
    """Kill the server and start it without the module from its append-only file alone."""
    server.kill()
    (server.directory / "dump.rdb").unlink(missing_ok=True)
    server.restart(module=False, config=["appendonly yes"])


@pytest.mark.parametrize("moment", MOMENTS)
def test_an_append_only_file_switched_on_while_all_commands_write_misses_nothing(
    fresh_server: MakeServer, moment: float
) -> None:
    server = fresh_server(config=["appendfsync always"])
    client = server.client()
    wait_until_nobody_takes(client)
    with writing(server, seed=round(moment * 100)):
        time.sleep(moment)
        client.config_set("appendonly", "yes")
        time.sleep(0.2)
        client.config_set("appendonly", "no")
        time.sleep(0.1)
        client.config_set("appendonly", "yes")
    wait_for_file(client)
    want = contents(client)
    come_back_from_file(server)
    assert_equal(server.client(), want)


def test_an_append_only_file_switched_on_inside_a_transaction_gets_what_follows(fresh_server: MakeServer) -> None:
    server = fresh_server(config=["appendfsync always"])
    client = server.client()
    wait_until_nobody_takes(client)
    with client.pipeline(transaction=True) as pipe:
        pipe.execute_command("SESSION.ADD", "{c}", "before")
        pipe.execute_command("CONFIG", "SET", "appendonly", "yes")
        pipe.execute_command("SESSION.ADD", "{c}", "after")
        pipe.execute_command("PUBLISH", "channel", "after")
        pipe.execute()
    wait_for_file(client)
    want = contents(client)
    assert client.zcard("{c}_messages") == 2
    come_back_from_file(server)
    assert_equal(server.client(), want)


# --- Snapshots --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        ("SESSION.ADD", "{c}", "m"),
        ("SESSION.ADD", "{c}", "PRODUCER", "p", 1, "MESSAGES", "m"),
        ("SESSION.IMPORT", "{c}", "MERGE", "MESSAGES", 1, 7, 0, 0, 0, "m"),
        ("SESSION.FETCH", "{c}", "WINDOW", 5),
        ("SESSION.ACK", "{c}", 1),
        ("SESSION.RELEASE", "{c}", 1),
        ("SESSION.RECEIVE", "{c}", 1),
        ("SESSION.OPEN", "{c}", "OWNER", "o"),
        ("SESSION.SUBSCRIBE", "{c}", "t", 1),
        ("SESSION.DROP", "{c}"),
        ("TOPIC.PUBLISH", "to", "m", "QOS", 1),
        ("TOPIC.PUBLISH", "t", "m", "RETAIN"),
        ("PUBLISH", "channel", "m"),
        ("EVAL", "redis.call('SESSION.ADD', '{c}', 'm')", 0),
    ],
    ids=lambda command: " ".join(map(str, command)),
)
def test_a_change_that_nobody_takes_counts_for_the_next_snapshot(client: redis.Redis, command: Command) -> None:
    client.execute_command("SESSION.ADD", "{c}", "a", "b")
    client.execute_command("SESSION.SUBSCRIBE", "{other}", "to", 1)
    before = changes(client)
    client.execute_command(*command)
    assert changes(client) > before


def test_a_sync_that_was_refused_changes_nothing_for_long(fresh_server: MakeServer, server_kind: ServerKind) -> None:
    server = fresh_server(aof=True)
    with RawClient(server.port) as admin, RawClient(server.port) as stranger:

        def is_written_as_one() -> bool:
            before = written(server).count(b"MSETEX")
            admin.call("SESSION.ADD", "{c}", "MESSAGES", *["m"] * 10)
            admin.call("WAITAOF", 1, 0, 0) if server_kind.version >= (7, 2) else admin.call("PING")
            return written(server).count(b"MSETEX") > before

        admin.call("ACL", "SETUSER", "weak", "on", "nopass", "~*", "+@all", "-sync", "-psync")
        stranger.call("AUTH", "weak", "any")
        before = False
        if (server_kind.family, server_kind.version) == ("valkey", (9, 1)):
            eventually(is_written_as_one)
            before = True
        for command in (["SYNC"], ["PSYNC", "?", "-1"]):
            stranger.send(*command)
            with pytest.raises(ReplyError, match="NOPERM"):
                raise_error(stranger.read())
        eventually(lambda: is_written_as_one() == before)
        admin.call("ACL", "SETUSER", "default", ">secret")
        with RawClient(server.port) as unknown:
            for command in (["SYNC"], ["PSYNC", "?", "-1"]):
                unknown.send(*command)
                with pytest.raises(ReplyError, match="NOAUTH"):
                    raise_error(unknown.read())
        eventually(lambda: is_written_as_one() == before)


def raise_error(value: object) -> None:
    """An error reply as an exception."""
    if isinstance(value, ReplyError):
        raise value


def written(server: Server) -> bytes:
    """The append-only file."""
    return b"".join(path.read_bytes() for path in (server.directory / "appendonlydir").iterdir())
