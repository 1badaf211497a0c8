"""The clients of a process by the slots of their sessions, and the link that each of these slots has.

    SESSION.OPEN ──► add ──► link_of(client)          which link its commands take
    slots have other links ──► changes()              the clients that have to follow
    a link is lost, or is back ──► on_link(link)      the clients that it concerns

A single server has one slot, with all clients.

Invariants
 1. A slot is kept as long as it has a client.
 2. A slot that nobody has keeps its former link: its sessions wait there.
"""

from collections.abc import Iterator

from holdmq_bridge.broker.client import NO_SLOT, Client
from holdmq_bridge.server.servers import Servers


class _Slot:
    """A slot with clients."""

    __slots__ = ("clients", "link")

    def __init__(self, link: int | None) -> None:
        self.link = link
        self.clients: set[Client] = set()


class Seats:
    """One for each process."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self._slots: dict[int, _Slot] = {}

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, slot: int) -> bool:
        return slot in self._slots

    def add(self, client: Client) -> None:
        """The client has a session key from now on.  May be repeated."""
        if client.slot == NO_SLOT:
            client.slot = self._servers.slot_of(client.session.key)
            if client.slot not in self._slots:
                self._slots[client.slot] = _Slot(self._servers.link_at(client.slot))
            self._slots[client.slot].clients.add(client)

    def discard(self, client: Client) -> None:
        """Removes a client that has disconnected."""
        slot = self._slots.get(client.slot)
        if slot is not None:
            slot.clients.discard(client)
            if not slot.clients:
                del self._slots[client.slot]
            client.slot = NO_SLOT

    def link_of(self, client: Client) -> int | None:
        """The link for the client's session; None: nobody has its slot."""
        slot = self._slots.get(client.slot)
        return None if slot is None else slot.link

    def on_link(self, link: int) -> Iterator[Client]:
        """The clients of a link.  O(slots with clients, and the clients)."""
        for slot in self._slots.values():
            if slot.link == link:
                yield from slot.clients

    def changes(self) -> Iterator[tuple[Client, int | None]]:
        """The clients whose slots have other links now, each with its former link.  O(slots with clients)."""
        for number, slot in self._slots.items():
            link, former = self._servers.link_at(number), slot.link
            if link is not None and link != former:
                slot.link = link
                for client in slot.clients:
                    yield client, former
