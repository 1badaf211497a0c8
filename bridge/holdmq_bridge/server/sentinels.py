"""Finds the primary of a service by its Sentinels: asks them before each connection, and follows them in between.

    every Sentinel ── +selected-slave ──────────────────► in doubt: replies and commands are held
                   ── +promoted-slave, +switch-master ──► the primary has moved: leave the old one at once
                   ── -failover-abort-* ────────────────► no longer in doubt

A Sentinel announces the selected replica about a tenth of a second before it promotes it.  After the promotion the old
primary still accepts writes, for ten seconds or more, and loses them when it becomes a replica.

Invariants
 1. Every Sentinel that any other one knows is followed: those in the URL may die.  At most MAX_SENTINELS are known.
    One that is gone and that nobody lists any more is forgotten, unless the URL names it.
    One that does not watch the service is not followed: it would announce nothing.  It is tried again and again.
 2. A doubt ends by a promotion, by an abort, or after _DOUBT_S as soon as no Sentinel says that the failover is under
    way.  While one does, the replica may still be promoted: it, or the Sentinel, stood still.  So the doubt lasts until
    the Sentinel gives up (failover-timeout), at most _LONGEST_DOUBT_S.
    It begins by an announcement, or when a Sentinel that is asked says that a failover is under way: it may have
    announced it before it was followed.
 3. If Sentinels disagree, the later configuration epoch is right.  An earlier one counts if it names the same primary,
    or if all Sentinels that are known answer and have named another one for _AGREED_S: they monitor the service anew.
 4. A silent Sentinel is sent a PING every _QUIET_S.  Without an answer the connection is made again: a network that
    drops connections silently must not hide a failover.
 5. When a Sentinel is heard again, and every _LISTED_EVERY_S, all are asked where the primary is.  A failover that none
    of them could announce is noticed by its later epoch.
"""

import asyncio
import contextlib
import random
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from holdmq.address import Address, shown_address
from holdmq.sentinels import (
    MAX_SENTINELS,
    ODD,
    OddAnswerError,
    UnknownServiceError,
    View,
    address_of,
    async_answered,
    latest,
    nobody_text,
    question,
)
from holdmq_bridge.base.backoff import Backoff
from holdmq_bridge.base.logs import Log

_ANSWER_S = 1.0  # for all that is asked of one Sentinel at a time
_DOUBT_S = 10.0
_LONGEST_DOUBT_S = 180.0  # as failover-timeout of Sentinels is by default
_DOUBTED_AGAIN_S = 1.0  # between two questions to the Sentinels after _DOUBT_S
_LISTED_EVERY_S = 10.0  # which Sentinels there are, and where the primary is
_QUIET_S = 3.0  # without a word from a Sentinel; then it is sent a PING and has as long to answer
_RETRY_FIRST_S = 0.1
_RETRY_MAX_S = 2.0
_REASONS_LOGGED = 8  # of one Sentinel, until it is followed again
_CANCEL_EVERY_S = 1.0  # redis-py may take a cancellation for an error of the connection
_PROMOTED_S = 30.0  # how long an announced promotion overrides the Sentinels' answers
_AGREED_S = 20.0  # after which another primary counts that all Sentinels name without a later epoch

log = Log("sentinels")


class PrimaryListener(Protocol):
    """Who hears of failovers.  All are called in the event loop, none may block."""

    def primary_in_doubt(self, *, doubt: bool) -> None:
        """Says whether a replica is about to be promoted."""

    def primary_moved(self, address: Address) -> None:
        """This server is the primary now."""


class Sentinels:
    """Follows one service.

    Args:
        addresses: of the Sentinels in the URL.
        service: the name by which they know the primary.
        listener: hears of failovers.
        options: of clients of Sentinels: username, password, ssl.
    """

    def __init__(
        self,
        addresses: tuple[Address, ...],
        service: str,
        listener: PrimaryListener,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self._options = dict(options or {})
        self._service = service
        self._listener = listener
        self._in_url = frozenset(addresses)
        self._known = dict.fromkeys(addresses)
        self._followers: dict[Address, asyncio.Task[None]] = {}
        self._followed = set[Address]()
        self._unaware: dict[Address, UnknownServiceError] = {}  # who did not know the service when last asked
        self._task: asyncio.Task[None] | None = None
        self._doubt: asyncio.Task[None] | None = None
        self._promoted: tuple[Address, float] | None = None  # and until when this counts
        self._told: Address | None = None  # the primary, as last announced
        self._epoch = 0  # of the configuration that the Sentinels named last
        self._agreed: tuple[Address, float] | None = None  # another primary that all of them name, and since when
        self._look_now = asyncio.Event()
        self._doubts_ended = 0
        self._is_given_up = False  # a failover that is under way still, after the longest doubt

    # ---- life ------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begins to follow the Sentinels.  Call it inside the event loop."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Follows the Sentinels no more."""
        self._set_doubt(doubt=False)
        tasks = {*self._followers.values(), *([self._task] if self._task is not None else [])}
        self._followers.clear()
        while tasks:
            for task in tasks:
                task.cancel()
            _, tasks = await asyncio.wait(tasks, timeout=_CANCEL_EVERY_S)

    async def _run(self) -> None:
        while True:
            self._look_now.clear()
            ended = self._doubts_ended
            views = await self._ask_all()
            self._get_to_know(views)
            for address, task in tuple(self._followers.items()):
                if task.done():
                    del self._followers[address]
            for address in self._known:
                if address not in self._followers:
                    self._followers[address] = asyncio.create_task(self._follow(address))
            self._look(views, is_current=ended == self._doubts_ended)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._look_now.wait(), _LISTED_EVERY_S)

    def known(self) -> set[Address]:
        """All Sentinels that are asked and followed, or tried."""
        return set(self._known)

    def followed(self) -> set[Address]:
        """Those that announce failovers of the service now."""
        return set(self._followed)

    # ---- queries ---------------------------------------------------------------------------------------------------

    async def primary(self) -> Address:
        """The address of the primary.

        Raises:
            OSError: no Sentinel knows.
        """
        announced = self._announced()
        if announced is not None:
            return announced
        ended = self._doubts_ended
        views = await self._ask_all()
        found = latest(_of(views))
        if found is None:
            raise OSError(nobody_text(self._service, views.items()))
        if ended == self._doubts_ended:  # else these answers are older than the end
            self._note_failover(_of(views))
        epoch, address = found
        if self._doubt is not None and 0 < self._epoch < epoch:  # it ended before its Sentinel was followed
            self._on_promotion(address)
        self._epoch, self._told = epoch, address
        return address

    def _announced(self) -> Address | None:
        """The address that was announced, as long as that counts more than what Sentinels answer."""
        if self._promoted is None or asyncio.get_running_loop().time() >= self._promoted[1]:
            return None
        return self._promoted[0]

    def _note_failover(self, views: Iterable[View]) -> None:
        """Doubts the primary if a Sentinel says that a failover is under way."""
        if not any(view.is_failing_over for view in views):
            self._is_given_up = False
        elif self._doubt is None and not self._is_given_up and self._announced() is None:
            self._set_doubt(doubt=True)

    def _look(self, views: Mapping[Address, View | Exception], *, is_current: bool) -> None:
        """Leaves a primary that was replaced while no Sentinel was heard.

        Args:
            views: the answers.
            is_current: no doubt has ended since they were asked.
        """
        found = latest(_of(views))
        if found is None:
            return
        if is_current:
            self._note_failover(_of(views))
        if self._told is None or self._announced():
            return
        epoch, address = found
        if address == self._told:
            self._epoch, self._agreed = epoch, None
        elif epoch > self._epoch or self._is_agreed(views, address):
            self._epoch, self._agreed = epoch, None
            self._on_promotion(address)

    def _is_agreed(self, views: Mapping[Address, View | Exception], address: Address) -> bool:
        """Whether all Sentinels name this other primary, and have done so for _AGREED_S: they monitor it anew."""
        if not all(isinstance(view, View) and view.address == address for view in views.values()):
            self._agreed = None
            return False
        now = asyncio.get_running_loop().time()
        if self._agreed is None or self._agreed[0] != address:
            self._agreed = address, now
        return now >= self._agreed[1] + _AGREED_S

    def refused(self, address: Address) -> None:
        """The server at this address is no primary: forgets an announcement of it."""
        if self._promoted is not None and self._promoted[0] == address:
            self._promoted = None

    def _get_to_know(self, views: Mapping[Address, View | Exception]) -> None:
        """Gets to know the Sentinels that others list, and forgets those that are gone."""
        answering = {asked for asked, view in views.items() if isinstance(view, View)}
        found = {other for view in _of(views) for other in view.others}
        if answering:  # else nobody has said who is there
            for address in self._known.keys() - self._in_url - found - answering - self._followed:
                del self._known[address]  # its follower ends by itself
                log.info("a Sentinel is gone", sentinel=shown_address(address))
        for address in found:
            if len(self._known) < MAX_SENTINELS:
                self._known.setdefault(address)

    async def _ask_all(self) -> dict[Address, View | Exception]:
        known = tuple(self._known)
        return dict(zip(known, await asyncio.gather(*map(self._ask, known)), strict=True))

    async def _ask(self, address: Address) -> View | Exception:
        """What it knows, or why it does not say.  Its follower is told if it does not watch the service."""
        view: View | Exception
        try:
            async with asyncio.timeout(_ANSWER_S), self._client(address) as client:
                view = await async_answered(question(self._service), client.execute_command)
        except TimeoutError:
            view = TimeoutError(f"no answer within {_ANSWER_S:g} s")
        except (RedisError, OSError) as error:
            view = error
        except ODD as error:
            view = OddAnswerError(error)
        if isinstance(view, UnknownServiceError):
            self._unaware[address] = view
        else:
            self._unaware.pop(address, None)
        if isinstance(view, Exception):
            log.debug("a Sentinel did not answer", sentinel=shown_address(address), error=view)
        return view

    def _client(self, address: Address) -> Redis:
        host, port = address
        return Redis(
            host=host,
            port=port,
            decode_responses=True,
            **self._options,
            socket_connect_timeout=_ANSWER_S,
            retry=Retry(NoBackoff(), 0),
        )

    # ---- following -------------------------------------------------------------------------------------------------

    async def _follow(self, address: Address) -> None:
        backoff = Backoff(_RETRY_FIRST_S, _RETRY_MAX_S, random.uniform)
        logged = set[str]()  # why it cannot be followed: each reason once
        while address in self._known:
            try:
                async with self._client(address) as client, client.pubsub() as pubsub:
                    await pubsub.psubscribe("*failover-abort-*", "+selected-slave", "+promoted-slave", "+switch-master")
                    await _next(pubsub)  # the confirmation
                    await self._ask(address)
                    self._check_service(address)
                    self._followed.add(address)
                    if logged:
                        log.info("a Sentinel is followed again", sentinel=shown_address(address))
                    logged.clear()
                    backoff.reset()
                    self._look_now.set()
                    while True:
                        message = await _next(pubsub)
                        if message["type"] == "pmessage":
                            self._on_announcement(str(message["channel"]), str(message["data"]))
                        self._check_service(address)
            except (RedisError, OSError, *ODD) as error:
                self._followed.discard(address)
                reason = f"{type(error).__name__} {error}"
                if reason not in logged and len(logged) < _REASONS_LOGGED:
                    log.warning("a Sentinel cannot be followed", sentinel=shown_address(address), error=error)
                    logged.add(reason)
            await asyncio.sleep(backoff.next())

    def _check_service(self, address: Address) -> None:
        """Raises UnknownServiceError if it said that it does not watch the service."""
        unaware = self._unaware.pop(address, None)
        if unaware is not None:
            raise unaware

    def _on_announcement(self, event: str, text: str) -> None:
        try:
            self._on_message(event, text.split())
        except ValueError as error:
            log.warning("an announcement of a Sentinel was ignored", announcement=event, text=text, error=error)

    def _on_message(self, event: str, words: list[str]) -> None:
        if event == "+switch-master":
            if len(words) == 5 and words[0] == self._service:
                self._on_promotion(address_of(words[3], words[4]))
            return
        if self._service not in words:
            return
        if event == "+selected-slave":
            self._set_doubt(doubt=True)
        elif event == "+promoted-slave" and len(words) >= 4:
            self._on_promotion(address_of(words[2], words[3]))
        elif "failover-abort" in event:
            self._set_doubt(doubt=False)

    def _on_promotion(self, address: Address) -> None:
        self._told = address
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
        self._doubts_ended += not doubt
        if doubt:
            self._doubt = asyncio.create_task(self._end_doubt())
        self._listener.primary_in_doubt(doubt=doubt)

    async def _end_doubt(self) -> None:
        """Ends a doubt that no announcement ends."""
        now = asyncio.get_running_loop().time
        longest = now() + _LONGEST_DOUBT_S
        await asyncio.sleep(_DOUBT_S)
        log.warning("a failover was announced and neither ended nor aborted", service=self._service, seconds=_DOUBT_S)
        while True:
            views = await self._ask_all()
            if self._doubt is not asyncio.current_task():  # an announcement has ended it
                return
            if not any(view.is_failing_over for view in _of(views)):
                break
            if now() >= longest:
                log.warning("a failover takes too long to wait for its end", seconds=_LONGEST_DOUBT_S)
                self._is_given_up = True
                break
            await asyncio.sleep(_DOUBTED_AGAIN_S)
        self._look(views, is_current=False)  # the announcement of a promotion may have been missed
        if self._doubt is asyncio.current_task():
            self._set_doubt(doubt=False)


async def _next(pubsub: Any) -> dict[str, Any]:
    """The next message, or the answer to a PING.

    Raises:
        TimeoutError: the Sentinel does not answer.
    """
    message = await pubsub.get_message(timeout=_QUIET_S)
    if message is None:
        await pubsub.ping()
        message = await pubsub.get_message(timeout=_QUIET_S)
    if message is None:
        raise TimeoutError(f"no answer to a PING within {_QUIET_S:g} s")
    found: dict[str, Any] = message
    return found


def _of(views: Mapping[Address, View | Exception]) -> list[View]:
    """Those that have answered."""
    return [view for view in views.values() if isinstance(view, View)]
