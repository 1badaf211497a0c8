# Generated from pyclient/holdmq/_async/client.py by tools/generate_sync.py; change that file.
"""The entry point: wraps a client object of redis-py or valkey-py and hands out channels, sessions and topics.

It owns nothing but the client that `from_url` made; what is sent goes through the executor.
"""

import sys
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from types import TracebackType
from typing import Any, Generic, Literal, Self, TypeVar, cast, overload

from holdmq import _arguments as arguments
from holdmq import commands, core
from holdmq._durations import Duration
from holdmq._guard import NotPickled
from holdmq._io import (
    Client,
    close,
    connect,
    connect_cluster,
)
from holdmq._sync.bridges import bridges_of, clients_of, kick_from
from holdmq._sync.channel import Channel
from holdmq._sync.dry_run import DryRun
from holdmq._sync.executor import PROBES, Executor
from holdmq._sync.history import History
from holdmq._sync.pipeline import Pipeline
from holdmq._sync.session import Session
from holdmq._sync.subscription import Subscription
from holdmq._sync.topics import Topics
from holdmq.commands import Command
from holdmq.errors import (
    ModuleMissingError,
)
from holdmq.replies import BridgeRow, ClientRow, SessionRow, Text, TextT

T = TypeVar("T")


class HoldMQ(NotPickled, Generic[TextT]):
    """HoldMQ over a client that is there already, or over one of its own (`from_url`).

    Channels and their messages come as `bytes`, or as `str` if the client has `decode_responses=True`: then its type is
    `HoldMQ[str]`, which checkers see of `from_url`, and which `hold: HoldMQ[str] = HoldMQ(client)` says.

    Any client of the shape of redis-py's will do: `redis.Redis`, `redis.RedisCluster`, what
    `master_for` of `redis.Sentinel` returns, `valkey.Valkey`. `decode_responses` and `protocol` may be
    as they like.

    When the connection is lost before the reply came, nobody knows whether the command was carried out. What happens
    then is the client's `retry` policy: `redis.Redis(...)` sends the command again by default, and `publish` and `add`
    may then store a message twice; a client of `from_url` raises (that of a cluster tries as redis-py does there).
    `Session.producer` stores it once.

    In a cluster whose slots are being moved, commands about sessions and publishes wait until the slots that they need
    have settled; a pipeline does not wait, its replies hold the errors.

    Threads may share it, and processes that fork: each gets connections of its own.

    Args:
        client: the client object to wrap, a synchronous one.
        moving_timeout: how long a command waits for slots of a cluster that are on their way between nodes, in seconds.

    Attributes:
        client: the wrapped client.
        moving_timeout: as given.
        topics: publishing to MQTT topics.
        history: what was published in the past, as far as a store keeps it.

    Example:
        >>> with HoldMQ.from_url(url) as hold:
        ...     receivers = hold.channel("weather").publish("sunny")
        ...     hold.channel("weather").last()
        b'sunny'
    """

    def __init__(self, client: Client, *, moving_timeout: float = 60.0) -> None:
        self._executor = Executor(client, moving_timeout)
        self.client: Any = client
        self.moving_timeout = self._executor.moving_timeout
        self.topics = Topics(self._executor)
        self.history = History(self._executor)
        self.dry_run = DryRun(self._executor)
        self._owned = False

    @overload
    @classmethod
    def from_url(
        cls, url: str, *, cluster: bool = False, decode_responses: Literal[True], **options: Any
    ) -> "HoldMQ[str]": ...

    @overload
    @classmethod
    def from_url(
        cls, url: str, *, cluster: bool = False, decode_responses: Literal[False] = False, **options: Any
    ) -> "HoldMQ[bytes]": ...

    @overload
    @classmethod
    def from_url(
        cls, url: str, *, cluster: bool = False, decode_responses: bool = False, **options: Any
    ) -> "HoldMQ[Any]": ...

    @classmethod
    def from_url(cls, url: str, *, cluster: bool = False, **options: Any) -> "HoldMQ[Any]":
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
        hold = cls(connect_cluster(url, **options) if cluster else connect(url, **options))
        hold._owned = True
        return hold

    def __enter__(self) -> Self:
        """Makes sure that the server has the module.

        Raises:
            ModuleMissingError: it has not.
        """
        try:
            self.require_module()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the client if `from_url` made it; a client that was handed in stays open."""
        if self._owned and not self._executor.owner.is_elsewhere:
            close(self.client)
            self._executor.owner.closed()

    def channel(self, name: Text, *, sharded: bool | None = None) -> Channel[TextT]:
        """The channel of that name; nothing is sent.

        Args:
            name: the channel.
            sharded: True: a shard channel, whose messages stay on the node that has its slot. A cluster keeps messages
                of shard channels only: publishing to others there warns (`HoldMQWarning`) unless this is False.

        Raises:
            ArgumentError: a name that is neither str nor bytes.
        """
        return Channel(self._executor, name, sharded=sharded)

    def session(self, client_id: Text, *, prefix: Text = b"", epoch: int = 0) -> Session:
        """The session of that MQTT client; nothing is sent.

        Args:
            client_id: the client's id, any bytes but none; braces and percent signs are encoded.
            prefix: stands before the key (TBMQ's cache prefix).
            epoch: the epoch to write under if the session was opened before; 0 does not check.

        Raises:
            ArgumentError: an id, prefix or epoch that cannot be.
        """
        return Session(self._executor, client_id, prefix=prefix, epoch=epoch)

    def subscribe(
        self,
        *channels: Text,
        timeout: float | None = None,
        reconnect: float = 60.0,
        ping_interval: float = 15.0,
        skip_repeats: bool = False,
    ) -> Subscription[TextT]:
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
            >>> receivers = hold.channel("weather").publish("sunny")
            >>> with hold.subscribe("weather", timeout=0.2) as messages:
            ...     for message in messages:
            ...         print(message.channel, message.data)
            b'weather' b'sunny'
        """
        return Subscription(
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
    ) -> Subscription[TextT]:
        """Messages of all channels that match, what they have kept first; arguments as for `subscribe`.

        Example:
            >>> receivers = hold.channel("weather.oslo").publish("snow")
            >>> with hold.psubscribe("weather.*", timeout=0.2) as messages:
            ...     for message in messages:
            ...         print(message.pattern, message.channel, message.data)
            b'weather.*' b'weather.oslo' b'snow'
        """
        return Subscription(
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
    ) -> Subscription[TextT]:
        """Messages of shard channels, what they have kept first; arguments as for `subscribe`.

        In a cluster the channels have to be of one slot (a common hash tag). The subscription follows the slot.
        A server before 7.2 hands nothing over here: what was kept stays in the list.

        Example:
            >>> with hold.ssubscribe("{weather}.rome", "{weather}.oslo") as messages:
            ...     receivers = hold.channel("{weather}.rome", sharded=True).publish("sun")
            ...     message = messages.get(timeout=1)
            >>> message.channel, message.data
            (b'{weather}.rome', b'sun')
        """
        return Subscription(
            self._executor,
            "ssubscribe",
            channels,
            timeout=timeout,
            reconnect=reconnect,
            ping_interval=ping_interval,
            skip_repeats=skip_repeats,
        )

    def pipeline(self, *, transaction: bool = False) -> Pipeline:
        """Several commands in one round trip.

        Args:
            transaction: send them in MULTI and EXEC, as one atomic step.

        Raises:
            ArgumentError: a transaction over a client with `decode_responses=True`: redis-py would decode all that EXEC
                returns, which messages of sessions do not survive.
        """
        return Pipeline(self._executor, transaction)

    @property
    def is_cluster(self) -> bool:
        """Whether the client is one of a cluster."""
        return self._executor.is_cluster

    def execute(self, command: Command[T]) -> T:
        """Sends a command built by `holdmq.commands` and returns its parsed reply.

        Raises:
            CommandError: the module refused it; the subclass tells why.
            MovingError: slots of the cluster were on their way for longer than `moving_timeout`.
            redis.RedisError: whatever else redis-py raises.
        """
        return self._executor.execute(command)

    def execute_all(self, several: Sequence[Command[T]]) -> list[T]:
        """Sends commands of one kind, in one round trip if the client is not one of a cluster; at most 10000.

        Raises:
            CommandError: the module refused one.
        """
        return self._executor.execute_all(several)

    def supports(self, *names: str) -> bool:
        """Whether the server knows these commands; without names, whether it has the module.

        Example:
            >>> hold.supports()
            True
            >>> hold.supports("SESSION.FLY")
            False
        """
        for name in names:
            arguments.name("one of the names", name)
        return not self._executor.unknown(names or PROBES)

    def require_module(self) -> None:
        """Makes sure, once, that the server has the module.

        Raises:
            ModuleMissingError: it has not.
        """
        self._executor.require_module()

    def info(self) -> dict[str, Any]:
        """The section `holdmq` of the server's INFO.

        Raises:
            ModuleMissingError: there is none.
        """
        sections = self._executor.send("INFO", "holdmq", **self._executor.anywhere())
        if not sections:
            raise ModuleMissingError("the server has no HoldMQ module: INFO has no section 'holdmq'")
        return cast("dict[str, Any]", sections)

    def sessions(self, *, connected: bool = False, page: int = 1000) -> Iterator[SessionRow]:
        """The opened sessions, node by node and in the order of their keys, read a page at a time.

        Args:
            connected: only those whose connection stands.
            page: how many sessions a page looks at, 1 to 10000.

        Raises:
            ArgumentError: a page outside of its range.

        Example:
            >>> opened = hold.session("device-10").open("reader-1", expiry=60)
            >>> [(row.client_id, row.owner) for row in hold.sessions(connected=True)]
            [('device-10', 'reader-1')]
        """
        commands.session_list(count=arguments.in_range("page", page, 1, commands.MAX_COUNT), connected=connected)
        executor = self._executor
        primaries = (executor.cluster()).get_primaries() if self.is_cluster else [None]
        for node in primaries:
            cursor = None
            while True:
                command = commands.session_list(cursor=cursor, count=page, connected=connected)
                answer = executor.execute_once(command) if node is None else executor.execute_at(node, command)
                yield from answer.sessions
                cursor = answer.cursor
                if cursor is None:
                    break

    def bridges(self) -> list[BridgeRow]:
        """The MQTT bridges that have reported within their last intervals, by name."""
        return bridges_of(self._executor)

    def clients(self, *, search: str = "*", bridge: str = "*") -> Iterator[ClientRow]:
        """The connected MQTT clients with their traffic, bridge by bridge, asked for a page at a time.

        Args:
            search: a glob over client ids.
            bridge: a glob over the names of bridges.

        Raises:
            NotAnsweredError: a bridge has not answered in time.
        """
        arguments.text("search", search)
        arguments.text("bridge", bridge)
        for one in self.bridges():
            if fnmatchcase(one.name, bridge):
                yield from clients_of(self._executor, one.name, search)

    def loudest(self, count: int = 20) -> list[ClientRow]:
        """The clients with the most messages per second over all bridges; at most 20 of a bridge are known."""
        count = arguments.any_whole("count", count, 0, sys.maxsize)
        rows = [row for one in self.bridges() for row in one.loudest]
        return sorted(rows, key=lambda row: row.received_rate + row.sent_rate, reverse=True)[:count]

    def kick(self, client_id: Text, *, why: str = "") -> bool:
        """Has its bridge disconnect a client (0x98 in MQTT 5.0).  A session that outlives its connection stays.

        Returns:
            Whether it was connected.

        Raises:
            NotAnsweredError: its bridge has not answered in time.
        """
        arguments.text("why", why)
        info = self.session(client_id).info()
        if not info.connected:
            return False
        return kick_from(self._executor, info.owner, core.session_key(client_id), why)

    def beat(self, owner: Text, lease: Duration) -> None:
        """The heartbeat of an owner of sessions (the name that `Session.open` takes).

        The sessions that it opens from then on do not end as long as it beats in time; when it does not, all sessions
        that it has connected are closed as lost: wills are published, others can take them over. A process that starts
        anew takes a new name.

        Args:
            owner: the name; in a cluster with a hash tag, one for each node.
            lease: how long this heartbeat counts, in seconds, 1 to 4294967295; 0: the owner is gone now.

        Raises:
            ArgumentError: a number outside of its range.

        Example:
            >>> hold.beat("reader-1", 30)
            >>> opened = hold.session("device-9").open("reader-1", expiry=60)
            >>> hold.beat("reader-1", 0)
        """
        self.execute(commands.session_owner(owner, lease))

    def check(self) -> tuple[str, ...]:
        """Differences between the module's indexes in memory and a rebuild from the keys; empty when all is well.

        Example:
            >>> hold.check()
            ()
        """
        return self.execute(commands.holdmq_check())
