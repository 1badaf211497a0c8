"""Feeds the sessions of this process whose subscriptions read history: SESSION.REPLAY, a page at a time.

    begin ──► ASKED ──reply: more──────► ROOM ──engine: half of the ready line is free──► ASKED
                │ ├───reply: full──────► PAUSED ──a moment later──► ROOM
                │ └───reply: all read──► END ──the store has news──► ASKED, or PAUSED if it was asked a moment ago
                └─────reply: no store──► forgotten: everything is live

Where each subscription is stands in the server; here is only whom to ask for, and when.  So a bridge may be killed at
any moment, and another one goes on.

Bounds
 1. A page fits into what the engine keeps ready for the client behind the half that may be full: it never has to fetch
    what it was just pushed.
 2. At most max_fetches pages are under way in the process; who comes later waits in line.
 3. A session that has read everything is asked for at most every _FIRST_S of news, and less often, down to every
    _MOST_S, while the news are not for it.
"""

from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING

import hiredis

from holdmq_bridge.base.command import Argument, Reply, error_code, is_passing
from holdmq_bridge.base.logs import Log
from holdmq_bridge.broker.client import Client
from holdmq_bridge.process.process import Process
from holdmq_bridge.server.calls import Calls
from holdmq_bridge.server.channels import Channels
from holdmq_bridge.server.link import Link

if TYPE_CHECKING:
    import asyncio

log = Log("replays")

_CHANNEL = b"holdmq:history:"
_FIRST_S = 0.01
_MOST_S = 0.16
_FULL_S = 0.05
_REFUSED_S = 1.0
_PAGES_A_SECOND = 10  # with a replay rate
_READ, _BEHIND, _FULL = range(3)  # second number of the reply
_GONE = ("FENCED", "NOSESSION")  # the connection is about to end, by whoever took the session


class _State(Enum):
    WAITS = 1  # in line, or for the server
    ASKED = 2
    ROOM = 3
    PAUSED = 4
    END = 5


class _Reader:
    """One client."""

    __slots__ = ("again", "client", "fruitless", "state", "stores", "timer")

    def __init__(self, client: Client) -> None:
        self.client = client
        self.state = _State.WAITS
        self.stores: frozenset[bytes] = frozenset()
        self.again = False  # something was added while a page was under way
        self.fruitless = 0  # news that were not for it, one after the other
        self.timer: asyncio.TimerHandle | None = None


class Replays:
    """One for each process."""

    def __init__(self, process: Process, link: Link, calls: Calls) -> None:
        settings = process.settings
        self._process = process
        self._link = link
        self._calls = calls
        self._readers: dict[Client, _Reader] = {}
        self._channels = Channels(process.engine, link)
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

    # ---- who reads -------------------------------------------------------------------------------------------------

    def begin(self, client: Client) -> None:
        """The session has, or may have, subscriptions that read history."""
        reader = self._readers.get(client)
        if reader is None:
            reader = self._readers[client] = _Reader(client)
            self._process.engine.replays(client.conn, True)
            self._ask(reader)
        elif reader.state is _State.ASKED:
            reader.again = True
        elif reader.state in (_State.END, _State.PAUSED):
            self._ask(reader)

    def forget(self, client: Client) -> None:
        """Its connection is over."""
        reader = self._readers.pop(client, None)
        if reader is not None:
            self._stop_timer(reader)
            self._reads(reader, frozenset())

    def server_lost(self) -> None:
        """Nothing that was asked will be answered."""
        self._under_way = 0
        self._line.clear()
        for reader in self._readers.values():
            self._stop_timer(reader)
            reader.state = _State.WAITS

    def server_restored(self) -> None:
        """All go on.  O(readers)."""
        self._channels.join_all()
        for reader in self._readers.values():
            self._process.engine.replays(reader.client.conn, True)
            self._ask(reader)

    def _reads(self, reader: _Reader, stores: frozenset[bytes]) -> bool:
        """Listens for news of these stores; True if one is new."""
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

    def _ask(self, reader: _Reader) -> None:
        """For a page; in line, if too many are under way."""
        self._stop_timer(reader)
        reader.state = _State.WAITS
        if not self._link.up:
            return
        if self._under_way >= self._process.settings.max_fetches:
            self._line.append(reader)
            return
        reader.state = _State.ASKED
        reader.again = False
        self._under_way += 1
        session = reader.client.session
        assert session.terms is not None
        queue = session.terms.window + self._process.settings.max_ready
        arguments: tuple[Argument, ...] = ("SESSION.REPLAY", session.key, "EPOCH", session.epoch)
        arguments += ("COUNT", min(self._count, 10_000), "BYTES", self._bytes, "QUEUE", min(queue, 65_535))
        self._calls.call(arguments, lambda reply: self._answered(reader, reply))

    def _answered(self, reader: _Reader, reply: Reply) -> None:
        self._under_way -= 1
        if reader.client.conn and self._readers.get(reader.client) is reader:
            if isinstance(reply, hiredis.ReplyError):
                self._failed(reader, reply)
            else:
                self._read(reader, *reply)
        while self._line and self._under_way < self._process.settings.max_fetches:
            waiting = self._line.popleft()
            if waiting.state is _State.WAITS and self._readers.get(waiting.client) is waiting:
                self._ask(waiting)

    def _failed(self, reader: _Reader, error: hiredis.ReplyError) -> None:
        if error_code(error) in _GONE:
            self._process.engine.replays(reader.client.conn, False)
            self.forget(reader.client)
            return
        if not is_passing(error):
            log.warning("history cannot be read for now", client=reader.client.session.client_id, error=error)
        self._pause(reader, _REFUSED_S, self._ask)

    def _read(self, reader: _Reader, delivered: int, behind: int, _live: int, missed: int, stores: list[bytes]) -> None:
        counters, client = self._process.counters, reader.client
        counters.replayed += delivered
        if missed:
            log.warning(
                "retention dropped messages before the client had read them",
                client=client.session.client_id,
                count=missed,
            )
        is_new = self._reads(reader, frozenset(stores))
        reader.fruitless = 0 if delivered else reader.fruitless + 1
        if reader.again:
            self._ask(reader)
        elif not stores:
            self._process.engine.replays(client.conn, False)
            self.forget(client)
        elif is_new or behind == _BEHIND:  # news may have come before it was listened for them
            self._go_on(reader, delivered)
        elif behind == _FULL:
            self._pause(reader, 0.0 if delivered else _FULL_S, self._want_room)
        else:
            reader.state = _State.END

    def _go_on(self, reader: _Reader, delivered: int) -> None:
        if self._rate and delivered:
            self._pause(reader, delivered / self._rate, self._want_room)
        else:
            self._want_room(reader)

    def _want_room(self, reader: _Reader) -> None:
        self._stop_timer(reader)
        reader.state = _State.ROOM
        self._process.engine.replays(reader.client.conn, True, wants_room=True)
        self._process.wake()

    def has_room(self, client: Client) -> None:
        """The engine takes more for this client."""
        reader = self._readers.get(client)
        if reader is not None and reader.state is _State.ROOM:
            self._ask(reader)

    # ---- news ------------------------------------------------------------------------------------------------------

    def pushed(self, data: bytes) -> None:
        """A push of the server: news of a store, or nothing of ours."""
        if _CHANNEL not in data:
            return
        parser = hiredis.Reader()
        parser.feed(data)
        push = parser.gets()
        if len(push) != 3 or push[0] != b"message" or not push[1].startswith(_CHANNEL):
            return
        for reader in tuple(self._by_store.get(push[1].removeprefix(_CHANNEL), ())):
            if reader.state is _State.END:
                self._pause(reader, min(_MOST_S, _FIRST_S * 2 ** min(reader.fruitless, 8)), self._ask)

    def _pause(self, reader: _Reader, seconds: float, then: Callable[[_Reader], None]) -> None:
        self._stop_timer(reader)
        reader.state = _State.PAUSED
        reader.timer = self._process.loop.call_later(seconds, then, reader)

    @staticmethod
    def _stop_timer(reader: _Reader) -> None:
        if reader.timer is not None:
            reader.timer.cancel()
            reader.timer = None
