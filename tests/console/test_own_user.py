"""The console's own user of the server: the rights of docs/access.md are enough, and one that is missing is named."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
import redis

from holdmq import HoldMQ
from tests.bridge.talk import Talk
from tests.console.support import Api, ConsoleProcess
from tests.support import BridgeProcess, Server, embedded_kinds, eventually
from tests.support.pages import blocks

server_kinds = embedded_kinds

PAGES = (
    *("/", "/parts/overview", "/sessions", "/sessions/c1", "/sessions/c1/queue", "/sessions/c1/queue/1", "/topics"),
    *("/topics?below=plant", "/topics?filter=plant/%23", "/live", "/filters", "/filters?topic=plant/1", "/history"),
    *("/history?filter=plant/%23&start=1h", "/history/plants", "/channels", "/channels?name=news", "/users", "/bans"),
    *("/server", "/tokens", "/audit", "/api/v1/overview/curves", "/api/v1/links", "/api/v1/clients"),
    *("/api/v1/history/stores/plants/patterns", "/api/v1/topics/plant%2F1/retained", "/api/v1/access?topic=a"),
)


@pytest.fixture
def console_of(server: Server, tmp_path: Path) -> Iterator[Callable[..., ConsoleProcess]]:
    """Starts a console that logs in to the server as this user."""
    made: list[ConsoleProcess] = []

    def make(user: str, password: str) -> ConsoleProcess:
        url = server.url.replace("redis://", f"redis://{user}:{password}@")
        made.append(ConsoleProcess(url, tmp_path, environment={"HOLDMQ_CONSOLE_SAMPLE_INTERVAL_S": "0.2"}))
        made[-1].start()
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_a_right_that_the_consoles_own_user_lacks_is_named(
    client: redis.Redis, console_of: Callable[..., ConsoleProcess]
) -> None:
    client.execute_command("ACL", "SETUSER", "poor", "on", ">x", "~*", "&*", "+@all", "-session.list")
    api = Api(console_of("poor", "x"))
    problem = api.get("/sessions", 500)
    assert "the console's own user of the server" in problem["detail"]
    assert "'session.list'" in problem["detail"].lower()
    page = api.http.get("/sessions")
    assert page.status_code == 500
    assert "session.list" in page.text.lower()
    assert api.http.get("/users").status_code == 200
    client.execute_command("ACL", "SETUSER", "poor", "+session.list")
    assert api.get("/sessions") == {"items": [], "next": None}
    api.http.close()


def test_the_documented_user_is_refused_nothing(
    client: redis.Redis,
    server: Server,
    hold: HoldMQ,
    bridge: Callable[..., BridgeProcess],
    console_of: Callable[..., ConsoleProcess],
) -> None:
    lines = [line.split() for block in blocks("docs/access.md", "redis") for line in block.text.splitlines()]
    [words] = [words for words in lines if words[2] == "console"]
    client.execute_command(*words)
    client.acl_log_reset()
    hold.history.create("plants", "plant/#", age="1h", max_bytes=10_000_000)
    session = hold.session("c1")
    session.open("owner", expiry=60)
    session.subscribe("plant/#", qos=1)
    hold.topics.publish("plant/1", b"x", qos=1, retain=True)
    hold.topics.publish("plant/1", b"y", qos=1)
    hold.channel("news").publish("unheard")
    made = bridge(server, arguments=["--report-interval-s", "0.3", "--sys-interval-s", "0"])
    api = Api(console_of("console", words[4].removeprefix(">")))
    eventually(lambda: api.get("/bridges")["items"], what="a report")
    (one,) = api.get("/bridges")["items"]
    place = f"/bridges/{quote(one['name'], safe='')}"
    for path in (*PAGES, place, f"/api/v1{place}/settings"):
        assert api.http.get(path).status_code == 200, path
    with api.http.stream("GET", "/live/events?filter=plant/%23") as live:
        assert next(live.iter_lines()) == "event: open"
    api.ask("POST", "/topics/publish", json={"topic": "plant/2", "text": "x", "retain": True})
    api.ask("DELETE", "/topics/plant%2F2/retained", 204)
    api.ask("POST", "/sessions/c1/queue/move", json={"serials": [1], "to_topic": "plant/3"})
    api.ask("DELETE", "/sessions/c1/queue/2")
    api.ask("DELETE", "/sessions/c1/queue")
    talk = Talk.connected(made.port, "c2", clean=False)
    api.ask("POST", "/sessions/c2/kick", 204, json={})
    talk.expect_closed()
    talk.close()
    api.ask("DELETE", "/sessions/c1")
    api.ask("DELETE", "/channels/news/messages")
    api.ask("PUT", "/bans/x", 204, json={})
    api.ask("DELETE", "/bans/x", 204)
    api.ask("POST", place + "/drain", 202)
    api.ask("POST", "/users", 201, json={"name": "ann", "password": "correct horse", "roles": ["admin"]})
    api.log_in("ann")
    token = api.ask("POST", "/tokens", 201, json={"name": "t"})
    api.ask("PUT", "/roles/admin", json={"rules": ["allow publish a"]})
    api.ask("DELETE", f"/tokens/{token['id']}", 204)
    api.http.post("/logout", data={"csrf": api.http.headers["X-CSRF-Token"]})
    api.log_in("ann")
    api.ask("DELETE", "/users/ann", 204)
    api.http.close()
    denied = [entry["object"] for entry in client.acl_log() if entry["username"] == "console"]
    assert denied == [], json.dumps(denied)
