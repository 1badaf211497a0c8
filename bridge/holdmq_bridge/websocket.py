"""MQTT in WebSocket frames (MQTT section 6): a layer between a socket and a Client that takes itself for its transport.

    socket ──► wsproto ──► bytes of binary messages ──► Client.feed
    socket ◄── wsproto ◄── one binary message each  ◄── Client.write

A packet may be cut anywhere over messages [MQTT-6.0.0-2]: what comes is a stream of bytes, and handed on as it comes.
Text messages end the connection [MQTT-6.0.0-1]; the subprotocol is `mqtt` [MQTT-6.0.0-3, -4].
"""

import asyncio
from typing import cast

from wsproto import ConnectionType, WSConnection
from wsproto.connection import ConnectionState
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Event,
    Ping,
    RejectConnection,
    Request,
    TextMessage,
)
from wsproto.utilities import LocalProtocolError, RemoteProtocolError

from holdmq_bridge.client import Client
from holdmq_bridge.logs import Log
from holdmq_bridge.stream import readable_peer

log = Log("websocket")

_SUBPROTOCOL = "mqtt"
_NORMAL, _UNSUPPORTED_DATA, _PROTOCOL_ERROR, _TOO_BIG = 1000, 1003, 1002, 1009  # RFC 6455, 7.4.1
_BAD_REQUEST, _NOT_FOUND = 400, 404


class WebSocket(asyncio.Protocol):
    """One accepted connection.

    Args:
        client: whose transport this is.
        path: where the WebSocket lies.
        max_message_bytes: of one message; a larger one ends the connection.
        write_buffer_bytes: high-water mark of the socket's buffer.
    """

    def __init__(self, client: Client, path: str, max_message_bytes: int, write_buffer_bytes: int) -> None:
        self._client = client
        self._path = path
        self._max_message_bytes = max_message_bytes
        self._write_buffer_bytes = write_buffer_bytes
        self._message_bytes = 0
        self._frames = WSConnection(ConnectionType.SERVER)
        self._transport: asyncio.Transport | None = None

    # ---- asyncio ---------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A socket was accepted; the client's time for its CONNECT begins."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=self._write_buffer_bytes)
        self._client.certificate = transport.get_extra_info("peercert")
        self._client.begin(self, readable_peer(transport.get_extra_info("peername")))

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        try:
            self._frames.receive_data(data)
            for event in self._frames.events():
                self._take(event)
        except RemoteProtocolError as error:
            log.debug("a bad WebSocket", error=error)
            self._refuse(error)

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is closed."""
        self._transport = None
        self._client.connection_lost(exc)

    def pause_writing(self) -> None:
        """The client takes nothing."""
        self._client.pause_writing()

    def resume_writing(self) -> None:
        """It takes it again."""
        self._client.resume_writing()

    # ---- frames ----------------------------------------------------------------------------------------------------

    def _take(self, event: Event) -> None:
        if isinstance(event, BytesMessage):
            self._message_bytes += len(event.data)
            if self._message_bytes > self._max_message_bytes:
                self._close(_TOO_BIG)
                return
            if event.message_finished:
                self._message_bytes = 0
            self._client.feed(bytes(event.data))
        elif isinstance(event, Ping):
            self._send(event.response())
        elif isinstance(event, Request):
            self._shake_hands(event)
        elif isinstance(event, CloseConnection):
            self._send(event.response())
            self.close()
        elif isinstance(event, TextMessage):
            self._close(_UNSUPPORTED_DATA)

    def _shake_hands(self, request: Request) -> None:
        if request.target.partition("?")[0] != self._path:
            self._reject(_NOT_FOUND)
        elif _SUBPROTOCOL not in request.subprotocols:
            self._reject(_BAD_REQUEST)
        else:
            self._send(AcceptConnection(subprotocol=_SUBPROTOCOL))

    def _reject(self, status: int) -> None:
        self._send(RejectConnection(status_code=status))
        self._end()

    def _refuse(self, error: RemoteProtocolError) -> None:
        if error.event_hint is not None and self._frames.state is ConnectionState.CONNECTING:
            self._send(error.event_hint)
            self._end()
        else:
            self._close(_PROTOCOL_ERROR)

    def _send(self, event: Event) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        try:
            self._transport.write(self._frames.send(event))
        except LocalProtocolError as error:  # it has closed meanwhile
            log.debug("a frame too late", error=error)

    def _close(self, code: int) -> None:
        if self._frames.state is ConnectionState.OPEN:
            self._send(CloseConnection(code))
        self._end()

    def _end(self) -> None:
        if self._transport is not None:
            self._transport.close()

    # ---- a Client's transport --------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """One binary message."""
        self._send(BytesMessage(data))

    def close(self) -> None:
        """Says so in a frame, and closes."""
        self._close(_NORMAL)

    def abort(self) -> None:
        """Closes at once."""
        if self._transport is not None:
            self._transport.abort()

    def is_closing(self) -> bool:
        """No more can be written."""
        return self._transport is None or self._transport.is_closing()

    def pause_reading(self) -> None:
        """Nothing more from the socket."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Go on."""
        if self._transport is not None:
            self._transport.resume_reading()

    def get_write_buffer_size(self) -> int:
        """Unsent bytes."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()
