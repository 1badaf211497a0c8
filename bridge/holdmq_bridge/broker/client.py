"""The asyncio side of one client: a socket, its deadlines and flow control between its Session and the engine.

    socket ──► pump, or engine's buffer ──► engine ──► (rare packets) Session ──► actions: done here
    socket ◄── pump, or host ◄── engine's outputs

The pump reads and writes sockets without TLS, and calls the client only for rare events.  For all other sockets the
client is a protocol of asyncio.  There is no task per client or packet, no timer per client (wheel.py has one for all)
and one read buffer for all.

Flow control
    not reading     the engine asks for a pause or is congested, or so much is unsent that the client cannot be
                    reading: TCP then slows the client down
    not delivering  the socket's buffer is above its high-water mark: messages stay in the queue at the server
"""

import asyncio
from typing import TYPE_CHECKING, Any, Protocol, cast

from holdmq.core.engine import Event, EventKind, OpenSession, error_text
from holdmq.core.mqtt import PROTOCOL_LEVEL_5, ProtocolError
from holdmq_bridge.auth import Identity
from holdmq_bridge.base.command import Command, error_code
from holdmq_bridge.base.logs import Log
from holdmq_bridge.base.reasons import Ending
from holdmq_bridge.broker.sessions_by_slot import NO_SLOT
from holdmq_bridge.process.process import Process
from holdmq_bridge.session.access import Permissions, Verdict
from holdmq_bridge.session.actions import (
    Action,
    Actions,
    Authenticate,
    Continue,
    End,
    MoreWork,
    NotGranted,
    Opened,
    Phase,
    ReadHistory,
    Retry,
    Send,
    SendCommand,
)
from holdmq_bridge.session.session import Session
from holdmq_bridge.sockets.paced import TURN_BYTES, Paced
from holdmq_bridge.sockets.stream import HARD_LIMIT_FACTOR, Pumped, Receiver, Writable, readable_peer

if TYPE_CHECKING:
    from holdmq_bridge.base.backoff import Backoff

log = Log("client")

_DISCONNECT = 0xE0  # the first byte of a packet
_GONE_LOOK_S = 1.0  # between two checks whether a client whose CONNECT waits has closed
_KEEP_ALIVE_FACTOR = 1.5  # [MQTT-3.1.2-24; 5.0: 3.1.2-22]

# Endings that are logged as a refusal, if the connection never had a session.
_REFUSALS = (Ending.REFUSED, Ending.UNAVAILABLE, Ending.MALFORMED, Ending.PROTOCOL, Ending.NO_CONNECT)


class ClientHost(Protocol):
    """The part of the bridge that its clients use."""

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

    def link_of(self, client: "Client") -> int:
        """The link of an open session."""

    def read_history(self, client: "Client") -> None:
        """Reads history for the session: it has, or may have, subscriptions that need it."""

    def write_outputs(self) -> None:
        """Sends the engine's output for all clients."""

    def add_paused(self, client: "Client") -> None:
        """The client is not read now.  Calls its `update_reading` when the reason may be over."""

    def may_close(self, client: "Client") -> bool:
        """Whether the client may end now.  If not, its `finish` is called when it has its turn."""

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
        identity: set once the client may connect.
        inbox_link: on which the process is subscribed to the inbox of the session; None: on none.
        slot: of the session, once it has a key; NO_SLOT before.
    """

    __slots__ = (
        "_backoff",
        "_blocked_since",
        "_heard_at",
        "_host",
        "_is_in_handshake",
        "_is_in_line",
        "_is_read",
        "_last_packet",
        "_limit_s",
        "_loss",
        "_packet_is_begun",
        "_process",
        "_refusal_is_logged",
        "_retry_timer",
        "_stalled_s",
        "_stream",
        "certificate",
        "conn",
        "due",
        "identity",
        "inbox_link",
        "peer",
        "session",
        "slot",
    )

    def __init__(self, process: Process, host: ClientHost, peer: str = "") -> None:
        self._process = process
        self._host = host
        self.peer = peer
        self._stream: Writable | Pumped | None = None
        self._heard_at = 0.0
        self._limit_s = process.settings.connect_timeout_s  # of silence; before the CONNACK: of waiting; 0: none
        self._last_packet: Event | None = None  # a DISCONNECT that waits for its turn
        self._loss = ""  # why the socket was closed
        self._blocked_since = 0.0  # the socket takes nothing, or is being closed; 0: neither
        self._is_read = True
        self._packet_is_begun = False  # by a client without a keep-alive
        self._is_in_handshake = False  # of TLS
        self._is_in_line = False  # for a turn with its next packets
        self._refusal_is_logged = False
        self._backoff: Backoff | None = None
        self._retry_timer: asyncio.TimerHandle | None = None
        self._stalled_s = 0.0
        self.conn = 0
        self.due = 0
        self.inbox_link: int | None = None
        self.slot = NO_SLOT
        self.certificate: dict[str, Any] | None = None  # until the identity is known
        self.identity: Identity | None = None
        self.session = host.new_session()

    @property
    def client_id(self) -> bytes:
        """For the logs; empty before the CONNECT."""
        return self.session.client_id

    @property
    def key(self) -> bytes:
        """Of the session; empty before the CONNECT."""
        return self.session.key

    @property
    def inbox(self) -> bytes:
        """Of the session; empty before the CONNECT."""
        return self.session.inbox

    @property
    def is_open(self) -> bool:
        """Whether the engine has the session."""
        return self.conn != 0 and self.session.phase is Phase.OPEN

    # ---- asyncio ---------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A socket was accepted."""
        transport.set_write_buffer_limits(high=self._process.settings.write_buffer_bytes)  # type: ignore[attr-defined] # uvloop's do not inherit
        stream = Paced(cast("asyncio.Transport", transport), self._process.loop)
        peer, certificate = readable_peer(transport.get_extra_info("peername")), transport.get_extra_info("peercert")
        self.begin(stream, peer, certificate)

    def begin_handshake(self) -> None:
        """The connection counts from now on, though no byte of a client has come."""
        self._is_in_handshake = True
        self._process.handshakes += 1

    def end_handshake(self) -> None:
        """The handshake has failed, or the client has begun."""
        if self._is_in_handshake:
            self._is_in_handshake = False
            self._process.handshakes -= 1

    def begin(self, stream: Writable | Pumped, peer: str, certificate: dict[str, Any] | None = None) -> None:
        """The connection has begun: the client has connect_timeout_s for its CONNECT."""
        self.end_handshake()
        self.certificate = certificate
        self.peer = self.peer or peer
        if not self._host.admit(self):
            stream.abort()
            return
        self._stream = stream
        self._heard_at = self._process.loop.time()
        self._process.wheel.at(self, self._heard_at + self._limit_s)

    def get_buffer(self, sizehint: int) -> memoryview:
        """The buffer that all clients share.  Its bytes are taken before another client is read."""
        return self._process.engine.buffer[:TURN_BYTES]

    def buffer_updated(self, nbytes: int) -> None:
        """Takes bytes from the buffer."""
        if isinstance(self._stream, Paced):
            self._stream.count_received(nbytes)
        if self.conn:
            self.received(self._process.engine.receive_buffered(self.conn, nbytes, self._process.now_ms()))

    def upgrade_refused(self, why: str) -> None:
        """The request for a WebSocket was refused, and the refusal is sent."""
        self._process.counters.websockets_refused += 1
        self.end(Ending.REFUSED, why)

    def feed(self, data: bytes) -> None:
        """Takes bytes that are not in the engine's buffer."""
        if self.conn:
            self.received(self._process.engine.receive(self.conn, data, self._process.now_ms()))

    def received(self, event: Event | None) -> None:
        """The engine has taken bytes; `event`: what they led to."""
        is_whole = event is not None or self._process.engine.completed_packet
        if event is not None:
            self._take(event)
        if self.session.phase is Phase.OPEN:
            self._note_bytes(is_whole=is_whole)
        self._adjust_reading()
        self._process.wake()

    def received_part(self) -> None:
        """From the pump: bytes arrived, but they completed no packet."""
        if self.session.phase is Phase.OPEN:
            self._update_heard_at()
            self._note_bytes(is_whole=False)

    def reading_paused(self) -> None:
        """From the pump: it has stopped reading the socket."""
        self._is_read = False
        self._host.add_paused(self)

    def _update_heard_at(self) -> None:
        """The pump notes whole packets by itself."""
        if isinstance(self._stream, Pumped) and self.session.phase is Phase.OPEN:
            heard_at = self._stream.heard_at()
            if heard_at > self._heard_at:
                self._heard_at = heard_at
                self._packet_is_begun = False

    def _note_bytes(self, *, is_whole: bool) -> None:
        """Notes a sign of life.  Only whole packets count: a packet may take no longer than the keep-alive."""
        if is_whole:
            self._heard_at = self._process.loop.time()
            self._packet_is_begun = False
        elif not self._limit_s and not self._packet_is_begun:  # the longest keep-alive counts for it
            self._packet_is_begun = True
            self._heard_at = self._process.loop.time()
            self._process.wheel.at(self, self._heard_at + self._patience_s)

    @property
    def _patience_s(self) -> float:
        """How long may pass without a whole packet; 0: forever."""
        if self._limit_s or not self._packet_is_begun:
            return self._limit_s
        return self._process.settings.max_keep_alive_s * _KEEP_ALIVE_FACTOR

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is closed, by either side."""
        if self._stream is None:
            return
        self._stream = None
        self._process.wheel.forget(self)
        self._loss = "" if exc is None else str(exc)
        is_connecting = self.session.phase in (Phase.AUTHENTICATING, Phase.OPENING)
        if is_connecting or not self.conn or self._host.may_close(self):
            self.finish()
        else:
            self._process.engine.set_writable(self.conn, False)  # messages stay in the queue

    def finish(self) -> None:
        """Ends what the client has ended: by a DISCONNECT, or with its socket."""
        packet, self._last_packet = self._last_packet, None
        if packet is not None and self.conn:
            self._do(self.session.packet(packet.data, packet.code))
        if self._stream is None:
            self.act(self.session.end(Ending.LOST, self._loss))
        self._process.wake()
        self._forget_if_finished()

    def pause_writing(self) -> None:
        """The socket takes no more bytes."""
        self._blocked_since = self._process.loop.time()
        self._process.wheel.at(self, self._blocked_since + self._process.settings.write_timeout_s)
        if self.conn:
            self._process.engine.set_writable(self.conn, False)

    def resume_writing(self) -> None:
        """The socket takes bytes again."""
        if self.conn:
            self._blocked_since = 0.0
            self._process.engine.set_writable(self.conn, True)
            self._adjust_reading()
            self._process.wake()

    # ---- events and actions ----------------------------------------------------------------------------------------

    def _take(self, event: Event | None) -> None:
        """Handles an event of the engine, and those of the packets after it."""
        while event is not None and self.conn:
            if event.kind == EventKind.PACKET:
                if event.data[0] == _DISCONNECT and not self._host.may_close(self):
                    self._last_packet = event
                    return
                is_done = self._do(self.session.packet(event.data, event.code))
            elif event.kind == EventKind.DENIED:
                self._publish_denied(event.data)
                is_done = True
            else:
                is_done = self._do(self._report_fault(event))
            event = self._process.engine.proceed(self.conn, self._process.now_ms()) if is_done and self.conn else None

    def _report_fault(self, event: Event) -> Actions:
        connack_code = ProtocolError(event.error).connack_code
        return self.session.fault(event.code, error_text(event.error), event.data, connack_code)

    def act(self, actions: Actions) -> None:
        """Carries out the session's actions, then takes the packets that arrived in the meantime."""
        if self._do(actions) and self.conn:
            self._take(self._process.engine.proceed(self.conn, self._process.now_ms()))
            self._adjust_reading()
        self._process.wake()

    def _do(self, actions: Actions) -> bool:
        """Returns True if the packet is done and the next one may come."""
        is_done = False
        for action in actions:
            if isinstance(action, Send):
                if self.conn:
                    self._process.engine.send(self.conn, action.data)
            elif isinstance(action, Continue):
                is_done = True
            else:
                is_done |= self._perform(action)
        return is_done

    def _perform(self, action: Action) -> bool:
        if isinstance(action, SendCommand):
            self._host.send_command(self, action.command)
        elif isinstance(action, Opened):
            self._opened(action)
            return True
        elif isinstance(action, ReadHistory):
            self._host.read_history(self)
        elif isinstance(action, MoreWork):
            self._process.slices.add(self._continue_work)
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
        """The CONNECT is whole: the server has connect_wait_s to open the session."""
        self._limit_s = self._process.settings.connect_wait_s
        self._heard_at = self._process.loop.time()
        self._process.wheel.at(self, self._heard_at + min(self._limit_s, _GONE_LOOK_S))

    def is_gone(self) -> bool:
        """Whether the client has closed, and sent nothing before that was not read.

        While its CONNECT waits it is not read, so no event says so.  A client that has sent more after its CONNECT
        stays: it need not wait for the CONNACK.
        """
        return (
            isinstance(self._stream, Pumped) and self._stream.is_gone() and not self._process.engine.unread(self.conn)
        )

    def authenticated(self, verdict: Verdict, identity: Identity | None) -> None:
        """Takes the answer to its CONNECT, and the identity."""
        self.certificate = None
        self.identity = identity
        self.apply(self.session.authenticated(verdict))

    def change_permissions(self, permissions: Permissions) -> None:
        """Applies new permissions to an open connection."""
        if self.session.phase is Phase.OPEN:  # else the engine gets the rules when the session opens
            entries, default = permissions.publish_entries()
            self._process.engine.rules(self.conn, entries, denied_otherwise=not default)
            self._set_receive_rules(permissions)
        self.apply(self.session.change_permissions(permissions))

    def _set_receive_rules(self, permissions: Permissions) -> None:
        """The queue may hold messages from before a change of the rights."""
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
                places=terms.places,
                receive_maximum=settings.receive_maximum if five else 0,
                alias_maximum_in=settings.max_topic_alias if five else 0,
                alias_maximum_out=terms.alias_maximum_out,
                max_packet_out=terms.max_packet_out,
                replay_rate=settings.replay_rate,
                publish_rate=settings.publish_rate,
                denied_otherwise=not default,
                link=self._host.link_of(self),
            ),
            self._process.now_ms(),
        )
        if entries:
            engine.rules(self.conn, entries, denied_otherwise=not default)
        if not session.permissions.subscribes_freely:
            self._set_receive_rules(session.permissions)
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
            bridge=terms.is_bridge,
            clean=terms.clean,
            epoch=session.epoch,
            keep_alive_s=terms.keep_alive_s,
        )

    def _not_granted(self, refused: NotGranted) -> None:
        """Counts refused filters.  Logs one line for each connection."""
        self._process.counters.subscriptions_refused += refused.filters
        if not self._refusal_is_logged:
            self._refusal_is_logged = True
            reason = f"{refused.reason:#04x}"
            facts = {"filter": refused.topic_filter, "reason": reason, "detail": refused.detail}
            log.info("a subscription is refused", client=self.client_id, peer=self.peer, **facts)

    def _publish_denied(self, topic: bytes) -> None:
        """The engine counts all of them, and reports the first of a connection."""
        user = None if self.identity is None else self.identity.username
        log.info("a publish is denied", client=self.client_id, user=user, peer=self.peer, topic=topic)

    def withheld(self, topic: bytes) -> None:
        """A queued message was withheld: the engine reports the first of a connection."""
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
        else:  # a port scan, for example
            log.debug("connection ended", **facts)
        self._close(at_once=ending is Ending.SLOW)
        self._forget_if_finished()

    def _close(self, *, at_once: bool) -> None:
        """Closes the socket, at once or when everything is sent."""
        if self._stream is None:
            return
        if not self._is_read:
            self._is_read = True
            self._stream.resume_reading()
        if at_once:
            self._stream.abort()
            return
        self._stream.close()
        self._blocked_since = self._blocked_since or self._process.loop.time()
        self._process.wheel.at(self, self._blocked_since + self._process.settings.write_timeout_s)

    def _forget_if_finished(self) -> None:
        if self._stream is None and self.session.is_finished:
            self._host.forget(self)

    # ---- from the host ---------------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Sends the engine's output.  The pump sends to its clients by itself."""
        stream = self._stream
        if stream is not None and not isinstance(stream, Pumped) and not stream.is_closing():
            stream.write(data)

    def engine_detached(self) -> None:
        """The engine has forgotten the connection."""
        self.conn = 0
        if isinstance(self._stream, Pumped):
            self._stream.detach()

    def apply(self, actions: Actions) -> None:
        """Carries out the session's actions after a reply or a change."""
        self.act(actions)
        self._forget_if_finished()

    def _continue_work(self) -> None:
        self.apply(self.session.continue_work())

    def end(self, ending: Ending, detail: str = "", reason: int | None = None) -> None:
        """Ends the connection; `reason`: of the DISCONNECT, if it differs from that of the ending."""
        self.act(self.session.end(ending, detail, reason))
        self._forget_if_finished()

    def server_lost(self) -> None:
        """No reply will arrive any more."""
        if self._retry_timer is not None:
            self._retry_timer.cancel()
            self._retry_timer = None

    def server_restored(self) -> None:
        """The server is back: sends pending commands again."""
        self._backoff, self._stalled_s = None, 0.0
        if self.session.pending:
            self.act(self.session.resend())

    def _pause(self, error: str) -> None:
        """The server refuses temporarily: retries after a pause, for retry_total_s in all."""
        settings = self._process.settings
        if self._backoff is None:
            self._backoff = self._process.new_backoff()
            if error_code(error) not in ("MOVED", "ASK"):  # it goes to another node
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
        self.session.drop_pending()
        self.end(Ending.SERVER_ERROR, error)

    def _retry(self) -> None:
        self._retry_timer = None
        self.apply(self.session.resend())

    # ---- reading and deadlines -------------------------------------------------------------------------------------

    def _adjust_reading(self) -> None:
        """Pauses or resumes reading, by the rules of flow control."""
        stream = self._stream
        if stream is None or not self.conn or stream.is_closing():
            return
        process = self._process
        has_more = process.engine.has_more(self.conn)
        if has_more:
            self._line_up(stream)
        congested = self._host.congested
        should_pause = (
            congested
            or process.engine.should_pause(self.conn)
            or (has_more and not isinstance(stream, Pumped))
            or (
                self._blocked_since != 0.0
                and stream.get_write_buffer_size() > process.settings.write_buffer_bytes * HARD_LIMIT_FACTOR
            )
        )
        if should_pause and self._is_read:
            self._is_read = False
            stream.pause_reading()
            self._host.add_paused(self)
        elif should_pause and congested:  # its own reason may be over, and would not be reported again
            self._host.add_paused(self)
        elif not should_pause and not self._is_read:
            self._is_read = True
            self._heard_at = process.loop.time()  # unread time is not silence
            stream.resume_reading()

    def _line_up(self, stream: Writable | Pumped) -> None:
        """The client has sent more packets than one turn takes: other clients come first."""
        if isinstance(stream, Pumped):
            stream.line_up()
        elif not self._is_in_line:
            self._is_in_line = True
            self._process.loop.call_soon(self._take_more)

    def _take_more(self) -> None:
        self._is_in_line = False
        engine = self._process.engine
        if self.conn and engine.has_more(self.conn) and not engine.should_pause(self.conn):
            self.feed(b"")

    def update_reading(self) -> None:
        """The reason for a pause may be over."""
        self._adjust_reading()

    def check(self, now: float) -> float:
        """For the wheel: does what is overdue, and returns when to look again; 0: never."""
        settings = self._process.settings
        if self._blocked_since:
            limit = self._blocked_since + settings.write_timeout_s
            if now < limit:
                return limit
            if self.conn:
                self._process.counters.slow_clients_closed += 1
                self.end(Ending.SLOW)
            elif self._stream is not None:
                self._stream.abort()
            return 0.0
        self._update_heard_at()
        patience_s = self._patience_s
        if not self.conn or not patience_s:
            return 0.0
        if not self._is_read and self.session.phase is Phase.OPEN:
            self._heard_at = now
        if self.session.phase in (Phase.AUTHENTICATING, Phase.OPENING):
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
        """Checks a client whose CONNECT waits for an answer."""
        if self.is_gone():
            self.end(Ending.LOST)
        elif now >= deadline:
            self.act(self.session.time_out())
        else:
            return min(deadline, now + _GONE_LOOK_S)
        return 0.0
