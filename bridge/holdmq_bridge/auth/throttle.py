"""Slows down the guessing of passwords: a source that fails too often is refused for a while, even if it is right then.

A source is a username and the address that tries it (an IPv6 address counts as its /64), so that no client can lock a
user out from elsewhere. The first `free` failures have no consequence. Each further one doubles the time for which the
source is refused. A success, or a pause of twice the longest ban, forgets the failures.

An address has a budget of failures for all usernames: it is refused while the budget is used up, and gets it back at a
steady rate. Users who have logged in from there before are not refused: many devices may share one address. For other
users a remembered password does not help, or guesses would be free.

Bounded: at most `max_sources` are remembered. The one that failed longest ago is forgotten first. O(1) each.
"""

import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

_IPV6_SITE_BITS = 64
_MAX_DOUBLINGS = 32

Source = tuple[str, str]


def source_of(username: str, address: str) -> Source:
    """The source of a login; `address`: of the socket, empty for a Unix socket."""
    try:
        found = ipaddress.ip_address(address.split("%", 1)[0])
    except ValueError:
        return username, address
    if found.version == 6 and found.ipv4_mapped is not None:
        return username, str(found.ipv4_mapped)
    if found.version == 6:
        return username, str(ipaddress.ip_network((int(found), _IPV6_SITE_BITS), strict=False))
    return username, str(found)


@dataclass(slots=True)
class _Failures:
    count: int = 0
    at: float = 0.0
    refused_until: float = 0.0


class Known:
    """Users, with the addresses from which they have logged in. The oldest logins are forgotten first."""

    def __init__(self, max_sources: int) -> None:
        self._max_sources = max_sources
        self._sources: OrderedDict[Source, None] = OrderedDict()

    def __contains__(self, source: Source) -> bool:
        return source in self._sources

    def add(self, source: Source) -> None:
        """The source has logged in."""
        self._sources[source] = None
        self._sources.move_to_end(source)
        if len(self._sources) > self._max_sources:
            self._sources.popitem(last=False)


class AddressBudget:
    """A budget of failures for each address, for all usernames together.

    Args:
        most: at once; 0: no bound.
        per_second: how many it gets back.
        max_sources: addresses remembered; the one that failed longest ago is forgotten first.
        clock: monotonic seconds.
    """

    def __init__(
        self, *, most: int, per_second: float, max_sources: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most = most
        self._per_second = per_second
        self._max_sources = max_sources
        self._clock = clock
        self._spent: OrderedDict[str, tuple[float, float]] = OrderedDict()  # failures that count, as of when

    def refused_for(self, address: str) -> float:
        """For how many seconds the address is refused; 0: it is not. An empty address never is."""
        spent = self._now_spent(address)
        return (spent - self._most + 1) / self._per_second if self._most and address and spent > self._most - 1 else 0.0

    def failed(self, address: str) -> None:
        """A login from the address has failed."""
        self._spent[address] = (self._now_spent(address) + 1.0, self._clock())
        self._spent.move_to_end(address)
        if len(self._spent) > self._max_sources:
            self._spent.popitem(last=False)

    def _now_spent(self, address: str) -> float:
        spent, at = self._spent.get(address, (0.0, 0.0))
        return max(0.0, spent - (self._clock() - at) * self._per_second)


class Throttle:
    """Counts failures.

    Args:
        free: failures without a consequence.
        first_s: the first ban.
        longest_s: the longest ban.
        max_sources: most sources that are remembered.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        *,
        free: int,
        first_s: float,
        longest_s: float,
        max_sources: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._free = free
        self._first_s = first_s
        self._longest_s = longest_s
        self._max_sources = max_sources
        self._clock = clock
        self._sources: OrderedDict[Source, _Failures] = OrderedDict()

    def refused_for(self, source: Source) -> float:
        """For how many seconds the source is refused; 0: it is not refused."""
        known = self._sources.get(source)
        return max(0.0, known.refused_until - self._clock()) if known is not None else 0.0

    def failed(self, source: Source) -> None:
        """A login has failed."""
        now = self._clock()
        known = self._sources.pop(source, None)
        if known is None or now - known.at > 2 * self._longest_s:
            known = _Failures()
        known.count += 1
        known.at = now
        beyond = known.count - self._free
        if beyond > 0:
            known.refused_until = now + min(self._longest_s, self._first_s * 2 ** min(beyond - 1, _MAX_DOUBLINGS))
        while len(self._sources) >= self._max_sources:
            self._sources.popitem(last=False)
        self._sources[source] = known

    def succeeded(self, source: Source) -> None:
        """A login has succeeded."""
        self._sources.pop(source, None)
