"""ops/: alerts that fire as they say, each with a section of a page, and dashboards whose queries have data."""

import json
import math
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis

from holdmq.server import ChildProcess
from tests.bridge import packets
from tests.bridge.talk import Talk
from tests.support import BridgeProcess, Server, embedded_kinds, eventually, reserve_port
from tests.support.pages import REPOSITORY

server_kinds = embedded_kinds

OPS = REPOSITORY / "ops"
ALERTS = (OPS / "prometheus" / "alerts.yml").read_text()
TESTS = (OPS / "prometheus" / "alerts_test.yml").read_text()
DASHBOARDS = sorted((OPS / "grafana").glob("*.json"))
NAMES = re.findall(r"^ *- alert: (\w+)$", ALERTS, re.MULTILINE)
METRIC = re.compile(r"\bholdmq_(?:bridge|server|link)_\w+")


def program(name: str) -> str:
    """A program of Prometheus, installed or unpacked."""
    unpacked = REPOSITORY / ".cache/debian/prometheus/root/usr/bin" / name
    found = shutil.which(name) or (str(unpacked) if unpacked.exists() else None)
    assert found is not None, f"no {name}: make build/prometheus.stamp"
    return found


def expressions() -> list[str]:
    """The queries of the dashboards, with all jobs and bridges."""
    boards = [json.loads(path.read_text()) for path in DASHBOARDS]
    found = [target["expr"] for board in boards for panel in board["panels"] for target in panel["targets"]]
    return [text.replace("$job", ".*").replace("$instance", ".*") for text in found]


@pytest.mark.parametrize(
    "words",
    [("check", "rules", "alerts.yml"), ("test", "rules", "alerts_test.yml")],
    ids=["check", "test"],
)
def test_promtool_accepts_the_alerts(words: tuple[str, ...]) -> None:
    done = subprocess.run(
        [program("promtool"), *words], cwd=OPS / "prometheus", capture_output=True, text=True, timeout=60, check=False
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


def test_monitoring_lists_the_condition_of_each_alert() -> None:
    page = (REPOSITORY / "docs/monitoring.md").read_text()
    section = page.partition("\n## Alerts\n")[2].partition("\n## ")[0]
    assert len(re.findall(r"^\| [A-Z]", section, re.MULTILINE)) == len(NAMES)
    rules = "\n".join(re.findall(r"^ *expr: (.+)$", ALERTS, re.MULTILINE))
    assert set(METRIC.findall(section)) | {"holdmq_server_disk_total"} == set(METRIC.findall(rules))


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
    for text in expressions():
        lines += [f"      - record: expression:{len(lines)}", f"        expr: {json.dumps(text)}"]
    rules = tmp_path / "rules.yml"
    rules.write_text("\n".join(lines))
    done = subprocess.run(
        [program("promtool"), "check", "rules", rules], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


# --- A Prometheus that scrapes a bridge -------------------------------------------------------------------------------


class Prometheus:
    """Scrapes a bridge every half second, and evaluates the alerts.

    Args:
        metrics: the port of the bridge's metrics.
        folder: for its data.
    """

    def __init__(self, metrics: int, folder: Path) -> None:
        settings = {
            "global": {"scrape_interval": "500ms", "scrape_timeout": "400ms", "evaluation_interval": "500ms"},
            "rule_files": [str(OPS / "prometheus" / "alerts.yml")],
            "scrape_configs": [{"job_name": "holdmq", "static_configs": [{"targets": [f"127.0.0.1:{metrics}"]}]}],
        }
        (folder / "prometheus.yml").write_text(json.dumps(settings))  # JSON is YAML
        self._port = reserve_port()
        self._url = f"http://127.0.0.1:{self._port.number}/api/v1"
        self.process = ChildProcess(
            [
                program("prometheus"),
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{self._port.number}",
            ],
            log=folder / "prometheus.log",
        )

    def close(self) -> None:
        """Kills it."""
        self.process.kill()
        self._port.release()

    def get(self, path: str, **query: str) -> Any:
        """The data of an answer; None as long as it does not serve."""
        try:
            answer = httpx.get(f"{self._url}/{path}", params=query, timeout=10)
        except httpx.TransportError:
            return None
        assert answer.status_code in (200, 503), (path, query, answer.text)
        return answer.json()["data"] if answer.status_code == 200 else None

    def has_data(self, expression: str) -> bool:
        """Whether there is a value, and each is a number."""
        values = [float(row["value"][1]) for row in self.get("query", query=expression)["result"]]
        return bool(values) and not any(map(math.isnan, values))


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[Callable[[int], Prometheus]]:
    made: list[Prometheus] = []

    def start(metrics: int) -> Prometheus:
        made.append(Prometheus(metrics, tmp_path))
        made[-1].process.spawn()
        eventually(lambda: made[-1].get("query", query="up"), 60, "a Prometheus that serves")
        return made[-1]

    yield start
    for one in made:
        one.close()


@pytest.mark.timeout(240)
def test_every_expression_of_the_dashboards_has_data_of_a_running_bridge(
    server: Server,
    client: redis.Redis,
    bridge: Callable[..., BridgeProcess],
    prometheus: Callable[[int], Prometheus],
) -> None:
    with reserve_port() as metrics:
        made = bridge(server, arguments=["--metrics-port", str(metrics.number)])
        asked = prometheus(metrics.number)
        eventually(lambda: asked.has_data("holdmq_bridge_ready"), 60, "a scrape")
        talk = Talk.connected(made.port, "c1")
        talk.subscribe(("t", 1))
        client.config_set("maxmemory", 1)
        talk.send(packets.publish("t", b"refused at first", qos=1, pid=9))
        eventually(lambda: "holdmq_bridge_refusals_total{" in metrics_of(metrics.number), 30, "a refused publish")
        client.config_set("maxmemory", 0)

        def without_data() -> list[str]:
            talk.send(packets.publish("t", b"x", qos=0))
            return [text for text in expressions() if not asked.has_data(text)]

        try:
            eventually(lambda: not without_data(), 120, "data of all expressions")
        except AssertionError:
            assert without_data() == []
            raise
        talk.close()
        rules = [rule for group in asked.get("rules")["groups"] for rule in group["rules"]]
        assert sorted(rule["name"] for rule in rules) == sorted(NAMES)
        assert [(rule["name"], rule["lastError"]) for rule in rules if rule.get("lastError")] == []


def metrics_of(port: int) -> str:
    """What Prometheus scrapes."""
    return httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=10).text
