"""One bridge process: its clients, their inboxes, and the engine between them and the link to the server.

    sockets ── Client/Session ──┐                            ┌── Link ── server
    sockets ── Client/Session ──┼── Bridge ── core.Engine ───┤
    sockets ── Client/Session ──┘                            └── inbox channels

The process holds nothing that cannot be lost: sessions, queues, subscriptions, wills and retained messages are the
server's.  Several processes on one server are one broker; what ties them together is the session's epoch and its inbox
channel.

Invariants
 1. While somebody in this process wants an inbox, the link is subscribed to it; what comes on it goes to whoever opened
    the session last (the engine knows).
 2. A client stays in `clients` until its socket is closed and the server was told all that it has to know.
 3. Per iteration of the event loop, and per turn of the pump, there is one write to the server and one to each client
    that has something to get.
 4. The process says SESSION.OWNER often enough that only a dead one's sessions are closed by the server.

Not O(1): the server's going and coming, and the shutdown, visit every client.
"""

import asyncio
import contextlib
import itertools
import os
import random
import secrets
import socket
import time
from collections.abc import Callable

import hiredis

from holdmq.core.engine import Engine, EngineSettings, Event, EventKind, OutOfStepError
from holdmq_bridge.backoff import Backoff
from holdmq_bridge.client import Client
from holdmq_bridge.command import Argument, Command, Kind, Reply
from holdmq_bridge.counters import Counters
from holdmq_bridge.gate import Gate
from holdmq_bridge.inboxes import Inboxes
from holdmq_bridge.link import Link, pack
from holdmq_bridge.logs import Log
from holdmq_bridge.pump import Pump
from holdmq_bridge.readiness import Readiness
from holdmq_bridge.reasons import Ending
from holdmq_bridge.replays import Replays
from holdmq_bridge.session import Session
from holdmq_bridge.settings import Settings
from holdmq_bridge.unserved import Unserved
from holdmq_bridge.upgrade import Upgrades
from holdmq_bridge.wheel import Wheel

log = Log("bridge")

_HEARTBEATS_PER_LEASE = 4
_FULL_TOLD_EVERY_S = 10.0
_NEVER_MS = 0xFFFF_FFFF  # 49 days
_RESTORED_AT_ONCE = 64  # clients, between two looks of the loop at its sockets
_WAIT_S = 0.02  # between two looks of the engine at what waits for time to pass

# What ended a client whose command was refused for good.
_ENDINGS = {"FENCED": Ending.TAKEN_OVER, "NOSESSION": Ending.GONE, "INVALIDTOPIC": Ending.PROTOCOL}

# How WAIT is refused where there is no primary any more.
_NO_PRIMARY = ("UNBLOCKED", "ERR WAIT cannot be used with replica")

Answered = Callable[[Reply], None]


class Bridge:
    """The process.  Create it inside a running event loop, then `start`, and in the end `stop`."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.loop = asyncio.get_running_loop()
        self.counters = Counters()
        self.started_at = time.time()
        self.name = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self.engine = Engine(_engine_settings(settings))
        self.server_buffer = self.engine.server_buffer
        self.upgrades = Upgrades(settings)
        self.pump = Pump(self)
        self.wheel = Wheel()
        self.link = Link(settings, self, self.name)
        self.clients: set[Client] = set()
        self.gate = Gate(self)
        self._by_conn: dict[int, Client] = {}
        self._inboxes = Inboxes(self.engine)
        self.replays = Replays(self)
        self.readiness = Readiness(self)
        self._unserved = Unserved(self)
        self._tokens = itertools.count(1)
        self._asked: dict[int, tuple[Client, Command] | Answered] = {}
        self._resting: set[Client] = set()
        self._unrestored: set[Client] = set()  # the server is back, and has not got their pending commands yet
        self._restoring: asyncio.Handle | None = None  # the next part of them
        self._awake = False
        self._wait_timer: asyncio.TimerHandle | None = None
        self._heartbeat_timer: asyncio.TimerHandle | None = None
        self._link_task: asyncio.Task[None] | None = None
        self._draining = False
        self.unconfirmed = False  # acknowledgements are withheld: too few replicas confirm
        self._over = False  # the pump is gone
        self._full_told_at = self._proxy_told_at = -_FULL_TOLD_EVERY_S
        self._progress = asyncio.Event()  # something was answered or ended: for the shutdown to look again

    # ---- life ------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begins to connect to the server."""
        await self.gate.start()
        self.wheel.start(self.loop)
        self._link_task = self.loop.create_task(self.link.run())
        self._beat()

    async def run(self) -> None:
        """Returns only by an error: that of the link's task, which else never ends."""
        assert self._link_task is not None
        await asyncio.shield(self._link_task)

    async def stop(self) -> None:
        """Finishes what is under way, closes connections and sessions; also if the start failed.  Bounded in time."""
        log.info("shutting down", clients=len(self.clients))
        deadline = self.loop.time() + self.settings.shutdown_timeout_s
        self._draining = True
        self._unserved.stop()
        for client in tuple(self.clients):
            client.update_reading()
        self.wake()
        await self._until(lambda: not self.engine.outstanding, deadline)
        for client in tuple(self.clients):
            client.end(Ending.SHUTDOWN)
        await self._until(lambda: not self.clients, deadline)
        await self._say_goodbye(deadline)
        for timer in (self._heartbeat_timer, self._wait_timer):
            if timer is not None:
                timer.cancel()
        self.wheel.stop()
        await self.gate.stop()
        self.link.close()
        if self._link_task is not None:
            self._link_task.cancel()
            await asyncio.wait([self._link_task])
        log.info("stopped", clients_left=len(self.clients), **self.counted())
        self._over = True
        self.pump.close()

    async def _say_goodbye(self, deadline: float) -> None:
        said = False

        def answered(_reply: Reply) -> None:
            nonlocal said
            said = True

        if self.up:
            self.call(("SESSION.OWNER", self.name, "LEASE", 0), answered)
            await self._until(lambda: said, deadline)

    async def _until(self, condition: Callable[[], bool], deadline: float) -> None:
        """Waits for a condition that what the server answers brings about; in vain if there is no server."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                while not condition() and self.up:
                    self._progress.clear()
                    await self._progress.wait()

    def _beat(self) -> None:
        """Tells the server that this process lives, and so its sessions."""
        interval = self.settings.lease_s / _HEARTBEATS_PER_LEASE
        self._heartbeat_timer = self.loop.call_later(interval, self._beat)
        if self.up and not self._draining:
            self.beat(self._beat_answered)

    def beat(self, answered: Answered) -> None:
        """Renews the lease of this process.  Only while `up`."""
        self.call(("SESSION.OWNER", self.name, "LEASE", self.settings.lease_s), answered)

    def _beat_answered(self, reply: Reply) -> None:
        if isinstance(reply, hiredis.ReplyError):
            log.warning("the server refuses the heartbeat", error=reply)

    def _leave_replica(self, error: str) -> None:
        if error.partition(" ")[0] == "READONLY":
            self.link.leave("it has become a replica")

    # ---- facts -----------------------------------------------------------------------------------------------------

    @property
    def up(self) -> bool:
        """Is the server there?"""
        return self.link.up

    @property
    def congested(self) -> bool:
        """Nobody is to be read."""
        return self._draining or self.link.paused or self.engine.congested

    @staticmethod
    def now_ms() -> int:
        """The engine's clock."""
        return time.time_ns() // 1_000_000

    @property
    def draining(self) -> bool:
        """Is it shutting down?"""
        return self._draining

    def own_counters(self) -> dict[str, int]:
        """What the engine does not count."""
        own = self.counters.as_dict()
        own["bytes_sent"] += self.pump.sent
        own["server_connections"], own["server_losses"] = self.link.connections, self.link.losses
        return own

    def client_of(self, conn: int) -> Client | None:
        """Whose a connection of the engine is; None: it is over."""
        return self._by_conn.get(conn)

    def counted(self) -> dict[str, int]:
        """All counters, the engine's and the process's own; those by QoS summed up."""
        counters = self.own_counters()
        for name, value in self.engine.counters().items():
            counters[name] = sum(value) if isinstance(value, tuple) else value
        return counters

    def levels(self) -> dict[str, float]:
        """How much there is now, by the names of the metrics."""
        return {
            **self.engine.levels(),
            "server_up": self.up,
            "ready": self.readiness.is_ready,
            "seconds_since_acknowledgement": self._since_acknowledgement(),
            "clients": len(self.clients),
            "connects_waiting": self.gate.waiting,
            "inboxes": len(self._inboxes),
            "clients_resting": len(self._resting),
            "congested": self.congested,
            "replaying": len(self.replays),
            "commands_outstanding": self.engine.outstanding,
            "start_time_seconds": self.started_at,
        }

    def _since_acknowledgement(self) -> float:
        """In seconds; since the start if none was."""
        last_ms = self.engine.counters()["acknowledged_ms"]
        assert isinstance(last_ms, int)
        return max(0.0, time.time() - (last_ms / 1000 or self.started_at))

    # ---- clients ---------------------------------------------------------------------------------------------------

    def new_session(self) -> Session:
        """The protocol object for a socket just accepted."""
        attempt = f"{self.name}:{next(self._tokens)}"
        assigned_id = lambda: b"auto-" + secrets.token_hex(10).encode()  # noqa: E731
        return Session(self.settings, self.name, attempt, assigned_id, self.now_ms)

    def new_backoff(self) -> Backoff:
        """Pauses between attempts."""
        return Backoff(self.settings.retry_first_s, self.settings.retry_max_s, random.uniform)

    def admit(self, client: Client) -> bool:
        """Is there room for one more connection?"""
        if len(self.clients) >= self.settings.max_connections or self._draining:
            self.counters.connections_refused += 1
            self._tell_full()
            return False
        self.counters.connections_accepted += 1
        self.clients.add(client)
        client.conn = self.engine.attach()
        self._by_conn[client.conn] = client
        return True

    def _tell_full(self) -> None:
        """Now and then: whoever is refused comes again at once."""
        if not self._draining and self.loop.time() >= self._full_told_at + _FULL_TOLD_EVERY_S:
            self._full_told_at = self.loop.time()
            limit, refused = self.settings.max_connections, self.counters.connections_refused
            log.warning("connections are refused: max_connections is reached", max_connections=limit, refused=refused)

    def proxy_refused(self, why: str) -> None:
        """A connection without a PROXY header that is believed; said now and then."""
        self.counters.proxies_refused += 1
        if self.loop.time() >= self._proxy_told_at + _FULL_TOLD_EVERY_S:
            self._proxy_told_at = self.loop.time()
            log.warning(
                "a connection without a valid PROXY header was refused",
                detail=why,
                refused=self.counters.proxies_refused,
            )

    def opened(self, client: Client, *, resumed: bool, former: int) -> None:
        """The client has its session; whoever had it in this process has lost it."""
        self.counters.sessions_opened += 1
        self.counters.sessions_resumed += resumed
        if former and former in self._by_conn:
            self.counters.sessions_taken_over += 1
            self._by_conn[former].end(Ending.TAKEN_OVER)

    def detach(self, client: Client) -> None:
        """The client's connection has ended: the engine forgets it, and its inbox is wanted no more."""
        self.replays.forget(client)
        self.engine.close(client.conn)
        del self._by_conn[client.conn]
        client.detached()
        if client.listens:
            self._inboxes.leave(client.session.inbox, told=self.up)

    def forget(self, client: Client) -> None:
        """Nothing is left to do for it."""
        self.clients.discard(client)
        self._resting.discard(client)
        self._unrestored.discard(client)
        self._progress.set()

    def resting(self, client: Client) -> None:
        """It is not read now; tell it when the reason may be over."""
        self._resting.add(client)

    def _rouse(self) -> None:
        """Looks again at all clients that rest."""
        if self._resting and not self.congested:
            resting, self._resting = self._resting, set()
            for client in resting:
                client.update_reading()

    # ---- to the server ---------------------------------------------------------------------------------------------

    def tell(self, client: Client, command: Command) -> None:
        """A command of a client's session, which keeps it while the server is away and until its turn has come."""
        if not client.listens and command.kind is Kind.OPEN:
            client.listens = True
            self._inboxes.join(client.session.inbox, told=self.up)
        if self.up and client not in self._unrestored:
            self._ask(command.arguments, (client, command))

    def call(self, arguments: tuple[Argument, ...], answered: Answered) -> None:
        """A command of the process itself.  Only while `up`; lost with the server, then nobody is told."""
        self._ask(arguments, answered)

    def _ask(self, arguments: tuple[Argument, ...], asked: tuple[Client, Command] | Answered) -> None:
        token = next(self._tokens)
        self._asked[token] = asked
        self.engine.command(pack(arguments), token=token)
        self.wake()

    def ask(self) -> bool:
        """A PING, if no reply is owed."""
        if self.engine.outstanding:
            return False
        self.call(("PING",), lambda _reply: None)
        return True

    # ---- the heart -------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Something is to be written: once, after everything that came in this iteration of the loop."""
        if not self._awake:
            self._awake = True
            self.loop.call_soon(self.flush)

    def flush(self) -> None:
        """Writes what there is for the server and for clients."""
        self._awake = False
        if self._over:
            return  # it was to be called soon when the end came
        engine = self.engine
        engine.flush(self.now_ms())
        for event in engine.events():
            self._on_event(event)
        if self.up and not self.link.paused:
            commands = engine.server_output()
            if commands:
                self.link.write(commands)
        self.write_outputs()
        self._rouse()
        if engine.wants_flush:
            self.wake()  # messages of QoS 0 were handed out: the server is told, and sends the next ones
        elif self._wait_timer is None and engine.waits:
            self._wait_timer = self.loop.call_later(_WAIT_S, self._waited)

    def _waited(self) -> None:
        self._wait_timer = None
        self.wake()

    def write_outputs(self) -> None:
        """The engine's bytes go to the clients' sockets, most of them in the pump."""
        by_conn = self._by_conn
        written = 0
        for conn, data in self.pump.outputs():
            by_conn[conn].write(data)
            written += len(data)
        self.counters.bytes_sent += written

    def _on_event(self, event: Event) -> None:
        if event.kind == EventKind.REPLY:
            self._on_reply(event)
            return
        if event.kind == EventKind.PUSH:
            self.replays.pushed(event.data)
            return
        if event.kind in (EventKind.UNCONFIRMED, EventKind.CONFIRMED):
            self._on_confirmation(event)
            return
        client = self._by_conn.get(event.conn)
        if client is None:
            return
        try:
            self._on_client_event(client, event)
        except Exception as error:  # noqa: BLE001 (a defect of ours must not end the others' connections)
            log.defect("defect: the client is disconnected", error, client=client.session.client_id)
            client.end(Ending.DEFECT)

    def _on_confirmation(self, event: Event) -> None:
        wanted = self.settings.wait_replicas
        self.unconfirmed = event.kind == EventKind.UNCONFIRMED
        if not self.unconfirmed:
            self._unserved.stop()
            log.info("replicas confirm writes again", replicas=event.token, wait_replicas=wanted)
            return
        self._unserved.begin()
        error = event.data.decode(errors="backslashreplace")
        told = {"error": error} if error else {"replicas": event.token}
        log.warning("acknowledgements are withheld: too few replicas confirm writes", wait_replicas=wanted, **told)
        if error.startswith(_NO_PRIMARY):
            self.link.leave("it has become a replica")

    def _on_client_event(self, client: Client, event: Event) -> None:
        if event.kind == EventKind.RELIEF:
            self._resting.discard(client)
            client.update_reading()
        elif event.kind == EventKind.ROOM:
            self.replays.has_room(client)
        elif event.kind == EventKind.TAKEN_OVER:
            # Told by a notice, or by a refusal: who missed the notice does not know that the session was dropped.
            refusal = event.data.partition(b" ")[0].decode(errors="backslashreplace")
            ending = Ending.TAKEN_OVER if event.epoch else _ENDINGS.get(refusal, Ending.DROPPED)
            self.counters.sessions_taken_over += ending is Ending.TAKEN_OVER
            client.end(ending)
        elif event.kind == EventKind.FAILED:
            error = event.data.decode(errors="backslashreplace")
            client.end(_ENDINGS.get(error.lstrip("-").partition(" ")[0], Ending.SERVER_ERROR), error)
        elif event.kind == EventKind.CONFLICT:
            client.end(Ending.GONE, "the server was restored from an older state")
        elif event.kind == EventKind.WITHHELD:
            client.withheld(event.data)
        elif event.kind == EventKind.ABANDONED:
            log.warning(
                "a publish is refused: the connection to the server broke each time it was sent",
                client=client.session.client_id,
                topic=event.data,
                bytes=event.token,
            )
        elif event.kind == EventKind.REFUSED:
            error = event.data.decode(errors="backslashreplace")
            self.readiness.publish_refused(error)
            self._leave_replica(error)

    def _on_reply(self, event: Event) -> None:
        asked = self._asked.pop(event.token)
        reader = hiredis.Reader()
        reader.feed(event.data)
        reply = reader.gets()
        if isinstance(reply, hiredis.ReplyError):
            self._leave_replica(str(reply))
        if not isinstance(asked, tuple):
            asked(reply)
            return
        client, command = asked
        try:
            client.replied(client.session.reply(command, reply))
        except Exception as error:  # noqa: BLE001 (the same)
            log.defect("defect: the client is disconnected", error, client=client.session.client_id)
            client.end(Ending.DEFECT)

    # ---- from the link ---------------------------------------------------------------------------------------------

    def on_bytes(self, count: int) -> bool:
        """Replies and pushes."""
        try:
            for event in self.engine.replied(count, self.now_ms()):
                self._on_event(event)
        except OutOfStepError:
            return False
        self._progress.set()
        self.wake()
        self.pump.answered()
        return True

    def on_writable(self) -> None:
        """The link takes bytes again."""
        self.wake()

    def on_up(self) -> None:
        """Listens on all inboxes again, then lets everything go on."""
        self._inboxes.join_all()
        self.beat(self._beat_answered)
        self._unserved.stop()
        self.engine.server_restored(self.now_ms())
        self._unrestored = set(self.clients)
        self.replays.server_restored()
        self._restore_some()
        self.gate.server_restored()
        self.wake()

    def _restore_some(self) -> None:
        """A part of the clients goes on; the loop has its turn before the next part."""
        self._restoring = None
        for _ in range(min(_RESTORED_AT_ONCE, len(self._unrestored))):
            self._unrestored.pop().server_restored()
        if self._unrestored:
            self._restoring = self.loop.call_soon(self._restore_some)

    def on_primary_moved(self) -> None:
        """Users and rules are another server's, too."""
        self.gate.primary_moved()

    def on_down(self) -> None:
        """No reply will come any more."""
        if self._restoring is not None:
            self._restoring.cancel()
        self._unrestored.clear()
        self._progress.set()
        self._asked.clear()
        self.readiness.lost()
        self._unserved.begin()
        self.unconfirmed = False
        self.engine.server_lost()
        self.pump.answered()
        self.replays.server_lost()
        for client in tuple(self.clients):
            client.server_lost()
        self.wake()


def _engine_settings(settings: Settings) -> EngineSettings:
    return EngineSettings(
        max_packet_bytes=settings.max_packet_bytes,
        max_connect_bytes=settings.max_connect_bytes,
        max_filters=settings.max_filters,
        max_user_properties=settings.max_user_properties,
        max_user_property_bytes=settings.max_user_property_bytes,
        max_unread_connects=settings.max_unread_connects,
        max_client_outstanding=settings.max_client_outstanding,
        max_client_outstanding_bytes=settings.max_client_outstanding_bytes,
        max_outstanding=settings.max_outstanding,
        max_outstanding_bytes=settings.max_outstanding_bytes,
        max_ready=settings.max_ready,
        max_ready_bytes=settings.max_ready_bytes,
        max_fetches=settings.max_fetches,
        max_output_bytes=settings.write_buffer_bytes,
        message_expiry_s=settings.message_expiry_s,
        max_message_expiry_s=settings.max_message_expiry_s,
        retry_first_ms=_milliseconds(settings.retry_first_s),
        retry_most_ms=_milliseconds(settings.retry_max_s),
        wait_replicas=settings.wait_replicas,
        wait_timeout_ms=_milliseconds(settings.wait_timeout_s),
        retry_total_ms=_NEVER_MS if settings.unserved_publisher == "wait" else _milliseconds(settings.retry_total_s),
        inbox_seed=(secrets.randbits(64), secrets.randbits(64)),
    )


def _milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))
