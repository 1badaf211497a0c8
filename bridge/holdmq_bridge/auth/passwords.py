"""Passwords: argon2 hashes, checked without blocking the event loop, and not twice.

    matches() ──► cache ──► joins the same check if it is pending ──► fair queue ──► threads (argon2 releases the GIL)

Invariants
 1. No password is stored. The cache holds HMACs of user, password and stored hash, each with its length, under a key of
    this process. A changed hash is another entry.
 2. Only right passwords are cached. Cache and queue are bounded. When the queue is full, a check of the source with the
    most checks in it is refused. A check whose clients have all gone is not computed.
 3. An unknown user costs as much time as a wrong password, so that the time does not reveal which users exist.

Memory: a check needs as much as its hash says, by default 19 MiB. Hashes that ask for more than MAX_MEMORY_KIB are
refused when they are stored and when they are checked.
"""

import asyncio
import base64
import functools
import hashlib
import hmac
import os
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from argon2 import PasswordHasher, extract_parameters
from argon2.exceptions import InvalidHashError, VerificationError, VerifyMismatchError
from argon2.low_level import Type

from holdmq.errors import ArgumentError
from holdmq_bridge.auth.fair_queue import FairQueue

# OWASP's password storage cheat sheet, argon2id with little memory: many devices log in at the same time.
TIME_COST = 2
MEMORY_KIB = 19_456
PARALLELISM = 1
MAX_TIME_COST = 16
MAX_MEMORY_KIB = 262_144
MAX_PARALLELISM = 16
MAX_PASSWORD_BYTES = 65_535  # what CONNECT can carry
_SALT_BYTES = 16
_HASH_BYTES = 32
_NICENESS = 5  # of the threads that check passwords, above that of the process: a third of the weight

_hasher = PasswordHasher(time_cost=TIME_COST, memory_cost=MEMORY_KIB, parallelism=PARALLELISM)


class BusyError(Exception):
    """Too many requests are waiting. Nothing was done."""


class UnwantedError(Exception):
    """All clients that waited for the check had gone. Nothing was computed."""


class BadHashError(ValueError):
    """The stored hash is invalid, or asks for too much memory or time."""


def hash_password(password: bytes) -> str:
    """Hashes a password for storage. Takes some 30 ms.

    Raises:
        ArgumentError: it is empty, or longer than MQTT can carry.
    """
    if not 0 < len(password) <= MAX_PASSWORD_BYTES:
        raise ArgumentError(f"password of {len(password)} bytes; expected 1 to {MAX_PASSWORD_BYTES}")
    return _hasher.hash(password)


def check_hash(stored: str) -> None:
    """Checks that this is an argon2id hash whose check is affordable.

    Raises:
        BadHashError: it is not.
    """
    try:
        parameters = extract_parameters(stored)
    except (InvalidHashError, ValueError) as error:
        raise BadHashError("password hash; expected $argon2id$v=19$m=…,t=…,p=…$salt$hash") from error
    if parameters.type is not Type.ID or parameters.memory_cost > MAX_MEMORY_KIB:
        raise BadHashError(f"password hash; expected argon2id with at most {MAX_MEMORY_KIB} KiB")
    if parameters.time_cost > MAX_TIME_COST or parameters.parallelism > MAX_PARALLELISM:
        raise BadHashError(f"password hash; expected t up to {MAX_TIME_COST}, p up to {MAX_PARALLELISM}")


def _verify(stored: str, password: bytes) -> bool:
    check_hash(stored)
    try:
        return _hasher.verify(stored, password)
    except VerifyMismatchError:
        return False
    except (InvalidHashError, VerificationError) as error:
        raise BadHashError(f"password hash cannot be checked: {error}") from error


def _unmatchable_hash() -> str:
    """A well-formed hash of an unknown password."""
    salt, digest = (base64.b64encode(os.urandom(size)).rstrip(b"=").decode() for size in (_SALT_BYTES, _HASH_BYTES))
    return f"$argon2id$v=19$m={MEMORY_KIB},t={TIME_COST},p={PARALLELISM}${salt}${digest}"


def _yield_to_messages() -> None:
    """Lowers the priority of this thread alone: who guesses passwords takes no processor from messages."""
    thread = threading.get_native_id()
    os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + _NICENESS)


def _always() -> bool:
    return True


@dataclass(slots=True, eq=False)
class _Check:
    """A check that waits or runs; `still_wanted`: of all callers."""

    digest: bytes
    password: bytes
    stored: str
    answer: asyncio.Future[bool]
    still_wanted: list[Callable[[], bool]]

    def refuse(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)
            self.answer.exception()  # the caller may have gone meanwhile


class Verifier:
    """Checks passwords in threads of its own. All methods belong to one event loop.

    Args:
        threads: checks that run at the same time.
        max_waiting: most checks that run or wait. Further ones are refused.
        max_cached: most right passwords that are remembered.
        cached_s: how long they are remembered.
        clock: monotonic seconds.

    Attributes:
        checked: runs of argon2.
        cached: answers without a run.
    """

    def __init__(
        self,
        *,
        threads: int,
        max_waiting: int,
        max_cached: int,
        cached_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.checked = 0
        self.cached = 0
        self._max_waiting = max_waiting
        self._max_cached = max_cached
        self._cached_s = cached_s
        self._clock = clock
        self._threads = threads
        self._computing = 0
        self._closed = False
        self._queue: FairQueue[_Check] = FairQueue(max(1, max_waiting - threads))
        self._executor = ThreadPoolExecutor(threads, "holdmq-argon2", initializer=_yield_to_messages)
        self._key = secrets.token_bytes(32)
        self._right: OrderedDict[bytes, float] = OrderedDict()  # digest -> expiry; oldest first
        self._checks: dict[bytes, _Check] = {}
        self._unmatchable = _unmatchable_hash()

    async def matches(
        self,
        user: str,
        password: bytes,
        stored: str,
        *,
        source: str = "",
        known: bool = False,
        is_wanted: Callable[[], bool] = _always,
    ) -> bool:
        """Whether this is the user's password.

        Args:
            user: the name.
            password: as the client sent it.
            stored: the user's hash; empty without such a user or password. The answer is then no, after the same time.
            source: sources take turns while checks wait.
            known: the user has logged in from the source before. Its checks come first.
            is_wanted: whether the caller still needs the answer. Called at the turn of the check.

        Raises:
            BusyError: too many checks are waiting.
            UnwantedError: no caller needed the answer any more.
            BadHashError: the stored hash is invalid.
        """
        digest = self._digest(user.encode("utf-8", "surrogatepass"), password, stored.encode())
        if self._is_remembered(digest):
            self.cached += 1
            return True
        check = self._checks.get(digest)
        if check is None:
            answer = asyncio.get_running_loop().create_future()
            check = _Check(digest, password, stored or self._unmatchable, answer, [is_wanted])
            self._wait(check, source, known=known)
        else:
            check.still_wanted.append(is_wanted)
        # A caller that is cancelled does not cancel the check for other callers.
        try:
            return await asyncio.shield(check.answer)
        except asyncio.CancelledError:
            if check.answer.cancelled():
                raise BusyError("passwords are no longer checked") from None
            raise

    def close(self) -> None:
        """Ends the threads, and gives up waiting checks."""
        self._closed = True
        self._executor.shutdown(wait=False, cancel_futures=True)
        while (check := self._queue.pop()) is not None:
            check.answer.cancel()
        self._right.clear()

    def _wait(self, check: _Check, source: str, *, known: bool) -> None:
        displaced = self._queue.put(source, check, known=known)
        busy = BusyError(f"{self._max_waiting} password checks are waiting")
        if displaced is check:
            raise busy
        self._checks[check.digest] = check
        if displaced is not None:
            del self._checks[displaced.digest]
            displaced.refuse(busy)
        self._compute()

    def _compute(self) -> None:
        while self._computing < self._threads and (check := self._queue.pop()) is not None:
            if not any(is_wanted() for is_wanted in check.still_wanted):
                del self._checks[check.digest]
                check.refuse(UnwantedError("all clients that waited for the check of this password have gone"))
                continue
            self.checked += 1
            self._computing += 1
            computed = asyncio.get_running_loop().run_in_executor(self._executor, _verify, check.stored, check.password)
            computed.add_done_callback(functools.partial(self._computed, check))

    def _computed(self, check: _Check, outcome: asyncio.Future[bool]) -> None:
        self._computing -= 1
        del self._checks[check.digest]
        if outcome.cancelled():
            check.answer.cancel()
        elif (error := outcome.exception()) is not None:
            check.refuse(error if isinstance(error, Exception) else BadHashError(str(error)))
        else:
            if outcome.result():
                self._remember(check.digest)
            if not check.answer.done():
                check.answer.set_result(outcome.result())
        if not self._closed:
            self._compute()

    def _is_remembered(self, digest: bytes) -> bool:
        until = self._right.get(digest)
        if until is None:
            return False
        if until <= self._clock():
            del self._right[digest]
            return False
        self._right.move_to_end(digest)
        return True

    def _remember(self, digest: bytes) -> None:
        if not self._max_cached:
            return
        while len(self._right) >= self._max_cached:
            self._right.popitem(last=False)
        self._right[digest] = self._clock() + self._cached_s

    def _digest(self, *parts: bytes) -> bytes:
        mac = hmac.new(self._key, digestmod=hashlib.sha256)
        for part in parts:
            mac.update(len(part).to_bytes(4, "big"))
            mac.update(part)
        return mac.digest()
