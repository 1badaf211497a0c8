"""A command: the words to send, a parser for the reply, and the nodes of a cluster that get it; without I/O."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, TypeVar

from holdmq import _arguments as arguments
from holdmq import _wire as wire
from holdmq._slot_range import SLOTS, SlotRange
from holdmq._wire import Word

T = TypeVar("T")


class Scope(Enum):
    """The nodes of a cluster that a command goes to."""

    KEY = "key"
    """The node of the command's key, which the library finds."""
    FIRST = "first"
    """The node of the slot of the first argument: a channel or a store, which is not a key to the server."""
    ALL = "all"
    """All primaries. Each knows a part."""
    SLOTS = "slots"
    """All primaries. Each serves its own slots."""
    ROUTES = "routes"
    """The primaries that have subscribers of a topic (first argument), as the node of the topic's slot answers; all
    primaries if it knows no routes."""
    SHARD = "shard"
    """The node of the slot of `Command.key`, which is derived from the arguments."""
    TOPIC = "topic"
    """The node of the shard of a history store (first argument) that a topic (second argument) belongs to."""


@dataclass(frozen=True, slots=True)
class Command(Generic[T]):
    """A command that is ready to be sent.

    Attributes:
        words: the name and the arguments, as redis-py's `execute_command` takes them.
        parse: makes the typed result from the raw reply.
        text: whether the reply follows `decode_responses` of the client. Other replies are never decoded.
        scope: the nodes of a cluster that it goes to.
        merge: makes one result from those of all nodes (scopes ALL and SLOTS only).
        key: the key whose slot selects the node (scope SHARD only).
        tail: words after the slots (scope SLOTS only).
        following: takes the result of a page and returns the command of the next page, or None after the last one.
            `merge` joins the results of all pages.
    """

    words: tuple[Word, ...]
    parse: Callable[[Any], T]
    text: bool = False
    scope: Scope = Scope.KEY
    merge: Callable[[Sequence[T]], T] | None = None
    key: bytes = b""
    tail: tuple[Word, ...] = ()
    following: Callable[[T], "Command[T] | None"] | None = None

    @property
    def options(self) -> dict[str, Any]:
        """Keyword arguments for redis-py's `execute_command`."""
        return {} if self.text else {"NEVER_DECODE": True}


@dataclass(frozen=True, slots=True)
class Served(Generic[T]):
    """A node's reply to a command for some slots.

    Attributes:
        value: the result for the slots that the node served.
        left: the slots that it did not serve.
    """

    value: T
    left: tuple[SlotRange, ...]


def for_slots(command: Command[T], ranges: Sequence[SlotRange]) -> Command[Served[T]]:
    """Restricts a command with the scope SLOTS to some slots."""
    arguments.instance("command", command, Command)
    for part in arguments.some("ranges", ranges, SLOTS):
        arguments.in_range("first slot", arguments.instance("a range", part, SlotRange).first, 0, SLOTS - 1)
        arguments.in_range("last slot", part.last, part.first, SLOTS - 1)
    ends = [end for part in ranges for end in (part.first, part.last)]

    def parse(reply: Any) -> Served[T]:
        value, left = wire.array(reply, 2) if command.following is None else _split(reply)
        return Served(command.parse(value), tuple(_parse_range(item) for item in wire.array(left)))

    return Command((*command.words, "SLOTS", len(ranges), *ends, *command.tail), parse)


def _split(reply: Any) -> tuple[Any, Any]:
    """The reply of a page, and the slots that were not served: its last element."""
    cursor, entries, left = wire.array(reply, 3)
    return [cursor, entries], left


def _parse_range(reply: object) -> SlotRange:
    first, last, address = wire.array(reply, 3)
    return SlotRange(wire.integer(first), wire.integer(last), wire.decoded(address))
