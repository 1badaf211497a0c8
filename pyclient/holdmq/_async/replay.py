"""A replay: an iterator over messages of the past that can go on with those that come.

Pages of `HISTORY.REPLAY` are read one after the other. Invariants:

1. The cursor stands behind the last message that was handed out, in every moment: whoever keeps it goes on there,
   without a gap and with no message twice, after a lost connection as in another process.
2. Reading is repeated until it succeeds or `reconnect` seconds are over: it changes nothing on the server.
3. A replay that follows subscribes to the notices of the server before it reads, and reads after each of them and after
   each (re-)subscription: what came before a subscription stood is read then, what comes later is told.
4. One page is in memory. One task reads.
"""

import random
import time
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Self

from holdmq import core
from holdmq import history_commands as commands
from holdmq._io import async_cancellations, async_raise_if_cancelled, async_sleep
from holdmq.commands import Command
from holdmq.errors import ArgumentError, library_of
from holdmq.history_commands import Start
from holdmq.history_replies import HistoryMessage, HistoryPage, ReplayStep, ReplayStepKind
from holdmq.replies import Text

if TYPE_CHECKING:
    from holdmq._async.client import AsyncHoldMQ
    from holdmq._async.subscription import AsyncSubscription

FIRST_BACKOFF_S = 0.05
LAST_BACKOFF_S = 2.0
MAX_NOTICES = 1000
"""Most notices that are taken before it looks."""
LOOK_AGAIN_S = 5.0
"""A replay that follows looks for messages at least so often, notices or not."""


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """What a replay is of, and how it reads; as the arguments of `AsyncHistory.start_replay` and `follow`."""

    topic_filter: str
    start: Start
    end: Start | None
    cursor: str | None
    page: int
    reconnect: float
    follow: bool
    timeout: float | None = None
    store: Text | None = None
    shard: int | None = None

    def __post_init__(self) -> None:
        commands.time_ms("start", self.start)
        commands.history_replay(
            self.topic_filter, store=self.store, count=self.page, shard=self.shard, cursor=self.cursor
        )
        if self.end is not None:
            commands.time_ms("end", self.end)
        if self.reconnect < 0:
            raise ArgumentError(f"reconnect is {self.reconnect!r}; expected seconds from 0 on")
        if self.timeout is not None and self.timeout < 0:
            raise ArgumentError(f"timeout is {self.timeout!r}; expected None or seconds from 0 on")


class AsyncReplay:
    """Messages of the past, in the order of each topic; made by `start_replay` and `follow`.

    Iterate over it, or call `get` or `next`. At the end of what there is iteration stops; a later call looks again.

    Attributes:
        missed: how many messages that were still to be read retention has taken meanwhile.

    Example:
        >>> await hold.history.create("news", "news/#")
        >>> for topic in ("news/a", "news/b", "news/b"):
        ...     reached = await hold.topics.publish(topic, b"...")
        >>> replay = hold.history.start_replay("news/#")
        >>> first = await replay.next()
        >>> first.kind.value, first.message.topic
        ('next topic', 'news/a')
        >>> later = hold.history.start_replay("news/#", cursor=replay.cursor)  # in another process, for one
        >>> [(step.kind.value, step.message and step.message.topic) for step in [await later.next() for _ in range(3)]]
        [('next topic', 'news/b'), ('message', 'news/b'), ('end', None)]
    """

    def __init__(self, hold: "AsyncHoldMQ", options: ReplayOptions) -> None:
        self._hold = hold
        self._options = options
        self._start_ms: int | None = None
        self._end_ms: int | None = None
        self._begun = options.cursor is not None
        self._cursor = options.cursor
        self._page: HistoryPage | None = None
        self._at = 0  # the next message of the page
        self._topic: str | None = None
        self._notices: AsyncSubscription | None = None
        self._reconnections = 0
        self._closed = False
        self.missed = 0
        library = library_of(hold.client)
        self._lost = (library.ConnectionError, library.TimeoutError, library.ClusterDownError, OSError)
        self._hopeless = library.AuthenticationError

    @property
    def cursor(self) -> str | None:
        """Where to go on: behind the last message that was handed out; None before the first page was read."""
        if self._page is None or self._at >= len(self._page.messages):
            return self._cursor
        return _cursor_within(self._page, self._at)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> HistoryMessage:
        message = await self.get(self._options.timeout)
        if message is None:
            raise StopAsyncIteration
        return message

    async def aclose(self) -> None:
        """Ends a replay that follows; a second call does nothing."""
        self._closed = True
        notices, self._notices = self._notices, None
        if notices is not None:
            await notices.aclose()

    async def next(self) -> ReplayStep:
        """The next step: a message, a message of another topic, or the end of what there is now.

        Raises:
            redis.ConnectionError: the server could not be reached for `reconnect` seconds.
            CommandError: the server refused it: no store keeps such topics, or several do.
        """
        message = await self._take()
        if message is None:
            return ReplayStep(ReplayStepKind.END, None, self.cursor or "")
        same = message.topic == self._topic
        self._topic = message.topic
        kind = ReplayStepKind.MESSAGE if same else ReplayStepKind.NEXT_TOPIC
        return ReplayStep(kind, message, self.cursor or "")

    async def get(self, timeout: float | None = None) -> HistoryMessage | None:  # noqa: ASYNC109 - it returns None then
        """The next message, or None if there is none; a replay that follows waits for one.

        Args:
            timeout: in seconds, None waits for ever. Without `follow` nothing is waited for.

        Raises:
            redis.ConnectionError: the server could not be reached for `reconnect` seconds.
            CommandError: the server refused it: no store keeps such topics, or several do.
        """
        if not self._options.follow:
            return await self._take()
        deadline = None if timeout is None else time.monotonic() + timeout
        before = async_cancellations()
        while not self._closed:
            if self._page is None or self._at >= len(self._page.messages):
                await self._listen()
            message = await self._take()
            if message is not None or (deadline is not None and time.monotonic() >= deadline):
                return message
            await self._await_notice(deadline)
            async_raise_if_cancelled(before)
        return None

    async def _take(self) -> HistoryMessage | None:
        """The next message that there is now."""
        before = async_cancellations()
        while not self._closed:
            if self._page is not None and self._at < len(self._page.messages):
                self._at += 1
                return self._page.messages[self._at - 1]
            page = await self._read()
            self._page, self._at, self._cursor = page, 0, page.cursor
            self.missed += page.missed
            async_raise_if_cancelled(before)
            if page.end and not page.messages:
                return None
        return None

    async def _read(self) -> HistoryPage:
        """The next page, asked for again while the server cannot be reached."""
        lost_since: float | None = None
        backoff = FIRST_BACKOFF_S
        while True:
            try:
                await self._begin()
                return await self._hold.execute(self._command())
            except self._lost as error:
                now = time.monotonic()
                lost_since = now if lost_since is None else lost_since
                if isinstance(error, self._hopeless) or now + backoff > lost_since + self._options.reconnect:
                    raise
            # Not all clients shall come back at the same moment.
            await async_sleep(backoff * random.uniform(0.5, 1.0))  # noqa: S311
            backoff = min(2 * backoff, LAST_BACKOFF_S)

    async def _begin(self) -> None:
        """The times, by the server's clock where they count from now; once."""
        if self._begun:
            return
        start, end = self._options.start, self._options.end
        clock = commands.needs_clock(start) or (end is not None and commands.needs_clock(end))
        now_ms = await self._hold.execute_anywhere(commands.server_time_ms()) if clock else 0
        self._start_ms = commands.time_ms("start", start, now_ms)
        self._end_ms = None if end is None else commands.time_ms("end", end, now_ms)
        self._begun = True

    def _command(self) -> Command[HistoryPage]:
        options = self._options
        return commands.history_replay(
            options.topic_filter,
            store=options.store,
            start_ms=self._start_ms,
            end_ms=self._end_ms,
            count=options.page,
            shard=options.shard,
            cursor=self._cursor,
        )

    async def _listen(self) -> None:
        """Subscribes to the server's notices, before anything is read."""
        if self._notices is not None:
            return
        reconnect = self._options.reconnect
        if self._options.store is None:
            notices = self._hold.psubscribe(commands.wakeup_channel("*"), reconnect=reconnect)
        else:
            notices = self._hold.subscribe(commands.wakeup_channel(self._options.store), reconnect=reconnect)
        try:
            await notices.__aenter__()
        except BaseException:
            await notices.aclose()
            raise
        if self._closed:  # from elsewhere, meanwhile
            await notices.aclose()
        else:
            self._notices = notices

    async def _await_notice(self, deadline: float | None) -> None:
        """Waits until the server tells of messages, or may have done so unheard; takes all notices that are there."""
        notices = self._notices
        if notices is None:
            return
        wait = LOOK_AGAIN_S if deadline is None else min(LOOK_AGAIN_S, max(0.0, deadline - time.monotonic()))
        until = time.monotonic() + wait
        while not self._closed and notices.reconnections == self._reconnections:
            left = until - time.monotonic()
            if left <= 0:
                return
            if await notices.get(timeout=min(left, 0.25)) is not None:
                break
        for _ in range(MAX_NOTICES):  # one look answers all that came meanwhile
            if self._closed or await notices.get(timeout=0) is None:
                break
        self._reconnections = notices.reconnections


def _cursor_within(page: HistoryPage, at: int) -> str:
    """The cursor behind so many messages of the page: each shard goes on with its first message that is left."""
    left: dict[int, HistoryMessage] = {}
    for message in page.messages[at:]:
        left.setdefault(message.shard, message)
    last: dict[int, int] = {message.shard: message.time_us for message in page.messages[:at]}
    return ",".join(_at_message(text, left, last) for text in page.cursor.split(","))


def _at_message(text: str, left: dict[int, HistoryMessage], last: dict[int, int]) -> str:
    """The cursor of one shard, moved back to the first message that is left there."""
    cursor = core.Cursor.decode(text)
    message = left.get(cursor.shard)
    if message is None:
        return text
    moved = cursor._replace(sequence=message.sequence, time_us=last.get(cursor.shard, 0))
    return moved.encode().decode("ascii")
