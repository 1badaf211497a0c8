# Generated from pyclient/holdmq/_async/history_store.py by tools/generate_sync.py; change that file.
"""One store of history: writing, reading and keeping what it has."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from holdmq import _arguments as arguments
from holdmq import history_commands as commands
from holdmq._durations import Duration
from holdmq._sync.executor import Executor
from holdmq._sync.history_cluster import HistoryCluster
from holdmq._sync.history_patterns import HistoryPatterns
from holdmq._sync.history_producer import HistoryProducer
from holdmq._sync.replay import Replay, ReplayOptions
from holdmq._wire import chunk_words
from holdmq.history_commands import Start
from holdmq.history_replies import COLUMNS, HistoryColumns, HistoryImport, HistoryInfo, HistoryPlace
from holdmq.replies import Message, Payload, ProducerChunk, Text


class HistoryStore:
    """One store of history; made by `History.store`.

    Threads may share it, and processes that fork: each gets connections of its own.

    Attributes:
        name: its name.
        patterns: the pattern sets by which its messages are kept and found.

    Example:
        >>> hold.history.create("meters", "meters/#")
        >>> meters = hold.history.store("meters")
        >>> place = meters.append("meters/7", b"230 V")
        >>> place.sequence, place.new
        (1, True)
        >>> columns = meters.range(place.shard, 1, 100)
        >>> columns["topic"], columns["payload"], columns.next
        (['meters/7'], [b'230 V'], 2)
    """

    def __init__(self, executor: Executor, name: Text) -> None:
        commands.history_unstore(name)  # a name that cannot be is refused here
        self._executor = executor
        self._cluster = HistoryCluster(executor)
        self.name = name
        self.patterns = HistoryPatterns(executor, name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    def drop(self) -> None:
        """Removes the store with all its messages.

        Raises:
            NoStoreError: there is no such store.
        """
        if self._executor.is_cluster:
            self._cluster.drop(self.name)
        else:
            self._executor.execute(commands.history_unstore(self.name))

    def info(self, shard: int | None = None) -> HistoryInfo:
        """What the store has, or one shard of it; reads no messages.

        Raises:
            NoStoreError: there is no such store.
            CommandError: there is no such shard.

        Example:
            >>> hold.history.create("lamps", "lamps/#", shards=2)
            >>> info = hold.history.store("lamps").info()
            >>> info.policy.filters, info.messages, [shard.last for shard in info.shards]
            (('lamps/#',), 0, [0, 0])
        """
        if self._executor.is_cluster and shard is None:
            return self._cluster.info(self.name)
        return self._executor.execute(commands.history_info(self.name, shard))

    def append(
        self,
        topic: str,
        payload: Payload,
        *,
        qos: int = 0,
        retain: bool = False,
        ttl: Duration | None = None,
        publisher: Text | None = None,
        properties: bytes = b"",
        producer: ProducerChunk | None = None,
    ) -> HistoryPlace:
        """Keeps a message without publishing it.

        Args:
            topic: a topic name that the store selects.
            payload: the content.
            qos: 0, 1 or 2, as published.
            retain: the retain flag, as published.
            ttl: how long it is shown, in seconds, 1 to 4294967295.
            publisher: the client id of the publisher.
            properties: MQTT 5.0 properties as they are encoded on the wire, without their length.
            producer: numbers what is sent, so that it is stored once though it may be sent twice (see also `producer`).

        Raises:
            InvalidTopicError: a topic name that MQTT forbids.
            ArgumentError: a number outside of its range.
            CommandError: the store does not select the topic.
            FencedError: the producer has a larger epoch by now.
        """
        return self._executor.execute(
            commands.history_append(
                self.name,
                commands.message_of(topic, payload, qos, retain, publisher, properties),
                ttl=ttl,
                producer=producer,
            )
        )

    def import_records(
        self, shard: int, messages: Sequence[Message | bytes], *, producer: ProducerChunk | None = None
    ) -> HistoryImport:
        """Appends many messages to one shard in one step, in order; with a producer's chunk at most once.

        Args:
            shard: the shard that all the topics belong to.
            messages: 1 to 10000; messages, or records of them (`Message.to_record`).
            producer: a chunk of a producer; the same one again stores nothing and is answered as before.

        Raises:
            ArgumentError: too few or too many messages, or one that cannot be stored.
            CommandError: a topic does not belong to the shard; nothing was stored.
            FencedError: the producer has a larger epoch by now.
        """
        return self._executor.execute(commands.history_import(self.name, shard, messages, producer=producer))

    def import_messages(
        self, messages: Sequence[Message], *, producer: ProducerChunk | None = None
    ) -> dict[int, HistoryImport]:
        """Appends messages to the shards of their topics, each shard in one step; with a producer's chunk at most once.

        If it fails in between, some shards have their part: sent again with the same chunk, they store nothing twice.

        Args:
            messages: 1 to 10000, in the order of each topic. Times of publishing, expiry and publisher stay.
            producer: a chunk of a producer, of all these messages.

        Returns:
            By shard, which numbers its messages have.

        Raises:
            ArgumentError: too few or too many messages, or one that cannot be stored.
            NoStoreError: there is no such store.
            CommandError: it does not select a topic.
            FencedError: the producer has a larger epoch by now.

        Example:
            >>> hold.history.create("clocks", "clocks/#", shards=2)
            >>> clocks = hold.history.store("clocks")
            >>> ticks = [Message(topic="clocks/1", payload=b"tick", time_ms=number) for number in (1, 2)]
            >>> [(result.first, result.last) for result in (clocks.import_messages(ticks)).values()]
            [(1, 2)]
        """
        records = [
            (arguments.instance("a message", message, Message).topic, message.to_record())
            for message in arguments.some("messages", messages, commands.MAX_IMPORT)
        ]
        chunk_words(producer)  # refuses what cannot be
        self._executor.nodes.forget(self.name)
        layout = self._executor.nodes.layout(self.name)
        return {
            shard: self.import_records(shard, group, producer=producer)
            for shard, group in layout.split(records).items()
        }

    def producer(self, name: Text, *, epoch: int | None = None) -> HistoryProducer:
        """Whoever appends messages that may have to be sent again, each of which is stored once.

        Args:
            name: its own, 1 to 255 bytes: two that share one fence each other.
            epoch: larger than that of whoever had the name before (default: the time in microseconds).

        Raises:
            ArgumentError: a name or number that cannot be.
        """
        return HistoryProducer(self._executor, self.name, name, epoch=epoch)

    def start_replay(
        self,
        topic_filter: str = "#",
        start: Start = "earliest",
        *,
        end: Start | None = None,
        shard: int | None = None,
        cursor: str | None = None,
        page: int = 1000,
        reconnect: float = 60.0,
    ) -> Replay:
        """As `History.start_replay`, of this store, or of one shard of it."""
        return Replay(
            self._executor,
            ReplayOptions(
                topic_filter, start, end, cursor, page, reconnect, follow=False, store=self.name, shard=shard
            ),
        )

    def follow(
        self,
        topic_filter: str = "#",
        start: Start = "earliest",
        *,
        shard: int | None = None,
        cursor: str | None = None,
        page: int = 1000,
        reconnect: float = 60.0,
        timeout: float | None = None,
    ) -> Replay:
        """As `History.follow`, of this store, or of one shard of it."""
        options = ReplayOptions(
            topic_filter,
            start,
            None,
            cursor,
            page,
            reconnect,
            follow=True,
            timeout=timeout,
            store=self.name,
            shard=shard,
        )
        return Replay(self._executor, options)

    def range(
        self,
        shard: int,
        first: int,
        last: int,
        *,
        topic_filter: str | None = None,
        columns: Iterable[str] = COLUMNS,
        count: int | None = None,
        max_bytes: int | None = None,
        expired: bool = False,
    ) -> HistoryColumns:
        """A page of a shard's messages, column by column: what jobs read that read much.

        Args:
            shard: its number, from 0 on.
            first: the first sequence number that is wanted, from 1 on.
            last: the last one, itself included.
            topic_filter: only what it matches.
            columns: which columns, of `holdmq.history_replies.COLUMNS` (default: all).
            count: messages of the page at most, 1 to 100000 (default 2000).
            max_bytes: bytes of the page at most, but one message comes in any case (default 8 MiB).
            expired: with messages past their own expiry: who must be able to read the same again wants them.

        Returns:
            The page; `next` is the number to go on from.

        Raises:
            ArgumentError: a column that there is not, or a number outside of its range.
            NoStoreError: there is no such store.
            CommandError: there is no such shard, or a key was changed by others.
        """
        return self._executor.execute(
            commands.history_range(
                self.name,
                shard,
                (first, last),
                topic_filter=topic_filter,
                columns=columns,
                count=count,
                max_bytes=max_bytes,
                expired=expired,
            )
        )

    def ranges(
        self,
        shard: int,
        first: int,
        last: int,
        *,
        topic_filter: str | None = None,
        columns: Iterable[str] = COLUMNS,
        count: int | None = None,
        max_bytes: int | None = None,
        expired: bool = False,
    ) -> Iterator[HistoryColumns]:
        """All pages from `first` to `last`, or to the last message that there is; arguments as for `range`.

        Example:
            >>> hold.history.create("taps", "taps/#")
            >>> taps = hold.history.store("taps")
            >>> for number in range(5):
            ...     place = taps.append("taps/1", str(number))
            >>> for columns in taps.ranges(0, 1, 5, columns=["payload"], count=2):
            ...     print(columns["payload"])
            [b'0', b'1']
            [b'2', b'3']
            [b'4']
        """
        names = arguments.words("column", columns, COLUMNS)
        commands.history_range(
            self.name,
            shard,
            (first, last),
            topic_filter=topic_filter,
            columns=names,
            count=count,
            max_bytes=max_bytes,
            expired=expired,
        )
        while first <= last:
            page = self.range(
                shard,
                first,
                last,
                topic_filter=topic_filter,
                columns=names,
                count=count,
                max_bytes=max_bytes,
                expired=expired,
            )
            if page.rows > 0 or page.missed > 0:
                yield page
            if page.next <= first:
                return
            first = page.next

    def sequence_at(self, shard: int, time: Start) -> int:
        """The sequence number of the shard's first message at this time or later; behind the last one if there is none.

        Args:
            shard: its number.
            time: as the `start` of a replay.
        """
        commands.history_sequence(self.name, shard, commands.time_ms("time", time) or 0)
        if time == "earliest":
            return (self.info(shard)).shards[0].first
        now_ms = self._executor.execute_anywhere(commands.server_time_ms()) if commands.needs_clock(time) else 0
        at_ms = commands.time_ms("time", time, now_ms)
        return self._executor.execute(commands.history_sequence(self.name, shard, at_ms or 0))

    def trim(self, shard: int, sequence: int) -> int:
        """Everything up to and including `sequence` goes.

        Returns:
            The first sequence number that is still visible.

        Raises:
            HeldError: a reader holds what it has not read yet.
        """
        return self._executor.execute(commands.history_trim(self.name, shard, sequence))

    def hold(self, reader: Text, watermarks: Mapping[int, int] | None = None) -> dict[int, int]:
        """Keeps what the reader has not read yet from being dropped, within the store's `hold_bytes`.

        Args:
            reader: its name.
            watermarks: of a shard, up to which sequence number everything was read; it never goes back. None: holds all
                that is there now.

        Returns:
            The reader's watermarks by shard.

        Raises:
            HoldLostError: retention went on without it; `release` first.
        """
        command = commands.history_hold(self.name, reader, watermarks)
        if self._executor.is_cluster:
            return self._cluster.hold(self.name, reader, watermarks)
        return self._executor.execute(command)

    def release(self, reader: Text) -> None:
        """The reader holds nothing any more."""
        command = commands.history_release(self.name, reader)
        if self._executor.is_cluster:
            self._cluster.release(self.name, reader)
        else:
            self._executor.execute(command)

    def check(self, shard: int | None = None, *, epoch: int | None = None) -> tuple[str, ...]:
        """What in the index of an epoch differs from what its messages say; empty when all is well.

        Reads the epoch part by part, so others hardly wait; what comes meanwhile is not looked at.

        Args:
            shard: this one alone; else all, one after the other, and each sentence begins with its shard.
            epoch: its number (default: the present one of each shard).

        Raises:
            NoStoreError: there is no such store.
            CommandError: there is no such shard or epoch.

        Example:
            >>> hold.history.create("doors", "doors/#", shards=2)
            >>> hold.history.store("doors").check()
            ()
        """
        commands.history_check(self.name, 0 if shard is None else shard, epoch=epoch)
        if shard is not None:
            return self._check(shard, epoch)
        found: list[str] = []
        for one in (self.info()).shards:
            found += [f"shard {one.shard}: {sentence}" for sentence in self._check(one.shard, epoch)]
        return tuple(found)

    def _check(self, shard: int, epoch: int | None) -> tuple[str, ...]:
        cursor, sentences = self._executor.execute(commands.history_check(self.name, shard, epoch=epoch))
        found = list(sentences)
        while cursor != "0":
            cursor, sentences = self._executor.execute(commands.history_check(self.name, shard, cursor=cursor))
            found += sentences
        return tuple(found)
