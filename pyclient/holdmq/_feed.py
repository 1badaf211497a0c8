"""Distinguishes kept from live messages of a subscription, without I/O: raw pub/sub replies in, typed messages out.

A *life* is the time between a (re-)subscription and the loss of its connection. At the beginning of a life the server
hands over the messages that it has kept, as ordinary messages. To distinguish them where that is possible, the
subscription sends a PING (the *fence*) after the first confirmation. The server hands over before it answers the PING.
So a message after the answer is live, if the channel's policy hands over at most one message. A backlog may be handed
over in slices, also after the fence: then nothing is known.

Invariants:

1. `ChannelMessage.held` is False only if the message was certainly published after the life began, else None.
2. `ChannelMessage.repeat` is set at most once for each channel and life, never in the first life, never if `held` is
   False. The server hands over the last message that it *keeps*: under hold=unheard that may be older than live ones
   that were delivered since, so both the last message and the one handed over last are compared.
3. Memory: two hashes for each channel seen, at most `MAX_CHANNELS_SEEN`.
"""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

from holdmq.replies import ChannelMessage, Deliver, Text

Kind: TypeAlias = Literal["subscribe", "psubscribe", "ssubscribe"]

MAX_CHANNELS_SEEN = 4096
"""The number of channels whose last message is known, to mark repeats. Further channels have no marks."""


class _Seen(NamedTuple):
    """The state of a channel."""

    life: int  # of its last message
    last: int  # hash of that message
    handed_over: int | None  # hash of the last one that the server may have handed over


class Feed:
    """The state of one subscription."""

    def __init__(self) -> None:
        self._life = 0
        self._confirmed: set[bytes] = set()
        self._deliver: dict[bytes, Deliver] = {}
        self._fenced = False
        self._seen: OrderedDict[bytes, _Seen] = OrderedDict()

    @property
    def reconnections(self) -> int:
        """The number of resubscriptions."""
        return max(0, self._life - 1)

    @property
    def confirmed(self) -> bool:
        """Whether the server has confirmed the subscription since `begin`."""
        return bool(self._confirmed)

    @property
    def fence(self) -> str:
        """The text of this life's PING."""
        return f"holdmq-fence-{self._life}"

    def begin(self, deliver: Mapping[Text, Deliver]) -> None:
        """Begins a new life; `deliver`: the policies of the channels, as far as known."""
        self._confirmed.clear()
        self._fenced = False
        self._deliver = {_raw(channel): value for channel, value in deliver.items()}

    def confirm(self, name: Text) -> bool:
        """The server confirmed a channel or pattern. True if it is the first one of a life: time to send the fence.

        A second confirmation of the same name means that the library below has reconnected by itself: a new life.
        """
        raw = _raw(name)
        begins = not self._confirmed or raw in self._confirmed
        if begins:
            self._life += 1
            self._confirmed.clear()
            self._fenced = False
        self._confirmed.add(raw)
        return begins

    def pong(self, text: Any) -> None:
        """The answer to a PING."""
        if _raw(text) == self.fence.encode():
            self._fenced = True

    def message(self, channel: Text, data: Text, pattern: Text | None) -> ChannelMessage[Any]:
        """A message came."""
        raw = _raw(channel)
        content = hash(data)
        deliver = self._deliver.get(raw)
        live = deliver is Deliver.NONE or (deliver is Deliver.LAST and self._fenced)
        seen = self._seen.pop(raw, None)
        first = seen is None or seen.life < self._life
        # What deliver=held hands over leaves the list: it cannot come twice.
        again = first and not live and deliver is not Deliver.HELD
        repeat = again and seen is not None and content in (seen.last, seen.handed_over)
        handed_over = content if first and not live else seen.handed_over if seen else None
        self._seen[raw] = _Seen(self._life, content, handed_over)
        if len(self._seen) > MAX_CHANNELS_SEEN:
            self._seen.popitem(last=False)
        return ChannelMessage(channel, data, pattern, held=False if live else None, repeat=repeat)


def _raw(text: Any) -> bytes:
    return text.encode("utf-8", "surrogateescape") if isinstance(text, str) else bytes(text)
