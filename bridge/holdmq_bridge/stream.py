"""What a client needs of its transport, and how its address is shown."""

from typing import Protocol

HARD_LIMIT_FACTOR = 4  # of write_buffer_bytes: a client that leaves more unread is not read either


class Stream(Protocol):
    """What a client needs of its transport, be it a socket in the pump, one of asyncio, TLS or WebSocket frames."""

    def close(self) -> None:
        """When all of them are written."""

    def abort(self) -> None:
        """At once."""

    def is_closing(self) -> bool:
        """No more can be written."""

    def pause_reading(self) -> None:
        """Nothing more from the socket."""

    def resume_reading(self) -> None:
        """Go on."""

    def get_write_buffer_size(self) -> int:
        """Bytes that the socket has not taken yet."""


class Writable(Stream, Protocol):
    """One that is handed the engine's output; the pump takes it by itself."""

    def write(self, data: bytes) -> None:
        """Bytes for the client."""


def readable_peer(peername: object) -> str:
    """An address for the logs."""
    if isinstance(peername, tuple) and len(peername) >= 2:
        return f"{peername[0]}:{peername[1]}"
    return str(peername)
