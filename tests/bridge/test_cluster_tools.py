"""The commands of `holdmq-bridge` find what they need in a cluster by the URL of any node."""

import socket

from click.testing import CliRunner, Result

from holdmq import HoldMQ
from holdmq_bridge.__main__ import command
from tests.bridge import packets
from tests.bridge.talk import Talk
from tests.bridge.test_cluster_surroundings import BridgeTo, Fresh
from tests.support import Cluster, embedded_kinds, eventually

server_kinds = embedded_kinds  # what is tested is in the bridge

WAIT_S = 60.0
BAD_LOGIN = 4


def holdmq_bridge(*words: str, typed: str = "") -> Result:
    return CliRunner().invoke(command, words, input=typed, prog_name="holdmq-bridge")


def login(port: int, password: bytes) -> int:
    """The return code of a CONNECT."""
    with Talk(port, timeout_s=WAIT_S) as talk:
        talk.send(packets.connect("c", username="alice", password=password))
        return talk.read_packet()[3]


def test_users_are_edited_by_way_of_any_node(fresh_cluster: Fresh, bridge_to: BridgeTo) -> None:
    cluster: Cluster = fresh_cluster(2)
    bridge = bridge_to(cluster.nodes[0].url, "--allow-anonymous", "no")
    edits = [(("user", "add", "alice"), b"1st"), (("user", "passwd", "alice"), b"2nd")]
    for node, (edit, word) in zip(cluster.nodes, edits, strict=True):
        edited = holdmq_bridge("auth", "--redis", node.url, *edit, typed=f"{word.decode()}\n")
        assert edited.exit_code == 0, edited.output
        eventually(lambda word=word: login(bridge.port, word) == 0, WAIT_S, "a bridge that knows it")  # type: ignore[misc]
    assert login(bridge.port, b"1st") == BAD_LOGIN
    for node in cluster.nodes:
        assert "alice" in holdmq_bridge("auth", "--redis", node.url, "user", "list").stdout


def test_bridges_are_drained_by_way_of_any_node(fresh_cluster: Fresh, bridge_to: BridgeTo) -> None:
    cluster = fresh_cluster(2)
    for node in cluster.nodes:
        bridge = bridge_to(node.url, "--report-interval-s", "1")

        def reported() -> bool:
            with HoldMQ.from_url(node.url, cluster=True) as hold:  # noqa: B023 (used in this turn only)
                return [one.name for one in hold.bridges()] != []

        eventually(reported, WAIT_S, "a report")
        drained = holdmq_bridge("drain", "--redis", node.url, f"{socket.gethostname()}:*")
        assert drained.exit_code == 0, drained.output
        eventually(lambda one=bridge: not one.running, WAIT_S, "the end of the bridge")  # type: ignore[misc]
        assert bridge.returncode == 0
