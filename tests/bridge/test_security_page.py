"""docs/security.md has every limit, with its default, what it protects and what a client sees."""

import re
from pathlib import Path
from typing import NamedTuple

import pytest
import redis

from holdmq_bridge.process.settings import Settings

PAGE = Path(__file__).parents[2] / "docs" / "security.md"
# Numbers that bound nothing of what a client may do, each with what it is instead.
NO_LIMITS = {
    "auth_poll_s": "how soon a change is heeded",
    "lease_s": "when a bridge counts as dead",
    "metrics_port": "an address",
    "port": "an address",
    "read_ahead": "told in the section on fair turns",
    "report_interval_s": "how often reports are written",
    "retry_first_s": "how soon the bridge tries again",
    "retry_max_s": "the same",
    "server_timeout_s": "when the server counts as silent",
    "shutdown_timeout_s": "how the bridge ends",
    "drain_rate": "how the bridge ends",
    "sys_interval_s": "how often $SYS is written",
    "tls_poll_s": "how soon new certificates are served",
    "tls_port": "an address",
    "trace_rate": "how many publishes are traced",
    "trace_sample": "the same",
    "wait_replicas": "a promise",
    "wait_timeout_s": "the same",
    "workers": "how many processes there are",
    "ws_port": "an address",
    "wss_port": "an address",
}
DOORS = {"session_of_another_identity", "ws_origins", "ws_path", "proxy_networks"}  # texts that keep clients out
NO_LIMITS_OF_THE_SERVER = {
    "holdmq.drain-timeout": "of subscribers of channels, which are no MQTT clients",
    "holdmq.intercept": "a switch",
    "holdmq.policies": "what channels keep",
    "holdmq.presence": "a switch",
}
UNITS = {"": 1, "s": 1, "/s": 1, "KiB": 1024, "MiB": 1024**2, "days": 86_400, "messages": 1, "commands": 1, "pages": 1}
ZERO = re.compile(r" \(no [a-z]+\)$")  # what 0 means


class Row(NamedTuple):
    """What the page says of one limit."""

    default: str
    cells: list[str]


def tables() -> list[list[list[str]]]:
    """The cells of each table whose first column are settings or limits."""
    found: list[list[list[str]]] = []
    for line in PAGE.read_text().splitlines():
        if not line.startswith("|"):
            found.append([])
            continue
        found[-1].append([cell.strip() for cell in line.strip("|").split(" | ")])
    return [table for table in found if table and table[0][0] in ("setting", "limit")]


def rows() -> dict[str, Row]:
    """By setting; those that share a row share its cells."""
    found = {}
    for table in tables():
        if "default" not in table[0]:
            continue
        at = table[0].index("default")
        for cells in table[2:]:
            names = re.findall(r"`([a-z_]+|holdmq\.[a-z-]+)`", cells[0])
            defaults = cells[at].split(", ") if len(names) > 1 else [cells[at]]
            found.update(dict(zip(names, (Row(default, cells) for default in defaults), strict=False)))
    return found


def number(text: str) -> float:
    """The number that a cell says, in its smallest unit."""
    match = re.fullmatch(r"([\d.]+) ?([A-Za-z/]*)", ZERO.sub("", text))
    assert match is not None, text
    return float(match[1]) * UNITS[match[2]]


def limits() -> dict[str, object]:
    """The settings of the bridge that are limits, with their defaults."""
    return {
        name: field.default
        for name, field in Settings.model_fields.items()
        if name in DOORS or (isinstance(field.default, int | float) and not isinstance(field.default, bool))
        if name not in NO_LIMITS
    }


@pytest.mark.parametrize("name", limits())
def test_every_limit_of_the_bridge_is_on_the_page(name: str) -> None:
    row = rows()[name]
    default = limits()[name]
    assert default == (row.default.strip("`") if isinstance(default, str) else number(row.default))
    assert all(row.cells), row.cells


def test_what_is_said_to_be_no_limit_is_a_setting() -> None:
    assert NO_LIMITS.keys() | DOORS <= Settings.model_fields.keys()
    assert not NO_LIMITS.keys() & rows().keys()


def test_every_limit_of_the_server_is_on_the_page(client: redis.Redis) -> None:
    settings = {str(name): str(value) for name, value in client.config_get("holdmq.*").items()}
    page, text = rows(), PAGE.read_text()
    assert NO_LIMITS_OF_THE_SERVER.keys() <= settings.keys()
    for name, value in settings.items():
        if name in NO_LIMITS_OF_THE_SERVER:
            continue
        if name == "holdmq.session-overflow":
            assert f"| `{value}` (default) |" in text
        elif name in page:
            assert number(page[name].default) == int(value), name
            assert all(page[name].cells), name
        else:  # those of users, of which the page says once that they are 0
            assert f"| `{name}` |" in text, name
            assert int(value) == 0, name


def test_every_setting_and_counter_on_the_page_is_one(client: redis.Redis) -> None:
    settings = {str(name) for name in client.config_get("holdmq.*")}
    for name in rows():
        assert name in settings or name in Settings.model_fields, name
    text = PAGE.read_text()
    counters = {str(name) for name in client.info("holdmq")}
    for name in re.findall(r"`holdmq_([a-z_]+)`", text):
        assert f"holdmq_{name}" in counters or name.startswith("bridge_"), name
    for name in re.findall(r"`(holdmq\.[a-z-]+)`", text):
        assert name in settings, name
