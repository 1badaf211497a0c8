"""Clients come back when the server was away, too many at once, and get what waited: short forms of longer runs."""

from pathlib import Path

import pytest

from tests.support import ServerKind
from tests.support.servers import embedded_kinds
from tests.system import mqtt_burst, mqtt_comeback, mqtt_drain

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


def test_what_waits_is_drained_as_soon_after_a_restart_as_without_one(
    server_kind: ServerKind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mqtt_drain, "FACTOR", 3.0)  # the machine does other things at the same time
    monkeypatch.setattr(mqtt_drain, "SPARE_S", 5.0)
    lines: list[str] = []
    found = mqtt_drain.run(server_kind, tmp_path, lines.append, clients=1000)
    assert not found, "\n".join([*lines, *found])
