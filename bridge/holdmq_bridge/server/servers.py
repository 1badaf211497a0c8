"""The servers of a process, as the bridge uses them: a single one, or the nodes of a cluster.

    Bridge ── Servers ──┬── SingleServer ── Link 0
                        └── NodeLinks ───── Link 0, Link 1, ...

A link has the number that the engine knows it by.  A session has the slot of its key, and a slot has one link or none.
A single server has one slot and one link, both 0.
"""

from typing import Protocol

from redis.asyncio import Redis


class ServersListener(Protocol):
    """The owner of the links.  Called in the event loop, may not block."""

    server_buffer: memoryview

    def on_bytes(self, link: int, count: int) -> bool:
        """Takes bytes of a link from `server_buffer`; returns False if they are no reply to what was sent."""

    def on_up(self, link: int) -> None:
        """A server is there.  No channel is subscribed yet."""

    def on_down(self, link: int) -> None:
        """A link is lost: no pending reply will arrive on it."""

    def on_writable(self) -> None:
        """A link may be written again."""

    def on_slots(self) -> None:
        """Slots have other links."""

    def on_primary_moved(self) -> None:
        """Sentinels announced another primary of the single server."""

    def ping(self, link: int) -> bool:
        """Sends a PING unless the server owes a reply; returns whether it was sent."""


class Servers(Protocol):
    """A single server, or the nodes of a cluster."""

    is_cluster: bool

    def start(self) -> None:
        """Begins to connect.  Call it inside the event loop."""

    async def run(self) -> None:
        """Returns only by an error, by which nothing connects any more."""

    async def stop(self) -> None:
        """Closes all links."""

    def slot_of(self, key: bytes) -> int:
        """The slot of a key."""

    def link_at(self, slot: int) -> int | None:
        """The link of the server that has a slot; None: nobody has it, or there is no link yet."""

    def slots(self) -> list[tuple[int, int, int | None]]:
        """First and last slot of each range with one link, and that link; None: no server has it."""

    def up(self) -> list[int]:
        """The links that are up."""

    def is_up(self, link: int) -> bool:
        """Whether a link is up."""

    def addresses(self) -> dict[int, str]:
        """The links that there are, each with the address of its node; an empty one of a single server."""

    @property
    def any_up(self) -> bool:
        """Whether some link is up."""

    @property
    def all_up(self) -> bool:
        """Whether every server that there is has a link that is up."""

    @property
    def in_doubt(self) -> bool:
        """Whether a failover of the single server is announced: nothing is read or written."""

    @property
    def is_paused(self) -> bool:
        """Whether some link takes no bytes now."""

    @property
    def connections(self) -> int:
        """How many connections were made."""

    @property
    def losses(self) -> int:
        """How many connections were lost."""

    def flush(self) -> None:
        """Writes the engine's output for each link."""

    def refused(self, link: int, error: str) -> None:
        """A server refused a command.  The error may say that it is no primary, or that another one has the slot."""

    def asked(self, link: int, error: str) -> int | None:
        """The link of the node to which a slot is on its way, if a node replied ASK and that link is up."""

    def leave(self, link: int, reason: str) -> None:
        """Drops the connection and connects again.  Pending commands are lost."""

    def look(self) -> None:
        """Something says that slots may have other servers."""

    def client(self, key: bytes) -> Redis:
        """An ordinary client of the server that has a key, found anew for each of its connections."""


def link_for(servers: Servers, key: bytes) -> int | None:
    """The link of the server that has a key, if it is up."""
    link = servers.link_at(servers.slot_of(key))
    return link if link is not None and servers.is_up(link) else None
