"""A real server of a test, and a cluster of them: start, kill, restart, reset, and what its log says.

Invariants
    1. Whoever makes a Server closes it (the fixtures do); its process dies with the test process in any case.
    2. A test that leaves a crash or a sanitizer's report in the log has failed, whatever it asserted (`check`).
    3. A restart keeps port, directory and what CONFIG REWRITE wrote.
"""

import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import hiredis
import redis
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.crc import key_slot
from redis.driver_info import DriverInfo
from redis.retry import Retry

from holdmq.server import (
    PortTakenError,
    ServerProcess,
    configuration,
    connect,
    find_module,
    quoted,
    write_configuration,
)
from tests.support.eventually import eventually
from tests.support.ports import CLUSTER_BUS_OFFSET, Port, reserve_port
from tests.support.raw import encoded
from tests.support.servers import ServerKind

HOST = "127.0.0.1"
SLOTS = 16384
SOCKET_TIMEOUT_S = 10.0
WHOLE_TIMEOUT_S = 60.0  # of commands that walk over all keys: a sanitized server takes seconds for a million
PORT_TRIES = 20
NODE_TIMEOUT_MS = 15_000  # a test of failovers configures less
FOLLOW_S = 30.0  # the synchronization takes a second of its own
WHOLE_S = 60.0
MAX_LOG_SHOWN = 6000
RECEIVED_AT_ONCE = 1 << 16
# One for all clients: each would read the version of redis-py from its package, half of what a client costs.
DRIVER = DriverInfo()
# The sanitizers' runtime (and before it the shim of no_deepbind.c), set by `make test-asan`.
PRELOAD = "HOLDMQ_TEST_PRELOAD"
TEST_CONFIGURATION = (
    'save ""',
    "protected-mode no",
    "enable-debug-command yes",
    "enable-module-command yes",
    "repl-diskless-sync-delay 0",
)
CRASH_MARKS = (
    "ERROR: AddressSanitizer",
    "ERROR: LeakSanitizer",
    "AddressSanitizer:",
    "runtime error:",
    "BUG REPORT START",
    "ASSERTION FAILED",
    "Guru Meditation",
)


class Server:
    """A server under test, on a free loopback port, in a folder of its own.

    Args:
        kind: which server.
        directory: for its data, configuration and log; made if it is not there.
        module: whether it loads the module.
        module_args: the module's load arguments.
        aof: whether it keeps an append-only file.
        config: further lines of its configuration.
        replica_of: its primary, if it is to be a replica.
        cluster: whether it is a node of a cluster.
        password: of the default user.
        environment: of its process, besides; a library of LD_PRELOAD stands before the sanitizers'.
    """

    def __init__(
        self,
        kind: ServerKind,
        directory: Path,
        *,
        module: bool = True,
        module_args: Sequence[str] = (),
        aof: bool = False,
        config: Sequence[str] = (),
        replica_of: "Server | None" = None,
        cluster: bool = False,
        password: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.kind = kind
        self.directory = directory
        self.module = module
        self.module_args = list(module_args)
        self.aof = aof
        self.config = list(config)
        self.replica_of = replica_of
        self.cluster = cluster
        self.password = password
        self.environment = dict(environment or {})
        self._port: Port | None = None
        self._process: ServerProcess | None = None
        self._clients: list[redis.Redis] = []
        self._settings: dict[str, str] = {}  # as they were after the start
        self._log_checked = 0

    @property
    def port(self) -> int:
        """Where it listens."""
        if self._port is None:
            raise AssertionError("the server was not started")
        return self._port.number

    @property
    def url(self) -> str:
        """As `--redis` and `Redis.from_url` take it."""
        login = f":{quote(self.password, safe='')}@" if self.password else ""
        return f"redis://{login}{HOST}:{self.port}"

    @property
    def process(self) -> ServerProcess:
        """The process."""
        if self._process is None:
            raise AssertionError("the server was not started")
        return self._process

    def start(self) -> None:
        """Start it and wait until it serves commands; a replica also until it follows its primary."""
        for _ in range(PORT_TRIES):
            if self._port is None:
                self._port = reserve_port()
                self._process = self._new_process()
            self._write_configuration()
            try:
                self.process.start()
                break
            except PortTakenError:  # by a process that reserves nothing: take another port, unless others know this one
                if self._settings:
                    raise
                self._port.release()
                self._port = None
        else:
            raise AssertionError(f"no port in {PORT_TRIES} tries on which the server could listen")
        if self.replica_of is not None:
            eventually(self._follows, FOLLOW_S, "a replica that follows its primary")
        self._settings = self._current_settings()

    def stop(self) -> None:
        """Stop it as SHUTDOWN does."""
        self.process.stop()

    def kill(self) -> None:
        """End it by SIGKILL, as a crash would."""
        self.process.kill()

    def restart(self, *, module: bool | None = None, config: Sequence[str] = ()) -> None:
        """Start it again, after stopping it if it still runs.

        Args:
            module: load the module from now on, or no longer; None: as before.
            config: further lines from now on.
        """
        if self.process.running:
            self.stop()
        if module is not None:
            self.module = module
        self.config += config
        self.start()

    def pause(self) -> None:
        """Stop it in its tracks (SIGSTOP)."""
        self.process.pause()

    def resume(self) -> None:
        """Let it continue (SIGCONT)."""
        self.process.resume()

    def client(self, **options: Any) -> redis.Redis:
        """Return a client that tries each command once; options as of redis.Redis.  Closed by `reset` and `close`."""
        settings: dict[str, Any] = {
            "host": HOST,
            "port": self.port,
            "password": self.password,
            "socket_timeout": SOCKET_TIMEOUT_S,
            "retry": Retry(NoBackoff(), 0),
            "driver_info": DRIVER,
            **options,
        }
        client = redis.Redis(**settings)
        self._clients.append(client)
        return client

    def slots(self) -> set[int]:
        """The slots of a cluster that this node has, as it says itself."""
        listed = self.client().execute_command("CLUSTER", "SLOTS")
        own = [(first, last) for first, last, (_host, port, *_), *_ in listed if port == self.port]
        return {slot for first, last in own for slot in range(first, last + 1)}

    def is_replica(self) -> bool:
        """Whether it says so itself; False while nobody can connect, as when a Sentinel ends its connections."""
        try:
            return bool(self.client().role()[0] == b"slave")
        except redis.ConnectionError:
            return False

    def reset(self) -> None:
        """Make it as good as new: no keys, users, scripts, other connections or changed settings."""
        self._close_clients()
        with closing(self._connection(WHOLE_TIMEOUT_S)) as connection:
            *_, role, settings, users = _replies(
                connection,
                ("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"),
                ("CLIENT", "KILL", "TYPE", "pubsub"),
                ("ROLE",),
                ("CONFIG", "GET", "*"),
                ("ACL", "USERS"),
            )
            commands: list[tuple[str, ...]] = []
            if role[0] != "master" and self.replica_of is None:
                commands.append(("REPLICAOF", "NO", "ONE"))
            for name, value in _pairs(settings).items():
                if self._settings.get(name) != value:
                    commands.append(("CONFIG", "SET", name, self._settings[name]))
            commands += [("ACL", "DELUSER", user) for user in users if user != "default"]
            commands += [("SCRIPT", "FLUSH"), ("FUNCTION", "FLUSH", "SYNC")]
            if self.replica_of is None:
                commands.append(("FLUSHALL",))
            _replies(connection, *commands)

    def check(self) -> None:
        """Fail if the log holds a crash or a sanitizer's report that was not seen before."""
        text = self.log_text()
        new, self._log_checked = text[self._log_checked :], len(text)
        for mark in CRASH_MARKS:
            at = new.find(mark)
            if at >= 0:
                shown = new[max(0, at - 500) : at + MAX_LOG_SHOWN]
                raise AssertionError(f"the log of {self.kind.name} on port {self.port} holds {mark!r}:\n{shown}")

    def check_indexes(self) -> None:
        """Fail if the module's indexes differ from a rebuild from the keys, in any database."""
        databases = 1 if self.cluster else int(self._settings["databases"])
        commands: list[tuple[str, ...]] = []
        for database in range(databases):
            if databases > 1:
                commands.append(("SELECT", str(database)))
            commands.append(("HOLDMQ.CHECK",))
        with closing(self._connection(WHOLE_TIMEOUT_S)) as connection:
            replies = _replies(connection, *commands)
        checks = [reply for command, reply in zip(commands, replies, strict=True) if command[0] == "HOLDMQ.CHECK"]
        for database, differences in enumerate(checks):
            if differences:
                raise AssertionError(f"the indexes of database {database} differ from a rebuild: {differences}")

    def log_text(self) -> str:
        """What it printed, over all starts."""
        return self._process.log_text() if self._process is not None else ""

    def close(self) -> None:
        """Kill it if it still runs, and give the port back."""
        self._close_clients()
        if self._process is not None and self._process.running:
            self._process.kill()
        if self._port is not None:
            self._port.release()

    def _new_process(self) -> ServerProcess:
        return ServerProcess(
            self.kind.command(),
            self.directory / "server.conf",
            port=self.port,
            log=self.directory / "server.log",
            password=self.password,
            environment=_with_sanitizers(self.environment),
        )

    def _write_configuration(self) -> None:
        path = self.process.config
        if path.exists() and not self.module:
            lines = path.read_text().splitlines()
            path.write_text("\n".join(line for line in lines if not line.startswith(("loadmodule ", "holdmq."))) + "\n")
        extra = []
        if self.cluster:
            extra += ["cluster-enabled yes", "cluster-config-file nodes.conf"]
            # Links that are silent for half of it are given up, and what is published then is lost.
            extra += [f"cluster-node-timeout {NODE_TIMEOUT_MS}"]
            extra += [f"cluster-port {self.port + CLUSTER_BUS_OFFSET}"]
            # A command that opens a key of another slot than its own stops the server.
            extra += ["enable-debug-assert yes"] if self.kind.checks_slots else []
        extra += self.config
        if self.password is not None:
            extra += [f"requirepass {quoted(self.password)}"]
        if self.replica_of is not None:
            extra += [f"replicaof {HOST} {self.replica_of.port}"]
            if self.replica_of.password is not None:
                extra += [f"masterauth {quoted(self.replica_of.password)}"]
        lines = configuration(
            port=self.port,
            directory=self.directory,
            module=find_module() if self.module else None,
            module_args=self.module_args,
            aof=self.aof,
            extra=extra,
        )
        write_configuration(path, lines, first=TEST_CONFIGURATION)

    def _follows(self) -> bool:
        with connect(HOST, self.port, password=self.password, timeout_s=SOCKET_TIMEOUT_S) as client:
            return bool(client.info("replication").get("master_link_status") == "up")

    def _current_settings(self) -> dict[str, str]:
        with closing(self._connection(SOCKET_TIMEOUT_S)) as connection:
            return _pairs(_replies(connection, ("CONFIG", "GET", "*"))[0])

    def _connection(self, timeout_s: float) -> socket.socket:
        with ExitStack() as stack:
            connection = stack.enter_context(socket.create_connection((HOST, self.port), timeout_s))
            if self.password is not None:
                _replies(connection, ("AUTH", self.password))
            stack.pop_all()
        return connection

    def _close_clients(self) -> None:
        for client in self._clients:
            client.close()
        self._clients.clear()


def _replies(connection: socket.socket, *commands: tuple[str, ...]) -> list[Any]:
    """The replies to commands that are sent together: a test ends with forty, each of which redis-py would wait for."""
    connection.sendall(b"".join(encoded(*command) for command in commands))
    reader = hiredis.Reader(encoding="utf-8", errors="backslashreplace")
    replies: list[Any] = []
    while len(replies) < len(commands):
        data = connection.recv(RECEIVED_AT_ONCE)
        if not data:
            raise ConnectionError(f"the server closed the connection after {len(replies)} of {len(commands)} replies")
        reader.feed(data)
        while (reply := reader.gets()) is not False:
            if isinstance(reply, hiredis.ReplyError):
                raise AssertionError(f"{' '.join(commands[len(replies)])}: {reply}")
            replies.append(reply)
    return replies


def _pairs(settings: Sequence[str]) -> dict[str, str]:
    return dict(zip(settings[::2], settings[1::2], strict=True))


def _with_sanitizers(environment: Mapping[str, str]) -> Mapping[str, str]:
    preload = os.environ.get(PRELOAD)
    if not preload:
        return environment
    own = environment.get("LD_PRELOAD")
    return {
        **environment,
        "LD_PRELOAD": f"{own}:{preload}" if own else preload,
        # The server itself is not built for leak detection; the shim stands before the runtime on purpose.
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1:verify_asan_link_order=0:detect_odr_violation=0",
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
    }


class Cluster:
    """Primaries that share the slots evenly.

    Args:
        nodes: servers made with `cluster=True`, not started yet.
    """

    def __init__(self, nodes: Sequence[Server]) -> None:
        self.nodes = list(nodes)

    def start(self) -> None:
        """Start the nodes, make them one cluster, and wait until each says that it is whole."""
        for node in self.nodes:
            node.start()
        first, count = self.nodes[0], len(self.nodes)
        for index, node in enumerate(self.nodes):
            client = node.client()
            begin, end = index * SLOTS // count, (index + 1) * SLOTS // count - 1
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", begin, end)
            client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", index + 1)
            if node is not first:
                client.execute_command("CLUSTER", "MEET", HOST, first.port, first.port + CLUSTER_BUS_OFFSET)
        eventually(lambda: all(self._is_whole(node) for node in self.nodes), WHOLE_S, "a whole cluster")

    def client(self, **options: Any) -> RedisCluster:
        """Return a cluster client; the caller closes it."""
        return RedisCluster(startup_nodes=[ClusterNode(HOST, node.port) for node in self.nodes], **options)

    def node_of(self, key: str | bytes) -> Server:
        """The node that owns the slot of a key."""
        slot = key_slot(key if isinstance(key, bytes) else key.encode())
        return self.nodes[next(i for i in range(len(self.nodes)) if slot < (i + 1) * SLOTS // len(self.nodes))]

    def _is_whole(self, node: Server) -> bool:
        with redis.Redis(host=HOST, port=node.port, decode_responses=True) as client:
            state = client.cluster("INFO")
        whole = state["cluster_state"] == "ok" and int(state["cluster_size"]) == len(self.nodes)
        assert whole, f"the node on port {node.port} says {state}"
        return True
