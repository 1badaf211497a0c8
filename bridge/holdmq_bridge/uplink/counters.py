"""Counters and levels of a link, as Prometheus metrics.

Only the thread of the event loop writes them.  The thread that answers /metrics reads whole integers.
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric


@dataclass(slots=True)
class Counters:
    """One object for each link.  The names are those of the metrics, holdmq_link_<name>_total."""

    received: int = 0  # messages from the other broker
    repeated: int = 0  # ... of QoS 2 that were received before
    published: int = 0  # ... published at HoldMQ
    sent: int = 0  # messages to the other broker, repetitions included
    acknowledged: int = 0  # ... of QoS 1 and 2 that it has now
    looped: int = 0  # dropped because they had passed this broker before
    dropped: int = 0  # QoS 0, because a side was too slow or in trouble
    refused: int = 0  # refused for good by one of the sides
    connections: int = 0  # made to the other broker
    losses: int = 0  # and lost
    takeovers: int = 0  # another process has the link's name

    # Present levels (gauges).
    connected: int = 0
    inflight: int = 0  # messages to the other broker not acknowledged yet
    pending: int = 0  # packets from the other broker not answered yet


_GAUGES = ("connected", "inflight", "pending")

_MEANINGS = {
    "received": "Messages received from the other broker.",
    "repeated": "Messages of QoS 2 that the other broker sent again.",
    "published": "Messages from the other broker published at HoldMQ.",
    "sent": "Messages sent to the other broker, repetitions included.",
    "acknowledged": "Messages of QoS 1 and 2 acknowledged by the other broker.",
    "looped": "Messages left out because they had passed this broker before.",
    "dropped": "Messages of QoS 0 dropped because a side was too slow or away.",
    "refused": "Messages that one of the sides refused for good.",
    "connections": "Connections made to the other broker.",
    "losses": "Connections to the other broker that were lost.",
    "takeovers": "Times that another process took the link over.",
    "connected": "1 while the link is connected to the other broker, else 0.",
    "inflight": "Messages sent to the other broker and not yet acknowledged.",
    "pending": "Packets from the other broker that are not answered yet.",
}


class Collector:
    """The counters of all links of a process, for prometheus_client."""

    def __init__(self, links: dict[str, Counters]) -> None:
        self._links = links

    def collect(self) -> Iterable[Metric]:
        """One family for each counter or level."""
        for field in fields(Counters):
            name = f"holdmq_link_{field.name}"
            family = GaugeMetricFamily if field.name in _GAUGES else CounterMetricFamily
            metric = family(name, _MEANINGS[field.name], labels=["link"])
            for link, counters in self._links.items():
                metric.add_metric([link], getattr(counters, field.name))
            yield metric
