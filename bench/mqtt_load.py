"""Runs the load generator (mqtt_load.c, built by `make build/mqtt_load`) and reads its results.

The generator is a process of its own, in C, so that it takes little from the broker.  Its share of the CPU is measured,
too.
"""

import contextlib
import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HOST = "127.0.0.1"
GENERATOR = Path(__file__).resolve().parents[1] / "build" / "mqtt_load"
STOP_TIMEOUT_S = 30.0

Options = Mapping[str, float | str | bool]


class LoadError(RuntimeError):
    """A run that lost something, or did not come to its end; the text says what."""


@dataclass(frozen=True)
class Load:
    """What a run found, over the time that was measured.

    Attributes:
        incoming: messages that the broker acknowledged.
        outgoing: messages that it delivered.
        seconds: how long.
        latency_us: from sending to receiving; keys count, mean, p50, p90, p99, p99.9 and max, in microseconds.
        generator_cpu_s: CPU time of the generator.
        cpu_s: CPU time of each watched process.
        others_cores: how many cores were busy with other processes, or taken away by the host.
        raw: all that it printed.
    """

    incoming: int
    outgoing: int
    seconds: float
    latency_us: Mapping[str, float]
    generator_cpu_s: float
    cpu_s: Mapping[int, float]
    others_cores: float
    raw: Mapping[str, Any]

    @property
    def messages(self) -> int:
        """PUBLISH packets that the broker received and delivered."""
        return self.incoming + self.outgoing

    @property
    def per_s(self) -> float:
        """The same for each second."""
        return self.messages / self.seconds


def run_load(
    port: int,
    pattern: str,
    options: Options,
    *,
    watch: Sequence[int] = (),
    timeout_s: float = 300.0,
) -> Load:
    """Run it once.

    Args:
        port: of the broker.
        pattern: as `--pattern` of the generator.
        options: further ones of the generator, without --; True for one that takes no value.
        watch: processes whose CPU time is measured along.
        timeout_s: after which it is killed.

    Raises:
        LoadError: something was lost, came out of order or was not ours, or there was a fault.
    """
    asked = command(port, pattern, options, watch)
    try:
        done = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=timeout_s)
    except subprocess.TimeoutExpired as error:
        raise LoadError(f"{' '.join(asked)}: not done after {timeout_s:g} s") from error
    if done.returncode != 0:
        raise LoadError(f"{' '.join(asked)}: exit status {done.returncode}\n{done.stderr}{done.stdout}")
    return _read(json.loads(done.stdout))


@contextlib.contextmanager
def holding(port: int, connections: int, options: Options) -> Iterator[float]:
    """Hold idle connections, each with a subscription; yields how long they took, in seconds.

    Raises:
        LoadError: they could not be made, or one was lost meanwhile.
    """
    asked = command(port, "idle", {"subscribers": connections, "seconds": 3600, **options}, ())
    with subprocess.Popen(asked, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            ready = process.stdout.readline()
            if ready.endswith("}\n"):  # else it is the beginning of what tells of a fault
                yield float(json.loads(ready)["connect_s"])
        finally:
            process.terminate()
            try:
                _, said = process.communicate(timeout=STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        if process.returncode != 0:
            raise LoadError(f"{' '.join(asked)}: exit status {process.returncode}\n{said}")


def command(port: int, pattern: str, options: Options, watch: Sequence[int]) -> list[str]:
    """The generator's command line; parameters as `run_load`.

    Raises:
        LoadError: the generator is not there.
    """
    if not GENERATOR.exists():
        raise LoadError(f"no {GENERATOR}: build it with `make build/mqtt_load`")
    line = [str(GENERATOR), "--host", HOST, "--port", str(port), "--pattern", pattern]
    for name, value in options.items():
        line += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    for pid in watch:
        line += ["--watch", str(pid)]
    return line


def _read(found: dict[str, Any]) -> Load:
    cpu_s = {int(pid): seconds for pid, seconds in found["watched_cpu_s"].items()}
    others_s = found["machine_busy_s"] - found["cpu_s"] - sum(cpu_s.values())
    return Load(
        incoming=found["in"],
        outgoing=found["out"],
        seconds=found["seconds"],
        latency_us=found["latency_us"],
        generator_cpu_s=found["cpu_s"],
        cpu_s=cpu_s,
        others_cores=max(0.0, others_s / found["seconds"]) if found["seconds"] else 0.0,
        raw=found,
    )
