# Generated from pyclient/holdmq/_async/executor.py by tools/generate_sync.py; change that file.
"""Finds the nodes for a command, waits for slots that are moving, and merges the replies of several nodes.

Channels, sessions, topics and history use it. `holdmq._sync.client` is the facade above them.
"""

from collections.abc import Sequence
from typing import TypeVar

from holdmq import _arguments as arguments
from holdmq._io import Client
from holdmq._sync.link import Link
from holdmq._sync.nodes import Nodes
from holdmq._sync.pipeline import MAX_PIPELINE, Pipeline
from holdmq._sync.routes import Routes
from holdmq._sync.slots import Slots
from holdmq.commands import Command, Scope
from holdmq.errors import HoldMQError, ModuleMissingError, StaleCursorError

T = TypeVar("T")

PROBES = ("CHANNEL.PUBLISH", "SESSION.ADD", "TOPIC.PUBLISH")
"""One command of each family: a server that has them has the module."""

_RESTARTS = 3
"""How often the pages of a command begin again."""


class Executor(Link):
    """Sends each command to the node it belongs to. For use by HoldMQ only.

    Attributes:
        nodes: the nodes of a cluster.
        routes: which of them have subscribers.
    """

    def __init__(self, client: Client, moving_timeout: float) -> None:
        super().__init__(client, moving_timeout)
        self.nodes = Nodes(self)
        self._slots = Slots(self)
        self.routes = Routes(self, self.nodes, self._slots)
        self._checked = False

    def execute(self, command: Command[T]) -> T:
        """Sends a command built by `holdmq.commands` and returns its parsed reply.

        Raises:
            CommandError: the module refused the command; the subclass says why.
            MovingError: slots were still moving between nodes after `moving_timeout` seconds.
            redis.RedisError: any other error of redis-py.
        """
        arguments.instance("command", command, Command)
        if not self.is_cluster:
            if command.following:
                return self._execute_pages(command)
            return self.execute_key(command) if command.scope is Scope.KEY else self.execute_once(command)
        if command.scope is Scope.SLOTS:
            return self._slots.execute(command)
        if command.scope is Scope.ROUTES:
            return self.routes.publish(command)
        if command.scope is Scope.SHARD:
            return self.nodes.at_slot(command)
        if command.scope is Scope.TOPIC:
            return self.nodes.at_topic(command)
        if command.scope is not Scope.KEY:
            return self._execute_on_nodes(command)
        return self._execute_pages(command) if command.following else self.execute_key(command)

    def execute_all(self, several: Sequence[Command[T]]) -> list[T]:
        """Sends up to 10000 commands of one kind. Takes one round trip, except in a cluster.

        Raises:
            CommandError: the module refused a command.
        """
        for command in arguments.some("several", several, MAX_PIPELINE, least=0):
            arguments.instance("one of several", command, Command)
        if self.is_cluster:
            return [self.execute(command) for command in several]
        pipeline = Pipeline(self, transaction=False)
        replies = [pipeline.queue(command) for command in several]
        pipeline.execute()
        return [reply.result() for reply in replies]

    def require_module(self) -> None:
        """Checks that the server has the module. Sends nothing if an earlier check succeeded.

        Raises:
            ModuleMissingError: the server does not have the module.
        """
        if not self._checked:
            unknown = self.unknown(PROBES)
            if unknown:
                raise ModuleMissingError(
                    f"the server has no HoldMQ module (it does not know {', '.join(unknown)}): start it with "
                    "--loadmodule <path>/holdmq.so, or load the module with MODULE LOAD"
                )
            self._checked = True

    def _execute_pages(self, command: Command[T]) -> T:
        for _ in range(_RESTARTS):
            try:
                return self._execute_pages_once(command)
            except StaleCursorError:  # another server answers than before: its pages have another order
                continue
        return self._execute_pages_once(command)

    def _execute_pages_once(self, command: Command[T]) -> T:
        parts: list[T] = []
        page: Command[T] | None = command
        while page is not None:
            execute = self.execute_key if page.scope is Scope.KEY else self.execute_once
            parts.append(execute(page))
            page = page.following(parts[-1]) if page.following else None
        return command.merge(parts) if command.merge else parts[-1]

    def _execute_on_nodes(self, command: Command[T]) -> T:
        cluster = self.cluster()
        one = command.scope is Scope.FIRST
        asked = [cluster.get_node_from_key(command.words[1])] if one else cluster.get_primaries()
        parts = [self.execute_at(node, command) for node in asked]
        if not parts:
            raise HoldMQError(f"no node of the cluster was found for {command.words[0]!r}")
        return parts[0] if command.merge is None else command.merge(parts)
