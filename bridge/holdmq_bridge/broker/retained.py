"""Retained messages of new subscriptions over a cluster: each node keeps those of its slots.

    SUBACK, or CONNECT to a session with places ──► scan of a filter: TOPIC.RETAINED, page by page, at the nodes of all
        slots ──► SESSION.DELIVER ... RETAINED (moves the place) ──► a second look at the page

A scan begins when every node knows the route, so a message that is published later comes live.  Slots that a node does
not serve, or that no node has, are read as soon as one does.

Invariants
 1. A client has one scan at a time, of its filters one after the other.
 2. The next page is read when the client has nothing left to acknowledge: its queue holds a page more than without.
 3. At most _AT_ONCE pages are in memory, in the process and its commands.
 4. The place of a scan is kept in the session, if that outlives its connection.  It moves past a page in a step after
    the one that delivered the page.  So the next connection continues, and may get one page again.
 5. A message that was replaced or removed while its page was delivered is delivered again as it is by then, up to
    _LOOKS times: the newest one comes last.

Not promised: the same of a message that is replaced all the time.
"""

import asyncio
import json
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

import hiredis

from holdmq.core import Record, Suffix, retained_key, session_name, slot_of
from holdmq.core.engine import Backlog
from holdmq_bridge.base.command import Argument, Reply, error_code, is_temporary
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
_LOOKS = 5
_PLACE_BYTES = 8000  # of the server's 8192, with the options
_PLACES_AT_ONCE = 100
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
        place: the value that the session keeps, `<options> <parts>`.
    """

    topic_filter: bytes
    qos: int
    no_local: bool
    identifier: bytes
    place: bytes


class Part(NamedTuple):
    """Slots that are left, and the cursor after what was delivered of them."""

    ranges: list[Range]
    cursor: str


class _Delivered(Enum):
    DONE = 1
    REPLACED = 2  # a later subscription to the filter has its own scan
    GONE = 3  # the session has another owner, or is gone


class _ScanError(Exception):
    """A scan cannot go on."""

    def __init__(self, why: _Delivered) -> None:
        self.why = why


class _Scan:
    """A scan of one filter.

    Attributes:
        parts: what is left, besides the part that is read now.
        kept: the value of the place in the session; None: the session keeps none.
    """

    def __init__(self, client: "Client", wanted: Wanted) -> None:
        self.client = client
        self.wanted = wanted
        options, _, text = wanted.place.partition(b" ")
        self.options = options
        self.parts = parts_of(text)
        terms = client.session.terms
        self.kept = wanted.place if terms is not None and terms.expiry_s > 0 else None

    def place(self, *reading: Part) -> bytes:
        """The value of the place while these parts are left, too."""
        return self.options + b" " + text_of([*reading, *self.parts])


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
        self._resuming: set[asyncio.Task[None]] = set()

    def begin(self, client: "Client", pairs: Sequence[Argument], new: Sequence[int]) -> None:
        """A SESSION.SUBSCRIBE with these pairs was granted; `new`: the filters that the session did not have."""
        self._add(client, list(due_filters(pairs, new)))

    def resume(self, client: "Client") -> None:
        """The client has connected to a session that it had before."""
        task = self._process.loop.create_task(self._resume(client))
        self._resuming.add(task)
        task.add_done_callback(self._resumed)

    async def _resume(self, client: "Client") -> None:
        key = client.session.key
        name, cursor = session_name(key, Suffix.PLACES), b"0"
        while client.conn:
            reply = await self._nodes.ask_for(key, ("HSCAN", name, cursor, "COUNT", _PLACES_AT_ONCE))
            if isinstance(reply, hiredis.ReplyError):  # its slot moves, or is about to have a node
                await asyncio.sleep(_AGAIN_MOST_S)
                continue
            cursor, row = reply
            found = zip(row[::2], row[1::2], strict=True)
            self._add(client, [wanted_of(topic_filter, value) for topic_filter, value in found])
            if cursor == b"0":
                return

    def _resumed(self, task: asyncio.Task[None]) -> None:
        self._resuming.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            log.defect("defect while retained messages were read", error)

    def _add(self, client: "Client", due: Sequence[Wanted]) -> None:
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
        tasks = [*self._tasks.values(), *self._resuming]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _ended(self, client: "Client", task: asyncio.Task[None]) -> None:
        del self._tasks[client]
        left = self._wanted.pop(client, None)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            log.defect("defect while retained messages were read", error, client=client.client_id)
        if left and not task.cancelled():
            self._add(client, list(left))  # they came when the task was about to end

    # ---- a scan ----------------------------------------------------------------------------------------------------

    async def _scan_all(self, client: "Client") -> None:
        wanted = self._wanted[client]
        while wanted:
            try:
                await self._scan(_Scan(client, wanted.popleft()))
            except _ScanError as ended:
                if ended.why is _Delivered.GONE:
                    wanted.clear()

    async def _scan(self, scan: _Scan) -> None:
        pause_s = _AGAIN_FIRST_S
        while scan.parts:
            unserved: list[Part] = []
            while scan.parts:
                part = scan.parts.pop(0)
                by_link = list(self._links.by_link(part.ranges).items())
                for at, (link, ranges) in enumerate(by_link):
                    later = [Part(other, part.cursor) for _, other in by_link[at + 1 :]]
                    if link is None or not self._links.is_up(link):
                        unserved.append(Part(ranges, part.cursor))
                    else:
                        unserved += await self._scan_node(scan, link, Part(ranges, part.cursor), [*later, *unserved])
            scan.parts = unserved
            if unserved:
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, _AGAIN_MOST_S)
        await self._deliver(scan, [], b"")

    async def _scan_node(self, scan: _Scan, link: int, part: Part, others: list[Part]) -> list[Part]:
        """Delivers a part that one node keeps.  Returns what it did not serve.  `others`: what is left besides."""
        ranges = part.ranges
        cursor: Argument = part.cursor
        unserved: list[Part] = []
        while True:
            async with self._pages:
                page = await self._read(scan, link, ranges, cursor)
                if isinstance(page, hiredis.ReplyError):
                    if not is_temporary(page):
                        log.warning("retained messages cannot be read", filter=scan.wanted.topic_filter, error=page)
                        return unserved
                    return [*unserved, Part(ranges, _text(cursor))]
                after, records, refused = page
                if refused := [(first, last) for first, last, *_address in refused]:
                    unserved.append(Part(refused, _text(cursor)))
                    ranges = _without(ranges, refused)
                here = scan.place(Part(ranges, _text(cursor)), *unserved, *others)
                await self._deliver(scan, list(_copies(records, scan)), here)
                left = await self._look_again(scan, link, Part(ranges, _text(cursor)), records)
                if left.ranges:
                    unserved.append(left)
                    ranges = _without(ranges, left.ranges)
            if after in (b"0", 0) or not ranges:
                return unserved
            cursor = after
            while self._process.engine.backlog(scan.client.conn) is not Backlog.NONE:  # noqa: ASYNC110 (nothing tells of it)
                await asyncio.sleep(_LOOK_S)

    async def _read(self, scan: _Scan, link: int, ranges: list[Range], cursor: Argument) -> Reply:
        """A page of a node.  With the cursor of another process of the server, the page begins anew."""
        if not self._links.is_up(link):
            return _LOST
        slots: list[Argument] = [len(ranges), *(end for pair in ranges for end in pair)]
        question = ("TOPIC.RETAINED", scan.wanted.topic_filter, "CURSOR")
        options = ("COUNT", _PAGE, "VALUES", "SLOTS", *slots)
        page = await self._calls.ask((*question, cursor, *options), link)
        if (
            isinstance(page, hiredis.ReplyError)
            and not is_temporary(page)
            and cursor != "0"
            and self._links.is_up(link)
        ):
            return await self._calls.ask((*question, "0", *options), link)
        return page

    async def _look_again(self, scan: _Scan, link: int, part: Part, records: Sequence[bytes]) -> Part:
        """Delivers again what was replaced or removed meanwhile.  Returns what the node does not say any more."""
        shown = _by_topic(records)
        if not shown:
            return Part([], part.cursor)
        page = await self._read(scan, link, part.ranges, part.cursor)
        if isinstance(page, hiredis.ReplyError):
            return part
        same = _by_topic(page[1])
        shown = {topic: data for topic, data in shown.items() if same.get(topic) != data}
        moved: set[int] = set()
        for _ in range(_LOOKS):
            changed: dict[bytes, bytes] = {}
            for topic, data in shown.items():
                now = await self._kept(link, topic, data)
                if now is None:
                    moved.add(slot_of(retained_key(topic)))
                elif now != data:
                    changed[topic] = now
            if not changed:
                break
            await self._deliver(scan, list(_copies(list(changed.values()), scan)), scan.kept or b"")
            shown = changed
        return Part([(slot, slot) for slot in sorted(moved)], part.cursor)

    async def _kept(self, link: int, topic: bytes, shown: bytes) -> bytes | None:
        """The retained message of a topic now; without payload if it is gone.  None: the node does not say."""
        if not self._links.is_up(link):
            return None
        slots = ("SLOTS", 1, 0, _SLOTS - 1)
        reply = await self._calls.ask(("TOPIC.RETAINED", topic, "CURSOR", "0", "COUNT", 1, "VALUES", *slots), link)
        if isinstance(reply, hiredis.ReplyError):
            return None
        if reply[1]:
            return bytes(reply[1][0])
        slot = slot_of(retained_key(topic))
        if any(first <= slot <= last for first, last, *_address in reply[2]):
            return None
        former = Record.decode(shown)
        return replace(former, payload=b"", retain=False).encode() if former.payload else shown

    async def _deliver(self, scan: _Scan, records: list[bytes], place: bytes) -> None:
        """Delivers, and moves the place; empty: the scan is complete.  Raises _ScanError if nothing was delivered."""
        session = scan.client.session
        moves = scan.kept is not None and (records or not place)
        if not records and not moves:
            return
        command: tuple[Argument, ...] = ("SESSION.DELIVER", session.key, "EPOCH", session.epoch)
        if scan.kept is not None:
            command += ("RETAINED", scan.wanted.topic_filter, scan.kept, place)
        pause_s = _AGAIN_FIRST_S
        while True:
            reply: Reply = await self._nodes.ask_for(session.key, (*command, *records))
            if not isinstance(reply, hiredis.ReplyError):
                break
            if not is_temporary(reply):
                raise _ScanError(_Delivered.REPLACED if error_code(reply) == "STALE" else _Delivered.GONE)
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, _AGAIN_MOST_S)
        if scan.kept is not None:
            scan.kept = place


_LOST = hiredis.ReplyError("TRYAGAIN there is no connection to the node")


def due_filters(pairs: Sequence[Argument], new: Sequence[int]) -> Iterator[Wanted]:
    """The filters whose retained messages are due [MQTT 5.0, 3.8.3.1 and 3.8.4]."""
    for topic_filter, options, is_new in zip(pairs[::2], pairs[1::2], new, strict=True):
        assert isinstance(topic_filter, bytes)
        text = options if isinstance(options, bytes) else str(options).encode()
        handling = int(text.partition(b"@")[0].partition(b":")[0]) >> 4 & 3
        if topic_filter.startswith(_SHARE) or handling == 2 or (handling == 1 and not is_new):
            continue
        yield wanted_of(topic_filter, text + b" ")


def wanted_of(topic_filter: bytes, place: bytes) -> Wanted:
    """The filter with the value of its place, of which the first word has the options."""
    text = place.partition(b" ")[0].decode()
    bits, _, identifier = text.partition("@")[0].partition(":")
    named = bytes((_SUBSCRIPTION_IDENTIFIER, *_variable_byte_integer(int(identifier)))) if identifier else b""
    return Wanted(topic_filter, int(bits) & 3, bool(int(bits) & 4), named, place)


def parts_of(text: bytes) -> list[Part]:
    """What is left, as a place says it.  All, if it says nothing or another program wrote it."""
    try:
        rows = json.loads(text)
        return [Part([(int(first), int(last)) for first, last in ranges], str(cursor)) for ranges, cursor in rows]
    except (ValueError, TypeError):
        return [Part([(0, _SLOTS - 1)], "0")]


def text_of(parts: Sequence[Part]) -> bytes:
    """The same as a text of bounded length: empty (begin anew) if it would be longer."""
    text = json.dumps([part for part in parts if part.ranges], ensure_ascii=False, separators=(",", ":")).encode()
    return text if len(text) <= _PLACE_BYTES else b""


def _text(cursor: Argument) -> str:
    return cursor.decode() if isinstance(cursor, bytes) else str(cursor)


def _without(ranges: Sequence[Range], gone: Sequence[Range]) -> list[Range]:
    """The ranges without others that lie within them."""
    left: list[Range] = []
    for first, last in ranges:
        start = first
        for low, high in sorted(gone):
            if low <= last and high >= start:
                if low > start:
                    left.append((start, low - 1))
                start = high + 1
        if start <= last:
            left.append((start, last))
    return left


def _by_topic(records: Sequence[bytes]) -> dict[bytes, bytes]:
    return {Record.decode(data).topic: data for data in records}


def _copies(records: Sequence[bytes], scan: _Scan) -> Iterator[bytes]:
    """The copies for the session.  One without payload says that the message was removed."""
    wanted, client_id = scan.wanted, scan.client.client_id
    for data in records:
        record = Record.decode(data)
        if not (wanted.no_local and record.publisher == client_id):
            properties = wanted.identifier + record.properties
            qos = min(record.qos, wanted.qos)
            yield replace(record, qos=qos, retain=bool(record.payload), properties=properties).encode()


def _variable_byte_integer(number: int) -> list[int]:
    """Seven bits in a byte, the lowest first [MQTT 5.0, 1.5.5]."""
    low, rest = number & 0x7F, number >> 7
    return [low | 0x80, *_variable_byte_integer(rest)] if rest else [low]
