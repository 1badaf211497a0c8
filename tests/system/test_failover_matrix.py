"""One planned failover below a bridge, on each server of the matrix: nothing lost, short, no connection closed."""

from collections.abc import Callable
from functools import partial

from tests.bridge.conftest import Connect, dial
from tests.bridge.test_failover import OUTAGE_S, QUICK, TimedPublisher
from tests.bridge.test_faults import assert_complete, read_until
from tests.support import BridgeProcess, SentinelProcess, Server
from tests.support.sentinel import SERVICE

__all__ = ["dial"]  # a fixture

MESSAGES = 1000


def test_a_planned_failover_loses_nothing_on_any_server(
    fresh_server: Callable[..., Server],
    fresh_sentinel: Callable[[Server], SentinelProcess],
    bridge: Callable[..., BridgeProcess],
    dial: Connect,
) -> None:
    primary = fresh_server(config=["holdmq.session-limit 65535"])
    replica = fresh_server(replica_of=primary, config=["holdmq.session-limit 65535"])
    sentinel = fresh_sentinel(primary)
    coordinated = (primary.kind.family, primary.kind.version >= (9, 0)) == ("valkey", True)
    made = bridge(f"sentinel://127.0.0.1:{sentinel.port}/{SERVICE}", arguments=QUICK)
    away = dial(made.port, "away", clean=False)
    away.subscribe(("n", 1))
    away.disconnect()
    publisher = TimedPublisher(made.port, "n")
    publisher.start()
    publisher.wait_for_more(MESSAGES)
    sentinel.fail_over_until(
        partial(sentinel.names, replica), coordinated=coordinated, what="a Sentinel that names the new primary"
    )
    publisher.wait_for_more(MESSAGES)
    last = publisher.finish()
    assert publisher.longest_pause() < OUTAGE_S
    away = dial(made.port, "away", clean=False, present=True)
    away.timeout_s = 30.0
    assert_complete(read_until(away, last), last)
    assert replica.client().role()[0] == b"master"
