"""The allocator of the servers that HoldMQ starts: jemalloc where the machine has it, else glibc's, set up for servers.

Redis and Valkey are built with jemalloc on Linux; the embedded binary is not, and glibc's allocator costs it up to two
fifths more for each message that is stored (bench/RESULTS.md).
"""

import ctypes.util
import functools
import os
from collections.abc import Mapping

# For glibc's (others ignore it): memory that was freed at the end of the heap is kept instead of being given back and
# asked for again, a tenth of a busy server's time.  bench/RESULTS.md tells what a larger cache of freed pieces does.
_GLIBC = {
    "MALLOC_TRIM_THRESHOLD_": str(256 << 20),
    "MALLOC_TOP_PAD_": str(16 << 20),
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
}


@functools.cache
def jemalloc() -> str | None:
    """The library's name for the loader; None: the machine has none (Debian's package is libjemalloc2)."""
    return ctypes.util.find_library("jemalloc")


def allocator_environment(given: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Variables to be added for a server that was built with glibc's allocator.

    Args:
        given: what the server's environment is else; what it sets stays, a LD_PRELOAD as a whole.
    """
    library = jemalloc()
    variables = _GLIBC if library is None else {"LD_PRELOAD": library}
    return {name: value for name, value in variables.items() if name not in given}
