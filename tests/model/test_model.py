"""The design of the broker over a cluster keeps its laws, and the model finds each rule that is left out."""

from dataclasses import replace

import pytest

from tests.model.design import RULES, Design
from tests.model.scripts import SCRIPTS
from tests.model.world import Weather, explore

MISHAPS = 150  # interleavings with failovers, moves and crashes
OF_A_SCRIPT = 40
UNTIL_FOUND = 600


def test_the_design_keeps_its_laws_through_mishaps() -> None:
    found = explore(Design(), range(MISHAPS), Weather())
    assert found is None, found


@pytest.mark.parametrize("rule", SCRIPTS)
def test_the_design_keeps_its_laws_where_a_rule_matters(rule: str) -> None:
    weather, script = SCRIPTS[rule]
    found = explore(Design(), range(OF_A_SCRIPT), weather, script)
    assert found is None, found


@pytest.mark.parametrize("rule", SCRIPTS)
def test_the_model_finds_a_rule_that_is_left_out(rule: str) -> None:
    weather, script = SCRIPTS[rule]
    assert rule in RULES
    found = explore(replace(Design(), **{rule: False}), range(UNTIL_FOUND), weather, script)
    assert found is not None
