"""/metrics, /readyz and /livez over HTTP/1.1, served in the event loop of the process.

    /livez    200: the event loop runs.  Restart the process if there is no answer.
    /readyz   200 if a publish could be stored now, else 503 with the reason.  For load balancers.
    /healthz  the same as /readyz

A scrape asks the server for INFO holdmq, and uses the last answer if that takes too long.
"""

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING

import h11
import hiredis

from holdmq_bridge.base.logs import Log
from holdmq_bridge.broker.bridge import Bridge
from holdmq_bridge.monitoring.metrics import CONTENT_TYPE, Metrics, parse_info

if TYPE_CHECKING:
    from holdmq_bridge.base.command import Reply

log = Log("web")

_TIMEOUT_S = 10.0
_INFO_TIMEOUT_S = 1.0
_MAX_REQUEST_BYTES = 16_384
_READ_BYTES = 4096
_JSON = "application/json"


class Web:
    """One for each process."""

    def __init__(self, bridge: Bridge) -> None:
        self._bridge = bridge
        self._metrics = Metrics(bridge)
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> None:
        """Listens.

        Raises:
            OSError: the address is not available; the text names it.
        """
        try:
            self._server = await asyncio.start_server(self._serve, host, port)
        except OSError as error:
            raise OSError(error.errno, f"cannot listen on {host}:{port} for metrics: {error.strerror}") from error
        log.info("metrics", host=host, port=self._server.sockets[0].getsockname()[1])

    def close(self) -> None:
        """Listens no more."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=_MAX_REQUEST_BYTES)
        with contextlib.suppress(OSError, TimeoutError, h11.RemoteProtocolError):
            async with asyncio.timeout(_TIMEOUT_S):
                request = await _request(connection, reader)
                if request is not None:
                    writer.write(_encoded(connection, *await self._answer(request)))
                    await writer.drain()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    async def _answer(self, request: h11.Request) -> tuple[int, str, bytes]:
        path = request.target.partition(b"?")[0]
        if request.method != b"GET":
            return 405, "text/plain", b"GET only\n"
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
            "server": bridge.link.up,
            "clients": len(bridge.clients),
            "name": bridge.process.name,
        }
        return 503 if reason else 200, _JSON, _body(state)

    async def _ask_server(self) -> None:
        """Reads INFO holdmq.  The last answer stays if there is no new one in time."""
        if not self._bridge.link.up:
            return
        answered: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._bridge.calls.call(
            ("INFO", "holdmq"), lambda reply: None if answered.done() else answered.set_result(reply)
        )
        with contextlib.suppress(TimeoutError):
            reply = await asyncio.wait_for(answered, _INFO_TIMEOUT_S)
            if not isinstance(reply, hiredis.ReplyError):
                text = reply.decode() if isinstance(reply, bytes) else str(reply)
                self._metrics.server.clear()  # drops names that the server no longer has
                self._metrics.server.update(parse_info(text))


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


def _encoded(connection: h11.Connection, status: int, content_type: str, body: bytes) -> bytes:
    headers = [("content-type", content_type), ("content-length", str(len(body))), ("connection", "close")]
    response = h11.Response(status_code=status, headers=headers)
    parts = [connection.send(response), connection.send(h11.Data(data=body)), connection.send(h11.EndOfMessage())]
    return b"".join(part for part in parts if part)
