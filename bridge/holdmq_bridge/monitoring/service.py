"""Reports the state of this process to systemd, by datagrams to the socket that NOTIFY_SOCKET names (sd_notify(3)).

    READY=1      once: a publish could be stored for the first time
    STATUS=...   whether one could be stored now, and if not, why; as /readyz
    WATCHDOG=1   the event loop runs, as /livez; twice in the time that WATCHDOG_USEC allows
    STOPPING=1   the end has begun

Without NOTIFY_SOCKET nothing happens.  Nothing here waits: what systemd does not take now is said again later, but for
signs of life and the end.
"""

import asyncio
import socket
from collections.abc import Mapping

from holdmq_bridge.broker.bridge import Bridge

_STARTING_S = 0.2  # between two looks before it is ready for the first time
_LOOK_S = 5.0  # and after that
_MAX_STATUS = 400  # characters


class Service:
    """One for each service.  `start` it inside the event loop.

    Args:
        bridge: the process's.
        environment: of the process.
    """

    def __init__(self, bridge: Bridge, environment: Mapping[str, str]) -> None:
        self._bridge = bridge
        address = environment.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        usec = environment.get("WATCHDOG_USEC", "")
        self._alive_every_s = int(usec) / 2_000_000 if usec.isdecimal() else 0.0
        self._socket: socket.socket | None = None
        self._task: asyncio.Task[None] | None = None
        self._alive: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begins to report."""
        if not self._address:
            return
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._task = self._bridge.process.loop.create_task(self._run())
        if self._alive_every_s:
            self._feed_watchdog()

    def stopping(self) -> None:
        """The process ends: reports that, and continues to report that it is alive."""
        if self._task is not None:
            self._task.cancel()
        self._tell("STOPPING=1", "STATUS=shutting down")

    def stop(self) -> None:
        """Says nothing more."""
        if self._alive is not None:
            self._alive.cancel()
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    async def _run(self) -> None:
        told = None
        has_started = False
        while True:
            reason = await self._bridge.readiness.reason()
            has_started = has_started or not reason
            if reason != told:
                status = f"STATUS={f'not ready: {reason}' if reason else 'ready'}"[:_MAX_STATUS].replace("\n", " ")
                if self._tell(*(["READY=1"] if has_started else []), status):
                    told = reason
            await asyncio.sleep(_LOOK_S if has_started and told == reason else _STARTING_S)

    def _feed_watchdog(self) -> None:
        self._alive = self._bridge.process.loop.call_later(self._alive_every_s, self._feed_watchdog)
        self._tell("WATCHDOG=1")

    def _tell(self, *lines: str) -> bool:
        """Returns whether systemd accepted the lines."""
        if self._socket is None:
            return False
        try:
            self._socket.sendto("\n".join(lines).encode(), self._address)
        except OSError:  # its queue is full, or it is not there
            return False
        return True
