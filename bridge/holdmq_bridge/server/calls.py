"""Commands of this process for its servers, each with the function that receives its reply.

    call(arguments, on_reply, link) ──► engine ──► server
    on_reply(reply)                 ◄── receive ◄── engine's REPLY event

A link is named by its number in the engine: 0 of a single server.

The engine sends publishes, acknowledgements and fetches by itself: none of them comes here.
"""

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING

import hiredis

from holdmq_bridge.base.command import Argument, Reply
from holdmq_bridge.process.process import Process
from holdmq_bridge.server.link import Link, pack

if TYPE_CHECKING:
    import asyncio

OnReply = Callable[[Reply], None]


class Calls:
    """One for each process."""

    def __init__(self, process: Process, link: Link) -> None:
        self._process = process
        self._link = link
        self._tokens = itertools.count(1)
        self._on_reply: dict[int, tuple[OnReply, int]] = {}  # with the link
        self._asked: dict[asyncio.Future[Reply], int] = {}  # the same for `ask`

    def call(self, arguments: tuple[Argument, ...], on_reply: OnReply, link: int = 0) -> None:
        """Sends a command.  Only while the link is up.  If the server is lost before the reply, nothing is called."""
        token = next(self._tokens)
        self._on_reply[token] = on_reply, link
        self._process.engine.command(pack(arguments), token=token, link=link)
        self._process.wake()

    async def ask(self, arguments: tuple[Argument, ...], link: int) -> Reply:
        """Sends a command and waits.  Only while the link is up.  TRYAGAIN if it is lost before the reply."""
        answered: asyncio.Future[Reply] = self._process.loop.create_future()
        self._asked[answered] = link
        self.call(arguments, lambda reply: None if answered.done() else answered.set_result(reply), link)
        try:
            return await answered
        finally:
            del self._asked[answered]

    def receive(self, token: int, data: bytes) -> None:
        """Hands a reply to the function that waits for it.  Leaves a server that has become a replica."""
        on_reply, _ = self._on_reply.pop(token)
        reader = hiredis.Reader()
        reader.feed(data)
        reply = reader.gets()
        if isinstance(reply, hiredis.ReplyError):
            self._link.leave_replica(str(reply))
        on_reply(reply)

    def server_lost(self, link: int = 0) -> None:
        """No reply will arrive any more on a link.  O(commands without a reply)."""
        self._on_reply = {token: waiting for token, waiting in self._on_reply.items() if waiting[1] != link}
        for answered, asked in self._asked.items():
            if asked == link and not answered.done():
                answered.set_result(hiredis.ReplyError("TRYAGAIN the connection to the server was lost"))

    def ping(self) -> bool:
        """Sends a PING unless the server owes a reply; returns whether it was sent."""
        if self._process.engine.outstanding:
            return False
        self.call(("PING",), lambda _reply: None)
        return True
