"""Runs the test suites of Node.js libraries over pub/sub with the module and without; fails on each difference.

    python -m tests.libraries.node_suites [--suite bull,bullmq] [--server redis-7.0]

The suites are those of old versions: the packages of later ones leave their tests out.  tools/node-suites.sh installs
them.  The module has its default policies.  Each file of a suite is run beside a stock server, then beside one with the
module.  Where an outcome differs, both runs are repeated: only a test that differs in the same way each time counts.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.support import Server, ServerKind, selected_kinds

REPOSITORY = Path(__file__).parents[2]
FOLDER = REPOSITORY / "build" / "node-suites"  # tools/node-suites.sh
PRELOADED = Path(__file__).parent / "node-suites" / "map_port.cjs"
ROUNDS = 3
TEST_LIMIT_MS = 10_000
FILE_LIMIT_S = 400
WORKERS = 3
TEXT_SHOWN = 3000
HELD = b"holdmq:held:"
BRACED = re.compile(r"\{(.*)\}", re.DOTALL)
RANDOM = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}")

PASSED, FAILED, PENDING = "passed", "failed", "pending"
Outcomes = Mapping[str, str]


@dataclass(frozen=True)
class Suite:
    """The tests of a library.

    Attributes:
        files: pattern of its test files, below its package.
        at_least: the number of its tests; fewer are an error of the run.
        words: further words for mocha.
        left_out: files that are not run, and why.
    """

    files: str
    at_least: int
    words: Sequence[str] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)


OWN_SERVER = "speaks to a server that the test itself plays"
SUITES = {
    "ioredis": Suite(
        "test/*/*.js",
        at_least=146,
        words=("--file", "test/helpers/global.js", "--grep", "Cluster", "--invert"),
        left_out={
            "global.js": "has no tests",
            "mock_server.js": "has no tests",
            "auth.js": OWN_SERVER,
            "cluster.js": OWN_SERVER,
            "sentinel.js": OWN_SERVER,
            "show_friendly_error_stack.js": "waits for a text that Node.js no longer prints",
        },
    ),
    "bull": Suite("test/test_*.js", at_least=190),
    "bullmq": Suite(
        "dist/test/test_*.js",
        at_least=160,
        left_out={"test_repeat.js": "does not end on Redis 7.0 with Node.js 20, with the module or without"},
    ),
    "socket.io-redis": Suite("test/index.js", at_least=5),
    "bee-queue": Suite("test/*-test.js", at_least=55),
}


@dataclass
class Result:
    """What came of a suite on a server."""

    stock: Counter[str] = field(default_factory=Counter)
    module: Counter[str] = field(default_factory=Counter)
    repeated: list[str] = field(default_factory=list)
    different: list[str] = field(default_factory=list)
    held: set[str] = field(default_factory=set)


def package(suite: str) -> Path:
    """The folder of a library whose suite is run."""
    return FOLDER / suite / "node_modules" / suite


def files(suite: str) -> list[str]:
    """The test files of a suite, as mocha is given them."""
    left_out = SUITES[suite].left_out
    found = sorted(path for path in package(suite).glob(SUITES[suite].files))
    missing = set(left_out) - {path.name for path in found}
    if not found or missing:
        raise SystemExit(
            f"{package(suite)} lacks {sorted(missing) or 'tests'}: run `make build/node-suites/.installed`"
        )
    return [str(path.relative_to(package(suite))) for path in found if path.name not in left_out]


def outcomes(report: Mapping[str, Sequence[Mapping[str, str]]]) -> Outcomes:
    """The outcome of each test in a report of mocha; a test of the same name twice has its worst."""
    found: dict[str, str] = {}
    for key, outcome in (("passes", PASSED), ("pending", PENDING), ("failures", FAILED)):
        for test in report[key]:
            found[test["fullTitle"]] = outcome
    return found


def run_file(server: Server, suite: str, file: str, folder: Path) -> Outcomes:
    """The outcome of each test of a file, on an emptied server."""
    server.client().flushall()
    report = folder / "report.json"
    report.unlink(missing_ok=True)
    command = [
        str(FOLDER / suite / "node_modules" / ".bin" / "mocha"), "--no-config", "--no-package", "--exit",
        "--timeout", str(TEST_LIMIT_MS), "--reporter", "json", "--reporter-option", f"output={report}",
        *SUITES[suite].words, file,
    ]  # fmt: skip
    environment = {
        **os.environ,
        "NODE_ENV": "test",
        "NODE_OPTIONS": f'--no-warnings --require "{PRELOADED}"',
        "SUITE_PORT": str(server.port),
    }
    done = subprocess.run(
        command,
        cwd=package(suite),
        env=environment,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=FILE_LIMIT_S,
        check=False,
    )
    if not report.exists():
        raise RuntimeError(f"{suite}, {file}: no report; {done.stdout[-TEXT_SHOWN:]}{done.stderr[-TEXT_SHOWN:]}")
    return outcomes(json.loads(report.read_text()))


def held_names(server: Server) -> set[str]:
    """The channels of which the server holds messages, random parts as `<id>`."""
    keys = server.client().scan_iter(match=HELD + b"*", count=1000)
    found = (BRACED.search(key.decode(errors="replace")) for key in keys)
    return {RANDOM.sub("<id>", match[1]) for match in found if match}


def compare_file(stock: Server, module: Server, suite: str, file: str, folder: Path, result: Result) -> None:
    """Run a file on both servers, and again while an outcome differs; add to the result."""
    different: set[tuple[str, str | None, str | None]] = set()
    expected: Outcomes = {}
    found: Outcomes = {}
    for turn in range(ROUNDS):
        expected = run_file(stock, suite, file, folder)
        found = run_file(module, suite, file, folder)
        result.held |= held_names(module)
        differing = {
            (test, expected.get(test), found.get(test))
            for test in expected.keys() | found.keys()
            if expected.get(test) != found.get(test)
        }
        different = different & differing if turn else differing
        if not different:
            break
        result.repeated += sorted(f"{file}: {test} ({one}, {other})" for test, one, other in different)
    result.stock.update(expected.values())
    result.module.update(found.values())
    result.different += sorted(f"{file}: {test} ({one}, {other})" for test, one, other in different)


@contextmanager
def running(kind: ServerKind, folder: Path, *, module: bool) -> Iterator[Server]:
    """A server for a suite; a crash of it is an error."""
    server = Server(kind, folder, module=module)
    try:
        server.start()
        yield server
        server.check()
    finally:
        server.close()


def compare(kind: ServerKind, suite: str) -> Result:
    """Run a suite on a server with the module and without."""
    result = Result()
    with tempfile.TemporaryDirectory(prefix="holdmq-suite-") as name:
        folder = Path(name)
        with (
            running(kind, folder / "stock", module=False) as stock,
            running(kind, folder / "module", module=True) as module,
        ):
            for file in files(suite):
                compare_file(stock, module, suite, file, folder, result)
    return result


def show(kind: str, suite: str, result: Result) -> bool:
    """Print the result of a suite; return whether it is a good one."""
    total = sum(result.stock.values())
    few = total < SUITES[suite].at_least
    print(
        f"{kind} {suite}: {total} tests, {result.stock[PENDING]} left out by the suite, "
        f"{result.stock[PASSED]} passed on stock, {result.module[PASSED]} with the module, "
        f"{len(result.different)} differences" + (f"; at least {SUITES[suite].at_least} tests expected" if few else "")
    )
    for title, lines in (("repeated", result.repeated), ("DIFFERENT", result.different), ("held", sorted(result.held))):
        for line in lines:
            print(f"    {title}: {line}")
    sys.stdout.flush()
    return not result.different and not few


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", default=",".join(SUITES), help="some of %(default)s")
    parser.add_argument("--server", help="some of the servers under test, by name")
    arguments = parser.parse_args()
    suites = arguments.suite.split(",")
    if unknown := set(suites) - SUITES.keys():
        parser.error(f"no suite {', '.join(sorted(unknown))} (expected: {', '.join(SUITES)})")
    kinds = {kind.name: kind for kind in selected_kinds()}
    names = arguments.server.split(",") if arguments.server else list(kinds)
    if unknown := set(names) - kinds.keys():
        parser.error(f"no server {', '.join(sorted(unknown))} (expected: {', '.join(kinds)})")
    with ThreadPoolExecutor(WORKERS) as pool:
        # The longest first.
        order = [(name, suite) for suite in sorted(suites, key=lambda suite: -SUITES[suite].at_least) for name in names]
        runs = [(name, suite, pool.submit(compare, kinds[name], suite)) for name, suite in order]
        good = [show(name, suite, run.result()) for name, suite, run in runs]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
