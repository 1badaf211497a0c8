"""Thousands of persistent clients come back at once, and each gets what was stored for it: how long after a restart?

    make storm ARGS=--drain        5,000 clients with 20 messages each

    baseline     bridge without a bound on connects ◄── all clients at once; nothing was restarted
    held         all clients have sent their CONNECT while the server is away ──► the server starts
    restarted    server and bridge were killed, and serve again ◄── all clients at once

Each time is that from the moment when server and bridge serve until every client has every message.  The generator of
the benchmarks (bench/mqtt_load.c) checks that nothing is lost or out of order.
"""

import contextlib
import json
import resource
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from bench.mqtt_load import Options, command, run_load
from tests.bridge.test_watching import scrape
from tests.support import BridgeProcess, Server, ServerKind, eventually, reserve_port
from tests.system.mqtt_burst import SPARE_FILES

CLIENTS, MESSAGES = 5000, 20
LONGEST_S = 120.0
SERVER_SETTINGS = ["appendfsync always"]
CONNECTION_RATE = 2000  # connects a second of a bridge by default: the last client waits for its turn so long
FACTOR, SPARE_S = 1.5, 1.0
"""At most so many times the baseline and so many seconds, besides the time that the rate of connects takes."""


class Drain:
    """A server, the bridge in question, and another one that lets in as many as come.  `close` it.

    Args:
        kind: of the server.
        folder: for data and logs.
        clients: how many.
        messages: for each of them.
    """

    def __init__(self, kind: ServerKind, folder: Path, clients: int, messages: int) -> None:
        self._clients = clients
        self._options: Options = {"persistent": True, "count": messages, "timeout": LONGEST_S, "opening": clients}
        self._stack = contextlib.ExitStack()
        self._metrics = self._stack.enter_context(reserve_port())
        self._server = Server(kind, folder, aof=True, config=SERVER_SETTINGS)
        self._stack.callback(self._server.close)
        self._server.start()
        options = ["--metrics-port", str(self._metrics.number), "--log-level", "WARNING"]
        self._bridge = self._started(folder, options)
        self._unbounded = self._started(folder, ["--connection-rate", "0"])

    def close(self) -> None:
        """Ends all processes."""
        self._stack.close()

    def baseline(self) -> float:
        """Nothing is restarted, and nobody waits for his turn."""
        self._store()
        return self._seconds(time.monotonic(), self._come(self._unbounded))

    def held(self) -> float:
        """All clients knock while the server is away."""
        self._store()
        self._server.kill()
        coming = self._come(self._bridge)
        try:
            eventually(self._all_have_connected, LONGEST_S, f"{self._clients} connections")
            self._server.start()
        except BaseException:
            coming.kill()
            raise
        return self._seconds(time.monotonic(), coming)

    def restarted(self) -> float:
        """All clients come to a bridge and a server that have just started."""
        self._store()
        self._server.kill()
        self._bridge.kill()
        self._server.start()
        self._bridge.start()
        return self._seconds(time.monotonic(), self._come(self._bridge))

    def _started(self, folder: Path, options: list[str]) -> BridgeProcess:
        bridge = BridgeProcess(self._server.url, folder, arguments=options)
        self._stack.callback(bridge.close)
        bridge.start()
        return bridge

    def _store(self) -> None:
        run_load(self._unbounded.port, "store", {**self._options, "pairs": self._clients}, timeout_s=LONGEST_S)

    def _come(self, bridge: BridgeProcess) -> "subprocess.Popen[str]":
        line = command(bridge.port, "drain", {**self._options, "subscribers": self._clients}, ())
        return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def _all_have_connected(self) -> bool:
        return scrape(self._metrics)["holdmq_bridge_connects_waiting"] >= self._clients

    @staticmethod
    def _seconds(since: float, coming: "subprocess.Popen[str]") -> float:
        """Until all messages have come; the generator ends a moment later."""
        try:
            told, wrong = coming.communicate(timeout=LONGEST_S)
        finally:
            coming.kill()
        ended = time.monotonic()
        assert coming.returncode == 0, wrong + told
        assert json.loads(told)["total"]["lost"] == 0
        return ended - since


def run(
    kind: ServerKind, folder: Path, say: Callable[[str], None], *, clients: int = CLIENTS, messages: int = MESSAGES
) -> list[str]:
    """What is wrong, nothing if all is well."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 2 * clients + SPARE_FILES)), hard))
    with contextlib.closing(Drain(kind, folder, clients, messages)) as drain:
        baseline_s = drain.baseline()
        say(f"{clients} clients have {messages} messages each after {baseline_s:.1f} s, without any restart")
        longest_s = FACTOR * baseline_s + clients / CONNECTION_RATE + SPARE_S
        found = []
        for what, measure in (("held while the server was away", drain.held), ("after a restart", drain.restarted)):
            took_s = measure()
            say(f"{what}: {took_s:.1f} s (at most {longest_s:.1f})")
            if took_s > longest_s:
                found.append(f"{what}: {took_s:.1f} s, and {baseline_s:.1f} s without any restart")
        return found
