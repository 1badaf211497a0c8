"""The parts of docs/python.md: blocks that run one behind the other, and programs that stand alone."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "python.md"
DEFAULT_URL = "redis://127.0.0.1:6379"

_BLOCK = re.compile(r"^```python(?: (\w+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks() -> list[str]:
    """The blocks that run one behind the other."""
    return [text for name, text in _BLOCK.findall(PAGE.read_text()) if not name]


def programs() -> dict[str, str]:
    """The programs that stand alone, by name."""
    return {name: text for name, text in _BLOCK.findall(PAGE.read_text()) if name}


def write_program(name: str, path: Path, url: str) -> None:
    """Writes one of them to a file, for another server."""
    text = programs()[name]
    assert DEFAULT_URL in text
    path.write_text(text.replace(DEFAULT_URL, url))


def commands() -> list[str]:
    """The commands of the page."""
    return re.findall(r"^    \$ (.*)$", PAGE.read_text(), re.MULTILINE)
