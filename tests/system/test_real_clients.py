"""Redis clients that others wrote go through their usual steps unharmed, and get what they missed.

They are redis-cli, redis-py, Celery over its Redis transport, node-redis and ioredis; the module has its default
settings.
"""

import asyncio
import contextlib
import os
import queue
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
from celery import Celery

from tests.support import Server, embedded_kinds, eventually

server_kinds = embedded_kinds

REPOSITORY = Path(__file__).parents[2]
NODE_FOLDER = REPOSITORY / "build" / "node"  # tools/node-clients.sh
NODE_SCRIPTS = Path(__file__).parent / "node"
TIMEOUT_S = 30.0


def program(name: str) -> str:
    path = shutil.which(name)
    assert path is not None, f"no {name} here: `make test` installs it"
    return path


# --- redis-cli --------------------------------------------------------------------------------------------------------


class Subscriber:
    """A redis-cli that subscribes, with its output line by line."""

    def __init__(self, server: Server, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [program("redis-cli"), "-p", str(server.port), *arguments], stdout=subprocess.PIPE, text=True
        )
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line.rstrip("\n"))

    def next(self, count: int) -> list[str]:
        """The next lines."""
        return [self._lines.get(timeout=TIMEOUT_S) for _ in range(count)]

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(TIMEOUT_S)
        self._reader.join(TIMEOUT_S)
        assert self._process.stdout is not None
        self._process.stdout.close()


@pytest.fixture
def redis_cli(server: Server) -> Iterator[Callable[..., Subscriber]]:
    """Makes redis-cli processes that subscribe."""
    made: list[Subscriber] = []

    def make(*arguments: str) -> Subscriber:
        made.append(Subscriber(server, *arguments))
        return made[-1]

    yield make
    for subscriber in made:
        subscriber.close()


def type_into_redis_cli(server: Server, *lines: str) -> list[str]:
    """What redis-cli answers to commands that come through a pipe."""
    command = [program("redis-cli"), "-p", str(server.port)]
    done = subprocess.run(
        command, input="\n".join(lines), capture_output=True, text=True, timeout=TIMEOUT_S, check=True
    )
    return done.stdout.splitlines()


@pytest.mark.parametrize("protocol", ["-2", "-3"])
def test_redis_cli_talks_through_pipes(server: Server, redis_cli: Callable[..., Subscriber], protocol: str) -> None:
    said = type_into_redis_cli(server, "PUBLISH news missed", "PUBLISH news held", "LRANGE news 0 -1", "PING")
    assert said == ["0", "0", "missed", "held", "PONG"]
    by_name, by_pattern = redis_cli(protocol, "SUBSCRIBE", "news", "other"), redis_cli(protocol, "PSUBSCRIBE", "n*")
    assert by_name.next(9) == ["subscribe", "news", "1", "subscribe", "other", "2", "message", "news", "held"]
    assert by_pattern.next(7) == ["psubscribe", "n*", "1", "pmessage", "n*", "news", "held"]
    assert type_into_redis_cli(server, "MULTI", "PUBLISH news live", "EXEC") == ["OK", "QUEUED", "2"]
    assert by_name.next(3) == ["message", "news", "live"]
    assert by_pattern.next(4) == ["pmessage", "n*", "news", "live"]


# --- redis-py ---------------------------------------------------------------------------------------------------------

# Each conversation: the message that was held comes first, then the live one, each exactly once.
SUBSCRIPTIONS = [("subscribe", "news", "message"), ("psubscribe", "n*", "pmessage"), ("ssubscribe", "news", "smessage")]


def shown(message: dict[str, Any]) -> tuple[Any, Any, Any, Any]:
    return message["type"], message["pattern"], message["channel"], message["data"]


def expected(kind: str, name: str, *texts: bytes) -> list[tuple[Any, Any, Any, Any]]:
    pattern = name.encode() if kind == "pmessage" else None
    return [(kind, pattern, b"news", text) for text in texts]


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize(("method", "name", "kind"), SUBSCRIPTIONS)
def test_the_subscriptions_of_redis_py_get_the_last_message_and_then_live_ones(
    server: Server, protocol: int, method: str, name: str, kind: str
) -> None:
    with redis.Redis(port=server.port, protocol=protocol) as client, client.pubsub() as pubsub:
        publish = client.spublish if kind == "smessage" else client.publish
        assert (publish("news", "missed"), publish("news", "held")) == (0, 0)
        getattr(pubsub, method)(name)
        heard: list[dict[str, Any]] = []

        def hear(count: int) -> None:
            def enough() -> bool:
                message = pubsub.get_message(timeout=0.1)
                if message is not None:
                    heard.append(message)
                return len(heard) >= count

            eventually(enough, TIMEOUT_S, f"{count} messages of {heard}")

        hear(2)
        assert publish("news", "live") == 1
        assert client.pipeline().publish("news", "in a pipeline").execute() == [0 if kind == "smessage" else 1]
        hear(3 if kind == "smessage" else 4)
        assert heard[0]["type"] == method
        texts = [b"held", b"live"] + ([] if kind == "smessage" else [b"in a pipeline"])
        assert [shown(message) for message in heard[1:]] == expected(kind, name, *texts)


def test_a_subscription_of_redis_py_whose_connection_is_lost_gets_what_was_published_meanwhile(server: Server) -> None:
    heard: queue.Queue[bytes] = queue.Queue()
    with redis.Redis(port=server.port) as client, client.pubsub(ignore_subscribe_messages=True) as pubsub:
        pubsub.subscribe(news=lambda message: heard.put(message["data"]))
        thread = pubsub.run_in_thread(sleep_time=0.05)
        try:
            eventually(lambda: client.publish("news", "live") == 1, what="the subscription")
            assert heard.get(timeout=TIMEOUT_S) == b"live"
            lost = client.pipeline()
            lost.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
            lost.publish("news", "while away")
            assert lost.execute() == [1, 0]
            assert heard.get(timeout=TIMEOUT_S) == b"while away"
            assert client.publish("news", "back") == 1
            assert heard.get(timeout=TIMEOUT_S) == b"back"
        finally:
            thread.stop()
            thread.join(TIMEOUT_S)


@pytest.mark.parametrize("protocol", [2, 3])
async def test_the_asynchronous_redis_py_listens(server: Server, protocol: int) -> None:
    async with redis.asyncio.Redis(port=server.port, protocol=protocol) as client, client.pubsub() as pubsub:
        assert await client.publish("news", "held") == 0
        await pubsub.subscribe("news")
        await pubsub.psubscribe("n*")
        heard = []
        async with asyncio.timeout(TIMEOUT_S):
            async for message in pubsub.listen():
                heard.append(message)
                if len(heard) == 4:
                    assert await client.publish("news", "live") == 2
                if len(heard) == 6:
                    break
        assert [(message["type"], message["data"]) for message in heard] == [
            ("subscribe", 1),
            ("message", b"held"),
            ("psubscribe", 2),
            ("pmessage", b"held"),
            ("message", b"live"),
            ("pmessage", b"live"),
        ]


# --- Celery -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def celery_app(server: Server) -> Iterator[Celery]:
    """A Celery application that calls the tasks of the worker."""
    with Celery("caller", broker=server.url, backend=server.url) as app:
        yield app


@pytest.fixture
def celery_environment(server: Server) -> dict[str, str]:
    """Where Celery's own command line finds broker and backend."""
    return {**os.environ, "CELERY_BROKER_URL": server.url, "CELERY_RESULT_BACKEND": server.url}


def celery_command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "celery", "--app", "tests.system.celery_app", *arguments]


@pytest.fixture
def worker(celery_environment: dict[str, str], tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A worker that sends events, with default settings otherwise; its tasks are those of celery_app.py."""
    log = tmp_path / "worker.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            celery_command("worker", "--task-events", "--pidfile", ""),
            cwd=REPOSITORY,
            env=celery_environment,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(TIMEOUT_S)
            finally:
                process.kill()
                process.wait()
                sys.stdout.write(log.read_text())


def lists(client: redis.Redis) -> list[bytes]:
    """The names of all lists; those of work that waits included."""
    return sorted(client.scan_iter(_type="list"))


def kept_and_handed_over(client: redis.Redis) -> tuple[int, int]:
    """How many messages of channels the module kept so far, and how many it handed over."""
    info = client.info("holdmq")
    return info["holdmq_channel_held"], info["holdmq_handed_over"]


@pytest.mark.usefixtures("worker")
def test_celery_runs_tasks_and_returns_their_results(client: redis.Redis, celery_app: Celery) -> None:
    before = kept_and_handed_over(client)
    waiting = [celery_app.send_task("add", (number, 1)) for number in range(100)]
    assert [result.get(timeout=TIMEOUT_S) for result in waiting] == list(range(1, 101))
    assert celery_app.AsyncResult(waiting[0].id).get(timeout=TIMEOUT_S) == 1
    with pytest.raises(ValueError, match="on purpose"):
        celery_app.send_task("fail").get(timeout=TIMEOUT_S)
    forgotten = celery_app.send_task("add", (1, 1))  # its result is published, and nobody has asked for it yet
    eventually(lambda: client.exists(f"celery-task-meta-{forgotten.id}"), TIMEOUT_S, "the result")
    assert celery_app.AsyncResult(forgotten.id).get(timeout=TIMEOUT_S) == 2
    eventually(lambda: lists(client) == [], what="no list left behind")
    assert kept_and_handed_over(client) == before


def test_celery_is_controlled_remotely(
    client: redis.Redis, celery_app: Celery, celery_environment: dict[str, str], worker: subprocess.Popen[bytes]
) -> None:
    before = kept_and_handed_over(client)
    celery_app.send_task("add", (1, 1)).get(timeout=TIMEOUT_S)
    (name,) = celery_app.control.inspect(timeout=TIMEOUT_S, limit=1).ping()
    ping = celery_command("inspect", "ping", "--destination", name, "--timeout", "20", "--json")
    done = subprocess.run(
        ping, cwd=REPOSITORY, env=celery_environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert '{"ok": "pong"}' in done.stdout
    assert set(celery_app.control.inspect([name], timeout=TIMEOUT_S, limit=1).registered()[name]) >= {"add", "fail"}
    # Nobody waits for the answers of these.
    celery_app.control.rate_limit("add", "1000/s")
    celery_app.control.broadcast("ping")
    celery_app.control.purge()
    eventually(lambda: lists(client) == [], what="no list left behind")
    worker.terminate()
    assert worker.wait(TIMEOUT_S) == 0
    # With no worker left nobody hears a command: it must not wait for the next one.
    celery_app.control.broadcast("shutdown")
    assert celery_app.control.ping(timeout=0.2) == []
    assert lists(client) == []
    assert kept_and_handed_over(client) == before


@pytest.mark.usefixtures("worker")
def test_celery_sends_its_events_to_those_who_listen_and_keeps_none_for_others(
    client: redis.Redis, celery_app: Celery
) -> None:
    before = kept_and_handed_over(client)
    celery_app.send_task("add", (1, 1)).get(timeout=TIMEOUT_S)  # its events are heard by nobody
    assert lists(client) == []
    seen: list[dict[str, Any]] = []
    patterns = client.pubsub_numpat()
    with celery_app.connection() as connection:
        receiver = celery_app.events.Receiver(connection, handlers={"*": seen.append})
        with receiver.consumer_context() as (listening, _channel, _consumers):

            def listen_until(condition: Callable[[], bool], what: str) -> None:
                def listened() -> bool:
                    with contextlib.suppress(TimeoutError):  # nothing came, which is for the condition to judge
                        listening.drain_events(timeout=0.2)
                    return condition()

                eventually(listened, TIMEOUT_S, what)

            listen_until(lambda: client.pubsub_numpat() > patterns, "the subscription of the receiver")
            task = celery_app.send_task("add", (2, 3))
            listen_until(lambda: any(event["type"] == "task-succeeded" for event in seen), "the end of the task")
    kinds = [event["type"] for event in seen if event.get("uuid") == task.id]
    assert kinds == ["task-received", "task-started", "task-succeeded"]
    assert kept_and_handed_over(client) == before
    eventually(lambda: lists(client) == [], what="no list left behind")


@pytest.mark.parametrize(
    "settings",
    [
        {"control_exchange": "orders", "event_exchange": "orderev"},
        {"broker_transport_options": {"global_keyprefix": "shop:"}},
    ],
    ids=["exchanges", "prefix"],
)
def test_what_celery_sends_under_other_names_and_nobody_hears_is_not_kept(
    client: redis.Redis, server: Server, settings: dict[str, Any]
) -> None:
    before = kept_and_handed_over(client)
    published = client.info("holdmq")["holdmq_channel_published"]
    with Celery("caller", broker=server.url) as app:
        app.conf.update(settings)
        app.control.broadcast("ping")
        with app.events.default_dispatcher() as dispatcher:
            dispatcher.send("worker-heartbeat")
            dispatcher.send("order-shipped", number=1)
    assert client.info("holdmq")["holdmq_channel_published"] >= published + 3
    assert lists(client) == []
    assert kept_and_handed_over(client) == before


# --- Node.js ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("conversation", ["node_redis.cjs 2", "node_redis.cjs 3", "ioredis.cjs"])
def test_a_client_for_node_goes_through_its_steps(server: Server, conversation: str) -> None:
    assert (NODE_FOLDER / ".installed").exists(), "the clients for Node.js are missing: `make test` installs them"
    script, *arguments = conversation.split()
    done = subprocess.run(
        [program("node"), str(NODE_SCRIPTS / script), str(server.port), *arguments],
        env={**os.environ, "NODE_PATH": str(NODE_FOLDER / "node_modules")},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


def test_bull_runs_every_job_and_sees_none_that_is_not_one(server: Server, tmp_path: Path) -> None:
    """Bull uses the same names for keys and channels; what it counts and runs is what a stock server gives it."""
    assert (NODE_FOLDER / ".installed").exists(), "the clients for Node.js are missing: `make test` installs them"

    def outcome(of: Server) -> str:
        command = [program("node"), str(NODE_SCRIPTS / "bull.cjs"), str(of.port)]
        environment = {**os.environ, "NODE_PATH": str(NODE_FOLDER / "node_modules")}
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    without = Server(server.kind, tmp_path / "stock", module=False)
    try:
        without.start()
        expected = outcome(without)
    finally:
        without.close()
    server.client().config_set("holdmq.policies", "*")  # the default holds nothing of Bull
    assert outcome(server) == expected
    assert int(server.client().info("holdmq")["holdmq_channel_held"]) > 0
