"""The one connection of a bridge process to the server: made, greeted, watched, made again.

    engine's commands ──► write ──► socket ──► server
    engine ◄── listener.on_bytes ◄── socket ◄── replies and pushes

What the bytes mean is the engine's affair; only the greeting (HELLO, a password, the database, a probe of the module)
is spoken here, before the engine gets its first byte.

Invariants
 1. `up` is true from the end of the greeting until the connection is lost; the listener hears of both.
 2. While up, every byte that comes goes to the engine, in order, and only what the engine made is written.
 3. A server that is silent for server_timeout_s is given up: it is asked (PING) when there is nothing else to answer.
 4. The server is a primary: its ROLE is checked before the link is up, and one that turns out to be a replica is left.
 5. While a failover is in doubt (sentinels.py) nothing is read or written.  What the old primary replied meanwhile is
    never seen, so it is not acknowledged to any client, and it is sent again to the new one.  A link comes up neither
    while a failover is in doubt nor with a server that was the primary when the connection was begun.
 6. A connection that the server closes soon counts as a failed attempt: the pauses grow until one lasts STABLE_S.
"""

import asyncio
import contextlib
import random
from typing import TYPE_CHECKING, Any, Protocol, cast

import hiredis
from redis.asyncio import Redis

from holdmq_bridge.base.backoff import Backoff
from holdmq_bridge.base.command import Argument, Reply, error_code
from holdmq_bridge.base.logs import Log
from holdmq_bridge.base.target import Target
from holdmq_bridge.process.settings import Settings
from holdmq_bridge.server.sentinels import Sentinels, shown_address

if TYPE_CHECKING:
    from collections.abc import Callable

STABLE_S = 5.0  # a connection that lasted so long was no failed attempt
_NOTHING = object()
# Any session command that creates nothing: it fails if the module is missing or the data is still being loaded.
_PROBE = ("SESSION.LAST", "{holdmq-bridge-probe}")

log = Log("link")

# The stub of hiredis declares a tuple of one.
pack = cast("Callable[[tuple[Argument, ...]], bytes]", hiredis.pack_command)


class LinkListener(Protocol):
    """Who hears from the link.  All are called in the event loop, none may block."""

    server_buffer: memoryview

    def on_bytes(self, count: int) -> bool:
        """So many bytes from the server lie in `server_buffer`; False: they make no sense."""

    def on_up(self) -> None:
        """The server is there and has loaded its data.  Nothing is subscribed yet."""

    def on_down(self) -> None:
        """The connection is lost, and all replies with it."""

    def on_primary_moved(self) -> None:
        """Sentinels told of another primary.  The link leaves the old one by itself."""

    def on_writable(self) -> None:
        """`write` may be called again."""

    def ping(self) -> bool:
        """Sends a PING unless the server owes a reply; returns whether it was sent."""


class _Wire(asyncio.BufferedProtocol):
    """The asyncio side of one connection: hands everything to the link."""

    def __init__(self, link: "Link") -> None:
        self._link = link
        self.transport: asyncio.Transport | None = None
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's do not inherit from it

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._link.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._link.received(self, nbytes)

    def pause_writing(self) -> None:
        self._link.write_paused(True)

    def resume_writing(self) -> None:
        self._link.write_paused(False)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.lost.done():
            self.lost.set_result(None)


class _Greeting:
    """The replies to the first commands.  The reply to the one at `role_at` (0 is the last) says what the server is."""

    def __init__(self, count: int, role_at: int) -> None:
        self._left = count
        self._role_at = role_at
        self._reader = hiredis.Reader(notEnoughData=_NOTHING)
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def feed(self, data: bytes) -> None:
        """Bytes; the last reply or an error among them sets `over`."""
        self._reader.feed(data)
        try:
            while not self.over.done() and (reply := self._reader.gets()) is not _NOTHING:
                self._take(reply)
        except hiredis.ProtocolError as error:
            self.over.set_exception(error)

    def _take(self, reply: Reply) -> None:
        self._left -= 1
        is_role = self._left == self._role_at
        if is_role and isinstance(reply, hiredis.ReplyError) and error_code(reply) == "NOPERM":
            log.warning("no right to call ROLE: a replica is noticed only when it refuses a write", error=reply)
        elif isinstance(reply, hiredis.ReplyError):
            self.over.set_exception(_RefusedError(_explain(reply)))
        elif is_role and reply[0] != b"master":
            self.over.set_exception(_ReplicaError("it is a replica"))
        elif not self._left:
            self.over.set_result(None)


class Link:
    """Keeps one RESP3 connection to the server up.  `run` connects, and connects again whenever it is lost."""

    def __init__(self, settings: Settings, listener: LinkListener, name: str) -> None:
        self._settings = settings
        self._target = Target.parse(settings.redis)
        self._listener = listener
        self._name = name
        self._backoff = Backoff(settings.retry_first_s, settings.retry_max_s, random.uniform)
        self._wire: _Wire | None = None
        self._greeting: _Greeting | None = None
        self._heard = False  # since the last quarter of server_timeout_s began
        self._closing = False
        self._address: tuple[str, int] | None = None  # of the primary that Sentinels named last
        self._socket_full = False
        self.in_doubt = False  # a failover was announced while the link was up: nothing is read or written
        self._is_announced = False  # a failover, whether the link is up or not
        self._moved_to: tuple[str, int] | None = None  # of the primary, while a connection is being made
        self._news = asyncio.Event()  # about the primary: no pause is waited for
        self._sentinels = (
            Sentinels(self._target.sentinels, self._target.service, self) if self._target.sentinels else None
        )
        self.buffer = listener.server_buffer
        self.up = False
        self.connections = 0
        self.losses = 0

    def client(self) -> Redis:
        """An ordinary client of the server; of all the Sentinels that are followed one is enough for it."""
        return self._target.client(None if self._sentinels is None else self._sentinels.primary)

    # ---- life ------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Runs until `close` is called or the task is cancelled."""
        if self._sentinels is None:
            await self._run()
            return
        self._sentinels.start()
        try:
            await self._run()
        finally:
            await self._sentinels.stop()

    async def _run(self) -> None:
        while not self._closing:
            self._news.clear()
            try:
                await self._connect()
            except (OSError, TimeoutError, hiredis.HiredisError, _RefusedError) as error:
                if isinstance(error, _ReplicaError) and self._sentinels is not None and self._address is not None:
                    self._sentinels.refused(self._address)
                pause = self._backoff.next()
                log.warning(
                    "cannot connect to the server", server=self._target, error=error, again_in_s=round(pause, 3)
                )
                self._drop()
                await self._rest(pause)
                continue
            began_at = asyncio.get_running_loop().time()
            await self._watch()
            lasted_s = asyncio.get_running_loop().time() - began_at
            if lasted_s >= STABLE_S:
                self._backoff.reset()
            self._lost(lasted_s)
            if lasted_s < STABLE_S and not self._closing:
                await self._rest(self._backoff.next())

    async def _rest(self, pause_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._news.wait(), pause_s)

    async def _connect(self) -> None:
        wire = _Wire(self)
        async with asyncio.timeout(self._settings.server_timeout_s):
            self._moved_to = None
            self._address = None if self._sentinels is None else await self._sentinels.primary()
            await self._target.connect(lambda: wire, self._address)
            self._wire = wire
            await self._greet(wire)
        self._check_news()
        self.up = True
        self.connections += 1
        log.info("connected to the server", server=self._target)
        self._listener.on_up()

    async def _greet(self, wire: _Wire) -> None:
        hello: tuple[Argument, ...] = ("HELLO", "3")
        if self._target.password is not None:
            hello += ("AUTH", self._target.username or "default", self._target.password)
        commands: list[tuple[Argument, ...]] = [(*hello, "SETNAME", self._name)]
        if self._target.database:
            commands.append(("SELECT", self._target.database))
        commands += [("ROLE",), _PROBE]
        self._greeting = _Greeting(len(commands), role_at=1)
        assert wire.transport is not None
        wire.transport.write(b"".join(pack(command) for command in commands))
        outcomes: list[asyncio.Future[Any]] = [self._greeting.over, wire.lost]
        await asyncio.wait(outcomes, return_when=asyncio.FIRST_COMPLETED)
        if not self._greeting.over.done():
            raise _RefusedError("it closed the connection")
        self._greeting.over.result()
        self._greeting = None

    def _check_news(self) -> None:
        """Raises _RefusedError, if what Sentinels told since this connection was begun forbids to use it."""
        if self._moved_to not in (None, self._address):
            raise _RefusedError(f"the primary is {shown_address(self._moved_to)} now")
        if self._is_announced:
            raise _RefusedError("a failover was announced")

    async def _watch(self) -> None:
        """Until the connection is lost; gives it up when the server owes an answer for too long."""
        wire = self._wire
        assert wire is not None
        limit = self._settings.server_timeout_s
        # Quarters of the limit in succession in which nothing came. They are counted and not read from the clock: a
        # process that was itself kept from running has asked nothing meanwhile, or has the answer in its socket.
        silent = 0
        while silent < 4:
            self._heard = False
            await asyncio.wait([wire.lost], timeout=limit / 4)
            if wire.lost.done():
                return
            silent = 0 if self._heard else silent + 1
            self._listener.ping()
        log.warning("the server does not answer", server=self._target, seconds=limit)

    def _lost(self, lasted_s: float) -> None:
        self.losses += 1
        self._drop()
        if self._closing:
            return
        log.warning("the connection to the server was lost", server=self._target, after_s=round(lasted_s, 3))
        self._listener.on_down()

    def _drop(self) -> None:
        self.up = False
        self._socket_full = self.in_doubt = False
        self._greeting = None
        if self._wire is not None and self._wire.transport is not None:
            self._wire.transport.abort()
        self._wire = None

    def close(self) -> None:
        """Ends the connection and `run`.  What has no reply yet is given up."""
        self._closing = True
        if self._wire is not None and self._wire.transport is not None:
            self._wire.transport.close()

    def leave(self, reason: str) -> None:
        """Gives the connection up and makes another one; nothing that is not acknowledged is lost."""
        if self.up and self._wire is not None and self._wire.transport is not None:
            log.warning("leaving the server", server=self._target, reason=reason)
            self._wire.transport.abort()

    def leave_replica(self, error: str) -> None:
        """Leaves a server that refused a write because it is a replica."""
        if error_code(error) == "READONLY":
            self.leave("it has become a replica")

    # ---- failovers -------------------------------------------------------------------------------------------------

    def primary_in_doubt(self, *, doubt: bool) -> None:
        """Holds replies and commands, or lets them go on.  A link that is not up stays so until the doubt is over."""
        self._is_announced = doubt
        if not doubt and not self.up:
            self._news.set()
        if not self.up or doubt == self.in_doubt or self._wire is None or self._wire.transport is None:
            return
        self.in_doubt = doubt
        log.info("a failover was announced" if doubt else "the failover is over", server=self._target)
        if doubt:
            self._wire.transport.pause_reading()
            return
        if not self._wire.transport.is_closing():
            self._wire.transport.resume_reading()
        self._listener.on_writable()

    def primary_moved(self, address: tuple[str, int]) -> None:
        """Leaves the old primary at once."""
        self._news.set()
        self._moved_to = address
        if address != self._address:
            self._listener.on_primary_moved()
            self.leave(f"the primary is {shown_address(address)} now")

    # ---- bytes -----------------------------------------------------------------------------------------------------

    @property
    def paused(self) -> bool:
        """Nothing can be written for now."""
        return self._socket_full or self.in_doubt

    def write(self, data: bytes) -> None:
        """Commands, in their order.  Only while `up` and not `paused`."""
        if self._wire is not None and self._wire.transport is not None and not self._wire.transport.is_closing():
            self._wire.transport.write(data)  # if it is closing, it is about to be lost with all that is owed

    def write_paused(self, paused: bool) -> None:
        """The socket's buffer is full, or has room again."""
        self._socket_full = paused
        if not self.paused and self.up:
            self._listener.on_writable()

    def received(self, wire: _Wire, count: int) -> None:
        """One read from the socket."""
        if wire is not self._wire:
            return
        self._heard = True
        if self._greeting is not None:
            self._greeting.feed(bytes(self.buffer[:count]))
        elif self.up and not self._listener.on_bytes(count):
            log.warning("the server sent an unexpected reply", server=self._target)
            if wire.transport is not None:
                wire.transport.abort()


class _RefusedError(Exception):
    """The server cannot be used now."""


class _ReplicaError(_RefusedError):
    """It is no primary."""


def _explain(error: Reply) -> str:
    if error_code(error) == "ERR" and "unknown command" in str(error):
        return f"the module holdmq is not loaded there ({error})"
    return str(error)
