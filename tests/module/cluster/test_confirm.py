"""Which nodes have the routes of a subscription: ROUTES of SESSION.SUBSCRIBE, and ROUTE.CONFIRM."""

from collections.abc import Callable
from itertools import islice

import redis

from tests.module.cluster.routes_support import (
    WAIT_S,
    Failover,
    Node,
    Nodes,
    Subscribed,
    error_of,
    knows,
    session_of,
    slot_of,
    take,
)
from tests.module.cluster_support import SlotMove
from tests.support import Server, eventually
from tests.support.ports import CLUSTER_BUS_OFFSET as BUS

MARKS = 64  # generations that a node tells apart at a time


def confirm(node: Node, name: str, topic_filter: str, found: Subscribed, *homes: Node) -> None:
    """Say that these homes have the only route of a subscription."""
    generations = [(home.id, found.homes[home.id]) for home in homes]
    node.confirm(topic_filter, slot_of(name), found.serials[0], *generations)


def test_a_subscription_learns_who_must_hear_of_it(nodes: Nodes) -> None:
    node, first, second = nodes.all
    name = next(nodes.clients(node))
    before = node.info().homes
    found = node.subscribe_routes(name, "a/+", "$share/g/b")
    assert found.new == [1, 1]
    assert found.homes == before
    assert found.primaries == {one.id for one in nodes.all}
    assert found.confirmed == [set(), set()]
    first.learn([node])
    again = node.subscribe_routes(name, "a/+", "$share/g/b", "c")
    assert again.new == [0, 0, 1]
    assert again.homes[first.id] == first.info().generation
    assert again.serials[:2] == found.serials
    assert again.serials[2] > max(found.serials)
    assert second.id in again.primaries


def test_what_is_confirmed_need_not_be_told_again(known: Nodes) -> None:
    node, first, second = known.all
    name, other = islice(known.clients(node), 2)
    found = node.subscribe_routes(name, "a")
    confirm(node, name, "a", found, node, first)
    assert node.subscribe_routes(name, "a").confirmed == [{node.id, first.id}]
    same_slot = f"x{session_of(name)}"
    reply = node.client.execute_command("SESSION.SUBSCRIBE", same_slot, "ROUTES", "a", 1, "b", 1)
    places = [key.decode() for key in reply[1][::2]]
    assert {places[place] for place in reply[3][0][1:]} == {node.id, first.id}
    assert reply[3][1][1:] == []
    assert node.subscribe_routes(other, "a").confirmed == [set()]  # of another slot
    confirm(node, name, "a", found, second)
    confirm(node, name, "a", found, second)  # its reply was lost
    assert node.subscribe_routes(name, "a").confirmed == [{node.id, first.id, second.id}]


def test_a_route_starts_again_after_its_last_subscription(known: Nodes) -> None:
    node, first, _second = known.all
    name = next(known.clients(node))
    found = node.subscribe_routes(name, "a", "$share/g/a")
    confirm(node, name, "a", found, first)
    node.unsubscribe(name, "a")
    assert node.subscribe_routes(name, "$share/g/a").confirmed == [{first.id}]  # it was never without
    node.unsubscribe(name, "$share/g/a")
    again = node.subscribe_routes(name, "a")
    assert again.confirmed == [set()]
    assert again.serials[0] > found.serials[0]
    confirm(node, name, "a", found, first)  # late: of the subscription before
    assert node.subscribe_routes(name, "a").confirmed == [set()]
    confirm(node, name, "a", again, first)
    assert node.subscribe_routes(name, "a").confirmed == [{first.id}]
    node.client.delete(f"{session_of(name)}_subscriptions")  # by another program
    assert node.subscribe_routes(name, "a").confirmed == [set()]


def test_a_confirmation_counts_for_the_generation_that_is_noted(known: Nodes) -> None:
    node, first, _second = known.all
    name = next(known.clients(node))
    found = node.subscribe_routes(name, "a")
    slot, n = slot_of(name), found.homes[first.id]
    for other in ((first.id, n - 1), (first.id, n + 1), ("0" * 40, n)):
        node.confirm("a", slot, found.serials[0], other)
    node.confirm("a", slot, found.serials[0] + 1, (first.id, n))
    node.confirm("a", slot, found.serials[0] - 1, (first.id, n))
    node.confirm("b", slot, found.serials[0], (first.id, n))
    assert node.subscribe_routes(name, "a").confirmed == [set()]
    confirm(node, name, "a", found, first)
    first.renew()
    assert node.subscribe_routes(name, "a").confirmed == [{first.id}]  # nobody has told this node yet
    first.learn([node])
    again = node.subscribe_routes(name, "a")
    assert again.homes[first.id] > n
    assert again.confirmed == [set()]
    confirm(node, name, "a", found, first)  # late: of the generation before
    assert node.subscribe_routes(name, "a").confirmed == [set()]


def test_generations_without_end_take_no_confirmation_that_is_not_theirs(known: Nodes) -> None:
    node, first, second = known.all
    name = next(known.clients(node))
    found = node.subscribe_routes(name, "a")
    confirm(node, name, "a", found, second)
    last = found.homes[first.id]
    for number in range(1, 3 * MARKS):
        node.page(first.id, last + number)
        again = node.subscribe_routes(name, "a")
        assert again.homes[first.id] == last + number
        assert again.confirmed[0] <= {second.id}
        if number % 7 == 0:
            confirm(node, name, "a", again, first, second)
            assert node.subscribe_routes(name, "a").confirmed == [{first.id, second.id}]


def test_arguments_that_are_not_a_confirmation_change_nothing(known: Nodes) -> None:
    node, first, _second = known.all
    name = next(known.clients(node))
    found = node.subscribe_routes(name, "a")
    serial, n = found.serials[0], found.homes[first.id]
    good = ("a", slot_of(name), serial, first.id, n)
    for words, error in (
        (("a", 16384, serial, first.id, n), "slot is '16384'; expected a whole number from 0 to 16383"),
        (("a/#/b", 0, serial, first.id, n), "INVALIDTOPIC the topic filter 'a/#/b'"),
        (("$share/g/a", 0, serial, first.id, n), "that of a shared subscription"),
        (("a", 0, 0, first.id, n), "serial is '0'; expected a whole number from 1 to"),
        (("a", 0, serial, "x", n), "node is 'x'; expected the id of a node"),
        ((*good[:4], 0), "generation is '0'"),
        ((*good, first.id), "3 arguments remain; expected pairs of node and generation, at least one and at most 4096"),
        ((*good, "x", n), "node is 'x'"),
        ((*good[:3], *((first.id, n) * 4097)), "8194 arguments remain"),
    ):
        assert error in error_of(node.client, "ROUTE.CONFIRM", *words)
    assert "wrong number of arguments" in error_of(node.client, "ROUTE.CONFIRM", *good[:4])
    assert node.subscribe_routes(name, "a").confirmed == [set()]


def test_routes_is_an_option_only_before_pairs(nodes: Nodes) -> None:
    node = nodes.all[0]
    key = session_of(next(nodes.clients(node)))
    assert node.client.execute_command("SESSION.SUBSCRIBE", key, "ROUTES", 1) == [1]  # a filter of this name
    assert node.client.execute_command("SESSION.SUBSCRIBE", key, "ROUTES", "ROUTES", 1)[0] == [0]
    assert node.client.execute_command("SESSION.SUBSCRIBE", key, "EPOCH", 0, "routes", "a", 1)[0] == [1]
    pairs = [word for i in range(257) for word in (f"f/{i}", 1)]
    assert error_of(node.client, "SESSION.SUBSCRIBE", key, "ROUTES", *pairs) == (
        "257 pairs follow ROUTES; expected at most 256; subscribe to the others with another command"
    )
    assert error_of(node.client, "SESSION.SUBSCRIBE", key, "ROUTES").startswith("wrong number of arguments")
    assert error_of(node.client, "SESSION.SUBSCRIBE", key, "a", 1, "b").startswith("3 arguments follow")
    assert node.info().own == 2
    assert len(node.client.execute_command("SESSION.SUBSCRIBE", key, "ROUTES", *pairs[2:])[3]) == 256


def test_a_server_without_a_cluster_refuses_routes(client: redis.Redis) -> None:
    assert error_of(client, "SESSION.SUBSCRIBE", "{c}", "ROUTES", "a", 1) == (
        "ROUTES is accepted by nodes of a cluster only, and this server is not one; omit ROUTES"
    )
    assert client.execute_command("SESSION.SUBSCRIBE", "{c}", "ROUTES", 1) == [1]
    assert client.execute_command("SESSION.SUBSCRIPTIONS", "{c}") == {b"ROUTES": b"1"}


# --- Slots that move, nodes that take over ----------------------------------------------------------------------------


def test_a_slot_that_comes_back_has_no_confirmed_routes(moved: Nodes) -> None:
    node, other, to = moved.all
    name = next(moved.clients(node))
    for one in moved.all:
        one.learn(moved.all)
    found = node.subscribe_routes(name, "a")
    confirm(node, name, "a", found, to)
    slot = slot_of(name)
    for source, target in ((node, other), (other, node)):
        move = SlotMove(moved.cluster, source.server, target.server, slot)
        move.begin()
        list(move.move_all(10))
        move.end()
    again = node.subscribe_routes(name, "a")
    assert again.new == [0]
    assert again.confirmed == [set()]
    confirm(node, name, "a", found, to)
    assert node.subscribe_routes(name, "a").confirmed == [set()]


def test_a_slot_that_another_node_took_and_gave_back_has_no_confirmed_routes(moved: Nodes) -> None:
    node, other, to = moved.all
    name = next(moved.clients(node))
    for one in moved.all:
        one.learn(moved.all)
    found = node.subscribe_routes(name, "a")
    confirm(node, name, "a", found, to)
    slot = slot_of(name)
    take(other, slot, node)  # this node hears of it on the cluster bus, and loses the keys
    eventually(
        lambda: error_of(node.client, "ROUTE.UNUSED", "a", slot) == f"MOVED {slot}", WAIT_S, "a node that has heard"
    )
    take(node, slot, other)
    again = node.subscribe_routes(name, "a")
    assert again.confirmed == [set()]
    assert again.serials[0] > found.serials[0]


def test_a_promoted_replica_has_confirmed_nothing(failover: Failover) -> None:
    nodes = failover.nodes
    primary, other, to = nodes.all
    name = next(nodes.clients(primary))
    replica = failover.add_replica(primary)
    to.learn(nodes.all)
    found = primary.subscribe_routes(name, "a")
    confirm(primary, name, "a", found, to)
    assert primary.subscribe_routes(name, "a").confirmed == [{to.id}]
    failover.replace(primary, replica, slot_of(name))
    after = replica.subscribe_routes(name, "a")
    assert after.new == [0]
    assert after.homes == {}
    assert after.primaries == {replica.id, other.id, to.id}
    assert after.confirmed == [set()]
    to.learn([replica])
    replica.confirm("a", slot_of(name), found.serials[0], (to.id, found.homes[to.id]))
    assert replica.subscribe_routes(name, "a").confirmed == [set()]


def test_a_primary_that_joins_is_named_at_once(moved: Nodes, fresh_server: Callable[..., Server]) -> None:
    node = moved.all[0]
    name = next(moved.clients(node))
    joined = Node(fresh_server(cluster=True, config=["cluster-allow-replica-migration no"]))
    joined.client.execute_command("CLUSTER", "MEET", "127.0.0.1", node.server.port, node.server.port + BUS)
    for one, other in ((node, joined), (moved.all[1], joined), (moved.all[2], joined), (joined, moved.all[1])):
        knows(one, other)
    assert joined.id not in node.subscribe_routes(name, "a").primaries  # it has no slot
    slot = slot_of(next(name for name in moved.clients(moved.all[1])))
    move = SlotMove(moved.cluster, moved.all[1].server, joined.server, slot)
    move.begin()
    move.end()
    joined.client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", joined.id)
    knows(node, joined, f" {slot}\n")
    eventually(
        lambda: joined.id in node.subscribe_routes(name, "a").primaries, 0.5, "a primary that is named within 0.5 s"
    )
    joined.server.check_indexes()
