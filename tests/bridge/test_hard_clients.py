"""A bridge whose clients are hard to serve: cut off half way, not reading, more than can be accepted."""

import itertools
import resource
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.bridge import packets
from tests.bridge.conftest import Connect
from tests.bridge.packets import Will
from tests.bridge.talk import Talk, reset
from tests.support import BridgeProcess, Server, eventually

MakeBridge = Callable[..., BridgeProcess]
MANY = 200  # more than the bridge reads in one turn


@pytest.mark.parametrize("end", [lambda peer: peer.shutdown(socket.SHUT_WR), reset])
def test_a_client_whose_connection_ends_half_way_is_gone_and_its_will_published(
    broker: BridgeProcess, talk: Connect, end: Callable[[socket.socket], None]
) -> None:
    watcher = talk()
    watcher.subscribe(("will", 1))
    with Talk(broker.port) as client:
        client.send(packets.connect("c1", will=Will("will", b"gone", 1)))
        client.expect(packets.connack())
        client.send(packets.publish("a", b"whole", qos=1, pid=1)[:5])
        client.end(end)
        assert watcher.read_publish().payload == b"gone"


def test_a_client_that_is_taken_over_gets_what_was_on_its_way_before_the_end(
    server: Server, bridge: MakeBridge, dial: Connect
) -> None:
    made = bridge(server)
    sender = dial(made.port)
    with Talk(made.port, receive_buffer=4096) as slow:
        slow.send(packets.connect("c1", clean=False))
        slow.expect(packets.connack())
        slow.subscribe(("a", 1))
        for number in range(1, 61):
            sender.publish("a", b"%d:" % number + b"x" * 100_000, pid=number)
        dial(made.port, "c1", clean=False, present=True)
        got = list(numbers_until_closed(slow))
    assert got
    assert got == list(range(1, len(got) + 1))


def numbers_until_closed(client: Talk) -> Iterator[int]:
    """Of the messages that come before the connection's end."""
    while True:
        try:
            packet = client.read_packet()
        except (ConnectionError, AssertionError):
            return
        yield int(packets.read_publish(packet).payload.split(b":")[0])


def test_anyone_who_cannot_be_accepted_for_want_of_descriptors_waits_until_there_are_some(
    server: Server, bridge: MakeBridge, dial: Connect
) -> None:
    made = bridge(server)
    dial(made.port).close()
    soft, hard = resource.prlimit(made.pid, resource.RLIMIT_NOFILE)
    used = max(int(path.name) for path in Path(f"/proc/{made.pid}/fd").iterdir())
    resource.prlimit(made.pid, resource.RLIMIT_NOFILE, (used + 3, hard))
    clients = [Talk(made.port) for _ in range(10)]
    try:
        eventually(lambda: "connections temporarily cannot be accepted" in made.log_text())
        for client in clients:
            client.send(packets.connect())
        resource.prlimit(made.pid, resource.RLIMIT_NOFILE, (soft, hard))
        for client in clients:
            client.expect(packets.connack())
    finally:
        for client in clients:
            client.close()


def test_many_clients_at_once_are_all_served(talk: Connect) -> None:
    clients = [talk() for _ in range(MANY)]
    for number, client in enumerate(clients):
        client.subscribe((f"n/{number}", 1))
    for client, number in zip(clients, itertools.cycle(range(len(clients))), strict=False):
        client.send(packets.publish(f"n/{(number + 1) % len(clients)}", b"%d" % number, qos=1, pid=1))
    for number, client in enumerate(clients):
        got = client.collect()
        while len(got) < 2:
            got += client.collect()
        expected = b"%d" % ((number - 1) % len(clients))
        assert sorted(packet[0] >> 4 for packet in got) == [3, 4]
        assert next(packets.read_publish(packet).payload for packet in got if packet[0] >> 4 == 3) == expected


def test_more_packets_than_are_taken_at_once_are_all_answered_in_order(talk: Connect) -> None:
    client, pings = talk(), 5000
    many = [packets.PINGREQ] * pings
    client.send(*many, packets.subscribe(1, ("t", 0)), *many)
    answers = packets.PINGRESP * pings
    client.expect(answers, packets.suback(1, 0), answers)
    client.send(*many, packets.publish("t", b"last"))
    client.expect(answers)
    assert client.read_publish().payload == b"last"
