"""One bridge process: who is connected, which inbox belongs to whom, and the link to the server between them.

    sockets ── Client/Connection ──┐                 ┌── Link ── server
    sockets ── Client/Connection ──┼──── Bridge ─────┤
    sockets ── Client/Connection ──┘                 └── inbox channels

The process holds nothing that cannot be lost: sessions, queues, subscriptions and retained messages are the server's.
Several processes on one server are one broker; what ties them together is the session's epoch and its inbox channel.

Invariants
 1. While somebody in this process wants an inbox, the link is subscribed to it; a push goes to whoever opened the
    session last (the epoch says who).
 2. A client stays in `clients` until its socket is closed and the server was told all that it has to know.
 3. At most max_fetches pages of queues are on their way: together they stay below the server's limit for output
    buffers of subscribers.  After a loss the number begins at one again, in case that limit was the reason.

Not O(1): the server's going and coming, and the shutdown, visit every client.
"""

import asyncio
import contextlib
import itertools
import os
import random
import secrets
import socket
from collections import deque
from collections.abc import Callable

from holdmq_bridge.backoff import Backoff
from holdmq_bridge.client import Client
from holdmq_bridge.connection import Connection, Phase
from holdmq_bridge.counters import Counters
from holdmq_bridge.link import Link
from holdmq_bridge.logs import Log
from holdmq_bridge.request import Kind, Reply, Request
from holdmq_bridge.settings import Settings

log = Log("bridge")

_TOUCHES_PER_LEASE = 2


class _Inbox:
    """One channel: who in this process wants it, and who has the session."""

    __slots__ = ("holder", "wanted_by")

    def __init__(self) -> None:
        self.wanted_by: set[Client] = set()
        self.holder: Client | None = None


class Bridge:
    """The process.  Create it inside a running event loop, then `start`, and in the end `stop`."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.loop = asyncio.get_running_loop()
        self.counters = Counters()
        self.name = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self.port = 0
        self._link = Link(settings, self.counters, self, self.name)
        self._link_task: asyncio.Task[None] | None = None
        self._server: asyncio.Server | None = None
        self._clients: set[Client] = set()
        self._inboxes: dict[bytes, _Inbox] = {}
        self._numbers = itertools.count(1)
        self._dirty: list[Client] = []
        self._to_flush: list[Client] = []
        self._resting: set[Client] = set()
        self._fetches = 0
        self._fetch_limit = settings.max_fetches
        self._fetch_queue: deque[Request] = deque()
        self._touches: deque[tuple[float, Client]] = deque()
        self._touch_timer: asyncio.TimerHandle | None = None
        self._draining = False
        self._progress = asyncio.Event()  # something was answered or ended: for the shutdown to look again

    # ---- life ------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Listens, and begins to connect to the server.  Raises OSError if the address cannot be had."""
        settings = self.settings
        self._server = await self.loop.create_server(lambda: Client(self), settings.host, settings.port, backlog=1024)
        self.port = self._server.sockets[0].getsockname()[1]
        self._link_task = self.loop.create_task(self._link.run())
        self._touch_due()
        log.info("listening", host=settings.host, port=self.port, name=self.name)

    async def run(self) -> None:
        """Returns only by an error: that of the link's task, which else never ends."""
        assert self._link_task is not None
        await asyncio.shield(self._link_task)

    async def stop(self) -> None:
        """Stops accepting, finishes what is under way, closes all connections and sessions.  Bounded in time."""
        assert self._server is not None
        assert self._link_task is not None
        log.info("shutting down", clients=len(self._clients))
        deadline = self.loop.time() + self.settings.shutdown_timeout_s
        self._server.close()
        self._draining = True
        for client in tuple(self._clients):
            client.update_reading()
        await self._until(lambda: not any(client.connection.line for client in self._clients), deadline)
        for client in tuple(self._clients):
            client.shut_down()
        await self._until(lambda: not self._clients, deadline)
        if self._touch_timer is not None:
            self._touch_timer.cancel()
        self._link.close()
        self._link_task.cancel()
        await asyncio.wait([self._link_task])
        log.info("stopped", clients_left=len(self._clients), **self.counters.as_dict())

    async def _until(self, condition: Callable[[], bool], deadline: float) -> None:
        """Waits for a condition that what the server answers brings about; in vain if there is no server."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                while not condition() and self._link.up:
                    self._progress.clear()
                    await self._progress.wait()

    # ---- clients ---------------------------------------------------------------------------------------------------

    @property
    def congested(self) -> bool:
        """Nobody is to be read."""
        return self._link.congested or self._draining

    def new_connection(self, client: Client) -> Connection:
        """The protocol object for a socket just accepted."""
        settings = self.settings
        return Connection(
            settings,
            self.counters,
            owner=client,
            owner_name=f"{self.name}:{next(self._numbers)}",
            assigned_id=lambda: b"auto-" + secrets.token_hex(10).encode(),
            backoff=Backoff(settings.retry_first_s, settings.retry_max_s, random.uniform),
        )

    def admit(self, client: Client) -> bool:
        """Is there room for one more connection?"""
        if len(self._clients) >= self.settings.max_connections:
            self.counters.connections_refused += 1
            return False
        self.counters.connections_accepted += 1
        self._clients.add(client)
        if self._link.up:
            client.connection.server_restored()
        return True

    def forget(self, client: Client) -> None:
        """Nothing is left to do for it."""
        self._clients.discard(client)
        self._resting.discard(client)
        self._progress.set()

    def resting(self, client: Client) -> None:
        """It is not read now; tell it when the congestion is over."""
        self._resting.add(client)

    # ---- inboxes ---------------------------------------------------------------------------------------------------

    def listen(self, client: Client) -> None:
        """The client is about to open its session."""
        channel = client.connection.inbox
        inbox = self._inboxes.get(channel)
        if inbox is None:
            inbox = self._inboxes[channel] = _Inbox()
        inbox.wanted_by.add(client)
        if self._link.up:
            self._link.subscribe([channel])

    def opened(self, client: Client) -> None:
        """The client has its session; whoever had it in this process has lost it."""
        inbox = self._inboxes[client.connection.inbox]
        former, inbox.holder = inbox.holder, client
        if former is not None:
            former.connection.taken_over(client.connection.epoch)
            former.pump()
        self._touches.append((self.loop.time() + self.settings.lease_s / _TOUCHES_PER_LEASE, client))

    def ended(self, client: Client) -> None:
        """The client's connection has ended; its inbox is wanted no more."""
        channel = client.connection.inbox
        inbox = self._inboxes.get(channel)
        if inbox is None:
            return
        inbox.wanted_by.discard(client)
        if inbox.holder is client:
            inbox.holder = None
        if not inbox.wanted_by:
            del self._inboxes[channel]
            if self._link.up:
                self._link.unsubscribe([channel])

    # ---- to the server ---------------------------------------------------------------------------------------------

    def send(self, requests: list[Request]) -> None:
        """Commands of a client."""
        for request in requests:
            self._link.send(request)

    def send_fetch(self, request: Request) -> None:
        """A page of a queue, now or when fewer are on their way."""
        if self._fetches < self._fetch_limit:
            self._fetches += 1
            self._link.send(request)
        else:
            self._fetch_queue.append(request)

    def _fetch_done(self) -> None:
        self._fetches -= 1
        self._fetch_limit = min(self._fetch_limit + 1, self.settings.max_fetches)
        while self._fetch_queue and self._fetches < self._fetch_limit:
            request = self._fetch_queue.popleft()
            if request.owner.connection.phase is Phase.OPEN:
                self._fetches += 1
                self._link.send(request)

    def flush_later(self, client: Client) -> None:
        """Calls its `flush` before the next batch is written."""
        client.flush_due = True
        self._to_flush.append(client)
        self._link.schedule_flush()

    def _touch_due(self) -> None:
        now = self.loop.time()
        lease_s = self.settings.lease_s
        while self._touches and self._touches[0][0] <= now:
            _due, client = self._touches.popleft()
            if client.connection.phase is Phase.OPEN:
                client.connection.touch()
                client.pump()
                self._touches.append((now + lease_s / _TOUCHES_PER_LEASE, client))
        self._touch_timer = self.loop.call_later(min(1.0, lease_s / 8), self._touch_due)

    # ---- from the link ---------------------------------------------------------------------------------------------

    def on_reply(self, request: Request, reply: Reply) -> None:
        """The answer to a command of some client."""
        client: Client = request.owner
        client.connection.reply(request, reply)
        if request.kind is Kind.FETCH:
            self._fetch_done()
        if not client.dirty:
            client.dirty = True
            self._dirty.append(client)

    def on_message(self, channel: bytes, payload: bytes) -> None:
        """A push on an inbox."""
        inbox = self._inboxes.get(channel)
        if inbox is None or inbox.holder is None:
            return  # between the subscription and the session's opening, or just unsubscribed: the queue has it
        client = inbox.holder
        client.connection.delivery(payload)
        if not client.dirty:
            client.dirty = True
            self._dirty.append(client)

    def on_chunk(self) -> None:
        """The end of what one read from the server brought: lets each client write once."""
        dirty, self._dirty = self._dirty, []
        for client in dirty:
            client.safely(client.pump)
        self._progress.set()

    def before_flush(self) -> None:
        """Adds the acknowledgements and fetches that gathered in this iteration."""
        to_flush, self._to_flush = self._to_flush, []
        for client in to_flush:
            client.safely(client.flush)

    def on_up(self) -> None:
        """Listens on all inboxes again, then lets every client go on."""
        self._link.subscribe(list(self._inboxes))
        for client in tuple(self._clients):
            client.safely(client.server_restored)
        self._link.schedule_flush()  # of what gathered while there was nobody to tell

    def on_down(self) -> None:
        """No reply will come any more."""
        self._progress.set()
        self._fetches = 0
        self._fetch_limit = 1
        self._fetch_queue.clear()
        for client in tuple(self._clients):
            client.safely(client.server_lost)

    def on_relief(self) -> None:
        """Clients may be read again."""
        resting, self._resting = self._resting, set()
        for client in resting:
            client.update_reading()
