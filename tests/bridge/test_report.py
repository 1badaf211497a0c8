"""What bridges tell about their clients, and the commands that use it: list, disconnect, empty a queue."""

import json
from collections.abc import Callable

import pytest
import redis
from click.testing import CliRunner, Result

from holdmq import HoldMQ
from holdmq.cli import main
from holdmq.errors import NotAnsweredError
from holdmq.password import without_password
from holdmq.replies import ClientRow, quantile_ms
from holdmq_bridge.monitoring.report import PREFIX, ROWS
from tests.bridge.talk import Talk, Talk5
from tests.support import BridgeProcess, SentinelProcess, Server, embedded_kinds, eventually
from tests.support.sentinel import SERVICE

server_kinds = embedded_kinds
Connect = Callable[..., Talk]
MakeBridge = Callable[..., BridgeProcess]
ADMINISTRATIVE = 0x98
INTERVAL_S = 0.3
ANSWERED_S = 6.0  # after a failover; the old primary becomes a replica after ten


@pytest.fixture
def made(server: Server, bridge: MakeBridge) -> BridgeProcess:
    """A bridge that reports often."""
    return bridge(server, arguments=["--report-interval-s", str(INTERVAL_S), "--sys-interval-s", "0"])


@pytest.fixture
def hold(client: redis.Redis) -> HoldMQ:
    return HoldMQ(client)


@pytest.fixture
def run(server: Server) -> Callable[..., Result]:
    """Runs `holdmq`; `status` is the exit status expected."""

    def holdmq(*words: str, status: int = 0) -> Result:
        done = CliRunner().invoke(main, ["--url", server.url, "--json", *words])
        assert done.exit_code == status, done.output
        return done

    return holdmq


def rows(done: Result) -> list[dict[str, object]]:
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_bridges_report_themselves_and_are_forgotten_at_their_end(made: BridgeProcess, hold: HoldMQ) -> None:
    eventually(lambda: len(hold.bridges()) == 1, what="a report")
    (row,) = hold.bridges()
    assert row.pid == made.pid
    assert row.clients == 0
    assert row.loudest == ()
    assert made.stop() == 0
    assert hold.bridges() == []
    assert hold.client.keys(PREFIX + "*") == []


def test_the_report_of_a_bridge_that_was_killed_expires(made: BridgeProcess, hold: HoldMQ) -> None:
    eventually(lambda: len(hold.bridges()) == 1, what="a report")
    made.kill()
    eventually(lambda: hold.bridges() == [], what="the end of the report")


def test_questions_are_answered_at_the_new_primary_as_soon_as_it_is_one(
    fresh_server: Callable[..., Server],
    fresh_sentinel: Callable[[Server], SentinelProcess],
    bridge: Callable[..., BridgeProcess],
    dial: Connect,
) -> None:
    primary = fresh_server()
    replica = fresh_server(replica_of=primary)
    sentinel = fresh_sentinel(primary)
    made = bridge(f"sentinel://127.0.0.1:{sentinel.port}/{SERVICE}", arguments=["--report-interval-s", "0.5"])
    dial(made.port, "there")
    with HoldMQ(replica.client()) as hold:
        sentinel.fail_over_until(lambda: "the primary has moved" in made.log_text(), what="a bridge that was told")
        # Its report there is that of before, until that expires.
        eventually(lambda: [row.client_id for row in listed(hold)] == ["there"], ANSWERED_S, "an answer")
        with primary.client() as old:
            assert old.execute_command("ROLE")[0] == b"master"  # an answer to a question that went there is no use


def listed(hold: HoldMQ) -> list[ClientRow]:
    try:
        return list(hold.clients())
    except NotAnsweredError:
        return []


def test_clients_are_listed_with_address_and_traffic(
    made: BridgeProcess, dial: Connect, hold: HoldMQ, run: Callable[..., Result]
) -> None:
    eventually(hold.bridges, what="a report")
    loud, quiet = dial(made.port, "loud"), dial(made.port, "quiet")
    quiet.subscribe(("t/#", 0))
    for number in range(10):
        loud.publish("t/1", b"12345", pid=number + 1)
    by_id = {str(row["client_id"]): row for row in rows(run("clients"))}
    assert sorted(by_id) == ["loud", "quiet"]
    assert (by_id["loud"]["received"], by_id["loud"]["bytes_received"], by_id["loud"]["sent"]) == (10, 50, 0)
    assert (by_id["quiet"]["received"], by_id["quiet"]["sent"], by_id["quiet"]["bytes_sent"]) == (0, 10, 50)
    assert str(by_id["loud"]["address"]).startswith("127.0.0.1")
    assert by_id["loud"]["version"] == 4
    assert [row["client_id"] for row in rows(run("clients", "q*"))] == ["quiet"]
    assert rows(run("clients", "--bridge", "another*")) == []


def test_a_report_says_how_long_publishers_lately_waited_for_acknowledgements(
    made: BridgeProcess, dial: Connect, hold: HoldMQ, run: Callable[..., Result]
) -> None:
    eventually(hold.bridges, what="a report")
    assert hold.bridges()[0].acknowledge_p99_ms is None
    client = dial(made.port, "c")

    def waited() -> float | None:
        client.publish("t", b"x", pid=1)
        (row,) = hold.bridges()
        return row.acknowledge_p99_ms

    eventually(lambda: waited() is not None, what="a time in the report")
    eventually(lambda: hold.bridges()[0].acknowledge_p99_ms is None, what="a report without publishes")
    assert rows(run("bridges"))[0]["acknowledge_p50_ms"] is None


@pytest.mark.parametrize(
    ("below", "quantile", "ms"),
    [
        ([0] * 12, 0.5, None),
        ([4] + [0] * 11, 0.5, 0.5),
        ([0, 0, 10] + [0] * 9, 1.0, 5.0),
        ([50, 49, 0, 1] + [0] * 8, 0.99, 2.0),
        ([0] * 11 + [1], 0.5, 5000.0),
    ],
)
def test_quantiles_are_interpolated_between_bounds(below: list[int], quantile: float, ms: float | None) -> None:
    assert quantile_ms(below, quantile) == ms


def test_all_clients_are_listed_page_by_page(made: BridgeProcess, dial: Connect, hold: HoldMQ) -> None:
    eventually(hold.bridges, what="a report")
    ids = {f"c{number}" for number in range(ROWS + 50)}
    for client_id in ids:
        dial(made.port, client_id)
    assert sorted(row.client_id for row in hold.clients()) == sorted(ids)


def test_the_loudest_come_first(made: BridgeProcess, dial: Connect, run: Callable[..., Result], hold: HoldMQ) -> None:
    clients = [dial(made.port, f"c{number}") for number in range(30)]

    def loudest() -> list[ClientRow]:
        for number, client in enumerate(clients):
            for pid in range(1, 1 + (number == 7) * 40 + (number == 3) * 20 + 1):
                client.publish("t", b"x", pid=pid)
        return hold.loudest(100)

    def are_reported() -> bool:  # from a whole round, not from a part of one
        found = loudest()
        return len(found) == 20 and [row.client_id for row in found[:2]] == ["c7", "c3"]

    eventually(are_reported, what="the loudest clients")
    hold.session("full").add("a", "b", "c")
    hold.session("full").subscribe("x")
    hold.session("full").open("somebody", expiry=60)
    assert {"client_id": "full", "connected": True, "messages": 3, "owner": "somebody"} in rows(run("top"))


def test_a_client_is_disconnected_and_its_session_stays(
    made: BridgeProcess, hold: HoldMQ, run: Callable[..., Result]
) -> None:
    client = Talk5.open(made.port, "victim", clean=False, properties=b"\x11\x00\x00\x00\x3c")
    assert client.granted(("t/#", 1)) == [1]
    run("kick", "victim", "--why", "too loud")
    client.expect_end(ADMINISTRATIVE)
    client.close()
    eventually(lambda: not hold.session("victim").info().connected, what="the end of the connection")
    assert hold.topics.publish("t/1", b"x", qos=1) == 1
    assert hold.session("victim").info().messages == 1
    assert "not connected" in run("kick", "victim", status=1).output
    assert "there is no session of 'nobody'" in run("kick", "nobody", status=1).output


def test_a_question_that_cannot_be_understood_changes_nothing(made: BridgeProcess, hold: HoldMQ) -> None:
    eventually(hold.bridges, what="a report")
    name, client = hold.bridges()[0].name, hold.client
    questions = [b"no json", b"[]", b'{"ask": "clients", "answer": "mine"}', b'{"ask": "?", "answer": 3}']
    start = b'{"ask": "clients", "answer": "%banswer:x", "from": %%b}' % PREFIX.encode()
    questions += [start % b"1e300", start % b"1e999", b"[" * 100_000]
    for question in questions:
        client.rpush(f"{PREFIX}{name}:asked", question)
    warned = "a malformed request was ignored"
    eventually(lambda: made.log_text().count(warned) == len(questions), what="a warning for each")
    assert not client.exists("mine")
    assert list(hold.clients()) == []


def test_an_owner_that_does_not_answer_is_named(
    hold: HoldMQ, run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdmq._sync.bridges.PATIENCE_S", 0.1)
    hold.session("c").open("somebody-else", expiry=60)
    assert "somebody-else has not answered" in run("kick", "c", status=1).output


def test_a_queue_is_emptied_and_its_subscriptions_stay(hold: HoldMQ, run: Callable[..., Result]) -> None:
    session = hold.session("full")
    session.subscribe("t/#")
    for number in range(2500):
        session.add(b"%d" % number)
    assert rows(run("purge", "full", "--yes")) == [{"messages": 2500}]
    assert session.info().messages == 0
    assert list(session.subscriptions()) == ["t/#"]
    assert rows(run("purge", "full", "--yes")) == [{"messages": 0}]
    assert "there is no session of 'nobody'" in run("purge", "nobody", "--yes", status=1).output


def test_sessions_are_searched_and_sorted_by_the_length_of_their_queues(
    hold: HoldMQ, run: Callable[..., Result]
) -> None:
    for client_id, messages in (("a1", 1), ("a2", 3), ("b1", 2)):
        hold.session(client_id).open("somebody", expiry=60)
        hold.session(client_id).add(*[b"x"] * messages)
    assert [row["client_id"] for row in rows(run("sessions"))] == ["a1", "a2", "b1"]
    assert [row["client_id"] for row in rows(run("sessions", "a*"))] == ["a1", "a2"]
    longest = rows(run("sessions", "--sort", "messages", "--count", "2"))
    assert [(row["client_id"], row["messages"]) for row in longest] == [("a2", 3), ("b1", 2)]


def test_a_bridge_reports_its_settings_without_passwords(server: Server, bridge: MakeBridge, hold: HoldMQ) -> None:
    made = bridge(server, arguments=["--report-interval-s", "0.3", "--receive-maximum", "17"])
    eventually(hold.bridges, what="a report")
    settings = hold.bridge_settings(hold.bridges()[0].name)
    assert (settings["receive_maximum"], settings["port"]) == (17, made.port)
    assert settings["redis"] == server.url


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://h:1/2", "redis://h:1/2"),
        ("rediss://ann:p@ss@h", "rediss://ann:***@h"),
        ("sentinel://:secret@a:1,b:2/main", "sentinel://:***@a:1,b:2/main"),
        ("unix:///run/s?db=1&password=secret", "unix:///run/s?db=1&password=***"),
    ],
)
def test_a_shown_url_has_no_password(url: str, shown: str) -> None:
    assert without_password(url) == shown
