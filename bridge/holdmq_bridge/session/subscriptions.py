"""Judges a SUBSCRIBE or UNSUBSCRIBE filter by filter: what to send to the server, and what to answer the client.

Pure functions.  A filter that cannot be served is refused alone [MQTT-3.8.4-6].

The server accepts or refuses a whole command, and may refuse a replay.  So each filter that reads history is a command
of its own, after the command for all others.
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

    The server's cost grows with the levels (a publish may visit all of them) and with the bytes (removed in one step
    when the session ends).  A share costs most: it gets its own copy of each message.
    """
    levels = topic_filter.count(b"/") + 1
    most = max(-(-levels // _LEVELS_OF_ONE), -(-len(topic_filter) // _BYTES_OF_ONE))
    return max(most, _SHARES_OF_ONE) if topic_filter.startswith(_SHARE) else most


@dataclass(slots=True)
class Part:
    """Filters for one command to the server.

    Attributes:
        arguments: pairs `filter options`.
        places: positions of the filters in the packet.
        reads_history: whether they read history.
        fallback: arguments to send if the server refuses these; empty: none.
    """

    arguments: list[Argument]
    places: list[int]
    reads_history: bool = False
    fallback: list[Argument] = field(default_factory=list)


@dataclass(slots=True)
class Judgement:
    """The outcome for a SUBSCRIBE, so far.

    Attributes:
        reasons: for each filter the granted QoS, or a reason code.
        parts: still to be sent to the server, in order.
        filters: of the packet.
        detail: why a filter was refused, in words; may be empty.
        reads_history: a filter that reads history was granted.
        repeated: (again, first), positions of a filter that the packet repeats.  The last options count.
    """

    reasons: list[int]
    parts: list[Part]
    filters: list[bytes]
    detail: str = ""
    reads_history: bool = False
    repeated: list[tuple[int, int]] = field(default_factory=list)

    def accept_part(self) -> None:
        """The server accepted the first part."""
        self.reads_history = self.parts.pop(0).reads_history or self.reads_history

    def refusals(self) -> list[NotGranted]:
        """All refused filters in one action, for the operator."""
        refused = [place for place, reason in enumerate(self.reasons) if reason > _QOS]
        if not refused:
            return []
        first = refused[0]
        return [NotGranted(len(refused), self.filters[first], self.reasons[first], self.detail)]

    def refuse_part(self, detail: str, reason: int | None) -> None:
        """The server refused the first part; `reason`: its reason code, if the error has one."""
        part = self.parts.pop(0)
        if part.fallback:
            self.parts.insert(0, Part(part.fallback, part.places))
            return
        self.detail = detail
        requested = set(part.places)
        is_denied = reason == Reason.NOT_AUTHORIZED  # the bridge's own user may not subscribe
        answer = (reason or Reason.IMPLEMENTATION) if part.reads_history or is_denied else Reason.UNSPECIFIED
        for place in [*part.places, *(again for again, first in self.repeated if first in requested)]:
            self.reasons[place] = answer


def judge(
    packet: mqtt.Subscribe,
    permissions: Permissions,
    present: Container[bytes],
    room: int,
    *,
    is_application: bool = False,
    is_bridge: bool = False,
    now_ms: int = 0,
) -> Generator[None, None, Judgement]:
    """Decides on each filter, one in each step: many filters under many rules take long.

    Args:
        packet: the SUBSCRIBE.
        permissions: of the client.
        present: filters that the session has already, as far as known.
        room: how many more it may have, by `weight`.
        is_application: its subscriptions keep their place in history forever.
        is_bridge: the client is another broker, which cannot ask for the options that it needs.
        now_ms: the time, for starts that are ages.
    """
    (identifier,) = packet.properties.subscription_identifiers or (0,)
    requested = start_of_properties(packet.properties.user_properties)
    judged = Judgement([], [], [entry.topic_filter for entry in packet.subscriptions])
    live = Part([], [])
    at: dict[bytes, int] = {}  # index in live.places
    for place, entry in enumerate(packet.subscriptions):
        yield
        try:
            topic_filter, start = _resolved(entry, requested, now_ms)
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
        bits = entry.options | (_of_a_bridge(topic_filter) if is_bridge else 0)
        options: str | int = f"{bits}:{identifier}" if identifier else bits
        is_cursor = is_application and not topic_filter.startswith(_SHARE)
        if start is None and not is_cursor:
            if topic_filter in at:  # one subscription gets the retained messages once
                live.arguments[2 * at[topic_filter] + 1] = options
                judged.repeated.append((place, live.places[at[topic_filter]]))
                continue
            at[topic_filter] = len(live.places)
            live.arguments += [topic_filter, options]
            live.places.append(place)
            continue
        part = Part([topic_filter, f"{options}@{start or ''}{'!' if is_cursor else ''}"], [place], reads_history=True)
        if start is None:  # topics that no store keeps are delivered live
            part.fallback = [topic_filter, options]
        judged.parts.append(part)
    judged.parts[:0] = _in_pieces(live)
    return judged


def _in_pieces(part: Part) -> list[Part]:
    """Cuts it into commands that occupy the server only briefly."""
    return [
        Part(part.arguments[2 * at : 2 * (at + MOST_AT_ONCE)], part.places[at : at + MOST_AT_ONCE])
        for at in range(0, len(part.places), MOST_AT_ONCE)
    ]


def _of_a_bridge(topic_filter: bytes) -> int:
    """Options for a bridge's filter.  A shared subscription may not have No Local [MQTT-3.8.3-4]."""
    return _RETAIN_AS_PUBLISHED if topic_filter.startswith(_SHARE) else _RETAIN_AS_PUBLISHED | _NO_LOCAL


def _resolved(entry: mqtt.Subscription, requested: bytes | None, now_ms: int) -> tuple[bytes, str | None]:
    if not entry.valid:
        return entry.topic_filter, None
    topic_filter, start = split_filter(entry.topic_filter)
    start = requested if start is None else start
    return topic_filter, None if start is None else parse_start(start, now_ms)


def _reason(entry: mqtt.Subscription, topic_filter: bytes, permissions: Permissions, *, has_room: bool) -> int:
    if not entry.valid or not is_topic_filter(topic_filter):
        return Reason.BAD_TOPIC_FILTER
    if not permissions.may_subscribe(topic_filter):
        return Reason.NOT_AUTHORIZED
    if not has_room:
        return Reason.QUOTA_EXCEEDED
    return entry.qos


def filters_to_unsubscribe(topic_filters: Iterable[bytes]) -> Generator[None, None, list[tuple[bytes, int]]]:
    """The `unsubscribed_filter` of each, one in each step."""
    resolved = []
    for topic_filter in topic_filters:
        yield
        resolved.append(unsubscribed_filter(topic_filter))
    return resolved


def denied_filters(topic_filters: Iterable[bytes], permissions: Permissions) -> Generator[None, None, list[bytes]]:
    """Filters that the client may not subscribe to; examines one in each step."""
    found = []
    for topic_filter in topic_filters:
        yield
        if not permissions.may_subscribe(topic_filter):
            found.append(topic_filter)
    return found


def unsubscribed_filter(topic_filter: bytes) -> tuple[bytes, int]:
    """The filter without a replay's start, and SUCCESS if it is valid."""
    try:
        resolved, _ = split_filter(topic_filter)
    except StartError:
        return topic_filter, Reason.BAD_TOPIC_FILTER
    return resolved, Reason.SUCCESS if is_topic_filter(resolved) else Reason.BAD_TOPIC_FILTER
