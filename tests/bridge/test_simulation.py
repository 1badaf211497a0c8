"""A connection between a simulated client and a simulated server, in every order of events that hypothesis thinks of.

    client ── bytes ── Connection ── to_server ──► queue and topic of the server
                                  ◄── to_bridge ── replies and pushes, in the server's order

The link breaks at any point: what was on its way in either direction is gone, executed or not.  The server refuses
publishes now and then.  The client acknowledges when it likes.  In the end all is let run to rest, and then:

 1. every message of the queue reached the client, for the first time in its order, and nothing stays in the queue;
 2. what the client was acknowledged is at the server, which heard the last of each of its publishes in the order in
    which they were sent (a refusal amid a batch may let a later one through first: see line.py);
 3. at no time was more in flight than the window allows, or sent before the queue had it.
"""

from collections import deque
from typing import Any

from hiredis import ReplyError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdmq_bridge.backoff import Backoff
from holdmq_bridge.connection import Connection, Phase
from holdmq_bridge.counters import Counters
from holdmq_bridge.request import Kind, Request
from holdmq_bridge.settings import Settings
from tests.bridge import packets

WINDOW = 3
EPOCH = 9
OOM = ReplyError("OOM command not allowed")


class World:
    """Client, connection and server, and what lies between them."""

    def __init__(self) -> None:
        self.connection = Connection(
            Settings(max_inflight=WINDOW, max_ready=3),
            Counters(),
            owner=None,
            owner_name="b:1",
            assigned_id=lambda: b"auto",
            backoff=Backoff(0.01, 0.01, lambda low, high: high),
        )
        self.up = False
        self.to_server: deque[Request] = deque()
        self.to_bridge: deque[tuple[Request | None, Any]] = deque()
        # The server
        self.queue: list[tuple[int, bytes]] = []  # serial (the identifier too) and value
        self.serial = 0
        self.published: list[bytes] = []
        self.refusals = 0
        # The client
        self.unread = b""
        self.received: list[int] = []
        self.unacknowledged: list[int] = []
        self.sent = 0
        self.acknowledged: list[int] = []
        self.restore()
        self.connection.receive(packets.connect("c", clean=False))
        self.settle()
        assert self.connection.phase is Phase.OPEN

    # ---- events ----

    def add(self, _: int) -> None:
        """Somebody publishes to the client."""
        previous = self.queue[-1][0] if self.queue else 0
        self.serial += 1
        value = packets.record("t", b"%d" % self.serial)
        self.queue.append((self.serial, value))
        if self.up:
            push = packets.delivery(1, value, pid=self.serial, serial=self.serial, previous=previous)
            self.to_bridge.append((None, push))

    def publish(self, count: int) -> None:
        """The client publishes."""
        for _ in range(count):
            self.sent += 1
            self.connection.receive(packets.publish("t", b"%d" % self.sent, qos=1, pid=self.sent))

    def acknowledge(self, count: int) -> None:
        """The client acknowledges some of what it has."""
        pids, self.unacknowledged = self.unacknowledged[:count], self.unacknowledged[count:]
        self.connection.receive(b"".join(packets.puback(pid) for pid in pids))

    def execute(self, count: int) -> None:
        """The server executes some commands."""
        for _ in range(min(count, len(self.to_server))):
            request = self.to_server.popleft()
            self.to_bridge.append((request, self._execute(request)))

    def tell(self, count: int) -> None:
        """Some replies and pushes arrive."""
        for _ in range(min(count, len(self.to_bridge))):
            request, content = self.to_bridge.popleft()
            if request is None:
                self.connection.delivery(content)
            else:
                self.connection.reply(request, content)

    def refuse(self, count: int) -> None:
        """The server is full for a while."""
        self.refusals = count

    def lose(self, _: int) -> None:
        """The link breaks."""
        if self.up:
            self.up = False
            self.to_server.clear()
            self.to_bridge.clear()
            self.connection.server_lost()

    def restore(self, _: int = 0) -> None:
        """The link is there again."""
        if not self.up:
            self.up = True
            self.connection.server_restored()

    def stop_reading(self, count: int) -> None:
        """The client's socket takes no more, or takes it again."""
        self.connection.set_writable(count % 2 == 0)

    # ---- what happens by itself ----

    def collect(self) -> None:
        """Requests and bytes go where they belong; checks what must hold at any time."""
        connection = self.connection
        if connection.retry_in_s is not None:
            connection.retry_in_s = None
            connection.retry()
        if connection.needs_flush and self.up:
            connection.flush()
        assert self.up or not connection.requests
        self.to_server += connection.requests
        connection.requests.clear()
        if connection.fetch is not None:
            self.to_server.append(connection.fetch)
            connection.fetch = None
        self._read(b"".join(connection.output))
        connection.output.clear()
        assert len(self.unacknowledged) <= WINDOW

    def settle(self) -> None:
        """Lets everything run until nothing moves."""
        self.refuse(0)
        self.restore()
        self.stop_reading(0)
        for _ in range(10_000):
            self.collect()
            if not (self.to_server or self.to_bridge or self.unacknowledged or self.connection.needs_flush):
                return
            self.execute(100)
            self.tell(100)
            self.acknowledge(100)
        raise AssertionError("it never comes to rest")

    def _read(self, data: bytes) -> None:
        data = self.unread + data
        while len(data) >= 2:
            size = 2 + data[1]  # all packets are short here
            packet, data = data[:size], data[size:]
            if packet[0] >> 4 == 3:
                published = packets.read_publish(packet)
                assert int(published.payload) <= self.serial
                self.received.append(int(published.payload))
                self.unacknowledged.append(published.pid)
            elif packet[0] == 0x40:
                self.acknowledged.append(int.from_bytes(packet[2:4], "big"))
        self.unread = data

    def _execute(self, request: Request) -> Any:
        arguments = request.arguments
        if request.kind is Kind.PUBLISH:
            if self.refusals:
                self.refusals -= 1
                return OOM
            self.published.append(bytes(arguments[2]))  # type: ignore[arg-type]
            return 0
        if request.kind is Kind.FETCH:
            after, count = arguments[5], arguments[7]
            assert isinstance(after, int)
            assert isinstance(count, int)
            behind = [entry for entry in self.queue if entry[0] > after]
            page = [[serial, serial, 0, value] for serial, value in behind[:count]]
            return [page, int(len(behind) > count), 0]
        if request.kind is Kind.ACK:
            pids = arguments[4:]
            self.queue = [entry for entry in self.queue if entry[0] not in pids]
            return len(pids)
        return [EPOCH, 0]


EVENTS = ("add", "publish", "acknowledge", "execute", "tell", "refuse", "lose", "restore", "stop_reading")


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(1, 4)), max_size=120))
def test_nothing_is_lost_skipped_or_out_of_order_whatever_breaks(events: list[tuple[str, int]]) -> None:
    world = World()
    for name, count in events:
        getattr(world, name)(count)
        world.collect()
    world.settle()
    assert world.connection.phase is Phase.OPEN
    assert list(dict.fromkeys(world.received)) == list(range(1, world.serial + 1))
    assert world.queue == []
    assert world.acknowledged == list(range(1, world.sent + 1))
    assert list(dict.fromkeys(map(int, reversed(world.published)))) == list(range(world.sent, 0, -1))
