# Generated from pyclient/holdmq/_async/channel.py by tools/generate_sync.py; change that file.
"""One channel: publish, look at what it keeps, subscribe."""

import warnings
from collections.abc import Iterator
from typing import Generic, cast

from holdmq import _arguments as arguments
from holdmq import commands
from holdmq._sync.executor import Executor
from holdmq._sync.subscription import Subscription
from holdmq.errors import HoldMQWarning
from holdmq.replies import ChannelPolicy, Payload, ProducerChunk, Text, TextT


class Channel(Generic[TextT]):
    """A channel whose messages wait until somebody is there to read them; made by `channel`.

    In a cluster only shard channels (`sharded=True`) keep messages, on the node that has the channel's slot.

    Threads may share it, and processes that fork: each gets connections of its own.

    Attributes:
        name: the channel.
        sharded: whether it is a shard channel.

    Example:
        >>> weather = hold.channel("weather")
        >>> weather.publish("sunny")
        0
        >>> weather.publish("rain")
        0
        >>> [message for message in weather.backlog()]
        [b'sunny', b'rain']
    """

    def __init__(self, executor: Executor, name: Text, *, sharded: bool | None = None) -> None:
        commands.channel_last(name)  # a name that cannot be is refused here
        self._executor = executor
        self.name = name
        self.sharded = bool(arguments.optional_flag("sharded", sharded))
        self._keeps_nothing = sharded is None and executor.is_cluster

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    def publish(self, message: Payload, *, producer: ProducerChunk | None = None) -> int:
        """Publishes a message; by the channel's policy it is kept, if nobody hears it or always.

        It is kept in a list of its own (`CHANNEL.KEY`): keys of an application are never touched.

        Args:
            message: the content.
            producer: who publishes, and the number of the message: sent again, it is not published again. In a cluster
                for shard channels only.

        Returns:
            How many receivers there were; -1 if the producer's chunk was published before.

        Raises:
            ArgumentError: a producer that cannot be.
            FencedError: the producer has a larger epoch by now.
            redis.RedisError: whatever the server or redis-py reports.

        Example:
            >>> news = hold.channel("news")
            >>> news.publish("elected", producer=ProducerChunk("desk", epoch=1, chunk=7))
            0
            >>> news.publish("elected", producer=ProducerChunk("desk", epoch=1, chunk=7))
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
        return self._executor.execute(command)

    def last(self) -> TextT | None:
        """The channel's most recent message, None if it is not kept; removes nothing.

        Raises:
            WrongTypeError: the key of the channel's list holds no list.

        Example:
            >>> receivers = hold.channel("status").publish("green")
            >>> hold.channel("status").last()
            b'green'
        """
        return cast("TextT | None", self._executor.execute(commands.channel_last(self.name)))

    def backlog(self, page: int = 100) -> Iterator[TextT]:
        """The messages that the channel keeps, oldest first; removes nothing.

        Reads a page at a time. What is published meanwhile is read too; if messages leave the list meanwhile
        (trimmed, handed over, popped), as many may be passed over.

        Args:
            page: messages for each round trip, 1 to 10000.

        Raises:
            ArgumentError: a page outside of its range.
        """
        commands.check_page(page)
        start = 0
        while True:
            messages = self._executor.execute(commands.channel_range(self.name, start, start + page - 1))
            for message in messages:
                yield cast("TextT", message)
            start += len(messages)
            if len(messages) < page:
                return

    def policy(self) -> ChannelPolicy | None:
        """The rule that holds for the channel, None if none does: then nothing is kept.

        Example:
            >>> (hold.channel("weather").policy()).deliver.value
            'last'
        """
        return self._executor.execute(commands.channel_policy(self.name))

    def subscribe(
        self,
        *,
        timeout: float | None = None,
        reconnect: float = 60.0,
        ping_interval: float = 15.0,
        skip_repeats: bool = False,
    ) -> Subscription[TextT]:
        """Its messages, what it has kept first; arguments as for `HoldMQ.subscribe`."""
        return Subscription(
            self._executor,
            "ssubscribe" if self.sharded else "subscribe",
            (self.name,),
            timeout=timeout,
            reconnect=reconnect,
            ping_interval=ping_interval,
            skip_repeats=skip_repeats,
        )
