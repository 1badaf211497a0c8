# Generated from tests/client/_async/test_routes.py by tools/generate_sync.py; change that file.
"""A publish in a cluster whose nodes know each other's routes visits the nodes that have subscribers, and no others."""

from collections.abc import Callable, Iterator
from itertools import islice

import pytest
from redis.cluster import ClusterNode, RedisCluster

from holdmq import HoldMQ, HoldMQError, MovingError
from holdmq.core import slot_of
from tests.client.support import message_of
from tests.module.cluster.routes_support import Node, Nodes, session_of
from tests.module.cluster_support import SlotMove
from tests.support import Cluster

TOPIC = "plant/7"
WORD = "of a publisher"


@pytest.fixture
def nodes(cluster: Cluster) -> Nodes:
    """Three empty nodes that know each other's routes."""
    found = Nodes(cluster)
    for node in found.all:
        node.renew()
    for node in found.all:
        node.learn(found.all)
    return found


@pytest.fixture
def own(fresh_cluster: Callable[..., Cluster]) -> Nodes:
    """The same of a test's own."""
    found = Nodes(fresh_cluster(3))
    for node in found.all:
        node.learn(found.all)
    return found


@pytest.fixture
def hold(nodes: Nodes, connect_cluster: Callable[..., HoldMQ]) -> HoldMQ:
    """A client of the cluster."""
    return connect_cluster(nodes.cluster)


def session_on(nodes: Nodes, node: Node) -> str:
    """The id of a client whose session is on a node."""
    return next(iter(nodes.clients(node)))


def visits(nodes: Nodes) -> list[tuple[int, int]]:
    """How many publishes and checks each node has had."""
    found = []
    for node in nodes.all:
        stats = {name.lower(): stat for name, stat in node.client.info("commandstats").items()}
        names = ("cmdstat_topic.publish", "cmdstat_route.check")
        found.append(tuple(stats.get(name, {"calls": 0})["calls"] for name in names))
    return found


def forget_visits(nodes: Nodes) -> None:
    """Begin counting."""
    for node in nodes.all:
        node.client.config_resetstat()


def payloads(hold: HoldMQ, client_id: str) -> list[bytes]:
    """What is in the queue of a session."""
    return [message_of(entry).payload for entry in (hold.session(client_id).fetch()).entries]


def test_a_publish_visits_the_node_of_its_topic_and_the_one_of_its_session(nodes: Nodes, hold: HoldMQ) -> None:
    home = nodes.of(TOPIC)
    target = next(node for node in nodes.all if node is not home)
    client_id = session_on(nodes, target)
    assert hold.session(client_id).subscribe("plant/+") == (True,)
    forget_visits(nodes)
    for number in range(10):
        assert hold.topics.publish(TOPIC, b"%d" % number, qos=1) == 1
    expected = {id(home): (0, 10), id(target): (10, 0)}
    assert visits(nodes) == [expected.get(id(node), (0, 0)) for node in nodes.all]
    assert payloads(hold, client_id) == [b"%d" % number for number in range(10)]


def test_a_retained_message_is_kept_at_the_node_of_its_topic(nodes: Nodes, hold: HoldMQ) -> None:
    home = nodes.of(TOPIC)
    others = [node for node in nodes.all if node is not home]
    client_id = session_on(nodes, others[0])
    hold.session(client_id).subscribe("plant/+")
    forget_visits(nodes)
    assert hold.topics.publish(TOPIC, b"on", qos=1, retain=True) == 1
    expected = {id(home): (1, 1), id(others[0]): (1, 0)}
    assert visits(nodes) == [expected.get(id(node), (0, 0)) for node in nodes.all]
    kept = hold.topics.retained_message(TOPIC)
    assert kept is not None
    assert kept.payload == b"on"
    assert payloads(hold, client_id) == [b"on"]


def test_a_publish_after_a_subscription_of_another_client_reaches_it(
    nodes: Nodes, hold: HoldMQ, connect_cluster: Callable[..., HoldMQ]
) -> None:
    assert hold.topics.publish(TOPIC, b"nobody", qos=1) == 0
    other = connect_cluster(nodes.cluster)
    names = [session_on(nodes, node) for node in nodes.all]
    for count, name in enumerate(names, 1):
        other.session(name).subscribe("#", f"$share/g{count}/unused")
        assert hold.topics.publish(TOPIC, name.encode(), qos=1) == count
    assert [payloads(hold, name) for name in names] == [[one.encode() for one in names[at:]] for at in range(3)]


def test_a_store_that_is_made_is_found_by_publishers(
    nodes: Nodes, hold: HoldMQ, connect_cluster: Callable[..., HoldMQ]
) -> None:
    assert hold.topics.publish(TOPIC, b"before") == 0
    other = connect_cluster(nodes.cluster)
    other.history.create("kept", "plant/#", shards=3)
    hold.topics.publish(TOPIC, b"after")
    for node in nodes.all:  # and as the nodes say themselves
        node.renew()
        node.learn(nodes.all)
    hold.topics.publish(TOPIC, b"later")
    found = [message.payload for message in hold.history.start_replay("plant/#")]
    assert found == [b"after", b"later"]
    other.history.store("kept").drop()


def test_a_publish_visits_all_nodes_if_none_knows_the_routes(nodes: Nodes, hold: HoldMQ) -> None:
    names = [session_on(nodes, node) for node in nodes.all]
    for name in names:
        hold.session(name).subscribe("plant/+")
    assert hold.topics.publish(TOPIC, b"known", qos=1) == 3
    for node in nodes.all:
        node.renew()
    assert hold.topics.publish(TOPIC, b"unknown", qos=1) == 3
    for name in names:
        assert payloads(hold, name) == [b"known", b"unknown"]


def test_an_answer_that_a_target_does_not_accept_is_not_trusted(nodes: Nodes, hold: HoldMQ) -> None:
    home = nodes.of(TOPIC)
    target = next(node for node in nodes.all if node is not home)
    client_id = session_on(nodes, target)
    hold.session(client_id).subscribe("plant/+")
    assert hold.topics.publish(TOPIC, b"1", qos=1) == 1
    home.renew()
    target.page(home.id, home.info().generation)  # which refuses the generation before
    target.subscribe(next(islice(nodes.clients(target), 1, None)), "plant/+")
    assert hold.topics.publish(TOPIC, b"2", qos=1) == 2
    assert payloads(hold, client_id) == [b"1", b"2"]


def test_a_user_who_may_not_ask_for_routes_publishes_to_all_nodes(
    nodes: Nodes, hold: HoldMQ, publisher: HoldMQ
) -> None:
    for node in nodes.all:
        hold.session(session_on(nodes, node)).subscribe("plant/+")
    assert publisher.topics.publish(TOPIC, b"1", qos=1) == 3


@pytest.fixture
def publisher(nodes: Nodes) -> Iterator[HoldMQ]:
    """A client whose user may publish, and nothing else of the module."""
    rules = ["on", ">" + WORD, "&*", "-@all", "+@connection", "+cluster", "+topic.publish"]
    for node in nodes.all:
        node.client.execute_command("ACL", "SETUSER", "publisher", *rules)
    startup = [ClusterNode("127.0.0.1", node.server.port) for node in nodes.all]
    client = RedisCluster(startup_nodes=startup, username="publisher", password=WORD)
    yield HoldMQ(client)
    client.close()
    for node in nodes.all:
        node.client.execute_command("ACL", "DELUSER", "publisher")


def test_a_slot_that_moves_key_by_key_is_served_before_or_after(
    own: Nodes, connect_cluster: Callable[..., HoldMQ]
) -> None:
    hold = connect_cluster(own.cluster, moving_timeout=0.3)
    home = own.of(TOPIC)
    source = next(node for node in own.all if node is not home)
    target = next(node for node in own.all if node not in (home, source))
    client_id, bystander = session_on(own, source), session_on(own, home)
    for name in (client_id, bystander):
        hold.session(name).subscribe("plant/+")
    assert hold.topics.publish(TOPIC, b"before", qos=1) == 2
    move = SlotMove(own.cluster, source.server, target.server, slot_of(session_of(client_id)))
    move.begin()
    for key in move.keys(100):
        move.move(key)
        with pytest.raises(MovingError, match=rf"not served for the slots {move.slot}-{move.slot}: "):
            hold.topics.publish(TOPIC, b"during", qos=1)
    move.end()
    for text in (b"after", b"later"):  # the second one on connections that refused the slot
        assert hold.topics.publish(TOPIC, text, qos=1) == 2
    assert payloads(hold, client_id) == [b"before", b"after", b"later"]
    assert (payloads(hold, bystander))[-2:] == [b"after", b"later"]
    forget_visits(own)
    assert hold.topics.publish(TOPIC, b"last", qos=1) == 2
    expected = {id(home): (1, 1), id(target): (1, 0)}
    assert visits(own) == [expected.get(id(node), (0, 0)) for node in own.all]


def test_a_subscription_that_a_node_cannot_hear_of_is_refused_and_removed(
    own: Nodes, connect_cluster: Callable[..., HoldMQ]
) -> None:
    for node in own.all:
        node.client.config_set("cluster-require-full-coverage", "no")
    hold = connect_cluster(own.cluster, moving_timeout=0.5)
    session = hold.session(session_on(own, own.all[0]))
    assert session.subscribe("kept") == (True,)
    own.all[2].server.kill()
    with pytest.raises(HoldMQError, match="was not told"):
        session.subscribe("kept", "new")
    assert (session.subscriptions()).keys() == {"kept"}
    assert hold.topics.publish("kept", b"on", qos=1) == 1  # whatever the lost node has
