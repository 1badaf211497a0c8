"""Writes what cffi generates for holdmq._core and holdmq_bridge._pump into a folder, without setuptools: for the demo.

    tools/demo_glue.py OBJECTS FOLDER

Of each NAME it writes NAME.c, and NAME.objects: the files of the folder OBJECTS that belong to it, for the linker.
"""

import os
import runpy
import sys
from pathlib import Path


def main(objects: str, folder: str) -> None:
    """Writes all four files."""
    os.environ["HOLDMQ_OBJECTS"] = objects
    core = runpy.run_path("src/core_build.py")
    pump = runpy.run_path("bridge/native/pump_build.py")
    of_core = [path.relative_to(core["HERE"]).as_posix() for path in sorted(core["HERE"].rglob("*.c"))]
    for name, builder, linked in (("_core", core, of_core), ("_pump", pump, pump["LINKED"])):
        builder["ffibuilder"].emit_c_code(str(Path(folder, f"{name}.c")))
        words = core["inputs"](f"src/{path}" for path in linked)["extra_objects"]
        Path(folder, f"{name}.objects").write_text("".join(f"{word}\n" for word in words), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
