"""Decides who may connect and what they may do; the one part of this package that the bridge talks to.

    authenticate ──► throttle ──► lookup (user, version) ──► watcher (roles) ──► passwords ──► Verdict
    on_change ◄── watcher                    review: the same without the password, for those who are connected

Invariants
 1. Whatever cannot be read or understood refuses: an unreachable server, a broken record, a role that is missing.
 2. A login sees every edit that was finished before it; who is connected is reported within auth_poll_s at the latest,
    usually at once.
 3. Nothing here blocks the event loop: argon2 runs in threads. Everything that waits or is remembered has a bound.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import NamedTuple

import redis
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from holdmq_bridge.auth.lookup import BATCH, Found, Lookups
from holdmq_bridge.auth.passwords import BadHashError, BusyError, UnwantedError, Verifier
from holdmq_bridge.auth.records import MAX_NAME_BYTES, Policy, RecordError, User
from holdmq_bridge.auth.rules import CompiledRules, compile_rules, without_rules
from holdmq_bridge.auth.settings import AuthSettings
from holdmq_bridge.auth.throttle import AddressBudget, Known, Source, Throttle, source_of
from holdmq_bridge.auth.verdict import ANONYMOUS, Change, Identity, Kind, Reason, Verdict
from holdmq_bridge.auth.watcher import Watcher, log
from holdmq_bridge.base.quota import NO_QUOTA

_SERVER_TIMEOUT_S = 5.0
_MAX_LOOKS = 10
_ALLOWING_ALL = CompiledRules((), default=True)


class Origin(NamedTuple):
    """Where a login comes from: its address, and whether somebody still waits for the answer."""

    peer: str
    wanted: Callable[[], bool]


class _RefusedError(Exception):
    """A client that may not connect; becomes a verdict."""

    def __init__(self, reason: Reason, detail: str, identity: Identity = ANONYMOUS) -> None:
        super().__init__(detail)
        self.verdict = Verdict(False, reason, identity, detail=detail)


class Authenticator:
    """Users and rules of one bridge process. All methods belong to one event loop.

    Args:
        server: a redis:// URL, or what makes an asyncio client whose replies are bytes; it is closed by `stop`.
        settings: see there.
        local_only: whether clients can come from this machine alone (`is_loopback` of every address listened on).
        on_change: called in the event loop when stored users or rules changed, after they are in force; must not
            block. Whoever is concerned is then to be put through `review`.

    Attributes:
        verdicts: how many logins ended with each reason.
    """

    def __init__(
        self,
        server: str | Callable[[], Redis],
        settings: AuthSettings,
        *,
        local_only: bool,
        on_change: Callable[[Change], None] = lambda change: None,
    ) -> None:
        self.verdicts: Counter[Reason] = Counter()
        self._settings = settings
        self._local_only = local_only
        self._make = server if callable(server) else _client_maker(server)
        self._client: Redis | None = None
        self._lookups = Lookups(self._connected, settings.auth_max_lookups)
        self._watcher = Watcher(self._connected, on_change, settings.auth_poll_s)
        self._verifier = Verifier(
            threads=settings.auth_threads,
            max_waiting=settings.auth_max_waiting,
            max_cached=settings.auth_cached_logins,
            cached_s=settings.auth_cached_s,
        )
        self._throttle = Throttle(
            free=settings.auth_free_failures,
            first_s=settings.auth_ban_first_s,
            longest_s=settings.auth_ban_max_s,
            max_sources=settings.auth_max_sources,
        )
        self._budget = AddressBudget(
            most=settings.auth_address_failures,
            per_second=settings.auth_address_failures_per_s,
            max_sources=settings.auth_max_sources,
        )
        self._known = Known(settings.auth_cached_logins)

    @property
    def version(self) -> int:
        """Of the rules in force. A verdict whose `rules.version` is another one has been overtaken by a change."""
        return self._watcher.policy.version if self._watcher.policy is not None else 0

    @property
    def admits_anonymous(self) -> bool:
        """Whether a client without username and certificate may connect, by the rules in force."""
        return self._watcher.policy is not None and self._admits_anonymous(self._watcher.policy)

    @property
    def passwords_checked(self) -> int:
        """How often argon2 ran."""
        return self._verifier.checked

    @property
    def passwords_remembered(self) -> int:
        """How often it did not have to."""
        return self._verifier.cached

    async def start(self) -> None:
        """Begin to follow what is stored. A server that is not there yet is waited for in the background."""
        self._client = self._make()
        try:
            policy = await self._watcher.refresh()
        except (redis.RedisError, OSError, RecordError) as error:
            log.warning("users and rules cannot be read yet", error=error)
        else:
            if not policy.users and not self._admits_anonymous(policy) and not self._settings.certificate_without_user:
                log.warning("nobody can connect: no user exists, and anonymous clients are not allowed")
        self._watcher.start()

    async def reconnect(self) -> None:
        """Leave all connections, because the primary is another server now: changes are announced there."""
        if self._client is not None:
            await self._client.connection_pool.disconnect()

    async def stop(self) -> None:
        """End everything; logins under way are refused."""
        await self._watcher.close()
        await self._lookups.close()
        self._verifier.close()
        if self._client is not None:
            client, self._client = self._client, None
            await client.aclose()

    async def authenticate(
        self,
        client_id: bytes,
        username: str | None,
        password: bytes | None,
        certificate_identity: str | None = None,
        *,
        peer: str = "",
        wanted: Callable[[], bool] = lambda: True,
    ) -> Verdict:
        """May this client connect?

        A certificate decides alone: username and password beside it are not looked at.

        Args:
            client_id: as in CONNECT, or as assigned; well-formed UTF-8.
            username: as in CONNECT.
            password: as in CONNECT.
            certificate_identity: the name of the client's certificate, if it has one that counts.
            peer: its address, as the socket tells it; empty for a Unix socket.
            wanted: whether the client is still there, asked before its password is computed.
        """
        try:
            verdict = await self._authenticate(
                client_id, username, password, certificate_identity, Origin(peer, wanted)
            )
        except _RefusedError as refused:
            verdict = refused.verdict
        except BusyError as error:
            verdict = Verdict(False, Reason.SERVER_BUSY, detail=str(error))
        except (redis.RedisError, OSError, RecordError) as error:
            verdict = Verdict(False, Reason.SERVER_UNAVAILABLE, detail=f"users and rules cannot be read: {error}")
        self.verdicts[verdict.reason] += 1
        return verdict

    async def rules_for(self, identity: Identity, client_id: bytes) -> Verdict:
        """What a client that is connected may do now, or that it may no longer be; as `review` for one.

        Raises:
            RedisError, OSError, RecordError: it cannot be read; what the client had is still the best that is known.
            BusyError: too many are waiting.
        """
        try:
            return self._reviewed(*await self._look(identity.username), identity, client_id)
        except _RefusedError as refused:
            return refused.verdict

    async def review(self, clients: Sequence[tuple[Identity, bytes]]) -> list[Verdict]:
        """The same for many, in their order; a round trip for each 256.

        Raises:
            RedisError, OSError, RecordError, BusyError: as of `rules_for`; then for none.
        """
        verdicts: list[Verdict] = []
        for start in range(0, len(clients), BATCH):
            some = clients[start : start + BATCH]
            verdicts += await asyncio.gather(*(self.rules_for(identity, client_id) for identity, client_id in some))
        return verdicts

    # ---- one login -------------------------------------------------------------------------------------------------

    async def _authenticate(
        self, client_id: bytes, username: str | None, password: bytes | None, certificate: str | None, origin: Origin
    ) -> Verdict:
        name = username if certificate is None else certificate
        if name is not None and not _can_be_looked_up(name):
            raise _RefusedError(Reason.BAD_CREDENTIALS, f"a username of more than {MAX_NAME_BYTES} bytes, or no UTF-8")
        policy, found = await self._look(name)
        if certificate is not None:
            identity = Identity(Kind.CERTIFICATE, certificate)
            return self._reviewed(policy, found, identity, client_id)
        if (name is None and password is None) or (not policy.users and self._admits_anonymous(policy)):
            return self._reviewed(policy, Found(found.version, None), ANONYMOUS, client_id)
        identity = await self._checked(policy, found, name or "", password or b"", client_id, origin)
        if self._watcher.policy is not policy:  # it changed meanwhile, and was told before this client counted
            policy, found = await self._look(name)
        return self._reviewed(policy, found, identity, client_id)

    async def _look(self, name: str | None) -> tuple[Policy, Found]:
        """User and roles of one version."""
        for _ in range(_MAX_LOOKS):
            found = await self._lookups.find(name)
            policy = await self._watcher.at(found.version)
            if policy.version == found.version:
                return policy, found
        raise BusyError(f"users and rules changed {_MAX_LOOKS} times while they were read")

    async def _checked(
        self, policy: Policy, found: Found, name: str, password: bytes, client_id: bytes, origin: Origin
    ) -> Identity:
        """Who it is by its password; asked before and after, so that guesses made side by side count one by one."""
        if policy.blocks(client_id):  # before anything is computed
            raise _RefusedError(Reason.BANNED, "the client id is blocked")
        source = source_of(name, origin.peer)
        self._refuse_guessing(source)
        stored = found.user.password if found.user is not None else ""
        try:
            right = await self._verifier.matches(
                name,
                password,
                stored,
                source=source[1],
                known=source in self._known,
                wanted=lambda: origin.wanted() and not self._is_refused_for(source),
            )
        except UnwantedError as error:
            self._refuse_guessing(source)
            raise BusyError(str(error)) from error
        except BadHashError as error:
            log.error("the password of a user cannot be checked", user=name, error=error)
            raise _RefusedError(Reason.BAD_CREDENTIALS, str(error)) from error
        self._refuse_guessing(source)
        if found.broken:
            raise _RefusedError(Reason.NOT_AUTHORIZED, found.broken)
        if not right or not stored:
            self._throttle.failed(source)
            self._budget.failed(source[1])
            raise _RefusedError(Reason.BAD_CREDENTIALS, f"user {name!r} is unknown or has another password")
        self._throttle.succeeded(source)
        self._known.add(source)
        return Identity(Kind.PASSWORD, name, _credential(stored))

    def _refuse_guessing(self, source: Source) -> None:
        seconds = self._is_refused_for(source)
        if seconds:
            raise _RefusedError(Reason.BANNED, f"too many wrong passwords, refused for {seconds:.0f} s more")

    def _is_refused_for(self, source: Source) -> float:
        """Seconds; 0: it is not. An address that fails too often concerns who never logged in from there."""
        of_address = 0.0 if source in self._known else self._budget.refused_for(source[1])
        return max(self._throttle.refused_for(source), of_address)

    # ---- after the login, and again at every change ----------------------------------------------------------------

    def _reviewed(self, policy: Policy, found: Found, identity: Identity, client_id: bytes) -> Verdict:
        if policy.blocks(client_id):
            raise _RefusedError(Reason.BANNED, "the client id is blocked", identity)
        if identity.kind is Kind.ANONYMOUS:
            if not self._admits_anonymous(policy):
                raise _RefusedError(Reason.NOT_AUTHORIZED, "anonymous clients are not allowed")
        else:
            self._require_user(found, identity, client_id)
        kind = "" if found.user is None else found.user.session_kind
        overflow = "" if found.user is None else found.user.overflow
        quota = NO_QUOTA if found.user is None else found.user.quota
        rules = _rules(policy, found.user, identity, client_id)
        return Verdict(True, Reason.ACCEPTED, identity, rules, session_kind=kind, overflow=overflow, quota=quota)

    def _require_user(self, found: Found, identity: Identity, client_id: bytes) -> None:
        user = found.user
        if found.broken:
            log.error("the record of a user is invalid: the user is refused", error=found.broken)
            raise _RefusedError(Reason.NOT_AUTHORIZED, found.broken, identity)
        if user is None:
            if identity.kind is Kind.CERTIFICATE and self._settings.certificate_without_user:
                return
            raise _RefusedError(Reason.NOT_AUTHORIZED, f"there is no user {identity.username!r}", identity)
        if not user.enabled:
            raise _RefusedError(Reason.NOT_AUTHORIZED, f"user {user.name!r} is disabled", identity)
        if not user.may_be_client(client_id):
            raise _RefusedError(Reason.NOT_AUTHORIZED, f"user {user.name!r} may not use this client id", identity)
        if identity.kind is Kind.PASSWORD and identity.credential != _credential(user.password):
            raise _RefusedError(Reason.NOT_AUTHORIZED, f"user {user.name!r} has a new password", identity)

    def _admits_anonymous(self, policy: Policy) -> bool:
        if self._settings.allow_anonymous is not None:
            return self._settings.allow_anonymous
        return self._local_only and policy.is_empty

    def _connected(self) -> Redis:
        if self._client is None:
            raise redis.ConnectionError("the authenticator is not running")
        return self._client


def _rules(policy: Policy, user: User | None, identity: Identity, client_id: bytes) -> CompiledRules:
    """What the client may do; next to everything as long as there are neither users nor rules."""
    if policy.is_empty:
        return without_rules(policy.version)
    if user is not None and user.superuser:
        return CompiledRules(_ALLOWING_ALL.entries, _ALLOWING_ALL.default, policy.version)
    try:
        lists = policy.rule_lists(user, anonymous=identity.kind is Kind.ANONYMOUS)
    except RecordError as error:
        log.error("rules are invalid: clients that they apply to are refused", error=error)
        raise _RefusedError(Reason.NOT_AUTHORIZED, str(error), identity) from error
    return compile_rules(lists, client_id, identity.username, default=False, version=policy.version)


def _can_be_looked_up(name: str) -> bool:
    try:
        return len(name.encode()) <= MAX_NAME_BYTES
    except UnicodeEncodeError:
        return False


def _credential(stored: str) -> bytes:
    return blake2b(stored.encode(), digest_size=16).digest()


def _client_maker(url: str) -> Callable[[], Redis]:
    def make() -> Redis:
        client: Redis = Redis.from_url(
            url,
            socket_timeout=_SERVER_TIMEOUT_S,
            socket_connect_timeout=_SERVER_TIMEOUT_S,
            retry=Retry(NoBackoff(), 0),  # a subscription that is lost has to be noticed
            decode_responses=False,
        )
        return client

    return make
