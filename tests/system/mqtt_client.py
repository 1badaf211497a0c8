"""An MQTT client, 3.1.1 and 5.0, that keeps its session honestly and watches whether the server does, too.

    Client ── one Session (what an honest client keeps on its disk) ── connections that come and go

It is a part of the fault test: it loses connections, abandons them, takes its session over from itself and never
forgets what it owes.  What it keeps is what the standard says (section 4.1 of both versions), and it says so when the
server breaks a rule.

Laws
 1. A message is noted (`Watcher.received`) before it is acknowledged; with QoS 2 at its first PUBLISH.
 2. After a reconnect with the session present everything unacknowledged is sent again in its order, a PUBLISH with DUP,
    a PUBREL where the PUBREC was there [MQTT-4.4.0-1].
 3. Of several connections only the newest counts: what an older one still brings is dropped.
 4. The packets are the codec's of the core; which of them may come when is checked here.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from holdmq.core import mqtt
from holdmq.core.mqtt import NO_PROPERTIES, PROTOCOL_LEVEL_5, Properties
from tests.system.mqtt_connection import Connection, Message, Outgoing, Session

HOST = "127.0.0.1"
CONNECT_TIMEOUT_S = 4.0
SESSION_EXPIRY_S = 3600
KEEP_ALIVE_S = 10
MAX_PACKET_ID = 65535
SUCCESS = 0
FAILURE = 0x80  # from here on a code tells of a failure
IDENTIFIER_NOT_FOUND = 0x92
SERVER_BUSY = (3, 0x88, 0x89, 0x97)  # refusals that pass: 3 of 3.1.1, the others of 5.0
PASSING_DISCONNECTS = (0x8B, 0x8D, 0x8E, 0x88, 0x89, 0x80, 0x83, 0x97)  # shutting down, taken over, busy ...


class NoConnectionError(Exception):
    """The server was not reached, did not answer in time, or said that it is not available."""


class Watcher(Protocol):
    """Who is told what happens."""

    def received(self, name: str, message: mqtt.Publish) -> None:
        """A message came that the session has not had."""

    def released(self, name: str, message: Message) -> None:
        """The PUBREL of a message came."""

    def note(self, name: str, what: str, *, message: Message | None = None, packet_id: int = 0) -> None:
        """A step in the life of a message, or of the connection."""

    def finding(self, name: str, what: str, message: Message | None = None) -> None:
        """The server broke a rule."""


class Client:
    """One client id.

    Args:
        name: the client id.
        watcher: who is told.
        version: protocol level, 4 (3.1.1) or 5 (5.0).
        receive_maximum: of 5.0, what the server may send without an acknowledgement; None: no such property.
        topic_alias_maximum: of 5.0.
        first_id: the packet identifier behind which it begins, with rolling_ids.
        rolling_ids: hand packet identifiers out one after the other; else always the lowest that is free.
        answer_after_s: how long acknowledgements are kept back.
    """

    def __init__(
        self,
        name: str,
        watcher: Watcher,
        *,
        version: int = mqtt.PROTOCOL_LEVEL,
        receive_maximum: int | None = None,
        topic_alias_maximum: int | None = None,
        rolling_ids: bool = True,
        first_id: int = 0,
        answer_after_s: float = 0.0,
    ) -> None:
        self.name = name
        self.version = version
        self.session = Session()
        self.zombies: list[Connection] = []  # older connections that the server has to close
        self.connection: Connection | None = None
        self._watcher = watcher
        self._receive_maximum = receive_maximum
        self._topic_alias_maximum = topic_alias_maximum
        self._rolling_ids = rolling_ids
        self._answer_after_s = answer_after_s
        self._last_id = first_id
        self.will: mqtt.Will | None = None  # of the next connection
        self._answers: dict[int, asyncio.Future[mqtt.Suback]] = {}
        self._handlers: dict[type[mqtt.Packet], Callable[[Connection, Any], None]] = {
            mqtt.Publish: self._published,
            mqtt.Puback: lambda connection, packet: self._acknowledged(connection, packet, 1),
            mqtt.Pubrec: lambda connection, packet: self._acknowledged(connection, packet, 2),
            mqtt.Pubrel: self._released,
            mqtt.Pubcomp: self._completed,
            mqtt.Suback: self._suback,
            mqtt.Pingresp: lambda _connection, _packet: None,
            mqtt.Disconnect: self._disconnected,
        }

    # ---- connections -----------------------------------------------------------------------------------------------

    @property
    def connected(self) -> bool:
        """Is there a connection on which the server has accepted us?"""
        return self.connection is not None and not self.connection.closed.is_set()

    async def connect(self, port: int, *, clean: bool = False, takeover: bool = False) -> bool:
        """Connects; returns whether the session was present.

        Args:
            port: of the bridge, on loopback.
            clean: begin with a new session.
            takeover: leave the present connection open: the server has to close it.

        Raises:
            NoConnectionError: it did not work.
        """
        self._leave(takeover=takeover)
        loop = asyncio.get_running_loop()
        connection = Connection(self.version, self._packet, port, clean=clean)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await loop.create_connection(lambda: connection, HOST, port)
                connection.send(self._connect_packet(clean=clean))
                self._watcher.note(self.name, f"CONNECT to {port}{' clean' if clean else ''}")
                connack = await connection.connack
        except (OSError, TimeoutError) as error:
            connection.abort()
            raise NoConnectionError(f"{type(error).__name__}: {error}") from error
        if connack.code != SUCCESS:
            connection.abort()
            if connack.code not in SERVER_BUSY:
                self._watcher.finding(self.name, f"CONNACK with code {connack.code:#x}")
            raise NoConnectionError(f"CONNACK {connack.code:#x}")
        return self.connected

    def _connect_packet(self, *, clean: bool) -> mqtt.Connect:
        properties = NO_PROPERTIES
        if self.version == PROTOCOL_LEVEL_5:
            properties = Properties(
                session_expiry_interval=None if clean else SESSION_EXPIRY_S,
                receive_maximum=self._receive_maximum,
                topic_alias_maximum=self._topic_alias_maximum,
            )
        return mqtt.Connect(
            self.name.encode(), clean, KEEP_ALIVE_S, self.will, level=self.version, properties=properties
        )

    def _leave(self, *, takeover: bool) -> None:
        former, self.connection = self.connection, None
        self._forget_answers()
        if former is None or former.closed.is_set():
            return
        if takeover:
            self.zombies.append(former)
        else:
            former.abort()

    def _forget_answers(self) -> None:
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(ConnectionResetError("left"))
        self._answers.clear()

    def disconnect(self) -> None:
        """Says goodbye; a session that is not clean stays."""
        if self.connection is not None:
            self._watcher.note(self.name, "DISCONNECT")
            self.connection.send(mqtt.Disconnect())
            self.connection.close()
        self.connection = None
        self._forget_answers()

    def abandon(self, why: str) -> None:
        """Closes the socket without a word."""
        if self.connected:
            self._watcher.note(self.name, f"abandons the connection: {why}")
        self._leave(takeover=False)

    def close(self) -> None:
        """Closes all that is open."""
        self._leave(takeover=False)
        for zombie in self.zombies:
            zombie.abort()

    def open_zombies(self) -> list[Connection]:
        """Older connections that the server has not closed yet."""
        self.zombies = [zombie for zombie in self.zombies if not zombie.closed.is_set()]
        return self.zombies

    def look_alive(self, patience_s: float) -> bool:
        """Pings now and then; False if nothing was heard for so long."""
        connection = self.connection
        if connection is None or connection.closed.is_set():
            return False
        now = asyncio.get_running_loop().time()
        quiet_s = now - connection.heard_at
        if quiet_s > patience_s / 4 and now - connection.pinged_at > patience_s / 4:
            connection.pinged_at = now
            connection.send(mqtt.Pingreq())
        return quiet_s <= patience_s

    # ---- outgoing --------------------------------------------------------------------------------------------------

    def publish(self, message: Message, qos: int, *, retain: bool = False, expires: bool = False) -> None:
        """Publishes with QoS 1 or 2; from now on it is owed until the server has it.

        Args:
            message: topic and payload.
            qos: 1 or 2.
            retain: it is to be kept.
            expires: in 5.0 it has an expiry interval, longer than any run.
        """
        assert self.connection is not None
        outgoing = Outgoing(message, qos, retain, expires and self.version == PROTOCOL_LEVEL_5)
        packet_id = self._free_id()
        self.session.publishing[packet_id] = outgoing
        self._send_publish(packet_id, outgoing, dup=False)

    def _send_publish(self, packet_id: int, outgoing: Outgoing, *, dup: bool) -> None:
        assert self.connection is not None
        message = outgoing.message
        self._watcher.note(
            self.name,
            f"PUBLISH{' DUP' if dup else ''} qos {outgoing.qos} to {self.connection.port}",
            message=message,
            packet_id=packet_id,
        )
        properties = Properties(message_expiry_interval=SESSION_EXPIRY_S) if outgoing.expires else NO_PROPERTIES
        self.connection.send(
            mqtt.Publish(message.topic, message.payload, outgoing.qos, outgoing.retain, dup, packet_id, properties)
        )

    def _free_id(self) -> int:
        session = self.session
        candidate = self._last_id if self._rolling_ids else 0
        while True:
            candidate = candidate % MAX_PACKET_ID + 1
            if candidate not in session.publishing and candidate not in session.releasing:
                self._last_id = candidate
                return candidate

    def _acknowledged(self, connection: Connection, packet: mqtt.Puback | mqtt.Pubrec, qos: int) -> None:
        name = type(packet).__name__.upper()
        publishing = self.session.publishing
        expected = next((number for number, outgoing in publishing.items() if outgoing.qos == qos), 0)
        outgoing = publishing.get(packet.packet_id)
        if outgoing is None or outgoing.qos != qos:
            self._watcher.finding(self.name, f"{name} {packet.packet_id} for nothing; expected {expected}")
            return
        if packet.packet_id != expected:  # [MQTT-4.6.0-2], [MQTT-4.6.0-3]
            self._watcher.finding(self.name, f"{name} {packet.packet_id} before {expected}", outgoing.message)
        if packet.reason_code >= FAILURE:
            self._watcher.finding(self.name, f"{name} with reason {packet.reason_code:#x}", outgoing.message)
        what = f"{name} from {connection.port}"
        self._watcher.note(self.name, what, message=outgoing.message, packet_id=packet.packet_id)
        del publishing[packet.packet_id]
        if qos == 2:
            self.session.releasing[packet.packet_id] = outgoing
            connection.send(mqtt.Pubrel(packet.packet_id))

    def _completed(self, _connection: Connection, packet: mqtt.Pubcomp) -> None:
        outgoing = self.session.releasing.pop(packet.packet_id, None)
        if outgoing is None:
            self._watcher.finding(self.name, f"PUBCOMP {packet.packet_id} for nothing")
            return
        self._watcher.note(self.name, "PUBCOMP", message=outgoing.message, packet_id=packet.packet_id)
        if packet.reason_code != SUCCESS:  # after a resume, too
            self._watcher.finding(self.name, f"PUBCOMP with reason {packet.reason_code:#x}", outgoing.message)

    async def subscribe(self, subscriptions: Iterable[mqtt.Subscription], timeout_s: float) -> None:
        """Subscribes and waits for the SUBACK.

        Raises:
            NoConnectionError: the connection ended before, or the server was silent for so long.
        """
        if self.connection is None:
            raise NoConnectionError("closed before the SUBSCRIBE")
        packet_id = self._free_id()
        answer: asyncio.Future[mqtt.Suback] = asyncio.get_running_loop().create_future()
        self._answers[packet_id] = answer
        wanted = list(subscriptions)
        self.connection.send(mqtt.Subscribe(packet_id, wanted))
        try:
            async with asyncio.timeout(timeout_s):
                codes = (await answer).codes
        except (TimeoutError, ConnectionResetError) as error:
            raise NoConnectionError(f"no SUBACK: {error}") from error
        finally:
            self._answers.pop(packet_id, None)
        if codes != [entry.qos for entry in wanted]:
            self._watcher.finding(self.name, f"SUBACK {codes} to {wanted}")
        self.session.subscribed |= {entry.topic_filter for entry in wanted}

    # ---- incoming --------------------------------------------------------------------------------------------------

    def _packet(self, connection: Connection, packet: mqtt.Packet) -> None:
        if isinstance(packet, mqtt.Connack):
            self._accepted(connection, packet)
        elif connection is self.connection:
            handler = self._handlers.get(type(packet))
            if handler is None:
                self._watcher.finding(self.name, f"{type(packet).__name__}: no server sends that")
            else:
                handler(connection, packet)

    def _suback(self, _connection: Connection, packet: mqtt.Suback) -> None:
        answer = self._answers.pop(packet.packet_id, None)
        if answer is not None and not answer.done():
            answer.set_result(packet)

    def _disconnected(self, _connection: Connection, packet: mqtt.Disconnect) -> None:
        self._watcher.note(self.name, f"DISCONNECT {packet.reason_code:#x} from the server")
        if packet.reason_code not in PASSING_DISCONNECTS:
            reason = packet.properties.reason_string
            self._watcher.finding(self.name, f"DISCONNECT {packet.reason_code:#x} from the server: {reason!r}")

    def _accepted(self, connection: Connection, packet: mqtt.Connack) -> None:
        if connection.connack.done():
            if not connection.connack.cancelled():
                self._watcher.finding(self.name, "a second CONNACK")
            return
        connection.connack.set_result(packet)
        if packet.code != SUCCESS:
            return
        # What follows in the same bytes belongs to this connection: nothing must wait for the task that called.
        self.connection = connection
        session = self.session
        self._watcher.note(self.name, f"CONNACK from {connection.port}, session present {packet.session_present}")
        if packet.session_present:
            self._resume(connection)
            return
        if session.established and not connection.clean:
            owed = f"{len(session.publishing)} to publish, {len(session.releasing)} to release"
            self._watcher.finding(self.name, f"the session is gone: {owed}, {len(session.received)} received")
        self.session = Session(established=not connection.clean)

    def _resume(self, connection: Connection) -> None:
        session = self.session
        session.established = True
        for packet_id, outgoing in session.publishing.items():
            self._send_publish(packet_id, outgoing, dup=True)
        for packet_id in session.releasing:
            connection.send(mqtt.Pubrel(packet_id))

    def _published(self, connection: Connection, packet: mqtt.Publish) -> None:
        if packet.properties.topic_alias:
            if packet.topic:
                connection.aliases[packet.properties.topic_alias] = packet.topic
            packet.topic = connection.aliases.get(packet.properties.topic_alias, b"")
        message = Message(packet.topic, packet.payload)
        what = f"gets{' DUP' if packet.dup else ''} qos {packet.qos} from {connection.port}"
        self._watcher.note(self.name, what, message=message, packet_id=packet.packet_id)
        if packet.qos == 0:
            self._watcher.received(self.name, packet)
            return
        self._check_identifier(connection, packet, message)
        if packet.qos == 1:
            self._watcher.received(self.name, packet)
            self.session.unanswered[packet.packet_id] = message
            self._answer(connection, mqtt.Puback(packet.packet_id), message)
            return
        if packet.packet_id not in self.session.received:
            self.session.received[packet.packet_id] = message
            self._watcher.received(self.name, packet)
        self._answer(connection, mqtt.Pubrec(packet.packet_id), message)

    def _check_identifier(self, connection: Connection, packet: mqtt.Publish, message: Message) -> None:
        packet_id = packet.packet_id
        if packet_id in connection.unacknowledged:
            self._watcher.finding(self.name, f"identifier {packet_id} used again on the same connection", message)
        connection.unacknowledged.add(packet_id)
        if self._receive_maximum is not None and len(connection.unacknowledged) > self._receive_maximum:
            self._watcher.finding(self.name, f"more than {self._receive_maximum} messages in flight", message)
        known = self.session.received.get(packet_id) or self.session.unanswered.get(packet_id)
        if known is not None and known != message:
            self._watcher.finding(self.name, f"identifier {packet_id} belongs to {known.payload[:20]!r} still", message)
        elif known is not None and not packet.dup and packet_id not in self.session.doubtful:  # [MQTT-3.3.1-1]
            self._watcher.finding(self.name, f"identifier {packet_id} again, without DUP", message)
        elif known is None and packet.dup and not self.session.established:
            self._watcher.finding(self.name, f"identifier {packet_id} with DUP in a new session", message)

    def _answer(self, connection: Connection, packet: mqtt.Puback | mqtt.Pubrec, message: Message) -> None:
        if self._answer_after_s:
            asyncio.get_running_loop().call_later(self._answer_after_s, self._answer_now, connection, packet, message)
        else:
            self._answer_now(connection, packet, message)

    def _answer_now(self, connection: Connection, packet: mqtt.Puback | mqtt.Pubrec, message: Message) -> None:
        if connection is not self.connection or connection.closed.is_set():
            return  # it will come again
        self._watcher.note(
            self.name, f"sends {type(packet).__name__.upper()}", message=message, packet_id=packet.packet_id
        )
        if isinstance(packet, mqtt.Puback):
            connection.unacknowledged.discard(packet.packet_id)
            self.session.unanswered.pop(packet.packet_id, None)
        connection.send(packet)

    def _released(self, connection: Connection, packet: mqtt.Pubrel) -> None:
        message = self.session.received.pop(packet.packet_id, None)
        self._watcher.note(self.name, "gets PUBREL", message=message, packet_id=packet.packet_id)
        connection.unacknowledged.discard(packet.packet_id)
        self.session.doubtful.discard(packet.packet_id)
        if message is not None:
            self._watcher.released(self.name, message)
        unknown = message is None and self.version == PROTOCOL_LEVEL_5
        connection.send(mqtt.Pubcomp(packet.packet_id, IDENTIFIER_NOT_FOUND if unknown else SUCCESS))
