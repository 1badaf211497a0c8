"""Publishes and deliveries are traced: which, when each step happened, within bounds, and whatever a context says."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

import hypothesis
import pytest
from hypothesis import strategies as st

from holdmq.core._binding import ffi
from holdmq.core.engine import MOST_TRACE_RATE, EngineSettings, TraceKind, TraceOutcome, TraceRow, Tracing
from tests.bridge import packets, packets5
from tests.core.engine.engine_talk import Desk, publish, push, queued, record, transient

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CONTEXT = f"00-{TRACE}-{SPAN}-01"
UNSAMPLED = f"00-{TRACE}-{SPAN}-00"
MS = 1_000_000
MOST_MS = 10_000


def carrying(*contexts: str, more: bytes = b"") -> bytes:
    """Properties with these contexts."""
    return more + b"".join(packets5.pair("traceparent", context) for context in contexts)


@dataclass
class Traced(Desk):
    """A desk whose engine traces; its clock of traces is that of the engine, and advances by 1 ns with each look."""

    sample: float = 1.0
    rate: int = 20
    adds_context: bool = False
    looks: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.clock = ffi.callback("int64_t(*)(void)", self._now)
        self.engine.trace(Tracing(self.sample, self.rate, (1, 2), self.clock, adds_context=self.adds_context))

    def _now(self) -> int:
        self.looks += 1
        return self.now_ms * MS + self.looks

    def traces(self) -> list[TraceRow]:
        return list(self.engine.take_traces())

    def later(self, milliseconds: int) -> None:
        self.now_ms += milliseconds

    def serve(self) -> None:
        """The server answers everything that there is."""
        while commands := self.commands():
            self.answer(b":0\r\n" * len(commands))

    def put_through(self, conn: int, packet: bytes, reply: bytes = b":1\r\n") -> list[TraceRow]:
        """A publish that the server answers; what was traced of it."""
        self.send(conn, packet)
        self.commands()
        self.answer(reply)
        self.received(conn)
        return self.traces()


def kinds(rows: Iterable[TraceRow]) -> list[tuple[TraceKind, TraceOutcome]]:
    return [(row.kind, row.outcome) for row in rows]


# ---- publishes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_publish_is_followed_to_its_acknowledgement(qos: int) -> None:
    desk = Traced()
    conn = desk.open(b"pub")
    began = desk.now_ms * MS
    desk.send(conn, publish(b"a/b", b"12345", qos=qos, packet_id=9 if qos else 0, retain=True))
    desk.later(1)
    desk.commands()
    desk.later(2)
    desk.answer(b":3\r\n")
    desk.later(4)
    assert bool(desk.received(conn)) == (qos > 0)
    [row] = desk.traces()
    assert (row.kind, row.outcome) == (TraceKind.PUBLISH, TraceOutcome.DONE)
    assert (row.topic, row.client_id, row.payload_bytes, row.qos, row.retain) == (b"a/b", b"pub", 5, qos, True)
    assert (row.sessions, row.attempts, row.parent_id) == (3, 1, None)
    assert [(at - began) // MS for at in (row.began_ns, row.sent_ns, row.answered_ns)] == [0, 1, 3]
    assert (row.ended_ns - began) // MS == (7 if qos else 3)
    assert any(row.trace_id)
    assert len({row.span_id, row.server_span_id, bytes(8)}) == 3
    assert desk.traces() == []


def test_identifiers_differ() -> None:
    desk = Traced(rate=100)
    conn = desk.open(b"pub")
    desk.send(conn, publish(b"t") * 100)
    desk.serve()
    rows = desk.traces()
    assert len({row.trace_id for row in rows}) == 100
    assert len({part for row in rows for part in (row.span_id, row.server_span_id)}) == 200


def test_chance_chooses_the_share_that_was_asked_for() -> None:
    desk = Traced(sample=0.05, rate=MOST_TRACE_RATE)
    conn = desk.open(b"pub")
    found = 0
    for _ in range(20):
        desk.later(1000)
        desk.send(conn, publish(b"t") * 500)
        desk.serve()
        found += len(desk.traces())
    assert 350 < found < 650  # of 10,000: 500, with a standard deviation of 22
    assert desk.engine.counters()["traces_limited"] == 0


def test_nothing_is_traced_before_it_is_asked_for() -> None:
    desk = Desk()
    conn = desk.open(b"c", version=5)
    desk.send(conn, publish(b"t", properties=carrying(CONTEXT)))
    desk.answer(push(b"{c}_inbox", transient(record(properties=carrying(CONTEXT)))))
    desk.commands()
    desk.answer(b":1\r\n")
    assert desk.received(conn)
    assert list(desk.engine.take_traces()) == []


@pytest.mark.parametrize(
    ("reply", "outcome"), [(b"-ERR no\r\n", TraceOutcome.REFUSED), (b"-OOM no\r\n", TraceOutcome.REFUSED)]
)
@pytest.mark.parametrize("qos", [0, 1])
def test_a_refusal_is_reported(reply: bytes, outcome: TraceOutcome, qos: int) -> None:
    desk = Traced()
    conn = desk.open(b"c", version=5)
    rows = desk.put_through(conn, publish(b"t", qos=qos, packet_id=qos, properties=b""), reply)
    if qos == 0 and reply.startswith(b"-ERR"):  # it ends the connection
        desk.engine.close(conn)
        rows += desk.traces()
    assert kinds(rows) == [(TraceKind.PUBLISH, outcome)]
    assert rows[0].answered_ns > 0


def test_a_publish_that_is_sent_again_keeps_its_trace() -> None:
    desk = Traced()
    conn = desk.open(b"c")
    desk.send(conn, publish(b"t", qos=1, packet_id=1))
    desk.commands()
    desk.engine.server_lost()
    assert desk.traces() == []
    desk.later(500)
    desk.engine.server_restored(desk.now_ms)
    desk.commands()
    desk.answer(b":1\r\n")
    desk.received(conn)
    [row] = desk.traces()
    assert (row.outcome, row.attempts) == (TraceOutcome.DONE, 2)
    assert row.answered_ns - row.sent_ns >= 500 * MS


def test_a_publish_of_qos_0_that_is_lost_with_the_server_is_reported() -> None:
    desk = Traced()
    conn = desk.open(b"c")
    desk.send(conn, publish(b"t"))
    desk.commands()
    desk.engine.server_lost()
    assert kinds(desk.traces()) == [(TraceKind.PUBLISH, TraceOutcome.LOST)]


def test_the_end_of_a_client_ends_its_traces() -> None:
    desk = Traced()
    conn = desk.open(b"c")
    desk.send(conn, publish(b"t", qos=1, packet_id=1) + publish(b"t", qos=1, packet_id=2))
    desk.commands()
    desk.engine.close(conn)
    assert kinds(desk.traces()) == [(TraceKind.PUBLISH, TraceOutcome.LOST)] * 2
    desk.answer(b":1\r\n:1\r\n")
    assert desk.traces() == []


def test_a_withheld_acknowledgement_is_waited_for() -> None:
    desk = Traced(EngineSettings(wait_replicas=1, wait_timeout_ms=100))
    conn = desk.open(b"c")
    desk.send(conn, publish(b"t", qos=1, packet_id=1))
    desk.commands()
    desk.answer(b":1\r\n")
    assert desk.received(conn) == b""
    assert desk.traces() == []
    desk.later(50)
    desk.answer(b":1\r\n")  # to the WAIT
    assert desk.received(conn) == packets.puback(1)
    [row] = desk.traces()
    assert row.outcome is TraceOutcome.DONE
    assert row.ended_ns - row.answered_ns >= 50 * MS


def test_a_trace_ends_after_ten_seconds_and_its_late_reply_finds_nothing() -> None:
    desk = Traced()
    conn = desk.open(b"c")
    desk.send(conn, publish(b"t", qos=1, packet_id=1))
    desk.commands()
    desk.later(MOST_MS - 1)
    assert desk.traces() == []
    desk.later(2)
    assert kinds(desk.traces()) == [(TraceKind.PUBLISH, TraceOutcome.LATE)]
    desk.send(conn, publish(b"t", qos=1, packet_id=2))  # takes the same place
    desk.commands()
    desk.answer(b":7\r\n")
    desk.received(conn)
    assert desk.traces() == []
    desk.answer(b":8\r\n")
    desk.received(conn)
    assert [row.sessions for row in desk.traces()] == [8]


def test_a_clock_that_is_set_back_ends_traces() -> None:
    desk = Traced()
    conn = desk.open(b"c")
    desk.send(conn, publish(b"t", qos=1, packet_id=1))
    desk.later(-3_600_000)
    assert kinds(desk.traces()) == [(TraceKind.PUBLISH, TraceOutcome.LATE)]


# ---- contexts --------------------------------------------------------------------------------------------------------


def test_the_context_of_a_publish_is_its_parent_and_decides() -> None:
    desk = Traced(sample=0.0)
    conn = desk.open(b"c", version=5)
    assert desk.put_through(conn, publish(b"t", properties=b"")) == []
    assert desk.put_through(conn, publish(b"t", properties=carrying(UNSAMPLED))) == []
    [row] = desk.put_through(conn, publish(b"t", properties=carrying(CONTEXT)))
    assert (row.trace_id.hex(), row.parent_id) == (TRACE, bytes.fromhex(SPAN))


def test_a_context_that_is_not_sampled_is_not_traced_by_chance_either() -> None:
    desk = Traced(sample=1.0)
    conn = desk.open(b"c", version=5)
    assert desk.put_through(conn, publish(b"t", properties=carrying(UNSAMPLED))) == []


VALID = [
    CONTEXT,
    f"00-{TRACE}-{SPAN}-ff",
    f"cc-{TRACE}-{SPAN}-01-what-comes-later",
    f"01-{TRACE}-{SPAN}-01",
]
INVALID = [
    "",
    "00",
    f"00-{TRACE}-{SPAN}-0",
    f"00-{TRACE}-{SPAN}-01-",
    f"00-{TRACE}-{SPAN}-01 ",
    f" 00-{TRACE}-{SPAN}-01",
    f"ff-{TRACE}-{SPAN}-01",
    f"cc-{TRACE}-{SPAN}-01.what-comes-later",
    f"00-{'0' * 32}-{SPAN}-01",
    f"00-{TRACE}-{'0' * 16}-01",
    f"00-{TRACE.upper()}-{SPAN}-01",
    f"00-{TRACE[:-1]}g-{SPAN}-01",
    f"00_{TRACE}-{SPAN}-01",
    f"00-{TRACE}-{SPAN}-0g",
    f"0x-{TRACE}-{SPAN}-01",
    "é" * 27 + "e",
    "0" * 55,
    "-" * 55,
    "9" * 65535,
]


@pytest.mark.parametrize("context", VALID)
def test_a_valid_context_is_taken(context: str) -> None:
    desk = Traced(sample=0.0)
    conn = desk.open(b"c", version=5)
    [row] = desk.put_through(conn, publish(b"t", properties=carrying(context)))
    assert row.trace_id.hex() == TRACE


@pytest.mark.parametrize("context", INVALID, ids=range(len(INVALID)))
def test_an_invalid_context_counts_as_none(context: str) -> None:
    desk = Traced(sample=0.0)
    conn = desk.open(b"c", version=5)
    assert desk.put_through(conn, publish(b"t", properties=carrying(context))) == []
    chosen = Traced(sample=1.0)
    [row] = chosen.put_through(chosen.open(b"c", version=5), publish(b"t", properties=carrying(context)))
    assert row.parent_id is None
    assert row.trace_id.hex() != TRACE


def test_two_contexts_are_none() -> None:
    desk = Traced(sample=0.0)
    conn = desk.open(b"c", version=5)
    assert desk.put_through(conn, publish(b"t", properties=carrying(CONTEXT, CONTEXT))) == []
    assert desk.put_through(conn, publish(b"t", properties=carrying(CONTEXT, "x"))) == []
    other = packets5.pair("Traceparent", CONTEXT) + packets5.pair("traceparent2", CONTEXT)
    assert desk.put_through(conn, publish(b"t", properties=other)) == []


def test_ten_thousand_contexts_are_limited_and_leave_chance_its_own() -> None:
    desk = Traced(sample=1.0, rate=10)
    loud, quiet = desk.open(b"loud", version=5), desk.open(b"quiet")
    for _ in range(100):
        desk.send(loud, publish(b"t", properties=carrying(CONTEXT)) * 100)
        desk.serve()
    assert len(desk.traces()) == 10
    assert desk.engine.counters()["traces_limited"] == 9990
    assert [row.client_id for row in desk.put_through(quiet, publish(b"t"))] == [b"quiet"]


@hypothesis.given(
    st.one_of(
        st.text(max_size=120).filter(lambda text: "\0" not in text),
        st.text("0123456789abcdef-ABCDEF", min_size=50, max_size=60),
        st.from_regex(r"\A[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}\Z"),
    )
)
def test_any_context_is_read_as_the_standard_says(context: str) -> None:
    desk = Traced(sample=0.0)
    conn = desk.open(b"c", version=5)
    rows = desk.put_through(conn, publish(b"t", properties=carrying(context)))
    form = re.fullmatch(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", context, re.DOTALL)
    is_valid = (
        form is not None
        and form[1] != "ff"
        and not (form[1] == "00" and form[5])
        and form[2] != "0" * 32
        and form[3] != "0" * 16
    )
    is_sampled = form is not None and bool(int(form[4], 16) & 1)
    assert bool(rows) == (is_valid and is_sampled)


# ---- adding a context ------------------------------------------------------------------------------------------------


def properties_sent(desk: Traced, conn: int, packet: bytes) -> tuple[list[tuple[str, str]], TraceRow | None]:
    """The user properties of the command, and the trace."""
    desk.send(conn, packet)
    [command] = desk.commands()
    desk.answer(b":1\r\n")
    desk.received(conn)
    rows = desk.traces()
    if b"PROPERTIES" not in command:
        return [], rows[0] if rows else None
    block = command[command.index(b"PROPERTIES") + 1]
    read = packets5.read(packets5.publish("t", properties=block))
    return read.properties.get(packets5.USER_PROPERTY, []), rows[0] if rows else None


@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("version", [4, 5])
def test_a_context_is_added_only_if_that_is_wanted(version: int, adds: bool) -> None:
    desk = Traced(adds_context=adds)
    conn = desk.open(b"c", version=version)
    pairs, row = properties_sent(desk, conn, publish(b"t", properties=b"" if version == 5 else None))
    assert row is not None
    assert pairs == ([("traceparent", f"00-{row.trace_id.hex()}-{row.span_id.hex()}-01")] if adds else [])


def test_the_added_context_replaces_the_publishers_and_leaves_the_rest() -> None:
    desk = Traced(adds_context=True)
    conn = desk.open(b"c", version=5, alias_maximum_in=5)
    alias = packets5.number(0x23, 1)
    mixed = packets5.pair("a", "1") + carrying(CONTEXT) + alias + packets5.pair("b", "2")
    pairs, row = properties_sent(desk, conn, publish(b"t", properties=mixed))
    assert row is not None
    assert (row.trace_id.hex(), row.parent_id) == (TRACE, bytes.fromhex(SPAN))
    assert pairs == [("traceparent", f"00-{TRACE}-{row.span_id.hex()}-01"), ("a", "1"), ("b", "2")]
    pairs, row = properties_sent(desk, conn, publish(b"t", properties=carrying("nonsense", "x" * 65535)))
    assert row is not None
    assert [name for name, _ in pairs] == ["traceparent"]
    pairs, row = properties_sent(desk, conn, publish(b"t", properties=carrying(UNSAMPLED)))
    assert (pairs, row) == ([("traceparent", UNSAMPLED)], None)


# ---- deliveries ------------------------------------------------------------------------------------------------------


def message(qos: int, context: str = CONTEXT, **more: bool) -> bytes:
    return record(b"12345", topic=b"a/b", qos=qos, properties=carrying(context), **more)


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("version", [4, 5])
def test_a_delivery_is_followed_to_the_clients_acknowledgement(qos: int, version: int) -> None:
    desk = Traced(sample=0.0)
    conn = desk.open(b"sub", version=version)
    began = desk.now_ms * MS
    desk.answer(push(b"{sub}_inbox", queued(1, 0, message(qos), qos=qos) if qos else transient(message(0))))
    desk.later(1)
    assert desk.received(conn)
    if qos:
        assert desk.traces() == []
        desk.later(2)
        desk.send(conn, packets.puback(1) if qos == 1 else packets.acknowledgement(0x50, 1))
    [row] = desk.traces()
    assert (row.kind, row.outcome) == (TraceKind.DELIVERY, TraceOutcome.DONE)
    assert (row.topic, row.client_id, row.payload_bytes, row.qos, row.was_queued) == (b"a/b", b"sub", 5, qos, False)
    assert (row.trace_id.hex(), row.parent_id) == (TRACE, bytes.fromhex(SPAN))
    assert [(at - began) // MS for at in (row.began_ns, row.sent_ns, row.ended_ns)] == [0, 1, 3 if qos else 1]


def test_deliveries_without_a_sampled_context_and_retained_ones_are_not_traced() -> None:
    desk = Traced()
    conn = desk.open(b"c")
    desk.answer(push(b"{c}_inbox", queued(1, 0, record())))
    desk.answer(push(b"{c}_inbox", queued(2, 1, message(1, UNSAMPLED))))
    desk.answer(push(b"{c}_inbox", queued(3, 2, message(1, retain=True))))
    desk.received(conn)
    desk.send(conn, packets.puback(1) + packets.puback(2) + packets.puback(3))
    assert desk.traces() == []


def test_the_wait_for_a_full_window_is_part_of_a_delivery() -> None:
    desk = Traced()
    conn = desk.open(b"c", window=1)
    for serial in (1, 2):
        desk.answer(push(b"{c}_inbox", queued(serial, serial - 1, message(1))))
    desk.received(conn)
    desk.later(50)
    desk.send(conn, packets.puback(1))
    desk.received(conn)
    desk.send(conn, packets.puback(2))
    first, second = desk.traces()
    assert first.sent_ns - first.began_ns < MS
    assert second.sent_ns - second.began_ns >= 50 * MS


def test_a_message_that_is_not_sent_is_reported() -> None:
    desk = Traced()
    desk.open(b"c", version=5, max_packet_out=30)
    desk.answer(push(b"{c}_inbox", queued(1, 0, message(1))))
    assert kinds(desk.traces()) == [(TraceKind.DELIVERY, TraceOutcome.SKIPPED)]


def test_a_delivery_that_nobody_acknowledges_ends() -> None:
    desk = Traced()
    conn = desk.open(b"c")
    desk.answer(push(b"{c}_inbox", queued(1, 0, message(1))))
    desk.received(conn)
    desk.later(MOST_MS + 1)
    [row] = desk.traces()
    assert row.outcome is TraceOutcome.LATE
    assert row.sent_ns > 0
    desk.send(conn, packets.puback(1))
    assert desk.traces() == []


def test_receivers_that_acknowledge_nothing_leave_room_for_others() -> None:
    desk = Traced(rate=2)
    conn = desk.open(b"c", window=1000)
    serial, deliveries = 0, 0
    for _ in range(60):
        for _ in range(10):
            serial += 1
            desk.answer(push(b"{c}_inbox", queued(serial, serial - 1, message(1))))
        desk.received(conn)
        rows = desk.put_through(conn, publish(b"t"))
        deliveries += sum(row.kind is TraceKind.DELIVERY for row in rows)
        assert sum(row.kind is TraceKind.PUBLISH for row in rows) == 1
        desk.later(1000)
    assert deliveries >= 2 * 45  # two a second, but for those of the last ten


def test_long_topics_are_cut() -> None:
    desk = Traced()
    conn = desk.open(b"c" * 1000)
    [row] = desk.put_through(conn, publish(b"t" * 5000))
    assert (row.topic, row.topic_len, row.client_id) == (b"t" * 200, 5000, b"c" * 100)
