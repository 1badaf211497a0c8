"""Sessions: search, show, disconnect, drop."""

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, Field

from holdmq import AsyncSession, SessionInfo, SessionRow, SubscriptionOptions, commands
from holdmq.core import is_session_key, session_key
from holdmq_console.console import Admin, ApiRoute, Console, Here, IfMatch, Viewer, tag
from holdmq_console.names import CursorText, Name, read_number, read_place, write_cursor
from holdmq_console.principal import Principal
from holdmq_console.problems import ProblemError

router = APIRouter(route_class=ApiRoute, tags=["sessions"])

EXAMINED = 2000
"""Sessions looked at for one page, at most: a search that finds little continues with `next`."""
STEP = 125
SUBSCRIPTIONS = 1000
"""Of a session, for one page, about: as many as a client of a bridge may have."""
NAMES_BYTES = 262_144
"""Of names in one page, about: a client id may have 64 KiB, and is there several times."""
SCANNED = (16, 256)
"""Subscriptions of a step, at first and at most: more while they are short."""
MAX_SCAN = 2**64 - 1
_LAST = "\U0010ffff" * 4

State = Literal["any", "connected", "away"]


class SessionItem(BaseModel):
    """A session in a list."""

    client_id: Name
    connected: bool
    owner: Name
    user: Name
    messages: int

    @classmethod
    def of(cls, row: SessionRow) -> "SessionItem":
        """From a row of the client."""
        return cls(
            client_id=row.client_id,
            connected=row.connected,
            owner=row.owner,
            user=row.identity,
            messages=row.messages,
        )


class SessionPage(BaseModel):
    """A page of sessions in the order of their keys."""

    items: list[SessionItem]
    next: str | None = Field(description="Where to continue; null at the end. A page may be empty and have it.")


class SubscriptionItem(BaseModel):
    """A subscription."""

    filter: Name
    qos: int
    no_local: bool
    retain_as_published: bool
    retain_handling: int
    identifier: int
    replays: bool


class SubscriptionPage(BaseModel):
    """A page of the subscriptions of a session. The pages are in no order, and may repeat some."""

    items: list[SubscriptionItem]
    next: str | None


class SessionDetail(BaseModel):
    """A session. Its ETag is its epoch."""

    client_id: Name
    opened: bool
    connected: bool
    owner: Name
    user: Name
    epoch: int
    expiry_s: int
    expires_in_s: float | None
    messages: int
    bytes: int
    dropped: int = Field(description="Messages lost because the queue was full, handled as `overflow` says")
    overflow: str
    first_serial: int
    last_serial: int
    subscriptions: list[SubscriptionItem] = Field(description="The first page of them")
    subscriptions_total: int
    subscriptions_next: str | None = Field(description="Where the list of subscriptions continues")


class Kick(BaseModel):
    """Why a client is disconnected."""

    why: str = Field("", max_length=200)


class Done(BaseModel):
    """What a change did."""

    messages: int


async def search(
    console: Console, *, prefix: str = "", user: str = "", state: State = "any", limit: int = 100, cursor: str = ""
) -> SessionPage:
    """A page of the sessions whose client id begins with `prefix`, of a user, in a state."""
    broker = console.broker
    below = _below(prefix)
    place = read_place(cursor, is_cluster=broker.is_cluster, check=_is_key) if cursor else None
    begin = _begin(prefix)
    found: list[SessionItem] = []
    size = 0
    for _ in range(0, EXAMINED, STEP):
        if place is None and not broker.is_cluster:
            place = below
        here = place
        page, place = await broker.page(
            here,
            lambda after: commands.session_list(cursor=after or below, count=STEP, connected=state == "connected"),
        )
        for row in page.sessions:
            key = row.key.encode("utf-8", "surrogateescape")
            if prefix and not key.startswith(begin):
                if key > begin:
                    place = await broker.next_node(here)
                    break
                continue
            if (user and row.identity != user) or (state == "away" and row.connected):
                continue
            found.append(SessionItem.of(row))
            size += len(row.client_id) + len(row.identity)
            if len(found) == limit or size >= NAMES_BYTES:
                return SessionPage(items=found, next=write_cursor(await broker.place_at(here, row.key)))
        if place is None:
            return SessionPage(items=found, next=None)
    return SessionPage(items=found, next=None if place is None else write_cursor(place))


def _is_key(place: str) -> bool:
    return is_session_key(place.encode("utf-8", "surrogateescape"))


def _begin(prefix: str) -> bytes:
    """What the keys of all client ids with this prefix begin with."""
    return session_key(prefix)[:-1] if prefix else b"{"


def _below(prefix: str) -> str | None:
    """A key after which the list begins with the client ids of this prefix, as good as."""
    if not prefix:
        return None
    head, last = prefix[:-1], prefix[-1]
    if ord(last) <= 1:
        return session_key(head).decode() if head else None
    return session_key(head + _before(last) + _LAST).decode()


def _before(last: str) -> str:
    """A character that sorts before this one in keys, which have `{`, `}` and `%` as %7B, %7D and %25."""
    if last in "{}%":
        return "$"
    if last in "|~":
        return "z" if last == "|" else "|"
    return "\ud7ff" if last == "\ue000" else chr(ord(last) - 1)


async def detail(console: Console, client_id: str, *, cursor: str = "") -> SessionDetail:
    """A session.

    Raises:
        ProblemError: there is neither a session nor a queue.
    """
    session = console.broker.hold.session(client_id)
    info = await session.info()
    if not info.exists and not info.messages and not info.subscriptions:
        raise missing(client_id)
    shown = await subscriptions(console, client_id, cursor=cursor)
    return SessionDetail(
        client_id=client_id,
        opened=info.exists,
        connected=info.connected,
        owner=info.owner,
        user=info.identity,
        epoch=info.epoch,
        expiry_s=info.expiry,
        expires_in_s=None if info.ttl_ms is None else info.ttl_ms / 1000,
        messages=info.messages,
        bytes=info.bytes,
        dropped=info.dropped,
        overflow=info.overflow,
        first_serial=info.first_serial,
        last_serial=info.last_serial,
        subscriptions=shown.items,
        subscriptions_total=info.subscriptions,
        subscriptions_next=shown.next,
    )


async def subscriptions(console: Console, client_id: str, *, cursor: str = "") -> SubscriptionPage:
    """A page of the subscriptions of a session.

    Raises:
        ProblemError: the cursor is invalid.
    """
    place = read_number(cursor, MAX_SCAN)
    client = console.broker.client
    key = session_key(client_id)
    replays = set(await client.hkeys(key + b"_replays"))
    step, most = SCANNED
    found: dict[bytes, bytes] = {}
    while True:
        raw, more = await client.hscan(key + b"_subscriptions", place, count=step)
        place = int(raw)
        found |= more
        size = sum(map(len, more))
        step = min(step * 2, most) if size < NAMES_BYTES // 16 else step
        if not place or len(found) >= SUBSCRIPTIONS or sum(map(len, found)) >= NAMES_BYTES:
            break
    items = [_subscription(name, text, name in replays) for name, text in sorted(found.items())]
    return SubscriptionPage(items=items, next=str(place) if place else None)


def _subscription(name: bytes, text: bytes, replays: bool) -> SubscriptionItem:
    try:
        options = SubscriptionOptions.from_text(text.decode())
    except (ValueError, UnicodeDecodeError):  # others have written it
        options = SubscriptionOptions()
    return SubscriptionItem(
        filter=name.decode("utf-8", "surrogateescape"),
        qos=options.qos,
        no_local=options.no_local,
        retain_as_published=options.retain_as_published,
        retain_handling=options.retain_handling,
        identifier=options.identifier,
        replays=replays,
    )


def missing(client_id: str) -> ProblemError:
    """The problem of a session that is not there."""
    return ProblemError(404, f"there is no session of the client {client_id!r}", field="client_id")


async def _existing(console: Console, client_id: str) -> SessionInfo:
    info = await console.broker.hold.session(client_id).info()
    if not info.exists:
        raise missing(client_id)
    return info


def _check_epoch(info: SessionInfo, epoch: int | None) -> None:
    if epoch is not None and info.epoch != epoch:
        raise ProblemError(412, f"the session has the epoch {info.epoch}; expected {epoch}: it was opened again")


async def fenced(console: Console, client_id: str, epoch: int | None) -> AsyncSession:
    """The session whose changes need this epoch.

    Raises:
        ProblemError: it was not opened when the ETag was read, and is by now. To the server, 0 is no condition.
    """
    session = console.broker.hold.session(client_id, epoch=epoch or 0)
    if epoch == 0:
        _check_epoch(await session.info(), epoch)
    return session


async def kick(console: Console, by: Principal, client_id: str, why: str, epoch: int | None) -> None:
    """Disconnects a client; its session stays.

    Raises:
        ProblemError: there is no such session, it has another epoch, or the client is not connected.
    """
    _check_epoch(await _existing(console, client_id), epoch)
    async with console.audit.change(by, "session.kick", client_id, why):
        if not await console.broker.hold.kick(client_id, why=why):
            raise ProblemError(409, f"the client {client_id!r} is not connected to a bridge")


async def drop(console: Console, by: Principal, client_id: str, epoch: int | None) -> Done:
    """Removes a session with its queue and subscriptions.

    Raises:
        ProblemError: there is no such session.
        FencedError: it has another epoch.
    """
    await _existing(console, client_id)
    session = await fenced(console, client_id, epoch)
    async with console.audit.change(by, "session.drop", client_id):
        return Done(messages=await session.drop())


@router.get("/sessions")
async def list_sessions(
    console: Here,
    _by: Viewer,
    prefix: Annotated[str, Query(max_length=1024, description="What the client id begins with")] = "",
    user: Annotated[str, Query(max_length=1024, description="Whose sessions")] = "",
    state: State = "any",
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    cursor: CursorText = "",
) -> SessionPage:
    """Search sessions. One answer looks at 2000 sessions at most; continue with `next`."""
    return await search(console, prefix=prefix, user=user, state=state, limit=limit, cursor=cursor)


@router.get("/sessions/{client_id:segment}")
async def get_session(console: Here, _by: Viewer, client_id: str, response: Response) -> SessionDetail:
    """A session with its subscriptions."""
    found = await detail(console, client_id)
    tag(response, found.epoch)
    return found


@router.get("/sessions/{client_id:segment}/subscriptions")
async def get_subscriptions(console: Here, _by: Viewer, client_id: str, cursor: CursorText = "") -> SubscriptionPage:
    """A page of the subscriptions of a session; the session itself has the first one."""
    return await subscriptions(console, client_id, cursor=cursor)


@router.post("/sessions/{client_id:segment}/kick", status_code=204)
async def kick_client(console: Here, by: Admin, client_id: str, body: Kick, epoch: IfMatch) -> None:
    """Disconnect the client, and keep its session."""
    await kick(console, by, client_id, body.why, epoch)


@router.delete("/sessions/{client_id:segment}")
async def drop_session(console: Here, by: Admin, client_id: str, epoch: IfMatch) -> Done:
    """Remove the session, its queue and its subscriptions."""
    return await drop(console, by, client_id, epoch)
