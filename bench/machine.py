"""A description of the machine that runs a benchmark, and the number of its cores."""

import datetime
import os
import platform
import resource
from pathlib import Path
from typing import Any


def this_machine() -> dict[str, Any]:
    """Date, processor, kernel, Python and load average, as JSON can hold them."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "cpu": _cpu_model(),
        "cpus": os.cpu_count(),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "load_average_before": os.getloadavg(),
    }


def _cpu_model() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def allocator_of(pid: int, built_with: str) -> str:
    """What a server allocates with: a preloaded jemalloc, or what it was built with."""
    return "jemalloc" if "libjemalloc" in Path(f"/proc/{pid}/maps").read_text(encoding="utf-8") else built_with


def limit_cores(cores: int) -> list[int]:
    """Keeps this process, and all that it starts, on so many cores; lets it open as many files as it may."""
    usable = sorted(os.sched_getaffinity(0))[:cores]
    os.sched_setaffinity(0, usable)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return usable
