"""What type checkers say of programs that use the client, checked as a user's are: from a folder outside.

Both checkers have to see the package where it is installed, and where the install is an editable one, as in the
environment of the tests. Each runs once, over all programs, since most of its time goes into reading the libraries.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from tests.client import python_page

REPOSITORY = Path(__file__).parents[2]
PYRIGHT = REPOSITORY / "build" / "node" / "node_modules" / ".bin" / "pyright"  # tools/node-clients.sh

PACKAGE = ["pyclient", "bridge", "pipeline", "src", "redis_module"]
PACKAGE_FILES = ["setup.py", "pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"]
NOT_SOURCE = shutil.ignore_patterns("*.so", "__pycache__", "*.egg-info", "*.o")

COMMANDS = {
    "mypy": [sys.executable, "-m", "mypy", "--strict", "--config-file", "", "--python-executable"],
    "pyright": [str(PYRIGHT), "--pythonpath"],
}

REVEALED = """
from datetime import timedelta
from typing import assert_type

import redis
import valkey
import valkey.asyncio

from holdmq import AsyncHoldMQ, Channel, ChannelMessage, HoldMQ, Message, QuotaError, QueueFullError
from holdmq import SubscriptionOptions

options = SubscriptionOptions(replay=timedelta(hours=1)), SubscriptionOptions(replay="24h!")
refused: tuple[type[Exception], ...] = QuotaError, QueueFullError
url = "redis://127.0.0.1"
assert_type(HoldMQ.from_url(url), HoldMQ[bytes])
assert_type(HoldMQ.from_url(url, decode_responses=True), HoldMQ[str])
assert_type(AsyncHoldMQ.from_url(url, cluster=True), AsyncHoldMQ[bytes])
assert_type(HoldMQ(redis.Redis()), HoldMQ[bytes])
assert_type(HoldMQ(valkey.Valkey()), HoldMQ[bytes])
assert_type(AsyncHoldMQ(valkey.asyncio.Valkey()), AsyncHoldMQ[bytes])
decoded: HoldMQ[str] = HoldMQ(redis.Redis(decode_responses=True))
assert_type(decoded.channel("x").last(), str | None)
assert_type(HoldMQ.from_url(url).channel("x").last(), bytes | None)


def read(hold: HoldMQ, channel: Channel) -> list[str]:
    for message in hold.subscribe("x"):
        assert_type(message, ChannelMessage[bytes])
        print(message.data.decode(), message.channel.decode())
    for entry in hold.session("c").entries():
        assert_type(entry.message, Message | None)
    columns = hold.history.store("s").range(0, 1, 9)
    assert_type(columns["topic"], list[str])
    assert_type(columns["payload"], list[bytes])
    assert_type(columns["time"], list[int])
    return [data.decode() for data in channel.backlog()]


async def wait(hold: AsyncHoldMQ) -> bytes | None:
    async for message in hold.psubscribe("x*"):
        print(message.data.decode())
    return await hold.channel("x").last()
"""

WRONG_CLIENTS = """
import redis
import redis.asyncio
import valkey
import valkey.asyncio

from holdmq import AsyncHoldMQ, HoldMQ

HoldMQ(redis.Redis()), AsyncHoldMQ(redis.asyncio.Redis())
HoldMQ(redis.asyncio.Redis())
AsyncHoldMQ(redis.Redis())
HoldMQ(valkey.asyncio.Valkey())
AsyncHoldMQ(valkey.Valkey())
HoldMQ("redis://127.0.0.1")
"""
WRONG = {("wrong_clients.py", line) for line in range(10, 15)}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment in which the package is installed, as pip does; beside its dependencies."""
    folder = tmp_path_factory.mktemp("installed")
    source = folder / "source"
    for name in PACKAGE:
        shutil.copytree(REPOSITORY / name, source / name, ignore=NOT_SOURCE)
    for name in PACKAGE_FILES:
        shutil.copy(REPOSITORY / name, source / name)
    venv.create(folder / "env", with_pip=False)
    python = folder / "env" / "bin" / "python"
    of_environment = {"base": str(folder / "env"), "platbase": str(folder / "env")}
    packages = Path(sysconfig.get_path("purelib", "venv", vars=of_environment))
    module = folder / "holdmq.so"
    module.touch()  # only sources are looked at
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    offline = ["--no-index", "--no-deps", "--no-build-isolation", "--target", str(packages), "."]
    environment = {**os.environ, "HOLDMQ_WITHOUT_CORE": "1", "HOLDMQ_MODULE": str(module)}
    subprocess.run([*pip, *offline], cwd=source, env=environment, check=True, timeout=200)
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def place_of_the_package(python: Path) -> Path:
    script = "import importlib.util; print(importlib.util.find_spec('holdmq').origin)"
    done = subprocess.run([python, "-c", script], capture_output=True, text=True, check=True, cwd="/", timeout=60)
    return Path(done.stdout.strip()).parent


def programs() -> dict[str, str]:
    """The programs of the page: its blocks one after the other, and those that stand alone."""
    alone = {f"{name}_program": text for name, text in python_page.programs().items()}
    return {"page": "".join(python_page.blocks()), **alone}


def test_the_page_has_a_program_in_each_style() -> None:
    assert set(programs()) == {"page", "celery_program", "gunicorn_program", "decoded_program"}
    assert "asyncio.run(" in programs()["page"]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("install", ["editable", "installed"])
@pytest.mark.parametrize("checker", COMMANDS)
def test_programs_have_the_types_that_they_seem_to_have(
    checker: str, install: str, installed: Path, tmp_path: Path
) -> None:
    python = installed if install == "installed" else Path(sys.executable)
    assert (place_of_the_package(python) == REPOSITORY / "pyclient" / "holdmq") is (install == "editable")
    files = {**programs(), "revealed": REVEALED, "wrong_clients": WRONG_CLIENTS}
    for name, text in files.items():
        (tmp_path / f"{name}.py").write_text(text)
    names = [f"{name}.py" for name in files]
    done = subprocess.run(
        [*COMMANDS[checker], python, *names], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=280
    )
    errors = re.findall(r"(\w+\.py):(\d+):.* error: ", done.stdout) or re.findall(
        r"(\w+\.py):(\d+):\d+ - error: ", done.stdout
    )
    assert {(name, int(line)) for name, line in errors} == WRONG, done.stdout + done.stderr


def test_an_editable_install_is_on_the_path_and_behind_no_hook() -> None:
    """A checker reads .pth files; it does not run what they import."""
    script = (
        "import sys; print(any('__editable__' in str(finder) for finder in sys.meta_path));"
        "print(*(path for path in sys.path if path.endswith('/pyclient')))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd="/")
    assert done.stdout.splitlines() == ["False", str(REPOSITORY / "pyclient")]
