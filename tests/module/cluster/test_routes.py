"""The routes of a cluster: what each node exports, what a node that answers is told, and where it says a topic goes."""

import random
from collections.abc import Callable
from functools import partial
from itertools import islice

import pytest
import redis

from tests.module.cluster.routes_support import (
    Failover,
    Node,
    Nodes,
    Route,
    error_of,
    knows,
    matching,
    random_filters,
    session_of,
    slot_of,
    take,
    works,
)
from tests.module.cluster_support import SlotMove
from tests.support import Cluster, Server, eventually
from tests.support.ports import CLUSTER_BUS_OFFSET as BUS
from tests.support.server import SLOTS

WAIT_S = 20.0
TOPICS = ["a", "b", "a/b", "a/c", "b/c/a", "c/c/c", "a/b/c/d"]


def has(node: Node, to: Node, count: int = 1000) -> list[Route]:
    """All that it exports."""
    return [route for page in node.pages(to.id, to.info().generation, count) for route in page.routes]


# --- Exporting --------------------------------------------------------------------------------------------------------


def test_each_node_exports_what_its_sessions_subscribe_to(nodes: Nodes) -> None:
    first = nodes.all[0]
    for node in nodes.all:
        one, two = islice(nodes.clients(node), 2)
        node.subscribe(one, "a/+", "b", "$share/g/s/#")
        node.subscribe(two, "a/+")
        (page,) = node.pages(first.id, first.info().generation)
        slot = slot_of(one)
        assert sorted(page.routes) == sorted(
            [(b"a/+", slot), (b"b", slot), (b"s/#", slot), (b"a/+", slot_of(two))]  # a group is nothing of its own
        )
        assert len(page.slots) == SLOTS // 3 + (node is nodes.all[2])
        assert {slot, slot_of(two)} <= page.slots
        assert node.info().own == 4
        assert node.info().homes == {first.id: first.info().generation}
    assert sum(len(page.slots) for node in nodes.all for page in node.pages(first.id, first.info().generation)) == SLOTS


def test_a_route_goes_with_the_last_subscription(nodes: Nodes) -> None:
    node = nodes.all[0]
    name = next(nodes.clients(node))
    other = f"{{{name}}}x"  # another session in the same slot
    node.subscribe(name, "a", "$share/g/a")
    node.client.execute_command("SESSION.SUBSCRIBE", f"{other[:-1]}", "a", 0)  # the same session again
    assert has(node, nodes.all[1]) == [(b"a", slot_of(name))]
    node.unsubscribe(name, "a")
    assert has(node, nodes.all[1]) == [(b"a", slot_of(name))]
    node.unsubscribe(name, "$share/g/a")
    assert has(node, nodes.all[1]) == []
    node.subscribe(name, "a")
    node.client.delete(f"{session_of(name)}_subscriptions")  # by another program
    assert has(node, nodes.all[1]) == []


@pytest.mark.parametrize("count", [1, 3, 7, 1000])
def test_pages_have_every_route_once(nodes: Nodes, count: int) -> None:
    node, to = nodes.all[:2]
    truth: set[Route] = set()
    for number, name in enumerate(islice(nodes.clients(node), 8)):
        filters = [f"f/{i}" for i in range(1 + 5 * (number % 3))]
        node.subscribe(name, *filters)
        truth |= {(topic_filter.encode(), slot_of(name)) for topic_filter in filters}
    found = has(node, to, count)
    assert len(found) == len(set(found))
    assert set(found) == truth
    pages = list(node.pages(to.id, to.info().generation, count))
    assert all(len(page.routes) <= count for page in pages)
    complete: set[int] = set()
    for page in pages:
        assert not complete & page.slots
        complete |= page.slots
    assert len(complete) == SLOTS // 3


class Changing:
    """Sessions whose subscriptions change while a node learns of them.

    Args:
        nodes: without sessions.
        to: the node that learns.
        seed: of the changes.
    """

    def __init__(self, nodes: Nodes, to: Node, seed: int) -> None:
        self.rng = random.Random(seed)
        self.to = to
        self.names = {name: node for node in nodes.all for name in islice(nodes.clients(node), 4)}
        self.filters = random_filters(self.rng)
        self.truth: set[Route] = set()
        self.ever: set[Route] = set()

    def change(self) -> None:
        """One subscription comes or goes; who must hear of a new one is told before it counts."""
        name, topic_filter = self.rng.choice(list(self.names)), self.rng.choice(self.filters)
        route = (topic_filter.encode(), slot_of(name))
        if route in self.truth and self.rng.random() < 0.3:
            self.names[name].unsubscribe(name, topic_filter)
            self.truth.discard(route)
            return
        self.names[name].subscribe(name, topic_filter)
        if self.to.id in self.names[name].info().homes:
            self.to.add(*route)
        self.truth.add(route)
        self.ever.add(route)

    def remove_unused(self) -> None:
        """Remove the routes without a subscriber, as after useless visits."""
        for topic_filter, slot in sorted(self.ever - self.truth):
            node = next(node for name, node in self.names.items() if slot_of(name) == slot)
            token = self.to.client.execute_command("ROUTE.TOKEN", topic_filter, slot)
            assert node.client.execute_command("ROUTE.UNUSED", topic_filter, slot) == 1
            if token is not None:
                assert self.to.client.execute_command("ROUTE.DEL", topic_filter, slot, *token) == 1


@pytest.mark.parametrize("seed", range(4))
def test_pages_under_changing_subscriptions_give_the_true_set(nodes: Nodes, seed: int) -> None:
    to = nodes.all[seed % 3]
    changing = Changing(nodes, to, seed)
    for _ in range(120):
        changing.change()
    n = to.info().generation
    for node in nodes.all:
        for page in node.pages(to.id, n, count=changing.rng.randint(1, 6)):
            for _ in range(changing.rng.randint(0, 3)):
                changing.change()
            to.feed(page, n)
    assert to.info().uncovered == set()
    publisher = next(nodes.clients(to))
    for topic in TOPICS:
        _by, slots = to.check(publisher, topic)
        assert matching(changing.truth, topic) <= slots <= matching(changing.ever, topic)
    changing.remove_unused()
    for topic in TOPICS:
        assert to.check(publisher, topic)[1] == matching(changing.truth, topic)


def test_a_slot_that_lost_a_session_unseen_begins_again(nodes: Nodes) -> None:
    node, to = nodes.all[:2]
    name = next(nodes.clients(node))
    one, two = f"x:{session_of(name)}", f"y:{session_of(name)}"
    for key, filters in ((one, ["a", "c"]), (two, ["b", "d"])):
        node.client.execute_command("SESSION.SUBSCRIBE", key, *(word for f in filters for word in (f, 1)))
    n, slot = to.info().generation, slot_of(name)
    page = node.page(to.id, n, count=2)
    assert page.routes == [(b"a", slot), (b"b", slot)]
    assert slot not in page.slots
    saved = node.client.dump(f"{one}_subscriptions")
    assert saved is not None
    node.client.delete(f"{one}_subscriptions")  # as MIGRATE does
    assert node.info().own == 2
    node.client.restore(f"{one}_subscriptions", 0, saved)
    again = node.page(to.id, n, page.next, count=2)
    assert again.routes == [(b"a", slot), (b"b", slot)]
    last = node.page(to.id, n, again.next)
    assert last.routes == [(b"c", slot), (b"d", slot)]
    assert slot in last.slots
    for one_page in (page, again, last):
        to.feed(one_page, n)
    assert slot not in to.info().uncovered


def test_who_may_export_to_whom(nodes: Nodes) -> None:
    node, to = nodes.all[:2]
    n = to.info().generation
    stranger = "0" * 40
    assert error_of(node.client, "ROUTE.EXPORT", stranger, n) == (
        f"UNKNOWN the node '{stranger}' has no slots, as this node sees the cluster; "
        "expected the id of a primary that has some"
    )
    list(node.pages(to.id, n))
    assert error_of(node.client, "ROUTE.EXPORT", to.id, n - 1) == (
        f"STALEHOME the generation {n - 1} of the node '{to.id}' is not its current one; expected {n}"
    )
    assert node.info().homes[to.id] == n
    list(node.pages(to.id, n + 1))
    assert node.info().homes[to.id] == n + 1
    for words, error in (
        (("x", n), "node is 'x'; expected the id of a node"),
        ((to.id, 0), "generation is '0'; expected a whole number from 1 to"),
        ((to.id, n + 1, "CURSOR", "x"), "CURSOR is 'x'; expected 0"),
        ((to.id, n + 1, "CURSOR", f"{to.id}:1:16384"), "expected 0"),
        ((to.id, n + 1, "CURSOR", f"{to.id}:1:1:1:"), "expected 0"),
        ((to.id, n + 1, "COUNT", 0), "COUNT is '0'; expected a whole number from 1 to 5000"),
        ((to.id, n + 1, "AGAIN"), "unexpected argument 'AGAIN'"),
    ):
        assert error in error_of(node.client, "ROUTE.EXPORT", *words)


def test_a_cursor_of_another_export_is_refused(nodes: Nodes) -> None:
    node, to, third = nodes.all
    node.subscribe(next(nodes.clients(node)), "a", "b")
    n = to.info().generation
    page = node.page(to.id, n, count=1)
    over = (
        "STALECURSOR CURSOR belongs to an export that this node does not know or has forgotten; "
        "begin again with CURSOR 0"
    )
    assert error_of(third.client, "ROUTE.EXPORT", to.id, n, "CURSOR", page.next) == over  # of another node
    assert error_of(node.client, "ROUTE.EXPORT", third.id, third.info().generation, "CURSOR", page.next) == over
    node.renew()
    assert error_of(node.client, "ROUTE.EXPORT", to.id, n, "CURSOR", page.next) == over
    assert len(has(node, to, 1)) == 2


# --- Feeding ----------------------------------------------------------------------------------------------------------


def test_a_feed_with_a_gap_is_refused(nodes: Nodes) -> None:
    node, to = nodes.all[:2]
    name = next(nodes.clients(node))
    slot, n = slot_of(name), to.info().generation
    node.subscribe(name, *(f"f/{i}" for i in range(5)))
    pages = list(node.pages(to.id, n, count=2))
    assert len(pages) == 3
    to.feed(pages[0], n)
    with pytest.raises(redis.ResponseError, match=r"GAP the page begins at cursor .* begin again with CURSOR 0"):
        to.feed(pages[2], n)
    assert slot in to.info().uncovered
    assert to.info().routes == 2
    to.feed(pages[1], n)
    to.feed(pages[1], n)  # its reply was lost
    to.feed(pages[2], n)
    assert slot not in to.info().uncovered
    assert to.info().routes == 5


def test_slots_of_a_page_that_was_lost_are_not_covered(nodes: Nodes) -> None:
    node, to = nodes.all[:2]
    names = list(islice(nodes.clients(node), 6))
    for name in names:
        node.subscribe(name, "a")
    n = to.info().generation
    pages = list(node.pages(to.id, n, count=2))
    assert len(pages) == 3
    for page in (pages[0], pages[2]):
        to.feed(page, n)
    uncovered = to.info().uncovered
    assert uncovered & pages[1].slots == pages[1].slots
    assert not uncovered & (pages[0].slots | pages[2].slots)
    to.learn([other for other in nodes.all if other is not node])
    assert error_of(to.client, "ROUTE.CHECK", session_of(next(nodes.clients(to))), "a") == (
        f"NOROUTES this node knows the routes of {SLOTS - len(pages[1].slots)} of {SLOTS} slots; "
        "first feed it the slots that ROUTE.INFO calls uncovered"
    )
    to.feed(pages[1], n)
    assert to.check(next(nodes.clients(to)), "a")[1] == {slot_of(name) for name in names}


def test_what_is_fed_to_another_generation_is_refused(nodes: Nodes) -> None:
    node, to = nodes.all[:2]
    n = to.info().generation
    pages = list(node.pages(to.id, n))
    later = to.renew()
    assert later > n
    with pytest.raises(redis.ResponseError, match=f"STALEHOME the generation {n} of the node .* expected {later}"):
        to.feed(pages[0], n)
    assert len(to.info().uncovered) == SLOTS


def test_feeding_a_route_keeps_its_token_and_adding_it_again_does_not(nodes: Nodes) -> None:
    node, to = nodes.all[:2]
    name = next(nodes.clients(node))
    route = ("a", slot_of(name))
    assert to.client.execute_command("ROUTE.TOKEN", *route) is None
    assert to.add(*route) == (to.id, to.info().generation)
    token = to.client.execute_command("ROUTE.TOKEN", *route)
    node.subscribe(name, "a")
    to.learn([node])
    assert to.client.execute_command("ROUTE.TOKEN", *route) == token
    to.add(*route)  # a subscription that came after the token was read
    assert to.client.execute_command("ROUTE.DEL", *route, *token) == 0
    assert to.info().routes == 1
    token = to.client.execute_command("ROUTE.TOKEN", *route)
    assert to.client.execute_command("ROUTE.DEL", *route, token[0] - 1, token[1]) == 0
    assert to.client.execute_command("ROUTE.DEL", *route, *token) == 1
    assert to.client.execute_command("ROUTE.DEL", *route, *token) == 0
    assert to.info().routes == 0


def test_routes_are_bounded_in_bytes(nodes: Nodes) -> None:
    to = nodes.all[0]
    to.client.config_set("holdmq.max-route-bytes", 20_000)
    error, count = "", 0
    while not error and count < 1000:
        try:
            to.add(f"f/{count}", 0)
            count += 1
        except redis.ResponseError as refused:
            error = str(refused)
    assert error == f"QUOTA the routes take {to.info().bytes} bytes; expected less than 20000 (holdmq.max-route-bytes)"
    assert 20_000 <= to.info().bytes < 21_000
    assert to.info().routes == count
    to.client.config_set("holdmq.max-route-bytes", 1 << 30)
    to.add(f"f/{count}", 0)


def test_arguments_that_are_not_routes_change_nothing(nodes: Nodes) -> None:
    to = nodes.all[0]
    n = to.info().generation
    feed = ("ROUTE.FEED", to.id, n, "0", "0")
    for words, error in (
        (("ROUTE.ADD", "a", 1, "b"), "3 arguments remain; expected pairs of filter and slot, at most 5000"),
        (("ROUTE.ADD", "a", 1, "b", SLOTS), "slot is '16384'; expected a whole number from 0 to 16383"),
        (("ROUTE.ADD", "a", 1, "a/#/b", 1), "INVALIDTOPIC the topic filter 'a/#/b'"),
        (("ROUTE.ADD", "$share/g/a", 1), "that of a shared subscription"),
        ((*feed, "ROUTES", "a"), "1 arguments remain"),
        ((*feed, "SLOTS", 1, 5, 4), "the last slot of a range is '4'"),
        ((*feed, "a", 1), "unexpected argument 'a'"),
        (("ROUTE.FEED", to.id, n, "0", "y"), "CURSOR is 'y'"),
    ):
        assert error in error_of(to.client, *words)
    assert to.info().routes == 0
    assert len(to.info().uncovered) == SLOTS


# --- Answering --------------------------------------------------------------------------------------------------------


def test_an_answer_that_is_still_right_is_confirmed(nodes: Nodes) -> None:
    to = nodes.all[0]
    publisher = session_of(next(nodes.clients(to)))
    to.learn(nodes.all)
    to.add("a/+", 5)
    by, slots = to.check(publisher[1:-1], "a/b")
    assert slots == {5}
    known = ("ROUTE.CHECK", publisher, "a/b", "KNOWN", *by)
    assert to.client.execute_command(*known) == b"OK"
    to.add("a/+", 6)
    assert to.client.execute_command(*known)[3] == [5, 6]
    by, _slots = to.check(publisher[1:-1], "a/b")
    to.add("#", 9)  # a filter that begins with a wildcard concerns every topic
    by, slots = to.check(publisher[1:-1], "a/b")
    assert slots == {5, 6, 9}
    token = to.client.execute_command("ROUTE.TOKEN", "#", 9)
    to.client.execute_command("ROUTE.DEL", "#", 9, *token)
    assert to.client.execute_command("ROUTE.CHECK", publisher, "a/b", "KNOWN", *by)[3] == [5, 6]
    n = to.renew()
    assert n > by[1]
    to.learn(nodes.all)
    assert to.client.execute_command("ROUTE.CHECK", publisher, "a/b", "KNOWN", *by)[:2] == [to.id.encode(), n]


def test_an_answer_takes_a_bounded_time_however_many_routes_match(nodes: Nodes) -> None:
    """It names all slots then: a publish may go where nobody gets it."""
    to = nodes.all[0]
    publisher = session_of(next(nodes.clients(to)))
    to.learn(nodes.all)
    levels = 17
    names = ["/".join("+" if bits >> at & 1 else "a" for at in range(levels)) for bits in range(1 << levels)]
    for start in range(0, len(names), 5_000):
        words = [word for name in names[start : start + 5_000] for word in (name, 7)]
        to.client.execute_command("ROUTE.ADD", *words)
    assert to.check(publisher[1:-1], "/".join("b" * levels))[1] == {7}
    topic, took = "/".join("a" * levels), list[float]()
    for _ in range(20):
        to.client.config_resetstat()
        assert len(to.check(publisher[1:-1], topic)[1]) == SLOTS
        took.append(float(to.client.info("commandstats")["cmdstat_ROUTE.CHECK"]["usec"]))
    assert min(took) < 20_000  # 1 ms on an idle machine; 100 ms if all are searched while others run


def test_an_answer_needs_the_publishers_epoch_and_slot(nodes: Nodes) -> None:
    to, other = nodes.all[:2]
    name = next(nodes.clients(to))
    key = session_of(name)
    to.learn(nodes.all)
    epoch = to.client.execute_command("SESSION.OPEN", key, "OWNER", "bridge")[0]
    assert to.client.execute_command("ROUTE.CHECK", key, "a", "EPOCH", epoch)[3] == []
    assert error_of(to.client, "ROUTE.CHECK", key, "a", "EPOCH", epoch + 1).startswith("FENCED")
    assert error_of(other.client, "ROUTE.CHECK", key, "a") == f"MOVED {slot_of(name)}"
    assert "INVALIDTOPIC the topic 'a/+'" in error_of(to.client, "ROUTE.CHECK", key, "a/+")


# --- Slots that move --------------------------------------------------------------------------------------------------


def test_a_slot_takes_its_routes_with_it(moved: Nodes) -> None:
    source, target, to = moved.all
    name = next(moved.clients(source))
    slot, publisher = slot_of(name), next(moved.clients(to))
    source.subscribe(name, "a/+", "b")
    to.learn(moved.all)
    n = to.info().generation
    assert to.check(publisher, "a/b")[1] == {slot}
    move = SlotMove(moved.cluster, source.server, target.server, slot)
    move.begin()
    for node in (source, target):  # while it is on its way, nobody exports it
        (page,) = node.pages(to.id, n)
        assert slot not in page.slots
        assert page.routes == []
        assert error_of(node.client, "ROUTE.UNUSED", "b", slot) == (
            f"TRYAGAIN slot {slot} is moving to another node; try again"
        )
    list(move.move_all(10))
    move.end()
    eventually(
        lambda: error_of(source.client, "ROUTE.UNUSED", "b", slot) == f"MOVED {slot}", WAIT_S, "a source that has heard"
    )
    assert target.client.execute_command("ROUTE.UNUSED", "b", slot) == 0
    assert target.client.execute_command("ROUTE.UNUSED", "c", slot) == 1
    (left,), (page,) = source.pages(to.id, n), target.pages(to.id, n)
    assert slot not in left.slots
    assert left.routes == []
    assert slot in page.slots
    assert sorted(page.routes) == [(b"a/+", slot), (b"b", slot)]
    assert (source.info().own, target.info().own) == (0, 2)
    assert to.check(publisher, "a/b")[1] == {slot}  # routes name slots: the answer was right all the time


def test_a_slot_that_moves_during_an_export_is_not_covered_by_it(moved: Nodes) -> None:
    source, target, to = moved.all
    name = next(moved.clients(source))
    slot, n = slot_of(name), to.info().generation
    source.subscribe(name, "a", "b", "c")
    first = source.page(to.id, n, count=1)
    move = SlotMove(moved.cluster, source.server, target.server, slot)
    move.begin()
    rest = source.page(to.id, n, first.next)
    assert rest.routes == []
    list(move.move_all(10))
    move.end()
    for page in (first, rest):
        to.feed(page, n)
    assert slot in to.info().uncovered
    to.learn([target])
    assert slot not in to.info().uncovered
    assert to.client.execute_command("ROUTE.TOKEN", "c", slot) is not None


def test_a_node_that_lost_its_last_slot_forgets_even_if_it_has_one_again_at_once(
    moved: Nodes, fresh_server: Callable[..., Server]
) -> None:
    target = moved.all[0]
    server = fresh_server(cluster=True, config=["cluster-allow-replica-migration no"])  # it stays a primary
    joined = Node(server)
    slot = slot_of(next(moved.clients(target)))
    joined.client.execute_command("CLUSTER", "MEET", "127.0.0.1", target.server.port, target.server.port + BUS)
    for one, other in ((target, joined), (joined, target)):
        knows(one, other)
    no_slots = "UNKNOWN this node has no slots; ask a primary that has some"
    eventually(lambda: error_of(joined.client, "ROUTE.ADD", "a", 1) == no_slots, WAIT_S, "a node that sees the cluster")
    take(joined, slot, target)
    for one in moved.all:
        knows(one, joined, f" {slot}\n")
    joined.learn(moved.all)
    joined.learn([joined])
    before = joined.info()
    assert before.uncovered == set()
    assert error_of(target.client, "ROUTE.DROPHOME", joined.id, before.generation) == (
        f"UNKNOWN the node '{joined.id}' has slots, as this node sees the cluster; "
        "expected the id of a node that has none"
    )
    take(target, slot, joined)
    knows(joined, joined, " connected\n")  # it hears of its loss on the cluster bus
    take(joined, slot, target)  # and at once it has a slot again
    after = joined.info()
    assert after.generation > before.generation
    assert len(after.uncovered) == SLOTS
    assert after.homes == {}
    joined.server.check_indexes()


# --- Nodes that restart, and replicas that take over ------------------------------------------------------------------


def test_a_node_that_restarts_has_another_generation(fresh_cluster: Callable[..., Cluster]) -> None:
    nodes = Nodes(fresh_cluster(3, aof=True))
    node, to = nodes.all[:2]
    name = next(nodes.clients(node))
    node.subscribe(name, "a", "b")
    to.learn(nodes.all)
    before = to.info()
    half = node.page(to.id, before.generation, count=1)
    for restarted in (node, to):
        restarted.server.kill()
        restarted.server.start()
        restarted.client = restarted.server.client()
    for one in nodes.all:
        eventually(partial(works, one), WAIT_S, "a cluster that works again")
    after = to.info()
    assert after.generation > before.generation
    assert len(after.uncovered) == SLOTS
    assert after.homes == {}
    assert node.info().homes == {}
    assert error_of(node.client, "ROUTE.EXPORT", to.id, after.generation, "CURSOR", half.next).startswith("STALECURSOR")
    with pytest.raises(redis.ResponseError, match="STALEHOME"):
        to.feed(half, before.generation)
    to.learn(nodes.all)
    assert to.check(next(nodes.clients(to)), "a")[1] == {slot_of(name)}


def test_a_replica_that_takes_over_knows_its_own_routes_and_nothing_else(failover: Failover) -> None:
    nodes = failover.nodes
    primary, other, to = nodes.all
    name = next(nodes.clients(primary))
    replica = failover.add_replica(primary)
    primary.subscribe(name, "a/+", "b")
    for node in (primary, to):
        node.learn(nodes.all)
    assert primary.info().homes != {}
    primary.client.execute_command("WAIT", 1, 1000)
    replica.client.execute_command("READONLY")
    assert replica.info().own == 2
    assert error_of(replica.client, "ROUTE.EXPORT", to.id, to.info().generation).startswith("READONLY")
    generation = replica.info().generation
    failover.replace(primary, replica, slot_of(name))
    after = replica.info()
    assert after.generation > generation
    assert after.homes == {}
    assert len(after.uncovered) == SLOTS
    assert sorted(has(replica, to)) == [(b"a/+", slot_of(name)), (b"b", slot_of(name))]
    replica.learn([replica, other, to])
    assert replica.check(name, "a/b")[1] == {slot_of(name)}
    old = primary.id  # the others forget the generation of the node that is gone
    for node in (other, to):
        generation = node.info().homes[old]
        knows(node, replica, " 0-5460\n")
        assert node.client.execute_command("ROUTE.DROPHOME", old, generation - 1) == 0
        assert node.client.execute_command("ROUTE.DROPHOME", old, generation) == 1
        assert old not in node.info().homes


# --- Without a cluster ------------------------------------------------------------------------------------------------


def test_a_server_without_a_cluster_keeps_no_routes(client: redis.Redis) -> None:
    node = "0" * 40
    client.execute_command("SESSION.SUBSCRIBE", "{c}", "a", 1)
    for words in (
        ("ROUTE.INFO",),
        ("ROUTE.EXPORT", node, 1),
        ("ROUTE.FEED", node, 1, "0", "0"),
        ("ROUTE.ADD", "a", 1),
        ("ROUTE.CHECK", "{c}", "a"),
        ("ROUTE.TOKEN", "a", 1),
        ("ROUTE.UNUSED", "a", 1),
        ("ROUTE.DEL", "a", 1, 1, 1),
        ("ROUTE.DROPHOME", node, 1),
        ("ROUTE.RENEW", 1),
    ):
        assert error_of(client, *words) == (
            "only nodes of a cluster keep routes, and this server is not one; "
            "send ROUTE commands to a node of a cluster"
        )
