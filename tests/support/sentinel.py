"""A sentinel that watches one primary, started from the binary of the server under test."""

from collections.abc import Callable, Sequence
from pathlib import Path

import redis

from holdmq.server import ChildProcess
from tests.support.eventually import eventually
from tests.support.ports import reserve_port
from tests.support.server import Server

SERVICE = "holdmq-test"
START_S = 30.0
FAILOVER_S = 60.0
WAIT_MS = 500
DOWN_AFTER_MS = 4000  # a machine that is busy keeps a server from answering for shorter than that
# A sentinel that its machine did not let run for two seconds (or whose disk took so long for its configuration) does
# nothing but watch for the next thirty ("TILT").  That it runs late is no news here, and all clocks are one.
TILT_TRIGGER_MS = 3_600_000


class SentinelProcess:
    """A running sentinel for `primary`; fails over within seconds.

    Args:
        primary: what it watches; must have a replica.
        directory: for its configuration and its log.
        quorum: how many Sentinels have to agree that the primary is down.
        service: the name of the primary.
        settings: lines about the service in place of those with which it fails over within seconds.

    Attributes:
        port: where it listens.
    """

    def __init__(
        self,
        primary: Server,
        directory: Path,
        *,
        quorum: int = 1,
        service: str = SERVICE,
        settings: Sequence[str] | None = None,
    ) -> None:
        self._port = reserve_port()
        self.port = self._port.number
        self._service = service
        if settings is None:
            settings = [
                f"sentinel monitor {service} 127.0.0.1 {primary.port} {quorum}",
                f"sentinel down-after-milliseconds {service} {DOWN_AFTER_MS}",
                f"sentinel failover-timeout {service} 3000",
            ]
        lines = [f"port {self.port}", "bind 127.0.0.1", "protected-mode no", f"dir {directory}", *settings]
        config = directory / "sentinel.conf"
        config.write_text("\n".join(lines) + "\n")
        command: list[str | Path] = [*primary.kind.command(), config, "--sentinel"]
        self._process = ChildProcess(command, log=directory / "sentinel.log")

    def start(self) -> None:
        """Starts it and waits until it knows the primary's replica and would promote it."""
        self._process.spawn()
        eventually(self._knows_the_replica, START_S, "a sentinel that knows the replica")
        with self._client() as client:
            client.execute_command("SENTINEL", "DEBUG", "TILT-TRIGGER", TILT_TRIGGER_MS)

    def close(self) -> None:
        """Ends it."""
        if self._process.running:
            self._process.kill()
        self._port.release()

    def kill(self) -> None:
        """Ends it as a crash would."""
        self._process.kill()

    def is_followed(self) -> bool:
        """Whether somebody subscribes to its announcements."""
        with self._client() as client:
            return any(int(one["sub"]) + int(one["psub"]) > 0 for one in client.client_list())

    def log_text(self) -> str:
        """What it printed."""
        return self._process.log_text()

    def names(self, server: Server) -> bool:
        """Whether clients that ask for the primary are told of this server."""
        with self._client() as client:
            state = client.sentinel_masters()[self._service]
        return bool(state["port"] == server.port and not state["is_sdown"])

    def knows(self, replicas: int, sentinels: int) -> bool:
        """Whether it sees so many healthy replicas and so many other Sentinels.

        A replica that it still takes for the primary of before would be demoted at once if it were promoted now
        (docs/failover.md).
        """
        with self._client() as client:
            healthy = [
                one
                for one in client.sentinel_slaves(self._service)
                if str(one["flags"]) == "slave" == str(one["role-reported"])
            ]
            return len(healthy) >= replicas and len(client.sentinel_sentinels(self._service)) >= sentinels

    def pause(self) -> None:
        """Stops it in its tracks (SIGSTOP)."""
        self._process.pause()

    def resume(self) -> None:
        """Lets it continue (SIGCONT)."""
        self._process.resume()

    def fail_over(self, *, coordinated: bool = False) -> None:
        """Begins a planned failover, as an operator does; `coordinated` is Valkey's, from 9.0 on.

        It waits for a replica that the Sentinel would promote: on a busy machine it has none for a while.
        """
        eventually(lambda: self._begins_failover(coordinated=coordinated), START_S, "a replica that may be promoted")

    def fail_over_until(
        self, done: Callable[[], bool], *, what: str, coordinated: bool = False, is_ordered: bool = False
    ) -> None:
        """Orders a planned failover, and again after each one that the Sentinel aborts, until `done`.

        `is_ordered`: the first one is under way since the Sentinel's start.

        It aborts what takes longer than failover-timeout: on a busy machine the promotion, of which it learns by
        asking once a second.  Nobody orders another one by himself.  A replica that was promoted all the same follows
        its primary again some seconds later, and only then has what was written meanwhile (docs/failover.md).
        """
        orders = int(is_ordered)
        begun = 0 if is_ordered else len(self.log_text())

        def is_done() -> bool:
            nonlocal orders
            if orders > 0 and done():
                return True
            if self.log_text()[begun:].count("-failover-abort-") == orders and (orders == 0 or self._is_replicated()):
                self.fail_over(coordinated=coordinated)
                orders += 1
            return False

        eventually(is_done, FAILOVER_S, what)

    def _is_replicated(self) -> bool:
        """Whether a replica has what the primary has now: the check of docs/failover.md."""
        with self._client() as client:
            port = client.sentinel_masters()[self._service]["port"]
        with redis.Redis(port=port, single_connection_client=True) as primary:
            primary.set("holdmq:failover-check", 1, px=60_000)
            return int(primary.wait(1, WAIT_MS)) >= 1

    def _begins_failover(self, *, coordinated: bool) -> bool:
        try:
            with self._client() as client:
                client.execute_command("SENTINEL", "FAILOVER", self._service, *(["COORDINATED"] if coordinated else []))
        except redis.ResponseError as error:
            if "NOGOODSLAVE" not in str(error):
                raise
            return False
        return True

    def _client(self) -> redis.Redis:
        return redis.Redis(host="127.0.0.1", port=self.port)

    def _knows_the_replica(self) -> bool:
        try:
            with self._client() as client:
                replicas = client.sentinel_slaves(self._service)
        except redis.RedisError:
            return False
        return any(str(one["flags"]) == "slave" and one["master-link-status"] == "ok" for one in replicas)
