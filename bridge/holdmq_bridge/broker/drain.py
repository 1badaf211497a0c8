"""Ends the clients of this process at a bounded rate, so that they come back on other bridges, one after the other.

    begin() ── no further connections ── drain_rate clients per second are ended ── no client is left: `finished`

A client of MQTT 5.0 gets a DISCONNECT with `drain_reason` and `drain_server_reference`, and one of 3.1.1 a closed
connection.  Its session stays.  What was not acknowledged is sent again, by either side.

Invariants
 1. Once begun, a drain ends: a client whose end the server does not learn is waited for during `shutdown_timeout_s`.
 2. A step ends at most STEP_CLIENTS clients, whatever the rate.
"""

import asyncio
from collections.abc import Callable
from collections.abc import Set as AbstractSet

from holdmq_bridge.base.logs import Log
from holdmq_bridge.base.reasons import Ending, Reason
from holdmq_bridge.broker.client import Client
from holdmq_bridge.process.process import Process

log = Log("drain")

STEP_S = 0.02
STEP_CLIENTS = 200
REASONS = {"use-another-server": Reason.USE_ANOTHER_SERVER, "server-moved": Reason.SERVER_MOVED}


class Drain:
    """One for each process.

    Attributes:
        finished: set when no client is left.
    """

    def __init__(self, process: Process, clients: AbstractSet[Client]) -> None:
        self._process = process
        self._clients = clients
        self._at_begin: list[Callable[[], None]] = []
        self._left: list[Client] = []
        self._ended = 0
        self._begun_at = 0.0
        self._patience_until = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.finished = asyncio.Event()

    def at_begin(self, action: Callable[[], None]) -> None:
        """Adds an action to carry out first, such as closing the listeners."""
        self._at_begin.append(action)

    def begin(self) -> int:
        """Begins, unless it has begun before.  Returns how many clients are connected."""
        process = self._process
        if not process.is_draining:
            process.is_draining = True
            for action in self._at_begin:
                action()
            log.info(
                "draining: no connections are accepted", clients=len(self._clients), rate=process.settings.drain_rate
            )
            self._left = list(self._clients)
            self._begun_at = process.loop.time()
            self._step()
        return len(self._clients)

    def stop(self) -> None:
        """The process ends: it ends all clients at once."""
        if self._timer is not None:
            self._timer.cancel()

    def _step(self) -> None:
        process, settings = self._process, self._process.settings
        now = process.loop.time()
        due = 1 + int((now - self._begun_at) * settings.drain_rate) - self._ended
        for _ in range(min(due, STEP_CLIENTS, len(self._left))):
            self._left.pop().end(Ending.DRAINED, reason=REASONS[settings.drain_reason])
            self._ended += 1
        if self._left:
            self._patience_until = now + settings.shutdown_timeout_s
        elif not self._clients or now >= self._patience_until:
            log.info("drained", clients_left=len(self._clients), seconds=round(now - self._begun_at, 3))
            self.finished.set()
            return
        self._timer = process.loop.call_later(STEP_S, self._step)
