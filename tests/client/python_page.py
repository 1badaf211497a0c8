"""The parts of docs/python.md: blocks that run one after the other, and programs that stand alone."""

from pathlib import Path

from tests.support import pages

NAME = "docs/python.md"
PAGE = pages.REPOSITORY / NAME
DEFAULT_URL = "redis://127.0.0.1:6379"
ALONE = ("celery", "gunicorn", "decoded")


def blocks() -> list[str]:
    """The blocks that run one after the other."""
    return [block.text + "\n" for block in pages.blocks(NAME, "python")]


def programs() -> dict[str, str]:
    """The programs that stand alone, by name."""
    found = pages.blocks(NAME, *(f"python {name}" for name in ALONE))
    return {block.kind.removeprefix("python "): block.text + "\n" for block in found}


def write_program(name: str, path: Path, url: str) -> None:
    """Writes one of them to a file, for another server."""
    text = programs()[name]
    assert DEFAULT_URL in text
    path.write_text(text.replace(DEFAULT_URL, url))


def commands() -> list[str]:
    """The commands of the page."""
    return [line for block in pages.blocks(NAME, "sh") for line in block.text.splitlines()]
