# Generated from pyclient/holdmq/_async/session.py by tools/generate_sync.py; change that file.
"""One MQTT session: its queue, its owner and its subscriptions."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import cast

from holdmq import _arguments as arguments
from holdmq import commands, core
from holdmq._guard import Owner
from holdmq._history_times import replay_needs_clock, replay_text, server_time_ms
from holdmq._sync.executor import Executor
from holdmq._sync.producer import Producer
from holdmq._sync.routes import UntoldError
from holdmq.durations import Duration, Start
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
"""Messages per SESSION.DELIVER."""
PURGED_AT_ONCE = 1000


class Session:
    """The session of an MQTT client: its queue, its owner, its subscriptions; made by `HoldMQ.session`.

    After `open`, every writing command carries the epoch. The server refuses it (`FencedError`) once another process
    has opened the session. Without an epoch nothing is checked: the methods fill, read and subscribe the client's queue
    whether the session was opened or not.

    Threads may share it. The epoch belongs to the process that called `open`. A forked process has to open the session
    again (`ForkedError`).

    Attributes:
        client_id: the client's id.
        prefix: a prefix of the session's keys.
        epoch: the epoch to write under. 0 turns the check off.

    Examples:
        >>> session = hold.session("device-1")
        >>> opened = session.open("reader-1", expiry=3600)
        >>> (session.add(b"on", b"off")).packet_ids
        (1, 2)
        >>> page = session.fetch()
        >>> [(entry.packet_id, entry.value) for entry in page.entries]
        [(1, b'on'), (2, b'off')]
        >>> session.ack(1, 2)
        2
        >>> session.close()
    """

    def __init__(self, executor: Executor, client_id: Text, *, prefix: Text = b"", epoch: int = 0) -> None:
        commands.session_drop(client_id, epoch=epoch, prefix=prefix)  # what cannot be is refused here
        self._executor = executor
        self.client_id = client_id
        self.prefix = prefix
        self.epoch = epoch
        self._owner = Owner(f"the session {client_id!r}", now=False)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.client_id!r}, epoch={self.epoch})"

    def open(
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
        """Creates the session, or takes it over from its present owner. Later commands carry the new epoch.

        Args:
            owner: a name for the new owner.
            clean: whether to drop an existing session first.
            expiry: how long the session lives after it was closed, in seconds, 0 to 4294967295 (default 0).
            lease: how much longer it lives if the owner vanishes, in seconds (default 3600).
            bounds: limits of its queue. None uses the server's settings.
            user_bounds: limits of the user whose identity it has. None uses the server's settings.
            will: the message to publish if the connection is lost: by `close(will=True)`, or when the owner vanishes.
            identity: the user that the session belongs to. None checks nothing and keeps the present identity.

        Raises:
            ArgumentError: a number out of range.
            IdentityError: the session belongs to another identity.
            QuotaError: the server, or the identity, may have no further session.
            InvalidTopicError: MQTT forbids the topic of the will.
        """
        opened = self._executor.execute(
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
        """Raises unless this object has an epoch, which only an owner has."""
        if self.epoch == 0:
            raise NoSessionError(
                f"NOSESSION this handle of the session {self.client_id!r} has no epoch; expected open() before, or "
                "session(..., epoch=...)"
            )

    def _own_epoch(self) -> int:
        """Returns the epoch. Two processes must not share it: the server could not tell them apart."""
        if self._owner.is_elsewhere:
            self._owner.check()
        return self.epoch

    def touch(self) -> None:
        """Renews the lease.

        Raises:
            FencedError: the session has a newer owner.
            NoSessionError: this object has no epoch (`open` sets it), or the session does not exist.
        """
        touch = commands.session_touch(self.client_id, epoch=self._own_epoch(), prefix=self.prefix)
        self._check_epoch()
        self._executor.execute(touch)

    def close(self, *, expiry: Duration | None = None, sent: int | None = None, will: bool = False) -> None:
        """Ends the client's connection. The session lives on for `expiry` seconds; with 0 it is dropped.

        Args:
            expiry: in seconds, 0 to 4294967295. None keeps the expiry given to `open`.
            sent: the last serial that was handed to the client (see `sent`).
            will: True if the connection was lost: the will is published, after its delay. False discards the will.

        Raises:
            FencedError: the session has a newer owner.
            NoSessionError: this object has no epoch (`open` sets it), or the session does not exist.
        """
        close = commands.session_close(
            self.client_id, epoch=self._own_epoch(), expiry=expiry, sent=sent, will=will, prefix=self.prefix
        )
        self._check_epoch()
        self._executor.execute(close)

    def add(self, *payloads: Payload, limit: int | None = None, ttl: Duration | None = None) -> AddResult:
        """Appends messages to the queue.

        Args:
            payloads: one or more messages.
            limit: the maximum length of the queue, 1 to 65535 (default: the server's). The oldest messages are trimmed.
            ttl: how long each message lives, in seconds, 1 to 2147483647 (default: the server's).

        Raises:
            ArgumentError: no payload, or a number out of range.
            SessionFullError: all packet identifiers are in use.

        Examples:
            >>> session = hold.session("device-3")
            >>> (session.add(b"a", b"b", ttl=60)).packet_ids
            (1, 2)
            >>> (session.add(b"c", limit=2)).trimmed
            1
        """
        return self._executor.execute(
            commands.session_add(self.client_id, payloads, limit=limit, ttl=ttl, prefix=self.prefix)
        )

    def add_expiring(
        self, *messages: tuple[Payload, Duration | None], limit: int | None = None, ttl: Duration | None = None
    ) -> AddResult:
        """Appends messages that each have their own time to live.

        Args:
            messages: pairs of a payload and its time to live in seconds. None means `ttl`.
            limit: as for `add`.
            ttl: for messages whose time to live is None, as for `add`.

        Raises:
            ArgumentError: no message, or a number out of range.
            SessionFullError: all packet identifiers are in use.

        Examples:
            >>> result = hold.session("device-4").add_expiring((b"now", 5), (b"later", None))
            >>> result.serial
            2
        """
        return self._executor.execute(
            commands.session_add_expiring(self.client_id, messages, limit=limit, ttl=ttl, prefix=self.prefix)
        )

    def producer(self, name: Text, *, sequence: int | None = None) -> Producer:
        """Returns a producer. Each of its batches is stored once, however often it is sent.

        Args:
            name: the producer's name. A session remembers at most 1024 names. Only one producer may use a name at a
                time.
            sequence: the number of the first batch, larger than all that were used under this name. None uses the
                clock (microseconds since 1970), which also suits a restarted process.

        Raises:
            ArgumentError: a sequence outside of 1 to 2**63 - 1.
        """
        return Producer(self._executor, self.client_id, name, sequence=sequence, prefix=self.prefix)

    def import_messages(
        self,
        messages: Sequence[QueuedMessage],
        *,
        merge: bool = False,
        limit: int | None = None,
        last_packet_id: int | None = None,
        producer: tuple[Text, int] | None = None,
    ) -> ImportResult:
        """Imports a queue into the session in one step. Packet identifiers, serials, order and states are kept.

        Args:
            messages: at most 10000, oldest first. Import more with further calls and `merge`.
            merge: whether to append to existing messages. Packet identifiers already in use are changed; the result
                lists them.
            limit: the maximum length of the queue, 1 to 65535 (default: the server's). The oldest are left out.
            last_packet_id: the packet identifier assigned last (default: that of the last message).
            producer: a name and the number of the call, 1, 2, 3 …. A repeated call stores nothing.

        Raises:
            NotEmptyError: the session has messages, and `merge` is False.
            ArgumentError: too many messages, or a number out of range.
            CommandError: serials that do not increase, or an in-flight message after a queued one.

        Examples:
            >>> session = hold.session("device-11")
            >>> queue = [QueuedMessage(b"on", packet_id=7, serial=7), QueuedMessage(b"off", packet_id=8, serial=8)]
            >>> (session.import_messages(queue, last_packet_id=9)).stored
            2
            >>> (session.add(b"next")).packet_ids
            (10,)
        """
        return self._executor.execute(
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

    def fetch(
        self,
        *,
        after: int = 0,
        window: int | None = None,
        inflight: bool = False,
        count: int | None = None,
        max_bytes: int | None = None,
    ) -> Page:
        """Returns a page of the queue. Removes nothing except references to expired messages.

        Args:
            after: start after this serial. 0 is the beginning.
            window: return the messages that follow those in flight, and mark them as in flight. At most `window`
                messages are then unacknowledged (1 to 65535).
            inflight: return only messages in flight, for a client that reconnected.
            count: at most this many messages, 1 to 10000 (default 100).
            max_bytes: about this many bytes of payload, but at least one message (default 1048576).

        Raises:
            ArgumentError: a number out of range, or two of `after`, `window` and `inflight`.
            FencedError: the session has a newer owner.
        """
        return self._executor.execute(
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

    def pages(self, *, after: int = 0, count: int | None = None, max_bytes: int | None = None) -> Iterator[Page]:
        """Yields the queue page by page. Arguments and errors as for `fetch`.

        Examples:
            >>> session = hold.session("device-5")
            >>> added = session.add(b"a", b"b", b"c")
            >>> [len(page.entries) for page in session.pages(count=2)]
            [2, 1]
        """
        while True:
            page = self.fetch(after=after, count=count, max_bytes=max_bytes)
            yield page
            if not page.more:
                return
            if page.entries:
                after = page.entries[-1].serial
            elif not page.expired:
                raise UnexpectedReplyError("SESSION.FETCH replied that there is more, but nothing else")

    def entries(self, *, after: int = 0, count: int | None = None) -> Iterator[Entry]:
        """Yields the messages of the queue. Reads pages of `count` messages. Errors as for `fetch`.

        Examples:
            >>> session = hold.session("device-6")
            >>> added = session.add(b"a", b"b")
            >>> [entry.value for entry in session.entries()]
            [b'a', b'b']
        """
        for page in self.pages(after=after, count=count):
            yield from page.entries

    def ack(self, *packet_ids: int) -> int:
        """Removes acknowledged messages (PUBACK, PUBCOMP).

        Returns:
            How many of them were in the queue.

        Raises:
            ArgumentError: no packet identifier, or one outside of 1 to 65535.
            FencedError: the session has a newer owner.
        """
        return self._executor.execute(
            commands.session_ack(self.client_id, packet_ids, epoch=self._own_epoch(), prefix=self.prefix)
        )

    def ack_next(self, *packet_ids: int, count: int) -> AckResult:
        """Removes acknowledged messages and returns up to `count` of the next ones, in one step.

        A backlog then drains in order and at the client's pace, with one command per batch.

        Args:
            packet_ids: the acknowledged packet identifiers.
            count: 1 to 10000. To keep the window constant, pass the number of acknowledged messages.

        Raises:
            ArgumentError: no packet identifier, or a number out of range.
            FencedError: the session has a newer owner.

        Examples:
            >>> session = hold.session("device-8")
            >>> added = session.add(b"a", b"b", b"c")
            >>> [entry.value for entry in (session.fetch(window=2)).entries]
            [b'a', b'b']
            >>> acked = session.ack_next(1, count=1)
            >>> acked.removed, [entry.value for entry in acked.page.entries]
            (1, [b'c'])
        """
        return self._executor.execute(
            commands.session_ack_next(self.client_id, packet_ids, count, epoch=self._own_epoch(), prefix=self.prefix)
        )

    def sent(self, serial: int) -> None:
        """Records that messages up to `serial` reached the client by another way (deliveries of the inbox).

        Raises:
            ArgumentError: a serial below 0.
            FencedError: the session has a newer owner.
        """
        self._executor.execute(
            commands.session_sent(self.client_id, serial, epoch=self._own_epoch(), prefix=self.prefix)
        )

    def release(self, *packet_ids: int) -> int:
        """Records a PUBREC (QoS 2, outgoing): drops the payloads and keeps the packet identifiers until `ack`.

        Returns:
            How many of the messages were in the queue.

        Raises:
            ArgumentError: no packet identifier, or one outside of 1 to 65535.
            FencedError: the session has a newer owner.
        """
        return self._executor.execute(
            commands.session_release(self.client_id, packet_ids, epoch=self._own_epoch(), prefix=self.prefix)
        )

    def receive(self, packet_id: int) -> bool:
        """Records the packet identifier of an incoming PUBLISH with QoS 2.

        Returns:
            True if it is new, False for a repetition.

        Raises:
            ArgumentError: a packet identifier outside of 1 to 65535.
            FencedError: the session has a newer owner.
        """
        return self._executor.execute(
            commands.session_receive(self.client_id, packet_id, epoch=self._own_epoch(), prefix=self.prefix)
        )

    def complete(self, *packet_ids: int) -> int:
        """Records a PUBREL (QoS 2, incoming): frees the packet identifiers.

        Returns:
            How many of them were in use.

        Raises:
            ArgumentError: no packet identifier, or one outside of 1 to 65535.
            FencedError: the session has a newer owner.
        """
        return self._executor.execute(
            commands.session_complete(self.client_id, packet_ids, epoch=self._own_epoch(), prefix=self.prefix)
        )

    def last(self) -> int:
        """Returns the packet identifier assigned last, or 0."""
        return self._executor.execute(commands.session_last(self.client_id, prefix=self.prefix))

    def info(self) -> SessionInfo:
        """Returns the state of the session.

        Examples:
            >>> (hold.session("nobody").info()).exists
            False
        """
        return self._executor.execute(commands.session_info(self.client_id, prefix=self.prefix))

    def drop(self) -> int:
        """Removes the session with its queue and subscriptions.

        Returns:
            How many messages were removed.

        Raises:
            FencedError: the session has a newer owner.
        """
        return self._executor.execute(
            commands.session_drop(self.client_id, epoch=self._own_epoch(), prefix=self.prefix)
        )

    def purge(self) -> int:
        """Removes the messages that are in the queue now. The session and its subscriptions stay.

        Released messages (QoS 2) stay until the client completes them. Messages that arrive meanwhile may stay.

        Returns:
            How many messages were removed.

        Examples:
            >>> session = hold.session("device-9")
            >>> added = session.add(b"a", b"b")
            >>> session.purge(), (session.fetch()).entries
            (2, ())
        """
        last, after, removed = (self.info()).last_serial, 0, 0
        while after < last:
            entries = (self.fetch(after=after, count=PURGED_AT_ONCE)).entries
            if not entries:
                break
            ids = [entry.packet_id for entry in entries if entry.state is not EntryState.RELEASED]
            removed += self.ack(*ids) if ids else 0
            after = entries[-1].serial
        return removed

    def subscribe(
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

        With `replay`, the subscription starts in the past: at a time, or a time ago, in the forms that
        `History.start_replay` accepts (`earliest`, `24h`, a `datetime` …). The method `replay` then reads history
        into the session until it reaches the end. From there on the subscription is live. A text that ends with `!`
        makes the session an application, which always reads history.

        Args:
            filters: the topic filters.
            qos: the highest QoS to deliver, 0 to 2.
            no_local: whether to skip messages that the session's own client published.
            retain_as_published: whether to keep the publisher's retain flag.
            retain_handling: when to deliver retained messages. 0: at each subscribe; 1: if the subscription is new; 2:
                never.
            identifier: a subscription identifier, 1 to 268435455. 0 for none.
            replay: where to start reading history. None does not read history.

        Returns:
            True for each new filter, False for each one whose options were replaced.

        Raises:
            InvalidTopicError: MQTT forbids a filter.
            ArgumentError: no filter, or an option out of range.
            NoStoreError: no store keeps the topics to replay.
            FencedError: the session has a newer owner.
            NoSessionError: this object has an epoch, and the session does not exist.
            HoldMQError: in a cluster, a primary could not be told of the subscription. New filters are removed again.

        Examples:
            >>> session = hold.session("device-7")
            >>> opened = session.open("reader-1", expiry=60)
            >>> session.subscribe("weather/+/now", "alarms/#", qos=1)
            (True, True)
            >>> hold.topics.publish("weather/oslo/now", b"snow", qos=1)
            1
            >>> (session.fetch()).entries[0].message.payload
            b'snow'
        """
        options = SubscriptionOptions(qos, no_local, retain_as_published, retain_handling, identifier)
        wanted = {arguments.name("filter", topic_filter): topic_filter for topic_filter in filters}
        commands.session_subscribe(self.client_id, dict.fromkeys(wanted.values(), options))  # refuses what cannot be
        if replay is not None:
            options = replace(options, replay=self._replay_text(replay))
        return self.subscribe_each(dict.fromkeys(wanted.values(), options))

    def subscribe_each(self, filters: Mapping[str, SubscriptionOptions]) -> tuple[bool, ...]:
        """Subscribes the session to topic filters that each have their own options. Otherwise like `subscribe`.

        Matching retained messages are delivered to the session in the same atomic step. In a cluster, they are
        collected from all nodes afterwards. A message that is published meanwhile may then arrive twice, or before an
        older retained message.

        In a cluster, each primary is told of the subscriptions (`ROUTE.ADD`), so that publishers find them. More than
        256 filters are subscribed in several steps.
        """
        for topic_filter, options in arguments.mapping("filters", filters).items():
            arguments.instance(f"value of {topic_filter!r}", options, SubscriptionOptions)
            first = options if options.replay is None else replace(options, replay=replay_text(options.replay, 0))
            commands.session_subscribe(self.client_id, {topic_filter: first})  # refuses what cannot be
        filters = {
            topic_filter: options
            if options.replay is None
            else replace(options, replay=self._replay_text(options.replay))
            for topic_filter, options in filters.items()
        }
        if not self._executor.is_cluster:
            return self._executor.execute(
                commands.session_subscribe(self.client_id, filters, epoch=self._own_epoch(), prefix=self.prefix)
            )
        new = self._subscribe_routes(filters)
        for (topic_filter, options), is_new in zip(filters.items(), new, strict=True):
            is_shared = core.split_share(topic_filter) is not None  # it gets none (MQTT 5.0 section 4.8.2)
            if not is_shared and (options.retain_handling == 0 or (options.retain_handling == 1 and is_new)):
                self._hand_retained(topic_filter, options)
        return new

    def _subscribe_routes(self, filters: Mapping[str, SubscriptionOptions]) -> tuple[bool, ...]:
        """Subscribes in a cluster, where each primary must know. Filters that were new are removed if one does not."""
        commands.session_subscribe(self.client_id, filters)  # refuses what cannot be
        new: tuple[bool, ...] = ()
        pairs = list(filters.items())
        for at in range(0, len(pairs), commands.MAX_ROUTES):
            part = dict(pairs[at : at + commands.MAX_ROUTES])
            command = commands.session_subscribe_routes(
                self.client_id, part, epoch=self._own_epoch(), prefix=self.prefix
            )
            try:
                subscribed = self._executor.routes.subscribe(command, core.session_key(self.client_id))
            except UntoldError as untold:
                added = [one for one, is_new in zip(part, untold.subscribed.new, strict=True) if is_new]
                if added:
                    self.unsubscribe(*added)
                raise cast("Exception", untold.__cause__) from None
            new += subscribed.new
        return new

    def replay(
        self, *, count: int | None = None, max_bytes: int | None = None, queue: int | None = None
    ) -> ReplayResult:
        """Reads more history for subscriptions that start in the past, and delivers it to the session.

        Call it as long as the result has `behind`.

        Args:
            count: at most this many messages, 1 or more (default 1000).
            max_bytes: at most this many bytes, but at least one message (default 1 MiB).
            queue: read only while the queue has fewer messages than this (default 1000).

        Raises:
            ArgumentError: a number out of range.
            FencedError: the session has a newer owner.

        Examples:
            >>> hold.history.create("trams", "trams/#")
            >>> hold.topics.publish("trams/7", b"late", qos=1)
            0
            >>> session = hold.session("device-12")
            >>> opened = session.open("reader-1", expiry=60)
            >>> new = session.subscribe("trams/+", replay="earliest")
            >>> (session.replay()).delivered
            1
            >>> (session.fetch()).entries[0].message.payload
            b'late'
        """
        return self._executor.execute(
            commands.session_replay(
                self.client_id,
                count=count,
                max_bytes=max_bytes,
                queue=queue,
                epoch=self._own_epoch(),
                prefix=self.prefix,
            )
        )

    def deliver(self, *messages: Message) -> int:
        """Delivers messages to the session like matching publishes, each with its own QoS and retain flag.

        With QoS 1 and 2, they are stored in the queue. A connected client gets them at once.

        Returns:
            How many were stored or received.

        Raises:
            ArgumentError: no message, or one that cannot be stored.
            FencedError: the session has a newer owner.
            NoSessionError: this object has an epoch, and the session does not exist.

        Examples:
            >>> session = hold.session("device-9")
            >>> session.deliver(Message(topic="alarms/now", payload=b"fire", qos=1))
            1
            >>> (session.fetch()).entries[0].message.payload
            b'fire'
        """
        return self._executor.execute(
            commands.session_deliver(self.client_id, messages, epoch=self._own_epoch(), prefix=self.prefix)
        )

    def _replay_text(self, start: Start) -> str:
        clock = replay_needs_clock(start)
        return replay_text(start, self._executor.execute_anywhere(server_time_ms()) if clock else 0)

    def _hand_retained(self, topic_filter: str, options: SubscriptionOptions) -> None:
        every = commands.topic_retained_values_pages(topic_filter, count=commands.MAX_RETAINED)
        kept = (self._executor.execute(every)).entries
        own = self.client_id if isinstance(self.client_id, str) else self.client_id.decode("utf-8", "surrogateescape")
        copies = [message.copy_for(options) for message in kept if not (options.no_local and message.publisher == own)]
        for start in range(0, len(copies), DELIVERED_AT_ONCE):
            self.deliver(*copies[start : start + DELIVERED_AT_ONCE])

    def unsubscribe(self, *filters: str) -> tuple[bool, ...]:
        """Ends subscriptions.

        Returns:
            True for each filter that the session had.

        Raises:
            InvalidTopicError: MQTT forbids a filter.
            ArgumentError: no filter.
            FencedError: the session has a newer owner.
        """
        return self._executor.execute(
            commands.session_unsubscribe(self.client_id, filters, epoch=self._own_epoch(), prefix=self.prefix)
        )

    def subscriptions(self) -> dict[str, SubscriptionOptions]:
        """Returns the session's topic filters with their options, in as many round trips as it takes."""
        pages = commands.session_subscriptions_pages(self.client_id, prefix=self.prefix)
        return dict((self._executor.execute(pages)).filters)
