"""Sentinels that monitor the service anew below a running bridge: their epochs begin at 0 again."""

from collections.abc import Callable
from functools import partial

import pytest
import redis

from tests.bridge.conftest import Connect
from tests.bridge.test_faults import Publisher, assert_complete, read_until
from tests.support import BridgeProcess, SentinelProcess, Server, eventually
from tests.support.sentinel import DOWN_AFTER_MS, SERVICE

MakeServer = Callable[..., Server]
MakeSentinel = Callable[[Server], SentinelProcess]
MakeBridge = Callable[..., BridgeProcess]

FAILOVER_S = 60.0
QUICK = ["--retry-first-s", "0.02", "--retry-max-s", "0.1"]
SENTINELS = 2
RATE = 200  # messages a second: a queue has to hold all of them


def monitor_anew(sentinels: list[SentinelProcess], primary: Server) -> None:
    """SENTINEL REMOVE and SENTINEL MONITOR, as operators do after they have moved servers."""
    for one in sentinels:
        with redis.Redis(port=one.port) as admin:
            admin.execute_command("SENTINEL", "REMOVE", SERVICE)
            admin.execute_command("SENTINEL", "MONITOR", SERVICE, "127.0.0.1", primary.port, 1)
            admin.execute_command("SENTINEL", "SET", SERVICE, "down-after-milliseconds", DOWN_AFTER_MS)
            admin.execute_command("SENTINEL", "SET", SERVICE, "failover-timeout", 3000)


def epoch_of(sentinel: SentinelProcess) -> int:
    with redis.Redis(port=sentinel.port) as client:
        return int(client.sentinel_master(SERVICE)["config-epoch"])


def has_followed(former: Server, primary: Server) -> bool:
    try:
        role = former.client().role()
    except redis.ConnectionError:  # the Sentinel ends the connections
        return False
    return bool(role[0] == b"slave" and role[2] == primary.port and role[3] == b"connected")


def is_replicated(primary: Server) -> bool:
    with redis.Redis(port=primary.port, single_connection_client=True) as client:
        client.set("holdmq:failover-check", 1, px=60_000)
        return int(client.wait(1, 1000)) == 1


@pytest.fixture
def group(fresh_server: MakeServer, fresh_sentinel: MakeSentinel) -> tuple[Server, Server, list[SentinelProcess]]:
    """A primary, its replica, and Sentinels that know each other, after a failover: their epoch is 1 or later."""
    former = fresh_server()
    primary = fresh_server(replica_of=former)
    sentinels = [fresh_sentinel(former) for _ in range(SENTINELS)]
    eventually(lambda: all(one.knows(1, SENTINELS - 1) for one in sentinels), FAILOVER_S, "Sentinels that know all")
    first = sentinels[0]
    first.fail_over_until(lambda: all(one.names(primary) for one in sentinels), what="a failover")
    eventually(partial(has_followed, former, primary), FAILOVER_S, "a former primary that follows")
    return primary, former, sentinels


def test_a_failover_of_a_service_that_is_monitored_anew_loses_nothing(
    group: tuple[Server, Server, list[SentinelProcess]], bridge: MakeBridge, dial: Connect
) -> None:
    primary, replica, sentinels = group
    made = bridge(
        f"sentinel://127.0.0.1:{sentinels[0].port}/{SERVICE}", arguments=[*QUICK, "--publish-rate", str(RATE)]
    )
    away = dial(made.port, "away", clean=False)
    away.subscribe(("n", 1))
    away.disconnect()
    publisher = Publisher(made.port, "n")
    publisher.start()
    publisher.wait_for_more(10)
    eventually(lambda: all(one.is_followed() for one in sentinels), FAILOVER_S, "Sentinels that are followed")
    assert epoch_of(sentinels[0]) > 0
    monitor_anew(sentinels, primary)
    assert [epoch_of(one) for one in sentinels] == [0] * SENTINELS
    eventually(lambda: all(one.knows(1, SENTINELS - 1) for one in sentinels), FAILOVER_S, "Sentinels that know all")
    eventually(lambda: all(one.is_followed() for one in sentinels), FAILOVER_S, "Sentinels that are followed")
    publisher.wait_for_more(100)
    assert made.log_text().count('"connected to the server"') == 1
    eventually(partial(is_replicated, primary), FAILOVER_S, "a replica that has everything")
    sentinels[1].fail_over_until(partial(sentinels[1].names, replica), what="a failover")
    publisher.wait_for_more(100)
    eventually(partial(has_followed, primary, replica), FAILOVER_S, "a former primary that follows")
    publisher.wait_for_more(100)
    last = publisher.finish()
    away = dial(made.port, "away", clean=False, present=True)
    away.timeout_s = 30.0
    assert_complete(read_until(away, last), last)


def test_a_bridge_moves_to_another_primary_that_all_sentinels_monitor_anew(
    group: tuple[Server, Server, list[SentinelProcess]], fresh_server: MakeServer, bridge: MakeBridge, dial: Connect
) -> None:
    primary, _, sentinels = group
    made = bridge(f"sentinel://127.0.0.1:{sentinels[0].port}/{SERVICE}", arguments=QUICK)
    eventually(lambda: all(one.is_followed() for one in sentinels), FAILOVER_S, "Sentinels that are followed")
    other = fresh_server()  # the former one continues: nobody has stopped it
    monitor_anew(sentinels, other)
    eventually(lambda: made.log_text().count('"connected to the server"') == 2, FAILOVER_S, "a bridge that has moved")
    dial(made.port).publish("n", b"1", qos=1)
    links = [one["name"] for one in other.client().client_list()]
    assert any(f":{made.pid}:" in name for name in links), links
    assert not any(f":{made.pid}:" in one["name"] for one in primary.client().client_list())
