"""A real Celery worker that forks: a client made at import serves all its processes, a producer does not."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from celery import Celery

from holdmq import HoldMQ
from tests.client.python_page import write_program
from tests.support import Server, embedded_kinds, eventually

server_kinds = embedded_kinds
pytestmark = pytest.mark.timeout(180)

REPOSITORY = Path(__file__).parents[2]
TIMEOUT_S = 60.0
PROCESSES = 3
OPTIONS = [
    *("worker", "--pidfile", "", "--pool", "prefork", "--concurrency", str(PROCESSES)),
    *("--prefetch-multiplier", "1", "-O", "fair"),
]


@contextmanager
def worker(program: str, folder: Path, log: Path, environment: dict[str, str]) -> Iterator[None]:
    """A worker of three processes."""
    command = [sys.executable, "-m", "celery", "--app", program, *OPTIONS]
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, cwd=folder, env={**os.environ, **environment}, stdout=out, stderr=subprocess.STDOUT
        )
        try:
            yield
        finally:
            process.terminate()
            try:
                process.wait(TIMEOUT_S)
            finally:
                process.kill()
                process.wait()
                sys.stdout.write(log.read_text())


@pytest.fixture
def hold(server: Server) -> Iterator[HoldMQ]:
    """A client, once the store is there."""
    with HoldMQ.from_url(server.url) as made:
        made.history.create("orders", "orders/#")
        yield made


@pytest.fixture
def celery(server: Server, hold: HoldMQ, tmp_path: Path) -> Iterator[Celery]:
    """What sends tasks to a worker of three processes."""
    assert hold.supports()
    environment = {"CELERY_BROKER_URL": server.url, "CELERY_RESULT_BACKEND": server.url, "HOLDMQ_PREFORK": "1"}
    with (
        Celery("caller", broker=server.url, backend=server.url) as app,
        worker("tests.client.prefork_app", REPOSITORY, tmp_path / "worker.log", environment),
    ):
        yield app


def run(celery: Celery, task: str, count: int) -> list[object]:
    """What so many tasks return or raise."""
    waiting = [celery.send_task(task, (str(number),)) for number in range(count)]
    return [result.get(timeout=TIMEOUT_S, propagate=False) for result in waiting]


def test_each_process_of_a_worker_appends_with_a_producer_of_its_own(celery: Celery, hold: HoldMQ) -> None:
    assert run(celery, "append_own", 60) == [True] * 60
    stored = [int(message.payload) for message in hold.history.start_replay("orders/#")]
    assert sorted(stored) == list(range(60))
    producers = hold.client.hkeys("{orders/0}_history_producers")
    assert len(producers) > 1, "one process did all of it"


def test_a_producer_that_was_made_at_import_is_refused_by_every_process(celery: Celery, hold: HoldMQ) -> None:
    results = run(celery, "append_shared", 60)
    assert {type(result).__name__ for result in results} == {"ForkedError"}
    assert all("belongs to process" in str(result) for result in results)
    assert list(hold.history.start_replay("orders/#")) == []


def test_a_client_that_was_made_at_import_serves_all_processes(celery: Celery, hold: HoldMQ) -> None:
    assert run(celery, "publish", 60) == [0] * 60
    assert sorted(hold.channel("done").backlog(), key=int) == [str(number).encode() for number in range(60)]


def test_the_program_of_the_page_stores_each_order_once(server: Server, hold: HoldMQ, tmp_path: Path) -> None:
    write_program("celery", tmp_path / "shop.py", server.url)

    def stored(topic: str = "orders/new") -> list[int]:
        return sorted(int(message.payload) for message in hold.history.start_replay(topic))

    with Celery("caller", broker=server.url) as app, worker("shop", tmp_path, tmp_path / "worker.log", {}):
        for number in range(60):
            app.send_task("shop.order", (str(number),))
            for _ in range(2):  # a task that is delivered again
                app.send_task("shop.pay", (str(number),), task_id=f"pay-{number}")
        eventually(lambda: len(stored()) >= 60, TIMEOUT_S, "the worker stores all orders")
        eventually(lambda: hold.client.llen("celery") == 0, TIMEOUT_S, "the worker takes all tasks")
    assert stored() == list(range(60))
    assert stored("orders/paid") == list(range(60))
    producers = hold.client.hkeys("{orders/0}_history_producers")
    assert {name.split(b"/")[0] for name in producers} == {b"shop-1"}
