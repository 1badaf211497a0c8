"""HoldMQ's exceptions: one class for each error code of the module, and some for errors of the client itself.

1. `ERRORS` has all error codes of HoldMQ (a test compares it with the documentation). Errors with a code of the server
   itself (OOM, READONLY, NOPERM …) are the exceptions of redis-py.
2. An error reply of the server is a `redis.ResponseError`. An argument that is refused before anything is sent is a
   `redis.DataError`.
3. With a client of valkey-py, an error is also an instance of that library's `ResponseError`, so that either `except`
   clause catches it.
"""

import importlib
import re
from collections.abc import Sequence
from types import ModuleType, TracebackType
from typing import ClassVar, cast

import redis

from holdmq._slot_range import SlotRange

__all__ = [
    "ERRORS",
    "ArgumentError",
    "CommandError",
    "ConcurrentUseError",
    "FencedError",
    "ForkedError",
    "GapError",
    "HeldError",
    "HoldLostError",
    "HoldMQError",
    "HoldMQWarning",
    "IdentityError",
    "InvalidTopicError",
    "ModuleMissingError",
    "MovingError",
    "NoHomeError",
    "NoRoutesError",
    "NoSessionError",
    "NoStoreError",
    "NotAnsweredError",
    "NotEmptyError",
    "ProducerError",
    "QueueFullError",
    "QuotaError",
    "SessionFullError",
    "StaleCursorError",
    "StaleError",
    "StaleHomeError",
    "UnexpectedReplyError",
    "UnknownNodeError",
    "WrongStoreError",
    "WrongTypeError",
]


class HoldMQError(redis.RedisError):
    """The base class of all errors that HoldMQ defines. A subclass of redis-py's `RedisError`."""


class HoldMQWarning(FutureWarning):
    """Warns about a call that a later release will refuse, or that does not do what it seems to do."""


class ArgumentError(HoldMQError, redis.DataError, ValueError):
    """An invalid argument. Raised before anything is sent; the text names the argument and what is accepted."""


class UnexpectedReplyError(HoldMQError, redis.InvalidResponse):
    """The server's reply has an undocumented form: the versions of module and client do not fit together."""


class ProducerError(HoldMQError):
    """The number of a producer's batch was used before: two producers share a name, or the clock went back."""


class ForkedError(HoldMQError):
    """An object with a position, an epoch or a connection was used in a forked process."""


class NotAnsweredError(HoldMQError):
    """A bridge did not answer in time: it has ended, or its reports are off (`report_interval_s`)."""


class ConcurrentUseError(HoldMQError):
    """A second task or thread used an object that serves one at a time. Nothing was sent."""


class MovingError(HoldMQError, redis.exceptions.TryAgainError):
    """Slots of the cluster were still moving between nodes when the time was over. The other slots were served."""

    @classmethod
    def of(cls, command: object, slots: Sequence[SlotRange]) -> "MovingError":
        """Makes the error for a command and the slots that no node served."""
        shown = ", ".join(f"{part.first}-{part.last}" for part in slots[:10])
        return cls(f"{command} was not served for the slots {shown}: they are on their way between nodes")


class CommandError(HoldMQError, redis.ResponseError):
    """The server refused the command (`ERR`): wrong arity or syntax, a number out of range, a malformed session key.

    The base class of all errors with a code of HoldMQ. Nothing was changed.

    Attributes:
        code: the first word of the server's error reply.
    """

    code: ClassVar[str] = "ERR"


class ModuleMissingError(CommandError):
    """The server does not know HoldMQ's commands: it has not loaded the module."""


class WrongTypeError(CommandError):
    """A key that the command needs has another type (`WRONGTYPE`)."""

    code = "WRONGTYPE"


class InvalidTopicError(CommandError, ArgumentError):
    """MQTT forbids this topic name or filter (`INVALIDTOPIC`). Raised before sending, or by the server."""

    code = "INVALIDTOPIC"


class FencedError(CommandError):
    """The session, or the producer, has a newer epoch than the given one (`FENCED`)."""

    code = "FENCED"


class IdentityError(CommandError):
    """The session belongs to another identity (`IDENTITY`). Its owner keeps it."""

    code = "IDENTITY"


class NoSessionError(CommandError):
    """The command needs an opened session, and there is none (`NOSESSION`)."""

    code = "NOSESSION"


class NoStoreError(CommandError):
    """There is no history store with this name, or none that keeps this topic (`NOSTORE`)."""

    code = "NOSTORE"


class SessionFullError(CommandError):
    """All 65535 packet identifiers of the session are in use, or it can remember no further producer (`FULL`)."""

    code = "FULL"


class QuotaError(CommandError):
    """A limit of a queue, a user or the server is reached (`QUOTA`). Nothing was stored."""

    code = "QUOTA"


class QueueFullError(CommandError):
    """A queue with the overflow policy `wait` is full, or too many publishes are pending (`QUEUEFULL`): retry later."""

    code = "QUEUEFULL"


class NotEmptyError(CommandError):
    """The session has messages, and the import did not say `merge` (`NOTEMPTY`)."""

    code = "NOTEMPTY"


class GapError(CommandError):
    """Earlier messages of the producer were not published (`GAP`). Send them first."""

    code = "GAP"


class HeldError(CommandError):
    """A reader of history holds messages that were to be trimmed (`HELD`). The text names the reader."""

    code = "HELD"


class HoldLostError(CommandError):
    """Retention removed messages that this reader of history had not read (`HOLDLOST`)."""

    code = "HOLDLOST"


class NoRoutesError(CommandError):
    """The node of a cluster does not know the routes of all slots yet (`NOROUTES`)."""

    code = "NOROUTES"


class StaleHomeError(CommandError):
    """A later generation of the node of a cluster is known (`STALEHOME`)."""

    code = "STALEHOME"


class NoHomeError(CommandError):
    """The node that answered where a publish goes lacks the routes of this node, or has no slots (`NOHOME`)."""

    code = "NOHOME"


class StaleCursorError(CommandError):
    """The server does not know the cursor: it has restarted, or is another one (`STALECURSOR`). Begin again."""

    code = "STALECURSOR"


class UnknownNodeError(CommandError):
    """The node has no slots of the cluster, or is not to be forgotten because it has some (`UNKNOWN`)."""

    code = "UNKNOWN"


class StaleError(CommandError):
    """A pattern set was made for another generation than the current one (`STALE`)."""

    code = "STALE"


class WrongStoreError(CommandError):
    """The cursor belongs to another history store, or to an earlier store with the same name (`WRONGSTORE`).

    A cursor of an earlier release does not name its store. It is refused if the server cannot tell that it belongs to
    this one. Start again with a time instead of the cursor.
    """

    code = "WRONGSTORE"


ERRORS: dict[str, type[CommandError]] = {
    error.code: error
    for error in (
        CommandError,
        WrongTypeError,
        InvalidTopicError,
        FencedError,
        IdentityError,
        NoSessionError,
        NoStoreError,
        SessionFullError,
        QuotaError,
        QueueFullError,
        NotEmptyError,
        GapError,
        HeldError,
        HoldLostError,
        NoRoutesError,
        StaleHomeError,
        NoHomeError,
        StaleCursorError,
        UnknownNodeError,
        StaleError,
        WrongStoreError,
    )
}
"""The class for each error code of HoldMQ."""

_LIBRARIES = ("redis", "valkey")
_foreign: dict[tuple[type[CommandError], type[Exception]], type[CommandError]] = {}  # for another library's clients
_UNKNOWN_COMMAND = re.compile(r"unknown command\W+(CHANNEL|SESSION|TOPIC|HISTORY|HOLDMQ)\.", re.IGNORECASE)


def library_of(thing: object) -> ModuleType:
    """Returns the exceptions module of the library (redis-py or valkey-py) that a client or an error belongs to."""
    for base in type(thing).__mro__:
        root = base.__module__.partition(".")[0]
        if root in _LIBRARIES:
            return importlib.import_module(f"{root}.exceptions")
    return importlib.import_module("redis.exceptions")


def translate(error: Exception) -> Exception:
    """Returns the exception of this module for an error reply. Returns other errors unchanged."""
    library = library_of(error)
    if type(error) is not library.ResponseError:
        return error
    text = str(error)
    if _UNKNOWN_COMMAND.match(text):
        message = (
            f"the server has no HoldMQ module ({text.split(',', 1)[0]}): start it with --loadmodule <path>/holdmq.so, "
            "or load the module with MODULE LOAD"
        )
        return _class_for(ModuleMissingError, library.ResponseError)(message)
    code, _, rest = text.partition(" ")
    # Both libraries take the code ERR away and leave those that they do not know.
    refusal = ERRORS.get(code) if rest else None
    return _class_for(refusal or CommandError, library.ResponseError)(text)


def is_moving(error: Exception) -> bool:
    """Whether a command failed because its slot is moving to another node, or has just moved.

    The libraries follow a limited number of redirections, which takes a few tenths of a second.
    """
    library = library_of(error)
    followed_long_enough = isinstance(error, library.ClusterError) and "TTL exhausted" in str(error)
    return followed_long_enough or isinstance(error, library.TryAgainError)


def is_demoted(error: Exception) -> bool:
    """Whether a node refused a write because it is a replica."""
    return isinstance(error, library_of(error).ReadOnlyError)


def lost_of(client: object) -> tuple[type[Exception], ...]:
    """The exceptions of a client whose server or cluster cannot be reached, perhaps only for a while."""
    library = library_of(client)
    unreachable = getattr(library, "RedisClusterException", None) or library.ValkeyClusterException
    return (library.ConnectionError, library.TimeoutError, library.ClusterDownError, unreachable, OSError)


class translation:  # noqa: N801 - used like a function
    """Context manager that turns error replies of the client's library into the classes of this module."""

    def __init__(self, client: object) -> None:
        self._refused: type[Exception] = library_of(client).ResponseError

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, self._refused):
            refusal = translate(error)
            if refusal is not error:
                raise refusal from error


def _class_for(error: type[CommandError], response_error: type[Exception]) -> type[CommandError]:
    """The class itself for redis-py. For another library, a subclass that is also that library's ResponseError."""
    if issubclass(error, response_error):
        return error
    made = _foreign.get((error, response_error))
    if made is None:
        bases = (error, response_error)
        made = cast("type[CommandError]", type(error.__name__, bases, {"__module__": error.__module__}))
        _foreign[error, response_error] = made
    return made
