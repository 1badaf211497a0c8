"""A collector of OpenTelemetry: takes spans by OTLP over HTTP, and decodes them with OpenTelemetry's own files."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, NamedTuple, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.support import eventually


class Span(NamedTuple):
    """One span."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    began_ns: int
    ended_ns: int
    attributes: dict[str, Any]
    events: list[tuple[str, int]]
    resource: dict[str, Any]
    failed: bool


class Collector:
    """Listens on a free port of loopback while its context lasts.

    Attributes:
        status: of its answers.
        spans: that it got, oldest first.
        answers: cleared, it answers nothing and holds the connection.
    """

    def __init__(self) -> None:
        self.status = 200
        self.spans: list[Span] = []
        self.requests = 0
        self.answers = threading.Event()
        self.answers.set()
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                owner.take(self)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (its name in the base class)
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.answers.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def take(self, request: BaseHTTPRequestHandler) -> None:
        """Takes the spans of a request, and answers."""
        body = request.rfile.read(int(request.headers["Content-Length"]))
        self.requests += 1
        self.answers.wait()
        if self.status == 200:
            assert request.path == "/v1/traces"
            self.spans += _spans(body)
        request.send_response(self.status)
        request.send_header("Content-Length", "0")
        request.end_headers()

    def named(self, name: str, count: int) -> list[Span]:
        """The spans of this name, once there are so many."""

        def found() -> list[Span]:
            return [span for span in self.spans if span.name == name]

        eventually(lambda: len(found()) >= count, what=f"{count} spans {name}")
        assert len(found()) == count
        return found()


def _spans(body: bytes) -> list[Span]:
    request = ExportTraceServiceRequest.FromString(body)
    return [
        Span(
            name=span.name,
            trace_id=span.trace_id.hex(),
            span_id=span.span_id.hex(),
            parent_id=span.parent_span_id.hex(),
            began_ns=span.start_time_unix_nano,
            ended_ns=span.end_time_unix_nano,
            attributes=_values(span.attributes),
            events=[(event.name, event.time_unix_nano) for event in span.events],
            resource=_values(of_resource.resource.attributes),
            failed=span.status.code == 2,
        )
        for of_resource in request.resource_spans
        for of_scope in of_resource.scope_spans
        for span in of_scope.spans
    ]


def _values(attributes: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in attributes}
