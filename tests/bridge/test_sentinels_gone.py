"""Sentinels that are gone, or refuse, while the primary lives: who is connected is served, and the log says why."""

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
        ("another name", "a Sentinel cannot be followed"),
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
