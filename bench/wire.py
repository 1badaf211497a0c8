"""Load for a server: packed commands, sent in pipelines over a raw socket, with hardly a look at the replies.

A client library would cost several times as much as the server.  Each pipeline ends with a PING whose token comes back
after all other replies, also on a connection that has subscribed.  So the end is found without parsing.

Invariants
    1. An error reply ends the benchmark: commands that fail fast must not be measured.
    2. Every wait has a bound.
"""

import socket
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Self

import hiredis

PIPELINE = 500  # commands sent before their replies are awaited
TIMEOUT_S = 60.0
RECEIVE_BYTES = 1 << 20
TOKEN = b"end-of-pipeline"

Command = tuple[Any, ...]  # bytes, str and int
encoded: Callable[[Command], bytes] = hiredis.pack_command  # its own stub takes tuples of one element only
_PING = encoded((b"PING", TOKEN))
_END = b"$%d\r\n%b\r\n" % (len(TOKEN), TOKEN)


def packed(commands: Iterable[Command], pipeline: int = PIPELINE) -> list[bytes]:
    """Return pipelines, each ready to be sent with `Connection.run`."""
    pipelines: list[bytes] = []
    waiting: list[bytes] = []
    for command in commands:
        waiting.append(encoded(command))
        if len(waiting) == pipeline:
            pipelines.append(b"".join([*waiting, _PING]))
            waiting.clear()
    if waiting:
        pipelines.append(b"".join([*waiting, _PING]))
    return pipelines


class Connection:
    """A connection to a server; a context manager that closes it.

    Args:
        host: where the server listens.
        port: the same.
    """

    def __init__(self, host: str, port: int) -> None:
        self._socket = socket.create_connection((host, port), timeout=TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def run(self, pipelines: Sequence[bytes]) -> int:
        """Send one pipeline after the other, each when the one before was answered.

        Returns:
            The bytes that came back, those of the PINGs not counted.

        Raises:
            RuntimeError: a reply was an error.
            TimeoutError: no reply in time.
            ConnectionError: the server closed the connection.
        """
        return sum(self._run_one(pipeline) for pipeline in pipelines)

    def collect(self) -> int:
        """Receive whatever the server has sent to this connection by now; returns how many bytes, as `run`."""
        return self._run_one(_PING)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _run_one(self, pipeline: bytes) -> int:
        self._socket.sendall(pipeline)
        received, tail = 0, b"\r\n"  # the end of what came before, so that nothing is missed where two pieces meet
        while not tail.endswith(_END):
            data = self._socket.recv(RECEIVE_BYTES)
            if not data:
                raise ConnectionError("the server closed the connection")
            received += len(data)
            seen = tail + data
            at = seen.find(b"\r\n-")
            if at >= 0:
                raise RuntimeError(f"the server replied {seen[at + 2 : at + 300].splitlines()[0]!r}")
            tail = seen[-len(_END) :]
        return received - len(_END)
