"""The set-up of docs/failover.md and its commands, with the addresses of this machine: every failover succeeds.

The servers have the page's lines, the Sentinels too, the bridges are started as the page says, and the failovers are
ordered by its commands after its check.
"""

import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from holdmq.server import ChildProcess
from tests.bridge import packets5
from tests.bridge.talk import Talk5
from tests.support import Port, SentinelProcess, Server, embedded_kinds, eventually, reserve_port
from tests.support.pages import blocks

server_kinds = embedded_kinds

PAGE = "docs/failover.md"
SERVICE = "holdmq"
SETTLED_S = 60.0
COMMAND_S = 30.0


class Site:
    """Three servers and three Sentinels, as the page has them."""

    def __init__(self, servers: list[Server], sentinels: list[SentinelProcess]) -> None:
        self.servers = servers
        self.sentinels = sentinels

    def primary(self) -> Server:
        """The one that all Sentinels name and that two replicas follow."""
        found = next((one for one in self.servers if all(sentinel.names(one) for sentinel in self.sentinels)), None)
        assert found is not None, "the Sentinels do not agree"
        with redis.Redis(port=found.port) as client:
            role = client.execute_command("ROLE")
        assert role[0] == b"master"
        assert len(role[2]) == 2
        return found

    def here(self, text: str) -> str:
        """A command of the page with the addresses of this machine; 10.0.0.1 is whoever is the primary."""
        for number, sentinel in enumerate(self.sentinels, 1):
            text = text.replace(f"-h 10.0.0.{number} -p 26379", f"-h 127.0.0.1 -p {sentinel.port}")
            text = text.replace(f"10.0.0.{number}:26379", f"127.0.0.1:{sentinel.port}")
        if "-h 10.0.0.1 " in text:
            text = text.replace("-h 10.0.0.1 ", f"-h 127.0.0.1 -p {self.primary().port} ")
        assert "10.0.0." not in text
        return text


def without_module(text: str) -> list[str]:
    lines = text.splitlines()
    assert sum(line.startswith("loadmodule ") for line in lines) == 1
    return [line for line in lines if not line.startswith("loadmodule ")]


@pytest.fixture
def site(fresh_server: Callable[..., Server], tmp_path: Path) -> Iterator[Site]:
    """All of it; the servers end with their own fixture."""
    [of_servers] = blocks(PAGE, "conf server")
    [of_sentinels] = blocks(PAGE, "conf sentinel")
    first = fresh_server(config=without_module(of_servers.text))
    servers = [first] + [fresh_server(config=without_module(of_servers.text), replica_of=first) for _ in range(2)]
    port, *lines = of_sentinels.text.splitlines()
    assert port == "port 26379"
    settings = [line.replace("10.0.0.1 6379", f"127.0.0.1 {first.port}") for line in lines]
    sentinels: list[SentinelProcess] = []
    try:
        for number in range(3):
            folder = tmp_path / f"sentinel-{number}"
            folder.mkdir()
            sentinels.append(SentinelProcess(first, folder, service=SERVICE, settings=settings))
            sentinels[-1].start()
        eventually(lambda: all(one.knows(2, 2) for one in sentinels), SETTLED_S, "Sentinels that know each other")
        yield Site(servers, sentinels)
    finally:
        for sentinel in sentinels:
            sentinel.close()


@pytest.fixture
def port() -> Iterator[Port]:
    reserved = reserve_port()
    yield reserved
    reserved.release()


def run(site: Site, text: str) -> str:
    """What the commands of a block print."""
    script = site.here(text)
    done = subprocess.run(
        ["/bin/bash", "-euo", "pipefail", "-c", script], capture_output=True, text=True, timeout=COMMAND_S, check=False
    )
    assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
    return done.stdout


def serve(site: Site, text: str, port: Port, folder: Path) -> None:
    """Starts a bridge as the page does, publishes over it, and stops it."""
    program, *words = shlex.split(site.here(text))
    assert program == "holdmq-bridge"
    bridge = ChildProcess(
        [sys.executable, "-m", "holdmq_bridge", *words, "--port", str(port.number)],
        log=folder / "bridge.log",
        environment={"PYTHONUNBUFFERED": "1"},
    )
    bridge.spawn()
    try:
        eventually(lambda: '"connected to the server"' in bridge.log_text(since_start=True), SETTLED_S, "a bridge")
        with Talk5.open(port.number, "page") as client:
            client.send(packets5.publish("page", b"x", qos=1, pid=1))
            assert client.read().code < 0x80
    finally:
        assert bridge.stop() == 0


def prints(site: Site, text: str, expected: str) -> bool:
    """Whether the commands of a block print this."""
    printed = run(site, text)
    assert printed == expected, f"{text}\n{printed}"
    return True


def fail_over(site: Site, text: str) -> None:
    """Runs the command that orders a failover, and waits for its end."""
    former = eventually(site.primary, SETTLED_S, "one primary with two replicas")
    eventually(lambda: prints(site, text, "OK\n"), SETTLED_S, "a failover that is begun")
    eventually(lambda: not any(one.names(former) for one in site.sentinels), SETTLED_S, "another primary")


def test_the_commands_of_the_page_fail_over(site: Site, port: Port, tmp_path: Path) -> None:
    eventually(site.primary, SETTLED_S, "one primary with two replicas")
    done = []
    for block in blocks(PAGE, "sh"):
        text = block.text
        if text.startswith("holdmq-bridge"):
            serve(site, text, port, tmp_path)
        elif "SENTINEL FAILOVER" in text:
            fail_over(site, text)
        else:
            assert "WAIT" in text
            eventually(lambda text=text: prints(site, text, "OK\n2\n"), SETTLED_S, "replicas that have everything")  # type: ignore[misc]
        done.append(block)
    assert sum("SENTINEL FAILOVER" in block.text for block in done) == 2
