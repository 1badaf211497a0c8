"""One timer for the deadlines of all clients: a wheel of slots, each with those who want to be looked at in that tick.

        tick   41   42   43   44   45 ...
               {a}       {b c}     {d}           check(now) of each says when it wants to be looked at next

A client stands in one slot at most and is looked at there, not at every packet: a keep-alive costs one look per period,
however much the client says.  A look too early is harmless (it answers with the right time), so only a nearer deadline
moves a client.

Everything is O(1) per client; a turn visits the clients of the ticks that passed, in parts: thousands that are closed
for the same silence delay nobody else.
"""

import asyncio
from collections import deque
from typing import Protocol

TICK_S = 0.25
LOOKS_AT_ONCE = 64  # between two looks of the loop at its sockets


class Watched(Protocol):
    """Something with deadlines."""

    due: int  # the wheel's: the tick of its slot, 0 for none

    def check(self, now: float) -> float:
        """Does what is due at this time; returns when to look again, 0 for never.  Times are the loop's, in seconds."""


class Wheel:
    """`start` it inside a running loop, `stop` it in the end."""

    def __init__(self) -> None:
        self._slots: dict[int, set[Watched]] = {}
        self._next = 0
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._overdue: deque[Watched] = deque()  # taken out of their slots, and not looked at yet

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
        """Looks at it soon after this time, or earlier."""
        tick = max(int(when / TICK_S) + 1, self._next)
        if watched.due:
            if watched.due <= tick:
                return
            self.forget(watched)
        watched.due = tick
        self._slots.setdefault(tick, set()).add(watched)

    def forget(self, watched: Watched) -> None:
        """It has no deadlines any more."""
        slot = self._slots.get(watched.due)
        if slot is not None:
            slot.discard(watched)
        watched.due = 0

    def turn(self, now: float) -> None:
        """Looks at everything that is due."""
        self._collect(now)
        self._look_at(now, len(self._overdue))

    def _collect(self, now: float) -> None:
        current = int(now / TICK_S)
        while self._next <= current:
            for watched in self._slots.pop(self._next, ()):
                watched.due = 0
                self._overdue.append(watched)
            self._next += 1

    def _look_at(self, now: float, most: int) -> None:
        for _ in range(min(most, len(self._overdue))):
            watched = self._overdue.popleft()
            again = watched.check(now)
            if again:
                self.at(watched, again)

    def _turn(self) -> None:
        assert self._loop is not None
        self._timer = self._loop.call_later(TICK_S, self._turn)
        # If the process was kept from running, what clients said meanwhile is still unread, and the timer may come
        # first.  What is called soon by what is called soon comes after a look at the sockets.
        self._loop.call_soon(self._loop.call_soon, self._look)

    def _look(self) -> None:
        """A part of what is due; the loop has its turn before the next part, however many there are."""
        assert self._loop is not None
        now = self._loop.time()
        goes_on = bool(self._overdue)  # the next part will be looked at anyway
        self._collect(now)
        if not goes_on:
            self._look_on()

    def _look_on(self) -> None:
        assert self._loop is not None
        self._look_at(self._loop.time(), LOOKS_AT_ONCE)
        if self._overdue:
            self._loop.call_soon(self._look_on)
