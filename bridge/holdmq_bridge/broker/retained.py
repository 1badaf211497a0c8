"""Retained messages of new subscriptions over a cluster: each node keeps those of its slots.

    SUBACK ──► scan of a filter: TOPIC.RETAINED, page by page, at the nodes of all slots ──► SESSION.DELIVER

A scan begins when every node knows the route, so a message that is published later comes live.  Slots that a node does
not serve, or that no node has, are read as soon as one does.

Invariants
 1. A client has one scan at a time, of its filters one after the other, and it ends with the connection.
 2. The next page is read when the client has nothing left to acknowledge: its queue holds a page more than without.
 3. At most _AT_ONCE pages are in memory, in the process and its commands.

Not promised: a message that is replaced while its page is delivered may come after the one that replaces it.  What a
scan has not delivered when the connection ends comes with the next subscription only.
"""

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import hiredis

from holdmq.core import Record
from holdmq.core.engine import Backlog
from holdmq_bridge.base.command import Argument, Reply, is_temporary
from holdmq_bridge.base.logs import Log
from holdmq_bridge.process.process import Process
from holdmq_bridge.server.calls import Calls
from holdmq_bridge.server.node_calls import NodeCalls
from holdmq_bridge.server.node_links import NodeLinks

if TYPE_CHECKING:
    from holdmq_bridge.broker.client import Client

log = Log("retained")

_AT_ONCE = 16
_PAGE = 200
_LOOK_S = 0.02  # between two looks whether the client has acknowledged
_AGAIN_FIRST_S, _AGAIN_MOST_S = 0.05, 1.0
_SLOTS = 16384
_SHARE = b"$share/"
_SUBSCRIPTION_IDENTIFIER = 0x0B  # of the properties of MQTT 5.0

Range = tuple[int, int]


class Wanted(NamedTuple):
    """A filter whose retained messages are due.

    Attributes:
        topic_filter: the filter.
        qos: of the subscription.
        no_local: whether messages of the client itself are left out.
        identifier: of the subscription, as a property; empty: none.
    """

    topic_filter: bytes
    qos: int
    no_local: bool
    identifier: bytes


class Retained:
    """One for each process."""

    def __init__(self, process: Process, links: NodeLinks, calls: Calls, nodes: NodeCalls) -> None:
        self._process = process
        self._links = links
        self._calls = calls
        self._nodes = nodes
        self._pages = asyncio.Semaphore(_AT_ONCE)
        self._wanted: dict[Client, deque[Wanted]] = {}
        self._tasks: dict[Client, asyncio.Task[None]] = {}

    def begin(self, client: "Client", pairs: Sequence[Argument], new: Sequence[int]) -> None:
        """A SESSION.SUBSCRIBE with these pairs was granted; `new`: the filters that the session did not have."""
        due = list(due_filters(pairs, new))
        if not due or not client.conn:
            return
        self._wanted.setdefault(client, deque()).extend(due)
        if client not in self._tasks:
            task = self._tasks[client] = self._process.loop.create_task(self._scan_all(client))
            task.add_done_callback(lambda done: self._ended(client, done))

    def forget(self, client: "Client") -> None:
        """The connection has ended."""
        task = self._tasks.get(client)
        if task is not None:
            task.cancel()

    async def stop(self) -> None:
        """Ends all scans."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _ended(self, client: "Client", task: asyncio.Task[None]) -> None:
        del self._tasks[client]
        self._wanted.pop(client, None)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            log.defect("defect while retained messages were read", error, client=client.client_id)

    # ---- a scan ----------------------------------------------------------------------------------------------------

    async def _scan_all(self, client: "Client") -> None:
        wanted = self._wanted[client]
        while wanted:
            if not await self._scan(client, wanted.popleft()):
                return

    async def _scan(self, client: "Client", wanted: Wanted) -> bool:
        """Returns whether the session is still there."""
        left: list[Range] = [(0, _SLOTS - 1)]
        pause_s = _AGAIN_FIRST_S
        while True:
            unserved: list[Range] = []
            for link, ranges in self._links.by_link(left).items():
                if link is None or not self._links.is_up(link):
                    unserved += ranges
                elif (refused := await self._scan_node(client, wanted, link, ranges)) is None:
                    return False
                else:
                    unserved += refused
            left = unserved
            if not left:
                return True
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, _AGAIN_MOST_S)

    async def _scan_node(self, client: "Client", wanted: Wanted, link: int, ranges: list[Range]) -> list[Range] | None:
        """Delivers what one node keeps.  Returns the ranges that it did not serve; None: the session is gone."""
        slots: list[Argument] = [len(ranges), *(end for pair in ranges for end in pair)]
        cursor: Argument = 0
        unserved: set[Range] = set()
        while True:
            async with self._pages:
                question = ("TOPIC.RETAINED", wanted.topic_filter, "CURSOR", cursor, "COUNT", _PAGE, "VALUES")
                page = await self._calls.ask((*question, "SLOTS", *slots), link) if self._links.is_up(link) else _LOST
                if isinstance(page, hiredis.ReplyError):
                    if not is_temporary(page):
                        log.warning("retained messages cannot be read", filter=wanted.topic_filter, error=page)
                        return []
                    return ranges
                cursor, records, refused = page
                unserved.update((first, last) for first, last, *_address in refused)
                if not await self._deliver(client, list(_copies(records, wanted, client.client_id))):
                    return None
            if cursor in (b"0", 0):
                return list(unserved)
            while self._process.engine.backlog(client.conn) is not Backlog.NONE:  # noqa: ASYNC110 (nothing tells of it)
                await asyncio.sleep(_LOOK_S)

    async def _deliver(self, client: "Client", records: list[bytes]) -> bool:
        """Returns whether the session is still there."""
        session = client.session
        pause_s = _AGAIN_FIRST_S
        while records:
            command: tuple[Argument, ...] = ("SESSION.DELIVER", session.key, "EPOCH", session.epoch, *records)
            reply: Reply = await self._nodes.ask_for(session.key, command)
            if not isinstance(reply, hiredis.ReplyError):
                break
            if not is_temporary(reply):
                return False  # it has another owner, or is gone
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, _AGAIN_MOST_S)
        return True


_LOST = hiredis.ReplyError("TRYAGAIN there is no connection to the node")


def due_filters(pairs: Sequence[Argument], new: Sequence[int]) -> Iterator[Wanted]:
    """The filters whose retained messages are due [MQTT 5.0, 3.8.3.1 and 3.8.4]."""
    for topic_filter, options, is_new in zip(pairs[::2], pairs[1::2], new, strict=True):
        assert isinstance(topic_filter, bytes)
        text = options.decode() if isinstance(options, bytes) else str(options)
        bits, _, identifier = text.partition("@")[0].partition(":")
        handling = int(bits) >> 4 & 3
        if topic_filter.startswith(_SHARE) or handling == 2 or (handling == 1 and not is_new):
            continue
        named = bytes((_SUBSCRIPTION_IDENTIFIER, *_variable_byte_integer(int(identifier)))) if identifier else b""
        yield Wanted(topic_filter, int(bits) & 3, bool(int(bits) & 4), named)


def _copies(records: Sequence[bytes], wanted: Wanted, client_id: bytes) -> Iterator[bytes]:
    for data in records:
        record = Record.decode(data)
        if not (wanted.no_local and record.publisher == client_id):
            properties = wanted.identifier + record.properties
            yield replace(record, qos=min(record.qos, wanted.qos), retain=True, properties=properties).encode()


def _variable_byte_integer(number: int) -> list[int]:
    """Seven bits in a byte, the lowest first [MQTT 5.0, 1.5.5]."""
    low, rest = number & 0x7F, number >> 7
    return [low | 0x80, *_variable_byte_integer(rest)] if rest else [low]
