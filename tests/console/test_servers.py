"""A console of a service of Sentinels, which fails over, and one of a cluster; its connections."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdmq import HoldMQ, Message
from holdmq_bridge.auth.records import USERS
from holdmq_console import primary as primary_of_console
from holdmq_console.broker import Broker, ServerUrl
from holdmq_console.problems import ProblemError
from tests.bridge.uplink.support import LinkProcess, Mosquitto
from tests.console.support import API, Api, ConsoleProcess, add_user
from tests.support import BridgeProcess, Cluster, SentinelProcess, Server, embedded_kinds, eventually
from tests.support.sentinel import SERVICE

server_kinds = embedded_kinds
FAILOVER_S = 60.0


@pytest.fixture
def console_of(tmp_path: Path) -> Iterator[Callable[..., ConsoleProcess]]:
    """Starts consoles of other servers; further words go before `console`."""
    made: list[ConsoleProcess] = []

    def make(url: str, *before: str) -> ConsoleProcess:
        environment = {"HOLDMQ_CONSOLE_SAMPLE_INTERVAL_S": "0.2"}
        made.append(ConsoleProcess(url, tmp_path, environment=environment, before=before))
        made[-1].start()
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_a_console_of_sentinels_follows_the_primary(
    fresh_server: Callable[..., Server],
    fresh_sentinel: Callable[[Server], SentinelProcess],
    console_of: Callable[..., ConsoleProcess],
) -> None:
    primary = fresh_server()
    replica = fresh_server(replica_of=primary)
    watcher = fresh_sentinel(primary)
    add_user(primary.client(), "ann", "admin", "payloads")
    HoldMQ(primary.client()).session("c1").deliver(Message(topic="a", payload=b"x", qos=1))
    api = Api(console_of(f"sentinel://127.0.0.1:{watcher.port}/{SERVICE}"))
    api.log_in("ann")
    assert [one["address"] for one in api.get("/nodes")["items"]] == [f"127.0.0.1:{primary.port}"]
    api.ask("PUT", "/bans/before", 204, json={})
    assert primary.client().wait(1, 5000) == 1
    primary.kill()
    eventually(lambda: watcher.names(replica), FAILOVER_S, "a sentinel that names the new primary")

    def is_back() -> bool:
        answer = api.http.get(f"{API}/nodes")
        assert answer.status_code in (200, 503), answer.text
        return answer.status_code == 200

    eventually(is_back, FAILOVER_S, "a console that has followed")
    [node] = api.get("/nodes")["items"]
    assert (node["address"], node["server"]["role"]) == (f"127.0.0.1:{replica.port}", "master")
    api.ask("PUT", "/bans/after", 204, json={})  # the login goes on
    assert [one["pattern"] for one in api.get("/bans")["items"]] == ["after", "before"]
    assert api.ask("DELETE", "/sessions/c1/queue") == {"messages": 1}
    eventually(lambda: not api.get("/overview")["trouble"], what="curves that go on")
    api.http.close()


def test_no_change_is_confirmed_that_a_planned_failover_loses(
    fresh_server: Callable[..., Server],
    fresh_sentinel: Callable[[Server], SentinelProcess],
    console_of: Callable[..., ConsoleProcess],
) -> None:
    """The former primary takes writes for ten seconds more, and loses them."""
    primary = fresh_server()
    replica = fresh_server(replica_of=primary)
    watcher = fresh_sentinel(primary)
    api = Api(console_of(f"sentinel://127.0.0.1:{watcher.port}/{SERVICE}"))
    api.ask("PUT", "/bans/before", 204, json={})
    assert primary.client().wait(1, 5000) == 1
    confirmed = ["before"]
    number = 0

    def change() -> None:
        nonlocal number
        number += 1
        answer = api.http.put(f"{API}/bans/{number}", json={})
        assert answer.status_code in (204, 503), answer.text
        if answer.status_code == 204:
            confirmed.append(str(number))
        else:
            assert answer.json()["detail"]

    def has_moved() -> bool:
        change()
        return watcher.names(replica)

    watcher.fail_over_until(has_moved, what="a failover")
    for _ in range(20):  # the former primary is none yet
        change()
    assert len(confirmed) > 10

    eventually(primary.is_replica, FAILOVER_S, "a replica that was the primary")
    kept = {one["pattern"] for one in api.get("/bans")["items"]}
    assert kept.issuperset(confirmed), sorted(set(confirmed) - kept)
    api.http.close()


def test_a_change_does_not_wait_for_a_failover_that_takes_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(primary_of_console, "DOUBT_S", 0.1)

    async def scene() -> None:
        primary = primary_of_console.Primary("sentinel://127.0.0.1:1/s", lambda: None)
        assert await primary.settled() == 0
        primary.primary_in_doubt(doubt=True)
        for change in (primary.settled(), primary.confirm(0)):
            with pytest.raises(ProblemError, match=r"a failover has been under way for 0\.1 s"):
                await change
        primary.primary_in_doubt(doubt=False)
        await primary.confirm(0)

    asyncio.run(scene())


def walk(api: Api, path: str, **params: Any) -> list[Any]:
    found: list[Any] = []
    cursor: str | None = ""
    while cursor is not None:
        page = api.get(path, params={**params, **({"cursor": cursor} if cursor else {})})
        found += page["items"]
        cursor = page["next"]
    return found


def test_a_running_link_is_shown_until_it_ends(
    server: Server, hold: HoldMQ, tmp_path: Path, console_of: Callable[..., ConsoleProcess]
) -> None:
    other = Mosquitto(tmp_path / "mosquitto", "")
    topics = ["out/# out 1", "in/# in 1"]
    link = None
    try:
        other.start()
        link = LinkProcess(server, tmp_path / "link", other.port, topics, {"name": "plant"}, {})
        link.start()
        api = Api(console_of(server.url))

        def shown(*, connected: bool) -> Any:
            found = api.get("/links")["items"]
            return found if [(one["name"], one["connected"]) for one in found] == [("plant", connected)] else None

        [one] = eventually(lambda: shown(connected=True), what="a connected link")
        assert (one["running"], one["subscriptions"], one["remote_filters"]) == (True, ["out/#"], {"in/#": 1})
        assert f"127.0.0.1:{other.port}" in one["remote"]
        other.kill()
        eventually(lambda: shown(connected=False), what="a link without the other broker")
        hold.topics.publish("out/1", b"x", qos=1)
        eventually(lambda: api.get("/links")["items"][0]["messages"] == 1, what="a message that waits")
        link.kill()
        link = None
        eventually(lambda: not api.get("/links")["items"][0]["running"], FAILOVER_S, "a link without a process")
        api.http.close()
    finally:
        if link is not None:
            link.kill()
        other.close()


def test_a_console_of_a_cluster_shows_all_nodes_and_what_lives_in_their_slots(
    cluster: Cluster, console_of: Callable[..., ConsoleProcess]
) -> None:
    with cluster.client() as client:
        hold: HoldMQ[bytes] = HoldMQ(client)
        names = sorted(f"dev-{number:02}" for number in range(40))
        for name in names:
            session = hold.session(name)
            session.open("owner", expiry=60)
            session.subscribe("plant/#", qos=1)
        hold.session("$share-less").open("owner", expiry=60)
        hold.topics.publish("plant/1", b"on", qos=1, retain=True)
        hold.topics.publish("plant/2", b"off", retain=True)
        hold.channel("news", sharded=True).publish(b"x")
        api = Api(console_of(cluster.nodes[0].url))

        nodes = api.get("/nodes")["items"]
        assert [one["address"] for one in nodes] == sorted(f"127.0.0.1:{node.port}" for node in cluster.nodes)
        for one in nodes:
            assert one["server"]["role"] == "master"
            assert int(one["server"]["used_memory"]) > 0
            assert one["holdmq"]["holdmq_module_version"]
        assert sum(int(one["holdmq"]["holdmq_queued_messages"]) for one in nodes) == 40
        eventually(lambda: (api.get("/overview")["now"] or {}).get("queued") == 40, what="messages of all nodes")

        assert sorted(one["client_id"] for one in walk(api, "/sessions", prefix="dev-", limit=7)) == names
        assert sorted(one["client_id"] for one in walk(api, "/sessions", limit=500)) == ["$share-less", *names]
        receivers = walk(api, "/filters/matches", topic="plant/1", limit=5)
        assert sorted(one["client_id"] for one in receivers) == names
        assert walk(api, "/groups") == []
        assert [one["name"] for one in walk(api, "/channels")] == ["news"]
        assert api.get("/channels/news")["held"] == 1
        assert [one["payload"]["text"] for one in api.get("/topics/retained")["items"]] == ["on", "off"]
        api.ask("DELETE", "/topics/plant%2F2/retained", 204)
        assert len(api.get("/topics/retained")["items"]) == 1
        assert len(api.get("/sessions/dev-00/queue")["items"]) == 1
        assert api.ask("POST", "/sessions/dev-00/queue/move", json={"to_session": "dev-01"}) == {"messages": 1}
        assert api.ask("DELETE", "/sessions/dev-01/queue") == {"messages": 2}
        api.ask("DELETE", "/sessions/dev-01")
        assert api.ask("POST", "/topics/publish", json={"topic": "plant/3", "text": "x"})["sessions"] == 39
        refused = api.http.get("/live/events?filter=a")
        assert (refused.status_code, "cluster" in refused.text) == (501, True)
        api.get("/sessions", 422, params={"cursor": "x"})
        for path in ("/", "/sessions", "/topics", "/filters", "/channels", "/history", "/users", "/server", "/audit"):
            assert api.http.get(path).status_code == 200, path

        api.ask("POST", "/users", 201, json={"name": "ann", "password": "correct horse", "roles": ["admin"]})
        api.get("/me", 401)
        api.log_in("ann")
        api.ask("PUT", "/bans/x", 204, json={})
        assert api.ask("POST", "/tokens", 201, json={"name": "t"})["token"]
        api.http.close()


@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_console_finds_bridges_and_users_of_a_cluster_from_any_node(
    cluster: Cluster, console_of: Callable[..., ConsoleProcess], tmp_path: Path, at: int
) -> None:
    add_user(cluster.node_of(USERS).client(), "ann", "admin")
    options = ["--allow-anonymous", "yes", "--report-interval-s", "1"]
    bridges = [BridgeProcess(node.url, tmp_path, arguments=options) for node in cluster.nodes[:2]]
    try:
        for bridge in bridges:
            bridge.start()
        api = Api(console_of(cluster.nodes[at].url))
        api.log_in("ann")
        eventually(lambda: len(api.get("/bridges")["items"]) == 2, FAILOVER_S, "both bridges")
        assert [one["name"] for one in api.get("/users")["items"]] == ["ann"]
        assert len(api.get("/nodes")["items"]) == 3
        api.http.close()
    finally:
        for bridge in bridges:
            bridge.close()


def test_a_console_of_a_cluster_may_be_told_so(cluster: Cluster, console_of: Callable[..., ConsoleProcess]) -> None:
    api = Api(console_of(cluster.nodes[0].url, "--cluster"))
    assert len(api.get("/nodes")["items"]) == 3
    api.http.close()


async def test_forgetting_idle_connections_breaks_no_command(server: Server) -> None:
    broker = Broker(ServerUrl(server.url), 1)
    is_over = asyncio.Event()

    async def ask_always() -> int:
        asked = 0
        while not is_over.is_set():
            await broker.client.ping()
            asked += 1
            await asyncio.sleep(0)  # its connection is idle
        return asked

    try:
        asking = [asyncio.create_task(ask_always()) for _ in range(8)]
        for _ in range(300):
            await broker.forget_idle()
            await broker.client.ping()
        is_over.set()
        assert min(await asyncio.gather(*asking)) > 0
    finally:
        is_over.set()
        await broker.close()
