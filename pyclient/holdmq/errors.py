"""What HoldMQ refuses, as Python exceptions: one class for each error code of docs/commands/.

It sits between the reply parser of redis-py, which knows HoldMQ's codes only as text, and the callers, who want to
catch by class. Invariants:

1. `ERRORS` has exactly the codes of HoldMQ's own in docs/commands/ (a test compares the two). Codes of the server's
   own (OOM, READONLY, NOPERM ...) stay what redis-py makes of them.
2. What the server refused is a `redis.ResponseError`; what was refused before anything was sent is a `redis.DataError`.
3. An error that comes from a client of another library with the same shape (valkey-py) is an instance of that library's
   `ResponseError` as well, so that either `except` clause catches it.
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
    "NoSessionError",
    "NoStoreError",
    "NotAnsweredError",
    "NotEmptyError",
    "ProducerError",
    "QueueFullError",
    "QuotaError",
    "SessionFullError",
    "StaleError",
    "UnexpectedReplyError",
    "WrongStoreError",
    "WrongTypeError",
]


class HoldMQError(redis.RedisError):
    """Base of all errors that HoldMQ defines; a subclass of redis-py's `RedisError`."""


class HoldMQWarning(FutureWarning):
    """What a later release will refuse, or what does not do what it seems to do."""


class ArgumentError(HoldMQError, redis.DataError, ValueError):
    """An argument that cannot be right: raised before anything is sent, names the argument and what was expected."""


class UnexpectedReplyError(HoldMQError, redis.InvalidResponse):
    """The server answered in a form that docs/commands/ does not know: module and client do not fit together."""


class ProducerError(HoldMQError):
    """A producer's batch has a number that was used before: a second producer has its name, or the clock went back."""


class ForkedError(HoldMQError):
    """An object with a position, an epoch or a connection was used in a process that was forked from its own."""


class NotAnsweredError(HoldMQError):
    """A bridge has not answered in time: it has ended, or reports are switched off (`report_interval_s`)."""


class ConcurrentUseError(HoldMQError):
    """An object that serves one task or thread at a time was used by a second one; nothing has been changed."""


class MovingError(HoldMQError, redis.exceptions.TryAgainError):
    """Slots of the cluster were on their way between two nodes until the time was over; the others were served."""

    @classmethod
    def of(cls, command: object, slots: Sequence[SlotRange]) -> "MovingError":
        """For a command and the slots that it was not served for."""
        shown = ", ".join(f"{part.first}-{part.last}" for part in slots[:10])
        return cls(f"{command} was not served for the slots {shown}: they are on their way between nodes")


class CommandError(HoldMQError, redis.ResponseError):
    """The server refused the command (`ERR`): arity, syntax, a number out of range, a malformed session key.

    The base of all refusals by HoldMQ's commands. Nothing has been changed.
    """

    code: ClassVar[str] = "ERR"


class ModuleMissingError(CommandError):
    """The server does not know HoldMQ's commands: the module is not loaded there."""


class WrongTypeError(CommandError):
    """A key that the command needs holds another type (`WRONGTYPE`)."""

    code = "WRONGTYPE"


class InvalidTopicError(CommandError, ArgumentError):
    """A topic name or filter that MQTT forbids (`INVALIDTOPIC`): found before sending, or by the server."""

    code = "INVALIDTOPIC"


class FencedError(CommandError):
    """The session has a newer owner (`FENCED`): the epoch that was given is not the current one."""

    code = "FENCED"


class IdentityError(CommandError):
    """The session belongs to another identity (`IDENTITY`): nothing was changed, its owner keeps it."""

    code = "IDENTITY"


class NoSessionError(CommandError):
    """The command needs a session that was opened, and there is none (`NOSESSION`)."""

    code = "NOSESSION"


class NoStoreError(CommandError):
    """There is no store of history with this name (`NOSTORE`)."""

    code = "NOSTORE"


class SessionFullError(CommandError):
    """All 65535 packet identifiers of the session are in use, or no more producers can be remembered (`FULL`)."""

    code = "FULL"


class QuotaError(CommandError):
    """A bound of a queue, a user or the server is reached (`QUOTA`): nothing was stored."""

    code = "QUOTA"


class QueueFullError(CommandError):
    """A queue whose publishers wait is full (`QUEUEFULL`): send the same again a little later."""

    code = "QUEUEFULL"


class NotEmptyError(CommandError):
    """An import into a session that has messages, without `merge` (`NOTEMPTY`)."""

    code = "NOTEMPTY"


class GapError(CommandError):
    """A producer's messages that come before these were not published (`GAP`): they are to be sent first."""

    code = "GAP"


class HeldError(CommandError):
    """What a reader of history has not read yet was to be trimmed (`HELD`): the text names the reader."""

    code = "HELD"


class HoldLostError(CommandError):
    """Retention went on without this reader of history (`HOLDLOST`): messages that it had not read are gone."""

    code = "HOLDLOST"


class StaleError(CommandError):
    """A pattern set of history was made for another generation than the present one (`STALE`)."""

    code = "STALE"


class WrongStoreError(CommandError):
    """A cursor of history belongs to another store, or to an earlier one of the same name (`WRONGSTORE`).

    Also a cursor of an earlier release, which does not name its store, if the server cannot tell that it is of this
    one. Begin anew, with a start instead of the cursor.
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
        StaleError,
        WrongStoreError,
    )
}

_LIBRARIES = ("redis", "valkey")
_foreign: dict[tuple[type[CommandError], type[Exception]], type[CommandError]] = {}  # for another library's clients
_UNKNOWN_COMMAND = re.compile(r"unknown command\W+(CHANNEL|SESSION|TOPIC|HISTORY|HOLDMQ)\.", re.IGNORECASE)


def library_of(thing: object) -> ModuleType:
    """The module with the exceptions of the library (redis-py or valkey-py) that a client or an error comes from."""
    for base in type(thing).__mro__:
        root = base.__module__.partition(".")[0]
        if root in _LIBRARIES:
            return importlib.import_module(f"{root}.exceptions")
    return importlib.import_module("redis.exceptions")


def translate(error: Exception) -> Exception:
    """The exception of this module for an error reply, or the error itself if it is none of HoldMQ's."""
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
    """Whether a command was not carried out because its slot is on its way to another node, or has just arrived there.

    The libraries follow redirections a bounded number of times, in a few tenths of a second.
    """
    library = library_of(error)
    followed_long_enough = isinstance(error, library.ClusterError) and "TTL exhausted" in str(error)
    return followed_long_enough or isinstance(error, library.TryAgainError)


def is_demoted(error: Exception) -> bool:
    """Whether a node refused a write because it is a replica."""
    return isinstance(error, library_of(error).ReadOnlyError)


def lost_of(client: object) -> tuple[type[Exception], ...]:
    """What a client raises when a server, or the cluster, cannot be reached: perhaps only for a while."""
    library = library_of(client)
    unreachable = getattr(library, "RedisClusterException", None) or library.ValkeyClusterException
    return (library.ConnectionError, library.TimeoutError, library.ClusterDownError, unreachable, OSError)


class translation:  # noqa: N801 - used like a function
    """Context manager: error replies that the client's library raises inside leave it as the classes of this module."""

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
    """The class itself for redis-py; for another library a subclass that is that library's ResponseError too."""
    if issubclass(error, response_error):
        return error
    made = _foreign.get((error, response_error))
    if made is None:
        bases = (error, response_error)
        made = cast("type[CommandError]", type(error.__name__, bases, {"__module__": error.__module__}))
        _foreign[error, response_error] = made
    return made
