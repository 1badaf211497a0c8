"""What a session is after its connection was lost: chapters 4.1 and 4.4, and the expiries of 5.0."""

import time
from collections.abc import Callable

import pytest
import redis

from tests.bridge import packets5 as p
from tests.bridge.conformance.conftest import Connect
from tests.bridge.conformance.peer import PUBCOMP, PUBLISH, PUBREC, PUBREL, Peer
from tests.support import BridgeProcess, Server, eventually

MakePeer = Callable[..., Peer]
MakeBridge = Callable[..., BridgeProcess]


def waiting(join: Connect, *payloads: bytes, qos: int = 1, expiry: int = 0, **more: object) -> None:
    """A session c1 that is away, and messages to `a` that wait for it."""
    receiver, sender = join(5, "c1", lasting=60, **more), join(5)
    receiver.wants(("a", 2))
    receiver.leave()
    properties = p.number(p.MESSAGE_EXPIRY, expiry) if expiry else b""
    for payload in payloads:
        sender.tell("a", payload, qos=qos, properties=properties)


# ---- what is sent again ----------------------------------------------------------------------------------------------


def test_what_was_not_acknowledged_comes_again_in_order_with_its_identifier_and_dup(peer: MakePeer) -> None:
    receiver, sender = peer("c1", lasting=60), peer()
    receiver.wants(("a", 2))
    for number in range(1, 11):
        sender.tell("a", b"%d" % number, qos=1 + number % 2, pid=number)
    first = [receiver.message(finish=False) for _ in range(10)]
    receiver.answer(0x40, first[1].pid)  # of one in the middle
    receiver.vanish()
    receiver = peer("c1", lasting=60)
    assert receiver.connack.present
    again = [receiver.message() for _ in range(9)]
    assert all(got.dup for got in again)  # [MQTT-3.3.1-1]
    expected = [(got.payload, got.pid, got.qos) for got in first if got is not first[1]]
    assert [(got.payload, got.pid, got.qos) for got in again] == expected  # [MQTT-4.4.0-1]
    assert receiver.arrived() == []


def test_what_was_never_sent_comes_without_dup_after_what_was(peer: MakePeer) -> None:
    receiver, sender = peer("c1", lasting=60), peer()
    receiver.wants(("a", 1))
    sender.tell("a", b"sent")
    receiver.message(finish=False)
    receiver.vanish()
    sender.tell("a", b"new")
    receiver = peer("c1", lasting=60)
    assert [(got.payload, got.dup) for got in (receiver.message(), receiver.message())] == [
        (b"sent", True),
        (b"new", False),
    ]


def test_an_owed_pubrel_is_sent_again_and_the_publish_is_not(peer: MakePeer) -> None:
    receiver, sender = peer("c1", lasting=60), peer()
    receiver.wants(("a", 2))
    sender.tell("a", b"x", qos=2)
    got = receiver.message(finish=False)
    receiver.answer(0x50, got.pid)
    assert receiver.read(PUBREL).pid == got.pid
    receiver.vanish()
    for _ in range(2):  # as often as the client comes back
        receiver = peer("c1", lasting=60)
        release = receiver.read(PUBREL)
        assert (release.pid, release.code) == (got.pid, 0)  # [MQTT-4.4.0-1, 4.3.3-5, 4.3.3-6]
        assert receiver.arrived() == []
        receiver.vanish()
    receiver = peer("c1", lasting=60)
    receiver.answer(0x70, receiver.read(PUBREL).pid)
    receiver.vanish()
    assert peer("c1", lasting=60).arrived() == []


def test_a_pubrec_whose_pubrel_never_came_is_answered_after_the_return(peer: MakePeer) -> None:
    receiver, sender = peer("c1", lasting=60), peer()
    receiver.wants(("a", 2))
    sender.tell("a", b"x", qos=2)
    got = receiver.message(finish=False)
    receiver.vanish()
    receiver = peer("c1", lasting=60)
    again = receiver.message(finish=False)
    assert (again.pid, again.dup) == (got.pid, True)
    receiver.answer(0x50, again.pid)
    assert receiver.read(PUBREL).pid == got.pid
    receiver.answer(0x70, got.pid)
    assert receiver.arrived() == []


def test_a_pubrel_after_the_return_is_completed_with_success(peer: MakePeer) -> None:
    receiver, sender = peer(), peer("c1", lasting=60)
    receiver.wants(("a", 2))
    sender.say("a", b"x", qos=2, pid=9)
    assert sender.read(PUBREC).pid == 9
    sender.vanish()
    sender = peer("c1", lasting=60)
    sender.answer(0x62, 9)
    got = sender.read(PUBCOMP)
    assert (got.pid, got.code) == (9, 0)
    assert receiver.messages(1) == [b"x"]


def test_a_qos_2_publish_after_the_return_is_still_the_same_message(peer: MakePeer) -> None:
    receiver, sender = peer(), peer("c1", lasting=60)
    receiver.wants(("a", 2))
    sender.say("a", b"x", qos=2, pid=9)
    sender.read(PUBREC)
    sender.vanish()
    sender = peer("c1", lasting=60)
    sender.say("a", b"x", qos=2, pid=9, dup=True)
    assert sender.read(PUBREC).pid == 9
    sender.answer(0x62, 9)
    assert sender.read(PUBCOMP).pid == 9
    assert receiver.messages(1) == [b"x"]
    assert receiver.arrived() == []  # exactly once


def test_after_a_clean_start_nothing_is_owed(peer: MakePeer) -> None:
    receiver, sender = peer("c1", lasting=60), peer()
    receiver.wants(("a", 2))
    for number in (1, 2):
        sender.tell("a", b"x", qos=2, pid=number)
    receiver.answer(0x50, receiver.message(finish=False).pid)
    receiver.vanish()
    assert peer("c1", lasting=60, clean=True).arrived() == []


def test_subscriptions_are_part_of_the_session(peer: MakePeer) -> None:
    receiver, sender = peer("c1", lasting=60), peer()
    receiver.wants(("a", 1), ("b/#", 2))
    receiver.vanish()
    receiver = peer("c1", lasting=60)
    sender.tell("a", b"1")
    sender.tell("b/c", b"2", qos=2)
    assert [(got.payload, got.qos) for got in (receiver.message(), receiver.message())] == [(b"1", 1), (b"2", 2)]


# ---- more than fits at once ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [1, 2])
def test_a_backlog_beyond_receive_maximum_drains_in_order_and_live_messages_queue_behind_it(
    join: Connect, qos: int
) -> None:
    three = p.number(p.RECEIVE_MAXIMUM, 3)
    waiting(join, *(b"%d" % n for n in range(1, 41)), qos=qos)
    receiver, sender = join(5, "c1", lasting=60, properties=three), join(5)
    held = [receiver.message(finish=False) for _ in range(3)]
    assert receiver.arrived() == []
    for number in range(41, 51):
        sender.tell("a", b"%d" % number, qos=qos)
    assert receiver.arrived() == []  # they wait, too
    for got in held:
        if qos == 1:
            receiver.answer(0x40, got.pid)
            continue
        receiver.answer(0x50, got.pid)
        assert receiver.until(PUBREL).pid == got.pid
        receiver.answer(0x70, got.pid)
    assert [int(got.payload) for got in held] + [int(x) for x in receiver.messages(47)] == list(range(1, 51))
    assert receiver.arrived() == []


def test_a_smaller_receive_maximum_holds_for_what_is_sent_again(join: Connect) -> None:
    receiver, sender = join(5, "c1", lasting=60), join(5)
    receiver.wants(("a", 2))
    for number in range(1, 7):
        sender.tell("a", b"%d" % number, qos=1 + number % 2)
    first = [receiver.message(finish=False) for _ in range(6)]
    receiver.answer(0x50, first[0].pid)
    receiver.read(PUBREL)
    receiver.vanish()
    receiver = join(5, "c1", lasting=60, properties=p.number(p.RECEIVE_MAXIMUM, 2))
    got = receiver.arrived()
    assert [(packet.kind, packet.pid) for packet in got] == [(PUBREL, first[0].pid), (PUBLISH, first[1].pid)]
    receiver.answer(0x70, first[0].pid)
    receiver.answer(0x40, first[1].pid)
    assert receiver.messages(4) == [b"3", b"4", b"5", b"6"]


@pytest.mark.parametrize("qos", [1, 2])
def test_an_oversized_message_does_not_stall_the_queue(join: Connect, qos: int) -> None:
    small = p.number(p.MAXIMUM_PACKET, 64) + p.number(p.RECEIVE_MAXIMUM, 1)
    waiting(join, b"1", b"x" * 100, b"2", b"y" * 100, b"z" * 100, b"3", qos=qos)
    receiver = join(5, "c1", lasting=60, properties=small)
    assert receiver.messages(3) == [b"1", b"2", b"3"]  # [MQTT-3.1.2-24, -25]
    receiver.vanish()
    receiver = join(5, "c1", lasting=60)
    assert receiver.arrived() == []  # they count as delivered


def test_a_packet_as_large_as_the_client_takes_is_sent(join: Connect) -> None:
    receiver, sender = join(5, "c1", properties=p.number(p.MAXIMUM_PACKET, 40)), join(5)
    receiver.wants(("a", 1))
    fits = 40 - 8  # fixed header 2, topic 3, identifier 2, properties 1
    sender.tell("a", b"x" * (fits + 1))
    sender.tell("a", b"x" * fits)
    assert receiver.message().payload == b"x" * fits
    assert receiver.arrived() == []


# ---- expiry ----------------------------------------------------------------------------------------------------------


def test_what_is_left_of_the_expiry_is_what_is_sent(join: Connect) -> None:
    waiting(join, b"x", expiry=60)
    time.sleep(1.2)  # the passing of time is what is tested
    receiver = join(5, "c1", lasting=60)
    first = receiver.message(finish=False)
    assert 40 <= first.properties[p.MESSAGE_EXPIRY] <= 59  # [MQTT-3.3.2-6]
    receiver.vanish()
    time.sleep(1.2)
    again = join(5, "c1", lasting=60).message()
    assert again.dup
    assert again.properties[p.MESSAGE_EXPIRY] < first.properties[p.MESSAGE_EXPIRY]


@pytest.mark.parametrize("qos", [1, 2])
def test_a_message_in_flight_does_not_expire(join: Connect, qos: int) -> None:
    waiting(join, b"x", qos=qos, expiry=3)
    receiver = join(5, "c1", lasting=60)
    first = receiver.message(finish=False)
    receiver.vanish()
    time.sleep(3.3)  # the same
    receiver = join(5, "c1", lasting=60)
    again = receiver.message()
    assert (again.payload, again.pid, again.dup) == (b"x", first.pid, True)
    assert again.properties[p.MESSAGE_EXPIRY] == 0
    assert receiver.arrived() == []


def test_expiry_never_ends_a_qos_2_exchange_past_pubrec(join: Connect) -> None:
    waiting(join, b"x", qos=2, expiry=3)
    receiver = join(5, "c1", lasting=60)
    got = receiver.message(finish=False)
    receiver.answer(0x50, got.pid)
    assert receiver.read(PUBREL).pid == got.pid
    receiver.vanish()
    time.sleep(3.3)  # the same
    receiver = join(5, "c1", lasting=60)
    assert receiver.read(PUBREL).pid == got.pid  # [MQTT-4.3.3-7]
    receiver.answer(0x70, got.pid)
    assert receiver.arrived() == []


def test_a_publishers_exchange_is_completed_though_its_message_has_expired(join: Connect) -> None:
    receiver, sender = join(5, "c1", lasting=60), join(5)
    receiver.wants(("a", 2))
    receiver.leave()
    sender.say("a", b"x", qos=2, pid=9, properties=p.number(p.MESSAGE_EXPIRY, 1))
    assert sender.read(PUBREC).code == 0
    time.sleep(1.3)  # the same
    sender.answer(0x62, 9)
    got = sender.read(PUBCOMP)
    assert (got.pid, got.code) == (9, 0)  # [MQTT-4.3.3-13]
    assert join(5, "c1", lasting=60).arrived() == []  # [MQTT-3.3.2-5]


def test_what_expired_while_it_waited_leaves_no_gap(join: Connect) -> None:
    receiver, sender = join(5, "c1", lasting=60), join(5)
    receiver.wants(("a", 1))
    receiver.leave()
    for number in range(1, 31):
        properties = p.number(p.MESSAGE_EXPIRY, 1) if number % 3 else b""
        sender.tell("a", b"%d" % number, properties=properties)
    time.sleep(1.3)  # the same
    receiver = join(5, "c1", lasting=60, properties=p.number(p.RECEIVE_MAXIMUM, 2))
    assert [int(payload) for payload in receiver.messages(10)] == list(range(3, 31, 3))
    assert receiver.arrived() == []


def test_a_message_that_waits_behind_a_full_window_expires_there(join: Connect) -> None:
    receiver, sender = join(5, "c1", lasting=60, properties=p.number(p.RECEIVE_MAXIMUM, 1)), join(5)
    receiver.wants(("a", 2))
    sender.tell("a", b"1")
    held = receiver.message(finish=False)
    for qos in (1, 2):
        sender.tell("a", b"late", qos=qos, properties=p.number(p.MESSAGE_EXPIRY, 1))
    sender.tell("a", b"2")
    time.sleep(1.3)  # the same
    receiver.answer(0x40, held.pid)
    assert receiver.message().payload == b"2"
    assert receiver.arrived() == []


def session(client: redis.Redis, name: str) -> dict[bytes, int]:
    """SESSION.INFO."""
    reply = client.execute_command("SESSION.INFO", f"{{{name}}}")
    return reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))


def is_closed(client: redis.Redis, name: str) -> None:
    """Waits for it: the bridge ends the connection before the server has heard of it."""
    eventually(lambda: not session(client, name)[b"connected"], what=f"{name} closed")


def test_a_session_ends_to_the_second(client: redis.Redis, join: Connect) -> None:
    names = [f"c{n}" for n in range(6)]
    left: dict[str, tuple[float, float]] = {}  # between which moments
    for name in names:
        receiver = join(5, name, lasting=2)
        before = time.monotonic()
        receiver.leave()
        is_closed(client, name)
        left[name] = (before, time.monotonic())
    for at, name in zip((0.5, 1.0, 1.5, 3.05, 3.2, 3.4), names, strict=True):
        earliest, latest = left[name]
        time.sleep(max(0.0, latest + at - time.monotonic()))
        asked = time.monotonic()
        was_there = join(5, name, clean=False).connack.present
        answered = time.monotonic()
        # On a busy machine the answer to an early question may come too late to say anything.
        assert was_there or answered > earliest + 2.0, name
        assert not was_there or asked < latest + 3.0, name


def test_the_interval_of_the_disconnect_counts(client: redis.Redis, join: Connect) -> None:
    join(5, "c1", lasting=1).leave(0, p.number(p.SESSION_EXPIRY, 60))
    join(5, "c2", lasting=60).leave(0, p.number(p.SESSION_EXPIRY, 1))
    eventually(lambda: not session(client, "c2")[b"exists"], what="the end of c2")  # c1 would have ended before it
    assert join(5, "c1", clean=False).connack.present
    assert not join(5, "c2", clean=False).connack.present


def test_a_session_that_came_back_has_the_interval_of_its_new_connect(join: Connect) -> None:
    join(5, "c1", lasting=60).leave()
    join(5, "c1", clean=False).leave()  # now none
    assert not join(5, "c1", clean=False).connack.present


# ---- several processes -----------------------------------------------------------------------------------------------


@pytest.fixture
def other(server: Server, bridge: MakeBridge) -> BridgeProcess:
    """A second process beside the shared one."""
    return bridge(server)


def test_after_suback_the_subscription_is_effective_on_every_process(
    join: Connect, other: BridgeProcess, version: int
) -> None:
    receiver, here, there = join(version), join(version), join(version, port=other.port)
    for turn in range(1, 41):
        receiver.wants((f"t/{turn}", turn % 3), pid=turn)
        sender = (here, there)[turn % 2]
        sender.tell(f"t/{turn}", b"%d" % turn, qos=2)
        assert int(receiver.message().payload) == turn
        receiver.drops(f"t/{turn}", pid=turn)
        sender.tell(f"t/{turn}", b"no", qos=2)
    assert receiver.arrived() == []


def test_whatever_is_owed_is_owed_by_every_process(join: Connect, other: BridgeProcess, version: int) -> None:
    receiver, sender = join(version, "c1", lasting=60), join(version, "c2", lasting=60)
    receiver.wants(("a", 2))
    sender.tell("a", b"released", qos=2, pid=1)
    released = receiver.message(finish=False)
    receiver.answer(0x50, released.pid)
    receiver.read(PUBREL)
    sender.tell("a", b"in flight", qos=2, pid=2)
    flying = receiver.message(finish=False)
    sender.say("a", b"half", qos=2, pid=3)
    assert sender.read(PUBREC).pid == 3
    half = receiver.message(finish=False)
    receiver.vanish()
    sender.vanish()
    receiver = join(version, "c1", lasting=60, port=other.port)
    sender = join(version, "c2", lasting=60, port=other.port)
    got = [receiver.read() for _ in range(3)]
    assert [(packet.kind, packet.pid, packet.dup) for packet in got] == [
        (PUBREL, released.pid, False),
        (PUBLISH, flying.pid, True),
        (PUBLISH, half.pid, True),
    ]
    sender.say("a", b"half", qos=2, pid=3, dup=True)
    assert sender.read(PUBREC).pid == 3
    sender.answer(0x62, 3)
    assert sender.read(PUBCOMP).pid == 3
    assert receiver.arrived() == []


def test_a_killed_process_owes_nothing_that_another_does_not_pay(
    client: redis.Redis, join: Connect, server: Server, bridge: MakeBridge, version: int
) -> None:
    doomed = bridge(server)
    receiver, sender = join(version, "c1", lasting=60, port=doomed.port), join(version)
    receiver.wants(("a", 2))
    sender.tell("a", b"1", qos=2)
    sender.tell("a", b"2", qos=1)
    first, second = receiver.message(finish=False), receiver.message(finish=False)
    receiver.answer(0x50, first.pid)
    assert receiver.read(PUBREL).pid == first.pid
    doomed.kill()
    sender.tell("a", b"3", qos=1)
    receiver = join(version, "c1", lasting=60)
    assert receiver.connack.present
    assert receiver.read(PUBREL).pid == first.pid
    receiver.answer(0x70, first.pid)
    again = receiver.message()
    assert (again.payload, again.pid, again.dup) == (b"2", second.pid, True)
    assert receiver.message().payload == b"3"
    assert receiver.arrived() == []
    assert eventually(lambda: client.zcard("{c1}_messages") == 0)
