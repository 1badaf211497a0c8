"""The sockets of clients over TCP and WebSocket, read and written in C (bridge/native/pump.h): one callback for all.

    listening socket ── accept ──► Client + Pumped ──► pump ◄──epoll──► clients
                                                        │ ▲
                       rare packets, deadlines, ends ◄──┘ └── the engine's output

What comes often never becomes a Python object: a turn reads up to 64 sockets into the engine, and the bridge's flush
sends what the engine has for them.  A WebSocket's request comes here once, to be answered; its frames do not.  TLS and
the PROXY protocol stay on asyncio's transports; their output comes back from here as foreign.

While the server owes replies to more than `read_ahead` commands, publishers' sockets are not read: everybody waits for
the server then, more commands would only queue there, and one later turn over the same sockets finds more on each, for
a fraction of the processor time.  It lasts until the server has answered, and at most 20 ms, so that a server that
hangs or is far away changes neither deadlines nor what `max_outstanding` bounds.  A turn ends when the server owes
four times as many.  A command counts once more for each KiB, and several times while publishes go to many sessions.

Receivers come first: a client whose acknowledgements further messages wait for is read at any time.  If the backlog of
one grows although it acknowledges quickly (3,000 messages a second or more), publishers are slowed until it has caught
up, so that nothing is dropped from its queue.  Clients that bring little are then read every 2 ms, the others every 20,
all together a quarter as many publishes as were acknowledged: no receiver can stop publishers.

Invariants
 1. A Client of this pump has its Pumped as stream until `connection_lost`, which it hears once.
 2. Nothing that a client does to itself (an error in our handling of it included) ends a turn for the others.
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

_ACCEPTS_AT_ONCE = 64
_PAUSE_S = 1.0  # when nobody can be accepted
_LONGEST_REST_S = 0.02  # while the server owes replies
_TURN_REPLIES = 4  # times read_ahead: what the server may owe when a turn reads one more socket

# While publishers are slowed for receivers: a pause, then a turn that takes a few publishes of clients that bring
# little; every tenth turn takes some of the others, too.
_PRESSED_PAUSE_S = 0.002
_PRESSED_BULK = 10
_PRESSED_SHARE = 4  # of what those receivers have acknowledged: a quarter, for either
_PRESSED_LEAST = 4  # publishes

_RECEIVERS, _OTHERS, _BULK = 1, 2, 4  # 1 << hmq_pump_class
_ALL = _RECEIVERS | _OTHERS | _BULK
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

if ffi.string(lib.HMQ_PUMP_CORE_DIGEST).decode() != CORE_DIGEST:
    raise ImportError("holdmq_bridge._pump was built for another core than holdmq._core: run `make core`")


# Members of hmq_pump_engine.
_ENGINE_CALLS = (
    "receive",
    "took",
    "rests",
    "congested",
    "next_output",
    "has_more",
    "backlog_of",
    "owed",
    "count",
)


class PumpHost(Protocol):
    """Whoever owns the pump."""

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
        made = lib.hmq_pump_new(calls, high_water, high_water * HARD_LIMIT_FACTOR)
        if made == ffi.NULL:
            raise OSError(ffi.errno, f"no sockets can be watched: {os.strerror(ffi.errno)}")
        self.handle = ffi.gc(made, lib.hmq_pump_free)
        self._event = ffi.new("hmq_pump_event *")
        self._engine_event = process.engine.event
        self._members: dict[int, tuple[Receiver, Pumped]] = {}
        self._listening: dict[int, socket.socket] = {}
        self._read_ahead = process.settings.read_ahead
        self._most = self._read_ahead * _TURN_REPLIES
        self._rest: TimerHandle | None = None  # its end
        self._slow_turns = 0
        self._relieved = 0
        self._watched = False  # publishers' sockets
        self._comes_soon = False  # another turn
        self._sent_in_all: int | None = None  # when the pump is gone
        self._loop.add_reader(lib.hmq_pump_fd(self.handle, lib.HMQ_PUMP_RECEIVERS), self._receivers_turn)
        self._go_on()

    # ---- life of a socket ------------------------------------------------------------------------------------------

    def listen(
        self, listening: socket.socket, backlog: int, make: Callable[[], Receiver], *, websocket: bool = False
    ) -> None:
        """Accepts connections from now on.  The socket stays the caller's, who ends it by `unlisten`."""
        listening.setblocking(False)
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # whoever is accepted has it, too
        listening.listen(backlog)
        self._listening[listening.fileno()] = listening
        self._loop.add_reader(listening.fileno(), self._accept, listening, make, websocket)

    def unlisten(self, listening: socket.socket) -> None:
        """Accepts nobody more."""
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
                log.error("no connection can be accepted for now", error=error)  # noqa: TRY400 (as a fact, without its stack)
                self._loop.remove_reader(listening.fileno())
                self._loop.call_later(_PAUSE_S, self._accept_again, listening, make, websocket)
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
            stream.gone()
            client.connection_lost(OSError(-number, os.strerror(-number)))
            return
        stream.joined(number)
        self._members[number] = client, stream

    def close_socket(self, number: int, *, at_once: bool) -> None:
        """For Pumped; its client hears of the end a little later."""
        if lib.hmq_pump_close(self.handle, number, at_once):
            client, stream = self._members.pop(number)
            stream.gone()
            self._loop.call_soon(client.connection_lost, None)

    def close(self) -> None:
        """Ends all that is left, and the pump itself."""
        if self._rest is not None:
            self._rest.cancel()
            self._rest = None
        self._watch(watched=False)
        self._loop.remove_reader(lib.hmq_pump_fd(self.handle, lib.HMQ_PUMP_RECEIVERS))
        for _, stream in self._members.values():
            stream.gone()
        self._members.clear()
        self._sent_in_all = self.sent
        ffi.release(self.handle)

    # ---- a turn ----------------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        """Sockets are ready: reads them, then lets the bridge send what became of it."""
        self._read(_ALL, self._most)

    def _receivers_turn(self) -> None:
        """The same for receivers alone."""
        self._read(_RECEIVERS, self._most)

    def _slow_turn(self) -> None:
        """While publishers are slowed they bring a little now and then, those who bring little four times as often."""
        self._slow_turns += 1
        relieved = int(lib.hmq_pump_relieved(self.handle))
        allowed = max(_PRESSED_LEAST, (relieved - self._relieved) // _PRESSED_SHARE)
        self._relieved = relieved
        classes = _RECEIVERS | _OTHERS if self._slow_turns % _PRESSED_BULK else _ALL
        self._read(classes, min(self._process.engine.owed + allowed, self._most))

    def _read(self, classes: int, most: int) -> None:
        process, host, event = self._process, self._host, self._event
        found = lib.hmq_pump_poll(self.handle, classes, most, process.now_ms(), self._loop.time(), host.congested)
        if found < 0:
            raise OSError(-found, os.strerror(-found))
        if found:
            while lib.hmq_pump_next(self.handle, event, self._engine_event):
                self._dispatch(event.kind, event.number)
            host.flush()
        self._rest_or_go_on()

    def _rest_or_go_on(self) -> None:
        """Publishers rest while the server owes replies, or while a receiver's backlog grows that acknowledges."""
        pressed = lib.hmq_pump_is_pressed(self.handle, self._loop.time())
        if pressed or self._process.engine.owed > self._read_ahead:
            if self._rest is None:
                self._watch(watched=False)
                pause_s = _PRESSED_PAUSE_S if pressed else _LONGEST_REST_S
                self._rest = self._loop.call_later(pause_s, self._rested)
        elif not self._watched:
            self._go_on()
        elif lib.hmq_pump_has_more(self.handle) and not self._comes_soon:
            self._comes_soon = True
            self._loop.call_soon(self._next_turn)

    def _next_turn(self) -> None:
        """Clients have sent more than a turn takes of them."""
        self._comes_soon = False
        if self._watched:
            self._turn()

    def _rested(self) -> None:
        """The rest has lasted long enough."""
        if lib.hmq_pump_is_pressed(self.handle, self._loop.time()):
            self._rest = None
            self._slow_turn()
        else:
            self._go_on()

    def _go_on(self) -> None:
        """All sockets are read from now on."""
        if self._rest is not None:
            self._rest.cancel()
            self._rest = None
        self._watch(watched=True)
        if lib.hmq_pump_has_more(self.handle):
            self._rest_or_go_on()

    def _watch(self, *, watched: bool) -> None:
        """Whether publishers' sockets are read when they are ready; those of receivers always are."""
        if watched == self._watched:
            return
        self._watched = watched
        for which in (lib.HMQ_PUMP_OTHERS, lib.HMQ_PUMP_BULK):
            if watched:
                self._loop.add_reader(lib.hmq_pump_fd(self.handle, which), self._turn)
            else:
                self._loop.remove_reader(lib.hmq_pump_fd(self.handle, which))

    def line_up(self, number: int) -> None:
        """For Pumped: there may be more behind a packet that was dealt with."""
        lib.hmq_pump_line_up(self.handle, number)
        self._rest_or_go_on()

    def answered(self) -> None:
        """The server has answered something, or has gone: the reason for resting may be over."""
        if self._rest is not None:
            self._rest_or_go_on()

    def outputs(self) -> Iterator[tuple[int, bytes]]:
        """Sends what the engine has for clients; what is for others, as (connection, bytes)."""
        event = self._event
        while lib.hmq_pump_write(self.handle, event):
            if event.kind == lib.HMQ_PUMP_FOREIGN:
                yield event.conn, ffi.buffer(event.bytes.data, event.bytes.len)[:]
            else:
                self._dispatch(event.kind, event.number)

    @property
    def sent(self) -> int:
        """Bytes, ever; also after the end."""
        return int(lib.hmq_pump_sent(self.handle)) if self._sent_in_all is None else self._sent_in_all

    def _dispatch(self, kind: int, number: int) -> None:
        client, stream = self._members[number]
        try:
            if kind == lib.HMQ_PUMP_CLOSED:
                del self._members[number]
                stream.gone()
                client.connection_lost(self._why())
            elif client.conn and kind == lib.HMQ_PUMP_UPGRADE:
                self._upgrade(client, number)
            elif client.conn:
                self._notify(client, kind)
        except Exception as error:  # noqa: BLE001 (a defect of ours must not end the others' connections)
            log.defect("defect: the client is disconnected", error, client=client.client_id)
            client.end(Ending.DEFECT)

    def _why(self) -> OSError | None:
        """Of the end that was told."""
        error, fault = self._event.error, self._event.fault
        if fault:
            self._process.counters.websocket_faults += 1
            return ConnectionError(fault_text(fault))
        return OSError(error, os.strerror(error)) if error else None

    def _upgrade(self, client: Receiver, number: int) -> None:
        """A WebSocket's request."""
        request = ffi.buffer(self._event.bytes.data, self._event.bytes.len)[:]
        answer = self._upgrades.answer(request, tls=False)
        lib.hmq_pump_upgrade(self.handle, number, answer.data, len(answer.data), not answer.refusal)
        if answer.refusal:
            client.upgrade_refused(answer.refusal)

    def _notify(self, client: Receiver, kind: int) -> None:
        if kind == lib.HMQ_PUMP_PACKET:
            client.received(self._process.engine.taken())
        elif kind == lib.HMQ_PUMP_PARTIAL:
            client.received_part()
        elif kind == lib.HMQ_PUMP_RESTS:
            if self._event.partial:
                client.received_part()
            client.reading_paused()
        elif kind == lib.HMQ_PUMP_FULL:
            client.pause_writing()
        elif kind == lib.HMQ_PUMP_ROOM:
            client.resume_writing()
