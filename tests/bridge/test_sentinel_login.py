"""Sentinels that ask for a password: the bridge and the command line find and follow the primary by them."""

from collections.abc import Callable

import pytest
import redis
from click.testing import CliRunner

from holdmq.cli import main
from tests.bridge.test_faults import Publisher
from tests.support import BridgeProcess, SentinelProcess, Server, eventually
from tests.support.sentinel import SERVICE

FAILOVER_S = 60.0
QUICK = ["--retry-first-s", "0.02", "--retry-max-s", "0.1"]
PASSWORD = "a&b %/?"  # noqa: S105 - of a test
QUOTED = "a%26b%20%25%2F%3F"


class Operator:
    """Speaks to a Sentinel as somebody who has its password."""

    def __init__(self, sentinel: SentinelProcess, username: str) -> None:
        self._client = redis.Redis(port=sentinel.port, username=username, password=PASSWORD)

    def moves_to(self, server: Server) -> bool:
        """Orders a failover, again if no replica was good enough; whether the Sentinel names this server."""
        with self._client as client:
            if client.execute_command("SENTINEL GET-MASTER-ADDR-BY-NAME", SERVICE)[1] == server.port:
                return True
            try:
                client.execute_command("SENTINEL FAILOVER", SERVICE)
            except redis.ResponseError as error:  # one is under way, or there is no good replica yet
                if not str(error).startswith(("INPROG", "NOGOODSLAVE")):
                    raise
            return False


@pytest.mark.parametrize(
    ("username", "query"),
    [
        ("default", f"sentinel_password={QUOTED}"),
        ("bridge", f"sentinel_username=bridge&sentinel_password={QUOTED}"),
    ],
)
def test_a_sentinel_that_asks_for_a_password_is_followed(
    fresh_server: Callable[..., Server],
    fresh_sentinel: Callable[[Server], SentinelProcess],
    bridge: Callable[..., BridgeProcess],
    username: str,
    query: str,
) -> None:
    primary = fresh_server()
    replica = fresh_server(replica_of=primary)
    sentinel = fresh_sentinel(primary)
    with redis.Redis(port=sentinel.port) as admin:
        admin.execute_command("ACL", "SETUSER", username, "on", "resetpass", f">{PASSWORD}", "+@all", "allchannels")
        if username != "default":
            admin.execute_command("ACL", "SETUSER", "default", "off")
    url = f"sentinel://127.0.0.1:{sentinel.port}/{SERVICE}"
    made = bridge(f"{url}?{query}", arguments=QUICK)
    publisher = Publisher(made.port, "n")
    publisher.start()
    publisher.wait_for_more(10)
    with primary.client() as client:  # a replica that has not heard of the session yet would lose it
        client.set("k", "v")
        assert client.wait(1, 60_000) == 1
    operator = Operator(sentinel, username)
    eventually(lambda: operator.moves_to(replica), FAILOVER_S, "a Sentinel that names the new primary")
    eventually(lambda: "the primary has moved" in made.log_text(), FAILOVER_S, "a bridge that was told")
    publisher.wait_for_more(10)
    publisher.finish()
    assert QUOTED not in made.log_text()
    assert PASSWORD not in made.log_text()
    asked = CliRunner().invoke(main, ["--url", f"{url}?{query}", "info"])
    assert asked.exit_code == 0, asked.output
    refused = CliRunner().invoke(main, ["--url", url, "info"])
    assert refused.exit_code == 1, refused.output
