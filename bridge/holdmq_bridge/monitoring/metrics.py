"""The metrics of a process for Prometheus, made from its counters at each scrape.

    engine's and bridge's counters ──► Collector ──► text      (help texts: meanings.py)
    INFO holdmq of the server      ──┘

Names: holdmq_bridge_<counter>_total for counters, holdmq_bridge_<level> for present levels, holdmq_server_<name> for
numbers of the module.  In a cluster what concerns a node has the label `node`.  Each worker has metrics of its own.
Prometheus sums them up.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from holdmq.core.engine import Engine
from holdmq_bridge.broker.bridge import Bridge
from holdmq_bridge.monitoring.meanings import ACKNOWLEDGE, COUNTERS, LATENCY, LEVELS, SERVER

if TYPE_CHECKING:
    from holdmq_bridge.server.servers import Servers

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_PREFIX = "holdmq_bridge_"
_BY_QOS = {"publishes_received", "messages_sent"}
_BY_CODE = "refusals"
_LATENCY = ("latency_ms_sum", "latency_count", "latency_below_ms", "acknowledge_ms_sum", "acknowledge_below_ms")
_NO_COUNTERS = {*_LATENCY, "acknowledged_ms"}
_LATENCY_BOUNDS_S = ("0.001", "0.002", "0.005", "0.01", "0.02", "0.05", "0.1", "0.2", "0.5", "1.0", "5.0", "+Inf")


class BridgeCollector(Collector):
    """Collects the metrics of one process.

    Args:
        bridge: of the process.
        server: the most recent numbers of the module, by the address of the node and by name.  The address of a single
            server is empty.
    """

    def __init__(self, bridge: Bridge, server: "Mapping[str, Mapping[str, InfoNumber]]") -> None:
        self._bridge = bridge
        self._server = server

    def collect(self) -> Iterable[Metric]:
        """All metrics, as of now."""
        engine = self._bridge.process.engine.counters()
        own = self._bridge.own_counters()
        for name, value in {**engine, **own}.items():
            if name not in _NO_COUNTERS:
                yield _counter(name, value)
        yield _latency("latency", LATENCY, engine)
        yield _latency("acknowledge", ACKNOWLEDGE, engine)
        for name, now in self._bridge.levels().items():
            if name == "server_up":
                yield self._up()
                continue
            gauge = GaugeMetricFamily(_PREFIX + name, LEVELS[name])
            gauge.add_metric([], now)
            yield gauge
        yield from self._of_servers()

    def _up(self) -> Metric:
        servers = self._bridge.servers
        family = GaugeMetricFamily(_PREFIX + "server_up", LEVELS["server_up"], labels=_labels(servers))
        for link, address in servers.addresses().items():
            family.add_metric([address] if servers.is_cluster else [], servers.is_up(link))
        return family

    def _of_servers(self) -> Iterable[Metric]:
        servers = self._bridge.servers
        families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
        for address, numbers in self._server.items():
            for name, info in numbers.items():
                if name not in families:
                    kind = CounterMetricFamily if info.only_grows else GaugeMetricFamily
                    meaning = SERVER.get(name, f"{name} of INFO holdmq.")  # of a newer module
                    families[name] = kind(f"holdmq_server_{name}", meaning, labels=_labels(servers))
                families[name].add_metric([address] if servers.is_cluster else [], info.number)
        return families.values()


def _labels(servers: "Servers") -> list[str]:
    """The labels of metrics that exist once for each server."""
    return ["node"] if servers.is_cluster else []


def _counter(name: str, value: "int | tuple[int, ...]") -> Metric:
    labels = ["qos"] if name in _BY_QOS else ["code"] if name == _BY_CODE else []
    family = CounterMetricFamily(_PREFIX + name, COUNTERS[name], labels=labels)
    if isinstance(value, tuple):
        labelled = Engine.refusal_codes() if name == _BY_CODE else map(str, range(len(value)))
        for label, count in zip(labelled, value, strict=True):
            family.add_metric([label], count)
    else:
        family.add_metric([], value)
    return family


def _latency(name: str, meaning: str, engine: "Mapping[str, int | tuple[int, ...]]") -> Metric:
    total, below = engine[f"{name}_ms_sum"], engine[f"{name}_below_ms"]
    assert isinstance(total, int)
    assert isinstance(below, tuple)
    family = HistogramMetricFamily(f"{_PREFIX}{name}_seconds", meaning)
    family.add_metric([], list(zip(_LATENCY_BOUNDS_S, accumulate(below), strict=True)), total / 1000)
    return family


class InfoNumber(NamedTuple):
    """A number of INFO holdmq."""

    number: float
    only_grows: bool


def parse_info(text: str) -> Iterator[tuple[str, InfoNumber]]:
    """The numbers of INFO holdmq by name, without the prefix.  Those of its section "stats" only grow."""
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
            yield name.removeprefix("holdmq_"), InfoNumber(number, counts)


class Metrics:
    """Makes the text of a scrape."""

    def __init__(self, bridge: Bridge) -> None:
        self.server: dict[str, dict[str, InfoNumber]] = {}
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(BridgeCollector(bridge, self.server))
        ProcessCollector(registry=self._registry)

    def text(self) -> bytes:
        """The metrics as of now."""
        return generate_latest(self._registry)
