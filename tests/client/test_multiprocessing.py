"""Processes of the standard library: forked from this one, from a server of forks, or started again."""

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import forkserver
from typing import Any

import pytest

from holdmq import HoldMQ
from tests.client import multiprocessing_workers as workers
from tests.support import Server, embedded_kinds

server_kinds = embedded_kinds
pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
]

COUNT = 40
METHODS = ["fork", "forkserver", "spawn"]


@pytest.fixture(autouse=True)
def no_server_of_forks() -> Iterator[None]:
    """It would outlive the test, with the environment of the test."""
    yield
    forkserver._forkserver._stop()  # type: ignore[attr-defined]


@pytest.fixture
def hold(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[HoldMQ]:
    """The client that is made at import, in this process as in the others; with a store."""
    monkeypatch.setenv("HOLDMQ_TEST_URL", server.url)
    with HoldMQ.from_url(server.url) as made:
        made.history.create("orders", "orders/#")
        monkeypatch.setattr(workers, "hold", made)
        monkeypatch.setattr(workers, "made_at_import", [])
        yield made


@pytest.fixture(params=METHODS)
def pool(request: pytest.FixtureRequest, hold: HoldMQ) -> Iterator[ProcessPoolExecutor]:
    """Three processes, begun after the client was used."""
    assert hold.supports()
    context = multiprocessing.get_context(request.param)
    with ProcessPoolExecutor(3, mp_context=context) as made:
        yield made


def test_a_client_that_was_made_at_import_serves_every_process(pool: ProcessPoolExecutor, hold: HoldMQ) -> None:
    done = list(pool.map(workers.publish, map(str, range(COUNT))))
    assert all(receivers == 0 for _, receivers in done)
    assert sorted(hold.channel("done").backlog(), key=int) == [str(number).encode() for number in range(COUNT)]


def test_a_producer_of_each_process_loses_and_repeats_nothing(pool: ProcessPoolExecutor, hold: HoldMQ) -> None:
    assert all(new for _, new in pool.map(workers.append, map(str, range(COUNT))))
    stored = [int(message.payload) for message in hold.history.start_replay("orders/#")]
    assert sorted(stored) == list(range(COUNT))


def test_a_producer_that_was_used_before_a_fork_is_refused_there_and_continues_here(hold: HoldMQ) -> None:
    producer = hold.history.store("orders").producer("parent")
    assert producer.append("orders/new", "0").new
    workers.made_at_import.append(producer)
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("fork")) as pool:
        refused = list(pool.map(workers.append_shared, map(str, range(1, COUNT))))
    assert set(refused) == {"ForkedError"}
    assert producer.append("orders/new", "1").new
    assert [message.payload for message in hold.history.start_replay("orders/#")] == [b"0", b"1"]


@pytest.mark.parametrize("method", METHODS)
def test_what_has_a_position_cannot_be_handed_to_another_process(hold: HoldMQ, method: str) -> None:
    things: list[Any] = [hold.history.store("orders").producer("p"), hold.history.start_replay("#"), hold.pipeline()]
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context(method)) as pool:
        for thing in things:
            with pytest.raises(TypeError, match="cannot be copied or pickled: make another one where it is needed"):
                pool.submit(workers.refuse, thing).result()
