"""One history store: write, read and trim it."""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence

from holdmq import _arguments as arguments
from holdmq import history_commands as commands
from holdmq._async.executor import AsyncExecutor
from holdmq._async.history_cluster import AsyncHistoryCluster
from holdmq._async.history_patterns import AsyncHistoryPatterns
from holdmq._async.history_producer import AsyncHistoryProducer
from holdmq._async.replay import AsyncReplay, ReplayOptions
from holdmq._wire import chunk_words
from holdmq.durations import Duration
from holdmq.history_commands import Start
from holdmq.history_replies import COLUMNS, HistoryColumns, HistoryImport, HistoryInfo, HistoryPlace
from holdmq.replies import Message, Payload, ProducerChunk, Text


class AsyncHistoryStore:
    """One history store; made by `AsyncHistory.store`.

    Tasks of one event loop may share it. A process that forks after its first use must make its own (`ForkedError`).

    Attributes:
        name: the store's name.
        patterns: the pattern sets by which messages are stored and found (`AsyncHistoryPatterns`).

    Examples:
        >>> await hold.history.create("meters", "meters/#")
        >>> meters = hold.history.store("meters")
        >>> place = await meters.append("meters/7", b"230 V")
        >>> place.sequence, place.new
        (1, True)
        >>> columns = await meters.range(place.shard, 1, 100)
        >>> columns["topic"], columns["payload"], columns.next
        (['meters/7'], [b'230 V'], 2)
    """

    def __init__(self, executor: AsyncExecutor, name: Text) -> None:
        commands.history_unstore(name)  # a name that cannot be is refused here
        self._executor = executor
        self._cluster = AsyncHistoryCluster(executor)
        self.name = name
        self.patterns = AsyncHistoryPatterns(executor, name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    async def drop(self) -> None:
        """Removes the store with all its messages.

        Raises:
            NoStoreError: there is no such store.
        """
        if self._executor.is_cluster:
            await self._cluster.drop(self.name)
        else:
            await self._executor.execute(commands.history_unstore(self.name))

    async def info(self, shard: int | None = None) -> HistoryInfo:
        """Returns the state of the store, or of one shard. Reads no messages.

        Raises:
            NoStoreError: there is no such store.
            CommandError: there is no such shard.

        Examples:
            >>> await hold.history.create("lamps", "lamps/#", shards=2)
            >>> info = await hold.history.store("lamps").info()
            >>> info.policy.filters, info.messages, [shard.last for shard in info.shards]
            (('lamps/#',), 0, [0, 0])
        """
        if self._executor.is_cluster and shard is None:
            return await self._cluster.info(self.name)
        return await self._executor.execute(commands.history_info(self.name, shard))

    async def append(
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
        """Stores a message without publishing it.

        Args:
            topic: a topic name that the store selects.
            payload: the content.
            qos: 0, 1 or 2, as published.
            retain: the retain flag, as published.
            ttl: how long the message can be read, in seconds, 1 to 4294967295.
            publisher: the client id of the publisher.
            properties: MQTT 5.0 properties, encoded as on the wire, without their length.
            producer: the producer and the number of the message, which is then stored once, however often it is sent
                (see also the method `producer`).

        Raises:
            InvalidTopicError: MQTT forbids this topic name.
            ArgumentError: a number out of range.
            CommandError: the store does not select the topic.
            FencedError: the producer has a newer epoch.
        """
        return await self._executor.execute(
            commands.history_append(
                self.name,
                commands.message_of(topic, payload, qos, retain, publisher, properties),
                ttl=ttl,
                producer=producer,
            )
        )

    async def import_records(
        self, shard: int, messages: Sequence[Message | bytes], *, producer: ProducerChunk | None = None
    ) -> HistoryImport:
        """Appends many messages to one shard, in order and in one step.

        Args:
            shard: the shard that all the topics belong to.
            messages: 1 to 10000 messages, or their records (`Message.to_record`).
            producer: a chunk of a producer. The same chunk again stores nothing and gets the same answer.

        Raises:
            ArgumentError: too few or too many messages, or one that cannot be stored.
            CommandError: a topic does not belong to the shard. Nothing was stored.
            FencedError: the producer has a newer epoch.
        """
        return await self._executor.execute(commands.history_import(self.name, shard, messages, producer=producer))

    async def import_messages(
        self, messages: Sequence[Message], *, producer: ProducerChunk | None = None
    ) -> dict[int, HistoryImport]:
        """Appends messages to the shards of their topics. Each shard is written in one step.

        If that fails in between, some shards have their messages. Call it again with the same chunk: nothing is stored
        twice.

        Args:
            messages: 1 to 10000, ordered within each topic. They keep their time, expiry and publisher.
            producer: a chunk of a producer, for all these messages.

        Returns:
            The sequence numbers of the messages, by shard.

        Raises:
            ArgumentError: too few or too many messages, or one that cannot be stored.
            NoStoreError: there is no such store.
            CommandError: the store does not select a topic.
            FencedError: the producer has a newer epoch.

        Examples:
            >>> await hold.history.create("clocks", "clocks/#", shards=2)
            >>> clocks = hold.history.store("clocks")
            >>> ticks = [Message(topic="clocks/1", payload=b"tick", time_ms=number) for number in (1, 2)]
            >>> [(result.first, result.last) for result in (await clocks.import_messages(ticks)).values()]
            [(1, 2)]
        """
        records = [
            (arguments.instance("a message", message, Message).topic, message.to_record())
            for message in arguments.some("messages", messages, commands.MAX_IMPORT)
        ]
        chunk_words(producer)  # refuses what cannot be
        self._executor.nodes.forget(self.name)
        layout = await self._executor.nodes.layout(self.name)
        return {
            shard: await self.import_records(shard, group, producer=producer)
            for shard, group in layout.split(records).items()
        }

    def producer(self, name: Text, *, epoch: int | None = None) -> AsyncHistoryProducer:
        """Returns a producer. Each of its messages is stored once, however often it is sent.

        Args:
            name: the producer's own name, 1 to 255 bytes. Two producers with the same name fence each other.
            epoch: a number larger than that of earlier producers with this name (default: the time in microseconds).

        Raises:
            ArgumentError: an invalid name or number.
        """
        return AsyncHistoryProducer(self._executor, self.name, name, epoch=epoch)

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
    ) -> AsyncReplay:
        """Like `AsyncHistory.start_replay`, for this store or one of its shards."""
        return AsyncReplay(
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
    ) -> AsyncReplay:
        """Like `AsyncHistory.follow`, for this store or one of its shards."""
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
        return AsyncReplay(self._executor, options)

    async def range(
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
        """Returns a page of a shard's messages as columns. The fastest way to read many messages.

        Args:
            shard: the number of the shard, from 0.
            first: the first sequence number, from 1.
            last: the last sequence number, included.
            topic_filter: only messages that match this filter.
            columns: a selection of `holdmq.history_replies.COLUMNS` (default: all).
            count: at most this many messages, 1 to 100000 (default 2000).
            max_bytes: at most this many bytes, but at least one message (default 8 MiB).
            expired: whether to include expired messages, so that a later call returns the same messages.

        Returns:
            The page. Its `next` is the sequence number to continue from.

        Raises:
            ArgumentError: an unknown column, or a number out of range.
            NoStoreError: there is no such store.
            CommandError: there is no such shard, or another program changed one of its keys.
        """
        return await self._executor.execute(
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

    async def ranges(
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
    ) -> AsyncIterator[HistoryColumns]:
        """Yields all pages from `first` to `last`, or up to the last message. Arguments as for `range`.

        Examples:
            >>> await hold.history.create("taps", "taps/#")
            >>> taps = hold.history.store("taps")
            >>> for number in range(5):
            ...     place = await taps.append("taps/1", str(number))
            >>> async for columns in taps.ranges(0, 1, 5, columns=["payload"], count=2):
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
            page = await self.range(
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

    async def sequence_at(self, shard: int, time: Start) -> int:
        """Returns the sequence number of the first message at or after a time. If there is none: the last one + 1.

        Args:
            shard: the number of the shard.
            time: a time in the forms that `start_replay` accepts.
        """
        commands.history_sequence(self.name, shard, commands.time_ms("time", time) or 0)
        if time == "earliest":
            return (await self.info(shard)).shards[0].first
        now_ms = await self._executor.execute_anywhere(commands.server_time_ms()) if commands.needs_clock(time) else 0
        at_ms = commands.time_ms("time", time, now_ms)
        return await self._executor.execute(commands.history_sequence(self.name, shard, at_ms or 0))

    async def trim(self, shard: int, sequence: int) -> int:
        """Removes the messages up to and including `sequence`.

        Returns:
            The first sequence number that can still be read.

        Raises:
            HeldError: a reader holds messages that it has not read yet.
        """
        return await self._executor.execute(commands.history_trim(self.name, shard, sequence))

    async def hold(self, reader: Text, watermarks: Mapping[int, int] | None = None) -> dict[int, int]:
        """Protects messages that a reader has not read yet from retention, within the store's `hold_bytes`.

        Args:
            reader: the reader's name.
            watermarks: for each shard, the last sequence number that was read. It never decreases. None holds all
                messages that exist now.

        Returns:
            The reader's watermarks by shard.

        Raises:
            HoldLostError: retention removed unread messages of this reader. Call `release` first.
        """
        command = commands.history_hold(self.name, reader, watermarks)
        if self._executor.is_cluster:
            return await self._cluster.hold(self.name, reader, watermarks)
        return await self._executor.execute(command)

    async def release(self, reader: Text) -> None:
        """Ends the hold of a reader."""
        command = commands.history_release(self.name, reader)
        if self._executor.is_cluster:
            await self._cluster.release(self.name, reader)
        else:
            await self._executor.execute(command)

    async def check(self, shard: int | None = None, *, epoch: int | None = None) -> tuple[str, ...]:
        """Compares the index of an epoch with its messages. Returns the differences: none if all is well.

        Reads the epoch in small parts, so that other clients hardly wait. Messages that arrive meanwhile are not
        checked.

        Args:
            shard: check this shard only. By default all shards are checked, and each sentence names its shard.
            epoch: the number of the epoch (default: the current one of each shard).

        Raises:
            NoStoreError: there is no such store.
            CommandError: there is no such shard or epoch.

        Examples:
            >>> await hold.history.create("doors", "doors/#", shards=2)
            >>> await hold.history.store("doors").check()
            ()
        """
        commands.history_check(self.name, 0 if shard is None else shard, epoch=epoch)
        if shard is not None:
            return await self._check(shard, epoch)
        found: list[str] = []
        for one in (await self.info()).shards:
            found += [f"shard {one.shard}: {sentence}" for sentence in await self._check(one.shard, epoch)]
        return tuple(found)

    async def _check(self, shard: int, epoch: int | None) -> tuple[str, ...]:
        cursor, sentences = await self._executor.execute(commands.history_check(self.name, shard, epoch=epoch))
        found = list(sentences)
        while cursor != "0":
            cursor, sentences = await self._executor.execute(commands.history_check(self.name, shard, cursor=cursor))
            found += sentences
        return tuple(found)
