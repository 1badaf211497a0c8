"""docker-compose.cluster.yml: a node and a bridge are killed under traffic, and nothing acknowledged is lost.

One stack for all tests of the file, with one of the two programs: tests/compose/test_stack.py compares these.
"""

import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from tests.compose.stack import BUILD_S, Compose, copy_of_sources, docker
from tests.support import eventually, reserve_port
from tests.support.pages import blocks

HEALTHY_S = 180.0
WAIT_S = 120.0
PASSWORD = "a password that is asked for"  # noqa: S105 (of a stack that lives for one test)
USER = "NAME"
FILE = "docker-compose.cluster.yml"
NODES = [f"node-{number}" for number in range(1, 7)]
BRIDGES = [f"bridge-{number}" for number in range(1, 4)]
PAIRS = 12  # enough that each bridge has some, and each node

# Programs in the containers.
SERVER = """
import time, redis
from holdmq.password import with_password
client = redis.Redis.from_url(with_password("redis://127.0.0.1"), decode_responses=True)
"""
ROLE = SERVER + "print(client.execute_command('ROLE')[0])"
# What the replica does not have would be lost with the primary (docs/cluster.md): the primary takes nothing any more,
# and the replica has the rest.
REPLICATE = (
    SERVER
    + """
client.execute_command("CLIENT", "PAUSE", 600000, "WRITE")
for _ in range(1000):
    found = client.info("replication")
    if found["slave0"]["offset"] == found["master_repl_offset"]:
        break
    time.sleep(0.01)
else:
    raise SystemExit("the replica does not follow")
"""
)
METRICS = """
import urllib.request
with urllib.request.urlopen("http://127.0.0.1:9883/metrics", timeout=10) as reply:
    print(reply.read().decode())
"""

pytestmark = pytest.mark.timeout(BUILD_S + 2 * HEALTHY_S + 4 * WAIT_S)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Compose]:
    """Started by the commands of the page."""
    sources = copy_of_sources(tmp_path_factory.mktemp("cluster") / "sources")
    ports = reserve_port(), reserve_port(), reserve_port()
    stack = Compose("docker-compose", sources, ports, FILE, ("node-1", "balancer"))
    try:
        for block in blocks("docs/cluster.md", "sh compose"):
            stack.run_page(block.text, f"{PASSWORD}\n{PASSWORD}\n")
        for service in (*NODES, *BRIDGES):
            eventually(partial(stack.is_healthy, service), HEALTHY_S, f"a healthy {service}")
        yield stack
    finally:
        stack.close()
        for port in ports:
            port.release()


class Pair:
    """A publisher and a subscriber that come back when they are cut off.

    Args:
        number: of the pair.
        port: of the balancer.
    """

    def __init__(self, number: int, port: int) -> None:
        self.topic = f"pair/{number}"
        self.sent: list[bytes] = []
        self.received: list[bytes] = []
        self._granted = threading.Event()
        self._ended = threading.Event()
        self._error: BaseException | None = None
        self._hearing = self._client(f"hears-{number}", port)
        self._hearing.on_message = lambda _client, _data, message: self.received.append(bytes(message.payload))
        self._hearing.on_subscribe = lambda *_: self._granted.set()
        self._hearing.subscribe(self.topic, 1)
        assert self._granted.wait(WAIT_S), f"no SUBACK for {self.topic}"
        self._sending = self._client(f"sends-{number}", port)
        self._thread = threading.Thread(target=self._publish)
        self._thread.start()

    @staticmethod
    def _client(name: str, port: int) -> mqtt.Client:
        connected = threading.Event()
        client = mqtt.Client(CallbackAPIVersion.VERSION2, name, protocol=mqtt.MQTTv311, clean_session=False)
        client.username_pw_set(USER, PASSWORD)
        client.on_connect = lambda *_: connected.set()
        client.reconnect_delay_set(1, 1)
        client.connect("127.0.0.1", port, keepalive=10)
        client.loop_start()
        assert connected.wait(WAIT_S), f"{name} got no CONNACK"
        return client

    def _publish(self) -> None:
        try:
            while not self._ended.is_set():
                payload = b"%d" % len(self.sent)
                info: Any = self._sending.publish(self.topic, payload, 1)
                info.wait_for_publish(WAIT_S)
                assert info.is_published(), f"no PUBACK for {payload!r}"
                self.sent.append(payload)
                self._ended.wait(0.02)
        except BaseException as error:  # noqa: BLE001 (told by `end`)
            self._error = error

    def until(self, count: int) -> None:
        """Waits for so many PUBACKs from now on."""
        before = len(self.sent)
        eventually(lambda: len(self.sent) >= before + count or self._error is not None, WAIT_S, "PUBACKs")

    def end(self) -> None:
        """Publishes no more, and waits for what was acknowledged."""
        self._ended.set()
        self._thread.join(2 * WAIT_S)
        if self._error is not None:
            raise self._error
        eventually(lambda: set(self.sent) <= set(self.received), WAIT_S, f"all messages of {self.topic}")

    def close(self) -> None:
        """Disconnects."""
        self._ended.set()
        for client in (self._sending, self._hearing):
            client.disconnect()
            client.loop_stop()


def roles(stack: Compose, but: str = "") -> dict[str, str]:
    """The role of each node, as it says, but for one that does not run."""
    return {name: stack.execute(name, "python3", "-c", ROLE).stdout.strip() for name in NODES if name != but}


def connections(stack: Compose, bridge: str) -> int:
    """How many clients a bridge has, as its metrics say."""
    lines = stack.execute(bridge, "python3", "-c", METRICS).stdout.splitlines()
    return int(float(next(line.split()[-1] for line in lines if line.startswith("holdmq_bridge_clients "))))


def test_the_service_that_makes_the_cluster_ends_and_changes_nothing_later(running: Compose) -> None:
    assert running.container("cluster")["State"]["ExitCode"] == 0
    assert sorted(roles(running).values()) == ["master"] * 3 + ["slave"] * 3
    running("up", "--detach", "--no-build", timeout_s=2 * HEALTHY_S)
    assert "the cluster is there already" in running("logs", "cluster").stdout
    assert sorted(roles(running).values()) == ["master"] * 3 + ["slave"] * 3


def test_nothing_acknowledged_is_lost_when_a_node_and_a_bridge_are_killed_under_traffic(running: Compose) -> None:
    pairs: list[Pair] = []
    try:
        pairs.extend(Pair(number, running.ports[1].number) for number in range(PAIRS))
        for pair in pairs:
            pair.until(20)
        assert all(connections(running, bridge) > 0 for bridge in BRIDGES)
        before = roles(running)
        primary = next(name for name in NODES if before[name] == "master")
        docker("kill", "--signal", "KILL", str(running.container("bridge-2")["Id"]))
        for pair in pairs:
            pair.until(20)
        running.execute(primary, "python3", "-c", REPLICATE)
        docker("kill", "--signal", "KILL", str(running.container(primary)["Id"]))
        for pair in pairs:
            pair.until(20)
        assert sorted(role for name, role in roles(running, but=primary).items()) == ["master"] * 3 + ["slave"] * 2
        running("start", primary, "bridge-2")
        for service in (primary, "bridge-2"):
            eventually(partial(running.is_healthy, service), HEALTHY_S, f"{service} after its start")
        assert roles(running)[primary] == "slave"
        for pair in pairs:
            pair.until(20)
        for pair in pairs:
            pair.end()
    finally:
        for pair in pairs:
            pair.close()
