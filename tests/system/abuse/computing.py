"""Only computes: what a process that wants a processor does to the others of a machine, without touching the broker."""

from tests.system.abuse.target import Target


def abuse(target: Target) -> None:
    """No client."""
    while target.has_time():
        sum(range(10_000))
