"""Shared subscriptions over a cluster: a client has a further session in the slot of each of its groups.

    SUBSCRIBE $share/g/f ──► a note in the client's session ──► SESSION.OPEN <client>:{$share/g/f} CLAIM <epoch>
                              ──► the engine joins it to the connection ──► its SUBSCRIBE, as routes.py does it
    CONNECT to a session ──► its notes ──► the same for each of them
    UNSUBSCRIBE ──► that of the member ──► that of the note
    the connection ends ──► SESSION.CLOSE of the members
    the client's session ends ──► its slot's outbox names the members (member_ends.py)

So all members of a group are on one node, and are a group there as on a single server.

Invariants
 1. A SUBACK is sent when the note is kept and the member has its subscription.  The note goes last.
 2. A member that the server may have opened is closed by this process, or has a connection.  (If the process dies, the
    lease of the slot ends it.)
 3. Two members of a connection never have the same block of packet identifiers.
 4. A member that lost its session ends the client's connection: the next one opens it again.
"""

import asyncio
import itertools
import random
import secrets
from collections.abc import Coroutine, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import hiredis

from holdmq.core import Suffix, session_key, session_name
from holdmq.core import engine as core
from holdmq.core.engine import Event, EventKind
from holdmq_bridge.base.backoff import Backoff
from holdmq_bridge.base.command import Argument, Reply, error_code, is_temporary
from holdmq_bridge.base.logs import Log, readable
from holdmq_bridge.base.reasons import Ending
from holdmq_bridge.broker.sessions_by_slot import NO_SLOT
from holdmq_bridge.process.process import Process
from holdmq_bridge.server.calls import LOST, Calls
from holdmq_bridge.server.node_calls import NodeCalls
from holdmq_bridge.server.routes import Routes

if TYPE_CHECKING:
    from holdmq_bridge.broker.client import Client

log = Log("groups")

_SHARE = b"$share/"
_BLOCKS = core.MEMBER_BLOCKS
_AGAIN_FIRST_S, _AGAIN_MOST_S = 0.02, 1.0
_STOP_S = 5.0  # for members that are being closed, when the process stops

_GONE = hiredis.ReplyError("NOSESSION the connection has ended")
_UNREACHED = hiredis.ReplyError("TRYAGAIN there is no connection to the node of the group")
TOO_MANY = hiredis.ReplyError(f"QUOTA the client is a member of {_BLOCKS} groups; expected fewer in a cluster")


class GroupsHost(Protocol):
    """The part of the bridge that members use."""

    def place_member(self, member: "Member") -> int | None:
        """The link of the member's slot, on which this process hears its inbox and holds a lease now; None: none."""

    def remove_member(self, member: "Member") -> None:
        """The member is closed."""

    def owner_of(self, key: bytes) -> str:
        """The name of this process as the owner of a session."""


class Member:
    """The session of a client in the slot of a group.

    Attributes:
        block: of packet identifiers.
        is_left: the client is not, or no longer, subscribed: the session ends with the connection.
        opening: while it is being opened.
        refusal: why it could not be opened at last.
    """

    __slots__ = (
        "block",
        "client",
        "conn",
        "epoch",
        "filter",
        "inbox",
        "inbox_link",
        "is_left",
        "key",
        "opening",
        "refusal",
        "slot",
    )

    def __init__(self, client: "Client", topic_filter: bytes, block: int) -> None:
        self.client = client
        self.filter = topic_filter
        self.block = block
        self.key = session_key(client.client_id)[1:-1] + b":" + session_key(topic_filter)
        self.inbox = session_name(self.key, Suffix.INBOX)
        self.inbox_link: int | None = None
        self.slot = NO_SLOT
        self.conn = 0
        self.epoch = 0
        self.is_left = True
        self.opening: asyncio.Task[None] | None = None
        self.refusal = _UNREACHED

    @property
    def is_open(self) -> bool:
        """Whether the engine has its session."""
        return self.conn != 0

    def server_lost(self) -> None:
        """Its commands are sent again by those who wait for them."""

    def server_restored(self) -> None:
        """The same."""


class _Crew:
    """The members of one connection.

    Attributes:
        notes: the block of each filter that the client's session notes.
        kept: the filters that it noted before this connection.
        members: by their filters.
        noted: done when the notes are known.
        is_new: the client's session began with this connection.
        is_gone: the connection has ended.
    """

    def __init__(self, noted: asyncio.Future[None], *, is_new: bool) -> None:
        self.notes: dict[bytes, int] = {}
        self.kept: frozenset[bytes] = frozenset()
        self.members: dict[bytes, Member] = {}
        self.locks: dict[bytes, asyncio.Lock] = {}
        self.noted = noted
        self.is_new = is_new
        self.is_gone = False
        self._next = secrets.randbelow(_BLOCKS)  # one that was in use lately may be in use at the client

    def lock(self, topic_filter: bytes) -> asyncio.Lock:
        """Held while the member of a filter changes."""
        return self.locks.setdefault(topic_filter, asyncio.Lock())

    def blocks_for(self, filters: Sequence[bytes]) -> list[int] | None:
        """A block for the member of each filter; None: there are too few."""
        has = {**self.notes, **{topic_filter: member.block for topic_filter, member in self.members.items()}}
        used = set(has.values())
        free = (block for block in (*range(self._next, _BLOCKS), *range(self._next)) if block not in used)
        blocks = []
        for topic_filter in filters:
            block = has.get(topic_filter)
            if block is None:
                block = next(free, None)
                if block is None:
                    return None
                self._next = (block + 1) % _BLOCKS
            blocks.append(block)
        return blocks


class Groups:
    """One for each process that serves a cluster.

    Args:
        limit_s: for one SUBSCRIBE.
    """

    def __init__(
        self, process: Process, calls: Calls, nodes: NodeCalls, routes: Routes, host: GroupsHost, limit_s: float
    ) -> None:
        self._process = process
        self._calls = calls
        self._nodes = nodes
        self._routes = routes
        self._host = host
        self._limit_s = limit_s
        self._crews: dict[Client, _Crew] = {}
        self._by_conn: dict[int, Member] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._attempts = itertools.count(1)

    @property
    def busy(self) -> int:
        """Members that are being opened or closed."""
        return sum(not task.done() for task in self._tasks)

    async def stop(self) -> None:
        """Waits for members that are being closed, for a while."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_STOP_S)
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    # ---- the client ------------------------------------------------------------------------------------------------

    def begin(self, client: "Client", *, resumed: bool) -> None:
        """The client has its session.  Members that it notes are opened again."""
        noted: asyncio.Future[None] = self._process.loop.create_future()
        crew = self._crews[client] = _Crew(noted, is_new=not resumed)
        if resumed:
            self._start(self._resume(client, crew))
        else:
            noted.set_result(None)

    def forget(self, client: "Client") -> None:
        """The connection has ended; the engine still has it."""
        crew = self._crews.pop(client, None)
        if crew is None:
            return
        crew.is_gone = True
        if not crew.noted.done():
            crew.noted.set_result(None)
        for member in crew.members.values():
            if member.conn:
                self._close(member)

    async def subscribe(self, client: "Client", pairs: Sequence[Argument]) -> Reply:
        """The reply as of SESSION.SUBSCRIBE; errors are values, and nothing is subscribed then."""
        crew = self._crews.get(client)
        if crew is None:
            return _GONE
        await crew.noted
        plain = tuple(word for pair in _pairs(pairs) if not is_of_group(*pair) for word in pair)
        shared = [pair for pair in _pairs(pairs) if is_of_group(*pair)]
        blocks = crew.blocks_for([topic_filter for topic_filter, _ in shared])
        if blocks is None:
            return TOO_MANY
        notes = tuple(
            word
            for (topic_filter, options), block in zip(shared, blocks, strict=True)
            for word in (topic_filter, f"{_text(options)}&{block}")
        )
        key, epoch = client.session.key, client.session.epoch
        noted = await self._ask(crew, key, ("SESSION.SUBSCRIBE", key, "EPOCH", epoch, *notes))
        if isinstance(noted, hiredis.ReplyError):
            return noted
        crew.notes.update((pair[0], block) for pair, block in zip(shared, blocks, strict=True))
        new: dict[bytes, int] = dict(zip((topic_filter for topic_filter, _ in shared), noted, strict=True))
        error = await self._grant(client, crew, plain, shared, new)
        if error is None:
            return [new[topic_filter] for topic_filter, _ in _pairs(pairs)]
        await self._take_back(client, crew, [topic_filter for topic_filter, one in new.items() if one])
        return error

    async def _grant(
        self,
        client: "Client",
        crew: _Crew,
        plain: tuple[Argument, ...],
        shared: list[tuple[bytes, Argument]],
        new: dict[bytes, int],
    ) -> hiredis.ReplyError | None:
        """Subscribes the client's session and its members.  Notes which filters are `new`."""
        if plain:
            reply = await self._routes.subscribe(client.session.key, client.session.epoch, plain)
            if isinstance(reply, hiredis.ReplyError):
                return reply
            new.update((topic_filter, one) for (topic_filter, _), one in zip(_pairs(plain), reply, strict=True))
        for topic_filter, options in shared:
            error = await self._join(client, crew, topic_filter, options)
            if error is not None:
                return error
        return None

    async def _take_back(self, client: "Client", crew: _Crew, added: list[bytes]) -> None:
        """Removes filters whose SUBSCRIBE is refused."""
        for topic_filter in added:
            if topic_filter in crew.members:
                await self._leave(crew, topic_filter)  # if it is not open, it has no subscription
            crew.notes.pop(topic_filter, None)
        if added:
            key, epoch = client.session.key, client.session.epoch
            reply = await self._ask(crew, key, ("SESSION.UNSUBSCRIBE", key, "EPOCH", epoch, *added))
            if isinstance(reply, hiredis.ReplyError):
                log.warning("a refused subscription stays in its session", key=key, error=reply)

    async def unsubscribe(self, client: "Client", filters: Sequence[Argument]) -> Reply:
        """Ends the subscriptions of the members of these filters.  None, or an error; then it can be repeated."""
        crew = self._crews.get(client)
        if crew is None:
            return _GONE
        await crew.noted
        for topic_filter in filters:
            assert isinstance(topic_filter, bytes)
            if topic_filter in crew.notes:
                error = await self._leave(crew, topic_filter)
                if error is not None:
                    return error
        return None

    def event(self, event: Event) -> None:
        """An event of the engine about a connection that is no client's."""
        member = self._by_conn.get(event.conn)
        if member is None or event.kind not in (EventKind.TAKEN_OVER, EventKind.FAILED, EventKind.CONFLICT):
            return
        detail = readable(event.data) or "another connection has it, or its lease ended"
        member.client.end(Ending.SERVER_ERROR, f"the session of the group {readable(member.filter)}: {detail}")

    # ---- members ---------------------------------------------------------------------------------------------------

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._process.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            log.defect("defect while a member of a group was opened or closed", error)

    async def _resume(self, client: "Client", crew: _Crew) -> None:
        """Opens the members that the session notes, each until it is open or the connection ends."""
        key = client.session.key
        options = await self._notes_of(crew, key)
        crew.kept = frozenset(options)
        if not crew.noted.done():
            crew.noted.set_result(None)
        for topic_filter, wanted in options.items():
            self._start(self._resume_one(client, crew, topic_filter, wanted))

    async def _notes_of(self, crew: _Crew, key: bytes) -> dict[bytes, Argument]:
        """The filters of groups that the session notes, with their options.  Fills the blocks of `crew`."""
        options: dict[bytes, Argument] = {}
        cursor: Argument = "0"
        while True:
            reply = await self._ask(crew, key, ("SESSION.SUBSCRIPTIONS", key, "CURSOR", cursor), forever=True)
            if isinstance(reply, hiredis.ReplyError):
                if error_code(reply) != "STALECURSOR" or crew.is_gone:
                    return options
                cursor = "0"  # another node has the slot
                continue
            cursor, page = reply
            for topic_filter, value in page.items():
                text, mark, block = value.partition(b"&")
                if mark:
                    crew.notes[topic_filter] = int(block)
                    options[topic_filter] = text
            if cursor == b"0":
                return options

    async def _resume_one(self, client: "Client", crew: _Crew, topic_filter: bytes, options: Argument) -> None:
        pauses = _pauses()
        while not crew.is_gone and topic_filter in crew.notes:
            error = await self._join(client, crew, topic_filter, options)
            if error is None:
                return
            if not is_temporary(error) and error_code(error) != "NOROUTES":
                log.warning("a member of a group cannot be opened", client=client.client_id, error=error)
                client.end(Ending.SERVER_ERROR, str(error))
                return
            await asyncio.sleep(pauses.next())

    async def _join(
        self, client: "Client", crew: _Crew, topic_filter: bytes, options: Argument
    ) -> hiredis.ReplyError | None:
        """Opens the member, if it is not, and subscribes it."""
        async with crew.lock(topic_filter):
            member = crew.members.get(topic_filter)
            if member is None:
                member = Member(client, topic_filter, crew.notes[topic_filter])
                member.is_left = topic_filter not in crew.kept
                crew.members[topic_filter] = member
            if not member.is_open:
                error = await self._opened(crew, member)
                if error is not None:
                    return error
            reply = await self._routes.subscribe(member.key, member.epoch, (topic_filter, options))
            if isinstance(reply, hiredis.ReplyError):
                return _of_member(reply)
            member.is_left = False
            return None

    async def _opened(self, crew: _Crew, member: Member) -> hiredis.ReplyError | None:
        """Waits for the member to be open, for limit_s at most.  If it takes longer, that goes on."""
        if member.opening is None:
            member.opening = self._start(self._open(crew, member))
        await asyncio.wait({member.opening}, timeout=self._limit_s)
        if not member.opening.done():
            return _UNREACHED
        member.opening = None
        return None if member.is_open else _of_member(member.refusal)

    async def _open(self, crew: _Crew, member: Member) -> None:
        """Opens the session, and joins it to the connection.  Ends only when it is known whether the server has it."""
        client, terms = member.client, member.client.session.terms
        assert terms is not None
        command: tuple[Argument, ...] = ("SESSION.OPEN", member.key, "OWNER", self._host.owner_of(member.key))
        command += ("EXPIRY", terms.expiry_s, "CLAIM", client.session.epoch)
        command += ("CLEAN",) if crew.is_new else ()  # what a former session left
        command += ("WINDOW", min(terms.window, core.MEMBER_IDS))
        command += ("ATTEMPT", f"{self._process.name}:member:{next(self._attempts)}")
        pauses, may_be_open = _pauses(), False
        while not crew.is_gone or may_be_open:
            link = self._host.place_member(member)
            reply: Reply = _UNREACHED
            if link is not None and self._nodes.is_up(link):
                reply = await self._calls.ask(command, link)
                may_be_open = may_be_open or reply is LOST
            if not isinstance(reply, hiredis.ReplyError):
                member.epoch = reply[0]
                await self._join_or_end(crew, member)
                return
            member.refusal = reply
            if not is_temporary(reply):
                break
            await asyncio.sleep(pauses.next())
        self._host.remove_member(member)

    async def _join_or_end(self, crew: _Crew, member: Member) -> None:
        """The server has opened the session."""
        terms = member.client.session.terms
        assert terms is not None
        member.refusal = _GONE
        if not crew.is_gone and member.client.is_open:
            try:
                self._attach(member, terms.window, terms.places)
            except MemoryError as error:
                member.refusal = hiredis.ReplyError(f"OOM {error}")
            else:
                return
        await self._end(member, 0, 0 if member.is_left else None)

    def _attach(self, member: Member, window: int, places: int) -> None:
        link = self._host.place_member(member)
        assert link is not None  # a slot keeps its last one
        joining = core.Member(member.key, member.epoch, link, member.block, window, places)
        engine = self._process.engine
        member.conn, _former = engine.join(member.client.conn, joining, self._process.now_ms())
        self._by_conn[member.conn] = member
        self._process.wake()

    async def _leave(self, crew: _Crew, topic_filter: bytes) -> hiredis.ReplyError | None:
        """Ends the subscription of a member.  What it has in flight is acknowledged as before."""
        async with crew.lock(topic_filter):
            member = crew.members.get(topic_filter)
            if topic_filter in crew.notes and (member is None or not member.is_open):
                return _UNREACHED  # the note goes last: a former connection may have left a member
            if member is not None and not member.is_left:
                words: tuple[Argument, ...] = ("EPOCH", member.epoch, topic_filter)
                reply = await self._nodes.ask_for(member.key, ("SESSION.UNSUBSCRIBE", member.key, *words))
                if isinstance(reply, hiredis.ReplyError):
                    return _of_member(reply)
                member.is_left = True
            crew.notes.pop(topic_filter, None)
            return None

    def _close(self, member: Member) -> None:
        """Its connection has ended."""
        client, engine = member.client, self._process.engine
        sent = engine.sent_serial(member.conn)
        engine.close(member.conn)
        del self._by_conn[member.conn]
        member.conn = 0
        session = client.session
        is_over = member.is_left or session.ending in (Ending.GONE, Ending.DROPPED)
        self._start(self._end(member, sent, 0 if is_over else session.final_expiry_s))

    async def _end(self, member: Member, sent: int, expiry_s: int | None = None) -> None:
        """Closes the session; without `expiry_s` it lives as long as its OPEN said."""
        command: tuple[Argument, ...] = ("SESSION.CLOSE", member.key, "EPOCH", member.epoch)
        command += () if expiry_s is None else ("EXPIRY", expiry_s)
        command += ("SENT", sent) if sent else ()
        pauses = _pauses()
        while True:
            reply = await self._nodes.ask_for(member.key, command)
            if not isinstance(reply, hiredis.ReplyError) or not is_temporary(reply):
                break
            await asyncio.sleep(pauses.next())
        self._host.remove_member(member)

    async def _ask(self, crew: _Crew, key: bytes, command: tuple[Argument, ...], *, forever: bool = False) -> Reply:
        """The reply of the session's node, for limit_s at most unless `forever`; while the connection lasts."""
        until = self._process.loop.time() + self._limit_s
        pauses = _pauses()
        while True:
            reply = await self._nodes.ask_for(key, command)
            is_final = not isinstance(reply, hiredis.ReplyError) or not is_temporary(reply)
            if is_final or crew.is_gone or (not forever and self._process.loop.time() >= until):
                return reply
            await asyncio.sleep(pauses.next())


def _pauses() -> Backoff:
    return Backoff(_AGAIN_FIRST_S, _AGAIN_MOST_S, random.uniform)


def _of_member(error: hiredis.ReplyError) -> hiredis.ReplyError:
    """The loss of a member is not that of the client's session.  It ends the connection by itself."""
    is_lost = error_code(error) in ("FENCED", "NOSESSION")
    return hiredis.ReplyError(f"TRYAGAIN the member of a group: {error}") if is_lost else error


def is_of_group(topic_filter: Argument, options: Argument) -> bool:
    """Whether a member gets its messages.  A filter that reads history is the session's own, which refuses it."""
    return isinstance(topic_filter, bytes) and topic_filter.startswith(_SHARE) and "@" not in _text(options)


def has_groups(pairs: Sequence[Argument]) -> bool:
    """Whether some of these filters with their options are of groups."""
    return any(is_of_group(*pair) for pair in _pairs(pairs))


def _pairs(words: Sequence[Argument]) -> Iterator[tuple[bytes, Argument]]:
    for topic_filter, options in zip(words[::2], words[1::2], strict=True):
        assert isinstance(topic_filter, bytes)
        yield topic_filter, options


def _text(options: Argument) -> str:
    return options.decode() if isinstance(options, bytes) else str(options)
