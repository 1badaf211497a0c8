"""A live view of a filter: messages as they are published, at a bounded rate, as server-sent events.

    session console:<random>, QoS 0 ──► its inbox channel ──► at most `rate` messages per second ──► browser

Invariants
 1. The session outlives the console by a lease at most; its queue is bounded.
 2. Messages that are not shown are counted. A view ends after LONGEST_S; a browser connects again by itself.
 3. There are at most `most` views. A view whose browser takes nothing ends (connections.py).
 4. The rights of the viewer are checked again every CHECK_S: a view ends with the login, and hides payloads once the
    right to read them is gone.
"""

import asyncio
import contextlib
import json
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import redis

from holdmq import AsyncSession, Message, QueueBounds
from holdmq.core import session_key
from holdmq.errors import HoldMQError
from holdmq_console.api.payloads import message_of
from holdmq_console.broker import Broker
from holdmq_console.principal import Principal
from holdmq_console.problems import EXPECTED, ProblemError, problem_of

OWNER = "console"
LEASE_S = 60
TOUCH_S = 20.0
LONGEST_S = 3600.0
TICK_S = 1.0
CHECK_S = 2.0
CLOSE_S = 3.0
QUEUE_BYTES = 1_048_576
SHOWN_BYTES = 1024
# A delivery (docs/commands/topic.md): a mark, the kind, 19 bytes more, then the record.
_DELIVERY = 0xFB
_WITH_RECORD = (1, 2)
_HEADER_BYTES = 21


class Live:
    """The live views of one process.

    Args:
        broker: the server.
        most: how many at a time.
        rate: messages per second that each shows.
    """

    def __init__(self, broker: Broker, most: int, rate: int) -> None:
        self._broker = broker
        self._most = most
        self._rate = rate
        self._views = 0
        self._endings: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Waits for the sessions of views that have ended, as long as the server answers."""
        if self._endings:
            await asyncio.wait(self._endings, timeout=CLOSE_S)

    async def open(self, again: Callable[[], Awaitable[Principal]], topic_filter: str) -> AsyncIterator[str]:
        """Subscribes, and returns the events.

        Args:
            again: says who watches.
            topic_filter: of which messages.

        Raises:
            ProblemError: too many views, or a filter of a shared subscription.
            InvalidTopicError: it is not a filter.
        """
        if self._broker.is_cluster:
            raise ProblemError(
                501, "live views of a cluster are not offered: subscribe with an MQTT client, or use a history store"
            )
        if topic_filter.startswith("$share/"):
            detail = f"{topic_filter!r} would take messages from the group: expected the filter alone"
            raise ProblemError(422, detail, field="filter")
        if self._views >= self._most:
            raise ProblemError(
                503, f"{self._most} live views are open, which is the maximum", headers={"Retry-After": "10"}
            )
        by = await again()
        self._views += 1
        stack = contextlib.AsyncExitStack()
        stack.callback(self._close_one)
        try:
            inbox, session = await self._subscribe(stack, topic_filter)
        except BaseException:
            await stack.aclose()
            raise
        return self._events(stack, inbox, session, by, again)

    def _close_one(self) -> None:
        self._views -= 1

    async def _subscribe(self, stack: contextlib.AsyncExitStack, topic_filter: str) -> tuple[Any, AsyncSession]:
        client_id = f"console:{secrets.token_hex(16)}"
        inbox = self._broker.client.pubsub(ignore_subscribe_messages=True)
        stack.push_async_callback(inbox.aclose)
        await inbox.subscribe(session_key(client_id) + b"_inbox")
        session = self._broker.hold.session(client_id)
        bounds = QueueBounds(max_bytes=QUEUE_BYTES, overflow="drop-oldest")
        await session.open(OWNER, clean=True, expiry=0, lease=LEASE_S, bounds=bounds)
        stack.push_async_callback(_drop, self._broker, session)
        await session.subscribe(topic_filter, qos=0, retain_handling=2)
        return inbox, session

    async def _events(
        self,
        stack: contextlib.AsyncExitStack,
        inbox: Any,
        session: AsyncSession,
        by: Principal,
        again: Callable[[], Awaitable[Principal]],
    ) -> AsyncIterator[str]:
        begin = tick = touched = checked = time.monotonic()
        messages = shown = 0
        try:
            yield event("open", {})
            try:
                while (now := time.monotonic()) - begin < LONGEST_S:
                    if now - touched >= TOUCH_S:
                        await session.touch()
                        touched = now
                    if now - checked >= CHECK_S:
                        by, checked = await again(), now
                    if now - tick >= TICK_S:
                        yield event("rate", {"messages": messages, "shown": shown})
                        messages, shown, tick = 0, 0, now
                    received = await inbox.get_message(timeout=max(0.01, TICK_S - (now - tick)))
                    message = None if received is None else _message(received["data"])
                    if message is None:
                        continue
                    messages += 1
                    if shown < self._rate:
                        shown += 1
                        yield event("message", message_of(message, by, SHOWN_BYTES).model_dump(mode="json"))
            except (ProblemError, *EXPECTED) as error:  # type: ignore[misc]
                yield event("trouble", {"detail": problem_of(error).detail})
        finally:
            # In a task of its own: leaving a view cancels the task that runs this, again at each await.
            ending = asyncio.create_task(stack.aclose())
            self._endings.add(ending)
            ending.add_done_callback(self._endings.discard)


async def _drop(broker: Broker, session: AsyncSession) -> None:
    """Again if the connection was lost, as after a restart of the server; what fails then ends with the lease."""
    with contextlib.suppress(HoldMQError, *EXPECTED):
        async with asyncio.timeout(LEASE_S):
            try:
                await session.drop()
            except redis.ConnectionError:
                await broker.forget_idle()
                await session.drop()


def _message(delivery: bytes) -> Message | None:
    if len(delivery) <= _HEADER_BYTES or delivery[0] != _DELIVERY or delivery[1] not in _WITH_RECORD:
        return None
    return Message.from_record(delivery[_HEADER_BYTES:])


def event(name: str, data: dict[str, Any]) -> str:
    """A server-sent event."""
    return f"event: {name}\ndata: {json.dumps(data)}\n\n"
