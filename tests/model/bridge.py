"""A bridge of the model: it publishes in pipelines, subscribes, feeds nodes and removes routes.

It sends commands over one connection to each node.  Replies come in order, or the connection breaks and each command
that has no reply gets LOST, whether it was executed or not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.model.server import (
    FENCED,
    NOHOME,
    NOROUTES,
    OK,
    SERVED,
    STALEHOME,
    UNKNOWN,
    Generation,
    Message,
    Route,
    Sent,
    Subscribed,
    Targets,
    slot_of,
)

if TYPE_CHECKING:
    from tests.model.world import World

LOST = "LOST"
WAIT = "WAIT"  # what a coroutine yields instead of a command: continue later
ATTEMPTS = 12  # of a subscription, then its SUBACK says that it failed
Coroutine = Generator[Any, Any, None]
Command = tuple[str, tuple[Any, ...]]


class Connection:
    """From a bridge to a node."""

    def __init__(self, bridge: Bridge, node: str) -> None:
        self.bridge = bridge
        self.node = node
        self.requests: deque[tuple[Command, Callable[[Any], None]]] = deque()
        self.replies: deque[tuple[Any, Command, Callable[[Any], None]]] = deque()
        self.refused: set[int] = set()


@dataclass(eq=False)
class Pending:
    """A message that is not acknowledged yet."""

    message: Message
    packet: int
    number: tuple[int, int] | None = None
    targets: Targets | None = None  # by which it was sent
    want: set[int] = field(default_factory=set)
    served: set[int] = field(default_factory=set)
    underway: set[int] = field(default_factory=set)
    is_started: bool = False
    is_checking: bool = False
    is_checked: bool = False


class Lane:
    """A connected publisher: what it sends goes out in its order."""

    def __init__(self, bridge: Bridge, client: str, epoch: int, floor: tuple[int, int]) -> None:
        self.bridge = bridge
        self.client = client
        self.epoch = epoch
        self.pending: list[Pending] = []
        self.floor = floor
        self.is_open = True

    def add(self, message: Message, packet: int) -> None:
        """A PUBLISH of the client."""
        self.pending.append(Pending(message, packet))
        self.go()

    def go(self) -> None:
        """Start what may start: each message after those before it."""
        if not self.is_open or not self.bridge.is_up:
            return
        for pending in self.pending:
            self.ask_number(pending)
        for pending in list(self.pending):
            if pending.is_started:
                continue
            if not self.start(pending):
                return

    def ask_number(self, pending: Pending) -> None:
        """QoS 2: the number comes before everything else."""
        if pending.message.qos < 2 or pending.number is not None or pending.is_checking:
            return
        pending.is_checking = True
        self.bridge.send(
            self.bridge.owner(slot_of(self.client)),
            ("receive", (self.client, self.epoch, pending.packet)),
            lambda reply: self.on_number(pending, reply),
        )

    def start(self, pending: Pending) -> bool:
        """False: it waits, and so do those after it."""
        bridge, message = self.bridge, pending.message
        targets = bridge.cache.get(message.topic)
        if bridge.design.sets_are_pinned:
            if targets is not None:
                self.check_earlier(pending, targets)
            if any(before.targets != targets for before in self.unchecked(pending)):
                return False
        if message.qos == 2 and pending.number is None:
            return False
        pending.is_started = True
        pending.targets = targets
        self.check(pending)
        if targets is not None:
            self.visit(pending, targets.slots)
        return True

    def earlier(self, pending: Pending) -> list[Pending]:
        """What was published before it to the same topic, and is not acknowledged yet."""
        before = self.pending[: self.pending.index(pending)] if pending in self.pending else []
        return [p for p in before if p.message.topic == pending.message.topic]

    def check_earlier(self, pending: Pending, targets: Targets) -> None:
        """Another node answers now: what it knows has to count for earlier messages, too, and first."""
        for before in self.earlier(pending):
            if before.is_checked and before.targets and before.targets.generation != targets.generation:
                before.is_checked = False
                before.message.is_repeated = True
                self.check(before)

    def unchecked(self, pending: Pending) -> list[Pending]:
        """Those of them that are not checked yet."""
        return [p for p in self.earlier(pending) if not p.is_checked]

    def on_number(self, pending: Pending, reply: Any) -> None:
        """The number of a QoS 2 message."""
        pending.is_checking = False
        if reply == FENCED:
            self.is_open = False
        elif isinstance(reply, tuple):
            pending.number = reply
            self.go()
        else:
            self.bridge.later(self.go)

    def check(self, pending: Pending) -> None:
        """Ask whether its set of slots is right."""
        if pending.is_checking or pending.is_checked or not self.is_open:
            return
        pending.is_checking = True
        bridge = self.bridge
        by = None if pending.targets is None else (pending.targets.generation, pending.targets.version)
        bridge.send(
            bridge.owner(slot_of(self.client)),
            ("check", (self.client, self.epoch, pending.message.topic, by)),
            lambda reply: self.on_check(pending, reply),
        )

    def on_check(self, pending: Pending, reply: Any) -> None:
        """OK, another set, or why there is none."""
        pending.is_checking = False
        bridge = self.bridge
        if reply == FENCED:
            self.is_open = False
            return
        if reply == OK:
            pending.is_checked = True
        elif isinstance(reply, Targets):
            if bridge.design.sets_are_pinned:
                self.check_earlier(pending, reply)
                if self.unchecked(pending):
                    bridge.later(lambda: self.check(pending))  # the earlier one has to go to new slots first
                    return
            pending.is_checked = True
            bridge.cache[pending.message.topic] = pending.targets = reply
            self.visit(pending, reply.slots)
        else:
            if isinstance(reply, tuple) and reply[0] == NOROUTES:
                bridge.feed(reply[1])
            bridge.later(lambda: self.check(pending))
            return
        self.settle(pending)
        self.go()

    def visit(self, pending: Pending, slots: Any) -> None:
        """Send it to slots that it has not been sent to."""
        for slot in sorted(set(slots) - pending.want):
            pending.want.add(slot)
            self.bridge.to_slot(slot, self, pending)

    def settle(self, pending: Pending) -> None:
        """PUBACK or PUBREC when the check passed and all its slots are served."""
        if pending.is_checked and pending.want <= pending.served and self.is_open and pending in self.pending:
            self.pending.remove(pending)
            numbers = [other.number for other in self.pending if other.number is not None]
            if pending.number is not None:
                later = (pending.number[0], pending.number[1] + 1)
                if all(other.number is not None for other in self.pending if other.message.qos == 2):
                    self.floor = max(self.floor, min([*numbers, later]))
            self.bridge.world.acknowledge(self, pending)
            self.go()


class Bridge:
    """A process of the front.

    Attributes:
        topology: who has each slot, as it believes.
        cache: of each topic, the last answer about its slots.
        blocked: slots with a refusal; what they are to get waits in their line.
    """

    def __init__(self, name: str, world: World) -> None:
        self.name = name
        self.world = world
        self.design = world.design
        self.is_up = True
        self.topology: dict[int, tuple[int, str]] = {}
        self.connections: dict[str, Connection] = {}
        self.cut: set[str] = set()
        self.cache: dict[str, Targets] = {}
        self.feeding: set[Generation] = set()
        self.lines: dict[int, list[tuple[Lane, Pending]]] = {}
        self.underway: dict[int, list[tuple[Lane, Pending]]] = {}
        self.sent_to: dict[int, str] = {}  # the node to which a slot's messages went last
        self.blocked: set[int] = set()
        self.unresumed: dict[int, set[Connection]] = {}
        self.waiting: list[Callable[[], None]] = []

    # --- commands ---

    def owner(self, slot: int) -> str:
        """Who has the slot, as it believes."""
        return self.topology[slot][1]

    def learn(self, view: dict[int, tuple[int, str]]) -> None:
        """Believe later claims."""
        for slot, claim in view.items():
            if claim[0] > self.topology.get(slot, (-1, ""))[0]:
                self.topology[slot] = claim

    def send(self, node: str, command: Command, on_reply: Callable[[Any], None]) -> None:
        """The reply comes later."""
        if node not in self.connections:
            self.connections[node] = Connection(self, node)
        self.connections[node].requests.append((command, on_reply))

    def later(self, work: Callable[[], None]) -> None:
        """Continue when something may have changed."""
        self.waiting.append(work)

    def run(self, coroutine: Coroutine, reply: Any = None) -> None:
        """Continue a coroutine until it sends a command or waits."""
        if not self.is_up:
            return
        try:
            step = coroutine.send(reply)
        except StopIteration:
            return
        if step == WAIT:
            self.later(lambda: self.run(coroutine))
        else:
            node, name, *words = step
            self.send(node, (name, tuple(words)), lambda answer: self.run(coroutine, answer))

    # --- slots ---

    def to_slot(self, slot: int, lane: Lane, pending: Pending) -> None:
        """Send a message to a slot, or let it wait in the slot's line."""
        self.lines.setdefault(slot, []).append((lane, pending))
        self.flush(slot)

    def flush(self, slot: int) -> None:
        """Send what is in the line, in its order."""
        if slot in self.blocked:
            return
        node = self.owner(slot)
        if self.design.slots_change_nodes_when_idle and self.underway.get(slot) and self.sent_to[slot] != node:
            self.block(slot, self.sent_to[slot])
            return
        self.sent_to[slot] = node
        line, self.lines[slot] = self.lines.get(slot, []), []
        for lane, pending in line:
            if not lane.is_open or pending not in lane.pending:
                continue
            generation = self.generation_for(pending)
            if generation is None:
                self.lines[slot].append((lane, pending))
                continue
            self.underway.setdefault(slot, []).append((lane, pending))
            sent = Sent(generation, lane.epoch, pending.number, lane.floor)
            self.send(
                node,
                ("publish", ((slot,), pending.message, sent)),
                self.on_served(slot, node, lane, pending, generation),
            )

    def generation_for(self, pending: Pending) -> Generation | None:
        """By whose answer the message is sent."""
        return None if pending.targets is None else pending.targets.generation

    def on_served(
        self, slot: int, node: str, lane: Lane, pending: Pending, generation: Generation
    ) -> Callable[[Any], None]:
        """What to do with the verdict of a slot."""

        def take(reply: Any) -> None:
            self.underway[slot].remove((lane, pending))
            verdict = reply if reply == LOST else reply[slot]
            if verdict == SERVED:
                pending.served.add(slot)
                lane.settle(pending)
            elif verdict == FENCED:
                lane.is_open = False
                self.block(slot, node)
            else:
                self.block(slot, node)
                self.lines.setdefault(slot, []).append((lane, pending))
                if verdict == NOHOME:
                    self.run(self.introduce(node, generation, lambda: self.check_again(lane, pending, generation)))
                elif verdict == STALEHOME:
                    self.check_again(lane, pending, generation)

        return take

    def check_again(self, lane: Lane, pending: Pending, generation: Generation) -> None:
        """The one that answered has been replaced: ask its successor, and send the message by that answer."""
        self.forget(generation)
        if pending.targets is not None and pending.targets.generation == generation:
            pending.is_checked = False
            pending.message.is_repeated = True
            lane.check(pending)

    def forget(self, generation: Generation) -> None:
        """A generation that another one has replaced."""
        self.cache = {topic: found for topic, found in self.cache.items() if found.generation != generation}

    def block(self, slot: int, node: str) -> None:
        """Let everything for the slot wait until what is under way was answered; then resume."""
        if slot not in self.blocked:
            self.blocked.add(slot)
            self.later(lambda: self.resume(slot))
        if node in self.connections:
            self.unresumed.setdefault(slot, set()).add(self.connections[node])

    def broken(self, connection: Connection) -> None:
        """All that has no reply gets LOST, and no slot of it continues before all of it did."""
        lost = [(command, on_reply) for _reply, command, on_reply in connection.replies] + list(connection.requests)
        connection.requests.clear()
        connection.replies.clear()
        if self.connections.get(connection.node) is connection:
            del self.connections[connection.node]
        for (name, words), _on_reply in lost:
            if name == "publish":
                self.block(words[0][0], connection.node)
        for _command, on_reply in lost:
            on_reply(LOST)

    def resume(self, slot: int) -> None:
        """Send the line in the order of its lanes."""
        if self.underway.get(slot):
            self.later(lambda: self.resume(slot))
            return
        for connection in self.unresumed.pop(slot, set()):
            if self.connections.get(connection.node) is connection:
                self.send(connection.node, ("resume", (slot,)), lambda _reply: None)
        self.blocked.discard(slot)
        order = {
            id(pending): (n, m) for n, lane in enumerate(self.world.lanes) for m, pending in enumerate(lane.pending)
        }
        self.lines[slot] = sorted(
            (entry for entry in self.lines.get(slot, []) if id(entry[1]) in order),
            key=lambda entry: order[id(entry[1])],
        )
        self.flush(slot)

    # --- routes ---

    def introduce(self, node: str, generation: Generation, is_replaced: Callable[[], None] = lambda: None) -> Coroutine:
        """A node of sessions exports to the one that answers, unless that has been replaced."""
        exported = yield (node, "export", generation)
        if exported in (STALEHOME, UNKNOWN):
            is_replaced()
        elif isinstance(exported, tuple):
            yield (generation[0], "feed", generation, *exported)

    def feed(self, generation: Generation) -> None:
        """All nodes export to it."""
        if generation not in self.feeding:
            self.feeding.add(generation)
            self.run(self._feed(generation))

    def _feed(self, generation: Generation) -> Coroutine:
        for node in sorted({owner for _epoch, owner in self.topology.values()}):
            exported = yield (node, "export", generation)
            if isinstance(exported, tuple):
                yield (generation[0], "feed", generation, *exported)
        self.feeding.discard(generation)

    def subscribe(self, session: str, topic_filter: str) -> Coroutine:
        """SUBSCRIBE of a client, to its SUBACK."""
        route: Route = (topic_filter, slot_of(session))
        counted: dict[str, Any] = {}
        for attempt in range(ATTEMPTS):
            if attempt > 0:
                yield WAIT
            node = self.owner(route[1])
            reply = yield (node, "subscribe", session, topic_filter)
            if not isinstance(reply, Subscribed):
                continue
            if not self.design.route_before_suback:
                self.world.subscribed(session, topic_filter)
            confirmed: set[Generation] = set()
            if self.may_skip(reply) or (yield from self.add_everywhere(node, route, reply, confirmed, counted)):
                self.world.subscribed(session, topic_filter)
                yield (node, "confirm", route, reply.serial, confirmed)
                return
        yield from self.unsubscribe(session, topic_filter)

    def may_skip(self, reply: Subscribed) -> bool:
        """The rule that is left out on purpose: another session's registration is relied on."""
        return not self.design.unconfirmed_routes_are_added and not reply.is_first_of_slot

    def add_everywhere(
        self, node: str, route: Route, reply: Subscribed, confirmed: set[Generation], counted: dict[str, Any]
    ) -> Generator[Any, Any, bool]:
        """The route, at each node that may answer; true if all of them have it for good."""
        asked = {owner for _epoch, owner in self.topology.values()}
        if self.design.everyone_is_asked:
            asked |= reply.primaries | set(reply.homes)
        if not self.design.superseded_homes_are_asked:
            asked -= reply.superseded
        complete = True
        for home in sorted(asked):
            known = (home, reply.homes.get(home, -1))
            if known in reply.confirmed and self.design.routes_are_sets:
                confirmed.add(known)
                continue
            added = counted.get(home) or (yield (home, "add", route))
            if not self.design.routes_are_sets and isinstance(added, tuple):
                counted[home] = added  # a number may be raised once only
            if added == LOST and home in reply.superseded:
                yield (node, "drop_home", home, reply.homes[home])
                complete = False
            elif added == UNKNOWN:  # it has no slots now, and will begin with a new generation
                continue
            elif added == known:
                confirmed.add(known)
            elif added == LOST:
                complete = False
            else:
                yield from self.introduce(node, added)
                complete = False
        return complete

    def unsubscribe(self, session: str, topic_filter: str) -> Coroutine:
        """UNSUBSCRIBE of a client."""
        while True:
            reply = yield (self.owner(slot_of(session)), "unsubscribe", session, topic_filter)
            if reply == OK:
                break
            yield WAIT
        if not self.design.routes_are_sets:
            yield from self.lower((topic_filter, slot_of(session)))

    def lower(self, route: Route) -> Coroutine:
        """The rule that is left out on purpose: routes are numbers, and DEL is repeated like any command."""
        for home in sorted({owner for _epoch, owner in self.topology.values()}):
            while (yield (home, "delete", route, None)) == LOST:
                yield WAIT

    def remove(self, home: str, route: Route) -> Coroutine:
        """Remove a route that leads nowhere."""
        token = yield (home, "token", route)
        if token in (None, LOST):
            return
        unused = yield (self.owner(route[1]), "is_unused", route)
        if unused is True:
            yield (home, "delete", route, token)

    def connect(self, client: str, is_connected: Callable[[int], None]) -> Coroutine:
        """CONNECT of a publisher."""
        while True:
            epoch = yield (self.owner(slot_of(client)), "open", client)
            if isinstance(epoch, int):
                is_connected(epoch)
                return
            yield WAIT
