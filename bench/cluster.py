"""`make bench-cluster`: the cost of a message as the nodes become more, with all figures in build/bench-cluster.json.

One server, and clusters of 1, 2, 3 and 6 nodes, take turns: each round starts each set-up anew, and measures each row
on it.  The first one changes with each round.  Servers (all nodes together), bridge and load generator share the same
cores, so that rates say nothing about a cluster of machines: the figure is CPU time for one message.
"""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median, quantiles

import click
from rich import box
from rich.console import Console
from rich.table import Table

from bench.cluster_servers import Setup, all_setups, running
from bench.machine import limit_cores, this_machine
from bench.mqtt_brokers import BrokerError, Running
from bench.mqtt_cases import COMMON, FAN_OUT_BEHIND, GATHER_S, RATE_WINDOW, WIDE_WINDOW, WINDOW
from bench.mqtt_load import LoadError, Options, run_load
from bench.output import json_option

NODES = (1, 2, 3, 6)
RATE = 30_000  # in+out a second, open loop
KEPT_UP = 0.98  # of the rate that was asked for
CLIENTS = 100
MOST_OF_THREE = 1.35  # times one server
MOST_OF_SIX = 1.05  # times three nodes


@dataclass(frozen=True)
class Case:
    """A row: who publishes to whom, and how fast.

    Attributes:
        name: in the table.
        pattern: of the generator.
        options: further ones of the generator.
        asked_per_s: in+out; 0: as fast as acknowledgements come.
    """

    name: str
    pattern: str
    options: Options
    asked_per_s: float = 0


@dataclass(frozen=True)
class Result:
    """One measurement: CPU time in microseconds for one message received or delivered."""

    row: str
    setup: str
    round: int
    servers_us: float
    bridge_us: float
    generator_us: float
    per_s: float
    p50_ms: float
    p99_ms: float
    others_cores: float
    kept_up: bool

    @property
    def broker_us(self) -> float:
        """Servers and bridge."""
        return self.servers_us + self.bridge_us


@dataclass(frozen=True)
class Row:
    """A line of the table: medians over the rounds.

    Attributes:
        ratio: of the CPU time of servers and bridge to that with one server in the same round.
        quartiles: of the ratio.
    """

    what: str
    setup: str
    servers_us: float
    bridge_us: float
    ratio: float
    quartiles: tuple[float, float]
    per_s: float
    p50_ms: float
    p99_ms: float
    others_cores: float
    kept_up: bool


@dataclass(frozen=True)
class Target:
    """What is to be reached: a median of ratios within the rounds."""

    what: str
    ratio: float
    quartiles: tuple[float, float]
    most: float
    reached: bool


def all_cases(rate: float) -> list[Case]:
    """The table's rows, in its order."""
    pairs: Options = {"pairs": CLIENTS}
    # publisher i to x/i/i, which subscriber i gets by x/i/+
    wildcard: Options = {"publishers": CLIENTS, "subscribers": CLIENTS}
    fan_out: Options = {"subscribers": CLIENTS}
    fan_in: Options = {"publishers": CLIENTS, "subscribers": 1}
    return [
        Case("pairs, closed loop", "pairs", {**pairs, "window": WINDOW}),
        _open("pairs", "pairs", pairs, rate, rate / 2),
        Case("wildcard subscribers, closed loop", "fan-in", {**wildcard, "window": WINDOW}),
        _open("wildcard subscribers", "fan-in", wildcard, rate, rate / 2),
        Case(
            "1 publisher to 100, closed loop", "fan-out", {**fan_out, "window": WIDE_WINDOW, "behind": FAN_OUT_BEHIND}
        ),
        _open("1 publisher to 100", "fan-out", fan_out, rate, rate / (CLIENTS + 1)),
        Case("100 publishers to 1, closed loop", "fan-in", {**fan_in, "window": WINDOW, "behind": 50}),
        _open("100 publishers to 1", "fan-in", {**fan_in, "behind": 50}, rate, rate / 2),
    ]


def _open(name: str, pattern: str, options: Options, rate: float, published_per_s: float) -> Case:
    more = {"behind": 0, "rate": published_per_s, "window": RATE_WINDOW}
    return Case(f"{name}, {rate:,.0f}/s", pattern, {**more, **options}, rate)


@click.command()
@click.option("--rounds", type=click.IntRange(1, 1000), default=5, show_default=True, help="How often.")
@click.option("--seconds", type=click.FloatRange(0.2, 3600), default=3, show_default=True, help="How long each lasts.")
@click.option("--warm-up", type=click.FloatRange(0, 3600), default=1, show_default=True, help="Seconds before each.")
@click.option("--nodes", multiple=True, type=click.IntRange(1, 64), help="Of a cluster; may be repeated (1, 2, 3, 6).")
@click.option("--only", multiple=True, metavar="TEXT", help="Only rows whose name holds this; may be repeated.")
@click.option("--rate", type=click.IntRange(200), default=RATE, show_default=True, help="In+out a second, open loop.")
@click.option("--cores", type=click.IntRange(1, 1024), default=2, show_default=True, help="Cores for everything.")
@json_option("bench-cluster.json")
def main(
    rounds: int,
    seconds: float,
    warm_up: float,
    nodes: tuple[int, ...],
    only: tuple[str, ...],
    rate: int,
    cores: int,
    output: Path,
) -> None:
    """Measure one bridge over one server, and over clusters of several sizes, in turn."""
    cases = [case for case in all_cases(rate) if not only or any(text in case.name for text in only)]
    if not cases:
        raise click.UsageError(f"no row's name holds {' or '.join(only)}")
    setups = all_setups(nodes or NODES)
    times: Options = {"warm-up": warm_up, "seconds": seconds}
    try:
        machine = this_machine() | {"cores": limit_cores(cores)}
        results = list(_measure(cases, setups, rounds, times, lambda line: click.echo(line, err=True)))
    except (BrokerError, LoadError) as error:
        raise click.ClickException(str(error)) from error
    machine["load_average_after"] = os.getloadavg()
    rows = [_row(case.name, setup.name, results) for case in cases for setup in setups]
    targets = list(_targets(cases, setups, results))
    console = Console(width=200)
    console.print(_table(rows))
    for target in targets:
        low, high = target.quartiles
        verdict = "reached" if target.reached else "not reached"
        click.echo(f"{target.what}: {target.ratio:.2f} ({low:.2f} to {high:.2f}), at most {target.most}: {verdict}")
    before, after = machine["load_average_before"][0], machine["load_average_after"][0]
    click.echo(
        f"{rounds} rounds of {seconds:g} s, QoS 1, 62 bytes, persistent sessions, one bridge process, no replicas, "
        f"append-only file synced each second; all on {len(machine['cores'])} cores of {machine['cpu']}, "
        f"{machine['kernel']}, load {before:.1f} to {after:.1f}, {machine['date']}."
    )
    found = {
        **machine,
        "given": {"rounds": rounds, "seconds": seconds, "rate": rate},
        "rows": [asdict(row) for row in rows],
        "targets": [asdict(target) for target in targets],
        "results": [asdict(one) for one in results],
    }
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(found, indent=2) + "\n")


def _measure(
    cases: Sequence[Case], setups: Sequence[Setup], rounds: int, times: Options, tell: Callable[[str], None]
) -> Iterator[Result]:
    for number in range(rounds):
        turn = number % len(setups)
        for setup in (*setups[turn:], *setups[:turn]):
            tell(f"round {number + 1} of {rounds}: {setup.name}")
            with running(setup) as broker:
                for index, case in enumerate(cases):
                    yield _one(broker, case, setup, number, {**times, "prefix": f"b{index}"})


def _one(broker: Running, case: Case, setup: Setup, number: int, options: Options) -> Result:
    given = {**COMMON, "gather": GATHER_S, **options, **case.options}
    load = run_load(broker.port, case.pattern, given, watch=broker.pids)
    if load.messages == 0:
        raise LoadError(f"{case.name}, {setup.name}: no message got through in {load.seconds:.1f} s")
    cpu_us = {
        part: sum(load.cpu_s[pid] for pid in pids) / load.messages * 1e6 for part, pids in broker.processes.items()
    }
    return Result(
        row=case.name,
        setup=setup.name,
        round=number,
        servers_us=cpu_us["servers"],
        bridge_us=cpu_us["bridge"],
        generator_us=load.generator_cpu_s / load.messages * 1e6,
        per_s=load.per_s,
        p50_ms=load.latency_us["p50"] / 1e3,
        p99_ms=load.latency_us["p99"] / 1e3,
        others_cores=load.others_cores,
        kept_up=load.per_s >= case.asked_per_s * KEPT_UP,
    )


def _found(row: str, setup: str, results: Sequence[Result]) -> list[Result]:
    return [one for one in results if (one.row, one.setup) == (row, setup)]


def _ratios(row: str, setup: str, base: str, results: Sequence[Result]) -> tuple[float, tuple[float, float]]:
    both = zip(_found(row, setup, results), _found(row, base, results), strict=True)
    ratios = [one.broker_us / other.broker_us for one, other in both]
    low, _, high = quantiles(ratios, n=4) if len(ratios) > 1 else (ratios[0],) * 3
    return median(ratios), (low, high)


def _row(row: str, setup: str, results: Sequence[Result]) -> Row:
    found = _found(row, setup, results)
    ratio, quartiles = _ratios(row, setup, "one server", results)
    return Row(
        what=row,
        setup=setup,
        servers_us=median(one.servers_us for one in found),
        bridge_us=median(one.bridge_us for one in found),
        ratio=ratio,
        quartiles=quartiles,
        per_s=median(one.per_s for one in found),
        p50_ms=median(one.p50_ms for one in found),
        p99_ms=median(one.p99_ms for one in found),
        others_cores=median(one.others_cores for one in found),
        kept_up=all(one.kept_up for one in found),
    )


def _targets(cases: Sequence[Case], setups: Sequence[Setup], results: Sequence[Result]) -> Iterator[Target]:
    there = {setup.nodes: setup.name for setup in setups}
    wanted = ((3, 0, MOST_OF_THREE), (6, 3, MOST_OF_SIX))
    for case in cases:
        if case.name.startswith("pairs"):
            for nodes, base, most in wanted:
                if nodes in there and base in there:
                    ratio, quartiles = _ratios(case.name, there[nodes], there[base], results)
                    what = f"{case.name}: {there[nodes]} to {there[base]}"
                    yield Target(what, ratio, quartiles, most, ratio <= most)


def _table(rows: Sequence[Row]) -> Table:
    table = Table(box=box.MARKDOWN)
    for heading in ("what", "nodes"):
        table.add_column(heading, no_wrap=True)
    for heading in ("servers us", "bridge us", "of one server", "quartiles", "in+out/s", "p50, p99 ms", "others"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        low, high = row.quartiles
        table.add_row(
            row.what,
            row.setup,
            f"{row.servers_us:.2f}",
            f"{row.bridge_us:.2f}",
            f"{row.ratio:.2f}",
            f"{low:.2f} to {high:.2f}",
            f"{row.per_s:,.0f}" + ("" if row.kept_up else " (falls behind)"),
            f"{row.p50_ms:.1f}, {row.p99_ms:.1f}",
            f"{row.others_cores:.1f}",
        )
    return table


if __name__ == "__main__":
    main()
