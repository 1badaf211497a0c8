"""Users, roles, rules and bans: the store of the bridges, edited under its version.

The version of the store is the ETag of all of it: an edit with `If-Match` is refused with 412 if anything was edited
since. So the version is read before the data.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from typing import Annotated, Literal, TypeVar

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from holdmq.core import InvalidTopicError
from holdmq_bridge.auth.explain import explain
from holdmq_bridge.auth.passwords import hash_password
from holdmq_bridge.auth.records import BUILT_IN_ROLES, Policy, User
from holdmq_bridge.auth.rules import Rule
from holdmq_bridge.auth.store import Store, StoreError, Target
from holdmq_bridge.base.quota import Quota
from holdmq_console.console import Admin, ApiRoute, Console, Here, IfMatch, Viewer, tag
from holdmq_console.names import CursorText, Name, read_cursor, shown, write_cursor
from holdmq_console.principal import Principal, Via
from holdmq_console.problems import ProblemError

router = APIRouter(route_class=ApiRoute, tags=["users"])

T = TypeVar("T")

Text = Annotated[str, Field(max_length=1024)]
Texts = Annotated[list[Text], Field(max_length=100)]
Rules = Annotated[list[Annotated[str, Field(max_length=4096)]], Field(max_length=1000)]
Bound = Annotated[int | None, Field(ge=0, le=2**40)]
Password = Annotated[str, Field(min_length=1, max_length=1024)]


class QuotaBody(BaseModel):
    """What a user may have in the server; null: the server's settings, 0: no bound."""

    model_config = ConfigDict(extra="forbid")

    sessions: Bound = None
    queue_bytes: Bound = None
    retained: Bound = None


class UserOut(BaseModel):
    """A user."""

    name: Name
    has_password: bool
    enabled: bool
    superuser: bool
    roles: list[Name]
    clients: list[Name]
    rules: list[Name]
    session_kind: str
    overflow: str
    quota: QuotaBody

    @classmethod
    def of(cls, user: User) -> "UserOut":
        """From the store's."""
        return cls(
            name=user.name,
            has_password=bool(user.password),
            enabled=user.enabled,
            superuser=user.superuser,
            roles=list(user.roles),
            clients=list(user.clients),
            rules=[str(rule) for rule in user.rules],
            session_kind=user.session_kind,
            overflow=user.overflow,
            quota=QuotaBody(
                sessions=user.quota.sessions, queue_bytes=user.quota.queue_bytes, retained=user.quota.retained
            ),
        )


class UserPage(BaseModel):
    """A page of users by name."""

    items: list[UserOut]
    next: str | None


class UserChange(BaseModel):
    """Changes of a user. An omitted field stays as it is. An empty password removes the password."""

    model_config = ConfigDict(extra="forbid")

    password: Text | None = None
    enabled: bool | None = None
    superuser: bool | None = None
    roles: Texts | None = None
    clients: Texts | None = None
    rules: Rules | None = None
    session_kind: Literal["", "application", "device"] | None = None
    overflow: Literal["", "drop-oldest", "drop-newest", "refuse", "wait"] | None = None
    quota: QuotaBody | None = None


class NewUser(UserChange):
    """A new user."""

    name: Annotated[str, Field(min_length=1, max_length=1024)]


class RoleOut(BaseModel):
    """A role."""

    name: Name
    rules: list[Name]
    built_in: bool = Field(description="True of everybody and anonymous, which always apply")
    broken: str = Field(description="Why its rules cannot be read; empty if they can")


class Roles(BaseModel):
    """All roles."""

    items: list[RoleOut]


class RoleBody(BaseModel):
    """The rules of a role, in the order in which they are tried."""

    model_config = ConfigDict(extra="forbid")

    rules: Rules


class NewRole(RoleBody):
    """A new role."""

    name: Annotated[str, Field(min_length=1, max_length=1024)]
    rules: Rules = []


class Ban(BaseModel):
    """A client id, or a glob of client ids, that may not connect."""

    pattern: Name
    why: Name


class Bans(BaseModel):
    """All bans."""

    items: list[Ban]


class BanBody(BaseModel):
    """Why clients may not connect."""

    model_config = ConfigDict(extra="forbid")

    why: Text = ""


class Answer(BaseModel):
    """Whether a client may do something, and which rule decides."""

    allowed: bool
    because: Name


def _rules(texts: Sequence[str], field: str = "rules") -> tuple[Rule, ...]:
    found = []
    for number, text in enumerate(texts):
        try:
            found.append(Rule.parse(text))
        except ValueError as error:
            raise ProblemError(422, str(error), field=f"{field}.{number}") from error
    return tuple(found)


def _target(owner: str) -> Target:
    return Target("role", owner)


def changed(user: User, change: UserChange) -> User:
    """What a change makes of a user.

    Raises:
        ProblemError: a rule is invalid.
        ArgumentError: it cannot be stored.
    """
    given = change.model_dump(exclude_none=True, exclude={"name"})
    if "password" in given:
        given["password"] = hash_password(given["password"].encode()) if given["password"] else ""
    if "rules" in given:
        given["rules"] = _rules(given["rules"])
    if change.quota is not None:
        given["quota"] = Quota(**change.quota.model_dump())
    for name in ("roles", "clients"):
        if name in given:
            given[name] = tuple(given[name])
    return replace(user, **given).check()


async def known(console: Console, use: Callable[[Store], T], what: str) -> T:
    """Reads from the store; what is not there is a problem of its own.

    Raises:
        ProblemError: it is not there, or its name cannot be a name.
    """
    try:
        return await console.broker.store(use)
    except StoreError as error:
        raise ProblemError(404, str(error), field=what) from error
    except InvalidTopicError as error:
        raise ProblemError(422, str(error), field="topic") from error
    except UnicodeEncodeError as error:
        raise ProblemError(422, f"{what} is {shown(error.object)!r}; expected UTF-8", field=what) from error


async def users(console: Console, *, limit: int = 100, cursor: str = "") -> tuple[UserPage, int]:
    """A page of users, and the version of the store.

    Raises:
        ProblemError: the cursor is invalid.
    """
    after = read_cursor(cursor) if cursor else ""
    version, found = await known(
        console, lambda store: (store.version(), list(islice(store.users(after), limit + 1))), "cursor"
    )
    following = write_cursor(found[limit - 1].name) if len(found) > limit else None
    return UserPage(items=[UserOut.of(user) for user in found[:limit]], next=following), version


async def user(console: Console, name: str) -> tuple[UserOut, int]:
    """A user, and the version of the store.

    Raises:
        ProblemError: the user does not exist.
    """
    version, found = await known(console, lambda store: (store.version(), store.user(name)), "name")
    return UserOut.of(found), version


async def add_user(console: Console, by: Principal, body: NewUser, version: int | None) -> UserOut:
    """Adds a user.

    Raises:
        ProblemError: it would be the first one, and could not log in here.
        StoreError: there is one of that name, or a role is not there.
    """
    settings = console.settings
    if by.via is Via.LOCAL and (settings.admin_role not in (body.roles or ()) or not body.password):
        detail = f"the first user needs a password and the role {settings.admin_role}; else no one could log in here"
        raise ProblemError(409, detail, field="roles")
    made = changed(User(body.name), body)
    async with console.audit.change(by, "user.add", body.name, _described(body)):
        version = await _make_own_roles(console, by, body.roles or (), version)
        await console.broker.store(lambda store: store.add_user(made), expected=version)
    return UserOut.of(made)


async def change_user(console: Console, by: Principal, name: str, body: UserChange, version: int | None) -> UserOut:
    """Changes a user.

    Raises:
        ProblemError: there is no such user.
    """
    changed((await known(console, lambda store: store.user(name), "name")), body)  # a mistake is reported before
    async with console.audit.change(by, "user.change", name, _described(body)):
        version = await _make_own_roles(console, by, body.roles or (), version)
        await console.broker.store(
            lambda store: store.change_user(name, lambda found: changed(found, body)), expected=version
        )
    return (await user(console, name))[0]


async def _make_own_roles(console: Console, by: Principal, given: Sequence[str], version: int | None) -> int | None:
    """Makes the roles of the console when they are first given; they have no rules. Returns the version after it."""
    own = {console.settings.admin_role, console.settings.viewer_role, console.settings.payload_role}
    policy = await console.broker.store(Store.policy)
    for role in sorted(own.intersection(given) - policy.roles.keys() - policy.broken.keys()):
        async with console.audit.change(by, "role.add", role):
            await console.broker.store(lambda store, role=role: store.add_role(role), expected=version)  # type: ignore[misc]
        if version is not None:
            version = await console.broker.store(Store.version)
    return version


async def delete_user(console: Console, by: Principal, name: str, version: int | None) -> None:
    """Removes a user.

    Raises:
        ProblemError: there is no such user.
    """
    await known(console, lambda store: store.user(name), "name")
    async with console.audit.change(by, "user.delete", name):
        await console.broker.store(lambda store: store.delete_user(name), expected=version)


def _described(change: UserChange) -> str:
    """What a change is about, without the password."""
    given = change.model_dump(exclude_none=True, exclude={"name"})
    if "password" in given:
        given["password"] = "changed" if given["password"] else "removed"
    return ", ".join(f"{key}={value!r}" for key, value in given.items())


async def roles(console: Console) -> tuple[Roles, int]:
    """All roles, and the version of the store."""
    policy = await console.broker.store(Store.policy)
    names = sorted({*policy.roles, *policy.broken, *BUILT_IN_ROLES})
    return Roles(items=[_role(policy, name) for name in names]), policy.version


async def role(console: Console, name: str) -> tuple[RoleOut, int]:
    """A role, and the version of the store.

    Raises:
        ProblemError: the role does not exist.
    """
    policy = await console.broker.store(Store.policy)
    if name not in (*policy.roles, *policy.broken, *BUILT_IN_ROLES):
        raise ProblemError(404, f"there is no role {name!r}", field="name")
    return _role(policy, name), policy.version


def _role(policy: Policy, name: str) -> RoleOut:
    return RoleOut(
        name=name,
        rules=[str(rule) for rule in policy.roles.get(name, ())],
        built_in=name in BUILT_IN_ROLES,
        broken=policy.broken.get(name, ""),
    )


async def add_role(console: Console, by: Principal, body: NewRole, version: int | None) -> None:
    """Adds a role.

    Raises:
        StoreError: there is one of that name.
    """
    made = _rules(body.rules)
    async with console.audit.change(by, "role.add", body.name, "; ".join(body.rules)):
        await console.broker.store(lambda store: store.add_role(body.name, made), expected=version)


async def set_rules(console: Console, by: Principal, name: str, rules: Sequence[str], version: int | None) -> None:
    """Replaces the rules of a role.

    Raises:
        ProblemError: there is no such role, or a rule is invalid.
    """
    made = _rules(rules)
    await role(console, name)
    async with console.audit.change(by, "role.rules", name, "; ".join(rules)):
        await console.broker.store(
            lambda store: store.change_rules(_target(name), lambda _before: made), expected=version
        )


async def delete_role(console: Console, by: Principal, name: str, version: int | None) -> None:
    """Removes a role that no user has.

    Raises:
        ProblemError: there is no such role, or it is built in.
    """
    if (await role(console, name))[0].built_in:
        raise ProblemError(409, f"the role {name!r} is built in; expected another one, or remove its rules")
    async with console.audit.change(by, "role.delete", name):
        await console.broker.store(lambda store: store.delete_role(name), expected=version)


async def bans(console: Console) -> tuple[Bans, int]:
    """All bans, and the version of the store."""
    version, found = await console.broker.store(lambda store: (store.version(), store.blocked()))
    return Bans(items=[Ban(pattern=pattern, why=why) for pattern, why in sorted(found.items())]), version


async def ban(console: Console, by: Principal, pattern: str, why: str, version: int | None) -> None:
    """Bans the clients whose ids match."""
    async with console.audit.change(by, "ban.add", pattern, why):
        await console.broker.store(lambda store: store.block(pattern, why), expected=version)


async def unban(console: Console, by: Principal, pattern: str, version: int | None) -> None:
    """The inverse of `ban`.

    Raises:
        ProblemError: there is no such ban.
    """
    found, _ = await bans(console)
    if pattern not in {one.pattern for one in found.items}:
        raise ProblemError(404, f"{pattern!r} is not banned", field="pattern")
    async with console.audit.change(by, "ban.remove", pattern):
        await console.broker.store(lambda store: store.unblock(pattern), expected=version)


async def check(console: Console, *, client_id: str, user_name: str, action: str, topic: str) -> Answer:
    """May this client do that, and which rule decides?

    Raises:
        ProblemError: there is no such user.
    """

    def decide(store: Store) -> Answer:
        found = explain(store.policy(), store.user(user_name) if user_name else None, client_id, action, topic)
        return Answer(allowed=found.allowed, because=found.because)

    return await known(console, decide, "user")


# --- Routes -----------------------------------------------------------------------------------------------------------


@router.get("/users")
async def get_users(
    console: Here,
    _by: Viewer,
    response: Response,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
    cursor: CursorText = "",
) -> UserPage:
    """The users by name."""
    found, version = await users(console, limit=limit, cursor=cursor)
    tag(response, version)
    return found


@router.post("/users", status_code=201)
async def post_user(console: Here, by: Admin, body: NewUser, version: IfMatch) -> UserOut:
    """Add a user. The roles of the console are made when they are first given."""
    return await add_user(console, by, body, version)


@router.get("/users/{name:segment}")
async def get_user(console: Here, _by: Viewer, name: str, response: Response) -> UserOut:
    """A user."""
    found, version = await user(console, name)
    tag(response, version)
    return found


@router.patch("/users/{name:segment}")
async def patch_user(console: Here, by: Admin, name: str, body: UserChange, version: IfMatch) -> UserOut:
    """Change a user. Bridges follow at once."""
    return await change_user(console, by, name, body, version)


@router.delete("/users/{name:segment}", status_code=204)
async def remove_user(console: Here, by: Admin, name: str, version: IfMatch) -> None:
    """Remove a user. Its clients are disconnected."""
    await delete_user(console, by, name, version)


@router.get("/roles")
async def get_roles(console: Here, _by: Viewer, response: Response) -> Roles:
    """All roles with their rules."""
    found, version = await roles(console)
    tag(response, version)
    return found


@router.post("/roles", status_code=201)
async def post_role(console: Here, by: Admin, body: NewRole, version: IfMatch) -> RoleOut:
    """Add a role."""
    await add_role(console, by, body, version)
    return (await role(console, body.name))[0]


@router.get("/roles/{name:segment}")
async def get_role(console: Here, _by: Viewer, name: str, response: Response) -> RoleOut:
    """A role."""
    found, version = await role(console, name)
    tag(response, version)
    return found


@router.put("/roles/{name:segment}")
async def put_role(console: Here, by: Admin, name: str, body: RoleBody, version: IfMatch) -> RoleOut:
    """Replace the rules of a role. Bridges follow at once."""
    await set_rules(console, by, name, body.rules, version)
    return (await role(console, name))[0]


@router.delete("/roles/{name:segment}", status_code=204)
async def remove_role(console: Here, by: Admin, name: str, version: IfMatch) -> None:
    """Remove a role that no user has."""
    await delete_role(console, by, name, version)


@router.get("/bans")
async def get_bans(console: Here, _by: Viewer, response: Response) -> Bans:
    """Client ids and globs that may not connect."""
    found, version = await bans(console)
    tag(response, version)
    return found


@router.put("/bans/{pattern:segment}", status_code=204)
async def put_ban(console: Here, by: Admin, pattern: str, body: BanBody, version: IfMatch) -> None:
    """Let no client connect whose id is this, or matches this glob."""
    await ban(console, by, pattern, body.why, version)


@router.delete("/bans/{pattern:segment}", status_code=204)
async def remove_ban(console: Here, by: Admin, pattern: str, version: IfMatch) -> None:
    """Lift a ban."""
    await unban(console, by, pattern, version)


@router.get("/access")
async def get_access(
    console: Here,
    _by: Viewer,
    topic: Annotated[str, Query(min_length=1, max_length=1024, description="The topic, or the filter")],
    action: Literal["publish", "subscribe"] = "publish",
    client_id: Annotated[str, Query(max_length=1024)] = "",
    user: Annotated[str, Query(max_length=1024, description="Empty: an anonymous client")] = "",
) -> Answer:
    """May this client publish or subscribe there, and which rule decides?"""
    return await check(console, client_id=client_id, user_name=user, action=action, topic=topic)
