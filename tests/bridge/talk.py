"""A client that speaks in bytes: what a test says goes out as it is, what comes back is compared as it is."""

import socket
import struct
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from tests.bridge import packets, packets5
from tests.bridge.packets import Published
from tests.bridge.packets5 import Received

TIMEOUT_S = 10.0


def reset(connection: socket.socket) -> None:
    """Closes it by a RST."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


class Talk:
    """A connection to a bridge on loopback.

    Args:
        port: of the bridge.
        timeout_s: of each expectation.
        receive_buffer: size of the socket's receive buffer in bytes, for clients that read slowly.
        address: of the client, one of 127.0.0.0/8; empty: the system's choice.
    """

    def __init__(self, port: int, *, timeout_s: float = TIMEOUT_S, receive_buffer: int = 0, address: str = "") -> None:
        self.timeout_s = timeout_s
        self._unread = bytearray()
        self._socket = socket.socket()
        if receive_buffer:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        if address:
            self._socket.bind((address, 0))
        self._socket.settimeout(timeout_s)
        try:
            self._socket.connect(("127.0.0.1", port))
        except OSError:
            self._socket.close()
            raise
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @classmethod
    def connected(cls, port: int, client_id: str = "", *, clean: bool = True, present: bool = False) -> Self:
        """A client that is through its CONNECT."""
        talk = cls(port)
        talk.send(packets.connect(client_id, clean=clean))
        talk.expect(packets.connack(present=present))
        return talk

    def send(self, *data: bytes) -> None:
        """Sends bytes in one write."""
        self._socket.sendall(b"".join(data))

    def end(self, how: Callable[[socket.socket], None]) -> None:
        """Ends the connection, or half of it, in a way of the test's."""
        how(self._socket)

    def expect(self, *expected: bytes) -> None:
        """The next bytes are these."""
        wanted = b"".join(expected)
        self._fill(len(wanted))
        got = bytes(self._unread[: len(wanted)])
        assert got == wanted, f"expected {wanted!r}, got {bytes(self._unread[:200])!r}"
        del self._unread[: len(wanted)]

    def read_packet(self, timeout_s: float | None = None) -> bytes:
        """The next whole packet."""
        self._fill(2, timeout_s)
        size, at, shift = 0, 1, 0
        while True:
            self._fill(at + 1, timeout_s)
            size |= (self._unread[at] & 0x7F) << shift
            at, shift = at + 1, shift + 7
            if not self._unread[at - 1] & 0x80:
                break
        self._fill(at + size, timeout_s)
        data = bytes(self._unread[: at + size])
        del self._unread[: at + size]
        return data

    def read_publish(self, *, acknowledge: bool = True) -> Published:
        """The next packet, which must be a PUBLISH; acknowledges QoS 1."""
        published = packets.read_publish(self.read_packet())
        if acknowledge and published.qos == 1:
            self.send(packets.puback(published.pid))
        return published

    def expect_nothing(self) -> None:
        """Nothing has come: a PINGREQ is answered first."""
        self.send(packets.PINGREQ)
        self.expect(packets.PINGRESP)

    def collect(self) -> list[bytes]:
        """All packets that have come: those before the answer to a PINGREQ."""
        self.send(packets.PINGREQ)
        collected: list[bytes] = []
        while (packet := self.read_packet()) != packets.PINGRESP:
            collected.append(packet)
        return collected

    def expect_silence(self, seconds: float) -> None:
        """Nothing comes for so long: for what must not happen, where nothing else marks the moment."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self._socket.settimeout(left)
            try:
                data = self._socket.recv(65536)
            except TimeoutError:
                break
            assert data, "the bridge closed the connection"
            self._unread += data
        assert not self._unread, f"silence expected, got {bytes(self._unread[:200])!r}"

    def expect_closed(self, timeout_s: float | None = None) -> None:
        """The bridge closes the connection, and says nothing more."""
        self._socket.settimeout(self.timeout_s if timeout_s is None else timeout_s)
        try:
            data = self._socket.recv(65536)
        except ConnectionResetError:
            data = b""
        left = bytes(self._unread) + data
        assert not left, f"the end of the connection expected, got {left[:200]!r}"

    def subscribe(self, *filters: tuple[str, int], pid: int = 1) -> None:
        """Subscribes; every filter is granted what it asked for, at most QoS 1."""
        self.send(packets.subscribe(pid, *filters))
        self.expect(packets.suback(pid, *(min(qos, 1) for _, qos in filters)))

    def publish(self, topic: str, payload: bytes, *, qos: int = 1, pid: int = 1, retain: bool = False) -> None:
        """Publishes, and waits for the PUBACK of QoS 1."""
        self.send(packets.publish(topic, payload, qos=qos, pid=pid, retain=retain))
        if qos == 1:
            self.expect(packets.puback(pid))

    def disconnect(self) -> None:
        """Says goodbye and waits until the bridge has closed."""
        self.send(packets.DISCONNECT)
        self.expect_closed()
        self.close()

    def close(self) -> None:
        """Closes the socket without a word."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _fill(self, count: int, timeout_s: float | None = None) -> None:
        deadline = time.monotonic() + (self.timeout_s if timeout_s is None else timeout_s)
        while len(self._unread) < count:
            left = deadline - time.monotonic()
            if left <= 0:
                raise AssertionError(f"{count} bytes expected, only {bytes(self._unread[:200])!r} came in time")
            self._socket.settimeout(left)
            try:
                data = self._socket.recv(65536)
            except TimeoutError:
                continue
            if not data:
                raise AssertionError(f"the bridge closed the connection; unread: {bytes(self._unread[:200])!r}")
            self._unread += data


class Talk5(Talk):
    """The same in MQTT 5.0."""

    connack: Received

    @classmethod
    def open(cls, port: int, client_id: str = "", *, clean: bool = True, properties: bytes = b"", **more: Any) -> Self:
        """A client that is through its CONNECT; what it was told is in `connack`."""
        talk = cls(port)
        talk.send(packets5.connect(client_id, clean=clean, properties=properties, **more))
        talk.connack = talk.read()
        assert (talk.connack.kind, talk.connack.code) == (2, 0), talk.connack
        return talk

    def read(self, kind: int | None = None) -> Received:
        """The next packet, taken apart."""
        got = packets5.read(self.read_packet())
        assert kind in (None, got.kind), got
        return got

    def message(self) -> Received:
        """The next packet, which must be a PUBLISH; acknowledges QoS 1."""
        got = self.read(3)
        if got.qos == 1:
            self.send(packets.puback(got.pid))
        return got

    def granted(self, *filters: tuple[str, int], pid: int = 1, properties: bytes = b"") -> list[int]:
        """Subscribes to (filter, options byte) pairs; returns the reason codes."""
        self.send(packets5.subscribe(pid, *filters, properties=properties))
        got = self.read(9)
        assert got.pid == pid
        return got.codes

    def told(self, topic: str, payload: bytes = b"", *, pid: int = 1, **more: Any) -> int:
        """Publishes with QoS 1; returns the reason code of the PUBACK."""
        self.send(packets5.publish(topic, payload, qos=1, pid=pid, **more))
        got = self.read(4)
        assert got.pid == pid
        return got.code

    def expect_end(self, code: int) -> Received:
        """A DISCONNECT with this reason, and the end of the connection."""
        got = self.read(14)
        assert got.code == code, got
        self.expect_closed()
        return got
