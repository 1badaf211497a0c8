"""Filters: which sessions would receive a message of a topic; the groups of shared subscriptions."""

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from holdmq import MatchRow, commands
from holdmq_console.console import ApiRoute, Console, Here, Viewer
from holdmq_console.names import CursorText, Name, is_page_cursor, read_number, read_place, write_cursor
from holdmq_console.problems import ProblemError

router = APIRouter(route_class=ApiRoute, tags=["filters"])

MOST = 100_000
"""The greatest cursor of TOPIC.MATCH."""


class Match(BaseModel):
    """A subscription that the topic matches."""

    filter: Name
    client_id: Name = Field(description="Of the session; for a group: the filter, whose session is the group's queue")
    qos: int | None = Field(description="The highest QoS to deliver; null for a group, where each member has its own")
    members: int | None = Field(description="Sessions of the group; null for a session")

    @classmethod
    def of(cls, row: MatchRow) -> "Match":
        """From the client's."""
        return cls.model_validate(row, from_attributes=True)


class MatchPage(BaseModel):
    """A page of the subscriptions that a topic matches."""

    items: list[Match]
    next: str | None
    complete: bool = Field(description="Whether no further subscription matches: 100,000 are listed at most")


class Group(BaseModel):
    """A group of a shared subscription. Its queue is that of the session of its filter."""

    filter: Name
    members: int
    messages: int = Field(description="In the group's queue: what no member could take")


class GroupPage(BaseModel):
    """A page of groups in the order of their filters."""

    items: list[Group]
    next: str | None


async def groups(console: Console, *, limit: int = 100, cursor: str = "") -> GroupPage:
    """A page of the groups of shared subscriptions.

    Raises:
        ProblemError: the cursor is invalid.
    """
    place = read_place(cursor, is_cluster=console.broker.is_cluster, check=is_page_cursor)
    page, following = await console.broker.page(place, lambda at: commands.topic_groups(cursor=at, count=limit))
    items = [Group.model_validate(row, from_attributes=True) for row in page.groups]
    return GroupPage(items=items, next=None if following is None else write_cursor(following))


async def matches(console: Console, topic: str, *, limit: int = 100, cursor: str = "") -> MatchPage:
    """A page of the subscriptions that a topic matches.

    Raises:
        ProblemError: the topic or the cursor is invalid.
    """
    broker = console.broker
    place: str | None
    if broker.is_cluster:
        place = read_place(cursor, is_cluster=True, check=lambda at: bool(read_number(at, MOST)))
    else:
        place = str(read_number(cursor, MOST) or "") or None
    try:
        commands.topic_match(topic, count=limit)
    except ValueError as error:
        raise ProblemError(422, str(error), field="topic") from error
    page, following = await broker.page(place, lambda at: commands.topic_match(topic, cursor=at, count=limit))
    if broker.is_cluster and following is not None:
        following = write_cursor(following)
    complete = page.complete and (following is None or not broker.is_cluster)
    return MatchPage(items=[Match.of(row) for row in page.matches], next=following, complete=complete)


@router.get("/groups")
async def get_groups(
    console: Here, _by: Viewer, limit: Annotated[int, Query(ge=1, le=1000)] = 100, cursor: CursorText = ""
) -> GroupPage:
    """The groups of shared subscriptions. A page may be empty and have `next`."""
    return await groups(console, limit=limit, cursor=cursor)


@router.get("/filters/matches")
async def get_matches(
    console: Here,
    _by: Viewer,
    topic: Annotated[str, Query(min_length=1, max_length=65_535, description="A topic name, without wildcards")],
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    cursor: CursorText = "",
) -> MatchPage:
    """Who would receive a message of this topic? Nothing is published."""
    return await matches(console, topic, limit=limit, cursor=cursor)
