"""The brokers that are compared, each started anew for every measurement: HoldMQ (server and bridge) and Mosquitto.

Each runs as its operator would run it, on loopback.  Its limits are set so high that no message of a measurement is
dropped.  The data of a broker is deleted when it stops.
"""

import contextlib
import getpass
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from holdmq.server import (
    QUEUE_DIRECTIVES,
    ChildProcess,
    PortTakenError,
    ServerProcess,
    allocator_environment,
    configuration,
    find_module,
    find_server,
    next_free_port,
)

MOSQUITTO = "Mosquitto"  # in memory: the baseline
HOST = "127.0.0.1"
FIRST_PORT = 6900
START_TRIES = 10
READY_TIMEOUT_S = 30.0
POLL_S = 0.01
LOG_CHARACTERS = 4000
MOSQUITTO_PATHS = "/usr/local/sbin:/usr/sbin:/sbin"  # Debian's package puts it where users do not look

_T = TypeVar("_T")


class BrokerError(RuntimeError):
    """A broker is not there or did not start; the text says why."""


@dataclass(frozen=True)
class Running:
    """A broker that runs.

    Attributes:
        port: where it listens.
        processes: its process ids by what they do ("bridge", "server", "mosquitto").
        websocket_port: where it listens for WebSockets; 0: nowhere.
        server_port: of HoldMQ's server; 0: there is none.
    """

    port: int
    processes: Mapping[str, Sequence[int]]
    websocket_port: int = 0
    server_port: int = 0

    @property
    def pids(self) -> list[int]:
        """All of them."""
        return [pid for pids in self.processes.values() for pid in pids]

    def pss_bytes(self) -> dict[str, int]:
        """Memory of each part, without files: what is its own, and its share of what it shares."""
        return {part: sum(map(pss_bytes, pids)) for part, pids in self.processes.items()}


@dataclass(frozen=True)
class Broker:
    """A broker that can be started.

    Attributes:
        name: in the table.
        start: runs it for as long as the context lasts; with websocket=True it listens for WebSockets, too.
        version: what it says of itself.
        ours: whether it is HoldMQ.
        saves: whether it is the baseline that saves each change.
    """

    name: str
    start: Callable[..., contextlib.AbstractContextManager[Running]]
    version: str
    ours: bool = False
    saves: bool = False


def holdmq(bridge_arguments: Sequence[str] = (), workers: int | None = None) -> Broker:
    """HoldMQ: the embedded server (or HOLDMQ_SERVER) with the module and an append-only file synced each second.

    Args:
        bridge_arguments: further options of the bridge.
        workers: its processes; None: as it does by itself.

    Raises:
        BrokerError: `workers` is given, and the bridge has no such option.
    """
    arguments = list(bridge_arguments)
    if workers is not None:
        if "--workers" not in _said([sys.executable, "-m", "holdmq_bridge", "--help"]):
            raise BrokerError("this bridge has no option --workers: it is one process")
        arguments += ["--workers", str(workers)]
    version = " ".join(_said([str(find_server()), "--version"]).split()[:3])
    if "LD_PRELOAD" in allocator_environment() and not os.environ.get("HOLDMQ_SERVER"):
        version += " with jemalloc"
    return Broker("HoldMQ", lambda websocket=False: _run_holdmq(arguments, websocket=websocket), version, ours=True)


def mosquitto(*, saving: bool) -> Broker:
    """Mosquitto, with everything in memory, or saving its state after each change.

    Raises:
        BrokerError: it is not installed.
    """
    binary = shutil.which("mosquitto") or shutil.which("mosquitto", path=MOSQUITTO_PATHS)
    if binary is None:
        raise BrokerError("no mosquitto here: run `bash tools/needed.sh mosquitto`")
    name = f"{MOSQUITTO}, saving" if saving else MOSQUITTO
    version = _said([binary, "-h"]).splitlines()[0]
    start = lambda websocket=False: _run_mosquitto(binary, saving=saving, websocket=websocket)  # noqa: E731
    return Broker(name, start, version, saves=saving)


@contextlib.contextmanager
def _run_holdmq(bridge_arguments: Sequence[str], *, websocket: bool) -> Iterator[Running]:
    with fresh_folder() as folder, contextlib.ExitStack() as stack:
        server = on_free_port(lambda port: start_server(folder, port))
        stack.callback(server.kill)
        bridge, port, websocket_port = on_free_port(
            lambda port: _start_bridge(folder, port, server.port, bridge_arguments, websocket=websocket)
        )
        stack.callback(bridge.stop)  # in order, so that it ends its workers
        processes = {"bridge": [bridge.pid, *children(bridge.pid)], "server": [server.pid]}
        yield Running(port, processes, websocket_port, server.port)


def start_server(folder: Path, port: int, more: Sequence[str] = ()) -> ServerProcess:
    """The server with the module and an append-only file synced each second, and more directives."""
    config = folder / "server.conf"
    extra = ['save ""', "appendonly yes", "appendfsync everysec", *QUEUE_DIRECTIVES, *more]
    lines = configuration(port=port, directory=folder, module=find_module(), extra=extra)
    config.write_text("\n".join([*lines, ""]))
    server = ServerProcess([find_server()], config, port=port, log=folder / "server.log")
    server.start()
    return server


def _start_bridge(
    folder: Path, port: int, server_port: int, arguments: Sequence[str], *, websocket: bool
) -> tuple[ChildProcess, int, int]:
    websocket_port = next_free_port(HOST, port + 1) if websocket else 0
    command = [sys.executable, "-m", "holdmq_bridge", "--host", HOST, "--port", str(port)]
    command += ["--redis", f"redis://{HOST}:{server_port}/0", "--log-level", "WARNING"]
    command += ["--connection-rate", "0", *arguments]  # the idle ones come all at once
    if websocket:
        command += ["--ws-port", str(websocket_port)]
    return started(ChildProcess(command, log=folder / "bridge.log"), port, websocket_port), port, websocket_port


@contextlib.contextmanager
def _run_mosquitto(binary: str, *, saving: bool, websocket: bool) -> Iterator[Running]:
    with fresh_folder() as folder:
        process, port, websocket_port = on_free_port(
            lambda port: _start_mosquitto(folder, binary, port, saving=saving, websocket=websocket)
        )
        try:
            yield Running(port, {"mosquitto": [process.pid]}, websocket_port)
        finally:
            process.kill()


def _start_mosquitto(
    folder: Path, binary: str, port: int, *, saving: bool, websocket: bool
) -> tuple[ChildProcess, int, int]:
    websocket_port = next_free_port(HOST, port + 1) if websocket else 0
    config = folder / "mosquitto.conf"
    lines = [
        f"listener {port} {HOST}",
        "allow_anonymous true",
        "max_inflight_messages 0",  # no limit
        "max_queued_messages 0",
        "set_tcp_nodelay true",
        "log_type error",
        "log_type warning",
        f"user {getpass.getuser()}",  # started by root it would become a user who owns no folder here
        f"persistence {str(saving).lower()}",
    ]
    if saving:
        lines += [f"persistence_location {folder}/", "autosave_on_changes true", "autosave_interval 1"]
    if websocket:
        lines += [f"listener {websocket_port} {HOST}", "protocol websockets"]
    config.write_text("\n".join([*lines, ""]))
    process = ChildProcess([binary, "-c", str(config)], log=folder / "mosquitto.log")
    return started(process, port, websocket_port), port, websocket_port


@contextlib.contextmanager
def fresh_folder() -> Iterator[Path]:
    """A folder for the data of one start, deleted at the end."""
    folder = Path(tempfile.mkdtemp(prefix="holdmq-bench-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def on_free_port(start: Callable[[int], _T]) -> _T:
    """What `start` returns with a port that it could have.

    Raises:
        PortTakenError: others were faster each time.
    """
    first = FIRST_PORT
    for attempt in range(START_TRIES):
        port = next_free_port(HOST, first)
        try:
            return start(port)
        except PortTakenError:  # somebody was faster
            if attempt == START_TRIES - 1:
                raise
            first = port + 1
    raise AssertionError("not reached")


def started(process: ChildProcess, port: int, websocket_port: int = 0) -> ChildProcess:
    """Spawns it, and waits until it listens on these ports (0: on none).

    Raises:
        BrokerError: it does not; the text has its log.
        PortTakenError: somebody else listens there.
    """
    process.spawn()
    deadline = time.monotonic() + READY_TIMEOUT_S
    while not (_listens(process, port) and (websocket_port == 0 or _listens(process, websocket_port))):
        if not process.running or time.monotonic() > deadline:
            _give_up(process, port)
        time.sleep(POLL_S)
    return process


def _give_up(process: ChildProcess, port: int) -> None:
    log = process.log_text()[-LOG_CHARACTERS:]
    if process.running:
        process.kill()
    kind = PortTakenError if "ddress already in use" in log else BrokerError
    raise kind(f"{' '.join(process.command)} does not accept connections on port {port}:\n{log}")


def _listens(process: ChildProcess, port: int) -> bool:
    """Whether it is this process, or a child of it, that listens there: another one may have been faster."""
    listening, inodes = "0A", set()
    found = [path for path in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")) if path.exists()]
    tables = [path.read_text().splitlines()[1:] for path in found]
    for line in itertools.chain(*tables):
        _, local, _, state, *_, inode = line.split()[:10]
        if state == listening and int(local.rpartition(":")[2], 16) == port:
            inodes.add(f"socket:[{inode}]")
    for pid in (process.pid, *children(process.pid)):
        with contextlib.suppress(OSError):  # it ends, or closes one, at this moment
            if any(str(link.readlink()) in inodes for link in Path(f"/proc/{pid}/fd").iterdir()):
                return True
    return False


def _said(command: Sequence[str]) -> str:
    """What a command prints, whatever its exit status: `mosquitto -h` has 3."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=READY_TIMEOUT_S)
    return done.stdout + done.stderr


def children(pid: int) -> list[int]:
    """All processes below one."""
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, path.read_text().split()):
            found += [child, *children(child)]
    return found


def pss_bytes(pid: int) -> int:
    """Memory of a process, without mapped files: what their pages count depends on who else runs the same program."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss_Anon:"))
