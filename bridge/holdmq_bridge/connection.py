"""One MQTT 3.1.1 connection without its socket: bytes and replies go in, bytes and requests come out.

        receive(bytes) ─┐                    ┌─► output    bytes for the client
    reply(request, …) ──┤                    ├─► requests  commands for the server
    delivery(bytes) ────┼──►  Connection  ───┤
    server_lost/_restored                    ├─► fetch     the one SESSION.FETCH that is due
    retry, flush, end ──┘                    └─► events    opening, opened, ended

The environment calls a method on the left, then takes away what lies on the right.  There is no clock, no socket and no
randomness in here; every conversation can be replayed from byte strings.

    NEW ──CONNECT──► OPENING ──SESSION.OPEN answered──► OPEN ──► ENDED
     └──────────────────┴───────────── bad packet, timeout, loss ──┘

Laws
 1. A PUBACK leaves after the server's reply to the publish, a SUBACK after the reply to the subscription; both in the
    order of the client's packets.
 2. Every command of the session carries its epoch.  FENCED or NOSESSION ends the connection: somebody else has the
    session, or nobody.
 3. Packets behind CONNECT wait until the session is open.
 4. After ENDED nothing goes to the client; publishes under way, the will and the SESSION.CLOSE still go to the server,
    in that order, and `finished` tells when they are through.
 5. QoS 2: subscriptions are granted QoS 1 at most.  A QoS 2 publish is taken exactly once in a clean session, which
    ends with its connection, so that its identifiers need no other home than this object; in a persistent session it
    ends the connection, because they would have to outlive it.
"""

from collections.abc import Callable
from enum import Enum, StrEnum
from typing import Any

from hiredis import ReplyError

from holdmq.core import (
    Delivery,
    DeliveryKind,
    InvalidRecordError,
    InvalidTopicError,
    Suffix,
    mqtt,
    session_key,
    session_name,
    split_share,
)
from holdmq_bridge.backoff import Backoff
from holdmq_bridge.counters import Counters
from holdmq_bridge.line import DROPPED, Line
from holdmq_bridge.logs import Log
from holdmq_bridge.outgoing import Outgoing
from holdmq_bridge.request import Argument, Kind, Reply, Request, error_code, is_passing
from holdmq_bridge.settings import Settings

log = Log("connection")

GRANTED_MAX = 1  # QoS
CONNACK_ACCEPTED, CONNACK_BAD_CLIENT_ID, CONNACK_UNAVAILABLE = 0, 2, 3  # table 3.1

_WILL = "will"  # the detail of a request: this publish is a will


_PINGRESP = mqtt.encode_pingresp()


class Phase(Enum):
    """Where the connection is in its life."""

    NEW = 1
    OPENING = 2
    OPEN = 3
    ENDED = 4


class Event(Enum):
    """What the environment has to act upon."""

    OPENING = 1  # the client's key is known: listen on its inbox
    OPENED = 2  # the session is ours
    ENDED = 3  # close the socket once `output` is written


class Ending(StrEnum):
    """Why a connection ended.  Only DISCONNECT keeps the will back [MQTT-3.14.4-3]."""

    DISCONNECT = "the client disconnected"
    LOST = "the connection was lost"
    REFUSED = "the connect was refused"
    SILENT = "the client was silent for one and a half keep-alives"
    NO_CONNECT = "no CONNECT in time"
    NOT_OPENED = "the server did not open the session in time"
    MALFORMED = "a malformed packet"
    PROTOCOL = "a protocol error"
    TAKEN_OVER = "the session was taken over"
    GONE = "the server has lost the session"
    UNSUPPORTED = "a packet that is not supported yet"
    SERVER_ERROR = "the server refused a command"
    SLOW = "the client does not read"
    SHUTDOWN = "the bridge is shutting down"


class Connection:
    """The protocol of one client.  `owner` comes back with every request, for the environment to find its way."""

    def __init__(
        self,
        settings: Settings,
        counters: Counters,
        *,
        owner: Any,
        owner_name: str,
        assigned_id: Callable[[], bytes],
        backoff: Backoff,
    ) -> None:
        self._settings = settings
        self._counters = counters
        self._owner = owner
        self._owner_name = owner_name
        self._assigned_id = assigned_id
        self._backoff = backoff
        self._server_up = False
        self._unread = b""
        self._held: list[mqtt.Packet] = []
        self._connect: mqtt.Connect | None = None
        self._received: set[int] = set()  # QoS 2 identifiers between PUBLISH and PUBREL (clean sessions only)
        self._open_under_way = False
        self._open_repeated = False
        self._created_by_us = False
        self._resting = False  # between a refusal that passes and retry()
        self._stalled_s = 0.0
        self._lost_session = False
        self._will: mqtt.Will | None = None

        self.output: list[bytes] = []
        self.requests: list[Request] = []
        self.fetch: Request | None = None
        self.events: list[Event] = []
        self.retry_in_s: float | None = None  # the environment calls retry() so much later, and resets it
        self.phase = Phase.NEW
        self.ending: Ending | None = None
        self.ending_detail = ""
        self.client_id = b""
        self.key = b""
        self.inbox = b""
        self.epoch = 0
        self.clean = True
        self.keep_alive_s = 0
        self.needs_flush = False
        self.line = Line(self.requests)
        self.outgoing = Outgoing(settings, counters, self.output)

    @property
    def finished(self) -> bool:
        """Ended, and nothing is left to tell the server."""
        return self.phase is Phase.ENDED and not self.line and not self._open_under_way

    @property
    def wants_rest(self) -> bool:
        """The client must not be read now: too much of it is unanswered, or nothing can be answered."""
        waiting = len(self.line)
        return (
            waiting >= self._settings.max_client_outstanding
            or self.phase is Phase.OPENING
            or self.line.stalled
            or (waiting > 0 and not self._server_up)
        )

    # ---- from the client -------------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        """Bytes from the client."""
        if self.phase is Phase.ENDED:
            return
        if self._unread:
            data = self._unread + data
        packets, consumed, error = mqtt.decode_many(data, max_packet_bytes=self._settings.max_packet_bytes)
        self._unread = data[consumed:]
        if self.phase is Phase.OPENING:
            self._held += packets
        else:
            self._take(packets)
        if error is not None:
            self._malformed(error)

    def _malformed(self, error: mqtt.ProtocolError) -> None:
        self._counters.packets_malformed += 1
        if error.connack_code and self.phase is Phase.NEW:
            self._refuse(error.connack_code, str(error))
        else:
            self.end(Ending.MALFORMED, str(error))

    def _take(self, packets: list[mqtt.Packet]) -> None:
        handlers = _HANDLERS
        for position, packet in enumerate(packets):
            if self.phase is not Phase.OPEN and not self._admit(packet, packets[position + 1 :]):
                return
            handler = handlers.get(type(packet))
            if handler is None:
                self._protocol_error(f"a client must not send {type(packet).__name__}")
            else:
                handler(self, packet)

    def _admit(self, packet: mqtt.Packet, rest: list[mqtt.Packet]) -> bool:
        """Outside OPEN: is it this packet's turn?"""
        if self.phase is Phase.NEW:
            if type(packet) is mqtt.Connect:
                return True
            self._protocol_error(f"{type(packet).__name__} before CONNECT [MQTT-3.1.0-1]")
        elif self.phase is Phase.OPENING:
            self._held += [packet, *rest]
        return False

    def _protocol_error(self, detail: str) -> None:
        self._counters.protocol_errors += 1
        self.end(Ending.PROTOCOL, detail)

    def _on_connect(self, packet: mqtt.Connect) -> None:
        if self.phase is not Phase.NEW:
            self._protocol_error("a second CONNECT [MQTT-3.1.0-2]")
            return
        if len(packet.client_id) > self._settings.max_client_id_bytes:
            self._refuse(CONNACK_BAD_CLIENT_ID, f"a client id of {len(packet.client_id)} bytes")
            return
        self.phase = Phase.OPENING
        self._connect = packet
        self.clean = packet.clean
        self.client_id = packet.client_id or self._assigned_id()
        self.key = session_key(self.client_id)
        self.inbox = session_name(self.key, Suffix.INBOX)
        self.keep_alive_s = packet.keep_alive_s
        self._will = packet.will
        if self._server_up:
            self._open()
        self.events.append(Event.OPENING)

    def _refuse(self, code: int, detail: str) -> None:
        self.output.append(mqtt.encode_connack(False, code))
        self.end(Ending.REFUSED, detail)

    def _on_publish(self, packet: mqtt.Publish) -> None:
        self._counters.publishes_received += 1
        qos = packet.qos
        if qos == 2 and not self._take_qos2(packet):
            return
        self.line.add(
            Request(
                self._owner,
                Kind.PUBLISH,
                self._publish_arguments(packet.topic, packet.payload, qos, packet.retain),
                packet.packet_id,
                qos,
            )
        )

    def _publish_arguments(self, topic: bytes, payload: bytes, qos: int, retain: bool) -> tuple[Argument, ...]:
        if retain:
            return ("TOPIC.PUBLISH", topic, payload, "QOS", qos, "RETAIN", "FROM", self.client_id)
        return ("TOPIC.PUBLISH", topic, payload, "QOS", qos, "FROM", self.client_id)

    def _take_qos2(self, packet: mqtt.Publish) -> bool:
        """Is this QoS 2 publish to be handed on now?"""
        if not self.clean:
            self.end(Ending.UNSUPPORTED, "a QoS 2 publish in a persistent session")
            return False
        if packet.packet_id not in self._received:
            self._received.add(packet.packet_id)
            return True
        if not self.line.holds_publish(packet.packet_id):
            self.output.append(mqtt.encode_pubrec(packet.packet_id))  # a repetition of what the server has
        return False

    def _on_pubrel(self, packet: mqtt.Pubrel) -> None:
        self._received.discard(packet.packet_id)
        self.output.append(mqtt.encode_pubcomp(packet.packet_id))

    def _on_puback(self, packet: mqtt.Puback) -> None:
        if self.outgoing.acknowledged(packet.packet_id):
            self._counters.messages_acknowledged += 1
            self.needs_flush = True
        else:
            self._counters.acknowledgements_unknown += 1

    def _on_pubrec(self, packet: mqtt.Pubrec) -> None:
        self._protocol_error("PUBREC, but nothing was sent with QoS 2")

    def _on_subscribe(self, packet: mqtt.Subscribe) -> None:
        codes = []
        arguments: list[Argument] = ["SESSION.SUBSCRIBE", self.key, "EPOCH", self.epoch]
        for entry in packet.subscriptions:
            code = min(entry.qos, GRANTED_MAX) if _is_usable(entry.topic_filter) else mqtt.SUBACK_FAILURE
            codes.append(code)
            if code != mqtt.SUBACK_FAILURE:
                arguments += [entry.topic_filter, code]
        self._add_subscription(Kind.SUBSCRIBE, packet.packet_id, arguments, codes)

    def _on_unsubscribe(self, packet: mqtt.Unsubscribe) -> None:
        arguments: list[Argument] = ["SESSION.UNSUBSCRIBE", self.key, "EPOCH", self.epoch]
        arguments += [topic_filter for topic_filter in packet.topic_filters if _is_usable(topic_filter)]
        self._add_subscription(Kind.UNSUBSCRIBE, packet.packet_id, arguments, None)

    def _add_subscription(self, kind: Kind, packet_id: int, arguments: list[Argument], codes: list[int] | None) -> None:
        if len(arguments) == 4:  # no filter that the server could know; TOUCH keeps the answer's place in the order
            arguments[0] = "SESSION.TOUCH"
        self.line.add(Request(self._owner, kind, tuple(arguments), packet_id, detail=codes))

    def _on_pingreq(self, packet: mqtt.Pingreq) -> None:
        self.output.append(_PINGRESP)

    def _on_disconnect(self, packet: mqtt.Disconnect) -> None:
        self._will = None  # [MQTT-3.1.2-10]
        self.end(Ending.DISCONNECT)

    # ---- to the server and back ------------------------------------------------------------------------------------

    def _open(self) -> None:
        assert self._connect is not None
        if self._open_repeated and not self.clean:
            # The first attempt's reply was lost: was it that one which created the session?
            self.requests.append(Request(self._owner, Kind.INFO, ("SESSION.INFO", self.key)))
        options: tuple[Argument, ...] = ("CLEAN",) if self.clean else ()
        expiry = 0 if self.clean else self._settings.session_expiry_s
        lifetime: tuple[Argument, ...] = ("EXPIRY", expiry, "LEASE", self._settings.lease_s)
        self.requests.append(
            Request(
                self._owner,
                Kind.OPEN,
                ("SESSION.OPEN", self.key, "OWNER", self._owner_name, *options, *lifetime),
            )
        )
        self._open_under_way = True

    def reply(self, request: Request, reply: Reply) -> None:
        """What the server answered to one of this connection's requests."""
        kind = request.kind
        if kind <= Kind.CLOSE:
            self._line_answered(request, reply)
        elif type(reply) is ReplyError:
            self._failed(request, reply)
        elif kind is Kind.ACK:
            self.outgoing.acks_confirmed(request.detail)
        elif kind is Kind.FETCH:
            self._fetched(reply)
        elif kind is Kind.OPEN:
            self._opened(*reply)
        elif kind is Kind.INFO:
            self._informed(reply)

    def _line_answered(self, request: Request, reply: Reply) -> None:
        stalled_before = self.line.stalled
        self.line.answered(request, reply)
        if self.line.stalled and not stalled_before:
            log.warning("the server refuses for now", client=self.client_id, error=reply)
            self._rest()
        self._complete()

    def _rest(self) -> None:
        """The server refuses for now: nothing more goes to it until the environment calls retry()."""
        if not self._resting:
            self._resting = True
            self.retry_in_s = self._backoff.next()

    def _complete(self) -> None:
        for request in self.line.completed():
            reply = request.reply
            if type(reply) is ReplyError:
                self._completed_badly(request, reply)
            elif reply is DROPPED:
                self._counters.publishes_dropped_qos0 += 1
            elif request.kind is Kind.PUBLISH:
                self._published(request)
            elif request.kind is Kind.SUBSCRIBE:
                self._answer(mqtt.encode_suback(request.packet_id, request.detail))
            elif request.kind is Kind.UNSUBSCRIBE:
                self._answer(mqtt.encode_unsuback(request.packet_id))
            if self._stalled_s:
                self._stalled_s = 0.0
                self._backoff.reset()

    def _published(self, request: Request) -> None:
        if request.detail is _WILL:
            self._counters.wills_published += 1
            return
        if not request.qos:
            return
        self._counters.publishes_acknowledged += 1
        encode = mqtt.encode_puback if request.qos == 1 else mqtt.encode_pubrec
        self._answer(encode(request.packet_id))

    def _answer(self, packet: bytes) -> None:
        if self.phase is not Phase.ENDED:
            self.output.append(packet)

    def _completed_badly(self, request: Request, error: ReplyError) -> None:
        if self._is_gone(error):
            return
        if request.kind is Kind.SUBSCRIBE:
            log.warning("the server refuses a subscription", client=self.client_id, error=error)
            self._answer(mqtt.encode_suback(request.packet_id, [mqtt.SUBACK_FAILURE] * len(request.detail)))
            return
        if request.kind is Kind.PUBLISH:
            self._counters.publishes_refused += 1
        self._end_by_error(request, error)

    def _is_gone(self, error: ReplyError) -> bool:
        """Does the error say that the session is no longer ours?  Then that is dealt with."""
        code = error_code(error)
        if code not in ("FENCED", "NOSESSION"):
            return False
        self._lost_session = True
        if self.phase is not Phase.ENDED:
            if code == "FENCED":
                self._counters.sessions_taken_over += 1
            self.end(Ending.TAKEN_OVER if code == "FENCED" else Ending.GONE, str(error))
        return True

    def _end_by_error(self, request: Request, error: ReplyError) -> None:
        if self.phase is Phase.ENDED:
            log.error("the server refuses a command", client=self.client_id, command=request.arguments[0], error=error)
        elif error_code(error) == "INVALIDTOPIC":
            self._protocol_error(str(error))
        else:
            self.end(Ending.SERVER_ERROR, f"{request.arguments[0]!r}: {error}")

    def _failed(self, request: Request, error: ReplyError) -> None:
        """An error reply to a command outside the line."""
        kind = request.kind
        if kind is Kind.OPEN:
            self._open_under_way = False
        elif kind is Kind.FETCH:
            self.outgoing.fetch_failed()
        elif kind is Kind.ACK:
            self.outgoing.acks_failed(request.detail)
        if self._is_gone(error) or self.phase is Phase.ENDED:
            return
        if is_passing(error):
            self._rest()
        elif self.phase is Phase.OPENING:
            log.error("the server refuses to open a session", client=self.client_id, error=error)
            self._refuse(CONNACK_UNAVAILABLE, str(error))
        else:
            self._end_by_error(request, error)

    def _informed(self, info: Reply) -> None:
        own = info[b"owner"] == self._owner_name.encode()
        self._created_by_us = own and not info[b"subscriptions"] and not info[b"messages"]

    def _opened(self, epoch: int, present: int) -> None:
        """The session is ours."""
        self._open_under_way = False
        self.epoch = epoch
        if self.phase is Phase.ENDED:  # the client did not wait
            self._close()
            return
        self.phase = Phase.OPEN
        resumed = bool(present) and not self.clean and not self._created_by_us
        self._counters.sessions_opened += 1
        self._counters.sessions_resumed += resumed
        if resumed:
            self.outgoing.resume()
            self.needs_flush = True
        self.output.append(mqtt.encode_connack(resumed, CONNACK_ACCEPTED))
        self.events.append(Event.OPENED)
        held, self._held = self._held, []
        self._take(held)

    def open_expired(self) -> None:
        """The server has not opened the session in time."""
        if self.phase is Phase.OPENING:
            self.output.append(mqtt.encode_connack(False, CONNACK_UNAVAILABLE))
            self.end(Ending.NOT_OPENED)

    # ---- the queue -------------------------------------------------------------------------------------------------

    def delivery(self, payload: bytes) -> None:
        """What came on the session's inbox channel."""
        if self.phase is not Phase.OPEN:
            return
        try:
            delivery = Delivery.decode(payload)
        except InvalidRecordError as error:
            self._counters.messages_unreadable += 1
            log.warning("an inbox channel carried no delivery", client=self.client_id, error=error)
            return
        if delivery.kind == DeliveryKind.QUEUED:
            self.outgoing.queued(delivery)
            if self.outgoing.behind:
                self.needs_flush = True
                self._check_conflict()
        elif delivery.kind == DeliveryKind.TRANSIENT:
            self.outgoing.transient(delivery)
        else:
            self.taken_over(delivery.serial)

    def taken_over(self, epoch: int) -> None:
        """Somebody opened the session; `epoch` is theirs."""
        if self.phase is Phase.OPEN and epoch > self.epoch:
            self._counters.sessions_taken_over += 1
            self._lost_session = True
            self.end(Ending.TAKEN_OVER)

    def flush(self) -> None:
        """Once per iteration of the loop, if `needs_flush`: acknowledgements in one command, and the next fetch."""
        self.needs_flush = False
        self._check_conflict()
        if not self._server_up or self._resting or self.phase is not Phase.OPEN:
            return
        self._send_acks()
        due = self.outgoing.wants_fetch()
        if due is not None:
            after, count, size = due
            page = ("AFTER", after, "COUNT", count, "BYTES", size)
            self.fetch = Request(self._owner, Kind.FETCH, ("SESSION.FETCH", self.key, "EPOCH", self.epoch, *page))

    def _send_acks(self) -> None:
        acks = self.outgoing.take_acks()
        if acks:
            arguments: tuple[Argument, ...] = ("SESSION.ACK", self.key, "EPOCH", self.epoch, *acks)
            self.requests.append(Request(self._owner, Kind.ACK, arguments, detail=acks))

    def _fetched(self, reply: Reply) -> None:
        entries, more, _expired = reply
        if self.phase is Phase.OPEN:
            self.outgoing.fetched(entries, bool(more))
            self.needs_flush = True
            self._check_conflict()

    def _check_conflict(self) -> None:
        if self.outgoing.conflict and self.phase is Phase.OPEN:
            self.end(Ending.GONE, "the server was restored from an older state")

    def touch(self) -> None:
        """Renews the lease of the session."""
        if self.phase is Phase.OPEN and self._server_up:
            self.requests.append(Request(self._owner, Kind.TOUCH, ("SESSION.TOUCH", self.key, "EPOCH", self.epoch)))

    def set_writable(self, writable: bool) -> None:
        """The client's socket takes no more, or takes it again."""
        self.outgoing.writable = writable
        if writable and self.phase is Phase.OPEN:
            self.outgoing.send_ready()
            self.needs_flush = True

    # ---- the server goes and comes ---------------------------------------------------------------------------------

    def server_lost(self) -> None:
        """No reply will come to anything."""
        self._server_up = False
        self.requests.clear()
        self.fetch = None
        self.retry_in_s = None
        self._resting = False
        if self._open_under_way:
            self._open_under_way = False
            self._open_repeated = True
        self.outgoing.server_lost()
        in_doubt = self.line.lost()
        if in_doubt and self.phase is Phase.OPEN:
            self.end(Ending.SERVER_ERROR, "lost while a QoS 2 publish was under way: sending it again could double it")
        self._complete()

    def server_restored(self) -> None:
        """The server is there, its data loaded: to be told at the beginning too."""
        self._server_up = True
        self._stalled_s = 0.0
        self._backoff.reset()
        self.line.restored()
        if self.phase is Phase.OPENING:
            self._open()
        elif self.phase is Phase.OPEN:
            self.needs_flush = True

    def retry(self) -> None:
        """The pause after a refusal is over."""
        if not self._server_up or not self._resting:
            return
        self._resting = False
        if self.line.stalled and not self._retry_line():
            return
        if self.phase is Phase.OPENING and not self._open_under_way:
            self._open()
        elif self.phase is Phase.OPEN:
            self.needs_flush = True

    def _retry_line(self) -> bool:
        pause = self._backoff.next()
        self._stalled_s += pause
        if self._stalled_s > self._settings.retry_total_s:
            self._give_up()
            return False
        if self.line.retry():
            self._counters.publishes_retried += 1
            return True
        self._resting = True
        self.retry_in_s = pause
        return False

    def _give_up(self) -> None:
        if self.phase is Phase.ENDED:
            log.error("gave up telling the server", client=self.client_id, commands=len(self.line))
            self.line.clear()
        else:
            self._stalled_s = 0.0
            self.end(Ending.SERVER_ERROR, f"the server refused for {self._settings.retry_total_s} s")

    # ---- the end ---------------------------------------------------------------------------------------------------

    def end(self, ending: Ending, detail: str = "") -> None:
        """Ends the connection.  Publishes the will unless there was a DISCONNECT, and closes the session."""
        if self.phase is Phase.ENDED:
            return
        opened = self.phase is Phase.OPEN
        self.phase = Phase.ENDED
        self.ending = ending
        self.ending_detail = detail
        self._held.clear()
        self._unread = b""
        if opened:
            self._publish_will()
            self._close()
        self.events.append(Event.ENDED)

    def _publish_will(self) -> None:
        will = self._will
        if will is not None:
            arguments = self._publish_arguments(will.topic, will.payload, will.qos, will.retain)
            self.line.add(Request(self._owner, Kind.PUBLISH, arguments, qos=min(will.qos, 1), detail=_WILL))

    def _close(self) -> None:
        if self._lost_session:
            return
        if self._server_up:
            self._send_acks()
        sent: tuple[Argument, ...] = () if self.clean else ("SENT", self.outgoing.highest)
        arguments = ("SESSION.CLOSE", self.key, "EPOCH", self.epoch, *sent)
        self.line.add(Request(self._owner, Kind.CLOSE, arguments))


def _is_usable(topic_filter: bytes) -> bool:
    """Can the server serve it?  Not if it has too many levels, nor yet if it is a shared one."""
    try:
        return split_share(topic_filter) is None
    except InvalidTopicError:
        return False


_HANDLERS: dict[type, Callable[[Connection, Any], None]] = {
    mqtt.Connect: Connection._on_connect,
    mqtt.Publish: Connection._on_publish,
    mqtt.Puback: Connection._on_puback,
    mqtt.Pubrec: Connection._on_pubrec,
    mqtt.Pubrel: Connection._on_pubrel,
    mqtt.Pubcomp: Connection._on_puback,
    mqtt.Subscribe: Connection._on_subscribe,
    mqtt.Unsubscribe: Connection._on_unsubscribe,
    mqtt.Pingreq: Connection._on_pingreq,
    mqtt.Disconnect: Connection._on_disconnect,
}
