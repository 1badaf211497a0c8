"""Servers and Sentinels that announce names in place of their addresses, and ask for different passwords."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
from click.testing import CliRunner

from holdmq.cli import main
from tests.bridge.test_faults import Publisher
from tests.support import BridgeProcess, SentinelProcess, Server, eventually
from tests.support.sentinel import DOWN_AFTER_MS, SERVICE

FAILOVER_S = 60.0
QUICK = ["--retry-first-s", "0.02", "--retry-max-s", "0.1"]
NAME = "localhost"
OF_SERVERS, OF_SENTINELS = "of-servers", "of-sentinels"


@pytest.fixture
def servers(fresh_server: Callable[..., Server]) -> list[Server]:
    """A primary and its replica."""
    config = [f"masterauth {OF_SERVERS}", f"replica-announce-ip {NAME}"]
    primary = fresh_server(config=config, password=OF_SERVERS)
    return [primary, fresh_server(config=config, password=OF_SERVERS, replica_of=primary)]


@pytest.fixture
def sentinels(servers: list[Server], tmp_path: Path) -> Iterator[list[SentinelProcess]]:
    """Two, which know each other, and ask for a password."""
    primary = servers[0]
    settings = [
        "sentinel resolve-hostnames yes",
        "sentinel announce-hostnames yes",
        f"sentinel announce-ip {NAME}",
        f"sentinel monitor {SERVICE} {NAME} {primary.port} 1",
        f"sentinel auth-pass {SERVICE} {OF_SERVERS}",
        f"sentinel down-after-milliseconds {SERVICE} {DOWN_AFTER_MS}",
        f"sentinel failover-timeout {SERVICE} 3000",
    ]
    made: list[SentinelProcess] = []
    try:
        for number in range(2):
            folder = tmp_path / f"sentinel-{number}"
            folder.mkdir()
            made.append(SentinelProcess(primary, folder, settings=settings))
            made[-1].start()
        eventually(lambda: all(one.knows(1, 1) for one in made), FAILOVER_S, "Sentinels that know each other")
        for one in made:
            with redis.Redis(port=one.port) as admin:
                admin.execute_command("SENTINEL", "CONFIG", "SET", "sentinel-pass", OF_SENTINELS)
                admin.execute_command("ACL", "SETUSER", "default", "resetpass", f">{OF_SENTINELS}")
        yield made
    finally:
        for one in made:
            one.close()


def test_announced_names_and_two_passwords_are_used(
    servers: list[Server], sentinels: list[SentinelProcess], bridge: Callable[..., BridgeProcess]
) -> None:
    replica = servers[1]
    named, other = sentinels  # the URL names one, and a failover is ordered from the other
    url = f"sentinel://:{OF_SERVERS}@127.0.0.1:{named.port}/{SERVICE}?sentinel_password={OF_SENTINELS}"
    made = bridge(url, arguments=QUICK)
    publisher = Publisher(made.port, "n")
    publisher.start()
    publisher.wait_for_more(10)

    def publishes() -> bool:
        return CliRunner().invoke(main, ["--url", url, "topic", "publish", "x", "x"]).exit_code == 0

    assert publishes()
    operator = redis.Redis(port=other.port, password=OF_SENTINELS)

    def is_followed() -> bool:
        return any(int(one["psub"]) for one in operator.client_list())

    def has_moved() -> bool:
        if operator.execute_command("SENTINEL GET-MASTER-ADDR-BY-NAME", SERVICE) == (NAME.encode(), replica.port):
            return True
        try:
            operator.execute_command("SENTINEL FAILOVER", SERVICE)
        except redis.ResponseError as error:  # one is under way, or there is no good replica yet
            if not str(error).startswith(("INPROG", "NOGOODSLAVE")):
                raise
        return False

    with operator:
        eventually(is_followed, FAILOVER_S, "a Sentinel that is followed by its announced name")
        eventually(has_moved, FAILOVER_S, "another primary")
    eventually(lambda: f"{NAME}:{replica.port}" in made.log_text(), FAILOVER_S, "a bridge that was told")
    publisher.wait_for_more(100)
    publisher.finish()
    eventually(publishes, FAILOVER_S, "a command at the new primary")
    assert OF_SENTINELS not in made.log_text()
    assert OF_SERVERS not in made.log_text()
