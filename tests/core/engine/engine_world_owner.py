"""The owner of the engine of engine_world.py: what a front end does around its engine, as simply as it can be done."""

from dataclasses import replace
from typing import TYPE_CHECKING

import hiredis

from holdmq.core.engine import Engine, EngineSettings, Event, EventKind, OpenSession
from tests.core.engine.engine_talk import bulk
from tests.core.engine.engine_world_client import Client, Link
from tests.core.engine.engine_world_server import MOST_PIPELINED, WAIT_MS, inbox_of, key_of

if TYPE_CHECKING:
    from tests.core.engine.engine_world import World

SETTINGS = EngineSettings(
    max_client_outstanding=6,
    max_ready=3,
    max_ready_bytes=400,
    max_pipeline=MOST_PIPELINED,
    max_fetches=2,
    max_output_bytes=200,
    retry_total_ms=10**9,
)
MOST_UNANSWERED = 12
ABANDONED = b"ERR the connection to the server broke each time a publish was sent"
DENIED = 2  # the last level of the topics that some clients may not publish to


class Owner:
    """Opens and closes sessions, moves bytes."""

    def __init__(self, world: "World") -> None:
        self.world = world
        settings = replace(SETTINGS, wait_replicas=world.wait_replicas, wait_timeout_ms=WAIT_MS)
        self.engine = Engine(settings, allocator=world.books.allocator)
        self.by_conn: dict[int, tuple[Client, Link]] = {}
        self.up = False
        self.tokens = 0
        self.asked: dict[int, Link] = {}  # SESSION.OPEN under way
        self.closing: list[tuple[bytes, int, int]] = []  # SESSION.CLOSE still to be said: session, epoch, serial
        self.come_up()

    def command(self, *arguments: bytes | int, token: int = 0, replies: bool = True) -> bool:
        """A command of the owner's; False: no memory."""
        parts = [argument if isinstance(argument, bytes) else b"%d" % argument for argument in arguments]
        data = b"*%d\r\n" % len(parts) + b"".join(map(bulk, parts))
        try:
            self.engine.command(data, token=token, replies=replies)
        except MemoryError:
            return False
        return True

    def ask_open(self, client: Client, link: Link) -> None:
        """A CONNECT came: listens and opens the session."""
        self.tokens += 1
        heard = self.command(b"SUBSCRIBE", inbox_of(client.client_id), replies=False)
        opened = heard and self.command(b"SESSION.OPEN", key_of(client.client_id), token=self.tokens)
        if opened:
            self.asked[self.tokens] = link
        else:
            self.end(link)

    def say_closed(self) -> None:
        """What is still to be said about connections that are over."""
        while self.up and self.closing:
            client_id, epoch, serial = self.closing[0]
            if not self.command(b"SESSION.CLOSE", key_of(client_id), b"EPOCH", epoch, serial, token=0):
                return
            del self.closing[0]
            if not any(client.client_id == client_id for client, _ in self.by_conn.values()):
                self.command(b"UNSUBSCRIBE", inbox_of(client_id), replies=False)

    def end(self, link: Link) -> None:
        """Ends the connection: the engine forgets it, the server is told."""
        if link.conn not in self.by_conn:
            return
        self.take_outputs()
        client, _ = self.by_conn[link.conn]
        serial = self.engine.sent_serial(link.conn)
        self.engine.close(link.conn)
        del self.by_conn[link.conn]
        if client.link is link:
            client.link = None
        if link.epoch:
            self.closing.append((client.client_id, link.epoch, serial))
        self.say_closed()

    def on_event(self, event: Event) -> None:
        """Does what the engine's event asks for."""
        if event.kind == EventKind.REPLY:
            self._on_reply(event)
            return
        if event.kind in (EventKind.UNCONFIRMED, EventKind.CONFIRMED) and self.world.wait_replicas:
            return
        if event.conn not in self.by_conn:
            return
        client, link = self.by_conn[event.conn]
        if event.kind == EventKind.PACKET:
            if self.up:
                self.ask_open(client, link)
        elif event.kind == EventKind.RELIEF:
            link.reading_paused = False
        elif event.kind not in (EventKind.REFUSED, EventKind.DENIED, EventKind.ABANDONED):
            assert event.kind != EventKind.ERROR or event.error == -106
            assert event.kind != EventKind.CONFLICT or self.world.older
            assert event.kind != EventKind.FAILED or event.data in (b"", b"out of memory", ABANDONED)
            self.end(link)

    def _on_reply(self, event: Event) -> None:
        link = self.asked.pop(event.token, None)
        if link is None or link.conn not in self.by_conn:
            return
        reader = hiredis.Reader()
        reader.feed(event.data)
        reply = reader.gets()
        if isinstance(reply, hiredis.ReplyError):
            self.end(link)
            return
        client, _ = self.by_conn[link.conn]
        link.epoch = reply[0]
        session = OpenSession(
            client.version,
            client.client_id,
            key_of(client.client_id),
            link.epoch,
            resumed=bool(reply[1]),
            window=client.window,
            places=3 * client.window,
            max_packet_out=client.max_packet_out,
            alias_maximum_out=client.alias_maximum_out,
            receive_maximum=MOST_UNANSWERED,
            replay_rate=client.rate,
            publish_rate=client.rate,
        )
        try:
            if client.denied:
                self.engine.rules(link.conn, [(False, b"to/+/%d" % DENIED)], denied_otherwise=False)
            self.engine.send(link.conn, b"\x20\2\0\0" if client.version == 4 else b"\x20\3\0\0\0")
            former = self.engine.open(link.conn, session, self.world.now_ms)
        except MemoryError:
            self.end(link)
            return
        if former:
            self.end(self.by_conn[former][1])
        link.open = True
        if client.link is link:
            client.come_back(self.world.targets)
        self.went_on(self.engine.proceed(link.conn, self.world.now_ms), link)

    def went_on(self, event: Event | None, link: Link) -> None:
        """What came out of bytes of a client, one event after the other."""
        while event is not None:
            self.on_event(event)
            if link.conn not in self.by_conn or event.kind == EventKind.PACKET:
                return
            event = self.engine.proceed(link.conn, self.world.now_ms)

    def take_outputs(self) -> None:
        """Bytes for the clients; of several connections of one only the last is read."""
        for conn, data in self.engine.outputs():
            client, link = self.by_conn[conn]
            if client.link is link:
                client.read(data, self.world)
            else:
                link.unread += data
                client.miss(link, self.world)

    def come_up(self) -> None:
        """The server is there."""
        self.up = True
        heard = [inbox_of(client.client_id) for client, _ in self.by_conn.values()]
        if heard and not self.command(b"SUBSCRIBE", *heard, replies=False):
            self.up = False
            self.engine.server_lost()
            return
        self.engine.server_restored(self.world.now_ms)
        for _, link in list(self.by_conn.values()):
            if not link.epoch and link.conn in self.by_conn and not link.wire:
                self.end(link)  # its CONNECT was under way
        self.say_closed()
