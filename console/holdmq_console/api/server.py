"""The server and its bridges: nodes, bridges, links, clients, the overview, effective settings."""

import asyncio
import json
from datetime import datetime
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from holdmq import BridgeRow, ClientRow
from holdmq.core import session_key
from holdmq_console.api.payloads import flat
from holdmq_console.api.sessions import NAMES_BYTES, SessionItem, search, subscriptions
from holdmq_console.broker import MODULE, Broker
from holdmq_console.broker import Node as Place
from holdmq_console.console import Admin, ApiRoute, Console, Here, Viewer
from holdmq_console.names import CursorText, Name
from holdmq_console.principal import Principal
from holdmq_console.problems import EXPECTED, ProblemError

T = TypeVar("T", "ClientItem", "SessionItem")

router = APIRouter(route_class=ApiRoute, tags=["server"])

SEARCH_S = 2.0
"""How long a search for clients may take; bridges are asked a page at a time."""
LINK = "link:"
"""What the client ids of links begin with."""
SECTIONS = ("server", "memory", "persistence", "replication", "stats")
NODE_FIELDS = (
    *("redis_version", "valkey_version", "uptime_in_seconds", "used_memory", "used_memory_rss", "maxmemory"),
    *("maxmemory_policy", "aof_enabled", "aof_last_write_status", "loading", "role", "connected_slaves"),
    *("master_link_status", "instantaneous_ops_per_sec", "rejected_connections", "evicted_keys"),
)


class Node(BaseModel):
    """A server: what matters of its INFO, and the section of the module."""

    address: str
    server: dict[str, str]
    holdmq: dict[str, str]
    trouble: str = Field("", description="Why this node of a cluster does not answer")


class Nodes(BaseModel):
    """The server that the console uses, or the nodes of its cluster, the primaries first."""

    items: list[Node]


class ClientItem(BaseModel):
    """A connected client, as its bridge reports it."""

    client_id: Name
    bridge: Name
    user: Name | None
    address: str
    version: int | None
    received: int
    received_rate: float
    bytes_received: int
    sent: int
    sent_rate: float
    bytes_sent: int
    inflight: int
    ready: int

    @classmethod
    def of(cls, row: ClientRow) -> "ClientItem":
        """From the client's."""
        return cls.model_validate(row, from_attributes=True)


class BridgeItem(BaseModel):
    """A bridge, as it reports itself."""

    name: Name
    host: str
    pid: int
    version: str
    started: datetime
    clients: int
    publishes_received: int
    publishes_received_rate: float
    messages_sent: int
    messages_sent_rate: float
    draining: bool = Field(description="Whether it accepts no new clients, and disconnects those that it has")
    loudest: list[ClientItem]
    acknowledge_p50_ms: float | None = Field(
        description="How long publishers of QoS 1 and 2 lately waited for acknowledgements, the median; null: unknown"
    )
    acknowledge_p99_ms: float | None = Field(description="The same, the 99th percentile")

    @classmethod
    def of(cls, row: BridgeRow) -> "BridgeItem":
        """From the client's."""
        return cls.model_validate(row, from_attributes=True)


class Bridges(BaseModel):
    """The running bridges."""

    items: list[BridgeItem]


class Draining(BaseModel):
    """A bridge that begins to drain."""

    clients: int = Field(description="Those that it will disconnect")


class Link(BaseModel):
    """A link to another broker, as its session and its state topic show it."""

    name: Name
    running: bool = Field(description="Whether a process runs it")
    connected: bool | None = Field(description="To the other broker; null: it does not publish its state")
    process: Name
    remote: Name = Field(description="Client id and address at the other broker; empty: never connected")
    remote_filters: dict[str, int] = Field(description="What it subscribes to there, with the QoS")
    subscriptions: list[Name] = Field(description="What it sends to the other broker; of many, about 1,000")
    messages: int = Field(description="Waiting to go to the other broker")
    dropped: int


class LinkPage(BaseModel):
    """A page of links."""

    items: list[Link]
    next: str | None


class Clients(BaseModel):
    """Connected clients. `complete` is false if there are more, or the time of the search was over."""

    items: list[ClientItem]
    complete: bool


class Curve(BaseModel):
    """A point of the curves."""

    at: float
    received_rate: float
    sent_rate: float
    clients: int
    queued: int
    memory: int
    answer_ms: float = Field(description="How long the server took to answer the console")
    acknowledge_p50_ms: float | None = Field(
        description="How long publishers of QoS 1 and 2 lately waited for acknowledgements, the median; null: unknown"
    )
    acknowledge_p99_ms: float | None = Field(description="The same, the 99th percentile")


class Overview(BaseModel):
    """The current state."""

    now: Curve | None
    trouble: str = Field(description="Why there is no newer point; empty if there is no trouble")
    bridges: int
    loudest: list[ClientItem]
    longest: list[SessionItem] = Field(description="Longest queues that the survey of all sessions has found")
    sessions: int = Field(description="Sessions that the survey has seen")
    surveyed_at: float = Field(description="When the survey was complete, in seconds since 1970; 0: not yet")
    info: dict[str, str]


class Curves(BaseModel):
    """The curves of the overview, oldest point first."""

    points: list[Curve]


class Setting(BaseModel):
    """A setting of the module that is in effect."""

    name: str
    value: str


class SettingList(BaseModel):
    """The settings of the module."""

    items: list[Setting]


async def nodes(console: Console) -> Nodes:
    """The server, or the nodes of the cluster."""
    return Nodes(items=[await _node(console.broker, one) for one in await console.broker.nodes()])


async def _node(broker: Broker, node: Place) -> Node:
    sections: dict[str, Any] = {}
    try:
        for section in SECTIONS:
            sections.update(await broker.info(node, section))
        module = await broker.info(node, MODULE)
    except EXPECTED as error:
        if node.at is None:
            raise
        return Node(address=node.address, server={}, holdmq={}, trouble=str(error))
    server = {name: value for name, value in flat(sections).items() if name in NODE_FIELDS}
    return Node(address=node.address, server=server, holdmq=flat(module))


async def bridges(console: Console) -> Bridges:
    """The running bridges."""
    return Bridges(items=[BridgeItem.of(row) for row in await console.broker.hold.bridges()])


async def bridge(console: Console, name: str) -> BridgeItem:
    """A bridge.

    Raises:
        ProblemError: the bridge is not running.
    """
    for one in (await bridges(console)).items:
        if one.name == name:
            return one
    raise ProblemError(404, f"there is no running bridge {name!r}", field="name")


async def bridge_settings(console: Console, name: str) -> SettingList:
    """The settings that are in effect in a bridge, without passwords.

    Raises:
        ProblemError: there is no such bridge.
    """
    await bridge(console, name)
    found = await console.broker.hold.bridge_settings(name)
    items = [Setting(name=key, value="" if value is None else str(value)) for key, value in found.items()]
    return SettingList(items=items)


async def drain(console: Console, by: Principal, name: str) -> Draining:
    """Makes a bridge take no new clients, disconnect those that it has, and end.

    Raises:
        ProblemError: there is no such bridge.
    """
    await bridge(console, name)
    async with console.audit.change(by, "bridge.drain", name):
        return Draining(clients=await console.broker.hold.drain(name))


async def links(console: Console, *, limit: int = 50, cursor: str = "") -> LinkPage:
    """A page of the links whose sessions are there."""
    page = await search(console, prefix=LINK, limit=limit, cursor=cursor)
    return LinkPage(items=[await _link(console, one.client_id) for one in page.items], next=page.next)


async def _link(console: Console, client_id: str) -> Link:
    name = client_id.removeprefix(LINK)
    session = console.broker.hold.session(client_id)
    info = await session.info()
    sent = await subscriptions(console, client_id)
    facts = await console.broker.client.hgetall(session_key(client_id) + b"_upstream")
    state = await console.broker.hold.topics.retained_message(f"$SYS/broker/connection/{name}/state")
    return Link(
        name=name,
        running=info.connected,
        connected=None if state is None else info.connected and state.payload == b"1",
        process=info.owner if info.connected else "",
        remote=facts.get(b"at", b"").decode("utf-8", "backslashreplace"),
        remote_filters=_filters(facts.get(b"filters", b"{}")),
        subscriptions=sorted(one.filter for one in sent.items),
        messages=info.messages,
        dropped=info.dropped,
    )


def _filters(text: bytes) -> dict[str, int]:
    try:
        return {str(name): int(qos) for name, qos in json.loads(text).items()}
    except (ValueError, TypeError, AttributeError):  # another program wrote it
        return {}


async def clients(console: Console, *, search: str, bridge_name: str, limit: int) -> Clients:
    """Connected clients whose ids match a glob."""
    found: list[ClientItem] = []
    try:
        async with asyncio.timeout(SEARCH_S):
            async for row in console.broker.hold.clients(search=search or "*", bridge=bridge_name or "*"):
                if len(found) == limit:
                    return Clients(items=found, complete=False)
                found.append(ClientItem.of(row))
    except TimeoutError:
        return Clients(items=found, complete=False)
    return Clients(items=found, complete=True)


def overview(console: Console) -> Overview:
    """The current state, as of the last point; asks no server."""
    sampler = console.sampler
    sampler.watch()
    loudest = sorted(
        (row for one in sampler.bridges for row in one.loudest),
        key=lambda row: (row.received_rate, row.sent_rate),
        reverse=True,
    )
    return Overview(
        now=Curve.model_validate(sampler.points[-1], from_attributes=True) if sampler.points else None,
        trouble=sampler.trouble,
        bridges=len(sampler.bridges),
        loudest=_within_bytes([ClientItem.of(row) for row in loudest[:20]]),
        longest=_within_bytes([SessionItem.of(row) for row in sampler.survey.rows]),
        sessions=sampler.survey.sessions,
        surveyed_at=sampler.surveyed_at,
        info=flat(sampler.info),
    )


def _within_bytes(items: list[T]) -> list[T]:
    """The first of them, until their names are long enough: the overview is asked for every few seconds."""
    size = 0
    for at, one in enumerate(items):
        size += len(one.client_id) + len(one.user or "")
        if size >= NAMES_BYTES:
            return items[: at + 1]
    return items


async def settings(console: Console) -> SettingList:
    """The settings of the module that are in effect."""
    found = flat(await console.broker.client.config_get("holdmq.*"))
    return SettingList(items=[Setting(name=name, value=value) for name, value in sorted(found.items())])


@router.get("/overview")
async def get_overview(console: Here, _by: Viewer) -> Overview:
    """The current state: rates, queues, the loudest clients."""
    return overview(console)


@router.get("/overview/curves")
async def get_curves(console: Here, _by: Viewer) -> Curves:
    """The curves of the last minutes."""
    points = [Curve.model_validate(point, from_attributes=True) for point in console.sampler.points]
    return Curves(points=points)


@router.get("/nodes")
async def get_nodes(console: Here, _by: Viewer) -> Nodes:
    """The server."""
    return await nodes(console)


@router.get("/bridges")
async def get_bridges(console: Here, _by: Viewer) -> Bridges:
    """The running bridges."""
    return await bridges(console)


@router.get("/bridges/{name:segment}")
async def get_bridge(console: Here, _by: Viewer, name: str) -> BridgeItem:
    """A bridge."""
    return await bridge(console, name)


@router.get("/bridges/{name:segment}/settings")
async def get_bridge_settings(console: Here, _by: Viewer, name: str) -> SettingList:
    """The settings that are in effect in a bridge, without passwords."""
    return await bridge_settings(console, name)


@router.post("/bridges/{name:segment}/drain", status_code=202)
async def post_drain(console: Here, by: Admin, name: str) -> Draining:
    """Make a bridge take no new clients, disconnect those that it has at its drain rate, and end."""
    return await drain(console, by, name)


@router.get("/links")
async def get_links(
    console: Here, _by: Viewer, limit: Annotated[int, Query(ge=1, le=200)] = 50, cursor: CursorText = ""
) -> LinkPage:
    """The links to other brokers."""
    return await links(console, limit=limit, cursor=cursor)


@router.get("/clients")
async def get_clients(
    console: Here,
    _by: Viewer,
    search: Annotated[str, Query(max_length=1024, description="A glob of client ids")] = "*",
    bridge: Annotated[str, Query(max_length=1024, description="A glob of names of bridges")] = "*",
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Clients:
    """Connected clients with their traffic."""
    return await clients(console, search=search, bridge_name=bridge, limit=limit)


@router.get("/settings")
async def get_settings(console: Here, _by: Viewer) -> SettingList:
    """The settings of the module that are in effect."""
    return await settings(console)
