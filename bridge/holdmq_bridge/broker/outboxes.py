"""Outboxes of a cluster: publishes the wills and presence messages that wait there to all nodes, and removes them.

    a session ends, a node is back, every few seconds ──► a round: OUTBOX.READ of a node ──► each slot's messages:
        TOPIC.MPUBLISH at the nodes of all slots ──all have them──► OUTBOX.ACK
        an end of a member session (member_ends.py): at the node of its group only
    SESSION.OPEN ──► OUTBOX.READ of its slot: a will of this client? ──► published before the CONNACK

Invariants
 1. The messages of a slot are published from the oldest one on, to each target in their order.  They are removed when
    all slots have them.  So whoever reads them again, here or in another process, finds them known.
 2. One round at a time, one page at a time: at most _PAGE messages or 256 KiB, for each node of the cluster.
 3. A message that some slot does not have stays in the outbox: its node is not reached, or does not serve the slot now.
    Nodes that are reached get it at once.  Only messages after the page wait.
 4. A message that a node refuses for good is given up there, and the log says so.  One that a full queue refuses is
    given up after retry_total_s.
 5. A CONNACK waits for a will of its client until the nodes that are reached have it, at most _BEFORE_CONNACK_S.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import NamedTuple

import hiredis

from holdmq.core import Record
from holdmq_bridge.base.command import Argument, Reply, error_code, is_temporary
from holdmq_bridge.base.logs import Log
from holdmq_bridge.broker.member_ends import MemberEnds, is_end
from holdmq_bridge.process.process import Process
from holdmq_bridge.server.calls import Calls
from holdmq_bridge.server.node_links import NodeLinks

log = Log("outboxes")

_PAGE = 1000
_AT_ONCE = 16  # slots whose messages are published at the same time
_PERIOD_S = 5.0
_PAUSE_S = 0.02  # between two rounds: a storm of endings is a few rounds
_ANSWER_S = 5.0  # for OUTBOX.READ in a round
_BEFORE_CONNACK_S = 2.0
_AGAIN_FIRST_S, _AGAIN_MOST_S = 0.02, 0.5
_ATTEMPTS = 4  # in a round, to publish what a node that is reached did not serve
_LOGGED_EVERY_S = 60.0
_SLOTS = 16384
_SYSTEM = b"$SYS/"
_FOR_GOOD = ("INVALIDTOPIC", "QUOTA", "WRONGTYPE", "ERR")  # refusals of a message, not of this process

Range = tuple[int, int]


class Message(NamedTuple):
    """A pending message: its number in its slot, and the record.  Or the end of a member session."""

    number: int
    record: bytes


class Outboxes:
    """One for each process."""

    def __init__(self, process: Process, links: NodeLinks, calls: Calls, ends: MemberEnds) -> None:
        self._process = process
        self._links = links
        self._calls = calls
        self._ends = ends
        self._due: set[int] = set()  # links of nodes that are to be read
        self._is_due = asyncio.Event()
        self._at_once = asyncio.Semaphore(_AT_ONCE)
        self._targets: dict[int | None, list[Range]] | None = None  # links of all slots, until some have other links
        self._refused_at: dict[int, tuple[int, float]] = {}  # slot: its oldest message, and since when a queue is full
        self._logged_at = -_LOGGED_EVERY_S
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins with the rounds."""
        self._task = self._process.loop.create_task(self._run())

    async def stop(self) -> None:
        """Ends the rounds.  What is not removed stays for the next reader."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def look(self, link: int) -> None:
        """The node of a link may have messages."""
        self._due.add(link)
        self._is_due.set()

    def slots_moved(self) -> None:
        """Slots have other links.  A node that has got some may take what was refused before."""
        self._targets = None
        self.look_at_all()

    def look_at_all(self) -> None:
        """A node accepts messages that it refused before."""
        self._due.update(self._links.up())
        self._is_due.set()

    # ---- rounds ----------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_PERIOD_S):
                    await self._is_due.wait()
            if not self._is_due.is_set():
                self._due.update(self._links.up())
            due, self._due = self._due, set()
            self._is_due.clear()
            for link in due:
                try:
                    if await self._read_node(link):
                        self.look(link)
                except Exception as error:  # noqa: BLE001 (a defect of ours must not end all rounds)
                    log.defect("defect while outboxes were read", error)
            await asyncio.sleep(_PAUSE_S)

    async def _read_node(self, link: int) -> bool:
        """Publishes a page of a node.  Returns whether messages were removed: there may be more."""
        if not self._links.is_up(link):
            return False
        try:
            async with asyncio.timeout(_ANSWER_S):
                rows = await self._calls.ask(("OUTBOX.READ", "COUNT", _PAGE), link)
        except TimeoutError:
            return False
        if isinstance(rows, hiredis.ReplyError):
            if not is_temporary(rows):
                self._log_refusal(rows)
            return False
        slots: dict[int, list[Message]] = {}
        for slot, number, record in rows:
            slots.setdefault(slot, []).append(Message(number, record))
        removed = await asyncio.gather(*(self._drain(slot, messages) for slot, messages in slots.items()))
        return any(removed)

    def _log_refusal(self, error: Reply) -> None:
        now = self._process.loop.time()
        if now >= self._logged_at + _LOGGED_EVERY_S:
            self._logged_at = now
            log.warning("a node refuses a command about wills and presence messages that wait", error=error)

    async def _drain(self, slot: int, messages: list[Message]) -> bool:
        """Publishes the oldest messages of a slot, and removes them if all slots have them; returns whether."""
        async with self._at_once:
            is_published = await self._publish(slot, messages)
            is_ended = all([await self._ends.drop(body) for _, body in messages if is_end(body)])
            if not is_published or not is_ended:
                return False
            link = self._links.link_at(slot)
            if link is None or not self._links.is_up(link):
                return False
            reply = await self._calls.ask(("OUTBOX.ACK", slot, messages[-1].number), link)
            if isinstance(reply, hiredis.ReplyError):
                if not is_temporary(reply):
                    self._log_refusal(reply)
                return False
            return bool(reply)

    # ---- before a CONNACK ------------------------------------------------------------------------------------------

    async def publish_will(self, slot: int, client_id: bytes) -> None:
        """Publishes the messages of a slot up to the last will of a client, if there is one.  Bounded in time."""
        try:
            async with asyncio.timeout(_BEFORE_CONNACK_S):
                messages: list[Message] = []
                while more := await self._read_slot(slot, messages[-1].number if messages else 0):
                    if messages and not await self._publish(slot, messages):
                        return  # a later one must not come before these
                    messages = more
                wills = [at for at, message in enumerate(messages) if _is_will_of(client_id, message)]
                if wills:
                    await self._publish(slot, messages[: wills[-1] + 1])
        except TimeoutError:
            log.warning("a will may come after later messages of its client: nodes answer slowly", client=client_id)

    async def _read_slot(self, slot: int, after: int) -> list[Message]:
        """A page of the messages of a slot, when its node serves it."""
        pause_s = _AGAIN_FIRST_S
        while True:
            link = self._links.link_at(slot)
            if link is not None and self._links.is_up(link):
                rows = await self._calls.ask(("OUTBOX.READ", "SLOT", slot, "AFTER", after, "COUNT", _PAGE), link)
                if not isinstance(rows, hiredis.ReplyError):
                    return [Message(number, record) for _slot, number, record in rows]
                if not is_temporary(rows):
                    self._log_refusal(rows)
                    return []
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, _AGAIN_MOST_S)

    # ---- publishing ------------------------------------------------------------------------------------------------

    async def _publish(self, slot: int, elements: Sequence[Message]) -> bool:
        """Publishes messages of a slot, from its oldest one on.  Returns whether all slots have them."""
        messages = [element for element in elements if not is_end(element.record)]
        if not messages:
            return True
        left: list[Range] = []
        pause_s = _AGAIN_FIRST_S
        is_whole = True
        for attempt in range(_ATTEMPTS):
            targets = self._links.by_link(left) if attempt else self._all_targets()
            reached = [
                (link, ranges) for link, ranges in targets.items() if link is not None and self._links.is_up(link)
            ]
            is_whole = is_whole and len(reached) == len(targets)
            refused = await asyncio.gather(
                *(self._publish_at(link, ranges, slot, messages) for link, ranges in reached)
            )
            left = [one for some in refused for one in some]
            if not left:
                break
            self._links.look()
            if attempt + 1 < _ATTEMPTS:
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, _AGAIN_MOST_S)
        if is_whole and not left:
            self._refused_at.pop(slot, None)
            return True
        return False

    def _all_targets(self) -> dict[int | None, list[Range]]:
        """The links of all slots.  To find them takes a millisecond."""
        if self._targets is None:
            self._targets = self._links.by_link([(0, _SLOTS - 1)])
        return self._targets

    async def _publish_at(self, link: int, ranges: list[Range], slot: int, messages: Sequence[Message]) -> list[Range]:
        """Publishes messages at a node.  Returns which slots did not get all of them."""
        reply = await self._ask_to_publish(link, ranges, slot, messages)
        if not isinstance(reply, hiredis.ReplyError):
            return [(first, last) for first, last, *_address in reply[1]]
        if not self._is_given_up(slot, messages[0].number, reply):
            return ranges
        for message in messages:  # all but those that are refused
            one = await self._ask_to_publish(link, ranges, slot, [message])
            if isinstance(one, hiredis.ReplyError):
                if error_code(one) not in (*_FOR_GOOD, "QUEUEFULL"):
                    return ranges
                topic = _decoded(message).topic
                log.warning("a will or presence message is given up at a node", topic=topic, slot=slot, error=one)
            elif one[1]:
                return [(first, last) for first, last, *_address in one[1]]
        return []

    async def _ask_to_publish(self, link: int, ranges: list[Range], slot: int, messages: Sequence[Message]) -> Reply:
        if not self._links.is_up(link):
            return hiredis.ReplyError("TRYAGAIN the connection to the node was lost")
        slots: list[Argument] = [len(ranges), *(end for pair in ranges for end in pair)]
        words: list[Argument] = [word for message in messages for word in message]
        producer = ("TOPIC.MPUBLISH", "PRODUCER", f"outbox:{slot}", 1, 0)
        return await self._calls.ask((*producer, "SLOTS", *slots, "RECORD", *words), link)

    def _is_given_up(self, slot: int, number: int, error: hiredis.ReplyError) -> bool:
        """Whether a refused message is not published again; `number`: of the oldest one in the slot."""
        if error_code(error) in _FOR_GOOD:
            return True
        if error_code(error) != "QUEUEFULL":
            if not is_temporary(error):
                self._log_refusal(error)
            return False
        now = self._process.loop.time()
        oldest, since = self._refused_at.get(slot, (0, now))
        if oldest != number:
            since = now
        self._refused_at[slot] = (number, since)
        return now > since + self._process.settings.retry_total_s


def _decoded(message: Message) -> Record:
    """The record. If another program wrote something else there, an empty record."""
    try:
        return Record.decode(message.record)
    except ValueError:
        return Record()


def _is_will_of(client_id: bytes, message: Message) -> bool:
    record = _decoded(message)
    return record.publisher == client_id and not record.topic.startswith(_SYSTEM)
