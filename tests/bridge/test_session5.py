"""The rare half of a client of MQTT 5.0, from its packets."""

from typing import Any

import pytest

from holdmq_bridge.base.reasons import Ending, Reason
from holdmq_bridge.session.access import Verdict
from holdmq_bridge.session.actions import Continue, End, Opened, Send
from holdmq_bridge.session.session import Session
from tests.bridge import packets5 as p
from tests.bridge.packets import Will
from tests.bridge.packets5 import Received
from tests.bridge.test_session import CLAIM, EPOCH, Rules, ended, new_session, opened, opening, sent, the, told


def accepted(connect: bytes, **settings: Any) -> tuple[Session, Received]:
    """A session that is open, and its CONNACK taken apart."""
    session = new_session(**settings)
    action: Opened = opened(session, connect)
    return session, p.read(action.connack)


def refused(connect: bytes, **settings: Any) -> Received:
    """The CONNACK of a CONNECT that is refused without further questions."""
    return p.read(sent(new_session(**settings).packet(connect)))


# ---- CONNECT ---------------------------------------------------------------------------------------------------------


def test_a_connack_says_everything_that_the_client_has_to_know() -> None:
    _session, connack = accepted(
        p.connect("c1"), receive_maximum=20, max_packet_bytes=5000, max_topic_alias=7, max_keep_alive_s=600
    )
    assert connack == Received(
        2,
        properties={
            p.RECEIVE_MAXIMUM: 20,
            p.RETAIN_AVAILABLE: 1,
            p.MAXIMUM_PACKET: 5000,
            p.ALIAS_MAXIMUM: 7,
            p.WILDCARD: 1,
            p.IDS: 1,
            p.SHARED: 1,
        },
    )


def test_a_client_without_an_id_learns_the_one_it_was_given() -> None:
    session, connack = accepted(p.connect("", clean=False))
    assert connack.properties[p.ASSIGNED_CLIENT_ID] == b"auto-1"  # [MQTT-3.2.2-16]
    assert session.client_id == b"auto-1"


@pytest.mark.parametrize(
    ("asked", "given", "told_so"),
    [(None, 0, False), (0, 0, False), (60, 60, False), (100, 100, False), (101, 100, True), (0xFFFFFFFF, 100, True)],
)
def test_a_session_expiry_interval_is_bounded_and_the_client_told(asked: int | None, given: int, told_so: bool) -> None:
    properties = b"" if asked is None else p.number(p.SESSION_EXPIRY, asked)
    session = new_session(max_session_expiry_s=100)
    command = opening(session, p.connect("c1", clean=False, properties=properties))
    assert command.arguments == (
        "SESSION.OPEN",
        b"{c1}",
        "OWNER",
        "owner",
        "WINDOW",
        100,
        "EXPIRY",
        given,
        "ATTEMPT",
        "attempt-1",
        *CLAIM,
    )
    connack = p.read(the(Opened, session.reply(command, [EPOCH, 0])).connack)
    assert connack.properties.get(p.SESSION_EXPIRY) == (given if told_so else None)


@pytest.mark.parametrize(("receive_maximum", "window"), [(5, 5), (65535, 100)])
def test_the_server_learns_how_many_messages_can_have_been_sent(receive_maximum: int, window: int) -> None:
    properties = p.number(p.RECEIVE_MAXIMUM, receive_maximum)
    command = opening(new_session(max_inflight=100), p.connect("c1", clean=False, properties=properties))
    assert command.arguments[4:6] == ("WINDOW", window)


def test_clean_start_drops_what_was_there_and_the_new_session_may_last() -> None:
    command = opening(new_session(), p.connect("c1", clean=True, properties=p.number(p.SESSION_EXPIRY, 60)))
    assert command.arguments[4:] == ("CLEAN", "WINDOW", 100, "EXPIRY", 60, "ATTEMPT", "attempt-1", *CLAIM)


@pytest.mark.parametrize(("asked", "given"), [(60, None), (600, None), (601, 600), (65535, 600), (0, 600)])
def test_a_keep_alive_is_bounded_and_the_client_told(asked: int, given: int | None) -> None:
    session, connack = accepted(p.connect("c1", keep_alive=asked), max_keep_alive_s=600)
    assert connack.properties.get(p.SERVER_KEEP_ALIVE) == given  # [MQTT-3.2.2-21]
    assert session.terms is not None
    assert session.terms.keep_alive_s == (given or asked)


def test_the_window_is_the_smaller_of_both_sides_receive_maximum() -> None:
    for asked, window in [(5, 5), (100, 50)]:
        session, _ = accepted(p.connect("c1", properties=p.number(p.RECEIVE_MAXIMUM, asked)), max_inflight=50)
        assert session.terms is not None
        assert session.terms.window == window


def test_response_information_is_given_to_who_asks_and_is_one_topic_level_for_each_client() -> None:
    _, connack = accepted(p.connect("a/b#", properties=p.number(p.REQUEST_RESPONSE, 1)))
    assert connack.properties[p.RESPONSE_INFORMATION] == b"response/a%2Fb%23"
    _, connack = accepted(p.connect("c1", properties=p.number(p.REQUEST_RESPONSE, 0)))
    assert p.RESPONSE_INFORMATION not in connack.properties  # [MQTT-3.1.2-28]


def test_extended_authentication_is_refused() -> None:
    connack = refused(p.connect("c1", properties=p.string(p.AUTH_METHOD, "SCRAM-SHA-1")))
    assert connack.code == Reason.BAD_AUTH_METHOD


def test_authentication_data_without_a_method_is_a_protocol_error() -> None:
    assert refused(p.connect("c1", properties=p.string(p.AUTH_DATA, b"x"))).code == Reason.PROTOCOL_ERROR


def test_a_client_id_that_is_too_long_is_refused_with_words() -> None:
    connack = refused(p.connect("c" * 24), max_client_id_bytes=23)
    assert (connack.code, connack.properties) == (
        Reason.BAD_CLIENT_ID,
        {p.REASON_STRING: b"a client id of 24 bytes, at most 23"},
    )


def test_a_connect_of_another_version_is_refused_as_that_version_has_it() -> None:
    session = new_session()
    future = p.connect("c1").replace(b"MQTT\x05", b"MQTT\x06")
    assert p.read(sent(session.packet(future))).code == Reason.UNSUPPORTED_VERSION


@pytest.mark.parametrize(
    "properties",
    [
        pytest.param(p.number(p.RECEIVE_MAXIMUM, 0), id="receive maximum 0"),
        pytest.param(p.number(p.MAXIMUM_PACKET, 0), id="maximum packet size 0"),
        pytest.param(p.number(p.SESSION_EXPIRY, 1) * 2, id="a property twice"),
        pytest.param(p.number(p.REQUEST_PROBLEM, 2), id="neither 0 nor 1"),
    ],
)
def test_bad_properties_are_a_protocol_error(properties: bytes) -> None:
    assert refused(p.connect("c1", properties=properties)).code == Reason.PROTOCOL_ERROR


def test_a_malformed_connect_is_notified() -> None:
    broken = p.connect("c1", properties=b"\x99")
    assert refused(broken).code == Reason.MALFORMED


def test_a_refusal_says_no_more_than_the_client_can_take() -> None:
    session = new_session(temporary_refusal="reason_code", max_client_id_bytes=23)
    properties = p.number(p.MAXIMUM_PACKET, 20)
    session.packet(p.connect("c1", properties=properties))
    connack = p.read(sent(session.time_out()))
    assert (connack.code, connack.properties) == (Reason.SERVER_UNAVAILABLE, {})
    assert refused(p.connect("c" * 24, properties=properties), max_client_id_bytes=23).properties == {}


@pytest.mark.parametrize("reason", [Reason.BAD_CREDENTIALS, Reason.NOT_AUTHORIZED, Reason.BANNED, Reason.SERVER_BUSY])
def test_a_client_that_is_not_let_in_learns_the_reason_but_no_detail(reason: Reason) -> None:
    session = new_session(temporary_refusal="reason_code")
    session.packet(p.connect("c1"))
    connack = p.read(sent(session.authenticated(Verdict(False, reason, detail="user alice has another password"))))
    assert (connack.code, connack.properties) == (reason, {})


def test_a_will_has_its_delay_its_expiry_and_the_properties_that_are_passed_on() -> None:
    passed = p.number(p.PAYLOAD_FORMAT, 1) + p.string(p.CONTENT_TYPE, "text/plain") + p.pair("a", "b")
    own = p.number(p.WILL_DELAY, 30) + p.number(p.MESSAGE_EXPIRY, 90)
    command = opening(new_session(), p.connect("c1", will=Will("w", b"x", 1, properties=own + passed)))
    assert command.arguments[-11:-2] == ("WILL", b"w", b"x", "WILLQOS", 1, "WILLDELAY", 30, "WILLTTL", 90)
    assert command.arguments[-2] == "WILLPROPERTIES"
    properties = command.arguments[-1]
    assert isinstance(properties, bytes)
    assert p.read(p.publish("t", properties=properties)).properties == {
        p.PAYLOAD_FORMAT: 1,
        p.CONTENT_TYPE: b"text/plain",
        p.USER_PROPERTY: [("a", "b")],
    }


@pytest.mark.parametrize(
    ("asked", "settings", "given"),
    [
        (0, {}, 0),
        (None, {}, None),
        (None, {"message_expiry_s": 5}, 5),
        (None, {"max_message_expiry_s": 7}, 7),
        (90, {"message_expiry_s": 5, "max_message_expiry_s": 7}, 7),
        (6, {"message_expiry_s": 5, "max_message_expiry_s": 7}, 6),
    ],
)
def test_a_will_lives_no_longer_than_the_settings_allow(
    asked: int | None, settings: dict[str, int], given: int | None
) -> None:
    properties = b"" if asked is None else p.number(p.MESSAGE_EXPIRY, asked)
    command = opening(new_session(**settings), p.connect("c1", will=Will("w", b"x", 1, properties=properties)))
    options = command.arguments[command.arguments.index("WILL") :]
    assert options[5:] == (() if given is None else ("WILLTTL", given))


# ---- SUBSCRIBE and UNSUBSCRIBE ---------------------------------------------------------------------------------------


def test_subscription_options_and_identifier_go_to_the_server() -> None:
    session, _ = accepted(p.connect("c1"))
    subscribe = p.subscribe(9, ("a", 0b0010_1101), ("$share/g/b", 2), properties=p.number(p.SUBSCRIPTION_ID, 300))
    command = told(session.packet(subscribe))
    assert command.arguments[4:] == (b"a", "45:300", b"$share/g/b", "2:300")
    assert session.reply(command, [1, 1]) == [Send(p.suback(9, 1, 2)), Continue()]


def test_without_an_identifier_the_options_stand_alone() -> None:
    session, _ = accepted(p.connect("c1"))
    assert told(session.packet(p.subscribe(9, ("a", 0b0010_1100)))).arguments[4:] == (b"a", 44)


def test_every_filter_has_a_reason_of_its_own() -> None:
    session = new_session(max_subscriptions=1)
    opened(session, p.connect("c1"), rules=Rules(b"a", b"b"))
    deep = "/".join("x" * 200)
    listing = told(session.packet(p.subscribe(9, ("a", 1), ("b", 1), ("c", 1), (deep, 1))))
    command = told(session.reply(listing, [b"0", {}]))
    assert command.arguments[4:] == (b"a", 1)
    expected = p.suback(9, 1, Reason.QUOTA_EXCEEDED, Reason.NOT_AUTHORIZED, Reason.BAD_TOPIC_FILTER)
    assert sent(session.reply(command, [1])) == expected


def test_an_unsubscribe_reports_which_filters_were_there() -> None:
    session, _ = accepted(p.connect("c1"))
    command = told(session.packet(p.unsubscribe(9, "a", "b")))
    assert sent(session.reply(command, [1, 0])) == p.unsuback(9, 0, Reason.NO_SUBSCRIPTION_EXISTED)


@pytest.mark.parametrize(
    "packet",
    [
        pytest.param(p.subscribe(1, ("$share/g/a", 0x05)), id="a shared subscription without its own messages"),
        pytest.param(p.subscribe(1, ("a", 0x31)), id="retain handling 3"),
        pytest.param(p.subscribe(1, ("a", 1), properties=p.number(p.SUBSCRIPTION_ID, 0)), id="identifier 0"),
        pytest.param(p.auth(), id="AUTH"),
    ],
)
def test_protocol_errors_end_the_connection_with_their_reason(packet: bytes) -> None:
    session, _ = accepted(p.connect("c1"))
    actions = session.packet(packet)
    assert p.read(sent(actions)).code in (Reason.PROTOCOL_ERROR, Reason.MALFORMED)
    assert isinstance(actions[-1], End)


# ---- the end ---------------------------------------------------------------------------------------------------------


def test_a_disconnect_may_leave_the_will_in_force() -> None:
    session, _ = accepted(p.connect("c1", will=Will("w")))
    actions = session.packet(p.disconnect(Reason.DISCONNECT_WITH_WILL))
    assert the(End, actions).ending is Ending.DISCONNECT_WITH_WILL
    (command,) = ended(session, actions)
    assert command.arguments[-1] == "WILL"


def test_a_disconnect_may_change_the_session_expiry() -> None:
    session, _ = accepted(p.connect("c1", properties=p.number(p.SESSION_EXPIRY, 60)), max_session_expiry_s=100)
    actions = session.packet(p.disconnect(0, p.number(p.SESSION_EXPIRY, 500)))
    (command,) = ended(session, actions)
    assert command.arguments == ("SESSION.CLOSE", b"{c1}", "EPOCH", EPOCH, "EXPIRY", 100)


def test_a_session_that_was_to_end_cannot_be_prolonged_by_a_disconnect() -> None:
    session, _ = accepted(p.connect("c1", will=Will("w")))
    actions = session.packet(p.disconnect(0, p.number(p.SESSION_EXPIRY, 1)))
    assert p.read(sent(actions)).code == Reason.PROTOCOL_ERROR
    (command,) = ended(session, actions)
    assert command.arguments == ("SESSION.CLOSE", b"{c1}", "EPOCH", EPOCH, "WILL")


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        (Ending.TAKEN_OVER, 0x8E),
        (Ending.SILENT, 0x8D),
        (Ending.SHUTDOWN, 0x8B),
        (Ending.DROPPED, 0x98),
        (Ending.NOT_ALLOWED, 0x87),
        (Ending.SERVER_ERROR, 0x83),
    ],
)
def test_the_client_learns_why_the_server_ends_the_connection(ending: Ending, code: int) -> None:
    session, _ = accepted(p.connect("c1"))
    assert p.read(sent(session.end(ending))).code == code


@pytest.mark.parametrize("ending", [Ending.LOST, Ending.SLOW])
def test_nothing_is_sent_to_a_client_that_cannot_receive(ending: Ending) -> None:
    session, _ = accepted(p.connect("c1"))
    assert sent(session.end(ending)) == b""


@pytest.mark.parametrize("code", [0x93, 0x94, 0x95, 0x90])
def test_a_fault_that_the_engine_found_is_named(code: int) -> None:
    session, _ = accepted(p.connect("c1"))
    got = p.read(sent(session.fault(code, "why")))
    assert (got.code, got.properties) == (code, {p.REASON_STRING: b"why"})


def test_a_reason_string_never_makes_a_packet_larger_than_the_client_takes() -> None:
    session, _ = accepted(p.connect("c1", properties=p.number(p.MAXIMUM_PACKET, 20)))
    got = p.read(sent(session.fault(0x82, "a text of some length")))
    assert (got.code, got.properties) == (0x82, {})


def test_a_shutdown_before_the_session_is_open_is_a_refusal() -> None:
    session = new_session(temporary_refusal="reason_code")
    opening(session, p.connect("c1"))
    assert p.read(sent(session.end(Ending.SHUTDOWN))).code == Reason.SERVER_UNAVAILABLE
