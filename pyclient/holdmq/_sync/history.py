# Generated from pyclient/holdmq/_async/history.py by tools/generate_sync.py; change that file.
"""History: messages that are kept once, however many will read them."""

import warnings

from holdmq import _arguments as arguments
from holdmq import history_commands as commands
from holdmq._durations import Duration
from holdmq._sync.executor import Executor
from holdmq._sync.history_cluster import HistoryCluster
from holdmq._sync.history_store import HistoryStore
from holdmq._sync.replay import Replay, ReplayOptions
from holdmq.errors import ArgumentError, HoldMQWarning, library_of
from holdmq.history_commands import Start
from holdmq.history_replies import HistoryPolicy
from holdmq.replies import Text


class History:
    """The history of the server, or of the cluster; the attribute `history` of `HoldMQ`.

    What a store's filters select is kept when it is published (`Topics.publish`, MQTT clients) or appended.

    In a cluster each shard of a store is where its slot is. Whatever concerns one shard goes there, also while slots
    are being moved; what concerns all of them is done shard by shard: if a node fails in between, some are done and
    others are not, and the same call again goes on.

    Threads may share it, and processes that fork: each gets connections of its own.

    Attributes:
        cluster: the stores of a cluster; for this package alone.

    Example:
        >>> hold.history.create("weather", "weather/#", age=86400)
        >>> hold.topics.publish("weather/oslo", b"snow")
        0
        >>> hold.topics.publish("weather/rome", b"sun")
        0
        >>> for message in hold.history.start_replay("weather/+"):
        ...     print(message.topic, message.payload)
        weather/oslo b'snow'
        weather/rome b'sun'
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self.cluster = HistoryCluster(executor)

    def create(  # noqa: PLR0913 - the settings of a store
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
        """Makes a store, or changes it: what is not said stays.

        Other filters than those that a store has replace them, with a warning; a later release refuses them unless
        `replace_filters` is True.

        Args:
            store: its name.
            filters: the topic filters that it selects; no topic may belong to two stores.
            shards: 1 to 64 (default 1); never changes. The messages of a topic are in one shard.
            age: how long messages are shown: seconds, a `timedelta`, or a text (`90s`, `15m`, `24h`, `7d`); 0: for
                ever, the default.
            max_bytes: how much memory all shards may take together; 0: no limit, the default.
            levels: how many levels of a topic are indexed, 1 to 16 (default 8); never changes.
            epoch: after so long a shard begins a new epoch: retention drops whole epochs.
            hold_bytes: how much more readers that hold the store may keep from being dropped.
            learn: after so long, again and again, the store looks for a better pattern set and switches to it;
                0: never, the default.
            replace_filters: whether the filters of a store that is there may be replaced: True, False, or None for
                now, with a warning (`HoldMQWarning`). What was kept by the old filters stays and is found.

        Raises:
            InvalidTopicError: a filter that MQTT forbids.
            ArgumentError: no filter, a number outside of its range, or other filters with `replace_filters=False`.
            CommandError: a topic of another store could match, or what never changes would.
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
            self._check_filters(store, filters, is_allowed=replace_filters is None)
        if self._executor.is_cluster:
            self.cluster.create(store, filters, settings)
        else:
            self._executor.execute(command)

    def _check_filters(self, store: Text, filters: tuple[str, ...], *, is_allowed: bool) -> None:
        try:
            policies = self.stores()
        except library_of(self._executor.client).NoPermissionError:
            return  # a user who may make stores and not see them
        name = commands.store_name(store).decode("utf-8", "surrogateescape")
        for policy in policies:
            if policy.store == name and set(policy.filters) != set(filters):
                what = f"the store {name!r} has the filters {policy.filters!r}, and {filters!r} would replace them"
                if not is_allowed:
                    raise ArgumentError(f"{what}: expected the same ones, or replace_filters=True")
                text = f"{what}: that will be refused without replace_filters=True in a later release"
                warnings.warn(text, HoldMQWarning, stacklevel=3)

    def stores(self) -> tuple[HistoryPolicy, ...]:
        """The policies of all stores.

        Example:
            >>> hold.history.create("doors", "doors/#", shards=2)
            >>> [(policy.store, policy.filters, policy.shards) for policy in hold.history.stores()]
            [('doors', ('doors/#',), 2)]
        """
        return self._executor.execute(commands.history_stores())

    def store(self, name: Text) -> HistoryStore:
        """The store of that name; nothing is sent.

        Raises:
            ArgumentError: a name that is neither str nor bytes.
        """
        return HistoryStore(self._executor, name)

    def start_replay(
        self,
        topic_filter: str,
        start: Start = "earliest",
        *,
        end: Start | None = None,
        cursor: str | None = None,
        page: int = 1000,
        reconnect: float = 60.0,
    ) -> Replay:
        """The messages of the past whose topics the filter matches, up to the last one that there is.

        Args:
            topic_filter: an MQTT topic filter; it may match topics of one store only (else `HistoryStore`).
            start: where to begin: `earliest`, `now`, a `datetime` (UTC if it has no zone), a `timedelta` (so long
                ago), seconds since 1970 as `float` (`time.time()`), milliseconds since 1970 as `int`, or a text: a time
                as of ISO 8601, or how long ago (`15m`, `24h`, `7d`).
            end: nothing later than this; a time as for `start`.
            cursor: goes on there instead (`Replay.cursor` of an earlier replay). It is a place in the store and
                nothing else: filter and end are to be given again. What the earlier filter did not match is passed.
            page: messages of one round trip, 1 or more.
            reconnect: after losing the connection, try for so many seconds to get it back.

        Raises:
            InvalidTopicError: a filter that MQTT forbids.
            ArgumentError: a time or number that cannot be.
        """
        return Replay(self._executor, ReplayOptions(topic_filter, start, end, cursor, page, reconnect, follow=False))

    def resume(
        self,
        bookmark: str,
        *,
        follow: bool = False,
        page: int = 1000,
        reconnect: float = 60.0,
        timeout: float | None = None,
    ) -> Replay:
        """Goes on where an earlier replay was, with its filter, its store, its shard and its end.

        Args:
            bookmark: `Replay.bookmark` of that replay.
            follow: go on with the messages that come; not for a replay with an end.
            page: messages of one round trip, 1 or more.
            reconnect: after losing the connection, try for so many seconds to get it back.
            timeout: with `follow`, as there.

        Raises:
            ArgumentError: the text is no bookmark.

        Example:
            >>> hold.history.create("ports", "ports/#")
            >>> for ship in (b"Fram", b"Gjoa"):
            ...     reached = hold.topics.publish("ports/1", ship)
            >>> replay = hold.history.start_replay("ports/+")
            >>> (replay.get()).payload
            b'Fram'
            >>> (hold.history.resume(replay.bookmark).get()).payload
            b'Gjoa'
        """
        return Replay(
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
    ) -> Replay:
        """The messages of the past, then those that come, without a gap and none twice, until it is closed.

        It reads by a cursor, and is only woken by the server's notices: what is lost of those costs time, no message.

        Args:
            topic_filter: as for `start_replay`, as are `start`, `cursor`, `page` and `reconnect`.
            start: where to begin.
            cursor: goes on there instead.
            page: messages of one round trip.
            reconnect: after losing the connection, try for so many seconds to get it back.
            timeout: iteration ends when no message came for so many seconds; None waits for ever.

        Example:
            >>> hold.history.create("gates", "gates/#")
            >>> hold.topics.publish("gates/1", b"open")
            0
            >>> with hold.history.follow("gates/#") as messages:
            ...     print((messages.get()).payload)
            ...     reached = hold.topics.publish("gates/2", b"closed")
            ...     print((messages.get(timeout=5)).payload)
            b'open'
            b'closed'
        """
        return Replay(
            self._executor,
            ReplayOptions(topic_filter, start, None, cursor, page, reconnect, follow=True, timeout=timeout),
        )
