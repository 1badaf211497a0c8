"""Who is let in, and what becomes of those inside when users or rules change: the bridge's side of holdmq_bridge.auth.

    CONNECT ──► admit ──► rate, or its Line ──► is the server there? else held ──► Authenticator ──► Verdict
    a change ──► review of whom it concerns ──► new rules for the client, subscriptions that it may keep, or its end

Invariants
 1. A client that is connected is reviewed after every change that concerns it; what cannot be read leaves it as it is
    and is tried again.
 2. A CONNECT above connection_rate waits for its turn before anything is computed for it; its address's turn comes
    as often as that of any other address.
 3. While the server is away CONNECTs are held.  They are answered when it is back, a bounded number per turn of the
    event loop.
 4. Who waits is closed after connect_wait_s (client.py), and at once where a bound in number or bytes is reached.  A
    client that has gone leaves nothing here.
"""

import asyncio
import itertools
import math
from collections import Counter, OrderedDict
from collections.abc import Coroutine
from collections.abc import Set as AbstractSet
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
from holdmq_bridge.auth.records import RecordError
from holdmq_bridge.auth.throttle import source_of
from holdmq_bridge.auth.verdict import ANONYMOUS
from holdmq_bridge.base.logs import Log
from holdmq_bridge.base.reasons import Reason
from holdmq_bridge.broker.client import Client
from holdmq_bridge.broker.waiting import Line
from holdmq_bridge.process.process import Process
from holdmq_bridge.process.settings import Settings
from holdmq_bridge.server.link import Link
from holdmq_bridge.session.access import ANONYMOUS as ANONYMOUS_SESSIONS
from holdmq_bridge.session.access import Verdict
from holdmq_bridge.session.actions import Authenticate, Phase

log = Log("gate")

_REVIEWED_AT_ONCE = 256
_LET_IN_AT_ONCE = 64  # between two looks of the loop at its sockets
_LOOKS_AT_ONCE = 256  # at addresses whose turn it is, and whose rate is used up
_PACE_S = 0.01  # between two looks at the line
_SMALL_CONNECT = 1024  # bytes; such a CONNECT is held, however many bytes wait


class Rate:
    """So many a second, and as many at once; 0: no bound.  Times are the caller's, in seconds."""

    def __init__(self, per_second: int) -> None:
        self._per_second = per_second
        self._left = float(per_second)
        self._at = 0.0

    def has_room(self, now: float, reserved: float = 0.0) -> bool:
        """Is there room for one more, beside what is reserved?"""
        if not self._per_second:
            return True
        self._left = min(self._left + (now - self._at) * self._per_second, float(self._per_second))
        self._at = now
        return self._left >= 1.0 + reserved

    def spend(self) -> None:
        """One comes, where there is room."""
        self._left -= 1.0

    def take(self, now: float) -> bool:
        """Both in one: is there room for one more, who comes?"""
        has_room = self.has_room(now)
        if has_room:
            self.spend()
        return has_room


class Rates:
    """How many connects a second this process takes, in all and from each address.

    An address that connects much leaves a quarter of the rate to others: it cannot use up what all have, and may use
    most of it while nobody else comes.

    Args:
        per_second: in all; 0: no bound.
        per_address: from each address; 0: no bound of its own.
        max_addresses: remembered; the one that came longest ago is forgotten first.
    """

    def __init__(self, per_second: int, per_address: int, max_addresses: int = 10_000) -> None:
        self._all = Rate(per_second)
        self._reserved = per_second / 4
        self._per_address = per_address
        self._modest = per_second // 20 or min(per_second, 1)
        self._max_addresses = max_addresses
        self._addresses: OrderedDict[str, tuple[Rate, Rate]] = OrderedDict()

    def take(self, address: str, now: float) -> bool:
        """Is there room for one more from there?  If not, nothing is spent: it may ask again."""
        own, modest = self._of(address)
        is_modest = modest.has_room(now)
        if not own.has_room(now) or not self._all.has_room(now, reserved=0.0 if is_modest else self._reserved):
            return False
        for rate in (own, self._all, *([modest] if is_modest else ())):
            rate.spend()
        return True

    def _of(self, address: str) -> tuple[Rate, Rate]:
        rates = self._addresses.get(address)
        if rates is None:
            rates = self._addresses[address] = (Rate(self._per_address), Rate(self._modest))
            if len(self._addresses) > self._max_addresses:
                self._addresses.popitem(last=False)
        self._addresses.move_to_end(address)
        return rates


class Gate:
    """One for each process; `start` and `stop` it inside its event loop."""

    def __init__(self, process: Process, link: Link, clients: AbstractSet[Client]) -> None:
        settings = process.settings
        self._process = process
        self._link = link
        self._clients = clients
        self._rates = Rates(settings.connection_rate, settings.connection_rate_per_address)
        self._tasks: set[asyncio.Task[None]] = set()
        self._line: Line[Client, Authenticate] = Line(*_places(settings))
        self._held: dict[Client, Authenticate] = {}  # until the server is there
        self._unanswered: dict[Client, int] = {}  # bytes of each CONNECT that has no answer
        self._unanswered_bytes = 0
        self._turn: asyncio.Handle | None = None  # the next look at the line
        self._release: asyncio.Handle | None = None  # the next part of those who were held
        self.authenticator = Authenticator(
            link.client,
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
        """Ends everything."""
        for handle in (self._turn, self._release):
            if handle is not None:
                handle.cancel()
        for task in self._tasks:
            task.cancel()
        await self.authenticator.stop()

    # ---- who comes in ----------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """CONNECTs without an answer."""
        return len(self._unanswered)

    def admit(self, client: Client, who: Authenticate) -> None:
        """Finds out whether it may come in, now or when it can be known, and tells it."""
        self._unanswered[client] = who.size
        self._unanswered_bytes += who.size
        address = source_of("", _address(client))[1]
        if who.size > _SMALL_CONNECT and self._unanswered_bytes > self._process.settings.max_unanswered_connects:
            self._refuse(client, Reason.SERVER_BUSY, "too many bytes of CONNECTs wait for the server")
        elif not self._line and self._rates.take(address, self._process.loop.time()):
            self._let_in(client, who)
        elif not self._line.put(address, client, who):
            self._refuse(client, Reason.CONNECTION_RATE_EXCEEDED, "too many connects a second")
        elif self._turn is None:
            self._turn = self._process.loop.call_later(_PACE_S, self._serve_line)

    def left(self, client: Client) -> None:
        """It has its answer, or has gone: nothing waits here for it."""
        size = self._unanswered.pop(client, None)
        if size is not None:
            self._unanswered_bytes -= size
            self._line.drop(client)
            self._held.pop(client, None)

    def server_restored(self) -> None:
        """The server is there: whoever was held is let in."""
        if self._release is not None:
            self._release.cancel()
        self._release_some()

    def _refuse(self, client: Client, reason: Reason, detail: str) -> None:
        self._process.counters.connections_refused += 1
        client.authenticated(Verdict(False, reason, detail=detail), None)

    def _serve_line(self) -> None:
        """Lets in as many as the rate allows now, each address in its turn."""
        self._turn = None
        now = self._process.loop.time()
        passed = looks = 0
        while self._line and passed < _LET_IN_AT_ONCE and looks < min(self._line.addresses, _LOOKS_AT_ONCE):
            address = self._line.turn()
            if self._rates.take(address, now):
                passed += 1
                self._let_in(*self._line.pop(address))
            else:
                looks += 1
        if self._line:
            pause = 0.0 if passed == _LET_IN_AT_ONCE else _PACE_S
            self._turn = self._process.loop.call_later(pause, self._serve_line)

    def _let_in(self, client: Client, who: Authenticate) -> None:
        if self._link.up:
            self._start(self._admit(client, who))
        else:
            self._held[client] = who

    def _release_some(self) -> None:
        self._release = None
        for client in list(itertools.islice(self._held, _LET_IN_AT_ONCE)):
            self._let_in(client, self._held.pop(client))
        if self._held and self._link.up:
            self._release = self._process.loop.call_soon(self._release_some)

    async def _admit(self, client: Client, who: Authenticate) -> None:
        username = None if who.username is None else who.username.decode()
        name = self._certificate_name(client)
        backoff = self._process.new_backoff()
        while client.conn:
            found = await self.authenticator.authenticate(
                who.client_id,
                username,
                who.password,
                name,
                peer=_address(client),
                wanted=lambda: bool(client.conn),
            )
            if found.reason is not AuthReason.SERVER_UNAVAILABLE:
                self._decided(client, found)
                return
            if not self._link.up and client.conn:
                self._held[client] = who
                return
            await asyncio.sleep(backoff.next())  # it waits, at most connect_wait_s

    def _decided(self, client: Client, found: AuthVerdict) -> None:
        if not found.allowed:
            self._process.counters.connects_denied += 1
            log.warning("a client was refused", client=client.session.client_id, peer=client.peer, reason=found.detail)
        client.authenticated(self._verdict(found), found.identity)

    def _verdict(self, found: AuthVerdict) -> Verdict:
        """For the session.

        A certificate's name is a username, and its rules are that user's: so one name is one identity, however it was
        proved.  Where anonymous clients are no longer admitted nobody else can claim the sessions that they left.
        """
        username = found.identity.username
        known = username is not None
        return Verdict(
            found.allowed,
            found.reason.reason_code,
            found.rules,
            found.detail,
            found.session_kind,
            found.overflow,
            f"user:{username}" if known else ANONYMOUS_SESSIONS,
            ANONYMOUS_SESSIONS if known and not self.authenticator.admits_anonymous else "",
            found.quota,
        )

    def _certificate_name(self, client: Client) -> str | None:
        try:
            return certificate_identity(client.certificate, self._process.settings.certificate_name)
        except CertificateError as error:
            log.warning("a client's certificate names no user", peer=client.peer, error=error)
            return None

    # ---- who is inside ---------------------------------------------------------------------------------------------

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
            about = [(client.identity or ANONYMOUS, client.session.client_id) for client in some]
            for client, found in zip(some, await self._verdicts(about), strict=True):
                outcomes[self._apply(client, found)] += 1
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
                    "the rights of connected clients cannot be reviewed for now",
                    error=error,
                    again_in_s=round(pause, 3),
                )
                await asyncio.sleep(pause)

    def _apply(self, client: Client, found: AuthVerdict) -> str:
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
        task = self._process.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _places(settings: Settings) -> tuple[int, int]:
    """In the line: for as many as the rate serves within connect_wait_s, in all and of one address."""
    rates = settings.connection_rate, settings.connection_rate_per_address
    most, of_one = (math.ceil(rate * settings.connect_wait_s) for rate in rates)
    return min(most or settings.max_connections, settings.max_connections), of_one


def _address(client: Client) -> str:
    """Without the port; empty for a Unix socket."""
    return client.peer.rpartition(":")[0].strip("[]")
