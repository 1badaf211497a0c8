"""What memory and disk the server has: told, watched, and refused before it is used up."""

import os
import shutil
from collections.abc import Callable

import pytest
import redis

from holdmq._memory import group_limit
from tests.support import Server, eventually

MakeServer = Callable[..., Server]
MORE_THAN_THERE_IS = 1 << 40
MACHINE = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
LOOK_S = 10.0  # it looks once a second
MARGIN = 1 << 30  # other processes write, too


def resources(client: redis.Redis) -> dict[str, int]:
    """As INFO tells."""
    found = client.info("holdmq")
    return {name: found[f"holdmq_{name}"] for name in ("memory_limit", "memory_used", "disk_total", "disk_free")}


def test_the_disk_is_that_of_the_servers_folder(server: Server) -> None:
    usage = shutil.disk_usage(server.directory)
    told = resources(server.client())
    assert told["disk_total"] == usage.total
    assert abs(told["disk_free"] - usage.free) < MARGIN


def test_the_limit_of_memory_is_the_least_of_all(server: Server) -> None:
    client = server.client()
    outer = group_limit()
    assert resources(client)["memory_limit"] == (MACHINE if outer is None else outer)
    client.config_set("maxmemory", 500 << 20)
    eventually(lambda: resources(client)["memory_limit"] == 500 << 20, LOOK_S, "a limit that is maxmemory")
    used = client.info("memory")["used_memory"]
    assert abs(resources(client)["memory_used"] - used) < 16 << 20
    client.config_set("maxmemory", 2 * MACHINE)  # there is not so much
    eventually(lambda: resources(client)["memory_limit"] <= MACHINE, LOOK_S, "a limit that is real")


def test_what_there_is_is_logged_at_the_start(fresh_server: MakeServer) -> None:
    server = fresh_server(aof=True, config=["maxmemory 300mb", "holdmq.min-free-disk 1000"])
    [line] = [line for line in server.log_text().splitlines() if "bytes are used (maxmemory" in line]
    assert f"of {300 << 20} bytes are used (maxmemory {300 << 20})" in line
    assert f"of {shutil.disk_usage(server.directory).total} bytes are free, 1000 are kept free" in line
    assert line.endswith("append-only file: yes")


@pytest.mark.parametrize(
    ("config", "is_warned"),
    [
        (["maxmemory 300mb", "maxmemory-policy allkeys-lru"], True),
        (["maxmemory 300mb", "maxmemory-policy volatile-ttl"], True),
        (["maxmemory 300mb", "maxmemory-policy noeviction"], False),
        (["maxmemory-policy allkeys-lru"], False),  # nothing is evicted without a limit
    ],
)
def test_a_policy_that_evicts_is_warned_of_at_the_start(
    fresh_server: MakeServer, config: list[str], is_warned: bool
) -> None:
    lines = [line for line in fresh_server(config=config).log_text().splitlines() if "maxmemory-policy is " in line]
    assert len(lines) == is_warned
    assert all(config[1].split()[1] in line and str(300 << 20) in line for line in lines)


STORING = {
    "SESSION.ADD": ("{s}", "x"),
    "TOPIC.PUBLISH": ("t", "x"),
    "TOPIC.PIPELINE": (b"*3\r\n$13\r\nTOPIC.PUBLISH\r\n$1\r\nt\r\n$1\r\nx\r\n",),
    "HISTORY.APPEND": ("h", "t", "x"),
    "PUBLISH": ("nobody", "x"),
    "CHANNEL.PUBLISH": ("nobody", "x"),
}


def is_refused(client: redis.Redis, name: str) -> bool:
    try:
        client.execute_command(name, *STORING[name])
    except redis.ResponseError as error:
        return str(error).startswith("QUOTA the disk of the append-only file has ")
    return False


def test_with_too_little_free_disk_nothing_is_stored_and_everything_else_continues(fresh_server: MakeServer) -> None:
    server = fresh_server(aof=True)
    client = server.client()
    client.execute_command("HISTORY.STORE", "h", "FILTER", "t")
    client.execute_command("SESSION.OPEN", "{s}", "OWNER", "o")
    client.execute_command("SESSION.SUBSCRIBE", "{s}", "EPOCH", 0, "t", 1)
    client.execute_command("TOPIC.PUBLISH", "t", "before", "QOS", 1)
    assert not any(is_refused(client, name) for name in STORING)
    client.config_set("holdmq.min-free-disk", MORE_THAN_THERE_IS)
    eventually(lambda: is_refused(client, "TOPIC.PUBLISH"), LOOK_S, "a refusal")
    assert [name for name in STORING if not is_refused(client, name)] == []
    assert client.info("holdmq")["holdmq_disk_refused"] >= len(STORING)
    assert client.set("of the application", "x")
    assert client.execute_command("SESSION.FETCH", "{s}")
    assert client.execute_command("SESSION.OPEN", "{other}", "OWNER", "o")
    listener = client.pubsub(ignore_subscribe_messages=True)
    listener.subscribe("somebody")
    listener.get_message(timeout=5)
    assert client.publish("somebody", "x") == 1  # it is heard, so nothing has to be kept
    listener.close()
    client.config_set("holdmq.min-free-disk", 0)
    eventually(lambda: not is_refused(client, "TOPIC.PUBLISH"), LOOK_S, "no refusal")
    assert not any(is_refused(client, name) for name in STORING)


def test_without_an_append_only_file_nothing_is_refused(server: Server) -> None:
    client = server.client()
    client.config_set("holdmq.min-free-disk", MORE_THAN_THERE_IS)
    client.config_set("maxmemory", 500 << 20)
    eventually(lambda: resources(client)["memory_limit"] == 500 << 20, LOOK_S, "another look")
    assert not is_refused(client, "TOPIC.PUBLISH")


@pytest.mark.parametrize(
    ("setting", "value", "line"),
    [
        ("holdmq.min-free-disk", MORE_THAN_THERE_IS, "the disk is almost full: "),
        ("maxmemory", None, "memory is scarce: "),
    ],
)
def test_what_becomes_scarce_is_logged_once(
    fresh_server: MakeServer, setting: str, value: int | None, line: str
) -> None:
    server = fresh_server(aof=True)
    client = server.client()
    assert line not in server.log_text()
    client.config_set(setting, value or client.info("memory")["used_memory"] * 105 // 100)
    eventually(lambda: line in server.log_text(), LOOK_S, "a warning")
    client.config_set(setting, 0)
    eventually(lambda: " no longer " in server.log_text(), LOOK_S, "the end of the warning")
    assert server.log_text().count(line) == 1
