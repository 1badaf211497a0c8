"""Planned failovers lose nothing that was acknowledged, are short, and close no client's connection."""

import json
import threading
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import redis

from tests.bridge.conftest import Connect
from tests.bridge.talk import Talk
from tests.bridge.test_faults import Publisher, assert_complete, read_until
from tests.support import BridgeProcess, SentinelProcess, Server, eventually
from tests.support.sentinel import SERVICE

MakeServer = Callable[..., Server]
MakeSentinel = Callable[[Server], SentinelProcess]
MakeBridge = Callable[..., BridgeProcess]

FAILOVER_S = 60.0
# Between two acknowledgements of one publisher on a busy machine; on an idle one it is the one second of the Sentinel.
OUTAGE_S = 6.0
DOUBT_S = 10.0  # docs/failover.md
QUICK = ["--retry-first-s", "0.02", "--retry-max-s", "0.1"]
KINDS = ["planned", "coordinated"]
RATE = 200  # messages a second, where a queue has to hold all of them
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
        sentinel.fail_over_until(
            partial(sentinel.names, successor), coordinated=coordinated, what="a Sentinel that names the new primary"
        )
        publisher.wait_for_more(2000)
        former = primary if successor is replica else replica
        eventually(partial(_follows, former), FAILOVER_S, "an old primary that follows the new one")
        if not coordinated:
            _wait_until_it_has_all(former, successor)
        publisher.wait_for_more(2000)
    last = publisher.finish()
    dial(made.port).publish("n", b"%d" % _END, qos=1)
    reading.join(FAILOVER_S)
    assert_complete(got, last)
    assert publisher.longest_pause() < OUTAGE_S
    told = [json.loads(line) for line in made.log_text().splitlines()]
    ended = {line["reason"] for line in told if line["event"] == "client disconnected"}
    assert ended <= {"the client disconnected", "the connection was lost"}  # none of them by the bridge


def _receive(receiver: Talk, got: list[int]) -> None:
    """Until the number that ends it."""
    while (number := int(receiver.read_publish().payload)) != _END:
        got.append(number)


def _role(server: Server) -> list[Any]:
    with redis.Redis(port=server.port) as client:
        return list(client.execute_command("ROLE"))


def _follows(server: Server) -> bool:
    """Is it a replica that has all that its primary had when it came?  The stream may begin a second later."""
    role = _role(server)
    return bool(role[0] == b"slave" and role[3] == b"connected")


def _wait_until_it_has_all(replica: Server, primary: Server) -> None:
    """All that the primary has now, as docs/failover.md tells operators."""
    offset = _role(primary)[1]
    eventually(lambda: _role(replica)[4] >= offset, FAILOVER_S, "a replica that has caught up")


def test_a_publisher_that_is_paused_for_its_rate_continues_after_a_failover(
    fresh_server: MakeServer, fresh_sentinel: MakeSentinel, bridge: MakeBridge
) -> None:
    primary = fresh_server()
    replica = fresh_server(replica_of=primary)
    sentinel = fresh_sentinel(primary)
    made = bridge(f"sentinel://127.0.0.1:{sentinel.port}/{SERVICE}", arguments=[*QUICK, "--publish-rate", str(RATE)])
    publisher = Publisher(made.port, "n")
    publisher.start()
    publisher.wait_for_more(2 * RATE)  # all of its burst is used up
    sentinel.fail_over_until(partial(sentinel.names, replica), what="a Sentinel that names the new primary")
    publisher.wait_for_more(RATE)
    publisher.finish()


def test_a_sentinel_that_the_url_does_not_name_is_enough(
    fresh_server: MakeServer, fresh_sentinel: MakeSentinel, bridge: MakeBridge, dial: Connect
) -> None:
    primary = fresh_server()
    replica = fresh_server(replica_of=primary)
    named, other = fresh_sentinel(primary), fresh_sentinel(primary)
    eventually(lambda: named.knows(1, 1), FAILOVER_S, "Sentinels that know each other")
    made = bridge(f"sentinel://127.0.0.1:{named.port}/{SERVICE}", arguments=QUICK)
    eventually(other.is_followed, FAILOVER_S, "a bridge that follows the other Sentinel, too")
    named.kill()
    away = dial(made.port, "away", clean=False)
    away.subscribe(("n", 1))
    away.disconnect()
    publisher = Publisher(made.port, "n")
    publisher.start()
    publisher.wait_for_more(RATE)
    _wait_until_it_has_all(replica, primary)
    other.fail_over_until(partial(other.names, replica), what="a Sentinel that names the new primary")
    publisher.wait_for_more(RATE)
    last = publisher.finish()
    away = dial(made.port, "away", clean=False, present=True)
    away.timeout_s = 30.0
    assert_complete(read_until(away, last), last)
    assert replica.client().exists("{away}_subscriptions") == 1
    assert "ending a client" not in made.log_text()


def test_with_wait_replicas_nothing_is_lost_to_a_replica_that_lags_when_it_is_promoted(
    fresh_server: MakeServer, fresh_sentinel: MakeSentinel, bridge: MakeBridge, dial: Connect
) -> None:
    primary = fresh_server()
    replica = fresh_server(replica_of=primary)
    sentinel = fresh_sentinel(primary)
    options = [*QUICK, "--publish-rate", str(RATE), "--wait-replicas", "1"]
    made = bridge(f"sentinel://127.0.0.1:{sentinel.port}/{SERVICE}", arguments=options)
    away = dial(made.port, "away", clean=False)
    away.subscribe(("n", 1))
    away.disconnect()
    publisher = Publisher(made.port, "n")
    publisher.start()
    publisher.wait_for_more(RATE)
    replica.pause()
    eventually(lambda: "acknowledgements are withheld" in made.log_text(), FAILOVER_S, "withheld acknowledgements")
    acknowledged = publisher.acknowledged
    sentinel.fail_over()
    eventually(lambda: "wait-promotion" in sentinel.log_text(), FAILOVER_S, "a Sentinel that has ordered the promotion")
    assert publisher.acknowledged == acknowledged
    replica.resume()
    # A Sentinel that did not see the promotion in time has given it up by now, and does not repeat it.
    sentinel.fail_over_until(
        partial(sentinel.names, replica), what="a Sentinel that names the new primary", is_ordered=True
    )
    primary.client().replicaof("127.0.0.1", str(replica.port))  # the Sentinel does that ten seconds later
    publisher.wait_for_more(RATE)
    last = publisher.finish()
    away = dial(made.port, "away", clean=False, present=True)
    away.timeout_s = 30.0
    assert_complete(read_until(away, last), last)


def test_a_failover_that_never_happens_costs_no_session(
    fresh_server: MakeServer, fresh_sentinel: MakeSentinel, bridge: MakeBridge, dial: Connect
) -> None:
    primary = fresh_server()
    replica = fresh_server(replica_of=primary)
    sentinel = fresh_sentinel(primary)
    with redis.Redis(port=sentinel.port) as admin:
        admin.execute_command("SENTINEL", "SET", SERVICE, "failover-timeout", 20_000)
    arguments = [*QUICK, "--lease-s", "4", "--server-timeout-s", "6"]  # less than a doubt lasts
    made = bridge(f"sentinel://127.0.0.1:{sentinel.port}/{SERVICE}", arguments=arguments)
    quiet = dial(made.port, "quiet", clean=False)
    publisher = Publisher(made.port, "n")
    publisher.start()
    publisher.wait_for_more(10)
    replica.pause()
    sentinel.fail_over()
    eventually(lambda: "neither ended nor aborted" in made.log_text(), FAILOVER_S, "a doubt of ten seconds")
    eventually(lambda: "the failover is over" in made.log_text(), FAILOVER_S, "the end of the doubt")
    assert "-failover-abort-slave-timeout" in sentinel.log_text()
    assert "the server does not answer" not in made.log_text()
    publisher.wait_for_more(10)
    publisher.finish()
    quiet.subscribe(("n", 1))
    told = [json.loads(line) for line in made.log_text().splitlines()]
    assert {line["reason"] for line in told if line["event"] == "client disconnected"} <= {
        "the client disconnected",
        "the connection was lost",
    }
    replica.resume()


def test_a_replica_that_stands_still_for_long_when_it_is_to_be_promoted_costs_no_message(
    fresh_server: MakeServer, fresh_sentinel: MakeSentinel, bridge: MakeBridge, dial: Connect
) -> None:
    primary = fresh_server(config=["holdmq.session-limit 65535"])
    replica = fresh_server(replica_of=primary, config=["holdmq.session-limit 65535"])
    sentinel = fresh_sentinel(primary)
    with redis.Redis(port=sentinel.port) as admin:
        admin.execute_command("SENTINEL", "SET", SERVICE, "failover-timeout", 60_000)  # as docs/failover.md has it
    made = bridge(f"sentinel://127.0.0.1:{sentinel.port}/{SERVICE}", arguments=QUICK)
    away = dial(made.port, "away", clean=False)
    away.subscribe(("n", 1))
    away.disconnect()
    publisher = Publisher(made.port, "n")
    _wait_until_it_has_all(replica, primary)
    replica.pause()
    sentinel.fail_over()
    eventually(lambda: "a failover was announced" in made.log_text(), FAILOVER_S, "the announcement")
    publisher.start()  # not before: what a replica has not read yet is lost with any failover
    eventually(lambda: "neither ended nor aborted" in made.log_text(), FAILOVER_S, "a doubt of ten seconds")
    end = time.monotonic() + 3
    eventually(lambda: time.monotonic() > end, what="the time to acknowledge what would be lost")
    replica.resume()
    eventually(lambda: sentinel.names(replica), FAILOVER_S, "a Sentinel that names the new primary")
    publisher.wait_for_more(RATE)
    last = publisher.finish()
    away = dial(made.port, "away", clean=False, present=True)
    away.timeout_s = FAILOVER_S
    assert_complete(read_until(away, last), last)


def test_a_sentinel_that_dies_while_it_leads_a_failover_costs_ten_seconds_and_no_message(
    fresh_server: MakeServer, fresh_sentinel: MakeSentinel, bridge: MakeBridge, dial: Connect
) -> None:
    primary = fresh_server()
    fresh_server(replica_of=primary)
    leader, other = fresh_sentinel(primary), fresh_sentinel(primary)
    eventually(lambda: leader.knows(1, 1) and other.knows(1, 1), FAILOVER_S, "Sentinels that know each other")
    made = bridge(f"sentinel://127.0.0.1:{leader.port}/{SERVICE}", arguments=QUICK)
    eventually(lambda: leader.is_followed() and other.is_followed(), FAILOVER_S, "a bridge that follows both")
    receiver = dial(made.port, "there", clean=False)
    receiver.subscribe(("n", 1))
    receiver.timeout_s = FAILOVER_S
    publisher = TimedPublisher(made.port, "n")
    publisher.start()
    publisher.wait_for_more(RATE)
    with redis.Redis(port=leader.port) as admin, admin.pubsub() as announcements:
        announcements.subscribe("+selected-slave")
        leader.fail_over()
        for message in announcements.listen():
            if message["type"] == "message":
                break
        leader.kill()
    eventually(lambda: "neither ended nor aborted" in made.log_text(), FAILOVER_S, "the end of the doubt")
    publisher.wait_for_more(RATE)
    last = publisher.finish()
    assert_complete(read_until(receiver, last), last)
    assert publisher.longest_pause() < DOUBT_S + OUTAGE_S
    told = [json.loads(line) for line in made.log_text().splitlines()]
    assert [line for line in told if line["event"] == "client disconnected" and line["client"] == "there"] == []
