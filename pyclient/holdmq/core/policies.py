"""Channel policies: which messages channels hold, for how long, and what new subscribers get (src/topic/policy.h)."""

import enum
from dataclasses import dataclass

from holdmq.core._binding import LIBC_ALLOCATOR, CData, Text, ffi, freer, lib, to_bytes

__all__ = ["Deliver", "Hold", "InvalidPolicyError", "Policy", "Rule"]

_ERROR_BYTES = 256


class InvalidPolicyError(ValueError):
    """A policy list is invalid. The text names the rule, what is wrong, and what is expected."""


class Hold(enum.Enum):
    """Which messages of a channel are kept."""

    NONE = lib.HMQ_HOLD_NONE
    UNHEARD = lib.HMQ_HOLD_UNHEARD
    ALL = lib.HMQ_HOLD_ALL


class Deliver(enum.Enum):
    """The messages that a new subscriber gets."""

    NONE = lib.HMQ_DELIVER_NONE
    LAST = lib.HMQ_DELIVER_LAST
    HELD = lib.HMQ_DELIVER_HELD


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule of a policy.

    Attributes:
        glob: of the channels.
        hold: which messages are kept in the channel's list.
        last: whether the last message is kept even when it was received.
        maxlen: most messages in the list.
        ttl_s: seconds after the last message until all is gone, 0: never.
        deliver: the messages that a new subscriber gets.
    """

    glob: bytes
    hold: Hold
    last: bool
    maxlen: int
    ttl_s: int
    deliver: Deliver


class Policy:
    """A parsed policy list. The first rule whose glob matches a channel is the channel's.

    Examples:
        >>> policy = Policy("__*__:* hold=none; * maxlen=100")
        >>> policy.find("news").maxlen
        100
    """

    def __init__(self, text: Text, *, allocator: CData = None) -> None:
        """Parses the text.

        Args:
            text: rules separated by `;` or line feeds, as src/topic/policy.h has them.
            allocator: an `hmq_allocator` that outlives the policy, libc's if None.

        Raises:
            InvalidPolicyError: if there is a mistake in it.
            MemoryError: when out of memory.
        """
        data = to_bytes(text)
        memory = LIBC_ALLOCATOR if allocator is None else allocator
        error = ffi.new("char[]", _ERROR_BYTES)
        new = lib.hmq_policy_parse(memory, data, len(data), error, _ERROR_BYTES)
        if new == ffi.NULL:
            message = ffi.string(error).decode()
            raise MemoryError(message) if message.startswith("out of memory") else InvalidPolicyError(message)
        self._policy = ffi.gc(new, freer(lib.hmq_policy_free, memory))
        self.rules = tuple(_rule(lib.hmq_policy_rule(new, index)) for index in range(lib.hmq_policy_count(new)))

    def find(self, channel: Text) -> Rule | None:
        """The rule for a channel, None if no glob matches it."""
        data = to_bytes(channel)
        found = lib.hmq_policy_find(self._policy, data, len(data))
        return None if found == ffi.NULL else _rule(found)


def _rule(rule: CData) -> Rule:
    glob = bytes(ffi.buffer(rule.glob.data, rule.glob.len))
    return Rule(glob, Hold(rule.hold), rule.last, rule.maxlen, rule.ttl_s, Deliver(rule.deliver))
