"""A client's transport, and the client as the transport sees it.

Stream     what every transport can do: Pumped here, Paced (paced.py), WebSocketStream (websocket.py)
Pumped     a socket of the pump (pump.py)
Receiver   receives the events of a transport: the Client of a higher folder
"""

import asyncio
from abc import ABC, abstractmethod
from typing import Any, Protocol

from holdmq.core.engine import Event
from holdmq_bridge._pump import lib
from holdmq_bridge.base.reasons import Ending

HARD_LIMIT_FACTOR = 4  # of write_buffer_bytes: a client that leaves more unread is not read either


class Stream(Protocol):
    """A transport."""

    def close(self) -> None:
        """Closes the connection once everything is sent."""

    def abort(self) -> None:
        """Closes the connection immediately."""

    def is_closing(self) -> bool:
        """Whether nothing more can be written."""

    def pause_reading(self) -> None:
        """Stops reading the socket."""

    def resume_reading(self) -> None:
        """Reads the socket again."""

    def get_write_buffer_size(self) -> int:
        """Bytes that the socket has not taken yet."""


class Writable(Stream, Protocol):
    """A transport that is handed the engine's output.  The pump takes the output by itself."""

    def write(self, data: bytes) -> None:
        """Sends bytes to the client."""


class Receiver(asyncio.BufferedProtocol, ABC):
    """A client, as its transport knows it: also a protocol of asyncio.

    Attributes:
        conn: the engine's handle; 0: it has none yet, or none any more.
    """

    __slots__ = ()

    conn: int

    @property
    @abstractmethod
    def client_id(self) -> bytes:
        """For the logs; empty before the CONNECT."""

    @abstractmethod
    def begin_handshake(self) -> None:
        """The connection counts from now on, though no byte of a client has come."""

    @abstractmethod
    def end_handshake(self) -> None:
        """The handshake has failed, or the client has begun."""

    @abstractmethod
    def begin(self, stream: "Writable | Pumped", peer: str, certificate: dict[str, Any] | None = None) -> None:
        """The connection has begun; `certificate`: verified by TLS.  Aborts the stream if there is no room for it."""

    @abstractmethod
    def feed(self, data: bytes) -> None:
        """Takes bytes that are not in the engine's buffer."""

    @abstractmethod
    def received(self, event: Event | None) -> None:
        """The engine has taken bytes; `event`: what they led to."""

    @abstractmethod
    def received_part(self) -> None:
        """Bytes arrived, but they completed no packet."""

    @abstractmethod
    def reading_paused(self) -> None:
        """The pump has stopped reading the socket."""

    @abstractmethod
    def upgrade_refused(self, why: str) -> None:
        """The request for a WebSocket was refused, and the refusal is sent."""

    @abstractmethod
    def end(self, ending: Ending, detail: str = "", reason: int | None = None) -> None:
        """Ends the connection; `reason`: of the DISCONNECT, if it differs from that of the ending."""


class PumpedSockets(Protocol):
    """The part of the pump that a Pumped uses."""

    handle: Any

    def close_socket(self, number: int, *, at_once: bool) -> None:
        """Closes a socket.  Its client learns of the end a little later."""

    def line_up(self, number: int) -> None:
        """Gives the client a turn: the engine may have more packets of it."""


class Pumped:
    """A socket in the pump."""

    __slots__ = ("_number", "_pump", "_state")

    def __init__(self, pump: PumpedSockets) -> None:
        self._pump = pump
        self._number = 0
        self._state = _NEW

    def joined(self, number: int) -> None:
        """The pump has the socket now."""
        self._number = number
        self._state = _OPEN

    def closed(self) -> None:
        """The pump has closed the socket."""
        self._state = _GONE

    def close(self) -> None:
        """Closes the connection once everything is sent."""
        self._close(at_once=False)

    def abort(self) -> None:
        """Closes the connection immediately."""
        self._close(at_once=True)

    def _close(self, *, at_once: bool) -> None:
        if self._state in (_OPEN, _CLOSING):
            self._state = _CLOSING
            self._pump.close_socket(self._number, at_once=at_once)
        else:
            self._state = _GONE

    def is_closing(self) -> bool:
        """Whether nothing more can be sent."""
        return self._state in (_CLOSING, _GONE)

    def pause_reading(self) -> None:
        """Stops reading the socket."""
        self._read(False)

    def resume_reading(self) -> None:
        """Reads the socket again."""
        self._read(True)

    def _read(self, reads: bool) -> None:
        if self._state == _OPEN:
            lib.hmq_pump_read(self._pump.handle, self._number, reads)

    def line_up(self) -> None:
        """Gives the client a turn: the engine may have more packets of it."""
        if self._state == _OPEN:
            self._pump.line_up(self._number)

    def get_write_buffer_size(self) -> int:
        """Bytes that the socket has not taken yet."""
        return int(lib.hmq_pump_waiting(self._pump.handle, self._number)) if self._state in (_OPEN, _CLOSING) else 0

    def heard_at(self) -> float:
        """When the last whole packet arrived, in the loop's time; 0: none has."""
        return float(lib.hmq_pump_heard(self._pump.handle, self._number)) if self._state == _OPEN else 0.0

    def is_gone(self) -> bool:
        """Whether the client has closed.  A client that is not read is asked here; no event says so."""
        return bool(self._state == _OPEN and lib.hmq_pump_is_gone(self._pump.handle, self._number))

    def detach(self) -> None:
        """The engine has forgotten the connection."""
        if self._state in (_OPEN, _CLOSING):
            lib.hmq_pump_detach(self._pump.handle, self._number)


_NEW, _OPEN, _CLOSING, _GONE = range(4)


def readable_peer(peername: object) -> str:
    """An address for the logs."""
    if isinstance(peername, tuple) and len(peername) >= 2:
        return f"{peername[0]}:{peername[1]}"
    return str(peername)
