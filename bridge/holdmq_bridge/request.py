"""A command for the server on behalf of one client, and what became of it.

The connection (sans-I/O) makes requests, the link writes them and hands each back with its reply, in the order in which
they were written.  A request keeps its arguments until then, so that it can be sent again when the server went away.
"""

from enum import IntEnum
from typing import Any, TypeAlias

from hiredis import ReplyError

Argument: TypeAlias = bytes | str | int
# What the server answered: a value of hiredis, or the error as an object.
Reply: TypeAlias = Any


class Kind(IntEnum):
    """What a request is for.  PUBLISH to CLOSE are answered to the client in their order, the others are not."""

    PUBLISH = 1
    SUBSCRIBE = 2
    UNSUBSCRIBE = 3
    CLOSE = 4
    OPEN = 5
    INFO = 6
    ACK = 7
    FETCH = 8
    TOUCH = 9


class State(IntEnum):
    """WAITING: not written since the server was last lost; SENT: written; DONE: answered."""

    WAITING = 0
    SENT = 1
    DONE = 2


class Request:
    """`owner` is whoever asked; the link gives it back with the reply and never looks at it."""

    __slots__ = ("arguments", "detail", "kind", "owner", "packet_id", "qos", "reply", "size", "state")

    def __init__(
        self,
        owner: Any,
        kind: Kind,
        arguments: tuple[Argument, ...],
        packet_id: int = 0,
        qos: int = 0,
        detail: Any = None,
    ) -> None:
        self.owner = owner
        self.kind = kind
        self.arguments = arguments
        self.packet_id = packet_id
        self.qos = qos
        self.detail = detail
        self.reply: Reply = None
        self.size = 0  # bytes on the wire, set by the link
        self.state = State.WAITING

    def __repr__(self) -> str:
        return f"<Request {self.kind.name} {self.arguments[:2]!r} {self.state.name}>"


# Errors that pass: the server is full, read-only, starting, out of replicas or busy.
_PASSING = frozenset(
    ["OOM", "READONLY", "LOADING", "MISCONF", "NOREPLICAS", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "BUSY"]
)


def error_code(error: ReplyError) -> str:
    """The upper-case word that an error reply begins with."""
    return str(error).partition(" ")[0]


def is_passing(error: ReplyError) -> bool:
    """Is it worth sending the same command again a little later?"""
    return error_code(error) in _PASSING
