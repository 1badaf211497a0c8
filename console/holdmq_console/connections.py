"""Bounds HTTP connections of slow and idle clients: uvicorn bounds only the pause between two requests.

    request begins ──► headers, body (in timeout_s as a whole) ──► answer (each timeout_s, some of it is taken) ──► …

Invariants
 1. A connection ends if its client does not send a whole request in timeout_s, or takes nothing of an answer for as
    long.
 2. A complete answer is taken in LONGEST times timeout_s. An answer that continues, as a live view, has its own end.
 3. There are at most `most` connections, half of them from one address.
"""

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

LOOKS = 4
LONGEST = 4


class BoundedProtocol(H11Protocol):
    """A connection. `bounded` makes the class with the bounds."""

    timeout_s = 0.0
    most = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Starts watching, or ends at once if there are too many."""
        super().connection_made(transport)
        self._seen: object = None
        self._left = 0
        self._asked_at = self._taken_at = self._answered_at = self.loop.time()
        self._timer = self.loop.call_later(self.timeout_s / LOOKS, self._look)
        if self._are_too_many():
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stops watching."""
        self._timer.cancel()
        super().connection_lost(exc)

    def _are_too_many(self) -> bool:
        address = self.client[0] if self.client else ""
        clients = [getattr(one, "client", None) for one in self.connections]
        same = sum(one is not None and one[0] == address for one in clients)
        return len(self.connections) > self.most or same > max(1, self.most // 2)

    def _look(self) -> None:
        now = self.loop.time()
        if not self._is_asking() or self.cycle is not self._seen:
            self._asked_at, self._seen = now, self.cycle
        left = self.transport.get_write_buffer_size()
        if not left or left != self._left:
            self._taken_at, self._left = now, left
        if not left or not self._is_answered():
            self._answered_at = now
        if (
            now - min(self._asked_at, self._taken_at) >= self.timeout_s
            or now - self._answered_at >= self.timeout_s * LONGEST
        ):
            self.transport.abort()
        else:
            self._timer = self.loop.call_later(self.timeout_s / LOOKS, self._look)

    def _is_asking(self) -> bool:
        """Whether a part of a request is missing. Where none has begun after an answer, uvicorn's own pause counts."""
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is None or cycle.more_body:
            return True
        return self._is_answered() and bool(self.conn.trailing_data[0])

    def _is_answered(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is None or cycle.response_complete


def bounded(timeout_s: float, most: int) -> type[BoundedProtocol]:
    """The class of the connections of one process.

    Args:
        timeout_s: how long a client may take.
        most: how many connections there may be.
    """
    return type("Connection", (BoundedProtocol,), {"timeout_s": timeout_s, "most": most})
