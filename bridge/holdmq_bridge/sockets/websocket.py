"""MQTT in WebSocket frames over asyncio's transports: TLS, or behind the PROXY protocol.

    socket ──► TLS ──► frames off, in place (holdmq.core.websocket) ──► the client's buffer_updated
    socket ◄── TLS ◄── frames on ◄──────────────────────────────────── the client's write

Without TLS the pump does the same in C (pump.py).  For the client, WebSocketStream is the transport.
"""

import asyncio
from typing import cast

from holdmq.core.websocket import Phase, WebSocket, fault_text
from holdmq_bridge.base.reasons import Ending
from holdmq_bridge.process.process import Process
from holdmq_bridge.sockets.paced import TURN_BYTES, Paced
from holdmq_bridge.sockets.stream import Receiver, readable_peer
from holdmq_bridge.sockets.upgrade import Upgrades

_MAX_UNSENT_BYTES = 4096  # above it, a pong waits: only the most recent ping needs one (RFC 6455, section 5.5.3)


class WebSocketStream(asyncio.BufferedProtocol):
    """One accepted connection.

    Args:
        process: which accepted it.
        upgrades: answers the request.
        client: whose transport this is.
        tls: whether the connection uses TLS.
    """

    def __init__(self, process: Process, upgrades: Upgrades, client: Receiver, *, tls: bool) -> None:
        self._process = process
        self._upgrades = upgrades
        self._client = client
        self._tls = tls
        self._frames = WebSocket(process.settings.ws_max_frame_bytes)
        self._transport: Paced | None = None

    # ---- asyncio ---------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A socket was accepted: the client's time for its CONNECT begins."""
        tcp = cast("asyncio.Transport", transport)
        tcp.set_write_buffer_limits(high=self._process.settings.write_buffer_bytes)
        self._transport = Paced(tcp, self._process.loop)
        peer, certificate = readable_peer(transport.get_extra_info("peername")), transport.get_extra_info("peercert")
        self._client.begin(self, peer, certificate)

    def get_buffer(self, sizehint: int) -> memoryview:
        """The buffer that all clients share.  Its bytes are taken before another client is read."""
        return self._process.engine.buffer[:TURN_BYTES]

    def buffer_updated(self, nbytes: int) -> None:
        """Takes bytes from the buffer."""
        if self._transport is not None:
            self._transport.count_received(nbytes)
        frames = self._frames
        size = frames.read(self._process.engine.buffer, nbytes)
        if size:
            self._client.buffer_updated(size)
        elif frames.phase is Phase.ASKED:
            self._answer()
        self._send_owed()
        if frames.phase is Phase.OVER:
            self._on_end()

    def feed(self, data: bytes) -> None:
        """Takes bytes that are not in the engine's buffer."""
        buffer = self._process.engine.buffer
        for at in range(0, len(data), len(buffer)):
            part = data[at : at + len(buffer)]
            buffer[: len(part)] = part
            self.buffer_updated(len(part))

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is closed."""
        self._transport = None
        self._client.connection_lost(exc)

    def pause_writing(self) -> None:
        """The socket takes no more bytes."""
        self._client.pause_writing()

    def resume_writing(self) -> None:
        """The socket takes bytes again."""
        self._send_owed()
        self._client.resume_writing()

    # ---- frames ----------------------------------------------------------------------------------------------------

    def _answer(self) -> None:
        answer = self._upgrades.answer(self._frames.request, tls=self._tls)
        self._frames.answered(accepted=not answer.refusal)
        self._send(answer.data)
        if answer.refusal:
            self._client.upgrade_refused(answer.refusal)

    def _send_owed(self) -> None:
        frames = self._frames
        if frames.owes and (frames.phase is Phase.OVER or self.get_write_buffer_size() <= _MAX_UNSENT_BYTES):
            self._send(frames.answer())

    def _on_end(self) -> None:
        """The client has closed the WebSocket, or has violated the protocol."""
        fault = self._frames.fault
        self._process.counters.websocket_faults += fault > 0
        self._client.end(Ending.LOST, fault_text(fault) if fault else "")

    def _send(self, data: bytes) -> None:
        if data and self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def _end(self) -> None:
        if self._transport is not None:
            self._transport.close()

    # ---- the client's transport --------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Sends one binary message."""
        if self._frames.phase is Phase.OPEN:
            self._send(self._frames.header(len(data)) + data)

    def close(self) -> None:
        """Sends a close frame, and closes the connection."""
        self._send(self._frames.close())
        self._end()

    def abort(self) -> None:
        """Closes the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def is_closing(self) -> bool:
        """Whether nothing more can be written."""
        return self._transport is None or self._transport.is_closing()

    def pause_reading(self) -> None:
        """Stops reading the socket."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Reads the socket again."""
        if self._transport is not None:
            self._transport.resume_reading()

    def get_write_buffer_size(self) -> int:
        """Bytes that the socket has not taken yet."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()
