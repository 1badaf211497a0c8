"""The benchmark of clusters measures every row on every set-up; how much it costs is not judged here."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.timeout(300)
def test_pairs_are_measured_on_one_server_and_on_clusters(tmp_path: Path) -> None:
    output = tmp_path / "cluster.json"
    small = ("--rounds", "1", "--seconds", "0.3", "--warm-up", "0.2", "--rate", "2000", "--only", "pairs")
    nodes = ("--nodes", "3", "--nodes", "6")
    command = [sys.executable, "-m", "bench.cluster", *small, *nodes, "--json", str(output)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(output.read_text())
    names = ["pairs, closed loop", "pairs, 2,000/s"]
    setups = ["one server", "cluster of 3", "cluster of 6"]
    assert [(row["what"], row["setup"]) for row in found["rows"]] == [(name, one) for name in names for one in setups]
    for row in found["rows"]:
        assert min(row["servers_us"], row["bridge_us"], row["per_s"], row["ratio"]) > 0
    assert [target["most"] for target in found["targets"]] == [1.35, 1.05] * 2
    assert "pairs, closed loop: cluster of 6 to cluster of 3" in done.stdout


def test_a_name_that_no_row_holds_is_an_error(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench.cluster", "--only", "nothing of that name", "--json", str(tmp_path / "x")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "no row's name holds nothing of that name" in done.stderr
    assert not (tmp_path / "x").exists()
