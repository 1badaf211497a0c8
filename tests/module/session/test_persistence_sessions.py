"""What sessions and topics leave in replicas, append-only files and snapshots, and what they are after a restart."""

import shutil
from collections.abc import Callable

import pytest
import redis

from tests.module.sessions_support import (
    Key,
    Session,
    assert_indexes_hold,
    assert_routes_exactly,
    assert_same_keys,
    digest,
    payloads,
    publish,
    retained_topics,
    snapshot,
    wait_for_replica,
)
from tests.support import RawClient, ReplyError, Server, eventually
from tests.support.raw import encoded

MakeServer = Callable[..., Server]

TOPICS = ["t/1", "t/2/x", "u", "r", "none"]


def exercise(client: redis.Redis) -> None:
    """Every command that writes, with each of its options, so that much is left behind."""
    kept, dropped, opened, closed = (Session(client, key) for key in ("{kept}", "{dropped}", "{opened}", "{closed}"))
    kept.add("a", "b", "c", ttl=100)
    kept.add_expiring((50, "d"), ("", "e"), (1000, b"\x00\xff"))
    kept.add(*(str(number) for number in range(30)), limit=20)
    kept.ack(20, 22, 22, 999)
    kept.expire_message(kept.fetch(count=1).packet_ids[0])
    kept.fetch(count=3)
    kept.subscribe(("t/#", 1), ("u", 0), ("u", 2))
    client.set("{wrapped}_last_packet_id", 65533)
    Session(client, "{wrapped}").add("a", "b", "c", "d")
    Session(client, "{emptied}").add("a")
    Session(client, "{emptied}").ack(1)
    epoch = opened.open("bridge-1", expiry=60).epoch
    opened.subscribe(("t/+", 2), ("r", 1), epoch=epoch)
    publish(client, "t/1", "m", qos=2, publisher="dev", properties=b"\x01\x01")
    publish(client, "t/2/x", "short", qos=1, ttl=100)
    publish(client, "r", "kept", qos=1, retain=True)
    publish(client, "r/ttl", "kept", qos=1, retain=True, ttl=100)
    publish(client, "r/gone", "kept", qos=1, retain=True, ttl=100)
    publish(client, "r/gone", "", retain=True)
    publish(client, "r", "kept again", qos=2, retain=True)
    opened.open("bridge-2", expiry=70, lease=80)
    opened.touch(opened.info()["epoch"])
    opened.unsubscribe("t/+")
    epoch = closed.open("bridge-1", clean=True, expiry=10).epoch
    closed.subscribe(("r/#", 1))
    closed.add("x", "y")
    closed.close(epoch, 90)
    dropped.open()
    dropped.add("x")
    dropped.subscribe(("t/#", 1))
    dropped.drop()
    over = Session(client, "{over}").open().epoch
    Session(client, "{over}").close(over)
    cleaned = Session(client, "{cleaned}")
    cleaned.add("x")
    cleaned.subscribe(("t/#", 1))
    cleaned.open(clean=True, expiry=100)
    cleaned.add("y")
    client.execute_command("SESSION.ADD", "{more}", "PRODUCER", "p", 1, "a", "b", "c")
    client.execute_command("SESSION.ADD", "{more}", "PRODUCER", "p", 1, "a", "b", "c")
    client.execute_command("SESSION.FETCH", "{more}", "WINDOW", 2)
    client.execute_command("SESSION.ACK", "{more}", "NEXT", 1, 1)
    client.execute_command("SESSION.RELEASE", "{more}", 2)
    client.execute_command("SESSION.RECEIVE", "{more}", 7)
    client.execute_command("SESSION.RECEIVE", "{more}", 8)
    client.execute_command("SESSION.COMPLETE", "{more}", 7)
    client.execute_command("SESSION.SENT", "{closed}", 1)
    exercise_publishers(client)


def exercise_publishers(client: redis.Redis) -> None:
    """What a publisher's session keeps."""
    plain, short = (encoded("TOPIC.PUBLISH", "t/1", "m", "QOS", 1, "TTL", ttl) for ttl in (10**6, 100))
    client.execute_command("TOPIC.PIPELINE", plain * 3 + short * 3)
    for packet in (9, 9, 10):
        publish(client, "t/1", "once", qos=2, publisher="more", packet=packet)
    Session(client, "{kept}").fetch(window=30)  # among it a message with an expiry of its own


def exercise_everything(server: Server) -> None:
    """The same in two databases, in a transaction and in a script."""
    exercise(server.client())
    exercise(server.client(db=3))
    client = server.client()
    with client.pipeline(transaction=True) as pipe:
        pipe.execute_command("SESSION.ADD", "{multi}", "a", "b")
        pipe.execute_command("SESSION.ACK", "{multi}", 1)
        pipe.execute_command("TOPIC.PUBLISH", "t/1", "in a transaction", "QOS", 1)
        pipe.execute()
    client.eval("return redis.call('SESSION.ADD', KEYS[1], ARGV[1])", 1, "{script}", "a")


def contents(server: Server) -> tuple[bytes, dict[bytes, Key], dict[bytes, Key]]:
    """The digest of all databases, and both that are used, with expiry times."""
    return digest(server.client()), snapshot(server.client()), snapshot(server.client(db=3))


def assert_same(server: Server, want: tuple[bytes, dict[bytes, Key], dict[bytes, Key]]) -> None:
    """The server holds the same keys, values and expiry times."""
    got = contents(server)
    assert_same_keys(got[1], want[1])
    assert_same_keys(got[2], want[2])
    assert got[0] == want[0]


def assert_in_service(server: Server) -> None:
    """The sessions continue where they were: identifiers, epochs, subscriptions, retained messages."""
    client = server.client()
    for db in (0, 3):
        assert_routes_exactly(server.client(db=db), TOPICS)
    assert retained_topics(client) == [b"r", b"r/ttl"]
    kept = Session(client, "{kept}")
    last = kept.last()
    assert kept.add("next").packet_ids == [last + 1]
    wrapped = Session(client, "{wrapped}")
    assert wrapped.add("e") == ([3], 65538, 0, 0)
    wrapped.ack(*wrapped.fetch().packet_ids)
    assert wrapped.add("f").serial == 65539
    assert Session(client, "{emptied}").add("b") == ([2], 2, 0, 0)
    before = Session(client, "{opened}").info()
    assert before["owner"] == b"bridge-2"
    assert Session(client, "{opened}").touch(before["epoch"]) == b"OK"
    after = Session(client, "{opened}").open("bridge-3", expiry=5)
    assert after.epoch > before["epoch"]
    assert after.present == 1
    with pytest.raises(redis.ResponseError, match=r"^FENCED"):
        Session(client, "{opened}").fetch(epoch=before["epoch"])
    assert_indexes_hold(client)


# --- Replicas ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", [False, True], ids=["without the module", "with the module"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_replica_ends_with_the_same_keys_and_expiry_times(fresh_server: MakeServer, module: bool, when: str) -> None:
    primary = fresh_server()
    if when == "after":
        exercise_everything(primary)
    replica = fresh_server(replica_of=primary, module=module)
    exercise_everything(primary)
    wait_for_replica(primary.client(), replica.client())
    assert_same(replica, contents(primary))


def test_a_replica_with_the_module_serves_questions_and_no_writes(fresh_server: MakeServer) -> None:
    primary = fresh_server()
    replica = fresh_server(replica_of=primary)
    exercise_everything(primary)
    wait_for_replica(primary.client(), replica.client())
    follower = replica.client()
    infos = [Session(client, "{kept}").info() for client in (follower, primary.client())]
    assert abs(infos[0].pop("ttl_ms") - infos[1].pop("ttl_ms")) < 60_000
    assert infos[0].pop("dropped") <= infos[1].pop("dropped")  # it is told at most once a second
    assert infos[0] == infos[1]
    assert Session(follower, "{kept}").last() == Session(primary.client(), "{kept}").last()
    assert Session(follower, "{kept}").subscriptions() == {b"t/#": 1, b"u": 2}
    assert retained_topics(follower) == [b"r", b"r/ttl"]
    before = contents(replica)
    with RawClient(replica.port) as raw:
        for command in (
            ("SESSION.ADD", "{kept}", "m"),
            ("SESSION.IMPORT", "{kept}", "MESSAGES", 0),
            ("SESSION.FETCH", "{kept}"),
            ("SESSION.ACK", "{kept}", 21),
            ("SESSION.DROP", "{kept}"),
            ("SESSION.OPEN", "{kept}", "OWNER", "o"),
            ("SESSION.SUBSCRIBE", "{kept}", "z", 1),
            ("SESSION.UNSUBSCRIBE", "{kept}", "u"),
            ("TOPIC.PUBLISH", "t/1", "m", "QOS", 1),
            ("TOPIC.PUBLISH", "r", "", "RETAIN"),
        ):
            with pytest.raises(ReplyError, match=r"^READONLY"):
                raw.call(*command)
    assert_same(replica, before)


def test_the_indexes_of_a_replica_follow_its_primary(fresh_server: MakeServer) -> None:
    primary = fresh_server()
    replica = fresh_server(replica_of=primary)
    client, follower = primary.client(), replica.client()
    exercise_everything(primary)
    for change in (
        lambda: client.hset("{by hand}_subscriptions", "t/1", "1"),
        lambda: client.rename("{by hand}_subscriptions", "{renamed}_subscriptions"),
        lambda: client.delete("{kept}_subscriptions"),
        lambda: client.pexpire("{opened}_subscriptions", 1),
        lambda: client.swapdb(0, 3),
        lambda: client.set("{kept}_subscriptions", "x"),
        lambda: Session(client, "{new}").subscribe(("t/1", 1)),
        lambda: client.execute_command("DEBUG", "RELOAD"),
        client.flushdb,
        client.flushall,
    ):
        change()
        assert_indexes_hold(client)
        wait_for_replica(client, follower)
        eventually(lambda: follower.execute_command("HOLDMQ.CHECK") == [], what="indexes of the replica that hold")


def test_a_promoted_replica_continues_where_its_primary_was(fresh_server: MakeServer) -> None:
    primary = fresh_server()
    replica = fresh_server(replica_of=primary)
    exercise_everything(primary)
    client = primary.client()
    client.set("written", "by the connection that waits: WAIT is for what it wrote, and all before")
    assert client.wait(1, 5000) == 1
    want = contents(primary)
    primary.kill()
    replica.client().replicaof("NO", "ONE")
    assert_same(replica, want)
    assert_in_service(replica)


def test_a_promoted_replica_hands_out_no_identifier_that_its_primary_may_have_handed_out_unheard(
    fresh_server: MakeServer,
) -> None:
    primary = fresh_server()
    replica = fresh_server(replica_of=primary)
    Session(primary.client(), "{c}").open("bridge-1")
    told = Session(primary.client(), "{c}").add("told")
    wait_for_replica(primary.client(), replica.client())
    replica.client().replicaof("NO", "ONE")  # the primary goes on, cut off, and is lost
    unheard = Session(primary.client(), "{c}").add(*(str(number) for number in range(1000)))
    primary.kill()
    session = Session(replica.client(), "{c}")
    first, second = session.add("first"), session.add("second")
    assert not {*first.packet_ids, *second.packet_ids} & {*told.packet_ids, *unheard.packet_ids}
    assert first.serial > unheard.serial
    assert second.packet_ids == [first.packet_ids[0] + 1]  # it skips once
    assert [entry.value for entry in session.fetch_all()] == [b"told", b"first", b"second"]
    Session(replica.client(), "{new}").open("bridge-1")
    assert Session(replica.client(), "{new}").add("x").packet_ids == [1]
    assert_indexes_hold(replica.client())


def test_a_replica_that_was_promoted_after_it_followed_without_the_module_is_taken_over_whole(
    fresh_server: MakeServer,
) -> None:
    primary = fresh_server()
    replica = fresh_server(replica_of=primary, module=False, aof=True, config=["appendfsync always"])
    exercise_everything(primary)
    wait_for_replica(primary.client(), replica.client())
    want = contents(primary)
    primary.kill()
    replica.client().replicaof("NO", "ONE")
    replica.client().config_rewrite()
    replica.replica_of = None
    replica.restart(module=True)
    assert_same(replica, want)
    assert_in_service(replica)


# --- The append-only file and snapshots -------------------------------------------------------------------------------

KEEP_ALL = ["appendfsync always"]


@pytest.mark.parametrize("preamble", ["yes", "no"])
def test_a_killed_server_comes_back_with_all_and_so_does_one_without_the_module(
    fresh_server: MakeServer, preamble: str
) -> None:
    server = fresh_server(aof=True, config=[*KEEP_ALL, f"aof-use-rdb-preamble {preamble}"])
    exercise_everything(server)
    want = contents(server)
    server.kill()
    server.restart()
    assert_same(server, want)
    assert_indexes_hold(server.client())
    server.kill()
    server.restart(module=False)
    assert_same(server, want)
    server.restart(module=True)
    assert_same(server, want)
    assert_in_service(server)


@pytest.mark.parametrize("preamble", ["yes", "no"])
def test_a_rewritten_append_only_file_holds_the_same(fresh_server: MakeServer, preamble: str) -> None:
    server = fresh_server(aof=True, config=[*KEEP_ALL, f"aof-use-rdb-preamble {preamble}"])
    exercise_everything(server)
    client = server.client()
    client.bgrewriteaof()
    eventually(lambda: not client.info("persistence")["aof_rewrite_in_progress"], 20)
    eventually(lambda: not client.info("persistence")["aof_rewrite_scheduled"], 20)
    assert client.info("persistence")["aof_last_bgrewrite_status"] == "ok"
    Session(client, "{kept}").add("after the rewrite")
    want = contents(server)
    server.kill()
    server.restart(module=False)
    assert_same(server, want)
    server.restart(module=True)
    assert_same(server, want)
    assert_in_service(server)


def test_a_snapshot_loads_without_the_module_and_again_with_it(fresh_server: MakeServer) -> None:
    server = fresh_server()
    exercise_everything(server)
    want = contents(server)
    server.client().save()
    server.kill()
    server.restart(module=False)
    assert_same(server, want)
    server.restart(module=True)
    assert_same(server, want)
    assert_in_service(server)


def test_a_reload_keeps_all(fresh_server: MakeServer) -> None:
    server = fresh_server()
    exercise_everything(server)
    want = contents(server)
    server.client().execute_command("DEBUG", "RELOAD")
    assert_same(server, want)
    assert_in_service(server)


def test_loading_the_append_only_file_again_keeps_all(fresh_server: MakeServer) -> None:
    server = fresh_server(aof=True, config=KEEP_ALL)
    exercise_everything(server)
    want = contents(server)
    server.client().execute_command("DEBUG", "LOADAOF")
    assert_same(server, want)
    assert_in_service(server)


def test_dumped_keys_of_a_session_can_be_restored_elsewhere(fresh_server: MakeServer) -> None:
    here, there = fresh_server(), fresh_server()
    exercise(here.client())
    for name in sorted(Session(here.client(), "{opened}").keys()):
        dumped = here.client().dump(name)
        assert dumped is not None
        there.client().restore(name, here.client().execute_command("PEXPIRETIME", name), dumped, absttl=True)
    target = Session(there.client(), "{opened}")
    assert target.fetch() == Session(here.client(), "{opened}").fetch()
    assert target.subscriptions() == {b"r": 1}
    assert publish(there.client(), "r", "m", qos=1) == 1
    assert_indexes_hold(there.client())


# --- Time passes while the server is down -----------------------------------------------------------------------------


def test_what_expires_while_the_server_is_down_is_gone_when_it_comes_back(fresh_server: MakeServer) -> None:
    server = fresh_server(aof=True, config=KEEP_ALL)
    client = server.client()
    short, long = Session(client, "{short}"), Session(client, "{long}")
    for session, expiry in ((short, 1), (long, 100)):
        epoch = session.open(expiry=expiry).epoch
        session.subscribe(("t/#", 1))
        session.add("lasts", ttl=100)
        session.add("does not", ttl=1)
        session.close(epoch)
    ends = client.pexpiretime("{short}_session")
    server.kill()
    other = fresh_server(module=False)
    eventually(lambda: int(other.client().time()[0]) * 1000 > ends + 1000)
    server.restart()
    client = server.client()
    short, long = Session(client, "{short}"), Session(client, "{long}")
    assert short.info()["exists"] == 0
    assert short.subscriptions() == {}
    assert short.fetch().entries == []
    assert long.info()["exists"] == 1
    assert long.fetch().values == [b"lasts"]
    assert publish(client, "t/1", "m", qos=1) == 1
    assert_indexes_hold(client)


def test_messages_that_were_acknowledged_to_the_publisher_are_there_after_crashes(fresh_server: MakeServer) -> None:
    server = fresh_server(aof=True, config=KEEP_ALL)
    Session(server.client()).subscribe(("t/#", 1))
    sent = [str(number).encode() for number in range(300)]
    for number, payload in enumerate(sent):
        if number % 100 == 50:
            server.kill()
            server.restart()
        assert publish(server.client(), f"t/{number % 5}", payload) == 1
    server.kill()
    server.restart()
    entries = Session(server.client()).fetch_all()
    assert payloads(entries) == sent
    assert [entry.packet_id for entry in entries] == list(range(1, 301))


def test_a_snapshot_moved_to_another_folder_is_all_that_is_needed(fresh_server: MakeServer) -> None:
    source = fresh_server()
    exercise_everything(source)
    source.client().save()
    want = contents(source)
    target = fresh_server()
    target.stop()
    shutil.copy(source.directory / "dump.rdb", target.directory / "dump.rdb")
    target.start()
    assert_same(target, want)
    assert_in_service(target)
