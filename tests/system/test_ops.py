"""ops/: alerts that promtool accepts and that fire as they say, dashboards, and a section for each alert."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.pages import REPOSITORY

OPS = REPOSITORY / "ops"
ALERTS = (OPS / "prometheus" / "alerts.yml").read_text()
TESTS = (OPS / "prometheus" / "alerts_test.yml").read_text()
DASHBOARDS = sorted((OPS / "grafana").glob("*.json"))
NAMES = re.findall(r"^ *- alert: (\w+)$", ALERTS, re.MULTILINE)
METRIC = re.compile(r"\bholdmq_(?:bridge|server|link)_\w+")


def promtool() -> str:
    """The program, installed or unpacked."""
    unpacked = REPOSITORY / ".cache/debian/prometheus/root/usr/bin/promtool"
    found = shutil.which("promtool") or (str(unpacked) if unpacked.exists() else None)
    assert found is not None, "no promtool: make build/prometheus.stamp"
    return found


@pytest.mark.parametrize(
    "words",
    [("check", "rules", "alerts.yml"), ("test", "rules", "alerts_test.yml")],
    ids=["check", "test"],
)
def test_promtool_accepts_the_alerts(words: tuple[str, ...]) -> None:
    done = subprocess.run(
        [promtool(), *words], cwd=OPS / "prometheus", capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_is_made_to_fire_and_to_stay_silent() -> None:
    assert len(NAMES) == len(set(NAMES)) >= 12
    for name in NAMES:
        for what in ("fires", "stays silent"):
            assert f"- name: {name} {what}\n" in TESTS, (name, what)
        part = TESTS.partition(f"- name: {name} stays silent\n")[2].partition("- name:")[0]
        assert f"alertname: {name}\n        exp_alerts: []" in part


def test_each_alert_has_a_section_that_says_what_to_do() -> None:
    page = (REPOSITORY / "docs/troubleshooting.md").read_text()
    assert re.findall(r"^### (HoldMQ\w+)$", page, re.MULTILINE) == NAMES
    runbooks = re.findall(r"^ *runbook: (\S+)$", ALERTS, re.MULTILINE)
    assert runbooks == [f"docs/troubleshooting.md#{name.lower()}" for name in NAMES]


def known_metrics() -> set[str]:
    """As the page has them; tests/bridge/test_page_monitoring.py compares it with what is exported."""
    page = (REPOSITORY / "docs/monitoring.md").read_text()
    rows = re.findall(r"^\| `(\w+)(?:\{\w+\})?` \| (counter|gauge|histogram|text) \|", page, re.MULTILINE)
    names = {name for name, _ in rows}
    for name, kind in rows:
        if name.startswith("holdmq_") and not name.startswith(("holdmq_bridge_", "holdmq_link_")):
            names.add(f"holdmq_server_{name.removeprefix('holdmq_')}{'_total' if kind == 'counter' else ''}")
    return names


def test_alerts_and_dashboards_ask_for_metrics_that_exist() -> None:
    known = known_metrics()
    for path in (OPS / "prometheus" / "alerts.yml", *DASHBOARDS):
        asked = {name.removesuffix("_bucket") for name in METRIC.findall(path.read_text())}
        assert asked, path
        assert asked - known == set(), path


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_a_dashboard_has_what_grafana_needs(path: Path) -> None:
    board: dict[str, Any] = json.loads(path.read_text())
    assert board["uid"]
    assert board["schemaVersion"] >= 36
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids)) >= 8
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert place["x"] + place["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
        assert all(target["expr"] for target in panel["targets"]), panel["title"]


def test_promtool_parses_every_expression_of_the_dashboards(tmp_path: Path) -> None:
    lines = ["groups:", "  - name: dashboards", "    rules:"]
    for path in DASHBOARDS:
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel["targets"]:
                text = target["expr"].replace("$job", ".*").replace("$instance", ".*")
                lines += [f"      - record: expression:{len(lines)}", f"        expr: {json.dumps(text)}"]
    rules = tmp_path / "rules.yml"
    rules.write_text("\n".join(lines))
    done = subprocess.run(
        [promtool(), "check", "rules", rules], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
