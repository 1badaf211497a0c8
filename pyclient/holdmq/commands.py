"""HoldMQ's commands without I/O: each function checks its arguments and returns a `Command`.

A `Command` has the words to send and a parser for the reply. Send it with `HoldMQ.execute`, or queue it in a pipeline.
Both clients send their own commands in this way.

1. A wrong argument raises `ArgumentError` before anything is sent. The error names the argument and what is accepted.
2. A reply with an undocumented form raises `UnexpectedReplyError`. RESP2 and RESP3 are both understood.
3. Replies do not depend on `decode_responses`, except for commands with `text`.

Examples:
    >>> command = session_ack("device-1", [7, 8])
    >>> command.words
    ('SESSION.ACK', b'{device-1}', 'EPOCH', 0, 7, 8)
    >>> command.parse(2)
    2
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from holdmq import _arguments as arguments
from holdmq import _wire as wire
from holdmq import core
from holdmq._command import Command, Scope, Served, for_slots
from holdmq._dry_run_commands import DryRunPage, channel_dryrun_report, channel_dryrun_start, channel_dryrun_stop
from holdmq._session_commands import (
    MAX_BATCH,
    MAX_CLIENT_ID_BYTES,
    MAX_COUNT,
    MAX_EXPIRY_S,
    MAX_LIMIT,
    MAX_PACKET_ID,
    MAX_ROUTES,
    MAX_SERIAL,
    MAX_TTL_S,
    SubscribedRoutes,
    route_drophome,
    session_ack,
    session_ack_next,
    session_add,
    session_add_expiring,
    session_close,
    session_complete,
    session_deliver,
    session_drop,
    session_fetch,
    session_import,
    session_info,
    session_last,
    session_list,
    session_open,
    session_owner,
    session_receive,
    session_release,
    session_replay,
    session_sent,
    session_subscribe,
    session_subscribe_routes,
    session_subscriptions,
    session_subscriptions_pages,
    session_touch,
    session_unsubscribe,
)
from holdmq._slot_range import SLOTS, SlotRange
from holdmq._wire import Word
from holdmq.durations import Duration, whole_seconds
from holdmq.errors import ArgumentError, translate
from holdmq.replies import (
    ChannelPolicy,
    ChannelRow,
    ChannelsPage,
    Deliver,
    GroupRow,
    GroupsPage,
    Hold,
    MatchesPage,
    MatchRow,
    Message,
    Payload,
    ProducerChunk,
    Publisher,
    RetainedPage,
    Text,
)

T = TypeVar("T")

__all__ = [
    "MAX_BATCH",
    "MAX_CLIENT_ID_BYTES",
    "MAX_COUNT",
    "MAX_EXPIRY_S",
    "MAX_LIMIT",
    "MAX_MATCHES",
    "MAX_PACKET_ID",
    "MAX_RETAINED",
    "MAX_ROUTES",
    "MAX_SERIAL",
    "MAX_TTL_S",
    "RETAINED_BY_DEFAULT",
    "SLOTS",
    "Command",
    "DryRunPage",
    "Scope",
    "Served",
    "SlotRange",
    "SubscribedRoutes",
    "channel_dryrun_report",
    "channel_dryrun_start",
    "channel_dryrun_stop",
    "channel_last",
    "channel_len",
    "channel_list",
    "channel_list_key",
    "channel_policy",
    "channel_publish",
    "channel_range",
    "channel_spublish",
    "check_names",
    "check_page",
    "for_slots",
    "holdmq_check",
    "outbox_ack",
    "outbox_end",
    "outbox_is_end",
    "outbox_publish",
    "outbox_read",
    "retained_expiry",
    "retained_fields",
    "route_drophome",
    "session_ack",
    "session_ack_next",
    "session_add",
    "session_add_expiring",
    "session_close",
    "session_complete",
    "session_deliver",
    "session_drop",
    "session_fetch",
    "session_import",
    "session_info",
    "session_last",
    "session_list",
    "session_open",
    "session_owner",
    "session_receive",
    "session_release",
    "session_replay",
    "session_sent",
    "session_subscribe",
    "session_subscribe_routes",
    "session_subscriptions",
    "session_subscriptions_pages",
    "session_touch",
    "session_unsubscribe",
    "topic_commit",
    "topic_groups",
    "topic_match",
    "topic_mpublish",
    "topic_pipeline",
    "topic_publish",
    "topic_retained",
    "topic_retained_pages",
    "topic_retained_values",
    "topic_retained_values_pages",
]

MAX_MATCHES = 1000
"""The maximum number of matching subscriptions, groups or channels that one command lists."""

MAX_RETAINED = 1_000_000
"""The maximum number of retained messages that one command lists."""

RETAINED_BY_DEFAULT = 1000
"""The number of retained messages that are listed if no number is given."""


# --- Channels ---------------------------------------------------------------------------------------------------------


def channel_publish(channel: Text, message: Payload, *, producer: ProducerChunk | None = None) -> Command[int]:
    """`CHANNEL.PUBLISH`: publishes a message. Replies the number of receivers, or -1 for a repeated chunk."""
    words = (
        "CHANNEL.PUBLISH",
        arguments.name("channel", channel),
        arguments.payload("message", message),
        *wire.chunk_words(producer),
    )
    return Command(words, wire.integer, scope=Scope.FIRST)


def channel_spublish(channel: Text, message: Payload, *, producer: ProducerChunk | None = None) -> Command[int]:
    """`CHANNEL.SPUBLISH`: publishes to a shard channel. Replies the number of receivers, or -1 for a repeated chunk."""
    words = (
        "CHANNEL.SPUBLISH",
        arguments.name("channel", channel),
        arguments.payload("message", message),
        *wire.chunk_words(producer),
    )
    return Command(words, wire.integer)


def channel_last(channel: Text) -> Command[Text | None]:
    """`CHANNEL.LAST`: the most recent message, if the channel keeps it."""
    return Command(("CHANNEL.LAST", arguments.name("channel", channel)), _optional_text, text=True)


def channel_policy(channel: Text) -> Command[ChannelPolicy | None]:
    """`CHANNEL.POLICY`: the policy rule that applies to the channel."""
    return Command(("CHANNEL.POLICY", arguments.name("channel", channel)), _parse_policy, scope=Scope.FIRST)


def channel_range(channel: Text, start: int, stop: int) -> Command[list[Text]]:
    """`CHANNEL.RANGE`: kept messages by position, both ends included, oldest first."""
    arguments.in_range("start", start, 0, wire.MAX_NUMBER)
    arguments.in_range("stop", stop, start, wire.MAX_NUMBER)
    return Command(("CHANNEL.RANGE", arguments.name("channel", channel), start, stop), _parse_texts, text=True)


def channel_len(channel: Text) -> Command[int]:
    """`CHANNEL.LEN`: the number of kept messages."""
    return Command(("CHANNEL.LEN", arguments.name("channel", channel)), wire.integer)


def channel_list_key(channel: Text) -> Command[Text]:
    """`CHANNEL.KEY`: the name of the list with the kept messages."""
    return Command(("CHANNEL.KEY", arguments.name("channel", channel)), _text, text=True)


MAX_PIPELINE = 1024
"""The maximum number of publishes in a `topic_pipeline`."""


# --- Topics -----------------------------------------------------------------------------------------------------------


def topic_publish(
    topic: str,
    payload: Payload,
    *,
    qos: int = 0,
    retain: bool = False,
    ttl: Duration | None = None,
    publisher: Text | Publisher | None = None,
    properties: bytes = b"",
    producer: ProducerChunk | None = None,
) -> Command[int]:
    """`TOPIC.PUBLISH`: publishes a message. Arguments as for `Topics.publish`.

    Replies the number of sessions reached. -1 for a repeated packet identifier of the publisher, or a repeated chunk of
    the producer.
    """
    words: list[Word] = [
        "TOPIC.PUBLISH",
        wire.topic(topic),
        arguments.payload("payload", payload),
        "QOS",
        arguments.in_range("qos", qos, 0, 2),
    ]
    if arguments.flag("retain", retain):
        words.append("RETAIN")
    if ttl is not None:
        words += ["TTL", whole_seconds("ttl", ttl, 0, MAX_TTL_S)]
    if publisher is not None:
        words += _publisher(publisher if isinstance(publisher, Publisher) else Publisher(publisher), qos)
    if arguments.binary("properties", properties):
        words += ["PROPERTIES", properties]
    words += wire.chunk_words(producer)
    return Command(tuple(words), wire.integer, scope=Scope.ROUTES, merge=sum)


def topic_pipeline(publishes: Sequence[Command[int]]) -> Command[list[int | Exception]]:
    """`TOPIC.PIPELINE`: runs publishes made by `topic_publish` as one command. Not for a cluster.

    Replies the result of each publish: the number of sessions reached, -1 for a repetition, or its error.
    """
    words = [
        arguments.instance("one of the publishes", publish, Command).words
        for publish in arguments.some("publishes", publishes, MAX_PIPELINE)
    ]
    other = next((name for name, *_ in words if name != "TOPIC.PUBLISH"), None)
    if other is not None:
        raise ArgumentError(f"one of the publishes is {other!r}; expected commands made by topic_publish")

    def parse(reply: object) -> list[int | Exception]:
        replies = wire.array(reply, len(words))
        return [translate(one) if isinstance(one, Exception) else wire.integer(one) for one in replies]

    return Command(("TOPIC.PIPELINE", b"".join(map(wire.packed, words))), parse)


def topic_mpublish(messages: Sequence[Message]) -> Command[tuple[int, int, int]]:
    """`TOPIC.MPUBLISH`: publishes messages in one step. Replies three counts: published, repeated (0), reached."""
    words: list[Word] = ["TOPIC.MPUBLISH", "RECORD"]
    words += [
        arguments.instance("a message", message, Message).to_record()
        for message in arguments.some("messages", messages, MAX_COUNT)
    ]

    def parse(reply: object) -> tuple[int, int, int]:
        published, known, reached = wire.array(reply, 3)
        return wire.integer(published), wire.integer(known), wire.integer(reached)

    return Command(tuple(words), parse)


def outbox_read() -> Command[tuple[tuple[int, int, bytes], ...]]:
    """`OUTBOX.READ`, to a node of a cluster: slot, number and record of the messages that wait there."""

    def parse(reply: object) -> tuple[tuple[int, int, bytes], ...]:
        rows = [wire.array(row, 3) for row in wire.array(reply)]
        return tuple((wire.integer(slot), wire.integer(number), wire.string(record)) for slot, number, record in rows)

    return Command(("OUTBOX.READ",), parse, scope=Scope.ALL)


def outbox_publish(slot: int, messages: Sequence[tuple[int, bytes]]) -> Command[int]:
    """`TOPIC.MPUBLISH` of messages of a slot's outbox (number and record), to all slots. Replies sessions reached."""
    arguments.in_range("slot", slot, 0, SLOTS - 1)
    tail: list[Word] = ["RECORD"]
    for message in arguments.some("messages", messages, MAX_COUNT):
        number, record = arguments.pair("a message", message, "number and record")
        tail += [arguments.in_range("number", number, 1, wire.MAX_CHUNK), arguments.binary("record", record)]

    def parse(reply: object) -> int:
        return wire.integer(wire.array(reply, 3)[2])

    words = ("TOPIC.MPUBLISH", "PRODUCER", f"outbox:{slot}", 1, 0)
    return Command(words, parse, scope=Scope.SLOTS, merge=sum, tail=tuple(tail))


_MEMBER_END = b"\xfc"


def outbox_is_end(body: bytes) -> bool:
    """Whether an element of an outbox is the end of a member session of a group, and no message."""
    return body.startswith(_MEMBER_END)


def outbox_end(element: bytes) -> Command[int]:
    """`SESSION.DROP` of the member session that such an element names. Raises FencedError if a later one has it.

    Raises:
        ValueError: if the element has another form.
    """
    claim = key = b""
    if isinstance(element, bytes):
        claim, _, key = element[len(_MEMBER_END) :].partition(b" ")
    if not claim.isdigit() or not key or not outbox_is_end(element):
        raise arguments.wrong("an element of an outbox", element, "0xFC, a claim, a space and a session key")
    return Command(("SESSION.DROP", key, "CLAIM", int(claim)), wire.integer)


def outbox_ack(slot: int, number: int) -> Command[int]:
    """`OUTBOX.ACK`, to the node of the slot: removes messages up to a number. Replies how many."""
    words = ("OUTBOX.ACK", arguments.in_range("slot", slot, 0, SLOTS - 1))
    return Command((*words, arguments.in_range("number", number, 1, wire.MAX_CHUNK)), wire.integer, scope=Scope.ALL)


def topic_commit(last: ProducerChunk) -> Command[tuple[int, int]]:
    """`TOPIC.COMMIT`: tells a cluster that all slots have the producer's messages up to this chunk.

    Send it with `for_slots`: first to the slot of `{id}_producer`, then, after the reply, to all slots.

    Replies 1 if the node recorded it, else 0, and how many records of slots it removed.
    """
    _producer, *words = wire.chunk_words(arguments.instance("last", last, ProducerChunk))

    def parse(reply: object) -> tuple[int, int]:
        noted, ended = wire.array(reply, 2)
        return wire.integer(noted), wire.integer(ended)

    return Command(("TOPIC.COMMIT", *words), parse, scope=Scope.SLOTS, merge=_sums)


def _sums(parts: Sequence[tuple[int, int]]) -> tuple[int, int]:
    return sum(noted for noted, _ in parts), sum(ended for _, ended in parts)


def topic_retained(topic_filter: str, *, count: int | None = None) -> Command[tuple[str, ...]]:
    """`TOPIC.RETAINED`: the topics that match the filter and have a retained message."""
    words: list[Word] = ["TOPIC.RETAINED", wire.topic_filter(topic_filter)]
    if count is not None:
        words += ["COUNT", arguments.in_range("count", count, 1, MAX_RETAINED)]

    def merge(parts: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
        return tuple(sorted({topic for part in parts for topic in part}))[:count]

    return Command(tuple(words), wire.names, scope=Scope.SLOTS, merge=merge)


def topic_retained_pages(topic_filter: str, *, count: int | None = None) -> Command[RetainedPage[str]]:
    """`TOPIC.RETAINED … CURSOR`: as `topic_retained`, in as many pages as it takes."""

    def merge(parts: Sequence[RetainedPage[str]]) -> RetainedPage[str]:
        return RetainedPage(None, tuple(sorted({topic for part in parts for topic in part.entries}))[:count])

    return _retained_page(topic_filter, (), "0", count, wire.names, merge)


def topic_match(topic: str, *, cursor: str | None = None, count: int | None = None) -> Command[MatchesPage]:
    """`TOPIC.MATCH`: a page of the subscriptions of one node that a topic matches."""
    words: list[Word] = ["TOPIC.MATCH", wire.topic(topic)]
    if cursor is not None:
        words += ["CURSOR", arguments.name("cursor", cursor)]
    if count is not None:
        words += ["COUNT", arguments.in_range("count", count, 1, MAX_MATCHES)]

    def parse(reply: Any) -> MatchesPage:
        following, rows, complete = wire.array(reply, 3)
        at = wire.decoded(following)
        return MatchesPage(
            None if at == "0" else at, tuple(_match(row) for row in wire.array(rows)), wire.flag(complete)
        )

    return Command(tuple(words), parse)


def topic_groups(*, cursor: str | None = None, count: int | None = None) -> Command[GroupsPage]:
    """`TOPIC.GROUPS`: a page of the groups of shared subscriptions of one node."""

    def parse(reply: Any) -> GroupsPage:
        following, rows = _page(reply)
        return GroupsPage(
            following, tuple(GroupRow(wire.decoded(name), *map(wire.integer, more)) for name, *more in rows)
        )

    return Command(_page_words("TOPIC.GROUPS", cursor, count), parse)


def channel_list(*, cursor: str | None = None, count: int | None = None) -> Command[ChannelsPage]:
    """`CHANNEL.LIST`: a page of the channels of one node of which messages are kept."""

    def parse(reply: Any) -> ChannelsPage:
        following, rows = _page(reply)
        found = (ChannelRow(wire.decoded(name), wire.integer(held), wire.flag(last)) for name, held, last in rows)
        return ChannelsPage(following, tuple(found))

    return Command(_page_words("CHANNEL.LIST", cursor, count), parse)


def _page_words(name: str, cursor: str | None, count: int | None) -> tuple[Word, ...]:
    words: list[Word] = [name]
    if cursor is not None:
        words += ["CURSOR", arguments.name("cursor", cursor)]
    if count is not None:
        words += ["COUNT", arguments.in_range("count", count, 1, MAX_MATCHES)]
    return tuple(words)


def _page(reply: Any) -> tuple[str | None, list[Sequence[Any]]]:
    """The cursor of the next page, None if there is none, and the rows."""
    following, rows = wire.array(reply, 2)
    at = wire.decoded(following)
    return None if at == "0" else at, [wire.array(row, 3) for row in wire.array(rows)]


def _match(reply: Any) -> MatchRow:
    topic_filter, key, client_id, qos, members = wire.array(reply, 5)
    return MatchRow(
        wire.decoded(topic_filter),
        wire.decoded(key),
        wire.decoded(client_id),
        None if qos is None else wire.integer(qos),
        None if members is None else wire.integer(members),
    )


def topic_retained_values(topic_filter: str, *, count: int | None = None) -> Command[tuple[Message, ...]]:
    """`TOPIC.RETAINED … VALUES`: the retained messages whose topics match the filter, ordered by topic."""
    words: list[Word] = ["TOPIC.RETAINED", wire.topic_filter(topic_filter), "VALUES"]
    if count is not None:
        words += ["COUNT", arguments.in_range("count", count, 1, MAX_RETAINED)]

    def merge(parts: Sequence[tuple[Message, ...]]) -> tuple[Message, ...]:
        return _newest(message for part in parts for message in part)[:count]

    return Command(tuple(words), lambda reply: _newest(_messages(reply))[:count], scope=Scope.SLOTS, merge=merge)


def topic_retained_values_pages(topic_filter: str, *, count: int | None = None) -> Command[RetainedPage[Message]]:
    """`TOPIC.RETAINED … CURSOR … VALUES`: as `topic_retained_values`, in as many pages as it takes."""

    def merge(parts: Sequence[RetainedPage[Message]]) -> RetainedPage[Message]:
        return RetainedPage(None, _newest(message for part in parts for message in part.entries)[:count])

    return _retained_page(topic_filter, ("VALUES",), "0", count, _messages, merge)


def retained_fields(topic: str) -> Command[Message | None]:
    """`HGETALL` of the topic's retained message. Its expiry is not in the reply (see `retained_expiry`)."""
    return Command(("HGETALL", core.retained_key(wire.topic(topic))), _parse_retained)


def retained_expiry(topic: str) -> Command[int | None]:
    """`PEXPIRETIME` of the topic's retained message: milliseconds since 1970. None if it never expires or is gone."""
    return Command(("PEXPIRETIME", core.retained_key(wire.topic(topic))), _parse_expiry)


# --- The server -------------------------------------------------------------------------------------------------------


def holdmq_check() -> Command[tuple[str, ...]]:
    """`HOLDMQ.CHECK`: the differences between the indexes in memory and the keys. Empty if all is well."""

    def merge(parts: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
        return tuple(line for part in parts for line in part)

    return Command(("HOLDMQ.CHECK",), wire.names, scope=Scope.ALL, merge=merge)


# --- Arguments --------------------------------------------------------------------------------------------------------


def check_names(what: str, names: Sequence[Text], most: int) -> None:
    """Raises `ArgumentError` unless there are 1 to `most` names, none of them empty."""
    if not all(arguments.name(f"one of the {what}", name) for name in arguments.some(what, names, most)):
        raise ArgumentError(f"{what} are {names!r:.200}; expected none of them empty")


def check_page(page: int) -> None:
    """Raises `ArgumentError` unless the page size is 1 to 10000."""
    arguments.in_range("page", page, 1, MAX_COUNT)


def _retained_page(
    topic_filter: str,
    options: tuple[Word, ...],
    cursor: str,
    count: int | None,
    parse_entries: Callable[[Any], tuple[T, ...]],
    merge: Callable[[Sequence[RetainedPage[T]]], RetainedPage[T]],
) -> Command[RetainedPage[T]]:
    """A page of `TOPIC.RETAINED`, and those that follow until there are `count` entries."""
    left = RETAINED_BY_DEFAULT if count is None else arguments.in_range("count", count, 1, MAX_RETAINED)

    def parse(reply: Any) -> RetainedPage[T]:
        at, entries = wire.array(reply, 2)
        return RetainedPage(None if wire.decoded(at) == "0" else wire.decoded(at), parse_entries(entries))

    def following(page: RetainedPage[T]) -> Command[RetainedPage[T]] | None:
        more = left - len(page.entries)
        if page.cursor is None or more <= 0:
            return None
        return _retained_page(topic_filter, options, page.cursor, more, parse_entries, merge)

    words = ("TOPIC.RETAINED", wire.topic_filter(topic_filter), "CURSOR", cursor, "COUNT", left, *options)
    return Command(words, parse, scope=Scope.SLOTS, merge=merge, following=following)


def _messages(reply: Any) -> tuple[Message, ...]:
    return tuple(Message.from_record(wire.string(item)) for item in wire.array(reply))


def _newest(messages: Iterable[Message]) -> tuple[Message, ...]:
    """The newest message of each topic: while a slot moves, its old and its new node may both know a message."""
    newest: dict[str, Message] = {}
    for message in messages:
        known = newest.get(message.topic)
        if known is None or known.time_ms <= message.time_ms:
            newest[message.topic] = message
    return tuple(newest[topic] for topic in sorted(newest))


def _publisher(publisher: Publisher, qos: int) -> list[Word]:
    words: list[Word] = ["FROM", arguments.name("publisher", publisher.client_id, MAX_CLIENT_ID_BYTES)]
    if arguments.in_range("epoch of the publisher", publisher.epoch, 0, wire.MAX_NUMBER):
        words += ["EPOCH", publisher.epoch]
    if publisher.packet_id is not None:
        if qos != 2:
            raise ArgumentError(f"qos is {qos!r} for a publisher with a packet_id; expected 2")
        words += ["PACKET", arguments.in_range("packet_id of the publisher", publisher.packet_id, 1, MAX_PACKET_ID)]
    return [*words, "RETRY"] if arguments.flag("is_retry of the publisher", publisher.is_retry) else words


# --- Replies ----------------------------------------------------------------------------------------------------------


def _text(reply: object) -> Text:
    if not isinstance(reply, (bytes, str)):
        raise wire.wrong(reply, "a string")
    return reply


def _optional_text(reply: object) -> Text | None:
    return None if reply is None else _text(reply)


def _parse_texts(reply: object) -> list[Text]:
    return [_text(item) for item in wire.array(reply)]


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


def _parse_expiry(reply: object) -> int | None:
    at_ms = wire.integer(reply)
    return None if at_ms < 0 else at_ms
