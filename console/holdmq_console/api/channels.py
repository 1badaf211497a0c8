"""Channels: the policy that applies, the messages held, drop."""

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from holdmq import commands
from holdmq_console.api.payloads import Payload, next_step, payload_of
from holdmq_console.api.sessions import Done
from holdmq_console.console import Admin, ApiRoute, Console, Here, Viewer
from holdmq_console.names import CursorText, Name, is_page_cursor, read_number, read_place, write_cursor
from holdmq_console.principal import Principal
from holdmq_console.problems import ProblemError

router = APIRouter(route_class=ApiRoute, tags=["channels"])

MAX_PLACE = 2**40
LIST_BYTES = 4_194_304


class Policy(BaseModel):
    """The rule of the policy list that applies to a channel."""

    glob: str
    hold: str
    last: bool
    maxlen: int
    ttl_s: int
    deliver: str


class ChannelDetail(BaseModel):
    """A channel. `policy` is null if no rule matches: then nothing is held."""

    name: Name
    policy: Policy | None
    held: int
    last: Payload | None


class HeldPage(BaseModel):
    """Messages that a channel holds, oldest first."""

    items: list[Payload]
    next: str | None


class ChannelItem(BaseModel):
    """A channel in a list."""

    name: Name
    held: int
    keeps_last: bool = Field(description="Whether its last message is kept apart from those that it holds")


class ChannelPage(BaseModel):
    """A page of the channels that have kept messages, in the order of their names."""

    items: list[ChannelItem]
    next: str | None


async def listed(console: Console, *, limit: int = 100, cursor: str = "") -> ChannelPage:
    """A page of the channels.

    Raises:
        ProblemError: the cursor is invalid.
    """
    place = read_place(cursor, is_cluster=console.broker.is_cluster, check=is_page_cursor)
    page, following = await console.broker.page(place, lambda at: commands.channel_list(cursor=at, count=limit))
    items = [ChannelItem(name=row.channel, held=row.held, keeps_last=row.keeps_last) for row in page.channels]
    return ChannelPage(items=items, next=None if following is None else write_cursor(following))


async def detail(console: Console, by: Principal, name: str) -> ChannelDetail:
    """A channel."""
    channel = console.broker.hold.channel(name, sharded=console.broker.is_cluster)
    policy, last = await channel.policy(), await channel.last()
    held = await console.broker.hold.execute(commands.channel_len(name))
    return ChannelDetail(
        name=name,
        policy=None
        if policy is None
        else Policy(
            glob=policy.glob,
            hold=policy.hold.value,
            last=policy.last,
            maxlen=policy.maxlen,
            ttl_s=policy.ttl,
            deliver=policy.deliver.value,
        ),
        held=held,
        last=None if last is None else payload_of(_raw(last), by),
    )


async def held(console: Console, by: Principal, name: str, *, limit: int = 50, cursor: str = "") -> HeldPage:
    """A page of what a channel holds.

    Raises:
        ProblemError: the cursor is invalid.
    """
    start = read_number(cursor, MAX_PLACE)
    items: list[Payload] = []
    size = 0
    step = 1
    while len(items) < limit and size < LIST_BYTES:
        place = start + len(items)
        count = min(step, limit - len(items))
        found = await console.broker.hold.execute(commands.channel_range(name, place, place + count - 1))
        items += [payload_of(_raw(one), by) for one in found]
        bytes_found = sum(map(len, found))
        size += bytes_found
        step = next_step(step, bytes_found)
        if len(found) < count:
            return HeldPage(items=items, next=None)
    place = start + len(items)
    more = place < await console.broker.hold.execute(commands.channel_len(name))
    return HeldPage(items=items, next=str(place) if more else None)


def _raw(message: bytes | str) -> bytes:
    """What the client returns as bytes, because its replies are not decoded."""
    return message if isinstance(message, bytes) else message.encode()


async def drop(console: Console, by: Principal, name: str) -> Done:
    """Removes what a channel holds.

    Raises:
        ProblemError: it holds nothing.
    """
    count = await console.broker.hold.execute(commands.channel_len(name))
    if not count:
        raise ProblemError(404, f"the channel {name!r} holds nothing", field="name")
    key = await console.broker.hold.execute(commands.channel_list_key(name))
    async with console.audit.change(by, "channel.drop", name, f"{count} messages"):
        await console.broker.client.unlink(key)
    return Done(messages=count)


@router.get("/channels")
async def get_channels(
    console: Here, _by: Viewer, limit: Annotated[int, Query(ge=1, le=1000)] = 100, cursor: CursorText = ""
) -> ChannelPage:
    """The channels that have kept messages. A page may be empty and have `next`."""
    return await listed(console, limit=limit, cursor=cursor)


@router.get("/channels/{name:segment}")
async def get_channel(console: Here, by: Viewer, name: str) -> ChannelDetail:
    """A channel: its policy, and how much it holds."""
    return await detail(console, by, name)


@router.get("/channels/{name:segment}/messages")
async def get_messages(
    console: Here,
    by: Viewer,
    name: str,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
    cursor: CursorText = "",
) -> HeldPage:
    """A page of what the channel holds. Nothing is removed."""
    return await held(console, by, name, limit=limit, cursor=cursor)


@router.delete("/channels/{name:segment}/messages")
async def drop_messages(console: Here, by: Admin, name: str) -> Done:
    """Remove what the channel holds."""
    return await drop(console, by, name)
