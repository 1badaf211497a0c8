"""What HoldMQ's commands reply and what its subscriptions deliver, as small frozen classes.

Plain values; a `Message` knows its stored form, nothing here knows a server. They are the same for the synchronous and
the asyncio client. Invariants:

1. Names and units are those of docs/commands/: times to live in seconds, points in time in milliseconds since
   1970-01-01 UTC and then called `..._ms`.
2. Values of sessions and topics are `bytes`, names are `str`, whatever `decode_responses` of the client says. Channels
   and their messages are what redis-py delivers: `bytes`, or `str` with `decode_responses=True`.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeAlias, TypeVar

from holdmq import _arguments as arguments
from holdmq import core
from holdmq._durations import Duration, Start
from holdmq.errors import ArgumentError

__all__ = [
    "AckResult",
    "AddResult",
    "BridgeRow",
    "ChannelMessage",
    "ChannelPolicy",
    "ClientRow",
    "Deliver",
    "Entry",
    "EntryState",
    "Hold",
    "ImportResult",
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
    "SessionInfo",
    "SessionRow",
    "SessionsPage",
    "SubscriptionOptions",
    "Text",
    "TextT",
    "UserBounds",
    "Will",
]

_SUBSCRIPTION_IDENTIFIER = 0x0B  # the property (MQTT 5.0, section 2.2.2.2)
MAX_MS = 2**48 - 1
"""The latest time that a record can hold."""
MAX_TEXT_BYTES = 65535
"""Of a topic or a client id."""
MAX_IDENTIFIER = 2**28 - 1
"""The largest subscription identifier."""

Text: TypeAlias = bytes | str
"""A channel, a pattern or a message: `str` is sent as UTF-8."""

if TYPE_CHECKING:  # checkers bring typing_extensions along; a default is part of the language from 3.13 on
    import typing_extensions

    TextT = typing_extensions.TypeVar("TextT", bound=bytes | str, default=bytes)
else:
    TextT = TypeVar("TextT", bound=bytes | str)
"""What channels and their messages come as: `bytes`, or `str` from a client with `decode_responses=True`."""

Overflow: TypeAlias = Literal["drop-oldest", "drop-newest", "refuse", "wait"]
"""What happens to a message for a full queue."""

Payload: TypeAlias = bytes | bytearray | memoryview | str
"""The content of a message: `str` is sent as UTF-8."""


class Hold(StrEnum):
    """Which messages a channel keeps."""

    NONE = "none"
    UNHEARD = "unheard"
    ALL = "all"


class Deliver(StrEnum):
    """What a new subscriber is handed."""

    NONE = "none"
    LAST = "last"
    HELD = "held"


@dataclass(frozen=True, slots=True)
class ChannelPolicy:
    """The rule that holds for a channel.

    Attributes:
        glob: the pattern of the rule.
        hold: which messages are kept.
        last: whether the last message is kept even when it was received.
        maxlen: how many messages are kept at most.
        ttl: how long the list lives after the last message, in seconds; 0 means for ever.
        deliver: what a new subscriber is handed.
    """

    glob: str
    hold: Hold
    last: bool
    maxlen: int
    ttl: int
    deliver: Deliver


@dataclass(frozen=True, slots=True)
class DryRunChannel:
    """What a dry run has counted of a channel.

    Attributes:
        channel: its name; bytes that are no UTF-8 are surrogates.
        rule: the pattern of the policy rule that matches, None if none does.
        hold: which messages that rule keeps.
        unheard: messages that nobody heard.
        messages: messages that would be kept, `maxlen` and `ttl` left aside.
        bytes: their size.
        last: when the last of the messages was published, in seconds since 1970.
        key: whether the application has, or had at one of the messages, a key of the channel's name.
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
    """A dry run as a whole, all channels together.

    Attributes:
        policies: the policy list that is tried.
        running: whether it goes on.
        started: when it began, in seconds since 1970.
        seconds: how long it has lasted.
        channels: how many channels were counted.
        messages: messages that would be kept, those left out included.
        bytes: their size.
        left_out_messages: of them, messages of channels for which the report had no room.
        left_out_bytes: their size.
        denied: messages that would not be kept, because the publisher may not write the channel's list.
        passed_over: messages whose receivers were not counted, because the publisher may not run `CHANNEL.PUBLISH`.
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
    """What a dry run has counted: in all (of a cluster one summary a node), and by channel, most messages first."""

    summaries: tuple[DryRunSummary, ...]
    channels: tuple[DryRunChannel, ...]


@dataclass(frozen=True, slots=True)
class ChannelMessage(Generic[TextT]):
    """A message that a subscription delivered.

    On the wire a message that the server had kept looks like any other, so what is known of it is told and no more.

    Attributes:
        channel: where it was published.
        data: the message.
        pattern: the pattern that matched, None for a subscription by name.
        held: False if it was certainly published after the subscription was in force; None if it may be one that the
            server had kept and handed over (see `Subscription`).
        repeat: True for the first message of a channel after a reconnection if it may have been kept and equals the
            last one that this subscription delivered from there, or the one that was handed over before: most likely
            the same message once more.
    """

    channel: TextT
    data: TextT
    pattern: TextT | None = None
    held: bool | None = None
    repeat: bool = False


@dataclass(frozen=True, slots=True)
class AddResult:
    """What `SESSION.ADD` did.

    Attributes:
        packet_ids: the packet identifiers of the new messages, in the order of the payloads; 0 for one that was trimmed
            at once. Empty for a batch older than the producer's last one, which is not stored again.
        serial: the serial of the last of them.
        trimmed: how many messages were removed because the queue was longer than its limit.
        expired: how many references were removed because their message had expired.
    """

    packet_ids: tuple[int, ...]
    serial: int
    trimmed: int
    expired: int


@dataclass(frozen=True, slots=True)
class ImportResult:
    """What `SESSION.IMPORT` did.

    Attributes:
        stored: how many of the messages are in the queue now; 0 for a repetition.
        last_serial: the serial of the last of them.
        last_packet_id: the packet identifier handed out last.
        changed: the identifiers that were in use, and the new ones of the messages that had brought them along.
        trimmed: how many messages, old or new, the limit left no room for.
        new: False if the producer's call was carried out before.
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
    INFLIGHT = 1
    """It was handed out and is not acknowledged yet."""
    RELEASED = 2
    """QoS 2: PUBREC was seen, only the packet identifier still matters."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A message in the queue of a session.

    Attributes:
        serial: its place in the queue; grows for ever.
        packet_id: its packet identifier, 1 to 65535.
        state: queued, in flight or released.
        value: what is stored: a record (see `message`), or whatever else was added.
    """

    serial: int
    packet_id: int
    state: EntryState
    value: bytes

    @property
    def message(self) -> "Message | None":
        """The stored record, decoded; None if the entry is released: of its message only the identifier is left.

        Raises:
            ArgumentError: if the value is no publish record.
        """
        if self.state is EntryState.RELEASED:
            return None
        return Message.from_record(self.value)


@dataclass(frozen=True, slots=True)
class QueuedMessage:
    """A message on its way from another place into the queue of a session.

    Attributes:
        value: what is to be stored: a record (`Message.to_record`), a message as TBMQ keeps it, or whatever else.
        packet_id: the identifier that it had, 1 to 65535; 0: the session's next.
        serial: its place there, larger than that of the message before it; 0: the next.
        state: queued, in flight or released; what is in flight stands before what is queued.
        ttl_ms: what is left of its time to live, in milliseconds; 0: the server's default.
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
        more: whether messages follow behind the last entry.
        expired: how many references were dropped because their message had expired.
    """

    entries: tuple[Entry, ...]
    more: bool
    expired: int


@dataclass(frozen=True, slots=True)
class AckResult:
    """What `SESSION.ACK ... NEXT` replied: how many messages were removed, and the next ones, now in flight."""

    removed: int
    page: Page


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """What `SESSION.REPLAY` did.

    Attributes:
        delivered: how many messages of history were delivered to the session.
        behind: whether more is to be read.
        full: whether it is not read because the queue is full.
        live: how many subscriptions have reached the end of history and are live now.
        missed: how many sequence numbers retention had taken before they were read.
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
    """What `SESSION.OPEN` replied: the epoch of the new owner, and whether a session was there and was kept."""

    epoch: int
    present: bool


@dataclass(frozen=True, slots=True)
class QueueBounds:
    """The bounds of a session's queue beside `holdmq.session-limit`.

    Attributes:
        max_bytes: bytes of messages, up to 2^40; None: `holdmq.session-bytes`.
        overflow: what happens to a message beyond; None: `holdmq.session-overflow`.
    """

    max_bytes: int | None = None
    overflow: Overflow | None = None


@dataclass(frozen=True, slots=True)
class UserBounds:
    """What the user of a session (its identity) may have; each up to 2^40, 0: no bound, None: the server's setting.

    Attributes:
        sessions: that are there at a time: this one is refused beyond; None: `holdmq.max-sessions-per-user`.
        queue_bytes: of messages in the queues of all of them; None: `holdmq.max-queue-bytes-per-user`.
        retained: retained messages; None: `holdmq.max-retained-per-user`.
    """

    sessions: int | None = None
    queue_bytes: int | None = None
    retained: int | None = None


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """The state of a session.

    Attributes:
        exists: whether it was opened (a queue may exist without).
        owner: who opened it last, empty if nobody did.
        identity: to whom it belongs, empty if that was never said.
        epoch: of who opened it last; each owner has a larger one, also if the session was dropped in between; 0 if
            nobody did.
        connected: whether its owner holds a connection of the client.
        expiry: how long it lives after it was closed, in seconds.
        messages: the references in its queue, those of expired messages included.
        bytes: what the values of its messages have.
        dropped: messages that it lost because its queue was full.
        overflow: what happens to a message for its full queue: drop-oldest, drop-newest, refuse or wait.
        first_serial: serial of the oldest one, 0 if there is none.
        last_serial: serial of the newest one, 0 if there is none.
        last_packet_id: the packet identifier handed out last, 0 if none.
        subscriptions: how many filters it is subscribed to.
        ttl_ms: milliseconds until it expires, None if it does not.
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
    """One session of a list.

    Attributes:
        client_id: the client's id.
        connected: whether its owner holds a connection of the client.
        owner: who opened it last.
        messages: the references in its queue, those of expired messages included.
        key: the session key.
        identity: to whom it belongs, empty if that was never said.
    """

    client_id: str
    connected: bool
    owner: str
    messages: int
    key: str
    identity: str


@dataclass(frozen=True, slots=True)
class ClientRow:
    """A connected client, as its bridge reports it.

    Attributes:
        client_id: its id.
        bridge: the name of the bridge that holds it.
        user: as whom it logged in; None: as nobody.
        address: where it connects from.
        version: of MQTT: 4 is 3.1.1, 5 is 5.0.
        received: messages that it has published since it connected.
        received_rate: the same per second, lately.
        bytes_received: bytes of their payloads.
        sent: messages that it was sent since it connected.
        sent_rate: the same per second, lately.
        bytes_sent: bytes of their payloads.
        inflight: messages of QoS 1 and 2 that it has not acknowledged.
        ready: messages kept ready for it at the bridge.
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
        """From a report, which may have more fields than this version knows."""
        known: dict[str, Any] = {field.name: row.get(field.name) for field in fields(cls)}
        return cls(**known)


@dataclass(frozen=True, slots=True)
class BridgeRow:
    """A process that serves MQTT, as it reports itself.

    Attributes:
        name: its name, which is the owner of its sessions.
        host: the machine.
        pid: the process.
        version: of HoldMQ.
        started: since when it runs.
        clients: connections that it holds.
        publishes_received: messages from clients since it runs.
        publishes_received_rate: the same per second, lately.
        messages_sent: messages to clients since it runs.
        messages_sent_rate: the same per second, lately.
        loudest: its clients with the most messages per second, at most 20.
    """

    name: str
    host: str
    pid: int
    version: str
    started: datetime
    clients: int
    publishes_received: int
    publishes_received_rate: float
    messages_sent: int
    messages_sent_rate: float
    loudest: tuple[ClientRow, ...]

    @classmethod
    def of(cls, name: str, report: Mapping[str, str]) -> "BridgeRow":
        """From the hash that a bridge writes."""
        return cls(
            name=name,
            host=report["host"],
            pid=int(report["pid"]),
            version=report["version"],
            started=datetime.fromtimestamp(float(report["started"]), UTC),
            clients=int(report["clients"]),
            publishes_received=int(report["publishes_received"]),
            publishes_received_rate=float(report["publishes_received_rate"]),
            messages_sent=int(report["messages_sent"]),
            messages_sent_rate=float(report["messages_sent_rate"]),
            loudest=tuple(ClientRow.of(row) for row in json.loads(report["loudest"])),
        )


@dataclass(frozen=True, slots=True)
class SessionsPage:
    """What `SESSION.LIST` replied: where to go on (None at the end), and the sessions."""

    cursor: str | None
    sessions: tuple[SessionRow, ...]


@dataclass(frozen=True, slots=True)
class SubscriptionOptions:
    """The options of an MQTT 5.0 subscription.

    Attributes:
        qos: the largest QoS that is delivered, 0 to 2.
        no_local: leave out what the session's own client published.
        retain_as_published: keep the retain flag of the publisher.
        retain_handling: when retained messages are handed over: 0 at each subscribing, 1 if the subscription is new,
            2 never.
        identifier: what each copy carries that the session gets by this filter, 1 to 268435455 (MQTT 5.0, section
            3.8.2.1.2); 0: none.
        replay: where it begins to read history: `earliest`, `now`, a time or how long ago (as the start of
            `AsyncHistory.start_replay`); a text may have `!` at its end for an application, which reads it for ever. Of
            a subscription that stands: empty while it reads history, `!` if it is an application's. None: it does not
            read history.

    Raises:
        ArgumentError: for a value outside of its range.
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
        """The options laid out as in MQTT 5.0, section 3.8.3.1."""
        return self.qos | self.no_local << 2 | self.retain_as_published << 3 | self.retain_handling << 4

    @property
    def text(self) -> str:
        """The options as commands take them: the byte, behind : the identifier, behind @ the start of a replay."""
        options = f"{self.byte}:{self.identifier}" if self.identifier else str(self.byte)
        if self.replay is None:
            return options
        if not isinstance(self.replay, str):
            raise arguments.wrong("replay", self.replay, "text, or None; subscribe_each takes all forms of a time")
        return f"{options}@{self.replay}"

    @classmethod
    def from_text(cls, text: str) -> "SubscriptionOptions":
        """The options that such a text stands for.

        Raises:
            ArgumentError: if it stands for none.
        """
        options, at, replay = text.partition("@")
        byte, colon, identifier = options.partition(":")
        if not byte.isdecimal() or (colon and not identifier.isdecimal()):
            raise ArgumentError(f"subscription options are {text!r}; expected a byte, or a byte and an identifier")
        return replace(cls.from_byte(int(byte)), identifier=int(identifier or 0), replay=replay if at else None)

    @classmethod
    def from_byte(cls, byte: int) -> "SubscriptionOptions":
        """The options that such a byte stands for.

        Raises:
            ArgumentError: if it stands for none.
        """
        if not 0 <= byte < 0x40:
            raise ArgumentError(f"subscription options are {byte!r}; expected 0 to 63 with no reserved bit set")
        return cls(byte & 3, bool(byte & 4), bool(byte & 8), byte >> 4)


class ProducerChunk(NamedTuple):
    """Who writes, and the number of what is written: sent again, it is not stored or published again.

    Attributes:
        id: the producer's name, 1 to 255 bytes.
        epoch: whoever takes the producer's place takes a larger one, 0 to 2^53 - 1.
        chunk: grows within an epoch, 0 to 2^53 - 1.
    """

    id: bytes | str
    epoch: int
    chunk: int


@dataclass(frozen=True, slots=True)
class Publisher:
    """On whose behalf a message is published: a client with a session.

    Attributes:
        client_id: the client's id.
        epoch: publish only if this is the current epoch of the client's session; 0: do not ask.
        packet_id: with QoS 2, the packet identifier of the client's PUBLISH: it is noted in the step that publishes, so
            that a repetition publishes nothing (`AsyncSession.complete` frees it).
    """

    client_id: Text
    epoch: int = 0
    packet_id: int | None = None


@dataclass(frozen=True, slots=True)
class Will:
    """What is published for a client whose connection is lost (MQTT 5.0, section 3.1.2.5).

    Attributes:
        topic: a topic name, without wildcards.
        payload: the content.
        qos: 0, 1 or 2.
        retain: keep it as the topic's retained message.
        delay: how long after the loss it is published, unless the session ends before: 0 to 4294967295 seconds.
        ttl: how long it lives once it is published, 0 to 4294967295 seconds; None: as long as others.
        properties: MQTT 5.0 properties as they are encoded on the wire, without their length.
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
        topic: where it was published.
        payload: the content.
        qos: the QoS that it was published with, 0 to 2; in a queue that of its delivery.
        retain: whether it was to be retained; in a queue the flag of its delivery.
        time_ms: when it was published.
        expires_ms: when it expires, None if it does not.
        publisher: the client id of the publisher, empty if it is not known.
        properties: MQTT 5.0 properties as they are encoded on the wire, without their length.
        share: the shared subscription through which a session got it (`$share/<group>/<filter>`), empty: none.
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
            ArgumentError: the value is no publish record.
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
        """The copy of a retained message that a new subscription gets (MQTT 5.0, sections 3.8.4 and 3.3.2.3.8)."""
        properties = self.properties
        if options.identifier:
            properties = bytes((_SUBSCRIPTION_IDENTIFIER, *_variable_byte_integer(options.identifier))) + properties
        return replace(self, qos=min(self.qos, options.qos), retain=True, properties=properties)

    def to_record(self) -> bytes:
        """The record to store, for instance with `AsyncSession.add`.

        Raises:
            ArgumentError: a field outside of its range.
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
