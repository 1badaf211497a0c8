"""/metrics, /readyz and /livez over HTTP/1.1, served in the event loop of the process.

    /livez    200: the event loop runs.  Restart the process if there is no answer.
    /readyz   200 if a publish could be stored now, else 503 with the reason.  For load balancers.
    /healthz  the same as /readyz

A scrape asks the server for INFO holdmq, and uses the last answer if that takes too long.

Invariants
 1. At most _MOST_OPEN connections are open: one more ends the oldest.  So silent connections take neither descriptors
    from clients nor the turn of a probe.
 2. No connection is open for longer than _TIMEOUT_S, whether the peer reads or not.
"""

import asyncio
import contextlib
import json
import socket
from typing import TYPE_CHECKING, Any

import h11
import hiredis

from holdmq_bridge.base.binding import bound_socket
from holdmq_bridge.base.logs import Log
from holdmq_bridge.broker.bridge import Bridge
from holdmq_bridge.monitoring.metrics import CONTENT_TYPE, Metrics, parse_info

if TYPE_CHECKING:
    from holdmq_bridge.base.command import Reply

log = Log("web")

_TIMEOUT_S = 10.0
_MOST_OPEN = 32
_BACKLOG = 128
_ACCEPT_AGAIN_S = 0.1  # after a failure, such as a lack of descriptors
_INFO_TIMEOUT_S = 1.0
_MAX_REQUEST_BYTES = 16_384
_READ_BYTES = 4096
_JSON = "application/json"


class Web:
    """One for each process."""

    def __init__(self, bridge: Bridge) -> None:
        self._bridge = bridge
        self._metrics = Metrics(bridge)
        self._socket: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._open: dict[asyncio.Transport, None] = {}  # the oldest first

    def start(self, host: str, port: int) -> None:
        """Listens.

        Raises:
            OSError: the address is not available; the text names it.
        """
        self._socket = bound_socket(host, port, reuse_port=False, purpose=" for metrics")
        self._socket.listen(_BACKLOG)
        self._socket.setblocking(False)
        self._accepting = asyncio.create_task(self._accept(self._socket))
        log.info("metrics", host=host, port=self._socket.getsockname()[1])

    def close(self) -> None:
        """Listens no more."""
        if self._accepting is not None:
            self._accepting.cancel()
        if self._socket is not None:
            self._socket.close()
        for transport in self._open:
            transport.abort()

    async def _accept(self, listening: socket.socket) -> None:
        """One after the other: a server of asyncio would take all that wait at once."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(listening)
                while len(self._open) >= _MOST_OPEN:
                    self._end(next(iter(self._open)))
                await loop.connect_accepted_socket(self._protocol, accepted)
            except OSError as error:
                log.warning("a connection for metrics cannot be accepted", error=error)
                await asyncio.sleep(_ACCEPT_AGAIN_S)

    def _protocol(self) -> asyncio.StreamReaderProtocol:
        return asyncio.StreamReaderProtocol(asyncio.StreamReader(), self._serve)

    def _end(self, transport: asyncio.Transport) -> None:
        self._open.pop(transport, None)
        transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        transport: Any = writer.transport
        self._open[transport] = None
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                await self._talk(reader, writer)
                writer.close()
                await writer.wait_closed()
        except (OSError, TimeoutError):
            pass  # the other side has gone, or is too slow
        finally:
            self._end(transport)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=_MAX_REQUEST_BYTES)
        try:
            request = await _request(connection, reader)
        except h11.RemoteProtocolError as error:
            status, text = error.error_status_hint, f"{error}\n".encode()
            writer.write(_encoded(connection, status, "text/plain", text))
            return
        if request is not None:
            status, content_type, body = await self._answer(request)
            writer.write(_encoded(connection, status, content_type, body, head_only=request.method == b"HEAD"))

    async def _answer(self, request: h11.Request) -> tuple[int, str, bytes]:
        path = request.target.partition(b"?")[0]
        if request.method not in (b"GET", b"HEAD"):
            return 405, "text/plain", b"GET or HEAD only\n"
        if path == b"/metrics":
            await self._ask_server()
            await self._bridge.readiness.reason()
            return 200, CONTENT_TYPE, self._metrics.text()
        if path == b"/livez":
            return 200, _JSON, _body({"name": self._bridge.process.name})
        if path in (b"/readyz", b"/healthz"):
            return await self._readiness()
        return 404, "text/plain", b"/metrics, /readyz, /livez or /healthz\n"

    async def _readiness(self) -> tuple[int, str, bytes]:
        bridge = self._bridge
        reason = await bridge.readiness.reason()
        state = {
            "ready": not reason,
            "reason": reason,
            "server": bridge.servers.any_up,
            "clients": len(bridge.clients),
            "name": bridge.process.name,
        }
        return 503 if reason else 200, _JSON, _body(state)

    async def _ask_server(self) -> None:
        """Reads INFO holdmq of each server.  The last answer stays if there is no new one in time."""
        servers, numbers = self._bridge.servers, self._metrics.server
        addresses = servers.addresses()
        for address in set(numbers) - set(addresses.values()):
            del numbers[address]  # a node that has no slots any more
        await asyncio.gather(
            *(self._ask_one(link, address) for link, address in addresses.items() if servers.is_up(link))
        )

    async def _ask_one(self, link: int, address: str) -> None:
        answered: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._bridge.calls.call(
            ("INFO", "holdmq"), lambda reply: None if answered.done() else answered.set_result(reply), link
        )
        with contextlib.suppress(TimeoutError):
            reply = await asyncio.wait_for(answered, _INFO_TIMEOUT_S)
            if not isinstance(reply, hiredis.ReplyError):
                text = reply.decode() if isinstance(reply, bytes) else str(reply)
                self._metrics.server[address] = dict(parse_info(text))  # drops names that it no longer has


def _body(state: dict[str, object]) -> bytes:
    return json.dumps(state).encode() + b"\n"


async def _request(connection: h11.Connection, reader: asyncio.StreamReader) -> h11.Request | None:
    """The head of the request; None if the client has gone."""
    while True:
        event = connection.next_event()
        if isinstance(event, h11.Request):
            return event
        if event is not h11.NEED_DATA:
            return None
        connection.receive_data(await reader.read(_READ_BYTES))


def _encoded(
    connection: h11.Connection, status: int, content_type: str, body: bytes, *, head_only: bool = False
) -> bytes:
    headers = [("content-type", content_type), ("content-length", str(len(body))), ("connection", "close")]
    response = h11.Response(status_code=status, headers=headers)
    events: list[h11.Event] = [response, *([] if head_only else [h11.Data(data=body)]), h11.EndOfMessage()]
    return b"".join(part for event in events if (part := connection.send(event)))
