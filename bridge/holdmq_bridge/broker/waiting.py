"""A line of clients that connect too fast: their addresses take turns, and no address takes all places.

    put(address, who, what) ──► address ─► who, who …   ──► turn() names an address, pop(address) takes its first client
                                address ─► who …

Invariants
 1. Every operation is O(1), however many wait.
 2. An address that has more than a twentieth of all places leaves a quarter of them to others.
 3. `drop` removes a client at once: the line keeps nothing of a client that has gone.
"""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

Who = TypeVar("Who", bound=Hashable)
What = TypeVar("What")


class Line(Generic[Who, What]):
    """Waiting clients by address.

    Args:
        limit: most clients that wait, at least 1.
        per_address: most clients of one address; 0: no bound.
    """

    def __init__(self, limit: int, per_address: int = 0) -> None:
        self._limit = max(1, limit)
        self._reserved = self._limit // 4
        self._modest = max(1, self._limit // 20)
        self._per_address = per_address
        self._lanes: OrderedDict[str, OrderedDict[Who, What]] = OrderedDict()
        self._address_of: dict[Who, str] = {}

    def __len__(self) -> int:
        return len(self._address_of)

    @property
    def addresses(self) -> int:
        """The number of addresses with waiting clients."""
        return len(self._lanes)

    def put(self, address: str, who: Who, what: What) -> bool:
        """Adds a client; False: there is no place for it."""
        own, free = len(self._lanes.get(address, ())), self._limit - len(self)
        if free <= (0 if own < self._modest else self._reserved) or (self._per_address and own >= self._per_address):
            return False
        self._lanes.setdefault(address, OrderedDict())[who] = what
        self._address_of[who] = address
        return True

    def turn(self) -> str:
        """The address whose turn it is.  Each call moves on to the next one.  Only while the line is not empty."""
        address = next(iter(self._lanes))
        self._lanes.move_to_end(address)
        return address

    def pop(self, address: str) -> tuple[Who, What]:
        """Takes the first client of an address that has one."""
        who, what = self._lanes[address].popitem(last=False)
        self._forget(address, who)
        return who, what

    def drop(self, who: Who) -> None:
        """Removes a client, if it is in line."""
        address = self._address_of.get(who)
        if address is not None:
            del self._lanes[address][who]
            self._forget(address, who)

    def _forget(self, address: str, who: Who) -> None:
        del self._address_of[who]
        if not self._lanes[address]:
            del self._lanes[address]
