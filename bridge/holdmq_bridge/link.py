"""The one connection of a bridge process to the server: commands out, replies and pushes in, in their order.

    send() ──► batch ──► socket ──► server
    on_reply(request, reply) ◄── awaited, oldest first ◄── replies ┐
    on_message(channel, payload) ◄───────────────────────── pushes ┴── socket

Commands are never awaited one by one: they gather in a batch that is written once per iteration of the event loop, or
when it is large; replies are matched by their order.  Pushes come on the same connection, so that what the server did
first arrives first.  (That order is what lets a fetch and the pushes around it be put together without a gap.)

Invariants
 1. `_awaited` holds, in the order written, what has no reply yet; batch and socket are never reordered.
 2. A lost connection forgets batch and awaited commands.  Whoever sent them is told once (on_down) and sends again
    what must not be lost, after on_up: only the owner knows which of its commands may run twice.
 3. A (un)subscription is awaited like a command; its confirmations are pushes and come in its turn.
 4. `congested` is true while too much is outstanding; then nobody should add to it.  (While the connection is down
    nothing is: owners keep their commands.)

Bounds: the owners', by `congested` (max_outstanding, max_outstanding_bytes) and one read of each client beyond it.
"""

import asyncio
import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

import hiredis

from holdmq_bridge.backoff import Backoff
from holdmq_bridge.counters import Counters
from holdmq_bridge.logs import Log
from holdmq_bridge.request import Argument, Reply, Request, error_code
from holdmq_bridge.settings import Settings
from holdmq_bridge.target import Target

_NOTHING = object()
_CHANNELS_PER_COMMAND = 1000
# Any session command that creates nothing: it fails if the module is missing or the data is still being loaded.
_PROBE = ("SESSION.LAST", "{holdmq-bridge-probe}")

log = Log("link")

# The stub of hiredis declares a tuple of one.
_pack = cast("Callable[[tuple[Argument, ...]], bytes]", hiredis.pack_command)


class LinkListener(Protocol):
    """Who hears from the link.  All are called in the event loop, none may block."""

    def on_reply(self, request: Request, reply: Reply) -> None:
        """The answer to a request, an error as a value."""

    def on_message(self, channel: bytes, payload: bytes) -> None:
        """A push on a channel that the link is subscribed to."""

    def on_chunk(self) -> None:
        """Everything of one read was handed over: the time to write to the clients."""

    def before_flush(self) -> None:
        """A batch is about to be written: the last chance to add to it."""

    def on_up(self) -> None:
        """The server is there and has loaded its data.  Nothing is subscribed yet."""

    def on_down(self) -> None:
        """The connection is lost, and all that was awaited with it."""

    def on_relief(self) -> None:
        """`congested` became false."""


class _Call:
    """A command of the link's own: its reply goes to a future."""

    __slots__ = ("future", "size")

    def __init__(self, future: asyncio.Future[Reply]) -> None:
        self.future = future
        self.size = 0


class _Subscription:
    """A SUBSCRIBE or UNSUBSCRIBE and how many confirmations it still waits for."""

    __slots__ = ("left", "size")

    def __init__(self, channels: int) -> None:
        self.left = channels
        self.size = 0


class _Wire(asyncio.Protocol):
    """The asyncio side of one TCP connection: hands everything to the link."""

    def __init__(self, link: "Link") -> None:
        self._link = link
        self.transport: asyncio.Transport | None = None
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's do not inherit from it

    def data_received(self, data: bytes) -> None:
        self._link.data_received(self, data)

    def pause_writing(self) -> None:
        self._link.write_paused(True)

    def resume_writing(self) -> None:
        self._link.write_paused(False)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.lost.done():
            self.lost.set_result(None)


class Link:
    """Keeps one RESP3 connection to the server up.  `run` connects, and connects again whenever it is lost."""

    def __init__(self, settings: Settings, counters: Counters, listener: LinkListener, name: str) -> None:
        self._settings = settings
        self._target = Target.parse(settings.redis)
        self._counters = counters
        self._listener = listener
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._backoff = Backoff(settings.retry_first_s, settings.retry_max_s, random.uniform)
        self._wire: _Wire | None = None
        self._reader = hiredis.Reader(notEnoughData=_NOTHING)
        self._awaited: deque[Request | _Call | _Subscription] = deque()
        self._awaited_bytes = 0
        self._batch: list[bytes] = []
        self._batch_bytes = 0
        self._flush_scheduled = False
        self._write_paused = False
        self._heard_at = 0.0
        self._closing = False
        self.up = False
        self.congested = False

    # ---- life ------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Runs until `close` is called or the task is cancelled."""
        while not self._closing:
            try:
                await self._connect()
            except (OSError, TimeoutError, hiredis.HiredisError, _RefusedError) as error:
                pause = self._backoff.next()
                log.warning("no connection to the server", server=self._target, error=error, again_in_s=round(pause, 3))
                self._drop()
                await asyncio.sleep(pause)
                continue
            self._backoff.reset()
            await self._watch()
            self._lost()

    async def _connect(self) -> None:
        wire = _Wire(self)
        async with asyncio.timeout(self._settings.server_timeout_s):
            await self._target.connect(lambda: wire)
            self._reader = hiredis.Reader(notEnoughData=_NOTHING)
            self._wire = wire
            self._heard_at = self._loop.time()
            await self._shake_hands(wire)
        self.up = True
        self._counters.server_connections += 1
        log.info("connected to the server", server=self._target)
        self._listener.on_up()
        self._assess()

    async def _shake_hands(self, wire: _Wire) -> None:
        hello: list[Argument] = ["HELLO", "3"]
        if self._target.password is not None:
            hello += ["AUTH", self._target.username or "default", self._target.password]
        calls = [self.call(*hello, "SETNAME", self._name)]
        if self._target.database:
            calls.append(self.call("SELECT", self._target.database))
        calls.append(self.call(*_PROBE))
        replies: asyncio.Future[Any] = asyncio.gather(*calls)
        lost: asyncio.Future[Any] = wire.lost
        await asyncio.wait([replies, lost], return_when=asyncio.FIRST_COMPLETED)
        for call in calls:
            if not call.done():
                replies.cancel()
                raise _RefusedError("it closed the connection")
            if isinstance(call.result(), hiredis.ReplyError):
                raise _RefusedError(_explain(call.result()))

    async def _watch(self) -> None:
        """Until the connection is lost; gives it up when the server owes an answer for too long."""
        wire = self._wire
        assert wire is not None
        limit = self._settings.server_timeout_s
        while not wire.lost.done():
            await asyncio.wait([wire.lost], timeout=limit / 4)
            silent = self._loop.time() - self._heard_at
            if silent > limit:
                log.warning("the server is silent", server=self._target, seconds=round(silent, 1))
                return
            if silent > limit / 4 and not self._awaited and not wire.lost.done():
                self.call("PING").add_done_callback(_consume)

    def _lost(self) -> None:
        awaited = len(self._awaited)
        self._counters.server_losses += 1
        self._drop()
        if self._closing:
            return
        log.warning("lost the server", server=self._target, commands_without_reply=awaited)
        self._listener.on_down()

    def _drop(self) -> None:
        self.up = False
        self._write_paused = False
        if self._wire is not None and self._wire.transport is not None:
            self._wire.transport.abort()
        self._wire = None
        for entry in self._awaited:
            if isinstance(entry, _Call) and not entry.future.done():
                entry.future.set_exception(_RefusedError("the connection was lost"))
                _consume(entry.future)
        self._awaited.clear()
        self._awaited_bytes = 0
        self._batch.clear()
        self._batch_bytes = 0
        self._assess()

    def close(self) -> None:
        """Ends the connection and `run`.  What has no reply yet is given up."""
        self._closing = True
        self.flush()
        if self._wire is not None and self._wire.transport is not None:
            self._wire.transport.close()

    # ---- commands --------------------------------------------------------------------------------------------------

    def send(self, request: Request) -> None:
        """Adds a request to the batch.  Only while `up`."""
        packed = _pack(request.arguments)
        request.size = len(packed)
        self._awaited.append(request)
        self._add(packed)
        self._counters.commands_sent += 1

    def call(self, *arguments: Argument) -> asyncio.Future[Reply]:
        """A command of the process itself; the future gets the reply, error replies as values."""
        call = _Call(self._loop.create_future())
        self._enqueue(call, arguments)
        return call.future

    def subscribe(self, channels: Sequence[bytes]) -> None:
        """SUBSCRIBE, in commands of a bounded size."""
        self._channels("SUBSCRIBE", channels)

    def unsubscribe(self, channels: Sequence[bytes]) -> None:
        """UNSUBSCRIBE, in commands of a bounded size."""
        self._channels("UNSUBSCRIBE", channels)

    def _channels(self, command: str, channels: Sequence[bytes]) -> None:
        for start in range(0, len(channels), _CHANNELS_PER_COMMAND):
            some = channels[start : start + _CHANNELS_PER_COMMAND]
            self._enqueue(_Subscription(len(some)), (command, *some))

    def _enqueue(self, entry: _Call | _Subscription, arguments: tuple[Argument, ...]) -> None:
        packed = _pack(arguments)
        entry.size = len(packed)
        self._awaited.append(entry)
        self._add(packed)

    def _add(self, packed: bytes) -> None:
        self._batch.append(packed)
        size = len(packed)
        self._batch_bytes += size
        self._awaited_bytes += size
        if self._batch_bytes >= self._settings.batch_bytes:
            self._write()
        elif not self._flush_scheduled:
            self.schedule_flush()

    def schedule_flush(self) -> None:
        """Sees to it that before_flush is called and the batch written in this iteration of the loop."""
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Writes the batch."""
        self._flush_scheduled = False
        if self.up:
            self._listener.before_flush()
        self._write()

    def _write(self) -> None:
        transport = None if self._wire is None else self._wire.transport
        if not self._batch or transport is None or transport.is_closing():
            return  # if it is closing, it is about to be lost with all that is awaited
        if self._awaited_bytes == self._batch_bytes:
            self._heard_at = self._loop.time()  # nothing was owed until now: the wait begins here
        data = b"".join(self._batch)
        self._batch.clear()
        self._batch_bytes = 0
        transport.write(data)
        self._assess()

    # ---- replies ---------------------------------------------------------------------------------------------------

    def data_received(self, wire: _Wire, data: bytes) -> None:
        """One read from the socket."""
        if wire is not self._wire:
            return
        self._heard_at = self._loop.time()
        self._reader.feed(data)
        try:
            self._dispatch(self._reader.gets, self._awaited)
        except (hiredis.ProtocolError, _OutOfStepError) as error:
            log.warning("the server's answer cannot be understood", server=self._target, error=error)
            if wire.transport is not None:
                wire.transport.abort()
        self._listener.on_chunk()
        if self.congested:
            self._assess()

    def _dispatch(self, gets: Callable[[], Any], awaited: deque[Request | _Call | _Subscription]) -> None:
        on_reply = self._listener.on_reply
        on_message = self._listener.on_message
        while True:
            reply = gets()
            if type(reply) is hiredis.PushNotification:
                if reply[0] == b"message":
                    self._counters.pushes_received += 1
                    on_message(reply[1], reply[2])
                else:
                    self._confirmed(reply)
                continue
            if reply is _NOTHING:
                return
            if not awaited:
                raise _OutOfStepError(f"a reply that nothing asked for: {reply!r}")
            entry = awaited.popleft()
            self._awaited_bytes -= entry.size
            if type(entry) is Request:
                on_reply(entry, reply)
            else:
                self._own_reply(entry, reply)

    def _own_reply(self, entry: Request | _Call | _Subscription, reply: Reply) -> None:
        if isinstance(entry, _Call):
            if not entry.future.done():
                entry.future.set_result(reply)
        else:  # an error in the place of confirmations: without its inboxes the process is deaf
            raise _OutOfStepError(f"the server refuses to subscribe: {reply!r}")

    def _confirmed(self, push: Sequence[Any]) -> None:
        if push[0] not in (b"subscribe", b"unsubscribe"):
            return
        entry = self._awaited[0] if self._awaited else None
        if not isinstance(entry, _Subscription):
            raise _OutOfStepError(f"a confirmation that nothing asked for: {push!r}")
        entry.left -= 1
        if entry.left == 0:
            self._awaited.popleft()
            self._awaited_bytes -= entry.size

    # ---- congestion ------------------------------------------------------------------------------------------------

    def write_paused(self, paused: bool) -> None:
        """The socket's buffer is full, or has room again."""
        self._write_paused = paused
        self._assess()

    def _assess(self) -> None:
        count, size = len(self._awaited), self._awaited_bytes
        if self.congested:  # relief at half of the bound, so that it does not flutter
            count, size = count * 2, size * 2
        congested = (
            self._write_paused or count > self._settings.max_outstanding or size > self._settings.max_outstanding_bytes
        )
        if congested != self.congested:
            self.congested = congested
            if not congested:
                self._listener.on_relief()


class _RefusedError(Exception):
    """The server cannot be used now."""


class _OutOfStepError(Exception):
    """The server's answers do not fit what was asked."""


def _explain(error: hiredis.ReplyError) -> str:
    if error_code(error) == "ERR" and "unknown command" in str(error):
        return f"the module holdmq is not loaded there ({error})"
    return str(error)


def _consume(future: asyncio.Future[Reply]) -> None:
    """Takes note of a future's outcome that nobody waits for."""
    if future.done():
        if not future.cancelled():
            future.exception()
    else:
        future.add_done_callback(_consume)
