"""Queues of sessions: page, look at one message, delete, move."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field, model_validator

from holdmq import ArgumentError, AsyncSession, Entry, EntryState
from holdmq_console.api.payloads import MAX_SHOWN, MessageOut, Payload, message_of, payload_of
from holdmq_console.api.sessions import Done, fenced, missing
from holdmq_console.console import Admin, ApiRoute, Console, Here, IfMatch, Reader, Viewer
from holdmq_console.names import CursorText, read_number
from holdmq_console.principal import Principal, Right
from holdmq_console.problems import ProblemError

router = APIRouter(route_class=ApiRoute, tags=["queues"])

PAGE_BYTES = 1_048_576
MOVED_AT_ONCE = 100
MAX_SERIAL = 2**53 - 1
GROUP = "$share/"
"""The queue of a group is that of the session `$share/<group>/<filter>`, which is never opened."""

Serial = Annotated[int, Field(ge=1, le=MAX_SERIAL)]


class QueueItem(BaseModel):
    """A message in a queue. `message` is null for a value that is not a message, and for a released identifier."""

    serial: int
    packet_id: int
    state: str
    message: MessageOut | None
    value: Payload | None


class QueuePage(BaseModel):
    """A page of a queue, oldest first."""

    items: list[QueueItem]
    next: str | None
    messages: int
    dropped: int
    overflow: str


class Move(BaseModel):
    """Which messages go where. Without `serials`, all that are in the queue now."""

    model_config = ConfigDict(extra="forbid")

    serials: list[Serial] | None = Field(None, min_length=1, max_length=1000)
    to_session: str | None = Field(None, min_length=1, max_length=1024)
    to_topic: str | None = Field(None, min_length=1, max_length=1024)

    @model_validator(mode="after")
    def _one_target(self) -> "Move":
        if (self.to_session is None) == (self.to_topic is None):
            raise ValueError("expected either to_session or to_topic")
        return self


def item_of(entry: Entry, by: Principal, most: int | None = MAX_SHOWN) -> QueueItem:
    """An entry as a user sees it."""
    message: MessageOut | None = None
    value: Payload | None = None
    try:
        if (found := entry.message) is not None:
            message = message_of(found, by, most)
    except ArgumentError:  # others have stored it
        value = payload_of(entry.value, by, most)
    return QueueItem(
        serial=entry.serial,
        packet_id=entry.packet_id,
        state=entry.state.name.lower(),
        message=message,
        value=value,
    )


async def page(console: Console, by: Principal, client_id: str, *, limit: int = 50, cursor: str = "") -> QueuePage:
    """A page of a queue.

    Raises:
        ProblemError: there is neither a session nor a queue, or the cursor is invalid.
    """
    after = read_number(cursor, MAX_SERIAL)
    session = console.broker.hold.session(client_id)
    info = await session.info()
    if not info.exists and not info.messages and not client_id.startswith(GROUP):
        raise missing(client_id)
    found = await session.fetch(after=after, count=limit, max_bytes=PAGE_BYTES)
    items = [item_of(entry, by) for entry in found.entries]
    following = str(items[-1].serial) if found.more and items else None
    return QueuePage(items=items, next=following, messages=info.messages, dropped=info.dropped, overflow=info.overflow)


async def entry_of(console: Console, client_id: str, serial: int) -> Entry:
    """The entry with a serial.

    Raises:
        ProblemError: it is not in the queue.
    """
    found = await console.broker.hold.session(client_id).fetch(after=serial - 1, count=1)
    if not found.entries or found.entries[0].serial != serial:
        raise ProblemError(404, f"the queue of {client_id!r} has no message {serial}", field="serial")
    return found.entries[0]


async def delete(console: Console, by: Principal, client_id: str, serial: int, epoch: int | None) -> Done:
    """Removes one message.

    Raises:
        ProblemError: it is not in the queue, or its exchange has begun to end (QoS 2).
        FencedError: the session has another epoch.
    """
    entry = await entry_of(console, client_id, serial)
    if entry.state is EntryState.RELEASED:
        raise ProblemError(
            409, f"of the message {serial} only the packet identifier is left, until its client completes it"
        )
    session = await fenced(console, client_id, epoch)
    async with console.audit.change(by, "queue.delete", client_id, f"message {serial}"):
        return Done(messages=await session.ack(entry.packet_id))


async def purge(console: Console, by: Principal, client_id: str, epoch: int | None) -> Done:
    """Removes all messages that are in the queue now.

    Raises:
        ProblemError: there is neither a session nor a queue.
        FencedError: the session has another epoch.
    """
    info = await console.broker.hold.session(client_id).info()
    if not info.exists and not info.messages:
        raise missing(client_id)
    session = await fenced(console, client_id, epoch)
    async with console.audit.change(by, "queue.purge", client_id, f"{info.messages} messages"):
        return Done(messages=await session.purge())


async def move(console: Console, by: Principal, client_id: str, body: Move, epoch: int | None) -> Done:
    """Hands messages to another session or publishes them, and then removes them here.

    If it breaks off in between, the message that was moved last may be in both places; none is lost.

    Raises:
        ProblemError: a message or the other session is not there, or the other session takes no more.
        FencedError: the session has another epoch.
    """
    if not by.may(Right.PAYLOADS):
        raise ProblemError(
            403, f"{by.name} may not move messages, which shows them to others; expected the right payloads"
        )
    if body.to_session == client_id:
        raise ProblemError(422, "to_session is the session itself; expected another one", field="to_session")
    target = None if body.to_session is None else console.broker.hold.session(body.to_session)
    if target is not None and not (await target.info()).exists:
        raise ProblemError(404, f"there is no session of the client {body.to_session!r}", field="to_session")
    source = await fenced(console, client_id, epoch)
    which = f"messages {body.serials}" if body.serials else "all messages"
    moved = 0
    async with console.audit.change(by, "queue.move", client_id, f"{which} to {body.to_session or body.to_topic}"):
        async for entry in _selected(console, client_id, source, body.serials):
            if target is not None:
                await _hand_over(entry, target)
            else:
                await _publish(console, entry, str(body.to_topic))
            moved += await source.ack(entry.packet_id)
    return Done(messages=moved)


async def _selected(
    console: Console, client_id: str, source: AsyncSession, serials: list[int] | None
) -> AsyncIterator[Entry]:
    """The messages to move, without those that arrive in the meantime."""
    if serials is not None:
        for serial in serials:
            yield await entry_of(console, client_id, serial)
        return
    last, after = (await source.info()).last_serial, 0
    while after < last:
        entries = (await source.fetch(after=after, count=MOVED_AT_ONCE)).entries
        if not entries:
            return
        for entry in entries:
            if entry.serial <= last and entry.state is not EntryState.RELEASED:
                yield entry
        after = entries[-1].serial


async def _hand_over(entry: Entry, target: AsyncSession) -> None:
    try:
        message = entry.message
    except ArgumentError:  # no message; the value goes as it is
        await target.add(entry.value)
        return
    if message is None:
        raise ProblemError(409, f"of the message {entry.serial} only the packet identifier is left")
    # With QoS 0 an absent client would not get it.
    if not await target.deliver(replace(message, qos=max(1, message.qos), share="")):
        raise ProblemError(
            409, f"the session of {target.client_id!r} does not take the message {entry.serial}: it is full"
        )


async def _publish(console: Console, entry: Entry, topic: str) -> None:
    try:
        message = entry.message
    except ArgumentError:
        await console.broker.hold.topics.publish(topic, entry.value, qos=1)
        return
    if message is None:
        raise ProblemError(409, f"of the message {entry.serial} only the packet identifier is left")
    reached = await console.broker.hold.topics.publish(
        topic,
        message.payload,
        qos=max(1, message.qos),
        publisher=message.publisher or None,
        properties=message.properties,
    )
    if not reached:
        raise ProblemError(
            409, f"no session subscribes to {topic!r}: the message {entry.serial} stays", field="to_topic"
        )


@router.get("/sessions/{client_id:segment}/queue")
async def get_queue(
    console: Here,
    by: Viewer,
    client_id: str,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
    cursor: CursorText = "",
) -> QueuePage:
    """A page of the queue. Payloads are shown to those who may read them, up to 4096 bytes each."""
    return await page(console, by, client_id, limit=limit, cursor=cursor)


@router.get("/sessions/{client_id:segment}/queue/{serial}")
async def peek(console: Here, by: Reader, client_id: str, serial: Serial) -> QueueItem:
    """One message as a whole. Nothing is removed."""
    return item_of(await entry_of(console, client_id, serial), by, None)


@router.delete("/sessions/{client_id:segment}/queue/{serial}")
async def delete_message(console: Here, by: Admin, client_id: str, serial: Serial, epoch: IfMatch) -> Done:
    """Remove one message."""
    return await delete(console, by, client_id, serial, epoch)


@router.delete("/sessions/{client_id:segment}/queue")
async def purge_queue(console: Here, by: Admin, client_id: str, epoch: IfMatch) -> Done:
    """Remove all messages that are in the queue now."""
    return await purge(console, by, client_id, epoch)


@router.post("/sessions/{client_id:segment}/queue/move")
async def move_messages(console: Here, by: Admin, client_id: str, body: Move, epoch: IfMatch) -> Done:
    """Move messages to another session, or publish them to a topic."""
    return await move(console, by, client_id, body, epoch)
