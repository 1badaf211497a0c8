"""One MQTT session: its queue, its owner and its subscriptions."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace

from holdmq import _arguments as arguments
from holdmq import commands
from holdmq._async.executor import AsyncExecutor
from holdmq._async.producer import AsyncProducer
from holdmq._durations import Duration, Start
from holdmq._guard import Owner
from holdmq._history_times import replay_needs_clock, replay_text, server_time_ms
from holdmq.errors import NoSessionError, UnexpectedReplyError
from holdmq.replies import (
    AckResult,
    AddResult,
    Entry,
    EntryState,
    ImportResult,
    Message,
    OpenResult,
    Page,
    Payload,
    QueueBounds,
    QueuedMessage,
    ReplayResult,
    SessionInfo,
    SubscriptionOptions,
    Text,
    UserBounds,
    Will,
)

DELIVERED_AT_ONCE = 1000
"""Messages of one SESSION.DELIVER."""
PURGED_AT_ONCE = 1000


class AsyncSession:
    """The session of an MQTT client; made by `session`.

    After `open` every command that writes carries the epoch, so that it is refused (`FencedError`) once somebody else
    has opened the session. A handle without an epoch checks nothing: it fills, reads and subscribes the queue of that
    client whether the session was opened or not.

    Tasks may share it. The epoch belongs to the process that called `open`: a process that is forked from it has to
    open the session again (`ForkedError`).

    Attributes:
        client_id: the client's id.
        prefix: what stands before the session key.
        epoch: the epoch to write under, 0 if it is not to be checked.

    Example:
        >>> session = hold.session("device-1")
        >>> opened = await session.open("reader-1", expiry=3600)
        >>> (await session.add(b"on", b"off")).packet_ids
        (1, 2)
        >>> page = await session.fetch()
        >>> [(entry.packet_id, entry.value) for entry in page.entries]
        [(1, b'on'), (2, b'off')]
        >>> await session.ack(1, 2)
        2
        >>> await session.close()
    """

    def __init__(self, executor: AsyncExecutor, client_id: Text, *, prefix: Text = b"", epoch: int = 0) -> None:
        commands.session_drop(client_id, epoch=epoch, prefix=prefix)  # what cannot be is refused here
        self._executor = executor
        self.client_id = client_id
        self.prefix = prefix
        self.epoch = epoch
        self._owner = Owner(f"the session {client_id!r}", now=False)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.client_id!r}, epoch={self.epoch})"

    async def open(
        self,
        owner: Text,
        *,
        clean: bool = False,
        expiry: Duration | None = None,
        lease: Duration | None = None,
        bounds: QueueBounds | None = None,
        user_bounds: UserBounds | None = None,
        will: Will | None = None,
        identity: Text | None = None,
    ) -> OpenResult:
        """Takes the session over from whoever has it, or creates it; later commands are fenced by the new epoch.

        Args:
            owner: a name for the new owner.
            clean: drop what is there first.
            expiry: how long the session lives after it was closed, in seconds, 0 to 4294967295 (default 0).
            lease: how much longer it lives if the owner vanishes, in seconds (default 3600).
            bounds: of its queue; None: those of the server's settings.
            user_bounds: of what its identity may have; None: those of the server's settings.
            will: what is published if the connection is lost: by `close(will=True)`, or when the owner vanishes.
            identity: to whom the session belongs; None: it is not asked, and stays as it is.

        Raises:
            ArgumentError: a number outside of its range.
            IdentityError: the session belongs to another identity.
            QuotaError: the server, or the identity, has no room for one more session.
            InvalidTopicError: a topic of a will that MQTT forbids.
        """
        opened = await self._executor.execute(
            commands.session_open(
                self.client_id,
                owner,
                clean=clean,
                expiry=expiry,
                lease=lease,
                bounds=bounds,
                user_bounds=user_bounds,
                will=will,
                identity=identity,
                prefix=self.prefix,
            )
        )
        self.epoch = opened.epoch
        self._owner = Owner(f"the session {self.client_id!r}", now=True)
        return opened

    def _check_epoch(self) -> None:
        """Refuses what only an owner can do if there is no epoch."""
        if self.epoch == 0:
            raise NoSessionError(
                f"NOSESSION this handle of the session {self.client_id!r} has no epoch: expected open() before, or "
                "session(..., epoch=...)"
            )

    def _own_epoch(self) -> int:
        """The epoch, which two processes must not share: the server could not tell them apart."""
        if self._owner.is_elsewhere:
            self._owner.check()
        return self.epoch

    async def touch(self) -> None:
        """Renews the lease.

        Raises:
            FencedError: the session has a newer owner.
            NoSessionError: this handle has no epoch (`open` gives it one), or the session is gone.
        """
        touch = commands.session_touch(self.client_id, epoch=self._own_epoch(), prefix=self.prefix)
        self._check_epoch()
        await self._executor.execute(touch)

    async def close(self, *, expiry: Duration | None = None, sent: int | None = None, will: bool = False) -> None:
        """The connection is gone: with expiry 0 the session is dropped, else it lives so long.

        Args:
            expiry: in seconds, 0 to 4294967295; None: what `open` said.
            sent: up to this serial messages were handed to the client (see `sent`).
            will: the connection was lost: the will is published, after its delay; else it is discarded.

        Raises:
            FencedError: the session has a newer owner.
            NoSessionError: this handle has no epoch (`open` gives it one), or the session is gone.
        """
        close = commands.session_close(
            self.client_id, epoch=self._own_epoch(), expiry=expiry, sent=sent, will=will, prefix=self.prefix
        )
        self._check_epoch()
        await self._executor.execute(close)

    async def add(self, *payloads: Payload, limit: int | None = None, ttl: Duration | None = None) -> AddResult:
        """Appends messages to the queue.

        Args:
            payloads: one or more messages.
            limit: most messages in the queue, 1 to 65535; the oldest beyond it are trimmed (default: the server's).
            ttl: how long each message lives, in seconds, 1 to 2147483647 (default: the server's).

        Raises:
            ArgumentError: no payload, or a number outside of its range.
            SessionFullError: all packet identifiers are in use.

        Example:
            >>> session = hold.session("device-3")
            >>> (await session.add(b"a", b"b", ttl=60)).packet_ids
            (1, 2)
            >>> (await session.add(b"c", limit=2)).trimmed
            1
        """
        return await self._executor.execute(
            commands.session_add(self.client_id, payloads, limit=limit, ttl=ttl, prefix=self.prefix)
        )

    async def add_expiring(
        self, *messages: tuple[Payload, Duration | None], limit: int | None = None, ttl: Duration | None = None
    ) -> AddResult:
        """Appends messages that live for times of their own.

        Args:
            messages: pairs of payload and time to live in seconds (None: `ttl`).
            limit: as for `add`.
            ttl: for messages without a time of their own, as for `add`.

        Raises:
            ArgumentError: no message, or a number outside of its range.
            SessionFullError: all packet identifiers are in use.

        Example:
            >>> result = await hold.session("device-4").add_expiring((b"now", 5), (b"later", None))
            >>> result.serial
            2
        """
        return await self._executor.execute(
            commands.session_add_expiring(self.client_id, messages, limit=limit, ttl=ttl, prefix=self.prefix)
        )

    def producer(self, name: Text, *, sequence: int | None = None) -> AsyncProducer:
        """A producer for this session, each of whose batches is stored once, however often it is sent.

        Args:
            name: one of at most 1024 names of a session; only one producer may bear it at a time.
            sequence: the number of its first batch, above all that were used under this name; None takes the clock
                (microseconds since 1970), which a restarted process can do too.

        Raises:
            ArgumentError: a sequence outside of 1 to 2**63 - 1.
        """
        return AsyncProducer(self._executor, self.client_id, name, sequence=sequence, prefix=self.prefix)

    async def import_messages(
        self,
        messages: Sequence[QueuedMessage],
        *,
        merge: bool = False,
        limit: int | None = None,
        last_packet_id: int | None = None,
        producer: tuple[Text, int] | None = None,
    ) -> ImportResult:
        """Puts a queue from elsewhere into the session in one step: identifiers, serials, order and states kept.

        Args:
            messages: at most 10000, oldest first; more in further calls with `merge`.
            merge: behind the messages that are there; identifiers that are in use are changed, and told.
            limit: how long the queue may become, 1 to 65535 (default: the server's); the oldest beyond it are left out.
            last_packet_id: the identifier handed out last (default: that of the last message).
            producer: a name and the number of the call, 1, 2, 3 …: a call that is sent again stores nothing.

        Raises:
            NotEmptyError: the session has messages; with `merge` they stay before the new ones.
            ArgumentError: too many messages, or a number outside of its range.
            CommandError: serials that do not grow, or a message in flight behind one that is queued.

        Example:
            >>> session = hold.session("device-11")
            >>> queue = [QueuedMessage(b"on", packet_id=7, serial=7), QueuedMessage(b"off", packet_id=8, serial=8)]
            >>> (await session.import_messages(queue, last_packet_id=9)).stored
            2
            >>> (await session.add(b"next")).packet_ids
            (10,)
        """
        return await self._executor.execute(
            commands.session_import(
                self.client_id,
                messages,
                merge=merge,
                limit=limit,
                last_packet_id=last_packet_id,
                producer=producer,
                prefix=self.prefix,
            )
        )

    async def fetch(
        self,
        *,
        after: int = 0,
        window: int | None = None,
        inflight: bool = False,
        count: int | None = None,
        max_bytes: int | None = None,
    ) -> Page:
        """A page of the queue; removes nothing but references to expired messages.

        Args:
            after: begin behind this serial; 0 is the beginning.
            window: hand out the messages behind those in flight, so many that at most `window` are unacknowledged
                (1 to 65535), and note them as in flight.
            inflight: only what is in flight, for a client that came back.
            count: most messages, 1 to 10000 (default 100).
            max_bytes: about so many bytes of payload, but one message at least (default 1048576).

        Raises:
            ArgumentError: a number outside of its range, or two of `after`, `window` and `inflight`.
            FencedError: the session has a newer owner.
        """
        return await self._executor.execute(
            commands.session_fetch(
                self.client_id,
                after=after,
                window=window,
                inflight=inflight,
                count=count,
                max_bytes=max_bytes,
                epoch=self._own_epoch(),
                prefix=self.prefix,
            )
        )

    async def pages(
        self, *, after: int = 0, count: int | None = None, max_bytes: int | None = None
    ) -> AsyncIterator[Page]:
        """The queue page by page, until its end; arguments and errors as for `fetch`.

        Example:
            >>> session = hold.session("device-5")
            >>> added = await session.add(b"a", b"b", b"c")
            >>> [len(page.entries) async for page in session.pages(count=2)]
            [2, 1]
        """
        while True:
            page = await self.fetch(after=after, count=count, max_bytes=max_bytes)
            yield page
            if not page.more:
                return
            if page.entries:
                after = page.entries[-1].serial
            elif not page.expired:
                raise UnexpectedReplyError("SESSION.FETCH replied that there is more, but nothing else")

    async def entries(self, *, after: int = 0, count: int | None = None) -> AsyncIterator[Entry]:
        """The messages of the queue one by one, read a page of `count` at a time; errors as for `fetch`.

        Example:
            >>> session = hold.session("device-6")
            >>> added = await session.add(b"a", b"b")
            >>> [entry.value async for entry in session.entries()]
            [b'a', b'b']
        """
        async for page in self.pages(after=after, count=count):
            for entry in page.entries:
                yield entry

    async def ack(self, *packet_ids: int) -> int:
        """Removes messages that were acknowledged (PUBACK, PUBCOMP).

        Returns:
            How many of them were there.

        Raises:
            ArgumentError: no identifier, or one outside of 1 to 65535.
            FencedError: the session has a newer owner.
        """
        return await self._executor.execute(
            commands.session_ack(self.client_id, packet_ids, epoch=self._own_epoch(), prefix=self.prefix)
        )

    async def ack_next(self, *packet_ids: int, count: int) -> AckResult:
        """Removes messages that were acknowledged and hands out up to `count` of those that follow, in one step.

        So a backlog drains in order at the client's pace, with one command for each batch.

        Args:
            packet_ids: what was acknowledged.
            count: 1 to 10000; as many as were acknowledged keep the window.

        Raises:
            ArgumentError: no identifier, or a number outside of its range.
            FencedError: the session has a newer owner.

        Example:
            >>> session = hold.session("device-8")
            >>> added = await session.add(b"a", b"b", b"c")
            >>> [entry.value for entry in (await session.fetch(window=2)).entries]
            [b'a', b'b']
            >>> acked = await session.ack_next(1, count=1)
            >>> acked.removed, [entry.value for entry in acked.page.entries]
            (1, [b'c'])
        """
        return await self._executor.execute(
            commands.session_ack_next(self.client_id, packet_ids, count, epoch=self._own_epoch(), prefix=self.prefix)
        )

    async def sent(self, serial: int) -> None:
        """Messages up to `serial` were handed to the client by other ways (deliveries of the inbox).

        Raises:
            ArgumentError: a serial below 0.
            FencedError: the session has a newer owner.
        """
        await self._executor.execute(
            commands.session_sent(self.client_id, serial, epoch=self._own_epoch(), prefix=self.prefix)
        )

    async def release(self, *packet_ids: int) -> int:
        """PUBREC was received (QoS 2, outgoing): drops the payloads, keeps the identifiers until `ack`.

        Returns:
            How many of them were there.

        Raises:
            ArgumentError: no identifier, or one outside of 1 to 65535.
            FencedError: the session has a newer owner.
        """
        return await self._executor.execute(
            commands.session_release(self.client_id, packet_ids, epoch=self._own_epoch(), prefix=self.prefix)
        )

    async def receive(self, packet_id: int) -> bool:
        """A PUBLISH of QoS 2 came in.

        Returns:
            True for the first time, False for a repetition.

        Raises:
            ArgumentError: an identifier outside of 1 to 65535.
            FencedError: the session has a newer owner.
        """
        return await self._executor.execute(
            commands.session_receive(self.client_id, packet_id, epoch=self._own_epoch(), prefix=self.prefix)
        )

    async def complete(self, *packet_ids: int) -> int:
        """PUBREL was received (QoS 2, incoming): the identifiers are free again.

        Returns:
            How many of them were known.

        Raises:
            ArgumentError: no identifier, or one outside of 1 to 65535.
            FencedError: the session has a newer owner.
        """
        return await self._executor.execute(
            commands.session_complete(self.client_id, packet_ids, epoch=self._own_epoch(), prefix=self.prefix)
        )

    async def last(self) -> int:
        """The packet identifier handed out last, 0 if none was."""
        return await self._executor.execute(commands.session_last(self.client_id, prefix=self.prefix))

    async def info(self) -> SessionInfo:
        """The state of the session.

        Example:
            >>> (await hold.session("nobody").info()).exists
            False
        """
        return await self._executor.execute(commands.session_info(self.client_id, prefix=self.prefix))

    async def drop(self) -> int:
        """Removes everything the session has.

        Returns:
            How many messages that were.

        Raises:
            FencedError: the session has a newer owner.
        """
        return await self._executor.execute(
            commands.session_drop(self.client_id, epoch=self._own_epoch(), prefix=self.prefix)
        )

    async def purge(self) -> int:
        """Removes the messages that the queue holds now; the session and its subscriptions stay.

        What QoS 2 has released stays until its client completes it.  What comes meanwhile may stay, too.

        Returns:
            How many messages were removed.

        Example:
            >>> session = hold.session("device-9")
            >>> added = await session.add(b"a", b"b")
            >>> await session.purge(), (await session.fetch()).entries
            (2, ())
        """
        last, after, removed = (await self.info()).last_serial, 0, 0
        while after < last:
            entries = (await self.fetch(after=after, count=PURGED_AT_ONCE)).entries
            if not entries:
                break
            ids = [entry.packet_id for entry in entries if entry.state is not EntryState.RELEASED]
            removed += await self.ack(*ids) if ids else 0
            after = entries[-1].serial
        return removed

    async def subscribe(
        self,
        *filters: str,
        qos: int = 1,
        no_local: bool = False,
        retain_as_published: bool = False,
        retain_handling: int = 0,
        identifier: int = 0,
        replay: Start | None = None,
    ) -> tuple[bool, ...]:
        """Subscribes the session to topic filters, all with the same options (see `SubscriptionOptions`).

        With `replay` the subscription begins in the past: at a time, or so long ago, as `AsyncHistory.start_replay`
        takes it (`earliest`, `24h`, a `datetime` …); a text may end with `!`, for an application, which reads history
        for ever. The method `replay` then reads history into the session, until it is at the end and the subscription
        goes on live.

        Returns:
            True for each filter that is new, False where options were replaced.

        Raises:
            InvalidTopicError: a filter that MQTT forbids.
            ArgumentError: no filter, or an option outside of its range.
            NoStoreError: a replay of topics that no store keeps.
            FencedError: the session has a newer owner.
            NoSessionError: the handle has an epoch, and the session is gone.

        Example:
            >>> session = hold.session("device-7")
            >>> opened = await session.open("reader-1", expiry=60)
            >>> await session.subscribe("weather/+/now", "alarms/#", qos=1)
            (True, True)
            >>> await hold.topics.publish("weather/oslo/now", b"snow", qos=1)
            1
            >>> (await session.fetch()).entries[0].message.payload
            b'snow'
        """
        options = SubscriptionOptions(qos, no_local, retain_as_published, retain_handling, identifier)
        wanted = {arguments.name("filter", topic_filter): topic_filter for topic_filter in filters}
        commands.session_subscribe(self.client_id, dict.fromkeys(wanted.values(), options))  # refuses what cannot be
        if replay is not None:
            options = replace(options, replay=await self._replay_text(replay))
        return await self.subscribe_each(dict.fromkeys(wanted.values(), options))

    async def subscribe_each(self, filters: Mapping[str, SubscriptionOptions]) -> tuple[bool, ...]:
        """Subscribes the session to topic filters with options of their own; results and errors as for `subscribe`.

        Retained messages that match are handed to the session in the same atomic step. In a cluster they are collected
        from all nodes afterwards: what is published meanwhile may come twice, or before an older retained message.
        """
        for topic_filter, options in arguments.mapping("filters", filters).items():
            arguments.instance(f"value of {topic_filter!r}", options, SubscriptionOptions)
            first = options if options.replay is None else replace(options, replay=replay_text(options.replay, 0))
            commands.session_subscribe(self.client_id, {topic_filter: first})  # refuses what cannot be
        filters = {
            topic_filter: options
            if options.replay is None
            else replace(options, replay=await self._replay_text(options.replay))
            for topic_filter, options in filters.items()
        }
        new = await self._executor.execute(
            commands.session_subscribe(self.client_id, filters, epoch=self._own_epoch(), prefix=self.prefix)
        )
        if self._executor.is_cluster:
            for (topic_filter, options), is_new in zip(filters.items(), new, strict=True):
                if options.retain_handling == 0 or (options.retain_handling == 1 and is_new):
                    await self._hand_retained(topic_filter, options)
        return new

    async def replay(
        self, *, count: int | None = None, max_bytes: int | None = None, queue: int | None = None
    ) -> ReplayResult:
        """Reads history on for the subscriptions that begin in the past, and delivers it to the session.

        Args:
            count: messages at most, 1 or more (default 1000).
            max_bytes: bytes of them at most, but one message comes in any case (default 1 MiB).
            queue: only while the queue has fewer messages (default 1000).

        Raises:
            ArgumentError: a number outside of its range.
            FencedError: the session has a newer owner.

        Example:
            >>> await hold.history.create("trams", "trams/#")
            >>> await hold.topics.publish("trams/7", b"late", qos=1)
            0
            >>> session = hold.session("device-12")
            >>> opened = await session.open("reader-1", expiry=60)
            >>> new = await session.subscribe("trams/+", replay="earliest")
            >>> (await session.replay()).delivered
            1
            >>> (await session.fetch()).entries[0].message.payload
            b'late'
        """
        return await self._executor.execute(
            commands.session_replay(
                self.client_id,
                count=count,
                max_bytes=max_bytes,
                queue=queue,
                epoch=self._own_epoch(),
                prefix=self.prefix,
            )
        )

    async def deliver(self, *messages: Message) -> int:
        """Delivers messages as a publish that matches a subscription would, each with its own QoS and retain flag.

        With QoS 1 and 2 they are stored in the queue; whoever is connected gets them at once.

        Returns:
            How many were stored, or heard.

        Raises:
            ArgumentError: no message, or one that cannot be stored.
            FencedError: the session has a newer owner.
            NoSessionError: the handle has an epoch, and the session is gone.

        Example:
            >>> session = hold.session("device-9")
            >>> await session.deliver(Message(topic="alarms/now", payload=b"fire", qos=1))
            1
            >>> (await session.fetch()).entries[0].message.payload
            b'fire'
        """
        return await self._executor.execute(
            commands.session_deliver(self.client_id, messages, epoch=self._own_epoch(), prefix=self.prefix)
        )

    async def _replay_text(self, start: Start) -> str:
        clock = replay_needs_clock(start)
        return replay_text(start, await self._executor.execute_anywhere(server_time_ms()) if clock else 0)

    async def _hand_retained(self, topic_filter: str, options: SubscriptionOptions) -> None:
        kept = await self._executor.execute(commands.topic_retained_values(topic_filter, count=commands.MAX_RETAINED))
        own = self.client_id if isinstance(self.client_id, str) else self.client_id.decode("utf-8", "surrogateescape")
        copies = [message.copy_for(options) for message in kept if not (options.no_local and message.publisher == own)]
        for start in range(0, len(copies), DELIVERED_AT_ONCE):
            await self.deliver(*copies[start : start + DELIVERED_AT_ONCE])

    async def unsubscribe(self, *filters: str) -> tuple[bool, ...]:
        """Ends subscriptions.

        Returns:
            True for each filter that was there.

        Raises:
            InvalidTopicError: a filter that MQTT forbids.
            ArgumentError: no filter.
            FencedError: the session has a newer owner.
        """
        return await self._executor.execute(
            commands.session_unsubscribe(self.client_id, filters, epoch=self._own_epoch(), prefix=self.prefix)
        )

    async def subscriptions(self) -> dict[str, SubscriptionOptions]:
        """The session's topic filters with their options."""
        return await self._executor.execute(commands.session_subscriptions(self.client_id, prefix=self.prefix))
