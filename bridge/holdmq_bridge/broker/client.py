"""The asyncio side of one client: a socket, its deadlines and flow control between its Session and the engine.

    socket ──► pump, or engine's buffer ──► engine ──► (rare packets) Session ──► actions: done here
    socket ◄── pump, or host ◄── engine's outputs

Sockets without TLS are the pump's (pump.py), which says only what is rare; others come as asyncio's protocols do.
No task per client or packet, no timer per client (see wheel.py), one read buffer for all of them.

Flow control
    not reading     the engine wants rest for this client or is congested, or so much is unsent that the client cannot
                    be reading: TCP then slows it down
    not delivering  the socket's buffer is above its high-water mark; messages stay in the queue at the server
"""

import asyncio
from typing import TYPE_CHECKING, Any, Protocol, cast

from holdmq.core.engine import Event, EventKind, OpenSession, error_text
from holdmq.core.mqtt import PROTOCOL_LEVEL_5, ProtocolError
from holdmq_bridge.auth import Identity
from holdmq_bridge.base.command import Command
from holdmq_bridge.base.logs import Log
from holdmq_bridge.base.reasons import Ending
from holdmq_bridge.process.process import Process
from holdmq_bridge.session.access import Permissions, Verdict
from holdmq_bridge.session.actions import (
    Action,
    Actions,
    Authenticate,
    Continue,
    End,
    Later,
    NotGranted,
    Opened,
    Phase,
    ReadHistory,
    Retry,
    Send,
    Tell,
)
from holdmq_bridge.session.session import Session
from holdmq_bridge.sockets.paced import TURN_BYTES, Paced
from holdmq_bridge.sockets.stream import HARD_LIMIT_FACTOR, Pumped, Receiver, Writable, readable_peer

if TYPE_CHECKING:
    from holdmq_bridge.base.backoff import Backoff

log = Log("client")

_GONE_LOOK_S = 1.0  # between two looks whether a client has closed whose CONNECT waits
_KEEP_ALIVE_FACTOR = 1.5  # [MQTT-3.1.2-24; 5.0: 3.1.2-22]

# Of a connection that never had a session: its device does something that does not work.
_REFUSALS = (Ending.REFUSED, Ending.UNAVAILABLE, Ending.MALFORMED, Ending.PROTOCOL, Ending.NO_CONNECT)


class ClientHost(Protocol):
    """The bridge, as its clients know it."""

    @property
    def congested(self) -> bool:
        """Whether no client is to be read now."""

    def new_session(self) -> Session:
        """Makes the session of a connection."""

    def admit(self, client: "Client") -> bool:
        """Takes a connection in and gives it a `conn`; False: there is no room for it."""

    def authenticate(self, client: "Client", connect: Authenticate) -> None:
        """Finds out whether the client may connect, and calls its `authenticated`."""

    def session_opened(self, client: "Client", *, resumed: bool, former: int) -> None:
        """The client has its session; `former`: the connection that had it in this process, 0 for none."""

    def send_command(self, client: "Client", command: Command) -> None:
        """Sends a command of the client's session, whose `reply` gets the reply."""

    def read_history(self, client: "Client") -> None:
        """Reads history for the session: it has, or may have, subscriptions that need it."""

    def write_outputs(self) -> None:
        """Sends the engine's output for all clients."""

    def add_resting(self, client: "Client") -> None:
        """The client is not read now.  Calls its `update_reading` when the reason may be over."""

    def detach(self, client: "Client") -> None:
        """The connection has ended: the engine forgets it."""

    def forget(self, client: "Client") -> None:
        """Nothing is left to do for the client."""


class Client(Receiver):
    """One accepted connection.

    Args:
        process: which accepted it.
        host: knows all clients.
        peer: the client's address, if a proxy named it.

    Attributes:
        due: the wheel's.
        identity: once the client is let in.
        has_inbox: the process is subscribed to the inbox of the session.
    """

    __slots__ = (
        "_backoff",
        "_begun",
        "_heard_at",
        "_host",
        "_in_line",
        "_limit_s",
        "_process",
        "_reading",
        "_refusal_is_logged",
        "_retry_timer",
        "_stalled_s",
        "_stream",
        "_stuck_at",
        "certificate",
        "conn",
        "due",
        "has_inbox",
        "identity",
        "peer",
        "session",
    )

    def __init__(self, process: Process, host: ClientHost, peer: str = "") -> None:
        self._process = process
        self._host = host
        self.peer = peer
        self._stream: Writable | Pumped | None = None
        self._heard_at = 0.0
        self._limit_s = process.settings.connect_timeout_s  # of silence; before CONNECT and CONNACK: of waiting
        self._stuck_at = 0.0  # since when the socket takes nothing, or is being closed
        self._reading = True
        self._begun = False  # a packet, by a client without a keep-alive
        self._in_line = False  # for its next packets
        self._refusal_is_logged = False
        self._backoff: Backoff | None = None
        self._retry_timer: asyncio.TimerHandle | None = None
        self._stalled_s = 0.0
        self.conn = 0
        self.due = 0
        self.has_inbox = False
        self.certificate: dict[str, Any] | None = None  # until the identity is known
        self.identity: Identity | None = None
        self.session = host.new_session()

    @property
    def client_id(self) -> bytes:
        """For the logs; empty before the CONNECT."""
        return self.session.client_id

    # ---- asyncio ---------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A socket was accepted."""
        transport.set_write_buffer_limits(high=self._process.settings.write_buffer_bytes)  # type: ignore[attr-defined] # uvloop's do not inherit
        self.certificate = transport.get_extra_info("peercert")
        stream = Paced(cast("asyncio.Transport", transport), self._process.loop)
        self.begin(stream, readable_peer(transport.get_extra_info("peername")))

    def begin(self, stream: Writable | Pumped, peer: str) -> None:
        """A client is there; it has connect_timeout_s for its CONNECT."""
        self.peer = self.peer or peer
        if not self._host.admit(self):
            stream.abort()
            return
        self._stream = stream
        self._heard_at = self._process.loop.time()
        self._process.wheel.at(self, self._heard_at + self._limit_s)

    def get_buffer(self, sizehint: int) -> memoryview:
        """The one that all clients share: what is in it is taken before anybody else's bytes come."""
        return self._process.engine.buffer[:TURN_BYTES]

    def buffer_updated(self, nbytes: int) -> None:
        """So many bytes are in the buffer."""
        if isinstance(self._stream, Paced):
            self._stream.took(nbytes)
        if self.conn:
            self.received(self._process.engine.received(self.conn, nbytes, self._process.now_ms()))

    def upgrade_refused(self, why: str) -> None:
        """Its request for a WebSocket was, and it has been told."""
        self._process.counters.websockets_refused += 1
        self.end(Ending.REFUSED, why)

    def feed(self, data: bytes) -> None:
        """The same for bytes that came in other ways."""
        if self.conn:
            self.received(self._process.engine.receive(self.conn, data, self._process.now_ms()))

    def received(self, event: Event | None) -> None:
        """What the engine makes of bytes that it got."""
        whole = event is not None or self._process.engine.took
        if event is not None:
            self._take(event)
        if self.session.phase is Phase.OPEN:
            self._heard(whole=whole)
        self._read_on()
        self._process.wake()

    def received_part(self) -> None:
        """From the pump: bytes arrived, but they completed no packet."""
        if self.session.phase is Phase.OPEN:
            self._catch_up()
            self._heard(whole=False)

    def reading_paused(self) -> None:
        """From the pump: it has stopped reading the socket."""
        self._reading = False
        self._host.add_resting(self)

    def _catch_up(self) -> None:
        """With what the pump has heard of it."""
        if isinstance(self._stream, Pumped) and self.session.phase is Phase.OPEN:
            heard_at = self._stream.heard_at()
            if heard_at > self._heard_at:
                self._heard_at = heard_at
                self._begun = False

    def _heard(self, *, whole: bool) -> None:
        """Only whole packets are signs of life: who sends one bit by bit has the time of a keep-alive for it."""
        if whole:
            self._heard_at = self._process.loop.time()
            self._begun = False
        elif not self._limit_s and not self._begun:  # without a keep-alive the longest counts, for this packet
            self._begun = True
            self._heard_at = self._process.loop.time()
            self._process.wheel.at(self, self._heard_at + self._patience_s)

    @property
    def _patience_s(self) -> float:
        """How long may pass without a whole packet; 0: for ever."""
        if self._limit_s or not self._begun:
            return self._limit_s
        return self._process.settings.max_keep_alive_s * _KEEP_ALIVE_FACTOR

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is closed, by whomever."""
        if self._stream is None:
            return
        self._stream = None
        self._process.wheel.forget(self)
        self.act(self.session.end(Ending.LOST, "" if exc is None else str(exc)))
        self._forget_if_finished()

    def pause_writing(self) -> None:
        """The client does not take what it is sent."""
        self._stuck_at = self._process.loop.time()
        self._process.wheel.at(self, self._stuck_at + self._process.settings.write_timeout_s)
        if self.conn:
            self._process.engine.set_writable(self.conn, False)

    def resume_writing(self) -> None:
        """It takes it again."""
        if self.conn:
            self._stuck_at = 0.0
            self._process.engine.set_writable(self.conn, True)
            self._read_on()
            self._process.wake()

    # ---- events and actions ----------------------------------------------------------------------------------------

    def _take(self, event: Event | None) -> None:
        """What the engine found in the client's bytes, packet after packet."""
        while event is not None and self.conn:
            if event.kind == EventKind.PACKET:
                goes_on = self._do(self.session.packet(event.data, event.code))
            elif event.kind == EventKind.DENIED:
                self._publish_denied(event.data)
                goes_on = True
            else:
                goes_on = self._do(self._faulty(event))
            event = self._process.engine.proceed(self.conn, self._process.now_ms()) if goes_on and self.conn else None

    def _faulty(self, event: Event) -> Actions:
        connack_code = ProtocolError(event.error).connack_code
        return self.session.fault(event.code, error_text(event.error), event.data, connack_code)

    def act(self, actions: Actions) -> None:
        """Does what the session wants, then looks at what the client sent meanwhile."""
        if self._do(actions) and self.conn:
            self._take(self._process.engine.proceed(self.conn, self._process.now_ms()))
            self._read_on()
        self._process.wake()

    def _do(self, actions: Actions) -> bool:
        """True: the packet is dealt with, the next one may come."""
        goes_on = False
        for action in actions:
            if isinstance(action, Send):
                if self.conn:
                    self._process.engine.send(self.conn, action.data)
            elif isinstance(action, Continue):
                goes_on = True
            else:
                goes_on |= self._perform(action)
        return goes_on

    def _perform(self, action: Action) -> bool:
        if isinstance(action, Tell):
            self._host.send_command(self, action.command)
        elif isinstance(action, Opened):
            self._opened(action)
            return True
        elif isinstance(action, ReadHistory):
            self._host.read_history(self)
        elif isinstance(action, Later):
            self._process.loop.call_soon(self._go_on)
        elif isinstance(action, Authenticate):
            self._wait_for_the_answer()
            self._host.authenticate(self, action)
        elif isinstance(action, NotGranted):
            self._not_granted(action)
        elif isinstance(action, Retry):
            self._pause(str(action.error))
        elif isinstance(action, End):
            self._ended(action.ending, action.detail)
        return False

    def _wait_for_the_answer(self) -> None:
        """Its CONNECT is whole: from now on it is the server that is waited for."""
        self._limit_s = self._process.settings.connect_wait_s
        self._heard_at = self._process.loop.time()
        self._process.wheel.at(self, self._heard_at + min(self._limit_s, _GONE_LOOK_S))

    def _is_gone(self) -> bool:
        """Has it closed while its CONNECT waits?  It is not read then, so nobody tells.

        A client that has sent more after its CONNECT stays: it need not wait for the CONNACK.
        """
        return (
            isinstance(self._stream, Pumped) and self._stream.is_gone() and not self._process.engine.unread(self.conn)
        )

    def authenticated(self, verdict: Verdict, identity: Identity | None) -> None:
        """Whether it may come in, and who it is."""
        self.certificate = None
        self.identity = identity
        self.replied(self.session.authenticated(verdict))

    def permit(self, permissions: Permissions) -> None:
        """What it may do has changed."""
        if self.session.phase is Phase.OPEN:  # else the engine learns it when it is
            entries, default = permissions.publish_entries()
            self._process.engine.rules(self.conn, entries, denied_otherwise=not default)
            self._judge_deliveries(permissions)
        self.replied(self.session.permit(permissions))

    def _judge_deliveries(self, permissions: Permissions) -> None:
        """Messages may wait in its queue from before a change of its rights."""
        entries, default = permissions.receive_entries()
        self._process.engine.receive_rules(self.conn, entries, denied_otherwise=not default)

    def _opened(self, opened: Opened) -> None:
        session, engine, settings = self.session, self._process.engine, self._process.settings
        terms = session.terms
        assert terms is not None
        entries, default = session.permissions.publish_entries()
        engine.send(self.conn, opened.connack)
        five = terms.version == PROTOCOL_LEVEL_5
        former = engine.open(
            self.conn,
            OpenSession(
                version=terms.version,
                client_id=terms.client_id,
                key=session.key,
                epoch=session.epoch,
                resumed=opened.resumed,
                window=terms.window,
                receive_maximum=settings.receive_maximum if five else 0,
                alias_maximum_in=settings.max_topic_alias if five else 0,
                alias_maximum_out=terms.alias_maximum_out,
                max_packet_out=terms.max_packet_out,
                replay_rate=settings.replay_rate,
                publish_rate=settings.publish_rate,
                denied_otherwise=not default,
            ),
            self._process.now_ms(),
        )
        if entries:
            engine.rules(self.conn, entries, denied_otherwise=not default)
        if not session.permissions.subscribes_freely:
            self._judge_deliveries(session.permissions)
        self._stalled_s = 0.0
        self._limit_s = terms.keep_alive_s * _KEEP_ALIVE_FACTOR
        self._heard_at = self._process.loop.time()
        if self._limit_s:
            self._process.wheel.at(self, self._heard_at + self._limit_s)
        self._host.session_opened(self, resumed=opened.resumed, former=former)
        log.info(
            "client connected",
            client=terms.client_id,
            user=None if self.identity is None else self.identity.username,
            peer=self.peer,
            version=terms.version,
            bridge=terms.bridge,
            clean=terms.clean,
            epoch=session.epoch,
            keep_alive_s=terms.keep_alive_s,
        )

    def _not_granted(self, refused: NotGranted) -> None:
        """Counts all of them; one line for a connection, however often its client asks again."""
        self._process.counters.subscriptions_refused += refused.filters
        if not self._refusal_is_logged:
            self._refusal_is_logged = True
            reason = f"{refused.reason:#04x}"
            facts = {"filter": refused.topic_filter, "reason": reason, "detail": refused.detail}
            log.info("a subscription is refused", client=self.client_id, peer=self.peer, **facts)

    def _publish_denied(self, topic: bytes) -> None:
        """The engine counts all of them, and tells of a connection's first."""
        user = None if self.identity is None else self.identity.username
        log.info("a publish is denied", client=self.client_id, user=user, peer=self.peer, topic=topic)

    def withheld(self, topic: bytes) -> None:
        """The same for messages of its queue."""
        user = None if self.identity is None else self.identity.username
        facts = {"user": user, "peer": self.peer, "topic": topic}
        log.info("a queued message is withheld: rules deny its topic to the client", client=self.client_id, **facts)

    def _ended(self, ending: Ending, detail: str) -> None:
        session, counters = self.session, self._process.counters
        if self.conn:
            self._host.write_outputs()
            sent = self._process.engine.sent_serial(self.conn)
            self._host.detach(self)
            self._do(session.closed(sent))
        refused = not session.epoch and ending in _REFUSALS
        counters.connects_refused += refused
        counters.connects_over_quota += refused and detail.startswith("QUOTA ")
        facts = {"peer": self.peer, "reason": ending.text, "detail": detail}
        if session.client_id:
            log.info("client disconnected", client=session.client_id, **facts)
        elif refused:
            log.info("connection refused", **facts)
        else:  # somebody looked whether the port is open
            log.debug("connection ended", **facts)
        self._close(at_once=ending is Ending.SLOW)
        self._forget_if_finished()

    def _close(self, *, at_once: bool) -> None:
        """Closes the socket; a client that does not read gets no more time for what is unsent."""
        if self._stream is None:
            return
        if not self._reading:
            self._reading = True
            self._stream.resume_reading()
        if at_once:
            self._stream.abort()
            return
        self._stream.close()
        self._stuck_at = self._stuck_at or self._process.loop.time()
        self._process.wheel.at(self, self._stuck_at + self._process.settings.write_timeout_s)

    def _forget_if_finished(self) -> None:
        if self._stream is None and self.session.finished:
            self._host.forget(self)

    # ---- from the host ---------------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """The engine's output, which a pump's client never gets here."""
        stream = self._stream
        if stream is not None and not isinstance(stream, Pumped) and not stream.is_closing():
            stream.write(data)

    def detached(self) -> None:
        """The engine knows its connection no more."""
        self.conn = 0
        if isinstance(self._stream, Pumped):
            self._stream.detach()

    def replied(self, actions: Actions) -> None:
        """What the session makes of a reply."""
        self.act(actions)
        self._forget_if_finished()

    def _go_on(self) -> None:
        """Others have had their turn."""
        self.replied(self.session.go_on())

    def end(self, ending: Ending, detail: str = "", reason: int | None = None) -> None:
        """Ends the connection; `reason`: of the DISCONNECT, if it is not that of the ending."""
        self.act(self.session.end(ending, detail, reason))
        self._forget_if_finished()

    def server_lost(self) -> None:
        """No reply will come any more."""
        if self._retry_timer is not None:
            self._retry_timer.cancel()
            self._retry_timer = None

    def server_restored(self) -> None:
        """The server is there."""
        self._backoff, self._stalled_s = None, 0.0
        if self.session.pending:
            self.act(self.session.again())

    def _pause(self, error: str) -> None:
        """The server refuses for now: asks again later, for retry_total_s."""
        settings = self._process.settings
        if self._backoff is None:
            self._backoff = self._process.new_backoff()
            log.warning("the server temporarily refuses a command", client=self.client_id, error=error)
        pause = self._backoff.next()
        self._stalled_s += pause
        if self._stalled_s <= settings.retry_total_s:
            self._retry_timer = self._process.loop.call_later(pause, self._retry)
            return
        self._backoff, self._stalled_s = None, 0.0
        log.error(
            "the server refused a command for too long: the client is disconnected",
            client=self.client_id,
            error=error,
        )
        self.session.give_up()
        self.end(Ending.SERVER_ERROR, error)

    def _retry(self) -> None:
        self._retry_timer = None
        self.replied(self.session.again())

    # ---- reading and deadlines -------------------------------------------------------------------------------------

    def _read_on(self) -> None:
        """Stops or goes on reading, as flow control wants it."""
        stream = self._stream
        if stream is None or not self.conn or stream.is_closing():
            return
        process = self._process
        has_more = process.engine.has_more(self.conn)
        if has_more:
            self._line_up(stream)
        congested = self._host.congested
        rest = (
            congested
            or process.engine.rests(self.conn)
            or (has_more and not isinstance(stream, Pumped))
            or (
                self._stuck_at != 0.0
                and stream.get_write_buffer_size() > process.settings.write_buffer_bytes * HARD_LIMIT_FACTOR
            )
        )
        if rest and self._reading:
            self._reading = False
            stream.pause_reading()
            self._host.add_resting(self)
        elif rest and congested:  # its own reason may be over: nobody tells it again
            self._host.add_resting(self)
        elif not rest and not self._reading:
            self._reading = True
            self._heard_at = process.loop.time()  # while it was not read it could not be heard
            stream.resume_reading()

    def _line_up(self, stream: Writable | Pumped) -> None:
        """It has sent more packets than are taken at once: the others come first."""
        if isinstance(stream, Pumped):
            stream.line_up()
        elif not self._in_line:
            self._in_line = True
            self._process.loop.call_soon(self._take_more)

    def _take_more(self) -> None:
        self._in_line = False
        engine = self._process.engine
        if self.conn and engine.has_more(self.conn) and not engine.rests(self.conn):
            self.feed(b"")

    def update_reading(self) -> None:
        """The reason for resting may be over."""
        self._read_on()

    def check(self, now: float) -> float:
        """The wheel's look: what is overdue?"""
        settings = self._process.settings
        if self._stuck_at:
            limit = self._stuck_at + settings.write_timeout_s
            if now < limit:
                return limit
            if self.conn:
                self._process.counters.slow_clients_closed += 1
                self.end(Ending.SLOW)
            elif self._stream is not None:
                self._stream.abort()
            return 0.0
        self._catch_up()
        patience_s = self._patience_s
        if not self.conn or not patience_s:
            return 0.0
        if not self._reading and self.session.phase is Phase.OPEN:
            self._heard_at = now
        if self.session.phase in (Phase.ASKING, Phase.OPENING):
            return self._check_waiting(now, self._heard_at + patience_s)
        if now < self._heard_at + patience_s:
            return self._heard_at + patience_s
        if self.session.phase is Phase.NEW:
            self.end(Ending.NO_CONNECT)
        else:
            self._process.counters.keep_alive_expired += 1
            self.end(Ending.SILENT)
        return 0.0

    def _check_waiting(self, now: float, deadline: float) -> float:
        """Its CONNECT waits for an answer."""
        if self._is_gone():
            self.end(Ending.LOST)
        elif now >= deadline:
            self.act(self.session.not_opened())
        else:
            return min(deadline, now + _GONE_LOOK_S)
        return 0.0
