"""Free loopback ports that no other test process takes, on a machine where many run at once.

A port is reserved by binding an abstract Unix socket named after it.  The kernel lets one process do that, and gives
the name back when the process ends, however it ends: nothing is left behind.  The ports lie below the range that the
kernel hands to outgoing connections, so that a port stays free between the kill and the restart of a server.
"""

import os
import socket
from itertools import chain
from types import TracebackType
from typing import Self

FIRST_PORT = 11000
PORTS = 8000
CLUSTER_BUS_OFFSET = 10000  # a cluster node listens there too


class Port:
    """A reserved port; give it back with `release`.

    Attributes:
        number: the port.
    """

    def __init__(self, number: int, reservation: socket.socket) -> None:
        self.number = number
        self._reservation = reservation

    def release(self) -> None:
        """Let others have it."""
        self._reservation.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.release()


def reserve_port() -> Port:
    """Reserve a port on which nothing listens, nor on the port that a cluster node would use beside it."""
    start = os.getpid() * 37 % PORTS  # processes begin at different places, which saves tries
    for offset in chain(range(start, PORTS), range(start)):
        number = FIRST_PORT + offset
        reservation = _reserve(number)
        if reservation is None:
            continue
        if _is_free(number) and _is_free(number + CLUSTER_BUS_OFFSET):
            return Port(number, reservation)
        reservation.close()
    raise RuntimeError(f"no free port from {FIRST_PORT} to {FIRST_PORT + PORTS - 1}")


def _reserve(number: int) -> socket.socket | None:
    reservation = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        reservation.bind(f"\0holdmq-test-port-{number}")
    except OSError:
        reservation.close()
        return None
    return reservation


def _is_free(number: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", number))
        except OSError:
            return False
    return True
