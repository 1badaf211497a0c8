"""What the fault test watches beside the messages with numbers: wills, and retained messages.

    mortal clients ──will, numbered──► witness: that of each connection that ended without a word
    publishers ──retained, numbered──► kept/<publisher>  ──► a guest that subscribes when it is calm: the last number

Both have books of their own; findings and steps go to the ledger.
"""

from collections.abc import Iterable

from holdmq.core import mqtt
from tests.system.mqtt_client import Client
from tests.system.mqtt_connection import Message
from tests.system.mqtt_ledger import Ledger, number_of

WILLS = b"will/#"
KEPT = b"kept/#"


class Notes:
    """A watcher that keeps what came: the numbers of each topic."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.numbers: dict[bytes, set[int]] = {}

    def received(self, name: str, message: mqtt.Publish) -> None:
        """A message came."""
        del name
        self.numbers.setdefault(message.topic, set()).add(number_of(message.payload))

    def released(self, name: str, message: Message) -> None:
        """A PUBREL came."""

    def note(self, name: str, what: str, *, message: Message | None = None, packet_id: int = 0) -> None:
        """A step."""
        self._ledger.note(name, what, message=message, packet_id=packet_id)

    def finding(self, name: str, what: str, message: Message | None = None) -> None:
        """The server broke a rule."""
        self._ledger.finding(name, what, message)


class Wills:
    """Of which connections the will has to be published.

    A connection that was accepted and ended without a DISCONNECT: at least once.  After a DISCONNECT nobody knows
    whether the server had it, nor after a CONNECT without a CONNACK whether it had that: these are not asked for.
    """

    def __init__(self, ledger: Ledger) -> None:
        self.notes = Notes(ledger)
        self._last: dict[bytes, int] = {}
        self._due: dict[bytes, set[int]] = {}
        self._sure: dict[bytes, int] = {}
        self._lossable: dict[bytes, set[int]] = {}

    def write(self, client: Client) -> None:
        """The will of the next connection."""
        topic = b"will/%b" % client.name.encode()
        self._last[topic] = self._last.get(topic, 0) + 1
        client.will = mqtt.Will(topic, b"%d " % self._last[topic], 1)

    def ended(self, client: Client) -> None:
        """The present connection ended without a word."""
        assert client.will is not None
        self._due.setdefault(client.will.topic, set()).add(number_of(client.will.payload))

    def missing(self) -> dict[bytes, set[int]]:
        """What has not come yet."""
        lacking = {
            topic: due - self.notes.numbers.get(topic, set()) - self._lossable.get(topic, set())
            for topic, due in self._due.items()
        }
        return {topic: numbers for topic, numbers in lacking.items() if numbers}

    def cut(self, clients: Iterable[Client]) -> None:
        """The wills of connections that are accepted now, or have been, will be on the replica."""
        for client in clients:
            topic = b"will/%b" % client.name.encode()
            last = self._last.get(topic, 0)
            is_sure = client.connected or last in self._due.get(topic, set())
            self._sure[topic] = last if is_sure else last - 1

    def primary_died(self) -> None:
        """Those of connections since the cut may be lost."""
        for topic, last in self._last.items():
            self._lossable.setdefault(topic, set()).update(range(self._sure.get(topic, 0) + 1, last + 1))

    @property
    def count(self) -> int:
        """How many were due until now."""
        return sum(len(due) for due in self._due.values())


class Retained:
    """What is the last message of each topic."""

    def __init__(self) -> None:
        self.last: dict[bytes, int] = {}
        self._sure: dict[bytes, int] = {}
        self._in_doubt: dict[bytes, range] = {}  # from the last one that is sure to the last one that is not

    def next_of(self, client: Client) -> Message:
        """The next one of this publisher."""
        topic = b"kept/%b" % client.name.encode()
        self.last[topic] = self.last.get(topic, 0) + 1
        return Message(topic, b"%d " % self.last[topic])

    def differences(self, got: dict[bytes, set[int]]) -> dict[bytes, str]:
        """What a guest should not, or not have, got; by topic."""
        topics = self.last.keys() | got.keys()
        wanted = {topic: {self.last[topic]} if topic in self.last else set() for topic in topics}
        return {
            topic: f"{sorted(got.get(topic, set()))} in place of {sorted(wanted[topic])}"
            for topic in topics
            if got.get(topic, set()) != wanted[topic] and not self._may_be(topic, got.get(topic, set()))
        }

    def cut(self, unacknowledged: Iterable[Message]) -> None:
        """What is acknowledged now will be on the replica."""
        self._sure = dict(self.last)
        for message in unacknowledged:
            if message.topic in self._sure:
                self._sure[message.topic] = min(self._sure[message.topic], number_of(message.payload) - 1)

    def primary_died(self) -> None:
        """What was published since the cut may be lost."""
        self._in_doubt = {topic: range(self._sure.get(topic, 0), last + 1) for topic, last in self.last.items()}

    def _may_be(self, topic: bytes, got: set[int]) -> bool:
        """The last ones were lost with a primary, and nothing was published since."""
        doubt = self._in_doubt.get(topic, range(0))
        return self.last.get(topic, 0) in doubt and (got <= set(doubt) if len(got) == 1 else not got and 0 in doubt)
