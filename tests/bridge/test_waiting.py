"""CONNECTs that temporarily cannot be served are delayed, within bounds, before their connections are closed."""

import contextlib
import time
import urllib.request
from collections.abc import Callable

import pytest

from holdmq_bridge.broker.waiting import Line
from tests.bridge import packets
from tests.bridge import packets5 as p
from tests.bridge.packets import Will
from tests.bridge.talk import Talk, Talk5
from tests.support import BridgeProcess, SentinelProcess, Server, eventually
from tests.support.ports import Port
from tests.support.sentinel import SERVICE

MakeServer = Callable[..., Server]
MakeBridge = Callable[..., BridgeProcess]
MakeSentinel = Callable[[Server], SentinelProcess]

FAILOVER_S = 60.0
DURABLE = ["appendfsync always"]
HASTY = ["--retry-first-s", "0.02", "--retry-max-s", "0.1", "--connect-timeout-s", "0.5"]


def metric(port: int, name: str) -> int:
    """A number of /metrics."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return next(int(float(line.split()[1])) for line in lines if line.startswith(f"holdmq_bridge_{name} "))


def wanting(port: int, client_id: str, *, address: str = "", will: Will | None = None) -> Talk:
    """A client that has sent its CONNECT."""
    talk = Talk(port, timeout_s=30, address=address)
    talk.send(packets.connect(client_id, will=will))
    return talk


def is_let_in(talk: Talk) -> bool:
    """Whether its CONNECT is accepted; False: its connection is closed without a CONNACK."""
    try:
        talk.read_packet()
    except (AssertionError, ConnectionResetError):
        talk.expect_closed()
        return False
    return True


# ---- while the server is away ----------------------------------------------------------------------------------------


def test_a_connect_is_held_while_the_server_is_away_and_answered_when_it_is_back(
    fresh_server: MakeServer, bridge: MakeBridge, port: Port
) -> None:
    server = fresh_server(aof=True, config=DURABLE)
    made = bridge(server, arguments=[*HASTY, "--metrics-port", str(port.number)])
    server.kill()
    with contextlib.ExitStack() as clients:
        held = [clients.enter_context(wanting(made.port, f"c{number}")) for number in range(200)]
        eventually(lambda: metric(port.number, "connects_waiting") == 200)
        held[0].expect_silence(1.0)  # longer than the time for the CONNECT itself
        server.restart()
        for talk in held:
            talk.expect(packets.connack())
    eventually(lambda: metric(port.number, "connects_waiting") == 0)


def test_a_connect_is_held_while_the_server_does_not_answer(fresh_server: MakeServer, bridge: MakeBridge) -> None:
    server = fresh_server(aof=True, config=DURABLE)
    made = bridge(server, arguments=HASTY)
    server.pause()
    try:
        talk = wanting(made.port, "c")
        talk.expect_silence(1.0)
    finally:
        server.resume()
    with talk:
        talk.expect(packets.connack())


def test_a_connect_is_held_while_the_server_loads_its_data(
    fresh_server: MakeServer, bridge: MakeBridge, port: Port
) -> None:
    server = fresh_server(config=["loading-process-events-interval-bytes 1024"])
    made = bridge(server, arguments=[*HASTY, "--metrics-port", str(port.number)])
    client = server.client()
    client.mset({f"key{number}": "x" * 100 for number in range(6000)})
    client.save()
    server.kill()
    with wanting(made.port, "c") as talk:
        eventually(lambda: metric(port.number, "connects_waiting") == 1)
        server.restart(config=["key-load-delay 500"])  # microseconds: three seconds in all
        assert "LOADING" in made.log_text()
        talk.expect(packets.connack())


def test_connects_during_a_failover_are_held_and_answered(
    fresh_server: MakeServer, fresh_sentinel: MakeSentinel, bridge: MakeBridge
) -> None:
    primary = fresh_server()
    replica = fresh_server(replica_of=primary)
    sentinel = fresh_sentinel(primary)
    made = bridge(f"sentinel://127.0.0.1:{sentinel.port}/{SERVICE}", arguments=HASTY)
    with contextlib.ExitStack() as clients:
        talks = [clients.enter_context(wanting(made.port, "before"))]
        primary.kill()
        deadline = time.monotonic() + FAILOVER_S
        while not sentinel.names(replica) and time.monotonic() < deadline:
            talks.append(clients.enter_context(wanting(made.port, f"c{len(talks)}")))
            time.sleep(0.05)
        assert sentinel.names(replica)
        for talk in talks:
            talk.expect(packets.connack())


def test_a_server_that_stays_away_ends_a_connect_without_a_connack(
    fresh_server: MakeServer, bridge: MakeBridge
) -> None:
    server = fresh_server(aof=True, config=DURABLE)
    made = bridge(server, arguments=[*HASTY, "--connect-wait-s", "1"])
    telling = bridge(server, arguments=[*HASTY, "--connect-wait-s", "1", "--temporary-refusal", "reason_code"])
    server.kill()
    with wanting(made.port, "c") as talk, Talk5(telling.port) as told:
        told.send(p.connect("c"))
        talk.expect_closed()
        assert told.read(2).code == 0x88
        told.expect_closed()


def test_a_connect_whose_client_goes_leaves_nothing(fresh_server: MakeServer, bridge: MakeBridge, port: Port) -> None:
    server = fresh_server(aof=True, config=DURABLE)
    made = bridge(server, arguments=[*HASTY, "--metrics-port", str(port.number)])
    server.kill()
    with wanting(made.port, "c"):
        eventually(lambda: metric(port.number, "connects_waiting") == 1)
    eventually(lambda: metric(port.number, "connects_waiting") == 0)
    eventually(lambda: metric(port.number, "clients") == 0)
    server.restart()
    with wanting(made.port, "other") as talk:
        talk.expect(packets.connack())
    assert metric(port.number, "sessions_opened_total") == 1


def test_a_client_that_publishes_and_closes_without_waiting_for_its_connack_is_served_when_the_server_is_back(
    fresh_server: MakeServer, bridge: MakeBridge, port: Port
) -> None:
    server = fresh_server(aof=True, config=DURABLE)
    made = bridge(server, arguments=[*HASTY, "--metrics-port", str(port.number)])
    server.kill()
    with Talk(made.port) as hasty:
        hasty.send(packets.connect("c"), packets.publish("t", b"kept", qos=0, retain=True), packets.DISCONNECT)
    with wanting(made.port, "other") as talk:
        talk.expect_silence(2.5)  # longer than it takes to notice who has gone
        assert metric(port.number, "connects_waiting") == 2
        server.restart()
        talk.expect(packets.connack())
    eventually(lambda: server.client().execute_command("TOPIC.RETAINED", "#") == [b"t"])


def test_large_connects_beyond_the_bound_in_bytes_are_closed_and_small_ones_are_held(
    fresh_server: MakeServer, bridge: MakeBridge
) -> None:
    server = fresh_server(aof=True, config=DURABLE)
    made = bridge(server, arguments=[*HASTY, "--max-unanswered-connects", "100000"])
    server.kill()
    will = Will("t", b"x" * 60_000)
    with wanting(made.port, "a", will=will) as first, wanting(made.port, "b", will=will) as second:
        second.expect_closed()
        with wanting(made.port, "c") as small:
            server.restart()
            first.expect(packets.connack())
            small.expect(packets.connack())


# ---- above connection_rate -------------------------------------------------------------------------------------------


def test_connects_above_the_rate_wait_for_their_turn(server: Server, bridge: MakeBridge) -> None:
    made = bridge(server, arguments=["--connection-rate", "40"])
    begun = time.monotonic()
    with contextlib.ExitStack() as clients:
        for talk in [clients.enter_context(wanting(made.port, f"c{number}")) for number in range(120)]:
            talk.expect(packets.connack())
    assert time.monotonic() - begun >= 1.9  # 40 at once, and 40 a second


def test_an_address_that_connects_much_does_not_delay_another(server: Server, bridge: MakeBridge) -> None:
    made = bridge(server, arguments=["--connection-rate", "20"])
    with contextlib.ExitStack() as clients:
        flood = [clients.enter_context(wanting(made.port, f"f{number}", address="127.0.0.2")) for number in range(100)]
        flood[0].expect(packets.connack())
        for number in range(10):  # more than is reserved for addresses that connect little
            with wanting(made.port, f"c{number}", address="127.0.0.3") as talk:
                talk.expect(packets.connack())
        flood[-1].expect_silence(0.1)  # the flood is not over
        flood[-1].expect(packets.connack())


@pytest.mark.parametrize("answer", ["close", "reason_code"])
def test_more_connects_than_can_have_their_turn_in_time_are_refused(
    server: Server, bridge: MakeBridge, answer: str
) -> None:
    options = ["--connection-rate", "8", "--connect-wait-s", "2", "--temporary-refusal", answer]
    made = bridge(server, arguments=options)
    outcomes = []
    with contextlib.ExitStack() as clients:
        talks = [clients.enter_context(Talk5(made.port, timeout_s=30)) for _ in range(100)]
        for number, talk in enumerate(talks):
            talk.send(p.connect(f"c{number}"))
        for talk in talks:
            if answer == "reason_code":
                outcomes.append(talk.read(2).code)
            else:
                outcomes.append(0 if is_let_in(talk) else -1)
    assert set(outcomes) == {0, 0x9F if answer == "reason_code" else -1}
    assert 8 < outcomes.count(0) < 40  # 8 at once, and at most 16 places in the line


# ---- the line --------------------------------------------------------------------------------------------------------


def test_addresses_take_turns_and_each_keeps_its_order() -> None:
    line: Line[int, str] = Line(100)
    for number in range(6):
        assert line.put("a" if number < 4 else "b", number, "x")
    assert (len(line), line.addresses) == (6, 2)
    served = []
    while line:
        served.append(line.pop(line.turn())[0])
    assert served == [0, 4, 1, 5, 2, 3]


def test_an_address_that_has_many_places_leaves_a_quarter_to_others() -> None:
    line: Line[int, None] = Line(100)
    assert [line.put("a", number, None) for number in range(100)].count(True) == 75
    assert [line.put(f"b{number}", 100 + number, None) for number in range(30)].count(True) == 25


def test_an_address_may_have_a_bound_of_its_own() -> None:
    line: Line[int, None] = Line(100, 2)
    assert [line.put("a", number, None) for number in range(3)] == [True, True, False]
    assert line.put("b", 3, None)


def test_anyone_who_gives_up_is_forgotten() -> None:
    line: Line[int, None] = Line(4)
    for number in range(2):
        line.put("a", number, None)
    line.drop(0)
    line.drop(0)
    assert (len(line), line.pop(line.turn())) == (1, (1, None))
    assert (len(line), line.addresses) == (0, 0)
