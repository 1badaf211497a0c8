"""Builds holdmq_bridge._pump: the sockets of the bridge's clients over TCP and WebSocket, by cffi in API mode.

Like src/core_build.py, from which it has the types: the declarations are the text of pump.h between its marks.  The
engine is not linked in; its functions are handed over as pointers (holdmq_bridge.pump).  The frames of WebSockets are.
"""

import os
import runpy
from pathlib import Path

from cffi import FFI

HERE = Path(__file__).resolve().parent
SOURCES = HERE.parents[1] / "src"
LINKED = ("mqtt/websocket.c", "base/utf8.c", "base/alloc.c")  # of the core


def builder() -> FFI:
    """The extension's description; setuptools wants paths that are relative to the checkout."""
    core = runpy.run_path(str(SOURCES / "core_build.py"))
    digest = runpy.run_path(str(SOURCES / "core_digest.py"))["digest"]()
    declared = core["MARKED"].findall((HERE / "pump.h").read_text(encoding="utf-8"))
    includes = "".join(f'#include "{header}"\n' for header in (*core["HEADERS"], "pump.h"))
    linked = core["inputs"](os.path.relpath(SOURCES / name) for name in LINKED)
    ffi = FFI()
    ffi.include(core["ffibuilder"])
    ffi.cdef("".join(declared) + "static const char *const HMQ_PUMP_CORE_DIGEST;\n")
    ffi.set_source(
        "holdmq_bridge._pump",
        f'{includes}\n#define HMQ_SOURCES_DIGEST "{digest}"\n#define HMQ_PUMP_CORE_DIGEST "{digest}"\n',
        sources=[os.path.relpath(HERE / "pump.c"), *linked["sources"]],
        extra_objects=linked["extra_objects"],
        depends=[
            os.path.relpath(path)
            for path in (HERE / "pump.h", SOURCES / "engine" / "engine.h", SOURCES / "mqtt" / "websocket.h")
        ],
        include_dirs=[os.path.relpath(SOURCES), os.path.relpath(HERE)],
        extra_compile_args=["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Wshadow", "-fvisibility=hidden"],
    )
    return ffi


ffibuilder = builder()
