"""The benchmark runs and measures every row; how fast things are is not judged here."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROWS = [
    ("SESSION.ADD 1, 62 bytes", "at least 3.5"),
    ("SESSION.ADD 1, TBMQ JSON", "at least 3.5"),
    ("SESSION.ADD 10, 62 bytes", "at least 4.5"),
    ("SESSION.ADD 10, TBMQ JSON", "at least 4.5"),
    ("SESSION.FETCH 100, 62 bytes", "at least 5"),
    ("SESSION.FETCH 100, TBMQ JSON", "at least 5"),
    ("SESSION.ACK 1", "at least 2.5"),
    ("SESSION.ACK 10", "at least 6"),
    ("PUBLISH, one subscriber", "at most 1.05"),
    ("PUBLISH, none: kept", "at most 1.1"),
    ("GET", "at most 1.02"),
    ("SET", "at most 1.02"),
]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bench", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=100, check=False
    )


@pytest.mark.parametrize("options", [[], ["--aof"]], ids=["without_aof", "with_aof"])
def test_every_claim_is_measured_beside_its_baseline(tmp_path: Path, options: list[str]) -> None:
    output = tmp_path / "bench.json"
    done = run("--quick", "--sessions", "5", "--rounds", "2", "--json", str(output), *options)
    assert done.returncode == 0, done.stderr
    result = json.loads(output.read_text())
    assert [(row["what"], row["to_reach"]) for row in result["rows"]] == ROWS
    for row in result["rows"]:
        assert row["baseline_us"] > 0
        assert row["ours_us"] > 0
        assert isinstance(row["reached"], bool)
        assert f"| {row['what']} " in done.stdout
    for fact in ("date", "cpu", "load_average_before", "load_average_after", "server_version", "module_version"):
        assert result[fact], fact


def test_a_name_that_no_row_holds_is_an_error(tmp_path: Path) -> None:
    done = run("--only", "nothing of that name", "--json", str(tmp_path / "bench.json"))
    assert done.returncode == 2
    assert "no row's name holds nothing of that name" in done.stderr
    assert not (tmp_path / "bench.json").exists()
