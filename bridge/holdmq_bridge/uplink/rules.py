"""Topic lines: the direction of messages, and their topics on the other side.

A line is written as in Mosquitto's configuration, `<pattern> [in|out|both [<qos> [<local prefix> [<remote prefix>]]]]`.
A prefix is put before the pattern unchanged:

    sensors/#  out  1  ""      plant-7/       local  sensors/a   ──►  remote  plant-7/sensors/a
    jobs/+     in   2  todo/   plant-7/       remote plant-7/jobs/a  ──►  local  todo/jobs/a

Invariants
 1. The first line that matches decides topic and QoS.
 2. Remote filters of two `in` lines never match the same topic: another broker may send such a message once for each.

Mapping is O(lines) for a new topic, and O(1) for a recent one.
"""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from holdmq import core

MAX_RULES = 1000
_REMEMBERED = 4096  # topics with a cached mapping
_MOST_WORDS = 5
_EMPTY = '""'


class Direction(StrEnum):
    """Directions as seen from HoldMQ: `out` is to the other broker."""

    IN = "in"
    OUT = "out"
    BOTH = "both"


@dataclass(frozen=True, slots=True)
class Rule:
    """One topic line.

    Attributes:
        pattern: the part of the filter that both sides have in common; may be empty.
        direction: of the messages.
        qos: the largest QoS of the messages.
        local_prefix: before the pattern at HoldMQ.
        remote_prefix: before the pattern at the other broker.

    Raises:
        ValueError: a QoS outside of 0..2, or a filter that MQTT forbids.
    """

    pattern: str
    direction: Direction = Direction.OUT
    qos: int = 0
    local_prefix: str = ""
    remote_prefix: str = ""

    def __post_init__(self) -> None:
        if self.qos not in (0, 1, 2):
            raise ValueError(f"topic {self}: QoS {self.qos}; expected 0, 1 or 2")
        for side, prefix, topic_filter in (
            ("local", self.local_prefix, self.local_filter),
            ("remote", self.remote_prefix, self.remote_filter),
        ):
            if "+" in prefix or "#" in prefix:
                raise ValueError(f"topic {self}: a wildcard in the {side} prefix; expected it in the pattern only")
            try:
                core.check_topic_filter(topic_filter)
            except core.InvalidTopicError as error:
                raise ValueError(f"topic {self}: {side} filter {topic_filter!r}: {error}") from error
            if topic_filter.startswith("$share/"):
                raise ValueError(f"topic {self}: {side} filter {topic_filter!r}; expected no shared subscription")

    def __str__(self) -> str:
        words = (self.pattern, self.direction, str(self.qos), self.local_prefix, self.remote_prefix)
        return " ".join(word or _EMPTY for word in words)

    @classmethod
    def parse(cls, line: str) -> "Rule":
        """Parses a topic line; `""` is an empty word.

        Raises:
            ValueError: it is not a valid line.
        """
        words = shlex.split(line)
        if words[:1] == ["topic"] and len(words) > 1 and words[1] not in tuple(Direction):
            words = words[1:]  # a whole line of mosquitto.conf
        if not 1 <= len(words) <= _MOST_WORDS:
            raise ValueError(
                f"topic {line!r}: {len(words)} words; expected <pattern> [in|out|both [<qos> [<local prefix> "
                "[<remote prefix>]]]]"
            )
        direction = words[1] if len(words) > 1 else Direction.OUT
        qos = words[2] if len(words) > 2 else "0"
        if direction not in tuple(Direction):
            raise ValueError(f"topic {line!r}: direction {direction!r}; expected in, out or both")
        if not qos.isdecimal():
            raise ValueError(f"topic {line!r}: QoS {qos!r}; expected 0, 1 or 2")
        prefixes = [*words[3:], "", ""]
        return cls(words[0], Direction(direction), int(qos), prefixes[0], prefixes[1])

    @property
    def local_filter(self) -> str:
        """The link's subscription at HoldMQ, if messages go out."""
        return self.local_prefix + self.pattern

    @property
    def remote_filter(self) -> str:
        """The link's subscription at the other broker, if messages come in."""
        return self.remote_prefix + self.pattern

    @property
    def is_inward(self) -> bool:
        """Whether it brings messages to HoldMQ."""
        return self.direction is not Direction.OUT

    @property
    def is_outward(self) -> bool:
        """Whether it takes messages to the other broker."""
        return self.direction is not Direction.IN


@dataclass(frozen=True, slots=True)
class Mapped:
    """The topic of a message on the other side, and its largest QoS there."""

    topic: str
    qos: int


class Rules:
    """All topic lines of a link.

    Raises:
        ValueError: no line, too many, or two `in` lines that may match the same topic.
    """

    def __init__(self, rules: Sequence[Rule]) -> None:
        if not 1 <= len(rules) <= MAX_RULES:
            raise ValueError(f"{len(rules)} topic lines; expected 1 to {MAX_RULES}")
        inward = [rule for rule in rules if rule.is_inward]
        for index, rule in enumerate(inward):
            for other in inward[index + 1 :]:
                if core.filters_overlap(rule.remote_filter, other.remote_filter):
                    raise ValueError(
                        f"the topic lines {str(rule)!r} and {str(other)!r} may match the same topic of the other "
                        "broker; expected each message to come in by one line"
                    )
        self.local_filters = _largest_qos([(rule.local_filter, rule.qos) for rule in rules if rule.is_outward])
        self.remote_filters = _largest_qos([(rule.remote_filter, rule.qos) for rule in inward])
        self.echo = _first_echo(rules)
        self.outward = _mapper(
            [(rule.local_filter, rule.local_prefix, rule) for rule in rules if rule.is_outward], True
        )
        self.inward = _mapper([(rule.remote_filter, rule.remote_prefix, rule) for rule in inward], False)


def _largest_qos(filters: Sequence[tuple[str, int]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for topic_filter, qos in filters:
        found[topic_filter] = max(qos, found.get(topic_filter, 0))
    return found


def _mapper(lines: Sequence[tuple[str, str, Rule]], outward: bool) -> Callable[[str], Mapped | None]:
    """Makes the function from a topic of one side to that of the other side; None if no line matches."""

    @lru_cache(maxsize=_REMEMBERED)
    def mapped(topic: str) -> Mapped | None:
        for topic_filter, prefix, rule in lines:
            if core.matches(topic_filter, topic):
                added = rule.remote_prefix if outward else rule.local_prefix
                return Mapped(added + topic.removeprefix(prefix), rule.qos)
        return None

    return mapped


def _first_echo(rules: Sequence[Rule]) -> tuple[Rule, Rule] | None:
    """Two lines (or one line twice) by which the other broker could send our messages back."""
    for out in (rule for rule in rules if rule.is_outward):
        for back in (rule for rule in rules if rule.is_inward):
            if core.filters_overlap(out.remote_filter, back.remote_filter):
                return out, back
    return None
