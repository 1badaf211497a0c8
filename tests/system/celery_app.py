"""The Celery application of the system tests: the worker loads it with all settings at their defaults.

Broker and result backend come from the environment (CELERY_BROKER_URL, CELERY_RESULT_BACKEND), as Celery reads them.
"""

from celery import Celery

app = Celery("holdmq-tests")


def add(left: int, right: int) -> int:
    """A task with a result."""
    return left + right


def fail() -> None:
    """A task that raises."""
    raise ValueError("on purpose")


app.task(name="add")(add)
app.task(name="fail")(fail)
