"""docs/guarantees.md: each promise has an id of its own and names tests that exist."""

import ast
import re
from collections import defaultdict
from functools import cache

from tests.support.pages import REPOSITORY

PAGE = REPOSITORY / "docs" / "guarantees.md"
TEST = re.compile(r"`(\w+)::(\w+)`")
ID = re.compile(r"[A-Z]\d+")


@cache
def functions() -> dict[str, set[str]]:
    """Names of test functions by the names of their files, wherever below tests/ these are."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in (REPOSITORY / "tests").rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                found[path.stem].add(node.name)
    return found


def rows() -> list[list[str]]:
    """The cells of the promises."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in cells if ID.fullmatch(row[0])]


def test_every_promise_has_an_id_and_a_test() -> None:
    found = rows()
    assert len(found) > 50
    assert len({row[0] for row in found}) == len(found)
    for row in found:
        assert len(row) == 5, row
        promise, tests = row[1], row[4]
        assert promise.endswith("."), row
        assert TEST.search(tests), row
        assert TEST.sub("", tests).strip(", ") == "", row


def test_every_test_that_is_named_exists() -> None:
    named = TEST.findall(PAGE.read_text())
    assert [f"{file}::{name}" for file, name in named if name not in functions().get(file, ())] == []
