"""Libraries that rely on pub/sub notice nothing of the module with its default policy, and leave nothing behind in it.

Each script of tests/libraries runs once beside a stock server, and twice beside one with the module: the second time it
would be handed what the first left.  The table of docs/existing-server.md names the versions.
"""

import json
import os
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from tests.support import Server, ServerKind, embedded_kinds

server_kinds = embedded_kinds

REPOSITORY = Path(__file__).parents[2]
SCRIPTS = REPOSITORY / "tests" / "libraries"
FOLDER = REPOSITORY / "build" / "libraries"  # tools/libraries.sh
PAGE = REPOSITORY / "docs" / "existing-server.md"
TIMEOUT_S = 60
PROCESSES = 1000
MEMORY_SLACK = 1 << 20

# Script, and the prefix, key or channel that replaces the library's own.
SCRIPT_RUNS = [
    ("node/bullmq.cjs", ""), ("node/bullmq.cjs", "own"), ("node/bull.cjs", ""), ("node/bull.cjs", "own"),
    ("node/bee_queue.cjs", ""), ("node/bee_queue.cjs", "own"), ("node/moleculer.cjs", ""),
    ("node/moleculer.cjs", "own"), ("node/nestjs.cjs", ""), ("node/socket_io.cjs", ""), ("node/socket_io.cjs", "own"),
    ("python/python_socketio.py", ""), ("python/python_socketio.py", "own-socketio"),
    ("python/flask_socketio_emit.py", ""), ("python/channels_pubsub.py", ""), ("python/channels_pubsub.py", "own"),
    ("python/taskiq_pubsub.py", ""),
]  # fmt: skip

# What each process of a library publishes to, and perhaps nobody hears.
PROCESS_CHANNELS = [
    "bull:work:waiting@{id}", "own:work:waiting@{id}", "own:work:active@{id}", "bq:work-{id}:events",
    "MOL.REQ.host-{id}", "MOL-own.RES.host-{id}", "sum-{id}.reply", "own-response#/#{id}#", "own#/#{id}#",
    "asgispecific.{hex}", "ownspecific.{hex}", "own__group__{id}", "{id}.reply.celery.pidbox", "rq:pubsub:{id}",
    "__keyspace@0__:{id}", "redisson_lock__channel:{{{id}}}", "app:internal:ack:{id}", "{id}__Booksleeve_MasterChanged",
]  # fmt: skip


def outcome(server: Server, script: str, prefix: str) -> object:
    """What a script printed."""
    words = [str(SCRIPTS / script), str(server.port), *([prefix] if prefix else [])]
    interpreter = "node" if script.endswith(".cjs") else str(FOLDER / "venv" / "bin" / "python")
    environment = {**os.environ, "NODE_PATH": str(FOLDER / "node" / "node_modules")}
    environment.pop("PYTHONPATH", None)
    assert (FOLDER / ".installed").exists(), "the libraries are missing: `make test-libraries` installs them"
    done = subprocess.run(
        [interpreter, *words], env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def is_of_a_queue(script: str, prefix: str, key: str) -> bool:
    """Whether it is of events of a whole queue of Bull with another prefix, whose names no default rule can know."""
    return script == "node/bull.cjs" and f":{{{prefix}:work:" in key and "@" not in key


@pytest.fixture(scope="module")
def stock_server(server_kind: ServerKind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server without the module."""
    server = Server(server_kind, tmp_path_factory.mktemp("stock"), module=False)
    try:
        server.start()
        yield server
    finally:
        server.close()


@pytest.mark.parametrize(("script", "prefix"), SCRIPT_RUNS)
def test_a_library_notices_nothing_of_the_module(
    stock_server: Server, server: Server, client: redis.Redis, script: str, prefix: str
) -> None:
    expected = outcome(stock_server, script, prefix)
    assert outcome(server, script, prefix) == expected
    assert outcome(server, script, prefix) == expected
    held = {key.decode() for key in client.scan_iter("holdmq:*")}
    assert {channel for channel in held if not is_of_a_queue(script, prefix, channel)} == set()


def test_names_of_processes_do_not_accumulate(client: redis.Redis) -> None:
    names = [
        template.format(id=identity, hex=identity.hex)
        for identity in (uuid.UUID(int=number) for number in range(PROCESSES))
        for template in PROCESS_CHANNELS
    ]
    client.publish(names[0], "m")
    before = client.info("memory")["used_memory"]
    for at in range(0, len(names), PROCESSES):
        pipeline = client.pipeline(transaction=False)
        for name in names[at : at + PROCESSES]:
            pipeline.publish(name, "m")
        assert set(pipeline.execute()) == {0}
    assert client.dbsize() == 0
    assert client.info("memory")["used_memory"] - before < MEMORY_SLACK


def test_the_page_names_the_versions_that_are_tried() -> None:
    page = PAGE.read_text()
    locked = json.loads((SCRIPTS / "node" / "package.json").read_text())["dependencies"]
    wanted = [
        f"{name} {locked[name]}" for name in ("bull", "bullmq", "bee-queue", "moleculer", "@nestjs/microservices")
    ]
    wanted += [f"@socket.io/redis-adapter {locked['@socket.io/redis-adapter']}"]
    lines = (SCRIPTS / "python" / "requirements.in").read_text().splitlines()
    wanted += [line.split("#")[0].strip().replace("==", " ") for line in lines if "==" in line]
    assert [name for name in wanted if name not in page] == []
