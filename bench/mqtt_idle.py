"""`make bench-mqtt-idle`: a hundred thousand idle connections, each with a session and a subscription.

One server and one bridge hold them, with as many workers as the limit on open files requires.  The generators use
several addresses of loopback, because one address has too few ports.  While all connections are open, a publisher and a
subscriber exchange messages one after the other, and the processor time of bridge and server is read.  The cost of idle
clients is their PINGREQs.
"""

import contextlib
import json
import resource
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from bench.machine import this_machine
from bench.mqtt_brokers import BrokerError, Running, holdmq
from bench.mqtt_cases import COMMON, KIB
from bench.mqtt_load import STOP_TIMEOUT_S, Load, LoadError, command, run_load
from bench.output import json_option

PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
SPARE_FILES = 1000  # of a process: its log, the server, what it accepts and closes again
PROBE_RATE = 200  # messages a second, one on its way at a time
QUIET_S = 2.0  # after the last connection


@click.command()
@click.option("--connections", type=click.IntRange(1, 1_000_000), default=100_000, show_default=True)
@click.option("--keep-alive", type=click.IntRange(1, 65535), default=30, show_default=True, help="Seconds.")
@click.option(
    "--workers", type=click.IntRange(1, 1024), help="Of the bridge (default: as few as can open the sockets)."
)
@json_option("bench-mqtt-idle.json")
def main(connections: int, keep_alive: int, workers: int | None, output: Path) -> None:
    """Hold idle MQTT connections and see what they take."""
    files = _open_files()
    # The kernel spreads connections over workers by hash: some get more than others.
    workers = workers or -(-connections * 11 // (10 * (files - SPARE_FILES)))
    try:
        with holdmq(["--max-connections", str(connections + 10)], workers).start() as running:
            found = _measure(running, connections, keep_alive, files)
    except (BrokerError, LoadError) as error:
        raise click.ClickException(str(error)) from error
    for what, value in found.items():
        click.echo(f"{what:34} {value:,.3g}" if isinstance(value, float) else f"{what:34} {value:,}")
    facts = {**this_machine(), "workers": workers, "keep_alive_s": keep_alive, "open_files": files}
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps({**facts, **found}, indent=2) + "\n")


def _open_files() -> int:
    """As many as this process, and all that it starts, may open."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most


def _measure(running: Running, connections: int, keep_alive: int, files: int) -> dict[str, Any]:
    first, last = map(int, PORTS.read_text().split())
    most = min(last - first, files - SPARE_FILES) * 9 // 10
    before = running.pss_bytes()
    started = time.monotonic()
    with _idle(running.port, connections, keep_alive, most) as ready:
        ready()
        connected_s = time.monotonic() - started
        time.sleep(QUIET_S)
        memory = {part: bytes_ - before[part] for part, bytes_ in running.pss_bytes().items()}
        probe = _probe(running, keep_alive / 2)  # in which the generators send a PINGREQ on each connection
    cores = {part: sum(probe.cpu_s[pid] for pid in pids) / probe.seconds for part, pids in running.processes.items()}
    return {
        "connections": connections,
        "connected after s": connected_s,
        **{f"{part}: KiB a connection": bytes_ / connections / KIB for part, bytes_ in memory.items()},
        **{f"{part}: cores, {keep_alive} s of keep-alive": share for part, share in cores.items()},
        "messages meanwhile": probe.incoming,
        **{f"{name} ms": probe.latency_us[name] / 1e3 for name in ("p50", "p99", "max")},
    }


@contextlib.contextmanager
def _idle(port: int, connections: int, keep_alive: int, most: int) -> Iterator[Callable[[], None]]:
    """Generators, each with its share; yields a function that waits until all connections are there.

    That function, and the end, raise LoadError if one was refused or lost.
    """
    shares = [most] * (connections // most) + [connections % most] * (connections % most > 0)
    options = {**COMMON, "seconds": 3600, "keep-alive": keep_alive}
    with contextlib.ExitStack() as stack:
        processes = []
        for number, share in enumerate(shares):
            own = {"prefix": f"idle{number}", "source": f"127.0.{number // 250}.{number % 250 + 1}"}
            line = command(port, "idle", {**options, **own, "subscribers": share}, ())
            process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            stack.callback(_stop, process)
            processes.append(process)
        yield lambda: _wait_for(processes)
        for process in processes:
            if process.poll() is not None:
                raise LoadError(f"a connection was lost: {_rest(process)}")


def _wait_for(processes: Sequence["subprocess.Popen[str]"]) -> None:
    for process in processes:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line.endswith("}\n"):
            raise LoadError(f"not all connections came about: {line}{_rest(process)}")


def _rest(process: "subprocess.Popen[str]") -> str:
    said, faults = process.communicate(timeout=STOP_TIMEOUT_S)
    return said + faults


def _stop(process: "subprocess.Popen[str]") -> None:
    process.terminate()
    try:
        process.communicate(timeout=STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()


def _probe(running: Running, seconds: float) -> Load:
    options = {**COMMON, "pairs": 1, "rate": PROBE_RATE, "window": 1, "gather": 0, "seconds": seconds}
    return run_load(running.port, "pairs", options, watch=running.pids)


if __name__ == "__main__":
    main()
