"""Nothing acknowledged is lost and QoS 2 stays exactly once, whoever is stopped or killed meanwhile.

The length of the kill test is HOLDMQ_UPLINK_KILLS (default 8).
"""

import os
import random
import threading
import time
from collections.abc import Callable

import pytest

from tests.bridge.uplink.support import (
    TIMEOUT_S,
    LinkProcess,
    Local,
    Mosquitto,
    Remote,
    gathered,
    numbers,
    payloads,
)
from tests.support import SentinelProcess, Server, embedded_kinds, eventually
from tests.support.sentinel import SERVICE

server_kinds = embedded_kinds
MakeMosquitto = Callable[..., Mosquitto]
MakeRemote = Callable[..., Remote]
MakeLink = Callable[..., LinkProcess]

KILLS = int(os.environ.get("HOLDMQ_UPLINK_KILLS", "8"))
COUNT = 400
TOPICS = ["up/# out 2", "down/# in 2"]


def in_order(got: list[bytes]) -> list[int]:
    """The numbers in the order of their first coming."""
    return list(dict.fromkeys(map(int, got)))


@pytest.mark.parametrize("protocol", ["5.0", "3.1.1"])
@pytest.mark.parametrize("qos", [1, 2])
def test_what_is_published_here_while_the_other_broker_is_away_arrives_once_and_in_order(
    local: Local, mosquitto: MakeMosquitto, remote: MakeRemote, uplink: MakeLink, protocol: str, qos: int
) -> None:
    broker = mosquitto()
    there = remote(broker.port)
    there.listen("up/#")
    link = uplink(local, broker, TOPICS, protocol=protocol)
    for number in range(COUNT):
        local.publish("up/a", b"%d" % number, qos=qos)
        if number == COUNT // 4:
            broker.stop()
    eventually(lambda: link.events("no connection to the other broker"), TIMEOUT_S, "that the link notices")
    broker.start()
    gathered(lambda: there.messages, COUNT)
    assert in_order(payloads(there.messages)) == list(range(COUNT))
    if qos == 2:
        assert set(numbers(there.messages).values()) == {1}
    eventually(lambda: local.waiting() == 0, TIMEOUT_S, "an empty queue")


@pytest.mark.parametrize("protocol", ["5.0", "3.1.1"])
@pytest.mark.parametrize("qos", [1, 2])
def test_what_is_published_there_while_the_server_or_the_link_is_away_arrives_once_and_in_order(
    local: Local, mosquitto: MakeMosquitto, remote: MakeRemote, uplink: MakeLink, protocol: str, qos: int
) -> None:
    broker = mosquitto()
    there = remote(broker.port)
    local.listen("down/#")
    link = uplink(local, broker, TOPICS, protocol=protocol)
    sent = set()
    for number in range(COUNT):
        sent.add(there.publish("down/a", b"%d" % number, qos))
        if number == COUNT // 4:
            local.server.kill()
        elif number == COUNT // 2:
            eventually(lambda: link.events("the HoldMQ server cannot be used"), TIMEOUT_S, "that the link notices")
            local.server.restart()
            link.wait_connected()
            link.stop()
    there.wait_acknowledged(sent)
    link.start()
    gathered(local.received, COUNT)
    assert in_order(payloads(local.messages)) == list(range(COUNT))
    if qos == 2:
        assert set(numbers(local.messages).values()) == {1}


class Traffic(threading.Thread):
    """Publishes numbered messages on both sides, in bursts, until it is told to end."""

    def __init__(self, local: Local, there: Remote) -> None:
        super().__init__()
        self._local = local
        self._there = there
        self._done = threading.Event()
        self.count = 0
        self.sent: set[int] = set()

    def run(self) -> None:
        while not self._done.wait(0.02):
            for _ in range(10):
                self._local.publish("up/a", b"%d" % self.count, qos=2)
                self.sent.add(self._there.publish("down/a", b"%d" % self.count, 2))
                self.count += 1

    def end(self) -> None:
        """No more."""
        self._done.set()
        self.join()


def test_a_planned_failover_loses_nothing_that_was_acknowledged_to_the_other_broker(
    fresh_server: Callable[..., Server],
    fresh_sentinel: Callable[[Server], SentinelProcess],
    mosquitto: MakeMosquitto,
    remote: MakeRemote,
    uplink: MakeLink,
) -> None:
    primary = fresh_server()
    replica = fresh_server(replica_of=primary)
    sentinel = fresh_sentinel(primary)
    before, after = Local(primary), Local(replica)
    before.listen("down/#")
    broker = mosquitto()
    service = {"redis": f"sentinel://127.0.0.1:{sentinel.port}/{SERVICE}"}
    uplink(before, broker, TOPICS, process=service)
    there = remote(broker.port)
    count = 0
    sent = set()

    def publish_until(condition: Callable[[], bool], what: str) -> None:
        def publishes() -> bool:
            nonlocal count
            sent.add(there.publish("down/a", b"%d" % count, 2))
            count += 1
            return condition()

        eventually(publishes, TIMEOUT_S, what)

    publish_until(lambda: count > COUNT, "some messages")
    there.wait_acknowledged(sent)
    sentinel.fail_over()
    publish_until(lambda: sentinel.names(replica), "a Sentinel that names the new primary")
    goal = count + COUNT
    publish_until(lambda: count > goal, "more messages")
    gathered(after.received, count)
    assert in_order(payloads(after.messages)) == list(range(count))
    assert set(numbers(after.messages).values()) == {1}


@pytest.mark.parametrize(("protocol", "seed"), [("5.0", 1), ("3.1.1", 2)])
def test_a_link_that_is_killed_again_and_again_keeps_qos_2_exactly_once(
    local: Local, mosquitto: MakeMosquitto, remote: MakeRemote, uplink: MakeLink, protocol: str, seed: int
) -> None:
    broker = mosquitto()
    there = remote(broker.port)
    there.listen("up/#")
    local.listen("down/#")
    link = uplink(local, broker, TOPICS, protocol=protocol, max_inflight=20)
    traffic, pauses = Traffic(local, there), random.Random(seed)
    traffic.start()
    try:
        for _ in range(KILLS):
            time.sleep(pauses.uniform(0.0, 0.4))
            link.kill()
            link.start()
    finally:
        traffic.end()
    there.wait_acknowledged(traffic.sent)
    gathered(lambda: there.messages, traffic.count)
    gathered(local.received, traffic.count)
    assert traffic.count > 100
    for side in (there.messages, local.received()):
        assert in_order(payloads(side)) == list(range(traffic.count))
        assert {number: times for number, times in numbers(side).items() if times != 1} == {}
    eventually(lambda: local.waiting() == 0, TIMEOUT_S, "an empty queue")


def test_a_long_queue_left_by_a_killed_link_goes_out_page_by_page_within_the_window(
    local: Local, mosquitto: MakeMosquitto, remote: MakeRemote, uplink: MakeLink
) -> None:
    broker = mosquitto()
    there = remote(broker.port)
    there.listen("up/#")
    link = uplink(local, broker, TOPICS, max_inflight=7)
    link.kill()
    for number in range(1500):
        local.publish("up/a", b"%d" % number, qos=2)
    link.start()  # takes the session over: all of the queue counts as in flight
    gathered(lambda: there.messages, 1500)
    assert payloads(there.messages) == [b"%d" % number for number in range(1500)]


def test_the_second_process_with_a_name_takes_over_and_the_first_ends(
    local: Local, mosquitto: MakeMosquitto, remote: MakeRemote, uplink: MakeLink
) -> None:
    broker = mosquitto()
    there = remote(broker.port)
    there.listen("up/#")
    first = uplink(local, broker, TOPICS)
    second = uplink(local, broker, TOPICS)
    eventually(lambda: not first.running, TIMEOUT_S, "the end of the first")
    assert first.returncode == 3
    assert "another process has taken the link over" in first.log_text()
    local.publish("up/a", b"1", qos=2)
    eventually(lambda: payloads(there.messages) == [b"1"], TIMEOUT_S)
    assert second.running


def test_a_first_process_that_slept_through_the_takeover_writes_nothing_more(
    local: Local, mosquitto: MakeMosquitto, remote: MakeRemote, uplink: MakeLink
) -> None:
    broker = mosquitto()
    there = remote(broker.port)
    there.listen("up/#")
    first = uplink(local, broker, TOPICS)
    first.pause()
    second = uplink(local, broker, TOPICS)
    for number in range(50):
        local.publish("up/a", b"%d" % number, qos=2)
    first.resume()
    eventually(lambda: first.returncode == 3, TIMEOUT_S, "the end of the first")
    gathered(lambda: there.messages, 50)
    assert set(numbers(there.messages).values()) == {1}
    assert second.running


def test_a_link_that_lost_its_session_starts_again_on_both_sides(
    local: Local, mosquitto: MakeMosquitto, remote: MakeRemote, uplink: MakeLink
) -> None:
    broker = mosquitto()
    there = remote(broker.port)
    there.listen("up/#")
    local.listen("down/#")
    link = uplink(local, broker, TOPICS)
    link.kill()
    local.hold.session("link:up").drop()
    link.start()
    local.publish("up/a", b"1", qos=2)
    there.publish("down/a", b"1", 2)
    eventually(lambda: payloads(there.messages) == [b"1"], TIMEOUT_S)
    eventually(lambda: payloads(local.received()) == [b"1"], TIMEOUT_S)


def test_another_broker_that_lost_its_session_gets_what_waits_and_sends_what_is_new(
    local: Local, mosquitto: MakeMosquitto, remote: MakeRemote, uplink: MakeLink
) -> None:
    broker = mosquitto()
    local.listen("down/#")
    link = uplink(local, broker, TOPICS, client_id="plant")
    there = remote(broker.port)
    there.wait_acknowledged({there.publish("down/a", b"%d" % number, 2) for number in range(5)})
    gathered(local.received, 5)
    link.kill()
    # QoS 2 of the link's client id that the broker will never finish: its identifiers would hide new messages.
    local.redis.zadd("{link:up}_received", {str(packet_id): 1 for packet_id in range(1, 200)})
    thief = remote(broker.port, "plant", five=False)
    thief.stop()
    other = mosquitto()
    link.config.write_text(link.config.read_text().replace(str(broker.port), str(other.port)))
    link.start()
    there = remote(other.port)
    there.listen("up/#")
    there.wait_acknowledged({there.publish("down/a", b"%d" % number, 2) for number in range(5, 25)})
    gathered(local.received, 25)
    assert set(numbers(local.messages).values()) == {1}
    local.publish("up/a", b"1", qos=2)
    eventually(lambda: payloads(there.messages) == [b"1"], TIMEOUT_S)
