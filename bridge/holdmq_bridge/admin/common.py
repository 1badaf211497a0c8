"""Common parts of the commands of `holdmq-bridge auth`."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import update_wrapper
from typing import Any, Concatenate, ParamSpec, TypeVar

import click
import redis

from holdmq.cli_output import Output
from holdmq.errors import ArgumentError
from holdmq.primary import Primary
from holdmq_bridge.admin.servers import node_with
from holdmq_bridge.auth.records import USERS
from holdmq_bridge.auth.store import Store, Target

OUTPUT = "holdmq.output"

P = ParamSpec("P")
R = TypeVar("R")


class Opening:
    """The store of a command, found when it is needed: `--help` asks no server."""

    def __init__(self, client: redis.Redis, primary: Primary | None) -> None:
        self._client = client
        self._primary = primary
        self._store: Store | None = None

    def store(self) -> Store:
        """The store, at the server or at the node that has it."""
        if self._store is None:
            found = node_with(self._client, USERS.encode())
            if found is not self._client:
                click.get_current_context().find_root().call_on_close(found.close)
            self._store = Store(found)
        return self._store

    def unmoved(self) -> AbstractContextManager[None]:
        """A context for a change: with Sentinels it ends only if no failover loses the change."""
        return nullcontext() if self._primary is None else self._primary.unmoved(self._client)


def pass_store(command: Callable[Concatenate[Store, P], R]) -> Callable[P, R]:
    """Gives a command that only reads the store as its first argument."""

    def run(*arguments: P.args, **options: P.kwargs) -> R:
        opening = click.get_current_context().find_object(Opening)
        assert opening is not None
        return command(opening.store(), *arguments, **options)

    return update_wrapper(run, command)


def change_store(command: Callable[Concatenate[Store, P], R]) -> Callable[P, R]:
    """The same for a command that changes the store."""

    def run(store: Store, /, *arguments: P.args, **options: P.kwargs) -> R:
        opening = click.get_current_context().find_object(Opening)
        assert opening is not None
        with opening.unmoved():
            return command(store, *arguments, **options)

    update_wrapper(run, command)
    return pass_store(run)


def output() -> Output:
    """The output of a command."""
    found: Output = click.get_current_context().meta[OUTPUT]
    return found


class Whose(click.ParamType[Target]):
    """An argument that names the owner of rules: role:NAME, user:NAME, everybody or anonymous."""

    name = "whose"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Target:
        """Converts the argument, or fails with a usage error."""
        if isinstance(value, Target):
            return value
        try:
            return Target.parse(value)
        except ArgumentError as error:
            self.fail(str(error), param, ctx)
