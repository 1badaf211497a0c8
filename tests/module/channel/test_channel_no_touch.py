"""A client with CLIENT NO-TOUCH is served as any other: some servers crash if a module looks at a key for it."""

from collections.abc import Callable

import pytest
import redis

from holdmq.server import find_module
from tests.module.channels_support import (
    MakeRaw,
    MakeServer,
    Part,
    answers,
    held,
    knows_clients,
    messages,
    set_policies,
    subscribe,
)
from tests.support import RawClient, Server, ServerKind

MakeQuiet = Callable[..., RawClient]


@pytest.fixture
def make_quiet(server_kind: ServerKind, raw: MakeRaw) -> MakeQuiet:
    """Makes connections that do not touch keys, on servers that have that (from 7.2 on); arguments as of `raw`."""

    def make(*arguments: Server) -> RawClient:
        connection = raw(*arguments)
        if server_kind.hands_off_exactly:
            connection.call("CLIENT", "NO-TOUCH", "ON")
        return connection

    return make


@pytest.fixture
def quiet(make_quiet: MakeQuiet) -> RawClient:
    """One of them."""
    return make_quiet()


def test_its_messages_are_held(client: redis.Redis, quiet: RawClient) -> None:
    assert answers(quiet, *(("PUBLISH", "ch", number) for number in range(3))) == [0, 0, 0]
    assert held(client, "ch") == [b"0", b"1", b"2"]
    client.set("used", "by the application")
    assert answers(quiet, ["PUBLISH", "used", "a"], ["PUBLISH", "used", "b"], ["GET", "used"]) == [
        0, 0, b"by the application",
    ]  # fmt: skip
    assert client.execute_command("CHANNEL.RANGE", "used", 0, -1) == [b"a", b"b"]


def test_it_reads_what_is_held(client: redis.Redis, quiet: RawClient) -> None:
    client.publish("ch", "m")
    client.set("key", "v")
    if knows_clients(client):
        assert answers(quiet, ["LRANGE", "ch", 0, -1], ["LLEN", "ch"], ["LINDEX", "ch", 0]) == [[b"m"], 1, b"m"]
    client.rpush("ch", "own")
    assert answers(quiet, ["LRANGE", "ch", 0, -1], ["LLEN", "ch"], ["LINDEX", "ch", 0]) == [[b"own"], 1, b"own"]
    assert answers(quiet, ["LLEN", "key"])[0].startswith("-WRONGTYPE")


@pytest.mark.parametrize("rule", ["* deliver=last", "* deliver=held", "* hold=all last=on"])
def test_it_gets_what_is_held_and_its_messages_supersede_it(
    client: redis.Redis, quiet: RawClient, make_quiet: MakeQuiet, rule: str
) -> None:
    set_policies(client, rule)
    client.publish("ch", "A")
    subscriber = make_quiet()
    assert messages(subscribe(subscriber, "ch")) == [b"A"]
    assert quiet.call("PUBLISH", "ch", "B") == 1
    assert messages(subscriber.pending()) == [b"B"]
    newest = [b"B"] if "hold=all" in rule and knows_clients(client) else []
    assert messages(subscribe(make_quiet(), "ch")) == newest


def test_it_takes_part_in_a_dry_run(client: redis.Redis, quiet: RawClient) -> None:
    set_policies(client, "")
    client.set("ch", "v")
    client.execute_command("CHANNEL.DRYRUN", "START", "POLICIES", "*")
    assert answers(quiet, ["PUBLISH", "ch", "a"], ["PUBLISH", "ch", "b"]) == [0, 0]
    _, channels, _ = client.execute_command("CHANNEL.DRYRUN", "REPORT")
    client.execute_command("CHANNEL.DRYRUN", "STOP")
    assert [(name, kept) for name, _rule, _hold, _unheard, kept, *_ in channels] == [(b"ch", 2)]


def test_it_publishes_while_patterns_and_backlogs_are_handed_over(
    client: redis.Redis, quiet: RawClient, raw: MakeRaw
) -> None:
    set_policies(client, "* deliver=held")
    for number in range(2000):
        client.execute_command("CHANNEL.PUBLISH", f"c{number % 100}", number)
    slow: list[list[Part]] = [["PUBLISH", f"c{number % 100}", "later"] for number in range(100)]
    subscriber = raw()
    subscriber.send("PSUBSCRIBE", "c*")
    answers(quiet, *slow)
    came: list[object] = []
    while len(came) < (2100 if knows_clients(client) else 1):
        came += messages([subscriber.read()])


def test_it_was_connected_before_the_module_was_loaded(fresh_server: MakeServer, make_quiet: MakeQuiet) -> None:
    server = fresh_server(module=False)
    connection = make_quiet(server)
    server.client().execute_command("MODULE", "LOAD", str(find_module()))
    assert answers(connection, ["PUBLISH", "ch", "a"], ["PUBLISH", "ch", "b"]) == [0, 0]
    assert server.client().execute_command("CHANNEL.LEN", "ch") == 2
