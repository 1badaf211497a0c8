"""Ends connections a few at a time: many that close in the same moment delay nobody else.

    connection lost, DISCONNECT ──► has_turn(client)? ──yes──► the client ends its session now
                                           └──no──► a line ──each iteration of the loop, a few──► client.finish()

To end a session is a command for the server, a line in the log and a twentieth of a millisecond of either process.
Between two iterations the loop serves all other sockets.  The server never has more than UNANSWERED_MOST of these
commands at once, so others' commands do not wait after thousands of them.

Invariants
 1. Every client in the line has its turn: the server's replies, or its loss, continue a line that waits for them.
 2. A client's next connection finds its former one closed: the bridge calls `finish` before it opens the session again.
 3. Where few connections close, nothing waits.
"""

import asyncio
from typing import TYPE_CHECKING

from holdmq_bridge.base.logs import Log
from holdmq_bridge.base.reasons import Ending

if TYPE_CHECKING:
    from holdmq_bridge.broker.client import Client

log = Log("closings")

AT_ONCE = 8  # in one iteration of the loop: about a millisecond
UNANSWERED_MOST = 64  # commands that end sessions, at the server


class Closings:
    """One for each process."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._line: dict[Client, None] = {}  # in the order in which they have closed
        self._unanswered: set[Client] = set()
        self._left = AT_ONCE  # in this iteration
        self._turn_is_due = False
        self._is_bounded = True

    def __len__(self) -> int:
        return len(self._line)

    def __contains__(self, client: "Client") -> bool:
        return client in self._line

    def has_turn(self, client: "Client") -> bool:
        """Whether the client may end now.  If not, its `finish` is called when it has its turn."""
        if client in self._line:
            return False
        if self._is_bounded and (self._line or not self._left or not self._has_room):
            self._line[client] = None
            return False
        self._left -= 1
        self._schedule()  # the next iteration may take as many again
        return True

    def finish(self, client: "Client") -> None:
        """Ends a client of the line before its turn."""
        del self._line[client]
        try:
            client.finish()
        except Exception as error:  # noqa: BLE001 (a defect of ours must not end the others' connections)
            log.defect("defect: the client is disconnected", error, client=client.client_id)
            client.end(Ending.DEFECT)

    def finish_all(self) -> None:
        """Ends the whole line, and lets nobody wait from now on: the process ends."""
        self._is_bounded = False
        while self._line:
            self.finish(next(iter(self._line)))

    # ---- the server ------------------------------------------------------------------------------------------------

    def command_sent(self, client: "Client") -> None:
        """A command that ends the client's session is at the server."""
        self._unanswered.add(client)

    def command_answered(self, client: "Client") -> None:
        """The server has answered the command."""
        self._unanswered.discard(client)
        if self._line:
            self._schedule()

    def server_lost(self) -> None:
        """No reply will arrive any more."""
        self._unanswered.clear()
        if self._line:
            self._schedule()

    @property
    def _has_room(self) -> bool:
        return len(self._unanswered) < UNANSWERED_MOST

    # ---- turns -----------------------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        if not self._turn_is_due:
            self._turn_is_due = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._turn_is_due = False
        self._left = AT_ONCE
        while self._line and self._left and self._has_room:
            self._left -= 1
            self.finish(next(iter(self._line)))
        if self._left < AT_ONCE or (self._line and self._has_room):
            self._schedule()  # with an empty line too: the next iteration may take as many again
