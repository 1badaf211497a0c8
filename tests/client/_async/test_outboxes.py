"""Wills of a cluster: a program that drains the outboxes publishes them to the sessions of all nodes, once."""

from collections.abc import Callable

import pytest

from holdmq import AsyncHoldMQ, Will
from tests.client.support import message_of
from tests.module.cluster.routes_support import Nodes
from tests.support import Cluster

TOPIC = "state/7"
SHARE, SHARE_KEY = "$share/g/t", "{$share/g/t}"


@pytest.fixture
async def nodes(fresh_cluster: Callable[..., Cluster]) -> Nodes:
    """Three nodes with outboxes of wills."""
    found = Nodes(fresh_cluster(3))
    for node in found.all:
        node.client.config_set("holdmq.outbox-bytes", 65536)
        node.client.config_set("holdmq.presence", "no")
        node.client.execute_command("OUTBOX.READ")  # a reader
    return found


@pytest.fixture
def hold(nodes: Nodes, connect_cluster: Callable[..., AsyncHoldMQ]) -> AsyncHoldMQ:
    """A client of the cluster."""
    return connect_cluster(nodes.cluster)


async def test_a_will_reaches_the_sessions_of_all_nodes_once(nodes: Nodes, hold: AsyncHoldMQ) -> None:
    home = nodes.of(TOPIC)
    away = next(node for node in nodes.all if node is not home)  # there the will could not be retained
    names = [next(iter(nodes.clients(node))) for node in nodes.all]
    for name in names:
        await hold.session(name).subscribe("state/+")
    lost = hold.session([*zip(range(2), nodes.clients(away), strict=False)][1][1])
    for payload in (b"1", b"2"):
        await lost.open("reader", expiry=60, will=Will(TOPIC, payload, qos=1, retain=True))
        await lost.close(will=True)
    (key,) = away.client.keys("*_outbox")
    waiting = away.client.lrange(key, 0, -1)
    for name in names:
        assert (await hold.session(name).fetch()).entries == ()
    assert await hold.drain_outboxes() == 2
    away.client.rpush(key, *waiting)  # as on a node whose replica did not hear that they were removed
    assert await hold.drain_outboxes() == 2
    assert away.client.keys("*_outbox") == []
    for name in names:
        entries = (await hold.session(name).fetch()).entries
        assert [message_of(entry).payload for entry in entries] == [b"1", b"2"]
    kept = await hold.topics.retained_message(TOPIC)
    assert kept is not None
    assert kept.payload == b"2"
    assert home.client.keys("*_retained") != []


async def test_members_of_groups_end_with_the_session_of_their_client(nodes: Nodes, hold: AsyncHoldMQ) -> None:
    node = nodes.all[0]
    kept, gone = list(zip(nodes.clients(node), range(2), strict=False))
    member = next(node for node in nodes.all if node.server is nodes.cluster.node_of(SHARE_KEY)).client
    for name, _ in (kept, gone):
        (epoch, _present) = node.client.execute_command("SESSION.OPEN", f"{{{name}}}", "OWNER", "o", "EXPIRY", 60)
        node.client.execute_command("SESSION.SUBSCRIBE", f"{{{name}}}", SHARE, "1&3")
        claim = epoch + 1 if name == kept[0] else epoch  # the former: a later connection has it already
        member.execute_command("SESSION.OPEN", f"{name}:{SHARE_KEY}", "OWNER", "o", "EXPIRY", 60, "CLAIM", claim)
        node.client.execute_command("SESSION.DROP", f"{{{name}}}")
    assert await hold.drain_outboxes() == 2
    exists = [member.execute_command("SESSION.INFO", f"{name}:{SHARE_KEY}")[b"exists"] for name, _ in (kept, gone)]
    assert exists == [1, 0]
    assert node.client.keys("*_outbox") == []
