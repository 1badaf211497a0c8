"""Two servers side by side, one without the module and one with it, and the CPU time of their work."""

import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis

from bench.machine import allocator_of
from bench.wire import Connection
from holdmq.server import PortTakenError, ServerProcess, configuration, connect, find_module, find_server
from holdmq.server import next_free_port as free_port

HOST = "127.0.0.1"
FIRST_PORT = 6800
START_TRIES = 10
TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Bench:
    """A running server with a connection for the load, one that may subscribe, and one for questions.

    Attributes:
        admin: asks and sets up; its replies are str.
        load: sends what is measured.
        listener: hears what is published.
    """

    admin: redis.Redis
    load: Connection
    listener: Connection

    def cpu_us(self) -> float:
        """CPU time of the server up to now, in microseconds: of its main thread, or of all where it cannot tell."""
        info = self.admin.info("cpu")
        suffix = "_main_thread" if "used_cpu_user_main_thread" in info else ""
        return 1e6 * (float(info[f"used_cpu_user{suffix}"]) + float(info[f"used_cpu_sys{suffix}"]))

    def facts(self) -> dict[str, Any]:
        """What runs here: server, version, module version (None without)."""
        info = self.admin.info("server")
        family = "valkey" if "valkey_version" in info else "redis"
        modules = self.admin.info("modules").get("modules", [])
        return {
            "server": family,
            "server_version": info[f"{family}_version"],
            "module_version": next((module["ver"] for module in modules if module["name"] == "holdmq"), None),
            "allocator": allocator_of(info["process_id"], self.admin.info("memory")["mem_allocator"]),
        }


@contextlib.contextmanager
def running(*, module: bool, aof: bool, config: Sequence[str] = ()) -> Iterator[Bench]:
    """A server for as long as the context lasts; nothing of it stays.

    Args:
        module: whether it loads the module.
        aof: whether it keeps an append-only file, synced before each reply.
        config: further lines of its configuration.
    """
    folder = Path(tempfile.mkdtemp(prefix="holdmq-bench-"))
    try:
        with (
            _started(folder, module=module, aof=aof, config=config) as server,
            connect(HOST, server.port, timeout_s=TIMEOUT_S, decode_responses=True) as admin,
            Connection(HOST, server.port) as load,
            Connection(HOST, server.port) as listener,
        ):
            yield Bench(admin, load, listener)
    finally:
        shutil.rmtree(folder)


@contextlib.contextmanager
def _started(folder: Path, *, module: bool, aof: bool, config: Sequence[str]) -> Iterator[ServerProcess]:
    first = FIRST_PORT
    for attempt in range(START_TRIES):
        port = free_port(HOST, first)
        path = folder / "server.conf"
        lines = configuration(
            port=port, directory=folder, module=find_module() if module else None, aof=aof, extra=['save ""', *config]
        )
        path.write_text("\n".join([*lines, ""]))
        server = ServerProcess([find_server()], path, port=port, log=folder / "server.log")
        try:
            server.start()
        except PortTakenError:  # somebody was faster
            if attempt == START_TRIES - 1:
                raise
            first = port + 1
            continue
        with contextlib.closing(_Stopper(server)):
            yield server
        return


@dataclass
class _Stopper:
    server: ServerProcess

    def close(self) -> None:
        self.server.kill()  # its data is thrown away
