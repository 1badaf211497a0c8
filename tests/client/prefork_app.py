"""The Celery application of test_prefork: what docs/python.md says about processes, as a program would do it.

The client is made at import, before the worker forks. Broker and result backend come from the environment, as Celery
reads them; so does the server of HoldMQ.
"""

import os
import socket
import time

from billiard import current_process  # type: ignore[import-untyped]
from celery import Celery
from celery.signals import worker_process_init

from holdmq import HistoryProducer, HoldMQ

app = Celery("holdmq-prefork")
app.conf.broker_connection_retry_on_startup = True

hold = HoldMQ.from_url(os.environ["CELERY_BROKER_URL"])
orders = hold.history.store("orders")
made_at_import = orders.producer("made-at-import") if "HOLDMQ_PREFORK" in os.environ else None
of_process: list[HistoryProducer] = []


@worker_process_init.connect  # type: ignore[untyped-decorator]
def make_producer(**_: object) -> None:
    """Runs in each process of the worker."""
    of_process.append(orders.producer(f"{socket.gethostname()}/{current_process().index}"))


def append_shared(text: str) -> bool:
    """Appends with a producer that was made before the fork."""
    assert made_at_import is not None
    return made_at_import.append("orders/new", text).new


def append_own(text: str) -> bool:
    """Appends with the producer of the process, slowly enough that each process has something to do."""
    time.sleep(0.02)
    return of_process[0].append("orders/new", text).new


def publish(text: str) -> int:
    """Publishes with the client that was made before the fork."""
    return hold.channel("done").publish(text)


app.task(name="append_shared")(append_shared)
app.task(name="append_own")(append_own)
app.task(name="publish")(publish)
