"""docs/mqtt-conformance.md: every statement has its place there, and every test that it names exists."""

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.bridge.conformance.statements import OF_3_1_1, OF_5_0

REPOSITORY = Path(__file__).parents[3]
PAGE = REPOSITORY / "docs" / "mqtt-conformance.md"

VERSIONS = {"MQTT 3.1.1": OF_3_1_1, "MQTT 5.0": OF_5_0}
STATE = re.compile(r"kept(, .+|: .+)?|kept in another way: .+|not applicable: .+")
TEST = re.compile(r"`([\w/]+)::(\w+)`")
STATEMENT = re.compile(r"MQTT-\d+\.\d+\.\d+-\d+")


class Row(NamedTuple):
    """A line of a table."""

    statement: str
    asks: str
    state: str
    shown_by: str


def part(title: str) -> str:
    """The text of one section of the page."""
    sections = re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)
    (found,) = (section for section in sections if section.startswith(f"{title}\n"))
    return found


def rows(title: str) -> list[Row]:
    """Its rows with statements."""
    lines = [line for line in part(title).splitlines() if line.startswith("| MQTT-")]
    return [Row(*(cell.strip() for cell in line.strip("|").split("|"))) for line in lines]


def clients(title: str) -> list[str]:
    """Statements that bind a client alone."""
    (line,) = (line for line in part(title).splitlines() if line.startswith("Clients only: "))
    return STATEMENT.findall(line)


@cache
def functions_of(file: str) -> set[str]:
    """Names of the tests of a file under tests/."""
    path = REPOSITORY / "tests" / f"{file}.py"
    nodes = ast.walk(ast.parse(path.read_text())) if path.exists() else ()
    return {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.mark.parametrize("title", VERSIONS)
def test_every_statement_has_one_place(title: str) -> None:
    listed = [row.statement for row in rows(title)] + clients(title)
    assert sorted(VERSIONS[title] - set(listed)) == []  # missing
    assert sorted(set(listed) - VERSIONS[title]) == []  # there is no such statement
    assert len(listed) == len(set(listed)), "some stand twice"


@pytest.mark.parametrize("title", VERSIONS)
def test_every_row_says_whether_it_is_kept_and_by_what_it_is_shown(title: str) -> None:
    for row in rows(title):
        assert STATE.fullmatch(row.state), row
        assert len(row.asks) > 3, row
        assert TEST.sub("", row.shown_by).replace(",", "").strip() == "", row
        assert bool(row.shown_by) is not row.state.startswith("not applicable"), row


def test_every_test_that_is_named_exists() -> None:
    named = TEST.findall(PAGE.read_text())
    assert len(named) > len(OF_3_1_1)
    assert [f"{file}::{name}" for file, name in named if name not in functions_of(file)] == []


def test_the_page_says_how_many_there_are() -> None:
    assert f"{len(OF_3_1_1)} in 3.1.1, {len(OF_5_0)} in 5.0" in PAGE.read_text()


def test_statements_that_tests_cite_exist() -> None:
    known = OF_3_1_1 | OF_5_0
    cited = {
        (path.name, statement)
        for path in Path(__file__).parent.glob("test_*.py")
        for statement in STATEMENT.findall(path.read_text())
    }
    assert len(cited) > 100
    assert sorted((file, statement) for file, statement in cited if statement not in known) == []
