"""Up to which serial closed sessions were sent, as far as this process knows: a hint for the DUP flag, nothing more.

A message that waited in the queue when its client came back is sent with DUP only if an earlier connection may have
sent it.  The server does not know what was sent; the process that held the connection before does, if nobody held it in
between (the epoch tells).  Without a hint every message of a resumed queue may be a repetition.  Losing this costs
nothing but DUP flags that are set without need.
"""

from collections import OrderedDict


class Remembered:
    """The last `capacity` closed sessions.  O(1)."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._sessions: OrderedDict[bytes, tuple[int, int]] = OrderedDict()

    def put(self, key: bytes, epoch: int, serial: int) -> None:
        """The connection of this epoch has ended; it sent messages up to this serial."""
        self._sessions.pop(key, None)
        self._sessions[key] = (epoch, serial)
        while len(self._sessions) > self._capacity:
            self._sessions.popitem(last=False)

    def take(self, key: bytes, epoch: int) -> int | None:
        """The serial, if `epoch` was still the session's when it was opened again: nobody else had it in between."""
        known = self._sessions.pop(key, None)
        if known is None or known[0] != epoch:
            return None
        return known[1]
