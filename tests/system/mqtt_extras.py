"""What the fault test watches beside the messages with numbers: wills, and retained messages.

    mortal clients ──will, numbered──► witness: that of each connection that ended without a word
    publishers ──retained, numbered──► kept/<publisher>  ──► a guest that subscribes when it is calm: the last number

Both have books of their own; findings and steps go to the ledger.
"""

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
        lacking = {topic: due - self.notes.numbers.get(topic, set()) for topic, due in self._due.items()}
        return {topic: numbers for topic, numbers in lacking.items() if numbers}

    @property
    def count(self) -> int:
        """How many were due until now."""
        return sum(len(due) for due in self._due.values())


class Retained:
    """What is the last message of each topic."""

    def __init__(self) -> None:
        self.last: dict[bytes, int] = {}

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
            if got.get(topic, set()) != wanted[topic]
        }
