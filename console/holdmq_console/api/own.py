"""The console itself: the current user, API tokens, the audit stream."""

import re
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from holdmq_console import tokens
from holdmq_console.console import Admin, ApiRoute, Console, Here, Viewer
from holdmq_console.names import CursorText, Name, bad_cursor, time_of
from holdmq_console.principal import Principal, Right, Via
from holdmq_console.problems import ProblemError
from holdmq_console.tokens import Token

router = APIRouter(route_class=ApiRoute, tags=["console"])

_ENTRY_ID = re.compile(r"[0-9]{1,15}-[0-9]{1,15}", re.ASCII)


class Me(BaseModel):
    """Who asks."""

    name: Name
    rights: list[str]
    via: str


class TokenOut(BaseModel):
    """An API token."""

    id: str
    user: Name
    name: Name
    rights: list[str]
    created: datetime | None
    expires: datetime | None

    @classmethod
    def of(cls, token: Token) -> "TokenOut":
        """From the stored one."""
        return cls(
            id=token.id,
            user=token.user,
            name=token.name,
            rights=token.rights.words,
            created=time_of(token.created * 1000),
            expires=time_of(token.expires * 1000),
        )


class NewToken(BaseModel):
    """A token to make. It can do no more than its user, now and later."""

    model_config = ConfigDict(extra="forbid")

    name: Annotated[str, Field(min_length=1, max_length=200)]
    rights: Annotated[list[str], Field(min_length=1, max_length=3)] = ["view"]
    days: Annotated[int, Field(ge=0, le=3650, description="0: it never expires")] = 90


class MadeToken(TokenOut):
    """A token with its text, which is shown once."""

    token: str


class TokenList(BaseModel):
    """Tokens, the newest first."""

    items: list[TokenOut]


class AuditEntry(BaseModel):
    """A change."""

    id: str
    at: datetime
    who: Name
    via: str
    address: str
    what: str
    target: Name
    detail: Name
    outcome: str
    of: str


class AuditPage(BaseModel):
    """Changes, the newest first."""

    items: list[AuditEntry]
    next: str | None


async def make_token(console: Console, by: Principal, body: NewToken) -> MadeToken:
    """Makes a token for the current user.

    Raises:
        ProblemError: no one is logged in, or the user lacks a right that the token is to have.
    """
    if by.via is not Via.SESSION:
        raise ProblemError(409, "a token belongs to a user; log in to make one")
    rights = Right.of(body.rights)
    if len(rights.words) < len(set(body.rights)):
        raise ProblemError(422, f"rights are {body.rights}; expected view, payloads, admin", field="rights")
    if rights not in by.rights:
        raise ProblemError(403, f"{by.name} cannot give a token {rights.words}; expected some of {by.rights.words}")
    user = await console.access.user(by.name)
    if user is None:
        raise ProblemError(409, f"the user {by.name!r} was removed meanwhile")
    async with console.audit.change(by, "token.make", body.name, " ".join(rights.words)):
        token, text = await tokens.create(console.broker, user, body.name, rights, body.days)
    return MadeToken(**TokenOut.of(token).model_dump(), token=text)


async def list_tokens(console: Console, by: Principal) -> TokenList:
    """The tokens of the current user; an administrator sees all."""
    found = await tokens.all_of(console.broker)
    return TokenList(items=[TokenOut.of(one) for one in found if by.may(Right.ADMIN) or one.user == by.name])


async def revoke_token(console: Console, by: Principal, token_id: str) -> None:
    """Ends a token.

    Raises:
        ProblemError: the token does not exist or belongs to another user.
    """
    if token_id not in {one.id for one in (await list_tokens(console, by)).items}:
        raise ProblemError(404, f"there is no token {token_id!r}", field="token_id")
    async with console.audit.change(by, "token.revoke", token_id):
        await tokens.revoke(console.broker, token_id)


async def audit(console: Console, *, limit: int = 100, cursor: str = "") -> AuditPage:
    """Changes, the newest first.

    Raises:
        ProblemError: the cursor is invalid.
    """
    if cursor and not _ENTRY_ID.fullmatch(cursor):
        raise bad_cursor(cursor)
    found = await console.audit.read(cursor or None, limit + 1)
    items = [AuditEntry.model_validate(one, from_attributes=True) for one in found[:limit]]
    return AuditPage(items=items, next=items[-1].id if len(found) > limit else None)


@router.get("/me")
async def get_me(by: Viewer) -> Me:
    """The current user, and the user's rights."""
    return Me(name=by.name, rights=by.rights.words, via=by.via.value)


@router.get("/tokens")
async def get_tokens(console: Here, by: Viewer) -> TokenList:
    """API tokens: those of the current user, or all for an administrator."""
    return await list_tokens(console, by)


@router.post("/tokens", status_code=201)
async def post_token(console: Here, by: Viewer, body: NewToken) -> MadeToken:
    """Make an API token. Its text is shown once."""
    return await make_token(console, by, body)


@router.delete("/tokens/{token_id:segment}", status_code=204)
async def delete_token(console: Here, by: Viewer, token_id: str) -> None:
    """Revoke an API token."""
    await revoke_token(console, by, token_id)


@router.get("/audit")
async def get_audit(
    console: Here,
    _by: Admin,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
    cursor: CursorText = "",
) -> AuditPage:
    """Who changed what, when and from where."""
    return await audit(console, limit=limit, cursor=cursor)
