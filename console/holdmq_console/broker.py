"""The connections to the server: the asynchronous client, and the store of users, which is synchronous.

The server is a single one, the primary of a service of Sentinels, or a cluster.
"""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import redis
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry
from starlette.concurrency import run_in_threadpool

from holdmq import AsyncHoldMQ, ModuleMissingError
from holdmq.commands import Command
from holdmq.sentinel_url import SENTINEL, SentinelUrl
from holdmq_bridge.auth.records import USERS
from holdmq_bridge.auth.store import Store
from holdmq_bridge.server.kind import says_cluster
from holdmq_console.primary import Primary
from holdmq_console.problems import ProblemError


class Page(Protocol):
    """A page of a list."""

    @property
    def cursor(self) -> str | None:
        """Where it continues."""


T = TypeVar("T")
P = TypeVar("P", bound=Page)

TIMEOUT_S = 15.0
CONNECTIONS = 32
MODULE = "holdmq"
_TCP = ("redis://", "rediss://")
_WRITE_ANYWAY = "#!lua flags=allow-oom\nreturn redis.call(ARGV[1], KEYS[1], unpack(ARGV, 2))"


@dataclass(frozen=True, slots=True)
class Node:
    """A server.

    Attributes:
        address: host and port, or the path of a socket.
        at: the node of a cluster, as redis-py has it; None: there is no cluster.
    """

    address: str
    at: Any

    @property
    def options(self) -> dict[str, Any]:
        """What sends a command to it."""
        return {} if self.at is None else {"target_nodes": self.at}


class Broker:
    """One for each process.

    Args:
        server: which one.
        views: live views, each of which keeps a connection.

    Attributes:
        hold: the client.
        client: the client object of redis-py below it.
        is_cluster: whether the server is a cluster.
        primary: follows the Sentinels, if there are any.
    """

    def __init__(self, server: "ServerUrl", views: int) -> None:
        self.primary = Primary(server.url, self._leave)
        self.hold = server.connect(CONNECTIONS + views, self.primary)
        self.client: Any = self.hold.client
        self.is_cluster = server.is_cluster
        self._server = server
        self._sync: Any = None
        self._connecting = threading.Lock()
        self._leaving: set[asyncio.Task[None]] = set()

    def _leave(self) -> None:
        """Closes the connections to a former primary: it still answers, and loses what is written to it."""
        with self._connecting:
            self._sync = None
        task = asyncio.create_task(self.client.connection_pool.disconnect())
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def close(self) -> None:
        """Closes the connections."""
        await self.primary.stop()
        await self.hold.aclose()
        await self.client.aclose()
        if self._sync is not None:
            self._sync.close()

    async def forget_idle(self) -> None:
        """Closes the connections that wait in the pools: after a restart of the server each would fail once."""
        if self.is_cluster:  # it looks for the nodes by itself
            return
        pool = self.client.connection_pool
        # pool.disconnect() lets others take a connection that it is about to close: their commands would fail.
        async with getattr(pool, "_condition", pool._lock):
            for idle in list(pool._available_connections):
                await idle.disconnect(nowait=True)
        if self._sync is not None:
            self._sync.connection_pool.disconnect(inuse_connections=False)

    async def nodes(self) -> list[Node]:
        """The nodes of a cluster, the primaries first; else the server."""
        if not self.is_cluster:
            return [Node(await self._address(), None)]
        await self.client.initialize()
        found = [Node(one.name, one) for one in self.client.get_nodes()]
        return sorted(found, key=lambda node: (node.at.server_type != "primary", node.address))

    async def primaries(self) -> list[Node]:
        """Those of the nodes that have slots, in the order of their addresses."""
        return [one for one in await self.nodes() if one.at is None or one.at.server_type == "primary"]

    async def _address(self) -> str:
        pool = self.client.connection_pool
        if hasattr(pool, "get_master_address"):
            host, port = await pool.get_master_address()
            return f"{host}:{port}"
        place = pool.connection_kwargs
        return place.get("path") or f"{place.get('host', 'localhost')}:{place.get('port', 6379)}"

    async def info(self, node: Node, section: str) -> dict[str, Any]:
        """A section of INFO of a node.

        Raises:
            ModuleMissingError: the section is the module's, and the module is not loaded.
        """
        found: dict[str, Any] = await self.client.info(section, **node.options)
        if section == MODULE and not found:
            raise ModuleMissingError(f"the server {node.address} has no HoldMQ module: INFO has no section {MODULE!r}")
        return found

    async def page(self, place: str | None, make: Callable[[str | None], Command[P]]) -> tuple[P, str | None]:
        """A page of a list, and where it continues. In a cluster, node after node: a place has the node's address.

        Raises:
            ProblemError: the node is not there any more.
        """
        if not self.is_cluster:
            page = await self.hold.execute(make(place))
            return page, page.cursor
        nodes = await self.primaries()
        address, _, within = (place or f"{nodes[0].address}@").partition("@")
        at = next((number for number, one in enumerate(nodes) if one.address == address), None)
        if at is None:
            raise ProblemError(
                409, f"the cluster has no primary {address!r} any more; begin again without a cursor", field="cursor"
            )
        command = make(within or None)
        page = command.parse(await self.client.execute_command(*command.words, **command.options, **nodes[at].options))
        if page.cursor is not None:
            return page, f"{address}@{page.cursor}"
        return page, f"{nodes[at + 1].address}@" if at + 1 < len(nodes) else None

    async def next_node(self, place: str | None) -> str | None:
        """Where a list continues after the node of a place; None: nowhere."""
        if not self.is_cluster:
            return None
        addresses = [one.address for one in await self.primaries()]
        address = (place or addresses[0]).partition("@")[0]
        rest = addresses[addresses.index(address) + 1 :] if address in addresses else []
        return f"{rest[0]}@" if rest else None

    async def place_at(self, place: str | None, within: str) -> str:
        """A place within the node of another place."""
        if not self.is_cluster:
            return within
        address = (place or (await self.primaries())[0].address).partition("@")[0]
        return f"{address}@{within}"

    async def write(self, command: str, key: str, *arguments: Any) -> Any:
        """Writes a small key of the console, even if the memory of the server is full.

        Otherwise nobody could log in and remove anything then. What is written so is bounded.
        """
        try:
            return await self.client.execute_command(command, key, *arguments)
        except redis.exceptions.OutOfMemoryError:
            return await self.client.eval(_WRITE_ANYWAY, 1, key, command, *arguments)

    async def store(self, use: Callable[[Store], T], *, expected: int | None = None) -> T:
        """Calls a function with the store of users, in a thread.

        Args:
            use: the function.
            expected: the version that an edit needs; None: any.
        """
        return await run_in_threadpool(lambda: use(Store(self._store_client(), expected=expected)))

    def _store_client(self) -> redis.Redis:
        with self._connecting:
            if self._sync is None:
                self._sync = self._server.connect_store()
        return store_node(self._sync)


def store_node(client: Any) -> redis.Redis:
    """The client of the node with the users. All their keys are in one slot: an edit is a transaction there."""
    found: redis.Redis = client
    if isinstance(client, redis.RedisCluster):
        found = client.get_redis_connection(client.get_node_from_key(USERS))
    return found


@dataclass(frozen=True, slots=True)
class ServerUrl:
    """The server as the command line names it.

    Attributes:
        url: with its password if it has one.
        is_cluster: whether it is a node of a cluster, all of which is meant.
    """

    url: str
    is_cluster: bool = False

    def names_node_of_cluster(self, timeout_s: float) -> bool:
        """Asks the server. False, too, if it does not answer now, or has no address of TCP, or if Sentinels know it.

        Raises:
            ValueError: the URL has another form.
        """
        if not self.url.startswith(_TCP):
            return False
        retry = Retry(NoBackoff(), 0)
        times: dict[str, Any] = {"socket_timeout": timeout_s, "socket_connect_timeout": timeout_s, "retry": retry}
        try:
            with redis.Redis.from_url(self.url, db=0, **times) as client:
                return says_cluster(client.execute_command("HELLO"))
        except redis.RedisError:
            return False  # whoever uses the server next gets the reason

    def connect(self, connections: int, primary: Primary) -> AsyncHoldMQ[bytes]:
        """The client of the console.

        Args:
            connections: most connections at a time.
            primary: finds the server, if Sentinels name it.

        Raises:
            ValueError: the URL has another form.
        """
        times: dict[str, Any] = {"socket_timeout": TIMEOUT_S, "socket_connect_timeout": TIMEOUT_S}
        if self.is_cluster:
            return AsyncHoldMQ.from_url(self.url, cluster=True, **times)
        if primary.has_sentinels:
            return AsyncHoldMQ(primary.client(retry=AsyncRetry(NoBackoff(), 0), **times))
        return AsyncHoldMQ.from_url(self.url, max_connections=connections, **times)

    def connect_store(self, timeout_s: float = TIMEOUT_S) -> Any:
        """A client without retries, for the store of users.

        Raises:
            ValueError: the URL has another form.
        """
        times: dict[str, Any] = {"socket_timeout": timeout_s, "socket_connect_timeout": timeout_s}
        if self.is_cluster:
            return redis.RedisCluster.from_url(self.url, **times)
        retry = Retry(NoBackoff(), 0)
        if self.url.startswith(SENTINEL):
            return SentinelUrl.parse(self.url).client(retry=retry, **times)
        return redis.Redis.from_url(self.url, retry=retry, **times)
