"""Finds the primary of a service by its Sentinels: asks them before each connection, and follows them meanwhile.

    every Sentinel ── +selected-slave ──────────────────► in doubt: replies and commands are held
                   ── +promoted-slave, +switch-master ──► the primary has moved: leave the old one at once
                   ── -failover-abort-* ────────────────► no longer in doubt

A Sentinel announces the selected replica about a tenth of a second before it promotes it.  After the promotion the old
primary still accepts writes, for ten seconds or more, and loses them when it becomes a replica.

Invariants
 1. Every Sentinel that any other one knows is followed: those in the URL may die.
 2. A doubt ends by a promotion, by an abort, or after _DOUBT_S, when the Sentinels are asked again.
 3. If Sentinels disagree, the later configuration epoch is right.
"""

import asyncio
import contextlib
import random
from collections import Counter
from typing import Any, Protocol

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from holdmq_bridge.base.backoff import Backoff
from holdmq_bridge.base.logs import Log

Address = tuple[str, int]

_ANSWER_S = 1.0  # for one question to one Sentinel
_DOUBT_S = 10.0
_LISTED_EVERY_S = 10.0  # a query for other Sentinels
_RETRY_FIRST_S = 0.1
_RETRY_MAX_S = 2.0
_PROMOTED_S = 30.0  # how long an announced promotion overrides the Sentinels' answers

log = Log("sentinels")


class PrimaryListener(Protocol):
    """Who hears of failovers.  All are called in the event loop, none may block."""

    def primary_in_doubt(self, *, doubt: bool) -> None:
        """A replica is about to be promoted; or it is not, after all."""

    def primary_moved(self, address: Address) -> None:
        """This server is the primary now."""


class Sentinels:
    """Follows one service.

    Args:
        addresses: of the Sentinels in the URL.
        service: the name by which they know the primary.
        listener: hears of failovers.
    """

    def __init__(self, addresses: tuple[Address, ...], service: str, listener: PrimaryListener) -> None:
        self._service = service
        self._listener = listener
        self._known = dict.fromkeys(addresses)
        self._followers: dict[Address, asyncio.Task[None]] = {}
        self._task: asyncio.Task[None] | None = None
        self._doubt: asyncio.TimerHandle | None = None
        self._promoted: tuple[Address, float] | None = None  # and until when it counts

    # ---- life ------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begins to follow the Sentinels.  Call it inside the event loop."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Follows the Sentinels no more."""
        self._set_doubt(doubt=False)
        tasks = [*self._followers.values(), *([self._task] if self._task is not None else [])]
        self._followers.clear()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _run(self) -> None:
        while True:
            for address in await self._other_sentinels():
                self._known.setdefault(address)
            for address in self._known:
                if address not in self._followers:
                    self._followers[address] = asyncio.create_task(self._follow(address))
            await asyncio.sleep(_LISTED_EVERY_S)

    # ---- queries ---------------------------------------------------------------------------------------------------

    async def primary(self) -> Address:
        """The address of the primary.

        Raises:
            OSError: no Sentinel knows.
        """
        if self._promoted is not None:
            address, until = self._promoted
            if asyncio.get_running_loop().time() < until:
                return address
        states = [state for state in await self._query_all("MASTER") if isinstance(state, dict)]
        if not states:
            raise OSError(f"none of {len(self._known)} Sentinels knows the service {self._service}")
        latest = max(_number(state, "config-epoch") for state in states)
        votes = Counter(
            (str(state["ip"]), _number(state, "port")) for state in states if _number(state, "config-epoch") == latest
        )
        return votes.most_common(1)[0][0]

    def refused(self, address: Address) -> None:
        """The server at this address is no primary: forgets an announcement of it."""
        if self._promoted is not None and self._promoted[0] == address:
            self._promoted = None

    async def _other_sentinels(self) -> set[Address]:
        found: set[Address] = set()
        for others in await self._query_all("SENTINELS"):
            for state in others or []:
                with contextlib.suppress(KeyError, ValueError):
                    found.add((str(state["ip"]), int(state["port"])))
        return found

    async def _query_all(self, question: str) -> list[Any]:
        return list(await asyncio.gather(*(self._query(address, question) for address in self._known)))

    async def _query(self, address: Address, question: str) -> Any:
        """The answer, decoded; None if there is none."""
        try:
            async with asyncio.timeout(_ANSWER_S), self._client(address) as client:
                answer = await client.execute_command(f"SENTINEL {question}", self._service)
        except (RedisError, OSError, TimeoutError) as error:
            log.debug("a Sentinel did not answer", sentinel=shown_address(address), question=question, error=error)
            return None
        return answer

    def _client(self, address: Address) -> Redis:
        host, port = address
        return Redis(
            host=host,
            port=port,
            decode_responses=True,
            socket_connect_timeout=_ANSWER_S,
            retry=Retry(NoBackoff(), 0),
        )

    # ---- following -------------------------------------------------------------------------------------------------

    async def _follow(self, address: Address) -> None:
        backoff = Backoff(_RETRY_FIRST_S, _RETRY_MAX_S, random.uniform)
        lost = False
        while True:
            try:
                async with self._client(address) as client, client.pubsub() as pubsub:
                    await pubsub.psubscribe("*failover-abort-*", "+selected-slave", "+promoted-slave", "+switch-master")
                    async for message in pubsub.listen():
                        if message["type"] != "pmessage":
                            if lost:
                                log.info("a Sentinel is followed again", sentinel=shown_address(address))
                            lost = False
                            backoff.reset()
                            continue
                        self._on_message(str(message["channel"]), str(message["data"]).split())
            except (RedisError, OSError) as error:
                if not lost:
                    log.warning("a Sentinel cannot be followed", sentinel=shown_address(address), error=error)
                lost = True
            await asyncio.sleep(backoff.next())

    def _on_message(self, event: str, words: list[str]) -> None:
        if event == "+switch-master":
            if len(words) == 5 and words[0] == self._service:
                self._on_promotion((words[3], int(words[4])))
            return
        if self._service not in words:
            return
        if event == "+selected-slave":
            self._set_doubt(doubt=True)
        elif event == "+promoted-slave" and len(words) >= 4:
            self._on_promotion((words[2], int(words[3])))
        elif "failover-abort" in event:
            self._set_doubt(doubt=False)

    def _on_promotion(self, address: Address) -> None:
        known = self._promoted is not None and self._promoted[0] == address
        self._promoted = address, asyncio.get_running_loop().time() + _PROMOTED_S
        self._listener.primary_moved(address)
        self._set_doubt(doubt=False)
        if not known:
            log.info("the primary has moved", service=self._service, primary=shown_address(address))

    def _set_doubt(self, *, doubt: bool) -> None:
        if self._doubt is not None:
            self._doubt.cancel()
        elif not doubt:
            return
        self._doubt = None
        if doubt:
            self._doubt = asyncio.get_running_loop().call_later(_DOUBT_S, self._doubt_is_over)
        self._listener.primary_in_doubt(doubt=doubt)

    def _doubt_is_over(self) -> None:
        log.warning("a failover was announced and neither ended nor aborted", service=self._service, seconds=_DOUBT_S)
        self._set_doubt(doubt=False)


def _number(state: dict[str, Any], name: str) -> int:
    return int(state.get(name) or 0)


def shown_address(address: Address | None) -> str:
    """An address for the logs."""
    return "unknown" if address is None else f"{address[0]}:{address[1]}"
