"""Options of a command line from fields of settings."""

from enum import StrEnum
from typing import Any, Literal, get_args, get_origin

import click


def option_type(annotation: Any) -> Any:
    """The type of an option for a field: a number, a choice, or text.  The option of `int | None` is an int."""
    if get_origin(annotation) is Literal:
        return click.Choice(get_args(annotation))
    if isinstance(annotation, type) and issubclass(annotation, StrEnum):
        return click.Choice([choice.value for choice in annotation])
    inner = [option_type(argument) for argument in get_args(annotation)]
    return next((kind for kind in (annotation, *inner) if kind in (bool, int, float)), click.STRING)
