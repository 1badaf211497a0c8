"""docs/configuration.md has every setting, as the code has it."""

import re
from pathlib import Path

import pytest

from tests.support.pages import REPOSITORY
from tools import generate_configuration
from tools.generate_configuration import PAGE, generated

SHIPPED = ("pyclient", "bridge", "console", "pipeline", "docker")
VARIABLE = re.compile(r"\bHOLDMQ_[A-Z]+(?:_[A-Z]+)*_?")


def variables(path: Path) -> set[str]:
    """The variables that a file names; those of the settings of bridge, console and links by their beginning."""
    found = set(VARIABLE.findall(path.read_text(encoding="utf-8")))
    return {re.sub(r"^(HOLDMQ_(?:BRIDGE|CONSOLE|LINK)_).*", r"\1", name) for name in found}


def test_the_tables_are_those_of_the_code() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert generated(text) == text


def test_a_changed_description_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    changed = generate_configuration.MODULE[0]._replace(meaning="Something else.")
    monkeypatch.setattr(generate_configuration, "MODULE", (changed, *generate_configuration.MODULE[1:]))
    text = PAGE.read_text(encoding="utf-8")
    assert generated(text) != text


@pytest.mark.parametrize("marker", ["bridge metrics_host drain_server_reference", "bridge host workers"])
def test_a_setting_without_a_table_is_refused(marker: str) -> None:
    text = PAGE.read_text(encoding="utf-8")
    part = re.compile(rf"^<!-- generated: {marker} -->.*?^<!-- end -->\n", re.MULTILINE | re.DOTALL)
    with pytest.raises(ValueError, match=r"without a table.*'bridge', '(host|log_level)'"):
        generated(part.sub("", text))


def test_every_variable_is_on_the_page_and_no_other() -> None:
    files = [
        path
        for folder in SHIPPED
        for path in (REPOSITORY / folder).rglob("*")
        if path.suffix in (".py", "") and path.is_file()
    ]
    read = set().union(*map(variables, files))
    page = PAGE.read_text(encoding="utf-8")
    assert variables(PAGE) == read
    for name in read:
        assert f"`{name}" in page, name
