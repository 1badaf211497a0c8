"""Decides which clients may connect, and what they may do: the part of this folder that the bridge calls.

    authenticate ──► throttle ──► lookup (user, version) ──► watcher (roles) ──► passwords ──► Verdict
    on_change ◄── watcher                    review: the same without the password, for connected clients

Invariants
 1. What cannot be read is refused: an unreachable server, a broken record, a missing role.
 2. A login sees every edit that was finished before it. A change that concerns connected clients is reported usually at
    once, and within auth_poll_s at the latest.
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
_MAX_READS = 10
_ALLOW_ALL = CompiledRules((), default=True)


class Origin(NamedTuple):
    """Where a login comes from: its address, and whether the client still waits."""

    peer: str
    is_wanted: Callable[[], bool]


class _RefusedError(Exception):
    """A client may not connect. Becomes a verdict."""

    def __init__(self, reason: Reason, detail: str, identity: Identity = ANONYMOUS) -> None:
        super().__init__(detail)
        self.verdict = Verdict(False, reason, identity, detail=detail)


class Authenticator:
    """Users and rules of one bridge process. All methods belong to one event loop.

    Args:
        server: a redis:// URL, or a function that makes an asyncio client whose replies are bytes. `stop` closes it.
        settings: of logins.
        local_only: whether clients can only come from this machine (`is_loopback` of every address listened on).
        on_change: called in the event loop when changed users or rules are in force. It must not block. The clients
            that the change concerns then need a `review`.

    Attributes:
        verdicts: logins by reason.
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
        self._make_client = server if callable(server) else _client_maker(server)
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
        """Version of the rules in force. A verdict with another `rules.version` is outdated."""
        return self._watcher.policy.version if self._watcher.policy is not None else 0

    @property
    def admits_anonymous(self) -> bool:
        """Whether a client without username and certificate may connect, by the rules in force."""
        return self._watcher.policy is not None and self._admits_anonymous(self._watcher.policy)

    @property
    def passwords_checked(self) -> int:
        """Number of passwords that argon2 has checked."""
        return self._verifier.checked

    @property
    def passwords_remembered(self) -> int:
        """Number of logins whose password was remembered."""
        return self._verifier.cached

    async def start(self) -> None:
        """Begins to follow users and rules. Retries in the background while the server is away."""
        self._client = self._make_client()
        try:
            policy = await self._watcher.refresh()
        except (redis.RedisError, OSError, RecordError) as error:
            log.warning("users and rules cannot be read yet", error=error)
        else:
            if not policy.users and not self._admits_anonymous(policy) and not self._settings.certificate_without_user:
                log.warning("nobody can connect: no user exists, and anonymous clients are not allowed")
        self._watcher.start()

    async def reconnect(self) -> None:
        """Closes all connections, because another server is the primary now."""
        if self._client is not None:
            await self._client.connection_pool.disconnect()

    async def stop(self) -> None:
        """Ends everything. Pending logins are refused."""
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
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> Verdict:
        """Decides whether a client may connect.

        A certificate decides alone: username and password are then ignored.

        Args:
            client_id: of the CONNECT, or assigned. Valid UTF-8.
            username: of the CONNECT.
            password: of the CONNECT.
            certificate_identity: the name in the client's certificate, if certificates count.
            peer: the client's address; empty for a Unix socket.
            is_wanted: whether the client still waits. Called before its password is checked.
        """
        try:
            verdict = await self._authenticate(
                client_id, username, password, certificate_identity, Origin(peer, is_wanted)
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
        """Decides again on a connected client: its present rules, or that it may no longer be connected.

        Raises:
            RedisError, OSError, RecordError: the records cannot be read. The client's former rules stay valid.
            BusyError: too many lookups are waiting.
        """
        try:
            return self._verdict(*await self._read_user_and_roles(identity.username), identity, client_id)
        except _RefusedError as refused:
            return refused.verdict

    async def review(self, clients: Sequence[tuple[Identity, bytes]]) -> list[Verdict]:
        """Does the same as `rules_for` for many clients, in one round trip for each 256.

        Raises:
            RedisError, OSError, RecordError, BusyError: as `rules_for`. Then there is no verdict for any client.
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
        policy, found = await self._read_user_and_roles(name)
        if certificate is not None:
            identity = Identity(Kind.CERTIFICATE, certificate)
            return self._verdict(policy, found, identity, client_id)
        if (name is None and password is None) or (not policy.users and self._admits_anonymous(policy)):
            return self._verdict(policy, Found(found.version, None), ANONYMOUS, client_id)
        identity = await self._check_password(policy, found, name or "", password or b"", client_id, origin)
        if self._watcher.policy is not policy:  # changed since, and reported before this client was registered
            policy, found = await self._read_user_and_roles(name)
        return self._verdict(policy, found, identity, client_id)

    async def _read_user_and_roles(self, name: str | None) -> tuple[Policy, Found]:
        """Reads user and roles of the same version."""
        for _ in range(_MAX_READS):
            found = await self._lookups.find(name)
            policy = await self._watcher.at(found.version)
            if policy.version == found.version:
                return policy, found
        raise BusyError(f"users and rules changed {_MAX_READS} times while they were read")

    async def _check_password(
        self, policy: Policy, found: Found, name: str, password: bytes, client_id: bytes, origin: Origin
    ) -> Identity:
        """Identifies a client by its password. Asks the throttle before and after, so that parallel guesses count."""
        if policy.blocks(client_id):  # before a password is computed
            raise _RefusedError(Reason.BANNED, "the client id is blocked")
        source = source_of(name, origin.peer)
        self._refuse_guessing(source)
        stored = found.user.password if found.user is not None else ""
        try:
            is_right = await self._verifier.matches(
                name,
                password,
                stored,
                source=source[1],
                known=source in self._known,
                is_wanted=lambda: origin.is_wanted() and not self._is_refused_for(source),
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
        if not is_right or not stored:
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
        """Seconds; 0: it is not refused. The budget of an address does not bind users who have logged in from there."""
        of_address = 0.0 if source in self._known else self._budget.refused_for(source[1])
        return max(self._throttle.refused_for(source), of_address)

    # ---- reviews, after the login and after every change -----------------------------------------------------------

    def _verdict(self, policy: Policy, found: Found, identity: Identity, client_id: bytes) -> Verdict:
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
    """The rules of the client. Almost everything is allowed while there are neither users nor rules."""
    if policy.is_empty:
        return without_rules(policy.version)
    if user is not None and user.superuser:
        return CompiledRules(_ALLOW_ALL.entries, _ALLOW_ALL.default, policy.version)
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
