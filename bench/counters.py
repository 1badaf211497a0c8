"""The cost of the bridge's counters for each client, and of reading all of them for a report.

    make bench-counters        needs valgrind, takes a minute or two

The bridge runs under callgrind, so the figures do not vary: instructions of the bridge's process, without those of the
kernel.  The lines that count are found in the sources, and callgrind says what each line costs.
"""

import contextlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import click

from bench.mqtt_load import Options, holding, run_load
from holdmq.server import ChildProcess, ServerProcess, configuration, find_module, find_server, next_free_port

REPOSITORY = Path(__file__).parents[1]
HOST = "127.0.0.1"
FIRST_PORT = 6900
START_S = 120.0
TIMEOUT_S = 120.0
PAIRS, MESSAGES = 10, 1000
CLIENTS = 1000
REPORTS_S = 10.0
LIMIT = 0.005
"""At most so much of what a message costs."""
LOAD: Options = {"pairs": PAIRS, "persistent": True, "window": 20, "timeout": TIMEOUT_S}
TOTAL = re.compile(r"^totals: (\d+)", re.MULTILINE)
COUNTS = re.compile(r"c->traffic\.(?:received|sent|bytes_received|bytes_sent)(?:\+\+| \+= )")
INSTRUCTIONS = re.compile(r"^ *([\d,]+) ")


class CountedBridge:
    """A bridge under callgrind, in front of a server that is not.

    Args:
        folder: for files of both.
        options: of the bridge.
    """

    def __init__(self, folder: Path, *options: str) -> None:
        self._folder = folder
        self._stack = contextlib.ExitStack()
        server_port = next_free_port(HOST, FIRST_PORT)
        lines = configuration(port=server_port, directory=folder, module=find_module(), aof=False)
        (folder / "server.conf").write_text("\n".join([*lines, ""]))
        server = ServerProcess([find_server()], folder / "server.conf", port=server_port, log=folder / "server.log")
        server.start()
        self._stack.callback(server.kill)
        self.port = next_free_port(HOST, server_port + 1)
        tool = ["--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={folder / 'callgrind'}"]
        command = ["valgrind", *tool, f"--vgdb-prefix={folder / 'vgdb'}", sys.executable, "-m", "holdmq_bridge"]
        command += ["--port", str(self.port), "--redis", f"redis://{HOST}:{server_port}", "--log-level", "WARNING"]
        command += ["--sys-interval-s", "0", "--connection-rate", "0", *options]
        self._bridge = ChildProcess(command, log=folder / "bridge.log")
        self._bridge.spawn()
        self._stack.callback(self._bridge.kill)
        self._wait()

    def close(self) -> None:
        """End both."""
        self._stack.close()

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        """Counts instructions for as long as the context lasts."""
        self._control("-i", "on")
        yield
        self._control("-i", "off")
        self._control("-d", "part")

    def total(self) -> int:
        """Instructions that were counted."""
        found = TOTAL.search(self._profile().read_text())
        if found is None:
            raise AssertionError(f"{self._profile()} tells no total")
        return int(found[1])

    def of_counters(self) -> int:
        """Those of the lines that count."""
        annotated = self._annotated("--auto=yes", "--threshold=100", f"--include={REPOSITORY}")
        found = [line for line in annotated.splitlines() if COUNTS.search(line)]
        return sum(map(_instructions, found))

    def of_function(self, name: str) -> int:
        """Those of a function with all that it calls."""
        annotated = self._annotated("--inclusive=yes", "--threshold=100")
        found = [line for line in annotated.splitlines() if re.search(rf":{name}\b", line)]
        return max(map(_instructions, found), default=0)

    def _annotated(self, *options: str) -> str:
        command = ["callgrind_annotate", *options, str(self._profile())]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=TIMEOUT_S, cwd=REPOSITORY)
        return done.stdout

    def _profile(self) -> Path:
        return max(self._folder.glob("callgrind.*"), key=lambda path: int(path.suffix[1:]))

    def _control(self, *words: str) -> None:
        command = ["callgrind_control", f"--vgdb-prefix={self._folder / 'vgdb'}", *words, str(self._bridge.pid)]
        subprocess.run(command, check=True, capture_output=True, timeout=TIMEOUT_S)

    def _wait(self) -> None:
        deadline = time.monotonic() + START_S
        while True:
            with contextlib.suppress(OSError), socket.create_connection((HOST, self.port), 1.0):
                return
            if not self._bridge.running or time.monotonic() > deadline:
                raise RuntimeError(f"the bridge does not listen:\n{self._bridge.log_text()[-2000:]}")
            time.sleep(0.1)


def _instructions(line: str) -> int:
    found = INSTRUCTIONS.match(line)
    return int(found[1].replace(",", "")) if found else 0


@contextlib.contextmanager
def counted(*options: str) -> Iterator[CountedBridge]:
    """A bridge under callgrind for as long as the context lasts.

    Raises:
        FileNotFoundError: there is no valgrind.
    """
    if shutil.which("callgrind_control") is None:
        raise FileNotFoundError("callgrind_control is missing: install the package valgrind")
    folder = Path(tempfile.mkdtemp(prefix="holdmq-bench-"))
    try:
        with contextlib.closing(CountedBridge(folder, *options)) as running:
            yield running
    finally:
        shutil.rmtree(folder)


def of_a_message() -> tuple[float, float]:
    """Instructions of the bridge for a message that comes in and goes out, and those of its counters among them."""
    with counted("--report-interval-s", "0") as bridge:
        run_load(bridge.port, "pairs", {**LOAD, "count": MESSAGES // 10, "prefix": "warm"})
        with bridge.counting():
            run_load(bridge.port, "pairs", {**LOAD, "count": MESSAGES})
        messages = PAIRS * MESSAGES
        return bridge.total() / messages, bridge.of_counters() / messages


def of_a_report() -> float:
    """Instructions of the look at all clients, for one client and report."""
    with counted("--report-interval-s", "1") as bridge, holding(bridge.port, CLIENTS, {"timeout": TIMEOUT_S}):
        with bridge.counting():
            time.sleep(REPORTS_S)  # what is measured is a length of time
        return bridge.of_function("hmq_engine_measure") / (CLIENTS * REPORTS_S)


@click.command()
def main() -> None:
    """Print what the counters cost; exit status 1 if it is too much."""
    message, counters = of_a_message()
    click.echo(
        f"a message in and out: {message:.0f} instructions, {counters:.1f} of them count ({counters / message:.2%})"
    )
    click.echo(f"the look at all clients: {of_a_report():.1f} instructions for each client in each report")
    if not 0 < counters <= LIMIT * message:
        raise SystemExit(f"expected counters that cost something, and at most {LIMIT:.1%} of a message")


if __name__ == "__main__":
    main()
