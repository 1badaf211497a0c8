"""A node of the model: what is stored, what is remembered, and the commands, each of which is one step."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tests.model.design import Design

SLOTS = 6
TOPICS = ("a", "b")
FILTERS = ("a", "b", "#")

MOVED, TRYAGAIN, REFUSED, FENCED = "MOVED", "TRYAGAIN", "REFUSED", "FENCED"
NOROUTES, STALEHOME, NOHOME, UNKNOWN, SERVED, OK = "NOROUTES", "STALEHOME", "NOHOME", "UNKNOWN", "SERVED", "OK"

Route = tuple[str, int]  # filter and slot
Generation = tuple[str, int]  # node and n


def matches(topic_filter: str, topic: str) -> bool:
    """Does the filter match the topic?"""
    return topic_filter in ("#", topic)


def slot_of(client: str) -> int:
    """The slot of a client: the digit in its name."""
    return int(client[1])


@dataclass(eq=False)
class Message:
    """One publish of a client.

    Attributes:
        owed: the sessions that must have it when it is acknowledged.
        spared: those from which a failover may take it.
        may_repeat: a failover lost what makes it be known.
        is_repeated: its client sent it again, or another node answered for it, so that later subscribers may get it.
    """

    publisher: str
    topic: str
    sequence: int
    qos: int
    owed: set[str]
    spared: set[str] = field(default_factory=set)
    may_repeat: bool = False
    is_repeated: bool = False
    acknowledged: bool = False

    def __deepcopy__(self, memo: dict[int, Any]) -> Message:
        return self

    def __repr__(self) -> str:
        return f"{self.publisher}:{self.topic}{self.sequence}/{self.qos}"


@dataclass
class Note:
    """What a slot has of a publisher."""

    epoch: int = 0
    floor: tuple[int, int] = (0, 0)
    numbers: set[tuple[int, int]] = field(default_factory=set)


@dataclass
class Data:
    """What is stored, and replicated."""

    filters: dict[str, set[str]] = field(default_factory=dict)
    queues: dict[str, list[Message]] = field(default_factory=dict)
    notes: dict[tuple[int, str], Note] = field(default_factory=dict)
    epochs: dict[str, int] = field(default_factory=dict)
    received: dict[str, dict[int, tuple[int, int]]] = field(default_factory=dict)
    last: dict[str, tuple[int, int]] = field(default_factory=dict)

    def move_session(self, session: str, target: Data) -> None:
        """Move the keys of one session; what the target has already stays."""
        places: list[tuple[dict[str, Any], dict[str, Any]]] = [
            (self.filters, target.filters),
            (self.queues, target.queues),
            (self.epochs, target.epochs),
            (self.received, target.received),
            (self.last, target.last),
        ]
        for here, there in places:
            if session in here:
                there.setdefault(session, here.pop(session))

    def clients(self, slot: int) -> set[str]:
        """The sessions of a slot."""
        return {name for name in self.clients_all() if slot_of(name) == slot}

    def clients_all(self) -> set[str]:
        """The sessions of all slots."""
        return {*self.filters, *self.queues, *self.epochs}

    def move_slot(self, slot: int, target: Data) -> None:
        """Move all keys of a slot."""
        for client in self.clients(slot):
            self.move_session(client, target)
        for key in [key for key in self.notes if key[0] == slot]:
            target.notes.setdefault(key, self.notes.pop(key))


@dataclass(frozen=True)
class Subscribed:
    """The reply of SESSION.SUBSCRIBE."""

    homes: dict[str, int]
    primaries: frozenset[str]
    superseded: frozenset[str]
    serial: int
    confirmed: frozenset[Generation]
    is_first_of_session: bool
    is_first_of_slot: bool


@dataclass(frozen=True)
class Targets:
    """Where a topic goes, by one node: the reply CHANGED of ROUTE.CHECK."""

    generation: Generation
    version: int
    slots: frozenset[int]


class Server:
    """A process of the cluster.

    Args:
        name: its id.
        design: its rules.
        unique: gives numbers that only grow.
        stored: told of each message that is added to a queue.
    """

    def __init__(self, name: str, design: Design, unique: Callable[[], int], stored: Callable[..., None]) -> None:
        self.name = name
        self.design = design
        self.unique = unique
        self.stored = stored
        self.up = True
        self.hears_bus = True
        self.data = Data()
        self.view: dict[int, tuple[int, str]] = {}
        self.known: set[str] = set()
        self.moving: dict[int, str] = {}
        self.start()

    def start(self) -> None:
        """Forget what is only in memory: after a start or a promotion."""
        self.homes: dict[str, int] = {}
        self.serials: dict[Route, int] = {}
        self.confirmed: dict[Route, set[Generation]] = {}
        self.forget_routes()

    def forget_routes(self) -> None:
        """A new generation as the one that answers."""
        self.n = self.unique()
        self.version = 0
        self.routes: dict[Route, int] = {}
        self.covered: set[int] = set()

    # --- what it believes of the cluster ---

    def owned(self) -> set[int]:
        """The slots that it has, as it believes."""
        return {slot for slot, claim in self.view.items() if claim[1] == self.name}

    def primaries(self) -> frozenset[str]:
        """The nodes with slots, as it believes."""
        return frozenset(owner for _epoch, owner in self.view.values())

    def hear(self, view: dict[int, tuple[int, str]]) -> None:
        """Believe later claims."""
        had = self.owned()
        for slot, claim in view.items():
            if claim[0] > self.view.get(slot, (-1, ""))[0]:
                self.view[slot] = claim
                if claim[1] != self.name:
                    self.lose(slot)
        if had and not self.owned():
            self.forget_routes()
        if not had and self.owned():
            self.start()

    def lose(self, slot: int) -> None:
        """The slot is another node's: its keys go."""
        self.data.move_slot(slot, Data())
        self.moving.pop(slot, None)
        for route in [route for route in self.serials if route[1] == slot]:
            self.serials.pop(route)
            self.confirmed.pop(route, None)

    def refusal(self, slot: int) -> str | None:
        """Why nothing of the slot can be done here now."""
        if slot in self.moving:
            return TRYAGAIN
        return None if self.view[slot][1] == self.name else MOVED

    # --- as the node of sessions ---

    def has_subscriber(self, topic_filter: str, slot: int) -> bool:
        """Has some session of the slot this filter?"""
        return any(topic_filter in found for name, found in self.data.filters.items() if slot_of(name) == slot)

    def subscribe(self, _conn: Any, session: str, topic_filter: str) -> Subscribed | str:
        """SESSION.SUBSCRIBE."""
        slot = slot_of(session)
        if refusal := self.refusal(slot):
            return refusal
        route = (topic_filter, slot)
        mine = self.data.filters.setdefault(session, set())
        is_first_of_slot, is_first_of_session = not self.has_subscriber(*route), topic_filter not in mine
        mine.add(topic_filter)
        self.data.queues.setdefault(session, [])
        serial = self.serials.setdefault(route, self.unique())
        primaries = self.primaries()
        return Subscribed(
            dict(self.homes),
            primaries,
            frozenset(self.homes) - primaries,
            serial,
            frozenset(self.confirmed.get(route, ())),
            is_first_of_session,
            is_first_of_slot,
        )

    def unsubscribe(self, _conn: Any, session: str, topic_filter: str) -> str:
        """SESSION.UNSUBSCRIBE."""
        slot = slot_of(session)
        if refusal := self.refusal(slot):
            return refusal
        self.data.filters.get(session, set()).discard(topic_filter)
        if not self.has_subscriber(topic_filter, slot):
            self.serials.pop((topic_filter, slot), None)
            self.confirmed.pop((topic_filter, slot), None)
        return OK

    def confirm(self, _conn: Any, route: Route, serial: int, generations: Iterable[Generation]) -> str:
        """ROUTE.CONFIRM."""
        if self.serials.get(route) == serial:
            self.confirmed.setdefault(route, set()).update(generations)
        return OK

    def export(self, _conn: Any, generation: Generation) -> tuple[set[Route], set[int]] | str:
        """ROUTE.EXPORT."""
        node, n = generation
        if node not in self.primaries():
            return UNKNOWN
        if self.homes.get(node, -1) > n:
            return STALEHOME
        if not self.owned():
            return set(), set()
        self.homes[node] = n
        own = {slot for slot in self.owned() if slot not in self.moving}
        routes = {
            (f, slot_of(name)) for name, found in self.data.filters.items() for f in found if slot_of(name) in own
        }
        return routes, own

    def drop_home(self, _conn: Any, node: str, n: int) -> str:
        """ROUTE.DROPHOME: a node that cannot be reached, if it has lost its slots."""
        if node in self.primaries():
            return UNKNOWN
        if self.homes.get(node) == n:
            del self.homes[node]
        return OK

    def is_unused(self, _conn: Any, route: Route) -> bool | str:
        """ROUTE.UNUSED."""
        return self.refusal(route[1]) or not self.has_subscriber(*route)

    def judge_target(self, conn: Any, slot: int, message: Message, sent: Sent) -> str:
        """May the message be stored in this slot?"""
        if self.design.refused_slots_stay_refused and slot in conn.refused:
            return REFUSED
        if refusal := self.refusal(slot):
            return refusal
        node, n = sent.generation
        known = self.homes.get(node, -1)
        if self.design.targets_check_homes and (known != n or node not in self.primaries()):
            return STALEHOME if known > n else NOHOME
        note = self.data.notes.get((slot, message.publisher))
        if self.design.targets_fence_publishers and note is not None and note.epoch > sent.epoch:
            return FENCED
        return SERVED

    def publish(self, conn: Any, slots: Iterable[int], message: Message, sent: Sent) -> dict[int, str]:
        """TOPIC.PUBLISH ... SLOTS ... HOME."""
        verdicts = {}
        for slot in slots:
            verdict = verdicts[slot] = self.judge_target(conn, slot, message, sent)
            if verdict != SERVED:
                conn.refused.add(slot)
            elif not self.is_known(slot, message, sent):
                for session, filters in sorted(self.data.filters.items()):
                    if slot_of(session) == slot and any(matches(f, message.topic) for f in filters):
                        self.data.queues[session].append(message)
                        self.stored(session, self.data.queues[session], message)
        return verdicts

    def is_known(self, slot: int, message: Message, sent: Sent) -> bool:
        """Has the slot the number?  It has from now on."""
        note = self.data.notes.setdefault((slot, message.publisher), Note())
        note.epoch = max(note.epoch, sent.epoch)
        if message.qos < 2 or sent.number is None:
            return False
        note.floor = max(note.floor, sent.floor)
        if self.design.notes_keep_numbers:
            known = sent.number < note.floor or sent.number in note.numbers
        else:
            known = bool(note.numbers) and sent.number <= max(note.numbers)
        note.numbers = {number for number in note.numbers if number >= note.floor} | {sent.number}
        return known

    def resume(self, conn: Any, slot: int) -> str:
        """ROUTE.RESUME."""
        conn.refused.discard(slot)
        return OK

    # --- as the node of a publisher ---

    def open(self, _conn: Any, client: str) -> int | str:
        """SESSION.OPEN: a new epoch."""
        if refusal := self.refusal(slot_of(client)):
            return refusal
        self.data.epochs[client] = self.unique()
        return self.data.epochs[client]

    def receive(self, _conn: Any, client: str, epoch: int, packet: int) -> tuple[int, int] | str:
        """SESSION.RECEIVE: the number of a QoS 2 identifier, the same when it comes again."""
        if refusal := self.refusal(slot_of(client)):
            return refusal
        if self.data.epochs.get(client) != epoch:
            return FENCED
        numbers = self.data.received.setdefault(client, {})
        if packet not in numbers:
            config_epoch = self.view[slot_of(client)][0] if self.design.numbers_have_epochs else 0
            last = self.data.last.get(client, (0, 0))
            numbers[packet] = self.data.last[client] = (max(config_epoch, last[0]), last[1] + 1)
        return numbers[packet]

    # --- as the one that answers ---

    @property
    def generation(self) -> Generation:
        """What its answers are marked with."""
        return (self.name, self.n)

    def add(self, _conn: Any, route: Route) -> Generation | str:
        """ROUTE.ADD."""
        if not self.owned():
            return UNKNOWN
        if self.design.routes_are_sets:
            self.routes[route] = self.unique()
        else:
            self.routes[route] = self.routes.get(route, 0) + 1
        self.version = self.unique()
        return self.generation

    def feed(self, _conn: Any, generation: Generation, routes: set[Route], slots: set[int]) -> str:
        """ROUTE.FEED."""
        if generation != self.generation:
            return STALEHOME
        for route in routes:
            self.routes.setdefault(route, self.unique() if self.design.routes_are_sets else 1)
        self.covered |= slots
        self.version = self.unique()
        return OK

    def token(self, _conn: Any, route: Route) -> int | None:
        """ROUTE.TOKEN."""
        return self.routes.get(route)

    def delete(self, _conn: Any, route: Route, token: int | None) -> str:
        """ROUTE.DEL."""
        if not self.design.routes_are_sets:
            if self.routes.get(route, 0) > 1:
                self.routes[route] -= 1
                return OK
        elif self.design.removal_compares_tokens and self.routes.get(route) != token:
            return OK
        self.routes.pop(route, None)
        return OK

    def check(
        self, _conn: Any, client: str, epoch: int, topic: str, by: tuple[Generation, int] | None
    ) -> Targets | str | tuple[str, Generation]:
        """ROUTE.CHECK."""
        if refusal := self.refusal(slot_of(client)):
            return refusal
        if self.data.epochs.get(client) != epoch:
            return FENCED
        if len(self.covered) < SLOTS:
            return NOROUTES, self.generation
        if by == (self.generation, self.version):
            return OK
        slots = frozenset(slot for topic_filter, slot in self.routes if matches(topic_filter, topic))
        return Targets(self.generation, self.version, slots)


@dataclass(frozen=True)
class Sent:
    """What a publish says beside its message."""

    generation: Generation
    epoch: int
    number: tuple[int, int] | None
    floor: tuple[int, int]


def copy_of(data: Data) -> Data:
    """What a replica has of it now."""
    return copy.deepcopy(data)
