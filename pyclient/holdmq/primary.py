"""The primary of a service, as all of its Sentinels know it: for one command line, which follows nothing for long.

    settled() ──► the change, at the primary ──► confirm()

Invariants
 1. A change is confirmed only if afterwards no Sentinel says that a failover is under way, and the primary is the same.
    A former primary takes writes for ten seconds more, and loses them when it becomes a replica.
 2. If Sentinels disagree, the later configuration epoch is right.
 3. All Sentinels are asked at the same time: those of the URL, and those that these list.  At most MAX_SENTINELS are.
    Each has ANSWER_S for each answer.
 4. A failover that is under way is waited for, at most SETTLED_S.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError, RedisError, ResponseError  # noqa: A004 - that of redis-py
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError

__all__ = ["Address", "Primary"]

Address = tuple[str, int]

MAX_SENTINELS = 64
ANSWER_S = 2.0
SETTLED_S = 15.0
AGAIN_S = 0.1
MOVED = "the primary has moved in the meantime, and may lack this change: look before you try again"
GONE = frozenset({"s_down", "o_down", "disconnected"})  # flags of a Sentinel that another one does not reach


@dataclass(frozen=True, slots=True)
class _View:
    """What one Sentinel knows."""

    epoch: int
    address: Address
    is_down: bool
    is_failing_over: bool
    others: tuple[Address, ...]


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
            ConnectionError: a failover does not end, or the primary has moved.
        """
        before = self._settled(wait_s)
        client.connection_pool.disconnect()
        yield
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
        asked: dict[Address, _View | Exception] = {}
        new = self._sentinels
        while new and len(asked) < MAX_SENTINELS:
            some = new[: MAX_SENTINELS - len(asked)]
            with ThreadPoolExecutor(len(some)) as threads:
                asked.update(zip(some, threads.map(self._ask, some), strict=True))
            others = (one for view in asked.values() if isinstance(view, _View) for one in view.others)
            new = tuple(one for one in dict.fromkeys(others) if one not in asked)
        views = [view for view in asked.values() if isinstance(view, _View)]
        latest = max((view.epoch for view in views), default=0)
        found = [view.address for view in views if view.epoch == latest and not view.is_down]
        if not found:
            down = LookupError("the primary is down")
            told = (f"{h}:{p}: {down if isinstance(view, _View) else view}" for (h, p), view in asked.items())
            raise MasterNotFoundError(f"no Sentinel names a primary of {self._service!r} ({'; '.join(told)})")
        address = max(found, key=found.count)
        return address, any(view.is_failing_over for view in views)

    def _ask(self, sentinel: Address) -> _View | Exception:
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
                return self._view(client.execute_command)
            except (RedisError, OSError, ValueError, TypeError, LookupError) as error:
                return error

    def _view(self, ask: Callable[..., Any]) -> _View:
        try:
            state = ask("SENTINEL MASTER", self._service)
        except ResponseError:
            names = ask("SENTINEL MASTERS")
            if self._service in names:
                raise
            raise LookupError(f"it watches {', '.join(map(repr, sorted(names))) or 'no service'}") from None
        others = ask("SENTINEL SENTINELS", self._service)
        # During a failover the state names the old primary until all replicas follow the new one; this does not.  It is
        # asked later: a late epoch never comes with an early address.
        host, port = ask("SENTINEL GET-MASTER-ADDR-BY-NAME", self._service)
        address, flags = (str(host), int(port)), state["flags"].split(",")
        return _View(
            epoch=int(state["config-epoch"]),
            address=address,
            is_down="s_down" in flags or "o_down" in flags,
            is_failing_over="failover_in_progress" in flags and address == (state["ip"], int(state["port"])),
            others=tuple(
                (one["ip"], int(one["port"])) for one in others if not set(GONE) & set(one["flags"].split(","))
            ),
        )
