"""Connections that close in the same moment: a few at a time, each once, and none is left over."""

from collections.abc import Callable, Iterator

import pytest

from holdmq_bridge.broker.closings import AT_ONCE, UNANSWERED_MOST, Closings
from tests.bridge import packets
from tests.bridge.conftest import Connect
from tests.bridge.packets import Will
from tests.bridge.talk import Talk
from tests.support import BridgeProcess


class Loop:
    """Runs by hand what is to be called soon."""

    def __init__(self) -> None:
        self._soon: list[Callable[[], None]] = []

    def call_soon(self, call: Callable[[], None]) -> None:
        self._soon.append(call)

    def run(self) -> bool:
        """One iteration; whether there was anything to do."""
        soon, self._soon = self._soon, []
        for call in soon:
            call()
        return bool(soon)


class Client:
    """Sends a command when it ends, as a client with a session does."""

    client_id = b"client"

    def __init__(self, closings: Closings) -> None:
        self._closings = closings
        self.ends = 0

    def close(self) -> None:
        if self._closings.has_turn(self):  # type: ignore[arg-type]
            self.finish()

    def finish(self) -> None:
        self.ends += 1
        self._closings.command_sent(self)  # type: ignore[arg-type]


class Crowd:
    """Clients of one process that close together."""

    def __init__(self, count: int) -> None:
        self.loop = Loop()
        self.closings = Closings(self.loop)  # type: ignore[arg-type]
        self.clients = [Client(self.closings) for _ in range(count)]

    def close(self) -> None:
        for client in self.clients:
            client.close()

    def answer(self) -> None:
        for client in self.clients:
            if client.ends:
                self.closings.command_answered(client)  # type: ignore[arg-type]

    @property
    def ended(self) -> int:
        return sum(client.ends for client in self.clients)


@pytest.mark.parametrize("count", [1, AT_ONCE, AT_ONCE + 1, 3 * AT_ONCE, 5 * AT_ONCE + 3])
def test_a_few_end_in_each_iteration_and_then_others_may_end_at_once_again(count: int) -> None:
    crowd = Crowd(count)
    crowd.close()
    while crowd.loop.run():
        before = crowd.ended
        crowd.answer()
        assert crowd.ended - before <= AT_ONCE
    assert [client.ends for client in crowd.clients] == [1] * count
    late = Client(crowd.closings)
    late.close()
    assert late.ends == 1


def test_the_server_gets_a_bounded_number_of_commands_and_its_replies_continue_the_line() -> None:
    crowd = Crowd(2 * UNANSWERED_MOST)
    crowd.close()
    while crowd.loop.run():
        continue
    assert crowd.ended == UNANSWERED_MOST
    crowd.answer()
    while crowd.loop.run():
        continue
    assert crowd.ended == 2 * UNANSWERED_MOST


def test_a_lost_server_keeps_nobody_in_the_line() -> None:
    crowd = Crowd(2 * UNANSWERED_MOST)
    crowd.close()
    while crowd.loop.run():
        continue
    crowd.closings.server_lost()
    while crowd.loop.run():
        continue
    assert crowd.ended == 2 * UNANSWERED_MOST


def test_the_end_of_the_process_waits_for_nobody() -> None:
    crowd = Crowd(3 * UNANSWERED_MOST)
    crowd.close()
    crowd.closings.finish_all()
    assert [client.ends for client in crowd.clients] == [1] * len(crowd.clients)


# ---- a whole bridge ------------------------------------------------------------------------------------------------

MANY = 150


@pytest.fixture
def crowd(broker: BridgeProcess) -> Iterator[list[Talk]]:
    """Clients with sessions that last, and wills."""
    clients = [connected(broker, number) for number in range(MANY)]
    yield clients
    for client in clients:
        client.close()


def connected(broker: BridgeProcess, number: int, *, present: bool = False) -> Talk:
    client = Talk(broker.port)
    client.send(packets.connect(f"crowd-{number}", clean=False, will=Will("will", b"%d" % number, 1)))
    client.expect(packets.connack(present=present))
    return client


def test_each_client_of_a_crowd_that_closes_and_comes_back_at_once_leaves_its_will(
    broker: BridgeProcess, crowd: list[Talk], talk: Connect
) -> None:
    watcher = talk()
    watcher.subscribe(("will", 1))
    for client in crowd:
        client.close()
    again = [connected(broker, number, present=True) for number in reversed(range(MANY))]
    wills = [int(watcher.read_publish().payload) for _ in range(MANY)]
    for client in again:
        client.send(packets.DISCONNECT)
        client.close()
    assert sorted(wills) == list(range(MANY))


def test_a_crowd_that_disconnects_and_comes_back_at_once_leaves_no_will(
    broker: BridgeProcess, crowd: list[Talk], talk: Connect
) -> None:
    watcher = talk()
    watcher.subscribe(("will", 1))
    for client in crowd:
        client.send(packets.DISCONNECT)
    for client in crowd:
        client.close()
    again = [connected(broker, number, present=True) for number in reversed(range(MANY))]
    talk().publish("will", b"none before")
    assert watcher.read_publish().payload == b"none before"
    for client in again:
        client.send(packets.DISCONNECT)
        client.close()
