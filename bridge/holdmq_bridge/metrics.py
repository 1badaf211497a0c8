"""What the process counts, as Prometheus wants it: made from the counters at each scrape, nothing is counted twice.

    engine's and bridge's counters ──► Collector ──► text
    INFO holdmq of the server      ──┘

Names: holdmq_bridge_<counter>_total for what only grows, holdmq_bridge_<what> for how much there is now,
holdmq_server_<name> for what the module says.  Each worker has its own; sums are Prometheus's affair.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from holdmq.core.engine import Engine

if TYPE_CHECKING:
    from holdmq_bridge.bridge import Bridge

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_PREFIX = "holdmq_bridge_"
_BY_QOS = {"publishes_received", "messages_sent"}
_BY_CODE = "refusals"
_LATENCY = ("latency_ms_sum", "latency_count", "latency_below_ms")
_TOLD_OTHERWISE = {*_LATENCY, "acknowledged_ms"}
_LATENCY_BOUNDS_S = ("0.001", "0.002", "0.005", "0.01", "0.02", "0.05", "0.1", "0.2", "0.5", "1.0", "5.0", "+Inf")

# What is counted, for people; a counter that is not here bears its name alone.
_MEANINGS = {
    "acknowledgements_unknown": "acknowledgements of clients for what was not sent to them",
    "backlogs_outgrown": "times that live messages made the queue of a connected client longer than 2,000 messages",
    "bytes_received": "bytes of whole packets from clients",
    "bytes_sent": "bytes written to clients",
    "connections_accepted": "connections taken",
    "connections_refused": "connections or connects refused: too many, or too many a second",
    "connects_denied": "connects that users and rules do not allow",
    "connects_over_quota": "connects refused because there is no room for one more session of the user, or of all",
    "connects_refused": "connections closed before they had a session: a faulty or refused CONNECT, or none in time",
    "deliveries_received": "messages pushed by the server",
    "keep_alive_expired": "clients that were silent for one and a half keep-alives",
    "messages_acknowledged": "messages that clients acknowledged",
    "messages_denied": "messages to clients not sent because rules deny their topics",
    "messages_dropped_expired": "messages to clients dropped because their time was over",
    "messages_dropped_oversized": "messages to clients dropped because the client takes none that large",
    "messages_dropped_qos0": "messages of QoS 0 to clients that read too slowly",
    "messages_sent": "messages sent to clients",
    "messages_sent_again": "messages sent to clients once more, with DUP",
    "messages_unreadable": "values in queues that are no messages",
    "packets_malformed": "packets that are none",
    "packets_over_limits": "packets refused: too large, or with too many parts",
    "packets_sent": "packets of all kinds written for clients",
    "pages_fetched": "pages of queues asked for",
    "protocol_errors": "packets that were not allowed where they came",
    "publishes_abandoned": "publishes refused because the connection to the server broke each time that they were sent",
    "publishes_acknowledged": "publishes of clients that were taken and acknowledged",
    "publishes_denied": "publishes of clients that rules do not allow",
    "publishes_dropped_qos0": "publishes of QoS 0 that the server did not take",
    "publishes_received": "publishes of clients",
    "publishes_refused": "publishes that the server refused for good",
    "publishes_repeated": "publishes of QoS 2 that had come before",
    "publishes_unheard": "publishes without a subscriber",
    "refusals": "commands that the server refused, by the code of its error; what passes is tried again",
    "server_losses": "losses of the connection to the server",
    "sessions_taken_over": "sessions that went to another connection",
    "subscriptions_refused": "filters of SUBSCRIBE packets that were not granted",
    "proxies_refused": "connections without a PROXY header, or from where none is believed",
    "waits_unconfirmed": "WAIT commands that ended without wait_replicas: acknowledgements are withheld",
    "websocket_faults": "WebSockets closed because of a frame that is not allowed",
    "websockets_refused": "requests for a WebSocket that were refused: another origin, path or subprotocol, or none",
    "slow_clients_closed": "clients closed because they did not read",
}


class BridgeCollector(Collector):
    """What one process has to tell.

    Args:
        bridge: the process's.
        server: what the module said last, by name.
    """

    def __init__(self, bridge: "Bridge", server: "Mapping[str, Told]") -> None:
        self._bridge = bridge
        self._server = server

    def collect(self) -> Iterable[Metric]:
        """All of it, as of now."""
        engine = self._bridge.engine.counters()
        own = self._bridge.own_counters()
        for name, value in {**engine, **own}.items():
            if name not in _TOLD_OTHERWISE:
                yield _counter(name, value)
        yield _latency(engine)
        for name, meaning, now in self._bridge.levels():
            gauge = GaugeMetricFamily(_PREFIX + name, meaning)
            gauge.add_metric([], now)
            yield gauge
        for name, told in self._server.items():
            kind = CounterMetricFamily if told.only_grows else GaugeMetricFamily
            family = kind(f"holdmq_server_{name}", f"INFO holdmq: {name}")
            family.add_metric([], told.number)
            yield family


def _counter(name: str, value: "int | tuple[int, ...]") -> Metric:
    labels = ["qos"] if name in _BY_QOS else ["code"] if name == _BY_CODE else []
    family = CounterMetricFamily(_PREFIX + name, _MEANINGS.get(name, name.replace("_", " ")), labels=labels)
    if isinstance(value, tuple):
        labelled = Engine.refusal_codes() if name == _BY_CODE else map(str, range(len(value)))
        for label, count in zip(labelled, value, strict=True):
            family.add_metric([label], count)
    else:
        family.add_metric([], value)
    return family


def _latency(engine: "Mapping[str, int | tuple[int, ...]]") -> Metric:
    total, below = engine["latency_ms_sum"], engine["latency_below_ms"]
    assert isinstance(total, int)
    assert isinstance(below, tuple)
    family = HistogramMetricFamily(_PREFIX + "latency_seconds", "from publishing to sending, of messages as they come")
    family.add_metric([], list(zip(_LATENCY_BOUNDS_S, accumulate(below), strict=True)), total / 1000)
    return family


class Told(NamedTuple):
    """A number of INFO."""

    number: float
    only_grows: bool


def parse_info(text: str) -> Iterator[tuple[str, Told]]:
    """The numbers of INFO holdmq, without the prefix of their names; those of its section "stats" only grow."""
    counts = False
    for line in text.splitlines():
        if line.startswith("#"):
            counts = line.endswith("stats")
            continue
        name, colon, value = line.partition(":")
        try:
            number = float(value) if colon else None
        except ValueError:
            continue
        if number is not None:
            yield name.removeprefix("holdmq_"), Told(number, counts)


class Metrics:
    """The text of a scrape."""

    def __init__(self, bridge: "Bridge") -> None:
        self.server: dict[str, Told] = {}
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(BridgeCollector(bridge, self.server))
        ProcessCollector(registry=self._registry)

    def text(self) -> bytes:
        """As of now."""
        return generate_latest(self._registry)
