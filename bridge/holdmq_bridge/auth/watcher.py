"""Keeps a copy of the stored roles, and reports changes of users and rules.

    channel ──► notice ──► is it the next version? ──► yes: only these users changed
                                                   └─► no: read everything; the change concerns everybody
    every few seconds, and after each reconnection: read and compare the version

Invariants
 1. A notice is only a hint: the rules in force were read from the server.
 2. The subscription to the channel is confirmed before the version is read: no change is missed.
 3. A change is reported once, when it is in force.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, TypeVar

import redis
from redis.asyncio import Redis

from holdmq_bridge.auth.records import (
    BLOCKED,
    CHANNEL,
    MAX_CHANGED,
    ROLES,
    USERS,
    VERSION,
    Announcement,
    Policy,
    RecordError,
    parse_change,
    read_version,
)
from holdmq_bridge.auth.verdict import Change
from holdmq_bridge.base.backoff import Backoff
from holdmq_bridge.base.logs import Log

T = TypeVar("T")

log = Log("auth")

_RETRY_FIRST_S = 0.05
_RETRY_MAX_S = 2.0
_MAX_NOTICES = 1000  # applied together
_CLOSE_STEP_S = 0.02
_TROUBLE = (redis.RedisError, OSError, RecordError)


class Watcher:
    """Follows the stored rules. All methods belong to one event loop.

    Args:
        client: returns the client of the server.
        on_change: called in the event loop. It must not block.
        poll_s: interval between two reads of the version.

    Attributes:
        policy: in force; None before the first read.
    """

    def __init__(self, client: Callable[[], Redis], on_change: Callable[[Change], None], poll_s: float) -> None:
        self.policy: Policy | None = None
        self._client: Callable[[], Any] = client
        self._on_change = on_change
        self._poll_s = poll_s
        self._reading = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._closing = False
        self._lost = False  # the server, which is logged
        self._may_be_cancelled = False
        self._backoff = Backoff(_RETRY_FIRST_S, _RETRY_MAX_S, random.uniform)

    def start(self) -> None:
        """Begins to follow changes. A lost server is retried with growing pauses."""
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Follows changes no more.

        redis-py loses some cancellations, and leaks connections that are being made. So the task is cancelled only
        where that is safe, again and again until it ends. The timeouts of the client bound everything else.
        """
        self._closing = True
        while self._task is not None and not self._task.done():
            if self._may_be_cancelled:
                self._task.cancel()
            await asyncio.wait([self._task], timeout=_CLOSE_STEP_S)

    async def _run(self) -> None:
        while not self._closing:
            try:
                async with self._client().pubsub() as pubsub:
                    await self._follow(pubsub)
            except _TROUBLE as error:
                self._lost = True
                pause = self._backoff.next()
                log.warning("changes of users and rules cannot be followed", error=error, again_in_s=round(pause, 3))
                await self._cancellable(asyncio.sleep(pause))
            except Exception as error:  # noqa: BLE001 (the task must go on, or bans would be missed)
                self._lost = True
                log.defect("defect while following changes of users and rules", error)
                await self._cancellable(asyncio.sleep(self._backoff.next()))

    async def _cancellable(self, waiting: Awaitable[T]) -> T:
        self._may_be_cancelled = True
        try:
            return await waiting
        finally:
            self._may_be_cancelled = False

    async def at(self, version: int) -> Policy:
        """The policy of this version, which the server has just named. Reads it again if another one is in force.

        Raises:
            RedisError, OSError, RecordError: it cannot be read.
        """
        async with self._reading:
            if self.policy is None or self.policy.version != version:
                await self._read_all()
            assert self.policy is not None
            return self.policy

    async def refresh(self) -> Policy:
        """Reads the version, and everything if the version has changed.

        Raises:
            RedisError, OSError, RecordError: it cannot be read.
        """
        return await self.at(read_version(await self._client().get(VERSION)))

    async def _follow(self, pubsub: Any) -> None:
        await pubsub.subscribe(CHANNEL)
        if await pubsub.get_message(timeout=self._poll_s) is None:
            raise TimeoutError(f"the subscription to {CHANNEL} was not confirmed in {self._poll_s:g} s")
        await self.refresh()
        self._backoff.reset()
        if self._lost:
            self._lost = False
            log.info("changes of users and rules are followed again")
        while not self._closing:
            notices: list[Announcement | None] = []
            message = await self._cancellable(pubsub.get_message(timeout=self._poll_s))
            while message is not None and len(notices) < _MAX_NOTICES:
                notices.append(_notice(message))
                message = await pubsub.get_message(timeout=0)
            await self._apply(notices)  # without notices: compares the version

    async def _apply(self, notices: list[Announcement | None]) -> None:
        async with self._reading:
            narrow = _joined(self.policy, notices) if notices else None
            if narrow is None:
                version = read_version(await self._client().get(VERSION))
                if self.policy is None or version != self.policy.version:
                    await self._read_all()
                return
            version, users = narrow
            if not users:
                return
            assert self.policy is not None
            before = self.policy
            self.policy = replace(before, version=version, users=await self._client().zcard(USERS))
            # The first user and the last one change the rights of anonymous clients.
            self._report(Change(version, users if before.users and self.policy.users else None))

    async def _read_all(self) -> None:
        async with self._client().pipeline(transaction=True) as pipe:
            pipe.get(VERSION).zcard(USERS).hgetall(ROLES).hkeys(BLOCKED)
            version, users, roles, blocked = await pipe.execute()
        before, self.policy = self.policy, Policy.read(version, users, roles, blocked)
        for error in self.policy.broken.values():
            log.error("a role is invalid: users with this role are refused", error=error)
        if before is not None and before != self.policy:
            self._report(Change(self.policy.version))

    def _report(self, change: Change) -> None:
        try:
            self._on_change(change)
        except Exception as error:  # noqa: BLE001 (a defect of the listener must not end this task)
            log.defect("defect while applying a change of users or rules", error)


def _notice(message: dict[str, Any]) -> Announcement | None:
    """Parses a notice. None for another message, such as the confirmation of a repeated subscription."""
    return parse_change(message["data"]) if message["type"] == "message" else None


def _joined(policy: Policy | None, notices: list[Announcement | None]) -> tuple[int, frozenset[str]] | None:
    """Version and users after these notices; None unless each follows the one before, from the policy in force."""
    if policy is None:
        return None
    version, users = policy.version, frozenset[str]()
    for notice in notices:
        if notice is None:
            return None
        if notice.version == version and not users:
            continue  # read before the notice arrived
        if notice.after != version or notice.users is None:
            return None
        version = notice.version
        users |= notice.users
    return None if len(users) > MAX_CHANGED else (version, users)
