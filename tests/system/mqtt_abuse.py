"""Quiet clients stay quick: a pair exchanges 100 messages a second while others do their worst, each kind and all.

    python -m tests.system.mqtt_storm --abuse --seconds 120            (`make storm ARGS=--abuse`)

Each kind of abuse is a file of tests/system/abuse and runs as a process of its own, with the lowest priority: clients
are on other machines, and take no processor time from the broker.  The quiet pair is the C generator's, so that what is
measured is the broker.  Nothing of the pair may be lost, its p99 stays below 20 ms, and neither bridge nor server grows
by more than MOST_GROWTH_BYTES.
"""

import contextlib
import json
import os
import pkgutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Self

from bench.mqtt_load import GENERATOR
from holdmq_bridge.auth.passwords import hash_password
from holdmq_bridge.auth.records import User
from holdmq_bridge.auth.rules import Rule
from holdmq_bridge.auth.store import Store
from holdmq_bridge.auth.store import Target as Who
from tests.bridge import packets
from tests.bridge.talk import Talk
from tests.support import BridgeProcess, Server, embedded_kinds
from tests.support.ports import reserve_port
from tests.system import abuse
from tests.system.abuse.target import PASSWORD, USER

QUIET = "quiet"
RATE = 100  # messages a second of the pair
P99_MS = 20.0
MOST_GROWTH_BYTES = 256 << 20
LOOK_S = 0.1
MOST_DELAY_S = 100.0  # until all have begun and the pair is done: they are ended then
HELPERS = ("target", "computing")  # files of the package that are no kind


def kinds() -> list[str]:
    """All of them."""
    return sorted(
        m.name for m in pkgutil.iter_modules(abuse.__path__) if not m.name.startswith("_") and m.name not in HELPERS
    )


@dataclass(frozen=True)
class Outcome:
    """What the quiet pair met.

    Attributes:
        kinds: of abuse at that time.
        lost: messages.
        grown: bytes by which a process grew, by name.
        fault: of the pair; empty if there was none.
    """

    kinds: Sequence[str]
    p50_ms: float
    p99_ms: float
    most_ms: float
    lost: int
    grown: dict[str, int]
    fault: str

    def findings(self, p99_ms: float = P99_MS) -> list[str]:
        """What was wrong."""
        found = [f"the quiet pair lost {self.lost} messages"] if self.lost else []
        found += [f"the quiet pair failed: {self.fault}"] if self.fault else []
        found += [f"p99 of the quiet pair is {self.p99_ms:.1f} ms"] if self.p99_ms >= p99_ms else []
        found += [f"{name} grew by {size >> 20} MB" for name, size in self.grown.items() if size > MOST_GROWTH_BYTES]
        return [f"{' + '.join(self.kinds) or 'nobody'}: {text}" for text in found]

    def __str__(self) -> str:
        grown = ", ".join(f"{name} {size / 2**20:+.0f} MB" for name, size in self.grown.items())
        times = f"p50 {self.p50_ms:6.2f}  p99 {self.p99_ms:6.2f}  most {self.most_ms:6.1f} ms"
        return f"{' + '.join(self.kinds) or 'nobody':40} {times}  lost {self.lost}  {grown}"


class Broker:
    """A server and a bridge with their defaults, one user, and clients without a name, who may do everything."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._server = Server(embedded_kinds()[0], directory)
        self._ws_port = reserve_port()
        self._bridge: BridgeProcess | None = None

    def __enter__(self) -> Self:
        self._server.start()
        with self._server.client() as client:
            store = Store(client)
            store.add_user(User(USER, hash_password(PASSWORD)))
            store.change_rules(Who("role", "anonymous"), lambda _: (Rule.parse("allow all #"),))
        arguments = ("--ws-port", str(self._ws_port.number), "--log-level", "ERROR", "--allow-anonymous", "true")
        self._bridge = BridgeProcess(self._server.url, self._directory, arguments=arguments)
        self._bridge.start()
        for name in (f"{QUIET}-pub-0", f"{QUIET}-sub-0"):  # nobody may be there first
            with Talk(self._bridge.port) as client:
                client.send(packets.connect(name, clean=False))
                client.expect(packets.connack())
        return self

    def __exit__(self, *_: object) -> None:
        if self._bridge is not None:
            self._bridge.close()
        self._server.close()
        self._ws_port.release()

    def meet(self, kinds_of_abuse: Sequence[str], seconds: float) -> Outcome:
        """The quiet pair for so long, beside these."""
        assert self._bridge is not None
        with self._abused(kinds_of_abuse, seconds + MOST_DELAY_S):
            before = self._sizes()
            command = [str(GENERATOR), "--port", str(self._bridge.port), "--pattern", "pairs", "--rate", str(RATE)]
            command += [
                "--qos",
                "1",
                "--behind",
                "0",
                "--warm-up",
                "0.3",
                "--seconds",
                str(seconds),
                "--prefix",
                QUIET,
                "--persistent",
            ]
            most = before
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as pair:
                while pair.poll() is None:
                    most = {name: max(most[name], size) for name, size in self._sizes().items()}
                    time.sleep(LOOK_S)
                assert pair.stdout is not None
                found = json.loads(pair.stdout.read())
        times = found["latency_us"]
        return Outcome(
            kinds_of_abuse,
            times["p50"] / 1e3,
            times["p99"] / 1e3,
            times["max"] / 1e3,
            found["total"]["lost"],
            {name: most[name] - before[name] for name in before},
            found["fault"],
        )

    @contextlib.contextmanager
    def _abused(self, kinds_of_abuse: Sequence[str], seconds: float) -> Iterator[None]:
        assert self._bridge is not None
        command = ["nice", "-n", "19", sys.executable, "-m", "tests.system.abuse"]
        options = ["--port", str(self._bridge.port), "--ws-port", str(self._ws_port.number), "--seconds", str(seconds)]
        running: list[subprocess.Popen[bytes]] = []
        try:
            for kind in filter(_prepares, kinds_of_abuse):  # before the others crowd the broker
                running += _begin(command, options, [kind])
            running += _begin(command, options, [kind for kind in kinds_of_abuse if not _prepares(kind)])
            time.sleep(0.5 if running else 0)
            yield
            ended = [process.args for process in running if process.poll() is not None]
            assert not ended, f"abuse ended early: {ended}"
        finally:
            for process in running:
                with process:
                    process.kill()

    def _sizes(self) -> dict[str, int]:
        assert self._bridge is not None
        return {"bridge": _resident(self._bridge.pid), "server": _resident(self._server.process.pid)}


def _prepares(kind: str) -> bool:
    return hasattr(import_module(f"{abuse.__name__}.{kind}"), "prepare")


def _begin(
    command: Sequence[str], options: Sequence[str], kinds_of_abuse: Sequence[str]
) -> list[subprocess.Popen[bytes]]:
    """Starts these, and waits until all have begun."""
    begun = [subprocess.Popen([*command, kind, *options], stdout=subprocess.PIPE) for kind in kinds_of_abuse]
    for process in begun:
        assert process.stdout is not None
        process.stdout.readline()
    return begun


def _resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def storm(directory: Path, seconds: float, say: Callable[[str], None]) -> list[str]:
    """Nobody, each kind, and all of them; what was wrong."""
    rounds = [[], *([kind] for kind in kinds()), kinds()]
    found: list[str] = []
    with Broker(directory) as broker:
        for together in rounds:
            outcome = broker.meet(together, seconds / len(rounds))
            say(str(outcome))
            found += outcome.findings()
    return found
