"""`make bench-mqtt-latency`: how the latency of 100 pairs grows with the load, on HoldMQ's bridge and on Mosquitto.

A broker is loaded in the two ways in which clients do it:

- open loop: messages are due at fixed moments, whatever the broker does, and their latency counts from then on;
- closed loop: each publisher has a fixed number of unacknowledged messages, and sends the next when one is
  acknowledged.  The broker determines the load, and the latency counts from the sending.

Clients read and write at once: the generator collects nothing.  The brokers take turns, each started anew.
"""

import json
import os
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import click
from rich import box
from rich.console import Console
from rich.table import Table

from bench.machine import limit_cores, this_machine
from bench.mqtt_brokers import Broker, BrokerError, holdmq, mosquitto
from bench.mqtt_cases import COMMON, RATE_WINDOW
from bench.mqtt_load import Load, LoadError, Options, run_load
from bench.output import json_option

RATES = (10_000, 30_000, 50_000, 70_000, 90_000)
WINDOWS = (1, 2, 4, 8, 20)
WARM_UP_S = 1.0
KEPT_UP = 0.98  # of the rate that was asked for: below, messages pile up, and the latency is how long one looked


@dataclass(frozen=True)
class Point:
    """One load on one broker: medians over the rounds.

    Attributes:
        load: in words.
        per_s: messages received and delivered.
        p99_most_ms: the largest p99 of a round.
        cpu_us: CPU time of all processes, the generator's included, for one message.
        kept_up: whether an asked rate was reached in each round.
    """

    load: str
    broker: str
    per_s: float
    p50_ms: float
    p99_ms: float
    p99_most_ms: float
    cpu_us: float
    kept_up: bool


@click.command()
@click.option("--rounds", type=click.IntRange(1, 1000), default=3, show_default=True, help="How often.")
@click.option("--seconds", type=click.FloatRange(0.2, 3600), default=2, show_default=True, help="How long each lasts.")
@click.option("--pairs", type=click.IntRange(1, 10000), default=100, show_default=True, help="Pairs of clients.")
@click.option("--rate", "rates", multiple=True, type=click.IntRange(1), help="In+out a second; may be repeated.")
@click.option("--window", "windows", multiple=True, type=click.IntRange(1, 65535), help="Messages; may be repeated.")
@click.option("--bridge", default="", metavar="OPTIONS", help="Further options of the bridge, as one text.")
@click.option("--cores", type=click.IntRange(1, 1024), default=2, show_default=True, help="Cores for everything.")
@json_option("bench-mqtt-latency.json")
def main(
    rounds: int,
    seconds: float,
    pairs: int,
    rates: tuple[int, ...],
    windows: tuple[int, ...],
    bridge: str,
    cores: int,
    output: Path,
) -> None:
    """Measure latency against load on HoldMQ's MQTT bridge and on Mosquitto, in turn."""
    if not rates and not windows:
        rates, windows = RATES, WINDOWS
    loads = list(_loads(pairs, rates, windows))
    try:
        brokers = [holdmq(shlex.split(bridge), None), mosquitto(saving=False)]
        machine = this_machine() | {"cores": limit_cores(cores)}
        found: dict[tuple[str, str], list[Load]] = {}
        for number in range(rounds):
            for load, options in loads:
                for broker in brokers[:: -1 if number % 2 else 1]:
                    click.echo(f"round {number + 1} of {rounds}: {load}: {broker.name}", err=True)
                    one = _measure(broker, {**options, "warm-up": WARM_UP_S, "seconds": seconds})
                    found.setdefault((load, broker.name), []).append(one)
    except (BrokerError, LoadError) as error:
        raise click.ClickException(str(error)) from error
    points = [
        _point(load, broker, float(str(options.get("rate", 0))) * 2, found[load, broker.name])
        for load, options in loads
        for broker in brokers
    ]
    Console(width=160).print(_table(points))
    click.echo(
        f"{pairs} pairs, {rounds} rounds of {seconds:g} s; "
        f"{'; '.join(broker.version for broker in brokers)}; all on {len(machine['cores'])} cores of {machine['cpu']}, "
        f"load {machine['load_average_before'][0]:.1f} to {os.getloadavg()[0]:.1f}, {machine['date']}."
    )
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps({**machine, "points": [asdict(point) for point in points]}, indent=2) + "\n")


def _loads(pairs: int, rates: Sequence[int], windows: Sequence[int]) -> Iterator[tuple[str, Options]]:
    """Each with what it is called."""
    common: Options = {**COMMON, "pairs": pairs, "gather": 0}
    for rate in rates:
        yield f"{rate:,}/s", {**common, "rate": rate / 2, "window": RATE_WINDOW, "behind": 0}
    for window in windows:
        yield f"{window} unacknowledged each", {**common, "window": window}


def _measure(broker: Broker, options: Options) -> Load:
    with broker.start() as running:
        return run_load(running.port, "pairs", options, watch=running.pids)


def _point(load: str, broker: Broker, asked_per_s: float, found: Sequence[Load]) -> Point:
    return Point(
        load=load,
        broker=broker.name,
        per_s=median(one.per_s for one in found),
        p50_ms=median(one.latency_us["p50"] for one in found) / 1e3,
        p99_ms=median(one.latency_us["p99"] for one in found) / 1e3,
        p99_most_ms=max(one.latency_us["p99"] for one in found) / 1e3,
        cpu_us=median((sum(one.cpu_s.values()) + one.generator_cpu_s) / one.messages * 1e6 for one in found),
        kept_up=all(one.per_s >= asked_per_s * KEPT_UP for one in found),
    )


def _table(points: Sequence[Point]) -> Table:
    table = Table(box=box.MARKDOWN)
    for heading in ("load", "broker"):
        table.add_column(heading, no_wrap=True)
    for heading in ("in+out/s", "p50 ms", "p99 ms", "largest p99", "CPU us a message"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("")
    for point in points:
        ms = (f"{value:.2f}" for value in (point.p50_ms, point.p99_ms, point.p99_most_ms))
        kept_up = "" if point.kept_up else "falls behind"
        table.add_row(point.load, point.broker, f"{point.per_s:,.0f}", *ms, f"{point.cpu_us:.1f}", kept_up)
    return table


if __name__ == "__main__":
    main()
