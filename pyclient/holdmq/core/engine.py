"""The engine of an MQTT front end: bytes of clients and of the server in, bytes for both out (src/engine/engine.h).

One engine per process and event loop.  What comes often never becomes a Python object; what comes seldom comes as an
`Event`.  All times are milliseconds since 1970.  Nothing here is thread-safe.

The two buffers are for `asyncio.BufferedProtocol`: one read buffer for all clients and one for the server, so that no
bytes object is made per read.
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
    "Traffic",
    "error_text",
]

BUFFER_BYTES = 262_144

# What the core was built from: C that was compiled with its headers has to be of the same.
CORE_DIGEST = str(ffi.string(lib.HMQ_SOURCES_DIGEST).decode())

# Names in the order of the C structure; its arrays become tuples.
Counters = dict[str, "int | tuple[int, ...]"]


class OutOfStepError(Exception):
    """The server's bytes do not fit what was asked: the connection to it has to be made anew."""


class Backlog(IntEnum):
    """Messages that wait for acknowledgements of one client; hmq_engine_backlog."""

    NONE = 0
    WAITS = 1
    GROWS = 2


class EventKind(IntEnum):
    """What happened; hmq_engine_event_kind."""

    PACKET = 1  # a whole packet for the owner; then `proceed`
    ERROR = 2  # the client did something wrong: `error`, and in `code` the reason code of MQTT 5.0
    REPLY = 3  # to the command with `token`: `data` is RESP
    PUSH = 4  # of the server, and no delivery: `data` is RESP
    TAKEN_OVER = 5  # the session has a new owner, or is gone
    FAILED = 6  # the server refused a command of this client for good: `data` is the error
    CONFLICT = 7  # the server was restored from an older state: the client has to come back
    RELIEF = 8  # the client may be read again
    REFUSED = 9  # the server refuses for now; it is tried again
    ROOM = 10  # there is room for more of the client's backlog: asked for by `replays`
    DENIED = 11  # the client's first publish that its rules deny: `data` is the topic; then `proceed`
    WITHHELD = 12  # the first message for the client whose topic its rules deny: `data` is the topic
    ABANDONED = 13  # a publish is refused: the server was lost each time; `data` is its topic, `token` its size
    UNCONFIRMED = 14  # acknowledgements are withheld: `token` replicas confirmed, or `data` is the server's error
    CONFIRMED = 15  # they go out: `token` replicas confirmed


class Traffic(NamedTuple):
    """What one connection published and was sent; hmq_engine_traffic."""

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
    """The connections with the most messages of a pass of measurements, the loudest first."""

    MOST = 20

    def __init__(self) -> None:
        self.rows = ffi.new("hmq_engine_traffic[]", self.MOST)
        self.count = ffi.new("uint32_t *")

    def all(self) -> list[Traffic]:
        """The rows."""
        return [_traffic(self.rows[at]) for at in range(self.count[0])]


class Event(NamedTuple):
    """One event.  `conn` is 0 where there is none."""

    kind: int
    conn: int
    data: bytes
    code: int
    error: int
    token: int
    epoch: int


@dataclass(frozen=True)
class EngineSettings:
    """Bounds; hmq_engine_settings has their meaning.  Bytes, milliseconds, numbers."""

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
    max_fetch_bytes: int = 4_194_304
    max_output_bytes: int = 262_144
    message_expiry_s: int = 0
    max_message_expiry_s: int = 0
    retry_first_ms: int = 50
    retry_most_ms: int = 2000
    retry_total_ms: int = 60_000
    wait_replicas: int = 0
    wait_timeout_ms: int = 100
    inbox_seed: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class OpenSession:
    """What was agreed with a client; hmq_engine_session."""

    version: int
    client_id: bytes
    key: bytes
    epoch: int
    resumed: bool = False
    window: int = 100
    receive_maximum: int = 0
    alias_maximum_in: int = 0
    alias_maximum_out: int = 0
    max_packet_out: int = 0
    replay_rate: int = 0
    publish_rate: int = 0
    denied_otherwise: bool = False


def error_text(error: int) -> str:
    """What an ERROR event means."""
    return str(ffi.string(lib.hmq_engine_error_text(error)).decode())


class Engine:
    """All connections of one process and their one connection to the server."""

    def __init__(self, settings: EngineSettings | None = None, *, allocator: CData = LIBC_ALLOCATOR) -> None:
        """`allocator`: an hmq_allocator of cffi, for tests.  Raises MemoryError."""
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
        """The hmq_engine itself, for C that calls its functions."""
        return self._engine

    @staticmethod
    def function(name: str) -> CData:
        """The C function hmq_engine_<name> as a pointer, for the same."""
        return ffi.addressof(lib, f"hmq_engine_{name}")

    @property
    def event(self) -> CData:
        """The hmq_engine_event that `taken` reads."""
        return self._event

    def counters(self) -> Counters:
        """All counters since the engine was made."""
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

    def taken(self) -> Event:
        """The event that a call of the engine has set."""
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
        )

    # ---- clients ---------------------------------------------------------------------------------------------------

    def attach(self) -> int:
        """A client was accepted; its handle.  Raises MemoryError."""
        conn = int(lib.hmq_engine_attach(self._engine))
        if conn == 0:
            raise MemoryError("a connection")
        return conn

    def receive(self, conn: int, data: bytes, now_ms: int) -> Event | None:
        """Bytes of a client.  An event has to be dealt with before `proceed` is called for what follows it."""
        if lib.hmq_engine_receive(self._engine, conn, data, len(data), now_ms, self._event):
            return self.taken()
        return None

    def received(self, conn: int, count: int, now_ms: int) -> Event | None:
        """The same for so many bytes at the beginning of `buffer`."""
        if lib.hmq_engine_receive(self._engine, conn, self._buffer, count, now_ms, self._event):
            return self.taken()
        return None

    @property
    def took(self) -> bool:
        """Did the bytes received last make a packet whole (or is one being dealt with)?"""
        return bool(lib.hmq_engine_took(self._engine))

    def proceed(self, conn: int, now_ms: int) -> Event | None:
        """What the client sent behind the packet that was dealt with."""
        if lib.hmq_engine_continue(self._engine, conn, now_ms, self._event):
            return self.taken()
        return None

    def open(self, conn: int, session: OpenSession, now_ms: int) -> int:
        """The session is open.  Returns the connection that had it in this process (0: none).  Raises MemoryError."""
        client_id, key = ffi.from_buffer("uint8_t[]", session.client_id), ffi.from_buffer("uint8_t[]", session.key)
        agreed = ffi.new(
            "hmq_engine_session *",
            {
                "version": session.version,
                "resumed": session.resumed,
                "denied_otherwise": session.denied_otherwise,
                "window": session.window,
                "receive_maximum": session.receive_maximum,
                "alias_maximum_in": session.alias_maximum_in,
                "alias_maximum_out": session.alias_maximum_out,
                "max_packet_out": session.max_packet_out,
                "replay_rate": session.replay_rate,
                "publish_rate": session.publish_rate,
                "epoch": session.epoch,
                "client_id": (client_id, len(session.client_id)),
            },
        )
        named = ffi.new("hmq_slice *", (key, len(session.key)))
        former = int(lib.hmq_engine_open(self._engine, conn, agreed, named[0], now_ms, self._ok))
        if not self._ok[0]:
            raise MemoryError("a session, or its connection is not waiting for one")
        return former

    def rules(self, conn: int, rules: Sequence[tuple[bool, bytes]], *, denied_otherwise: bool) -> None:
        """What the client may publish to: (allow, filter), the first that matches decides.  Raises MemoryError."""
        listed, _kept = _listed(rules)
        if not lib.hmq_engine_rules(self._engine, conn, listed, len(rules), denied_otherwise):
            raise MemoryError("rules")

    def receive_rules(self, conn: int, rules: Sequence[tuple[bool, bytes]], *, denied_otherwise: bool) -> None:
        """Which topics may be sent to the client; the same."""
        listed, _kept = _listed(rules)
        if not lib.hmq_engine_receive_rules(self._engine, conn, listed, len(rules), denied_otherwise):
            raise MemoryError("rules")

    def send(self, conn: int, packet: bytes) -> None:
        """A packet of the owner's, behind all that is to be sent to the client.  Raises MemoryError."""
        if not lib.hmq_engine_send(self._engine, conn, packet, len(packet)):
            raise MemoryError("a packet")

    def set_writable(self, conn: int, writable: bool) -> None:
        """The client's socket takes no more, or takes it again."""
        lib.hmq_engine_writable(self._engine, conn, writable)

    def replays(self, conn: int, replaying: bool, *, wants_room: bool = False) -> None:
        """Whether the session reads history (what is pushed is backlog); ROOM is to tell, once, when more may come."""
        lib.hmq_engine_replays(self._engine, conn, replaying, wants_room)

    def has_more(self, conn: int) -> bool:
        """Did the client send more packets than one call takes?  `receive` without bytes takes more of them."""
        return bool(lib.hmq_engine_has_more(self._engine, conn))

    def unread(self, conn: int) -> int:
        """Bytes of the client that wait for an earlier packet of it to be dealt with."""
        return int(lib.hmq_engine_unread(self._engine, conn))

    def backlog(self, conn: int) -> Backlog:
        """What waits for the client's acknowledgements."""
        return Backlog(lib.hmq_engine_backlog_of(self._engine, conn))

    def rests(self, conn: int) -> bool:
        """Should the client not be read now?  RELIEF tells when that is over."""
        return bool(lib.hmq_engine_rests(self._engine, conn))

    def sent_serial(self, conn: int) -> int:
        """The serial of the last message sent, for SESSION.CLOSE ... SENT; 0 if none."""
        return int(lib.hmq_engine_sent_serial(self._engine, conn))

    def close(self, conn: int) -> None:
        """The connection is over.  Take its outputs first; send its SESSION.CLOSE afterwards."""
        lib.hmq_engine_close(self._engine, conn)

    # ---- the server ------------------------------------------------------------------------------------------------

    def command(self, command: bytes, *, conn: int = 0, token: int = 0, replies: bool = True) -> None:
        """A command of the owner's as RESP.  `replies` is false for (UN)SUBSCRIBE only.  Raises MemoryError."""
        if not lib.hmq_engine_command(self._engine, conn, token, replies, command, len(command)):
            raise MemoryError("a command")

    def replies(self, data: bytes, now_ms: int) -> Iterator[Event]:
        """Bytes of the server.  Raises OutOfStepError."""
        return self._events(data, len(data), now_ms)

    def replied(self, count: int, now_ms: int) -> Iterator[Event]:
        """The same for so many bytes at the beginning of `server_buffer`."""
        return self._events(self._server_buffer, count, now_ms)

    def _events(self, data: "bytes | CData", count: int, now_ms: int) -> Iterator[Event]:
        outcome = lib.hmq_engine_replies(self._engine, data, count, now_ms, self._event)
        while outcome > 0:
            yield self.taken()
            outcome = lib.hmq_engine_replies(self._engine, ffi.NULL, 0, now_ms, self._event)
        if outcome < 0:
            raise OutOfStepError("the server's bytes are no RESP, or nothing asked for them")

    def flush(self, now_ms: int) -> None:
        """Acknowledgements and fetches become commands; retries that are due are sent."""
        lib.hmq_engine_flush(self._engine, now_ms)

    def events(self) -> Iterable[Event]:
        """Events that flush, the server's loss and other calls left behind."""
        while lib.hmq_engine_next_event(self._engine, self._event):
            yield self.taken()

    def server_output(self) -> bytes:
        """Commands to be written now; they count as written."""
        output = lib.hmq_engine_server_output(self._engine)
        if output.len == 0:
            return b""
        data = bytes(ffi.buffer(output.data, output.len))
        lib.hmq_engine_server_written(self._engine, output.len)
        return data

    def server_lost(self) -> None:
        """No reply will come to anything; the owner's commands are forgotten."""
        lib.hmq_engine_server_lost(self._engine)

    def server_restored(self, now_ms: int) -> None:
        """The server is there; SUBSCRIBE commands were sent before."""
        lib.hmq_engine_server_restored(self._engine, now_ms)

    @property
    def congested(self) -> bool:
        """Nobody should be read now."""
        return bool(lib.hmq_engine_congested(self._engine))

    @property
    def outstanding(self) -> int:
        """Commands without a reply, and publishes whose acknowledgements are withheld."""
        return int(lib.hmq_engine_outstanding(self._engine))

    @property
    def owed(self) -> int:
        """The same as work of the server: large commands, and publishes to many sessions, count more than once."""
        return int(lib.hmq_engine_owed(self._engine))

    def levels(self) -> dict[str, int]:
        """What waits for clients now, by name (engine.h).  O(connections)."""
        levels = ffi.new("hmq_engine_levels *")
        lib.hmq_engine_look(self._engine, levels)
        return {name: int(getattr(levels, name)) for name, _ in ffi.typeof("hmq_engine_levels").fields}

    def measure(self, start: int, places: int, loudest: "Loudest") -> int:
        """Measures the connections of some places and keeps the loudest; returns where to go on, 0 at the end."""
        return int(lib.hmq_engine_measure(self._engine, start, places, loudest.rows, loudest.count, Loudest.MOST))

    def traffic(self, start: int, most: int) -> tuple[int, list[Traffic]]:
        """What some open connections sent and received; and where to go on, 0 at the end."""
        rows, count = ffi.new("hmq_engine_traffic[]", most), ffi.new("uint32_t *")
        following = int(lib.hmq_engine_list(self._engine, start, rows, count, most))
        return following, [_traffic(rows[at]) for at in range(count[0])]

    def traffic_of(self, inbox: bytes) -> Traffic | None:
        """That of the open connection that has an inbox."""
        row, held = ffi.new("hmq_engine_traffic *"), ffi.from_buffer("uint8_t[]", inbox)
        found = lib.hmq_engine_traffic_of(self._engine, ffi.new("hmq_slice *", (held, len(inbox)))[0], row)
        return _traffic(row) if found else None

    @property
    def waits(self) -> bool:
        """Does something wait for time to pass, so that `flush` has to be called a little later?"""
        return bool(lib.hmq_engine_waits(self._engine))

    def unanswered(self, conn: int) -> int:
        """Publishes of this client that the server has not answered."""
        return int(lib.hmq_engine_unanswered(self._engine, conn))

    @property
    def wants_flush(self) -> bool:
        """Would `flush` do something at once?"""
        return bool(lib.hmq_engine_wants_flush_now(self._engine))

    # ---- bytes for clients -----------------------------------------------------------------------------------------

    def outputs(self) -> Iterator[tuple[int, bytes]]:
        """(connection, bytes) of everybody who has something to be sent."""
        conn, output = self._conn, self._slice
        while lib.hmq_engine_next_output(self._engine, conn, output):
            yield conn[0], ffi.buffer(output.data, output.len)[:]


def _listed(rules: Sequence[tuple[bool, bytes]]) -> tuple[CData, list[CData]]:
    """As C reads them, and what has to be kept as long as it does."""
    kept = [ffi.from_buffer("uint8_t[]", topic_filter) for _allow, topic_filter in rules]
    listed = ffi.new("hmq_engine_rule[]", len(rules))
    for i, (allow, topic_filter) in enumerate(rules):
        listed[i].allow = allow
        listed[i].filter = (kept[i], len(topic_filter))
    return listed, kept
