"""What runs in the processes of test_multiprocessing; a client is made at import, as programs do."""

import os
from typing import Any

from holdmq import HistoryProducer, HoldMQ

hold = HoldMQ.from_url(os.environ.get("HOLDMQ_TEST_URL", "redis://127.0.0.1:1"))
made_at_import: list[HistoryProducer] = []


def publish(text: str) -> tuple[int, int]:
    """Publishes with the client that was made at import; the process, and the receivers."""
    return os.getpid(), hold.channel("done").publish(text)


def append(text: str) -> tuple[int, bool]:
    """Appends with a producer of the process."""
    if not made_at_import or made_at_import[0].name != f"worker-{os.getpid()}":
        made_at_import[:] = [hold.history.store("orders").producer(f"worker-{os.getpid()}")]
    return os.getpid(), made_at_import[0].append("orders/new", text).new


def append_shared(text: str) -> str:
    """Appends with the producer that is there; the name of the error."""
    try:
        made_at_import[0].append("orders/new", text)
    except Exception as error:  # noqa: BLE001 - its name is what is asked for
        return type(error).__name__
    return "stored"


def refuse(thing: Any) -> str:
    """Is never reached with what cannot be handed to another process."""
    return type(thing).__name__
