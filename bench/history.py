"""`make bench-history`: the cost of writing, reading and keeping history, beside plain streams on the same server.

Prints tables, and writes them to build/bench-history.json with a description of the machine.  Writing is CPU time of
the server's main thread, sampled in turns.  Reading is the wall time of one C client (bench/history_load.c), one page
at a time.
"""

import json
import os
import random
import subprocess
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import click

from bench.machine import this_machine
from bench.output import json_option
from bench.pair import Bench, running
from bench.wire import Command, packed

ROOT = Path(__file__).resolve().parents[1]
LOADER = ROOT / "build" / "history_load"
DEVICES, KINDS = 10_000, ("temperature", "pressure")
PAYLOAD = b"x" * 62
ROUND = 20_480  # messages of a sample
PAGE = 1000
SESSION_MESSAGES = 50_000
TIMEOUT_S = 600
FILTERS = ("#", "devices/+/temperature", "devices/42/#", "+/42/temperature", "devices/42/temperature")
XADD: Command = ("XADD", "plain", "*", "m", PAYLOAD)


@dataclass(frozen=True)
class Written:
    """What a message costs the server's main thread, in microseconds, and beside an XADD of the same turn."""

    what: str
    microseconds: float
    beside_xadd: float


@dataclass(frozen=True)
class Read:
    """What one client reads."""

    what: str
    returned: int
    visited: int
    messages_a_second: float
    server_microseconds: float
    milliseconds: float


@dataclass(frozen=True)
class Kept:
    """What a message takes in the server's memory, its payload included."""

    what: str
    messages: int
    bytes_a_message: float


def _topics(chance: random.Random, count: int) -> Iterator[str]:
    return (f"devices/{chance.randrange(DEVICES)}/{chance.choice(KINDS)}" for _ in range(count))


def _cost(bench: Bench, commands: list[bytes]) -> float:
    """Of ROUND commands: microseconds for one."""
    begun = bench.cpu_us()
    bench.load.run(commands)
    return (bench.cpu_us() - begun) / ROUND


def write(bench: Bench, messages: int) -> list[Written]:
    """Fill the store `s` with so many messages; a part of each turn is measured against XADDs before it."""
    chance = random.Random(1)
    bench.load.run(packed([("HISTORY.STORE", "s", "FILTER", "devices/#"), ("HISTORY.STORE", "t", "FILTER", "kept/#")]))
    plain = packed([XADD] * ROUND)
    unkept = packed(("TOPIC.PUBLISH", f"other/{topic}", PAYLOAD) for topic in _topics(chance, ROUND))
    samples: dict[str, list[tuple[float, float]]] = {}
    for _ in range(max(1, messages // ROUND)):
        appends = packed(("HISTORY.APPEND", "s", topic, PAYLOAD) for topic in _topics(chance, ROUND))
        publishes = packed(("TOPIC.PUBLISH", f"kept/{topic}", PAYLOAD) for topic in _topics(chance, ROUND))
        sides = {
            "HISTORY.APPEND": appends,
            "TOPIC.PUBLISH, kept": publishes,
            "TOPIC.PUBLISH, not kept": unkept,
        }
        for name, commands in sides.items():
            baseline = _cost(bench, plain)
            samples.setdefault("XADD", []).append((baseline, 1.0))
            cost = _cost(bench, commands)
            samples.setdefault(name, []).append((cost, cost / baseline))
    return [Written(name, median(a for a, _ in some), median(b for _, b in some)) for name, some in samples.items()]


def read(bench: Bench) -> list[Read]:
    """What the C client reads of what was written."""
    cases: dict[str, tuple[str, ...]] = {"XRANGE of a stream": ("xrange", "plain")}
    cases |= {f"HISTORY.REPLAY {asked}": ("replay", "s", asked) for asked in FILTERS}
    cases |= {"HISTORY.RANGE PACKED": ("range", "s", "PACKED"), "XRANGE of a stream, again": ("xrange", "plain")}
    return [_read(bench, what, words) for what, words in cases.items()]


def _read(bench: Bench, what: str, words: tuple[str, ...]) -> Read:
    port = str(bench.admin.connection_pool.connection_kwargs["port"])
    begun = bench.cpu_us()
    done = subprocess.run(
        [str(LOADER), port, str(PAGE), *words], check=True, capture_output=True, text=True, timeout=TIMEOUT_S
    )
    used = bench.cpu_us() - begun
    returned, _pages, visited, _received, clock_us = (int(word) for word in done.stdout.split())
    return Read(what, returned, visited, returned / clock_us * 1e6, used / max(returned, 1), clock_us / 1e3)


def keep(messages: int) -> list[Kept]:
    """Memory of the same messages in history, in a stream for each topic, and in queues of sessions."""
    topics = list(_topics(random.Random(2), messages))
    sessions = max(1, messages // SESSION_MESSAGES)
    layouts: dict[str, tuple[list[Command], Iterator[Command]]] = {
        "history": (
            [("HISTORY.STORE", "s", "FILTER", "devices/#")],
            (("HISTORY.APPEND", "s", topic, PAYLOAD) for topic in topics),
        ),
        f"a stream for each of {len(set(topics)):,} topics": (
            [],
            (("XADD", topic, "*", "m", PAYLOAD) for topic in topics),
        ),
        "one stream, without topics": ([], (XADD for _ in topics)),
        "the queue of one subscriber": (
            [],
            (
                ("SESSION.ADD", f"{{c{number % sessions}}}", "LIMIT", 65_535, "MESSAGES", PAYLOAD)
                for number in range(messages)
            ),
        ),
    }
    return [Kept(what, messages, _memory(before, work) / messages) for what, (before, work) in layouts.items()]


def _memory(before: list[Command], work: Iterator[Command]) -> float:
    with running(module=True, aof=False) as bench:
        if before:
            bench.load.run(packed(before))
        empty = int(bench.admin.info("memory")["used_memory"])
        bench.load.run(packed(work))
        return float(int(bench.admin.info("memory")["used_memory"]) - empty)


def _table(rows: list[Any]) -> str:
    headings = [name.replace("_", " ") for name in asdict(rows[0])]
    lines = [headings, *([_cell(value) for value in asdict(row).values()] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headings))]
    lines.insert(1, ["-" * width for width in widths])
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in lines
    )


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if value >= 1000 else f"{value:.2f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


@click.command()
@click.option("--messages", type=click.IntRange(ROUND), default=1_000_000, help="Of 10,000 devices, two topics each.")
@click.option("--quick", is_flag=True, help="100,000 messages: half a minute.")
@json_option("bench-history.json")
def main(messages: int, quick: bool, output: Path) -> None:
    """Measure writing, reading and keeping history beside plain streams."""
    messages = 100_000 if quick else messages
    machine = this_machine()
    with running(module=True, aof=False) as bench:
        facts = bench.facts()
        written = write(bench, messages)
        reads = read(bench)
    kept = keep(min(messages, 200_000))
    machine["load_average_after"] = os.getloadavg()
    for rows in (written, reads, kept):
        click.echo(_table(rows) + "\n")
    before, after = machine["load_average_before"][0], machine["load_average_after"][0]
    click.echo(
        f"{messages:,} messages of {len(PAYLOAD)} bytes, {DEVICES:,} devices, {len(KINDS)} topics each; "
        f"{facts['server']} {facts['server_version']}, {facts['allocator']}, no append-only file, on "
        f"{machine['cpus']} x {machine['cpu']}, {machine['kernel']}, load {before:.1f} to {after:.1f}, "
        f"{machine['date']}."
    )
    output.parent.mkdir(parents=True, exist_ok=True)
    result = {
        **machine,
        **facts,
        "messages": messages,
        "written": [asdict(row) for row in written],
        "read": [asdict(row) for row in reads],
        "kept": [asdict(row) for row in kept],
    }
    output.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
