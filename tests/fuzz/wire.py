"""The fuzzer of the module: random commands over the wire to a real server with the sanitized module.

A round begins with an empty server.  After each batch the server must answer, its indexes must equal a rebuild
(HOLDMQ.CHECK), and no report may stand in its log.  What does not hold is a finding: the round is made as short as it
can be, goes into the corpus, and the tests replay it from then on.

    python -m tests.fuzz.wire --seconds 600 --server redis-7.0     fuzz (`make fuzz` builds what is needed)
    python -m tests.fuzz.wire --replay FILE                        once more
"""

import argparse
import random
import re
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import hiredis

from holdmq.server import find_module
from tests.fuzz import replayable
from tests.fuzz.commands import SUBSCRIBING, Command, Generator, Step
from tests.support import RawClient, ReplyError, Server
from tests.support.raw import encoded
from tests.support.servers import KINDS

CORPUS = Path(__file__).parent / "corpus"
BATCHES_A_ROUND = 20
ANSWER_S = 20.0
MAX_FINDING = 3000  # characters of a finding that are shown
SHORTEN_S = 90.0  # for making a finding short
DATABASES = 3
SETTINGS = (
    *("maxmemory", "maxmemory-policy", "notify-keyspace-events"),
    *("holdmq.policies", "holdmq.intercept", "holdmq.session-limit", "holdmq.session-ttl", "holdmq.drain-timeout"),
)


class Finding(AssertionError):  # noqa: N818 - it is what a fuzzer is there for
    """Something that must hold does not."""


class Line:
    """One of the fuzzer's connections: sends a few commands, and knows when all of them were answered.

    Args:
        port: of the server.
        resp3: which protocol it speaks.
        counts: whether the number of replies must be that of the commands.
    """

    def __init__(self, port: int, *, resp3: bool, counts: bool) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), ANSWER_S)
        self._counts = resp3 and counts
        self._reader = hiredis.Reader()
        self._marks = 0
        if resp3:
            self.send([(b"HELLO", b"3")])

    def send(self, commands: Sequence[Command]) -> None:
        """Send commands and wait for their replies.

        Raises:
            Finding: no answer, more or fewer replies than there are commands, or one that must not be.
            OSError: the server closed the connection, as it may.
        """
        self._marks += 1
        mark = b"mark-%d" % self._marks
        try:
            self._socket.sendall(b"".join(encoded(*command) for command in (*commands, (b"PING", mark))))
            replies = self._replies_up_to(mark)
        except TimeoutError as error:
            raise Finding(f"no answer within {ANSWER_S:g} s") from error
        except hiredis.ProtocolError as error:
            raise Finding(f"the reply is no RESP: {error}") from error
        if self._counts:
            least = sum(command[0].upper() not in SUBSCRIBING for command in commands)
            if not least <= replies <= len(commands):
                raise Finding(f"{replies} replies to {len(commands)} commands, {least} of which never push")

    def close(self) -> None:
        """Close it."""
        self._socket.close()

    def _replies_up_to(self, mark: bytes) -> int:
        replies = 0
        while True:
            reply: Any = self._reader.gets()
            if reply is False:
                data = self._socket.recv(1 << 18)
                if not data:
                    raise ConnectionError("the server closed the connection")
                self._reader.feed(data)
            elif reply in (mark, [b"pong", mark]):
                return replies
            elif isinstance(reply, hiredis.ReplyError) and str(reply).startswith("NOPERM"):
                raise Finding(f"the default user may do everything, but: {reply}")
            elif not isinstance(reply, hiredis.PushNotification):
                replies += 1


class Rig:
    """A server under fuzz, its connections, and what it is asked after each batch.

    Args:
        server: running.

    Attributes:
        sent: commands so far.
    """

    def __init__(self, server: Server) -> None:
        self.server = server
        self.sent = 0
        self._lines: dict[int, Line] = {}
        self._settings = [(name, self._setting(name)) for name in SETTINGS]

    def empty(self) -> None:
        """No keys, no connections, the settings of the start; started again if it crashed or hangs."""
        self.hang_up()
        try:
            self._reset()
        except OSError:
            if self.server.process.running:
                self.server.kill()
            self.server.restart()
            self._reset()

    def hang_up(self) -> None:
        """Close all connections."""
        for line in self._lines.values():
            line.close()
        self._lines.clear()

    def play(self, batch: Sequence[Step]) -> None:
        """Send a batch, those of one connection that follow each other in one go, and look at the server's health.

        Raises:
            Finding: something that must hold does not.
        """
        at = 0
        while at < len(batch):
            number, end = batch[at][0], at
            while end < len(batch) and batch[end][0] == number:
                end += 1
            self._send(number, [command for _, command in batch[at:end]])
            at = end
        self.look()

    def look(self) -> None:
        """Ask the server whether all is well.

        Raises:
            Finding: it is not.
        """
        silent: Exception | None = None
        try:
            self._ask()
        except (OSError, ReplyError) as error:
            silent = error
        try:
            self.server.check()
        except AssertionError as error:
            raise Finding(str(error)) from error
        if silent is not None:
            raise Finding(f"the server does not answer: {silent!r}") from silent

    def _ask(self) -> None:
        with RawClient(self.server.port, timeout_s=ANSWER_S) as connection:
            connection.call("PING")
            for database in range(DATABASES):
                connection.call("SELECT", database)
                differences = connection.call("HOLDMQ.CHECK")
                if differences != []:
                    raise Finding(f"HOLDMQ.CHECK of database {database}: {differences!r}")

    def _reset(self) -> None:
        with RawClient(self.server.port, timeout_s=ANSWER_S) as connection:
            for name, value in self._settings:
                connection.call("CONFIG", "SET", name, value)
            connection.call("FLUSHALL")
            connection.call("SCRIPT", "FLUSH")

    def _send(self, number: int, commands: list[Command]) -> None:
        self.sent += len(commands)
        try:
            if number not in self._lines:
                # Before 7.2 what a client publishes to itself in a transaction lands inside the reply to EXEC.
                counts = self.server.kind.version >= (7, 2)
                self._lines[number] = Line(self.server.port, resp3=bool(number % 2), counts=counts)
            self._lines[number].send(commands)
        except OSError:  # killed by another connection, or by itself; `look` asks whether that is all
            line = self._lines.pop(number, None)
            if line is not None:
                line.close()

    def _setting(self, name: str) -> bytes:
        with RawClient(self.server.port) as connection:
            reply = connection.call("CONFIG", "GET", name)
        if not isinstance(reply, list) or not isinstance(reply[1], bytes):
            raise AssertionError(f"CONFIG GET {name} replied {reply!r}")
        return reply[1]


def replay(rig: Rig, batches: Sequence[Sequence[Step]]) -> None:
    """Play batches on an empty server.

    Raises:
        Finding: something that must hold does not.
    """
    rig.empty()
    for batch in batches:
        rig.play(batch)


def generated(seed: int) -> list[list[Step]]:
    """The batches of a round."""
    generator = Generator(seed)
    return [generator.batch() for _ in range(BATCHES_A_ROUND)]


def found_by(rig: Rig, batches: Sequence[Sequence[Step]]) -> str | None:
    """What these batches find, None if nothing."""
    try:
        replay(rig, batches)
    except Finding as finding:
        return str(finding)
    return None


def signature(finding: str) -> str:
    """What two findings of one cause have in common: the topmost function of ours, or the text without names."""
    frame = re.search(r"#\d+ 0x\w+ in (\w+ \S*(?:redis_module|src)/\S+)", finding)
    report = re.search(r"(?:ERROR: AddressSanitizer: \S+|runtime error: .{0,60})", finding)
    if frame or report:
        return f"{report[0] if report else ''} {frame[1] if frame else ''}"
    differences = sorted(set(re.findall(r"b['\"]([a-z ]+): ", finding)))
    return " ".join(differences) or re.sub(r"\d+", "N", finding)[:100]


def shortened(rig: Rig, batches: Sequence[Sequence[Step]], same: str) -> list[list[Step]]:
    """The same finding from fewer steps and looks, as few as are found in the time for it."""
    end = time.monotonic() + SHORTEN_S
    items: list[Step | None] = [item for batch in batches for item in (*batch, None)]
    size = len(items) // 2
    while size > 0:
        at = 0
        while at < len(items) and time.monotonic() < end:
            fewer = items[:at] + items[at + size :]
            if signature(found_by(rig, split(fewer)) or "") == same:
                items = fewer
            else:
                at += size
        size //= 2
    return split(items)


def split(items: Sequence[Step | None]) -> list[list[Step]]:
    """The batches that None ends."""
    batches: list[list[Step]] = [[]]
    for item in items:
        if item is None:
            batches.append([])
        else:
            batches[-1].append(item)
    return [batch for batch in batches if batch]


def keep(rig: Rig, batches: Sequence[Sequence[Step]], finding: str, comment: str, path: Path | None = None) -> None:
    """Write what led to a finding into the corpus, as short as it gets, once for each cause (or to `path`)."""
    same = signature(finding)
    target = path or CORPUS / f"wire-{sha256(same.encode()).hexdigest()[:12]}.txt"
    if path is None and target.exists():
        sys.stdout.write(f"{comment}: again {target.name}\n")
        return
    said = f"{comment}\n{finding[:MAX_FINDING]}"
    replayable.write(target, batches, said)
    sys.stdout.write(f"{said}\n{target}\n")
    sys.stdout.flush()
    replayable.write(target, shortened(rig, batches, same), said)


def fuzz(rig: Rig, seed: int, seconds: float) -> int:
    """Play random rounds for so long; returns the number of those that found something."""
    end, rounds, findings = time.monotonic() + seconds, 0, 0
    numbers = random.Random(seed)
    while time.monotonic() < end:
        round_seed, rounds = numbers.randrange(1 << 32), rounds + 1
        batches = generated(round_seed)
        for count in range(1, len(batches) + 1):
            if count == 1:
                rig.empty()
            try:
                rig.play(batches[count - 1])
            except Finding as finding:
                findings += 1
                keep(rig, batches[:count], str(finding), f"round {round_seed} on {rig.server.kind.name}")
                break
    sys.stdout.write(f"{rounds} rounds, {rig.sent} commands, {findings} rounds with a finding\n")
    return findings


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Fuzz the module over the wire.")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--round", type=int, help="play the one round with this seed")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--server", choices=[kind.name for kind in KINDS], default="valkey-9.1")
    parser.add_argument("--replay", type=Path, help="a file of the corpus")
    parser.add_argument("--shorten", type=Path, help="where to write the shortest that finds the same as the replay")
    options = parser.parse_args()
    kind = next(kind for kind in KINDS if kind.name == options.server)
    with tempfile.TemporaryDirectory(prefix="holdmq-fuzz-") as folder:
        server = Server(kind, Path(folder))
        try:
            server.start()
            rig = Rig(server)
            if options.replay is not None or options.round is not None:
                batches = replayable.read(options.replay) if options.replay else generated(options.round)
                finding = found_by(rig, batches)
                if finding and options.shorten:
                    keep(rig, batches, finding, f"on {kind.name}", options.shorten)
                sys.stdout.write(f"{finding or 'nothing found'}\n")
                return int(finding is not None)
            sys.stdout.write(f"wire: seed {options.seed}, {options.seconds:g} s, {kind.name}, module {find_module()}\n")
            sys.stdout.flush()
            return int(fuzz(rig, options.seed, options.seconds) > 0)
        finally:
            server.close()


if __name__ == "__main__":
    sys.exit(main())
