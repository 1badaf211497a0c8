"""The command `holdmq` over Sentinels confirms no change that a planned failover loses."""

from collections.abc import Callable

import pytest
from click.testing import CliRunner, Result

from holdmq import HoldMQ
from holdmq.cli import main
from tests.support import SentinelProcess, Server, eventually
from tests.support.sentinel import SERVICE

FAILOVER_S = 60.0
BEFORE = 40  # sessions with a message each
LATE = "the primary has moved in the meantime"

MakeServer = Callable[..., Server]
MakeSentinel = Callable[[Server], SentinelProcess]


def invoke(url: str, *words: str) -> Result:
    return CliRunner().invoke(main, ["--url", url, *words], prog_name="holdmq")


@pytest.mark.parametrize("kind", ["planned", "coordinated"])
def test_no_change_is_confirmed_that_a_planned_failover_loses(
    fresh_server: MakeServer, fresh_sentinel: MakeSentinel, kind: str
) -> None:
    primary = fresh_server()
    coordinated = kind == "coordinated" and (primary.kind.family, primary.kind.version) >= ("valkey", (9, 0))
    replica = fresh_server(replica_of=primary)
    sentinel = fresh_sentinel(primary)
    url = f"sentinel://127.0.0.1:{sentinel.port}/{SERVICE}"
    with HoldMQ(primary.client()) as hold:
        for number in range(BEFORE):
            hold.session(f"s{number}").subscribe(f"t/{number}")
            hold.topics.publish(f"t/{number}", b"x", qos=1)
    assert primary.client().wait(1, 5000) == 1
    published: list[str] = []
    purged: list[str] = []
    tried = 0

    def change() -> None:
        nonlocal tried
        tried += 1
        done = invoke(url, "topic", "publish", f"r/{tried}", "x", "--retain")
        assert done.exit_code == 0 or "Error: " in done.output, (done.output, done.exception)
        if done.exit_code == 0:
            published.append(f"r/{tried}")
        if tried < BEFORE:
            done = invoke(url, "purge", f"s{tried}", "--yes")
            assert done.exit_code == 0 or "Error: " in done.output, (done.output, done.exception)
            if done.exit_code == 0:
                purged.append(f"s{tried}")

    def has_moved() -> bool:
        change()
        return sentinel.names(replica)

    change()
    sentinel.fail_over_until(has_moved, what="a failover", coordinated=coordinated)
    for _ in range(10):  # the former primary is none yet
        change()
    assert len(published) > 10
    eventually(primary.is_replica, FAILOVER_S, "a replica that was the primary")
    with HoldMQ(replica.client()) as hold:
        assert [name for name in published if hold.topics.retained_message(name) is None] == []
        assert [name for name in purged if hold.session(name).info().messages] == []
