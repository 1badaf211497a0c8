"""The commands of the pages run, in their order, in a folder of their own, beside a service that was started for them.

    page     sh, python ──► one script ──► bash -e        text output ──► has to be printed
    shims    redis-cli, mosquitto_* use the ports of the service; a holdmq-bridge that serves is stopped then

tests/support/pages.py has the kinds of blocks, and those that nobody can run.  Ports are those of the pages in the
text, and free ones where the commands run.
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

from holdmq.server import ChildProcess, connect, find_server
from tests.support import Port, embedded_kinds, eventually, reserve_port
from tests.support.pages import Block, blocks

server_kinds = embedded_kinds

PAGES = {
    "README.md": ("sh", "python", "text output"),
    "docs/backup.md": ("sh",),
    "docs/configuration.md": ("sh", "text output"),
    "docs/existing-server.md": ("sh", "text output"),
    "docs/getting-started.md": ("sh", "python", "text output"),
    "docs/install.md": ("sh",),
    "docs/mqtt.md": ("sh",),
    "docs/mqtt-access.md": ("sh", "text output"),
    "docs/operations.md": ("sh",),
    "docs/sizing.md": ("sh",),
}
PORTS = (6379, 6380, 6381, 1883, 26379, 8083)
PAGE_S = 100.0
READY_S = 60.0
TYPED = "a password that is asked for\n"
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d")
# Serves until it listens, and ends in order.
SERVES_BRIEFLY = """
case "$1" in
    -*) ;;
    *) exec {python} -m holdmq_bridge "$@" ;;
esac
log=$(mktemp)
{python} -m holdmq_bridge "$@" --port {port} >"$log" 2>&1 &
for _ in $(seq 600); do
    grep -q '"event": "listening"' "$log" && break
    kill -0 $! || break
    sleep 0.1
done
kill $!
wait $!
"""


@pytest.fixture
def ports() -> Iterator[dict[int, Port]]:
    """A free port for each port of the pages, and one (0) for bridges of the pages' own."""
    reserved = {number: reserve_port() for number in (*PORTS, 0)}
    yield reserved
    for port in reserved.values():
        port.release()


def with_ports(text: str, ports: dict[int, Port]) -> str:
    """The text with the ports of this test, and nothing that listens beyond this machine."""
    for number in PORTS:
        text = re.sub(rf"\b{number}\b", str(ports[number].number), text)
    return text.replace("--host 0.0.0.0", "--host 127.0.0.1")


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
    program(folder / "holdmq-bridge", SERVES_BRIEFLY.format(python=f'"{sys.executable}"', port=ports[0].number))


def program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def place(tmp_path: Path, ports: dict[int, Port]) -> Iterator[Path]:
    """The folder where commands run, beside a service."""
    shims(tmp_path / "bin", ports)
    words = [
        "--port",
        ports[6379].number,
        "--mqtt-port",
        ports[1883].number,
        "--data",
        tmp_path / "data",
        "--console-port",
        0,
    ]
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


def command(block: Block) -> str:
    """What bash runs for a block."""
    if block.kind == "python":
        return f"'{sys.executable}' - <<'END OF PROGRAM'\n{block.text}\nEND OF PROGRAM"
    return block.text


def printed_by(program_text: str) -> list[str]:
    """What a program prints, by the comments behind its calls of print."""
    return re.findall(r"^ *print\(.*\) +# (.*)$", program_text, re.MULTILINE)


def plain(text: str) -> str:
    """Without widths of columns and times."""
    return "\n".join(" ".join(TIME.sub("TIME", line).split()) for line in text.splitlines())


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_run_and_print_what_it_says(page: str, place: Path, ports: dict[int, Port]) -> None:
    found = blocks(page, *PAGES[page])
    script = "\n".join(command(block) for block in found if block.kind != "text output")
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
        input=TYPED,
        capture_output=True,
        text=True,
        timeout=PAGE_S,
        check=False,
    )
    assert done.returncode == 0, f"{page}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    printed = plain(done.stdout)
    for block in found:
        wanted = (
            [block.text] if block.kind == "text output" else printed_by(block.text) if block.kind == "python" else []
        )
        for text in wanted:
            assert plain(text) in printed, f"{block} is not what was printed:\n{printed}"
