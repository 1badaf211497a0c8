"""A producer numbers its batches, so that a batch that is sent again after a lost reply is stored once."""

import time

from holdmq import commands
from holdmq._async.executor import AsyncExecutor
from holdmq._guard import AsyncGuard, NotCopied
from holdmq.commands import Command
from holdmq.durations import Duration
from holdmq.errors import HoldMQError, ProducerError, library_of
from holdmq.replies import AddResult, Payload, Text


class AsyncProducer(NotCopied):
    """Adds messages to a session and stores each batch once; made by `AsyncSession.producer`.

    If the connection is lost before the reply, redis-py may send the batch again. The server then answers as it did
    the first time. If redis-py gives up, the outcome is unknown: `pending` is True, and `retry` sends the same batch
    again, as often as needed.

    One task of one process uses it at a time. Give each task its own producer with its own name.

    Attributes:
        name: the producer's name.
        sequence: the number of its next batch.

    Examples:
        >>> producer = hold.session("device-9").producer("station")
        >>> (await producer.add(b"snow", b"rain")).packet_ids
        (1, 2)
        >>> (await producer.add(b"sun")).packet_ids
        (3,)
    """

    def __init__(
        self, executor: AsyncExecutor, client_id: Text, name: Text, *, sequence: int | None, prefix: Text
    ) -> None:
        self.name = name
        self.sequence = time.time_ns() // 1000 if sequence is None else sequence
        commands.session_add(client_id, [b""], producer=(name, self.sequence), prefix=prefix)  # refuses what cannot be
        self._executor = executor
        self._client_id = client_id
        self._prefix = prefix
        self._pending: Command[AddResult] | None = None
        self._refused_last: Command[AddResult] | None = None  # what `retry` may send again besides
        self._refused: type[Exception] = library_of(executor.client).ResponseError
        self._guard = AsyncGuard(f"the producer {name!r} of the session {client_id!r}", now=True)

    @property
    def pending(self) -> bool:
        """Whether the outcome of the last batch is unknown."""
        return self._pending is not None

    async def add(self, *payloads: Payload, limit: int | None = None, ttl: Duration | None = None) -> AddResult:
        """Appends up to 1000 messages. Arguments and errors as for `AsyncSession.add`.

        Raises:
            HoldMQError: the outcome of the previous batch is unknown.
            ProducerError: another producer used this batch number before.
            redis.ConnectionError: the outcome of this batch is unknown.
            ForkedError: another process made the producer.
            ConcurrentUseError: another task is using the producer.
        """
        with self._guard:
            return await self._send_new(
                commands.session_add(
                    self._client_id,
                    payloads,
                    limit=limit,
                    ttl=ttl,
                    producer=(self.name, self.sequence),
                    prefix=self._prefix,
                )
            )

    async def add_expiring(
        self, *messages: tuple[Payload, Duration | None], limit: int | None = None, ttl: Duration | None = None
    ) -> AddResult:
        """Appends messages like `AsyncSession.add_expiring`. Errors as for `add`."""
        with self._guard:
            return await self._send_new(
                commands.session_add_expiring(
                    self._client_id,
                    messages,
                    limit=limit,
                    ttl=ttl,
                    producer=(self.name, self.sequence),
                    prefix=self._prefix,
                )
            )

    async def retry(self) -> AddResult:
        """Sends the batch with the unknown outcome again. Errors as for `add`.

        This also sends a refused batch again, until the next batch is sent. The batch keeps its number, so it is stored
        once, even if the library sent it before the refusal. A refusal changes nothing.

        Raises:
            HoldMQError: the outcome of every batch is known.
        """
        with self._guard:
            batch = self._pending or self._refused_last
            if batch is None:
                raise HoldMQError("the outcome of every batch is known; expected one that failed")
            return await self._send(batch, again=True)

    async def _send_new(self, batch: Command[AddResult]) -> AddResult:
        if self._pending is not None:
            raise HoldMQError("the outcome of the batch before is not known; expected a retry() before the next batch")
        self._pending = batch
        return await self._send(batch, again=False)

    async def _send(self, batch: Command[AddResult], *, again: bool) -> AddResult:
        try:
            result = await self._executor.execute(batch)
        except self._refused:
            if not again:  # after a retry, the first attempt may still have succeeded
                # The library may have sent it before this refusal, and that may have been stored: the number is used.
                self.sequence += 1
                self._refused_last = batch
                self._pending = None
            raise
        if self._pending is not None:
            self.sequence += 1  # first: an interrupt between the two must not leave a used number for the next batch
        self._pending = self._refused_last = None
        if not result.packet_ids:
            raise ProducerError(
                f"the batch was not stored: the producer {self.name!r} has used number {self.sequence - 1} before; "
                "expected a name of its own for each producer, or a larger sequence"
            )
        return result
