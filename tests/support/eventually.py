"""Waiting for a condition with a bound, in place of sleeping."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

POLL_S = 0.01


def eventually(condition: Callable[[], T | None], timeout_s: float = 10.0, what: str = "") -> T:
    """Call `condition` until it returns something true, and return that.

    Args:
        condition: called again and again; an AssertionError in it counts as "not yet".
        timeout_s: how long to try.
        what: the condition, for the message.

    Raises:
        AssertionError: it did not come true in time; the text holds the last result or the last error.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        failure: AssertionError | None = None
        result: T | None = None
        try:
            result = condition()
            if result:
                return result
        except AssertionError as error:
            failure = error
        if time.monotonic() > deadline:
            seen = f"last error: {failure}" if failure else f"last result: {result!r}"
            raise AssertionError(f"{what or 'the condition'} did not come true within {timeout_s:g} s; {seen}")
        time.sleep(POLL_S)
