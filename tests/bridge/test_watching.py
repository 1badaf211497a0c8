"""What an operator sees: /metrics, /readyz, /livez and $SYS."""

import json
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families

from holdmq.cli import main
from holdmq_bridge.monitoring.metrics import parse_info
from holdmq_bridge.serve import OTHER_FILES
from tests.bridge import packets
from tests.bridge.conftest import Connect
from tests.bridge.packets import Will
from tests.bridge.talk import Talk
from tests.support import BridgeProcess, Server, eventually
from tests.support.pages import REPOSITORY
from tests.support.ports import Port

MakeBridge = Callable[..., BridgeProcess]
MakeServer = Callable[..., Server]
QUICK = ["--sys-interval-s", "0.2", "--retry-first-s", "0.02", "--retry-max-s", "0.1"]


def get(port: Port, path: str) -> tuple[int, str]:
    """Status and body."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port.number}{path}", timeout=10) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def scrape(port: Port) -> dict[str, float]:
    """Every sample, labels included in its name."""
    status, text = get(port, "/metrics")
    assert status == 200
    samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            samples[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return samples


def test_metrics_count_what_happens(server: Server, bridge: MakeBridge, dial: Connect, port: Port) -> None:
    made = bridge(server, arguments=["--metrics-port", str(port.number)])
    receiver, sender = dial(made.port, "r"), dial(made.port, "s")
    receiver.subscribe(("a", 1))
    for number in range(1, 6):
        sender.publish("a", b"x", pid=number)
        receiver.read_publish()
    sender.publish("nobody", b"x", qos=0)
    sender.expect_nothing()
    eventually(lambda: scrape(port)["holdmq_bridge_messages_acknowledged_total"] == 5)
    got = scrape(port)
    assert got["holdmq_bridge_publishes_received_total{qos=1}"] == 5
    assert got["holdmq_bridge_publishes_received_total{qos=0}"] == 1
    assert got["holdmq_bridge_messages_sent_total{qos=1}"] == 5
    assert got["holdmq_bridge_clients"] == 2
    assert got["holdmq_bridge_server_up"] == 1
    assert got["holdmq_bridge_latency_seconds_count"] == 5
    assert got["holdmq_bridge_latency_seconds_bucket{le=+Inf}"] == 5
    assert got["holdmq_bridge_acknowledge_seconds_count"] == 5
    assert got["holdmq_bridge_acknowledge_seconds_bucket{le=+Inf}"] == 5
    assert got["holdmq_server_topic_published_total"] >= 5
    assert got["holdmq_server_filters"] == 1
    assert got["holdmq_bridge_bytes_sent_total"] > 50
    assert got["process_resident_memory_bytes"] > 1_000_000


def test_metrics_tell_what_waits_for_a_device_that_is_away(
    server: Server, bridge: MakeBridge, dial: Connect, port: Port
) -> None:
    made = bridge(server, arguments=["--metrics-port", str(port.number)])
    away, sender = dial(made.port, "away", clean=False), dial(made.port, "s")
    away.subscribe(("a", 1))
    away.close()
    eventually(lambda: scrape(port)["holdmq_server_sessions_away"] == 1)
    for number in range(1, 4):
        sender.publish("a", b"x", pid=number)
    eventually(lambda: scrape(port).get("holdmq_server_queued_messages") == 3)
    assert scrape(port)["holdmq_server_longest_queue_messages"] == 3
    _, text = get(port, "/metrics")
    for name in ("queued_messages", "longest_queue_messages", "queued_messages_age_seconds", "sessions_away"):
        assert f"# TYPE holdmq_server_{name} gauge" in text
    dial(made.port, "away", clean=False, present=True)
    eventually(lambda: scrape(port)["holdmq_server_sessions_away"] == 0)


def test_more_connections_than_are_allowed_are_refused_and_counted(
    server: Server, bridge: MakeBridge, dial: Connect, port: Port
) -> None:
    made = bridge(server, arguments=["--max-connections", "3", "--metrics-port", str(port.number)])
    clients = [dial(made.port, f"c{number}") for number in range(3)]
    for _ in range(3):
        with Talk(made.port) as refused:
            refused.expect_closed()
    assert made.log_text().count("max_connections is reached") == 1
    for client in clients:  # who is inside stays
        client.send(packets.PINGREQ)
        client.expect(packets.PINGRESP)
    assert scrape(port)["holdmq_bridge_connections_refused_total"] == 3
    clients[0].close()
    eventually(lambda: scrape(port)["holdmq_bridge_clients"] == 2)
    dial(made.port, "c4")


def test_why_a_device_gets_no_session_or_subscription_is_logged_and_counted(
    server: Server, bridge: MakeBridge, dial: Connect, port: Port
) -> None:
    made = bridge(server, arguments=["--metrics-port", str(port.number), "--max-subscriptions", "1"])
    for faulty in (
        packets.connect("", clean=False),  # no client id
        packets.connect("c1", will=Will("a/+", b"x", 1)),
        packets.connect("c2", will=Will("$SYS/x", b"x", 1)),  # not allowed
        packets.PINGREQ,  # before a CONNECT
    ):
        with Talk(made.port) as device:
            device.send(faulty)
            eventually(partial(closed, device))
    looked = Talk(made.port)
    looked.close()
    device = dial(made.port, "c3")
    for pid in range(1, 4):
        device.send(packets.subscribe(pid, ("a", 1), ("b", 1)))
        device.expect(packets.suback(pid, 1, 0x80))
    eventually(lambda: scrape(port)["holdmq_bridge_clients"] == 1)
    got = scrape(port)
    assert got["holdmq_bridge_connects_refused_total"] == 4
    assert got["holdmq_bridge_subscriptions_refused_total"] == 3
    told = [json.loads(line) for line in made.log_text().splitlines()]
    details = [line["detail"] for line in told if line["event"] in ("connection refused", "client disconnected")]
    assert len(details) == 4
    assert "wildcard" in details[1]
    assert details[2] == "no right to a will on '$SYS/x'"
    refused = [line for line in told if line["event"] == "a subscription is refused"]
    assert [(line["client"], line["filter"], line["reason"]) for line in refused] == [("c3", "b", "0x97")]


def closed(device: Talk) -> bool:
    """Has the bridge closed the connection, whatever it said before?"""
    try:
        device.read_packet()
    except (AssertionError, ConnectionError):
        return True
    return False


def test_health_follows_the_server(fresh_server: MakeServer, bridge: MakeBridge, port: Port) -> None:
    server = fresh_server()
    bridge(server, arguments=["--metrics-port", str(port.number), *QUICK])
    eventually(lambda: get(port, "/healthz")[0] == 200)
    server.kill()
    eventually(lambda: get(port, "/healthz")[0] == 503)
    assert scrape(port)["holdmq_bridge_server_up"] == 0
    server.restart()
    eventually(lambda: get(port, "/healthz")[0] == 200)


def test_a_bridge_is_ready_as_soon_as_it_is_connected_again(server: Server, bridge: MakeBridge, port: Port) -> None:
    made = bridge(server, arguments=["--metrics-port", str(port.number), *QUICK])
    eventually(lambda: get(port, "/readyz")[0] == 200)
    for losses in range(1, 4):
        with server.client() as client:
            for link in client.client_list():
                if f":{made.pid}:" in link["name"]:
                    client.client_kill_filter(_id=link["id"])
        eventually(lambda losses=losses: made.log_text().count('"connected to the server"') > losses)  # type: ignore[misc]
        assert get(port, "/readyz")[0] == 200


def readiness(port: Port) -> tuple[int, dict[str, Any]]:
    """Status and body of /readyz."""
    status, body = get(port, "/readyz")
    return status, json.loads(body)


def test_a_bridge_whose_server_takes_no_writes_is_alive_and_not_ready(
    fresh_server: MakeServer, bridge: MakeBridge, dial: Connect, port: Port
) -> None:
    server = fresh_server(config=["min-replicas-to-write 0"])
    made = bridge(server, arguments=["--metrics-port", str(port.number), *QUICK])
    eventually(lambda: readiness(port)[0] == 200, 10, "a ready bridge")
    sender = dial(made.port, "c1")
    with server.client() as client:
        client.config_set("min-replicas-to-write", 1)
        eventually(lambda: readiness(port)[0] == 503, 10, "a bridge that is not ready")
        status, state = readiness(port)
        assert (status, state["ready"], state["server"]) == (503, False, True)
        assert "NOREPLICAS" in state["reason"]
        assert get(port, "/livez")[0] == 200
        metrics = scrape(port)
        assert metrics["holdmq_bridge_ready"] == 0
        assert metrics["holdmq_bridge_server_up"] == 1
        sender.send(packets.publish("a", b"1", qos=1, pid=1))
        since = "holdmq_bridge_seconds_since_acknowledgement"
        eventually(lambda: scrape(port)[since] > 2, 10, "two seconds without an acknowledgement")
        assert scrape(port)["holdmq_bridge_refusals_total{code=NOREPLICAS}"] > 0
        client.config_set("min-replicas-to-write", 0)
        sender.expect(packets.puback(1))
        acknowledged = time.monotonic()
        assert scrape(port)[since] < time.monotonic() - acknowledged + 1
    eventually(lambda: readiness(port)[0] == 200, 10, "a bridge that is ready again")


def test_a_bridge_whose_server_has_become_a_replica_is_not_ready(
    fresh_server: MakeServer, bridge: MakeBridge, dial: Connect, port: Port
) -> None:
    server = fresh_server()
    made = bridge(server, arguments=["--metrics-port", str(port.number), *QUICK])
    sender = dial(made.port, "c1")
    with server.client() as client:
        client.execute_command("REPLICAOF", "127.0.0.1", "1")  # nobody is there
        sender.send(packets.publish("a", b"1", qos=1, pid=1))
        eventually(lambda: readiness(port)[0] == 503, 10, "a bridge that is not ready")
        assert get(port, "/livez")[0] == 200
        assert get(port, "/healthz")[0] == 503
        eventually(lambda: scrape(port)["holdmq_bridge_server_up"] == 0, 10, "a bridge that has left the replica")
        client.execute_command("REPLICAOF", "NO", "ONE")
    sender.expect(packets.puback(1))
    eventually(lambda: readiness(port)[0] == 200, 10, "a bridge that is ready again")


def test_health_names_the_refusal_of_a_replica(fresh_server: MakeServer, bridge: MakeBridge, port: Port) -> None:
    server = fresh_server()
    # Nothing else is written: the question of /readyz is what the replica refuses first.
    quiet = ["--lease-s", "600", "--sys-interval-s", "0", "--report-interval-s", "0"]
    made = bridge(server, arguments=["--metrics-port", str(port.number), *quiet])
    eventually(lambda: readiness(port)[0] == 200, 10, "a ready bridge")
    server.client().execute_command("REPLICAOF", "127.0.0.1", "1")  # nobody is there
    eventually(lambda: readiness(port)[0] == 503, 10, "a bridge that is not ready")
    reasons = [line["reason"] for line in map(json.loads, made.log_text().splitlines()) if line["event"] == "not ready"]
    assert any(reason.startswith("the server refuses writes: READONLY") for reason in reasons), reasons
    assert made.log_text().count('"leaving the server"') == 1


def health(server: Server, *words: str) -> int:
    """The status of `holdmq health`."""
    return CliRunner().invoke(main, ["--url", server.url, "health", *words]).exit_code


@pytest.mark.parametrize(
    ("setting", "value", "code"), [("maxmemory", 1, "OOM"), ("holdmq.min-free-disk", 1 << 40, "QUOTA")]
)
def test_a_bridge_is_not_ready_when_publishes_would_be_refused_though_nobody_publishes(
    fresh_server: MakeServer, bridge: MakeBridge, port: Port, setting: str, value: int, code: str
) -> None:
    server = fresh_server(aof=True)
    bridge(server, arguments=["--metrics-port", str(port.number), *QUICK])
    url = f"http://127.0.0.1:{port.number}"
    eventually(lambda: readiness(port)[0] == 200, 10, "a ready bridge")
    assert [health(server, *words) for words in ([], ["--bridge", url])] == [0, 0]
    with server.client() as client:
        client.config_set(setting, value)
        eventually(lambda: readiness(port)[0] == 503, 10, "a bridge that is not ready")
        assert readiness(port)[1]["reason"].startswith(f"the server refuses publishes: {code} ")
        assert [health(server, *words) for words in ([], ["--bridge", url])] == [1, 1]
        client.config_set(setting, 0)
    eventually(lambda: readiness(port)[0] == 200, 10, "a bridge that is ready again")
    assert health(server, "--wait", "10") == 0


def test_a_bridge_whose_user_may_not_publish_is_not_ready(
    fresh_server: MakeServer, bridge: MakeBridge, port: Port
) -> None:
    server = fresh_server()
    bridge(server, arguments=["--metrics-port", str(port.number), *QUICK])
    eventually(lambda: readiness(port)[0] == 200, 10, "a ready bridge")
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "default", "-topic.publish", "-topic.pipeline")
        eventually(lambda: readiness(port)[0] == 503, 10, "a bridge that is not ready")
        assert readiness(port)[1]["reason"].startswith("the server refuses publishes: NOPERM ")
        client.execute_command("ACL", "SETUSER", "default", "+topic.publish")  # they go one by one then
        eventually(lambda: readiness(port)[0] == 200, 10, "a bridge that is ready again")


def test_refusals_are_counted_by_code_and_make_the_bridge_unready(
    fresh_server: MakeServer, bridge: MakeBridge, dial: Connect, port: Port
) -> None:
    server = fresh_server()
    made = bridge(server, arguments=["--metrics-port", str(port.number), *QUICK])
    sender = dial(made.port, "c1")
    with server.client() as client:
        client.config_set("maxmemory", 1)
        sender.send(packets.publish("a", b"1", qos=1, pid=1))
        counted = "holdmq_bridge_refusals_total{code=OOM}"
        eventually(lambda: scrape(port)[counted] > 0, 10, "a counted refusal")
        status, state = readiness(port)
        assert (status, "OOM" in state["reason"]) == (503, True)
        client.config_set("maxmemory", 0)
    sender.expect(packets.puback(1))


def test_other_paths_are_not_there(server: Server, bridge: MakeBridge, port: Port) -> None:
    bridge(server, arguments=["--metrics-port", str(port.number)])
    assert get(port, "/")[0] == 404


def exchange(port: Port, request: bytes) -> bytes:
    """All that is answered to these bytes."""
    with socket.create_connection(("127.0.0.1", port.number), 10) as connection:
        connection.sendall(request)
        with connection.makefile("rb") as answer:
            return answer.read()


def test_a_probe_that_wants_the_head_alone_is_answered(server: Server, bridge: MakeBridge, port: Port) -> None:
    bridge(server, arguments=["--metrics-port", str(port.number)])
    eventually(lambda: get(port, "/healthz")[0] == 200)
    head, _, body = exchange(port, b"HEAD /healthz HTTP/1.1\r\nHost: h\r\n\r\n").partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    assert body == b""
    assert exchange(port, b"POST /healthz HTTP/1.1\r\nHost: h\r\n\r\n").startswith(b"HTTP/1.1 405")


def test_an_invalid_request_is_answered_with_400(server: Server, bridge: MakeBridge, port: Port) -> None:
    bridge(server, arguments=["--metrics-port", str(port.number)])
    assert exchange(port, b"GET /healthz\r\n\r\n").startswith(b"HTTP/1.1 400")
    assert exchange(port, b"GET /healthz HTTP/1.1\r\nX: " + b"x" * 20_000).startswith(b"HTTP/1.1 4")


def test_connections_for_metrics_take_no_descriptors_from_clients(
    server: Server, bridge: MakeBridge, dial: Connect, port: Port
) -> None:
    room = 20
    limit = OTHER_FILES + room
    made = bridge(server, arguments=["--metrics-port", str(port.number), *QUICK], open_files=limit)
    idle: list[socket.socket] = []
    try:
        idle.extend(socket.create_connection(("127.0.0.1", port.number), 10) for _ in range(limit))
        assert get(port, "/livez")[0] == 200
        clients = [dial(made.port, f"c{number}") for number in range(room)]
        with server.client() as client:
            client.client_kill_filter(_type="pubsub")  # the bridge connects again
        clients[0].publish("a", b"1", qos=1)
        assert len(list(Path(f"/proc/{made.pid}/fd").iterdir())) < limit
    finally:
        for one in idle:
            one.close()
    assert "connections temporarily cannot be accepted" not in made.log_text()


def test_a_bridge_takes_as_many_connections_of_the_server_as_the_page_says(
    fresh_server: MakeServer, bridge: MakeBridge, dial: Connect
) -> None:
    page = (REPOSITORY / "docs" / "operations.md").read_text(encoding="utf-8")
    assert "each bridge process takes four or five of the server" in page
    server = fresh_server()
    with server.client() as own:
        made = bridge(server, arguments=["--report-interval-s", "0.2", *QUICK])
        clients = [dial(made.port, f"c{number}") for number in range(20)]
        eventually(lambda: len(own.client_list()) - 1 in (4, 5), 20, "four or five connections")
        for number, client in enumerate(clients):
            client.publish(f"t/{number}", b"x", qos=1)
        assert len(own.client_list()) - 1 in (4, 5)


def test_an_address_for_metrics_that_is_taken_is_named(server: Server, bridge: MakeBridge, port: Port) -> None:
    bridge(server, arguments=["--metrics-port", str(port.number)])
    with pytest.raises(RuntimeError, match=f"cannot listen on 127.0.0.1:{port.number} for metrics"):
        bridge(server, arguments=["--metrics-port", str(port.number)])


def test_numbers_of_info_are_read_and_words_left_out() -> None:
    text = "# holdmq_stats\r\nholdmq_topic_published:12\r\nholdmq_handoff:off\r\nodd line\r\n\r\n"
    text += "# holdmq_index\r\nholdmq_filters:3\r\n"
    assert dict(parse_info(text)) == {"topic_published": (12.0, True), "filters": (3.0, False)}


def test_sys_topics_tell_sums_over_all_processes(server: Server, bridge: MakeBridge, dial: Connect) -> None:
    one, two = bridge(server, arguments=QUICK), bridge(server, arguments=QUICK)
    watcher = dial(one.port, "w")
    others = [dial(made.port, f"c{number}") for number, made in enumerate((one, two, two))]
    for number, client in enumerate(others):
        client.publish(f"t/{number}", b"x" * 100, retain=True)
    watcher.subscribe(("$SYS/broker/#", 0))
    seen: dict[str, bytes] = {}

    def told() -> bool:
        for data in watcher.collect():
            published = packets.read_publish(data)
            seen[published.topic.removeprefix("$SYS/broker/")] = published.payload
        # All of it, since the topics of a round come one by one, and each round may know more than the one before.
        return (
            seen.get("clients/connected") == b"4"
            and seen.get("publish/messages/received") == b"3"
            and seen.get("processes") == b"2"
            and seen.get("version", b"").startswith(b"HoldMQ ")
            and int(seen.get("retained messages/count", 0)) >= 3
            and int(seen.get("bytes/received", 0)) > 300
            and int(seen.get("messages/sent", 0)) >= 8  # CONNACK and PUBACK of each, and more
            and seen.get("clients/maximum") == b"4"
            and seen.get("uptime", b"").endswith(b" seconds")
        )

    eventually(told, what="all that is told of two processes")


def test_sys_topics_continue_when_the_process_that_publishes_them_dies(
    server: Server, bridge: MakeBridge, dial: Connect
) -> None:
    one = bridge(server, arguments=QUICK)
    client = server.client()
    eventually(lambda: client.get("{holdmq:sys}:lease"))
    two = bridge(server, arguments=QUICK)
    one.kill()
    watcher = dial(two.port)
    watcher.subscribe(("$SYS/broker/processes", 0))
    got: list[bytes] = []

    def continues() -> bool:
        got.extend(watcher.collect())
        return len(got) >= 5

    eventually(continues, 20)
    eventually(lambda: client.zcard("{holdmq:sys}:names") == 1, 20)


def test_sys_topics_can_be_switched_off(server: Server, bridge: MakeBridge, dial: Connect) -> None:
    made = bridge(server, arguments=["--sys-interval-s", "0"])
    watcher = dial(made.port)
    watcher.subscribe(("$SYS/#", 0))
    watcher.expect_silence(0.5)
