"""From HoldMQ to the other broker: a message leaves the link's queue only when the other broker has it.

    FETCH WINDOW     returns messages and marks them as in flight      then PUBLISH, with the queue's packet identifier
    PUBACK           SESSION.ACK pid
    PUBREC           SESSION.RELEASE pid                               then PUBREL
    PUBCOMP          SESSION.ACK pid

The session stores the packet identifier and the state of each exchange.  After a lost connection or a crash, entries in
flight are sent again with the same identifiers (PUBLISH with DUP, or PUBREL), before new ones.  That keeps QoS 2
exactly once.  When the session is taken over from a dead process, its whole queue counts as in flight.  It is resumed
page by page, however long it is.

Messages of QoS 0 are not stored: they come through the inbox, and go out if there is room.

Invariants
 1. Never more messages in flight than the window: the smaller of max_inflight and the other broker's receive maximum.
 2. Entries go out in the order of the queue.
 3. A message that the other broker refuses for good (too large, for example) is acknowledged, counted and logged:
    otherwise it would block all others forever.  An exceeded quota is temporary: the connection ends, and is retried.
"""

import asyncio
import time
from dataclasses import replace

from holdmq import Entry, EntryState, Message, Page, commands
from holdmq.core import Delivery, DeliveryKind, mqtt
from holdmq.errors import ArgumentError
from holdmq_bridge.base.logs import Log
from holdmq_bridge.uplink.counters import Counters
from holdmq_bridge.uplink.local import Local
from holdmq_bridge.uplink.path import Path
from holdmq_bridge.uplink.rules import Rules
from holdmq_bridge.uplink.settings import ConnectionSettings
from holdmq_bridge.uplink.upstream import Accepted, Upstream

PAGE_BYTES = 1_048_576
FAILURE = 0x80  # and reason codes above
QUOTA_EXCEEDED = 0x97
QOS_BITS = 0x06  # of the first byte of a PUBLISH

log = Log("uplink")


class Outward:
    """The outgoing direction of a connection.  The connection calls `on_...`; `run` is a task.

    Args:
        settings: of the link.
        rules: topic lines.
        path: marks messages.
        local: the session.
        upstream: the connection.
        counters: of the link.
        accepted: the CONNACK.  Without a session the other broker has forgotten pending exchanges.
    """

    def __init__(
        self,
        settings: ConnectionSettings,
        rules: Rules,
        path: Path,
        local: Local,
        upstream: Upstream,
        counters: Counters,
        accepted: Accepted,
    ) -> None:
        self._settings = settings
        self._rules = rules
        self._path = path
        self._local = local
        self._upstream = upstream
        self._counters = counters
        self._accepted = accepted
        self._is_five = upstream.version == mqtt.PROTOCOL_LEVEL_5
        self._window = min(settings.max_inflight, accepted.receive_maximum)
        self._inflight: set[int] = set()
        self._resuming = True
        self._after = 0  # serial up to which the queue is resumed
        self._may_have_more = True
        self._done: list[int] = []  # to be acknowledged at the server
        self._received: list[int] = []  # by a PUBREC
        self._awake = asyncio.Event()
        self._awake.set()

    # ---- events ----------------------------------------------------------------------------------------------------

    def on_delivery(self, delivery: Delivery | None) -> None:
        """A delivery of the inbox; or None: fetch in case a notice was lost."""
        if delivery is not None and delivery.kind is DeliveryKind.TRANSIENT:
            self._send_transient(delivery)
            return
        self._may_have_more = True
        self._awake.set()

    def on_puback(self, packet: mqtt.Puback) -> None:
        """QoS 1: the other broker has the message, or refuses it."""
        if packet.packet_id in self._inflight:
            self._settle(packet.packet_id, packet.reason_code)

    def on_pubrec(self, packet: mqtt.Pubrec) -> None:
        """QoS 2: the other broker has the message, or refuses it."""
        if packet.packet_id in self._inflight:
            if packet.reason_code >= FAILURE:
                self._settle(packet.packet_id, packet.reason_code)
            else:
                self._received.append(packet.packet_id)
                self._awake.set()
        elif not self._resuming:  # of an exchange that has ended here
            self._upstream.write(mqtt.encode_pubrel(packet.packet_id))

    def on_pubcomp(self, packet: mqtt.Pubcomp) -> None:
        """QoS 2: the exchange has ended, also if the identifier was unknown (0x92)."""
        if packet.packet_id in self._inflight:
            self._settle(packet.packet_id, 0)

    def _settle(self, packet_id: int, code: int) -> None:
        if code == QUOTA_EXCEEDED:
            self._upstream.abort()
        elif code >= FAILURE:
            self._give_up(packet_id, f"the other broker refused it: reason code 0x{code:02X}")
        else:
            self._counters.acknowledged += 1
            self._finish(packet_id)

    def _give_up(self, packet_id: int, why: str) -> None:
        self._counters.refused += 1
        log.warning(
            "a message to the other broker was given up", link=self._settings.name, packet_id=packet_id, error=why
        )
        self._finish(packet_id)

    def _finish(self, packet_id: int) -> None:
        self._done.append(packet_id)
        self._awake.set()

    # ---- the queue -------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Keeps the window full until it is cancelled.

        Raises:
            redis.RedisError: the server is lost, or another process has the session.
        """
        while True:
            await self._awake.wait()
            self._awake.clear()
            await self._turn()
            self._counters.inflight = len(self._inflight)

    async def _turn(self) -> None:
        """One round trip: removes acknowledged messages from the queue, and fetches the next ones."""
        received, self._received = self._received, []
        done, self._done = self._done, []
        session = self._local.session
        requests: list[commands.Command[int] | commands.Command[Page]] = []
        if received:
            requests.append(commands.session_release(session.client_id, received, epoch=session.epoch))
        if done:
            requests.append(commands.session_ack(session.client_id, done, epoch=session.epoch))
        self._inflight.difference_update(done)
        fetch = self._fetch()
        if fetch is not None:
            requests.append(fetch)
        replies = await self._local.run(requests)
        for reply in replies:
            if reply.error is not None:
                raise reply.error
        if received:
            self._upstream.write(b"".join(mqtt.encode_pubrel(packet_id) for packet_id in received))
        if fetch is not None:
            self._take(replies[-1].result())

    def _fetch(self) -> commands.Command[Page] | None:
        room = self._window - len(self._inflight)
        if room <= 0 or not self._may_have_more:
            return None
        session = self._local.session
        after, window = (self._after, None) if self._resuming else (0, self._window)
        return commands.session_fetch(
            session.client_id, after=after, window=window, count=room, max_bytes=PAGE_BYTES, epoch=session.epoch
        )

    def _take(self, page: Page) -> None:
        self._may_have_more = page.more
        for entry in page.entries:
            if self._resuming and entry.state is EntryState.QUEUED:
                self._end_resuming()
                return
            self._after = entry.serial
            self._send(entry)
        if self._resuming and not page.more:
            self._end_resuming()
        elif page.more and (page.entries or page.expired):
            self._awake.set()

    def _end_resuming(self) -> None:
        """All messages in flight are sent again: fetches new ones from now on."""
        self._resuming = False
        self._may_have_more = True
        self._awake.set()

    # ---- one message -----------------------------------------------------------------------------------------------

    def _send(self, entry: Entry) -> None:
        pid = entry.packet_id
        self._inflight.add(pid)
        try:
            message = entry.message
        except ArgumentError as error:
            self._give_up(pid, f"it is not a message of MQTT: {error}")
            return
        if message is None:  # released
            if self._accepted.session_present:
                self._upstream.write(mqtt.encode_pubrel(pid))
            else:  # the other broker has the message, and has lost the exchange with its session
                self._finish(pid)
            return
        packet = self._packet(message, pid, was_sent=self._resuming)
        if isinstance(packet, str):
            self._give_up(pid, packet)
        elif packet is None:
            self._finish(pid)
        else:
            self._counters.sent += 1
            self._upstream.write(packet)
            if not packet[0] & QOS_BITS:  # sent with QoS 0
                self._finish(pid)

    def _send_transient(self, delivery: Delivery) -> None:
        if self._upstream.backlog > self._settings.max_pending_bytes:
            self._counters.dropped += 1
            return
        packet = self._packet(Message.from_record(delivery.record), 0, was_sent=False)
        if isinstance(packet, bytes):
            self._counters.sent += 1
            self._upstream.write(packet)

    def _packet(self, message: Message, packet_id: int, *, was_sent: bool) -> bytes | str | None:
        """The PUBLISH; or a text that says why the message is refused; or None if it is dropped.

        `was_sent`: it may have been sent before, and so is sent again even if it has expired.
        """
        mapped = self._rules.outward(message.topic)
        if mapped is None:
            return f"no topic line matches {message.topic}"
        left_s = _seconds_left(message)
        if left_s is not None and left_s <= 0 and not was_sent:
            return None
        properties = self._properties(message, left_s)
        if properties is None:
            self._counters.looped += 1
            return None
        qos = min(message.qos, mapped.qos, self._accepted.maximum_qos)
        try:
            packet = mqtt.encode_publish(
                mapped.topic,
                message.payload,
                qos,
                message.retain and self._accepted.retain_available,
                qos > 0 and was_sent and self._accepted.session_present,
                packet_id if qos else 0,
                properties,
                version=self._upstream.version,
            )
        except mqtt.InvalidPacketError as error:
            return str(error)
        if len(packet) > self._accepted.maximum_packet_size:
            return f"{len(packet)} bytes; the other broker takes {self._accepted.maximum_packet_size}"
        return packet

    def _properties(self, message: Message, left_s: int | None) -> mqtt.Properties | None:
        if not self._is_five:
            return mqtt.NO_PROPERTIES
        marked = self._path.outward(mqtt.decode_properties(message.properties))
        if marked is None or left_s is None:
            return marked
        return replace(marked, message_expiry_interval=max(left_s, 1))


def _seconds_left(message: Message) -> int | None:
    """Seconds until it expires, rounded up; None: it does not expire."""
    if message.expires_ms is None:
        return None
    return (message.expires_ms - int(time.time() * 1000) + 999) // 1000
