"""docs/reference has every public class, function and constant of the client, and each of them has a docstring.

MkDocs leaves out what has no docstring (mkdocs.yml), so both together mean that the reference is complete.
"""

import ast
import dataclasses
import importlib
import inspect
import re
from enum import Enum
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import holdmq

REPOSITORY = Path(__file__).parents[2]
PAGES = sorted((REPOSITORY / "docs" / "reference").glob("*.md"))
SOURCES = sorted((REPOSITORY / "pyclient" / "holdmq").glob("*.py"))


def entries() -> list[str]:
    """What the pages ask mkdocstrings for."""
    return [name for page in PAGES for name in re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE)]


def public_modules() -> list[ModuleType]:
    """The modules that the docstring of the package calls public."""
    assert holdmq.__doc__ is not None
    return [importlib.import_module(name) for name in re.findall(r"`(holdmq\.\w+)`", holdmq.__doc__)]


def public_things() -> dict[str, object]:
    """Everything public, by its full name."""
    return {
        f"{module.__name__}.{name}": getattr(module, name)
        for module in (holdmq, *public_modules())
        for name in module.__all__
    }


def documented_constants() -> set[str]:
    """Names at the top level of some module that are assigned to, with a docstring below."""
    found = set()
    for path in SOURCES:
        body = ast.parse(path.read_text()).body
        branches = [branch for one in body if isinstance(one, ast.If) for branch in (one.body, one.orelse)]
        for one, following in (pair for lines in (body, *branches) for pair in pairwise(lines)):
            if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
                found |= {
                    node.id for node in ast.walk(one) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
                }
    return found


def undocumented_members(thing: type) -> list[str]:
    """The public methods and properties of a class without a docstring."""
    if issubclass(thing, Enum):
        return []
    fields = {field.name for field in dataclasses.fields(thing)} if dataclasses.is_dataclass(thing) else set()
    return [
        name
        for name, member in vars(thing).items()
        if not name.startswith("_")
        and name not in fields
        and (callable(member) or isinstance(member, (property, classmethod)))
        and not inspect.getdoc(member)
    ]


def test_the_package_names_its_public_modules() -> None:
    names = {module.__name__ for module in public_modules()}
    assert {"holdmq.replies", "holdmq.errors", "holdmq.commands", "holdmq.server"} <= names
    assert len(public_things()) > 200


def test_every_public_name_is_in_the_reference_exactly_once() -> None:
    shown = entries()
    assert len(shown) == len(set(shown))
    modules = {module.__name__ for module in public_modules()}
    assert modules <= set(shown)
    in_modules = {name for module in public_modules() for name in module.__all__}
    of_the_package = {f"holdmq.{name}" for name in set(holdmq.__all__) - in_modules}
    assert set(shown) - modules == of_the_package


def test_every_public_name_has_a_docstring() -> None:
    constants = documented_constants()
    without = []
    for full_name, thing in public_things().items():
        if not (inspect.isclass(thing) or inspect.isfunction(thing)):
            without += [] if full_name.rpartition(".")[2] in constants else [full_name]
            continue
        without += [] if inspect.getdoc(thing) else [full_name]
        if inspect.isclass(thing):
            without += [f"{full_name}.{member}" for member in undocumented_members(thing)]
    assert without == []


def test_every_field_of_a_public_class_is_explained() -> None:
    unexplained = []
    for full_name, thing in public_things().items():
        if inspect.isclass(thing) and dataclasses.is_dataclass(thing):
            unexplained += [
                f"{full_name}.{field}"
                for field in inspect.get_annotations(thing)
                if not re.search(rf"^\s*{field}: ", thing.__doc__ or "", re.MULTILINE)
            ]
    assert unexplained == []
