"""What the client of the fault test stands on: one TCP connection, and the state that outlives it.

A connection turns bytes into packets with the core's codec; what they mean is the client's affair (mqtt_client).
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from holdmq.core import mqtt


@dataclass(slots=True, frozen=True)
class Message:
    """What a PUBLISH is about."""

    topic: bytes
    payload: bytes


@dataclass(slots=True)
class Outgoing:
    """A PUBLISH on its way."""

    message: Message
    qos: int
    retain: bool = False
    expires: bool = False


@dataclass(slots=True)
class Session:
    """The client's half of the session.

    Attributes:
        publishing: PUBLISH packets without PUBACK or PUBREC, by identifier, in the order in which they were sent.
        releasing: what was PUBREC'd and has no PUBCOMP, in the order of the PUBRECs.
        received: incoming QoS 2, noted and not released.
        unanswered: incoming QoS 1, noted and not acknowledged.
        subscribed: filters that the server confirmed.
        doubtful: identifiers of incoming messages that a promoted replica may know nothing of.
    """

    established: bool = False
    publishing: dict[int, Outgoing] = field(default_factory=dict)
    releasing: dict[int, Outgoing] = field(default_factory=dict)
    received: dict[int, Message] = field(default_factory=dict)
    unanswered: dict[int, Message] = field(default_factory=dict)
    subscribed: set[bytes] = field(default_factory=set)
    doubtful: set[int] = field(default_factory=set)

    @property
    def outgoing(self) -> int:
        """Exchanges begun and not complete."""
        return len(self.publishing) + len(self.releasing)


class Connection(asyncio.Protocol):
    """One TCP connection: bytes to packets."""

    def __init__(
        self, version: int, on_packet: Callable[["Connection", mqtt.Packet], None], port: int, *, clean: bool
    ) -> None:
        self.version = version
        self.port = port
        self.clean = clean
        self.closed = asyncio.Event()
        self.connack: asyncio.Future[mqtt.Connack] = asyncio.get_running_loop().create_future()
        self.heard_at = self.pinged_at = asyncio.get_running_loop().time()
        self.unacknowledged: set[int] = set()  # incoming, on this connection
        self.aliases: dict[int, bytes] = {}
        self._on_packet = on_packet
        self._data = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is connected."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is closed."""
        self.closed.set()
        if not self.connack.done():
            self.connack.set_exception(ConnectionResetError("closed before the CONNACK"))

    def data_received(self, data: bytes) -> None:
        """Bytes from the server."""
        self.heard_at = asyncio.get_running_loop().time()
        self._data += data
        packets, consumed, error = mqtt.decode_many(self._data, version=self.version)
        self._data = self._data[consumed:]
        for packet in packets:
            self._on_packet(self, packet)
        if error is not None:
            raise AssertionError(f"the server sent a packet that is none: {error}")

    def send(self, packet: mqtt.Packet) -> None:
        """A packet to the server, if the socket is still there."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(mqtt.encode(packet, version=self.version))

    def close(self) -> None:
        """Closes the socket when all is written."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Closes the socket at once."""
        if self._transport is not None:
            self._transport.abort()
