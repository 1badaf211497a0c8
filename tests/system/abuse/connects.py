"""Connects hundreds of times a second, each time as another client, and leaves without a DISCONNECT."""

import itertools

from tests.system.abuse.target import Target


def abuse(target: Target) -> None:
    """One client after the other."""
    for number in itertools.count():
        if not target.has_time():
            return
        with target.client(f"abuse-connects-{number % 1000}"):
            pass
