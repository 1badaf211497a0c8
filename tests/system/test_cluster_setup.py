"""What makes a cluster of servers that run: it completes what is missing, and changes nothing else."""

import subprocess
import sys
from collections.abc import Callable

import pytest

from holdmq_bridge import cluster_setup
from tests.module.cluster_support import add_replica, node_id
from tests.support import Cluster, Server, embedded_kinds, eventually
from tests.support.ports import CLUSTER_BUS_OFFSET
from tests.support.server import SLOTS

server_kinds = embedded_kinds
WAIT_S = 60.0
QUICK = ["cluster-node-timeout 2000"]
Fresh = Callable[..., Server]


def addresses(servers: list[Server]) -> list[str]:
    return [f"127.0.0.1:{server.port}" for server in servers]


def roles(servers: list[Server]) -> list[str]:
    return [server.client(decode_responses=True).execute_command("ROLE")[0] for server in servers]


def nodes_as(server: Server) -> list[str]:
    """What a node knows of all nodes, without what changes by itself."""
    lines = server.client(decode_responses=True).execute_command("CLUSTER", "NODES").splitlines()
    words = [line.split() for line in lines]
    return sorted(" ".join([one[0], one[1], one[2].replace("myself,", ""), one[3], *one[8:]]) for one in words)


def refusal(*words: str) -> str:
    """What the program says when it refuses."""
    command = [sys.executable, "-m", "holdmq_bridge.cluster_setup", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode == 1, done.stdout
    return done.stderr


@pytest.fixture
def six(fresh_server: Fresh) -> list[Server]:
    return [fresh_server(cluster=True, config=QUICK) for _ in range(6)]


def test_it_makes_a_cluster_once(six: list[Server]) -> None:
    assert cluster_setup.make(addresses(six))
    assert roles(six) == ["master"] * 3 + ["slave"] * 3
    before = nodes_as(six[0])
    assert not cluster_setup.make(addresses(six))
    assert nodes_as(six[0]) == before


def test_it_completes_what_was_interrupted(six: list[Server]) -> None:
    six[0].client().execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 100)
    six[1].client().execute_command("CLUSTER", "MEET", "127.0.0.1", six[0].port, six[0].port + CLUSTER_BUS_OFFSET)
    eventually(lambda: len(nodes_as(six[0])) == 2, WAIT_S, "two nodes that know each other")
    assert cluster_setup.make(addresses(six))
    assert roles(six) == ["master"] * 3 + ["slave"] * 3


def test_it_leaves_a_cluster_alone_in_which_a_replica_was_promoted(six: list[Server]) -> None:
    cluster_setup.make(addresses(six))
    six[3].client().execute_command("CLUSTER", "FAILOVER")
    promoted = ["slave", "master", "master", "master", "slave", "slave"]
    eventually(lambda: roles(six) == promoted, WAIT_S, "a promoted replica")
    eventually(lambda: not cluster_setup.make(addresses(six)), WAIT_S, "a cluster that is there")
    assert roles(six) == promoted


def test_clusters_are_not_merged(fresh_cluster: Callable[..., Cluster]) -> None:
    one, other = fresh_cluster(3), fresh_cluster(3)
    before = [nodes_as(cluster.nodes[0]) for cluster in (one, other)]
    words = addresses([*one.nodes, *other.nodes])
    assert "belong to different clusters: expected new servers" in refusal(*words)
    assert [nodes_as(cluster.nodes[0]) for cluster in (one, other)] == before


def test_an_existing_cluster_gets_the_replicas_that_it_lacks(
    fresh_cluster: Callable[..., Cluster], fresh_server: Fresh
) -> None:
    cluster = fresh_cluster(3)
    first = add_replica(cluster, cluster.nodes[0], fresh_server(cluster=True))
    others = [first, *(fresh_server(cluster=True) for _ in range(2))]
    assert cluster_setup.make(addresses([*cluster.nodes[:3], *others]))
    assert roles(others) == ["slave"] * 3
    assert sum(line.count("slave") for line in nodes_as(cluster.nodes[0])) == 3
    assert node_id(cluster.nodes[0]) in " ".join(nodes_as(others[2]))


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([], "0 addresses: expected HOST:PORT of 3 or more primaries"),
        (["a:1", "b:1", "c:1", "d:1", "e:1"], "5 addresses: expected"),
        (["a:1", "b:1", "c:1", "d:1", "e:1", "f"], "'f' is no address: expected"),
    ],
)
def test_wrong_addresses_are_refused(words: list[str], reason: str) -> None:
    assert reason in refusal(*words)


def test_a_server_without_a_cluster_is_named(fresh_server: Fresh) -> None:
    server = fresh_server()
    words = addresses([server]) * 6
    assert f"127.0.0.1:{server.port} is no node of a cluster" in refusal(*words)
    assert SLOTS == cluster_setup.SLOTS
