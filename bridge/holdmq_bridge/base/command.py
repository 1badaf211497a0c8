"""A command for the server on behalf of one session, and what its error replies mean."""

from enum import IntEnum
from typing import Any, TypeAlias

from hiredis import ReplyError

Argument: TypeAlias = bytes | str | int
# What the server answered: a value of hiredis, or the error as an object.
Reply: TypeAlias = Any


class Kind(IntEnum):
    """What a command is for."""

    OPEN = 1
    LIST = 2
    SUBSCRIBE = 3
    UNSUBSCRIBE = 4
    CLOSE = 5
    REVIEW = 6
    REVOKE = 7


class Command:
    """Compared by identity: two that look the same are two.

    Attributes:
        kind: what it is for.
        arguments: as they go to the server.
        detail: what whoever made it has to remember until it is answered.
    """

    __slots__ = ("arguments", "detail", "kind")

    def __init__(self, kind: Kind, arguments: tuple[Argument, ...], detail: Any = None) -> None:
        self.kind = kind
        self.arguments = arguments
        self.detail = detail

    def __repr__(self) -> str:
        return f"<Command {self.kind.name} {self.arguments[:2]!r}>"


# Errors that pass: the server or a queue is full, or the server is read-only, starting, out of replicas or busy.
_PASSING = frozenset(
    (
        *("OOM", "READONLY", "LOADING", "MISCONF", "NOREPLICAS", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "BUSY"),
        "QUEUEFULL",
    )
)


def error_code(error: ReplyError | str) -> str:
    """The upper-case word that an error begins with."""
    return str(error).partition(" ")[0]


def is_passing(error: ReplyError) -> bool:
    """Is it worth sending the same command again a little later?"""
    return error_code(error) in _PASSING
