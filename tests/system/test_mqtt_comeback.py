"""Real clients come back when the server was away, and when too many connect at once: short forms of longer runs."""

from pathlib import Path

import pytest

from tests.support import ServerKind
from tests.support.servers import embedded_kinds
from tests.system import mqtt_burst, mqtt_comeback

server_kinds = embedded_kinds


@pytest.mark.parametrize("away_s", [3, 15])
def test_clients_at_their_defaults_come_back_when_the_server_was_away(
    server_kind: ServerKind, tmp_path: Path, away_s: float
) -> None:
    lines: list[str] = []
    found = mqtt_comeback.run(server_kind, tmp_path, away_s, lines.append)
    assert not found, "\n".join([*lines, *found])


@pytest.mark.parametrize("rate", [2000, 100])
def test_everybody_is_let_in_however_many_connect_at_once(server_kind: ServerKind, tmp_path: Path, rate: int) -> None:
    lines: list[str] = []
    found = mqtt_burst.run(server_kind, tmp_path, (500, 100), ["--connection-rate", str(rate)], lines.append)
    assert not found, "\n".join([*lines, *found])
