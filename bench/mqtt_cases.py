"""The scenarios that are measured on each broker, each a function from a running broker to its figures.

Payloads have 62 bytes, both sides use QoS 1, sessions outlive their connections.  To find the maximum rate of a broker,
the generator visits its connections every 10 ms, like clients at a distance of 10 ms.  It then reads and writes in
larger pieces, and leaves the CPU to the broker.  The windows are wide enough for that, except those of the pairs.  They
have the windows of client libraries, which a quick broker empties before the next visit (`--window`).
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from bench.mqtt_brokers import Running
from bench.mqtt_load import Load, Options, holding, run_load

PAYLOAD_BYTES = 62
GATHER_S = 0.01
FAN_IN_GATHER_S = 0.0005  # one subscriber gets all: what it may have in flight (100 by default) comes once a round trip
WINDOW = 20  # what client libraries have by default, for the pairs
WIDE_WINDOW = 100  # where few clients publish much
RATE_WINDOW = 1000  # at a rate it must not be what holds a message up
FAN_OUT_BEHIND = 100
PEAK_SHARE = 0.5
WEBSOCKET_RATE = 20_000  # in+out a second: what a broker does for a message does not depend on how busy it is
SAME_RATE = 30_000  # in+out a second, for both brokers, whatever their peaks are
KIB = 1024
OPEN_FAN_INS = ((10, 1), (50, 1), (100, 1), (1000, 1), (1000, 10))  # publishers, subscribers
COMMON: Options = {"payload": PAYLOAD_BYTES, "qos": 1, "persistent": True}


@dataclass(frozen=True)
class Size:
    """How much is measured.

    Attributes:
        rounds: how often everything is measured.
        warm_up_s: before measuring.
        seconds: of measuring.
        pairs: publishers and subscribers; sessions that are away.
        window: messages that a publisher of the pairs has unacknowledged.
        messages: stored for each of these sessions.
        publishers: of the fan-in.
        subscribers: of the fan-out.
        idle: connections that are held.
    """

    rounds: int
    warm_up_s: float
    seconds: float
    pairs: int = 100
    window: int = WINDOW
    messages: int = 1000
    publishers: int = 50
    subscribers: int = 100
    idle: int = 5000


@dataclass(frozen=True)
class Figures:
    """What one measurement found.

    Attributes:
        value: the figure that counts, in the unit of its case.
        cpu_us: CPU time for one message, received or delivered, by part of the broker and of the generator.
        per_s: messages received and delivered; None where no messages are measured.
        latency_ms: p50 and p99; None where messages wait on purpose.
        others_cores: cores that were busy with other processes meanwhile; None where it does not matter.
        allowed: messages a second that this CPU time allows on the cores, if nobody else uses them.
        raw: what the generator printed, or more.
    """

    value: float
    cpu_us: Mapping[str, float] = field(default_factory=dict)
    per_s: float | None = None
    latency_ms: tuple[float, float] | None = None
    others_cores: float | None = None
    allowed: float | None = None
    raw: Mapping[str, Any] = field(default_factory=dict)


Measure = Callable[[Running, Size, float], list[Figures]]


@dataclass(frozen=True)
class Case:
    """A row of the table, or two that need the same start (store, then drain).

    Attributes:
        names: of the rows.
        units: of their values.
        measure: runs it; called with the running broker, the size, and the broker's peak of pairs in messages/s.
        to_reach: as text.
        limit: for the ratio to Mosquitto (at least), or for the value itself (at most).
        against: whether the limit is one for the ratio.
        saving: whether it is worth measuring on a Mosquitto that saves each change.
        needs_peak: whether `measure` needs the peak.
        websocket: whether the broker is to listen for WebSockets, too.
    """

    names: tuple[str, ...]
    units: tuple[str, ...]
    measure: Measure
    to_reach: str = "at least Mosquitto"
    limit: float = 1.0
    against: bool = True
    saving: bool = False
    needs_peak: bool = False
    websocket: bool = False


def all_cases() -> list[Case]:
    """The table's rows, in its order."""
    return [
        Case(("100 pairs",), ("in+out/s",), pairs, saving=True),
        Case(("sessions away: store", "sessions away: drain"), ("in/s", "out/s"), store_and_drain),
        Case(("1 publisher to 100",), ("in+out/s",), fan_out),
        Case(("50 publishers to 1",), ("in+out/s",), fan_in),
        _latency_case("p99 at half of the peak, closed loop", latency_in_a_closed_loop, needs_peak=True),
        _latency_case("p99 at half of the peak, open loop", latency_in_an_open_loop, needs_peak=True),
        _latency_case(f"p99 at {SAME_RATE:,}/s, open loop", latency_at_the_same_rate),
        Case(
            tuple(f"CPU over WebSocket, QoS {qos}" for qos in (0, 1)),
            ("times TCP", "times TCP"),
            websocket,
            "below 2.5",
            2.5,
            against=False,
            websocket=True,
        ),
        Case(("memory per idle connection",), ("KiB",), memory, "below 10 KiB", 10, against=False),
    ]


def fan_in_cases() -> list[Case]:
    """The rows of another table: publishers that wait for their acknowledgements only, to few receivers."""
    return [_open_fan_in(publishers, subscribers) for publishers, subscribers in OPEN_FAN_INS]


def _latency_case(name: str, measure: Measure, *, needs_peak: bool = False) -> Case:
    return Case((name,), ("ms",), measure, "below 10 ms", 10, against=False, needs_peak=needs_peak)


def _open_fan_in(publishers: int, subscribers: int) -> Case:
    """Nothing may be lost."""

    def measure(broker: Running, size: Size, _peak: float) -> list[Figures]:
        clients = {"publishers": publishers, "subscribers": subscribers}
        load = _timed(broker, size, "fan-in", {**clients, "window": WINDOW, "behind": 0, "gather": 0})
        return [_figures(broker, load, load.per_s)]

    return Case((f"{publishers:,} publishers to {subscribers}, open loop",), ("in+out/s",), measure)


def pairs(broker: Running, size: Size, _peak: float) -> list[Figures]:
    """Publisher i to topic i to subscriber i, as fast as it goes."""
    load = _timed(broker, size, "pairs", {"pairs": size.pairs, "window": size.window})
    return [_figures(broker, load, load.per_s)]


def fan_out(broker: Running, size: Size, _peak: float) -> list[Figures]:
    """One publisher, whose messages all subscribers get."""
    options = {"subscribers": size.subscribers, "window": WIDE_WINDOW, "behind": FAN_OUT_BEHIND}
    load = _timed(broker, size, "fan-out", options)
    return [_figures(broker, load, load.per_s)]


def fan_in(broker: Running, size: Size, _peak: float) -> list[Figures]:
    """All publishers' messages go to one subscriber."""
    behind = max(1, 5000 // size.publishers)  # half of what a session holds unless it is told otherwise
    options = {"publishers": size.publishers, "window": WIDE_WINDOW, "behind": behind, "gather": FAN_IN_GATHER_S}
    load = _timed(broker, size, "fan-in", options)
    return [_figures(broker, load, load.per_s)]


def store_and_drain(broker: Running, size: Size, _peak: float) -> list[Figures]:
    """Messages for sessions that are away; then they come back and get them."""
    common = {**COMMON, "count": size.messages, "gather": GATHER_S}
    store = {**common, "pairs": size.pairs, "window": WIDE_WINDOW}
    stored = run_load(broker.port, "store", store, watch=broker.pids)
    drained = run_load(broker.port, "drain", {**common, "subscribers": size.pairs}, watch=broker.pids)
    return [_figures(broker, load, load.per_s, waiting=True) for load in (stored, drained)]


def latency_in_a_closed_loop(broker: Running, size: Size, peak: float) -> list[Figures]:
    """From sending to receipt, with 1, 2, 4 … messages of each publisher unacknowledged: the fewest that make half."""
    window = 1
    while True:
        load = _timed(broker, size, "pairs", {"pairs": size.pairs, "window": window, "gather": 0})
        if load.per_s >= peak * PEAK_SHARE or window >= WINDOW:
            return [_figures(broker, load, load.latency_us["p99"] / 1e3)]
        window *= 2


def latency_in_an_open_loop(broker: Running, size: Size, peak: float) -> list[Figures]:
    """From the moment at which a message was due to its receipt, at a rate of half of what the broker can do."""
    return _latency(broker, size, peak * PEAK_SHARE)


def latency_at_the_same_rate(broker: Running, size: Size, _peak: float) -> list[Figures]:
    """The same at a fixed rate."""
    return _latency(broker, size, SAME_RATE)


def _latency(broker: Running, size: Size, in_and_out_per_s: float) -> list[Figures]:
    rate = round(in_and_out_per_s / 2, 1)  # each message comes in and goes out
    options = {"pairs": size.pairs, "rate": rate, "window": RATE_WINDOW, "gather": 0, "behind": 0}
    load = _timed(broker, size, "pairs", options)
    return [_figures(broker, load, load.latency_us["p99"] / 1e3)]


def websocket(broker: Running, size: Size, _peak: float) -> list[Figures]:
    """CPU time of the bridge (or the broker) for a message over WebSocket, beside TCP, at the same rate."""
    found = []
    for qos in (0, 1):
        options = {"pairs": size.pairs, "qos": qos, "rate": WEBSOCKET_RATE / 2, "window": RATE_WINDOW, "behind": 0}
        tcp = _figures(broker, _timed(broker, size, "pairs", options), 0)
        load = _timed(replace(broker, port=broker.websocket_port), size, "pairs", {**options, "websocket": "/mqtt"})
        over = _figures(broker, load, 0, waiting=True)
        first = next(iter(broker.processes))
        found.append(replace(over, value=over.cpu_us[first] / tcp.cpu_us[first], raw={**over.raw, "tcp": tcp.raw}))
    return found


def memory(broker: Running, size: Size, _peak: float) -> list[Figures]:
    """Memory of the broker with idle connections, less that before them; of the bridge alone where there is one."""
    before = broker.pss_bytes()
    with holding(broker.port, size.idle, COMMON) as connect_s:
        after = broker.pss_bytes()
    each = {part: (after[part] - before[part]) / size.idle / KIB for part in after}
    raw = {"connections": size.idle, "connect_s": connect_s, "pss_before": before, "pss_with": after, "kib_each": each}
    return [Figures(each.get("bridge", next(iter(each.values()))), raw=raw)]


def _timed(broker: Running, size: Size, pattern: str, options: Options) -> Load:
    times = {"warm-up": size.warm_up_s, "seconds": size.seconds}
    return run_load(broker.port, pattern, {**COMMON, "gather": GATHER_S, **times, **options}, watch=broker.pids)


def _figures(broker: Running, load: Load, value: float, *, waiting: bool = False) -> Figures:
    if load.messages == 0:
        raise RuntimeError(f"no message got through in {load.seconds:.1f} s: {load.raw}")
    parts = {part: sum(load.cpu_s[pid] for pid in pids) for part, pids in broker.processes.items()}
    parts["generator"] = load.generator_cpu_s
    cpu_us = {part: seconds / load.messages * 1e6 for part, seconds in parts.items()}
    return Figures(
        value=value,
        cpu_us=cpu_us,
        per_s=load.per_s,
        allowed=_allowed(cpu_us, {part: len(pids) for part, pids in broker.processes.items()}),
        latency_ms=None if waiting else (load.latency_us["p50"] / 1e3, load.latency_us["p99"] / 1e3),
        others_cores=load.others_cores,
        raw=load.raw,
    )


def _allowed(cpu_us: Mapping[str, float], processes: Mapping[str, int]) -> float:
    """The cores' limit, or that of the part which is the first to fill its processes, one core each."""
    cores = len(os.sched_getaffinity(0))
    busiest_us = max(us / min(cores, processes.get(part, 1)) for part, us in cpu_us.items())
    return 1e6 / max(busiest_us, sum(cpu_us.values()) / cores)
