# Generated from pyclient/holdmq/_async/subscription.py by tools/generate_sync.py; change that file.
"""A subscription to channels or patterns: an iterator of messages that survives the loss of its connection.

It uses a pub/sub object of redis-py and makes a new one when the connection is lost. redis-py's own reconnection is not
used (see `read`), so that kept messages are never delivered to a connection that is not read. Invariants:

1. Nothing is buffered here. A message is read from the connection when the caller asks for it. One message is kept if
   the call that read it is cancelled. TCP holds back a reader that is too slow. In the end the server disconnects it
   (`client-output-buffer-limit`), which shows as a reconnection.
2. Every wait is bounded: by the caller's timeout, by `ping_interval` on a silent connection, by `reconnect` after a
   loss.
3. One thread of one process reads. Several need a subscription each (`_guard`).
"""

import random
import time
from types import TracebackType
from typing import Any, Generic, Self

from holdmq import _arguments as arguments
from holdmq import commands
from holdmq._feed import Feed, Kind
from holdmq._guard import Guard, NotCopied
from holdmq._io import (
    cancellations,
    close,
    handle,
    ping,
    raise_if_cancelled,
    read,
    sleep,
)
from holdmq._sync.executor import Executor
from holdmq.errors import UnexpectedReplyError, library_of, translation
from holdmq.replies import ChannelMessage, Deliver, Text, TextT

MAX_NAMES = 10_000
"""Most channels or patterns of one subscription."""
CONFIRMATION_TIMEOUT_S = 10.0
"""How long the server may take to confirm."""
FIRST_BACKOFF_S = 0.05
LAST_BACKOFF_S = 2.0
SHORTEST_WAIT_S = 0.001
"""Even a caller who does not want to wait lets other threads run for this long."""
SLICE_S = 1.0
"""The longest single wait, so that `close` from elsewhere is noticed."""


class Subscription(NotCopied, Generic[TextT]):
    """Messages of channels or patterns; made by `subscribe`, `psubscribe` and `ssubscribe`.

    Kept messages come first. Iterate over the subscription, or call `get`. It connects when it is entered as a context
    manager, or with the first `get`. One thread of one process reads it at a time. It belongs to the process that
    connected it.

    After a lost connection it subscribes again, and the server delivers what it has kept. With `deliver=held`, that is
    every message published meanwhile, if there was no other subscriber. With `deliver=last`, it is the last message,
    even if it was delivered before (then it is marked `repeat`). The server does not keep what is published before it
    notices that the connection is lost. A session (`Session`) has no such gap.

    A message is live for certain (`held` is False) if the channel delivers nothing to new subscribers, or if the
    message came after the answer to a PING that was sent after the confirmation. In other cases `held` is None: for
    patterns, with `deliver=held`, and for a user who may not see the policy.

    Attributes:
        reconnections: how often it had to subscribe again.
    """

    def __init__(
        self,
        executor: Executor,
        kind: Kind,
        names: tuple[Text, ...],
        *,
        timeout: float | None = None,
        reconnect: float = 60.0,
        ping_interval: float = 15.0,
        skip_repeats: bool = False,
        node: Any = None,  # the only node of a cluster to subscribe at
    ) -> None:
        commands.check_names("patterns" if kind == "psubscribe" else "channels", names, MAX_NAMES)
        self._executor = executor
        self._kind: Kind = kind
        self._names = tuple(dict.fromkeys(names))
        self._timeout = arguments.optional_wait("timeout", timeout)
        self._reconnect = arguments.wait("reconnect", reconnect)
        self._ping_interval = arguments.wait("ping_interval", ping_interval, above=True)
        self._skip_repeats = arguments.flag("skip_repeats", skip_repeats)
        self._node = node
        self._feed = Feed()
        self._guard = Guard(f"the subscription to {names[0]!r}", now=False)
        self._pubsub: Any = None
        self._part: Any = None  # what has the connection: of a cluster's pub/sub object the one for the node
        # A reply that was read and not digested, or a message that was not handed out: the reader was interrupted.
        self._left: tuple[Any, ChannelMessage[TextT] | None] = (None, None)
        self._opened = False
        self._closed = False
        self._reading = False
        self._heard = 0.0  # when the connection last showed life
        self._pinged = False  # and whether a PING is out since then
        self._lost_since: float | None = None
        self._backoff = FIRST_BACKOFF_S
        self._next_try = 0.0
        library = library_of(executor.client)
        # AskError is the base of MovedError: the slot of a shard channel is elsewhere now.
        self._lost = (
            library.ConnectionError,
            library.TimeoutError,
            library.AskError,
            library.ClusterError,  # the nodes are not agreed about the slot, or the cluster is down
            OSError,
        )
        self._hopeless = library.AuthenticationError

    @property
    def reconnections(self) -> int:
        """How often the subscription had to subscribe again."""
        return self._feed.reconnections

    def __enter__(self) -> Self:
        with self._guard:
            self._reading = True
            try:
                self._open()
            finally:
                self._reading = False
                if self._closed:
                    self._discard()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ChannelMessage[TextT]:
        message = self.get(self._timeout)
        if message is None:
            raise StopIteration
        return message

    def close(self) -> None:
        """Ends the subscription and returns its connection to the pool. A second call does nothing.

        If a `get` is waiting, it ends within a second and returns the connection. A forked process leaves the
        connection alone.
        """
        self._closed = True
        if not self._reading and not self._guard.is_elsewhere:
            self._discard()

    def get(self, timeout: float | None = None) -> ChannelMessage[TextT] | None:
        """Returns the next message. None if no message came in time, or after `close`.

        Args:
            timeout: in seconds. None waits forever. The time to connect comes on top.

        Raises:
            redis.ConnectionError: the server could not be reached for `reconnect` seconds.
            redis.ResponseError: the server refused the subscription.
            ForkedError: another process connected the subscription.
            ConcurrentUseError: another thread is reading the subscription.
        """
        arguments.optional_wait("timeout", timeout)
        with self._guard:
            self._reading = True
            try:
                if not self._opened:
                    self._open()
                return self._next(None if timeout is None else time.monotonic() + timeout)
            finally:
                self._reading = False
                if self._closed:
                    self._discard()

    def _next(self, deadline: float | None) -> ChannelMessage[TextT] | None:
        before = cancellations()
        while not self._closed:
            if self._left[1] is None:
                left = SLICE_S if deadline is None else deadline - time.monotonic()
                self._step(max(SHORTEST_WAIT_S, min(left, SLICE_S, self._ping_interval)))
                raise_if_cancelled(before)
            message = self._left[1]
            if message is not None:
                self._left = (None, None)
            if message is not None and not (self._skip_repeats and message.repeat):
                return message
            if message is None and deadline is not None and time.monotonic() >= deadline:
                return None
        return None

    def _step(self, wait: float) -> None:
        """Reads one reply, or waits this long for it. Without a connection, tries to connect."""
        if self._pubsub is None:
            self._connect(wait)
            return
        try:
            if self._left[0] is None:
                self._left = (read(self._part, wait), None)
            if self._left[0] is None:
                self._watch()
                return
            self._heard, self._pinged = time.monotonic(), False
            self._digest_left()
        except self._lost as error:
            self._lose(error)

    def _digest_left(self) -> None:
        """Keeps the reply for the next call after an interrupt, but not after an error."""
        try:
            self._left = (None, self._digest(self._left[0]))
        except Exception:
            self._left = (None, None)
            raise

    def _digest(self, reply: Any) -> ChannelMessage[TextT] | None:
        if not isinstance(reply, (list, tuple)):  # RESP3 answers a PING with a plain string
            self._feed.pong(reply)
            return None
        event = handle(self._part, reply)
        if event["type"] in ("message", "pmessage", "smessage"):
            return self._feed.message(event["channel"], event["data"], event["pattern"])
        if event["type"] == "pong":
            self._feed.pong(event["data"])
        elif event["type"] == self._kind and self._feed.confirm(event["channel"]):
            self._left = (None, None)  # a second confirmation would mean another life
            ping(self._part, self._feed.fence)
        elif event["type"] == "sunsubscribe":  # not requested: the slot has moved
            raise library_of(self._executor.client).ConnectionError(f"the slot of {event['channel']!r} has moved")
        return None

    def _watch(self) -> None:
        """Sends a PING on a silent connection, and gives the connection up if no answer comes."""
        silence = time.monotonic() - self._heard
        if silence >= 2 * self._ping_interval and self._pinged:
            raise library_of(self._executor.client).ConnectionError(
                f"no answer to a PING for {self._ping_interval} seconds on the connection of a subscription"
            )
        if silence >= self._ping_interval and not self._pinged:
            self._pinged = True
            ping(self._part, "holdmq-alive")

    def _open(self) -> None:
        before = cancellations()
        while self._pubsub is None and not self._closed:
            self._connect(SLICE_S)
            raise_if_cancelled(before)

    def _connect(self, wait: float) -> None:
        """Tries once to subscribe, or waits for part of the time until the next attempt."""
        pause = self._next_try - time.monotonic()
        if pause > 0:
            sleep(min(pause, wait))
            return
        try:
            self._subscribe()
        except self._lost as error:
            self._lose(error)
        else:
            self._opened, self._lost_since, self._backoff = True, None, FIRST_BACKOFF_S

    def _lose(self, error: Exception) -> None:
        """Schedules the next attempt after a lost connection. Raises after `reconnect` seconds."""
        self._discard()
        if self._closed:
            return
        now = time.monotonic()
        self._lost_since = now if self._lost_since is None else self._lost_since
        deadline = self._lost_since + self._reconnect
        # Not all clients shall come back at the same moment. The last try is at the deadline.
        self._next_try = min(deadline, now + self._backoff * random.uniform(0.5, 1.0))  # noqa: S311
        self._backoff = min(2 * self._backoff, LAST_BACKOFF_S)
        if isinstance(error, self._hopeless) or now >= deadline:
            self._lost_since, self._backoff, self._next_try = None, FIRST_BACKOFF_S, 0.0
            raise error

    def _subscribe(self) -> None:
        """Connects, subscribes and waits for the server's confirmation."""
        self._feed.begin(self._deliveries())
        try:
            with translation(self._executor.client):
                self._pubsub = self._executor.pubsub(self._node)
                getattr(self._pubsub, self._kind)(*self._names)
                self._part = next(iter(getattr(self._pubsub, "node_pubsub_mapping", {}).values()), self._pubsub)
                self._await_confirmation()
        except BaseException:
            self._discard()
            raise

    def _await_confirmation(self) -> None:
        """Waits for the confirmation. The first reply is a confirmation or an error."""
        self._heard, self._pinged = time.monotonic(), False
        while not self._feed.confirmed:
            if time.monotonic() - self._heard > CONFIRMATION_TIMEOUT_S:
                raise library_of(self._executor.client).TimeoutError(
                    f"the subscription was not confirmed within {CONFIRMATION_TIMEOUT_S} seconds"
                )
            reply = read(self._part, SLICE_S)
            message = None if reply is None else self._digest(reply)
            if message is not None:
                raise UnexpectedReplyError(f"a message of {message.channel!r} came before its confirmation")

    def _deliveries(self) -> dict[Text, Deliver]:
        """What each channel delivers to new subscribers. Empty for patterns, and if the user may not see policies."""
        self._executor.require_module()
        if self._kind == "psubscribe":
            return {}
        if self._kind == "ssubscribe" and self._executor.is_cluster:
            self._executor.find_slot(self._names)
        try:
            policies = self._executor.execute_all([commands.channel_policy(name) for name in self._names])
        except library_of(self._executor.client).NoPermissionError:
            return {}
        pairs = zip(self._names, policies, strict=True)
        return {name: policy.deliver if policy else Deliver.NONE for name, policy in pairs}

    def _discard(self) -> None:
        pubsub, self._pubsub, part, self._part = self._pubsub, None, self._part, None
        if part is not None and part is not pubsub:
            close(part)
        if pubsub is not None:
            close(pubsub)
