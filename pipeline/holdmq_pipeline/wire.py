"""Connections of tasks to one node or a cluster; the server's reply decides which it is.

A `Link` is made where it is used, in a task or in Spark's planning process, and never pickled.

Invariants:

1. Every request that is repeated after a lost connection or a moved slot only reads, or its arguments make it
   idempotent.
2. Retries end: after `PATIENCE_S` the error goes to Spark, which may run the task elsewhere.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, TypeVar

import redis
from hiredis import pack_command
from redis.backoff import NoBackoff
from redis.cluster import RedisCluster
from redis.exceptions import (
    AskError,
    BusyLoadingError,
    ClusterDownError,
    ReadOnlyError,
    TryAgainError,
)
from redis.exceptions import (
    ConnectionError as LostConnectionError,
)
from redis.exceptions import (
    TimeoutError as ReplyTimeoutError,
)
from redis.retry import Retry

from holdmq import HoldMQ
from holdmq_pipeline.errors import OptionError
from holdmq_pipeline.options import Options

__all__ = [
    "Link",
    "Patience",
    "as_map",
    "checked",
    "command",
    "patiently",
    "patiently_between",
    "range_key",
    "received",
    "text_at",
]

T = TypeVar("T")

PATIENCE_S = 30.0
FIRST_PAUSE_S = 0.01
LONGEST_PAUSE_S = 1.0
TIMEOUT_S = 60.0
READ_BYTES = 1 << 20
PASSING = (
    BusyLoadingError, ClusterDownError, LostConnectionError, AskError, ReadOnlyError, ReplyTimeoutError, TryAgainError,
)  # fmt: skip
"""Errors that may be gone in a moment; MovedError is an AskError."""


def range_key(store: str, shard: int) -> bytes:
    """The key by whose slot the commands about a shard are routed."""
    return f"{{{store}/{shard}}}_history".encode()


class Link:
    """The servers that the options name.

    Args:
        options: url and passwordFile count.

    Attributes:
        hold: the client, of redis-py's cluster kind if the server is a node of one.
    """

    def __init__(self, options: Options) -> None:
        arguments: dict[str, Any] = {
            "socket_timeout": TIMEOUT_S,
            "socket_connect_timeout": 10.0,
            "socket_read_size": READ_BYTES,
            "retry": Retry(NoBackoff(), 0),
        }
        if "passwordFile" in options:
            arguments["password"] = Path(options.text("passwordFile")).read_text().strip()
        url = options.text("url")
        single = HoldMQ.from_url(url, **arguments)
        try:
            clustered = patiently(lambda: single.client.info("cluster")).get("cluster_enabled") == 1
        except BaseException:
            single.close()
            raise
        if clustered:
            single.close()
            single = HoldMQ(RedisCluster.from_url(url, **{**arguments, "retry": Retry(NoBackoff(), 3)}))
        self.hold = single

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends all connections."""
        if self.is_cluster:
            self.hold.client.disconnect_connection_pools()  # `close` leaves them to the garbage collector
        self.hold.client.close()

    @property
    def is_cluster(self) -> bool:
        """Whether the keys are spread over several nodes."""
        return bool(self.hold.is_cluster)

    def primaries(self) -> list[redis.Redis]:
        """A client for each node that has slots."""
        if not self.is_cluster:
            return [self.hold.client]
        cluster = self.hold.client
        return [cluster.get_redis_connection(node) for node in cluster.get_primaries()]

    def node(self, key: bytes) -> redis.Redis:
        """The client of the node that has the key, as far as is known."""
        if not self.is_cluster:
            return self.hold.client  # type: ignore[no-any-return]
        cluster = self.hold.client
        return cluster.get_redis_connection(cluster.get_node_from_key(key))  # type: ignore[no-any-return]

    def forget(self) -> None:
        """Forgets which node has which slot, so that the next command asks."""
        if self.is_cluster:
            self.hold.client.nodes_manager.initialize()

    def ask(self, key: bytes, *words: Any) -> Any:
        """Sends a command that may be repeated to the node that has the key; replies are bytes."""
        return patiently(lambda: self.node(key).execute_command(*words), self.forget)

    def ask_all(self, asked: Sequence[tuple[bytes, bytes]]) -> list[Any]:
        """Sends commands (a key and the command, packed) that may be repeated, all at once, to the nodes of their keys.

        Errors of the server are among the replies. A command whose slot is on its way, or whose connection was lost, is
        sent again by itself, so perhaps after a later one of the same key.
        """
        replies: list[Any] = [None] * len(asked)
        by_node: dict[Any, list[int]] = {}
        if self.is_cluster:
            for at, (key, _) in enumerate(asked):
                by_node.setdefault(self.node(key), []).append(at)
        elif asked:
            by_node[self.hold.client] = list(range(len(asked)))
        for node, own in by_node.items():
            for at, reply in zip(own, self._answers(node, [asked[at][1] for at in own]), strict=True):
                passing = isinstance(reply, Exception) and isinstance(reply, PASSING)
                replies[at] = self._ask_packed(*asked[at]) if passing else reply
        return replies

    def _answers(self, node: redis.Redis, commands: Sequence[bytes]) -> list[Any]:
        """What a node says to commands; to all of them the error, if the connection is lost."""
        try:
            with self.connection(node) as connection:
                connection.send_packed_command([b"".join(commands)])
                return received(connection, len(commands))
        except PASSING as error:
            return [error] * len(commands)

    def _ask_packed(self, key: bytes, words: bytes) -> Any:
        """Sends one packed command, and again after temporary errors."""

        def once() -> Any:
            reply = self._answers(self.node(key), [words])[0]
            if isinstance(reply, PASSING):
                raise reply
            return reply

        patiently_between(self.forget)
        return patiently(once, self.forget)

    def connection_to(self, key: bytes) -> Any:
        """A connection of the caller's own to the node that has the key; the caller disconnects it."""
        connection = self.node(key).connection_pool.make_connection()
        connection.connect()
        return connection

    @contextmanager
    def connection(self, node: redis.Redis) -> Iterator[Any]:
        """A connection of its own for commands whose replies are read later; broken ones are thrown away."""
        pool = node.connection_pool
        connection = pool.get_connection()
        try:
            yield connection
        except BaseException:
            connection.disconnect()
            raise
        finally:
            pool.release(connection)

    def store(self, wanted: str) -> dict[bytes, Any]:
        """HISTORY.INFO of the store that is wanted, or of the only one.

        Raises:
            OptionError: there are several, or none.
        """
        if not wanted:
            stores = patiently(self._store_names, self.forget)
            if len(stores) != 1:
                raise OptionError(
                    f"option store is missing; expected one of {', '.join(stores) or 'none: there is no store'}"
                )
            wanted = stores[0]
        info = self._info(wanted, 0) if self.is_cluster else as_map(self.ask(b"", "HISTORY.INFO", wanted))
        others = range(1, info[b"shards"]) if self.is_cluster else ()
        shards = [*info[b"shard"], *(shard for other in others for shard in self._info(wanted, other)[b"shard"])]
        info[b"shard"] = [as_map(shard) for shard in shards]
        return info

    def _info(self, store: str, shard: int) -> dict[bytes, Any]:
        """HISTORY.INFO of one shard, wherever it is."""
        return as_map(self.ask(range_key(store, shard), "HISTORY.INFO", store, "SHARD", shard))

    def _store_names(self) -> list[str]:
        """The stores of all nodes, by name."""
        parts = [node.execute_command("HISTORY.STORES") for node in self.primaries()]
        return sorted({as_map(one)[b"store"].decode() for part in parts for one in part})


class Patience:
    """Waits between tries, longer each time, until `PATIENCE_S` have passed without any success."""

    def __init__(self) -> None:
        self.succeed()

    def succeed(self) -> None:
        """Notes a success: the time starts again."""
        self._deadline = time.monotonic() + PATIENCE_S
        self._pause = FIRST_PAUSE_S

    def wait(self) -> bool:
        """A pause; False, at once, if the time would be over then."""
        if time.monotonic() + self._pause > self._deadline:
            return False
        time.sleep(self._pause)
        self._pause = min(self._pause * 2, LONGEST_PAUSE_S)
        return True


def patiently(do: Callable[[], T], between: Callable[[], None] | None = None) -> T:
    """Repeats a call while its error may be temporary, with growing pauses, for at most `PATIENCE_S`."""
    patience = Patience()
    while True:
        try:
            return do()
        except PASSING:
            if not patience.wait():
                raise
        if between is not None:
            patiently_between(between)


def patiently_between(between: Callable[[], None]) -> None:
    """Errors between two attempts are ignored: the next attempt shows them again."""
    try:
        between()
    except PASSING:
        return


def command(*words: Any) -> bytes:
    """The bytes of a command."""
    return pack_command(words)  # type: ignore[no-any-return]


def received(connection: Any, count: int) -> list[Any]:
    """Receives this many replies. Errors of the server are among them, those of the connection are raised."""
    replies = []
    for _ in range(count):
        try:
            replies.append(connection.read_response(disable_decoding=True))
        except redis.ResponseError as error:
            replies.append(error)
    return replies


def text_at(packed: bytes, at: int) -> tuple[bytes, int]:
    """The text of a packed command that begins here, and where the next one does."""
    begin = packed.index(b"\r\n", at) + 2
    end = begin + int(packed[at + 1 : begin - 2])
    return packed[begin:end], end + 2


def checked(replies: list[Any]) -> list[Any]:
    """The replies, if none is an error; else that is raised."""
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    return replies


def as_map(reply: Any) -> dict[bytes, Any]:
    """A map, as RESP3 has it or as RESP2 flattens it."""
    if isinstance(reply, dict):
        return dict(reply)
    return dict(zip(reply[::2], reply[1::2], strict=True))
