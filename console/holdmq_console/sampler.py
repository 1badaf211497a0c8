"""The data of the overview: a point of the curves every few seconds, and a survey of the longest queues.

The survey walks over all sessions, a page at a time with pauses, while the overview is open: a million sessions take
about two minutes. Nothing here is stored anywhere else; a restart begins with no data.

Invariants
 1. A step of the server lists at most PAGE sessions; a cluster is walked node after node.
 2. At most POINTS points and KEPT queues are remembered.
"""

import asyncio
import contextlib
import heapq
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import redis

from holdmq import BridgeRow, SessionRow, commands
from holdmq.replies import quantile_ms
from holdmq_console.broker import MODULE, Broker
from holdmq_console.problems import EXPECTED

log = logging.getLogger("holdmq.console")

POINTS = 300
KEPT = 20
PAGE = 250
PAUSE_S = 0.03
WATCHED_S = 60.0
REST_S = 10.0
COMBINED: dict[str, Callable[[Iterable[int]], int]] = {
    "holdmq_queued_messages": sum,
    "holdmq_longest_queue_messages": max,
}
"""What the overview shows of a cluster: of all primaries. The other numbers are those of the first one."""


@dataclass(frozen=True, slots=True)
class Point:
    """What was measured at one time.

    Attributes:
        at: seconds since 1970.
        received_rate: messages per second from clients.
        sent_rate: messages per second to clients.
        clients: connected clients.
        queued: messages in all queues.
        memory: bytes that the server uses.
        answer_ms: how long the server took to answer the console.
        acknowledge_p50_ms: how long publishers waited for acknowledgements, the median; None if none was measured.
        acknowledge_p99_ms: the same, the 99th percentile.
    """

    at: float
    received_rate: float
    sent_rate: float
    clients: int
    queued: int
    memory: int
    answer_ms: float
    acknowledge_p50_ms: float | None
    acknowledge_p99_ms: float | None


@dataclass(slots=True)
class Survey:
    """The longest queues that a walk over all sessions has found so far."""

    sessions: int = 0
    connected: int = 0
    longest: list[tuple[int, str, SessionRow]] = field(default_factory=list)

    def take(self, row: SessionRow) -> None:
        """Counts a session."""
        self.sessions += 1
        self.connected += row.connected
        if not row.messages:
            return
        entry = (row.messages, row.key, row)
        if len(self.longest) < KEPT:
            heapq.heappush(self.longest, entry)
        elif entry > self.longest[0]:
            heapq.heapreplace(self.longest, entry)

    @property
    def rows(self) -> list[SessionRow]:
        """The longest first."""
        return [row for _, _, row in sorted(self.longest, reverse=True)]


class Sampler:
    """One for each process.

    Args:
        broker: the server.
        interval_s: between two points.

    Attributes:
        points: the curves, oldest first.
        bridges: as they reported last.
        info: the section `holdmq` of INFO, as of the last point.
        trouble: why there is no newer point; empty if there is no trouble.
        survey: the last complete one, or the first one under way.
        surveyed_at: when that was completed, in seconds since 1970; 0: never.
    """

    def __init__(self, broker: Broker, interval_s: float) -> None:
        self.points: deque[Point] = deque(maxlen=POINTS)
        self.bridges: list[BridgeRow] = []
        self.info: dict[str, Any] = {}
        self.trouble = ""
        self.survey = Survey()
        self.surveyed_at = 0.0
        self._broker = broker
        self._interval_s = interval_s
        self._watched = asyncio.Event()
        self._watched_until = 0.0
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begins to measure."""
        self._tasks = [asyncio.create_task(self._measure_always()), asyncio.create_task(self._survey_always())]

    async def stop(self) -> None:
        """Ends."""
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def watch(self) -> None:
        """The overview is open: the survey continues for a while."""
        self._watched_until = time.monotonic() + WATCHED_S
        self._watched.set()

    async def _measure_always(self) -> None:
        while True:
            try:
                self.points.append(await self.measure())
                self.trouble = ""
            except Exception as error:  # noqa: BLE001 (whatever it was, the curves continue once it is over)
                trouble = str(error) if isinstance(error, EXPECTED) else f"{type(error).__name__}: {error}"
                if not self.trouble:
                    log.warning("the server cannot be measured: %s", trouble)
                self.trouble = trouble
                if isinstance(error, redis.ConnectionError):
                    await self._broker.forget_idle()
            await asyncio.sleep(self._interval_s)

    async def measure(self) -> Point:
        """Asks the server and for the reports of the bridges."""
        begin = time.monotonic()
        nodes = await self._broker.primaries()
        sections = [await self._broker.info(one, MODULE) for one in nodes]
        answer_ms = (time.monotonic() - begin) * 1000 / len(nodes)
        self.info = {
            **sections[0],
            **{name: combine(int(one.get(name, 0)) for one in sections) for name, combine in COMBINED.items()},
        }
        memory = [await self._broker.info(one, "memory") for one in nodes]
        self.bridges = await self._broker.hold.bridges()
        below = [sum(counts) for counts in zip(*(bridge.acknowledge_below_ms for bridge in self.bridges), strict=False)]
        return Point(
            at=time.time(),
            received_rate=sum(bridge.publishes_received_rate for bridge in self.bridges),
            sent_rate=sum(bridge.messages_sent_rate for bridge in self.bridges),
            clients=sum(bridge.clients for bridge in self.bridges),
            queued=int(self.info.get("holdmq_queued_messages", 0)),
            memory=sum(int(one["used_memory"]) for one in memory),
            answer_ms=round(answer_ms, 3),
            acknowledge_p50_ms=quantile_ms(below, 0.5),
            acknowledge_p99_ms=quantile_ms(below, 0.99),
        )

    async def _survey_always(self) -> None:
        while True:
            await self._watched.wait()
            try:
                await self._walk()
            except Exception as error:  # noqa: BLE001 (the next one may succeed)
                log.info("the survey of the queues was interrupted: %s: %s", type(error).__name__, error)
            await asyncio.sleep(REST_S)

    async def _walk(self) -> None:
        """Looks at all sessions once; waits while the overview is not open."""
        survey = Survey()
        if not self.surveyed_at:
            self.survey = survey
        place: str | None = None
        while True:
            if time.monotonic() > self._watched_until:
                self._watched.clear()
                await self._watched.wait()
            page, place = await self._broker.page(place, lambda at: commands.session_list(cursor=at, count=PAGE))
            for row in page.sessions:
                survey.take(row)
            if place is None:
                self.survey, self.surveyed_at = survey, time.time()
                return
            await asyncio.sleep(PAUSE_S)
