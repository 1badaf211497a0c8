"""A replay: an iterator over messages of the past that can go on with those that come.

Pages of `HISTORY.REPLAY` are read one after the other, in a cluster those of each shard at its node (`_replay_lanes`
makes one sequence of them). Invariants:

1. The cursor stands behind the last message that was handed out, in every moment: whoever keeps it goes on there,
   without a gap and with no message twice, after a lost connection as in another process.
2. Reading is repeated until it succeeds or `reconnect` seconds are over: it changes nothing on the server.
3. A replay that follows listens to the notices of the servers before it reads, and reads after each of them.
4. A page is in memory, in a cluster one of each shard, all together hardly larger. One task reads.
"""

import json
import random
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from holdmq import _arguments as arguments
from holdmq import history_commands as commands
from holdmq._async.executor import AsyncExecutor
from holdmq._async.history_cluster import AsyncHistoryCluster
from holdmq._async.notices import AsyncNotices
from holdmq._guard import AsyncGuard, NotCopied
from holdmq._io import async_cancellations, async_raise_if_cancelled, async_sleep
from holdmq._replay_lanes import Lane, Lanes, check_cursor, lanes_of, page_of
from holdmq._wire import MAX_NUMBER
from holdmq.commands import Command
from holdmq.errors import ArgumentError, library_of, lost_of
from holdmq.history_commands import Start
from holdmq.history_replies import HistoryMessage, HistoryPage, ReplayStep, ReplayStepKind
from holdmq.replies import Text

FIRST_BACKOFF_S = 0.05
LAST_BACKOFF_S = 2.0


BOOKMARK: dict[str, Any] = {"filter": str, "store": str | None, "shard": int | None, "end": int | None, "cursor": str}
NO_BOOKMARK: dict[str, Any] = dict.fromkeys(BOOKMARK)


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
        if self.cursor is not None:
            check_cursor(self.cursor)
        commands.history_replay(
            self.topic_filter,
            store=self.store,
            count=arguments.in_range("page", self.page, 1, MAX_NUMBER),
            shard=self.shard,
            cursor=self.cursor,
        )
        if self.end is not None:
            commands.end_ms("end", self.end)
        arguments.wait("reconnect", self.reconnect)
        arguments.optional_wait("timeout", self.timeout)
        if arguments.flag("follow", self.follow) and self.end is not None:
            raise ArgumentError(f"end is {self.end!r}; expected None for a replay that follows, which has no end")

    def bookmark(self, cursor: str, end_ms: int | None) -> str:
        """All that a later replay needs to go on; an end that counts from now is that of this one."""
        store = self.store.decode("utf-8", "surrogateescape") if isinstance(self.store, bytes) else self.store
        fields = dict(zip(BOOKMARK, (self.topic_filter, store, self.shard, end_ms, cursor), strict=True))
        return json.dumps({name: value for name, value in fields.items() if value is not None})

    @classmethod
    def from_bookmark(
        cls, bookmark: str, *, page: int, reconnect: float, follow: bool, timeout: float | None
    ) -> "ReplayOptions":
        """What a bookmark is of.

        Raises:
            ArgumentError: the text is no bookmark.
        """
        try:
            fields = {**NO_BOOKMARK, **json.loads(bookmark)}
        except (ValueError, TypeError, RecursionError):
            fields = NO_BOOKMARK
        if fields.keys() != NO_BOOKMARK.keys() or any(
            not isinstance(fields[name], kind) or isinstance(fields[name], bool) for name, kind in BOOKMARK.items()
        ):
            raise ArgumentError(f"bookmark is {bookmark!r:.200}; expected what the bookmark of a replay was")
        topic_filter, store, shard, end, cursor = (fields[name] for name in BOOKMARK)
        return cls(topic_filter, "earliest", end, cursor, page, reconnect, follow, timeout, store, shard)


class AsyncReplay(NotCopied):
    """Messages of the past, in the order of each topic; made by `start_replay` and `follow`.

    Iterate over it, or call `get` or `next`. At the end of what there is iteration stops; a later call looks again.

    One task of one process reads it at a time; it belongs to the process that read it first.

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

    def __init__(self, executor: AsyncExecutor, options: ReplayOptions) -> None:
        self._executor = executor
        self._cluster = AsyncHistoryCluster(executor)
        self._options = options
        self._store = options.store
        self._start_ms: int | None = None
        self._end_ms: int | None = None
        self._lanes: Lanes | None = None  # None: not begun
        self._page: tuple[int, int | None] = (options.page, None)
        self._topic: str | None = None
        self._notices = AsyncNotices(executor, options.reconnect) if options.follow else None
        self._closed = False
        self.missed = 0
        self._guard = AsyncGuard(f"the replay of {options.topic_filter!r}", now=False)
        self._lost = lost_of(executor.client)
        self._hopeless = library_of(executor.client).AuthenticationError

    @property
    def cursor(self) -> str | None:
        """Where to go on: behind the last message that was handed out; None before the first page was read."""
        return self._options.cursor if self._lanes is None else self._lanes.cursor

    @property
    def bookmark(self) -> str | None:
        """The cursor together with what was asked for: filter, store, shard and end, for `AsyncHistory.resume`.

        A text (JSON) to keep; None before the first page was read.
        """
        cursor = self.cursor
        return None if cursor is None else self._options.bookmark(cursor, self._end_ms)

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
        """Ends a replay that follows; a second call does nothing. In another process it ends nothing of its owner's."""
        self._closed = True
        if self._notices is not None and not self._guard.is_elsewhere:
            await self._notices.aclose()

    close = aclose

    async def next(self) -> ReplayStep:
        """The next step: a message, a message of another topic, or the end of what there is now.

        Raises:
            redis.ConnectionError: the server could not be reached for `reconnect` seconds.
            ForkedError: another process has begun the replay.
            ConcurrentUseError: another task is reading it.
            NoStoreError: no store keeps such topics.
            WrongStoreError: the cursor is of another store.
            CommandError: the server refused it: several stores keep such topics, for one.
        """
        with self._guard:
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
            ForkedError: another process has begun the replay.
            ConcurrentUseError: another task is reading it.
            NoStoreError: no store keeps such topics.
            WrongStoreError: the cursor is of another store.
            CommandError: the server refused it: several stores keep such topics, for one.
        """
        arguments.optional_wait("timeout", timeout)
        with self._guard:
            return await (self._take() if self._notices is None else self._wait(self._notices, timeout))

    async def _wait(self, notices: AsyncNotices, timeout: float | None) -> HistoryMessage | None:  # noqa: ASYNC109
        """The next message, once it came; None: there was none in time, or the replay was closed."""
        deadline = None if timeout is None else time.monotonic() + timeout
        before = async_cancellations()
        while not self._closed:
            if self._lanes is None or self._lanes.unread is not None:
                await self._read(None)
                await notices.listen(self._store)
            message = await self._take()
            if message is not None or (deadline is not None and time.monotonic() >= deadline):
                return message
            await notices.wait(deadline)
            async_raise_if_cancelled(before)
        return None

    async def _take(self) -> HistoryMessage | None:
        """The next message that there is now."""
        before = async_cancellations()
        while not self._closed:
            lanes = self._lanes
            lane = None if lanes is None else lanes.unread
            if lanes is not None and lane is None:
                return lanes.take()
            page = await self._read(lane)
            if lanes is not None and page is not None:
                lanes.take_page(page)
                self.missed += page.missed
            async_raise_if_cancelled(before)
        return None

    async def _read(self, lane: Lane | None) -> HistoryPage | None:
        """The next page of a lane, asked for again while its server cannot be reached; of none: only begins."""
        deadline: float | None = None
        backoff = FIRST_BACKOFF_S
        while True:
            try:
                if self._lanes is None:
                    self._lanes = await self._begin()
                if lane is None:
                    return None
                return await self._executor.execute(self._command(lane))
            except self._lost as error:
                now = time.monotonic()
                deadline = now + self._options.reconnect if deadline is None else deadline
                if isinstance(error, self._hopeless) or now >= deadline:
                    raise
            # Not all clients shall come back at the same moment. The last try is at the deadline.
            await async_sleep(min(deadline - now, backoff * random.uniform(0.5, 1.0)))  # noqa: S311
            backoff = min(2 * backoff, LAST_BACKOFF_S)

    async def _begin(self) -> Lanes:
        """The times, by the server's clock where they count from now, and what is read by itself."""
        options = self._options
        start, end = options.start, options.end
        clock = commands.needs_clock(start) or (end is not None and commands.needs_clock(end))
        now_ms = await self._executor.execute_anywhere(commands.server_time_ms()) if clock else 0
        self._start_ms = commands.time_ms("start", start, now_ms)
        self._end_ms = None if end is None else commands.end_ms("end", end, now_ms)
        if not self._executor.is_cluster:
            return Lanes([Lane(options.shard, options.cursor)], follow=options.follow)
        if self._store is None:
            self._store = await self._cluster.store_of(options.topic_filter)
        shards = await self._cluster.shards(self._store)
        lanes = lanes_of(shards if options.shard is None else [options.shard], options.cursor, self._store)
        self._page = page_of(options.page, len(lanes))
        return Lanes(lanes, follow=options.follow)

    def _command(self, lane: Lane) -> Command[HistoryPage]:
        count, max_bytes = self._page
        return commands.history_replay(
            self._options.topic_filter,
            store=self._store,
            start_ms=self._start_ms,
            end_ms=self._end_ms,
            count=count,
            max_bytes=max_bytes,
            shard=lane.shard,
            cursor=lane.read,
        )
