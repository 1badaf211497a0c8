"""CONNECT, CONNACK, PINGREQ and DISCONNECT: chapters 3.1, 3.2, 3.12 and 3.14 of both versions."""

import string
from collections.abc import Callable

import pytest
import redis

from tests.bridge import packets
from tests.bridge import packets5 as p
from tests.bridge.conformance.conftest import Connect
from tests.bridge.conformance.peer import CONNACK, PINGRESP, PUBLISH, Peer, connect
from tests.bridge.packets import Will
from tests.bridge.talk import Talk
from tests.support import BridgeProcess, Server, eventually
from tests.support.servers import embedded_kinds

server_kinds = embedded_kinds

MakePeer = Callable[..., Peer]

# ---- the first packet ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(packets.publish("a", b"x"), id="PUBLISH"),
        pytest.param(packets.subscribe(1, ("a", 0)), id="SUBSCRIBE"),
        pytest.param(packets.PINGREQ, id="PINGREQ"),
        pytest.param(packets.DISCONNECT, id="DISCONNECT"),
        pytest.param(packets.connack(), id="CONNACK"),
        pytest.param(p.auth(), id="AUTH"),
    ],
)
def test_what_comes_before_connect_is_closed_without_a_word(broker: BridgeProcess, data: bytes) -> None:
    with Talk(broker.port) as client:
        client.send(data)
        client.expect_closed()  # [MQTT-3.1.0-1]; no DISCONNECT before a CONNACK either [MQTT-3.14.0-1]


def test_another_protocol_name_is_closed_without_a_word(broker: BridgeProcess, version: int) -> None:
    with Talk(broker.port) as client:
        client.send(connect(version, "c1").replace(b"MQTT", b"MQTt"))
        client.expect_closed()  # [MQTT-3.1.2-1]


# First flags byte, what follows the client id, what is wrong with it.
FAULTY_CONNECTS = [
    pytest.param(0x03, b"", id="the reserved flag"),  # [MQTT-3.1.2-3]
    pytest.param(0x0A, b"", id="a will QoS without a will"),  # 3.1.1: -13, 5.0: -11
    pytest.param(0x22, b"", id="a will retain without a will"),  # -15, -13
    pytest.param(0x1E, b"\0\1w\0\0", id="will QoS 3"),  # -14, -12
    pytest.param(0x06, b"", id="a will that is not there"),  # -9
    pytest.param(0x82, b"", id="a user name that is not there"),  # -19, -17
    pytest.param(0xC2, b"\0\1u", id="a password that is not there"),  # -21, -19
    pytest.param(0x02, b"\0\1u", id="a user name without its flag"),  # -18, -16
    pytest.param(0x82, b"\0\1u\0\1p", id="a password without its flag"),  # -20, -18
]


@pytest.mark.parametrize(("flags", "rest"), FAULTY_CONNECTS)
def test_a_connect_whose_flags_and_fields_do_not_fit_is_refused(
    broker: BridgeProcess, version: int, flags: int, rest: bytes
) -> None:
    none = b"\0" if version == 5 else b""
    if version == 5 and flags & 0x04 and rest:
        rest = b"\0" + rest  # properties of the will
    body = packets.text("MQTT") + bytes([version, flags]) + b"\0\x3c" + none + packets.text("c1") + rest
    with Peer(broker.port, version) as client:
        client.send(packets.packet(0x10, body))
        if version == 5:
            assert client.read(CONNACK).code == 0x81
        client.expect_closed()  # [MQTT-3.1.4-1]


def test_a_password_needs_a_user_name_in_3_1_1_only(broker: BridgeProcess, version: int) -> None:
    with Peer(broker.port, version) as client:
        client.send(connect(version, "c1", password=b"secret"))
        if version == 5:
            assert client.read(CONNACK).code == 0
        else:
            client.expect_closed()  # [MQTT-3.1.2-22]


@pytest.mark.parametrize("field", ["client_id", "username", "will"])
@pytest.mark.parametrize("text", [b"\xff", b"\xed\xa0\x80", b"a\0b"], ids=["no UTF-8", "a surrogate", "NUL"])
def test_a_text_that_cannot_be_closes_the_connection(
    broker: BridgeProcess, version: int, field: str, text: bytes
) -> None:
    will = Will("MARK") if field == "will" else None
    username = "MARK" if field == "username" else None
    data = connect(version, "MARK" if field == "client_id" else "c1", will=will, username=username)
    data = data.replace(packets.text("MARK"), packets.text(text))
    data = data[:1] + bytes([len(data) - 2]) + data[2:]
    with Peer(broker.port, version) as client:
        client.send(data)
        if version == 5:
            assert client.read(CONNACK).code == 0x81
        client.expect_closed()


# ---- client ids ------------------------------------------------------------------------------------------------------


def test_every_letter_and_digit_and_23_bytes_make_a_client_id(peer: MakePeer) -> None:
    alphabet = string.digits + string.ascii_letters
    for at in range(0, len(alphabet), 23):
        name = alphabet[at : at + 23]
        assert not peer(name, lasting=60).connack.present
        assert peer(name, lasting=60).connack.present  # [MQTT-3.1.3-5]; found again by it [MQTT-3.1.3-2]


def test_clients_without_an_id_are_sessions_of_their_own(peer: MakePeer) -> None:
    first, second, sender = peer(), peer(), peer()
    first.wants(("a", 1))
    sender.tell("a", b"x")
    assert first.message().payload == b"x"
    assert second.arrived() == []  # [MQTT-3.1.3-6]
    assert first.arrived() == []  # nobody took it over


def test_an_assigned_id_is_told_and_is_nobody_elses(join: Connect) -> None:
    names = [join(5).connack.properties[p.ASSIGNED_CLIENT_ID] for _ in range(10)]
    assert len(set(names)) == 10  # [MQTT-3.1.3-7, 3.2.2-16]
    assert p.ASSIGNED_CLIENT_ID not in join(5, "c1").connack.properties


# ---- sessions --------------------------------------------------------------------------------------------------------


def test_session_present_says_whether_there_was_one(peer: MakePeer) -> None:
    assert not peer("c1", lasting=60).connack.present  # [MQTT-3.2.2-3]
    assert peer("c1", lasting=60).connack.present  # [MQTT-3.2.2-2]
    assert not peer("c1", clean=True).connack.present  # 3.1.1: [MQTT-3.2.2-1], 5.0: [MQTT-3.2.2-2]
    assert not peer("c1", lasting=60).connack.present  # what ended with its connection is not used again


def test_a_clean_start_discards_subscriptions_messages_and_what_is_in_flight(peer: MakePeer) -> None:
    receiver, sender = peer("c1", lasting=60), peer()
    receiver.wants(("a", 1))
    sender.tell("a", b"in flight")
    assert receiver.message(finish=False).payload == b"in flight"
    receiver.leave()
    sender.tell("a", b"waiting", pid=2)
    receiver = peer("c1", clean=True)
    sender.tell("a", b"for nobody", pid=3)
    assert receiver.arrived() == []  # 3.1.1: [MQTT-3.1.2-6], 5.0: [MQTT-3.1.2-4]


def test_the_end_of_a_session_leaves_retained_messages_alone(peer: MakePeer) -> None:
    sender = peer("c1")
    sender.tell("a", b"kept", retain=True)
    sender.leave()
    receiver = peer()
    receiver.wants(("a", 1))
    assert receiver.message().payload == b"kept"  # 3.1.1: [MQTT-3.1.2-7]


def test_a_refused_client_has_no_session_and_nothing_of_it_is_processed(
    client: redis.Redis, broker: BridgeProcess, peer: MakePeer, version: int
) -> None:
    client.set("{c1}_session", "no hash")  # the server cannot open this one
    watcher = peer()
    watcher.wants(("#", 1))
    with Peer(broker.port, version) as refused:
        refused.send(connect(version, "c1", clean=False), packets.publish("a", b"\0behind it"))
        answer = refused.read(CONNACK)
        assert (answer.code, answer.present) == (0x83 if version == 5 else 3, False)  # [MQTT-3.2.2-4, -6]
        refused.expect_closed()  # [MQTT-3.2.2-5, -7]
    assert watcher.arrived() == []  # [MQTT-3.1.4-5, -6]


def test_what_comes_with_the_connect_is_answered_after_the_connack(broker: BridgeProcess, version: int) -> None:
    with Peer(broker.port, version) as client:
        subscribe = p.subscribe(1, ("a", 1)) if version == 5 else packets.subscribe(1, ("a", 1))
        client.send(connect(version, "c1"), packets.PINGREQ, subscribe, packets.PINGREQ)
        kinds = [client.read().kind for _ in range(4)]
        assert kinds == [CONNACK, PINGRESP, 9, PINGRESP]  # [MQTT-3.2.0-1]; one CONNACK only [MQTT-3.2.0-2]


# ---- the end ---------------------------------------------------------------------------------------------------------


def test_after_a_disconnect_nothing_is_processed_and_nothing_comes(peer: MakePeer) -> None:
    watcher, client = peer(), peer("c1")
    watcher.wants(("#", 1))
    late = p.publish("a", b"late") if client.version == 5 else packets.publish("a", b"late")
    client.send(packets.DISCONNECT, late, packets.PINGREQ)
    client.expect_closed()
    assert watcher.arrived() == []


def test_a_disconnect_with_reserved_bits_is_refused(peer: MakePeer) -> None:
    watcher = peer()
    watcher.wants(("will", 1))
    client = peer("c1", will=Will("will", b"gone", 1))
    client.send(b"\xe1\x00")
    client.expect_refused(0x81)  # [MQTT-3.14.1-1]
    assert watcher.message().payload == b"gone"  # it was no DISCONNECT


def test_a_session_without_keep_alive_stays(peer: MakePeer) -> None:
    if peer("c0").version == 5:
        assert peer("c1", keep_alive=0).connack.properties[p.SERVER_KEEP_ALIVE] == 600  # the server's own
        return
    client = peer("c1", keep_alive=0)
    client.expect_silence(0.3)
    assert client.arrived() == []


def test_each_connection_has_its_own_server_and_only_one_per_client(peer: MakePeer) -> None:
    first = peer("c1", lasting=60)
    second = peer("c1", lasting=60)
    first.expect_refused(0x8E)  # [MQTT-3.1.4-2, -3]
    second.wants(("a", 1))
    peer().tell("a", b"x")
    assert second.message().payload == b"x"


def test_of_many_that_connect_with_one_id_at_once_one_stays(
    broker: BridgeProcess, join: Connect, server: Server, bridge: Callable[..., BridgeProcess], version: int
) -> None:
    ports = (broker.port, bridge(server).port)
    rivals = [Peer(ports[number % 2], version) for number in range(12)]
    for rival in rivals:
        rival.send(connect(version, "c1", clean=False))
    for rival in rivals:
        assert rival.read(CONNACK).code == 0
    survivors = []
    for rival in rivals:
        try:
            rival.arrived()
            survivors.append(rival)
        except (AssertionError, OSError):  # it was closed
            rival.close()
    assert len(survivors) == 1  # [MQTT-3.1.4-2, -3]
    survivors[0].wants(("a", 1))
    join(version).tell("a", b"x")
    assert survivors[0].message().payload == b"x"
    survivors[0].close()


# ---- 5.0 -------------------------------------------------------------------------------------------------------------


def test_a_connack_agrees_with_what_was_asked_and_says_no_more(join: Connect) -> None:
    # Response Information is not sent unasked [MQTT-3.1.2-28], Server Keep Alive where it is the client's neither
    # [MQTT-3.2.2-22], nor an authentication method [MQTT-4.12.0-6].
    connack = join(5, "c1", lasting=60, keep_alive=60).connack
    assert connack.properties == {
        p.RECEIVE_MAXIMUM: 1000,
        p.RETAIN_AVAILABLE: 1,
        p.MAXIMUM_PACKET: 1_048_576,
        p.ALIAS_MAXIMUM: 10,
        p.WILDCARD: 1,
        p.IDS: 1,
        p.SHARED: 1,
    }


@pytest.mark.parametrize("asked", [False, True])
def test_response_information_comes_to_who_asks(join: Connect, asked: bool) -> None:
    connack = join(5, "c1", properties=p.number(p.REQUEST_RESPONSE, asked)).connack
    assert (p.RESPONSE_INFORMATION in connack.properties) is asked  # [MQTT-3.1.2-28]


def test_an_authentication_method_is_refused(broker: BridgeProcess) -> None:
    with Peer(broker.port, 5) as client:
        client.send(connect(5, "c1", properties=p.string(p.AUTH_METHOD, "SCRAM-SHA-256")))
        answer = client.read(CONNACK)
        assert (answer.code, answer.properties.get(p.AUTH_METHOD)) == (0x8C, None)  # [MQTT-4.12.0-1]
        client.expect_closed()


def test_a_refusal_fits_into_what_the_client_takes(broker: BridgeProcess) -> None:
    with Peer(broker.port, 5) as client:
        small = p.number(p.MAXIMUM_PACKET, 8)
        client.send(connect(5, "c" * 1025, properties=small))
        data = client.read_packet()
        assert (data[0], data[3], len(data) <= 8) == (0x20, 0x85, True)  # [MQTT-3.2.2-19]
        client.expect_closed()


def test_a_refusal_says_why(broker: BridgeProcess) -> None:
    with Peer(broker.port, 5) as client:
        client.send(connect(5, "c" * 1025))
        answer = client.read(CONNACK)
        assert (answer.code, answer.present) == (0x85, False)  # [MQTT-3.1.3-8]
        assert b"1025" in answer.properties[p.REASON_STRING]
        client.expect_closed()


def test_a_session_ends_with_its_connection_unless_it_has_an_interval(client: redis.Redis, join: Connect) -> None:
    first = join(5, "c1", clean=False)  # no interval
    first.wants(("a", 1))
    first.leave()
    assert not join(5, "c1", clean=False).connack.present  # [MQTT-4.1.0-2]
    second = join(5, "c2", lasting=60)
    second.wants(("a", 1))
    second.leave()
    assert join(5, "c2", lasting=60).connack.present  # [MQTT-3.1.2-23]
    assert eventually(lambda: not client.keys("{c1}_subscriptions"))


def test_the_connack_names_the_bound_for_a_session_that_never_expires(join: Connect) -> None:
    connack = join(5, "c1", clean=False, properties=p.number(p.SESSION_EXPIRY, 0xFFFFFFFF)).connack
    assert connack.properties[p.SESSION_EXPIRY] == 604_800  # the bound of this server (3.2.2.3.2)


def test_nothing_comes_after_the_servers_disconnect(join: Connect) -> None:
    sender, victim = join(5), join(5, "c1")
    victim.wants(("a", 0))
    victim.send(p.publish("", b"no topic"), *(p.publish("a", b"x") for _ in range(20)))
    sender.tell("a", b"y")
    packets_seen = [got.kind for got in [victim.until(14)]]
    assert packets_seen == [14]
    victim.expect_closed()  # [MQTT-3.14.4-1, -2]


def test_the_version_of_a_session_may_change_between_connections(join: Connect) -> None:
    first = join(5, "c1", lasting=60)
    first.wants(("a", 1), properties=p.number(p.SUBSCRIPTION_ID, 7))
    first.leave()
    join(5).tell("a", b"x", properties=p.pair("a", "b"))
    second = join(4, "c1", lasting=60)
    assert second.connack.present
    got = second.read(PUBLISH)
    assert (got.topic, got.payload, got.properties) == ("a", b"x", {})


@pytest.mark.parametrize("how", [("SESSION.DROP", "{c1}"), ("DEL", "{c1}_session"), ("FLUSHALL",)])
def test_a_session_that_is_dropped_at_the_server_ends_with_a_reason(
    client: redis.Redis, peer: MakePeer, how: tuple[str, ...]
) -> None:
    victim = peer("c1", lasting=60)
    client.execute_command(*how)
    victim.expect_refused(0x98)  # administrative action, at once
