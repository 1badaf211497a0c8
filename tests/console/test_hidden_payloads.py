"""A viewer without the right to read payloads asks for everything that the API and the pages have."""

import base64
import hashlib
import json
from collections.abc import Callable
from urllib.parse import quote

import pytest
import redis

from holdmq import HoldMQ, Message
from holdmq_console.keys import AUDIT
from tests.console.support import API, Api, add_user
from tests.support import embedded_kinds, eventually

server_kinds = embedded_kinds
Connect = Callable[..., Api]

MARK = "zq7marked"
PAYLOAD = f"{MARK}-payload-0123456789".encode()
PLACES = {
    "client_id": "c1",
    "serial": "1",
    "topic": "plant/1",
    "name": "plants",
    "channel": "news",
    "user": "ann",
    "role": "viewer",
}
ARGUMENTS = {"filter": "#", "start": "earliest", "topic": "plant/1", "client_id": "c1", "name": "news"}
PAGES = (
    "/",
    "/sessions",
    "/sessions/c1",
    "/sessions/c1/queue",
    "/sessions/c1/queue/1",
    "/topics",
    "/topics?filter=%23",
    "/filters?topic=plant/1",
    "/live?filter=%23",
    "/history",
    "/history?filter=plant/%23&start=earliest",
    "/history/plants",
    "/channels",
    "/channels?name=news",
    "/users",
    "/users/ann",
    "/bans",
    "/server",
    "/tokens",
    "/audit",
)


def traces(text: str) -> list[str]:
    """The forms of the payload that a text holds."""
    forms = [MARK, MARK.encode().hex(), *(base64.b64encode(b"x" * n + MARK.encode())[4:-4].decode() for n in range(3))]
    return [form for form in forms if form in text]


@pytest.fixture
def marked(client: redis.Redis, hold: HoldMQ) -> HoldMQ:
    """The payload is everywhere."""
    hold.history.create("plants", "plant/#", age="1h")
    hold.session("c1").open("owner", expiry=60)
    hold.session("c1").subscribe("plant/#", qos=1)
    hold.topics.publish("plant/1", PAYLOAD, qos=1, retain=True)
    hold.session("c1").deliver(Message(topic="plant/2", payload=PAYLOAD, qos=1))
    hold.channel("news").publish(PAYLOAD)
    add_user(client, "ann", "viewer")
    add_user(client, "root", "admin")
    add_user(client, "eve", "admin", "payloads")
    return hold


def reached(api: Api) -> dict[str, str]:
    """Every operation of the API, asked with arguments that fit and with ones that do not: the answers with headers."""
    found = {}
    for path, of_path in api.http.get(API + "/openapi.json").json()["paths"].items():
        for method, operation in of_path.items():
            place = "/".join(place_of(path, part[1:-1]) if part[:1] == "{" else part for part in path.split("/"))
            names = [one["name"] for one in operation.get("parameters", []) if one["in"] == "query"]
            for arguments in ({}, {name: ARGUMENTS[name] for name in names if name in ARGUMENTS}, {"cursor": "x"}):
                if method != "get" and arguments:
                    continue
                answer = api.http.request(method.upper(), place, params=arguments)
                assert answer.status_code < 500, (method, path, answer.text)
                found[f"{method} {place} {arguments}"] = answer.text + str(answer.headers)
    return found


def place_of(path: str, name: str) -> str:
    """What stands for a name in a path."""
    if name == "name":
        return {"channels": "news", "users": "ann", "roles": "viewer"}.get(path.split("/")[3], "plants")
    return quote(PLACES.get(name, "1"), safe="")


@pytest.mark.parametrize("user", ["ann", "root"])
@pytest.mark.usefixtures("marked")
def test_no_answer_holds_a_payload_for_who_may_not_read_it(user: str, api: Api, connect: Connect) -> None:
    reader = connect()
    reader.log_in("eve")
    shown = [path for path in PAGES if traces(reader.http.get(path).text)]
    assert {"/sessions/c1/queue", "/topics?filter=%23", "/channels?name=news"} <= set(shown)
    assert "/history?filter=plant/%23&start=earliest" in shown
    api.log_in(user)
    for path in PAGES:
        assert not traces(api.http.get(path).text), path
    answers = reached(api)
    assert len(answers) > 40
    assert [path for path, text in answers.items() if traces(text)] == []


def test_no_error_and_no_entry_of_the_audit_stream_holds_one(api: Api, client: redis.Redis, marked: HoldMQ) -> None:
    api.log_in("root")
    for body in (
        {"topic": "a/#", "text": MARK},
        {"topic": "a", "text": MARK, "base64": MARK},
        {"topic": "a", "base64": MARK + "!"},
        {"topic": "a", "text": MARK, "qos": 7},
        {"topic": "a", "text": MARK, "retain": True},
    ):
        answer = api.http.post(API + "/topics/publish", json=body)
        assert answer.status_code in (200, 422), answer.text
        assert not traces(answer.text), body
    assert marked.topics.retained_message("a") is not None
    assert not traces(str(client.xrange(AUDIT)))
    assert not traces(api.http.get("/audit").text)


def test_the_etag_of_a_retained_message_confirms_no_guess(api: Api, client: redis.Redis, hold: HoldMQ) -> None:
    """All but the payload of a message is shown to a viewer, who could try every payload that is likely."""
    add_user(client, "ann", "viewer")
    hold.topics.publish("door", b"open", retain=True)
    message = hold.topics.retained_message("door")
    assert message is not None
    api.log_in("ann")
    guess = (message.topic, b"open", message.qos, message.publisher, message.time_ms, message.properties)
    digest = hashlib.sha256(repr(guess).encode("utf-8", "surrogateescape")).digest()
    assert api.tag("/topics/door/retained") != f'"{int.from_bytes(digest[:8]) >> 1}"'


@pytest.mark.timeout(60)
def test_a_live_view_shows_none_and_ends_with_its_token(api: Api, connect: Connect, marked: HoldMQ) -> None:
    api.log_in("ann")
    made = api.ask("POST", "/tokens", 201, json={"name": "t", "rights": ["view"]})
    script = connect(Authorization=f"Bearer {made['token']}")
    found = []
    with script.http.stream("GET", "/live/events?filter=%23", timeout=10) as answer:
        for line in answer.iter_lines():
            found.append(line)
            if line == "event: open":
                marked.topics.publish("plant/3", PAYLOAD)
            if line == "event: message":
                api.ask("DELETE", f"/tokens/{made['id']}", 204)
    assert "event: message" in found
    assert "event: trouble" in found  # it ends by itself
    assert not traces("\n".join(found))
    assert json.loads(found[found.index("event: trouble") + 1].removeprefix("data: "))["detail"].startswith("the token")
    script.get("/history/replay?filter=plant/%23&start=earliest", 401)
    eventually(lambda: [row.client_id for row in marked.sessions()] == ["c1"], 30, "the end of the view's session")
