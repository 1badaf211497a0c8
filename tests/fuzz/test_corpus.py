"""What the fuzzers found once is not found again, and a few fixed rounds find nothing."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fuzz import core, replayable, wire
from tests.support import Server

SEEDS = (1, 2, 3, 4)


def test_what_once_broke_a_server_no_longer_does(server: Server) -> None:
    rig = wire.Rig(server)
    found = {path.name: wire.found_by(rig, replayable.read(path)) for path in sorted(wire.CORPUS.glob("wire-*.txt"))}
    rig.hang_up()
    assert {name: finding for name, finding in found.items() if finding is not None} == {}


@pytest.mark.parametrize("seed", SEEDS)
def test_random_commands_leave_the_server_answering_and_its_indexes_right(server: Server, seed: int) -> None:
    rig = wire.Rig(server)
    finding = wire.found_by(rig, wire.generated(seed))
    rig.empty()
    assert finding is None


def test_the_core_keeps_its_laws_on_every_input_of_the_corpus(tmp_path: Path) -> None:
    driver = core.build(tmp_path)
    files = sorted(core.CORPUS.parent.glob("core*.txt"))
    assert core.CORPUS in files
    for file in files:
        done = core.replay(driver, file)
        assert done.returncode == 0, f"{file.name}: {done.stdout}{done.stderr}"


def test_a_crash_is_found_and_the_next_round_runs_on_a_new_server(fresh_server: Callable[..., Server]) -> None:
    rig = wire.Rig(fresh_server())
    assert "BUG REPORT" in (wire.found_by(rig, [[(0, (b"DEBUG", b"SEGFAULT"))]]) or "")
    assert wire.found_by(rig, [[(0, (b"PING",))]]) is None
    rig.hang_up()


def test_a_round_is_written_and_read_back_as_it_was(tmp_path: Path) -> None:
    odd = [[(0, (b"SET", b"", b"# -- %@'" + bytes(range(256)), b"@2*x", b"ab" * 5000)), (1, (b"A",))]]
    batches = [*wire.generated(1), *odd]
    replayable.write(tmp_path / "round.txt", batches, "two\nlines")
    assert replayable.read(tmp_path / "round.txt") == batches


def test_a_seed_is_a_round() -> None:
    assert wire.generated(7) == wire.generated(7) != wire.generated(8)
