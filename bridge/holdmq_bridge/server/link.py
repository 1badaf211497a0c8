"""The one connection of a bridge process to the server: connects, greets, watches, and reconnects.

    engine's commands ──► write ──► socket ──► server
    engine ◄── listener.on_bytes ◄── socket ◄── replies and pushes

The engine reads and writes the protocol.  Only the greeting is done here, before the engine gets its first byte:
HELLO, a password, the database, and a probe of the module.

Invariants
 1. `up` is true from the end of the greeting until the connection is lost.  The listener is called at both.
 2. While up, every byte goes to the engine, in order, and only the engine's output is written.
 3. A server that is silent for server_timeout_s is given up.  It gets a PING when it owes no other reply.  Time in
    doubt (5) does not count.
 4. The server is a primary outside a cluster: its HELLO and ROLE are checked before the link is up, and a server that
    becomes a replica is left.
 5. While a failover is in doubt (sentinels.py) nothing is read or written.  Replies of the old primary from that time
    are never seen, so no client gets an acknowledgement for them, and the commands are sent again to the new primary.
    The link does not come up while a failover is in doubt, or if the primary has moved since it began to connect.
 6. A connection that the server closes soon counts as a failed attempt: the pauses grow until one lasts STABLE_S.
"""

import asyncio
import contextlib
import random
from typing import TYPE_CHECKING, Any, Protocol, cast

import hiredis
from redis.asyncio import Redis

from holdmq.address import shown_address
from holdmq_bridge.base.backoff import Backoff
from holdmq_bridge.base.command import Argument, Reply, error_code
from holdmq_bridge.base.logs import Log
from holdmq_bridge.base.target import Target
from holdmq_bridge.process.settings import Settings
from holdmq_bridge.server.kind import ClusterFoundError
from holdmq_bridge.server.sentinels import Sentinels

if TYPE_CHECKING:
    from collections.abc import Callable

_TURN_BYTES = 524_288  # that one turn of the event loop takes from the server: clients are served in between
STABLE_S = 5.0  # a shorter connection counts as a failed attempt
_NOTHING = object()
# A command of the module that creates nothing: it fails if the module is missing or data is being loaded.
_PROBE = ("SESSION.LAST", "{holdmq-bridge-probe}")
# The same for a node of a cluster: it names no key, since the node has only some slots.
_NODE_PROBE = ("ROUTE.INFO",)

log = Log("link")

# The stub of hiredis declares a tuple of one.
pack = cast("Callable[[tuple[Argument, ...]], bytes]", hiredis.pack_command)


class LinkListener(Protocol):
    """The owner of the link.  Its methods are called in the event loop and may not block."""

    server_buffer: memoryview

    def on_bytes(self, count: int) -> bool:
        """Takes bytes from `server_buffer`; returns False if they are no reply to what was sent."""

    def on_up(self) -> None:
        """The server is there and has loaded its data.  No channel is subscribed yet."""

    def on_down(self) -> None:
        """The connection is lost: no pending reply will arrive."""

    def on_failed(self) -> None:
        """An attempt to connect failed.  Others follow."""

    def on_primary_moved(self) -> None:
        """Sentinels announced another primary.  The link leaves the old one by itself."""

    def on_writable(self) -> None:
        """`write` may be called again."""

    def ping(self) -> bool:
        """Sends a PING unless the server owes a reply; returns whether it was sent."""


class _Wire(asyncio.BufferedProtocol):
    """The protocol of one connection: hands everything to the link."""

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
    """Takes the replies to the greeting; `role_at`: the place of ROLE, counted from the last command, which is 0.

    A node of a cluster is refused, unless it `may_be_node`: alone it has only the sessions of its own slots, and
    publishes would miss all others.
    """

    def __init__(self, count: int, role_at: int, *, may_be_node: bool) -> None:
        self._left = count
        self._role_at = role_at
        self._may_be_node = may_be_node
        self._reader = hiredis.Reader(notEnoughData=_NOTHING)
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def feed(self, data: bytes) -> None:
        """Takes bytes.  The last reply, or an error, completes `over`."""
        self._reader.feed(data)
        try:
            while not self.over.done() and (reply := self._reader.gets()) is not _NOTHING:
                self._take(reply)
        except hiredis.ProtocolError as error:
            self.over.set_exception(error)

    def _take(self, reply: Reply) -> None:
        self._left -= 1
        is_role = self._left == self._role_at
        if isinstance(reply, dict) and reply.get(b"mode") == b"cluster" and not self._may_be_node:  # of HELLO
            self.over.set_exception(_NodeError("it is a node of a cluster; expected a server outside a cluster"))
        elif is_role and isinstance(reply, hiredis.ReplyError) and error_code(reply) == "NOPERM":
            log.warning("no right to call ROLE: a replica is noticed only when it refuses a write", error=reply)
        elif isinstance(reply, hiredis.ReplyError):
            self.over.set_exception(_RefusedError(_explained(reply)))
        elif is_role and reply[0] != b"master":
            self.over.set_exception(_ReplicaError("it is a replica"))
        elif not self._left:
            self.over.set_result(None)


class Link:
    """Keeps a RESP3 connection to the server.  `run` connects, and reconnects whenever the connection is lost."""

    def __init__(self, settings: Settings, listener: LinkListener, name: str, node: Target | None = None) -> None:
        """`node`: of a cluster, in place of the server of the settings."""
        self._settings = settings
        self._is_node = node is not None
        self._target = node or Target.parse(settings.redis)
        self._listener = listener
        self._name = name
        self._backoff = Backoff(settings.retry_first_s, settings.retry_max_s, random.uniform)
        self._wire: _Wire | None = None
        self._greeting: _Greeting | None = None
        self._taken = 0  # bytes, since the loop's last turn
        self._heard = False  # bytes, in this quarter of server_timeout_s
        self._closing = False
        self._address: tuple[str, int] | None = None  # of the primary, by Sentinels
        self._socket_full = False
        self.in_doubt = False  # a failover is announced: nothing is read or written
        self.is_announced = False  # a failover, also while the link is down
        self._moved_to: tuple[str, int] | None = None  # of the new primary, if it moves while the link connects
        self._announced = asyncio.Event()  # news about the primary: ends a pause
        self._sentinels = (
            Sentinels(self._target.sentinels, self._target.service, self, self._target.sentinel_options)
            if self._target.sentinels
            else None
        )
        self.buffer = listener.server_buffer
        self.up = False
        self.connections = 0
        self.losses = 0

    def client(self) -> Redis:
        """An ordinary client of the server.  It finds the primary by the Sentinels that are followed."""
        return self._target.client(None if self._sentinels is None else self._sentinels.primary)

    # ---- life ------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Runs until `close` is called or the task is cancelled.

        Raises:
            ClusterFoundError: the server is a node of a cluster, and Sentinels do not name it.
        """
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
            self._announced.clear()
            try:
                await self._connect()
            except (OSError, TimeoutError, hiredis.HiredisError, _RefusedError) as error:
                if isinstance(error, _ReplicaError) and self._sentinels is not None and self._address is not None:
                    self._sentinels.refused(self._address)
                if isinstance(error, _NodeError) and self._sentinels is None:
                    self._drop()
                    raise ClusterFoundError from error
                pause = self._backoff.next()
                log.warning(
                    "cannot connect to the server", server=self._target, error=error, again_in_s=round(pause, 3)
                )
                self._drop()
                self._listener.on_failed()
                await self._pause(pause)
                continue
            began_at = asyncio.get_running_loop().time()
            await self._watch()
            lasted_s = asyncio.get_running_loop().time() - began_at
            if lasted_s >= STABLE_S:
                self._backoff.reset()
            self._on_lost(lasted_s)
            if lasted_s < STABLE_S and not self._closing:
                await self._pause(self._backoff.next())

    async def _pause(self, pause_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._announced.wait(), pause_s)

    async def _connect(self) -> None:
        wire = _Wire(self)
        async with asyncio.timeout(self._settings.server_timeout_s):
            self._moved_to = None
            self._target = self._target.renewed()
            self._address = None if self._sentinels is None else await self._sentinels.primary()
            await self._target.connect(lambda: wire, self._address)
            self._wire = wire
            await self._greet(wire)
        self._check_announcements()
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
        commands += [("ROLE",), _NODE_PROBE if self._is_node else _PROBE]
        self._greeting = _Greeting(len(commands), role_at=1, may_be_node=self._is_node)
        assert wire.transport is not None
        wire.transport.write(b"".join(pack(command) for command in commands))
        outcomes: list[asyncio.Future[Any]] = [self._greeting.over, wire.lost]
        await asyncio.wait(outcomes, return_when=asyncio.FIRST_COMPLETED)
        if not self._greeting.over.done():
            raise _RefusedError("it closed the connection")
        self._greeting.over.result()
        self._greeting = None

    def _check_announcements(self) -> None:
        """Raises _RefusedError if Sentinels announced a change since this connection was begun."""
        if self._moved_to is not None and self._moved_to != self._address:
            raise _RefusedError(f"the primary is {shown_address(self._moved_to)} now")
        if self.is_announced:
            raise _RefusedError("a failover was announced")

    async def _watch(self) -> None:
        """Waits until the connection is lost, or the server is silent for too long."""
        wire = self._wire
        assert wire is not None
        limit = self._settings.server_timeout_s
        # Quarters of the limit in succession without a byte.  They are counted, not measured: a process that was itself
        # stopped has sent no PING since, or has the answer in its socket.
        silent = 0
        while silent < 4:
            self._heard = False
            await asyncio.wait([wire.lost], timeout=limit / 4)
            if wire.lost.done():
                return
            silent = 0 if self._heard or self.in_doubt else silent + 1
            self._listener.ping()
        log.warning("the server does not answer", server=self._target, seconds=limit)

    def _on_lost(self, lasted_s: float) -> None:
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
        """Ends the connection and `run`.  Pending replies are given up."""
        self._closing = True
        if self._wire is not None and self._wire.transport is not None:
            self._wire.transport.close()

    def leave(self, reason: str) -> None:
        """Drops the connection and connects again.  Pending commands are sent again."""
        if not self.up or self._wire is None or self._wire.transport is None:
            return
        if not self._wire.transport.is_closing():  # several replies may say the same
            log.warning("leaving the server", server=self._target, reason=reason)
            self._wire.transport.abort()

    def leave_replica(self, error: str) -> None:
        """Leaves a server that refused a write because it is a replica."""
        if error_code(error) == "READONLY":
            self.leave("it has become a replica")

    # ---- failovers -------------------------------------------------------------------------------------------------

    def primary_in_doubt(self, *, doubt: bool) -> None:
        """Holds replies and commands during a doubt.  A link that is down stays down until the doubt is over."""
        self.is_announced = doubt
        if not doubt and not self.up:
            self._announced.set()
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
        self._announced.set()
        self._moved_to = address
        if address != self._address:
            self._listener.on_primary_moved()
            self.leave(f"the primary is {shown_address(address)} now")

    # ---- bytes -----------------------------------------------------------------------------------------------------

    @property
    def paused(self) -> bool:
        """Whether nothing can be written now."""
        return self._socket_full or self.in_doubt

    def write(self, data: bytes) -> None:
        """Writes commands.  Only while `up` and not `paused`."""
        if self._wire is not None and self._wire.transport is not None and not self._wire.transport.is_closing():
            self._wire.transport.write(data)  # a closing connection is about to be lost

    def write_paused(self, paused: bool) -> None:
        """The socket's buffer is full, or has room again."""
        self._socket_full = paused
        if not self.paused and self.up:
            self._listener.on_writable()

    def received(self, wire: _Wire, count: int) -> None:
        """Takes bytes from the socket."""
        if wire is not self._wire:
            return
        self._heard = True
        if self._greeting is not None:
            self._greeting.feed(bytes(self.buffer[:count]))
        elif self.up and not self._listener.on_bytes(count):
            log.warning("the server sent an unexpected reply", server=self._target)
            if wire.transport is not None:
                wire.transport.abort()
        else:
            self._take_turns(wire, count)

    def _take_turns(self, wire: _Wire, count: int) -> None:
        """Reads on in the loop's next turn after _TURN_BYTES: the loop itself would read 32 buffers first."""
        if self._taken == 0:
            asyncio.get_running_loop().call_soon(self._next_turn, wire)
        self._taken += count
        if self._taken >= _TURN_BYTES and wire.transport is not None and not wire.transport.is_closing():
            wire.transport.pause_reading()

    def _next_turn(self, wire: _Wire) -> None:
        was_paused, self._taken = self._taken >= _TURN_BYTES, 0
        is_open = wire is self._wire and wire.transport is not None and not wire.transport.is_closing()
        if was_paused and is_open and not self.in_doubt and wire.transport is not None:
            wire.transport.resume_reading()


class _RefusedError(Exception):
    """The server cannot be used at present."""


class _ReplicaError(_RefusedError):
    """The server is not a primary."""


class _NodeError(_RefusedError):
    """It is a node of a cluster."""


def _explained(error: Reply) -> str:
    if error_code(error) == "ERR" and "unknown command" in str(error):
        return f"the module holdmq is not loaded there ({error})"
    return str(error)
