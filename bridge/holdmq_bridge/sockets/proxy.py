"""The PROXY protocol (versions 1 and 2): a header at the start of a connection has the client's real address.

A sender of headers can claim any address, and so evade bans and limits.  Only the proxies in proxy_networks are
believed.

parse(bytes) ──► Header (address, bytes used); None while it is incomplete; ValueError if it is not a header
ProxyHeader  ──► reads the header from a socket, then hands the socket to the next protocol
"""

import asyncio
import ipaddress
import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

from holdmq_bridge.base.logs import Log
from holdmq_bridge.process.process import Process
from holdmq_bridge.process.settings import Network
from holdmq_bridge.sockets.stream import Receiver, readable_peer
from holdmq_bridge.sockets.websocket import WebSocketStream

log = Log("proxy")

_LOGGED_EVERY_S = 10.0

_V1 = b"PROXY "
_V1_MAX_BYTES = 107  # the standard's own figure, line end included
_V2 = b"\r\n\r\n\x00\r\nQUIT\n"
_V2_HEADER_BYTES = 16
_V2_LOCAL, _V2_PROXY = 0x20, 0x21
_V2_TCP4, _V2_TCP6 = 0x11, 0x21


class Header(NamedTuple):
    """`peer` is empty where the header names no client (health checks of the proxy itself)."""

    peer: str
    size: int


def parse(data: bytes) -> Header | None:
    """Parses the header at the beginning of the bytes.  Returns None if more bytes are needed.

    Raises:
        ValueError: there is no valid header.
    """
    if data[: len(_V2)] == _V2[: len(data)]:
        return _parse_v2(data)
    if data[: len(_V1)] == _V1[: len(data)]:
        return _parse_v1(data)
    raise ValueError(f"no PROXY protocol header: {data[:16]!r}")


def _parse_v1(data: bytes) -> Header | None:
    end = data.find(b"\r\n")
    if end < 0:
        if len(data) >= _V1_MAX_BYTES:
            raise ValueError("a PROXY line without an end")
        return None
    words = data[:end].decode("ascii").split(" ")
    if words[1] == "UNKNOWN":
        return Header("", end + 2)
    if len(words) != 6 or words[1] not in ("TCP4", "TCP6"):
        raise ValueError(f"a bad PROXY line: {data[:end]!r}")
    return Header(f"{ipaddress.ip_address(words[2])}:{int(words[4])}", end + 2)


def _parse_v2(data: bytes) -> Header | None:
    if len(data) < _V2_HEADER_BYTES:
        return None
    command, family, length = struct.unpack_from(">BBH", data, len(_V2))
    if command not in (_V2_LOCAL, _V2_PROXY):
        raise ValueError(f"a PROXY header of version and command {command:#x}")
    size = _V2_HEADER_BYTES + length
    if len(data) < size:
        return None
    body = data[_V2_HEADER_BYTES:size]
    if command == _V2_LOCAL or family not in (_V2_TCP4, _V2_TCP6):
        return Header("", size)
    width = 4 if family == _V2_TCP4 else 16
    if length < 2 * width + 4:
        raise ValueError(f"a PROXY header with addresses of {length} bytes")
    (port,) = struct.unpack_from(">H", body, 2 * width)
    return Header(f"{ipaddress.ip_address(body[:width])}:{port}", size)


class ProxyHeader(asyncio.Protocol):
    """The protocol of a new connection until its header is complete.

    The connection counts as a handshake from the beginning: as many silent ones as clients may be open.

    Args:
        process: which accepted it.
        make: makes the protocol that takes over after the header, given the client's address.
        refusals: counts and logs a connection without a valid header.
    """

    def __init__(
        self, process: Process, make: Callable[[str], Receiver | WebSocketStream], refusals: "ProxyRefusals"
    ) -> None:
        self._process = process
        self._refusals = refusals
        self._make = make
        self._unread = b""
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._counts = True
        process.handshakes += 1

    def end(self) -> None:
        """The connection has ended, or its client takes over."""
        if self._counts:
            self._counts = False
            self._process.handshakes -= 1

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A socket was accepted: refuses it unless it is from a proxy in proxy_networks."""
        self._transport = cast("asyncio.Transport", transport)
        peername = transport.get_extra_info("peername")
        if not _is_named(peername, self._process.settings.proxies):
            self._refuse(
                f"{readable_peer(peername)} is not in proxy_networks ({self._process.settings.proxy_networks})"
            )
            return
        timeout_s = self._process.settings.connect_timeout_s
        self._timer = self._process.loop.call_later(timeout_s, self._refuse, f"no PROXY header within {timeout_s:g} s")

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket was closed before the header was complete."""
        self.end()
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        """Takes a part of the header, and perhaps the client's first bytes."""
        if self._timer is None:
            return  # it is refused
        assert self._transport is not None
        self._unread += data
        try:
            header = parse(self._unread)
        except ValueError as error:
            self._refuse(str(error))
            return
        if header is None:
            return
        self._timer.cancel()
        self.end()
        protocol = self._make(header.peer)
        self._transport.set_protocol(protocol)
        protocol.connection_made(self._transport)
        rest = self._unread[header.size :]
        if rest:
            protocol.feed(rest)

    def _refuse(self, why: str) -> None:
        assert self._transport is not None
        self._refusals.add(why)
        self._transport.abort()


class ProxyRefusals:
    """Connections without a PROXY header that is believed.  One for each process."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._logged_at = -_LOGGED_EVERY_S

    def add(self, why: str) -> None:
        """Counts every one, and logs at most one in `_LOGGED_EVERY_S`."""
        counters, now = self._process.counters, self._process.loop.time()
        counters.proxies_refused += 1
        if now >= self._logged_at + _LOGGED_EVERY_S:
            self._logged_at = now
            log.warning(
                "a connection without a valid PROXY header was refused",
                detail=why,
                refused=counters.proxies_refused,
            )


def _is_named(peername: object, proxies: Sequence[Network]) -> bool:
    if not isinstance(peername, tuple):
        return False
    address = ipaddress.ip_address(peername[0].partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return any(address in network for network in proxies)
