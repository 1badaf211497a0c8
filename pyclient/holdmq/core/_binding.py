"""Access to the compiled core: checks that it was built from these sources, and converts texts to bytes.

Only files of holdmq.core use this. Memory that C keeps is freed by the Python object that wraps it. Memory that C only
reads during a call is kept alive by the caller's reference.
"""

import runpy
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

__all__ = ["LIBC_ALLOCATOR", "BytesLike", "CData", "Text", "ffi", "freer", "layout", "lib", "to_bytes"]

try:
    from holdmq._core import ffi, lib
except ImportError as error:
    raise ImportError("holdmq._core is not built: run `make core` (or install holdmq with pip)") from error

Text: TypeAlias = str | bytes
BytesLike: TypeAlias = bytes | bytearray | memoryview
CData: TypeAlias = Any  # values of cffi have no useful static type


def _check_fits_sources(checkout: Path) -> None:
    """In a source checkout, refuses an extension that was built from other sources."""
    script = checkout / "src" / "core_digest.py"
    if not script.exists():
        return  # installed, not checked out
    built_from = ffi.string(lib.HMQ_SOURCES_DIGEST).decode()
    expected = runpy.run_path(str(script))["digest"]()
    if built_from != expected:
        raise ImportError(
            f"holdmq._core was built from other sources (digest {built_from[:12]}) than those in {script.parent} "
            f"(digest {expected[:12]}): run `make core`"
        )


_check_fits_sources(Path(__file__).resolve().parents[3])


# A copy, because for cffi a const struct has no address.
LIBC_ALLOCATOR: CData = ffi.new("hmq_allocator *", lib.hmq_libc_allocator)


def to_bytes(value: Text | BytesLike) -> bytes:
    """Converts a str to UTF-8. A lone surrogate becomes three bytes that every UTF-8 check refuses."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    return bytes(value)


def freer(free: Callable[[CData], None], allocator: CData) -> Callable[[CData], None]:
    """Makes a destructor for `ffi.gc` that keeps the allocator alive."""

    def run(cdata: CData, _outlives_it: CData = allocator) -> None:
        free(cdata)

    return run


def layout(type_name: str) -> struct.Struct:
    """Makes a format that unpacks a whole C struct at once (nested structs flattened, pointers as numbers).

    Reading one field by cffi costs as much as unpacking ten. cffi knows the type, so the format cannot differ from the
    header.
    """
    ctype = ffi.typeof(type_name)
    return struct.Struct("=" + _format(ctype))


def _format(ctype: CData) -> str:
    if ctype.kind == "pointer":
        return _UNSIGNED[ffi.sizeof(ctype)]
    if ctype.kind == "enum":
        return "i"
    if ctype.kind == "primitive":
        return _PRIMITIVES[ctype.cname]
    parts: list[str] = []
    at = 0
    for _name, field in ctype.fields:
        parts.append("x" * (field.offset - at) + _format(field.type))
        at = field.offset + ffi.sizeof(field.type)
    return "".join(parts) + "x" * (ffi.sizeof(ctype) - at)


_UNSIGNED = {4: "I", 8: "Q"}
_PRIMITIVES = {
    "_Bool": "?",
    "uint8_t": "B",
    "uint16_t": "H",
    "uint32_t": "I",
    "uint64_t": "Q",
    "int64_t": "q",
    "size_t": _UNSIGNED[ffi.sizeof("size_t")],
}
