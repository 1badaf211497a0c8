"""What was published, what came, and what is wrong with that: the books of the fault test.

Each topic has one publisher, which numbers its messages from 1 on; a payload begins with the number.  So a subscriber's
account of a topic is the last number that it has: the next one has to be one larger.

    publisher ──► storm/<publisher>/<QoS>/<k>  "17 ..." ──► account of each subscriber whose filters match

Every step of a message is noted with time, client and bridge (the last MAX_EVENTS of all), so that a finding comes with
the trace of its message.  Not thread-safe.
"""

import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from holdmq.core import mqtt
from tests.system.mqtt_connection import Message

MAX_EVENTS = 400_000
MAX_FINDINGS = 30  # with a trace each; those beyond are counted
MAX_TRACE = 120
AROUND_S = 1.5  # of a message's life, in which faults and connections are shown with it


class Event(NamedTuple):
    """A step: of a message if there is a topic, else of a connection or a fault."""

    at: float
    who: str
    what: str
    topic: bytes = b""
    number: int = 0
    packet_id: int = 0

    def __str__(self) -> str:
        about = f" {self.topic.decode()} {self.number} (id {self.packet_id})" if self.topic else ""
        return f"{self.at:10.4f} {self.who:>10}: {self.what}{about}"


@dataclass(slots=True)
class Account:
    """What one subscriber, or one group, has of one topic.

    Attributes:
        last: the largest number that came; of a group: that came with all before it.
        skipped: numbers below it that did not come in their turn.
        ahead: of a group, whose members are not in order with each other: numbers beyond `last`.
        unreleased: of QoS 2: came, and have had no PUBREL.
        gone: were lost with a primary, and passed over.
        sure: what of this is on the replica, if the primary is lost now: others may come again.
        may_return: says so since a primary was lost, until the next one is.
        since: the largest number that came since then.
    """

    last: int = 0
    skipped: set[int] = field(default_factory=set)
    ahead: set[int] = field(default_factory=set)
    unreleased: set[int] = field(default_factory=set)
    gone: set[int] = field(default_factory=set)
    sure: "Account | None" = None
    may_return: "Account | None" = None
    since: int = 0

    def has_for_good(self, number: int) -> bool:
        """Whether it came, and, with QoS 2, was released."""
        return (number <= self.last or number in self.ahead) and number not in self.unreleased

    def copy(self) -> "Account":
        """What `has_for_good` needs."""
        return Account(self.last, ahead=set(self.ahead), unreleased=set(self.unreleased))


def number_of(payload: bytes) -> int:
    """The number that a payload begins with."""
    return int(payload.partition(b" ")[0])


def without_share(topic_filter: bytes) -> bytes:
    """The filter itself of `$share/<group>/<filter>`."""
    return topic_filter.split(b"/", 2)[2] if topic_filter.startswith(b"$share/") else topic_filter


def matches(topic_filter: bytes, topic: bytes) -> bool:
    """Whether a filter of the test matches a topic of the test (no `$`, no empty levels)."""
    wanted, levels = topic_filter.split(b"/"), topic.split(b"/")
    if wanted[-1] == b"#":
        wanted, levels = wanted[:-1], levels[: len(wanted) - 1]
    return len(wanted) == len(levels) and all(w in (b"+", level) for w, level in zip(wanted, levels, strict=True))


class Ledger:
    """The books.  Times in it are seconds since it was opened.

    Args:
        exactly_once: QoS 2 does not come twice. Over a cluster it may (docs/cluster.md).
    """

    def __init__(self, *, exactly_once: bool = True) -> None:
        self._exactly_once = exactly_once
        self._opened = time.monotonic()
        self._published: dict[bytes, int] = {}
        self._sure: dict[bytes, int] = {}
        self._lossable: dict[bytes, set[int]] = {}  # may have been lost with a primary
        self._filters: dict[str, Mapping[bytes, int]] = {}
        self._accounts: dict[str, dict[bytes, Account]] = {}
        self._groups: dict[str, str] = {}  # of which group is this client a member
        self._visitors: set[str] = set()
        self._events: deque[Event] = deque(maxlen=MAX_EVENTS)
        self.findings: list[str] = []
        self.suspects: list[tuple[bytes, int]] = []  # the messages that they are about
        self.more_findings = 0
        self.counts: Counter[str] = Counter()

    def now(self) -> float:
        """Seconds since the ledger was opened."""
        return time.monotonic() - self._opened

    # ---- what there is to be ---------------------------------------------------------------------------------------

    def expects(self, name: str, filters: Mapping[bytes, int]) -> None:
        """The subscriber has these filters (with their QoS) from the beginning."""
        self._filters[name] = {without_share(topic_filter): qos for topic_filter, qos in filters.items()}
        self._accounts[name] = {}

    def joins(self, name: str) -> None:
        """A client begins with a new session: of each topic it is to get all from its first message on."""
        self._visitors.add(name)
        self._accounts[name] = {}

    def expects_together(self, group: str, names: Iterable[str], filters: Mapping[bytes, int]) -> None:
        """These have shared subscriptions, from the beginning and no others: each message comes to one of them."""
        for name in names:
            self.expects(name, filters)
            self._groups[name] = group
        self._accounts[group] = {}

    def next_number(self, topic: bytes) -> int:
        """The number of the message that is published now."""
        self._published[topic] = self._published.get(topic, 0) + 1
        self.counts["published"] += 1
        return self._published[topic]

    def due_qos(self, name: str, topic: bytes) -> int:
        """With which QoS the subscriber gets the topic; -1: not at all."""
        granted = [qos for topic_filter, qos in self._filters[name].items() if matches(topic_filter, topic)]
        return min(max(granted), int(topic.split(b"/")[2])) if granted else -1

    def missing(self, name: str) -> dict[bytes, str]:
        """What the subscriber has not got yet, by topic."""
        accounts = self._accounts[self._groups.get(name, name)]
        found: dict[bytes, str] = {}
        for topic, published in self._published.items():
            if name in self._visitors and topic not in accounts:
                continue
            account = accounts.get(topic, _NOTHING)
            lossable = self._lossable.get(topic, set())
            waits = set(range(account.last + 1, published + 1)) - account.ahead - lossable
            if self.due_qos(name, topic) > 0 and (waits or account.skipped):
                found[topic] = f"{sorted(account.skipped)[:5]} and {account.last + 1}..{published}"
        return found

    # ---- what happens (Watcher of the clients) ---------------------------------------------------------------------

    def received(self, name: str, message: mqtt.Publish) -> None:
        """A subscriber got a message."""
        topic, number = message.topic, number_of(message.payload)
        about = Message(topic, message.payload)
        self.counts["received"] += 1
        if self.due_qos(name, topic) != message.qos:
            self.finding(name, f"QoS {message.qos}, expected {self.due_qos(name, topic)}", about)
        group = self._groups.get(name)
        begun = number - 1 if name in self._visitors else 0
        account = self._accounts[group or name].setdefault(topic, Account(begun))
        if number > self._published.get(topic, 0):
            self.finding(name, "gets what nobody has published", about)
        elif number in account.gone:
            self.finding(name, "gets what was lost with a primary, behind later messages", about)
        elif number <= account.last or number in account.ahead:
            self._came_again(name, account, message)
        elif group is not None:
            account.ahead.add(number)
            while account.last + 1 in account.ahead:
                account.last += 1
                account.ahead.remove(account.last)
        else:
            passed = set(range(account.last + 1, number))
            lost = passed & self._lossable.get(topic, set())
            account.gone |= lost
            if lost:
                self.counts["lost with a primary"] += len(lost)
            if passed - lost:
                self.finding(name, f"gets {number} after {account.last}: not in order, or some are lost", about)
                account.skipped |= passed - lost
            account.last = number
        if message.qos == 2:
            account.unreleased.add(number)
        account.since = max(account.since, number)

    def _came_again(self, name: str, account: Account, message: mqtt.Publish) -> None:
        number = number_of(message.payload)
        if number in account.skipped:
            account.skipped.discard(number)
            self.note(name, "comes late", message=Message(message.topic, message.payload))
        elif not self._exactly_once:
            self.counts["repeated"] += 1
        elif message.qos == 2 and (account.may_return is None or account.may_return.has_for_good(number)):
            self.finding(name, "gets a message of QoS 2 twice", Message(message.topic, message.payload))
        elif message.qos == 2 and name not in self._groups and number <= account.since:
            what = f"gets a message of QoS 2 again, after {account.since}, since a primary was lost"
            self.finding(name, what, Message(message.topic, message.payload))
        else:
            self.counts["repeated"] += 1

    def released(self, name: str, message: Message) -> None:
        """A subscriber got the PUBREL of a message."""
        account = self._accounts[self._groups.get(name, name)].get(message.topic, _NOTHING)
        account.unreleased.discard(number_of(message.payload))

    # ---- a primary is lost for good --------------------------------------------------------------------------------

    def cut(self, unacknowledged: Iterable[Message]) -> None:
        """What is acknowledged now will be on the replica (then a WAIT follows); what is not, is told."""
        self._sure = dict(self._published)
        for message in unacknowledged:
            if message.topic in self._sure:
                self._sure[message.topic] = min(self._sure[message.topic], number_of(message.payload) - 1)
        for account in self._all_accounts():
            account.sure = account.copy()

    def primary_died(self) -> None:
        """What was published since the cut, and until now, may be lost."""
        for topic, published in self._published.items():
            lossable = range(self._sure.get(topic, 0) + 1, published + 1)
            self._lossable.setdefault(topic, set()).update(lossable)
            self.counts["in doubt"] += len(lossable)

    def replica_serves(self) -> None:
        """What comes from now on is the replica's: what it was not told by the cut may come again, in order."""
        for account in self._all_accounts():
            account.may_return, account.sure, account.since = account.sure or Account(), None, 0

    def _all_accounts(self) -> Iterable[Account]:
        return [account for accounts in self._accounts.values() for account in accounts.values()]

    def note(self, name: str, what: str, *, message: Message | None = None, packet_id: int = 0) -> None:
        """A step of a message (else of the connection)."""
        if message is None:
            self._events.append(Event(self.now(), name, what, packet_id=packet_id))
        else:
            number = number_of(message.payload)
            self._events.append(Event(self.now(), name, what, message.topic, number, packet_id))

    def finding(self, name: str, what: str, message: Message | None = None) -> None:
        """Something is wrong."""
        self.note(name, f"FINDING: {what}", message=message)
        if len(self.findings) == MAX_FINDINGS:
            self.more_findings += 1
            return
        if message is None:
            trace = self.around([self.now()], {name})
        else:
            number = number_of(message.payload)
            self.suspects.append((message.topic, number))
            trace = self.trace(name, message.topic, range(number - 1, number + 2))
        self.findings.append("\n    ".join([f"{name}: {what}", *trace]))

    def lost(self, name: str, topic: bytes, what: str) -> None:
        """A subscriber has not got everything of a topic."""
        account = self._accounts[self._groups.get(name, name)].get(topic, _NOTHING)
        number = min(account.skipped, default=account.last + 1)
        self.finding(name, f"never got {what} of {topic.decode()}", Message(topic, b"%d " % number))

    # ---- traces ----------------------------------------------------------------------------------------------------

    def trace(self, name: str, topic: bytes, numbers: Sequence[int]) -> list[str]:
        """The life of some messages on their way to a subscriber, with the faults and connections around it."""
        names = {topic.split(b"/")[1].decode(), name}
        if name in self._groups:
            names |= {member for member, group in self._groups.items() if group == self._groups[name]}
        wanted = set(numbers)
        own = [
            event for event in self._events if event.topic == topic and event.number in wanted and event.who in names
        ]
        context = self.around([event.at for event in own], names)
        return sorted({*(str(event) for event in own), *context})[-MAX_TRACE:]

    def around(self, times: Iterable[float], names: set[str]) -> list[str]:
        """Faults, and the connections of these clients, near these times."""
        moments = sorted(times)
        return [
            str(event)
            for event in self._events
            if not event.topic
            and event.who in names | {"faults"}
            and any(abs(event.at - moment) < AROUND_S for moment in moments)
        ][-MAX_TRACE:]


_NOTHING = Account()
