"""The ports of a bridge: MQTT over TCP, TLS, WebSocket and WebSocket over TLS.

The pump accepts connections over TCP and WebSocket.  Those of ports with TLS, and of all ports with the PROXY protocol,
are accepted here and become transports of asyncio.  A connection counts as soon as it is accepted: as a handshake, then
as a client.

Several processes may share a port (SO_REUSEPORT): the kernel distributes the connections.  Options for all connections
(TCP keep-alive probes, which find vanished peers) are set on the listening socket: accepted sockets inherit them.

When the TLS files change, or at a SIGHUP, the files are read again, for later connections.  Existing connections stay.
Files that cannot be used change nothing.
"""

import asyncio
import socket
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from holdmq_bridge.base.binding import bound_socket
from holdmq_bridge.base.logs import Log
from holdmq_bridge.process.process import Process
from holdmq_bridge.process.settings import Settings
from holdmq_bridge.sockets.proxy import ProxyHeader, ProxyRefusals
from holdmq_bridge.sockets.pump import Pump
from holdmq_bridge.sockets.stream import Receiver
from holdmq_bridge.sockets.tls import tls_context, tls_stamps
from holdmq_bridge.sockets.upgrade import Upgrades
from holdmq_bridge.sockets.websocket import WebSocketStream

if TYPE_CHECKING:
    import ssl

log = Log("listeners")

_BACKLOG = 4096
_ACCEPT_AGAIN_S = 1.0  # after a failure, such as a lack of descriptors
_PROBES, _PROBE_INTERVAL_S = 3, 30


class Listener(NamedTuple):
    """A port and its protocols."""

    name: str
    port: int
    tls: bool
    websocket: bool


def configured_listeners(settings: Settings) -> list[Listener]:
    """The listeners that the settings ask for."""
    listeners = [
        ("mqtt", settings.port, False, False),
        ("mqtts", settings.tls_port, True, False),
        ("ws", settings.ws_port, False, True),
        ("wss", settings.wss_port, True, True),
    ]
    return [Listener(name, port, tls, ws) for name, port, tls, ws in listeners if port is not None]


class Room(Protocol):
    """The owner, which knows how many connections there may be."""

    @property
    def has_room(self) -> bool:
        """Whether one more connection may be taken in."""

    def refuse_connection(self) -> None:
        """Counts and logs a connection for which there is no room."""


class Listeners:
    """All ports of one process.

    Args:
        process: whose ports they are.
        pump: takes the connections without TLS and PROXY protocol.
        new_client: makes the receiver of a connection, given the client's address if a proxy named it, else "".
        room: for the connections that are accepted here.

    Attributes:
        ports: by name (mqtt, mqtts, ws, wss).
    """

    def __init__(self, process: Process, pump: Pump, new_client: Callable[[str], Receiver], room: Room) -> None:
        self._process = process
        self._pump = pump
        self._new_client = new_client
        self._room = room
        self._upgrades = Upgrades(process.settings)
        self._proxy_refusals = ProxyRefusals(process)
        self._context: ssl.SSLContext | None = None
        self._tasks: set[asyncio.Task[None]] = set()  # that accept, and handshakes
        self._sockets: dict[Listener, socket.socket] = {}
        self._stamps = tls_stamps(process.settings)
        self._poll: asyncio.TimerHandle | None = None
        self.ports: dict[str, int] = {}

    @property
    def has_tls(self) -> bool:
        """Whether there is a port with TLS."""
        return any(listener.tls for listener in configured_listeners(self._process.settings))

    async def open(self, *, reuse_port: bool) -> None:
        """Binds the ports.  Accepts no connections yet.

        Raises:
            OSError: an address is not available, or a TLS file cannot be used.
        """
        settings = self._process.settings
        listeners = configured_listeners(settings)
        self._context = tls_context(settings) if self.has_tls else None
        for listener in listeners:
            bound = bound_socket(settings.host, listener.port, reuse_port=reuse_port)
            _enable_keep_alive(bound, settings.max_keep_alive_s)
            self.ports[listener.name] = bound.getsockname()[1]
            self._sockets[listener] = bound

    def _is_pumped(self, listener: Listener) -> bool:
        return not (listener.tls or self._process.settings.proxy_protocol)

    async def serve(self) -> None:
        """Accepts connections.

        Raises:
            OSError: another process listens there since the port was bound; the text names the address.
        """
        settings = self._process.settings
        for listener, bound in self._sockets.items():
            if self._is_pumped(listener):
                make = partial(self._new_client, "")
                self._listen(listener, partial(self._pump.listen, bound, make=make, websocket=listener.websocket))
            else:
                self._listen(listener, bound.listen)
                bound.setblocking(False)
                self._start(self._accept(listener, bound))
        if self.has_tls and settings.tls_poll_s:
            self._poll = self._process.loop.call_later(settings.tls_poll_s, self._check_files)
        log.info("listening", host=settings.host, name=self._process.name, **self.ports)

    async def _accept(self, listener: Listener, listening: socket.socket) -> None:
        """Accepts connections one by one, as long as there is room."""
        while True:
            try:
                accepted, _ = await self._process.loop.sock_accept(listening)
            except OSError as error:
                log.error("connections temporarily cannot be accepted", error=error)  # noqa: TRY400 (as a fact, without its stack)
                await asyncio.sleep(_ACCEPT_AGAIN_S)
                continue
            if not self._room.has_room:
                self._room.refuse_connection()
                accepted.close()
            elif listener.tls:
                client = self._new_client("")
                client.begin_handshake()
                self._start(self._shake_hands(listener, client, accepted))
            else:
                header = ProxyHeader(self._process, self._maker(listener), self._proxy_refusals)
                self._start(self._read_header(header, accepted))

    async def _read_header(self, header: ProxyHeader, accepted: socket.socket) -> None:
        """Reads the header of the PROXY protocol."""
        try:
            await self._process.loop.connect_accepted_socket(lambda: header, accepted)
        except OSError:
            header.end()
            accepted.close()

    async def _shake_hands(self, listener: Listener, client: Receiver, accepted: socket.socket) -> None:
        """Ends when the client has begun, or the handshake has failed: then the context reports it (tls.py)."""
        timeout_s = self._process.settings.connect_timeout_s
        protocol = WebSocketStream(self._process, self._upgrades, client, tls=True) if listener.websocket else client
        try:
            await self._process.loop.connect_accepted_socket(
                lambda: protocol,
                accepted,
                ssl=self._context,
                ssl_handshake_timeout=timeout_s,
                ssl_shutdown_timeout=timeout_s,  # for clients that do not answer the close
            )
        except OSError:
            accepted.close()
        finally:
            client.end_handshake()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._process.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _listen(self, listener: Listener, listen: Callable[[int], object]) -> None:
        try:
            listen(_BACKLOG)
        except OSError as error:
            address = f"{self._process.settings.host}:{self.ports[listener.name]}"
            raise OSError(error.errno, f"cannot listen on {address}: {error.strerror}") from error

    def _check_files(self) -> None:
        """Reads the TLS files again if they have changed."""
        settings = self._process.settings
        self._poll = self._process.loop.call_later(settings.tls_poll_s, self._check_files)
        if tls_stamps(settings) != self._stamps:
            self.reload()

    def reload(self) -> None:
        """Reads the TLS files again, for connections from then on."""
        settings = self._process.settings
        self._stamps = tls_stamps(settings)
        try:
            self._context = tls_context(settings)
        except OSError as error:
            log.error("the TLS files cannot be used: the former ones stay in use", error=error)  # noqa: TRY400 (as a fact, without its stack)
            return
        log.info("the TLS files were read again")

    def _maker(self, listener: Listener) -> Callable[[str], Receiver | WebSocketStream]:
        def make(peer: str) -> Receiver | WebSocketStream:
            client = self._new_client(peer)
            return WebSocketStream(self._process, self._upgrades, client, tls=False) if listener.websocket else client

        return make

    def close(self) -> None:
        """Accepts no further connections.  Existing ones stay."""
        if self._poll is not None:
            self._poll.cancel()
        for task in self._tasks:
            task.cancel()
        for bound in self._sockets.values():
            self._pump.unlisten(bound)
            bound.close()
        self._sockets.clear()


def _enable_keep_alive(listening: socket.socket, idle_s: int) -> None:
    """Probes every connection that is idle for so long.  It is lost when the peer does not answer."""
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, min(idle_s, 32767))
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_INTERVAL_S)
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
