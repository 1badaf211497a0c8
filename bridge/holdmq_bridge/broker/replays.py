"""Reads history for sessions whose subscriptions need it: SESSION.REPLAY, a page at a time.

    begin ──► REQUESTED ──reply: more──────► ROOM ──engine: half of the ready line is free──► REQUESTED
                  │ ├─────reply: full──────► PAUSED ──a moment later──► ROOM
                  │ └─────reply: all read──► END ──news of a store──► PAUSED ──a moment later──► REQUESTED
                  └───────reply: no store──► forgotten: everything is live

The server stores each subscription's place in history.  Here is only which session to read for, and when.  So a bridge
may be killed at any moment, and another one continues.

Bounds
 1. A page fits into the free half of the client's ready line: the engine never fetches again what was just pushed.
 2. At most max_fetches pages are requested at the same time.  Further readers wait in line.
 3. After news of a store, a session that has read everything waits for _FIRST_S before it reads again, and for up to
    _MOST_S while its pages are empty.
"""

from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING

import hiredis

from holdmq_bridge.base.command import Argument, Reply, error_code, is_temporary
from holdmq_bridge.base.logs import Log
from holdmq_bridge.broker.client import Client
from holdmq_bridge.process.process import Process
from holdmq_bridge.server.calls import Calls
from holdmq_bridge.server.channels import Channels
from holdmq_bridge.server.servers import Servers

if TYPE_CHECKING:
    import asyncio

log = Log("replays")

_CHANNEL = b"holdmq:history:"
_FIRST_S = 0.01
_MOST_S = 0.16
_FULL_S = 0.05
_REFUSED_S = 1.0
_PAGES_A_SECOND = 10  # with a replay rate
_READ, _BEHIND, _FULL = range(3)  # the second number of the reply
_GONE = ("FENCED", "NOSESSION")  # the connection is about to end


class _State(Enum):
    WAITING = 1  # in line, or for the server
    REQUESTED = 2
    ROOM = 3
    PAUSED = 4
    END = 5


class _Reader:
    """A client whose session reads history."""

    __slots__ = ("again", "client", "empty_pages", "state", "stores", "timer")

    def __init__(self, client: Client) -> None:
        self.client = client
        self.state = _State.WAITING
        self.stores: frozenset[bytes] = frozenset()
        self.again = False  # a subscription was added while a page was requested
        self.empty_pages = 0  # in succession
        self.timer: asyncio.TimerHandle | None = None


class Replays:
    """One for each process."""

    def __init__(self, process: Process, servers: Servers, calls: Calls) -> None:
        settings = process.settings
        self._process = process
        self._servers = servers
        self._calls = calls
        self._readers: dict[Client, _Reader] = {}
        self._channels = Channels(process.engine, servers)
        self._by_store: dict[bytes, set[_Reader]] = {}
        self._line: deque[_Reader] = deque()
        self._under_way = 0
        self._count = max(1, settings.max_ready // 2)
        self._bytes = max(1, settings.max_ready_bytes // 2)
        self._rate = settings.replay_rate
        if self._rate:
            self._count = min(self._count, max(1, self._rate // _PAGES_A_SECOND))

    def __len__(self) -> int:
        return len(self._readers)

    # ---- readers ---------------------------------------------------------------------------------------------------

    def begin(self, client: Client) -> None:
        """The session has, or may have, subscriptions that read history."""
        reader = self._readers.get(client)
        if reader is None:
            reader = self._readers[client] = _Reader(client)
            self._process.engine.replays(client.conn, True)
            self._request_page(reader)
        elif reader.state is _State.REQUESTED:
            reader.again = True
        elif reader.state in (_State.END, _State.PAUSED):
            self._request_page(reader)

    def forget(self, client: Client) -> None:
        """The connection has ended."""
        reader = self._readers.pop(client, None)
        if reader is not None:
            self._stop_timer(reader)
            self._set_stores(reader, frozenset())

    def server_lost(self) -> None:
        """No reply will arrive any more."""
        self._under_way = 0
        self._line.clear()
        for reader in self._readers.values():
            self._stop_timer(reader)
            reader.state = _State.WAITING

    def server_restored(self) -> None:
        """All readers continue.  O(readers)."""
        self._channels.join_all()
        for reader in self._readers.values():
            self._process.engine.replays(reader.client.conn, True)
            self._request_page(reader)

    def _set_stores(self, reader: _Reader, stores: frozenset[bytes]) -> bool:
        """Subscribes to news of these stores.  Returns True if one of them is new."""
        if stores == reader.stores:
            return False
        added, removed = stores - reader.stores, reader.stores - stores
        for store in added:
            self._channels.join(_CHANNEL + store)
            self._by_store.setdefault(store, set()).add(reader)
        for store in removed:
            self._channels.leave(_CHANNEL + store)
            self._by_store[store].discard(reader)
            if not self._by_store[store]:
                del self._by_store[store]
        reader.stores = stores
        return bool(added)

    # ---- pages -----------------------------------------------------------------------------------------------------

    def _request_page(self, reader: _Reader) -> None:
        """Requests a page, or waits in line if too many are requested."""
        self._stop_timer(reader)
        reader.state = _State.WAITING
        if not self._servers.any_up:
            return
        if self._under_way >= self._process.settings.max_fetches:
            self._line.append(reader)
            return
        reader.state = _State.REQUESTED
        reader.again = False
        self._under_way += 1
        session = reader.client.session
        assert session.terms is not None
        queue = session.terms.window + self._process.settings.max_ready
        arguments: tuple[Argument, ...] = ("SESSION.REPLAY", session.key, "EPOCH", session.epoch)
        arguments += ("COUNT", min(self._count, 10_000), "BYTES", self._bytes, "QUEUE", min(queue, 65_535))
        self._calls.call(arguments, lambda reply: self._on_reply(reader, reply))

    def _on_reply(self, reader: _Reader, reply: Reply) -> None:
        self._under_way -= 1
        if reader.client.conn and self._readers.get(reader.client) is reader:
            if isinstance(reply, hiredis.ReplyError):
                self._on_error(reader, reply)
            else:
                self._on_page(reader, *reply)
        while self._line and self._under_way < self._process.settings.max_fetches:
            waiting = self._line.popleft()
            if waiting.state is _State.WAITING and self._readers.get(waiting.client) is waiting:
                self._request_page(waiting)

    def _on_error(self, reader: _Reader, error: hiredis.ReplyError) -> None:
        if error_code(error) in _GONE:
            self._process.engine.replays(reader.client.conn, False)
            self.forget(reader.client)
            return
        if not is_temporary(error):
            log.warning("history temporarily cannot be read", client=reader.client.client_id, error=error)
        self._pause(reader, _REFUSED_S, self._request_page)

    def _on_page(
        self, reader: _Reader, delivered: int, behind: int, _live: int, missed: int, stores: list[bytes]
    ) -> None:
        counters, client = self._process.counters, reader.client
        counters.replayed += delivered
        if missed:
            log.warning(
                "retention dropped messages before the client had read them",
                client=client.client_id,
                count=missed,
            )
        is_new = self._set_stores(reader, frozenset(stores))
        reader.empty_pages = 0 if delivered else reader.empty_pages + 1
        if reader.again:
            self._request_page(reader)
        elif not stores:
            self._process.engine.replays(client.conn, False)
            self.forget(client)
        elif is_new or behind == _BEHIND:  # news may have been missed before the subscription
            self._continue_work(reader, delivered)
        elif behind == _FULL:
            self._pause(reader, 0.0 if delivered else _FULL_S, self._request_room)
        else:
            reader.state = _State.END

    def _continue_work(self, reader: _Reader, delivered: int) -> None:
        if self._rate and delivered:
            self._pause(reader, delivered / self._rate, self._request_room)
        else:
            self._request_room(reader)

    def _request_room(self, reader: _Reader) -> None:
        self._stop_timer(reader)
        reader.state = _State.ROOM
        self._process.engine.replays(reader.client.conn, True, wants_room=True)
        self._process.wake()

    def has_room(self, client: Client) -> None:
        """The engine has room for more messages of this client."""
        reader = self._readers.get(client)
        if reader is not None and reader.state is _State.ROOM:
            self._request_page(reader)

    # ---- news ------------------------------------------------------------------------------------------------------

    def pushed(self, data: bytes) -> None:
        """Takes a push of the server.  Ignores all but news of stores."""
        if _CHANNEL not in data:
            return
        parser = hiredis.Reader()
        parser.feed(data)
        push = parser.gets()
        if len(push) != 3 or push[0] != b"message" or not push[1].startswith(_CHANNEL):
            return
        for reader in tuple(self._by_store.get(push[1].removeprefix(_CHANNEL), ())):
            if reader.state is _State.END:
                self._pause(reader, min(_MOST_S, _FIRST_S * 2 ** min(reader.empty_pages, 8)), self._request_page)

    def _pause(self, reader: _Reader, seconds: float, then: Callable[[_Reader], None]) -> None:
        self._stop_timer(reader)
        reader.state = _State.PAUSED
        reader.timer = self._process.loop.call_later(seconds, then, reader)

    @staticmethod
    def _stop_timer(reader: _Reader) -> None:
        if reader.timer is not None:
            reader.timer.cancel()
            reader.timer = None
