"""A single server, with the one link 0 and the one slot 0."""

import asyncio

from redis.asyncio import Redis

from holdmq.core.engine import Engine
from holdmq_bridge.process.settings import Settings
from holdmq_bridge.server.link import Link
from holdmq_bridge.server.servers import ServersListener


class SingleServer:
    """One for each process.

    Args:
        settings: of the bridge.
        engine: whose output it writes.
        listener: the owner.
        name: of the connection.
    """

    is_cluster = False

    def __init__(self, settings: Settings, engine: Engine, listener: ServersListener, name: str) -> None:
        self._engine = engine
        self._listener = listener
        self.server_buffer = listener.server_buffer
        self._link = Link(settings, self, name)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins to connect.  Call it inside the event loop."""
        self._task = asyncio.create_task(self._link.run())

    async def run(self) -> None:
        """Returns only by an error: that of the link's task, which otherwise never ends (ClusterFoundError)."""
        assert self._task is not None
        await asyncio.shield(self._task)

    async def stop(self) -> None:
        """Closes the link."""
        self._link.close()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    # ---- facts -----------------------------------------------------------------------------------------------------

    def slot_of(self, key: bytes) -> int:
        """The slot."""
        return 0

    def link_at(self, slot: int) -> int | None:
        """The link."""
        return 0

    def slots(self) -> list[tuple[int, int, int | None]]:
        """The slot."""
        return [(0, 0, 0)]

    def up(self) -> list[int]:
        """The link, if it is up."""
        return [0] if self._link.up else []

    def is_up(self, link: int) -> bool:
        """Whether the link is up."""
        return self._link.up

    def addresses(self) -> dict[int, str]:
        """The link, with an empty address: there is nothing to tell it from."""
        return {0: ""}

    @property
    def any_up(self) -> bool:
        """Whether the link is up."""
        return self._link.up

    @property
    def all_up(self) -> bool:
        """Whether the link is up."""
        return self._link.up

    @property
    def in_doubt(self) -> bool:
        """Whether a failover is announced: nothing is read or written, or the link stays down."""
        return self._link.in_doubt or self._link.is_announced

    @property
    def is_paused(self) -> bool:
        """Whether the link takes no bytes at present."""
        return self._link.paused

    @property
    def connections(self) -> int:
        """How many connections were made."""
        return self._link.connections

    @property
    def losses(self) -> int:
        """How many connections were lost."""
        return self._link.losses

    def client(self, key: bytes) -> Redis:
        """An ordinary client of the server."""
        return self._link.client()

    # ---- to the server ---------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Writes the engine's output."""
        if self._link.up and not self._link.paused:
            commands = self._engine.server_output()
            if commands:
                self._link.write(commands)

    def refused(self, link: int, error: str) -> None:
        """A command was refused: leaves a server that has become a replica."""
        self._link.leave_replica(error)

    def asked(self, link: int, error: str) -> int | None:
        """Slots do not move."""
        return None

    def leave(self, link: int, reason: str) -> None:
        """Drops the connection and connects again.  Pending commands are sent again."""
        self._link.leave(reason)

    def look(self) -> None:
        """There are no other servers."""

    # ---- from the link ---------------------------------------------------------------------------------------------

    def on_bytes(self, count: int) -> bool:
        """Takes bytes from `server_buffer`."""
        return self._listener.on_bytes(0, count)

    def on_up(self) -> None:
        """The server is there."""
        self._listener.on_up(0)

    def on_down(self) -> None:
        """The server is lost."""
        self._listener.on_down(0)

    def on_failed(self) -> None:
        """The link logs it, and tries again."""

    def on_primary_moved(self) -> None:
        """Sentinels announced another primary."""
        self._listener.on_primary_moved()

    def on_writable(self) -> None:
        """The link may be written again."""
        self._listener.on_writable()

    def ping(self) -> bool:
        """Sends a PING unless the server owes a reply."""
        return self._listener.ping(0)
