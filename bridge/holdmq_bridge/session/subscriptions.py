"""A SUBSCRIBE or UNSUBSCRIBE judged filter by filter: what the server is asked for, and what the client is told.

Pure functions.  A filter that cannot be served is refused by itself, the others are granted [MQTT-3.8.4-6].

The server takes or refuses a command as a whole, and may refuse a replay; so each that reads history is a command of
its own, behind the one for all others.
"""

from collections.abc import Container, Generator, Iterable
from dataclasses import dataclass, field

from holdmq.core import is_topic_filter, mqtt
from holdmq_bridge.base.command import Argument
from holdmq_bridge.base.reasons import Reason
from holdmq_bridge.session.access import Permissions
from holdmq_bridge.session.actions import NotGranted
from holdmq_bridge.session.replay_start import StartError, parse_start, split_filter, start_of_properties

MOST_AT_ONCE = 200
"""Filters of one command to the server."""

_LEVELS_OF_ONE = 8
_BYTES_OF_ONE = 256
_SHARES_OF_ONE = 10

_QOS = 0x03
_NO_LOCAL = 0x04
_RETAIN_AS_PUBLISHED = 0x08
_SHARE = b"$share/"


def weight(topic_filter: bytes) -> int:
    """As how many subscriptions a filter counts.

    What it costs the server grows with its levels (each publish may have to go down all of them), with its bytes (they
    are taken out in one step when the session ends), and most for a share, which gets its own copy of each message.
    """
    levels = topic_filter.count(b"/") + 1
    most = max(-(-levels // _LEVELS_OF_ONE), -(-len(topic_filter) // _BYTES_OF_ONE))
    return max(most, _SHARES_OF_ONE) if topic_filter.startswith(_SHARE) else most


@dataclass(slots=True)
class Part:
    """What one command asks for.

    Attributes:
        arguments: pairs `filter options`.
        places: of its filters in the packet.
        reads: whether history is read for it.
        otherwise: asked for if the server refuses it; empty: nothing.
    """

    arguments: list[Argument]
    places: list[int]
    reads: bool = False
    otherwise: list[Argument] = field(default_factory=list)


@dataclass(slots=True)
class Judged:
    """A SUBSCRIBE, judged.

    Attributes:
        reasons: for each filter the QoS granted, or why not.
        parts: what the server is asked for, in order.
        filters: the packet's.
        detail: why a filter was refused, in words; empty if there is nothing to say.
        same: places of filters that the packet names again; the server is asked for the last one.
    """

    reasons: list[int]
    parts: list[Part]
    filters: list[bytes]
    detail: str = ""
    reads: bool = False  # something that reads history was granted
    same: list[tuple[int, int]] = field(default_factory=list)  # (again, first)

    def granted(self) -> None:
        """The server has taken the first part."""
        self.reads = self.parts.pop(0).reads or self.reads

    def not_granted(self) -> list[NotGranted]:
        """What is refused for good, in one action; none if there is nothing."""
        refused = [place for place, reason in enumerate(self.reasons) if reason > _QOS]
        if not refused:
            return []
        first = refused[0]
        return [NotGranted(len(refused), self.filters[first], self.reasons[first], self.detail)]

    def refused(self, detail: str, reason: int | None) -> None:
        """The server refuses the first part; `reason` for it, if there is a better one than that it cannot be."""
        part = self.parts.pop(0)
        if part.otherwise:
            self.parts.insert(0, Part(part.otherwise, part.places))
            return
        self.detail = detail
        asked = set(part.places)
        is_denied = reason == Reason.NOT_AUTHORIZED  # to the bridge's own user, whatever was asked for
        told = (reason or Reason.IMPLEMENTATION) if part.reads or is_denied else Reason.UNSPECIFIED
        for place in [*part.places, *(again for again, first in self.same if first in asked)]:
            self.reasons[place] = told


def judging(
    packet: mqtt.Subscribe,
    permissions: Permissions,
    present: Container[bytes],
    room: int,
    *,
    application: bool = False,
    bridge: bool = False,
    now_ms: int = 0,
) -> Generator[None, None, Judged]:
    """What becomes of each filter; a step for each, because many filters under many rules take long.

    Args:
        packet: the SUBSCRIBE.
        permissions: what the client may do.
        present: filters that it has already, as far as known.
        room: how many more it may have, by `weight`.
        application: its subscriptions read history for ever.
        bridge: it is another broker's and has no word for the options that it needs.
        now_ms: the time, for starts that are ages.
    """
    (identifier,) = packet.properties.subscription_identifiers or (0,)
    asked = start_of_properties(packet.properties.user_properties)
    judged = Judged([], [], [entry.topic_filter for entry in packet.subscriptions])
    live = Part([], [])
    at: dict[bytes, int] = {}  # in live
    for place, entry in enumerate(packet.subscriptions):
        yield
        try:
            topic_filter, start = _meant(entry, asked, now_ms)
        except StartError as error:
            judged.reasons.append(Reason.BAD_TOPIC_FILTER)
            judged.detail = str(error)
            continue
        known = topic_filter in present
        counts = 0 if known else weight(topic_filter)
        reason = _reason(entry, topic_filter, permissions, has_room=counts <= room)
        judged.reasons.append(reason)
        if reason > _QOS:
            continue
        room -= counts
        bits = entry.options | (_of_a_bridge(topic_filter) if bridge else 0)
        options: str | int = f"{bits}:{identifier}" if identifier else bits
        is_cursor = application and not topic_filter.startswith(_SHARE)
        if start is None and not is_cursor:
            if topic_filter in at:  # one subscription, which gets the retained messages once
                live.arguments[2 * at[topic_filter] + 1] = options
                judged.same.append((place, live.places[at[topic_filter]]))
                continue
            at[topic_filter] = len(live.places)
            live.arguments += [topic_filter, options]
            live.places.append(place)
            continue
        part = Part([topic_filter, f"{options}@{start or ''}{'!' if is_cursor else ''}"], [place], reads=True)
        if start is None:  # what no store keeps comes to it as to others
            part.otherwise = [topic_filter, options]
        judged.parts.append(part)
    judged.parts[:0] = _in_pieces(live)
    return judged


def _in_pieces(part: Part) -> list[Part]:
    """Commands that keep the server for a moment only."""
    return [
        Part(part.arguments[2 * at : 2 * (at + MOST_AT_ONCE)], part.places[at : at + MOST_AT_ONCE])
        for at in range(0, len(part.places), MOST_AT_ONCE)
    ]


def _of_a_bridge(topic_filter: bytes) -> int:
    """No local is not for shared subscriptions [MQTT-3.8.3-4]."""
    return _RETAIN_AS_PUBLISHED if topic_filter.startswith(_SHARE) else _RETAIN_AS_PUBLISHED | _NO_LOCAL


def _meant(entry: mqtt.Subscription, asked: bytes | None, now_ms: int) -> tuple[bytes, str | None]:
    if not entry.valid:
        return entry.topic_filter, None
    topic_filter, start = split_filter(entry.topic_filter)
    start = asked if start is None else start
    return topic_filter, None if start is None else parse_start(start, now_ms)


def _reason(entry: mqtt.Subscription, topic_filter: bytes, permissions: Permissions, *, has_room: bool) -> int:
    if not entry.valid or not is_topic_filter(topic_filter):
        return Reason.BAD_TOPIC_FILTER
    if not permissions.may_subscribe(topic_filter):
        return Reason.NOT_AUTHORIZED
    if not has_room:
        return Reason.QUOTA_EXCEEDED
    return entry.qos


def unsubscribing(topic_filters: Iterable[bytes]) -> Generator[None, None, list[tuple[bytes, int]]]:
    """`unsubscribed_filter` of each, in steps as `judging`."""
    meant = []
    for topic_filter in topic_filters:
        yield
        meant.append(unsubscribed_filter(topic_filter))
    return meant


def denied(topic_filters: Iterable[bytes], permissions: Permissions) -> Generator[None, None, list[bytes]]:
    """Those that the client may not subscribe to, in steps as `judging`."""
    found = []
    for topic_filter in topic_filters:
        yield
        if not permissions.may_subscribe(topic_filter):
            found.append(topic_filter)
    return found


def unsubscribed_filter(topic_filter: bytes) -> tuple[bytes, int]:
    """The filter that is meant, and SUCCESS if the server can be asked."""
    try:
        meant, _ = split_filter(topic_filter)
    except StartError:
        return topic_filter, Reason.BAD_TOPIC_FILTER
    return meant, Reason.SUCCESS if is_topic_filter(meant) else Reason.BAD_TOPIC_FILTER
