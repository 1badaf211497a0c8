"""docs/monitoring.md has every metric, every field of INFO and every answer, with the texts that are exported."""

import ast
import json
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import NamedTuple

from prometheus_client import CollectorRegistry, generate_latest

from holdmq_bridge.uplink.counters import Collector, Counters
from tests.bridge.conftest import Connect
from tests.support import BridgeProcess, Server, eventually
from tests.support.pages import REPOSITORY, blocks
from tests.support.ports import Port

MakeBridge = Callable[..., BridgeProcess]
MakeServer = Callable[..., Server]

NAME = "docs/monitoring.md"
PAGE = (REPOSITORY / NAME).read_text(encoding="utf-8")
ROW = re.compile(r"^\| `(\w+)(?:\{(\w+)\})?` \| (counter|gauge|histogram|text) \| (.+?) \| ?(.*?) ?\|$", re.MULTILINE)


class Row(NamedTuple):
    """A metric or a field, as the page or the process tells of it."""

    kind: str
    label: str
    meaning: str


def told() -> dict[str, Row]:
    """What the page says of each name; none is there twice."""
    found = ROW.findall(PAGE)
    names = [name for name, *_ in found]
    assert len(names) == len(set(names))
    return {name: Row(kind, label, meaning) for name, label, kind, meaning, _ in found}


TOLD = told()
FIELDS = {name for name in TOLD if not name.startswith(("holdmq_bridge_", "holdmq_link_", "process_"))}
"""Those of INFO."""


def exported(text: str) -> dict[str, Row]:
    """What a scrape says of each metric."""
    kinds = dict(re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE))
    labels = dict(re.findall(r"^(\w+)\{(\w+)=", text, re.MULTILINE))
    helps: list[tuple[str, str]] = re.findall(r"^# HELP (\w+) (.+)$", text, re.MULTILINE)
    return {name: Row(kinds[name], labels.get(name, ""), meaning) for name, meaning in helps}


def get(port: Port, path: str) -> str:
    """The body, whatever the status."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port.number}{path}", timeout=10) as response:
            return str(response.read().decode())
    except urllib.error.HTTPError as error:
        with error:
            return error.read().decode()


def test_the_page_has_every_metric_of_a_bridge(server: Server, bridge: MakeBridge, port: Port) -> None:
    bridge(server, arguments=["--metrics-port", str(port.number)])
    eventually(lambda: "holdmq_server_queued_messages" in get(port, "/metrics"), what="the first count of the queues")
    there = exported(get(port, "/metrics"))
    own = {name: row for name, row in there.items() if not name.startswith("holdmq_server_")}
    assert {name: row for name, row in TOLD.items() if name.startswith(("holdmq_bridge_", "process_"))} == own
    of_server = {
        f"holdmq_server_{name.removeprefix('holdmq_')}{'_total' if TOLD[name].kind == 'counter' else ''}": TOLD[name]
        for name in FIELDS
        if TOLD[name].kind != "text"
    }
    assert {name: row for name, row in there.items() if name.startswith("holdmq_server_")} == of_server


def test_the_page_has_every_field_of_info(server: Server) -> None:
    client = server.client()
    eventually(lambda: "holdmq_queued_messages" in client.info("holdmq"), what="the first count of the queues")
    fields = client.info("holdmq")
    assert set(fields) == FIELDS
    texts = {name for name, value in fields.items() if isinstance(value, str)}
    assert texts == {name for name in FIELDS if TOLD[name].kind == "text"}


def test_the_page_has_every_metric_of_a_link() -> None:
    registry = CollectorRegistry()
    registry.register(Collector({"one": Counters()}))
    there = exported(generate_latest(registry).decode())
    assert {name: row for name, row in TOLD.items() if name.startswith("holdmq_link_")} == there


def test_every_metric_that_the_page_mentions_exists() -> None:
    ends = {name.removeprefix("holdmq_") + ("_total" if TOLD[name].kind == "counter" else "") for name in FIELDS}
    known = set(TOLD) | {f"holdmq_server_{end}" for end in ends}
    mentioned = {name.removesuffix("_bucket") for name in re.findall(r"\bholdmq_(?:bridge|server|link)_[a-z]\w+", PAGE)}
    assert sorted(mentioned - known) == []


def test_health_is_reported_as_on_the_page(
    fresh_server: MakeServer, bridge: MakeBridge, dial: Connect, port: Port
) -> None:
    server = fresh_server()
    made = bridge(server, arguments=["--metrics-port", str(port.number)])
    clients = [dial(made.port, f"c{number}") for number in range(2)]
    [block] = blocks(NAME, "text output")
    alive, ready, away = map(json.loads, block.text.splitlines())
    eventually(lambda: without_name(get(port, "/readyz")) == without_name(json.dumps(ready)), what="a ready bridge")
    answer = json.loads(get(port, "/livez"))
    assert answer.keys() == alive.keys()
    for name in (answer["name"], alive["name"]):
        assert re.fullmatch(r"\S+:\d+:[0-9a-f]{8}", name)
    assert without_name(get(port, "/healthz")) == without_name(json.dumps(ready))
    server.kill()
    eventually(
        lambda: without_name(get(port, "/readyz")) == without_name(json.dumps(away)), what="a bridge that is not"
    )
    assert len(clients) == 2


def without_name(body: str) -> dict[str, object]:
    """The members but the name of the process."""
    state: dict[str, object] = json.loads(body)
    assert state.pop("name")
    return state


def test_the_page_has_every_reason_of_readyz() -> None:
    tree = ast.parse((REPOSITORY / "bridge" / "holdmq_bridge" / "server" / "readiness.py").read_text(encoding="utf-8"))
    there = {text for node in ast.walk(tree) for text in reasons_of(node)}
    part = PAGE[PAGE.index("| reason | meaning |") : PAGE.index("`holdmq health` checks")]
    of_page = re.findall(r"^\| `(.+?)` \|", part, re.MULTILINE)
    assert {reason.replace("…", "").replace("2 s", " s") for reason in of_page} == there


_GIVEN_BY = ("_report", "_done", "_answered")


def reasons_of(node: ast.AST) -> Iterator[str]:
    """The reasons that a statement gives, without what they are filled with."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _GIVEN_BY:
        for argument in node.args:
            yield from filter(None, fixed(argument))
    elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "self._reason":
        yield from fixed(node.value)


def fixed(node: ast.AST) -> Iterator[str]:
    """The texts in an expression; of those that are filled in, what stands there in any case."""
    if isinstance(node, ast.JoinedStr):
        yield "".join(str(part.value) for part in node.values if isinstance(part, ast.Constant))
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    else:
        for child in ast.iter_child_nodes(node):
            yield from fixed(child)


def test_the_page_has_every_slow_step() -> None:
    sources = (REPOSITORY / "redis_module").rglob("*.c")
    steps = {
        step for path in sources for step in re.findall(r'slow_step\("([\w-]+)"', path.read_text(encoding="utf-8"))
    }
    part = PAGE[PAGE.index("## Slow steps") : PAGE.index("## History stores")]
    assert set(re.findall(r"^\| `([\w-]+)` \|", part, re.MULTILINE)) == steps
