"""The lease of this process: while it is renewed, the server keeps the process's sessions open.

Invariant: SESSION.OWNER is sent often enough that the server closes only the sessions of a dead process.
"""

from typing import TYPE_CHECKING

import hiredis

from holdmq_bridge.base.command import Reply
from holdmq_bridge.base.logs import Log
from holdmq_bridge.process.process import Process
from holdmq_bridge.server.calls import Calls, OnReply
from holdmq_bridge.server.servers import Servers

if TYPE_CHECKING:
    import asyncio

log = Log("lease")

_RENEWALS_PER_LEASE = 4


class Lease:
    """One for each process."""

    def __init__(self, process: Process, servers: Servers, calls: Calls) -> None:
        self._process = process
        self._servers = servers
        self._calls = calls
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Renews the lease from now on, whenever the server is there."""
        self._timer = self._process.loop.call_later(
            self._process.settings.lease_s / _RENEWALS_PER_LEASE,
            self.start,
        )
        if self._servers.any_up and not self._process.is_stopping:
            self.renew()

    def stop(self) -> None:
        """Renews no more.  The lease itself stays until `end`."""
        if self._timer is not None:
            self._timer.cancel()

    def renew(self, on_reply: OnReply | None = None) -> None:
        """Only while the link is up."""
        seconds = self._process.settings.lease_s
        self._calls.call(("SESSION.OWNER", self._process.name, "LEASE", seconds), on_reply or _log_refusal)

    def end(self, on_reply: OnReply) -> None:
        """Gives the lease back.  Only while the link is up."""
        self._calls.call(("SESSION.OWNER", self._process.name, "LEASE", 0), on_reply)


def _log_refusal(reply: Reply) -> None:
    if isinstance(reply, hiredis.ReplyError):
        log.warning("the server refuses the heartbeat", error=reply)
