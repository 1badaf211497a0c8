"""The option --json of a benchmark: where its figures are written."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

BUILD = Path(__file__).resolve().parents[1] / "build"

_Command = TypeVar("_Command", bound=Callable[..., Any])


def json_option(name: str) -> Callable[[_Command], _Command]:
    """Adds the parameter `output`; by default the file of this name in build/."""
    return click.option(
        "--json",
        "output",
        type=click.Path(path_type=Path),
        default=BUILD / name,
        show_default=False,
        help=f"Where the figures are written (default: build/{name}).",
    )
