"""Answers the HTTP request that begins a WebSocket: checks path, subprotocol and origin.

Without I/O: a request in, an answer out (RFC 6455, section 4.2; MQTT section 6).

A browser lets any web page open a WebSocket to any address that its user can reach, and names the page in `Origin`
(RFC 6455, section 10.2).  Other programs send no Origin.  So a request with an Origin is from a page, which has to be
in ws_origins.
"""

import ipaddress
from typing import NamedTuple
from urllib.parse import urlsplit

from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, RejectConnection, Request
from wsproto.utilities import RemoteProtocolError

from holdmq.core.websocket import MAX_HEAD_BYTES
from holdmq_bridge.process.settings import ANY_ORIGIN, SAME_HOST, Settings

_SUBPROTOCOL = "mqtt"  # [MQTT-6.0.0-3, -4]
_END = b"\r\n\r\n"
_BAD_REQUEST, _FORBIDDEN, _NOT_FOUND, _TOO_LARGE = 400, 403, 404, 431
_REASONS = {_BAD_REQUEST: "Bad Request", _FORBIDDEN: "Forbidden", _NOT_FOUND: "Not Found"} | {
    _TOO_LARGE: "Request Header Fields Too Large"
}
_MAX_SHOWN = 100  # characters of what a client sent, in logs and answers


class Answer(NamedTuple):
    """An answer to send.  `refusal`: why the connection is then closed; empty: it is accepted."""

    data: bytes
    refusal: str


class _Refused(Exception):  # noqa: N818 (an outcome)
    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class Upgrades:
    """Answers requests, by the settings.

    Args:
        settings: ws_path and ws_origins are used.
    """

    def __init__(self, settings: Settings) -> None:
        self._path = settings.ws_path
        self._origins = frozenset(settings.origins)

    def answer(self, request: bytes, *, tls: bool) -> Answer:
        """Answers a request; `request`: up to the end of its head, or as much as is accepted of a longer one."""
        connection = WSConnection(ConnectionType.SERVER)
        try:
            self._check(_parsed(connection, request), tls=tls)
        except _Refused as refused:
            return Answer(_rejection(refused.status, str(refused)), f"{refused} (status {refused.status})")
        except RemoteProtocolError as error:
            hint = error.event_hint
            status = hint.status_code if isinstance(hint, RejectConnection) else _BAD_REQUEST
            data = connection.send(hint) if isinstance(hint, RejectConnection) else _rejection(status, str(error))
            return Answer(data, f"{error} (status {status})")
        return Answer(connection.send(AcceptConnection(subprotocol=_SUBPROTOCOL)), "")

    def _check(self, request: Request, *, tls: bool) -> None:
        path = request.target.partition("?")[0]
        if path != self._path:
            raise _Refused(_NOT_FOUND, f"path {path[:_MAX_SHOWN]!r}; expected {self._path} (ws_path)")
        if _SUBPROTOCOL not in request.subprotocols:
            subprotocols = ", ".join(request.subprotocols)[:_MAX_SHOWN]
            raise _Refused(_BAD_REQUEST, f"subprotocol {subprotocols!r}; expected {_SUBPROTOCOL}")
        origins = [value.decode("latin-1") for name, value in request.extra_headers if name == b"origin"]
        for origin in origins:
            if not self._allows(origin.lower(), request.host, tls=tls):
                raise _Refused(_FORBIDDEN, f"origin {origin[:_MAX_SHOWN]!r} is not one of ws_origins")

    def _allows(self, origin: str, host: str, *, tls: bool) -> bool:
        if ANY_ORIGIN in self._origins or origin in self._origins:
            return True
        return SAME_HOST in self._origins and _is_same_host(origin, host, tls=tls)


def _parsed(connection: WSConnection, request: bytes) -> Request:
    end = request.find(_END)
    if 0 <= end < len(request) - len(_END):
        raise _Refused(_BAD_REQUEST, "bytes after the request, before its answer")  # section 4.1
    if end < 0 and len(request) >= MAX_HEAD_BYTES:
        raise _Refused(_TOO_LARGE, f"a request above {MAX_HEAD_BYTES} bytes")
    try:
        connection.receive_data(request)
        for event in connection.events():
            if isinstance(event, Request):
                return event
    except ValueError as error:  # a host or a list that wsproto cannot decode
        raise _Refused(_BAD_REQUEST, f"a bad header: {error}") from error
    raise _Refused(_BAD_REQUEST, f"no HTTP request: {request[:16]!r}")


def _is_same_host(origin: str, host: str, *, tls: bool) -> bool:
    """Whether the page comes from the host that it connects to, on any port.

    A name counts only with TLS, whose certificate is for that name.  Otherwise the owner of any name could let it point
    to this address after the page was loaded (DNS rebinding): page and bridge would have the same name.
    """
    try:
        page, ours = urlsplit(origin).hostname, urlsplit(f"//{host.lower()}").hostname
    except ValueError:
        return False
    return page is not None and page == ours and (tls or page == "localhost" or _is_address(page))


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _rejection(status: int, why: str) -> bytes:
    """A refusal.  wsproto can only answer a request that it has understood."""
    body = why.encode("ascii", "backslashreplace") + b"\n"
    head = f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\n"
    return f"{head}Connection: close\r\n\r\n".encode() + body
