"""The server of the fault test: one, or a primary with a replica and a Sentinel, whose primary can be lost for good.

    primary ──► replica        lose: the replica is cut off, the primary goes on alone for a while, then is killed
       │            │          promote: the Sentinel names the replica, which gets a replica of its own
       ✗         primary ──► replica

The Sentinel acts only when it is told to: a primary that is killed or stopped for a moment comes back as the primary.
Whoever makes a Pair closes it.  `start` … `resume` are those of whoever is the primary at that time.
"""

import time
from pathlib import Path

import redis

from tests.support import Server, embedded_kinds
from tests.support.eventually import eventually
from tests.support.sentinel import SERVICE, SentinelProcess

HOST = "127.0.0.1"
MARK = "storm_mark"  # is written so that there is something to wait for
CONFIRM_S = 20.0  # a replica that has to be synchronized again, on a busy machine
PROMOTE_S = 30.0
NEVER_MS = 3_600_000


class Pair:
    """One server, or several of which one is the primary.

    Args:
        directory: for their data and logs.
        settings: lines of their configuration.
        replicated: with a replica and a Sentinel.
    """

    def __init__(self, directory: Path, settings: list[str], *, replicated: bool) -> None:
        self._directory = directory
        self._settings = settings
        self._replicated = replicated
        self._servers = [self._server(None)]
        self._sentinel: SentinelProcess | None = None

    @property
    def primary(self) -> Server:
        """Who takes writes."""
        return self._servers[0]

    @property
    def url(self) -> str:
        """As a bridge takes it."""
        return self.primary.url if self._sentinel is None else f"sentinel://{HOST}:{self._sentinel.port}/{SERVICE}"

    def begin(self) -> None:
        """Starts what there is to be."""
        self.primary.start()
        if not self._replicated:
            return
        self._add_replica()
        self._sentinel = SentinelProcess(self.primary, self._directory)
        self._sentinel.start()
        self._tell_sentinel("SET", SERVICE, "down-after-milliseconds", NEVER_MS)

    def close(self) -> None:
        """Ends everything."""
        if self._sentinel is not None:
            self._sentinel.close()
        for server in self._servers:
            server.close()

    def check(self) -> None:
        """Fails if a log holds a crash."""
        for server in self._servers:
            server.check()

    # ---- the primary is lost ---------------------------------------------------------------------------------------

    def confirm(self) -> None:
        """Returns when the replica has all that was answered before the call (WAIT)."""
        with self.primary.client() as client:
            client.set(MARK, "")
            client.delete(MARK)
            deadline = time.monotonic() + CONFIRM_S
            while client.wait(1, 1000) < 1:
                if time.monotonic() > deadline:
                    raise AssertionError(f"no replica that confirms a write within {CONFIRM_S:g} s")

    def lose(self, alone_s: float) -> None:
        """The replica is cut off; the primary continues alone for so long, then dies."""
        with self._servers[1].client() as client:
            client.replicaof("NO", "ONE")
        time.sleep(alone_s)
        self.primary.kill()

    def promote(self) -> None:
        """Returns when the replica is the primary, whom the Sentinel names, and has a replica."""
        assert self._sentinel is not None
        sentinel = self._sentinel
        lost, promoted = self._servers[:2]
        self._tell_sentinel("FAILOVER", SERVICE)
        eventually(lambda: sentinel.names(promoted), PROMOTE_S, "a Sentinel that names the replica")
        lost.check()
        lost.close()
        promoted.replica_of = None  # also after a restart
        self._servers = [promoted]
        self._add_replica()
        self._tell_sentinel("RESET", SERVICE)  # it forgets who is lost, and looks for the new replica

    def ready(self) -> bool:
        """Whether the Sentinel knows the replica that it would promote."""
        assert self._sentinel is not None
        with redis.Redis(host=HOST, port=self._sentinel.port) as client:
            return any(int(one["port"]) == self._servers[1].port for one in client.sentinel_slaves(SERVICE))

    def _tell_sentinel(self, *words: str | int) -> None:
        assert self._sentinel is not None
        with redis.Redis(host=HOST, port=self._sentinel.port) as client:
            client.execute_command("SENTINEL", *words)

    def _server(self, replica_of: Server | None) -> Server:
        number = sum(1 for _ in self._directory.glob("server*"))
        folder = self._directory / (f"server-{number}" if number else "server")
        return Server(embedded_kinds()[0], folder, aof=True, config=self._settings, replica_of=replica_of)

    def _add_replica(self) -> None:
        replica = self._server(self.primary)
        self._servers.append(replica)
        replica.start()

    # ---- what a fault does -----------------------------------------------------------------------------------------

    def kill(self) -> None:
        """Ends the primary by SIGKILL."""
        self.primary.kill()

    def stop(self) -> None:
        """Ends it in order."""
        self.primary.stop()

    def start(self) -> None:
        """Starts it again."""
        self.primary.start()

    def pause(self) -> None:
        """SIGSTOP."""
        self.primary.pause()

    def resume(self) -> None:
        """SIGCONT."""
        self.primary.resume()
