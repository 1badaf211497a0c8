"""The entry point: wraps a client object of redis-py or valkey-py and hands out channels, sessions and topics.

It owns nothing but the client that `from_url` made; what is sent goes through the executor.
"""

import sys
from collections.abc import AsyncIterator, Sequence
from fnmatch import fnmatchcase
from types import TracebackType
from typing import Any, Generic, Literal, Self, TypeVar, cast, overload

from holdmq import _arguments as arguments
from holdmq import commands, core
from holdmq._async.bridges import bridges_of, clients_of, kick_from
from holdmq._async.channel import AsyncChannel
from holdmq._async.dry_run import AsyncDryRun
from holdmq._async.executor import PROBES, AsyncExecutor
from holdmq._async.history import AsyncHistory
from holdmq._async.pipeline import AsyncPipeline
from holdmq._async.session import AsyncSession
from holdmq._async.subscription import AsyncSubscription
from holdmq._async.topics import AsyncTopics
from holdmq._durations import Duration
from holdmq._guard import NotPickled
from holdmq._io import (
    AsyncClient,
    async_close,
    async_connect,
    async_connect_cluster,
)
from holdmq.commands import Command
from holdmq.errors import (
    ModuleMissingError,
)
from holdmq.replies import BridgeRow, ClientRow, SessionRow, Text, TextT

T = TypeVar("T")


class AsyncHoldMQ(NotPickled, Generic[TextT]):
    """HoldMQ over a client that is there already, or over one of its own (`from_url`).

    Channels and their messages come as `bytes`, or as `str` if the client has `decode_responses=True`: then its type is
    `AsyncHoldMQ[str]`, which checkers see of `from_url`, and which `hold: AsyncHoldMQ[str] = AsyncHoldMQ(client)` says.

    Any client of the shape of redis-py's will do: `redis.asyncio.Redis`, `redis.asyncio.RedisCluster`, what
    `master_for` of `redis.asyncio.Sentinel` returns, `valkey.asyncio.Valkey`. `decode_responses` and `protocol` may be
    as they like.

    When the connection is lost before the reply came, nobody knows whether the command was carried out. What happens
    then is the client's `retry` policy: `redis.Redis(...)` sends the command again by default, and `publish` and `add`
    may then store a message twice; a client of `from_url` raises (that of a cluster tries as redis-py does there).
    `AsyncSession.producer` stores it once.

    In a cluster whose slots are being moved, commands about sessions and publishes wait until the slots that they need
    have settled; a pipeline does not wait, its replies hold the errors.

    Tasks of one event loop may share it; a process that is forked after its first use makes its own (`ForkedError`).

    Args:
        client: the client object to wrap, an asyncio one.
        moving_timeout: how long a command waits for slots of a cluster that are on their way between nodes, in seconds.

    Attributes:
        client: the wrapped client.
        moving_timeout: as given.
        topics: publishing to MQTT topics.
        history: what was published in the past, as far as a store keeps it.

    Example:
        >>> async with AsyncHoldMQ.from_url(url) as hold:
        ...     receivers = await hold.channel("weather").publish("sunny")
        ...     await hold.channel("weather").last()
        b'sunny'
    """

    def __init__(self, client: AsyncClient, *, moving_timeout: float = 60.0) -> None:
        self._executor = AsyncExecutor(client, moving_timeout)
        self.client: Any = client
        self.moving_timeout = self._executor.moving_timeout
        self.topics = AsyncTopics(self._executor)
        self.history = AsyncHistory(self._executor)
        self.dry_run = AsyncDryRun(self._executor)
        self._owned = False

    @overload
    @classmethod
    def from_url(
        cls, url: str, *, cluster: bool = False, decode_responses: Literal[True], **options: Any
    ) -> "AsyncHoldMQ[str]": ...

    @overload
    @classmethod
    def from_url(
        cls, url: str, *, cluster: bool = False, decode_responses: Literal[False] = False, **options: Any
    ) -> "AsyncHoldMQ[bytes]": ...

    @overload
    @classmethod
    def from_url(
        cls, url: str, *, cluster: bool = False, decode_responses: bool = False, **options: Any
    ) -> "AsyncHoldMQ[Any]": ...

    @classmethod
    def from_url(cls, url: str, *, cluster: bool = False, **options: Any) -> "AsyncHoldMQ[Any]":
        """Over a redis-py client of its own, which is closed together with this object.

        Args:
            url: `redis://host:port/db`, `rediss://…` or `unix://…`, as redis-py takes it; of any node of a cluster.
            cluster: the server is one of a cluster, and all of it is meant.
            options: passed on to redis-py's `from_url`.

        Raises:
            ValueError: the address has another form.
        """
        arguments.text("url", url)
        arguments.flag("cluster", cluster)
        hold = cls(async_connect_cluster(url, **options) if cluster else async_connect(url, **options))
        hold._owned = True
        return hold

    async def __aenter__(self) -> Self:
        """Makes sure that the server has the module.

        Raises:
            ModuleMissingError: it has not.
        """
        try:
            await self.require_module()
        except BaseException:
            await self.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Closes the client if `from_url` made it; a client that was handed in stays open."""
        if self._owned and not self._executor.owner.is_elsewhere:
            await async_close(self.client)
            self._executor.owner.closed()

    close = aclose

    def channel(self, name: Text, *, sharded: bool | None = None) -> AsyncChannel[TextT]:
        """The channel of that name; nothing is sent.

        Args:
            name: the channel.
            sharded: True: a shard channel, whose messages stay on the node that has its slot. A cluster keeps messages
                of shard channels only: publishing to others there warns (`HoldMQWarning`) unless this is False.

        Raises:
            ArgumentError: a name that is neither str nor bytes.
        """
        return AsyncChannel(self._executor, name, sharded=sharded)

    def session(self, client_id: Text, *, prefix: Text = b"", epoch: int = 0) -> AsyncSession:
        """The session of that MQTT client; nothing is sent.

        Args:
            client_id: the client's id, any bytes but none; braces and percent signs are encoded.
            prefix: stands before the key (TBMQ's cache prefix).
            epoch: the epoch to write under if the session was opened before; 0 does not check.

        Raises:
            ArgumentError: an id, prefix or epoch that cannot be.
        """
        return AsyncSession(self._executor, client_id, prefix=prefix, epoch=epoch)

    def subscribe(
        self,
        *channels: Text,
        timeout: float | None = None,
        reconnect: float = 60.0,
        ping_interval: float = 15.0,
        skip_repeats: bool = False,
    ) -> AsyncSubscription[TextT]:
        """Messages of channels, what they have kept first.

        Args:
            channels: their names.
            timeout: iteration ends when no message came for so many seconds; None waits for ever.
            reconnect: after losing the connection, try for so many seconds to get it back.
            ping_interval: after so many seconds of silence the server is asked for a sign of life, which it has to
                give within as many seconds.
            skip_repeats: leave out what is marked `repeat` (see `ChannelMessage`). A message that was published during
                an interruption and equals the one before is then left out too.

        Raises:
            ArgumentError: no channel, or a number outside of its range.

        Example:
            >>> receivers = await hold.channel("weather").publish("sunny")
            >>> async with hold.subscribe("weather", timeout=0.2) as messages:
            ...     async for message in messages:
            ...         print(message.channel, message.data)
            b'weather' b'sunny'
        """
        return AsyncSubscription(
            self._executor,
            "subscribe",
            channels,
            timeout=timeout,
            reconnect=reconnect,
            ping_interval=ping_interval,
            skip_repeats=skip_repeats,
        )

    def psubscribe(
        self,
        *patterns: Text,
        timeout: float | None = None,
        reconnect: float = 60.0,
        ping_interval: float = 15.0,
        skip_repeats: bool = False,
    ) -> AsyncSubscription[TextT]:
        """Messages of all channels that match, what they have kept first; arguments as for `subscribe`.

        Example:
            >>> receivers = await hold.channel("weather.oslo").publish("snow")
            >>> async with hold.psubscribe("weather.*", timeout=0.2) as messages:
            ...     async for message in messages:
            ...         print(message.pattern, message.channel, message.data)
            b'weather.*' b'weather.oslo' b'snow'
        """
        return AsyncSubscription(
            self._executor,
            "psubscribe",
            patterns,
            timeout=timeout,
            reconnect=reconnect,
            ping_interval=ping_interval,
            skip_repeats=skip_repeats,
        )

    def ssubscribe(
        self,
        *channels: Text,
        timeout: float | None = None,
        reconnect: float = 60.0,
        ping_interval: float = 15.0,
        skip_repeats: bool = False,
    ) -> AsyncSubscription[TextT]:
        """Messages of shard channels, what they have kept first; arguments as for `subscribe`.

        In a cluster the channels have to be of one slot (a common hash tag). The subscription follows the slot.
        A server before 7.2 hands nothing over here: what was kept stays in the list.

        Example:
            >>> async with hold.ssubscribe("{weather}.rome", "{weather}.oslo") as messages:
            ...     receivers = await hold.channel("{weather}.rome", sharded=True).publish("sun")
            ...     message = await messages.get(timeout=1)
            >>> message.channel, message.data
            (b'{weather}.rome', b'sun')
        """
        return AsyncSubscription(
            self._executor,
            "ssubscribe",
            channels,
            timeout=timeout,
            reconnect=reconnect,
            ping_interval=ping_interval,
            skip_repeats=skip_repeats,
        )

    def pipeline(self, *, transaction: bool = False) -> AsyncPipeline:
        """Several commands in one round trip.

        Args:
            transaction: send them in MULTI and EXEC, as one atomic step.

        Raises:
            ArgumentError: a transaction over a client with `decode_responses=True`: redis-py would decode all that EXEC
                returns, which messages of sessions do not survive.
        """
        return AsyncPipeline(self._executor, transaction)

    @property
    def is_cluster(self) -> bool:
        """Whether the client is one of a cluster."""
        return self._executor.is_cluster

    async def execute(self, command: Command[T]) -> T:
        """Sends a command built by `holdmq.commands` and returns its parsed reply.

        Raises:
            CommandError: the module refused it; the subclass tells why.
            MovingError: slots of the cluster were on their way for longer than `moving_timeout`.
            redis.RedisError: whatever else redis-py raises.
        """
        return await self._executor.execute(command)

    async def execute_all(self, several: Sequence[Command[T]]) -> list[T]:
        """Sends commands of one kind, in one round trip if the client is not one of a cluster; at most 10000.

        Raises:
            CommandError: the module refused one.
        """
        return await self._executor.execute_all(several)

    async def supports(self, *names: str) -> bool:
        """Whether the server knows these commands; without names, whether it has the module.

        Example:
            >>> await hold.supports()
            True
            >>> await hold.supports("SESSION.FLY")
            False
        """
        for name in names:
            arguments.name("one of the names", name)
        return not await self._executor.unknown(names or PROBES)

    async def require_module(self) -> None:
        """Makes sure, once, that the server has the module.

        Raises:
            ModuleMissingError: it has not.
        """
        await self._executor.require_module()

    async def info(self) -> dict[str, Any]:
        """The section `holdmq` of the server's INFO.

        Raises:
            ModuleMissingError: there is none.
        """
        sections = await self._executor.send("INFO", "holdmq", **await self._executor.anywhere())
        if not sections:
            raise ModuleMissingError("the server has no HoldMQ module: INFO has no section 'holdmq'")
        return cast("dict[str, Any]", sections)

    async def sessions(self, *, connected: bool = False, page: int = 1000) -> AsyncIterator[SessionRow]:
        """The opened sessions, node by node and in the order of their keys, read a page at a time.

        Args:
            connected: only those whose connection stands.
            page: how many sessions a page looks at, 1 to 10000.

        Raises:
            ArgumentError: a page outside of its range.

        Example:
            >>> opened = await hold.session("device-10").open("reader-1", expiry=60)
            >>> [(row.client_id, row.owner) async for row in hold.sessions(connected=True)]
            [('device-10', 'reader-1')]
        """
        commands.session_list(count=arguments.in_range("page", page, 1, commands.MAX_COUNT), connected=connected)
        executor = self._executor
        primaries = (await executor.cluster()).get_primaries() if self.is_cluster else [None]
        for node in primaries:
            cursor = None
            while True:
                command = commands.session_list(cursor=cursor, count=page, connected=connected)
                answer = await (executor.execute_once(command) if node is None else executor.execute_at(node, command))
                for row in answer.sessions:
                    yield row
                cursor = answer.cursor
                if cursor is None:
                    break

    async def bridges(self) -> list[BridgeRow]:
        """The MQTT bridges that have reported within their last intervals, by name."""
        return await bridges_of(self._executor)

    async def clients(self, *, search: str = "*", bridge: str = "*") -> AsyncIterator[ClientRow]:
        """The connected MQTT clients with their traffic, bridge by bridge, asked for a page at a time.

        Args:
            search: a glob over client ids.
            bridge: a glob over the names of bridges.

        Raises:
            NotAnsweredError: a bridge has not answered in time.
        """
        arguments.text("search", search)
        arguments.text("bridge", bridge)
        for one in await self.bridges():
            if fnmatchcase(one.name, bridge):
                async for row in clients_of(self._executor, one.name, search):
                    yield row

    async def loudest(self, count: int = 20) -> list[ClientRow]:
        """The clients with the most messages per second over all bridges; at most 20 of a bridge are known."""
        count = arguments.any_whole("count", count, 0, sys.maxsize)
        rows = [row for one in await self.bridges() for row in one.loudest]
        return sorted(rows, key=lambda row: row.received_rate + row.sent_rate, reverse=True)[:count]

    async def kick(self, client_id: Text, *, why: str = "") -> bool:
        """Has its bridge disconnect a client (0x98 in MQTT 5.0).  A session that outlives its connection stays.

        Returns:
            Whether it was connected.

        Raises:
            NotAnsweredError: its bridge has not answered in time.
        """
        arguments.text("why", why)
        info = await self.session(client_id).info()
        if not info.connected:
            return False
        return await kick_from(self._executor, info.owner, core.session_key(client_id), why)

    async def beat(self, owner: Text, lease: Duration) -> None:
        """The heartbeat of an owner of sessions (the name that `AsyncSession.open` takes).

        The sessions that it opens from then on do not end as long as it beats in time; when it does not, all sessions
        that it has connected are closed as lost: wills are published, others can take them over. A process that starts
        anew takes a new name.

        Args:
            owner: the name; in a cluster with a hash tag, one for each node.
            lease: how long this heartbeat counts, in seconds, 1 to 4294967295; 0: the owner is gone now.

        Raises:
            ArgumentError: a number outside of its range.

        Example:
            >>> await hold.beat("reader-1", 30)
            >>> opened = await hold.session("device-9").open("reader-1", expiry=60)
            >>> await hold.beat("reader-1", 0)
        """
        await self.execute(commands.session_owner(owner, lease))

    async def check(self) -> tuple[str, ...]:
        """Differences between the module's indexes in memory and a rebuild from the keys; empty when all is well.

        Example:
            >>> await hold.check()
            ()
        """
        return await self.execute(commands.holdmq_check())
