"""A bridge over a cluster as it is found: with users, TLS, announced addresses, or not whole."""

import asyncio
import contextlib
import threading
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from tests.bridge import packets
from tests.bridge.packets import Will
from tests.bridge.talk import Talk
from tests.bridge.test_cluster_command_line import crosses_nodes, lines
from tests.bridge.test_cluster_watch import forwarding
from tests.bridge.test_node_links import ids_on
from tests.support import BridgeProcess, Cluster, Server, ServerKind, eventually
from tests.support.pages import blocks
from tests.support.ports import CLUSTER_BUS_OFFSET, reserve_port

WAIT_S = 60.0
SLOTS = 16384
NO_OUTBOX = "a node of the cluster has no outbox: its wills and presence messages reach its own sessions only"
Fresh = Callable[..., Cluster]
BridgeTo = Callable[..., BridgeProcess]


@contextlib.contextmanager
def forwarded(ports: Mapping[int, Callable[[], int]]) -> Iterator[None]:
    """Forwards connections from ports to those that the functions return then, in a thread."""
    ready, ended = threading.Event(), asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def forward() -> None:
        async with contextlib.AsyncExitStack() as stack:
            for port, target in ports.items():
                await stack.enter_async_context(forwarding(port, target))
            loops.append(asyncio.get_running_loop())
            ready.set()
            await ended.wait()

    thread = threading.Thread(target=lambda: asyncio.run(forward()), daemon=True)
    thread.start()
    assert ready.wait(WAIT_S)
    yield
    loops[0].call_soon_threadsafe(ended.set)
    thread.join(WAIT_S)
    assert not thread.is_alive()


def connected(port: int, client_id: bytes, *, will: Will | None = None) -> Talk:
    talk = Talk(port, timeout_s=WAIT_S)
    talk.send(packets.connect(client_id, will=will))
    talk.expect(packets.connack())
    return talk


def count(bridge: BridgeProcess, event: str) -> int:
    return len(lines(bridge, event))


# ---- users ---------------------------------------------------------------------------------------------------------


def test_a_bridge_with_the_documented_user_is_denied_nothing_in_a_cluster(
    fresh_cluster: Fresh, bridge_to: BridgeTo, server_kind: ServerKind
) -> None:
    cluster = fresh_cluster(2)
    found = [line.split() for block in blocks("docs/access.md", "redis") for line in block.text.splitlines()]
    [words] = [words for words in found if words[2] == "bridge-cluster"]
    if not server_kind.hands_off_exactly:  # the page says so
        words.remove("-@dangerous")
    for node in cluster.nodes:
        node.client().execute_command(*words)
    url = cluster.nodes[0].url.replace("redis://", f"redis://bridge-cluster:{words[4].removeprefix('>')}@")
    reserved = reserve_port()
    bridge = bridge_to(url, "--metrics-port", str(reserved.number), "--sys-interval-s", "1")
    crosses_nodes(cluster, bridge.port)
    (hearing,), (dying,) = ids_on(cluster)
    listener, sender = connected(bridge.port, hearing), connected(bridge.port, b"sender")
    with listener, sender:
        sender.send(packets.publish("t/retained", b"kept", qos=1, pid=1, retain=True))
        sender.expect(packets.puback(1))
        listener.send(packets.subscribe(1, ("t/#", 1), ("$share/g/s", 1)))
        listener.expect(packets.suback(1, 1, 1))
        assert listener.read_packet().endswith(b"kept")
        mortal = connected(bridge.port, dying, will=Will("t/will", b"gone", 1))
        with mortal:
            pass
        assert listener.read_packet().endswith(b"gone")
        sender.send(packets.publish("t/b", b"exactly once", qos=2, pid=31))
        sender.expect(packets.pubrec(31))
        sender.send(packets.pubrel(31))
        sender.expect(packets.pubcomp(31))
        listener.send(packets.unsubscribe(9, "$share/g/s"))
    page = f"http://127.0.0.1:{reserved.number}/metrics"

    def scraped() -> bool:
        with urllib.request.urlopen(page, timeout=10) as reply:
            return b"holdmq_server_filters" in reply.read()

    eventually(scraped, WAIT_S, "metrics of the nodes")
    reserved.release()
    denied = {
        str(entry["object"])
        for node in cluster.nodes
        for entry in node.client(decode_responses=True).acl_log()
        if entry["username"] == "bridge-cluster"
    }
    assert denied == set()
    assert not count(
        bridge, "a node of the cluster has no outbox: its wills and presence messages reach its own sessions only"
    )


def test_nodes_without_an_outbox_are_named(fresh_cluster: Fresh, bridge_to: BridgeTo) -> None:
    cluster = fresh_cluster(2)
    cluster.nodes[1].client().config_set("holdmq.outbox-bytes", 0)
    bridge = bridge_to(cluster.nodes[0].url)
    eventually(lambda: count(bridge, NO_OUTBOX) == 1, WAIT_S, "a line about the other node")
    assert lines(bridge, NO_OUTBOX)[0]["node"] == f"127.0.0.1:{cluster.nodes[1].port}"


# ---- addresses -----------------------------------------------------------------------------------------------------


def problems_over(bridge: BridgeProcess) -> list[object]:
    return [line["problem"] for line in lines(bridge, "a problem of the cluster is over")]


def port_of(node: Server) -> int:
    return node.port


def ports_known_to(node: Server) -> set[int]:
    return {row[2][1] for row in node.client().execute_command("CLUSTER", "SLOTS")}


def test_nodes_behind_address_translation_are_reached_at_the_ports_that_they_announce(
    fresh_cluster: Fresh, bridge_to: BridgeTo
) -> None:
    cluster = fresh_cluster(2)
    outside = [reserve_port() for _ in cluster.nodes]
    targets = {port.number: partial(port_of, node) for port, node in zip(outside, cluster.nodes, strict=True)}
    for port, node in zip(outside, cluster.nodes, strict=True):
        node.client().config_set("cluster-announce-port", port.number)
    announced = {port.number for port in outside}
    eventually(lambda: all(ports_known_to(node) == announced for node in cluster.nodes), WAIT_S, "announced ports")
    with forwarded(targets):
        bridge = bridge_to(f"redis://127.0.0.1:{outside[0].number}")
        crosses_nodes(cluster, bridge.port)
        used = {line["server"] for line in lines(bridge, "connected to the server")}
        assert used == {f"127.0.0.1:{port}/0" for port in announced}
        bridge.stop()
    for port in outside:
        port.release()


def test_two_clusters_behind_one_name_are_not_mixed(fresh_cluster: Fresh, bridge_to: BridgeTo) -> None:
    first, second = fresh_cluster(2), fresh_cluster(1)
    backend = [first.nodes[0].port]
    name = reserve_port()
    with forwarded({name.number: lambda: backend[0]}):
        bridge = bridge_to(f"redis://127.0.0.1:{name.number}")
        eventually(lambda: count(bridge, "connected to the server") == 2, WAIT_S, "links")
        backend[0] = second.nodes[0].port
        eventually(
            lambda: count(bridge, "another cluster answers: its reply is ignored") == 1, WAIT_S, "a line in the log"
        )
        crosses_nodes(first, bridge.port)
        assert second.nodes[0].client().dbsize() == 0
        bridge.stop()
    name.release()


# ---- clusters that are not whole -----------------------------------------------------------------------------------


def test_a_cluster_that_is_only_half_set_up_is_served_as_soon_as_it_is_complete(
    fresh_server: Callable[..., Server], bridge_to: BridgeTo
) -> None:
    nodes = [fresh_server(cluster=True) for _ in range(2)]
    bridge = bridge_to(nodes[0].url, "--connect-wait-s", "60")
    event = "slots of the cluster have no node"
    eventually(lambda: count(bridge, event) == 1, WAIT_S, "a line in the log")
    nodes[0].client().execute_command("CLUSTER", "ADDSLOTSRANGE", 0, SLOTS // 2 - 1)
    eventually(lambda: count(bridge, event) == 2, WAIT_S, "another line")
    assert [line["slots"] for line in lines(bridge, event)] == [f"0-{SLOTS - 1}", f"{SLOTS // 2}-{SLOTS - 1}"]
    assert count(bridge, "the cluster is down") == 1
    nodes[1].client().execute_command("CLUSTER", "ADDSLOTSRANGE", SLOTS // 2, SLOTS - 1)
    nodes[1].client().execute_command("CLUSTER", "SET-CONFIG-EPOCH", 2)
    nodes[1].client().execute_command("CLUSTER", "MEET", "127.0.0.1", nodes[0].port, nodes[0].port + CLUSTER_BUS_OFFSET)
    eventually(lambda: count(bridge, "connected to the server") == 2, WAIT_S, "links to both nodes")
    eventually(lambda: count(bridge, "a problem of the cluster is over") == 2, WAIT_S, "the end of both problems")
    crosses_nodes(Cluster(nodes), bridge.port)


def test_sessions_in_slots_without_a_node_wait_for_one(fresh_cluster: Fresh, bridge_to: BridgeTo) -> None:
    cluster = fresh_cluster(2)
    first, second = cluster.nodes  # the second one has users and rules
    for node in cluster.nodes:  # else a node serves nothing while slots lack a node
        node.client().config_set("cluster-require-full-coverage", "no")
    event = "slots of the cluster have no node"
    bridge = bridge_to(second.url, "--connect-wait-s", "60")
    (waiting,), (served,) = ids_on(cluster)
    with connected(bridge.port, served) as one, Talk(bridge.port, timeout_s=WAIT_S) as other:
        one.send(packets.subscribe(1, ("a", 1)))
        one.expect(packets.suback(1, 1))
        for node in cluster.nodes:
            node.client().execute_command("CLUSTER", "DELSLOTSRANGE", 0, SLOTS // 2 - 1)
        eventually(lambda: count(bridge, event) == 1, WAIT_S, "a line in the log")
        other.send(packets.connect(waiting))
        one.send(packets.publish("a", b"1", qos=1, pid=2))
        assert {one.read_packet()[0] & 0xF0 for _ in range(2)} == {0x30, 0x40}
        first.client().execute_command("CLUSTER", "ADDSLOTSRANGE", 0, SLOTS // 2 - 1)
        other.expect(packets.connack())
    assert count(bridge, event) == 1


def test_a_node_without_the_module_is_named_and_served_when_it_has_it(
    server_kind: ServerKind, tmp_path: Path, bridge_to: BridgeTo
) -> None:
    nodes = [Server(server_kind, tmp_path / f"n{at}", cluster=True, module=at == 1) for at in range(2)]
    cluster = Cluster(nodes)
    try:
        cluster.start()
        bridge = bridge_to(nodes[1].url, "--connect-wait-s", "60")
        event = "nodes of the cluster lack the module holdmq"
        eventually(lambda: count(bridge, event) == 1, WAIT_S, "a line in the log")
        assert lines(bridge, event)[0]["nodes"] == f"127.0.0.1:{nodes[0].port}"
        (waiting,), (served,) = ids_on(cluster)
        with connected(bridge.port, served), Talk(bridge.port, timeout_s=WAIT_S) as other:
            other.send(packets.connect(waiting))
            nodes[0].restart(module=True)
            other.expect(packets.connack())
        crosses_nodes(cluster, bridge.port)
        eventually(lambda: "no module" in problems_over(bridge), WAIT_S, "the end of the problem")
    finally:
        for node in nodes:
            node.close()
