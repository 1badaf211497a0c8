"""What a client needs of its transport, and how its address is shown."""

from typing import Protocol


class Stream(Protocol):
    """What a client needs of its transport, be it a socket's, TLS or WebSocket frames."""

    def write(self, data: bytes) -> None:
        """Bytes for the client."""

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


def readable_peer(peername: object) -> str:
    """An address for the logs."""
    if isinstance(peername, tuple) and len(peername) >= 2:
        return f"{peername[0]}:{peername[1]}"
    return str(peername)
