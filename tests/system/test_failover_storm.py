"""Planned failovers lose nothing and close no connection: the short form of `make storm ARGS=--failover`."""

from pathlib import Path

import pytest

from tests.support import ServerKind
from tests.system import failover_storm


@pytest.mark.timeout(300)  # a Sentinel takes ten seconds until it has turned an old primary into a replica
def test_planned_failovers_lose_nothing_and_close_no_connection(
    server_kind: ServerKind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failover_storm, "OUTAGE_S", 10.0)  # the machine does other things at the same time
    lines: list[str] = []
    found = failover_storm.run(server_kind, tmp_path, failovers=2, pause_s=1.0, say=lines.append)
    assert not found, "\n".join([*lines, *found])
