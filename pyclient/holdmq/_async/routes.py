"""Publishes in a cluster, to the nodes that have subscribers; and tells nodes of new routes.

The node of the topic's slot keeps the retained message, and it says which slots have subscribers (ROUTE.CHECK):

    no answer yet    its node: [TOPIC.PUBLISH RETAIN] ROUTE.CHECK     then the nodes of the answer: TOPIC.PUBLISH HOME
    an answer        its node: ROUTE.CHECK KNOWN, and at the same time the nodes of the answer: TOPIC.PUBLISH HOME
    no routes        all primaries: TOPIC.PUBLISH

Invariants:

1. A publish is done when every slot that has subscribers by an answer was served, and that answer was given, or found
   right, after the publish began. Or else when all slots were served.
2. A slot that was served is not visited again, so nothing is stored twice. All others are, until the time is over. Then
   the error names them.
3. A retained message is written first: a session that subscribes in the meantime finds it, or is in the answer.
4. The replies of a node may be lost. Whether its slots were served is not known then: that is an error, too.
5. A subscription is told to each primary before it is granted. A primary that then has another generation has heard of
   it from the node that has the subscription.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Generic, TypeVar, cast

from holdmq import _wire as wire
from holdmq import commands, core
from holdmq._async.link import AsyncLink
from holdmq._async.nodes import AsyncNodes
from holdmq._async.patience import AsyncPatience
from holdmq._async.slots import AsyncSlots
from holdmq._io import NodeReplies, async_ask_nodes
from holdmq.commands import SLOTS, Command, SlotRange, SubscribedRoutes
from holdmq.errors import (
    HoldMQError,
    MovingError,
    NoHomeError,
    StaleHomeError,
    UnknownNodeError,
    library_of,
    lost_of,
    translate,
)
from holdmq.slots import mask_of, ranges_in

T = TypeVar("T")

WHAT = "TOPIC.PUBLISH"
ALL = (1 << SLOTS) - 1
MAX_ANSWERS = 10_000
"""Most topics whose answers are remembered."""
MAX_RANGES = 100_000
"""Most ranges of slots in them."""
PAUSE_S = 1.0
"""After a node that answers no question about routes, all primaries are visited for so long."""
TRUSTED_ROUNDS = 3
"""Rounds by an answer. All further ones visit all primaries."""


class UntoldError(Exception):
    """Some node does not know a subscription, which its session has.

    Attributes:
        subscribed: what the session's node replied.
    """

    def __init__(self, subscribed: SubscribedRoutes) -> None:
        super().__init__(subscribed)
        self.subscribed = subscribed


@dataclass(frozen=True, slots=True)
class _Answer:
    """What a node said about a topic: the slots that have subscribers."""

    node: bytes
    generation: int
    version: int
    slots: int
    ranges: int


@dataclass(frozen=True, slots=True)
class _Question:
    """What a node is asked in a round.

    Attributes:
        slots: those that it is to serve.
        visits: how many commands serve them: the last one is the publish. A further one is the check.
    """

    node: Any
    slots: int
    visits: int
    words: list[tuple[Any, ...]]


@dataclass(slots=True)
class _Publish(Generic[T]):
    """A publish on its way.

    Attributes:
        retains: whether the slot of the topic is served first.
        home: the slot of the topic, as a mask.
        done: slots that were served.
        answer: by which it is sent.
        is_checked: whether the answer was found right since the publish began.
        everywhere: whether it visits all slots.
        unreachable: nodes that could not be reached in this round.
        lost: the nodes whose replies were lost, and their slots.
        refusal: a refusal that no repetition changes.
    """

    command: Command[T]
    topic: bytes
    retains: bool
    home: int
    answer: _Answer | None
    everywhere: bool
    is_checked: bool = False
    done: int = 0
    parts: list[T] = field(default_factory=list)
    unreachable: dict[str, tuple[int, Exception]] = field(default_factory=dict)
    lost: list[tuple[str, int, Exception]] = field(default_factory=list)
    refusal: Exception | None = None

    @property
    def writes_first(self) -> bool:
        """Whether the retained message is not written yet."""
        return self.retains and not self.done & self.home

    @property
    def left(self) -> int:
        """The slots that are still to be visited, as far as is known."""
        if self.everywhere:
            return ALL & ~self.done
        return ((self.answer.slots if self.answer else 0) | (self.home if self.retains else 0)) & ~self.done

    @property
    def is_done(self) -> bool:
        """Whether every slot that has subscribers was served."""
        return (self.everywhere or self.is_checked) and not self.left


class AsyncRoutes:
    """Where publishes go, as the nodes said."""

    def __init__(self, link: AsyncLink, nodes: AsyncNodes, slots: AsyncSlots) -> None:
        self._link = link
        self._nodes = nodes
        self._slots = slots
        self._answers: dict[bytes, _Answer] = {}
        self._ranges = 0
        self._paused_until = 0.0

    # ---- publishing --------------------------------------------------------------------------------------------------

    async def publish(self, command: Command[T]) -> T:
        """Publishes to every slot that has subscribers of the topic, which is the first argument.

        Raises:
            MovingError: some slots were still moving when the time was over. The others were served.
            CommandError: a node refused the message.
            redis.ConnectionError: a node could not be reached until the time was over, or its reply was lost.
        """
        topic = cast("bytes", command.words[1])
        p = _Publish(
            command,
            topic,
            retains=any(isinstance(word, str) and word == "RETAIN" for word in command.words),
            home=1 << core.slot_of(core.session_key(topic)),
            answer=self._answers.get(topic),
            everywhere=time.monotonic() < self._paused_until,
        )
        patience = AsyncPatience(self._link.moving_timeout)
        rounds = 0
        while True:
            rounds += 1
            is_troubled = await self._round(p, rounds)
            if p.refusal is not None:
                raise p.refusal
            if p.lost:
                raise self._lost_error(p)
            if p.is_done:
                return command.merge(p.parts) if command.merge else p.parts[0]
            if not is_troubled:
                continue
            self._slots.forget()
            if not await patience.wait():
                raise self._time_is_over(p)
            p.everywhere = p.everywhere or rounds >= TRUSTED_ROUNDS
            await self._reload(p)

    async def _round(self, p: _Publish[T], rounds: int) -> bool:
        """Visits what is left. Returns whether some of it was not served."""
        p.unreachable = {}
        wanted = p.left
        groups, nobody = await self._slots.by_node(ranges_in(wanted | p.home))
        if not any(mask_of(own) & p.home for _node, own in groups):  # nobody has the slot now
            p.everywhere = True
        questions = [
            question for question in (self._question(p, *group, wanted, rounds) for group in groups) if question
        ]
        self._link.check_process()
        replies = await async_ask_nodes(self._link.client, [(one.node, one.words) for one in questions])
        are_served = [self._take_replies(p, one, reply) for one, reply in zip(questions, replies, strict=True)]
        return bool(nobody) or not all(are_served)

    def _question(
        self, p: _Publish[T], node: Any, own: Sequence[SlotRange], wanted: int, rounds: int
    ) -> _Question | None:
        """What a node is asked; None: nothing."""
        mask = mask_of(own)
        is_home = bool(mask & p.home)
        slots = mask & wanted if is_home or not p.writes_first else 0
        words = self._visit(p, slots, rounds) if slots else []
        if is_home and not p.everywhere and not p.is_checked:
            return _Question(node, slots, len(words), [*words, self._check(p)])
        return _Question(node, slots, len(words), words) if words else None

    def _take_replies(self, p: _Publish[T], asked: _Question, reply: NodeReplies) -> bool:
        """Takes what a node replied. Returns whether it served all slots."""
        checks = len(asked.words) > asked.visits
        if reply.error is not None:
            self._note_loss(p, asked.node, asked.slots, reply)
            p.everywhere = p.everywhere or checks
            return False
        is_served = not asked.slots or self._take(p, asked.slots, reply.values[asked.visits - 1])
        if checks:
            self._take_check(p, reply.values[-1])
        return is_served

    def _visit(self, p: _Publish[T], slots: int, rounds: int) -> list[tuple[Any, ...]]:
        ranges = ranges_in(slots)
        words = commands.for_slots(p.command, ranges).words
        if p.everywhere or p.answer is None:
            return [words]
        visit = (*words, "HOME", p.answer.node, p.answer.generation)
        if rounds == 1:
            return [visit]
        # This connection may have refused a slot before, and refuses it until it is told that nothing is under way.
        return [("ROUTE.RESUME", *(slot for part in ranges for slot in range(part.first, part.last + 1))), visit]

    def _check(self, p: _Publish[T]) -> tuple[Any, ...]:
        words = ("ROUTE.CHECK", core.session_key(p.topic), p.topic)
        if p.answer is None:
            return words
        return (*words, "KNOWN", p.answer.node, p.answer.generation, p.answer.version)

    def _take(self, p: _Publish[T], slots: int, reply: Any) -> bool:
        """Takes the reply to a visit. Returns whether all slots were served."""
        if isinstance(reply, Exception):
            error = translate(reply)
            if isinstance(error, (NoHomeError, StaleHomeError)):
                self._distrust(p)
            elif not isinstance(reply, self._nodes.passing):
                p.refusal = p.refusal or error
            return False
        value, left = wire.array(reply, 2)
        p.parts.append(p.command.parse(value))
        unserved = mask_of(SlotRange(first, last) for first, last, _reason in map(wire.array, wire.array(left)))
        p.done |= slots & ~unserved
        return not unserved

    def _take_check(self, p: _Publish[T], reply: Any) -> None:
        """Takes the reply of the node of the topic's slot."""
        if isinstance(reply, Exception):
            if not isinstance(reply, self._nodes.passing):  # NOROUTES, or the user may not ask
                self._paused_until = time.monotonic() + PAUSE_S
            self._distrust(p)
            return
        if isinstance(reply, list):
            p.answer = self._learn(p.topic, reply)
        else:
            wire.ok(reply)
        p.is_checked = not p.writes_first  # otherwise it is to be asked after the write

    def _distrust(self, p: _Publish[T]) -> None:
        self._forget(p.topic)
        p.answer = None
        p.everywhere = True

    def _note_loss(self, p: _Publish[T], node: Any, slots: int, reply: NodeReplies) -> None:
        error = cast("Exception", reply.error)
        loading = getattr(library_of(error), "BusyLoadingError", ())
        if slots and reply.is_sent and not isinstance(error, loading):
            p.lost.append((node.name, slots, error))
        else:
            p.unreachable[node.name] = (slots, error)

    async def _reload(self, p: _Publish[T]) -> None:
        """Learns who has the slots by now. A cluster that cannot say it is asked again with the next round."""
        try:
            await self._link.reload()
        except lost_of(self._link.client) as error:
            p.unreachable.setdefault("the cluster", (p.left, error))

    # ---- errors ------------------------------------------------------------------------------------------------------

    def _time_is_over(self, p: _Publish[T]) -> Exception:
        if not p.unreachable:
            return MovingError.of(WHAT, ranges_in(p.left))
        name, (_slots, error) = next(iter(p.unreachable.items()))
        lost: type[Exception] = library_of(self._link.client).ConnectionError
        return lost(f"{WHAT} was not served for the slots {_shown(p.left)}: {name} cannot be reached ({error})")

    def _lost_error(self, p: _Publish[T]) -> Exception:
        name, slots, error = p.lost[0]
        lost: type[Exception] = library_of(self._link.client).ConnectionError
        return lost(
            f"{WHAT}: the reply of {name} was lost ({error}), so it is not known whether the sessions in "
            f"the slots {_shown(slots)} have the message; slots without it for certain: {_shown(p.left & ~slots)}"
        )

    # ---- answers -----------------------------------------------------------------------------------------------------

    def _learn(self, topic: bytes, reply: list[Any]) -> _Answer:
        node, generation, version, ends = wire.array(reply, 4)
        pairs = wire.array(ends)
        ranges = [SlotRange(first, last) for first, last in zip(pairs[::2], pairs[1::2], strict=True)]
        answer = _Answer(
            wire.string(node), wire.integer(generation), wire.integer(version), mask_of(ranges), len(ranges)
        )
        self._forget(topic)
        if len(self._answers) >= MAX_ANSWERS or self._ranges + answer.ranges > MAX_RANGES:
            self._answers, self._ranges = {}, 0
        self._answers[topic] = answer
        self._ranges += answer.ranges
        return answer

    def _forget(self, topic: bytes) -> None:
        former = self._answers.pop(topic, None)
        if former is not None:
            self._ranges -= former.ranges

    # ---- telling -----------------------------------------------------------------------------------------------------

    async def subscribe(self, command: Command[SubscribedRoutes], key: bytes) -> SubscribedRoutes:
        """Subscribes a session, and tells each primary of it.

        Args:
            command: made by `commands.session_subscribe_routes`.
            key: the session's.

        Raises:
            CommandError: the session's node refused it. Nothing was changed.
            UntoldError: a node could not be told until the time was over, or refused to be. The session has the
                filters.
        """
        subscribed = await self._link.execute_key(command)
        drops = {node: commands.route_drophome(node, n, key) for node, n in subscribed.homes.items()}
        try:
            await self.tell(subscribed.routes, subscribed.homes.keys() | subscribed.primaries, drops)
        except HoldMQError as error:
            raise UntoldError(subscribed) from error
        return subscribed

    async def tell(
        self,
        routes: Sequence[tuple[bytes, int]],
        ids: Iterable[str] = (),
        drops: Mapping[str, Command[bool]] = MappingProxyType({}),
    ) -> None:
        """Tells each primary of routes (filter and slot).

        Args:
            routes: the filters, without groups, and slots that have subscribers of them.
            ids: further nodes that have to hear of them: who the node of the slots knows.
            drops: commands that make the node of the slots forget one of these, if it has no slots any more.

        Raises:
            CommandError: a node refused them.
            HoldMQError: a node could not be told until the time was over.
        """
        words = ("ROUTE.ADD", *(word for route in dict.fromkeys(routes) for word in route))
        needed = set(ids)
        told: dict[str, str] = {}  # by the name of the node
        patience = AsyncPatience(self._link.moving_timeout)
        while True:
            reason = await self._tell_primaries(words, told)
            missing = needed.difference(told.values())
            for node in missing & drops.keys():
                if await self._drop(drops[node]):
                    needed.discard(node)
            missing &= needed
            if missing and not reason:
                reason = f"the node {min(missing)} was not told: the cluster does not say where it is"
            if not reason:
                return
            if not await patience.wait():
                raise HoldMQError(f"{reason}; expected every primary of the cluster to know a subscription")
            try:
                await self._link.reload()
            except lost_of(self._link.client):
                continue

    async def _tell_primaries(self, words: tuple[Any, ...], told: dict[str, str]) -> str:
        """Tells those that were not told. Returns why one was not; empty if all were."""
        try:
            primaries = await self._nodes.primaries()
        except lost_of(self._link.client) as error:
            return str(error)
        asked = [node for node in primaries if node.name not in told]
        self._link.check_process()
        replies = await async_ask_nodes(self._link.client, [(node, [words]) for node in asked])
        reason = ""
        for node, reply in zip(asked, replies, strict=True):
            answer = reply.error or reply.values[0]
            if not isinstance(answer, Exception):
                told[node.name] = wire.decoded(wire.array(answer, 2)[0])
            elif reply.error is not None or self._may_pass(answer):
                reason = f"{node.name} was not told: {answer}"
            else:
                raise translate(answer)
        return reason

    async def _drop(self, drop: Command[bool]) -> bool:
        """Whether the node of a subscription does not count on another node any more."""
        try:
            await self._nodes.at_slot(drop)
        except UnknownNodeError:  # it has slots
            return False
        return True

    def _may_pass(self, error: Exception) -> bool:
        """Whether a node may accept the routes later, or has no slots any more."""
        return isinstance(error, self._nodes.passing) or str(error).startswith("UNKNOWN ")


def _shown(slots: int) -> str:
    """The first ranges of slots, or `none`."""
    return ", ".join(f"{part.first}-{part.last}" for part in ranges_in(slots)[:10]) or "none"
