"""One link: connects both sides, and reconnects whenever one of them is lost.

    run ──► Local (owns the session) ──► Upstream (connected) ──► Inward, Outward
     ▲          │ lost: pause, retry        │ lost: pause, retry; the session stays open
     └──────────┘                           │

After a start, a crash or a loss the steps are the same: open the session, connect, compare states, subscribe, resume.
The comparison:

    the stored state is of this broker and client id  ──► ask for the session there
        it exists       ──► resume: messages in flight are sent again, received identifiers are known
        it does not     ──► received identifiers are forgotten, messages in flight are sent as new
    the state is of another one (a new link, another address, or the session at HoldMQ was lost)
        ──► begin with a clean session there, as a client without state must (MQTT 5.0, [MQTT-3.2.2-4])

Invariants
 1. A link ends only by `stop`, or when another process has its session.
 2. While the other broker is away, outgoing messages wait in the session.  While the server is away, nothing is read
    from the other broker, so that it keeps incoming messages.
"""

import asyncio
import os
import random
import secrets
import socket
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any, TypeVar

from redis.exceptions import RedisError

from holdmq.core import Delivery, mqtt
from holdmq_bridge.base.backoff import Backoff
from holdmq_bridge.base.logs import Log
from holdmq_bridge.uplink.counters import Counters
from holdmq_bridge.uplink.inward import Inward
from holdmq_bridge.uplink.local import Local, TakenOverError, end_tasks
from holdmq_bridge.uplink.outward import Outward
from holdmq_bridge.uplink.path import Path
from holdmq_bridge.uplink.primary import Primary
from holdmq_bridge.uplink.rules import Rules
from holdmq_bridge.uplink.settings import MAX_PACKET_ID, ConnectionSettings
from holdmq_bridge.uplink.upstream import Accepted, Hello, LostError, RefusedError, Upstream

FILTERS_AT_ONCE = 50  # in one SUBSCRIBE
FAILURE = 0x80
STOP_S = 5.0
STEADY_S = 5.0  # a longer connection resets the pauses

T = TypeVar("T")

log = Log("uplink")

# Errors of the other broker.
_UPSTREAM_ERRORS = (LostError, RefusedError, OSError)


class Link:
    """Carries messages between the server and one other broker.

    Args:
        settings: of the link.
        primary: the server.
        broker_id: of this broker; empty: the one that is stored in the server.
    """

    def __init__(self, settings: ConnectionSettings, primary: Primary, broker_id: str = "") -> None:
        self.counters = Counters()
        self._settings = settings
        self._primary = primary
        self._broker_id = broker_id
        self._rules = Rules(settings.topics)
        self._owner = f"link-{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        host, port = settings.host_and_port()
        self._upstream_identity = f"{settings.remote_client_id()} {host}:{port}"
        self._had_session = False  # this process has opened it before
        self._bridge_mode = settings.try_private and settings.protocol == "3.1.1"
        self._outward: Outward | None = None
        self._inward: Inward | None = None
        self._early: list[mqtt.Packet] = []
        self._answer: asyncio.Future[list[int]] | None = None  # to SUBSCRIBE or UNSUBSCRIBE
        self._answer_id = 0
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Makes `run` end in order."""
        self._stopping.set()

    # ---- this side -------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Runs the link until `stop`.

        Raises:
            TakenOverError: another process has the link.
        """
        backoff = self._new_backoff()
        while not self._stopping.is_set():
            began = asyncio.get_running_loop().time()
            try:
                async with Local(
                    self._settings,
                    self._primary,
                    self._owner,
                    had_session=self._had_session,
                    on_delivery=self._on_delivery,
                ) as local:
                    self._had_session = True
                    await self._keep_connected(local)
            except TakenOverError:
                self.counters.takeovers += 1
                raise
            except (RedisError, OSError) as error:
                pause = self._next_pause(backoff, began)
                log.warning(
                    "the HoldMQ server cannot be used", error=error, again_in_s=round(pause, 3), **self._facts()
                )
                await self._pause(pause)

    async def _keep_connected(self, local: Local) -> None:
        """Connects to the other broker, again and again, while this process owns the session."""
        path = Path(self._broker_id or await local.broker_id(), self._settings.max_hops)
        backoff = self._new_backoff()
        while not self._stopping.is_set():
            began = asyncio.get_running_loop().time()
            try:
                await self._connection(local, path)
            except _UPSTREAM_ERRORS as error:
                pause = self._next_pause(backoff, began)
                log.warning(
                    "no connection to the other broker", error=error, again_in_s=round(pause, 3), **self._facts()
                )
                await local.publish_state(b"0")
                await self._while_owned(local, self._pause(pause))
        await local.close()

    async def _while_owned(self, local: Local, work: Coroutine[Any, Any, None]) -> None:
        """Does the work while this process owns the session."""
        task = asyncio.create_task(work)
        try:
            await asyncio.wait([task, *local.tasks], return_when=asyncio.FIRST_COMPLETED)
            local.check()
            await task
        finally:
            await end_tasks([task])

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            return

    def _new_backoff(self) -> Backoff:
        return Backoff(self._settings.retry_first_s, self._settings.retry_max_s, random.uniform)

    def _next_pause(self, backoff: Backoff, began: float) -> float:
        if asyncio.get_running_loop().time() - began >= STEADY_S:
            backoff.reset()
        return backoff.next()

    def _facts(self) -> dict[str, str]:
        return {"link": self._settings.name, "upstream": self._settings.address}

    def _on_delivery(self, delivery: Delivery | None) -> None:
        if self._outward is not None:
            self._outward.on_delivery(delivery)

    # ---- the other side --------------------------------------------------------------------------------------------

    async def _connection(self, local: Local, path: Path) -> None:
        """Makes and uses one connection to the other broker."""
        if self._settings.clean_session:
            await local.begin_clean()
        known = await local.upstream_filters(self._upstream_identity)
        await local.subscribe(self._rules.local_filters)
        upstream, accepted = await self._connect(known is None)
        try:
            self._inward = Inward(self._settings, self._rules, path, local, upstream, self.counters)
            early, self._early = self._early, []
            self._on_packets(early)
            await self._while_owned(local, self._agree(local, upstream, accepted, known or {}))
            await self._exchange(local, upstream, accepted, path)
        finally:
            self._outward = self._inward = None
            self._early = []
            upstream.abort()

    async def _connect(self, clean: bool) -> tuple[Upstream, Accepted]:
        keep = not self._settings.clean_session
        if clean and keep:
            # A separate connection removes the old session: in 3.1.1 a session cannot both begin clean and be kept, and
            # Mosquitto (2.0) does not save a session that began clean.
            former, _ = await self._dial(clean=True, keep=False)
            await former.close()
        return await self._dial(clean=not keep, keep=keep)

    async def _dial(self, *, clean: bool, keep: bool) -> tuple[Upstream, Accepted]:
        self._check_echo()
        upstream = Upstream(self._settings, self._on_packets)
        hello = Hello(clean=clean, keep=keep, bridge=self._bridge_mode, state_topic=self._remote_state_topic)
        try:
            return upstream, await upstream.connect(hello)
        except BaseException as error:
            upstream.abort()
            if isinstance(error, RefusedError) and error.unknown_level and self._bridge_mode:
                self._bridge_mode = False
                log.warning(
                    "the other broker does not know the bridge flag: retain flags of live messages are lost",
                    **self._facts(),
                )
            raise

    def _check_echo(self) -> None:
        echo = self._rules.echo
        if echo is None or self._bridge_mode or self._settings.protocol == "5.0":
            return
        raise RefusedError(
            "3.1.1 knows no way to keep messages from coming back, and the other broker no bridges: by "
            f"{str(echo[0])!r} they go out, by {str(echo[1])!r} they would come in again; expected protocol 5.0 or "
            "other prefixes"
        )

    async def _agree(self, local: Local, upstream: Upstream, accepted: Accepted, known: dict[str, int]) -> None:
        """Brings both sides to the same state: pending exchanges, subscriptions."""
        if not accepted.session_present:
            await local.forget_received()
            known = {}
        await local.remember_upstream(self._upstream_identity, known)
        filters = self._rules.remote_filters
        obsolete = [name for name in known if name not in filters]
        new = {name: qos for name, qos in filters.items() if known.get(name) != qos}
        packet_id = (
            (await local.session.last()) + MAX_PACKET_ID // 2
        ) % MAX_PACKET_ID + 1  # far from identifiers in flight
        for some in batched(obsolete, FILTERS_AT_ONCE):
            await self._request(upstream, packet_id, mqtt.Unsubscribe(packet_id, [name.encode() for name in some]))
        for some in batched(list(new), FILTERS_AT_ONCE):
            entries = [self._subscription(name, new[name], upstream.version) for name in some]
            codes = await self._request(upstream, packet_id, mqtt.Subscribe(packet_id, entries))
            for name, code in zip(some, codes, strict=False):
                self._take_code(name, code, new)
        if obsolete or new:
            kept = {name: qos for name, qos in known.items() if name in filters}
            await local.remember_upstream(self._upstream_identity, kept | new)

    def _subscription(self, name: str, qos: int, version: int) -> mqtt.Subscription:
        if version != mqtt.PROTOCOL_LEVEL_5:
            return mqtt.Subscription(name.encode(), qos)
        return mqtt.Subscription(name.encode(), qos, no_local=True, retain_as_published=True, retain_handling=1)

    def _take_code(self, name: str, code: int, new: dict[str, int]) -> None:
        if code >= FAILURE:
            log.error("a subscription was refused", filter=name, code=f"0x{code:02X}", **self._facts())
            del new[name]  # the next connection subscribes again
        elif code < new[name]:
            log.warning(
                "a subscription was granted a lower QoS", filter=name, asked=new[name], got=code, **self._facts()
            )

    async def _request(self, upstream: Upstream, packet_id: int, packet: mqtt.Packet) -> list[int]:
        answer = self._answer = asyncio.get_running_loop().create_future()
        self._answer_id = packet_id
        upstream.write(mqtt.encode(packet, version=upstream.version))
        waits: list[asyncio.Future[Any]] = [answer, upstream.lost]
        await asyncio.wait(waits, timeout=self._settings.connect_timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            raise LostError(
                upstream.lost.result() if upstream.lost.done() else "a subscription was not answered in time"
            )
        codes: list[int] = answer.result()
        return codes

    async def _exchange(self, local: Local, upstream: Upstream, accepted: Accepted, path: Path) -> None:
        """Exchanges messages until a side is lost, or the link stops."""
        inward = self._inward
        assert inward is not None
        outward = Outward(self._settings, self._rules, path, local, upstream, self.counters, accepted)
        self._outward = outward
        self.counters.connections += 1
        self.counters.connected = 1
        log.info("connected", session_present=accepted.session_present, **self._facts())
        pumps = [asyncio.create_task(inward.run()), asyncio.create_task(outward.run())]
        stopping = asyncio.create_task(self._stopping.wait())
        ends: list[asyncio.Future[Any]] = [*pumps, stopping, upstream.lost, *local.tasks]
        try:
            self._publish_state(upstream, b"1")
            await local.publish_state(b"1")
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            local.check()
            for pump in pumps:
                if pump.done():
                    pump.result()
            if upstream.lost.done():
                raise LostError(upstream.lost.result())
            await self._end_in_order(upstream, inward)
            await local.publish_state(b"0")
        finally:
            self.counters.losses += 1
            self.counters.connected = self.counters.inflight = self.counters.pending = 0
            await end_tasks([*pumps, stopping])

    async def _end_in_order(self, upstream: Upstream, inward: Inward) -> None:
        """Stops: everything that was read is still answered."""
        upstream.pause()
        try:
            async with asyncio.timeout(STOP_S):
                await inward.drain()
        except TimeoutError:
            log.warning("stopped with unfinished messages, which the next start continues", **self._facts())
        self._publish_state(upstream, b"0")
        await upstream.close()

    def _publish_state(self, upstream: Upstream, state: bytes) -> None:
        topic = self._remote_state_topic
        if topic:
            upstream.write(mqtt.encode_publish(topic, state, retain=True, version=upstream.version))

    @property
    def _remote_state_topic(self) -> str:
        settings = self._settings
        if not settings.notifications or settings.notifications_local_only:
            return ""
        return settings.notification_topic or f"$SYS/broker/connection/{settings.remote_client_id()}/state"

    def _on_packets(self, packets: list[mqtt.Packet]) -> None:
        if self._inward is None:  # directly after the CONNACK
            self._early += packets
            return
        for packet in packets:
            if isinstance(packet, mqtt.Publish | mqtt.Pubrel):
                self._inward.take(packet)
            elif isinstance(packet, mqtt.Suback | mqtt.Unsuback):
                self._on_answer(packet)
            elif self._outward is not None:
                self._on_acknowledgement(self._outward, packet)

    def _on_answer(self, packet: mqtt.Suback | mqtt.Unsuback) -> None:
        if self._answer is not None and not self._answer.done() and packet.packet_id == self._answer_id:
            self._answer.set_result(packet.codes)

    @staticmethod
    def _on_acknowledgement(outward: Outward, packet: mqtt.Packet) -> None:
        if isinstance(packet, mqtt.Puback):
            outward.on_puback(packet)
        elif isinstance(packet, mqtt.Pubrec):
            outward.on_pubrec(packet)
        elif isinstance(packet, mqtt.Pubcomp):
            outward.on_pubcomp(packet)


def batched(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Splits items into lists of at most `size`."""
    for start in range(0, len(items), size):
        yield items[start : start + size]
