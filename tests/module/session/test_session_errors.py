"""Wrong arguments and wrong types: the error names what was wrong, and nothing has changed."""

from collections.abc import Callable

import pytest
import redis

from tests.module.sessions_support import Session, assert_indexes_hold, error_of, now_ms, publish, unchanged
from tests.support import RawClient, ReplyError, Server

Command = tuple[str | bytes | int, ...]

TOO_LONG = "x" * 65536
TOO_DEEP = "/".join("x" * 129)


@pytest.fixture
def filled(client: redis.Redis) -> Session:
    """A session that has some of everything, among retained messages."""
    session = Session(client)
    session.open(expiry=60)
    session.add("a", "b", "c")
    session.subscribe(("x/#", 1), ("y", 2))
    publish(client, "r", "kept", qos=1, retain=True)
    return session


def refusal(raw: RawClient, command: Command) -> str:
    """The error that a command gets."""
    with pytest.raises(ReplyError) as refused:
        raw.call(*command)
    return str(refused.value)


# --- Numbers ----------------------------------------------------------------------------------------------------------

# Command up to the number, behind it, the name that the error gives it, lowest and highest value.
NUMBERS: list[tuple[Command, Command, str, int, int]] = [
    (("SESSION.ADD", "{c}", "LIMIT"), ("m",), "LIMIT", 1, 65535),
    (("SESSION.ADD", "{c}", "TTL"), ("m",), "TTL", 1, 2147483647),
    (("SESSION.ADD", "{c}", "EXPIRING"), ("m",), "seconds", 1, 2147483647),
    (("SESSION.ADD", "{c}", "EXPIRING", 5, "m"), ("n",), "seconds", 1, 2147483647),
    (("SESSION.IMPORT", "{c}", "MERGE", "LIMIT"), ("MESSAGES", 0), "LIMIT", 1, 65535),
    (("SESSION.FETCH", "{c}", "EPOCH"), (), "EPOCH", 0, 2**63 - 1),
    (("SESSION.FETCH", "{c}", "COUNT"), (), "COUNT", 1, 10000),
    (("SESSION.FETCH", "{c}", "BYTES"), (), "BYTES", 1, 2**30),
    (("SESSION.FETCH", "{c}", "AFTER"), (), "AFTER", 0, 2**53),
    (("SESSION.ACK", "{c}"), (), "packet-id", 1, 65535),
    (("SESSION.ACK", "{c}", 1, 2), (3,), "packet-id", 1, 65535),
    (("SESSION.ACK", "{c}", "EPOCH"), (1,), "EPOCH", 0, 2**63 - 1),
    (("SESSION.ACK", "{c}", "NEXT"), (1,), "NEXT", 1, 10000),
    (("SESSION.FETCH", "{c}", "WINDOW"), (), "WINDOW", 1, 65535),
    (("SESSION.SENT", "{c}"), (), "serial", 0, 2**53),
    (("SESSION.SENT", "{c}", "EPOCH"), (1,), "EPOCH", 0, 2**63 - 1),
    (("SESSION.SENT", "{c}", "WINDOW"), (1,), "WINDOW", 1, 65535),
    (("SESSION.RELEASE", "{c}"), (), "packet-id", 1, 65535),
    (("SESSION.RELEASE", "{c}", 1), (2,), "packet-id", 1, 65535),
    (("SESSION.RELEASE", "{c}", "EPOCH"), (1,), "EPOCH", 0, 2**63 - 1),
    (("SESSION.RECEIVE", "{c}"), (), "packet-id", 1, 65535),
    (("SESSION.RECEIVE", "{c}", "EPOCH"), (1,), "EPOCH", 0, 2**63 - 1),
    (("SESSION.COMPLETE", "{c}"), (), "packet-id", 1, 65535),
    (("SESSION.COMPLETE", "{c}", 1), (), "packet-id", 1, 65535),
    (("SESSION.COMPLETE", "{c}", "EPOCH"), (1,), "EPOCH", 0, 2**63 - 1),
    (("SESSION.DROP", "{c}", "EPOCH"), (), "EPOCH", 0, 2**63 - 1),
    (("SESSION.OPEN", "{c}", "OWNER", "o", "EXPIRY"), (), "EXPIRY", 0, 4294967295),
    (("SESSION.OPEN", "{c}", "OWNER", "o", "CLEAN", "LEASE"), (), "LEASE", 1, 4294967295),
    (("SESSION.OPEN", "{c}", "OWNER", "o", "WINDOW"), (), "WINDOW", 1, 65535),
    (("SESSION.TOUCH", "{c}", "EPOCH"), (), "EPOCH", 1, 2**63 - 1),
    (("SESSION.CLOSE", "{c}", "EPOCH"), (), "EPOCH", 1, 2**63 - 1),
    (("SESSION.CLOSE", "{c}", "EPOCH"), ("EXPIRY", 5), "EPOCH", 1, 2**63 - 1),
    (("SESSION.SUBSCRIBE", "{c}", "EPOCH"), ("z", 1), "EPOCH", 0, 2**63 - 1),
    (("SESSION.SUBSCRIBE", "{c}", "z"), (), "options", 0, 63),
    (("SESSION.SUBSCRIBE", "{c}", "x/#", 0, "z"), (), "options", 0, 63),
    (("SESSION.UNSUBSCRIBE", "{c}", "EPOCH"), ("x/#",), "EPOCH", 0, 2**63 - 1),
    (("TOPIC.PUBLISH", "t", "m", "QOS"), (), "QOS", 0, 2),
    (("TOPIC.PUBLISH", "r", "", "RETAIN", "QOS"), (), "QOS", 0, 2),
    (("TOPIC.PUBLISH", "r", "m", "RETAIN", "TTL"), (), "TTL", 0, 4294967295),
    (("TOPIC.PUBLISH", "t", "m", "FROM", "c", "EPOCH"), (), "EPOCH", 0, 2**63 - 1),
    (("TOPIC.PUBLISH", "t", "m", "QOS", 2, "FROM", "c", "PACKET"), (), "PACKET", 1, 65535),
    (("TOPIC.RETAINED", "#", "COUNT"), (), "COUNT", 1, 1000000),
]

NO_NUMBERS = ["", "x", "1x", " 1", "1 ", "1.5", "1e3", "+1", "-", "0x1", "\x00", "9223372036854775808", "1" * 400]


@pytest.mark.parametrize(
    ("before", "behind", "name", "low", "high"),
    NUMBERS,
    ids=[f"{row[0][0]!s}-{row[2]}-{len(row[0])}" for row in NUMBERS],
)
def test_a_number_out_of_range_or_none_at_all_is_refused_by_its_name(
    server: Server, filled: Session, before: Command, behind: Command, name: str, low: int, high: int
) -> None:
    wrong: list[str | int] = [low - 1, high + 1, -(2**63), -1, *NO_NUMBERS]
    if "EXPIRING" in before:
        wrong.remove("")  # the default
    if name == "packet-id":
        wrong += [65536, 131072]
    with RawClient(server.port) as raw, unchanged(filled.client):
        for value in wrong:
            error = refusal(raw, (*before, value, *behind))
            assert error.startswith(f"ERR {name} "), error
            assert "expected" in error


@pytest.mark.parametrize("options", [3, 7, 19, 35, 48, 49, 50, 63, 64, 128, 255, 256])
def test_options_that_mqtt_forbids_are_refused(server: Server, filled: Session, options: int) -> None:
    with RawClient(server.port) as raw, unchanged(filled.client):
        error = refusal(raw, ("SESSION.SUBSCRIBE", "{c}", "ok", 1, "z", options))
        assert error.startswith(f"ERR options is '{options}'"), error


# --- Syntax -----------------------------------------------------------------------------------------------------------

SYNTAX: list[tuple[Command, str]] = [
    (("SESSION.ADD", "{c}", "LIMIT", 5), "payload"),
    (("SESSION.ADD", "{c}", "MESSAGES"), "payload"),
    (("SESSION.ADD", "{c}", "EXPIRING"), "payload"),
    (("SESSION.ADD", "{c}", "EXPIRING", 5), "EXPIRING"),
    (("SESSION.ADD", "{c}", "EXPIRING", 5, "m", 6), "EXPIRING"),
    (("SESSION.ADD", "{c}", "TTL"), "TTL"),
    (("SESSION.FETCH", "{c}", "COUNT"), "COUNT"),
    (("SESSION.FETCH", "{c}", "AFTER", 1, "BYTES"), "BYTES"),
    (("SESSION.FETCH", "{c}", "FROM", 1), "'FROM'"),
    (("SESSION.FETCH", "{c}", 5), "'5'"),
    (("SESSION.FETCH", "{c}", "COUNT", 5, "EPOCH", 0), "'EPOCH'"),
    (("SESSION.FETCH", "{c}", "WINDOW"), "WINDOW"),
    (("SESSION.FETCH", "{c}", "WINDOW", 5, "AFTER", 0), "WINDOW"),
    (("SESSION.FETCH", "{c}", "INFLIGHT", "WINDOW", 5), "WINDOW"),
    (("SESSION.ACK", "{c}", "EPOCH", 0), "packet-id"),
    (("SESSION.ACK", "{c}", "NEXT", 5), "packet-id"),
    (("SESSION.SENT", "{c}", 1, 2), "'2'"),
    (("SESSION.SENT", "{c}", "EPOCH", 0), "serial"),
    (("SESSION.RELEASE", "{c}", "EPOCH", 0), "packet-id"),
    (("SESSION.RECEIVE", "{c}", 1, 2), "'2'"),
    (("SESSION.RECEIVE", "{c}", "EPOCH", 0), "packet-id"),
    (("SESSION.COMPLETE", "{c}", "EPOCH", 0), "packet-id"),
    (("SESSION.DROP", "{c}", "NOW"), "'NOW'"),
    (("SESSION.DROP", "{c}", "EPOCH", 0, "NOW"), "'NOW'"),
    (("SESSION.OPEN", "{c}", "CLEAN", "EXPIRY", 5), "OWNER"),
    (("SESSION.OPEN", "{c}", "CLEAN", "OWNER"), "OWNER"),
    (("SESSION.OPEN", "{c}", "OWNER", "o", "EXPIRY"), "EXPIRY"),
    (("SESSION.OPEN", "{c}", "OWNER", "o", "CLEAN", "EPOCH", 0), "'EPOCH'"),
    (("SESSION.TOUCH", "{c}", "LEASE", 5), "EPOCH"),
    (("SESSION.CLOSE", "{c}", "EXPIRY", 5), "EPOCH"),
    (("SESSION.SUBSCRIBE", "{c}", "EPOCH", 0), "filter"),
    (("SESSION.SUBSCRIBE", "{c}", "a", 1, "b"), "filter"),
    (("SESSION.UNSUBSCRIBE", "{c}", "EPOCH", 0), "filter"),
    (("TOPIC.PUBLISH", "r", "", "RETAIN", "QOS"), "QOS"),
    (("TOPIC.PUBLISH", "r", "", "RETAIN", "FROM"), "FROM"),
    (("TOPIC.PUBLISH", "r", "", "RETAIN", "PROPERTIES"), "PROPERTIES"),
    (("TOPIC.PUBLISH", "r", "", "RETAIN", "EX", 5), "'EX'"),
    (("TOPIC.PUBLISH", "r", "", "RETAIN", "FROM", TOO_LONG), "FROM"),
    (("TOPIC.RETAINED", "#", "LIMIT", 5), "'LIMIT'"),
    (("TOPIC.RETAINED", "#", "COUNT"), "COUNT"),
]


@pytest.mark.parametrize(("command", "named"), SYNTAX, ids=[" ".join(map(str, row[0]))[:60] for row in SYNTAX])
def test_a_command_with_missing_or_extra_arguments_is_refused(
    server: Server, filled: Session, command: Command, named: str
) -> None:
    with RawClient(server.port) as raw, unchanged(filled.client):
        error = refusal(raw, command)
        assert error.startswith("ERR "), error
        assert named in error


def test_a_close_with_an_option_that_it_does_not_know_is_refused(server: Server, filled: Session) -> None:
    epoch = filled.info()["epoch"]
    with RawClient(server.port) as raw, unchanged(filled.client):
        for rest, named in (
            (("NOW",), "'NOW'"),
            (("EXPIRY",), "EXPIRY"),
            (("EXPIRY", -1), "EXPIRY"),
            (("EXPIRY", 2**32), "EXPIRY"),
        ):
            assert named in refusal(raw, ("SESSION.CLOSE", "{c}", "EPOCH", epoch, *rest))
        assert "'NOW'" in refusal(raw, ("SESSION.CLOSE", "{c}", "EPOCH", epoch, "EXPIRY", 0, "NOW"))


TOO_FEW: list[Command] = [
    ("SESSION.ADD", "{c}"),
    ("SESSION.IMPORT", "{c}", "MESSAGES"),
    ("SESSION.FETCH",),
    ("SESSION.ACK", "{c}"),
    ("SESSION.SENT", "{c}"),
    ("SESSION.RELEASE", "{c}"),
    ("SESSION.RECEIVE", "{c}"),
    ("SESSION.COMPLETE", "{c}"),
    ("SESSION.LAST",),
    ("SESSION.LAST", "{c}", "{d}"),
    ("SESSION.INFO",),
    ("SESSION.INFO", "{c}", "x"),
    ("SESSION.DROP",),
    ("SESSION.OPEN", "{c}", "OWNER"),
    ("SESSION.TOUCH", "{c}", "EPOCH"),
    ("SESSION.TOUCH", "{c}", "EPOCH", 5, "x"),
    ("SESSION.CLOSE", "{c}", "EPOCH"),
    ("SESSION.SUBSCRIBE", "{c}", "a"),
    ("SESSION.UNSUBSCRIBE", "{c}"),
    ("SESSION.SUBSCRIPTIONS",),
    ("TOPIC.PUBLISH", "r"),
    ("TOPIC.RETAINED",),
    ("HOLDMQ.CHECK", "x"),
]


@pytest.mark.parametrize("command", TOO_FEW, ids=lambda command: f"{command[0]}-{len(command)}")
def test_too_few_or_too_many_arguments_are_the_servers_own_error(
    server: Server, filled: Session, command: Command
) -> None:
    with RawClient(server.port) as raw, unchanged(filled.client):
        error = refusal(raw, command)
        assert error.startswith("ERR wrong number of arguments for "), error
        assert str(command[0]).lower() in error.lower()


# --- Session keys -----------------------------------------------------------------------------------------------------

WRONG_KEYS = ["", "c", "{", "}", "{}", "{c", "c}", "{c}x", "{c}_messages", "{c}{d}", "{c{d}}", "{{c}}", "pre{c}post"]


def commands_on(key: str | bytes) -> list[Command]:
    """One of each command that takes a session key."""
    return [
        ("SESSION.ADD", key, "m"),
        ("SESSION.IMPORT", key, "MERGE", "MESSAGES", 0),
        ("SESSION.FETCH", key),
        ("SESSION.ACK", key, 1),
        ("SESSION.SENT", key, 1),
        ("SESSION.RELEASE", key, 1),
        ("SESSION.RECEIVE", key, 1),
        ("SESSION.COMPLETE", key, 1),
        ("SESSION.LAST", key),
        ("SESSION.INFO", key),
        ("SESSION.DROP", key),
        ("SESSION.OPEN", key, "OWNER", "o"),
        ("SESSION.OPEN", key, "OWNER", "o", "CLEAN"),
        ("SESSION.TOUCH", key, "EPOCH", 5),
        ("SESSION.CLOSE", key, "EPOCH", 5),
        ("SESSION.SUBSCRIBE", key, "z", 1),
        ("SESSION.UNSUBSCRIBE", key, "x/#"),
        ("SESSION.SUBSCRIPTIONS", key),
    ]


@pytest.mark.parametrize("key", WRONG_KEYS)
def test_a_malformed_session_key_is_refused_by_every_command(server: Server, filled: Session, key: str) -> None:
    with RawClient(server.port) as raw, unchanged(filled.client):
        for command in commands_on(key):
            error = refusal(raw, command)
            assert error.startswith(f"ERR the session key is '{key}'"), (command, error)


def test_a_key_that_cannot_be_shown_is_shown_escaped_and_shortened(server: Server, filled: Session) -> None:
    with RawClient(server.port) as raw, unchanged(filled.client):
        error = refusal(raw, ("SESSION.LAST", b"\x00\r\n'\xff" + b"x" * 1000))
    assert error.startswith("ERR the session key is '\\x00\\x0d\\x0a\\x27\\xffxxx"), error
    assert len(error) < 500


# --- Topics -----------------------------------------------------------------------------------------------------------

WRONG_NAMES: list[str | bytes] = [
    "",
    "a/+",
    "+",
    "#",
    "a/#",
    "a+",
    "a#b",
    "a\x00b",
    b"\xff",
    b"a/\xed\xa0\x80",
    b"\xc3",
    TOO_LONG,
    TOO_DEEP,
]
WRONG_FILTERS: list[str | bytes] = [
    "", "a+", "+a", "a/b+/c", "#/a", "a/#/b", "a#", "#a", "##", "a/##", "++", "a\x00", b"\xff", b"\xf5\x80\x80\x80",
    TOO_LONG, TOO_DEEP, "$share/", "$share/g", "$share/g/", "$share//a", "$share/+/a", "$share/g#/a",
]  # fmt: skip


def topic_id(topic: str | bytes) -> str:
    return repr(topic[:12])


@pytest.mark.parametrize("topic", WRONG_NAMES, ids=topic_id)
def test_a_topic_that_mqtt_forbids_is_refused(server: Server, filled: Session, topic: str | bytes) -> None:
    with RawClient(server.port) as raw, unchanged(filled.client):
        for rest in ((), ("QOS", 1), ("RETAIN",)):
            assert refusal(raw, ("TOPIC.PUBLISH", topic, "m", *rest)).startswith("INVALIDTOPIC the topic ")


@pytest.mark.parametrize("topic_filter", WRONG_FILTERS, ids=topic_id)
def test_a_filter_that_mqtt_forbids_is_refused(server: Server, filled: Session, topic_filter: str | bytes) -> None:
    with RawClient(server.port) as raw, unchanged(filled.client):
        for command in (
            ("SESSION.SUBSCRIBE", "{c}", topic_filter, 1),
            ("SESSION.SUBSCRIBE", "{c}", "x/#", 0, topic_filter, 1),
            ("SESSION.UNSUBSCRIBE", "{c}", topic_filter),
            ("SESSION.UNSUBSCRIBE", "{c}", "x/#", topic_filter),
            ("TOPIC.RETAINED", topic_filter),
        ):
            assert refusal(raw, command).startswith("INVALIDTOPIC the topic filter "), command


def test_an_error_about_a_topic_says_what_is_wrong_with_it(server: Server) -> None:
    with RawClient(server.port) as raw:
        assert "'a/+'" in refusal(raw, ("TOPIC.PUBLISH", "a/+", "m"))
        assert "wildcard" in refusal(raw, ("TOPIC.PUBLISH", "a/+", "m"))
        assert "65535" in refusal(raw, ("TOPIC.PUBLISH", TOO_LONG, "m"))
        assert "128" in refusal(raw, ("SESSION.SUBSCRIBE", "{c}", TOO_DEEP, 1))


def test_no_number_of_wrong_commands_changes_what_the_session_is(server: Server, filled: Session) -> None:
    before = filled.info()
    with RawClient(server.port) as raw:
        for key in WRONG_KEYS:
            for command in commands_on(key):
                refusal(raw, command)
    after = filled.info()
    assert {**after, "ttl_ms": 0} == {**before, "ttl_ms": 0}


# --- Wrong types ------------------------------------------------------------------------------------------------------

# The key of the session that is something else, and the commands that need it.
NEEDED = {
    "messages": ["ADD", "FETCH", "ACK", "SENT", "RELEASE", "INFO", "DROP", "OPEN CLEAN"],
    "last_packet_id": ["ADD", "LAST", "INFO", "DROP", "OPEN CLEAN"],
    "session": ["ADD", "SENT", "INFO", "DROP", "OPEN", "OPEN CLEAN", "TOUCH", "CLOSE", "SUBSCRIBE"],
    "subscriptions": ["INFO", "DROP", "OPEN CLEAN", "SUBSCRIBE", "UNSUBSCRIBE", "SUBSCRIPTIONS"],
    "received": ["RECEIVE", "COMPLETE", "DROP", "OPEN CLEAN"],
    "producers": ["DROP", "OPEN CLEAN"],
}
CASES = [(suffix, command) for suffix, commands in NEEDED.items() for command in commands]


def named_command(name: str) -> Command:
    """The command of commands_on that the table calls so."""
    for command in commands_on("{c}"):
        called = str(command[0]).removeprefix("SESSION.") + (" CLEAN" if "CLEAN" in command else "")
        if called == name:
            return command
    raise AssertionError(f"{name} is no command of the table")


@pytest.mark.parametrize(("suffix", "name"), CASES, ids=[f"{suffix}-{name}" for suffix, name in CASES])
def test_a_key_of_another_type_is_named_and_left_alone(server: Server, filled: Session, suffix: str, name: str) -> None:
    client, key = filled.client, filled.name(suffix)
    client.delete(key)
    client.rpush(key, "precious")
    with RawClient(server.port) as raw, unchanged(client):
        error = refusal(raw, named_command(name))
    assert error.startswith("WRONGTYPE "), error
    assert key.decode() in error


@pytest.mark.parametrize("counter", ["", "abc", "-1", "65536", "99999999999999999999", "1.5", " 1"])
def test_a_counter_that_is_not_a_packet_id_is_refused(server: Server, filled: Session, counter: str) -> None:
    filled.client.set("{c}_last_packet_id", counter)
    with RawClient(server.port) as raw, unchanged(filled.client):
        for name in ("ADD", "LAST", "INFO"):
            error = refusal(raw, named_command(name))
            assert error.startswith("WRONGTYPE "), error
            assert "{c}_last_packet_id" in error


def test_a_key_of_another_type_under_the_name_of_a_message_is_not_deleted(filled: Session) -> None:
    client = filled.client
    client.delete("{c}_messages_2")
    client.rpush("{c}_messages_2", "precious")
    error = error_of(client, "SESSION.FETCH", "{c}")
    assert error is None or (error.startswith("WRONGTYPE ") and "{c}_messages_2" in error)
    assert client.lrange("{c}_messages_2", 0, -1) == [b"precious"]


def test_references_that_others_put_into_the_queue_are_not_followed(filled: Session) -> None:
    client = filled.client
    client.set("elsewhere", "precious")
    client.set("{c}_messages_0", "no packet id")
    client.zadd(
        "{c}_messages", {"elsewhere": 4, "{c}_messages_0": 5, "": 6, "{c}_messages_70000": 7, "{d}_messages_1": 1.5}
    )
    assert filled.fetch().values == [b"a", b"b", b"c"]
    client.zadd("{c}_messages", {"elsewhere": 0.5})
    assert filled.add("d", limit=4).packet_ids == [4]
    assert filled.fetch().values[-1] == b"d"
    client.zadd("{c}_messages", {"elsewhere": 1.5})
    filled.ack(1, 2, 3, 4)
    filled.drop()
    assert client.mget("elsewhere", "{c}_messages_0") == [b"precious", b"no packet id"]
    assert filled.keys() == {b"{c}_messages_0"}


def test_a_record_that_somebody_spoilt_is_returned_as_it_is(filled: Session) -> None:
    spoilt = [
        b"\xfa",
        b"\xfa\x11",
        b"\xfa\x12\x00",
        b"\xfa\xff" + b"\x00" * 50,
        b"\xfa\x12" + b"\xff" * 100,
        b"{",
        b'{"packetType":',
    ]
    filled.drop()
    filled.add(*spoilt)
    assert filled.fetch().values == spoilt


def test_subscriptions_that_others_wrote_and_nobody_can_mean_are_ignored(filled: Session) -> None:
    client = filled.client
    client.hset(
        "{c}_subscriptions",
        mapping={"a/#/b": "1", "ok": "9999", "ok2": "x", "ok3": "3", "": "1", "$share/g/t": "1", "good": "1"},
    )
    assert_indexes_hold(client)
    assert publish(client, "ok", "m") == publish(client, "ok2", "m") == publish(client, "ok3", "m") == 0
    assert publish(client, "good", "m") == 1


LARGEST, SMALLEST = str(2**63 - 1), str(-(2**63))
SPOILT = [
    (name, value)
    for name in ("epoch", "expiry", "lease", "connected", "round", "sent")
    for value in (LARGEST, SMALLEST, str(2**53), "-1", "x", "", "1" * 300)
]


@pytest.mark.parametrize(("name", "value"), SPOILT, ids=[f"{name}={value[:20]}" for name, value in SPOILT])
def test_a_session_whose_fields_somebody_spoilt_harms_neither_the_server_nor_others(
    fresh_server: Callable[..., Server], name: str, value: str
) -> None:
    server = fresh_server()
    client = server.client()
    session, other = Session(client), Session(client, "{other}")
    session.open(expiry=60)
    session.add("a", "b", "c")
    client.hset("{c}_session", name, value)
    with RawClient(server.port) as raw:
        for command in commands_on("{c}"):
            if command[0] == "SESSION.DROP" or "CLEAN" in command:
                continue  # the session would begin anew
            epoch = client.hget("{c}_session", "epoch") or b"1"
            raw.send(*(epoch if argument == 5 else argument for argument in command))
            reply = raw.read()
            if command[0] == "SESSION.OPEN" and isinstance(reply, list):
                assert reply[0] > 0
            assert not isinstance(reply, ReplyError) or str(reply).startswith(
                ("WRONGTYPE ", "FENCED ", "NOSESSION ", "ERR EPOCH ", "OOM ")
            )
    assert abs(other.open(expiry=60).epoch - now_ms(client)) < 60_000
    assert abs(other.open(expiry=60).epoch - now_ms(client)) < 60_000
    client.delete("{c}_session")
    assert session.open(expiry=60).epoch > 0
    assert session.add("again").serial > 0


@pytest.mark.parametrize("score", ["inf", "-inf", "1e300", "1.8e19", "1e16", "-5", "0.5", "0"])
def test_references_whose_score_is_not_a_serial_do_no_harm(filled: Session, score: str) -> None:
    client = filled.client
    client.execute_command("ZADD", "{c}_messages", score, "{c}_messages_2")
    added = filled.add("new")
    for page in (filled.fetch(), filled.fetch(window=2), filled.fetch(in_flight=True)):
        assert all(serial >= 0 for serial in page.serials)
    assert {b"a", b"c", b"new"} <= {entry.value for entry in filled.fetch_all()}
    assert added.serial > 0
    assert all(filled.info()[name] >= 0 for name in ("first_serial", "last_serial"))
    filled.ack(1, 2, 3, 4)
    assert filled.add("more").packet_ids == [5]
    filled.drop()
    assert filled.keys() <= {filled.message(2)}


# --- The same commands, in order --------------------------------------------------------------------------------------


def test_the_commands_of_these_tables_are_served_when_they_are_right(server: Server, client: redis.Redis) -> None:
    session = Session(client)
    with RawClient(server.port) as raw:
        for command in commands_on("{c}"):
            epoch = session.open(expiry=60).epoch
            raw.call(*(epoch if argument == 5 else argument for argument in command))
        for before, behind, name, low, high in NUMBERS:
            epoch = session.open(expiry=60).epoch
            right = {"EPOCH": (epoch,), "options": (0, 46)}.get(name, (low, high))
            for number in right:
                raw.call(*before, number, *behind)
                epoch = session.open(expiry=60).epoch
