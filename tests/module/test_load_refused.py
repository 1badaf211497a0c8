"""A module that cannot be loaded leaves nothing of itself in the server: what its code would be called for is gone."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from holdmq.server import find_module
from tests.module.channels_support import MakeRaw, stock
from tests.support import Server, ServerKind, eventually

FREE = 24  # descriptors below are left to the server; it waits for none beyond its limit of clients and 128
TAKEN = 200
# The shell hands its descriptors on to the server.
WRAPPER = f'for n in $(seq {FREE} {TAKEN}); do eval "exec $n</dev/null"; done; exec "$0" "$@"'
CONFIG = ["CONFIG", "holdmq.policies", "* hold=all"]


@pytest.fixture
def crowded(server_kind: ServerKind, tmp_path: Path) -> Iterator[Server]:
    """A server without the module that cannot wait for one more descriptor once those below `FREE` are open."""
    command = server_kind.command()
    kind = dataclasses.replace(server_kind, find=lambda: ("bash", "-c", WRAPPER, *command))
    with stock(kind, tmp_path, "maxclients 20") as server:
        yield server


def load(client: redis.Redis, *words: str) -> None:
    client.execute_command("MODULE", "LOADEX", str(find_module()), *words)


def use(client: redis.Redis) -> None:
    """What calls a module that is there: changes of keys, commands, clients, a new database, what INFO shows."""
    client.rpush("holdmq:held:{ch}", "m")
    client.publish("ch", "m")
    client.lrange("ch", 0, -1)
    client.execute_command("DEBUG", "RELOAD")
    client.flushall()
    client.info("everything")
    client.config_set("maxmemory", 0)
    assert client.config_get("holdmq.*") == {}
    with pytest.raises(redis.ResponseError, match="unknown command"):
        client.execute_command("CHANNEL.PUBLISH", "ch", "m")


def test_a_server_without_a_descriptor_for_the_clock_refuses_and_serves_on(crowded: Server, raw: MakeRaw) -> None:
    client = crowded.client()
    client.ping()
    descriptors = Path(f"/proc/{crowded.process.pid}/fd")
    opened = {int(path.name) for path in descriptors.iterdir()}
    connections = [raw(crowded) for number in range(FREE) if number not in opened]
    for connection in connections:
        connection.call("PING")
    before = len(list(descriptors.iterdir()))
    for _ in range(3):
        with pytest.raises(redis.ResponseError):
            load(client, *CONFIG)
        use(client)
    eventually(lambda: len(list(descriptors.iterdir())) == before, what="no more descriptors than before")
    assert "holdmq is not loaded: no timer file: " in crowded.log_text()
    connections[0].close()
    load(client, *CONFIG)
    client.publish("ch", "held")
    assert client.execute_command("CHANNEL.LEN", "ch") == 1


@pytest.mark.parametrize(
    "words",
    [
        [*CONFIG, "CONFIG", "holdmq.nothing", "1"],
        [*CONFIG, "ARGS", "NOTHING", "x"],
        ["CONFIG", "holdmq.policies", "* hold=bad"],
        ["CONFIG", "holdmq.policies", "", "CONFIG", "holdmq.nothing", "1"],
    ],
    ids=["setting unknown", "argument unknown", "value not accepted", "setting unknown, asleep"],
)
def test_a_mistake_in_what_is_loaded_with_it_leaves_the_server_as_it_was(
    server_kind: ServerKind, tmp_path: Path, words: list[str]
) -> None:
    server = Server(server_kind, tmp_path, module=False)
    try:
        server.start()
        client = server.client()
        client.rpush("holdmq:held:{ch}", "m")
        for _ in range(2):
            with pytest.raises(redis.ResponseError):
                load(client, *words)
            use(client)
        load(client, *CONFIG)
        client.publish("ch", "held")
        assert client.execute_command("CHANNEL.LEN", "ch") == 1
        server.check()
    finally:
        server.close()
