"""The results of HoldMQ's commands, the messages of its subscriptions, and options, as small frozen classes.

The synchronous and the asyncio client use the same classes.

1. Names and units are those of the commands: times to live are in seconds. Points in time are in milliseconds since
   1970-01-01 UTC, and their names end in `_ms`.
2. Payloads of sessions and topics are always `bytes`, and names are always `str`. Channels and their messages are what
   redis-py returns: `bytes`, or `str` with `decode_responses=True`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeAlias, TypeVar

from holdmq import _arguments as arguments
from holdmq import core
from holdmq.durations import Duration, Start
from holdmq.errors import ArgumentError

__all__ = [
    "AckResult",
    "AddResult",
    "BridgeRow",
    "ChannelMessage",
    "ChannelPolicy",
    "ChannelRow",
    "ChannelsPage",
    "ClientRow",
    "Deliver",
    "DryRunChannel",
    "DryRunReport",
    "DryRunSummary",
    "Entry",
    "EntryState",
    "GroupRow",
    "GroupsPage",
    "Hold",
    "ImportResult",
    "MatchRow",
    "MatchesPage",
    "Message",
    "OpenResult",
    "Overflow",
    "Page",
    "Payload",
    "ProducerChunk",
    "Publisher",
    "QueueBounds",
    "QueuedMessage",
    "ReplayResult",
    "RetainedPage",
    "SessionInfo",
    "SessionRow",
    "SessionsPage",
    "SubscriptionOptions",
    "SubscriptionsPage",
    "Text",
    "TextT",
    "UserBounds",
    "Will",
]

_SUBSCRIPTION_IDENTIFIER = 0x0B  # the property (MQTT 5.0, section 2.2.2.2)
MAX_MS = 2**48 - 1
"""The latest time that a record can have."""
MAX_TEXT_BYTES = 65535
"""The maximum length of a topic or a client id."""
MAX_IDENTIFIER = 2**28 - 1
"""The largest subscription identifier."""

Text: TypeAlias = bytes | str
"""A channel, a pattern or a message: `str` is sent as UTF-8."""

if TYPE_CHECKING:  # checkers bring typing_extensions along; a default is part of the language from 3.13 on
    import typing_extensions

    TextT = typing_extensions.TypeVar("TextT", bound=bytes | str, default=bytes)
    """The type of channels and their messages: `bytes`, or `str` for a client with `decode_responses=True`."""
else:
    TextT = TypeVar("TextT", bound=bytes | str)

Overflow: TypeAlias = Literal["drop-oldest", "drop-newest", "refuse", "wait"]
"""What happens to a message for a full queue.

The queue drops its oldest message or the new one, or the publish is refused with `QUOTA` (`refuse`) or `QUEUEFULL`
(`wait`, after which the publisher sends it again).
"""

Payload: TypeAlias = bytes | bytearray | memoryview | str
"""The content of a message: `str` is sent as UTF-8."""


class Hold(StrEnum):
    """Which messages a channel keeps."""

    NONE = "none"
    """None."""
    UNHEARD = "unheard"
    """Those without a receiver."""
    ALL = "all"
    """All of them."""


class Deliver(StrEnum):
    """What a new subscriber of a channel gets first."""

    NONE = "none"
    """Nothing."""
    LAST = "last"
    """The most recent message."""
    HELD = "held"
    """All kept messages, which then leave the channel's list."""


@dataclass(frozen=True, slots=True)
class ChannelPolicy:
    """The policy rule that applies to a channel.

    Attributes:
        glob: the pattern of the rule.
        hold: which messages are kept.
        last: whether the most recent message is kept even if it was received.
        maxlen: the maximum number of kept messages.
        ttl: how long the list lives after the last message, in seconds. 0 means forever.
        deliver: what a new subscriber gets first.
    """

    glob: str
    hold: Hold
    last: bool
    maxlen: int
    ttl: int
    deliver: Deliver


@dataclass(frozen=True, slots=True)
class DryRunChannel:
    """The counts of a dry run for one channel.

    Attributes:
        channel: the channel's name. Bytes that are not UTF-8 are surrogates.
        rule: the pattern of the policy rule that matches. None if no rule does.
        hold: which messages that rule keeps.
        unheard: messages without a receiver.
        messages: messages that would be kept, without regard to `maxlen` and `ttl`.
        bytes: the size of these messages.
        last: when the last of these messages was published, in seconds since 1970.
        key: whether the application had a key with the channel's name when one of the messages was published.
    """

    channel: str
    rule: str | None
    hold: Hold
    unheard: int
    messages: int
    bytes: int
    last: float
    key: bool


@dataclass(frozen=True, slots=True)
class DryRunSummary:
    """The totals of a dry run on one server.

    Attributes:
        policies: the policy list that is tried.
        running: whether the dry run is still running.
        started: when it started, in seconds since 1970.
        seconds: how long it has run.
        channels: how many channels were counted.
        messages: messages that would be kept, including those of channels left out of the report.
        bytes: the size of these messages.
        left_out_messages: messages of channels for which the report had no room.
        left_out_bytes: the size of these messages.
        denied: messages that would not be kept because the publisher may not write the channel's list.
        passed_over: messages that were not counted because the publisher may not run `CHANNEL.PUBLISH`.
    """

    policies: str
    running: bool
    started: float
    seconds: float
    channels: int
    messages: int
    bytes: int
    left_out_messages: int
    left_out_bytes: int
    denied: int
    passed_over: int


@dataclass(frozen=True, slots=True)
class DryRunReport:
    """The report of a dry run.

    Attributes:
        summaries: the totals: one in all, or one for each node of a cluster.
        channels: the counts by channel, most messages first.
    """

    summaries: tuple[DryRunSummary, ...]
    channels: tuple[DryRunChannel, ...]


@dataclass(frozen=True, slots=True)
class ChannelMessage(Generic[TextT]):
    """A message of a subscription.

    On the wire, a kept message looks like any other.

    Attributes:
        channel: the channel it was published on.
        data: the content.
        pattern: the pattern that matched. None for a subscription by name.
        held: False if the message was certainly published after the subscription began. None if the server may have
            kept it (see `Subscription`).
        repeat: whether this is probably a repetition. True for the first message of a channel after a reconnection, if
            the server may have kept it and it equals the last message that this subscription delivered from the
            channel, or the one delivered as kept before.
    """

    channel: TextT
    data: TextT
    pattern: TextT | None = None
    held: bool | None = None
    repeat: bool = False


@dataclass(frozen=True, slots=True)
class AddResult:
    """The result of `SESSION.ADD`.

    Attributes:
        packet_ids: the packet identifiers of the new messages, in the order of the payloads. 0 for a message that was
            trimmed at once. Empty for a batch older than the producer's last one, which is not stored again.
        serial: the serial of the last new message.
        trimmed: how many messages were removed because the queue was longer than its limit.
        expired: how many references were removed because their messages had expired.
    """

    packet_ids: tuple[int, ...]
    serial: int
    trimmed: int
    expired: int


@dataclass(frozen=True, slots=True)
class ImportResult:
    """The result of `SESSION.IMPORT`.

    Attributes:
        stored: how many of the messages are in the queue now. 0 for a repetition.
        last_serial: the serial of the last imported message.
        last_packet_id: the packet identifier assigned last.
        changed: pairs of a packet identifier that was in use, and the new one of the imported message.
        trimmed: how many old or new messages the limit left no room for.
        new: False if this call of the producer was carried out before.
    """

    stored: int
    last_serial: int
    last_packet_id: int
    changed: tuple[tuple[int, int], ...]
    trimmed: int
    new: bool


class EntryState(IntEnum):
    """How far the delivery of a queued message has come."""

    QUEUED = 0
    """Not sent to the client yet."""
    INFLIGHT = 1
    """Sent to the client and not acknowledged yet."""
    RELEASED = 2
    """QoS 2 after PUBREC: only the packet identifier is left."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A message in the queue of a session.

    Attributes:
        serial: its place in the queue. Serials only increase.
        packet_id: its packet identifier, 1 to 65535.
        state: queued, in flight or released.
        value: the stored value: a record (see `message`), or any other payload that was added.
    """

    serial: int
    packet_id: int
    state: EntryState
    value: bytes

    @property
    def message(self) -> "Message | None":
        """The decoded record. None for a released entry, of which only the packet identifier is left.

        Raises:
            ArgumentError: the value is not a publish record.
        """
        if self.state is EntryState.RELEASED:
            return None
        return Message.from_record(self.value)


@dataclass(frozen=True, slots=True)
class QueuedMessage:
    """A message to import into the queue of a session.

    Attributes:
        value: the value to store: a record (`Message.to_record`), a message as TBMQ stores it, or any other payload.
        packet_id: its packet identifier, 1 to 65535. 0 takes the session's next one.
        serial: its place in the queue, larger than that of the message before it. 0 takes the next one.
        state: queued, in flight or released. Messages in flight come before queued ones.
        ttl_ms: the rest of its time to live, in milliseconds. 0 takes the server's default.
    """

    value: Payload
    packet_id: int = 0
    serial: int = 0
    state: EntryState = EntryState.QUEUED
    ttl_ms: int = 0


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a session's queue.

    Attributes:
        entries: the messages, oldest first.
        more: whether more messages follow.
        expired: how many references were dropped because their messages had expired.
    """

    entries: tuple[Entry, ...]
    more: bool
    expired: int


@dataclass(frozen=True, slots=True)
class AckResult:
    """The result of `SESSION.ACK ... NEXT`.

    Attributes:
        removed: how many messages were removed.
        page: the next messages, which are now in flight.
    """

    removed: int
    page: Page


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """The result of `SESSION.REPLAY`.

    Attributes:
        delivered: how many messages of history were delivered to the session.
        behind: whether there is more to read.
        full: whether reading stopped because the queue is full.
        live: how many subscriptions have reached the end of history and are live now.
        missed: how many messages retention removed before they were read.
        stores: the stores that the session still reads.
    """

    delivered: int
    behind: bool
    full: bool
    live: int
    missed: int
    stores: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OpenResult:
    """The result of `SESSION.OPEN`.

    Attributes:
        epoch: the epoch of the new owner.
        present: whether an existing session was kept.
    """

    epoch: int
    present: bool


@dataclass(frozen=True, slots=True)
class QueueBounds:
    """Limits of a session's queue, in addition to `holdmq.session-limit`.

    Attributes:
        max_bytes: bytes of messages, up to 2^40. None uses `holdmq.session-bytes`.
        overflow: what happens to a message for the full queue. None uses `holdmq.session-overflow`.
    """

    max_bytes: int | None = None
    overflow: Overflow | None = None


@dataclass(frozen=True, slots=True)
class UserBounds:
    """Limits of the user whose identity a session has. Each is up to 2^40; 0 means no limit.

    Attributes:
        sessions: the user's sessions. One more is refused. None uses `holdmq.max-sessions-per-user`.
        queue_bytes: the bytes of messages in all queues of the user. None uses `holdmq.max-queue-bytes-per-user`.
        retained: the user's retained messages. None uses `holdmq.max-retained-per-user`.
    """

    sessions: int | None = None
    queue_bytes: int | None = None
    retained: int | None = None


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """The state of a session.

    Attributes:
        exists: whether the session was opened. A queue can exist without that.
        owner: the owner that opened it last. Empty if none did.
        identity: the user it belongs to. Empty if none was given.
        epoch: the epoch of the last owner. Each owner gets a larger one, even if the session was dropped in between. 0
            if it was not opened.
        connected: whether the client is connected to the owner.
        expiry: how long the session lives after it was closed, in seconds.
        messages: the number of references in its queue, including those of expired messages.
        bytes: the total size of the values of its messages.
        dropped: how many messages it lost because its queue was full.
        overflow: what happens to a message for its full queue: drop-oldest, drop-newest, refuse or wait.
        first_serial: the serial of the oldest message, or 0.
        last_serial: the serial of the newest message, or 0.
        last_packet_id: the packet identifier assigned last, or 0.
        subscriptions: how many filters it is subscribed to.
        ttl_ms: milliseconds until the session expires. None if it does not expire.
    """

    exists: bool
    owner: str
    identity: str
    epoch: int
    connected: bool
    expiry: int
    messages: int
    bytes: int
    dropped: int
    overflow: str
    first_serial: int
    last_serial: int
    last_packet_id: int
    subscriptions: int
    ttl_ms: int | None


@dataclass(frozen=True, slots=True)
class SessionRow:
    """One row of a list of sessions.

    Attributes:
        client_id: the client's id.
        connected: whether the client is connected to the owner.
        owner: the owner that opened the session last.
        messages: the number of references in its queue, including those of expired messages.
        key: the session key.
        identity: the user it belongs to. Empty if none was given.
    """

    client_id: str
    connected: bool
    owner: str
    messages: int
    key: str
    identity: str


BOUNDS_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000)
NONE_MEASURED = (0,) * (len(BOUNDS_MS) + 1)


def quantile_ms(below: Sequence[int], quantile: float) -> float | None:
    """A quantile of measured times, interpolated between bounds as Prometheus does; 5000 above all bounds.

    Args:
        below: how many were measured below each of the bounds and not below the one before, and above all of them.
        quantile: 0 to 1.
    """
    rank = quantile * sum(below)
    if not rank:
        return None
    low = 0
    for bound, count in zip(BOUNDS_MS, below, strict=False):
        if count and rank <= count:
            return round(low + (bound - low) * rank / count, 2)
        rank -= count
        low = bound
    return float(BOUNDS_MS[-1])


@dataclass(frozen=True, slots=True)
class ClientRow:
    """A connected client, as its bridge reports it.

    Attributes:
        client_id: the client's id.
        bridge: the name of the bridge that the client is connected to.
        user: the name that it logged in with. None for an anonymous client.
        address: the address that it connects from.
        version: the version of MQTT: 4 is 3.1.1, 5 is 5.0.
        received: messages from the client since it connected.
        received_rate: the present rate of these messages, per second.
        bytes_received: the size of the payloads of these messages.
        sent: messages to the client since it connected.
        sent_rate: the present rate of these messages, per second.
        bytes_sent: the size of the payloads of these messages.
        inflight: messages of QoS 1 and 2 that the client has not acknowledged.
        ready: messages for the client that the bridge has in memory.
    """

    client_id: str
    bridge: str
    user: str | None
    address: str
    version: int | None
    received: int
    received_rate: float
    bytes_received: int
    sent: int
    sent_rate: float
    bytes_sent: int
    inflight: int
    ready: int

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> "ClientRow":
        """Makes a row from a bridge's report, which may have unknown fields."""
        known: dict[str, Any] = {field.name: row.get(field.name) for field in fields(cls)}
        return cls(**known)


@dataclass(frozen=True, slots=True)
class BridgeRow:
    """An MQTT bridge process, as it reports itself.

    Attributes:
        name: the bridge's name, which is the owner of its sessions.
        host: the name of its machine.
        pid: its process id.
        version: its version of HoldMQ.
        started: when it started.
        clients: how many clients are connected.
        draining: whether it accepts no connections any more and disconnects its clients.
        publishes_received: messages from clients since it started.
        publishes_received_rate: the present rate of these messages, per second.
        messages_sent: messages to clients since it started.
        messages_sent_rate: the present rate of these messages, per second.
        loudest: its clients that publish most messages per second, at most 20.
        acknowledge_below_ms: how long publishers lately waited for acknowledgements: how many of the measured publishes
            took less than 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000 and 5000 ms and not less than the bound before, and
            how many took longer. All 0 if there were none, or if the bridge is older.
    """

    name: str
    host: str
    pid: int
    version: str
    started: datetime
    clients: int
    draining: bool
    publishes_received: int
    publishes_received_rate: float
    messages_sent: int
    messages_sent_rate: float
    loudest: tuple[ClientRow, ...]
    acknowledge_below_ms: tuple[int, ...]

    @property
    def acknowledge_p50_ms(self) -> float | None:
        """The median of these times; None if there were none."""
        return quantile_ms(self.acknowledge_below_ms, 0.5)

    @property
    def acknowledge_p99_ms(self) -> float | None:
        """The 99th percentile of these times; None if there were none."""
        return quantile_ms(self.acknowledge_below_ms, 0.99)

    @classmethod
    def of(cls, name: str, report: Mapping[str, str]) -> "BridgeRow":
        """Makes a row from the hash that a bridge writes."""
        return cls(
            name=name,
            host=report["host"],
            pid=int(report["pid"]),
            version=report["version"],
            started=datetime.fromtimestamp(float(report["started"]), UTC),
            clients=int(report["clients"]),
            draining=report.get("draining", "0") == "1",  # a bridge of 0.1 does not say it
            publishes_received=int(report["publishes_received"]),
            publishes_received_rate=float(report["publishes_received_rate"]),
            messages_sent=int(report["messages_sent"]),
            messages_sent_rate=float(report["messages_sent_rate"]),
            loudest=tuple(ClientRow.of(row) for row in json.loads(report["loudest"])),
            acknowledge_below_ms=tuple(
                map(int, json.loads(report.get("acknowledge_below_ms", "null")) or NONE_MEASURED)
            ),
        )


@dataclass(frozen=True, slots=True)
class SessionsPage:
    """The result of `SESSION.LIST`.

    Attributes:
        cursor: where to continue. None at the end.
        sessions: the sessions of this page.
    """

    cursor: str | None
    sessions: tuple[SessionRow, ...]


@dataclass(frozen=True, slots=True)
class MatchRow:
    """A subscription that a topic matches.

    Attributes:
        filter: the topic filter. That of a shared subscription begins with `$share/<group>/`.
        key: the session key, or that of the group's queue.
        client_id: the client's id. For a group: the filter.
        qos: the highest QoS to deliver. None for a group, where each member has its own.
        members: how many sessions the group has. None for a session.
    """

    filter: str
    key: str
    client_id: str
    qos: int | None
    members: int | None


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RetainedPage(Generic[T]):
    """A page of `TOPIC.RETAINED` with a cursor.

    Attributes:
        cursor: where the next page starts. None on the last page.
        entries: topics, or messages. There may be none, although there is a next page.
    """

    cursor: str | None
    entries: tuple[T, ...]


@dataclass(frozen=True, slots=True)
class SubscriptionsPage:
    """A page of `SESSION.SUBSCRIPTIONS` with a cursor.

    Attributes:
        cursor: where the next page starts. None on the last page.
        filters: the options of each filter. There may be none, although there is a next page.
    """

    cursor: str | None
    filters: "Mapping[str, SubscriptionOptions]"


@dataclass(frozen=True, slots=True)
class MatchesPage:
    """The result of `TOPIC.MATCH`.

    Attributes:
        cursor: where the next page starts. None if there is none.
        matches: the subscriptions.
        complete: whether no further subscription matches. Only the first 100,000 are listed.
    """

    cursor: str | None
    matches: tuple[MatchRow, ...]
    complete: bool


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A group of a shared subscription.

    Attributes:
        filter: the filter of the group, `$share/<group>/<filter>`.
        members: how many sessions subscribe to it.
        messages: messages in the group's queue, which no member could take.
    """

    filter: str
    members: int
    messages: int


@dataclass(frozen=True, slots=True)
class GroupsPage:
    """The result of `TOPIC.GROUPS`.

    Attributes:
        cursor: where the next page starts. None on the last page.
        groups: the groups.
    """

    cursor: str | None
    groups: tuple[GroupRow, ...]


@dataclass(frozen=True, slots=True)
class ChannelRow:
    """A channel of which messages are kept.

    Attributes:
        channel: the channel's name.
        held: how many messages it holds.
        keeps_last: whether its last message is kept apart from these.
    """

    channel: str
    held: int
    keeps_last: bool


@dataclass(frozen=True, slots=True)
class ChannelsPage:
    """The result of `CHANNEL.LIST`.

    Attributes:
        cursor: where the next page starts. None on the last page.
        channels: the channels.
    """

    cursor: str | None
    channels: tuple[ChannelRow, ...]


@dataclass(frozen=True, slots=True)
class SubscriptionOptions:
    """The options of an MQTT 5.0 subscription.

    Attributes:
        qos: the highest QoS to deliver, 0 to 2.
        no_local: whether to skip messages that the session's own client published.
        retain_as_published: whether to keep the publisher's retain flag.
        retain_handling: when to deliver retained messages. 0: at each subscribe; 1: if the subscription is new; 2:
            never.
        identifier: a number that each message delivered through this filter carries, 1 to 268435455 (MQTT 5.0, section
            3.8.2.1.2). 0 for none.
        replay: where to start reading history, in the forms that `History.start_replay` accepts. A text may end with
            `!`, for an application, which always reads history. In the options of an existing subscription: empty while
            it reads history, `!` for an application. None does not read history.

    Raises:
        ArgumentError: a value out of range.
    """

    qos: int = 1
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0
    identifier: int = 0
    replay: Start | None = None

    def __post_init__(self) -> None:
        for name, most in (("qos", 2), ("retain_handling", 2), ("identifier", MAX_IDENTIFIER)):
            object.__setattr__(self, name, arguments.any_whole(name, getattr(self, name), 0, most))
        for name in ("no_local", "retain_as_published"):
            object.__setattr__(self, name, arguments.flag(name, getattr(self, name)))

    @property
    def byte(self) -> int:
        """The options as one byte, as in MQTT 5.0, section 3.8.3.1."""
        return self.qos | self.no_local << 2 | self.retain_as_published << 3 | self.retain_handling << 4

    @property
    def text(self) -> str:
        """The options as commands take them: the byte, then `:` and the identifier, then `@` and the replay's start."""
        options = f"{self.byte}:{self.identifier}" if self.identifier else str(self.byte)
        if self.replay is None:
            return options
        if not isinstance(self.replay, str):
            raise arguments.wrong("replay", self.replay, "text, or None; subscribe_each takes all forms of a time")
        return f"{options}@{self.replay}"

    @classmethod
    def from_text(cls, text: str) -> "SubscriptionOptions":
        """Parses the text form of options.

        Raises:
            ArgumentError: the text has another form.
        """
        options, at, replay = text.partition("@")
        byte, colon, identifier = options.partition(":")
        if not byte.isdecimal() or (colon and not identifier.isdecimal()):
            raise ArgumentError(f"subscription options are {text!r}; expected a byte, or a byte and an identifier")
        return replace(cls.from_byte(int(byte)), identifier=int(identifier or 0), replay=replay if at else None)

    @classmethod
    def from_byte(cls, byte: int) -> "SubscriptionOptions":
        """Parses the byte of an MQTT 5.0 subscription.

        Raises:
            ArgumentError: the byte has reserved bits or reserved values.
        """
        if not 0 <= byte < 0x40:
            raise ArgumentError(f"subscription options are {byte!r}; expected 0 to 63 with no reserved bit set")
        return cls(byte & 3, bool(byte & 4), bool(byte & 8), byte >> 4)


class ProducerChunk(NamedTuple):
    """The number of a message of a producer. A repetition with the same number is not stored or published again.

    Attributes:
        id: the producer's name, 1 to 255 bytes.
        epoch: 0 to 2^53 - 1. A successor of the producer uses a larger one.
        chunk: 0 to 2^53 - 1. It increases within an epoch.
    """

    id: bytes | str
    epoch: int
    chunk: int


@dataclass(frozen=True, slots=True)
class Publisher:
    """The client, with a session, on whose behalf a message is published.

    Attributes:
        client_id: the client's id.
        epoch: publish only if this is the current epoch of the client's session. 0 does not check.
        packet_id: with QoS 2, the packet identifier of the client's PUBLISH. The server remembers it in the step that
            publishes, so that a repetition publishes nothing (`Session.complete` frees it).
        is_retry: with an epoch: all replies to the client's earlier publishes are here. After a publish was refused
            with `QueueFullError` or a `TRYAGAIN`, later ones are refused too, for up to 5 s, until one says this.
    """

    client_id: Text
    epoch: int = 0
    packet_id: int | None = None
    is_retry: bool = False


@dataclass(frozen=True, slots=True)
class Will:
    """A message that is published if a client's connection is lost (MQTT 5.0, section 3.1.2.5).

    Attributes:
        topic: a topic name, without wildcards.
        payload: the content.
        qos: 0, 1 or 2.
        retain: whether to keep it as the topic's retained message.
        delay: how many seconds after the loss it is published, 0 to 4294967295. It is published earlier if the session
            ends before.
        ttl: how long it lives after it was published, 0 to 4294967295 seconds. None uses the default.
        properties: MQTT 5.0 properties, encoded as on the wire, without their length.
    """

    topic: str
    payload: Payload = b""
    qos: int = 0
    retain: bool = False
    delay: Duration = 0
    ttl: Duration | None = None
    properties: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A published MQTT message, as it is stored.

    Attributes:
        topic: the topic it was published to.
        payload: the content.
        qos: the QoS of the publish, 0 to 2. In a queue: the QoS of the delivery.
        retain: the retain flag of the publish. In a queue: the flag of the delivery.
        time_ms: when it was published.
        expires_ms: when it expires. None if it does not expire.
        publisher: the client id of the publisher. Empty if it is unknown.
        properties: MQTT 5.0 properties, encoded as on the wire, without their length.
        share: the shared subscription through which the session got it (`$share/<group>/<filter>`), if any.
    """

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    time_ms: int = 0
    expires_ms: int | None = None
    publisher: str = ""
    properties: bytes = b""
    share: str = ""

    @classmethod
    def from_record(cls, value: bytes) -> "Message":
        """Decodes a stored record.

        Raises:
            ArgumentError: the value is not a publish record.
        """
        try:
            record = core.Record.decode(value)
        except ValueError as error:
            raise ArgumentError(f"value is {value[:40]!r}; expected a record: {error}") from error
        if record.type is not core.RecordType.PUBLISH:
            raise ArgumentError("value is a record without a message: only its packet identifier still matters")
        return cls(
            topic=_text(record.topic),
            payload=record.payload,
            qos=record.qos,
            retain=record.retain,
            time_ms=record.time_ms,
            expires_ms=record.expires_ms or None,
            publisher=_text(record.publisher),
            properties=record.properties,
            share=_text(record.share),
        )

    def copy_for(self, options: SubscriptionOptions) -> "Message":
        """Returns the copy of a retained message for a new subscription (MQTT 5.0, sections 3.8.4 and 3.3.2.3.8)."""
        properties = self.properties
        if options.identifier:
            properties = bytes((_SUBSCRIPTION_IDENTIFIER, *_variable_byte_integer(options.identifier))) + properties
        return replace(self, qos=min(self.qos, options.qos), retain=True, properties=properties)

    def to_record(self) -> bytes:
        """Encodes the message as a record, for example for `Session.add`.

        Raises:
            ArgumentError: a field out of range.
        """
        record = core.Record(
            topic=arguments.name("topic of a message", self.topic, MAX_TEXT_BYTES),
            payload=bytes(arguments.binary("payload of a message", self.payload)),
            qos=arguments.any_whole("qos of a message", self.qos, 0, 2),
            retain=arguments.flag("retain of a message", self.retain),
            time_ms=arguments.any_whole("time_ms of a message", self.time_ms, 0, MAX_MS),
            expires_ms=arguments.any_whole("expires_ms of a message", self.expires_ms, 0, MAX_MS)
            if self.expires_ms is not None
            else 0,
            publisher=arguments.name("publisher of a message", self.publisher, MAX_TEXT_BYTES, least=0),
            properties=bytes(arguments.binary("properties of a message", self.properties)),
            share=arguments.name("share of a message", self.share, MAX_TEXT_BYTES, least=0),
        )
        try:
            return record.encode()
        except ValueError as error:
            raise ArgumentError(
                f"{self!r:.200} cannot be stored: {error!s:.200}; expected fields within limits"
            ) from error


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def _variable_byte_integer(number: int) -> list[int]:
    """Seven bits in a byte, the lowest first (MQTT 5.0, section 1.5.5)."""
    low, rest = number & 0x7F, number >> 7
    return [low | 0x80, *_variable_byte_integer(rest)] if rest else [low]
