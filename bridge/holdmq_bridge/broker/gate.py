"""Authenticates clients, and reviews connected clients when users or rules change.

    CONNECT ──► authenticate ──► rate, or wait in line ──► server up? else held ──► Authenticator ──► Verdict
    a change ──► review of the clients that it concerns ──► new permissions for a client, or its end

Invariants
 1. A connected client is reviewed after every change that concerns it.  If the records cannot be read, the client
    stays as it is and the review is retried.
 2. A CONNECT above connection_rate waits for its turn before anything is computed for it.  All addresses take turns.
 3. While the server is away, CONNECTs are held.  They are answered when it is back, a bounded number per turn of the
    event loop.
 4. A CONNECT that waits for connect_wait_s is refused (client.py).  Above a bound in number or bytes it is refused at
    once.  Nothing is kept of a client that has gone.
"""

import asyncio
import itertools
import math
from collections import Counter, OrderedDict
from collections.abc import Coroutine
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Any

import redis

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
from holdmq_bridge.auth.records import VERSION, RecordError
from holdmq_bridge.auth.throttle import source_of
from holdmq_bridge.auth.verdict import ANONYMOUS
from holdmq_bridge.base.logs import Log
from holdmq_bridge.base.reasons import Reason
from holdmq_bridge.broker.client import Client
from holdmq_bridge.broker.waiting import Line
from holdmq_bridge.process.process import Process
from holdmq_bridge.process.settings import Settings
from holdmq_bridge.server.servers import Servers, link_for
from holdmq_bridge.session.access import ANONYMOUS as ANONYMOUS_SESSIONS
from holdmq_bridge.session.access import Verdict
from holdmq_bridge.session.actions import Authenticate, Phase

log = Log("gate")

USERS_KEY = VERSION.encode()  # all keys of users and rules are in its slot
_REVIEWED_AT_ONCE = 256
_STARTED_AT_ONCE = 64  # authentications, before the loop handles sockets again
_LOOKS_AT_ONCE = 256  # at addresses whose rate is used up
_PACE_S = 0.01  # between two looks at the line
_SMALL_CONNECT = 1024  # bytes; a smaller CONNECT is held even above the bound in bytes


class Rate:
    """A rate per second, with a burst of the same size; 0: no bound.  Times are the caller's, in seconds."""

    def __init__(self, per_second: int) -> None:
        self._per_second = per_second
        self._left = float(per_second)
        self._at = 0.0

    def has_room(self, now: float, reserved: float = 0.0) -> bool:
        """Whether there is room for one more, beside what is reserved."""
        if not self._per_second:
            return True
        self._left = min(self._left + (now - self._at) * self._per_second, float(self._per_second))
        self._at = now
        return self._left >= 1.0 + reserved

    def spend(self) -> None:
        """Uses up room for one."""
        self._left -= 1.0

    def take(self, now: float) -> bool:
        """Uses up room for one if there is any; returns whether."""
        has_room = self.has_room(now)
        if has_room:
            self.spend()
        return has_room


class Rates:
    """Connects per second of this process, in all and from each address.

    A quarter of the rate is reserved for addresses that connect rarely.  A busy address may use the rest.

    Args:
        per_second: in all; 0: no bound.
        per_address: from each address; 0: no bound.
        max_addresses: most addresses that are remembered; the least recently seen is forgotten first.
    """

    def __init__(self, per_second: int, per_address: int, max_addresses: int = 10_000) -> None:
        self._all = Rate(per_second)
        self._reserved = per_second / 4
        self._per_address = per_address
        self._modest = per_second // 20 or min(per_second, 1)
        self._max_addresses = max_addresses
        self._addresses: OrderedDict[str, tuple[Rate, Rate]] = OrderedDict()

    def take(self, address: str, now: float) -> bool:
        """Uses up room for one connect if there is any; returns whether.  A refused connect uses up nothing."""
        own, modest = self._rates_of(address)
        is_modest = modest.has_room(now)
        if not own.has_room(now) or not self._all.has_room(now, reserved=0.0 if is_modest else self._reserved):
            return False
        for rate in (own, self._all, *([modest] if is_modest else ())):
            rate.spend()
        return True

    def _rates_of(self, address: str) -> tuple[Rate, Rate]:
        rates = self._addresses.get(address)
        if rates is None:
            rates = self._addresses[address] = (Rate(self._per_address), Rate(self._modest))
            if len(self._addresses) > self._max_addresses:
                self._addresses.popitem(last=False)
        self._addresses.move_to_end(address)
        return rates


class Gate:
    """One for each process.  `start` and `stop` it inside the event loop."""

    def __init__(self, process: Process, servers: Servers, clients: AbstractSet[Client]) -> None:
        settings = process.settings
        self._process = process
        self._servers = servers
        self._clients = clients
        self._rates = Rates(settings.connection_rate, settings.connection_rate_per_address)
        self._tasks: set[asyncio.Task[None]] = set()
        self._line: Line[Client, Authenticate] = Line(*_line_limits(settings))
        self._held: dict[Client, Authenticate] = {}  # until the server is back
        self._unanswered: dict[Client, int] = {}  # bytes of each CONNECT
        self._unanswered_bytes = 0
        self._turn: asyncio.Handle | None = None  # at the line
        self._release: asyncio.Handle | None = None  # of the next held clients
        self.authenticator = Authenticator(
            partial(servers.client, USERS_KEY),
            settings,
            local_only=is_loopback(settings.host) and not settings.proxy_protocol,
            on_change=self._changed,
        )

    async def start(self) -> None:
        """Begins to follow users and rules."""
        await self.authenticator.start()

    def primary_moved(self) -> None:
        """Follows users and rules on the new primary."""
        self._start(self.authenticator.reconnect())

    async def stop(self) -> None:
        """Ends all authentications and reviews."""
        for handle in (self._turn, self._release):
            if handle is not None:
                handle.cancel()
        for task in self._tasks:
            task.cancel()
        await self.authenticator.stop()

    # ---- authentication --------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """CONNECTs without an answer."""
        return len(self._unanswered)

    def authenticate(self, client: Client, connect: Authenticate) -> None:
        """Finds out whether the client may connect, now or later, and calls its `authenticated`."""
        self._unanswered[client] = connect.size
        self._unanswered_bytes += connect.size
        address = source_of("", _address(client))[1]
        if connect.size > _SMALL_CONNECT and self._unanswered_bytes > self._process.settings.max_unanswered_connects:
            self._refuse(client, Reason.SERVER_BUSY, "too many bytes of CONNECTs wait for the server")
        elif not self._line and self._rates.take(address, self._process.loop.time()):
            self._start_authentication(client, connect)
        elif not self._line.put(address, client, connect):
            self._refuse(client, Reason.CONNECTION_RATE_EXCEEDED, "too many connects a second")
        elif self._turn is None:
            self._turn = self._process.loop.call_later(_PACE_S, self._serve_line)

    @property
    def _is_server_up(self) -> bool:
        return link_for(self._servers, USERS_KEY) is not None

    def connect_answered(self, client: Client) -> None:
        """The client has its answer or has gone: forgets its CONNECT."""
        size = self._unanswered.pop(client, None)
        if size is not None:
            self._unanswered_bytes -= size
            self._line.drop(client)
            self._held.pop(client, None)

    def server_restored(self) -> None:
        """The server is back: authenticates the clients that were held."""
        if self._release is not None:
            self._release.cancel()
        self._release_some()

    def _refuse(self, client: Client, reason: Reason, detail: str) -> None:
        self._process.counters.connections_refused += 1
        client.authenticated(Verdict(False, reason, detail=detail), None)

    def _serve_line(self) -> None:
        """Authenticates as many as the rate allows now.  The addresses take turns."""
        self._turn = None
        now = self._process.loop.time()
        passed = looks = 0
        while self._line and passed < _STARTED_AT_ONCE and looks < min(self._line.addresses, _LOOKS_AT_ONCE):
            address = self._line.turn()
            if self._rates.take(address, now):
                passed += 1
                self._start_authentication(*self._line.pop(address))
            else:
                looks += 1
        if self._line:
            pause = 0.0 if passed == _STARTED_AT_ONCE else _PACE_S
            self._turn = self._process.loop.call_later(pause, self._serve_line)

    def _start_authentication(self, client: Client, connect: Authenticate) -> None:
        if self._is_server_up:
            self._start(self._authenticate(client, connect))
        else:
            self._held[client] = connect

    def _release_some(self) -> None:
        self._release = None
        for client in list(itertools.islice(self._held, _STARTED_AT_ONCE)):
            self._start_authentication(client, self._held.pop(client))
        if self._held and self._is_server_up:
            self._release = self._process.loop.call_soon(self._release_some)

    async def _authenticate(self, client: Client, connect: Authenticate) -> None:
        username = None if connect.username is None else connect.username.decode()
        name = self._certificate_name(client)
        backoff = self._process.new_backoff()
        while client.conn:
            verdict = await self.authenticator.authenticate(
                connect.client_id,
                username,
                connect.password,
                name,
                peer=_address(client),
                is_wanted=lambda: bool(client.conn),
            )
            if verdict.reason is not AuthReason.SERVER_UNAVAILABLE:
                self._answer(client, verdict)
                return
            self._servers.look()  # the node that answered may have lost the slot
            if not self._is_server_up and client.conn:
                self._held[client] = connect
                return
            await asyncio.sleep(backoff.next())  # the client waits, at most connect_wait_s

    def _answer(self, client: Client, verdict: AuthVerdict) -> None:
        if not verdict.allowed:
            self._process.counters.connects_denied += 1
            log.warning("a client was refused", client=client.client_id, peer=client.peer, reason=verdict.detail)
        client.authenticated(self._verdict(verdict), verdict.identity)

    def _verdict(self, verdict: AuthVerdict) -> Verdict:
        """Converts a verdict for the session.

        The name in a certificate is a username: one name is one identity, however it was proved.  Where anonymous
        clients are not admitted, named users may take over sessions of anonymous clients.
        """
        username = verdict.identity.username
        known = username is not None
        return Verdict(
            verdict.allowed,
            verdict.reason.reason_code,
            verdict.rules,
            verdict.detail,
            verdict.session_kind,
            verdict.overflow,
            f"user:{username}" if known else ANONYMOUS_SESSIONS,
            ANONYMOUS_SESSIONS if known and not self.authenticator.admits_anonymous else "",
            verdict.quota,
        )

    def _certificate_name(self, client: Client) -> str | None:
        try:
            return certificate_identity(client.certificate, self._process.settings.certificate_name)
        except CertificateError as error:
            log.warning("a client's certificate names no user", peer=client.peer, error=error)
            return None

    # ---- reviews ---------------------------------------------------------------------------------------------------

    def _changed(self, change: Change) -> None:
        concerned = [
            client for client in self._clients if client.identity is not None and change.concerns(client.identity)
        ]
        if concerned:
            self._start(self._review(concerned))

    async def _review(self, clients: list[Client]) -> None:
        outcomes: Counter[str] = Counter(changed=0, expelled=0)
        for start in range(0, len(clients), _REVIEWED_AT_ONCE):
            some = clients[start : start + _REVIEWED_AT_ONCE]
            about = [(client.identity or ANONYMOUS, client.client_id) for client in some]
            for client, verdict in zip(some, await self._verdicts(about), strict=True):
                outcomes[self._apply(client, verdict)] += 1
        changed, expelled = outcomes["changed"], outcomes["expelled"]
        log.info("users or rules have changed", reviewed=len(clients), changed=changed, expelled=expelled)

    async def _verdicts(self, about: list[tuple[Identity, bytes]]) -> list[AuthVerdict]:
        backoff = self._process.new_backoff()
        while True:
            try:
                return await self.authenticator.review(about)
            except (redis.RedisError, OSError, RecordError, BusyError) as error:
                pause = backoff.next()
                log.warning(
                    "the rights of connected clients temporarily cannot be reviewed",
                    error=error,
                    again_in_s=round(pause, 3),
                )
                await asyncio.sleep(pause)

    def _apply(self, client: Client, verdict: AuthVerdict) -> str:
        """Returns the outcome in a word."""
        if not client.conn:
            return "gone"
        if not verdict.allowed:
            client.apply(client.session.expel(verdict.detail, verdict.reason.disconnect_code))
            return "expelled"
        if client.session.phase not in (Phase.OPENING, Phase.OPEN) or verdict.rules == client.session.permissions:
            return "unchanged"
        log.debug("the rights of a client have changed", client=client.client_id)
        client.change_permissions(verdict.rules)
        return "changed" if client.conn else "expelled"  # because of its will

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._process.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _line_limits(settings: Settings) -> tuple[int, int]:
    """How many CONNECTs the rate serves within connect_wait_s, in all and of one address."""
    rates = settings.connection_rate, settings.connection_rate_per_address
    most, of_one = (math.ceil(rate * settings.connect_wait_s) for rate in rates)
    return min(most or settings.max_connections, settings.max_connections), of_one


def _address(client: Client) -> str:
    """The address without the port; empty for a Unix socket."""
    return client.peer.rpartition(":")[0].strip("[]")
