"""Ends the connections of clients whose publishes wait too long, for an absent server or for replicas.

A client cannot tell a slow broker from a dead one.  After `retry_total_s` its connection ends, so that it can raise an
alarm, store its messages, or try another broker.  Clients without a pending publish stay.
"""

from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

from holdmq_bridge.base.logs import Log
from holdmq_bridge.base.reasons import Ending
from holdmq_bridge.broker.client import Client
from holdmq_bridge.process.process import Process
from holdmq_bridge.server.servers import Servers

if TYPE_CHECKING:
    import asyncio

log = Log("unserved")

_PART = 500  # clients that are examined in one turn of the event loop
_AGAIN_S = 5.0  # from one look to the next, while the server stays away


class Unserved:
    """Examines all clients from time to time, between `begin` and `stop`."""

    def __init__(self, process: Process, servers: Servers, clients: AbstractSet[Client]) -> None:
        self._process = process
        self._servers = servers
        self._clients = clients
        self._timer: asyncio.Handle | None = None

    def begin(self) -> None:
        """Publishes cannot be acknowledged: examines clients after `retry_total_s`."""
        settings = self._process.settings
        if self._timer is None and settings.unserved_publisher == "disconnect":
            self._timer = self._process.loop.call_later(settings.retry_total_s, self._examine_all)

    def stop(self) -> None:
        """The server is back, replicas confirm again, or the bridge stops."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _examine_all(self) -> None:
        self._examine(list(self._clients), 0)

    def _is_unserved(self, conn: int) -> bool:
        """Whether publishes of a client wait.  In a cluster those wait whose own node is lost."""
        engine = self._process.engine
        is_served = self._servers.is_cluster and self._servers.is_up(engine.link_of(conn))
        return engine.unanswered(conn) > 0 and not is_served

    def _examine(self, rest: list[Client], ended: int) -> None:
        for client in rest[-_PART:]:
            if client.conn and self._is_unserved(client.conn):
                client.end(Ending.UNSERVED)
                ended += 1
        del rest[-_PART:]
        if rest:
            self._timer = self._process.loop.call_soon(self._examine, rest, ended)
            return
        if ended > 0:
            if self._servers.all_up:
                log.warning("replicas do not confirm: clients with waiting publishes were disconnected", clients=ended)
            else:
                log.warning("the server is still away: clients with waiting publishes were disconnected", clients=ended)
        self._timer = self._process.loop.call_later(_AGAIN_S, self._examine_all)
