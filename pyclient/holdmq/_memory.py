"""The memory that the control groups of this process allow it (Linux)."""

import os
from pathlib import Path

SHARE = (3, 4)  # of the limit, for the data of a server: the rest is for forks, buffers and other processes


def group_limit(processes: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Returns the least limit of the control groups in bytes. None: there is none."""
    try:
        lines = processes.read_text().splitlines()
    except OSError:
        return None
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [limit for line in lines for limit in _limits(line, root) if limit < machine]  # some mean "none" by more
    return min(limits, default=None)


def _limits(line: str, root: Path) -> list[int]:
    """Of the group of one line, `number:controllers:group`, and of those that it is in."""
    controllers, _, group = line.partition(":")[2].partition(":")
    if controllers not in ("", "memory"):
        return []
    folder, name = (root / "memory", "memory.limit_in_bytes") if controllers else (root, "memory.max")
    path = folder / group.strip("/")
    found = []
    for one in (path, *path.parents):
        if one.is_relative_to(folder):
            try:
                found.append(int((one / name).read_text()))
            except (OSError, ValueError):  # no such file, or "max"
                continue
    return found


def memory_directives() -> tuple[str, ...]:
    """Lines for a new configuration: a server in a limited group refuses writes before the kernel ends it."""
    limit = group_limit()
    return () if limit is None else (f"maxmemory {limit * SHARE[0] // SHARE[1]}",)
