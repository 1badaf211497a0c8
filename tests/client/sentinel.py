"""A sentinel that watches one primary, started from the binary of the server under test."""

from pathlib import Path

import redis

from holdmq._child import ChildProcess
from tests.support import Server, eventually, reserve_port

SERVICE = "holdmq-test"


class SentinelProcess:
    """A running sentinel for `primary`; fails over within seconds.

    Attributes:
        port: where it listens.
    """

    def __init__(self, primary: Server, directory: Path) -> None:
        self._port = reserve_port()
        self.port = self._port.number
        config = directory / "sentinel.conf"
        config.write_text(
            f"port {self.port}\nbind 127.0.0.1\nprotected-mode no\ndir {directory}\n"
            f"sentinel monitor {SERVICE} 127.0.0.1 {primary.port} 1\n"
            f"sentinel down-after-milliseconds {SERVICE} 500\n"
            f"sentinel failover-timeout {SERVICE} 3000\n"
        )
        command: list[str | Path] = [*primary.kind.command(), config, "--sentinel"]
        self._process = ChildProcess(command, log=directory / "sentinel.log")
        self._process.spawn()
        eventually(self._knows_the_replica, 30, "a sentinel that knows the replica")

    def close(self) -> None:
        """Ends it."""
        self._process.kill()
        self._port.release()

    def _knows_the_replica(self) -> bool:
        with redis.Redis(host="127.0.0.1", port=self.port) as client:
            try:
                replicas = client.sentinel_slaves(SERVICE)
            except redis.RedisError:
                return False
        return any("slave" in str(one["flags"]) and "s_down" not in str(one["flags"]) for one in replicas)
