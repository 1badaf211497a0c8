"""The asyncio side of one client: a socket, two timers and flow control around a Connection.

No task per client or packet.  Everything happens in callbacks of the event loop: bytes from the socket go into the
Connection, and `pump` takes what it produced to the socket, the link and the bridge.

Flow control
    not reading    the Connection wants rest, the link is congested, or so much is unsent that the client cannot be
                   reading: TCP then slows the client down
    not delivering the socket's buffer is above its high-water mark; messages stay in the queue at the server
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from holdmq_bridge.connection import Connection, Ending, Event, Phase
from holdmq_bridge.logs import Log

if TYPE_CHECKING:
    from holdmq_bridge.bridge import Bridge

log = Log("client")

_KEEP_ALIVE_FACTOR = 1.5  # [MQTT-3.1.2-24]
_HARD_LIMIT_FACTOR = 4  # of write_buffer_bytes: beyond it the client is not read either


class Client(asyncio.Protocol):
    """One accepted connection."""

    def __init__(self, bridge: "Bridge") -> None:
        self._bridge = bridge
        self._settings = bridge.settings
        self._loop = bridge.loop
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._heard_at = 0.0
        self._reading = True
        self._peer = ""
        self.dirty = False  # the bridge will call pump
        self.flush_due = False  # the bridge will call flush
        self.connection: Connection = bridge.new_connection(self)

    # ---- asyncio ---------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client is there; it has connect_timeout_s for its CONNECT."""
        socket = cast("asyncio.Transport", transport)  # uvloop's do not inherit from it
        if not self._bridge.admit(self):
            socket.abort()
            return
        self._transport = socket
        socket.set_write_buffer_limits(high=self._settings.write_buffer_bytes)
        self._peer = _readable_peer(socket.get_extra_info("peername"))
        self._heard_at = self._loop.time()
        self._timer = self._loop.call_later(self._settings.connect_timeout_s, self._connect_expired)

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        self._heard_at = self._loop.time()
        self.connection.receive(data)
        self.pump()

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is closed, by whomever."""
        if self._transport is None:
            return
        self._transport = None
        for timer in (self._timer, self._write_timer):
            if timer is not None:
                timer.cancel()
        self.connection.end(Ending.LOST, "" if exc is None else str(exc))
        self.pump()

    def pause_writing(self) -> None:
        """The client does not take what it is sent."""
        self.connection.set_writable(False)
        self._write_timer = self._loop.call_later(self._settings.write_timeout_s, self._end, Ending.SLOW)

    def resume_writing(self) -> None:
        """It takes it again."""
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
        self.connection.set_writable(True)
        self.pump()

    # ---- from the bridge -------------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Takes what the Connection produced to where it belongs."""
        connection = self.connection
        self.dirty = False
        if connection.requests:
            self._bridge.send(connection.requests)
            connection.requests.clear()
        if connection.fetch is not None:
            self._bridge.send_fetch(connection.fetch)
            connection.fetch = None
        if connection.needs_flush and not self.flush_due:
            self._bridge.flush_later(self)
        if connection.output:
            if self._transport is not None and not self._transport.is_closing():
                self._transport.write(b"".join(connection.output))
            connection.output.clear()
        if connection.retry_in_s is not None:
            self._loop.call_later(connection.retry_in_s, self._retry)
            connection.retry_in_s = None
        if connection.events:
            self._act_on_events()
        self.update_reading()
        if connection.phase is Phase.ENDED and connection.finished and self._transport is None:
            self._bridge.forget(self)

    def safely(self, step: Callable[[], None]) -> None:
        """Does one of this client's steps.  If it fails (a defect of ours), the client is given up, and no other."""
        try:
            step()
        except Exception as error:  # noqa: BLE001 (whatever it is, the loop over all clients must go on)
            log.defect("a defect; the client is given up", error, client=self.connection.client_id)
            if self._transport is not None:
                self._transport.abort()

    def server_lost(self) -> None:
        """No reply will come any more."""
        self.connection.server_lost()
        self.pump()

    def server_restored(self) -> None:
        """The server is there."""
        self.connection.server_restored()
        self.pump()

    def flush(self) -> None:
        """A batch is about to be written to the server."""
        self.flush_due = False
        self.connection.flush()
        self.pump()

    def update_reading(self) -> None:
        """Stops or goes on reading, as flow control wants it."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        rest = (
            self._bridge.congested
            or self.connection.wants_rest
            or transport.get_write_buffer_size() > self._settings.write_buffer_bytes * _HARD_LIMIT_FACTOR
        )
        if rest and self._reading:
            self._reading = False
            transport.pause_reading()
            self._bridge.resting(self)
        elif not rest and not self._reading:
            self._reading = True
            self._heard_at = self._loop.time()  # while it was not read it could not be heard
            transport.resume_reading()

    def shut_down(self) -> None:
        """The bridge goes away."""
        self._end(Ending.SHUTDOWN)

    @property
    def gone(self) -> bool:
        """The socket is closed."""
        return self._transport is None

    # ---- timers and events -----------------------------------------------------------------------------------------

    def _end(self, ending: Ending) -> None:
        self.connection.end(ending)
        self.pump()

    def _retry(self) -> None:
        self.connection.retry()
        self.pump()

    def _connect_expired(self) -> None:
        if self.connection.phase is Phase.NEW:
            self._end(Ending.NO_CONNECT)
        elif self.connection.phase is Phase.OPENING:
            self.connection.open_expired()
            self.pump()

    def _act_on_events(self) -> None:
        events = self.connection.events
        for event in tuple(events):
            if event is Event.OPENING:
                self._bridge.listen(self)
            elif event is Event.OPENED:
                self._opened()
            elif event is Event.ENDED:
                self._ended()
        events.clear()

    def _opened(self) -> None:
        connection = self.connection
        self._bridge.opened(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if connection.keep_alive_s and self._transport is not None:
            limit = connection.keep_alive_s * _KEEP_ALIVE_FACTOR
            self._timer = self._loop.call_later(limit, self._check_keep_alive, limit)
        log.info(
            "client connected",
            client=connection.client_id,
            peer=self._peer,
            clean=connection.clean,
            epoch=connection.epoch,
            keep_alive_s=connection.keep_alive_s,
        )

    def _check_keep_alive(self, limit: float) -> None:
        now = self._loop.time()
        if not self._reading:
            self._heard_at = now
        silent = now - self._heard_at
        if silent < limit:
            self._timer = self._loop.call_later(limit - silent, self._check_keep_alive, limit)
            return
        self._bridge.counters.keep_alive_expired += 1
        self._end(Ending.SILENT)

    def _ended(self) -> None:
        connection = self.connection
        self._bridge.ended(self)
        if connection.client_id:
            log.info(
                "client gone",
                client=connection.client_id,
                peer=self._peer,
                reason=connection.ending,
                detail=connection.ending_detail,
            )
        else:
            log.debug("connection ended", peer=self._peer, reason=connection.ending, detail=connection.ending_detail)
        if self._transport is not None:
            self._close()

    def _close(self) -> None:
        """Closes the socket; a client that does not read gets no more time for what is unsent."""
        assert self._transport is not None
        if not self._reading:
            self._reading = True
            self._transport.resume_reading()
        if self.connection.ending is Ending.SLOW:
            self._transport.abort()
            return
        self._transport.close()
        if self._write_timer is None:
            self._write_timer = self._loop.call_later(self._settings.write_timeout_s, self._transport.abort)


def _readable_peer(peername: object) -> str:
    if isinstance(peername, tuple) and len(peername) >= 2:
        return f"{peername[0]}:{peername[1]}"
    return str(peername)
