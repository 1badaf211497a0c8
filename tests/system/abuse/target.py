"""What a client that does its worst knows of the broker, and the few packets that all of them need."""

import contextlib
import select
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass

from tests.bridge import packets

HOST = "127.0.0.1"
BINARY, PING = 2, 9  # frames of a WebSocket
REQUEST = (
    b"GET /mqtt HTTP/1.1\r\nhost: localhost\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
    b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\nsec-websocket-protocol: mqtt\r\n\r\n"
)
TIMEOUT_S = 5.0
BEGINS = "begins"
BLOCK_BYTES = 65_536
USER, PASSWORD = "somebody", b"right"  # whom the broker knows, beside those without a name


@dataclass(frozen=True)
class Target:
    """Where the broker listens, and how long it is abused.

    Attributes:
        port: MQTT over TCP.
        ws_port: MQTT over WebSocket.
        ends_at: of time.monotonic.
    """

    port: int
    ws_port: int
    ends_at: float

    def has_time(self) -> bool:
        """Is there time left?"""
        return time.monotonic() < self.ends_at

    def connection(self) -> socket.socket:
        """A connection before its CONNECT."""
        made = socket.create_connection((HOST, self.port), TIMEOUT_S)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return made

    @contextlib.contextmanager
    def websocket(self, *, receive_buffer: int = 0) -> Iterator[socket.socket]:
        """A connection that speaks in frames, before its CONNECT."""
        with socket.socket() as made:
            if receive_buffer:
                made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
            made.settimeout(TIMEOUT_S)
            made.connect((HOST, self.ws_port))
            made.sendall(REQUEST)
            head = b""
            while b"\r\n\r\n" not in head:
                head += receive(made, 1)
            yield made

    def leave_sessions(self, prefix: str, count: int, topic_filter: str) -> None:
        """Makes so many sessions that last, with a subscription of QoS 1, whose clients go."""
        for number in range(count):
            with self.connection() as client:
                client.sendall(packets.connect(f"{prefix}-{number}", clean=False, keep_alive=0))
                receive(client, 4)
                client.sendall(packets.subscribe(1, (topic_filter, 1)) + packets.DISCONNECT)
                receive(client, 5)

    @contextlib.contextmanager
    def client(self, client_id: str, *filters: tuple[str, int]) -> Iterator[socket.socket]:
        """A client whose CONNECT was accepted, and its subscriptions granted."""
        with self.connection() as client:
            client.sendall(packets.connect(client_id, keep_alive=0))
            receive(client, 4)
            if filters:
                client.sendall(packets.subscribe(1, *filters))
                receive(client, 4 + len(filters))
            yield client


def receive(client: socket.socket, size: int) -> bytes:
    """So many bytes."""
    data = b""
    while len(data) < size:
        part = client.recv(size - len(data))
        if not part:
            raise ConnectionError(f"closed after {len(data)} of {size} bytes")
        data += part
    return data


def wait(*clients: socket.socket) -> None:
    """Until one of them can be read, or the last one written."""
    select.select(clients, clients[-1:], [], 0.05)


def drain(client: socket.socket) -> None:
    """Reads and forgets what has come."""
    with contextlib.suppress(BlockingIOError):
        while client.recv(BLOCK_BYTES):
            continue


def frame(opcode: int, payload: bytes) -> bytes:
    """One of a client, up to 125 bytes, masked with zeros."""
    return bytes((0x80 | opcode, 0x80 | len(payload), 0, 0, 0, 0)) + payload


def some(client: socket.socket) -> bytes:
    """What has come, up to a block."""
    received = client.recv(BLOCK_BYTES)
    if not received:
        raise ConnectionError("closed")
    return received


def pour_some(target: Target, client: socket.socket, data: bytes) -> None:
    """Writes all of it, and reads what comes back."""
    client.setblocking(False)
    left = memoryview(data)
    while left and target.has_time():
        wait(client)
        drain(client)
        with contextlib.suppress(BlockingIOError):
            left = left[client.send(left) :]


def pour(target: Target, client: socket.socket, block: bytes, *readers: socket.socket) -> None:
    """Writes the same bytes forever, and reads what comes back, to the readers, too."""
    for one in (*readers, client):
        one.setblocking(False)
    left = memoryview(block)
    while target.has_time():
        wait(*readers, client)
        for one in (*readers, client):
            drain(one)
        with contextlib.suppress(BlockingIOError):
            left = left[client.send(left) :] or memoryview(block)
