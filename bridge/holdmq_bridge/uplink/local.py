"""The link's own session at the HoldMQ server, `link:<name>`.

    {link:<name>}_...        the session: messages to go out, messages in flight, identifiers received with QoS 2
    {link:<name>}_upstream   HASH  `at`: the broker of this state (client id and address); `filters`: the link's
                             subscriptions there, a JSON object
    holdmq_broker_id         STRING  the id of this broker for its links (path.py)

Invariants
 1. Every write to the session carries the epoch.  If a process that had the session finds another owner, it is no
    longer the link (TakenOverError).
 2. The loss of the connection ends the Local.  The next one starts from the stored state.
 3. A server that is no longer the primary is left, and its replies in the meantime are not used.
 4. `{link:<name>}_upstream` never outlives its session: it is removed before a new session is made.
"""

import asyncio
import json
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, cast

from redis.exceptions import RedisError

from holdmq import AsyncHoldMQ, AsyncReply, AsyncSubscription, Publisher, SubscriptionOptions, Will, commands, core
from holdmq.core import Delivery, DeliveryKind, Suffix
from holdmq_bridge.uplink.primary import Primary
from holdmq_bridge.uplink.settings import ConnectionSettings

if TYPE_CHECKING:
    from redis.asyncio import Redis

BROKER_ID_KEY = "holdmq_broker_id"
BROKER_ID_BYTES = 8
FACTS_SUFFIX = b"_upstream"
COMPLETED_AT_ONCE = 10_000
INBOX_PING_S = 5.0
TOUCHES_PER_LEASE = 3
CANCEL_AGAIN_S = 0.1


class TakenOverError(Exception):
    """Another process has opened the session of the link."""


class Local:
    """The open session: an asynchronous context manager.

    Args:
        settings: of the link.
        primary: the server.
        owner: a unique name of this process.
        had_session: this process has opened the session before.
        on_delivery: called with each delivery of the inbox, and with None whenever the lease is renewed.

    Attributes:
        client_id: of the session.
        session: the session.
        tasks: run while the session is open.  If one ends, the Local has failed.
    """

    def __init__(
        self,
        settings: ConnectionSettings,
        primary: Primary,
        owner: str,
        *,
        had_session: bool,
        on_delivery: Callable[[Delivery | None], None],
    ) -> None:
        self.client_id = f"link:{settings.name}"
        self._settings = settings
        self._owner = owner
        self._had_session = had_session
        self._on_delivery = on_delivery
        self._primary = primary
        self._moves = primary.moves
        self._redis: Redis = primary.client()
        self._hold = AsyncHoldMQ(self._redis)
        self.session = self._hold.session(self.client_id)
        self._key = core.session_key(self.client_id)
        self.tasks: list[asyncio.Task[None]] = []

    # ---- life ------------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Opens the session.

        Raises:
            TakenOverError: another process has it, and this one had it before.
            redis.RedisError: the server cannot be used now.
        """
        try:
            self.tasks.append(asyncio.create_task(self._primary.wait_until_moved(self._moves)))
            await self._hold.require_module()
            inbox = self._hold.subscribe(
                core.session_name(self._key, Suffix.INBOX), reconnect=0, ping_interval=INBOX_PING_S
            )
            self.tasks.append(asyncio.create_task(self._listen(await inbox.__aenter__())))
            await self._open()
            self.tasks.append(asyncio.create_task(self._renew_lease()))
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await end_tasks(self.tasks)
        await self._redis.aclose()

    async def _open(self) -> None:
        info = await self.session.info()
        if self._had_session and info.exists:
            self._check_owner(info.owner)
        if not info.exists:
            await self._redis.delete(self._key + FACTS_SUFFIX)
        opened = await self.session.open(self._owner, **self._terms())
        if not opened.present:
            await self._redis.delete(self._key + FACTS_SUFFIX)

    async def begin_clean(self) -> None:
        """Replaces the session by a new one."""
        self._check_owner((await self.session.info()).owner)
        await self._redis.delete(self._key + FACTS_SUFFIX)
        await self.session.open(self._owner, clean=True, **self._terms())

    def _terms(self) -> dict[str, Any]:
        will = Will(self.state_topic, b"0", qos=1, retain=True) if self.state_topic else None
        return {
            "expiry": self._settings.session_expiry_s,
            "lease": self._settings.lease_s,
            "will": will,
            "identity": self.client_id,
        }

    def _check_owner(self, owner: str) -> None:
        if owner != self._owner:
            raise TakenOverError(f"{owner} has the session {self.client_id} now")

    async def close(self) -> None:
        """Closes the session in order.  It stays for the next start."""
        await self.session.close()

    def check(self) -> None:
        """Raises the error of a task that has ended.

        Raises:
            TakenOverError: another process has the session.
            redis.RedisError: the server cannot be used now.
        """
        for task in self.tasks:
            if not task.done():
                continue
            try:
                task.result()
            except OSError as error:
                raise RedisError(f"the server was lost: {error}") from error
            raise RedisError("the server has closed the connection")

    async def _listen(self, inbox: AsyncSubscription) -> None:
        try:
            async for message in inbox:
                delivery = Delivery.decode(message.data)
                if delivery.kind is DeliveryKind.DROPPED:
                    continue  # the next command gets NOSESSION
                if delivery.kind is not DeliveryKind.TAKEN_OVER:
                    self._on_delivery(delivery)
                elif delivery.serial > self.session.epoch:  # the notice of this process's own OPEN may come first
                    self._check_owner((await self.session.info()).owner)
        finally:
            await inbox.aclose()

    async def _renew_lease(self) -> None:
        while True:
            await asyncio.sleep(self._settings.lease_s / TOUCHES_PER_LEASE)
            await self.session.touch()
            self._on_delivery(None)

    # ---- commands --------------------------------------------------------------------------------------------------

    async def run(self, several: Sequence[commands.Command[Any]]) -> list[AsyncReply[Any]]:
        """Sends commands together.  Each reply has its own error.

        Raises:
            redis.RedisError: the connection was lost, or the primary has moved.  It is unknown which commands were
                carried out.
        """
        pipeline = self._hold.pipeline()
        for command in several:
            pipeline.queue(command)
        replies = await pipeline.execute(raise_on_error=False)
        await self._primary.wait_until_certain(self._moves)
        return replies

    def publisher(self, packet_id: int | None = None, *, is_retry: bool = False) -> Publisher:
        """The publisher of the link's messages.

        Args:
            packet_id: of a message of QoS 2.
            is_retry: all replies to earlier messages are here.
        """
        return Publisher(self.client_id, epoch=self.session.epoch, packet_id=packet_id, is_retry=is_retry)

    async def subscribe(self, filters: Mapping[str, int]) -> None:
        """Changes the session's subscriptions to these filters with their QoS."""
        options = {
            topic_filter: SubscriptionOptions(qos, no_local=True, retain_as_published=True, retain_handling=1)
            for topic_filter, qos in filters.items()
        }
        present = await self.session.subscriptions()
        obsolete = [topic_filter for topic_filter in present if topic_filter not in options]
        changed = {name: option for name, option in options.items() if present.get(name) != option}
        if obsolete:
            await self.session.unsubscribe(*obsolete)
        if changed:
            await self.session.subscribe_each(changed)

    async def publish_state(self, state: bytes) -> None:
        """Publishes the state of the link, 1 or 0."""
        if self.state_topic:
            await self._hold.topics.publish(self.state_topic, state, qos=1, retain=True, publisher=self.publisher())

    @property
    def state_topic(self) -> str:
        """The topic of the link's state at this server; empty: it is not published."""
        if not self._settings.notifications:
            return ""
        return self._settings.notification_topic or f"$SYS/broker/connection/{self._settings.name}/state"

    # ---- stored state of the other broker --------------------------------------------------------------------------

    async def upstream_filters(self, at: str) -> dict[str, int] | None:
        """The link's subscriptions there, with their QoS; None: the state is of another broker or client id."""
        facts = await _awaited(self._redis.hgetall(cast("str", self._key + FACTS_SUFFIX)))
        if facts.get(b"at") != at.encode():
            return None
        return {name: int(qos) for name, qos in json.loads(facts.get(b"filters", b"{}")).items()}

    async def remember_upstream(self, at: str, filters: Mapping[str, int]) -> None:
        """Stores that the state is of this broker and client id, with these subscriptions."""
        facts: Any = {"at": at, "filters": json.dumps(dict(filters))}
        await _awaited(self._redis.hset(cast("str", self._key + FACTS_SUFFIX), mapping=facts))

    async def forget_received(self) -> None:
        """Forgets received identifiers of QoS 2: the other broker has no session, and uses them anew."""
        received = core.session_name(self._key, Suffix.RECEIVED)
        while ids := await _awaited(self._redis.zrange(received, 0, COMPLETED_AT_ONCE - 1)):
            if not await self.session.complete(*[int(packet_id) for packet_id in ids]):
                return

    async def broker_id(self) -> str:
        """The id of this broker for its links.  Generates it at the first call."""
        await self._redis.set(BROKER_ID_KEY, secrets.token_hex(BROKER_ID_BYTES), nx=True)
        found: bytes = await _awaited(self._redis.get(BROKER_ID_KEY))
        return found.decode("ascii", "backslashreplace")


async def end_tasks(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Cancels tasks until they have ended.  Ignores their errors.

    One cancellation may not be enough: redis-py uses `asyncio.wait_for`, which in Python 3.11 loses a cancellation that
    arrives together with the result.
    """
    while pending := [task for task in tasks if not task.done()]:
        for task in pending:
            task.cancel()
        await asyncio.wait(pending, timeout=CANCEL_AGAIN_S)
    for task in tasks:
        if not task.cancelled():
            task.exception()


async def _awaited(reply: Awaitable[Any] | Any) -> Any:
    """Awaits a reply.  redis-py declares one type for its synchronous and its asynchronous client."""
    return await reply
