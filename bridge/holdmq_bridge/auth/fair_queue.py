"""A bounded queue in which sources take turns, however many jobs each of them has.

    put(source, job) ──► known sources:  source ─► jobs, source ─► jobs …   served first ──┐
                     └─► other sources:  source ─► jobs, source ─► jobs …   then these ────┴──► pop()

Invariants
 1. Sources of a group, known or other, take turns: a single job waits for at most one job of each other source.
 2. A full queue displaces the last job of the source with the most jobs, if the new source has at least two fewer.
    A known source displaces jobs of unknown sources first, and is never displaced by them.
"""

from collections import OrderedDict, deque
from typing import Generic, TypeVar

Job = TypeVar("Job")

_Sources = OrderedDict[str, deque[Job]]


class FairQueue(Generic[Job]):
    """Jobs by source. O(1), and O(sources) where a full queue displaces one.

    Args:
        limit: most jobs that wait.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._known: _Sources[Job] = OrderedDict()
        self._others: _Sources[Job] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def put(self, source: str, job: Job, *, known: bool) -> Job | None:
        """Adds a job. Returns the job that it displaced, or the job itself if it gets no place."""
        group = self._known if known else self._others
        displaced = None
        if self._count >= self._limit:
            displaced = self._displace(source, known=known)
            if displaced is None:
                return job
        group.setdefault(source, deque()).append(job)
        self._count += 1
        return displaced

    def pop(self) -> Job | None:
        """Takes the next job: a known source before all others, one job per source in turn."""
        group = self._known or self._others
        if not group:
            return None
        source, jobs = next(iter(group.items()))
        job = jobs.popleft()
        group.move_to_end(source)
        self._forget(group, source)
        return job

    def _forget(self, group: _Sources[Job], source: str) -> None:
        self._count -= 1
        if not group[source]:
            del group[source]

    def _displace(self, source: str, *, known: bool) -> Job | None:
        group = self._known if known and not self._others else self._others
        if not group:
            return None
        most = max(group, key=lambda one: len(group[one]))
        is_same_group = known == (group is self._known)
        own = len(group.get(source, ())) if is_same_group else 0
        least = own + 2 if is_same_group else 1
        if len(group[most]) < least:
            return None
        job = group[most].pop()
        self._forget(group, most)
        return job
