"""From the other broker to HoldMQ: a packet is answered only after the server has stored it.

    PUBLISH QoS 0   TOPIC.PUBLISH
    PUBLISH QoS 1   TOPIC.PUBLISH                 then PUBACK
    PUBLISH QoS 2   TOPIC.PUBLISH … PACKET pid    then PUBREC: the server stores the identifier in the same step,
                                                  and a repetition publishes nothing
    PUBREL          SESSION.COMPLETE pid          then PUBCOMP

A process may be killed between any two steps: the other broker repeats unanswered packets, and the server recognises
repetitions.  So QoS 2 stays exactly once, and QoS 1 at least once.

Invariants
 1. Packets are carried out and answered in the order in which they arrived (a batch of commands is one pipeline).
 2. At most max_pending packets or max_pending_bytes wait, and the packets of one read more.  Then nothing is read.
 3. A temporary error (no memory, a demoted server ...) ends the connection: the other broker sends everything again.
    A permanent error is answered, counted and logged: otherwise the message would block all others forever.
"""

import asyncio
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias, cast

from holdmq import AsyncReply, commands, errors
from holdmq.core import mqtt
from holdmq_bridge.base.command import is_temporary
from holdmq_bridge.base.logs import Log
from holdmq_bridge.uplink.counters import Counters
from holdmq_bridge.uplink.local import Local
from holdmq_bridge.uplink.path import Path
from holdmq_bridge.uplink.rules import Rules
from holdmq_bridge.uplink.settings import ConnectionSettings
from holdmq_bridge.uplink.upstream import LostError, Upstream

if TYPE_CHECKING:
    from hiredis import ReplyError

BATCH = 256
BATCH_BYTES = 1_048_576
UNSPECIFIED_ERROR = 0x80
SHOWN = 200  # characters of a topic in the log
TOPIC_NAME_INVALID = 0x90

log = Log("uplink")

Incoming: TypeAlias = mqtt.Publish | mqtt.Pubrel
Command: TypeAlias = commands.Command[int]


class Inward:
    """The incoming direction of a connection.  The connection calls `take`; `run` is a task."""

    def __init__(
        self,
        settings: ConnectionSettings,
        rules: Rules,
        path: Path,
        local: Local,
        upstream: Upstream,
        counters: Counters,
    ) -> None:
        self._settings = settings
        self._rules = rules
        self._path = path
        self._local = local
        self._upstream = upstream
        self._counters = counters
        self._waiting: deque[Incoming] = deque()
        self._waiting_bytes = 0
        self._has_packets = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._is_five = upstream.version == mqtt.PROTOCOL_LEVEL_5

    def take(self, packet: Incoming) -> None:
        """Takes a packet of the other broker."""
        self._waiting.append(packet)
        self._waiting_bytes += _size(packet)
        self._has_packets.set()
        self._idle.clear()
        self._counters.pending = len(self._waiting)
        if len(self._waiting) >= self._settings.max_pending or self._waiting_bytes >= self._settings.max_pending_bytes:
            self._upstream.pause()

    async def run(self) -> None:
        """Carries out packets until it is cancelled.

        Raises:
            LostError: the server temporarily refuses a message.
            redis.RedisError: the server is lost.
        """
        while True:
            await self._has_packets.wait()
            await self._carry_out(self._next_batch())
            if not self._waiting:
                self._has_packets.clear()
                self._idle.set()
            self._counters.pending = len(self._waiting)
            if (
                len(self._waiting) <= self._settings.max_pending // 2
                and self._waiting_bytes <= self._settings.max_pending_bytes // 2
            ):
                self._upstream.resume()

    async def drain(self) -> None:
        """Waits until all packets that were read are answered."""
        await self._idle.wait()

    def _next_batch(self) -> list[Incoming]:
        batch: list[Incoming] = []
        size = 0
        while self._waiting and len(batch) < BATCH and size < BATCH_BYTES:
            batch.append(self._waiting.popleft())
            size += _size(batch[-1])
        self._waiting_bytes -= size
        return batch

    async def _carry_out(self, batch: list[Incoming]) -> None:
        first = next((packet for packet in batch if isinstance(packet, mqtt.Publish) and packet.qos > 0), None)
        requests = [(packet, self._command_for(packet, is_first=packet is first)) for packet in batch]
        replies = iter(
            await self._local.run([command for _, command in requests if isinstance(command, commands.Command)])
        )
        answers = bytearray()
        try:
            for packet, command in requests:
                code = command if isinstance(command, int) else self._reason_code(packet, next(replies))
                answers += self._answer(packet, code)
        finally:
            self._upstream.write(bytes(answers))

    # ---- one packet ------------------------------------------------------------------------------------------------

    def _command_for(self, packet: Incoming, *, is_first: bool) -> Command | int:
        """The command for a packet; or the reason code of the answer if there is no command.

        Args:
            packet: which one.
            is_first: of its batch: all replies to those before it are here.
        """
        if isinstance(packet, mqtt.Pubrel):
            session = self._local.session
            return commands.session_complete(session.client_id, [packet.packet_id], epoch=session.epoch)
        self._counters.received += 1
        topic = packet.topic.decode()
        mapped = self._rules.inward(topic)
        if mapped is None:  # by an old subscription that is not removed yet
            return self._refuse(topic, "no topic line matches it")
        properties = self._path.inward(packet.properties) if self._is_five else mqtt.NO_PROPERTIES
        if properties is None:
            self._counters.looped += 1
            return 0
        try:
            return self._publish(packet, mapped.topic, properties, is_retry=is_first)
        except errors.ArgumentError as error:
            return self._refuse(topic, str(error), TOPIC_NAME_INVALID)

    def _publish(self, packet: mqtt.Publish, topic: str, properties: mqtt.Properties, *, is_retry: bool) -> Command:
        expiry = properties.message_expiry_interval
        kept = properties
        if expiry is not None or properties.subscription_identifiers or properties.topic_alias is not None:
            kept = replace(properties, message_expiry_interval=None, subscription_identifiers=(), topic_alias=None)
        return commands.topic_publish(
            topic,
            packet.payload,
            qos=packet.qos,
            retain=packet.retain,
            ttl=None if expiry is None else min(max(expiry, 1), commands.MAX_TTL_S),
            publisher=self._local.publisher(packet.packet_id if packet.qos == 2 else None, is_retry=is_retry),
            properties=mqtt.encode_properties(kept, mqtt.PacketType.PUBLISH),
        )

    def _reason_code(self, packet: Incoming, reply: AsyncReply[int]) -> int:
        """The reason code for the server's reply."""
        error = reply.error
        if error is None:
            if isinstance(packet, mqtt.Publish):
                self._count(reply.result())
            return 0
        if isinstance(error, errors.FencedError | errors.NoSessionError):
            raise error
        permanent = isinstance(error, errors.CommandError) and not is_temporary(cast("ReplyError", error))
        if not permanent or not isinstance(packet, mqtt.Publish):
            if isinstance(packet, mqtt.Publish) and packet.qos == 0:
                self._counters.dropped += 1
            raise LostError(f"the server cannot take it now: {error}") from error
        return self._refuse(packet.topic.decode(), str(error), UNSPECIFIED_ERROR)

    def _count(self, reached: int) -> None:
        if reached < 0:
            self._counters.repeated += 1
        else:
            self._counters.published += 1

    def _refuse(self, topic: str, why: str, code: int = 0) -> int:
        self._counters.refused += 1
        log.warning(
            "a message from the other broker was refused",
            link=self._settings.name,
            topic=topic[:SHOWN],
            error=why[:SHOWN],
        )
        return code

    def _answer(self, packet: Incoming, code: int) -> bytes:
        if isinstance(packet, mqtt.Pubrel):
            return mqtt.encode_pubcomp(packet.packet_id)
        if packet.qos == 0:
            return b""
        encode = mqtt.encode_puback if packet.qos == 1 else mqtt.encode_pubrec
        return encode(packet.packet_id, code if self._is_five else 0, version=self._upstream.version)


def _size(packet: Incoming) -> int:
    return len(packet.payload) + len(packet.topic) if isinstance(packet, mqtt.Publish) else 0
