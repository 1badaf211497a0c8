"""Marks the commands of `holdmq` that change something: over Sentinels they confirm only what no failover loses."""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import click

from holdmq._sync.client import HoldMQ
from holdmq.primary import Primary

__all__ = ["PRIMARY", "changing", "primary"]

P = ParamSpec("P")
T = TypeVar("T")

PRIMARY = "holdmq.primary"
"""Where the context has the primary, if the URL names Sentinels."""


def primary() -> Primary | None:
    """The primary of the running command; None if its server has no Sentinels."""
    found: Primary | None = click.get_current_context().meta.get(PRIMARY)
    return found


def changing(command: Callable[P, T]) -> Callable[P, T]:
    """Lets a command wait for the end of a failover, and fail if the primary moves before its end.

    What it printed by then stays printed: its exit status counts.
    """

    @functools.wraps(command)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> T:
        watched = primary()
        hold = click.get_current_context().find_object(HoldMQ)
        if watched is None or hold is None:
            return command(*args, **kwargs)
        with watched.unmoved(hold.client):
            return command(*args, **kwargs)

    return guarded
