"""The rare packets of one client, without socket and clock: CONNECT, SUBSCRIBE, UNSUBSCRIBE, DISCONNECT, AUTH.

    packet(bytes) ──────┐                ┌──► Send          a packet for the client
    authenticated(…) ───┤                ├──► Authenticate  find out who this is, then call authenticated()
    reply(command, …) ──┼──►  Session ───┼──► SendCommand   a command for the server, then call reply()
    end(…), closed(…) ──┤                ├──► Opened        the engine takes over: packets flow
    resend()        ────┤                ├──► Continue      the packet is done: the next one may come
    continue_work() ────┘                ├──► MoreWork      call continue_work() when other clients had their turn
                                         ├──► Retry         temporarily refused: call resend() after a pause
                                         └──► End           close the socket, then call closed()

The engine handles everything frequent (publishes, acknowledgements, deliveries) by itself.

    NEW ──CONNECT──► AUTHENTICATING ──verdict──► OPENING ──reply to SESSION.OPEN──► OPEN ──► ENDED
     └─────────────────────┴───────────────────────┴─────── fault, timeout, loss ──────────► ENDED

Invariants
 1. One packet at a time: the next one comes after Continue or Opened.  So a SUBACK follows the server's reply.
 2. Every command of the session carries its epoch.  FENCED or NOSESSION ends the connection: another connection has
    the session, or the session is gone.
 3. A command stays in `pending` until its final reply.  `resend` returns all that are pending.
 4. After ENDED nothing goes to the client.  A session that this connection owns is closed at the server, even if the
    reply to its OPEN arrives later.  `is_finished`: nothing is left to do.
"""

from collections import deque
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from hiredis import ReplyError

from holdmq.core import Suffix, mqtt, session_key, session_name
from holdmq.core.mqtt import ANY_VERSION, PROTOCOL_LEVEL, PROTOCOL_LEVEL_5
from holdmq_bridge.base.command import Argument, Command, Kind, Reply, error_code, is_temporary
from holdmq_bridge.base.reasons import TEMPORARY, Ending, Reason
from holdmq_bridge.process.settings import Settings
from holdmq_bridge.session import answers, subscriptions
from holdmq_bridge.session.access import EVERYTHING, Permissions, Verdict
from holdmq_bridge.session.actions import (
    Actions,
    Authenticate,
    Continue,
    End,
    MoreWork,
    Opened,
    Phase,
    ReadHistory,
    Retry,
    Send,
    SendCommand,
)
from holdmq_bridge.session.connecting import protocol_level, will_options
from holdmq_bridge.session.subscriptions import MOST_AT_ONCE, Judgement, weight
from holdmq_bridge.session.terms import NO_LIMIT, RefusedError, Terms, agree

Work: TypeAlias = Generator[None, None, Actions]
Result = TypeVar("Result")
_STEPS_AT_ONCE = 32  # of work that begins in the same turn as its packet was read
_SLICE_MS = 2  # of computing for one client, before other clients have their turn


@dataclass(slots=True)
class PendingUnsubscribe:
    """An UNSUBSCRIBE without an answer.

    Attributes:
        packet_id: its identifier.
        reasons: for each filter SUCCESS, or why it is not sent to the server.
        left: filters to be sent to the server.
        sent: filters of the command that is pending.
        removed: the replies to earlier commands: 1 for each filter that was removed, else 0.
    """

    packet_id: int
    reasons: list[int]
    left: list[bytes]
    sent: list[bytes] = field(default_factory=list)
    removed: list[int] = field(default_factory=list)

    def outcomes(self) -> list[int]:
        """Reason codes for the UNSUBACK."""
        removed = iter(self.removed)
        return [
            Reason.NO_SUBSCRIPTION_EXISTED if reason == Reason.SUCCESS and not next(removed) else reason
            for reason in self.reasons
        ]


@dataclass(slots=True)
class Listing:
    """The session's subscriptions, read page by page.

    Attributes:
        packet: the SUBSCRIBE that waits for them; None for a review.
        filters: those of the pages so far, with their options.
    """

    packet: mqtt.Subscribe | None = None
    filters: dict[bytes, bytes] = field(default_factory=dict)


class Session:
    """One client, from its CONNECT to the reply to its SESSION.CLOSE.

    Args:
        settings: limits.
        owner: names this process as the owner of a session with a key.  The module closes the sessions of an owner
            whose lease ends.
        attempt: a token that no other connection has.  The module recognises a repeated OPEN by it.
        assigned_id: makes an id for a client without one.
        now_ms: the clock, for subscriptions that begin at an age.

    Attributes:
        is_application: its subscriptions keep their place in history forever.
        pending: commands without a final reply.
        publishes_will: at the end: there is a will, and no DISCONNECT has removed it.
        final_expiry_s: the expiry that a DISCONNECT asked for.
    """

    __slots__ = (
        "_assigned_id",
        "_attempt",
        "_count",
        "_now_ms",
        "_owner",
        "_settings",
        "_will",
        "_will_topic",
        "_works",
        "ending",
        "epoch",
        "final_expiry_s",
        "inbox",
        "is_application",
        "key",
        "pending",
        "permissions",
        "phase",
        "publishes_will",
        "terms",
    )

    def __init__(
        self,
        settings: Settings,
        owner: Callable[[bytes], str],
        attempt: str,
        assigned_id: Callable[[], bytes],
        now_ms: Callable[[], int],
    ) -> None:
        self._settings = settings
        self._owner = owner
        self._attempt = attempt
        self._assigned_id = assigned_id
        self._now_ms = now_ms
        self._will: tuple[Any, ...] = ()  # options of SESSION.OPEN, until it is answered
        self._will_topic = b""  # empty without a will
        self._count: int | None = 0  # subscriptions, by weight; None if unknown
        self._works: deque[Work] = deque()  # computed in slices, one after the other
        self.phase = Phase.NEW
        self.ending: Ending | None = None
        self.terms: Terms | None = None
        self.permissions: Permissions = EVERYTHING
        self.is_application = False
        self.key = b""
        self.inbox = b""
        self.epoch = 0
        self.pending: list[Command] = []
        self.publishes_will = False
        self.final_expiry_s: int | None = None

    @property
    def client_id(self) -> bytes:
        """Empty before the CONNECT."""
        return b"" if self.terms is None else self.terms.client_id

    @property
    def version(self) -> int:
        """Protocol level; that of 3.1.1 before the CONNECT."""
        return PROTOCOL_LEVEL if self.terms is None else self.terms.version

    @property
    def is_finished(self) -> bool:
        """Whether it has ended and no command is pending."""
        return self.phase is Phase.ENDED and not self.pending

    # ---- from the client -------------------------------------------------------------------------------------------

    def packet(self, data: bytes, code: int = 0) -> Actions:
        """Takes a whole packet, which the engine allows in this phase.

        Args:
            data: its bytes.
            code: 0x91 if its packet identifier is in use.  3.1.1 has no such code, so the packet is served there.
        """
        packets, _, error = mqtt.decode_many(data, version=ANY_VERSION if self.terms is None else self.terms.version)
        if error is not None:
            return self.fault(error.reason_code, str(error), data, error.connack_code)
        if code and self.version == PROTOCOL_LEVEL_5:
            return self._refuse_packet_id(packets[0], code)
        if isinstance(packets[0], mqtt.Connect):
            return self._on_connect(packets[0], len(data))
        handler = _HANDLERS.get(type(packets[0]))
        if handler is None:
            return self._protocol_error(f"a client must not send {type(packets[0]).__name__}")
        return handler(self, packets[0])

    def fault(self, reason: int, detail: str, data: bytes = b"", connack_code: int = 0) -> Actions:
        """Ends the connection because of a faulty packet.

        Args:
            reason: code of MQTT 5.0.
            detail: in words.
            data: the packet, as far as known.
            connack_code: of the CONNACK that 3.1.1 demands for this fault; 0: close without a CONNACK.
        """
        ending = Ending.MALFORMED if reason == Reason.MALFORMED else Ending.PROTOCOL
        if self.phase is not Phase.NEW:
            return self.end(ending, detail, reason)
        if reason in TEMPORARY and self._settings.temporary_refusal == "close":
            return self.end(Ending.UNAVAILABLE, detail)
        answer: Actions = []
        if protocol_level(data) >= PROTOCOL_LEVEL_5:
            answer.append(Send(answers.refusal(PROTOCOL_LEVEL_5, reason, detail)))
        elif connack_code:
            answer.append(Send(mqtt.encode_connack(False, connack_code)))
        return answer + self.end(ending, detail)

    def _protocol_error(self, detail: str) -> Actions:
        return self.end(Ending.PROTOCOL, detail)

    def _on_connect(self, packet: mqtt.Connect, size: int) -> Actions:
        try:
            self.terms = agree(packet, self._settings, self._assigned_id)
        except RefusedError as error:
            max_packet = packet.properties.maximum_packet_size or NO_LIMIT
            return self._refuse(packet.level, error.reason, str(error), max_packet=max_packet)
        if self.terms.max_packet_out and not answers.connack(self.terms, self._settings, present=False):
            detail = f"a maximum packet size of {self.terms.max_packet_out}: no CONNACK is that small"
            return self._refuse(packet.level, Reason.PACKET_TOO_LARGE, detail)
        self.key = session_key(self.terms.client_id)
        self.inbox = session_name(self.key, Suffix.INBOX)
        self._will = will_options(packet, self._settings)
        self._will_topic = b"" if packet.will is None else packet.will.topic
        self.phase = Phase.AUTHENTICATING
        return [Authenticate(self.terms.client_id, packet.username, packet.password, size)]

    def _refuse(
        self, version: int, reason: int, detail: str, *, explain: bool = True, max_packet: int = NO_LIMIT
    ) -> Actions:
        """Answers the CONNECT, or closes the connection without a CONNACK if the reason is temporary.

        Client libraries take a CONNACK with a code as final and never retry.  They retry after a plain close.
        """
        limit = max_packet if self.terms is None else self.terms.max_packet_out
        if reason in TEMPORARY and self._settings.temporary_refusal == "close":
            self.phase = Phase.NEW
            return self.end(Ending.UNAVAILABLE, detail)
        refusal = answers.refusal(version, reason, detail if explain else "", limit)
        self.phase = Phase.NEW  # there is no session to end
        return [*([Send(refusal)] if refusal else []), *self.end(Ending.REFUSED, detail)]

    def authenticated(self, verdict: Verdict) -> Actions:
        """Takes the answer to Authenticate."""
        if self.phase is not Phase.AUTHENTICATING:
            return []  # the client has gone
        assert self.terms is not None
        if not verdict.allowed:
            return self._refuse(self.version, verdict.reason, verdict.detail, explain=False)
        self.permissions = verdict.rules
        kind = verdict.session_kind or self.terms.session_kind or self._settings.session_kind
        self.is_application = kind == "application"
        if self._will_topic and not verdict.rules.may_publish(self._will_topic):
            return self._refuse(self.version, Reason.NOT_AUTHORIZED, self._no_right_to_the_will)
        self.phase = Phase.OPENING
        arguments: tuple[Argument, ...] = ("SESSION.OPEN", self.key, "OWNER", self._owner(self.key))
        if self.terms.clean:
            arguments += ("CLEAN",)
        if verdict.overflow:
            arguments += ("OVERFLOW", verdict.overflow)
        arguments += ("WINDOW", self.terms.window, *verdict.quota.words)
        arguments += ("EXPIRY", self.terms.expiry_s, "ATTEMPT", self._attempt)
        arguments += self._claim(verdict) + self._will
        return self._send_command(Command(Kind.OPEN, arguments))

    def _claim(self, verdict: Verdict) -> tuple[Argument, ...]:
        """Options of SESSION.OPEN: the identity that must own the session, and what happens to another identity's."""
        claim: tuple[Argument, ...] = ("IDENTITY", verdict.identity)
        if verdict.adopts:
            claim += ("ADOPT", verdict.adopts)
        return (*claim, "REPLACE") if self._settings.session_of_another_identity == "replace" else claim

    @property
    def _no_right_to_the_will(self) -> str:
        return f"no right to a will on {self._will_topic.decode()!r}"

    def time_out(self) -> Actions:
        """Refuses a CONNECT that waited too long."""
        if self.phase not in (Phase.AUTHENTICATING, Phase.OPENING):
            return []
        return self._refuse(self.version, Reason.SERVER_UNAVAILABLE, "the server did not open the session in time")

    def _on_subscribe(self, packet: mqtt.Subscribe) -> Actions:
        if self._count is None or not self._has_room_for_all(packet):
            return self._list(Kind.LIST, Listing(packet))
        return self._start_work(self._subscribe(packet, ()), len(packet.subscriptions))

    def _has_room_for_all(self, packet: mqtt.Subscribe) -> bool:
        """Whether all filters fit even if none of them is subscribed already."""
        room = self._settings.max_subscriptions - (self._count or 0)
        return sum(weight(entry.topic_filter) for entry in packet.subscriptions) <= room

    def _subscribe(self, packet: mqtt.Subscribe, present: Collection[bytes]) -> Work:
        assert self.terms is not None
        while True:
            permissions = self.permissions
            if self._count is None:
                return self._list(Kind.LIST, Listing(packet))
            steps = subscriptions.judge(
                packet,
                permissions,
                present,
                self._settings.max_subscriptions - self._count,
                is_application=self.is_application,
                is_bridge=self.terms.is_bridge,
                now_ms=self._now_ms(),
            )
            judged = yield from self._in_slices(steps)
            if permissions is self.permissions:  # they may change between two slices
                return self._subscribe_next(packet.packet_id, judged)

    def _subscribe_next(self, packet_id: int, judged: Judgement) -> Actions:
        """Sends the next part to the server, or answers the client when there is none."""
        if judged.parts:
            command = ("SESSION.SUBSCRIBE", self.key, "EPOCH", self.epoch, *judged.parts[0].arguments)
            return self._send_command(Command(Kind.SUBSCRIBE, command, (packet_id, judged)))
        assert self.terms is not None
        limit = self.terms.max_packet_out
        detail = judged.detail if self.terms.may_explain else ""
        answer = answers.suback(self.terms.version, packet_id, judged.reasons, detail, limit)
        history = [ReadHistory()] if judged.reads_history else []
        return [*judged.refusals(), *self._answer(answer, *history)]

    def _answer(self, data: bytes, *then: ReadHistory) -> Actions:
        """Answers the packet.  Empty `data`: the answer is too large for the client [MQTT-3.1.2-24]."""
        return [Send(data), *then, Continue()] if data else self.end(Ending.UNANSWERABLE)

    def _refuse_packet_id(self, packet: mqtt.Packet, code: int) -> Actions:
        """Refuses all filters of a packet whose identifier is in use."""
        assert self.terms is not None
        limit = self.terms.max_packet_out
        if isinstance(packet, mqtt.Subscribe):
            codes = [code] * len(packet.subscriptions)
            return self._answer(answers.suback(self.version, packet.packet_id, codes, max_packet=limit))
        assert isinstance(packet, mqtt.Unsubscribe)
        codes = [code] * len(packet.topic_filters)
        return self._answer(answers.unsuback(self.version, packet.packet_id, codes, limit))

    def _on_unsubscribe(self, packet: mqtt.Unsubscribe) -> Actions:
        return self._start_work(self._unsubscribe(packet), len(packet.topic_filters))

    def _unsubscribe(self, packet: mqtt.Unsubscribe) -> Work:
        resolved = yield from self._in_slices(subscriptions.filters_to_unsubscribe(packet.topic_filters))
        known = [topic_filter for topic_filter, reason in resolved if reason == Reason.SUCCESS]
        return self._unsubscribe_next(PendingUnsubscribe(packet.packet_id, [reason for _, reason in resolved], known))

    def _unsubscribe_next(self, pending: PendingUnsubscribe) -> Actions:
        """Sends the next part to the server, or answers the client when there is none."""
        assert self.terms is not None
        if pending.left:
            some, pending.left = pending.left[:MOST_AT_ONCE], pending.left[MOST_AT_ONCE:]
            pending.sent = some
            arguments: tuple[Argument, ...] = ("SESSION.UNSUBSCRIBE", self.key, "EPOCH", self.epoch, *some)
            return self._send_command(Command(Kind.UNSUBSCRIBE, arguments, pending))
        limit = self.terms.max_packet_out
        return self._answer(answers.unsuback(self.version, pending.packet_id, pending.outcomes(), limit))

    def _on_disconnect(self, packet: mqtt.Disconnect) -> Actions:
        assert self.terms is not None
        expiry_s = packet.properties.session_expiry_interval
        if expiry_s is not None:
            if expiry_s and not self.terms.expiry_s and not self.terms.expiry_changed:
                return self._protocol_error("a session expiry interval, where CONNECT had none [MQTT 5.0, 3.14.2.2.2]")
            self.final_expiry_s = min(expiry_s, self._settings.max_session_expiry_s)
        if packet.reason_code == Reason.SUCCESS:
            self.publishes_will = False  # [MQTT-3.14.4-3]
            return self.end(Ending.DISCONNECT)
        return self.end(Ending.DISCONNECT_WITH_WILL, f"reason code {packet.reason_code:#04x}")

    def _on_auth(self, _packet: mqtt.Auth) -> Actions:
        return self._protocol_error("an AUTH, though no authentication method was agreed [MQTT-4.12.0-7]")

    # ---- work in slices --------------------------------------------------------------------------------------------

    def _start_work(self, work: Work, steps: int = 1) -> Actions:
        """Begins at once if it has few steps and nothing earlier is unfinished; `continue_work` does the rest."""
        self._works.append(work)
        if len(self._works) > 1:
            return []
        return self.continue_work() if steps <= _STEPS_AT_ONCE else [MoreWork()]

    def continue_work(self) -> Actions:
        """Does the next slice: the answer to MoreWork."""
        if self.phase is Phase.ENDED or not self._works:
            self._works.clear()
            return []
        try:
            next(self._works[0])
        except StopIteration as done:
            self._works.popleft()
            actions: Actions = done.value
            return [*actions, MoreWork()] if self._works else actions
        return [MoreWork()]

    def _in_slices(self, steps: Generator[None, None, Result]) -> Generator[None, None, Result]:
        began = self._now_ms()
        while True:
            try:
                next(steps)
            except StopIteration as done:
                result: Result = done.value
                return result
            if self._now_ms() - began >= _SLICE_MS:
                yield
                began = self._now_ms()

    # ---- to the server and back ------------------------------------------------------------------------------------

    def _send_command(self, command: Command) -> Actions:
        self.pending.append(command)
        return [SendCommand(command)]

    def resend(self) -> Actions:
        """Sends all pending commands again."""
        return [SendCommand(command) for command in self.pending]

    def reply(self, command: Command, reply: Reply) -> Actions:
        """Takes the reply to a command.  Errors are values."""
        if command not in self.pending:
            return []
        if isinstance(reply, ReplyError):
            return self._failed(command, reply)
        self.pending.remove(command)
        if command.kind is Kind.OPEN:
            return self._opened(*reply)
        if self.phase is Phase.OPEN:
            return self._answered(command, reply)
        return []

    def _answered(self, command: Command, reply: Reply) -> Actions:
        if command.kind in (Kind.LIST, Kind.REVIEW):
            return self._listed(command.kind, command.detail, *reply)
        if command.kind is Kind.REVOKE:
            self._count = None  # the next SUBSCRIBE counts again
            return []
        if command.kind is Kind.SUBSCRIBE:
            packet_id, judged = command.detail
            return self._subscribed(packet_id, judged, reply)
        return self._unsubscribed(command.detail, reply)

    def _list(self, kind: Kind, listing: Listing, cursor: bytes = b"0") -> Actions:
        """Asks for a page of the session's subscriptions."""
        return self._send_command(Command(kind, ("SESSION.SUBSCRIPTIONS", self.key, "CURSOR", cursor), listing))

    def _listed(self, kind: Kind, listing: Listing, cursor: bytes, page: Mapping[bytes, bytes]) -> Actions:
        listing.filters.update(page)  # pages may repeat some
        if cursor != b"0":
            return self._list(kind, listing, cursor)
        if kind is Kind.REVIEW:
            return self._start_work(self._reviewed(listing.filters))
        assert listing.packet is not None
        self._count = sum(map(weight, listing.filters))
        return self._start_work(self._subscribe(listing.packet, listing.filters))

    def _opened(self, epoch: int, present: int) -> Actions:
        self.epoch = epoch
        if self.phase is Phase.ENDED:  # the client has gone
            self.publishes_will = False
            return self._close(0)
        assert self.terms is not None
        resumed = bool(present) and not self.terms.clean
        self.phase = Phase.OPEN
        self.publishes_will, self._will = bool(self._will), ()
        self._count = None if resumed else 0
        actions: Actions = [Opened(answers.connack(self.terms, self._settings, present=resumed), resumed)]
        if resumed:
            actions.append(ReadHistory())
        if resumed and not self.permissions.subscribes_freely:
            actions += self._review()  # permissions may have changed while it was away
        return actions

    def _subscribed(self, packet_id: int, judged: Judgement, new: list[int]) -> Actions:
        if self._count is not None:  # else some were revoked in the meantime
            self._count += _weight_of(judged.parts[0].arguments[::2], new)
        judged.accept_part()
        return self._subscribe_next(packet_id, judged)

    def _unsubscribed(self, pending: PendingUnsubscribe, removed: list[int]) -> Actions:
        if self._count is not None:
            self._count -= _weight_of(pending.sent, removed)
        pending.removed += removed
        return self._unsubscribe_next(pending)

    def _failed(self, command: Command, error: ReplyError) -> Actions:
        lost = _LOST.get(error_code(error))
        is_needed = self.phase is not Phase.ENDED or command.kind in (Kind.OPEN, Kind.CLOSE)
        if lost is None and is_temporary(error) and is_needed:
            return [Retry(error)]
        self.pending.remove(command)
        if self.phase is Phase.ENDED:
            return []
        if lost is not None:
            return self.end(lost, str(error))
        if command.kind is Kind.OPEN and error_code(error) == "IDENTITY":  # only the log names the owner
            return self._refuse(self.version, Reason.NOT_AUTHORIZED, str(error), explain=False)
        if command.kind is Kind.OPEN:
            return self._refuse(self.version, _REASONS.get(error_code(error), Reason.IMPLEMENTATION), str(error))
        if error_code(error) == "STALECURSOR":  # another server than the one that wrote the cursor
            return self._list(command.kind, Listing(command.detail.packet))
        if command.kind is Kind.SUBSCRIBE:
            packet_id, judged = command.detail
            judged.refuse_part(str(error), _REASONS.get(error_code(error)))
            return self._subscribe_next(packet_id, judged)
        return self.end(Ending.SERVER_ERROR, f"{command.arguments[0]!r}: {error}")

    def change_permissions(self, permissions: Permissions) -> Actions:
        """Takes new permissions, and removes subscriptions that they do not allow.

        A will that they do not allow ends the connection and is not published: a CONNECT with it would be refused.
        """
        self.permissions = permissions
        if self._will_topic and not permissions.may_publish(self._will_topic):
            return self.expel(self._no_right_to_the_will, Reason.NOT_AUTHORIZED)
        return self._review() if self.phase is Phase.OPEN else []

    def expel(self, detail: str, reason: int) -> Actions:
        """Ends the connection of a client that may no longer connect.  Its will is not published.

        Args:
            detail: why, in words.
            reason: of the DISCONNECT.
        """
        self.publishes_will = False
        if self.phase is Phase.OPENING:
            return self._refuse(self.version, Reason.NOT_AUTHORIZED, detail, explain=False)
        return self.end(Ending.NOT_ALLOWED, detail, reason)

    def _review(self) -> Actions:
        return self._list(Kind.REVIEW, Listing())

    def _reviewed(self, present: Collection[bytes]) -> Work:
        denied = yield from self._in_slices(subscriptions.denied_filters(present, self.permissions))
        actions: Actions = []
        for at in range(0, len(denied), MOST_AT_ONCE):
            some = denied[at : at + MOST_AT_ONCE]
            arguments: tuple[Argument, ...] = ("SESSION.UNSUBSCRIBE", self.key, "EPOCH", self.epoch, *some)
            actions += self._send_command(Command(Kind.REVOKE, arguments))
        return actions

    def drop_pending(self) -> None:
        """Forgets all pending commands: the server has refused them for too long."""
        self.pending.clear()

    # ---- the end ---------------------------------------------------------------------------------------------------

    def end(self, ending: Ending, detail: str = "", reason: int | None = None) -> Actions:
        """Ends the connection; `reason`: of the DISCONNECT, if it differs from that of the ending."""
        if self.phase is Phase.ENDED:
            return []
        if self.phase in (Phase.AUTHENTICATING, Phase.OPENING) and ending.reason is not None:
            is_ending = ending in (Ending.DRAINED, Ending.SHUTDOWN)
            refusal = Reason.SERVER_UNAVAILABLE if is_ending else ending.reason
            return self._refuse(self.version, refusal, detail or ending.text)
        actions: Actions = []
        if self.phase is Phase.OPEN and ending.reason is not None:
            assert self.terms is not None
            reason = ending.reason if reason is None else reason
            reference = self._settings.drain_server_reference if ending is Ending.DRAINED else ""
            last = answers.disconnect(self.version, reason, detail or ending.text, self.terms.max_packet_out, reference)
            if last:
                actions.append(Send(last))
        self.phase = Phase.ENDED
        self.ending = ending
        self.pending = [command for command in self.pending if command.kind is Kind.OPEN]
        return [*actions, End(ending, detail)]

    def closed(self, sent_serial: int) -> Actions:
        """The answer to End; `sent_serial`: of the last message sent to the client, 0 for none."""
        if not self.epoch or self.ending is None or self.ending.loses_session:
            return []
        return self._close(sent_serial)

    def _close(self, sent_serial: int) -> Actions:
        assert self.terms is not None
        arguments: tuple[Argument, ...] = ("SESSION.CLOSE", self.key, "EPOCH", self.epoch)
        if self.final_expiry_s is not None:
            arguments += ("EXPIRY", self.final_expiry_s)
        if sent_serial:
            arguments += ("SENT", sent_serial)
        if self.publishes_will:
            arguments += ("WILL",)
        return self._send_command(Command(Kind.CLOSE, arguments))


# Reason codes for errors of the server.
_REASONS = {"FULL": Reason.QUOTA_EXCEEDED, "QUOTA": Reason.QUOTA_EXCEEDED, "NOPERM": Reason.NOT_AUTHORIZED}

_LOST = {"FENCED": Ending.TAKEN_OVER, "NOSESSION": Ending.GONE}


_HANDLERS: dict[type, Callable[[Session, Any], Actions]] = {
    mqtt.Subscribe: Session._on_subscribe,
    mqtt.Unsubscribe: Session._on_unsubscribe,
    mqtt.Disconnect: Session._on_disconnect,
    mqtt.Auth: Session._on_auth,
}


def _weight_of(filters: Sequence[Argument], chosen: Sequence[int]) -> int:
    """The weight of the filters that are marked with 1."""
    pairs = zip(filters, chosen, strict=True)
    return sum(weight(name) for name, is_chosen in pairs if is_chosen and isinstance(name, bytes))
