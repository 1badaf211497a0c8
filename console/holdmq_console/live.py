"""A live view of a filter: messages as they are published, at a bounded rate, as server-sent events.

    session console:<random>, QoS 0 ──► its inbox channel ──► read ──► at most `rate` events per second ──► browser
                                        └ unsubscribed until the next second, if LOOKS were taken

Invariants
 1. The session outlives the console by a lease at most; its queue is bounded.
 2. All views together take LOOKS messages per second from the server, large ones fewer, so that pages stay quick. What
    is taken and not shown is counted. A view ends after LONGEST_S; a browser connects again by itself.
 3. There are at most `most` views, half of them of one user. A view whose browser takes nothing ends (connections.py).
 4. Messages are taken whether or not the browser takes events: none pile up in the server. Of events, those of a second
    are kept.
 5. The rights of the viewer are checked again every CHECK_S: a view ends with the login, and hides payloads once the
    right to read them is gone.
"""

import asyncio
import contextlib
import json
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import redis

from holdmq import AsyncSession, Message, QueueBounds
from holdmq.core import session_key
from holdmq.errors import HoldMQError
from holdmq_console.api.payloads import message_of
from holdmq_console.broker import Broker
from holdmq_console.principal import Principal, Via
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
LOOKS = 2000
BYTES_OF_A_LOOK = 16_384
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
        self._views: Counter[str] = Counter()
        self._endings: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Waits for the sessions of views that have ended, as long as the server answers."""
        if self._endings:
            await asyncio.wait(self._endings, timeout=CLOSE_S)

    async def open(self, viewer: Callable[[], Awaitable[Principal]], topic_filter: str) -> AsyncIterator[str]:
        """Subscribes, and returns the events.

        Args:
            viewer: the user who watches, as of now.
            topic_filter: of which messages.

        Raises:
            ProblemError: too many views, or a filter of a shared subscription.
            InvalidTopicError: it is not a filter.
        """
        if self._broker.is_cluster:
            raise ProblemError(
                501, "live views of a cluster are not offered; subscribe with an MQTT client, or use a history store"
            )
        if topic_filter.startswith("$share/"):
            detail = f"{topic_filter!r} would take messages from the group; expected the filter alone"
            raise ProblemError(422, detail, field="filter")
        by = await viewer()
        self._refuse_too_many(by)  # nothing is awaited until the view counts: many may be opened at the same time
        self._views[by.name] += 1
        stack = contextlib.AsyncExitStack()
        stack.callback(self._close_one, by.name)
        try:
            view = await self._subscribe(stack, topic_filter, viewer, by)
        except BaseException:
            await stack.aclose()
            raise
        return self._events(stack, view)

    def _refuse_too_many(self, by: Principal) -> None:
        later = {"Retry-After": "10"}
        if self._views.total() >= self._most:
            raise ProblemError(503, f"{self._most} live views are open, which is the maximum", headers=later)
        half = max(1, self._most // 2)
        if by.via is not Via.LOCAL and self._views[by.name] >= half:
            raise ProblemError(
                503, f"{by.name} has {half} live views open, which is the maximum of a user", headers=later
            )

    def _close_one(self, user: str) -> None:
        self._views[user] -= 1
        if not self._views[user]:
            del self._views[user]

    async def _subscribe(
        self,
        stack: contextlib.AsyncExitStack,
        topic_filter: str,
        viewer: Callable[[], Awaitable[Principal]],
        by: Principal,
    ) -> "_View":
        client_id = f"console:{secrets.token_hex(16)}"
        inbox = self._broker.client.pubsub(ignore_subscribe_messages=True)
        stack.push_async_callback(inbox.aclose)
        await inbox.subscribe(session_key(client_id) + b"_inbox")
        session = self._broker.hold.session(client_id)
        bounds = QueueBounds(max_bytes=QUEUE_BYTES, overflow="drop-oldest")
        await session.open(OWNER, clean=True, expiry=0, lease=LEASE_S, bounds=bounds)
        stack.push_async_callback(_drop, self._broker, session)
        view = _View(inbox, session, topic_filter, viewer, by, self._rate)
        await view.subscribe()
        return view

    async def _events(self, stack: contextlib.AsyncExitStack, view: "_View") -> AsyncIterator[str]:
        reading = asyncio.create_task(view.read(lambda: LOOKS // self._views.total()))
        reading.add_done_callback(lambda _: view.events.put_nowait(None))
        stack.push_async_callback(_cancel, reading)
        try:
            yield event("open", {})
            while (text := await view.events.get()) is not None:
                yield text
            await reading  # raises what went wrong there
        finally:
            # In a task of its own: leaving a view cancels the task that runs this, again at each await.
            ending = asyncio.create_task(stack.aclose())
            self._endings.add(ending)
            ending.add_done_callback(self._endings.discard)


class _View:
    """Takes the messages of one view from the server, and makes events of them: those of a second are kept at most.

    Args:
        inbox: where the messages arrive.
        session: that subscribes.
        topic_filter: to what.
        viewer: the user who watches, as of now.
        by: who does.
        rate: messages per second that are shown.
    """

    def __init__(
        self,
        inbox: Any,
        session: AsyncSession,
        topic_filter: str,
        viewer: Callable[[], Awaitable[Principal]],
        by: Principal,
        rate: int,
    ) -> None:
        self.events: asyncio.Queue[str | None] = asyncio.Queue()
        self._inbox = inbox
        self._session = session
        self._filter = topic_filter
        self._viewer = viewer
        self._by = by
        self._rate = rate
        self._messages = self._shown = self._looks = 0
        self._has_paused = False

    async def subscribe(self) -> None:
        """Subscribes without retained messages: a view shows what is published now."""
        await self._session.subscribe(self._filter, qos=0, retain_handling=2)

    async def read(self, share: Callable[[], int]) -> None:
        """Takes messages until the view ends.

        Args:
            share: how many looks this view has now, per second.
        """
        begin = tick = touched = checked = time.monotonic()
        try:
            while (now := time.monotonic()) - begin < LONGEST_S:
                if now - touched >= TOUCH_S:
                    await self._session.touch()
                    touched = now
                if now - checked >= CHECK_S:
                    self._by, checked = await self._viewer(), now
                if now - tick >= TICK_S:
                    await self._tick()
                    tick = now
                received = await self._inbox.get_message(timeout=max(0.01, TICK_S - (now - tick)))
                if received is not None:
                    await self._take(received["data"], max(share(), self._rate))
        except (ProblemError, *EXPECTED) as error:  # type: ignore[misc]
            self.events.put_nowait(event("trouble", {"detail": problem_of(error).detail}))

    def _has_room(self) -> bool:
        return self.events.qsize() <= self._rate

    async def _tick(self) -> None:
        if self._has_room():
            counts = {"messages": self._messages, "shown": self._shown, "complete": not self._has_paused}
            self.events.put_nowait(event("rate", counts))
        self._messages = self._shown = self._looks = 0
        if self._has_paused:
            self._has_paused = False
            await self.subscribe()

    async def _take(self, delivery: bytes, most: int) -> None:
        message = _message(delivery)
        if message is None:
            return
        self._messages += 1
        self._looks += 1 + len(delivery) // BYTES_OF_A_LOOK
        if self._shown < self._rate and self._has_room():
            self._shown += 1
            out = message_of(message, self._by, SHOWN_BYTES)
            self.events.put_nowait(event("message", out.model_dump(mode="json")))
        if self._looks >= most and not self._has_paused:
            self._has_paused = True
            await self._session.unsubscribe(self._filter)
        await asyncio.sleep(0)  # a page need not wait until all that was received is taken


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def _drop(broker: Broker, session: AsyncSession) -> None:
    """Drops the session, again if the connection was lost. If that fails, too, the session ends with its lease."""
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
