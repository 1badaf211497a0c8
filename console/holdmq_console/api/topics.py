"""Topics: retained messages as a tree and as a list, publish, clear."""

from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, ConfigDict, Field, model_validator

from holdmq import Message
from holdmq.commands import retained_expiry, retained_fields
from holdmq_console.api.payloads import MessageOut, decoded, message_of, next_step
from holdmq_console.console import Admin, ApiRoute, Console, Here, IfMatch, Viewer, tag
from holdmq_console.names import Name
from holdmq_console.principal import Principal
from holdmq_console.problems import ProblemError

router = APIRouter(route_class=ApiRoute, tags=["topics"])

LOOKED_AT = 500
"""Retained topics looked at for a level of the tree, at most."""
LIST_BYTES = 4_194_304
MAX_PAYLOAD = 1_048_576


class Branch(BaseModel):
    """One level of the tree below a topic."""

    level: Name
    topic: Name
    has_message: bool
    topics_below: int = Field(description="Retained topics below it, among those looked at")


class Tree(BaseModel):
    """The levels below a topic. `complete` is false if there are more retained topics than were looked at."""

    below: Name
    branches: list[Branch]
    complete: bool


class Retained(BaseModel):
    """Retained messages of the topics that a filter matches, in the order of their topics."""

    items: list[MessageOut]
    complete: bool = Field(description="Whether there are no more: payloads of 4 MiB are read at most")


class Publish(BaseModel):
    """A message to publish."""

    model_config = ConfigDict(extra="forbid")

    topic: str = Field(min_length=1, max_length=65535)
    text: str | None = Field(None, max_length=MAX_PAYLOAD)
    base64: str | None = Field(None, max_length=MAX_PAYLOAD * 4 // 3 + 4)
    qos: int = Field(1, ge=0, le=2)
    retain: bool = False
    ttl_s: int | None = Field(None, ge=0, le=2**31 - 1)

    @model_validator(mode="after")
    def _one_payload(self) -> "Publish":
        decoded(self.text, self.base64)
        return self


class Reached(BaseModel):
    """How many sessions a publish reached."""

    sessions: int


async def tree(console: Console, below: str) -> Tree:
    """One level of the tree of retained topics."""
    prefix = f"{below}/" if below else ""
    found = await console.broker.hold.topics.retained(f"{prefix}#", count=LOOKED_AT + 1)
    branches: dict[str, Branch] = {}
    for topic in found[:LOOKED_AT]:
        if not topic.startswith(prefix):  # the topic itself: a/# matches a, too
            continue
        level, slash, _ = topic[len(prefix) :].partition("/")
        branch = branches.setdefault(
            level, Branch(level=level, topic=prefix + level, has_message=False, topics_below=0)
        )
        if slash:
            branch.topics_below += 1
        else:
            branch.has_message = True
    return Tree(below=below, branches=list(branches.values()), complete=len(found) <= LOOKED_AT)


async def retained(console: Console, by: Principal, topic_filter: str, limit: int) -> Retained:
    """Retained messages."""
    topics = await console.broker.hold.topics.retained(topic_filter, count=limit + 1)
    items: list[MessageOut] = []
    size, begin, step = 0, 0, 1
    while begin < min(len(topics), limit):
        if size >= LIST_BYTES:
            return Retained(items=items, complete=False)
        part = topics[begin : min(begin + step, limit)]
        found = await console.broker.hold.execute_all([retained_fields(topic) for topic in part])
        expiries = await console.broker.hold.execute_all([retained_expiry(topic) for topic in part])
        bytes_found = sum(len(one.payload) for one in found if one is not None)
        for one, expires_ms in zip(found, expiries, strict=True):
            if one is not None:  # None: removed meanwhile
                items.append(message_of(replace(one, expires_ms=expires_ms), by))
        begin, size, step = begin + len(part), size + bytes_found, next_step(len(part), bytes_found)
    return Retained(items=items, complete=len(topics) <= limit)


async def version_of(console: Console, message: Message) -> int:
    """The ETag of a retained message: of all that replacing it would change. It does not reveal the payload."""
    facts = (message.topic, message.qos, message.publisher, message.time_ms, message.properties)
    found = await console.access.fingerprint(repr(facts).encode("utf-8", "surrogateescape"), message.payload)
    return int.from_bytes(found[:8]) >> 1


async def _check_version(console: Console, topic: str, version: int | None) -> None:
    if version is None:
        return
    found = await console.broker.hold.topics.retained_message(topic)
    if found is None or await version_of(console, found) != version:
        raise ProblemError(412, f"the topic {topic!r} has another retained message than that of If-Match, or none")


async def publish(console: Console, by: Principal, body: Publish, version: int | None) -> Reached:
    """Publishes a message.

    Raises:
        ProblemError: the retained message is another one than that with the version.
    """
    if version is not None and not body.retain:
        raise ProblemError(422, "If-Match is of a retained message; expected it with retain only", field="If-Match")
    await _check_version(console, body.topic, version)
    payload = decoded(body.text, body.base64)
    detail = f"{len(payload)} bytes, QoS {body.qos}" + (", retained" if body.retain else "")
    async with console.audit.change(by, "topic.publish", body.topic, detail):
        reached = await console.broker.hold.topics.publish(
            body.topic, payload, qos=body.qos, retain=body.retain, ttl=body.ttl_s
        )
    return Reached(sessions=reached)


async def clear(console: Console, by: Principal, topic: str, version: int | None) -> None:
    """Removes a retained message, and publishes an empty one to subscribers.

    Raises:
        ProblemError: the topic has none, or another one than that with the version.
    """
    if await console.broker.hold.topics.retained_message(topic) is None:
        raise ProblemError(404, f"the topic {topic!r} has no retained message", field="topic")
    await _check_version(console, topic, version)
    async with console.audit.change(by, "topic.clear", topic):
        await console.broker.hold.topics.publish(topic, b"", retain=True)


@router.get("/topics/tree")
async def get_tree(
    console: Here,
    _by: Viewer,
    below: Annotated[str, Query(max_length=1024, description="A topic; empty: the first level")] = "",
) -> Tree:
    """One level of the tree of retained topics."""
    return await tree(console, below)


@router.get("/topics/retained")
async def get_retained(
    console: Here,
    by: Viewer,
    filter: Annotated[str, Query(max_length=1024, description="An MQTT topic filter")] = "#",  # noqa: A002 (its name)
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Retained:
    """The retained messages of the topics that a filter matches."""
    return await retained(console, by, filter, limit)


@router.get("/topics/{topic:segment}/retained")
async def get_retained_message(console: Here, by: Viewer, topic: str, response: Response) -> MessageOut:
    """The retained message of one topic, as a whole."""
    found = await console.broker.hold.topics.retained_message(topic)
    if found is None:
        raise ProblemError(404, f"the topic {topic!r} has no retained message", field="topic")
    tag(response, await version_of(console, found))
    return message_of(found, by, None)


@router.delete("/topics/{topic:segment}/retained", status_code=204)
async def clear_retained_message(console: Here, by: Admin, topic: str, version: IfMatch) -> None:
    """Remove the retained message of one topic."""
    await clear(console, by, topic, version)


@router.post("/topics/publish")
async def post_publish(console: Here, by: Admin, body: Publish, version: IfMatch) -> Reached:
    """Publish a message to a topic. With `retain`, `If-Match` names the retained message that it replaces."""
    return await publish(console, by, body, version)
