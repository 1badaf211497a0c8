"""Publishes by the answer of another node: HOME of TOPIC.PUBLISH, and ROUTE.RESUME."""

import time
from collections.abc import Iterator
from itertools import islice

import pytest
import redis

from tests.module.cluster.routes_support import WAIT_S, Failover, Node, Nodes, error_of, session_of, slot_of, take
from tests.module.cluster_support import SlotMove
from tests.support import eventually
from tests.support.server import SLOTS

Unserved = dict[int, str]


class Publisher:
    """A connection of a bridge to a node that has sessions.

    Args:
        node: the node with the sessions.
        home: the node whose answers it publishes by.
    """

    def __init__(self, node: Node, home: Node) -> None:
        self.node = node
        self.home = home
        self.n = home.info().generation
        self.client = node.server.client(single_connection_client=True)

    def words(self, payload: str, slots: list[int], *options: str | int, topic: str = "t") -> list[str | int]:
        """A publish to some slots."""
        ranges = [slot for slot in slots for _ in range(2)]
        return [topic, payload, "QOS", 1, *options, "SLOTS", len(slots), *ranges, "HOME", self.home.id, self.n]

    def publish(self, payload: str, slots: list[int], *options: str | int) -> tuple[int, Unserved]:
        """How many sessions it reached, and why the other slots did not take it."""
        reached, unserved = self.client.execute_command("TOPIC.PUBLISH", *self.words(payload, slots, *options))
        return reached, reasons(unserved)

    def resume(self, *slots: int) -> None:
        """Let slots take its publishes again."""
        assert self.client.execute_command("ROUTE.RESUME", *slots) == b"OK"

    def pipeline(self, *publishes: list[str | int]) -> list[object]:
        """Many publishes in one command."""
        packed = b"".join(
            b"*%d\r\n" % (len(words) + 1)
            + b"".join(b"$%d\r\n%s\r\n" % (len(text), text) for text in (b"TOPIC.PUBLISH", *map(to_bytes, words)))
            for words in publishes
        )
        replies: list[object] = self.client.execute_command("TOPIC.PIPELINE", packed)
        return replies


def to_bytes(word: str | int) -> bytes:
    """As a client sends it."""
    return str(word).encode()


def reasons(unserved: list[tuple[int, int, bytes]]) -> Unserved:
    """The reason of each slot, without addresses."""
    return {slot: reason.decode().split(" ")[0] for first, last, reason in unserved for slot in range(first, last + 1)}


@pytest.fixture
def publisher(known: Nodes) -> Iterator[Publisher]:
    """A connection to the first node, by answers of the last."""
    made = Publisher(known.all[0], known.all[2])
    yield made
    made.client.close()


def queued(node: Node, name: str) -> int:
    """The number of messages in a session's queue."""
    count: int = node.client.zcard(f"{session_of(name)}_messages")
    return count


# --- Which answer counts ----------------------------------------------------------------------------------------------


def test_a_publish_goes_to_the_named_slots(known: Nodes, publisher: Publisher) -> None:
    node = publisher.node
    one, two = islice(known.clients(node), 2)
    node.subscribe(one, "t")
    node.subscribe(two, "t")
    assert publisher.publish("x", [slot_of(one)]) == (1, {})
    assert (queued(node, one), queued(node, two)) == (1, 0)
    assert publisher.publish("y", [slot_of(one), slot_of(two)]) == (2, {})
    assert (queued(node, one), queued(node, two)) == (2, 1)


def test_an_answer_of_a_generation_that_is_not_noted_stores_nothing(known: Nodes, publisher: Publisher) -> None:
    node, home = publisher.node, publisher.home
    name = next(known.clients(node))
    slot, n = slot_of(name), publisher.n
    node.subscribe(name, "t")
    publish = ("TOPIC.PUBLISH", "t", "x", "QOS", 1, "SLOTS", 1, slot, slot, "HOME")
    assert error_of(publisher.client, *publish, home.id, n - 1) == (
        f"STALEHOME the generation {n - 1} of the node '{home.id}' is not its current one; expected {n}"
    )
    publisher.resume(slot)
    assert error_of(publisher.client, *publish, home.id, n + 1) == (
        f"NOHOME this node has not exported its routes to generation {n + 1} of the node '{home.id}'; "
        "run ROUTE.EXPORT first"
    )
    publisher.resume(slot)
    stranger = "0" * 40
    assert error_of(publisher.client, *publish, stranger, n) == (
        f"NOHOME the node '{stranger}' has no slots, as this node sees the cluster; ask the node of the publisher again"
    )
    assert queued(node, name) == 0
    publisher.resume(slot)
    assert publisher.publish("x", [slot]) == (1, {})


def test_slots_stay_refused_after_an_answer_of_another_generation(known: Nodes, publisher: Publisher) -> None:
    node = publisher.node
    name = next(known.clients(node))
    slot = slot_of(name)
    node.subscribe(name, "t")
    publisher.n += 1  # the node that answered has restarted, and its answer is on its way
    with pytest.raises(redis.ResponseError, match="NOHOME"):
        publisher.publish("5", [slot])
    node.page(publisher.home.id, publisher.n)
    assert publisher.publish("6", [slot]) == (0, {slot: "REFUSED"})
    other = Publisher(node, publisher.home)
    other.n = publisher.n
    assert other.publish("of another connection", [slot]) == (1, {})
    publisher.resume(slot)
    assert publisher.publish("5", [slot]) == (1, {})
    other.client.close()


def test_by_the_answer_of_a_node_without_slots_nothing_is_stored(failover: Failover) -> None:
    nodes = failover.nodes
    node, _, home = nodes.all
    name, at_home = next(nodes.clients(node)), next(nodes.clients(home))
    replica = failover.add_replica(home)
    home.learn(nodes.all)
    node.subscribe(name, "t")
    publisher, slot = Publisher(node, home), slot_of(name)
    assert publisher.publish("x", [slot]) == (1, {})
    failover.replace(home, replica, slot_of(at_home))
    assert node.info().homes[home.id] == publisher.n  # nobody has removed it
    eventually(
        lambda: error_of(publisher.client, "TOPIC.PUBLISH", *publisher.words("y", [slot])).startswith(
            f"NOHOME the node '{home.id}' has no slots"
        ),
        WAIT_S,
        "a node that has heard",
    )
    assert queued(node, name) == 1


# --- Slots that are not served ----------------------------------------------------------------------------------------


def test_each_slot_that_does_not_take_it_has_its_reason(moved: Nodes) -> None:
    node, target, home = moved.all
    for one in moved.all:
        one.learn(moved.all)
    here, moving, settled = islice(moved.clients(node), 3)
    away = next(moved.clients(target))
    for name in (here, moving, settled):
        node.subscribe(name, "t")
    publisher = Publisher(node, home)
    move = SlotMove(moved.cluster, node.server, target.server, slot_of(moving))
    move.begin()
    slots = [slot_of(name) for name in (here, moving, settled, away)]
    reached, unserved = publisher.client.execute_command("TOPIC.PUBLISH", *publisher.words("5", slots))
    assert reached == 2
    assert sorted(unserved) == sorted(
        [
            [slot_of(moving), slot_of(moving), b"TRYAGAIN"],
            [slot_of(away), slot_of(away), f"MOVED 127.0.0.1:{target.server.port}".encode()],
        ]
    )
    assert publisher.publish("6", slots) == (2, {slot_of(moving): "REFUSED", slot_of(away): "REFUSED"})
    list(move.move_all(10))
    move.end()
    assert publisher.publish("7", [slot_of(moving)]) == (0, {slot_of(moving): "REFUSED"})
    publisher.resume(slot_of(moving), slot_of(away))
    assert publisher.publish("5", [slot_of(moving)]) == (0, {slot_of(moving): "MOVED"})
    there = Publisher(target, home)
    assert there.publish("5", [slot_of(moving)]) == (1, {})
    assert (queued(node, here), queued(target, moving)) == (2, 1)


def test_a_slot_that_was_refused_takes_no_later_message_before_it_is_resumed(moved: Nodes) -> None:
    node, target, home = moved.all
    for one in moved.all:
        one.learn(moved.all)
    name = next(moved.clients(node))
    node.subscribe(name, "t")
    slot, publisher = slot_of(name), Publisher(node, home)
    move = SlotMove(moved.cluster, node.server, target.server, slot)
    move.begin()
    (five,) = publisher.pipeline(publisher.words("5", [slot]))
    assert five == [0, [[slot, slot, b"TRYAGAIN"]]]
    for client in (node.client, target.client):  # the move is given up
        client.execute_command("CLUSTER", "SETSLOT", slot, "STABLE")
    sent = [publisher.words(str(number), [slot]) for number in (6, 7)]
    assert publisher.pipeline(*sent) == [[0, [[slot, slot, b"REFUSED"]]]] * 2
    assert queued(node, name) == 0
    publisher.resume(slot)
    sent = [publisher.words(str(number), [slot]) for number in (5, 6, 7)]
    assert publisher.pipeline(*sent) == [[1, []]] * 3
    assert queued(node, name) == 3


def test_publishes_after_one_that_a_full_queue_refuses_wait_for_its_retry(known: Nodes, publisher: Publisher) -> None:
    """Whatever the time until they come, and also if they come in one command."""
    node = publisher.node
    full, by = islice(known.clients(node), 2)
    slot, sent = slot_of(full), ("FROM", by, "EPOCH", 1)
    opens = ("SESSION.OPEN", session_of(full), "OWNER", "bridge", "EXPIRY", 600)
    node.client.execute_command(*opens, "OVERFLOW", "wait", "MAXBYTES", 1)
    node.subscribe(full, "t")
    first, second = (["TOPIC.PUBLISH", *publisher.words(text, [slot], *sent)] for text in ("first", "second"))
    assert error_of(publisher.client, *first).startswith("QUEUEFULL")
    node.client.execute_command(*opens)  # without a bound of its own
    begun = time.monotonic()
    while time.monotonic() < begun + 0.3:  # many times the pause between two commands
        assert error_of(publisher.client, *second).startswith("TRYAGAIN an earlier publish of the client")
        time.sleep(0.05)
    again = publisher.words("first", [slot], *sent, "RETRY")
    assert publisher.pipeline(again, second[1:]) == [[1, []], [1, []]]
    assert queued(node, full) == 2


def test_a_refusal_goes_with_its_connection(known: Nodes, publisher: Publisher) -> None:
    slot = slot_of(next(known.clients(known.all[1])))  # of another node
    assert publisher.publish("x", [slot]) == (0, {slot: "MOVED"})
    assert publisher.publish("x", [slot]) == (0, {slot: "REFUSED"})
    publisher.client.close()
    assert publisher.publish("x", [slot]) == (0, {slot: "MOVED"})
    publisher.resume(slot, slot, 0)
    publisher.resume(slot)
    assert publisher.publish("x", [slot]) == (0, {slot: "MOVED"})


def test_all_slots_can_be_named(known: Nodes, publisher: Publisher) -> None:
    node = publisher.node
    names = list(islice(known.clients(node), 50))
    for name in names:
        node.subscribe(name, "t")
    words = ["t", "x", "QOS", 1, "SLOTS", 1, 0, SLOTS - 1, "HOME", publisher.home.id, publisher.n]
    reached, unserved = publisher.client.execute_command("TOPIC.PUBLISH", *words)
    assert reached == 50
    assert [[first, last, reason.split()[0]] for first, last, reason in sorted(unserved)] == [
        [5461, 10921, b"MOVED"],
        [10922, 16383, b"MOVED"],
    ]
    packed = publisher.pipeline(publisher.words("y", [slot_of(name) for name in names]))
    assert packed == [[50, []]]


def test_the_retained_message_is_written_where_its_slot_is_named(known: Nodes, publisher: Publisher) -> None:
    topic = next(f"r/{i}" for i in range(100) if known.of(f"r/{i}") is publisher.node)
    slot = slot_of(topic)
    words = [topic, "x", "QOS", 1, "RETAIN", "HOME", publisher.home.id, publisher.n, "SLOTS", 1]
    other = (slot + 1) % 5461
    assert publisher.client.execute_command("TOPIC.PUBLISH", *words, other, other) == [0, []]
    assert publisher.client.exists(f"{{{topic}}}_retained") == 0
    assert publisher.client.execute_command("TOPIC.PUBLISH", *words, slot, slot) == [0, []]
    assert publisher.client.exists(f"{{{topic}}}_retained") == 1


# --- Epochs of publishers ---------------------------------------------------------------------------------------------


def test_a_slot_refuses_an_epoch_of_a_publisher_below_the_one_it_has_seen(known: Nodes, publisher: Publisher) -> None:
    node = publisher.node
    one, two = islice(known.clients(node), 2)
    slots = [slot_of(one), slot_of(two)]
    for name in (one, two):
        node.subscribe(name, "t")
    old, new = ("FROM", "p", "EPOCH", 7), ("FROM", "p", "EPOCH", 8)
    assert publisher.publish("a", slots, *old) == (2, {})
    successor = Publisher(node, publisher.home)
    assert successor.publish("b", slots[:1], *new) == (1, {})
    assert publisher.publish("c", slots, *old) == (1, {slots[0]: "FENCED"})
    assert publisher.publish("d", slots, "FROM", "q", "EPOCH", 1) == (1, {slots[0]: "REFUSED"})  # until it is resumed
    publisher.resume(*slots)
    assert publisher.publish("d", slots, "FROM", "q", "EPOCH", 1) == (2, {})
    assert publisher.publish("e", slots, "FROM", "p") == (2, {})  # a program: its name alone
    assert successor.publish("f", slots, *new) == (2, {})
    assert publisher.publish("g", slots, *old) == (0, dict.fromkeys(slots, "FENCED"))
    assert (queued(node, one), queued(node, two)) == (5, 6)
    successor.client.close()


def test_an_epoch_moves_with_its_slot_and_survives_a_failover(failover: Failover) -> None:
    nodes = failover.nodes
    node, target, home = nodes.all
    home.learn(nodes.all)
    name = next(nodes.clients(node))
    slot = slot_of(name)
    node.subscribe(name, "t")
    assert Publisher(node, home).publish("a", [slot], "FROM", "p", "EPOCH", 8) == (1, {})
    move = SlotMove(nodes.cluster, node.server, target.server, slot)
    move.begin()
    list(move.move_all(10))
    move.end()
    assert Publisher(target, home).publish("b", [slot], "FROM", "p", "EPOCH", 7) == (0, {slot: "FENCED"})
    replica = failover.add_replica(target)
    failover.replace(target, replica, slot)
    replica.page(home.id, home.info().generation)
    assert Publisher(replica, home).publish("b", [slot], "FROM", "p", "EPOCH", 7) == (0, {slot: "FENCED"})
    assert Publisher(replica, home).publish("c", [slot], "FROM", "p", "EPOCH", 9) == (1, {})


def test_what_is_noted_of_an_epoch_ends_after_an_hour(known: Nodes, publisher: Publisher) -> None:
    name = next(known.clients(publisher.node))
    slot = slot_of(name)
    assert publisher.publish("x", [slot], "FROM", "{p}%", "EPOCH", 7) == (0, {})
    (key,) = publisher.client.keys("*_epoch*")
    assert key[-18:] == b"_epoch{%7Bp%7D%25}"
    assert publisher.client.get(key) == b"7"
    assert 3_590_000 < publisher.client.pttl(key) <= 3_600_000
    publisher.client.pexpire(key, 100_000)
    assert publisher.publish("x", [slot], "FROM", "{p}%", "EPOCH", 7) == (0, {})
    assert publisher.client.pttl(key) <= 100_000  # the same epoch writes nothing
    assert publisher.publish("x", [slot], "FROM", "{p}%", "EPOCH", 9) == (0, {})
    assert publisher.client.get(key) == b"9"
    long = "x" * 65535
    assert publisher.publish("x", [slot], "FROM", long, "EPOCH", 7) == (0, {})
    publisher.client.set(key, "nine")
    assert "WRONGTYPE" in error_of(
        publisher.client, "TOPIC.PUBLISH", *publisher.words("x", [slot], "FROM", "{p}%", "EPOCH", 9)
    )


# --- What is refused --------------------------------------------------------------------------------------------------


def test_arguments_that_do_not_fit_change_nothing(known: Nodes, publisher: Publisher) -> None:
    node = publisher.node
    name = next(known.clients(node))
    slot = slot_of(name)
    node.subscribe(name, "t")
    home = ("HOME", publisher.home.id, publisher.n)
    one = ("SLOTS", 1, slot, slot)
    for words, error in (
        (home, "SLOTS is missing; expected, with HOME, the slots from the reply of the node"),
        ((*one, "HOME", "x", 1), "node is 'x'; expected the id of a node"),
        ((*one, *home[:2], 0), "generation is '0'"),
        ((*one, *home[:2]), "generation is missing"),
        ((*one, *home, "EPOCH", 1), "FROM is missing; expected, with EPOCH or PACKET, FROM <client id>"),
        ((*one, *home, "FROM", "p", "PACKET", 1, "QOS", 2), "PACKET and SLOTS are both given"),
        ((*one, *home, "PRODUCER", "p", 1, 1), "PRODUCER is not accepted here in a cluster"),
        (
            (*home, "FROM", "p", "EPOCH", 1, "SLOTS", 1, 0, 1024),
            "SLOTS has 1025 slots; expected, with HOME and EPOCH, at most 1024; publish to the others with another",
        ),
    ):
        assert error in error_of(publisher.client, "TOPIC.PUBLISH", "t", "m", *words)
    for refused, error in (
        (("x",), "slot is 'x'; expected a whole number from 0 to 16383"),
        ((slot, 16384), "slot is '16384'"),
    ):
        assert error in error_of(publisher.client, "ROUTE.RESUME", *refused)
    assert queued(node, name) == 0
    assert publisher.publish("x", [slot], "FROM", "p", "EPOCH", 1) == (1, {})  # no slot was refused meanwhile
    many = ["t", "m", "QOS", 1, "FROM", "p", "EPOCH", 1, *home, "SLOTS", 1, 0, 1023]
    assert publisher.client.execute_command("TOPIC.PUBLISH", *many)[1] == []


def test_a_resume_that_is_refused_resumes_nothing(known: Nodes, publisher: Publisher) -> None:
    slot = slot_of(next(known.clients(known.all[1])))
    assert publisher.publish("x", [slot]) == (0, {slot: "MOVED"})
    assert "slot is 'x'" in error_of(publisher.client, "ROUTE.RESUME", slot, "x")
    assert publisher.publish("x", [slot]) == (0, {slot: "REFUSED"})


def test_what_belongs_to_a_connection_is_refused_in_a_script(known: Nodes, publisher: Publisher) -> None:
    slot = slot_of(next(known.clients(publisher.node)))
    script = "return redis.call(unpack(ARGV))"
    with pytest.raises(redis.ResponseError, match="none sent this command; send it from a client"):
        publisher.client.eval(script, 0, "ROUTE.RESUME", slot)
    with pytest.raises(redis.ResponseError, match=r"belongs to a connection|cannot be part of a transaction or script"):
        publisher.client.eval(script, 0, "TOPIC.PUBLISH", *publisher.words("x", [slot]))
    with publisher.client.pipeline(transaction=True) as transaction:
        transaction.execute_command("ROUTE.RESUME", slot)
        assert transaction.execute() == [b"OK"]


def test_a_node_that_lost_a_slot_by_gossip_does_not_take_a_publish(moved: Nodes) -> None:
    node, other, home = moved.all
    for one in moved.all:
        one.learn(moved.all)
    name = next(moved.clients(node))
    slot, publisher = slot_of(name), Publisher(node, home)
    take(other, slot, node)
    eventually(lambda: publisher.publish("x", [slot])[1] != {}, WAIT_S, "a node that has heard")
    assert publisher.publish("x", [slot]) == (0, {slot: "REFUSED"})


def test_a_server_without_a_cluster_knows_no_home(client: redis.Redis) -> None:
    assert error_of(client, "TOPIC.PUBLISH", "t", "m", "HOME", "0" * 40, 1) == (
        "HOME is accepted by nodes of a cluster only, and this server is not one; omit HOME"
    )
    assert error_of(client, "ROUTE.RESUME", 1).startswith("only nodes of a cluster keep routes")


# --- What TOPIC.PIPELINE gathers --------------------------------------------------------------------------------------


def executed(publisher: Publisher) -> int:
    """How many publishes of pipelines were executed as commands."""
    stats = publisher.client.info("commandstats")
    return int(stats.get("cmdstat_TOPIC.PUBLISH", {"calls": 0})["calls"])


def test_publishes_that_all_slots_take_are_gathered(known: Nodes, publisher: Publisher) -> None:
    node = publisher.node
    one, two, other = islice(known.clients(node), 3)
    for name in (one, two, other):
        node.subscribe(name, "t")
    slots = [slot_of(one), slot_of(two)]
    by = ("FROM", "device", "EPOCH", 5)
    assert publisher.publish("first", slots, *by) == (2, {})  # writes the epoch
    before = executed(publisher)
    publishes = [publisher.words(f"{number}", slots, *by) for number in range(50)]
    publishes += [publisher.words("by nobody", slots[:1])]
    assert publisher.pipeline(*publishes) == [[2, []]] * 50 + [[1, []]]
    assert executed(publisher) == before
    assert (queued(node, one), queued(node, two), queued(node, other)) == (52, 51, 0)


def test_a_later_epoch_within_a_pipeline_fences_what_follows(known: Nodes, publisher: Publisher) -> None:
    node = publisher.node
    name = next(known.clients(node))
    slot = slot_of(name)
    node.subscribe(name, "t")
    former, present = ("FROM", "device", "EPOCH", 5), ("FROM", "device", "EPOCH", 6)
    assert publisher.publish("first", [slot], *former) == (1, {})
    replies = publisher.pipeline(
        publisher.words("1", [slot], *former),
        publisher.words("2", [slot], *present),
        publisher.words("3", [slot], *former),
        publisher.words("4", [slot], *former),
    )
    assert replies[:2] == [[1, []], [1, []]]
    assert replies[2] == [0, [[slot, slot, b"FENCED"]]]
    assert replies[3] == [0, [[slot, slot, b"REFUSED"]]]
    assert queued(node, name) == 3


def test_a_slot_that_was_refused_on_the_connection_is_not_gathered(known: Nodes, publisher: Publisher) -> None:
    node = publisher.node
    name = next(known.clients(node))
    slot = slot_of(name)
    node.subscribe(name, "t")
    wrong = publisher.words("1", [slot])
    wrong[-1] = publisher.n + 1
    replies = publisher.pipeline(publisher.words("0", [slot]), wrong, publisher.words("2", [slot]))
    assert replies[0] == [1, []]
    assert isinstance(replies[1], redis.ResponseError)
    assert replies[2] == [0, [[slot, slot, b"REFUSED"]]]
    assert publisher.pipeline(publisher.words("2", [slot])) == [[0, [[slot, slot, b"REFUSED"]]]]
    publisher.resume(slot)
    assert publisher.pipeline(publisher.words("2", [slot])) == [[1, []]]
    assert queued(node, name) == 2
