"""Ten clients with as many filters of 128 levels as they get, and publishes that lead down each of them."""

import contextlib
import random

from tests.bridge import packets
from tests.system.abuse.target import Target, receive

CLIENTS = 10
FILTERS = 1000
AT_ONCE = 200
LEVELS = 128


def abuse(target: Target) -> None:
    """Eleven clients."""
    chosen = random.Random(1)
    publish = packets.publish("/".join(["a"] * LEVELS), b"x", qos=1, pid=1)
    with contextlib.ExitStack() as stack:
        for number in range(CLIENTS):
            client = stack.enter_context(target.client(f"abuse-deep-{number}"))
            for _ in range(0, FILTERS, AT_ONCE):
                filters = ["/".join(chosen.choices("a+", k=LEVELS - 1)) + "/b" for _ in range(AT_ONCE)]
                client.sendall(packets.subscribe(1, *((topic_filter, 0) for topic_filter in filters)))
                receive(client, len(packets.suback(1, *[0] * AT_ONCE)))
        publisher = stack.enter_context(target.client("abuse-deep-publisher"))
        while target.has_time():
            publisher.sendall(publish)
            receive(publisher, len(packets.puback(1)))
