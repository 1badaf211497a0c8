"""A node as those see it that exchange routes: what a bridge does with the ROUTE commands."""

import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import redis
from redis.crc import key_slot

from holdmq import core
from tests.module.cluster_support import FAILS_OVER, add_replica, node_id, promote
from tests.support import Cluster, Server, eventually
from tests.support.server import SLOTS

WAIT_S = 20.0
Route = tuple[bytes, int]  # filter and slot


@dataclass(frozen=True)
class Page:
    """A page of an export.

    Attributes:
        cursor: that it was asked for with.
        routes: what it has.
        slots: those that are complete with it.
        next: where the next one begins.
    """

    cursor: bytes
    routes: list[Route]
    slots: set[int]
    next: bytes


@dataclass(frozen=True)
class Info:
    """The reply of ROUTE.INFO."""

    node: str
    generation: int
    own: int
    routes: int
    bytes: int
    uncovered: set[int]
    homes: dict[str, int]


@dataclass(frozen=True)
class Subscribed:
    """The reply of SESSION.SUBSCRIBE with ROUTES.

    Attributes:
        serials: for each filter.
        confirmed: for each filter, the homes that have its route.
    """

    new: list[int]
    homes: dict[str, int]
    primaries: set[str]
    serials: list[int]
    confirmed: list[set[str]]


def session_of(client_id: str) -> str:
    """The session key of a client id without braces."""
    return f"{{{client_id}}}"


def slot_of(client_id: str) -> int:
    """The slot of its session."""
    return int(key_slot(client_id.encode()))


def slots_in(ranges: Sequence[int]) -> set[int]:
    """The slots of first, last, first, last ..."""
    pairs = zip(ranges[::2], ranges[1::2], strict=True)
    return {slot for first, last in pairs for slot in range(first, last + 1)}


def ranges_of(slots: set[int]) -> list[tuple[int, int]]:
    """The ranges of the slots."""
    ranges: list[tuple[int, int]] = []
    for slot in sorted(slots):
        if ranges and ranges[-1][1] == slot - 1:
            ranges[-1] = (ranges[-1][0], slot)
        else:
            ranges.append((slot, slot))
    return ranges


class Node:
    """A node of a cluster.

    Args:
        server: its process.
    """

    def __init__(self, server: Server) -> None:
        self.server = server
        self.client = server.client()
        self.id = node_id(server)

    def subscribe(self, client_id: str, *filters: str) -> None:
        """Subscribe a session of this node."""
        pairs = [word for one in filters for word in (one, 1)]
        self.client.execute_command("SESSION.SUBSCRIBE", session_of(client_id), *pairs)

    def subscribe_routes(self, client_id: str, *filters: str) -> "Subscribed":
        """Subscribe it, and ask who must hear of the routes."""
        pairs = [word for one in filters for word in (one, 1)]
        new, homes, primaries, routes = self.client.execute_command(
            "SESSION.SUBSCRIBE", session_of(client_id), "ROUTES", *pairs
        )
        nodes = [node.decode() for node in homes[::2]]
        return Subscribed(
            new=new,
            homes=dict(zip(nodes, homes[1::2], strict=True)),
            primaries={node.decode() for node in primaries},
            serials=[serial for serial, *_places in routes],
            confirmed=[{nodes[place] for place in places} for _serial, *places in routes],
        )

    def confirm(self, topic_filter: str, slot: int, serial: int, *generations: tuple[str, int]) -> None:
        """Say that nodes have a route."""
        words = [word for one in generations for word in one]
        assert self.client.execute_command("ROUTE.CONFIRM", topic_filter, slot, serial, *words) == b"OK"

    def unsubscribe(self, client_id: str, *filters: str) -> None:
        """End subscriptions of a session of this node."""
        self.client.execute_command("SESSION.UNSUBSCRIBE", session_of(client_id), *filters)

    def info(self) -> Info:
        """What it knows."""
        reply: dict[bytes, Any] = self.client.execute_command("ROUTE.INFO")
        found = {name.decode(): value for name, value in reply.items()}
        homes = {key.decode(): n for key, n in zip(found["homes"][::2], found["homes"][1::2], strict=True)}
        return Info(
            node=found["node"].decode(),
            generation=found["generation"],
            own=found["own"],
            routes=found["routes"],
            bytes=found["bytes"],
            uncovered=slots_in(found["uncovered"]),
            homes=homes,
        )

    def page(self, to: str, n: int, cursor: bytes = b"0", count: int = 1000) -> Page:
        """Export a page of its routes to a generation of a node."""
        words = ["ROUTE.EXPORT", to, n, "CURSOR", cursor, "COUNT", count]
        flat, ranges, following = self.client.execute_command(*words)
        return Page(cursor, list(zip(flat[::2], flat[1::2], strict=True)), slots_in(ranges), following)

    def pages(self, to: str, n: int, count: int = 1000) -> Iterator[Page]:
        """Export all of them."""
        page = self.page(to, n, count=count)
        yield page
        while page.next != b"0":
            page = self.page(to, n, page.next, count)
            yield page

    def feed(self, page: Page, n: int | None = None) -> None:
        """Tell it a page of another node; `n` is its own generation unless given."""
        words: list[str | bytes | int] = ["ROUTE.FEED", self.id, n or self.info().generation, page.cursor, page.next]
        ranges = ranges_of(page.slots)
        if ranges:
            words += ["SLOTS", len(ranges), *(slot for one in ranges for slot in one)]
        if page.routes:
            words += ["ROUTES", *(word for route in page.routes for word in route)]
        assert self.client.execute_command(*words) == b"OK"

    def learn(self, nodes: Sequence["Node"], count: int = 1000) -> None:
        """Let every node export to it."""
        n = self.info().generation
        for node in nodes:
            for page in node.pages(self.id, n, count):
                self.feed(page, n)

    def add(self, topic_filter: str | bytes, slot: int) -> tuple[str, int]:
        """Tell it a new route; returns its node and generation."""
        node, n = self.client.execute_command("ROUTE.ADD", topic_filter, slot)
        return node.decode(), n

    def check(self, client_id: str, topic: str) -> tuple[tuple[str, int, int], set[int]]:
        """Ask where a topic goes: by what (node, generation, version), and to which slots."""
        node, n, version, ranges = self.client.execute_command("ROUTE.CHECK", session_of(client_id), topic)
        return (node.decode(), n, version), slots_in(ranges)

    def renew(self) -> int:
        """Let it forget the routes of the cluster; returns its new generation."""
        return int(self.client.execute_command("ROUTE.RENEW", self.info().generation))


class Nodes:
    """The nodes of a cluster, with sessions spread over them.

    Args:
        cluster: with its slots as they were at the start.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.all = [Node(server) for server in cluster.nodes]

    def of(self, client_id: str) -> Node:
        """The node of a session."""
        return next(node for node in self.all if node.server is self.cluster.node_of(client_id))

    def clients(self, node: Node) -> Iterator[str]:
        """Ids of clients whose sessions are on a node."""
        return (name for name in (f"c{i}" for i in range(SLOTS)) if self.of(name) is node)


def error_of(client: redis.Redis, *words: str | bytes | int) -> str:
    """What the server replies to a command that it refuses."""
    try:
        reply = client.execute_command(*words)
    except redis.exceptions.MovedError as error:
        return f"MOVED {error.slot_id}"
    except redis.exceptions.TryAgainError as error:
        return f"TRYAGAIN {error}"
    except redis.exceptions.ReadOnlyError as error:
        return f"READONLY {error}"
    except redis.ResponseError as error:
        return str(error)
    raise AssertionError(f"not refused: {words[0]!r} replies {reply!r}")


def matching(truth: set[Route], topic: str) -> set[int]:
    """The slots of the routes whose filters match the topic."""
    return {slot for topic_filter, slot in truth if core.matches(topic_filter, topic)}


def random_filters(rng: random.Random) -> list[str]:
    """Filters that overlap."""
    levels = ["a", "b", "c", "+"]
    return ["/".join(rng.choice(levels) for _ in range(rng.randint(1, 3))) + rng.choice(["", "/#"]) for _ in range(40)]


def works(node: Node) -> bool:
    """Does its cluster work, as it sees it?"""
    try:
        node.client.execute_command("ROUTE.TOKEN", "a", 0)
    except redis.exceptions.ClusterDownError:
        return False
    return True


def knows(node: Node, other: Node, ending: str = "") -> None:
    """Wait until a node knows another, with this end of its line."""
    line = re.compile(f"^{other.id} .*{ending}", re.MULTILINE)
    eventually(
        lambda: line.search(node.client.execute_command("CLUSTER", "NODES").decode()), WAIT_S, "a node that knows"
    )


def take(node: Node, slot: int, source: Node) -> None:
    """Let a node take an empty slot; only itself is told."""
    node.client.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", source.id)
    node.client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", node.id)


@dataclass(frozen=True)
class Failover:
    """Nodes of a test's own, any of which a replica can replace.

    Attributes:
        fresh_server: starts a server that is no node yet.
    """

    nodes: Nodes
    fresh_server: Callable[..., Server]

    def add_replica(self, primary: Node) -> Node:
        """A replica of a node, which all other nodes know: they would not hear of it once its primary is gone."""
        server = self.fresh_server(cluster=True, config=FAILS_OVER)
        replica = Node(add_replica(self.nodes.cluster, primary.server, server))
        for node in self.nodes.all:
            if node is not primary:
                knows(node, replica, f" slave {primary.id} .*connected")
                knows(replica, node, " connected")
        return replica

    def replace(self, primary: Node, replica: Node, slot: int) -> None:
        """Kill a node once its replica has everything, and promote the replica, which then serves the slot."""
        primary.client.execute_command("WAIT", 1, 1000)
        primary.server.kill()
        promote(self.nodes.cluster, replica.server, slot)
