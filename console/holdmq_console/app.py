"""The application: routes, problems, headers. `command.py` runs it.

Every answer has the headers of SECURITY. Nothing is loaded from elsewhere, no script or style is inline.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdmq_console import certificates, pages
from holdmq_console.access import Access, check_right
from holdmq_console.api import channels, filters, history, own, queues, server, sessions, topics, users
from holdmq_console.audit import Audit
from holdmq_console.broker import Broker, ServerUrl
from holdmq_console.console import BEARER, Console
from holdmq_console.live import Live
from holdmq_console.names import MAX_DIGITS, RawPaths
from holdmq_console.principal import Right
from holdmq_console.problems import EXPECTED, MEDIA_TYPE, ProblemBody, ProblemError, problem_of, response_of
from holdmq_console.sampler import Sampler
from holdmq_console.settings import ConsoleSettings
from holdmq_console.turns import Turns

log = logging.getLogger("holdmq.console")

API = "/api/v1"
MAX_BODY = 2_097_152
SMALL_BODY = 65_536
"""Bytes that anybody may send. Parsing more would delay others, so only an administrator may send more."""

SECURITY = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
    "Referrer-Policy": "same-origin",  # with none, browsers send forms with the origin null
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
ROUTERS = (
    *(server.router, sessions.router, queues.router, topics.router, filters.router),
    *(channels.router, history.router, users.router),
)
PROBLEMS = {
    "default": {
        "description": "A problem (RFC 9457)",
        "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemBody"}}},
    }
}


def create_app(url: ServerUrl, settings: ConsoleSettings) -> FastAPI:
    """Makes the application of one process.

    Args:
        url: the server.
        settings: of the console.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        broker = Broker(url, settings.live_views)
        audit = Audit(broker, settings.audit_entries)
        access = Access(broker, settings, audit)
        sampler = Sampler(broker, settings.sample_interval_s)
        live = Live(broker, settings.live_views, settings.live_rate)
        app.state.console = Console(settings, broker, access, audit, sampler, live)
        broker.primary.start()
        sampler.start()
        renewal = _renewal(app, settings)
        try:
            yield
        finally:
            if renewal is not None:
                renewal.cancel()
            await sampler.stop()
            await live.close()
            access.close()
            await broker.close()

    app = FastAPI(
        title="HoldMQ",
        summary="Inspect and control a HoldMQ broker",
        version=version("holdmq"),
        lifespan=lifespan,
        openapi_url=f"{API}/openapi.json",
        docs_url=None,
        redoc_url=None,
    )
    api = APIRouter(prefix=API, dependencies=[BEARER], responses=PROBLEMS)  # type: ignore[arg-type]
    for router in (*ROUTERS, own.router):
        api.include_router(router)
    app.include_router(api)
    app.include_router(pages.router)
    app.mount("/static", StaticFiles(directory=pages.HERE / "static"))
    _describe(app)
    for kind in (*EXPECTED, ProblemError, HTTPException, RequestValidationError, Exception):
        app.add_exception_handler(kind, answer_problem)
    app.add_middleware(Turns, whose=_whose)
    app.add_middleware(Guard)
    app.add_middleware(RawPaths)
    return app


def _renewal(app: FastAPI, settings: ConsoleSettings) -> asyncio.Task[None] | None:
    """Follows the certificate of the context that `command.py` leaves in the state."""
    context = getattr(app.state, "tls", None)
    if context is None or settings.tls_certificate is None:
        return None
    return asyncio.create_task(certificates.follow(context, settings.tls_certificate, settings.tls_key))


def _describe(app: FastAPI) -> None:
    """Adds what a problem looks like to the description of the API."""
    make = app.openapi

    def openapi() -> dict[str, object]:
        described = make()
        schema = ProblemBody.model_json_schema(ref_template="#/components/schemas/{model}")
        definitions = schema.pop("$defs", {})
        described.setdefault("components", {}).setdefault("schemas", {}).update({**definitions, "ProblemBody": schema})
        for path in described["paths"].values():
            for operation in path.values():
                operation["responses"].pop("422", None)  # a problem like the others
        return described

    app.openapi = openapi  # type: ignore[method-assign]


async def answer_problem(request: Request, error: Exception) -> Response:
    """Answers an error: the API with a problem, a page with a page."""
    problem = problem_of(error)
    if problem.status >= 500:
        is_answer = isinstance(error, (ProblemError, *EXPECTED))
        log.error("a request failed: %s", problem.detail, exc_info=None if is_answer else error)
    return response_of(problem) if request.url.path.startswith("/api/") else pages.answer(request, problem)


class Guard:
    """Refuses bodies that are too large, and gives each answer the headers of SECURITY.

    Args:
        app: what answers.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hands the request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        is_static = scope["path"].startswith("/static/")

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY.items():
                    headers.setdefault(name, value)
                headers.setdefault("Cache-Control", "no-cache" if is_static else "no-store")
            await send(message)

        headers = Headers(scope=scope)
        length = headers.get("content-length", "0")
        if "transfer-encoding" in headers or not _is_small(length):
            detail = f"the body is too large or has no length; expected at most {MAX_BODY} bytes with Content-Length"
            await response_of(ProblemError(413, detail))(scope, receive, send_guarded)
            return
        try:
            if int(length) > SMALL_BODY:
                await _check_may_send_much(HTTPConnection(scope))
        except (ProblemError, *EXPECTED) as error:  # type: ignore[misc]
            await response_of(problem_of(error))(scope, receive, send_guarded)
            return
        await self._app(scope, receive, send_guarded)


def _is_small(length: str) -> bool:
    return length.isascii() and length.isdigit() and len(length) < MAX_DIGITS and int(length) <= MAX_BODY


def _whose(connection: HTTPConnection) -> str:
    console: Console = connection.app.state.console
    return console.access.claimed(connection)


async def _check_may_send_much(connection: HTTPConnection) -> None:
    console: Console = connection.app.state.console
    check_right(await console.access.identify(connection), Right.ADMIN)
