"""Which messages of a session's queue go to its client, and when.

    server's queue   . . a b | c d e f . . g h            one serial each, growing
                             ^
                         position: everything up to here was sent, or needs no sending

Pushes (a copy of each new message on the inbox channel) are a shortcut; SESSION.FETCH behind `position` is the
truth.  A push is sent at once if it follows `position` without a gap and the window has room.  Otherwise the session is
*behind*: pushes are ignored and the queue is fetched, page by page, as acknowledgements make room, until a page says
that nothing follows.  Fetches and pushes come over one connection in the order in which the server executed them, so
that every push before that page is in it, and every push behind it follows it.

Invariants
 1. Messages are sent in the order of their serials; none between the first sent and `position` is left out.
 2. `in_flight` (sent, not acknowledged) never holds more than max_inflight entries; an identifier stands there once.
 3. An acknowledged message stays in `acking` until the server confirmed the removal: a fetch that still shows it does
    not send it again.
 4. While not writable (the client does not read) nothing is sent.

After the server was away the queue is walked again from its beginning, past what is in flight or in `acking`, and each
of these is compared with what the server has: pushes were missed, and a server that was restored from an older state
may have given an identifier and serial of ours to another message.  Until then nothing is acknowledged, so that no such
message can be removed unsent.  If one comes while the client still has to acknowledge ours, the two cannot be told apart
any more: the connection has to end (`conflict`) and the client to come back.

All is O(1) per message but `server_lost`.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from holdmq.core import Delivery, InvalidRecordError, Record
from holdmq.core.mqtt import encode_publish, encode_pubrel
from holdmq_bridge.counters import Counters
from holdmq_bridge.logs import Log
from holdmq_bridge.settings import Settings

STATE_RELEASED = 2  # of an entry that SESSION.FETCH returned

log = Log("outgoing")


class Mark(NamedTuple):
    """By which a message is known again: its place in the queue and a hash of its bytes."""

    serial: int
    digest: int


class Outgoing:
    """The sending half of one connection.  Packets go to `output`."""

    __slots__ = (
        "_acking",
        "_acks_unsent",
        "_behind",
        "_checking",
        "_counters",
        "_dup_until",
        "_fetch_count",
        "_fetching",
        "_gone",
        "_in_flight",
        "_max_inflight",
        "_output",
        "_position",
        "conflict",
        "highest",
        "writable",
    )

    def __init__(self, settings: Settings, counters: Counters, output: list[bytes]) -> None:
        self._counters = counters
        self._output = output
        self._max_inflight = settings.max_inflight
        self._fetch_count = settings.fetch_count
        self._in_flight: dict[int, Mark] = {}  # by packet identifier
        self._acking: dict[int, Mark] = {}
        self._acks_unsent: list[int] = []
        self._gone: set[int] = set()  # in flight, but the server has them no more
        self._checking: set[int] | None = None  # identifiers not yet compared with the server's, None: all are
        self._position = 0
        self._behind = False
        self._fetching = False
        self._dup_until = 0
        self.highest = 0  # largest serial sent in this or, as far as is known, an earlier connection
        self.writable = True
        self.conflict = False

    def resume(self, dup_until: int) -> None:
        """The session was there before; an earlier connection may have sent messages up to the serial `dup_until`."""
        self._dup_until = dup_until
        self.highest = dup_until
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
        if delivery.previous > self._position or not self._has_room():
            self._behind = True
            return
        record = self._read(delivery.record, delivery.serial)
        if record is not None:
            mark = Mark(delivery.serial, hash(delivery.record))
            self._send(mark, delivery.packet_id, record, delivery.retain)

    def transient(self, delivery: Delivery) -> None:
        """A message of QoS 0: now or never."""
        if not self.writable:
            self._counters.messages_dropped_qos0 += 1
            return
        record = self._read(delivery.record, 0)
        if record is not None:
            self._counters.messages_sent += 1
            self._output.append(encode_publish(record.topic, record.payload, 0, delivery.retain))

    def _read(self, value: bytes, serial: int) -> Record | None:
        """The message, None if it is none: somebody's own bytes.  Those stay in the queue, which goes on behind them."""
        try:
            return Record.decode(value)
        except InvalidRecordError as error:
            self._counters.messages_unreadable += 1
            self._position = max(self._position, serial)
            log.warning("a value that is no message", serial=serial, bytes=len(value), error=error)
            return None

    def _has_room(self) -> bool:
        return self.writable and len(self._in_flight) < self._max_inflight

    def _send(self, mark: Mark, packet_id: int, record: Record, retain: bool) -> None:
        if packet_id in self._in_flight:
            self._behind = self.conflict = True
            return
        dup = mark.serial <= self._dup_until
        self._counters.messages_sent += 1
        self._counters.messages_sent_again += dup
        self._output.append(encode_publish(record.topic, record.payload, 1, retain, dup, packet_id))
        self._sent(mark, packet_id)

    def _sent(self, mark: Mark, packet_id: int) -> None:
        self._in_flight[packet_id] = mark
        self._position = mark.serial
        self.highest = max(self.highest, mark.serial)

    # ---- fetches ---------------------------------------------------------------------------------------------------

    def wants_fetch(self) -> tuple[int, int] | None:
        """(serial, count) of the fetch that is due now, None if none is.  The caller then makes it."""
        if not self._behind or self._fetching or not self.writable:
            return None
        in_flight = len(self._in_flight)
        room = self._max_inflight - in_flight
        if self._checking is not None:
            room += in_flight + len(self._acking)  # these are passed, not sent
        elif room * 2 < self._max_inflight and in_flight:
            return None  # one larger page a little later, not a page for each acknowledgement
        self._fetching = True
        return self._position, min(room, self._fetch_count)

    def fetched(self, entries: Sequence[Sequence[Any]], more: bool) -> None:
        """A page of the queue."""
        self._fetching = False
        for serial, packet_id, state, value in entries:
            mark = Mark(serial, hash(value))
            if self._checking is not None and self._passes(packet_id, mark):
                self._position = serial
            elif self.conflict or not self._has_room():
                return
            else:
                self._send_entry(mark, packet_id, state, value)
        self._behind = more
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

    def _send_entry(self, mark: Mark, packet_id: int, state: int, value: bytes) -> None:
        if state == STATE_RELEASED:
            self._output.append(encode_pubrel(packet_id))
            self._sent(mark, packet_id)
            return
        record = self._read(value, mark.serial)
        if record is not None:
            self._send(mark, packet_id, record, record.retain)

    def fetch_failed(self) -> None:
        """The fetch brought nothing; it is due again."""
        self._fetching = False

    # ---- acknowledgements ------------------------------------------------------------------------------------------

    def acknowledged(self, packet_id: int) -> bool:
        """The client has the message.  False if it was never sent in this connection."""
        mark = self._in_flight.pop(packet_id, None)
        if mark is None:
            return False
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
        self._checking = {*self._in_flight, *self._acking}
