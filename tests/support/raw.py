"""A connection that shows every reply in the order in which it came: RESP2 and RESP3, with a parser of its own.

For tests whose claim is the order of bytes (a hand-off comes after its confirmation and before any later message).
"""

import socket
import time
from types import TracebackType
from typing import Self

Value = object
DEFAULT_TIMEOUT_S = 10.0


class ReplyError(Exception):
    """An error reply; `read` returns it as a value, `call` raises it."""


class Status(str):
    """A simple string, such as OK."""

    __slots__ = ()


class Push(list[Value]):
    """A RESP3 push."""


class RawClient:
    """A connection to a server on loopback; a context manager.

    Args:
        port: of the server.
        protocol: 2 or 3; with 3, HELLO 3 is sent and its reply taken.
        timeout_s: of each read.
    """

    def __init__(self, port: int, protocol: int = 2, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        self.timeout_s = timeout_s
        self._socket = socket.create_connection(("127.0.0.1", port), timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray()
        self._taken = bytearray()
        if protocol == 3:
            self.call("HELLO", "3")

    def send(self, *command: str | bytes | int) -> None:
        """Send one command."""
        self.send_bytes(encoded(*command))

    def send_all(self, *commands: tuple[str | bytes | int, ...]) -> None:
        """Send several commands in one write, so that the server reads them together."""
        self.send_bytes(b"".join(encoded(*command) for command in commands))

    def send_bytes(self, data: bytes) -> None:
        """Send bytes as they are."""
        self._socket.settimeout(self.timeout_s)
        self._socket.sendall(data)

    def call(self, *command: str | bytes | int) -> Value:
        """Send one command and return the next reply; an error reply is raised."""
        self.send(*command)
        reply = self.read()
        if isinstance(reply, ReplyError):
            raise reply
        return reply

    def read(self, timeout_s: float | None = None) -> Value:
        """Return whatever comes next, reply or push.

        Bulk strings are bytes, simple strings `Status`, errors `ReplyError`, maps dict, pushes `Push`.

        Raises:
            TimeoutError: nothing complete came in time.
            ConnectionError: the server closed the connection.
        """
        deadline = time.monotonic() + (self.timeout_s if timeout_s is None else timeout_s)
        self._taken.clear()
        try:
            return self._value(deadline)
        except TimeoutError:
            self._buffer[:0] = self._taken  # a reply that is not complete yet stays for the next read
            raise

    def read_many(self, count: int) -> list[Value]:
        """Return the next `count` replies and pushes."""
        return [self.read() for _ in range(count)]

    def read_message(self, timeout_s: float | None = None) -> list[Value]:
        """Return the next pub/sub message or confirmation as a list, in either protocol; anything else fails."""
        value = self.read(timeout_s)
        if not isinstance(value, list):
            raise AssertionError(f"a pub/sub message expected, but {value!r} came")
        return list(value)

    def pending(self) -> list[Value]:
        """Return all that came up to now: sends a PING and returns what arrived before its answer."""
        token = b"pending?"
        self.send("PING", token)
        before: list[Value] = []
        while (value := self.read()) not in (token, [b"pong", token]):
            before.append(value)
        return before

    def wait_closed(self) -> None:
        """Wait until the server closes the connection; fails if it sends anything more first."""
        try:
            value = self.read()
        except ConnectionError:
            return
        raise AssertionError(f"the end of the connection expected, but {value!r} came")

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _value(self, deadline: float) -> Value:
        line = self._line(deadline)
        kind, rest = line[:1], line[1:]
        match kind:
            case b"+":
                return Status(rest.decode())
            case b"-":
                return ReplyError(rest.decode())
            case b":":
                return int(rest)
            case b"(":
                return int(rest)
            case b",":
                return float(rest)
            case b"#":
                return rest == b"t"
            case b"_":
                return None
            case b"$" | b"=" | b"!":
                return self._bulk(kind, int(rest), deadline)
            case b"*" | b">" | b"~" | b"%":
                return self._aggregate(kind, int(rest), deadline)
        raise AssertionError(f"{line!r} is no reply of RESP2 or RESP3")

    def _bulk(self, kind: bytes, length: int, deadline: float) -> Value:
        if length < 0:
            return None
        data = self._exactly(length + 2, deadline)[:-2]
        if kind == b"!":
            return ReplyError(data.decode())
        return data[4:] if kind == b"=" else data  # a verbatim string begins with its format, "txt:"

    def _aggregate(self, kind: bytes, count: int, deadline: float) -> Value:
        if count < 0:
            return None
        if kind == b"%":
            return {_hashable(self._value(deadline)): self._value(deadline) for _ in range(count)}
        values = [self._value(deadline) for _ in range(count)]
        return Push(values) if kind == b">" else values

    def _line(self, deadline: float) -> bytes:
        while (end := self._buffer.find(b"\r\n")) < 0:
            self._receive(deadline)
        return self._take(end + 2)[:-2]

    def _exactly(self, count: int, deadline: float) -> bytes:
        while len(self._buffer) < count:
            self._receive(deadline)
        return self._take(count)

    def _take(self, count: int) -> bytes:
        data = bytes(self._buffer[:count])
        del self._buffer[:count]
        self._taken += data
        return data

    def _receive(self, deadline: float) -> None:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"no complete reply in time; unread: {bytes(self._buffer[:200])!r}")
        self._socket.settimeout(left)
        data = self._socket.recv(65536)
        if not data:
            raise ConnectionError("the server closed the connection")
        self._buffer += data


def encoded(*command: str | bytes | int) -> bytes:
    """Return a command as the array of bulk strings that goes over the wire."""
    parts = [part if isinstance(part, bytes) else str(part).encode() for part in command]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)


def _hashable(value: Value) -> Value:
    return tuple(value) if isinstance(value, list) else value
