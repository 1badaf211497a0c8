"""The records of users, roles and blocked clients in the server: keys, fields and limits.

    {holdmq:auth}:version       STRING  grows with every change
    {holdmq:auth}:users         ZSET    the names of all users, score 0 (sorted, so that they can be read in pages)
    {holdmq:auth}:user:<name>   HASH    password, enabled, superuser, roles, clients, rules, session_kind, overflow,
                                        quota
    {holdmq:auth}:roles         HASH    role -> its rules, one a line
    {holdmq:auth}:blocked       HASH    client id or glob -> why
    __holdmq__:auth             channel {"version": 7, "after": 6, "users": ["alice"] or null for everything}

The hash tag keeps all keys in one slot of a cluster, so that an edit is one transaction there, too. No key is a list: a
persistent channel keeps its messages in a list of its name, so publishers could write rules. The default policies never
keep messages of the channel `__holdmq__:auth`.

Invariant: records are checked like input. A record that cannot be read raises RecordError. It is never taken for a
weaker one.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, TypeVar

from holdmq.core import glob_matches
from holdmq.errors import ArgumentError
from holdmq_bridge.auth.rules import Rule, RuleList
from holdmq_bridge.base.quota import NO_QUOTA, Quota

T = TypeVar("T")

VERSION: Final = "{holdmq:auth}:version"
USERS: Final = "{holdmq:auth}:users"
USER_PREFIX: Final = "{holdmq:auth}:user:"
ROLES: Final = "{holdmq:auth}:roles"
BLOCKED: Final = "{holdmq:auth}:blocked"
CHANNEL: Final = "__holdmq__:auth"

EVERYBODY: Final = "everybody"  # the role whose rules come last for every client
ANONYMOUS_ROLE: Final = "anonymous"  # the role of clients without a user
BUILT_IN_ROLES: Final = (ANONYMOUS_ROLE, EVERYBODY)

SESSION_KINDS: Final = ("", "application", "device")
OVERFLOWS: Final = ("", "drop-oldest", "drop-newest", "refuse", "wait")

MAX_NAME_BYTES = 1024
MAX_ROLES = 1000
MAX_RULES = 1000  # of one list
MAX_RULES_BYTES = 262_144  # of one list
MAX_ROLES_BYTES = 1_048_576  # the rules of all roles: every bridge reads them at once
MAX_USER_ROLES = 32
MAX_USER_CLIENTS = 100
MAX_BLOCKED = 10_000
MAX_BLOCKED_GLOBS = 1000  # each login tries all of them
MAX_CHANGED = 1000  # users named in one message; more: everything

_GLOB_SIGNS = "*?[\\"
_FLAGS = {"0": False, "1": True}


class RecordError(ValueError):
    """A record in the server is invalid. The text says which one, and what is wrong."""


def user_key(name: str) -> str:
    """The key of a user."""
    return USER_PREFIX + name


def check_name(name: str, what: str) -> str:
    """Returns the name of a user, role or client if it is valid.

    Raises:
        ArgumentError: it is empty, too long, or holds a control character.
    """
    size = len(name.encode("utf-8", "surrogatepass"))
    if not 0 < size <= MAX_NAME_BYTES:
        raise ArgumentError(f"{what} of {size} bytes; expected 1 to {MAX_NAME_BYTES}")
    if any(ord(c) < 0x20 or 0x7F <= ord(c) < 0xA0 or 0xD800 <= ord(c) < 0xE000 for c in name):
        raise ArgumentError(f"{what} {name!r}; expected no control characters")
    return name


def check_role(name: str) -> str:
    """Returns the name of a role if it is valid.

    Raises:
        ArgumentError: it is not.
    """
    return check_name(name, "role")


@dataclass(frozen=True, slots=True)
class User:
    """A stored user.

    Attributes:
        name: the MQTT username, or the name in a certificate.
        password: an argon2 hash; empty: no password is right.
        enabled: whether the user may connect.
        superuser: whether the user may do everything, whatever the rules say.
        roles: their rules apply in this order, after the user's own.
        clients: globs, one of which must match the client id; none: any client id.
        rules: the user's own.
        session_kind: application or device, whatever its clients ask for; empty: the clients decide.
        overflow: what happens to messages for full queues of its sessions; empty: the server's setting decides.
        quota: bounds in the server.
    """

    name: str
    password: str = field(default="", repr=False)
    enabled: bool = True
    superuser: bool = False
    roles: tuple[str, ...] = ()
    clients: tuple[str, ...] = ()
    rules: tuple[Rule, ...] = ()
    session_kind: str = ""
    overflow: str = ""
    quota: Quota = NO_QUOTA

    def check(self) -> "User":
        """Returns the user if it can be stored.

        Raises:
            ArgumentError: it cannot. The text says why.
        """
        check_name(self.name, "username")
        _check_count(f"roles of user {self.name!r}", self.roles, MAX_USER_ROLES)
        _check_count(f"client patterns of user {self.name!r}", self.clients, MAX_USER_CLIENTS)
        for role in self.roles:
            check_role(role)
            if role in BUILT_IN_ROLES:
                raise ArgumentError(f"role {role!r} cannot be given to a user: it applies without that")
        for pattern in self.clients:
            check_name(pattern, "client pattern")
        check_rules(f"user {self.name!r}", self.rules)
        if self.session_kind not in SESSION_KINDS:
            raise ArgumentError(f"session kind {self.session_kind!r}; expected application, device or nothing")
        if self.overflow not in OVERFLOWS:
            raise ArgumentError(f"overflow {self.overflow!r}; expected {', '.join(filter(None, OVERFLOWS))} or nothing")
        try:
            self.quota.check()
        except ValueError as error:
            raise ArgumentError(f"quota of user {self.name!r}: {error}") from error
        return self

    def may_be_client(self, client_id: bytes) -> bool:
        """Whether the user may connect with this client id."""
        return not self.clients or any(glob_matches(pattern, client_id) for pattern in self.clients)

    def fields(self) -> dict[str, str]:
        """The fields of the hash."""
        return {
            "password": self.password,
            "enabled": "01"[self.enabled],
            "superuser": "01"[self.superuser],
            "roles": "\n".join(self.roles),
            "clients": "\n".join(self.clients),
            "rules": format_rules(self.rules),
            "session_kind": self.session_kind,
            "overflow": self.overflow,
            "quota": str(self.quota),
        }

    @classmethod
    def read(cls, name: str, fields: Mapping[bytes, bytes]) -> "User | None":
        """Reads a user from the fields of the hash; None if there are none.

        Raises:
            RecordError: a field is invalid.
        """
        if not fields:
            return None

        def read(key: str, parse: Callable[[str], T], default: T) -> T:
            raw = fields.get(key.encode())
            return default if raw is None else _parsed(f"field {key} of user {name!r}", raw, parse)

        user = cls(
            name,
            password=read("password", str, ""),
            enabled=read("enabled", _FLAGS.__getitem__, False),
            superuser=read("superuser", _FLAGS.__getitem__, False),
            roles=read("roles", _lines, ()),
            clients=read("clients", _lines, ()),
            rules=read("rules", parse_rules, ()),
            session_kind=read("session_kind", str, ""),
            overflow=read("overflow", str, ""),
            quota=read("quota", Quota.parse, NO_QUOTA),
        )
        try:
            return user.check()
        except ArgumentError as error:
            raise RecordError(str(error)) from error


def _lines(text: str) -> tuple[str, ...]:
    return tuple(text.split("\n")) if text else ()


def format_rules(rules: Iterable[Rule]) -> str:
    """The rules as they are stored, one per line."""
    return "\n".join(map(str, rules))


@lru_cache(maxsize=MAX_ROLES)
def parse_rules(text: str) -> tuple[Rule, ...]:
    """The inverse of `format_rules`.

    Raises:
        RuleError: a line is not a valid rule.
    """
    return tuple(map(Rule.parse, _lines(text)))


def check_rules(owner: str, rules: tuple[Rule, ...]) -> None:
    """Checks the size of a list of rules, which every message may walk.

    Raises:
        ArgumentError: it is too long.
    """
    _check_count(f"rules of {owner}", rules, MAX_RULES)
    size = len(format_rules(rules).encode())
    if size > MAX_RULES_BYTES:
        raise ArgumentError(f"rules of {owner}: {size} bytes; expected at most {MAX_RULES_BYTES}")


def _check_count(what: str, items: tuple[object, ...], limit: int) -> None:
    if len(items) > limit:
        raise ArgumentError(f"{what}: {len(items)}; expected at most {limit}")
    if len(set(items)) < len(items):
        raise ArgumentError(f"{what}: one of them is listed twice")


def is_glob(pattern: str) -> bool:
    """Whether a pattern is a glob, not the name of one client."""
    return any(sign in pattern for sign in _GLOB_SIGNS)


@dataclass(frozen=True, slots=True)
class Policy:
    """One version of the stored rules, without the users.

    Attributes:
        version: 0 if nothing was ever stored.
        users: the number of users.
        roles: rules by role.
        broken: roles whose stored rules are invalid, with the reason. Users with such a role are refused.
        blocked: client ids that may not connect.
        blocked_globs: globs of further ones.
    """

    version: int = 0
    users: int = 0
    roles: Mapping[str, tuple[Rule, ...]] = field(default_factory=dict)
    broken: Mapping[str, str] = field(default_factory=dict)
    blocked: frozenset[bytes] = frozenset()
    blocked_globs: tuple[bytes, ...] = ()

    @classmethod
    def read(
        cls, version: bytes | None, users: int, roles: Mapping[bytes, bytes], blocked: Iterable[bytes]
    ) -> "Policy":
        """Reads a policy from the values of the keys.

        Raises:
            RecordError: the version is not a number.
        """
        known: dict[str, tuple[Rule, ...]] = {}
        broken: dict[str, str] = {}
        for raw, text in roles.items():
            name = raw.decode("utf-8", "backslashreplace")
            try:
                known[name] = _parsed(f"rules of role {name!r}", text, parse_rules)
            except RecordError as error:
                broken[name] = str(error)
        patterns = list(blocked)
        globs = tuple(pattern for pattern in patterns if is_glob(pattern.decode("utf-8", "replace")))
        return cls(read_version(version), users, known, broken, frozenset(patterns) - frozenset(globs), globs)

    @property
    def is_empty(self) -> bool:
        """Whether there is neither a user nor a rule."""
        return not self.users and not self.broken and not any(self.roles.values())

    def blocks(self, client_id: bytes) -> bool:
        """Whether clients of this id may not connect."""
        return client_id in self.blocked or any(glob_matches(glob, client_id) for glob in self.blocked_globs)

    def rule_lists(self, user: User | None, *, anonymous: bool = False) -> list[RuleList]:
        """The rules for a user, or for a client without one, in the order in which they apply.

        Raises:
            RecordError: a role of the user is broken or missing, and may have denied something.
        """
        lists = [RuleList(f"user {user.name}", user.rules)] if user is not None else []
        names = [*(user.roles if user is not None else ()), *((ANONYMOUS_ROLE,) if anonymous else ()), EVERYBODY]
        for name in names:
            if name in self.broken:
                raise RecordError(self.broken[name])
            if name not in self.roles and name not in BUILT_IN_ROLES:
                raise RecordError(f"there is no role {name!r}")
            lists.append(RuleList(f"role {name}", self.roles.get(name, ())))
        return lists


def read_version(raw: bytes | None) -> int:
    """The stored version; 0 if there is none.

    Raises:
        RecordError: it is not a number.
    """
    return 0 if raw is None else _parsed(VERSION, raw, int)


def format_change(version: int, after: int, users: Iterable[str] | None) -> str:
    """The notice of a change on the channel."""
    names = None if users is None else sorted(users)
    if names is not None and len(names) > MAX_CHANGED:
        names = None
    return json.dumps({"version": version, "after": after, "users": names}, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class Announcement:
    """A notice of a change: version, the version before, and the users concerned (None: everything)."""

    version: int
    after: int
    users: frozenset[str] | None


def parse_change(data: bytes) -> Announcement | None:
    """Parses a notice. None if it is invalid: then everything has to be read."""
    try:
        found = json.loads(data)
        users = None if found["users"] is None else frozenset(map(str, found["users"]))
        return Announcement(int(found["version"]), int(found["after"]), users)
    except (ValueError, KeyError, TypeError):
        return None


def _parsed(what: str, raw: bytes, parse: Callable[[str], T]) -> T:
    try:
        return parse(raw.decode())
    except (ValueError, KeyError) as error:
        raise RecordError(f"{what}: {raw[:80]!r} cannot be read ({error})") from error
