"""The engine of an MQTT front end: bytes of clients and of the server in, bytes for both out (src/engine/engine.h).

One engine per process and event loop.  Frequent packets never become Python objects.  Rare ones become an `Event`.  All
times are milliseconds since 1970.  Nothing here is thread-safe.

The two buffers are for `asyncio.BufferedProtocol`, one for all clients and one for the server, so that no bytes object
is made per read.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from holdmq.core._binding import LIBC_ALLOCATOR, CData, ffi, freer, lib

__all__ = [
    "CORE_DIGEST",
    "Counters",
    "Engine",
    "EngineSettings",
    "Event",
    "EventKind",
    "Loudest",
    "OpenSession",
    "OutOfStepError",
    "Store",
    "TraceKind",
    "TraceOutcome",
    "TraceRow",
    "Tracing",
    "Traffic",
    "error_text",
]

BUFFER_BYTES = 262_144

# Of the core's sources: other C code that uses its headers must be built from the same.
CORE_DIGEST = str(ffi.string(lib.HMQ_SOURCES_DIGEST).decode())

# Names in the order of the C structure; its arrays become tuples.
Counters = dict[str, "int | tuple[int, ...]"]


class OutOfStepError(Exception):
    """The server's bytes are not replies to what was sent: connect to it again."""


class Backlog(IntEnum):
    """The backlog of a client: messages that wait for its acknowledgements; hmq_engine_backlog."""

    NONE = 0
    WAITS = 1
    GROWS = 2


class EventKind(IntEnum):
    """The kind of an event; hmq_engine_event_kind."""

    PACKET = 1  # a whole packet for the owner, who then calls `proceed`
    ERROR = 2  # a fault of the client: `error`, and in `code` the reason code of MQTT 5.0
    REPLY = 3  # the reply to the command with `token`: `data` is RESP
    PUSH = 4  # a push of the server that is not a delivery: `data` is RESP
    TAKEN_OVER = 5  # the session has a new owner, or is gone
    FAILED = 6  # the server permanently refused a command of this client: `data` is the error
    CONFLICT = 7  # the server was restored from an older state: the client has to reconnect
    RELIEF = 8  # the client may be read again
    REFUSED = 9  # a temporary refusal: the engine retries
    ROOM = 10  # there is room for more of the client's backlog; requested by `replays`
    DENIED = 11  # the client's first publish that its rules deny: `data` is the topic; then call `proceed`
    WITHHELD = 12  # the first message for the client whose topic its rules deny: `data` is the topic
    ABANDONED = 13  # a publish is refused: it broke each connection; `data` is its topic, `token` its size
    UNCONFIRMED = 14  # acknowledgements are withheld: `token` replicas confirmed, or `data` is the server's error
    CONFIRMED = 15  # acknowledgements are sent again: `token` replicas confirmed
    SLOT_MOVED = 16  # the node of `link` has not got the slot `token`: `data` is MOVED host:port
    ROUTES_MISSING = 17  # code 0: the node of `link` is not fed; 1: it has not exported to generation `token` of `data`


class Traffic(NamedTuple):
    """The traffic of a connection; hmq_engine_traffic."""

    conn: int
    received: int
    bytes_received: int
    sent: int
    bytes_sent: int
    inflight: int
    ready: int
    received_lately: int
    sent_lately: int


def _traffic(row: CData) -> Traffic:
    return Traffic(*(int(getattr(row, name)) for name in Traffic._fields))


class Loudest:
    """The connections that published most in a measurement, the loudest first; of equals, that were sent most."""

    MOST = 20

    def __init__(self) -> None:
        self.rows = ffi.new("hmq_engine_traffic[]", self.MOST)
        self.count = ffi.new("uint32_t *")

    def all(self) -> list[Traffic]:
        """The rows."""
        return [_traffic(self.rows[at]) for at in range(self.count[0])]


class Event(NamedTuple):
    """An event.  `conn` is 0 if it is about no connection."""

    kind: int
    conn: int
    data: bytes
    code: int
    error: int
    token: int
    epoch: int
    link: int = 0


@dataclass(frozen=True)
class EngineSettings:
    """Bounds of the engine, explained at hmq_engine_settings."""

    max_packet_bytes: int = 1_048_576
    max_connect_bytes: int = 0
    max_filters: int = 0
    max_user_properties: int = 0
    max_user_property_bytes: int = 0
    max_unread_connects: int = 0
    max_client_outstanding: int = 1000
    max_client_outstanding_bytes: int = 0
    max_outstanding: int = 50_000
    max_outstanding_bytes: int = 67_108_864
    max_ready: int = 1000
    max_ready_bytes: int = 65_536
    max_pipeline: int = 64
    max_fetches: int = 64
    max_fetch_bytes: int = 1_048_576
    max_output_bytes: int = 262_144
    message_expiry_s: int = 0
    max_message_expiry_s: int = 0
    retry_first_ms: int = 50
    retry_most_ms: int = 2000
    retry_total_ms: int = 60_000
    wait_replicas: int = 0
    wait_timeout_ms: int = 100
    links: int = 1
    cluster: int = 0
    max_answer_bytes: int = 4_194_304
    inbox_seed: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class OpenSession:
    """The terms of a session; hmq_engine_session."""

    version: int
    client_id: bytes
    key: bytes
    epoch: int
    resumed: bool = False
    window: int = 100
    places: int = 0
    receive_maximum: int = 0
    alias_maximum_in: int = 0
    alias_maximum_out: int = 0
    max_packet_out: int = 0
    replay_rate: int = 0
    publish_rate: int = 0
    denied_otherwise: bool = False
    link: int = 0


@dataclass(frozen=True)
class Member:
    """A further session of a client, in the slot of a group; hmq_engine_member.  `block`: of packet identifiers."""

    key: bytes
    epoch: int
    link: int
    block: int
    window: int = 100
    places: int = 0


@dataclass(frozen=True)
class Store:
    """A store of history in a cluster; hmq_engine_store.  `slots`: of the shards that new messages go to."""

    filters: tuple[bytes, ...]
    seed: int
    slots: tuple[int, ...]


class TraceKind(IntEnum):
    """What a trace is of; hmq_engine_trace_kind."""

    PUBLISH = 1
    DELIVERY = 2


class TraceOutcome(IntEnum):
    """How a trace ended; hmq_engine_trace_outcome."""

    DONE = 0
    REFUSED = 1
    LOST = 2
    LATE = 3
    SKIPPED = 4


class TraceRow(NamedTuple):
    """A publish or a delivery that is over; hmq_engine_trace_row."""

    kind: TraceKind
    outcome: TraceOutcome
    qos: int
    retain: bool
    was_queued: bool
    attempts: int
    trace_id: bytes
    parent_id: bytes | None
    span_id: bytes
    server_span_id: bytes
    payload_bytes: int
    sessions: int | None
    began_ns: int
    sent_ns: int
    answered_ns: int
    ended_ns: int
    topic: bytes
    topic_len: int
    client_id: bytes


@dataclass(frozen=True)
class Tracing:
    """What is traced; hmq_engine_tracing.  `clock`: a C function without arguments, the time in ns since 1970."""

    sample: float
    rate: int
    seed: tuple[int, int]
    clock: CData
    adds_context: bool = False


MOST_LINKS = int(lib.HMQ_MOST_LINKS)
NO_LINK = int(lib.HMQ_NO_LINK)
MEMBER_BLOCKS, MEMBER_IDS = int(lib.HMQ_MEMBER_BLOCKS), int(lib.HMQ_MEMBER_IDS)
MOST_TRACE_RATE = int(lib.HMQ_TRACE_MOST_RATE)
_TRACES_AT_ONCE = 64


def _trace_row(row: CData) -> TraceRow:
    return TraceRow(
        kind=TraceKind(row.kind),
        outcome=TraceOutcome(row.outcome),
        qos=row.qos,
        retain=row.retain,
        was_queued=row.was_queued,
        attempts=row.attempts,
        trace_id=bytes(row.trace_id),
        parent_id=bytes(row.parent_id) if row.has_parent else None,
        span_id=bytes(row.span_id),
        server_span_id=bytes(row.server_span_id),
        payload_bytes=row.payload_bytes,
        sessions=row.sessions if row.sessions >= 0 else None,
        began_ns=row.began_ns,
        sent_ns=row.sent_ns,
        answered_ns=row.answered_ns,
        ended_ns=row.ended_ns,
        topic=bytes(row.topic)[: row.topic_len],
        topic_len=row.topic_len,
        client_id=bytes(row.client_id)[: row.client_id_len],
    )


def error_text(error: int) -> str:
    """The text for the error of an ERROR event."""
    return str(ffi.string(lib.hmq_engine_error_text(error)).decode())


class Engine:
    """All connections of one process and its links to servers: one, numbered 0, unless `links` says more."""

    def __init__(self, settings: EngineSettings | None = None, *, allocator: CData = LIBC_ALLOCATOR) -> None:
        """`allocator`: an hmq_allocator of cffi, for tests.  Raises MemoryError, also above MOST_LINKS links."""
        values = ffi.new("hmq_engine_settings *", vars(settings or EngineSettings()))
        engine = lib.hmq_engine_new(values, allocator)
        if engine == ffi.NULL:
            raise MemoryError("the engine")
        self._engine: CData = ffi.gc(engine, freer(lib.hmq_engine_free, allocator))
        self._event = ffi.new("hmq_engine_event *")
        self._conn = ffi.new("hmq_conn *")
        self._slice = ffi.new("hmq_slice *")
        self._ok = ffi.new("bool *")
        self._buffer = ffi.new("uint8_t[]", BUFFER_BYTES)
        self._server_buffer = ffi.new("uint8_t[]", BUFFER_BYTES)
        self.buffer = memoryview(ffi.buffer(self._buffer))
        self.server_buffer = memoryview(ffi.buffer(self._server_buffer))

    @property
    def handle(self) -> CData:
        """The hmq_engine, for other C code."""
        return self._engine

    @staticmethod
    def function(name: str) -> CData:
        """A pointer to the C function hmq_engine_<name>, for other C code."""
        return ffi.addressof(lib, f"hmq_engine_{name}")

    @property
    def event(self) -> CData:
        """The hmq_engine_event that `last_event` reads."""
        return self._event

    def counters(self) -> Counters:
        """All counters."""
        counted = lib.hmq_engine_count(self._engine)
        result: Counters = {}
        for name, field in ffi.typeof("hmq_engine_counters").fields:
            value = getattr(counted, name)
            result[name] = tuple(value) if field.type.kind == "array" else int(value)
        return result

    @staticmethod
    def refusal_codes() -> tuple[str, ...]:
        """The error codes that the counter `refusals` counts, in its order."""
        codes: list[str] = []
        while (code := lib.hmq_engine_refusal_code(len(codes))) != ffi.NULL:
            codes.append(ffi.string(code).decode())
        return tuple(codes)

    def last_event(self) -> Event:
        """The event that the last call of the engine has set."""
        event = self._event
        data = event.bytes
        return Event(
            event.kind,
            event.conn,
            bytes(ffi.buffer(data.data, data.len)) if data.len else b"",
            event.code,
            event.error,
            event.token,
            event.epoch,
            event.link,
        )

    # ---- clients ---------------------------------------------------------------------------------------------------

    def attach(self) -> int:
        """Adds a connection; returns its handle.  Raises MemoryError."""
        conn = int(lib.hmq_engine_attach(self._engine))
        if conn == 0:
            raise MemoryError("a connection")
        return conn

    def receive(self, conn: int, data: bytes, now_ms: int) -> Event | None:
        """Takes bytes of a client.  After an event, call `proceed` for the packets after it."""
        if lib.hmq_engine_receive(self._engine, conn, data, len(data), now_ms, self._event):
            return self.last_event()
        return None

    def receive_buffered(self, conn: int, count: int, now_ms: int) -> Event | None:
        """Takes `count` bytes of a client from `buffer`."""
        if lib.hmq_engine_receive(self._engine, conn, self._buffer, count, now_ms, self._event):
            return self.last_event()
        return None

    @property
    def completed_packet(self) -> bool:
        """Whether the last bytes completed a packet, or a packet waits for `proceed`."""
        return bool(lib.hmq_engine_completed_packet(self._engine))

    def proceed(self, conn: int, now_ms: int) -> Event | None:
        """Takes the packets after one that is done."""
        if lib.hmq_engine_continue(self._engine, conn, now_ms, self._event):
            return self.last_event()
        return None

    def open(self, conn: int, session: OpenSession, now_ms: int) -> int:
        """Opens the session.  Returns the connection that had it in this process (0: none).  Raises MemoryError."""
        client_id, key = ffi.from_buffer("uint8_t[]", session.client_id), ffi.from_buffer("uint8_t[]", session.key)
        agreed = ffi.new(
            "hmq_engine_session *",
            {
                "version": session.version,
                "resumed": session.resumed,
                "denied_otherwise": session.denied_otherwise,
                "window": session.window,
                "places": session.places,
                "receive_maximum": session.receive_maximum,
                "alias_maximum_in": session.alias_maximum_in,
                "alias_maximum_out": session.alias_maximum_out,
                "max_packet_out": session.max_packet_out,
                "replay_rate": session.replay_rate,
                "publish_rate": session.publish_rate,
                "link": session.link,
                "epoch": session.epoch,
                "client_id": (client_id, len(session.client_id)),
            },
        )
        named = ffi.new("hmq_slice *", (key, len(session.key)))
        former = int(lib.hmq_engine_open(self._engine, conn, agreed, named[0], now_ms, self._ok))
        if not self._ok[0]:
            raise MemoryError("a session, or its connection is not waiting for one")
        return former

    def join(self, client: int, member: Member, now_ms: int) -> tuple[int, int]:
        """Adds a session to the connection of a client: its handle, and what had it in this process (0: nothing).

        Raises MemoryError: no memory, no such link, the block is in use, or the client has no open session.
        """
        key = ffi.from_buffer("uint8_t[]", member.key)
        described = ffi.new(
            "hmq_engine_member *",
            {
                "link": member.link,
                "block": member.block,
                "window": member.window,
                "places": member.places,
                "epoch": member.epoch,
            },
        )
        named, former = ffi.new("hmq_slice *", (key, len(member.key))), ffi.new("hmq_conn *")
        conn = int(lib.hmq_engine_join(self._engine, client, described, named[0], now_ms, former))
        if not conn:
            raise MemoryError("a member, or its client has no open session, or its block is in use")
        return conn, int(former[0])

    def rules(self, conn: int, rules: Sequence[tuple[bool, bytes]], *, denied_otherwise: bool) -> None:
        """Sets the rules for publishes: (allow, filter), the first match decides.  Raises MemoryError."""
        listed, _kept = _listed(rules)
        if not lib.hmq_engine_rules(self._engine, conn, listed, len(rules), denied_otherwise):
            raise MemoryError("rules")

    def receive_rules(self, conn: int, rules: Sequence[tuple[bool, bytes]], *, denied_otherwise: bool) -> None:
        """Sets the rules for messages to the client, in the same form.  Raises MemoryError."""
        listed, _kept = _listed(rules)
        if not lib.hmq_engine_receive_rules(self._engine, conn, listed, len(rules), denied_otherwise):
            raise MemoryError("rules")

    def send(self, conn: int, packet: bytes) -> None:
        """Queues a packet of the owner after all other output of the client.  Raises MemoryError."""
        if not lib.hmq_engine_send(self._engine, conn, packet, len(packet)):
            raise MemoryError("a packet")

    def set_writable(self, conn: int, writable: bool) -> None:
        """Says whether the client's socket takes more bytes."""
        lib.hmq_engine_writable(self._engine, conn, writable)

    def replays(self, conn: int, replaying: bool, *, wants_room: bool = False) -> None:
        """Says whether the session reads history; `wants_room`: raise ROOM, once, when there is room for more."""
        lib.hmq_engine_replays(self._engine, conn, replaying, wants_room)

    def has_more(self, conn: int) -> bool:
        """Whether the client has sent more packets than one call takes.  `receive` without bytes takes more."""
        return bool(lib.hmq_engine_has_more(self._engine, conn))

    def unread(self, conn: int) -> int:
        """Bytes of the client that wait for `proceed`."""
        return int(lib.hmq_engine_unread(self._engine, conn))

    def backlog(self, conn: int) -> Backlog:
        """The backlog of the client."""
        return Backlog(lib.hmq_engine_backlog_of(self._engine, conn))

    def should_pause(self, conn: int) -> bool:
        """Whether the client should not be read now.  RELIEF ends that."""
        return bool(lib.hmq_engine_pauses_reading(self._engine, conn))

    def sent_serial(self, conn: int) -> int:
        """The serial of the last message that was sent, for SESSION.CLOSE ... SENT; 0 if none."""
        return int(lib.hmq_engine_sent_serial(self._engine, conn))

    def close(self, conn: int) -> None:
        """Removes a connection.  Take its output first, and send its SESSION.CLOSE afterwards."""
        lib.hmq_engine_close(self._engine, conn)

    # ---- the server ------------------------------------------------------------------------------------------------

    def command(self, command: bytes, *, conn: int = 0, token: int = 0, replies: bool = True, link: int = 0) -> None:
        """Queues a command of the owner, as RESP.  `replies`: False for (UN)SUBSCRIBE only.  Raises MemoryError."""
        if not lib.hmq_engine_command(self._engine, link, conn, token, replies, command, len(command)):
            raise MemoryError("a command")

    def replies(self, data: bytes, now_ms: int, link: int = 0) -> Iterator[Event]:
        """Takes bytes of the server.  Raises OutOfStepError."""
        return self._events(data, len(data), now_ms, link)

    def buffered_replies(self, count: int, now_ms: int, link: int = 0) -> Iterator[Event]:
        """Takes `count` bytes of the server from `server_buffer`.  Raises OutOfStepError."""
        return self._events(self._server_buffer, count, now_ms, link)

    def _events(self, data: "bytes | CData", count: int, now_ms: int, link: int) -> Iterator[Event]:
        outcome = lib.hmq_engine_replies(self._engine, link, data, count, now_ms, self._event)
        while outcome > 0:
            yield self.last_event()
            outcome = lib.hmq_engine_replies(self._engine, link, ffi.NULL, 0, now_ms, self._event)
        if outcome < 0:
            raise OutOfStepError("the server's bytes are no RESP, or nothing asked for them")

    def flush(self, now_ms: int) -> None:
        """Makes commands of acknowledgements and fetches, and repeats commands that are due for a retry."""
        lib.hmq_engine_flush(self._engine, now_ms)

    def events(self) -> Iterable[Event]:
        """Takes the events of `flush`, `server_lost` and other calls."""
        while lib.hmq_engine_next_event(self._engine, self._event):
            yield self.last_event()

    def server_output(self, link: int = 0) -> bytes:
        """Takes the commands of a link to be written now.  They count as written."""
        output = lib.hmq_engine_server_output(self._engine, link)
        if output.len == 0:
            return b""
        data = bytes(ffi.buffer(output.data, output.len))
        lib.hmq_engine_server_written(self._engine, link, output.len)
        return data

    def server_lost(self, link: int = 0) -> None:
        """The server of a link is lost: no reply will arrive, and the owner's commands on it are forgotten."""
        lib.hmq_engine_server_lost(self._engine, link)

    def server_restored(self, now_ms: int, link: int = 0) -> None:
        """The server of a link is back.  Queue SUBSCRIBE commands on it first."""
        lib.hmq_engine_server_restored(self._engine, link, now_ms)

    def move(self, conn: int, link: int) -> None:
        """Moves an open session to another link, once its commands are answered.  Queue its SUBSCRIBE there first."""
        if not lib.hmq_engine_move(self._engine, conn, link):
            raise ValueError(f"connection {conn} has no open session, or there is no link {link}")

    def link_of(self, conn: int) -> int:
        """The link of a session, or the one that it is about to get."""
        return int(lib.hmq_engine_link_of(self._engine, conn))

    def slots(self, first: int, last: int, link: int) -> None:
        """Says which link has these slots; NO_LINK: none.  Raises ValueError."""
        if not lib.hmq_engine_slots(self._engine, first, last, link):
            raise ValueError(f"no slots {first} to {last}, or no link {link}")

    def node(self, link: int, node_id: bytes) -> None:
        """Says which node (CLUSTER MYID) is behind a link.  Raises ValueError."""
        held = ffi.from_buffer("uint8_t[]", node_id)
        if not lib.hmq_engine_node(self._engine, link, ffi.new("hmq_slice *", (held, len(node_id)))[0]):
            raise ValueError(f"no link {link}, or the id {node_id!r} has not 1 to {lib.HMQ_NODE_ID_BYTES} bytes")

    def routes_fed(self, link: int) -> None:
        """The node of a link was fed or has exported its routes: tries publishes that wait for it at the next flush."""
        lib.hmq_engine_routes_fed(self._engine, link)

    def answer_bytes(self, link: int) -> int:
        """Bytes of the cached answers of a link."""
        return int(lib.hmq_engine_answer_bytes(self._engine, link))

    def stores(self, stores: Sequence[Store]) -> None:
        """Sets the stores of history, whose shards get the messages of their topics.  Raises MemoryError."""
        listed = ffi.new("hmq_engine_store[]", len(stores))
        kept: list[CData] = []
        for at, store in enumerate(stores):
            texts = [ffi.from_buffer("uint8_t[]", text) for text in store.filters]
            filters = ffi.new("hmq_slice[]", [(text, len(text)) for text in texts])
            kept += [*texts, filters]
            listed[at].filters, listed[at].filter_count = filters, len(texts)
            listed[at].seed = [store.seed & 0xFFFFFFFFFFFFFFFF, store.seed >> 64]
            listed[at].spread = len(store.slots)
            for shard, slot in enumerate(store.slots):
                listed[at].slots[shard] = slot
        if not lib.hmq_engine_stores(self._engine, listed, len(stores)):
            raise MemoryError("stores, or one of them has not 1 to 64 shards")

    def link_outstanding(self, link: int) -> int:
        """Commands of a link without a reply, and publishes whose acknowledgements are withheld."""
        return int(lib.hmq_engine_link_outstanding(self._engine, link))

    @property
    def congested(self) -> bool:
        """Whether no client should be read now."""
        return bool(lib.hmq_engine_congested(self._engine))

    @property
    def outstanding(self) -> int:
        """Commands without a reply, and publishes whose acknowledgements are withheld."""
        return int(lib.hmq_engine_outstanding(self._engine))

    @property
    def owed(self) -> int:
        """The outstanding commands as work: large commands, and publishes to many sessions, count more than once."""
        return int(lib.hmq_engine_owed(self._engine))

    def reach_of(self, conn: int) -> int:
        """How many sessions a publish of this client reaches: a mean of recent ones. 0 before the first reply."""
        return int(lib.hmq_engine_reach_of(self._engine, conn))

    def levels(self) -> dict[str, int]:
        """Present levels by name (engine.h).  O(connections)."""
        levels = ffi.new("hmq_engine_levels *")
        lib.hmq_engine_look(self._engine, levels)
        return {name: int(getattr(levels, name)) for name, _ in ffi.typeof("hmq_engine_levels").fields}

    def measure(self, start: int, places: int, loudest: "Loudest") -> int:
        """Measures the connections of some places, and keeps the loudest.  Returns the next place; 0 at the end."""
        return int(lib.hmq_engine_measure(self._engine, start, places, loudest.rows, loudest.count, Loudest.MOST))

    def traffic(self, start: int, most: int) -> tuple[int, list[Traffic]]:
        """The next place (0 at the end), and the traffic of some open connections."""
        rows, count = ffi.new("hmq_engine_traffic[]", most), ffi.new("uint32_t *")
        following = int(lib.hmq_engine_list(self._engine, start, rows, count, most))
        return following, [_traffic(rows[at]) for at in range(count[0])]

    def traffic_of(self, inbox: bytes) -> Traffic | None:
        """Looks up the open connection by its inbox."""
        row, held = ffi.new("hmq_engine_traffic *"), ffi.from_buffer("uint8_t[]", inbox)
        found = lib.hmq_engine_traffic_of(self._engine, ffi.new("hmq_slice *", (held, len(inbox)))[0], row)
        return _traffic(row) if found else None

    def trace(self, tracing: Tracing) -> None:
        """Traces from now on; once, before the first connection.  Raises MemoryError."""
        values = {
            "sample": tracing.sample,
            "rate": tracing.rate,
            "adds_context": tracing.adds_context,
            "seed": tracing.seed,
            "clock_ns": tracing.clock,
        }
        if not lib.hmq_engine_trace(self._engine, ffi.new("hmq_engine_tracing *", values)):
            raise MemoryError("traces")

    def take_traces(self) -> Iterator[TraceRow]:
        """Takes traces that are over.  To be called every second or more often."""
        rows = ffi.new("hmq_engine_trace_row[]", _TRACES_AT_ONCE)
        while count := int(lib.hmq_engine_take_traces(self._engine, rows, _TRACES_AT_ONCE)):
            for at in range(count):
                yield _trace_row(rows[at])

    @property
    def has_timed_work(self) -> bool:
        """Whether something waits for time to pass: call `flush` a little later."""
        return bool(lib.hmq_engine_waits_for_time(self._engine))

    def unanswered(self, conn: int) -> int:
        """Publishes of this client without a reply of the server."""
        return int(lib.hmq_engine_unanswered(self._engine, conn))

    @property
    def needs_flush(self) -> bool:
        """Whether `flush` has work to do now."""
        return bool(lib.hmq_engine_flush_is_due(self._engine))

    # ---- bytes for clients -----------------------------------------------------------------------------------------

    def outputs(self) -> Iterator[tuple[int, bytes]]:
        """Takes the output for clients, as (connection, bytes)."""
        conn, output = self._conn, self._slice
        while lib.hmq_engine_next_output(self._engine, conn, output):
            yield conn[0], ffi.buffer(output.data, output.len)[:]


def _listed(rules: Sequence[tuple[bool, bytes]]) -> tuple[CData, list[CData]]:
    """The rules for C, and objects that must live as long."""
    kept = [ffi.from_buffer("uint8_t[]", topic_filter) for _allow, topic_filter in rules]
    listed = ffi.new("hmq_engine_rule[]", len(rules))
    for i, (allow, topic_filter) in enumerate(rules):
        listed[i].allow = allow
        listed[i].filter = (kept[i], len(topic_filter))
    return listed, kept
