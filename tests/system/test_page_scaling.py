"""The tables of docs/scaling.md are those of the model."""

from pathlib import Path

from bench.cluster_model import measured, tables

PAGE = Path(__file__).resolve().parents[2] / "docs" / "scaling.md"


def test_the_tables_of_the_page_are_those_of_the_model() -> None:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("|")]
    assert lines == tables(measured())
