"""Errors as RFC 9457 problems: a status, what was wrong, what is accepted, and the fields concerned.

One table (`_STATUS`) gives each error of the server or the client its status. Nothing else does.
"""

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

import redis
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from holdmq import (
    ArgumentError,
    FencedError,
    ModuleMissingError,
    MovingError,
    NoSessionError,
    NoStoreError,
    NotAnsweredError,
    QueueFullError,
    QuotaError,
    SessionFullError,
)
from holdmq_bridge.auth.passwords import BadHashError, BusyError
from holdmq_bridge.auth.records import RecordError
from holdmq_bridge.auth.store import StoreChangedError, StoreError

MEDIA_TYPE = "application/problem+json"


class FieldProblem(BaseModel):
    """What is wrong with one field of a request."""

    field: str
    detail: str


class ProblemBody(BaseModel):
    """A problem as RFC 9457 describes it."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    errors: list[FieldProblem] = []


class ProblemError(Exception):
    """A request that is refused.

    Args:
        status: of the answer.
        detail: what was wrong, and what is accepted.
        field: which field of the request it was, if it was one.
        headers: further headers of the answer.
    """

    def __init__(
        self, status: int, detail: str, *, field: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.errors = [FieldProblem(field=field, detail=detail)] if field is not None else []
        self.headers = dict(headers or {})

    @property
    def title(self) -> str:
        """The status in words."""
        return HTTPStatus(self.status).phrase


_STATUS: Sequence[tuple[type[BaseException], HTTPStatus]] = (
    (StoreChangedError, HTTPStatus.PRECONDITION_FAILED),
    (StoreError, HTTPStatus.CONFLICT),
    (BadHashError, HTTPStatus.UNPROCESSABLE_ENTITY),
    (RecordError, HTTPStatus.INTERNAL_SERVER_ERROR),
    (BusyError, HTTPStatus.SERVICE_UNAVAILABLE),
    (FencedError, HTTPStatus.PRECONDITION_FAILED),
    (NoSessionError, HTTPStatus.NOT_FOUND),
    (NoStoreError, HTTPStatus.NOT_FOUND),
    (QuotaError, HTTPStatus.CONFLICT),
    (QueueFullError, HTTPStatus.CONFLICT),
    (SessionFullError, HTTPStatus.CONFLICT),
    (ArgumentError, HTTPStatus.UNPROCESSABLE_ENTITY),
    (NotAnsweredError, HTTPStatus.GATEWAY_TIMEOUT),
    (ModuleMissingError, HTTPStatus.SERVICE_UNAVAILABLE),
    (MovingError, HTTPStatus.SERVICE_UNAVAILABLE),
    (redis.exceptions.NoPermissionError, HTTPStatus.INTERNAL_SERVER_ERROR),
    (redis.ConnectionError, HTTPStatus.SERVICE_UNAVAILABLE),
    (redis.TimeoutError, HTTPStatus.SERVICE_UNAVAILABLE),
    (redis.RedisError, HTTPStatus.BAD_GATEWAY),
    (redis.exceptions.RedisClusterException, HTTPStatus.SERVICE_UNAVAILABLE),
    (OSError, HTTPStatus.SERVICE_UNAVAILABLE),
)
_UNREADABLE = "There was an error parsing the body"
"""What FastAPI says of a body that is too deep, or not in UTF-8."""
EXPECTED = tuple(kind for kind, _ in _STATUS)
"""Errors that are answers, not defects."""


def problem_of(error: BaseException) -> ProblemError:
    """The problem that an error is."""
    if isinstance(error, ProblemError):
        return error
    if isinstance(error, RequestValidationError):
        return _invalid(error)
    if isinstance(error, HTTPException) and error.detail == _UNREADABLE:
        return ProblemError(error.status_code, "the body cannot be read; expected JSON in UTF-8", field="body")
    if isinstance(error, HTTPException):
        return ProblemError(error.status_code, str(error.detail), headers=error.headers)
    if isinstance(error, redis.exceptions.NoPermissionError):
        detail = f"the console's own user of the server lacks a right: {error}; docs/access.md has the rights it needs"
        return ProblemError(HTTPStatus.INTERNAL_SERVER_ERROR, detail)
    for kind, status in _STATUS:
        if isinstance(error, kind):
            return ProblemError(status, str(error))
    return ProblemError(HTTPStatus.INTERNAL_SERVER_ERROR, "the console has a defect; its log says more")


def response_of(problem: ProblemError) -> JSONResponse:
    """The answer of the API."""
    body = ProblemBody(title=problem.title, status=problem.status, detail=problem.detail, errors=problem.errors)
    return JSONResponse(body.model_dump(), problem.status, problem.headers, media_type=MEDIA_TYPE)


def _invalid(error: RequestValidationError) -> ProblemError:
    fields = [_field(one) for one in error.errors()]
    problem = ProblemError(HTTPStatus.UNPROCESSABLE_ENTITY, "; ".join(f"{one.field}: {one.detail}" for one in fields))
    problem.errors = fields
    return problem


def _field(error: Mapping[str, Any]) -> FieldProblem:
    if error["type"] == "json_invalid":
        return FieldProblem(field="body", detail=f"is not JSON at character {error['loc'][-1]}; expected JSON in UTF-8")
    _, *path = error["loc"] or ("body",)
    return FieldProblem(
        field=".".join(map(str, path)) or "body", detail=str(error["msg"]).removeprefix("Value error, ")
    )
