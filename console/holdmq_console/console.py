"""The parts of one console process, and how a request finds them.

Dependencies are coroutines, although they await nothing, because FastAPI calls a plain function in a thread.
"""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Annotated, Any

import redis
from fastapi import Depends, Header, Request, Response
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer

from holdmq_console.access import SAFE, Access, check_right
from holdmq_console.audit import Audit
from holdmq_console.broker import Broker
from holdmq_console.live import Live
from holdmq_console.principal import Principal, Right
from holdmq_console.problems import ProblemError
from holdmq_console.sampler import Sampler
from holdmq_console.settings import ConsoleSettings


@dataclass(frozen=True, slots=True)
class Console:
    """The parts of one process."""

    settings: ConsoleSettings
    broker: Broker
    access: Access
    audit: Audit
    sampler: Sampler
    live: Live


class Route(APIRoute):
    """Answers a request that only reads a second time if the connection to the server broke, as after its restart."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """What answers."""
        answer = super().get_route_handler()

        async def answer_again(request: Request) -> Response:
            try:
                return await answer(request)
            except redis.ConnectionError:
                console: Console = request.app.state.console
                await console.broker.forget_idle()
                if request.method not in SAFE:
                    raise
                return await answer(request)

        return answer_again


class ApiRoute(Route):
    """Refuses arguments that the resource does not have: a misspelt `limt` would change what is answered.

    Only a handler itself has arguments in the query, none of its dependencies.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """What answers."""
        answer = super().get_route_handler()
        known = {field.alias for field in self.dependant.query_params}

        async def answer_known(request: Request) -> Response:
            for name in request.query_params:
                if name not in known:
                    expected = ", ".join(sorted(known)) or "none"
                    raise ProblemError(422, f"the argument {name!r} is unknown; expected {expected}", field=name)
            return await answer(request)

        return answer_known


async def console_of(request: Request) -> Console:
    """The console that serves a request."""
    found: Console = request.app.state.console
    return found


Here = Annotated[Console, Depends(console_of)]
BEARER = Depends(HTTPBearer(auto_error=False, description="An API token; or the cookie of a login"))
"""For the description of the API alone: `Access` looks at the header itself."""


async def principal(request: Request, console: Here) -> Principal | None:
    """Who asks. Read a second time if the connection broke, so that a change is not refused for that."""
    try:
        return await console.access.resolve(request)
    except redis.ConnectionError:
        await console.broker.forget_idle()
        return await console.access.resolve(request)


Anybody = Annotated[Principal | None, Depends(principal)]


async def viewer(by: Anybody) -> Principal:
    """Who asks, if they may look."""
    return check_right(by, Right.VIEW)


async def reader(by: Anybody) -> Principal:
    """Who asks, if they may read payloads."""
    return check_right(by, Right.VIEW | Right.PAYLOADS)


async def admin(by: Anybody) -> Principal:
    """Who asks, if they may change things."""
    return check_right(by, Right.ADMIN)


Viewer = Annotated[Principal, Depends(viewer)]
Reader = Annotated[Principal, Depends(reader)]
Admin = Annotated[Principal, Depends(admin)]


async def expected_version(
    if_match: Annotated[
        str | None, Header(description="The ETag that was read: the change is refused with 412 if there is another one")
    ] = None,
) -> int | None:
    """What `If-Match` demands; None: nothing.

    Raises:
        ProblemError: it is not an ETag of this API.
    """
    if if_match is None or if_match.strip() == "*":
        return None
    text = if_match.strip()
    digits = text[1:-1]
    if text[:1] != '"' or text[-1:] != '"' or not (digits.isascii() and digits.isdigit() and len(digits) < 20):
        raise ProblemError(
            400, f"If-Match is {if_match!r}; expected the ETag of an earlier answer, or *", field="If-Match"
        )
    return int(digits)


IfMatch = Annotated[int | None, Depends(expected_version)]


def tag(response: Response, version: int) -> None:
    """Gives the answer an ETag."""
    response.headers["ETag"] = f'"{version}"'
