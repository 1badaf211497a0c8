"""Prints the results and errors of the commands of `holdmq`, also of commands that other packages add."""

import json
import re
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from enum import Enum
from itertools import chain
from typing import Any, TypeVar

import click
import redis

from holdmq.errors import ArgumentError

__all__ = ["Group", "Output", "Seconds", "content", "limited", "output", "plain", "shown"]

T = TypeVar("T")

UNITS_S = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


class Output:
    """Prints results, for a person or as JSON."""

    def __init__(self, as_json: bool) -> None:
        self._json = as_json

    def fields(self, values: dict[str, Any]) -> None:
        """Prints named fields of one thing."""
        if self._json:
            self._dump(values)
            return
        width = max(map(len, values), default=0)
        for name, value in values.items():
            click.echo(f"{name:{width}}  {shown(value)}")

    def rows(self, names: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Prints rows as they come, with tabs between the columns."""
        if self._json:
            for row in rows:
                self._dump(dict(zip(names, row, strict=True)))
            return
        coming = iter(rows)
        first = next(coming, None)  # before the names: where nothing can be read nothing is printed
        click.echo("\t".join(names))
        for row in () if first is None else chain([first], coming):
            click.echo("\t".join(shown(value) for value in row))

    def value(self, name: str, value: Any) -> None:
        """Prints one value."""
        if self._json:
            self._dump({name: value})
        else:
            click.echo(shown(value))

    @staticmethod
    def _dump(values: dict[str, Any]) -> None:
        text = json.dumps({name: plain(value) for name, value in values.items()}, ensure_ascii=False)
        # JSON itself escapes only some control characters, and a terminal obeys more of them.
        click.echo("".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text))


def plain(value: Any) -> Any:
    """Converts a value for JSON. Bytes that are not UTF-8 become backslash escapes."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, datetime):
        return value.isoformat()
    return value.value if isinstance(value, Enum) else value


def shown(value: Any) -> str:
    """Converts a value to text for people, without control characters."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(plain(value)))


class Seconds(click.ParamType[float]):
    """An option type for durations: seconds (`90`, `1.5`), or a number with a unit (`90s`, `15m`, `24h`, `7d`).

    Args:
        positive: whether to refuse 0.
    """

    name = "seconds"
    _form = re.compile(r"(\d+(?:\.\d+)?)([smhd]?)", re.ASCII)

    def __init__(self, *, positive: bool = False) -> None:
        self._positive = positive

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Converts the text to seconds. A whole number is an int."""
        found = self._form.fullmatch(str(value))
        number = float(found[1]) * UNITS_S[found[2]] if found else -1.0
        if number < 0 or (self._positive and number == 0):
            least = "above 0" if self._positive else "from 0 on"
            self.fail(f"{value!r}; expected seconds {least}, or a number with a unit: 90s, 15m, 24h, 7d", param, ctx)
        return int(number) if number.is_integer() else number


class Group(click.Group):
    """A click group that shows errors of the server and the client as errors of the command line."""

    def invoke(self, context: click.Context) -> Any:
        """Runs the command."""
        try:
            return super().invoke(context)
        except ArgumentError as error:
            raise click.UsageError(str(error)) from error
        except BrokenPipeError:  # the reader of the output has had enough, as `head` has: click ends without a word
            raise
        except (redis.RedisError, redis.exceptions.RedisClusterException, OSError, ValueError) as error:
            raise click.ClickException(str(error)) from error


def output() -> Output:
    """Returns the output of the running command."""
    found: Output = click.get_current_context().meta["holdmq.output"]
    return found


def content(word: str) -> bytes:
    """Returns the content of a message given on the command line. `-` reads the standard input."""
    return sys.stdin.buffer.read() if word == "-" else word.encode("utf-8", "surrogateescape")


def limited(messages: Iterable[T], count: int | None) -> Iterable[T]:
    """Yields at most `count` messages, without waiting for one more."""
    for number, message in enumerate(messages, 1):
        yield message
        if number == count:
            return
