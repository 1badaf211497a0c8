"""The speed of the core, in C alone (core_bench.c and history_bench.c, compiled here) and through Python.

    .venv/bin/python bench/core_bench.py [--json FILE]

Figures are nanoseconds per call, the best of three runs. The reader has to judge the noise of the machine.
"""

import json
import platform
import subprocess
import sys
import tempfile
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from holdmq import core
from holdmq.core import mqtt

ROOT = Path(__file__).resolve().parents[1]
RUNS = 3
PAYLOAD = b"x" * 62
TOPIC = b"devices/sensor-000042/state"


class Figure(NamedTuple):
    """One measured figure."""

    name: str
    value: float
    unit: str


def in_c(name: str) -> list[Figure]:
    """Compiles bench/<name>.c with the core and runs it; the best of several runs."""
    with tempfile.TemporaryDirectory() as work:
        program = Path(work) / name
        sources = [ROOT / "bench" / f"{name}.c", *sorted((ROOT / "src").rglob("*.c"))]
        flags = ["-std=c11", "-D_GNU_SOURCE", "-O2", "-fvisibility=hidden", f"-I{ROOT / 'src'}"]
        subprocess.run(["gcc", *flags, "-o", str(program), *map(str, sources)], check=True)  # noqa: S607 - the build's
        runs = [subprocess.run([str(program)], check=True, capture_output=True, text=True) for _ in range(RUNS)]
    found: dict[str, Figure] = {}
    for line in (line for run in runs for line in run.stdout.splitlines()):
        figure, value, what = line.split("\t")
        unit = what if figure == "trie memory" or name == "history_bench" else f"ns a {what}"
        best = min(float(value), found[figure].value) if figure in found else float(value)
        found[figure] = Figure(figure, best, unit)
    return list(found.values())


def in_python() -> list[Figure]:
    """The same work through holdmq.core."""
    publish = mqtt.encode_publish(TOPIC, PAYLOAD, 1, packet_id=7)
    batch = publish * 256
    record = core.Record(qos=1, time_ms=1, topic=TOPIC, payload=PAYLOAD, publisher=b"backend-1")
    stored = record.encode()
    trie = core.TopicTrie()
    trie.set("devices/+/state", 1)
    trie.set("#", 2)
    return [
        measured("python mqtt decode", lambda: mqtt.decode_many(batch), 256, "ns a PUBLISH, 256 in a batch"),
        measured("python mqtt decode one", lambda: mqtt.decode_many(publish), 1, "ns a PUBLISH, alone"),
        measured("python mqtt encode", lambda: mqtt.encode_publish(TOPIC, PAYLOAD, 1, packet_id=7), 1, "ns a PUBLISH"),
        measured("python mqtt puback", lambda: mqtt.encode_puback(7), 1, "ns a PUBACK"),
        measured("python record encode", record.encode, 1, "ns a record"),
        measured("python record decode", lambda: core.Record.decode(stored), 1, "ns a record"),
        measured("python trie match", lambda: trie.match(TOPIC), 1, "ns a topic, 2 filters match"),
    ]


def measured(name: str, work: Callable[[], object], each: int, unit: str) -> Figure:
    """The best of several runs of about a fifth of a second."""
    timer = timeit.Timer(work)
    count, _ = timer.autorange()
    best = min(timer.repeat(RUNS, count))
    return Figure(name, best / count / each * 1e9, unit)


def main(arguments: list[str]) -> None:
    """Prints the table; with --json FILE writes the figures there, too."""
    figures = in_c("core_bench") + in_c("history_bench") + in_python()
    print(f"core, {platform.machine()}, Python {platform.python_version()}, {platform.platform()}")
    for figure in figures:
        print(f"{figure.name:40} {figure.value:10.1f}  {figure.unit}")
    if arguments[:1] == ["--json"]:
        Path(arguments[1]).write_text(json.dumps([figure._asdict() for figure in figures], indent=2) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
