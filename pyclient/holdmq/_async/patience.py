"""Waits for states that end soon: slots of a cluster that are moving between two nodes."""

import time

from holdmq._io import async_sleep

FIRST_PAUSE_S = 0.005
LONGEST_PAUSE_S = 0.2


class AsyncPatience:
    """Waits for moving slots, longer each time, until the time is over."""

    def __init__(self, seconds: float) -> None:
        self._deadline = time.monotonic() + seconds
        self._pause = FIRST_PAUSE_S

    @property
    def is_over(self) -> bool:
        """Whether the time is over."""
        return time.monotonic() >= self._deadline

    async def wait(self) -> bool:
        """Waits a little. Returns False at once if the time is over."""
        if self.is_over:
            return False
        await async_sleep(self._pause)
        self._pause = min(self._pause * 2, LONGEST_PAUSE_S)
        return True
