"""Restricts an object with a position, an epoch or a connection to one process, and to one user at a time.

A fork copies such an object: both copies would send the same number, or read from the same socket. Two threads in one
call would do the same. Neither can work, so both are errors that say what to do instead.

`AsyncGuard` is for tasks of one event loop, and `Guard` for threads.
"""

import asyncio
import os
import sys
import threading
import weakref
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, NoReturn, Self, SupportsIndex

from holdmq import _forks
from holdmq.errors import ConcurrentUseError, ForkedError


class NotCopied:
    """Base of objects with a position or an epoch: two copies would use the same number for two messages."""

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        """Refuses copy.copy, copy.deepcopy and pickle."""
        raise TypeError(f"{type(self).__name__} cannot be copied or pickled: make another one where it is needed")


class NotPickled:
    """Base of a client: its connections cannot go to another process."""

    shown_as = ""  # in the error; empty: the name of the class

    def __copy__(self) -> Self:
        """A shallow copy uses the same connections."""
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__)
        return made

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        """Refuses copy.deepcopy and pickle."""
        raise TypeError(
            f"{self.shown_as or type(self).__name__} cannot be pickled or copied with what it holds: make one in each "
            "process, at import or where the process begins, and hand over names"
        )


class Owner:
    """The process to which an object belongs.

    Args:
        what: the object, as an error names it.
        now: it belongs to the process that makes it; otherwise to the first process that uses it.
    """

    def __init__(self, what: str, *, now: bool) -> None:
        self._what = what
        self._pid = os.getpid() if now else None

    @property
    def is_elsewhere(self) -> bool:
        """Whether it belongs to another process than this one."""
        return self._pid is not None and self._pid != os.getpid()

    def check(self) -> None:
        """Assigns it to this process if it has no owner yet.

        Raises:
            ForkedError: it belongs to another process.
        """
        pid = os.getpid()
        if self._pid is None:
            self._pid = pid
        elif self._pid != pid:
            raise ForkedError(
                f"{self._what} belongs to process {self._pid}, and this is process {pid}, which was forked from it: "
                "expected one of its own in each process, made after the fork"
            )


class AsyncClientOwner(Owner):
    """The process and the event loop to which a client belongs.

    Its connections are not renewed after a fork, and each belongs to one loop. If that loop was closed (another
    `asyncio.run` continues with the client), `renew` forgets them.

    Args:
        client: the client.
        renew: forgets all connections, unless the client cannot do that.
    """

    def __init__(self, what: str, client: Any, *, renew: Callable[[], bool]) -> None:
        super().__init__(what, now=False)
        self.client = client
        self._renew = renew
        self._loop: weakref.ref[asyncio.AbstractEventLoop] | None = None

    def check(self) -> None:
        """Assigns it to this process and this loop if it has no owner yet.

        Raises:
            ForkedError: it belongs to another process.
            ConcurrentUseError: it belongs to another event loop, or to one that was closed and cannot be left.
        """
        super().check()
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:  # nothing is sent from here
            return
        known = None if self._loop is None else self._loop()
        if known is running:
            return
        if known is not None and not known.is_closed():
            raise ConcurrentUseError(f"{self._what} belongs to another event loop; expected one of its own for each")
        if self._loop is not None and not self._renew():
            raise ConcurrentUseError(
                f"{self._what} of a cluster belongs to an event loop that was closed; expected one of its own for "
                "each loop, made there, or closed (aclose) in the loop before"
            )
        self._loop = weakref.ref(running)

    def closed(self) -> None:
        """It has no connections any more: any loop may use it."""
        self._loop = None


class ClientOwner:
    """A client that any process may use: redis-py and valkey-py make separate connections in each process.

    A lock that another thread held during the fork is freed in the child (`_forks`). The data that it protected may be
    inconsistent: so the client of a cluster loads the nodes again there (`renew`).

    Args:
        what: the client, as an error names it.
        client: the client.
        renew: loads the nodes again.

    Raises:
        ForkedError: another process made it, and it cannot be used here.
    """

    def __init__(self, what: str, client: Any, *, renew: Callable[[], bool]) -> None:
        self._what = what
        self.client = client
        self.is_torn = False
        self._renew = renew
        self._pid = os.getpid()
        if _forks.is_inherited(client) and _forks.is_stuck(client):
            raise ForkedError(
                f"{what} was made before the fork of this process, while other threads used it; expected one that was "
                "made after the fork"
            )
        _forks.watch(self)

    @property
    def is_elsewhere(self) -> bool:
        """Whether it has one connection alone (`single_connection_client`), which is another process's."""
        connection = getattr(self.client, "connection", None)
        return connection is not None and connection.pid != os.getpid()

    def check(self) -> None:
        """Makes a client that was made before a fork usable in this process.

        Raises:
            ForkedError: it has one connection alone, which is another process's.
        """
        if self._pid != os.getpid():
            self._arrive()

    def _arrive(self) -> None:
        if self.is_elsewhere:
            raise ForkedError(
                f"{self._what} has one connection (single_connection_client), which belongs to process "
                f"{self.client.connection.pid}, and this is process {os.getpid()}; expected a client of its own in "
                "each process, made after the fork"
            )
        if self.is_torn:
            self._renew()
            self.is_torn = False
        self._pid = os.getpid()

    def closed(self) -> None:
        """Nothing is to be noted: connections belong to no event loop."""


class AsyncGuard(Owner):
    """A context manager for the time in which one task uses the object."""

    def __init__(self, what: str, *, now: bool) -> None:
        super().__init__(what, now=now)
        self._busy = False

    def __enter__(self) -> None:
        self.check()
        if self._busy:
            raise ConcurrentUseError(f"another task is using {self._what}; expected one of its own for each task")
        self._busy = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._busy = False


class Guard(Owner):
    """A context manager for the time in which one thread uses the object."""

    def __init__(self, what: str, *, now: bool) -> None:
        super().__init__(what, now=now)
        self._calls: dict[None, FrameType] = {}  # the one that is at work; setdefault and pop are atomic
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self.check()
        call = sys._getframe(1)
        other = self._calls.setdefault(None, call)
        if other is not call and not self._succeeds(other, call):
            raise ConcurrentUseError(f"another thread is using {self._what}; expected one of its own for each thread")

    def _succeeds(self, other: FrameType, call: FrameType) -> bool:
        """Replaces a call that an interrupt (KeyboardInterrupt) ended before it was removed."""
        try:
            other.clear()  # an executing frame refuses that
        except RuntimeError:
            return False
        with self._lock:
            if self._calls.get(None) is not other:  # it has ended since, and was removed
                return False
            self._calls[None] = call
            return True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._calls.pop(None, None)
