"""A real PostgreSQL of a test: a cluster of its own in a temporary folder, on a free loopback port.

PostgreSQL refuses to run as root: there it runs as the user nobody, from a folder that nobody may enter.  A checkout
below a folder of mode 0700 is no such place, not even with the capability to read everything: PostgreSQL asks
access(2), which knows no capabilities.  So the programs are copied once for a test run, and each server's data is in a
folder of its own.  Tables are made by the server in its single-user mode, so that no client program is needed.
"""

import atexit
import os
import shutil
import socket
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.eventually import eventually
from tests.support.ports import reserve_port

PROGRAMS = Path(__file__).resolve().parents[2] / "build" / "servers" / "postgresql"
NOBODY = 65534
AS_NOBODY = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--pdeathsig=KILL")
MAY_ENTER = 0o001  # the mode's bit for everybody else
STEP_S = 60
PASSWORD = "wait for me"  # noqa: S105 - of a server that lives as long as the test


def _may_enter(folder: Path) -> bool:
    """Whether every user may reach a folder."""
    return all(one.stat().st_mode & MAY_ENTER for one in (folder, *folder.parents))


def _folder_of_nobody() -> Path:
    """A new folder in the system's temporary one; if this is root, of the user who runs the server."""
    folder = Path(tempfile.mkdtemp(prefix="holdmq-postgres-"))
    if os.geteuid() == 0:
        shutil.chown(folder, NOBODY, NOBODY)
    return folder


@cache
def _programs() -> tuple[Path, Path]:
    """The folders of the programs and of their libraries, where the user who runs them may enter."""
    binaries, libraries = (PROGRAMS / "bin").resolve(), (PROGRAMS / "lib").resolve()
    if os.geteuid() != 0 or _may_enter(binaries):
        return binaries, libraries
    root = binaries.parents[4]  # of what tools/postgresql.sh unpacked: root/usr/lib/postgresql/15/bin
    folder = _folder_of_nobody()
    atexit.register(shutil.rmtree, folder)
    copy = folder / "root"
    shutil.copytree(root, copy, symlinks=True)
    return copy / binaries.relative_to(root), copy / libraries.relative_to(root)


class PostgresServer:
    """A running server; the user is `postgres`, the database too.

    Args:
        sql: statements for single-user mode, each ended by an empty line.
    """

    def __init__(self, sql: str) -> None:
        self._directory = _folder_of_nobody()
        self._data = self._directory / "data"
        self._data.mkdir()
        self._port = reserve_port()
        password_file = self._directory / "password"
        password_file.write_text(PASSWORD)
        if os.geteuid() == 0:
            shutil.chown(self._data, NOBODY, NOBODY)
            shutil.chown(password_file, NOBODY, NOBODY)
        self._run("initdb", "-U", "postgres", "-A", "scram-sha-256", "--pwfile", str(password_file), "--locale=C", "-N")
        self._run("postgres", "--single", "-j", "-F", *self._settings(), "postgres", stdin=sql)
        with (self._directory / "log").open("wb") as log:
            self._process = subprocess.Popen(
                self._command("postgres", "-F", *self._settings()),
                env=_environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
            )
        eventually(self._accepts, what="a PostgreSQL that accepts connections", timeout_s=STEP_S)

    @property
    def url(self) -> str:
        """As JDBC takes it."""
        return f"jdbc:postgresql://127.0.0.1:{self._port.number}/postgres"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        try:
            self._process.wait(STEP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(STEP_S)
        finally:
            self._port.release()
            shutil.rmtree(self._directory)

    def _settings(self) -> list[str]:
        settings = {
            "port": self._port.number,
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "jit": "off",
        }
        return [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]

    def _command(self, program: str, *arguments: str) -> list[str]:
        user = AS_NOBODY if os.geteuid() == 0 else ()
        return [*user, str(_programs()[0] / program), *self._placed(program, arguments)]

    def _placed(self, program: str, arguments: tuple[str, ...]) -> list[str]:
        place = ["-D", str(self._data)]
        return [arguments[0], *place, *arguments[1:]] if arguments[0] == "--single" else [*place, *arguments]

    def _run(self, program: str, *arguments: str, stdin: str = "") -> None:
        done = subprocess.run(
            self._command(program, *arguments), env=_environment(), input=stdin, capture_output=True, text=True,
            timeout=STEP_S, check=False,
        )  # fmt: skip
        if done.returncode or "ERROR:" in done.stderr:
            raise AssertionError(f"{program} failed: {done.stdout[-2000:]} {done.stderr[-2000:]}")

    def _accepts(self) -> bool:
        if self._process.poll() is not None:
            raise AssertionError(f"PostgreSQL ended: {(self._directory / 'log').read_text()[-2000:]}")
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self._port.number)) == 0


def _environment() -> dict[str, str]:
    return {**os.environ, "LD_LIBRARY_PATH": str(_programs()[1]), "TZ": "UTC", "LC_ALL": "C"}
