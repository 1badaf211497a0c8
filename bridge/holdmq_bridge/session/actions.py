"""What a Session wants done: plain values, in the order in which they are to be done.

Whoever owns the socket does them (client.py) and answers where an answer is due; tests compare them.
"""

from enum import Enum
from typing import NamedTuple, TypeAlias

from hiredis import ReplyError

from holdmq_bridge.base.command import Command
from holdmq_bridge.base.reasons import Ending


class Phase(Enum):
    """Where the connection is in its life."""

    NEW = 1
    ASKING = 2
    OPENING = 3
    OPEN = 4
    ENDED = 5


class Send(NamedTuple):
    """A packet for the client."""

    data: bytes


class Authenticate(NamedTuple):
    """Who says what; the answer goes to `authenticated`.

    Attributes:
        size: of the CONNECT in bytes, all of which may be held until it is answered.
    """

    client_id: bytes
    username: bytes | None
    password: bytes | None
    size: int


class Tell(NamedTuple):
    """A command for the server; the answer goes to `reply`."""

    command: Command


class Opened(NamedTuple):
    """The session is open: the engine may begin, behind the CONNACK."""

    connack: bytes
    resumed: bool


class ReadHistory(NamedTuple):
    """The session has, or may have, subscriptions that read history: it is to be read on for them."""


class NotGranted(NamedTuple):
    """Filters of a SUBSCRIBE that are refused: for the operator, the client is told in the SUBACK.

    Attributes:
        filters: how many.
        topic_filter: the first of them.
        reason: for it, a code of MQTT 5.0.
        detail: what the server said, or nothing.
    """

    filters: int
    topic_filter: bytes
    reason: int
    detail: str


class Later(NamedTuple):
    """There is more to be computed: `go_on` is to be called once others have had their turn."""


class Continue(NamedTuple):
    """The packet is dealt with."""


class Retry(NamedTuple):
    """The server refuses for now."""

    error: ReplyError


class End(NamedTuple):
    """The connection is over, once everything that was to be sent is written."""

    ending: Ending
    detail: str


Action: TypeAlias = Send | Authenticate | Tell | Opened | ReadHistory | NotGranted | Later | Continue | Retry | End
Actions: TypeAlias = list[Action]
