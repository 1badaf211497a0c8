"""Reads users for logins, many in one round trip. Requests during a batch go with the next batch.

Invariants
 1. An answer is read after its request: a login sees every edit that was finished before it.
 2. The version is read first in the same batch: if it is that of the known roles, the user is no older.
 3. At most `limit` names wait. One batch of at most BATCH is pending, on one connection.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import redis
from redis.asyncio import Redis

from holdmq_bridge.auth.passwords import BusyError
from holdmq_bridge.auth.records import VERSION, RecordError, User, read_version, user_key

BATCH = 256


@dataclass(frozen=True, slots=True)
class Found:
    """The version, and the user or the reason why its record cannot be read."""

    version: int
    user: User | None
    broken: str = ""


class Lookups:
    """Reads users in batches. All methods belong to one event loop.

    Args:
        client: returns the client of the server, whose replies are bytes.
        limit: most names that wait.
    """

    def __init__(self, client: Callable[[], Redis], limit: int) -> None:
        self._client = client
        self._limit = limit
        self._waiting: dict[str | None, asyncio.Future[Found]] = {}
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    async def find(self, name: str | None) -> Found:
        """Reads a user and the version. With None, reads the version alone.

        Raises:
            BusyError: too many names are waiting.
            RedisError, OSError: the server did not answer.
            RecordError: the stored version is not a number.
        """
        if self._closed:
            raise redis.ConnectionError("the authenticator was stopped")
        answer = self._waiting.get(name)
        if answer is None:
            if len(self._waiting) >= self._limit:
                raise BusyError(f"too many logins wait for the lookup of their user (maximum {self._limit})")
            answer = self._waiting[name] = asyncio.get_running_loop().create_future()
            if self._task is None:
                self._task = asyncio.create_task(self._run())
        return await asyncio.shield(answer)  # other logins may wait for the same answer

    async def close(self) -> None:
        """Fails all waiting requests. Waits for the pending batch, which the timeouts of the client bound."""
        self._closed = True
        self._fail_waiting()
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        while self._waiting:
            await self._answer({name: self._waiting.pop(name) for name in list(self._waiting)[:BATCH]})
        self._task = None

    def _fail_waiting(self) -> None:
        for answer in self._waiting.values():
            _fail(answer, redis.ConnectionError("the authenticator was stopped"))
        self._waiting.clear()

    async def _answer(self, batch: dict[str | None, asyncio.Future[Found]]) -> None:
        try:
            replies = await self._read([name for name in batch if name is not None])
            version = read_version(replies[0])
        except Exception as error:  # noqa: BLE001 (it goes to every caller)
            for answer in batch.values():
                _fail(answer, error)
            return
        users = iter(replies[1:])
        for name, answer in batch.items():
            found = Found(version, None) if name is None else _found(version, name, next(users))
            if not answer.done():
                answer.set_result(found)

    async def _read(self, names: list[str]) -> list[Any]:
        async with self._client().pipeline(transaction=False) as pipe:
            pipe.get(VERSION)
            for name in names:
                pipe.hgetall(user_key(name))
            replies: list[Any] = await pipe.execute(raise_on_error=False)
        if isinstance(replies[0], Exception):
            raise replies[0]
        return replies


def _found(version: int, name: str, reply: Any) -> Found:
    if isinstance(reply, Exception):  # a key of another type
        return Found(version, None, f"user {name!r}: {reply}")
    try:
        return Found(version, User.read(name, reply))
    except RecordError as error:
        return Found(version, None, str(error))


def _fail(answer: asyncio.Future[Found], error: Exception) -> None:
    if not answer.done():
        answer.set_exception(error)
        answer.exception()  # the caller may have gone meanwhile
