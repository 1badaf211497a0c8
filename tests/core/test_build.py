"""How the core is built for Python: nothing declared twice, nothing exported, nothing stale, nothing untested."""

import doctest
import importlib
import pkgutil
import re
import runpy
import shutil
import subprocess
from pathlib import Path

import pytest

import holdmq
from holdmq import _core, core
from holdmq.core import _binding

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "src"
MODULES = sorted(name for _, name, _ in pkgutil.walk_packages(core.__path__, "holdmq.core."))


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A source checkout of its own, with the sources that the running extension was built from."""
    shutil.copytree(SOURCES, tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def test_an_extension_that_fits_its_sources_is_accepted(checkout: Path) -> None:
    _binding._check_fits_sources(checkout)


@pytest.mark.parametrize("changed", ["topic/trie.h", "topic/trie.c", "core_build.py"])
def test_an_extension_built_from_other_sources_is_refused(checkout: Path, changed: str) -> None:
    with (checkout / "src" / changed).open("a") as source:
        source.write("\n")
    with pytest.raises(ImportError, match=r"was built from other sources \(digest \w{12}\) than those in .*make core"):
        _binding._check_fits_sources(checkout)


def test_an_installed_extension_needs_no_sources(tmp_path: Path) -> None:
    _binding._check_fits_sources(tmp_path)


def test_a_new_file_changes_the_digest(checkout: Path) -> None:
    before = runpy.run_path(str(checkout / "src" / "core_digest.py"))["digest"]()
    (checkout / "src" / "base" / "new.c").write_text("")
    assert runpy.run_path(str(checkout / "src" / "core_digest.py"))["digest"]() != before


def test_every_header_with_marks_is_handed_to_cffi() -> None:
    marked = {str(path.relative_to(SOURCES)) for path in SOURCES.rglob("*.h") if "/* cffi-begin */" in path.read_text()}
    assert set(runpy.run_path(str(SOURCES / "core_build.py"))["HEADERS"]) == marked


def test_the_extension_exports_its_entry_point_only() -> None:
    listing = subprocess.run(
        ["nm", "--dynamic", "--defined-only", "--format=posix", _core.__file__],  # noqa: S607 - from the binutils that gcc needs
        check=True,
        capture_output=True,
        text=True,
    )
    names = {line.split()[0] for line in listing.stdout.splitlines()}
    assert {name for name in names if not name.startswith("_")} == {"PyInit__core"}


def test_every_function_of_the_core_is_called_by_a_test_or_by_what_is_tested() -> None:
    declared = {name for name in dir(_core.lib) if name.startswith("hmq_") and not name.startswith("hmq_python_")}
    files = [*Path(__file__).parent.rglob("*.py"), *Path(core.__file__).parent.glob("*.py")]
    text = "\n".join(path.read_text() for path in files)
    assert declared - set(re.findall(r"\blib\.(hmq_\w+)", text)) == set()


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_the_docstrings_are_true(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_everything_public_is_reached_from_the_package() -> None:
    for name in MODULES:
        module = importlib.import_module(name)
        if "._" not in name and not name.endswith((".mqtt", ".engine", ".batch", ".websocket")):
            assert set(module.__all__) <= set(core.__all__)
    assert all(hasattr(core, name) for name in core.__all__)
    assert holdmq.core is core
