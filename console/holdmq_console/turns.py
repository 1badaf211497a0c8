"""Shares the process between users: one who asks for much at the same moment waits, others do not.

    request ──► whose? ──► AT_ONCE of theirs are being answered: wait, or 429 if WAITING do ──► answer

Whose request it is, is found without a question to the server (`Access.claimed`), and decides about nothing but the
wait.

Invariants
 1. At most AT_ONCE requests of one user are being answered, and at most WAITING wait, in their order.
 2. A live view counts until its answer begins: live.py bounds the views.
 3. Only who has a request here is remembered.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdmq_console.problems import ProblemError, response_of

AT_ONCE = 4
WAITING = 64


@dataclass(slots=True)
class _Line:
    """The requests of one user."""

    requests: int = 0
    turn: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))


class Turns:
    """Lets requests in.

    Args:
        app: what answers.
        whose: names the user, or else the address.
    """

    def __init__(self, app: ASGIApp, whose: Callable[[HTTPConnection], str]) -> None:
        self._app = app
        self._whose = whose
        self._lines: dict[str, _Line] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hands the request on when it is its turn."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        whose = self._whose(HTTPConnection(scope))
        line = self._lines.setdefault(whose, _Line())
        if line.requests >= AT_ONCE + WAITING:
            detail = f"{line.requests} requests of {whose} are being answered or wait, which is the maximum"
            await response_of(ProblemError(429, detail, headers={"Retry-After": "1"}))(scope, receive, send)
            return
        line.requests += 1
        try:
            await self._answer(line.turn, scope, receive, send)
        finally:
            line.requests -= 1
            if not line.requests:
                self._lines.pop(whose, None)

    async def _answer(self, turn: asyncio.Semaphore, scope: Scope, receive: Receive, send: Send) -> None:
        await turn.acquire()
        is_in = True

        async def send_on(message: Message) -> None:
            nonlocal is_in
            if is_in and message["type"] == "http.response.start" and _is_stream(message):
                is_in = False
                turn.release()
            await send(message)

        try:
            await self._app(scope, receive, send_on)
        finally:
            if is_in:
                turn.release()


def _is_stream(start: Message) -> bool:
    return Headers(raw=start["headers"]).get("content-type", "").startswith("text/event-stream")
