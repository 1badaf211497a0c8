"""The sockets of clients over TCP and WebSocket, read and written in C (bridge/native/pump.h): one callback for all.

    listening socket ── accept ──► Client + Pumped ──► pump ◄──epoll──► clients
                                                        │ ▲
                       rare packets, deadlines, ends ◄──┘ └── the engine's output

Frequent packets never become Python objects: a turn reads up to 64 sockets into the engine, and the host's flush sends
the engine's output.  Of a WebSocket, only its request comes here, to be answered.  Connections with TLS or the PROXY
protocol use asyncio's transports; `outputs` returns what the engine has for them.

While the server owes replies to more than `read_ahead` commands, publishers' sockets are not read: more commands would
only queue at the server, and a later turn reads more from each socket for a fraction of the processor time.  The pause
lasts until the server has answered, and at most 20 ms.  So a server that hangs or is far away changes neither deadlines
nor the bound of `max_outstanding`.  Quiet clients are read every millisecond meanwhile.  So are others that send
little, a few commands at a time, if the reason is few large publishes and not many commands: those delay nobody.

A turn ends when the server owes four times `read_ahead`, or `read_ahead` while there are quiet clients.  A command
counts once more for each KiB, and several times while publishes go to many sessions.

Receivers come first: a client whose acknowledgements hold back further messages is always read.  If its backlog grows
although it acknowledges quickly (3,000 messages a second or more), publishers are slowed until it has caught up, so
that its queue does not overflow.  Quiet clients are read every 2 ms then.  So are others that send little, and all of
them every 20 ms, for a quarter as many publishes as were acknowledged: no receiver can stop publishers.

Invariants
 1. A client has its Pumped as stream until `connection_lost`, which is called once.
 2. Nothing that a client does, and no defect in its handling, ends a turn for the other clients.
"""

import errno
import os
import socket
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

from holdmq.core.engine import CORE_DIGEST, Engine
from holdmq.core.websocket import fault_text
from holdmq_bridge._pump import ffi, lib
from holdmq_bridge.base.logs import Log
from holdmq_bridge.base.reasons import Ending
from holdmq_bridge.process.process import Process
from holdmq_bridge.sockets.stream import HARD_LIMIT_FACTOR, Pumped, Receiver, readable_peer
from holdmq_bridge.sockets.upgrade import Upgrades

if TYPE_CHECKING:
    from asyncio import TimerHandle

log = Log("pump")

_ACCEPTS_AT_ONCE = 16
_ACCEPT_PAUSE_S = 1.0  # after accepting has failed
_LONGEST_PAUSE_S = 0.02  # while the server owes replies
_QUIET_EVERY_S = 0.001  # quiet clients are read during a pause
_QUIET_COMMANDS = 64  # of them in one such turn
_TURN_REPLIES = 4  # times read_ahead: a turn ends when the server owes this many replies

# While publishers are slowed for receivers: a pause, then a turn that takes a few publishes of clients that send
# little.  Every tenth turn takes some of the other clients, too.
_SLOWED_PAUSE_S = 0.002
_PRESSED_BULK = 10
_PRESSED_SHARE = 4  # a quarter of the messages that those receivers have acknowledged
_PRESSED_LEAST = 4  # publishes

_QUIET, _RECEIVERS, _OTHERS, _BULK = 1, 2, 4, 8  # 1 << hmq_pump_class
_ALL = _RECEIVERS | _QUIET | _OTHERS | _BULK
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

if ffi.string(lib.HMQ_PUMP_CORE_DIGEST).decode() != CORE_DIGEST:
    raise ImportError("holdmq_bridge._pump was built for another core than holdmq._core: run `make core`")


# Members of hmq_pump_engine.
_ENGINE_CALLS = (
    "receive",
    "completed_packet",
    "pauses_reading",
    "congested",
    "next_output",
    "has_more",
    "backlog_of",
    "owed",
    "reach_of",
    "count",
)


CLOCK_NS = ffi.addressof(lib, "hmq_pump_clock_ns")
"""The clock of traces, for holdmq.core.engine.Tracing."""


class PumpHost(Protocol):
    """The owner of the pump."""

    @property
    def congested(self) -> bool:
        """Whether no client is to be read now."""

    def flush(self) -> None:
        """Writes the engine's output to the server and to clients."""


class Pump:
    """All sockets of one process that the C code reads and writes.

    Raises:
        OSError: the kernel has no descriptor for it.
    """

    def __init__(self, process: Process, host: PumpHost) -> None:
        self._process = process
        self._loop = process.loop
        self._host = host
        self._upgrades = Upgrades(process.settings)
        high_water = process.settings.write_buffer_bytes
        calls = ffi.new("hmq_pump_engine *")
        calls.engine = process.engine.handle
        for name in _ENGINE_CALLS:
            setattr(calls, name, Engine.function(name))
        new = lib.hmq_pump_new(calls, high_water, high_water * HARD_LIMIT_FACTOR)
        if new == ffi.NULL:
            raise OSError(ffi.errno, f"no sockets can be watched: {os.strerror(ffi.errno)}")
        self.handle = ffi.gc(new, lib.hmq_pump_free)
        self._event = ffi.new("hmq_pump_event *")
        self._engine_event = process.engine.event
        self._members: dict[int, tuple[Receiver, Pumped]] = {}
        self._listening: dict[int, socket.socket] = {}
        self._read_ahead = process.settings.read_ahead
        self._max_owed = self._read_ahead * _TURN_REPLIES
        self._pause: TimerHandle | None = None  # of publishers: the end, or the next turn of those that send little
        self._pause_ends_s = 0.0  # by the loop's clock
        self._slow_turns = 0
        self._relieved = 0
        self._watched = False  # whether publishers' sockets are read
        self._next_turn_is_due = False
        self._sent_in_all: int | None = None  # known when the pump is closed
        self._loop.add_reader(lib.hmq_pump_fd(self.handle, lib.HMQ_PUMP_RECEIVERS), self._receivers_turn)
        self._resume()

    # ---- sockets ---------------------------------------------------------------------------------------------------

    def listen(
        self, listening: socket.socket, backlog: int, make: Callable[[], Receiver], *, websocket: bool = False
    ) -> None:
        """Accepts connections from now on.  The caller owns the socket, and calls `unlisten` before closing it."""
        listening.setblocking(False)
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # accepted sockets inherit it
        listening.listen(backlog)
        self._listening[listening.fileno()] = listening
        self._loop.add_reader(listening.fileno(), self._accept, listening, make, websocket)

    def unlisten(self, listening: socket.socket) -> None:
        """Accepts no further connections."""
        if self._listening.pop(listening.fileno(), None) is not None:
            self._loop.remove_reader(listening.fileno())

    def _accept(self, listening: socket.socket, make: Callable[[], Receiver], websocket: bool) -> None:
        for _ in range(_ACCEPTS_AT_ONCE):
            try:
                accepted, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
                log.error("connections temporarily cannot be accepted", error=error)  # noqa: TRY400 (as a fact, without its stack)
                self._loop.remove_reader(listening.fileno())
                self._loop.call_later(_ACCEPT_PAUSE_S, self._accept_again, listening, make, websocket)
                return
            self._add(accepted, readable_peer(address), make(), websocket=websocket)

    def _accept_again(self, listening: socket.socket, make: Callable[[], Receiver], websocket: bool) -> None:
        if listening.fileno() in self._listening:
            self._loop.add_reader(listening.fileno(), self._accept, listening, make, websocket)

    def _add(self, accepted: socket.socket, peer: str, client: Receiver, *, websocket: bool) -> None:
        stream = Pumped(self)
        max_message_bytes = self._process.settings.ws_max_frame_bytes if websocket else 0
        with accepted:
            client.begin(stream, peer)
            if stream.is_closing():
                return  # there is no room for it
            number = lib.hmq_pump_add(self.handle, accepted.fileno(), client.conn, max_message_bytes)
            if number >= 0:
                accepted.detach()
        if number < 0:
            stream.closed()
            client.connection_lost(OSError(-number, os.strerror(-number)))
            return
        stream.joined(number)
        self._members[number] = client, stream

    def close_socket(self, number: int, *, at_once: bool) -> None:
        """Closes a socket.  Its client learns of the end a little later."""
        if lib.hmq_pump_close(self.handle, number, at_once):
            client, stream = self._members.pop(number)
            stream.closed()
            self._loop.call_soon(client.connection_lost, None)

    def close(self) -> None:
        """Closes all sockets, and the pump itself."""
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        self._watch(watched=False)
        self._loop.remove_reader(lib.hmq_pump_fd(self.handle, lib.HMQ_PUMP_RECEIVERS))
        for _, stream in self._members.values():
            stream.closed()
        self._members.clear()
        self._sent_in_all = self.sent
        ffi.release(self.handle)

    # ---- a turn ----------------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        """Reads all sockets that are ready, then flushes."""
        self._read(_ALL, self._read_ahead if lib.hmq_pump_has_quiet(self.handle) else self._max_owed)

    def _receivers_turn(self) -> None:
        """Reads receivers' sockets only."""
        self._read(_RECEIVERS, self._max_owed)

    def _slow_turn(self) -> None:
        """A turn while publishers are slowed: takes a few publishes, of quiet clients first."""
        self._slow_turns += 1
        self._read(_QUIET | _RECEIVERS, self._process.engine.owed)
        relieved = int(lib.hmq_pump_relieved(self.handle))
        allowed = max(_PRESSED_LEAST, (relieved - self._relieved) // _PRESSED_SHARE)
        self._relieved = relieved
        classes = _OTHERS if self._slow_turns % _PRESSED_BULK else _OTHERS | _BULK
        self._read(classes, min(self._process.engine.owed + allowed, self._read_ahead))

    def _read(self, classes: int, most: int) -> None:
        process, host, event = self._process, self._host, self._event
        found = lib.hmq_pump_poll(self.handle, classes, most, process.now_ms(), self._loop.time(), host.congested)
        if found < 0:
            raise OSError(-found, os.strerror(-found))
        if found:
            while lib.hmq_pump_next(self.handle, event, self._engine_event):
                self._dispatch(event.kind, event.number)
            host.flush()
        self._pause_or_resume()

    def _pause_or_resume(self) -> None:
        """Pauses publishers while the server owes replies, or while the backlog of a quick receiver grows."""
        is_slowed = lib.hmq_pump_slows_publishers(self.handle, self._loop.time())
        if is_slowed or self._process.engine.owed > self._read_ahead:
            if self._pause is None:
                self._watch(watched=False)
                self._pause_ends_s = self._loop.time() + _LONGEST_PAUSE_S
                pause_s = _SLOWED_PAUSE_S if is_slowed else self._pause_s()
                self._pause = self._loop.call_later(pause_s, self._end_pause)
        elif not self._watched:
            self._resume()
        elif lib.hmq_pump_has_more(self.handle) and not self._next_turn_is_due:
            self._next_turn_is_due = True
            self._loop.call_soon(self._next_turn)

    def _next_turn(self) -> None:
        """Takes more of clients that had sent more than one turn takes."""
        self._next_turn_is_due = False
        if self._watched:
            self._turn()

    def _end_pause(self) -> None:
        """The pause has lasted long enough."""
        now = self._loop.time()
        if lib.hmq_pump_slows_publishers(self.handle, now):
            self._pause = None
            self._slow_turn()
        elif now < self._pause_ends_s and self._process.engine.owed > self._read_ahead:
            self._pause = self._loop.call_later(self._pause_s(), self._end_pause)
            classes = _QUIET | _RECEIVERS | (_OTHERS if self._owes_large_ones() else 0)
            self._read(classes, self._process.engine.owed + _QUIET_COMMANDS)
        else:
            self._resume()

    def _pause_s(self) -> float:
        """Until some clients are read, or all."""
        reads_some = lib.hmq_pump_has_quiet(self.handle) or self._owes_large_ones()
        return _QUIET_EVERY_S if reads_some else _LONGEST_PAUSE_S

    def _owes_large_ones(self) -> bool:
        """Whether the server owes replies to a few large publishes, and not to many commands."""
        return self._process.engine.outstanding <= self._read_ahead

    def _resume(self) -> None:
        """Reads all sockets from now on."""
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        self._watch(watched=True)
        if lib.hmq_pump_has_more(self.handle):
            self._pause_or_resume()

    def _watch(self, *, watched: bool) -> None:
        """Watches publishers' sockets, or not.  Those of receivers are always watched."""
        if watched == self._watched:
            return
        self._watched = watched
        for which in (lib.HMQ_PUMP_QUIET, lib.HMQ_PUMP_OTHERS, lib.HMQ_PUMP_BULK):
            if watched:
                self._loop.add_reader(lib.hmq_pump_fd(self.handle, which), self._turn)
            else:
                self._loop.remove_reader(lib.hmq_pump_fd(self.handle, which))

    def line_up(self, number: int) -> None:
        """Gives a client a turn: the engine may have more packets of it."""
        lib.hmq_pump_line_up(self.handle, number)
        self._pause_or_resume()

    def server_answered(self) -> None:
        """The server has answered, or is lost: the reason for a pause may be over."""
        if self._pause is not None:
            self._pause_or_resume()

    def outputs(self) -> Iterator[tuple[int, bytes]]:
        """Sends the engine's output for sockets here.  Yields output for other connections, as (connection, bytes)."""
        event = self._event
        while lib.hmq_pump_write(self.handle, event):
            if event.kind == lib.HMQ_PUMP_FOREIGN:
                yield event.conn, ffi.buffer(event.bytes.data, event.bytes.len)[:]
            else:
                self._dispatch(event.kind, event.number)

    @property
    def sent(self) -> int:
        """All bytes sent so far; also after `close`."""
        return int(lib.hmq_pump_sent(self.handle)) if self._sent_in_all is None else self._sent_in_all

    def _dispatch(self, kind: int, number: int) -> None:
        client, stream = self._members[number]
        try:
            if kind == lib.HMQ_PUMP_CLOSED:
                del self._members[number]
                stream.closed()
                client.connection_lost(self._close_reason())
            elif client.conn and kind == lib.HMQ_PUMP_UPGRADE:
                self._upgrade(client, number)
            elif client.conn:
                self._notify(client, kind)
        except Exception as error:  # noqa: BLE001 (a defect of ours must not end the others' connections)
            log.defect("defect: the client is disconnected", error, client=client.client_id)
            client.end(Ending.DEFECT)

    def _close_reason(self) -> OSError | None:
        """Why the socket of the event was closed; None: the client closed it in order."""
        error, fault = self._event.error, self._event.fault
        if fault:
            self._process.counters.websocket_faults += 1
            return ConnectionError(fault_text(fault))
        return OSError(error, os.strerror(error)) if error else None

    def _upgrade(self, client: Receiver, number: int) -> None:
        """Answers the request for a WebSocket."""
        request = ffi.buffer(self._event.bytes.data, self._event.bytes.len)[:]
        answer = self._upgrades.answer(request, tls=False)
        lib.hmq_pump_upgrade(self.handle, number, answer.data, len(answer.data), not answer.refusal)
        if answer.refusal:
            client.upgrade_refused(answer.refusal)

    def _notify(self, client: Receiver, kind: int) -> None:
        if kind == lib.HMQ_PUMP_PACKET:
            client.received(self._process.engine.last_event())
        elif kind == lib.HMQ_PUMP_PARTIAL:
            client.received_part()
        elif kind == lib.HMQ_PUMP_PAUSED:
            if self._event.partial:
                client.received_part()
            client.reading_paused()
        elif kind == lib.HMQ_PUMP_FULL:
            client.pause_writing()
        elif kind == lib.HMQ_PUMP_ROOM:
            client.resume_writing()
