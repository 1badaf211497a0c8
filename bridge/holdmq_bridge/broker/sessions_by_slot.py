"""The sessions of a process by their slots, and the link that each of these slots has.

    SESSION.OPEN ──► add ──► link_of(session)         which link its commands take
    slots have other links ──► changes()              the sessions that have to follow
    a link is lost, or is back ──► on_link(link)      the sessions that it concerns

A session is that of a client, or in a cluster one of its members of groups.  A single server has one slot, with all of
them.

Invariants
 1. A slot is kept as long as it has a session.
 2. A slot that nobody has keeps its former link: its sessions wait there.
"""

from collections.abc import Iterator
from typing import Protocol

from holdmq_bridge.server.servers import Servers

NO_SLOT = -1
"""Of a session without a key."""


class PlacedSession(Protocol):
    """A client with its session, or a member of a group.

    Attributes:
        conn: of the engine; 0: none.
        inbox_link: on which the process is subscribed to the inbox of the session; None: on none.
        slot: of the session, once it has a key; NO_SLOT before.
    """

    conn: int
    inbox_link: int | None
    slot: int

    @property
    def key(self) -> bytes:
        """Of the session."""

    @property
    def inbox(self) -> bytes:
        """Of the session."""

    @property
    def is_open(self) -> bool:
        """Whether the engine has the session."""

    def server_lost(self) -> None:
        """No reply will arrive any more."""

    def server_restored(self) -> None:
        """The server is back."""


class _Slot:
    """A slot with sessions."""

    __slots__ = ("link", "sessions")

    def __init__(self, link: int | None) -> None:
        self.link = link
        self.sessions: set[PlacedSession] = set()


class SessionsBySlot:
    """One for each process."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self._slots: dict[int, _Slot] = {}

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, slot: int) -> bool:
        return slot in self._slots

    def add(self, session: PlacedSession) -> None:
        """The session has a key from now on.  May be repeated."""
        if session.slot == NO_SLOT:
            session.slot = self._servers.slot_of(session.key)
            if session.slot not in self._slots:
                self._slots[session.slot] = _Slot(self._servers.link_at(session.slot))
            self._slots[session.slot].sessions.add(session)

    def discard(self, session: PlacedSession) -> None:
        """Removes a session that has ended here."""
        slot = self._slots.get(session.slot)
        if slot is not None:
            slot.sessions.discard(session)
            if not slot.sessions:
                del self._slots[session.slot]
            session.slot = NO_SLOT

    def link_of(self, session: PlacedSession) -> int | None:
        """The link for the session; None: nobody has its slot."""
        slot = self._slots.get(session.slot)
        return None if slot is None else slot.link

    def on_link(self, link: int) -> Iterator[PlacedSession]:
        """The sessions of a link.  O(slots with sessions, and the sessions)."""
        for slot in self._slots.values():
            if slot.link == link:
                yield from slot.sessions

    def changes(self) -> Iterator[tuple[PlacedSession, int | None]]:
        """The sessions whose slots have other links now, each with its former link.  O(slots with sessions)."""
        for number, slot in self._slots.items():
            link, former = self._servers.link_at(number), slot.link
            if link is not None and link != former:
                slot.link = link
                for session in slot.sessions:
                    yield session, former
