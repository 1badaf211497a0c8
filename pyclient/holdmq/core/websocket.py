"""The server's side of a WebSocket that carries MQTT (RFC 6455), without I/O (src/mqtt/websocket.h).

Received bytes are unmasked in place, in the caller's buffer.
"""

from enum import IntEnum

from holdmq.core._binding import LIBC_ALLOCATOR, CData, ffi, freer, lib

__all__ = ["MAX_HEAD_BYTES", "NORMAL", "Phase", "WebSocket", "fault_text"]

MAX_HEAD_BYTES: int = lib.HMQ_WEBSOCKET_MAX_HEAD_BYTES
NORMAL = 1000  # the status code of a close frame without a fault (7.4.1)


class Phase(IntEnum):
    """hmq_websocket_phase."""

    HEAD = 0
    ASKED = 1
    OPEN = 2
    OVER = 3


def fault_text(fault: int) -> str:
    """The text of a fault, for logs."""
    text = ffi.string(lib.hmq_websocket_fault_text(fault)).decode()
    return f"WebSocket closed with {lib.hmq_websocket_fault_code(fault)}: {text}"


class WebSocket:
    """A connection."""

    __slots__ = ("_out", "_websocket")

    def __init__(self, max_message_bytes: int, *, allocator: CData = LIBC_ALLOCATOR) -> None:
        """`allocator`: an hmq_allocator of cffi, for tests.  Raises MemoryError."""
        websocket = lib.hmq_websocket_new(max_message_bytes, allocator)
        if websocket == ffi.NULL:
            raise MemoryError("a WebSocket")
        self._websocket: CData = ffi.gc(websocket, freer(lib.hmq_websocket_free, allocator))
        self._out = ffi.new("uint8_t[]", lib.HMQ_WEBSOCKET_ANSWER_BYTES)

    @property
    def phase(self) -> Phase:
        """The phase of the connection."""
        return Phase(lib.hmq_websocket_state(self._websocket))

    @property
    def fault(self) -> int:
        """The fault of the client; 0 if none."""
        return int(lib.hmq_websocket_failure(self._websocket))

    def read(self, buffer: memoryview, count: int) -> int:
        """Takes `count` bytes of a writable buffer. Returns how many bytes of MQTT the buffer now begins with."""
        return int(lib.hmq_websocket_read(self._websocket, ffi.from_buffer("uint8_t[]", buffer), count))

    @property
    def request(self) -> bytes:
        """The request that waits for an answer; empty if none does."""
        request = lib.hmq_websocket_request(self._websocket)
        return bytes(ffi.buffer(request.data, request.len)) if request.len else b""

    def answered(self, *, accepted: bool) -> None:
        """The request is answered."""
        lib.hmq_websocket_answered(self._websocket, accepted)

    @staticmethod
    def header(size: int) -> bytes:
        """The header of a message of `size` bytes."""
        out = ffi.new("uint8_t[]", lib.HMQ_WEBSOCKET_HEADER_BYTES)
        return bytes(ffi.buffer(out, lib.hmq_websocket_header(out, size)))

    @property
    def owes(self) -> bool:
        """Whether control frames are to be sent."""
        return bool(lib.hmq_websocket_has_answer(self._websocket))

    def answer(self) -> bytes:
        """Takes the control frames to be sent."""
        return bytes(ffi.buffer(self._out, lib.hmq_websocket_answer(self._websocket, self._out)))

    def close(self, code: int = NORMAL) -> bytes:
        """Makes our close frame; empty if none is to be sent. Nothing is read from then on."""
        return bytes(ffi.buffer(self._out, lib.hmq_websocket_close(self._websocket, code, self._out)))
