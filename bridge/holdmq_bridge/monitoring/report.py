"""Reports about this process and its clients, every few seconds, and answers to questions of administrators.

    {holdmq:bridges}:names               sorted set, processes by the time of their last report
    {holdmq:bridges}:<process>           hash, its report; expires after three intervals
    {holdmq:bridges}:<process>:asked     list, questions to it, as JSON; the client that asks sets an expiry
    {holdmq:bridges}:answer:<token>      list, the answer; expires after ANSWER_S

The connection is separate, so that nothing here delays a publish or its acknowledgement.

Invariants
    1. A report has a bounded size, for any number of clients: sums, and the loudest clients.
    2. A step of the event loop visits at most PLACES places of the engine's table, and describes at most ROWS clients.
    3. The answer to a request is written only to a key for answers.
"""

import asyncio
import contextlib
import fnmatch
import json
import os
import random
import socket
import time
from typing import TYPE_CHECKING, Any

import redis

from holdmq.core.engine import Loudest, Traffic
from holdmq.password import without_password
from holdmq_bridge.base.backoff import Backoff
from holdmq_bridge.base.logs import Log, readable
from holdmq_bridge.base.reasons import Ending, Reason
from holdmq_bridge.base.version import installed_version
from holdmq_bridge.broker.bridge import Bridge
from holdmq_bridge.process.settings import Settings

if TYPE_CHECKING:
    from holdmq_bridge.broker.client import Client

log = Log("report")

PREFIX = "{holdmq:bridges}:"
NAMES = PREFIX + "names"
ANSWER = PREFIX + "answer:"
ANSWER_S = 30
INTERVALS = 3
PLACES = 5000
ROWS = 200
_WAIT_S = 1.0  # for a question; less than the timeout of the connection
_CLOSE_STEP_S = 0.1
_RETRY_FIRST_S, _RETRY_MAX_S = 0.1, 5.0
_COUNTED = ("publishes_received", "messages_sent", "bytes_received", "bytes_sent")


class Reporter:
    """One for each process.  `start` it inside the event loop, and `stop` it in the end.

    Args:
        bridge: of the process.
        interval_s: between two reports.
    """

    def __init__(self, bridge: Bridge, interval_s: float) -> None:
        self._bridge = bridge
        self._interval_s = interval_s
        self._expires_s = max(1, round(interval_s * INTERVALS))
        self._key = PREFIX + bridge.process.name
        self._client: Any = bridge.servers.client(NAMES.encode())
        self._task: asyncio.Task[None] | None = None
        self._leaving: asyncio.Task[None] | None = None
        self._closing = False
        self._backoff = Backoff(_RETRY_FIRST_S, _RETRY_MAX_S, random.uniform)
        self._trouble_is_logged = False
        self._counted: dict[str, int] = {}
        self._acknowledged: tuple[int, ...] = ()
        self._measured_at = time.monotonic()
        self._seconds = interval_s  # between the last two measurements

    def start(self) -> None:
        """Begins to report, and to answer."""
        self._task = asyncio.create_task(self._run())
        self._bridge.at_moved(NAMES.encode(), self._leave)

    def _leave(self) -> None:
        """Reports to the new primary at once: the old one accepts writes for ten seconds more, and loses them."""
        self._leaving = asyncio.create_task(self._client.connection_pool.disconnect())

    async def stop(self) -> None:
        """Reports no more, and deletes the report.  Cancels until the task ends: redis-py loses some cancellations."""
        self._closing = True
        while self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task], timeout=_CLOSE_STEP_S)
        if self._leaving is not None:
            await asyncio.wait([self._leaving])
        if self._bridge.servers.any_up:
            with contextlib.suppress(redis.RedisError, OSError, TimeoutError):
                async with asyncio.timeout(_WAIT_S):
                    await self._client.delete(self._key, f"{self._key}:asked")
                    await self._client.zrem(NAMES, self._bridge.process.name)
        await self._client.aclose()

    async def _run(self) -> None:
        while not self._closing:
            try:
                await self._serve()
            except (redis.RedisError, OSError) as error:
                pause = self._backoff.next()
                if not self._trouble_is_logged:
                    log.warning("reports cannot be written", error=error)
                self._trouble_is_logged = True
                self._bridge.servers.look()  # another node may have the slot
                await asyncio.sleep(pause)

    async def _serve(self) -> None:
        due = time.monotonic() + self._interval_s
        while not self._closing:
            if time.monotonic() >= due:
                due = time.monotonic() + self._interval_s
                await self._report()
                self._backoff = Backoff(_RETRY_FIRST_S, _RETRY_MAX_S, random.uniform)
                self._trouble_is_logged = False
            wait_s = min(max(due - time.monotonic(), 0.01), _WAIT_S)
            found = await self._client.blpop([f"{self._key}:asked"], timeout=wait_s)
            if found is not None:
                await self._answer(found[1])

    # ---- the report ------------------------------------------------------------------------------------------------

    async def _report(self) -> None:
        loudest = await self._measure()
        counted = self._bridge.counted()
        numbers = {name: int(counted[name]) for name in _COUNTED}
        rates = {
            f"{name}_rate": round((number - self._counted.get(name, number)) / self._seconds, 1)
            for name, number in numbers.items()
        }
        self._counted = numbers
        below = self._bridge.process.engine.counters()["acknowledge_below_ms"]
        assert isinstance(below, tuple)
        before, self._acknowledged = self._acknowledged or below, below
        fields = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "version": installed_version(),
            "started": round(self._bridge.process.started_at, 3),
            "interval": self._interval_s,
            "clients": len(self._bridge.clients),
            "draining": int(self._bridge.process.is_draining),
            **numbers,
            **rates,
            "acknowledge_below_ms": json.dumps([now - old for now, old in zip(below, before, strict=True)]),
            "loudest": json.dumps(loudest),
        }
        pipe = self._client.pipeline(transaction=False)
        pipe.hset(self._key, mapping=fields)
        pipe.expire(self._key, self._expires_s)
        now = int(time.time())
        pipe.zadd(NAMES, {self._bridge.process.name: now})
        pipe.zremrangebyscore(NAMES, "-inf", now - max(60, self._expires_s))
        pipe.expire(NAMES, max(60, self._expires_s))
        await pipe.execute()

    async def _measure(self) -> list[dict[str, Any]]:
        """Measures all connections, some at a time.  Returns the loudest."""
        loudest = Loudest()
        now = time.monotonic()
        self._seconds, self._measured_at = max(now - self._measured_at, 0.001), now
        place = self._bridge.process.engine.measure(0, PLACES, loudest)
        while place:
            await asyncio.sleep(0)
            place = self._bridge.process.engine.measure(place, PLACES, loudest)
        return [row for row in map(self._row, loudest.all()) if row is not None]

    def _row(self, traffic: Traffic) -> dict[str, Any] | None:
        """Describes a client; None if it has gone."""
        client = self._bridge.client_of(traffic.conn)
        if client is None:
            return None
        terms, identity = client.session.terms, client.identity
        return {
            "client_id": readable(client.client_id),
            "bridge": self._bridge.process.name,
            "user": None if identity is None or identity.username is None else readable(identity.username),
            "address": client.peer,
            "version": None if terms is None else terms.version,
            "received": traffic.received,
            "bytes_received": traffic.bytes_received,
            "received_rate": round(traffic.received_lately / self._seconds, 1),
            "sent": traffic.sent,
            "bytes_sent": traffic.bytes_sent,
            "sent_rate": round(traffic.sent_lately / self._seconds, 1),
            "inflight": traffic.inflight,
            "ready": traffic.ready,
        }

    # ---- questions -------------------------------------------------------------------------------------------------

    async def _answer(self, question_json: bytes) -> None:
        try:
            question = json.loads(question_json)
            key = _answer_key(question["answer"])
            answer = self._answer_to(question["ask"], question)
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
            log.warning("a malformed request was ignored", error=repr(error))
            return
        pipe = self._client.pipeline(transaction=False)
        pipe.rpush(key, json.dumps(answer))
        pipe.expire(key, ANSWER_S)
        await pipe.execute()

    def _answer_to(self, what: str, question: dict[str, Any]) -> dict[str, Any]:
        if what == "clients":
            return self._clients(int(question.get("from", 0)), str(question.get("search", "")))
        if what == "kick":
            return {"kicked": self._kick(str(question["inbox"]).encode(), str(question.get("why", "")))}
        if what == "drain":
            return {"clients": self._bridge.drain.begin()}
        if what == "settings":
            return {"settings": settings_of(self._bridge.process.settings)}
        raise ValueError(f"ask is {what!r}; expected clients, drain, kick or settings")

    def _clients(self, start: int, search: str) -> dict[str, Any]:
        following, found = self._bridge.process.engine.traffic(max(0, start), ROWS)
        rows = [row for row in map(self._row, found) if row is not None]
        if search:
            rows = [row for row in rows if fnmatch.fnmatchcase(row["client_id"], search)]
        return {"next": following, "clients": rows}

    def _kick(self, inbox: bytes, why: str) -> bool:
        traffic = self._bridge.process.engine.traffic_of(inbox)
        client: Client | None = None if traffic is None else self._bridge.client_of(traffic.conn)
        if client is None:
            return False
        log.info("a client is disconnected by an administrator", client=client.client_id, why=why)
        client.end(Ending.KICKED, why, Reason.ADMINISTRATIVE)
        return True


def settings_of(settings: Settings) -> dict[str, Any]:
    """The settings in effect, without passwords."""
    shown: dict[str, Any] = settings.model_dump(mode="json")
    return {**shown, "redis": without_password(settings.redis)}


def _answer_key(key: object) -> str:
    if not isinstance(key, str) or not key.startswith(ANSWER):
        raise ValueError(f"the answer would go to {key!r}; expected {ANSWER}<token>")
    return key
