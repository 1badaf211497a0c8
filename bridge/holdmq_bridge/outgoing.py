"""Which messages of a session's queue go to its client, and when.

    server's queue   . . a b | c d e f | g h . . i j            one serial each, growing
                     sent      ready   ^
                                   position: everything up to here was sent, lies in `ready`, or needs no sending

Pushes (a copy of each new message on the inbox channel) are a shortcut; SESSION.FETCH behind `position` is the truth.
A push that follows `position` without a gap is sent at once, or waits in `ready`, a short line behind a full window.
Otherwise the session is *behind*: pushes are ignored and the queue is fetched, page by page, as `ready` gets empty,
until a page says that nothing follows.  Fetches and pushes come over one connection in the order in which the server
executed them, so that every push before that page is in it, and every push behind it follows it.

Invariants
 1. Messages are sent in the order of their serials; none between the first sent and `position` is left out.
 2. `in_flight` (sent, not acknowledged) never holds more than max_inflight entries; an identifier stands there once.
 3. An acknowledged message stays in `acking` until the server confirmed the removal: a fetch that still shows it does
    not send it again.
 4. While not writable (the client does not read) nothing is sent.
 5. `ready` holds at most max_ready messages and max_ready_bytes (and one message more); losing it loses nothing.

After the server was away the queue is walked again from its beginning, past what is in flight or in `acking`, and each
of these is compared with what the server has: pushes were missed, and a server that was restored from an older state
may have given an identifier and serial of ours to another message.  Until then nothing is acknowledged, so that no such
message can be removed unsent.  If one comes while the client still has to acknowledge ours, the two cannot be told
apart any more: the connection has to end (`conflict`) and the client to come back.

All is O(1) per message but `server_lost`.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

from holdmq.core import Delivery, InvalidRecordError, Record, RecordType
from holdmq.core.mqtt import encode_publish, encode_pubrel
from holdmq_bridge.counters import Counters
from holdmq_bridge.logs import Log
from holdmq_bridge.settings import Settings

log = Log("outgoing")

# By which a message is known again: its serial and a hash of its bytes.
Mark: TypeAlias = tuple[int, int]

MAX_PAGE = 10_000  # what SESSION.FETCH takes as COUNT
STATE_IN_FLIGHT = 1  # of an entry of SESSION.FETCH: handed out before, not acknowledged


class Entry(NamedTuple):
    """A message of the queue, as pushed or fetched."""

    serial: int
    packet_id: int
    sent_before: bool
    value: bytes


class Outgoing:
    """The sending half of one connection.  Packets go to `output`."""

    __slots__ = (
        "_acking",
        "_acks_unsent",
        "_behind",
        "_checking",
        "_counters",
        "_fetching",
        "_gone",
        "_in_flight",
        "_max_inflight",
        "_max_ready",
        "_max_ready_bytes",
        "_output",
        "_position",
        "_ready",
        "_ready_bytes",
        "conflict",
        "highest",
        "writable",
    )

    def __init__(self, settings: Settings, counters: Counters, output: list[bytes]) -> None:
        self._counters = counters
        self._output = output
        self._max_inflight = settings.max_inflight
        self._max_ready = settings.max_ready
        self._max_ready_bytes = settings.max_ready_bytes
        self._in_flight: dict[int, Mark] = {}  # by packet identifier
        self._acking: dict[int, Mark] = {}
        self._acks_unsent: list[int] = []
        self._gone: set[int] = set()  # in flight, but the server has them no more
        self._checking: set[int] | None = None  # identifiers not yet compared with the server's, None: all are
        self._ready: deque[Entry] = deque()
        self._ready_bytes = 0
        self._position = 0
        self._behind = False
        self._fetching = False
        self.highest = 0  # largest serial sent
        self.writable = True
        self.conflict = False

    def resume(self) -> None:
        """The session was there before: its queue is to be fetched."""
        self._behind = True

    @property
    def behind(self) -> bool:
        """Must the queue be fetched?"""
        return self._behind

    # ---- pushes ----------------------------------------------------------------------------------------------------

    def queued(self, delivery: Delivery) -> None:
        """A message was stored in the queue, and this is its push."""
        if self._behind or delivery.serial <= self._position:
            return
        if delivery.previous > self._position or self._ready_is_full():
            self._behind = True
            return
        entry = Entry(delivery.serial, delivery.packet_id, False, delivery.record)
        self._take(entry)

    def transient(self, delivery: Delivery) -> None:
        """A message of QoS 0: now or never."""
        if not self.writable:
            self._counters.messages_dropped_qos0 += 1
            return
        record = self._read(delivery.record)
        if record is not None:
            self._counters.messages_sent += 1
            self._output.append(encode_publish(record.topic, record.payload, 0, record.retain))

    # ---- sending ---------------------------------------------------------------------------------------------------

    def _take(self, entry: Entry) -> None:
        """The message behind `position`: sends it or puts it into the line."""
        self._position = entry.serial
        if self._has_room() and not self._ready:
            self._send(entry)
        else:
            self._ready.append(entry)
            self._ready_bytes += len(entry.value)

    def send_ready(self) -> None:
        """Sends what the window has room for."""
        while self._ready and self._has_room():
            entry = self._ready.popleft()
            self._ready_bytes -= len(entry.value)
            self._send(entry)

    def _has_room(self) -> bool:
        return self.writable and len(self._in_flight) < self._max_inflight and not self.conflict

    def _ready_is_full(self) -> bool:
        return len(self._ready) >= self._max_ready or self._ready_bytes >= self._max_ready_bytes

    def _send(self, entry: Entry) -> None:
        serial, packet_id, sent_before, value = entry
        record = self._read(value)
        if record is None:
            return
        if packet_id in self._in_flight:
            self._behind = self.conflict = True
            return
        if record.type == RecordType.PUBREL:
            packet = encode_pubrel(packet_id)
        else:
            packet = encode_publish(record.topic, record.payload, 1, record.retain, sent_before, packet_id)
            self._counters.messages_sent += 1
            self._counters.messages_sent_again += sent_before
        self._output.append(packet)
        self._in_flight[packet_id] = (serial, hash(value))
        self.highest = max(self.highest, serial)

    def _read(self, value: bytes) -> Record | None:
        """The message, None if it is none: somebody's own bytes stay in the queue, which goes on behind them."""
        try:
            return Record.decode(value)
        except InvalidRecordError as error:
            self._counters.messages_unreadable += 1
            log.warning("a value that is no message", bytes=len(value), error=error)
            return None

    # ---- fetches ---------------------------------------------------------------------------------------------------

    def wants_fetch(self) -> tuple[int, int, int] | None:
        """(serial, count, bytes) of the fetch that is due now, None if none is.  The caller then makes it."""
        if not self._behind or self._fetching or not self.writable:
            return None
        if len(self._ready) * 2 > self._max_ready or self._ready_bytes * 2 > self._max_ready_bytes:
            return None  # one larger page a little later, not a page for each acknowledgement
        count = self._max_ready - len(self._ready)
        if self._checking is not None:
            count += len(self._in_flight) + len(self._acking)  # these are passed, not taken
        self._fetching = True
        return self._position, min(count, MAX_PAGE), self._max_ready_bytes - self._ready_bytes

    def fetched(self, entries: Sequence[Sequence[Any]], more: bool) -> None:
        """A page of the queue."""
        self._fetching = False
        for serial, packet_id, state, value in entries:
            if self._checking is not None and self._passes(packet_id, (serial, hash(value))):
                self._position = serial
            elif self.conflict:
                return
            else:
                self._take(Entry(serial, packet_id, state == STATE_IN_FLIGHT, value))
        self._behind = more or self.conflict
        if not more:
            self._check_ends()

    def _passes(self, packet_id: int, mark: Mark) -> bool:
        """While checking: is this message of the server's one that the client has, or is about to acknowledge?"""
        ours = self._in_flight.get(packet_id) or self._acking.get(packet_id)
        if ours is None:
            return False
        if ours != mark:
            self.conflict = True
            return False
        assert self._checking is not None
        self._checking.discard(packet_id)
        if packet_id in self._acking:
            self._acks_unsent.append(packet_id)
        return True

    def _check_ends(self) -> None:
        """The server has no other messages: what was not found is gone, and no acknowledgement of it may go out."""
        if self._checking is None:
            return
        for packet_id in self._checking:
            if packet_id in self._in_flight:
                self._gone.add(packet_id)
            self._acking.pop(packet_id, None)
        self._checking = None

    def fetch_failed(self) -> None:
        """The fetch brought nothing; it is due again."""
        self._fetching = False

    # ---- acknowledgements ------------------------------------------------------------------------------------------

    def acknowledged(self, packet_id: int) -> bool:
        """The client has the message.  False if it was never sent in this connection."""
        mark = self._in_flight.pop(packet_id, None)
        if mark is None:
            return False
        if self._ready:
            self.send_ready()
        if packet_id in self._gone:
            self._gone.discard(packet_id)
            return True
        self._acking[packet_id] = mark
        if self._checking is None or packet_id not in self._checking:
            self._acks_unsent.append(packet_id)
        return True

    def take_acks(self) -> dict[int, Mark] | None:
        """Identifiers that the server is to be told now, None if there are none."""
        if not self._acks_unsent:
            return None
        acks = {packet_id: self._acking[packet_id] for packet_id in self._acks_unsent}
        self._acks_unsent.clear()
        return acks

    def acks_confirmed(self, acks: dict[int, Mark]) -> None:
        """The server has removed them."""
        for packet_id, mark in acks.items():
            if self._acking.get(packet_id) == mark:
                del self._acking[packet_id]

    def acks_failed(self, acks: dict[int, Mark]) -> None:
        """The server did not remove them; they are due again."""
        self._acks_unsent += [packet_id for packet_id, mark in acks.items() if self._acking.get(packet_id) == mark]

    def server_lost(self) -> None:
        """Pushes and replies are lost: begins again with the truth when the server is back."""
        self._fetching = False
        self._behind = True
        self._position = 0
        self._acks_unsent.clear()
        self._ready.clear()
        self._ready_bytes = 0
        self._checking = {*self._in_flight, *self._acking}
