"""One timer for the deadlines of all clients: a wheel of slots, each with the clients to check in that tick.

        tick   41   42   43   44   45 ...
               {a}       {b c}     {d}           check(now) of each returns the time of its next check

A client is in one slot at most, and packets do not move it: a keep-alive costs one check per period, however much the
client sends.  A check that comes too early does no harm (it returns the right time).  So only an earlier deadline moves
a client.

Everything is O(1) per client.  A turn checks the clients of the ticks that have passed, in parts: thousands of clients
with the same deadline delay no other work.  A part ends after a number of checks, or after a time: to check a client
takes a microsecond, to disconnect it fifty.
"""

import asyncio
import time
from collections import deque
from typing import Protocol

TICK_S = 0.25
CHECKS_AT_ONCE = 64  # before the loop handles sockets again
CHECKS_S = 0.0005  # the same


class Watched(Protocol):
    """An object with deadlines."""

    due: int  # for the wheel: the tick of its slot, 0 for none

    def check(self, now: float) -> float:
        """Does what is due; returns the time of the next check, 0 for never.  Times are the loop's, in seconds."""


class Wheel:
    """`start` it inside a running event loop, and `stop` it in the end."""

    def __init__(self) -> None:
        self._slots: dict[int, set[Watched]] = {}
        self._next = 0
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._overdue: deque[Watched] = deque()  # taken out of their slots, and not checked yet

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begins to turn."""
        self._loop = loop
        self._next = int(loop.time() / TICK_S)
        self._timer = loop.call_later(TICK_S, self._turn)

    def stop(self) -> None:
        """Turns no more."""
        if self._timer is not None:
            self._timer.cancel()
        self._slots.clear()
        self._overdue.clear()

    def at(self, watched: Watched, when: float) -> None:
        """Checks the object soon after this time, or earlier."""
        tick = max(int(when / TICK_S) + 1, self._next)
        if watched.due:
            if watched.due <= tick:
                return
            self.forget(watched)
        watched.due = tick
        self._slots.setdefault(tick, set()).add(watched)

    def forget(self, watched: Watched) -> None:
        """The object has no deadlines any more."""
        slot = self._slots.get(watched.due)
        if slot is not None:
            slot.discard(watched)
        watched.due = 0

    def turn(self, now: float) -> None:
        """Checks everything that is due."""
        self._collect(now)
        self._check_some(now, len(self._overdue))

    def _collect(self, now: float) -> None:
        current = int(now / TICK_S)
        while self._next <= current:
            for watched in self._slots.pop(self._next, ()):
                watched.due = 0
                self._overdue.append(watched)
            self._next += 1

    def _check_some(self, now: float, most: int) -> None:
        for _ in range(min(most, len(self._overdue))):
            watched = self._overdue.popleft()
            again = watched.check(now)
            if again:
                self.at(watched, again)

    def _turn(self) -> None:
        assert self._loop is not None
        self._timer = self._loop.call_later(TICK_S, self._turn)
        # After a stop of the process, packets of clients may still be unread when the timer fires.  Two nested calls of
        # call_soon let the loop read its sockets first.
        self._loop.call_soon(self._loop.call_soon, self._start_checks)

    def _start_checks(self) -> None:
        """Checks a part of what is due.  The loop handles sockets before the next part."""
        assert self._loop is not None
        now = self._loop.time()
        is_scheduled = bool(self._overdue)  # the next part is scheduled already
        self._collect(now)
        if not is_scheduled:
            self._check_next()

    def _check_next(self) -> None:
        assert self._loop is not None
        ends_at = time.monotonic() + CHECKS_S
        for _ in range(CHECKS_AT_ONCE):
            self._check_some(self._loop.time(), 1)
            if time.monotonic() >= ends_at:
                break
        if self._overdue:
            self._loop.call_soon(self._check_next)
