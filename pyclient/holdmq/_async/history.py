"""History: each message is stored once, for any number of readers."""

import warnings

from holdmq import _arguments as arguments
from holdmq import history_commands as commands
from holdmq._async.executor import AsyncExecutor
from holdmq._async.history_cluster import AsyncHistoryCluster
from holdmq._async.history_store import AsyncHistoryStore
from holdmq._async.replay import AsyncReplay, ReplayOptions
from holdmq.durations import Duration
from holdmq.errors import ArgumentError, HoldMQWarning, library_of
from holdmq.history_commands import Start
from holdmq.history_replies import HistoryPolicy
from holdmq.replies import Text


class AsyncHistory:
    """The history of a server or a cluster; the attribute `history` of `AsyncHoldMQ`.

    A store keeps the messages that its filters select: those that are published (`AsyncTopics.publish`, MQTT clients)
    and those that are appended.

    In a cluster, each shard of a store is on the node that has its slot. A command about one shard goes to that node,
    even while slots are moving. A command about all shards is carried out shard by shard. If a node fails in between,
    some shards are done and others are not. Call the method again to continue.

    Tasks of one event loop may share it. A process that forks after its first use must make its own (`ForkedError`).

    Attributes:
        cluster: the stores of a cluster. For use by HoldMQ only.

    Examples:
        >>> await hold.history.create("weather", "weather/#", age=86400)
        >>> await hold.topics.publish("weather/oslo", b"snow")
        0
        >>> await hold.topics.publish("weather/rome", b"sun")
        0
        >>> async for message in hold.history.start_replay("weather/+"):
        ...     print(message.topic, message.payload)
        weather/oslo b'snow'
        weather/rome b'sun'
    """

    def __init__(self, executor: AsyncExecutor) -> None:
        self._executor = executor
        self.cluster = AsyncHistoryCluster(executor)

    async def create(  # noqa: PLR0913 - the settings of a store
        self,
        store: Text,
        *filters: str,
        shards: int | None = None,
        age: Duration | None = None,
        max_bytes: int | None = None,
        levels: int | None = None,
        epoch: Duration | None = None,
        hold_bytes: int | None = None,
        learn: Duration | None = None,
        replace_filters: bool | None = None,
    ) -> None:
        """Creates a store, or changes an existing one. Settings that you do not pass keep their values.

        If the store exists and has other filters, they are replaced, with a warning. A later release will refuse that
        unless `replace_filters` is True.

        Args:
            store: the store's name.
            filters: the topic filters that it selects. No topic may belong to two stores.
            shards: 1 to 64 (default 1). Cannot be changed. All messages of a topic are in one shard.
            age: how long messages can be read: seconds, a `timedelta`, or a text (`90s`, `15m`, `24h`, `7d`). 0, the
                default, means forever.
            max_bytes: how much memory all shards together may use. 0, the default, means no limit.
            levels: how many levels of a topic are indexed, 1 to 16 (default 8). Cannot be changed.
            epoch: the length of an epoch of a shard. Retention drops whole epochs.
            hold_bytes: how many further bytes readers may hold back from being dropped.
            learn: how often the store looks for a better pattern set and switches to it. 0, the default, means never.
            replace_filters: whether to replace the filters of an existing store. None replaces them with a warning
                (`HoldMQWarning`). Messages that the old filters selected stay and can be found.

        Raises:
            InvalidTopicError: MQTT forbids a filter.
            ArgumentError: no filter, a number out of range, or other filters with `replace_filters=False`.
            CommandError: another store could select the same topic, or a setting cannot be changed.
        """
        settings = {
            "shards": shards,
            "age": age,
            "max_bytes": max_bytes,
            "levels": levels,
            "epoch": epoch,
            "hold_bytes": hold_bytes,
            "learn": learn,
        }
        arguments.optional_flag("replace_filters", replace_filters)
        command = commands.history_store(store, filters, **settings)
        if not replace_filters:
            await self._check_filters(store, filters, is_allowed=replace_filters is None)
        if self._executor.is_cluster:
            await self.cluster.create(store, filters, settings)
        else:
            await self._executor.execute(command)

    async def _check_filters(self, store: Text, filters: tuple[str, ...], *, is_allowed: bool) -> None:
        try:
            policies = await self.stores()
        except library_of(self._executor.client).NoPermissionError:
            return  # a user who may make stores and not see them
        name = commands.store_name(store).decode("utf-8", "surrogateescape")
        for policy in policies:
            if policy.store == name and set(policy.filters) != set(filters):
                what = f"the store {name!r} has the filters {policy.filters!r}, and {filters!r} would replace them"
                if not is_allowed:
                    raise ArgumentError(f"{what}; expected the same ones, or replace_filters=True")
                text = f"{what}: that will be refused without replace_filters=True in a later release"
                warnings.warn(text, HoldMQWarning, stacklevel=3)

    async def stores(self) -> tuple[HistoryPolicy, ...]:
        """Returns the policies of all stores.

        Examples:
            >>> await hold.history.create("doors", "doors/#", shards=2)
            >>> [(policy.store, policy.filters, policy.shards) for policy in await hold.history.stores()]
            [('doors', ('doors/#',), 2)]
        """
        return await self._executor.execute(commands.history_stores())

    def store(self, name: Text) -> AsyncHistoryStore:
        """Returns the store with this name. Sends nothing.

        Raises:
            ArgumentError: an invalid name.
        """
        return AsyncHistoryStore(self._executor, name)

    def start_replay(
        self,
        topic_filter: str,
        start: Start = "earliest",
        *,
        end: Start | None = None,
        cursor: str | None = None,
        page: int = 1000,
        reconnect: float = 60.0,
    ) -> AsyncReplay:
        """Returns a replay of the past messages whose topics match the filter, up to the most recent one.

        Args:
            topic_filter: an MQTT topic filter that matches topics of one store only. For several stores, use
                `AsyncHistoryStore.start_replay` of each.
            start: where to start: `earliest`, `now`, a `datetime` (UTC if it has no zone), a `timedelta` (this long
                ago), seconds since 1970 as `float` (`time.time()`), milliseconds since 1970 as `int`, or a text: an
                ISO 8601 time, or how long ago (`15m`, `24h`, `7d`).
            end: the time of the last message, in the same forms as `start`. None means no end.
            cursor: continue here instead (`AsyncReplay.cursor` of an earlier replay). A cursor is only a place in the
                store: pass filter and end again. Messages that the earlier filter did not match stay skipped.
            page: messages per round trip, 1 or more.
            reconnect: for how many seconds to retry after the connection is lost.

        Raises:
            InvalidTopicError: MQTT forbids this filter.
            ArgumentError: an invalid time or number.
        """
        return AsyncReplay(
            self._executor, ReplayOptions(topic_filter, start, end, cursor, page, reconnect, follow=False)
        )

    def resume(
        self,
        bookmark: str,
        *,
        follow: bool = False,
        page: int = 1000,
        reconnect: float = 60.0,
        timeout: float | None = None,
    ) -> AsyncReplay:
        """Continues an earlier replay, with its filter, store, shard and end.

        Args:
            bookmark: `AsyncReplay.bookmark` of that replay.
            follow: whether to continue with new messages. Not for a replay that has an end.
            page: messages per round trip, 1 or more.
            reconnect: for how many seconds to retry after the connection is lost.
            timeout: as for `follow`.

        Raises:
            ArgumentError: the text is not a bookmark.

        Examples:
            >>> await hold.history.create("ports", "ports/#")
            >>> for ship in (b"Fram", b"Gjoa"):
            ...     reached = await hold.topics.publish("ports/1", ship)
            >>> replay = hold.history.start_replay("ports/+")
            >>> (await replay.get()).payload
            b'Fram'
            >>> (await hold.history.resume(replay.bookmark).get()).payload
            b'Gjoa'
        """
        return AsyncReplay(
            self._executor,
            ReplayOptions.from_bookmark(bookmark, page=page, reconnect=reconnect, follow=follow, timeout=timeout),
        )

    def follow(
        self,
        topic_filter: str,
        start: Start = "earliest",
        *,
        cursor: str | None = None,
        page: int = 1000,
        reconnect: float = 60.0,
        timeout: float | None = None,
    ) -> AsyncReplay:
        """Returns a replay of past messages that continues with new ones, without gaps or repetitions.

        It reads by a cursor. The server's notices only wake it up: a lost notice costs time, but no message.

        Args:
            topic_filter: as for `start_replay`.
            start: where to start, as for `start_replay`.
            cursor: continue here instead, as for `start_replay`.
            page: messages per round trip, 1 or more.
            reconnect: for how many seconds to retry after the connection is lost.
            timeout: iteration ends after this many seconds without a message. None waits forever.

        Examples:
            >>> await hold.history.create("gates", "gates/#")
            >>> await hold.topics.publish("gates/1", b"open")
            0
            >>> async with hold.history.follow("gates/#") as messages:
            ...     print((await messages.get()).payload)
            ...     reached = await hold.topics.publish("gates/2", b"closed")
            ...     print((await messages.get(timeout=5)).payload)
            b'open'
            b'closed'
        """
        return AsyncReplay(
            self._executor,
            ReplayOptions(topic_filter, start, None, cursor, page, reconnect, follow=True, timeout=timeout),
        )
