"""Whether a publish could be stored now, and if not, why: for /readyz, /healthz and the metrics.

The server itself is asked, by SESSION.OWNER.  It is a write, so the server refuses it for the same reasons as any
write: a full disk, a replica, too few replicas, data that is being loaded.  A server short of memory or disk refuses
publishes only: so it is sent an empty TOPIC.PIPELINE, too.  To a user who may not run that, publishes go one by one:
then a TOPIC.PUBLISH without a topic shows whether they may.  The last refusal of a publish counts for _REFUSED_S.

In a cluster all nodes are asked that have a link, and the first one that accepts both is enough: a node that is lost or
refuses, or whose replicas do not confirm, delays only the publishes for its slots.

Invariants
 1. An answer is at most _FRESH_S old.  A server that has just been connected is asked anew: its loss, or what the one
    before refused, says nothing about it.
 2. At most one question is pending, however many callers wait.
"""

import asyncio
import contextlib
import math
from functools import partial

import hiredis

from holdmq_bridge.base.command import Reply, error_code
from holdmq_bridge.base.logs import Log
from holdmq_bridge.process.process import Process
from holdmq_bridge.server.calls import Calls
from holdmq_bridge.server.lease import Lease
from holdmq_bridge.server.servers import Servers

log = Log("readiness")

_FRESH_S = 1.0
_ANSWER_S = 2.0
_REFUSED_S = 5.0
_MOVING = ("MOVED", "ASK", "TRYAGAIN")


class Readiness:
    """One for each process.

    Attributes:
        unconfirmed: links of servers whose acknowledgements are withheld, because too few replicas confirm.
    """

    def __init__(self, process: Process, servers: Servers, calls: Calls, lease: Lease) -> None:
        self._process = process
        self._servers = servers
        self._calls = calls
        self._lease = lease
        self.unconfirmed: set[int] = set()
        self._query: asyncio.Future[None] | None = None
        self._asked: set[int] = set()  # links without an answer to the query
        self._reason = "the server has not been asked yet"
        self._at = -math.inf
        self._refused = ""
        self._refused_at = -math.inf
        self._logged_reason = self._reason

    def publish_refused(self, error: str) -> None:
        """The server temporarily refused a publish.  Logs one line for a series of refusals."""
        now, code = self._process.loop.time(), error_code(error)
        if now >= self._refused_at + _REFUSED_S or code != error_code(self._refused):
            log.warning("the server temporarily refuses publishes", error=error)
        self._refused, self._refused_at = error, now

    async def reason(self) -> str:
        """Why no publish can be stored now; empty if it can."""
        loop = self._process.loop
        if self._process.is_stopping:
            return self._report("the bridge is shutting down")
        if self._process.is_draining:
            return self._report("the bridge is draining")
        if not self._servers.any_up:
            return self._report("there is no connection to the server")
        if self._servers.in_doubt:
            return self._report("a failover is under way")
        if self.unconfirmed.issuperset(self._servers.up()):
            return self._report("too few replicas confirm writes (wait_replicas)")
        if loop.time() > self._at + _FRESH_S:
            await self._query_server()
        recent = loop.time() < self._refused_at + _REFUSED_S
        return self._report(self._reason or (f"the server refuses publishes: {self._refused}" if recent else ""))

    async def _query_server(self) -> None:
        if self._query is None:
            self._query = self._process.loop.create_future()
            self._asked = set(self._servers.up())
            for link in tuple(self._asked):
                self._lease.renew(link, partial(self._on_write, link))
                self._calls.call(("TOPIC.PIPELINE", ""), partial(self._on_publish, link), link)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_ANSWER_S):
                await asyncio.shield(self._query)
                return
        self._reason = f"the server did not answer within {_ANSWER_S:g} s"

    @property
    def is_ready(self) -> bool:
        """Whether the last answer was yes."""
        return not self._logged_reason

    def server_found(self) -> None:
        """A server is there: no reason of before counts."""
        if self._reason and self._query is None:
            self._at = -math.inf
        if not self._servers.is_cluster:
            self._refused_at = -math.inf

    def server_lost(self, link: int) -> None:
        """No reply will arrive any more on a link."""
        self.unconfirmed.discard(link)
        self._answered(link, "the connection to the server was lost")

    def _on_write(self, link: int, reply: Reply) -> None:
        """The reply to a heartbeat.  One whose slot is on its way to another node says nothing."""
        if isinstance(reply, hiredis.ReplyError) and error_code(reply) not in _MOVING:
            self._answered(link, f"the server refuses writes: {reply}")

    def _on_publish(self, link: int, reply: Reply) -> None:
        """The reply to no publish at all.  An error of the command itself comes from an older module."""
        if link not in self._asked:
            return
        code = error_code(reply) if isinstance(reply, hiredis.ReplyError) else ""
        if code == "NOPERM":
            self._calls.call(("TOPIC.PUBLISH", "", ""), partial(self._on_single_publish, link), link)
        else:  # the server accepted the write
            is_refused = code not in ("", "ERR")
            self._answered(link, f"the server refuses publishes: {reply}" if is_refused else "")

    def _on_single_publish(self, link: int, reply: Reply) -> None:
        """If the command is permitted, it is refused for its topic."""
        is_refused = isinstance(reply, hiredis.ReplyError) and error_code(reply) != "INVALIDTOPIC"
        self._answered(link, f"the server refuses publishes: {reply}" if is_refused else "")

    def _answered(self, link: int, reason: str) -> None:
        """A server accepts publishes (`reason` is empty), or says why not."""
        self._asked.discard(link)
        if not reason:
            self._asked.clear()
        if not self._asked and not (self._servers.is_cluster and self._query is None):
            self._done(reason)

    def _done(self, reason: str) -> None:
        self._reason, self._at = reason, self._process.loop.time()
        query, self._query = self._query, None
        if query is not None and not query.done():
            query.set_result(None)

    def _report(self, reason: str) -> str:
        """Logs a change of the reason; returns the reason."""
        if reason != self._logged_reason:
            self._logged_reason = reason
            if reason:
                log.warning("not ready", reason=reason)
            else:
                log.info("ready")
        return reason
