"""What loads the history of a cluster while its slots move and nodes fail: appends, publishes, reads.

Every message has a number of its writer; a writer sends the next one only after the one before was acknowledged, and
sends it again, as the same chunk of the same producer, until it is.  So each is to be there once, in order.
"""

import contextlib
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import redis

from holdmq import HoldMQ
from tests.module.history_cluster_support import Store, check, shard_of
from tests.module.history_support import Entry, read_ranges
from tests.support import Server, eventually

WAIT_S = 30.0
WRITERS = 2
PAGE = 500
TOPICS = 24

Deed = Callable[["Router", int], None]


class Router:
    """Sends commands about a shard to the node that has it, as cluster clients do; each thread has its own.

    Args:
        store: the store.
        nodes: all that may have a shard.
    """

    def __init__(self, store: Store, nodes: list[Server]) -> None:
        self._store = store
        self._clients = {node.port: node.client(socket_timeout=5) for node in nodes}
        self._at: dict[int, int] = {}

    def send(self, shard: int, *words: Any, wait: int = 0) -> Any:
        """The reply of whoever has the shard; tried again while its slot moves or its node fails, for a bounded time.

        Args:
            shard: that the command is about.
            words: the command.
            wait: so many replicas have to have it.
        """
        until = time.monotonic() + WAIT_S
        while True:
            port = self._at.setdefault(shard, next(iter(self._clients)))
            try:
                return self._send(self._clients[port], words, wait)
            except redis.exceptions.MovedError as error:
                if time.monotonic() > until:
                    raise
                self._at[shard] = error.port if error.port != port else port
            except (redis.exceptions.TryAgainError, redis.exceptions.ClusterDownError):
                if time.monotonic() > until:
                    raise
                time.sleep(0.002)  # what everybody does who is told to try again
            except (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError, redis.exceptions.ReadOnlyError):
                if time.monotonic() > until:
                    raise
                self._at[shard] = self._another(port)
                time.sleep(0.01)  # as above

    def _send(self, client: redis.Redis, words: tuple[Any, ...], wait: int) -> Any:
        if not wait:
            return client.execute_command(*words)
        with client.client() as connection:
            reply = connection.execute_command(*words)
            if connection.wait(wait, 2000) < wait:
                raise redis.exceptions.TryAgainError("not on a replica yet")
            return reply

    def _another(self, port: int) -> int:
        ports = list(self._clients)
        return ports[(ports.index(port) + 1) % len(ports)]


@dataclass
class Load:
    """Writers that append, one that publishes, and one that reads each shard on; a thread each.

    Attributes:
        store: with filter `load/#`.
        nodes: all servers, replicas included.
        publishes: whether somebody publishes, too; a publish is not repeated when a node fails.
        wait: on so many replicas each message has to be before it counts as acknowledged.
        kept: by topic, what was acknowledged, in order.
        seen: by shard, what the reader saw.
        errors: whatever was raised; nothing is.
    """

    store: Store
    nodes: list[Server]
    publishes: bool = True
    wait: int = 0
    kept: dict[str, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    seen: dict[int, list[Entry]] = field(default_factory=lambda: defaultdict(list))
    errors: list[Exception] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._stopping = threading.Event()
        self._cursors: dict[int, bytes] = {}
        deeds: list[Deed] = [self._writer(number) for number in range(WRITERS)]
        deeds.append(self._read)
        if self.publishes:
            deeds.append(self._publish)
        self.rounds = [0] * len(deeds)
        self._threads = [threading.Thread(target=self._run, args=item) for item in enumerate(deeds)]
        self._hold_client = self.store.cluster.client()
        self._hold = HoldMQ(self._hold_client, moving_timeout=WAIT_S)
        for thread in self._threads:
            thread.start()

    def _run(self, index: int, deed: Deed) -> None:
        router = Router(self.store, self.nodes)
        try:
            while not self._stopping.is_set():
                deed(router, self.rounds[index])
                self.rounds[index] += 1
                time.sleep(0.001)  # leaves the processor to the servers; not a wait for anything
        except (redis.RedisError, AssertionError) as error:
            self.errors.append(error)

    def _writer(self, writer: int) -> Deed:
        def append(router: Router, number: int) -> None:
            topic = f"load/{writer}/{number % TOPICS}"
            shard = shard_of(topic, self.store.shards)
            payload = b"%d" % number
            producer = ("PRODUCER", f"w{writer}", 1, number)
            words = ("HISTORY.APPEND", self.store.name, topic, payload, *producer, "SHARD", shard)
            place = router.send(shard, *words, wait=self.wait)
            assert place[0] == shard
            self.kept[topic].append(payload)

        return append

    def _publish(self, _router: Router, number: int) -> None:
        topic = f"load/p/{number % TOPICS}"
        self._hold.topics.publish(topic, b"%d" % number, qos=1)
        self.kept[topic].append(b"%d" % number)

    def _read(self, router: Router, number: int) -> None:
        self.read_on(router, number % self.store.shards)

    def read_on(self, router: Router, shard: int) -> bool:
        """A page of a shard for the reader; whether that was all."""
        words = ["HISTORY.REPLAY", "load/#", "STORE", self.store.name, "SHARD", shard, "COUNT", PAGE]
        if shard in self._cursors:
            words += ["CURSOR", self._cursors[shard]]
        entries, cursor, end, _visited, missed = router.send(shard, *words)
        assert missed == 0
        self._cursors[shard] = cursor
        self.seen[shard] += [Entry(*entry) for entry in entries]
        return bool(end)

    def wait_for_progress(self) -> None:
        """Wait until each of them has had some rounds from now on."""
        wanted = [rounds + 2 * TOPICS for rounds in self.rounds]
        eventually(lambda: self.errors or all(map(int.__ge__, self.rounds, wanted)), WAIT_S, "writers that go on")

    def stop(self) -> None:
        """Let the present rounds end."""
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        self._hold_client.close()

    def check(self) -> None:
        """Every acknowledged message is there once and in order, and nothing else; the reader saw the same."""
        self.stop()
        if self.errors:
            raise AssertionError(f"{len(self.errors)} threads ended") from self.errors[0]
        router = Router(self.store, self.nodes)
        stored: dict[str, list[bytes]] = defaultdict(list)
        for shard in range(self.store.shards):
            while not self.read_on(router, shard):
                pass
            self._check_shard(shard, stored)
        assert stored == self.kept
        check(self.store.cluster)

    def _check_shard(self, shard: int, stored: dict[str, list[bytes]]) -> None:
        client, last = self.store.node(shard).client(), self.store.facts(shard)["last"]
        rows = read_ranges(client, self.store.name, shard, 1, last) if last else None
        columns = rows.columns if rows is not None else {"sequence": [], "time": [], "topic": [], "payload": []}
        assert columns["sequence"] == list(range(1, last + 1))
        assert all(a < b for a, b in zip(columns["time"], columns["time"][1:], strict=False))
        pairs = list(zip(columns["topic"], columns["payload"], strict=True))
        seen = [entry.pair for entry in self.seen[shard]]
        if self.wait:  # a reader may see what is lost with its primary before it counts as acknowledged
            assert set(pairs) <= set(seen)
        else:
            assert seen == pairs
        for topic, payload in pairs:
            stored[topic.decode()].append(payload)


@contextlib.contextmanager
def load_on(store: Store, nodes: list[Server] | None = None, **options: Any) -> Iterator[Load]:
    load = Load(store, nodes or store.cluster.nodes, **options)
    try:
        yield load
    finally:
        load.stop()
