"""One bridge process: its clients, and the engine between them and the links to servers.

    sockets ── Client/Session ──┐                            ┌── Servers ── links ── a server, or the nodes of a cluster
    sockets ── Client/Session ──┼── Bridge ── core.Engine ───┤
    sockets ── Client/Session ──┘                            └── inbox channels

Invariants
 1. While a client of this process needs an inbox, the link of its slot is subscribed to it.  What arrives there goes to
    the connection that opened the session last (the engine knows which).
 2. A client stays in `clients` until its socket is closed and the server knows everything it has to know.
 3. Per iteration of the event loop, and per turn of the pump, there is one write to the server and one to each client
    that has something to get.
 4. A command of a session goes to the link of its slot. It is kept while no link has the slot, or while that link is
    down.

Not O(1): the loss and the return of a server visit every client of its slots, and the shutdown visits all.
"""

import asyncio
import contextlib
import itertools
import secrets
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from holdmq.core.engine import Event, EventKind, OutOfStepError
from holdmq_bridge.base.command import Command, Kind, Reply, error_code
from holdmq_bridge.base.logs import Log, readable
from holdmq_bridge.base.reasons import Ending
from holdmq_bridge.broker.client import Client
from holdmq_bridge.broker.closings import Closings
from holdmq_bridge.broker.cluster import Cluster, check
from holdmq_bridge.broker.drain import Drain
from holdmq_bridge.broker.gate import USERS_KEY, Gate
from holdmq_bridge.broker.replays import Replays
from holdmq_bridge.broker.sessions_by_slot import PlacedSession, SessionsBySlot
from holdmq_bridge.broker.unserved import Unserved
from holdmq_bridge.process.process import Process
from holdmq_bridge.process.settings import Settings
from holdmq_bridge.server.calls import Calls
from holdmq_bridge.server.channels import Channels
from holdmq_bridge.server.lease import Lease
from holdmq_bridge.server.node_links import NodeLinks
from holdmq_bridge.server.readiness import Readiness
from holdmq_bridge.server.resources import log_resources
from holdmq_bridge.server.single_server import SingleServer
from holdmq_bridge.session.actions import Authenticate
from holdmq_bridge.session.session import Session
from holdmq_bridge.sockets.pump import Pump

if TYPE_CHECKING:
    from holdmq_bridge.server.servers import Servers

log = Log("bridge")

_FULL_LOGGED_EVERY_S = 10.0
_RESTORED_AT_ONCE = 64  # clients, between two looks of the loop at its sockets
_WAIT_S = 0.02  # between two looks of the engine at what waits for time to pass

# What ended a client whose command was permanently refused.
_ENDINGS = {"FENCED": Ending.TAKEN_OVER, "NOSESSION": Ending.GONE, "INVALIDTOPIC": Ending.PROTOCOL}

# How WAIT is refused where there is no primary any more.
_NO_PRIMARY = ("UNBLOCKED", "ERR WAIT cannot be used with replica")


class _Moving:
    """What has to be done when a slot gets another server.

    Attributes:
        link: that the slot has, as far as `action` knows.
    """

    def __init__(self, action: Callable[[], None], slot: int, link: int | None) -> None:
        self.action = action
        self.slot = slot
        self.link = link


class Bridge:
    """Create it inside a running event loop, then `start`, and in the end `stop`."""

    def __init__(self, settings: Settings, *, is_cluster: bool = False) -> None:
        """Serves one server, or a cluster.

        Args:
            settings: of the bridge.
            is_cluster: serves the cluster that the server belongs to.

        Raises:
            ClusterSettingsError: a cluster cannot be served with these settings.
        """
        if is_cluster:
            check(settings)
        self.process = Process(settings, self.flush, is_cluster=is_cluster)
        self.pump = Pump(self.process, self)
        self._engine = self.process.engine
        self.server_buffer = self._engine.server_buffer
        self.servers: Servers
        self._cluster: Cluster | None = None
        if is_cluster:
            links = self.servers = NodeLinks(settings, self._engine, self, self.process.name)
            self.calls = Calls(self.process, links)
            self._cluster = Cluster(self.process, links, self.calls, self)
        else:
            self.servers = SingleServer(settings, self._engine, self, self.process.name)
            self.calls = Calls(self.process, self.servers)
        self._placed = SessionsBySlot(self.servers)
        self._lease = Lease(self.process, self.servers, self.calls, self._placed.__contains__)
        self.readiness = Readiness(self.process, self.servers, self.calls, self._lease)
        self.clients: set[Client] = set()
        self._closings = Closings(self.process.loop)
        self._gate = Gate(self.process, self.servers, self.clients)
        self._replays = Replays(self.process, self.servers, self.calls)
        self._unserved = Unserved(self.process, self.servers, self.clients)
        self.drain = Drain(self.process, self.clients)
        self._at_move: list[_Moving] = []
        self.at_moved(USERS_KEY, self._gate.primary_moved)
        self._slots_are_due = False
        self._followers: deque[tuple[PlacedSession, int | None]] = deque()  # to another link, each with its former one
        self._inboxes = Channels(self._engine, self.servers)
        self._by_conn: dict[int, Client] = {}
        self._holders: dict[bytes, Client] = {}  # by the key of the session that a connection of this process has
        self._attempts = itertools.count(1)
        self._paused: set[Client] = set()
        self._unrestored: set[PlacedSession] = set()  # their pending commands are not sent yet to a server that is back
        self._restoring: asyncio.Handle | None = None  # of the next clients
        self._wait_timer: asyncio.TimerHandle | None = None
        self._pump_is_closed = False
        self._full_logged_at = -_FULL_LOGGED_EVERY_S
        self._progress = asyncio.Event()  # a reply arrived, or a client ended: the shutdown looks again

    # ---- life ------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begins to connect to the server."""
        if self._cluster is not None:
            self.servers.start()  # finds the node that has users and rules
        await self._gate.start()
        self.process.wheel.start(self.process.loop)
        if self._cluster is None:
            self.servers.start()
        self._lease.start()
        if self._cluster is not None:
            self._cluster.start()

    async def run(self) -> None:
        """Returns only by an error, by which nothing connects any more.

        Raises:
            ClusterFoundError: the single server is a node of a cluster.
        """
        await self.servers.run()

    async def stop(self) -> None:
        """Finishes what is under way, closes connections and sessions; also if the start failed.  Bounded in time."""
        process = self.process
        log.info("shutting down", clients=len(self.clients))
        deadline = process.loop.time() + process.settings.shutdown_timeout_s
        process.is_stopping = True
        self.drain.stop()
        self._unserved.stop()
        self._closings.finish_all()
        for client in tuple(self.clients):
            client.update_reading()
        process.wake()
        await self._until(lambda: not process.engine.outstanding, deadline)
        for client in tuple(self.clients):
            client.end(Ending.SHUTDOWN)
        await self._until(
            lambda: not self.clients and (self._cluster is None or not self._cluster.members_busy), deadline
        )
        await self._end_lease(deadline)
        self._lease.stop()
        if self._wait_timer is not None:
            self._wait_timer.cancel()
        process.wheel.stop()
        await self._gate.stop()
        if self._cluster is not None:
            await self._cluster.stop()
        await self.servers.stop()
        log.info("stopped", clients_left=len(self.clients), **self.counted())
        self._pump_is_closed = True
        self.pump.close()

    @property
    def _members_busy(self) -> int:
        return 0 if self._cluster is None else self._cluster.members_busy

    async def _end_lease(self, deadline: float) -> None:
        replies: list[Reply] = []
        sent = self._lease.end(replies.append)
        await self._until(lambda: len(replies) >= sent, deadline)

    async def _until(self, condition: Callable[[], bool], deadline: float) -> None:
        """Waits for a condition that replies of the server bring about.  Gives up when there is no server."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                while not condition() and self.servers.any_up:
                    self._progress.clear()
                    await self._progress.wait()

    # ---- facts -----------------------------------------------------------------------------------------------------

    @property
    def congested(self) -> bool:
        """Whether no client is to be read now."""
        return self.process.is_stopping or self.servers.is_paused or self._engine.congested

    def own_counters(self) -> dict[str, int]:
        """Counters of everything outside the engine."""
        own = self.process.counters.as_dict()
        own["bytes_sent"] += self.pump.sent
        own["server_connections"], own["server_losses"] = self.servers.connections, self.servers.losses
        return own

    def client_of(self, conn: int) -> Client | None:
        """The client of a connection of the engine; None: it has ended."""
        return self._by_conn.get(conn)

    def counted(self) -> dict[str, int]:
        """All counters, of the engine and of the process.  Counters by QoS are summed up."""
        counters = self.own_counters()
        for name, value in self._engine.counters().items():
            counters[name] = sum(value) if isinstance(value, tuple) else value
        return counters

    def levels(self) -> dict[str, float]:
        """Present levels, by the names of the metrics."""
        return {
            **self._engine.levels(),
            "server_up": self.servers.all_up,
            "ready": self.readiness.is_ready,
            "seconds_since_acknowledgement": self._since_acknowledgement(),
            "clients": len(self.clients),
            "connects_waiting": self._gate.waiting,
            "inboxes": len(self._inboxes),
            "clients_paused": len(self._paused),
            "congested": self.congested,
            "replaying": len(self._replays),
            "commands_outstanding": self._engine.outstanding,
            "start_time_seconds": self.process.started_at,
        }

    def _since_acknowledgement(self) -> float:
        """Seconds; since the start if nothing was acknowledged."""
        last_ms = self._engine.counters()["acknowledged_ms"]
        assert isinstance(last_ms, int)
        return max(0.0, time.time() - (last_ms / 1000 or self.process.started_at))

    # ---- clients ---------------------------------------------------------------------------------------------------

    def new_session(self) -> Session:
        """Makes the session of a connection."""
        attempt = f"{self.process.name}:{next(self._attempts)}"
        assigned_id = lambda: b"auto-" + secrets.token_hex(10).encode()  # noqa: E731
        return Session(self.process.settings, self._owner, attempt, assigned_id, self.process.now_ms)

    def _owner(self, key: bytes) -> str:
        return self._lease.owner(self.servers.slot_of(key))

    @property
    def has_room(self) -> bool:
        """Whether one more connection may be taken in."""
        connections = len(self.clients) + self.process.handshakes
        return connections < self.process.settings.max_connections and not self._is_ending

    @property
    def _is_ending(self) -> bool:
        return self.process.is_draining or self.process.is_stopping

    def refuse_connection(self) -> None:
        """Counts and logs a connection for which there is no room."""
        self.process.counters.connections_refused += 1
        self._log_full()

    def admit(self, client: Client) -> bool:
        """Takes a connection in and gives it a `conn`; False: there is no room for it."""
        if not self.has_room:
            self.refuse_connection()
            return False
        self.process.counters.connections_accepted += 1
        self.clients.add(client)
        client.conn = self._engine.attach()
        self._by_conn[client.conn] = client
        return True

    def _log_full(self) -> None:
        """Logs at most one line in `_FULL_LOGGED_EVERY_S`: refused clients retry at once."""
        if not self._is_ending and self.process.loop.time() >= self._full_logged_at + _FULL_LOGGED_EVERY_S:
            self._full_logged_at = self.process.loop.time()
            limit, refused = self.process.settings.max_connections, self.process.counters.connections_refused
            log.warning("connections are refused: max_connections is reached", max_connections=limit, refused=refused)

    def new_client(self, peer: str = "") -> Client:
        """The receiver of a connection; `peer`: the client's address, if a proxy named it."""
        return Client(self.process, self, peer)

    def authenticate(self, client: Client, connect: Authenticate) -> None:
        """Finds out whether the client may connect, and calls its `authenticated`."""
        self._gate.authenticate(client, connect)

    def session_opened(self, client: Client, *, resumed: bool, former: int) -> None:
        """The client has its session.  A former client of this process has lost it."""
        self._gate.connect_answered(client)
        self.process.counters.sessions_opened += 1
        self.process.counters.sessions_resumed += resumed
        if former and former in self._by_conn:
            self.process.counters.sessions_taken_over += 1
            self._by_conn[former].end(Ending.TAKEN_OVER)
        self._holders[client.session.key] = client
        if self._cluster is not None:
            self._cluster.session_opened(client, resumed=resumed)

    def may_close(self, client: Client) -> bool:
        """Whether the client may end now.  If not, its `finish` is called when it has its turn."""
        return self._closings.has_turn(client)

    def detach(self, client: Client) -> None:
        """The connection has ended: the engine forgets it, and its inbox is left."""
        self._gate.connect_answered(client)
        self._replays.forget(client)
        if self._cluster is not None:
            self._cluster.forget(client)
        self._engine.close(client.conn)
        del self._by_conn[client.conn]
        if self._holders.get(client.session.key) is client:
            del self._holders[client.session.key]
        client.engine_detached()
        self._leave_inbox(client)

    def read_history(self, client: Client) -> None:
        """Reads history for the session: it has, or may have, subscriptions that need it."""
        if self._cluster is None:  # a node of a cluster refuses such subscriptions
            self._replays.begin(client)

    def forget(self, client: Client) -> None:
        """Nothing is left to do for the client."""
        self.clients.discard(client)
        self._placed.discard(client)
        self._paused.discard(client)
        self._unrestored.discard(client)
        self._progress.set()

    def add_paused(self, client: Client) -> None:
        """The client is not read now.  Calls its `update_reading` when the reason may be over."""
        self._paused.add(client)

    def _update_paused(self) -> None:
        """Lets clients that are not read check whether they are read again."""
        if self._paused and not self.congested:
            paused, self._paused = self._paused, set()
            for client in paused:
                client.update_reading()

    # ---- to the server ---------------------------------------------------------------------------------------------

    def send_command(self, client: Client, command: Command) -> None:
        """Sends a command of a client's session.

        The session keeps the command until it is answered.  So nothing is sent while the server is away, or before the
        client's turn after its return.
        """
        if command.kind is Kind.OPEN:
            self._finish_former(client)
            self._placed.add(client)
        link = self._placed.link_of(client)
        if link is None:
            return
        if command.kind is Kind.OPEN:
            self._join_inbox(client, link)
            self._lease.hold(client.slot, link)
        if not self.servers.is_up(link) or client in self._unrestored:
            return
        receive = partial(self._receive_reply, client, command)
        if self._cluster is not None and command.kind is Kind.SUBSCRIBE:
            self._cluster.subscribe(client, command, receive)
            return
        if self._cluster is not None and self._cluster.leaves_groups(command):
            self._cluster.unsubscribe(client, command, receive)
            return
        if command.kind is Kind.CLOSE:
            self._closings.command_sent(client)
        lost = partial(self._command_lost, client)
        if self._cluster is not None and command.kind is Kind.OPEN:
            self._cluster.open(client, command, link, receive, lost)
        else:
            self.calls.call(command.arguments, receive, link, lost)

    def _command_lost(self, client: Client) -> None:
        """A link was lost before it replied.  Another one may have the client's slot by now."""
        link = self._placed.link_of(client)
        if link is not None and self.servers.is_up(link):
            self._unrestored.add(client)

    def link_of(self, client: Client) -> int:
        """The link of an open session."""
        link = self._placed.link_of(client)
        assert link is not None
        return link

    def place_member(self, member: PlacedSession) -> int | None:
        """The link of a member's slot, on which this process hears its inbox and holds a lease now; None: none."""
        self._placed.add(member)
        link = self._placed.link_of(member)
        if link is not None:
            self._join_inbox(member, link)
            self._lease.hold(member.slot, link)
        return link

    def remove_member(self, member: PlacedSession) -> None:
        """The member is closed."""
        self._leave_inbox(member)
        self._placed.discard(member)
        self._unrestored.discard(member)
        self._progress.set()

    def owner_of(self, key: bytes) -> str:
        """The name of this process as the owner of a session."""
        return self._owner(key)

    def _join_inbox(self, session: PlacedSession, link: int) -> None:
        """Subscribes to the inbox of a session on a link, in place of the one that it had."""
        if session.inbox_link != link:
            self._inboxes.join(session.inbox, link)
            self._leave_inbox(session)
            session.inbox_link = link

    def _leave_inbox(self, session: PlacedSession) -> None:
        if session.inbox_link is not None:
            self._inboxes.leave(session.inbox, session.inbox_link)
            session.inbox_link = None

    def _finish_former(self, client: Client) -> None:
        """Ends the client's former connection, if the client has closed it: a will is due, nothing is taken over."""
        former = self._holders.get(client.session.key)
        if former is None or former is client:
            return
        if former in self._closings:
            self._closings.finish(former)
        elif former.is_gone():
            former.end(Ending.LOST)

    def _receive_reply(self, client: Client, command: Command, reply: Reply) -> None:
        if command.kind is Kind.CLOSE:
            self._closings.command_answered(client)
            if self._cluster is not None:
                self._cluster.look_at_outbox(client.slot)
        try:
            client.apply(client.session.reply(command, reply))
        except Exception as error:  # noqa: BLE001 (a defect of ours must not end the others' connections)
            log.defect("defect: the client is disconnected", error, client=client.client_id)
            client.end(Ending.DEFECT)

    def ping(self, link: int) -> bool:
        """Sends a PING unless the server owes a reply; returns whether it was sent."""
        return self.calls.ping(link)

    # ---- flush -----------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Writes the engine's output to the server and to clients."""
        process, engine = self.process, self._engine
        process.flush_is_due = False
        if self._pump_is_closed:
            return  # it was due when the end came
        engine.flush(process.now_ms())
        for event in engine.events():
            self._on_event(event)
        self.servers.flush()
        self.write_outputs()
        self._update_paused()
        if engine.needs_flush:
            process.wake()  # messages of QoS 0 were sent: acknowledge them, and fetch more
        elif self._wait_timer is None and engine.has_timed_work:
            self._wait_timer = process.loop.call_later(_WAIT_S, self._flush_after_wait)

    def _flush_after_wait(self) -> None:
        self._wait_timer = None
        self.process.wake()

    def write_outputs(self) -> None:
        """Sends the engine's output for all clients, mostly in the pump."""
        by_conn = self._by_conn
        written = 0
        for conn, data in self.pump.outputs():
            by_conn[conn].write(data)
            written += len(data)
        self.process.counters.bytes_sent += written

    def _on_event(self, event: Event) -> None:
        if event.kind == EventKind.REPLY:
            self.calls.receive(event.link, event.token, event.data)
            return
        if event.kind == EventKind.PUSH:
            self._replays.pushed(event.data)
            return
        if event.kind in (EventKind.SLOT_MOVED, EventKind.ROUTES_MISSING):
            assert self._cluster is not None
            is_moved = event.kind == EventKind.SLOT_MOVED
            (self._cluster.slot_moved if is_moved else self._cluster.routes_missing)(event)
            return
        if event.kind in (EventKind.UNCONFIRMED, EventKind.CONFIRMED):
            self._on_confirmation(event)
            return
        client = self._by_conn.get(event.conn)
        if client is None:
            if self._cluster is not None:
                self._cluster.member_event(event)
            return
        try:
            self._on_client_event(client, event)
        except Exception as error:  # noqa: BLE001 (a defect of ours must not end the others' connections)
            log.defect("defect: the client is disconnected", error, client=client.client_id)
            client.end(Ending.DEFECT)

    def _on_confirmation(self, event: Event) -> None:
        about: dict[str, object] = {"wait_replicas": self.process.settings.wait_replicas}
        if self.servers.is_cluster:
            about["node"] = self.servers.addresses().get(event.link, "")
        is_unconfirmed = event.kind == EventKind.UNCONFIRMED
        if not is_unconfirmed:
            self.readiness.unconfirmed.discard(event.link)
            if not self.readiness.unconfirmed and self.servers.all_up:
                self._unserved.stop()
            log.info("replicas confirm writes again", replicas=event.token, **about)
            return
        self.readiness.unconfirmed.add(event.link)
        self._unserved.begin()
        error = readable(event.data)
        facts = {"error": error} if error else {"replicas": event.token}
        log.warning("acknowledgements are withheld: too few replicas confirm writes", **about, **facts)
        if error.startswith(_NO_PRIMARY):
            self.servers.leave(event.link, "it has become a replica")

    def _on_client_event(self, client: Client, event: Event) -> None:
        if event.kind == EventKind.RELIEF:
            self._paused.discard(client)
            client.update_reading()
        elif event.kind == EventKind.ROOM:
            self._replays.has_room(client)
        elif event.kind == EventKind.TAKEN_OVER:
            # Known from a notice, or from a refusal if the notice was lost.
            refusal = error_code(readable(event.data))
            ending = Ending.TAKEN_OVER if event.epoch else _ENDINGS.get(refusal, Ending.DROPPED)
            self.process.counters.sessions_taken_over += ending is Ending.TAKEN_OVER
            client.end(ending)
        elif event.kind == EventKind.FAILED:
            error = readable(event.data)
            client.end(_ENDINGS.get(error_code(error.lstrip("-")), Ending.SERVER_ERROR), error)
        elif event.kind == EventKind.CONFLICT:
            client.end(Ending.GONE, "the server was restored from an older state")
        elif event.kind == EventKind.WITHHELD:
            client.withheld(event.data)
        elif event.kind == EventKind.ABANDONED:
            log.warning(
                "a publish is refused: the connection to the server broke each time it was sent",
                client=client.client_id,
                topic=event.data,
                bytes=event.token,
            )
        elif event.kind == EventKind.REFUSED:
            self._publish_refused(self._engine.link_of(event.conn), readable(event.data))

    def _publish_refused(self, link: int, error: str) -> None:
        if self._cluster is None:
            self.readiness.publish_refused(error)
            self.servers.refused(link, error)
        elif self._cluster.publish_refused(link, error):
            self.readiness.publish_refused(error)

    # ---- from the links ---------------------------------------------------------------------------------------------

    def on_bytes(self, link: int, count: int) -> bool:
        """Takes replies and pushes of a link from `server_buffer`."""
        process = self.process
        try:
            for event in self._engine.buffered_replies(count, process.now_ms(), link):
                self._on_event(event)
        except OutOfStepError:
            return False
        self._progress.set()
        process.wake()
        self.pump.server_answered()
        return True

    def on_writable(self) -> None:
        """A link may be written again."""
        self.process.wake()

    def on_up(self, link: int) -> None:
        """A server is there: subscribes to all its inboxes again, then its clients continue."""
        self._inboxes.join_all(link)
        self._lease.renew(link)
        self.readiness.server_found()
        describe = partial(log_resources, node=self.servers.addresses().get(link, ""))
        self.calls.call(("INFO", "holdmq"), describe, link)
        if self.servers.all_up and not self.readiness.unconfirmed:
            self._unserved.stop()
        self._engine.server_restored(self.process.now_ms(), link)
        self._unrestored.update(self._placed.on_link(link))
        if self._cluster is None:
            self._replays.server_restored()
        else:
            self._cluster.node_is_back()
        self._restore_some()
        self._gate.server_restored()
        self.process.wake()

    def _restore_some(self) -> None:
        """Lets some clients continue.  The loop handles sockets before the next ones."""
        if self._restoring is not None:
            self._restoring.cancel()
            self._restoring = None
        for _ in range(min(_RESTORED_AT_ONCE, len(self._unrestored))):
            self._unrestored.pop().server_restored()
        if self._unrestored:
            self._restoring = self.process.loop.call_soon(self._restore_some)

    def on_slots(self) -> None:
        """Slots have other links.  Several changes in one iteration of the loop count as one."""
        if not self._slots_are_due:
            self._slots_are_due = True
            self.process.loop.call_soon(self._take_slots)

    def _take_slots(self) -> None:
        self._slots_are_due = False
        if self._cluster is None or self._pump_is_closed:
            return
        self._cluster.take_slots()
        is_under_way = bool(self._followers)
        self._followers.extend(self._placed.changes())
        if not is_under_way:
            self._follow_some()
        self._look_at_moving()
        self._gate.server_restored()
        self.process.wake()

    def _follow_some(self) -> None:
        """Lets some sessions change their links.  The loop handles sockets before the next ones."""
        for _ in range(min(_RESTORED_AT_ONCE, len(self._followers))):
            self._follow(*self._followers.popleft())
        if self._unrestored:
            self._restore_some()
        if self._followers:
            self.process.loop.call_soon(self._follow_some)
        self.process.wake()

    def _follow(self, session: PlacedSession, former: int | None) -> None:
        """The session's slot has another link.  What was not sent, or lost, is sent there."""
        link = self._placed.link_of(session)
        if link is None:
            return  # it has gone
        if session.inbox_link is not None:
            self._join_inbox(session, link)
        if session.is_open and self._engine.link_of(session.conn) != link:
            self._engine.move(session.conn, link)
        if self.servers.is_up(link) and (former is None or not self.servers.is_up(former)):
            self._unrestored.add(session)

    def on_primary_moved(self) -> None:
        """Users and rules are read from the new primary, too."""
        for moving in self._at_move:
            moving.action()

    def at_moved(self, key: bytes, action: Callable[[], None]) -> None:
        """Adds an action for when another server has a key: another primary, or another node of the cluster."""
        slot = self.servers.slot_of(key)
        self._at_move.append(_Moving(action, slot, self.servers.link_at(slot)))

    def _look_at_moving(self) -> None:
        for moving in self._at_move:
            link = self.servers.link_at(moving.slot)
            if link is not None and link != moving.link:
                if moving.link is not None:
                    moving.action()
                moving.link = link

    def on_down(self, link: int) -> None:
        """A server is lost: no reply will arrive any more from it."""
        self._unrestored.difference_update(self._placed.on_link(link))
        self._progress.set()
        self.calls.server_lost(link)
        self._closings.server_lost()
        self.readiness.server_lost(link)
        self._unserved.begin()
        self._engine.server_lost(link)
        self.pump.server_answered()
        if self._cluster is None:
            self._replays.server_lost()
        for session in tuple(self._placed.on_link(link)):
            session.server_lost()
        if self._unrestored:
            self._restore_some()
        self.process.wake()
