"""Commands of a session for the server, and the meaning of error replies."""

from enum import IntEnum
from typing import Any, TypeAlias

from hiredis import ReplyError

Argument: TypeAlias = bytes | str | int
# A value of hiredis, or an error as an object.
Reply: TypeAlias = Any


class Kind(IntEnum):
    """The purpose of a command."""

    OPEN = 1
    LIST = 2
    SUBSCRIBE = 3
    UNSUBSCRIBE = 4
    CLOSE = 5
    REVIEW = 6
    REVOKE = 7


class Command:
    """A command, compared by identity.

    Attributes:
        kind: its purpose.
        arguments: as sent to the server.
        detail: what its maker needs when the reply arrives.
    """

    __slots__ = ("arguments", "detail", "kind")

    def __init__(self, kind: Kind, arguments: tuple[Argument, ...], detail: Any = None) -> None:
        self.kind = kind
        self.arguments = arguments
        self.detail = detail

    def __repr__(self) -> str:
        return f"<Command {self.kind.name} {self.arguments[:2]!r}>"


# Temporary errors: the server or a queue is full, or the server is read-only, starting, out of replicas or busy, or
# another node of the cluster has the slot.
_TEMPORARY = frozenset(
    (
        *("OOM", "READONLY", "LOADING", "MISCONF", "NOREPLICAS", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "BUSY"),
        *("QUEUEFULL", "MOVED", "ASK"),
    )
)


def error_code(error: ReplyError | str) -> str:
    """The upper-case word at the beginning of an error."""
    return str(error).partition(" ")[0]


def is_temporary(error: ReplyError) -> bool:
    """Whether the same command may succeed a little later."""
    return error_code(error) in _TEMPORARY
