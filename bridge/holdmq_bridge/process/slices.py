"""Long work of clients, in slices: one slice in each turn of the event loop, and clients take turns.

    {a, b, c}    turn 1: a    turn 2: b    turn 3: c    turn 4: a ...

However many clients have work, a message waits for one slice of it at most.
"""

import asyncio
from collections import deque
from collections.abc import Callable


class Slices:
    """The slices that are due."""

    def __init__(self) -> None:
        self._due: deque[Callable[[], None]] = deque()
        self._loop = asyncio.get_running_loop()

    def add(self, slice_of_work: Callable[[], None]) -> None:
        """Calls this once, after those that were added before."""
        self._due.append(slice_of_work)
        if len(self._due) == 1:
            self._loop.call_soon(self._next)

    def _next(self) -> None:
        slice_of_work = self._due.popleft()
        if self._due:
            self._loop.call_soon(self._next)
        slice_of_work()
