"""A question to a bridge (kick, drain) that a failover loses ends with an error that names the failover."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from click.testing import CliRunner, Result

from holdmq.cli import main
from holdmq_bridge.__main__ import command
from tests.bridge.conftest import Connect
from tests.support import BridgeProcess, SentinelProcess, Server, embedded_kinds, eventually
from tests.support.sentinel import SERVICE

server_kinds = embedded_kinds  # what is tested is in the command line

FAILOVER_S = 60.0
CLIENT = "device-17"
QUICK = ["--retry-first-s", "0.02", "--retry-max-s", "0.1"]


def kick(url: str) -> Result:
    return CliRunner().invoke(main, ["--url", url, "kick", CLIENT], prog_name="holdmq")


def drain(url: str) -> Result:
    return CliRunner().invoke(command, ["drain", "*", "--redis", url], prog_name="holdmq-bridge")


def waiting(server: Server) -> set[str]:
    """The connections that wait for an element of a list."""
    with server.client() as client:
        return {one["id"] for one in client.client_list() if one["cmd"] == "blpop" and "b" in one["flags"]}


@pytest.mark.parametrize("ask", [kick, drain])
def test_a_question_to_a_bridge_that_a_failover_loses_names_the_failover(
    fresh_server: Callable[..., Server],
    fresh_sentinel: Callable[[Server], SentinelProcess],
    bridge: Callable[..., BridgeProcess],
    dial: Connect,
    ask: Callable[[str], Result],
) -> None:
    primary = fresh_server()
    replica = fresh_server(replica_of=primary)
    sentinel = fresh_sentinel(primary)
    url = f"sentinel://127.0.0.1:{sentinel.port}/{SERVICE}"
    made = bridge(url, arguments=QUICK)
    dial(made.port, CLIENT)
    eventually(lambda: CLIENT in CliRunner().invoke(main, ["--url", url, "clients"]).stdout, FAILOVER_S, "a bridge")
    made.pause()  # before it has taken the question
    own = waiting(primary)
    with ThreadPoolExecutor(1) as threads:
        done = threads.submit(ask, url)
        eventually(lambda: waiting(primary) - own or done.done(), FAILOVER_S, "a question that was asked")
        assert not done.done(), done.result().output
        sentinel.fail_over_until(lambda: sentinel.names(replica), what="a failover")
        made.resume()
        result = done.result(FAILOVER_S)
    assert result.exit_code == 1, result.output
    assert "Error: the primary has moved in the meantime, and may lack this change" in result.output
    assert "Traceback" not in result.output
