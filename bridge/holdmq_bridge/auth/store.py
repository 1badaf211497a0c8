"""Edits users, roles, rules and blocked clients in the server, for the command line.

Each edit is an optimistic transaction:

    WATCH version ─► read ─► check, plan ─► MULTI, writes, new version, notice, EXEC ─► another edit was faster: retry

Invariants
 1. Every edit watches the version. So edits never overlap: the second one sees the result of the first.
 2. An edit that is refused, or that changes nothing, writes nothing and sends no notice.
 3. Versions never repeat, even after FLUSHALL: the new one is the larger of the last one + 1 and the clock in µs. An
    edit takes longer than a µs.
 4. No command is repeated by itself: the client must not retry.

`delete_role` reads all users, in pages. Everything else is O(what it changes).
"""

import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import redis

from holdmq.errors import ArgumentError
from holdmq_bridge.auth.passwords import BadHashError, check_hash
from holdmq_bridge.auth.records import (
    BLOCKED,
    BUILT_IN_ROLES,
    CHANNEL,
    MAX_BLOCKED,
    MAX_BLOCKED_GLOBS,
    MAX_ROLES,
    MAX_ROLES_BYTES,
    ROLES,
    USERS,
    VERSION,
    Policy,
    RecordError,
    User,
    check_name,
    check_role,
    check_rules,
    format_change,
    format_rules,
    is_glob,
    parse_rules,
    read_version,
    user_key,
)
from holdmq_bridge.auth.rules import Rule

PAGE = 500
MAX_TRIES = 200
_PAUSE_S = 0.05
_SHOWN = 5


class StoreError(ValueError):
    """The edit contradicts what is stored. Nothing was changed."""


class StoreChangedError(StoreError):
    """There was another edit since the version that the caller knows; nothing was changed."""


@dataclass(slots=True)
class Plan:
    """The commands of an edit.

    Attributes:
        commands: in this order.
        users: the users that it concerns; None: all clients.
    """

    commands: list[tuple[str | int, ...]] = field(default_factory=list)
    users: set[str] | None = field(default_factory=set)

    def write(self, *command: str | int) -> None:
        """Adds a command that concerns all clients."""
        self.commands.append(command)
        self.users = None

    def write_user(self, user: User) -> None:
        """Stores a user."""
        pairs = [text for pair in user.check().fields().items() for text in pair]
        self.commands += [("ZADD", USERS, 0, user.name), ("HSET", user_key(user.name), *pairs)]
        self._concerns(user.name)

    def drop_user(self, name: str) -> None:
        """Removes a user."""
        self.commands += [("ZREM", USERS, name), ("DEL", user_key(name))]
        self._concerns(name)

    def _concerns(self, name: str) -> None:
        if self.users is not None:
            self.users.add(name)


@dataclass(frozen=True, slots=True)
class Target:
    """The owner of rules: a role or a user."""

    kind: str  # "role" or "user"
    name: str

    @classmethod
    def parse(cls, text: str) -> "Target":
        """Parses `role:<name>`, `user:<name>`, `everybody` or `anonymous`.

        Raises:
            ArgumentError: it is another text.
        """
        if text in BUILT_IN_ROLES:
            return cls("role", text)
        kind, colon, name = text.partition(":")
        if not colon or kind not in ("role", "user"):
            raise ArgumentError(f"{text!r}; expected role:<name>, user:<name>, everybody or anonymous")
        return cls(kind, check_name(name, kind))

    def __str__(self) -> str:
        return self.name if self.name in BUILT_IN_ROLES and self.kind == "role" else f"{self.kind}:{self.name}"


class Store:
    """Reads and edits.

    Args:
        client: a synchronous client that does not retry, and whose replies are bytes.
        expected: edit only if the stored version is this one. None: any version.
    """

    def __init__(self, client: redis.Redis, *, expected: int | None = None) -> None:
        self._client: Any = client
        self._expected = expected

    # ---- reading ---------------------------------------------------------------------------------------------------

    def version(self) -> int:
        """The stored version; 0 if nothing is stored."""
        return read_version(self._client.get(VERSION))

    def policy(self) -> Policy:
        """Roles, blocked clients and the number of users, of the same moment."""
        with self._client.pipeline(transaction=True) as pipe:
            pipe.get(VERSION).zcard(USERS).hgetall(ROLES).hkeys(BLOCKED)
            return Policy.read(*pipe.execute())

    def user(self, name: str) -> User:
        """A user.

        Raises:
            StoreError: there is no such user.
        """
        return _user(self._client, name)

    def users(self, after: str = "") -> Iterator[User]:
        """All users by name, or those after a name, read in pages."""
        start: str | bytes = b"(" + after.encode() if after else "-"
        while names := self._client.zrangebylex(USERS, start, "+", start=0, num=PAGE):
            with self._client.pipeline(transaction=False) as pipe:
                for raw in names:
                    pipe.hgetall(user_key(raw.decode()))
                for raw, fields in zip(names, pipe.execute(), strict=True):
                    if (found := User.read(raw.decode(), fields)) is not None:  # else it was removed meanwhile
                        yield found
            start = b"(" + names[-1]

    def blocked(self) -> dict[str, str]:
        """Blocked client ids and globs, with the reasons."""
        found = self._client.hgetall(BLOCKED)
        return {
            pattern.decode(errors="backslashreplace"): why.decode(errors="replace") for pattern, why in found.items()
        }

    def rules(self, target: Target) -> tuple[Rule, ...]:
        """The rules of a role or user.

        Raises:
            StoreError: there is no such role or user.
        """
        return _rules(self._client, target)

    # ---- users -----------------------------------------------------------------------------------------------------

    def add_user(self, user: User) -> None:
        """Stores a new user.

        Raises:
            StoreError: the user exists, or one of its roles does not.
            ArgumentError: it cannot be stored.
        """
        check_user(user)

        def plan(read: Any, edit: Plan) -> None:
            if read.exists(user_key(user.name)):
                raise StoreError(f"user {user.name!r} already exists")
            _require_roles(read, user.roles)
            edit.write_user(user)

        self.edit(plan)

    def change_user(self, name: str, change: Callable[[User], User]) -> None:
        """Replaces a user by the result of `change`, which may be called several times.

        Raises:
            StoreError: there is no such user, or a new role does not exist.
            ArgumentError: the result cannot be stored.
        """

        def plan(read: Any, edit: Plan) -> None:
            before = _user(read, name)
            after = check_user(change(before))
            if after != before:
                _require_roles(read, [role for role in after.roles if role not in before.roles])
                edit.write_user(after)

        self.edit(plan)

    def delete_user(self, name: str) -> None:
        """Removes a user.

        Raises:
            StoreError: there is no such user.
        """

        def plan(read: Any, edit: Plan) -> None:
            if not read.exists(user_key(name)) and read.zscore(USERS, name) is None:
                raise StoreError(f"there is no user {name!r}")
            edit.drop_user(name)

        self.edit(plan)

    # ---- roles and rules -------------------------------------------------------------------------------------------

    def add_role(self, name: str, rules: tuple[Rule, ...] = ()) -> None:
        """Stores a new role.

        Raises:
            StoreError: the role exists.
            ArgumentError: name or rules cannot be stored, or there are too many.
        """
        check_role(name)

        def plan(read: Any, edit: Plan) -> None:
            if name in BUILT_IN_ROLES or read.hexists(ROLES, name):
                raise StoreError(f"role {name!r} already exists")
            _write_rules(read, edit, Target("role", name), rules)

        self.edit(plan)

    def delete_role(self, name: str) -> None:
        """Removes a role that no user has.

        Raises:
            StoreError: there is no such role, or users have it.
        """

        def plan(read: Any, edit: Plan) -> None:
            if not read.hexists(ROLES, name):
                raise StoreError(f"there is no role {name!r}")
            holders = [user.name for user in self.users() if name in user.roles]
            if holders:
                shown = ", ".join(map(repr, holders[:_SHOWN])) + (" …" if len(holders) > _SHOWN else "")
                raise StoreError(f"{len(holders)} users have the role {name!r}: {shown}")
            edit.write("HDEL", ROLES, name)

        self.edit(plan)

    def change_rules(self, target: Target, change: Callable[[tuple[Rule, ...]], Sequence[Rule]]) -> None:
        """Replaces rules by the result of `change`, which may be called several times.

        Raises:
            StoreError: there is no such role or user.
            ArgumentError: the result cannot be stored.
        """

        def plan(read: Any, edit: Plan) -> None:
            before = _rules(read, target)
            after = tuple(change(before))
            if after != before:
                _write_rules(read, edit, target, after)

        self.edit(plan)

    # ---- blocked clients -------------------------------------------------------------------------------------------

    def block(self, pattern: str, why: str = "") -> None:
        """Blocks clients with this id, or with ids that match this glob.

        Raises:
            ArgumentError: the pattern cannot be stored.
            StoreError: too many patterns are blocked.
        """
        check_name(pattern, "client pattern")

        def plan(read: Any, edit: Plan) -> None:
            known = read.hgetall(BLOCKED)
            if known.get(pattern.encode()) == why.encode():
                return
            patterns = {*known, pattern.encode()}
            globs = sum(is_glob(one.decode(errors="replace")) for one in patterns)
            if len(patterns) > MAX_BLOCKED or globs > MAX_BLOCKED_GLOBS:
                raise StoreError(f"blocked clients; expected at most {MAX_BLOCKED}, {MAX_BLOCKED_GLOBS} of them globs")
            edit.write("HSET", BLOCKED, pattern, why)

        self.edit(plan)

    def unblock(self, pattern: str) -> None:
        """Removes a pattern that `block` stored.

        Raises:
            StoreError: it is not blocked.
        """

        def plan(read: Any, edit: Plan) -> None:
            if not read.hexists(BLOCKED, pattern):
                raise StoreError(f"{pattern!r} is not blocked")
            edit.write("HDEL", BLOCKED, pattern)

        self.edit(plan)

    # ---- the transaction -------------------------------------------------------------------------------------------

    def announce(self) -> None:
        """Makes every bridge read everything again, after edits by other means."""

        def plan(_read: Any, edit: Plan) -> None:
            edit.users = None

        self.edit(plan)

    def edit(self, plan: Callable[[Any, Plan], None]) -> None:
        """Carries out an edit.

        Args:
            plan: reads by the first argument (a client whose commands run at once), and adds commands to the second.
                Called again after another edit.

        Raises:
            StoreChangedError: the version is not the expected one.
            StoreError: other edits came first each time.
        """
        for _ in range(MAX_TRIES):
            with self._client.pipeline(transaction=True) as pipe:
                pipe.watch(VERSION)
                before = read_version(pipe.get(VERSION))
                if self._expected not in (None, before):
                    raise StoreChangedError(
                        f"users, roles and bans have version {before}; expected {self._expected} (another edit)"
                    )
                edit_plan = Plan()
                plan(pipe, edit_plan)
                if not edit_plan.commands and edit_plan.users is not None:
                    return
                version = max(before + 1, time.time_ns() // 1000)
                pipe.multi()
                for command in edit_plan.commands:
                    pipe.execute_command(*command)
                pipe.set(VERSION, version)
                pipe.publish(CHANNEL, format_change(version, before, edit_plan.users))
                try:
                    pipe.execute()
                except redis.WatchError:
                    time.sleep(random.uniform(0, _PAUSE_S))  # noqa: S311 (so that two edits do not collide again)
                    continue
                return
        raise StoreError(f"there was another edit in each of {MAX_TRIES} attempts; nothing was changed")


def check_user(user: User) -> User:
    """Returns the user if it may be stored.

    Raises:
        ArgumentError: it may not; the text says why.
    """
    user.check()
    if user.password:
        try:
            check_hash(user.password)
        except BadHashError as error:
            raise ArgumentError(f"user {user.name!r}: {error}") from error
    return user


def _user(read: Any, name: str) -> User:
    found = User.read(name, read.hgetall(user_key(name)))
    if found is None:
        raise StoreError(f"there is no user {name!r}")
    return found


def _require_roles(read: Any, roles: Iterable[str]) -> None:
    for role in roles:
        if not read.hexists(ROLES, role):
            raise StoreError(f"there is no role {role!r}; `role add` creates it")


def _rules(read: Any, target: Target) -> tuple[Rule, ...]:
    if target.kind == "user":
        return _user(read, target.name).rules
    raw = read.hget(ROLES, target.name)
    if raw is None:
        if target.name in BUILT_IN_ROLES:
            return ()
        raise StoreError(f"there is no role {target.name!r}")
    try:
        return parse_rules(raw.decode())
    except ValueError as error:
        raise RecordError(f"role {target.name!r} cannot be read: {error}") from error


def _write_rules(read: Any, edit: Plan, target: Target, rules: tuple[Rule, ...]) -> None:
    check_rules(str(target), rules)
    if target.kind == "user":
        edit.write_user(replace(_user(read, target.name), rules=rules))
        return
    text = format_rules(rules)
    others = {name: rule_text for name, rule_text in read.hgetall(ROLES).items() if name != target.name.encode()}
    check_roles(len(others) + 1, sum(map(len, others.values())) + len(text.encode()))
    edit.write("HSET", ROLES, target.name, text)


def check_roles(count: int, size: int) -> None:
    """Checks the size of all roles together, which every bridge keeps in memory.

    Raises:
        ArgumentError: they are too large.
    """
    if count > MAX_ROLES or size > MAX_ROLES_BYTES:
        raise ArgumentError(
            f"roles: {count} with {size} bytes of rules; expected at most {MAX_ROLES} with {MAX_ROLES_BYTES}"
        )
