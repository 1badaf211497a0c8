"""A producer of history numbers its messages, so that a message that is sent again is stored once."""

import time

from holdmq import history_commands as commands
from holdmq._async.executor import AsyncExecutor
from holdmq._guard import AsyncGuard, NotCopied
from holdmq._wire import chunk_words
from holdmq.commands import Command
from holdmq.durations import Duration
from holdmq.errors import HoldMQError, ProducerError, library_of
from holdmq.history_replies import HistoryPlace
from holdmq.replies import Payload, ProducerChunk, Text


class AsyncHistoryProducer(NotCopied):
    """Appends messages to a store and stores each one once; made by `AsyncHistoryStore.producer`.

    If the connection is lost before the reply, redis-py may send the message again. The server then answers as it did
    the first time. If redis-py gives up, the outcome is unknown: `pending` is True, and `retry` sends the same message
    again, as often as needed. A later producer with the same name and a larger epoch fences this one.

    One task of one process uses it at a time. Give each task its own producer with its own name.

    Attributes:
        name: the producer's name.
        epoch: its epoch.
        chunk: the number of its next message.

    Examples:
        >>> await hold.history.create("rain", "rain/#")
        >>> producer = hold.history.store("rain").producer("gauge-1")
        >>> (await producer.append("rain/oslo", b"3 mm")).sequence
        1
        >>> (await producer.append("rain/oslo", b"4 mm")).sequence
        2
    """

    def __init__(self, executor: AsyncExecutor, store: Text, name: Text, *, epoch: int | None) -> None:
        self.name = name
        self.epoch = time.time_ns() // 1000 if epoch is None else epoch
        self.chunk = 0
        chunk_words(self._next)  # refuses what cannot be
        self._executor = executor
        self._store = store
        self._pending: Command[HistoryPlace] | None = None
        self._refused_last: Command[HistoryPlace] | None = None  # what `retry` may send again besides
        self._refused: type[Exception] = library_of(executor.client).ResponseError
        self._guard = AsyncGuard(f"the producer {name!r} of the store {store!r}", now=True)

    @property
    def _next(self) -> ProducerChunk:
        return ProducerChunk(self.name, self.epoch, self.chunk)

    @property
    def pending(self) -> bool:
        """Whether the outcome of the last message is unknown."""
        return self._pending is not None

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
    ) -> HistoryPlace:
        """Appends a message. Arguments and errors as for `AsyncHistoryStore.append`.

        Raises:
            HoldMQError: the outcome of the previous message is unknown.
            FencedError: a producer with the same name has a larger epoch.
            ProducerError: a producer with the same name and epoch used this number before.
            redis.ConnectionError: the outcome of this message is unknown.
            ForkedError: another process made the producer.
            ConcurrentUseError: another task is using the producer.
        """
        with self._guard:
            if self._pending is not None:
                raise HoldMQError(
                    "the outcome of the message before is not known; expected a retry() before the next one"
                )
            self._pending = commands.history_append(
                self._store,
                commands.message_of(topic, payload, qos, retain, publisher, properties),
                ttl=ttl,
                producer=self._next,
            )
            return await self._send(self._pending, again=False)

    async def retry(self) -> HistoryPlace:
        """Sends the message with the unknown outcome again. Errors as for `append`.

        This also sends a refused message again, until the next message is sent. The message keeps its number, so it is
        stored once, even if the library sent it before the refusal. A refusal changes nothing.

        Raises:
            HoldMQError: the outcome of every message is known.
        """
        with self._guard:
            message = self._pending or self._refused_last
            if message is None:
                raise HoldMQError("the outcome of every message is known; expected one that failed")
            return await self._send(message, again=True)

    async def _send(self, message: Command[HistoryPlace], *, again: bool) -> HistoryPlace:
        try:
            place = await self._executor.execute(message)
        except self._refused:
            if not again:  # after a retry, the first attempt may still have succeeded
                # The library may have sent it before this refusal, and that may have been stored: the number is used.
                self.chunk += 1
                self._refused_last = message
                self._pending = None
            raise
        if self._pending is not None:
            self.chunk += 1  # first: an interrupt between the two must not leave a used number for the next message
        self._pending = self._refused_last = None
        if place.sequence == 0:
            raise ProducerError(
                f"the message was not stored: the producer {self.name!r} has used number {self.chunk - 1} of epoch "
                f"{self.epoch} before; expected a name of its own for each producer, or a larger epoch"
            )
        return place
