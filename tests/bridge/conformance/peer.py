"""A client of either version of MQTT, spoken in raw packets: most tests of this folder run once for each version.

Its methods say what differs: properties and reason codes exist in 5.0 only and are ignored or 0 in 3.1.1.
"""

from collections import deque
from typing import Any, Self

from tests.bridge import packets, packets5
from tests.bridge.packets import Will
from tests.bridge.packets5 import Received
from tests.bridge.talk import Talk

CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK, UNSUBACK, PINGRESP, DISCONNECT = (
    2,
    3,
    4,
    5,
    6,
    7,
    9,
    11,
    13,
    14,
)
BARRIER = 65535


def connect(
    version: int, client_id: str = "", *, will: Will | None = None, properties: bytes = b"", **more: Any
) -> bytes:
    """CONNECT; options as of packets.connect."""
    if version == 5:
        return packets5.connect(client_id, will=will, properties=properties, **more)
    return packets.connect(client_id, will=will, **more)


def read(version: int, data: bytes) -> Received:
    """Takes a whole packet of a server apart."""
    if version == 5:
        return packets5.read(data)
    got = Received(data[0] >> 4)
    if got.kind == PUBLISH:
        published = packets.read_publish(data)
        got.topic, got.payload, got.qos, got.pid = published.topic, published.payload, published.qos, published.pid
        got.retain, got.dup = published.retain, published.dup
    elif got.kind == CONNACK:
        got.present, got.code = bool(data[2]), data[3]
    elif got.kind in (PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK, UNSUBACK):
        got.pid, got.codes = int.from_bytes(data[2:4], "big"), list(data[4:])
    return got


class Peer(Talk):
    """A connection that speaks one version."""

    def __init__(self, port: int, version: int, **more: Any) -> None:
        super().__init__(port, **more)
        self.version = version
        self.connack = Received(0)
        self._early: deque[Received] = deque()

    @classmethod
    def open(
        cls,
        port: int,
        client_id: str = "",
        *,
        version: int,
        lasting: int = 0,
        clean: bool | None = None,
        properties: bytes = b"",
        **more: Any,
    ) -> Self:
        """A client that is through its CONNECT.

        Args:
            port: of the bridge.
            client_id: of the client.
            version: 4 or 5.
            lasting: seconds that its session outlives the connection; in 3.1.1 a setting says how long, if not 0.
            clean: begin anew; None: unless it is lasting.
            properties: of the CONNECT.
            more: as of packets.connect.
        """
        peer = cls(port, version)
        clean = not lasting if clean is None else clean
        if version == 5 and lasting:
            properties = packets5.number(packets5.SESSION_EXPIRY, lasting) + properties
        peer.send(connect(version, client_id, clean=clean, properties=properties, **more))
        peer.connack = peer.read(CONNACK)
        assert peer.connack.code == 0, peer.connack
        return peer

    def read(self, kind: int | None = None) -> Received:
        """The next packet, taken apart."""
        got = self._early.popleft() if self._early else read(self.version, self.read_packet())
        assert kind in (None, got.kind), got
        return got

    def until(self, kind: int) -> Received:
        """The next packet of this kind; what came before it is read later."""
        before: list[Received] = []
        while (got := self.read()).kind != kind:
            before.append(got)
        self._early.extendleft(reversed(before))
        return got

    def arrived(self) -> list[Received]:
        """All packets that have come, and all that the server has for this client by now.

        A message of its own goes to the server and back: what the server had before it comes before its PUBACK.
        """
        self.say("$barrier", qos=1, pid=BARRIER)
        got: list[Received] = []
        while (packet := self.read()).kind != PUBACK or packet.pid != BARRIER:
            got.append(packet)
        return got

    def message(self, *, finish: bool = True) -> Received:
        """The next packet, which must be a PUBLISH; goes through its whole exchange if `finish`."""
        got = self.read(PUBLISH)
        if finish and got.qos == 1:
            self.answer(0x40, got.pid)
        elif finish and got.qos == 2:
            self.answer(0x50, got.pid)
            assert self.until(PUBREL).pid == got.pid
            self.answer(0x70, got.pid)
        return got

    def messages(self, count: int) -> list[bytes]:
        """The payloads of the next so many messages."""
        return [self.message().payload for _ in range(count)]

    def answer(self, first: int, pid: int, code: int = 0) -> None:
        """PUBACK (0x40), PUBREC (0x50), PUBREL (0x62) or PUBCOMP (0x70)."""
        self.send(packets5.acknowledgement(first, pid, code))

    def say(self, topic: str, payload: bytes = b"", *, properties: bytes = b"", **more: Any) -> None:
        """Sends a PUBLISH; options as of packets.publish."""
        if self.version == 5:
            self.send(packets5.publish(topic, payload, properties=properties, **more))
        else:
            self.send(packets.publish(topic, payload, **more))

    def tell(self, topic: str, payload: bytes = b"", *, qos: int = 1, pid: int = 1, **more: Any) -> int:
        """Publishes and goes through the whole exchange; returns the reason code of the first answer."""
        self.say(topic, payload, qos=qos, pid=pid if qos else 0, **more)
        if qos == 0:
            self._early.extend(self.arrived())  # the server has it
            return 0
        got = self.until(PUBACK if qos == 1 else PUBREC)
        if qos == 2 and got.code < 0x80:
            self.answer(0x62, pid)
            assert self.until(PUBCOMP).pid == pid
        return got.code

    def wants(self, *filters: tuple[str, int], pid: int = 1, properties: bytes = b"") -> list[int]:
        """Subscribes to (filter, QoS or options) pairs; returns the codes of the SUBACK."""
        if self.version == 5:
            self.send(packets5.subscribe(pid, *filters, properties=properties))
        else:
            self.send(packets.subscribe(pid, *filters))
        got = self.until(SUBACK)
        assert got.pid == pid
        return got.codes

    def drops(self, *filters: str, pid: int = 1) -> list[int]:
        """Unsubscribes; returns the codes of the UNSUBACK, none in 3.1.1."""
        self.send((packets5 if self.version == 5 else packets).unsubscribe(pid, *filters))
        got = self.until(UNSUBACK)
        assert got.pid == pid
        return got.codes

    def leave(self, code: int = 0, properties: bytes = b"") -> None:
        """DISCONNECT, and the end of the connection."""
        self.send(packets5.disconnect(code, properties) if self.version == 5 else packets.DISCONNECT)
        self.expect_closed()
        self.close()

    def vanish(self) -> None:
        """The end of the connection without a word, as soon as the bridge has dealt with all that was sent."""
        self.arrived()
        self.close()

    def expect_refused(self, *codes: int) -> None:
        """The connection ends: in 5.0 with a DISCONNECT for one of these reasons, in 3.1.1 without a word."""
        if self.version == 5:
            got = self.until(DISCONNECT)
            assert got.code in codes, got
        self.expect_closed()
