"""Commands of this process for its servers, each with the function that receives its reply.

    call(arguments, on_reply, link) ──► engine ──► server
    on_reply(reply)                 ◄── receive ◄── engine's REPLY event

A link is named by its number in the engine: 0 of a single server.

The engine sends publishes, acknowledgements and fetches by itself: none of them comes here.
"""

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import hiredis

from holdmq_bridge.base.command import Argument, Reply
from holdmq_bridge.process.process import Process
from holdmq_bridge.server.link import pack
from holdmq_bridge.server.servers import Servers

if TYPE_CHECKING:
    import asyncio

LOST = hiredis.ReplyError("TRYAGAIN the connection to the server was lost")
"""The reply of `ask` if the server may have executed the command."""

OnReply = Callable[[Reply], None]
OnLost = Callable[[], None]


class _Waiting(NamedTuple):
    """Who waits for a reply."""

    on_reply: OnReply
    link: int
    on_lost: OnLost | None


class Calls:
    """One for each process."""

    def __init__(self, process: Process, servers: Servers) -> None:
        self._process = process
        self._servers = servers
        self._tokens = itertools.count(1)
        self._waiting: dict[int, _Waiting] = {}

    def call(
        self, arguments: tuple[Argument, ...], on_reply: OnReply, link: int = 0, on_lost: OnLost | None = None
    ) -> None:
        """Sends a command.  Only while the link is up.  If it is lost before the reply, `on_lost` is called."""
        token = next(self._tokens)
        self._waiting[token] = _Waiting(on_reply, link, on_lost)
        self._process.engine.command(pack(arguments), token=token, link=link)
        self._process.wake()

    async def ask(self, arguments: tuple[Argument, ...], link: int) -> Reply:
        """Sends a command and waits.  Only while the link is up.  LOST if it is lost before the reply."""
        answered: asyncio.Future[Reply] = self._process.loop.create_future()

        def answer(reply: Reply) -> None:
            if not answered.done():
                answered.set_result(reply)

        self.call(arguments, answer, link, lambda: answer(LOST))
        return await answered

    def receive(self, link: int, token: int, data: bytes) -> None:
        """Hands a reply to the function that waits for it.  A refusal may say something about the server."""
        on_reply = self._waiting.pop(token).on_reply
        reader = hiredis.Reader()
        reader.feed(data)
        reply = reader.gets()
        if isinstance(reply, hiredis.ReplyError):
            self._servers.refused(link, str(reply))
        on_reply(reply)

    def server_lost(self, link: int = 0) -> None:
        """No reply will arrive any more on a link.  O(commands without a reply)."""
        lost = [waiting for waiting in self._waiting.values() if waiting.link == link]
        self._waiting = {token: waiting for token, waiting in self._waiting.items() if waiting.link != link}
        for waiting in lost:
            if waiting.on_lost is not None:
                waiting.on_lost()

    def ping(self, link: int = 0) -> bool:
        """Sends a PING unless the server owes a reply; returns whether it was sent."""
        if self._process.engine.link_outstanding(link):
            return False
        self.call(("PING",), lambda _reply: None, link)
        return True
