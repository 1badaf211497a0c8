"""Clients whose publishes wait for a server that stays away, or for replicas, are told so: their connections end.

A client that waits without a word cannot tell a slow broker from a dead one.  After `retry_total_s` its connection
ends: it can raise an alarm, store its messages, or try another broker.  Clients without a waiting publish stay.
"""

from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

from holdmq_bridge.base.logs import Log
from holdmq_bridge.base.reasons import Ending
from holdmq_bridge.broker.client import Client
from holdmq_bridge.process.process import Process
from holdmq_bridge.server.link import Link

if TYPE_CHECKING:
    import asyncio

log = Log("unserved")

_PART = 500  # clients that are looked at in one turn of the event loop
_AGAIN_S = 5.0  # from one look to the next, while the server stays away


class Unserved:
    """The looks at all clients.  The bridge tells when they begin to wait, and when that is over."""

    def __init__(self, process: Process, link: Link, clients: AbstractSet[Client]) -> None:
        self._process = process
        self._link = link
        self._clients = clients
        self._timer: asyncio.Handle | None = None

    def begin(self) -> None:
        """Looks for the first time in `retry_total_s`; what begins meanwhile changes nothing."""
        settings = self._process.settings
        if self._timer is None and settings.unserved_publisher == "disconnect":
            self._timer = self._process.loop.call_later(settings.retry_total_s, self._look)

    def stop(self) -> None:
        """The server is back, replicas confirm again, or the bridge stops."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._look_at(list(self._clients), 0)

    def _look_at(self, rest: list[Client], ended: int) -> None:
        for client in rest[-_PART:]:
            if client.conn and self._process.engine.unanswered(client.conn) > 0:
                client.end(Ending.UNSERVED)
                ended += 1
        del rest[-_PART:]
        if rest:
            self._timer = self._process.loop.call_soon(self._look_at, rest, ended)
            return
        if ended > 0:
            if self._link.up:
                log.warning("replicas do not confirm: clients with waiting publishes were disconnected", clients=ended)
            else:
                log.warning("the server is still away: clients with waiting publishes were disconnected", clients=ended)
        self._timer = self._process.loop.call_later(_AGAIN_S, self._look)
