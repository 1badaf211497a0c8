"""Generates the synchronous client and its tests from the asyncio ones, so that the two cannot drift apart.

    python tools/generate_sync.py            writes the generated files
    python tools/generate_sync.py --check    changes nothing; exit status 1 if a generated file is not up to date

Every file of a folder `_async` becomes the file of the same name in the folder `_sync` beside it. Words are replaced,
in code as in docstrings; then ruff sorts and formats, since shorter words make shorter lines. What cannot be made by
replacing words is written twice by hand, in holdmq/_io.py.
"""

import argparse
import difflib
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
FOLDERS = (Path("pyclient/holdmq/_async"), Path("tests/client/_async"))
RUFF = Path(sysconfig.get_path("scripts")) / "ruff"

SHARED = "Threads may share it, and so may processes that fork: each process gets its own connections."

# In this order; each is a pattern over whole words.
REPLACEMENTS = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\basync (def|with|for)\b", r"\1"),
        (r"\bawait ", ""),
        (r"\b__a(enter|exit|iter|next)__\b", r"__\1__"),
        (r"\bStopAsyncIteration\b", "StopIteration"),
        (r"\bAsync(Iterator|Iterable|Generator|ContextManager)\b", r"\1"),
        (r"\bAsync(?=[A-Z]\w)", ""),
        (r"\basynccontextmanager\b", "contextmanager"),
        (r"    close = aclose\n\n", ""),
        (r"\baclose\b", "close"),
        (r"\basync_(?=\w)", ""),
        (r"\bredis\.asyncio\b", "redis"),
        (r"\bvalkey\.asyncio\b", "valkey"),
        (r"\b_async\b", "_sync"),
        (r"  # noqa: ASYNC\d+[^\n]*", ""),
        (r"The asyncio client, written by hand; [^\"]*", "The synchronous client, generated from holdmq._async."),
        (r"\b([Tt])ask(s?)\b", r"\1hread\2"),
        (r"\ban asyncio\b", "a synchronous"),
        (r"\basyncio client\b", "synchronous client"),
        (r"lets the event loop turn", "lets other threads run"),
        (r"Threads of one event loop may share it\. A process .* make its own \(`ForkedError`\)\.", SHARED),
    )
]


def synchronous(source: str, origin: Path) -> str:
    """Returns the synchronous form of a source text; `origin` is named in its first line."""
    for pattern, replacement in REPLACEMENTS:
        source = pattern.sub(replacement, source)
    return f"# Generated from {origin.as_posix()} by tools/generate_sync.py; change that file.\n{source}"


def tidied(source: str, target: Path) -> str:
    """Returns the text as ruff sorts and formats it."""
    target.parent.mkdir(exist_ok=True)  # ruff recognizes packages by their folders
    sort = ["check", "--select", "I,UP028", "--fix-only", "--unsafe-fixes", "--quiet"]
    for arguments in (sort, ["format", "--quiet"]):
        command = [str(RUFF), *arguments, "--stdin-filename", str(target), "-"]
        source = subprocess.run(
            command, input=source, capture_output=True, text=True, check=True, cwd=REPOSITORY
        ).stdout
    return source


def generated() -> dict[Path, str]:
    """Returns what each generated file has to contain."""
    files: dict[Path, str] = {}
    for folder in FOLDERS:
        for origin in sorted((REPOSITORY / folder).glob("*.py")):
            target = origin.parent.with_name("_sync") / origin.name
            files[target] = tidied(synchronous(origin.read_text(), origin.relative_to(REPOSITORY)), target)
    return files


def left_over(files: dict[Path, str]) -> list[Path]:
    """Returns files in the generated folders whose origin is gone."""
    return [path for folder in {path.parent for path in files} for path in folder.glob("*.py") if path not in files]


def main() -> int:
    """Writes or checks the generated files; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing, report what is not up to date")
    check = parser.parse_args().check
    files = generated()
    stale = left_over(files)
    for path in stale:
        print(f"{path.relative_to(REPOSITORY)}: has no origin any more")
        if not check:
            path.unlink()
    for path, text in files.items():
        present = path.read_text() if path.exists() else ""
        if present == text:
            continue
        stale.append(path)
        name = str(path.relative_to(REPOSITORY))
        if check:
            sys.stdout.writelines(difflib.unified_diff(present.splitlines(True), text.splitlines(True), name, name))
        else:
            path.write_text(text)
            print(name)
    if check and stale:
        print(f"{len(stale)} generated files are not up to date: run {Path(__file__).relative_to(REPOSITORY)}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
