"""Runs a server's own test suite with the module loaded, and fails on each difference from a run without the module.

    python -m tests.upstream --suite redis-7.0,valkey-9.1          all units, with two policies and without the module
    python -m tests.upstream --suite redis-7.0,valkey-9.1 --quick  the units of which pub/sub is a part

Without --quick everything runs three times: with a policy that holds every message and hands none over (a test would
take what the test before it published for its own), with an empty policy, and without the module.  The sources are
fetched by tools/upstream-sources.sh into build/upstream.

With --quick only the first policy is run, and the stock server only for units in which a test failed.  A test that
differs is run once more, on both servers, before it counts.  `EXPECTED` lists all differences that are meant.
"""

import argparse
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from holdmq.server import find_module
from tests.support.servers import KINDS, ServerKind

REPOSITORY = Path(__file__).parents[2]
FOLDER = REPOSITORY / "build" / "upstream"
POLICIES = {"held": '"* deliver=none"', "empty": '""'}
PORTS = {"held": 21200, "empty": 23600, "stock": 26000}
PORT_COUNT = 2300
NO_PROGRESS_S = 600  # the suite then ends itself, and stops its servers
LIMIT_S = 4 * 3600
CLIENTS = 2

QUICK = (
    "unit/pubsub", "unit/pubsubshard", "unit/multi", "unit/acl", "unit/acl-v2", "unit/introspection",
    "unit/introspection-2", "unit/tracking", "unit/keyspace", "unit/scripting", "unit/functions", "unit/slowlog",
    "unit/commandlog", "unit/other", "unit/info", "unit/pause", "unit/type/list", "unit/cluster/pubsub",
    "unit/cluster/pubsubshard", "unit/cluster/pubsubshard-slot-migration",
)  # fmt: skip
FURTHER = (
    "unit/latency-monitor", "unit/type/list-2", "unit/type/list-3", "unit/type/zset", "unit/type/set",
    "unit/type/hash", "unit/type/string", "unit/expire", "unit/quit", "unit/protocol", "unit/obuf-limits",
    "unit/networking", "unit/wait", "unit/dump", "unit/scan", "unit/auth", "unit/querybuf", "unit/aofrw",
    "unit/cluster/links", "unit/cluster/misc", "integration/replication-3", "integration/replication-4",
    "integration/block-repl", "integration/replication-buffer",
)  # fmt: skip

# By server and policy: tests that fail with the module alone, and why that is meant.
HELD_PUBLISH = {
    "MULTI propagation of PUBLISH": "nobody hears the message, so it is held: a list is written in the same step"
}
EXPECTED: dict[tuple[str, str], dict[str, str]] = {
    ("redis-7.0", "held"): HELD_PUBLISH,
    ("valkey-9.1", "held"): HELD_PUBLISH,
}

COLOURS = re.compile(r"\x1b\[[0-9;]*m")
PASSED = re.compile(r"^\[ok\]: (?P<name>.*) \(\d+ ms\)$")
FAILED = re.compile(r"^\[(?:err|exception)\]: (?P<name>.*?)(?: in tests/(?P<unit>\S+)\.tcl)?$")


@dataclass
class Outcome:
    """What a run said.

    Attributes:
        passed: how often each test passed: a name may stand for several.
        failed: the units of the tests that failed, by name.
        ended: whether it came to its end.
        text: all that it printed.
    """

    passed: Counter[str] = field(default_factory=Counter)
    failed: dict[str, str] = field(default_factory=dict)
    ended: bool = False
    text: str = ""


def place_programs(kind: ServerKind, folder: Path) -> None:
    """Puts programs where the suite looks for them: src/redis-server and the like."""
    programs = folder / "src"
    programs.mkdir(exist_ok=True)
    script(programs / f"{kind.family}-server", " ".join(f"'{word}'" for word in kind.command()))
    for tool in ("cli", "benchmark", "check-aof", "check-rdb"):
        script(programs / f"{kind.family}-{tool}", f"redis-{tool}")


def script(path: Path, command: str) -> None:
    """A program that runs another one in its place."""
    path.unlink(missing_ok=True)
    path.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    path.chmod(0o755)


def run(suite: str, units: Sequence[str], policy: str, log: Path) -> Outcome:
    """Runs units of the suite."""
    folder = FOLDER / suite
    words = ["tclsh8.6", "tests/test_helper.tcl", "--clients", str(CLIENTS), "--durable"]
    words += ["--timeout", str(NO_PROGRESS_S)]
    words += ["--baseport", str(PORTS[policy]), "--portcount", str(PORT_COUNT)]
    for unit in units:
        words += ["--single", unit]
    if policy != "stock":
        words += ["--config", "loadmodule", str(find_module())]
        words += ["--config", "holdmq.policies", POLICIES[policy]]
    begin = time.monotonic()
    with log.open("wb") as out:
        status = subprocess.run(words, cwd=folder, stdout=out, stderr=subprocess.STDOUT, timeout=LIMIT_S, check=False)
    outcome = read(log.read_text("utf-8", "replace"))
    outcome.ended = outcome.ended or status.returncode == 0
    seconds = time.monotonic() - begin
    count = f"{outcome.passed.total()} tests passed, {len(outcome.failed)} failed"
    print(f"{suite}, {policy}: {len(units)} units, {count}, {seconds:.0f} s", flush=True)
    return outcome


def read(text: str) -> Outcome:
    """The outcome of what a run printed."""
    outcome = Outcome(text=COLOURS.sub("", text))
    for line in outcome.text.splitlines():
        passed, failed = PASSED.match(line), FAILED.match(line.removeprefix("*** "))
        if passed is not None:
            outcome.passed[passed["name"]] += 1
        elif failed is not None:
            outcome.failed[failed["name"]] = failed["unit"] or outcome.failed.get(failed["name"], "")
    outcome.ended = "All tests passed" in outcome.text or "The following tests failed" in outcome.text
    return outcome


def differences(ours: Outcome, stock: Outcome, expected: Iterable[str]) -> set[str]:
    """The tests that failed with the module, or passed less often, and did not do so without it."""
    fewer = {name for name, count in stock.passed.items() if ours.passed[name] < count}
    return (set(ours.failed) | fewer) - set(stock.failed) - set(expected)


def unit_exists(suite: str, unit: str) -> bool:
    """Whether this version of the suite has the unit."""
    return (FOLDER / suite / "tests" / f"{unit}.tcl").exists()


def check(suite: str, *, quick: bool) -> list[str]:
    """Runs the suite of a server; returns what differs."""
    units = [unit for unit in (QUICK if quick else QUICK + FURTHER) if unit_exists(suite, unit)]
    logs = FOLDER / "logs"
    logs.mkdir(exist_ok=True)
    stock = None if quick else run(suite, units, "stock", logs / f"{suite}-stock.log")
    found: list[str] = []
    for policy in ("held",) if quick else ("held", "empty"):
        expected = EXPECTED.get((suite, policy), {})
        ours = run(suite, units, policy, logs / f"{suite}-{policy}.log")
        if not ours.ended:
            found.append(f"{suite}, {policy}: the run came to no end: see {logs}")
        names = differences(ours, stock if stock is not None else Outcome(), expected)
        if names:
            names = again(suite, sorted(units), names, ours, policy, expected)
        found += [f"{suite}, {policy}: {name}" for name in sorted(names)]
        found += [
            f"{suite}, {policy}: {name!r} is expected to differ, and does not"
            for name in expected
            if name not in ours.failed
        ]
    return found


def again(
    suite: str, units: Sequence[str], names: set[str], ours: Outcome, policy: str, expected: Iterable[str]
) -> set[str]:
    """Of the tests that differed, those that do so when their units are run once more on both servers."""
    concerned = [unit for unit in units if unit in {ours.failed.get(name, unit) for name in names}]
    logs = FOLDER / "logs"
    stock = run(suite, concerned, "stock", logs / f"{suite}-stock-again.log")
    repeated = run(suite, concerned, policy, logs / f"{suite}-{policy}-again.log")
    return differences(repeated, stock, expected) & names


def main() -> int:
    """Exit status 1 if something differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", default="redis-7.0,valkey-9.1", help="of redis-7.0, valkey-8.1, valkey-9.1")
    parser.add_argument("--quick", action="store_true", help="the units of which pub/sub is a part, with one policy")
    arguments = parser.parse_args()
    kinds = {kind.name: kind for kind in KINDS}
    suites = {name: kinds[name] for name in ("redis-7.0", "valkey-9.1")}
    found: list[str] = []
    for name in arguments.suite.split(","):
        if name not in suites:
            parser.error(f"no suite {name!r}; expected one of {', '.join(suites)}")
        place_programs(suites[name], FOLDER / name)
        found += check(name, quick=arguments.quick)
    for line in found:
        print(f"DIFFERENCE {line}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
