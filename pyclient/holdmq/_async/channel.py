"""One channel: publish, read what it keeps, subscribe."""

import warnings
from collections.abc import AsyncIterator
from typing import Generic, cast

from holdmq import _arguments as arguments
from holdmq import commands
from holdmq._async.executor import AsyncExecutor
from holdmq._async.subscription import AsyncSubscription
from holdmq.errors import HoldMQWarning
from holdmq.replies import ChannelPolicy, Payload, ProducerChunk, Text, TextT


class AsyncChannel(Generic[TextT]):
    """A channel that can keep messages until they are read; made by `AsyncHoldMQ.channel`.

    In a cluster, only shard channels (`sharded=True`) keep messages, on the node that has the channel's slot.

    Tasks of one event loop may share it. A process that forks after its first use must make its own (`ForkedError`).

    Attributes:
        name: the channel's name.
        sharded: whether it is a shard channel.

    Examples:
        >>> weather = hold.channel("weather")
        >>> await weather.publish("sunny")
        0
        >>> await weather.publish("rain")
        0
        >>> [message async for message in weather.backlog()]
        [b'sunny', b'rain']
    """

    def __init__(self, executor: AsyncExecutor, name: Text, *, sharded: bool | None = None) -> None:
        commands.channel_last(name)  # a name that cannot be is refused here
        self._executor = executor
        self.name = name
        self.sharded = bool(arguments.optional_flag("sharded", sharded))
        self._keeps_nothing = sharded is None and executor.is_cluster

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    async def publish(self, message: Payload, *, producer: ProducerChunk | None = None) -> int:
        """Publishes a message. The channel's policy says whether it is kept: never, without a subscriber, or always.

        Kept messages are in a list of the module's own (`CHANNEL.KEY`), never in a key of the application.

        Args:
            message: the content.
            producer: the producer and the number of the message. A repetition with the same number is not published
                again. In a cluster, for shard channels only.

        Returns:
            The number of receivers, or -1 if the producer published this chunk before.

        Raises:
            ArgumentError: an invalid producer.
            FencedError: the producer has a newer epoch.
            redis.RedisError: any other error of the server or of redis-py.

        Examples:
            >>> news = hold.channel("news")
            >>> await news.publish("elected", producer=ProducerChunk("desk", epoch=1, chunk=7))
            0
            >>> await news.publish("elected", producer=ProducerChunk("desk", epoch=1, chunk=7))
            -1
        """
        publish = commands.channel_spublish if self.sharded else commands.channel_publish
        command = publish(self.name, message, producer=producer)
        if self._keeps_nothing:
            warnings.warn(
                f"a cluster keeps nothing of the channel {self.name!r}, whose subscribers may be on other nodes: "
                "expected sharded=True for a shard channel, or sharded=False for one whose messages need not be kept",
                HoldMQWarning,
                stacklevel=2,
            )
        return await self._executor.execute(command)

    async def last(self) -> TextT | None:
        """Returns the channel's most recent message, or None if it was not kept. Removes nothing.

        Raises:
            WrongTypeError: the key of the channel's list holds another type.

        Examples:
            >>> receivers = await hold.channel("status").publish("green")
            >>> await hold.channel("status").last()
            b'green'
        """
        return cast("TextT | None", await self._executor.execute(commands.channel_last(self.name)))

    async def backlog(self, page: int = 100) -> AsyncIterator[TextT]:
        """Yields the messages that the channel keeps, oldest first. Removes nothing.

        Reads a page at a time, and includes messages that are published meanwhile. If messages leave the list
        meanwhile (trimmed, delivered or popped), the same number of messages may be skipped.

        Args:
            page: messages per round trip, 1 to 10000.

        Raises:
            ArgumentError: the page size is out of range.
        """
        commands.check_page(page)
        start = 0
        while True:
            messages = await self._executor.execute(commands.channel_range(self.name, start, start + page - 1))
            for message in messages:
                yield cast("TextT", message)
            start += len(messages)
            if len(messages) < page:
                return

    async def policy(self) -> ChannelPolicy | None:
        """Returns the policy rule that applies to the channel. None if no rule does: then nothing is kept.

        Examples:
            >>> (await hold.channel("weather").policy()).deliver.value
            'last'
        """
        return await self._executor.execute(commands.channel_policy(self.name))

    def subscribe(
        self,
        *,
        timeout: float | None = None,
        reconnect: float = 60.0,
        ping_interval: float = 15.0,
        skip_repeats: bool = False,
    ) -> AsyncSubscription[TextT]:
        """Subscribes to the channel. Kept messages come first. Arguments as for `AsyncHoldMQ.subscribe`."""
        return AsyncSubscription(
            self._executor,
            "ssubscribe" if self.sharded else "subscribe",
            (self.name,),
            timeout=timeout,
            reconnect=reconnect,
            ping_interval=ping_interval,
            skip_repeats=skip_repeats,
        )
