"""The server of the commands of `holdmq-bridge`: that of the URL, the primary, or the node that has the keys."""

from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from holdmq.core import slot_of
from holdmq.password import with_password
from holdmq.primary import Primary
from holdmq.sentinel_url import SENTINEL, SentinelUrl
from holdmq_bridge.server.cluster_map import ClusterMap, View
from holdmq_bridge.server.kind import says_cluster

_TIMEOUT_S = 30.0


def client_of(url: str) -> tuple[redis.Redis, Primary | None]:
    """A client that tries each command once, and the primary if the URL names Sentinels.

    It connects with the first command.

    Raises:
        ValueError: it is not a valid URL.
    """
    options: dict[str, Any] = {
        "socket_timeout": _TIMEOUT_S,
        "socket_connect_timeout": _TIMEOUT_S,
        "retry": Retry(NoBackoff(), 0),
        "decode_responses": False,
    }
    full = with_password(url)
    if not full.startswith(SENTINEL):
        return redis.Redis.from_url(full, **options), None
    parsed = SentinelUrl.parse(full)
    return parsed.client(**options), parsed.primary()


def is_node_of_cluster(client: redis.Redis) -> bool:
    """Whether the server is a node of a cluster."""
    return says_cluster(client.execute_command("HELLO"))


def node_with(client: redis.Redis, key: bytes) -> redis.Redis:
    """The client for a key: this one, or in a cluster a new one for the node that has the key.

    Raises:
        OSError: no node has the slot of the key.
        ClusterError: the cluster cannot be used.
    """
    if not is_node_of_cluster(client):
        return client
    options: dict[str, Any] = client.get_connection_kwargs()
    asked = (str(options["host"]), int(options["port"]))
    nodes = ClusterMap()
    nodes.take(View.read(asked, client.execute_command("CLUSTER", "INFO"), client.execute_command("CLUSTER", "SLOTS")))
    node = nodes.node_of(slot_of(key))
    if node is None:
        raise OSError(f"no node of the cluster has slot {slot_of(key)}")
    if node.address == asked:
        return client
    host, port = node.address
    pool = redis.ConnectionPool(
        connection_class=client.connection_pool.connection_class, **{**options, "host": host, "port": port}
    )
    return redis.Redis.from_pool(pool)
