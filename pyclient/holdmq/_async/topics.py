"""Publishing to MQTT topics, and what they retain."""

from dataclasses import replace

from holdmq import commands
from holdmq._async.executor import AsyncExecutor
from holdmq._durations import Duration
from holdmq.errors import ArgumentError
from holdmq.replies import Message, Payload, ProducerChunk, Publisher, Text


class AsyncTopics:
    """The topics of the server; the attribute `topics` of `AsyncHoldMQ`.

    Tasks of one event loop may share it; a process that is forked after its first use makes its own (`ForkedError`).

    Example:
        >>> await hold.topics.publish("weather/bergen", b"rain", retain=True)
        0
        >>> await hold.topics.retained("weather/#")
        ('weather/bergen',)
        >>> (await hold.topics.retained_message("weather/bergen")).payload
        b'rain'
    """

    def __init__(self, executor: AsyncExecutor) -> None:
        self._executor = executor

    async def publish(
        self,
        topic: str,
        payload: Payload,
        *,
        qos: int = 0,
        retain: bool = False,
        ttl: Duration | None = None,
        publisher: Text | Publisher | None = None,
        properties: bytes = b"",
        producer: ProducerChunk | None = None,
    ) -> int:
        """Publishes a message to every session with a filter that matches.

        With QoS 1 and 2 it waits in the sessions' queues until it is acknowledged; with QoS 0 it reaches those that are
        connected.

        Args:
            topic: a topic name, without wildcards.
            payload: the content; empty with `retain` removes the retained message.
            qos: 0, 1 or 2.
            retain: keep it as the topic's retained message.
            ttl: how long it lives, in seconds, up to 2147483647 (default: the session's); 0: for who is connected now.
            publisher: the client id of the publisher (for subscriptions with `no_local`), or more of it.
            properties: MQTT 5.0 properties as they are encoded on the wire, without their length.
            producer: who publishes, and the number of the message: sent again, it is not published again. Not in a
                cluster.

        In a cluster every node is asked for its own slots, one after the other: each session gets the message once,
        also while slots are being moved. If a node fails in between, the sessions of some nodes have it and others do
        not; publishing it again may then deliver it twice.

        Returns:
            How many sessions it reached; -1 if the publisher's packet identifier was received before and is not
            completed, or if the producer's chunk was published before.

        Raises:
            InvalidTopicError: a topic name that MQTT forbids.
            ArgumentError: a number outside of its range, or an option without the one that it needs.
            FencedError: the publisher's session has a newer owner, or the producer a larger epoch.
            NoSessionError: the publisher's epoch was given, and the session is gone.
            MovingError: slots were on their way for too long; the sessions in the others have the message.
        """
        if self._executor.is_cluster and isinstance(publisher, Publisher) and (publisher.epoch or publisher.packet_id):
            raise ArgumentError(
                "publisher has an epoch or a packet_id; expected neither in a cluster: no step has all nodes"
            )
        if self._executor.is_cluster and producer is not None:
            raise ArgumentError("producer was given; expected none in a cluster: no step has all nodes")
        return await self._executor.execute(
            commands.topic_publish(
                topic,
                payload,
                qos=qos,
                retain=retain,
                ttl=ttl,
                publisher=publisher,
                properties=properties,
                producer=producer,
            )
        )

    async def retained(self, topic_filter: str, *, count: int | None = None) -> tuple[str, ...]:
        """Topics with a retained message that the filter matches, at most `count` (default 1000).

        Raises:
            InvalidTopicError: a filter that MQTT forbids.
        """
        return await self._executor.execute(commands.topic_retained(topic_filter, count=count))

    async def retained_messages(self, topic_filter: str, *, count: int | None = None) -> tuple[Message, ...]:
        """The retained messages of the topics that the filter matches, at most `count` (default 1000), by topic.

        Raises:
            InvalidTopicError: a filter that MQTT forbids.

        Example:
            >>> await hold.topics.publish("tides/bergen", b"high", retain=True)
            0
            >>> [(message.topic, message.payload) for message in await hold.topics.retained_messages("tides/+")]
            [('tides/bergen', b'high')]
        """
        return await self._executor.execute(commands.topic_retained_values(topic_filter, count=count))

    async def retained_message(self, topic: str) -> Message | None:
        """The retained message of a topic, None if there is none.

        Message and expiry are read one after the other: if it is replaced in between, the expiry is the new one's.

        Raises:
            InvalidTopicError: a topic name that MQTT forbids.
        """
        message = await self._executor.execute(commands.retained_fields(topic))
        if message is None:
            return None
        return replace(message, expires_ms=await self._executor.execute(commands.retained_expiry(topic)))
