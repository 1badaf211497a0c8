# Generated from pyclient/holdmq/_async/topics.py by tools/generate_sync.py; change that file.
"""MQTT topics: publishes messages and reads retained ones."""

from dataclasses import replace

from holdmq import commands
from holdmq._sync.executor import Executor
from holdmq.durations import Duration
from holdmq.errors import ArgumentError
from holdmq.replies import Message, Payload, ProducerChunk, Publisher, Text


class Topics:
    """Publishes to MQTT topics and reads retained messages; the attribute `topics` of `HoldMQ`.

    Threads may share it, and so may processes that fork: each process gets its own connections.

    Examples:
        >>> hold.topics.publish("weather/bergen", b"rain", retain=True)
        0
        >>> hold.topics.retained("weather/#")
        ('weather/bergen',)
        >>> (hold.topics.retained_message("weather/bergen")).payload
        b'rain'
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def publish(
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
        """Publishes a message to every session that has a matching filter.

        With QoS 1 and 2, the message stays in the queues of the sessions until it is acknowledged. With QoS 0, it
        reaches connected sessions only.

        In a cluster, the node of the topic's slot says which slots have subscribers, and their nodes are visited at the
        same time. If it knows no routes, or the user may not ask it (`ROUTE.CHECK`), all primaries are visited. Each
        session gets the message once, even while slots are moving. If a reply is lost, some sessions have the message
        and others may not: the error names the slots. Publishing again may then deliver it twice.

        Args:
            topic: a topic name, without wildcards.
            payload: the content. An empty payload with `retain` removes the retained message.
            qos: 0, 1 or 2.
            retain: whether to keep it as the topic's retained message.
            ttl: how long it lives, in seconds, up to 2147483647 (default: the session's). 0 delivers it to connected
                sessions only.
            publisher: the client id of the publisher, or a `Publisher`. Subscriptions with `no_local` need it.
            properties: MQTT 5.0 properties, encoded as on the wire, without their length.
            producer: the producer and the number of the message. A repetition with the same number is not published
                again. Not in a cluster.

        Returns:
            How many sessions the message reached. -1 if the publisher's packet identifier is still in use by an
            earlier message, or if the producer published this chunk before.

        Raises:
            InvalidTopicError: MQTT forbids this topic name.
            ArgumentError: a number out of range, or an option without another one that it needs.
            FencedError: the publisher's session has a newer owner, or the producer a newer epoch.
            NoSessionError: the publisher's epoch was given, and the session does not exist.
            MovingError: slots were moving for too long. Sessions in the other slots have the message.
            redis.ConnectionError: in a cluster, a node could not be reached for too long, or its reply was lost.
        """
        if self._executor.is_cluster and isinstance(publisher, Publisher) and (publisher.epoch or publisher.packet_id):
            raise ArgumentError(
                "publisher has an epoch or a packet_id; expected neither in a cluster: no step has all nodes"
            )
        if self._executor.is_cluster and producer is not None:
            raise ArgumentError("producer was given; expected none in a cluster: no step has all nodes")
        return self._executor.execute(
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

    def retained(self, topic_filter: str, *, count: int | None = None) -> tuple[str, ...]:
        """Returns the topics that match the filter and have a retained message: at most `count` (default 1000).

        Raises:
            InvalidTopicError: MQTT forbids this filter.
        """
        return (self._executor.execute(commands.topic_retained_pages(topic_filter, count=count))).entries

    def retained_messages(self, topic_filter: str, *, count: int | None = None) -> tuple[Message, ...]:
        """Returns the retained messages whose topics match the filter: at most `count` (default 1000), by topic.

        Raises:
            InvalidTopicError: MQTT forbids this filter.

        Examples:
            >>> hold.topics.publish("tides/bergen", b"high", retain=True)
            0
            >>> [(message.topic, message.payload) for message in hold.topics.retained_messages("tides/+")]
            [('tides/bergen', b'high')]
        """
        return (self._executor.execute(commands.topic_retained_values_pages(topic_filter, count=count))).entries

    def retained_message(self, topic: str) -> Message | None:
        """Returns the retained message of a topic, or None.

        The message and its expiry are read one after the other. If the message is replaced in between, the expiry is
        that of the new message.

        Raises:
            InvalidTopicError: MQTT forbids this topic name.
        """
        message = self._executor.execute(commands.retained_fields(topic))
        if message is None:
            return None
        return replace(message, expires_ms=self._executor.execute(commands.retained_expiry(topic)))
