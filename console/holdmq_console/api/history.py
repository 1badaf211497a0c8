"""Stores of history: policy, size, shards; and the replay of a range."""

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from holdmq import ArgumentError, HistoryPolicy, ShardInfo
from holdmq_console.api.payloads import MessageOut, message_of
from holdmq_console.console import ApiRoute, Console, Here, Viewer
from holdmq_console.names import CursorText, Name, bad_cursor, read_cursor, time_of, write_cursor
from holdmq_console.principal import Principal
from holdmq_console.problems import ProblemError

router = APIRouter(route_class=ApiRoute, tags=["history"])


class StoreItem(BaseModel):
    """The settings of a store."""

    name: Name
    filters: list[Name]
    shards: int
    levels: int
    age_s: int
    epoch_s: int
    max_bytes: int
    hold_bytes: int
    learn_s: int

    @classmethod
    def of(cls, policy: HistoryPolicy) -> "StoreItem":
        """From the client's."""
        return cls(
            name=policy.store,
            filters=list(policy.filters),
            shards=policy.shards,
            levels=policy.levels,
            age_s=policy.age,
            epoch_s=policy.epoch,
            max_bytes=policy.max_bytes,
            hold_bytes=policy.hold_bytes,
            learn_s=policy.learn,
        )


class Shard(BaseModel):
    """The state of a shard."""

    shard: int
    messages: int
    bytes: int
    first: int
    last: int
    first_time: datetime | None
    last_time: datetime | None
    generation: int
    holds: dict[str, int]
    lost: dict[str, int]

    @classmethod
    def of(cls, info: ShardInfo) -> "Shard":
        """From the client's."""
        return cls(
            shard=info.shard,
            messages=info.messages,
            bytes=info.bytes,
            first=info.first,
            last=info.last,
            first_time=time_of(info.first_time_us // 1000),
            last_time=time_of(info.last_time_us // 1000),
            generation=info.generation,
            holds=dict(info.holds),
            lost=dict(info.lost),
        )


class StoreDetail(BaseModel):
    """A store and its shards."""

    store: StoreItem
    generation: int
    messages: int
    bytes: int
    shards: list[Shard]


class Pattern(BaseModel):
    """A pattern by which messages are stored and found."""

    pattern: int
    filter: Name
    messages: int
    slots: int = Field(description="Levels that vary and are indexed")


class Patterns(BaseModel):
    """The current pattern set of a shard, with the messages of each pattern."""

    shard: int
    generation: int
    items: list[Pattern]


class Stores(BaseModel):
    """All stores."""

    items: list[StoreItem]


class ReplayPage(BaseModel):
    """A part of the past, in order within each topic."""

    items: list[MessageOut]
    next: str | None = Field(description="Where to continue; null at the end of the range, or of what there is")


async def stores(console: Console) -> Stores:
    """All stores."""
    return Stores(items=[StoreItem.of(policy) for policy in await console.broker.hold.history.stores()])


async def patterns(console: Console, name: str, shard: int = 0) -> Patterns:
    """The current pattern set of a shard. Of one shard, so that no step of the server is long.

    Raises:
        NoStoreError: the store does not exist.
        ProblemError: the store has no such shard.
    """
    shards = (await console.broker.hold.history.store(name).info()).policy.shards
    if shard >= shards:
        raise ProblemError(422, f"shard is {shard}; expected 0 to {shards - 1}", field="shard")
    found = console.broker.hold.history.store(name).patterns
    generation, _ = await found.get(shard=shard)
    items = [Pattern.model_validate(one, from_attributes=True) for one in await found.stats(shard=shard)]
    return Patterns(shard=shard, generation=generation, items=items)


async def store(console: Console, name: str) -> StoreDetail:
    """A store.

    Raises:
        NoStoreError: the store does not exist.
    """
    info = await console.broker.hold.history.store(name).info()
    return StoreDetail(
        store=StoreItem.of(info.policy),
        generation=info.generation,
        messages=info.messages,
        bytes=sum(shard.bytes for shard in info.shards),
        shards=[Shard.of(shard) for shard in info.shards],
    )


async def replay(
    console: Console,
    by: Principal,
    *,
    topic_filter: str,
    start: str = "earliest",
    end: str = "",
    limit: int = 100,
    cursor: str = "",
) -> ReplayPage:
    """A page of the past messages of a filter.

    Raises:
        ProblemError: the cursor is invalid.
    """
    history = console.broker.hold.history
    if cursor:
        try:
            reading = history.resume(read_cursor(cursor), page=limit)
        except ArgumentError as error:
            raise bad_cursor(cursor) from error
    else:
        reading = history.start_replay(topic_filter, start, end=end or None, page=limit)
    found = []
    async with reading:
        async for message in reading:
            found.append(message_of(message, by))
            if len(found) == limit:
                return ReplayPage(items=found, next=write_cursor(str(reading.bookmark)))
    return ReplayPage(items=found, next=None)


@router.get("/history/stores")
async def get_stores(console: Here, _by: Viewer) -> Stores:
    """All stores with their settings."""
    return await stores(console)


@router.get("/history/stores/{name:segment}")
async def get_store(console: Here, _by: Viewer, name: str) -> StoreDetail:
    """A store: its settings, size and shards, and the readers that hold messages back."""
    return await store(console, name)


@router.get("/history/stores/{name:segment}/patterns")
async def get_patterns(
    console: Here, _by: Viewer, name: str, shard: Annotated[int, Query(ge=0, le=65_535)] = 0
) -> Patterns:
    """The patterns by which a shard stores and finds messages, with the messages of each."""
    return await patterns(console, name, shard)


@router.get("/history/replay")
async def get_replay(
    console: Here,
    by: Viewer,
    filter: Annotated[str, Query(max_length=1024, description="A filter whose topics one store keeps")] = "#",  # noqa: A002
    start: Annotated[str, Query(max_length=64, description="earliest, an ISO 8601 time, or how long ago: 15m")] = "15m",
    end: Annotated[str, Query(max_length=64, description="The same; empty: no end")] = "",
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    cursor: CursorText = "",
) -> ReplayPage:
    """The past messages of a filter in a range of time. With `cursor`, the other arguments are those of before."""
    if not filter and not cursor:
        raise ProblemError(422, "filter is empty; expected an MQTT topic filter", field="filter")
    return await replay(console, by, topic_filter=filter, start=start, end=end, limit=limit, cursor=cursor)
