"""The blocks of docs/python.md run one after the other on a real server and print what is below them."""

import ast
import contextlib
import io
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdmq import HoldMQ
from tests.client import python_page
from tests.support import Cluster, Server, embedded_kinds

server_kinds = embedded_kinds

TIMEOUT_S = 60.0
RAN = {"celery": "test_prefork", "gunicorn": "test_gunicorn", "decoded": "test_documentation"}
"""Where the programs of the page run that stand alone."""


def printed(block: str, namespace: dict[str, Any]) -> str:
    """What a block prints."""
    with contextlib.redirect_stdout(io.StringIO()) as output:
        exec(compile(block, str(python_page.PAGE), "exec"), namespace)  # noqa: S102 - our own documentation
    return output.getvalue()


def test_the_page_on_python_prints_what_it_says(server: Server) -> None:
    namespace: dict[str, Any] = {}
    blocks = python_page.blocks()
    assert len(blocks) > 5
    try:
        for block in blocks:
            expected = "".join(line[3:] + "\n" for line in block.splitlines() if line.startswith("#> "))
            assert printed(block.replace(python_page.DEFAULT_URL, server.url), namespace) == expected, block
    finally:
        namespace["hold"].close()


def test_every_program_of_the_page_runs_in_some_test() -> None:
    assert set(python_page.programs()) == set(RAN)
    for name, module in RAN.items():
        assert f'write_program("{name}"' in (Path(__file__).parent / f"{module}.py").read_text()


def test_the_program_that_decodes_prints_text(server: Server, tmp_path: Path) -> None:
    python_page.write_program("decoded", tmp_path / "decoded.py", server.url)
    with HoldMQ.from_url(server.url) as hold:
        hold.channel("weather").publish("snow")
    done = subprocess.run(
        [sys.executable, tmp_path / "decoded.py"], capture_output=True, text=True, check=True, timeout=TIMEOUT_S
    )
    assert done.stdout == "SNOW\n"


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Processes that are started end by SIGINT: where a shell runs this in the background, they would ignore it."""
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, former)


@pytest.mark.usefixtures("interruptible")
def test_the_commands_of_the_page_run(server: Server, cluster: Cluster) -> None:
    told = []
    for command in python_page.commands():
        target = cluster.nodes[0] if "--cluster" in command else server
        with HoldMQ.from_url(target.url, cluster=target is not server) as hold:
            hold.history.create("weather", "weather/#")
            hold.topics.publish("weather/oslo", "snow", qos=1)
        words = [str(Path(sys.executable).with_name("holdmq")), *shlex.split(command)[1:]]
        environment = {**os.environ, "HOLDMQ_URL": target.url, "PYTHONUNBUFFERED": "1"}
        with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            first = [process.stdout.readline() for _ in range(2 if "--follow" in command else 1)]
            if "--follow" in command:  # goes on forever
                process.send_signal(signal.SIGINT)
            process.communicate(timeout=TIMEOUT_S)
            told.append((command, "snow" in first[-1], process.returncode))
    assert len(told) >= 3
    follows, others = ([one for one in told if ("--follow" in one[0]) is kind] for kind in (True, False))
    assert all(shown for _, shown, _ in follows)
    assert all(status == 0 for *_, status in others), told


def docstrings_of_the_synchronous_client() -> Iterator[tuple[str, str]]:
    for path in sorted((Path(__file__).parents[2] / "pyclient" / "holdmq" / "_sync").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                yield f"{path.name}: {getattr(node, 'name', 'module')}", ast.get_docstring(node) or ""


def test_the_synchronous_client_does_not_speak_of_the_other_one() -> None:
    wrong = [
        where
        for where, text in docstrings_of_the_synchronous_client()
        if re.search(r"\b(asyncio|await|tasks?|event loop|aclose|Async\w+)\b", text)
    ]
    assert wrong == []
