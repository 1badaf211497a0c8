"""The leases of this process: while they are renewed, the servers keep the process's sessions open.

    single server    one heartbeat, from the start: the name of the process
    cluster          one for each slot with clients, in that slot: the name with a hash tag

In a cluster the node that has a session looks for the heartbeat of its owner on itself.  So the heartbeat is in the
slot of the session, and moves with it.  While a slot moves key by key, a heartbeat that has left is renewed by ASKING.

Invariants
 1. SESSION.OWNER is sent often enough that a server closes only the sessions of a dead process.
 2. The heartbeat of a slot is sent before the first SESSION.OPEN of the slot, on the same link.
 3. One step renews a bounded part of the heartbeats.
 4. While a failover is in doubt the link is silent, for longer than a lease maybe.  Heartbeats have a connection of
    their own then: a failover that never happens must cost no session.
"""

import asyncio
from collections.abc import Callable

import hiredis
from redis.exceptions import RedisError

from holdmq.core import slot_tag
from holdmq_bridge.base.command import Reply, error_code
from holdmq_bridge.base.logs import Log
from holdmq_bridge.process.process import Process
from holdmq_bridge.server.calls import Calls, OnReply
from holdmq_bridge.server.servers import Servers

log = Log("lease")

_PREFIX = "holdmq_owner:"  # of the key of a heartbeat
_RENEWALS_PER_LEASE = 4
_MOVING = ("MOVED", "ASK", "TRYAGAIN")  # the slot is on its way: the next renewal finds it
_PARTS = 32  # of the slots of a cluster, renewed one after the other


class Lease:
    """One for each process."""

    def __init__(self, process: Process, servers: Servers, calls: Calls, has_clients: Callable[[int], bool]) -> None:
        """`has_clients`: whether a slot is still needed."""
        self._process = process
        self._servers = servers
        self._calls = calls
        self._has_clients = has_clients
        self._timer: asyncio.TimerHandle | None = None
        self._aside: asyncio.Task[None] | None = None
        self._parts = _PARTS if servers.is_cluster else 1
        self._slots: list[set[int]] = [set() for _ in range(self._parts)]
        self._turn = 0
        if not servers.is_cluster:
            self._slots[0].add(0)

    def start(self) -> None:
        """Renews the leases from now on, whenever their servers are there."""
        self._timer = self._process.loop.call_later(
            self._process.settings.lease_s / _RENEWALS_PER_LEASE / self._parts, self.start
        )
        if not self._process.is_stopping:
            self._renew_some(self._slots[self._turn])
            self._turn = (self._turn + 1) % self._parts

    def stop(self) -> None:
        """Renews no more.  The leases themselves stay until `end`."""
        if self._timer is not None:
            self._timer.cancel()
        if self._aside is not None:
            self._aside.cancel()

    def owner(self, slot: int) -> str:
        """The name of this process as the owner of the sessions of a slot."""
        return f"{self._process.name}:{{{slot_tag(slot)}}}" if self._servers.is_cluster else self._process.name

    def hold(self, slot: int, link: int) -> None:
        """A session of the slot is about to be opened on a link."""
        slots = self._slots[slot % self._parts]
        if slot not in slots:
            slots.add(slot)
            if self._servers.is_up(link):
                self._send(slot, link, self._process.settings.lease_s, self._refused_by(slot, link))

    def renew(self, link: int, on_reply: OnReply | None = None) -> None:
        """Renews those of a link that is up."""
        for slots in self._slots:
            for slot in slots:
                if self._servers.link_at(slot) == link:
                    self._send(slot, link, self._process.settings.lease_s, on_reply or self._refused_by(slot, link))

    def end(self, on_reply: OnReply) -> int:
        """Gives the leases back where servers are there.  Returns how often `on_reply` is called."""
        sent = 0
        for slots in self._slots:
            for slot in slots:
                link = self._servers.link_at(slot)
                if link is not None and self._servers.is_up(link):
                    self._send(slot, link, 0, on_reply)
                    sent += 1
        return sent

    def _renew_some(self, slots: set[int]) -> None:
        if self._servers.in_doubt:  # there is one server, with one slot
            if self._aside is None or self._aside.done():
                self._aside = asyncio.create_task(self._renew_aside(self.owner(0)))
            return
        for slot in tuple(slots):
            is_needed = not self._servers.is_cluster or self._has_clients(slot)
            if not is_needed:
                slots.discard(slot)
            link = self._servers.link_at(slot)
            if link is not None and self._servers.is_up(link):
                seconds = self._process.settings.lease_s if is_needed else 0
                self._send(slot, link, seconds, self._refused_by(slot, link) if is_needed else _log_refusal)

    async def _renew_aside(self, owner: str) -> None:
        try:
            async with self._servers.client(owner.encode()) as client:
                await client.execute_command("SESSION.OWNER", owner, "LEASE", self._process.settings.lease_s)
        except (RedisError, OSError) as error:
            if self._servers.in_doubt:  # else it is renewed by the link
                log.warning("the server refuses the heartbeat", error=error)

    def _refused_by(self, slot: int, link: int) -> OnReply:
        """Goes after a heartbeat that has left for another node, before the rest of its slot."""
        seconds = self._process.settings.lease_s

        def take(reply: Reply) -> None:
            _log_refusal(reply)
            if _is_ask(reply) and self._servers.is_up(link):
                # Of a moving slot, too: SESSION.OWNER names no key.  This does, so it tells where the heartbeat is.
                self._calls.call(("EXPIRE", _PREFIX + self.owner(slot), seconds), follow, link)

        def follow(reply: Reply) -> None:
            _log_refusal(reply)
            other = self._servers.asked(link, str(reply)) if _is_ask(reply) else None
            if other is not None:
                self._calls.call(("ASKING",), _log_refusal, other)
                self._send(slot, other, seconds, _log_refusal)

        return take

    def _send(self, slot: int, link: int, seconds: int, on_reply: OnReply) -> None:
        self._calls.call(("SESSION.OWNER", self.owner(slot), "LEASE", seconds), on_reply, link)


def _is_ask(reply: Reply) -> bool:
    return isinstance(reply, hiredis.ReplyError) and error_code(reply) == "ASK"


def _log_refusal(reply: Reply) -> None:
    if isinstance(reply, hiredis.ReplyError) and error_code(reply) not in _MOVING:
        log.warning("the server refuses the heartbeat", error=reply)
