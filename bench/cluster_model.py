"""`python -m bench.cluster_model`: what a cluster of many nodes would need, computed from figures of small ones.

It is a model: nobody has run these clusters. It multiplies the figures of bench/cluster_measured.json. It assumes
that a message between two clients costs what it costs on six nodes. `make bench-cluster` finds the figures of a
message, and `bench.cluster_routes` those of a route. docs/scaling.md has the tables; a test compares them.
"""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

MEASURED = Path(__file__).with_name("cluster_measured.json")
NODES = (16, 64)
RATES = (1_000_000, 10_000_000)  # messages published a second, each delivered to one session
SESSIONS = 1_000_000
BUSY = 0.6  # of a core that a node or a bridge process may use at most: the rest is for peaks
TBMQ_PER_CORE = 8_900  # published: 1,000,000 messages/s on 5 brokers, 11 Redis and 5 Kafka machines


@dataclass(frozen=True)
class Measured:
    """What the model multiplies.

    Attributes:
        servers_us: CPU time of all nodes for a message that comes in or goes out.
        bridge_us: the same of the bridge.
        route_bytes: memory of a route, on each node.
        add_us: CPU time of a node for a new route.
        export_us: CPU time of a node for a route that it exports.
        feed_us: CPU time of a node for a route that it is fed.
        open_us: CPU time of a node for SESSION.OPEN.
        subscribe_us: CPU time of a node for SESSION.SUBSCRIBE.
    """

    servers_us: float
    bridge_us: float
    route_bytes: float
    add_us: float
    export_us: float
    feed_us: float
    open_us: float
    subscribe_us: float


def measured(path: Path = MEASURED) -> Measured:
    """The figures of a file."""
    return Measured(**json.loads(path.read_text())["model"])


def needed(found: Measured, rate: int) -> tuple[int, int]:
    """Nodes and bridge processes, one core each, for so many messages a second."""
    packets = 2 * rate  # each comes in and goes out
    return (
        math.ceil(packets * found.servers_us / 1e6 / BUSY),
        math.ceil(packets * found.bridge_us / 1e6 / BUSY),
    )


def cores_table(found: Measured) -> Iterator[str]:
    """Nodes and cores for each rate, beside TBMQ."""
    yield "| messages/s | nodes | bridge processes | cores | messages/s per core | TBMQ: cores |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for rate in RATES:
        nodes, bridges = needed(found, rate)
        cores = nodes + bridges
        tbmq = math.ceil(rate / TBMQ_PER_CORE)
        yield f"| {rate:,} | {nodes} | {bridges} | {cores} | {rate / cores:,.0f} | {tbmq:,} |"


def nodes_table(found: Measured) -> Iterator[str]:
    """What clusters of 16 and 64 nodes carry, and what their routes take."""
    yield "| nodes | messages/s at most | routes on each node | sessions that wait for a lost node |"
    yield "| --- | --- | --- | --- |"
    for nodes in NODES:
        most = nodes * BUSY * 1e6 / found.servers_us / 2
        memory = SESSIONS * found.route_bytes / 1e6
        yield f"| {nodes} | {most:,.0f} | {memory:,.0f} MB | {SESSIONS // nodes:,} |"


def events_table(found: Measured) -> Iterator[str]:
    """Seconds of CPU time that rare events cost."""
    yield "| event | 16 nodes | 64 nodes |"
    yield "| --- | --- | --- |"
    fed = SESSIONS * found.feed_us / 1e6
    yield f"| a promoted node is fed all routes: CPU time there | {fed:.1f} s | {fed:.1f} s |"
    exports = [f"{SESSIONS / nodes * found.export_us / 1e6:.2f} s" for nodes in NODES]
    yield f"| ... and on each other node | {exports[0]} | {exports[1]} |"
    opens = [f"{SESSIONS / nodes * found.open_us / 1e6:.1f} s" for nodes in NODES]
    yield f"| all sessions reconnect, subscriptions kept: CPU time of each node | {opens[0]} | {opens[1]} |"
    news = [
        f"{(SESSIONS / nodes * (found.open_us + found.subscribe_us) + SESSIONS * found.add_us) / 1e6:.1f} s"
        for nodes in NODES
    ]
    yield f"| all clients come with new sessions, a filter each: CPU time of each node | {news[0]} | {news[1]} |"


def tables(found: Measured) -> list[str]:
    """All lines of all tables."""
    return [*cores_table(found), *nodes_table(found), *events_table(found)]


@click.command()
@click.option("--json", "path", type=click.Path(exists=True, path_type=Path), default=MEASURED, show_default=False)
def main(path: Path) -> None:
    """Print the tables of docs/scaling.md."""
    for table in (cores_table, nodes_table, events_table):
        click.echo("\n".join([*table(measured(path)), ""]))


if __name__ == "__main__":
    main()
