"""A small world around one engine: clients, their owner, and a model of the server's sessions, which check each other.

    Client ──bytes──► engine ──commands──► Server (a model: sessions, queues, what was published)
    Client ◄──bytes── engine ◄──replies, pushes──┘

Every step is small and may be cut anywhere: bytes wait on the way, commands wait to be executed, the server refuses, is
lost with what was under way, comes back as it was or as it was at an earlier moment, and memory lacks.  With
`wait_replicas` replicas confirm late, or not at all, and what comes back may be a replica that has what was confirmed
last and nothing else: nothing that a publisher was promised may lack there.  What must hold is asserted where it shows;
`settle` brings the world to rest and asserts what must hold then.

Identifiers are few, so that they come round; every message has a number of its own, which is its payload.
"""

import copy

from holdmq.core.engine import OutOfStepError
from tests.core.engine.engine_talk import T0, connect, write_some
from tests.core.engine.engine_world_client import Client, Link
from tests.core.engine.engine_world_owner import DENIED, MOST_UNANSWERED, Owner
from tests.core.engine.engine_world_server import Data, Mark, Message, Server, Session, key_of
from tests.core.support import Books

LARGE = 300  # bytes of a message that is too large for a client with a maximum
MAX_PACKET_OUT = 200


class World:
    """Everything; its steps, and what must hold.

    Args:
        wait_replicas: that have to confirm a publish before it is acknowledged; 0: none.
    """

    def __init__(self, wait_replicas: int = 0) -> None:
        self.now_ms = T0
        self.wait_replicas = wait_replicas
        self.starving = 0  # allocations that fail from now on
        self.starved = False
        self.books = Books(self._fails)
        self.server = Server(self)
        self.clients = [
            Client(b"a", 4, window=2),
            Client(b"b", 5, window=3, max_packet_out=MAX_PACKET_OUT, alias_maximum_out=2),
            Client(b"c", 4, window=1, rate=20, denied=True),
        ]
        self.next_uid = 0
        self.targets: dict[int, bytes] = {}
        self.expired: dict[int, int] = {}  # number -> when
        self.large: set[int] = set()
        self.qos: dict[int, int] = {}
        self.excused: set[int] = set()  # of these nothing is known any more: the server was restored
        self.refused = False
        self.older = False  # the server was restored from an older state
        self.owner = Owner(self)
        self.engine = self.owner.engine

    def _fails(self, _call: int) -> bool:
        if not self.starving:
            return False
        self.starving -= 1
        self.starved = True
        return True

    def new_message(self, target: bytes, *, qos: int, life_ms: int = 0, large: bool = False) -> int:
        self.next_uid += 1
        self.targets[self.next_uid] = target
        self.qos[self.next_uid] = qos
        if life_ms:
            self.expired[self.next_uid] = self.now_ms + life_ms
        if large:
            self.large.add(self.next_uid)
        return self.next_uid

    # ---- what must hold

    def client(self, client_id: bytes) -> Client:
        """By its id."""
        return next(client for client in self.clients if client.client_id == client_id)

    def never_to_be_sent(self, client: Client, uid: int) -> bool:
        """Too large for its client, or its time is over."""
        if uid in self.large and client.max_packet_out:
            return True
        return uid in self.expired and self.expired[uid] <= self.now_ms

    def check_ack(self, client_id: bytes, message: Message) -> None:
        """May this message be removed from the queue?"""
        client = self.client(client_id)
        done = message.mark in client.done or self.never_to_be_sent(client, message.uid)
        assert done, f"{message} was acknowledged by nobody"

    def check_release(self, client_id: bytes, message: Message) -> None:
        """May its payload be dropped?"""
        assert message.qos == 2
        assert message.mark in self.client(client_id).received, f"{message} was received by nobody"

    def check_sent(self, client_id: bytes, message: Message) -> None:
        """Was it handed out?"""
        client = self.client(client_id)
        assert message.mark in client.got or self.never_to_be_sent(client, message.uid), f"{message} was never sent"

    def check_unsent(self, client_id: bytes, messages: list[Message]) -> None:
        """Were these never sent?  Otherwise they would come again without DUP [MQTT-3.3.1-1]."""
        client = self.client(client_id)
        for message in messages:
            was_sent = message.state == 0 and message.qos > 0 and message.mark in client.got
            assert self.older or not was_sent, f"{message} was sent"

    def mark(self, client_id: bytes, packet_id: int, uid: int | None = None) -> Mark:
        """By which a message that a client got is known; serial 0: it is not in the queue any more."""
        message = self.server.data.sessions[client_id].find(packet_id)
        if message is None or uid not in (None, message.uid):
            return 0, uid or 0
        return message.mark

    def mark0(self, client_id: bytes, uid: int) -> Mark | None:
        """The same for a message of QoS 0; None: it never was in the queue, or is not any more."""
        queue = self.server.data.sessions[client_id].queue
        return next((message.mark for message in queue if message.uid == uid and message.qos == 0), None)

    # ---- the steps

    def step_connect(self, client: Client) -> None:
        """A new connection; a former one of the client is dead, which nobody knows yet."""
        try:
            conn = self.engine.attach()
        except MemoryError:
            return
        link = Link(conn)
        client.link = link
        self.owner.by_conn[conn] = (client, link)
        link.wire += connect(client.client_id, level=client.version)

    def step_connect_all(self) -> None:
        """Whoever has no connection."""
        for client in self.clients:
            if client.link is None:
                self.step_connect(client)

    def step_disconnect(self, client: Client) -> None:
        """Its socket is closed."""
        if client.link is not None:
            self.owner.end(client.link)

    def step_publish(self, client: Client, target: Client, qos: int) -> None:
        """It publishes something to somebody."""
        if client.link is not None and client.link.open and len(client.unanswered) < MOST_UNANSWERED:
            uid = self.new_message(target.client_id, qos=qos)
            if client.denied and uid % 3 == DENIED:
                self.excused.add(uid)
            client.publish(uid, target.client_id, qos)

    def step_backend(self, target: Client, qos: int, life_ms: int, large: bool) -> None:
        """Somebody else publishes to it."""
        uid = self.new_message(target.client_id, qos=qos, life_ms=life_ms, large=large)
        size = LARGE if large else 0
        self.server.deliver(target.client_id, uid, qos, size, self.expired.get(uid, 0))

    def step_steal(self, client: Client) -> None:
        """Another process opens its session, and closes it at once."""
        session = self.server.data.sessions.get(client.client_id)
        if session is not None:
            self.server.open([b"SESSION.OPEN", key_of(client.client_id)])
            session.connected = False

    def step_flow(self, client: Client, count: int) -> None:
        """Bytes of the client reach the engine."""
        link = client.link
        if link is None or link.reading_paused or not link.wire:
            return
        data = bytes(link.wire[:count])
        del link.wire[:count]
        self.owner.went_on(self.engine.receive(link.conn, data, self.now_ms), link)
        if link.conn in self.owner.by_conn and self.engine.should_pause(link.conn):
            link.reading_paused = True

    def step_acknowledge(self, client: Client, which: int) -> None:
        """It acknowledges one of what it holds."""
        owed = client.owes()
        if owed:
            client.acknowledge(owed[which % len(owed)])

    def step_writable(self, client: Client, writable: bool) -> None:
        """Its socket takes no more, or takes it again."""
        if client.link is not None:
            self.engine.set_writable(client.link.conn, writable)

    def step_look(self, most: int = 1 << 20) -> None:
        """The owner's round: flush, events, commands to the server (so many bytes of them), bytes to the clients."""
        self.engine.flush(self.now_ms)
        for event in list(self.engine.events()):
            self.owner.on_event(event)
        if self.owner.up and most:
            self.server.written(write_some(self.engine, most))
        self.owner.take_outputs()

    def step_execute(self, count: int) -> None:
        """The server executes commands."""
        for _ in range(min(count, len(self.server.inbound))):
            self.server.execute()

    def step_answer(self, count: int) -> None:
        """Bytes of the server reach the engine."""
        data = bytes(self.server.outbound[:count])
        del self.server.outbound[:count]
        if not data or not self.owner.up:
            return
        try:
            for event in self.engine.replies(data, self.now_ms):
                self.owner.on_event(event)
        except OutOfStepError:
            assert self.starved or self.refused
            self.step_lose()

    def step_refuse(self, refusal: bytes) -> None:
        """The server refuses commands from now on, or (nothing) does no more."""
        self.server.refusal = refusal

    def step_headers(self, headers: bool, queues: bool) -> None:
        """From now on the server pushes headers alone, or whole messages; it queues messages of QoS 0, or does not."""
        self.server.pushes_headers = headers
        self.server.queues_qos0 = queues

    def step_snapshot(self) -> None:
        """A state that the server may be restored to."""
        self.server.snapshot = copy.deepcopy(self.server.data)

    def step_lose(self) -> None:
        """The connection to the server is lost."""
        if not self.owner.up:
            return
        self.owner.up = False
        self.server.drop()
        self.owner.asked.clear()
        self.engine.server_lost()

    def step_restore(self, older: bool) -> None:
        """The server is there again, as it was, or as of the snapshot."""
        if self.owner.up:
            return
        if older:
            self.excused |= self.go_back(self.server.snapshot)
        self.owner.come_up()

    def step_promote(self) -> None:
        """A replica takes the place of the server; it has what was confirmed last."""
        if self.owner.up or not self.wait_replicas:
            return
        lost = self.go_back(self.server.replicated)
        for client in self.clients:
            assert not client.promised.keys() & lost - self.excused, "acknowledged, and not on the replicas"
        self.owner.come_up()

    def step_replicas(self, confirming: int, blocked: int) -> None:
        """From now on so many replicas confirm; the next WAIT takes a while."""
        self.server.replicas, self.server.blocked = confirming, blocked

    def go_back(self, former: Data) -> set[int]:
        """Everything that came after this state is lost; returns the messages published since then."""
        self.older = True
        self.owner.take_outputs()
        server = self.server
        kept, there = {uid for _, uid in former.published}, {uid for _, uid in server.data.published}
        epochs = {client_id: session.epoch for client_id, session in server.data.sessions.items()}
        server.data = copy.deepcopy(former)
        for client_id, epoch in epochs.items():  # nobody else opened it meanwhile
            if client_id in server.data.sessions:
                server.data.sessions[client_id].epoch = epoch
            else:
                server.data.sessions[client_id] = Session(epoch=epoch, connected=True)
        for _, link in self.owner.by_conn.values():
            link.last_serial = 0
            link.seen.clear()
        return there - kept

    def step_time(self, ms: int) -> None:
        """Time passes."""
        self.now_ms += ms

    def step_starve(self, count: int) -> None:
        """So many allocations fail."""
        self.starving = count

    # ---- rest

    def is_quiet(self) -> bool:
        server = self.server
        return not (
            any(c.link is None or not c.link.open or c.link.wire or c.link.held or c.link.answers for c in self.clients)
            or any(session.queue for session in server.data.sessions.values())
            or server.inbound
            or server.outbound
            or self.engine.outstanding
            or self.engine.has_timed_work
        )

    def settle(self) -> None:
        """Nobody hinders anything any more: all comes to rest, and then nothing is missing."""
        self.starving = 0
        self.server.refusal = b""
        self.step_replicas(self.wait_replicas, 0)
        for _ in range(400):
            self.step_restore(older=False)
            for client in self.clients:
                if client.link is None or client.link.conn not in self.owner.by_conn:
                    self.step_connect(client)
                self.step_writable(client, True)
                while client.owes():
                    self.step_acknowledge(client, 0)
                self.step_flow(client, 1 << 20)
            self.step_look()
            self.step_execute(1 << 20)
            self.step_answer(1 << 20)
            self.step_look()
            self.now_ms += 100
            if self.is_quiet():
                break
        self.check_rest()

    def check_rest(self) -> None:
        """What must hold at rest."""
        for client in self.clients:
            assert client.link is not None
            assert not client.unanswered
            assert not self.engine.should_pause(client.link.conn)
            assert not client.link.answers
            assert not client.link.wire, "it is not read any more"
        left = {i: session.queue for i, session in self.server.data.sessions.items() if session.queue}
        assert not left, "left behind"
        assert self.is_quiet()
        for client in self.clients:
            self.check_published(client)
            if not self.older:
                assert len(client.taken) == len(set(client.taken)), "QoS 2 twice"

    def check_published(self, client: Client) -> None:
        """What was acknowledged to the publisher was published: QoS 1 in its order, QoS 2 once."""
        published = [uid for publisher, uid in self.server.data.published if publisher == client.client_id]
        assert not client.promised.keys() - set(published) - self.excused, "lost"
        assert all(published.count(uid) <= 1 for uid in published if self.qos[uid] != 1), "published twice"
        last = {uid: at for at, uid in enumerate(published)}
        ordered = [last[uid] for uid, qos in client.sent if qos == 1 and uid in last and uid in client.promised]
        if not self.older:
            assert ordered == sorted(ordered), "published out of order"
