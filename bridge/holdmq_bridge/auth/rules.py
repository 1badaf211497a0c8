"""Rules about topics: their text, the substitution of `%c` and `%u`, and the decision for one client.

    Rule            allow|deny publish|subscribe|all <filter>, as it is stored
    compile_rules   rules and a client's names ──► CompiledRules: plain filters, in order
    CompiledRules   whether this client may publish to a topic or subscribe to a filter

Invariants
 1. The first rule that applies decides. A rule applies to a publish if its filter matches the topic. For a
    subscription, an allowing rule applies if its filter *covers* the requested one, and a denying rule if its filter
    *overlaps* it. So an allowed subscription contains no topic that the same rules deny. Deliveries are checked all the
    same: a message may have been queued under other rules.
 2. A client's names never widen a rule. `%c` or `%u` stands for exactly one level, or a part of one. If the name has a
    `/`, `+`, `#` or U+0000, is missing or empty, or begins the first level with a `$`, an allowing rule does not apply,
    and a denying one denies everything from that level down.
 3. A shared subscription is checked by its inner filter. A will is a publish.

Pure: no I/O, no clock. A decision walks the list: O(rules x levels).
"""

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Self

from holdmq.core import (
    MAX_TOPIC_BYTES,
    InvalidTopicError,
    check_topic_filter,
    check_topic_name,
    filter_covers,
    filters_overlap,
    is_topic_filter,
    split_share,
)
from holdmq.errors import ArgumentError

_MARKS = {"c": "the client id", "u": "the username"}


class RuleError(ArgumentError):
    """A text that is not a rule. The message says what is wrong, and what is expected."""


class Action(enum.Flag):
    """The operations that a rule is about."""

    PUBLISH = 1
    SUBSCRIBE = 2
    ALL = 3

    @property
    def word(self) -> str:
        """The word for this action in a rule."""
        return str(self.name).lower()


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule. Its filter may have `%c` (client id), `%u` (username) and `%%` (a percent sign)."""

    allow: bool
    action: Action
    topic_filter: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parses `allow|deny publish|subscribe|all <filter>`. The filter is everything after the second space.

        Raises:
            RuleError: it is another text.
        """
        words = text.split(" ", 2)
        if len(words) != 3:
            raise RuleError(f"rule {text!r}; expected allow|deny publish|subscribe|all <filter>")
        return cls.of(*words)

    @classmethod
    def of(cls, verdict: str, action: str, topic_filter: str) -> Self:
        """Makes a rule from its three words.

        Raises:
            RuleError: one of them is wrong.
        """
        if verdict not in ("allow", "deny"):
            raise RuleError(f"rule: {verdict!r} is not a verdict; expected allow or deny")
        actions = {one.word: one for one in (Action.PUBLISH, Action.SUBSCRIBE, Action.ALL)}
        if action not in actions:
            raise RuleError(f"rule: {action!r} is not an action; expected publish, subscribe or all")
        _template(topic_filter)
        return cls(verdict == "allow", actions[action], topic_filter)

    def __str__(self) -> str:
        return f"{'allow' if self.allow else 'deny'} {self.action.word} {self.topic_filter}"


@dataclass(frozen=True, slots=True)
class RuleList:
    """Rules with the name of their owner: `user alice`, `role sensors`, `role everybody`."""

    name: str
    rules: tuple[Rule, ...]


@dataclass(frozen=True, slots=True)
class Entry:
    """A rule with the names of one client filled in, and its origin."""

    allow: bool
    action: Action
    topic_filter: bytes
    source: str
    number: int  # in its list, from 1
    rule: Rule


@dataclass(frozen=True, slots=True)
class Decision:
    """A verdict, and the entry that decided; None: none applied."""

    allowed: bool
    entry: Entry | None


@dataclass(frozen=True, slots=True)
class CompiledRules:
    """The rules of one client. Two are equal if they decide alike, also of different versions.

    Attributes:
        entries: in the order in which they apply.
        default: the verdict if none applies.
        version: of the stored rules.
    """

    entries: tuple[Entry, ...]
    default: bool
    version: int = field(default=0, compare=False)

    def may_publish(self, topic: bytes) -> bool:
        """Whether the client may publish to this topic, also by a will.

        Raises:
            InvalidTopicError: it is not a valid topic name.
        """
        return self.decide_publish(topic).allowed

    def may_subscribe(self, topic_filter: bytes) -> bool:
        """Whether the client may subscribe to this filter, also to `$share/<group>/<filter>`.

        Raises:
            InvalidTopicError: it is not a valid topic filter.
        """
        return self.decide_subscribe(topic_filter).allowed

    def decide_publish(self, topic: bytes) -> Decision:
        """Decides as `may_publish`, with the entry that applies."""
        check_topic_name(topic)
        for entry in self.entries:
            # A topic is a filter that matches only itself. So a filter that covers it matches it.
            if entry.action is not Action.SUBSCRIBE and filter_covers(entry.topic_filter, topic):
                return Decision(entry.allow, entry)
        return Decision(self.default, None)

    def decide_subscribe(self, topic_filter: bytes) -> Decision:
        """Decides as `may_subscribe`, with the entry that applies."""
        shared = split_share(topic_filter)
        requested = topic_filter if shared is None else shared[1]
        for entry in self.entries:
            applies = filter_covers if entry.allow else filters_overlap
            if entry.action is not Action.PUBLISH and applies(entry.topic_filter, requested):
                return Decision(entry.allow, entry)
        return Decision(self.default, None)

    def publish_entries(self) -> tuple[list[tuple[bool, bytes]], bool]:
        """Pairs (allow, filter) for publishes, of which the first match decides; and the default."""
        entries = [(entry.allow, entry.topic_filter) for entry in self.entries if entry.action is not Action.SUBSCRIBE]
        return entries, self.default

    def receive_entries(self) -> tuple[list[tuple[bool, bytes]], bool]:
        """The same for messages to the client: it may receive the topics that it may subscribe to."""
        entries = [(entry.allow, entry.topic_filter) for entry in self.entries if entry.action is not Action.PUBLISH]
        return entries, self.default

    @property
    def subscribes_freely(self) -> bool:
        """Whether the client may subscribe to everything."""
        return self.default and all(entry.action is Action.PUBLISH for entry in self.entries)


def compile_rules(
    lists: Iterable[RuleList], client_id: bytes, username: str | None, *, default: bool, version: int = 0
) -> CompiledRules:
    """Makes the rules of one client.

    Args:
        lists: in the order in which they apply.
        client_id: what `%c` stands for.
        username: what `%u` stands for; None: there is none.
        default: the verdict if no rule applies.
        version: of the stored rules.
    """
    name = b"" if username is None else username.encode("utf-8", "surrogatepass")
    values = {mark: (value, _fits_in_a_level(value)) for mark, value in (("c", client_id), ("u", name))}
    entries = tuple(
        Entry(rule.allow, rule.action, topic_filter, rules.name, number, rule)
        for rules in lists
        for number, rule in enumerate(rules.rules, 1)
        for topic_filter in _expand(rule, values)
    )
    return CompiledRules(entries, default, version)


def _expand(rule: Rule, values: Mapping[str, tuple[bytes, bool]]) -> Sequence[bytes]:
    """The filter with the names filled in. If a name does not fit: none, or filters that deny more."""
    if "%" not in rule.topic_filter:
        return (rule.topic_filter.encode(),)
    levels: list[bytes] = []
    template = _template(rule.topic_filter)
    for index, parts in enumerate(template):
        text = b"".join(values[mark][0] if mark else literal.encode() for mark, literal in parts)
        safe = all(values[mark][1] for mark, _ in parts if mark)
        if rule.allow and index == 0 and parts[0][0] and text.startswith(b"$"):
            safe = False
        if not safe:
            return () if rule.allow else _everything_below(levels, text)
        levels.append(text)
    plain = b"/".join(levels)
    # Names that fit in a level keep the filter valid, unless it becomes too long or a `$share` one.
    if (len(plain) <= MAX_TOPIC_BYTES and not plain.startswith(b"$")) or is_topic_filter(plain):
        return (plain,)
    marked = next(index for index, parts in enumerate(template) if any(mark for mark, _ in parts))
    return () if rule.allow else _everything_below(levels[:marked], levels[marked])


def _everything_below(levels: Sequence[bytes], text: bytes) -> Sequence[bytes]:
    """Filters for all topics below these levels, including topics that begin with `$`, which `#` does not match."""
    found = [b"/".join([*levels, b"#"])]
    first = text.split(b"/", 1)[0]
    if not levels and first.startswith(b"$") and is_topic_filter(first + b"/#"):
        found.append(first + b"/#")
    return found


def _fits_in_a_level(value: bytes) -> bool:
    if b"/" in value:
        return False
    try:
        check_topic_name(value)
    except InvalidTopicError:
        return False
    return True


_Part = tuple[str, str]  # (mark, "") or ("", literal)


@lru_cache(maxsize=4096)
def _template(topic_filter: str) -> tuple[tuple[_Part, ...], ...]:
    """The levels of a rule's filter, each as literal texts and marks.

    Raises:
        RuleError: it is not a valid filter, with the marks taken as ordinary letters.
    """
    if any(ord(letter) < 0x20 or 0x7F <= ord(letter) < 0xA0 for letter in topic_filter):
        raise RuleError(f"rule: the filter {topic_filter!r} contains a control character")
    levels = tuple(_parts(level, topic_filter) for level in topic_filter.split("/"))
    plain = "/".join("".join("x" if mark else literal for mark, literal in parts) for parts in levels)
    try:
        check_topic_filter(plain)
    except InvalidTopicError as error:
        raise RuleError(f"rule: the filter {topic_filter!r} is invalid: {error}") from error
    if plain.startswith("$share/"):
        raise RuleError(f"rule: {topic_filter!r} is a shared subscription; expected its inner filter")
    if plain.startswith("$") and not levels[0][0][0] and any(mark for mark, _ in levels[0]):
        raise RuleError(f"rule: {topic_filter!r}: %c and %u cannot complete a first level that begins with $")
    return levels


def _parts(level: str, topic_filter: str) -> tuple[_Part, ...]:
    parts: list[_Part] = []
    at = 0
    while at < len(level):
        if level[at] != "%":
            end = level.find("%", at)
            end = len(level) if end < 0 else end
            parts.append(("", level[at:end]))
            at = end
            continue
        mark = level[at + 1 : at + 2]
        if mark != "%" and mark not in _MARKS:
            raise RuleError(
                f"rule: the filter {topic_filter!r} contains {'%' + mark!r}; expected %c (client id), %u (username) "
                "or %% (a percent sign)"
            )
        parts.append(("", "%") if mark == "%" else (mark, ""))
        at += 2
    return tuple(parts) or (("", ""),)


# Without users and rules everything is allowed, but not to speak for the server: topics below $SYS are its own, except
# the states of links to this broker.
_BUILT_IN = RuleList(
    "the built-in ones",
    (Rule.parse("allow publish $SYS/broker/connection/#"), Rule.parse("deny publish $SYS/#")),
)


def without_rules(version: int = 0) -> CompiledRules:
    """The rules of every client while there are neither users nor rules.

    Args:
        version: of the stored rules.
    """
    return CompiledRules(_WITHOUT_RULES.entries, _WITHOUT_RULES.default, version)


_WITHOUT_RULES = compile_rules([_BUILT_IN], b"", None, default=True)
