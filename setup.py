"""Builds what is not Python; everything else is declared in pyproject.toml.

    holdmq._core, holdmq_bridge._pump    extension modules, by cffi
    holdmq/holdmq.so                     the module for the server, in wheels only: `make module` builds the checkout's

HOLDMQ_WITHOUT_CORE=1 leaves the extension modules out: `make venv` installs the packages in editable mode before they
are built, and `make core` builds them where they are imported from.  HOLDMQ_MODULE names a module that is built
already.  The compiler is CC, with CFLAGS and LDFLAGS.

An editable install names the source folders in a .pth file. For several folders setuptools would write an import hook,
which mypy and pyright do not run: they would not find the packages.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self, cast

from setuptools import setup
from setuptools.command.build_ext import build_ext
from setuptools.command.editable_wheel import editable_wheel

WITHOUT_CORE = os.environ.get("HOLDMQ_WITHOUT_CORE") == "1"

BUILT_MODULE = os.environ.get("HOLDMQ_MODULE")

EXTENSIONS = ["src/core_build.py:ffibuilder", "bridge/native/pump_build.py:ffibuilder"]
FOLDERS = [Path(__file__).parent.resolve() / name for name in ("pyclient", "bridge", "console", "pipeline")]

# As MODULE_FILES and CFLAGS_MODULE in the Makefile, but for -Werror: a wheel is built by compilers of other years.
MODULE_FOLDERS = ("redis_module", "src")
NOT_IN_MODULE = ("src/engine/*.c", "src/mqtt/*.c", "src/base/bytes.c", "src/topic/batch.c")
MODULE_FLAGS = ["-std=c11", "-Wall", "-D_GNU_SOURCE", "-O2", "-g", "-fPIC", "-fvisibility=hidden"]


def module_files() -> list[str]:
    """The sources of the module."""
    files = {str(path) for folder in MODULE_FOLDERS for path in Path(folder).rglob("*.c")}
    return sorted(files - {str(path) for pattern in NOT_IN_MODULE for path in Path().glob(pattern)})


class BuildExtensions(build_ext):
    """Builds the module beside the extension modules if a wheel is made."""

    def run(self) -> None:
        """Builds all."""
        super().run()
        if self.distribution.get_command_obj("bdist_wheel", create=False) is not None:
            self._build_module()

    def _build_module(self) -> None:
        target = Path(self.build_lib) / "holdmq" / "holdmq.so"
        self.mkpath(str(target.parent))
        if BUILT_MODULE:
            self.copy_file(BUILT_MODULE, str(target))
            return
        objects = self.compiler.compile(
            module_files(),
            output_dir=self.build_temp,
            include_dirs=["src", "redis_module"],
            extra_postargs=MODULE_FLAGS,
        )
        self.compiler.link_shared_object(objects, str(target), extra_postargs=["-Wl,-z,defs"])


class PathFile:
    """Puts the source folders on the path of whoever installs: a strategy of `editable_wheel`."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, wheel: Any, files: list[str], mapping: Mapping[str, str]) -> None:
        """Writes the file into the wheel."""
        wheel.writestr(f"__editable__.{self._name}.pth", "".join(f"{folder}\n" for folder in FOLDERS))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class EditableWheel(editable_wheel):
    """Takes the file where setuptools would take the hook; a setuptools that does not ask writes its own."""

    def _select_strategy(self, name: str, tag: str, build_lib: Any) -> Any:
        own = cast("Any", super())._select_strategy
        return own(name, tag, build_lib) if self.mode else PathFile(name)


setup(
    cffi_modules=[] if WITHOUT_CORE else EXTENSIONS,
    cmdclass={"build_ext": BuildExtensions, "editable_wheel": EditableWheel},
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
