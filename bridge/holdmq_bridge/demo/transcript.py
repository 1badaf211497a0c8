"""What the demo prints, and whether every step came out right."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import click

POLL_S = 0.02

T = TypeVar("T")


class StepFailedError(Exception):
    """A step of the demo came out other than it must."""


class Transcript:
    """Prints steps and checks, and remembers how long each step took.

    Attributes:
        seconds: wall time of each step by its title, in order.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        """A step: its title, then what is said in it."""
        click.echo()
        click.secho(title, bold=True)
        begun = time.perf_counter()
        yield
        self.seconds[title] = time.perf_counter() - begun

    def say(self, text: str) -> None:
        """A line of explanation."""
        click.echo(f"  {text}")

    def call(self, command: str, reply: object = None) -> None:
        """A command as a user would type it, and its reply."""
        click.secho(f"  > {command}", fg="cyan")
        if reply is not None:
            click.echo(f"  {reply}")

    def check(self, claim: str, seen: object, expected: object) -> None:
        """Prints the claim; it must hold.

        Raises:
            StepFailedError: `seen` is not what was expected.
        """
        if seen != expected:
            click.secho(f"  [wrong] {claim}", fg="red")
            raise StepFailedError(f"{claim}: expected {_short(expected)}, seen {_short(seen)}")
        click.secho(f"  [ok] {claim}", fg="green")


def wait_for(condition: Callable[[], T], timeout_s: float, what: str) -> T:
    """What the condition returns once it is true.

    Raises:
        StepFailedError: it was not within `timeout_s` seconds.
    """
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise StepFailedError(f"{what} did not happen within {timeout_s:g} s")
        time.sleep(POLL_S)
    return value


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:197]}..."
