"""`make bench`: prints one table, and writes it to build/bench.json with a description of the machine."""

import json
import os
from pathlib import Path
from typing import Any

import click

from bench.cases import all_cases
from bench.machine import this_machine
from bench.measure import Plan, Row, measure
from bench.output import json_option

FULL = Plan(sessions=1000, pairs=4, rounds=5)
QUICK = Plan(sessions=300, pairs=1, rounds=5)
HEADINGS = ("what", "against", "baseline us", "ours us", "ratio", "quartiles", "to reach", "reached")


@click.command()
@click.option("--quick", is_flag=True, help="Half a minute instead of three; the ratios scatter more.")
@click.option("--aof", is_flag=True, help="With an append-only file that is synced before each reply.")
@click.option("--only", multiple=True, metavar="TEXT", help="Only the rows whose name holds this; may be repeated.")
@click.option("--sessions", type=click.IntRange(1, 999999), help="Sessions, channels and keys.")
@click.option("--pairs", type=click.IntRange(1, 1000), help="How many pairs of servers, one after the other.")
@click.option("--rounds", type=click.IntRange(1, 1000), help="How often each row is measured on each pair.")
@json_option("bench.json")
def main(
    quick: bool,
    aof: bool,
    only: tuple[str, ...],
    sessions: int | None,
    pairs: int | None,
    rounds: int | None,
    output: Path,
) -> None:
    """Measure what the module's work costs the server in CPU time, each beside its baseline.

    The server is the embedded Valkey, or the one that HOLDMQ_SERVER names.
    """
    usual = QUICK if quick else FULL
    plan = Plan(sessions or usual.sessions, pairs or usual.pairs, rounds or usual.rounds, aof)
    cases = [case for case in all_cases(plan.sessions) if not only or any(text in case.name for text in only)]
    if not cases:
        raise click.UsageError(f"no row's name holds {' or '.join(only)}")
    machine = this_machine()
    rows, facts = measure(cases, plan, lambda line: click.echo(line, err=True))
    machine["load_average_after"] = os.getloadavg()
    click.echo(_table(rows))
    click.echo(_on_what(facts, machine, plan))
    output.parent.mkdir(parents=True, exist_ok=True)
    result = {**machine, **facts, "plan": vars(plan), "rows": [row.as_json() for row in rows]}
    output.write_text(json.dumps(result, indent=2) + "\n")


def _cells(row: Row) -> tuple[str, ...]:
    low, high = row.quartiles
    return (
        row.what,
        row.baseline,
        f"{row.baseline_us:.2f}",
        f"{row.ours_us:.2f}",
        f"{row.ratio:.2f}",
        f"{low:.2f} to {high:.2f}",
        row.to_reach,
        {True: "yes", False: "no", None: "-"}[row.reached],
    )


def _table(rows: list[Row]) -> str:
    lines = [HEADINGS, *map(_cells, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADINGS))]
    rule = tuple("-" * width for width in widths)
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |"
        for line in (lines[0], rule, *lines[1:])
    )


def _on_what(facts: dict[str, Any], machine: dict[str, Any], plan: Plan) -> str:
    before, after = machine["load_average_before"][0], machine["load_average_after"][0]
    return (
        f"CPU time of the server's main thread for one message, {plan.sessions} sessions, {plan.pairs} pairs of "
        f"servers with {plan.rounds} rounds each, {'append-only file' if plan.aof else 'no append-only file'}.\n"
        f"{facts['server']} {facts['server_version']}, {facts['allocator']}, on {machine['cpus']} x "
        f"{machine['cpu']}, {machine['kernel']}, load {before:.1f} to {after:.1f}, {machine['date']}."
    )


if __name__ == "__main__":
    main()
