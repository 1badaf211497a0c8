"""Random publishes and subscriptions of several clients against a plain model: who must hear what, and what is kept.

The model is the specification in a few lines: a dictionary of lists, a dictionary of last messages, and sets of
subscriptions.  A run is its seed; a failure names it.
"""

import random
from collections import Counter
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import pytest
import redis

from tests.module.channels_support import (
    MakeRaw,
    held,
    kept_last,
    serves_each,
    set_policies,
)
from tests.support import RawClient

STEPS = 120
CLIENTS = 4
CHANNELS = [f"{kind}{number}" for kind in "abcdef" for number in range(3)]
PATTERNS = ["*", "a*", "b?", "*1", "[cd]*", "e2", "f*", "none*"]


@dataclass(frozen=True)
class Rule:
    """A policy."""

    glob: str
    hold: str
    last: bool
    maxlen: int
    deliver: str

    def text(self) -> str:
        """As the setting wants it."""
        last = "on" if self.last else "off"
        return f"{self.glob} hold={self.hold} last={last} maxlen={self.maxlen} deliver={self.deliver}"


RULES = [
    Rule("a*", "unheard", last=False, maxlen=100, deliver="last"),
    Rule("b*", "unheard", last=False, maxlen=100, deliver="held"),
    Rule("c*", "unheard", last=True, maxlen=2, deliver="last"),
    Rule("d*", "all", last=False, maxlen=5, deliver="held"),
    Rule("e*", "none", last=True, maxlen=1, deliver="last"),
    Rule("f*", "all", last=False, maxlen=3, deliver="none"),
]

Message = tuple[bytes, ...]


@dataclass
class Model:
    """What the server keeps, and who is subscribed to what."""

    lists: dict[str, list[bytes]] = field(default_factory=dict)
    last: dict[str, bytes] = field(default_factory=dict)
    superseded: set[str] = field(default_factory=set)  # a later message was not kept in the list
    channels: list[list[str]] = field(default_factory=lambda: [[] for _ in range(CLIENTS)])
    patterns: list[list[str]] = field(default_factory=lambda: [[] for _ in range(CLIENTS)])

    def publish(self, channel: str, text: bytes) -> list[Counter[Message]]:
        """Who hears it; keeps it by its policy."""
        heard = [Counter(self._of(client, channel, text)) for client in range(CLIENTS)]
        rule = rule_of(channel)
        receivers = sum(counter.total() for counter in heard)
        if rule.hold == "all" or (rule.hold == "unheard" and receivers == 0):
            self.lists[channel] = [*self.lists.get(channel, []), text][-rule.maxlen :]
            self.superseded.discard(channel)
        else:
            self.superseded.add(channel)
        if rule.last:
            self.last[channel] = text
        return heard

    def _of(self, client: int, channel: str, text: bytes) -> list[Message]:
        to_channel = [(b"message", channel.encode(), text)] if channel in self.channels[client] else []
        matching = [pattern for pattern in self.patterns[client] if fnmatchcase(channel, pattern)]
        return to_channel + [(b"pmessage", pattern.encode(), channel.encode(), text) for pattern in matching]

    def offered(self, channel: str) -> list[bytes]:
        """What a new subscriber of the channel is handed."""
        rule = rule_of(channel)
        kept = self.lists.get(channel, [])
        if rule.deliver == "none":
            return []
        if rule.deliver == "held":
            return kept
        if rule.last and channel in self.last:
            return [self.last[channel]]
        return [] if channel in self.superseded else kept[-1:]

    def taken(self, channel: str) -> None:
        """The channel was handed over."""
        if rule_of(channel).deliver == "held":
            self.lists.pop(channel, None)


def rule_of(channel: str) -> Rule:
    """The rule that holds."""
    return next(rule for rule in RULES if fnmatchcase(channel, rule.glob))


@dataclass
class Run:
    """A server, its clients and the model beside them."""

    admin: redis.Redis
    connections: list[RawClient]
    exact: bool
    model: Model = field(default_factory=Model)
    published: int = 0

    def publish(self, choose: random.Random) -> None:
        """Publish directly, in a transaction or in a script."""
        channel, text = choose.choice(CHANNELS), b"%d" % self.published
        self.published += 1
        expected = self.model.publish(channel, text)
        total = sum(counter.total() for counter in expected)
        way = choose.randrange(3)
        if way == 0:
            assert self.admin.publish(channel, text) == total
        elif way == 1:
            pipeline = self.admin.pipeline(transaction=True)
            pipeline.publish(channel, text)
            assert pipeline.execute() == [total]
        else:
            assert self.admin.eval("return redis.call('PUBLISH', ARGV[1], ARGV[2])", 0, channel, text) == total
        for connection, messages in zip(self.connections, expected, strict=True):
            assert Counter(map(tuple, connection.pending())) == messages  # type: ignore[arg-type]

    def subscribe(self, choose: random.Random) -> None:
        """Subscribe one client to some channels; the hand-off comes channel by channel."""
        client = choose.randrange(CLIENTS)
        names = choose.choices(CHANNELS, k=choose.randint(1, 4))
        own = self.model.channels[client]
        new = [name for name in dict.fromkeys(names) if name not in own]
        own += new
        came = self.sent(client, "SUBSCRIBE", names)
        for name in new:
            self.handed([value for value in came if value[:2] == [b"message", name.encode()]], name)
        assert {value[1] for value in came} <= {name.encode() for name in new}

    def psubscribe(self, choose: random.Random) -> None:
        """Subscribe one client to a pattern."""
        client, pattern = choose.randrange(CLIENTS), choose.choice(PATTERNS)
        known = pattern in self.model.patterns[client]
        if not known:
            self.model.patterns[client].append(pattern)
        came = self.sent(client, "PSUBSCRIBE", [pattern])
        matching = [] if known else [name for name in CHANNELS if fnmatchcase(name, pattern)]
        for name in matching:
            own = [value for value in came if value[:3] == [b"pmessage", pattern.encode(), name.encode()]]
            self.handed(own, name)
        assert {value[2] for value in came} <= {name.encode() for name in matching}

    def sent(self, client: int, command: str, names: list[str]) -> list[Any]:
        """Send a subscribing command, check its confirmations; the messages that came. Nobody else gets any."""
        connection = self.connections[client]
        connection.send(command, *names)
        values: list[Any] = connection.pending()
        assert [value[:2] for value in values[: len(names)]] == [[command.lower().encode(), n.encode()] for n in names]
        for other in self.connections:
            assert other.pending() == []
        return values[len(names) :]

    def handed(self, values: list[Any], name: str) -> None:
        """Compare what was handed over of one channel; before 7.2 it may be nothing, and then it stays."""
        offered = self.model.offered(name)
        got = [value[-1] for value in values]
        if got or self.exact:
            assert got == offered, name
            self.model.taken(name)

    def unsubscribe(self, choose: random.Random) -> None:
        """Leave some channel or pattern, or all."""
        client = choose.randrange(CLIENTS)
        command, own = choose.choice(
            [("UNSUBSCRIBE", self.model.channels[client]), ("PUNSUBSCRIBE", self.model.patterns[client])]
        )
        if not own:
            return  # Valkey 8.0 has an error for it
        if choose.random() < 0.7:
            name = choose.choice(own)
            own.remove(name)
            self.connections[client].send(command, name)
        else:
            own.clear()
            self.connections[client].send(command)
        assert all(value[0] == command.lower().encode() for value in self.connections[client].pending())  # type: ignore[index]

    def check_keys(self) -> None:
        """The server keeps what the model keeps."""
        for channel in CHANNELS:
            assert held(self.admin, channel) == self.model.lists.get(channel, [])
            last = [self.model.last[channel]] if channel in self.model.last else []
            assert kept_last(self.admin, channel) == last


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("seed", range(8))
def test_everybody_hears_what_the_model_says(client: redis.Redis, raw: MakeRaw, seed: int, protocol: int) -> None:
    set_policies(client, *[rule.text() for rule in RULES])
    choose = random.Random(seed)
    run = Run(client, [raw(protocol=protocol) for _ in range(CLIENTS)], serves_each(client))
    steps = [run.publish, run.publish, run.publish, run.subscribe, run.psubscribe, run.unsubscribe, run.unsubscribe]
    for _ in range(STEPS):
        choose.choice(steps)(choose)
    run.check_keys()
