"""Instructions of a server per command, counted by valgrind's callgrind: they do not vary, but exclude the kernel.

The server's own instructions and the module's are counted, from a dump before the commands to one after them.  A server
under callgrind is some fifty times slower, so a few thousand commands have to be enough.  Work that the server and the
module do once a second then appears as the commands' work.  So the commands are divided into a few parts, and the
cheapest part counts.
"""

import contextlib
import re
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import hiredis

from bench.wire import Command, encoded
from holdmq.server import PortTakenError, ServerProcess, configuration, find_module, find_server
from holdmq.server import next_free_port as free_port

HOST = "127.0.0.1"
FIRST_PORT = 6900
START_S = 60.0
START_TRIES = 10
TIMEOUT_S = 60.0
WARM_UP, PARTS, COMMANDS = 500, 8, 256
KEYS = 500
TOTAL = re.compile(r"^(?:totals|summary): (\d+)", re.MULTILINE)
QUIET = ['save ""', "hz 1", "dynamic-hz no"]  # the server's own clock shows in nothing that is counted


class CountedServer:
    """A server under callgrind.

    Args:
        folder: for its files.
        server: running.
    """

    def __init__(self, folder: Path, server: ServerProcess) -> None:
        self._folder = folder
        self._server = server
        self._socket = socket.create_connection((HOST, server.port), TIMEOUT_S)

    def run(self, *words: str) -> None:
        """Run one command."""
        self._send([tuple(words)])

    def run_each(self, words: Sequence[str]) -> None:
        """Run a command with each number in the place of `{}`."""
        self._repeat(words, KEYS, KEYS)

    def cost(self, words: Sequence[str], pipeline: int) -> float:
        """Instructions for one command, sent in pipelines of so many; `{}` in a word becomes one of a few numbers."""
        self._repeat(words, 1, WARM_UP)  # so many turns of the event loop that the module no longer listens to them
        self._repeat(words, pipeline, WARM_UP)
        self._counted()
        return min(self._part(words, pipeline) for _ in range(PARTS))

    def close(self) -> None:
        """Close the connection and end the server."""
        self._socket.close()
        self._server.kill()

    def _part(self, words: Sequence[str], pipeline: int) -> float:
        self._repeat(words, pipeline, COMMANDS)
        return self._counted() / COMMANDS

    def _repeat(self, words: Sequence[str], pipeline: int, count: int) -> None:
        numbered = [tuple(word.format(number % KEYS) for word in words) for number in range(count)]
        for at in range(0, count, pipeline):
            self._send(numbered[at : at + pipeline])

    def _send(self, commands: Sequence[Command]) -> None:
        self._socket.sendall(b"".join(encoded(command) for command in commands))
        reader = hiredis.Reader(notEnoughData=self)
        replies = 0
        while replies < len(commands):
            reply = reader.gets()
            if isinstance(reply, hiredis.ReplyError):
                raise reply
            if reply is self:
                reader.feed(self._socket.recv(1 << 16))
            else:
                replies += 1

    def _counted(self) -> int:
        """Instructions since the last time."""
        process = str(self._server.pid)
        prefix = f"--vgdb-prefix={self._folder / 'vgdb'}"
        dump = ["callgrind_control", prefix, "-d", "part", process]
        subprocess.run(dump, check=True, capture_output=True, timeout=TIMEOUT_S)
        newest = max(self._folder.glob("callgrind.*"), key=lambda path: int(path.suffix[1:]))
        found = TOTAL.search(newest.read_text())
        if found is None:
            raise AssertionError(f"{newest} tells no total")
        return int(found[1])


@contextlib.contextmanager
def counted(*, module: bool, config: Sequence[str] = ()) -> Iterator[CountedServer]:
    """A server under callgrind for as long as the context lasts.

    Args:
        module: whether it loads the module.
        config: further lines of its configuration.

    Raises:
        FileNotFoundError: there is no valgrind.
    """
    if shutil.which("callgrind_control") is None:
        raise FileNotFoundError("callgrind_control is missing: install the package valgrind")
    folder = Path(tempfile.mkdtemp(prefix="holdmq-bench-"))
    try:
        with contextlib.closing(CountedServer(folder, _started(folder, module=module, config=config))) as running:
            yield running
    finally:
        shutil.rmtree(folder)


def _started(folder: Path, *, module: bool, config: Sequence[str]) -> ServerProcess:
    tool = ["--tool=callgrind", f"--callgrind-out-file={folder / 'callgrind'}", f"--vgdb-prefix={folder / 'vgdb'}"]
    command = ["valgrind", *tool, str(find_server())]
    first = FIRST_PORT
    for attempt in range(START_TRIES):
        port = free_port(HOST, first)
        lines = configuration(
            port=port, directory=folder, module=find_module() if module else None, aof=False, extra=[*QUIET, *config]
        )
        (folder / "server.conf").write_text("\n".join([*lines, ""]))
        server = ServerProcess(command, folder / "server.conf", port=port, log=folder / "server.log")
        try:
            server.start(START_S)
        except PortTakenError:  # somebody was faster
            if attempt == START_TRIES - 1:
                raise
            first = port + 1
            continue
        return server
    raise AssertionError("a start fails or returns")
