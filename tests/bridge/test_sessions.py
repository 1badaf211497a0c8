"""Persistent sessions: what waits, in which order it comes, who has the session; on one bridge and on several."""

import time
from collections.abc import Callable

import pytest
import redis

from holdmq_bridge.session.terms import WINDOWS
from tests.bridge import packets
from tests.bridge.conftest import Connect
from tests.bridge.packets import Will
from tests.bridge.talk import Talk
from tests.support import BridgeProcess, Server, eventually

MakeBridge = Callable[..., BridgeProcess]

INFLIGHT = 5


@pytest.fixture
def two_bridges(server: Server, bridge: MakeBridge) -> tuple[BridgeProcess, BridgeProcess]:
    """Two processes on one server."""
    return bridge(server), bridge(server)


# ---- the queue -------------------------------------------------------------------------------------------------------


def test_what_came_while_a_client_was_away_is_delivered_in_order(talk: Connect) -> None:
    receiver, sender = talk("c1", clean=False), talk()
    receiver.subscribe(("d/+", 1))
    receiver.disconnect()
    for number in range(1, 351):  # several windows and pages
        sender.publish(f"d/{number % 7}", b"%d" % number, pid=number)
    receiver = talk("c1", clean=False, present=True)
    got = [receiver.read_publish() for _ in range(350)]
    assert [int(published.payload) for published in got] == list(range(1, 351))
    assert {published.dup for published in got} == {False}  # never sent before
    receiver.expect_nothing()


def test_messages_that_come_during_the_drain_queue_behind_the_backlog(talk: Connect) -> None:
    receiver, sender = talk("c1", clean=False), talk()
    receiver.subscribe(("d", 1))
    receiver.disconnect()
    for number in range(1, 201):
        sender.publish("d", b"%d" % number, pid=number)
    receiver = talk("c1", clean=False, present=True)
    got = []
    for number in range(201, 301):
        sender.publish("d", b"%d" % number, pid=number)
        got.append(int(receiver.read_publish().payload))
    got += [int(receiver.read_publish().payload) for _ in range(200)]
    assert got == list(range(1, 301))
    receiver.expect_nothing()


def test_what_was_sent_and_not_acknowledged_comes_again_with_dup_and_the_same_identifier(talk: Connect) -> None:
    receiver, sender = talk("c1", clean=False), talk()
    receiver.subscribe(("d", 1))
    sender.publish("d", b"one")
    sender.publish("d", b"two")
    first = receiver.read_publish(acknowledge=False)
    second = receiver.read_publish(acknowledge=True)
    receiver.expect_nothing()
    receiver.close()
    receiver = talk("c1", clean=False, present=True)
    again = receiver.read_publish()
    assert (again.payload, again.pid, again.dup) == (b"one", first.pid, True)
    assert second.payload == b"two"
    receiver.expect_nothing()


def test_qos_0_does_not_wait_for_a_client_that_is_away(talk: Connect) -> None:
    receiver, sender = talk("c1", clean=False), talk()
    receiver.subscribe(("zero", 0), ("one", 1))
    receiver.disconnect()
    sender.publish("zero", b"no")
    sender.publish("one", b"no", qos=0)
    sender.publish("one", b"yes")
    receiver = talk("c1", clean=False, present=True)
    assert receiver.read_publish().payload == b"yes"
    receiver.expect_nothing()


def test_a_live_retained_message_that_waited_is_not_marked_as_retained(talk: Connect) -> None:
    receiver, sender = talk("c1", clean=False), talk()
    receiver.subscribe(("r", 1))
    receiver.disconnect()
    sender.publish("r", b"x", retain=True)
    receiver = talk("c1", clean=False, present=True)
    assert not receiver.read_publish().retain  # [MQTT-3.3.1-9]


def test_a_retained_message_that_was_not_acknowledged_keeps_its_mark(talk: Connect) -> None:
    sender = talk()
    sender.publish("r", b"x", retain=True)
    receiver = talk("c1", clean=False)
    receiver.send(packets.subscribe(1, ("r", 1)))
    answers = [receiver.read_packet(), receiver.read_packet()]
    assert packets.suback(1, 1) in answers
    receiver.close()
    receiver = talk("c1", clean=False, present=True)
    assert receiver.read_publish().retain  # [MQTT-3.3.1-8]


def test_subscriptions_outlive_the_connection_and_end_with_unsubscribe(talk: Connect) -> None:
    receiver, sender = talk("c1", clean=False), talk()
    receiver.subscribe(("a", 1), ("b", 1))
    receiver.disconnect()
    receiver = talk("c1", clean=False, present=True)
    receiver.send(packets.unsubscribe(1, "a"))
    receiver.expect(packets.unsuback(1))
    receiver.disconnect()
    sender.publish("a", b"no")
    sender.publish("b", b"yes")
    receiver = talk("c1", clean=False, present=True)
    assert receiver.read_publish().topic == "b"
    receiver.expect_nothing()


def test_a_clean_connect_drops_what_was_there(talk: Connect) -> None:
    receiver, sender = talk("c1", clean=False), talk()
    receiver.subscribe(("a", 1))
    receiver.disconnect()
    sender.publish("a", b"x")
    receiver = talk("c1", clean=True)
    receiver.expect_nothing()
    receiver.disconnect()
    talk("c1", clean=False, present=False)


def test_a_clean_session_leaves_no_key_behind(client: redis.Redis, talk: Connect) -> None:
    receiver = talk("c1")
    receiver.subscribe(("a", 1))
    talk().publish("a", b"x")
    receiver.read_publish(acknowledge=False)
    assert client.keys("{c1}*")
    receiver.disconnect()
    eventually(lambda: not client.keys("{c1}*"), what="no key of the session")


def test_a_persistent_session_expires_after_its_time(
    client: redis.Redis, server: Server, bridge: MakeBridge, dial: Connect
) -> None:
    made = bridge(server, arguments=["--session-expiry-s", "1"])
    receiver = dial(made.port, "c1", clean=False)
    receiver.subscribe(("a", 1))
    receiver.disconnect()
    eventually(lambda: not client.keys("{c1}*"), what="no key of the session")
    dial(made.port, "c1", clean=False, present=False)


def test_the_lease_of_a_held_session_is_renewed(client: redis.Redis, server: Server, bridge: MakeBridge) -> None:
    made = bridge(server, arguments=["--session-expiry-s", "1", "--lease-s", "4"])
    with Talk.connected(made.port, "c1", clean=False) as receiver:
        receiver.expect_silence(6.0)
        assert client.exists("{c1}_session")
        receiver.subscribe(("a", 1))


def test_somebodys_own_bytes_in_a_queue_do_not_stall_it(client: redis.Redis, talk: Connect) -> None:
    receiver, sender = talk("c1", clean=False), talk()
    receiver.subscribe(("a", 1))
    receiver.disconnect()
    client.execute_command("SESSION.ADD", "{c1}", b"no record")
    sender.publish("a", b"x")
    receiver = talk("c1", clean=False, present=True)
    assert receiver.read_publish().payload == b"x"


def test_a_backend_publishes_without_speaking_mqtt(client: redis.Redis, talk: Connect) -> None:
    receiver = talk()
    receiver.subscribe(("a/+", 1))
    assert client.execute_command("TOPIC.PUBLISH", "a/b", b"x", "QOS", 1) == 1
    assert receiver.read_publish().payload == b"x"


# ---- takeover --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clean", [True, False])
def test_a_second_connection_with_the_same_id_takes_over(talk: Connect, clean: bool) -> None:
    first = talk("c1", clean=clean)
    second = talk("c1", clean=clean, present=not clean)
    first.expect_closed()  # [MQTT-3.1.4-2]
    second.subscribe(("a", 1))
    talk().publish("a", b"x")
    assert second.read_publish().payload == b"x"


@pytest.mark.parametrize("returns", ["at once", "when its bridge is known to be lost"])
def test_what_was_stored_after_the_death_of_a_bridge_comes_without_dup(
    server: Server, client: redis.Redis, bridge: MakeBridge, dial: Connect, returns: str
) -> None:
    one, two = (bridge(server, arguments=["--lease-s", "2"]) for _ in range(2))
    receiver = dial(one.port, "c1", clean=False)
    receiver.subscribe(("a", 1))
    sender = dial(two.port)
    sender.publish("a", b"sent", qos=1)
    receiver.read_publish(acknowledge=False)
    one.kill()
    eventually(lambda: client.pubsub_numsub("{c1}_inbox") == [(b"{c1}_inbox", 0)], 10, "the end of the connection")
    time.sleep(0.01)  # the server's clock counts milliseconds
    for number in range(200):
        sender.publish("a", b"%d" % number, qos=1, pid=number + 1)
    if returns != "at once":
        eventually(lambda: client.hget("{c1}_session", "connected") == b"0", 20, "a session that is known to be lost")
    receiver = dial(two.port, "c1", clean=False, present=True)
    got = [receiver.read_publish() for _ in range(201)]
    assert [published.payload for published in got] == [b"sent", *(b"%d" % number for number in range(200))]
    assert [published.dup for published in got] == [True] + [False] * 200  # [MQTT-3.3.1-3]


@pytest.mark.parametrize("acknowledges", [0, 17])
@pytest.mark.parametrize("returns", ["at once", "when its bridge is known to be lost"])
def test_only_what_a_killed_bridge_can_have_sent_comes_with_dup(
    server: Server, client: redis.Redis, bridge: MakeBridge, dial: Connect, returns: str, acknowledges: int
) -> None:
    one = bridge(server, arguments=["--lease-s", "2", "--max-inflight", str(INFLIGHT)])
    two = bridge(server, arguments=["--lease-s", "2"])
    receiver = dial(one.port, "c1", clean=False)
    receiver.subscribe(("a", 1))
    sender = dial(two.port)
    for number in range(200):
        sender.publish("a", b"%d" % number, qos=1, pid=number + 1)
    got = [receiver.read_publish() for _ in range(acknowledges)]
    got += [receiver.read_publish(acknowledge=False) for _ in range(INFLIGHT)]
    one.kill()
    eventually(lambda: client.pubsub_numsub("{c1}_inbox") == [(b"{c1}_inbox", 0)], 10, "the end of the connection")
    if returns != "at once":
        eventually(lambda: client.hget("{c1}_session", "connected") == b"0", 20, "a session that is known to be lost")
    before = {published.payload for published in got}
    receiver = dial(two.port, "c1", clean=False, present=True)
    again = [receiver.read_publish()]
    while again[-1].payload != b"199":
        again.append(receiver.read_publish())
    assert [int(published.payload) for published in again] == list(range(200 - len(again), 200))
    assert all(published.dup for published in again if published.payload in before)  # [MQTT-3.3.1-1]
    marked = sum(published.dup for published in again)
    assert [published.dup for published in again] == [True] * marked + [False] * (len(again) - marked)
    # Its window; for a client that acknowledges fast, also those whose acknowledgements were on their way.
    assert INFLIGHT <= marked <= (WINDOWS * INFLIGHT if acknowledges else INFLIGHT)  # [MQTT-3.3.1-3]


def test_messages_beyond_max_inflight_come_without_dup(server: Server, bridge: MakeBridge, dial: Connect) -> None:
    made = bridge(server, arguments=["--max-inflight", str(INFLIGHT)])
    receiver = dial(made.port, "c1", clean=False)
    receiver.subscribe(("a", 1))
    sender = dial(made.port)
    for number in range(4 * INFLIGHT):
        sender.publish("a", b"%d" % number, qos=1, pid=number + 1)
    for _ in range(INFLIGHT):
        receiver.read_publish(acknowledge=False)
    receiver.expect_nothing()
    receiver.close()
    receiver = dial(made.port, "c1", clean=False, present=True)
    got = [receiver.read_publish() for _ in range(4 * INFLIGHT)]
    assert [published.payload for published in got] == [b"%d" % number for number in range(4 * INFLIGHT)]
    assert [published.dup for published in got] == [True] * INFLIGHT + [False] * 3 * INFLIGHT  # [MQTT-3.3.1-3]


def test_the_will_of_a_client_that_was_taken_over_is_published(broker: BridgeProcess, talk: Connect) -> None:
    watcher = talk()
    watcher.subscribe(("will", 1))
    with Talk(broker.port) as first:
        first.send(packets.connect("c1", will=Will("will", b"gone", 1)))
        first.expect(packets.connack())
        talk("c1")
        first.expect_closed()
    assert watcher.read_publish().payload == b"gone"


def test_a_takeover_works_across_bridges(two_bridges: tuple[BridgeProcess, BridgeProcess], dial: Connect) -> None:
    one, two = two_bridges
    first = dial(one.port, "c1", clean=False)
    first.subscribe(("a", 1))
    sender = dial(one.port)
    sender.publish("a", b"unacknowledged")
    first.read_publish(acknowledge=False)
    second = dial(two.port, "c1", clean=False, present=True)
    first.expect_closed()
    got = second.read_publish()
    assert (got.payload, got.dup) == (b"unacknowledged", True)
    sender.publish("a", b"next")
    assert second.read_publish().payload == b"next"


def test_a_session_goes_to_and_fro_between_bridges(
    client: redis.Redis, two_bridges: tuple[BridgeProcess, BridgeProcess], dial: Connect
) -> None:
    sender = dial(two_bridges[0].port)
    receiver = dial(two_bridges[0].port, "c1", clean=False)
    receiver.subscribe(("a", 1))
    for turn in range(1, 7):
        other = dial(two_bridges[turn % 2].port, "c1", clean=False, present=True)
        receiver.expect_closed()
        receiver = other
        sender.publish("a", b"%d" % turn)
        assert receiver.read_publish().payload == b"%d" % turn
        eventually(lambda: client.zcard("{c1}_messages") == 0, what="the acknowledgement at the server")


def test_publish_on_one_bridge_receive_on_the_other(
    two_bridges: tuple[BridgeProcess, BridgeProcess], dial: Connect
) -> None:
    one, two = two_bridges
    receiver, sender = dial(one.port), dial(two.port)
    receiver.subscribe(("a/#", 1), ("z", 0))
    for number in range(1, 301):
        sender.publish("a/b", b"%d" % number, pid=number)
        if number % 100 == 0:
            for expected in range(number - 99, number + 1):
                assert int(receiver.read_publish().payload) == expected
    sender.publish("z", b"zero", qos=0)
    assert receiver.read_publish().payload == b"zero"


# ---- slow readers ----------------------------------------------------------------------------------------------------


def test_a_client_that_does_not_read_keeps_its_messages_and_holds_up_nobody(
    server: Server, bridge: MakeBridge, dial: Connect
) -> None:
    made = bridge(server, arguments=["--write-buffer-bytes", "1024"])
    other = dial(made.port)
    other.subscribe(("a", 1))
    with Talk(made.port, receive_buffer=4096) as slow:
        slow.send(packets.connect("slow"))
        slow.expect(packets.connack())
        slow.subscribe(("a", 1))
        sender = dial(made.port)
        payload = b"x" * 100_000
        for number in range(1, 61):
            sender.publish("a", b"%d:" % number + payload, pid=number)
            assert int(other.read_publish().payload.split(b":")[0]) == number
        for number in range(1, 61):
            assert int(slow.read_publish().payload.split(b":")[0]) == number


def test_a_client_that_never_reads_is_closed(server: Server, bridge: MakeBridge, dial: Connect) -> None:
    made = bridge(server, arguments=["--write-buffer-bytes", "1024", "--write-timeout-s", "0.5"])
    watcher = dial(made.port)
    watcher.subscribe(("will", 1))
    with Talk(made.port, receive_buffer=4096) as slow:
        slow.send(packets.connect("slow", will=Will("will", b"too slow", 1)))
        slow.expect(packets.connack())
        slow.subscribe(("a", 1))
        sender = dial(made.port)
        for number in range(1, 101):
            sender.publish("a", b"x" * 100_000, pid=number)
        assert watcher.read_publish().payload == b"too slow"


def test_a_flood_of_publishes_without_reading_is_bounded_and_loses_nothing(
    server: Server, bridge: MakeBridge, dial: Connect
) -> None:
    made = bridge(server, arguments=["--max-client-outstanding", "10", "--max-outstanding", "20"])
    receiver = dial(made.port)
    receiver.subscribe(("n", 1))
    senders = [dial(made.port) for _ in range(3)]
    for sender in senders:
        sender.send(*(packets.publish("n", b"%d" % n, qos=1, pid=n) for n in range(1, 501)))
    for sender in senders:
        sender.expect(*(packets.puback(n) for n in range(1, 501)))
    got = [int(receiver.read_publish().payload) for _ in range(1500)]
    assert sorted(got) == sorted(list(range(1, 501)) * 3)
