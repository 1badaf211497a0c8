"""Publishers wait for a server that is away, for a bounded time; who publishes nothing stays connected."""

from collections.abc import Callable

import pytest

from tests.bridge import packets, packets5
from tests.bridge.talk import Talk, Talk5
from tests.support import BridgeProcess, Server, eventually

MakeServer = Callable[..., Server]
MakeBridge = Callable[..., BridgeProcess]

QUICK = ["--retry-first-s", "0.02", "--retry-max-s", "0.1", "--retry-total-s", "0.5"]
DURABLE = ["appendfsync always"]


@pytest.mark.parametrize("version", [4, 5])
def test_a_publisher_is_disconnected_when_the_server_stays_away_and_nobody_else_is(
    fresh_server: MakeServer, bridge: MakeBridge, version: int
) -> None:
    server = fresh_server(aof=True, config=DURABLE)
    made = bridge(server, arguments=QUICK)
    codec, talk = (packets5, Talk5.open(made.port, "p")) if version == 5 else (packets, Talk.connected(made.port, "p"))
    with talk, Talk.connected(made.port, "quiet") as quiet:
        server.kill()
        talk.send(codec.publish("t", b"1", qos=1, pid=1))
        if isinstance(talk, Talk5):
            talk.expect_end(0x89)
        else:
            talk.expect_closed()
        eventually(lambda: "clients with waiting publishes were disconnected" in made.log_text(), what="one line")
        quiet.send(packets.PINGREQ)
        quiet.expect(packets.PINGRESP)
        server.restart()
        quiet.publish("t", b"2")
        with Talk.connected(made.port, "p") as again:
            again.publish("t", b"1")


def test_with_unserved_publisher_wait_a_publisher_waits_for_the_server(
    fresh_server: MakeServer, bridge: MakeBridge
) -> None:
    server = fresh_server(aof=True, config=DURABLE)
    patient = bridge(server, arguments=[*QUICK, "--unserved-publisher", "wait"])
    strict = bridge(server, arguments=QUICK)
    with Talk.connected(patient.port, "p") as talk, Talk.connected(strict.port, "q") as other:
        server.kill()
        for each in (talk, other):
            each.send(packets.publish("t", b"1", qos=1, pid=1))
        other.expect_closed()  # so much time has passed
        server.restart()
        talk.expect(packets.puback(1))
