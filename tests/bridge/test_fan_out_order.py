"""Publishes to many sessions through a bridge, while others crowd the server: complete, in order, nothing doubled."""

import contextlib
import threading
from collections.abc import Callable, Iterator

import pytest
import redis

from tests.bridge import packets
from tests.bridge.talk import Talk
from tests.module.routing.test_fan_out import keys_of, queued, settle, stat, subscribe
from tests.support import BridgeProcess, Server

SESSIONS = 300
NARROW = 300  # to one session, before: the bridge learns that the client's publishes reach few
WIDE = 200
GREEDY = 12
WINDOW = 20
PATIENCE_S = 60.0  # on a busy machine a crowd is answered late


def crowd(port: int, number: int, stop: threading.Event) -> None:
    """A client that always has publishes to many sessions under way."""
    block = packets.publish(f"g/{number}", b"x" * 20, qos=1, pid=1)
    with Talk.connected(port, f"greedy{number}") as client:
        client.timeout_s = PATIENCE_S
        client.send(block * WINDOW)
        while not stop.is_set():
            client.expect(packets.puback(1))
            client.send(block)


@contextlib.contextmanager
def crowded(port: int) -> Iterator[None]:
    """As long as this lasts, the server has more than it can deliver."""
    stop = threading.Event()
    threads = [threading.Thread(target=crowd, args=(port, number, stop)) for number in range(GREEDY)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize("narrow", [0, NARROW])
def test_what_is_refused_for_now_is_overtaken_by_nothing(
    server: Server, client: redis.Redis, bridge: Callable[..., BridgeProcess], narrow: int
) -> None:
    made = bridge(server)
    subscribe(client, keys_of(SESSIONS), ("g/#", 1))
    few = [f"{{h{number:03}}}" for number in range(SESSIONS)]
    subscribe(client, few, ("h/t", 1))
    subscribe(client, few[:1], ("narrow", 1))
    with crowded(made.port), Talk.connected(made.port, "honest") as honest:
        honest.timeout_s = PATIENCE_S
        honest.send(*(packets.publish("narrow", b"w", qos=1, pid=pid) for pid in range(1, narrow + 1)))
        honest.send(*(packets.publish("h/t", b"%d" % n, qos=1, pid=1000 + n) for n in range(WIDE)))
        for pid in (*range(1, narrow + 1), *range(1000, 1000 + WIDE)):
            honest.expect(packets.puback(pid))
    settle(client)
    want = [b"%d" % number for number in range(WIDE)]
    got = [[payload for payload in queue if payload != b"w"] for queue in queued(client, few)]
    assert got == [want] * SESSIONS
    assert stat(client, "fan_outs") > WIDE
