"""Whole conversations with the sans-I/O connection: bytes and replies in, bytes and commands out."""

from collections.abc import Iterable
from typing import Any

import pytest
from hiredis import ReplyError

from holdmq_bridge.backoff import Backoff
from holdmq_bridge.connection import Connection, Ending, Event, Phase
from holdmq_bridge.counters import Counters
from holdmq_bridge.request import Kind, Request
from holdmq_bridge.settings import Settings
from tests.bridge import packets
from tests.bridge.packets import Will

OOM = ReplyError("OOM command not allowed when used memory > 'maxmemory'.")
FENCED = ReplyError("FENCED EPOCH is 7: the session has the newer owner of epoch 8")
EPOCH = 7


class Play:
    """A connection with the test in the roles of client and server."""

    def __init__(self, *, server_up: bool = True, **settings: Any) -> None:
        self.counters = Counters()
        self.connection = Connection(
            Settings(**settings),
            self.counters,
            owner=None,
            owner_name="bridge:1",
            assigned_id=lambda: b"auto-1",
            backoff=Backoff(0.05, 2.0, lambda low, high: high),
        )
        if server_up:
            self.connection.server_restored()

    def client(self, *data: bytes) -> None:
        """The client sends."""
        self.connection.receive(b"".join(data))

    def output(self) -> bytes:
        """What goes to the client."""
        data = b"".join(self.connection.output)
        self.connection.output.clear()
        return data

    def requests(self) -> list[Request]:
        """What goes to the server."""
        if self.connection.needs_flush:
            self.connection.flush()
        taken = list(self.connection.requests)
        self.connection.requests.clear()
        if self.connection.fetch is not None:
            taken.append(self.connection.fetch)
            self.connection.fetch = None
        return taken

    def commands(self) -> list[tuple[Any, ...]]:
        """The same as plain arguments."""
        return [request.arguments for request in self.requests()]

    def answer(self, request: Request, reply: Any) -> None:
        """The server answers."""
        self.connection.reply(request, reply)

    def answer_all(self, reply: Any = 0) -> list[Request]:
        """The server answers all that came, each with the same."""
        taken = self.requests()
        for request in taken:
            self.answer(request, reply)
        return taken

    def open(self, *, present: int = 0, info: dict[bytes, Any] | None = None) -> None:
        """The server answers SESSION.OPEN, and the SESSION.INFO before it."""
        for request in self.requests():
            self.answer(request, [EPOCH, present] if request.kind is Kind.OPEN else info)

    @classmethod
    def opened(cls, client_id: str = "c1", *, clean: bool = True, will: Will | None = None, **options: Any) -> "Play":
        """A connection that is through its CONNECT."""
        play = cls(**options)
        play.client(packets.connect(client_id, clean=clean, will=will))
        play.open()
        assert play.output() == packets.connack()
        assert play.connection.phase is Phase.OPEN
        play.connection.events.clear()
        return play

    def push(self, serial: int, previous: int, payload: bytes = b"p") -> None:
        """The server pushes a queued message."""
        body = packets.record("t", payload)
        self.connection.delivery(packets.delivery(1, body, pid=serial, serial=serial, previous=previous))


def entry(serial: int, payload: bytes = b"p", *, state: int = 0) -> list[Any]:
    return [serial, serial, state, packets.record("t", payload)]


# ---- CONNECT ---------------------------------------------------------------------------------------------------------


def test_a_clean_connect_opens_the_session_and_is_answered_after_it() -> None:
    play = Play(lease_s=100)
    play.client(packets.connect("c1"))
    assert play.output() == b""
    assert play.connection.events == [Event.OPENING]
    assert play.connection.inbox == b"{c1}_inbox"
    (request,) = play.requests()
    assert request.arguments == (
        "SESSION.OPEN", b"{c1}", "OWNER", "bridge:1", "CLEAN", "EXPIRY", 0, "LEASE", 100,
    )  # fmt: skip
    play.answer(request, [EPOCH, 1])
    assert play.output() == packets.connack(present=False)
    assert play.connection.events == [Event.OPENING, Event.OPENED]


def test_a_persistent_connect_says_whether_its_session_was_there() -> None:
    for present in (0, 1):
        play = Play(session_expiry_s=60, lease_s=100)
        play.client(packets.connect("c1", clean=False))
        (request,) = play.requests()
        assert request.arguments == (
            "SESSION.OPEN", b"{c1}", "OWNER", "bridge:1", "EXPIRY", 60, "LEASE", 100,
        )  # fmt: skip
        play.answer(request, [EPOCH, present])
        assert play.output() == packets.connack(present=bool(present))


def test_packets_behind_connect_wait_for_the_session() -> None:
    play = Play()
    play.client(packets.connect("c1"), packets.subscribe(1, ("a", 1)), packets.publish("b", b"x", qos=1, pid=2))
    (open_request,) = play.requests()
    play.client(packets.PINGREQ)
    assert play.output() == b""
    assert play.connection.wants_rest
    play.answer(open_request, [EPOCH, 0])
    assert play.output() == packets.connack() + packets.PINGRESP
    assert [request.kind for request in play.requests()] == [Kind.SUBSCRIBE, Kind.PUBLISH]


def test_an_empty_client_id_gets_one_in_a_clean_session_only() -> None:
    play = Play()
    play.client(packets.connect("", clean=True))
    assert play.connection.client_id == b"auto-1"
    play = Play()
    play.client(packets.connect("", clean=False))
    assert play.output() == packets.connack(2)
    assert play.connection.phase is Phase.ENDED
    assert play.requests() == []


@pytest.mark.parametrize(
    ("data", "answer"),
    [
        pytest.param(packets.connect("c", level=3), packets.connack(1), id="an unknown level"),
        pytest.param(packets.connect("c", level=5), packets.connack(1), id="MQTT 5.0"),
        pytest.param(packets.connect("c" * 33), packets.connack(2), id="a client id that is too long"),
        pytest.param(packets.connect("c", name="MQTX"), b"", id="another protocol"),
        pytest.param(packets.PINGREQ, b"", id="a packet before CONNECT"),
        pytest.param(packets.publish("a", b"x"), b"", id="a publish before CONNECT"),
        pytest.param(packets.connect("c\0d"), b"", id="a NUL in the client id"),
        pytest.param(packets.connect("c", will=Will("a/+")), b"", id="a will to a wildcard"),
        pytest.param(b"\x10\x00", b"", id="an empty CONNECT"),
        pytest.param(b"\x00\x00", b"", id="a reserved type"),
        pytest.param(b"\x30\xff\xff\xff\xff\x01", b"", id="a length of five bytes"),
    ],
)
def test_a_bad_beginning_ends_the_connection(data: bytes, answer: bytes) -> None:
    play = Play(max_client_id_bytes=32)
    play.client(data)
    assert play.output() == answer
    assert play.connection.phase is Phase.ENDED
    assert play.connection.events[-1] is Event.ENDED
    assert play.requests() == []


def test_a_client_that_leaves_before_its_session_is_open_leaves_no_open_session() -> None:
    play = Play()
    play.client(packets.connect("c1"))
    (request,) = play.requests()
    play.connection.end(Ending.LOST)
    assert not play.connection.finished
    play.answer(request, [EPOCH, 0])
    assert play.commands() == [("SESSION.CLOSE", b"{c1}", "EPOCH", EPOCH)]
    assert play.output() == b""


def test_a_server_that_cannot_open_the_session_is_told_as_unavailable() -> None:
    play = Play()
    play.client(packets.connect("c1"))
    play.answer_all(ReplyError("WRONGTYPE the key {c1}_session holds another type"))
    assert play.output() == packets.connack(3)
    assert play.connection.finished


def test_opening_is_tried_again_while_the_server_refuses_for_now() -> None:
    play = Play()
    play.client(packets.connect("c1"))
    play.answer_all(OOM)
    assert play.connection.retry_in_s is not None
    play.connection.retry()
    (request,) = play.requests()
    play.answer(request, [EPOCH, 0])
    assert play.output() == packets.connack()


# ---- PUBLISH ---------------------------------------------------------------------------------------------------------


def test_a_puback_leaves_after_the_servers_reply_and_not_before() -> None:
    play = Play.opened()
    play.client(packets.publish("a/b", b"hello", qos=1, pid=9))
    (request,) = play.requests()
    assert request.arguments == ("TOPIC.PUBLISH", b"a/b", b"hello", "QOS", 1, "FROM", b"c1")
    assert play.output() == b""
    play.answer(request, 3)
    assert play.output() == packets.puback(9)


def test_a_qos_0_publish_is_handed_on_and_not_answered() -> None:
    play = Play.opened()
    play.client(packets.publish("a", b"x", retain=True))
    (request,) = play.requests()
    assert request.arguments == ("TOPIC.PUBLISH", b"a", b"x", "QOS", 0, "RETAIN", "FROM", b"c1")
    play.answer(request, 0)
    assert play.output() == b""


def test_pubacks_keep_the_order_of_the_publishes() -> None:
    play = Play.opened()
    play.client(*(packets.publish("a", b"%d" % pid, qos=1, pid=pid) for pid in (3, 1, 2)))
    play.answer_all()
    assert play.output() == packets.puback(3) + packets.puback(1) + packets.puback(2)


def test_a_refused_publish_is_tried_again_and_holds_up_what_follows() -> None:
    play = Play.opened()
    play.client(packets.publish("a", b"1", qos=1, pid=1))
    play.answer_all(OOM)
    assert play.connection.wants_rest
    play.client(packets.publish("a", b"2", qos=1, pid=2))
    assert play.requests() == []
    assert play.connection.retry_in_s == 0.05
    play.connection.retry()
    requests = play.answer_all()
    assert [request.arguments[2] for request in requests] == [b"1", b"2"]
    assert play.output() == packets.puback(1) + packets.puback(2)
    assert not play.connection.wants_rest


def test_a_publish_refused_for_too_long_ends_the_connection_unacknowledged() -> None:
    play = Play.opened(retry_total_s=1.0)
    play.client(packets.publish("a", b"1", qos=1, pid=1))
    for _ in range(20):
        play.answer_all(OOM)
        if play.connection.phase is Phase.ENDED:
            break
        play.connection.retry()
    assert play.connection.ending is Ending.SERVER_ERROR
    assert play.output() == b""


def test_a_topic_that_the_server_calls_invalid_ends_the_connection() -> None:
    play = Play.opened()
    play.client(packets.publish("a", b"1", qos=1, pid=1))
    play.answer_all(ReplyError("INVALIDTOPIC the topic name has too many levels"))
    assert play.connection.ending is Ending.PROTOCOL
    assert play.output() == b""


def test_a_qos_2_publish_in_a_clean_session_is_handed_on_exactly_once() -> None:
    play = Play.opened()
    play.client(packets.publish("a", b"x", qos=2, pid=5))
    (request,) = play.requests()
    assert request.arguments == ("TOPIC.PUBLISH", b"a", b"x", "QOS", 2, "FROM", b"c1")
    play.client(packets.publish("a", b"x", qos=2, pid=5, dup=True))  # repeated before the answer
    assert play.requests() == []
    assert play.output() == b""
    play.answer(request, 1)
    assert play.output() == packets.pubrec(5)
    play.client(packets.publish("a", b"x", qos=2, pid=5, dup=True))  # repeated after it
    assert play.output() == packets.pubrec(5)
    assert play.requests() == []
    play.client(packets.pubrel(5))
    assert play.output() == packets.pubcomp(5)
    play.client(packets.publish("a", b"y", qos=2, pid=5))  # the identifier is free again
    assert [command[2] for command in play.commands()] == [b"y"]


def test_a_qos_2_publish_in_a_persistent_session_ends_the_connection() -> None:
    play = Play.opened(clean=False)
    play.client(packets.publish("a", b"x", qos=2, pid=5))
    assert play.connection.ending is Ending.UNSUPPORTED
    assert [command[0] for command in play.commands()] == ["SESSION.CLOSE"]


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(packets.connect("c1"), id="a second CONNECT"),
        pytest.param(packets.publish("a/+", b"x"), id="a wildcard in a topic"),
        pytest.param(packets.packet(0x36, packets.text("a") + b"\0\1"), id="QoS 3"),
        pytest.param(packets.publish("a", b"x", qos=1, pid=0), id="identifier 0"),
        pytest.param(packets.packet(0x80, b"\0\1" + packets.text("a") + b"\0"), id="SUBSCRIBE with wrong flags"),
        pytest.param(packets.subscribe(1), id="SUBSCRIBE to nothing"),
        pytest.param(packets.unsubscribe(1), id="UNSUBSCRIBE from nothing"),
        pytest.param(packets.subscribe(1, ("a#", 0)), id="a bad wildcard"),
        pytest.param(packets.subscribe(1, ("a", 3)), id="a bad requested QoS"),
        pytest.param(packets.connack(), id="a CONNACK"),
        pytest.param(packets.suback(1, 0), id="a SUBACK"),
        pytest.param(packets.PINGRESP, id="a PINGRESP"),
        pytest.param(packets.pubrec(1), id="a PUBREC without QoS 2"),
        pytest.param(packets.publish("a", b"x" * 2000), id="a packet that is too large"),
    ],
)
def test_a_violation_closes_without_an_answer_and_publishes_the_will(data: bytes) -> None:
    play = Play.opened(will=Will("w", b"gone"), max_packet_bytes=1024)
    play.client(data)
    assert play.output() == b""
    assert play.connection.ending in (Ending.PROTOCOL, Ending.MALFORMED)
    assert play.commands() == [
        ("TOPIC.PUBLISH", b"w", b"gone", "QOS", 0, "FROM", b"c1"),
        ("SESSION.CLOSE", b"{c1}", "EPOCH", EPOCH),
    ]


# ---- SUBSCRIBE -------------------------------------------------------------------------------------------------------


def test_a_suback_leaves_after_the_servers_reply_and_grants_qos_1_at_most() -> None:
    play = Play.opened()
    play.client(packets.subscribe(4, ("a/#", 0), ("b/+", 1), ("c", 2)))
    (request,) = play.requests()
    assert request.arguments == (
        "SESSION.SUBSCRIBE", b"{c1}", "EPOCH", EPOCH, b"a/#", 0, b"b/+", 1, b"c", 1,
    )  # fmt: skip
    assert play.output() == b""
    play.answer(request, [1, 1, 0])
    assert play.output() == packets.suback(4, 0, 1, 1)


def test_a_filter_that_cannot_be_served_fails_alone() -> None:
    play = Play.opened()
    deep = "/".join("x" * 200)
    play.client(packets.subscribe(4, ("a", 1), ("$share/g/a", 1), (deep, 0)))
    (request,) = play.requests()
    assert request.arguments[4:] == (b"a", 1)
    play.answer(request, [1])
    assert play.output() == packets.suback(4, 1, 0x80, 0x80)


def test_a_subscribe_without_any_usable_filter_keeps_its_place_in_the_order() -> None:
    play = Play.opened()
    play.client(packets.publish("a", b"x", qos=1, pid=1), packets.subscribe(2, ("$share/g/a", 1)))
    play.answer_all()
    assert play.output() == packets.puback(1) + packets.suback(2, 0x80)


def test_a_subscription_that_the_server_refuses_for_good_fails_whole() -> None:
    play = Play.opened()
    play.client(packets.subscribe(4, ("a", 1), ("b", 0)))
    play.answer_all(ReplyError("NOPERM no permission"))
    assert play.output() == packets.suback(4, 0x80, 0x80)
    assert play.connection.phase is Phase.OPEN


def test_an_unsuback_leaves_after_the_servers_reply() -> None:
    play = Play.opened()
    play.client(packets.unsubscribe(5, "a", "b/#"))
    (request,) = play.requests()
    assert request.arguments == ("SESSION.UNSUBSCRIBE", b"{c1}", "EPOCH", EPOCH, b"a", b"b/#")
    play.answer(request, [1, 0])
    assert play.output() == packets.unsuback(5)


# ---- deliveries ------------------------------------------------------------------------------------------------------


def test_a_push_is_sent_and_its_acknowledgement_told_to_the_server() -> None:
    play = Play.opened()
    play.push(1, 0, b"one")
    play.push(2, 1, b"two")
    assert play.output() == packets.publish("t", b"one", qos=1, pid=1) + packets.publish("t", b"two", qos=1, pid=2)
    play.client(packets.puback(1), packets.puback(2))
    assert play.commands() == [("SESSION.ACK", b"{c1}", "EPOCH", EPOCH, 1, 2)]


def test_a_message_of_qos_0_and_a_retained_one_go_out_as_their_records_say() -> None:
    play = Play.opened()
    live, kept = packets.record("t", b"x", qos=0), packets.record("t", b"x", qos=1, retain=True)
    play.connection.delivery(packets.delivery(2, live, qos=0, retain=False))
    play.connection.delivery(packets.delivery(1, kept, qos=1, retain=True, pid=1, serial=1))
    assert play.output() == packets.publish("t", b"x") + packets.publish("t", b"x", qos=1, pid=1, retain=True)


def test_a_resumed_session_is_drained_page_by_page() -> None:
    play = Play(max_inflight=2, max_ready=2)
    play.client(packets.connect("c1", clean=False))
    play.open(present=1)
    assert play.output() == packets.connack(present=True)
    (fetch,) = play.requests()
    assert fetch.arguments == (
        "SESSION.FETCH", b"{c1}", "EPOCH", EPOCH, "AFTER", 0, "COUNT", 2, "BYTES", 65536,
    )  # fmt: skip
    play.answer(fetch, [[entry(1, b"a", state=1), entry(2, b"b")], 1, 0])
    assert play.output() == (
        packets.publish("t", b"a", qos=1, pid=1, dup=True) + packets.publish("t", b"b", qos=1, pid=2)
    )
    play.push(3, 2, b"c")  # behind: not out of its turn
    assert play.output() == b""
    (fetch,) = play.requests()
    assert fetch.arguments[4:8] == ("AFTER", 2, "COUNT", 2)
    play.answer(fetch, [[entry(3, b"c")], 0, 0])
    assert play.output() == b""  # the window is full
    play.client(packets.puback(1), packets.puback(2))
    assert play.output() == packets.publish("t", b"c", qos=1, pid=3)
    assert play.commands() == [("SESSION.ACK", b"{c1}", "EPOCH", EPOCH, 1, 2)]


def test_a_persistent_session_is_closed_with_the_last_serial_sent() -> None:
    play = Play.opened(clean=False, max_inflight=1)
    play.push(1, 0)
    play.push(2, 1)  # waits for the window
    play.client(packets.DISCONNECT)
    assert play.commands() == [("SESSION.CLOSE", b"{c1}", "EPOCH", EPOCH, "SENT", 1)]


def test_a_takeover_notice_ends_the_connection_without_closing_the_session() -> None:
    play = Play.opened(will=Will("w", b"gone", qos=1))
    play.connection.delivery(packets.delivery(3, serial=EPOCH, qos=0))  # our own opening
    assert play.connection.phase is Phase.OPEN
    play.connection.delivery(packets.delivery(3, serial=EPOCH + 1, qos=0))
    assert play.connection.ending is Ending.TAKEN_OVER
    assert play.commands() == [("TOPIC.PUBLISH", b"w", b"gone", "QOS", 1, "FROM", b"c1")]


@pytest.mark.parametrize("kind", ["subscribe", "acknowledge", "touch", "fetch"])
def test_a_fenced_command_ends_the_connection(kind: str) -> None:
    play = Play.opened()
    if kind == "subscribe":
        play.client(packets.subscribe(1, ("a", 0)))
    elif kind == "touch":
        play.connection.touch()
    else:
        play.push(1, 0)
        play.client(packets.puback(1))
        if kind == "fetch":
            play.push(9, 8)
    play.output()
    play.answer_all(FENCED)
    assert play.connection.ending is Ending.TAKEN_OVER
    assert play.connection.finished
    assert play.output() == b""


# ---- the end ---------------------------------------------------------------------------------------------------------


def test_a_disconnect_closes_the_session_and_keeps_the_will_back() -> None:
    play = Play.opened(will=Will("w", b"gone"))
    play.push(1, 0)
    play.client(packets.puback(1), packets.DISCONNECT)
    assert play.connection.ending is Ending.DISCONNECT
    assert play.commands() == [
        ("SESSION.ACK", b"{c1}", "EPOCH", EPOCH, 1),
        ("SESSION.CLOSE", b"{c1}", "EPOCH", EPOCH),
    ]


def test_a_lost_connection_publishes_the_will_behind_what_the_client_published() -> None:
    play = Play.opened(will=Will("w", b"gone", qos=1, retain=True))
    play.client(packets.publish("a", b"last", qos=1, pid=1))
    play.connection.end(Ending.LOST)
    assert [command[:3] for command in play.commands()] == [
        ("TOPIC.PUBLISH", b"a", b"last"),
        ("TOPIC.PUBLISH", b"w", b"gone"),
        ("SESSION.CLOSE", b"{c1}", "EPOCH"),
    ]
    assert not play.connection.finished


def test_nothing_behind_a_disconnect_is_read() -> None:
    play = Play.opened()
    play.client(packets.DISCONNECT, packets.publish("a", b"x", qos=1, pid=1))
    play.client(packets.publish("a", b"y", qos=1, pid=2))
    assert [command[0] for command in play.commands()] == ["SESSION.CLOSE"]


# ---- the server goes and comes ---------------------------------------------------------------------------------------


def test_while_the_server_is_away_nothing_is_acknowledged_and_everything_is_sent_again() -> None:
    play = Play.opened()
    play.client(packets.publish("a", b"1", qos=1, pid=1), packets.publish("a", b"0"))
    play.requests()
    play.connection.server_lost()
    play.client(packets.publish("a", b"2", qos=1, pid=2), packets.subscribe(3, ("f", 1)))
    assert play.connection.wants_rest
    assert play.requests() == []
    assert play.output() == b""
    play.client(packets.PINGREQ)
    assert play.output() == packets.PINGRESP
    play.connection.server_restored()
    requests = play.requests()
    assert [request.kind for request in requests] == [Kind.PUBLISH, Kind.PUBLISH, Kind.SUBSCRIBE, Kind.FETCH]
    assert [request.arguments[2] for request in requests[:2]] == [b"1", b"2"]
    for request in requests[:3]:
        play.answer(request, 1)
    assert play.output() == packets.puback(1) + packets.puback(2) + packets.suback(3, 1)
    assert play.counters.publishes_dropped_qos0 == 1


def test_acknowledgements_wait_until_the_server_is_back_and_has_shown_the_message() -> None:
    play = Play.opened()
    play.push(1, 0)
    play.connection.server_lost()
    play.client(packets.puback(1))
    assert play.requests() == []
    play.connection.server_restored()
    (fetch,) = play.requests()
    assert fetch.arguments[4:6] == ("AFTER", 0)
    play.answer(fetch, [[entry(1)], 0, 0])
    assert play.commands() == [("SESSION.ACK", b"{c1}", "EPOCH", EPOCH, 1)]


def test_a_server_restored_from_an_older_state_ends_the_connection() -> None:
    play = Play.opened()
    play.push(1, 0, b"old")
    play.connection.server_lost()
    play.client(packets.puback(1))
    play.connection.server_restored()
    (fetch,) = play.requests()
    play.answer(fetch, [[entry(1, b"new")], 0, 0])
    assert play.connection.ending is Ending.GONE
    assert [command[0] for command in play.commands()] == ["SESSION.CLOSE"]


def test_a_connect_waits_for_the_server() -> None:
    play = Play(server_up=False)
    play.client(packets.connect("c1"))
    assert play.requests() == []
    play.connection.server_restored()
    play.open()
    assert play.output() == packets.connack()
    play.client(packets.subscribe(1, ("a", 1)))
    play.answer_all([1])
    assert play.output() == packets.suback(1, 1)


def test_a_session_that_our_own_lost_attempt_created_is_not_called_present() -> None:
    play = Play()
    play.client(packets.connect("c1", clean=False))
    play.requests()
    play.connection.server_lost()
    play.connection.server_restored()
    play.open(present=1, info={b"owner": b"bridge:1", b"subscriptions": 0, b"messages": 0})
    assert play.output() == packets.connack(present=False)


def test_a_will_outlives_the_loss_of_the_server() -> None:
    play = Play.opened(will=Will("w", b"gone", qos=1))
    play.connection.end(Ending.LOST)
    play.requests()
    play.connection.server_lost()
    assert not play.connection.finished
    play.connection.server_restored()
    assert [request.kind for request in play.answer_all()] == [Kind.PUBLISH, Kind.CLOSE]
    assert play.connection.finished


def test_a_qos_2_publish_in_doubt_ends_the_connection() -> None:
    play = Play.opened()
    play.client(packets.publish("a", b"x", qos=2, pid=5))
    play.requests()
    play.connection.server_lost()
    assert play.connection.ending is Ending.SERVER_ERROR
    play.connection.server_restored()
    assert [command[0] for command in play.commands()] == ["SESSION.CLOSE"]


# ---- every cut -------------------------------------------------------------------------------------------------------

CONVERSATION = (
    packets.connect("c1", will=Will("w", b"gone")),
    packets.subscribe(1, ("a/+", 1), ("b/#", 0)),
    packets.publish("a/b", b"payload", qos=1, pid=2),
    packets.publish("x", b"y" * 200),
    packets.PINGREQ,
    packets.unsubscribe(3, "a/+"),
    packets.publish("z", b"", qos=1, pid=4, retain=True),
)


def converse(chunks: Iterable[bytes]) -> tuple[bytes, list[tuple[Any, ...]]]:
    """Plays the conversation with a server that answers at once; returns what came out on both sides."""
    play = Play()
    output = b""
    commands: list[tuple[Any, ...]] = []
    for chunk in (*chunks, packets.DISCONNECT):
        play.client(chunk)
        while requests := play.requests():
            for request in requests:
                commands.append(request.arguments)
                play.answer(request, [EPOCH, 0] if request.kind is Kind.OPEN else 1)
        output += play.output()
    return output, commands


def test_a_conversation_is_the_same_cut_at_every_position() -> None:
    data = b"".join(CONVERSATION)
    whole = converse([data])
    assert sorted(whole[0]) == sorted(
        packets.connack() + packets.suback(1, 1, 0) + packets.puback(2) + packets.PINGRESP
        + packets.unsuback(3) + packets.puback(4)
    )  # fmt: skip
    for cut in range(1, len(data)):
        output, commands = converse([data[:cut], data[cut:]])
        assert commands == whole[1], cut
        assert sorted(output) == sorted(whole[0]), cut


def test_a_conversation_is_the_same_byte_by_byte() -> None:
    data = b"".join(CONVERSATION)
    output, commands = converse(data[i : i + 1] for i in range(len(data)))
    assert commands == converse([data])[1]
    assert output == (
        packets.connack() + packets.suback(1, 1, 0) + packets.puback(2) + packets.PINGRESP
        + packets.unsuback(3) + packets.puback(4)
    )  # fmt: skip
