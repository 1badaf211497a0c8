"""`make bench-mqtt`: HoldMQ's bridge beside Mosquitto, in one table, with all figures in build/bench-mqtt.json.

The brokers take turns: each round measures each row on one broker after the other, each started anew.  The first broker
changes with each round.  Everything (broker, server, load generator) shares the same cores.
"""

import json
import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.table import Table

from bench.machine import limit_cores, this_machine
from bench.mqtt_brokers import MOSQUITTO, Broker, BrokerError, holdmq, mosquitto
from bench.mqtt_cases import PAYLOAD_BYTES, Case, Figures, Size, all_cases, fan_in_cases, pairs
from bench.mqtt_load import LoadError
from bench.output import json_option

FULL = Size(rounds=5, warm_up_s=1, seconds=4)
QUICK = Size(rounds=1, warm_up_s=0.5, seconds=1.5, messages=200, idle=1000)
SIZES = ("rounds", "seconds", "pairs", "window", "messages", "idle")  # options that change it
TABLE_WIDTH = 240
BUSY_CORES = 0.2  # used by others: rates then tell how what was left was shared, too


@dataclass(frozen=True)
class Result:
    """Figures of one row, from one round on one broker."""

    row: str
    broker: str
    round: int
    figures: Figures


@dataclass(frozen=True)
class Row:
    """A row of the table: one scenario on one broker, medians over the rounds.

    Attributes:
        ratio: of the value to Mosquitto's in the same round; None where it was not measured.
        cpu_us: CPU time for one message, by part.
        allowed: messages a second that this CPU time allows on the cores, if nobody else uses them.
        per_s: messages received and delivered; None where no messages are measured.
        latency_ms: p50 and p99.
        others_cores: cores that were busy with other processes meanwhile; None where it does not matter.
        reached: None where there is nothing to reach.
    """

    what: str
    broker: str
    unit: str
    value: float
    quartiles: tuple[float, float]
    ratio: float | None
    cpu_us: dict[str, float]
    allowed: float | None
    per_s: float | None
    latency_ms: tuple[float, float] | None
    others_cores: float | None
    to_reach: str
    reached: bool | None


@click.command()
@click.option("--quick", is_flag=True, help="Less than a minute: one round, smaller.")
@click.option("--fan-in", is_flag=True, help="The table of open-loop fan-in in place of the others.")
@click.option("--only", multiple=True, metavar="TEXT", help="Only rows whose name holds this; may be repeated.")
@click.option("--rounds", type=click.IntRange(1, 1000), help="How often everything is measured.")
@click.option("--seconds", type=click.FloatRange(0.2, 3600), help="How long each measurement lasts.")
@click.option("--pairs", type=click.IntRange(1, 10000), help="Pairs of clients, and sessions that are away.")
@click.option(
    "--window", type=click.IntRange(1, 1000), help="Unacknowledged messages of a publisher of the pairs (20)."
)
@click.option("--messages", type=click.IntRange(1, 9000), help="Stored for each session that is away.")
@click.option("--idle", type=click.IntRange(1, 50000), help="Idle connections.")
@click.option("--workers", type=click.IntRange(1, 64), help="Processes of the bridge (default: its own).")
@click.option("--bridge", default="", metavar="OPTIONS", help="Further options of the bridge, as one text.")
@click.option("--cores", type=click.IntRange(1, 1024), default=2, show_default=True, help="Cores for everything.")
@click.option("--saving/--no-saving", default=True, help="Measure a Mosquitto that saves each change, too.")
@json_option("bench-mqtt.json")
def main(quick: bool, fan_in: bool, only: tuple[str, ...], cores: int, output: Path, **given: Any) -> None:
    """Measure HoldMQ's MQTT bridge and Mosquitto on the same cores, in turn.

    The server is the embedded Valkey, or the one that HOLDMQ_SERVER names.
    """
    table = fan_in_cases() if fan_in else all_cases()
    cases = [case for case in table if not only or any(text in name for text in only for name in case.names)]
    if not cases:
        raise click.UsageError(f"no row's name holds {' or '.join(only)}")
    size = replace(QUICK if quick else FULL, **{name: given[name] for name in SIZES if given[name] is not None})
    try:
        ours = holdmq(shlex.split(given["bridge"]), given["workers"])
        brokers = [ours, mosquitto(saving=False), *([mosquitto(saving=True)] if given["saving"] else [])]
        machine = this_machine() | {"cores": limit_cores(cores)}
        results = list(_measure(cases, brokers, size, lambda line: click.echo(line, err=True)))
    except (BrokerError, LoadError) as error:
        raise click.ClickException(str(error)) from error
    machine["load_average_after"] = os.getloadavg()
    rows = [row for case in cases for row in _rows(case, brokers, results)]
    Console(width=TABLE_WIDTH).print(_table(rows))
    click.echo(_on_what(machine, brokers, size))
    facts = {**machine, "brokers": {broker.name: broker.version for broker in brokers}, "given": given}
    found = {"size": asdict(size), "rows": [asdict(row) for row in rows], "results": [asdict(one) for one in results]}
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(facts | found, indent=2) + "\n")


def _measure(
    cases: Sequence[Case], brokers: Sequence[Broker], size: Size, tell: Callable[[str], None]
) -> Iterator[Result]:
    for number in range(size.rounds):
        turn = number % len(brokers)
        peaks: dict[str, float] = {}
        for case in cases:
            for broker in (*brokers[turn:], *brokers[:turn]):
                if broker.saves and not case.saving:
                    continue
                tell(f"round {number + 1} of {size.rounds}: {', '.join(case.names)}: {broker.name}")
                if case.needs_peak and broker.name not in peaks:
                    peaks[broker.name] = _peak(broker, size)
                with broker.start(websocket=case.websocket) as running:
                    found = case.measure(running, size, peaks.get(broker.name, 0.0))
                if case.measure is pairs:
                    peaks[broker.name] = found[0].value
                for row, figures in zip(case.names, found, strict=True):
                    yield Result(row, broker.name, number, figures)


def _peak(broker: Broker, size: Size) -> float:
    with broker.start() as running:
        return pairs(running, size, 0.0)[0].value


def _rows(case: Case, brokers: Sequence[Broker], results: Sequence[Result]) -> Iterator[Row]:
    for name, unit in zip(case.names, case.units, strict=True):
        found = {
            broker.name: [one.figures for one in results if (one.row, one.broker) == (name, broker.name)]
            for broker in brokers
        }
        for broker in brokers:
            if found[broker.name]:
                yield _row(case, name, unit, broker, found[broker.name], found[MOSQUITTO])


def _row(case: Case, name: str, unit: str, broker: Broker, figures: Sequence[Figures], base: Sequence[Figures]) -> Row:
    values = [one.value for one in figures]
    value = median(values)
    low, _, high = quantiles(values, n=4) if len(values) > 1 else (value, value, value)
    ratio = median(one.value / other.value for one, other in zip(figures, base, strict=True))
    latencies = [one.latency_ms for one in figures if one.latency_ms is not None]
    others = [one.others_cores for one in figures if one.others_cores is not None]
    allowed = [one.allowed for one in figures if one.allowed is not None]
    rates = [one.per_s for one in figures if one.per_s is not None]
    reached = (ratio >= case.limit if case.against else value < case.limit) if broker.ours else None
    return Row(
        what=name,
        broker=broker.name,
        unit=unit,
        value=value,
        quartiles=(low, high),
        ratio=None if broker.name == MOSQUITTO else ratio,
        cpu_us={part: median(one.cpu_us[part] for one in figures) for part in figures[0].cpu_us},
        allowed=median(allowed) if allowed else None,
        per_s=median(rates) if rates else None,
        latency_ms=(median(p50 for p50, _ in latencies), median(p99 for _, p99 in latencies)) if latencies else None,
        others_cores=median(others) if others else None,
        to_reach=case.to_reach if broker.ours else "",
        reached=reached,
    )


def _table(rows: Sequence[Row]) -> Table:
    table = Table(box=box.MARKDOWN)
    for heading in ("what", "broker", "unit"):
        table.add_column(heading, no_wrap=True)
    for heading in ("median", "quartiles", "of Mosquitto"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("CPU us a message", no_wrap=True)
    for heading in ("CPU allows", "p50, p99 ms", "others"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("to reach", no_wrap=True)
    table.add_column("reached")
    for row in rows:
        table.add_row(*_cells(row))
    return table


def _cells(row: Row) -> tuple[str, ...]:
    low, high = row.quartiles
    return (
        row.what,
        row.broker,
        row.unit,
        _number(row.value),
        f"{_number(low)} to {_number(high)}",
        "" if row.ratio is None else f"{row.ratio:.2f}",
        ", ".join(f"{part} {us:.1f}" for part, us in row.cpu_us.items()),
        "" if row.allowed is None else _number(row.allowed),
        _latency(row),
        "" if row.others_cores is None else f"{row.others_cores:.1f}",
        row.to_reach,
        _verdict(row),
    )


def _latency(row: Row) -> str:
    if row.latency_ms is None or row.per_s is None:
        return ""
    return ", ".join(map(_number, row.latency_ms)) + (f" at {_number(row.per_s)}/s" if row.unit == "ms" else "")


def _verdict(row: Row) -> str:
    if row.reached is None:
        return ""
    return ("yes" if row.reached else "no") + (" (busy)" if (row.others_cores or 0) > BUSY_CORES else "")


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _on_what(machine: dict[str, Any], brokers: Sequence[Broker], size: Size) -> str:
    before, after = machine["load_average_before"][0], machine["load_average_after"][0]
    return (
        f"QoS 1, {PAYLOAD_BYTES} bytes of payload, persistent sessions, {size.rounds} rounds of {size.seconds:g} s; "
        f"{size.messages} messages for each of {size.pairs} sessions away, {size.idle} idle connections; "
        f"{size.window} unacknowledged messages of each publisher of the pairs.\n"
        "CPU us a message: of each part, divided by the messages received and delivered; CPU allows: messages a second "
        "that this leaves room for on the cores, if nobody else uses them; others: cores that other processes used "
        "meanwhile.\n"
        f"{'; '.join(broker.version for broker in brokers if not broker.saves)}; append-only file synced each second; "
        f"all on {len(machine['cores'])} cores of {machine['cpu']}, {machine['kernel']}, "
        f"load {before:.1f} to {after:.1f}, {machine['date']}."
    )


if __name__ == "__main__":
    main()
