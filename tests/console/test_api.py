"""The resources of the API against a real server: what they show, what they change, and what they refuse."""

from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import quote

import pytest
import redis

from holdmq import HoldMQ, Message, QueueBounds, commands
from holdmq_bridge.auth.store import Store
from holdmq_console.keys import AUDIT
from tests.bridge.talk import Talk
from tests.console.support import Api, ConsoleProcess, add_user
from tests.support import BridgeProcess, Server, embedded_kinds, eventually

server_kinds = embedded_kinds

# Not "." and "..": whatever speaks HTTP takes them for a way through folders.
ODD_IDS = ["a/b", "a%2Fb", "ä €", "{x}", "q?#&", "%", "queue", "a b", '"']


def place(client_id: str) -> str:
    return "/sessions/" + quote(client_id, safe="")


def walk(api: Api, path: str, **params: Any) -> list[Any]:
    """All items, page by page."""
    found: list[Any] = []
    cursor = ""
    for _ in range(1000):
        page = api.get(path, params={**params, "cursor": cursor})
        found += page["items"]
        cursor = page["next"]
        if cursor is None:
            return found
    raise AssertionError("the pages do not end")


def open_all(hold: HoldMQ, names: Sequence[str]) -> None:
    hold.execute_all([commands.session_open(name, "owner", expiry=60) for name in names])


def fill(hold: HoldMQ, client_id: str, count: int = 3) -> None:
    session = hold.session(client_id)
    session.open("owner", expiry=60)
    session.deliver(*(Message(topic=f"t/{number}", payload=b"%d" % number, qos=1) for number in range(1, count + 1)))


# --- Sessions ---------------------------------------------------------------------------------------------------------


def test_sessions_are_found_by_prefix(api: Api, hold: HoldMQ) -> None:
    names = sorted(
        f"{kind}{number:03}" for kind in ("a", "dev-", "dev", "dex", "z", "dev~", "dev}") for number in range(60)
    )
    open_all(hold, names)
    for prefix in ("", "dev", "dev-", "dev-0", "dev~", "dev}", "de", "a", "zz", "dev-059"):
        found = [one["client_id"] for one in walk(api, "/sessions", prefix=prefix, limit=37)]
        assert sorted(found) == [name for name in names if name.startswith(prefix)], prefix


def test_a_search_reads_only_the_sessions_with_its_prefix(api: Api, hold: HoldMQ, client: redis.Redis) -> None:
    open_all(hold, [*(f"m{number:04}" for number in range(3000)), "z"])
    client.config_resetstat()
    assert [one["client_id"] for one in api.get("/sessions", params={"prefix": "z"})["items"]] == ["z"]
    assert client.info("commandstats")["cmdstat_SESSION.LIST"]["calls"] == 1


def test_a_search_that_finds_nothing_costs_a_bounded_number_of_commands(
    api: Api, hold: HoldMQ, client: redis.Redis
) -> None:
    open_all(hold, [f"m{number:04}" for number in range(2500)])
    client.config_resetstat()
    page = api.get("/sessions", params={"user": "nobody"})
    assert page["items"] == []
    assert page["next"] is not None  # after 16 pages of the server, each of which ends early if its time is over
    while page["next"] is not None:
        page = api.get("/sessions", params={"user": "nobody", "cursor": page["next"]})
        assert page["items"] == []
    assert client.info("commandstats")["cmdstat_SESSION.LIST"]["calls"] >= 20


def test_sessions_are_found_by_user_and_state(api: Api, hold: HoldMQ) -> None:
    hold.session("c1").open("owner", expiry=60, identity="u:ann")
    one = hold.session("c2")
    one.open("owner", expiry=60)
    one.close()
    found = {
        state: [row["client_id"] for row in walk(api, "/sessions", state=state)] for state in ("connected", "away")
    }
    assert found == {"connected": ["c1"], "away": ["c2"]}
    assert [row["client_id"] for row in walk(api, "/sessions", user="u:ann")] == ["c1"]


@pytest.mark.parametrize("client_id", ODD_IDS)
def test_a_client_id_may_hold_any_character(api: Api, hold: HoldMQ, client_id: str) -> None:
    fill(hold, client_id)
    assert [one["client_id"] for one in walk(api, "/sessions", prefix=client_id)] == [client_id]
    assert api.get(place(client_id))["messages"] == 3
    assert len(api.get(place(client_id) + "/queue")["items"]) == 3
    assert client_id in api.http.get(place(client_id)).text.replace("&#34;", '"').replace("&amp;", "&")
    assert api.ask("DELETE", place(client_id)) == {"messages": 3}
    api.get(place(client_id), 404)


def test_a_session_is_shown_with_its_subscriptions(api: Api, hold: HoldMQ) -> None:
    session = hold.session("c1")
    opened = session.open("owner", expiry=60, identity="u:ann")
    session.subscribe("a/#", qos=2)
    session.subscribe("$share/g/b/+", qos=1)
    shown = api.get("/sessions/c1")
    assert (shown["owner"], shown["user"], shown["connected"], shown["epoch"]) == ("owner", "u:ann", True, opened.epoch)
    assert [(one["filter"], one["qos"]) for one in shown["subscriptions"]] == [("$share/g/b/+", 1), ("a/#", 2)]
    assert api.tag("/sessions/c1") == f'"{opened.epoch}"'


def test_a_session_with_another_epoch_is_not_touched(api: Api, hold: HoldMQ) -> None:
    fill(hold, "c1")
    old = api.tag("/sessions/c1")
    hold.session("c1").open("another", expiry=60)
    for method, path in (("DELETE", ""), ("DELETE", "/queue"), ("DELETE", "/queue/1"), ("POST", "/kick")):
        api.ask(method, f"/sessions/c1{path}", 412, headers={"If-Match": old}, json={} if method == "POST" else None)
    assert hold.session("c1").info().messages == 3
    api.ask("DELETE", "/sessions/c1", headers={"If-Match": api.tag("/sessions/c1")})


@pytest.mark.parametrize("tag", ["x", '"x"', "1", '"-1"', 'W/"1"', '""', '"99999999999999999999"'])
def test_what_is_not_an_etag_is_refused(api: Api, hold: HoldMQ, tag: str) -> None:
    fill(hold, "c1")
    refused = api.ask("DELETE", "/sessions/c1", 400, headers={"If-Match": tag})
    assert refused["errors"][0]["field"] == "If-Match"
    assert hold.session("c1").info().exists


def test_a_client_is_disconnected(api: Api, server: Server, bridge: Callable[..., BridgeProcess], hold: HoldMQ) -> None:
    made = bridge(server, arguments=["--report-interval-s", "0.3", "--sys-interval-s", "0"])
    eventually(hold.bridges, what="a report")
    talk = Talk.connected(made.port, "c1", clean=False)
    assert [one["client_id"] for one in api.get("/clients", params={"search": "c*"})["items"]] == ["c1"]
    name = api.get("/bridges")["items"][0]["name"]
    assert api.get(f"/bridges/{quote(name, safe='')}")["pid"] == made.pid
    assert api.ask("POST", "/sessions/c1/kick", 204, json={"why": "test"}) is None
    talk.expect_closed()
    talk.close()
    eventually(lambda: not api.get("/sessions/c1")["connected"], what="the end of the connection")


def test_a_bridge_shows_its_settings(api: Api, server: Server, bridge: Callable[..., BridgeProcess]) -> None:
    made = bridge(server, arguments=["--report-interval-s", "0.3", "--sys-interval-s", "0"])
    eventually(lambda: api.get("/bridges")["items"], what="a report")
    name = api.get("/bridges")["items"][0]["name"]
    path = f"/bridges/{quote(name, safe='')}"
    settings = {one["name"]: one["value"] for one in api.get(f"{path}/settings")["items"]}
    assert (settings["port"], settings["redis"]) == (str(made.port), server.url)
    assert name in api.http.get(path).text
    api.get("/bridges/nobody/settings", 404)


def test_a_bridge_is_drained(
    api: Api, server: Server, bridge: Callable[..., BridgeProcess], client: redis.Redis
) -> None:
    made = bridge(server, arguments=["--report-interval-s", "0.3", "--sys-interval-s", "0"])
    eventually(lambda: api.get("/bridges")["items"], what="a report")
    talk = Talk.connected(made.port, "c1")
    (one,) = api.get("/bridges")["items"]
    assert not one["draining"]
    api.ask("POST", "/bridges/nobody/drain", 404)
    assert api.ask("POST", f"/bridges/{quote(one['name'], safe='')}/drain", 202) == {"clients": 1}
    talk.expect_closed()
    talk.close()
    eventually(lambda: not made.running, what="the end of the bridge")
    entries: Any = client.xrange(AUDIT)
    assert [entry[b"what"] for _, entry in entries if entry[b"outcome"] == b"done"] == [b"bridge.drain"]


def test_links_are_shown_with_both_sides(api: Api, hold: HoldMQ, client: redis.Redis) -> None:
    session = hold.session("link:plant")
    session.open("link-host-1-ab", expiry=60)
    session.subscribe("out/#", qos=1)
    client.hset("{link:plant}_upstream", mapping={"at": "edge other:1883", "filters": '{"in/#": 1}'})
    hold.topics.publish("out/1", b"x", qos=1)
    hold.topics.publish("$SYS/broker/connection/plant/state", b"1", retain=True)
    idle_session = hold.session("link:idle")
    idle_session.open("link-host-2-cd", expiry=60)
    idle_session.close()
    hold.session("linked").open("somebody", expiry=60)
    idle, plant = api.get("/links")["items"]
    assert (idle["name"], idle["running"], idle["connected"], idle["remote"]) == ("idle", False, None, "")
    assert plant == {
        "name": "plant",
        "running": True,
        "connected": True,
        "process": "link-host-1-ab",
        "remote": "edge other:1883",
        "remote_filters": {"in/#": 1},
        "subscriptions": ["out/#"],
        "messages": 1,
        "dropped": 0,
    }
    assert "edge other:1883" in api.http.get("/server").text


def test_of_a_link_with_very_many_subscriptions_a_part_is_shown(api: Api, hold: HoldMQ) -> None:
    session = hold.session("link:plant")
    session.open("owner", expiry=60)
    for start in range(0, 3000, 500):
        session.subscribe(*(f"out/{number}" for number in range(start, start + 500)))
    (link,) = api.get("/links")["items"]
    assert 1000 <= len(link["subscriptions"]) < 2000


# --- Queues -----------------------------------------------------------------------------------------------------------


def test_a_queue_is_paged(api: Api, hold: HoldMQ) -> None:
    fill(hold, "c1", 25)
    found = walk(api, "/sessions/c1/queue", limit=10)
    assert [one["serial"] for one in found] == list(range(1, 26))
    assert [one["message"]["payload"]["text"] for one in found] == [str(number) for number in range(1, 26)]
    assert hold.session("c1").info().messages == 25


def test_a_queue_says_how_many_were_dropped_and_why(api: Api, hold: HoldMQ) -> None:
    session = hold.session("c1")
    session.open("owner", expiry=60, bounds=QueueBounds(max_bytes=3000, overflow="drop-oldest"))
    for _ in range(5):
        session.deliver(Message(topic="t", payload=b"x" * 1000, qos=1))
    found = api.get("/sessions/c1/queue")
    assert (found["messages"], found["dropped"], found["overflow"]) == (2, 3, "drop-oldest")
    shown = "3 were dropped because the queue was full (policy drop-oldest)"
    assert shown in api.http.get("/sessions/c1/queue").text


def test_a_message_is_looked_into_and_removed(api: Api, hold: HoldMQ) -> None:
    session = hold.session("c1")
    session.open("owner", expiry=60)
    session.deliver(Message(topic="t", payload=b"x" * 10_000, qos=1), Message(topic="b", payload=b"\xff\x00", qos=1))
    first, second = api.get("/sessions/c1/queue")["items"]
    assert (first["message"]["payload"]["size"], len(first["message"]["payload"]["text"])) == (10_000, 4096)
    assert first["message"]["payload"]["truncated"]
    assert second["message"]["payload"]["base64"] == "/wA="
    assert len(api.get("/sessions/c1/queue/1")["message"]["payload"]["text"]) == 10_000
    assert api.ask("DELETE", "/sessions/c1/queue/1") == {"messages": 1}
    api.ask("DELETE", "/sessions/c1/queue/1", 404)
    assert [one["serial"] for one in api.get("/sessions/c1/queue")["items"]] == [2]


def test_a_value_that_is_not_a_message_is_shown_as_it_is(api: Api, hold: HoldMQ) -> None:
    hold.session("c1").add(b"by a program")
    (one,) = api.get("/sessions/c1/queue")["items"]
    assert (one["message"], one["value"]["text"]) == (None, "by a program")


def test_the_queue_of_a_group_is_looked_into(api: Api, hold: HoldMQ) -> None:
    member = hold.session("c1")
    member.open("owner", expiry=60)
    member.subscribe("$share/g/a/#", qos=1)
    assert api.get(place("$share/g/a/#") + "/queue")["items"] == []
    assert "%24share%2Fg%2Fa%2F%23/queue" in api.http.get("/sessions/c1").text
    member.close()
    hold.topics.publish("a/b", b"waits", qos=1)
    (one,) = api.get(place("$share/g/a/#") + "/queue")["items"]
    assert one["message"]["payload"]["text"] == "waits"


def test_a_queue_is_emptied(api: Api, hold: HoldMQ) -> None:
    fill(hold, "c1", 5)
    assert api.ask("DELETE", "/sessions/c1/queue") == {"messages": 5}
    assert hold.session("c1").info().messages == 0


def test_messages_move_to_another_session(api: Api, hold: HoldMQ) -> None:
    fill(hold, "c1", 5)
    hold.session("c2").open("owner", expiry=60)
    move = {"to_session": "c2", "serials": [2, 4]}
    assert api.ask("POST", "/sessions/c1/queue/move", json=move) == {"messages": 2}
    assert [entry.serial for entry in hold.session("c1").entries()] == [1, 3, 5]
    moved = [entry.message for entry in hold.session("c2").entries()]
    assert [(one.topic, one.payload, one.qos) for one in moved if one] == [("t/2", b"2", 1), ("t/4", b"4", 1)]
    assert api.ask("POST", "/sessions/c1/queue/move", json={"to_session": "c2"}) == {"messages": 3}
    assert hold.session("c2").info().messages == 5


def test_messages_move_to_a_topic(api: Api, hold: HoldMQ) -> None:
    fill(hold, "c1", 3)
    hold.session("c2").open("owner", expiry=60)
    hold.session("c2").subscribe("dead/#")
    assert api.ask("POST", "/sessions/c1/queue/move", json={"to_topic": "dead/letters"}) == {"messages": 3}
    moved = [entry.message for entry in hold.session("c2").entries()]
    assert [(one.topic, one.payload) for one in moved if one] == [("dead/letters", b"%d" % n) for n in (1, 2, 3)]
    assert hold.session("c1").info().messages == 0


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        ({}, 422, "body"),
        ({"to_session": "c2", "to_topic": "x"}, 422, "body"),
        ({"to_session": "c1"}, 422, "to_session"),
        ({"to_session": "nobody"}, 404, "to_session"),
        ({"to_session": "full"}, 409, None),
        ({"to_topic": "a/+"}, 422, None),
        ({"to_topic": "nobody/listens"}, 409, "to_topic"),
        ({"to_session": "c2", "serials": [7]}, 404, "serial"),
        ({"to_session": "c2", "serials": [0]}, 422, "serials.0"),
        ({"to_session": "c2", "serials": []}, 422, "serials"),
        ({"to_session": "c2", "more": 1}, 422, "more"),
    ],
)
def test_a_message_that_cannot_move_stays(
    api: Api, hold: HoldMQ, client: redis.Redis, body: dict[str, object], status: int, field: str | None
) -> None:
    fill(hold, "c1", 2)
    hold.session("c2").open("owner", expiry=60)
    client.config_set("holdmq.session-limit", 2)
    client.config_set("holdmq.session-overflow", "drop-newest")
    fill(hold, "full", 2)
    refused = api.ask("POST", "/sessions/c1/queue/move", status, json=body)
    assert [one["field"] for one in refused["errors"]] == ([field] if field else [])
    assert [entry.serial for entry in hold.session("c1").entries()] == [1, 2]


# --- Topics, channels, history ----------------------------------------------------------------------------------------


def test_retained_messages_are_a_tree(api: Api, hold: HoldMQ) -> None:
    for topic in ("plant", "plant/1/state", "plant/1/power", "plant/2/state", "plant/3", "other", "/x"):
        hold.topics.publish(topic, topic.encode(), retain=True)
    top = api.get("/topics/tree")
    assert [(one["level"], one["has_message"], one["topics_below"]) for one in top["branches"]] == [
        ("", False, 1),
        ("other", True, 0),
        ("plant", True, 4),
    ]
    below = api.get("/topics/tree", params={"below": "plant"})
    assert [(one["topic"], one["has_message"], one["topics_below"]) for one in below["branches"]] == [
        ("plant/1", False, 2),
        ("plant/2", False, 1),
        ("plant/3", True, 0),
    ]
    found = api.get("/topics/retained", params={"filter": "plant/+/state"})
    assert ([one["payload"]["text"] for one in found["items"]], found["complete"]) == (
        ["plant/1/state", "plant/2/state"],
        True,
    )
    assert not api.get("/topics/retained", params={"limit": 2})["complete"]


def test_a_retained_message_that_was_replaced_meanwhile_is_not_touched(api: Api, hold: HoldMQ) -> None:
    hold.topics.publish("a/b", b"1", retain=True)
    tag = api.tag("/topics/a%2Fb/retained")
    assert api.tag("/topics/a%2Fb/retained") == tag
    body = {"topic": "a/b", "text": "2", "retain": True}
    api.ask("POST", "/topics/publish", 422, json={**body, "retain": False}, headers={"If-Match": tag})
    api.ask("POST", "/topics/publish", json=body, headers={"If-Match": tag})
    api.ask("POST", "/topics/publish", 412, json={**body, "text": "3"}, headers={"If-Match": tag})
    api.ask("DELETE", "/topics/a%2Fb/retained", 412, headers={"If-Match": tag})
    assert [one.payload for one in hold.topics.retained_messages("a/b")] == [b"2"]
    api.ask("DELETE", "/topics/a%2Fb/retained", 204, headers={"If-Match": api.tag("/topics/a%2Fb/retained")})
    api.ask("POST", "/topics/publish", 412, json=body, headers={"If-Match": tag})
    assert hold.topics.retained_messages("#") == ()


def test_a_retained_message_is_shown_and_cleared(api: Api, hold: HoldMQ) -> None:
    hold.topics.publish("a/b", b"on", retain=True, qos=1)
    assert api.get("/topics/a%2Fb/retained")["payload"]["text"] == "on"
    api.ask("DELETE", "/topics/a%2Fb/retained", 204)
    assert hold.topics.retained_message("a/b") is None
    api.ask("DELETE", "/topics/a%2Fb/retained", 404)


def test_a_message_is_published(api: Api, hold: HoldMQ) -> None:
    hold.session("c1").open("owner", expiry=60)
    hold.session("c1").subscribe("a/#", qos=2)
    body = {"topic": "a/b", "base64": "/wA=", "qos": 2, "retain": True, "ttl_s": 60}
    assert api.ask("POST", "/topics/publish", json=body) == {"sessions": 1}
    (entry,) = hold.session("c1").entries()
    assert entry.message is not None
    assert (entry.message.payload, entry.message.qos) == (b"\xff\x00", 2)
    kept = hold.topics.retained_message("a/b")
    assert kept is not None
    assert kept.expires_ms is not None


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"text": "x"}, "topic"),
        ({"topic": "", "text": "x"}, "topic"),
        ({"topic": "a", "qos": 3}, "qos"),
        ({"topic": "a", "ttl_s": -1}, "ttl_s"),
        ({"topic": "a", "base64": "!"}, "body"),
        ({"topic": "a", "text": "x", "base64": "eA=="}, "body"),
        ({"topic": "a", "retained": True}, "retained"),
        ([], "body"),
    ],
)
def test_a_publish_that_is_wrong_names_the_field_and_publishes_nothing(
    api: Api, hold: HoldMQ, body: object, field: str
) -> None:
    hold.session("c1").open("owner", expiry=60)
    hold.session("c1").subscribe("#")
    refused = api.ask("POST", "/topics/publish", 422, json=body)
    assert [one["field"] for one in refused["errors"]] == [field]
    assert hold.session("c1").info().messages == 0


def test_the_receivers_of_a_topic_are_listed(api: Api, hold: HoldMQ) -> None:
    for number in range(12):
        hold.session(f"c{number:02}").subscribe("plant/+/state", qos=1)
    hold.session("worker").subscribe("$share/g/plant/#", qos=2)
    found = walk(api, "/filters/matches", topic="plant/1/state", limit=5)
    assert len(found) == 13
    assert {"filter": "plant/+/state", "client_id": "c03", "qos": 1, "members": None} in found
    group = "$share/g/plant/#"
    assert {"filter": group, "client_id": group, "qos": None, "members": 1} in found
    assert api.get("/filters/matches", params={"topic": "other"}) == {"items": [], "next": None, "complete": True}
    page = api.http.get("/filters", params={"topic": "plant/1/state"}).text
    assert "c03" in page
    assert "one of 1 members" in page
    for wrong in ({"topic": "a/+"}, {"topic": ""}, {}):
        refused = api.get("/filters/matches", 422, params=wrong)
        assert refused["errors"][0]["field"] == "topic"


def test_channels_and_groups_are_listed(api: Api, hold: HoldMQ) -> None:
    for number in range(12):
        hold.channel(f"news/{number:02}").publish("m")
        hold.session("worker").subscribe(f"$share/g{number:02}/x/{number}", qos=1)
    hold.topics.publish("x/3", b"waits", qos=1)
    channels = walk(api, "/channels", limit=5)
    assert channels == [{"name": f"news/{number:02}", "held": 1, "keeps_last": False} for number in range(12)]
    groups = walk(api, "/groups", limit=5)
    expected = [(f"$share/g{number:02}/x/{number}", 1, int(number == 3)) for number in range(12)]
    assert [(one["filter"], one["members"], one["messages"]) for one in groups] == expected
    assert "news/07" in api.http.get("/channels").text
    assert "$share/g07/x/7" in api.http.get("/filters").text


def test_a_live_view_leaves_no_session_even_if_its_connections_were_lost(
    api: Api, hold: HoldMQ, client: redis.Redis
) -> None:
    with api.http.stream("GET", "/live/events", params={"filter": "a/#"}) as events:
        lines = events.iter_lines()
        assert next(lines) == "event: open"
        assert [row.client_id[:8] for row in hold.sessions()] == ["console:"]
        client.client_kill_filter(_type="normal", skipme=True)
    eventually(lambda: not list(hold.sessions()), 30, "the end of the live view's session")


def test_a_channel_shows_its_policy_and_what_it_holds(api: Api, hold: HoldMQ) -> None:
    for number in range(5):
        hold.channel("news/1").publish(f"n{number}")
    shown = api.get("/channels/news%2F1")
    assert (shown["held"], shown["last"]["text"], shown["policy"]["glob"]) == (5, "n4", "*")
    assert [one["text"] for one in walk(api, "/channels/news%2F1/messages", limit=2)] == ["n0", "n1", "n2", "n3", "n4"]
    assert api.ask("DELETE", "/channels/news%2F1/messages") == {"messages": 5}
    assert api.get("/channels/news%2F1")["held"] == 0
    api.ask("DELETE", "/channels/news%2F1/messages", 404)


def test_a_range_of_history_is_replayed(api: Api, hold: HoldMQ) -> None:
    hold.history.create("plants", "plant/#", shards=2, age="1h", max_bytes=1_000_000)
    for number in range(25):
        hold.topics.publish(f"plant/{number % 3}/t", str(number), qos=1)
    assert [one["name"] for one in api.get("/history/stores")["items"]] == ["plants"]
    store = api.get("/history/stores/plants")
    assert (store["messages"], store["store"]["age_s"], len(store["shards"])) == (25, 3600, 2)
    patterns = [api.get("/history/stores/plants/patterns", params={"shard": shard}) for shard in (0, 1)]
    assert sum(one["messages"] for part in patterns for one in part["items"]) == 25
    assert "Patterns of shard 1" in api.http.get("/history/plants", params={"shard": 1}).text
    api.get("/history/stores/plants/patterns", 422, params={"shard": 2})
    api.get("/history/stores/none/patterns", 404)
    found = walk(api, "/history/replay", filter="plant/+/t", start="earliest", limit=10)
    assert sorted(int(one["payload"]["text"]) for one in found) == list(range(25))
    one = [int(row["payload"]["text"]) for row in walk(api, "/history/replay", filter="plant/1/t", start="1h")]
    assert one == list(range(1, 25, 3))
    assert (
        walk(api, "/history/replay", filter="plant/#", start="2020-01-01T00:00:00Z", end="2020-01-02T00:00:00Z") == []
    )
    api.get("/history/stores/none", 404)
    api.get("/history/replay", 404, params={"filter": "elsewhere/#"})
    for wrong in ({"start": "yesterday"}, {"filter": "a/#/b"}, {"cursor": "x"}):
        api.get("/history/replay", 422, params={"filter": "plant/#", **wrong})


# --- Users, roles, bans -----------------------------------------------------------------------------------------------


def administrator(api: Api, client: redis.Redis) -> Store:
    store = add_user(client, "root", "admin")
    api.log_in("root")
    return store


def test_users_are_added_changed_and_removed(api: Api, client: redis.Redis) -> None:
    store = administrator(api, client)
    store.add_role("sensor")
    body = {
        "name": "ann/1",
        "password": "p",
        "roles": ["sensor", "viewer"],
        "clients": ["ann-*"],
        "rules": ["allow publish a/%c/#"],
        "quota": {"sessions": 3},
        "overflow": "refuse",
    }
    api.ask("POST", "/users", 201, json=body)
    shown = api.get("/users/ann%2F1")
    assert (shown["has_password"], shown["roles"], shown["rules"]) == (True, ["sensor", "viewer"], body["rules"])
    assert (shown["quota"]["sessions"], shown["overflow"]) == (3, "refuse")
    api.ask("PATCH", "/users/ann%2F1", json={"enabled": False, "password": ""})
    user = store.user("ann/1")
    assert (user.enabled, user.password, user.roles) == (False, "", ("sensor", "viewer"))
    assert [one["name"] for one in walk(api, "/users", limit=1)] == ["ann/1", "root"]
    api.ask("DELETE", "/users/ann%2F1", 204)
    api.ask("DELETE", "/users/ann%2F1", 404)


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        ({}, 422, "name"),
        ({"name": ""}, 422, "name"),
        ({"name": "a\x07"}, 422, None),
        ({"name": "root"}, 409, None),
        ({"name": "a", "roles": ["nobody's"]}, 409, None),
        ({"name": "a", "rules": ["allow publish a", "permit all #"]}, 422, "rules.1"),
        ({"name": "a", "quota": {"sessions": -1}}, 422, "quota.sessions"),
        ({"name": "a", "overflow": "explode"}, 422, "overflow"),
        ({"name": "a", "admin": True}, 422, "admin"),
    ],
)
def test_a_user_that_is_wrong_is_not_added(
    api: Api, client: redis.Redis, body: dict[str, object], status: int, field: str | None
) -> None:
    store = administrator(api, client)
    before = store.version()
    refused = api.ask("POST", "/users", status, json=body)
    assert [one["field"] for one in refused["errors"]] == ([field] if field else [])
    assert store.version() == before


def test_roles_and_rules_are_edited_and_bridges_are_notified(api: Api, client: redis.Redis) -> None:
    store = administrator(api, client)
    told = client.pubsub(ignore_subscribe_messages=True)
    told.subscribe("__holdmq__:auth")
    told.get_message(timeout=5)
    api.ask("POST", "/roles", 201, json={"name": "sensor", "rules": ["allow publish a/#"]})
    api.ask("PUT", "/roles/sensor", json={"rules": ["deny publish a/secret", "allow publish a/#"]})
    api.ask("PUT", "/roles/everybody", json={"rules": ["allow subscribe public/#"]})
    assert [str(rule) for rule in store.policy().roles["sensor"]] == ["deny publish a/secret", "allow publish a/#"]
    assert told.get_message(timeout=5) is not None
    roles = {one["name"]: one for one in api.get("/roles")["items"]}
    assert (roles["everybody"]["built_in"], roles["sensor"]["built_in"]) == (True, False)
    api.ask("PUT", "/roles/none", 404, json={"rules": []})
    api.ask("DELETE", "/roles/everybody", 409)
    api.ask("DELETE", "/roles/admin", 409)
    api.ask("DELETE", "/roles/sensor", 204)
    told.close()


def test_an_edit_of_what_somebody_else_has_edited_is_refused(api: Api, client: redis.Redis) -> None:
    store = administrator(api, client)
    store.add_role("sensor")
    old = api.tag("/roles/sensor")
    store.block("thief")
    for method, path, body in (
        ("PUT", "/roles/sensor", {"rules": ["allow all #"]}),
        ("DELETE", "/roles/sensor", None),
        ("POST", "/roles", {"name": "x"}),
        ("PATCH", "/users/root", {"superuser": True}),
        ("DELETE", "/users/root", None),
        ("POST", "/users", {"name": "x", "roles": ["viewer"]}),
        ("PUT", "/bans/x", {}),
        ("DELETE", "/bans/thief", None),
    ):
        api.ask(method, path, 412, json=body, headers={"If-Match": old})
    assert store.policy().roles == {"admin": (), "sensor": ()}
    api.ask("PUT", "/roles/sensor", json={"rules": ["allow all #"]}, headers={"If-Match": api.tag("/roles/sensor")})


def test_bans_are_set_and_lifted(api: Api, client: redis.Redis) -> None:
    store = administrator(api, client)
    api.ask("PUT", "/bans/thief-%2A", 204, json={"why": "stolen"})
    assert store.blocked() == {"thief-*": "stolen"}
    assert api.get("/bans")["items"] == [{"pattern": "thief-*", "why": "stolen"}]
    api.ask("DELETE", "/bans/thief-%2A", 204)
    api.ask("DELETE", "/bans/thief-%2A", 404)


def test_the_rule_that_decides_is_named(api: Api, client: redis.Redis) -> None:
    store = administrator(api, client)
    store.add_role("sensor")
    api.ask("PUT", "/roles/sensor", json={"rules": ["allow publish sensors/%c/#"]})
    api.ask("POST", "/users", 201, json={"name": "s", "roles": ["sensor"], "clients": ["s*"]})

    def ask(**params: str) -> Any:
        return api.get("/access", params={"user": "s", "client_id": "s7", "topic": "sensors/s7/t", **params})

    assert ask() == {
        "allowed": True,
        "because": "rule 1 of role sensor: allow publish sensors/%c/# (here: sensors/s7/#)",
    }
    assert ask(topic="sensors/s8/t") == {"allowed": False, "because": "no rule applies"}
    assert not ask(client_id="t1")["allowed"]
    assert not ask(user="")["allowed"]
    api.get("/access", 404, params={"user": "nobody", "topic": "x"})
    refused = api.get("/access", 422, params={"topic": "a/+", "user": "s", "client_id": "s7"})
    assert refused["errors"][0]["field"] == "topic"


# --- The server -------------------------------------------------------------------------------------------------------


def test_the_server_and_its_settings_are_shown(api: Api, server: Server, client: redis.Redis) -> None:
    (node,) = api.get("/nodes")["items"]
    assert node["address"] == f"127.0.0.1:{server.port}"
    assert node["server"]["role"] == "master"
    assert "holdmq_topic_published" in node["holdmq"]
    client.config_set("holdmq.session-limit", 4321)
    settings = {one["name"]: one["value"] for one in api.get("/settings")["items"]}
    assert settings["holdmq.session-limit"] == "4321"


def test_the_overview_finds_the_longest_queues(api: Api, hold: HoldMQ) -> None:
    for number in range(30):
        fill(hold, f"c{number}", number + 1)

    def longest() -> list[str]:
        return [one["client_id"] for one in api.get("/overview")["longest"][:3]]

    eventually(lambda: longest() == ["c29", "c28", "c27"], 30, "a survey of the queues")
    eventually(lambda: api.get("/overview")["now"]["queued"] == sum(range(1, 31)), 30, "a count of the queues")
    points = api.get("/overview/curves")["points"]
    assert points[-1]["at"] >= points[0]["at"]


def test_the_overview_shows_how_long_publishers_wait_for_acknowledgements(
    api: Api, server: Server, bridge: Callable[..., BridgeProcess]
) -> None:
    assert api.get("/overview")["bridges"] == 0
    made = bridge(server, arguments=["--report-interval-s", "0.5", "--sys-interval-s", "0"])
    with Talk.connected(made.port, "publisher") as talk:

        def point() -> dict[str, Any]:
            talk.publish("t", b"x", pid=1)
            return api.get("/overview")["now"] or {}

        eventually(lambda: point().get("acknowledge_p99_ms") is not None, 30, "a time of publishes")
        (item,) = api.get("/bridges")["items"]
        assert item["acknowledge_p99_ms"] >= item["acknowledge_p50_ms"] > 0


def test_without_the_server_the_console_says_so(fresh_server: Callable[..., Server], tmp_path: Any) -> None:
    own = fresh_server()
    console = ConsoleProcess(own.url, tmp_path)
    console.start()
    own.close()
    api = Api(console)
    assert api.get("/me", 503)["title"] == "Service Unavailable"
    assert api.http.get("/").status_code == 503
    api.http.close()
    console.close()


@pytest.mark.parametrize("cursor", ["x", "!", "e3h9" * 3000, "MA", "-1", "1.5"])
def test_what_is_not_a_cursor_is_refused(api: Api, hold: HoldMQ, cursor: str) -> None:
    fill(hold, "c1")
    for path in (
        "/sessions",
        "/sessions/c1/queue",
        "/channels/x/messages",
        "/audit",
        "/filters/matches",
        "/channels",
        "/groups",
    ):
        refused = api.get(path, 422, params={"cursor": cursor, **({"topic": "a"} if "filters" in path else {})})
        assert refused["errors"][0]["field"] == "cursor"


@pytest.mark.parametrize(
    "path", ["/sessions", "/sessions/c1/queue", "/channels/x/messages", "/audit", "/users", "/history/replay"]
)
def test_a_cursor_of_bytes_that_are_not_text_is_refused(api: Api, hold: HoldMQ, path: str) -> None:
    fill(hold, "c1")
    hold.history.create("plants", "plant/#", age="1h")
    refused = api.get(path, 422, params={"cursor": "_w", **({"filter": "plant/#"} if "replay" in path else {})})
    assert refused["errors"][0]["field"] == "cursor"


@pytest.mark.parametrize(
    "path",
    [
        *("/sessions/%FF", "/sessions/%FF/queue", "/sessions/%FF/queue/1", "/topics/%FF/retained", "/channels/%FF"),
        *("/history/stores/%FF", "/users/%FF", "/roles/%FF", "/bridges/%FF"),
    ],
)
def test_a_name_of_bytes_that_are_not_text_is_not_a_defect(api: Api, path: str) -> None:
    answer = api.http.get(f"/api/v1{path}")
    assert answer.status_code in (200, 404, 422), answer.text


@pytest.mark.parametrize(
    ("method", "path"),
    [
        *(("DELETE", path) for path in ("/sessions/%FF", "/sessions/%FF/queue", "/sessions/%FF/queue/1")),
        *(("DELETE", path) for path in ("/topics/%FF/retained", "/channels/%FF/messages", "/bans/%FF", "/tokens/%FF")),
        *(("DELETE", path) for path in ("/users/%FF", "/roles/%FF")),
        *(("POST", "/sessions/%FF/kick"), ("PATCH", "/users/%FF"), ("PUT", "/roles/%FF")),
    ],
)
def test_a_change_of_such_a_name_changes_nothing(api: Api, method: str, path: str) -> None:
    answer = api.http.request(
        method, f"/api/v1{path}", json=None if method == "DELETE" else {"rules": []} if "roles" in path else {}
    )
    assert answer.status_code in (404, 409, 422), answer.text


def test_an_argument_that_a_resource_does_not_have_is_refused(api: Api) -> None:
    refused = api.get("/sessions", 422, params={"limt": 5})
    assert refused["errors"][0]["field"] == "limt"
    assert "limit" in refused["detail"]


def test_what_is_not_there_is_a_problem(api: Api) -> None:
    api.get("/nowhere", 404)
    api.ask("PUT", "/sessions", 405)
    api.get("/sessions/nobody", 404)
    assert api.http.get("/nowhere").status_code == 404
