"""A SUBSCRIBE or UNSUBSCRIBE judged filter by filter: what the server is asked for, and what the client is told.

Pure functions.  A filter that cannot be served is refused by itself, the others are granted [MQTT-3.8.4-6].
"""

from collections.abc import Container

from holdmq.core import InvalidTopicError, check_topic_filter, mqtt
from holdmq_bridge.access import Permissions
from holdmq_bridge.command import Argument
from holdmq_bridge.reasons import Reason

_QOS = 0x03


def judge(
    packet: mqtt.Subscribe, permissions: Permissions, present: Container[bytes], room: int
) -> tuple[list[int], list[Argument]]:
    """A reason for each filter (the QoS granted, or why not), and the pairs `filter options` for the server.

    Args:
        packet: the SUBSCRIBE.
        permissions: what the client may do.
        present: filters that it has already, as far as known.
        room: how many more it may have.
    """
    (identifier,) = packet.properties.subscription_identifiers or (0,)
    reasons: list[int] = []
    arguments: list[Argument] = []
    for entry in packet.subscriptions:
        known = entry.topic_filter in present
        reason = _reason(entry, permissions, has_room=known or room > 0)
        reasons.append(reason)
        if reason <= _QOS:
            room -= not known
            arguments += [entry.topic_filter, f"{entry.options}:{identifier}" if identifier else entry.options]
    return reasons, arguments


def _reason(entry: mqtt.Subscription, permissions: Permissions, *, has_room: bool) -> int:
    if not entry.valid:
        return Reason.BAD_TOPIC_FILTER
    if not permissions.may_subscribe(entry.topic_filter):
        return Reason.NOT_AUTHORIZED
    if not has_room:
        return Reason.QUOTA_EXCEEDED
    return entry.qos


def unsubscribe_reason(topic_filter: bytes) -> int:
    """SUCCESS if the server can be asked."""
    try:
        check_topic_filter(topic_filter)
    except InvalidTopicError:
        return Reason.BAD_TOPIC_FILTER
    return Reason.SUCCESS
