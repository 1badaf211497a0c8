"""Who is let in, and what becomes of those inside when users or rules change: the bridge's side of holdmq_bridge.auth.

    CONNECT ──► admit ──► Authenticator ──► Verdict
    a change ──► review of whom it concerns ──► new rules for the client, subscriptions that it may keep, or its end

Invariants
 1. A client that is connected is reviewed after every change that concerns it; what cannot be read leaves it as it is
    and is tried again.
 2. A connect beyond connection_rate is refused before anything is computed for it.
"""

import asyncio
from collections import Counter
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

import redis

from holdmq_bridge.access import Verdict
from holdmq_bridge.actions import Authenticate, Phase
from holdmq_bridge.auth import (
    Authenticator,
    CertificateError,
    Change,
    Identity,
    certificate_identity,
    is_loopback,
)
from holdmq_bridge.auth import Reason as AuthReason
from holdmq_bridge.auth import Verdict as AuthVerdict
from holdmq_bridge.auth.passwords import BusyError
from holdmq_bridge.auth.records import RecordError
from holdmq_bridge.auth.verdict import ANONYMOUS
from holdmq_bridge.logs import Log
from holdmq_bridge.reasons import Reason
from holdmq_bridge.target import Target

if TYPE_CHECKING:
    from holdmq_bridge.bridge import Bridge
    from holdmq_bridge.client import Client

log = Log("gate")

_REVIEWED_AT_ONCE = 256


class Rate:
    """So many a second, and as many at once; 0: no bound.  Times are the caller's, in seconds."""

    def __init__(self, per_second: int) -> None:
        self._per_second = per_second
        self._left = float(per_second)
        self._at = 0.0

    def take(self, now: float) -> bool:
        """Is there room for one more?"""
        if not self._per_second:
            return True
        self._left = min(self._left + (now - self._at) * self._per_second, float(self._per_second))
        self._at = now
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True


class Gate:
    """One for each process; `start` and `stop` it inside its event loop."""

    def __init__(self, bridge: "Bridge") -> None:
        settings = bridge.settings
        self._bridge = bridge
        self._rate = Rate(settings.connection_rate)
        self._tasks: set[asyncio.Task[None]] = set()
        target = Target.parse(settings.redis)
        self.authenticator = Authenticator(
            target.client,
            settings,
            local_only=is_loopback(settings.host) and not settings.proxy_protocol,
            on_change=self._changed,
        )

    async def start(self) -> None:
        """Begins to follow users and rules."""
        await self.authenticator.start()

    async def stop(self) -> None:
        """Ends everything."""
        for task in self._tasks:
            task.cancel()
        await self.authenticator.stop()

    # ---- who comes in ----------------------------------------------------------------------------------------------

    def admit(self, client: "Client", who: Authenticate) -> None:
        """Finds out whether it may come in, and tells it."""
        if self._rate.take(self._bridge.loop.time()):
            self._start(self._admit(client, who))
            return
        self._bridge.counters.connections_refused += 1
        client.authenticated(Verdict(False, Reason.CONNECTION_RATE_EXCEEDED, detail="too many connects a second"), None)

    async def _admit(self, client: "Client", who: Authenticate) -> None:
        username = None if who.username is None else who.username.decode()
        name = self._certificate_name(client)
        backoff = self._bridge.new_backoff()
        while client.conn:
            found = await self.authenticator.authenticate(
                who.client_id, username, who.password, name, peer=client.peer.rpartition(":")[0]
            )
            if found.reason is not AuthReason.SERVER_UNAVAILABLE:
                self._decided(client, found)
                return
            await asyncio.sleep(backoff.next())  # it waits, at most connect_timeout_s

    def _decided(self, client: "Client", found: AuthVerdict) -> None:
        if not found.allowed:
            self._bridge.counters.connects_denied += 1
            log.warning(
                "a client is not let in", client=client.session.client_id, peer=client.peer, reason=found.detail
            )
        client.authenticated(_verdict(found), found.identity)

    def _certificate_name(self, client: "Client") -> str | None:
        try:
            return certificate_identity(client.certificate, self._bridge.settings.certificate_name)
        except CertificateError as error:
            log.warning("a certificate names nobody", peer=client.peer, error=error)
            return None

    # ---- who is inside ---------------------------------------------------------------------------------------------

    def _changed(self, change: Change) -> None:
        concerned = [
            client
            for client in self._bridge.clients
            if client.identity is not None and change.concerns(client.identity)
        ]
        if concerned:
            self._start(self._review(concerned))

    async def _review(self, clients: "list[Client]") -> None:
        outcomes: Counter[str] = Counter(changed=0, expelled=0)
        for start in range(0, len(clients), _REVIEWED_AT_ONCE):
            some = clients[start : start + _REVIEWED_AT_ONCE]
            about = [(client.identity or ANONYMOUS, client.session.client_id) for client in some]
            for client, found in zip(some, await self._verdicts(about), strict=True):
                outcomes[self._apply(client, found)] += 1
        changed, expelled = outcomes["changed"], outcomes["expelled"]
        log.info("users or rules have changed", reviewed=len(clients), changed=changed, expelled=expelled)

    async def _verdicts(self, about: list[tuple[Identity, bytes]]) -> list[AuthVerdict]:
        backoff = self._bridge.new_backoff()
        while True:
            try:
                return await self.authenticator.review(about)
            except (redis.RedisError, OSError, RecordError, BusyError) as error:
                pause = backoff.next()
                log.warning("clients cannot be reviewed now", error=error, again_in_s=round(pause, 3))
                await asyncio.sleep(pause)

    def _apply(self, client: "Client", found: AuthVerdict) -> str:
        """Returns what became of it, in a word."""
        if not client.conn:
            return "gone"
        if not found.allowed:
            client.replied(client.session.expel(found.detail, found.reason.disconnect_code))
            return "expelled"
        if client.session.phase not in (Phase.OPENING, Phase.OPEN) or found.rules == client.session.permissions:
            return "unchanged"
        log.debug("the rights of a client have changed", client=client.session.client_id)
        client.permit(found.rules)
        return "changed" if client.conn else "expelled"  # for its will

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._bridge.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _verdict(found: AuthVerdict) -> Verdict:
    return Verdict(found.allowed, found.reason.reason_code, found.rules, found.detail, found.session_kind)
