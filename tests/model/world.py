"""A cluster of the model with its bridges, clients and mishaps, and the books that are kept about the laws.

Everything that happens is one of the events of World.step, chosen by a generator of random numbers with a seed, so that
each interleaving can be repeated.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.model.bridge import Bridge, Connection, Lane, Pending
from tests.model.server import FILTERS, SLOTS, TOPICS, Data, Message, Server, copy_of, matches, slot_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tests.model.design import Design

SESSIONS = ("s0", "t0", "s2", "t2", "s4")
PUBLISHERS = ("p1", "p3")
IN_FLIGHT = 3  # of a publisher
ROUNDS = 80  # until everything that can be done must be done


class LawBrokenError(AssertionError):
    """A law does not hold."""


@dataclass
class Client:
    """A publisher, which resends in order what was not acknowledged."""

    name: str
    bridge: Bridge
    lane: Lane | None = None
    unacknowledged: list[tuple[Message, int]] = field(default_factory=list)
    sent: int = 0


@dataclass
class Move:
    """A slot that moves key by key."""

    slot: int
    source: str
    target: str
    is_finished: bool = False


@dataclass(frozen=True)
class Weather:
    """What an interleaving is made of.

    Attributes:
        steps: events.
        mishaps: how many of them.
        kinds: of mishaps, by the name of the method of World.
        qos: of the messages.
        churn: how often clients subscribe and unsubscribe.
        traffic: how often they publish.
        learning: how often bridges ask for the slots.
        sessions, filters: that subscribe.
    """

    steps: int = 240
    mishaps: int = 4
    kinds: tuple[str, ...] = (
        "fail_over",
        "restart",
        "begin_move",
        "begin_move",
        "crash_bridge",
        "take_over",
        "cut_or_join",
        "break_one",
    )
    qos: tuple[int, ...] = (1, 2)
    churn: int = 1
    traffic: int = 1
    learning: int = 3
    sessions: tuple[str, ...] = SESSIONS
    filters: tuple[str, ...] = FILTERS


class World:
    """One run.

    Args:
        design: the rules.
        seed: of the interleaving.
        weather: what may happen in it.
    """

    def __init__(self, design: Design, seed: int, weather: Weather) -> None:
        self.design = design
        self.weather = weather
        self.random = random.Random(seed)
        self.counter = itertools.count(100)
        self.config_epoch = itertools.count(10)
        self.servers: dict[str, Server] = {}
        self.truth: dict[int, str] = {}
        self.replicas: dict[str, Data] = {}
        self.moves: list[Move] = []
        self.orphans: list[Connection] = []
        self.acknowledged: set[tuple[str, str]] = set()  # subscriptions with a SUBACK
        self.subscribing: set[tuple[str, str]] = set()
        self.forlorn: set[tuple[str, str]] = set()  # written by a superseded primary, which loses them
        self.open: list[Message] = []
        self.lanes: list[Lane] = []
        self.stalled: set[tuple[str, str]] = set()
        self.outside: set[Message] = set()  # a node that knew better than the one that answered saw it
        self.trace: list[str] = []
        for name in "ABCD":
            self.servers[name] = self.make_server(name)
            self.replicas[name] = Data()
        for slot in range(SLOTS):
            self.truth[slot] = "ABC"[slot // 2]
        for server in self.servers.values():
            server.view = {slot: (1, owner) for slot, owner in self.truth.items()}
        self.bridges = [self.make_bridge("x"), self.make_bridge("y")]
        self.clients = {name: Client(name, self.random.choice(self.bridges)) for name in PUBLISHERS}
        for client in self.clients.values():
            self.connect(client, client.bridge)

    def make_server(self, name: str) -> Server:
        """A node without slots."""
        return Server(name, self.design, lambda: next(self.counter), self.on_stored)

    def make_bridge(self, name: str) -> Bridge:
        """A bridge that knows the cluster as it is."""
        bridge = Bridge(name, self)
        for server in self.servers.values():
            if server.up and server.hears_bus:
                bridge.learn(server.view)
        return bridge

    def say(self, text: str) -> None:
        """For whoever reads why a run failed."""
        self.trace.append(text)

    # --- the books ---

    def on_stored(self, session: str, queue: list[Message], message: Message) -> None:
        """Laws 3 and 4, when a message is added to a queue."""
        before = queue[:-1]
        if message in before:
            if message.qos == 2 and not message.may_repeat:
                raise LawBrokenError(f"law 4: {session} got {message} twice")
            return
        if message.is_repeated and session not in message.owed:
            return  # it subscribed between the first attempt and this one, as can be on a single server
        later = [
            other
            for other in before
            if (other.publisher, other.topic) == (message.publisher, message.topic)
            and other.sequence > message.sequence
        ]
        if later:
            raise LawBrokenError(f"law 3: {session} got {message} after {later[0]}")

    def subscribed(self, session: str, topic_filter: str) -> None:
        """A SUBACK is sent."""
        self.say(f"SUBACK {session} {topic_filter}")
        if (session, topic_filter) not in self.forlorn:
            self.acknowledged.add((session, topic_filter))

    def queues_of(self, session: str) -> list[Message]:
        """What a session has, wherever its keys are."""
        places = {self.truth[slot_of(session)]}
        places |= {
            place for move in self.moves if move.slot == slot_of(session) for place in (move.source, move.target)
        }
        return [message for place in places for message in self.servers[place].data.queues.get(session, [])]

    def acknowledge(self, lane: Lane, pending: Pending) -> None:
        """Law 1, when a PUBACK or PUBREC is sent."""
        message = pending.message
        client = self.clients[message.publisher]
        if client.lane is not lane:
            return  # nobody hears it
        self.say(f"PUBACK {message}")
        client.unacknowledged = [pair for pair in client.unacknowledged if pair[0] is not message]
        message.acknowledged = True
        if message in self.open:
            self.open.remove(message)
        answered = pending.targets.generation[0] if pending.targets else ""
        if answered not in self.truth.values() and message not in self.outside:
            return  # a superseded primary, and no node that was visited knew: docs/cluster-design.md
        for session in sorted(message.owed - message.spared):
            if message not in self.queues_of(session):
                raise LawBrokenError(f"law 1: {message} was acknowledged, and {session} has not got it")

    def lost(self, name: str, after: Data) -> None:
        """What a replica or a file that is behind its primary has lost: it counts no longer."""
        before = self.servers[name].data
        for client in self.clients.values():
            if self.truth[slot_of(client.name)] == name or client.name in before.clients_all():
                for message, _packet in client.unacknowledged:
                    message.may_repeat = True
        for session in before.clients_all():
            kept = after.filters.get(session, set())
            for topic_filter in before.filters.get(session, set()) - kept:
                self.acknowledged.discard((session, topic_filter))
                self.spare(session)
            missing = set(before.queues.get(session, [])) - set(after.queues.get(session, []))
            for message in missing:
                message.spared.add(session)
        for message in self.open:  # it may come again where the note of it was lost with it, and only there
            if any(message in queue for queue in before.queues.values()):
                message.may_repeat = message.may_repeat or not all(
                    message in after.queues.get(name, []) for name, queue in before.queues.items() if message in queue
                )

    def spare(self, session: str) -> None:
        """Its subscription ends."""
        for message in self.open:
            message.owed.discard(session)

    # --- what clients do ---

    def connect(self, client: Client, bridge: Bridge) -> None:
        """Connect a publisher; what it had not acknowledged comes again."""
        client.bridge, client.lane = bridge, None

        def is_connected(epoch: int) -> None:
            if client.bridge is not bridge or (client.lane is not None and client.lane.epoch > epoch):
                return
            client.lane = Lane(bridge, client.name, epoch, (0, 0))
            self.lanes.append(client.lane)
            for message, packet in client.unacknowledged:
                message.is_repeated = True
                client.lane.add(message, packet)

        bridge.run(bridge.connect(client.name, is_connected))

    def publish(self, name: str = "", topic: str = "", qos: int = 0) -> None:
        """A PUBLISH arrives; what is not given is chosen."""
        client = self.clients[name or self.random.choice(PUBLISHERS)]
        if client.lane is None or not client.lane.is_open or len(client.unacknowledged) >= IN_FLIGHT:
            return
        client.sent += 1
        topic, qos = topic or self.random.choice(TOPICS), qos or self.random.choice(self.weather.qos)
        owed = {session for session, f in self.acknowledged if matches(f, topic)}
        message = Message(client.name, topic, client.sent, qos, owed)
        self.say(f"PUBLISH {message} owed to {sorted(owed)}")
        self.open.append(message)
        client.unacknowledged.append((message, client.sent))
        client.lane.add(message, client.sent)

    def subscribe(self, session: str = "", topic_filter: str = "") -> None:
        """A SUBSCRIBE arrives."""
        session = session or self.random.choice(self.weather.sessions)
        topic_filter = topic_filter or self.random.choice(self.weather.filters)
        if (session, topic_filter) in self.acknowledged or (session, topic_filter) in self.subscribing:
            return
        bridge = self.random.choice(self.bridges)
        self.say(f"SUBSCRIBE {session} {topic_filter} by {bridge.name}")
        self.subscribing.add((session, topic_filter))
        bridge.run(self.until_done(bridge.subscribe(session, topic_filter), (session, topic_filter)))

    def unsubscribe(self, session: str = "", topic_filter: str = "") -> None:
        """An UNSUBSCRIBE arrives."""
        if not self.acknowledged:
            return
        if not session:
            session, topic_filter = self.random.choice(sorted(self.acknowledged))
        if (session, topic_filter) in self.subscribing:
            return
        self.say(f"UNSUBSCRIBE {session} {topic_filter}")
        self.acknowledged.discard((session, topic_filter))
        self.spare(session)
        self.subscribing.add((session, topic_filter))
        bridge = self.random.choice(self.bridges)
        bridge.run(self.until_done(bridge.unsubscribe(session, topic_filter), (session, topic_filter)))

    def until_done(self, coroutine: Any, subscription: tuple[str, str]) -> Any:
        """One at a time for a session and filter."""
        yield from coroutine
        self.subscribing.discard(subscription)

    def remove(self, home: str = "") -> None:
        """A bridge removes a route."""
        bridge = self.random.choice(self.bridges)
        server = self.servers[home or self.random.choice(sorted(self.servers))]
        if server.routes and self.design.routes_are_sets:
            bridge.run(bridge.remove(server.name, self.random.choice(sorted(server.routes))))

    # --- what happens to them ---

    def replicate(self) -> None:
        """Replicas and files catch up."""
        name = self.random.choice(sorted(self.replicas))
        self.replicas[name] = copy_of(self.servers[name].data)

    def gossip(self) -> None:
        """A node hears what another one believes."""
        hearing = [server for server in self.servers.values() if server.up and server.hears_bus]
        one, other = self.random.choice(hearing), self.random.choice(hearing)
        one.hear(other.view)

    def learn(self) -> None:
        """A bridge asks a node for the slots."""
        bridge, server = self.random.choice(self.bridges), self.random.choice(list(self.servers.values()))
        if server.up and server.name not in bridge.cut:
            bridge.learn(server.view)

    def claim(self, server: Server, slots: Any) -> None:
        """The slots are this node's, with a config epoch that is greater than all others."""
        epoch = next(self.config_epoch)
        for slot in slots:
            server.view[slot] = (epoch, server.name)
            self.truth[slot] = server.name

    def is_busy(self, name: str) -> bool:
        """Does a slot move from or to it?"""
        return any(name in (move.source, move.target) for move in self.moves)

    def supersede(self) -> None:
        """A is replaced, and only the bridge of p1 reaches it still; the other nodes and the other bridge know."""
        self.replicas["A"] = copy_of(self.servers["A"].data)
        self.fail_over("A", is_cut_off=True)
        for bridge in self.bridges:
            bridge.cut.clear()
            if bridge is not self.clients["p1"].bridge:
                bridge.cut.add("A")
                bridge.learn(self.servers[self.truth[0]].view)
        for name in ("B", "C"):
            self.servers[name].hear(self.servers[self.truth[0]].view)

    def pause(self) -> None:
        """Only what is under way happens."""

    def fail_over(self, name: str = "", is_cut_off: bool | None = None) -> None:
        """A replica takes the place of a primary, which is dead or only cut off from the bus."""
        name = name or self.random.choice(sorted(set(self.truth.values())))
        old = self.servers[name]
        new = self.make_server(f"{name[0]}{len(self.servers)}")
        new.view, new.data, new.moving = dict(old.view), self.replicas.pop(name), dict(old.moving)
        self.servers[new.name] = new
        self.replicas[new.name] = copy_of(new.data)
        if is_cut_off is None:
            is_cut_off = self.random.random() < 0.5
        self.say(f"{new.name} takes the place of {name}, {'cut off' if is_cut_off else 'dead'}")
        self.lost(name, new.data)
        self.claim(new, [slot for slot, owner in self.truth.items() if owner == name])
        for move in self.moves:
            move.source = new.name if move.source == name else move.source
            move.target = new.name if move.target == name else move.target
        new.start()
        old.hears_bus = False
        if is_cut_off:
            if self.random.random() < 0.5:
                self.random.choice(self.bridges).cut.add(name)
        else:
            old.up = False

    def come_back(self) -> None:
        """Who was cut off hears of its successor."""
        old = [server for server in self.servers.values() if server.up and not server.hears_bus]
        if old:
            server = self.random.choice(old)
            server.hears_bus = True
            for other in self.servers.values():
                if other.up and other.hears_bus:
                    server.hear(other.view)
            server.data = Data()
            self.replicas[server.name] = Data()
            self.say(f"{server.name} hears that it was replaced")

    def restart(self) -> None:
        """A primary restarts before it is replaced, with a file that is behind."""
        server = self.servers[self.random.choice(sorted(set(self.truth.values())))]
        self.say(f"{server.name} restarts")
        self.lost(server.name, self.replicas[server.name])
        server.data = copy_of(self.replicas[server.name])
        server.start()
        for connection in self.connections():
            if connection.node == server.name:
                self.break_off(connection)

    def begin_move(self) -> None:
        """A slot begins to move."""
        slot = self.random.randrange(SLOTS)
        source = self.truth[slot]
        targets = [n for n, s in self.servers.items() if n != source and s.up and s.hears_bus]
        if not targets or any(move.slot == slot for move in self.moves):
            return
        target = self.random.choice(targets)
        if self.random.random() < 0.4:
            target = "D" if "D" in targets else target
        self.say(f"slot {slot} moves from {source} to {target}")
        self.servers[source].moving[slot] = target
        self.servers[target].moving[slot] = source
        self.moves.append(Move(slot, source, target))

    def go_on_moving(self) -> None:
        """Some keys move, or the move ends at the target, or the source hears of it."""
        if not self.moves:
            return
        move = self.random.choice(self.moves)
        source, target = self.servers[move.source], self.servers[move.target]
        if move.is_finished:
            source.hear(target.view)
            source.moving.pop(move.slot, None)
            self.moves.remove(move)
        elif (clients := sorted(source.data.clients(move.slot))) and self.random.random() < 0.7:
            source.data.move_session(self.random.choice(clients), target.data)
        else:
            self.say(f"slot {move.slot} is {target.name}'s")
            source.data.move_slot(move.slot, target.data)
            target.moving.pop(move.slot, None)
            had = target.owned()
            self.claim(target, [move.slot])
            if not had:
                target.start()
            move.is_finished = True

    def crash_bridge(self) -> None:
        """A bridge dies; what it had sent still arrives."""
        at = self.random.randrange(len(self.bridges))
        dead = self.bridges[at]
        self.say(f"bridge {dead.name} dies")
        dead.is_up = False
        self.orphans += dead.connections.values()
        self.bridges[at] = self.make_bridge(dead.name + "'")
        self.subscribing.clear()  # nobody waits for a SUBACK of it
        for client in self.clients.values():
            if client.bridge is dead:
                self.connect(client, self.random.choice(self.bridges))

    def take_over(self) -> None:
        """A client connects to another bridge while its old connection stands."""
        client = self.clients[self.random.choice(PUBLISHERS)]
        self.say(f"{client.name} connects again")
        self.connect(client, self.random.choice(self.bridges))

    def come_again(self) -> None:
        """A client whose connection was closed connects again."""
        for client in self.clients.values():
            if client.lane is not None and not client.lane.is_open:
                self.connect(client, self.random.choice(self.bridges))

    def cut_or_join(self) -> None:
        """A bridge loses a node, or reaches it again."""
        bridge = self.random.choice(self.bridges)
        if bridge.cut:
            bridge.cut.clear()
        else:
            bridge.cut.add(self.random.choice(sorted(self.servers)))

    def connections(self) -> list[Connection]:
        """Of all bridges that live."""
        return [connection for bridge in self.bridges for connection in bridge.connections.values()]

    def break_off(self, connection: Connection) -> None:
        """Some commands are still executed; no reply comes."""
        server = self.servers[connection.node]
        reaches = self.random.randint(0, len(connection.requests)) if server.up else 0
        if connection.node not in connection.bridge.cut:
            for (name, words), _on_reply in list(connection.requests)[:reaches]:
                self.execute(connection, name, words)
        connection.bridge.broken(connection)

    def execute(self, connection: Connection, name: str, words: tuple[Any, ...]) -> Any:
        """One command, one step."""
        server = self.servers[connection.node]
        if name == "publish":
            (slot,), message, sent = words
            if self.truth[slot] == server.name:
                if sent.generation[0] not in server.primaries():
                    self.outside.add(message)
            elif server.refusal(slot) is None:  # what a superseded primary stores is lost
                message.spared |= {session for session in SESSIONS if slot_of(session) == slot}
        if name == "receive" and self.truth[slot_of(words[0])] != server.name:  # the number is lost with it
            for message, packet in self.clients[words[0]].unacknowledged:
                message.may_repeat = message.may_repeat or packet == words[2]
        if name == "subscribe":
            if self.truth[slot_of(words[0])] == server.name:
                self.forlorn.discard(words)
            else:
                self.forlorn.add(words)
        reply = getattr(server, name)(connection, *words)
        if reply == "MOVED" or (isinstance(reply, dict) and "MOVED" in reply.values()):
            connection.bridge.learn(server.view)
        return reply

    def deliver(self) -> bool:
        """A command arrives at a node."""
        ready = [c for c in [*self.connections(), *self.orphans] if c.requests]
        if self.stalled:
            ready = [c for c in ready if (c.bridge.name, c.node) not in self.stalled]
        if not ready:
            return False
        connection = self.random.choice(ready)
        server = self.servers[connection.node]
        if connection.bridge.is_up and (not server.up or connection.node in connection.bridge.cut):
            self.break_off(connection)
            return True
        (name, words), on_reply = connection.requests.popleft()
        if server.up:
            reply = self.execute(connection, name, words)
            if connection.bridge.is_up:
                connection.replies.append((reply, (name, words), on_reply))
        return True

    def answer(self) -> bool:
        """A reply arrives at a bridge."""
        ready = [connection for connection in self.connections() if connection.replies]
        if not ready:
            return False
        reply, _command, on_reply = self.random.choice(ready).replies.popleft()
        on_reply(reply)
        return True

    def wake(self) -> bool:
        """Something that waits is tried again."""
        ready = [bridge for bridge in self.bridges if bridge.waiting]
        if not ready:
            return False
        waiting = self.random.choice(ready).waiting
        waiting.pop(self.random.randrange(len(waiting)))()
        return True

    # --- runs ---

    def run(self) -> None:
        """The events, then everything has to come to an end."""
        steps, churn = self.weather.steps, self.weather.churn
        often: list[tuple[Callable[[], Any], int]] = [
            (self.deliver, 40),
            (self.answer, 36),
            (self.wake, 12),
            (self.publish, 9 * self.weather.traffic),
            (self.subscribe, 6 * churn),
            (self.unsubscribe, 2 * churn),
            (self.remove, 2 * churn),
            (self.gossip, 4),
            (self.learn, self.weather.learning),
            (self.replicate, 4),
            (self.go_on_moving, 4),
            (self.come_back, 1),
            (self.come_again, 2),
        ]
        events = [event for event, _weight in often]
        weights = [weight for _event, weight in often]
        mishaps = [getattr(self, name) for name in self.weather.kinds]
        due = sorted(self.random.randrange(steps) for _ in range(self.weather.mishaps))
        for step, event in enumerate(self.random.choices(events, weights, k=steps)):
            if due and step >= due[0]:
                due.pop(0)
                self.random.choice(mishaps)()
            event()
        self.finish()

    def play(self, script: Iterable[tuple[str, ...]], most: int = 24) -> None:
        """What clients do in this order, each after some events; "settle" waits for the end of all before."""
        self.settle(lambda: all(client.lane for client in self.clients.values()), 12)
        for name, *words in script:
            if name == "settle":
                self.settle(lambda: not self.subscribing and not self.unacknowledged(), 12)
                continue
            getattr(self, name)(*words)
            for _event in range(self.random.randrange(most)):
                self.random.choice((self.deliver, self.deliver, self.answer, self.answer, self.wake))()
        self.finish()

    def stall(self, node: str) -> None:
        """What a bridge has sent to a node is late."""
        self.stalled.add((self.random.choice(self.bridges).name, node))

    def break_one(self, node: str = "") -> None:
        """A connection breaks; each connection to a node, if one is given."""
        ready = self.connections()
        for connection in [c for c in ready if c.node == node] if node else ready and [self.random.choice(ready)]:
            self.break_off(connection)

    def settle(self, is_done: Callable[[], bool], rounds: int = ROUNDS) -> bool:
        """Everything arrives and everything is tried, again and again; true when it is done."""
        for _round in range(rounds):
            if is_done():
                return True
            self.tell_everyone()
            self.come_again()
            while self.deliver() or self.answer():
                pass
            for bridge in self.bridges:
                waiting, bridge.waiting = bridge.waiting, []
                for work in waiting:
                    work()
        return is_done()

    def tell_everyone(self) -> None:
        """All nodes that are on the bus, and all bridges, hear what those nodes believe."""
        hearing = [server for server in self.servers.values() if server.up and server.hears_bus]
        for server, other in itertools.product(hearing, hearing):
            server.hear(other.view)
        for bridge, server in itertools.product(self.bridges, hearing):
            if server.name not in bridge.cut:
                bridge.learn(server.view)

    def finish(self) -> None:
        """Mishaps end; everything that was begun must come to its end."""
        self.stalled.clear()
        for bridge in self.bridges:
            bridge.cut.clear()
        while any(server.up and not server.hears_bus for server in self.servers.values()):
            self.come_back()
        while self.moves:
            self.go_on_moving()
        if not self.settle(lambda: not self.subscribing and not self.unacknowledged()):
            raise LawBrokenError(f"law 5: {self.unacknowledged()} and {self.subscribing} wait forever")

    def unacknowledged(self) -> list[Message]:
        """Of all publishers."""
        return [message for client in self.clients.values() for message, _packet in client.unacknowledged]


@dataclass(frozen=True)
class Found:
    """A law that does not hold."""

    seed: int
    law: str
    trace: tuple[str, ...]


def explore(
    design: Design,
    seeds: Iterable[int],
    weather: Weather = Weather(),
    script: Iterable[tuple[str, ...]] | None = None,
) -> Found | None:
    """Run interleavings until a law is broken: of what the weather brings, or of a script."""
    for seed in seeds:
        world = World(design, seed, weather)
        try:
            if script is None:
                world.run()
            else:
                world.play(script)
        except LawBrokenError as broken:
            return Found(seed, str(broken), tuple(world.trace))
    return None
