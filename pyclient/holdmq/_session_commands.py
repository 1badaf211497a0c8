"""The commands about sessions, without I/O; `holdmq.commands` exports them."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

from holdmq import _arguments as arguments
from holdmq import _session_parsing as parsing
from holdmq import _wire as wire
from holdmq import core
from holdmq._command import Command, Scope
from holdmq._wire import Word
from holdmq.durations import Duration, whole_seconds
from holdmq.errors import ArgumentError
from holdmq.replies import (
    AckResult,
    AddResult,
    EntryState,
    ImportResult,
    Message,
    OpenResult,
    Overflow,
    Page,
    Payload,
    QueueBounds,
    QueuedMessage,
    ReplayResult,
    SessionInfo,
    SessionsPage,
    SubscriptionOptions,
    SubscriptionsPage,
    Text,
    UserBounds,
    Will,
)

MAX_LIMIT = 65535
"""The maximum number of messages in a session's queue: one for each packet identifier."""
MAX_TTL_S = 2**31 - 1
"""The longest time to live of a message, in seconds."""
MAX_EXPIRY_S = 2**32 - 1
"""The longest expiry of a session, in seconds."""
MAX_QUEUE_BYTES = 2**40
MAX_QUOTA = 2**40
MAX_ROUTES = 256
"""The maximum number of filters in a subscription in a cluster."""
MAX_BATCH = 1000
"""The maximum number of payloads in a batch of a producer."""
MAX_COUNT = 10_000
"""The maximum number of messages in a page."""
MAX_PACKET_ID = 65535
"""The largest packet identifier."""
MAX_CLIENT_ID_BYTES = 65535
"""The maximum length of a client id, as of any text in MQTT."""
MAX_NAME_BYTES = 1024
"""The maximum length of the name of an owner or producer, and of a prefix."""
MAX_IDENTITY_BYTES = 2048
MAX_SERIAL = 2**52
"""The largest serial of an imported message."""


def session_add(
    client_id: Text,
    payloads: Sequence[Payload],
    *,
    limit: int | None = None,
    ttl: Duration | None = None,
    producer: tuple[Text, int] | None = None,
    prefix: Text = b"",
) -> Command[AddResult]:
    """`SESSION.ADD`: appends messages with the same time to live.

    With `producer` (a name and the number of the batch), a repeated batch is not stored again.
    """
    words = [*_session("SESSION.ADD", client_id, prefix), *_add_options(limit, ttl, producer), "MESSAGES"]
    most = arguments.MAX_WORDS if producer is None else MAX_BATCH
    words += [arguments.payload("payload", payload) for payload in arguments.some("payloads", payloads, most)]
    return Command(tuple(words), parsing.added)


def session_add_expiring(
    client_id: Text,
    messages: Sequence[tuple[Payload, Duration | None]],
    *,
    limit: int | None = None,
    ttl: Duration | None = None,
    producer: tuple[Text, int] | None = None,
    prefix: Text = b"",
) -> Command[AddResult]:
    """`SESSION.ADD … EXPIRING`: appends messages that each have their own time to live. None means `ttl`."""
    words = [*_session("SESSION.ADD", client_id, prefix), *_add_options(limit, ttl, producer), "EXPIRING"]
    most = arguments.MAX_WORDS if producer is None else MAX_BATCH
    for message in arguments.some("messages", messages, most):
        payload, own = arguments.pair("a message", message, "payload and time to live")
        words.append("" if own is None else whole_seconds("ttl of a message", own, 1, MAX_TTL_S))
        words.append(arguments.payload("payload", payload))
    return Command(tuple(words), parsing.added)


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
    """`SESSION.IMPORT`: imports a queue in one step. With `producer` (name and number of the call), once."""
    words = _session("SESSION.IMPORT", client_id, prefix)
    if arguments.flag("merge", merge):
        words.append("MERGE")
    if last_packet_id is not None:
        words += ["LASTID", arguments.in_range("last_packet_id", last_packet_id, 0, MAX_PACKET_ID)]
    words += _add_options(limit, None, producer)
    words += ["MESSAGES", len(arguments.some("messages", messages, MAX_COUNT, least=0))]
    for message in messages:
        arguments.instance("a message", message, QueuedMessage)
        words += [
            arguments.in_range("packet_id of a message", message.packet_id, 0, MAX_PACKET_ID),
            arguments.in_range("serial of a message", message.serial, 0, MAX_SERIAL),
            int(arguments.in_range("state of a message", message.state, 0, max(EntryState))),
            arguments.in_range("ttl_ms of a message", message.ttl_ms, 0, MAX_TTL_S * 1000),
            arguments.payload("value of a message", message.value),
        ]
    return Command(tuple(words), parsing.imported)


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
    """`SESSION.FETCH`: the queue after the serial `after`, or the next messages within `window`, or those in flight."""
    arguments.in_range("after", after, 0, wire.MAX_NUMBER)
    if (after != 0) + (window is not None) + arguments.flag("inflight", inflight) > 1:
        raise ArgumentError("two of after, window and inflight were given; expected one at most")
    words = [*_session("SESSION.FETCH", client_id, prefix), *_epoch(epoch)]
    if window is not None:
        words += ["WINDOW", arguments.in_range("window", window, 1, MAX_LIMIT)]
    elif inflight:
        words.append("INFLIGHT")
    else:
        words += ["AFTER", after]
    return Command((*words, *_fetch_options(count, max_bytes)), parsing.page)


def session_ack(client_id: Text, packet_ids: Sequence[int], *, epoch: int = 0, prefix: Text = b"") -> Command[int]:
    """`SESSION.ACK`: removes messages; replies how many were there."""
    words = [*_session("SESSION.ACK", client_id, prefix), *_epoch(epoch)]
    return Command((*words, *_packet_ids(packet_ids)), wire.integer)


def session_ack_next(
    client_id: Text, packet_ids: Sequence[int], count: int, *, epoch: int = 0, prefix: Text = b""
) -> Command[AckResult]:
    """`SESSION.ACK … NEXT`: removes messages and hands out up to `count` of those that follow."""
    words = [*_session("SESSION.ACK", client_id, prefix), *_epoch(epoch)]
    words += ["NEXT", arguments.in_range("count", count, 1, MAX_COUNT)]
    return Command((*words, *_packet_ids(packet_ids)), parsing.acked)


def session_sent(client_id: Text, serial: int, *, epoch: int = 0, prefix: Text = b"") -> Command[None]:
    """`SESSION.SENT`: records that messages up to `serial` reached the client by another way."""
    words = [*_session("SESSION.SENT", client_id, prefix), *_epoch(epoch)]
    return Command((*words, arguments.in_range("serial", serial, 0, wire.MAX_NUMBER)), wire.ok)


def session_release(client_id: Text, packet_ids: Sequence[int], *, epoch: int = 0, prefix: Text = b"") -> Command[int]:
    """`SESSION.RELEASE`: records a PUBREC. Replies how many of the messages were in the queue."""
    words = [*_session("SESSION.RELEASE", client_id, prefix), *_epoch(epoch)]
    return Command((*words, *_packet_ids(packet_ids)), wire.integer)


def session_receive(client_id: Text, packet_id: int, *, epoch: int = 0, prefix: Text = b"") -> Command[bool]:
    """`SESSION.RECEIVE`: records an incoming QoS 2 message. Replies True if it is new."""
    words = [*_session("SESSION.RECEIVE", client_id, prefix), *_epoch(epoch)]
    return Command((*words, arguments.in_range("packet_id", packet_id, 1, MAX_PACKET_ID)), wire.flag)


def session_complete(client_id: Text, packet_ids: Sequence[int], *, epoch: int = 0, prefix: Text = b"") -> Command[int]:
    """`SESSION.COMPLETE`: records a PUBREL. Replies how many packet identifiers were in use."""
    words = [*_session("SESSION.COMPLETE", client_id, prefix), *_epoch(epoch)]
    return Command((*words, *_packet_ids(packet_ids)), wire.integer)


def session_last(client_id: Text, *, prefix: Text = b"") -> Command[int]:
    """`SESSION.LAST`: the packet identifier assigned last, or 0."""
    return Command(tuple(_session("SESSION.LAST", client_id, prefix)), wire.integer)


def session_info(client_id: Text, *, prefix: Text = b"") -> Command[SessionInfo]:
    """`SESSION.INFO`: the state of the session."""
    return Command(tuple(_session("SESSION.INFO", client_id, prefix)), parsing.info)


def session_drop(client_id: Text, *, epoch: int = 0, prefix: Text = b"") -> Command[int]:
    """`SESSION.DROP`: removes the session. Replies how many messages it had."""
    return Command((*_session("SESSION.DROP", client_id, prefix), *_epoch(epoch)), wire.integer)


def session_open(  # noqa: PLR0913 - the options of the command
    client_id: Text,
    owner: Text,
    *,
    clean: bool = False,
    expiry: Duration | None = None,
    lease: Duration | None = None,
    bounds: QueueBounds | None = None,
    user_bounds: UserBounds | None = None,
    will: Will | None = None,
    identity: Text | None = None,
    prefix: Text = b"",
) -> Command[OpenResult]:
    """`SESSION.OPEN`: creates the session or takes it over."""
    words = [*_session("SESSION.OPEN", client_id, prefix), "OWNER", _owner(owner)]
    if arguments.flag("clean", clean):
        words.append("CLEAN")
    if expiry is not None:
        words += ["EXPIRY", whole_seconds("expiry", expiry, 0, MAX_EXPIRY_S)]
    if lease is not None:
        words += ["LEASE", whole_seconds("lease", lease, 1, MAX_EXPIRY_S)]
    if bounds is not None:
        words += _bounds(arguments.instance("bounds", bounds, QueueBounds))
    if user_bounds is not None:
        words += _user_bounds(arguments.instance("user_bounds", user_bounds, UserBounds))
    if identity is not None:
        words += ["IDENTITY", arguments.name("identity", identity, MAX_IDENTITY_BYTES)]
    if will is not None:
        words += _will(arguments.instance("will", will, Will))
    return Command(tuple(words), parsing.opened)


def _bounds(bounds: QueueBounds) -> list[Word]:
    words: list[Word] = []
    if bounds.max_bytes is not None:
        words += ["MAXBYTES", arguments.in_range("max_bytes", bounds.max_bytes, 1, MAX_QUEUE_BYTES)]
    if bounds.overflow is not None:
        if bounds.overflow not in get_args(Overflow):
            raise ArgumentError(f"overflow is {bounds.overflow!r}; expected one of {', '.join(get_args(Overflow))}")
        words += ["OVERFLOW", bounds.overflow]
    return words


def _user_bounds(bounds: UserBounds) -> list[Word]:
    words: list[Word] = []
    for name, word in (("sessions", "USERSESSIONS"), ("queue_bytes", "USERBYTES"), ("retained", "USERRETAINED")):
        bound = getattr(bounds, name)
        if bound is not None:
            words += [word, arguments.in_range(name, bound, 0, MAX_QUOTA)]
    return words


def session_list(
    *, cursor: str | None = None, count: int | None = None, connected: bool = False
) -> Command[SessionsPage]:
    """`SESSION.LIST`: a page of the opened sessions of one node."""
    words: list[Word] = ["SESSION.LIST"]
    if cursor is not None:
        words += ["CURSOR", arguments.name("cursor", cursor)]
    if count is not None:
        words += ["COUNT", arguments.in_range("count", count, 1, MAX_COUNT)]
    if arguments.flag("connected", connected):
        words.append("CONNECTED")
    return Command(tuple(words), parsing.sessions)


def session_owner(name: Text, lease: Duration) -> Command[None]:
    """`SESSION.OWNER`: the heartbeat of an owner of sessions. A lease of 0 means that the owner is gone."""
    words = ("SESSION.OWNER", _owner(name), "LEASE", whole_seconds("lease", lease, 0, MAX_EXPIRY_S))
    return Command(words, wire.ok, scope=Scope.FIRST)


def session_touch(client_id: Text, *, epoch: int, prefix: Text = b"") -> Command[None]:
    """`SESSION.TOUCH`: renews the lease."""
    return Command((*_session("SESSION.TOUCH", client_id, prefix), *_epoch(epoch)), wire.ok)


def session_close(
    client_id: Text,
    *,
    epoch: int,
    expiry: Duration | None = None,
    sent: int | None = None,
    will: bool = False,
    prefix: Text = b"",
) -> Command[None]:
    """`SESSION.CLOSE`: ends the client's connection. With `will`, the will is published; otherwise it is discarded."""
    words = [*_session("SESSION.CLOSE", client_id, prefix), *_epoch(epoch)]
    if expiry is not None:
        words += ["EXPIRY", whole_seconds("expiry", expiry, 0, MAX_EXPIRY_S)]
    if sent is not None:
        words += ["SENT", arguments.in_range("sent", sent, 0, wire.MAX_NUMBER)]
    if arguments.flag("will", will):
        words.append("WILL")
    return Command(tuple(words), wire.ok)


def session_subscribe(
    client_id: Text, filters: Mapping[str, SubscriptionOptions], *, epoch: int = 0, prefix: Text = b""
) -> Command[tuple[bool, ...]]:
    """`SESSION.SUBSCRIBE`: replies True for each new filter, False for one whose options were replaced."""
    words = [*_session("SESSION.SUBSCRIBE", client_id, prefix), *_epoch(epoch)]
    for topic_filter, options in arguments.some("filters", arguments.mapping("filters", filters).items()):
        text = arguments.instance(f"value of {topic_filter!r}", options, SubscriptionOptions).text
        words += [wire.topic_filter(topic_filter), text]
    return Command(tuple(words), parsing.flags)


@dataclass(frozen=True, slots=True)
class SubscribedRoutes:
    """The reply to a subscription in a cluster, with the nodes that must know its routes.

    Attributes:
        new: True for each new filter, False for one whose options were replaced.
        homes: the nodes to which the session's node has exported its routes, each with its generation.
        primaries: the primaries that the session's node knows.
        routes: the filters, without groups, each with the session's slot.
    """

    new: tuple[bool, ...]
    homes: dict[str, int]
    primaries: frozenset[str]
    routes: tuple[tuple[bytes, int], ...]


def session_subscribe_routes(
    client_id: Text, filters: Mapping[str, SubscriptionOptions], *, epoch: int = 0, prefix: Text = b""
) -> Command[SubscribedRoutes]:
    """`SESSION.SUBSCRIBE … ROUTES`: as `session_subscribe`, in a cluster. Takes up to 256 filters."""
    arguments.some("filters", list(arguments.mapping("filters", filters)), MAX_ROUTES)
    plain = session_subscribe(client_id, filters, epoch=epoch, prefix=prefix)
    head = 2 + len(_epoch(epoch))
    key = plain.words[1]
    slot = core.slot_of(key if isinstance(key, bytes) else str(key))
    shares = {one: core.split_share(one) for one in map(wire.topic_filter, filters)}
    routes = tuple((one if share is None else share[1], slot) for one, share in shares.items())

    def parse(reply: object) -> SubscribedRoutes:
        new, homes, primaries, _states = wire.array(reply, 4)
        pairs = wire.array(homes)
        return SubscribedRoutes(
            parsing.flags(new),
            {wire.decoded(node): wire.integer(n) for node, n in zip(pairs[::2], pairs[1::2], strict=True)},
            frozenset(map(wire.decoded, wire.array(primaries))),
            routes,
        )

    return Command((*plain.words[:head], "ROUTES", *plain.words[head:]), parse)


def route_drophome(node: str, generation: int, key: bytes) -> Command[bool]:
    """`ROUTE.DROPHOME`, to the node of the slot of `key`: forget that routes were exported to a node without slots."""
    arguments.in_range("generation", generation, 1, wire.MAX_NUMBER)
    if not arguments.instance("key", key, bytes):
        raise ArgumentError("key is empty; expected the key of a session")
    words = ("ROUTE.DROPHOME", arguments.name("node", node, MAX_NAME_BYTES), generation)
    return Command(words, wire.flag, scope=Scope.SHARD, key=key)


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
    """`SESSION.REPLAY`: reads more history into the queue, for subscriptions that start in the past."""
    words = [*_session("SESSION.REPLAY", client_id, prefix), *_epoch(epoch)]
    numbers = (("COUNT", "count", count), ("BYTES", "max_bytes", max_bytes), ("VISIT", "visit", visit))
    for word, name, value in (*numbers, ("QUEUE", "queue", queue)):
        if value is not None:
            words += [word, arguments.in_range(name, value, 1, wire.MAX_NUMBER)]
    return Command(tuple(words), parsing.replayed)


def session_unsubscribe(
    client_id: Text, filters: Sequence[str], *, epoch: int = 0, prefix: Text = b""
) -> Command[tuple[bool, ...]]:
    """`SESSION.UNSUBSCRIBE`: replies True for each filter that the session had."""
    words = [*_session("SESSION.UNSUBSCRIBE", client_id, prefix), *_epoch(epoch)]
    words += [wire.topic_filter(topic_filter) for topic_filter in arguments.some("filters", filters)]
    return Command(tuple(words), parsing.flags)


def session_subscriptions(client_id: Text, *, prefix: Text = b"") -> Command[dict[str, SubscriptionOptions]]:
    """`SESSION.SUBSCRIPTIONS`: the options of each filter."""
    return Command(tuple(_session("SESSION.SUBSCRIPTIONS", client_id, prefix)), parsing.subscriptions)


def session_subscriptions_pages(client_id: Text, *, prefix: Text = b"") -> Command[SubscriptionsPage]:
    """`SESSION.SUBSCRIPTIONS … CURSOR`: as `session_subscriptions`, in as many pages as it takes."""
    return _subscriptions_page(_session("SESSION.SUBSCRIPTIONS", client_id, prefix), "0")


def _subscriptions_page(words: Sequence[Word], cursor: str) -> Command[SubscriptionsPage]:
    def following(page: SubscriptionsPage) -> Command[SubscriptionsPage] | None:
        return None if page.cursor is None else _subscriptions_page(words, page.cursor)

    def merge(parts: Sequence[SubscriptionsPage]) -> SubscriptionsPage:
        return SubscriptionsPage(None, {name: options for part in parts for name, options in part.filters.items()})

    return Command((*words, "CURSOR", cursor), parsing.subscriptions_page, merge=merge, following=following)


def session_deliver(
    client_id: Text, messages: Sequence[Message], *, epoch: int = 0, prefix: Text = b""
) -> Command[int]:
    """`SESSION.DELIVER`: delivers messages like matching publishes. Replies how many were delivered."""
    words = [*_session("SESSION.DELIVER", client_id, prefix), *_epoch(epoch)]
    words += [
        arguments.instance("a message", message, Message).to_record()
        for message in arguments.some("messages", messages)
    ]
    return Command(tuple(words), wire.integer)


# --- Arguments --------------------------------------------------------------------------------------------------------


_session_key = functools.lru_cache(maxsize=4096)(core.session_key)  # a third of the cost of building a command


def _session(command: str, client_id: Text, prefix: Text) -> list[Word]:
    name = arguments.name("client_id", client_id, MAX_CLIENT_ID_BYTES)
    before = arguments.name("prefix", prefix)
    if b"{" in before or len(before) > MAX_NAME_BYTES:
        raise arguments.wrong("prefix", prefix, f"one without '{{', of at most {MAX_NAME_BYTES} bytes")
    return [command, before + _session_key(name)]


def _owner(name: Text) -> bytes:
    return arguments.name("owner", name, MAX_NAME_BYTES)


def _epoch(epoch: int) -> list[Word]:
    return ["EPOCH", arguments.in_range("epoch", epoch, 0, wire.MAX_NUMBER)]


def _add_options(limit: int | None, ttl: Duration | None, producer: tuple[Text, int] | None) -> list[Word]:
    words: list[Word] = []
    if limit is not None:
        words += ["LIMIT", arguments.in_range("limit", limit, 1, MAX_LIMIT)]
    if ttl is not None:
        words += ["TTL", whole_seconds("ttl", ttl, 1, MAX_TTL_S)]
    if producer is not None:
        name, sequence = arguments.pair("producer", producer, "name and number")
        words += [
            "PRODUCER",
            arguments.name("producer", name, MAX_NAME_BYTES),
            arguments.in_range("sequence", sequence, 1, wire.MAX_NUMBER),
        ]
    return words


def _fetch_options(count: int | None, max_bytes: int | None) -> list[Word]:
    words: list[Word] = []
    if count is not None:
        words += ["COUNT", arguments.in_range("count", count, 1, MAX_COUNT)]
    if max_bytes is not None:
        words += ["BYTES", arguments.in_range("max_bytes", max_bytes, 1, wire.MAX_NUMBER)]
    return words


def _will(will: Will) -> list[Word]:
    words: list[Word] = ["WILL", wire.topic(will.topic), arguments.payload("payload of the will", will.payload)]
    words += ["WILLQOS", arguments.in_range("qos of the will", will.qos, 0, 2)]
    if arguments.flag("retain of the will", will.retain):
        words.append("WILLRETAIN")
    delay = whole_seconds("delay of the will", will.delay, 0, MAX_EXPIRY_S)
    if delay:
        words += ["WILLDELAY", delay]
    if will.ttl is not None:
        words += ["WILLTTL", whole_seconds("ttl of the will", will.ttl, 0, MAX_EXPIRY_S)]
    if arguments.binary("properties of the will", will.properties):
        words += ["WILLPROPERTIES", will.properties]
    return words


def _packet_ids(packet_ids: Sequence[int]) -> list[Word]:
    return [
        arguments.in_range("packet_id", packet_id, 1, MAX_PACKET_ID)
        for packet_id in arguments.some("packet_ids", packet_ids)
    ]
