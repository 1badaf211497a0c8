"""The set-ups that `bench.cluster` compares, each started anew: one server, or a cluster, with one bridge process.

Nodes have the slots in equal parts, no replicas, and the same directives as the server by itself.  No append-only file
is rewritten meanwhile: the one of a server by itself would be the first to grow so far.
"""

import contextlib
import itertools
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis

from bench.mqtt_brokers import HOST, BrokerError, Running, children, fresh_folder, on_free_port, start_server, started
from holdmq.server import ChildProcess, ServerProcess, next_free_port

SLOTS = 16384
FIRST_BUS_PORT = 17900
WHOLE_TIMEOUT_S = 30.0
POLL_S = 0.05
NO_REWRITES = "auto-aof-rewrite-percentage 0"


@dataclass(frozen=True)
class Setup:
    """What is measured.

    Attributes:
        name: in the table.
        nodes: of the cluster; 0: one server, which is no cluster.
    """

    name: str
    nodes: int


def all_setups(node_counts: Sequence[int]) -> list[Setup]:
    """One server, the baseline, then clusters of so many nodes."""
    named = [Setup(f"cluster of {count}", count) for count in node_counts]
    return [Setup("one server", 0), *named]


@contextlib.contextmanager
def running(setup: Setup) -> Iterator[Running]:
    """The nodes and the bridge, until the context ends; `Running.processes` has all nodes as one part.

    Raises:
        BrokerError: something does not start.
    """
    with fresh_folder() as folder, contextlib.ExitStack() as stack:
        servers = []
        for number in range(max(1, setup.nodes)):
            server = _start_node(folder / f"node-{number}", is_cluster=setup.nodes > 0)
            stack.callback(server.kill)
            servers.append(server)
        if setup.nodes > 0:
            _join([server.port for server in servers])
        first = servers[0].port
        bridge, port = on_free_port(lambda port: _start_bridge(folder, port, first))
        stack.callback(bridge.stop)
        parts = {"bridge": [bridge.pid, *children(bridge.pid)], "servers": [server.pid for server in servers]}
        yield Running(port, parts, server_port=first)


def _start_node(folder: Path, *, is_cluster: bool) -> ServerProcess:
    folder.mkdir()

    def start(port: int) -> ServerProcess:
        more = [NO_REWRITES]
        if is_cluster:
            bus = next_free_port(HOST, FIRST_BUS_PORT)
            more += ["cluster-enabled yes", "cluster-config-file nodes.conf", f"cluster-port {bus}"]
        return start_server(folder, port, more)

    return on_free_port(start)


def _join(ports: Sequence[int]) -> None:
    for number, port in enumerate(ports):
        with _client(port) as client:
            first, end = number * SLOTS // len(ports), (number + 1) * SLOTS // len(ports)
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", first, end - 1)
            client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            if number > 0:
                bus = int(client.config_get("cluster-port")["cluster-port"])
                with _client(ports[0]) as other:
                    other.execute_command("CLUSTER", "MEET", HOST, port, bus)
    deadline = time.monotonic() + WHOLE_TIMEOUT_S
    while not all(_is_whole(port, len(ports)) for port in ports):
        if time.monotonic() > deadline:
            raise BrokerError(f"no whole cluster of {len(ports)} nodes after {WHOLE_TIMEOUT_S:g} s")
        time.sleep(POLL_S)


def _is_whole(port: int, nodes: int) -> bool:
    with _client(port) as client:
        state: Any = client.cluster("INFO")
        return bool(state["cluster_state"] == "ok" and int(state["cluster_size"]) == nodes)


def _client(port: int) -> redis.Redis:
    return redis.Redis(host=HOST, port=port, decode_responses=True)


def _start_bridge(folder: Path, port: int, server_port: int) -> tuple[ChildProcess, int]:
    options = {
        "host": HOST,
        "port": port,
        "redis": f"redis://{HOST}:{server_port}/0",
        "log-level": "WARNING",
        "connection-rate": 0,
        "workers": 1,
    }
    command = [sys.executable, "-m", "holdmq_bridge"]
    command += map(str, itertools.chain.from_iterable((f"--{name}", value) for name, value in options.items()))
    return started(ChildProcess(command, log=folder / "bridge.log"), port), port
