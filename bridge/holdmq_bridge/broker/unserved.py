"""Ends the connections of clients whose publishes wait too long, for an absent server or for replicas.

A client cannot tell a slow broker from a dead one.  After `retry_total_s` its connection ends, so that it can raise an
alarm, store its messages, or try another broker.  Clients without a pending publish stay.

In a cluster a publish waits for the node of its publisher and for those of its subscribers.  So a client counts as
unserved if its publishes have not got any further for `retry_total_s`, while some node is away.
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
        self._stuck: dict[int, tuple[int, float]] = {}  # how far each connection has got, and since when

    def begin(self) -> None:
        """Publishes cannot be acknowledged: examines clients after `retry_total_s`."""
        settings = self._process.settings
        if self._timer is None and settings.unserved_publisher == "disconnect":
            first_s = min(settings.retry_total_s, _AGAIN_S) if self._servers.is_cluster else settings.retry_total_s
            self._timer = self._process.loop.call_later(first_s, self._examine_all)

    def stop(self) -> None:
        """The server is back, replicas confirm again, or the bridge stops."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._stuck.clear()

    def _examine_all(self) -> None:
        here = {client.conn for client in self._clients}
        self._stuck = {conn: since for conn, since in self._stuck.items() if conn in here}
        self._examine(list(self._clients), 0)

    def _is_unserved(self, client: Client) -> bool:
        engine, conn = self._process.engine, client.conn
        unanswered = engine.unanswered(conn)
        if not self._servers.is_cluster or not unanswered:
            self._stuck.pop(conn, None)
            return unanswered > 0
        traffic, now = engine.traffic_of(client.session.inbox), self._process.loop.time()
        answered = 0 if traffic is None else traffic.received - unanswered
        known, since = self._stuck.get(conn, (-1, now))
        if known != answered:
            self._stuck[conn] = answered, now
            return False
        return now - since >= self._process.settings.retry_total_s

    def _examine(self, rest: list[Client], ended: int) -> None:
        for client in rest[-_PART:]:
            if client.conn and self._is_unserved(client):
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
