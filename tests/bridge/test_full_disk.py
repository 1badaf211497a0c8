"""A full disk below the append-only file: publishers learn it, operators see it, nothing acknowledged is lost."""

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from tests.bridge import packets, packets5
from tests.bridge.conftest import Connect
from tests.bridge.talk import Talk5
from tests.bridge.test_watching import readiness, scrape
from tests.support import BridgeProcess, Port, Server, ServerKind, SmallDisk, eventually, small_disk

MakeBridge = Callable[..., BridgeProcess]
MakeServer = Callable[..., Server]
PATIENCE_S = 1.5  # the bridge's; by default it is three minutes
QUICK = ["--retry-first-s", "0.02", "--retry-max-s", "0.1", "--retry-total-s", str(PATIENCE_S)]
PAYLOAD = bytes(5000)  # more than what is left of the last block
SERVER_BUSY, UNSPECIFIED, QUOTA = 0x89, 0x80, 0x97
KEPT_FREE = 4 << 20
WAIT_S = 30.0


@pytest.fixture
def disk(server_kind: ServerKind, tmp_path: Path) -> Iterator[SmallDisk]:
    """What the server of the test keeps its append-only file on."""
    made = small_disk(server_kind, tmp_path / "small")
    yield made
    made.close()


@pytest.fixture
def small_server(disk: SmallDisk, fresh_server: MakeServer) -> Iterator[MakeServer]:
    """Makes the server; ends it before its disk goes."""
    made: list[Server] = []

    def make(appendfsync: str, *config: str) -> Server:
        made.append(
            fresh_server(
                kind=disk.kind, directory=disk.directory, aof=True, config=[f"appendfsync {appendfsync}", *config]
            )
        )
        return made[-1]

    yield make
    for server in made:
        server.close()


class Publisher:
    """One of MQTT 5.0; remembers what was acknowledged."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._number = 0
        self.acknowledged: list[int] = []
        self.talk = Talk5.open(port, "p")

    def publish(self) -> None:
        """One message that must be acknowledged."""
        self.send()
        assert self.outcome() == 0

    def send(self) -> None:
        """One more."""
        self._number += 1
        number = str(self._number).encode()
        self.talk.send(packets5.publish("t", number + b" " + PAYLOAD, qos=1, pid=self._number))

    def outcome(self) -> int:
        """The next reason code, that of a message or of the end of the connection."""
        got = self.talk.read()
        if got.code == 0:
            self.acknowledged.append(got.pid)
        return got.code

    def outcome_of_refusal(self) -> int:
        """The next reason code that is not success; continues to publish as long as all is acknowledged."""
        while True:
            code = self.outcome()
            if code != 0:
                return code
            self.send()

    def come_back(self) -> None:
        """Connect again."""
        self.talk.close()
        self.talk = Talk5.open(self._port, "p")


def takes_no_writes(server: Server) -> bool:
    """Whether the server refuses them, or has ended."""
    try:
        server.client().set("k", PAYLOAD)
    except (redis.ConnectionError, redis.ResponseError):
        return True
    return False


def received(dial: Connect, port: int, last: int) -> list[int]:
    """The numbers of the messages that waited for the subscriber."""
    found: list[int] = []
    with dial(port, "s", clean=False, present=True) as subscriber:
        while last not in found:
            found.append(int(subscriber.read_publish().payload.split()[0]))
    return found


def without_repetitions(numbers: list[int]) -> list[int]:
    return list(dict.fromkeys(numbers))


@pytest.mark.parametrize("appendfsync", ["always", "everysec"])
def test_with_a_full_disk_publishers_are_told_and_nothing_acknowledged_is_lost(
    appendfsync: str,
    disk: SmallDisk,
    small_server: MakeServer,
    bridge: MakeBridge,
    dial: Connect,
    port: Port,
) -> None:
    server = small_server(appendfsync, "holdmq.min-free-disk 0")  # by default it refuses before
    made = bridge(server, arguments=["--metrics-port", str(port.number), *QUICK])
    with dial(made.port, "s", clean=False) as subscriber:
        subscriber.subscribe(("t", 1))
        subscriber.send(packets.DISCONNECT)
        subscriber.expect_closed()
    publisher = Publisher(made.port)
    with dial(made.port, "quiet") as quiet, dial(made.port, "old") as old:
        publisher.publish()
        disk.fill(server)
        publisher.send()
        eventually(lambda: takes_no_writes(server), WAIT_S, "a server that takes no writes")
        old.send(packets.publish("t", b"0", qos=1, pid=1))
        reason = publisher.outcome_of_refusal()
        old.expect_closed(WAIT_S)  # there is no reason code in MQTT 3.1.1
        quiet.send(packets.PINGREQ)
        quiet.expect(packets.PINGRESP)

    status, state = readiness(port)
    metrics = scrape(port)
    told = [json.loads(line) for line in made.log_text().splitlines()]
    assert (status, metrics["holdmq_bridge_ready"]) == (503, 0)
    assert any(line["event"] == "not ready" and line["reason"] == state["reason"] for line in told)
    if appendfsync == "always":
        eventually(lambda: not server.process.running, WAIT_S, "the end of the server")
        assert reason == SERVER_BUSY
        publisher.talk.expect_closed()
        assert state["reason"] == "there is no connection to the server"
        assert metrics["holdmq_bridge_server_up"] == 0
        assert re.search("Can't recover from AOF write error", server.log_text())
    else:
        assert reason == UNSPECIFIED
        assert state["reason"].startswith("the server refuses writes: MISCONF")
        assert metrics["holdmq_bridge_server_up"] == 1
        assert metrics["holdmq_bridge_refusals_total{code=MISCONF}"] > 0
        refusals = [line for line in told if line["event"] == "the server temporarily refuses publishes"]
        assert ["MISCONF" in line["error"] for line in refusals] == [True]
        assert server.client().info("persistence")["aof_last_write_status"] == "err"

    disk.free(server)
    if appendfsync == "always":
        server.start()
    eventually(lambda: readiness(port)[0] == 200, WAIT_S, "a bridge that is ready")
    publisher.come_back()
    publisher.publish()
    assert server.client().info("persistence")["aof_last_write_status"] == "ok"
    server.restart()  # what is in memory alone is gone
    eventually(lambda: readiness(port)[0] == 200, WAIT_S, "a bridge that is ready")
    got = received(dial, made.port, publisher.acknowledged[-1])
    assert set(publisher.acknowledged) <= set(got)
    assert without_repetitions(got) == sorted(got)
    publisher.talk.close()


def test_a_disk_that_is_full_for_longer_than_a_lease_costs_nobody_a_session_or_a_connection(
    disk: SmallDisk, small_server: MakeServer, bridge: MakeBridge, dial: Connect
) -> None:
    server = small_server("everysec", "holdmq.min-free-disk 0")
    made = bridge(server, arguments=["--lease-s", "2", "--retry-max-s", "0.1"])
    publisher = Publisher(made.port)
    with dial(made.port, "quiet") as quiet:
        quiet.subscribe(("t", 1))
        disk.fill(server)
        publisher.send()
        eventually(lambda: takes_no_writes(server), WAIT_S, "a server that takes no writes")
        publisher.send()
        refused = 4 * 3  # a lease is renewed four times in its time
        eventually(
            lambda: made.log_text().count("the server refuses the heartbeat") >= refused, WAIT_S, "the end of leases"
        )
        assert server.client().info("holdmq")["holdmq_owners_lost"] == 0
        disk.free(server)
        assert [publisher.outcome(), publisher.outcome()] == [0, 0]
        quiet.timeout_s = WAIT_S
        assert {int(quiet.read_publish().payload.split()[0]) for _ in range(2)} == {1, 2}
    publisher.talk.close()


def test_before_the_disk_is_full_publishers_are_refused_and_the_server_continues(
    disk: SmallDisk, small_server: MakeServer, bridge: MakeBridge, dial: Connect, port: Port
) -> None:
    server = small_server("always", f"holdmq.min-free-disk {KEPT_FREE}")
    made = bridge(server, arguments=["--metrics-port", str(port.number), *QUICK])
    with dial(made.port, "s", clean=False) as subscriber:
        subscriber.subscribe(("t", 1))
        publisher = Publisher(made.port)
        publisher.publish()
        eventually(lambda: scrape(port)["holdmq_server_disk_free"] > 0, WAIT_S, "a known disk")
        disk.run_short(server, KEPT_FREE)
        publisher.send()
        assert publisher.outcome_of_refusal() == QUOTA
        eventually(lambda: readiness(port)[0] == 503, WAIT_S, "a bridge that is not ready")
        state = readiness(port)[1]
        assert state["server"]
        assert "holdmq.min-free-disk" in state["reason"]
        metrics = scrape(port)
        assert metrics["holdmq_bridge_refusals_total{code=QUOTA}"] > 0
        assert metrics["holdmq_server_disk_refused_total"] > 0
        assert server.process.running
        first = subscriber.read_publish()  # what was stored is handed over and acknowledged
        assert int(first.payload.split()[0]) == publisher.acknowledged[0]
        with dial(made.port, "newcomer") as newcomer:
            newcomer.subscribe(("t", 1))
        disk.free(server)
        eventually(lambda: readiness(port)[0] == 200, WAIT_S, "a bridge that is ready")
    publisher.publish()
    publisher.talk.close()
    told = [json.loads(line) for line in made.log_text().splitlines()]
    [known] = [line for line in told if line["event"] == "the server's memory and disk, in bytes"]
    assert known["disk_free"] <= known["disk_total"]
    assert server.log_text().count("the disk is almost full") == 1


def test_a_disk_that_gets_full_is_seen_between_two_messages(disk: SmallDisk, small_server: MakeServer) -> None:
    server = small_server("always", f"holdmq.min-free-disk {KEPT_FREE}")
    with server.client() as client:
        client.execute_command("SESSION.OPEN", "{s}", "OWNER", "o")
        client.execute_command("SESSION.SUBSCRIBE", "{s}", "EPOCH", 0, "t", 1)
        for _ in range(3):
            client.execute_command("TOPIC.PUBLISH", "t", "1", "QOS", 1)
            disk.run_short(server, KEPT_FREE)
            time.sleep(0.02)  # twice the time between two looks
            with pytest.raises(redis.ResponseError, match="QUOTA"):
                client.execute_command("TOPIC.PUBLISH", "t", "2", "QOS", 1)
            disk.free(server)
            time.sleep(0.02)
