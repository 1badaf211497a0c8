"""Steps as a text that a person can read and change: one command a line, the connection first.

# a comment
0 SESSION.ADD %7Bc1%7D LIMIT 1 x        bytes that are no letters or digits are percent-encoded
2 PUBLISH ch @1048576*B                 long repetitions
1 SET a ''                              an empty argument
--                                      look at the server's health here
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from urllib.parse import quote_from_bytes, unquote_to_bytes

from tests.fuzz.commands import Step

LOOK = "--"
REPEATED_FROM = 256
LONGEST_UNIT = 8


def write(path: Path, batches: Iterable[Sequence[Step]], comment: str) -> None:
    """Write batches; a comment may have several lines."""
    lines = [f"# {line}" for line in comment.splitlines()]
    for batch in batches:
        lines += [" ".join([str(connection), *map(_shown, command)]) for connection, command in batch]
        lines.append(LOOK)
    path.write_text("\n".join(lines) + "\n")


def read(path: Path) -> list[list[Step]]:
    """Read what `write` wrote.

    Raises:
        ValueError: a line is no command; the text names it.
    """
    return [list(batch) for batch in _batches(path)]


def _batches(path: Path) -> Iterator[list[Step]]:
    batch: list[Step] = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line == LOOK:
            yield batch
            batch = []
        elif line and not line.startswith("#"):
            connection, *arguments = line.split(" ")
            if not connection.isdigit() or not arguments:
                raise ValueError(f"{path}:{number}: a connection's number and a command expected: {line[:100]!r}")
            batch.append((int(connection), tuple(map(_meant, arguments))))
    if batch:
        yield batch


def _shown(argument: bytes) -> str:
    if not argument:
        return "''"
    if len(argument) >= REPEATED_FROM:
        for size in range(1, LONGEST_UNIT + 1):
            unit, rest = argument[:size], len(argument) % size
            if not rest and unit * (len(argument) // size) == argument:
                return f"@{len(argument) // size}*{quote_from_bytes(unit, safe='')}"
    return quote_from_bytes(argument, safe="/:{}+$#=,;()[]?!<>")


def _meant(text: str) -> bytes:
    if text == "''":
        return b""
    if text.startswith("@"):
        count, unit = text[1:].split("*", 1)
        return unquote_to_bytes(unit) * int(count)
    return unquote_to_bytes(text)
