"""Channels of servers that this process is subscribed to, as long as a part of the process needs each.

Two users may need the same channel, as two connections need one inbox for a moment when a session is taken over.  The
process unsubscribes when the last of them leaves.
"""

from holdmq.core.engine import Engine
from holdmq_bridge.server.link import pack
from holdmq_bridge.server.servers import Servers

_CHANNELS_PER_COMMAND = 1000


class Channels:
    """Subscribes and unsubscribes while a link is up.  Call `join_all` whenever a link has come up."""

    def __init__(self, engine: Engine, servers: Servers) -> None:
        self._engine = engine
        self._servers = servers
        self._by_link: dict[int, dict[bytes, int]] = {}  # how many users each channel has

    def __len__(self) -> int:
        return sum(map(len, self._by_link.values()))

    def join(self, channel: bytes, link: int = 0) -> None:
        """Adds a user of the channel on a link."""
        users = self._by_link.setdefault(link, {})
        users[channel] = users.get(channel, 0) + 1
        if self._servers.is_up(link):
            self._engine.command(pack(("SUBSCRIBE", channel)), replies=False, link=link)

    def leave(self, channel: bytes, link: int = 0) -> None:
        """Removes a user of the channel on a link.  Does nothing if it has none."""
        users = self._by_link.get(link, {})
        count = users.pop(channel, 0)
        if count > 1:
            users[channel] = count - 1
        elif count and self._servers.is_up(link):
            self._engine.command(pack(("UNSUBSCRIBE", channel)), replies=False, link=link)

    def join_all(self, link: int = 0) -> None:
        """Subscribes to every channel of a link again, on a server that knows of none.  O(channels)."""
        channels = list(self._by_link.get(link, ()))
        for start in range(0, len(channels), _CHANNELS_PER_COMMAND):
            some = channels[start : start + _CHANNELS_PER_COMMAND]
            self._engine.command(pack(("SUBSCRIBE", *some)), replies=False, link=link)
