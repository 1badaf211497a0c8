"""`python -m bench.cluster_routes`: the cost of a route and of a new session on a node of a cluster, for the model.

One node exports to itself and feeds itself.  CPU time is that inside the commands, as the server counts it.
"""

import json
from typing import Any

import click
import redis
from redis.crc import key_slot

from bench.cluster_servers import Setup, running
from bench.mqtt_brokers import HOST

SESSIONS = 20_000
AT_ONCE = 500
PAGE = 1000


@click.command()
@click.option("--sessions", type=click.IntRange(100, 10_000_000), default=SESSIONS, show_default=True)
def main(sessions: int) -> None:
    """Print the figures as JSON."""
    with running(Setup("routes", 1)) as broker, redis.Redis(host=HOST, port=broker.server_port) as client:
        click.echo(json.dumps(_measure(client, sessions), indent=2))


def _measure(client: redis.Redis, sessions: int) -> dict[str, float]:
    about: Any = client.execute_command("ROUTE.INFO")
    node = about[b"node"]
    client.config_resetstat()
    for first in range(0, sessions, AT_ONCE):
        with client.pipeline(transaction=False) as pipe:
            for number in range(first, min(first + AT_ONCE, sessions)):
                key = f"{{device-{number}}}"
                pipe.execute_command("SESSION.OPEN", key, "OWNER", "bench")
                pipe.execute_command("SESSION.SUBSCRIBE", key, f"fleet/device-{number}/commands", 1)
                slot = key_slot(key.encode())
                pipe.execute_command("ROUTE.ADD", f"fleet/device-{number}/commands", slot)
            pipe.execute()
    added = client.execute_command("ROUTE.INFO")
    _renew_and_feed(client, node)
    stats: Any = client.info("commandstats")
    used = {name.removeprefix("cmdstat_"): one["usec"] for name, one in stats.items()}
    return {
        "route_bytes": round(added[b"bytes"] / added[b"routes"], 1),
        "add_us": round(used["ROUTE.ADD"] / sessions, 2),
        "export_us": round(used["ROUTE.EXPORT"] / sessions, 2),
        "feed_us": round(used["ROUTE.FEED"] / sessions, 2),
        "open_us": round(used["SESSION.OPEN"] / sessions, 2),
        "subscribe_us": round(used["SESSION.SUBSCRIBE"] / sessions, 2),
    }


def _renew_and_feed(client: redis.Redis, node: bytes) -> None:
    about: Any = client.execute_command("ROUTE.INFO")
    generation = int(client.execute_command("ROUTE.RENEW", about[b"generation"]))
    cursor = b"0"
    while True:
        words = ("ROUTE.EXPORT", node, generation, "CURSOR", cursor, "COUNT", PAGE)
        routes, slots, following = client.execute_command(*words)
        feed: list[Any] = ["ROUTE.FEED", node, generation, cursor, following]
        if slots:
            feed += ["SLOTS", len(slots) // 2, *slots]
        if routes:
            feed += ["ROUTES", *routes]
        client.execute_command(*feed)
        if following == b"0":
            return
        cursor = following


if __name__ == "__main__":
    main()
