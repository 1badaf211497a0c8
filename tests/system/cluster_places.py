"""The cluster of the fault test: three places, each a primary with a replica, whose slots move under load.

    place 0   primary ──► replica      kill, stop, pause: of whoever is the primary; it comes back as the primary
    place 1   primary ──► replica      failover: the two change roles in order (CLUSTER FAILOVER)
    place 2   primary ──► replica      lose: the primary takes no more writes, its replica gets the rest, it is killed
                                       and the replica promoted without a vote; the former primary follows

Nobody else is promoted (cluster-replica-no-failover), and append-only files are synced before each reply.  So nothing
that was acknowledged may be missing, whatever happens.
"""

import contextlib
import random
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import redis

from holdmq_bridge import cluster_setup
from tests.module.cluster_support import SlotMove, node_id
from tests.support import Server, embedded_kinds, eventually

SETTINGS = [
    "appendfsync always",
    "auto-aof-rewrite-percentage 0",
    "cluster-node-timeout 3000",
    "cluster-replica-no-failover yes",
    "cluster-require-full-coverage no",
    "holdmq.session-limit 65535",
]
PLACES = 3
SETTLED_S = 60.0
AGAIN_S = 0.1
PAUSE_MS = 60_000


class Place:
    """A primary and its replica."""

    def __init__(self, primary: Server, replica: Server) -> None:
        self.servers = [primary, replica]

    @property
    def primary(self) -> Server:
        """Who takes writes."""
        return self.servers[0]

    @property
    def replica(self) -> Server:
        """Who follows."""
        return self.servers[1]

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

    def fail_over(self) -> None:
        """Primary and replica change roles in order."""
        eventually(self.is_settled, SETTLED_S, "a replica that follows")

        def is_promoted() -> bool:
            with self.replica.client() as client:
                if client.execute_command("ROLE")[0] == b"master":
                    return True
                with contextlib.suppress(redis.ResponseError):  # one is under way, or the link is down for a moment
                    client.execute_command("CLUSTER", "FAILOVER")
            return False

        eventually(is_promoted, SETTLED_S, "a replica that is promoted")
        self.servers.reverse()
        eventually(self.is_settled, SETTLED_S, "a former primary that follows")

    def lose(self) -> None:
        """The primary is killed when its replica has everything."""
        eventually(self.is_settled, SETTLED_S, "a replica that follows")
        with self.primary.client() as client:
            client.execute_command("CLIENT", "PAUSE", PAUSE_MS, "WRITE")
            eventually(lambda: _has_everything(client), SETTLED_S, "a replica that has everything")
        self.primary.kill()
        with self.replica.client() as client:
            client.execute_command("CLUSTER", "FAILOVER", "TAKEOVER")
            eventually(lambda: client.execute_command("ROLE")[0] == b"master", SETTLED_S, "a promoted replica")
        self.servers.reverse()
        self.replica.start()
        eventually(self.is_settled, SETTLED_S, "a former primary that follows")

    def is_settled(self) -> bool:
        """Whether there is a primary, and the other one follows it with all data."""
        with self.primary.client() as primary, self.replica.client() as replica:
            role = replica.execute_command("ROLE")
            return bool(
                primary.execute_command("ROLE")[0] == b"master"
                and role[0] == b"slave"
                and role[2] == self.primary.port
                and role[3] == b"connected"
            )


def _has_everything(client: redis.Redis) -> bool:
    found = client.info("replication")
    return bool(found.get("slave0", {}).get("offset") == found["master_repl_offset"])


class Places:
    """All places.

    Args:
        directory: for data and logs.
    """

    def __init__(self, directory: Path) -> None:
        kind = embedded_kinds()[0]
        self.servers = [
            Server(kind, directory / f"server-{number}", cluster=True, aof=True, config=SETTINGS)
            for number in range(2 * PLACES)
        ]
        self.places = [Place(*pair) for pair in zip(self.servers[:PLACES], self.servers[PLACES:], strict=True)]

    def begin(self) -> None:
        """Starts the servers, and makes the cluster."""
        for server in self.servers:
            server.start()
        cluster_setup.make([f"127.0.0.1:{server.port}" for server in self.servers])

    @property
    def nodes(self) -> Sequence[Server]:
        """The primaries."""
        return [place.primary for place in self.places]

    def owner(self, slot: int) -> Server:
        """The primary that has a slot, as it says itself."""
        for node in self.nodes:
            with node.client() as client:
                for first, last, (_host, port, *_), *_ in client.execute_command("CLUSTER", "SLOTS"):
                    if first <= slot <= last and port == node.port:
                        return node
        raise AssertionError(f"no primary has slot {slot}")

    def check(self) -> None:
        """Fails if a log holds a crash."""
        for server in self.servers:
            server.check()

    def close(self) -> None:
        """Ends everything."""
        for server in self.servers:
            server.close()


class Mover:
    """Moves slots to and fro in a thread, key by key or as a whole, whatever else happens to their nodes.

    Args:
        places: whose slots.
        slots: which of them, one after the other.
        seed: the order and the targets follow from it.
        note: is told each step.
    """

    def __init__(self, places: Places, slots: Sequence[int], seed: str, note: Callable[[str], None]) -> None:
        self._places = places
        self._slots = slots
        self._rng = random.Random(f"{seed}/moves")
        self._note = note
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="moves")
        self._error: BaseException | None = None
        self.moved = 0

    def start(self) -> None:
        """Begins."""
        self._thread.start()

    def finish(self) -> None:
        """Completes the move that is under way, and ends.  All nodes must run."""
        self._ended.set()
        self._thread.join(2 * SETTLED_S)
        assert not self._thread.is_alive(), "a slot that does not settle"
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            while not self._ended.is_set():
                self._move(self._rng.choice(self._slots), self._rng.randrange(PLACES), self._rng.random() < 0.3)
                self._ended.wait(self._rng.expovariate(2.0))
        except BaseException as error:  # noqa: BLE001 (told by `finish`)
            self._error = error

    def _move(self, slot: int, to: int, as_a_whole: bool) -> None:
        deadline: float | None = None
        self._note(f"slot {slot} moves to place {to}{' as a whole' if as_a_whole else ''}")
        while True:
            if self._ended.is_set() and deadline is None:
                deadline = time.monotonic() + SETTLED_S
            try:
                if self._try(slot, self._places.places[to].primary, as_a_whole):
                    self._note(f"slot {slot} is at place {to}")
                    self.moved += 1
                    return
            except (redis.RedisError, OSError, AssertionError) as error:  # a node is away, or changes its role
                if deadline is not None and time.monotonic() > deadline:
                    raise AssertionError(f"slot {slot} does not get to place {to}: {error}") from error
            time.sleep(AGAIN_S)

    def _try(self, slot: int, target: Server, as_a_whole: bool) -> bool:
        source = self._places.owner(slot)
        if source is target:
            for node in self._places.nodes:
                with node.client() as client:
                    client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", node_id(target))
            return True
        if as_a_whole:
            with source.client() as client:
                words = ("SLOTSRANGE", slot, slot, "NODE", node_id(target))
                client.execute_command("CLUSTER", "MIGRATESLOTS", *words)
            with contextlib.suppress(AssertionError):  # it failed: tried again
                eventually(lambda: self._places.owner(slot) is target, 5.0, "a slot at its new node")
            return False
        move = SlotMove(self._places, source, target, slot)  # type: ignore[arg-type] # of a cluster it needs the nodes
        move.begin()
        while keys := move.keys(1):
            _move_key(move, target, keys[0])
            time.sleep(self._rng.random() * 0.01)
        move.end()
        return True


def _move_key(move: SlotMove, target: Server, key: bytes) -> None:
    try:
        move.move(key)
    except redis.ResponseError as error:
        if "BUSYKEY" not in str(error):
            raise
        # An earlier attempt was cut off after the target had the key: the source, which still owns the slot, decides.
        with target.client(single_connection_client=True) as client:
            client.execute_command("ASKING")
            client.execute_command("DEL", key)
        move.move(key)
