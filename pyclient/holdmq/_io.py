"""The few operations that differ between the synchronous and the asyncio client, each written twice by hand.

Everything else in `_sync/` is generated from `_async/`, where `async_<name>` becomes `<name>`. Both flavours of
redis-py and valkey-py are reached by their shape, never by their type.
"""

import asyncio
import functools
import inspect
import time
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any, Protocol, TypeAlias, cast

import redis
import redis.asyncio

from holdmq.errors import ArgumentError, library_of, lost_of

MAX_CONNECTIONS = 100
"""Most connections of a client of `from_url`, by default: the default of redis-py."""
READ_TIMEOUT_S = 30.0
"""How long the rest of a message may take."""


class AsyncClient(Protocol):
    """The shape of an asyncio client object."""

    def execute_command(self, *args: Any, **options: Any) -> Awaitable[Any]: ...

    def __aenter__(self) -> Any:
        """Distinguishes it from a synchronous client."""


class Client(Protocol):
    """The shape of a synchronous client object."""

    def execute_command(self, *args: Any, **options: Any) -> Any: ...

    def __enter__(self) -> Any:
        """Distinguishes it from an asyncio client."""


def async_check_client(client: object) -> None:
    """Refuses a value that is not an asyncio client.

    Raises:
        ArgumentError: it cannot send commands, or is known to be of the other kind.
    """
    _check_client(client, is_async=True)


def check_client(client: object) -> None:
    """Refuses a value that is not a synchronous client.

    Raises:
        ArgumentError: it cannot send commands, or is known to be of the other kind.
    """
    _check_client(client, is_async=False)


def _check_client(client: object, *, is_async: bool) -> None:
    shown = f"client is of type {type(client).__module__}.{type(client).__qualname__}"
    send = getattr(client, "execute_command", None)
    if isinstance(client, type) or not callable(send):
        raise ArgumentError(f"client is {client!r}; expected a client object of redis-py or of the same shape")
    if hasattr(client, "command_stack"):
        raise ArgumentError(f"{shown}, a pipeline; expected the client that made it")
    for attribute, kind in (("handle_message", "pub/sub object"), ("master_for", "Sentinel")):
        if hasattr(client, attribute):
            raise ArgumentError(f"{shown}, a {kind}; expected a client object of a server or a cluster")
    if inspect.iscoroutinefunction(send) and not is_async:
        raise ArgumentError(f"{shown}, which is an asyncio client; expected a synchronous one, or AsyncHoldMQ")
    if is_async and not inspect.iscoroutinefunction(send) and not hasattr(client, "__aenter__"):
        raise ArgumentError(f"{shown}, which is not an asyncio client; expected one of redis.asyncio, or HoldMQ")


async def async_sleep(seconds: float) -> None:
    """Waits without blocking the event loop."""
    await asyncio.sleep(seconds)


def sleep(seconds: float) -> None:
    time.sleep(seconds)


def async_cancellations() -> int:
    """How often the running task was cancelled."""
    task = asyncio.current_task()
    return task.cancelling() if task else 0


def cancellations() -> int:
    """Always 0: threads are not cancelled."""
    return 0


def async_raise_if_cancelled(before: int) -> None:
    """Raises CancelledError if the running task was cancelled more often than `before` without an exception.

    redis-py sends through `asyncio.wait_for`, which in Python 3.11 forgets a cancellation that comes together with the
    result.
    """
    if async_cancellations() > before:
        raise asyncio.CancelledError


def raise_if_cancelled(before: int) -> None:
    """Does nothing: see `cancellations`."""


def async_connect(url: str, **options: Any) -> Any:
    """Makes an asyncio client of redis-py. Its commands wait for a connection if all are in use."""
    options = _identified(options)
    single = options.pop("single_connection_client", False)
    pool = redis.asyncio.BlockingConnectionPool.from_url(url, **{"max_connections": MAX_CONNECTIONS, **options})
    client = redis.asyncio.Redis(connection_pool=pool, single_connection_client=single)
    client.auto_close_connection_pool = True
    return client


def connect(url: str, **options: Any) -> Any:
    """Makes a client of redis-py. Its commands wait for a connection if all are in use."""
    options = _identified(options)
    single = options.pop("single_connection_client", False)
    pool = redis.BlockingConnectionPool.from_url(url, **{"max_connections": MAX_CONNECTIONS, **options})
    client = redis.Redis(connection_pool=pool, single_connection_client=single)
    client.auto_close_connection_pool = True
    return client


def async_connect_cluster(url: str, **options: Any) -> Any:
    """Makes an asyncio client of redis-py for the cluster that the address is a node of."""
    return redis.asyncio.RedisCluster.from_url(url, **_identified(options))


def connect_cluster(url: str, **options: Any) -> Any:
    """Makes a client of redis-py for the cluster that the address is a node of. It connects at once."""
    return redis.RedisCluster.from_url(url, **_identified(options))


async def async_close(thing: Any) -> None:
    """Closes a client or a pub/sub object."""
    await thing.aclose()


def close(thing: Any) -> None:
    """Closes a client or a pub/sub object."""
    thing.close()


def async_renew(client: Any) -> bool:
    """Drops the connections of a closed event loop. Returns False for a cluster client.

    Its nodes have their own connections and locks, which cannot be renewed from outside.
    """
    reset = getattr(getattr(client, "connection_pool", None), "reset", None)
    if reset is not None:
        reset()
    return not hasattr(client, "get_primaries")


def renew(client: Any) -> bool:
    """Makes a cluster client reload its nodes: a fork may have copied a half-written table."""
    if hasattr(client, "get_primaries"):
        reload(client)
    return True


async def async_nodes(client: Any) -> Any:
    """Returns the cluster client after it has learned the nodes. The asyncio client asks with its first command."""
    return await client.initialize()


def nodes(client: Any) -> Any:
    """Returns the cluster client, which knows the nodes from the beginning."""
    return client


async def async_reload(client: Any) -> None:
    """Makes a cluster client reload the table of slots."""
    await client.nodes_manager.initialize()


def reload(client: Any) -> None:
    """Makes a cluster client reload the table of slots."""
    client.nodes_manager.initialize()


async def async_ask(
    client: Any,  # noqa: ARG001 - the synchronous one needs it
    node: Any,
    words: Sequence[Any],
    options: Mapping[str, Any],
) -> Any:
    """Returns the reply of one node of a cluster. Raises redirections instead of following them."""
    return await node.execute_command(*words, **options)


def ask(client: Any, node: Any, words: Sequence[Any], options: Mapping[str, Any]) -> Any:
    """Returns the reply of one node of a cluster. Raises redirections instead of following them."""
    connection_to = getattr(client, "get_redis_connection", None) or client.get_valkey_connection
    return connection_to(node).execute_command(*words, **options)


@dataclass(frozen=True, slots=True)
class NodeReplies:
    """What one node replied to several commands.

    Attributes:
        values: the replies, in order; errors of the server are among them. Fewer than commands if the connection broke.
        error: why it broke, or why there was none; None if all replies came.
        is_sent: whether commands were sent: without a reply it is not known whether they were carried out.
    """

    values: list[Any]
    error: Exception | None = None
    is_sent: bool = True


Questions: TypeAlias = Sequence[tuple[Any, Sequence[Sequence[Any]]]]
"""Nodes, each with the commands for it."""


async def async_ask_nodes(client: Any, questions: Questions) -> list[NodeReplies]:
    """Sends several nodes of a cluster their commands, and reads all replies. They work at the same time.

    Nothing is decoded, repeated or redirected.
    """
    lost = lost_of(client)
    return await asyncio.gather(*(_ask_node(node, commands, lost) for node, commands in questions))


async def _ask_node(node: Any, commands: Sequence[Sequence[Any]], lost: tuple[type[Exception], ...]) -> NodeReplies:
    values: list[Any] = []
    connection = node.acquire_connection()
    is_sent = False
    try:
        await _make_ready(connection, lost)
        is_sent = True
        await connection.send_packed_command(connection.pack_commands(commands))
        while len(values) < len(commands):
            try:
                values.append(await connection.read_response(disable_decoding=True))
            except Exception as error:
                if not isinstance(error, library_of(error).ResponseError):
                    raise
                values.append(error)
    except lost as error:
        return NodeReplies(values, error, is_sent)
    finally:
        if len(values) < len(commands):  # a later command must not get these replies
            await connection.disconnect(nowait=True)
        if hasattr(node, "release"):
            node.release(connection)
        else:
            node._free.append(connection)  # as valkey-py itself gives it back
    return NodeReplies(values)


async def _make_ready(connection: Any, lost: tuple[type[Exception], ...]) -> None:
    """Connects, also again if the node has closed the connection since its last use."""
    try:
        await connection.connect()
        can_read = getattr(connection, "can_read", None) or connection.can_read_destructive  # valkey-py has the latter
        is_ready = not await can_read()
    except lost:
        is_ready = False
    if not is_ready:
        await connection.disconnect(nowait=True)
        await connection.connect()


def ask_nodes(client: Any, questions: Questions) -> list[NodeReplies]:
    """Sends several nodes of a cluster their commands, and reads all replies. They work at the same time.

    Nothing is decoded, repeated or redirected.
    """
    lost = lost_of(client)
    asked = [_Asked(client, node, commands) for node, commands in questions]
    try:
        for one in asked:
            one.send(lost)
        for one in asked:
            one.receive(lost)
    finally:
        for one in asked:
            one.release()
    return [NodeReplies(one.values, one.error, one.is_sent) for one in asked]


class _Asked:
    """A connection to a node with commands under way."""

    def __init__(self, client: Any, node: Any, commands: Sequence[Sequence[Any]]) -> None:
        self._client = client
        self._node = node
        self._commands = commands
        self._pool: Any = None
        self._connection: Any = None
        self.values: list[Any] = []
        self.error: Exception | None = None
        self.is_sent = False

    def send(self, lost: tuple[type[Exception], ...]) -> None:
        connection_to = getattr(self._client, "get_redis_connection", None) or self._client.get_valkey_connection
        try:
            self._pool = connection_to(self._node).connection_pool
            self._connection = self._pool.get_connection(*_get_words(self._pool.__class__))
            self.is_sent = True
            self._connection.send_packed_command(self._connection.pack_commands(self._commands))
        except lost as error:
            self.error = error

    def receive(self, lost: tuple[type[Exception], ...]) -> None:
        while self.error is None and len(self.values) < len(self._commands):
            try:
                self.values.append(self._connection.read_response(disable_decoding=True))
            except lost as error:
                self.error = error
            except Exception as error:
                if not isinstance(error, library_of(error).ResponseError):
                    raise
                self.values.append(error)

    def release(self) -> None:
        if self._connection is None:
            return
        if len(self.values) < len(self._commands):  # a later command must not get these replies
            self._connection.disconnect()
        self._pool.release(self._connection)


@functools.cache
def _get_words(pool: type) -> tuple[str, ...]:
    """The arguments of the pool's `get_connection`: valkey-py asks for a command that it does not use."""
    parameters = inspect.signature(cast("Any", pool).get_connection).parameters
    name = parameters.get("command_name")
    return () if name is None or name.default is None else ("TOPIC.PUBLISH",)


async def async_read(pubsub: Any, timeout: float) -> Any:  # noqa: ASYNC109 - redis-py's own time limit
    """Returns the next raw pub/sub reply. None if none comes in time.

    It is the connection that is read: when that is lost, `parse_response` of redis-py connects and subscribes again by
    itself, and then raises all the same if it has no tries left (it has none by default). Whoever makes a new pub/sub
    object for that error would lose what the server has handed over to the one before.
    """
    return await pubsub.connection.read_response(timeout=timeout, disconnect_on_error=False, push_request=True)


def read(pubsub: Any, timeout: float) -> Any:
    """Returns the next raw pub/sub reply. None if none comes in time; see `async_read`.

    A message that has begun must not be given up, which would cost the connection: whether it has begun and whether it
    has ended are asked for one after the other, with time limits of their own.
    """
    connection = pubsub.connection
    if not connection.can_read(timeout=timeout):
        return None
    return connection.read_response(disconnect_on_error=False, push_request=True, **_rest(connection.__class__))


@functools.cache
def _rest(connection: type) -> dict[str, float]:
    """How long the rest of a message may take, for connections that accept a limit (those of valkey-py do not)."""
    known = inspect.signature(cast("Any", connection).read_response).parameters
    return {"timeout": READ_TIMEOUT_S} if "timeout" in known else {}


async def async_ping(pubsub: Any, text: str) -> None:
    """Sends a PING on a connection with subscriptions. Like `async_read`, it does not reconnect."""
    await pubsub.connection.send_command("PING", text, check_health=False)


def ping(pubsub: Any, text: str) -> None:
    """Sends a PING on a connection with subscriptions. Like `read`, it does not reconnect."""
    pubsub.connection.send_command("PING", text, check_health=False)


async def async_handle(pubsub: Any, reply: Any) -> Any:
    """Passes a raw pub/sub reply to the library's own handler."""
    return await pubsub.handle_message(reply)


def handle(pubsub: Any, reply: Any) -> Any:
    """Passes a raw pub/sub reply to the library's own handler."""
    return pubsub.handle_message(reply)


def _identified(options: dict[str, Any]) -> dict[str, Any]:
    """Options that name HoldMQ in CLIENT LIST."""
    if "driver_info" not in options and "lib_name" not in options:
        driver = redis.DriverInfo().add_upstream_driver("holdmq", metadata.version("holdmq"))
        options = {**options, "driver_info": driver}
    return options
