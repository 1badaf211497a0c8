# Generated from pyclient/holdmq/_async/replay.py by tools/generate_sync.py; change that file.
"""A replay: an iterator over past messages that can continue with new ones.

It reads pages of `HISTORY.REPLAY` one after the other. In a cluster it reads each shard at its node, and
`_replay_sources` merges them. Invariants:

1. The cursor is always the place after the last message that was returned. A reader that keeps it continues there
   without gaps or repetitions, after a lost connection and in another process.
2. A read is retried until it succeeds or `reconnect` seconds have passed. Reading changes nothing on the server.
3. A replay that follows listens to the notices of the servers before it reads, and reads after each notice.
4. One page is in memory. In a cluster there is one for each shard, together hardly larger. One thread reads.
"""

import json
import random
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from holdmq import _arguments as arguments
from holdmq import history_commands as commands
from holdmq._guard import Guard, NotCopied
from holdmq._io import cancellations, raise_if_cancelled, sleep
from holdmq._replay_sources import Source, Sources, check_cursor, page_of, sources_of
from holdmq._sync.executor import Executor
from holdmq._sync.history_cluster import HistoryCluster
from holdmq._sync.notices import Notices
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
    """The arguments of `History.start_replay` and `follow`."""

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
        """All that a later replay needs to continue. An end that counts from now is stored as a time."""
        store = self.store.decode("utf-8", "surrogateescape") if isinstance(self.store, bytes) else self.store
        fields = dict(zip(BOOKMARK, (self.topic_filter, store, self.shard, end_ms, cursor), strict=True))
        return json.dumps({name: value for name, value in fields.items() if value is not None})

    @classmethod
    def from_bookmark(
        cls, bookmark: str, *, page: int, reconnect: float, follow: bool, timeout: float | None
    ) -> "ReplayOptions":
        """The options that a bookmark contains.

        Raises:
            ArgumentError: the text is not a bookmark.
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


class Replay(NotCopied):
    """Past messages, ordered within each topic; made by `start_replay`, `resume` and `follow`.

    Iterate over it, or call `get` or `next`. Iteration stops after the last message. A later call looks for new ones.

    One thread of one process reads it at a time. It belongs to the process that reads it first.

    Attributes:
        missed: how many messages retention removed before this replay read them.

    Examples:
        >>> hold.history.create("news", "news/#")
        >>> for topic in ("news/a", "news/b", "news/b"):
        ...     reached = hold.topics.publish(topic, b"...")
        >>> replay = hold.history.start_replay("news/#")
        >>> first = replay.next()
        >>> first.kind.value, first.message.topic
        ('next topic', 'news/a')
        >>> later = hold.history.start_replay("news/#", cursor=replay.cursor)  # in another process, for one
        >>> [(step.kind.value, step.message and step.message.topic) for step in [later.next() for _ in range(3)]]
        [('next topic', 'news/b'), ('message', 'news/b'), ('end', None)]
    """

    def __init__(self, executor: Executor, options: ReplayOptions) -> None:
        self._executor = executor
        self._cluster = HistoryCluster(executor)
        self._options = options
        self._store = options.store
        self._start_ms: int | None = None
        self._end_ms: int | None = None
        self._sources: Sources | None = None  # None: not begun
        self._page: tuple[int, int | None] = (options.page, None)
        self._topic: str | None = None
        self._notices = Notices(executor, options.reconnect) if options.follow else None
        self._closed = False
        self.missed = 0
        self._guard = Guard(f"the replay of {options.topic_filter!r}", now=False)
        self._lost = lost_of(executor.client)
        self._hopeless = library_of(executor.client).AuthenticationError

    @property
    def cursor(self) -> str | None:
        """The place after the last message that was returned. None before the first page was read."""
        return self._options.cursor if self._sources is None else self._sources.cursor

    @property
    def bookmark(self) -> str | None:
        """The cursor together with filter, store, shard and end, as a text (JSON) for `History.resume`.

        None before the first page was read.
        """
        cursor = self.cursor
        return None if cursor is None else self._options.bookmark(cursor, self._end_ms)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> HistoryMessage:
        message = self.get(self._options.timeout)
        if message is None:
            raise StopIteration
        return message

    def close(self) -> None:
        """Ends a replay that follows. A second call does nothing. A forked process does not end its parent's replay."""
        self._closed = True
        if self._notices is not None and not self._guard.is_elsewhere:
            self._notices.close()

    def next(self) -> ReplayStep:
        """Returns the next step: a message of the same topic, a message of another topic, or the end.

        Raises:
            redis.ConnectionError: the server could not be reached for `reconnect` seconds.
            ForkedError: another process started the replay.
            ConcurrentUseError: another thread is reading the replay.
            NoStoreError: no store keeps these topics.
            WrongStoreError: the cursor belongs to another store.
            CommandError: the server refused the replay, for example because several stores keep these topics.
        """
        with self._guard:
            message = self._take()
            if message is None:
                return ReplayStep(ReplayStepKind.END, None, self.cursor or "")
            same = message.topic == self._topic
            self._topic = message.topic
            kind = ReplayStepKind.MESSAGE if same else ReplayStepKind.NEXT_TOPIC
            return ReplayStep(kind, message, self.cursor or "")

    def get(self, timeout: float | None = None) -> HistoryMessage | None:
        """Returns the next message, or None. A replay that follows waits for a message.

        Args:
            timeout: in seconds. None waits forever. Only a replay that follows waits.

        Raises:
            redis.ConnectionError: the server could not be reached for `reconnect` seconds.
            ForkedError: another process started the replay.
            ConcurrentUseError: another thread is reading the replay.
            NoStoreError: no store keeps these topics.
            WrongStoreError: the cursor belongs to another store.
            CommandError: the server refused the replay, for example because several stores keep these topics.
        """
        arguments.optional_wait("timeout", timeout)
        with self._guard:
            return self._take() if self._notices is None else self._wait(self._notices, timeout)

    def _wait(self, notices: Notices, timeout: float | None) -> HistoryMessage | None:
        """Waits for the next message. None if none came in time or the replay was closed."""
        deadline = None if timeout is None else time.monotonic() + timeout
        before = cancellations()
        while not self._closed:
            if self._sources is None or self._sources.unread is not None:
                self._read(None)
                notices.listen(self._store)
            message = self._take()
            if message is not None or (deadline is not None and time.monotonic() >= deadline):
                return message
            notices.wait(deadline)
            raise_if_cancelled(before)
        return None

    def _take(self) -> HistoryMessage | None:
        """The next message, without waiting for new ones."""
        before = cancellations()
        while not self._closed:
            sources = self._sources
            source = None if sources is None else sources.unread
            if sources is not None and source is None:
                return sources.take()
            page = self._read(source)
            if sources is not None and page is not None:
                sources.take_page(page)
                self.missed += page.missed
            raise_if_cancelled(before)
        return None

    def _read(self, source: Source | None) -> HistoryPage | None:
        """Reads the next page of a source, and retries while its server is unreachable. No source: only starts."""
        deadline: float | None = None
        backoff = FIRST_BACKOFF_S
        while True:
            try:
                if self._sources is None:
                    self._sources = self._begin()
                if source is None:
                    return None
                return self._executor.execute(self._command(source))
            except self._lost as error:
                now = time.monotonic()
                deadline = now + self._options.reconnect if deadline is None else deadline
                if isinstance(error, self._hopeless) or now >= deadline:
                    raise
            # Not all clients shall come back at the same moment. The last try is at the deadline.
            sleep(min(deadline - now, backoff * random.uniform(0.5, 1.0)))  # noqa: S311
            backoff = min(2 * backoff, LAST_BACKOFF_S)

    def _begin(self) -> Sources:
        """Resolves start and end (by the server's clock if they count from now) and the sources to read."""
        options = self._options
        start, end = options.start, options.end
        clock = commands.needs_clock(start) or (end is not None and commands.needs_clock(end))
        now_ms = self._executor.execute_anywhere(commands.server_time_ms()) if clock else 0
        self._start_ms = commands.time_ms("start", start, now_ms)
        self._end_ms = None if end is None else commands.end_ms("end", end, now_ms)
        if not self._executor.is_cluster:
            return Sources([Source(options.shard, options.cursor)], follow=options.follow)
        if self._store is None:
            self._store = self._cluster.store_of(options.topic_filter)
        shards = self._cluster.shards(self._store)
        sources = sources_of(shards if options.shard is None else [options.shard], options.cursor, self._store)
        self._page = page_of(options.page, len(sources))
        return Sources(sources, follow=options.follow)

    def _command(self, source: Source) -> Command[HistoryPage]:
        count, max_bytes = self._page
        return commands.history_replay(
            self._options.topic_filter,
            store=self._store,
            start_ms=self._start_ms,
            end_ms=self._end_ms,
            count=count,
            max_bytes=max_bytes,
            shard=source.shard,
            cursor=source.read,
        )
