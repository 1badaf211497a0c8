"""The primary of a service, as all of its Sentinels know it: for one command line, which follows nothing for long.

    settled() ──► the change, at the primary ──► confirm()

Invariants
 1. A change is confirmed only if afterwards no Sentinel says that a failover is under way, and the primary is the same.
    A former primary takes writes for ten seconds more, and loses them when it becomes a replica.
 2. All Sentinels are asked at the same time: those of the URL, and those that these list and reach, at most
    MAX_SENTINELS.  Each has ANSWER_S for each answer.  What follows from the answers: sentinels.py.
 3. A failover that is under way is waited for, at most SETTLED_S.
"""

import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError, RedisError  # noqa: A004 - that of redis-py
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError

from holdmq.address import Address
from holdmq.sentinels import MAX_SENTINELS, ODD, OddAnswerError, View, answered, latest, nobody_text, question

__all__ = ["Primary"]

ANSWER_S = 2.0
SETTLED_S = 15.0
AGAIN_S = 0.1
MOVED = "the primary has moved in the meantime, and may lack this change: look before you try again"


class Primary:
    """The primary of one service.

    Args:
        sentinels: addresses of some of its Sentinels.
        service: its name.
        options: of redis-py's clients of Sentinels: username, password, ssl.
    """

    def __init__(self, sentinels: Iterable[Address], service: str, options: Mapping[str, Any]) -> None:
        self._sentinels = tuple(dict.fromkeys(sentinels))
        self._service = service
        self._options = dict(options)

    def find(self) -> Address:
        """The address of the primary.

        Raises:
            MasterNotFoundError: no Sentinel names one that is up. The text says why, for each Sentinel.
        """
        return self._look()[0]

    @contextmanager
    def unmoved(self, client: Redis, wait_s: float = SETTLED_S) -> Iterator[None]:
        """Lets the body make a change, and returns only if no failover loses it.

        Args:
            client: with which the change is made.  It connects again: it may be connected to a former primary.
            wait_s: how long the end of a failover is waited for, before and after.

        Raises:
            MasterNotFoundError: no Sentinel names a primary that is up.
            ConnectionError: a failover does not end, or the primary has moved.  An error of the body is its cause.
        """
        before = self._settled(wait_s)
        client.connection_pool.disconnect()
        try:
            yield
        except (RedisError, OSError) as error:
            try:
                after = self._settled(wait_s)
            except MasterNotFoundError:
                raise error from None  # which says more
            if after != before:
                raise ConnectionError(f"{MOVED} ({error})") from error
            raise
        if self._settled(wait_s) != before:
            raise ConnectionError(MOVED)

    def _settled(self, wait_s: float) -> Address:
        deadline = time.monotonic() + wait_s
        while True:
            address, is_failing_over = self._look()
            if not is_failing_over:
                return address
            if time.monotonic() >= deadline:
                raise ConnectionError(f"a failover of {self._service!r} is under way")
            time.sleep(AGAIN_S)

    def _look(self) -> tuple[Address, bool]:
        """The primary of the latest epoch, and whether a Sentinel is about to promote a replica."""
        asked: dict[Address, View | Exception] = {}
        new = self._sentinels
        while new and len(asked) < MAX_SENTINELS:
            some = new[: MAX_SENTINELS - len(asked)]
            with ThreadPoolExecutor(len(some)) as threads:
                asked.update(zip(some, threads.map(self._ask, some), strict=True))
            others = (one for view in asked.values() if isinstance(view, View) for one in view.present)
            new = tuple(one for one in dict.fromkeys(others) if one not in asked)
        views = [view for view in asked.values() if isinstance(view, View)]
        found = latest(views)
        if found is None or not any((view.epoch, view.address, view.is_down) == (*found, False) for view in views):
            said = ((at, "the primary is down" if isinstance(view, View) else view) for at, view in asked.items())
            raise MasterNotFoundError(nobody_text(self._service, said))
        return found[1], any(view.is_failing_over for view in views)

    def _ask(self, sentinel: Address) -> View | Exception:
        host, port = sentinel
        with Redis(
            host=host,
            port=port,
            decode_responses=True,
            **self._options,
            socket_timeout=ANSWER_S,
            socket_connect_timeout=ANSWER_S,
            retry=Retry(NoBackoff(), 0),
        ) as client:
            try:
                return answered(question(self._service), client.execute_command)
            except (RedisError, OSError) as error:
                return error
            except ODD as error:
                return OddAnswerError(error)
