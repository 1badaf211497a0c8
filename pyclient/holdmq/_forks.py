"""Frees a client in a forked process from locks of threads that exist only in the parent.

A fork copies the locks of redis-py and valkey-py as they are, but only the thread that forks. A lock that another
thread held at that moment would never be released in the child: its next command would wait forever, as would the
client's `__del__` at the end of the process. Invariants:

1. Only the child changes anything, before any of its own code runs, and only locks that no thread of the child can
   release.
2. Locks are found by their types, never by their names: in the client and in what it holds of its own library.
"""

import os
import threading
import weakref
from collections.abc import Iterator
from typing import Any, Protocol

LIBRARIES = ("redis", "valkey")
LOCKS = (type(threading.Lock()), type(threading.RLock()))
MAX_ITEMS = 1000
"""A longer container is not searched: it is the table of slots, whose nodes are also in a shorter one."""
PATIENCE_S = 5.0
"""How long to wait for a lock that a thread of this process may hold. redis-py waits as long after a fork."""


class Watched(Protocol):
    """An object with a client that a fork may copy."""

    client: Any
    is_torn: bool


_watched: "weakref.WeakSet[Any]" = weakref.WeakSet()


def watch(one: Watched) -> None:
    """From now on a forked process frees the locks of its client, and sets `is_torn` if there were any."""
    _watched.add(one)


def is_inherited(client: Any) -> bool:
    """Whether a client was made before the fork of this process, and was not used since."""
    return any(isinstance(pid := vars(part).get("pid"), int) and pid != os.getpid() for part in _parts(client))


def is_stuck(client: Any) -> bool:
    """Whether a lock of the client is not released for `PATIENCE_S` seconds."""
    for lock in _locks(client):
        if not lock.acquire(timeout=PATIENCE_S):
            return True
        lock.release()
    return False


def _parts(client: Any) -> Iterator[Any]:
    """The client and what it holds of its library, each once."""
    seen, left = {id(client)}, [client]
    while left:
        part = left.pop()
        yield part
        for value in list(vars(part).values()):
            for held in _members(value):
                if id(held) not in seen and _is_of_library(held):
                    seen.add(id(held))
                    left.append(held)


def _members(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple, set, dict)) and len(value) <= MAX_ITEMS:
        return list(value.values() if isinstance(value, dict) else value)
    return [value]


def _is_of_library(thing: Any) -> bool:
    kind = type(thing)
    return kind.__module__.partition(".")[0] in LIBRARIES and hasattr(thing, "__dict__")


def _locks(client: Any) -> Iterator[Any]:
    for part in _parts(client):
        yield from (value for value in list(vars(part).values()) if isinstance(value, LOCKS))


def _free(client: Any) -> bool:
    """Frees the locks of threads that this process does not have; whether there were any."""
    stuck = False
    for lock in _locks(client):
        if lock.acquire(blocking=False):  # also one that the thread that forked holds itself
            lock.release()
        else:
            lock._at_fork_reinit()  # as the standard library does with its own
            stuck = True
    return stuck


def _after_fork() -> None:
    for one in list(_watched):
        one.is_torn = _free(one.client) or one.is_torn


os.register_at_fork(after_in_child=_after_fork)
