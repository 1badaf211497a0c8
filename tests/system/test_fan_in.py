"""Receivers before senders: a receiver that acknowledges at once gets everything, however many publish to it.

The publishers wait for nothing but their own acknowledgements, 20 messages each.  A queue holds 10,000 messages, fewer
than come in one second: what is not delivered as it comes is lost.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.mqtt_brokers import Running, holdmq
from bench.mqtt_load import run_load

ROOT = Path(__file__).resolve().parents[2]
SHARE = 0.45  # of all messages, in and out: what comes in goes out


@pytest.fixture(scope="module")
def broker() -> Iterator[Running]:
    """HoldMQ with its default limits."""
    with holdmq().start() as running:
        yield running


@pytest.mark.parametrize(("publishers", "subscribers"), [(10, 1), (50, 1), (100, 1), (1000, 1), (1000, 10)])
def test_receivers_keep_up_with_any_number_of_publishers(broker: Running, publishers: int, subscribers: int) -> None:
    prefix = f"fan-{publishers}-{subscribers}"
    clients = {"publishers": publishers, "subscribers": subscribers, "window": 20, "behind": 0}
    # The generator fails if a message is lost or out of order.
    found = run_load(broker.port, "fan-in", {**clients, "seconds": 2, "qos": 1, "persistent": True, "prefix": prefix})
    assert found.outgoing >= SHARE * found.messages


def test_the_benchmark_has_a_table_of_it(tmp_path: Path) -> None:
    output = tmp_path / "bench.json"
    command = [sys.executable, "-m", "bench.mqtt", "--fan-in", "--quick", "--seconds", "0.3", "--json", str(output)]
    command += ["--only", "10 publishers to 1,"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    rows = [(row["what"], row["broker"]) for row in json.loads(output.read_text())["rows"]]
    assert rows == [("10 publishers to 1, open loop", broker) for broker in ("HoldMQ", "Mosquitto")]
