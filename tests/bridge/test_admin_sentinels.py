"""`holdmq-bridge auth` and `drain` over Sentinels find the primary, and confirm no change that a failover loses."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from holdmq_bridge.__main__ import command
from tests.support import BridgeProcess, SentinelProcess, Server, embedded_kinds, eventually
from tests.support.sentinel import SERVICE

server_kinds = embedded_kinds  # what is tested is in the bridge

FAILOVER_S = 60.0
MakeServer = Callable[..., Server]
MakeSentinel = Callable[[Server], SentinelProcess]


def invoke(*words: str) -> Result:
    return CliRunner().invoke(command, words, prog_name="holdmq-bridge")


def roles_of(server: Server) -> set[str]:
    listed = invoke("auth", "--redis", server.url, "role", "list")
    assert listed.exit_code == 0, listed.output
    return {line.split("\t")[0] for line in listed.stdout.splitlines()[1:]}


def test_no_role_is_confirmed_that_a_planned_failover_loses(
    fresh_server: MakeServer, fresh_sentinel: MakeSentinel
) -> None:
    primary = fresh_server()
    replica = fresh_server(replica_of=primary)
    sentinel = fresh_sentinel(primary)
    url = f"sentinel://127.0.0.1:{sentinel.port}/{SERVICE}"
    confirmed: set[str] = set()
    tried = 0

    def add() -> None:
        nonlocal tried
        tried += 1
        done = invoke("auth", "--redis", url, "role", "add", f"r{tried}")
        assert done.exit_code in (0, 1), (done.output, done.exception)
        if done.exit_code == 0:
            confirmed.add(f"r{tried}")

    def has_moved() -> bool:
        add()
        return sentinel.names(replica)

    add()
    assert "r1" in roles_of(primary)
    sentinel.fail_over_until(has_moved, what="a failover", coordinated=False)
    for _ in range(10):  # the former primary is none yet
        add()
    eventually(primary.is_replica, FAILOVER_S, "a replica that was the primary")
    assert len(confirmed) > 10
    assert confirmed - roles_of(replica) == set()


@pytest.fixture
def bridge_over(tmp_path: Path) -> Iterator[Callable[[str], BridgeProcess]]:
    made: list[BridgeProcess] = []

    def make(url: str) -> BridgeProcess:
        made.append(BridgeProcess(url, tmp_path))
        made[-1].start()
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_a_bridge_is_drained_by_way_of_sentinels(
    fresh_server: MakeServer, fresh_sentinel: MakeSentinel, bridge_over: Callable[[str], BridgeProcess]
) -> None:
    primary = fresh_server()
    fresh_server(replica_of=primary)
    url = f"sentinel://127.0.0.1:{fresh_sentinel(primary).port}/{SERVICE}"
    bridge = bridge_over(url)

    def drained() -> str:
        return invoke("drain", "*", "--redis", url).output

    eventually(lambda: ": drained" in drained(), FAILOVER_S, "a bridge that is known, and drained")
    eventually(lambda: not bridge.running, FAILOVER_S, "its end")
