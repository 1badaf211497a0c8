"""A transport of asyncio that reads a bounded number of bytes in each iteration of the event loop, like the pump.

By itself, a transport reads until its socket is empty.  A client that sends faster than its bytes are handled would
keep the loop busy, and a CONNECT, which needs several iterations, would wait for it each time.

Invariant: the transport is read unless its owner has paused it or it has had its turn.
"""

import asyncio

TURN_BYTES = 65_536  # as much as the pump reads


class Paced:
    """A Stream.  Its owner calls `took` for all bytes that it gets."""

    __slots__ = ("_had_its_turn", "_loop", "_paused", "_taken", "_transport")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._paused = False  # by the owner
        self._had_its_turn = False
        self._taken = 0  # bytes

    def count_received(self, nbytes: int) -> None:
        """Counts bytes that arrived; pauses reading after a turn's share."""
        self._taken += nbytes
        if self._taken >= TURN_BYTES and not self._had_its_turn and not self._transport.is_closing():
            self._had_its_turn = True
            if not self._paused:
                self._transport.pause_reading()
            self._loop.call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._had_its_turn = False
        self._taken = 0
        if not self._paused and not self._transport.is_closing():
            self._transport.resume_reading()

    def pause_reading(self) -> None:
        """Stops reading the socket."""
        if not self._paused:
            self._paused = True
            if not self._had_its_turn:
                self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Reads the socket again."""
        if self._paused:
            self._paused = False
            if not self._had_its_turn:
                self._transport.resume_reading()

    def write(self, data: bytes) -> None:
        """Sends bytes to the client."""
        self._transport.write(data)

    def close(self) -> None:
        """Closes the connection once everything is sent."""
        self._transport.close()

    def abort(self) -> None:
        """Closes the connection immediately."""
        self._transport.abort()

    def is_closing(self) -> bool:
        """Whether nothing more can be written."""
        return self._transport.is_closing()

    def get_write_buffer_size(self) -> int:
        """Bytes that the socket has not taken yet."""
        return self._transport.get_write_buffer_size()
