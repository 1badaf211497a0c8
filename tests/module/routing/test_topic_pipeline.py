"""TOPIC.PIPELINE runs many TOPIC.PUBLISH as one command: each does, and replies, what it does and replies alone."""

import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import redis

from holdmq import core
from tests.module.history_support import replay_all, store
from tests.module.sessions_support import (
    Entry,
    Inbox,
    Session,
    assert_indexes_hold,
    assert_same_keys,
    error_of,
    names,
    payloads,
    retained_topics,
    snapshot,
    unchanged,
    wait_for_replica,
)
from tests.support import RawClient, Server, eventually
from tests.support.raw import encoded

Word = str | bytes | int
Publish = Sequence[Word]  # behind TOPIC.PUBLISH

MOST = 1024


def packed(*publishes: Publish) -> bytes:
    """The argument of TOPIC.PIPELINE."""
    return b"".join(encoded("TOPIC.PUBLISH", *publish) for publish in publishes)


def pipeline(client: redis.Redis, *publishes: Publish) -> list[int | str]:
    """The replies, errors as text."""
    replies = client.execute_command("TOPIC.PIPELINE", packed(*publishes))
    return [f"{reply}" if isinstance(reply, Exception) else reply for reply in replies]


def one_by_one(client: redis.Redis, *publishes: Publish) -> list[int | str]:
    """The same by TOPIC.PUBLISH."""
    replies: list[int | str] = []
    for publish in publishes:
        try:
            replies.append(client.execute_command("TOPIC.PUBLISH", *publish))
        except redis.ResponseError as error:
            replies.append(str(error))
    return replies


def test_each_publish_has_its_reply_and_each_session_its_messages_in_order(client: redis.Redis) -> None:
    both, one = Session(client, "{both}"), Session(client, "{one}")
    both.subscribe(("a/+", 1), ("b", 1))
    one.subscribe(("a/1", 1))
    replies = pipeline(
        client,
        ("a/1", "x", "QOS", 1, "FROM", "dev"),
        ("b", "y", "QOS", 1),
        ("nobody", "z", "QOS", 1),
        ("a/1", "w", "QOS", 1, "PROPERTIES", b"\x03\x00\x01x", "TTL", 60),
    )
    assert replies == [2, 1, 0, 2]
    assert payloads(both.fetch().entries) == [b"x", b"y", b"w"]
    assert payloads(one.fetch().entries) == [b"x", b"w"]
    first, last = (core.Record.decode(value) for value in one.fetch().values)
    assert (first.publisher, first.expires_ms) == (b"dev", 0)
    assert (last.properties, last.expires_ms - last.time_ms) == (b"\x03\x00\x01x", 60_000)


def test_an_error_of_one_publish_does_not_affect_the_others(client: redis.Redis) -> None:
    session = Session(client)
    session.subscribe(("t", 1))
    publishes: list[Publish] = [
        ("t", "1", "QOS", 1),
        ("t", "2", "QOS", 3),
        ("t/#", "3", "QOS", 1),
        ("t", "4", "QOS", 1, "FROM", "c", "EPOCH", 7),
        ("t", "5", "QOS", 1, "SURPRISE"),
        ("t", "6", "QOS"),
        ("t", "6", "QOS", "01"),
        ("t", "6", "QOS", 1, "TTL", 2**32),
        ("t", "7", "QOS", 1),
    ]
    replies = pipeline(client, *publishes)
    assert replies == [1, *one_by_one(client, *publishes[1:-1]), 1]
    assert [isinstance(reply, str) for reply in replies] == [False, *[True] * 7, False]
    assert payloads(session.fetch().entries) == [b"1", b"7"]


WHOLE = encoded("TOPIC.PUBLISH", "t", "x", "QOS", 1)
EXPECTED = "expected at most 1024 whole TOPIC.PUBLISH commands, as RESP arrays"


@pytest.mark.parametrize(
    ("commands", "wrong"),
    [
        (b"\r\n", "publish 1 is no whole RESP array"),
        (b"$1\r\na\r\n", "publish 1 is no whole RESP array"),
        (WHOLE + b"rubbish", "publish 2 is no whole RESP array"),
        (WHOLE + encoded("TOPIC.PUBLISH", "t"), "publish 2 has fewer than 3 words, or more than 4096"),
        (WHOLE + b"*-1\r\n", "publish 2 has fewer than 3 words, or more than 4096"),
        (encoded("TOPIC.PUBLISH", *["t"] * 4096), "publish 1 has fewer than 3 words, or more than 4096"),
        (encoded("TOPIC.PUBLISH", *["t"] * 4095) * 17, "publish 17 brings the words to more than 65536"),
        (WHOLE + encoded("SET", "t", "x"), "publish 2 is another command"),
        (WHOLE + encoded("TOPIC.PIPELINE", "t", "x"), "publish 2 is another command"),
        (WHOLE + b"*3\r\n$13\r\nTOPIC.PUBLISH\r\n:1\r\n$1\r\nx\r\n", "publish 2 has a word that is not a string"),
        (WHOLE + b"*3\r\n$13\r\nTOPIC.PUBLISH\r\n$-1\r\n$1\r\nx\r\n", "publish 2 has a word that is not a string"),
        (WHOLE + b"*3\r\n$13\r\nTOPIC.PUBLISH\r\n$1\r\nt\r\n$100\r\nx\r\n", "publish 2 is cut off"),
        (WHOLE * (MOST + 1), "publish 1025 is one too many"),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{len(value)} bytes",
)
def test_bytes_that_are_not_publishes_are_refused_as_a_whole(client: redis.Redis, commands: bytes, wrong: str) -> None:
    Session(client).subscribe(("t", 1))
    with unchanged(client):
        assert error_of(client, "TOPIC.PIPELINE", commands) == f"{wrong}; {EXPECTED}"


def test_an_empty_pipeline_publishes_nothing_and_is_refused_without_memory(client: redis.Redis) -> None:
    Session(client).subscribe(("t", 1))
    with unchanged(client):
        assert client.execute_command("TOPIC.PIPELINE", b"") == []
    client.config_set("maxmemory", 1)
    assert "used memory" in str(error_of(client, "TOPIC.PIPELINE", b""))


def test_cut_anywhere_nothing_is_published(client: redis.Redis) -> None:
    Session(client).subscribe(("t", 1))
    commands = packed(("t", "1", "QOS", 1), ("t", "22"))
    with unchanged(client):
        for end in range(len(commands)):
            if end not in (0, len(WHOLE)):
                assert str(error_of(client, "TOPIC.PIPELINE", commands[:end])).endswith(EXPECTED), f"cut at {end}"


def test_another_number_of_arguments_is_refused(client: redis.Redis) -> None:
    for words in ((), (WHOLE, WHOLE)):
        assert "wrong number of arguments" in str(error_of(client, "TOPIC.PIPELINE", *words))


def test_as_many_as_are_allowed(client: redis.Redis) -> None:
    session = Session(client)
    session.subscribe(("t", 1))
    assert pipeline(client, *[("t", str(i), "QOS", 1) for i in range(MOST)]) == [1] * MOST
    assert payloads(session.fetch_all()) == [str(i).encode() for i in range(MOST)]
    assert (session.last(), client.get("{c}_last_packet_id")) == (MOST, str(MOST).encode())


def test_inboxes_hear_all_in_order_whatever_the_quality_of_service(server: Server, client: redis.Redis) -> None:
    Session(client).subscribe(("t/+", 2))
    with Inbox(server) as inbox:
        qualities = [1, 0, 0, 1, 1, 0, 1]
        publishes = [(f"t/{i}", str(i), "QOS", qos) for i, qos in enumerate(qualities)]
        assert pipeline(client, *publishes) == [1] * len(publishes)
        heard = inbox.take()
    records = [core.Record.decode(delivery.record) for delivery in heard]
    assert [record.payload for record in records] == [str(i).encode() for i in range(len(publishes))]
    assert [record.qos for record in records] == qualities
    assert [delivery.packet_id for delivery in heard] == [1, 0, 0, 2, 3, 0, 4]
    queued = [delivery for delivery in heard if delivery.packet_id]
    assert [delivery.previous for delivery in queued[1:]] == [delivery.serial for delivery in queued[:-1]]


@pytest.mark.usefixtures("server")
def test_a_client_that_listens_to_the_inbox_gets_no_push_inside_of_the_reply(raw: Callable[..., RawClient]) -> None:
    connection = raw(protocol=3)
    for key in ("{a}", "{b}"):
        connection.call("SESSION.SUBSCRIBE", key, "t/+", 1)
        connection.send("SUBSCRIBE", f"{key}_inbox")
        assert connection.read_message()[0] == b"subscribe"
    publishes: list[Publish] = [("t/1", "x", "QOS", 1), ("t/2", "y"), ("t/3", "z", "QOS", 9), ("t/4", "w", "RETAIN")]
    connection.send("TOPIC.PIPELINE", packed(*publishes))
    got = [connection.read() for _ in range(7)]
    (reply,) = (one for one in got if isinstance(one, list) and one[0] != b"message")
    assert [one for one in reply if isinstance(one, int)] == [2, 2, 2]
    assert "QOS" in str(reply[2])
    assert connection.call("PING") == "PONG"


def test_where_the_queue_has_no_room_for_all_the_last_ones_stay_and_all_are_heard(
    server: Server, client: redis.Redis
) -> None:
    client.config_set("holdmq.session-limit", 3)
    session = Session(client)
    session.subscribe(("t", 1))
    with Inbox(server) as inbox:
        assert pipeline(client, *[("t", str(i), "QOS", 1) for i in range(8)]) == [1] * 8
        assert [core.Record.decode(one.record).payload for one in inbox.take()] == [b"%d" % i for i in range(8)]
    assert payloads(session.fetch().entries) == [b"5", b"6", b"7"]
    session.sent(session.fetch().serials[-1])
    with unchanged(client):
        assert pipeline(client, ("t", "x", "QOS", 1), ("t", "y", "QOS", 1)) == [0, 0]


def test_a_session_that_cannot_be_served_does_not_harm_the_others(client: redis.Redis) -> None:
    good = Session(client, "{good}")
    for key in ("{messages}", "{last_packet_id}", "{good}"):
        Session(client, key).subscribe(("t", 1))
    client.set("{messages}_messages", "of another type")
    client.rpush("{last_packet_id}_last_packet_id", "of another type")
    assert pipeline(client, ("t", "1", "QOS", 1), ("t", "2", "QOS", 1)) == [1, 1]
    assert payloads(good.fetch().entries) == [b"1", b"2"]
    assert Session(client, "{last_packet_id}").fetch().entries == []


def test_what_history_cannot_keep_is_refused_alone_and_the_rest_is_kept(client: redis.Redis) -> None:
    for name in ("good", "bad"):
        store(client, name, f"{name}/#")
    client.delete("{bad/0}_history")
    client.set("{bad/0}_history", "of another type")
    session = Session(client)
    session.subscribe(("#", 1))
    topics = ("good/1", "bad/1", "plain", "good/2")
    first, second, third, fourth = pipeline(client, *[(topic, topic, "QOS", 1) for topic in topics])
    assert (first, third, fourth) == (1, 1, 1)
    assert str(second).startswith(("WRONGTYPE", "another program changed the history of store"))
    assert payloads(session.fetch().entries) == [b"good/1", b"plain", b"good/2"]
    kept = replay_all(client, "good/#")
    assert [core.Record.decode(entry.record).payload for entry in kept] == [b"good/1", b"good/2"]


def test_groups_get_each_message_once_after_what_was_published_before(client: redis.Redis) -> None:
    members = [Session(client, key) for key in ("{a}", "{b}")]
    for member in members:
        member.open()
        member.subscribe(("$share/g/t/#", 1), ("own", 1))
    publishes: list[Publish] = [("own" if i % 3 == 0 else "t/x", str(i), "QOS", 1) for i in range(12)]
    assert pipeline(client, *publishes) == [2 if topic == "own" else 1 for topic, *_ in publishes]
    got = [[int(payload) for payload in payloads(member.fetch().entries)] for member in members]
    assert got == [sorted(one) for one in got]
    assert sorted(i for one in got for i in one if i % 3 != 0) == [i for i in range(12) if i % 3 != 0]
    assert [[i for i in one if i % 3 == 0] for one in got] == [[0, 3, 6, 9]] * 2


# --- as TOPIC.PUBLISH does --------------------------------------------------------------------------------------------


class World:
    """Sessions of all kinds in one database; the same in each."""

    LIMIT = 12

    def __init__(self, server: Server, database: int) -> None:
        self.client = server.client(db=database)
        self.sessions = [Session(self.client, f"{{s{i}}}") for i in range(6)]
        self.epochs = [session.open(expiry=1000).epoch for session in self.sessions[:3]]
        self.sessions[0].subscribe(("t/#", 1))
        self.sessions[1].subscribe(("t/+", 2), ("t/1", 0))
        self.sessions[2].subscribe(("t/1", 0))
        self.sessions[3].subscribe(("t/2", 1))
        self.sessions[4].subscribe(("kept/#", 2), ("t/2", 2))
        self.sessions[5].subscribe(("t/0", 1))
        store(self.client, "all", "kept/history/#")

    def draw(self, chance: random.Random) -> Publish:
        """A publish; the same for the same state of `chance`."""
        topic = chance.choice(("t/0", "t/1", "t/2", "t/1", "t/3", "kept/1", "kept/history/1", "none", "t/+", ""))
        words: list[Word] = [topic, str(chance.randrange(10**6))]
        qos = chance.choice((0, 1, 1, 1, 2))
        words += ["QOS", qos] if chance.random() < 0.9 else []
        words += ["TTL", chance.choice((0, 100, 100, "x"))] if chance.random() < 0.15 else []
        words += ["retain"] if chance.random() < 0.1 else []
        owner = chance.randrange(4)
        words += ["FROM", f"s{owner}"] if chance.random() < 0.8 else []
        if owner < len(self.epochs) and chance.random() < 0.5:
            words += ["EPOCH", self.epochs[owner] if chance.random() < 0.8 else 1]
        words += ["PACKET", chance.randrange(1, 4)] if qos == 2 and chance.random() < 0.5 else []
        words += ["PROPERTIES", b"\x03\x00\x01x"] if chance.random() < 0.2 else []
        words += ["QOS"] if chance.random() < 0.02 else []
        return words

    def touch(self, chance: random.Random) -> Any:
        """Something that changes queues in between."""
        session = self.sessions[chance.randrange(len(self.sessions))]
        entries = session.fetch(count=chance.randrange(1, 8)).entries
        ids = [entry.packet_id for entry in entries if chance.random() < 0.7]
        return (ids, session.ack(*ids) if ids else 0)

    def state(self) -> dict[str, Any]:
        """All that does not tell the time."""
        queues = {session.key: [_timeless(entry) for entry in session.fetch_all()] for session in self.sessions}
        strings = {name: self.client.get(name) for name in names(self.client, "*_last_packet_id")}
        references = {
            name: self.client.zrange(name, 0, -1, withscores=True) for name in names(self.client, "*}_messages")
        }
        return {
            "queues": queues,
            "strings": strings,
            "references": references,
            "names": sorted(names(self.client)),
            "retained": retained_topics(self.client),
            "history": len(self.client.execute_command("HISTORY.REPLAY", "#", "FROM", 0)[0]),
        }


def _timeless(entry: Entry) -> tuple[Any, ...]:
    record = core.Record.decode(entry.value)
    life = record.expires_ms - record.time_ms if record.expires_ms else 0
    return (
        entry.packet_id,
        entry.serial,
        entry.state,
        record.topic,
        record.payload,
        record.qos,
        record.publisher,
        life,
    )


@pytest.mark.parametrize("seed", [random.randrange(10**9) for _ in range(4)], ids=lambda seed: "seed")
def test_random_publishes_do_what_they_do_one_by_one(server: Server, client: redis.Redis, seed: int) -> None:
    print(f"seed {seed}")
    client.config_set("holdmq.session-limit", World.LIMIT)
    alone, together = World(server, 1), World(server, 2)
    chance = random.Random(seed)
    for _ in range(40):
        count, state = chance.randrange(1, 30), chance.getstate()
        publishes = []
        for world in (alone, together):
            chance.setstate(state)
            publishes.append([world.draw(chance) for _ in range(count)])
        replies = one_by_one(alone.client, *publishes[0])
        assert _same_epochs(pipeline(together.client, *publishes[1]), together) == _same_epochs(replies, alone)
        state = chance.getstate()
        touched = alone.touch(chance)
        chance.setstate(state)
        assert together.touch(chance) == touched
        assert together.state() == alone.state()
    assert_indexes_hold(together.client)


def _same_epochs(replies: list[int | str], world: World) -> list[int | str]:
    """Epochs differ between databases."""
    found: list[int | str] = []
    for reply in replies:
        text = reply
        for number, epoch in enumerate(world.epochs):
            text = text.replace(str(epoch), f"<epoch {number}>") if isinstance(text, str) else text
        found.append(text)
    return found


# --- what is told to the append-only file and to replicas -------------------------------------------------------------


def fill(client: redis.Redis, seed: int) -> None:
    """Pipelines to sessions with small queues, so that much is added, trimmed and acknowledged; some are not plain."""
    chance = random.Random(seed)
    client.config_set("holdmq.session-limit", 20)
    sessions = [Session(client, f"{{s{i}}}") for i in range(5)]
    for i, session in enumerate(sessions):
        session.subscribe((f"t/{i}", 1), ("t/all", 2))
    for number in range(30):
        count = chance.randrange(1, 40)
        topics = [chance.choice(("t/0", "t/1", "t/2", "t/3", "t/all")) for _ in range(count)]
        ttl_s = chance.choice((None, None, 1000, 1_000_000))
        life: list[Word] = [] if ttl_s is None else ["TTL", ttl_s]
        exact: list[Word] = ["QOS", 2, "FROM", "s1", "PACKET", number + 1]
        plain: list[Word] = ["QOS", 1]
        kinds = [*[plain] * 8, [*plain, "RETAIN"], exact]
        pipeline(client, *[(topic, f"{number}", *chance.choice(kinds), *life) for topic in topics])
        session = chance.choice(sessions)
        ids = session.fetch(count=chance.randrange(1, 10)).packet_ids
        if ids:
            session.ack(*ids)


def test_the_append_only_file_has_the_same(fresh_server: Callable[..., Server]) -> None:
    server = fresh_server(aof=True, config=["appendfsync always"])
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    fill(server.client(), seed)
    before = snapshot(server.client())
    server.kill()
    server.restart()
    assert_same_keys(snapshot(server.client()), before)
    assert_indexes_hold(server.client())


def test_what_expired_while_the_server_was_away_does_not_come_back(fresh_server: Callable[..., Server]) -> None:
    server = fresh_server(aof=True, config=["appendfsync always"])
    session = Session(server.client())
    session.add("short", "short", ttl=1)
    session.add("long", "long", ttl=1000)
    ends_ms = max(key.expires_ms for key in snapshot(server.client()).values() if key.value == b"short")
    server.kill()
    eventually(lambda: time.time() * 1000 > ends_ms, what="the end of the messages")
    server.restart()
    assert Session(server.client()).fetch().values == [b"long", b"long"]
    assert [key.value for key in snapshot(server.client()).values()].count(b"short") == 0


def test_a_server_without_the_module_loads_the_append_only_file(fresh_server: Callable[..., Server]) -> None:
    server = fresh_server(aof=True, config=["appendfsync always"])
    fill(server.client(), 1)
    before = snapshot(server.client())
    server.kill()
    plain = fresh_server(aof=True, directory=server.directory, module=False)
    assert_same_keys(snapshot(plain.client()), before)


def test_replicas_have_the_same_by_commands_that_older_servers_know(fresh_server: Callable[..., Server]) -> None:
    primary = fresh_server(aof=True)
    replica = fresh_server(config=[f"replicaof 127.0.0.1 {primary.port}"], module=False)
    wait_for_replica(primary.client(), replica.client())
    fill(primary.client(), 2)
    wait_for_replica(primary.client(), replica.client())
    assert_same_keys(snapshot(replica.client()), snapshot(primary.client()))
    assert "cmdstat_msetex" not in replica.client().info("commandstats")


def test_messages_of_several_sessions_go_as_one_command_where_the_server_has_one(
    fresh_server: Callable[..., Server],
) -> None:
    server = fresh_server(aof=True, config=["appendfsync always", "aof-use-rdb-preamble no"])
    client = server.client()
    for i in range(3):
        Session(client, f"{{s{i}}}").subscribe(("t", 1))
        Session(client, f"{{other{i}}}").subscribe(("other", 1))

    def written(topic: str) -> bytes:
        """What two messages write."""
        before = sum(path.stat().st_size for path in server.directory.rglob("*.aof"))
        pipeline(client, (topic, "a", "QOS", 1), (topic, "b", "QOS", 1))
        return b"".join(path.read_bytes() for path in sorted(server.directory.rglob("*.aof")))[before:]

    known = b"msetex" in client.execute_command("COMMAND LIST")
    eventually(lambda: (b"\r\nMSETEX\r\n" in written("other")) == known, what="a server that knows of no replica")
    text = written("t")
    assert text.count(b"\r\nMSETEX\r\n") == known
    assert text.count(b"\r\nSET\r\n") == (3 if known else 9)  # counters, and messages
    assert text.count(b"\r\nZADD\r\n") == 3
    assert text.count(b"\r\nMULTI\r\n") == 1
