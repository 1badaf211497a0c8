"""The set-up of docs/cluster.md and its commands, with the addresses of this machine, under traffic: nothing is lost.

The nodes have the page's lines, its commands make the cluster, move slots and replace a primary, and a bridge is
started as the page says.
"""

import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from holdmq.server import ChildProcess
from tests.bridge.test_cluster_bridge import Device, Talker
from tests.support import Port, Server, embedded_kinds, eventually, reserve_port
from tests.support.pages import REPOSITORY, blocks

server_kinds = embedded_kinds

PAGE = "docs/cluster.md"
NODES = 7  # of which six make the cluster
MOVED = 128  # slots that the new node gets, in place of 4096
SETTLED_S = 60.0
COMMAND_S = 120.0


@pytest.fixture
def nodes(fresh_server: Callable[..., Server]) -> list[Server]:
    """Servers with the lines of the page; one more than the cluster has at first."""
    [block] = blocks(PAGE, "conf node")
    lines = [line for line in block.text.splitlines() if line not in ("cluster-enabled yes", "appendonly yes")]
    assert len(lines) == len(block.text.splitlines()) - 2
    return [fresh_server(cluster=True, aof=True, config=lines) for _ in range(NODES)]


def here(nodes: list[Server], text: str) -> str:
    """A command of the page with the addresses of this machine."""
    for number, node in enumerate(nodes, 1):
        text = text.replace(f"-h 10.0.0.{number} -p 6379", f"-h 127.0.0.1 -p {node.port}")
        text = text.replace(f"10.0.0.{number}:6379", f"127.0.0.1:{node.port}")
    assert "10.0.0." not in text
    text = text.replace("--cluster-slots 4096", f"--cluster-slots {MOVED}")  # each takes a dozen commands
    return text.replace("python3 ", f"{sys.executable} ")


def run(nodes: list[Server], kind: str) -> str:
    """What the commands of a block print."""
    [block] = blocks(PAGE, kind)
    script = here(nodes, block.text)
    done = subprocess.run(
        ["/bin/bash", "-euo", "pipefail", "-c", script],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=COMMAND_S,
        check=False,
    )
    assert done.returncode == 0, f"{script}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout


def serve(nodes: list[Server], port: Port, folder: Path) -> ChildProcess:
    """Starts a bridge as the page does."""
    [block] = blocks(PAGE, "sh bridge")
    program, *words = shlex.split(here(nodes, block.text))
    assert program == "holdmq-bridge"
    bridge = ChildProcess(
        [sys.executable, "-m", "holdmq_bridge", *words, "--port", str(port.number)],
        log=folder / "bridge.log",
        environment={"PYTHONUNBUFFERED": "1"},
    )
    bridge.spawn()
    eventually(lambda: '"listening"' in bridge.log_text(since_start=True), SETTLED_S, "a bridge that listens")
    return bridge


def slots_of(node: Server) -> int:
    """How many slots a node has, as it says."""
    lines = node.client().execute_command("CLUSTER", "NODES").decode().splitlines()
    own = next(line for line in lines if "myself" in line)
    ranges = [one.split("-") for one in own.split()[8:] if not one.startswith("[")]
    return sum(int(one[-1]) - int(one[0]) + 1 for one in ranges)


def is_primary(node: Server) -> bool:
    return bool(node.client().execute_command("ROLE")[0] == b"master")


@pytest.mark.timeout(400)
def test_the_commands_of_the_page_change_a_cluster_under_traffic(nodes: list[Server], tmp_path: Path) -> None:
    assert run(nodes, "sh create") == "the cluster is made\n"
    assert run(nodes, "sh create") == "the cluster is there already\n"
    assert [slots_of(node) for node in nodes[:3]] == [5461, 5461, 5462]
    assert [is_primary(node) for node in nodes[:6]] == [True] * 3 + [False] * 3
    with reserve_port() as port:
        bridge = serve(nodes, port, tmp_path)
        devices: list[Device] = []
        try:
            devices += [Device(port.number, f"device-{number}", clean=False) for number in range(8)]
            for number, device in enumerate(devices):
                assert device.subscribe(f"t/{number}") == [1]
            talkers = [Talker(device, f"t/{(number + 1) % 8}") for number, device in enumerate(devices)]
            assert "All 16384 slots covered" in run(nodes, "sh look")

            def go_on() -> None:
                for talker in talkers:
                    talker.until(10)

            go_on()
            run(nodes, "sh add")
            eventually(lambda: slots_of(nodes[6]) > MOVED * 0.9, SETTLED_S, "slots of the new node")
            go_on()
            run(nodes, "sh remove")
            assert slots_of(nodes[0]) > 5000
            go_on()
            eventually(lambda: run(nodes, "sh failover") == "OK\n", SETTLED_S, "a failover that is begun")
            eventually(lambda: is_primary(nodes[3]), SETTLED_S, "another primary")
            go_on()
            for number, talker in enumerate(talkers):
                sent, heard = talker.end(), devices[(number + 1) % 8].received
                eventually(lambda sent=sent, heard=heard: len(heard) >= len(sent), SETTLED_S, "all messages")  # type: ignore[misc]
                assert list(dict.fromkeys(heard)) == sent
            assert bridge.stop() == 0
        finally:
            for device in devices:
                device.close()
            if bridge.running:
                bridge.kill()
