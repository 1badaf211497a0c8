"""Whether a publish could be stored now, and if not, why: what /readyz, /healthz and the metrics tell.

The server itself is asked: SESSION.OWNER is a write, so it is refused for every reason for which a publish would be
(a full disk, a replica, too few replicas, data that is being loaded).  A server short of memory refuses publishes only:
the last refusal of one counts for a moment.

Invariants
 1. An answer is at most _FRESH_S old.
 2. However many ask, one command is under way.
"""

import asyncio
import contextlib

import hiredis

from holdmq_bridge.base.command import Reply, error_code
from holdmq_bridge.base.logs import Log
from holdmq_bridge.process.process import Process
from holdmq_bridge.server.lease import Lease
from holdmq_bridge.server.link import Link

log = Log("readiness")

_FRESH_S = 1.0
_ANSWER_S = 2.0
_REFUSED_S = 5.0  # how long a refused publish counts


class Readiness:
    """One for each process.

    Attributes:
        unconfirmed: acknowledgements are withheld, because too few replicas confirm.
    """

    def __init__(self, process: Process, link: Link, lease: Lease) -> None:
        self._process = process
        self._link = link
        self._lease = lease
        self.unconfirmed = False
        self._asked: asyncio.Future[None] | None = None
        self._reason = "the server has not been asked yet"
        self._at = 0.0
        self._refused = ""
        self._refused_at = -_REFUSED_S
        self._told = self._reason  # found out last, and in the log

    def publish_refused(self, error: str) -> None:
        """The server refused a publish for now.  One line in the log for a time of refusals, whatever their number."""
        now, code = self._process.loop.time(), error_code(error)
        if now >= self._refused_at + _REFUSED_S or code != error_code(self._refused):
            log.warning("the server temporarily refuses publishes", error=error)
        self._refused, self._refused_at = error, now

    async def reason(self) -> str:
        """Why nothing can be stored now; empty: something can."""
        loop = self._process.loop
        if self._process.is_draining:
            return self._tell("the bridge is shutting down")
        if not self._link.up:
            return self._tell("there is no connection to the server")
        if self._link.in_doubt:
            return self._tell("a failover is under way")
        if self.unconfirmed:
            return self._tell("too few replicas confirm writes (wait_replicas)")
        if loop.time() > self._at + _FRESH_S:
            await self._ask()
        recent = loop.time() < self._refused_at + _REFUSED_S
        return self._tell(self._reason or (f"the server refuses publishes: {self._refused}" if recent else ""))

    async def _ask(self) -> None:
        if self._asked is None:
            self._asked = self._process.loop.create_future()
            self._lease.renew(self._answered)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_ANSWER_S):
                await asyncio.shield(self._asked)
                return
        self._reason = f"the server did not answer within {_ANSWER_S:g} s"

    @property
    def is_ready(self) -> bool:
        """What was found out last."""
        return not self._told

    def server_lost(self) -> None:
        """No reply will come any more."""
        self.unconfirmed = False
        self._done("the connection to the server was lost")

    def _answered(self, reply: Reply) -> None:
        self._done(f"the server refuses writes: {reply}" if isinstance(reply, hiredis.ReplyError) else "")

    def _done(self, reason: str) -> None:
        self._reason, self._at = reason, self._process.loop.time()
        asked, self._asked = self._asked, None
        if asked is not None and not asked.done():
            asked.set_result(None)

    def _tell(self, reason: str) -> str:
        """One line in the log for each change."""
        if reason != self._told:
            self._told = reason
            if reason:
                log.warning("not ready", reason=reason)
            else:
                log.info("ready")
        return reason
