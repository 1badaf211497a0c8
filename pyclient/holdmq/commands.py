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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, TypeAlias, TypeVar

from holdmq import core
from holdmq.errors import ArgumentError, InvalidTopicError, UnexpectedReplyError
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
Word: TypeAlias = bytes | memoryview | str | int

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
MAX_CHUNK = 2**53 - 1
"""Largest epoch and chunk of a producer."""
MAX_PRODUCER_BYTES = 255
MAX_NUMBER = 2**63 - 1
SLOTS = 16384
"""Slots of a cluster."""
MAX_RETAINED = 1_000_000
"""Most retained messages that one command lists."""
MAX_WORDS = 100_000
"""Most payloads, filters or identifiers of one command: a server takes about a million words."""


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
        value, left = _array(reply, 2)
        return Served(command.parse(value), tuple(_parse_range(item) for item in _array(left)))

    return Command((*command.words, "SLOTS", len(ranges), *ends), parse)


# --- Channels ---------------------------------------------------------------------------------------------------------


def channel_publish(channel: Text, message: Payload, *, producer: ProducerChunk | None = None) -> Command[int]:
    """`CHANNEL.PUBLISH`: the number of receivers; -1 for a chunk of the producer that is a repetition."""
    words = ("CHANNEL.PUBLISH", _name("channel", channel), _payload("message", message), *chunk_words(producer))
    return Command(words, _integer, scope=Scope.FIRST)


def channel_spublish(channel: Text, message: Payload, *, producer: ProducerChunk | None = None) -> Command[int]:
    """`CHANNEL.SPUBLISH`: the receivers that a shard channel has on its node; -1 for a repetition."""
    words = ("CHANNEL.SPUBLISH", _name("channel", channel), _payload("message", message), *chunk_words(producer))
    return Command(words, _integer)


def channel_last(channel: Text) -> Command[Text | None]:
    """`CHANNEL.LAST`: the last message that the channel keeps."""
    return Command(("CHANNEL.LAST", _name("channel", channel)), _optional_text, text=True)


def channel_policy(channel: Text) -> Command[ChannelPolicy | None]:
    """`CHANNEL.POLICY`: the rule that holds for the channel."""
    return Command(("CHANNEL.POLICY", _name("channel", channel)), _parse_policy, scope=Scope.FIRST)


def channel_range(channel: Text, start: int, stop: int) -> Command[list[Text]]:
    """`LRANGE` over the list that the channel keeps, ends included; oldest message first."""
    _range("start", start, 0, MAX_NUMBER)
    _range("stop", stop, start, MAX_NUMBER)
    return Command(("LRANGE", _name("channel", channel), start, stop), _parse_texts, text=True)


# --- Sessions ---------------------------------------------------------------------------------------------------------


def check_names(what: str, names: Sequence[Text], most: int) -> None:
    """Raises ArgumentError unless there are 1 to `most` names, none of them empty."""
    if not all(_name(what, name) for name in _some(what, names, most)):
        raise ArgumentError(f"{what} are {names!r:.200}; expected none of them empty")


def check_page(page: int) -> None:
    """Raises ArgumentError for a page that is not 1 to 10000 messages."""
    _range("page", page, 1, MAX_COUNT)


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
    most = MAX_WORDS if producer is None else MAX_BATCH
    words += [_payload("payload", payload) for payload in _some("payloads", payloads, most)]
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
    most = MAX_WORDS if producer is None else MAX_BATCH
    for payload, seconds in _some("messages", messages, most):
        words.append("" if seconds is None else _range("ttl of a message", seconds, 1, MAX_TTL_S))
        words.append(_payload("payload", payload))
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
        words += ["LASTID", _range("last_packet_id", last_packet_id, 0, MAX_PACKET_ID)]
    words += _add_options(limit, None, producer)
    if len(messages) > MAX_COUNT:
        raise ArgumentError(f"{len(messages)} messages were given; expected {MAX_COUNT} at most")
    words += ["MESSAGES", len(messages)]
    for message in messages:
        words += [
            _range("packet_id of a message", message.packet_id, 0, MAX_PACKET_ID),
            _range("serial of a message", message.serial, 0, MAX_SERIAL),
            int(message.state),
            _range("ttl_ms of a message", message.ttl_ms, 0, MAX_TTL_S * 1000),
            _payload("value of a message", message.value),
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
        words += ["WINDOW", _range("window", window, 1, MAX_LIMIT)]
    elif inflight:
        words.append("INFLIGHT")
    else:
        words += ["AFTER", _range("after", after, 0, MAX_NUMBER)]
    return Command((*words, *_fetch_options(count, max_bytes)), _parse_page)


def session_ack(client_id: Text, packet_ids: Sequence[int], *, epoch: int = 0, prefix: Text = b"") -> Command[int]:
    """`SESSION.ACK`: removes messages; replies how many were there."""
    words = [*_session("SESSION.ACK", client_id, prefix), *_epoch(epoch)]
    return Command((*words, *_packet_ids(packet_ids)), _integer)


def session_ack_next(
    client_id: Text, packet_ids: Sequence[int], count: int, *, epoch: int = 0, prefix: Text = b""
) -> Command[AckResult]:
    """`SESSION.ACK … NEXT`: removes messages and hands out up to `count` of those that follow."""
    words = [*_session("SESSION.ACK", client_id, prefix), *_epoch(epoch)]
    words += ["NEXT", _range("count", count, 1, MAX_COUNT)]
    return Command((*words, *_packet_ids(packet_ids)), _parse_acked)


def session_sent(client_id: Text, serial: int, *, epoch: int = 0, prefix: Text = b"") -> Command[None]:
    """`SESSION.SENT`: the messages up to `serial` were handed to the client by other ways."""
    words = [*_session("SESSION.SENT", client_id, prefix), *_epoch(epoch)]
    return Command((*words, _range("serial", serial, 0, MAX_NUMBER)), _ok)


def session_release(client_id: Text, packet_ids: Sequence[int], *, epoch: int = 0, prefix: Text = b"") -> Command[int]:
    """`SESSION.RELEASE`: PUBREC was received; replies how many messages were there."""
    words = [*_session("SESSION.RELEASE", client_id, prefix), *_epoch(epoch)]
    return Command((*words, *_packet_ids(packet_ids)), _integer)


def session_receive(client_id: Text, packet_id: int, *, epoch: int = 0, prefix: Text = b"") -> Command[bool]:
    """`SESSION.RECEIVE`: an incoming QoS 2 message; True if it is the first time."""
    words = [*_session("SESSION.RECEIVE", client_id, prefix), *_epoch(epoch)]
    return Command((*words, _range("packet_id", packet_id, 1, MAX_PACKET_ID)), _flag)


def session_complete(client_id: Text, packet_ids: Sequence[int], *, epoch: int = 0, prefix: Text = b"") -> Command[int]:
    """`SESSION.COMPLETE`: PUBREL was received; replies how many identifiers were known."""
    words = [*_session("SESSION.COMPLETE", client_id, prefix), *_epoch(epoch)]
    return Command((*words, *_packet_ids(packet_ids)), _integer)


def session_last(client_id: Text, *, prefix: Text = b"") -> Command[int]:
    """`SESSION.LAST`: the last packet identifier handed out, 0 if none."""
    return Command(tuple(_session("SESSION.LAST", client_id, prefix)), _integer)


def session_info(client_id: Text, *, prefix: Text = b"") -> Command[SessionInfo]:
    """`SESSION.INFO`: the state of the session."""
    return Command(tuple(_session("SESSION.INFO", client_id, prefix)), _parse_info)


def session_drop(client_id: Text, *, epoch: int = 0, prefix: Text = b"") -> Command[int]:
    """`SESSION.DROP`: removes everything the session has; replies how many messages that were."""
    return Command((*_session("SESSION.DROP", client_id, prefix), *_epoch(epoch)), _integer)


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
    words = [*_session("SESSION.OPEN", client_id, prefix), "OWNER", _name("owner", owner)]
    if clean:
        words.append("CLEAN")
    if expiry is not None:
        words += ["EXPIRY", _range("expiry", expiry, 0, MAX_EXPIRY_S)]
    if lease is not None:
        words += ["LEASE", _range("lease", lease, 1, MAX_EXPIRY_S)]
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
        words += ["COUNT", _range("count", count, 1, MAX_COUNT)]
    if connected:
        words.append("CONNECTED")
    return Command(tuple(words), _parse_sessions)


def session_owner(name: Text, lease: int) -> Command[None]:
    """`SESSION.OWNER`: the heartbeat of an owner of sessions (lease in seconds, 0: it is gone)."""
    words = ("SESSION.OWNER", _name("owner", name), "LEASE", _range("lease", lease, 0, MAX_EXPIRY_S))
    return Command(words, _ok, scope=Scope.FIRST)


def session_touch(client_id: Text, *, epoch: int, prefix: Text = b"") -> Command[None]:
    """`SESSION.TOUCH`: renews the lease."""
    return Command((*_session("SESSION.TOUCH", client_id, prefix), *_epoch(epoch)), _ok)


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
        words += ["EXPIRY", _range("expiry", expiry, 0, MAX_EXPIRY_S)]
    if sent is not None:
        words += ["SENT", _range("sent", sent, 0, MAX_NUMBER)]
    if will:
        words.append("WILL")
    return Command(tuple(words), _ok)


def session_subscribe(
    client_id: Text, filters: Mapping[str, SubscriptionOptions], *, epoch: int = 0, prefix: Text = b""
) -> Command[tuple[bool, ...]]:
    """`SESSION.SUBSCRIBE`: True for each filter that is new, False where the options were replaced."""
    words = [*_session("SESSION.SUBSCRIBE", client_id, prefix), *_epoch(epoch)]
    for topic_filter, options in _some("filters", list(filters.items())):
        words += [_filter(topic_filter), options.text]
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
            words += [word, _range(name, value, 1, MAX_NUMBER)]
    return Command(tuple(words), _parse_replayed)


def session_unsubscribe(
    client_id: Text, filters: Sequence[str], *, epoch: int = 0, prefix: Text = b""
) -> Command[tuple[bool, ...]]:
    """`SESSION.UNSUBSCRIBE`: True for each filter that was there."""
    words = [*_session("SESSION.UNSUBSCRIBE", client_id, prefix), *_epoch(epoch)]
    words += [_filter(topic_filter) for topic_filter in _some("filters", filters)]
    return Command(tuple(words), _parse_flags)


def session_subscriptions(client_id: Text, *, prefix: Text = b"") -> Command[dict[str, SubscriptionOptions]]:
    """`SESSION.SUBSCRIPTIONS`: the options of each filter."""
    return Command(tuple(_session("SESSION.SUBSCRIPTIONS", client_id, prefix)), _parse_subscriptions)


def session_deliver(
    client_id: Text, messages: Sequence[Message], *, epoch: int = 0, prefix: Text = b""
) -> Command[int]:
    """`SESSION.DELIVER`: messages as a publish that matches would deliver them; replies how many were."""
    words = [*_session("SESSION.DELIVER", client_id, prefix), *_epoch(epoch)]
    words += [message.to_record() for message in _some("messages", messages)]
    return Command(tuple(words), _integer)


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
    words: list[Word] = ["TOPIC.PUBLISH", _topic(topic), _payload("payload", payload), "QOS", _range("qos", qos, 0, 2)]
    if retain:
        words.append("RETAIN")
    if ttl is not None:
        words += ["TTL", _range("ttl", ttl, 0, MAX_TTL_S)]
    if publisher is not None:
        words += _publisher(publisher if isinstance(publisher, Publisher) else Publisher(publisher), qos)
    if properties:
        words += ["PROPERTIES", properties]
    words += chunk_words(producer)
    return Command(tuple(words), _integer, scope=Scope.SLOTS, merge=sum)


def topic_retained(topic_filter: str, *, count: int | None = None) -> Command[tuple[str, ...]]:
    """`TOPIC.RETAINED`: topics with a retained message that the filter matches."""
    words: list[Word] = ["TOPIC.RETAINED", _filter(topic_filter)]
    if count is not None:
        words += ["COUNT", _range("count", count, 1, MAX_RETAINED)]

    def merge(parts: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
        return tuple(sorted({topic for part in parts for topic in part}))[:count]

    return Command(tuple(words), _parse_names, scope=Scope.SLOTS, merge=merge)


def topic_retained_values(topic_filter: str, *, count: int | None = None) -> Command[tuple[Message, ...]]:
    """`TOPIC.RETAINED … VALUES`: the retained messages themselves, in the order of their topics."""
    words: list[Word] = ["TOPIC.RETAINED", _filter(topic_filter), "VALUES"]
    if count is not None:
        words += ["COUNT", _range("count", count, 1, MAX_RETAINED)]

    def merge(parts: Sequence[tuple[Message, ...]]) -> tuple[Message, ...]:
        newest: dict[str, Message] = {}  # while a slot is on its way its old and its new node may both know a message
        for message in (message for part in parts for message in part):
            known = newest.get(message.topic)
            if known is None or known.time_ms <= message.time_ms:
                newest[message.topic] = message
        return tuple(newest[topic] for topic in sorted(newest))[:count]

    def parse(reply: Any) -> tuple[Message, ...]:
        return merge([tuple(Message.from_record(_bytes(item)) for item in _array(reply))])

    return Command(tuple(words), parse, scope=Scope.SLOTS, merge=merge)


def retained_fields(topic: str) -> Command[Message | None]:
    """`HGETALL` of the topic's retained message, which does not tell when it expires."""
    return Command(("HGETALL", core.retained_key(_topic(topic))), _parse_retained)


def retained_expiry(topic: str) -> Command[int | None]:
    """`PEXPIRETIME` of the topic's retained message: milliseconds since 1970, None if it does not expire or is gone."""
    return Command(("PEXPIRETIME", core.retained_key(_topic(topic))), _parse_expiry)


# --- The server -------------------------------------------------------------------------------------------------------


def holdmq_check() -> Command[tuple[str, ...]]:
    """`HOLDMQ.CHECK`: differences between the indexes in memory and a rebuild from the keys; empty when all is well."""

    def merge(parts: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
        return tuple(line for part in parts for line in part)

    return Command(("HOLDMQ.CHECK",), _parse_names, scope=Scope.ALL, merge=merge)


# --- Arguments --------------------------------------------------------------------------------------------------------


def _range(name: str, value: Any, low: int, high: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ArgumentError(f"{name} is {value!r}; expected a whole number from {low} to {high}")
    return value


def _name(what: str, value: Text) -> bytes:
    if not isinstance(value, (bytes, str)):
        raise ArgumentError(f"{what} is {value!r}; expected str or bytes")
    return value if isinstance(value, bytes) else _encode(value)


def _payload(what: str, value: Payload) -> bytes | memoryview:
    if isinstance(value, str):
        return _encode(value)
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise ArgumentError(f"{what} is of type {type(value).__name__}; expected bytes or str")
    return memoryview(value) if isinstance(value, bytearray) else value


def _some(what: str, values: Sequence[T], most: int = MAX_WORDS) -> Iterable[T]:
    if isinstance(values, (str, bytes)):
        raise ArgumentError(f"{what} is a single {type(values).__name__}; expected a sequence of them")
    if not 1 <= len(values) <= most:
        raise ArgumentError(f"{len(values)} {what} were given; expected 1 to {most}")
    return values


_session_key = functools.lru_cache(maxsize=4096)(core.session_key)  # a third of the cost of building a command


def _session(command: str, client_id: Text, prefix: Text) -> list[Word]:
    name = _name("client_id", client_id)
    if not name:
        raise ArgumentError("client_id is empty; expected one byte or more")
    before = _name("prefix", prefix)
    if b"{" in before:
        raise ArgumentError(f"prefix is {prefix!r}; expected one without '{{'")
    return [command, before + _session_key(name)]


def _epoch(epoch: int) -> list[Word]:
    return ["EPOCH", _range("epoch", epoch, 0, MAX_NUMBER)]


def _add_options(limit: int | None, ttl: int | None, producer: tuple[Text, int] | None) -> list[Word]:
    words: list[Word] = []
    if limit is not None:
        words += ["LIMIT", _range("limit", limit, 1, MAX_LIMIT)]
    if ttl is not None:
        words += ["TTL", _range("ttl", ttl, 1, MAX_TTL_S)]
    if producer is not None:
        name, sequence = producer
        words += ["PRODUCER", _name("producer", name), _range("sequence", sequence, 1, MAX_NUMBER)]
    return words


def chunk_words(producer: ProducerChunk | None) -> list[Word]:
    """`PRODUCER id epoch chunk` of what is written, or nothing."""
    if producer is None:
        return []
    name = _name("id of the producer", producer.id)
    if not 1 <= len(name) <= MAX_PRODUCER_BYTES:
        raise ArgumentError(f"id of the producer has {len(name)} bytes; expected 1 to {MAX_PRODUCER_BYTES}")
    epoch = _range("epoch of the producer", producer.epoch, 0, MAX_CHUNK)
    return ["PRODUCER", name, epoch, _range("chunk of the producer", producer.chunk, 0, MAX_CHUNK)]


def _fetch_options(count: int | None, max_bytes: int | None) -> list[Word]:
    words: list[Word] = []
    if count is not None:
        words += ["COUNT", _range("count", count, 1, MAX_COUNT)]
    if max_bytes is not None:
        words += ["BYTES", _range("max_bytes", max_bytes, 1, MAX_NUMBER)]
    return words


def _will(will: Will) -> list[Word]:
    words: list[Word] = ["WILL", _topic(will.topic), _payload("payload of the will", will.payload)]
    words += ["WILLQOS", _range("qos of the will", will.qos, 0, 2)]
    if will.retain:
        words.append("WILLRETAIN")
    if will.delay != 0:
        words += ["WILLDELAY", _range("delay of the will", will.delay, 0, MAX_EXPIRY_S)]
    if will.ttl is not None:
        words += ["WILLTTL", _range("ttl of the will", will.ttl, 0, MAX_EXPIRY_S)]
    if will.properties:
        words += ["WILLPROPERTIES", will.properties]
    return words


def _publisher(publisher: Publisher, qos: int) -> list[Word]:
    words: list[Word] = ["FROM", _name("publisher", publisher.client_id)]
    if publisher.epoch:
        words += _epoch(publisher.epoch)
    if publisher.packet_id is not None:
        if qos != 2:
            raise ArgumentError(f"qos is {qos!r} for a publisher with a packet_id; expected 2")
        words += ["PACKET", _range("packet_id", publisher.packet_id, 1, MAX_PACKET_ID)]
    return words


def _packet_ids(packet_ids: Sequence[int]) -> list[Word]:
    return [_range("packet_id", packet_id, 1, MAX_PACKET_ID) for packet_id in _some("packet_ids", packet_ids)]


def _topic(topic: str) -> bytes:
    name = _name("topic", topic)
    try:
        core.check_topic_name(name)
    except ValueError as error:
        raise InvalidTopicError(f"topic {topic!r}: {error}") from error
    return name


def _filter(topic_filter: str) -> bytes:
    name = _name("filter", topic_filter)
    try:
        core.check_topic_filter(name)
    except ValueError as error:
        raise InvalidTopicError(f"filter {topic_filter!r}: {error}") from error
    return name


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


# --- Replies ----------------------------------------------------------------------------------------------------------


def _wrong(reply: object, expected: str) -> UnexpectedReplyError:
    return UnexpectedReplyError(f"the server replied {reply!r:.200}; expected {expected}")


def _integer(reply: object) -> int:
    if not isinstance(reply, int) or isinstance(reply, bool):
        raise _wrong(reply, "an integer")
    return reply


def _number(reply: object) -> int:
    """An integer, or a string that holds one."""
    if isinstance(reply, bytes) and reply.isdigit():
        return int(reply)
    return _integer(reply)


def _array(reply: object, length: int | None = None) -> list[Any]:
    if not isinstance(reply, list) or length not in (None, len(reply)):
        raise _wrong(reply, "an array" if length is None else f"an array of {length}")
    return reply


def _bytes(reply: object) -> bytes:
    if not isinstance(reply, bytes):
        raise _wrong(reply, "a string")
    return reply


def _decode(reply: object) -> str:
    return _bytes(reply).decode("utf-8", "surrogateescape")


def _map(reply: object) -> dict[str, Any]:
    """RESP3 has maps; RESP2 has arrays of keys and values in turn."""
    if isinstance(reply, list) and len(reply) % 2 == 0:
        return {_decode(key): value for key, value in zip(reply[::2], reply[1::2], strict=True)}
    if not isinstance(reply, dict):
        raise _wrong(reply, "a map")
    return {_decode(key): value for key, value in reply.items()}


def _ok(reply: object) -> None:
    if reply not in (b"OK", "OK", True):
        raise _wrong(reply, "OK")


def _text(reply: object) -> Text:
    if not isinstance(reply, (bytes, str)):
        raise _wrong(reply, "a string")
    return reply


def _optional_text(reply: object) -> Text | None:
    return None if reply is None else _text(reply)


def _parse_texts(reply: object) -> list[Text]:
    return [_text(item) for item in _array(reply)]


def _parse_names(reply: object) -> tuple[str, ...]:
    return tuple(_decode(item) for item in _array(reply))


def _flag(reply: object) -> bool:
    return bool(_integer(reply))


def _parse_flags(reply: object) -> tuple[bool, ...]:
    return tuple(_flag(item) for item in _array(reply))


def _parse_policy(reply: object) -> ChannelPolicy | None:
    if reply is None:
        return None
    glob, hold, last, maxlen, ttl, deliver = _array(reply, 6)
    try:
        return ChannelPolicy(
            glob=_decode(glob),
            hold=Hold(_decode(hold)),
            last={"on": True, "off": False}[_decode(last)],
            maxlen=_integer(maxlen),
            ttl=_integer(ttl),
            deliver=Deliver(_decode(deliver)),
        )
    except (ValueError, KeyError) as error:
        raise _wrong(reply, "the fields of a policy") from error


def _parse_added(reply: object) -> AddResult:
    packet_ids, serial, trimmed, expired = _array(reply, 4)
    return AddResult(
        tuple(_integer(packet_id) for packet_id in _array(packet_ids)),
        _integer(serial),
        _integer(trimmed),
        _integer(expired),
    )


def _parse_imported(reply: object) -> ImportResult:
    stored, last_serial, last_packet_id, changed, trimmed, new = _array(reply, 6)
    pairs = [_array(pair, 2) for pair in _array(changed)]
    return ImportResult(
        _integer(stored),
        _integer(last_serial),
        _integer(last_packet_id),
        tuple((_integer(old), _integer(given)) for old, given in pairs),
        _integer(trimmed),
        _flag(new),
    )


def _parse_page(reply: object) -> Page:
    entries, more, expired = _array(reply, 3)
    return Page(tuple(_parse_entry(entry) for entry in _array(entries)), _flag(more), _integer(expired))


def _parse_acked(reply: object) -> AckResult:
    removed, page = _array(reply, 2)
    return AckResult(_integer(removed), _parse_page(page))


def _parse_replayed(reply: object) -> ReplayResult:
    delivered, behind, live, missed, stores = _array(reply, 5)
    left = _integer(behind)
    return ReplayResult(
        delivered=_integer(delivered),
        behind=left != 0,
        full=left == 2,
        live=_integer(live),
        missed=_integer(missed),
        stores=_parse_names(stores),
    )


def _parse_entry(reply: object) -> Entry:
    serial, packet_id, state, value = _array(reply, 4)
    try:
        return Entry(_integer(serial), _integer(packet_id), EntryState(_integer(state)), _bytes(value))
    except ValueError as error:
        raise _wrong(state, "state 0, 1 or 2") from error


def _parse_opened(reply: object) -> OpenResult:
    epoch, present = _array(reply, 2)
    return OpenResult(_integer(epoch), _flag(present))


def _parse_info(reply: object) -> SessionInfo:
    fields = _map(reply)
    try:
        ttl_ms = _integer(fields["ttl_ms"])
        return SessionInfo(
            exists=_flag(fields["exists"]),
            owner=_decode(fields["owner"] or b""),
            epoch=_integer(fields["epoch"]),
            connected=_flag(fields["connected"]),
            expiry=_integer(fields["expiry"]),
            messages=_integer(fields["messages"]),
            first_serial=_integer(fields["first_serial"]),
            last_serial=_integer(fields["last_serial"]),
            last_packet_id=_integer(fields["last_packet_id"]),
            subscriptions=_integer(fields["subscriptions"]),
            ttl_ms=None if ttl_ms == -1 else ttl_ms,
        )
    except KeyError as error:
        raise _wrong(reply, f"a field {error}") from error


def _parse_subscriptions(reply: object) -> dict[str, SubscriptionOptions]:
    return {name: _parse_options(text) for name, text in _map(reply).items()}


def _parse_options(reply: object) -> SubscriptionOptions:
    try:
        return SubscriptionOptions.from_text(str(reply) if isinstance(reply, int) else _decode(reply))
    except ArgumentError as error:
        raise _wrong(reply, "subscription options") from error


def _parse_sessions(reply: object) -> SessionsPage:
    cursor, rows = _array(reply, 2)
    at = _decode(cursor)
    return SessionsPage(None if at == "0" else at, tuple(_parse_session(row) for row in _array(rows)))


def _parse_session(reply: object) -> SessionRow:
    client_id, connected, owner, messages, key = _array(reply, 5)
    return SessionRow(_decode(client_id), _flag(connected), _decode(owner or b""), _integer(messages), _decode(key))


def _parse_retained(reply: object) -> Message | None:
    fields = _map(reply)
    if not fields:
        return None
    try:
        return Message(
            topic=_decode(fields["topic"]),
            payload=_bytes(fields["payload"]),
            qos=_number(fields["qos"]),
            retain=True,
            time_ms=_number(fields["time"]),
            publisher=_decode(fields["publisher"]),
            properties=_bytes(fields["properties"]),
        )
    except KeyError as error:
        raise _wrong(reply, f"a field {error}") from error


def _parse_range(reply: object) -> SlotRange:
    first, last, address = _array(reply, 3)
    return SlotRange(_integer(first), _integer(last), _decode(address))


def _parse_expiry(reply: object) -> int | None:
    at_ms = _integer(reply)
    return None if at_ms < 0 else at_ms
