"""What loads a cluster while its slots move: adds, publishes, reads and acknowledges, and knows what must be there."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import redis
from redis.crc import key_slot

from holdmq import HoldMQ, Session
from tests.support import Cluster, Server, eventually

Deed = Callable[[HoldMQ, int], None]
WAIT_S = 30.0
TOPIC = "load/all"
PAGE = 200


@dataclass
class Load:
    """Adds, publishes, reads and acknowledges, in a thread each, until it is stopped.

    Attributes:
        names: client ids of the sessions, all of which subscribe to the topic.
        added: for each session what was added, in order.
        published: what was published to all of them, in order.
        read: for each session what was read and then acknowledged, in order.
        errors: whatever was raised; nothing is.
    """

    cluster: Cluster
    names: list[str]
    added: dict[str, list[bytes]] = field(default_factory=dict)
    published: list[bytes] = field(default_factory=list)
    read: dict[str, list[bytes]] = field(default_factory=dict)
    errors: list[Exception] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.added = {name: [] for name in self.names}
        self.read = {name: [] for name in self.names}
        self._stopping = threading.Event()
        with self._client() as hold:
            for name in self.names:
                hold.session(name).open("load", expiry=1000)
                hold.session(name).subscribe(TOPIC, qos=1)
        deeds: list[Deed] = [self._add, self._publish, self._consume]
        self.rounds = [0] * len(deeds)
        self._threads = [threading.Thread(target=self._run, args=item) for item in enumerate(deeds)]
        for thread in self._threads:
            thread.start()

    @contextlib.contextmanager
    def _client(self) -> Iterator[HoldMQ]:
        with contextlib.closing(self.cluster.client()) as client:
            yield HoldMQ(client, moving_timeout=WAIT_S)

    def _run(self, index: int, deed: Deed) -> None:
        try:
            with self._client() as hold:
                while not self._stopping.is_set():
                    deed(hold, self.rounds[index])
                    self.rounds[index] += 1
                    time.sleep(0.001)  # leaves the processor to the servers; not a wait for anything
        except (redis.RedisError, AssertionError) as error:
            self.errors.append(error)

    def _add(self, hold: HoldMQ, number: int) -> None:
        for name in self.names:
            result = hold.session(name).add(b"a%d" % number, limit=65535)
            assert (result.trimmed, result.expired) == (0, 0)
            self.added[name].append(b"a%d" % number)

    def _publish(self, hold: HoldMQ, number: int) -> None:
        reached = hold.topics.publish(TOPIC, b"p%d" % number, qos=1, retain=number % 10 == 0)
        assert reached == len(self.names), f"{reached} sessions were reached by publish {number}, of {len(self.names)}"
        self.published.append(b"p%d" % number)

    def _consume(self, hold: HoldMQ, number: int) -> None:
        name = self.names[number % len(self.names)]
        session = hold.session(name)
        page = session.fetch(count=5)
        assert page.expired == 0
        if page.entries:
            assert session.ack(*[entry.packet_id for entry in page.entries]) == len(page.entries)
            self.read[name] += [payload(entry.value) for entry in page.entries]

    def wait_for_progress(self) -> None:
        """Wait until each of them has had some rounds from now on."""
        wanted = [rounds + 3 for rounds in self.rounds]
        eventually(
            lambda: self.errors or all(map(int.__ge__, self.rounds, wanted)), WAIT_S, "acknowledgements after a move"
        )

    def stop(self) -> None:
        """Let the present rounds end."""
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def check(self) -> None:
        """Every acknowledged message is there once and in order, and nothing else."""
        if self.errors:
            raise AssertionError(f"{len(self.errors)} commands failed") from self.errors[0]
        with self._client() as hold:
            for name in self.names:
                stored = self.read[name] + everything(hold.session(name))
                assert [item for item in stored if item.startswith(b"a")] == self.added[name], name
                assert [item for item in stored if item.startswith(b"p")] == self.published, name
            kept = hold.topics.retained_message(TOPIC)
            assert kept is not None
            assert kept.payload == [item for item in self.published if item.endswith(b"0")][-1]
        for node in self.cluster.nodes:
            assert node.client().execute_command("HOLDMQ.CHECK") == []
            assert out_of_place(node) == []


def payload(value: bytes) -> bytes:
    """What was added or published: the latter stands at the end of a record."""
    return value if value.startswith(b"a") else value[value.rindex(b"p") :]


def everything(session: Session) -> list[bytes]:
    """The payloads of a session's queue, in order."""
    payloads: list[bytes] = []
    after = 0
    while True:
        page = session.fetch(after=after, count=PAGE)
        payloads += [payload(entry.value) for entry in page.entries]
        if not page.more:
            return payloads
        after = page.entries[-1].serial


def out_of_place(node: Server) -> list[bytes]:
    """Keys on a node that has not their slot."""
    own = node.slots()
    return [key for key in node.client().scan_iter(count=1000) if key_slot(key) not in own]


@contextlib.contextmanager
def load_on(cluster: Cluster, names: list[str]) -> Iterator[Load]:
    load = Load(cluster, names)
    try:
        yield load
    finally:
        load.stop()
