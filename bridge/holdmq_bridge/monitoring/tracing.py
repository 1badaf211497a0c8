"""Spans for OpenTelemetry, made of the publishes and deliveries that the engine has traced (src/engine/trace.c).

    engine ──traces that are over, every 200 ms──► spans ──► BatchSpanProcessor ──OTLP over HTTP──► collector
    (event loop)                                             (a thread)

    holdmq.publish    PUBLISH taken ──────────────────────────────► its PUBACK or PUBREC handed to the socket
      holdmq.server      command handed to the socket ──► reply
    holdmq.deliver    message arrived ──► PUBLISH handed to the socket (an event) ──► PUBACK or PUBREC

The parent of a publish is the context that its user property traceparent names, if it has one.  The parent of a
delivery is the context that the message carries: of the publisher, or with trace_add_context that of the publish.

Only an import of this module imports OpenTelemetry, and only with trace_sample above 0.

Invariants
 1. The engine decides what is traced, and bounds it by trace_rate.  Nothing here runs for a single message.
 2. At most `_MOST_QUEUED` spans wait for the collector; further ones are dropped and counted.  So a collector that is
    away or hangs costs the spans, and nothing else.
 3. A collector that takes nothing, or too slowly, is logged once, until it takes spans again.
 4. Of an answer, at most `_MOST_ANSWER_BYTES` are read.
 5. The end of the process waits at most `_STOP_S` for the collector.
"""

import asyncio
import logging
import os
import secrets
import threading
import time
from asyncio import TimerHandle
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any
from urllib.parse import urlsplit

import requests
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags
from opentelemetry.trace.status import Status, StatusCode

from holdmq.core.engine import TraceKind, TraceOutcome, TraceRow, Tracing
from holdmq_bridge.base.logs import Log
from holdmq_bridge.process.process import Process
from holdmq_bridge.process.settings import Settings, check_collector

log = Log("tracing")

_COLLECT_EVERY_S = 0.2
_EXPORT_EVERY_MS = 1000.0
_AT_ONCE = 512  # spans in one request
_MOST_QUEUED = 2048
_STOP_S = 2.0
_MOST_ANSWER_BYTES = 65_536
_ANSWER_S = 5.0
_SERVICE = "holdmq-bridge"
_DEFAULT_COLLECTOR = "http://localhost:4318"
_PATH = "v1/traces"
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)

_Attributes = dict[str, str | bool | int]

_PROBLEMS = {
    TraceOutcome.REFUSED: "the server refused it",
    TraceOutcome.LOST: "a connection broke before it was over",
    TraceOutcome.LATE: "it was not over after 10 s",
    TraceOutcome.SKIPPED: "it was not sent: denied, expired or too large for the client",
}


def collector(settings: Settings, environment: Mapping[str, str]) -> str:
    """The URL that gets the spans.  Raises ValueError, which names the variable, if its value is not a URL."""
    if settings.trace_endpoint:
        return _with_path(settings.trace_endpoint)
    for name in ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"):
        if not (url := environment.get(name)):
            continue
        try:
            check_collector(url)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
        return url if name.endswith("TRACES_ENDPOINT") else _with_path(url)
    return _with_path(_DEFAULT_COLLECTOR)


def check(settings: Settings, environment: Mapping[str, str]) -> None:
    """Raises ValueError unless spans can be exported with these settings; asks no collector."""
    url = collector(settings, environment)
    _listen(_Complaints())  # the process that checks may configure no logs
    try:
        OTLPSpanExporter(endpoint=url).shutdown()
    except Exception as error:
        raise ValueError(f"OpenTelemetry refuses its settings: {error}") from error


def _listen(complaints: "_Complaints") -> None:
    """Receives the log records of OpenTelemetry."""
    logger = logging.getLogger("opentelemetry")
    logger.handlers[:] = [complaints]
    logger.propagate = False


def _with_path(url: str) -> str:
    return f"{url.removesuffix('/')}/{_PATH}"


def _shown(url: str) -> str:
    """The URL without a password."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


class _Complaints(logging.Handler):
    """Keeps what OpenTelemetry logs: its exporter tells in no other way why it failed."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.last = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Keeps the text."""
        self.last = record.getMessage()

    def take(self) -> str:
        """The last text since the last call."""
        last, self.last = self.last, ""
        return last


class _Session(requests.Session):
    """Reads a bounded part of an answer, for a bounded time: what it says is not used."""

    def send(self, request: requests.PreparedRequest, **options: Any) -> requests.Response:
        """Sends a request, and drops the rest of the answer with its connection."""
        response = super().send(request, **{**options, "stream": True})
        until = time.monotonic() + _ANSWER_S
        size = 0
        while size < _MOST_ANSWER_BYTES and time.monotonic() < until:
            part = response.raw.read1(_MOST_ANSWER_BYTES - size)
            if not part:  # a complete answer: its connection is used again
                return response
            size += len(part)
        response.close()
        return response


class _Exporter(SpanExporter):
    """Counts what the collector takes, and logs when that changes.  Runs in the thread of the processor."""

    def __init__(self, url: str, complaints: _Complaints) -> None:
        has_own_session = any(name.endswith("_CREDENTIAL_PROVIDER") for name in os.environ if name.startswith("OTEL_"))
        self._inner = OTLPSpanExporter(endpoint=url, session=None if has_own_session else _Session())
        self._url = _shown(url)
        self._complaints = complaints
        self._fails = False
        self.taken = 0
        self.failed = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Sends them.  Never raises."""
        try:
            result = self._inner.export(spans)
        except Exception as error:  # noqa: BLE001 (whatever it is: only the spans are lost)
            result = SpanExportResult.FAILURE
            self._complaints.last = repr(error)
        error_text = self._complaints.take()
        if result is SpanExportResult.SUCCESS:
            self.taken += len(spans)
            if self._fails:
                log.info("the collector takes spans again", collector=self._url)
        else:
            self.failed += len(spans)
            if not self._fails:
                log.warning("spans are dropped: the collector takes none", collector=self._url, error=error_text)
        self._fails = result is not SpanExportResult.SUCCESS
        return result

    def shutdown(self) -> None:
        """Ends its connections."""
        self._inner.shutdown()


class Tracer:
    """Traces a process from its creation on; `start` and `stop` it in the event loop.

    Args:
        process: that is traced; it has no connections yet.
        clock: of the engine's traces, a C function.

    Raises:
        ValueError: an environment variable of OpenTelemetry has an invalid value.
    """

    def __init__(self, process: Process, clock: Any) -> None:
        settings = process.settings
        self._process = process
        self._complaints = _Complaints()
        _listen(self._complaints)
        self._exporter = _Exporter(collector(settings, os.environ), self._complaints)
        self._resource = _resource(process.name)
        self._scope = InstrumentationScope("holdmq_bridge", version("holdmq"))
        if complaint := self._complaints.take():
            log.warning("a setting of OpenTelemetry is not usable", error=complaint)
        self._processor = BatchSpanProcessor(
            self._exporter,
            max_queue_size=_MOST_QUEUED,
            schedule_delay_millis=_EXPORT_EVERY_MS,
            max_export_batch_size=_AT_ONCE,
        )
        self._given = 0  # to the processor
        self._overflown = 0  # not given, because too many wait
        self._is_overflowing = False
        self._timer: TimerHandle | None = None
        process.engine.trace(
            Tracing(
                sample=settings.trace_sample,
                rate=settings.trace_rate,
                seed=(secrets.randbits(64), secrets.randbits(64)),
                clock=clock,
                adds_context=settings.trace_add_context,
            )
        )

    def start(self) -> None:
        """Begins to make spans."""
        self._timer = self._process.loop.call_later(_COLLECT_EVERY_S, self._tick)

    async def stop(self) -> None:
        """Exports the pending spans, for a bounded time."""
        if self._timer is not None:
            self._timer.cancel()
        self._collect()
        ended = asyncio.Event()
        loop = self._process.loop

        def end() -> None:
            self._processor.shutdown()
            try:
                loop.call_soon_threadsafe(ended.set)
            except RuntimeError:  # the loop is closed: nobody waits any more
                return

        threading.Thread(target=end, daemon=True).start()
        try:
            await asyncio.wait_for(ended.wait(), _STOP_S)
        except TimeoutError:
            log.warning("spans are dropped: the collector is too slow", spans=self._waiting)
        self._count()

    @property
    def _waiting(self) -> int:
        """Spans that the processor has."""
        return self._given - self._exporter.taken - self._exporter.failed

    def _tick(self) -> None:
        self._timer = self._process.loop.call_later(_COLLECT_EVERY_S, self._tick)
        self._collect()

    def _collect(self) -> None:
        for row in self._process.engine.take_traces():
            for span in self._spans(row):
                if self._waiting >= _MOST_QUEUED:
                    self._overflow()
                    continue
                self._given += 1
                self._processor.on_end(span)
        if self._waiting < _AT_ONCE:
            self._is_overflowing = False
        self._count()

    def _overflow(self) -> None:
        self._overflown += 1
        if not self._is_overflowing:
            self._is_overflowing = True
            log.warning("spans are dropped: the collector is too slow", spans=self._waiting)

    def _count(self) -> None:
        counters = self._process.counters
        counters.spans_exported = self._exporter.taken
        counters.spans_dropped = self._exporter.failed + self._overflown

    # ---- spans -----------------------------------------------------------------------------------------------------

    def _spans(self, row: TraceRow) -> list[ReadableSpan]:
        if row.kind is TraceKind.DELIVERY:
            return [self._delivery(row)]
        publish = self._publish(row)
        return [publish, self._server(row, publish)] if row.sent_ns else [publish]

    def _publish(self, row: TraceRow) -> ReadableSpan:
        attributes = _message(row, "publish")
        attributes["messaging.operation.type"] = "send"
        attributes["holdmq.retain"] = row.retain
        return self._span("holdmq.publish", SpanKind.SERVER, row, attributes)

    def _server(self, row: TraceRow, publish: ReadableSpan) -> ReadableSpan:
        attributes: _Attributes = {
            "db.system.name": "redis",
            "db.operation.name": "TOPIC.PUBLISH",
            "holdmq.attempts": row.attempts,
        }
        if row.sessions is not None:
            attributes["holdmq.sessions"] = row.sessions
        return ReadableSpan(
            "holdmq.server",
            context=_context(row.trace_id, row.server_span_id),
            parent=publish.context,
            resource=self._resource,
            attributes=attributes,
            kind=SpanKind.CLIENT,
            status=Status() if row.answered_ns else _problem(row, attributes),
            start_time=row.sent_ns,
            end_time=max(row.sent_ns, row.answered_ns or row.ended_ns),
            instrumentation_scope=self._scope,
        )

    def _delivery(self, row: TraceRow) -> ReadableSpan:
        attributes = _message(row, "deliver")
        attributes["holdmq.was_queued"] = row.was_queued
        events = [Event("holdmq.written", timestamp=row.sent_ns)] if row.sent_ns else []
        return self._span("holdmq.deliver", SpanKind.PRODUCER, row, attributes, events)

    def _span(
        self, name: str, kind: SpanKind, row: TraceRow, attributes: _Attributes, events: Sequence[Event] = ()
    ) -> ReadableSpan:
        parent = None if row.parent_id is None else _context(row.trace_id, row.parent_id, is_remote=True)
        return ReadableSpan(
            name,
            context=_context(row.trace_id, row.span_id),
            parent=parent,
            resource=self._resource,
            attributes=attributes,
            events=events,
            kind=kind,
            status=_problem(row, attributes),
            start_time=row.began_ns,
            end_time=max(row.began_ns, row.ended_ns),
            instrumentation_scope=self._scope,
        )


def _context(trace_id: bytes, span_id: bytes, *, is_remote: bool = False) -> SpanContext:
    return SpanContext(int.from_bytes(trace_id), int.from_bytes(span_id), is_remote, _SAMPLED)


def _message(row: TraceRow, operation: str) -> _Attributes:
    """Attributes by OpenTelemetry's conventions for messaging; conventions for MQTT do not exist."""
    return {
        "messaging.system": "mqtt",
        "messaging.operation.name": operation,
        "messaging.destination.name": row.topic.decode("utf-8", "ignore"),  # it may end within a character
        "messaging.client.id": row.client_id.decode("utf-8", "ignore"),
        "messaging.message.body.size": row.payload_bytes,
        "holdmq.qos": row.qos,
    }


def _problem(row: TraceRow, attributes: _Attributes) -> Status:
    """The status; a problem becomes an attribute, too."""
    if row.outcome is TraceOutcome.DONE:
        return Status()
    attributes["error.type"] = row.outcome.name.lower()
    return Status(StatusCode.ERROR, _PROBLEMS[row.outcome])


def _resource(instance: str) -> Resource:
    """The process, as OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES describe it."""
    made = Resource.create({"service.instance.id": instance, "service.version": version("holdmq")})
    if str(made.attributes["service.name"]).startswith("unknown_service"):
        made = made.merge(Resource({"service.name": _SERVICE}))
    return made
