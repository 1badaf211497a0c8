"""HoldMQ's commands without I/O: each function checks its arguments and returns the words to send and a parser.

The one place in Python that knows the syntax of docs/commands.md. The synchronous client, the asyncio client and
pipelines send what is built here. Invariants:

1. A wrong argument raises `ArgumentError` here, before anything is sent; it names the argument and what was expected.
2. A reply of another form than documented raises `UnexpectedReplyError`; nothing is guessed. RESP2 and RESP3 differ in
   maps only, and both are read.
3. Nothing here depends on `decode_responses`: all but the commands marked `text` are read undecoded.

Building is O(words).

Example:
    >>> command = session_ack("device-1", [7, 8])
    >>> command.words
    ('SESSION.ACK', b'{device-1}', 'EPOCH', 0, 7, 8)
    >>> command.parse(2)
    2
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, TypeVar

from holdmq import _wire as wire
from holdmq import core
from holdmq._wire import Word
from holdmq.errors import ArgumentError
from holdmq.replies import (
    AckResult,
    AddResult,
    ChannelPolicy,
    Deliver,
    Entry,
    EntryState,
    Hold,
    ImportResult,
    Message,
    OpenResult,
    Page,
    Payload,
    ProducerChunk,
    Publisher,
    QueuedMessage,
    ReplayResult,
    SessionInfo,
    SessionRow,
    SessionsPage,
    SubscriptionOptions,
    Text,
    Will,
)

T = TypeVar("T")

MAX_LIMIT = 65535
"""Most messages in a session's queue: one for each packet identifier."""
MAX_TTL_S = 2**31 - 1
MAX_EXPIRY_S = 2**32 - 1
MAX_BATCH = 1000
"""Most payloads of one batch of a producer."""
MAX_COUNT = 10_000
"""Most messages of one page."""
MAX_PACKET_ID = 65535
MAX_SERIAL = 2**52
"""Largest serial that an import may bring along."""
SLOTS = 16384
"""Slots of a cluster."""
MAX_RETAINED = 1_000_000
"""Most retained messages that one command lists."""


class Scope(Enum):
    """Which nodes of a cluster a command goes to."""

    KEY = "the node that has the key: the library finds it"
    FIRST = "the node that has the slot of the first argument, which is a channel and, to the server, no key"
    ALL = "all primaries, each of which knows a part"
    SLOTS = "all primaries, each of which serves the slots that it has"
    SHARD = "the node that has the slot of `Command.key`, which is derived from the arguments"


@dataclass(frozen=True, slots=True)
class Command(Generic[T]):
    """A command that is ready to be sent.

    Attributes:
        words: name and arguments, in the form in which redis-py's `execute_command` takes them.
        parse: makes the typed result from the raw reply.
        text: whether the reply is decoded as the client says (`decode_responses`), instead of never.
        scope: which nodes of a cluster it goes to.
        merge: makes one result of those of all nodes (scopes ALL and SLOTS only).
        key: the key that tells the node (scope SHARD only).
    """

    words: tuple[Word, ...]
    parse: Callable[[Any], T]
    text: bool = False
    scope: Scope = Scope.KEY
    merge: Callable[[Sequence[T]], T] | None = None
    key: bytes = b""

    @property
    def options(self) -> dict[str, Any]:
        """Keyword arguments for redis-py's `execute_command`."""
        return {} if self.text else {"NEVER_DECODE": True}


@dataclass(frozen=True, slots=True)
class SlotRange:
    """Slots of a cluster, both ends included, and where to ask for them: `host:port`, empty if that is not known."""

    first: int
    last: int
    address: str = ""


@dataclass(frozen=True, slots=True)
class Served(Generic[T]):
    """What a node replied for the slots that it served, and which it did not."""

    value: T
    left: tuple[SlotRange, ...]


def for_slots(command: Command[T], ranges: Sequence[SlotRange]) -> Command[Served[T]]:
    """The command, for some slots only (scope SLOTS)."""
    ends = [end for part in ranges for end in (part.first, part.last)]

    def parse(reply: Any) -> Served[T]:
        value, left = wire.array(reply, 2)
        return Served(command.parse(value), tuple(_parse_range(item) for item in wire.array(left)))

    return Command((*command.words, "SLOTS", len(ranges), *ends), parse)


# --- Channels ---------------------------------------------------------------------------------------------------------


def channel_publish(channel: Text, message: Payload, *, producer: ProducerChunk | None = None) -> Command[int]:
    """`CHANNEL.PUBLISH`: the number of receivers; -1 for a chunk of the producer that is a repetition."""
    words = (
        "CHANNEL.PUBLISH",
        wire.name("channel", channel),
        wire.payload("message", message),
        *wire.chunk_words(producer),
    )
    return Command(words, wire.integer, scope=Scope.FIRST)


def channel_spublish(channel: Text, message: Payload, *, producer: ProducerChunk | None = None) -> Command[int]:
    """`CHANNEL.SPUBLISH`: the receivers that a shard channel has on its node; -1 for a repetition."""
    words = (
        "CHANNEL.SPUBLISH",
        wire.name("channel", channel),
        wire.payload("message", message),
        *wire.chunk_words(producer),
    )
    return Command(words, wire.integer)


def channel_last(channel: Text) -> Command[Text | None]:
    """`CHANNEL.LAST`: the last message that the channel keeps."""
    return Command(("CHANNEL.LAST", wire.name("channel", channel)), _optional_text, text=True)


def channel_policy(channel: Text) -> Command[ChannelPolicy | None]:
    """`CHANNEL.POLICY`: the rule that holds for the channel."""
    return Command(("CHANNEL.POLICY", wire.name("channel", channel)), _parse_policy, scope=Scope.FIRST)


def channel_range(channel: Text, start: int, stop: int) -> Command[list[Text]]:
    """`LRANGE` over the list that the channel keeps, ends included; oldest message first."""
    wire.in_range("start", start, 0, wire.MAX_NUMBER)
    wire.in_range("stop", stop, start, wire.MAX_NUMBER)
    return Command(("LRANGE", wire.name("channel", channel), start, stop), _parse_texts, text=True)


# --- Sessions ---------------------------------------------------------------------------------------------------------


def check_names(what: str, names: Sequence[Text], most: int) -> None:
    """Raises ArgumentError unless there are 1 to `most` names, none of them empty."""
    if not all(wire.name(what, name) for name in wire.some(what, names, most)):
        raise ArgumentError(f"{what} are {names!r:.200}; expected none of them empty")


def check_page(page: int) -> None:
    """Raises ArgumentError for a page that is not 1 to 10000 messages."""
    wire.in_range("page", page, 1, MAX_COUNT)


def session_add(
    client_id: Text,
    payloads: Sequence[Payload],
    *,
    limit: int | None = None,
    ttl: int | None = None,
    producer: tuple[Text, int] | None = None,
    prefix: Text = b"",
) -> Command[AddResult]:
    """`SESSION.ADD`: appends messages that share one TTL (seconds; None: the server's default).

    With `producer`, a name and the number of the batch, a batch that is sent again is not stored again.
    """
    words = [*_session("SESSION.ADD", client_id, prefix), *_add_options(limit, ttl, producer), "MESSAGES"]
    most = wire.MAX_WORDS if producer is None else MAX_BATCH
    words += [wire.payload("payload", payload) for payload in wire.some("payloads", payloads, most)]
    return Command(tuple(words), _parse_added)


def session_add_expiring(
    client_id: Text,
    messages: Sequence[tuple[Payload, int | None]],
    *,
    limit: int | None = None,
    ttl: int | None = None,
    producer: tuple[Text, int] | None = None,
    prefix: Text = b"",
) -> Command[AddResult]:
    """`SESSION.ADD … EXPIRING`: appends messages with a TTL each (seconds; None: `ttl` or the server's default)."""
    words = [*_session("SESSION.ADD", client_id, prefix), *_add_options(limit, ttl, producer), "EXPIRING"]
    most = wire.MAX_WORDS if producer is None else MAX_BATCH
    for payload, seconds in wire.some("messages", messages, most):
        words.append("" if seconds is None else wire.in_range("ttl of a message", seconds, 1, MAX_TTL_S))
        words.append(wire.payload("payload", payload))
    return Command(tuple(words), _parse_added)


def session_import(
    client_id: Text,
    messages: Sequence[QueuedMessage],
    *,
    merge: bool = False,
    limit: int | None = None,
    last_packet_id: int | None = None,
    producer: tuple[Text, int] | None = None,
    prefix: Text = b"",
) -> Command[ImportResult]:
    """`SESSION.IMPORT`: a queue from elsewhere, in one step; with `producer` (name, number of the call) once."""
    words = _session("SESSION.IMPORT", client_id, prefix)
    if merge:
        words.append("MERGE")
    if last_packet_id is not None:
        words += ["LASTID", wire.in_range("last_packet_id", last_packet_id, 0, MAX_PACKET_ID)]
    words += _add_options(limit, None, producer)
    if len(messages) > MAX_COUNT:
        raise ArgumentError(f"{len(messages)} messages were given; expected {MAX_COUNT} at most")
    words += ["MESSAGES", len(messages)]
    for message in messages:
        words += [
            wire.in_range("packet_id of a message", message.packet_id, 0, MAX_PACKET_ID),
            wire.in_range("serial of a message", message.serial, 0, MAX_SERIAL),
            int(message.state),
            wire.in_range("ttl_ms of a message", message.ttl_ms, 0, MAX_TTL_S * 1000),
            wire.payload("value of a message", message.value),
        ]
    return Command(tuple(words), _parse_imported)


def session_fetch(
    client_id: Text,
    *,
    after: int = 0,
    window: int | None = None,
    inflight: bool = False,
    count: int | None = None,
    max_bytes: int | None = None,
    epoch: int = 0,
    prefix: Text = b"",
) -> Command[Page]:
    """`SESSION.FETCH`: the queue from behind the serial `after`, or the next within `window`, or what is in flight."""
    if (after != 0) + (window is not None) + inflight > 1:
        raise ArgumentError("two of after, window and inflight were given; expected one at most")
    words = [*_session("SESSION.FETCH", client_id, prefix), *_epoch(epoch)]
    if window is not None:
        words += ["WINDOW", wire.in_range("window", window, 1, MAX_LIMIT)]
    elif inflight:
        words.append("INFLIGHT")
    else:
        words += ["AFTER", wire.in_range("after", after, 0, wire.MAX_NUMBER)]
    return Command((*words, *_fetch_options(count, max_bytes)), _parse_page)


def session_ack(client_id: Text, packet_ids: Sequence[int], *, epoch: int = 0, prefix: Text = b"") -> Command[int]:
    """`SESSION.ACK`: removes messages; replies how many were there."""
    words = [*_session("SESSION.ACK", client_id, prefix), *_epoch(epoch)]
    return Command((*words, *_packet_ids(packet_ids)), wire.integer)


def session_ack_next(
    client_id: Text, packet_ids: Sequence[int], count: int, *, epoch: int = 0, prefix: Text = b""
) -> Command[AckResult]:
    """`SESSION.ACK … NEXT`: removes messages and hands out up to `count` of those that follow."""
    words = [*_session("SESSION.ACK", client_id, prefix), *_epoch(epoch)]
    words += ["NEXT", wire.in_range("count", count, 1, MAX_COUNT)]
    return Command((*words, *_packet_ids(packet_ids)), _parse_acked)


def session_sent(client_id: Text, serial: int, *, epoch: int = 0, prefix: Text = b"") -> Command[None]:
    """`SESSION.SENT`: the messages up to `serial` were handed to the client by other ways."""
    words = [*_session("SESSION.SENT", client_id, prefix), *_epoch(epoch)]
    return Command((*words, wire.in_range("serial", serial, 0, wire.MAX_NUMBER)), wire.ok)


def session_release(client_id: Text, packet_ids: Sequence[int], *, epoch: int = 0, prefix: Text = b"") -> Command[int]:
    """`SESSION.RELEASE`: PUBREC was received; replies how many messages were there."""
    words = [*_session("SESSION.RELEASE", client_id, prefix), *_epoch(epoch)]
    return Command((*words, *_packet_ids(packet_ids)), wire.integer)


def session_receive(client_id: Text, packet_id: int, *, epoch: int = 0, prefix: Text = b"") -> Command[bool]:
    """`SESSION.RECEIVE`: an incoming QoS 2 message; True if it is the first time."""
    words = [*_session("SESSION.RECEIVE", client_id, prefix), *_epoch(epoch)]
    return Command((*words, wire.in_range("packet_id", packet_id, 1, MAX_PACKET_ID)), wire.flag)


def session_complete(client_id: Text, packet_ids: Sequence[int], *, epoch: int = 0, prefix: Text = b"") -> Command[int]:
    """`SESSION.COMPLETE`: PUBREL was received; replies how many identifiers were known."""
    words = [*_session("SESSION.COMPLETE", client_id, prefix), *_epoch(epoch)]
    return Command((*words, *_packet_ids(packet_ids)), wire.integer)


def session_last(client_id: Text, *, prefix: Text = b"") -> Command[int]:
    """`SESSION.LAST`: the last packet identifier handed out, 0 if none."""
    return Command(tuple(_session("SESSION.LAST", client_id, prefix)), wire.integer)


def session_info(client_id: Text, *, prefix: Text = b"") -> Command[SessionInfo]:
    """`SESSION.INFO`: the state of the session."""
    return Command(tuple(_session("SESSION.INFO", client_id, prefix)), _parse_info)


def session_drop(client_id: Text, *, epoch: int = 0, prefix: Text = b"") -> Command[int]:
    """`SESSION.DROP`: removes everything the session has; replies how many messages that were."""
    return Command((*_session("SESSION.DROP", client_id, prefix), *_epoch(epoch)), wire.integer)


def session_open(
    client_id: Text,
    owner: Text,
    *,
    clean: bool = False,
    expiry: int | None = None,
    lease: int | None = None,
    will: Will | None = None,
    prefix: Text = b"",
) -> Command[OpenResult]:
    """`SESSION.OPEN`: takes the session over or creates it (expiry and lease in seconds)."""
    words = [*_session("SESSION.OPEN", client_id, prefix), "OWNER", wire.name("owner", owner)]
    if clean:
        words.append("CLEAN")
    if expiry is not None:
        words += ["EXPIRY", wire.in_range("expiry", expiry, 0, MAX_EXPIRY_S)]
    if lease is not None:
        words += ["LEASE", wire.in_range("lease", lease, 1, MAX_EXPIRY_S)]
    if will is not None:
        words += _will(will)
    return Command(tuple(words), _parse_opened)


def session_list(
    *, cursor: str | None = None, count: int | None = None, connected: bool = False
) -> Command[SessionsPage]:
    """`SESSION.LIST`: a page of the opened sessions of one node."""
    words: list[Word] = ["SESSION.LIST"]
    if cursor is not None:
        words += ["CURSOR", cursor]
    if count is not None:
        words += ["COUNT", wire.in_range("count", count, 1, MAX_COUNT)]
    if connected:
        words.append("CONNECTED")
    return Command(tuple(words), _parse_sessions)


def session_owner(name: Text, lease: int) -> Command[None]:
    """`SESSION.OWNER`: the heartbeat of an owner of sessions (lease in seconds, 0: it is gone)."""
    words = ("SESSION.OWNER", wire.name("owner", name), "LEASE", wire.in_range("lease", lease, 0, MAX_EXPIRY_S))
    return Command(words, wire.ok, scope=Scope.FIRST)


def session_touch(client_id: Text, *, epoch: int, prefix: Text = b"") -> Command[None]:
    """`SESSION.TOUCH`: renews the lease."""
    return Command((*_session("SESSION.TOUCH", client_id, prefix), *_epoch(epoch)), wire.ok)


def session_close(
    client_id: Text,
    *,
    epoch: int,
    expiry: int | None = None,
    sent: int | None = None,
    will: bool = False,
    prefix: Text = b"",
) -> Command[None]:
    """`SESSION.CLOSE`: the connection is gone; the session lives on for its expiry (seconds).

    `will`: it was lost, so the will is published; else it is discarded.
    """
    words = [*_session("SESSION.CLOSE", client_id, prefix), *_epoch(epoch)]
    if expiry is not None:
        words += ["EXPIRY", wire.in_range("expiry", expiry, 0, MAX_EXPIRY_S)]
    if sent is not None:
        words += ["SENT", wire.in_range("sent", sent, 0, wire.MAX_NUMBER)]
    if will:
        words.append("WILL")
    return Command(tuple(words), wire.ok)


def session_subscribe(
    client_id: Text, filters: Mapping[str, SubscriptionOptions], *, epoch: int = 0, prefix: Text = b""
) -> Command[tuple[bool, ...]]:
    """`SESSION.SUBSCRIBE`: True for each filter that is new, False where the options were replaced."""
    words = [*_session("SESSION.SUBSCRIBE", client_id, prefix), *_epoch(epoch)]
    for topic_filter, options in wire.some("filters", list(filters.items())):
        words += [wire.topic_filter(topic_filter), options.text]
    return Command(tuple(words), _parse_flags)


def session_replay(
    client_id: Text,
    *,
    count: int | None = None,
    max_bytes: int | None = None,
    visit: int | None = None,
    queue: int | None = None,
    epoch: int = 0,
    prefix: Text = b"",
) -> Command[ReplayResult]:
    """`SESSION.REPLAY`: reads history on for the subscriptions that replay it, into the session's queue."""
    words = [*_session("SESSION.REPLAY", client_id, prefix), *_epoch(epoch)]
    numbers = (("COUNT", "count", count), ("BYTES", "max_bytes", max_bytes), ("VISIT", "visit", visit))
    for word, name, value in (*numbers, ("QUEUE", "queue", queue)):
        if value is not None:
            words += [word, wire.in_range(name, value, 1, wire.MAX_NUMBER)]
    return Command(tuple(words), _parse_replayed)


def session_unsubscribe(
    client_id: Text, filters: Sequence[str], *, epoch: int = 0, prefix: Text = b""
) -> Command[tuple[bool, ...]]:
    """`SESSION.UNSUBSCRIBE`: True for each filter that was there."""
    words = [*_session("SESSION.UNSUBSCRIBE", client_id, prefix), *_epoch(epoch)]
    words += [wire.topic_filter(topic_filter) for topic_filter in wire.some("filters", filters)]
    return Command(tuple(words), _parse_flags)


def session_subscriptions(client_id: Text, *, prefix: Text = b"") -> Command[dict[str, SubscriptionOptions]]:
    """`SESSION.SUBSCRIPTIONS`: the options of each filter."""
    return Command(tuple(_session("SESSION.SUBSCRIPTIONS", client_id, prefix)), _parse_subscriptions)


def session_deliver(
    client_id: Text, messages: Sequence[Message], *, epoch: int = 0, prefix: Text = b""
) -> Command[int]:
    """`SESSION.DELIVER`: messages as a publish that matches would deliver them; replies how many were."""
    words = [*_session("SESSION.DELIVER", client_id, prefix), *_epoch(epoch)]
    words += [message.to_record() for message in wire.some("messages", messages)]
    return Command(tuple(words), wire.integer)


# --- Topics -----------------------------------------------------------------------------------------------------------


def topic_publish(
    topic: str,
    payload: Payload,
    *,
    qos: int = 0,
    retain: bool = False,
    ttl: int | None = None,
    publisher: Text | Publisher | None = None,
    properties: bytes = b"",
    producer: ProducerChunk | None = None,
) -> Command[int]:
    """`TOPIC.PUBLISH`: the number of sessions reached (properties as MQTT 5.0 encodes them).

    The ttl is in seconds; 0 is for who is connected now.
    -1 for a packet identifier of the publisher, or a chunk of the producer, that is a repetition.
    """
    words: list[Word] = [
        "TOPIC.PUBLISH",
        wire.topic(topic),
        wire.payload("payload", payload),
        "QOS",
        wire.in_range("qos", qos, 0, 2),
    ]
    if retain:
        words.append("RETAIN")
    if ttl is not None:
        words += ["TTL", wire.in_range("ttl", ttl, 0, MAX_TTL_S)]
    if publisher is not None:
        words += _publisher(publisher if isinstance(publisher, Publisher) else Publisher(publisher), qos)
    if properties:
        words += ["PROPERTIES", properties]
    words += wire.chunk_words(producer)
    return Command(tuple(words), wire.integer, scope=Scope.SLOTS, merge=sum)


def topic_retained(topic_filter: str, *, count: int | None = None) -> Command[tuple[str, ...]]:
    """`TOPIC.RETAINED`: topics with a retained message that the filter matches."""
    words: list[Word] = ["TOPIC.RETAINED", wire.topic_filter(topic_filter)]
    if count is not None:
        words += ["COUNT", wire.in_range("count", count, 1, MAX_RETAINED)]

    def merge(parts: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
        return tuple(sorted({topic for part in parts for topic in part}))[:count]

    return Command(tuple(words), wire.names, scope=Scope.SLOTS, merge=merge)


def topic_retained_values(topic_filter: str, *, count: int | None = None) -> Command[tuple[Message, ...]]:
    """`TOPIC.RETAINED … VALUES`: the retained messages themselves, in the order of their topics."""
    words: list[Word] = ["TOPIC.RETAINED", wire.topic_filter(topic_filter), "VALUES"]
    if count is not None:
        words += ["COUNT", wire.in_range("count", count, 1, MAX_RETAINED)]

    def merge(parts: Sequence[tuple[Message, ...]]) -> tuple[Message, ...]:
        newest: dict[str, Message] = {}  # while a slot is on its way its old and its new node may both know a message
        for message in (message for part in parts for message in part):
            known = newest.get(message.topic)
            if known is None or known.time_ms <= message.time_ms:
                newest[message.topic] = message
        return tuple(newest[topic] for topic in sorted(newest))[:count]

    def parse(reply: Any) -> tuple[Message, ...]:
        return merge([tuple(Message.from_record(wire.string(item)) for item in wire.array(reply))])

    return Command(tuple(words), parse, scope=Scope.SLOTS, merge=merge)


def retained_fields(topic: str) -> Command[Message | None]:
    """`HGETALL` of the topic's retained message, which does not tell when it expires."""
    return Command(("HGETALL", core.retained_key(wire.topic(topic))), _parse_retained)


def retained_expiry(topic: str) -> Command[int | None]:
    """`PEXPIRETIME` of the topic's retained message: milliseconds since 1970, None if it does not expire or is gone."""
    return Command(("PEXPIRETIME", core.retained_key(wire.topic(topic))), _parse_expiry)


# --- The server -------------------------------------------------------------------------------------------------------


def holdmq_check() -> Command[tuple[str, ...]]:
    """`HOLDMQ.CHECK`: differences between the indexes in memory and a rebuild from the keys; empty when all is well."""

    def merge(parts: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
        return tuple(line for part in parts for line in part)

    return Command(("HOLDMQ.CHECK",), wire.names, scope=Scope.ALL, merge=merge)


# --- Arguments --------------------------------------------------------------------------------------------------------


_session_key = functools.lru_cache(maxsize=4096)(core.session_key)  # a third of the cost of building a command


def _session(command: str, client_id: Text, prefix: Text) -> list[Word]:
    name = wire.name("client_id", client_id)
    if not name:
        raise ArgumentError("client_id is empty; expected one byte or more")
    before = wire.name("prefix", prefix)
    if b"{" in before:
        raise ArgumentError(f"prefix is {prefix!r}; expected one without '{{'")
    return [command, before + _session_key(name)]


def _epoch(epoch: int) -> list[Word]:
    return ["EPOCH", wire.in_range("epoch", epoch, 0, wire.MAX_NUMBER)]


def _add_options(limit: int | None, ttl: int | None, producer: tuple[Text, int] | None) -> list[Word]:
    words: list[Word] = []
    if limit is not None:
        words += ["LIMIT", wire.in_range("limit", limit, 1, MAX_LIMIT)]
    if ttl is not None:
        words += ["TTL", wire.in_range("ttl", ttl, 1, MAX_TTL_S)]
    if producer is not None:
        name, sequence = producer
        words += ["PRODUCER", wire.name("producer", name), wire.in_range("sequence", sequence, 1, wire.MAX_NUMBER)]
    return words


def _fetch_options(count: int | None, max_bytes: int | None) -> list[Word]:
    words: list[Word] = []
    if count is not None:
        words += ["COUNT", wire.in_range("count", count, 1, MAX_COUNT)]
    if max_bytes is not None:
        words += ["BYTES", wire.in_range("max_bytes", max_bytes, 1, wire.MAX_NUMBER)]
    return words


def _will(will: Will) -> list[Word]:
    words: list[Word] = ["WILL", wire.topic(will.topic), wire.payload("payload of the will", will.payload)]
    words += ["WILLQOS", wire.in_range("qos of the will", will.qos, 0, 2)]
    if will.retain:
        words.append("WILLRETAIN")
    if will.delay != 0:
        words += ["WILLDELAY", wire.in_range("delay of the will", will.delay, 0, MAX_EXPIRY_S)]
    if will.ttl is not None:
        words += ["WILLTTL", wire.in_range("ttl of the will", will.ttl, 0, MAX_EXPIRY_S)]
    if will.properties:
        words += ["WILLPROPERTIES", will.properties]
    return words


def _publisher(publisher: Publisher, qos: int) -> list[Word]:
    words: list[Word] = ["FROM", wire.name("publisher", publisher.client_id)]
    if publisher.epoch:
        words += _epoch(publisher.epoch)
    if publisher.packet_id is not None:
        if qos != 2:
            raise ArgumentError(f"qos is {qos!r} for a publisher with a packet_id; expected 2")
        words += ["PACKET", wire.in_range("packet_id", publisher.packet_id, 1, MAX_PACKET_ID)]
    return words


def _packet_ids(packet_ids: Sequence[int]) -> list[Word]:
    return [
        wire.in_range("packet_id", packet_id, 1, MAX_PACKET_ID) for packet_id in wire.some("packet_ids", packet_ids)
    ]


# --- Replies ----------------------------------------------------------------------------------------------------------


def _text(reply: object) -> Text:
    if not isinstance(reply, (bytes, str)):
        raise wire.wrong(reply, "a string")
    return reply


def _optional_text(reply: object) -> Text | None:
    return None if reply is None else _text(reply)


def _parse_texts(reply: object) -> list[Text]:
    return [_text(item) for item in wire.array(reply)]


def _parse_flags(reply: object) -> tuple[bool, ...]:
    return tuple(wire.flag(item) for item in wire.array(reply))


def _parse_policy(reply: object) -> ChannelPolicy | None:
    if reply is None:
        return None
    glob, hold, last, maxlen, ttl, deliver = wire.array(reply, 6)
    try:
        return ChannelPolicy(
            glob=wire.decoded(glob),
            hold=Hold(wire.decoded(hold)),
            last={"on": True, "off": False}[wire.decoded(last)],
            maxlen=wire.integer(maxlen),
            ttl=wire.integer(ttl),
            deliver=Deliver(wire.decoded(deliver)),
        )
    except (ValueError, KeyError) as error:
        raise wire.wrong(reply, "the fields of a policy") from error


def _parse_added(reply: object) -> AddResult:
    packet_ids, serial, trimmed, expired = wire.array(reply, 4)
    return AddResult(
        tuple(wire.integer(packet_id) for packet_id in wire.array(packet_ids)),
        wire.integer(serial),
        wire.integer(trimmed),
        wire.integer(expired),
    )


def _parse_imported(reply: object) -> ImportResult:
    stored, last_serial, last_packet_id, changed, trimmed, new = wire.array(reply, 6)
    pairs = [wire.array(pair, 2) for pair in wire.array(changed)]
    return ImportResult(
        wire.integer(stored),
        wire.integer(last_serial),
        wire.integer(last_packet_id),
        tuple((wire.integer(old), wire.integer(given)) for old, given in pairs),
        wire.integer(trimmed),
        wire.flag(new),
    )


def _parse_page(reply: object) -> Page:
    entries, more, expired = wire.array(reply, 3)
    return Page(tuple(_parse_entry(entry) for entry in wire.array(entries)), wire.flag(more), wire.integer(expired))


def _parse_acked(reply: object) -> AckResult:
    removed, page = wire.array(reply, 2)
    return AckResult(wire.integer(removed), _parse_page(page))


def _parse_replayed(reply: object) -> ReplayResult:
    delivered, behind, live, missed, stores = wire.array(reply, 5)
    left = wire.integer(behind)
    return ReplayResult(
        delivered=wire.integer(delivered),
        behind=left != 0,
        full=left == 2,
        live=wire.integer(live),
        missed=wire.integer(missed),
        stores=wire.names(stores),
    )


def _parse_entry(reply: object) -> Entry:
    serial, packet_id, state, value = wire.array(reply, 4)
    try:
        return Entry(wire.integer(serial), wire.integer(packet_id), EntryState(wire.integer(state)), wire.string(value))
    except ValueError as error:
        raise wire.wrong(state, "state 0, 1 or 2") from error


def _parse_opened(reply: object) -> OpenResult:
    epoch, present = wire.array(reply, 2)
    return OpenResult(wire.integer(epoch), wire.flag(present))


def _parse_info(reply: object) -> SessionInfo:
    fields = wire.mapping(reply)
    try:
        ttl_ms = wire.integer(fields["ttl_ms"])
        return SessionInfo(
            exists=wire.flag(fields["exists"]),
            owner=wire.decoded(fields["owner"] or b""),
            epoch=wire.integer(fields["epoch"]),
            connected=wire.flag(fields["connected"]),
            expiry=wire.integer(fields["expiry"]),
            messages=wire.integer(fields["messages"]),
            first_serial=wire.integer(fields["first_serial"]),
            last_serial=wire.integer(fields["last_serial"]),
            last_packet_id=wire.integer(fields["last_packet_id"]),
            subscriptions=wire.integer(fields["subscriptions"]),
            ttl_ms=None if ttl_ms == -1 else ttl_ms,
        )
    except KeyError as error:
        raise wire.wrong(reply, f"a field {error}") from error


def _parse_subscriptions(reply: object) -> dict[str, SubscriptionOptions]:
    return {name: _parse_options(text) for name, text in wire.mapping(reply).items()}


def _parse_options(reply: object) -> SubscriptionOptions:
    try:
        return SubscriptionOptions.from_text(str(reply) if isinstance(reply, int) else wire.decoded(reply))
    except ArgumentError as error:
        raise wire.wrong(reply, "subscription options") from error


def _parse_sessions(reply: object) -> SessionsPage:
    cursor, rows = wire.array(reply, 2)
    at = wire.decoded(cursor)
    return SessionsPage(None if at == "0" else at, tuple(_parse_session(row) for row in wire.array(rows)))


def _parse_session(reply: object) -> SessionRow:
    client_id, connected, owner, messages, key = wire.array(reply, 5)
    return SessionRow(
        wire.decoded(client_id),
        wire.flag(connected),
        wire.decoded(owner or b""),
        wire.integer(messages),
        wire.decoded(key),
    )


def _parse_retained(reply: object) -> Message | None:
    fields = wire.mapping(reply)
    if not fields:
        return None
    try:
        return Message(
            topic=wire.decoded(fields["topic"]),
            payload=wire.string(fields["payload"]),
            qos=wire.number(fields["qos"]),
            retain=True,
            time_ms=wire.number(fields["time"]),
            publisher=wire.decoded(fields["publisher"]),
            properties=wire.string(fields["properties"]),
        )
    except KeyError as error:
        raise wire.wrong(reply, f"a field {error}") from error


def _parse_range(reply: object) -> SlotRange:
    first, last, address = wire.array(reply, 3)
    return SlotRange(wire.integer(first), wire.integer(last), wire.decoded(address))


def _parse_expiry(reply: object) -> int | None:
    at_ms = wire.integer(reply)
    return None if at_ms < 0 else at_ms
