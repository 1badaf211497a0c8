"""The own test suites of libraries over pub/sub: with the module the same tests pass as without it.

Their sources are unpacked by tools/libraries.sh.  With the default policy a test would be handed what the test before
it published; so every message is held, and none handed over.  Some tests depend on the time that a step takes: where a
result differs, both runs are repeated, and only a test that differs in the same way each time counts.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.module.channels_support import set_policies
from tests.support import Server, ServerKind, embedded_kinds
from tests.support.ports import reserve_port

server_kinds = embedded_kinds

FOLDER = Path(__file__).parents[2] / "build" / "libraries"  # tools/libraries.sh
TIMEOUT_S = 220
ROUNDS = 3
RESULT = re.compile(r"^(PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS) (?:\[\d+\] )?(\S+)", re.MULTILINE)

# Folder, words for pytest.  Tests left out of channels_redis want a server on port 6379, those of python-socketio none.
SUITES = {
    "redis-py": ("redis-8.1.0", ["--redis-url={url}/0", "-m", "not onlycluster", "tests/test_pubsub.py"]),
    "redis-py, asyncio": (
        "redis-8.1.0",
        ["--redis-url={url}/0", "-m", "not onlycluster", "tests/test_asyncio/test_pubsub.py"],
    ),
    "channels_redis": (
        "channels_redis-4.3.0",
        ["tests/test_pubsub.py", "tests/test_core.py", "-k", "not message_expiry"],
    ),
    "python-socketio": ("python_socketio-5.18.1", ["tests/common/test_admin.py", "tests/async/test_admin.py"]),
}
CONFTESTS = {"python-socketio": Path(__file__).parent / "python" / "socketio_manager.py"}


def results(server: Server, suite: str, folder: Path) -> dict[str, str]:
    """The result of each test of a suite."""
    name, words = SUITES[suite]
    shutil.copytree(FOLDER / "suites" / name, folder)
    if suite in CONFTESTS:
        shutil.copy(CONFTESTS[suite], folder / "conftest.py")
    with reserve_port() as port:
        for path in (folder / "tests").rglob("*.py"):
            text = path.read_text().replace("localhost:6379", f"127.0.0.1:{server.port}")
            path.write_text(text.replace("8900", str(port.number)))
        return run(server, words, folder)


def run(server: Server, words: list[str], folder: Path) -> dict[str, str]:
    """The result of each test that the words name."""
    command = [str(FOLDER / "venv" / "bin" / "python"), "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "PYTHON"))}
    environment["SOCKETIO_REDIS"] = server.url
    done = subprocess.run(
        [*command, *(word.format(url=server.url) for word in words)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    found = {test: result for result, test in RESULT.findall(done.stdout)}
    assert sum(result == "PASSED" for result in found.values()) > 10, done.stdout[-3000:] + done.stderr[-3000:]
    return found


@pytest.mark.timeout(2 * ROUNDS * TIMEOUT_S)
@pytest.mark.parametrize("suite", SUITES)
def test_the_same_tests_pass_with_the_module(
    server: Server, server_kind: ServerKind, tmp_path: Path, suite: str
) -> None:
    stock = Server(server_kind, tmp_path / "stock", module=False)
    set_policies(server.client(), "* deliver=none")
    try:
        stock.start()
        different: set[tuple[str, str | None, str | None]] = set()
        for turn in range(ROUNDS):
            for each in (stock, server):
                each.client().flushall()
            expected = results(stock, suite, tmp_path / f"without-{turn}")
            found = results(server, suite, tmp_path / f"with-{turn}")
            differing = {
                (test, expected.get(test), found.get(test))
                for test in expected.keys() | found.keys()
                if expected.get(test) != found.get(test)
            }
            different = different & differing if turn else differing
            if not different:
                break
        assert different == set()
    finally:
        stock.close()
