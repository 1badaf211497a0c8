"""The inbox channels that this process listens to: one for each session, as long as somebody here wants it.

Two connections may want the same inbox for a moment (a takeover within the process); it is left with the last of them.
"""

from holdmq.core.engine import Engine
from holdmq_bridge.link import pack

_CHANNELS_PER_COMMAND = 1000


class Inboxes:
    """Speaks to the server through the engine; `told`: whether the server is there to be told."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._wanted: dict[bytes, int] = {}  # by how many

    def __len__(self) -> int:
        return len(self._wanted)

    def join(self, inbox: bytes, *, told: bool) -> None:
        """One more wants it."""
        self._wanted[inbox] = self._wanted.get(inbox, 0) + 1
        if told:
            self._engine.command(pack(("SUBSCRIBE", inbox)), replies=False)

    def leave(self, inbox: bytes, *, told: bool) -> None:
        """One wants it no more; nothing if nobody did."""
        wanted = self._wanted.pop(inbox, 0)
        if wanted > 1:
            self._wanted[inbox] = wanted - 1
        elif wanted and told:
            self._engine.command(pack(("UNSUBSCRIBE", inbox)), replies=False)

    def join_all(self) -> None:
        """The server is there again and knows of none.  O(inboxes)."""
        inboxes = list(self._wanted)
        for start in range(0, len(inboxes), _CHANNELS_PER_COMMAND):
            channels = inboxes[start : start + _CHANNELS_PER_COMMAND]
            self._engine.command(pack(("SUBSCRIBE", *channels)), replies=False)
