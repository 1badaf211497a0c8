"""Draining a bridge: no further connections, clients leave at a bounded rate and lose nothing, the process exits."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import redis
from click.testing import CliRunner, Result

from holdmq import HoldMQ
from holdmq_bridge.__main__ import command
from tests.bridge.talk import Talk, Talk5
from tests.bridge.test_watching import readiness
from tests.support import BridgeProcess, Port, Server, embedded_kinds, eventually
from tests.support.pages import blocks

server_kinds = embedded_kinds
Connect = Callable[..., Talk]
MakeBridge = Callable[..., BridgeProcess]
USE_ANOTHER_SERVER, SERVER_MOVED = 0x9C, 0x9D
SERVER_REFERENCE = 0x1C
REPORTS = ["--report-interval-s", "0.2", "--sys-interval-s", "0"]
EXPIRY = b"\x11\x00\x00\x00\x3c"
WAIT_S = 30.0


@pytest.fixture
def hold(client: redis.Redis) -> HoldMQ:
    return HoldMQ(client)


def drain(server: Server, *words: str) -> Result:
    """Runs `holdmq-bridge drain`."""
    return CliRunner().invoke(command, ["drain", "--redis", server.url, *words])


def status_of(made: BridgeProcess) -> int | None:
    """The exit status of a bridge that ends by itself."""
    eventually(lambda: not made.running, WAIT_S, "the end of the bridge")
    return made.returncode


def connects(port: int) -> bool:
    """Whether the bridge accepts a connection."""
    try:
        socket.create_connection(("127.0.0.1", port), WAIT_S).close()
    except OSError:
        return False
    return True


def test_clients_are_ended_at_a_rate_and_the_bridge_exits(
    server: Server, bridge: MakeBridge, dial: Connect, port: Port, hold: HoldMQ
) -> None:
    made = bridge(server, arguments=["--metrics-port", str(port.number), "--drain-rate", "40", *REPORTS])
    old = [dial(made.port, f"old{number}", clean=False) for number in range(20)]
    new = [Talk5.open(made.port, f"new{number}", clean=False, properties=EXPIRY) for number in range(20)]
    new[0].granted(("t", 1))
    begun = time.monotonic()
    os.kill(made.pid, signal.SIGUSR1)
    eventually(lambda: not connects(made.port), WAIT_S, "a closed port")
    status, state = readiness(port)
    assert (status, state["reason"]) == (503, "the bridge is draining")
    eventually(lambda: [one.draining for one in hold.bridges()] == [True], WAIT_S, "a report")
    for talk in new:
        assert talk.expect_end(USE_ANOTHER_SERVER).properties.get(SERVER_REFERENCE) is None
        talk.close()
    for gone in old:
        gone.expect_closed(WAIT_S)
    assert time.monotonic() - begun >= 39 / 40
    assert status_of(made) == 0
    assert hold.bridges() == []
    assert not hold.session("new0").info().connected
    assert hold.topics.publish("t", b"x", qos=1) == 1  # the session stays
    assert made.log_text().count("draining: no connections are accepted") == 1


def test_where_to_go_is_reported_as_the_settings_say(server: Server, bridge: MakeBridge) -> None:
    told = ["--drain-reason", "server-moved", "--drain-server-reference", "b.example.com:1883"]
    made = bridge(server, arguments=told)
    at_most_16_bytes = b"\x27\x00\x00\x00\x10"
    with Talk5.open(made.port, "a") as client, Talk5.open(made.port, "b", properties=at_most_16_bytes) as small:
        os.kill(made.pid, signal.SIGUSR1)
        assert client.expect_end(SERVER_MOVED).properties[SERVER_REFERENCE] == b"b.example.com:1883"
        assert small.expect_end(SERVER_MOVED).properties == {}
    assert status_of(made) == 0


def test_the_command_drains_bridges_by_name_and_waits(
    server: Server, bridge: MakeBridge, dial: Connect, hold: HoldMQ
) -> None:
    leaving, staying = bridge(server, arguments=REPORTS), bridge(server, arguments=REPORTS)
    eventually(lambda: len(hold.bridges()) == 2, WAIT_S, "reports")
    name = next(one.name for one in hold.bridges() if one.pid == leaving.pid)
    client = dial(leaving.port, "c")
    wrong = drain(server, "nobody")
    assert wrong.exit_code == 2
    assert f"no bridge has the name 'nobody'; expected a glob that matches one of: {name}" in wrong.output.replace(
        next(one.name for one in hold.bridges() if one.pid == staying.pid) + ", ", ""
    )
    done = drain(server, name)
    assert (done.exit_code, done.output) == (0, f"{name}: draining, 1 clients\n{name}: drained\n")
    client.expect_closed()
    assert status_of(leaving) == 0
    dial(staying.port, "c").publish("t", b"x")


def test_the_commands_of_the_page(server: Server, bridge: MakeBridge, hold: HoldMQ) -> None:
    made = bridge(server, arguments=REPORTS)
    eventually(hold.bridges, WAIT_S, "a report")
    (block,) = blocks("docs/operations.md", "sh drain")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "HOLDMQ_URL": server.url, "HOLDMQ_BRIDGE_REDIS": server.url}
    text = block.text.replace("host-a", socket.gethostname())
    subprocess.run(["bash", "-ec", text], env=environment, check=True, timeout=WAIT_S)  # noqa: S607
    assert status_of(made) == 0


def test_a_bridge_that_is_slow_to_drain_is_named(
    server: Server, bridge: MakeBridge, dial: Connect, hold: HoldMQ
) -> None:
    made = bridge(server, arguments=[*REPORTS, "--drain-rate", "1"])
    eventually(hold.bridges, WAIT_S, "a report")
    clients = [dial(made.port, f"c{number}") for number in range(30)]
    (name,) = [one.name for one in hold.bridges()]
    done = drain(server, name, "--timeout", "0.1")
    assert done.exit_code == 1
    assert f"not drained within 0.1 s: {name}" in done.output
    assert made.stop() == 0  # a drain does not delay the end
    for client in clients:
        client.close()


def test_all_workers_are_drained_by_a_signal_to_the_first_process(
    server: Server, bridge: MakeBridge, dial: Connect
) -> None:
    made = bridge(server, arguments=["--workers", "2"])
    clients = [dial(made.port, f"c{number}") for number in range(8)]
    os.kill(made.pid, signal.SIGUSR1)
    for client in clients:
        client.expect_closed(WAIT_S)
    assert status_of(made) == 0
    assert made.log_text().count("worker drained") == 2
    assert made.log_text().count("worker started") == 2


def test_a_worker_that_was_drained_is_not_started_again(
    server: Server, bridge: MakeBridge, dial: Connect, hold: HoldMQ
) -> None:
    made = bridge(server, arguments=["--workers", "2", *REPORTS])
    eventually(lambda: len(hold.bridges()) == 2, WAIT_S, "reports of both")
    first, second = (one.name for one in hold.bridges())
    assert drain(server, first).exit_code == 0
    dial(made.port, "c").publish("t", b"x")
    assert [one.name for one in hold.bridges()] == [second]
    assert made.log_text().count("worker started") == 2
    assert drain(server, second).exit_code == 0
    assert status_of(made) == 0


class Wanderer(threading.Thread):
    """A client of MQTT 5.0 that goes to the other bridge when one ends its connection."""

    def __init__(self, name: str, ports: list[int], work: Callable[[Talk5], bool]) -> None:
        super().__init__()
        self._id, self._ports, self._work = name, ports, work
        self.moves = -1
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while True:
                self.moves += 1
                with (
                    contextlib.suppress(AssertionError, OSError),
                    Talk5.open(
                        self._ports[self.moves % len(self._ports)], self._id, clean=False, properties=EXPIRY
                    ) as talk,
                ):
                    while not self._work(talk):
                        pass
                    return
                assert self.moves < 100, "the client finds no bridge"
        except BaseException as error:
            self.error = error
            raise


def test_a_rolling_restart_loses_nothing(server: Server, bridge: MakeBridge) -> None:
    first, second = bridge(server, arguments=REPORTS), bridge(server, arguments=REPORTS)
    ports = [first.port, second.port]
    acknowledged: list[int] = []
    received: list[int] = []
    last = 400

    def publish(talk: Talk5) -> bool:
        number = len(acknowledged) + 1
        assert talk.told("t", str(number).encode(), pid=number) in (0, 0x10)
        acknowledged.append(number)
        time.sleep(0.005)
        return number == last

    def receive(talk: Talk5) -> bool:
        received.append(int(talk.message().payload))
        return received[-1] == last

    with Talk5.open(first.port, "r", clean=False, properties=EXPIRY) as talk:
        talk.granted(("t", 1))
    clients = [Wanderer("r", ports, receive), Wanderer("p", ports, publish)]
    for client in clients:
        client.start()
    eventually(lambda: len(acknowledged) > 50, WAIT_S, "traffic")
    for old in (first, second):
        os.kill(old.pid, signal.SIGUSR1)
        assert status_of(old) == 0
        old.start()
        enough = min(len(acknowledged) + 50, last - 1)
        eventually(lambda enough=enough: len(acknowledged) > enough, WAIT_S, "traffic")  # type: ignore[misc]
    for client in clients:
        client.join(WAIT_S)
    assert [client.error for client in clients] == [None, None]
    assert not any(client.is_alive() for client in clients)
    assert all(client.moves >= 1 for client in clients)
    assert list(dict.fromkeys(received)) == list(range(1, last + 1))
