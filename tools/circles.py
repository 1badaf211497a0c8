"""Finds circles: files that depend on each other. No circle is allowed. Wings depend one way only.

    python tools/circles.py [--objects build/obj --objects build/core]

A Python file depends on the files that it imports, also for types alone. A C file or a header depends on the headers
that it includes. With --objects (folders of compiled files, laid out as the sources), a C file also depends on the C
files that define the functions and variables it uses, whichever header declares them. So does a header whose inline
functions or macros use them, unless it is the header of the file that defines them. Exit status 1: there is a circle; a
file uses a wing that its own may not use (`WINGS`); or two headers have one name.
"""

import argparse
import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]

Graph = dict[str, set[str]]

PACKAGES = {
    "pyclient": "pyclient",
    "bridge": "bridge",
    "console": "console",
    "pipeline": "pipeline",
    "bench": ".",
    "tools": ".",
}
"""Folders with Python files, each with the folder from which its names are imported."""

C_FOLDERS = ("src", "redis_module", "bridge/native", "bench")
C_PLACES = ("src", "redis_module")
"""Where the compiler looks for a header that does not lie beside the file."""


def _stacked(*wings: str) -> dict[str, set[str]]:
    """Wings of which each may use those before it."""
    return {wing: set(wings[:at]) for at, wing in enumerate(wings)}


BRIDGE = "bridge/holdmq_bridge"
WINGS = {
    "src": _stacked("base", "topic", "history", "mqtt", "engine"),
    "redis_module": _stacked("server", "index", "cluster", "queue", "history", "routing", "session", "channel", ""),
    BRIDGE: {
        "base": set[str](),
        "auth": {"base"},
        "process": {"base", "auth"},
        "server": {"base", "process"},
        "session": {"base", "process"},
        "sockets": {"base", "process"},
        "broker": {"base", "auth", "process", "server", "session", "sockets"},
        "monitoring": {"base", "process", "server", "broker"},
        "uplink": {"base", "process", "server", "sockets"},
        "admin": {"base", "auth", "process", "server"},
        "demo": set[str](),
        "": {"base", "auth", "process", "server", "sockets", "broker", "monitoring"},
    },
}
"""The folders of these parts, with the other folders that each may use; "" is the part's own folder."""

BELOW = {"src": set[str](), "redis_module": {"src"}, BRIDGE: {"pyclient"}}
"""What else these parts may use."""

INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)
NO_CODE = re.compile(r"""/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'""", re.DOTALL)
"""Comments, texts and characters."""
MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+\w+(.*)$", re.MULTILINE)
DIRECTIVE = re.compile(r"^[ \t]*#.*$", re.MULTILINE)
USED = re.compile(r"(?<![\w.])(?<!->)[A-Za-z_]\w*")
"""A name that is not a member of a structure."""


# --- Reading ----------------------------------------------------------------------------------------------------------


def python_files(root: Path) -> dict[str, Path]:
    """The Python files by the names under which they are imported."""
    found = {}
    for folder, origin in PACKAGES.items():
        for path in sorted((root / folder).rglob("*.py")):
            name = ".".join(path.relative_to(root / origin).with_suffix("").parts)
            found[name.removesuffix(".__init__")] = path
    return found


def imported(tree: ast.Module, name: str, files: Mapping[str, Path]) -> Iterator[str]:
    """The files that one imports, wherever in it. Names that a package hands on count as the package."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in files else node.module
        elif isinstance(node, ast.ImportFrom) and node.level:
            raise ValueError(f"{name}: a relative import; expected absolute ones")


def python_graph(root: Path) -> Graph:
    """Which Python file needs which; by paths."""
    files = python_files(root)
    graph: Graph = {}
    for name, path in files.items():
        needs = {files[one] for one in imported(ast.parse(path.read_text()), name, files) if one in files}
        graph[str(path.relative_to(root))] = {str(one.relative_to(root)) for one in needs - {path}}
    return graph


def include_graph(root: Path) -> Graph:
    """Which C file includes which header of the tree; by paths."""
    graph: Graph = {}
    for folder in C_FOLDERS:
        for path in sorted((root / folder).rglob("*.[ch]")):
            places = (path.parent, *(root / place for place in C_PLACES), root)
            graph[str(path.relative_to(root))] = {
                str(header.relative_to(root.resolve()))
                for text in INCLUDE.findall(path.read_text())
                for header in [next((p / text for p in places if (p / text).exists()), root / text).resolve()]
                if header.is_relative_to(root.resolve())
            }
    return graph


def symbols(path: Path) -> Iterator[tuple[str, str]]:
    """Kind (as nm has it) and name of the symbols of a compiled file that others can see, or that it wants."""
    listed = subprocess.run(
        ["nm", "--extern-only", path],  # noqa: S607 - that of the compiler
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for line in listed.splitlines():
        *_, kind, name = line.split()
        yield kind, name


def names_in_bodies(text: str) -> set[str]:
    """The names in the inline functions and macros of a header; not those in its structures."""
    code = NO_CODE.sub(" ", text).replace("\\\n", " ")
    names = {name for macro in MACRO.findall(code) for name in USED.findall(macro)}
    depth = 0  # of the braces since those of a function began
    before = ""
    for part in re.split(r"([{}])", DIRECTIVE.sub("", code)):
        if depth or (part == "{" and before.rstrip().endswith(")")):
            depth += {"{": 1, "}": -1}.get(part, 0)
            names.update(USED.findall(part))
        before = part
    return names


def symbol_graph(root: Path, objects: Iterable[Path]) -> Graph:
    """Which C file or header uses what a C file defines; by paths."""
    defined: dict[str, str] = {}
    used: dict[str, set[str]] = {}
    for path, source in [(p, str(p.relative_to(o).with_suffix(".c"))) for o in objects for p in sorted(o.rglob("*.o"))]:
        if not (root / source).exists() or source in used:
            continue  # of a file that is gone, or of both the module and the core for Python
        found = list(symbols(path))
        defined.update({name: source for kind, name in found if kind != "U"})
        used[source] = {name for kind, name in found if kind == "U"}
    graph = {source: {defined[name] for name in names if name in defined} - {source} for source, names in used.items()}
    for folder in C_FOLDERS if used else ():
        for path in sorted((root / folder).rglob("*.h")):
            header = path.relative_to(root)
            sources = {defined[name] for name in names_in_bodies(path.read_text()) if name in defined}
            graph[str(header)] = sources - {str(header.with_suffix(".c"))}
    return graph


def both(one: Graph, other: Graph) -> Graph:
    """The arrows of both."""
    return {name: one.get(name, set()) | other.get(name, set()) for name in (*one, *other)}


# --- Judging ----------------------------------------------------------------------------------------------------------


def circles(graph: Graph) -> list[list[str]]:
    """The groups of files of which each depends on each other, over others (Tarjan); the largest first."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        number[node] = lowest[node] = len(number)
        path.append(node)
        for other in graph.get(node, ()):
            if other not in number:
                visit(other)
                lowest[node] = min(lowest[node], lowest[other])
            elif other in path:
                lowest[node] = min(lowest[node], number[other])
        if lowest[node] == number[node]:
            group = path[path.index(node) :]
            del path[path.index(node) :]
            if len(group) > 1:
                found.append(sorted(group))

    sys.setrecursionlimit(10_000)
    for node in graph:
        if node not in number:
            visit(node)
    return sorted(found, key=len, reverse=True)


def wing_of(name: str) -> tuple[str, str]:
    """The part that a file belongs to, and its wing."""
    part = next((part for part in WINGS if name.startswith(f"{part}/")), name.partition("/")[0])
    rest = name.removeprefix(f"{part}/")
    return part, rest.partition("/")[0] if "/" in rest else ""


def is_allowed(user: tuple[str, str], used: tuple[str, str]) -> bool:
    """May a file of one wing use one of the other?"""
    part, wing = user
    if part not in WINGS:
        return True
    if used[0] != part:
        return used[0] in BELOW[part]
    wings = WINGS[part]
    return wing in wings and (used[1] == wing or used[1] in wings[wing])


def wrong_ways(graph: Graph) -> list[str]:
    """Which file uses one that its wing may not use, a sentence for each."""
    return [
        f"{name} uses {other}; expected one of a wing that it may use (WINGS)"
        for name in sorted(graph)
        for other in sorted(graph[name])
        if not is_allowed(wing_of(name), wing_of(other))
    ]


def ambiguous(root: Path) -> list[str]:
    """Headers that share a name, a sentence for each name."""
    headers = [{str(path.relative_to(root / place)) for path in (root / place).rglob("*.h")} for place in C_PLACES]
    return [f"{name} is a header of {' and of '.join(C_PLACES)}" for name in sorted(set.intersection(*headers))]


def main() -> int:
    """Prints what is wrong; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--objects", type=Path, action="append", default=[], help="a folder of compiled files")
    objects = parser.parse_args().objects
    graphs = [python_graph(REPOSITORY), both(include_graph(REPOSITORY), symbol_graph(REPOSITORY, objects))]
    found = [group for graph in graphs for group in circles(graph)]
    faults = [f"a circle of {len(group)} files: {', '.join(group)}" for group in found]
    faults += [fault for graph in graphs for fault in wrong_ways(graph)]
    faults += ambiguous(REPOSITORY)
    for fault in faults:
        print(fault)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
