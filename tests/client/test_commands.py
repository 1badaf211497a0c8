"""Commands without I/O: words, refused arguments, parsed replies; and that the two clients have the same methods."""

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import holdmq
from holdmq import (
    ArgumentError,
    ChannelPolicy,
    Deliver,
    Hold,
    HoldMQ,
    Message,
    ProducerChunk,
    Publisher,
    QueueBounds,
    SubscriptionOptions,
    SubscriptionsPage,
    UnexpectedReplyError,
    UserBounds,
    Will,
    _dry_run_commands,
    _session_commands,
    commands,
    history_commands,
)
from holdmq.commands import Command

REFERENCE = Path(__file__).parents[2] / "docs" / "commands"
INFO = {
    "exists": 1,
    "owner": b"me",
    "identity": b"user:me",
    "epoch": 7,
    "connected": 0,
    "expiry": 60,
    "messages": 3,
    "bytes": 30,
    "dropped": 1,
    "overflow": b"drop-oldest",
    "first_serial": 1,
    "last_serial": 4,
    "last_packet_id": 4,
    "subscriptions": 2,
    "ttl_ms": -1,
}


def test_words_stand_in_the_documented_order() -> None:
    assert commands.session_add("c", [b"x"], limit=5, ttl=60).words == (
        ("SESSION.ADD", b"{c}", "LIMIT", 5, "TTL", 60, "MESSAGES", b"x")
    )
    assert commands.session_add_expiring("c", [("x", 5), (b"y", None)]).words == (
        ("SESSION.ADD", b"{c}", "EXPIRING", 5, b"x", "", b"y")
    )
    assert commands.session_fetch("c", after=3, count=10, max_bytes=100, epoch=2, prefix="p:").words == (
        ("SESSION.FETCH", b"p:{c}", "EPOCH", 2, "AFTER", 3, "COUNT", 10, "BYTES", 100)
    )
    assert commands.session_open("c", "me", clean=True, expiry=1, lease=2).words == (
        ("SESSION.OPEN", b"{c}", "OWNER", b"me", "CLEAN", "EXPIRY", 1, "LEASE", 2)
    )
    will = Will("w", "gone", qos=1, retain=True, delay=2, ttl=3, properties=b"\1")
    assert commands.session_open("c", "me", bounds=QueueBounds(max_bytes=1000, overflow="wait")).words == (
        ("SESSION.OPEN", b"{c}", "OWNER", b"me", "MAXBYTES", 1000, "OVERFLOW", "wait")
    )
    assert commands.session_open("c", "me", user_bounds=UserBounds(0, queue_bytes=2**40, retained=3)).words == (
        *("SESSION.OPEN", b"{c}", "OWNER", b"me", "USERSESSIONS", 0, "USERBYTES", 2**40, "USERRETAINED", 3),
    )
    assert commands.session_open("c", "me", will=will).words == (
        *("SESSION.OPEN", b"{c}", "OWNER", b"me", "WILL", b"w", b"gone", "WILLQOS", 1, "WILLRETAIN"),
        *("WILLDELAY", 2, "WILLTTL", 3, "WILLPROPERTIES", b"\1"),
    )
    assert commands.session_open("c", "me", identity="user:a").words == (
        *("SESSION.OPEN", b"{c}", "OWNER", b"me", "IDENTITY", b"user:a"),
    )
    assert commands.session_owner("me", 30).words == ("SESSION.OWNER", b"me", "LEASE", 30)
    assert commands.session_close("c", epoch=1, will=True).words == ("SESSION.CLOSE", b"{c}", "EPOCH", 1, "WILL")
    assert commands.session_subscribe("c", {"a/+": SubscriptionOptions(2, no_local=True)}, epoch=3).words == (
        ("SESSION.SUBSCRIBE", b"{c}", "EPOCH", 3, b"a/+", "6")
    )
    assert commands.session_subscribe("c", {"a": SubscriptionOptions(1, identifier=268435455)}).words[-1] == (
        "1:268435455"
    )
    assert commands.topic_publish("a", "x", qos=1, retain=True, ttl=9, publisher="p", properties=b"\1").words == (
        ("TOPIC.PUBLISH", b"a", b"x", "QOS", 1, "RETAIN", "TTL", 9, "FROM", b"p", "PROPERTIES", b"\1")
    )
    assert commands.topic_publish("a", "x", qos=2, publisher=Publisher("p", 3, 7)).words == (
        ("TOPIC.PUBLISH", b"a", b"x", "QOS", 2, "FROM", b"p", "EPOCH", 3, "PACKET", 7)
    )
    assert commands.topic_publish("a", "x", qos=1, publisher=Publisher("p", 3, is_retry=True)).words == (
        ("TOPIC.PUBLISH", b"a", b"x", "QOS", 1, "FROM", b"p", "EPOCH", 3, "RETRY")
    )
    words = b"*5\r\n$13\r\nTOPIC.PUBLISH\r\n$2\r\n\xc3\xbc\r\n$1\r\nx\r\n$3\r\nQOS\r\n$1\r\n0\r\n"
    publishes = [commands.topic_publish("ü", payload) for payload in ("x", memoryview(b"x"))]
    assert commands.topic_pipeline(publishes).words == ("TOPIC.PIPELINE", words * 2)


@pytest.mark.parametrize("as_map", [dict, lambda fields: [item for pair in fields.items() for item in pair]])
def test_maps_are_read_in_both_protocols(as_map: Any) -> None:
    info = commands.session_info("c").parse(as_map({name.encode(): value for name, value in INFO.items()}))
    assert (info.exists, info.owner, info.identity, info.epoch, info.connected) == (True, "me", "user:me", 7, False)
    assert (info.messages, info.first_serial, info.last_serial, info.ttl_ms) == (3, 1, 4, None)
    subscriptions = commands.session_subscriptions("c").parse(as_map({b"a": 1, b"b/#": b"46"}))
    assert subscriptions == {"a": SubscriptionOptions(1), "b/#": SubscriptionOptions(2, True, True, 2)}
    identified = commands.session_subscriptions("c").parse(as_map({b"a": b"6:77"}))
    assert identified == {"a": SubscriptionOptions(2, no_local=True, identifier=77)}
    with pytest.raises(UnexpectedReplyError):
        commands.session_subscriptions("c").parse(as_map({b"a": b"6:"}))


def test_subscriptions_are_read_page_by_page() -> None:
    first = commands.session_subscriptions_pages("c")
    assert first.words == ("SESSION.SUBSCRIPTIONS", b"{c}", "CURSOR", "0")
    page = first.parse([b"=7", {b"a": b"1"}])
    assert first.following is not None
    assert first.merge is not None
    second = first.following(page)
    assert second is not None
    assert second.words == ("SESSION.SUBSCRIPTIONS", b"{c}", "CURSOR", "=7")
    last = second.parse([b"0", [b"a", b"2", b"b", b"0"]])
    assert second.following is not None
    assert second.following(last) is None
    both = first.merge([page, last])
    assert both == SubscriptionsPage(None, {"a": SubscriptionOptions(2), "b": SubscriptionOptions(0)})


def test_a_policy_is_read() -> None:
    parse = commands.channel_policy("ch").parse
    assert parse(None) is None
    assert parse([b"w*", b"all", b"on", 5, 60, b"held"]) == ChannelPolicy("w*", Hold.ALL, True, 5, 60, Deliver.HELD)


@pytest.mark.parametrize(
    ("command", "reply"),
    [
        (commands.session_last("c"), b"5"),
        (commands.session_last("c"), None),
        (commands.session_add("c", ["x"]), [[1], 1, 0]),
        (commands.session_add("c", ["x"]), [[b"1"], 1, 0, 0]),
        (commands.session_fetch("c"), [[[1, 1, 0, b"x"]], 0]),
        (commands.session_fetch("c"), [[[1, 1, 3, b"x"]], 0, 0]),
        (commands.session_fetch("c"), [[[1, 1, 0, None]], 0, 0]),
        (commands.session_open("c", "me"), [1]),
        (commands.session_touch("c", epoch=1), b"QUEUED"),
        (commands.session_info("c"), [b"exists"]),
        (commands.session_info("c"), {b"exists": 1}),
        (commands.session_subscriptions("c"), {b"a": b"x"}),
        (commands.channel_policy("c"), [b"w*", b"some", b"on", 5, 60, b"held"]),
        (commands.channel_policy("c"), [b"w*", b"all", b"maybe", 5, 60, b"held"]),
        (commands.channel_last("c"), 5),
        (commands.topic_retained("a"), 0),
        (commands.retained_fields("a"), {b"topic": b"a"}),
    ],
)
def test_a_reply_of_another_form_is_refused(command: Command[Any], reply: object) -> None:
    with pytest.raises(UnexpectedReplyError, match=r"the server replied .*; expected"):
        command.parse(reply)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: commands.session_add("c", []), "0 payloads were given; expected 1 to 100000"),
        (lambda: commands.session_ack("c", b"single"), "packet_ids is a single bytes; expected a sequence"),
        (lambda: commands.session_add("c", [None]), "payload is None; expected bytes or str"),  # type: ignore[list-item]
        (lambda: commands.session_ack("c", [True]), "packet_id is True; expected a whole number"),
        (lambda: commands.session_ack("c", [1.0]), "packet_id is 1.0; expected a whole number"),  # type: ignore[list-item]
        (lambda: commands.session_last(5), "client_id is 5; expected str or bytes"),  # type: ignore[arg-type]
        (lambda: commands.session_last("c", prefix="a{b"), "prefix is 'a{b'; expected one without"),
        (lambda: commands.session_open("c", "me", identity=""), "identity is empty; expected 1 to 2048 bytes"),
        (lambda: commands.session_open("c", "me", lease=0), "lease is 0; expected 1 to 4294967295 seconds"),
        (lambda: commands.session_subscribe("c", {}), "0 filters were given"),
        (lambda: commands.channel_range("ch", 5, 4), "stop is 4; expected a whole number from 5"),
        (
            lambda: commands.topic_publish("a", "x", publisher=Publisher("p", packet_id=1)),
            "qos is 0 for a publisher with a packet_id; expected 2",
        ),
        (
            lambda: commands.session_open("c", "me", user_bounds=UserBounds(retained=-1)),
            "retained is -1; expected a whole number from 0 to 1099511627776",
        ),
        (
            lambda: commands.session_open("c", "me", bounds=QueueBounds(0)),
            "max_bytes is 0; expected a whole number from 1 to 1099511627776",
        ),
        (
            lambda: commands.session_open("c", "me", bounds=QueueBounds(overflow="drop-all")),  # type: ignore[arg-type]
            "overflow is 'drop-all'; expected one of drop-oldest, drop-newest, refuse, wait",
        ),
        (lambda: commands.session_open("c", "me", will=Will("a/#")), "a/#"),
        (lambda: commands.session_open("c", "me", will=Will("a", qos=3)), "qos of the will is 3"),
        (lambda: commands.topic_pipeline([]), "0 publishes were given; expected 1 to 1024"),
        (
            lambda: commands.topic_pipeline([commands.topic_publish("a", "x"), commands.session_last("c")]),
            "one of the publishes is 'SESSION.LAST'; expected commands made by topic_publish",
        ),
        (lambda: SubscriptionOptions(qos=3), "qos is 3; expected a whole number from 0 to 2"),
        (lambda: SubscriptionOptions(retain_handling=-1), "retain_handling is -1"),
        (
            lambda: SubscriptionOptions(identifier=1 << 28),
            "identifier is 268435456; expected a whole number from 0 to 268435455",
        ),
        (lambda: SubscriptionOptions.from_text("x"), "subscription options are 'x'"),
        (lambda: SubscriptionOptions.from_text("1:"), "subscription options are '1:'"),
        (lambda: SubscriptionOptions.from_byte(0x40), "subscription options are 64"),
        (lambda: SubscriptionOptions.from_byte(0x30), "retain_handling is 3"),
        (
            lambda: Message(topic="a", payload=b"", time_ms=1 << 48).to_record(),
            "time_ms of a message is 281474976710656; expected a whole number",
        ),
    ],
)
def test_an_argument_that_cannot_be_is_named_with_what_was_expected(build: Any, message: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        build()
    assert message in str(caught.value)


def test_subscription_options_are_the_byte_of_mqtt_5() -> None:
    for byte in range(0x30):
        if byte & 3 != 3:
            assert SubscriptionOptions.from_byte(byte).byte == byte


def test_a_message_survives_its_record() -> None:
    message = Message(
        topic="grün/1",
        payload=bytes(range(256)),
        qos=2,
        retain=True,
        time_ms=1_700_000_000_123,
        expires_ms=1_700_000_100_123,
        publisher="gerät",
        properties=b"\x01\x01",
    )
    assert Message.from_record(message.to_record()) == message
    bare = Message(topic="a", payload=b"")
    assert Message.from_record(bare.to_record()) == bare


def test_a_commit_names_the_producer_its_last_number_and_the_slots() -> None:
    commit = commands.for_slots(
        commands.topic_commit(ProducerChunk("importer", 3, 70)), [commands.SlotRange(0, 5460), commands.SlotRange(9, 9)]
    )
    assert commit.words == ("TOPIC.COMMIT", b"importer", 3, 70, "SLOTS", 2, 0, 5460, 9, 9)
    served = commit.parse([[1, 12], [[9, 9, b"127.0.0.1:7001"]]])
    assert served == commands.Served((1, 12), (commands.SlotRange(9, 9, "127.0.0.1:7001"),))


def test_every_documented_command_can_be_built() -> None:
    """Commands of the reference against the command names in the files that know them."""
    name = r"(?:CHANNEL|SESSION|TOPIC|HISTORY|HOLDMQ)\.[A-Z]+"
    reference = "".join(page.read_text() for page in REFERENCE.glob("*.md"))
    documented = set(re.findall(rf"^## ({name})", reference, re.MULTILINE))
    files = (commands, _session_commands, _dry_run_commands, history_commands)
    built = {word for file in files for word in re.findall(rf'"({name})"', inspect.getsource(file))}
    assert documented - built == {"HOLDMQ.READ"}  # no program needs to send it


def public_methods(cls: type) -> dict[str, inspect.Signature]:
    """The public methods of a class with their signatures, by their synchronous names."""
    members = inspect.getmembers(cls, inspect.isfunction)
    named = {"close" if name == "aclose" else name: function for name, function in members}
    return {name: inspect.signature(function) for name, function in named.items() if not name.startswith("_")}


@pytest.mark.parametrize(
    "name",
    [name for name in holdmq.__all__ if f"Async{name}" in holdmq.__all__ and inspect.isclass(getattr(holdmq, name))],
)
def test_both_clients_have_the_same_methods_with_the_same_parameters(name: str) -> None:
    synchronous = public_methods(getattr(holdmq, name))
    asynchronous = public_methods(getattr(holdmq, f"Async{name}"))
    assert synchronous.keys() == asynchronous.keys()
    for method, signature in synchronous.items():
        assert list(signature.parameters) == list(asynchronous[method].parameters), method


def test_every_public_name_is_there() -> None:
    assert all(hasattr(holdmq, name) for name in holdmq.__all__)
    assert HoldMQ.__module__ == "holdmq._sync.client"
