"""Planned failovers lose nothing that was acknowledged, are short, and close no client's connection."""

import threading
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import pytest
import redis

from tests.bridge.conftest import Connect
from tests.bridge.talk import Talk
from tests.bridge.test_faults import Publisher, assert_complete
from tests.support import BridgeProcess, SentinelProcess, Server, eventually
from tests.support.sentinel import SERVICE

MakeServer = Callable[..., Server]
MakeSentinel = Callable[[Server], SentinelProcess]
MakeBridge = Callable[..., BridgeProcess]

FAILOVER_S = 60.0
# Between two acknowledgements of one publisher on a busy machine; on an idle one it is the one second of the Sentinel.
OUTAGE_S = 6.0
QUICK = ["--retry-first-s", "0.02", "--retry-max-s", "0.1"]
KINDS = ["planned", "coordinated"]
_END = 0


class TimedPublisher(Publisher):
    """Remembers when acknowledgements came."""

    def __init__(self, port: int, topic: str) -> None:
        super().__init__(port, topic)
        self.times: list[float] = []
        self._watching = threading.Thread(target=self._watch, daemon=True)
        self._watching.start()

    def _watch(self) -> None:
        seen = 0
        while not self._finishing.is_set():
            if self.acknowledged != seen:
                seen = self.acknowledged
                self.times.append(time.monotonic())
            time.sleep(0.005)

    def longest_pause(self) -> float:
        """Seconds without any acknowledgement, at most."""
        return max(after - before for before, after in pairwise(self.times))


@pytest.mark.parametrize("kind", KINDS)
def test_a_planned_failover_loses_nothing_that_was_acknowledged(
    fresh_server: MakeServer, fresh_sentinel: MakeSentinel, bridge: MakeBridge, dial: Connect, kind: str
) -> None:
    primary = fresh_server()
    coordinated = kind == "coordinated"
    if coordinated and (primary.kind.family, primary.kind.version) < ("valkey", (9, 0)):
        coordinated = False  # this server knows the one kind alone
    replica = fresh_server(replica_of=primary)
    sentinel = fresh_sentinel(primary)
    made = bridge(f"sentinel://127.0.0.1:{sentinel.port}/{SERVICE}", arguments=QUICK)
    receiver = dial(made.port, "there", clean=False)
    receiver.subscribe(("n", 1))
    receiver.timeout_s = FAILOVER_S
    publisher = TimedPublisher(made.port, "n")
    publisher.start()
    got: list[int] = []
    reading = threading.Thread(target=_receive, args=(receiver, got), daemon=True)
    reading.start()
    publisher.wait_for_more(2000)
    for successor in (replica, primary):
        sentinel.fail_over(coordinated=coordinated)
        eventually(partial(sentinel.names, successor), FAILOVER_S, "a Sentinel that names the new primary")
        publisher.wait_for_more(2000)
        former = primary if successor is replica else replica
        eventually(partial(_follows, former), FAILOVER_S, "an old primary that follows the new one")
        publisher.wait_for_more(2000)
    last = publisher.finish()
    dial(made.port).publish("n", b"%d" % _END, qos=1)
    reading.join(FAILOVER_S)
    assert_complete(got, last)
    assert publisher.longest_pause() < OUTAGE_S
    assert "ending a client" not in made.log_text()


def _receive(receiver: Talk, got: list[int]) -> None:
    """Until the number that ends it."""
    while (number := int(receiver.read_publish().payload)) != _END:
        got.append(number)


def _follows(server: Server) -> bool:
    """Is it a replica that has all that its primary had when it came?"""
    with redis.Redis(port=server.port) as client:
        role = client.execute_command("ROLE")
    return bool(role[0] == b"slave" and role[3] == b"connected")
