"""The allocator of the servers that HoldMQ starts: jemalloc where the machine has it, else glibc's, set up for servers.

Redis and Valkey are built with jemalloc on Linux; the embedded binary is not, and glibc's allocator costs it up to two
fifths more for each message that is stored (bench/RESULTS.md).
"""

import ctypes.util
import functools
import os
from collections.abc import Mapping

# For glibc's allocator (others ignore it): keep freed memory at the end of the heap. Returning it and requesting it
# again costs a tenth of a busy server's time. bench/RESULTS.md has figures for a larger cache of freed pieces.
_GLIBC = {
    "MALLOC_TRIM_THRESHOLD_": str(256 << 20),
    "MALLOC_TOP_PAD_": str(16 << 20),
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
}


@functools.cache
def jemalloc() -> str | None:
    """Returns the library's name for the loader; None if the machine has none (Debian's package: libjemalloc2)."""
    return ctypes.util.find_library("jemalloc")


def allocator_environment(given: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Returns variables to add for a server that was built with glibc's allocator.

    Args:
        given: the server's environment otherwise. Variables that it sets, such as LD_PRELOAD, are not changed.
    """
    library = jemalloc()
    variables = _GLIBC if library is None else {"LD_PRELOAD": library}
    return {name: value for name, value in variables.items() if name not in given}
