"""Sentinels that are gone, refuse, or come back: who is connected is served, or waits, and the log says why."""

from collections.abc import Callable

import pytest
import redis

from tests.bridge.test_faults import Publisher
from tests.support import BridgeProcess, SentinelProcess, Server, eventually
from tests.support.sentinel import SERVICE

NOTICED_S = 60.0
QUICK = ["--retry-first-s", "0.02", "--retry-max-s", "0.1"]


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("killed", "Connection refused"),
        ("may not subscribe", "has no permissions"),
        ("another password", "already authenticated"),
        ("another name", "it watches no service"),
    ],
    ids=["killed", "may-not-subscribe", "another-password", "another-name"],
)
def test_clients_are_served_while_no_sentinel_can_be_followed(
    fresh_server: Callable[..., Server],
    fresh_sentinel: Callable[[Server], SentinelProcess],
    bridge: Callable[..., BridgeProcess],
    what: str,
    reason: str,
) -> None:
    primary = fresh_server()
    fresh_server(replica_of=primary)
    sentinel = fresh_sentinel(primary)
    made = bridge(f"sentinel://127.0.0.1:{sentinel.port}/{SERVICE}", arguments=QUICK)
    publisher = Publisher(made.port, "n")
    publisher.start()
    publisher.wait_for_more(10)
    eventually(sentinel.is_followed, NOTICED_S, "a Sentinel that is followed")
    if what == "killed":
        sentinel.kill()
    else:
        with redis.Redis(port=sentinel.port) as admin:
            if what == "another name":
                admin.execute_command("SENTINEL", "REMOVE", SERVICE)
            elif what == "another password":
                admin.execute_command("ACL", "SETUSER", "default", "resetpass", ">other")
            else:
                admin.execute_command("ACL", "SETUSER", "default", "-subscribe", "-psubscribe")
            admin.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
    eventually(lambda: reason in made.log_text(), NOTICED_S, "a line that says why")
    publisher.wait_for_more(500)
    publisher.finish()


def test_sentinels_that_are_restarted_one_after_the_other_are_followed_again(
    fresh_server: Callable[..., Server],
    fresh_sentinel: Callable[[Server], SentinelProcess],
    bridge: Callable[..., BridgeProcess],
) -> None:
    primary = fresh_server()
    fresh_server(replica_of=primary)
    group = [fresh_sentinel(primary) for _ in range(3)]
    eventually(lambda: all(one.knows(1, 2) for one in group), NOTICED_S, "Sentinels that know each other")
    made = bridge(f"sentinel://127.0.0.1:{group[0].port}/{SERVICE}", arguments=QUICK)
    publisher = Publisher(made.port, "n")
    publisher.start()
    eventually(lambda: all(one.is_followed() for one in group), NOTICED_S, "three Sentinels that are followed")
    for one in group:
        one.kill()
        publisher.wait_for_more(200)
        one.start()
        eventually(one.is_followed, NOTICED_S, "a Sentinel that is followed again")
        publisher.wait_for_more(200)
    publisher.finish()
    assert made.log_text().count("connected to the server") == 1


def test_who_loses_the_primary_while_no_sentinel_answers_waits_for_one(
    fresh_server: Callable[..., Server],
    fresh_sentinel: Callable[[Server], SentinelProcess],
    bridge: Callable[..., BridgeProcess],
) -> None:
    primary = fresh_server()
    fresh_server(replica_of=primary)
    sentinel = fresh_sentinel(primary)
    made = bridge(f"sentinel://127.0.0.1:{sentinel.port}/{SERVICE}", arguments=QUICK)
    publisher = Publisher(made.port, "n")
    publisher.start()
    publisher.wait_for_more(10)
    sentinel.kill()
    with redis.Redis(port=primary.port, single_connection_client=True) as admin:
        for link in admin.client_list():
            if f":{made.pid}:" in link["name"]:
                admin.client_kill_filter(_id=link["id"])
    eventually(
        lambda: "no Sentinel names a primary" in made.log_text(), NOTICED_S, "a bridge that waits for a Sentinel"
    )
    acknowledged = publisher.acknowledged
    tries = made.log_text().count("no Sentinel names a primary")
    eventually(lambda: made.log_text().count("no Sentinel names a primary") > tries + 5, NOTICED_S, "further attempts")
    assert publisher.acknowledged == acknowledged  # it may have been replaced, and call itself a primary still
    sentinel.start()
    publisher.wait_for_more(200)
    publisher.finish()
