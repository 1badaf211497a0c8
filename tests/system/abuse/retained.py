"""Subscribes to everything, a thousand times in one packet, over 3,000 retained messages, and does it again."""

from tests.bridge import packets
from tests.system.abuse.target import Target, pour, receive

TOPICS = 3000


def abuse(target: Target) -> None:
    """One client, which reads all that comes."""
    with target.client("abuse-retained-publisher") as publisher:
        publishes = [packets.publish(f"abuse/r/{n}", b"x" * 100, qos=1, pid=n + 1, retain=True) for n in range(TOPICS)]
        publisher.sendall(b"".join(publishes))
        receive(publisher, 4 * TOPICS)
    with target.client("abuse-retained") as client:
        pour(target, client, packets.subscribe(1, *[("abuse/r/#", 0)] * 999) + packets.unsubscribe(2, "abuse/r/#"))
