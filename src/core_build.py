"""Builds holdmq._core: the C core for Python, by cffi in API mode.

The declarations that cffi needs are the text of the headers between the marks "cffi-begin" and "cffi-end", so that
nothing is declared twice. setup.py takes `ffibuilder` from here; standing alone, `python src/core_build.py` compiles
the extension into pyclient/holdmq. The compiler's CFLAGS and LDFLAGS are honoured (sanitizers, for one).

HOLDMQ_OBJECTS names a folder of object files, laid out as the sources. They are linked, and the sources not compiled
again: `make core` does that, since the module has most of them, too.

To add a file to the core: write it. Every *.c in the folders beside this script is compiled; a header with the marks
goes into `HEADERS`, after the headers that it includes.
"""

import os
import re
import runpy
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from cffi import FFI

HERE = Path(__file__).resolve().parent

HEADERS = (
    "base/base.h",
    "base/hash.h",
    "base/utf8.h",
    "topic/topic.h",
    "topic/trie.h",
    "topic/packet_id.h",
    "topic/session_key.h",
    "topic/channel_key.h",
    "topic/slot.h",
    "topic/record.h",
    "topic/batch.h",
    "base/glob.h",
    "topic/policy.h",
    "topic/tbmq.h",
    "mqtt/mqtt.h",
    "mqtt/properties.h",
    "topic/packed_page.h",
    "engine/engine.h",
    "mqtt/websocket.h",
    "history/patterns.h",
    "history/learner.h",
    "history/index.h",
    "history/postings.h",
    "history/plan.h",
    "history/merge.h",
    "history/cursor.h",
    "history/ids.h",
)

# What Python adds to the headers: the digest of the sources, and Python functions that C can call back.
PYTHON_SIDE = """
static const char *const HMQ_SOURCES_DIGEST;

extern "Python" bool hmq_python_packet_id_in_use(void *, uint16_t);
extern "Python" bool hmq_python_trie_walk(void *, const char *, size_t, uint64_t, uint32_t);
"""

MARKED = re.compile(r"/\* cffi-begin \*/\n(.*?)/\* cffi-end \*/", re.DOTALL)


def declarations() -> str:
    """The marked parts of all headers, in order; a header without any is a mistake."""
    parts: list[str] = []
    for header in HEADERS:
        marked = MARKED.findall((HERE / header).read_text(encoding="utf-8"))
        if not marked:
            raise ValueError(f"{header} has no text between /* cffi-begin */ and /* cffi-end */")
        parts.extend(marked)
    return "".join(parts)


def inputs(paths: Iterable[str]) -> dict[str, Any]:
    """The arguments of an extension for these C files: they are compiled, or linked if they are compiled already."""
    objects = os.environ.get("HOLDMQ_OBJECTS")
    if not objects:
        return {"sources": list(paths), "extra_objects": []}
    relative = [os.path.relpath(path, HERE.parent) for path in paths]
    return {"sources": [], "extra_objects": [str(Path(objects, path).with_suffix(".o")) for path in relative]}


def glue_flags() -> list[str]:
    """Compiler flags for generated code alone, which converts arguments: it takes half of the time with them."""
    return ["-O1", "-g0"] if os.environ.get("HOLDMQ_OBJECTS") else []


def builder(folder: Path) -> FFI:
    """The extension's description; `folder` is how this folder is to be called: setuptools wants it relative."""
    digest = runpy.run_path(str(HERE / "core_digest.py"))["digest"]()
    includes = "".join(f'#include "{header}"\n' for header in HEADERS)
    ffi = FFI()
    ffi.cdef(declarations() + PYTHON_SIDE)
    ffi.set_source(
        "holdmq._core",
        f'{includes}\n#define HMQ_SOURCES_DIGEST "{digest}"\n',
        **inputs(str(folder / path.relative_to(HERE)) for path in sorted(HERE.rglob("*.c"))),
        depends=[
            str(folder / path.relative_to(HERE)) for path in (*sorted(HERE.rglob("*.h")), *sorted(HERE.glob("*.py")))
        ],
        include_dirs=[str(folder)],
        extra_compile_args=["-std=c11", "-Wall", "-Wextra", "-Wshadow", "-fvisibility=hidden", *glue_flags()],
    )
    return ffi


ffibuilder = builder(Path(os.path.relpath(HERE)))


def main() -> None:
    """Compiles the extension into pyclient/holdmq."""
    root = HERE.parent
    with tempfile.TemporaryDirectory() as work:
        built = Path(builder(HERE).compile(tmpdir=work))
        package = root / "pyclient" / "holdmq"
        fresh = package / "_core.new"
        shutil.copy2(built, fresh)
        for old in package.glob("_core.*.so"):
            old.unlink()  # setup.py's has another name; of two, Python would take one
        fresh.rename(package / built.name)


if __name__ == "__main__":
    main()
