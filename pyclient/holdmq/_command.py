"""What a command is: words to send, a parser for the reply, and which nodes of a cluster it goes to.

Without I/O, as all of `holdmq.commands`, which hands these names on.
"""

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
    """Which nodes of a cluster a command goes to."""

    KEY = "the node that has the key: the library finds it"
    FIRST = "the node that has the slot of the first argument, which is a channel and, to the server, no key"
    ALL = "all primaries, each of which knows a part"
    SLOTS = "all primaries, each of which serves the slots that it has"
    SHARD = "the node that has the slot of `Command.key`, which is derived from the arguments"
    TOPIC = "the node that has the shard of a store of history (first argument) to which a topic (second) belongs"


@dataclass(frozen=True, slots=True)
class Command(Generic[T]):
    """A command that is ready to be sent.

    Attributes:
        words: name and arguments, in the form in which redis-py's `execute_command` takes them.
        parse: makes the typed result from the raw reply.
        text: whether the reply is decoded as the client says (`decode_responses`), instead of never.
        scope: which nodes of a cluster it goes to.
        merge: makes one result of those of all nodes (scopes ALL and SLOTS only).
        key: the key that tells the node (scope SHARD only).
    """

    words: tuple[Word, ...]
    parse: Callable[[Any], T]
    text: bool = False
    scope: Scope = Scope.KEY
    merge: Callable[[Sequence[T]], T] | None = None
    key: bytes = b""

    @property
    def options(self) -> dict[str, Any]:
        """Keyword arguments for redis-py's `execute_command`."""
        return {} if self.text else {"NEVER_DECODE": True}


@dataclass(frozen=True, slots=True)
class Served(Generic[T]):
    """What a node replied for the slots that it served, and which it did not."""

    value: T
    left: tuple[SlotRange, ...]


def for_slots(command: Command[T], ranges: Sequence[SlotRange]) -> Command[Served[T]]:
    """The command, for some slots only (scope SLOTS)."""
    arguments.instance("command", command, Command)
    for part in arguments.some("ranges", ranges, SLOTS):
        arguments.in_range("first slot", arguments.instance("a range", part, SlotRange).first, 0, SLOTS - 1)
        arguments.in_range("last slot", part.last, part.first, SLOTS - 1)
    ends = [end for part in ranges for end in (part.first, part.last)]

    def parse(reply: Any) -> Served[T]:
        value, left = wire.array(reply, 2)
        return Served(command.parse(value), tuple(_parse_range(item) for item in wire.array(left)))

    return Command((*command.words, "SLOTS", len(ranges), *ends), parse)


def _parse_range(reply: object) -> SlotRange:
    first, last, address = wire.array(reply, 3)
    return SlotRange(wire.integer(first), wire.integer(last), wire.decoded(address))
