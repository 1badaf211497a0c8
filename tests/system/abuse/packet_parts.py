"""Subscribes and unsubscribes a thousand filters in each packet; between them come packets of 1 MB, all refused."""

import itertools

from tests.bridge import packets
from tests.bridge import packets5 as p
from tests.system.abuse.target import Target, receive

ALLOWED, REFUSED = 1000, 100_000
PAIR = b"\x26" + packets.text("n") + packets.text("v")


def abuse(target: Target) -> None:
    """One client that may, and one after the other that may not."""
    names = [f"{number:05}" for number in range(REFUSED)]
    some = names[:ALLOWED]
    too_many = (
        packets.subscribe(1, *((name, 0) for name in names)),
        packets.unsubscribe(1, *names),
        p.connect("abuse-parts-5", properties=PAIR * 9000),
    )
    with target.client("abuse-parts") as client:
        for number in itertools.count():
            if not target.has_time():
                return
            client.sendall(packets.subscribe(1, *((name, 0) for name in some)))
            receive(client, 5 + len(some))
            client.sendall(packets.unsubscribe(2, *some))
            receive(client, 4)
            refused(target, too_many[number % len(too_many)])


def refused(target: Target, packet: bytes) -> None:
    """The connection ends."""
    logs_in = packet[0] == packets.connect()[0]
    opened = target.connection() if logs_in else target.client("abuse-parts-refused")
    with opened as client:
        try:
            client.sendall(packet)
            while client.recv(65_536):
                continue
        except ConnectionError:
            pass
