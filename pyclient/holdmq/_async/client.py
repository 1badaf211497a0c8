"""The entry point: wraps a client object of redis-py or valkey-py and creates channels, sessions and topics.

It owns nothing but a client that `from_url` made. Commands are sent through the executor.
"""

import sys
from collections.abc import AsyncIterator, Sequence
from fnmatch import fnmatchcase
from types import TracebackType
from typing import Any, Generic, Literal, Self, TypeVar, cast, overload

from holdmq import _arguments as arguments
from holdmq import commands, core
from holdmq._async.bridges import bridges_of, clients_of, drain_of, kick_from, settings_of
from holdmq._async.channel import AsyncChannel
from holdmq._async.dry_run import AsyncDryRun
from holdmq._async.executor import PROBES, AsyncExecutor
from holdmq._async.history import AsyncHistory
from holdmq._async.outboxes import drain_outboxes
from holdmq._async.pipeline import AsyncPipeline
from holdmq._async.session import AsyncSession
from holdmq._async.subscription import AsyncSubscription
from holdmq._async.topics import AsyncTopics
from holdmq._guard import NotPickled
from holdmq._io import (
    AsyncClient,
    async_close,
    async_connect,
    async_connect_cluster,
)
from holdmq.commands import Command
from holdmq.durations import Duration
from holdmq.errors import (
    ModuleMissingError,
)
from holdmq.replies import BridgeRow, ClientRow, SessionRow, Text, TextT

T = TypeVar("T")


class AsyncHoldMQ(NotPickled, Generic[TextT]):
    """HoldMQ over an existing client object, or over a client of its own (`from_url`).

    The client object may be a `redis.asyncio.Redis`, a `redis.asyncio.RedisCluster`, the result of `master_for` of a
    `redis.asyncio.Sentinel`, or a `valkey.asyncio.Valkey`. It may have any `decode_responses` and any `protocol`.

    Channels and their messages are `bytes`. If the client has `decode_responses=True`, they are `str`, and the type of
    this object is `AsyncHoldMQ[str]`. Type checkers infer that from `from_url`. For a client of your own, write
    `hold: AsyncHoldMQ[str] = AsyncHoldMQ(client)`.

    If a connection breaks before a reply arrives, it is unknown whether the command was carried out. The client's
    `retry` policy decides what happens next. `redis.Redis(...)` sends the command again by default, so `publish` and
    `add` may store a message twice. A client made by `from_url` raises an error instead, except in a cluster, where
    redis-py retries. `AsyncSession.producer` stores each message once.

    While a cluster moves slots, session commands and publishes wait until the slots that they need have settled. A
    pipeline does not wait: its replies hold the errors.

    Tasks of one event loop may share it. A process that forks after its first use must make its own (`ForkedError`).

    Args:
        client: the client object to wrap.
        moving_timeout: how many seconds a command waits for slots that move between nodes of a cluster.

    Attributes:
        client: the wrapped client.
        moving_timeout: the argument of the same name.
        topics: publishes to MQTT topics and reads retained messages (`AsyncTopics`).
        history: stores and replays past messages (`AsyncHistory`).
        dry_run: counts what a policy would hold (`AsyncDryRun`).

    Examples:
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
        """Makes a redis-py client and wraps it. Closing this object closes that client.

        Args:
            url: `redis://host:port/db`, `rediss://…` or `unix://…`, as in redis-py. Any node of a cluster will do.
            cluster: whether to use the whole cluster that the server belongs to.
            options: passed on to redis-py's `from_url`.

        Raises:
            ValueError: the URL has another form.
        """
        arguments.text("url", url)
        arguments.flag("cluster", cluster)
        hold = cls(async_connect_cluster(url, **options) if cluster else async_connect(url, **options))
        hold._owned = True
        return hold

    async def __aenter__(self) -> Self:
        """Checks that the server has the module.

        Raises:
            ModuleMissingError: the server does not have the module.
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
        """Closes the client if `from_url` made it. A client that you passed in stays open."""
        if self._owned and not self._executor.owner.is_elsewhere:
            await async_close(self.client)
            self._executor.owner.closed()

    close = aclose

    def channel(self, name: Text, *, sharded: bool | None = None) -> AsyncChannel[TextT]:
        """Returns the channel with this name. Sends nothing.

        Args:
            name: the channel.
            sharded: True for a shard channel, whose messages stay on the node that has its slot. A cluster keeps
                messages of shard channels only. Publishing to another channel there warns (`HoldMQWarning`), unless
                this is False.

        Raises:
            ArgumentError: the name is neither str nor bytes.
        """
        return AsyncChannel(self._executor, name, sharded=sharded)

    def session(self, client_id: Text, *, prefix: Text = b"", epoch: int = 0) -> AsyncSession:
        """Returns the session of an MQTT client. Sends nothing.

        Args:
            client_id: the client's id: one or more bytes of any value. Braces and percent signs are encoded in keys.
            prefix: a prefix of the session's keys (TBMQ's cache prefix).
            epoch: the epoch to write under, if the session was opened before. 0 turns the check off.

        Raises:
            ArgumentError: an invalid id, prefix or epoch.
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
        """Subscribes to channels. Messages that the channels have kept come first.

        Args:
            channels: the names of the channels.
            timeout: iteration ends after this many seconds without a message. None waits forever.
            reconnect: for how many seconds to retry after the connection is lost.
            ping_interval: after this many seconds of silence, a PING is sent. The server has to answer within the same
                time.
            skip_repeats: skip messages that are marked `repeat` (see `ChannelMessage`). This also skips a message that
                was published during an interruption and equals the one before it.

        Raises:
            ArgumentError: no channel, or a number out of range.

        Examples:
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
        """Subscribes to all channels that match a pattern. Kept messages come first. Arguments as for `subscribe`.

        Examples:
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
        """Subscribes to shard channels. Kept messages come first. Arguments as for `subscribe`.

        In a cluster, all channels must be in one slot (give them a common hash tag). The subscription follows the slot.
        A server older than 7.2 does not deliver kept messages here: they stay in the list.

        Examples:
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
        """Returns a pipeline, which sends several commands in one round trip.

        Args:
            transaction: whether to send them inside MULTI and EXEC, as one atomic step.

        Raises:
            ArgumentError: a transaction with a client that has `decode_responses=True`. redis-py would decode all that
                EXEC returns, and so damage messages of sessions.
        """
        return AsyncPipeline(self._executor, transaction)

    @property
    def is_cluster(self) -> bool:
        """Whether the client is a cluster client."""
        return self._executor.is_cluster

    async def execute(self, command: Command[T]) -> T:
        """Sends a command built by `holdmq.commands` and returns its parsed reply.

        Raises:
            CommandError: the module refused the command; the subclass says why.
            MovingError: slots were still moving between nodes after `moving_timeout` seconds.
            redis.RedisError: any other error of redis-py.
        """
        return await self._executor.execute(command)

    async def execute_all(self, several: Sequence[Command[T]]) -> list[T]:
        """Sends up to 10000 commands of one kind and returns their replies.

        Takes one round trip, except in a cluster.

        Raises:
            CommandError: the module refused a command.
        """
        return await self._executor.execute_all(several)

    async def supports(self, *names: str) -> bool:
        """Returns whether the server knows all of these commands. Without names: whether it has the module.

        Examples:
            >>> await hold.supports()
            True
            >>> await hold.supports("SESSION.FLY")
            False
        """
        for name in names:
            arguments.name("one of the names", name)
        return not await self._executor.unknown(names or PROBES)

    async def require_module(self) -> None:
        """Checks that the server has the module. Sends nothing if an earlier check succeeded.

        Raises:
            ModuleMissingError: the server does not have the module.
        """
        await self._executor.require_module()

    async def drain_outboxes(self) -> int:
        """Publishes the wills and presence messages that wait in the outboxes of a cluster to all nodes.

        Several programs may do so at the same time. After an error, call it again: no session gets a message twice.

        Returns:
            How many messages were removed from the outboxes. 0 without a cluster: nothing waits there.

        Raises:
            MovingError: slots were moving for too long. The messages stay in their outboxes.

        Examples:
            >>> await hold.drain_outboxes()
            0
        """
        return await drain_outboxes(self._executor) if self.is_cluster else 0

    async def info(self) -> dict[str, Any]:
        """Returns the section `holdmq` of the server's INFO.

        Raises:
            ModuleMissingError: INFO has no such section.
        """
        sections = await self._executor.send("INFO", "holdmq", **await self._executor.anywhere())
        if not sections:
            raise ModuleMissingError("the server has no HoldMQ module: INFO has no section 'holdmq'")
        return cast("dict[str, Any]", sections)

    async def sessions(self, *, connected: bool = False, page: int = 1000) -> AsyncIterator[SessionRow]:
        """Yields the opened sessions, node by node and ordered by key. Reads a page at a time.

        Args:
            connected: only sessions whose client is connected.
            page: how many sessions to examine per page, 1 to 10000. The server examines at most 500.

        Raises:
            ArgumentError: the page size is out of range.

        Examples:
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
        """Returns the MQTT bridges whose last report is still current, ordered by name."""
        return await bridges_of(self._executor)

    async def clients(self, *, search: str = "*", bridge: str = "*") -> AsyncIterator[ClientRow]:
        """Yields the connected MQTT clients with their traffic, bridge by bridge. Reads a page at a time.

        Args:
            search: a glob that client ids must match.
            bridge: a glob that names of bridges must match.

        Raises:
            NotAnsweredError: a bridge did not answer in time.
        """
        arguments.text("search", search)
        arguments.text("bridge", bridge)
        for one in await self.bridges():
            if fnmatchcase(one.name, bridge):
                async for row in clients_of(self._executor, one.name, search):
                    yield row

    async def loudest(self, count: int = 20) -> list[ClientRow]:
        """Returns the clients that publish most messages per second; of equals, those that are sent most.

        Each bridge reports its 20 loudest clients only.
        """
        count = arguments.any_whole("count", count, 0, sys.maxsize)
        rows = [row for one in await self.bridges() for row in one.loudest]
        return sorted(rows, key=lambda row: (row.received_rate, row.sent_rate), reverse=True)[:count]

    async def drain(self, bridge: str) -> int:
        """Makes a bridge accept no further connections, disconnect its clients at its `drain_rate`, and exit.

        MQTT 5.0 clients get the bridge's `drain_reason` (0x9C or 0x9D). Sessions stay. Returns at once.

        Args:
            bridge: the bridge's name (`BridgeRow.name`).

        Returns:
            How many clients it has.

        Raises:
            NotAnsweredError: it did not answer in time.
        """
        arguments.text("bridge", bridge)
        return await drain_of(self._executor, bridge)

    async def kick(self, client_id: Text, *, why: str = "") -> bool:
        """Makes the bridge disconnect a client (reason code 0x98 in MQTT 5.0). A persistent session stays.

        Args:
            client_id: the client.
            why: a reason for the log of the bridge. A client of MQTT 5.0 gets it, too.

        Returns:
            Whether the client was connected.

        Raises:
            NotAnsweredError: its bridge did not answer in time.
        """
        arguments.text("why", why)
        info = await self.session(client_id).info()
        if not info.connected:
            return False
        return await kick_from(self._executor, info.owner, core.session_key(client_id), why)

    async def bridge_settings(self, bridge: str) -> dict[str, Any]:
        """Returns the settings that are in effect in a running bridge, by their names. Passwords are left out.

        Args:
            bridge: the bridge's name (`BridgeRow.name`).

        Raises:
            NotAnsweredError: the bridge did not answer in time: it is not running, say.
        """
        return await settings_of(self._executor, arguments.text("bridge", bridge))

    async def beat(self, owner: Text, lease: Duration) -> None:
        """Sends a heartbeat for an owner of sessions (the name that `AsyncSession.open` takes).

        Sessions that the owner opens after its first heartbeat stay connected as long as heartbeats arrive in time.
        If one is late, all connected sessions of the owner are closed as lost. Their wills are published, and other
        owners can take them over. A restarted process must use a new name.

        Args:
            owner: the owner's name. In a cluster, use one name with a hash tag for each node.
            lease: for how many seconds this heartbeat counts, 1 to 4294967295. 0 means that the owner is gone now.

        Raises:
            ArgumentError: the lease is out of range.

        Examples:
            >>> await hold.beat("reader-1", 30)
            >>> opened = await hold.session("device-9").open("reader-1", expiry=60)
            >>> await hold.beat("reader-1", 0)
        """
        await self.execute(commands.session_owner(owner, lease))

    async def check(self) -> tuple[str, ...]:
        """Compares the module's indexes in memory with the keys. Returns the differences: none if all is well.

        Examples:
            >>> await hold.check()
            ()
        """
        return await self.execute(commands.holdmq_check())
