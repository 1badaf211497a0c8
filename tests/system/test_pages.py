"""The commands of the pages run, in their order, in a folder of their own, beside a service that was started for them.

A block that opens with ```sh is run by bash; it fails if a command does. One that cannot run here says why:
```sh no-run: REASON. Ports are those of the pages in the text, and free ones where the commands run.
"""

import contextlib
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from holdmq._child import ChildProcess
from holdmq.server import connect, find_server
from tests.support import Port, embedded_kinds, eventually, reserve_port

server_kinds = embedded_kinds

REPOSITORY = Path(__file__).parents[2]
PAGES = ("README.md", "docs/install.md", "docs/existing-server.md", "docs/backup.md", "docs/operations.md")
OPENING = re.compile(r"^```sh(?: no-run: (?P<reason>\S.*))?$")
PORTS = (6379, 6380, 6381, 1883, 26379)
PAGE_S = 100.0
READY_S = 60.0
MOST_UNRUN = 0.5


def blocks(page: str) -> list[tuple[str, str | None]]:
    """The blocks of commands of a page; with the reason, those that are not run."""
    found: list[tuple[str, str | None]] = []
    lines = iter((REPOSITORY / page).read_text().splitlines())
    for line in lines:
        opening = OPENING.match(line)
        if opening is None:
            assert not line.startswith("```sh"), f"{page}: {line!r} is neither ```sh nor ```sh no-run: REASON"
            continue
        text = []
        for inner in lines:
            if inner == "```":
                break
            text.append(inner)
        found.append(("\n".join(text), opening["reason"]))
    return found


@pytest.fixture
def ports() -> Iterator[dict[int, Port]]:
    """A free port for each port of the pages."""
    reserved = {number: reserve_port() for number in PORTS}
    yield reserved
    for port in reserved.values():
        port.release()


def with_ports(text: str, ports: dict[int, Port]) -> str:
    for number, port in ports.items():
        text = re.sub(rf"\b{number}\b", str(port.number), text)
    return text


def shims(folder: Path, ports: dict[int, Port]) -> None:
    """Programs that use the service where the pages leave out its port."""
    folder.mkdir()
    for name, option, number in (
        ("redis-cli", "-p", 6379),
        ("mosquitto_pub", "-p", 1883),
        ("mosquitto_sub", "-p", 1883),
    ):
        found = shutil.which(name)
        assert found is not None, f"no {name}: run `make test-servers`"
        program(
            folder / name,
            f'[[ " $* " != *" {option} "* ]] || exec {found} "$@"\nexec {found} {option} {ports[number].number} "$@"',
        )
    (folder.parent / ".venv").symlink_to(sys.prefix)
    program(folder / "valkey-server", f'exec "{find_server()}" "$@"')


def program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def place(tmp_path: Path, ports: dict[int, Port]) -> Iterator[Path]:
    """The folder where commands run, beside a service."""
    shims(tmp_path / "bin", ports)
    words = ["--port", ports[6379].number, "--mqtt-port", ports[1883].number, "--data", tmp_path / "data"]
    service = ChildProcess([sys.executable, "-m", "holdmq_bridge.run", *map(str, words)], log=tmp_path / "service.log")
    service.spawn()
    try:
        eventually(lambda: "HoldMQ serves" in service.log_text(), READY_S, "a service")
        yield tmp_path
    finally:
        service.stop()
        for port in ports.values():  # a page that failed leaves servers of its own
            with contextlib.suppress(redis.RedisError), connect("127.0.0.1", port.number, timeout_s=1) as left:
                left.shutdown(nosave=True)


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_run(page: str, place: Path, ports: dict[int, Port]) -> None:
    script = "\n".join(text for text, reason in blocks(page) if reason is None)
    assert script.strip()
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([str(place / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]),
        "HOLDMQ_URL": f"redis://127.0.0.1:{ports[6379].number}",
        "HOLDMQ_BRIDGE_REDIS": f"redis://127.0.0.1:{ports[6379].number}",
    }
    done = subprocess.run(
        ["/bin/bash", "-exuo", "pipefail", "-c", with_ports(script, ports)],
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PAGE_S,
        check=False,
    )
    assert done.returncode == 0, f"{page}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"


def test_few_blocks_are_not_run() -> None:
    found = [reason for page in PAGES for _text, reason in blocks(page)]
    assert sum(reason is not None for reason in found) <= len(found) * MOST_UNRUN
