"""The sources of a replay, one for each shard that is read by itself, and the merge of their messages.

One server reads all shards of its stores in one command: there is one source, and its cursor is that of all shards.
In a cluster each shard is read at its node: each shard is a source. The cursor of the replay is then the cursors of
all sources, in the order of the shards, separated by commas. That is also the server's form for several shards.

Without I/O. Invariants:

1. A message is handed out when every source that has not ended has one to compare with: the one with the smallest
   (time, shard) comes first. So the order does not depend on where pages end. The order of each shard, and so of each
   topic, is kept.
2. Memory holds a page of each source.
3. The cursor is after the last message that was handed out.
4. An interrupt (KeyboardInterrupt) at any instruction skips no message but the one that was being handed out: a page
   and its cursor change in one step, and `unread` finds a source that is not at its cursor.

Taking a message is O(log sources), the cursor O(sources).
"""

import heapq
import time
from collections.abc import Sequence

from holdmq import core
from holdmq._wire import decoded
from holdmq.errors import ArgumentError, WrongStoreError
from holdmq.history_replies import HistoryMessage, HistoryPage
from holdmq.replies import Text

LOOK_AGAIN_S = 0.1
"""A source that had ended is looked at again after so long, though others have messages: no source starves."""
LEAST_PAGE = 100
"""Messages of a page of one of several sources, at least, if the replay's page is not smaller."""
PAGE_BYTES = 8 << 20
LEAST_BYTES = 256 << 10
"""Bytes of a page of one of several sources, at least; all sources together have about `PAGE_BYTES`."""


class Source:
    """What was read of one shard (None: of all that the command reads) and not handed out yet.

    Attributes:
        shard: as said.
        page: its messages, and the cursor after it; None before the first one.
        at: the next one of the messages.
        ended: nothing was left when it was read.
        read_s: when that was, by the monotonic clock.
    """

    __slots__ = ("at", "ended", "page", "read_s", "shard")

    def __init__(self, shard: int | None, cursor: str | None) -> None:
        self.shard = shard
        self.page: tuple[Sequence[HistoryMessage], str | None] = ((), cursor)
        self.at = 0
        self.ended = False
        self.read_s = 0.0

    def take_page(self, page: HistoryPage) -> None:
        """The next page."""
        self.ended = page.end and not page.messages
        self.read_s = time.monotonic()
        self.page = ((), self.read)
        self.at = 0
        self.page = (page.messages, page.cursor)

    @property
    def read(self) -> str | None:
        """The cursor after the page; None before the first one."""
        return self.page[1]

    @property
    def messages(self) -> Sequence[HistoryMessage]:
        """Those of the page."""
        return self.page[0]

    @property
    def cursor(self) -> str | None:
        """Where to continue: after the last message that was handed out."""
        if self.read is None or self.at >= len(self.messages):
            return self.read
        if self.shard is not None:  # a cursor of one shard, so nothing has to be looked for
            last = {self.shard: self.messages[self.at - 1].time_us} if self.at else {}
            return _moved_back(self.read, {self.shard: self.messages[self.at]}, last)
        left: dict[int, HistoryMessage] = {}
        for message in self.messages[self.at :]:
            left.setdefault(message.shard, message)
        times = {message.shard: message.time_us for message in self.messages[: self.at]}
        return ",".join(_moved_back(text, left, times) for text in self.read.split(","))


class Sources:
    """The sources of a replay.

    Args:
        sources: in the order of their shards.
        follow: further messages will come, so a source that has ended is looked at again though others have not.
    """

    def __init__(self, sources: Sequence[Source], *, follow: bool) -> None:
        self._sources = sources
        self._follow = follow
        self._ready: list[tuple[int, int, Source]] = []  # a heap of sources by their next message
        self._unread = list(reversed(sources))
        self._ended: list[Source] = []

    @property
    def cursor(self) -> str | None:
        """The cursors of all sources; None before each was read once."""
        cursors = [source.cursor for source in self._sources]
        return None if None in cursors else ",".join(str(cursor) for cursor in cursors)

    @property
    def unread(self) -> Source | None:
        """A source that has to be read before the next message is known."""
        while self._ready:
            source = self._ready[0][2]
            if source.at < len(source.page[0]):
                break
            if source not in self._unread:
                self._unread.append(source)
            heapq.heappop(self._ready)
            if self._follow and self._ended:
                self._look_again(LOOK_AGAIN_S)
        while self._unread:
            source = self._unread[-1]
            if source.at >= len(source.page[0]):
                return source
            self._unread.pop()  # it is ready, too
        return None

    def take_page(self, page: HistoryPage) -> None:
        """A page of the source that is `unread`."""
        source = self._unread[-1]
        if page.messages:
            heapq.heappush(self._ready, (page.messages[0].time_us, page.messages[0].shard, source))
            self._unread.pop()
            source.take_page(page)
            return
        source.take_page(page)
        if source.ended:
            self._ended.append(source)
            self._unread.pop()

    def take(self) -> HistoryMessage | None:
        """The next message, once nothing is `unread`; None if all sources have ended, which are all unread then."""
        if not self._ready:
            self._look_again(0.0)
            return None
        source = self._ready[0][2]
        messages = source.page[0]
        message = messages[source.at]
        source.at += 1
        if len(self._ready) > 1 and source.at < len(messages):
            heapq.heapreplace(self._ready, _place(source))
        return message

    def _look_again(self, after_s: float) -> None:
        """Sources that ended so long ago are unread."""
        before = time.monotonic() - after_s
        self._unread += [source for source in self._ended if source.read_s <= before]
        self._ended = [source for source in self._ended if source.read_s > before]


def check_cursor(cursor: str) -> list[core.Cursor]:
    """The cursors of the shards that a replay's cursor is made of.

    Raises:
        ArgumentError: it is invalid.
    """
    if not isinstance(cursor, str):
        raise ArgumentError(f"cursor is {cursor!r:.200}; expected str")
    try:
        return [core.Cursor.decode(text) for text in cursor.split(",")]
    except core.InvalidCursorError as error:
        hint = "; a bookmark is for resume()" if cursor.startswith("{") else ""
        raise ArgumentError(f"cursor is {cursor!r:.200}; expected one of an earlier replay, unchanged{hint}") from error


def page_of(page: int, sources: int) -> tuple[int, int | None]:
    """Messages and bytes of a page of one source, of this many sources; None: the server chooses the bytes."""
    if sources == 1:
        return page, None
    return min(page, max(-(-page // sources), LEAST_PAGE)), max(PAGE_BYTES // sources, LEAST_BYTES)


def sources_of(shards: Sequence[int], cursor: str | None, store: Text) -> list[Source]:
    """A source for each shard of the store, at a cursor of all of them.

    Raises:
        ArgumentError: the cursor is invalid, or of other shards.
        WrongStoreError: it names another store. Whether it is of an earlier one of this name, each shard's node knows.
    """
    if cursor is None:
        return [Source(shard, None) for shard in sorted(shards)]
    places: dict[int, str] = {}
    name = store.encode() if isinstance(store, str) else bytes(store)
    for place, text in zip(check_cursor(cursor), cursor.split(","), strict=True):
        if place.store not in (b"", name):
            raise WrongStoreError(
                f"WRONGSTORE cursor: it is of the store {decoded(place.store)!r}, not of the store {decoded(name)!r}"
            )
        places[place.shard] = text
    if sorted(places) != sorted(shards) or cursor.count(",") != len(places) - 1:
        raise ArgumentError(
            f"cursor is of the shards {sorted(places)}; expected one of each of {sorted(shards)}, as a replay had it"
        )
    return [Source(shard, places[shard]) for shard in sorted(shards)]


def _place(source: Source) -> tuple[int, int, Source]:
    message = source.messages[source.at]
    return message.time_us, message.shard, source


def _moved_back(text: str, left: dict[int, HistoryMessage], last: dict[int, int]) -> str:
    """The cursor of one shard, moved back to the first message that is left there."""
    cursor = core.Cursor.decode(text)
    message = left.get(cursor.shard)
    if message is None:
        return text
    moved = cursor._replace(sequence=message.sequence, time_us=last.get(cursor.shard, 0))
    return moved.encode().decode("ascii")
