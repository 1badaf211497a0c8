"""What a Session asks its owner to do: plain values, in order.

The Client does them, and calls the session where an answer is due.  Tests compare them.
"""

from enum import Enum
from typing import NamedTuple, TypeAlias

from hiredis import ReplyError

from holdmq_bridge.base.command import Command
from holdmq_bridge.base.reasons import Ending


class Phase(Enum):
    """Phases of a connection; session.py has the transitions."""

    NEW = 1
    AUTHENTICATING = 2
    OPENING = 3
    OPEN = 4
    ENDED = 5


class Send(NamedTuple):
    """A packet for the client."""

    data: bytes


class Authenticate(NamedTuple):
    """Credentials to check; the answer goes to `authenticated`.

    Attributes:
        size: bytes of the CONNECT, which are held until the answer.
    """

    client_id: bytes
    username: bytes | None
    password: bytes | None
    size: int


class SendCommand(NamedTuple):
    """A command for the server; its reply goes to `reply`."""

    command: Command


class Opened(NamedTuple):
    """The session is open: the engine takes over after the CONNACK."""

    connack: bytes
    resumed: bool


class ReadHistory(NamedTuple):
    """The session has, or may have, subscriptions that read history: read more for them."""


class NotGranted(NamedTuple):
    """Refused filters of a SUBSCRIBE, for log and counters.  The SUBACK informs the client.

    Attributes:
        filters: how many.
        topic_filter: the first of them.
        reason: of the first, a code of MQTT 5.0.
        detail: the server's words, if any.
    """

    filters: int
    topic_filter: bytes
    reason: int
    detail: str


class MoreWork(NamedTuple):
    """Work is left: call `continue_work` when other clients had their turn."""


class Continue(NamedTuple):
    """The packet is done: the next one may come."""


class Retry(NamedTuple):
    """The server refuses temporarily: call `resend` after a pause."""

    error: ReplyError


class End(NamedTuple):
    """Close the connection when everything is written, then call `closed`."""

    ending: Ending
    detail: str


Action: TypeAlias = (
    Send | Authenticate | SendCommand | Opened | ReadHistory | NotGranted | MoreWork | Continue | Retry | End
)
Actions: TypeAlias = list[Action]
