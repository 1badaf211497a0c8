"""Identifies users and checks their rights: logins, cookies, tokens, and the checks that every request passes.

    request ──► host ──► origin ──► token, cookie, or neither ──► Principal ──► right

Invariants
 1. The user is read from the server for every request: a user who is disabled, lost a role or has a new password loses
    access at once.
 2. A request that changes something and comes with a cookie carries the CSRF token of that login. A request with an
    Origin carries the console's own.
 3. Without users and rules, everyone who reaches a console on loopback may do everything; beyond loopback nobody may do
    anything.
"""

import hashlib
import hmac
import secrets
import time
from collections import OrderedDict
from urllib.parse import urlsplit

import redis
from starlette.concurrency import run_in_threadpool
from starlette.requests import HTTPConnection, Request

from holdmq_bridge.auth.passwords import BusyError, Verifier
from holdmq_bridge.auth.records import ROLES, USERS, User, user_key
from holdmq_bridge.auth.throttle import AddressBudget, Throttle, source_of
from holdmq_console import cookies, tokens
from holdmq_console.audit import Audit
from holdmq_console.broker import Broker
from holdmq_console.cookies import Login
from holdmq_console.keys import ENDED, SIGNING_KEY
from holdmq_console.principal import ALL_RIGHTS, Principal, Right, Via, rights_of
from holdmq_console.problems import ProblemError
from holdmq_console.settings import ConsoleSettings

COOKIE = "holdmq_console"
CSRF_HEADER = "X-CSRF-Token"
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
FORWARDED = ("forwarded", "x-real-ip", "via")
FORWARDED_PREFIX = "x-forwarded-"
"""A request with such a header came through a proxy, perhaps from another machine."""
LOCAL_USER = "(local)"
MAX_PASSWORD_BYTES = 1024
KEY_BYTES = 32
_CHECKS_WAITING = 64
_SOURCES = 10_000
_ADDRESS_PER_S = 0.1


class Access:
    """One for each process.

    Args:
        broker: the server.
        settings: of the console.
        audit: where logins are written down.
    """

    def __init__(self, broker: Broker, settings: ConsoleSettings, audit: Audit) -> None:
        self._broker = broker
        self._settings = settings
        self._audit = audit
        self._key = b""
        self._known: OrderedDict[bytes, str] = OrderedDict()  # digests of Authorization headers that were valid
        self._verifier = Verifier(threads=1, max_waiting=_CHECKS_WAITING, max_cached=0, cached_s=1.0)
        self._throttle = Throttle(
            free=settings.login_free_failures,
            first_s=1.0,
            longest_s=settings.login_ban_max_s,
            max_sources=_SOURCES,
        )
        self._budget = AddressBudget(
            most=settings.login_address_failures, per_second=_ADDRESS_PER_S, max_sources=_SOURCES
        )

    def close(self) -> None:
        """Ends the thread that checks passwords."""
        self._verifier.close()

    # ---- every request ---------------------------------------------------------------------------------------------

    async def resolve(self, request: HTTPConnection) -> Principal | None:
        """Who asks; None if that is not known.

        Raises:
            ProblemError: the token is invalid, the host or origin is foreign, or the CSRF token is missing.
        """
        found = await self.identify(request)
        has_cookie = found is not None and found.via is Via.SESSION
        if found is not None and has_cookie and _changes(request) and not await self._carries_csrf(request, found):
            raise ProblemError(403, f"the request lacks the CSRF token of this login; expected {CSRF_HEADER}")
        return found

    async def identify(self, request: HTTPConnection) -> Principal | None:
        """Who asks, without a look at the body: the CSRF token may be missing.

        Raises:
            ProblemError: the token is invalid, or the host or origin is foreign.
        """
        self.check_host(request)
        if _changes(request):
            check_origin(request)
        else:
            check_site(request)
        address = address_of(request)
        scheme, _, text = request.headers.get("authorization", "").partition(" ")
        if scheme:
            if scheme.lower() != "bearer":
                raise ProblemError(
                    401, f"the scheme {scheme!r} of Authorization is unknown; expected Bearer", headers=ASK
                )
            by = await self._by_token(text.strip(), address)
            self._remember(request.headers["authorization"], by.name)
            return by
        if COOKIE in request.cookies:
            found = await self._by_cookie(request.cookies[COOKIE], address)
            if found is not None:
                return found
        return await self._local(request, address)

    def claimed(self, request: HTTPConnection) -> str:
        """Whose request it seems to be, by a signed cookie, a token that was valid before, or the address.

        It asks no server, and proves nothing.
        """
        login = cookies.read(request.cookies.get(COOKIE, ""), self._key) if self._key else None
        user = self._known.get(_digest(request.headers.get("authorization", ""))) if login is None else login.user
        return f"the address {source_of('', address_of(request))[1]}" if user is None else f"the user {user!r}"

    def check_host(self, request: HTTPConnection) -> None:
        """Refuses a request for another host: a stranger's page whose name leads here (DNS rebinding).

        Raises:
            ProblemError: it names one.
        """
        allowed = self._settings.hosts
        named = host_of(request.headers.get("host", ""))
        if allowed and named not in allowed:
            raise ProblemError(421, f"the host {named!r} is not served here; expected {', '.join(sorted(allowed))}")

    async def _carries_csrf(self, request: HTTPConnection, by: Principal) -> bool:
        given = request.headers.get(CSRF_HEADER)
        if given is None and isinstance(request, Request):
            kind = request.headers.get("content-type", "").partition(";")[0]
            if kind == "application/x-www-form-urlencoded":
                given = str((await request.form()).get("csrf", ""))
        return given is not None and cookies.same(given, by.csrf)

    def _remember(self, header: str, user: str) -> None:
        self._known[_digest(header)] = user
        self._known.move_to_end(_digest(header))
        if len(self._known) > tokens.MAX_TOKENS:
            self._known.popitem(last=False)

    async def _by_token(self, text: str, address: str) -> Principal:
        token = await tokens.find(self._broker, text)
        user = None if token is None else await self.user(token.user)
        if (
            token is None
            or user is None
            or not user.enabled
            or not cookies.same(token.credential, cookies.credential_of(user.password))
        ):
            raise ProblemError(401, "the token is unknown, revoked or expired", headers=ASK)
        return Principal(user.name, token.rights & rights_of(user.roles, self._settings), Via.TOKEN, address)

    async def _by_cookie(self, cookie: str, address: str) -> Principal | None:
        login = await self._login_of(cookie)
        if login is None or login.expires <= time.time():
            return None
        async with self._broker.client.pipeline(transaction=False) as pipe:
            pipe.hgetall(user_key(login.user))
            pipe.exists(ENDED + login.id)
            fields, has_ended = await pipe.execute()
        user = User.read(login.user, fields)
        if user is None or not user.enabled or has_ended:
            return None
        if not cookies.same(login.credential, cookies.credential_of(user.password)):
            return None
        csrf = cookies.csrf_of(login.id, self._key)
        rights = rights_of(user.roles, self._settings)
        return Principal(user.name, rights, Via.SESSION, address, csrf, login.id, login.expires)

    async def _login_of(self, cookie: str) -> Login | None:
        found = cookies.read(cookie, await self._signing_key())
        if found is None:  # another key by now?
            self._key = b""
            found = cookies.read(cookie, await self._signing_key())
        return found

    async def _local(self, request: HTTPConnection, address: str) -> Principal | None:
        if not self._settings.is_local or _is_forwarded(request) or await self.has_users():
            return None
        return Principal(LOCAL_USER, ALL_RIGHTS, Via.LOCAL, address)

    async def has_users(self) -> bool:
        """Whether there is a user or a rule."""
        async with self._broker.client.pipeline(transaction=False) as pipe:
            pipe.zcard(USERS)
            pipe.hvals(ROLES)
            users, rules = await pipe.execute()
        return bool(users) or any(rules)

    async def user(self, name: str) -> User | None:
        """A stored user."""
        return User.read(name, await self._broker.client.hgetall(user_key(name)))

    async def fingerprint(self, *parts: bytes) -> bytes:
        """Names texts to users who may not read them: without the signing key nobody can check a guess."""
        made = hmac.new(await self._signing_key(), b"fingerprint\0", "sha256")
        for part in parts:
            made.update(len(part).to_bytes(8))
            await run_in_threadpool(made.update, part)  # of 16 MiB, it takes others' time otherwise
        return made.digest()

    async def _signing_key(self) -> bytes:
        if not self._key:
            found = await self._broker.client.get(SIGNING_KEY)
            if found is None:
                await self._broker.write("SET", SIGNING_KEY, secrets.token_bytes(KEY_BYTES), "NX")
                found = await self._broker.client.get(SIGNING_KEY)
            self._key = bytes(found or b"")
            if len(self._key) < KEY_BYTES:
                self._key = b""
                raise redis.ResponseError(f"the key {SIGNING_KEY} holds no {KEY_BYTES} bytes: delete it")
        return self._key

    # ---- logging in and out ----------------------------------------------------------------------------------------

    async def log_in(self, request: Request, name: str, password: str) -> tuple[str, Principal]:
        """Checks a password, and returns the cookie of a new login, and who it is.

        Raises:
            ProblemError: a foreign origin, a wrong password, too many of them, or a user without a role of the console.
        """
        self.check_host(request)
        check_origin(request)
        address = address_of(request)
        source = source_of(name, address)
        self._key = b""  # another process, or the server after a loss of its data, may have another one
        try:
            await self._signing_key()
        except redis.ConnectionError:
            await self._broker.forget_idle()
        self._refuse_guesses(source)
        user = await self._checked(name, password, source)
        rights = rights_of(user.roles, self._settings)
        if not rights:
            roles = f"{self._settings.admin_role} or {self._settings.viewer_role}"
            raise ProblemError(403, f"the user {name!r} has neither role of the console; expected {roles}")
        key = await self._signing_key()
        expires = int(time.time() + self._settings.session_hours * 3600)
        login = Login(user.name, secrets.token_urlsafe(16), expires, cookies.credential_of(user.password))
        by = Principal(user.name, rights, Via.SESSION, address, cookies.csrf_of(login.id, key), login.id, login.expires)
        await self._audit.write(by, "login", user.name)
        return cookies.write(login, key), by

    async def log_out(self, by: Principal) -> None:
        """Ends a login before its time.

        Raises:
            ProblemError: the primary has moved meanwhile.
        """
        left = by.expires - int(time.time())
        if by.session and left > 0:
            moves = await self._broker.primary.settled()
            await self._audit.write(by, "logout", by.name)
            await self._broker.write("SET", ENDED + by.session, b"1", "EX", left)
            await self._broker.primary.confirm(moves)

    def _refuse_guesses(self, source: tuple[str, str]) -> None:
        wait_s = max(self._throttle.refused_for(source), self._budget.refused_for(source[1]))
        if wait_s > 0:
            after = {"Retry-After": str(int(wait_s) + 1)}
            raise ProblemError(429, f"too many wrong passwords; try again in {int(wait_s) + 1} s", headers=after)

    async def _checked(self, name: str, password: str, source: tuple[str, str]) -> User:
        raw = password.encode("utf-8", "surrogatepass")
        user = await self.user(name) if name else None
        stored = user.password if user is not None else ""
        try:
            is_right = len(raw) <= MAX_PASSWORD_BYTES and await self._verifier.matches(
                name, raw[: MAX_PASSWORD_BYTES + 1], stored, source=source[1]
            )
        except BusyError as error:
            raise ProblemError(503, "too many logins are being checked", headers={"Retry-After": "1"}) from error
        self._refuse_guesses(source)  # others failed in the meantime
        if not is_right or user is None or not user.enabled or not stored:
            self._throttle.failed(source)
            self._budget.failed(source[1])
            raise ProblemError(401, "user or password is wrong")
        self._throttle.succeeded(source)
        return user


ASK = {"WWW-Authenticate": 'Bearer realm="HoldMQ"'}


def check_right(by: Principal | None, right: Right) -> Principal:
    """Returns who asks if they have a right.

    Raises:
        ProblemError: the user is not known, or does not have the right.
    """
    if by is None:
        raise ProblemError(401, "log in first, or send a token (Authorization: Bearer)", headers=ASK)
    if not by.may(right):
        needed = " and ".join(right.words)
        raise ProblemError(403, f"{by.name} may not do this; expected the right {needed}, not {by.rights.words}")
    return by


def check_origin(request: HTTPConnection) -> None:
    """Refuses what a page of another origin sends.

    Raises:
        ProblemError: it was one.
    """
    origin = request.headers.get("origin")
    site = request.headers.get("sec-fetch-site")
    if origin is not None and _place_of(origin) != request.headers.get("host", "").lower():
        raise ProblemError(403, f"the request comes from a page of {origin}; expected one of this console")
    if site is not None and site not in ("same-origin", "none"):
        raise ProblemError(403, f"the request comes from another site ({site}); expected one of this console")


def _place_of(origin: str) -> str | None:
    """Host and port of an origin; None if the text is not an origin."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None


def check_site(request: HTTPConnection) -> None:
    """Refuses what a page of another site loads: it could not read the answer, but take what an answer costs.

    A link to a page of the console is no such request.

    Raises:
        ProblemError: it was one.
    """
    site = request.headers.get("sec-fetch-site", "none")
    if site not in ("same-origin", "none") and request.headers.get("sec-fetch-dest") != "document":
        raise ProblemError(403, f"the request comes from another site ({site}); expected one of this console")


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("latin-1", "backslashreplace")).digest()


def _is_forwarded(request: HTTPConnection) -> bool:
    return any(name in FORWARDED or name.startswith(FORWARDED_PREFIX) for name in request.headers)


def _changes(request: HTTPConnection) -> bool:
    return request.scope.get("method", "GET") not in SAFE


def address_of(request: HTTPConnection) -> str:
    """Where the request comes from."""
    return request.client.host if request.client is not None else ""


def host_of(header: str) -> str:
    """The name in a Host header, without the port and brackets."""
    name = header.strip().lower()
    if name.startswith("["):
        return name[1:].partition("]")[0]
    return name.partition(":")[0]
