"""A real gunicorn: a client made and used at import serves its processes and threads, with and without --preload."""

import os
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from holdmq import HoldMQ
from tests.client.python_page import write_program
from tests.support import Server, embedded_kinds, eventually, reserve_port

server_kinds = embedded_kinds

REPOSITORY = Path(__file__).parents[2]
TIMEOUT_S = 60.0
REQUESTS = 200


@pytest.fixture
def gunicorn(server: Server, tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Starts a gunicorn with so many arguments; returns its address."""
    running: list[subprocess.Popen[bytes]] = []
    log = tmp_path / "gunicorn.log"

    with log.open("wb") as out, reserve_port() as port:

        def start(*arguments: str, program: str = "tests.client.wsgi_app", folder: Path = REPOSITORY) -> str:
            address = f"127.0.0.1:{port.number}"
            command = [sys.executable, "-m", "gunicorn", "--bind", address, *arguments, f"{program}:app"]
            environment = {**os.environ, "HOLDMQ_URL": server.url}
            running.append(subprocess.Popen(command, cwd=folder, env=environment, stdout=out, stderr=subprocess.STDOUT))
            return f"http://{address}"

        yield start
        for process in running:
            process.terminate()
            try:
                process.wait(TIMEOUT_S)
            finally:
                process.kill()
                process.wait()
                sys.stdout.write(log.read_text())


def answer(url: str) -> str:
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as response:  # noqa: S310 - our own server
        return str(response.read().decode())


def answers(url: str) -> bool:
    try:
        return bool(answer(f"{url}/up"))
    except OSError:
        return False


@pytest.mark.parametrize("preload", [[], ["--preload"]])
def test_a_client_serves_the_processes_and_threads_of_gunicorn(
    gunicorn: Callable[..., str], server: Server, preload: list[str]
) -> None:
    url = gunicorn("--workers", "2", "--threads", "4", *preload)
    eventually(lambda: answers(url), TIMEOUT_S, "gunicorn answers")
    with ThreadPoolExecutor(16) as threads:
        who = list(threads.map(answer, (f"{url}/{number}" for number in range(REQUESTS))))
    assert len({one.split()[0] for one in who}) == 2, "one process did all of it"
    assert len(set(who)) > 2, "one thread of each process did all of it"
    with HoldMQ.from_url(server.url) as hold:
        visits = [message.decode() for message in hold.channel("visits").backlog() if message != b"/up"]
    assert sorted(visits, key=lambda path: int(path[1:])) == [f"/{number}" for number in range(REQUESTS)]


@pytest.mark.parametrize("preload", [[], ["--preload"]])
def test_the_program_of_the_page_serves(
    gunicorn: Callable[..., str], server: Server, preload: list[str], tmp_path: Path
) -> None:
    write_program("gunicorn", tmp_path / "visits.py", server.url)
    url = gunicorn("--workers", "2", "--threads", "4", *preload, program="visits", folder=tmp_path)
    eventually(lambda: answers(url), TIMEOUT_S, "gunicorn answers")
    with ThreadPoolExecutor(16) as threads:
        assert set(threads.map(answer, (f"{url}/{number}" for number in range(REQUESTS)))) == {"thanks\n"}
    with HoldMQ.from_url(server.url) as hold:
        visits = [message.decode() for message in hold.channel("visits").backlog() if message != b"/up"]
    assert sorted(visits, key=lambda path: int(path[1:])) == [f"/{number}" for number in range(REQUESTS)]
