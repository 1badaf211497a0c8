"""The line of a client's commands that must be executed and answered in order: publishes, subscriptions, the close.

          add()                      completed()
            │                             ▲
            ▼                             │ heads that are done
      [ R9 R8 R7 R6 | R5 R4 R3 | R2 done R1 done ]
        waiting       sent       done

All of them are on their way at once (nobody waits for a round trip); replies may be good, bad for good, or a refusal
that passes (out of memory, read-only, loading).  After such a refusal nothing more is sent until all replies are in;
then, a pause later, everything from the refused command on is sent again in its order.

Why also what succeeded behind the refused one?  Because a later message that came through must not stay the older one
for those who saw it first: the last word on a topic has to be the publisher's last word.  QoS 1 allows the second copy;
what may not be doubled is left alone (invariant 3).

Invariants
 1. Requests complete in the order in which they were added, whatever order their outcome comes in.
 2. A request that was refused, or whose reply was lost, is sent again before any that was added after it.
 3. Never sent twice: QoS 0 publishes (dropped when refused or in doubt), QoS 2 publishes (`lost` reports them, the
    connection has to end), subscriptions that were answered.

Everything is O(1) but `retry`, `lost` and `restored`, which walk the line.  Its bound is the owner's, by `len`.
"""

from collections import deque
from collections.abc import Iterator

from hiredis import ReplyError

from holdmq_bridge.request import Kind, Reply, Request, State, is_passing


class Dropped:
    """The reply of a QoS 0 publish that the server did not take, or perhaps did not take."""


DROPPED = Dropped()


class Line:
    """`outbox` is the list to which requests are added when it is their turn to be written."""

    __slots__ = ("_outbox", "_queue", "_under_way", "_up", "stalled")

    def __init__(self, outbox: list[Request]) -> None:
        self._outbox = outbox
        self._queue: deque[Request] = deque()
        self._under_way = 0
        self._up = False
        self.stalled = False

    def __len__(self) -> int:
        return len(self._queue)

    def clear(self) -> None:
        """Forgets everything.  No reply to it may come any more, or none that matters."""
        self._queue.clear()
        self.stalled = False

    def holds_publish(self, packet_id: int) -> bool:
        """Is a QoS 2 publish with this identifier in the line?  O(length): asked for repetitions only."""
        return any(request.qos == 2 and request.packet_id == packet_id for request in self._queue)

    def add(self, request: Request) -> None:
        """To the end of the line, and to the server if nothing keeps it back."""
        self._queue.append(request)
        if self._up and not self.stalled:
            self._send(request)

    def _send(self, request: Request) -> None:
        request.state = State.SENT
        self._under_way += 1
        self._outbox.append(request)

    def answered(self, request: Request, reply: Reply) -> None:
        """The reply to a request that was sent.  `stalled` is true afterwards if it was refused for now."""
        self._under_way -= 1
        if type(reply) is ReplyError and is_passing(reply):
            self.stalled = True
            if request.kind is Kind.PUBLISH and request.qos == 0:
                self._finish(request, DROPPED)
            else:
                request.state = State.WAITING
        else:
            self._finish(request, reply)

    @staticmethod
    def _finish(request: Request, reply: Reply) -> None:
        request.state = State.DONE
        request.reply = reply

    def completed(self) -> Iterator[Request]:
        """Takes what is done off the head of the line."""
        queue = self._queue
        while queue and queue[0].state is State.DONE:
            yield queue.popleft()

    def retry(self) -> bool:
        """Sends everything again from the refused request on.  False if replies are still under way: too early."""
        if self._under_way:
            return False
        self.stalled = False
        for request in self._queue:
            if request.state is State.DONE and not (request.kind is Kind.PUBLISH and request.qos == 1):
                continue
            self._send(request)
        return True

    def lost(self) -> list[Request]:
        """The server is away and with it all replies.  Returns the QoS 2 publishes in doubt."""
        self._up = False
        self._under_way = 0
        self.stalled = False
        in_doubt = []
        for request in self._queue:
            if request.kind is not Kind.PUBLISH:
                if request.state is State.SENT:
                    request.state = State.WAITING
            elif request.qos == 1:
                request.state = State.WAITING
            elif request.state is State.SENT:
                self._finish(request, DROPPED)
                if request.qos == 2:
                    in_doubt.append(request)
        return in_doubt

    def restored(self) -> None:
        """The server is there, or there again: sends what is not done, in order."""
        self._up = True
        for request in self._queue:
            if request.state is not State.DONE:
                self._send(request)
