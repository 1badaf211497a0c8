"""Channels of the server that this process is subscribed to, as long as a part of the process needs each.

Two users may need the same channel, as two connections need one inbox for a moment when a session is taken over.  The
process unsubscribes when the last of them leaves.
"""

from holdmq.core.engine import Engine
from holdmq_bridge.server.link import Link, pack

_CHANNELS_PER_COMMAND = 1000


class Channels:
    """Subscribes and unsubscribes while the link is up.  Call `join_all` whenever the link has come up."""

    def __init__(self, engine: Engine, link: Link) -> None:
        self._engine = engine
        self._link = link
        self._users: dict[bytes, int] = {}  # how many each channel has

    def __len__(self) -> int:
        return len(self._users)

    def join(self, channel: bytes) -> None:
        """Adds a user of the channel."""
        self._users[channel] = self._users.get(channel, 0) + 1
        if self._link.up:
            self._engine.command(pack(("SUBSCRIBE", channel)), replies=False)

    def leave(self, channel: bytes) -> None:
        """Removes a user of the channel.  Does nothing if it has none."""
        users = self._users.pop(channel, 0)
        if users > 1:
            self._users[channel] = users - 1
        elif users and self._link.up:
            self._engine.command(pack(("UNSUBSCRIBE", channel)), replies=False)

    def join_all(self) -> None:
        """Subscribes to every channel again on a server that knows of none.  O(channels)."""
        channels = list(self._users)
        for start in range(0, len(channels), _CHANNELS_PER_COMMAND):
            some = channels[start : start + _CHANNELS_PER_COMMAND]
            self._engine.command(pack(("SUBSCRIBE", *some)), replies=False)
