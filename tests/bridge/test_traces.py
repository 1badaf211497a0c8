"""Traces of publishes and deliveries, as a collector of OpenTelemetry gets them from bridges."""

import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from holdmq.core.engine import MOST_TRACE_RATE
from holdmq_bridge.process.settings import Settings
from holdmq_bridge.serve import TracingError, import_tracing
from tests.bridge import packets5
from tests.bridge.collector import Collector
from tests.bridge.conftest import Connect
from tests.bridge.talk import Talk5
from tests.support import BridgeProcess, Server, eventually
from tests.support.pages import blocks
from tests.support.ports import Port
from tests.support.servers import embedded_kinds

server_kinds = embedded_kinds  # what is tested is in the bridge

MakeBridge = Callable[..., BridgeProcess]

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CONTEXT = packets5.pair("traceparent", f"00-{TRACE}-{SPAN}-01")
ALL = ["--trace-sample", "1"]
START_S = 30.0
PARTS = [
    "holdmq_bridge.monitoring.tracing",
    "opentelemetry.exporter",
    "opentelemetry.sdk.trace.export",
    "google.protobuf",
]


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as made:
        yield made


def metric(port: Port, name: str) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{port.number}/metrics", timeout=10) as response:
        lines: list[str] = response.read().decode().splitlines()
    return next(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"holdmq_bridge_{name} "))


def events(bridge: BridgeProcess, text: str) -> list[dict[str, object]]:
    lines = [json.loads(line) for line in bridge.log_text().splitlines() if line.startswith("{")]
    return [line for line in lines if text in line["event"]]


def test_a_publish_through_two_bridges_is_one_trace(server: Server, bridge: MakeBridge, collector: Collector) -> None:
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_SERVICE_NAME": "my-broker"}
    first, second = (bridge(server, arguments=ALL, environment=environment) for _ in range(2))
    with Talk5.open(second.port, "sub") as receiver, Talk5.open(first.port, "pub") as sender:
        assert receiver.granted(("a/#", 1)) == [1]
        began_ns = time.time_ns()
        assert sender.told("a/b", b"12345", properties=CONTEXT) == 0
        got = receiver.message()
        assert got.properties[packets5.USER_PROPERTY] == [("traceparent", f"00-{TRACE}-{SPAN}-01")]
        [publish] = collector.named("holdmq.publish", 1)
        [command] = collector.named("holdmq.server", 1)
        [delivery] = collector.named("holdmq.deliver", 1)
        ended_ns = time.time_ns()
    assert {span.trace_id for span in collector.spans} == {TRACE}
    assert (publish.parent_id, command.parent_id, delivery.parent_id) == (SPAN, publish.span_id, SPAN)
    common = {"messaging.system": "mqtt", "messaging.destination.name": "a/b", "messaging.message.body.size": 5}
    assert publish.attributes == common | {
        "messaging.operation.name": "publish",
        "messaging.operation.type": "send",
        "messaging.client.id": "pub",
        "holdmq.qos": 1,
        "holdmq.retain": False,
    }
    assert delivery.attributes == common | {
        "messaging.operation.name": "deliver",
        "messaging.client.id": "sub",
        "holdmq.qos": 1,
        "holdmq.was_queued": False,
    }
    assert command.attributes == {
        "db.system.name": "redis",
        "db.operation.name": "TOPIC.PUBLISH",
        "holdmq.attempts": 1,
        "holdmq.sessions": 1,
    }
    [(name, written_ns)] = delivery.events
    assert name == "holdmq.written"
    assert began_ns < publish.began_ns < command.began_ns < command.ended_ns <= publish.ended_ns < ended_ns
    assert command.began_ns < delivery.began_ns < written_ns < delivery.ended_ns < ended_ns
    assert not any(span.failed for span in collector.spans)
    assert {span.resource["service.name"] for span in collector.spans} == {"my-broker"}
    assert len({span.resource["service.instance.id"] for span in collector.spans}) == 2


def test_with_an_added_context_deliveries_are_children_of_a_publish_of_mqtt_3(
    server: Server, bridge: MakeBridge, collector: Collector, dial: Connect
) -> None:
    arguments = [*ALL, "--trace-endpoint", collector.url, "--trace-add-context", "true"]
    first, second = (bridge(server, arguments=arguments) for _ in range(2))
    sender, old = dial(first.port, "pub"), dial(second.port, "old")
    old.subscribe(("t", 1))
    with Talk5.open(second.port, "new") as receiver:
        receiver.granted(("t", 0))
        sender.publish("t", b"x", qos=1)
        [(name, value)] = receiver.message().properties[packets5.USER_PROPERTY]
        old.read_publish()
        [publish] = collector.named("holdmq.publish", 1)
        deliveries = collector.named("holdmq.deliver", 2)
    assert (name, value) == ("traceparent", f"00-{publish.trace_id}-{publish.span_id}-01")
    assert publish.parent_id == ""
    assert {(span.trace_id, span.parent_id) for span in deliveries} == {(publish.trace_id, publish.span_id)}
    assert {span.attributes["messaging.client.id"]: span.attributes["holdmq.qos"] for span in deliveries} == {
        "old": 1,
        "new": 0,
    }
    assert {span.resource["service.name"] for span in collector.spans} == {"holdmq-bridge"}


def test_a_message_that_waited_in_a_queue_belongs_to_its_trace(
    server: Server, bridge: MakeBridge, collector: Collector
) -> None:
    made = bridge(server, arguments=["--trace-sample", "1e-9", "--trace-endpoint", f"{collector.url}/"])
    expiry = packets5.number(0x11, 600)
    with Talk5.open(made.port, "sub", clean=False, properties=expiry) as receiver:
        receiver.granted(("t", 1))
        receiver.disconnect()
    with Talk5.open(made.port, "pub") as sender:
        assert sender.told("t", b"x", properties=CONTEXT) == 0
        collector.named("holdmq.publish", 1)
    with Talk5.open(made.port, "sub", clean=False, properties=expiry) as receiver:
        receiver.message()
        [delivery] = collector.named("holdmq.deliver", 1)
    assert (delivery.trace_id, delivery.attributes["holdmq.was_queued"]) == (TRACE, True)


def test_without_tracing_nothing_of_it_is_imported(server: Server, port: Port) -> None:
    """redis-py imports OpenTelemetry's metrics wherever they are installed: what makes and sends spans counts."""
    program = f"""
import asyncio, sys
from holdmq_bridge.process.settings import Settings
from holdmq_bridge.serve import import_tracing, serve
async def accepts():
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", {port.number})
            return writer.close()
        except ConnectionError:
            await asyncio.sleep(0.05)
def imported():
    print(sorted(name for name in {PARTS!r} if name in sys.modules))
async def main():
    task = asyncio.create_task(serve(Settings(port={port.number}, redis={server.url!r})))
    await asyncio.wait_for(accepts(), {START_S})
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
asyncio.run(main())
imported()
import_tracing(Settings(trace_sample=0.5))
imported()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines() == ["[]", str(sorted(PARTS))]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"trace_sample": 1.5}, "trace_sample\n  Input should be less than or equal to 1"),
        ({"trace_sample": -1}, "trace_sample\n  Input should be greater than or equal to 0"),
        ({"trace_sample": "nan"}, "trace_sample\n  Input should be"),
        ({"trace_sample": "all"}, "trace_sample\n  Input should be a valid number"),
        ({"trace_rate": 0}, "trace_rate\n  Input should be greater than or equal to 1"),
        ({"trace_rate": MOST_TRACE_RATE + 1}, f"trace_rate\n  Input should be less than or equal to {MOST_TRACE_RATE}"),
        ({"trace_endpoint": "localhost:4317"}, "collector 'localhost:4317'; expected http://host:port"),
        ({"trace_endpoint": "http://h:99999"}, "collector 'http://h:99999'; expected http://host:port"),
        ({"trace_endpoint": "http://"}, "collector 'http://'; expected http://host:port"),
        ({"trace_add_context": "maybe"}, "trace_add_context\n  Input should be a valid boolean"),
    ],
)
def test_a_bad_setting_is_named(values: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(expected)):
        Settings(**values)


@pytest.mark.parametrize("name", ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"])
def test_a_bad_variable_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "grpc://collector")
    assert import_tracing(Settings()) is None  # it is off
    with pytest.raises(TracingError, match=f"^{name}: collector 'grpc://collector'; expected http://host:port"):
        import_tracing(Settings(trace_sample=0.1))
    assert import_tracing(Settings(trace_sample=0.1, trace_endpoint="http://h:1")) is not None


def test_settings_that_opentelemetry_refuses_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_PYTHON_EXPORTER_OTLP_HTTP_TRACES_CREDENTIAL_PROVIDER", "nobody")
    with pytest.raises(TracingError, match=r"^OpenTelemetry refuses its settings: .*'nobody'"):
        import_tracing(Settings(trace_sample=0.1))


def refusal(*options: str, **variables: str) -> str:
    """What a bridge says that does not start."""
    done = subprocess.run(
        [sys.executable, "-m", "holdmq_bridge", "--port", "0", *options],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    return done.stderr


def test_the_bridge_does_not_start_with_a_bad_variable() -> None:
    assert refusal("--workers", "2", *ALL, OTEL_EXPORTER_OTLP_ENDPOINT="x") == (
        "holdmq_bridge: OTEL_EXPORTER_OTLP_ENDPOINT: collector 'x'; expected http://host:port or https://host:port\n"
    )


def test_a_missing_package_is_named_with_its_extra(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['opentelemetry.sdk'] = None\n")
    assert refusal(*ALL, PYTHONPATH=str(tmp_path)) == (
        "holdmq_bridge: trace_sample 1 needs packages that are not installed (opentelemetry.sdk.trace): "
        "pip install 'holdmq[otel]'\n"
    )


def test_a_collector_that_is_away_costs_only_spans(
    server: Server, bridge: MakeBridge, collector: Collector, port: Port, dial: Connect
) -> None:
    collector.status = 500
    arguments = [*ALL, "--trace-endpoint", collector.url, "--metrics-port", str(port.number)]
    made = bridge(server, arguments=arguments)
    talk = dial(made.port, "c")

    def publish_until(condition: Callable[[], bool]) -> None:
        def published() -> bool:
            talk.publish("t", b"x", qos=1)
            return condition()

        eventually(published, what="spans that the collector got")

    publish_until(lambda: metric(port, "spans_dropped_total") >= 2)
    dropped = metric(port, "spans_dropped_total")
    publish_until(lambda: metric(port, "spans_dropped_total") > dropped)
    [line] = events(made, "spans are dropped")
    assert line["collector"] == f"{collector.url}/v1/traces"
    assert "500" in str(line["error"])
    collector.status = 200
    publish_until(lambda: metric(port, "spans_exported_total") > 0)
    assert len(events(made, "spans are dropped")) == 1
    assert len(events(made, "the collector takes spans again")) == 1


def test_a_collector_that_hangs_does_not_hold_up_a_publish_or_the_end(
    server: Server, bridge: MakeBridge, collector: Collector, dial: Connect
) -> None:
    collector.answers.clear()
    made = bridge(server, arguments=[*ALL, "--trace-endpoint", collector.url])
    talk = dial(made.port, "c")
    talk.publish("t", b"x", qos=1)
    eventually(lambda: collector.requests == 1, what="a request of spans")
    for number in range(100):
        talk.publish("t", b"x", qos=1, pid=number + 1)
    began_at = time.monotonic()
    made.stop()
    assert time.monotonic() - began_at < 6
    assert made.returncode == 0
    [line] = events(made, "spans are dropped: the collector is too slow")
    assert int(str(line["spans"])) >= 4


@contextmanager
def endless() -> Iterator[tuple[str, list[int]]]:
    """A collector that takes spans and never ends its answer; yields its URL, and the bytes that each answer had."""
    sent: list[int] = []
    stop = threading.Event()

    def answer(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.recv(65_536)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\n")
            sent.append(0)
            while not stop.is_set():
                connection.sendall(b"x" * 65_536)
                sent[-1] += 65_536

    def accept() -> None:
        while not stop.is_set():
            with suppress(TimeoutError):
                answer(listener.accept()[0])

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.1)
        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", sent
        finally:
            stop.set()
            thread.join()


def test_an_answer_of_the_collector_without_end_is_not_read(server: Server, bridge: MakeBridge, dial: Connect) -> None:
    with endless() as (url, sent):
        made = bridge(server, arguments=[*ALL, "--trace-endpoint", url])
        talk = dial(made.port, "c")

        def has_answered_twice() -> bool:
            talk.publish("t", b"x", qos=1)
            return len(sent) > 1

        eventually(has_answered_twice, what="an answer that the bridge has ended, and another one")
        assert sent[0] < 16_000_000  # what it reads, and what the sockets hold


def test_spans_that_find_no_room_are_logged_once(
    server: Server, bridge: MakeBridge, collector: Collector, port: Port
) -> None:
    collector.answers.clear()
    environment = {"OTEL_EXPORTER_OTLP_TIMEOUT": "600"}
    arguments = [*ALL, "--trace-rate", "200", "--trace-endpoint", collector.url, "--metrics-port", str(port.number)]
    made = bridge(server, arguments=arguments, environment=environment)
    with Talk5.open(made.port, "c") as talk:

        def has_dropped() -> bool:
            talk.send(packets5.publish("t", b"x") * 100)
            return metric(port, "spans_dropped_total") > 500

        eventually(has_dropped, 60, "spans that find no room")
        assert talk.told("t", b"x") == 0x10
    [line] = events(made, "spans are dropped")
    assert line["event"] == "spans are dropped: the collector is too slow"
    made.stop()


def test_nobody_listens_at_the_collectors_port(server: Server, bridge: MakeBridge, port: Port, dial: Connect) -> None:
    environment = {"OTEL_EXPORTER_OTLP_TIMEOUT": "0.5", "OTEL_EXPORTER_OTLP_COMPRESSION": "zip"}
    made = bridge(
        server,
        arguments=[*ALL, "--trace-endpoint", f"http://user:secret@127.0.0.1:{port.number}"],
        environment=environment,
    )
    dial(made.port, "c").publish("t", b"x", qos=1)
    [line] = eventually(lambda: events(made, "spans are dropped"), what="a line in the log")
    assert line["collector"] == f"http://127.0.0.1:{port.number}/v1/traces"
    assert "secret" not in made.log_text()
    [line] = events(made, "a setting of OpenTelemetry is not usable")
    assert line["error"] == "Unsupported compression type: zip"
    assert all(text.startswith("{") for text in made.log_text().splitlines())  # nothing but the bridge's own lines


def test_hostile_contexts_are_bounded_and_harm_nobody(
    server: Server, bridge: MakeBridge, collector: Collector, port: Port
) -> None:
    arguments = [*ALL, "--trace-rate", "5", "--trace-endpoint", collector.url, "--metrics-port", str(port.number)]
    made = bridge(server, arguments=arguments)
    large = packets5.pair("traceparent", "0" * 60_000)
    lone = packets5.pair("traceparent", f"00-{TRACE}-{SPAN}-01é")
    with Talk5.open(made.port, "loud") as loud, Talk5.open(made.port, "quiet") as quiet:
        many = packets5.publish("t", b"x", properties=CONTEXT) * 1000
        for _ in range(10):
            loud.send(many)
        for hostile in (large, lone, CONTEXT * 200):
            assert loud.told("t", b"x", properties=hostile) == 0x10
        assert quiet.told("quiet", b"x") == 0x10
        eventually(
            lambda: any(span.attributes.get("messaging.destination.name") == "quiet" for span in collector.spans),
            what="the trace of somebody else",
        )
        assert metric(port, 'publishes_received_total{qos="0"}') == 10_000
        assert metric(port, "traces_limited_total") > 9_000
    assert len(collector.spans) < 200


def test_the_commands_of_the_page_make_a_trace(server: Server, collector: Collector, port: Port) -> None:
    serving, publishing = (block.text for block in blocks("docs/monitoring.md", "sh traces"))
    assert "http://localhost:4318" in serving
    assert "--trace-sample 0.01" in serving
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "HOLDMQ_BRIDGE_PORT": str(port.number),
        "HOLDMQ_BRIDGE_REDIS": server.url,
    }
    run = serving.replace("http://localhost:4318", collector.url).replace("holdmq-bridge", "exec holdmq-bridge")
    with subprocess.Popen(["/bin/bash", "-ec", run], env=environment, stderr=subprocess.DEVNULL) as process:
        try:
            eventually(lambda: accepts(port), 30, "a bridge that accepts connections")
            publish = publishing.replace("mosquitto_pub", f"mosquitto_pub -p {port.number}")
            subprocess.run(["/bin/bash", "-ec", publish], timeout=30, check=True)
            [span] = collector.named("holdmq.publish", 1)
        finally:
            process.terminate()
            process.wait(30)
    assert (span.trace_id, span.parent_id) == (TRACE, SPAN)
    assert span.attributes["messaging.destination.name"] == "a/b"
    assert span.resource["service.name"] == "my-broker"


def accepts(port: Port) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port.number), 1).close()
    except OSError:
        return False
    return True
