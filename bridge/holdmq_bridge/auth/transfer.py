"""Exports and imports users, roles and blocked clients as a JSON document. An import checks everything first.

    {"format": "holdmq-auth", "version": 1,
     "roles": {"sensors": ["allow publish sensors/%c/#"]},
     "blocked": {"thief-*": "stolen"},
     "users": [{"name": "alice", "password": "$argon2id$…", "enabled": true, "superuser": false,
                "roles": ["sensors"], "clients": ["alice-*"], "rules": []}]}

Invariants
 1. An invalid document changes nothing.
 2. Roles are written before the users who have them, and removed after them. So no user ever has a missing role.
 3. Users are written in pages, each in one edit: readers may see a part of the document, but never a part of a user.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from holdmq.errors import ArgumentError
from holdmq_bridge.auth.records import (
    BLOCKED,
    MAX_BLOCKED,
    MAX_BLOCKED_GLOBS,
    ROLES,
    USERS,
    User,
    check_name,
    check_role,
    check_rules,
    format_rules,
    is_glob,
    user_key,
)
from holdmq_bridge.auth.rules import Rule
from holdmq_bridge.auth.store import PAGE, Plan, Store, StoreError, check_roles, check_user
from holdmq_bridge.base.quota import Quota

T = TypeVar("T")

FORMAT = "holdmq-auth"
FORMAT_VERSION = 1
MAX_DOCUMENT_BYTES = 268_435_456
_MAX_EXPORTS = 5
_USER_KEYS = (
    "name",
    "password",
    "enabled",
    "superuser",
    "roles",
    "clients",
    "rules",
    "session_kind",
    "overflow",
    "quota",
)


@dataclass(frozen=True, slots=True)
class Document:
    """A checked document."""

    roles: Mapping[str, tuple[Rule, ...]]
    blocked: Mapping[str, str]
    users: Mapping[str, User]


def export(store: Store) -> dict[str, Any]:
    """Exports everything that is stored, including password hashes.

    Raises:
        StoreError: it changed during each of several reads.
    """
    for _ in range(_MAX_EXPORTS):
        policy = store.policy()
        if policy.broken:
            raise StoreError(next(iter(policy.broken.values())))
        document = {
            "format": FORMAT,
            "version": FORMAT_VERSION,
            "roles": {name: list(map(str, rules)) for name, rules in sorted(policy.roles.items())},
            "blocked": dict(sorted(store.blocked().items())),
            "users": [_user_as_json(user) for user in store.users()],
        }
        if store.version() == policy.version:
            return document
    raise StoreError(f"users and rules changed each of {_MAX_EXPORTS} times while they were read")


def _user_as_json(user: User) -> dict[str, Any]:
    return {
        "name": user.name,
        "password": user.password,
        "enabled": user.enabled,
        "superuser": user.superuser,
        "roles": list(user.roles),
        "clients": list(user.clients),
        "rules": list(map(str, user.rules)),
        "session_kind": user.session_kind,
        "overflow": user.overflow,
        "quota": str(user.quota),
    }


def parse(text: str | bytes) -> Document:
    """Parses and checks a document.

    Raises:
        ArgumentError: it is invalid. The text says where.
    """
    if len(text) > MAX_DOCUMENT_BYTES:
        raise ArgumentError(f"document of {len(text)} bytes; expected at most {MAX_DOCUMENT_BYTES}")
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ArgumentError(f"document: no JSON ({error})") from error
    if not isinstance(found, dict) or (found.get("format"), found.get("version")) != (FORMAT, FORMAT_VERSION):
        raise ArgumentError(f'document; expected "format": "{FORMAT}", "version": {FORMAT_VERSION}')
    _refuse_unknown(found, ("format", "version", "roles", "blocked", "users"), "document")
    roles = {
        check_role(name): _rules(lines, f"role {name!r}")
        for name, lines in _typed(found.get("roles", {}), dict, "roles").items()
    }
    check_roles(len(roles), sum(len(format_rules(rules).encode()) for rules in roles.values()))
    users: dict[str, User] = {}
    for number, one in enumerate(_typed(found.get("users", []), list, "users"), 1):
        user = _user(_typed(one, dict, f"user number {number}"), f"user number {number}")
        if user.name in users:
            raise ArgumentError(f"users: {user.name!r} is there twice")
        users[user.name] = user
    return Document(roles, _blocked(_typed(found.get("blocked", {}), dict, "blocked")), users)


def load(store: Store, document: Document, *, replace_all: bool = False) -> None:
    """Stores the content of a document.

    Args:
        store: to write to.
        document: to store.
        replace_all: whether everything else is removed.

    Raises:
        StoreError, ArgumentError: it contradicts what is stored. Nothing was changed.
    """
    store.edit(lambda read, edit: _plan_common(read, edit, document, replace_all))
    for page in _pages(list(document.users.values())):
        store.edit(partial(_plan_users, users=page))
    if replace_all:
        _remove_others(store, document)


def _plan_common(read: Any, edit: Plan, document: Document, replace_all: bool) -> None:
    """Writes roles and blocked clients. Roles to be removed stay until no user has them."""
    texts = {name.decode(): text.decode() for name, text in read.hgetall(ROLES).items()}
    new_texts = {name: format_rules(rules) for name, rules in document.roles.items()}
    existing = {*new_texts} if replace_all else {*new_texts, *texts}
    missing = {role for user in document.users.values() for role in user.roles} - existing
    if missing:
        raise StoreError(f"document: users have the role {min(missing)!r}, which is not there")
    merged = {**texts, **new_texts}
    check_roles(len(merged), sum(len(text.encode()) for text in merged.values()))
    for name, text in new_texts.items():
        if texts.get(name) != text:
            edit.write("HSET", ROLES, name, text)
    blocked = {pattern.decode(): why.decode() for pattern, why in read.hgetall(BLOCKED).items()}
    after = document.blocked if replace_all else {**blocked, **document.blocked}
    _check_blocked(after)
    for pattern in blocked.keys() - after.keys():
        edit.write("HDEL", BLOCKED, pattern)
    for pattern, why in after.items():
        if blocked.get(pattern) != why:
            edit.write("HSET", BLOCKED, pattern, why)


def _plan_users(read: Any, edit: Plan, *, users: Sequence[User]) -> None:
    for user in users:
        if User.read(user.name, read.hgetall(user_key(user.name))) != user:
            edit.write_user(user)


def _remove_others(store: Store, document: Document) -> None:
    """Removes users that the document does not name, in pages, then such roles."""
    for page in _pages([user.name for user in store.users() if user.name not in document.users]):
        store.edit(partial(_plan_removal, names=page))

    def drop_roles(read: Any, edit: Plan) -> None:
        for raw in read.hkeys(ROLES):
            if raw.decode() not in document.roles:
                edit.write("HDEL", ROLES, raw.decode())

    store.edit(drop_roles)


def _plan_removal(read: Any, edit: Plan, *, names: Sequence[str]) -> None:
    for name in names:
        if read.zscore(USERS, name) is not None:
            edit.drop_user(name)


def _pages(items: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), PAGE):
        yield items[start : start + PAGE]


def _user(found: dict[str, Any], what: str) -> User:
    _refuse_unknown(found, _USER_KEYS, what)
    name = _typed(found.get("name"), str, f"{what}: name")
    what = f"user {name!r}"
    user = User(
        check_name(name, "username"),
        password=_typed(found.get("password", ""), str, f"{what}: password"),
        enabled=_typed(found.get("enabled", True), bool, f"{what}: enabled"),
        superuser=_typed(found.get("superuser", False), bool, f"{what}: superuser"),
        roles=_texts(found.get("roles", []), f"{what}: roles"),
        clients=_texts(found.get("clients", []), f"{what}: clients"),
        rules=_rules(found.get("rules", []), what),
        session_kind=_typed(found.get("session_kind", ""), str, f"{what}: session_kind"),
        overflow=_typed(found.get("overflow", ""), str, f"{what}: overflow"),
        quota=_quota(_typed(found.get("quota", ""), str, f"{what}: quota"), what),
    )
    return check_user(user)


def _quota(text: str, what: str) -> Quota:
    try:
        return Quota.parse(text)
    except ValueError as error:
        raise ArgumentError(f"{what}: quota: {error}") from error


def _rules(lines: Any, owner: str) -> tuple[Rule, ...]:
    rules = tuple(map(Rule.parse, _texts(lines, f"rules of {owner}")))
    check_rules(owner, rules)
    return rules


def _blocked(found: dict[str, Any]) -> dict[str, str]:
    blocked = {
        check_name(pattern, "blocked client"): _typed(why, str, f"blocked {pattern!r}")
        for pattern, why in found.items()
    }
    _check_blocked(blocked)
    return blocked


def _check_blocked(blocked: Mapping[str, str]) -> None:
    if len(blocked) > MAX_BLOCKED or sum(map(is_glob, blocked)) > MAX_BLOCKED_GLOBS:
        raise ArgumentError(f"blocked; expected at most {MAX_BLOCKED} clients, {MAX_BLOCKED_GLOBS} of them globs")


def _texts(found: Any, what: str) -> tuple[str, ...]:
    return tuple(_typed(one, str, what) for one in _typed(found, list, what))


def _typed(found: Any, kind: type, what: str) -> Any:
    if not isinstance(found, kind):
        names = {dict: "an object", list: "an array", str: "a text", bool: "true or false"}
        raise ArgumentError(f"{what}: {found!r}; expected {names[kind]}")
    return found


def _refuse_unknown(found: Mapping[str, Any], known: Sequence[str], what: str) -> None:
    unknown = sorted(set(found) - set(known))
    if unknown:
        raise ArgumentError(f"{what}: unknown member {unknown[0]!r}; expected {', '.join(known)}")
