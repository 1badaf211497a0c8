"""A real PostgreSQL of a test: a cluster of its own in a temporary folder, on a free loopback port.

PostgreSQL refuses to run as root: there it runs as the user nobody, who may read what root may (the checkout can stand
in a folder of root's).  Tables are made by the server in its single-user mode, so that no client program is needed.
"""

import os
import shutil
import socket
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.eventually import eventually
from tests.support.ports import reserve_port

PROGRAMS = Path(__file__).resolve().parents[2] / "build" / "servers" / "postgresql"
NOBODY = 65534
AS_NOBODY = (
    "setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--inh-caps=+dac_override",
    "--ambient-caps=+dac_override", "--pdeathsig=KILL",
)  # fmt: skip
STEP_S = 60
PASSWORD = "wait for me"  # noqa: S105 - of a server that lives as long as the test


class PostgresServer:
    """A running server; the user is `postgres`, the database too.

    Args:
        directory: for its data; made if it is not there.
        sql: statements for single-user mode, each ended by an empty line.
    """

    def __init__(self, directory: Path, sql: str) -> None:
        self._data = directory / "data"
        self._port = reserve_port()
        self._data.mkdir(parents=True)
        if os.geteuid() == 0:
            shutil.chown(self._data, NOBODY, NOBODY)
        password_file = directory / "password"
        password_file.write_text(PASSWORD)
        self._run("initdb", "-U", "postgres", "-A", "scram-sha-256", "--pwfile", str(password_file), "--locale=C", "-N")
        self._run("postgres", "--single", "-j", "-F", *self._settings(), "postgres", stdin=sql)
        with (directory / "log").open("wb") as log:
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
        return [*user, str((PROGRAMS / "bin").resolve() / program), *self._placed(program, arguments)]

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
            raise AssertionError(f"PostgreSQL ended: {(self._data.parent / 'log').read_text()[-2000:]}")
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self._port.number)) == 0


def _environment() -> dict[str, str]:
    return {**os.environ, "LD_LIBRARY_PATH": str((PROGRAMS / "lib").resolve()), "TZ": "UTC", "LC_ALL": "C"}
