"""The server and the bridge of the demo, in a folder that is gone afterwards, and what they used."""

import contextlib
import os
import socket
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from holdmq.server import (
    QUEUE_DIRECTIVES,
    ChildProcess,
    ServerProcess,
    configuration,
    find_module,
    find_server,
    next_free_port,
    write_configuration,
)
from holdmq_bridge.demo.transcript import wait_for

HOST = "127.0.0.1"
FIRST_SERVER_PORT = 17379
FIRST_BRIDGE_PORT = 17883
READY_TIMEOUT_S = 30.0


@dataclass
class Parts:
    """What runs.

    Attributes:
        url: of the server.
        bridge_port: where MQTT clients connect.
        bridge: the bridge's process.
        server: the server's process; None if it was running before.
    """

    url: str
    bridge_port: int
    bridge: ChildProcess
    server: ServerProcess | None

    def wait_for_the_bridge(self) -> None:
        """Returns once the bridge accepts connections."""
        wait_for(lambda: _accepts(self.bridge, self.bridge_port), READY_TIMEOUT_S, "a bridge that accepts connections")


@contextlib.contextmanager
def parts(redis_url: str | None) -> Iterator[Parts]:
    """Starts a server (unless there is one) and a bridge, which needs some time; ends both."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="holdmq-demo-")))
        server = None
        if redis_url is None:
            server = stack.enter_context(_server(folder))
            redis_url = f"redis://{HOST}:{server.port}"
        port = next_free_port(HOST, FIRST_BRIDGE_PORT)
        arguments = ["--host", HOST, "--port", str(port), "--redis", redis_url]
        bridge = ChildProcess([sys.executable, "-m", "holdmq_bridge", *arguments], log=folder / "bridge.log")
        bridge.spawn()
        stack.callback(bridge.stop)
        yield Parts(redis_url, port, bridge, server)


def _server(folder: Path) -> ServerProcess:
    port = next_free_port(HOST, FIRST_SERVER_PORT)
    config = folder / "server.conf"
    lines = configuration(port=port, directory=folder, module=find_module(), aof=True)
    write_configuration(config, lines, first=QUEUE_DIRECTIVES)
    return ServerProcess([find_server()], config, port=port, log=folder / "server.log")


def _accepts(bridge: ChildProcess, port: int) -> bool:
    if not bridge.running:
        raise RuntimeError(f"the bridge ended with status {bridge.returncode}:\n{bridge.log_text()}")
    try:
        socket.create_connection((HOST, port), 1).close()
    except OSError:
        return False
    return True


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far (Linux, /proc/<pid>/stat, fields 14 and 15)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
