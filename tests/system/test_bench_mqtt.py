"""The MQTT benchmarks measure every row on every broker; how fast they are is not judged here."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROWS = [
    ("100 pairs", "at least Mosquitto"),
    ("sessions away: store", "at least Mosquitto"),
    ("sessions away: drain", "at least Mosquitto"),
    ("1 publisher to 100", "at least Mosquitto"),
    ("50 publishers to 1", "at least Mosquitto"),
    ("p99 at half of the peak, closed loop", "below 10 ms"),
    ("p99 at half of the peak, open loop", "below 10 ms"),
    ("p99 at 30,000/s, open loop", "below 10 ms"),
    ("CPU over WebSocket, QoS 0", "below 2.5"),
    ("CPU over WebSocket, QoS 1", "below 2.5"),
    ("memory per idle connection", "below 10 KiB"),
]


def run(*arguments: str, module: str = "bench.mqtt") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=380, check=False)


@pytest.mark.timeout(400)  # half a minute of a processor, which a busy machine shares among many
def test_every_row_is_measured_on_every_broker(tmp_path: Path) -> None:
    output = tmp_path / "bench.json"
    small = ("--seconds", "0.3", "--pairs", "5", "--window", "3", "--messages", "20", "--idle", "50")
    done = run("--quick", *small, "--json", str(output))
    assert done.returncode == 0, done.stderr
    result = json.loads(output.read_text())
    ours = [row for row in result["rows"] if row["broker"] == "HoldMQ"]
    assert [(row["what"], row["to_reach"]) for row in ours] == ROWS
    assert [row["what"] for row in result["rows"] if row["broker"] == "Mosquitto"] == [name for name, _ in ROWS]
    assert [row["what"] for row in result["rows"] if row["broker"] == "Mosquitto, saving"] == ["100 pairs"]
    for row in ours:
        assert row["value"] > 0
        assert isinstance(row["reached"], bool)
        assert f"| {row['what']} " in done.stdout
        if row["what"] != "memory per idle connection":
            assert {"bridge", "server", "generator"} == set(row["cpu_us"])
    for fact in ("date", "cpu", "cores", "load_average_before", "load_average_after", "brokers"):
        assert result[fact], fact


def test_a_name_that_no_row_holds_is_an_error(tmp_path: Path) -> None:
    done = run("--only", "nothing of that name", "--json", str(tmp_path / "bench.json"))
    assert done.returncode == 2
    assert "no row's name holds nothing of that name" in done.stderr
    assert not (tmp_path / "bench.json").exists()


def test_latency_is_measured_for_each_load_on_both_brokers(tmp_path: Path) -> None:
    output = tmp_path / "latency.json"
    small = ("--rounds", "1", "--seconds", "0.3", "--pairs", "3", "--rate", "1000", "--window", "2")
    done = run(*small, "--json", str(output), module="bench.mqtt_curve")
    assert done.returncode == 0, done.stderr
    points = json.loads(output.read_text())["points"]
    loads = ["1,000/s", "2 unacknowledged each"]
    assert [(point["load"], point["broker"]) for point in points] == [
        (load, broker) for load in loads for broker in ("HoldMQ", "Mosquitto")
    ]
    for point in points:
        assert 0 < point["p50_ms"] <= point["p99_ms"] <= point["p99_most_ms"]
        assert f"| {point['load']} " in done.stdout


def test_idle_connections_are_held_and_weighed(tmp_path: Path) -> None:
    output = tmp_path / "idle.json"
    done = run("--connections", "300", "--keep-alive", "2", "--json", str(output), module="bench.mqtt_idle")
    assert done.returncode == 0, done.stderr
    result = json.loads(output.read_text())
    assert (result["connections"], result["workers"]) == (300, 1)
    assert result["messages meanwhile"] > 0
    assert result["bridge: KiB a connection"] > 0
