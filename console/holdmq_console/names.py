"""Names and places in URLs: path segments with any character, opaque cursors, times."""

import base64
import binascii
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated
from urllib.parse import unquote_to_bytes

from fastapi import Query
from pydantic import BeforeValidator
from starlette.convertors import Convertor, register_url_convertor
from starlette.types import ASGIApp, Receive, Scope, Send

from holdmq_console.problems import ProblemError

MAX_DIGITS = 20
"""Numbers of a request have fewer: Python's own bound is far higher, and no number of the server is longer."""


MAX_CURSOR = 100_000
"""It has a name of up to 64 KiB in base64."""


class SegmentConvertor(Convertor[str]):
    """One segment of a path, with slashes and all other characters percent-encoded."""

    regex = "[^/]+"

    def convert(self, value: str) -> str:
        """The decoded segment."""
        return unquote_to_bytes(value).decode("utf-8", "surrogateescape")

    def to_string(self, value: str) -> str:
        """Not used: pages quote names themselves."""
        raise NotImplementedError


register_url_convertor("segment", SegmentConvertor())


class RawPaths:
    """Routes by the path as it was sent: `%2F` in a client id does not end the segment."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hands the request on."""
        if scope["type"] == "http" and scope.get("raw_path"):
            scope = {**scope, "path": scope["raw_path"].decode("latin-1")}
        await self._app(scope, receive, send)


def shown(text: str) -> str:
    """A name that JSON and HTML can hold: bytes that are not UTF-8 become backslash escapes."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


CursorText = Annotated[
    str, Query(max_length=MAX_CURSOR, pattern="^[A-Za-z0-9_-]*$", description="The `next` of an earlier answer")
]
Name = Annotated[str, BeforeValidator(shown)]


def write_cursor(place: str) -> str:
    """An opaque cursor."""
    return base64.urlsafe_b64encode(place.encode("utf-8", "surrogateescape")).rstrip(b"=").decode()


def read_cursor(cursor: str) -> str:
    """The inverse of `write_cursor`.

    Raises:
        ProblemError: it is not a cursor.
    """
    try:
        raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
    except (ValueError, binascii.Error) as error:
        raise bad_cursor(cursor) from error
    return raw.decode("utf-8", "surrogateescape")


def read_place(cursor: str, *, is_cluster: bool, check: Callable[[str], bool]) -> str | None:
    """A place in a list; None at the beginning. In a cluster it has the node's address: `Broker.page`.

    Args:
        cursor: as it was sent.
        is_cluster: whether there is an address.
        check: whether the rest is a cursor of the command.

    Raises:
        ProblemError: it is not a cursor.
    """
    if not cursor:
        return None
    place = read_cursor(cursor)
    address, at, within = place.partition("@") if is_cluster else ("", "", place)
    if (is_cluster and not (at and address)) or not (check(within) or (is_cluster and not within)):
        raise bad_cursor(cursor)
    return place


def is_page_cursor(place: str) -> bool:
    """Whether it is a cursor of a command that pages through names (TOPIC.GROUPS, CHANNEL.LIST)."""
    return len(place) > 1 and place[0] == ">"


def read_number(cursor: str, most: int) -> int:
    """A cursor that is a number; 0 at the beginning.

    Raises:
        ProblemError: it is not a cursor.
    """
    if not cursor:
        return 0
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) < MAX_DIGITS and int(cursor) <= most):
        raise bad_cursor(cursor)
    return int(cursor)


def bad_cursor(cursor: str) -> ProblemError:
    """The problem of an invalid cursor."""
    return ProblemError(422, f"cursor is {cursor!r}; expected the `next` of an earlier answer", field="cursor")


LAST_MS = 253_402_300_799_999
"""The end of the year 9999, which is the last one of a datetime. The server's messages may have later times."""


def time_of(ms: int | None) -> datetime | None:
    """A time of the server; None for none."""
    return None if not ms else datetime.fromtimestamp(min(ms, LAST_MS) / 1000, UTC)
